//! Sends frames: decides which still go, puts headers, pad and ICRC around their payload, and streams them to the MAC.
//! For [`frames`](super::frames), whose frames it takes in ring order, and for the transport engines' ACKs.
//!
//! ```text
//! cycle      0    1    2    3    4    5    6    7    8 .. 14   15   16
//! pick       A              B              C              a head every 3 cycles at most
//! rows read  A              B              C              address, state, epoch, halts: 2 cycles
//! verdict              A              B                   old or halted; GID row read
//! header                         A    A                   into `ring` or `quick`
//! ready                                    A              all bytes are there, as `frames` tells
//! begin                                    A
//! issue                                         A0   A1 ..     a beat a cycle: a row of the buffer, a slice of header
//! merge                                                    A0      ICRC generator beside the delay line
//! insert, mac                                                A0   A0
//! ```
//! Headers are built when a frame is accepted, long before its payload is there. ACKs need none, have a queue of their own and go
//! between any two frames. What may void a frame while it waits (an epoch, a fault before it) makes it *doubtful*: then its rows are
//! read again before it begins; and they are read again and again while it waits for its bytes.
//!
//! Nothing behind `pick` waits but for the frame's turn: a head is picked only when its queue has room, and a beat is issued only
//! when the output FIFO has room. That FIFO is deeper than the pipeline is long, so that a frame comes to the MAC without
//! gaps whatever the MAC does. A dropped frame takes one cycle of `issue`, so that room is freed in order.
//!
//! A MAC that takes nothing (its link is paused) must not hold a command: once it has stood still for 2^[`PATIENCE`] cycles and
//! `hurry` says that a command waits, frames that find the FIFO full are *void*: they run through, are not put into the FIFO, and
//! count as lost on the wire, so that rings and engines move on. A frame of which a part is in the FIFO is cut: a last beat with
//! `mac_error`, for which one place is always free.
//!
//! Cannot deadlock: waits only for the MAC (not for ever while a command waits), and for the bytes of a frame that `dma_read`
//! brings. The sink of `fault` may itself wait for the transmit path, so nothing waits for it: a report that finds the queue full
//! is not made and holds nothing back. Its frame is then lost like one on the wire, and the retry meets the fault again.

use super::{
    frames::{Outcome, row_shift, rows_of},
    headers::{self, ADDRESS_BITS, GID_BITS, MAX_BITS},
    icrc::{GENERATOR_LATENCY, Generator},
};
use crate::{
    msg::{BufAddr, EpochMark, Gen, Qp, QpView, TxFault, TxHead, TxLeft},
    stream::{BeatSource, Fifo, READ_LATENCY, Sink, Source, Table, TablePort},
};
use abi::{
    status::counter,
    table::{gid, id, qp_address, qp_send},
    wire::{self, len, op},
};
use hdl::prelude::*;

/// Frames of each queue that are picked and not yet begun.
const PREPARED: usize = 8;
const QUICK: usize = 4;
/// Beats between issue and MAC: more than the pipeline holds.
const BEATS: usize = 32;
/// Log2 of the cycles that a command waits for a MAC that stands still.
pub const PATIENCE: usize = 18;
/// Fault reports that may wait.
const FAULTS: usize = 64;

/// Since when a QP's frames are held back: the first aborted one was reported.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Halt {
    /// Generation that this is about.
    generation: Gen,
    /// Requester frames of `epoch`.
    request: Bit,
    epoch: Bits<8>,
    /// READ responses.
    response: Bit,
}

/// What its QP's rows say of a frame.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Verdict {
    /// Of an old generation or epoch.
    old: Bit,
    /// Behind an aborted one.
    behind: Bit,
    /// What holds back of this generation, without this frame.
    halt: Halt,
}

/// A frame between verdict and header.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Judged {
    head: TxHead,
    /// Without payload and not of the ring.
    quick: Bit,
    ip6: Bit,
    udp_len: Bits<16>,
    verdict: Verdict,
    /// First byte of the payload in the transmit buffer.
    buf: BufAddr,
}

/// Lengths of a frame without VLAN tag, and where its first byte would lie in the buffer.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Sizes {
    header: Bits<7>,
    payload_end: Bits<14>,
    icrc_at: Bits<14>,
    total: Bits<14>,
    start: BufAddr,
}

