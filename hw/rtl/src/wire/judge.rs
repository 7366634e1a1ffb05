//! Says of frames whether they still go, by what their QP's rows say: generation, epochs, and faults before them. For
//! [`prepare`](super::prepare), which asks for each frame that it picks, and for [`egress`](super::egress), whose first frame is
//! asked about again.
//!
//! ```text
//! cycle      0    1    2    3
//! ask        A                   of a frame that was picked; else of the first one
//! rows, view           A
//! verdict                   A    stays until the next one
//! ```
//! What may void a frame between its verdict and its turn (an epoch, a fault before it) makes it *doubtful*, with all others
//! that are prepared: then `sure` falls until the rows of the first one are read again. While it waits for its bytes they are read
//! again and again, for its QP may have another generation by then.
//!
//! Cannot deadlock: nothing here waits but a row access for the cycle of a fault's report.

use crate::{
    msg::{EpochMark, Gen, Qp, QpView},
    stream::{Sink, Table, narrow},
};
use hdl::prelude::*;

/// What a frame must be judged by.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Claim {
    pub qpn: Qp,
    pub generation: Gen,
    pub request: Bit,
    pub epoch: Bits<8>,
    /// An ACK: epochs do not hold it back. What it answers came behind the READs before it, so a fault of one of them does,
    pub answers: Bit,
    /// but not the NAK of that fault.
    pub of_fault: Bit,
}

/// What faults before it hold back of a QP's generation.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Held {
    /// Requester frames of `epoch`.
    pub request: Bit,
    pub epoch: Bits<8>,
    /// READ responses, and ACKs.
    pub response: Bit,
}

/// A row of the held back.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Halt {
    generation: Gen,
    held: Held,
}

/// What its QP's rows say of a frame.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Verdict {
    /// Of an old generation or epoch, or behind an aborted one.
    pub off: Bit,
    /// What is held back of its generation, without this frame.
    pub held: Held,
}

/// See the [module](self). `N` frames of the ring may be prepared.
#[derive(LogicBlock)]
pub struct Judge<const N: usize> {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// All rows are there.
    pub ready: Signal<Out, Bit>,
    /// A frame that was picked, and its row if it is one of the ring.
    pub ask: Signal<In, Bit>,
    pub claim: Signal<In, Claim>,
    pub ring: Signal<In, Bit>,
    pub row: Signal<In, Bits<3>>,
    /// Of it, three cycles later.
    pub verdict: Signal<Out, Verdict>,
    /// The first frame of the ring, if it is to be seen, its row, whether it waits for its bytes, and that it begins.
    pub first: Signal<In, Bit>,
    pub first_claim: Signal<In, Claim>,
    pub first_row: Signal<In, Bits<3>>,
    pub waits: Signal<In, Bit>,
    pub begun: Signal<In, Bit>,
    /// Its verdict counts: `again` if `fresh`, else that of when it was picked.
    pub sure: Signal<Out, Bit>,
    pub fresh: Signal<Out, Bit>,
    pub again: Signal<Out, Verdict>,
    /// This frame failed: it holds back those behind it.
    pub report: Signal<In, Bit>,
    pub failed: Signal<In, Claim>,
    pub held: Signal<In, Held>,
    /// New epochs of requests, and of READ responses.
    pub epoch: Sink<EpochMark>,
    pub reply_epoch: Sink<EpochMark>,
    /// The send queue of this QP is loaded: no faults any more. Held until `loaded`.
    pub load: Signal<In, Bit>,
    pub load_qpn: Signal<In, Qp>,
    pub loaded: Signal<Out, Bit>,
    /// Read port of the QP states; `view` comes two cycles after `view_re`.
    pub view_re: Signal<Out, Bit>,
    pub view_addr: Signal<Out, Qp>,
    pub view: Signal<In, QpView>,
    sweep: Reg<Bits<16>>,
    sweeping: Reg<Bit>,
    epochs: Table<Bits<8>>,
    /// Those of READ responses.
    responses: Table<Bits<8>>,
    halts: Table<Halt>,
    /// Questions on their way, and which of them are about the first frame.
    asked: [Reg<Bit>; 2],
    rereads: [Reg<Bit>; 2],
    claims: [DFF<Claim>; 2],
    given: DFF<Verdict>,
    renewed: DFF<Verdict>,
    doubtful: Reg<Bits<N>>,
    certain: Reg<Bit>,
    reread: Reg<Bit>,
    _qps: Hidden<usize>,
}

impl<const N: usize> Judge<N> {
    /// For `qps` QPs.
    pub fn new(qps: usize) -> Self {
        Judge {
            clock: Default::default(),
            rst: Default::default(),
            ready: Default::default(),
            ask: Default::default(),
            claim: Default::default(),
            ring: Default::default(),
            row: Default::default(),
            verdict: Default::default(),
            first: Default::default(),
            first_claim: Default::default(),
            first_row: Default::default(),
            waits: Default::default(),
            begun: Default::default(),
            sure: Default::default(),
            fresh: Default::default(),
            again: Default::default(),
            report: Default::default(),
            failed: Default::default(),
            held: Default::default(),
            epoch: Default::default(),
            reply_epoch: Default::default(),
            load: Default::default(),
            load_qpn: Default::default(),
            loaded: Default::default(),
            view_re: Default::default(),
            view_addr: Default::default(),
            view: Default::default(),
            sweep: Default::default(),
            sweeping: Reg::with_reset(true),
            epochs: Table::new(qps, narrow(qps)),
            responses: Table::new(qps, narrow(qps)),
            halts: Table::new(qps, narrow(qps)),
            asked: Default::default(),
            rereads: Default::default(),
            claims: Default::default(),
            given: Default::default(),
            renewed: Default::default(),
            doubtful: Default::default(),
            certain: Default::default(),
            reread: Default::default(),
            _qps: Hidden(qps),
        }
    }
}

