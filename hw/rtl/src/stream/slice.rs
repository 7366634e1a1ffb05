//! Register slice: cuts `data`, `valid` and `ready` by registers at full rate, wherever a channel crosses a room.
//!
//! ```text
//! cycle     0    1    2    3
//! s.data    A    B    C         taken while the spare is empty
//! m.data         A    A    B    a stall puts B into the spare
//! m.ready        0    1    1
//! s.ready   1    1    0    1
//! ```
//! `s.ready` is a register, and what is held always leaves when `m` is ready.

use super::{Sink, Source};
use hdl::prelude::*;

/// Full-rate register slice.
#[derive(Clone, Debug, LogicBlock)]
pub struct Slice<T: Synth> {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    pub s: Sink<T>,
    pub m: Source<T>,
    valid: Reg<Bit>,
    data: DFF<T>,
    /// The spare is empty.
    room: Reg<Bit>,
    spare: DFF<T>,
}

impl<T: Synth> Default for Slice<T> {
    fn default() -> Self {
        Slice {
            clock: Default::default(),
            rst: Default::default(),
            s: Default::default(),
            m: Default::default(),
            valid: Default::default(),
            data: Default::default(),
            room: Reg::with_reset(true),
            spare: Default::default(),
        }
    }
}

impl<T: Synth> Logic for Slice<T> {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, valid, room);
        dff_setup!(self, clock, data, spare);
        let full = !self.room.q.val();
        if self.m.ready.val() || !self.valid.q.val() {
            self.room.d.next = true;
            self.valid.d.next = full || self.s.valid.val();
            if full {
                self.data.d.next = self.spare.q.val();
            } else if self.s.valid.val() {
                self.data.d.next = self.s.data.val();
            }
        } else if self.s.valid.val() && !full {
            self.room.d.next = false;
            self.spare.d.next = self.s.data.val();
        }
        self.s.ready.next = self.room.q.val();
        self.m.valid.next = self.valid.q.val();
        self.m.data.next = self.data.q.val();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::testing::pass;
    use verilate::{Model, Options};

    #[test]
    fn passes_all_in_order_at_full_rate() {
        let mut m = Model::of(Slice::<Bits<77>>::default, Options::default()).unwrap();
        pass(&mut m, 1);
    }
}
