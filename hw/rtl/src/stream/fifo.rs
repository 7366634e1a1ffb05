//! First-word-fall-through FIFO, for messages whose room must exist before they are made.
//!
//! ```text
//! cycle     0    1    2    3        depth 4, m.ready low until cycle 2
//! s.data    A    B    C
//! m.data         A    A    B
//! fill      0    1    2    2
//! ```
//! Holds exactly `depth` messages. An empty FIFO passes a message on in one cycle. Up to [`SMALL`] messages sit in a
//! memory of LUTs, and `m.data` is what that reads; deeper FIFOs have an output register and read a block RAM one cycle ahead, which costs one idle
//! cycle when a message is the first to go through the memory, and none while it streams. `s.ready` and `m.valid` are registers.

use super::{Sink, Source};
use hdl::prelude::*;

/// Depths up to this use distributed RAM.
pub const SMALL: usize = 128;

/// FIFO of up to `depth` messages.
#[derive(Clone, Debug, LogicBlock)]
pub struct Fifo<T: Synth> {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    pub s: Sink<T>,
    pub m: Source<T>,
    /// Messages inside.
    pub fill: Signal<Out, Bits<16>>,
    /// Answers at once (small), or one cycle after `re`.
    store: Ram<T, 16>,
    head: Reg<Bits<16>>,
    tail: Reg<Bits<16>>,
    /// Messages inside, and whether there is room for one more.
    count: Reg<Bits<16>>,
    room: Reg<Bit>,
    /// There is one for `m`.
    valid: Reg<Bit>,
    /// Deep: messages in the memory, and whether there are some; its output register holds one; the output.
    stored: Reg<Bits<16>>,
    waiting: Reg<Bit>,
    ahead: Reg<Bit>,
    data: DFF<T>,
    _depth: Hidden<usize>,
}

impl<T: Synth> Fifo<T> {
    /// A FIFO of 1 to 32,768 messages.
    pub fn new(depth: usize) -> Self {
        assert!((1..=1 << 15).contains(&depth), "a FIFO of {depth}");
        let store = Ram::default().rows(depth.next_power_of_two());
        Fifo {
            clock: Default::default(),
            rst: Default::default(),
            s: Default::default(),
            m: Default::default(),
            fill: Default::default(),
            store: if depth <= SMALL { store.style("distributed").at_once() } else { store },
            head: Default::default(),
            tail: Default::default(),
            count: Default::default(),
            room: Reg::with_reset(true),
            valid: Default::default(),
            stored: Default::default(),
            waiting: Default::default(),
            ahead: Default::default(),
            data: Default::default(),
            _depth: Hidden(depth),
        }
    }
}

/// A stand-in of one message, so that a block can name its FIFOs and take the rest from its own default.
impl<T: Synth> Default for Fifo<T> {
    fn default() -> Self {
        Fifo::new(1)
    }
}

impl<T: Synth> Logic for Fifo<T> {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, head, tail, count, room, valid, stored, waiting, ahead);
        dff_setup!(self, clock, data);
        clock!(self, clock, store);
        let depth: Bits<16> = elab!(bits::<16>(self._depth.0 as u64));
        let mask: Bits<16> = elab!(bits::<16>(self._depth.0.next_power_of_two() as u64 - 1));
        let most: Bits<16> = (mask << 1) | 1; // of a count of messages
        let small = elab!(self._depth.0 <= SMALL);

        let valid = self.valid.q.val();
        let push = self.s.valid.val() && self.room.q.val();
        let pop = valid && self.m.ready.val();
        let free = self.m.ready.val() || !valid;
        let waiting = self.waiting.q.val();
        let ahead = self.ahead.q.val();
        // Deep: the memory gives a word to its own output register, if that is or becomes free; the first message goes past it.
        let bypass = !small && push && free && !waiting && !ahead;
        let read = if small { pop } else { (free || !ahead) && waiting };
        let write = push && !bypass;
        if !small && (free || !ahead) {
            self.ahead.d.next = waiting;
        }
        if !small && free {
            self.valid.d.next = ahead || bypass;
            self.data.d.next = if ahead { self.store.rdata.val() } else { self.s.data.val() };
        }
        let stored = self.stored.q.val();
        if !small && write && !read {
            self.stored.d.next = (stored + 1) & most;
            self.waiting.d.next = true;
        } else if !small && read && !write {
            self.stored.d.next = (stored - 1) & most;
            self.waiting.d.next = stored != 1;
        }

        if write {
            self.tail.d.next = (self.tail.q.val() + 1) & mask;
        }
        if read {
            self.head.d.next = (self.head.q.val() + 1) & mask;
        }
        let count = self.count.q.val();
        if push && !pop {
            self.count.d.next = (count + 1) & most;
            self.room.d.next = count != depth - 1;
        } else if pop && !push {
            self.count.d.next = (count - 1) & most;
            self.room.d.next = true;
        }
        if small {
            if push {
                self.valid.d.next = true;
            } else if pop {
                self.valid.d.next = count != 1;
            }
        }

        self.store.we.next = write;
        self.store.waddr.next = self.tail.q.val();
        self.store.wdata.next = self.s.data.val();
        self.store.re.next = small || read;
        self.store.raddr.next = self.head.q.val();
        self.s.ready.next = self.room.q.val();
        self.m.valid.next = valid;
        self.m.data.next = if small { self.store.rdata.val() } else { self.data.q.val() };
        self.fill.next = count;
    }
}

