//! Collects the payload of frames to be sent: reserves their room, checks keys, issues the DMA reads, and hands each
//! frame to [`egress`](super::egress) once all of its bytes lie in the transmit buffer. For the requester and the
//! response engine, which send [`TxSeg`]s through the arbiter.
//!
//! ```text
//! seg -> req .................................... chunk ---> issue ---> dma ....... data ---> count
//!     -> [segs] ---> reserve (ring, slot) ---> [pending] ---/   \---> closed             arrived |
//!     -> layout lookup -/                                                poll <------------------/ ---> frame
//!
//! cycle       0    1    2    3    4    5    6    7    8         one frame of one inline stretch
//! seg         A
//! reserve               size  go
//! issue                            write, closed
//! poll                                  read      equal
//! frame                                                A        a frame every 3 cycles at most
//! ```
//! A frame has a *slot*, its sequence number modulo their number, and rows of the ring, headers included: the payload
//! starts where the headers end, so egress reads whole rows and aligns nothing. Bytes are counted per slot and never
//! reset: `arrived` counts all that ever came, `base` holds that count as it was when the slot's last frame went,
//! `closed` how many were asked for. A frame is complete when `arrived - base = closed`.
//!
//! Cannot deadlock: nothing is accepted from `seg` into the ring before its room and slot are free, and these are
//! freed by the MAC alone. Data is always taken. Requests go out in order and wait only for `access` and `dma_read`;
//! chunks that come before their frame has its room wait at our access port, which is nobody else's.

use super::headers;
use crate::{
    msg::{AccessReq, BufAddr, Chunk, DmaData, DmaRead, TableReq, TxHead, TxSeg},
    stream::{Fifo, Sink, Source, Table, Table2},
};
use abi::{
    status::cause,
    table::{gid, id, qp_address},
    wire::len,
};
use hdl::prelude::*;

/// Stretches that may wait for `access`.
const PENDING: usize = 32;
/// Stretches in front of the reservation.
const WAITING: usize = 8;

/// A frame whose bytes have all come. Source: wire/frames. Sink: wire/egress.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct TxFrame {
    /// Header fields.
    pub head: TxHead,
    /// Layout of the headers: IPv6.
    pub ip6: Bit,
    /// Layout of the headers: with a VLAN tag.
    pub tagged: Bit,
    /// First byte of the frame in the transmit buffer, at the start of a row.
    pub buf: BufAddr,
    /// Rows that it occupies.
    pub rows: Bits<12>,
    /// Why a part of it could not be read (`abi::status::cause`), or 0.
    pub cause: Bits<8>,
}

/// What must be known of the addresses before room can be reserved.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Layout {
    ip6: Bit,
    tagged: Bit,
}

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
    /// Complete frames, in order.
    pub frame: Source<TxFrame>,
    /// A frame left the ring, and its rows.
    pub free: Signal<In, Bit>,
    pub free_rows: Signal<In, Bits<12>>,
    /// Sequence number of the next frame to be accepted.
    pub queued: Signal<Out, Bits<16>>,
    /// Frames that left the ring: all with a sequence number below.
    pub gone: Signal<Out, Bits<16>>,
    /// Copy of the row writes that egress takes.
    pub table: Signal<In, TableReq>,
    pub table_we: Signal<In, Bit>,
    sweep: Reg<Bits<16>>,
    // Lookup of the layout.
    segs: Fifo<TxSeg>,
    layouts: Fifo<Layout>,
    families: Table<Bits<9>>,
    tags: Table<Bits<1>>,
    looking: [Reg<Bit>; 4],
    ip6: [DFF<Bit>; 2],
    // Reservation.
    sized: Reg<Bit>,
    header: DFF<Bits<7>>,
    bytes: DFF<Bits<14>>,
    accepted: Reg<Bits<16>>,
    reserved: Reg<Bits<16>>,
    left: Reg<Bits<16>>,
    tail: Reg<BufAddr>,
    next: Reg<BufAddr>,
    room: Reg<Bits<14>>,
    asking: Reg<Bit>,
    ask: DFF<AccessReq>,
    pending: Fifo<Pending>,
    descriptors: Table<TxFrame>,
    // Issue.
    reading: Reg<Bit>,
    read: DFF<DmaRead>,
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
    // Poll.
    base: Table<Arrived>,
    polled: Reg<Bits<16>>,
    polling: [Reg<Bit>; 2],
    clash: [DFF<Bit>; 2],
    ready: Reg<Bit>,
    out: DFF<TxFrame>,
    _slots: Hidden<usize>,
}

