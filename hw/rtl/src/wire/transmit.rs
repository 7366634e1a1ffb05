//! The transmit side of the wire: what it takes to send a frame, as one block.
//!
//! ```text
//!   seg, inline_data --> frames --> req ... chunk --> dma ... data, beat
//!                          |  \--------------- ready --------------+
//!                          |   \-- head --+                        v
//!   quick -----------------|--------> prepare (headers) -------> egress --> mac
//!                          |              \--- judge -------------/ |
//!                          +---------------- ByteRam --------------+     written by byte, read by row
//! ```
//! Waits for the MAC (not for ever while a command waits), `access` and `dma_read` only: see [`frames`](super::frames),
//! [`prepare`](super::prepare), [`judge`](super::judge) and [`egress`](super::egress).

use super::{
    egress::Egress,
    frames::{Frames, Outcome},
    judge::Judge,
    prepare::{Prepare, ROWS},
};
use crate::{
    msg::{AccessReq, Chunk, DmaData, DmaRead, EpochMark, Qp, QpView, TxFault, TxHead, TxLeft, TxSeg},
    stream::{BeatSource, ByteRam, Sink, Source, TablePort},
};
use hdl::prelude::*;

/// See the [module](self).
#[derive(LogicBlock)]
pub struct Transmit<const W: usize> {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// Stretches of frames, those of a frame together and in order.
    pub seg: Sink<TxSeg>,
    /// One entry per inline stretch: its first `len` bytes count, byte 0 first.
    pub inline_data: Sink<Bits<512>>,
    /// ACKs, NAKs and CNPs without payload: go before all others.
    pub quick: Sink<TxHead>,
    /// Key checks and translations.
    pub req: Source<AccessReq>,
    /// Their results, in order.
    pub chunk: Sink<Chunk>,
    /// Reads of the payload.
    pub dma: Source<DmaRead>,
    /// Returned data, in any order, always taken.
    pub data: Signal<In, DmaData>,
    /// Its bytes, right-aligned.
    pub beat: Signal<In, Bits<W>>,
    /// There is data.
    pub data_valid: Signal<In, Bit>,
    /// Frames without FCS.
    pub mac: BeatSource<W>,
    /// The frame is unfinished: the MAC spoils its FCS. Counts with `last`.
    pub mac_error: Signal<Out, Bit>,
    /// A command waits: a MAC that stands still for long does not hold it.
    pub hurry: Signal<In, Bit>,
    /// First aborted frame of a QP and epoch. Nothing waits for its sink.
    pub fault: Source<TxFault>,
    /// Requester frames that expect an answer, and raw ones. The sink must always be ready.
    pub left: Source<TxLeft>,
    /// Sequence number that the next accepted data frame gets.
    pub queued: Signal<Out, Bits<16>>,
    /// Data frames that left or were dropped: all with a sequence number below.
    pub gone: Signal<Out, Bits<16>>,
    /// From this cycle on reads have another colour: those of the one before the present are back.
    pub turns: Signal<Out, Bit>,
    /// New retry epochs of the requester, and of READ responses.
    pub epoch: Sink<EpochMark>,
    pub reply_epoch: Sink<EpochMark>,
    /// Read port of the QP states; `view` comes two cycles after `view_re`.
    pub view_re: Signal<Out, Bit>,
    pub view_addr: Signal<Out, Qp>,
    pub view: Signal<In, QpView>,
    /// Takes QP_ADDRESS and GID rows, and QP_SEND rows for their LOAD. Nobody reads them back.
    pub table: TablePort,
    /// Pulses of `abi::status::counter`.
    pub count: Signal<Out, Bits<64>>,
    /// RoCE payload bytes that left, in this cycle.
    pub tx_bytes: Signal<Out, Bits<14>>,
    frames: Frames<W>,
    prepare: Prepare<W>,
    judge: Judge<ROWS>,
    buffer: ByteRam<W>,
    egress: Egress<W>,
}

impl<const W: usize> Transmit<W> {
    /// For `qps` QPs, with a transmit buffer of `bytes` bytes (a power of two, at least two of the largest frames) for
    /// up to `slots` frames (a power of two), at a clock of `mhz`.
    pub fn new(qps: usize, bytes: usize, slots: usize, mhz: usize) -> Self {
        Transmit {
            clock: Default::default(),
            rst: Default::default(),
            seg: Default::default(),
            inline_data: Default::default(),
            quick: Default::default(),
            req: Default::default(),
            chunk: Default::default(),
            dma: Default::default(),
            data: Default::default(),
            beat: Default::default(),
            data_valid: Default::default(),
            mac: Default::default(),
            mac_error: Default::default(),
            hurry: Default::default(),
            fault: Default::default(),
            left: Default::default(),
            queued: Default::default(),
            gone: Default::default(),
            turns: Default::default(),
            epoch: Default::default(),
            reply_epoch: Default::default(),
            view_re: Default::default(),
            view_addr: Default::default(),
            view: Default::default(),
            table: Default::default(),
            count: Default::default(),
            tx_bytes: Default::default(),
            frames: Frames::new(bytes, slots, mhz),
            buffer: ByteRam::new(bytes, "block"),
            prepare: Prepare::new(qps),
            judge: Judge::new(qps),
            egress: Default::default(),
        }
    }
}

