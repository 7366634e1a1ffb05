//! Watches over what a requester waits for: one scanner over all QPs, one QP a cycle. For the completer.
//!
//! ```text
//! cycle    0           2                     3            4        5
//!          read rows   same wait as before?  how long?    over?    `fired`; write alarm
//! ```
//! A QP of which a row is written as it is read is left out, until the next round.
//!
//! Time is in ticks of 1.024 us, so that the verbs timeout 4.096 us x 2^t is 4 x 2^t ticks. A wait begins when the
//! scanner first sees it, and begins anew when the oldest unacknowledged PSN or the `turn` changes. So its length is exact
//! to one round of the scanner (1 us for 256 QPs at 250 MHz).
//!
//! The *fast timer* runs while a packet that asks for an answer has left for the MAC and is not acknowledged, a READ
//! response is under way, or a fault of the send side waits for the messages before it. Its time is srtt + 4 rttvar + 1, at
//! least [`least_timer`] ticks and twice the *pace*; doubled by a NAK (the data is read again before the next answer can come) and at
//! each firing; and no less than the *turn* of each QP that waits, which firings do not double, for that is what the crowd needs
//! and no guess. All that up to the verbs timeout; only a firing after the full verbs timeout counts against the retry count. Before
//! the first measurement it is [`FIRST`] ticks.
//!
//! A round trip is measured on one packet at a time, which asks for an answer and is *marked* when it leaves for the first time: until it
//! is answered, those behind it are not, for a stream always has some on their way. What is marked when a QP goes back counts for
//! nothing, for the answer may be to either of two packets; and how long it takes if it waits behind a READ's response tells nothing. So a
//! path that became longer could not be measured, since the timer fires before each answer: therefore what it was doubled by firings
//! stays, up to [`KEPT`] times, until a marked packet is answered that was sent once (Karn's algorithm), whatever it has waited behind.
//!
//! The pace is the time from one progress to the next while the QP goes on waiting: on a slow or shared link the packets of a READ
//! response come further apart than its first one took to come. The longest one counts, and is forgotten by a 32nd with each
//! progress.
//!
//! Answers of many QPs wait for each other, READ responses and atomics above all: [`turn`] ticks are allowed for each QP of the *crowd*,
//! which are those that were seen waiting for an answer in the last round. Those in an RNR wait are not served, and none of it. A crowd
//! that shrinks is allowed for as it was, less a QP in four turns: who waited behind it waited for those, too, that are done by now. So
//! nobody asks again for what others are before in the peer's queue, and QPs of a peer that is silent delay the others by no more than
//! that.

use crate::{
    msg::*,
    stream::{FreshTable, Table},
};
use abi::wire::RNR_TIMER_10US;
use hdl::prelude::*;

/// Fast timer before the first measurement, in ticks.
pub const FIRST: u64 = 128;
/// Least fast timer of a datapath of `width` bits, in ticks of `tick` cycles: 5, and the time in which two packets of the
/// largest MTU pass it. An answer stands behind a packet under way, and a READ response is a packet of data itself, so on a
/// narrow datapath the first answer alone takes longer than 5 ticks.
pub const fn least_timer(width: usize, tick: usize) -> u64 {
    (5 + 2 * LARGEST_MTU * 8 / width / tick) as u64
}
/// Ticks that the fast timer allows for each other QP that waits: a packet of the largest MTU both ways, or 16 atomics. A power of two.
pub const fn turn(width: usize, tick: usize) -> u64 {
    (2 + LARGEST_MTU * 8 / width / tick).next_power_of_two() as u64
}
/// Doublings by firings that stay over progress, at most.
pub const KEPT: u64 = 7;
/// Bytes.
const LARGEST_MTU: usize = 4096;
/// Longest wait, in ticks (18 minutes): longer verbs timeouts are cut to it.
const LONGEST: u64 = 1 << 30;

/// RNR timer codes in ticks of 1.024 us, rounded up.
pub const RNR_TICKS: [u64; 32] = {
    let mut ticks = [0; 32];
    let mut i = 0;
    while i < 32 {
        ticks[i] = (RNR_TIMER_10US[i] as u64 * 10_000).div_ceil(1024);
        i += 1;
    }
    ticks
};

