//! Decides what a received request does: the responder's half of the protocol, one packet at a time.
//!
//! ```text
//! cycle   0 Idle            1 Fetch        2 Row           3 Queue (SEND, immediate)    4 Act
//!         take meta,        opcode,        row, view:      WQE: where its SGEs end      decide, write row,
//!         read row, view    read WQE       check all                                    op (one per SGE stretch)
//! ```
//! So a SEND takes 5 cycles, a WRITE or READ 4, and a further SGE stretch 1 more. A WRITE or READ that is announced (`soon`)
//! in the cycle before it comes, while the engine is idle, has its rows read then, and leaves out `Fetch`. Nothing of the QP is in flight when
//! the next packet begins: rows need no forwarding.
//!
//! Order of the checks: state, type, peer, P_Key, PSN, opcode sequence, access, resources, length, receive length; the
//! key is landing's. A packet that fails is dropped, answered, or ends the QP; `halted` in the row says that it has ended,
//! until the row is loaded anew.
//!
//! It waits for its result's place (`op`), and for a receive WQE whose fetch is in flight, but only while the QP may still
//! receive: fetches end, because what they read into is reserved. The table bus waits for the current packet.

use super::opcode::*;
use super::responder_rules::*;
use super::sge::{SgeMap, sge_map, sge_step};
use crate::{
    msg::*,
    stream::{BadRow, GuardedTable, Sink, Source, TablePort},
};
use abi::{
    queue::recv_op,
    status::{cause, counter, wc},
    table::access,
    wire::syndrome,
};
use hdl::prelude::*;

/// See the module.
#[derive(LogicBlock)]
pub struct Responder {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// From dispatch.
    pub meta: Sink<RxMeta>,
    /// Perhaps the next cycle brings a packet for this QP.
    pub soon: Signal<In, Bits<24>>,
    pub soon_valid: Signal<In, Bit>,
    /// To dispatch.
    pub op: Source<RxOp>,
    /// Reads the QP's state: `view` two cycles later.
    pub view_re: Signal<Out, Bit>,
    pub view_addr: Signal<Out, Qp>,
    pub view: Signal<In, QpView>,
    /// Reads a receive WQE: block and queue state two cycles later.
    pub rq_re: Signal<Out, Bit>,
    pub rq_queue: Signal<Out, Qp>,
    pub rq_index: Signal<Out, Bits<16>>,
    pub rq_block: Signal<In, Bits<512>>,
    pub rq_view: Signal<In, QueueView>,
    /// The receive queue's new consumer index; always ready.
    pub consume: Source<QueueIndex>,
    /// Writes the READ resource table of the response engine, at QP x 16 + slot.
    pub res_we: Signal<Out, Bit>,
    pub res_addr: Signal<Out, Bits<24>>,
    pub res: Signal<Out, ReadResource>,
    /// Searches it, for a READ that is repeated: asks until `saved_valid`.
    pub seek: Signal<Out, Bit>,
    pub seek_at: Signal<Out, Bits<24>>,
    pub saved: Signal<In, ReadResource>,
    pub saved_valid: Signal<In, Bit>,
    /// Reads how many READs the response engine has answered, free-running: `reads` two cycles later.
    pub reads_re: Signal<Out, Bit>,
    pub reads_addr: Signal<Out, Qp>,
    pub reads: Signal<In, Bits<8>>,
    /// QP_RECV rows.
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
    kind: DFF<Kind>,
    check: DFF<Check>,
    map: DFF<SgeMap>,
    /// A WQE is posted; it is on chip.
    posted: DFF<Bit>,
    here: DFF<Bit>,
    /// Walk over the SGEs: offset in the message, bytes wanted, place in the receive buffer.
    at: DFF<Bits<32>>,
    want: DFF<Bits<14>>,
    place: DFF<BufAddr>,
    /// Search for the resource of a repeated READ.
    slot: DFF<Bits<4>>,
    slots_left: DFF<Bits<5>>,
    gap: DFF<Bits<37>>,
    searched: DFF<Bit>,
    found: DFF<Bit>,

