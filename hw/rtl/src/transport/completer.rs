//! Decides what a response means: the requester's half of the protocol that looks back, one packet at a time.
//!
//! ```text
//! cycle   0 Idle         1 Fetch   2 Look            3 Weigh           4 Act             5 Idle
//!         take meta,               differences of    what they mean;   retire, land,     write row; take the
//!         read rows,               row, record and   where the data    complete          next packet
//!         record, SGEs             packet            lies
//!                                  3 more cycles per further record that it acknowledges
//! ```
//! A response that is announced (`soon`) in the cycle before it comes, while the engine is idle, has its rows read then, and leaves
//! out `Fetch`. The row of a packet is written while the next one is taken: one of the same QP gets it from the register.
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
use super::sge::{SgeMap, Stretch, sge_map, sge_step};
use super::timers::{Timers, Wait, fast_timer};
use crate::{
    msg::*,
    stream::{BadRow, Fifo, FreshTable, GuardedTable, Sink, Source, Table, TablePort},
};
use abi::{
    status::{cause, counter, wc},
    table::{access, id},
};
use hdl::prelude::*;

/// Go backs that may wait for the requester.
const BACKS: usize = 16;

#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
enum State {
    Idle,
    Fetch,
    Look,
    Weigh,
    Act,
    /// The next record is read.
    Next,
    /// It is there.
    Again,
    /// The next SGE of a READ's data.
    Walk,
    ReadWait,
    ReadRow,
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
    /// The rows of `early_qpn` are being read.
    early: Reg<Bit>,
    early_qpn: DFF<Bits<24>>,
    m: DFF<RxMeta>,
    said: DFF<Said>,
    now: DFF<Row>,
    /// It is to be written: after a packet or a load, with this verbs timeout.
    write: Reg<Bit>,
    timeout: DFF<Bits<5>>,
    loaded: DFF<Bit>,
    /// It was not written yet when it was read.
    forward: DFF<Bit>,
    generation: DFF<Gen>,
    sent_q: DFF<Sent>,
    /// PSNs to acknowledge before the packet itself has its say.
    todo: DFF<Psn>,
    /// The oldest record, and its packets.
    rec: DFF<Record>,
    packets: DFF<Psn>,
    /// It is retired; the packet waits for its op's place.
    retired: DFF<Bit>,
    stalled: DFF<Bit>,
    /// What of its message is acknowledged, in PSNs and in bytes.
    behind: DFF<Psn>,
    before: DFF<Bits<32>>,
    facts: DFF<Facts>,
    trouble: DFF<Trouble>,
    map: DFF<SgeMap>,
    stretch: DFF<Stretch>,
    /// Walk over the SGEs.
    at: DFF<Bits<32>>,
    want: DFF<Bits<14>>,
    place: DFF<BufAddr>,
    moved: DFF<Bit>,
    sample: DFF<Bits<12>>,
    /// The round trip with that sample: smoothed, deviation.
    measured: [DFF<Bits<16>>; 2],
    /// The timer that fired is the present one.
    timely: DFF<Bit>,
    sampled: DFF<Bit>,

    attributes: GuardedTable<Attributes>,
    peers: Table<Peer>,
    rows: GuardedTable<Row>,
    /// Oldest record and next READ slot, which address other tables: read at once.
    heads: Ram<Bits<11>, 12>,
    goes_back: Reg<Bit>,
    ackeds: FreshTable<Acked>,
    calls: Calls,
    timers: Timers,

    backs: Fifo<GoBack>,
    op_valid: Reg<Bit>,
    op_q: DFF<RxOp>,
    kick_valid: Reg<Bit>,
    kick_q: DFF<Qp>,
    rvalid: Reg<Bit>,
    rdata: DFF<Bits<512>>,
    count_q: Reg<Bits<64>>,
    _qps: Hidden<usize>,
}

impl Completer {
    /// A completer of `qps` QPs, at most 4,096; a tick of 1.024 us has `tick` cycles (256 at 250 MHz), the fast
    /// timer at least `least` ticks.
    pub fn new(qps: usize, tick: usize, least: u64) -> Self {
        Completer {
            attributes: GuardedTable::new(qps, "block"),
            peers: Table::new(qps, "block"),
            rows: GuardedTable::new(qps, "block"),
            heads: Ram::default().rows(qps).style("distributed").at_once(),
            ackeds: FreshTable::new(qps, "block"),
            calls: Calls::new(qps),
            timers: Timers::new(qps, tick, least),
            backs: Fifo::new(BACKS),
            _qps: Hidden(qps),
            ..Default::default()
        }
    }
}

