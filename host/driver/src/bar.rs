//! A BAR: mapped where that is possible, trapped elsewhere; the caller cannot tell but by time.

use crate::fence;
use crate::function::{Mapping, PciFunction, Result};
use std::marker::PhantomData;
use std::sync::Arc;
use volatile_register::{RO, RW, WO};

/// One BAR of a function. A trapped read that fails returns all ones, as PCIe does.
pub struct Bar {
    // Declared first: unmapped before the function can close.
    window: Option<(usize, Mapping)>,
    function: Arc<dyn PciFunction>,
    index: u8,
    size: u64,
}

/// An integer that a register may hold.
pub trait Word: Copy {
    /// Bytes.
    const BYTES: usize;
    /// From little-endian bytes.
    fn of(bytes: [u8; 8]) -> Self;
    /// To little-endian bytes.
    fn bytes(self) -> [u8; 8];
}
macro_rules! word {
    ($($t:ty),*) => { $(impl Word for $t {
        const BYTES: usize = size_of::<$t>();
        fn of(bytes: [u8; 8]) -> Self { u64::from_le_bytes(bytes) as $t }
        fn bytes(self) -> [u8; 8] { (self as u64).to_le_bytes() }
    })* };
}
word!(u32, u64);

impl Bar {
    /// BAR `index` of `function`, mapped as far as the function allows it.
    pub fn open(function: Arc<dyn PciFunction>, index: u8) -> Result<Bar> {
        let info = function.bar_info(index)?;
        let window = match info.mappable.iter().copied().max_by_key(|w| w.1) {
            Some((offset, len)) => function.bar_map(index, offset, len)?.map(|m| (offset as usize, m)),
            None => None,
        };
        Ok(Bar { window, function, index, size: info.size })
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Where `offset` is mapped, if it is, and aligned.
    #[inline]
    fn pointer(&self, offset: usize, bytes: usize) -> Option<*mut u8> {
        let (from, map) = self.window.as_ref()?;
        let at = offset.checked_sub(*from)?;
        at.checked_add(bytes).filter(|end| *end <= map.len && offset.is_multiple_of(bytes))?;
        // SAFETY: inside of the mapping, as just checked.
        Some(unsafe { map.ptr.add(at) })
    }

    /// Reads a register. What is read from memory afterwards is what the device had written by then.
    #[inline]
    pub fn read<T: Word>(&self, offset: usize) -> T {
        let value = match self.pointer(offset, T::BYTES) {
            // SAFETY: device memory inside of the mapping, aligned.
            Some(p) => unsafe { p.cast::<T>().read_volatile() },
            None => self.read_trapped(offset),
        };
        fence::from_device();
        value
    }

    fn read_trapped<T: Word>(&self, offset: usize) -> T {
        let mut bytes = [0xff; 8];
        if self.function.bar_read(self.index, offset as u64, &mut bytes[..T::BYTES]).is_err() {
            bytes = [0xff; 8];
        }
        T::of(bytes)
    }

    /// Writes a register; the write may be posted. What was written to memory before is visible to the device first.
    #[inline]
    pub fn write<T: Word>(&self, offset: usize, value: T) {
        fence::to_device();
        match self.pointer(offset, T::BYTES) {
            // SAFETY: as in `read`.
            Some(p) => unsafe { p.cast::<T>().write_volatile(value) },
            // A write to a device that is gone is lost, as on the bus; the next read tells.
            None => drop(self.function.bar_write(self.index, offset as u64, &value.bytes()[..T::BYTES])),
        }
    }

    /// The 8-byte doorbell at `offset`, resolved once.
    pub fn doorbell(self: &Arc<Self>, offset: usize) -> Doorbell {
        let inside = (offset as u64).checked_add(8).is_some_and(|end| end <= self.size);
        assert!(offset.is_multiple_of(8) && inside, "doorbell at {offset:#x} of {:#x} bytes", self.size);
        let pointer = self.pointer(offset, 8).map_or(std::ptr::null_mut(), |p| p.cast());
        Doorbell { pointer, bar: self.clone(), offset }
    }
}

/// One 8-byte doorbell. Mapped, ringing it is a fence, a test and a store.
pub struct Doorbell {
    pointer: *mut u64,
    bar: Arc<Bar>,
    offset: usize,
}

// SAFETY: the pointer names device memory of `bar`, which lives as long as the doorbell.
unsafe impl Send for Doorbell {}
// SAFETY: as above; a store of 8 bytes is one access.
unsafe impl Sync for Doorbell {}

impl Doorbell {
    /// Rings: everything written to ring memory before is visible to the device first.
    #[inline]
    pub fn ring(&self, value: u64) {
        if self.pointer.is_null() {
            self.bar.write(self.offset, value);
        } else {
            fence::to_device();
            // SAFETY: see the type.
            unsafe { self.pointer.write_volatile(value.to_le()) }
        }
    }
}

/// A register of a block struct `S` in a [`Bar`]: the struct gives offset, width and direction. Made by [`reg!`](crate::reg).
pub struct At<'a, F> {
    bar: &'a Bar,
    offset: usize,
    field: PhantomData<F>,
}

impl<'a, F> At<'a, F> {
    /// Used by [`reg!`](crate::reg); `_field` ties `F` to the struct's field.
    pub fn new<S>(bar: &'a Bar, offset: usize, _field: fn(&S) -> &F) -> Self {
        At { bar, offset, field: PhantomData }
    }
}
macro_rules! readable {
    ($($r:ident),*) => { $(impl<T: Word> At<'_, $r<T>> {
        /// Reads the register.
        pub fn read(&self) -> T { self.bar.read(self.offset) }
    })* };
}
macro_rules! writable {
    ($($r:ident),*) => { $(impl<T: Word> At<'_, $r<T>> {
        /// Writes the register.
        pub fn write(&self, value: T) { self.bar.write(self.offset, value) }
    })* };
}
readable!(RO, RW);
writable!(RW, WO);

/// `reg!(bar, Registers, health).read()`: a register by its name in a block struct; a read-only one cannot be written.
#[macro_export]
macro_rules! reg {
    ($bar:expr, $S:ty, $field:ident) => {
        $crate::bar::At::new(&$bar, ::core::mem::offset_of!($S, $field), |s: &$S| &s.$field)
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Fake;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn what_is_not_in_the_mapping_is_trapped_and_never_touched() {
        let fake = Arc::new(Fake::default());
        fake.set(4096, 7);
        let mut page = vec![0u64; 512];
        page[511] = 0x0102_0304_0506_0708;
        // The second page of a BAR is mapped.
        let map = Mapping { ptr: page.as_mut_ptr().cast(), len: 4096, guard: Box::new(()) };
        let bar = Arc::new(Bar { window: Some((8192, map)), function: fake, index: 0, size: 0x1_0000 });
        assert_eq!((bar.read::<u32>(4096), bar.read::<u32>(8188), bar.read::<u32>(12288)), (7, 0, 0));
        assert_eq!(bar.read::<u64>(12280), 0x0102_0304_0506_0708);
        assert_eq!(bar.read::<u32>(12284), 0x0102_0304);
        for offset in [12286, 12285, usize::MAX - 3, usize::MAX] {
            assert!(bar.pointer(offset, 4).is_none(), "{offset:#x}");
        }
        bar.doorbell(8192).ring(5);
        assert_eq!(bar.read::<u64>(8192), 5);
        for offset in [8193, 0x1_0000, usize::MAX - 7] {
            let made = catch_unwind(AssertUnwindSafe(|| bar.doorbell(offset)));
            assert!(made.is_err(), "a doorbell at {offset:#x}");
        }
    }
}