    attributes: GuardedTable<Attributes>,
    progress: GuardedTable<Progress>,
    /// In LUTs, for it is there a cycle after its read, for the read of the WQE.
    consumers: Ram<Bits<16>, 12>,
    consumer: DFF<Bits<16>>,

    op_valid: Reg<Bit>,
    op_q: DFF<RxOp>,
    consume_valid: Reg<Bit>,
    consume_q: DFF<QueueIndex>,
    res_we_q: Reg<Bit>,
    res_addr_q: DFF<Bits<24>>,
    res_q: DFF<ReadResource>,
    rvalid: Reg<Bit>,
    rdata: DFF<Bits<512>>,
    count_q: Reg<Bits<64>>,
    _qps: Hidden<usize>,
}

#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
enum State {
    Idle,
    Fetch,
    Row,
    Queue,
    Act,
    Wait,
    Search,
    Look,
    Gap,
    Match,
    ReadRow,
    ReadWait,
}

impl Responder {
    /// A responder of `qps` QPs, at most 4,096.
    pub fn new(qps: usize) -> Self {
        Responder {
            clock: Default::default(),
            rst: Default::default(),
            meta: Default::default(),
            soon: Default::default(),
            soon_valid: Default::default(),
            op: Default::default(),
            view_re: Default::default(),
            view_addr: Default::default(),
            view: Default::default(),
            rq_re: Default::default(),
            rq_queue: Default::default(),
            rq_index: Default::default(),
            rq_block: Default::default(),
            rq_view: Default::default(),
            consume: Default::default(),
            res_we: Default::default(),
            res_addr: Default::default(),
            res: Default::default(),
            seek: Default::default(),
            seek_at: Default::default(),
            saved: Default::default(),
            saved_valid: Default::default(),
            reads_re: Default::default(),
            reads_addr: Default::default(),
            reads: Default::default(),
            table: Default::default(),
            flip: Default::default(),
            bad: Default::default(),
            count: Default::default(),
            state: Default::default(),
            early: Default::default(),
            early_qpn: Default::default(),
            m: Default::default(),
            kind: Default::default(),
            check: Default::default(),
            map: Default::default(),
            posted: Default::default(),
            here: Default::default(),
            at: Default::default(),
            want: Default::default(),
            place: Default::default(),
            slot: Default::default(),
            slots_left: Default::default(),
            gap: Default::default(),
            searched: Default::default(),
            found: Default::default(),
            attributes: GuardedTable::new(qps, "block"),
            progress: GuardedTable::new(qps, "block"),
            consumers: Ram::default().rows(qps).style("distributed").at_once(),
            consumer: Default::default(),
            op_valid: Default::default(),
            op_q: Default::default(),
            consume_valid: Default::default(),
            consume_q: Default::default(),
            res_we_q: Default::default(),
            res_addr_q: Default::default(),
            res_q: Default::default(),
            rvalid: Default::default(),
            rdata: Default::default(),
            count_q: Default::default(),
            _qps: Hidden(qps),
        }
    }
}

