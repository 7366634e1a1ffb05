//! Sends what the responder owes: READ responses, ACKs and NAKs. From commit; to the frames unit, and past it.
//!
//! ```text
//! cycle    0         1          2               3             4          5 ..
//! intake   go, row              row: write
//! service  pick, row  resource  row: ACK leaves  where it is   segment   next segment of the same READ
//! at once  go, row, resource    row            segment ..
//! ```
//! A new READ of a QP that owes none is served *at once*, without an intake of its own, while no QP waits to be served. An intake takes 3 cycles, 2 if another QP's work follows, an ACK 4, the first frame of a READ 5 and each further one of the same turn (4 KiB) 1.
//! Up to 4 intakes pass before a QP is served, so that ACKs coalesce under load.
//!
//! Per QP: the READ resources [head, head + count) still to be answered, the next response PSN, and one ACK or NAK, the
//! newest. It leaves only when no READ is left: past the transmit ring if none of the QP's READ responses can still be
//! there, else through it. A READ makes a pending ACK superfluous. A duplicate READ puts the head back to its resource,
//! and drops what was behind: its requester sends that again as well. If it goes back behind what was sent it begins an *epoch*:
//! what lies in the transmit ring of the responses before is void, else they would all go out in front of the one that is
//! asked for.
//!
//! It serves a QP only while both outputs are free, so it never holds a packet while the transmit side stands still, and
//! intake goes on. Intake waits for nobody.

use super::opcode::{mtu_bytes, psns_to_bytes};
use super::responder_rules::loads;
use crate::{
    msg::*,
    queue::flags::{Flags, Scan},
    stream::{FreshTable, Sink, Source, Table, TablePort},
};
use abi::{
    status::{cause, counter},
    table::{access, qp_recv, qp_state},
    wire::{op, syndrome},
};
use hdl::prelude::*;

/// Frames that may be between our output and their number in the transmit ring.
const SLACK: u64 = 16;
/// Bytes of READ responses that a QP sends in one turn, at least one frame.
const QUANTUM: u64 = 4096;

/// What firmware sets.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Attributes {
    mtu: Bits<3>,
    pd: Bits<16>,
}

/// What a QP owes.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Debt {
    /// READs to be answered, from the head's slot on.
    count: Bits<5>,
    /// Those at the end that were not asked for before.
    fresh: Bits<5>,
    /// Fresh READs answered, free-running: the responder has a copy.
    answered: Bits<8>,
    /// Next PSN of the head READ, if `placed`; else its first.
    psn: Psn,
    placed: Bit,
    /// A frame of this response went out: the next is not FIRST.
    begun: Bit,
    /// The head READ was asked for before.
    again: Bit,
    /// An ACK or NAK is pending.
    ack: Bit,
    ack_psn: Psn,
    ack_msn: Bits<24>,
    ack_syndrome: Bits<8>,
    /// A READ could not be read: after the NAK the QP says nothing more.
    silent: Bit,
    /// Epoch of the READ responses.
    epoch: Bits<8>,
    /// READ responses went out; all of them lie below this number in the transmit ring.
    framed: Bit,
    frame: Bits<16>,
}

#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
enum State {
    Idle,
    TakeWait,
    Take,
    Resource,
    Row,
    Place,
    Send,
    ReadWait,
    ReadRow,
}

/// See the module. N: QPs.
#[derive(LogicBlock)]
pub struct Respond<const N: usize> {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    pub go: Sink<ReplyGo>,
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
    /// QP_RECV rows.
    pub table: TablePort,
    pub count: Signal<Out, Bits<64>>,

    state: Reg<State>,
    attributes: Table<Attributes>,
    debts: Table<Debt>,
    /// Head slot, read in one cycle so that the resource comes with the row.
    heads: Ram<Bits<4>, 12>,
    answered: FreshTable<Bits<8>>,
    work: Flags<N>,
    scan: Scan<N>,

    qp: DFF<Qp>,
    /// What is taken in: a fault, else a reply.
    is_fault: DFF<Bit>,
    item: DFF<ReplyGo>,
    item_cause: DFF<Bits<8>>,
    /// Intakes since a QP was served.
    intakes: Reg<Bits<3>>,
    /// A QP waits to be served.
    waiting: Reg<Bit>,
    debt: DFF<Debt>,
    head: DFF<Bits<4>>,
    generation: DFF<Gen>,
    /// Rest of the READ: bytes before, bytes left; bytes left of the turn.
    before: DFF<Bits<37>>,
    left: DFF<Bits<32>>,
    budget: DFF<Bits<14>>,

