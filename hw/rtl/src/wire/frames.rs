//! Collects the payload of frames to be sent: reserves its room, checks keys, issues the DMA reads, and tells
//! [`egress`](super::egress) when the oldest frame has all of its bytes in the transmit buffer. For the requester and the
//! response engine, which send [`TxSeg`]s through the arbiter.
//!
//! ```text
//! seg -> req .................................... chunk -> dma ........ data ---> count
//!     -> [segs] ---> reserve (room, slot) ---> [pending] -/  \---> closing   \    | owed
//!     -> [heads] ---> prepare                                         \------> ready ---> egress
//!
//! cycle       0    1    2    3    4    5        one frame of one inline stretch
//! seg         A
//! reserve          go
//! issue                 write
//! closing                    A
//! owed                            0
//! ready                                A        when its headers are, too; a frame every 3 cycles at most
//! ```
//! A frame has a *slot*, its sequence number modulo their number, and rows of the ring for its payload, from the start of a row
//! on. Headers need no room: they are built meanwhile, from the head that [`prepare`](super::prepare) gets as soon as the frame is
//! accepted. Bytes are counted per slot and never reset: `arrived` counts all that ever came, `base` holds that count as it was when
//! the slot's last frame went. Of the oldest frame, what is `owed` is read from these once and then counts down, so that it goes with
//! its last byte.
//!
//! `seg` is taken with the `ready` of `access`, which is a register: so nothing waits here beside a channel. `dma` may be taken back, and
//! its tag changes while it waits: what is asked for goes stale, and colours turn.
//! Narrow datapaths take a cycle more where that spares them wide multiplexers: for the head's way, and for each inline stretch.
//!
//! No more is asked for while a quarter of the ring is under way: that fills the longest PCIe round trip at line rate, and whatever is
//! asked for next, a WQE that is to be sent again or its bytes, does not queue behind what is not needed yet. For the same reason
//! it is asked for [piece by piece](super::pieces), stretches of an epoch that ended while they waited here ask for nothing, few wait in
//! front of the reservation, and the last half of the ring is for what comes behind the begin of an epoch, until there is room enough
//! again.
//!
//! Cannot deadlock: nothing is accepted from `seg` into the ring before its room and slot are free, and these are
//! freed by the MAC alone. Data is always taken. Requests go out in order and wait only for `access` and `dma_read`;
//! chunks that come before their frame has its room wait at our access port, which is nobody else's.

use crate::{
    msg::{AccessReq, BufAddr, Chunk, DmaData, DmaRead, EpochMark, Qp, TxHead, TxSeg},
    stream::{Fifo, SMALL, Sink, Source},
    wire::pieces::Pieces,
};
use abi::{status::cause, wire::op};
use hdl::prelude::*;

/// Stretches that may wait for `access`.
const PENDING: usize = 16;
/// Stretches in front of the reservation.
const WAITING: usize = 2;
/// Bit of a read's tag, above the slot, that is its colour.
const COLOR: usize = 14;
/// Frame slots: what the queue of heads holds, which answers at once.
pub const MAX_SLOTS: usize = SMALL;

/// Whose epoch a frame is of: its lowest bits are enough to know that it is over.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Era {
    qpn: Qp,
    epoch: Bits<2>,
}

/// Of what a frame's epoch is.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Age {
    /// A request; a READ response. An ACK is neither, and always goes.
    kinds: Bits<2>,
    era: Era,
}

/// A stretch in front of the reservation: what is left of it besides its request and its head.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Stretch {
    first: Bit,
    last: Bit,
    len: Bits<14>,
    is_inline: Bit,
    memory: Bit,
    /// Of the frame that it opens.
    rows: Bits<12>,
    age: Age,
}

/// A stretch on its way to `access` and back.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Pending {
    slot: Bits<16>,
    dest: BufAddr,
    len: Bits<14>,
    is_inline: Bit,
    memory: Bit,
    age: Age,
    last: Bit,
    /// Of inline bytes: the last beat of them, and its bytes.
    last_piece: Bits<3>,
    last_bytes: Bits<7>,
}

/// What came for a slot, since ever.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Arrived {
    bytes: Bits<14>,
    /// Turned round by a frame's beats with an error: other than in `base` if there was one.
    bad: Bit,
}

