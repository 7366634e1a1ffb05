//! Decides what a response means: the requester's half of the protocol that looks back, one packet at a time.
//!
//! ```text
//! cycle   0            1          2      3 Look           4 Weigh          5 Walk          6 Act            7
//!         Read: row,   (RAM)      Wait   differences of   what they mean   READ data       retire, land,    write row; Read
//!         record, SGEs                   row, record and  and in which     only: where     complete         for the next
//!                                        packet           SGE data lies    it lies                          packet
//!                                                         3 more cycles per further record that it acknowledges
//! ```
//! So 5 cycles for an ACK, 6 for READ data: where data lies takes three steps (bytes before the packet, the SGE, the place in it), each
//! of as many levels as fit a cycle, and the next packet's rows are read only behind Act, which makes its QP's new head.
//! That is 41 million READ responses a second at 250 MHz. A packet waits in a register of its own: it comes while the one before is weighed, and its QP's
//! head (oldest record, READ slot) is looked up, so that all addresses come from registers. A response that is announced
//! (`soon`) two cycles before it could be read, while the engine is idle, has its rows read when it comes, and goes on with `Look`
//! two cycles later. The row of a packet is written while the next one is read: one of the same QP gets it from the
//! register.
//!
//! A response acknowledges all before it: the oldest record is retired again and again until `todo` PSNs are accounted for, in
//! order, each with its completion. Then comes what the packet itself says: nothing, data of a READ, go back, wait, or
//! the end of the QP. A READ in the way of an acknowledgement means that its response was lost: go back to it.
//!
//! Wake-up calls ([`super::calls`]) are its own business, which must leave in order with the packets.
//!
//! It waits for its result's place only. `GoBack` has a queue of its own; when that is full, the message is dropped and the
//! timer tries again. The requester takes kicks always, and fault reports are taken when no wake-up call is pending.

use super::calls::Calls;
use super::completer_rules::*;
use super::opcode::*;
use super::sge::{SgeMap, Stretch, sge_entry, sge_map, sge_stretch};
use super::timers::{Timers, Wait, fast_timer};
use crate::{
    msg::*,
    stream::{BadRow, FreshTable, GuardedTable, Passage, Sink, Source, Table, TablePort},
};
use abi::{
    queue::send_op,
    status::{cause, counter, wc},
    table::{access, id, invalidate},
};
use hdl::prelude::*;

#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
enum State {
    Idle,
    Read,
    Wait,
    Look,
    Weigh,
    /// The SGE of READ data that is not all in the first one.
    Step,
    Walk,
    Act,
    /// The next record is read, if the op of this one had to wait.
    Next,
    NextWait,
    /// It is there.
    Again,
    /// For the table bus.
    RowRead,
    RowWait,
    RowThere,
}

/// See the module.
#[derive(LogicBlock, Default)]
pub struct Completer {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// From dispatch.
    pub meta: Sink<RxMeta>,
    /// Perhaps the next cycle brings a packet for this QP.
    pub soon: Signal<In, Bits<24>>,
    pub soon_valid: Signal<In, Bit>,
    /// To dispatch.
    pub op: Source<RxOp>,
    /// Calls that come back through `meta` in their turn.
    pub wake: Source<Qp>,
    /// A packet left for the MAC, or a raw frame; always ready.
    pub left: Sink<TxLeft>,
    pub fault: Sink<SendFault>,
    pub back: Source<GoBack>,
    /// Something was acknowledged; the requester is always ready.
    pub kick: Source<Qp>,
    /// Serves the requester: what is acknowledged, two cycles later.
    pub acked_re: Signal<In, Bit>,
    pub acked_addr: Signal<In, Qp>,
    pub acked: Signal<Out, Acked>,
    /// Reads how far the requester is: two cycles later, and held.
    pub sent_re: Signal<Out, Bit>,
    pub sent_addr: Signal<Out, Qp>,
    pub sent: Signal<In, Sent>,
    /// Reads the record at QP x 128 + record: two cycles later, for one cycle.
    pub record_re: Signal<Out, Bit>,
    pub record_addr: Signal<Out, Bits<24>>,
    pub record: Signal<In, Record>,
    /// Reads the SGEs of the READ at QP x 16 + slot: two cycles later.
    pub land_re: Signal<Out, Bit>,
    pub land_addr: Signal<Out, Bits<24>>,
    pub land: Signal<In, Bits<512>>,
    pub view_re: Signal<Out, Bit>,
    pub view_addr: Signal<Out, Qp>,
    pub view: Signal<In, QpView>,
    /// QP_SEND rows, and QP_RECV rows for the peer; a read gives the oldest unacknowledged PSN.
    pub table: TablePort,
    /// For tests: rows written now are stored damaged.
    pub flip: Signal<In, Bit>,
    /// A row was found damaged.
    pub bad: Signal<Out, BadRow>,
    pub count: Signal<Out, Bits<64>>,

