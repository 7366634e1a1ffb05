//! Which frames that are not RoCE the raw queue gets: those to an address of the port, to a multicast group of its table, or
//! broadcast; all of them if it is promiscuous; and no more than the port's rate. For `wire/parser`.
//!
//! ```text
//! cycle     0      1        2
//! dmac      A                        in the parser's registers
//! wanted           A                 with `own` beside
//! taken                     A        if it was `open`: a token less
//! ```
//! The rate is a bucket of tokens: a frame takes one, and each `RAW_CYCLES` cycles one comes, up to `RAW_BURST`. Nothing
//! waits here.

use super::gids::GIDS;
use crate::msg::TableReq;
use abi::table::{MULTICASTS, id, multicast, port};
use hdl::prelude::*;

/// The port row.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Port {
    mac: Bits<48>,
    raw_on: Bit,
    promiscuous: Bit,
    burst: Bits<8>,
    cycles: Bits<32>,
}

/// See the [module](self).
#[derive(Clone, Debug, LogicBlock)]
pub struct RawFilter {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// PORT and MULTICAST rows: `row` shows the one that is asked for, in the same cycle.
    pub table: Signal<In, TableReq>,
    pub table_valid: Signal<In, Bit>,
    pub row: Signal<Out, Bits<512>>,
    /// Destination of a frame. A cycle later: GID rows with this MAC, for those are the port's too; does the raw queue want it?
    pub dmac: Signal<In, Bits<48>>,
    pub own: Signal<In, Bits<GIDS>>,
    pub wanted: Signal<Out, Bit>,
    /// The rate allows a frame; it is taken.
    pub open: Signal<Out, Bit>,
    pub taken: Signal<In, Bit>,

    port: Reg<Port>,
    groups: Arr<DFF<Bits<48>>, MULTICASTS>,
    group_valid: Reg<Bits<MULTICASTS>>,
    rows: Ram<Bits<48>, 4>,
    /// The groups that the destination names, and whether it is everybody or the port.
    group: Reg<Bits<MULTICASTS>>,
    everybody: Reg<Bit>,
    station: Reg<Bit>,

    /// There is a rate; a token has been taken, which is still among `tokens`.
    limited: Reg<Bit>,
    goes: Reg<Bit>,
    tokens: Reg<Bits<8>>,
    /// At least one token, at least two; the bucket is full.
    some: Reg<Bit>,
    more: Reg<Bit>,
    full: Reg<Bit>,
    /// Cycles until the next token, and whether there are none.
    left: Reg<Bits<32>>,
    due: Reg<Bit>,
}

impl Default for RawFilter {
    fn default() -> Self {
        RawFilter {
            clock: Default::default(),
            rst: Default::default(),
            table: Default::default(),
            table_valid: Default::default(),
            row: Default::default(),
            dmac: Default::default(),
            own: Default::default(),
            wanted: Default::default(),
            open: Default::default(),
            taken: Default::default(),
            port: Default::default(),
            groups: Default::default(),
            group_valid: Default::default(),
            rows: Ram::default().rows(MULTICASTS).style("distributed").at_once(),
            group: Default::default(),
            everybody: Default::default(),
            station: Default::default(),
            limited: Default::default(),
            goes: Default::default(),
            tokens: Default::default(),
            some: Default::default(),
            more: Default::default(),
            full: Default::default(),
            left: Default::default(),
            due: Default::default(),
        }
    }
}

