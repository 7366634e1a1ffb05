//! Copies of a datagram to a multicast group: one for each QP that is attached. For dispatch, which has it in front.
//!
//! ```text
//! cycle     0      1      2      3      4
//! meta      G      G      G      G      A         G is for a group of two
//! members          read
//! out                     G.0    G.1    A         everything else passes within the cycle
//! ```
//! A copy is the packet with the number of a member in place of the multicast QPN. All copies read the one frame in the receive buffer, so
//! only the last names its rows to be freed. What becomes of each is its QP's business. A group that nobody is attached to any more gives
//! one copy, to no QP: so its packet has a verdict, and its rows are freed.
//!
//! Members change by whole rows, and those of a packet are read at once: it goes to all of one time.
//!
//! Cannot deadlock: it waits for dispatch only, and holds nothing meanwhile but the packet's place. The table bus never waits.

use crate::{
    msg::*,
    stream::{Sink, Source, TablePort},
};
use abi::table::{GIDS, MEMBER_STEP, MEMBERS, member};
use hdl::prelude::*;

/// A MEMBER row.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Members {
    last: Bits<3>,
    qpns: Bits<96>,
}
const _: () = assert!(MEMBERS == 8 && 1 << member::LAST.bits == MEMBERS && GIDS == 16);

/// See the module.
#[derive(Clone, Debug, LogicBlock)]
pub struct Copies {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// From ingress.
    pub meta: Sink<RxMeta>,
    /// If it is for a group the lower half of `qpn` is a member's.
    pub out: Source<RxMeta>,
    /// MEMBER rows; always ready.
    pub table: TablePort,

    groups: Ram<Members, 4>,
    /// Those of the packet at hand that have no copy yet, the next one first.
    members: DFF<Members>,
    /// A copy is offered; it is the last.
    giving: Reg<Bit>,
    closes: Reg<Bit>,
    _qps: Hidden<usize>,
}

impl Copies {
    /// For groups of some of `qps` QPs.
    pub fn new(qps: usize) -> Self {
        Copies {
            clock: Default::default(),
            rst: Default::default(),
            meta: Default::default(),
            out: Default::default(),
            table: Default::default(),
            groups: Ram::default().style("distributed").at_once(),
            members: Default::default(),
            giving: Default::default(),
            closes: Default::default(),
            _qps: Hidden(qps),
        }
    }
}

