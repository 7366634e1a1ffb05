//! Event queues and interrupts: writes each [`Event`] as an EQE and sends the MSI-X message that the host armed.
//! For completion, qp_state, doorbell and the soft core, which report; and for registers, which holds the MSI-X table.
//!
//! ```text
//! cycle     0      1      2        3                     4       5      6      7
//! state     Idle   Read   Decide   Emit                  Idle    Read   Decide Emit
//! event     taken                  EQE (until taken)     MSI-X: msix_re    msix_row   MSI-X write
//! ```
//!
//! 4 cycles an event and 6 a message. EQE and message go through one ordered channel, so the host finds the EQE.
//!
//! *Interrupts.* An EQ doorbell with `arm` asks for one message. It is due when the armed EQ holds entries beyond the
//! consumer index: `MODERATION_COUNT` of them, or for `MODERATION_CYCLES` at least one, or all that fit. Messages of
//! a vector that is masked, or not yet sent, wait as one bit per vector (`pending`), as PCI says.
//!
//! *Full EQs.* An event without room is kept, never waited for: one slot per object for COMPLETION, CQ_ERROR and
//! QP_ERROR, and one per number for all others (of two kinds with one number the later stays). When a doorbell makes
//! room in an EQ with kept events, all slots are looked through, between other work. The value of a kept event has 8
//! bits, which all causes have.
//!
//! It cannot deadlock: it waits for `write` only, which ends in posted writes.

use super::entries;
use crate::msg::{DmaWrite, Event, Ring};
use crate::stream::{Arbiter, BadRow, GuardedTable, Sink, Source, Table, TablePort};
use abi::{bar::MSIX_VECTORS, queue::event, table::eq};
use hdl::prelude::*;

/// Who reports events.
pub const REPORTERS: usize = 5;
/// Most event queues.
pub const MAX_EQS: usize = 64;

/// What the firmware wrote.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Row {
    valid: Bit,
    log2: Bits<5>,
    vector: Bits<5>,
    owner: Bits<12>,
    moderation_count: Bits<16>,
    moderation_cycles: Bits<24>,
    /// Ring address >> 12.
    page: Bits<52>,
}

/// What the engine knows.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Live {
    producer: Bits<24>,
    armed: Bit,
    /// When a moderated interrupt is due; counts while the EQ's bit in `timing` is set.
    deadline: Bits<32>,
}

/// An event that found its EQ full.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Kept {
    valid: Bit,
    eqn: Bits<6>,
    kind: Bits<4>,
    value: Bits<8>,
}

#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
enum State {
    Clear,
    Idle,
    KeptRead,
    KeptDecide,
    Read,
    Decide,
    MsixAddress,
    MsixData,
    MsixWait,
    MsixFill,
    Emit,
}

#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
enum Job {
    /// A new event.
    New,
    /// A kept one.
    Again,
    Bell,
    Timer,
    Table,
}

/// Number of the only bit that is set.
#[hdl_fn]
fn number(one: Bits<64>) -> Bits<6> {
    let mut n: Bits<6> = 0.into();
    for k in 0..6 {
        let mask = elab!((0..64u64).filter(|i| i >> k & 1 == 1).fold(0, |m, i| m | 1 << i));
        n = n.replace_bit(k, (one & bits::<64>(mask)).any());
    }
    n
}

/// The lowest set bit.
#[hdl_fn]
fn lowest(x: Bits<64>) -> Bits<64> {
    x & (!x + 1)
}

/// The event queues. See the module.
#[derive(LogicBlock, Default)]
pub struct EventQueue {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// Events of completion, qp_state, doorbell, control.
    pub event: Arr<Sink<Event>, REPORTERS>,
    /// EQ doorbells, each in one cycle.
    pub ring: Signal<In, Ring>,
    pub ring_valid: Signal<In, Bit>,
    /// EQEs and MSI-X messages, inline.
    pub write: Source<DmaWrite>,
    /// MSI-X table, by halves of rows (vector, half): it is on `msix_half` two cycles after `msix_re`.
    pub msix_re: Signal<Out, Bit>,
    pub msix_addr: Signal<Out, Bits<6>>,
    pub msix_half: Signal<In, Bits<64>>,
    /// Vectors that may not be sent now, and those that wait.
    pub msix_mask: Signal<In, Bits<32>>,
    pub msix_pending: Signal<Out, Bits<32>>,
    /// EQ rows.
    pub table: TablePort,
    /// Clock, for moderation.
    pub now: Signal<In, Bits<48>>,
    /// For tests: rows written now are stored damaged.
    pub flip: Signal<In, Bit>,
    /// A row was found damaged.
    pub bad: Signal<Out, BadRow>,
    pub count: Signal<Out, Bits<64>>,