impl<const W: usize> Logic for Transmit<W> {
    #[kernel]
    fn update(&mut self) {
        clock_reset!(self, clock, rst, frames, prepare, judge, buffer, egress);
        Sink::<TxSeg>::link(&mut self.seg, &mut self.frames.seg);
        Sink::<Bits<512>>::link(&mut self.inline_data, &mut self.frames.inline_data);
        Source::<AccessReq>::link(&mut self.req, &mut self.frames.req);
        Sink::<Chunk>::link(&mut self.chunk, &mut self.frames.chunk);
        Source::<DmaRead>::link(&mut self.dma, &mut self.frames.dma);
        self.frames.data.next = self.data.val();
        self.frames.beat.next = self.beat.val();
        self.frames.data_valid.next = self.data_valid.val();
        self.queued.next = self.frames.queued.val();
        self.gone.next = self.frames.gone.val();
        self.turns.next = self.frames.turns.val();

        self.buffer.we.next = self.frames.we.val();
        self.buffer.waddr.next = self.frames.waddr.val();
        self.buffer.wdata.next = self.frames.wdata.val();
        self.buffer.wbytes.next = self.frames.wbytes.val();
        self.buffer.re.next = self.egress.re.val();
        self.buffer.raddr.next = self.egress.raddr.val();
        self.egress.rdata.next = self.buffer.rdata.val();

        Source::<TxHead>::join(&mut self.frames.head, &mut self.prepare.head);
        Sink::<TxHead>::link(&mut self.quick, &mut self.prepare.quick);
        self.prepare.judge_ready.next = self.judge.ready.val();
        self.judge.ask.next = self.prepare.ask.val();
        self.judge.claim.next = self.prepare.claim.val();
        self.judge.ring.next = self.prepare.ring.val();
        self.judge.row.next = self.prepare.claim_row.val();
        self.prepare.verdict.next = self.judge.verdict.val();
        TablePort::link(&mut self.table, &mut self.prepare.table);
        self.judge.load.next = self.prepare.load.val();
        self.judge.load_qpn.next = self.prepare.load_qpn.val();
        self.prepare.loaded.next = self.judge.loaded.val();
        Sink::<EpochMark>::link(&mut self.epoch, &mut self.judge.epoch);
        Sink::<EpochMark>::link(&mut self.reply_epoch, &mut self.judge.reply_epoch);
        self.frames.mark[0].next = self.epoch.data.val();
        self.frames.marks[0].next = self.epoch.valid.val() && self.judge.epoch.ready.val();
        self.frames.mark[1].next = self.reply_epoch.data.val();
        self.frames.marks[1].next = self.reply_epoch.valid.val() && self.judge.reply_epoch.ready.val();
        self.view_re.next = self.judge.view_re.val();
        self.view_addr.next = self.judge.view_addr.val();
        self.judge.view.next = self.view.val();

        self.egress.prepared.next = self.prepare.prepared.val();
        self.egress.prepared_quick.next = self.prepare.prepared_quick.val();
        self.prepare.row.next = self.egress.row.val();
        self.egress.next.next = self.prepare.next.val();
        self.prepare.re.next = self.egress.slice_re.val();
        self.prepare.slice_row.next = self.egress.slice_row.val();
        self.prepare.slice.next = self.egress.slice.val();
        self.egress.slice_data.next = self.prepare.slice_data.val();
        self.prepare.free.next = self.egress.free.val();
        self.prepare.free_quick.next = self.egress.free_quick.val();
        Source::<Outcome>::join(&mut self.frames.ready, &mut self.egress.ready);
        self.frames.free.next = self.egress.free.val();
        self.frames.free_rows.next = self.egress.free_rows.val();
        self.judge.first.next = self.egress.first.val();
        self.judge.first_claim.next = self.prepare.next.val().claim;
        self.judge.first_row.next = self.egress.first_row.val();
        self.judge.waits.next = self.egress.waits.val();
        self.judge.begun.next = self.egress.begun.val();
        self.egress.sure.next = self.judge.sure.val();
        self.egress.fresh.next = self.judge.fresh.val();
        self.egress.verdict.next = self.judge.again.val();
        self.judge.report.next = self.egress.report.val();
        self.judge.failed.next = self.egress.failed.val();
        self.judge.held.next = self.egress.held.val();
        Source::<TxFault>::link(&mut self.fault, &mut self.egress.fault);

        BeatSource::<W>::link(&mut self.mac, &mut self.egress.mac);
        self.mac_error.next = self.egress.mac_error.val();
        self.egress.hurry.next = self.hurry.val();
        Source::<TxLeft>::link(&mut self.left, &mut self.egress.left);
        self.count.next = self.egress.count.val();
        self.tx_bytes.next = self.egress.tx_bytes.val();
    }
}

#[cfg(test)]
mod bench;
#[cfg(test)]
mod tests;
