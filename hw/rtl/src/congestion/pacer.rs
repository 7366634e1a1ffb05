//! Gives each QP its rate: counts what its packets take of the wire, and says when it may go on. For requester and response engine, whose
//! [`PaceGate`](super::PaceGate)s hold a paced QP back from each of its frames on until its kick. Beside the way from the transmit arbiter
//! to the frames unit, on which nothing waits for it.
//!
//! A QP has *tokens*: the bytes that it earned less those that it spent. It may begin a turn while it has some, and pays for it
//! afterwards; so it is ahead of its rate by its burst and a turn at most, and two turns where the frames of one are still to be
//! counted when the next begins. In the long run its rate is exact.
//!
//! ```text
//! cycle     0        1        2        3        4        5        ..       9        10
//! scanner   rows              rows     earned   room?    earned,
//!                                                        grant?   kick
//! charge    segment  rows     length   bytes,   spent    tokens            held?    kick
//!           or row                     rows
//! ```
//! The *scanner* visits QP after QP, one a cycle, each once in `abi::table::pace_period` cycles: it adds the quota to what was
//! earned, up to the burst. The *charge path* takes the first segment of each frame, one a cycle if need be. Each reads what the other
//! one writes as it stood a few cycles before; each sum has one writer, so none is lost.
//!
//! Behind its charge a QP is kicked if it has tokens; else it is *held*, and the scanner kicks it at the first visit at which it has.
//! Held is who differs in two bits: *asks*, which the charge path changes, and *given*, which the scanner makes the same with its kick.
//! Both are in LUTs and change in the cycle in which they are read: no ask is lost, and a kick comes behind the frame for which it is.
//! A QP is held late enough for the visit that ends it to have seen what it had spent by then.
//! So who was stopped by a frame is kicked: at once, or at a visit as soon as it has tokens, which it has in time for it earns some at
//! each (the firmware sees that the burst has room for what it earns at a visit).
//!
//! A QP of quota 0 is neither charged nor kicked. Each row that is written holds its QP, so that it is kicked at the next visit, if it
//! has tokens or needs none: so a new rate counts at once for who waits, and who was let go by a gate that had heard of its rate before
//! this block had. The gates themselves let those go whose rate ends.
//!
//! Cannot deadlock: it waits for nothing. Kicks are always taken; those of the charge path go first, and while some of the scanner wait
//! for that, further QPs stay held until their next visit. A row of the table bus waits for a cycle without a segment.

use crate::{
    msg::{Qp, TxHead, numbers},
    stream::{Fifo, FreshTable, Table, TablePort},
    wire::headers,
};
use abi::{
    table::{GIDS, gid, id, pace, pace_period, qp_address, qp_send},
    wire::{CNP, MIN_FRAME, len, op},
};
use hdl::prelude::*;

/// Ethernet's checksum.
const FCS: usize = 4;
/// Kicks of the scanner that may wait.
const KICKS: usize = 4;

/// What a QP earns, and keeps.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Rate {
    /// Bytes a visit, U16.12.
    quota: Bits<28>,
    /// In KiB.
    burst: Bits<8>,
}

/// Stages of the scanner, beside stage 0.
const SCAN: usize = 5;
/// And of the charge path: a frame is spent in stage 4, and a visit that reads before that has ended when its QP is held.
const CHARGE: usize = 4 + SCAN;

/// See the module.
#[derive(LogicBlock, Default)]
pub struct Pacer {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// The first segment of a frame goes to the frames unit.
    pub head: Signal<In, TxHead>,
    pub goes: Signal<In, Bit>,
    /// A QP that may go on.
    pub kick: Signal<Out, Qp>,
    pub kicks: Signal<Out, Bit>,
    /// PACE rows; of those of QP_SEND whether a rate ends, of QP_ADDRESS and GID how long headers are.
    pub table: TablePort,