    seg_valid: Reg<Bit>,
    seg_q: DFF<TxSeg>,
    quick_valid: Reg<Bit>,
    quick_q: DFF<TxHead>,
    mark_valid: Reg<Bit>,
    mark_q: DFF<EpochMark>,
    error_valid: Reg<Bit>,
    error_q: DFF<QpError>,
    rvalid: Reg<Bit>,
    rdata: DFF<Bits<512>>,
    count_q: Reg<Bits<64>>,
}

impl<const N: usize> Default for Respond<N> {
    fn default() -> Self {
        Respond {
            clock: Default::default(),
            rst: Default::default(),
            go: Default::default(),
            seg: Default::default(),
            quick: Default::default(),
            epoch: Default::default(),
            queued: Default::default(),
            gone: Default::default(),
            res_re: Default::default(),
            res_addr: Default::default(),
            res: Default::default(),
            reads_re: Default::default(),
            reads_addr: Default::default(),
            reads: Default::default(),
            fault: Default::default(),
            error: Default::default(),
            view_re: Default::default(),
            view_addr: Default::default(),
            view: Default::default(),
            table: Default::default(),
            count: Default::default(),
            state: Default::default(),
            attributes: Table::new(N, "block"),
            debts: Table::new(N, "block"),
            heads: Default::default(),
            answered: FreshTable::new(N, "block"),
            work: Default::default(),
            scan: Default::default(),
            qp: Default::default(),
            is_fault: Default::default(),
            item: Default::default(),
            item_cause: Default::default(),
            intakes: Default::default(),
            waiting: Default::default(),
            debt: Default::default(),
            head: Default::default(),
            generation: Default::default(),
            before: Default::default(),
            left: Default::default(),
            budget: Default::default(),
            seg_valid: Default::default(),
            seg_q: Default::default(),
            quick_valid: Default::default(),
            quick_q: Default::default(),
            mark_valid: Default::default(),
            mark_q: Default::default(),
            error_valid: Default::default(),
            error_q: Default::default(),
            rvalid: Default::default(),
            rdata: Default::default(),
            count_q: Default::default(),
        }
    }
}

/// A frame of QP `qpn` that answers, without payload.
#[hdl_fn]
fn answer(qpn: Qp, generation: Gen, opcode: Bits<8>, psn: Psn, syndrome: Bits<8>, msn: Bits<24>) -> TxHead {
    TxHead {
        qpn,
        generation,
        request: false,
        epoch: 0.into(),
        raw: false,
        opcode,
        psn,
        ack_req: false,
        solicited: false,
        payload: 0.into(),
        va: 0.into(),
        rkey: 0.into(),
        dma_len: 0.into(),
        syndrome,
        msn,
        imm: 0.into(),
        again: false,
    }
}

/// What QP owes after a reply or a fault came in, and the head slot.
#[hdl_fn]
fn owe(debt: Debt, head: Bits<4>, reply: Reply, is_fault: Bit, why: Bits<8>) -> (Debt, Bits<4>) {
    let mut now = debt;
    let mut slot = head;
    let newer = !(reply.psn - debt.ack_psn).get_bit(23);
    if is_fault {
        now.count = 0.into();
        now.fresh = 0.into();
        now.ack = true;
        now.ack_psn = reply.psn;
        // The host refused the read, or the key did.
        now.ack_syndrome = if why == cause::DMA_ERROR {
            syndrome::NAK_REMOTE_OPERATION.to_bits()
        } else {
            syndrome::NAK_REMOTE_ACCESS.to_bits()
        };
        now.silent = true;
    } else if !debt.silent && reply.read {
        let goes_back = (reply.psn - debt.psn).get_bit(23);
        let next = head + debt.count.get_bits::<4>(0);
        let goes_on = debt.count.any() && reply.slot == next && debt.count != 16;
        if goes_on {
            now.count = debt.count + 1;
            now.fresh = if reply.again { 0.into() } else { debt.fresh + 1 };
        } else {
            // Begins here. Fresh READs that are dropped come again as duplicates.
            now.count = 1.into();
            now.fresh = if reply.again { 0.into() } else { 1.into() };
            now.psn = reply.psn;
            now.placed = true;
            now.begun = false;
            now.again = reply.again;
            if reply.again && goes_back {
                now.epoch = debt.epoch + 1;
            }
            slot = reply.slot;
        }
        if !goes_on || reply.again {
            now.answered = debt.answered + debt.fresh.cast::<8>();
        }
        if !reply.again {
            now.ack = false;
        }
    } else if !debt.silent && (newer || !debt.ack) {
        now.ack = true;
        now.ack_psn = reply.psn;
        now.ack_msn = reply.msn;
        now.ack_syndrome = reply.syndrome;
    }
    (now, slot)
}