/// What was asked for a slot's frame.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Closed {
    bytes: Bits<14>,
    cause: Bits<8>,
}

/// A beat of data on its way to the counts.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Tally {
    slot: Bits<16>,
    bytes: Bits<7>,
    error: Bit,
}

/// What became of the payload of a frame.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Outcome {
    /// A part of it could not be read.
    pub failed: Bit,
    /// Why (`abi::status::cause`), or 0.
    pub cause: Bits<8>,
}

/// See the [module](self).
#[derive(LogicBlock)]
pub struct Frames<const W: usize> {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// Stretches of frames, those of a frame together and in order.
    pub seg: Sink<TxSeg>,
    /// Bytes of the inline stretches, byte 0 first.
    pub inline_data: Sink<Bits<512>>,
    pub req: Source<AccessReq>,
    pub chunk: Sink<Chunk>,
    pub dma: Source<DmaRead>,
    /// Returned data; always taken.
    pub data: Signal<In, DmaData>,
    pub beat: Signal<In, Bits<W>>,
    pub data_valid: Signal<In, Bit>,
    /// Write port of the transmit buffer.
    pub we: Signal<Out, Bit>,
    pub waddr: Signal<Out, BufAddr>,
    pub wdata: Signal<Out, Bits<W>>,
    pub wbytes: Signal<Out, Bits<7>>,
    /// Heads of the accepted frames, in order.
    pub head: Source<TxHead>,
    /// The oldest frame has all of its bytes, or never will.
    pub ready: Source<Outcome>,
    /// New epochs of requests, and of READ responses, as the judge takes them: it voids all frames of older ones.
    pub mark: [Signal<In, EpochMark>; 2],
    pub marks: [Signal<In, Bit>; 2],
    /// A frame left the ring, and its rows.
    pub free: Signal<In, Bit>,
    pub free_rows: Signal<In, Bits<12>>,
    /// Sequence number of the next frame to be accepted.
    pub queued: Signal<Out, Bits<16>>,
    /// Frames that left the ring: all with a sequence number below.
    pub gone: Signal<Out, Bits<16>>,
    /// From this cycle on reads have the other colour: all of that one are back.
    pub turns: Signal<Out, Bit>,
    sweep: Reg<Bits<16>>,
    sweeping: Reg<Bit>,
    // Accept.
    segs: Fifo<Stretch>,
    heads: Fifo<TxHead>,
    // Reservation.
    accepted: Reg<Bits<16>>,
    reserved: Reg<Bits<16>>,
    current: DFF<Bits<16>>,
    left: Reg<Bits<16>>,
    in_ring: Reg<Bits<16>>,
    full: Reg<Bit>,
    empty: Reg<Bit>,
    tail: Reg<BufAddr>,
    next: DFF<BufAddr>,
    room: Reg<Bits<15>>,
    pending: Fifo<Pending>,
    /// The last epochs that began.
    begun: [Reg<Bit>; 2],
    eras: [DFF<Era>; 2],
    /// One has begun, and since then no frame had ample room.
    urgent: Reg<Bit>,
    /// Of the frame that is being reserved.
    age: DFF<Age>,
    /// Bytes that were asked for and have not come; they are few enough to ask for more.
    flying: Reg<Bits<17>>,
    /// Colour of the reads, a bit of their tag, and bytes of the other colour that have not come.
    color: Reg<Bit>,
    late: Reg<Bits<17>>,
    asks: Reg<Bit>,
    /// The oldest stretch was there in the cycle before, and judged: it is of no use any more.
    judged: Reg<Bit>,
    stale: Reg<Bit>,
    // Issue: what is asked for next; where the rest of a stretch goes of which a chunk was read.
    pieces: Pieces<W>,
    moved: Reg<Bit>,
    dest: DFF<BufAddr>,
    /// The last inline bytes are taken; the present piece of them, and of narrow datapaths its bytes, if they are there, and the
    /// number of the piece behind it.
    took: Reg<Bit>,
    piece: Reg<Bits<3>>,
    next_piece: Reg<Bits<3>>,
    piece_there: Reg<Bit>,
    piece_bytes: DFF<Bits<W>>,
    issued: Reg<Bits<14>>,
    fault: Reg<Bits<8>>,
    closing: Reg<Bit>,
    closing_slot: DFF<Bits<16>>,
    closing_sum: DFF<Closed>,
    closed: Reg<Bits<16>>,
    sums: Ram<Closed, 16>,
    // Count: two copies, for the count itself and for the oldest frame.
    tallying: Reg<Bit>,
    tally: DFF<Tally>,
    arrived: [Ram<Arrived, 16>; 2],
    // The oldest frame: its number, whether its counts are known, and it is closed; bytes that are asked for and not there.
    base: Ram<Arrived, 16>,
    base_bad: Ram<Bit, 16>,
    oldest: Reg<Bits<16>>,
    known: Reg<Bit>,
    is_closed: Reg<Bit>,
    owed: DFF<Bits<14>>,
    bad: DFF<Bit>,
    complete: Reg<Bit>,
    outcome: DFF<Outcome>,
    _slots: Hidden<usize>,
    /// Log2 of the bytes up to which more are asked for.
    _flight: Hidden<usize>,
    /// Log2 of the rows that are kept for what is sent again.
    _spare: Hidden<usize>,
}

