//! The IOMMU: which bus addresses reach which memory of this process. An access outside of a map is a fault that is
//! reported; it touches nothing.

use driver::function::{DmaAccess, DmaMap, Error, Result};
use std::collections::BTreeMap;

/// A DMA access that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaFault {
    /// Bus address.
    pub iova: u64,
    /// Bytes.
    pub len: usize,
    /// A write, not a read.
    pub write: bool,
}

struct Region {
    ptr: *mut u8,
    len: usize,
    access: DmaAccess,
}

// SAFETY: `dma_map`'s caller promises that the memory stays mapped and unreferenced until `dma_unmap`.
unsafe impl Send for Region {}

/// Bus address space of one function.
#[derive(Default)]
pub struct Iommu {
    maps: BTreeMap<u64, Region>,
    faults: Vec<DmaFault>,
}

/// Bus addresses of message-signalled interrupts; no memory can be mapped there.
pub const MSI_WINDOW: std::ops::Range<u64> = 0xfee0_0000..0xfef0_0000;

impl Iommu {
    /// Adds a map. Errors: empty, not in 4 KiB pages, overlaps another map or the MSI window.
    ///
    /// # Safety
    /// As [`driver::PciFunction::dma_map`].
    pub unsafe fn map(&mut self, m: &DmaMap<'_>) -> Result<()> {
        let end = m.iova.checked_add(m.len as u64);
        let Some(end) = end.filter(|_| m.len > 0 && m.iova.is_multiple_of(4096) && m.len.is_multiple_of(4096)) else {
            return Err(Error::new(format!("cannot map {} bytes at bus address {:#x}", m.len, m.iova))
                .hint("address and length must be multiples of 4096"));
        };
        if m.iova < MSI_WINDOW.end && end > MSI_WINDOW.start {
            return Err(Error::new(format!("bus addresses {:#x}..{end:#x} meet the MSI window", m.iova))
                .hint(format!("keep clear of {:#x}..{:#x}", MSI_WINDOW.start, MSI_WINDOW.end)));
        }
        if let Some((a, r)) = self.maps.range(..end).next_back()
            && a + r.len as u64 > m.iova
        {
            return Err(Error::new(format!("bus addresses {:#x}..{end:#x} overlap the map at {a:#x}", m.iova)));
        }
        self.maps.insert(m.iova, Region { ptr: m.ptr, len: m.len, access: m.access });
        Ok(())
    }

    /// Removes exactly one earlier map.
    pub fn unmap(&mut self, iova: u64, len: usize) -> Result<()> {
        match self.maps.get(&iova) {
            Some(r) if r.len == len => self.maps.remove(&iova),
            Some(r) => {
                return Err(Error::new(format!("unmapping {len} bytes at {iova:#x}, where {} are mapped", r.len)));
            }
            None => return Err(Error::new(format!("nothing is mapped at bus address {iova:#x}"))),
        };
        Ok(())
    }

    /// Maps in use.
    pub fn len(&self) -> usize {
        self.maps.len()
    }

    /// True when nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.maps.is_empty()
    }

    /// Reads memory; false is a fault.
    pub fn read(&mut self, iova: u64, buf: &mut [u8]) -> bool {
        let ok = self.walk(iova, buf.len(), DmaAccess::FromDevice, |ptr, at, n| {
            // SAFETY: inside of a mapped region, which its owner keeps valid; no Rust reference to it is in use.
            unsafe { std::ptr::copy_nonoverlapping(ptr, buf[at..at + n].as_mut_ptr(), n) }
        });
        if !ok {
            self.faults.push(DmaFault { iova, len: buf.len(), write: false });
        }
        ok
    }

    /// Writes memory; false is a fault, and then nothing was written.
    pub fn write(&mut self, iova: u64, data: &[u8]) -> bool {
        let covered = self.walk(iova, data.len(), DmaAccess::ToDevice, |_, _, _| {});
        if !covered {
            self.faults.push(DmaFault { iova, len: data.len(), write: true });
            return false;
        }
        self.walk(iova, data.len(), DmaAccess::ToDevice, |ptr, at, n| {
            // SAFETY: as in `read`.
            unsafe { std::ptr::copy_nonoverlapping(data[at..at + n].as_ptr(), ptr, n) }
        })
    }

    /// Calls `f(pointer, offset, bytes)` for each stretch of the range; false when a part is not mapped or only allows
    /// the direction `forbidden`.
    fn walk(&self, iova: u64, len: usize, forbidden: DmaAccess, mut f: impl FnMut(*mut u8, usize, usize)) -> bool {
        let mut at = 0;
        while at < len {
            let here = iova.wrapping_add(at as u64);
            let Some((base, r)) = self.maps.range(..=here).next_back() else { return false };
            let skip = (here - base) as usize;
            if skip >= r.len || r.access == forbidden {
                return false;
            }
            let n = (r.len - skip).min(len - at);
            // SAFETY: skip is inside of the region.
            f(unsafe { r.ptr.add(skip) }, at, n);
            at += n;
        }
        true
    }

    /// Faults since the last call.
    pub fn take_faults(&mut self) -> Vec<DmaFault> {
        std::mem::take(&mut self.faults)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(iommu: &mut Iommu, iova: u64, mem: &mut [u8], access: DmaAccess) -> Result<()> {
        // SAFETY: the tests keep `mem` alive and only look at it between accesses.
        unsafe { iommu.map(&DmaMap { iova, ptr: mem.as_mut_ptr(), len: mem.len(), access, fd: None }) }
    }

    #[test]
    fn accesses_cross_maps_and_fault_outside() {
        let (mut a, mut b) = (vec![1u8; 4096], vec![2u8; 4096]);
        let mut iommu = Iommu::default();
        map(&mut iommu, 0x1000, &mut a, DmaAccess::Both).unwrap();
        map(&mut iommu, 0x2000, &mut b, DmaAccess::ToDevice).unwrap();
        let mut buf = [0; 8];
        assert!(iommu.read(0x1ffc, &mut buf));
        assert_eq!(buf, [1, 1, 1, 1, 2, 2, 2, 2]);
        assert!(iommu.write(0x1000, &[9]) && a[0] == 9);
        assert!(!iommu.write(0x1ffc, &[7; 8]), "the second page is read-only");
        assert_eq!(a[4092], 1, "a write that faults writes nothing");
        assert!(!iommu.read(0x2fff, &mut buf) && !iommu.read(u64::MAX, &mut buf));
        assert_eq!(iommu.take_faults().len(), 3);
    }

    #[test]
    fn maps_do_not_overlap_and_leave_exactly_as_they_came() {
        let mut a = vec![0u8; 8192];
        let mut iommu = Iommu::default();
        map(&mut iommu, 0x4000, &mut a, DmaAccess::Both).unwrap();
        assert!(map(&mut iommu, 0x5000, &mut a, DmaAccess::Both).is_err());
        assert!(map(&mut iommu, 0x3000, &mut a, DmaAccess::Both).is_err());
        assert!(map(&mut iommu, 0xfedf_f000, &mut a, DmaAccess::Both).is_err());
        assert!(iommu.unmap(0x4000, 4096).is_err() && iommu.unmap(0x5000, 4096).is_err());
        iommu.unmap(0x4000, 8192).unwrap();
        assert!(iommu.is_empty());
    }
}
