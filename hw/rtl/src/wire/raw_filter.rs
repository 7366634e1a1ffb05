//! Which frames that are not RoCE the raw queue gets: those to an address of the port, to a multicast group of its table, or
//! broadcast; all of them if it is promiscuous; and no more than the port's rate. For `wire/parser`.
//!
//! ```text
//! cycle         0      1      2
//! dmac          A
//! own                  A               it has the MAC of a GID row, and that is no multicast group's
//! wanted                      A
//! taken                       A        if it was `open`: a token less
//!
//! in N turns    1 .. N        N + 2    N + 3
//! dmac          A stays
//! own, wanted, taken                   A
//! ```
//! The rate is a bucket of tokens: a frame takes one, and each `RAW_CYCLES` cycles one comes, up to `RAW_BURST`. Nothing
//! waits here.

use super::rows::{ROWS, Rows, gather};
use crate::msg::TableReq;
use abi::table::{id, multicast, port};
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
    /// PORT and MULTICAST rows.
    pub table: Signal<In, TableReq>,
    pub table_valid: Signal<In, Bit>,
    /// Destination of a frame. Has a GID row its MAC, which is the port's too then; does the raw queue want it?
    pub dmac: Signal<In, Bits<48>>,
    pub own: Signal<In, Bit>,
    pub wanted: Signal<Out, Bit>,
    /// The rate allows a frame; it is taken.
    pub open: Signal<Out, Bit>,
    pub taken: Signal<In, Bit>,

    port: Reg<Port>,
    groups: Rows<Bits<48>>,
    /// The groups at the lanes that the destination names; and all, in turns.
    group: Reg<Bits<ROWS>>,
    named: Reg<Bits<ROWS>>,
    /// It is everybody, it is the port, and one of both; this and the groups together.
    everybody: Reg<Bit>,
    station: Reg<Bit>,
    direct: Reg<Bit>,
    heard: Reg<Bit>,

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
    _turns: Hidden<usize>,
}

impl RawFilter {
    /// A filter that looks the groups up in `turns` turns.
    pub fn new(turns: usize) -> Self {
        RawFilter {
            clock: Default::default(),
            rst: Default::default(),
            table: Default::default(),
            table_valid: Default::default(),
            dmac: Default::default(),
            own: Default::default(),
            wanted: Default::default(),
            open: Default::default(),
            taken: Default::default(),
            port: Default::default(),
            groups: Rows::new(turns),
            group: Default::default(),
            named: Default::default(),
            everybody: Default::default(),
            station: Default::default(),
            direct: Default::default(),
            heard: Default::default(),
            limited: Default::default(),
            goes: Default::default(),
            tokens: Default::default(),
            some: Default::default(),
            more: Default::default(),
            full: Default::default(),
            left: Default::default(),
            due: Default::default(),
            _turns: Hidden(turns),
        }
    }
}

impl Logic for RawFilter {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, port, group, named, everybody, station, direct, heard);
        regs!(self, clock, rst, limited, goes, tokens, some, more, full, left, due);
        clock_reset!(self, clock, rst, groups);
        let turns = elab!(self._turns.0);
        let in_turns = elab!(self._turns.0 > 1);
        let port = self.port.q.val();

        // Tokens. Their flags are kept beside them, so that a frame that takes one need not look at the number.
        let limited = self.limited.q.val();
        let tokens = self.tokens.q.val();
        let goes = limited && self.goes.q.val();
        let comes = limited && self.due.q.val() && (!self.full.q.val() || goes);
        self.goes.d.next = self.taken.val();
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
        let is_group = req.table == id::MULTICAST;
        let write = self.table_valid.val() && req.write;
        self.groups.write.next = write && is_group;
        self.groups.index.next = req.index.get_bits::<4>(0);
        self.groups.data.next = req.row.get_bits::<48>(elab!(multicast::MAC.lsb));
        self.groups.valid.next = req.row.get_bit(elab!(multicast::VALID.lsb));
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
        let mut group: Bits<ROWS> = 0.into();
        for i in 0..ROWS {
            if elab!(i < ROWS / self._turns.0) {
                group = group.replace_bit(i, self.groups.rows[i].val() == dmac);
            }
        }
        self.everybody.d.next = dmac == ones;
        self.station.d.next = dmac == port.mac;
        let direct = self.everybody.q.val() || self.station.q.val();
        self.direct.d.next = direct;
        let own = self.own.val() || port.promiscuous;
        if in_turns {
            self.group.d.next = group & self.groups.live.val();
            self.named.d.next = gather(self.named.q.val(), self.group.q.val(), self.groups.turn.val(), turns);
            self.heard.d.next = self.named.q.val().any() || self.direct.q.val();
            self.wanted.next = (self.heard.q.val() || own) && port.raw_on;
        } else {
            self.group.d.next = group;
            let named = (self.group.q.val() & self.groups.live.val()).any();
            self.heard.d.next = (named || direct || own) && port.raw_on;
            self.wanted.next = self.heard.q.val();
        }
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
    }

    fn port(m: &mut Model, on: bool, promiscuous: bool, burst: u64, cycles: u64) {
        let flags = [(port::RAW_ON, on.into()), (port::PROMISCUOUS, promiscuous.into())];
        let rate = [(port::RAW_BURST, burst), (port::RAW_CYCLES, cycles)];
        write(m, id::PORT, 0, &[&flags[..], &rate, &[(port::MAC, MAC)]].concat());
    }

    fn build(turns: usize) -> Model {
        let mut m = Model::of(|| RawFilter::new(turns), Options::default()).unwrap();
        m.reset();
        m
    }

    /// What the filter says after a lookup in `turns` turns, which begins at once; the next frame is behind it.
    fn wanted(m: &mut Model, turns: usize, dmac: u64, gids: bool) -> bool {
        m.set("dmac", dmac);
        (0..turns).for_each(|_| m.tick());
        m.set("dmac", 0x33);
        m.set("own", u64::from(gids && dmac == GID));
        (0..if turns == 1 { 1 } else { 2 }).for_each(|_| m.tick());
        m.bit("wanted")
    }

    #[test]
    fn frames_to_own_addresses_groups_and_all_pass() {
        [1, 4, 8].into_iter().for_each(passes);
    }

    fn passes(turns: usize) {
        let mut m = build(turns);
        port(&mut m, true, false, 0, 0);
        write(&mut m, id::MULTICAST, 11, &[(multicast::VALID, 1), (multicast::MAC, GROUP)]);
        let all = [MAC, GID, GROUP, 0xffff_ffff_ffff, MAC ^ 0x100, GROUP ^ 0x8000_0000_0000, 0, 0x33];
        let pass = |m: &mut Model, gids| all.map(|dmac| wanted(m, turns, dmac, gids));
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
        let mut m = build(1);
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