/// Bit `k` of `RNR_TICKS` by its index: a LUT.
fn rnr_bit(k: usize) -> Bits<32> {
    bits::<32>((0..32).fold(0, |all, i| all | (RNR_TICKS[i] >> k & 1) << i))
}

/// What a QP waits for. Writer: the completer.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Wait {
    /// Oldest unacknowledged PSN.
    pub psn: Psn,
    /// Changes when the wait begins anew.
    pub turn: Bits<4>,
    /// An RNR timer runs, of this code.
    pub rnr: Bit,
    pub rnr_code: Bits<5>,
    /// A READ response is under way, or a fault waits for its turn.
    pub reading: Bit,
    /// It may wait: its queue was loaded, and no error ended the QP. So a QP that was never used waits for nothing.
    pub live: Bit,
    /// Nobody acknowledges it: what has left is done.
    pub alone: Bit,
    /// Its queue was loaded, and nothing came since: what was learnt is about another peer.
    pub begins: Bit,
    /// Doublings of the fast timer.
    pub fires: Bits<4>,
    /// Verbs timeout, 0 for never.
    pub timeout: Bits<5>,
    /// The fast timer by round trips alone, in ticks: [`fast_timer`].
    pub fast: Bits<16>,
}

/// The fast timer after round trips of `srtt` eighths of a tick, 0 before the first, and a mean deviation of `rttvar` quarters.
#[hdl_fn]
pub fn fast_timer(srtt: Bits<16>, rttvar: Bits<16>) -> Bits<16> {
    if srtt.any() { (srtt >> 3) + rttvar + 1 } else { FIRST.to_bits() }
}

/// A packet that asks for an answer and left for the MAC, as the completer sees it. Writer: this block, for `left`.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Mark {
    /// Low bits of its PSN: enough to know its answer by.
    pub psn: Bits<19>,
    /// When it left.
    pub time: Bits<16>,
    /// It waits for its answer. As it is stored: the other than of the mark before.
    pub open: Bit,
}

/// The scanner's memory of a QP.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Alarm {
    running: Bit,
    psn: Psn,
    turn: Bits<4>,
    /// It began with progress, not with a packet that left or a go back.
    paced: Bit,
    since: Bits<31>,
    /// In ticks.
    pace: Bits<11>,
}

/// A wait that is over.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Fired {
    /// QP.
    pub qpn: Qp,
    /// Oldest unacknowledged PSN, and turn, then.
    pub psn: Psn,
    pub turn: Bits<4>,
    /// The verbs timeout, not a fast one.
    pub verbs: Bit,
    /// No timer: packets that nobody acknowledges have left, up to this PSN.
    pub alone: Bit,
}

