//! Collects the payload of frames to be sent: reserves its room, checks keys, issues the DMA reads, and tells
//! [`egress`](super::egress) when the oldest frame has all of its bytes in the transmit buffer. For the requester and the
//! response engine, which send [`TxSeg`]s through the arbiter.
//!
//! ```text
//! seg -> req .................................... chunk -> dma ........ data ---> count
//!     -> [segs] ---> reserve (room, slot) ---> [pending] -/  \---> closed    \    | got
//!     -> [heads] ---> egress                                          \------> ready ---> egress
//!
//! cycle       0    1    2    3    4         one frame of one inline stretch
//! seg         A
//! reserve          go
//! issue                 write, close
//! ready                      A              a frame every 3 cycles at most
//! ```
//! A frame has a *slot*, its sequence number modulo their number, and rows of the ring for its payload, from the start of a row
//! on. Headers need no room: egress builds them meanwhile, from the head that it gets as soon as the frame is accepted. Bytes
//! are counted per slot and never reset: `arrived` counts all that ever came, `base` holds that count as it was when the slot's
//! last frame went. Of the oldest frame, `got` is read from these once and then counts along, so that it goes with its last byte.
//!
//! Cannot deadlock: nothing is accepted from `seg` into the ring before its room and slot are free, and these are
//! freed by the MAC alone. Data is always taken. Requests go out in order and wait only for `access` and `dma_read`;
//! chunks that come before their frame has its room wait at our access port, which is nobody else's.

use crate::{
    msg::{AccessReq, BufAddr, Chunk, DmaData, DmaRead, TxHead, TxSeg},
    stream::{Fifo, Sink, Source, Table, Table2},
};
use abi::status::cause;
use hdl::prelude::*;

/// Stretches that may wait for `access`.
const PENDING: usize = 32;
/// Stretches in front of the reservation.
const WAITING: usize = 8;

/// A stretch on its way to `access` and back.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Pending {
    slot: Bits<16>,
    dest: BufAddr,
    len: Bits<14>,
    is_inline: Bit,
    memory: Bit,
    last: Bit,
}

/// Bytes that came for a slot, since ever.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Arrived {
    bytes: Bits<14>,
    /// Those among them that came with an error.
    bad: Bits<14>,
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
    /// The oldest frame has all of its bytes: why a part of it could not be read (`abi::status::cause`), or 0.
    pub ready: Source<Bits<8>>,
    /// A frame left the ring, and its rows.
    pub free: Signal<In, Bit>,
    pub free_rows: Signal<In, Bits<12>>,
    /// Sequence number of the next frame to be accepted.
    pub queued: Signal<Out, Bits<16>>,
    /// Frames that left the ring: all with a sequence number below.
    pub gone: Signal<Out, Bits<16>>,
    sweep: Reg<Bits<16>>,
    segs: Fifo<TxSeg>,
    heads: Fifo<TxHead>,
    // Reservation.
    accepted: Reg<Bits<16>>,
    reserved: Reg<Bits<16>>,
    left: Reg<Bits<16>>,
    tail: Reg<BufAddr>,
    next: Reg<BufAddr>,
    room: Reg<Bits<14>>,
    pending: Fifo<Pending>,
    // Issue.
    piece: Reg<Bits<3>>,
    issued: Reg<Bits<14>>,
    fault: Reg<Bits<8>>,
    closed: Reg<Bits<16>>,
    sums: Table<Closed>,
    // Count.
    arrived: Table2<Arrived>,
    tally_valid: [Reg<Bit>; 2],
    tally: [DFF<Tally>; 2],
    done_valid: [Reg<Bit>; 2],
    done_slot: [DFF<Bits<16>>; 2],
    done: [DFF<Arrived>; 2],
    // The oldest frame: its number, whether its counts are being read, are known, and it is closed.
    base: Table<Arrived>,
    oldest: Reg<Bits<16>>,
    looking: [Reg<Bit>; 2],
    known: Reg<Bit>,
    looked_closed: [Reg<Bit>; 2],
    is_closed: Reg<Bit>,
    sum: DFF<Closed>,
    before: DFF<Arrived>,
    got: DFF<Arrived>,
    _slots: Hidden<usize>,
}

