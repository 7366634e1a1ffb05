//! Sends frames: decides which still go, puts headers, pad and ICRC around their payload, and streams them to the MAC.
//! For [`frames`](super::frames), whose complete frames it takes in ring order, and for the transport engines' ACKs.
//!
//! ```text
//! cycle      0    1    2    3    4    5    6    7    8 .. 11   12  13 .. 18   19   20
//! pick       A              B              C              a frame every 3 cycles at most
//! rows read  A              B              C              address, state, epoch, halts: 2 cycles
//! verdict              A              B              C    drop or send; GID row read
//! checksum                  A    A
//! header                              A                   into `prepared`
//! issue                                         A0   A1 ..     a beat a cycle: a row of the buffer, a slice of header
//! merge                                                    A0      ICRC generator beside the delay line
//! insert                                                                     A0
//! mac                                                                             A0
//! ```
//! Nothing behind `pick` ever waits: a frame is picked only when `prepared` has room for it, and a beat is issued only
//! when the output FIFO has room. That FIFO is deeper than the pipeline is long, so that a frame comes to the MAC without
//! gaps whatever the MAC does. A dropped frame takes one cycle of `issue`, so that room is freed in order.
//!
//! A MAC that takes nothing (its link is paused) must not hold a command: once it has stood still for 2^[`PATIENCE`] cycles and
//! `hurry` says that a command waits, frames that find the FIFO full are *void*: they run through, are not put into the FIFO, and
//! count as lost on the wire, so that rings and engines move on. A frame of which a part is in the FIFO is cut: a last beat with
//! `mac_error`, for which one place is always free.
//!
//! Cannot deadlock: waits only for the MAC, and not for ever while a command waits. The sink of `fault` may itself wait for the transmit path, so nothing waits
//! for it: a report that finds the queue full is not made and holds nothing back. Its frame is then lost like one on
//! the wire, and the retry meets the fault again.

use super::{
    frames::TxFrame,
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

/// Frames picked and not yet begun.
const PREPARED: usize = 4;
/// A data frame is picked when at most so many beats are still to come, so that an ACK need not wait for more.
const LOOKAHEAD: usize = 12;
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

/// A frame between verdict and header.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Judged {
    frame: TxFrame,
    /// Without payload and not of the ring.
    quick: Bit,
    dropped: Bit,
    udp_len: Bits<16>,
}

/// A frame ready to be streamed.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Prepared {
    header: Bits<MAX_BITS>,
    header_len: Bits<7>,
    /// Bytes up to the end of the payload.
    payload_end: Bits<14>,
    /// Bytes up to the ICRC.
    icrc_at: Bits<14>,
    /// Bytes in all.
    total: Bits<14>,
    buf: BufAddr,
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
    pub frame: Sink<TxFrame>,
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
    steps: [Reg<Bit>; 5],
    ahead: Reg<Bits<3>>,
    beats_ahead: Reg<Bits<16>>,
    picked: DFF<TxFrame>,
    picked_quick: DFF<Bit>,
    marked: DFF<Bit>,
    mark: DFF<Bits<8>>,
    judged: DFF<Judged>,
    address: DFF<Bits<ADDRESS_BITS>>,
    sum: DFF<Bits<20>>,
    header_len: DFF<Bits<7>>,
    tagged: DFF<Bit>,
    faults: Fifo<TxFault>,
    prepared: Fifo<Prepared>,
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
    merged: Reg<Bit>,
    merged_plan: DFF<Plan>,
    merged_data: DFF<Bits<W>>,
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
            frame: Default::default(),
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
            ahead: Default::default(),
            beats_ahead: Default::default(),
            picked: Default::default(),
            picked_quick: Default::default(),
            marked: Default::default(),
            mark: Default::default(),
            judged: Default::default(),
            address: Default::default(),
            sum: Default::default(),
            header_len: Default::default(),
            tagged: Default::default(),
            faults: Fifo::new(FAULTS),
            prepared: Fifo::new(PREPARED),
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
            merged: Default::default(),
            merged_plan: Default::default(),
            merged_data: Default::default(),
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

