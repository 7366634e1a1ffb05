//! DMA reads: turns the requests of four clients into AXI bursts and hands the bytes back, right-aligned.
//!
//! For the transmit frames, the work queues and the mailbox. A request is cut at 512-byte boundaries (so no burst
//! crosses 4 KiB), each piece takes an AXI ID from a list of free ones and leaves its destination in a row of that
//! ID. A beat of data reads that row and how many beats of the piece came before, so pieces may come back in any
//! order and interleaved beat by beat. A piece's first beat may begin in the middle of the bus: it is shifted down to
//! lane 0; later beats begin at lane 0 anyway.
//!
//! ```text
//! request   taken | cut | AR valid (one piece a cycle, the next request behind the last one)
//! R beat    taken, row, progress | place, bytes, shift 0..7 | shift 8 x 0..7 = data, beat, data_valid
//! ```
//! Requests of different clients are served as they come; a client gives one every second cycle.
//!
//! *Drain.* Reads come back in any order, so a count of them does not tell which are back. From a `mark` on new requests are of
//! another colour, once those that waited in front of the ports have been taken; `passed` when none of the old colour is left.
//!
//! Cannot deadlock: `r_ready` is always 1, the clients take every beat (they reserved the room), and a request waits
//! only for a free ID, which a beat from the bus returns.

use super::axi::AxiReadMaster;
use crate::{
    msg::{BufAddr, DmaData, DmaRead},
    stream::{Fifo, FirstCome, Sink},
};
use abi::status::counter::DMA_ERROR;
use hdl::prelude::*;

/// Clients of [`DmaReader`], by number.
pub mod client {
    /// Payload of frames to be sent.
    pub const FRAMES: usize = 0;
    /// Send queues.
    pub const SEND_QUEUE: usize = 1;
    /// Receive queues.
    pub const RECV_QUEUE: usize = 2;
    /// Mailbox and table loader; and atomics, which go first, with [`ATOMIC`](super::ATOMIC) in their tag.
    pub const CONTROL: usize = 3;
}

/// Bit of the tags of atomics, which share a client: it rarely asks.
pub const ATOMIC: usize = 15;

/// Bytes at whose multiples requests are cut: the read request size that every PCIe host grants (PCIe 7.5.3.4).
pub const PIECE: usize = 512;

/// What is kept of a piece in flight, in the row of its AXI ID.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Piece {
    client: Bits<2>,
    color: Bit,
    tag: Bits<16>,
    /// Where lane 0 of the first beat belongs.
    dest: BufAddr,
    /// Bytes before the piece in its first beat, and these with its own.
    offset: Bits<6>,
    end: Bits<10>,
}

/// What a request says that does not change while it is cut.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Asked {
    client: Bits<2>,
    tag: Bits<16>,
    color: Bit,
}

/// Bytes of a request that were not asked for.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Rest {
    iova: Bits<64>,
    len: Bits<14>,
    dest: BufAddr,
    /// They are one piece.
    whole: Bit,
}

/// An AR message.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Address {
    iova: Bits<64>,
    len: Bits<8>,
    id: Bits<8>,
}

/// How far a piece in flight has come.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Progress {
    begun: Bit,
    beats: Bits<6>,
    error: Bit,
}

/// A beat on its way to lane 0.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Place {
    client: Bits<2>,
    shift: Bits<6>,
    data: DmaData,
}

/// DMA reads over an AXI bus of `W` bits.
#[derive(LogicBlock)]
pub struct DmaReader<const W: usize> {
    pub clock: Signal<In, Clock>,
    /// Only while `idle`: the bus would answer into nothing.
    pub rst: Signal<In, Bit>,
    /// Requests, by client.
    pub req: Arr<Sink<DmaRead>, 4>,
    /// The bus.
    pub axi: AxiReadMaster<W>,
    /// What has come: for the client whose `data_valid` is up.
    pub data: Signal<Out, DmaData>,
    /// Its bytes, from lane 0 on.
    pub beat: Signal<Out, Bits<W>>,
    /// One bit per client, at most one of them up; the client takes it in this cycle.
    pub data_valid: Arr<Signal<Out, Bit>, 4>,
    /// Starts no more bursts.
    pub quiesce: Signal<In, Bit>,
    /// Nothing is in flight on the bus or behind it.
    pub idle: Signal<Out, Bit>,
    /// A drain begins, in this cycle; not before the last one has passed.
    pub mark: Signal<In, Bit>,
    /// All that was asked for up to the last mark is back.
    pub passed: Signal<Out, Bit>,
    /// `DMA_ERROR`, once for a piece.
    pub count: Signal<Out, Bits<64>>,

