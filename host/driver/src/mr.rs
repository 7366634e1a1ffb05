//! Protection domains and memory regions.

use crate::device::Device;
use crate::function::{Error, Result};
use crate::memory::{PAGE, Pages, RingMemory};
use abi::cmd::{answer, create_mr, op};
use bitflags::bitflags;
use std::sync::Arc;

bitflags! {
    /// What a region, or a QP, allows (`ibv_access_flags`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Access: u8 {
        /// The device may write on behalf of this side: receives and READs land.
        const LOCAL_WRITE = abi::table::access::LOCAL_WRITE;
        /// Peers may WRITE; needs `LOCAL_WRITE` on a region.
        const REMOTE_WRITE = abi::table::access::REMOTE_WRITE;
        /// Peers may READ.
        const REMOTE_READ = abi::table::access::REMOTE_READ;
        /// Peers may do atomics; needs `LOCAL_WRITE` on a region.
        const REMOTE_ATOMIC = abi::table::access::REMOTE_ATOMIC;
    }
}

/// A protection domain: regions and QPs work together only within one.
#[derive(Clone)]
pub struct Pd(pub(crate) Arc<PdInner>);

pub(crate) struct PdInner {
    pub(crate) device: Device,
    pub(crate) number: u32,
}

impl Device {
    /// Creates a protection domain.
    pub fn create_pd(&self) -> Result<Pd> {
        let (number, _) = self.create(&self.command(op::CREATE_PD))?;
        Ok(Pd(Arc::new(PdInner { device: self.clone(), number })))
    }
}

impl Drop for PdInner {
    fn drop(&mut self) {
        self.device.destroy(op::DESTROY_PD, self.number);
    }
}

/// How the device finds the memory of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Translation {
    /// As one stretch of bus addresses where they are contiguous, else by pages.
    #[default]
    Auto,
    /// By pages of 4 KiB, 64 KiB, 2 MiB or 1 GiB, whatever the addresses are.
    Pages(u64),
    /// Pages that come and go while the region lives (on-demand paging). The device refuses it by name.
    OnDemand,
}

/// A registered memory region that owns its memory.
pub struct Mr {
    // Dropped in this order: the key dies before the memory goes.
    key: Key,
    memory: Pages,
    len: usize,
}

/// The device's side of a region.
struct Key {
    pd: Pd,
    index: u32,
    key: u32,
    ptr: *mut u8,
    len: usize,
}

// SAFETY: the pointer is only a name here.
unsafe impl Send for Key {}
// SAFETY: as above.
unsafe impl Sync for Key {}

impl Drop for Key {
    fn drop(&mut self) {
        self.pd.0.device.destroy(op::DESTROY_MR, self.index);
        self.pd.0.device.0.bus.unmap(self.ptr, self.len);
    }
}

impl Pd {
    /// Allocates `len` zeroed bytes and registers them.
    pub fn alloc(&self, len: usize, access: Access) -> Result<Mr> {
        self.alloc_with(len, access, Translation::Auto)
    }

    /// The same with a choice of translation; the memory is aligned to the page size.
    pub fn alloc_with(&self, len: usize, access: Access, translation: Translation) -> Result<Mr> {
        if len == 0 {
            return Err(Error::new("a region of 0 bytes").hint("register at least one byte"));
        }
        let align = match translation {
            Translation::Auto | Translation::OnDemand => PAGE,
            Translation::Pages(size) => 1 << page_shift(size)?,
        };
        let memory = Pages::aligned(len, align)?;
        let key = self.register(memory.as_ptr(), len, access, translation)?;
        Ok(Mr { key, memory, len })
    }

    fn register(&self, ptr: *mut u8, len: usize, access: Access, translation: Translation) -> Result<Key> {
        let device = &self.0.device;
        // SAFETY: the memory lives in the `Mr` beside the key, and is unmapped when the key drops, before it is freed.
        let iova = unsafe { device.0.bus.map(ptr, len)? };
        let made = self.create_key(iova, ptr as u64, len, access, translation);
        match made {
            Ok((index, key)) => Ok(Key { pd: self.clone(), index, key, ptr, len }),
            Err(e) => {
                device.0.bus.unmap(ptr, len);
                Err(e)
            }
        }
    }

