//! One access port: a request in, its chunks out, in order.
//!
//! For landing and for the transmit frames, one each, inside [`super::mmu`]. Key check and translation are shared by the ports and
//! wait for nobody, so a port lets a request into them only when it has room for all the chunks that may become of it: 16 in
//! all, two of them for a request of less than 4 KiB, five for a longer one.
//!
//! ```text
//! req -> (register, while the other port asks) -> ask ........ done -> room of 16 -> chunk
//! ```
//! `req.ready` and `chunk.valid` are registers; a request that comes while nothing waits asks in the same cycle. Cannot deadlock: it waits for its client only, and the other port has its own room.

use crate::{
    msg::{AccessReq, Chunk, invalidates},
    stream::{Fifo, Sink, Source},
};
use hdl::prelude::*;

/// Chunks under way or waiting for the client.
const CHUNKS: usize = 16;
/// What a request may become: 4 KiB touch two pages at most, 16,383 bytes five.
const SHORT: u64 = 2;
const LONG: u64 = 5;

/// A chunk, with what its port wants to know.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Piece {
    /// For the client.
    pub chunk: Chunk,
    /// The request is longer than 4,095 bytes.
    pub long: Bit,
}

/// An access port.
#[derive(LogicBlock)]
pub struct Access {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// The client's requests.
    pub req: Sink<AccessReq>,
    /// Their chunks.
    pub chunk: Source<Chunk>,
    /// A request would like to be checked, and the row of the key table that it needs.
    pub wants: Signal<Out, Bit>,
    pub index: Signal<Out, Bits<24>>,
    /// It invalidates the key.
    pub kills: Signal<Out, Bit>,
    /// It is checked from now on.
    pub asks: Signal<In, Bit>,
    /// The request that has asked in the last cycle.
    pub asked: Signal<Out, AccessReq>,
    /// A request has been checked.
    pub passes: Signal<In, Bit>,
    /// Nothing is under way before the request that is being checked.
    pub leads: Signal<Out, Bit>,
    /// A chunk.
    pub done: Signal<In, Piece>,
    /// It is for this port.
    pub done_valid: Signal<In, Bit>,
    /// The last request that came, and whether it has asked.
    held: DFF<AccessReq>,
    empty: Reg<Bit>,
    /// Chunks that nobody has reserved, and whether any request may ask.
    free: Reg<Bits<5>>,
    room: Reg<Bit>,
    /// Requests between check and client, and whether there are none.
    ahead: Reg<Bits<4>>,
    first: Reg<Bit>,
    /// A request's last chunk has gone in the last cycle, and the request was long.
    gone: Reg<Bit>,
    gone_long: DFF<Bit>,
    chunks: Fifo<Piece>,
}

impl Default for Access {
    fn default() -> Self {
        Self {
            clock: Default::default(),
            rst: Default::default(),
            req: Default::default(),
            chunk: Default::default(),
            wants: Default::default(),
            index: Default::default(),
            kills: Default::default(),
            asks: Default::default(),
            asked: Default::default(),
            passes: Default::default(),
            leads: Default::default(),
            done: Default::default(),
            done_valid: Default::default(),
            held: Default::default(),
            empty: Reg::with_reset(true),
            free: Reg::with_reset(bits::<5>(CHUNKS as u64)),
            room: Reg::with_reset(true),
            ahead: Default::default(),
            first: Reg::with_reset(true),
            gone: Default::default(),
            gone_long: Default::default(),
            chunks: Fifo::new(CHUNKS),
        }
    }
}

/// What a request of this kind reserves.
#[hdl_fn]
fn weight(long: Bit) -> Bits<5> {
    if long { bits::<5>(LONG) } else { bits::<5>(SHORT) }
}

/// Room for any request: at least [`LONG`]. By bits, so that synthesis does not choose between the two numbers first.
#[hdl_fn]
fn enough(free: Bits<5>) -> Bit {
    free.get_bits::<2>(3).any() || free.get_bit(2) && free.get_bits::<2>(0).any()
}

impl Logic for Access {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, empty, free, room, ahead, first, gone);
        dff_setup!(self, clock, held, gone_long);
        clock_reset!(self, clock, rst, chunks);

        let have = !self.empty.q.val();
        let (new, held) = (self.req.data.val(), self.held.q.val());
        let offered = have || self.req.valid.val();
        let asks = self.asks.val();
        self.wants.next = offered && self.room.q.val();
        self.index.next = if have { held.key.get_bits::<24>(8) } else { new.key.get_bits::<24>(8) };
        self.kills.next = invalidates(if have { held.need } else { new.need });
        self.req.ready.next = self.empty.q.val();
        self.empty.d.next = !offered || asks;
        if self.req.valid.val() && !have {
            self.held.d.next = new;
        }
        self.asked.next = held;

        self.chunks.s.data.next = self.done.val();
        self.chunks.s.valid.next = self.done_valid.val();
        let piece = self.chunks.m.data.val();
        self.chunk.data.next = piece.chunk;
        self.chunk.valid.next = self.chunks.m.valid.val();
        self.chunks.m.ready.next = self.chunk.ready.val();

        // A request gives back what it has reserved when its last chunk has gone.
        self.gone.d.next = self.chunks.m.valid.val() && self.chunk.ready.val() && piece.chunk.last;
        self.gone_long.d.next = piece.long;
        let gone = self.gone.q.val();
        let long = if have { held.len.get_bits::<2>(12).any() } else { new.len.get_bits::<2>(12).any() };
        // `long` and `asks` come late: what follows from them is ready by then.
        let free = self.free.q.val() + if gone { weight(self.gone_long.q.val()) } else { 0.into() };
        let (after_long, after_short) = (free - weight(true), free - weight(false));
        self.free.d.next = if !asks {
            free
        } else if long {
            after_long
        } else {
            after_short
        };
        let (room_long, room_short, room) = (enough(after_long), enough(after_short), enough(free));
        self.room.d.next = if !asks {
            room
        } else if long {
            room_long
        } else {
            room_short
        };

        let ahead = self.ahead.q.val();
        if self.passes.val() && !gone {
            self.ahead.d.next = ahead + 1;
            self.first.d.next = false;
        } else if gone && !self.passes.val() {
            self.ahead.d.next = ahead - 1;
            self.first.d.next = ahead == 1;
        }
        self.leads.next = self.first.q.val();
    }
}