    arbiter: Arbiter<Event, REPORTERS>,
    state: Reg<State>,
    job: Reg<Job>,
    eqn: Reg<Bits<6>>,
    /// EQ number of the event is impossible.
    beyond: Reg<Bit>,
    arming: Reg<Bit>,
    taken: DFF<Event>,
    slot: DFF<Bits<14>>,
    vector: Reg<Bits<5>>,
    rows: GuardedTable<Row>,
    live: Table<Live>,
    consumer: Table<Bits<24>>,
    met: Reg<Bit>,
    met_index: DFF<Bits<24>>,
    clear: Reg<Bits<14>>,
    /// Per EQ: an arm came; the consumer index moved; a timer runs; events are kept.
    arms: Reg<Bits<64>>,
    moved: Reg<Bits<64>>,
    timing: Reg<Bits<64>>,
    blocked: Reg<Bits<64>>,
    timer: Reg<Bits<6>>,
    others_next: Reg<Bit>,
    pending: Reg<Bits<32>>,
    kept: Table<Kept>,
    kept_count: Reg<Bits<15>>,
    /// Slots still to be looked through.
    look: Reg<Bits<15>>,
    write_due: Reg<Bit>,
    write_data: DFF<DmaWrite>,
    _eqs: Hidden<u64>,
    _objects: Hidden<u64>,
}

impl EventQueue {
    /// Room for `eqs` event queues (a power of two of at most [`MAX_EQS`]), and for kept events of `objects` QPs and as
    /// many CQs (a power of two of at most 4,096).
    pub fn new(eqs: usize, objects: usize) -> Self {
        assert!(eqs.is_power_of_two() && eqs <= MAX_EQS, "{eqs} event queues");
        assert!(objects.is_power_of_two() && objects <= 1 << 12, "{objects} objects");
        Self {
            rows: GuardedTable::new(eqs, ""),
            live: Table::new(eqs, ""),
            consumer: Table::new(eqs, ""),
            kept: Table::new(4 * objects, ""),
            _eqs: Hidden(eqs as u64),
            _objects: Hidden(objects as u64),
            ..Self::default()
        }
    }
}

