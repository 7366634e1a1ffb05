//! Completion queues: turns a [`Completion`] into a CQE in host memory, and wakes the host when it asked for that.
//! For transport/commit, which feeds it, and queue/event, which it feeds.
//!
//! ```text
//! cycle        0      1      2        3                      4
//! state        Idle   Wait   Decide   Emit                   Idle
//! completion   taken                                         next
//! rows         re            rdata
//! flags                               full, fires
//! write                               CQE (until taken)
//! event                                then COMPLETION
//! ```
//!
//! 4 cycles a CQE; 5 with an event. A completion that is announced (`soon`) in the cycle before it comes, while the engine is
//! idle, has its rows read then, and leaves out `Wait`. The event is offered only when the CQE's write has been taken: event's own writes go
//! through the same ordered channel and so stand behind it.
//!
//! *Doorbells* have rows of their own ([`super::bells`]). An arming one is also a job, in order: if the CQ holds entries beyond its
//! consumer, it fires at once, else it is armed, for the next entry to fire. So a host may arm as often as it likes (but for four arms of a CQ
//! lost at once). The sequence of the arm heard last (`heard`) tells it from one that is found again when so many came that jobs were lost.
//!
//! Rows carry parity, which comes a cycle behind them, in the first cycle of `Emit`: just in time for the write to be held back.
//!
//! It cannot deadlock: it waits for `write`, `event` and `error` only, which end in posted writes and in qp_state, which
//! always accept in the end; doorbells and the table bus wait for nobody but the CQE under way.

use super::{
    bells::{Arm, Bells},
    entries,
};
use crate::msg::{Completion, DmaWrite, Event, QpError, Ring};
use crate::stream::{BadRow, GuardedTable, Sink, Source, TablePort};
use abi::{queue::event, status, table::cq};
use hdl::prelude::*;

/// What the firmware wrote.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Row {
    valid: Bit,
    log2: Bits<5>,
    eqn: Bits<8>,
    owner: Bits<12>,
    /// Ring address >> 12.
    page: Bits<52>,
}

/// What the engine knows.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Live {
    producer: Bits<24>,
    /// Producer behind the last solicited completion or error.
    solicited: Bits<24>,
    /// Sequence of the last arm, once there is one.
    heard: Bits<2>,
    any_heard: Bit,
    /// The next entry fires; the next solicited one, or error.
    armed: Bit,
    armed_solicited: Bit,
    dead: Bit,
}

#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
enum State {
    Clear,
    Idle,
    Table,
    Fetch,
    Wait,
    Decide,
    Emit,
}

#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
enum Job {
    Cqe,
    Arm,
    Table,
}

/// The completion queues. See the module.
#[derive(LogicBlock, Default)]
pub struct CompletionQueue {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// What to complete.
    pub completion: Sink<Completion>,
    /// Perhaps the next cycle brings a completion for this CQ.
    pub soon: Signal<In, Bits<12>>,
    pub soon_valid: Signal<In, Bit>,
    /// CQ doorbells, each in one cycle.
    pub ring: Signal<In, Ring>,
    pub ring_valid: Signal<In, Bit>,
    /// CQEs, inline.
    pub write: Source<DmaWrite>,
    /// COMPLETION of armed CQs, CQ_ERROR.
    pub event: Source<Event>,
    /// QPs whose completion had no room.
    pub error: Source<QpError>,
    /// CQ rows.
    pub table: TablePort,
    /// Clock for timestamps.
    pub now: Signal<In, Bits<48>>,
    /// For tests: rows written now are stored damaged.
    pub flip: Signal<In, Bit>,
    /// A row was found damaged.
    pub bad: Signal<Out, BadRow>,
    pub count: Signal<Out, Bits<64>>,
    /// Of all completions taken so far the CQEs are in the write channel.
    pub idle: Signal<Out, Bit>,

    bells: Bells,
    state: Reg<State>,
    /// The rows of `early_cqn` are being read.
    early: Reg<Bit>,
    early_cqn: DFF<Bits<12>>,
    job: Reg<Job>,
    cqn: Reg<Bits<12>>,
    taken: DFF<Completion>,
    rows: GuardedTable<Row>,
    live: GuardedTable<Live>,
    clear: Reg<Bits<12>>,
    arms_next: Reg<Bit>,
    /// What arms the CQ, if its job tells.
    told: DFF<Bit>,
    arm: DFF<Arm>,

