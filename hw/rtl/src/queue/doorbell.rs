//! Takes the stores to the doorbell pages (BAR2) and hands each to its queue, if its page owns the object.
//!
//! ```text
//! cycle     0      1      2      3
//! bar       A      B
//! owner RAM        (A)    A == page?
//! sq, direct, rq, ..             A      (pulse)
//! ```
//! The words of a direct WQE go on as they come; the one that names its QP says whether the page owns that, the last one that all
//! came in order.
//!
//! One access a cycle, accepted always: the outputs are pulses that their takers may not refuse, and the event about a
//! refused doorbell is dropped when there is no room for it. A page that rings foreign objects can raise at most one event in
//! [`EVENT_GAP`] cycles, so it cannot drown the asynchronous event queue.

use crate::{
    msg::{BarAccess, DirectWord, Event, Ring},
    stream::{Source, Table, TablePort},
};
use abi::{
    queue::{cq_db, doorbell, eq_db, event, ring_db, send_wqe},
    status::{cause, counter},
    table,
};
use hdl::prelude::*;

/// Least cycles between two events about refused doorbells.
pub const EVENT_GAP: u64 = 1 << 14;

/// What an access rings.
#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
enum Kind {
    None,
    /// No doorbell: counted.
    Odd,
    Sq,
    Rq,
    Cq,
    Eq,
    Direct,
}

/// An access on its way through the owner check.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Access {
    kind: Kind,
    page: Bits<12>,
    number: Bits<24>,
    /// There may be such an object: told in the second cycle. The rows were swept clear by then.
    exists: Bit,
    swept: Bit,
    /// Then the doorbell of a send queue, or the word that names the QP of a direct WQE.
    sends: Bit,
    names: Bit,
    ring: Ring,
    /// A word of a direct WQE, in order.
    is_word: Bit,
    word: DirectWord,
}

/// Owner of an object.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Owner {
    exists: Bit,
    page: Bits<12>,
}

/// The doorbell decoder.
#[derive(LogicBlock, Default)]
pub struct Doorbell {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// Access to BAR2; reads are ignored.
    pub bar: Signal<In, BarAccess>,
    /// There is one; it is taken in this cycle.
    pub bar_valid: Signal<In, Bit>,
    /// QP_SEND, QP_RECV, CQ and EQ rows. Reads are taken and not answered: the rows' engines answer.
    pub table: TablePort,
    /// Producer of a send queue.
    pub sq: Signal<Out, Ring>,
    pub sq_valid: Signal<Out, Bit>,
    /// Producer of a receive queue.
    pub rq: Signal<Out, Ring>,
    pub rq_valid: Signal<Out, Bit>,
    /// Consumer of a CQ.
    pub cq: Signal<Out, Ring>,
    pub cq_valid: Signal<Out, Bit>,
    /// Consumer of an EQ.
    pub eq: Signal<Out, Ring>,
    pub eq_valid: Signal<Out, Bit>,
    /// A word of a send WQE, told ahead of its doorbell.
    pub direct: Signal<Out, DirectWord>,
    pub direct_valid: Signal<Out, Bit>,
    /// A doorbell was refused.
    pub event: Source<Event>,
    pub count: Signal<Out, Bits<64>>,
    sq_owner: Table<Owner>,
    rq_owner: Table<Owner>,
    cq_owner: Table<Owner>,
    eq_owner: Table<Owner>,
    first: Reg<Access>,
    second: Reg<Access>,
    third: Reg<Access>,
    refused: Reg<Bit>,
    /// By its owner: worth an event, unless there was one a short time ago.
    denied: Reg<Bit>,
    /// Rows swept clear after reset; bit 12: all.
    swept: Reg<Bits<13>>,
    /// Direct WQE: the page and the successor of the last word, whether the word behind it is that, whether all came in order and the
    /// last one is still to come, whether there are two blocks.
    page: DFF<Bits<12>>,
    next_word: DFF<Bits<4>>,
    follows: DFF<Bit>,
    in_order: Reg<Bit>,
    two: DFF<Bit>,
    event_valid: Reg<Bit>,
    event_data: DFF<Event>,
    quiet: Reg<Bits<15>>,
    loud: Reg<Bit>,
    _qps: Hidden<usize>,
    _cqs: Hidden<usize>,
    _eqs: Hidden<usize>,
}

