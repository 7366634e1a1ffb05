//! Executes the send queues of reliable connections: cuts messages into packets, within window and limits.
//!
//! Two stages. The *front* takes a pick and brings the QP's row, its acknowledged state and its next WQE; the *engine* sends up to a
//! quantum of [`QUANTUM`] bytes of it, over several messages if they are small:
//!
//! ```text
//! cycle    0      1    2      3    4      5      6       7      8
//! front    pick   .    row    .    WQE    full
//!          hinted .    both
//! engine                             load  Check  Find  Emit   (next packet: Check; next WQE: Decode)
//! ```
//! A hinted pick reads the WQE that it names beside the row; if the row does not want that one it is read as always.
//! A message of one packet takes 4 cycles; each further SGE of a packet takes 2. The engine
//! alone writes rows: between two picks it also does go backs, faults of frames, and the table bus. The front drops a pick
//! whose QP the engine has in hand, and the engine's other work drops a QP from the front: so no row is stale.
//!
//! On the raw queue pair a SEND is a whole Ethernet frame: one packet, whatever the path MTU, with a PSN and a record like any
//! other, which egress acknowledges when the frame has left.
//!
//! A QP stops (its *open* bit falls) when its window or its READs are used up, at a fence, or at a fault; a kick opens it again.
//! A kick that crosses a QP in front or engine keeps it open, so none is lost.
//!
//! A late ACK may overtake a go back: the QP then skips to the oldest message in flight, as `acked` shows it, for the WQEs before
//! it are complete and may be overwritten.
//!
//! It waits for its outputs only: frames and completer never wait for it, the work queue takes a refetch in a few
//! cycles. While it waits, kicks are taken.

use super::{
    requester_rules::{
        ACK_UNITS, Attributes, Gate, Packet, Progress, Seen, advanced, attributes_of, gate_of, gone_back, loaded,
        packet_of, skipped,
    },
    requester_wqe::{Wqe, opcode_of, sges_of, status_of, wqe_of},
    sge::{SgeMap, Stretch, sge_map, sge_step},
};
use crate::{
    msg::{
        Acked, EpochMark, GoBack, Pick, Qp, QpView, QueueIndex, QueueView, Record, SendFault, Sent, TxFault, TxHead,
        TxSeg,
    },
    queue::flags::{Flags, is_size},
    stream::{BadRow, GuardedTable, Sink, Source, Table, TablePort},
};
use abi::{
    status::{cause, counter, wc},
    table::{id, qp_send, qp_state, qp_type},
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

/// A WQE's first block, and what goes with it.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Head {
    block: Bits<512>,
    view: QueueView,
    seen: Seen,
}

#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
enum State {
    Idle,
    Decode,
    Check,
    Find,
    Emit,
    /// A further block of the WQE is read.
    More1,
    More2,
    Fault,
    /// Other work: the row is read.
    Look,
    Act,
    Mark,
    Refetch,
    Tell,
}

