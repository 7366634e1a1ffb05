//! Memory that the device reaches: which bus addresses it has, and rings that live in it.
//!
//! A bus address equals the address in this process wherever the IOMMU allows it. Maps are shared: two regions on one page
//! use one map, which goes when the last of them goes.

use crate::fence;
use crate::function::{DmaAccess, DmaLimits, DmaMap, Error, PciFunction, Result};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Granule of maps in bytes.
pub const PAGE: usize = 4096;

struct Map {
    end: u64,
    users: usize,
}

/// The bus address space of one device.
pub struct BusSpace {
    function: Arc<dyn PciFunction>,
    limits: DmaLimits,
    maps: Mutex<BTreeMap<u64, Map>>,
}

impl BusSpace {
    /// The address space of `function`.
    pub fn new(function: Arc<dyn PciFunction>) -> Result<Self> {
        let limits = function.dma_limits()?;
        Ok(BusSpace { function, limits, maps: Mutex::new(BTreeMap::new()) })
    }

    /// Maps in use: the ledger that must be empty when all regions are gone.
    pub fn maps(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Map>> {
        self.maps.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Maps the pages around `len` bytes at `ptr` and returns the bus address of `ptr`.
    ///
    /// # Safety
    /// As [`PciFunction::dma_map`]; the memory stays valid until the same range is unmapped here.
    pub unsafe fn map(&self, ptr: *mut u8, len: usize) -> Result<u64> {
        let range = pages(ptr as u64, len);
        let allowed = |(from, to): &(u64, u64)| self.limits.iova.iter().any(|(a, b)| a <= from && to - 1 <= *b);
        let Some((from, to)) = range.filter(allowed) else {
            let ranges: Vec<_> = self.limits.iova.iter().map(|(a, b)| format!("{a:#x}..={b:#x}")).collect();
            return Err(Error::new(format!("memory of {len} bytes at {ptr:p} has no bus address"))
                .hint(format!("the IOMMU allows {}", ranges.join(", "))));
        };
        let mut maps = self.lock();
        // The gaps between the maps that are there already.
        let mut gaps = Vec::new();
        let mut at = from;
        for (start, map) in maps.range(..to).filter(|(_, m)| m.end > from) {
            if *start > at {
                gaps.push((at, *start));
            }
            at = at.max(map.end);
        }
        if at < to {
            gaps.push((at, to));
        }
        if maps.len() + gaps.len() > self.limits.max_maps as usize {
            return Err(Error::new(format!("all {} maps of the IOMMU are in use", self.limits.max_maps))
                .hint("register fewer, larger regions"));
        }
        for (done, (a, b)) in gaps.iter().enumerate() {
            let map = DmaMap { iova: *a, ptr: *a as *mut u8, len: (b - a) as usize, access: DmaAccess::Both, fd: None };
            // SAFETY: the caller's promise; whole pages around its memory belong to the same mapping of the process.
            if let Err(e) = unsafe { self.function.dma_map(&map) } {
                for (a, b) in &gaps[..done] {
                    maps.remove(a);
                    self.function.dma_unmap(*a, (b - a) as usize)?;
                }
                return Err(e);
            }
            maps.insert(*a, Map { end: *b, users: 0 });
        }
        maps.range_mut(..to).filter(|(_, m)| m.end > from).for_each(|(_, m)| m.users += 1);
        Ok(ptr as u64)
    }

    /// Undoes one `map` of the same range.
    pub fn unmap(&self, ptr: *mut u8, len: usize) {
        let Some((from, to)) = pages(ptr as u64, len) else { return };
        let mut maps = self.lock();
        let mut gone = Vec::new();
        for (start, map) in maps.range_mut(..to).filter(|(_, m)| m.end > from) {
            map.users -= 1;
            if map.users == 0 {
                gone.push((*start, map.end));
            }
        }
        for (start, end) in gone {
            maps.remove(&start);
            // A device that is gone has no maps left to undo.
            let _ = self.function.dma_unmap(start, (end - start) as usize);
        }
    }
}

/// The pages around a range; an empty range takes the page it points at. `None`: they pass 2^64.
fn pages(at: u64, len: usize) -> Option<(u64, u64)> {
    let page = PAGE as u64;
    let end = at.checked_add(len.max(1) as u64)?.checked_next_multiple_of(page)?;
    Some((at & !(page - 1), end))
}

/// Zeroed, page-aligned memory of this process.
pub struct Pages {
    ptr: *mut u8,
    layout: Layout,
}

// SAFETY: plain memory; all access goes through raw pointers with the owner's synchronisation.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// `len` bytes, rounded up to whole pages (at least one).
    pub fn new(len: usize) -> Result<Self> {
        Self::aligned(len, PAGE)
    }

    /// The same at a multiple of `align`, a power of two of at least a page. The error: there is no memory for it.
    pub fn aligned(len: usize, align: usize) -> Result<Self> {
        let whole = len.max(1).checked_next_multiple_of(PAGE);
        let layout = whole.and_then(|whole| Layout::from_size_align(whole, align).ok());
        // SAFETY: the layout is not empty.
        let made = layout.map(|layout| (unsafe { alloc_zeroed(layout) }, layout)).filter(|(ptr, _)| !ptr.is_null());
        made.map(|(ptr, layout)| Pages { ptr, layout }).ok_or_else(|| {
            Error::new(format!("no memory for {len} bytes at a multiple of {align}"))
                .hint("use less memory, or smaller pages")
        })
    }

    /// Start.
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.ptr, self.layout) }
    }
}

