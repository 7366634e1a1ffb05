//! Sends frames: puts headers, pad and ICRC around their payload, and streams them to the MAC. Of the frames that
//! [`prepare`](super::prepare) has ready, ACKs go first; the others in ring order, each when [`frames`](super::frames) has all of its bytes and
//! [`judge`](super::judge) is sure of it.
//!
//! ```text
//! cycle      0    1    2    3    4 .. 9    10   11
//! shown      A
//! ready      A                             all bytes are there
//! begin      A              B              a frame every 2 cycles at most
//! issue           A0   A1 ..               a beat a cycle: a row of the buffer, a slice of header
//! merge                          A0        ICRC generator beside the delay line
//! insert, mac                         A0   A0
//! ```
//! Nothing behind `begin` waits: a beat is issued only when the output FIFO has room. That FIFO is deeper than the pipeline is long, so
//! that a frame comes to the MAC without gaps whatever the MAC does. A dropped frame takes one cycle of `issue`, so that room is freed
//! in order.
//!
//! A MAC that takes nothing (its link is paused) must not hold a command: once it has stood still for 2^[`PATIENCE`] cycles and
//! `hurry` says that a command waits, frames that find the FIFO full are *void*: they run through, are not put into the FIFO, and
//! count as lost on the wire, so that rings and engines move on. A frame of which a part is in the FIFO is cut: a last beat with
//! `mac_error`, for which one place is always free.
//!
//! Cannot deadlock: waits only for the MAC (not for ever while a command waits), and for the bytes of a frame that `dma_read`
//! brings. The sink of `fault` may itself wait for the transmit path, so nothing waits for it: a report that finds the queue full
//! is not made and holds nothing back. Its frame is then lost like one on the wire, and the retry meets the fault again; but a request that
//! was not sent before has no timer yet, and waits for the next one that its QP sends (README, Not yet).
//!
//! Lost like that is also a READ response that went before and whose key opens no more: its peer may have had it the first time, and have
//! invalidated the key since, as it may. If it has not, it asks in vain.

use super::{
    frames::{Outcome, rows_of},
    icrc::{GENERATOR_LATENCY, Generator},
    judge::{Claim, Held, Verdict},
    prepare::Prepared,
};
use crate::{
    msg::{BufAddr, TxFault, TxLeft},
    stream::{BeatSource, Fifo, READ_LATENCY, Sink, Source},
};
use abi::status::{cause, counter};
use hdl::prelude::*;

/// Beats between issue and MAC: more than the pipeline holds.
const BEATS: usize = 16;
/// Log2 of the cycles that a command waits for a MAC that stands still.
pub const PATIENCE: usize = 18;
/// Fault reports that may wait.
pub const FAULTS: usize = 16;

/// What remains of a frame's fields while it is streamed.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct About {
    claim: Claim,
    psn: Bits<24>,
    payload: Bits<14>,
    ip6: Bit,
    tagged: Bit,
    raw: Bit,
    expects: Bit,
    alone: Bit,
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

/// A beat for the MAC.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Beat<const W: usize> {
    data: Bits<W>,
    bytes: Bits<7>,
    last: Bit,
    error: Bit,
}