/// Other work.
#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
enum Work {
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
    /// Reads a block of a send queue, on `sq_block` and `sq_view` two cycles later.
    pub sq_re: Signal<Out, Bit>,
    pub sq_queue: Signal<Out, Qp>,
    pub sq_index: Signal<Out, Bits<16>>,
    pub sq_block: Signal<In, Bits<512>>,
    pub sq_view: Signal<In, QueueView>,
    /// Blocks executed.
    pub consume: Source<QueueIndex>,
    /// Where to fetch again from after a go back; taken when it is done.
    pub refetch: Source<QueueIndex>,
    pub back: Sink<GoBack>,
    /// Something was acknowledged, or a wait is over.
    pub kick: Sink<Qp>,
    /// Reads what is acknowledged, on `acked` two cycles later. The completer writes it before it kicks.
    pub acked_re: Signal<Out, Bit>,
    pub acked_addr: Signal<Out, Qp>,
    pub acked: Signal<In, Acked>,
    /// Reads a QP's state, on `view` two cycles later.
    pub view_re: Signal<Out, Bit>,
    pub view_addr: Signal<Out, Qp>,
    pub view: Signal<In, QpView>,
    /// A message began: QP * 128 + record.
    pub record_we: Signal<Out, Bit>,
    pub record_addr: Signal<Out, Bits<24>>,
    pub record: Signal<Out, Record>,
    /// A READ's SGEs: QP * 16 + slot.
    pub land_we: Signal<Out, Bit>,
    pub land_addr: Signal<Out, Bits<24>>,
    pub land: Signal<Out, Bits<512>>,
    /// How far a QP has sent.
    pub sent_we: Signal<Out, Bit>,
    pub sent_addr: Signal<Out, Qp>,
    pub sent: Signal<Out, Sent>,
    pub seg: Source<TxSeg>,
    /// Data of the segments with `is_inline`, from byte 0 on, in their order.
    pub inline_data: Source<Bits<512>>,
    /// A frame of a QP could not be read.
    pub fault: Sink<TxFault>,
    pub failed: Source<SendFault>,
    pub epoch: Source<EpochMark>,
    /// QP_SEND rows; a read gives the next PSN.
    pub table: TablePort,
    /// For tests: rows written now are stored damaged.
    pub flip: Signal<In, Bit>,
    /// A row was found damaged.
    pub bad: Signal<Out, BadRow>,
    pub count: Signal<Out, Bits<64>>,
    progress: GuardedTable<Progress>,
    attributes: GuardedTable<Attributes>,
    seen: Table<Seen>,
    gates: Flags<N>,
    // Front: steps 1 row on its way, 2 row there, 3 WQE on its way, 4 WQE there, 5 full.
    step: Reg<Bits<3>>,
    front: DFF<Context>,
    front_progress: DFF<Progress>,
    front_head: DFF<Head>,
    front_kicked: Reg<Bit>,
    /// The block that a hint named is read beside the row.
    guessed: Reg<Bit>,
    guess: DFF<Bits<16>>,
    // Engine.
    state: Reg<State>,
    context: Reg<Context>,
    now: Reg<Progress>,
    head: DFF<Head>,
    next: DFF<Head>,
    more: DFF<Bits<512>>,
    has_more: Reg<Bit>,
    /// What was read for `next` or `more` comes now, or in the next cycle.
    reads_next: Reg<Bits<2>>,
    reads_more: Reg<Bits<2>>,
    kicked: Reg<Bit>,
    wqe: Reg<Wqe>,
    sges: DFF<Bits<512>>,
    map: Reg<SgeMap>,
    /// Bytes of the message not yet sent, and of the packet.
    left: Reg<Bits<32>>,
    at: Reg<Bits<32>>,
    want: Reg<Bits<14>>,
    opens: Reg<Bit>,
    /// Blocks of inline data that were sent.
    inline_blocks: Reg<Bits<3>>,
    /// The WQE was compared with what was sent of it before this pick.
    compared: Reg<Bit>,
    packet: Reg<Packet>,
    stretch: Reg<Stretch>,
    remote: DFF<Bits<64>>,
    gate: Reg<Gate>,
    /// The WQE in hand is the first of its pick.
    fresh: Reg<Bit>,
    budget: Reg<Bits<13>>,
    work: Reg<Work>,
    // Outputs.
    seg_valid: Reg<Bit>,
    seg_data: DFF<TxSeg>,
    inline_valid: Reg<Bit>,
    inline_word: DFF<Bits<512>>,
    consume_valid: Reg<Bit>,
    consume_data: DFF<QueueIndex>,
    told: DFF<SendFault>,
}

impl<const N: usize> Requester<N> {
    /// The requester of N QPs.
    pub fn new() -> Self {
        assert!(is_size(N), "{N} QPs");
        Requester {
            progress: GuardedTable::new(N, ""),
            attributes: GuardedTable::new(N, ""),
            seen: Table::new(N * 128, "ultra"),
            ..Default::default()
        }
    }
}

