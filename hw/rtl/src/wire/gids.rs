//! The GID table of the receive side: under which rows is a frame addressed? For `wire/parser`.
//!
//! ```text
//! cycle         0      1      2
//! dmac          A                      of a frame
//! to                   A
//! own                  A               it has the MAC of a row, and that is no multicast group's
//! ours, gid                   A        it is addressed to a row, the first of which is `gid`
//!
//! in N turns    1 .. N        N + 2    N + 3
//! dmac, to      A stays
//! own, ours, gid                       A
//! ```
//! In one turn every row has its comparator, for frames may end in every cycle (see `wire/rows`). Nothing waits here.

use super::rows::{ROWS, Rows, gather};
use crate::msg::TableReq;
use abi::table::gid;
use hdl::prelude::*;

/// A GID row: an address of the port's, or a multicast group.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Gid {
    pub ip6: Bit,
    pub tagged: Bit,
    /// 0 without a tag.
    pub vlan: Bits<12>,
    pub mac: Bits<48>,
    pub ip: Bits<128>,
}

/// Where a frame goes to, but for its MAC.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Destination {
    pub ip6: Bit,
    pub tagged: Bit,
    /// 0 without a tag; a tag with VLAN id 0 carries a priority only.
    pub vlan: Bits<12>,
    /// IPv4 in the lower 32 bits, rest zero.
    pub ip: Bits<128>,
}

/// See the [module](self).
#[derive(Clone, Debug, LogicBlock)]
pub struct Gids {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// GID rows.
    pub table: Signal<In, TableReq>,
    pub table_valid: Signal<In, Bit>,
    pub dmac: Signal<In, Bits<48>>,
    pub to: Signal<In, Destination>,
    pub own: Signal<Out, Bit>,
    pub ours: Signal<Out, Bit>,
    pub gid: Signal<Out, Bits<4>>,

    rows: Rows<Gid>,
    /// At the lanes: rows with the frame's MAC, with its VLAN and kind of IP (and MAC, in one turn), with its IP; each only where the row counts, in turns.
    same: Reg<Bits<ROWS>>,
    link: Reg<Bits<ROWS>>,
    ip: Reg<Bits<ROWS>>,
    /// In turns: all rows with its MAC, those with all of it, and what follows.
    owns: Reg<Bits<ROWS>>,
    matches: Reg<Bits<ROWS>>,
    is_own: Reg<Bit>,
    /// The frame is for a single station: beside `same`, and a cycle later.
    single: [DFF<Bit>; 2],
    is_ours: Reg<Bit>,
    first: DFF<Bits<4>>,
    _turns: Hidden<usize>,
}

impl Gids {
    /// A table that is looked up in `turns` turns.
    pub fn new(turns: usize) -> Self {
        Gids {
            clock: Default::default(),
            rst: Default::default(),
            table: Default::default(),
            table_valid: Default::default(),
            dmac: Default::default(),
            to: Default::default(),
            own: Default::default(),
            ours: Default::default(),
            gid: Default::default(),
            rows: Rows::new(turns),
            same: Default::default(),
            link: Default::default(),
            ip: Default::default(),
            owns: Default::default(),
            matches: Default::default(),
            is_own: Default::default(),
            single: Default::default(),
            is_ours: Default::default(),
            first: Default::default(),
            _turns: Hidden(turns),
        }
    }
}

/// Number of the first row of a set.
#[hdl_fn]
fn first_of(rows: Bits<ROWS>) -> Bits<4> {
    let mut first: Bits<4> = 0.into();
    for i in 0..ROWS {
        let k = ROWS - 1 - i;
        if rows.get_bit(k) {
            first = k.to_bits();
        }
    }
    first
}

impl Logic for Gids {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, same, link, ip, owns, matches, is_own, is_ours);
        dff_setup!(self, clock, first, single);
        clock_reset!(self, clock, rst, rows);
        let turns = elab!(self._turns.0);
        let in_turns = elab!(self._turns.0 > 1);

        // Table.
        let req = self.table.val();
        let tagged = req.row.get_bit(elab!(gid::TAGGED.lsb));
        self.rows.write.next = self.table_valid.val() && req.write;
        self.rows.index.next = req.index.get_bits::<4>(0);
        self.rows.valid.next = req.row.get_bit(elab!(gid::VALID.lsb));
        self.rows.data.next = Gid {
            ip6: req.row.get_bit(elab!(gid::IS_IP6.lsb)),
            tagged,
            vlan: if tagged { req.row.get_bits::<12>(elab!(gid::VLAN.lsb)) } else { 0.into() },
            mac: req.row.get_bits::<48>(elab!(gid::MAC.lsb)),
            ip: req.row.get_bits::<128>(elab!(gid::IP_LOW.lsb)),
        };

        // Compare. Long comparisons stand alone between registers: mappers spoil them with anything else in the same AND.
        let mut same: Bits<ROWS> = 0.into();
        let mut link: Bits<ROWS> = 0.into();
        let mut ip: Bits<ROWS> = 0.into();
        let live = self.rows.live.val();
        let own = if in_turns { live } else { self.same.q.val() & live };
        let to = self.to.val();
        for i in 0..ROWS {
            if elab!(i < ROWS / self._turns.0) {
                let gid = self.rows.rows[i].val();
                same = same.replace_bit(i, gid.mac == self.dmac.val());
                let tag = !gid.tagged || to.tagged;
                link = link.replace_bit(i, own.get_bit(i) && gid.ip6 == to.ip6 && tag && gid.vlan == to.vlan);
                ip = ip.replace_bit(i, gid.ip == to.ip);
            }
        }
        self.single[0].d.next = !self.dmac.val().get_bit(0);
        self.single[1].d.next = self.single[0].q.val();
        self.same.d.next = if in_turns { same & live } else { same };
        self.link.d.next = link;
        self.ip.d.next = ip;
        let matches = self.link.q.val() & self.ip.q.val();
        if in_turns {
            let turn = self.rows.turn.val();
            self.owns.d.next = gather(self.owns.q.val(), self.same.q.val(), turn, turns);
            self.matches.d.next = gather(self.matches.q.val(), matches & self.same.q.val(), turn, turns);
            self.is_own.d.next = self.owns.q.val().any() && self.single[1].q.val();
            self.is_ours.d.next = self.matches.q.val().any();
            self.first.d.next = first_of(self.matches.q.val());
        }
        self.own.next = if in_turns { self.is_own.q.val() } else { own.any() && self.single[0].q.val() };
        self.ours.next = if in_turns { self.is_ours.q.val() } else { matches.any() };
        self.gid.next = if in_turns { self.first.q.val() } else { first_of(matches) };
    }
}