/// See the module.
#[derive(LogicBlock, Default)]
pub struct Timers {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// A packet left for the MAC.
    pub left: Signal<In, TxLeft>,
    pub left_valid: Signal<In, Bit>,
    /// Writes a QP's wait.
    pub we: Signal<In, Bit>,
    pub waddr: Signal<In, Qp>,
    pub wait: Signal<In, Wait>,
    /// With it, that its mark is done with.
    pub unmark: Signal<In, Bit>,
    /// Reads a QP's mark: two cycles later, while `mark_addr` stays.
    pub mark_re: Signal<In, Bit>,
    pub mark_addr: Signal<In, Qp>,
    pub mark: Signal<Out, Mark>,
    /// Time in ticks.
    pub now: Signal<Out, Bits<32>>,
    /// A wait is over; it counts when `take` is high in that cycle, else it is told again a round later.
    pub fired: Signal<Out, Fired>,
    pub fired_valid: Signal<Out, Bit>,
    pub take: Signal<In, Bit>,
    time: Reg<Bits<32>>,
    fraction: Reg<Bits<16>>,
    qp: Reg<Qp>,
    /// QPs of this round that wait; and as many as turns are allowed for.
    crowd: Reg<Bits<13>>,
    peak: Reg<Bits<13>>,
    /// Four turns are over.
    falls: Reg<Bit>,
    valid: [Reg<Bit>; 5],
    who: [DFF<Qp>; 5],
    /// Rows that were written in the cycle before.
    asked_we: Reg<Bit>,
    asked_at: DFF<Qp>,
    wait_we: Reg<Bit>,
    wait_at: DFF<Qp>,
    /// A queue was loaded: its row of `asked` is still to be written.
    late: Reg<Bit>,
    late_at: DFF<Qp>,
    late_psn: DFF<Psn>,
    /// Marks for the completer, their PSNs for the scanner.
    marks: FreshTable<Mark>,
    /// `open` of each QP's last mark, and of the last one that is done with; two copies each, for two readers.
    opened: [Ram<Bit, 12>; 2],
    closed: [Ram<Bit, 12>; 2],
    asked: Table<Psn>,
    waits: Table<Wait>,
    alarms: Table<Alarm>,
    /// Stage 3.
    waiting: DFF<Bit>,
    same: DFF<Bit>,
    base: DFF<Bits<16>>,
    about: DFF<Wait>,
    since: DFF<Bits<31>>,
    elapsed: DFF<Bits<31>>,
    pace: DFF<Bits<11>>,
    /// It waits since it made progress; and made more now.
    paced: DFF<Bit>,
    moved: DFF<Bit>,
    /// Stage 4.
    waiting4: DFF<Bit>,
    same4: DFF<Bit>,
    about4: DFF<Wait>,
    since4: DFF<Bits<31>>,
    elapsed4: DFF<Bits<31>>,
    pace4: DFF<Bits<11>>,
    paced4: DFF<Bit>,
    fast4: DFF<Bits<31>>,
    limit4: DFF<Bits<32>>,
    /// Stage 5.
    over: DFF<Bit>,
    waiting5: DFF<Bit>,
    same5: DFF<Bit>,
    psn5: DFF<Psn>,
    turn5: DFF<Bits<4>>,
    since5: DFF<Bits<31>>,
    pace5: DFF<Bits<11>>,
    paced5: DFF<Bit>,
    verbs5: DFF<Bit>,
    alone5: DFF<Bit>,
    /// It is one of the crowd.
    crowds5: DFF<Bit>,
    _qps: Hidden<usize>,
    _tick: Hidden<usize>,
    _least: Hidden<u64>,
    /// Log2 of the ticks of a turn.
    _turn: Hidden<usize>,
}

impl Timers {
    /// Timers of `qps` QPs; a tick of 1.024 us has `tick` cycles (256 at 250 MHz), the fast timer at least `least` ticks, and `turn`
    /// for each QP that waits.
    pub fn new(qps: usize, tick: usize, least: u64, turn: u64) -> Self {
        assert!((8..=4096).contains(&qps) && (1..=0xffff).contains(&tick));
        assert!(turn.is_power_of_two() && turn <= 8, "a turn of {turn} ticks");
        Timers {
            marks: FreshTable::new(qps, "block"),
            opened: [bits_of(qps), bits_of(qps)],
            closed: [bits_of(qps), bits_of(qps)],
            asked: Table::new(qps, "block"),
            waits: Table::new(qps, "block"),
            alarms: Table::new(qps, "block"),
            _qps: Hidden(qps),
            _tick: Hidden(tick),
            _least: Hidden(least),
            _turn: Hidden(turn.trailing_zeros() as usize),
            ..Default::default()
        }
    }
}

/// A bit of each of `qps` QPs, read at once.
fn bits_of(qps: usize) -> Ram<Bit, 12> {
    Ram::default().rows(qps).style("distributed").at_once()
}

