//! Event queues: writes each [`Event`] as an EQE and says when an interrupt is due. For completion, qp_state, doorbell and the
//! soft core, which report; [`super::messages`] sends the interrupts.
//!
//! ```text
//! cycle     0      1      2      3       4       5       6      7                     8
//! state     Idle   Read   Wait   Count   Judge   Weigh   Act    Emit                  Idle
//! event     taken  rows.re       rows                           EQE (until taken)
//!                                held    full    enough  fire
//! ```
//!
//! 8 cycles an event and 8 a message. EQE and message go through one ordered channel, so the host finds the EQE.
//!
//! *Interrupts.* An EQ doorbell with `arm` asks for one message. It is due when the armed EQ holds entries beyond the
//! consumer index: `MODERATION_COUNT` of them, or for `MODERATION_CYCLES` at least one, or all that fit.
//!
//! *Full EQs.* An event without room is kept, never waited for: one slot per object for COMPLETION, CQ_ERROR and
//! QP_ERROR, and one per number for all others (of two kinds with one number the later stays). When a doorbell makes
//! room in an EQ with kept events, all slots are looked through, between other work.
//!
//! *What comes next* (a doorbell's EQ, a timer's, a message) is chosen a cycle ahead, in registers. So a choice may be of before
//! a change: then there is nothing to do, and the decision finds that.
//!
//! It cannot deadlock: it waits for `write` only, which ends in posted writes.

use super::{entries, flags::first_of, messages::Messages};
use crate::msg::{DmaWrite, Event, Ring};
use crate::stream::{Arbiter, BadRow, GuardedTable, Sink, Source, Table, TablePort};
use abi::{
    bar::health,
    queue::event,
    status::cause,
    table::{eq, id},
};
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

/// An [`Event`] in as many bits as events have: 8 of data, which all causes, tables and states have.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Told {
    eqn: Bits<8>,
    kind: Bits<4>,
    number: Bits<24>,
    value: Bits<8>,
}

// All kinds of events fit, and what they say: causes and tables are bytes, a port is up or down, health is a set of bits.
const _: () = {
    let kinds = event::ALL.values;
    let mut i = 0;
    while i < kinds.len() {
        assert!(kinds[i].1 < 1 << 4, "a kind of event takes more than 4 bits");
        i += 1;
    }
    assert!(size_of_val(&cause::NONE) == 1 && size_of_val(&id::EQ) == 1, "a cause or a table takes more than 8 bits");
    let all = health::READY | health::SILENT | health::PARITY | health::BUS;
    assert!(all < 1 << 8, "the state of health takes more than 8 bits");
};

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
    Table,
    KeptRead,
    KeptWait,
    KeptTake,
    Read,
    Wait,
    Count,
    Judge,
    Weigh,
    Act,
    Message,
    Emit,
}

#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
enum Job {
    /// A new event.
    New,
    /// A kept one.
    Again,
    /// A doorbell or a timer.
    Look,
    Table,
}

/// The event queues. See the module.
#[derive(LogicBlock, Default)]
pub struct EventQueue {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// Events of completion, qp_state, doorbell, control. Of kind and value the lowest 4 and 8 bits count.
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

    arbiter: Arbiter<Told, REPORTERS>,
    messages: Messages,
    state: Reg<State>,
    job: Reg<Job>,
    eqn: Reg<Bits<6>>,
    /// EQ number of the event is impossible.
    beyond: Reg<Bit>,
    arming: Reg<Bit>,
    taken: DFF<Told>,
    slot: DFF<Bits<14>>,
    rows: GuardedTable<Row>,
    live: Table<Live>,
    consumer: Table<Bits<24>>,
    met: Reg<Bit>,
    met_index: DFF<Bits<24>>,
    clear: Reg<Bits<14>>,
    /// A doorbell.
    rang: Reg<Bit>,
    rung: DFF<Ring>,
    /// Per EQ: an arm came; the consumer index moved; a timer runs; events are kept.
    arms: Reg<Bits<64>>,
    moved: Reg<Bits<64>>,
    timing: Reg<Bits<64>>,
    blocked: Reg<Bits<64>>,
    /// A doorbell is to be served; a timer runs; slots are to be looked through.
    due: Reg<Bit>,
    due_eqn: DFF<Bits<6>>,
    timer: Reg<Bits<6>>,
    times: Reg<Bit>,
    times_eqn: DFF<Bits<6>>,
    looks: Reg<Bit>,
    /// What is looked at is a doorbell's; no event is kept.
    rings: Reg<Bit>,
    none_kept: Reg<Bit>,
    others_next: Reg<Bit>,
    kept: Table<Kept>,
    kept_count: Reg<Bits<15>>,
    /// Slots still to be looked through.
    look: Reg<Bits<15>>,

