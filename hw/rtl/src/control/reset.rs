//! Reset of the device at run time, and the drain token. For the host (`bar::RESET`, function-level reset) and for the
//! firmware, which destroys nothing that a packet under way may still touch.
//!
//! ```text
//! request   1
//! state     Run | Quiesce: no new bursts, until both channels are idle, `patience` at most | Hold: rst for 16 cycles | Run
//! ```
//!
//! The channels forget with the reset what is in flight, so nothing may be: a host may take 50 ms for a read (PCIe 2.8), then
//! its bridge answers with an error. The patience is longer.
//!
//! A drain notes how far ingress, the receive path, the transmit ring and the slots of WQE fetches have been filled (reads tell
//! themselves when those of before are back), waits until they have been emptied so far, then does the same for atomics and the
//! write channel: what the rings held has become such by then.
//!
//! It cannot deadlock: the wait for idle is bounded. A drain ends because rings and channel always move on.

use hdl::prelude::*;

/// Longest time in microseconds that the bus may take to finish what it began.
const PATIENCE: u64 = 64_000;
/// Cycles of reset.
const HOLD: u64 = 16;
/// Whose positions a drain waits for; the last two are those of atomics and of the write channel.
pub mod position {
    /// Packets in the receive path.
    pub const RECEIVE: usize = 0;
    /// Frames in the transmit ring.
    pub const TRANSMIT: usize = 1;
    /// Reads of host memory.
    pub const READS: usize = 2;
    /// Fetches of the send queues.
    pub const SEND_FETCHES: usize = 3;
    /// Fetches of the receive queues.
    pub const RECV_FETCHES: usize = 4;
    /// Frames whose destination was looked up and that the engines have not seen, each with its last copy.
    pub const INGRESS: usize = 5;
    /// Atomics from landing to their last write.
    pub const ATOMICS: usize = 6;
    /// Writes of host memory.
    pub const WRITES: usize = 7;
}
/// How many they are.
pub const POSITIONS: usize = 8;
/// Those from here on are noted when the others have been reached.
const LATER: usize = position::ATOMICS;

#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
enum State {
    Run,
    Quiesce,
    Hold,
}

/// The sequencer. See the module.
#[derive(LogicBlock, Default)]
pub struct Reset {
    pub clock: Signal<In, Clock>,
    /// Power-up reset.
    pub rst: Signal<In, Bit>,
    /// Asks for a reset of the device, for a cycle at least.
    pub request: Signal<In, Bit>,
    /// To the DMA channels: begin nothing.
    pub quiesce: Signal<Out, Bit>,
    /// All DMA channels are idle.
    pub idle: Signal<In, Bit>,
    /// Reset of everything but the firmware's image; follows `rst` too.
    pub device_rst: Signal<Out, Bit>,
    /// From the request until the device runs again.
    pub busy: Signal<Out, Bit>,

    /// Starts a drain, which `drain_busy` tells of.
    pub drain_go: Signal<In, Bit>,
    pub drain_busy: Signal<Out, Bit>,
    /// Free-running positions: what has been put in, and what has been taken out.
    pub filled: Arr<Signal<In, Bits<16>>, POSITIONS>,
    pub emptied: Arr<Signal<In, Bits<16>>, POSITIONS>,

    state: Reg<State>,
    left: Reg<Bits<27>>,
    /// `left` is 0; quiesce has been seen for a cycle.
    none: Reg<Bit>,
    seen: Reg<Bit>,
    draining: Reg<Bit>,
    last: Reg<Bit>,
    mark: Arr<DFF<Bits<16>>, POSITIONS>,
    open: Reg<Bits<POSITIONS>>,
    _patience: Hidden<u64>,
}

impl Reset {
    /// For a clock of `mhz`.
    pub fn new(mhz: u32) -> Self {
        Self::with_patience(PATIENCE * u64::from(mhz))
    }

    fn with_patience(cycles: u64) -> Self {
        assert!(cycles < 1 << 27);
        Self { _patience: Hidden(cycles), ..Self::default() }
    }
}

