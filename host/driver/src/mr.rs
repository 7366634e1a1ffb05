//! Protection domains and memory regions.

use crate::device::Device;
use crate::function::{Error, Result};
use crate::memory::{PAGE, Pages, RingMemory};
use abi::cmd::{answer, create_mr, key_kind, op};
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
    key: Key,
    len: usize,
}

/// The device's side of a region.
struct Key {
    pd: Pd,
    index: u32,
    key: u32,
    memory: Option<Pages>,
    len: usize,
}

impl Key {
    fn ptr(&self) -> *mut u8 {
        self.memory.as_ref().map_or(std::ptr::null_mut(), Pages::as_ptr)
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        // The key dies before the memory goes. One that lives on, for a window is open on it, keeps its memory for good.
        if self.pd.0.device.destroy(op::DESTROY_MR, self.index) {
            self.pd.0.device.0.bus.unmap(self.ptr(), self.len);
        } else {
            std::mem::forget(self.memory.take());
        }
    }
}

impl Pd {
    /// Allocates `len` zeroed bytes and registers them.
    pub fn alloc(&self, len: usize, access: Access) -> Result<Mr> {
        self.alloc_with(len, access, Translation::Auto)
    }

    /// The same with a choice of translation; the memory is aligned to the page size.
    pub fn alloc_with(&self, len: usize, access: Access, translation: Translation) -> Result<Mr> {
        self.alloc_for(len, access, translation, false)
    }

    /// The same of a region that windows may be bound to ([`Mw`]). Of these the device has a sixteenth as many as of others.
    pub fn alloc_for_windows(&self, len: usize, access: Access, translation: Translation) -> Result<Mr> {
        self.alloc_for(len, access, translation, true)
    }

    fn alloc_for(&self, len: usize, access: Access, translation: Translation, binds: bool) -> Result<Mr> {
        if len == 0 {
            return Err(Error::new("a region of 0 bytes").hint("register at least one byte"));
        }
        let align = match translation {
            Translation::Auto | Translation::OnDemand => PAGE,
            Translation::Pages(size) => 1 << page_shift(size)?,
        };
        let memory = Pages::aligned(len, align)?;
        let key = self.register(memory, len, access, translation, binds)?;
        Ok(Mr { key, len })
    }

    fn register(&self, memory: Pages, len: usize, access: Access, t: Translation, binds: bool) -> Result<Key> {
        let ptr = memory.as_ptr();
        let device = &self.0.device;
        // SAFETY: the memory lives in the key, and is unmapped when that drops, before it is freed.
        let iova = unsafe { device.0.bus.map(ptr, len)? };
        let made = self.create_key(iova, ptr as u64, len, access, t, binds);
        match made {
            Ok((index, key)) => Ok(Key { pd: self.clone(), index, key, memory: Some(memory), len }),
            Err(e) => {
                device.0.bus.unmap(ptr, len);
                Err(e)
            }
        }
    }

    fn create_key(
        &self,
        iova: u64,
        va: u64,
        len: usize,
        access: Access,
        t: Translation,
        binds: bool,
    ) -> Result<(u32, u32)> {
        let device = &self.0.device;
        let c = device
            .command(op::CREATE_MR)
            .with(create_mr::PD, self.0.number.into())
            .with(create_mr::ACCESS, access.bits().into())
            .with(create_mr::BINDS, binds.into())
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
        self.key.ptr() as u64
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
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.key.ptr().add(offset), data.len()) }
    }

    /// Copies from the region into `buf`.
    ///
    /// # Panics
    /// When the region has less, as slices do.
    pub fn read(&self, offset: usize, buf: &mut [u8]) {
        self.check(offset, buf.len());
        // SAFETY: as in `write`.
        unsafe { std::ptr::copy_nonoverlapping(self.key.ptr().add(offset), buf.as_mut_ptr(), buf.len()) }
    }

    /// One byte, read anew each time: for waiting on data. What is read afterwards is at least as new.
    ///
    /// # Panics
    /// When it is not in the region.
    pub fn byte(&self, offset: usize) -> u8 {
        self.check(offset, 1);
        // SAFETY: in bounds.
        let byte = unsafe { self.key.ptr().add(offset).read_volatile() };
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

/// Memory of up to so many bytes that work requests register, a part of it and under another key each time: fast registration
/// ([`Operation::Register`](crate::Operation::Register)). It opens from then on until its key is invalidated, by
/// [`Operation::LocalInv`](crate::Operation::LocalInv) or a peer's [`Operation::SendInv`](crate::Operation::SendInv).
pub struct FastMr {
    mr: Mr,
    /// Bus addresses of its pages, for the device.
    _list: RingMemory,
}

/// A part of a [`FastMr`] and the key that it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
    pub(crate) len: usize,
    pub(crate) access: Access,
    pub(crate) pages: u64,
}

