//! Sends what the responder owes: READ responses, ACKs and NAKs. From commit; to the frames unit, and past it.
//!
//! ```text
//! cycle    0          1        2           3               4        5        6        7
//! intake   go, rows            rows        decide          (write)
//!                              READ at once: segment       account  (write)
//! service  pick       rows     resource    rows            (write)
//!                                          READ            place    segment  account  (write), or next segment
//!                                          ACK: it leaves
//! ```
//! A new READ of a QP that owes none is served *at once*, if the output is free and it is nobody else's turn. What is being judged by landing
//! is announced (`soon`): its rows are read ahead if nothing else is to do, or in the last cycle of the intake or turn before it if that
//! is another QP's, and its intake begins at cycle 1. An intake takes 3 or 4 cycles, one more with a READ that is served at once or
//! behind one of the same QP, an ACK 4, the first frame of a READ 7 and each further one of
//! the same turn (4 KiB) 2. Up to 4 intakes pass before a QP is served, so that ACKs coalesce under load.
//!
//! Per QP: the READ resources [head, tail) still to be answered, the next response PSN, and one ACK or NAK, the
//! newest. It leaves only when no READ is left: past the transmit ring if none of the QP's READ responses can still be
//! there, else through it. A READ makes a pending ACK superfluous. A duplicate READ puts the head back to its resource,
//! and drops what was behind: its requester sends that again as well. If it goes back behind what was sent it begins an *epoch*:
//! what lies in the transmit ring of the responses before is void, else they would all go out in front of the one that is
//! asked for.
//!
//! What a QP owes is decided into `debt` and written to its row while the next one is chosen, in a cycle in which that row is not read.
//!
//! An atomic is answered like a READ of no bytes, with what `memory/atomics` has saved in its resource. While that is not done its QP
//! is left alone, until it says so (`done`).
//!
//! Behind each READ response of a *paced* QP its next one waits for the pacer's kick, though the turn goes on ([`PaceGate`]). Who waits is
//! served no READ, and the kick has it served again; of what it owes no READ, ACK or NAK, nothing waits.
//!
//! It serves a QP only while both outputs are free, so it never holds a packet while the transmit side stands still, and
//! intake goes on. Intake waits for qp_state alone, with the error of an atomic that the host refused, and that waits for events.

use super::opcode::{mtu_bytes, psns_to_bytes};
use super::respond_rules::*;
use super::responder_rules::loads;
use crate::{
    congestion::PaceGate,
    msg::*,
    queue::flags::{Flags, Scan},
    stream::{BadRow, GuardedTable, Sink, Source, TablePort, narrow},
};
use abi::{
    status::{cause, counter},
    table::{access, id, pace, qp_recv, qp_state},
    wire::{op, syndrome},
};
use hdl::prelude::*;

/// Frames that may be between our output and their number in the transmit ring.
const SLACK: u64 = 16;
#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
enum State {
    Idle,
    TakeWait,
    Take,
    Owe,
    Bus,
    ReadWait,
    ReadRow,
    Fetch,
    Resource,
    Row,
    Fault,
    Place,
    Send,
    Account,
}