    /// The decision, as it grows. Count: entries beyond the consumer index, and all that fit; place of the next; whether its timer
    /// runs and is over; whether an interrupt does not wait for more.
    held: DFF<Bits<24>>,
    size: DFF<Bits<24>>,
    place: DFF<Bits<24>>,
    timed: DFF<Bit>,
    over: DFF<Bit>,
    at_once: DFF<Bit>,
    was_blocked: DFF<Bit>,
    /// Judge: no room; an entry more; how many are held with it; the row is damaged.
    full: DFF<Bit>,
    adds: DFF<Bit>,
    held_then: DFF<Bits<24>>,
    damaged: DFF<Bit>,
    /// Weigh: entries are held; as many as an interrupt wants; the row and the number are good.
    some: DFF<Bit>,
    enough: DFF<Bit>,
    sound: DFF<Bit>,

    write_due: Reg<Bit>,
    is_message: Reg<Bit>,
    address: DFF<Bits<52>>,
    phase: DFF<Bit>,
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
        regs!(self, clock, rst, state, job, eqn, beyond, arming, met, clear, rang, arms, moved, timing, blocked);
        regs!(
            self,
            clock,
            rst,
            due,
            timer,
            times,
            looks,
            rings,
            none_kept,
            others_next,
            kept_count,
            look,
            write_due,
            is_message
        );
        dff_setup!(
            self, clock, taken, slot, met_index, rung, due_eqn, times_eqn, held, size, place, timed, over, at_once
        );
        dff_setup!(self, clock, was_blocked, full, adds, held_then, damaged, some, enough, sound, address, phase);
        clock!(self, clock, rows, live, consumer, kept);
        clock_reset!(self, clock, rst, arbiter, messages);
        for i in 0..REPORTERS {
            let event = self.event[i].data.val();
            self.arbiter.s[i].data.next = Told {
                eqn: event.eqn,
                kind: event.kind.get_bits::<4>(0),
                number: event.number,
                value: event.value.get_bits::<8>(0),
            };
            self.arbiter.s[i].valid.next = self.event[i].valid.val();
            self.event[i].ready.next = self.arbiter.s[i].ready.val();
        }
        self.arbiter.more.next = 0.into();
        self.arbiter.m.ready.next = false;
        self.table.ready.next = false;
        self.table.rvalid.next = false;
        self.count.next = 0.into();
        self.messages.go.next = false;
        let state = self.state.q.val();
        let job = self.job.q.val();
        let last: Bits<6> = elab!(bits::<6>(self._eqs.0 - 1));
        // Of no more bits than there are EQs.
        let eqn = self.eqn.q.val() & last;
        let one: Bits<64> = 1.into();
        let here = one << eqn;

        // Doorbells.
        let ring = self.ring.val();
        self.rang.d.next = self.ring_valid.val() && ring.number < elab!(bits::<12>(self._eqs.0));
        if self.ring_valid.val() {
            self.rung.d.next = ring;
        }
        let rang = self.rang.q.val();
        let rung = self.rung.q.val();
        let rung_eqn = rung.number.get_bits::<6>(0) & last;
        let mut consumer_we = rang;
        let mut consumer_eqn = rung_eqn;
        let mut consumer_next = rung.index;
        let mut arms = self.arms.q.val();
        let mut moved = self.moved.q.val();
        let mut timing = self.timing.q.val();
        let mut blocked = self.blocked.q.val();
        let mut look = self.look.q.val();
        let mut kept_count = self.kept_count.q.val();

