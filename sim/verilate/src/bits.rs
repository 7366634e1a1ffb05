//! Fields inside wide port values, for tests and models that look into struct ports: values are little-endian byte
//! slices, bit 0 is the least significant bit of byte 0 (RustHDL puts a struct's first field there).

use hdl::prelude::Synth;

/// `width` (at most 64) bits of `value` from bit `at` on.
#[track_caller]
pub fn get(value: &[u8], at: usize, width: usize) -> u64 {
    assert!(width <= 64, "{width} bits do not fit a word");
    let mut word = [0; 8];
    word[..width.div_ceil(8)].copy_from_slice(&get_bytes(value, at, width));
    u64::from_le_bytes(word)
}

/// Puts the low `width` bits of `word` into `value` from bit `at` on; `word` must fit.
#[track_caller]
pub fn set(value: &mut [u8], at: usize, width: usize, word: u64) {
    assert!(width >= 64 || word >> width == 0, "{word:#x} does not fit {width} bits");
    set_bytes(value, at, width, &word.to_le_bytes());
}

/// `width` bits of `value` from bit `at` on, in width / 8 bytes, rounded up.
#[track_caller]
pub fn get_bytes(value: &[u8], at: usize, width: usize) -> Vec<u8> {
    assert!(at + width <= value.len() * 8, "bits {at}+:{width} of {} bytes", value.len());
    let (byte, shift) = (at / 8, at % 8);
    let next = |i| value.get(byte + i + 1).map_or(0, |&high| u16::from(high) << 8);
    let mut part: Vec<u8> =
        (0..width.div_ceil(8)).map(|i| ((u16::from(value[byte + i]) | next(i)) >> shift) as u8).collect();
    if let (Some(last), 1..) = (part.last_mut(), width % 8) {
        *last &= (1 << (width % 8)) - 1;
    }
    part
}

/// Puts `part` into the `width` bits of `value` from bit `at` on. Missing bytes are zero, bits past `width` are not
/// looked at.
#[track_caller]
pub fn set_bytes(value: &mut [u8], at: usize, width: usize, part: &[u8]) {
    assert!(at + width <= value.len() * 8, "bits {at}+:{width} of {} bytes", value.len());
    for i in (0..width).step_by(8) {
        let (byte, shift) = ((at + i) / 8, (at + i) % 8);
        let mask = (if width - i < 8 { (1u16 << (width - i)) - 1 } else { 0xff }) << shift;
        let new = u16::from(part.get(i / 8).copied().unwrap_or(0)) << shift & mask;
        value[byte] = value[byte] & !mask as u8 | new as u8;
        if mask > 0xff {
            value[byte + 1] = value[byte + 1] & !(mask >> 8) as u8 | (new >> 8) as u8;
        }
    }
}

/// The bits of a RustHDL value (struct, enum, `Bits`), in bits / 8 bytes, rounded up.
pub fn of<T: Synth>(value: T) -> Vec<u8> {
    let literal = format!("{:x}", value.verilog());
    let digits = literal.split_once("'h").expect("a RustHDL literal is width'hdigits").1.as_bytes();
    let nibble = |i: usize| {
        let digit = digits.len().checked_sub(i + 1).map_or('0', |at| digits[at] as char);
        digit.to_digit(16).expect("a hexadecimal digit") as u8
    };
    (0..T::BITS.div_ceil(8)).map(|i| nibble(2 * i) | nibble(2 * i + 1) << 4).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdl::prelude::Bits;
    use rand::{Rng, RngExt, SeedableRng};

    #[test]
    fn bit_by_bit() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(1);
        for _ in 0..2000 {
            let mut value = [0; 24];
            let mut part = [0; 24];
            rng.fill_bytes(&mut value);
            rng.fill_bytes(&mut part);
            let at = rng.random_range(0..100);
            let width = rng.random_range(0..=192 - at);
            let bit = |bytes: &[u8], i: usize| bytes[i / 8] >> (i % 8) & 1;
            let got = get_bytes(&value, at, width);
            assert!((0..width).all(|i| bit(&got, i) == bit(&value, at + i)));
            let old = value;
            set_bytes(&mut value, at, width, &part);
            for i in 0..192 {
                let want = if (at..at + width).contains(&i) { bit(&part, i - at) } else { bit(&old, i) };
                assert_eq!(bit(&value, i), want, "bit {i} after {at}+:{width}");
            }
        }
    }

    #[test]
    fn of_values() {
        assert_eq!(of(Bits::<12>::from(0xabc)), [0xbc, 0x0a]);
        assert_eq!(of(true), [1]);
        assert_eq!(of(Bits::<96>::from(5)), [5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
