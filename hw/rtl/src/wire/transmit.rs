//! The transmit side of the wire: [`Frames`], the transmit buffer and [`Egress`] as one block.
//!
//! ```text
//!   seg, inline_data --> frames --> req ... chunk --> dma ... data, beat
//!                          |  \-- head, ready --> egress --> mac
//!                          |                    |
//!                          +--- ByteRam --------+     written by byte, read by row
//!   quick ------------------------------------> egress
//! ```
//! Waits for the MAC (not for ever while a command waits), `access` and `dma_read` only: see [`frames`](super::frames) and [`egress`](super::egress).

use super::{
    egress::Egress,
    frames::{Frames, Outcome},
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
    /// New retry epochs.
    pub epoch: Sink<EpochMark>,
    /// Read port of the QP states; `view` comes two cycles after `view_re`.
    pub view_re: Signal<Out, Bit>,
    pub view_addr: Signal<Out, Qp>,
    pub view: Signal<In, QpView>,
    /// Takes QP_ADDRESS and GID rows, and QP_SEND rows for their LOAD; reads back the first two.
    pub table: TablePort,
    /// Pulses of `abi::status::counter`.
    pub count: Signal<Out, Bits<64>>,
    /// RoCE payload bytes that left, in this cycle.
    pub tx_bytes: Signal<Out, Bits<14>>,
    frames: Frames<W>,
    buffer: ByteRam<W>,
    egress: Egress<W>,
}

impl<const W: usize> Transmit<W> {
    /// For `qps` QPs, with a transmit buffer of `bytes` bytes (a power of two, at least two of the largest frames) for
    /// up to `slots` frames (a power of two).
    pub fn new(qps: usize, bytes: usize, slots: usize) -> Self {
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
            epoch: Default::default(),
            view_re: Default::default(),
            view_addr: Default::default(),
            view: Default::default(),
            table: Default::default(),
            count: Default::default(),
            tx_bytes: Default::default(),
            frames: Frames::new(bytes, slots),
            buffer: ByteRam::new(bytes, "block"),
            egress: Egress::new(qps),
        }
    }
}

impl<const W: usize> Logic for Transmit<W> {
    #[kernel]
    fn update(&mut self) {
        clock_reset!(self, clock, rst, frames, buffer, egress);
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

        self.buffer.we.next = self.frames.we.val();
        self.buffer.waddr.next = self.frames.waddr.val();
        self.buffer.wdata.next = self.frames.wdata.val();
        self.buffer.wbytes.next = self.frames.wbytes.val();
        self.buffer.re.next = self.egress.re.val();
        self.buffer.raddr.next = self.egress.raddr.val();
        self.egress.rdata.next = self.buffer.rdata.val();

        Source::<TxHead>::join(&mut self.frames.head, &mut self.egress.head);
        Source::<Outcome>::join(&mut self.frames.ready, &mut self.egress.ready);
        self.frames.free.next = self.egress.free.val();
        self.frames.free_rows.next = self.egress.free_rows.val();
        Sink::<TxHead>::link(&mut self.quick, &mut self.egress.quick);
        BeatSource::<W>::link(&mut self.mac, &mut self.egress.mac);
        self.mac_error.next = self.egress.mac_error.val();
        self.egress.hurry.next = self.hurry.val();
        Source::<TxFault>::link(&mut self.fault, &mut self.egress.fault);
        Source::<TxLeft>::link(&mut self.left, &mut self.egress.left);
        Sink::<EpochMark>::link(&mut self.epoch, &mut self.egress.epoch);
        self.view_re.next = self.egress.view_re.val();
        self.view_addr.next = self.egress.view_addr.val();
        self.egress.view.next = self.view.val();
        TablePort::link(&mut self.table, &mut self.egress.table);
        self.count.next = self.egress.count.val();
        self.tx_bytes.next = self.egress.tx_bytes.val();
    }
}

#[cfg(test)]
mod bench;
#[cfg(test)]
mod tests;