        // What waits to be done.
        let due = arms | (moved & blocked);
        self.due.d.next = due.any();
        self.due_eqn.d.next = first_of(due);
        let times = self.times.q.val();
        let timer = self.timer.q.val() & last;
        // Only move where something can be found: still logic costs nothing.
        if !times && timing.any() {
            self.timer.d.next = timer + 1;
            self.times.d.next = timing.get_bit(timer.index());
            self.times_eqn.d.next = timer;
        }
        let requested = self.arbiter.m.valid.val();
        let offered = self.arbiter.m.data.val();

        let row = self.rows.rdata.val();
        let live = self.live.rdata.val();
        let kept = self.kept.rdata.val();
        let e = self.taken.q.val();
        let req = self.table.req.val();
        let now = self.now.val().get_bits::<32>(0);

        self.bad.next = self.rows.bad.val();
        self.rows.flip.next = self.flip.val();
        let slot = self.slot.q.val();
        let object: Bits<14> = elab!(bits::<14>(self._objects.0 - 1));
        let slots: Bits<15> = elab!(bits::<15>(4 * self._objects.0));
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
        let mut kept_next = Kept { valid: true, eqn, kind: e.kind, value: e.value };

        // The decision, a step a cycle. Count and Judge:
        let all = entries(row.log2);
        let size = self.size.q.val();
        let is_event = job == Job::New || job == Job::Again;
        let index = if self.met.q.val() { self.met_index.q.val() } else { self.consumer.rdata.val() };
        self.held.d.next = live.producer - index;
        self.size.d.next = all;
        self.place.d.next = live.producer & (all - 1);
        self.phase.d.next = !live.producer.get_bit(row.log2.index());
        self.timed.d.next = timing.get_bit(eqn.index());
        self.over.d.next = !(now - live.deadline).get_bit(31);
        self.at_once.d.next = row.moderation_cycles == 0;
        self.was_blocked.d.next = blocked.get_bit(eqn.index());
        let no_room = self.held.q.val() == size;
        let more = is_event && row.valid && !no_room;
        self.full.d.next = no_room;
        self.adds.d.next = more;
        self.held_then.d.next = if more { self.held.q.val() + 1 } else { self.held.q.val() };
        // Parity comes in the cycle behind the row.
        if state == State::Judge {
            self.damaged.d.next = self.rows.bad.val().valid;
        }
        // Weigh:
        let held_then = self.held_then.q.val();
        let timely = self.at_once.q.val() || (self.timed.q.val() && self.over.q.val());
        self.some.d.next = held_then != 0;
        self.enough.d.next = held_then >= row.moderation_count.cast::<24>() || held_then == size || timely;
        self.sound.d.next = !(is_event && self.beyond.q.val()) && !self.damaged.q.val();
        // Act:
        let (full, adds) = (self.full.q.val(), self.adds.q.val());
        let armed = row.valid && (live.armed || self.arming.q.val());
        let fire = armed && self.some.q.val() && self.enough.q.val();
        let start = armed && self.some.q.val() && !self.enough.q.val() && !self.timed.q.val();
        let acts = state == State::Act && self.sound.q.val();
        self.messages.fire.next = acts && fire;
        self.messages.vector.next = row.vector;