/// A frame ready to be streamed but for its payload.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Prepared {
    /// All headers, the IPv4 checksum 0.
    header: Bits<MAX_BITS>,
    /// For the checksum.
    sum: Bits<20>,
    /// Of the frame with its tag.
    sizes: Sizes,
    verdict: Verdict,
    about: About,
}

/// What remains of a frame's fields while it is streamed.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct About {
    ip6: Bit,
    tagged: Bit,
    raw: Bit,
    dropped: Bit,
    quick: Bit,
    rows: Bits<12>,
    payload: Bits<14>,
    qpn: Qp,
    generation: Gen,
    request: Bit,
    epoch: Bits<8>,
    psn: Bits<24>,
    expects: Bit,
    again: Bit,
    ack: Bit,
    nak: Bit,
}

/// What to do with one beat. Byte numbers are those of the beat, at most W/8.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Plan {
    /// Payload from here,
    low: Bits<7>,
    /// up to here.
    high: Bits<7>,
    bytes: Bits<7>,
    last: Bit,
    /// Covered by the ICRC.
    covered: Bit,
    /// The ICRC begins in this beat, at byte `at`.
    icrc: Bit,
    at: Bits<7>,
    /// The ICRC's other half is at the start of this beat.
    rest: Bit,
    /// Goes nowhere.
    void: Bit,
    /// The frame ends here, unfinished.
    cut: Bit,
    tagged: Bit,
    ip6: Bit,
}

/// See the [module](self).
#[derive(LogicBlock)]
pub struct Egress<const W: usize> {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// Heads of the ring's frames, in order, and when each has all of its bytes: why a part of it could not be read, or 0.
    pub head: Sink<TxHead>,
    pub ready: Sink<Outcome>,
    /// ACKs, NAKs and CNPs without payload: go first.
    pub quick: Sink<TxHead>,
    /// Read port of the transmit buffer.
    pub re: Signal<Out, Bit>,
    pub raddr: Signal<Out, BufAddr>,
    pub rdata: Signal<In, Bits<W>>,
    /// A frame left the ring, and its rows.
    pub free: Signal<Out, Bit>,
    pub free_rows: Signal<Out, Bits<12>>,
    pub mac: BeatSource<W>,
    /// The frame is unfinished: the MAC spoils its FCS. Counts with `last`.
    pub mac_error: Signal<Out, Bit>,
    /// A command waits.
    pub hurry: Signal<In, Bit>,
    /// First aborted frame of a QP and epoch.
    pub fault: Source<TxFault>,
    /// The sink must always be ready.
    pub left: Source<TxLeft>,
    pub epoch: Sink<EpochMark>,
    /// Read port of the QP states; `view` comes two cycles after `view_re`.
    pub view_re: Signal<Out, Bit>,
    pub view_addr: Signal<Out, Qp>,
    pub view: Signal<In, QpView>,
    pub table: TablePort,
    pub count: Signal<Out, Bits<64>>,
    /// RoCE payload bytes that left, in this cycle.
    pub tx_bytes: Signal<Out, Bits<14>>,
    sweep: Reg<Bits<16>>,
    addresses: Table<Bits<ADDRESS_BITS>>,
    gids: Table<Bits<GID_BITS>>,
    epochs: Table<Bits<8>>,
    /// Those of READ responses.
    responses: Table<Bits<8>>,
    halts: Table<Halt>,
    // Table reads.
    answering: [Reg<Bit>; 2],
    answer_gid: [DFF<Bit>; 2],
    // Pick to header.
    steps: [Reg<Bit>; 4],
    picked: DFF<TxHead>,
    picked_quick: DFF<Bit>,
    picked_buf: DFF<BufAddr>,
    tail: Reg<BufAddr>,
    judged: DFF<Judged>,
    address: DFF<Bits<ADDRESS_BITS>>,
    sum: DFF<Bits<20>>,
    sizes: DFF<Sizes>,
    faults: Fifo<TxFault>,
    ring: Fifo<Prepared>,
    quick_ring: Fifo<Prepared>,
    // Frames between pick and begin; the oldest of the ring's that are doubtful; the first one's rows read again.
    built: Reg<Bits<4>>,
    quick_built: Reg<Bits<3>>,
    doubtful: Reg<Bits<4>>,
    rereads: [Reg<Bit>; 2],
    reread: Reg<Bit>,
    again: DFF<Verdict>,
    // Issue.
    active: Reg<Bit>,
    about: DFF<About>,
    header: DFF<Bits<MAX_BITS>>,
    header_left: DFF<Bits<7>>,
    payload_left: DFF<Bits<14>>,
    icrc_left: DFF<Bits<14>>,
    total_left: DFF<Bits<14>>,
    row: DFF<BufAddr>,
    split: DFF<Bit>,
    in_flight: Reg<Bits<6>>,
    /// A part of the frame went into the FIFO; the rest of it is void.
    entered: Reg<Bit>,
    voided: Reg<Bit>,
    /// Cycles that the MAC has stood still.
    still: Reg<Bits<{ PATIENCE + 1 }>>,
    impatient: Reg<Bit>,
    leaving: Reg<Bit>,
    leaver: DFF<TxLeft>,
    // Beats on their way.
    reading: [Reg<Bit>; READ_LATENCY],
    plans: [DFF<Plan>; READ_LATENCY],
    slices: [DFF<Bits<W>>; READ_LATENCY],
    mask: DFF<Bits<W>>,
    generator: Generator<W>,
    delayed: [Reg<Bit>; GENERATOR_LATENCY],
    delayed_plan: [DFF<Plan>; GENERATOR_LATENCY],
    delayed_data: [DFF<Bits<W>>; GENERATOR_LATENCY],
    carry: DFF<Bits<16>>,
    beats: Fifo<Bits<W>>,
    ends: Fifo<Bits<9>>,
    _qps: Hidden<usize>,
}

