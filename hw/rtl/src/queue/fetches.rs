//! The DMA reads of a work queue that are under way: one slot each, retired in the order in which they were made, whatever
//! the order of their data.
//!
//! ```text
//! cycle     0      1              2        3
//! data      A
//! slot RAM         queue, line
//! store            written        count
//! done                                     (if A was the last of the oldest fetch)
//! ```
//! A slot counts the beats that came, modulo 64 and without an end; it is complete when the count is what it was when the slot was
//! taken, plus the beats of the fetch. So nothing is ever set back.
//! `void` takes a queue's fetches back: it looks at one slot after the other, a cycle each. Their data is dropped, and they leave
//! without being told; until `voiding` has fallen the queue may make no new ones.
//!
//! Cannot deadlock: data has its place in the ring, so nothing that comes in waits; a fetch that is complete waits for its
//! taker only.

use crate::msg::{DmaData, Qp};
use hdl::prelude::*;

/// Most fetches in flight.
pub const SLOTS: usize = 64;

/// A fetch.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Fetch {
    /// Queue.
    pub queue: Qp,
    /// Its first block's index, as far as it counts on chip.
    pub index: Bits<6>,
    /// Blocks: none beyond a multiple of 4.
    pub blocks: Bits<3>,
    /// Where among the units of four aligned blocks the ones begin that it gains, and how many these are. A unit is a sixteenth of
    /// them; this is not looked at where a unit is a block.
    pub first: Bits<4>,
    pub units: Bits<5>,
}

/// Where its data goes.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Line {
    queue: Qp,
    /// Index / 4.
    four: Bits<4>,
    /// Units that it gains: from here to before there.
    first: Bits<4>,
    end: Bits<5>,
}

/// What is looked at when it is the oldest.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Oldest {
    queue: Qp,
    units: Bits<5>,
    /// The count at its end.
    due: Bits<6>,
}

/// Fetches in flight over a bus of W bits.
#[derive(LogicBlock, Default)]
pub struct Fetches<const W: usize> {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// A fetch is made, in slot `tag`.
    pub enter: Signal<In, Bit>,
    pub fetch: Signal<In, Fetch>,
    pub tag: Signal<Out, Bits<6>>,
    /// There are slots for it and for those that were decided before it was seen to be so.
    pub room: Signal<Out, Bit>,
    /// Data, a whole beat each time: byte 0 belongs at byte `dest` of four aligned blocks.
    pub data: Signal<In, DmaData>,
    pub data_valid: Signal<In, Bit>,
    /// A beat came in the cycle before. It belongs into this block, from this word on, unless it `lands` nowhere.
    pub comes: Signal<Out, Bit>,
    pub lands: Signal<Out, Bit>,
    pub queue: Signal<Out, Qp>,
    pub index: Signal<Out, Bits<6>>,
    pub word: Signal<Out, Bits<3>>,
    /// Of four aligned blocks its fetch gains the units from `first` to before `end`.
    pub first: Signal<Out, Bits<4>>,
    pub end: Signal<Out, Bits<5>>,
    /// The oldest fetch is complete (`done` has its queue and units); one of its beats was bad.
    pub done_valid: Signal<Out, Bit>,
    pub done: Signal<Out, Fetch>,
    pub done_bad: Signal<Out, Bit>,
    pub done_ready: Signal<In, Bit>,
    /// Voids the fetches of a queue.
    pub void: Signal<In, Bit>,
    pub void_queue: Signal<In, Qp>,
    pub voiding: Signal<Out, Bit>,
    /// Fetches that were made and that are done, in steps of 2^9, modulo 2^16.
    pub filled: Signal<Out, Bits<16>>,
    pub emptied: Signal<Out, Bits<16>>,
    lines: Ram<Line, 6>,
    oldest: Ram<Oldest, 6>,
    owners: Ram<Qp, 6>,
    /// The counts: for the beat that comes, the oldest fetch, the newest.
    counts: Arr<Ram<Bits<6>, 6>, 3>,
    head: Reg<Bits<7>>,
    tail: Reg<Bits<7>>,
    used: Reg<Bits<7>>,
    some: Reg<Bit>,
    space: Reg<Bit>,
    voids: Reg<Bits<64>>,
    bads: Reg<Bits<64>>,
    // A beat, one cycle later.
    came: Reg<Bit>,
    came_tag: DFF<Bits<6>>,
    came_at: DFF<Bits<5>>,
    came_bad: DFF<Bit>,
    // Complete.
    out_valid: Reg<Bit>,
    out: DFF<Fetch>,
    out_void: Reg<Bit>,
    out_bad: DFF<Bit>,
    // The slots whose owners are looked at.
    walks: Reg<Bit>,
    walk: Reg<Bits<7>>,
    walk_end: DFF<Bits<7>>,
    looked: Reg<Bit>,
    looked_at: DFF<Bits<6>>,
    gone: Reg<Qp>,
    _slots: Hidden<usize>,
    _margin: Hidden<usize>,
}