impl Logic for EventQueue {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, state, job, eqn, beyond, arming, vector, met, clear, arms, moved, timing, blocked);
        regs!(self, clock, rst, timer, others_next, pending, kept_count, look, write_due);
        dff_setup!(self, clock, taken, slot, met_index, write_data);
        clock!(self, clock, rows, live, consumer, kept);
        clock_reset!(self, clock, rst, arbiter);
        for i in 0..REPORTERS {
            Sink::<Event>::link(&mut self.event[i], &mut self.arbiter.s[i]);
        }
        self.arbiter.more.next = 0.into();
        self.arbiter.m.ready.next = false;
        self.table.ready.next = false;
        self.table.rvalid.next = false;
        self.count.next = 0.into();
        let state = self.state.q.val();
        let eqn = self.eqn.q.val();
        let one: Bits<64> = 1.into();
        let here = one << eqn;

        // Doorbells.
        let ring = self.ring.val();
        let known = ring.number < elab!(bits::<12>(self._eqs.0));
        let rings = self.ring_valid.val() && known;
        let rung = ring.number.get_bits::<6>(0);
        let mut consumer_we = rings;
        let mut consumer_eqn = rung;
        let mut consumer_next = ring.index;
        let mut arms = self.arms.q.val();
        let mut moved = self.moved.q.val();
        let mut timing = self.timing.q.val();
        let mut blocked = self.blocked.q.val();
        let mut pending = self.pending.q.val();
        let mut look = self.look.q.val();
        let mut kept_count = self.kept_count.q.val();

        // What waits to be done.
        let due = arms | (moved & blocked);
        let due_lowest = lowest(due);
        let sendable = pending & !self.msix_mask.val();
        let send_lowest = lowest(sendable.cast::<64>());
        let at = (timing >> self.timer.q.val()).get_bit(0);
        let requested = self.arbiter.m.valid.val();
        let offered = self.arbiter.m.data.val();
        if !at || state == State::Idle {
            // Only move where something can be found: still logic costs nothing.
            if timing.any() {
                self.timer.d.next = (self.timer.q.val() + 1) & elab!(bits::<6>(self._eqs.0 - 1));
            }
        }

        let row = self.rows.rdata.val();
        let live = self.live.rdata.val();
        let kept = self.kept.rdata.val();
        let index = if self.met.q.val() { self.met_index.q.val() } else { self.consumer.rdata.val() };
        let e = self.taken.q.val();
        let req = self.table.req.val();
        let now = self.now.val().get_bits::<32>(0);

        let bad = self.rows.bad.val().valid;
        self.bad.next = self.rows.bad.val();
        self.rows.flip.next = self.flip.val();
        let mut address = eqn;
        let mut slot = self.slot.q.val();
        let mut read = false;
        let mut read_kept = false;
        let mut rows_we = false;
        let mut rows_next = Row {
            valid: req.row.get_bit(elab!(eq::VALID.lsb)),
            log2: req.row.get_bits::<5>(elab!(eq::LOG2_ENTRIES.lsb)),
            vector: req.row.get_bits::<5>(elab!(eq::VECTOR.lsb)),
            owner: req.row.get_bits::<12>(elab!(eq::OWNER.lsb)),
            moderation_count: req.row.get_bits::<16>(elab!(eq::MODERATION_COUNT.lsb)),
            moderation_cycles: req.row.get_bits::<24>(elab!(eq::MODERATION_CYCLES.lsb)),
            page: req.row.get_bits::<52>(elab!(eq::BASE.lsb + 12)),
        };
        let mut live_we = false;
        let mut live_next = live;
        let mut kept_we = false;
        let mut kept_slot = slot;
        let mut kept_next = Kept { valid: true, eqn, kind: e.kind.get_bits::<4>(0), value: e.value.get_bits::<8>(0) };

        // The decision: `held` entries are beyond the consumer index, of `size`.
        let size = entries(row.log2);
        let held = live.producer - index;
        let full = held == size;
        let job = self.job.q.val();
        let is_event = job == Job::New || job == Job::Again;
        let adds = is_event && row.valid && !full;
        let held_then = if adds { held + 1 } else { held };
        let armed = row.valid && (live.armed || (job == Job::Bell && self.arming.q.val()));
        let timed = (timing & here).any();
        let late = timed && !(now - live.deadline).get_bit(31);
        let enough = held_then >= row.moderation_count.cast::<24>() || held_then == size;
        let at_once = row.moderation_cycles == 0;
        let fire = armed && held_then != 0 && (enough || at_once || late);
        let start = armed && held_then != 0 && !fire && !timed;

        match state {
            State::Clear => {
                rows_we = true;
                address = self.clear.q.val().get_bits::<6>(0);
                rows_next = Row {
                    valid: false,
                    log2: 0.into(),
                    vector: 0.into(),
                    owner: 0.into(),
                    moderation_count: 0.into(),
                    moderation_cycles: 0.into(),
                    page: 0.into(),
                };
                kept_we = true;
                kept_slot = self.clear.q.val();
                kept_next = Kept { valid: false, eqn: 0.into(), kind: 0.into(), value: 0.into() };
                self.clear.d.next = self.clear.q.val() + 1;
                if self.clear.q.val() == elab!(bits::<14>(4 * self._objects.0 - 1)) {
                    self.state.d.next = State::Idle;
                }
            }
            State::Idle => {
                let others = due.any() || at || look != 0;
                if self.table.valid.val() {
                    address = req.index.get_bits::<6>(0);
                    self.eqn.d.next = address;
                    self.job.d.next = Job::Table;
                    if req.write {
                        // The consumer index starts anew as well, when the doorbells leave its port free.
                        if !rings {
                            self.table.ready.next = true;
                            rows_we = true;
                            live_we = true;
                            live_next = Live { producer: 0.into(), armed: false, deadline: 0.into() };
                            consumer_we = true;
                            consumer_eqn = address;
                            consumer_next = 0.into();
                            let gone = one << address;
                            arms &= !gone;
                            moved &= !gone;
                            timing &= !gone;
                            blocked &= !gone;
                            // Events kept for the former EQ are delivered or dropped.
                            if kept_count != 0 {
                                look = elab!(bits::<15>(4 * self._objects.0));
                            }
                        }
                    } else {
                        self.table.ready.next = true;
                        read = true;
                        self.state.d.next = State::Read;
                    }
                } else if sendable.any() {
                    self.vector.d.next = number(send_lowest).get_bits::<5>(0);
                    pending &= !send_lowest.get_bits::<32>(0);
                    self.state.d.next = State::MsixAddress;
                } else if others && (self.others_next.q.val() || !requested) {
                    self.others_next.d.next = false;
                    self.state.d.next = State::Read;
                    if due.any() {
                        address = number(due_lowest);
                        self.job.d.next = Job::Bell;
                        self.arming.d.next = (arms & due_lowest).any();
                        arms &= !due_lowest;
                        moved &= !due_lowest;
                        read = true;
                    } else if at {
                        address = self.timer.q.val();
                        self.job.d.next = Job::Timer;
                        read = true;
                    } else {
                        look -= 1;
                        slot = look.get_bits::<14>(0);
                        read_kept = true;
                        self.state.d.next = State::KeptRead;
                    }
                    self.eqn.d.next = address;
                } else if requested {
                    self.others_next.d.next = true;
                    self.arbiter.m.ready.next = true;
                    self.taken.d.next = offered;
                    address = offered.eqn.get_bits::<6>(0);
                    self.eqn.d.next = address;
                    self.beyond.d.next = offered.eqn >= elab!(bits::<8>(self._eqs.0));
                    let class: Bits<2> = if offered.kind == (event::COMPLETION as u64) {
                        0.into()
                    } else if offered.kind == (event::CQ_ERROR as u64) {
                        1.into()
                    } else if offered.kind == (event::QP_ERROR as u64) {
                        2.into()
                    } else {
                        3.into()
                    };
                    let low = offered.number.get_bits::<14>(0) & elab!(bits::<14>(self._objects.0 - 1));
                    slot = low | (class.cast::<14>() << elab!(self._objects.0.trailing_zeros() as u64));
                    self.job.d.next = Job::New;
                    read = true;
                    read_kept = true;
                    self.state.d.next = State::Read;
                }
            }
            State::KeptRead => self.state.d.next = State::KeptDecide,
            State::KeptDecide => {
                let mut again = e;
                again.eqn = kept.eqn.cast::<8>();
                again.kind = kept.kind.cast::<8>();
                again.number = (slot & elab!(bits::<14>(self._objects.0 - 1))).cast::<24>();
                again.value = kept.value.cast::<32>();
                self.taken.d.next = again;
                address = kept.eqn;
                self.eqn.d.next = address;
                self.beyond.d.next = false;
                self.job.d.next = Job::Again;
                if kept.valid {
                    read = true;
                    self.state.d.next = State::Read;
                } else {
                    self.state.d.next = State::Idle;
                    if kept_count == 0 {
                        look = 0.into();
                    }
                }
            }
            State::Read => self.state.d.next = State::Decide,
            State::Decide => {
                self.state.d.next = State::Idle;
                if job == Job::Table {
                    self.table.rvalid.next = true;
                } else if !(is_event && self.beyond.q.val()) {
                    live_we = true;
                    if adds {
                        live_next.producer = live.producer + 1;
                        self.write_due.d.next = true;
                        self.state.d.next = State::Emit;
                    }
                    live_next.armed = armed && !fire;
                    if fire {
                        let on: Bits<32> = 1.into();
                        pending |= on << row.vector;
                        timing &= !here;
                    } else if start {
                        live_next.deadline = now + row.moderation_cycles.cast::<32>();
                        timing |= here;
                    } else if held_then == 0 || !armed {
                        timing &= !here;
                    }
                    // Kept events: one more, one less, or worth another look.
                    if is_event && row.valid && full {
                        blocked |= here;
                        if job == Job::New {
                            kept_we = true;
                            if !kept.valid {
                                kept_count += 1;
                            }
                        }
                    } else if job == Job::Again {
                        kept_we = true;
                        kept_next.valid = false;
                        kept_count -= 1;
                    }
                    if job == Job::Bell && (blocked & here).any() && !full {
                        blocked &= !here;
                        look = elab!(bits::<15>(4 * self._objects.0));
                    }
                }
            }
            State::MsixAddress => self.state.d.next = State::MsixData,
            State::MsixData => self.state.d.next = State::MsixWait,
            State::MsixWait => self.state.d.next = State::MsixFill,
            State::MsixFill => {
                self.write_due.d.next = true;
                self.state.d.next = State::Emit;
            }
            State::Emit => {
                // Parity comes in the first cycle: no EQE goes anywhere by a damaged row.
                if self.write.ready.val() || bad {
                    self.write_due.d.next = false;
                    self.state.d.next = State::Idle;
                }
            }
        }

        // A doorbell's bits win over the engine's: it comes later.
        if rings {
            let bell = one << rung;
            moved |= bell;
            if ring.arm {
                arms |= bell;
            }
        }
        self.arms.d.next = arms;
        self.moved.d.next = moved;
        self.timing.d.next = timing;
        self.blocked.d.next = blocked;
        self.pending.d.next = pending;
        self.look.d.next = look;
        self.kept_count.d.next = kept_count;
        self.slot.d.next = slot;

        let mut w = self.write_data.q.val();
        w.is_inline = true;
        w.buf = 0.into();
        w.rows = 0.into();
        let place = live.producer & (size - 1);
        let phase = !live.producer.get_bit(row.log2.index());
        if state == State::Decide {
            w.iova = cat!(row.page, bits::<12>(0)) + cat!(64; bits::<36>(0), place, bits::<4>(0));
            w.len = 16.into();
            w.data = cat!(256;
                bits::<128>(0), bits::<7>(0), phase, bits::<24>(0), e.value, bits::<8>(0), e.number, bits::<24>(0), e.kind);
        } else if state == State::MsixWait {
            w.iova = self.msix_half.val();
            w.len = 4.into();
        } else if state == State::MsixFill {
            w.data = self.msix_half.val().get_bits::<32>(0).cast::<256>();
        }
        self.write_data.d.next = w;
        self.write.data.next = self.write_data.q.val();
        self.write.valid.next = self.write_due.q.val() && !bad;
        self.msix_re.next = state == State::MsixAddress || state == State::MsixData;
        self.msix_addr.next = cat!(self.vector.q.val(), state == State::MsixData);
        self.msix_pending.next = self.pending.q.val();
        self.table.rdata.next = cat!(512;
            bits::<328>(0), live.producer, bits::<8>(0), row.moderation_cycles, row.page, bits::<12>(0), bits::<8>(0),
            row.moderation_count, bits::<4>(0), row.owner, bits::<3>(0), row.vector, bits::<3>(0), row.log2, bits::<7>(0),
            row.valid);

        // Table ports.
        self.rows.we.next = rows_we;
        self.rows.waddr.next = address.cast::<24>();
        self.rows.wdata.next = rows_next;
        self.rows.re.next = read;
        self.rows.raddr.next = address.cast::<24>();
        self.live.we.next = live_we;
        self.live.waddr.next = address.cast::<24>();
        self.live.wdata.next = live_next;
        self.live.re.next = read;
        self.live.raddr.next = address.cast::<24>();
        self.consumer.we.next = consumer_we;
        self.consumer.waddr.next = consumer_eqn.cast::<24>();
        self.consumer.wdata.next = consumer_next;
        self.consumer.re.next = read;
        self.consumer.raddr.next = address.cast::<24>();
        if read {
            self.met.d.next = consumer_we && consumer_eqn == address;
            self.met_index.d.next = consumer_next;
        }
        self.kept.we.next = kept_we;
        self.kept.waddr.next = kept_slot.cast::<24>();
        self.kept.wdata.next = kept_next;
        self.kept.re.next = read_kept;
        self.kept.raddr.next = slot.cast::<24>();
    }
}