impl Doorbell {
    /// For numbers of QPs, CQs and EQs, up to 4,096 each.
    pub fn new(qps: usize, cqs: usize, eqs: usize) -> Self {
        assert!([qps, cqs, eqs].iter().all(|n| (1..=4096).contains(n)), "too many objects");
        Doorbell {
            sq_owner: Table::new(qps, ""),
            rq_owner: Table::new(qps, ""),
            cq_owner: Table::new(cqs, ""),
            eq_owner: Table::new(eqs, ""),
            _qps: Hidden(qps),
            _cqs: Hidden(cqs),
            _eqs: Hidden(eqs),
            ..Default::default()
        }
    }
}

/// The page of the access owns the object.
#[hdl_fn]
fn owns(owner: Owner, access: Access) -> Bit {
    owner.exists && owner.page == access.page
}

impl Logic for Doorbell {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, first, second, third, refused, denied, swept, in_order);
        regs!(self, clock, rst, event_valid, quiet, loud);
        dff_setup!(self, clock, two, page, next_word, follows, event_data);
        clock!(self, clock, sq_owner, rq_owner, cq_owner, eq_owner);
        let qps: Bits<25> = elab!(bits::<25>(self._qps.0 as u64));
        let cqs: Bits<25> = elab!(bits::<25>(self._cqs.0 as u64));
        let eqs: Bits<25> = elab!(bits::<25>(self._eqs.0 as u64));

        // Cycle 0: which doorbell, whose page.
        let bar = self.bar.val();
        let data = bar.data;
        let at = bar.offset.get_bits::<12>(0);
        let page = bar.offset.get_bits::<12>(12);
        let store = self.bar_valid.val() && bar.write;
        let number: Bits<24> = data.get_bits::<24>(elab!(ring_db::NUMBER.lsb));
        let mut kind = Kind::None;
        if store {
            kind = match at {
                doorbell::SQ => Kind::Sq,
                doorbell::RQ => Kind::Rq,
                doorbell::CQ => Kind::Cq,
                doorbell::EQ => Kind::Eq,
                _ => Kind::Odd,
            };
            if !bar.wide {
                kind = Kind::Odd;
            }
        }
        let is_direct = store
            && bar.wide
            && at.get_bits::<5>(7) == elab!(doorbell::DIRECT_WQE as u64 / 128)
            && !at.get_bits::<3>(0).any();
        let word = at.get_bits::<4>(3);
        self.follows.d.next = word == self.next_word.q.val() && page == self.page.q.val();
        if is_direct {
            kind = if word == elab!(send_wqe::QPN.lsb as u64 / 64) { Kind::Direct } else { Kind::None };
            self.next_word.d.next = word + 1;
            self.page.d.next = page;
            if !word.any() {
                self.two.d.next = data.get_bits::<3>(elab!(send_wqe::BLOCKS.lsb)) != 1;
            }
        }
        let target = if is_direct { data.get_bits::<24>(elab!(send_wqe::QPN.lsb % 64)) } else { number };
        let wide_index = data.get_bits::<24>(elab!(cq_db::CONSUMER.lsb));
        let narrow_index = data.get_bits::<16>(elab!(ring_db::PRODUCER.lsb)).cast::<24>();
        self.first.d.next = Access {
            kind,
            page,
            number: target,
            exists: false,
            swept: false,
            sends: false,
            names: false,
            ring: Ring {
                number: target.get_bits::<12>(0),
                index: if kind == Kind::Sq || kind == Kind::Rq { narrow_index } else { wide_index },
                arm: data.get_bit(elab!(cq_db::ARM.lsb)) && (kind == Kind::Cq || kind == Kind::Eq),
                arm_solicited: data.get_bit(elab!(cq_db::ARM_SOLICITED.lsb)) && kind == Kind::Cq,
                sequence: if kind == Kind::Cq { data.get_bits::<2>(elab!(cq_db::SEQUENCE.lsb)) } else { 0.into() },
            },
            is_word: is_direct,
            word: DirectWord { number: word, owned: false, complete: false, data },
        };
        // All are read, for it takes time to see which one is meant.
        self.sq_owner.re.next = self.bar_valid.val();
        self.rq_owner.re.next = self.bar_valid.val();
        self.cq_owner.re.next = self.bar_valid.val();
        self.eq_owner.re.next = self.bar_valid.val();
        self.sq_owner.raddr.next = target;
        self.rq_owner.raddr.next = target;
        self.cq_owner.raddr.next = target;
        self.eq_owner.raddr.next = target;

        // Cycle 1: is there such an object, and did the words of a direct WQE come in order?
        let first = self.first.q.val();
        let swept = self.swept.q.val().get_bit(12);
        let objects = match first.kind {
            Kind::Cq => cqs,
            Kind::Eq => eqs,
            _ => qps,
        };
        self.second.d.next = first;
        self.second.d.next.swept = swept;
        let exists = swept && first.number.cast::<25>() < objects;
        self.second.d.next.exists = exists;
        self.second.d.next.sends = first.kind == Kind::Sq && exists;
        let number = first.word.number;
        let in_order = first.is_word && (!number.any() || self.follows.q.val() && self.in_order.q.val());
        let ends = in_order && (number == 15 || number == 7 && !self.two.q.val());
        if first.is_word {
            self.in_order.d.next = in_order && !ends;
        }
        self.second.d.next.is_word = in_order;
        self.second.d.next.word.complete = ends;
        self.second.d.next.names = first.kind == Kind::Direct && exists && in_order;
        if first.kind == Kind::Direct && !in_order {
            self.second.d.next.kind = Kind::None;
        }

        // Cycle 2: does the page own the object?
        let access = self.second.q.val();
        let owns_sq = owns(self.sq_owner.rdata.val(), access);
        let is_sq = (access.sends || access.names) && owns_sq;
        let is_rq = access.kind == Kind::Rq && owns(self.rq_owner.rdata.val(), access);
        let is_cq = access.kind == Kind::Cq && owns(self.cq_owner.rdata.val(), access);
        let is_eq = access.kind == Kind::Eq && owns(self.eq_owner.rdata.val(), access);
        let allowed = is_sq || access.exists && (is_rq || is_cq || is_eq);
        let rings = access.kind != Kind::None && access.kind != Kind::Odd;
        self.third.d.next = access;
        if !allowed {
            self.third.d.next.kind = Kind::None;
        }
        self.refused.d.next = access.kind == Kind::Odd || rings && !allowed;
        self.denied.d.next = rings && !allowed && access.swept;
        let quiet = self.quiet.q.val();
        self.loud.d.next = quiet.any();
        if quiet.any() {
            self.quiet.d.next = quiet - 1;
        }
        if self.event.ready.val() {
            self.event_valid.d.next = false;
        }
        if self.denied.q.val() && !self.event_valid.q.val() && !self.loud.q.val() {
            self.event_valid.d.next = true;
            self.event_data.d.next = Event {
                eqn: 0.into(),
                kind: bits::<8>(event::DOORBELL as u64),
                number: self.third.q.val().number,
                value: bits::<32>(cause::DOORBELL_OWNER as u64),
            };
            self.quiet.d.next = bits::<15>(EVENT_GAP);
            self.loud.d.next = true;
        }
        self.event.valid.next = self.event_valid.q.val();
        self.event.data.next = self.event_data.q.val();

        // Cycle 3.
        let out = self.third.q.val();
        self.sq.next = out.ring;
        self.sq_valid.next = out.kind == Kind::Sq;
        self.direct.next = out.word;
        self.direct.next.owned = out.kind == Kind::Direct;
        self.direct_valid.next = out.is_word;
        self.rq.next = out.ring;
        self.cq.next = out.ring;
        self.eq.next = out.ring;
        self.rq_valid.next = out.kind == Kind::Rq;
        self.cq_valid.next = out.kind == Kind::Cq;
        self.eq_valid.next = out.kind == Kind::Eq;
        let none: Bits<64> = 0.into();
        self.count.next = none.replace_bit(elab!(counter::DOORBELL_REFUSED), self.refused.q.val());

        // Rows: not in the cycle in which a doorbell reads the same one.
        let req = self.table.req.val();
        let row = req.row;
        let ready = swept;
        let taken = self.table.valid.val() && ready && !(self.bar_valid.val() && target == req.index);
        let write = taken && req.write;
        let to_sq = write && req.table == table::id::QP_SEND;
        let to_rq = write && req.table == table::id::QP_RECV;
        let to_cq = write && req.table == table::id::CQ;
        let to_eq = write && req.table == table::id::EQ;
        let qp_page = row.get_bits::<12>(elab!(table::qp_send::OWNER.lsb));
        let cq_page = row.get_bits::<12>(elab!(table::cq::OWNER.lsb));
        let of_qp = Owner { exists: ready && qp_page != table::NOBODY, page: qp_page };
        let of_cq = Owner { exists: ready && row.get_bit(elab!(table::cq::VALID.lsb)), page: cq_page };
        let line = if ready { req.index } else { self.swept.q.val().cast::<24>() };
        self.sq_owner.we.next = to_sq || !ready;
        self.rq_owner.we.next = to_rq || !ready;
        self.cq_owner.we.next = to_cq || !ready;
        self.eq_owner.we.next = to_eq || !ready;
        self.sq_owner.waddr.next = line;
        self.rq_owner.waddr.next = line;
        self.cq_owner.waddr.next = line;
        self.eq_owner.waddr.next = line;
        self.sq_owner.wdata.next = of_qp;
        self.rq_owner.wdata.next = of_qp;
        self.cq_owner.wdata.next = of_cq;
        self.eq_owner.wdata.next = of_cq;
        if !ready {
            self.swept.d.next = self.swept.q.val() + 1;
        }
        self.table.ready.next = taken;
        self.table.rvalid.next = false;
        self.table.rdata.next = 0.into();
    }
}