    turns: FirstCome<4>,
    asked: Arr<DFF<Asked>, 4>,
    /// Requests as they came.
    held: Arr<DFF<Rest>, 4>,
    /// The rest of the one that is being cut: it makes room for its client's next one with its first piece.
    begun: Reg<Bit>,
    rest_asked: DFF<Asked>,
    rest: DFF<Rest>,
    ar_valid: Reg<Bit>,
    ar: DFF<Address>,

    free: Fifo<Bits<8>>,
    /// IDs put into the list since reset, and whether some are missing.
    filled: Reg<Bits<8>>,
    filling: Reg<Bit>,
    /// Bursts may start.
    open: Reg<Bit>,
    /// In flight, by colour.
    colors: Arr<Reg<Bits<8>>, 2>,
    color: Reg<Bit>,
    /// Requests that are held and of the old colour.
    late: Reg<Bits<4>>,
    marking: Reg<Bit>,
    /// Clients whose request waited at the mark.
    waiting: Reg<Bits<4>>,
    /// By ID, both read in the cycle of the beat.
    pieces: Ram<Piece, 7>,
    progress: Ram<Progress, 7>,

    valid: [Reg<Bit>; 2],
    raw: [DFF<Bits<W>>; 2],
    id: DFF<Bits<8>>,
    bad: DFF<Bit>,
    tail: DFF<Bit>,
    piece: DFF<Piece>,
    read: DFF<Progress>,
    /// The beat before is of the same piece: its progress was not in the RAM yet.
    same: DFF<Bit>,
    after: DFF<Progress>,
    place: DFF<Place>,
    out_valid: Arr<Reg<Bit>, 4>,
    out: DFF<DmaData>,
    out_beat: DFF<Bits<W>>,
    failed: Reg<Bit>,
    _ids: Hidden<usize>,
}

impl<const W: usize> DmaReader<W> {
    /// A reader with at most `ids` (up to 128) bursts in flight.
    pub fn new(ids: usize) -> Self {
        assert!((1..=128).contains(&ids) && W.is_power_of_two() && (64..=512).contains(&W));
        Self {
            clock: Default::default(),
            rst: Default::default(),
            req: Default::default(),
            axi: Default::default(),
            data: Default::default(),
            beat: Default::default(),
            data_valid: Default::default(),
            quiesce: Default::default(),
            idle: Default::default(),
            mark: Default::default(),
            passed: Default::default(),
            count: Default::default(),
            turns: Default::default(),
            asked: Default::default(),
            held: Default::default(),
            begun: Default::default(),
            rest_asked: Default::default(),
            rest: Default::default(),
            ar_valid: Default::default(),
            ar: Default::default(),
            free: Fifo::new(ids),
            filled: Default::default(),
            filling: Reg::with_reset(true),
            open: Default::default(),
            colors: Default::default(),
            color: Default::default(),
            late: Default::default(),
            marking: Default::default(),
            waiting: Default::default(),
            pieces: Ram::default().rows(ids.next_power_of_two().max(2)).style("distributed").at_once(),
            progress: Ram::default().rows(ids.next_power_of_two().max(2)).style("distributed").at_once(),
            valid: Default::default(),
            raw: Default::default(),
            id: Default::default(),
            bad: Default::default(),
            tail: Default::default(),
            piece: Default::default(),
            read: Default::default(),
            same: Default::default(),
            after: Default::default(),
            place: Default::default(),
            out_valid: Default::default(),
            out: Default::default(),
            out_beat: Default::default(),
            failed: Default::default(),
            _ids: Hidden(ids),
        }
    }
}