impl<const W: usize> Logic for Egress<W> {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, sweep, answering, steps, ahead, beats_ahead, active, in_flight, leaving);
        regs!(self, clock, rst, reading, merged, delayed, entered, voided, still, impatient);
        dff_setup!(self, clock, answer_gid, picked, picked_quick, marked, mark, judged, address, sum, header_len);
        dff_setup!(self, clock, tagged, about, header, header_left, payload_left, icrc_left, total_left, row, split);
        dff_setup!(self, clock, leaver, plans, slices, mask, merged_plan, merged_data);
        dff_setup!(self, clock, delayed_plan, delayed_data, carry);
        clock!(self, clock, addresses, gids, epochs, responses, halts);
        clock_reset!(self, clock, rst, faults, prepared, generator, beats, ends);
        let sweeping = self.sweep.q.val() != elab!(bits::<16>(self._qps.0 as u64));
        let sweep = self.sweep.q.val().cast::<24>();
        if sweeping {
            self.sweep.d.next = self.sweep.q.val() + 1;
        }

        // Pick a frame and read its QP's rows.
        let ring = self.frame.data.val();
        let head = self.quick.data.val();
        let can_pick =
            !sweeping && !self.steps[0].q.val() && !self.steps[1].q.val() && self.ahead.q.val() != PREPARED as u64;
        let few = self.beats_ahead.q.val() < LOOKAHEAD as u64
            && (!self.active.q.val() || self.total_left.q.val() < (LOOKAHEAD * W / 8) as u64);
        let pick_quick = can_pick && self.quick.valid.val();
        let pick_ring = can_pick && !self.quick.valid.val() && self.frame.valid.val() && few;
        let pick = pick_quick || pick_ring;
        self.quick.ready.next = can_pick;
        self.frame.ready.next = can_pick && !self.quick.valid.val() && few;
        let mut frame = ring;
        if pick_quick {
            frame = TxFrame { head, ip6: false, tagged: false, buf: 0.into(), rows: 0.into(), cause: 0.into() };
        }
        let qpn = frame.head.qpn;
        self.steps[0].d.next = pick;
        for i in 1..5 {
            self.steps[i].d.next = self.steps[i - 1].q.val();
        }
        let epoch = self.epoch.data.val();
        let marks = self.epoch.valid.val() && !sweeping;
        if pick {
            self.picked.d.next = frame;
            self.picked_quick.d.next = pick_quick;
            self.marked.d.next = marks && epoch.qpn == qpn && epoch.response != frame.head.request;
            self.mark.d.next = epoch.epoch;
        }
        self.view_re.next = pick;
        self.view_addr.next = qpn;
        self.epochs.re.next = pick;
        self.epochs.raddr.next = qpn.cast::<24>();
        self.responses.re.next = pick;
        self.responses.raddr.next = qpn.cast::<24>();
        self.halts.re.next = pick;
        self.halts.raddr.next = qpn.cast::<24>();

        // Verdict, two cycles later.
        let judge = self.steps[1].q.val();
        let picked = self.picked.q.val();
        let head = picked.head;
        let quick = self.picked_quick.q.val();
        let view = self.view.val();
        let halt = self.halts.rdata.val();
        let address = self.addresses.rdata.val();
        let now = if self.marked.q.val() {
            self.mark.q.val()
        } else if head.request {
            self.epochs.rdata.val()
        } else {
            self.responses.rdata.val()
        };
        let data = head.request || head.opcode != op::ACK as u64;
        let old = view.generation != head.generation || data && now != head.epoch;
        let known = halt.generation == head.generation;
        let halted = if head.request {
            halt.request && halt.epoch == head.epoch
        } else {
            halt.response && head.opcode != op::ACK as u64
        };
        let behind = known && halted && !quick;
        let aborted = picked.cause.any();
        let report = judge && aborted && !old && !behind && self.faults.s.ready.val();
        self.faults.s.valid.next = report;
        self.faults.s.data.next = TxFault {
            qpn: head.qpn,
            generation: head.generation,
            request: head.request,
            epoch: head.epoch,
            psn: head.psn,
            cause: picked.cause,
        };
        Source::<TxFault>::link(&mut self.fault, &mut self.faults.m);
        if judge {
            let mut frame = picked;
            if quick {
                frame.ip6 = address.get_bit(elab!(qp_address::IS_IP6.lsb));
            }
            self.judged.d.next =
                Judged { frame, quick, dropped: old || behind || aborted, udp_len: headers::udp_len(head) };
            self.address.d.next = address;
        }

        // Header: checksum in two steps, layout, and all of it.
        let judged = self.judged.q.val();
        let address = self.address.q.val();
        let gid_row = self.gids.rdata.val();
        let head = judged.frame.head;
        if self.steps[2].q.val() {
            self.sum.d.next = headers::checksum_start(address, judged.udp_len);
        }
        let tagged = if judged.quick { gid_row.get_bit(elab!(gid::TAGGED.lsb)) } else { judged.frame.tagged };
        if self.steps[3].q.val() {
            self.sum.d.next = headers::checksum_add(self.sum.q.val(), gid_row);
            self.tagged.d.next = tagged;
            self.header_len.d.next = headers::header_len(head, judged.frame.ip6, tagged);
        }
        let built = if self.steps[4].q.val() && !head.raw {
            headers::header(
                head,
                address,
                gid_row,
                judged.frame.ip6,
                self.tagged.q.val(),
                judged.udp_len,
                self.sum.q.val(),
            )
        } else {
            0.into()
        };
        let payload_end = self.header_len.q.val().cast::<14>() + head.payload;
        let icrc_at = payload_end + headers::pad(head.payload).cast::<14>();
        let bare: Bits<14> = if head.raw { head.payload } else { icrc_at + len::ICRC as u64 };
        let is_ack = head.opcode == op::ACK as u64 && !head.raw;
        let is_nak = head.syndrome.get_bits::<3>(5).any();
        self.prepared.s.valid.next = self.steps[4].q.val(); // has room: see `ahead`
        self.prepared.s.data.next = Prepared {
            header: built,
            header_len: self.header_len.q.val(),
            payload_end,
            icrc_at,
            total: if bare < wire::MIN_FRAME as u64 { bits::<14>(wire::MIN_FRAME as u64) } else { bare },
            buf: judged.frame.buf,
            about: About {
                ip6: judged.frame.ip6,
                tagged: self.tagged.q.val(),
                raw: head.raw,
                dropped: judged.dropped,
                quick: judged.quick,
                rows: judged.frame.rows,
                payload: head.payload,
                qpn: head.qpn,
                psn: head.psn,
                expects: headers::expects_answer(head),
                again: head.again,
                ack: is_ack && !is_nak,
                nak: is_ack && is_nak,
            },
        };

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
        let next = self.prepared.m.data.val();
        let begin = self.prepared.m.valid.val() && (!self.active.q.val() || finish);
        let low = self.header_left.q.val();
        let icrc_left = self.icrc_left.q.val();
        let payload_left = self.payload_left.q.val();
        let covered = issue && !about.raw && icrc_left.any();
        let holds_icrc = covered && icrc_left <= W as u64 / 8;
        self.prepared.m.ready.next = begin;
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
            self.header.d.next = next.header;
            self.header_left.d.next = next.header_len;
            self.payload_left.d.next = next.payload_end;
            self.icrc_left.d.next = next.icrc_at;
            self.total_left.d.next = next.total;
            self.row.d.next = next.buf;
            self.split.d.next = false;
            self.voided.d.next = false;
            self.entered.d.next = false;
        } else if finish {
            self.active.d.next = false;
        }
        if pick && !begin {
            self.ahead.d.next = self.ahead.q.val() + 1;
        } else if begin && !pick {
            self.ahead.d.next = self.ahead.q.val() - 1;
        }
        let more: Bits<16> = if pick { frame.rows.cast::<16>() } else { 0.into() };
        let less: Bits<16> = if begin { next.about.rows.cast::<16>() } else { 0.into() };
        self.beats_ahead.d.next = (self.beats_ahead.q.val() + more) - less;
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
        self.merged.d.next = arrives;
        if arrives {
            self.merged_plan.d.next = self.plans[READ_LATENCY - 1].q.val();
            self.merged_data.d.next = (self.rdata.val() & self.mask.q.val()) | self.slices[READ_LATENCY - 1].q.val();
        }
        let plan = self.merged_plan.q.val();
        self.generator.data.next = self.merged_data.q.val();
        self.generator.bytes.next = plan.at;
        self.generator.last.next = plan.icrc;
        self.generator.valid.next = self.merged.q.val() && plan.covered;
        self.generator.tagged.next = plan.tagged;
        self.generator.ip6.next = plan.ip6;
        self.delayed[0].d.next = self.merged.q.val();
        if self.merged.q.val() {
            self.delayed_plan[0].d.next = plan;
            self.delayed_data[0].d.next = self.merged_data.q.val();
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
        let busy = pick || judge || self.steps[2].q.val();
        let free = !sweeping && !busy && !self.epoch.valid.val();
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
        } else if judge {
            head_qpn(picked)
        } else {
            req.index
        };
        self.halts.wdata.next = if report {
            Halt {
                generation: picked.head.generation,
                request: picked.head.request || known && halt.request,
                epoch: if picked.head.request { picked.head.epoch } else { halt.epoch },
                response: !picked.head.request || known && halt.response,
            }
        } else {
            Halt { generation: 0.into(), request: false, epoch: 0.into(), response: false }
        };
    }
}

/// Table index of a frame's QP.
#[hdl_fn]
fn head_qpn(frame: TxFrame) -> Bits<24> {
    frame.head.qpn.cast::<24>()
}