impl<const W: usize> Frames<W> {
    /// For a transmit ring of `ring` bytes and `slots` frames (a power of two).
    pub fn new(ring: usize, slots: usize) -> Self {
        assert!(slots.is_power_of_two() && slots <= 1 << 14, "{slots} frame slots");
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
            sweep: Default::default(),
            segs: Fifo::new(WAITING),
            heads: Fifo::new(slots + WAITING),
            accepted: Default::default(),
            reserved: Default::default(),
            left: Default::default(),
            tail: Default::default(),
            next: Default::default(),
            room: Reg::with_reset((rows as u64).into()),
            pending: Fifo::new(PENDING),
            piece: Default::default(),
            issued: Default::default(),
            fault: Default::default(),
            closed: Default::default(),
            sums: Table::new(slots, "distributed"),
            arrived: Table2::new(slots, "distributed"),
            tally_valid: Default::default(),
            tally: Default::default(),
            done_valid: Default::default(),
            done_slot: Default::default(),
            done: Default::default(),
            base: Table::new(slots, "distributed"),
            oldest: Default::default(),
            looking: Default::default(),
            known: Default::default(),
            looked_closed: Default::default(),
            is_closed: Default::default(),
            sum: Default::default(),
            before: Default::default(),
            got: Default::default(),
            _slots: Hidden(slots),
        }
    }
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
        regs!(self, clock, rst, sweep, accepted, reserved, left, tail, next, room, piece, issued);
        regs!(
            self,
            clock,
            rst,
            fault,
            closed,
            tally_valid,
            done_valid,
            oldest,
            looking,
            known,
            looked_closed,
            is_closed
        );
        dff_setup!(self, clock, tally, done_slot, done, sum, before, got);
        clock!(self, clock, sums, arrived, base);
        clock_reset!(self, clock, rst, segs, heads, pending);
        let slots = elab!(bits::<16>(self._slots.0 as u64));
        let mask = elab!(bits::<16>(self._slots.0 as u64 - 1));
        let shift = elab!(row_shift(W));
        let sweeping = self.sweep.q.val() != slots;
        let sweep = self.sweep.q.val().cast::<24>();
        if sweeping {
            self.sweep.d.next = self.sweep.q.val() + 1;
        }

        // Accept a stretch: its frame's head goes to egress, which builds the headers meanwhile.
        let seg = self.seg.data.val();
        let asks = !seg.is_inline && seg.len.any();
        let room = self.segs.s.ready.val() && self.heads.s.ready.val() && !sweeping;
        let ready = room && (!asks || self.req.ready.val());
        let accept = self.seg.valid.val() && ready;
        self.seg.ready.next = ready;
        self.segs.s.data.next = seg;
        self.segs.s.valid.next = accept;
        // Its key is checked meanwhile: the answer waits at the access port until the frame has its room.
        self.req.valid.next = self.seg.valid.val() && asks && room;
        self.req.data.next = AccessReq {
            key: seg.key,
            va: seg.va,
            len: seg.len,
            span: seg.len.cast::<32>(),
            pd: seg.pd,
            need: seg.need,
        };
        let begins = accept && seg.first;
        if begins {
            self.accepted.d.next = self.accepted.q.val() + 1;
        }
        // With none waiting it passes in the same cycle.
        let passes = !self.heads.fill.val().any() && begins;
        self.head.valid.next = self.heads.m.valid.val() || passes;
        self.head.data.next = if passes { seg.head } else { self.heads.m.data.val() };
        self.heads.m.ready.next = self.head.ready.val();
        self.heads.s.data.next = seg.head;
        self.heads.s.valid.next = begins && !(passes && self.head.ready.val());

        // Reservation.
        let seg = self.segs.m.data.val();
        let waiting = self.segs.m.valid.val();
        let rows = rows_of::<W>(seg.head.payload);
        let in_ring = self.reserved.q.val() - self.left.q.val();
        let has_room = rows.cast::<14>() <= self.room.q.val() && in_ring != slots;
        let memory = !seg.is_inline && seg.len.any();
        let go = waiting && (!seg.first || has_room) && self.pending.s.ready.val();
        let open = go && seg.first;
        let slot = (if seg.first { self.reserved.q.val() } else { self.reserved.q.val() - 1 }) & mask;
        let dest = if seg.first { self.tail.q.val() } else { self.next.q.val() };
        self.segs.m.ready.next = go;
        if go {
            self.next.d.next = dest + seg.len.cast::<20>();
        }
        if open {
            self.reserved.d.next = self.reserved.q.val() + 1;
            self.tail.d.next = self.tail.q.val() + (rows.cast::<20>() << shift);
        }
        let taken: Bits<14> = if open { rows.cast::<14>() } else { 0.into() };
        let freed: Bits<14> = if self.free.val() { self.free_rows.val().cast::<14>() } else { 0.into() };
        self.room.d.next = (self.room.q.val() + freed) - taken;
        if self.free.val() {
            self.left.d.next = self.left.q.val() + 1;
        }
        self.pending.s.valid.next = go;
        self.pending.s.data.next =
            Pending { slot, dest, len: seg.len, is_inline: seg.is_inline, memory, last: seg.last };
        self.queued.next = self.accepted.q.val();
        self.gone.next = self.left.q.val();

        // Issue: each stretch in turn becomes DMA reads, a write of inline bytes, or nothing.
        let stretch = self.pending.m.data.val();
        let chunk = self.chunk.data.val();
        let refused = chunk.cause.any();
        let wants_chunk = self.pending.m.valid.val() && stretch.memory;
        self.dma.valid.next = wants_chunk && self.chunk.valid.val() && !refused;
        self.dma.data.next = DmaRead {
            iova: chunk.iova,
            len: chunk.len,
            tag: stretch.slot,
            dest: stretch.dest + chunk.offset.cast::<20>(),
        };
        self.chunk.ready.next = wants_chunk && (refused || self.dma.ready.val());
        let take_chunk = wants_chunk && self.chunk.valid.val() && (refused || self.dma.ready.val());

        let piece = self.piece.q.val();
        let before = piece.cast::<14>() << shift;
        let rest = stretch.len - before;
        let end_piece = rest <= W as u64 / 8;
        let inline_data = self.inline_data.data.val();
        let mut bytes: Bits<W> = inline_data.get_bits::<W>(0);
        for i in 1..512 / W {
            if piece == i as u64 {
                bytes = inline_data.get_bits::<W>(i * W);
            }
        }
        let write = self.pending.m.valid.val() && stretch.is_inline && self.inline_data.valid.val();
        let write = write && !self.data_valid.val();
        let take_inline = write && end_piece;
        if write {
            self.piece.d.next = if end_piece { 0.into() } else { piece + 1 };
        }
        self.inline_data.ready.next = take_inline;
        let data = self.data.val();
        self.we.next = self.data_valid.val() || write && rest.any();
        self.waddr.next = if self.data_valid.val() { data.dest } else { stretch.dest + before.cast::<20>() };
        self.wdata.next = if self.data_valid.val() { self.beat.val() } else { bytes };
        self.wbytes.next = if self.data_valid.val() {
            data.bytes
        } else if end_piece {
            rest.get_bits::<7>(0)
        } else {
            bits::<7>(W as u64 / 8)
        };

        let nothing = self.pending.m.valid.val() && !stretch.memory && !stretch.is_inline;
        let finish = nothing || take_inline || take_chunk && (chunk.last || refused);
        self.pending.m.ready.next = finish;
        let issued = self.issued.q.val() + (if take_chunk && !refused { chunk.len } else { 0.into() });
        let found: Bits<8> = if take_chunk { chunk.cause } else { 0.into() };
        let fault = if self.fault.q.val().any() { self.fault.q.val() } else { found };
        let close = finish && stretch.last;
        self.issued.d.next = if close { 0.into() } else { issued };
        self.fault.d.next = if close { 0.into() } else { fault };
        self.sums.we.next = close;
        self.sums.waddr.next = stretch.slot.cast::<24>();
        self.sums.wdata.next = Closed { bytes: issued, cause: fault };
        if close {
            self.closed.d.next = self.closed.q.val() + 1;
        }

        // Count: read, add, write back. Sums of the two cycles before are not in the table yet when it is read.
        self.tally_valid[0].d.next = self.data_valid.val();
        self.tally_valid[1].d.next = self.tally_valid[0].q.val();
        if self.data_valid.val() {
            self.tally[0].d.next = Tally { slot: data.tag & mask, bytes: data.bytes, error: data.error };
        }
        if self.tally_valid[0].q.val() {
            self.tally[1].d.next = self.tally[0].q.val();
        }
        self.arrived.re.next = self.data_valid.val();
        self.arrived.raddr.next = (data.tag & mask).cast::<24>();
        let tally = self.tally[1].q.val();
        let counting = self.tally_valid[1].q.val();
        let mut before = self.arrived.rdata.val();
        for i in 0..2 {
            if self.done_valid[1 - i].q.val() && self.done_slot[1 - i].q.val() == tally.slot {
                before = self.done[1 - i].q.val();
            }
        }
        let more = tally.bytes.cast::<14>();
        let after =
            Arrived { bytes: before.bytes + more, bad: before.bad + (if tally.error { more } else { 0.into() }) };
        self.done_valid[0].d.next = counting;
        self.done_valid[1].d.next = self.done_valid[0].q.val();
        if counting {
            self.done_slot[0].d.next = tally.slot;
            self.done[0].d.next = after;
        }
        self.done_slot[1].d.next = self.done_slot[0].q.val();
        self.done[1].d.next = self.done[0].q.val();
        let zero = Arrived { bytes: 0.into(), bad: 0.into() };
        self.arrived.we.next = counting || sweeping;
        self.arrived.waddr.next = if sweeping { sweep } else { tally.slot.cast::<24>() };
        self.arrived.wdata.next = if sweeping { zero } else { after };

        // The oldest frame goes once it is closed and all of its bytes are there. Its counts are read when the one before it
        // goes; beats from that cycle on are added as they come. Beats that are just being counted would be missed: look again.
        let oldest = self.oldest.q.val();
        let slot = oldest & mask;
        let got = self.got.q.val();
        let sum = self.sum.q.val();
        let complete = self.known.q.val() && self.is_closed.q.val() && got.bytes == sum.bytes;
        let failed: Bits<8> = if got.bad.any() { bits::<8>(cause::DMA_ERROR as u64) } else { 0.into() };
        self.ready.valid.next = complete;
        self.ready.data.next = if sum.cause.any() { sum.cause } else { failed };
        let goes = complete && self.ready.ready.val();
        let old = self.before.q.val();
        self.base.we.next = goes || sweeping;
        self.base.waddr.next = if sweeping { sweep } else { slot.cast::<24>() };
        self.base.wdata.next =
            if sweeping { zero } else { Arrived { bytes: old.bytes + got.bytes, bad: old.bad + got.bad } };
        let behind = (oldest + 1) & mask;
        let here = if goes { behind } else { slot };
        if goes {
            self.oldest.d.next = oldest + 1;
            self.known.d.next = false;
            self.is_closed.d.next = false;
        }
        let under_way = self.looking[0].q.val() || self.looking[1].q.val();
        let (newer, newer_at) = (self.tally_valid[0].q.val(), self.tally[0].q.val().slot);
        let counted = counting && tally.slot == slot || newer && newer_at == slot;
        let counted_behind = counting && tally.slot == behind || newer && newer_at == behind;
        let again = !self.known.q.val() && !under_way && !counted && !sweeping;
        let look = if goes { !counted_behind } else { again };
        let closed_before = if goes { oldest + 1 != self.closed.q.val() } else { oldest != self.closed.q.val() };
        self.looking[0].d.next = look;
        self.looking[1].d.next = self.looking[0].q.val();
        self.looked_closed[0].d.next = look && closed_before;
        self.looked_closed[1].d.next = self.looked_closed[0].q.val();
        self.arrived.re2.next = look;
        self.arrived.raddr2.next = here.cast::<24>();
        self.base.re.next = look;
        self.base.raddr.next = here.cast::<24>();
        self.sums.re.next = look;
        self.sums.raddr.next = here.cast::<24>();
        let (now, base) = (self.arrived.rdata2.val(), self.base.rdata.val());
        let beat = Arrived {
            bytes: data.bytes.cast::<14>(),
            bad: if data.error { data.bytes.cast::<14>() } else { 0.into() },
        };
        let comes = self.data_valid.val();
        let more = if comes && data.tag & mask == slot { beat } else { zero };
        let first = if comes && data.tag & mask == behind { beat } else { zero };
        let mut so_far = got;
        if self.looking[1].q.val() {
            self.known.d.next = true;
            self.before.d.next = base;
            so_far.bytes = got.bytes + (now.bytes - base.bytes);
            so_far.bad = got.bad + (now.bad - base.bad);
        }
        let sum_here = Arrived { bytes: so_far.bytes + more.bytes, bad: so_far.bad + more.bad };
        self.got.d.next = if goes {
            first
        } else if again {
            more
        } else {
            sum_here
        };
        if self.looked_closed[1].q.val() {
            self.is_closed.d.next = true;
            self.sum.d.next = self.sums.rdata.val();
        }
        if close && (if goes { stretch.slot == behind } else { stretch.slot == slot }) {
            self.is_closed.d.next = true;
            self.sum.d.next = Closed { bytes: issued, cause: fault };
        }
    }
}
