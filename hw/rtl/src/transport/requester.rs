//! Executes the send queues of all QPs: cuts messages into packets, within window and limits.
//!
//! Two stages. The *front* ([`super::requester_front`]) takes a pick and brings the QP's rows and its next WQE; the *engine* sends up
//! to a quantum of [`QUANTUM`] bytes of it, over several messages if they are small:
//!
//! ```text
//! cycle    0      1      2      3      4      5
//! state    Idle   Check  Find   Emit   Idle          (next packet: Check; next WQE: Take)
//!          load   differ- gate, seg    write row,
//!                 ences  SGE           consume
//! ```
//! A message of one packet takes 4 cycles; each further SGE of a packet takes 3, and each that lies before the byte at which a pick
//! goes on takes 2. A WQE that was sent before is compared with its record, which takes 4 more.
//!
//! The engine alone writes rows: between two picks it also does go backs, faults of frames, and the table bus. The front drops a
//! pick whose QP the engine has in hand, and other work drops the front's QP: so no row is stale.
//!
//! Blocks of a WQE and the WQE behind it are read one ahead, and wait at the output of the work queue, which holds them.
//!
//! On the raw queue pair a SEND is a whole Ethernet frame: one packet, whatever the path MTU, with a PSN and a record like any
//! other, which egress acknowledges when the frame has left.
//!
//! A QP stops (its *open* bit falls) when its window or its READs are used up, at a fence, or at a fault; a kick opens it again.
//! A kick that crosses a QP in front or engine keeps it open, so none is lost. It counts a cycle after it came.
//!
//! A *paced* QP stops behind each frame, though its turn goes on, until the pacer kicks it ([`PaceGate`]): whatever else opens it, a
//! pick finds that it waits.
//!
//! An operation that concerns this NIC alone has a record of no PSNs. The completer is told of it as of a fault, and executes it
//! when all before it is done; until it is done itself nothing behind it goes. It is told again when a go back has led here again.
//!
//! Windows and fast registrations are policy, and so the firmware's: a WQE that asks for one stops its QP, and is shown to the firmware
//! (`ask`), until a row brings its verdict. One at a time: that of another QP is picked again meanwhile.
//!
//! A late ACK may overtake a go back: the QP then skips to the oldest message in flight, as `acked` shows it, for the WQEs before
//! it are complete and may be overwritten.
//!
//! It waits for its outputs only: frames and completer never wait for it, the work queue takes a refetch in a few
//! cycles. While it waits, kicks are taken; and while a packet waits for the way to the frames, which are full of what a go back voids,
//! other work goes first, and the packet's QP is picked again. So nothing is offered to them before they take it.

use super::{
    requester_front::Front,
    requester_rules::{
        ACK_UNITS, Attributes, Gaps, Gate, Handle, Packet, Progress, Restart, advanced, answers, attributes_of,
        gaps_of, gate_of, gone_back, handle_of, oldest, packet_of, restarted,
    },
    requester_wqe::{Piece, Wqe, bytes_of_sge, opcode_of, piece_of, sges_of, wqe_of},
};
use crate::{
    congestion::PaceGate,
    msg::{
        Acked, EpochMark, GoBack, Pick, Qp, QpView, QueueIndex, QueueView, Record, SendFault, Sent, TxFault, TxHead,
        TxSeg, numbers,
    },
    queue::flags::{Flags, is_size},
    stream::{BadRow, GuardedTable, Sink, Source, TablePort},
};
use abi::{
    queue::{sge, ud_target},
    status::counter,
    table::{address_handles, id, pace, qp_send, qp_state, qp_type, verdict},
};
use hdl::prelude::*;

/// Bytes that a QP may send before another has its turn; a packet counts at least 64.
pub const QUANTUM: u64 = 4096;
/// All that the engine needs of a QP.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Context {
    qpn: Qp,
    state: QpView,
    attributes: Attributes,
    acked: Acked,
}

#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
enum State {
    Idle,
    Check,
    Find,
    /// On to the next SGE.
    Step,
    Emit,
    /// A further block is read.
    Ask,
    Late,
    Wait,
    /// It is a WQE, or its second block with SGEs 2 and 3.
    Take,
    Rest,
    /// The record of what was sent before is read.
    Recall,
    Recall1,
    Recall2,
    Fault,
    /// Other work: the row is read, and what asks for it judged by it.
    Look,
    Judge,
    Act,
    /// The QP goes on elsewhere.
    Turn,
    Mark,
    Refetch,
    Tell,
}

/// What a block that was read is for.
#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
enum Taker {
    /// The next WQE.
    Next,
    /// SGEs 2 and 3.
    Rest,
    /// Inline data.
    Data,
}

/// What the engine is at.
#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
enum Work {
    Send,
    Row,
    Frame,
    Back,
    /// The QP in hand lies behind what is acknowledged.
    Skip,
}