impl<const N: usize> Logic for Requester<N> {
    #[kernel]
    fn update(&mut self) {
        regs!(
            self,
            clock,
            rst,
            step,
            front_kicked,
            guessed,
            state,
            context,
            now,
            has_more,
            reads_next,
            reads_more,
            kicked,
            wqe
        );
        regs!(self, clock, rst, map, left, at, want, opens, inline_blocks, compared, packet, stretch, gate);
        regs!(self, clock, rst, fresh, budget, work, seg_valid, inline_valid, consume_valid);
        dff_setup!(self, clock, front, front_progress, front_head, guess, head, next, more, sges, remote, seg_data);
        dff_setup!(self, clock, inline_word, consume_data, told);
        clock!(self, clock, progress, attributes, seen);
        clock_reset!(self, clock, rst, gates);
        let state = self.state.q.val();
        let context = self.context.q.val();
        let now = self.now.q.val();
        let wqe = self.wqe.q.val();
        let packet = self.packet.q.val();
        let front = self.front.q.val();
        let step = self.step.q.val();
        let work = self.work.q.val();
        let idle = state == State::Idle;

        // ---- Defaults.
        self.progress.flip.next = self.flip.val();
        self.attributes.flip.next = self.flip.val();
        self.bad.next = if self.progress.bad.val().valid { self.progress.bad.val() } else { self.attributes.bad.val() };
        self.progress.we.next = false;
        self.progress.waddr.next = context.qpn.cast::<24>();
        self.progress.wdata.next = now;
        self.attributes.we.next = false;
        self.attributes.waddr.next = context.qpn.cast::<24>();
        let row = self.table.req.val().row;
        self.attributes.wdata.next = attributes_of(row);
        self.table.ready.next = false;
        self.table.rvalid.next = false;
        self.table.rdata.next = 0.into();
        self.back.ready.next = false;
        self.fault.ready.next = false;
        self.epoch.valid.next = false;
        self.epoch.data.next = EpochMark { qpn: context.qpn, epoch: now.epoch, response: false };
        self.refetch.valid.next = false;
        self.refetch.data.next = QueueIndex { queue: context.qpn, index: now.index };
        self.failed.valid.next = false;
        self.failed.data.next = self.told.q.val();
        self.record_we.next = false;
        self.land_we.next = false;
        self.sent_we.next = false;
        let mut stale: Bit = false;
        let mut opens: Bit = false;
        let mut closes: Bit = false;

        // ---- Kicks: open the QP, and keep it open if it is in front or engine.
        let kick = self.kick.data.val();
        let kicks = self.kick.valid.val();
        self.kick.ready.next = true;
        if kicks && kick == front.qpn {
            self.front_kicked.d.next = true;
        }
        let kicked = self.kicked.q.val() || kicks && kick == context.qpn;
        self.kicked.d.next = kicked;

        // ---- The engine's reads of blocks: decided below, they go before the front's.
        let mut reads_next: Bit = false;
        let mut reads_more: Bit = false;
        let mut read_index = now.index + wqe.blocks.cast::<16>();

        // ---- Other work goes before the next pick.
        let frame = self.fault.valid.val();
        let back = self.back.valid.val();
        let mine = self.table.valid.val();
        let other = idle && (mine || frame || back);
        let mut whose = self.back.data.val().qpn;
        let mut kind = Work::Back;
        if mine {
            whose = self.table.req.val().index.get_bits::<12>(0);
            kind = Work::Row;
        } else if frame {
            whose = self.fault.data.val().qpn;
            kind = Work::Frame;
        }
        let mut load: Bit = false;

        // ---- Engine.
        let came = Head { block: self.sq_block.val(), view: self.sq_view.val(), seen: self.seen.rdata.val() };
        let seg_free = !self.seg_valid.q.val() || self.seg.ready.val();
        let inline_free = !self.inline_valid.q.val() || self.inline_data.ready.val();
        let consume_free = !self.consume_valid.q.val() || self.consume.ready.val();
        if self.seg.ready.val() {
            self.seg_valid.d.next = false;
        }
        if self.inline_data.ready.val() {
            self.inline_valid.d.next = false;
        }
        if self.consume.ready.val() {
            self.consume_valid.d.next = false;
        }
        // What is loaded, at the front's step 2 (guessed right), 4 or 5.
        let of_row = self.progress.rdata.val();
        let untouched = !of_row.offset.any() && of_row.record == of_row.top;
        let right = step == 2 && self.guessed.q.val() && of_row.index == self.guess.q.val() && untouched;
        let arrived = Context {
            qpn: front.qpn,
            state: self.view.val(),
            attributes: self.attributes.rdata.val(),
            acked: self.acked.val(),
        };
        let mut loads_context = front;
        let mut loads_progress = self.front_progress.q.val();
        if step == 2 {
            loads_context = arrived;
            loads_progress = of_row;
        }
        let loads_head = if step == 5 { self.front_head.q.val() } else { came };
        // The WQE that is decoded: one that is loaded, or the engine's next.
        let decoded = if idle { loads_head } else { self.head.q.val() };
        let begun = if idle { loads_progress } else { now };
        let fresh = wqe_of(decoded.block);
        let sges = sges_of(decoded.block, self.more.q.val(), fresh.sges);
        let wants_more = fresh.sges > 2 && !fresh.is_inline;
        let left = self.left.q.val();
        let stretch = self.stretch.q.val();
        // What follows the WQE, and whether the packet asks for an ACK.
        let next = self.next.q.val();
        let next_index = now.index + wqe.blocks.cast::<16>();
        let next_there = next.view.fetched != next_index;
        let next_posted = next.view.posted != next_index;
        let full_units = now.silent + packet.units >= ACK_UNITS;
        let last_ack = packet.last && (wqe.signaled || !next_posted || packet.again);
        let ack = !packet.read && (last_ack || full_units || packet.fills_window);
        let after = advanced(now, packet, wqe.blocks, ack);
        // A raw frame may be longer than a quantum, which it then uses up.
        let cost: Bits<13> = if packet.bytes < 64 {
            64.into()
        } else if packet.bytes.get_bit(13) {
            bits::<13>(QUANTUM)
        } else {
            packet.bytes.get_bits::<13>(0)
        };
        let budget = self.budget.q.val();
        let spent = budget <= cost;

        let mut decodes: Bit = false;
        match state {
            State::Idle => {
                if other {
                    self.work.d.next = kind;
                    self.context.d.next.qpn = whose;
                    self.state.d.next = State::Look;
                } else if step == 5 || step == 4 || right {
                    load = true;
                    self.context.d.next = loads_context;
                    self.now.d.next = loads_progress;
                    self.head.d.next = loads_head;
                    self.kicked.d.next = self.front_kicked.q.val() || kicks && kick == front.qpn;
                    self.budget.d.next = bits::<13>(QUANTUM);
                    self.has_more.d.next = false;
                    self.fresh.d.next = true;
                    self.state.d.next = if wants_more { State::Decode } else { State::Check };
                    decodes = !wants_more;
                }
            }
            State::Decode => {
                if wants_more && !self.has_more.q.val() {
                    self.wqe.d.next = fresh;
                    reads_more = true;
                    read_index = now.index + 1;
                    self.state.d.next = State::More1;
                } else {
                    decodes = true;
                    self.state.d.next = State::Check;
                }
            }
            State::Check => {
                let head = self.head.q.val();
                let seen = head.seen;
                let coming = packet_of(now, context.acked, wqe, left, context.attributes);
                self.packet.d.next = coming;
                self.map.d.next = sge_map(self.sges.q.val());
                self.at.d.next = now.offset;
                self.want.d.next = coming.bytes;
                self.opens.d.next = true;
                // Is it still what was sent before? One comparison a pick: later `seen` is older than the record.
                let before = (now.offset.any() || now.record != now.top) && !self.compared.q.val();
                let differs = seen.opcode != wqe.opcode || seen.blocks != wqe.blocks || seen.length != wqe.length;
                self.compared.d.next = true;
                self.gate.d.next =
                    gate_of(now, context.acked, wqe, context.attributes, context.state, head.view, before && differs);
                self.remote.d.next = wqe.va + now.offset.cast::<64>();
                self.state.d.next = State::Find;
                // The second block of inline data comes while the first is sent.
                if wqe.is_inline && wqe.blocks > 1 {
                    reads_more = true;
                    read_index = now.index + 1;
                }
            }
            State::Find => {
                self.stretch.d.next = sge_step(self.map.q.val(), self.at.q.val(), self.want.q.val());
                self.state.d.next = State::Emit;
                // A READ's window and the sum of the SGEs take a second look. A bad WQE that is sent again may have been
                // completed by a late ACK, which the next pick shows: only a pick's first WQE is read later than `acked`.
                let gate = self.gate.q.val();
                let wide = packet.read && gate.out > bits::<24>(0x80_0000) - packet.packets;
                let wrong_sum = !wqe.is_inline && self.map.q.val().total != wqe.length.cast::<34>();
                let mut reason = gate.reason;
                if wrong_sum && !reason.any() {
                    reason = bits::<8>(cause::WQE_LENGTH as u64);
                }
                let doubtful = packet.again && reason.any() && !self.fresh.q.val();
                let stops = gate.stops || (gate.waits || wide && !gate.ends) && !reason.any();
                if self.opens.q.val() {
                    if gate.skips {
                        self.now.d.next = skipped(now, context.acked);
                        self.work.d.next = Work::Skip;
                        self.state.d.next = State::Refetch;
                    } else if stops || gate.ends || doubtful {
                        closes = stops && !kicked;
                        self.state.d.next = State::Idle;
                    } else if reason.any() {
                        self.told.d.next = SendFault {
                            qpn: context.qpn,
                            generation: context.state.generation,
                            psn: now.psn,
                            status: status_of(reason),
                            cause: reason,
                            wqe_index: now.index,
                            // None would mean a frame's fault, bit 7 a receive.
                            blocks: if wqe.blocks.any() { wqe.blocks } else { 1.into() },
                            opcode: wqe.opcode.get_bits::<7>(0).cast::<8>(),
                        };
                        self.now.d.next.failed = true;
                        self.state.d.next = State::Fault;
                    }
                }
            }
            State::Emit => {
                let want = self.want.q.val();
                let inline_blocks = self.inline_blocks.q.val();
                let is_inline = wqe.is_inline && want.any();
                let block_room: Bits<14> = if inline_blocks.any() { 64.into() } else { 32.into() };
                let inline_fits = want <= block_room;
                let ready = seg_free && (inline_free || !is_inline) && consume_free;
                let len = if !want.any() {
                    0.into()
                } else if !is_inline {
                    stretch.len
                } else if inline_fits {
                    want
                } else {
                    block_room
                };
                let ends = !want.any() || if is_inline { inline_fits } else { stretch.last };
                if ready {
                    self.seg_valid.d.next = true;
                    self.seg_data.d.next = TxSeg {
                        first: self.opens.q.val(),
                        last: ends,
                        head: TxHead {
                            qpn: context.qpn,
                            generation: context.state.generation,
                            request: true,
                            epoch: now.epoch,
                            raw: context.attributes.kind == qp_type::RAW,
                            opcode: opcode_of(wqe.opcode, packet.first, packet.last),
                            psn: now.psn,
                            ack_req: ack,
                            solicited: wqe.solicited && packet.last && !packet.read,
                            payload: packet.bytes,
                            va: self.remote.q.val(),
                            rkey: wqe.rkey,
                            dma_len: left,
                            syndrome: 0.into(),
                            msn: 0.into(),
                            imm: wqe.imm,
                            again: packet.again,
                        },
                        is_inline,
                        len,
                        va: stretch.va,
                        key: stretch.key,
                        pd: context.attributes.pd,
                        need: 0.into(),
                    };
                    let first_part = self.head.q.val().block.get_bits::<256>(256).cast::<512>();
                    if is_inline {
                        self.inline_valid.d.next = true;
                        self.inline_word.d.next = if inline_blocks.any() { self.more.q.val() } else { first_part };
                    }
                    self.opens.d.next = false;
                    self.at.d.next = self.at.q.val() + len.cast::<32>();
                    self.want.d.next = want - len;
                    self.inline_blocks.d.next = inline_blocks + 1;
                    if !ends {
                        self.state.d.next = State::Find;
                        if is_inline && !inline_blocks.any() {
                            self.state.d.next = State::Emit;
                        } else if is_inline {
                            reads_more = true;
                            read_index = now.index + (inline_blocks + 1).cast::<16>();
                            self.state.d.next = State::More1;
                        }
                    } else {
                        // The packet is out: progress, records, and on to what follows.
                        self.now.d.next = after;
                        self.left.d.next = left - packet.bytes.cast::<32>();
                        self.progress.we.next = true;
                        self.progress.wdata.next = after;
                        self.record_we.next = packet.opens_record;
                        self.land_we.next = packet.read;
                        self.sent_we.next = true;
                        self.budget.d.next = budget - cost;
                        self.has_more.d.next = false;
                        if packet.last {
                            self.consume_valid.d.next = true;
                            self.consume_data.d.next = QueueIndex { queue: context.qpn, index: next_index };
                            self.head.d.next = next;
                            self.fresh.d.next = false;
                        }
                        self.state.d.next = if spent || packet.last && !next_there {
                            State::Idle
                        } else if packet.last {
                            State::Decode
                        } else {
                            State::Check
                        };
                    }
                }
            }
            State::More1 => {
                self.has_more.d.next = true;
                self.state.d.next = State::More2;
            }
            State::More2 => {
                // The block is in `more` from the next cycle on.
                self.state.d.next = if wqe.is_inline { State::Emit } else { State::Decode };
            }
            State::Fault => {
                self.failed.valid.next = true;
                self.progress.we.next = true;
                closes = true;
                if self.failed.ready.val() {
                    self.state.d.next = State::Idle;
                }
            }
            State::Look => {
                self.state.d.next = State::Act;
            }
            State::Act => {
                let old = self.progress.rdata.val();
                let view = self.view.val();
                let req = self.table.req.val();
                let loads = row.get_bit(elab!(qp_send::LOAD.lsb));
                let back = self.back.data.val();
                let frame = self.fault.data.val();
                let mut new = old;
                self.context.d.next.state = view;
                self.state.d.next = State::Idle;
                match work {
                    Work::Row => {
                        let ours = req.table == id::QP_SEND;
                        if req.write && ours {
                            self.attributes.we.next = true;
                            opens = true;
                        }
                        if req.write && ours && loads {
                            new = loaded(old, row.get_bits::<24>(elab!(qp_send::PSN.lsb)));
                            self.state.d.next = State::Mark;
                        } else {
                            self.table.ready.next = true;
                            self.table.rvalid.next = !req.write;
                            self.table.rdata.next.set_bits::<24>(elab!(qp_send::PSN.lsb), old.psn);
                        }
                    }
                    Work::Frame => {
                        let live = view.generation == frame.generation;
                        stale = !live;
                        self.fault.ready.next = true;
                        if live && frame.request && frame.epoch == old.epoch && !old.frame_failed {
                            new.failed = true;
                            new.frame_failed = true;
                            self.told.d.next = SendFault {
                                qpn: frame.qpn,
                                generation: frame.generation,
                                psn: frame.psn,
                                status: bits::<8>(wc::LOC_PROT as u64),
                                cause: frame.cause,
                                wqe_index: 0.into(),
                                blocks: 0.into(),
                                opcode: 0.into(),
                            };
                            self.state.d.next = State::Fault;
                        }
                    }
                    _ => {
                        let runs = view.state == qp_state::RTS || view.state == qp_state::SQD;
                        stale = view.generation != back.generation;
                        if stale || !runs {
                            self.back.ready.next = true;
                        } else {
                            new = gone_back(old, back);
                            self.state.d.next = State::Mark;
                        }
                    }
                }
                self.now.d.next = new;
            }
            State::Mark => {
                // Egress drops what is left of the old epoch before it can see a frame of the new one.
                self.epoch.valid.next = true;
                if self.epoch.ready.val() {
                    self.state.d.next = if work == Work::Back { State::Refetch } else { State::Tell };
                }
            }
            State::Refetch => {
                self.refetch.valid.next = true;
                if self.refetch.ready.val() {
                    self.state.d.next = State::Tell;
                }
            }
            State::Tell => {
                self.progress.we.next = true;
                self.sent_we.next = true;
                opens = true;
                self.back.ready.next = work == Work::Back;
                self.table.ready.next = work == Work::Row;
                self.state.d.next = State::Idle;
            }
        }

        // ---- A WQE is taken apart; meanwhile the one behind it is read.
        let behind = begun.index + fresh.blocks.cast::<16>();
        if decodes {
            self.wqe.d.next = fresh;
            self.sges.d.next = sges;
            self.left.d.next = fresh.length - begun.offset;
            self.inline_blocks.d.next = 0.into();
            self.compared.d.next = false;
            reads_next = true;
            read_index = behind;
        }

        // ---- Records, landing rows, what is sent.
        let sending = state == State::Emit;
        self.record_addr.next = cat!(24; bits::<5>(0), context.qpn, now.record);
        self.record.next = Record {
            psn: now.psn,
            packets: packet.packets,
            wqe_index: now.index,
            blocks: wqe.blocks,
            opcode: wqe.opcode,
            signaled: wqe.signaled,
            length: wqe.length,
            read_slot: now.reads.get_bits::<4>(0),
        };
        self.land_addr.next = cat!(24; bits::<8>(0), context.qpn, now.reads.get_bits::<4>(0));
        self.land.next = self.sges.q.val();
        self.sent_addr.next = context.qpn;
        self.sent.next =
            if sending { Sent { psn: after.high, record: after.top } } else { Sent { psn: now.high, record: now.top } };
        self.seen.we.next = sending && packet.opens_record;
        self.seen.waddr.next = cat!(24; bits::<5>(0), context.qpn, now.record);
        self.seen.wdata.next = Seen { opcode: wqe.opcode, blocks: wqe.blocks, length: wqe.length };

        // ---- Front: a pick that is not in hand, its row, its WQE.
        let pick = self.pick.data.val();
        let empty = step == 0 || load;
        let looks = other;
        let in_hand = !idle && pick.qpn == context.qpn || step != 0 && pick.qpn == front.qpn;
        let take = self.pick.valid.val() && empty && !looks;
        let starts = take && !in_hand;
        self.pick.ready.next = take;
        let read_row = starts || looks;
        let read_at = if looks { whose } else { pick.qpn };
        self.progress.re.next = read_row;
        self.progress.raddr.next = read_at.cast::<24>();
        self.attributes.re.next = read_row;
        self.attributes.raddr.next = read_at.cast::<24>();
        self.view_re.next = read_row;
        self.view_addr.next = read_at;
        self.acked_re.next = starts;
        self.acked_addr.next = read_at;
        let engine_reads = reads_next || reads_more;
        let guesses = starts && pick.hinted && !engine_reads;
        let front_reads = step == 2 && !right && !engine_reads;
        match step {
            1 => {
                self.step.d.next = 2.into();
            }
            2 => {
                self.front.d.next = arrived;
                self.front_progress.d.next = of_row;
                if right {
                    self.step.d.next = 5.into();
                } else if front_reads {
                    self.step.d.next = 3.into();
                }
            }
            3 => {
                self.step.d.next = 4.into();
            }
            4 => {
                self.step.d.next = 5.into();
            }
            _ => {}
        }
        if step == 4 || right {
            self.front_head.d.next = came;
        }
        if load {
            self.step.d.next = 0.into();
        }
        if starts {
            self.step.d.next = 1.into();
            self.front.d.next.qpn = pick.qpn;
            self.front_kicked.d.next = kicks && kick == pick.qpn;
            self.guessed.d.next = guesses;
            self.guess.d.next = pick.index;
        }
        if looks && step != 0 && front.qpn == whose {
            self.step.d.next = 0.into();
        }

        // ---- Reads of blocks, with the record that a WQE of before must match.
        let row_record = if of_row.offset.any() { of_row.record - 1 } else { of_row.record };
        let coming = if begun.offset.any() { begun.record } else { begun.record + 1 };
        let of_front = if guesses { pick.qpn } else { front.qpn };
        let whose_block = if load { front.qpn } else { context.qpn };
        self.sq_re.next = engine_reads || front_reads || guesses;
        self.sq_queue.next = if engine_reads { whose_block } else { of_front };
        self.sq_index.next = if engine_reads {
            read_index
        } else if guesses {
            pick.index
        } else {
            of_row.index
        };
        self.seen.re.next = reads_next || front_reads;
        self.seen.raddr.next = if engine_reads {
            cat!(24; bits::<5>(0), whose_block, coming)
        } else {
            cat!(24; bits::<5>(0), front.qpn, row_record)
        };
        self.reads_next.d.next = cat!(2; self.reads_next.q.val().get_bit(0), reads_next);
        self.reads_more.d.next = cat!(2; self.reads_more.q.val().get_bit(0), reads_more);
        if self.reads_next.q.val().get_bit(1) {
            self.next.d.next = came;
        }
        if self.reads_more.q.val().get_bit(1) {
            self.more.d.next = came.block;
        }

        // ---- Outputs.
        self.seg.valid.next = self.seg_valid.q.val();
        self.seg.data.next = self.seg_data.q.val();
        self.inline_data.valid.next = self.inline_valid.q.val();
        self.inline_data.data.next = self.inline_word.q.val();
        self.consume.valid.next = self.consume_valid.q.val();
        self.consume.data.next = self.consume_data.q.val();
        self.gates.set[0].next = kicks;
        self.gates.set_at[0].next = kick;
        self.gates.set[1].next = opens;
        self.gates.set_at[1].next = context.qpn;
        self.gates.set[2].next = false;
        self.gates.set_at[2].next = 0.into();
        self.gates.clear.next = closes;
        self.gates.clear_at.next = context.qpn;
        self.gates.drop.next = false;
        self.gates.drop_group.next = 0.into();
        self.open.next = self.gates.bits.val();
        let none: Bits<64> = 0.into();
        self.count.next = none.replace_bit(elab!(counter::STALE_GENERATION), stale);
    }
}

#[cfg(test)]
#[path = "requester_tests.rs"]
mod tests;