impl Logic for Completer {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, state, early, write, goes_back, op_valid, kick_valid, rvalid, count_q);
        dff_setup!(
            self, clock, early_qpn, m, said, now, timeout, loaded, forward, generation, sent_q, todo, rec, packets,
            retired
        );
        dff_setup!(self, clock, behind, before, facts, trouble, map, stretch, at, want, place, moved, sample, measured);
        dff_setup!(self, clock, timely, sampled, stalled, op_q, kick_q, rdata);
        clock!(self, clock, attributes, peers, rows, heads, ackeds);
        clock_reset!(self, clock, rst, timers, calls, backs);

        let state = self.state.q.val();
        let m = self.m.q.val();
        let said = self.said.q.val();
        let now = self.now.q.val();
        let sent = self.sent_q.q.val();
        let todo = self.todo.q.val();
        let rec = self.rec.q.val();
        let attributes = self.attributes.rdata.val();
        let row = if self.forward.q.val() { now } else { self.rows.rdata.val() };
        let fault = self.calls.told.val();
        let call = self.calls.call.val();
        let view = self.view.val();
        let qp = m.qpn.get_bits::<12>(0);
        let table = self.table.req.val();
        let idle = state == State::Idle;
        let write = self.write.q.val();
        let take = idle && self.meta.valid.val() && !self.table.valid.val();
        let table_now = idle && self.table.valid.val() && !write;
        let op_free = !self.op_valid.q.val();

        // ---- Ports and their defaults.
        self.meta.ready.next = idle && !self.table.valid.val();
        self.table.ready.next = idle && !write;
        self.table.rdata.next = self.rdata.q.val();
        self.table.rvalid.next = self.rvalid.q.val();
        self.rvalid.d.next = false;
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
        Source::<GoBack>::link(&mut self.back, &mut self.backs.m);

        // ---- Reads of the packet's QP, or of a row for the table bus.
        let incoming = self.meta.data.val();
        // They may be read a cycle ahead: then `Fetch` is this cycle.
        let ahead = idle && self.soon_valid.val() && !self.meta.valid.val() && !self.table.valid.val() && !write;
        self.early.d.next = ahead;
        self.early_qpn.d.next = self.soon.val();
        let here = self.early.q.val() && self.early_qpn.q.val() == incoming.qpn && incoming.opcode != WAKE;
        let reads = (take && !here) || ahead;
        let who = if table_now {
            table.index
        } else if ahead {
            self.soon.val()
        } else {
            incoming.qpn
        };
        let read = reads || (table_now && !table.write);
        let forward = write && take && incoming.qpn == m.qpn;
        if read {
            self.forward.d.next = forward;
        }
        self.attributes.re.next = read;
        self.attributes.raddr.next = who;
        self.peers.re.next = reads;
        self.peers.raddr.next = who;
        self.rows.re.next = read && !forward;
        self.rows.raddr.next = who;
        self.calls.told_re.next = reads;
        self.calls.told_addr.next = who;
        self.view_re.next = reads;
        self.view_addr.next = who.get_bits::<12>(0);
        self.sent_re.next = reads;
        self.sent_addr.next = who.get_bits::<12>(0);
        self.timers.mark_re.next = reads;
        self.timers.mark_addr.next = who.get_bits::<12>(0);
        self.heads.re.next = true;
        self.heads.raddr.next = who.get_bits::<12>(0);
        let mut head = self.heads.rdata.val();
        if forward {
            head = head_of(now);
        }
        // The next record, should the packet in hand acknowledge more than one: again if the op of this one had to wait.
        let further = state == State::Weigh || state == State::Act && op_free && self.stalled.q.val();
        self.record_re.next = reads || further;
        self.record_addr.next = if further {
            cat!(24; bits::<5>(0), qp, now.record + 1)
        } else {
            cat!(24; bits::<5>(0), who.get_bits::<12>(0), head.get_bits::<7>(0))
        };
        self.land_re.next = reads;
        self.land_addr.next = cat!(24; bits::<8>(0), who.get_bits::<12>(0), head.get_bits::<4>(7));

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

        // ---- What the oldest record says, from registers.
        let facts = self.facts.q.val();
        let trouble = self.trouble.q.val();
        let (has, is_read, all) = (facts.has, facts.is_read, facts.all);
        let before = self.before.q.val();
        let stretch = self.stretch.q.val();
        let final_one = facts.final_one;
        let fired = call.fired;
        let backs_ready = self.backs.s.ready.val();

        // The record retired, and the row as progress leaves it.
        let mut ahead = now;
        ahead.retry = attributes.retry;
        ahead.fires = 0.into();
        ahead.recovering = false;
        ahead.rnr = false;
        if said.kind != SAYS_RNR {
            ahead.rnr_retry = attributes.rnr_retry;
        }
        let mut retired = ahead;
        let end = now.message + self.packets.q.val();
        retired.psn = end;
        retired.record = now.record + 1;
        retired.message = end;
        retired.index = now.index + rec.blocks.cast::<16>();
        retired.reading = false;
        if is_read {
            retired.reads = now.reads + 1;
        }

        // Defaults of what this cycle does. The op frees the rows and completes nothing.
        let mut new = now;
        let mut moved = self.moved.q.val();
        let mut emit = false;
        let mut ends = false;
        let mut again = false;
        let mut go_back = false;
        let mut end_status: Bits<8> = 0.into();
        let mut end_cause: Bits<8> = 0.into();
        let mut fails = false;
        let mut of_fault = false;
        let mut count: Bits<64> = 0.into();
        let mut op = RxOp {
            qpn: qp,
            generation: self.generation.q.val(),
            response: true,
            write: false,
            key: stretch.key,
            va: stretch.va,
            len: stretch.len,
            span: stretch.len.cast::<32>(),
            buf: self.place.q.val(),
            pd: attributes.pd,
            need: access::LOCAL_WRITE.to_bits(),
            last: true,
            accepted: false,
            more: false,
            rows: m.rows,
            psn: m.psn,
            reply: Reply {
                ack: false,
                read: false,
                again: false,
                psn: 0.into(),
                msn: 0.into(),
                syndrome: 0.into(),
                slot: 0.into(),
            },
            completion: Completion {
                valid: false,
                cqn: attributes.cqn,
                qpn: qp,
                generation: self.generation.q.val(),
                status: wc::SUCCESS.to_bits(),
                cause: cause::NONE.to_bits(),
                opcode: rec.opcode.cast::<8>(),
                wqe_index: now.index,
                blocks: rec.blocks,
                length: rec.length,
                imm: 0.into(),
                solicited: false,
                vlan: 0.into(),
                src_qpn: 0.into(),
            },
        };

        match state {
            State::Idle => {
                if table_now {
                    if !table.write {
                        self.state.d.next = State::ReadWait;
                    }
                } else if take {
                    self.m.d.next = incoming;
                    if incoming.opcode == WAKE {
                        self.m.d.next.psn = call.fired.psn;
                    }
                    self.state.d.next = if here { State::Look } else { State::Fetch };
                }
            }
            State::Fetch => {
                self.state.d.next = State::Look;
            }
            State::Look => {
                let exists = m.qpn < elab!(bits::<24>(self._qps.0 as u64));
                let ahead = m.psn - row.psn;
                let valid = ahead < self.sent.val().psn - row.psn;
                let running = exists && runs(view.state) && !row.halted;
                let says = understand(m, self.peers.rdata.val(), running, valid, call.fault, call.raw);
                self.said.d.next = says;
                // What calls say does not depend on the PSN that was sent.
                self.todo.d.next = if says.kind == SAYS_ACK { ahead + 1 } else { ahead };
                if says.kind == SAYS_TIMER || says.kind == SAYS_FAULT {
                    self.todo.d.next = 0.into();
                }
                self.now.d.next = row;
                self.generation.d.next = view.generation;
                self.sent_q.d.next = self.sent.val();
                self.behind.d.next = row.psn - row.message;
                self.before.d.next = psns_to_bytes(row.psn - row.message, attributes.mtu).get_bits::<32>(0);
                self.moved.d.next = false;
                self.map.d.next = sge_map(self.land.val());
                self.want.d.next = m.payload;
                self.place.d.next = m.buf;
                // A round trip is measured on an answer to the very packet that left last, unless it was sent again.
                let mark = self.timers.mark.val();
                let trip = self.timers.now.val().get_bits::<16>(0) - mark.time;
                self.sampled.d.next =
                    m.psn.get_bits::<20>(0) == mark.psn && !row.fires.any() && !row.recovering && !row.rnr;
                self.sample.d.next = if trip.get_bits::<4>(12).any() { 0xfff.into() } else { trip.get_bits::<12>(0) };
                self.state.d.next = State::Weigh;
            }
            State::Again => {
                self.before.d.next = psns_to_bytes(self.behind.q.val(), attributes.mtu).get_bits::<32>(0);
                self.state.d.next = State::Weigh;
            }
            State::Weigh => {
                self.facts.d.next = facts_of(
                    now,
                    sent,
                    rec,
                    self.packets.q.val(),
                    self.behind.q.val(),
                    before,
                    m,
                    said,
                    todo,
                    attributes.mtu,
                );
                let (srtt, rttvar) = measure(now.srtt, now.rttvar, self.sample.q.val());
                self.measured[0].d.next = srtt;
                self.measured[1].d.next = rttvar;
                self.timely.d.next = fired.psn == now.psn && fired.turn == now.turn;
                self.trouble.d.next = trouble_of(now, fault, self.generation.q.val());
                self.stretch.d.next = sge_step(self.map.q.val(), before, self.want.q.val());
                self.at.d.next = before;
                self.stalled.d.next = false;
                self.state.d.next = State::Act;
            }
            State::Act => {
                let retires = all || final_one;
                match facts.case {
                    Case::Nothing => {
                        ends = true;
                        count = count.replace_bit(counter::RX_QP_STATE, !said.call && !said.runs);
                        let heard = !said.call && said.runs;
                        count = count.replace_bit(counter::RX_QP_PEER, heard && !said.peer);
                        count = count.replace_bit(counter::RX_PKEY, heard && said.peer && !said.pkey);
                        count = count.replace_bit(counter::RX_STALE_RESPONSE, heard && said.peer && said.pkey);
                    }
                    Case::Retire => {
                        // Acknowledged: a whole record, or the front of one.
                        new = if all { retired } else { ahead };
                        if !all {
                            new.psn = now.psn + todo;
                        }
                        moved = true;
                        let finished = !(all && facts.more) && said.kind == SAYS_ACK && !now.fault;
                        let completes = all && rec.signaled;
                        op.completion.valid = completes;
                        op.more = !finished;
                        if !finished {
                            op.rows = 0.into();
                        }
                        emit = completes && !finished;
                        ends = finished;
                        again = !finished;
                        if op_free {
                            self.todo.d.next = if all { facts.rest } else { 0.into() };
                        }
                        count = count.replace_bit(counter::RX_ACCEPTED, finished);
                    }
                    Case::Lost => {
                        go_back = !now.recovering;
                        ends = true;
                        count = count.replace_bit(counter::RX_ACCEPTED, true);
                    }
                    Case::Quiet => {
                        if now.fault && trouble.due {
                            of_fault = true;
                            fails = trouble.ends;
                            end_status = trouble.status;
                            end_cause = fault.cause;
                        }
                        ends = true;
                        count = count.replace_bit(counter::RX_ACCEPTED, moved);
                        count = count.replace_bit(counter::RX_STALE_RESPONSE, !moved);
                    }
                    Case::Stray => {
                        ends = true;
                        count = count.replace_bit(counter::RX_STALE_RESPONSE, true);
                    }
                    Case::Data => {
                        if !(if final_one { facts.sound_last } else { facts.sound }) {
                            fails = true;
                            end_status = wc::BAD_RESP.to_bits();
                            end_cause = cause::BAD_RESPONSE.to_bits();
                            ends = true;
                            count = count.replace_bit(counter::RX_ACCEPTED, true);
                        } else {
                            op.write = facts.bytes;
                            op.last = stretch.last;
                            emit = true;
                            if stretch.last {
                                moved = true;
                                new = if final_one { retired } else { ahead };
                                if !final_one {
                                    new.psn = now.psn + 1;
                                    new.reading = true;
                                }
                                op.completion.valid = final_one && rec.signaled;
                                // A fault may be due now: look again, as after an ACK.
                                again = final_one && now.fault;
                                ends = !again;
                                op.more = again;
                                if again {
                                    op.rows = 0.into();
                                    if op_free {
                                        self.said.d.next.kind = SAYS_ACK.to_bits();
                                    }
                                }
                                count = count.replace_bit(counter::RX_ACCEPTED, ends);
                            }
                        }
                    }
                    Case::GoBack => {
                        go_back = true;
                        ends = true;
                        count = count.replace_bit(counter::RX_ACCEPTED, true);
                    }
                    Case::Rnr => {
                        ends = true;
                        count = count.replace_bit(counter::RNR_RECEIVED, true);
                        count = count.replace_bit(counter::RX_ACCEPTED, true);
                        if now.rnr_retry == 0 {
                            fails = true;
                            end_status = wc::RNR_RETRY_EXC.to_bits();
                            end_cause = cause::RNR_RETRY_EXCEEDED.to_bits();
                        } else {
                            if now.rnr_retry != 7 {
                                new.rnr_retry = now.rnr_retry - 1;
                            }
                            new.rnr = true;
                            new.rnr_code = m.syndrome.get_bits::<5>(0);
                            new.turn = now.turn + 1;
                        }
                    }
                    Case::End => {
                        ends = true;
                        fails = true;
                        end_status = said.status;
                        end_cause = said.cause;
                        count = count.replace_bit(counter::RX_ACCEPTED, true);
                    }
                    Case::Timer => {
                        ends = true;
                        go_back = has && self.timely.q.val();
                    }
                    Case::Fault => {
                        // A WQE or frame failed: its turn is now, later, or, if it was acknowledged meanwhile, never.
                        ends = true;
                        if trouble.due {
                            of_fault = true;
                            fails = trouble.ends;
                            end_status = trouble.status;
                            end_cause = fault.cause;
                        } else if trouble.known {
                            new.fault = !trouble.past;
                            go_back = trouble.past;
                        }
                    }
                }

                // Going back, and what it costs.
                if go_back {
                    let timer = said.kind == SAYS_TIMER;
                    let free = (timer && (now.rnr || !fired.verbs)) || said.kind == SAYS_FAULT;
                    if !free && !now.retry.any() {
                        fails = true;
                        end_status = wc::RETRY_EXC.to_bits();
                        end_cause = cause::RETRY_EXCEEDED.to_bits();
                        go_back = false;
                    } else if backs_ready {
                        if !free {
                            new.retry = now.retry - 1;
                        }
                        if timer && !now.rnr && now.fires != 15 {
                            new.fires = now.fires + 1;
                        } else if !timer && said.kind != SAYS_FAULT && !now.fires.any() {
                            // The next answer takes longer than a round trip: WQE and data are read again first.
                            new.fires = 1.into();
                        }
                        new.rnr = false;
                        new.reading = false;
                        new.recovering = true;
                        new.fault = false;
                        new.turn = now.turn + 1;
                        count = count.replace_bit(counter::RETRY_NAK, !timer && said.kind != SAYS_FAULT);
                        count = count.replace_bit(counter::RETRY_TIMEOUT, timer && !now.rnr && fired.verbs);
                        count = count.replace_bit(counter::RETRY_FAST_TIMER, timer && !now.rnr && !fired.verbs);
                    }
                }
                if fails {
                    new.halted = true;
                    op.completion.valid = true;
                    op.completion.status = end_status;
                    op.completion.cause = end_cause;
                    // A failed WQE has no record yet; a failed frame has one.
                    if of_fault && trouble.has_blocks {
                        op.completion.blocks = fault.blocks;
                        op.completion.opcode = fault.opcode;
                    }
                    // Without either there is nothing to complete: an event must do.
                    if !has && !(of_fault && trouble.has_blocks) {
                        op.completion.valid = false;
                    }
                }
                if said.kind == SAYS_ACK && self.sampled.q.val() || said.kind == SAYS_DATA && self.sampled.q.val() {
                    if ends && moved {
                        new.srtt = self.measured[0].q.val();
                        new.rttvar = self.measured[1].q.val();
                    }
                }

                if said.call {
                    // Its verdict is nobody's frame's.
                    count = count & elab!(bits::<64>(u64::MAX << counter::RX_CE));
                }
                if op_free {
                    self.now.d.next = new;
                    self.timeout.d.next = attributes.timeout;
                    self.moved.d.next = moved;
                    self.op_valid.d.next = emit || ends;
                    self.op_q.d.next = op;
                    self.retired.d.next = retires;
                    self.behind.d.next = if retires { 0.into() } else { self.behind.q.val() + todo };
                    self.state.d.next = if ends {
                        State::Idle
                    } else if again {
                        if self.stalled.q.val() { State::Next } else { State::Again }
                    } else {
                        State::Walk
                    };
                    if !ends && !again {
                        self.at.d.next = self.at.q.val() + stretch.len.cast::<32>();
                        self.want.d.next = self.want.q.val() - stretch.len;
                        self.place.d.next = self.place.q.val() + stretch.len.cast::<20>();
                    }
                } else {
                    self.stalled.d.next = true;
                    count = 0.into();
                }
            }
            State::Walk => {
                self.stretch.d.next = sge_step(self.map.q.val(), self.at.q.val(), self.want.q.val());
                self.state.d.next = State::Act;
            }
            State::Next => {
                self.state.d.next = State::Again;
            }
            State::ReadWait => {
                self.state.d.next = State::ReadRow;
            }
            State::ReadRow => {
                self.rdata.d.next = row_of(attributes, row);
                self.rvalid.d.next = true;
                self.state.d.next = State::Idle;
            }
        }

        if state == State::Look || state == State::Again && self.retired.q.val() {
            let record = self.record.val();
            self.rec.d.next = record;
            self.packets.d.next =
                if attributes.raw { bits::<24>(1) } else { response_psns(record.length, attributes.mtu) };
        }

        // ---- The end of a packet: what it leaves is written in the next cycle; messages to the requester.
        let done = state == State::Act && op_free && ends;
        let counts = done && facts.case != Case::Nothing;
        let send_row = table_now && table.write && table.table == id::QP_SEND;
        let load = send_row && loads(table.row);
        self.write.d.next = load || counts;
        self.loaded.d.next = load;
        if load {
            self.m.d.next.qpn = table.index;
            self.now.d.next = fresh(table.row);
            self.timeout.d.next = attributes_of(table.row).timeout;
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
        self.rows.waddr.next = m.qpn;
        self.rows.wdata.next = now;
        self.heads.we.next = write;
        self.heads.waddr.next = qp;
        self.heads.wdata.next = head_of(now);
        self.ackeds.we.next = write;
        self.ackeds.waddr.next = m.qpn;
        self.ackeds.wdata.next =
            Acked { psn: now.psn, record: now.record, reads: now.reads, message: now.message, wqe_index: now.index };
        self.ackeds.re.next = self.acked_re.val();
        self.ackeds.raddr.next = self.acked_addr.val().cast::<24>();
        self.acked.next = self.ackeds.rdata.val();
        self.timers.we.next = write;
        self.timers.waddr.next = qp;
        self.timers.wait.next = Wait {
            psn: now.psn,
            turn: now.turn,
            rnr: now.rnr,
            rnr_code: now.rnr_code,
            // The messages before a fault may not have asked for an ACK: sent again, they do.
            reading: now.reading || now.fault,
            live: !now.halted,
            begins: self.loaded.q.val(),
            fires: now.fires,
            timeout: self.timeout.q.val(),
            fast: fast_timer(now.srtt, now.rttvar),
        };
        self.goes_back.d.next = counts && go_back && backs_ready;
        self.backs.s.valid.next = self.goes_back.q.val();
        self.backs.s.data.next = GoBack {
            qpn: qp,
            generation: self.generation.q.val(),
            psn: now.psn,
            record: now.record,
            wqe_index: now.index,
            offset: if has { before } else { 0.into() },
            reads: now.reads,
        };
        if counts && moved {
            self.kick_valid.d.next = true;
            self.kick_q.d.next = qp;
        }
        self.calls.served.next = done && said.call;
        self.count_q.d.next = count;
        self.count.next = self.count_q.q.val();
    }
}