impl<const W: usize> Egress<W> {
    /// For `qps` QPs.
    pub fn new(qps: usize) -> Self {
        Egress {
            clock: Default::default(),
            rst: Default::default(),
            head: Default::default(),
            ready: Default::default(),
            quick: Default::default(),
            re: Default::default(),
            raddr: Default::default(),
            rdata: Default::default(),
            free: Default::default(),
            free_rows: Default::default(),
            mac: Default::default(),
            mac_error: Default::default(),
            hurry: Default::default(),
            fault: Default::default(),
            left: Default::default(),
            epoch: Default::default(),
            view_re: Default::default(),
            view_addr: Default::default(),
            view: Default::default(),
            table: Default::default(),
            count: Default::default(),
            tx_bytes: Default::default(),
            sweep: Default::default(),
            addresses: Table::new(qps, "block"),
            gids: Table::new(1 << qp_address::GID.bits, "block"),
            epochs: Table::new(qps, "block"),
            responses: Table::new(qps, "block"),
            halts: Table::new(qps, "block"),
            answering: Default::default(),
            answer_gid: Default::default(),
            steps: Default::default(),
            picked: Default::default(),
            picked_quick: Default::default(),
            picked_buf: Default::default(),
            tail: Default::default(),
            judged: Default::default(),
            address: Default::default(),
            sum: Default::default(),
            sizes: Default::default(),
            faults: Fifo::new(FAULTS),
            ring: Fifo::new(PREPARED),
            quick_ring: Fifo::new(QUICK),
            built: Default::default(),
            quick_built: Default::default(),
            doubtful: Default::default(),
            rereads: Default::default(),
            reread: Default::default(),
            again: Default::default(),
            active: Default::default(),
            about: Default::default(),
            header: Default::default(),
            header_left: Default::default(),
            payload_left: Default::default(),
            icrc_left: Default::default(),
            total_left: Default::default(),
            row: Default::default(),
            split: Default::default(),
            in_flight: Default::default(),
            entered: Default::default(),
            voided: Default::default(),
            still: Default::default(),
            impatient: Default::default(),
            leaving: Default::default(),
            leaver: Default::default(),
            reading: Default::default(),
            plans: Default::default(),
            slices: Default::default(),
            mask: Default::default(),
            generator: Default::default(),
            delayed: Default::default(),
            delayed_plan: Default::default(),
            delayed_data: Default::default(),
            carry: Default::default(),
            beats: Fifo::new(BEATS),
            ends: Fifo::new(BEATS),
            _qps: Hidden(qps),
        }
    }
}

/// How many of `left` bytes lie in the present beat.
#[hdl_fn]
fn within<const W: usize>(left: Bits<14>) -> Bits<7> {
    if left > W as u64 / 8 { bits::<7>(W as u64 / 8) } else { left.get_bits::<7>(0) }
}

/// How many of `left` bytes remain behind the present beat.
#[hdl_fn]
fn beyond<const W: usize>(left: Bits<14>) -> Bits<14> {
    if left > W as u64 / 8 { left - W as u64 / 8 } else { bits::<14>(0) }
}