impl<const W: usize> Fetches<W> {
    /// `slots`, a power of two from 8 to 64, fetches in flight; `room` keeps `margin` of them back.
    pub fn new(slots: usize, margin: usize) -> Self {
        assert!(slots.is_power_of_two() && (8..=SLOTS).contains(&slots) && margin < slots, "{slots} slots");
        Fetches {
            lines: Ram::default().rows(slots).style("distributed"),
            oldest: Ram::default().rows(slots).style("distributed").at_once(),
            owners: Ram::default().rows(slots).style("distributed"),
            counts: Arr::from_fn(|_| Ram::default().rows(slots).style("distributed").at_once()),
            _slots: Hidden(slots),
            _margin: Hidden(margin),
            ..Default::default()
        }
    }
}

impl<const W: usize> Logic for Fetches<W> {
    #[kernel]
    fn update(&mut self) {
        regs!(
            self, clock, rst, head, tail, used, some, space, voids, bads, came, out_valid, out_void, walks, walk, gone
        );
        regs!(self, clock, rst, looked);
        dff_setup!(self, clock, looked_at, came_tag, came_at, came_bad, out, out_bad, walk_end);
        clock!(self, clock, lines, oldest, owners);
        for c in 0..3 {
            clock!(self, clock, counts[c]);
        }
        let mask: Bits<6> = elab!(bits::<6>(self._slots.0 as u64 - 1));
        let most: Bits<7> = elab!(bits::<7>((self._slots.0 - self._margin.0) as u64));
        let mut voids = self.voids.q.val();
        let mut bads = self.bads.q.val();

        // ---- A beat comes.
        let data = self.data.val();
        self.came.d.next = self.data_valid.val();
        self.came_tag.d.next = data.tag.get_bits::<6>(0) & mask;
        self.came_at.d.next = data.dest.get_bits::<5>(3);
        self.came_bad.d.next = data.error;
        self.lines.re.next = self.data_valid.val();
        self.lines.raddr.next = data.tag.get_bits::<6>(0);
        let came = self.came.q.val();
        let tag = self.came_tag.q.val();
        let line = self.lines.rdata.val();
        self.comes.next = came;
        self.lands.next = came && !voids.get_bit(tag.index());
        self.queue.next = line.queue;
        self.index.next = cat!(6; line.four, self.came_at.q.val().get_bits::<2>(3));
        self.first.next = line.first;
        self.end.next = line.end;
        self.word.next = self.came_at.q.val().get_bits::<3>(0);
        if came && self.came_bad.q.val() {
            bads = bads.replace_bit(tag.index(), true);
        }

        // ---- A queue's fetches are voided.
        let walk = self.walk.q.val();
        let gone = self.gone.q.val();
        let walks = self.walks.q.val();
        self.owners.re.next = true;
        self.owners.raddr.next = walk.get_bits::<6>(0);
        self.looked.d.next = walks;
        self.looked_at.d.next = walk.get_bits::<6>(0) & mask;
        if self.looked.q.val() && self.owners.rdata.val() == gone {
            voids = voids.replace_bit(self.looked_at.q.val().index(), true);
        }
        if walks {
            self.walk.d.next = walk + 1;
            self.walks.d.next = walk + 1 != self.walk_end.q.val();
        }
        if self.void.val() {
            self.walk.d.next = self.head.q.val();
            self.walk_end.d.next = self.tail.q.val();
            self.walks.d.next = self.some.q.val();
            self.gone.d.next = self.void_queue.val();
        }
        let voiding = walks || self.looked.q.val();
        self.voiding.next = voiding;

        // ---- A fetch is made.
        let enter = self.enter.val();
        let fetch = self.fetch.val();
        let tail = self.tail.q.val().get_bits::<6>(0) & mask;
        let beats = fetch.blocks.cast::<6>() << elab!((512 / W).trailing_zeros() as u64);
        self.tag.next = tail;
        self.lines.we.next = enter;
        self.lines.waddr.next = tail;
        self.lines.wdata.next = Line {
            queue: fetch.queue,
            four: fetch.index.get_bits::<4>(2),
            first: fetch.first,
            end: fetch.first.cast::<5>() + fetch.units,
        };
        self.oldest.we.next = enter;
        self.oldest.waddr.next = tail;
        self.oldest.wdata.next =
            Oldest { queue: fetch.queue, units: fetch.units, due: self.counts[2].rdata.val() + beats };
        self.owners.we.next = enter;
        self.owners.waddr.next = tail;
        self.owners.wdata.next = fetch.queue;
        if enter {
            voids = voids.replace_bit(tail.index(), false);
            bads = bads.replace_bit(tail.index(), false);
            self.tail.d.next = self.tail.q.val() + 1;
        }
        self.voids.d.next = voids;
        self.bads.d.next = bads;

        // ---- Beats are counted.
        let head = self.head.q.val().get_bits::<6>(0) & mask;
        for c in 0..3 {
            self.counts[c].we.next = came;
            self.counts[c].waddr.next = tag;
            self.counts[c].re.next = true;
        }
        self.counts[0].raddr.next = tag;
        self.counts[1].raddr.next = head;
        self.counts[2].raddr.next = tail;
        let counted = self.counts[0].rdata.val() + 1;
        self.counts[0].wdata.next = counted;
        self.counts[1].wdata.next = counted;
        self.counts[2].wdata.next = counted;

        // ---- The oldest leaves.
        self.oldest.re.next = true;
        self.oldest.raddr.next = head;
        let oldest = self.oldest.rdata.val();
        let complete = oldest.due == self.counts[1].rdata.val();
        let full = self.out_valid.q.val();
        let pop = self.some.q.val() && complete && !full && !self.void.val();
        if full && (self.out_void.q.val() || self.done_ready.val()) {
            self.out_valid.d.next = false;
        }
        if self.void.val() && self.out.q.val().queue == self.void_queue.val() {
            self.out_void.d.next = true;
        }
        if pop {
            self.out_valid.d.next = true;
            self.out.d.next =
                Fetch { queue: oldest.queue, index: 0.into(), blocks: 0.into(), first: 0.into(), units: oldest.units };
            self.out_void.d.next = self.voids.q.val().get_bit(head.index()) || voiding && oldest.queue == gone;
            self.out_bad.d.next = self.bads.q.val().get_bit(head.index());
            self.head.d.next = self.head.q.val() + 1;
        }
        self.done_valid.next = full && !self.out_void.q.val();
        self.done.next = self.out.q.val();
        self.done_bad.next = self.out_bad.q.val();
        let used = self.used.q.val();
        if enter && !pop {
            self.used.d.next = used + 1;
            self.some.d.next = true;
        } else if pop && !enter {
            self.used.d.next = used - 1;
            self.some.d.next = used != 1;
        }
        self.space.d.next = used < most;
        self.room.next = self.space.q.val();
        self.filled.next = cat!(self.tail.q.val(), bits::<9>(0));
        self.emptied.next = cat!(self.head.q.val(), bits::<9>(0));
    }
}
