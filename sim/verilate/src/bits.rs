//! Fields inside wide port values, for tests and models that look into struct ports: values are little-endian byte
//! slices, bit 0 is the least significant bit of byte 0 (RustHDL puts a struct's first field there).

/// `width` (at most 64) bits of `value` from bit `at` on.
pub fn get(value: &[u8], at: usize, width: usize) -> u64 {
    assert!(width <= 64 && at + width <= value.len() * 8, "bits {at}+:{width} of {} bytes", value.len());
    (0..width).fold(0, |word, i| word | u64::from(value[(at + i) / 8] >> ((at + i) % 8) & 1) << i)
}

/// Puts the low `width` (at most 64) bits of `word` into `value` from bit `at` on; `word` must fit.
pub fn set(value: &mut [u8], at: usize, width: usize, word: u64) {
    assert!(width <= 64 && at + width <= value.len() * 8, "bits {at}+:{width} of {} bytes", value.len());
    assert!(width == 64 || word >> width == 0, "{word:#x} does not fit {width} bits");
    for i in 0..width {
        let (byte, bit) = ((at + i) / 8, (at + i) % 8);
        value[byte] = value[byte] & !(1 << bit) | ((word >> i & 1) as u8) << bit;
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn set_then_get_touches_nothing_else() {
        let mut value = [0xffu8; 16];
        super::set(&mut value, 13, 37, 0x15_5555_0000);
        assert_eq!(super::get(&value, 13, 37), 0x15_5555_0000);
        assert_eq!(super::get(&value, 0, 13), 0x1fff);
        assert_eq!(super::get(&value, 50, 64), u64::MAX);
    }
}
