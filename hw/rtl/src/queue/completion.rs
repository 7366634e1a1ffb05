//! Completion queues: turns a [`Completion`] into a CQE in host memory, and wakes the host when it asked for that.
//! For transport/commit, which feeds it, and queue/event, which it feeds.
//!
//! ```text
//! cycle        0      1      2        3                      4
//! state        Idle   Read   Decide   Emit                   Idle
//! completion   taken                                         next
//! rows         re            rdata
//! write                               CQE (until taken)
//! event                                then COMPLETION
//! ```
//!
//! 4 cycles a CQE; 5 with an event. A completion that is announced (`soon`) in the cycle before it comes, while the engine is
//! idle, has its rows read then, and leaves out `Read`. The event is offered only when the CQE's write has been taken: event's own writes go
//! through the same ordered channel and so stand behind it.
//!
//! *Doorbells* are always accepted. They read, modify and write a row (`bell`) that no one else writes: consumer index,
//! last arm sequence and what it armed. The engine answers a sequence once and remembers it (`used`), so nothing needs
//! clearing and no arm is lost between the two. An arming doorbell is also a job: does the CQ hold entries beyond the
//! doorbell's consumer? Then it fires at once. Jobs wait in a short FIFO; if it overflows, all CQs are looked at instead.
//!
//! Rows carry parity, which comes a cycle behind them: just in time for the write and the event to be held back.
//!
//! It cannot deadlock: it waits for `write`, `event` and `error` only, which end in posted writes and in qp_state, which
//! always accept in the end; doorbells and the table bus wait for nobody but the CQE under way.

use super::entries;
use crate::msg::{Completion, DmaWrite, Event, Gen, Qp, QpError, Ring};
use crate::stream::{BadRow, GuardedTable, Sink, Source, Table, TablePort};
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
    /// Last sequence that was answered, once there is one.
    used: Bits<2>,
    any_used: Bit,
    dead: Bit,
}

/// What the doorbells said.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Bell {
    consumer: Bits<24>,
    sequence: Bits<2>,
    arm: Bit,
    arm_solicited: Bit,
}

#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
enum State {
    Clear,
    Idle,
    Pop,
    Read,
    Decide,
    Emit,
}

#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
enum Job {
    Cqe,
    Arm,
    Table,
}

/// Log2 of the job FIFO's depth.
const JOBS: usize = 4;
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

    /// Two copies: for the doorbells' own read, and for the engine's.
    bell: Ram<Bell, 12>,
    bell_copy: Table<Bell>,
    rang: Reg<Bit>,
    rung: DFF<Ring>,
    wrote: Reg<Bit>,
    wrote_cqn: DFF<Bits<12>>,
    wrote_bell: DFF<Bell>,
    /// The engine read the row in the very cycle of its write: this was written.
    met: Reg<Bit>,
    met_bell: DFF<Bell>,

    jobs: Ram<Bits<12>, JOBS>,
    jobs_in: Reg<Bits<5>>,
    jobs_out: Reg<Bits<5>>,
    /// CQs still to be looked at because a job was lost.
    look: Reg<Bits<13>>,
    arms_next: Reg<Bit>,

    write_due: Reg<Bit>,
    write_data: DFF<DmaWrite>,
    event_due: Reg<Bit>,
    event_data: DFF<Event>,
    error_due: Reg<Bit>,
    damaged: Reg<Bit>,
    error_qpn: DFF<Qp>,
    error_generation: DFF<Gen>,
    _cqs: Hidden<u64>,
}

impl CompletionQueue {
    /// Room for `cqs` completion queues, a power of two of at most 4,096.
    pub fn new(cqs: usize) -> Self {
        assert!(cqs.is_power_of_two() && cqs <= 1 << 12, "{cqs} completion queues");
        Self {
            rows: GuardedTable::new(cqs, ""),
            live: GuardedTable::new(cqs, ""),
            bell_copy: Table::new(cqs, ""),
            _cqs: Hidden(cqs as u64),
            ..Self::default()
        }
    }
}

