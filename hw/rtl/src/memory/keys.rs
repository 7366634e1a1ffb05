//! The table of memory keys, and the check of an access against a row of it.
//!
//! For both access ports, through [`super::mmu`]. Checks in this order, the first failure is the cause: the index exists,
//! the key is valid and its key byte is right (`KEY_INVALID`); the protection domain is the same (`KEY_PD`); the
//! region allows what is needed (`KEY_ACCESS`); the range lies inside (`KEY_BOUNDS`). The last one cannot overflow:
//! `va - VA` may not borrow, and is compared with `LENGTH - span`, which may not borrow either. Before all of them: a row
//! that parity shows to be damaged opens nothing (`PARITY`).
//!
//! ```text
//! cycle    0        1       2          3              4
//! ask   index | read, req | subtract | compare, add | shift, add = region
//!                                    | contiguous: `early`, unless it is left for `region`
//! ```
//! An ask that invalidates writes the row in cycle 3, if it may, and leaves nothing of it; until then no other ask is taken, so that
//! the next one of any port finds the key dead. Whether it is still that row is not looked at again: the firmware, which
//! alone writes others, fills one only that is dead.
//!
//! One ask a cycle. Cannot deadlock: answers cannot be refused, and an ask waits for at most a table access. The table is
//! swept clear after reset; asks and accesses wait meanwhile. An access of the table bus has a cycle for itself, and there is
//! at least one for asks between two of them: so no row is read while it is written.

use crate::{
    msg::{AccessReq, Chunk, Qp},
    stream::{BadRow, GuardedTable, TablePort},
};
use abi::{
    status::cause,
    table::{MTT_INDEX, PAGE_SHIFT, key},
};
use hdl::prelude::*;

/// The answer: what a range becomes.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Region {
    /// Refused, and why (`abi::status::cause`), else 0.
    pub refused: Bit,
    pub cause: Bits<8>,
    /// The range is contiguous at `iova`; else `iova` is the virtual address and `frame` the MTT entry of its first page.
    pub contiguous: Bit,
    /// Bus address, or virtual address.
    pub iova: Bits<64>,
    /// First MTT entry.
    pub frame: Bits<24>,
    /// Log2 of the page size.
    pub shift: Bits<6>,
    /// Bytes of the range.
    pub len: Bits<14>,
    /// Bytes from the first one to the end of its page, 16,384 if more.
    pub room: Bits<15>,
    /// Access port that it is for.
    pub port: Bit,
}

/// A row, without what nobody reads.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Key {
    valid: Bit,
    /// And who may invalidate it, above, as in [`AccessReq::need`].
    access: Bits<6>,
    contiguous: Bit,
    byte: Bits<8>,
    pd: Bits<16>,
    window: Bit,
    qpn: Qp,
    va: Bits<64>,
    length: Bits<64>,
    /// If it is not contiguous, first MTT entry and page size.
    iova: Bits<64>,
}

/// The fields of a row of the table bus.
#[hdl_fn]
fn key_of(row: Bits<512>) -> Key {
    Key {
        valid: row.get_bit(elab!(key::VALID.lsb)),
        access: row.get_bits::<6>(elab!(key::ACCESS.lsb)),
        contiguous: row.get_bit(elab!(key::CONTIGUOUS.lsb)),
        byte: row.get_bits::<8>(elab!(key::KEY_BYTE.lsb)),
        pd: row.get_bits::<16>(elab!(key::PD.lsb)),
        window: row.get_bit(elab!(key::WINDOW.lsb)),
        qpn: row.get_bits::<12>(elab!(key::QPN.lsb)),
        va: row.get_bits::<64>(elab!(key::VA.lsb)),
        length: row.get_bits::<64>(elab!(key::LENGTH.lsb)),
        iova: row.get_bits::<64>(elab!(key::IOVA.lsb)),
    }
}

/// A key as it was read, with what was asked.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Found {
    refused: Bit,
    cause: Bits<8>,
    /// `va - VA`, with its borrow on top.
    offset: Bits<65>,
    /// `LENGTH - span`, likewise.
    spare: Bits<65>,
    contiguous: Bit,
    va: Bits<64>,
    /// Bytes between the start of the region's first page and its first byte.
    lead: Bits<30>,
    iova: Bits<64>,
    frame: Bits<24>,
    shift: Bits<6>,
    len: Bits<14>,
    /// Bytes of the page behind the first one.
    after: Bits<30>,
}

/// A checked range.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Checked {
    region: Region,
    /// Bytes from the start of the region's first page, as far as they tell the page.
    position: Bits<54>,
}