    state: Reg<State>,
    /// The packet that waits, or is looked at.
    m: DFF<RxMeta>,
    m_valid: Reg<Bit>,
    /// Its QP; while there is none, the one that was announced: `early`. Its rows were read then: `hit`, of QP `asked`.
    at: DFF<Qp>,
    early: Reg<Bit>,
    hit: Reg<Bit>,
    asked: DFF<Qp>,
    /// Its head; it is of the QP whose packet is at work.
    head: DFF<Bits<11>>,
    same: DFF<Bit>,
    word: DFF<Word>,
    row_due: Reg<Bit>,
    /// The packet at work, and its QP's row.
    p: DFF<Packet>,
    said: DFF<Said>,
    now: DFF<Row>,
    /// It is to be written: after a packet or a load, with this verbs timeout.
    write: Reg<Bit>,
    timeout: DFF<Bits<5>>,
    alone: DFF<Bit>,
    loaded: DFF<Bit>,
    /// It was not written yet when it was read.
    forward: DFF<Bit>,
    generation: DFF<Gen>,
    /// The record that the requester writes next.
    sent_q: DFF<Bits<7>>,
    /// PSNs to acknowledge before the packet itself has its say, if any.
    todo: DFF<Psn>,
    some: DFF<Bit>,
    /// The oldest record, if there is one, its packets, and the number of the one behind it.
    has: DFF<Bit>,
    is_read: DFF<Bit>,
    is_local: DFF<Bit>,
    rec: DFF<Record>,
    packets: DFF<Psn>,
    next_record: DFF<Bits<7>>,
    /// It is retired; the packet waits for its op's place.
    retired: DFF<Bit>,
    stalled: DFF<Bit>,
    /// What of its message is acknowledged, in PSNs and in bytes, with the stretches of the packet that went; with `todo`.
    behind: DFF<Psn>,
    before: DFF<Bits<32>>,
    target: DFF<Psn>,
    facts: DFF<Facts>,
    worth: DFF<Worth>,
    trouble: DFF<Trouble>,
    map: DFF<SgeMap>,
    entry: DFF<Bits<2>>,
    stretch: DFF<Stretch>,
    /// Bytes of the packet, and where they are.
    want: DFF<Bits<14>>,
    place: DFF<BufAddr>,
    moved: DFF<Bit>,
    sample: DFF<Bits<12>>,
    /// The round trip with that sample: smoothed, deviation.
    measured: [DFF<Bits<16>>; 2],
    /// The timer that fired is the present one.
    timely: DFF<Bit>,
    /// If it makes progress, another packet may be marked; and what was doubled by firings ends.
    unmarks: DFF<Bit>,
    settles: DFF<Bit>,
    sampled: DFF<Bit>,
    /// It is data of a READ, which the marked packet waits behind if this does not answer it.
    queues: DFF<Bit>,

    attributes: GuardedTable<Attributes>,
    peers: Table<Peer>,
    rows: GuardedTable<Row>,
    /// Oldest record and next READ slot, which address other tables: read at once.
    heads: Ram<Bits<11>, 12>,
    goes_back: Reg<Bit>,
    ackeds: FreshTable<Acked>,
    calls: Calls,
    timers: Timers,

    /// Go backs that wait for the requester.
    backs: Passage<GoBack>,
    /// The oldest of them, on its way: whether it is taken comes late.
    back_valid: Reg<Bit>,
    back_q: DFF<GoBack>,
    op_valid: Reg<Bit>,
    op_q: DFF<RxOp>,
    kick_valid: Reg<Bit>,
    kick_q: DFF<Qp>,
    count_q: Reg<Bits<64>>,
    _qps: Hidden<usize>,
}