impl Logic for RawFilter {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, port, group_valid, group, everybody, station);
        regs!(self, clock, rst, limited, goes, tokens, some, more, full, left, due);
        dff_setup!(self, clock, groups);
        clock!(self, clock, rows);
        let port = self.port.q.val();

        // Tokens. Their flags are kept beside them, so that a frame that takes one need not look at the number.
        let limited = self.limited.q.val();
        let tokens = self.tokens.q.val();
        let goes = self.goes.q.val();
        let comes = limited && self.due.q.val() && (!self.full.q.val() || goes);
        self.goes.d.next = limited && self.taken.val();
        let left = self.left.q.val();
        self.left.d.next = if self.due.q.val() { port.cycles - 1 } else { left - 1 };
        self.due.d.next = if self.due.q.val() { port.cycles == 1 } else { left == 1 };
        if goes && !comes {
            self.tokens.d.next = tokens - 1;
            self.some.d.next = self.more.q.val();
            self.more.d.next = tokens > 2;
            self.full.d.next = false;
        } else if comes && !goes {
            self.tokens.d.next = tokens + 1;
            self.some.d.next = true;
            self.more.d.next = self.some.q.val();
            self.full.d.next = tokens + 1 == port.burst;
        }
        self.open.next = !limited || if goes { self.more.q.val() || self.due.q.val() } else { self.some.q.val() };

        // Table.
        let req = self.table.val();
        let index = req.index.get_bits::<4>(0);
        let is_group = req.table == id::MULTICAST;
        let write = self.table_valid.val() && req.write;
        let mac = req.row.get_bits::<48>(elab!(multicast::MAC.lsb));
        self.rows.we.next = write && is_group;
        self.rows.waddr.next = index;
        self.rows.wdata.next = mac;
        self.rows.re.next = true;
        self.rows.raddr.next = index;
        self.row.next = if is_group {
            cat!(512; bits::<400>(0), self.rows.rdata.val(), bits::<63>(0), self.group_valid.q.val().get_bit(index.index()))
        } else {
            cat!(
                512;
                bits::<416>(0),
                port.cycles,
                port.burst,
                bits::<6>(0),
                port.promiscuous,
                port.raw_on,
                port.mac
            )
        };
        if write && is_group {
            for i in 0..MULTICASTS {
                if index == i.to_bits::<4>() {
                    self.groups[i].d.next = mac;
                    self.group_valid.d.next =
                        self.group_valid.q.val().replace_bit(i, req.row.get_bit(elab!(multicast::VALID.lsb)));
                }
            }
        }
        if write && req.table == id::PORT {
            let burst = req.row.get_bits::<8>(elab!(port::RAW_BURST.lsb));
            let cycles = req.row.get_bits::<32>(elab!(port::RAW_CYCLES.lsb));
            self.port.d.next = Port {
                mac: req.row.get_bits::<48>(elab!(port::MAC.lsb)),
                raw_on: req.row.get_bit(elab!(port::RAW_ON.lsb)),
                promiscuous: req.row.get_bit(elab!(port::PROMISCUOUS.lsb)),
                burst,
                cycles,
            };
            self.limited.d.next = cycles.any();
            self.goes.d.next = false;
            self.tokens.d.next = burst;
            self.some.d.next = burst.any();
            self.more.d.next = burst.get_bits::<7>(1).any();
            self.full.d.next = true;
            self.left.d.next = 0.into();
            self.due.d.next = true;
        }

        // Filter.
        let dmac = self.dmac.val();
        let ones: Bits<48> = !bits::<48>(0);
        let mut group: Bits<MULTICASTS> = 0.into();
        for i in 0..MULTICASTS {
            group = group.replace_bit(i, self.groups[i].q.val() == dmac);
        }
        self.group.d.next = group;
        self.everybody.d.next = dmac == ones;
        self.station.d.next = dmac == port.mac;
        let heard = self.own.val().any() || (self.group.q.val() & self.group_valid.q.val()).any();
        let passes = port.promiscuous || self.everybody.q.val() || self.station.q.val() || heard;
        self.wanted.next = passes && port.raw_on;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::Field;
    use rand::RngExt;
    use verilate::{Model, Options, bits as raw};

    const MAC: u64 = 0x0100_0000_0002;
    const GID: u64 = 0x0900_0000_0002;
    const GROUP: u64 = 0x0500_00ff_3333;

    fn write(m: &mut Model, table: u8, index: u64, fields: &[(Field, u64)]) {
        let mut row = [0; 64];
        fields.iter().for_each(|(f, v)| f.set(&mut row, *v));
        let bits = row.iter().rev().fold(Bits::<512>::default(), |b, byte| b << 8 | bits::<512>(u64::from(*byte)));
        let req = TableReq { table: table.to_bits(), index: index.to_bits(), write: true, row: bits };
        m.set_bytes("table", &raw::of(req));
        m.set("table_valid", 1);
        m.tick();
        m.set("table_valid", 0);
        m.set_bytes("table", &raw::of(TableReq { write: false, ..req }));
        m.eval();
        assert_eq!(m.get_bytes("row"), row);
    }

    fn port(m: &mut Model, on: bool, promiscuous: bool, burst: u64, cycles: u64) {
        let flags = [(port::RAW_ON, on.into()), (port::PROMISCUOUS, promiscuous.into())];
        let rate = [(port::RAW_BURST, burst), (port::RAW_CYCLES, cycles)];
        write(m, id::PORT, 0, &[&flags[..], &rate, &[(port::MAC, MAC)]].concat());
    }

    fn build() -> Model {
        let mut m = Model::of(RawFilter::default, Options::default()).unwrap();
        m.reset();
        m
    }

    fn wanted(m: &mut Model, dmac: u64, gids: bool) -> bool {
        m.set("dmac", dmac);
        m.tick();
        m.set("own", u64::from(gids && dmac == GID) << 7);
        m.eval();
        m.bit("wanted")
    }

    #[test]
    fn frames_to_own_addresses_groups_and_all_pass() {
        let mut m = build();
        port(&mut m, true, false, 0, 0);
        write(&mut m, id::MULTICAST, 11, &[(multicast::VALID, 1), (multicast::MAC, GROUP)]);
        let all = [MAC, GID, GROUP, 0xffff_ffff_ffff, MAC ^ 0x100, GROUP ^ 0x8000_0000_0000, 0, 0x33];
        let pass = |m: &mut Model, gids| all.map(|dmac| wanted(m, dmac, gids));
        assert_eq!(pass(&mut m, true), [true, true, true, true, false, false, false, false]);
        write(&mut m, id::MULTICAST, 11, &[(multicast::VALID, 0), (multicast::MAC, GROUP)]);
        assert_eq!(pass(&mut m, false), [true, false, false, true, false, false, false, false]);
        port(&mut m, true, true, 0, 0);
        assert_eq!(pass(&mut m, true), [true; 8]);
        port(&mut m, false, true, 0, 0);
        assert_eq!(pass(&mut m, true), [false; 8]);
    }

    #[test]
    fn the_rate_is_kept_over_any_time() {
        let mut m = build();
        let mut rng = verilate::rng(3);
        for (burst, cycles) in [(1, 10), (8, 7), (255, 3), (1, 1), (4, 1000)] {
            port(&mut m, true, false, burst, cycles);
            // Demand comes and goes; in no stretch of time may more pass than burst and rate allow.
            let (mut most, mut taken, mut floor) = (0.0f64, 0u64, f64::MAX);
            for cycle in 0..20_000u64 {
                let wants = cycle / 2000 % 2 == 0 || rng.random_bool(0.01);
                m.eval();
                let takes = wants && m.bit("open");
                m.set("taken", takes.into());
                taken += u64::from(takes);
                let level = taken as f64 - cycle as f64 / cycles as f64;
                floor = floor.min(level);
                most = most.max(level - floor);
                m.tick();
            }
            m.set("taken", 0);
            assert!(most <= burst as f64 + 2.0, "burst {burst}, {cycles} cycles: {most} at once");
            assert!(taken >= 10_000 / cycles, "burst {burst}, {cycles} cycles: only {taken}");
        }
        port(&mut m, true, false, 0, 0);
        m.set("taken", 1);
        for _ in 0..100 {
            m.tick();
            m.eval();
            assert!(m.bit("open"), "no limit");
        }
    }
}