/// See the module. N: QPs.
#[derive(LogicBlock, Default)]
pub struct Respond<const N: usize> {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    pub go: Sink<ReplyGo>,
    /// Only while `go` is empty: what it brings in the next cycle, if anything.
    pub soon: Signal<In, ReplyGo>,
    pub soon_valid: Signal<In, Bit>,
    /// READ responses, one segment each, and ACKs behind them.
    pub seg: Source<TxSeg>,
    /// ACKs and NAKs that need not wait for the transmit ring.
    pub quick: Source<TxHead>,
    /// Epochs of READ responses. One is taken before a frame of it is sent.
    pub epoch: Source<EpochMark>,
    /// Sequence number of the next frame that the transmit ring accepts; all frames below `gone` have left it.
    pub queued: Signal<In, Bits<16>>,
    pub gone: Signal<In, Bits<16>>,
    /// Reads the READ resource at QP x 16 + slot: `res` two cycles later.
    pub res_re: Signal<Out, Bit>,
    pub res_addr: Signal<Out, Bits<24>>,
    pub res: Signal<In, ReadResource>,
    /// An atomic of this QP is done.
    pub done: Signal<In, Bit>,
    pub done_qp: Signal<In, Qp>,
    /// The pacer lets this QP go on.
    pub pace: Signal<In, Qp>,
    pub paces: Signal<In, Bit>,
    /// Serves the responder: READs answered, two cycles later.
    pub reads_re: Signal<In, Bit>,
    pub reads_addr: Signal<In, Qp>,
    pub reads: Signal<Out, Bits<8>>,
    /// A READ response could not be read.
    pub fault: Sink<TxFault>,
    pub error: Source<QpError>,
    pub view_re: Signal<Out, Bit>,
    pub view_addr: Signal<Out, Qp>,
    pub view: Signal<In, QpView>,
    /// QP_RECV and PACE rows.
    pub table: TablePort,
    /// For tests: rows written now are stored damaged.
    pub flip: Signal<In, Bit>,
    /// A row was found damaged.
    pub bad: Signal<Out, BadRow>,
    pub count: Signal<Out, Bits<64>>,

    state: Reg<State>,
    /// The table bus has asked: it goes first.
    row_due: Reg<Bit>,
    /// The rows of `qp` are being read for what was announced.
    early: Reg<Bit>,
    /// It is another QP than the one whose rows were to be written behind the read: what was read is good.
    other: DFF<Bit>,
    /// `debt` and `slots` are written to the rows of `qp` in this cycle.
    writes: Reg<Bit>,
    /// For that reason its rows were not read: they are in this one.
    late: Reg<Bit>,
    /// States as bits of their own: `Idle`, `Take`, `Row`.
    idle: Reg<Bit>,
    first: Reg<Bit>,
    serves: Reg<Bit>,
    /// The rows are read for a fault. The fault is that of an atomic.
    faulty: Reg<Bit>,
    refused: Reg<Bit>,
    attributes: GuardedTable<Attributes>,
    debts: GuardedTable<Debt>,
    /// Those of `qp`, in LUTs: they address the read of the resource.
    slots_of: Ram<Slots, 12>,
    /// For the responder, two cycles after its read. In LUTs, for it reads at any time.
    answered: Ram<Bits<8>, 12>,
    reads_now: DFF<Bits<8>>,
    reads_q: DFF<Bits<8>>,
    work: Flags<N>,
    scan: Scan<N>,
    pace_gate: PaceGate,
    pace_q: DFF<Qp>,
    paces_q: Reg<Bit>,

    qp: DFF<Qp>,
    /// Intakes since a QP was served; they are enough.
    intakes: Reg<Bits<2>>,
    enough: Reg<Bit>,
    slots: DFF<Slots>,
    debt: DFF<Debt>,
    /// Of what comes in: it is for the QP as it is; its READ was served at once. How it stands to what is owed.
    counts: DFF<Bit>,
    at_once: DFF<Bit>,
    reply: DFF<Reply>,
    standing: DFF<Standing>,
    /// Rest of the READ: bytes before, bytes left; the frame that was made: its bytes, it was the last; frames of the
    /// turn after it.
    before: DFF<Bits<32>>,
    left: DFF<Bits<32>>,
    len: DFF<Bits<14>>,
    ended: DFF<Bit>,
    turn: DFF<Bits<4>>,

    /// What leaves: as a segment, or past the transmit ring.
    seg_valid: Reg<Bit>,
    quick_valid: Reg<Bit>,
    seg_q: DFF<TxSeg>,
    mark_valid: Reg<Bit>,
    mark_q: DFF<EpochMark>,
    error_valid: Reg<Bit>,
    error_q: DFF<QpError>,
    rvalid: Reg<Bit>,
    rdata: DFF<Bits<512>>,
    count_q: Reg<Bits<64>>,
}