const _: () = {
    use table::{cq, eq, qp_recv, qp_send};
    assert!(
        qp_send::OWNER.lsb == qp_recv::OWNER.lsb && cq::OWNER.lsb == eq::OWNER.lsb && cq::VALID.lsb == eq::VALID.lsb
    );
    assert!(cq_db::NUMBER.lsb == ring_db::NUMBER.lsb && eq_db::NUMBER.lsb == ring_db::NUMBER.lsb);
    assert!(cq_db::CONSUMER.lsb == eq_db::CONSUMER.lsb && cq_db::ARM.lsb == eq_db::ARM.lsb);
};

#[cfg(test)]
mod tests {
    use super::*;
    use rand::RngExt;

    use std::collections::{HashMap, VecDeque};
    use verilate::{Model, Options, bits};

    const TABLES: [u8; 4] = [table::id::QP_SEND, table::id::QP_RECV, table::id::CQ, table::id::EQ];
    const SIZES: [u64; 4] = [64, 64, 16, 8];
    const OUT: [&str; 4] = ["sq", "rq", "cq", "eq"];

    fn model() -> Model {
        let mut m = Model::of(|| Doorbell::new(64, 16, 8), Options::default()).unwrap();
        m.reset();
        m.set("bar_valid", 0);
        m.set("table.valid", 0);
        m.set("event.ready", 1);
        (0..4200).for_each(|_| m.tick());
        m
    }

