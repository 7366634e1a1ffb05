//! Numbers in use, one bit each. They are given out round robin, so that a number rests as long as possible before it is
//! used again.

/// Up to 32 `WORDS` numbers; all zero is the empty set.
pub struct Numbers<const WORDS: usize> {
    used: [u32; WORDS],
    next: u32,
}

impl<const WORDS: usize> Numbers<WORDS> {
    /// The empty set.
    pub const fn new() -> Self {
        Numbers { used: [0; WORDS], next: 0 }
    }

    /// The next free number below `limit`, which is at most 32 `WORDS`.
    pub fn find(&self, limit: u32) -> Option<u32> {
        let in_range = |from: u32, to: u32| {
            let mut at = from;
            while at < to {
                let free = !self.used[at as usize / 32] >> (at % 32);
                if free != 0 {
                    let found = at + trailing_zeros(free);
                    return (found < to).then_some(found);
                }
                at = (at | 31) + 1;
            }
            None
        };
        let next = if self.next < limit { self.next } else { 0 };
        in_range(next, limit).or_else(|| in_range(0, next))
    }

    /// The lowest of `count` free numbers in a row below `limit`.
    pub fn find_run(&self, count: u32, limit: u32) -> Option<u32> {
        let (mut start, mut at) = (0, 0);
        while at < limit {
            let word = self.used[at as usize / 32];
            if at % 32 == 0 && (word == 0 || word == u32::MAX) {
                at += 32;
                if word != 0 {
                    start = at;
                }
            } else {
                at += 1;
                if word >> ((at - 1) % 32) & 1 == 1 {
                    start = at;
                }
            }
            if at >= start + count {
                return (start + count <= limit).then_some(start);
            }
        }
        None
    }

    /// Marks a number as used.
    pub fn take(&mut self, number: u32) {
        self.used[number as usize / 32] |= 1 << (number % 32);
        self.next = number + 1;
    }

    /// Marks a number as free.
    pub fn free(&mut self, number: u32) {
        self.used[number as usize / 32] &= !(1 << (number % 32));
    }
}

impl<const WORDS: usize> Default for Numbers<WORDS> {
    fn default() -> Self {
        Self::new()
    }
}

/// The core has no instruction for it, and the compiler's way takes a table.
fn trailing_zeros(mut x: u32) -> u32 {
    let mut n = 0;
    if x & 0xffff == 0 {
        (x, n) = (x >> 16, 16);
    }
    if x & 0xff == 0 {
        (x, n) = (x >> 8, n + 8);
    }
    while x & 1 == 0 {
        (x, n) = (x >> 1, n + 1);
    }
    n
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_round() {
        let mut n = Numbers::<2>::new();
        let take = |n: &mut Numbers<2>| n.find(40).inspect(|i| n.take(*i));
        for i in 0..40 {
            assert_eq!(take(&mut n), Some(i));
        }
        assert_eq!(take(&mut n), None);
        for i in [39, 33, 7] {
            n.free(i);
        }
        assert_eq!([take(&mut n), take(&mut n), take(&mut n), take(&mut n)], [Some(7), Some(33), Some(39), None]);
    }

    #[test]
    fn runs_are_the_first_that_fit() {
        let mut x = 7u32;
        let mut n = Numbers::<8>::new();
        for _ in 0..3000 {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (i, count, limit) = (x >> 24, (x >> 8) % 70 + 1, 200 + (x >> 16) % 57);
            if x >> 7 & 3 == 0 {
                n.free(i)
            } else {
                n.take(i)
            }
            if x >> 5 & 15 == 0 {
                n = Numbers::new();
            }
            let used = |i: u32| n.used[i as usize / 32] >> (i % 32) & 1 == 1;
            let want = (0..=limit - count).find(|s| (*s..s + count).all(|i| !used(i)));
            assert_eq!(n.find_run(count, limit), want, "{count} below {limit}");
        }
    }
}