/// See the [module](self).
#[derive(LogicBlock)]
pub struct Egress<const W: usize> {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// One more frame is prepared: of the ring, or of the others, which go first.
    pub prepared: Signal<In, Bit>,
    pub prepared_quick: Signal<In, Bit>,
    /// Row of the frame that is next, answered at once.
    pub row: Signal<Out, Bits<4>>,
    pub next: Signal<In, Prepared>,
    /// Slices of its header, two cycles later.
    pub slice_re: Signal<Out, Bit>,
    pub slice_row: Signal<Out, Bits<4>>,
    pub slice: Signal<Out, Bits<4>>,
    pub slice_data: Signal<In, Bits<W>>,
    /// The ring's oldest frame has all of its bytes, or never will.
    pub ready: Sink<Outcome>,
    /// A frame of the ring is next, its row, whether it waits for its bytes, and that it begins.
    pub first: Signal<Out, Bit>,
    pub first_row: Signal<Out, Bits<3>>,
    pub waits: Signal<Out, Bit>,
    pub begun: Signal<Out, Bit>,
    /// Its verdict counts: `verdict` if `fresh`, else that of when it was prepared.
    pub sure: Signal<In, Bit>,
    pub fresh: Signal<In, Bit>,
    pub verdict: Signal<In, Verdict>,
    /// This frame is the first aborted one of its QP and epoch.
    pub report: Signal<Out, Bit>,
    pub failed: Signal<Out, Claim>,
    pub held: Signal<Out, Held>,
    /// Of it. Nothing waits for its sink.
    pub fault: Source<TxFault>,
    /// Read port of the transmit buffer.
    pub re: Signal<Out, Bit>,
    pub raddr: Signal<Out, BufAddr>,
    pub rdata: Signal<In, Bits<W>>,
    /// A frame of the ring, or another one, has left or was dropped; the rows it had in the transmit buffer.
    pub free: Signal<Out, Bit>,
    pub free_quick: Signal<Out, Bit>,
    pub free_rows: Signal<Out, Bits<12>>,
    pub mac: BeatSource<W>,
    /// The frame is unfinished: the MAC spoils its FCS. Counts with `last`.
    pub mac_error: Signal<Out, Bit>,
    /// A command waits.
    pub hurry: Signal<In, Bit>,
    /// The sink must always be ready.
    pub left: Source<TxLeft>,
    pub count: Signal<Out, Bits<64>>,
    /// RoCE payload bytes that left, in this cycle.
    pub tx_bytes: Signal<Out, Bits<14>>,
    // Frames that are prepared and have not begun, the row of the first of them: of the ring, and of the others.
    waiting: [Reg<Bits<4>>; 2],
    ahead: [Reg<Bits<3>>; 2],
    shown: Reg<Bit>,
    shown_row: Reg<Bits<4>>,
    // Issue.
    /// The present frame is issued,
    live: Reg<Bit>,
    /// or goes nowhere, which takes this cycle.
    dropping: Reg<Bit>,
    row_now: DFF<Bits<4>>,
    about: DFF<About>,
    slice_now: DFF<Bits<4>>,
    header_left: DFF<Bits<7>>,
    payload_left: DFF<Bits<14>>,
    icrc_left: DFF<Bits<14>>,
    total_left: DFF<Bits<14>>,
    ends: DFF<Bit>,
    address: DFF<BufAddr>,
    split: DFF<Bit>,
    in_flight: Reg<Bits<6>>,
    full: Reg<Bit>,
    /// It is full, and waited for.
    halted: Reg<Bit>,
    /// A part of the frame went into the FIFO; the rest of it is void.
    entered: Reg<Bit>,
    voided: Reg<Bit>,
    /// The MAC took a beat, or let one stand; for how many cycles.
    took: Reg<Bit>,
    stood: Reg<Bit>,
    still: Reg<Bits<{ PATIENCE + 1 }>>,
    impatient: Reg<Bit>,
    // Behind the frame.
    reporting: Reg<Bit>,
    /// Of what failed nobody needs to know.
    moot: DFF<Bit>,
    cause: DFF<Bits<8>>,
    judged: DFF<Held>,
    faults: Fifo<TxFault>,
    leaving: Reg<Bit>,
    leaver: DFF<TxLeft>,
    freed: [Reg<Bit>; 2],
    freed_rows: DFF<Bits<12>>,
    counts: Reg<Bits<64>>,
    bytes: Reg<Bits<14>>,
    // Beats on their way.
    reading: [Reg<Bit>; READ_LATENCY],
    plans: [DFF<Plan>; READ_LATENCY],
    header: DFF<Bits<W>>,
    mask: DFF<Bits<W>>,
    generator: Generator<W>,
    delayed: [Reg<Bit>; GENERATOR_LATENCY],
    delayed_plan: [DFF<Plan>; GENERATOR_LATENCY],
    delayed_data: [DFF<Bits<W>>; GENERATOR_LATENCY],
    carry: DFF<Bits<16>>,
    beats: Fifo<Beat<W>>,
}