impl Logic for CompletionQueue {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, state, early, job, cqn, clear, rang, wrote, met, jobs_in, jobs_out, look, arms_next);
        regs!(self, clock, rst, write_due, event_due, error_due, damaged);
        dff_setup!(self, clock, taken, rung, wrote_cqn, wrote_bell, met_bell, write_data, event_data);
        dff_setup!(self, clock, error_qpn, error_generation, early_cqn);
        clock!(self, clock, rows, live, bell, bell_copy, jobs);

        self.completion.ready.next = false;
        self.table.ready.next = false;
        self.table.rvalid.next = false;
        self.count.next = 0.into();
        let state = self.state.q.val();
        let cqn = self.cqn.q.val();
        self.idle.next = state == State::Idle;

        // Doorbells: read in one cycle, write in the next. The row may have been written in the cycle of the read.
        let rung = self.rung.q.val();
        let near = self.wrote.q.val() && self.wrote_cqn.q.val() == rung.number;
        let mut bell = self.bell.rdata.val();
        if near {
            bell = self.wrote_bell.q.val();
        }
        let again = bell.sequence == rung.sequence;
        if rung.arm || rung.arm_solicited {
            bell.sequence = rung.sequence;
            bell.arm = rung.arm || (again && bell.arm);
            bell.arm_solicited = rung.arm_solicited || (again && bell.arm_solicited);
        }
        bell.consumer = rung.index;
        self.rang.d.next = self.ring_valid.val();
        if self.ring_valid.val() {
            self.rung.d.next = self.ring.val();
        }
        let rang = self.rang.q.val();
        let mut bell_we = rang;
        let mut bell_cqn = rung.number;

        // An arming doorbell leaves a job.
        let fill = self.jobs_in.q.val() - self.jobs_out.q.val();
        let arming = rang && (rung.arm || rung.arm_solicited);
        let lost = arming && fill.get_bit(JOBS);
        self.jobs.we.next = arming && !lost;
        self.jobs.waddr.next = self.jobs_in.q.val().get_bits::<JOBS>(0);
        self.jobs.wdata.next = rung.number;
        if arming && !lost {
            self.jobs_in.d.next = self.jobs_in.q.val() + 1;
        }
        self.jobs.re.next = false;
        self.jobs.raddr.next = self.jobs_out.q.val().get_bits::<JOBS>(0);

        // The engine.
        let row = self.rows.rdata.val();
        let live = self.live.rdata.val();
        let seen = if self.met.q.val() { self.met_bell.q.val() } else { self.bell_copy.rdata.val() };
        let c = self.taken.q.val();
        let (req, done) = (self.table.req.val(), self.completion.data.val());
        let table_cqn = req.index.get_bits::<12>(0);

        let armed = seen.arm && !(live.any_used && live.used == seen.sequence);
        let armed_solicited = seen.arm_solicited && !(live.any_used && live.used == seen.sequence);
        let held = live.producer - seen.consumer;
        let held_solicited = live.solicited - seen.consumer;
        let full = held == entries(row.log2);
        let notable = c.solicited || c.status != 0;

        // Parity comes in the first cycle of Emit.
        let (bad_row, bad_live) = (self.rows.bad.val(), self.live.bad.val());
        let bad = bad_row.valid || bad_live.valid;
        self.bad.next = if bad_row.valid { bad_row } else { bad_live };
        self.rows.flip.next = self.flip.val();
        self.live.flip.next = self.flip.val();

        let mut address = cqn;
        let mut read = false;
        let mut live_we = false;
        let mut live_next = live;
        let mut rows_we = false;
        let mut rows_cqn = table_cqn;
        let mut rows_next = Row {
            valid: req.row.get_bit(elab!(cq::VALID.lsb)),
            log2: req.row.get_bits::<5>(elab!(cq::LOG2_ENTRIES.lsb)),
            eqn: req.row.get_bits::<8>(elab!(cq::EQN.lsb)),
            owner: req.row.get_bits::<12>(elab!(cq::OWNER.lsb)),
            page: req.row.get_bits::<52>(elab!(cq::BASE.lsb + 12)),
        };
        let mut look = self.look.q.val();
        let mut fired = false;
        self.early.d.next = false;
        self.early_cqn.d.next = self.soon.val();

        match state {
            State::Clear => {
                rows_we = true;
                rows_cqn = self.clear.q.val();
                rows_next = Row { valid: false, log2: 0.into(), eqn: 0.into(), owner: 0.into(), page: 0.into() };
                self.clear.d.next = self.clear.q.val() + 1;
                if self.clear.q.val().all() {
                    self.state.d.next = State::Idle;
                }
            }
            State::Idle => {
                let waiting = fill != 0 || look != 0;
                if self.table.valid.val() {
                    address = table_cqn;
                    self.cqn.d.next = table_cqn;
                    self.job.d.next = Job::Table;
                    if req.write {
                        // The doorbells' row starts anew as well, when they leave its port free.
                        if !rang {
                            self.table.ready.next = true;
                            rows_we = true;
                            live_we = true;
                            live_next = Live {
                                producer: 0.into(),
                                solicited: 0.into(),
                                used: 0.into(),
                                any_used: false,
                                dead: false,
                            };
                            bell_we = true;
                            bell_cqn = table_cqn;
                            bell = Bell { consumer: 0.into(), sequence: 0.into(), arm: false, arm_solicited: false };
                        }
                    } else {
                        self.table.ready.next = true;
                        read = true;
                        self.state.d.next = State::Read;
                    }
                } else if waiting && (self.arms_next.q.val() || !self.completion.valid.val()) {
                    self.arms_next.d.next = false;
                    self.job.d.next = Job::Arm;
                    self.state.d.next = State::Pop;
                    self.jobs.re.next = true;
                } else if self.completion.valid.val() {
                    self.arms_next.d.next = true;
                    self.completion.ready.next = true;
                    self.taken.d.next = done;
                    address = done.cqn;
                    self.cqn.d.next = done.cqn;
                    self.job.d.next = Job::Cqe;
                    if done.valid {
                        let rings = rang && rung.number == done.cqn;
                        let here = self.early.q.val() && self.early_cqn.q.val() == done.cqn && !rings;
                        read = !here;
                        self.state.d.next = if here { State::Decide } else { State::Read };
                    }
                } else if self.soon_valid.val() {
                    address = self.soon.val();
                    read = true;
                    self.early.d.next = true;
                }
            }
            State::Pop => {
                if fill != 0 {
                    address = self.jobs.rdata.val();
                    self.jobs_out.d.next = self.jobs_out.q.val() + 1;
                } else {
                    look -= 1;
                    address = look.get_bits::<12>(0);
                }
                self.cqn.d.next = address;
                read = true;
                self.state.d.next = State::Read;
            }
            State::Read => self.state.d.next = State::Decide,
            State::Decide => {
                self.state.d.next = State::Emit;
                self.damaged.d.next = false;
                match self.job.q.val() {
                    Job::Cqe => {
                        if !row.valid {
                            self.state.d.next = State::Idle;
                        } else if full || live.dead {
                            self.error_due.d.next = true;
                            if !live.dead {
                                live_we = true;
                                live_next.dead = true;
                                self.event_due.d.next = true;
                                self.count.next = bits::<64>(1 << status::counter::CQ_OVERRUN);
                            }
                        } else {
                            live_we = true;
                            live_next.producer = live.producer + 1;
                            if notable {
                                live_next.solicited = live.producer + 1;
                            }
                            self.write_due.d.next = true;
                            fired = armed || (armed_solicited && notable);
                        }
                    }
                    Job::Arm => {
                        let beyond = armed_solicited && held_solicited != 0 && held_solicited <= held;
                        fired = row.valid && !live.dead && ((armed && held != 0) || beyond);
                        if !fired {
                            self.state.d.next = State::Idle;
                        }
                    }
                    Job::Table => {
                        self.table.rvalid.next = true;
                        self.state.d.next = State::Idle;
                    }
                }
                if fired {
                    live_we = true;
                    live_next.used = seen.sequence;
                    live_next.any_used = true;
                    self.event_due.d.next = true;
                }
            }
            State::Emit => {
                let write = self.write_due.q.val() && !self.write.ready.val();
                let event = self.event_due.q.val() && (self.write_due.q.val() || !self.event.ready.val());
                let error = self.error_due.q.val() && !self.error.ready.val();
                self.write_due.d.next = write;
                self.event_due.d.next = event;
                self.error_due.d.next = error;
                if bad {
                    // A damaged CQ takes no more: no CQE goes anywhere by such a row.
                    live_we = true;
                    live_next.dead = true;
                    self.damaged.d.next = true;
                    self.write_due.d.next = false;
                    self.event_due.d.next = false;
                    self.error_due.d.next = self.job.q.val() == Job::Cqe;
                } else if !write && !event && !error {
                    self.state.d.next = State::Idle;
                }
            }
        }

        // What is emitted, should it be.
        let index = live.producer & (entries(row.log2) - 1);
        let phase = !live.producer.get_bit(row.log2.index());
        let mut w = self.write_data.q.val();
        let mut e = self.event_data.q.val();
        if state == State::Decide {
            w.iova = cat!(row.page, bits::<12>(0)) + cat!(64; bits::<35>(0), index, bits::<5>(0));
            w.len = 32.into();
            w.is_inline = true;
            w.buf = 0.into();
            w.rows = 0.into();
            w.data = cat!(256;
                bits::<7>(0), phase, bits::<5>(0), c.blocks, self.now.val(), bits::<16>(0), c.vlan, bits::<8>(0),
                c.src_qpn, c.imm, c.length, c.opcode, c.cause, c.wqe_index, c.status, bits::<12>(0), c.qpn);
            e.eqn = if fired { row.eqn } else { 0.into() };
            e.kind = if fired { bits::<8>(event::COMPLETION as u64) } else { bits::<8>(event::CQ_ERROR as u64) };
            e.number = cqn.cast::<24>();
            e.value = 0.into();
            self.error_qpn.d.next = c.qpn;
            self.error_generation.d.next = c.generation;
        }
        self.write_data.d.next = w;
        self.event_data.d.next = e;
        self.write.data.next = self.write_data.q.val();
        self.write.valid.next = self.write_due.q.val() && !bad;
        self.event.data.next = self.event_data.q.val();
        self.event.valid.next = self.event_due.q.val() && !self.write_due.q.val() && !bad;
        self.error.data.next = QpError {
            qpn: self.error_qpn.q.val(),
            generation: self.error_generation.q.val(),
            any_generation: false,
            cause: if self.damaged.q.val() {
                bits::<8>(status::cause::PARITY as u64)
            } else {
                bits::<8>(status::cause::CQ_OVERRUN as u64)
            },
            event: true,
        };
        self.error.valid.next = self.error_due.q.val() && !bad;
        self.table.rdata.next = cat!(512;
            bits::<352>(0), live.producer, bits::<7>(0), live.dead, row.page, bits::<12>(0), bits::<28>(0), row.owner,
            row.eqn, bits::<3>(0), row.log2, bits::<7>(0), row.valid);

        // Table ports.
        self.rows.we.next = rows_we;
        self.rows.waddr.next = rows_cqn.cast::<24>();
        self.rows.wdata.next = rows_next;
        self.rows.re.next = read;
        self.rows.raddr.next = address.cast::<24>();
        self.live.we.next = live_we;
        self.live.waddr.next = (if state == State::Idle { table_cqn } else { cqn }).cast::<24>();
        self.live.wdata.next = live_next;
        self.live.re.next = read;
        self.live.raddr.next = address.cast::<24>();
        self.bell.we.next = bell_we;
        self.bell.waddr.next = bell_cqn;
        self.bell.wdata.next = bell;
        self.bell.re.next = self.ring_valid.val();
        self.bell.raddr.next = self.ring.val().number;
        self.bell_copy.we.next = bell_we;
        self.bell_copy.waddr.next = bell_cqn.cast::<24>();
        self.bell_copy.wdata.next = bell;
        self.bell_copy.re.next = read;
        self.bell_copy.raddr.next = address.cast::<24>();
        self.wrote.d.next = bell_we;
        self.wrote_cqn.d.next = bell_cqn;
        self.wrote_bell.d.next = bell;
        if read {
            self.met.d.next = bell_we && bell_cqn == address;
            self.met_bell.d.next = bell;
        }
        self.look.d.next = if lost { elab!(bits::<13>(self._cqs.0)) } else { look };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::testing::{read_row, write_row};
    use abi::queue::cqe;
    use rand::{Rng, RngExt};
    use rand_chacha::ChaCha8Rng;
    use std::collections::VecDeque;
    use verilate::{
        Model, Options,
        bench::{self, Stall},
    };

    const CQS: usize = 16;

    fn model() -> Model {
        Model::of(|| CompletionQueue::new(CQS), Options::default()).unwrap()
    }

    fn row(log2: u64, eqn: u64, base: u64) -> [u8; 64] {
        let mut row = [0; 64];
        cq::VALID.set(&mut row, 1);
        cq::LOG2_ENTRIES.set(&mut row, log2);
        cq::EQN.set(&mut row, eqn);
        cq::OWNER.set(&mut row, 5);
        cq::BASE.set(&mut row, base);
        row
    }

    fn ring(m: &mut Model, cqn: u64, consumer: u64, arm: bool, arm_solicited: bool, sequence: u64) {
        let bell = Ring {
            number: bits::<12>(cqn),
            index: bits::<24>(consumer),
            arm,
            arm_solicited,
            sequence: bits::<2>(sequence),
        };
        m.set_bytes("ring", &verilate::bits::of(bell));
        m.set("ring_valid", 1);
    }

    fn completion(rng: &mut ChaCha8Rng, cqn: usize) -> Completion {
        Completion {
            valid: true,
            cqn: bits::<12>(cqn as u64),
            qpn: bits::<12>(rng.random_range(0..4096)),
            generation: bits::<8>(rng.random_range(0..256)),
            status: bits::<8>(if rng.random_bool(0.9) { 0 } else { rng.random_range(1..22) }),
            cause: bits::<8>(rng.random_range(0..256)),
            opcode: bits::<8>(rng.random_range(0..256)),
            wqe_index: bits::<16>(rng.random_range(0..65536)),
            blocks: bits::<3>(rng.random_range(0..8)),
            length: bits::<32>(rng.next_u32() as u64),
            imm: bits::<32>(rng.next_u32() as u64),
            solicited: rng.random_bool(0.2),
            vlan: bits::<16>(rng.random_range(0..65536)),
            src_qpn: bits::<24>(rng.random_range(0..1 << 24)),
        }
    }

    /// What the host keeps of a CQ.
    #[derive(Default)]
    struct Cq {
        log2: u64,
        base: u64,
        /// Completions pushed, CQEs seen in memory, consumer index rung.
        posted: u64,
        written: u64,
        rung: u64,
        notable: u64,
        pending: VecDeque<Completion>,
        sequence: u64,
        /// What is armed and not yet answered.
        armed: bool,
        armed_solicited: bool,
    }

    #[test]
    fn entries_come_in_order_and_every_arm_wakes_once() {
        let seed = 7;
        println!("seed {seed}");
        let mut rng = verilate::rng(seed);
        let mut m = model();
        m.reset();
        let mut cqs: Vec<Cq> =
            (0..CQS).map(|i| Cq { log2: i as u64 % 5, base: (i as u64 + 1) << 20 | 0x1000, ..Cq::default() }).collect();
        for (i, q) in cqs.iter().enumerate() {
            write_row(&mut m, i, &row(q.log2, i as u64 + 100, q.base));
        }
        let mut c = bench::Source::new(&m, "completion", Stall::Random, seed + 1);
        let mut w = bench::Sink::new(&m, "write", Stall::Random, seed + 2);
        let mut e = bench::Sink::new(&m, "event", Stall::Random, seed + 3);
        let mut q = bench::Sink::new(&m, "error", Stall::Random, seed + 4);
        let mut events = [0u64; CQS];
        let total = verilate::scale(4000) as u64;
        let (mut pushed, mut idle) = (0, 0);
        while idle < 2000 {
            idle += 1;
            m.set("ring_valid", 0);
            // The transport completes where the CQ has room.
            let i = rng.random_range(0..CQS);
            let cq = &mut cqs[i];
            if pushed < total && cq.posted - cq.rung < 1 << cq.log2 && rng.random_bool(0.4) {
                let message = completion(&mut rng, i);
                c.send(message);
                cq.pending.push_back(message);
                cq.posted += 1;
                pushed += 1;
                idle = 0;
            }
            // The host consumes, and arms when it has seen all and its last arm was answered.
            let cq = &mut cqs[i];
            if rng.random_bool(0.3) {
                let consumer = cq.rung + rng.random_range(0..=cq.written - cq.rung);
                let arm = !cq.armed && !cq.armed_solicited && rng.random_bool(0.5);
                let solicited = arm && rng.random_bool(0.5);
                cq.rung = consumer;
                if arm {
                    (cq.armed, cq.armed_solicited) = (!solicited, solicited);
                    cq.sequence += 1;
                }
                ring(&mut m, i as u64, consumer & 0xff_ffff, arm && !solicited, solicited, cq.sequence & 3);
            }
            m.set("now", m.cycle());
            // Completions are announced now and then, rightly or not.
            m.set("soon_valid", rng.random_bool(0.5).into());
            m.set("soon", if rng.random() { i } else { rng.random_range(0..CQS) } as u64);
            bench::cycle(&mut m, &mut [&mut c, &mut w, &mut e, &mut q]);
            while let Some(beat) = w.pop() {
                assert_eq!((beat.get("len"), beat.get("is_inline"), beat.get("rows")), (32, 1, 0));
                let of = |cq: &&mut Cq| cq.base >> 20 == beat.get("iova") >> 20;
                let (i, cq) = cqs.iter_mut().enumerate().find(|(_, cq)| of(cq)).unwrap();
                assert_eq!(beat.get("iova"), cq.base + (cq.written % (1 << cq.log2)) * 32, "CQ {i}");
                let entry = beat.bytes("data.data");
                let stamp = cqe::TIMESTAMP.get(&entry);
                assert!(stamp <= m.cycle() && stamp + 3000 > m.cycle());
                let want = cq.pending.pop_front().unwrap();
                let mut bytes = [0; 32];
                for (field, value) in [
                    (cqe::QPN, want.qpn.to_u64()),
                    (cqe::STATUS, want.status.to_u64()),
                    (cqe::WQE_INDEX, want.wqe_index.to_u64()),
                    (cqe::SYNDROME, want.cause.to_u64()),
                    (cqe::OPCODE, want.opcode.to_u64()),
                    (cqe::LENGTH, want.length.to_u64()),
                    (cqe::IMM, want.imm.to_u64()),
                    (cqe::SRC_QPN, want.src_qpn.to_u64()),
                    (cqe::VLAN, want.vlan.to_u64()),
                    (cqe::TIMESTAMP, stamp),
                    (cqe::BLOCKS, want.blocks.to_u64()),
                    (cqe::PHASE, !(cq.written >> cq.log2) & 1),
                ] {
                    field.set(&mut bytes, value);
                }
                assert_eq!(entry, bytes, "CQE {} of CQ {i}", cq.written);
                cq.written += 1;
                if want.solicited || want.status != 0 {
                    cq.notable = cq.written;
                }
                idle = 0;
            }
            while let Some(beat) = e.pop() {
                let i = beat.get("number") as usize;
                let cq = &mut cqs[i];
                assert_eq!((beat.get("eqn"), beat.get("kind")), (i as u64 + 100, event::COMPLETION as u64));
                assert!(cq.armed || cq.armed_solicited, "CQ {i} fired unarmed");
                // The CQE of its cause is there already; the host may have consumed it meanwhile.
                assert!(if cq.armed { cq.written > 0 } else { cq.notable > 0 });
                (cq.armed, cq.armed_solicited) = (false, false);
                events[i] += 1;
                idle = 0;
            }
        }
        assert!(q.is_empty() && pushed == total);
        for (i, cq) in cqs.iter().enumerate() {
            assert_eq!(cq.written, cq.posted);
            assert!(!cq.armed || cq.written == cq.rung, "CQ {i} sleeps over {} entries", cq.written - cq.rung);
            assert!(!cq.armed_solicited || cq.notable <= cq.rung, "CQ {i} sleeps over a solicited entry");
            assert!(events[i] > 3);
            let row = read_row(&mut m, i);
            assert_eq!(cq::PRODUCER.get(&row), cq.written);
            assert_eq!((cq::LOG2_ENTRIES.get(&row), cq::BASE.get(&row), cq::DEAD.get(&row)), (cq.log2, cq.base, 0));
        }
    }

    #[test]
    fn an_overrun_kills_the_queue_and_its_callers_until_it_is_loaded_anew() {
        let mut rng = verilate::rng(1);
        let mut m = model();
        m.reset();
        write_row(&mut m, 3, &row(2, 9, 0x1_0000));
        let mut c = bench::Source::new(&m, "completion", Stall::Never, 1);
        let mut w = bench::Sink::new(&m, "write", Stall::Never, 2);
        let mut e = bench::Sink::new(&m, "event", Stall::Never, 3);
        let mut q = bench::Sink::new(&m, "error", Stall::Never, 4);
        let sent: Vec<_> = (0..7).map(|_| completion(&mut rng, 3)).collect();
        for message in &sent {
            c.send(*message);
        }
        bench::run(&mut m, &mut [&mut c, &mut w, &mut e, &mut q], 1000);
        assert_eq!((w.len(), e.len(), q.len()), (4, 1, 3));
        let event = e.pop().unwrap();
        assert_eq!([event.get("eqn"), event.get("kind"), event.get("number")], [0, event::CQ_ERROR as u64, 3]);
        for message in &sent[4..] {
            let want = QpError {
                qpn: message.qpn,
                generation: message.generation,
                any_generation: false,
                cause: bits::<8>(status::cause::CQ_OVERRUN as u64),
                event: true,
            };
            assert_eq!(q.pop(), Some(q.message(want)));
        }
        assert_eq!(cq::DEAD.get(&read_row(&mut m, 3)), 1);
        write_row(&mut m, 3, &row(2, 9, 0x1_0000));
        c.send(sent[0]);
        bench::run(&mut m, &mut [&mut c, &mut w, &mut e, &mut q], 1000);
        assert_eq!((w.len(), e.len(), q.len()), (5, 0, 0));
    }

    #[test]
    fn four_cycles_an_entry() {
        let mut rng = verilate::rng(1);
        let mut m = model();
        m.reset();
        write_row(&mut m, 0, &row(10, 0, 0x1_0000));
        let mut c = bench::Source::new(&m, "completion", Stall::Never, 1);
        let mut w = bench::Sink::new(&m, "write", Stall::Never, 2);
        for _ in 0..1000 {
            c.send(completion(&mut rng, 0));
        }
        let start = m.cycle();
        bench::run(&mut m, &mut [&mut c, &mut w], 10_000);
        assert!(m.cycle() - start <= 4 * 1000 + 40, "{} cycles", m.cycle() - start);
    }

    #[test]
    fn a_burst_of_arms_overflows_the_jobs_and_still_wakes_all() {
        let mut rng = verilate::rng(1);
        let mut m = Model::of(|| CompletionQueue::new(64), Options::default()).unwrap();
        m.reset();
        let mut c = bench::Source::new(&m, "completion", Stall::Never, 1);
        let mut w = bench::Sink::new(&m, "write", Stall::Never, 2);
        let mut e = bench::Sink::new(&m, "event", Stall::Never, 3);
        for i in 0..64 {
            write_row(&mut m, i, &row(4, 1, 0x1_0000 * (i as u64 + 1)));
            c.send(completion(&mut rng, i));
        }
        bench::run(&mut m, &mut [&mut c, &mut w, &mut e], 1000);
        assert!(e.is_empty());
        for i in 0..64 {
            ring(&mut m, i, 0, true, false, 0);
            bench::cycle(&mut m, &mut [&mut e]);
        }
        m.set("ring_valid", 0);
        e.expect(64 - e.len() as u64);
        bench::run(&mut m, &mut [&mut e], 1000);
        assert_eq!(e.len(), 64);
        // The same sequence again is ignored.
        ring(&mut m, 5, 0, true, false, 0);
        bench::cycle(&mut m, &mut [&mut e]);
        m.set("ring_valid", 0);
        (0..100).for_each(|_| bench::cycle(&mut m, &mut [&mut e]));
        assert_eq!(e.len(), 64);
    }
}