/// Table of memory keys.
#[derive(LogicBlock)]
pub struct Keys {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// Asks are taken in this cycle.
    pub open: Signal<Out, Bit>,
    /// There is one, for this row and from this port. Only while `open`.
    pub ask: Signal<In, Bit>,
    pub index: Signal<In, Bits<24>>,
    /// It invalidates its key.
    pub kills: Signal<In, Bit>,
    pub from: Signal<In, Bit>,
    /// Port whose request is wanted: it has asked in the last cycle.
    pub asker: Signal<Out, Bit>,
    pub asked: Signal<In, AccessReq>,
    /// A check ends, and the port that it is for.
    pub passes: Signal<Out, Bit>,
    pub port: Signal<Out, Bit>,
    /// If `contiguous`, this is all that becomes of the request: nothing is left to be translated.
    pub contiguous: Signal<Out, Bit>,
    pub early: Signal<Out, Chunk>,
    /// It is taken now; `region` leaves it out.
    pub early_taken: Signal<In, Bit>,
    /// The answer to the question of 4 cycles ago, if there is one.
    pub region: Signal<Out, Region>,
    pub region_valid: Signal<Out, Bit>,
    /// A key dies, of this row.
    pub killed: Signal<Out, Bit>,
    pub dying: Signal<Out, Bits<24>>,
    /// `abi::table::key` rows; a read tells of one whether it is valid.
    pub table: TablePort,
    /// For tests: rows written now are stored damaged.
    pub flip: Signal<In, Bit>,
    /// A row was found damaged.
    pub bad: Signal<Out, BadRow>,
    keys: GuardedTable<Key>,
    swept: Reg<Bits<24>>,
    sweeping: Reg<Bit>,
    /// The cycle belongs to the table bus.
    bus: Reg<Bit>,
    /// An ask that invalidates is under way, in cycle 1 to 3.
    kills_q: [Reg<Bit>; 3],
    shut: Reg<Bit>,
    valid: [Reg<Bit>; 4],
    ports: [DFF<Bit>; 4],
    req: DFF<AccessReq>,
    /// The key index exists.
    inside: DFF<Bit>,
    found: DFF<Found>,
    checked: DFF<Checked>,
    reading: [Reg<Bit>; 2],
    _keys: Hidden<usize>,
}

impl Keys {
    /// A table of `keys` rows.
    pub fn new(keys: usize) -> Self {
        assert!(keys < 1 << 24);
        Self {
            clock: Default::default(),
            rst: Default::default(),
            open: Default::default(),
            ask: Default::default(),
            index: Default::default(),
            kills: Default::default(),
            from: Default::default(),
            asker: Default::default(),
            asked: Default::default(),
            passes: Default::default(),
            port: Default::default(),
            contiguous: Default::default(),
            early: Default::default(),
            early_taken: Default::default(),
            region: Default::default(),
            region_valid: Default::default(),
            killed: Default::default(),
            dying: Default::default(),
            table: Default::default(),
            flip: Default::default(),
            bad: Default::default(),
            keys: GuardedTable::new(keys, "block"),
            swept: Default::default(),
            sweeping: Reg::with_reset(true),
            bus: Default::default(),
            kills_q: Default::default(),
            shut: Default::default(),
            valid: Default::default(),
            ports: Default::default(),
            req: Default::default(),
            inside: Default::default(),
            found: Default::default(),
            checked: Default::default(),
            reading: Default::default(),
            _keys: Hidden(keys),
        }
    }
}