impl<const W: usize> Default for Egress<W> {
    fn default() -> Self {
        Egress {
            clock: Default::default(),
            rst: Default::default(),
            prepared: Default::default(),
            prepared_quick: Default::default(),
            row: Default::default(),
            next: Default::default(),
            slice_re: Default::default(),
            slice_row: Default::default(),
            slice: Default::default(),
            slice_data: Default::default(),
            ready: Default::default(),
            first: Default::default(),
            first_row: Default::default(),
            waits: Default::default(),
            begun: Default::default(),
            sure: Default::default(),
            fresh: Default::default(),
            verdict: Default::default(),
            report: Default::default(),
            failed: Default::default(),
            held: Default::default(),
            fault: Default::default(),
            re: Default::default(),
            raddr: Default::default(),
            rdata: Default::default(),
            free: Default::default(),
            free_quick: Default::default(),
            free_rows: Default::default(),
            mac: Default::default(),
            mac_error: Default::default(),
            hurry: Default::default(),
            left: Default::default(),
            count: Default::default(),
            tx_bytes: Default::default(),
            waiting: Default::default(),
            ahead: Default::default(),
            shown: Default::default(),
            shown_row: Default::default(),
            live: Default::default(),
            dropping: Default::default(),
            row_now: Default::default(),
            about: Default::default(),
            slice_now: Default::default(),
            header_left: Default::default(),
            payload_left: Default::default(),
            icrc_left: Default::default(),
            total_left: Default::default(),
            ends: Default::default(),
            address: Default::default(),
            split: Default::default(),
            in_flight: Default::default(),
            full: Default::default(),
            halted: Default::default(),
            entered: Default::default(),
            voided: Default::default(),
            took: Default::default(),
            stood: Default::default(),
            still: Default::default(),
            impatient: Default::default(),
            reporting: Default::default(),
            moot: Default::default(),
            cause: Default::default(),
            judged: Default::default(),
            faults: Fifo::new(FAULTS),
            leaving: Default::default(),
            leaver: Default::default(),
            freed: Default::default(),
            freed_rows: Default::default(),
            counts: Default::default(),
            bytes: Default::default(),
            reading: Default::default(),
            plans: Default::default(),
            header: Default::default(),
            mask: Default::default(),
            generator: Default::default(),
            delayed: Default::default(),
            delayed_plan: Default::default(),
            delayed_data: Default::default(),
            carry: Default::default(),
            beats: Fifo::new(BEATS),
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
        regs!(
            self, clock, rst, waiting, ahead, shown, shown_row, live, dropping, in_flight, full, halted, entered,
            voided
        );
        regs!(
            self, clock, rst, took, stood, still, impatient, reporting, leaving, freed, counts, bytes, reading, delayed
        );
        dff_setup!(self, clock, row_now, about, slice_now, header_left, payload_left, icrc_left, total_left, ends);
        dff_setup!(self, clock, address, split, moot, cause, judged, leaver, freed_rows, plans, header, mask);
        dff_setup!(self, clock, delayed_plan, delayed_data, carry);
        clock_reset!(self, clock, rst, faults, generator, beats);

        // The present frame: one beat of it per cycle.
        let live = self.live.q.val();
        let dropping = self.dropping.q.val();
        let ends = self.ends.q.val();
        let full = self.full.q.val();
        let voided = self.voided.q.val();
        let void = voided || full && self.impatient.q.val();
        let cut = void && !voided && self.entered.q.val();
        let issue = live && (voided || !self.halted.q.val());
        let enters = issue && (!void || cut);
        let sent = issue && ends;
        let finish = dropping || sent;

        // The next one: begins when the present one ends.
        let shown = self.shown.q.val();
        let row = self.shown_row.q.val();
        let is_quick = row.get_bit(3);
        let reporting = self.reporting.q.val();
        let may_begin = !live || sent;
        let begin_quick = may_begin && shown && is_quick;
        let may_ring = may_begin && shown && !is_quick && self.sure.val() && !reporting;
        let begin_ring = may_ring && self.ready.valid.val();
        let begin = begin_quick || begin_ring;
        self.ready.ready.next = may_ring;
        self.row.next = row;
        for i in 0..2 {
            let more = if i == 1 { self.prepared_quick.val() } else { self.prepared.val() };
            let begins = if i == 1 { begin_quick } else { begin_ring };
            let waiting = self.waiting[i].q.val();
            if more && !begins {
                self.waiting[i].d.next = waiting + 1;
            } else if begins && !more {
                self.waiting[i].d.next = waiting - 1;
            }
            if begins {
                self.ahead[i].d.next = self.ahead[i].q.val() + 1;
            }
        }
        let some = self.waiting[0].q.val().any() || self.prepared.val();
        let some_quick = self.waiting[1].q.val().any() || self.prepared_quick.val();
        self.shown.d.next = !begin && (some || some_quick);
        self.shown_row.d.next =
            if some_quick { cat!(true, self.ahead[1].q.val()) } else { cat!(false, self.ahead[0].q.val()) };
        self.first.next = shown && !is_quick;
        self.first_row.next = self.ahead[0].q.val();
        self.waits.next = !self.ready.valid.val();
        self.begun.next = begin_ring;

        let next = self.next.val();
        let outcome = self.ready.data.val();
        let verdict = if self.fresh.val() && !is_quick { self.verdict.val() } else { next.verdict };
        let failed = outcome.failed && !is_quick;
        let header_left = self.header_left.q.val();
        let payload_left = self.payload_left.q.val();
        let icrc_left = self.icrc_left.q.val();
        let total = self.total_left.q.val();
        let about = self.about.q.val();
        let covered = issue && !about.raw && icrc_left.any();
        let holds_icrc = covered && icrc_left <= W as u64 / 8;
        if issue {
            self.slice_now.d.next = self.slice_now.q.val() + 1;
            self.header_left.d.next = beyond::<W>(header_left.cast::<14>()).get_bits::<7>(0);
            self.payload_left.d.next = beyond::<W>(payload_left);
            self.icrc_left.d.next = beyond::<W>(icrc_left);
            self.total_left.d.next = beyond::<W>(total);
            self.ends.d.next = total <= W as u64 / 4;
            self.address.d.next = self.address.q.val() + W as u64 / 8;
            self.split.d.next = holds_icrc && icrc_left == W as u64 / 8 - 2;
            self.voided.d.next = void;
            self.entered.d.next = true;
        }
        let lost = verdict.off || failed;
        self.dropping.d.next = begin && lost;
        self.reporting.d.next = begin_ring && failed && !verdict.off;
        if begin {
            self.live.d.next = !lost;
            self.row_now.d.next = row;
            self.about.d.next = About {
                claim: next.claim,
                psn: next.psn,
                payload: next.payload_end - next.header.cast::<14>(),
                ip6: next.ip6,
                tagged: next.tagged,
                raw: next.raw,
                expects: next.expects,
                alone: next.alone,
                again: next.again,
                ack: next.ack,
                nak: next.nak,
            };
            self.judged.d.next = verdict.held;
            self.moot.d.next = next.again && !next.claim.request && outcome.cause != cause::DMA_ERROR;
            self.cause.d.next = outcome.cause;
            self.slice_now.d.next = 0.into();
            self.header_left.d.next = next.header;
            self.payload_left.d.next = next.payload_end;
            self.icrc_left.d.next = next.payload_end + next.pad.cast::<14>();
            self.total_left.d.next = next.total;
            self.ends.d.next = next.total <= W as u64 / 8;
            self.address.d.next = next.start;
            self.split.d.next = false;
            self.voided.d.next = false;
            self.entered.d.next = false;
        } else if sent {
            self.live.d.next = false;
        }
        // Two cycles after the last byte was written.
        self.re.next = issue && payload_left > header_left.cast::<14>();
        self.raddr.next = self.address.q.val();
        self.slice_re.next = issue && header_left.any();
        self.slice_row.next = self.row_now.q.val();
        self.slice.next = self.slice_now.q.val();

        // Why it does not go: the first fault of a QP and epoch is reported, and holds back the frames behind it.
        let report = reporting && !self.moot.q.val() && self.faults.s.ready.val();
        self.report.next = report;
        self.failed.next = about.claim;
        self.held.next = self.judged.q.val();
        self.faults.s.valid.next = report;
        self.faults.s.data.next = TxFault {
            qpn: about.claim.qpn,
            generation: about.claim.generation,
            request: about.claim.request,
            epoch: about.claim.epoch,
            psn: about.psn,
            cause: self.cause.q.val(),
        };
        Source::<TxFault>::link(&mut self.fault, &mut self.faults.m);

        // What follows from its end.
        let ring_ends = finish && !self.row_now.q.val().get_bit(3);
        self.freed[0].d.next = ring_ends;
        self.freed[1].d.next = finish && !ring_ends;
        self.freed_rows.d.next = rows_of::<W>(about.payload);
        self.free.next = self.freed[0].q.val();
        self.free_quick.next = self.freed[1].q.val();
        self.free_rows.next = self.freed_rows.q.val();
        if self.left.ready.val() {
            self.leaving.d.next = false;
        }
        if sent && (about.expects || about.alone) {
            self.leaving.d.next = true;
            self.leaver.d.next =
                TxLeft { qpn: about.claim.qpn, psn: about.psn, expects: about.expects, again: about.again };
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
        count = count.replace_bit(counter::TX_ABORTED, dropping);
        self.counts.d.next = count;
        self.count.next = self.counts.q.val();
        self.bytes.d.next = if whole && !about.raw { about.payload } else { 0.into() };
        self.tx_bytes.next = self.bytes.q.val();

        // Plan and header slice go beside the read.
        self.reading[0].d.next = issue;
        if issue {
            self.plans[0].d.next = Plan {
                low: within::<W>(header_left.cast::<14>()),
                high: within::<W>(payload_left),
                bytes: within::<W>(total),
                last: ends,
                covered,
                icrc: holds_icrc,
                at: within::<W>(icrc_left),
                rest: self.split.q.val(),
                void: void && !cut,
                cut,
                tagged: about.tagged,
                ip6: about.ip6,
            };
        }
        for i in 1..READ_LATENCY {
            self.reading[i].d.next = self.reading[i - 1].q.val();
            if self.reading[i - 1].q.val() {
                self.plans[i].d.next = self.plans[i - 1].q.val();
            }
        }
        if self.reading[READ_LATENCY - 2].q.val() {
            let plan = self.plans[READ_LATENCY - 2].q.val();
            self.mask.d.next = from_byte::<W>(plan.low) & !from_byte::<W>(plan.high);
            self.header.d.next = if plan.low.any() { self.slice_data.val() } else { 0.into() };
        }

        // Merge, and the ICRC beside a delay line.
        let arrives = self.reading[READ_LATENCY - 1].q.val();
        let plan = self.plans[READ_LATENCY - 1].q.val();
        let merged = (self.rdata.val() & self.mask.q.val()) | self.header.q.val();
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
        self.beats.s.data.next = Beat::<W> { data, bytes: plan.bytes, last: plan.last || plan.cut, error: plan.cut };

        // To the MAC. What it takes is known a cycle later.
        let beat = self.beats.m.data.val();
        let offer = self.beats.m.valid.val();
        self.mac.valid.next = offer;
        self.mac.data.next = beat.data;
        self.mac.bytes.next = beat.bytes;
        self.mac.last.next = beat.last;
        self.mac_error.next = beat.error;
        self.beats.m.ready.next = self.mac.ready.val();
        self.took.d.next = offer && self.mac.ready.val();
        self.stood.d.next = offer && !self.mac.ready.val();
        let took = self.took.q.val();
        let in_flight = self.in_flight.q.val();
        let mut full_then = full;
        if enters && !took {
            self.in_flight.d.next = in_flight + 1;
            full_then = in_flight >= BEATS as u64 - 2;
        } else if took && !enters {
            self.in_flight.d.next = in_flight - 1;
            full_then = in_flight == BEATS as u64;
        }
        self.full.d.next = full_then;
        let still = self.still.q.val();
        let stood = self.stood.q.val();
        if !stood {
            self.still.d.next = 0.into();
        } else if !still.get_bit(PATIENCE) {
            self.still.d.next = still + 1;
        }
        let impatient_then = still.get_bit(PATIENCE) && stood && self.hurry.val();
        self.impatient.d.next = impatient_then;
        self.halted.d.next = full_then && !impatient_then;
    }
}
