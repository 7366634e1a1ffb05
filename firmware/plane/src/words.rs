//! Fields of the contract in blocks of 32-bit words: what the soft core moves at once. Called with constant fields these
//! fold to a shift and a mask.

use abi::Field;

/// A command or an answer.
pub type Block = [u32; 16];

/// Words of a row whose last field is `f`.
pub const fn up_to(f: Field) -> usize {
    (f.lsb + f.bits).div_ceil(32)
}

/// Reads a field of at most 32 bits.
#[inline(always)]
pub fn get(words: &[u32], f: Field) -> u32 {
    let (w, s) = (f.lsb / 32, f.lsb % 32);
    let mut v = words[w] >> s;
    if s + f.bits > 32 {
        v |= words[w + 1] << (32 - s);
    }
    v & mask(f)
}

/// Reads a field of 33 to 64 bits that starts at a word.
#[inline(always)]
pub fn get_wide(words: &[u32], f: Field) -> u64 {
    let w = f.lsb / 32;
    (words[w] as u64 | (words[w + 1] as u64) << 32) & f.max()
}

/// Writes a field of at most 32 bits into words where its bits are 0; `v` fits.
#[inline(always)]
pub fn put(words: &mut [u32], f: Field, v: u32) {
    let (w, s) = (f.lsb / 32, f.lsb % 32);
    words[w] |= v << s;
    if s + f.bits > 32 {
        words[w + 1] |= v >> (32 - s);
    }
}

/// Writes a field of 33 to 64 bits that starts at a word into words where its bits are 0.
#[inline(always)]
pub fn put_wide(words: &mut [u32], f: Field, v: u64) {
    let w = f.lsb / 32;
    words[w] |= v as u32;
    words[w + 1] |= (v >> 32) as u32;
}

/// Writes a field of at most 32 bits.
#[inline(always)]
pub fn set(words: &mut [u32], f: Field, v: u32) {
    let (w, s) = (f.lsb / 32, f.lsb % 32);
    words[w] &= !(mask(f) << s);
    if s + f.bits > 32 {
        words[w + 1] &= !(mask(f) >> (32 - s));
    }
    put(words, f, v);
}

#[inline(always)]
fn mask(f: Field) -> u32 {
    if f.bits >= 32 { u32::MAX } else { (1 << f.bits) - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_bytes_agree() {
        let mut x = 1u32;
        let mut random = || {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            x
        };
        let layouts = [abi::cmd::modify_qp::LAYOUT, abi::table::qp_address::LAYOUT, abi::table::qp_recv::LAYOUT];
        for f in layouts.iter().flat_map(|l| l.fields) {
            let mut words: Block = core::array::from_fn(|_| random());
            let bytes = |words: &Block| core::array::from_fn::<u8, 64, _>(|i| (words[i / 4] >> (8 * (i % 4))) as u8);
            let mut want = bytes(&words);
            if f.bits > 32 {
                assert_eq!(get_wide(&words, *f), f.get(&want), "{}", f.name);
                f.set(&mut want, 0);
                words[f.lsb / 32] = 0;
                words[f.lsb / 32 + 1] &= !((f.max() >> 32) as u32);
                assert_eq!(bytes(&words), want);
                put_wide(&mut words, *f, f.max() / 3);
                f.set(&mut want, f.max() / 3);
            } else {
                assert_eq!(get(&words, *f) as u64, f.get(&want), "{}", f.name);
                set(&mut words, *f, f.max() as u32 / 3);
                f.set(&mut want, f.max() / 3);
            }
            assert_eq!(bytes(&words), want, "{}", f.name);
        }
    }
}