impl<const W: usize> Frames<W> {
    /// For `qps` QPs, a transmit ring of `ring` bytes and `slots` frames (a power of two).
    pub fn new(qps: usize, ring: usize, slots: usize) -> Self {
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
            frame: Default::default(),
            free: Default::default(),
            free_rows: Default::default(),
            queued: Default::default(),
            gone: Default::default(),
            table: Default::default(),
            table_we: Default::default(),
            sweep: Default::default(),
            segs: Fifo::new(WAITING),
            layouts: Fifo::new(WAITING),
            families: Table::new(qps, "block"),
            tags: Table::new(1 << gid_bits(), "distributed"),
            looking: Default::default(),
            ip6: Default::default(),
            sized: Default::default(),
            header: Default::default(),
            bytes: Default::default(),
            accepted: Default::default(),
            reserved: Default::default(),
            left: Default::default(),
            tail: Default::default(),
            next: Default::default(),
            room: Reg::with_reset((rows as u64).into()),
            asking: Default::default(),
            ask: Default::default(),
            pending: Fifo::new(PENDING),
            descriptors: Table::new(slots, ""),
            reading: Default::default(),
            read: Default::default(),
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
            polled: Default::default(),
            polling: Default::default(),
            clash: Default::default(),
            ready: Default::default(),
            out: Default::default(),
            _slots: Hidden(slots),
        }
    }
}

/// Bits of a GID index.
const fn gid_bits() -> usize {
    qp_address::GID.bits
}

/// Log2 of the bytes of a row.
pub const fn row_shift(w: usize) -> u64 {
    (w / 8).trailing_zeros() as u64
}