const _: () = assert!(MSIX_VECTORS == 32);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::testing::{read_row, write_row};
    use abi::queue::eqe;
    use rand::RngExt;

    use std::collections::{BTreeMap, btree_map::Entry};
    use verilate::{
        Model, Options,
        bench::{self, Actor, Beat, Stall},
    };

    const EQS: usize = 8;

    fn model() -> Model {
        let mut m = Model::of(|| EventQueue::new(EQS, 64), Options::default()).unwrap();
        m.reset();
        m
    }

    fn row(log2: u64, vector: u64, count: u64, cycles: u64) -> [u8; 64] {
        let mut row = [0; 64];
        eq::VALID.set(&mut row, 1);
        eq::LOG2_ENTRIES.set(&mut row, log2);
        eq::VECTOR.set(&mut row, vector);
        eq::OWNER.set(&mut row, 3);
        eq::MODERATION_COUNT.set(&mut row, count);
        eq::MODERATION_CYCLES.set(&mut row, cycles);
        eq::BASE.set(&mut row, vector << 20 | 0x1000);
        row
    }

    fn ring(m: &mut Model, eqn: usize, consumer: u64, arm: bool) {
        let bell = Ring {
            number: bits::<12>(eqn as u64),
            index: bits::<24>(consumer),
            arm,
            arm_solicited: false,
            sequence: 0.into(),
        };
        m.set_bytes("ring", &verilate::bits::of(bell));
        m.set("ring_valid", 1);
    }

    fn event(eqn: usize, kind: u8, number: u64, value: u64) -> Event {
        Event {
            eqn: bits::<8>(eqn as u64),
            kind: bits::<8>(kind as u64),
            number: bits::<24>(number),
            value: bits::<32>(value),
        }
    }

    /// The MSI-X table in registers: vector v writes v + 0x500 to 0xfee0_0000_0000 + 4 v.
    #[derive(Default)]
    struct Msix([u64; 2]);
    impl Actor for Msix {
        fn drive(&mut self, m: &mut Model) {
            let v = self.0[1] / 2;
            m.set("msix_half", if self.0[1] & 1 == 0 { 0xfee0_0000_0000 + 4 * v } else { 0x500 + v });
            let cycle = m.cycle();
            m.set("now", cycle);
        }
        fn observe(&mut self, m: &Model) {
            self.0[1] = self.0[0];
            if m.bit("msix_re") {
                self.0[0] = m.get("msix_addr");
            }
        }
        fn done(&self) -> bool {
            true
        }
        fn status(&self) -> String {
            String::new()
        }
    }

    /// The vector, when a write is a message.
    fn message(beat: &Beat) -> Option<usize> {
        let v = (beat.get("iova").checked_sub(0xfee0_0000_0000)? / 4) as usize;
        assert_eq!(
            (beat.get("len"), beat.bytes("data.data")[..4].to_vec()),
            (4, (0x500 + v as u32).to_le_bytes().to_vec())
        );
        Some(v)
    }

    #[derive(Default)]
    struct Eq {
        written: u64,
        consumed: u64,
        rung: u64,
        armed: bool,
    }

    #[test]
    fn every_event_arrives_once_and_every_arm_interrupts() {
        let seed = 11;
        println!("seed {seed}");
        let mut rng = verilate::rng(seed);
        let mut m = model();
        // EQ e has 2^(e % 4) entries and vector 8 + e; CQ c reports to EQ c % 8; QP errors go to EQ 0.
        for e in 0..EQS {
            write_row(&mut m, e, &row(e as u64 % 4, 8 + e as u64, [0, 1, 3][e % 3], 200 * (e as u64 % 2)));
        }
        let mut sources: Vec<_> = (0..REPORTERS)
            .map(|i| bench::Source::new(&m, &format!("event[{i}]"), Stall::Random, seed + i as u64))
            .collect();
        let mut w = bench::Sink::new(&m, "write", Stall::Random, seed + 9);
        let mut msix = Msix::default();
        let mut eqs: Vec<Eq> = (0..EQS).map(|_| Eq::default()).collect();
        let mut waiting: BTreeMap<(u64, u64), u64> = BTreeMap::new();
        let (mut sent, mut messages, mut idle) = (0, 0, 0);
        let total = verilate::scale(2000);
        while idle < 6000 {
            idle += 1;
            if sent < total && rng.random_bool(0.1) {
                let number = rng.random_range(0..64);
                let kind = if rng.random_bool(0.7) { event::COMPLETION } else { event::QP_ERROR };
                let eqn = if kind == event::COMPLETION { number as usize % EQS } else { 0 };
                if let Entry::Vacant(place) = waiting.entry((kind.into(), number)) {
                    let value = rng.random_range(0..256);
                    place.insert(value);
                    sources[rng.random_range(0..REPORTERS)].send(event(eqn, kind, number, value));
                    sent += 1;
                    idle = 0;
                }
            }
            m.set("ring_valid", 0);
            let e = rng.random_range(0..EQS);
            let q = &mut eqs[e];
            if rng.random_bool(0.02) {
                q.consumed = rng.random_range(q.rung..=q.written);
                let arm = !q.armed && rng.random_bool(0.7);
                (q.armed, q.rung) = (q.armed || arm, q.consumed);
                ring(&mut m, e, q.consumed, arm);
            }
            if rng.random_bool(0.01) {
                let mask = if sent < total { rng.random_range(0..1 << 32) } else { 0 };
                m.set("msix_mask", mask);
            }
            let mut actors: Vec<&mut dyn Actor> = sources.iter_mut().map(|s| s as &mut dyn Actor).collect();
            actors.extend([&mut w as &mut dyn Actor, &mut msix]);
            bench::cycle(&mut m, &mut actors);
            while let Some(beat) = w.pop() {
                idle = 0;
                if let Some(v) = message(&beat) {
                    assert!(eqs[v - 8].armed, "EQ {} interrupts unarmed", v - 8);
                    eqs[v - 8].armed = false;
                    messages += 1;
                    continue;
                }
                let e = (beat.get("iova") >> 20) as usize - 8;
                let q = &mut eqs[e];
                assert_eq!(beat.get("iova"), ((8 + e as u64) << 20) + 0x1000 + (q.written % (1 << (e % 4))) * 16);
                let entry = beat.bytes("data.data");
                assert!(q.written - q.rung < 1 << (e % 4), "EQ {e} ran over");
                assert_eq!(eqe::PHASE.get(&entry), !(q.written >> (e % 4)) & 1);
                let object = (eqe::TYPE.get(&entry), eqe::NUMBER.get(&entry));
                assert_eq!(waiting.remove(&object), Some(eqe::DATA.get(&entry)), "{object:?}");
                assert_eq!(e, if object.0 == event::COMPLETION as u64 { object.1 as usize % EQS } else { 0 });
                q.written += 1;
            }
        }
        assert!(waiting.is_empty(), "lost: {waiting:?}");
        assert!(sent == total && messages > 100);
        for (e, q) in eqs.iter().enumerate() {
            assert!(!q.armed || q.written == q.rung, "EQ {e} sleeps over {} entries", q.written - q.rung);
            assert_eq!(eq::PRODUCER.get(&read_row(&mut m, e)), q.written);
        }
    }

    #[test]
    fn moderation_counts_and_times() {
        let mut m = model();
        write_row(&mut m, 1, &row(4, 2, 4, 500));
        let mut s = bench::Source::new(&m, "event[0]", Stall::Never, 1);
        let mut w = bench::Sink::new(&m, "write", Stall::Never, 2);
        let mut msix = Msix::default();
        let mut waits = vec![];
        let mut consumer = 0;
        for count in [4, 1, 6] {
            ring(&mut m, 1, consumer, true);
            bench::cycle(&mut m, &mut [&mut s, &mut w, &mut msix]);
            m.set("ring_valid", 0);
            (0..count).for_each(|i| s.send(event(1, event::COMPLETION, i, 0)));
            let start = m.cycle();
            let mut got = 0;
            while m.cycle() < start + 1000 {
                bench::cycle(&mut m, &mut [&mut s, &mut w, &mut msix]);
                while let Some(beat) = w.pop() {
                    if message(&beat).is_some() {
                        waits.push(m.cycle() - start);
                    } else {
                        got += 1;
                    }
                }
            }
            assert_eq!(got, count);
            consumer += count;
        }
        assert_eq!(waits.len(), 3);
        assert!(waits[0] < 40 && (500..560).contains(&waits[1]) && waits[2] < 40, "{waits:?}");
    }

    #[test]
    fn a_masked_vector_waits_and_is_sent_once() {
        let mut m = model();
        write_row(&mut m, 0, &row(4, 5, 0, 0));
        let mut s = bench::Source::new(&m, "event[3]", Stall::Never, 1);
        let mut w = bench::Sink::new(&m, "write", Stall::Never, 2);
        let mut msix = Msix::default();
        m.set("msix_mask", 1 << 5);
        ring(&mut m, 0, 0, true);
        bench::cycle(&mut m, &mut [&mut s, &mut w, &mut msix]);
        m.set("ring_valid", 0);
        s.send(event(0, event::DOORBELL, 77, 3));
        bench::run(&mut m, &mut [&mut s, &mut w, &mut msix], 1000);
        assert_eq!((w.len(), m.get("msix_pending")), (1, 1 << 5));
        w.pop();
        m.set("msix_mask", 0);
        bench::run(&mut m, &mut [&mut s, &mut w, &mut msix], 1000);
        assert_eq!((w.pop().and_then(|b| message(&b)), w.len(), m.get("msix_pending")), (Some(5), 0, 0));
    }
}