/// The requester of N QPs.
#[derive(LogicBlock, Default)]
pub struct Requester<const N: usize> {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// QPs with work that are open.
    pub pick: Sink<Pick>,
    pub open: Signal<Out, Bits<N>>,
    /// Reads a block of a send queue, on `sq_block` and `sq_view` from two cycles later until the next; or from three cycles
    /// later.
    pub sq_re: Signal<Out, Bit>,
    pub sq_queue: Signal<Out, Qp>,
    pub sq_index: Signal<Out, Bits<16>>,
    pub sq_block: Signal<In, Bits<512>>,
    pub sq_view: Signal<In, QueueView>,
    /// Blocks executed; always taken.
    pub consume: Source<QueueIndex>,
    /// Where to fetch again from after a go back; taken when it is done.
    pub refetch: Source<QueueIndex>,
    pub back: Sink<GoBack>,
    /// Something was acknowledged, or a wait is over.
    pub kick: Sink<Qp>,
    /// The pacer lets this QP go on.
    pub pace: Signal<In, Qp>,
    pub paces: Signal<In, Bit>,
    /// Reads what is acknowledged, on `acked` from two cycles later until the next. The completer writes it before it kicks.
    pub acked_re: Signal<Out, Bit>,
    pub acked_addr: Signal<Out, Qp>,
    pub acked: Signal<In, Acked>,
    /// Reads a QP's state, on `view` from two cycles later until the next.
    pub view_re: Signal<Out, Bit>,
    pub view_addr: Signal<Out, Qp>,
    pub view: Signal<In, QpView>,
    /// A message began: QP * 128 + record.
    pub record_we: Signal<Out, Bit>,
    pub record_addr: Signal<Out, Bits<24>>,
    pub record: Signal<Out, Record>,
    /// Reads a record: on `recalled` two cycles after `recall_ready`.
    pub recall_re: Signal<Out, Bit>,
    pub recall_addr: Signal<Out, Bits<24>>,
    pub recall_ready: Signal<In, Bit>,
    pub recalled: Signal<In, Record>,
    /// A READ's SGEs: QP * 16 + slot.
    pub land_we: Signal<Out, Bit>,
    pub land_addr: Signal<Out, Bits<24>>,
    pub land: Signal<Out, Bits<512>>,
    /// How far a QP has sent.
    pub sent_we: Signal<Out, Bit>,
    pub sent_addr: Signal<Out, Qp>,
    pub sent: Signal<Out, Sent>,
    /// Offered only in the cycle in which it is taken.
    pub seg: Source<TxSeg>,
    /// Data of the segments with `is_inline`, from byte 0 on, in their order.
    pub inline_data: Source<Bits<512>>,
    /// A frame of a QP could not be read.
    pub fault: Sink<TxFault>,
    pub failed: Source<SendFault>,
    pub epoch: Source<EpochMark>,
    /// First block of a WQE that the firmware decides upon, by `qp_send::VERDICT` in a row of its QP.
    pub ask: Signal<Out, QueueIndex>,
    pub asks: Signal<Out, Bit>,
    /// QP_SEND rows; a read gives the next PSN, and whether all is drained. And AH and PACE rows.
    pub table: TablePort,
    /// For tests: rows written now are stored damaged.
    pub flip: Signal<In, Bit>,
    /// A row was found damaged.
    pub bad: Signal<Out, BadRow>,
    pub count: Signal<Out, Bits<64>>,
    progress: GuardedTable<Progress>,
    attributes: GuardedTable<Attributes>,
    handles: Ram<Handle, 12>,
    gates: Flags<N>,
    front: Front,
    state: Reg<State>,
    work: Reg<Work>,
    /// Other work waits, of this kind and QP.
    other: Reg<Bit>,
    /// It is of this life of its QP, which sends; a frame's fault is the first of its epoch.
    live: DFF<Bit>,
    runs: DFF<Bit>,
    news: DFF<Bit>,
    /// Nothing of it is under way.
    drained: DFF<Bit>,
    other_work: DFF<Work>,
    whose: DFF<Qp>,
    context: Reg<Context>,
    now: Reg<Progress>,
    /// Progress, and whether a WQE is done, must be told.
    store: Reg<Bit>,
    consumed: Reg<Bit>,
    kicked: Reg<Bit>,
    kicks: Reg<Bit>,
    kick_q: DFF<Qp>,
    pace_gate: PaceGate,
    /// A kick of the pacer's. A frame has begun.
    paces_q: Reg<Bit>,
    pace_q: DFF<Qp>,
    begun: Reg<Bit>,
    wqe: Reg<Wqe>,
    /// How full its queue was.
    queue: DFF<QueueView>,
    /// SGEs 0 and 1, 2 and 3; or inline data that is sent next.
    sges: [DFF<Bits<256>>; 2],
    /// Block of the WQE that is read next, and what it is for.
    block: DFF<Bits<3>>,
    taker: DFF<Taker>,
    /// A block that was read waits to be taken.
    holds: Reg<Bit>,
    /// The WQE in hand is the first of its pick.
    fresh: Reg<Bit>,
    /// It was compared with what was sent of it before this pick; it must be, with this record; it differs.
    compared: Reg<Bit>,
    unsure: Reg<Bit>,
    recall: DFF<Bits<7>>,
    differs: Reg<Bit>,
    /// Bytes of the message not yet sent; where the packet's next stretch is: byte `at` of this SGE, or `beyond` it; and what is
    /// left of the packet.
    left: DFF<Bits<32>>,
    entry: DFF<Bits<2>>,
    at: DFF<Bits<32>>,
    beyond: Reg<Bit>,
    want: DFF<Bits<14>>,
    /// The frame begins with the next stretch.
    opens: Reg<Bit>,
    packet: DFF<Packet>,
    gaps: DFF<Gaps>,
    gate: Reg<Gate>,
    stretch: DFF<Piece>,
    inlines: Reg<Bit>,
    opcode: DFF<Bits<8>>,
    ack: DFF<Bit>,
    after: DFF<Progress>,
    remote: DFF<Bits<64>>,
    /// The completer has taken what failed. A cycle later, for it is late to say whether it does.
    told: Reg<Bit>,
    budget: DFF<Bits<13>>,
    spent: DFF<Bit>,
    // Outputs.
    asks_q: Reg<Bit>,
    ask_q: DFF<QueueIndex>,
    inline_valid: Reg<Bit>,
    inline_word: DFF<Bits<512>>,
    stale: Reg<Bit>,
    _late: Hidden<bool>,
}

