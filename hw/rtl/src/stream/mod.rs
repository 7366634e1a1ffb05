//! Channels between blocks, and what stands in them.

mod arbiter;
mod byte_ram;
mod fifo;
mod guard;
mod loopback;
mod slice;
mod table;
#[cfg(test)]
pub(crate) mod testing;

pub use arbiter::{Arbiter, FirstCome};
pub use byte_ram::{ByteRam, READ_LATENCY, WRITE_LATENCY, rotate_left, rotate_right};
pub use fifo::{Fifo, Passage, SMALL};
pub use guard::{BadRow, GuardedTable};
pub use loopback::Loopback;
pub use slice::Slice;
pub use table::{FreshTable, Table, Table2, narrow};

use crate::msg::TableReq;
use hdl::prelude::*;

/// A message channel, seen from its source. `valid` does not wait for `ready`, and stays with stable data until taken.
#[derive(LogicInterface, Clone, Debug, Default)]
#[join = "Sink"]
pub struct Source<T: Synth> {
    /// The message.
    pub data: Signal<Out, T>,
    /// There is one.
    pub valid: Signal<Out, Bit>,
    /// It is taken at the end of this cycle.
    pub ready: Signal<In, Bit>,
}

/// A message channel, seen from its sink.
#[derive(LogicInterface, Clone, Debug, Default)]
#[join = "Source"]
pub struct Sink<T: Synth> {
    /// The message.
    pub data: Signal<In, T>,
    /// There is one.
    pub valid: Signal<In, Bit>,
    /// It is taken at the end of this cycle.
    pub ready: Signal<Out, Bit>,
}

/// Frames as beats of W bits, seen from their source.
#[derive(LogicInterface, Clone, Debug, Default)]
#[join = "BeatSink"]
pub struct BeatSource<const W: usize> {
    /// Byte i is bits `8i+7..8i`.
    pub data: Signal<Out, Bits<W>>,
    /// Valid bytes: W/8, except on the last beat, where 1 to W/8.
    pub bytes: Signal<Out, Bits<7>>,
    /// Last beat of the frame.
    pub last: Signal<Out, Bit>,
    /// There is a beat.
    pub valid: Signal<Out, Bit>,
    /// It is taken at the end of this cycle.
    pub ready: Signal<In, Bit>,
}

/// Frames as beats of W bits, seen from their sink.
#[derive(LogicInterface, Clone, Debug, Default)]
#[join = "BeatSource"]
pub struct BeatSink<const W: usize> {
    /// Byte i is bits `8i+7..8i`.
    pub data: Signal<In, Bits<W>>,
    /// Valid bytes: W/8, except on the last beat, where 1 to W/8.
    pub bytes: Signal<In, Bits<7>>,
    /// Last beat of the frame.
    pub last: Signal<In, Bit>,
    /// There is a beat.
    pub valid: Signal<In, Bit>,
    /// It is taken at the end of this cycle.
    pub ready: Signal<Out, Bit>,
}

/// An engine's door on the table bus. A write is done when taken; a read answers once, some cycles after it was taken.
#[derive(LogicInterface, Clone, Debug, Default)]
#[join = "TableMaster"]
pub struct TablePort {
    /// The access.
    pub req: Signal<In, TableReq>,
    /// There is one.
    pub valid: Signal<In, Bit>,
    /// It is taken at the end of this cycle.
    pub ready: Signal<Out, Bit>,
    /// The row of a read.
    pub rdata: Signal<Out, Bits<512>>,
    /// `rdata` is the answer, in this cycle only.
    pub rvalid: Signal<Out, Bit>,
}

/// The table bus's side of a [`TablePort`].
#[derive(LogicInterface, Clone, Debug, Default)]
#[join = "TablePort"]
pub struct TableMaster {
    /// The access.
    pub req: Signal<Out, TableReq>,
    /// There is one.
    pub valid: Signal<Out, Bit>,
    /// It is taken at the end of this cycle.
    pub ready: Signal<In, Bit>,
    /// The row of a read.
    pub rdata: Signal<In, Bits<512>>,
    /// `rdata` is the answer, in this cycle only.
    pub rvalid: Signal<In, Bit>,
}
