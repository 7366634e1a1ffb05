//! The records of messages in flight, 128 per QP: the requester writes them, the completer reads the oldest whenever it likes, and
//! the requester reads one in a cycle in which the completer does not, to see whether a WQE is still what it was.
//!
//! ```text
//! cycle       0      1      2      3      4
//! re          A
//! again_re    B      B
//! again_ready 0      1
//! rdata                     A      B
//! ```
//! The completer reads in one cycle of three at most, so the requester's turn comes.

use crate::{msg::Record, stream::Table};
use hdl::prelude::*;

/// See the module. Addresses are QP x 128 + record.
#[derive(LogicBlock)]
pub struct Records {
    pub clock: Signal<In, Clock>,
    pub we: Signal<In, Bit>,
    pub waddr: Signal<In, Bits<24>>,
    pub wdata: Signal<In, Record>,
    /// Reads for the completer: on `rdata` two cycles later.
    pub re: Signal<In, Bit>,
    pub raddr: Signal<In, Bits<24>>,
    /// Reads for the requester: two cycles after `again_ready`, for one cycle.
    pub again_re: Signal<In, Bit>,
    pub again_addr: Signal<In, Bits<24>>,
    pub again_ready: Signal<Out, Bit>,
    pub rdata: Signal<Out, Record>,
    table: Table<Record>,
}

impl Records {
    /// Records of `qps` QPs.
    pub fn new(qps: usize) -> Self {
        Records {
            clock: Default::default(),
            we: Default::default(),
            waddr: Default::default(),
            wdata: Default::default(),
            re: Default::default(),
            raddr: Default::default(),
            again_re: Default::default(),
            again_addr: Default::default(),
            again_ready: Default::default(),
            rdata: Default::default(),
            table: Table::new(qps * 128, "block"),
        }
    }
}

impl Logic for Records {
    #[kernel]
    fn update(&mut self) {
        clock!(self, clock, table);
        self.table.we.next = self.we.val();
        self.table.waddr.next = self.waddr.val();
        self.table.wdata.next = self.wdata.val();
        self.table.re.next = self.re.val() || self.again_re.val();
        self.table.raddr.next = if self.re.val() { self.raddr.val() } else { self.again_addr.val() };
        self.again_ready.next = !self.re.val();
        self.rdata.next = self.table.rdata.val();
    }
}