impl<const N: usize> Requester<N> {
    /// The requester of N QPs. `late`: blocks of the send queues come three cycles after they are asked for, not two; `paces`: the core
    /// has a pacer.
    pub fn new(late: bool, paces: bool) -> Self {
        assert!(is_size(N), "{N} QPs");
        Requester {
            progress: GuardedTable::new(N, "block"),
            attributes: GuardedTable::new(N, ""),
            handles: Ram::default().rows(address_handles(N)).style("distributed").at_once(),
            front: Front::new(late),
            pace_gate: PaceGate::new(N, paces),
            _late: Hidden(late),
            ..Default::default()
        }
    }
}

/// What a packet takes of the quantum: its bytes, at least 64. A raw frame may be longer than a quantum, which it then uses up.
#[hdl_fn]
fn cost_of(bytes: Bits<14>) -> Bits<13> {
    if !bytes.get_bits::<8>(6).any() {
        64.into()
    } else if bytes.get_bit(13) {
        bits::<13>(QUANTUM)
    } else {
        bytes.get_bits::<13>(0)
    }
}

impl<const N: usize> Logic for Requester<N> {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, state, work, other, context, now, store, consumed, kicked, wqe, holds, fresh, compared);
        regs!(self, clock, rst, unsure, differs, opens, gate, inlines, inline_valid, stale, beyond, kicks, asks_q);
        regs!(self, clock, rst, told, paces_q, begun);
        dff_setup!(
            self, clock, other_work, whose, queue, sges, block, taker, recall, left, entry, at, want, packet, gaps
        );
        dff_setup!(
            self,
            clock,
            stretch,
            opcode,
            ack,
            after,
            remote,
            budget,
            spent,
            inline_word,
            ask_q,
            kick_q,
            pace_q,
            live,
            runs,
            news,
            drained
        );
        clock!(self, clock, progress, attributes, handles, pace_gate);
        clock_reset!(self, clock, rst, gates, front);
        let state = self.state.q.val();
        let work = self.work.q.val();
        let context = self.context.q.val();
        let now = self.now.q.val();
        let wqe = self.wqe.q.val();
        let packet = self.packet.q.val();
        let gaps = self.gaps.q.val();
        let gate = self.gate.q.val();
        let stretch = self.stretch.q.val();
        let store = self.store.q.val();
        let holds = self.holds.q.val();
        let opens_frame = self.opens.q.val();
        let idle = state == State::Idle;

        // ---- Defaults.
        self.progress.flip.next = self.flip.val();
        self.attributes.flip.next = self.flip.val();
        self.bad.next = if self.progress.bad.val().valid { self.progress.bad.val() } else { self.attributes.bad.val() };
        self.attributes.we.next = false;
        self.attributes.waddr.next = context.qpn.cast::<24>();
        let req = self.table.req.val();
        let row = req.row;
        self.attributes.wdata.next = attributes_of(row);
        self.handles.we.next = false;
        self.handles.waddr.next = req.index.get_bits::<12>(0);
        self.handles.wdata.next = handle_of(row);
        self.table.ready.next = false;
        self.table.rvalid.next = false;
        self.table.rdata.next = 0.into();
        self.back.ready.next = false;
        self.fault.ready.next = false;
        self.stale.d.next = false;
        self.store.d.next = false;
        self.consumed.d.next = false;
        let mut opens: Bit = false;
        let mut closes: Bit = false;

        let numbers: Qp = elab!(numbers(N));

        // ---- Kicks: open the QP, and keep it open if it is in front or engine.
        self.kick.ready.next = true;
        self.kicks.d.next = self.kick.valid.val();
        self.kick_q.d.next = self.kick.data.val() & numbers;
        // The pacer's come beside them. Who has a QP in hand need not hear of those: they set what its frame has cleared before.
        self.paces_q.d.next = self.paces.val();
        self.pace_q.d.next = self.pace.val() & numbers;
        let kick = self.kick_q.q.val();
        let kicks = self.kicks.q.val();
        self.front.kick.next = kick;
        self.front.kicks.next = kicks;
        let kicked = self.kicked.q.val() || kicks && kick == context.qpn;
        self.kicked.d.next = kicked;

        // ---- Other work goes before the next pick.
        let other = self.other.q.val();
        let waits = state == State::Emit && opens_frame && !self.seg.ready.val();
        if (idle || waits) && !other {
            self.other.d.next = self.table.valid.val() || self.fault.valid.val() || self.back.valid.val();
            self.whose.d.next = self.back.data.val().qpn & numbers;
            self.other_work.d.next = Work::Back;
            if self.table.valid.val() {
                self.whose.d.next = req.index.get_bits::<12>(0) & numbers;
                self.other_work.d.next = Work::Row;
            } else if self.fault.valid.val() {
                self.whose.d.next = self.fault.data.val().qpn & numbers;
                self.other_work.d.next = Work::Frame;
            }
        }
        let may_look = other && !store;
        let may_load = !other && self.front.there.val();
        let looks = idle && may_look;
        let load = idle && may_load;
        let wrong = self.front.wrong.val();

        // ---- The next segment.
        let inlines = self.inlines.q.val();
        let may_offer = (gate.goes || !opens_frame) && !(inlines && self.inline_valid.q.val());
        let may_fire = may_offer && self.seg.ready.val();
        let fires = state == State::Emit && may_fire;
        let sges = cat!(512; self.sges[1].q.val(), self.sges[0].q.val());
        if self.inline_data.ready.val() {
            self.inline_valid.d.next = false;
        }

        // ---- Pace: each frame closes its QP, in the cycle behind it.
        self.pace_gate.qpn.next = context.qpn;
        self.pace_gate.sends.next = self.begun.q.val();
        self.pace_gate.kick.next = self.pace_q.q.val();
        self.pace_gate.kicks.next = self.paces_q.q.val();
        self.pace_gate.we.next = false;
        let paces_row = req.table == id::PACE;
        self.pace_gate.paced.next = paces_row && row.get_bits::<28>(elab!(pace::QUOTA.lsb)).any();
        self.begun.d.next = fires && opens_frame;
        // Nothing was sent in this pick.
        let untouched = self.budget.q.val().get_bit(elab!(QUANTUM.ilog2() as usize));
        let early = self.pace_gate.waits.val() && untouched;

        // ---- Reads of further blocks: inline data and the next WQE in good time.
        let blocks = wqe.is_inline && wqe.blocks.get_bits::<2>(1).any();
        let reads_inline = state == State::Check && blocks && !wrong;
        let reads_next = state == State::Find && opens_frame && packet.last && gaps.follows && !blocks && !holds;
        let engine_reads = state == State::Ask && !wrong || reads_inline || reads_next;
        let further = if state == State::Find { wqe.blocks } else { self.block.q.val() };
        if engine_reads {
            self.holds.d.next = true;
            self.block.d.next = self.block.q.val() + 1;
        }

        // ---- A WQE is taken apart as it comes.
        let came = self.sq_block.val();
        let fresh = wqe_of(came);
        let of_row = self.progress.rdata.val();
        let decodes = load || state == State::Take;
        let wants_more = fresh.sges > 2 && !fresh.is_inline;
        let fills = state == State::Find && wqe.is_inline && !opens_frame;
        let count = if state == State::Rest { wqe.sges } else { fresh.sges };
        let low = came.get_bits::<256>(0);
        let high = came.get_bits::<256>(256);
        // Inline data lie as SGEs do: the lower half of a block above the upper one.
        if decodes || fills {
            self.sges[0].d.next = if fills || fresh.is_inline { high } else { sges_of(high, 0, count) };
        }
        if decodes || fills || state == State::Rest {
            self.sges[1].d.next = if fills { low } else { sges_of(low, 2, count) };
            self.holds.d.next = false;
        }
        let left = self.left.q.val();
        let whole = if decodes { fresh.length } else { left };
        let less = if load {
            of_row.offset
        } else if decodes {
            0.into()
        } else {
            packet.bytes.cast::<32>()
        };
        if decodes || fires && stretch.last {
            self.left.d.next = whole - less;
        }
        // ---- The address handle that it names, if it does.
        let named = wqe.va.get_bits::<12>(elab!(ud_target::AH.lsb));
        self.handles.re.next = true;
        self.handles.raddr.next = named;
        let mut handle = self.handles.rdata.val();
        handle.valid = handle.valid && named < elab!(bits::<12>(address_handles(N) as u64));

        // ---- Where the next stretch is. The walk ends with the last SGE, whatever its length.
        let entry = self.entry.q.val();
        let at = self.at.q.val();
        let beyond = self.beyond.q.val();
        let bytes_here = bytes_of_sge(sges, entry);
        self.beyond.d.next = wqe.gathers && at >= bytes_here && !entry.all();
        let passes = state == State::Find && beyond;
        if decodes {
            self.entry.d.next = 0.into();
            self.at.d.next = if load { of_row.offset } else { 0.into() };
        } else if passes || fires && !stretch.last {
            self.entry.d.next = entry + 1;
            self.at.d.next = if passes { at - bytes_here } else { 0.into() };
        } else if fires {
            self.at.d.next = at + stretch.len.cast::<32>();
        }
        let want = self.want.q.val();
        let budget = self.budget.q.val();

        // ---- Other work is judged in the one cycle in which its row is there for sure: the front may read the next.
        let view = self.view.val();
        let frame = self.fault.data.val();
        let goer = self.back.data.val();
        let asker = if work == Work::Frame { frame.generation } else { goer.generation };
        self.live.d.next = view.generation == asker;
        self.runs.d.next = view.state == qp_state::RTS || view.state == qp_state::SQD;
        self.news.d.next = frame.request && frame.epoch == of_row.epoch && !of_row.frame_failed;
        let live = self.live.q.val();
        let all = of_row.high == self.acked.val().psn && of_row.top == self.acked.val().record;
        self.drained.d.next = all && !of_row.offset.any();

        // ---- Engine.
        match state {
            State::Idle => {
                self.holds.d.next = false;
                if may_look {
                    self.other.d.next = false;
                    self.work.d.next = self.other_work.q.val();
                    self.context.d.next.qpn = self.whose.q.val();
                    self.state.d.next = State::Look;
                } else if may_load {
                    self.state.d.next = if wants_more { State::Ask } else { State::Check };
                    self.work.d.next = Work::Send;
                    self.context.d.next = Context {
                        qpn: self.front.qpn.val(),
                        state: self.view.val(),
                        attributes: self.attributes.rdata.val(),
                        acked: self.acked.val(),
                    };
                    self.now.d.next = of_row;
                    self.kicked.d.next = self.front.kicked.val();
                    self.budget.d.next = bits::<13>(QUANTUM);
                }
            }
            State::Check => {
                let coming = packet_of(now, wqe, left, context.attributes);
                self.packet.d.next = coming;
                self.gaps.d.next = gaps_of(
                    now,
                    context.acked,
                    wqe,
                    sges,
                    coming.last,
                    handle,
                    context.attributes,
                    context.state,
                    self.queue.q.val(),
                );
                self.want.d.next = coming.bytes;
                self.remote.d.next = wqe.va + now.offset.cast::<64>();
                self.opens.d.next = true;
                // Is it still what has begun before? One comparison a pick.
                self.unsure.d.next = !coming.opens_record && !self.compared.q.val();
                self.recall.d.next = if now.offset.any() { now.record - 1 } else { now.record };
                self.compared.d.next = true;
                self.differs.d.next = false;
                closes = early && !wrong;
                self.state.d.next = if wrong || early { State::Idle } else { State::Find };
            }
            State::Find => {
                self.stretch.d.next = piece_of(sges, entry, at, want);
                let sends_inline = wqe.is_inline && want.any();
                let room: Bits<14> = if opens_frame { 32.into() } else { 64.into() };
                if sends_inline {
                    self.stretch.d.next.len = if want <= room { want } else { room };
                    self.stretch.d.next.last = want <= room;
                }
                self.inlines.d.next = sends_inline;
                // What was acknowledged since the pick is not in its rows: they tell nothing of a bad WQE then.
                let first = self.fresh.q.val() && !self.kicked.q.val();
                let verdict = gate_of(gaps, packet, now.verdict, now.failed, self.differs.q.val(), first);
                self.gate.d.next = verdict;
                let full = now.silent + packet.units >= ACK_UNITS;
                let last = packet.last && (wqe.signaled || !gaps.posted || packet.again);
                let asks = last || full || verdict.fills;
                let ack = !packet.read && answers(context.attributes.kind) && asks;
                // An atomic asks for its answer, as stock Soft-RoCE's does; it restarts no count.
                self.ack.d.next = ack || wqe.atomic || wqe.puts;
                self.after.d.next = advanced(now, packet, wqe.blocks, ack);
                self.opcode.d.next = opcode_of(wqe.opcode, context.attributes.kind, packet.first, packet.last);
                self.spent.d.next = budget <= cost_of(packet.bytes);
                self.state.d.next = if beyond {
                    State::Step
                } else if opens_frame && self.unsure.q.val() {
                    State::Recall
                } else {
                    State::Emit
                };
            }
            State::Step => {
                self.state.d.next = State::Find;
            }
            State::Emit => {
                if opens_frame && !gate.goes {
                    if gate.skips {
                        self.work.d.next = Work::Skip;
                        self.state.d.next = State::Turn;
                    } else if gate.halts {
                        // One that comes in this cycle opens it all the same.
                        closes = gate.stops && !self.kicked.q.val();
                        self.state.d.next = State::Idle;
                    } else if gate.local {
                        self.now.d.next = self.after.q.val();
                        self.store.d.next = true;
                        self.consumed.d.next = true;
                        // Now: from the next cycle on the completer may be done with it, and kick.
                        closes = true;
                        self.state.d.next = State::Fault;
                    } else if gate.asks {
                        if !self.asks_q.q.val() {
                            self.asks_q.d.next = true;
                            self.ask_q.d.next = QueueIndex { queue: context.qpn, index: now.index };
                            self.now.d.next.verdict = verdict::ASKED.to_bits();
                            self.store.d.next = true;
                            closes = true;
                        }
                        self.state.d.next = State::Idle;
                    } else {
                        self.now.d.next.failed = true;
                        self.store.d.next = true;
                        self.state.d.next = State::Fault;
                    }
                } else if may_fire {
                    if inlines {
                        self.inline_valid.d.next = true;
                        let first = if opens_frame { self.sges[0].q.val() } else { self.sges[1].q.val() };
                        self.inline_word.d.next = cat!(512; self.sges[0].q.val(), first);
                    }
                    self.opens.d.next = false;
                    self.want.d.next = want - stretch.len;
                    if !stretch.last {
                        self.taker.d.next = Taker::Data;
                        self.state.d.next = if !wqe.is_inline {
                            State::Step
                        } else if !holds {
                            State::Ask
                        } else {
                            State::Find
                        };
                    } else {
                        // The packet is out: progress, and on to what follows.
                        self.now.d.next = self.after.q.val();
                        self.store.d.next = true;
                        self.consumed.d.next = packet.last;
                        self.budget.d.next = budget - cost_of(packet.bytes);
                        self.taker.d.next = Taker::Next;
                        self.block.d.next = 0.into();
                        self.state.d.next = if self.spent.q.val() || packet.last && !gaps.follows {
                            State::Idle
                        } else if !packet.last {
                            State::Check
                        } else if holds && !blocks {
                            if self._late.0 { State::Wait } else { State::Take }
                        } else {
                            State::Ask
                        };
                    }
                } else if waits && other {
                    self.state.d.next = State::Idle;
                }
            }
            State::Ask => {
                let asked = if self._late.0 { State::Late } else { State::Wait };
                self.state.d.next = if wrong { State::Idle } else { asked };
            }
            State::Late => {
                self.state.d.next = State::Wait;
            }
            State::Wait => {
                self.state.d.next = match self.taker.q.val() {
                    Taker::Next => State::Take,
                    Taker::Rest => State::Rest,
                    Taker::Data => State::Find,
                };
            }
            State::Take => {
                self.state.d.next = if wants_more { State::Ask } else { State::Check };
            }
            State::Rest => {
                self.state.d.next = State::Check;
            }
            State::Recall => {
                if self.recall_ready.val() {
                    self.state.d.next = State::Recall1;
                }
            }
            State::Recall1 => {
                self.state.d.next = State::Recall2;
            }
            State::Recall2 => {
                let old = self.recalled.val();
                let blocks = wqe.blocks.get_bits::<2>(0);
                self.differs.d.next =
                    old.opcode.cast::<8>() != wqe.opcode || old.blocks != blocks || old.length != wqe.length;
                self.unsure.d.next = false;
                self.state.d.next = State::Find;
            }
            State::Fault => {
                let told = self.told.q.val();
                closes = (work == Work::Frame || !gate.local) && !told;
                self.fault.ready.next = self.failed.ready.val() && work == Work::Frame && !told;
                self.told.d.next = self.failed.ready.val() && !told;
                if told {
                    self.state.d.next = State::Idle;
                }
            }
            State::Look => {
                self.state.d.next = State::Judge;
            }
            State::Judge => {
                self.context.d.next.state = view;
                self.now.d.next = of_row;
                self.state.d.next = State::Act;
            }
            State::Act => {
                self.state.d.next = State::Idle;
                match work {
                    Work::Row => {
                        let writes = req.write && req.table == id::QP_SEND;
                        let loads = writes
                            && (row.get_bit(elab!(qp_send::LOAD.lsb)) || row.get_bit(elab!(qp_send::RESUME.lsb)));
                        self.attributes.we.next = writes;
                        let ends = writes && row.get_bit(elab!(qp_send::LOAD.lsb));
                        self.pace_gate.we.next = req.write && paces_row || ends;
                        self.handles.we.next = req.write && req.table == id::AH;
                        opens = writes || req.write && paces_row;
                        // Of the one that was asked about; or its queue begins anew.
                        let decided: Bits<4> = row.get_bits::<4>(elab!(qp_send::VERDICT.lsb));
                        let decides = writes && decided.any();
                        if decides {
                            self.now.d.next.verdict = decided;
                            self.store.d.next = true;
                        }
                        if decides || loads && self.ask_q.q.val().queue == context.qpn {
                            self.asks_q.d.next = false;
                        }
                        self.table.ready.next = !loads;
                        self.table.rvalid.next = !req.write;
                        self.table.rdata.next.set_bits::<24>(elab!(qp_send::PSN.lsb), now.psn);
                        self.table.rdata.next.set_bits::<1>(elab!(qp_send::DRAINED.lsb), pack(self.drained.q.val()));
                        if loads {
                            self.state.d.next = State::Turn;
                        }
                    }
                    Work::Frame => {
                        let news = self.news.q.val();
                        self.stale.d.next = !live;
                        self.fault.ready.next = !(live && news);
                        if live && news {
                            self.now.d.next.failed = true;
                            self.now.d.next.frame_failed = true;
                            self.store.d.next = true;
                            self.state.d.next = State::Fault;
                        }
                    }
                    _ => {
                        let runs = self.runs.q.val();
                        self.stale.d.next = !live;
                        self.back.ready.next = !(live && runs);
                        if live && runs {
                            self.state.d.next = State::Turn;
                        }
                    }
                }
            }
            State::Turn => {
                let mut to = gone_back(self.back.data.val());
                if work == Work::Row {
                    to = Restart {
                        psn: row.get_bits::<24>(elab!(qp_send::PSN.lsb)),
                        index: row.get_bits::<16>(elab!(qp_send::INDEX.lsb)),
                        offset: 0.into(),
                        record: 0.into(),
                        reads: 0.into(),
                    };
                } else if work == Work::Skip {
                    to = oldest(context.acked);
                }
                self.now.d.next = restarted(now, to, work == Work::Row, work != Work::Skip);
                self.state.d.next = if work == Work::Skip { State::Refetch } else { State::Mark };
            }
            State::Mark => {
                // Egress drops what is left of the old epoch before it can see a frame of the new one.
                // A queue that resumes is taken to its new place as by a go back; one that is loaded begins there.
                let moves = work == Work::Back || work == Work::Row && row.get_bit(elab!(qp_send::RESUME.lsb));
                if self.epoch.ready.val() {
                    self.state.d.next = if moves { State::Refetch } else { State::Tell };
                }
            }
            State::Refetch => {
                if self.refetch.ready.val() {
                    self.state.d.next = State::Tell;
                }
            }
            State::Tell => {
                self.store.d.next = true;
                opens = true;
                self.back.ready.next = work == Work::Back;
                self.table.ready.next = work == Work::Row;
                self.state.d.next = State::Idle;
            }
        }
        if decodes {
            self.wqe.d.next = fresh;
            self.queue.d.next = self.sq_view.val();
            self.block.d.next = 1.into();
            self.taker.d.next = Taker::Rest;
            self.fresh.d.next = load;
            self.compared.d.next = false;
        }

        // ---- Front, and the reads of both.
        self.front.pick.valid.next = self.pick.valid.val();
        self.front.pick.data.next = self.pick.data.val();
        self.front.pick.data.next.qpn = self.pick.data.val().qpn & numbers;
        self.pick.ready.next = self.front.pick.ready.val();
        self.front.engine.next = context.qpn;
        // A pick that comes from a refetch waits for the end of it.
        let ends = state == State::Refetch || state == State::Tell;
        self.front.engine_busy.next = !idle && !ends;
        self.front.engine_writes.next = store || ends;
        self.front.looks.next = looks;
        self.front.whose.next = self.whose.q.val();
        self.front.engine_reads.next = engine_reads;
        self.front.engine_holds.next = holds;
        self.front.index.next = of_row.index;
        self.front.loads.next = load;
        let picks = self.front.row_re.val();
        let read_at = if looks { self.whose.q.val() } else { self.front.row_at.val() };
        self.progress.re.next = picks || looks;
        self.progress.raddr.next = read_at.cast::<24>();
        self.view_re.next = picks || looks;
        self.view_addr.next = read_at;
        self.attributes.re.next = picks;
        self.attributes.raddr.next = self.front.row_at.val().cast::<24>();
        self.acked_re.next = picks || looks;
        self.acked_addr.next = read_at;
        self.sq_re.next = engine_reads || self.front.block_re.val();
        self.sq_queue.next = if engine_reads { context.qpn } else { self.front.block_queue.val() };
        self.sq_index.next = if engine_reads { now.index + further.cast::<16>() } else { self.front.block_index.val() };
        self.recall_re.next = state == State::Recall;
        self.recall_addr.next = cat!(24; bits::<5>(0), context.qpn, self.recall.q.val());

        // ---- Records, landing rows, how far it is.
        let begins = state == State::Emit && opens_frame && (gate.goes || gate.local);
        self.record_we.next = begins && packet.opens_record;
        self.record_addr.next = cat!(24; bits::<5>(0), context.qpn, now.record);
        self.record.next = Record {
            blocks: wqe.blocks.get_bits::<2>(0),
            opcode: wqe.opcode.get_bits::<4>(0),
            signaled: wqe.signaled,
            length: wqe.length,
        };
        // Once: when a READ is sent again, the completer may be reading its row for a late response.
        self.land_we.next = begins && packet.read && !packet.again;
        self.land_addr.next = cat!(24; bits::<8>(0), context.qpn, now.reads.get_bits::<4>(0));
        // The operands of an atomic stand where SGE 0 would: it names no bytes.
        let empty: Bits<32> = if wqe.atomic { 0.into() } else { sges.get_bits::<32>(elab!(sge::LENGTH.lsb)) };
        self.land.next = cat!(512; sges.get_bits::<384>(128), empty, sges.get_bits::<96>(0));
        self.progress.we.next = store;
        self.progress.waddr.next = context.qpn.cast::<24>();
        self.progress.wdata.next = now;
        self.sent_we.next = store;
        self.sent_addr.next = context.qpn;
        self.sent.next = Sent { psn: now.high, record: now.top };
        self.consume.valid.next = store && self.consumed.q.val();
        self.consume.data.next = QueueIndex { queue: context.qpn, index: now.index };

        // ---- Outputs.
        self.seg.valid.next = fires;
        self.seg.data.next = TxSeg {
            first: opens_frame,
            last: stretch.last,
            head: TxHead {
                qpn: context.qpn,
                generation: context.state.generation,
                request: true,
                epoch: now.epoch,
                raw: context.attributes.kind == qp_type::RAW,
                opcode: self.opcode.q.val(),
                psn: now.psn,
                ack_req: self.ack.q.val(),
                solicited: wqe.solicited && packet.last && !packet.read,
                payload: packet.bytes,
                va: self.remote.q.val(),
                rkey: wqe.rkey,
                dma_len: left,
                syndrome: 0.into(),
                // Who it is from, in a DETH.
                msn: context.qpn.cast::<24>(),
                imm: wqe.imm,
                again: packet.again,
                of_fault: false,
            },
            is_inline: inlines,
            memory: !inlines && stretch.len.any(),
            len: stretch.len,
            va: stretch.va,
            key: stretch.key,
            pd: context.attributes.pd,
            need: 0.into(),
        };
        self.inline_data.valid.next = self.inline_valid.q.val();
        self.inline_data.data.next = self.inline_word.q.val();
        self.failed.valid.next = state == State::Fault && !self.told.q.val();
        self.failed.data.next = SendFault {
            qpn: context.qpn,
            generation: context.state.generation,
            psn: now.psn,
            cause: gate.reason,
            // None would mean a frame's fault, bit 7 a receive.
            blocks: if gate.local {
                cat!(3; bits::<2>(0), gaps.silent)
            } else if wqe.blocks.any() {
                wqe.blocks
            } else {
                1.into()
            },
            opcode: wqe.opcode.get_bits::<7>(0).cast::<8>(),
        };
        if work == Work::Frame {
            self.failed.data.next.psn = self.fault.data.val().psn;
            self.failed.data.next.cause = self.fault.data.val().cause;
            self.failed.data.next.blocks = 0.into();
            self.failed.data.next.opcode = 0.into();
        }
        self.ask.next = self.ask_q.q.val();
        self.asks.next = self.asks_q.q.val();
        self.epoch.valid.next = state == State::Mark;
        self.epoch.data.next = EpochMark { qpn: context.qpn, epoch: now.epoch };
        self.refetch.valid.next = state == State::Refetch;
        self.refetch.data.next = QueueIndex { queue: context.qpn, index: now.index };
        self.gates.set[0].next = kicks;
        self.gates.set_at[0].next = kick;
        self.gates.set[1].next = opens;
        self.gates.set_at[1].next = context.qpn;
        self.gates.set[2].next = self.paces_q.q.val();
        self.gates.set_at[2].next = self.pace_q.q.val();
        self.gates.clear.next = closes || self.pace_gate.closes.val();
        self.gates.clear_at.next = context.qpn;
        self.gates.drop.next = false;
        self.gates.drop_group.next = 0.into();
        self.open.next = self.gates.bits.val();
        let none: Bits<64> = 0.into();
        self.count.next = none.replace_bit(elab!(counter::STALE_GENERATION), self.stale.q.val());
    }
}

#[cfg(test)]
#[path = "requester_tests.rs"]
mod tests;