impl<const N: usize> Logic for Respond<N> {
    #[kernel]
    fn update(&mut self) {
        regs!(
            self,
            clock,
            rst,
            state,
            intakes,
            waiting,
            seg_valid,
            quick_valid,
            mark_valid,
            error_valid,
            rvalid,
            count_q
        );
        dff_setup!(self, clock, qp, is_fault, item, item_cause, debt, head, generation, before, left, budget);
        dff_setup!(self, clock, seg_q, quick_q, mark_q, error_q, rdata);
        clock!(self, clock, attributes, debts, heads, answered);
        clock_reset!(self, clock, rst, work, scan);

        let state = self.state.q.val();
        let qp = self.qp.q.val();
        let view = self.view.val();
        let attributes = self.attributes.rdata.val();
        let row = self.debts.rdata.val();
        let head = self.heads.rdata.val();
        let debt = self.debt.q.val();
        let table = self.table.req.val();
        let idle = state == State::Idle;

        // Who comes next: a row, a fault, a reply, a QP to be served.
        let go = self.go.data.val();
        let mark_free = !self.mark_valid.q.val();
        let go_ready = self.go.valid.val() && (!go.reply.read || mark_free);
        let outputs_free = !self.seg_valid.q.val() && !self.quick_valid.q.val() && mark_free;
        let can_serve = self.scan.pick.valid.val() && outputs_free;
        let their_turn = can_serve && self.intakes.q.val() >= 4;
        let take_row = idle && self.table.valid.val() && mark_free;
        let take_fault = idle && !self.table.valid.val() && self.fault.valid.val() && !self.error_valid.q.val();
        // The rows of another QP may be read in the last cycle of an intake already.
        let calm = !self.table.valid.val() && !self.fault.valid.val();
        let reply = self.item.q.val().reply;
        let new_read = reply.read && !reply.again && !self.is_fault.q.val();
        let may_at_once = new_read && outputs_free && !self.waiting.q.val();
        let ends_intake = state == State::Take && !may_at_once;
        let may_go = calm && (idle || ends_intake && go.qpn != qp);
        let may_serve = calm && (idle || ends_intake && self.scan.pick.data.val() != qp);
        let take_go = may_go && go_ready && !their_turn;
        let serve = may_serve && can_serve && !take_go;
        self.table.ready.next = idle && mark_free;
        self.fault.ready.next = take_fault;
        self.go.ready.next = take_go;
        self.scan.pick.ready.next = serve;
        self.scan.bits.next = self.work.bits.val();
        self.waiting.d.next = self.work.bits.val().any();

        let who = if take_row {
            table.index.get_bits::<12>(0)
        } else if take_fault {
            self.fault.data.val().qpn
        } else if take_go {
            go.qpn
        } else {
            self.scan.pick.data.val()
        };
        let read = (take_row && !table.write) || take_fault || take_go || serve;
        self.attributes.re.next = read;
        self.attributes.raddr.next = who.cast::<24>();
        self.debts.re.next = read;
        self.debts.raddr.next = who.cast::<24>();
        self.heads.re.next = read;
        self.heads.raddr.next = who;
        self.view_re.next = read;
        self.view_addr.next = who;
        self.res_re.next = state == State::Resource || take_go;
        self.res_addr.next =
            if take_go { cat!(24; go.qpn.cast::<20>(), go.reply.slot) } else { cat!(24; qp.cast::<20>(), head) };
        if idle || take_go || serve {
            self.qp.d.next = who;
            self.is_fault.d.next = take_fault;
            self.item.d.next = go;
            if take_fault {
                let fault = self.fault.data.val();
                self.item.d.next.generation = fault.generation;
                self.item.d.next.reply.psn = fault.psn;
                self.item_cause.d.next = fault.cause;
            }
        }
        if serve {
            self.intakes.d.next = 0.into();
        }
        if take_go && self.intakes.q.val() != 7 {
            self.intakes.d.next = self.intakes.q.val() + 1;
        }

        // Defaults.
        let load = take_row && table.write && loads(table.row);
        let mut write = load;
        let mut new_debt = Debt {
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
        let mut new_head: Bits<4> = 0.into();
        let mut has_work = false;
        let mut count: Bits<64> = 0.into();
        self.seg.data.next = self.seg_q.q.val();
        self.seg.valid.next = self.seg_valid.q.val();
        self.quick.data.next = self.quick_q.q.val();
        self.quick.valid.next = self.quick_valid.q.val();
        self.epoch.data.next = self.mark_q.q.val();
        self.epoch.valid.next = self.mark_valid.q.val();
        if self.epoch.ready.val() {
            self.mark_valid.d.next = false;
        }
        self.error.data.next = self.error_q.q.val();
        self.error.valid.next = self.error_valid.q.val();
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

        let (owed, owed_head) = owe(row, head, reply, self.is_fault.q.val(), self.item_cause.q.val());
        let (may_send, known) = (view.state >= qp_state::RTR, view.generation == self.item.q.val().generation);

        // The next frame of a READ, from registers.
        let res = self.res.val();
        let mtu = mtu_bytes(attributes.mtu);
        let left = self.left.q.val();
        let ends = left <= mtu.cast::<32>();
        let len = if ends { left.get_bits::<14>(0) } else { mtu };
        let opcode: Bits<8> = if debt.begun {
            if ends { op::READ_RESPONSE_LAST.to_bits() } else { op::READ_RESPONSE_MIDDLE.to_bits() }
        } else if ends {
            op::READ_RESPONSE_ONLY.to_bits()
        } else {
            op::READ_RESPONSE_FIRST.to_bits()
        };
        let ack = answer(qp, view.generation, op::ACK.to_bits(), row.ack_psn, row.ack_syndrome, row.ack_msn);
        let data = answer(qp, self.generation.q.val(), opcode, debt.psn, syndrome::ACK.to_bits(), res.msn);

        match state {
            State::Idle => {
                if take_row {
                    if !table.write {
                        self.state.d.next = State::ReadWait;
                    } else if load {
                        self.mark_valid.d.next = true;
                        self.mark_q.d.next =
                            EpochMark { qpn: table.index.get_bits::<12>(0), epoch: 0.into(), response: true };
                    }
                } else if take_fault || take_go {
                    self.state.d.next = State::TakeWait;
                } else if serve {
                    self.state.d.next = State::Resource;
                }
            }
            State::TakeWait => {
                self.state.d.next = State::Take;
            }
            State::Take => {
                let good = known && may_send;
                if good && owed.epoch != row.epoch {
                    self.mark_valid.d.next = true;
                    self.mark_q.d.next = EpochMark { qpn: qp, epoch: owed.epoch, response: true };
                }
                let at_once = may_at_once && !row.count.any() && !row.silent;
                write = good && !at_once;
                new_debt = owed;
                new_head = owed_head;
                has_work = good && !at_once;
                self.debt.d.next = owed;
                self.head.d.next = owed_head;
                self.generation.d.next = view.generation;
                self.budget.d.next = QUANTUM.to_bits();
                self.before.d.next = 0.into();
                self.left.d.next = res.length;
                count = count.replace_bit(counter::STALE_GENERATION, !known);
                if self.is_fault.q.val() && good && !row.silent {
                    self.error_valid.d.next = true;
                    self.error_q.d.next = QpError {
                        qpn: qp,
                        generation: view.generation,
                        any_generation: false,
                        cause: self.item_cause.q.val(),
                        event: true,
                    };
                }
                self.state.d.next = if good && at_once {
                    State::Send
                } else if take_go {
                    State::TakeWait
                } else if serve {
                    State::Resource
                } else {
                    State::Idle
                };
            }
            State::Resource => {
                self.state.d.next = State::Row;
            }
            State::Row => {
                self.debt.d.next = row;
                self.head.d.next = head;
                self.generation.d.next = view.generation;
                self.budget.d.next = QUANTUM.to_bits();
                new_debt = row;
                new_head = head;
                if may_send && row.count.any() {
                    self.state.d.next = State::Place;
                } else {
                    if may_send && row.ack {
                        // Behind the READ responses, if any may still be in the ring.
                        let behind = row.framed && (self.gone.val() - row.frame).get_bit(15);
                        self.quick_q.d.next = ack;
                        self.quick_valid.d.next = !behind;
                        self.seg_valid.d.next = behind;
                        self.seg_q.d.next = TxSeg {
                            first: true,
                            last: true,
                            head: ack,
                            is_inline: false,
                            len: 0.into(),
                            va: 0.into(),
                            key: 0.into(),
                            pd: attributes.pd,
                            need: 0.into(),
                        };
                        new_debt.ack = false;
                        new_debt.framed = behind;
                        new_debt.frame = self.queued.val() + SLACK;
                        write = true;
                    }
                    self.state.d.next = State::Idle;
                }
            }
            State::Place => {
                let psns = if debt.placed { debt.psn - res.psn } else { 0.into() };
                let before = psns_to_bytes(psns, attributes.mtu);
                self.before.d.next = before;
                self.left.d.next = res.length - before.get_bits::<32>(0);
                if !debt.placed {
                    self.debt.d.next.psn = res.psn;
                    self.debt.d.next.begun = false;
                    self.debt.d.next.again = false;
                }
                self.debt.d.next.placed = true;
                self.state.d.next = State::Send;
            }
            State::Send => {
                // The place is free at the first frame of a turn; when it is not at a later one, the turn is over.
                let emit = !self.seg_valid.q.val() || self.seg.ready.val();
                new_debt = debt;
                new_head = self.head.q.val();
                if emit {
                    new_debt.psn = debt.psn + 1;
                    new_debt.begun = true;
                    new_debt.framed = true;
                    new_debt.frame = self.queued.val() + SLACK;
                }
                if emit && ends {
                    new_head = self.head.q.val() + 1;
                    new_debt.count = debt.count - 1;
                    new_debt.placed = false;
                    new_debt.again = false;
                    if debt.fresh == debt.count {
                        new_debt.fresh = debt.fresh - 1;
                        new_debt.answered = debt.answered + 1;
                    }
                }
                let mut frame = data;
                frame.payload = len;
                frame.again = debt.again;
                frame.epoch = debt.epoch;
                if emit {
                    self.seg_valid.d.next = true;
                    self.seg_q.d.next = TxSeg {
                        first: true,
                        last: true,
                        head: frame,
                        is_inline: false,
                        len,
                        va: res.va + self.before.q.val().cast::<64>(),
                        key: res.rkey,
                        pd: attributes.pd,
                        need: access::REMOTE_READ.to_bits(),
                    };
                }
                self.before.d.next = self.before.q.val() + len.cast::<37>();
                self.left.d.next = left - len.cast::<32>();
                self.budget.d.next = self.budget.q.val() - mtu;
                self.debt.d.next = new_debt;
                if !emit || ends || self.budget.q.val() <= mtu {
                    write = true;
                    has_work = new_debt.count.any() || new_debt.ack;
                    self.state.d.next = State::Idle;
                }
            }
            State::ReadWait => {
                self.state.d.next = State::ReadRow;
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
                self.state.d.next = State::Idle;
            }
        }

        let row_index = if load { table.index.get_bits::<12>(0) } else { qp };
        self.attributes.we.next = take_row && table.write;
        self.attributes.waddr.next = table.index;
        self.attributes.wdata.next = Attributes {
            mtu: table.row.get_bits::<3>(elab!(qp_recv::MTU.lsb)),
            pd: table.row.get_bits::<16>(elab!(qp_recv::PD.lsb)),
        };
        self.debts.we.next = write;
        self.debts.waddr.next = row_index.cast::<24>();
        self.debts.wdata.next = new_debt;
        self.heads.we.next = write;
        self.heads.waddr.next = row_index;
        self.heads.wdata.next = new_head;
        self.answered.we.next = write;
        self.answered.waddr.next = row_index.cast::<24>();
        self.answered.wdata.next = new_debt.answered;
        self.answered.re.next = self.reads_re.val();
        self.answered.raddr.next = self.reads_addr.val().cast::<24>();
        self.reads.next = self.answered.rdata.val();

        self.work.set[0].next = has_work;
        self.work.set_at[0].next = qp;
        for i in 1..3 {
            self.work.set[i].next = false;
            self.work.set_at[i].next = 0.into();
        }
        self.work.clear.next = serve;
        self.work.clear_at.next = self.scan.pick.data.val();
        self.work.drop.next = false;
        self.work.drop_group.next = 0.into();
        self.table.rdata.next = self.rdata.q.val();
        self.table.rvalid.next = self.rvalid.q.val();
        self.count_q.d.next = count;
        self.count.next = self.count_q.q.val();
    }
}