impl<const N: usize> Respond<N> {
    /// The response engine of N QPs. `paces`: the core has a pacer.
    pub fn new(paces: bool) -> Self {
        Respond {
            // Few bits: where the rows are few, too, no RAM is spent on them.
            attributes: GuardedTable::new(N, narrow(N)),
            debts: GuardedTable::new(N, "block"),
            slots_of: Ram::default().rows(N).style("distributed").at_once(),
            answered: Ram::default().rows(N).style("distributed").at_once(),
            pace_gate: PaceGate::new(N, paces),
            ..Default::default()
        }
    }
}

impl<const N: usize> Logic for Respond<N> {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, state, row_due, early, writes, late, idle, first, serves, faulty, refused, intakes);
        regs!(self, clock, rst, enough);
        regs!(self, clock, rst, seg_valid, quick_valid, mark_valid, error_valid, rvalid, count_q, paces_q);
        dff_setup!(
            self, clock, other, reads_now, reads_q, qp, slots, debt, counts, at_once, reply, standing, before, left,
            len, ended
        );
        dff_setup!(self, clock, turn, seg_q, mark_q, error_q, rdata, pace_q);
        clock!(self, clock, attributes, debts, slots_of, answered, pace_gate);
        clock_reset!(self, clock, rst, work, scan);

        let state = self.state.q.val();
        let qp = self.qp.q.val();
        let view = self.view.val();
        let attributes = self.attributes.rdata.val();
        let row = self.debts.rdata.val();
        let debt = self.debt.q.val();
        let slots = self.slots.q.val();
        let table = self.table.req.val();
        let numbers: Qp = elab!(numbers(N));
        let idle = self.idle.q.val();
        let writes = self.writes.q.val();
        let late = self.late.q.val();
        let first = self.first.q.val();

        // Who comes next: a row, a fault, a reply, a QP to be served, what is announced. All but replies are chosen a cycle before
        // their rows are read.
        let go = self.go.data.val();
        let fault = self.fault.data.val();
        let soon = self.soon.val();
        let mark_free = !self.mark_valid.q.val();
        let outputs_free = !self.seg_valid.q.val() && !self.quick_valid.q.val() && mark_free;
        let row_due = self.row_due.q.val();
        let in_bus = state == State::Bus;
        let paces_row = table.table == id::PACE;
        self.row_due.d.next = self.table.valid.val() && !in_bus;
        let take_row = row_due && mark_free;
        let take_fault = self.fault.valid.val() && !self.error_valid.q.val();
        let go_ready = self.go.valid.val() && (!go.reply.read || mark_free);
        let can_serve = self.scan.pick.valid.val() && outputs_free;
        let chosen = can_serve && (!go_ready || self.enough.q.val());
        let calm = !row_due && !self.fault.valid.val();
        let go_next = calm && go_ready && !(can_serve && self.enough.q.val());
        let take_go = idle && go_next;
        // Idle comes next, and a write of this QP's row: another's may be read meanwhile.
        let closes = state == State::Owe && !self.at_once.q.val();
        let closing = closes || (state == State::Account && (self.ended.q.val() || !self.turn.q.val().any()));
        let open = idle || closing;
        let comes = self.go.valid.val() || self.soon_valid.val();
        let asked = if self.soon_valid.val() { soon } else { go };
        let ahead = if idle { self.soon_valid.val() && !writes } else { closing && comes };
        self.early.d.next = ahead && calm;
        self.other.d.next = idle || ((asked.qpn & numbers) ^ qp).any();
        let here = self.early.q.val() && self.other.q.val();
        let faulty = self.faulty.q.val();
        let fetch = state == State::Fetch;
        let serve = fetch && !faulty;
        self.table.ready.next = in_bus;
        let refused = self.refused.q.val();
        self.fault.ready.next = state == State::Fault && !refused;
        self.go.ready.next = first;
        self.scan.pick.ready.next = serve;
        self.scan.bits.next = self.work.bits.val();

        let who = if open { asked.qpn } else { qp };
        let read = (in_bus && !table.write) || fetch || late;
        self.late.d.next = writes && take_go && !here;
        let read_row = read || (comes && open && !writes);
        self.attributes.re.next = read_row;
        self.attributes.raddr.next = who.cast::<24>();
        self.debts.re.next = read_row;
        self.debts.raddr.next = who.cast::<24>();
        self.slots_of.re.next = true;
        self.slots_of.raddr.next = qp;
        let slots_read = self.slots_of.rdata.val();
        self.view_re.next = read || (comes && open);
        self.view_addr.next = who;
        self.res_re.next = (comes && open) || state == State::Resource;
        self.res_addr.next = if open {
            cat!(24; asked.qpn.cast::<20>(), asked.reply.slot)
        } else {
            cat!(24; qp.cast::<20>(), slots.head)
        };
        if idle {
            let whose = if take_row {
                table.index.get_bits::<12>(0)
            } else if take_fault {
                fault.qpn
            } else if chosen {
                self.scan.pick.data.val()
            } else {
                go.qpn
            };
            self.qp.d.next = whose & numbers;
            self.faulty.d.next = !take_row && take_fault;
            self.before.d.next = 0.into();
        }
        if fetch || first {
            self.slots.d.next = slots_read;
        }
        if serve {
            self.intakes.d.next = 0.into();
            self.enough.d.next = false;
        } else if first {
            self.intakes.d.next = self.intakes.q.val() + 1;
            self.enough.d.next = self.enough.q.val() || self.intakes.q.val() == 3;
        }

        // Defaults.
        let mut count: Bits<64> = 0.into();
        self.writes.d.next = false;
        self.seg.data.next = self.seg_q.q.val();
        self.seg.valid.next = self.seg_valid.q.val();
        self.quick.data.next = self.seg_q.q.val().head;
        self.quick.valid.next = self.quick_valid.q.val();
        self.epoch.data.next = self.mark_q.q.val();
        self.epoch.valid.next = self.mark_valid.q.val();
        self.error.data.next = self.error_q.q.val();
        self.error.valid.next = self.error_valid.q.val();
        if self.epoch.ready.val() {
            self.mark_valid.d.next = false;
        }
        if self.seg.ready.val() {
            self.seg_valid.d.next = false;
        }
        if self.quick.ready.val() {
            self.quick_valid.d.next = false;
        }
        if self.error.ready.val() {
            self.error_valid.d.next = false;
        }
        self.rvalid.d.next = false;

        // Pace: a READ response makes its QP wait.
        self.pace_q.d.next = self.pace.val() & numbers;
        self.paces_q.d.next = self.paces.val();
        self.pace_gate.qpn.next = qp;
        self.pace_gate.sends.next = state == State::Account;
        self.pace_gate.we.next = in_bus && table.write && (paces_row || loads(table.row));
        self.pace_gate.paced.next = paces_row && table.row.get_bits::<28>(elab!(pace::QUOTA.lsb)).any();
        self.pace_gate.kick.next = self.pace_q.q.val();
        self.pace_gate.kicks.next = self.paces_q.q.val();
        let waits = self.pace_gate.waits.val();

        // A reply, and how it stands to the row.
        let reply = go.reply;
        self.reply.d.next = reply;
        let may_send = view.state >= qp_state::RTR;
        let meant = view.generation == if first { go.generation } else { fault.generation };
        let counts = may_send && meant && (faulty || !row.silent);
        // Not before those whose turn it is.
        let their_turn = self.enough.q.val() && self.scan.pick.valid.val();
        let may_at_once = reply.read && !reply.again && !reply.atomic && outputs_free && !their_turn && !waits;
        let at_once = may_at_once && counts && !row.count.any();
        self.counts.d.next = counts;
        self.at_once.d.next = at_once;
        self.standing.d.next = standing(row, reply, reply.slot == slots_read.tail);

        // The next frame of a READ: the first of one that has just come, or what the registers say. Or an ACK.
        let res = self.res.val();
        let is_ack = self.serves.q.val();
        let mtu = mtu_bytes(attributes.mtu);
        let left = if first { res.length } else { self.left.q.val() };
        let ends = left <= mtu.cast::<32>();
        let len = if ends { left.get_bits::<14>(0) } else { mtu };
        let begun = debt.begun && !first;
        let data_opcode: Bits<8> = if res.atomic {
            op::ATOMIC_ACK.to_bits()
        } else if begun {
            if ends { op::READ_RESPONSE_LAST.to_bits() } else { op::READ_RESPONSE_MIDDLE.to_bits() }
        } else if ends {
            op::READ_RESPONSE_ONLY.to_bits()
        } else {
            op::READ_RESPONSE_FIRST.to_bits()
        };
        let data_psn = if first { reply.psn } else { debt.psn };
        let frame = TxSeg {
            first: true,
            last: true,
            head: TxHead {
                qpn: qp,
                generation: view.generation,
                request: false,
                epoch: if first { row.epoch } else { debt.epoch },
                raw: false,
                opcode: if is_ack { op::ACK.to_bits() } else { data_opcode },
                psn: if is_ack { row.ack_psn } else { data_psn },
                ack_req: false,
                solicited: false,
                payload: if is_ack { 0.into() } else { len },
                va: res.va,
                rkey: 0.into(),
                dma_len: 0.into(),
                syndrome: if is_ack { row.ack_syndrome } else { syndrome::ACK.to_bits() },
                msn: if is_ack { row.ack_msn } else { res.msn },
                imm: 0.into(),
                again: debt.again && !first && !is_ack,
                of_fault: is_ack && row.silent && !row.framed,
            },
            is_inline: false,
            memory: !is_ack && left.any(),
            len: if is_ack { 0.into() } else { len },
            va: res.va + self.before.q.val().cast::<64>(),
            key: res.rkey,
            pd: attributes.pd,
            need: if is_ack { 0.into() } else { access::REMOTE_READ.to_bits() },
        };
        if !self.seg_valid.q.val() && !self.quick_valid.q.val() {
            self.seg_q.d.next = frame;
            self.len.d.next = len;
            self.ended.d.next = ends;
        }
        let ring = self.queued.val() + SLACK;

        let mut next = State::Idle;
        match state {
            State::Idle => {
                if take_row {
                    next = State::Bus;
                } else if take_fault || (calm && chosen) {
                    next = State::Fetch;
                } else if go_next {
                    next = if here { State::Take } else { State::TakeWait };
                }
            }
            State::Bus => {
                next = State::ReadWait;
                if table.write {
                    next = State::Idle;
                    self.writes.d.next = loads(table.row) && !paces_row;
                    self.debt.d.next = Debt {
                        count: 0.into(),
                        fresh: 0.into(),
                        answered: 0.into(),
                        psn: 0.into(),
                        placed: false,
                        begun: false,
                        again: false,
                        ack: false,
                        ack_psn: 0.into(),
                        ack_msn: 0.into(),
                        ack_syndrome: 0.into(),
                        silent: false,
                        epoch: 0.into(),
                        framed: false,
                        frame: 0.into(),
                    };
                    self.mark_valid.d.next = loads(table.row) && !paces_row;
                    self.mark_q.d.next = EpochMark { qpn: qp, epoch: 0.into() };
                }
            }
            State::TakeWait => {
                next = if late { State::TakeWait } else { State::Take };
            }
            State::Take => {
                self.debt.d.next = row;
                self.turn.d.next = turn_of(attributes.mtu);
                self.left.d.next = res.length;
                if at_once {
                    self.seg_valid.d.next = true;
                }
                count = count.replace_bit(counter::STALE_GENERATION, !meant);
                next = State::Owe;
            }
            State::Owe => {
                let standing = self.standing.q.val();
                let counts = self.counts.q.val();
                let taken = self.reply.q.val();
                self.debt.d.next = owe(debt, taken, standing);
                if taken.read {
                    self.slots.d.next.tail = taken.slot + 1;
                    if !standing.joins {
                        self.slots.d.next.head = taken.slot;
                    }
                }
                if counts && restarts(taken, standing) {
                    self.mark_valid.d.next = true;
                }
                if mark_free {
                    self.mark_q.d.next = EpochMark { qpn: qp, epoch: debt.epoch + 1 };
                }
                if self.at_once.q.val() {
                    next = State::Account;
                } else {
                    self.writes.d.next = counts;
                }
            }
            State::Fetch => {
                next = State::Resource;
            }
            State::Resource => {
                next = State::Row;
            }
            State::Row => {
                self.debt.d.next = row;
                self.turn.d.next = turn_of(attributes.mtu);
                if faulty {
                    next = State::Fault;
                    count = count.replace_bit(counter::STALE_GENERATION, !meant);
                } else if may_send && row.count.any() {
                    next = if waits { State::Idle } else { State::Place };
                } else if may_send && row.ack {
                    // Behind the READ responses, if any may still be in the ring.
                    let behind = row.framed && (self.gone.val() - row.frame).get_bit(15);
                    self.quick_valid.d.next = !behind;
                    self.seg_valid.d.next = behind;
                    self.debt.d.next.ack = false;
                    self.debt.d.next.framed = behind;
                    self.debt.d.next.frame = ring;
                    self.writes.d.next = true;
                }
            }
            State::Fault => {
                // A READ response could not be read: its NAK is the last that is said.
                self.debt.d.next.count = 0.into();
                self.debt.d.next.fresh = 0.into();
                self.debt.d.next.ack = true;
                self.debt.d.next.ack_psn = if refused { debt.psn } else { fault.psn };
                // The host refused the read, or the key did.
                self.debt.d.next.ack_syndrome = if refused || fault.cause == cause::DMA_ERROR {
                    syndrome::NAK_REMOTE_OPERATION.to_bits()
                } else {
                    syndrome::NAK_REMOTE_ACCESS.to_bits()
                };
                self.debt.d.next.silent = true;
                if !refused {
                    // What lay in front of it has left the transmit ring, and nothing behind it will: the NAK need not wait.
                    self.debt.d.next.framed = false;
                }
                let counts = self.counts.q.val() || refused;
                self.refused.d.next = false;
                self.error_valid.d.next = counts && !debt.silent;
                self.error_q.d.next = QpError {
                    send_only: false,
                    limit: false,
                    qpn: qp,
                    generation: fault.generation,
                    any_generation: refused,
                    cause: if refused { cause::DMA_ERROR.to_bits() } else { fault.cause },
                    event: true,
                };
                self.writes.d.next = counts;
            }
            State::Place => {
                let psns = if debt.placed { debt.psn - res.psn } else { 0.into() };
                let done = psns_to_bytes(psns, attributes.mtu).get_bits::<32>(0);
                self.before.d.next = done;
                self.left.d.next = res.length - done;
                if !debt.placed {
                    self.debt.d.next.psn = res.psn;
                    self.debt.d.next.begun = false;
                    self.debt.d.next.again = debt.fresh != debt.count;
                }
                self.debt.d.next.placed = true;
                // Nothing to write yet if it is not done; and a report has its place.
                if res.atomic && res.failed {
                    self.refused.d.next = !self.error_valid.q.val();
                    next = if self.error_valid.q.val() { State::Place } else { State::Fault };
                } else if !res.atomic || res.done {
                    next = State::Send;
                }
            }
            State::Send => {
                // The place is free at the first frame of a turn; when it is not at a later one, the turn is over.
                if self.seg_valid.q.val() {
                    self.writes.d.next = true;
                } else {
                    self.seg_valid.d.next = true;
                    next = State::Account;
                }
            }
            State::Account => {
                // For the frame that was made in the cycle before.
                let ended = self.ended.q.val();
                self.debt.d.next.psn = debt.psn + 1;
                self.debt.d.next.begun = true;
                self.debt.d.next.framed = true;
                self.debt.d.next.frame = ring;
                if ended {
                    self.slots.d.next.head = slots.head + 1;
                    self.debt.d.next.count = debt.count - 1;
                    self.debt.d.next.placed = false;
                    if debt.fresh == debt.count {
                        self.debt.d.next.fresh = debt.fresh - 1;
                        self.debt.d.next.answered = debt.answered + 1;
                    }
                }
                self.before.d.next = self.before.q.val() + self.len.q.val().cast::<32>();
                self.left.d.next = self.left.q.val() - self.len.q.val().cast::<32>();
                self.turn.d.next = self.turn.q.val() - 1;
                if ended || !self.turn.q.val().any() {
                    self.writes.d.next = true;
                } else {
                    next = State::Send;
                }
            }
            State::ReadWait => {
                next = State::ReadRow;
            }
            State::ReadRow => {
                self.rdata.d.next = cat!(
                    512;
                    row.ack_psn.cast::<440>(),
                    row.psn,
                    row.count.cast::<24>(),
                    attributes.pd,
                    false,
                    attributes.mtu,
                    bits::<4>(0)
                );
                self.rvalid.d.next = true;
            }
        }
        self.state.d.next = next;
        // From Idle said once more, for the inputs come late.
        let leaves = take_row || take_fault || (calm && (can_serve || go_ready));
        self.idle.d.next = if idle { !leaves } else { next == State::Idle };
        self.first.d.next = if idle { go_next && here } else { next == State::Take };
        self.serves.d.next = state == State::Resource;

        self.attributes.we.next = in_bus && table.write && !paces_row;
        self.attributes.waddr.next = table.index;
        self.attributes.wdata.next = Attributes {
            mtu: table.row.get_bits::<3>(elab!(qp_recv::MTU.lsb)),
            pd: table.row.get_bits::<16>(elab!(qp_recv::PD.lsb)),
        };
        self.debts.we.next = writes;
        self.debts.waddr.next = qp.cast::<24>();
        self.debts.wdata.next = debt;
        self.attributes.flip.next = self.flip.val();
        self.debts.flip.next = self.flip.val();
        // Both are read together.
        let bad = self.debts.bad.val();
        self.bad.next = BadRow { valid: bad.valid || self.attributes.bad.val().valid, row: bad.row };
        self.slots_of.we.next = writes;
        self.slots_of.waddr.next = qp;
        self.slots_of.wdata.next = slots;
        self.answered.we.next = writes;
        self.answered.waddr.next = qp;
        self.answered.wdata.next = debt.answered;
        self.answered.re.next = true;
        self.answered.raddr.next = self.reads_addr.val();
        if self.reads_re.val() {
            self.reads_now.d.next = self.answered.rdata.val();
        }
        self.reads_q.d.next = self.reads_now.q.val();
        self.reads.next = self.reads_q.q.val();

        // Or it may have waited for a rate that has ended.
        self.work.set[0].next = writes && (debt.count.any() || debt.ack) || in_bus && table.write && paces_row;
        self.work.set_at[0].next = qp;
        self.work.set[1].next = self.done.val();
        self.work.set_at[1].next = self.done_qp.val();
        self.work.set[2].next = self.pace_gate.frees.val();
        self.work.set_at[2].next = self.pace_q.q.val();
        self.work.clear.next = serve;
        self.work.clear_at.next = qp;
        self.work.drop.next = false;
        self.work.drop_group.next = 0.into();
        self.table.rdata.next = self.rdata.q.val();
        self.table.rvalid.next = self.rvalid.q.val();
        self.count_q.d.next = count;
        self.count.next = self.count_q.q.val();
    }
}