/// A ring, or other memory of the driver's own, that the device reads and writes.
pub struct RingMemory {
    pages: Pages,
    bus: Arc<BusSpace>,
    iova: u64,
}

impl RingMemory {
    /// Zeroed memory of `len` bytes, aligned to 4 KiB.
    pub fn new(bus: &Arc<BusSpace>, len: usize) -> Result<Self> {
        let pages = Pages::new(len)?;
        // SAFETY: the pages live in the same struct and are unmapped before they are freed.
        let iova = unsafe { bus.map(pages.as_ptr(), pages.size())? };
        Ok(RingMemory { pages, bus: bus.clone(), iova })
    }

    /// Bus address.
    pub fn iova(&self) -> u64 {
        self.iova
    }

    #[inline]
    fn has(&self, offset: usize, len: usize) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.pages.size())
    }

    /// Copies `data` to `offset`.
    #[inline]
    pub fn write(&self, offset: usize, data: &[u8]) {
        assert!(self.has(offset, data.len()));
        // SAFETY: in bounds; the device is the only other party, and it looks after the doorbell.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.pages.as_ptr().add(offset), data.len()) }
    }

    /// The last byte of the `N` bytes at `offset`, where the device puts its phase bit, then all of them.
    #[inline]
    pub fn read_if<const N: usize>(&self, offset: usize, ready: impl Fn(u8) -> bool) -> Option<[u8; N]> {
        assert!(self.has(offset, N));
        // SAFETY: in bounds; the device writes an entry as one burst and the phase byte is part of it.
        unsafe {
            let p = self.pages.as_ptr().add(offset);
            if !ready(p.add(N - 1).read_volatile()) {
                return None;
            }
            fence::from_device();
            Some(p.cast::<[u8; N]>().read_volatile())
        }
    }
}

impl Drop for RingMemory {
    fn drop(&mut self) {
        self.bus.unmap(self.pages.as_ptr(), self.pages.size());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Fake;

    fn map(bus: &BusSpace, pages: &Pages, at: usize, len: usize) -> Result<u64> {
        // SAFETY: the tests keep `pages` alive until all is unmapped.
        unsafe { bus.map(pages.as_ptr().wrapping_add(at), len) }
    }

    #[test]
    fn regions_on_one_page_share_its_map_and_the_ledger_ends_empty() {
        let bus = BusSpace::new(Arc::new(Fake::default())).unwrap();
        let pages = Pages::new(4 * PAGE).unwrap();
        let at = |offset: usize| pages.as_ptr().wrapping_add(offset);
        assert_eq!(map(&bus, &pages, PAGE + 5, 10).unwrap(), at(PAGE + 5) as u64);
        map(&bus, &pages, PAGE + 100, 10).unwrap();
        assert_eq!(bus.maps(), 1, "the same page");
        map(&bus, &pages, 0, 4 * PAGE).unwrap();
        assert_eq!(bus.maps(), 3, "the pages before and behind it");
        bus.unmap(at(PAGE + 5), 10);
        bus.unmap(at(0), 4 * PAGE);
        assert_eq!(bus.maps(), 1, "one region still uses the page");
        bus.unmap(at(PAGE + 100), 10);
        assert_eq!(bus.maps(), 0);
    }

    #[test]
    fn what_the_iommu_cannot_hold_is_refused_with_its_limits() {
        let bus = BusSpace::new(Arc::new(Fake::default())).unwrap();
        let pages = Pages::new(8 * PAGE).unwrap();
        for i in [0, 2, 4] {
            map(&bus, &pages, i * PAGE, PAGE).unwrap();
        }
        let full = map(&bus, &pages, 6 * PAGE, 1).unwrap_err().to_string();
        assert!(full.contains("all 3 maps"), "{full}");
        // SAFETY: refused before anything is mapped.
        let outside = unsafe { bus.map(std::ptr::without_provenance_mut(1 << 50), 64) }.unwrap_err().to_string();
        assert!(outside.contains("0x1000..=0x7fffffffffff"), "{outside}");
        for i in [0, 2, 4] {
            bus.unmap(pages.as_ptr().wrapping_add(i * PAGE), PAGE);
        }
        assert_eq!(bus.maps(), 0);
    }

    #[test]
    fn what_no_memory_can_hold_is_refused() {
        for len in [usize::MAX, usize::MAX - PAGE + 2, isize::MAX as usize, 1 << 60] {
            let e = Pages::new(len).err().expect("no machine has it").to_string();
            assert!(e.contains(&format!("no memory for {len} bytes")), "{e}");
        }
        let bus = Arc::new(BusSpace::new(Arc::new(Fake::default())).unwrap());
        for (at, len) in [(usize::MAX - 5, 3), (0x1000, usize::MAX - 0x1000), (0x2000, usize::MAX)] {
            let ptr = std::ptr::without_provenance_mut(at);
            // SAFETY: refused before anything is mapped.
            let e = unsafe { bus.map(ptr, len) }.unwrap_err().to_string();
            assert!(e.contains(&format!("{len} bytes at {at:#x} has no bus address")), "{e}");
        }
        let ring = RingMemory::new(&bus, 64).unwrap();
        for offset in [usize::MAX - 3, PAGE - 7, PAGE] {
            let write = std::panic::AssertUnwindSafe(|| ring.write(offset, &[0; 8]));
            assert!(std::panic::catch_unwind(write).is_err(), "8 bytes written at {offset:#x}");
            let read = std::panic::AssertUnwindSafe(|| ring.read_if::<8>(offset, |_| true));
            assert!(std::panic::catch_unwind(read).is_err(), "8 bytes read at {offset:#x}");
        }
    }
}