    /// A row of table `kind` for owner `page`.
    fn row(m: &mut Model, kind: usize, index: u64, page: u64) {
        let mut row = [0; 64];
        if kind < 2 {
            table::qp_send::OWNER.set(&mut row, page);
        } else {
            table::cq::OWNER.set(&mut row, page);
            table::cq::VALID.set(&mut row, (page != table::NOBODY) as u64);
        }
        m.set("table.req.table", TABLES[kind] as u64);
        m.set("table.req.index", index);
        m.set("table.req.write", 1);
        m.set_bytes("table.req.row", &row);
        m.set("table.valid", 1);
    }

    fn expected(kind: usize, data: u64) -> Vec<u8> {
        bits::of(Ring {
            number: (data & 0xfff).to_bits(),
            index: if kind < 2 { (data >> 32 & 0xffff).to_bits() } else { (data >> 32 & 0xff_ffff).to_bits() },
            arm: kind >= 2 && data >> 24 & 1 == 1,
            arm_solicited: kind == 2 && data >> 25 & 1 == 1,
            sequence: if kind == 2 { (data >> 26 & 3).to_bits() } else { 0.into() },
        })
    }

    /// Random stores, one in nearly every cycle, while the owners change.
    #[test]
    fn only_owners_ring() {
        let mut rng = verilate::rng(0);
        let mut m = model();
        let mut owner: HashMap<(usize, u64), u64> = HashMap::new();
        // What comes out three cycles later: ring or a refusal; what send queues and direct WQEs get.
        type Late = (Option<(usize, Vec<u8>)>, bool);
        let mut late: VecDeque<Late> = vec![Default::default(); 3].into();
        let mut sooner: VecDeque<(Option<Vec<u8>>, Option<DirectWord>)> = vec![Default::default(); 3].into();
        // The word that comes next, its page, the words so far.
        let mut wqe: (u64, u64, Vec<u8>) = (0, 0, vec![0; 128]);
        let (mut rings, mut directs, mut refusals) = (0, [0, 0], 0);
        for _ in 0..verilate::scale(40_000) {
            if m.get("table.valid") == 0 && rng.random_bool(0.2) {
                let kind = rng.random_range(0..4);
                let page = [1, 2, 3, table::NOBODY][rng.random_range(0..4)];
                let index = rng.random_range(0..SIZES[kind]);
                row(&mut m, kind, index, page);
            }
            let (valid, write, wide) = (rng.random_bool(0.9), rng.random_bool(0.95), rng.random_bool(0.95));
            let mut page = rng.random_range(1..4);
            let mut number = rng.random_range(0..20);
            if rng.random_bool(0.05) {
                number = [64, 4096, 1 << 20, 0xff_ffff][rng.random_range(0..4)];
            }
            let mut data = number | rng.random::<u64>() << 24;
            // Mostly the next word of a direct WQE, else a doorbell, else any other offset.
            let at = match rng.random_range(0..10) {
                0..7 => {
                    if rng.random_bool(0.97) {
                        page = wqe.1.max(1);
                    }
                    0x80 + 8 * if rng.random_bool(0.97) { wqe.0 } else { rng.random_range(0..16) }
                }
                7..9 => 8 * rng.random_range(0..4),
                _ => 4 * rng.random_range(0..1024),
            };
            let at = if wide { at & !7 } else { at };
            if at == 0x80 {
                data = data & !(7 << 16) | rng.random_range(1..=2) << 16;
            }
            if at == 0x98 {
                data = data & !(0xff_ffff << 32) | (number & 63) << 32;
            }
            m.set("bar_valid", valid as u64);
            m.set("bar.offset", page << 12 | at);
            m.set("bar.write", write as u64);
            m.set("bar.wide", wide as u64);
            m.set("bar.data", data);
            m.eval();

            let mut now: Late = Default::default();
            let mut soon = (None, None);
            let owns = |kind: usize, number: u64| {
                number < SIZES[kind] && owner.get(&(kind, number)).is_some_and(|o| *o == page)
            };
            if valid && write {
                match at {
                    0 | 8 | 0x10 | 0x18 if wide => {
                        let kind = at as usize / 8;
                        match owns(kind, data & 0xff_ffff) {
                            true if kind == 0 => soon.0 = Some(expected(kind, data)),
                            true => now.0 = Some((kind, expected(kind, data))),
                            false => now.1 = true,
                        }
                    }
                    0x80..0x100 if wide => {
                        let word = (at - 0x80) / 8;
                        wqe.2[word as usize * 8..][..8].copy_from_slice(&data.to_le_bytes());
                        let in_order = word == 0 || word == wqe.0 && page == wqe.1;
                        let one = abi::queue::send_wqe::BLOCKS.get(&wqe.2) == 1;
                        let ends = in_order && word == if one { 7 } else { 15 };
                        wqe.0 = if in_order && !ends { word + 1 } else { 0 };
                        wqe.1 = page;
                        let names = in_order && word == 3;
                        let owned = names && owns(0, abi::queue::send_wqe::QPN.get(&wqe.2));
                        now.1 = names && !owned;
                        if in_order {
                            let (number, data) = (word.to_bits(), data.to_bits());
                            soon.1 = Some(DirectWord { number, owned, complete: ends, data });
                            directs[!one as usize] += ends as u64;
                        }
                    }
                    _ => now.1 = true,
                }
            }
            sooner.push_back(soon);
            let (sq, word) = sooner.pop_front().unwrap();
            assert_eq!(m.bit("sq_valid"), sq.is_some());
            assert_eq!(m.bit("direct_valid"), word.is_some());
            if let Some(want) = &sq {
                assert_eq!(m.bytes("sq"), *want);
            }
            if let Some(want) = word {
                assert_eq!(m.bytes("direct"), bits::of(want));
            }
            late.push_back(now);
            let (ring, refused) = late.pop_front().unwrap();
            for (kind, name) in OUT.iter().enumerate().skip(1) {
                let want = ring.as_ref().filter(|r| r.0 == kind);
                assert_eq!(m.bit(&*format!("{name}_valid")), want.is_some());
                if let Some(want) = want {
                    assert_eq!(m.bytes(*name), want.1);
                }
            }
            assert_eq!(m.get("count"), (refused as u64) << counter::DOORBELL_REFUSED);
            rings += ring.is_some() as u64 + sq.is_some() as u64;
            refusals += refused as u64;
            let taken = m.bit("table.ready");
            if taken {
                let kind = TABLES.iter().position(|t| *t as u64 == m.get("table.req.table")).unwrap();
                let page = table::qp_send::OWNER.get(&m.get_bytes("table.req.row"));
                let page = if kind < 2 { page } else { table::cq::OWNER.get(&m.get_bytes("table.req.row")) };
                owner.insert((kind, m.get("table.req.index")), page);
            }
            m.tick();
            if taken {
                m.set("table.valid", 0);
            }
        }
        println!("{rings} rings, {directs:?} direct WQEs of one and two blocks, {refusals} refused");
        assert!(rings > 500 && directs[0] > 50 && directs[1] > 20 && refusals > 500);
    }

    #[test]
    fn refusals_raise_few_events() {
        let mut m = model();
        let mut events = vec![];
        for i in 0..3 * EVENT_GAP {
            m.set("bar_valid", 1);
            m.set("bar.offset", 5 << 12 | abi::queue::doorbell::CQ as u64);
            m.set("bar.write", 1);
            m.set("bar.wide", 1);
            m.set("bar.data", 3);
            m.set("event.ready", (i > 1000) as u64);
            m.eval();
            if m.bit("event.valid") && m.bit("event.ready") {
                events.push(["eqn", "kind", "number", "value"].map(|f| m.get(&*format!("event.data.{f}"))));
            }
            m.tick();
        }
        assert_eq!(events, [[0, event::DOORBELL as u64, 3, cause::DOORBELL_OWNER as u64]; 3]);
    }
}