impl Logic for Copies {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, giving, closes);
        dff_setup!(self, clock, members);
        clock!(self, clock, groups);
        let mask: Qp = elab!(numbers(self._qps.0));

        // Table.
        let req = self.table.req.val();
        let mut qpns: Bits<96> = 0.into();
        for i in 0..MEMBERS {
            let qpn = req.row.get_bits::<12>(elab!(member::QPN.lsb + i * MEMBER_STEP)) & mask;
            qpns |= qpn.cast::<96>() << (12 * i) as u64;
        }
        self.groups.we.next = self.table.valid.val() && req.write;
        self.groups.waddr.next = req.index.get_bits::<4>(0);
        self.groups.wdata.next = Members { last: req.row.get_bits::<3>(elab!(member::LAST.lsb)), qpns };
        self.table.ready.next = true;
        self.table.rdata.next = 0.into();
        self.table.rvalid.next = false;

        // Pass, or copy.
        let meta = self.meta.data.val();
        let giving = self.giving.q.val();
        let closes = self.closes.q.val();
        self.out.data.next = meta;
        let now = self.members.q.val();
        if meta.group {
            // The upper half stays: nobody reads it.
            let next = now.qpns.get_bits::<12>(0) & mask;
            self.out.data.next.qpn = cat!(24; meta.qpn.get_bits::<12>(12), next);
        }
        if meta.group && !closes {
            self.out.data.next.rows = 0.into();
        }
        self.out.valid.next = giving || (self.meta.valid.val() && !meta.group);
        self.meta.ready.next = self.out.ready.val() && (!meta.group || closes);

        // The next member.
        let all = self.groups.rdata.val();
        self.groups.re.next = true;
        self.groups.raddr.next = meta.gid.get_bits::<4>(0);
        if !giving {
            self.members.d.next = all;
            self.closes.d.next = self.meta.valid.val() && meta.group && !all.last.any();
            self.giving.d.next = self.meta.valid.val() && meta.group;
        } else if self.out.ready.val() {
            self.members.d.next = Members { last: now.last - 1, qpns: now.qpns >> 12u64 };
            self.closes.d.next = !closes && now.last == 1;
            self.giving.d.next = !closes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::kit::{bytes_of, fields_of, options, row_of, write_row};
    use abi::table::id;
    use rand::RngExt;
    use verilate::{
        Model,
        bench::{self, Sink, Source, Stall},
    };

    const QPS: usize = 256;

    fn build() -> Model {
        let mut m = Model::of(|| Copies::new(QPS), options()).unwrap();
        m.reset();
        m
    }

    /// The row of so many members.
    fn row(members: &[u64]) -> [u8; 64] {
        let mut row = [0; 64];
        member::LAST.set(&mut row, members.len().saturating_sub(1) as u64);
        for (i, qpn) in members.iter().enumerate() {
            let field = abi::Field { lsb: member::QPN.lsb + i * MEMBER_STEP, ..member::QPN };
            field.set(&mut row, *qpn);
        }
        row
    }

    fn attach(m: &mut Model, group: u64, members: &[u64]) {
        write_row(m, id::MEMBER, group, &row(members));
    }

    /// What comes out: QPN, rows and PSN.
    fn seen(sink: &mut Sink) -> Vec<(u64, u64, u64)> {
        let mut all = vec![];
        while let Some(beat) = sink.pop() {
            let meta = fields_of::<RxMeta>(&beat.bytes("data"));
            let get = |k: &str| meta.get(k).copied().unwrap_or(0) as u64;
            let qpn = if get("group") == 1 { get("qpn") & 0xfff } else { get("qpn") };
            all.push((qpn, get("rows"), get("psn")));
        }
        all
    }

    /// Packets for QPs and for groups of all sizes, mixed at random: each member gets a copy, in the order of the row, and the last one frees.
    #[test]
    fn each_member_gets_a_copy_and_the_last_one_frees_the_rows() {
        let mut m = build();
        for (i, stall) in [Stall::Never, Stall::Random, Stall::Rate(0.9)].into_iter().enumerate() {
            let mut rng = verilate::rng(30 + i as u64);
            let groups: Vec<Vec<u64>> = (0..16)
                .map(|g| (0..(g as usize + i) % (MEMBERS + 1)).map(|_| rng.random_range(1..QPS as u64)).collect())
                .collect();
            (0..16).for_each(|g| attach(&mut m, g as u64, &groups[g]));
            let mut source = Source::new(&m, "meta", stall, 40);
            let mut sink = Sink::new(&m, "out", stall, 41);
            let n = verilate::scale(400) as u64;
            let mut want = vec![];
            for psn in 0..n {
                let group = rng.random_bool(0.4);
                let gid = rng.random_range(0..16);
                let (qpn, rows) = (rng.random_range(0..1 << 24), rng.random_range(1..100));
                match (group, &groups[gid][..]) {
                    (false, _) => want.push((qpn, rows, psn)),
                    (true, []) => want.push((0, rows, psn)),
                    (true, [others @ .., last]) => {
                        want.extend(others.iter().map(|q| (*q, 0, psn)));
                        want.push((*last, rows, psn));
                    }
                }
                let meta = RxMeta {
                    group,
                    gid: (gid as u64).to_bits(),
                    qpn: qpn.to_bits(),
                    rows: rows.to_bits(),
                    psn: psn.to_bits(),
                    ..Default::default()
                };
                let mut beat = source.beat();
                beat.set_bytes("data", &bytes_of(meta));
                source.push(beat);
            }
            sink.expect(want.len() as u64);
            let cycles = m.cycle();
            bench::run(&mut m, &mut [&mut source, &mut sink], 1000 * n);
            assert_eq!(seen(&mut sink), want);
            if stall == Stall::Never {
                // Two cycles more for a packet to a group, and a cycle for each copy.
                assert!(m.cycle() - cycles < want.len() as u64 + n + 50, "{} cycles", m.cycle() - cycles);
            }
        }
    }

    /// A row that is written while copies are given counts for the next packet, whenever it comes.
    #[test]
    fn a_packet_goes_to_the_members_of_one_time() {
        let mut m = build();
        let mut rng = verilate::rng(50);
        let (old, new) = ([5u64, 6, 7, 8, 9], [15u64, 16]);
        for wait in 0..20 {
            attach(&mut m, 3, &old);
            let mut source = Source::new(&m, "meta", Stall::Never, 1);
            let mut sink = Sink::new(&m, "out", Stall::Random, rng.random());
            for psn in 0..2u64 {
                let meta =
                    RxMeta { group: true, gid: 3.into(), rows: 2.into(), psn: psn.to_bits(), ..Default::default() };
                let mut beat = source.beat();
                beat.set_bytes("data", &bytes_of(meta));
                source.push(beat);
            }
            for _ in 0..wait {
                bench::cycle(&mut m, &mut [&mut source, &mut sink]);
            }
            let req = TableReq { table: id::MEMBER.to_bits(), index: 3.into(), write: true, row: row_of(&row(&new)) };
            m.set_bytes("table.req", &bytes_of(req));
            m.set("table.valid", 1);
            bench::cycle(&mut m, &mut [&mut source, &mut sink]);
            assert!(m.bit("table.ready"));
            m.set("table.valid", 0);
            for _ in 0..200 {
                bench::cycle(&mut m, &mut [&mut source, &mut sink]);
            }
            let seen = seen(&mut sink);
            let of = |psn: u64| seen.iter().filter(|s| s.2 == psn).map(|s| s.0).collect::<Vec<_>>();
            assert!([0, 1].iter().all(|psn| of(*psn) == old || of(*psn) == new), "{seen:?}");
            assert!(of(1) == new || of(0) == old, "{seen:?}");
        }
    }
}
