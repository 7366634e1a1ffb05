//! Decides what a received request does: the responder's half of the protocol, one packet at a time.
//!
//! ```text
//! cycle   0 Idle            1 Fetch        2 Row           3 Queue (SEND, immediate)    4 Act
//!         take meta,        read WQE       row, view:      WQE: where its SGEs end      decide, write row,
//!         read row, view                   check all                                    op (one per SGE stretch)
//! ```
//! So a SEND takes 5 cycles, a WRITE or READ 4, and a further SGE stretch 2 more. A WRITE or READ that is announced (`soon`)
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
    /// The table bus has asked: it goes first.
    row_due: Reg<Bit>,
    /// The rows of `early_qpn` are being read.
    early: Reg<Bit>,
    early_qpn: DFF<Bits<24>>,
    m: DFF<RxMeta>,
    kind: DFF<Kind>,
    facts: DFF<Facts>,
    check: DFF<Check>,
    map: DFF<SgeMap>,
    /// What the receive queue says, true of a packet that takes no WQE: one is posted; it holds the message.
    posted: DFF<Bit>,
    fits: DFF<Bit>,
    /// It is posted, but not on chip.
    absent: DFF<Bit>,
    /// The packet ends within the first SGEs.
    within: DFF<Bits<3>>,
    /// Walk over the SGEs: offset in the message, bytes wanted, place in the receive buffer.
    at: DFF<Bits<32>>,
    want: DFF<Bits<14>>,
    place: DFF<BufAddr>,
    /// Search for the resource of a repeated READ.
    slot: DFF<Bits<4>>,
    slots_left: DFF<Bits<5>>,
    gap: DFF<Bits<37>>,
    /// It is still to be done.
    unsought: DFF<Bit>,
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
            row_due: Default::default(),
            early: Default::default(),
            early_qpn: Default::default(),
            m: Default::default(),
            kind: Default::default(),
            facts: Default::default(),
            check: Default::default(),
            map: Default::default(),
            posted: Default::default(),
            fits: Default::default(),
            absent: Default::default(),
            within: Default::default(),
            at: Default::default(),
            want: Default::default(),
            place: Default::default(),
            slot: Default::default(),
            slots_left: Default::default(),
            gap: Default::default(),
            unsought: Default::default(),
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
        regs!(self, clock, rst, state, row_due, early, op_valid, consume_valid, res_we_q, rvalid, count_q);
        dff_setup!(
            self, clock, m, kind, facts, check, map, posted, absent, fits, within, at, want, place, slot, slots_left,
            gap
        );
        dff_setup!(self, clock, unsought, found, consumer, early_qpn, op_q, consume_q, res_addr_q, res_q, rdata);
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
        let idle = state == State::Idle;

        // The table bus goes first. Raw frames are those of QP 0, whatever lies where the BTH would be.
        let table = self.table.req.val();
        let row_due = self.row_due.q.val();
        self.row_due.d.next = self.table.valid.val();
        let table_now = idle && row_due && self.table.valid.val();
        let take = idle && !row_due && self.meta.valid.val();
        let incoming = self.meta.data.val();
        let qpn: Bits<24> = if incoming.raw { 0.into() } else { incoming.qpn };

        // Rows may be read a cycle ahead, but no WQE.
        let ahead = idle && !row_due && self.soon_valid.val() && !self.meta.valid.val();
        self.early.d.next = ahead;
        self.early_qpn.d.next = self.soon.val();
        let here = self.early.q.val()
            && self.early_qpn.q.val() == incoming.qpn
            && !incoming.raw
            && !takes_wqe(incoming.opcode);
        let reads_row = (take && !here) || ahead;
        let who = if self.meta.valid.val() { qpn } else { self.soon.val() };

        // Ports.
        let waits = state == State::Wait;
        self.meta.ready.next = idle && !row_due;
        self.table.ready.next = idle && row_due;
        self.table.rdata.next = self.rdata.q.val();
        self.table.rvalid.next = self.rvalid.q.val();
        self.rvalid.d.next = false;
        self.view_re.next = reads_row || waits;
        self.view_addr.next = if waits { qp } else { who.get_bits::<12>(0) };
        self.reads_re.next = reads_row;
        self.reads_addr.next = who.get_bits::<12>(0);
        self.rq_re.next = (state == State::Fetch && (kind.send || kind.imm)) || waits;
        self.rq_queue.next = qp;
        self.rq_index.next = consumer;
        self.op.data.next = self.op_q.q.val();
        self.op.valid.next = self.op_valid.q.val();
        self.consume.data.next = self.consume_q.q.val();
        self.consume.valid.next = self.consume_valid.q.val();
        self.res_we.next = self.res_we_q.q.val();
        self.res_addr.next = self.res_addr_q.q.val();
        self.res.next = self.res_q.q.val();
        self.seek.next = state == State::Search;
        self.seek_at.next = cat!(24; qp.cast::<20>(), self.slot.q.val());
        if self.op.ready.val() {
            self.op_valid.d.next = false;
        }
        if self.consume.ready.val() {
            self.consume_valid.d.next = false;
        }

        // Tables: read by a packet or the table bus, written by either.
        let row = if row_due { table.index } else { who };
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

        // ---- What Row and Queue find. What they look at stays until the next packet's rows are read, so nothing says when.
        let needs_wqe = kind.send || (kind.imm && kind.write);
        let facts = self.facts.q.val();
        self.check.d.next = verify(m, facts, kind, attributes, progress, view, self.reads.val());
        let ahead_posted = self.rq_view.val().posted - consumer;
        let ahead_fetched = self.rq_view.val().fetched - consumer;
        // A full ring of 32,768 is just within reach; less than none is posted after a fetch that failed.
        let some_posted = ahead_posted.any() && !(ahead_posted.get_bit(15) && ahead_posted.get_bits::<15>(0).any());
        self.posted.d.next = !needs_wqe || some_posted;
        let on_chip = ahead_fetched.any() && !ahead_fetched.get_bit(15);
        self.absent.d.next = kind.send && some_posted && !on_chip;
        let entries = sge_map(self.rq_block.val());
        let reach = check.done.cast::<34>();
        self.map.d.next = entries;
        self.within.d.next = cat!(3; reach <= entries.end2, reach <= entries.end1, reach <= entries.end0);
        self.fits.d.next = !kind.send || reach <= entries.total;
        self.gap.d.next = psns_to_bytes(m.psn - self.saved.val().psn, attributes.mtu);

        // ---- What Act does, from registers. The verdicts exclude each other.
        let (posted, fits) = (self.posted.q.val(), self.fits.q.val());
        let duplicate = check.duplicate;
        let executes = check.right && posted && fits;
        let not_ready = (check.right || check.unfit) && !posted;
        let ends = check.wrong || (check.unfit && posted) || (check.right && posted && !fits);
        let raw = check.raw && posted && fits;
        // The stretch of memory at hand: a packet over several SGEs is several steps.
        let (at, want, within) = (self.at.q.val(), self.want.q.val(), self.within.q.val());
        let map = self.map.q.val();
        let stretch = sge_step(map, at, want);
        let offset = at.cast::<34>();
        let stretch_last = if offset < map.end0 {
            within.get_bit(0)
        } else if offset < map.end1 {
            within.get_bit(1)
        } else {
            within.get_bit(2) || offset >= map.end2
        };
        let room = stretch.end.get_bits::<14>(0) - at.get_bits::<14>(0);
        let stretch_len = if stretch_last { want } else { room };
        let last = stretch_last || !(facts.some && kind.send && (executes || raw));
        // A repeated READ is looked up first.
        let look_up = duplicate && self.unsought.q.val();
        // Only a packet that would be executed waits for its WQE, and only while its QP may receive.
        let fetching = (check.right || check.raw) && self.absent.q.val();
        let act = state == State::Act && !self.op_valid.q.val();
        let acts = act && !look_up && !fetching;
        let final_act = acts && last;
        let in_use = progress.message == SENDING;
        let takes = (executes && needs_wqe && kind.closes) || raw;
        let fails_wqe = ends && (in_use || check.right);

        let mut new_progress = progress;
        if executes {
            new_progress.psn = progress.psn + check.packets;
            new_progress.nak_sent = false;
        } else {
            new_progress.nak_sent = true;
        }
        if executes && !kind.read {
            new_progress.message = if kind.closes {
                0.into()
            } else if kind.send {
                SENDING.to_bits()
            } else {
                WRITING.to_bits()
            };
            new_progress.left = check.left;
            new_progress.done = check.done.get_bits::<32>(0);
            new_progress.va = check.va + m.payload.cast::<64>();
            new_progress.rkey = check.rkey;
        }
        if executes && kind.closes {
            new_progress.msn = progress.msn + 1;
        }
        if executes && kind.read {
            new_progress.reads = progress.reads + 1;
            if !progress.saved.get_bit(4) {
                new_progress.saved = progress.saved + 1;
            }
        }
        if ends {
            new_progress.halted = true;
        }
        let msn = new_progress.msn;
        let write_progress = load || final_act && (executes || check.future || ends || not_ready);
        let write_consumer = final_act && (takes || fails_wqe);
        let consumer_next = consumer + 1;

        let mut count: Bits<64> = 0.into();
        let known = !m.raw && !kind.cnp;
        count = count.replace_bit(counter::RX_RAW, final_act && raw);
        count = count.replace_bit(counter::RX_RAW_DROPPED, acts && m.raw && !raw);
        count = count.replace_bit(counter::RX_CNP, acts && kind.cnp);
        count = count.replace_bit(counter::RX_QP_STATE, acts && known && !check.receives);
        let heard = acts && known && check.receives;
        count = count.replace_bit(counter::RX_QP_TYPE, heard && !check.kind);
        count = count.replace_bit(counter::RX_QP_PEER, heard && check.kind && !check.peer);
        count = count.replace_bit(counter::RX_PKEY, heard && check.kind && check.peer && !check.pkey);
        count = count.replace_bit(counter::RX_OUT_OF_SEQUENCE, acts && check.future);
        count = count.replace_bit(counter::RX_DUPLICATE, acts && duplicate);
        count = count.replace_bit(counter::RX_INVALID_REQUEST, acts && ends);
        count = count.replace_bit(counter::RX_RNR, acts && not_ready);
        count = count.replace_bit(counter::RX_ACCEPTED, final_act && executes);
        self.count_q.d.next = count;
        self.count.next = self.count_q.q.val();

        // The step. It frees the rows if it is the packet's last; one NAK per gap, the next waits until a packet came in order.
        let older = check.future || (duplicate && !kind.read);
        let acks = (check.future && !progress.nak_sent)
            || (duplicate && (kind.send || kind.write))
            || ends
            || not_ready
            || (executes && m.ack_req && !kind.read);
        let op = RxOp {
            qpn: qp,
            generation: view.generation,
            response: false,
            write: facts.some && (raw || (executes && (kind.send || kind.write))),
            key: if kind.send { stretch.key } else { check.rkey },
            va: if kind.send { stretch.va } else { check.va },
            len: if kind.send { stretch_len } else { m.payload },
            span: if kind.send { stretch_len.cast::<32>() } else { check.span },
            buf: self.place.q.val(),
            pd: attributes.pd,
            need: if kind.send { access::LOCAL_WRITE.to_bits() } else { access::REMOTE_WRITE.to_bits() },
            last,
            accepted: executes && last,
            more: false,
            rows: m.rows,
            psn: m.psn,
            reply: Reply {
                ack: acks,
                read: if duplicate { self.found.q.val() } else { executes && kind.read },
                again: duplicate,
                psn: if older { progress.psn - cat!(24; bits::<23>(0u64), duplicate) } else { m.psn },
                msn,
                syndrome: if check.future {
                    syndrome::NAK_PSN.to_bits()
                } else if ends {
                    syndrome::NAK_INVALID_REQUEST.to_bits()
                } else if not_ready {
                    cat!(bits::<3>(1u64), attributes.rnr_timer)
                } else {
                    syndrome::ACK.to_bits()
                },
                slot: if duplicate { self.slot.q.val() } else { progress.reads.get_bits::<4>(0) },
            },
            completion: Completion {
                valid: last && (takes || fails_wqe),
                cqn: attributes.cqn,
                qpn: qp,
                generation: view.generation,
                status: if !ends {
                    wc::SUCCESS.to_bits()
                } else if check.right {
                    wc::LOC_LEN.to_bits()
                } else {
                    wc::REM_INV_REQ.to_bits()
                },
                cause: if !ends {
                    cause::NONE.to_bits()
                } else if check.right {
                    cause::RECEIVE_TOO_SHORT.to_bits()
                } else {
                    check.why
                },
                opcode: if kind.write && !ends {
                    recv_op::RECV_WRITE_IMM.to_bits()
                } else if kind.imm && !ends {
                    recv_op::RECV_IMM.to_bits()
                } else {
                    recv_op::RECV.to_bits()
                },
                wqe_index: consumer,
                blocks: 1.into(),
                length: check.done.get_bits::<32>(0),
                imm: m.imm,
                solicited: m.solicited,
                vlan: m.vlan,
                src_qpn: 0.into(),
            },
        };
        if act {
            self.op_q.d.next = op;
        }
        if acts {
            self.at.d.next = stretch.end;
            self.want.d.next = want - room;
            self.place.d.next = self.place.q.val() + room.cast::<20>();
        }
        self.res_we_q.d.next = acts && executes && kind.read;
        if state == State::Act {
            self.res_addr_q.d.next = cat!(24; qp.cast::<20>(), progress.reads.get_bits::<4>(0));
            self.res_q.d.next = ReadResource { psn: m.psn, msn, va: m.va, rkey: m.rkey, length: m.dma_len };
            self.consume_q.d.next = QueueIndex { queue: qp, index: consumer_next };
        }
        if write_consumer {
            self.consume_valid.d.next = true;
        }

        match state {
            State::Idle => {
                if table_now {
                    if !table.write {
                        self.state.d.next = State::ReadRow;
                    }
                } else if take {
                    self.state.d.next = if here { State::Row } else { State::Fetch };
                }
                if !row_due {
                    self.m.d.next = incoming;
                    self.m.d.next.qpn = qpn;
                    self.facts.d.next = facts_of(incoming, elab!(bits::<24>(self._qps.0 as u64)));
                    self.kind.d.next = if incoming.raw { raw_kind() } else { kind_of(incoming.opcode) };
                }
                self.found.d.next = false;
            }
            State::Fetch => {
                self.state.d.next = State::Row;
            }
            State::Row => {
                self.at.d.next = if kind.opens { 0.into() } else { progress.done };
                self.want.d.next = m.payload;
                self.place.d.next = m.buf;
                self.slot.d.next = progress.reads.get_bits::<4>(0) - 1;
                self.slots_left.d.next = progress.saved;
                self.unsought.d.next = kind.read && progress.saved.any();
                self.state.d.next = if needs_wqe { State::Queue } else { State::Act };
            }
            State::Queue => {
                self.state.d.next = State::Act;
            }
            // The WQE is read again in this cycle, then decided upon as before.
            State::Wait => {
                self.state.d.next = State::Look;
            }
            State::Look => {
                self.state.d.next = State::Queue;
            }
            State::Act => {
                if act {
                    self.op_valid.d.next = !look_up && !fetching;
                    if look_up {
                        self.state.d.next = State::Search;
                    } else if fetching {
                        self.state.d.next = State::Wait;
                    } else if last {
                        self.state.d.next = State::Idle;
                    }
                }
            }
            State::Search => {
                if self.saved_valid.val() {
                    self.state.d.next = State::Gap;
                }
            }
            State::Gap => {
                self.state.d.next = State::Match;
            }
            State::Match => {
                let found = same_read(m, self.saved.val(), self.gap.q.val());
                let none = self.slots_left.q.val() == 1;
                self.found.d.next = found;
                self.unsought.d.next = !found && !none;
                self.slots_left.d.next = self.slots_left.q.val() - 1;
                if !found {
                    self.slot.d.next = self.slot.q.val() - 1;
                }
                self.state.d.next = if found || none { State::Act } else { State::Search };
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

        let written = if idle { table.index } else { m.qpn };
        self.progress.we.next = write_progress;
        self.progress.waddr.next = written;
        self.progress.wdata.next = if idle { fresh(table.row) } else { new_progress };
        self.consumers.we.next = load || write_consumer;
        self.consumers.waddr.next = written.get_bits::<12>(0);
        self.consumers.wdata.next = if idle { 0.into() } else { consumer_next };
    }
}