impl<const W: usize> Frames<W> {
    /// For a transmit ring of `ring` bytes and `slots` frames (a power of two), at a clock of `mhz`.
    pub fn new(ring: usize, slots: usize, mhz: usize) -> Self {
        assert!(slots.is_power_of_two() && (2..=MAX_SLOTS).contains(&slots), "{slots} frame slots");
        let rows = ring / (W / 8);
        assert!(rows < 1 << 14, "a transmit ring of {rows} rows");
        Frames {
            clock: Default::default(),
            rst: Default::default(),
            seg: Default::default(),
            inline_data: Default::default(),
            req: Default::default(),
            chunk: Default::default(),
            dma: Default::default(),
            data: Default::default(),
            beat: Default::default(),
            data_valid: Default::default(),
            mark: Default::default(),
            marks: Default::default(),
            we: Default::default(),
            waddr: Default::default(),
            wdata: Default::default(),
            wbytes: Default::default(),
            head: Default::default(),
            ready: Default::default(),
            free: Default::default(),
            free_rows: Default::default(),
            queued: Default::default(),
            gone: Default::default(),
            turns: Default::default(),
            sweep: Default::default(),
            sweeping: Reg::with_reset(true),
            segs: Fifo::new(WAITING),
            heads: Fifo::new(slots),
            accepted: Default::default(),
            reserved: Default::default(),
            current: Default::default(),
            left: Default::default(),
            in_ring: Default::default(),
            full: Default::default(),
            empty: Reg::with_reset(true),
            tail: Default::default(),
            next: Default::default(),
            room: Reg::with_reset((rows as u64).into()),
            pending: Fifo::new(PENDING),
            begun: Default::default(),
            eras: Default::default(),
            judged: Default::default(),
            stale: Default::default(),
            urgent: Default::default(),
            age: Default::default(),
            flying: Default::default(),
            color: Default::default(),
            late: Default::default(),
            asks: Default::default(),
            pieces: Pieces::new(mhz),
            moved: Default::default(),
            dest: Default::default(),
            took: Default::default(),
            piece: Default::default(),
            next_piece: Default::default(),
            piece_there: Default::default(),
            piece_bytes: Default::default(),
            issued: Default::default(),
            fault: Default::default(),
            closing: Default::default(),
            closing_slot: Default::default(),
            closing_sum: Default::default(),
            closed: Default::default(),
            sums: at_once(slots),
            tallying: Default::default(),
            tally: Default::default(),
            arrived: [at_once(slots), at_once(slots)],
            base: at_once(slots),
            base_bad: at_once(slots),
            oldest: Default::default(),
            known: Default::default(),
            is_closed: Default::default(),
            owed: Default::default(),
            bad: Default::default(),
            complete: Default::default(),
            outcome: Default::default(),
            _slots: Hidden(slots),
            _flight: Hidden((ring / 4).trailing_zeros() as usize),
            _spare: Hidden((rows / 2).trailing_zeros() as usize),
        }
    }
}

/// A table of LUTs that answers in the same cycle.
fn at_once<T: Synth>(rows: usize) -> Ram<T, 16> {
    Ram::default().rows(rows).style("distributed").at_once()
}