impl Logic for Reset {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, state, left, none, seen, draining, last, open);
        dff_setup!(self, clock, mark);
        let state = self.state.q.val();
        let left = self.left.q.val();
        let patience: Bits<27> = elab!(bits::<27>(self._patience.0));
        self.none.d.next = left == 1;
        self.seen.d.next = state == State::Quiesce;
        match state {
            State::Run => {
                if self.request.val() {
                    self.state.d.next = State::Quiesce;
                    self.left.d.next = patience;
                }
            }
            State::Quiesce => {
                self.left.d.next = left - 1;
                // Idle counts from the second cycle on: the channels have seen `quiesce` then.
                if (self.idle.val() && self.seen.q.val()) || self.none.q.val() {
                    self.state.d.next = State::Hold;
                    self.left.d.next = bits::<27>(HOLD);
                    self.none.d.next = false;
                }
            }
            State::Hold => {
                self.left.d.next = left - 1;
                if self.none.q.val() {
                    self.state.d.next = State::Run;
                }
            }
        }
        self.quiesce.next = state != State::Run;
        self.device_rst.next = self.rst.val() || state == State::Hold;
        self.busy.next = state != State::Run;

        let mut open = self.open.q.val();
        if self.drain_go.val() {
            self.draining.d.next = true;
            self.last.d.next = false;
            for i in 0..POSITIONS {
                self.mark[i].d.next = self.filled[i].val();
                open = open.replace_bit(i, i < LATER);
            }
        } else if self.draining.q.val() {
            for i in 0..POSITIONS {
                // The mark is reached, or passed by less than half of the range.
                let beyond = self.emptied[i].val() - self.mark[i].q.val();
                if !beyond.get_bit(15) {
                    open = open.replace_bit(i, false);
                }
            }
            if self.open.q.val() == 0 {
                if self.last.q.val() {
                    self.draining.d.next = false;
                } else {
                    self.last.d.next = true;
                    for i in LATER..POSITIONS {
                        self.mark[i].d.next = self.filled[i].val();
                        open = open.replace_bit(i, true);
                    }
                }
            }
        }
        if state == State::Hold {
            self.draining.d.next = false;
        }
        self.open.d.next = open;
        self.drain_busy.next = self.draining.q.val();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::RngExt;

    use verilate::{Model, Options};

    #[test]
    fn a_reset_waits_for_the_bus_but_not_for_good() {
        const PATIENCE: u64 = 5000;
        let mut m = Model::of(|| Reset::with_patience(PATIENCE), Options::default()).unwrap();
        m.reset();
        for patience in [1, 2, 300, PATIENCE - 1, PATIENCE * 2] {
            m.set("request", 1);
            m.tick();
            m.set("request", 0);
            let start = m.cycle();
            let mut held = 0;
            while m.bit("busy") {
                m.set("idle", (m.cycle() - start >= patience) as u64);
                m.eval();
                assert!(m.bit("quiesce"));
                if m.bit("device_rst") {
                    assert!(m.cycle() - start >= patience.min(PATIENCE));
                    held += 1;
                }
                m.tick();
            }
            assert_eq!(held, HOLD + 1);
            assert!(m.cycle() - start < PATIENCE + 50);
        }
    }

    #[test]
    fn a_read_may_take_as_long_as_pcie_lets_it() {
        for mhz in [10, 125, 250, 1000] {
            assert!(Reset::new(mhz)._patience.0 > 50_000 * u64::from(mhz), "50 ms");
        }
    }

    #[test]
    fn a_drain_sees_all_that_was_under_way() {
        let seed = 4;
        println!("seed {seed}");
        let mut rng = verilate::rng(seed);
        let mut m = Model::of(|| Reset::new(250), Options::default()).unwrap();
        m.reset();
        let mut filled = [0xfff0u64; POSITIONS];
        let mut emptied = filled;
        for _ in 0..verilate::scale(200) {
            let mark = filled;
            m.set("drain_go", 1);
            // The write channel counts from when the rings are empty.
            let mut writes = None;
            loop {
                for i in 0..POSITIONS {
                    filled[i] += rng.random_range(0..2);
                    emptied[i] = (emptied[i] + rng.random_range(0..3)).min(filled[i]);
                }
                let first = m.bit("drain_go");
                for i in 0..POSITIONS {
                    let mark = if first { mark[i] } else { filled[i] };
                    m.set(&*format!("filled[{i}]"), mark & 0xffff);
                    m.set(&*format!("emptied[{i}]"), emptied[i].min(mark) & 0xffff);
                }
                if writes.is_none() && (0..LATER).all(|i| emptied[i] >= mark[i]) {
                    writes = Some([filled[LATER], filled[LATER + 1]]);
                }
                m.tick();
                m.set("drain_go", 0);
                if !m.bit("drain_busy") {
                    break;
                }
            }
            assert!(writes.is_some_and(|w| emptied[LATER] >= w[0] && emptied[LATER + 1] >= w[1]), "done too early");
        }
    }
}
