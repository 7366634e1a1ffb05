//! What the doorbells of completion queues said: consumer index, last arm sequence and what it armed. For
//! [`super::completion`], which looks at it with every entry, and hears here which CQs were armed.
//!
//! ```text
//! cycle    0      1     2    3
//! ring     A
//! rows            re         rdata, we
//! job                            A, if it arms
//! re                         A
//! bell                               (two cycles later) A as of cycle 3
//! ```
//!
//! Doorbells are always accepted, one a cycle. They read, modify and write a row that no one else writes; rows that are being
//! written while they are read are forwarded. An arming doorbell leaves a job: arm the CQ, and look whether it holds entries beyond its
//! consumer. Jobs wait in a short FIFO; if it overflows, all CQs are looked at instead, for arms that no job told of.
//!
//! It waits for nobody.

use crate::msg::Ring;
use crate::stream::{Fifo, Table, narrow};
use hdl::prelude::*;

/// A doorbell's row.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Bell {
    /// Consumer index.
    pub consumer: Bits<24>,
    /// Last arm sequence.
    pub sequence: Bits<2>,
    /// It armed the CQ for any entry; for a solicited one.
    pub arm: Bit,
    /// For a solicited entry.
    pub arm_solicited: Bit,
}

/// What a doorbell armed a CQ for.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Arm {
    /// Its sequence.
    pub sequence: Bits<2>,
    /// Any entry.
    pub any: Bit,
    /// A solicited entry.
    pub solicited: Bit,
}

/// A CQ to be armed.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Job {
    cqn: Bits<12>,
    arm: Arm,
}

/// Jobs that wait.
const JOBS: usize = 16;

/// The doorbells. See the module.
#[derive(LogicBlock, Default)]
pub struct Bells {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// CQ doorbells, each in one cycle.
    pub ring: Signal<In, Ring>,
    pub ring_valid: Signal<In, Bit>,
    /// The row of `addr` is on `bell` two cycles after `re`, and stays until the next read arrives.
    pub re: Signal<In, Bit>,
    pub addr: Signal<In, Bits<12>>,
    pub bell: Signal<Out, Bell>,
    /// Row `anew_at` starts anew, if it may in this cycle: `free`.
    pub anew: Signal<In, Bit>,
    pub anew_at: Signal<In, Bits<12>>,
    pub free: Signal<Out, Bit>,
    /// A CQ is to be looked at: `job`, until `pop`; what arms it, unless all are looked at: then what its row says.
    pub waits: Signal<Out, Bit>,
    pub job: Signal<Out, Bits<12>>,
    pub told: Signal<Out, Bit>,
    pub arm: Signal<Out, Arm>,
    pub pop: Signal<In, Bit>,

    rang: [Reg<Bit>; 3],
    rung: [DFF<Ring>; 3],
    /// Two copies: for the doorbells' own read, and for the engine's.
    rows: Table<Bell>,
    copy: Table<Bell>,
    /// The doorbell that is being read will find its row rewritten: one cycle before it writes itself, or two.
    near: DFF<Bit>,
    far: [DFF<Bit>; 2],
    wrote: [DFF<Bell>; 2],
    /// The engine read the row in the very cycle of its write: this was written.
    met: [DFF<Bit>; 2],
    met_bell: [DFF<Bell>; 2],
    jobs: Fifo<Job>,
    /// CQs still to be looked at because a job was lost.
    look: Reg<Bits<13>>,
    looks: Reg<Bit>,
    _cqs: Hidden<u64>,
}

impl Bells {
    /// Of `cqs` completion queues.
    pub fn new(cqs: usize) -> Self {
        Self {
            rows: Table::new(cqs, narrow(cqs)),
            copy: Table::new(cqs, ""),
            jobs: Fifo::new(JOBS),
            _cqs: Hidden(cqs as u64),
            ..Self::default()
        }
    }
}

impl Logic for Bells {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, rang, look, looks);
        dff_setup!(self, clock, rung, near, far, wrote, met, met_bell);
        clock!(self, clock, rows, copy);
        clock_reset!(self, clock, rst, jobs);
        self.rang[0].d.next = self.ring_valid.val();
        if self.ring_valid.val() {
            self.rung[0].d.next = self.ring.val();
        }
        for i in 1..3 {
            self.rang[i].d.next = self.rang[i - 1].q.val();
            if self.rang[i - 1].q.val() {
                self.rung[i].d.next = self.rung[i - 1].q.val();
            }
        }
        self.rows.re.next = self.rang[0].q.val();
        self.rows.raddr.next = self.rung[0].q.val().number.cast::<24>();

        let rung = self.rung[2].q.val();
        let rang = self.rang[2].q.val();
        let mut bell = self.rows.rdata.val();
        if self.near.q.val() {
            bell = self.wrote[0].q.val();
        } else if self.far[1].q.val() {
            bell = self.wrote[1].q.val();
        }
        let again = bell.sequence == rung.sequence;
        if rung.arm || rung.arm_solicited {
            bell.sequence = rung.sequence;
            bell.arm = rung.arm || (again && bell.arm);
            bell.arm_solicited = rung.arm_solicited || (again && bell.arm_solicited);
        }
        bell.consumer = rung.index;
        self.free.next = !rang;
        let we = rang || self.anew.val();
        let number = if rang { rung.number } else { self.anew_at.val() };
        if !rang {
            bell = Bell { consumer: 0.into(), sequence: 0.into(), arm: false, arm_solicited: false };
        }
        self.rows.we.next = we;
        self.rows.waddr.next = number.cast::<24>();
        self.rows.wdata.next = bell;
        self.copy.we.next = we;
        self.copy.waddr.next = number.cast::<24>();
        self.copy.wdata.next = bell;
        if we {
            self.wrote[0].d.next = bell;
        }
        self.wrote[1].d.next = self.wrote[0].q.val();
        self.near.d.next = we && number == self.rung[1].q.val().number;
        self.far[0].d.next = we && number == self.rung[0].q.val().number;
        self.far[1].d.next = self.far[0].q.val();

        // The engine's read.
        self.copy.re.next = self.re.val();
        self.copy.raddr.next = self.addr.val().cast::<24>();
        if self.re.val() {
            self.met[0].d.next = we && number == self.addr.val();
            self.met_bell[0].d.next = bell;
        }
        self.met[1].d.next = self.met[0].q.val();
        self.met_bell[1].d.next = self.met_bell[0].q.val();
        self.bell.next = if self.met[1].q.val() { self.met_bell[1].q.val() } else { self.copy.rdata.val() };

        // Jobs.
        let arming = rang && (rung.arm || rung.arm_solicited);
        self.jobs.s.valid.next = arming;
        let arm = Arm { sequence: rung.sequence, any: rung.arm, solicited: rung.arm_solicited };
        self.jobs.s.data.next = Job { cqn: rung.number, arm };
        let queued = self.jobs.m.valid.val();
        let mut look = self.look.q.val();
        let lowest = look - 1;
        self.waits.next = queued || self.looks.q.val();
        let first = self.jobs.m.data.val();
        self.job.next = if queued { first.cqn } else { lowest.get_bits::<12>(0) };
        self.told.next = queued;
        self.arm.next = first.arm;
        self.jobs.m.ready.next = self.pop.val();
        if self.pop.val() && !queued {
            look = lowest;
        }
        if arming && !self.jobs.s.ready.val() {
            look = elab!(bits::<13>(self._cqs.0));
        }
        self.look.d.next = look;
        self.looks.d.next = self.look.q.val() != 0;
    }
}