/// Ones from byte `n` on.
#[hdl_fn]
fn from_byte<const W: usize>(n: Bits<7>) -> Bits<W> {
    let ones: Bits<W> = !Bits::<W>::default();
    ones << cat!(10; n, bits::<3>(0))
}

/// What the rows of its QP say of a frame; `answers`: an ACK, which neither epochs nor halts hold back. `now` is the epoch of its
/// direction.
#[hdl_fn]
fn verdict_of(
    generation: Gen,
    request: Bit,
    epoch: Bits<8>,
    answers: Bit,
    view: QpView,
    now: Bits<8>,
    halt: Halt,
) -> Verdict {
    let known = halt.generation == generation;
    let halted = if request { halt.request && halt.epoch == epoch } else { halt.response && !answers };
    Verdict {
        old: view.generation != generation || !answers && now != epoch,
        behind: known && halted,
        halt: Halt {
            generation: halt.generation,
            request: known && halt.request,
            epoch: halt.epoch,
            response: known && halt.response,
        },
    }
}

impl<const W: usize> Logic for Egress<W> {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, sweep, answering, steps, tail, built, quick_built, doubtful, rereads, reread);
        regs!(self, clock, rst, active, in_flight, leaving, reading, delayed, entered);
        regs!(self, clock, rst, voided, still, impatient);
        dff_setup!(self, clock, answer_gid, picked, picked_quick, picked_buf, judged, address, sum, sizes, again);
        dff_setup!(self, clock, about, header, header_left, payload_left, icrc_left, total_left, row, split);
        dff_setup!(self, clock, leaver, plans, slices, mask, delayed_plan, delayed_data, carry);
        clock!(self, clock, addresses, gids, epochs, responses, halts);
        clock_reset!(self, clock, rst, faults, ring, quick_ring, generator, beats, ends);
        let sweeping = self.sweep.q.val() != elab!(bits::<16>(self._qps.0 as u64));
        let sweep = self.sweep.q.val().cast::<24>();
        if sweeping {
            self.sweep.d.next = self.sweep.q.val() + 1;
        }

        // Pick a head and read its QP's rows.
        let can_pick = !sweeping && !self.steps[0].q.val() && !self.steps[1].q.val();
        let pick_quick = can_pick && self.quick.valid.val() && self.quick_built.q.val() != QUICK as u64;
        let can_ring = can_pick && !pick_quick && self.built.q.val() != PREPARED as u64;
        let pick_ring = can_ring && self.head.valid.val();
        let pick = pick_quick || pick_ring;
        self.quick.ready.next = can_pick && self.quick_built.q.val() != QUICK as u64;
        self.head.ready.next = can_ring;
        let head = if pick_quick { self.quick.data.val() } else { self.head.data.val() };
        let qpn = head.qpn;
        self.steps[0].d.next = pick;
        for i in 1..4 {
            self.steps[i].d.next = self.steps[i - 1].q.val();
        }
        if pick {
            self.picked.d.next = head;
            self.picked_quick.d.next = pick_quick;
            self.picked_buf.d.next = self.tail.q.val();
        }
        if pick_ring {
            let rows = rows_of::<W>(head.payload);
            self.tail.d.next = self.tail.q.val() + (rows.cast::<20>() << elab!(row_shift(W)));
        }

        // The first frame of the ring: its rows are read again while it is doubtful or waits for its bytes.
        let first = self.ring.m.data.val();
        let doubts = self.doubtful.q.val().any();
        let rereading = self.rereads[0].q.val() || self.rereads[1].q.val();
        let wants = self.ring.m.valid.val() && (doubts && !self.reread.q.val() || !self.ready.valid.val());
        let reread = wants && !rereading && !pick;
        self.view_re.next = pick || reread;
        self.view_addr.next = if pick { qpn } else { first.about.qpn };
        self.epochs.re.next = pick || reread;
        self.epochs.raddr.next = if pick { qpn.cast::<24>() } else { first.about.qpn.cast::<24>() };
        self.responses.re.next = pick || reread;
        self.responses.raddr.next = if pick { qpn.cast::<24>() } else { first.about.qpn.cast::<24>() };
        self.halts.re.next = pick || reread;
        self.halts.raddr.next = if pick { qpn.cast::<24>() } else { first.about.qpn.cast::<24>() };
        let view = self.view.val();
        let (of_requests, of_responses) = (self.epochs.rdata.val(), self.responses.rdata.val());
        let halt = self.halts.rdata.val();
        let fresh = verdict_of(
            first.about.generation,
            first.about.request,
            first.about.epoch,
            first.about.ack || first.about.nak,
            view,
            if first.about.request { of_requests } else { of_responses },
            halt,
        );

        // Verdict, two cycles later.
        let judge = self.steps[1].q.val();
        let picked = self.picked.q.val();
        let address = self.addresses.rdata.val();
        let answers = picked.opcode == op::ACK as u64 || self.picked_quick.q.val();
        if judge {
            self.judged.d.next = Judged {
                head: picked,
                quick: self.picked_quick.q.val(),
                ip6: address.get_bit(elab!(qp_address::IS_IP6.lsb)),
                udp_len: headers::udp_len(picked),
                verdict: verdict_of(
                    picked.generation,
                    picked.request,
                    picked.epoch,
                    answers,
                    view,
                    if picked.request { of_requests } else { of_responses },
                    halt,
                ),
                buf: self.picked_buf.q.val(),
            };
            self.address.d.next = address;
        }

        // Lengths and checksum, as far as the address tells.
        let judged = self.judged.q.val();
        let address = self.address.q.val();
        let head = judged.head;
        if self.steps[2].q.val() {
            self.sum.d.next = headers::checksum_start(address, judged.udp_len);
            let header = headers::header_len(head, judged.ip6, false);
            let payload_end = header.cast::<14>() + head.payload;
            let icrc_at = payload_end + headers::pad(head.payload).cast::<14>();
            self.sizes.d.next = Sizes {
                header,
                payload_end,
                icrc_at,
                total: if head.raw { head.payload } else { icrc_at + len::ICRC as u64 },
                start: judged.buf - header.cast::<20>(),
            };
        }

        // All headers, with the GID's row.
        let gid_row = self.gids.rdata.val();
        let tagged = gid_row.get_bit(elab!(gid::TAGGED.lsb));
        let sizes = self.sizes.q.val();
        let tag: Bits<7> = if tagged && !head.raw { bits::<7>(len::VLAN as u64) } else { bits::<7>(0) };
        let builds = self.steps[3].q.val();
        let built = if builds && !head.raw {
            headers::header(head, address, gid_row, judged.ip6, tagged, judged.udp_len)
        } else {
            0.into()
        };
        let bare = sizes.total + tag.cast::<14>();
        let is_ack = head.opcode == op::ACK as u64 && !head.raw;
        let is_nak = head.syndrome.get_bits::<3>(5).any();
        let prepared = Prepared {
            header: built,
            sum: headers::checksum_add(self.sum.q.val(), gid_row),
            sizes: Sizes {
                header: sizes.header + tag,
                payload_end: sizes.payload_end + tag.cast::<14>(),
                icrc_at: sizes.icrc_at + tag.cast::<14>(),
                total: if bare < wire::MIN_FRAME as u64 { bits::<14>(wire::MIN_FRAME as u64) } else { bare },
                start: sizes.start - tag.cast::<20>(),
            },
            verdict: judged.verdict,
            about: About {
                ip6: judged.ip6,
                tagged,
                raw: head.raw,
                dropped: judged.verdict.old,
                quick: judged.quick,
                rows: rows_of::<W>(head.payload),
                payload: head.payload,
                qpn: head.qpn,
                generation: head.generation,
                request: head.request,
                epoch: head.epoch,
                psn: head.psn,
                expects: headers::expects_answer(head),
                again: head.again,
                ack: is_ack && !is_nak,
                nak: is_ack && is_nak,
            },
        };
        self.ring.s.valid.next = builds && !judged.quick; // has room: see `built`
        self.ring.s.data.next = prepared;
        self.quick_ring.s.valid.next = builds && judged.quick; // has room: see `quick_built`
        self.quick_ring.s.data.next = prepared;

        // Issue: one beat of the present frame per cycle.
        let about = self.about.q.val();
        let total = self.total_left.q.val();
        let last = total <= W as u64 / 8;
        let full = self.in_flight.q.val() >= BEATS as u64 - 1;
        let voided = self.voided.q.val();
        let void = voided || full && self.impatient.q.val();
        let cut = void && !voided && self.entered.q.val();
        let issue = self.active.q.val() && !about.dropped && (void || !full);
        let enters = issue && (!void || cut);
        let finish = self.active.q.val() && about.dropped || issue && last;
        let can_begin = !self.active.q.val() || finish;
        let begin_quick = can_begin && self.quick_ring.m.valid.val();
        let may_ring = can_begin && !self.quick_ring.m.valid.val() && (!doubts || self.reread.q.val());
        let may_ring = may_ring && self.ring.m.valid.val();
        let begin_ring = may_ring && self.ready.valid.val();
        let begin = begin_quick || begin_ring;
        self.quick_ring.m.ready.next = can_begin;
        self.ring.m.ready.next = begin_ring;
        self.ready.ready.next = may_ring;
        let next = if self.quick_ring.m.valid.val() { self.quick_ring.m.data.val() } else { first };

        // Why it does not go: the first fault of a QP and epoch is reported, and holds back the frames behind it.
        let why = self.ready.data.val().cause;
        let verdict = if self.reread.q.val() { self.again.q.val() } else { first.verdict };
        let off = verdict.old || verdict.behind;
        let report = begin_ring && why.any() && !off && self.faults.s.ready.val();
        self.faults.s.valid.next = report;
        self.faults.s.data.next = TxFault {
            qpn: first.about.qpn,
            generation: first.about.generation,
            request: first.about.request,
            epoch: first.about.epoch,
            psn: first.about.psn,
            cause: why,
        };
        Source::<TxFault>::link(&mut self.fault, &mut self.faults.m);

        // Doubts: all that was picked so far, when an epoch or a halt changes.
        let epoch = self.epoch.data.val();
        let marks = self.epoch.valid.val() && !sweeping;
        let up: Bits<4> = if pick_ring { 1.into() } else { 0.into() };
        let down: Bits<4> = if begin_ring { 1.into() } else { 0.into() };
        let some = (self.built.q.val() + up) - down;
        self.built.d.next = some;
        let changes = marks || report;
        if changes {
            self.doubtful.d.next = some;
        } else if begin_ring && doubts {
            self.doubtful.d.next = self.doubtful.q.val() - 1;
        }
        self.rereads[0].d.next = reread && !begin_ring && !changes;
        self.rereads[1].d.next = self.rereads[0].q.val() && !begin_ring && !changes;
        if begin_ring || changes {
            self.reread.d.next = false;
        } else if self.rereads[1].q.val() {
            self.reread.d.next = true;
            self.again.d.next = fresh;
        }
        if pick_quick && !begin_quick {
            self.quick_built.d.next = self.quick_built.q.val() + 1;
        } else if begin_quick && !pick_quick {
            self.quick_built.d.next = self.quick_built.q.val() - 1;
        }
        let low = self.header_left.q.val();
        let icrc_left = self.icrc_left.q.val();
        let payload_left = self.payload_left.q.val();
        let covered = issue && !about.raw && icrc_left.any();
        let holds_icrc = covered && icrc_left <= W as u64 / 8;
        if issue {
            self.header.d.next = self.header.q.val() >> W as u64;
            self.header_left.d.next = beyond::<W>(low.cast::<14>()).get_bits::<7>(0);
            self.payload_left.d.next = beyond::<W>(payload_left);
            self.icrc_left.d.next = beyond::<W>(icrc_left);
            self.total_left.d.next = beyond::<W>(total);
            self.row.d.next = self.row.q.val() + W as u64 / 8;
            self.split.d.next = holds_icrc && icrc_left == W as u64 / 8 - 2;
            self.voided.d.next = void;
            self.entered.d.next = true;
        }
        if begin {
            self.active.d.next = true;
            self.about.d.next = next.about;
            if begin_ring {
                self.about.d.next.dropped = off || why.any();
            }
            let checksum = headers::checksum_in_place(next.sum, next.about.tagged);
            self.header.d.next = if next.about.ip6 || next.about.raw { next.header } else { next.header | checksum };
            self.header_left.d.next = next.sizes.header;
            self.payload_left.d.next = next.sizes.payload_end;
            self.icrc_left.d.next = next.sizes.icrc_at;
            self.total_left.d.next = next.sizes.total;
            self.row.d.next = next.sizes.start;
            self.split.d.next = false;
            self.voided.d.next = false;
            self.entered.d.next = false;
        } else if finish {
            self.active.d.next = false;
        }
        // Two cycles after the last byte was written.
        self.re.next = issue && payload_left > low.cast::<14>();
        self.raddr.next = self.row.q.val();
        self.free.next = finish && !about.quick;
        self.free_rows.next = about.rows;

        let sent = issue && last;
        if self.left.ready.val() {
            self.leaving.d.next = false;
        }
        if sent && (about.expects || about.raw) {
            self.leaving.d.next = true;
            self.leaver.d.next = TxLeft { qpn: about.qpn, psn: about.psn, expects: about.expects };
        }
        self.left.valid.next = self.leaving.q.val();
        self.left.data.next = self.leaver.q.val();
        let whole = sent && !void;
        let mut count: Bits<64> = 0.into();
        count = count.replace_bit(counter::TX_FRAMES, whole);
        count = count.replace_bit(counter::TX_RETRANSMITTED, whole && about.again);
        count = count.replace_bit(counter::TX_RAW, whole && about.raw);
        count = count.replace_bit(counter::TX_ACK, whole && about.ack);
        count = count.replace_bit(counter::TX_NAK, whole && about.nak);
        count = count.replace_bit(counter::TX_PAUSED, sent && void);
        count = count.replace_bit(counter::TX_ABORTED, self.active.q.val() && about.dropped);
        self.count.next = count;
        self.tx_bytes.next = if whole && !about.raw { about.payload } else { 0.into() };

        // Plan and header slice go beside the read.
        self.reading[0].d.next = issue;
        if issue {
            self.plans[0].d.next = Plan {
                low: within::<W>(low.cast::<14>()),
                high: within::<W>(payload_left),
                bytes: within::<W>(total),
                last,
                covered,
                icrc: holds_icrc,
                at: within::<W>(icrc_left),
                rest: self.split.q.val(),
                void: void && !cut,
                cut,
                tagged: about.tagged,
                ip6: about.ip6,
            };
            self.slices[0].d.next = self.header.q.val().get_bits::<W>(0);
        }
        for i in 1..READ_LATENCY {
            self.reading[i].d.next = self.reading[i - 1].q.val();
            if self.reading[i - 1].q.val() {
                self.plans[i].d.next = self.plans[i - 1].q.val();
                self.slices[i].d.next = self.slices[i - 1].q.val();
            }
        }
        if self.reading[READ_LATENCY - 2].q.val() {
            let plan = self.plans[READ_LATENCY - 2].q.val();
            self.mask.d.next = from_byte::<W>(plan.low) & !from_byte::<W>(plan.high);
        }

        // Merge, and the ICRC beside a delay line.
        let arrives = self.reading[READ_LATENCY - 1].q.val();
        let plan = self.plans[READ_LATENCY - 1].q.val();
        let merged = (self.rdata.val() & self.mask.q.val()) | self.slices[READ_LATENCY - 1].q.val();
        self.generator.data.next = merged;
        self.generator.bytes.next = plan.at;
        self.generator.last.next = plan.icrc;
        self.generator.valid.next = arrives && plan.covered;
        self.generator.tagged.next = plan.tagged;
        self.generator.ip6.next = plan.ip6;
        self.delayed[0].d.next = arrives;
        if arrives {
            self.delayed_plan[0].d.next = plan;
            self.delayed_data[0].d.next = merged;
        }
        for i in 1..GENERATOR_LATENCY {
            self.delayed[i].d.next = self.delayed[i - 1].q.val();
            if self.delayed[i - 1].q.val() {
                self.delayed_plan[i].d.next = self.delayed_plan[i - 1].q.val();
                self.delayed_data[i].d.next = self.delayed_data[i - 1].q.val();
            }
        }

        // Insert the ICRC. All headers but Ethernet's 14 bytes are multiples of 4, so it begins 2 bytes behind one.
        let leaves = self.delayed[GENERATOR_LATENCY - 1].q.val();
        let plan = self.delayed_plan[GENERATOR_LATENCY - 1].q.val();
        let icrc = self.generator.icrc.val();
        let mut data = self.delayed_data[GENERATOR_LATENCY - 1].q.val();
        if leaves && plan.icrc {
            data = data | (icrc.cast::<W>() << cat!(10; plan.at.get_bits::<5>(2), bits::<5>(16)));
        }
        if leaves && plan.rest {
            data = data | self.carry.q.val().cast::<W>();
        }
        if leaves && plan.icrc {
            self.carry.d.next = icrc.get_bits::<16>(16);
        }
        self.beats.s.valid.next = leaves && !plan.void;
        self.beats.s.data.next = data;
        self.ends.s.valid.next = leaves && !plan.void;
        self.ends.s.data.next = cat!(plan.cut, plan.last || plan.cut, plan.bytes);

        // The two FIFOs move in step.
        let end = self.ends.m.data.val();
        let offer = self.beats.m.valid.val();
        let sent_beat = offer && self.mac.ready.val();
        self.mac.valid.next = offer;
        self.mac.data.next = self.beats.m.data.val();
        self.mac.bytes.next = end.get_bits::<7>(0);
        self.mac.last.next = end.get_bit(7);
        self.mac_error.next = end.get_bit(8);
        self.beats.m.ready.next = self.mac.ready.val();
        self.ends.m.ready.next = self.mac.ready.val();
        if enters && !sent_beat {
            self.in_flight.d.next = self.in_flight.q.val() + 1;
        } else if sent_beat && !enters {
            self.in_flight.d.next = self.in_flight.q.val() - 1;
        }
        let still = self.still.q.val();
        if !offer || sent_beat {
            self.still.d.next = 0.into();
        } else if !still.get_bit(PATIENCE) {
            self.still.d.next = still + 1;
        }
        self.impatient.d.next = still.get_bit(PATIENCE) && !sent_beat && self.hurry.val();

        // Tables: a row access takes a cycle in which nothing else needs the port.
        let req = self.table.req.val();
        let free = !sweeping && !pick && !judge && !self.epoch.valid.val() && !report;
        let access = self.table.valid.val() && free;
        self.table.ready.next = free;
        let write = access && req.write;
        let load = write && req.table == id::QP_SEND && req.row.get_bit(elab!(qp_send::LOAD.lsb));
        self.addresses.we.next = write && req.table == id::QP_ADDRESS;
        self.addresses.waddr.next = req.index;
        self.addresses.wdata.next = req.row.get_bits::<ADDRESS_BITS>(0);
        self.addresses.re.next = pick || access && !req.write && req.table == id::QP_ADDRESS;
        self.addresses.raddr.next = if pick { qpn.cast::<24>() } else { req.index };
        self.gids.we.next = write && req.table == id::GID;
        self.gids.waddr.next = req.index;
        self.gids.wdata.next = req.row.get_bits::<GID_BITS>(0);
        self.gids.re.next = judge || access && !req.write && req.table == id::GID;
        self.gids.raddr.next = if judge {
            self.addresses.rdata.val().get_bits::<8>(elab!(qp_address::GID.lsb)).cast::<24>()
        } else {
            req.index
        };
        self.answering[0].d.next = access && !req.write;
        self.answering[1].d.next = self.answering[0].q.val();
        self.answer_gid[0].d.next = req.table == id::GID;
        self.answer_gid[1].d.next = self.answer_gid[0].q.val();
        self.table.rvalid.next = self.answering[1].q.val();
        self.table.rdata.next = if self.answer_gid[1].q.val() {
            self.gids.rdata.val().cast::<512>()
        } else {
            self.addresses.rdata.val().cast::<512>()
        };
        self.epoch.ready.next = !sweeping;
        self.responses.we.next = marks && epoch.response || sweeping;
        self.responses.waddr.next = if sweeping { sweep } else { epoch.qpn.cast::<24>() };
        self.responses.wdata.next = if sweeping { 0.into() } else { epoch.epoch };
        self.epochs.we.next = marks && !epoch.response || load || sweeping;
        self.epochs.waddr.next = if sweeping {
            sweep
        } else if marks {
            epoch.qpn.cast::<24>()
        } else {
            req.index
        };
        self.epochs.wdata.next = if marks { epoch.epoch } else { 0.into() };
        self.halts.we.next = report || load || sweeping;
        self.halts.waddr.next = if sweeping {
            sweep
        } else if report {
            first.about.qpn.cast::<24>()
        } else {
            req.index
        };
        self.halts.wdata.next = if report {
            Halt {
                generation: first.about.generation,
                request: first.about.request || verdict.halt.request,
                epoch: if first.about.request { first.about.epoch } else { verdict.halt.epoch },
                response: !first.about.request || verdict.halt.response,
            }
        } else {
            Halt { generation: 0.into(), request: false, epoch: 0.into(), response: false }
        };
    }
}
