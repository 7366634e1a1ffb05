//! The completer's wake-up calls to itself, which must leave in order with the packets: a WQE or frame cannot be sent, a timer is
//! over, or packets have left that nobody will acknowledge. At most one is pending.
//!
//! ```text
//! cycle   0                1      ..   n                     n+1
//!         fault or timer   wake        served                the next one
//! ```
//! A fault goes first; its report is kept for its QP, written in a cycle in which none is read. It waits for dispatch to give a call
//! its turn, and for the completer to serve it.

use super::timers::Fired;
use crate::{
    msg::{Qp, SendFault, TxLeft},
    stream::{Sink, Source, Table},
};
use hdl::prelude::*;

/// A call that was made.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Call {
    /// QP, and the timer that is over; or the PSN up to which packets have left.
    pub fired: Fired,
    /// The send side failed.
    pub fault: Bit,
    /// Packets that nobody acknowledges have left.
    pub left: Bit,
}

/// See the module.
#[derive(LogicBlock, Default)]
pub struct Calls {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    pub fault: Sink<SendFault>,
    /// A timer that is over; `take` as `timers::Timers` has it.
    pub fired: Signal<In, Fired>,
    pub fired_valid: Signal<In, Bit>,
    pub take: Signal<Out, Bit>,
    /// A packet left.
    pub left: Signal<In, TxLeft>,
    pub left_valid: Signal<In, Bit>,
    pub wake: Source<Qp>,
    /// The call, from `wake` until it is served.
    pub call: Signal<Out, Call>,
    pub served: Signal<In, Bit>,
    /// Reads what failed of a QP, on `told` two cycles later.
    pub told_re: Signal<In, Bit>,
    pub told_addr: Signal<In, Bits<24>>,
    pub told: Signal<Out, SendFault>,
    faults: Table<SendFault>,
    /// A call is to be made; made and not yet served.
    calls: Reg<Bit>,
    busy: Reg<Bit>,
    now: DFF<Call>,
    /// Packets that nobody acknowledges have left, up to this one, and no call was made. Of another QP, that the next one takes the
    /// place of, the timers tell later.
    leaves: Reg<Bit>,
    last: DFF<TxLeft>,
}

impl Calls {
    /// Calls about `qps` QPs.
    pub fn new(qps: usize) -> Self {
        Calls { faults: Table::new(qps, "block"), ..Default::default() }
    }
}

impl Logic for Calls {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, calls, busy, leaves);
        dff_setup!(self, clock, now, last);
        clock!(self, clock, faults);
        let free = !self.busy.q.val();
        let fault = self.fault.valid.val();
        let writes = fault && !self.told_re.val();
        let timer = self.fired_valid.val() && !fault;
        let left = self.leaves.q.val() && !fault && !self.fired_valid.val();
        self.fault.ready.next = free && !self.told_re.val();
        self.take.next = free && timer;
        self.faults.we.next = free && writes;
        self.faults.waddr.next = self.fault.data.val().qpn.cast::<24>();
        self.faults.wdata.next = self.fault.data.val();
        self.faults.re.next = self.told_re.val();
        self.faults.raddr.next = self.told_addr.val();
        self.told.next = self.faults.rdata.val();

        if free && left {
            self.leaves.d.next = false;
        }
        if self.left_valid.val() && !self.left.val().expects {
            self.leaves.d.next = true;
            self.last.d.next = self.left.val();
        }
        if free {
            self.now.d.next = Call { fired: self.fired.val(), fault, left: left || timer && self.fired.val().alone };
            if left {
                self.now.d.next.fired.qpn = self.last.q.val().qpn;
                self.now.d.next.fired.psn = self.last.q.val().psn;
            }
            if fault {
                self.now.d.next.fired.qpn = self.fault.data.val().qpn;
            }
        }
        self.wake.valid.next = self.calls.q.val();
        self.wake.data.next = self.now.q.val().fired.qpn;
        self.call.next = self.now.q.val();
        if self.wake.ready.val() {
            self.calls.d.next = false;
        }
        if self.served.val() {
            self.busy.d.next = false;
        }
        if free && (writes || timer || left) {
            self.busy.d.next = true;
            self.calls.d.next = true;
        }
    }
}