impl Logic for Responder {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, state, early, op_valid, consume_valid, res_we_q, rvalid, count_q);
        dff_setup!(
            self, clock, m, kind, check, map, posted, here, at, want, place, slot, slots_left, gap, searched, found
        );
        dff_setup!(self, clock, consumer, early_qpn, op_q, consume_q, res_addr_q, res_q, rdata);
        clock!(self, clock, attributes, progress, consumers);

        let state = self.state.q.val();
        let m = self.m.q.val();
        let kind = self.kind.q.val();
        let check = self.check.q.val();
        let attributes = self.attributes.rdata.val();
        let progress = self.progress.rdata.val();
        let consumer = self.consumer.q.val();
        let view = self.view.val();
        let qp = m.qpn.get_bits::<12>(0);
        let table = self.table.req.val();
        let table_now = state == State::Idle && self.table.valid.val();
        let take = state == State::Idle && self.meta.valid.val() && !self.table.valid.val();

        // What this packet would do, from registers.
        let payload = m.payload;
        let next_psn = if kind.read { progress.psn + check.packets } else { progress.psn + 1 };
        let msn = if kind.closes { progress.msn + 1 } else { progress.msn };
        let consumer_next = consumer + 1;
        let stretch = sge_step(self.map.q.val(), self.at.q.val(), self.want.q.val());
        let reach = self.at.q.val().cast::<34>() + self.want.q.val().cast::<34>();
        let too_short = kind.send && reach > self.map.q.val().total;
        let needs_wqe = kind.send || (kind.imm && kind.write);
        let op_free = !self.op_valid.q.val();
        let slot_address = cat!(24; qp.cast::<20>(), progress.reads.get_bits::<4>(0));

        // Raw frames are those of QP 0, whatever lies where the BTH would be.
        let incoming = self.meta.data.val();
        let qpn: Bits<24> = if incoming.raw { 0.into() } else { incoming.qpn };

        // Rows may be read a cycle ahead, but no WQE.
        let ahead = state == State::Idle && self.soon_valid.val() && !self.meta.valid.val() && !self.table.valid.val();
        self.early.d.next = ahead;
        self.early_qpn.d.next = self.soon.val();
        let here = self.early.q.val()
            && self.early_qpn.q.val() == incoming.qpn
            && !incoming.raw
            && !takes_wqe(incoming.opcode);
        let reads_row = (take && !here) || ahead;
        let who = if ahead { self.soon.val() } else { qpn };

        // Defaults of the ports.
        self.meta.ready.next = state == State::Idle && !self.table.valid.val();
        self.table.ready.next = state == State::Idle;
        self.table.rdata.next = self.rdata.q.val();
        self.table.rvalid.next = self.rvalid.q.val();
        self.rvalid.d.next = false;
        self.view_re.next = reads_row || state == State::Wait;
        self.view_addr.next = if state == State::Wait { qp } else { who.get_bits::<12>(0) };
        self.reads_re.next = reads_row;
        self.reads_addr.next = who.get_bits::<12>(0);
        self.rq_re.next = (state == State::Fetch && (m.raw || takes_wqe(m.opcode))) || state == State::Wait;
        self.rq_queue.next = qp;
        self.rq_index.next = consumer;
        self.op.data.next = self.op_q.q.val();
        self.op.valid.next = self.op_valid.q.val();
        self.consume.data.next = self.consume_q.q.val();
        self.consume.valid.next = self.consume_valid.q.val();
        self.res_we.next = self.res_we_q.q.val();
        self.res_addr.next = self.res_addr_q.q.val();
        self.res.next = self.res_q.q.val();
        self.res_we_q.d.next = false;
        if self.op.ready.val() {
            self.op_valid.d.next = false;
        }
        if self.consume.ready.val() {
            self.consume_valid.d.next = false;
        }

        // Tables: read by a packet or the table bus, written by either.
        let row = if table_now { table.index } else { who };
        let read_row = reads_row || (table_now && !table.write);
        self.attributes.re.next = read_row;
        self.attributes.raddr.next = row;
        self.progress.re.next = read_row;
        self.progress.raddr.next = row;
        self.consumers.re.next = true;
        self.consumers.raddr.next = row.get_bits::<12>(0);
        if read_row {
            self.consumer.d.next = self.consumers.rdata.val();
        }
        let load = table_now && table.write && loads(table.row);
        self.progress.flip.next = self.flip.val();
        self.attributes.flip.next = self.flip.val();
        self.bad.next = if self.progress.bad.val().valid { self.progress.bad.val() } else { self.attributes.bad.val() };
        self.attributes.we.next = table_now && table.write;
        self.attributes.waddr.next = table.index;
        self.attributes.wdata.next = attributes_of(table.row);
        let mut new_progress = progress;
        let mut write_progress = load;
        let mut write_consumer = load;
        self.seek.next = state == State::Search;
        self.seek_at.next = cat!(24; qp.cast::<20>(), self.slot.q.val());

        let mut count: Bits<64> = 0.into();
        // The packet's last op, unless a rule below says more: it frees the rows and does nothing else.
        let mut op = RxOp {
            qpn: qp,
            generation: view.generation,
            response: false,
            write: false,
            key: check.rkey,
            va: check.va,
            len: payload,
            span: check.span,
            buf: m.buf,
            pd: attributes.pd,
            need: access::REMOTE_WRITE.to_bits(),
            last: true,
            accepted: false,
            more: false,
            rows: m.rows,
            psn: m.psn,
            reply: Reply {
                ack: false,
                read: false,
                again: false,
                psn: m.psn,
                msn: progress.msn,
                syndrome: syndrome::ACK.to_bits(),
                slot: progress.reads.get_bits::<4>(0),
            },
            completion: Completion {
                valid: false,
                cqn: attributes.cqn,
                qpn: qp,
                generation: view.generation,
                status: wc::SUCCESS.to_bits(),
                cause: cause::NONE.to_bits(),
                opcode: if kind.write {
                    recv_op::RECV_WRITE_IMM.to_bits()
                } else if kind.imm {
                    recv_op::RECV_IMM.to_bits()
                } else {
                    recv_op::RECV.to_bits()
                },
                wqe_index: consumer,
                blocks: 1.into(),
                length: check.done,
                imm: m.imm,
                solicited: m.solicited,
                vlan: m.vlan,
                src_qpn: 0.into(),
            },
        };

        match state {
            State::Idle => {
                if table_now {
                    if !table.write {
                        self.state.d.next = State::ReadRow;
                    }
                } else if take {
                    self.state.d.next = if here { State::Row } else { State::Fetch };
                    self.m.d.next = incoming;
                    self.m.d.next.qpn = qpn;
                    self.kind.d.next = kind_of(incoming.opcode);
                    self.searched.d.next = false;
                    self.found.d.next = false;
                }
            }
            State::Fetch => {
                self.kind.d.next = if m.raw { raw_kind() } else { kind_of(m.opcode) };
                self.searched.d.next = false;
                self.found.d.next = false;
                self.state.d.next = State::Row;
            }
            State::Row => {
                let exists = m.qpn < (elab!(bits::<24>(self._qps.0 as u64)));
                self.check.d.next = verify(m, kind, attributes, progress, view, self.reads.val(), exists);
                self.at.d.next = if kind.opens { 0.into() } else { progress.done };
                self.want.d.next = payload;
                self.place.d.next = m.buf;
                self.slot.d.next = progress.reads.get_bits::<4>(0) - 1;
                self.slots_left.d.next = progress.saved;
                self.state.d.next = if needs_wqe { State::Queue } else { State::Act };
            }
            State::Queue => {
                let posted = self.rq_view.val().posted - consumer;
                let fetched = self.rq_view.val().fetched - consumer;
                // A full ring of 32,768 is just within reach; less than none is posted after a fetch that failed.
                let full: Bits<16> = 0x8000.into();
                let is_posted = posted.any() && posted <= full;
                let is_here = fetched.any() && !fetched.get_bit(15);
                self.map.d.next = sge_map(self.rq_block.val());
                self.posted.d.next = is_posted;
                self.here.d.next = is_here;
                // Only a packet that would be executed waits, and only while its QP may receive.
                let executes = check.receives && (m.raw || executes(check));
                let still = receives(view.state);
                self.check.d.next.receives = check.receives && still;
                let wait = executes && still && kind.send && is_posted && !is_here;
                self.state.d.next = if wait { State::Wait } else { State::Act };
            }
            // The WQE is read again in this cycle, then once more through Fetch and Row, which decide as before.
            State::Wait => {
                self.state.d.next = State::Look;
            }
            State::Act => {
                let mut done = true;
                let duplicate = check.receives && admitted(check) && check.duplicate;
                if m.raw {
                    if check.receives && self.posted.q.val() && !too_short {
                        op.write = payload.any();
                        op.key = stretch.key;
                        op.va = stretch.va;
                        op.len = stretch.len;
                        op.span = stretch.len.cast::<32>();
                        op.buf = self.place.q.val();
                        op.need = access::LOCAL_WRITE.to_bits();
                        op.last = stretch.last || !payload.any();
                        op.completion.valid = op.last;
                        done = op.last;
                        write_consumer = op.last && op_free;
                        count = count.replace_bit(counter::RX_RAW, op.last);
                    } else {
                        count = count.replace_bit(counter::RX_RAW_DROPPED, true);
                    }
                } else if kind.cnp {
                    count = count.replace_bit(counter::RX_CNP, true);
                } else if !check.receives {
                    count = count.replace_bit(counter::RX_QP_STATE, true);
                } else if !check.kind {
                    count = count.replace_bit(counter::RX_QP_TYPE, true);
                } else if !check.peer {
                    count = count.replace_bit(counter::RX_QP_PEER, true);
                } else if !check.pkey {
                    count = count.replace_bit(counter::RX_PKEY, true);
                } else if check.future {
                    // One NAK per gap: the next waits until a packet came in order.
                    count = count.replace_bit(counter::RX_OUT_OF_SEQUENCE, true);
                    op.reply.ack = !progress.nak_sent;
                    op.reply.psn = progress.psn;
                    op.reply.syndrome = syndrome::NAK_PSN.to_bits();
                    new_progress.nak_sent = true;
                    write_progress = op_free;
                } else if duplicate {
                    count = count.replace_bit(counter::RX_DUPLICATE, true);
                    if kind.read {
                        op.reply.read = self.found.q.val();
                        op.reply.again = true;
                        op.reply.slot = self.slot.q.val();
                    } else {
                        op.reply.ack = kind.send || kind.write;
                        op.reply.psn = progress.psn - 1;
                    }
                } else if check.invalid != cause::NONE
                    || ((!needs_wqe || self.posted.q.val()) && (!check.length || too_short))
                {
                    // The QP ends here. A receive WQE that is in use, or too short, completes with the error.
                    let in_use = progress.message == SENDING;
                    let short = check.invalid == cause::NONE && check.length;
                    count = count.replace_bit(counter::RX_INVALID_REQUEST, true);
                    op.reply.ack = true;
                    op.reply.syndrome = syndrome::NAK_INVALID_REQUEST.to_bits();
                    op.completion.valid = in_use || short;
                    op.completion.status = if short { wc::LOC_LEN.to_bits() } else { wc::REM_INV_REQ.to_bits() };
                    op.completion.cause = if short {
                        cause::RECEIVE_TOO_SHORT.to_bits()
                    } else if check.invalid != cause::NONE {
                        check.invalid
                    } else {
                        cause::INVALID_REQUEST.to_bits()
                    };
                    op.completion.opcode = recv_op::RECV.to_bits();
                    new_progress.halted = true;
                    write_progress = op_free;
                    write_consumer = op_free && (in_use || short);
                } else if needs_wqe && !self.posted.q.val() {
                    count = count.replace_bit(counter::RX_RNR, true);
                    op.reply.ack = true;
                    op.reply.syndrome = cat!(bits::<3>(1u64), attributes.rnr_timer);
                    new_progress.nak_sent = true;
                    write_progress = op_free;
                } else {
                    if kind.send {
                        op.write = payload.any();
                        op.key = stretch.key;
                        op.va = stretch.va;
                        op.len = stretch.len;
                        op.span = stretch.len.cast::<32>();
                        op.buf = self.place.q.val();
                        op.need = access::LOCAL_WRITE.to_bits();
                        op.last = stretch.last || !payload.any();
                    }
                    if kind.write {
                        op.write = payload.any();
                    }
                    done = op.last;
                    op.completion.valid = op.last && needs_wqe && kind.closes;
                    op.reply.ack = m.ack_req && !kind.read;
                    op.reply.read = kind.read;
                    op.reply.msn = msn;
                    new_progress.psn = next_psn;
                    new_progress.msn = msn;
                    new_progress.nak_sent = false;
                    if !kind.read {
                        new_progress.message = if kind.closes {
                            0.into()
                        } else if kind.send {
                            SENDING.to_bits()
                        } else {
                            WRITING.to_bits()
                        };
                        new_progress.left = check.left;
                        new_progress.done = check.done;
                        new_progress.va = check.va + payload.cast::<64>();
                        new_progress.rkey = check.rkey;
                    }
                    if kind.read {
                        new_progress.reads = progress.reads + 1;
                        if progress.saved != 16 {
                            new_progress.saved = progress.saved + 1;
                        }
                    }
                    write_progress = op_free && op.last;
                    write_consumer = op_free && op.last && needs_wqe && kind.closes;
                    self.res_we_q.d.next = op_free && kind.read;
                    op.accepted = op.last;
                    count = count.replace_bit(counter::RX_ACCEPTED, op.last);
                }
                // A repeated READ is looked up first.
                let look_up = duplicate && kind.read && !m.raw && !self.searched.q.val() && progress.saved.any();
                if look_up {
                    self.state.d.next = State::Search;
                    count = 0.into();
                } else if op_free {
                    self.op_valid.d.next = true;
                    self.op_q.d.next = op;
                    self.at.d.next = self.at.q.val() + stretch.len.cast::<32>();
                    self.want.d.next = self.want.q.val() - stretch.len;
                    self.place.d.next = self.place.q.val() + stretch.len.cast::<20>();
                    if done {
                        self.state.d.next = State::Idle;
                    }
                } else {
                    count = 0.into();
                }
            }
            // Second cycle of waiting for a WQE.
            State::Look => {
                self.state.d.next = State::Queue;
            }
            State::Search => {
                if self.saved_valid.val() {
                    self.state.d.next = State::Gap;
                }
            }
            State::Gap => {
                self.gap.d.next = psns_to_bytes(m.psn - self.saved.val().psn, attributes.mtu);
                self.state.d.next = State::Match;
            }
            State::Match => {
                let found = same_read(m, self.saved.val(), self.gap.q.val());
                self.found.d.next = found;
                self.searched.d.next = found || self.slots_left.q.val() == 1;
                self.slots_left.d.next = self.slots_left.q.val() - 1;
                if !found {
                    self.slot.d.next = self.slot.q.val() - 1;
                }
                self.state.d.next = if found || self.slots_left.q.val() == 1 { State::Act } else { State::Search };
            }
            State::ReadRow => {
                self.state.d.next = State::ReadWait;
            }
            State::ReadWait => {
                self.rdata.d.next = row_of(attributes, progress);
                self.rvalid.d.next = true;
                self.state.d.next = State::Idle;
            }
        }

        let row = if load { table.index } else { m.qpn };
        self.progress.we.next = write_progress;
        self.progress.waddr.next = row;
        self.progress.wdata.next = if load { fresh(table.row) } else { new_progress };
        self.consumers.we.next = write_consumer;
        self.consumers.waddr.next = row.get_bits::<12>(0);
        self.consumers.wdata.next = if load { 0.into() } else { consumer_next };
        if write_consumer && !load {
            self.consume_valid.d.next = true;
            self.consume_q.d.next = QueueIndex { queue: qp, index: consumer_next };
        }
        self.res_addr_q.d.next = slot_address;
        self.res_q.d.next = ReadResource { psn: m.psn, msn, va: m.va, rkey: m.rkey, length: m.dma_len };
        self.count_q.d.next = count;
        self.count.next = self.count_q.q.val();
    }
}
