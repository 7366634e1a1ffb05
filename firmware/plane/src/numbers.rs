//! Which number is free: of objects, one that has none; of the translation table's units, a run of them.

/// Whose turn it is: numbers are given out round robin, so that one rests as long as possible before it is used again.
#[derive(Default)]
pub struct Turn(u32);

impl Turn {
    /// The next number from `first` on and below `limit` that is free.
    pub fn find(&self, first: u32, limit: u32, is_free: impl Fn(usize) -> bool) -> Option<u32> {
        let mut at = self.0;
        for _ in first..limit {
            if at < first || at >= limit {
                at = first;
            }
            if is_free(at as usize) {
                return Some(at);
            }
            at += 1;
        }
        None
    }

    /// It was given out.
    pub fn take(&mut self, number: u32) {
        self.0 = number + 1;
    }
}

/// Numbers in use, one bit each, up to 32 `WORDS`; all zero is the empty set.
pub struct Numbers<const WORDS: usize> {
    used: [u32; WORDS],
}

impl<const WORDS: usize> Numbers<WORDS> {
    /// The empty set.
    pub const fn new() -> Self {
        Numbers { used: [0; WORDS] }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_round() {
        let mut turn = Turn::default();
        let mut free = [true; 40];
        let take = |turn: &mut Turn, free: &mut [bool; 40]| {
            turn.find(2, 40, |i| free[i]).inspect(|n| {
                turn.take(*n);
                free[*n as usize] = false;
            })
        };
        for i in 2..40 {
            assert_eq!(take(&mut turn, &mut free), Some(i));
        }
        assert_eq!(take(&mut turn, &mut free), None);
        for i in [39, 33, 7] {
            free[i] = true;
        }
        let four = [(); 4].map(|()| take(&mut turn, &mut free));
        assert_eq!(four, [Some(7), Some(33), Some(39), None]);
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