    fn create_key(&self, iova: u64, va: u64, len: usize, access: Access, t: Translation) -> Result<(u32, u32)> {
        let device = &self.0.device;
        let c = device
            .command(op::CREATE_MR)
            .with(create_mr::PD, self.0.number.into())
            .with(create_mr::ACCESS, access.bits().into())
            .with(create_mr::VA, va)
            .with(create_mr::LENGTH, len as u64);
        let answered = match t {
            Translation::Auto => device.create(&c.with(create_mr::CONTIGUOUS, 1).with(create_mr::PAGES, iova))?,
            Translation::OnDemand => device.create(&c.with(create_mr::ON_DEMAND, 1))?,
            Translation::Pages(size) => {
                let shift = page_shift(size)?;
                let first = iova & !(size - 1);
                let count = (iova + len as u64 - first).div_ceil(size);
                let list = RingMemory::new(&device.0.bus, count as usize * 8)?;
                for i in 0..count {
                    list.write(i as usize * 8, &(first + i * size).to_le_bytes());
                }
                let c = c.with(create_mr::PAGE_SHIFT, shift.into()).with(create_mr::PAGES, list.iova());
                device.create(&c)?
            }
        };
        Ok((answered.0, answered.1.get(answer::VALUE) as u32))
    }
}

/// Log2 of a page size that the device translates.
fn page_shift(size: u64) -> Result<u32> {
    [12, 16, 21, 30].into_iter().find(|s| 1u64 << s == size).ok_or_else(|| {
        Error::new(format!("pages of {size} bytes"))
            .hint("the device translates pages of 4 KiB, 64 KiB, 2 MiB and 1 GiB")
    })
}

impl Mr {
    /// Address that WQEs and peers name the region by.
    pub fn addr(&self) -> u64 {
        self.memory.as_ptr() as u64
    }
    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Never: a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }
    /// Key for SGEs.
    pub fn lkey(&self) -> u32 {
        self.key.key
    }
    /// Key for peers.
    pub fn rkey(&self) -> u32 {
        self.key.key
    }

    fn check(&self, offset: usize, len: usize) {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(inside, "{len} bytes at offset {offset} of a region of {} bytes", self.len);
    }

    /// Copies `data` into the region.
    ///
    /// # Panics
    /// When it does not fit into the region, as slices do.
    pub fn write(&self, offset: usize, data: &[u8]) {
        self.check(offset, data.len());
        // SAFETY: in bounds; no Rust reference into the region exists, the device is the only other party.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.memory.as_ptr().add(offset), data.len()) }
    }

    /// Copies from the region into `buf`.
    ///
    /// # Panics
    /// When the region has less, as slices do.
    pub fn read(&self, offset: usize, buf: &mut [u8]) {
        self.check(offset, buf.len());
        // SAFETY: as in `write`.
        unsafe { std::ptr::copy_nonoverlapping(self.memory.as_ptr().add(offset), buf.as_mut_ptr(), buf.len()) }
    }

    /// One byte, read anew each time: for waiting on data. What is read afterwards is at least as new.
    ///
    /// # Panics
    /// When it is not in the region.
    pub fn byte(&self, offset: usize) -> u8 {
        self.check(offset, 1);
        // SAFETY: in bounds.
        let byte = unsafe { self.memory.as_ptr().add(offset).read_volatile() };
        crate::fence::from_device();
        byte
    }

    /// A local scatter/gather element. Bounds are the device's to check.
    ///
    /// # Panics
    /// When it cannot be told in an SGE: `len` of 4 GiB and more, an address beyond 2^64.
    pub fn sge(&self, offset: usize, len: usize) -> Sge {
        let Ok(told) = u32::try_from(len) else { panic!("an SGE of {len} bytes: it has 32 bits for them") };
        Sge { addr: self.place(offset), len: told, lkey: self.lkey() }
    }

    /// A place that a peer can name. Bounds are the peer's device's to check.
    ///
    /// # Panics
    /// When its address is beyond 2^64.
    pub fn remote(&self, offset: usize) -> Remote {
        Remote { addr: self.place(offset), rkey: self.rkey() }
    }

    fn place(&self, offset: usize) -> u64 {
        let at = self.addr().checked_add(offset as u64);
        at.unwrap_or_else(|| panic!("offset {offset:#x} of a region at {:#x} is beyond 2^64", self.addr()))
    }
}

/// Local memory of a work request. Bounds and key are the device's to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Sge {
    /// Address.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// Key.
    pub lkey: u32,
}

/// A peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Remote {
    /// Address.
    pub addr: u64,
    /// Key.
    pub rkey: u32,
}