impl<const W: usize> Logic for Frames<W> {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, sweep, looking, sized, accepted, reserved, left, tail, next, room, asking, reading);
        regs!(self, clock, rst, piece, issued, fault, closed, tally_valid, done_valid, polled, polling, ready);
        dff_setup!(self, clock, ip6, header, bytes, ask, read, tally, done_slot, done, clash, out);
        clock!(self, clock, families, tags, descriptors, sums, arrived, base);
        clock_reset!(self, clock, rst, segs, layouts, pending);
        let slots = elab!(bits::<16>(self._slots.0 as u64));
        let mask = elab!(bits::<16>(self._slots.0 as u64 - 1));
        let shift = elab!(row_shift(W));
        let sweeping = self.sweep.q.val() != slots;
        let sweep = self.sweep.q.val().cast::<24>();
        if sweeping {
            self.sweep.d.next = self.sweep.q.val() + 1;
        }

        // Layout: the QP's address row names IP version and GID (2 cycles), the GID row the tag (2 more).
        let table = self.table.val();
        self.families.we.next = self.table_we.val() && table.table == id::QP_ADDRESS;
        self.families.waddr.next = table.index;
        self.families.wdata.next =
            cat!(table.row.get_bits::<8>(elab!(qp_address::GID.lsb)), table.row.get_bit(elab!(qp_address::IS_IP6.lsb)));
        self.tags.we.next = self.table_we.val() && table.table == id::GID;
        self.tags.waddr.next = table.index;
        self.tags.wdata.next = table.row.get_bits::<1>(elab!(gid::TAGGED.lsb));
        let seg = self.seg.data.val();
        let asks = !seg.is_inline && seg.len.any();
        let can_ask = !asks || !self.asking.q.val() || self.req.ready.val();
        let ready = self.segs.s.ready.val() && !sweeping && can_ask;
        let accept = self.seg.valid.val() && ready;
        self.seg.ready.next = ready;
        self.segs.s.data.next = seg;
        self.segs.s.valid.next = accept;
        // Its key is checked meanwhile: the answer waits at the access port until the frame has its room.
        if self.req.ready.val() {
            self.asking.d.next = false;
        }
        if accept && asks {
            self.asking.d.next = true;
            self.ask.d.next = AccessReq {
                key: seg.key,
                va: seg.va,
                len: seg.len,
                span: seg.len.cast::<32>(),
                pd: seg.pd,
                need: seg.need,
            };
        }
        self.req.valid.next = self.asking.q.val();
        self.req.data.next = self.ask.q.val();
        let look = accept && seg.first;
        if look {
            self.accepted.d.next = self.accepted.q.val() + 1;
        }
        self.families.re.next = look;
        self.families.raddr.next = seg.head.qpn.cast::<24>();
        let family = self.families.rdata.val();
        self.tags.re.next = self.looking[1].q.val();
        self.tags.raddr.next = family.get_bits::<8>(1).cast::<24>();
        self.looking[0].d.next = look;
        for i in 1..4 {
            self.looking[i].d.next = self.looking[i - 1].q.val();
        }
        self.ip6[0].d.next = family.get_bit(0);
        self.ip6[1].d.next = self.ip6[0].q.val();
        self.layouts.s.data.next = Layout { ip6: self.ip6[1].q.val(), tagged: self.tags.rdata.val().get_bit(0) };
        self.layouts.s.valid.next = self.looking[3].q.val(); // has room: one entry per stretch in `segs` at most

        // Reservation: size in one cycle, room in the next.
        let seg = self.segs.m.data.val();
        let layout = self.layouts.m.data.val();
        let waiting = self.segs.m.valid.val() && (!seg.first || self.layouts.m.valid.val());
        if waiting && seg.first && !self.sized.q.val() {
            let header = headers::header_len(seg.head, layout.ip6, layout.tagged);
            let tail = headers::pad(seg.head.payload).cast::<14>() + len::ICRC as u64;
            self.header.d.next = header;
            self.bytes.d.next =
                if seg.head.raw { seg.head.payload } else { header.cast::<14>() + seg.head.payload + tail };
            self.sized.d.next = true;
        }
        let rows = ((self.bytes.q.val() + (W as u64 / 8 - 1)) >> shift).cast::<12>();
        let in_ring = self.reserved.q.val() - self.left.q.val();
        let has_room = self.sized.q.val() && rows.cast::<14>() <= self.room.q.val() && in_ring != slots;
        let memory = !seg.is_inline && seg.len.any();
        let go = waiting && (!seg.first || has_room) && self.pending.s.ready.val();
        let open = go && seg.first;
        let slot = (if seg.first { self.reserved.q.val() } else { self.reserved.q.val() - 1 }) & mask;
        let dest = if seg.first { self.tail.q.val() + self.header.q.val().cast::<20>() } else { self.next.q.val() };
        self.segs.m.ready.next = go;
        self.layouts.m.ready.next = open;
        if go {
            self.next.d.next = dest + seg.len.cast::<20>();
        }
        if open {
            self.sized.d.next = false;
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
        self.descriptors.we.next = open;
        self.descriptors.waddr.next = slot.cast::<24>();
        self.descriptors.wdata.next = TxFrame {
            head: seg.head,
            ip6: layout.ip6,
            tagged: layout.tagged,
            buf: self.tail.q.val(),
            rows,
            cause: 0.into(),
        };
        self.queued.next = self.accepted.q.val();
        self.gone.next = self.left.q.val();

        // Issue: each stretch in turn becomes DMA reads, a write of inline bytes, or nothing.
        let stretch = self.pending.m.data.val();
        let chunk = self.chunk.data.val();
        let refused = chunk.cause.any();
        let can_read = !self.reading.q.val() || self.dma.ready.val();
        let take_chunk = self.pending.m.valid.val() && stretch.memory && self.chunk.valid.val() && can_read;
        self.chunk.ready.next = self.pending.m.valid.val() && stretch.memory && can_read;
        if self.dma.ready.val() {
            self.reading.d.next = false;
        }
        if take_chunk && !refused {
            self.reading.d.next = true;
            self.read.d.next = DmaRead {
                iova: chunk.iova,
                len: chunk.len,
                tag: stretch.slot,
                dest: stretch.dest + chunk.offset.cast::<20>(),
            };
        }
        self.dma.valid.next = self.reading.q.val();
        self.dma.data.next = self.read.q.val();

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

        // Poll the oldest frame, once it is closed, until its bytes are there.
        let polled = (self.polled.q.val() & mask).cast::<24>();
        let can_hand = !self.ready.q.val() || self.frame.ready.val();
        let idle = !self.polling[0].q.val() && !self.polling[1].q.val();
        let poll = self.polled.q.val() != self.closed.q.val() && idle && can_hand;
        self.polling[0].d.next = poll;
        self.polling[1].d.next = self.polling[0].q.val();
        self.clash[0].d.next = counting && tally.slot.cast::<24>() == polled;
        self.clash[1].d.next = self.clash[0].q.val();
        self.arrived.re2.next = poll;
        self.arrived.raddr2.next = polled;
        self.base.re.next = poll;
        self.base.raddr.next = polled;
        self.sums.re.next = poll;
        self.sums.raddr.next = polled;
        self.descriptors.re.next = poll;
        self.descriptors.raddr.next = polled;
        let (now, base, sum) = (self.arrived.rdata2.val(), self.base.rdata.val(), self.sums.rdata.val());
        let complete = now.bytes - base.bytes == sum.bytes && !self.clash[1].q.val();
        let hand = self.polling[1].q.val() && complete && can_hand;
        self.base.we.next = hand || sweeping;
        self.base.waddr.next = if sweeping { sweep } else { polled };
        self.base.wdata.next = if sweeping { zero } else { now };
        if self.frame.ready.val() {
            self.ready.d.next = false;
        }
        if hand {
            self.polled.d.next = self.polled.q.val() + 1;
            self.ready.d.next = true;
            let mut frame = self.descriptors.rdata.val();
            frame.cause = if sum.cause.any() {
                sum.cause
            } else if now.bad != base.bad {
                bits::<8>(cause::DMA_ERROR as u64)
            } else {
                0.into()
            };
            self.out.d.next = frame;
        }
        self.frame.valid.next = self.ready.q.val();
        self.frame.data.next = self.out.q.val();
    }
}