    /// The decision, for the first cycle of Emit: the CQ has no room; an event follows, should there be an entry.
    first: Reg<Bit>,
    full: DFF<Bit>,
    fires: DFF<Bit>,
    /// An arm is new; what the CQ is armed for with it.
    hears: DFF<Bit>,
    armed: DFF<Bit>,
    armed_solicited: DFF<Bit>,
    /// An entry is to be written, unless the CQ is full or damaged.
    entry: Reg<Bit>,
    phase: DFF<Bit>,
    stamp: DFF<Bits<48>>,
    iova: DFF<Bits<64>>,

    write_due: Reg<Bit>,
    event_due: Reg<Bit>,
    is_error: DFF<Bit>,
    error_due: Reg<Bit>,
    damaged: Reg<Bit>,
    _cqs: Hidden<u64>,
}

impl CompletionQueue {
    /// Room for `cqs` completion queues, a power of two of at most 4,096.
    pub fn new(cqs: usize) -> Self {
        assert!(cqs.is_power_of_two() && cqs <= 1 << 12, "{cqs} completion queues");
        Self {
            rows: GuardedTable::new(cqs, ""),
            live: GuardedTable::new(cqs, ""),
            bells: Bells::new(cqs),
            _cqs: Hidden(cqs as u64),
            ..Self::default()
        }
    }
}