    rates: FreshTable<Rate>,
    /// There is a quota; its GID.
    paced: Ram<Bit, 12>,
    gids: Ram<Bits<4>, 12>,
    /// By GID: IPv6, and a tag.
    long: [Reg<Bits<2>>; GIDS],
    /// U20.12 and U20: for the scanner, for the charge path.
    earned: Table<Bits<32>>,
    earned_too: FreshTable<Bits<32>>,
    spent: FreshTable<Bits<20>>,
    spent_too: FreshTable<Bits<20>>,
    /// For the scanner, for the charge path.
    asks: [Ram<Bit, 12>; 2],
    given: [Ram<Bit, 12>; 2],
    granted: Fifo<Qp>,

    /// All rows are clear since reset.
    swept: Reg<Bit>,
    at: Reg<Bits<12>>,
    scans: [Reg<Bit>; SCAN],
    scanned: [DFF<Qp>; SCAN],
    sum: DFF<Bits<32>>,
    limit: DFF<Bits<20>>,
    paid: DFF<Bits<20>>,
    free: DFF<Bit>,
    over: DFF<Bits<20>>,
    rest: DFF<Bits<20>>,
    sum4: DFF<Bits<32>>,
    limit4: DFF<Bits<20>>,
    free4: DFF<Bit>,
    earns: DFF<Bits<32>>,
    may: DFF<Bit>,

    valid: [Reg<Bit>; CHARGE],
    who: [DFF<Qp>; CHARGE],
    /// It is a row; one without a quota.
    row: [DFF<Bit>; CHARGE],
    forgets: [DFF<Bit>; 3],
    /// Of a frame.
    opcode: DFF<Bits<8>>,
    payload: DFF<Bits<14>>,
    raw: [DFF<Bit>; 2],
    gid: DFF<Bits<4>>,
    extra: DFF<Bits<7>>,
    datagram: DFF<Bit>,
    ext: DFF<Bits<7>>,
    body: DFF<Bits<14>>,
    length: DFF<Bits<15>>,
    tiny: DFF<Bit>,
    /// It is charged.
    counts: [DFF<Bit>; 3],
    bytes: DFF<Bits<15>>,
    /// What its QP had spent before; or the frame one or two before it, of the same QP, says it.
    before: DFF<Bits<20>>,
    behind: [DFF<Bit>; 2],
    earned4: DFF<Bits<20>>,
    earned5: DFF<Bits<20>>,
    /// After the last frame and the one before.
    sums: [DFF<Bits<20>>; 2],
    tokens: DFF<Bits<20>>,
    kicking: [DFF<Bit>; 3],
    holding: [DFF<Bit>; 3],
    kick_now: Reg<Bit>,
    kick_at: DFF<Qp>,
    _qps: Hidden<usize>,
    _paces: Hidden<bool>,
}

impl Pacer {
    /// Of `qps` QPs, or of none, if the core has none: it then takes rows and kicks nobody.
    pub fn new(qps: usize, paces: bool) -> Self {
        let bits = || Ram::default().rows(qps).style("distributed").at_once();
        Pacer {
            rates: FreshTable::new(qps, "block"),
            paced: bits(),
            gids: Ram::default().rows(qps).style("distributed").at_once(),
            earned: Table::new(qps, "block"),
            earned_too: FreshTable::new(qps, "block"),
            spent: FreshTable::new(qps, "block"),
            spent_too: FreshTable::new(qps, "block"),
            asks: [bits(), bits()],
            given: [bits(), bits()],
            granted: Fifo::new(KICKS),
            _qps: Hidden(qps),
            _paces: Hidden(paces),
            ..Default::default()
        }
    }
}

/// A difference of two sums of bytes is more than 0.
#[hdl_fn]
fn is_positive(tokens: Bits<20>) -> Bit {
    tokens.any() && !tokens.get_bit(19)
}