impl Logic for Timers {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, time, fraction, qp, crowd, peak, falls, valid, asked_we, wait_we, late);
        dff_setup!(self, clock, who, waiting, same, base, about, since, elapsed, pace, paced, moved);
        dff_setup!(self, clock, waiting4, same4, about4, since4, elapsed4, pace4, paced4, fast4, limit4);
        dff_setup!(self, clock, over, waiting5, same5, psn5, turn5, since5, pace5, paced5, verbs5, asked_at, wait_at);
        dff_setup!(self, clock, alone5, crowds5, late_at, late_psn);
        clock!(self, clock, marks, asked, waits, alarms, opened[0], opened[1], closed[0], closed[1]);
        let time = self.time.q.val();
        self.now.next = time;
        self.fraction.d.next = self.fraction.q.val() + 1;
        self.falls.d.next = false;
        if self.fraction.q.val() == elab!(bits::<16>(self._tick.0 as u64 - 1)) {
            self.fraction.d.next = 0.into();
            self.time.d.next = time + 1;
            self.falls.d.next = !(time & elab!(bits::<32>((4 << self._turn.0) - 1))).any();
        }

        // Marks: written when a packet leaves and the mark before is done with, read by the completer.
        let left = self.left.val();
        let leaves = self.left_valid.val();
        let wait = self.wait.val();
        let begins = self.we.val() && wait.begins;
        let opened = self.opened[0].rdata.val();
        let marks = leaves && left.expects && !left.again && opened == self.closed[0].rdata.val();
        self.marks.we.next = marks;
        self.marks.waddr.next = left.qpn.cast::<24>();
        self.marks.wdata.next = Mark { psn: left.psn.get_bits::<19>(0), time: time.get_bits::<16>(0), open: !opened };
        self.marks.re.next = self.mark_re.val();
        self.marks.raddr.next = self.mark_addr.val().cast::<24>();
        self.mark.next = self.marks.rdata.val();
        self.mark.next.open = self.marks.rdata.val().open != self.closed[1].rdata.val();
        let readers = [left.qpn, self.waddr.val()];
        let closers = [left.qpn, self.mark_addr.val()];
        for i in 0..2 {
            self.opened[i].we.next = marks;
            self.opened[i].waddr.next = left.qpn;
            self.opened[i].wdata.next = !opened;
            self.opened[i].re.next = true;
            self.opened[i].raddr.next = readers[i];
            // Nothing is marked between the answer and this write: so this is the mark that was answered.
            self.closed[i].we.next = begins || self.we.val() && self.unmark.val();
            self.closed[i].waddr.next = self.waddr.val();
            self.closed[i].wdata.next = self.opened[1].rdata.val();
            self.closed[i].re.next = true;
            self.closed[i].raddr.next = closers[i];
        }
        // A queue that is loaded has asked for nothing, and nothing of it has left. This is written in the next cycle in which no
        // packet leaves: a MAC takes longer for a frame than the datapath. Until then the QP is passed over.
        let late = self.late.q.val();
        self.late.d.next = begins || (late && leaves);
        if begins {
            self.late_at.d.next = self.waddr.val();
            self.late_psn.d.next = wait.psn - 1;
        }
        let writes = leaves || late;
        let written = if leaves { left.qpn } else { self.late_at.q.val() };
        self.asked.we.next = writes;
        self.asked.waddr.next = written.cast::<24>();
        self.asked.wdata.next = if leaves { left.psn } else { self.late_psn.q.val() };
        self.waits.we.next = self.we.val();
        self.waits.waddr.next = self.waddr.val().cast::<24>();
        self.waits.wdata.next = self.wait.val();

        // Stage 0: the next QP.
        let qp = self.qp.q.val();
        self.qp.d.next = if qp == elab!(bits::<12>(self._qps.0 as u64 - 1)) { 0.into() } else { qp + 1 };
        self.asked.re.next = true;
        self.asked.raddr.next = qp.cast::<24>();
        self.waits.re.next = true;
        self.waits.raddr.next = qp.cast::<24>();
        self.alarms.re.next = true;
        self.alarms.raddr.next = qp.cast::<24>();
        self.valid[0].d.next = true;
        self.who[0].d.next = qp;
        for i in 1..5 {
            self.valid[i].d.next = self.valid[i - 1].q.val();
            self.who[i].d.next = self.who[i - 1].q.val();
        }

        // Stage 1: were the rows written in the cycle of their read?
        self.asked_we.d.next = writes;
        self.asked_at.d.next = written;
        self.wait_we.d.next = self.we.val();
        self.wait_at.d.next = self.waddr.val();
        let mask: Qp = elab!(numbers(self._qps.0));
        let read = self.who[0].q.val();
        let asked = self.asked_we.q.val() && !((self.asked_at.q.val() ^ read) & mask).any();
        let loading = late && !((self.late_at.q.val() ^ read) & mask).any();
        let waited = self.wait_we.q.val() && !((self.wait_at.q.val() ^ read) & mask).any();
        if asked || loading || waited {
            self.valid[1].d.next = false;
        }

        // Stage 2: does it wait, and is it the wait that was seen before?
        let wait = self.waits.rdata.val();
        let alarm = self.alarms.rdata.val();
        let asked = !(self.asked.rdata.val() - wait.psn).get_bit(23);
        self.waiting.d.next = (asked || !wait.alone && (wait.rnr || wait.reading)) && wait.live;
        self.same.d.next = alarm.running && alarm.psn == wait.psn && alarm.turn == wait.turn;
        let slow = cat!(16; bits::<4>(0), alarm.pace, true);
        let least: Bits<16> = elab!(bits::<16>(self._least.0));
        let own = if slow < least { least } else { slow };
        self.base.d.next = if wait.fast < own { own } else { wait.fast };
        let on = alarm.running && alarm.turn == wait.turn;
        self.moved.d.next = on && alarm.psn != wait.psn;
        self.paced.d.next = alarm.paced;
        self.pace.d.next = if wait.begins { 0.into() } else { alarm.pace };
        self.about.d.next = wait;
        if wait.alone {
            self.about.d.next.psn = self.asked.rdata.val();
        }
        self.since.d.next = alarm.since;
        self.elapsed.d.next = time.get_bits::<31>(0) - alarm.since;

        // Stage 3: how long may it take?
        let about = self.about.q.val();
        self.fast4.d.next = self.base.q.val().cast::<31>() << about.fires;
        let four: Bits<32> = 4.into();
        let long = !about.timeout.any() || about.timeout >= 28;
        let limit: Bits<32> = if long { LONGEST.to_bits() } else { four << about.timeout };
        let mut rnr: Bits<32> = 0.into();
        for k in 0..32 {
            let column: Bits<32> = elab!(rnr_bit(k));
            rnr = rnr.replace_bit(k, column.get_bit(about.rnr_code.index()));
        }
        self.limit4.d.next = if about.rnr { rnr } else { limit };
        self.waiting4.d.next = self.waiting.q.val();
        self.same4.d.next = self.same.q.val();
        self.about4.d.next = about;
        self.since4.d.next = self.since.q.val();
        self.elapsed4.d.next = self.elapsed.q.val();
        // A pace counts between two progresses of one wait.
        let (pace, elapsed, moved) = (self.pace.q.val(), self.elapsed.q.val(), self.moved.q.val());
        let taken: Bits<11> = if elapsed.get_bits::<20>(11).any() { 0x7ff.into() } else { elapsed.get_bits::<11>(0) };
        let fades = pace - (pace >> 5) - cat!(11; bits::<10>(0), pace.any());
        self.pace4.d.next = if !(moved && self.paced.q.val()) {
            pace
        } else if taken < pace {
            fades
        } else {
            taken
        };
        self.paced4.d.next = if self.same.q.val() { self.paced.q.val() } else { moved };

        // Stage 4: is it over?
        let about = self.about4.q.val();
        let same = self.same4.q.val();
        let elapsed = self.elapsed4.q.val();
        let turns = self.peak.q.val().cast::<16>() << elab!(self._turn.0 as u64);
        // Three comparisons side by side. The verbs timeout is the longest wait, whoever else waits.
        let last = elapsed.cast::<32>() >= self.limit4.q.val();
        let fast = !about.rnr && elapsed >= self.fast4.q.val() && elapsed >= turns.cast::<31>();
        self.over.d.next = ((last || fast) && same || about.alone) && self.waiting4.q.val() && self.valid[3].q.val();
        self.alone5.d.next = about.alone;
        // Nobody serves who waits for the peer to be ready.
        self.crowds5.d.next = self.waiting4.q.val() && self.valid[3].q.val() && !about.alone && !about.rnr;
        self.waiting5.d.next = self.waiting4.q.val();
        self.same5.d.next = same;
        self.psn5.d.next = about.psn;
        self.turn5.d.next = about.turn;
        self.since5.d.next = self.since4.q.val();
        self.pace5.d.next = self.pace4.q.val();
        self.paced5.d.next = self.paced4.q.val();
        self.verbs5.d.next = last && about.timeout.any();

        // All that wait for answers, once a round.
        let some: Bits<13> = elab!(bits::<13>(2 * self._qps.0.next_power_of_two() as u64 - 1));
        let crowd = (self.crowd.q.val() + cat!(13; bits::<12>(0), self.crowds5.q.val())) & some;
        self.crowd.d.next = crowd;
        // Who began to wait in a crowd waits for all that were before it, though they are done one by one. So what is allowed for follows a
        // crowd that grows at once, and one that shrinks by a QP in four turns: four fifths of the turns that there were at first.
        let peak = self.peak.q.val();
        let round = !self.qp.q.val().any();
        if round {
            self.crowd.d.next = 0.into();
        }
        if round && peak < crowd {
            self.peak.d.next = crowd;
        } else if self.falls.q.val() && peak.any() {
            self.peak.d.next = (peak - 1) & some;
        }

        // Stage 5: tell, if it counts, and remember.
        let (psn, turn, over) = (self.psn5.q.val(), self.turn5.q.val(), self.over.q.val());
        self.fired.next =
            Fired { qpn: self.who[4].q.val(), psn, turn, verbs: self.verbs5.q.val(), alone: self.alone5.q.val() };
        self.fired_valid.next = over;
        let fires = over && self.take.val();
        self.alarms.we.next = self.valid[4].q.val();
        self.alarms.waddr.next = self.who[4].q.val().cast::<24>();
        self.alarms.wdata.next = Alarm {
            running: self.waiting5.q.val(),
            psn,
            turn,
            // After a firing the answer is one to what is sent again.
            paced: self.paced5.q.val() && !fires,
            since: if self.same5.q.val() && !fires { self.since5.q.val() } else { time.get_bits::<31>(0) },
            pace: self.pace5.q.val(),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::kit::{bytes_of, options};
    use verilate::Model;

    /// Loads QP 3 of an unreliable connection twice, with first PSNs 0 and 0xfffffe. In the cycle of the second load, and `more`
    /// behind it, a packet of QP `other` leaves, if there is one. Gives the PSN up to which QP 3 is told to have sent.
    fn told(other: Option<u64>, more: usize) -> Option<u64> {
        let mut m = Model::of(|| Timers::new(32, 128, 5, 2), options()).unwrap();
        m.reset();
        m.set("take", 1);
        let mut heard = None;
        let mut tick = |m: &mut Model| {
            m.eval();
            let fired = m.get_bytes("fired");
            if m.bit("fired_valid") && verilate::bits::get(&fired, 0, 12) == 3 {
                heard = Some(verilate::bits::get(&fired, 12, 24));
            }
            m.tick();
        };
        for (psn, left) in [(0u64, None), (0xff_fffe, other)] {
            let wait = Wait { psn: psn.to_bits(), live: true, alone: true, begins: true, ..Wait::default() };
            m.set("we", 1);
            m.set("waddr", 3);
            m.set_bytes("wait", &bytes_of(wait));
            for _ in 0..=more {
                if let Some(qpn) = left {
                    m.set("left_valid", 1);
                    let left = TxLeft { qpn: qpn.to_bits(), psn: 77u64.to_bits(), expects: false, again: false };
                    m.set_bytes("left", &bytes_of(left));
                }
                tick(&mut m);
                m.set("we", 0);
            }
            m.set("left_valid", 0);
        }
        (0..200).for_each(|_| tick(&mut m));
        heard
    }

    #[test]
    fn nothing_has_left_of_a_queue_that_is_loaded_while_packets_of_another_leave() {
        assert_eq!(told(None, 0), None);
        for more in [0, 1, 5, 70] {
            assert_eq!(told(Some(5), more), None, "{more}");
        }
    }
}