        match state {
            State::Clear => {
                rows_we = true;
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
                kept_next = Kept { valid: false, eqn: 0.into(), kind: 0.into(), value: 0.into() };
                self.clear.d.next = self.clear.q.val() + 1;
                if self.clear.q.val() == elab!(bits::<14>(4 * self._objects.0 - 1)) {
                    self.state.d.next = State::Idle;
                }
            }
            State::Idle => {
                self.rings.d.next = false;
                let others = self.due.q.val() || times || self.looks.q.val();
                self.arming.d.next = false;
                if self.table.valid.val() {
                    self.eqn.d.next = req.index.get_bits::<6>(0);
                    self.state.d.next = State::Table;
                } else if self.messages.any.val() {
                    self.messages.go.next = true;
                    self.state.d.next = State::Message;
                } else if others && (self.others_next.q.val() || !requested) {
                    self.others_next.d.next = false;
                    self.job.d.next = Job::Look;
                    self.state.d.next = State::Read;
                    self.rings.d.next = self.due.q.val();
                    if self.due.q.val() {
                        self.eqn.d.next = self.due_eqn.q.val();
                    } else if times {
                        self.eqn.d.next = self.times_eqn.q.val();
                        self.times.d.next = false;
                    } else {
                        look -= 1;
                        self.slot.d.next = look.get_bits::<14>(0);
                        self.state.d.next = State::KeptRead;
                    }
                } else if requested {
                    self.others_next.d.next = true;
                    self.arbiter.m.ready.next = true;
                    self.taken.d.next = offered;
                    self.eqn.d.next = offered.eqn.get_bits::<6>(0);
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
                    let low = offered.number.get_bits::<14>(0) & object;
                    self.slot.d.next = low | (class.cast::<14>() << elab!(self._objects.0.trailing_zeros() as u64));
                    self.job.d.next = Job::New;
                    self.state.d.next = State::Read;
                }
            }
            State::Table => {
                self.job.d.next = Job::Table;
                if !req.write {
                    self.table.ready.next = true;
                    self.state.d.next = State::Read;
                } else if !rang {
                    // The consumer index starts anew as well, when the doorbells leave its port free.
                    self.table.ready.next = true;
                    self.state.d.next = State::Idle;
                    rows_we = true;
                    live_we = true;
                    live_next = Live { producer: 0.into(), armed: false, deadline: 0.into() };
                    consumer_we = true;
                    consumer_eqn = eqn;
                    consumer_next = 0.into();
                    arms &= !here;
                    moved &= !here;
                    timing &= !here;
                    blocked &= !here;
                    // Events kept for the former EQ are delivered or dropped.
                    if !self.none_kept.q.val() {
                        look = slots;
                    }
                }
            }
            State::KeptRead => {
                read_kept = true;
                self.state.d.next = State::KeptWait;
            }
            State::KeptWait => self.state.d.next = State::KeptTake,
            State::KeptTake => {
                let mut again = e;
                again.eqn = kept.eqn.cast::<8>();
                again.kind = kept.kind;
                again.number = (slot & object).cast::<24>();
                again.value = kept.value;
                self.taken.d.next = again;
                self.eqn.d.next = kept.eqn;
                self.beyond.d.next = false;
                self.job.d.next = Job::Again;
                if kept.valid {
                    self.state.d.next = State::Read;
                } else {
                    self.state.d.next = State::Idle;
                    if self.none_kept.q.val() {
                        look = 0.into();
                    }
                }
            }
            State::Read => {
                read = true;
                read_kept = job == Job::New;
                if self.rings.q.val() {
                    // What rang until now; the consumer index is read in this cycle, too.
                    self.arming.d.next = arms.get_bit(eqn.index());
                    arms &= !here;
                    moved &= !here;
                }
                self.state.d.next = State::Wait;
            }
            State::Wait => self.state.d.next = State::Count,
            State::Count => {
                self.table.rvalid.next = job == Job::Table;
                self.state.d.next = if job == Job::Table { State::Idle } else { State::Judge };
            }
            State::Judge => self.state.d.next = State::Weigh,
            State::Weigh => self.state.d.next = State::Act,
            State::Act => {
                self.state.d.next = State::Idle;
                if acts {
                    live_we = true;
                    if adds {
                        live_next.producer = live.producer + 1;
                        self.write_due.d.next = true;
                        self.is_message.d.next = false;
                        self.state.d.next = State::Emit;
                    }
                    live_next.armed = armed && !fire;
                    if start {
                        live_next.deadline = now + row.moderation_cycles.cast::<32>();
                        timing |= here;
                    } else if fire || !self.some.q.val() || !armed {
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
                    } else if job == Job::Look && self.was_blocked.q.val() && !full {
                        blocked &= !here;
                        look = slots;
                    }
                }
            }
            State::Message => {
                if self.messages.done.val() {
                    self.write_due.d.next = true;
                    self.is_message.d.next = true;
                    self.state.d.next = State::Emit;
                }
            }
            State::Emit => {
                if self.write.ready.val() {
                    self.write_due.d.next = false;
                    self.state.d.next = State::Idle;
                }
            }
        }

