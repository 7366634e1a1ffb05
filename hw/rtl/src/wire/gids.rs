//! The GID table of the receive side: under which rows is a frame addressed? For `wire/parser`.
//!
//! ```text
//! cycle     0      1         2
//! dmac      A                            of a frame
//! to               A
//! own              A                     rows with its MAC
//! link, ip         A                     rows with its MAC, VLAN and kind of IP; rows with its IP
//! ```
//! The row that a frame is addressed to is in both `link` and `ip`. Every row has its comparator, for frames may end in every cycle. Reads of the table bus have a copy of their own. Nothing
//! waits here.

use crate::msg::TableReq;
use abi::table::gid;
use hdl::prelude::*;

/// Rows of the GID table.
pub const GIDS: usize = abi::table::GIDS;

/// A GID row.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Gid {
    pub ip6: Bit,
    pub tagged: Bit,
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
    /// GID rows: `row` shows the one that is asked for, in the same cycle.
    pub table: Signal<In, TableReq>,
    pub table_valid: Signal<In, Bit>,
    pub row: Signal<Out, Bits<512>>,
    pub dmac: Signal<In, Bits<48>>,
    pub own: Signal<Out, Bits<GIDS>>,
    pub to: Signal<In, Destination>,
    pub link: Signal<Out, Bits<GIDS>>,
    pub ip: Signal<Out, Bits<GIDS>>,

    /// With VLAN id 0 where there is no tag.
    gids: Arr<DFF<Gid>, GIDS>,
    valid: Reg<Bits<GIDS>>,
    rows: Ram<Gid, 4>,
    same: Reg<Bits<GIDS>>,
}

impl Default for Gids {
    fn default() -> Self {
        Gids {
            clock: Default::default(),
            rst: Default::default(),
            table: Default::default(),
            table_valid: Default::default(),
            row: Default::default(),
            dmac: Default::default(),
            own: Default::default(),
            to: Default::default(),
            link: Default::default(),
            ip: Default::default(),
            gids: Default::default(),
            valid: Default::default(),
            rows: Ram::default().rows(GIDS).style("distributed").at_once(),
            same: Default::default(),
        }
    }
}

impl Logic for Gids {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, valid, same);
        dff_setup!(self, clock, gids);
        clock!(self, clock, rows);

        // Table.
        let req = self.table.val();
        let index = req.index.get_bits::<4>(0);
        let write = self.table_valid.val() && req.write;
        let row = Gid {
            ip6: req.row.get_bit(elab!(gid::IS_IP6.lsb)),
            tagged: req.row.get_bit(elab!(gid::TAGGED.lsb)),
            vlan: req.row.get_bits::<12>(elab!(gid::VLAN.lsb)),
            mac: req.row.get_bits::<48>(elab!(gid::MAC.lsb)),
            ip: req.row.get_bits::<128>(elab!(gid::IP_LOW.lsb)),
        };
        let mut compared = row;
        if !row.tagged {
            compared.vlan = 0.into();
        }
        self.rows.we.next = write;
        self.rows.waddr.next = index;
        self.rows.wdata.next = row;
        self.rows.re.next = true;
        self.rows.raddr.next = index;
        if write {
            for i in 0..GIDS {
                if index == i.to_bits::<4>() {
                    self.gids[i].d.next = compared;
                    self.valid.d.next = self.valid.q.val().replace_bit(i, req.row.get_bit(elab!(gid::VALID.lsb)));
                }
            }
        }
        let kept = self.rows.rdata.val();
        self.row.next = cat!(
            512;
            bits::<256>(0),
            kept.ip,
            bits::<16>(0),
            kept.mac,
            bits::<44>(0),
            kept.vlan,
            bits::<5>(0),
            kept.tagged,
            kept.ip6,
            self.valid.q.val().get_bit(index.index())
        );

        // Compare. Long comparisons stand alone between registers: mappers spoil them with anything else in the same AND.
        let mut same: Bits<GIDS> = 0.into();
        let mut link: Bits<GIDS> = 0.into();
        let mut ip: Bits<GIDS> = 0.into();
        let own = self.same.q.val() & self.valid.q.val();
        let to = self.to.val();
        for i in 0..GIDS {
            let gid = self.gids[i].q.val();
            same = same.replace_bit(i, gid.mac == self.dmac.val());
            let tag = !gid.tagged || to.tagged;
            link = link.replace_bit(i, own.get_bit(i) && gid.ip6 == to.ip6 && tag && gid.vlan == to.vlan);
            ip = ip.replace_bit(i, gid.ip == to.ip);
        }
        self.same.d.next = same;
        self.own.next = own;
        self.link.next = link;
        self.ip.next = ip;
    }
}
