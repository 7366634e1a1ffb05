//! One access port: a request in, its chunks out, in order.
//!
//! For landing and for the transmit frames, one each, inside [`super::mmu`]. The port asks the key table, cuts the region it
//! gets at page ends and has every piece translated. Key table and translation have fixed latencies and cannot wait, so
//! the port asks only for what it has room for: up to 8 regions and 16 chunks.
//!
//! ```text
//! req -> (Keys: 5 cycles) -> regions -> cut -> (Translate: 3 cycles) -> chunks
//! ```
//! Both FIFOs pass a message on at once while they are empty. A contiguous region with nothing before it is a chunk as it is:
//! it goes past cut and translation, 4 cycles after the request. Cannot deadlock: regions wait for chunks, chunks for the client, requests for the room of both; the other port has
//! its own room.

use super::{keys::Region, translate::Step};
use crate::{
    msg::{AccessReq, Chunk},
    stream::{Fifo, Sink, Source},
};
use hdl::prelude::*;

/// Requests between intake and the last piece.
const REGIONS: usize = 8;
/// Chunks being translated or waiting for the client.
const CHUNKS: usize = 16;

/// How far the present region has been cut.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Cut {
    frame: Bits<24>,
    iova: Bits<64>,
    left: Bits<14>,
    offset: Bits<14>,
    room: Bits<15>,
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
    /// To the key table.
    pub ask: Source<AccessReq>,
    /// From the key table.
    pub region: Signal<In, Region>,
    /// It is for this port.
    pub region_valid: Signal<In, Bit>,
    /// The region that comes in the next cycle, which is contiguous; it is for this port; taken now, it will not come.
    pub early: Signal<In, Region>,
    pub early_valid: Signal<In, Bit>,
    pub early_taken: Signal<Out, Bit>,
    /// To the translation; `port` is left to the MMU.
    pub step: Source<Step>,
    /// From the translation.
    pub done: Signal<In, Chunk>,
    /// It is for this port.
    pub done_valid: Signal<In, Bit>,
    regions: Fifo<Region>,
    chunks: Fifo<Chunk>,
    asked: Reg<Bits<4>>,
    booked: Reg<Bits<5>>,
    begun: Reg<Bit>,
    cut: DFF<Cut>,
}

impl Default for Access {
    fn default() -> Self {
        Self {
            clock: Default::default(),
            rst: Default::default(),
            req: Default::default(),
            chunk: Default::default(),
            ask: Default::default(),
            region: Default::default(),
            region_valid: Default::default(),
            early: Default::default(),
            early_valid: Default::default(),
            early_taken: Default::default(),
            step: Default::default(),
            done: Default::default(),
            done_valid: Default::default(),
            regions: Fifo::new(REGIONS),
            chunks: Fifo::new(CHUNKS),
            asked: Default::default(),
            booked: Default::default(),
            begun: Default::default(),
            cut: Default::default(),
        }
    }
}

impl Logic for Access {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, asked, booked, begun);
        dff_setup!(self, clock, cut);
        clock_reset!(self, clock, rst, regions, chunks);

        // A request asks the table once there is room for its region.
        let may_ask = self.asked.q.val() != bits::<4>(REGIONS as u64);
        self.ask.data.next = self.req.data.val();
        self.ask.valid.next = self.req.valid.val() && may_ask;
        self.req.ready.next = self.ask.ready.val() && may_ask;
        let asks = self.req.valid.val() && self.ask.ready.val() && may_ask;

        // Cut the oldest region, if none waits the one that comes now: a piece ends with the region or its page.
        let waits = self.regions.m.valid.val();
        let region = if waits { self.regions.m.data.val() } else { self.region.val() };
        let begin =
            Cut { frame: region.frame, iova: region.iova, left: region.len, offset: 0.into(), room: region.room };
        let cut = if self.begun.q.val() { self.cut.q.val() } else { begin };
        let fault = region.cause != 0;
        let last = fault || cut.left.cast::<15>() <= cut.room;
        let len = if last { cut.left } else { cut.room.get_bits::<14>(0) };
        let early = self.early.val();
        let past = self.early_valid.val() && !waits && !self.region_valid.val() && !self.booked.q.val().any();
        self.early_taken.next = past;
        let may_step = self.booked.q.val() != bits::<5>(CHUNKS as u64);
        let valid = (waits || self.region_valid.val()) && may_step;
        let steps = valid && self.step.ready.val();
        self.step.valid.next = valid;
        self.step.data.next = Step {
            port: false,
            direct: region.contiguous || fault,
            frame: cut.frame,
            shift: region.shift,
            chunk: Chunk { iova: cut.iova, len: len, offset: cut.offset, last: last, cause: region.cause },
        };
        self.regions.m.ready.next = steps && last;
        self.regions.s.data.next = self.region.val();
        self.regions.s.valid.next = self.region_valid.val() && (waits || !(steps && last));
        if steps {
            self.begun.d.next = !last;
            self.cut.d.next = Cut {
                frame: cut.frame + 1,
                iova: 0.into(), // a page begins: the bits below its size are 0
                left: cut.left - len,
                offset: cut.offset + len,
                room: if region.shift == 12 { bits::<15>(1 << 12) } else { bits::<15>(1 << 14) },
            };
        }

        // To the client, past the FIFO if that is empty.
        let queued = self.chunks.m.valid.val();
        let offers = queued || self.done_valid.val() || past;
        let mut chunk = self.done.val();
        if past {
            chunk = Chunk { iova: early.iova, len: early.len, offset: 0.into(), last: true, cause: early.cause };
        }
        self.chunk.data.next = if queued { self.chunks.m.data.val() } else { chunk };
        self.chunk.valid.next = offers;
        self.chunks.s.data.next = chunk;
        self.chunks.s.valid.next = (self.done_valid.val() || past) && (queued || !self.chunk.ready.val());
        self.chunks.m.ready.next = self.chunk.ready.val();
        let gone = offers && self.chunk.ready.val();
        let leaves = steps && last || past;
        if asks && !leaves {
            self.asked.d.next = self.asked.q.val() + 1;
        } else if leaves && !asks {
            self.asked.d.next = self.asked.q.val() - 1;
        }
        let books = steps || past;
        if books && !gone {
            self.booked.d.next = self.booked.q.val() + 1;
        } else if gone && !books {
            self.booked.d.next = self.booked.q.val() - 1;
        }
    }
}