/// Log2 of the bytes of a row.
pub const fn row_shift(w: usize) -> u64 {
    (w / 8).trailing_zeros() as u64
}

/// Rows of the ring that `payload` bytes take.
#[hdl_fn]
pub fn rows_of<const W: usize>(payload: Bits<14>) -> Bits<12> {
    ((payload + (W as u64 / 8 - 1)) >> elab!(row_shift(W))).cast::<12>()
}

impl<const W: usize> Logic for Frames<W> {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, sweep, sweeping, accepted, reserved, left, in_ring, full, empty, tail, room);
        regs!(self, clock, rst, moved, took, piece, next_piece, piece_there, issued, fault, closing, closed, tallying);
        regs!(self, clock, rst, oldest, known, is_closed, complete, begun, flying, asks, urgent, color, late);
        regs!(self, clock, rst, judged, stale);
        dff_setup!(self, clock, current, next, dest, piece_bytes, closing_slot, closing_sum, tally, owed, bad, outcome);
        dff_setup!(self, clock, eras, age);
        clock!(self, clock, sums, arrived[0], arrived[1], base, base_bad);
        clock_reset!(self, clock, rst, segs, heads, pending, pieces);
        let slots = elab!(bits::<16>(self._slots.0 as u64));
        let mask = elab!(bits::<16>(self._slots.0 as u64 - 1));
        let most = (mask << 1) | 1; // of a count of frames
        let shift = elab!(row_shift(W));
        let sweeping = self.sweeping.q.val();
        let sweep = self.sweep.q.val();
        if sweeping {
            self.sweep.d.next = (sweep + 1) & mask;
            self.sweeping.d.next = sweep != slots - 1;
        }

        // Accept a stretch: its frame's head goes to where headers are built meanwhile.
        let seg = self.seg.data.val();
        let ready = self.segs.s.ready.val() && self.heads.s.ready.val() && self.req.ready.val() && !sweeping;
        let accept = self.seg.valid.val() && ready;
        self.seg.ready.next = ready;
        self.segs.s.valid.next = accept;
        self.segs.s.data.next = Stretch {
            first: seg.first,
            last: seg.last,
            len: seg.len,
            is_inline: seg.is_inline,
            memory: seg.memory,
            rows: rows_of::<W>(seg.head.payload),
            age: Age {
                kinds: cat!(
                    2;
                    !seg.head.request && seg.head.opcode != elab!(bits::<8>(op::ACK as u64)),
                    seg.head.request
                ),
                era: Era { qpn: seg.head.qpn, epoch: seg.head.epoch.get_bits::<2>(0) },
            },
        };
        // Its key is checked meanwhile: the answer waits at the access port until the frame has its room.
        // Whoever takes it is ready for the stretch before it sees one.
        self.req.valid.next =
            self.seg.valid.val() && seg.memory && self.segs.s.ready.val() && self.heads.s.ready.val() && !sweeping;
        self.req.data.next = AccessReq {
            key: seg.key,
            va: seg.va,
            len: seg.len,
            span: seg.len.cast::<32>(),
            pd: seg.pd,
            // Of the first stretch, which is all that a READ response has: the others are of local memory, which no window opens.
            qpn: seg.head.qpn,
            need: seg.need.cast::<6>(),
        };
        let begins = accept && seg.first;
        if begins {
            self.accepted.d.next = self.accepted.q.val() + 1;
        }
        // With none waiting it passes in the same cycle.
        let some = self.heads.m.valid.val();
        let passes = elab!(W == 512) && !some && begins;
        self.head.valid.next = some || passes;
        self.head.data.next = if elab!(W < 512) || some { self.heads.m.data.val() } else { seg.head };
        self.heads.m.ready.next = self.head.ready.val();
        self.heads.s.data.next = seg.head;
        self.heads.s.valid.next = begins && !(passes && self.head.ready.val());

        // Reservation.
        let waits = self.segs.m.data.val();
        let rest = self.room.q.val() - waits.rows.cast::<15>();
        // The last half of the ring is there for what is sent again: else it would wait until the MAC is through with the frame that
        // it has, for only then what is void leaves.
        let fits = !rest.get_bit(14);
        let ample = fits && (rest >> elab!(self._spare.0 as u64)).any();
        let ends = self.marks[0].val() || self.marks[1].val();
        let urgent = self.urgent.q.val();
        // What is too long for the other half goes through an empty ring.
        let has_room = (ample || fits && (urgent || self.empty.q.val())) && !self.full.q.val();
        self.urgent.d.next = ends || urgent && !(self.segs.m.valid.val() && waits.first && ample);
        let go = self.segs.m.valid.val() && (!waits.first || has_room) && self.pending.s.ready.val();
        let open = go && waits.first;
        let free = self.free.val();
        let reserved = self.reserved.q.val();
        let dest = if waits.first { self.tail.q.val() } else { self.next.q.val() };
        self.segs.m.ready.next = go;
        // A frame's head counts with its first stretch.
        let age = if waits.first { waits.age } else { self.age.q.val() };
        if go {
            self.age.d.next = age;
            self.next.d.next = dest + waits.len.cast::<20>();
        }
        if open {
            self.reserved.d.next = (reserved + 1) & most;
            self.current.d.next = reserved;
            self.tail.d.next = self.tail.q.val() + (waits.rows.cast::<20>() << shift);
        }
        let freed: Bits<15> = if free { self.free_rows.val().cast::<15>() } else { 0.into() };
        self.room.d.next = (if open { rest } else { self.room.q.val() }) + freed;
        let in_ring = self.in_ring.q.val();
        if open && !free {
            self.in_ring.d.next = (in_ring + 1) & most;
            self.empty.d.next = false;
            self.full.d.next = in_ring == slots - 1;
        } else if free && !open {
            self.in_ring.d.next = (in_ring - 1) & most;
            self.empty.d.next = in_ring == 1;
            self.full.d.next = false;
        }
        if free {
            self.left.d.next = self.left.q.val() + 1;
        }
        let inline_end: Bits<7> = if waits.len.any() { waits.len.get_bits::<7>(0) - 1 } else { 0.into() };
        self.pending.s.valid.next = go;
        self.pending.s.data.next = Pending {
            slot: (if waits.first { reserved } else { self.current.q.val() }) & mask,
            dest,
            len: waits.len,
            is_inline: waits.is_inline,
            memory: waits.memory,
            age,
            last: waits.last,
            last_piece: (inline_end >> shift).get_bits::<3>(0),
            last_bytes: if waits.len.any() { (inline_end & (W as u64 / 8 - 1)) + 1 } else { 0.into() },
        };
        self.queued.next = self.accepted.q.val();
        self.gone.next = self.left.q.val();

        // Issue: each stretch in turn becomes DMA reads, a write of inline bytes, or nothing.
        let stretch = self.pending.m.data.val();
        let there = self.pending.m.valid.val();
        // Not before its frame has its room: an invalidation may wait for what is in hand, but not for the MAC.
        let wants = there && stretch.memory;
        self.pieces.s.valid.next = wants && self.chunk.valid.val();
        self.pieces.s.data.next = self.chunk.data.val();
        self.chunk.ready.next = wants && self.pieces.s.ready.val();
        self.pieces.skip.next = self.stale.q.val();
        let chunk = self.pieces.m.data.val();
        let chunk_there = self.pieces.m.valid.val();
        let refused = chunk.refused;
        let may_ask = self.judged.q.val() && self.asks.q.val();
        let wants_chunk = may_ask && stretch.memory;
        // What waited while its QP went back: the judge drops it, and its bytes would only delay those that are sent again.
        let mut stale: Bit = false;
        for i in 0..2 {
            if self.marks[i].val() {
                let mark = self.mark[i].val();
                self.begun[i].d.next = true;
                self.eras[i].d.next = Era { qpn: mark.qpn, epoch: mark.epoch.get_bits::<2>(0) };
            }
            let era = self.eras[i].q.val();
            let of = stretch.age.era;
            let over = self.begun[i].q.val() && of.qpn == era.qpn && of.epoch != era.epoch;
            stale = stale || over && stretch.age.kinds.get_bit(i);
        }
        let take_chunk = wants_chunk && chunk_there && self.dma.ready.val();
        let moved = self.moved.q.val();
        let dest = if moved { self.dest.q.val() } else { stretch.dest };
        self.pieces.m.ready.next = wants_chunk && self.dma.ready.val();
        self.dma.valid.next = wants_chunk && chunk_there && !refused && !self.stale.q.val();
        let late = self.late.q.val();
        // What is in hand is asked for in the present colour.
        let turns = !late.any() && !self.pieces.holds.val();
        let color = self.color.q.val() != turns;
        let tag = stretch.slot.replace_bit(COLOR, color);
        self.dma.data.next = DmaRead { iova: chunk.iova, len: chunk.len, tag, dest };
        if take_chunk {
            self.moved.d.next = !chunk.last;
            self.dest.d.next = dest + chunk.len.cast::<20>();
        }

        let data = self.data.val();
        let comes = self.data_valid.val();
        let took = self.took.q.val(); // the last piece was written in the cycle before
        let inline_data = self.inline_data.data.val();
        let piece = if elab!(W < 512) { self.piece.q.val() } else { 0.into() };
        let before = piece.cast::<7>() << shift;
        let end_piece = elab!(W == 512) || piece == stretch.last_piece;
        let inline_valid = self.inline_data.valid.val() && !took;
        let inline_there = if elab!(W < 512) { self.piece_there.q.val() } else { inline_valid };
        let write = there && stretch.is_inline && inline_there && !comes;
        let take_inline = write && end_piece;
        let mut bytes: Bits<W> = inline_data.get_bits::<W>(0);
        if elab!(W < 512) {
            let next_piece = self.next_piece.q.val();
            for i in 1..512 / W {
                if next_piece == i as u64 {
                    bytes = inline_data.get_bits::<W>(i * W);
                }
            }
            if take_inline {
                self.next_piece.d.next = 0.into();
                self.piece_there.d.next = false;
            } else if write || !self.piece_there.q.val() && inline_valid {
                self.next_piece.d.next = next_piece + 1;
                self.piece_there.d.next = true;
                self.piece.d.next = next_piece;
                self.piece_bytes.d.next = bytes;
            }
            bytes = self.piece_bytes.q.val();
        }
        self.took.d.next = take_inline;
        self.inline_data.ready.next = took;
        self.we.next = comes || write && stretch.last_bytes.any();
        self.waddr.next = if comes { data.dest } else { stretch.dest + before.cast::<20>() };
        self.wdata.next = if comes { self.beat.val() } else { bytes };
        self.wbytes.next = if comes {
            data.bytes
        } else if end_piece {
            stretch.last_bytes
        } else {
            bits::<7>(W as u64 / 8)
        };

        let nothing = there && !stretch.memory && !stretch.is_inline;
        let finish = nothing || take_inline || take_chunk && chunk.last;
        self.pending.m.ready.next = finish;
        let more = self.issued.q.val() + chunk.len;
        let reads = take_chunk && !refused && !self.stale.q.val();
        // A cycle ahead, for both ways are long. A client is read for in every second cycle at most, so none is lost.
        self.judged.d.next = there && !finish;
        self.stale.d.next = stale;
        let issued = if reads { more } else { self.issued.q.val() };
        let asked: Bits<17> = if reads { chunk.len.cast::<17>() } else { 0.into() };
        let came: Bits<17> = if comes { data.bytes.cast::<17>() } else { 0.into() };
        let flying = self.flying.q.val();
        self.flying.d.next = (flying + asked) - came;
        self.turns.next = turns;
        self.color.d.next = color;
        let others = if turns { flying } else { late };
        if turns || data.tag.get_bit(COLOR) != color {
            self.late.d.next = others - came;
        }
        self.asks.d.next = !(flying >> elab!(self._flight.0 as u64)).any();
        let found: Bits<8> = if take_chunk { chunk.cause } else { 0.into() };
        let fault = if self.fault.q.val().any() { self.fault.q.val() } else { found };
        let close = finish && stretch.last;
        self.issued.d.next = if close { 0.into() } else { issued };
        self.fault.d.next = if close { 0.into() } else { fault };
        let closing = self.closing.q.val();
        let closing_slot = self.closing_slot.q.val();
        let closing_sum = self.closing_sum.q.val();
        self.closing.d.next = close;
        self.closing_slot.d.next = stretch.slot;
        self.closing_sum.d.next = Closed { bytes: issued, cause: fault };
        self.sums.we.next = closing;
        self.sums.waddr.next = closing_slot;
        self.sums.wdata.next = closing_sum;
        if closing {
            self.closed.d.next = (self.closed.q.val() + 1) & most;
        }

        // Count: a cycle after the beat its slot is read, added to and written back.
        let tallying = self.tallying.q.val();
        let tally = self.tally.q.val();
        self.tallying.d.next = comes;
        if comes {
            self.tally.d.next = Tally { slot: data.tag & mask, bytes: data.bytes, error: data.error };
        }
        self.arrived[0].re.next = true;
        self.arrived[0].raddr.next = tally.slot;
        self.base_bad.re.next = true;
        self.base_bad.raddr.next = tally.slot;
        let counted = self.arrived[0].rdata.val();
        let after = Arrived {
            bytes: counted.bytes + tally.bytes.cast::<14>(),
            bad: if tally.error { !self.base_bad.rdata.val() } else { counted.bad },
        };
        let zero = Arrived { bytes: 0.into(), bad: false };
        for i in 0..2 {
            self.arrived[i].we.next = tallying || sweeping;
            self.arrived[i].waddr.next = if sweeping { sweep } else { tally.slot };
            self.arrived[i].wdata.next = if sweeping { zero } else { after };
        }

        // The oldest frame goes once it is closed and all of its bytes are there. Its counts are looked at when the one before
        // it has gone and no beat of it is on its way to them; from then on beats count as they come.
        let oldest = self.oldest.q.val();
        let slot = oldest & mask;
        let known = self.known.q.val();
        let is_closed = self.is_closed.q.val();
        let owed = self.owed.q.val();
        self.arrived[1].re.next = true;
        self.arrived[1].raddr.next = slot;
        self.base.re.next = true;
        self.base.raddr.next = slot;
        self.sums.re.next = true;
        self.sums.raddr.next = slot;
        let (now, base, sum) = (self.arrived[1].rdata.val(), self.base.rdata.val(), self.sums.rdata.val());
        let tallied = tallying && tally.slot == slot;
        let comes_here = comes && data.tag & mask == slot;
        let closes_here = closing && closing_slot == slot;
        let look = !known && !tallied && !comes_here && !closes_here && !sweeping;
        // They are no more than `slots` apart.
        let was_closed = oldest != self.closed.q.val();
        let come: Bits<14> = if comes_here { data.bytes.cast::<14>() } else { 0.into() };
        let asked: Bits<14> = if closes_here { closing_sum.bytes } else { 0.into() };
        let bad = self.bad.q.val() || comes_here && data.error;
        if look {
            let all: Bits<14> = if was_closed { sum.bytes } else { 0.into() };
            self.known.d.next = true;
            self.is_closed.d.next = was_closed;
            self.owed.d.next = all - (now.bytes - base.bytes);
            self.bad.d.next = now.bad != base.bad;
        } else {
            self.owed.d.next = (owed + asked) - come;
            self.bad.d.next = bad;
            if known && closes_here {
                self.is_closed.d.next = true;
            }
        }
        let there_now = if comes_here { owed == data.bytes.cast::<14>() } else { owed == 0 };
        let goes = self.complete.q.val() && self.ready.ready.val();
        self.complete.d.next = known && is_closed && there_now && !goes;
        let failed: Bits<8> = if bad { bits::<8>(cause::DMA_ERROR as u64) } else { 0.into() };
        self.outcome.d.next =
            Outcome { failed: sum.cause.any() || bad, cause: if sum.cause.any() { sum.cause } else { failed } };
        self.ready.valid.next = self.complete.q.val();
        self.ready.data.next = self.outcome.q.val();
        if goes {
            self.oldest.d.next = (oldest + 1) & most;
            self.known.d.next = false;
            self.is_closed.d.next = false;
        }
        let last_bytes: Bits<14> = if tallied { tally.bytes.cast::<14>() } else { 0.into() };
        let ended =
            Arrived { bytes: now.bytes + last_bytes, bad: if tallied && tally.error { !base.bad } else { now.bad } };
        self.base.we.next = goes || sweeping;
        self.base.waddr.next = if sweeping { sweep } else { slot };
        self.base.wdata.next = if sweeping { zero } else { ended };
        self.base_bad.we.next = goes || sweeping;
        self.base_bad.waddr.next = if sweeping { sweep } else { slot };
        self.base_bad.wdata.next = !sweeping && ended.bad;
    }
}