        // A doorbell's bits win over the engine's: it comes later.
        if rang {
            let bell = one << rung_eqn;
            moved |= bell;
            if rung.arm {
                arms |= bell;
            }
        }
        self.arms.d.next = arms;
        self.moved.d.next = moved;
        self.timing.d.next = timing;
        self.blocked.d.next = blocked;
        self.look.d.next = look;
        // A look that ends with its slot is seen in time; all else may be seen a cycle late.
        self.looks.d.next = self.look.q.val().any() && state != State::KeptTake;
        self.kept_count.d.next = kept_count;
        self.none_kept.d.next = !self.kept_count.q.val().any();

        // The write. A ring is aligned to 4096, so that its place begins above bit 11. Of a message the lowest bytes count.
        let place = self.place.q.val();
        self.address.d.next = row.page + place.get_bits::<16>(8).cast::<52>();
        let is_message = self.is_message.q.val();
        let entry = cat!(128;
            bits::<7>(0), self.phase.q.val(), bits::<48>(0), e.value, bits::<8>(0), e.number, bits::<28>(0), e.kind);
        let lowest = if is_message { self.messages.data.val() } else { entry.get_bits::<32>(0) };
        self.write.valid.next = self.write_due.q.val();
        self.write.data.next = DmaWrite {
            iova: if is_message {
                self.messages.address.val()
            } else {
                cat!(64; self.address.q.val(), place.get_bits::<8>(0), bits::<4>(0))
            },
            len: if is_message { 4.into() } else { 16.into() },
            is_inline: true,
            buf: 0.into(),
            data: cat!(256; bits::<128>(0), entry.get_bits::<96>(32), lowest),
            rows: 0.into(),
        };
        self.messages.mask.next = self.msix_mask.val();
        self.messages.half.next = self.msix_half.val();
        self.msix_re.next = self.messages.re.val();
        self.msix_addr.next = self.messages.addr.val();
        self.msix_pending.next = self.messages.pending.val();
        self.table.rdata.next = cat!(512;
            bits::<328>(0), live.producer, bits::<8>(0), row.moderation_cycles, row.page, bits::<12>(0), bits::<8>(0),
            row.moderation_count, bits::<4>(0), row.owner, bits::<3>(0), row.vector, bits::<3>(0), row.log2, bits::<7>(0),
            row.valid);

        // Table ports.
        let clears = state == State::Clear;
        let clear = self.clear.q.val();
        self.rows.we.next = rows_we;
        self.rows.waddr.next = (if clears { clear.get_bits::<6>(0) & last } else { eqn }).cast::<24>();
        self.rows.wdata.next = rows_next;
        self.rows.re.next = read;
        self.rows.raddr.next = eqn.cast::<24>();
        self.live.we.next = live_we;
        self.live.waddr.next = eqn.cast::<24>();
        self.live.wdata.next = live_next;
        self.live.re.next = read;
        self.live.raddr.next = eqn.cast::<24>();
        self.consumer.we.next = consumer_we;
        self.consumer.waddr.next = consumer_eqn.cast::<24>();
        self.consumer.wdata.next = consumer_next;
        self.consumer.re.next = read;
        self.consumer.raddr.next = eqn.cast::<24>();
        if read {
            self.met.d.next = rang && rung_eqn == eqn;
            self.met_index.d.next = rung.index;
        }
        self.kept.we.next = kept_we;
        self.kept.waddr.next = (if clears { clear } else { slot }).cast::<24>();
        self.kept.wdata.next = kept_next;
        self.kept.re.next = read_kept;
        self.kept.raddr.next = slot.cast::<24>();
    }
}

#[cfg(test)]
#[path = "event_tests.rs"]
mod tests;