impl Completer {
    /// A completer of `qps` QPs, at most 4,096; a tick of 1.024 us has `tick` cycles (256 at 250 MHz), the fast
    /// timer at least `least` ticks, and `turn` for each QP that waits.
    pub fn new(qps: usize, tick: usize, least: u64, turn: u64) -> Self {
        Completer {
            attributes: GuardedTable::new(qps, "block"),
            peers: Table::new(qps, "block"),
            rows: GuardedTable::new(qps, "block"),
            heads: Ram::default().rows(qps).style("distributed").at_once(),
            ackeds: FreshTable::new(qps, "block"),
            backs: Passage::lasting(16),
            back_valid: Default::default(),
            back_q: Default::default(),
            calls: Calls::new(qps),
            timers: Timers::new(qps, tick, least, turn),
            _qps: Hidden(qps),
            ..Default::default()
        }
    }
}

impl Logic for Completer {
    #[kernel]
    fn update(&mut self) {
        regs!(
            self, clock, rst, state, m_valid, early, hit, row_due, write, goes_back, back_valid, op_valid, kick_valid
        );
        regs!(self, clock, rst, count_q);
        dff_setup!(
            self, clock, m, at, asked, head, same, word, p, said, now, timeout, loaded, forward, generation, sent_q
        );
        dff_setup!(self, clock, todo, some, rec, packets, next_record, retired, stalled, behind, before, target, facts);
        dff_setup!(self, clock, trouble, map, entry, stretch, want, place, moved, sample, measured, timely, sampled);
        dff_setup!(self, clock, back_q, op_q, kick_q, has, is_read, is_local, worth, alone, unmarks, settles, queues);
        clock!(self, clock, attributes, peers, rows, heads, ackeds);
        clock_reset!(self, clock, rst, timers, calls, backs);

        let state = self.state.q.val();
        let m = self.m.q.val();
        let m_valid = self.m_valid.q.val();
        let at = self.at.q.val();
        let p = self.p.q.val();
        let said = self.said.q.val();
        let now = self.now.q.val();
        let todo = self.todo.q.val();
        let rec = self.rec.q.val();
        let packets = self.packets.q.val();
        let behind = self.behind.q.val();
        let before = self.before.q.val();
        let attributes = self.attributes.rdata.val();
        let row = if self.forward.q.val() { now } else { self.rows.rdata.val() };
        let fault = self.calls.told.val();
        let call = self.calls.call.val();
        let view = self.view.val();
        let table = self.table.req.val();
        let write = self.write.q.val();
        let row_due = self.row_due.q.val();
        let op_free = !self.op_valid.q.val();
        let (idle, look, weigh) = (state == State::Idle, state == State::Look, state == State::Weigh);
        let (act, starts) = (state == State::Act, state == State::Read);
        let mask: Qp = elab!(numbers(self._qps.0));

        // ---- Ports and their defaults.
        let hit = self.hit.q.val() && m_valid;
        let open = idle && row_due && !write && !self.hit.q.val();
        let table_now = open && self.table.valid.val();
        self.row_due.d.next = self.table.valid.val();
        self.table.ready.next = open;
        self.table.rdata.next = row_of(attributes, self.rows.rdata.val());
        self.table.rvalid.next = state == State::RowThere;
        self.op.data.next = self.op_q.q.val();
        self.op.valid.next = self.op_valid.q.val();
        self.kick.data.next = self.kick_q.q.val();
        self.kick.valid.next = self.kick_valid.q.val();
        if self.op.ready.val() {
            self.op_valid.d.next = false;
        }
        if self.kick.ready.val() {
            self.kick_valid.d.next = false;
        }
        let back_valid = self.back_valid.q.val();
        self.backs.m.ready.next = !back_valid;
        if !back_valid {
            self.back_q.d.next = self.backs.m.data.val();
        }
        self.back_valid.d.next = if back_valid { !self.back.ready.val() } else { self.backs.m.valid.val() };
        self.back.data.next = self.back_q.q.val();
        self.back.valid.next = back_valid;

        // ---- The next packet. A call knows its PSN from the timer.
        let incoming = self.meta.data.val();
        let comes = self.meta.valid.val();
        self.meta.ready.next = !m_valid;
        self.m_valid.d.next = if m_valid { !look } else { comes };
        if !m_valid {
            self.m.d.next = incoming;
            if !incoming.response {
                self.m.d.next.psn = call.fired.psn;
            }
            self.at.d.next = if comes { incoming.qpn.get_bits::<12>(0) } else { self.soon.val().get_bits::<12>(0) };
        }
        self.word.d.next = word_of(m, call.fault, call.left);

        // ---- Reads of its QP, perhaps as it is announced. `at` is a register, and the head was read in the cycle before.
        let quiet = idle && !m_valid && !write && !row_due;
        self.early.d.next = quiet && self.soon_valid.val() && !comes;
        let ahead = self.early.q.val() && !row_due;
        self.hit.d.next = ahead;
        self.asked.d.next = at;
        let here = m.response && !((self.asked.q.val() ^ at) & mask).any();
        let reads = ahead || starts;
        let row_read = state == State::RowRead;
        self.heads.re.next = true;
        self.heads.raddr.next = if m_valid { at } else { self.soon.val().get_bits::<12>(0) };
        self.head.d.next = self.heads.rdata.val();
        self.same.d.next = !((p.qpn ^ at) & mask).any();
        let forward = write && self.same.q.val();
        let head = if forward { head_of(now) } else { self.head.q.val() };
        if reads {
            self.forward.d.next = forward;
        }
        let who = if row_read { p.qpn } else { at };
        self.attributes.re.next = reads || row_read;
        self.attributes.raddr.next = who.cast::<24>();
        self.rows.re.next = reads && !forward || row_read;
        self.rows.raddr.next = who.cast::<24>();
        self.peers.re.next = reads;
        self.peers.raddr.next = at.cast::<24>();
        // Whether or not rows are due: so that a fault's way need not know.
        self.calls.told_re.next = self.early.q.val() || starts;
        self.calls.told_addr.next = at.cast::<24>();
        self.view_re.next = reads;
        self.view_addr.next = at;
        self.sent_re.next = reads;
        self.sent_addr.next = at;
        self.timers.mark_re.next = reads;
        self.timers.mark_addr.next = at;
        self.land_re.next = reads;
        self.land_addr.next = cat!(24; bits::<8>(0), at, head.get_bits::<4>(7));
        // The next record, should the packet at work acknowledge more than one.
        let further = weigh || state == State::Walk || state == State::Next;
        self.record_re.next = reads || further;
        self.record_addr.next = if further {
            cat!(24; bits::<5>(0), p.qpn, self.next_record.q.val())
        } else {
            cat!(24; bits::<5>(0), at, head.get_bits::<7>(0))
        };

        // ---- Wake-up calls, and the timers that make some.
        Sink::<SendFault>::link(&mut self.fault, &mut self.calls.fault);
        Source::<Qp>::link(&mut self.wake, &mut self.calls.wake);
        self.calls.fired.next = self.timers.fired.val();
        self.calls.fired_valid.next = self.timers.fired_valid.val();
        self.timers.take.next = self.calls.take.val();
        self.left.ready.next = true;
        self.calls.left.next = self.left.data.val();
        self.calls.left_valid.next = self.left.valid.val();
        self.timers.left.next = self.left.data.val();
        self.timers.left_valid.next = self.left.valid.val();

        // ---- What was weighed, from registers, and what becomes of it.
        let f = self.facts.q.val();
        let trouble = self.trouble.q.val();
        let stretch = self.stretch.q.val();
        let fired = call.fired;
        let lands = f.data && f.good;
        let fails = f.fails || f.data && !f.good;
        // A fault may be due behind a READ: look again, as after an ACK.
        let looks = lands && stretch.last && f.final_one && now.fault;
        let again = f.retire && !f.finished || looks;
        let ends = !(again || lands && !stretch.last);
        let moves = f.retire || lands && stretch.last;
        let acts = act && op_free;
        let done = acts && ends;
        let counts = done && !f.nothing;
        let back = f.back && self.backs.s.ready.val();
        let (by_timer, by_fault) = (said.kind == SAYS_TIMER, said.kind == SAYS_FAULT);
        let completes =
            if fails { f.has || f.of_fault && trouble.has_blocks } else { moves && f.whole && rec.signaled };

        // ---- The row behind it.
        let mut new = now;
        let plus = f.data && !f.final_one;
        let end = now.message
            + if f.whole { packets } else { self.target.q.val() }
            + if plus { bits::<24>(1) } else { 0.into() };
        if moves {
            new.psn = end;
            new.reading = plus;
            new.retry = attributes.retry;
            new.fires = kept(now.fires);
            new.recovering = false;
            new.rnr = false;
            if said.kind != SAYS_RNR {
                new.rnr_retry = attributes.rnr_retry;
            }
            if f.whole {
                new.message = end;
                new.record = now.record + 1;
                new.index = now.index + blocks_of(rec).cast::<16>();
                if f.is_read {
                    new.reads = now.reads + 1;
                }
            }
        }
        // The peer's receives. The limit does not fall behind what is done.
        let worth = self.worth.q.val();
        let retires = moves && f.whole;
        let tells =
            worth.counts && !(worth.early && retires) && (f.quiet || f.retire && f.finished || lands && stretch.last);
        let gives = tells && worth.news;
        if tells {
            new.limited = p.credit.limited;
            new.limit = p.credit.limit;
        } else if retires && worth.edge {
            new.limit = now.record + 1;
        }
        if f.rnr && !fails {
            if now.rnr_retry != 7 {
                new.rnr_retry = now.rnr_retry - 1;
            }
            new.rnr = true;
            new.rnr_code = p.code;
        }
        if f.local {
            new.fault = false;
        }
        if f.fault && trouble.known && !trouble.due {
            new.fault = !trouble.past;
        }
        // Going back, and what it costs.
        if back {
            if !f.free {
                new.retry = now.retry - 1;
            }
            if by_timer && !now.rnr && now.fires != 15 {
                new.fires = now.fires + 1;
            }
            new.rnr = false;
            new.reading = false;
            new.recovering = true;
            new.fault = false;
        }
        if back || f.rnr && !fails {
            new.turn = now.turn + 1;
        }
        if fails {
            new.halted = true;
        }
        let moved = self.moved.q.val() || moves;
        if moved {
            new.queued = !self.unmarks.q.val() && (now.queued || self.queues.q.val());
        }
        if (said.kind == SAYS_ACK || said.kind == SAYS_DATA) && ends && moved {
            if self.sampled.q.val() {
                new.srtt = self.measured[0].q.val();
                new.rttvar = self.measured[1].q.val();
            }
            if self.settles.q.val() {
                new.fires = 0.into();
            }
        }

        // ---- Its op. It frees the rows, and what was found wrong is why the QP ends.
        let status = if f.of_fault {
            trouble.status
        } else if f.spent {
            wc::RETRY_EXC.to_bits()
        } else if f.data {
            wc::BAD_RESP.to_bits()
        } else if f.rnr {
            wc::RNR_RETRY_EXC.to_bits()
        } else {
            said.status
        };
        let why = if f.of_fault {
            fault.cause
        } else if f.spent {
            cause::RETRY_EXCEEDED.to_bits()
        } else if f.data {
            cause::BAD_RESPONSE.to_bits()
        } else if f.rnr {
            cause::RNR_RETRY_EXCEEDED.to_bits()
        } else {
            said.cause
        };
        // A failed WQE has no record yet; a failed frame has one. Without either there is nothing to complete: an event must do.
        let unsent = fails && f.of_fault && trouble.has_blocks;
        let op = RxOp {
            qpn: p.qpn,
            generation: self.generation.q.val(),
            response: true,
            // The length of a LOCAL_INV is its key.
            write: lands && f.bytes || f.local && rec.opcode == send_op::LOCAL_INV,
            adds: false,
            key: if f.local { rec.length } else { stretch.key },
            va: stretch.va,
            len: stretch.len,
            span: stretch.len.cast::<32>(),
            buf: self.place.q.val(),
            pd: attributes.pd,
            need: if f.local {
                elab!(bits::<6>(to_invalidate(invalidate::LOCAL)))
            } else {
                access::LOCAL_WRITE.to_bits()
            },
            last: !(lands && !stretch.last),
            accepted: false,
            more: again,
            rows: if again { 0.into() } else { p.rows },
            psn: p.psn,
            reply: Reply {
                // Commit takes it for this: what fails here stops the send queue alone.
                counted: attributes.alone && !attributes.raw,
                ack: false,
                read: false,
                // A LOCAL_INV may come behind an atomic that the same packet answered.
                atomic: said.atomic && !f.local,
                again: false,
                psn: 0.into(),
                msn: 0.into(),
                syndrome: 0.into(),
                slot: 0.into(),
            },
            completion: Completion {
                valid: completes,
                cqn: attributes.cqn,
                qpn: p.qpn,
                generation: self.generation.q.val(),
                status: if fails { status } else { wc::SUCCESS.to_bits() },
                cause: if fails { why } else { cause::NONE.to_bits() },
                opcode: if unsent { fault.opcode } else { rec.opcode.cast::<8>() },
                wqe_index: now.index,
                blocks: if unsent { fault.blocks } else { blocks_of(rec) },
                length: rec.length.replace_bit(3, rec.length.get_bit(3) || puts(rec)),
                imm: 0.into(),
                solicited: false,
                vlan: 0.into(),
                src_qpn: 0.into(),
                shared: false,
            },
        };

        // ---- Its verdict. That of a call is nobody's frame's.
        let mut count: Bits<64> = 0.into();
        if acts {
            let packet = !said.call;
            let deaf = f.nothing && packet;
            let accepted = f.retire && f.finished
                || f.lost
                || f.quiet && (self.moved.q.val() || gives)
                || f.data && ends
                || f.nak
                || f.rnr
                || f.end;
            count = count.replace_bit(counter::RX_ACCEPTED, packet && accepted);
            count = count.replace_bit(counter::RX_QP_STATE, deaf && !said.runs);
            let known = deaf && said.runs && said.hears;
            count = count.replace_bit(counter::RX_QP_TYPE, deaf && said.runs && !said.hears);
            count = count.replace_bit(counter::RX_QP_PEER, known && !said.peer);
            count = count.replace_bit(counter::RX_PKEY, known && said.peer && !said.pkey);
            let stale =
                known && said.peer && said.pkey || packet && (f.stray || f.quiet && !self.moved.q.val() && !gives);
            count = count.replace_bit(counter::RX_STALE_RESPONSE, stale);
            count = count.replace_bit(counter::RNR_RECEIVED, f.rnr);
            count = count.replace_bit(counter::RETRY_NAK, back && !by_timer && !by_fault);
            count = count.replace_bit(counter::RETRY_TIMEOUT, back && by_timer && !now.rnr && fired.verbs);
            count = count.replace_bit(counter::RETRY_FAST_TIMER, back && by_timer && !now.rnr && !fired.verbs);
        }

        match state {
            State::Idle => {
                if hit {
                    self.state.d.next = if here { State::Look } else { State::Read };
                } else if row_due {
                    if table_now && !table.write {
                        self.state.d.next = State::RowRead;
                    }
                } else if m_valid && !write {
                    self.state.d.next = State::Read;
                }
            }
            State::Read => self.state.d.next = State::Wait,
            State::Wait => self.state.d.next = State::Look,
            State::Look => {
                let exists = m.qpn < elab!(bits::<24>(self._qps.0 as u64));
                let ahead = m.psn - row.psn;
                let valid = ahead < self.sent.val().psn - row.psn;
                let last = ahead.all();
                let running = exists && runs(view.state) && !row.halted;
                let word = self.word.q.val();
                self.said.d.next =
                    understand(word, m.sip, m.pkey, self.peers.rdata.val(), !attributes.alone, running, valid, last);
                // What calls say does not depend on the PSN that was sent.
                let silent = word.kind == SAYS_TIMER || word.kind == SAYS_FAULT;
                self.todo.d.next = if silent {
                    0.into()
                } else if word.kind == SAYS_ACK {
                    ahead + 1
                } else {
                    ahead
                };
                self.some.d.next = !silent && if word.kind == SAYS_ACK { !last } else { m.psn != row.psn };
                if !self.forward.q.val() {
                    self.now.d.next = self.rows.rdata.val();
                }
                let code = m.syndrome.get_bits::<5>(0);
                self.p.d.next = Packet {
                    qpn: at,
                    psn: m.psn,
                    rows: m.rows,
                    payload: m.payload,
                    code,
                    credit: credit_of(word.credits, code, m.msn),
                };
                self.next_record.d.next = row.record + 1;
                self.generation.d.next = view.generation;
                self.sent_q.d.next = self.sent.val().record;
                self.behind.d.next = row.psn - row.message;
                self.moved.d.next = false;
                self.map.d.next = sge_map(self.land.val());
                self.want.d.next = m.payload;
                self.place.d.next = m.buf;
                // A round trip ends with the first answer that acknowledges the marked packet, unless that may have been sent
                // again, or has waited behind a READ's response: data that comes before is of such a one.
                let mark = self.timers.mark.val();
                let trip = self.timers.now.val().get_bits::<16>(0) - mark.time;
                let answered = !(m.psn.get_bits::<19>(0) - mark.psn).get_bit(18);
                let again = row.recovering || row.rnr;
                self.settles.d.next = mark.open && answered && !again;
                self.sampled.d.next = mark.open && answered && !again && !row.queued;
                self.unmarks.d.next = mark.open && (answered || again);
                self.queues.d.next = mark.open && word.kind == SAYS_DATA;
                self.sample.d.next = if trip.get_bits::<4>(12).any() { 0xfff.into() } else { trip.get_bits::<12>(0) };
                self.timely.d.next = fired.psn == row.psn && fired.turn == row.turn;
                self.state.d.next = State::Weigh;
            }
            State::Weigh => {
                let trouble = trouble_of(now, fault, self.generation.q.val());
                self.trouble.d.next = trouble;
                self.worth.d.next = worth_of(now, p.credit);
                self.facts.d.next = facts_of(
                    now,
                    self.has.q.val(),
                    self.is_read.q.val(),
                    self.is_local.q.val(),
                    // The answer to a READ, or to an atomic write, is that of a READ.
                    rec.opcode.get_bits::<2>(0).any(),
                    rec.length,
                    packets,
                    behind,
                    before,
                    p.payload,
                    said,
                    todo,
                    self.some.q.val(),
                    attributes.mtu,
                    trouble,
                    self.timely.q.val(),
                    fired.verbs,
                );
                self.stalled.d.next = false;
                self.state.d.next = if said.kind == SAYS_DATA { State::Walk } else { State::Act };
            }
            State::Step => self.state.d.next = State::Walk,
            State::Walk => self.state.d.next = State::Act,
            State::Act => {
                if op_free {
                    self.now.d.next = new;
                    self.timeout.d.next = attributes.timeout;
                    self.alone.d.next = attributes.alone;
                    self.moved.d.next = moved;
                    self.op_valid.d.next = ends || lands || f.local || f.whole && rec.signaled;
                    self.op_q.d.next = op;
                    self.todo.d.next = if f.whole && f.retire { f.rest } else { 0.into() };
                    self.some.d.next = f.whole && f.more;
                    if looks {
                        self.said.d.next.kind = SAYS_ACK.to_bits();
                    }
                    self.retired.d.next = f.whole;
                    self.behind.d.next = if f.whole { 0.into() } else { self.target.q.val() };
                    if lands {
                        self.want.d.next = self.want.q.val() - stretch.len;
                        self.place.d.next = self.place.q.val() + stretch.len.cast::<20>();
                        self.before.d.next = stretch.end;
                    }
                    self.state.d.next = if ends {
                        if m_valid && !row_due { State::Read } else { State::Idle }
                    } else if again {
                        if self.stalled.q.val() { State::Next } else { State::Again }
                    } else {
                        State::Step
                    };
                } else {
                    self.stalled.d.next = true;
                }
            }
            State::Next => self.state.d.next = State::NextWait,
            State::NextWait => self.state.d.next = State::Again,
            State::Again => {
                self.next_record.d.next = now.record + 1;
                self.state.d.next = State::Weigh;
            }
            State::RowRead => self.state.d.next = State::RowWait,
            State::RowWait => self.state.d.next = State::RowThere,
            State::RowThere => self.state.d.next = State::Idle,
        }

        if look || state == State::Again {
            let gone = if look { row.psn - row.message } else { behind };
            self.before.d.next = psns_to_bytes(gone, attributes.mtu).get_bits::<32>(0);
        }
        if look || state == State::Again && self.retired.q.val() {
            let record = self.record.val();
            self.rec.d.next = record;
            let sent = self.sent.val();
            // With all records in use the oldest is the next one, too.
            let has =
                if look { row.record != sent.record || row.psn != sent.psn } else { now.record != self.sent_q.q.val() };
            self.has.d.next = has;
            let reads = record.opcode.get_bit(2) && record.opcode != send_op::SEND_INV;
            // An atomic write is answered like a READ of no bytes.
            self.rec.d.next.length = record.length.replace_bit(3, record.length.get_bit(3) && !puts(record));
            self.is_read.d.next = has && reads;
            let local = record.opcode.get_bits::<2>(2) == 2;
            self.is_local.d.next = has && local;
            self.packets.d.next = if local {
                0.into()
            } else if attributes.raw {
                bits::<24>(1)
            } else {
                response_psns(record.length, attributes.mtu)
            };
        }
        // These are looked at only when their time has come.
        let (srtt, rttvar) = measure(now.srtt, now.rttvar, self.sample.q.val());
        self.measured[0].d.next = srtt;
        self.measured[1].d.next = rttvar;
        self.target.d.next = behind + todo;
        let map = self.map.q.val();
        self.entry.d.next = sge_entry(map, before);
        self.stretch.d.next = sge_stretch(map, self.entry.q.val(), before, self.want.q.val());

        // ---- The end of a packet: what it leaves is written in the next cycle; messages to the requester.
        let send_row = table_now && table.write && table.table == id::QP_SEND;
        let load = send_row && loads(table.row);
        self.write.d.next = load || counts;
        self.loaded.d.next = load;
        if table_now {
            self.p.d.next.qpn = table.index.get_bits::<12>(0);
        }
        if load {
            self.now.d.next = fresh(table.row);
            self.timeout.d.next = attributes_of(table.row).timeout;
            self.alone.d.next = attributes_of(table.row).alone;
        }
        self.peers.we.next = table_now && table.write && table.table == id::QP_RECV;
        self.peers.waddr.next = table.index;
        self.peers.wdata.next = peer_of(table.row);
        self.rows.flip.next = self.flip.val();
        self.attributes.flip.next = self.flip.val();
        self.bad.next = if self.rows.bad.val().valid { self.rows.bad.val() } else { self.attributes.bad.val() };
        self.attributes.we.next = send_row;
        self.attributes.waddr.next = table.index;
        self.attributes.wdata.next = attributes_of(table.row);
        self.rows.we.next = write;
        self.rows.waddr.next = p.qpn.cast::<24>();
        self.rows.wdata.next = now;
        self.heads.we.next = write;
        self.heads.waddr.next = p.qpn;
        self.heads.wdata.next = head_of(now);
        self.ackeds.we.next = write;
        self.ackeds.waddr.next = p.qpn.cast::<24>();
        self.ackeds.wdata.next = Acked {
            psn: now.psn,
            record: now.record,
            reads: now.reads,
            message: now.message,
            wqe_index: now.index,
            limited: now.limited,
            limit: now.limit,
        };
        self.ackeds.re.next = self.acked_re.val();
        self.ackeds.raddr.next = self.acked_addr.val().cast::<24>();
        self.acked.next = self.ackeds.rdata.val();
        self.timers.we.next = write;
        self.timers.waddr.next = p.qpn;
        self.timers.unmark.next = self.moved.q.val() && self.unmarks.q.val();
        self.timers.wait.next = Wait {
            psn: now.psn,
            turn: now.turn,
            rnr: now.rnr,
            rnr_code: now.rnr_code,
            // The messages before a fault may not have asked for an ACK: sent again, they do.
            reading: now.reading || now.fault,
            live: !now.halted,
            alone: self.alone.q.val(),
            begins: self.loaded.q.val(),
            fires: doublings(now),
            timeout: self.timeout.q.val(),
            fast: fast_timer(now.srtt, now.rttvar),
        };
        self.goes_back.d.next = acts && back;
        self.backs.s.valid.next = self.goes_back.q.val();
        self.backs.s.data.next = GoBack {
            qpn: p.qpn,
            generation: self.generation.q.val(),
            psn: now.psn,
            record: now.record,
            wqe_index: now.index,
            // Nothing, if there is no record.
            offset: before,
            reads: now.reads,
        };
        if counts && (moved || gives) {
            self.kick_valid.d.next = true;
            self.kick_q.d.next = p.qpn;
        }
        self.calls.served.next = done && said.call;
        self.count_q.d.next = count;
        self.count.next = self.count_q.q.val();
    }
}
