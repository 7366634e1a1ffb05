//! How long the driver waits for the firmware. For whoever loads it or gives it a command.

use crate::bar::Bar;
use crate::reg;
use crate::registers::Registers;
use std::time::{Duration, Instant};

/// Real time: a device that is there needs milliseconds.
const REAL: Duration = Duration::from_secs(60);
/// And as long as that: cycles of the device's clock, for a simulated device may take minutes for a millisecond.
const CYCLES: u64 = 50_000_000;
/// How often the clock is looked at then. One that stands still meanwhile is no device's.
const STEP: Duration = Duration::from_secs(1);

/// A wait that has begun.
pub(crate) struct Patience {
    deadline: Instant,
    /// The device's clock when it was first and last looked at.
    clocks: Option<[u64; 2]>,
}

impl Patience {
    pub fn new() -> Self {
        Patience { deadline: Instant::now() + REAL, clocks: None }
    }

    /// It has been long enough.
    pub fn ends(&mut self, bar0: &Bar) -> bool {
        if Instant::now() < self.deadline {
            return false;
        }
        self.deadline = Instant::now() + STEP;
        let now = reg!(bar0, Registers, clock).read();
        let ends = self.clocks.is_some_and(|[first, last]| now == last || now.wrapping_sub(first) >= CYCLES);
        self.clocks = Some([self.clocks.map_or(now, |c| c[0]), now]);
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Fake;
    use abi::bar;
    use std::sync::Arc;

    #[test]
    fn it_lasts_while_the_clock_is_slow_and_ends_when_that_stands_or_has_come_far() {
        let fake = Arc::new(Fake::default());
        let bar0 = Bar::open(fake.clone(), 0).unwrap();
        let mut patience = Patience::new();
        assert!(!patience.ends(&bar0));
        // The real time is over.
        let mut ends = |clock| {
            fake.set(bar::CLOCK, clock);
            patience.deadline = Instant::now();
            patience.ends(&bar0)
        };
        assert_eq!([5, 6, 7, 1000].map(&mut ends), [false; 4]);
        assert!(ends(1000), "it stands");
        assert!(!ends(1001));
        assert!(ends(5 + CYCLES as u32), "it has come far");
    }
}