/// FIFO of a few messages that passes a message on in the cycle in which it comes while it is empty: no latency, and nothing
/// but a multiplexer behind a small memory. `m.valid` and `m.data` depend on `s`; `s.ready` depends on registers only.
///
/// Or, where a cycle is cheaper than the multiplexer ([`Passage::lasting`]), it keeps each message for a cycle at least.
#[derive(Clone, Debug, LogicBlock)]
pub struct Passage<T: Synth> {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    pub s: Sink<T>,
    pub m: Source<T>,
    /// Messages inside.
    pub fill: Signal<Out, Bits<7>>,
    store: Ram<T, 6>,
    head: Reg<Bits<6>>,
    tail: Reg<Bits<6>>,
    /// Messages inside, whether there are some, and whether there is room for one more.
    count: Reg<Bits<7>>,
    waiting: Reg<Bit>,
    room: Reg<Bit>,
    _depth: Hidden<usize>,
    _lasting: Hidden<bool>,
}

impl<T: Synth> Passage<T> {
    /// One that shows a message in the cycle after it came at the earliest, straight from the memory.
    pub fn lasting(depth: usize) -> Self {
        Passage { _lasting: Hidden(true), ..Passage::new(depth) }
    }

    /// A passage with room for `depth` messages, a power of two up to 64.
    pub fn new(depth: usize) -> Self {
        assert!(depth.is_power_of_two() && (2..=64).contains(&depth), "a passage of {depth}");
        Passage {
            clock: Default::default(),
            rst: Default::default(),
            s: Default::default(),
            m: Default::default(),
            fill: Default::default(),
            store: Ram::default().rows(depth).style("distributed").at_once(),
            head: Default::default(),
            tail: Default::default(),
            count: Default::default(),
            waiting: Default::default(),
            room: Reg::with_reset(true),
            _depth: Hidden(depth),
            _lasting: Hidden(false),
        }
    }
}

/// A stand-in, so that a block can name its passages and take the rest from its own default.
impl<T: Synth> Default for Passage<T> {
    fn default() -> Self {
        Passage::new(2)
    }
}

impl<T: Synth> Logic for Passage<T> {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, head, tail, count, waiting, room);
        clock!(self, clock, store);
        let mask: Bits<6> = elab!(bits::<6>(self._depth.0 as u64 - 1));
        let last: Bits<7> = elab!(bits::<7>(self._depth.0 as u64 - 1));
        let waiting = self.waiting.q.val();
        let comes = self.s.valid.val() && self.room.q.val();
        let ready = self.m.ready.val();
        let lasting = elab!(self._lasting.0);
        let write = comes && (lasting || waiting || !ready);
        let read = waiting && ready;
        self.store.we.next = write;
        self.store.waddr.next = self.tail.q.val();
        self.store.wdata.next = self.s.data.val();
        self.store.re.next = true;
        self.store.raddr.next = self.head.q.val();
        if write {
            self.tail.d.next = (self.tail.q.val() + 1) & mask;
        }
        if read {
            self.head.d.next = (self.head.q.val() + 1) & mask;
        }
        let count = self.count.q.val();
        if write && !read {
            self.count.d.next = count + 1;
            self.waiting.d.next = true;
            self.room.d.next = count != last;
        } else if read && !write {
            self.count.d.next = count - 1;
            self.waiting.d.next = count != 1;
            self.room.d.next = true;
        }
        self.s.ready.next = self.room.q.val();
        self.m.valid.next = waiting || comes && !lasting;
        self.m.data.next = if waiting || lasting { self.store.rdata.val() } else { self.s.data.val() };
        self.fill.next = count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::testing::pass;
    use verilate::{Model, Options};

    #[test]
    fn small_fifos_pass_all_in_order() {
        for depth in [1, 2, 5, 16] {
            let mut m = Model::of(|| Fifo::<Bits<77>>::new(depth), Options::default()).unwrap();
            fills_to(&mut m, depth);
            pass(&mut m, if depth == 1 { 2 } else { 1 });
        }
    }

    #[test]
    fn deep_fifos_pass_all_in_order() {
        for depth in [129, 300] {
            let mut m = Model::of(|| Fifo::<Bits<77>>::new(depth), Options::default()).unwrap();
            fills_to(&mut m, depth);
            pass(&mut m, 1);
        }
    }

    #[test]
    fn passages_pass_all_in_order() {
        for depth in [2, 16] {
            let mut m = Model::of(|| Passage::<Bits<77>>::new(depth), Options::default()).unwrap();
            pass(&mut m, 1);
            m.reset();
            m.set("m.ready", 1);
            m.set("s.valid", 1);
            m.eval();
            assert!(m.bit("m.valid") && m.bit("s.ready"), "at once");
            fills_to(&mut m, depth);
            let mut m = Model::of(|| Passage::<Bits<77>>::lasting(depth), Options::default()).unwrap();
            pass(&mut m, 1);
            m.reset();
            m.set("m.ready", 1);
            m.set("s.valid", 1);
            m.eval();
            assert!(!m.bit("m.valid") && m.bit("s.ready"), "a cycle later");
            fills_to(&mut m, depth);
        }
    }

    /// Takes exactly `depth` messages when nobody reads.
    fn fills_to(m: &mut Model, depth: usize) {
        m.reset();
        m.set("m.ready", 0);
        m.set("s.valid", 1);
        for taken in 0..depth + 3 {
            m.eval();
            assert_eq!(m.bit("s.ready"), taken < depth);
            assert_eq!(m.get("fill"), taken.min(depth) as u64);
            m.tick();
        }
        m.set("s.valid", 0);
    }
}