impl Logic for Keys {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, swept, sweeping, bus, kills_q, shut, valid, reading);
        dff_setup!(self, clock, ports, req, inside, found, checked);
        clock!(self, clock, keys);
        let rows: Bits<24> = elab!(bits::<24>(self._keys.0 as u64));
        let sweeping = self.sweeping.q.val();
        let bus = self.bus.q.val();
        let row = self.table.req.val();

        let shut = self.shut.q.val();
        // The table bus may still have the cycle behind the ask: the row is written two later.
        let shuts = self.kills_q[0].q.val() || self.kills_q[1].q.val();
        self.shut.d.next = self.kills.val() || shuts;
        self.bus.d.next = self.table.valid.val() && !bus && !sweeping && !shuts;
        self.table.ready.next = bus;
        // What was found and asked in cycle 1 and 2, of the last ask that was taken.
        let found = self.found.q.val();
        let req = self.req.q.val();
        let damaged = self.keys.bad.val().valid;
        let kill = self.kills_q[2].q.val();
        let kills = kill && !found.refused && !damaged;
        self.killed.next = kills;
        self.dying.next = req.key.get_bits::<24>(8);
        self.keys.we.next = sweeping || (bus && row.write && row.index < rows) || kills;
        self.keys.waddr.next = if sweeping {
            self.swept.q.val()
        } else if kill {
            req.key.get_bits::<24>(8)
        } else {
            row.index
        };
        let mut key: Key = key_of(row.row);
        if sweeping || kill {
            key.valid = false; // the rest may be anything
        }
        if sweeping {
            self.swept.d.next = self.swept.q.val() + 1;
            self.sweeping.d.next = self.swept.q.val() != rows - 1;
        }
        self.keys.wdata.next = key;
        self.reading[0].d.next = bus && !row.write;
        self.reading[1].d.next = self.reading[0].q.val();
        self.table.rvalid.next = self.reading[1].q.val();
        let none: Bits<512> = 0.into();
        self.table.rdata.next = none.replace_bit(elab!(key::VALID.lsb), self.keys.rdata.val().valid);

        // 0: read the row.
        self.open.next = !sweeping && !bus && !shut;
        let take = self.ask.val();
        self.keys.re.next = take || bus && !row.write;
        self.keys.raddr.next = if bus { row.index } else { self.index.val() };
        self.valid[0].d.next = take;
        self.ports[0].d.next = self.from.val();
        self.kills_q[0].d.next = self.kills.val();
        for i in 1..3 {
            self.kills_q[i].d.next = self.kills_q[i - 1].q.val();
        }
        for i in 1..4 {
            self.valid[i].d.next = self.valid[i - 1].q.val();
            self.ports[i].d.next = self.ports[i - 1].q.val();
        }
        // 1: it is being read.
        let asked = self.asked.val();
        self.asker.next = self.ports[0].q.val();
        if self.valid[0].q.val() {
            self.req.d.next = asked;
            self.inside.d.next = asked.key.get_bits::<24>(8) < rows;
        }

        // 2: subtract, and compare what is short.
        let key = self.keys.rdata.val();
        let shift = key.iova.get_bits::<6>(elab!(PAGE_SHIFT.lsb - key::IOVA.lsb));
        let unknown = !self.inside.q.val() || !key.valid || key.byte != req.key.get_bits::<8>(0);
        let in_page: Bits<30> = match shift {
            12 => bits::<30>(0xfff),
            16 => bits::<30>(0xffff),
            21 => bits::<30>(0x1f_ffff),
            _ => bits::<30>(0x3fff_ffff),
        };
        let foreign = key.pd != req.pd || key.window && key.qpn != req.qpn;
        let barred = (req.need & !key.access).any() || key.window && !req.need.any();
        if self.valid[1].q.val() {
            self.found.d.next = Found {
                refused: unknown || foreign || barred,
                cause: if unknown {
                    bits::<8>(cause::KEY_INVALID as u64)
                } else if foreign {
                    bits::<8>(cause::KEY_PD as u64)
                } else if barred {
                    bits::<8>(cause::KEY_ACCESS as u64)
                } else {
                    0.into()
                },
                offset: req.va.cast::<65>() - key.va.cast::<65>(),
                spare: key.length.cast::<65>() - req.span.cast::<65>(),
                contiguous: key.contiguous,
                va: req.va,
                lead: key.va.get_bits::<30>(0) & in_page,
                iova: key.iova,
                frame: key.iova.get_bits::<24>(elab!(MTT_INDEX.lsb - key::IOVA.lsb)),
                shift,
                len: req.len,
                after: !req.va.get_bits::<30>(0) & in_page,
            };
        }

        // 3: bounds, and the place in the region.
        let offset = found.offset.get_bits::<64>(0);
        let beyond = offset > found.spare.get_bits::<64>(0);
        let outside = !kill && (found.offset.get_bit(64) || found.spare.get_bit(64) || beyond);
        let wide = found.contiguous || found.after.get_bits::<16>(14).any();
        let refused = damaged || found.refused || outside;
        let cause = if damaged {
            bits::<8>(cause::PARITY as u64)
        } else if !found.refused && outside {
            bits::<8>(cause::KEY_BOUNDS as u64)
        } else {
            found.cause
        };
        let iova = found.iova + offset;
        self.passes.next = self.valid[2].q.val();
        self.port.next = self.ports[2].q.val();
        self.contiguous.next = found.contiguous;
        self.early.next =
            Chunk { iova: iova, len: found.len, offset: 0.into(), last: true, refused: refused, cause: cause };
        if self.early_taken.val() {
            self.valid[3].d.next = false;
        }
        if self.valid[2].q.val() {
            self.checked.d.next.position = offset.get_bits::<54>(0) + found.lead.cast::<54>();
            self.checked.d.next.region = Region {
                refused: refused,
                cause: cause,
                contiguous: found.contiguous,
                iova: if found.contiguous { iova } else { found.va },
                frame: found.frame,
                shift: found.shift,
                len: found.len,
                room: if wide { bits::<15>(1 << 14) } else { found.after.get_bits::<15>(0) + 1 },
                port: self.ports[2].q.val(),
            };
        }

        // 4: the first page.
        let checked = self.checked.q.val();
        let page: Bits<24> = match checked.region.shift {
            12 => checked.position.get_bits::<24>(12),
            16 => checked.position.get_bits::<24>(16),
            21 => checked.position.get_bits::<24>(21),
            _ => checked.position.get_bits::<24>(30),
        };
        let mut region = checked.region;
        region.frame = checked.region.frame + page;
        self.region.next = region;
        self.region_valid.next = self.valid[3].q.val();
        self.keys.flip.next = self.flip.val();
        self.bad.next = self.keys.bad.val();
    }
}