impl Logic for Pacer {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, swept, at, scans, valid, kick_now, long);
        dff_setup!(self, clock, scanned, sum, limit, paid, free, over, rest, sum4, limit4, free4, earns, may);
        dff_setup!(
            self, clock, who, row, forgets, opcode, payload, raw, gid, extra, datagram, ext, body, length, tiny,
            counts, bytes
        );
        dff_setup!(self, clock, before, behind, earned4, earned5, sums, tokens, kicking, holding, kick_at);
        clock!(self, clock, rates, paced, gids, earned, earned_too, spent, spent_too);
        clock!(self, clock, asks[0], asks[1], given[0], given[1]);
        clock_reset!(self, clock, rst, granted);
        let paces: Bit = if self._paces.0 { true } else { false };
        let mask: Qp = elab!(numbers(self._qps.0));
        let swept = self.swept.q.val() && paces;
        let sweeps = !self.swept.q.val() && paces;

        // ---- Stage 0 of both: the next QP; a frame, or a row.
        let at = self.at.q.val();
        let wraps = at == elab!(bits::<12>(pace_period(self._qps.0) as u64 - 1));
        self.at.d.next = if wraps { 0.into() } else { at + 1 };
        let exists: Bit = if self._qps.0 < 256 { at < elab!(bits::<12>(self._qps.0 as u64)) } else { true };
        if wraps {
            self.swept.d.next = true;
        }
        let head = self.head.val();
        let goes = self.goes.val();
        let req = self.table.req.val();
        let takes = self.table.valid.val() && !goes && swept;
        self.table.ready.next = if self._paces.0 { !goes && swept } else { true };
        self.table.rvalid.next = false;
        self.table.rdata.next = 0.into();
        let loads = req.table == id::QP_SEND && req.row.get_bit(elab!(qp_send::LOAD.lsb));
        let quota: Bits<28> = if loads { 0.into() } else { req.row.get_bits::<28>(elab!(pace::QUOTA.lsb)) };
        let about = req.index.get_bits::<12>(0);
        let sets = takes && (req.table == id::PACE || loads);
        let free = head.opcode == elab!(bits::<8>(op::ACK as u64)) || head.opcode == elab!(bits::<8>(CNP as u64));
        self.valid[0].d.next = goes && !free && swept || sets;
        self.who[0].d.next = (if goes { head.qpn } else { about }) & mask;
        self.row[0].d.next = !goes;
        self.forgets[0].d.next = !goes && !quota.any();
        self.opcode.d.next = head.opcode;
        self.payload.d.next = head.payload;
        self.raw[0].d.next = head.raw;
        self.rates.we.next = sets || sweeps;
        self.rates.waddr.next = if sweeps { at.cast::<24>() } else { about.cast::<24>() };
        self.rates.wdata.next = Rate {
            quota: if sweeps { 0.into() } else { quota },
            burst: if loads { 0.into() } else { req.row.get_bits::<8>(elab!(pace::BURST.lsb)) },
        };
        self.paced.we.next = sets || sweeps;
        self.paced.waddr.next = if sweeps { at } else { about };
        self.paced.wdata.next = quota.any() && !sweeps;
        self.gids.we.next = takes && req.table == id::QP_ADDRESS || sweeps;
        self.gids.waddr.next = if sweeps { at } else { about };
        self.gids.wdata.next = if sweeps { 0.into() } else { req.row.get_bits::<4>(elab!(qp_address::GID.lsb)) };
        if takes && req.table == id::GID {
            self.long[about.get_bits::<4>(0).index()].d.next =
                cat!(2; req.row.get_bit(elab!(gid::TAGGED.lsb)), req.row.get_bit(elab!(gid::IS_IP6.lsb)));
        }

        // ---- Scanner. Stage 2: what it has with its quota, and may have at most.
        self.rates.re.next = true;
        self.rates.raddr.next = at.cast::<24>();
        self.earned.re.next = !sweeps;
        self.earned.raddr.next = at.cast::<24>();
        self.spent.re.next = true;
        self.spent.raddr.next = at.cast::<24>();
        self.scans[0].d.next = swept && exists;
        self.scanned[0].d.next = at;
        for i in 1..SCAN {
            self.scans[i].d.next = self.scans[i - 1].q.val();
            self.scanned[i].d.next = self.scanned[i - 1].q.val();
        }
        let rate = self.rates.rdata.val();
        let paid = self.spent.rdata.val();
        self.sum.d.next = self.earned.rdata.val() + rate.quota.cast::<32>();
        self.limit.d.next = paid + cat!(20; bits::<2>(0), rate.burst, bits::<10>(0));
        self.paid.d.next = paid;
        self.free.d.next = !rate.quota.any();
        // Stage 3: how far it is from that.
        let sum = self.sum.q.val();
        self.over.d.next = sum.get_bits::<20>(12) - self.limit.q.val();
        self.rest.d.next = sum.get_bits::<20>(12) - self.paid.q.val();
        self.sum4.d.next = sum;
        self.limit4.d.next = self.limit.q.val();
        self.free4.d.next = self.free.q.val();
        // Stage 4: what it has earned, and whether it has tokens.
        let over = !self.over.q.val().get_bit(19);
        self.earns.d.next = if over { cat!(32; self.limit4.q.val(), bits::<12>(0)) } else { self.sum4.q.val() };
        self.may.d.next = over || self.free4.q.val() || is_positive(self.rest.q.val());
        // Stage 5.
        let visited = self.scanned[4].q.val();
        let visits = self.scans[4].q.val();
        let asked = self.asks[0].rdata.val();
        let held = asked != self.given[0].rdata.val();
        let grants = visits && self.may.q.val() && held && self.granted.s.ready.val();
        self.earned.we.next = visits || sweeps;
        self.earned.waddr.next = if sweeps { at.cast::<24>() } else { visited.cast::<24>() };
        self.earned.wdata.next = if sweeps { 0.into() } else { self.earns.q.val() };
        self.earned_too.we.next = visits || sweeps;
        self.earned_too.waddr.next = if sweeps { at.cast::<24>() } else { visited.cast::<24>() };
        self.earned_too.wdata.next = if sweeps { 0.into() } else { self.earns.q.val() };
        self.granted.s.valid.next = grants;
        self.granted.s.data.next = visited;

        // ---- Charge path. Stage 1: its headers and payload.
        for i in 1..CHARGE {
            self.valid[i].d.next = self.valid[i - 1].q.val();
            self.who[i].d.next = self.who[i - 1].q.val();
            self.row[i].d.next = self.row[i - 1].q.val();
        }
        self.spent_too.re.next = true;
        self.spent_too.raddr.next = self.who[0].q.val().cast::<24>();
        self.earned_too.re.next = true;
        self.earned_too.raddr.next = self.who[0].q.val().cast::<24>();
        let payload = self.payload.q.val();
        let least: Bits<14> = elab!(bits::<14>(MIN_FRAME as u64));
        self.ext.d.next = headers::ext_len(self.opcode.q.val());
        self.gids.re.next = true;
        self.gids.raddr.next = self.who[0].q.val();
        self.gid.d.next = self.gids.rdata.val();
        self.datagram.d.next = headers::is_datagram(self.opcode.q.val()) || self.raw[0].q.val();
        self.body.d.next = if !self.raw[0].q.val() {
            payload + headers::pad(payload).cast::<14>()
        } else if payload < least {
            least
        } else {
            payload
        };
        self.raw[1].d.next = self.raw[0].q.val();
        self.forgets[1].d.next = self.forgets[0].q.val();
        // Stage 2: its bytes on the wire, over IPv4 without tag and beyond that. One of the first without payload is padded.
        let long = self.long[self.gid.q.val().index()].q.val();
        self.extra.d.next =
            if self.datagram.q.val() { 0.into() } else { headers::longer(long.get_bit(0), long.get_bit(1)) };
        let (ext, body, raw) = (self.ext.q.val(), self.body.q.val(), self.raw[1].q.val());
        let around = headers::shortest(ext).cast::<15>() + elab!((len::ICRC + FCS) as u64);
        self.length.d.next = body.cast::<15>() + if raw { elab!(bits::<15>(FCS as u64)) } else { around };
        self.tiny.d.next = !raw && !body.any() && !ext.any();
        self.forgets[2].d.next = self.forgets[1].q.val();
        // Stage 3: what it costs its QP, and what that had.
        let charged = self.who[2].q.val();
        self.paced.re.next = true;
        self.paced.raddr.next = charged;
        let extra = self.extra.q.val();
        let counts = self.paced.rdata.val() && !self.row[2].q.val();
        let length = self.length.q.val();
        self.bytes.d.next = if !counts {
            0.into()
        } else if self.tiny.q.val() && !extra.any() {
            elab!(bits::<15>((MIN_FRAME + FCS) as u64))
        } else {
            length + extra.cast::<15>()
        };
        self.counts[0].d.next = counts;
        let earned = self.earned_too.rdata.val().get_bits::<20>(12);
        let forgets = self.forgets[2].q.val();
        self.before.d.next = if forgets { earned } else { self.spent_too.rdata.val() };
        self.behind[0].d.next = self.valid[3].q.val() && self.who[3].q.val() == charged && !forgets;
        self.behind[1].d.next = self.valid[4].q.val() && self.who[4].q.val() == charged && !forgets;
        self.earned4.d.next = earned;
        // Stage 4: what it has spent. A frame of the same QP one or two before it has not been read yet.
        let before = if self.behind[0].q.val() {
            self.sums[0].q.val()
        } else if self.behind[1].q.val() {
            self.sums[1].q.val()
        } else {
            self.before.q.val()
        };
        let spent = before + self.bytes.q.val().cast::<20>();
        let spends = self.valid[3].q.val();
        let spender = self.who[3].q.val();
        self.sums[0].d.next = spent;
        self.sums[1].d.next = self.sums[0].q.val();
        self.spent.we.next = spends || sweeps;
        self.spent.waddr.next = if sweeps { at.cast::<24>() } else { spender.cast::<24>() };
        self.spent.wdata.next = if sweeps { 0.into() } else { spent };
        self.spent_too.we.next = spends || sweeps;
        self.spent_too.waddr.next = if sweeps { at.cast::<24>() } else { spender.cast::<24>() };
        self.spent_too.wdata.next = if sweeps { 0.into() } else { spent };
        self.earned5.d.next = self.earned4.q.val();
        self.counts[1].d.next = self.counts[0].q.val();
        // Stage 5: its tokens.
        self.tokens.d.next = self.earned5.q.val() - self.sums[0].q.val();
        self.counts[2].d.next = self.counts[1].q.val();
        // Stage 6: it goes on, or will be held.
        let counted = self.valid[5].q.val() && self.counts[2].q.val();
        let has = is_positive(self.tokens.q.val());
        self.kicking[0].d.next = counted && has;
        self.holding[0].d.next = self.valid[5].q.val() && self.row[5].q.val() || counted && !has;
        for i in 1..3 {
            self.kicking[i].d.next = self.kicking[i - 1].q.val();
            self.holding[i].d.next = self.holding[i - 1].q.val();
        }
        // Stage 9.
        let judged = self.who[8].q.val();
        let holds = self.valid[8].q.val() && self.holding[2].q.val();
        let asks = self.asks[1].rdata.val();
        let given = self.given[1].rdata.val();
        self.kick_now.d.next = self.valid[8].q.val() && self.kicking[2].q.val();
        self.kick_at.d.next = judged;
        let askers = [visited, judged];
        for i in 0..2 {
            self.asks[i].we.next = holds && asks == given || sweeps;
            self.asks[i].waddr.next = if sweeps { at } else { judged };
            self.asks[i].wdata.next = !given && !sweeps;
            self.asks[i].re.next = true;
            self.asks[i].raddr.next = askers[i];
            self.given[i].we.next = grants || sweeps;
            self.given[i].waddr.next = if sweeps { at } else { visited };
            self.given[i].wdata.next = asked && !sweeps;
            self.given[i].re.next = true;
            self.given[i].raddr.next = askers[i];
        }

        // ---- Kicks.
        let now = self.kick_now.q.val();
        self.granted.m.ready.next = !now;
        self.kicks.next = (now || self.granted.m.valid.val()) && paces;
        self.kick.next = if now { self.kick_at.q.val() } else { self.granted.m.data.val() };
    }
}