impl Logic for CompletionQueue {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, state, early, job, cqn, clear, arms_next, first, entry);
        regs!(self, clock, rst, write_due, event_due, error_due, damaged);
        dff_setup!(
            self,
            clock,
            taken,
            early_cqn,
            full,
            fires,
            phase,
            stamp,
            iova,
            is_error,
            told,
            arm,
            hears,
            armed,
            armed_solicited
        );
        clock!(self, clock, rows, live);
        clock_reset!(self, clock, rst, bells);
        self.bells.ring.next = self.ring.val();
        self.bells.ring_valid.next = self.ring_valid.val();

        self.table.rvalid.next = false;
        self.count.next = 0.into();
        let state = self.state.q.val();
        let job = self.job.q.val();
        let cqn = self.cqn.q.val();
        let idle = state == State::Idle;
        self.idle.next = idle;

        let row = self.rows.rdata.val();
        let live = self.live.rdata.val();
        let seen = self.bells.bell.val();
        let c = self.taken.q.val();
        let (req, done) = (self.table.req.val(), self.completion.data.val());

        // Parity comes in the first cycle of Emit.
        let (bad_row, bad_live) = (self.rows.bad.val(), self.live.bad.val());
        let bad = bad_row.valid || bad_live.valid;
        self.bad.next = if bad_row.valid { bad_row } else { bad_live };
        self.rows.flip.next = self.flip.val();
        self.live.flip.next = self.flip.val();

        // The decision.
        let of_row = Arm { sequence: seen.sequence, any: seen.arm, solicited: seen.arm_solicited };
        let arm = if self.told.q.val() { self.arm.q.val() } else { of_row };
        let known = live.any_heard && live.heard == arm.sequence;
        let hears = job == Job::Arm && (arm.any || arm.solicited) && !known;
        let armed = live.armed || (hears && arm.any);
        let armed_solicited = live.armed_solicited || (hears && arm.solicited);
        self.hears.d.next = hears;
        self.armed.d.next = armed;
        self.armed_solicited.d.next = armed_solicited;
        let held = live.producer - seen.consumer;
        let held_solicited = live.solicited - seen.consumer;
        let size = entries(row.log2);
        let notable = c.solicited || c.status != 0;
        let beyond = armed_solicited && held_solicited != 0 && held_solicited <= held;
        // More than it holds only in a smaller ring than before.
        self.full.d.next = (held & !(size - 1)).any();
        self.fires.d.next =
            if job == Job::Arm { (armed && held != 0) || beyond } else { armed || (armed_solicited && notable) };
        if state == State::Decide {
            let place = live.producer & (size - 1);
            self.phase.d.next = !live.producer.get_bit(row.log2.index());
            self.stamp.d.next = self.now.val();
            // A ring is aligned to 4096, so that its place begins above bit 11.
            let page = row.page + place.get_bits::<17>(7).cast::<52>();
            self.iova.d.next = cat!(64; page, place.get_bits::<7>(0), bits::<5>(0));
        }
        let (full, first) = (self.full.q.val(), self.first.q.val());
        let usable = row.valid && !live.dead;
        let writes = self.entry.q.val() && !full;
        let overruns = job == Job::Cqe && row.valid && (full || live.dead);
        let fired = self.fires.q.val() && (writes || (job == Job::Arm && usable));

        // What is read in Idle is for a completion that is taken or announced; else nobody looks at it.
        let offered = self.completion.valid.val();
        let here = self.early.q.val() && self.early_cqn.q.val() == done.cqn;
        let announced = self.soon_valid.val() && !offered;
        let read = idle && (offered && !here || announced) || state == State::Fetch;
        let address = if state == State::Fetch {
            cqn
        } else if offered {
            done.cqn
        } else {
            self.soon.val()
        };
        let mut live_we = false;
        let mut live_next = live;
        let mut rows_we = false;
        let mut rows_next = Row {
            valid: req.row.get_bit(elab!(cq::VALID.lsb)),
            log2: req.row.get_bits::<5>(elab!(cq::LOG2_ENTRIES.lsb)),
            eqn: req.row.get_bits::<8>(elab!(cq::EQN.lsb)),
            owner: req.row.get_bits::<12>(elab!(cq::OWNER.lsb)),
            page: req.row.get_bits::<52>(elab!(cq::BASE.lsb + 12)),
        };
        self.early.d.next = idle && announced;
        self.early_cqn.d.next = self.soon.val();
        self.first.d.next = false;
        self.entry.d.next = false;
        self.bells.anew.next = false;
        self.bells.pop.next = false;
        self.table.ready.next = false;
        // Arms and completions take turns.
        let arms = self.bells.waits.val();
        let takes = idle && !self.table.valid.val() && !(arms && self.arms_next.q.val());
        self.completion.ready.next = takes;

        match state {
            State::Clear => {
                rows_we = true;
                rows_next = Row { valid: false, log2: 0.into(), eqn: 0.into(), owner: 0.into(), page: 0.into() };
                self.clear.d.next = self.clear.q.val() + 1;
                if self.clear.q.val().all() {
                    self.state.d.next = State::Idle;
                }
            }
            State::Idle => {
                if takes && offered {
                    self.arms_next.d.next = true;
                    self.taken.d.next = done;
                    self.cqn.d.next = done.cqn;
                    self.job.d.next = Job::Cqe;
                    if done.valid {
                        self.state.d.next = if here { State::Decide } else { State::Wait };
                    }
                } else if self.table.valid.val() {
                    self.cqn.d.next = req.index.get_bits::<12>(0);
                    self.job.d.next = Job::Table;
                    self.state.d.next = State::Table;
                } else if arms {
                    self.arms_next.d.next = false;
                    self.cqn.d.next = self.bells.job.val();
                    self.bells.pop.next = true;
                    self.told.d.next = self.bells.told.val();
                    self.arm.d.next = self.bells.arm.val();
                    self.job.d.next = Job::Arm;
                    self.state.d.next = State::Fetch;
                }
            }
            State::Table => {
                if !req.write {
                    self.table.ready.next = true;
                    self.state.d.next = State::Fetch;
                } else if self.bells.free.val() {
                    // The doorbells' row starts anew as well, when they leave its port free.
                    self.table.ready.next = true;
                    self.state.d.next = State::Idle;
                    rows_we = true;
                    // One that goes on in another ring keeps its index, and what it is armed for.
                    let anew = !req.row.get_bit(elab!(cq::RESIZE.lsb));
                    live_we = anew;
                    live_next = Live {
                        producer: 0.into(),
                        solicited: 0.into(),
                        heard: 0.into(),
                        any_heard: false,
                        armed: false,
                        armed_solicited: false,
                        dead: false,
                    };
                    self.bells.anew.next = anew;
                }
            }
            State::Fetch => {
                self.state.d.next = State::Wait;
            }
            State::Wait => self.state.d.next = State::Decide,
            State::Decide => {
                self.damaged.d.next = false;
                if job == Job::Table {
                    self.table.rvalid.next = true;
                    self.state.d.next = State::Idle;
                } else {
                    self.state.d.next = State::Emit;
                    self.first.d.next = true;
                    self.entry.d.next = job == Job::Cqe && usable;
                }
            }
            State::Emit => {
                let write = (self.write_due.q.val() || writes) && !self.write.ready.val();
                let event = self.event_due.q.val() && (self.write_due.q.val() || !self.event.ready.val());
                let error = self.error_due.q.val() && !self.error.ready.val();
                self.write_due.d.next = write;
                self.event_due.d.next = event;
                self.error_due.d.next = error;
                if first && bad {
                    // A damaged CQ takes no more: no CQE goes anywhere by such a row.
                    live_we = true;
                    live_next.dead = true;
                    self.damaged.d.next = true;
                    self.write_due.d.next = false;
                    self.error_due.d.next = job == Job::Cqe;
                } else if first {
                    self.error_due.d.next = overruns;
                    self.event_due.d.next = fired || (overruns && !live.dead);
                    self.is_error.d.next = overruns;
                    let hears = self.hears.q.val();
                    live_we = fired || writes || overruns || hears;
                    if overruns {
                        live_next.dead = true;
                    }
                    if overruns && !live.dead {
                        self.count.next = bits::<64>(1 << status::counter::CQ_OVERRUN);
                    }
                    if writes {
                        live_next.producer = live.producer + 1;
                        if notable {
                            live_next.solicited = live.producer + 1;
                        }
                    }
                    live_next.armed = self.armed.q.val() && !fired;
                    live_next.armed_solicited = self.armed_solicited.q.val() && !fired;
                    if hears {
                        live_next.heard = arm.sequence;
                        live_next.any_heard = true;
                    }
                    if !write && !fired && !overruns {
                        self.state.d.next = State::Idle;
                    }
                } else if !write && !event && !error {
                    self.state.d.next = State::Idle;
                }
            }
        }

        // What is emitted.
        self.write.valid.next = self.write_due.q.val() || (writes && !bad);
        self.write.data.next = DmaWrite {
            iova: self.iova.q.val(),
            len: 32.into(),
            is_inline: true,
            buf: 0.into(),
            rows: 0.into(),
            data: cat!(256;
                bits::<7>(0), self.phase.q.val(), bits::<5>(0), c.blocks, self.stamp.q.val(), bits::<16>(0), c.vlan,
                bits::<8>(0), c.src_qpn, c.imm, c.length, c.opcode, c.cause, c.wqe_index, c.status, bits::<12>(0), c.qpn),
        };
        let is_error = self.is_error.q.val();
        self.event.valid.next = self.event_due.q.val() && !self.write_due.q.val();
        self.event.data.next = Event {
            eqn: if is_error { 0.into() } else { row.eqn },
            kind: if is_error { bits::<8>(event::CQ_ERROR as u64) } else { bits::<8>(event::COMPLETION as u64) },
            number: cqn.cast::<24>(),
            value: 0.into(),
        };
        self.error.valid.next = self.error_due.q.val();
        self.error.data.next = QpError {
            send_only: false,
            limit: false,
            qpn: c.qpn,
            generation: c.generation,
            any_generation: false,
            cause: if self.damaged.q.val() {
                bits::<8>(status::cause::PARITY as u64)
            } else {
                bits::<8>(status::cause::CQ_OVERRUN as u64)
            },
            event: true,
        };
        self.table.rdata.next = cat!(512;
            bits::<352>(0), live.producer, bits::<7>(0), live.dead, row.page, bits::<12>(0), bits::<28>(0), row.owner,
            row.eqn, bits::<3>(0), row.log2, bits::<7>(0), row.valid);

        // Table ports.
        self.rows.we.next = rows_we;
        self.rows.waddr.next = (if state == State::Clear { self.clear.q.val() } else { cqn }).cast::<24>();
        self.rows.wdata.next = rows_next;
        self.rows.re.next = read;
        self.rows.raddr.next = address.cast::<24>();
        self.live.we.next = live_we;
        self.live.waddr.next = cqn.cast::<24>();
        self.live.wdata.next = live_next;
        self.live.re.next = read;
        self.live.raddr.next = address.cast::<24>();
        self.bells.re.next = read;
        self.bells.addr.next = address;
        self.bells.anew_at.next = cqn;
    }
}

#[cfg(test)]
#[path = "completion_tests.rs"]
mod tests;