impl Registration {
    /// Key, for SGEs and for peers.
    pub fn key(&self) -> u32 {
        self.rkey
    }
    /// A place that a peer can name once it is registered.
    pub fn remote(&self, offset: usize) -> Remote {
        Remote { addr: self.addr.wrapping_add(offset as u64), rkey: self.rkey }
    }
    /// A local scatter/gather element, of less than 4 GiB.
    pub fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge { addr: self.addr.wrapping_add(offset as u64), len: len as u32, lkey: self.rkey }
    }
}

impl Pd {
    /// Allocates `len` zeroed bytes that work requests register. Nothing opens them yet.
    pub fn alloc_fast(&self, len: usize) -> Result<FastMr> {
        if len == 0 {
            return Err(Error::new("a region of 0 bytes").hint("give it at least one byte"));
        }
        let (memory, device) = (Pages::aligned(len, PAGE)?, &self.0.device);
        let ptr = memory.as_ptr();
        // SAFETY: as in `register`.
        let iova = unsafe { device.0.bus.map(ptr, len)? };
        let pages = len.div_ceil(PAGE);
        let c = device
            .command(op::CREATE_MR)
            .with(create_mr::PD, self.0.number.into())
            .with(create_mr::KIND, key_kind::FAST.into())
            .with(create_mr::PAGE_SHIFT, PAGE.ilog2().into())
            .with(create_mr::LENGTH, pages as u64);
        let made = RingMemory::new(&device.0.bus, pages * 8).and_then(|list| {
            let made = device.create(&c.with(create_mr::PAGES, list.iova()))?;
            Ok((list, made))
        });
        let (list, (index, answered)) = made.inspect_err(|_| device.0.bus.unmap(ptr, len))?;
        (0..pages).for_each(|i| list.write(i * 8, &(iova + (i * PAGE) as u64).to_le_bytes()));
        let key = Key { pd: self.clone(), index, key: answered.get(answer::VALUE) as u32, memory: Some(memory), len };
        Ok(FastMr { mr: Mr { key, len }, _list: list })
    }
}

impl FastMr {
    /// The memory, and its key since the latest [`FastMr::part`]; whether that is registered is the device's to know.
    pub fn memory(&self) -> &Mr {
        &self.mr
    }

    /// `len` bytes from `offset` on under a key of its own, for one registration: no older key opens them.
    ///
    /// # Panics
    /// When they are not in the memory, as slices do.
    pub fn part(&mut self, offset: usize, len: usize, access: Access) -> Registration {
        self.mr.check(offset, len);
        let old = self.mr.rkey();
        self.mr.key.key = old & !0xff | old.wrapping_add(1) & 0xff;
        Registration {
            addr: self.mr.addr() + offset as u64,
            rkey: self.mr.rkey(),
            len,
            access,
            pages: (offset / PAGE) as u64,
        }
    }
}

/// A memory window of type 2: work requests bind it to a part of a region ([`Operation::Bind`](crate::Operation::Bind)), which it then opens to the peer of the
/// QP that they were posted to, until its key is invalidated. A region that is dropped meanwhile stays open, and its memory is never freed: drop windows first.
pub struct Mw {
    pd: Pd,
    index: u32,
    key: u32,
}

/// A window and what it is to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    pub(crate) part: Registration,
    pub(crate) lkey: u32,
}

impl Binding {
    /// The window's key from then on.
    pub fn key(&self) -> u32 {
        self.part.rkey
    }
    /// A place that the peer can name once it is bound.
    pub fn remote(&self, offset: usize) -> Remote {
        self.part.remote(offset)
    }
}

impl Pd {
    /// Creates a window that opens nothing yet.
    pub fn create_window(&self) -> Result<Mw> {
        let device = &self.0.device;
        let c = device
            .command(op::CREATE_MR)
            .with(create_mr::PD, self.0.number.into())
            .with(create_mr::KIND, key_kind::WINDOW.into());
        let (index, answered) = device.create(&c)?;
        Ok(Mw { pd: self.clone(), index, key: answered.get(answer::VALUE) as u32 })
    }
}

impl Mw {
    /// `len` bytes of `mr` from `offset` on, under a key of its own, for one binding: no older key opens them. What peers may do is the
    /// remote part of `access`. Bounds are the device's to check.
    pub fn of(&mut self, mr: &Mr, offset: usize, len: usize, access: Access) -> Binding {
        self.key = self.key & !0xff | self.key.wrapping_add(1) & 0xff;
        let part = Registration { addr: mr.addr().wrapping_add(offset as u64), rkey: self.key, len, access, pages: 0 };
        Binding { part, lkey: mr.lkey() }
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        self.pd.0.device.destroy(op::DESTROY_MR, self.index);
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
