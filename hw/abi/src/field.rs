//! Named bit fields and the macro that declares a layout of them.

/// A field of `bits` bits, whose least significant bit is bit `lsb` of a little-endian block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name, as in the reference page.
    pub name: &'static str,
    /// Bit number of the least significant bit.
    pub lsb: usize,
    /// Width in bits, 1 to 64 (wider fields are only sliced, never `get` or `set`).
    pub bits: usize,
    /// What it means.
    pub doc: &'static str,
}

impl Field {
    /// Largest value that fits.
    pub const fn max(self) -> u64 {
        if self.bits >= 64 { u64::MAX } else { (1 << self.bits) - 1 }
    }

    /// Reads the field from a little-endian block. Panics when the field lies outside of `block`.
    #[inline]
    pub const fn get(self, block: &[u8]) -> u64 {
        let (first, shift) = (self.lsb / 8, self.lsb % 8);
        let n = (shift + self.bits).div_ceil(8);
        let mut v = 0u128;
        let mut i = 0;
        while i < n {
            v |= (block[first + i] as u128) << (8 * i);
            i += 1;
        }
        (v >> shift) as u64 & self.max()
    }

    /// Writes the field into a little-endian block and leaves all other bits. Bits of `value` above the field's width
    /// are an error of the caller: they panic in debug builds and are cut off otherwise.
    #[inline]
    pub const fn set(self, block: &mut [u8], value: u64) {
        debug_assert!(value <= self.max());
        let (first, shift) = (self.lsb / 8, self.lsb % 8);
        let n = (shift + self.bits).div_ceil(8);
        let mask = (self.max() as u128) << shift;
        let v = ((value as u128) << shift) & mask;
        let mut i = 0;
        while i < n {
            let (m, b) = ((mask >> (8 * i)) as u8, (v >> (8 * i)) as u8);
            block[first + i] = (block[first + i] & !m) | b;
            i += 1;
        }
    }
}

/// A named block of fields, for the reference page and for checks.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Name, as in the reference page.
    pub name: &'static str,
    /// What the block is.
    pub doc: &'static str,
    /// Size in bytes.
    pub bytes: usize,
    /// Its fields, in ascending order.
    pub fields: &'static [Field],
}

impl Layout {
    /// True when the fields ascend, do not overlap and stay inside the block.
    pub const fn is_sound(&self) -> bool {
        let (mut i, mut end) = (0, 0);
        while i < self.fields.len() {
            let f = self.fields[i];
            if f.lsb < end || f.bits == 0 {
                return false;
            }
            end = f.lsb + f.bits;
            i += 1;
        }
        end <= self.bytes * 8
    }
}

/// Declares a module of [`Field`] constants and its [`Layout`]; overlapping or overflowing fields do not compile.
///
/// ```ignore
/// layout! {
///     /// An example of 4 bytes.
///     pub mod example: 4 {
///         /// Byte 0, bits 0..=7.
///         KIND = 0, 8;
///     }
/// }
/// ```
#[macro_export]
macro_rules! layout {
    ($(#[doc = $doc:literal])* $vis:vis mod $name:ident : $bytes:literal {
        $( $(#[doc = $fdoc:literal])* $field:ident = $lsb:expr, $bits:expr; )*
    }) => {
        $(#[doc = $doc])*
        $vis mod $name {
            use $crate::{Field, Layout};
            $( $(#[doc = $fdoc])* pub const $field: Field =
                Field { name: stringify!($field), lsb: $lsb, bits: $bits, doc: concat!($($fdoc),*) }; )*
            /// All of it, for the reference page.
            pub const LAYOUT: Layout = Layout {
                name: stringify!($name), doc: concat!($($doc),*), bytes: $bytes, fields: &[$($field),*],
            };
            /// Size in bytes.
            pub const BYTES: usize = $bytes;
            const _: () = assert!(LAYOUT.is_sound(), "fields overlap, are out of order or leave the block");
        }
    };
}

/// A list of numbers with names, for the reference page.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    /// Name, as in the reference page.
    pub name: &'static str,
    /// What they count.
    pub doc: &'static str,
    /// Name, number and meaning of each.
    pub values: &'static [(&'static str, u64, &'static str)],
}

/// Declares a module of constants and the list of them.
#[macro_export]
macro_rules! numbers {
    ($(#[doc = $doc:literal])* $vis:vis mod $name:ident : $t:ty {
        $( $(#[doc = $vdoc:literal])* $value:ident = $number:expr; )*
    }) => {
        $(#[doc = $doc])*
        $vis mod $name {
            #![allow(missing_docs)]
            $( $(#[doc = $vdoc])* pub const $value: $t = $number; )*
            /// All of them, for the reference page.
            pub const ALL: $crate::Numbers = $crate::Numbers {
                name: stringify!($name), doc: concat!($($doc),*),
                values: &[$((stringify!($value), $value as u64, concat!($($vdoc),*))),*],
            };
        }
    };
}

#[cfg(test)]
mod tests {
    layout! {
        /// A trial.
        pub mod trial: 9 {
            /// a
            A = 0, 3;
            /// b
            B = 3, 64;
            /// c
            C = 67, 5;
        }
    }

    #[test]
    fn fields_read_back_and_leave_their_neighbours() {
        let mut block = [0xffu8; 9];
        trial::B.set(&mut block, 0);
        assert_eq!((trial::A.get(&block), trial::B.get(&block), trial::C.get(&block)), (7, 0, 31));
        trial::B.set(&mut block, 0xdead_beef_0123_4567);
        assert_eq!((trial::A.get(&block), trial::B.get(&block), trial::C.get(&block)), (7, 0xdead_beef_0123_4567, 31));
        trial::C.set(&mut block, 0x15);
        assert_eq!((trial::B.get(&block), trial::C.get(&block)), (0xdead_beef_0123_4567, 0x15));
        assert_eq!((trial::LAYOUT.bytes, trial::BYTES), (9, 9));
    }
}