impl<const W: usize> Logic for DmaReader<W> {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, begun, ar_valid, filled, filling, open, valid, out_valid, failed);
        regs!(self, clock, rst, colors, color, late, marking, waiting);
        dff_setup!(
            self, clock, asked, held, rest_asked, rest, ar, raw, id, bad, tail, piece, read, same, after, place, out,
            out_beat
        );
        clock_reset!(self, clock, rst, turns, free);
        clock!(self, clock, pieces, progress);
        let filling = self.filling.q.val();
        let (ready, turn) = (self.turns.ready.val(), self.turns.turn.val());

        // Requests come into the register of their client.
        let color = self.color.q.val();
        let mut offers: Bits<4> = 0.into();
        let mut waiting = self.waiting.q.val();
        let mut asked = self.asked[0].q.val();
        let mut rest = self.held[0].q.val();
        for i in 0..4 {
            let valid = self.req[i].valid.val();
            let new = self.req[i].data.val();
            // Place of its last byte, seen from where its first piece begins.
            let last_at = new.len.cast::<15>() + new.iova.get_bits::<9>(0).cast::<15>() - 1;
            offers = offers.replace_bit(i, valid);
            self.req[i].ready.next = ready.get_bit(i);
            let taken = valid && ready.get_bit(i);
            if taken {
                self.asked[i].d.next = Asked { client: i.to_bits(), tag: new.tag, color: color };
                self.held[i].d.next =
                    Rest { iova: new.iova, len: new.len, dest: new.dest, whole: !last_at.get_bits::<6>(9).any() };
            }
            if self.mark.val() {
                waiting = waiting.replace_bit(i, valid && !taken);
            } else if taken || !valid {
                // What is no longer asked for, as its epoch has ended, is waited for no longer.
                waiting = waiting.replace_bit(i, false);
            }
            if i > 0 {
                if turn.get_bit(i) {
                    asked = self.asked[i].q.val();
                    rest = self.held[i].q.val();
                }
            }
        }
        self.turns.offers.next = offers;
        self.turns.more.next = 0.into();

        // Cut what is left of one, else the one whose turn it is; a piece goes to the bus with a free ID.
        let begun = self.begun.q.val();
        if begun {
            asked = self.rest_asked.q.val();
            rest = self.rest.q.val();
        }
        let offset = rest.iova.get_bits::<6>(0) & bits::<6>((W / 8 - 1) as u64);
        let upto: Bits<9> = !rest.iova.get_bits::<9>(0); // bytes behind the first one up to the next cut
        let room: Bits<14> = upto.cast::<14>() + 1;
        // What is cut ends 512 bytes behind where its first piece began: no sum is needed for it.
        let lane: u64 = elab!((W / 8).trailing_zeros() as u64);
        let sum: Bits<10> = offset.cast::<10>() + rest.len.get_bits::<10>(0);
        let sum_beats: Bits<10> = (offset.cast::<10>() + rest.len.get_bits::<10>(0) - 1) >> lane;
        let cut_beats: Bits<10> = upto.cast::<10>() >> lane;
        let end = if rest.whole { sum } else { (cut_beats + 1) << lane };
        let beats = if rest.whole { sum_beats } else { cut_beats };
        self.open.d.next = !filling && !self.quiesce.val();
        let ar_free = !self.ar_valid.q.val() || self.axi.ar_ready.val();
        let may = self.open.q.val() && self.free.m.valid.val() && ar_free;
        let go = may && (begun || self.turns.valid.val());
        let leaves = may && !begun && self.turns.valid.val();
        let id = self.free.m.data.val();
        self.turns.leaves.next = may && !begun;
        self.free.m.ready.next = go;
        self.pieces.we.next = go;
        self.pieces.waddr.next = id.get_bits::<7>(0);
        self.pieces.wdata.next = Piece {
            client: asked.client,
            color: asked.color,
            tag: asked.tag,
            dest: rest.dest - offset.cast::<20>(),
            offset: offset,
            end: end,
        };
        if self.axi.ar_ready.val() {
            self.ar_valid.d.next = false;
        }
        if go {
            self.ar_valid.d.next = true;
            self.ar.d.next = Address { iova: rest.iova, len: beats.cast::<8>(), id: id };
            let left = rest.len - room;
            self.begun.d.next = !rest.whole;
            self.rest_asked.d.next = asked;
            self.rest.d.next = Rest {
                iova: (rest.iova & !bits::<64>(PIECE as u64 - 1)) + bits::<64>(PIECE as u64),
                len: left,
                dest: rest.dest + room.cast::<20>(),
                whole: left <= bits::<14>(PIECE as u64),
            };
        }
        let address = self.ar.q.val();
        self.axi.ar_valid.next = self.ar_valid.q.val();
        self.axi.ar_addr.next = address.iova;
        self.axi.ar_len.next = address.len;
        self.axi.ar_id.next = address.id;

        // The colour changes when what waited at the mark has been taken; what is held then is late.
        let mut late = self.late.q.val();
        if leaves {
            late &= !turn;
        }
        self.waiting.d.next = waiting;
        if self.mark.val() {
            self.marking.d.next = true;
        } else if self.marking.q.val() && !self.waiting.q.val().any() {
            self.marking.d.next = false;
            self.color.d.next = !color;
            let mut held = (!ready) | offers;
            if leaves {
                held &= !turn;
            }
            late = held;
        }
        self.late.d.next = late;

        // A beat: read the rows of its ID.
        self.axi.r_ready.next = true;
        let came = self.axi.r_valid.val();
        let rid = self.axi.r_id.val();
        let here = self.valid[0].q.val();
        self.pieces.re.next = true;
        self.pieces.raddr.next = rid.get_bits::<7>(0);
        self.progress.re.next = true;
        self.progress.raddr.next = rid.get_bits::<7>(0);
        self.valid[0].d.next = came;
        if came {
            self.raw[0].d.next = self.axi.r_data.val();
            self.id.d.next = rid;
            self.bad.d.next = self.axi.r_resp.val() != 0;
            self.tail.d.next = self.axi.r_last.val();
            self.piece.d.next = self.pieces.rdata.val();
            self.read.d.next = self.progress.rdata.val();
            self.same.d.next = here && self.id.q.val() == rid;
        }

        // Where it goes.
        let rid = self.id.q.val();
        let piece = self.piece.q.val();
        let progress = if self.same.q.val() { self.after.q.val() } else { self.read.q.val() };
        let last = self.tail.q.val();
        let error = progress.error || self.bad.q.val();
        let base = progress.beats.cast::<20>() << elab!((W / 8).trailing_zeros() as u64);
        let end_beat: Bits<10> = piece.end >> elab!((W / 8).trailing_zeros() as u64);
        let full = end_beat.get_bits::<7>(0) != progress.beats.cast::<7>();
        let odd = piece.end.get_bits::<7>(0) & bits::<7>((W / 8 - 1) as u64);
        let upto: Bits<7> = if full { bits::<7>((W / 8) as u64) } else { odd };
        let skip: Bits<6> = if progress.begun { 0.into() } else { piece.offset };
        self.valid[1].d.next = here;
        if here {
            self.raw[1].d.next = self.raw[0].q.val() >> cat!(6; skip.get_bits::<3>(0), bits::<3>(0));
            self.place.d.next.client = piece.client;
            self.place.d.next.shift = skip;
            self.place.d.next.data = DmaData {
                tag: piece.tag,
                dest: piece.dest + (base | skip.cast::<20>()),
                bytes: upto - skip.cast::<7>(),
                error: self.bad.q.val(),
            };
        }
        let after =
            Progress { begun: !last, beats: if last { 0.into() } else { progress.beats + 1 }, error: !last && error };
        if here {
            self.after.d.next = after;
        }
        self.failed.d.next = here && last && error;
        let none = Progress { begun: false, beats: 0.into(), error: false };
        self.progress.we.next = here || filling;
        self.progress.waddr.next = if filling { self.filled.q.val().get_bits::<7>(0) } else { rid.get_bits::<7>(0) };
        self.progress.wdata.next = if filling { none } else { after };

        // The ID is free again with its last beat; after reset all are.
        self.free.s.valid.next = filling || (here && last);
        self.free.s.data.next = if filling { self.filled.q.val() } else { rid };
        if filling {
            self.filled.d.next = self.filled.q.val() + 1;
            self.filling.d.next = self.filled.q.val() != bits::<8>(self._ids.0 as u64 - 1);
        }

        for i in 0..2 {
            let begins = go && asked.color == (i == 1);
            let ends = here && last && piece.color == (i == 1);
            if begins && !ends {
                self.colors[i].d.next = self.colors[i].q.val() + 1;
            } else if ends && !begins {
                self.colors[i].d.next = self.colors[i].q.val() - 1;
            }
        }
        let old = if color { self.colors[0].q.val() } else { self.colors[1].q.val() };
        let rest_late = begun && self.rest_asked.q.val().color != color;
        self.passed.next = !self.marking.q.val() && !old.any() && !self.late.q.val().any() && !rest_late;

        // Down to lane 0: the second of two steps.
        let place = self.place.q.val();
        if self.valid[1].q.val() {
            self.out.d.next = place.data;
            self.out_beat.d.next = self.raw[1].q.val() >> cat!(9; place.shift.get_bits::<3>(3), bits::<6>(0));
        }
        for i in 0..4 {
            self.out_valid[i].d.next = self.valid[1].q.val() && place.client == i.to_bits::<2>();
            self.data_valid[i].next = self.out_valid[i].q.val();
        }
        self.data.next = self.out.q.val();
        self.beat.next = self.out_beat.q.val();

        let behind = self.valid[0].q.val() || self.valid[1].q.val();
        let flying = self.colors[0].q.val().any() || self.colors[1].q.val().any();
        self.idle.next = !flying && !behind;
        self.count.next = if self.failed.q.val() { bits::<64>(1 << DMA_ERROR) } else { 0.into() };
    }
}

#[cfg(test)]
#[path = "dma_read_tests.rs"]
mod tests;