impl<const N: usize> Logic for Judge<N> {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, sweep, sweeping, asked, rereads, doubtful, certain, reread);
        dff_setup!(self, clock, claims, given, renewed);
        clock!(self, clock, epochs, responses, halts);
        let sweeping = self.sweeping.q.val();
        let sweep = self.sweep.q.val().cast::<24>();
        if sweeping {
            self.sweep.d.next = self.sweep.q.val() + 1;
            self.sweeping.d.next = self.sweep.q.val() != elab!(bits::<16>(self._qps.0 as u64 - 1));
        }
        self.ready.next = !sweeping;

        // What changes, and casts doubt on all that is prepared.
        let load = self.load.val();
        let report = self.report.val();
        let failed = self.failed.val();
        let mark = self.epoch.valid.val() && !sweeping && !load;
        let reply_mark = self.reply_epoch.valid.val() && !sweeping && !load;
        self.epoch.ready.next = !sweeping && !load;
        self.reply_epoch.ready.next = !sweeping && !load;
        let changes = mark || reply_mark || report;
        let begun = self.begun.val();
        let ask = self.ask.val();

        // Ask: of a frame that was picked; else of the first one, while it is doubtful or waits for its bytes.
        let under_way = self.rereads[0].q.val() || self.rereads[1].q.val();
        let wants = self.first.val() && (self.waits.val() || !self.certain.q.val());
        let reread = wants && !under_way && !ask;
        let claim = if ask { self.claim.val() } else { self.first_claim.val() };
        // Read whenever there is a first one: only what was asked for is looked at.
        let reads = ask || self.first.val();
        self.view_re.next = reads;
        self.view_addr.next = claim.qpn;
        self.epochs.re.next = reads;
        self.epochs.raddr.next = claim.qpn.cast::<24>();
        self.responses.re.next = reads;
        self.responses.raddr.next = claim.qpn.cast::<24>();
        self.halts.re.next = reads;
        self.halts.raddr.next = claim.qpn.cast::<24>();
        self.asked[0].d.next = ask;
        self.asked[1].d.next = self.asked[0].q.val();
        self.rereads[0].d.next = reread && !begun && !changes;
        self.rereads[1].d.next = self.rereads[0].q.val() && !begun && !changes;
        if ask || reread {
            self.claims[0].d.next = claim;
        }
        self.claims[1].d.next = self.claims[0].q.val();

        // Verdict.
        let claim = self.claims[1].q.val();
        let halt = self.halts.rdata.val();
        let now = if claim.request { self.epochs.rdata.val() } else { self.responses.rdata.val() };
        let known = halt.generation == claim.generation;
        let halted = if claim.request {
            halt.held.request && halt.held.epoch == claim.epoch
        } else {
            halt.held.response && !claim.of_fault
        };
        let is_old = self.view.val().generation != claim.generation || !claim.answers && now != claim.epoch;
        let verdict = Verdict {
            off: is_old || known && halted,
            held: Held {
                request: known && halt.held.request,
                epoch: halt.held.epoch,
                response: known && halt.held.response,
            },
        };
        if self.asked[1].q.val() {
            self.given.d.next = verdict;
        }
        self.verdict.next = self.given.q.val();
        if self.rereads[1].q.val() {
            self.renewed.d.next = verdict;
        }
        self.again.next = self.renewed.q.val();

        // Doubts: a row that is read in the cycle of a change is doubtful, too.
        let mut doubtful = self.doubtful.q.val();
        let mut doubted: Bit = false;
        for i in 0..N {
            if ask && self.ring.val() && self.row.val() == i as u64 {
                doubtful = doubtful.replace_bit(i, false);
            }
            doubted = doubted || self.first_row.val() == i as u64 && self.doubtful.q.val().get_bit(i);
        }
        self.doubtful.d.next = if changes { !Bits::<N>::default() } else { doubtful };
        if begun || changes {
            self.reread.d.next = false;
        } else if self.rereads[1].q.val() {
            self.reread.d.next = true;
        }
        self.certain.d.next = !begun && !changes && (!doubted || self.reread.q.val());
        self.sure.next = self.certain.q.val();
        self.fresh.next = self.reread.q.val();

        // Writes.
        self.loaded.next = load && !report && !sweeping;
        let load_row = self.load_qpn.val().cast::<24>();
        // A load writes no epoch: the requester, to whom it goes too, marks the next one, sooner or later than this one.
        self.epochs.we.next = mark || sweeping;
        self.epochs.waddr.next = if sweeping { sweep } else { self.epoch.data.val().qpn.cast::<24>() };
        self.epochs.wdata.next = if sweeping { 0.into() } else { self.epoch.data.val().epoch };
        self.responses.we.next = reply_mark || sweeping;
        self.responses.waddr.next = if sweeping { sweep } else { self.reply_epoch.data.val().qpn.cast::<24>() };
        self.responses.wdata.next = if sweeping { 0.into() } else { self.reply_epoch.data.val().epoch };
        self.halts.we.next = report || load || sweeping;
        self.halts.waddr.next = if sweeping {
            sweep
        } else if report {
            failed.qpn.cast::<24>()
        } else {
            load_row
        };
        let held = self.held.val();
        self.halts.wdata.next = if report {
            Halt {
                generation: failed.generation,
                held: Held {
                    request: failed.request || held.request,
                    epoch: if failed.request { failed.epoch } else { held.epoch },
                    response: !failed.request || held.response,
                },
            }
        } else {
            Halt { generation: 0.into(), held: Held { request: false, epoch: 0.into(), response: false } }
        };
    }
}
