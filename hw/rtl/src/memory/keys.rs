//! The table of memory keys, and the check of an access against a row of it.
//!
//! For both access ports, through [`super::mmu`]. Checks in this order, the first failure is the cause: the index exists,
//! the key is valid and its key byte is right (`KEY_INVALID`); the protection domain is the same (`KEY_PD`); the
//! region allows what is needed (`KEY_ACCESS`); the range lies inside (`KEY_BOUNDS`). The last one cannot overflow:
//! `va - VA` may not borrow, and is compared with `LENGTH - span`, which may not borrow either. Before all of them: a row
//! that parity shows to be damaged opens nothing (`PARITY`).
//!
//! ```text
//! cycle    0       1     2          3              4          5
//! ask    taken | read | read | subtract | compare, add | shift, add | region
//!                                                      | contiguous: may be taken early
//! ```
//! One ask a cycle. Cannot deadlock: answers cannot be refused, and an ask waits for at most a table access. The table is
//! swept clear after reset; asks and accesses wait meanwhile.

use crate::{
    msg::AccessReq,
    stream::{BadRow, GuardedTable, Sink, TablePort},
};
use abi::{status::cause, table::key};
use hdl::prelude::*;

/// A question to the table.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Ask {
    /// Access port that asks.
    pub port: Bit,
    /// What it wants.
    pub req: AccessReq,
}

/// The answer: what a range becomes.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Region {
    /// `abi::status::cause`, or 0.
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
}

/// A row, without what nobody reads.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Key {
    valid: Bit,
    access: Bits<4>,
    contiguous: Bit,
    byte: Bits<8>,
    pd: Bits<16>,
    shift: Bits<6>,
    frame: Bits<24>,
    va: Bits<64>,
    length: Bits<64>,
    iova: Bits<64>,
}

/// The fields of a row of the table bus.
#[hdl_fn]
fn key_of(row: Bits<512>) -> Key {
    Key {
        valid: row.get_bit(elab!(key::VALID.lsb)),
        access: row.get_bits::<4>(elab!(key::ACCESS.lsb)),
        contiguous: row.get_bit(elab!(key::CONTIGUOUS.lsb)),
        byte: row.get_bits::<8>(elab!(key::KEY_BYTE.lsb)),
        pd: row.get_bits::<16>(elab!(key::PD.lsb)),
        shift: row.get_bits::<6>(elab!(key::PAGE_SHIFT.lsb)),
        frame: row.get_bits::<24>(elab!(key::MTT_INDEX.lsb)),
        va: row.get_bits::<64>(elab!(key::VA.lsb)),
        length: row.get_bits::<64>(elab!(key::LENGTH.lsb)),
        iova: row.get_bits::<64>(elab!(key::IOVA.lsb)),
    }
}

/// The row of the table bus that holds these fields.
#[hdl_fn]
fn row_of(key: Key) -> Bits<512> {
    let low = cat!(64; key.frame, bits::<2>(0), key.shift, key.pd, key.byte, bits::<2>(0), key.contiguous, key.access, key.valid);
    cat!(512; bits::<256>(0), key.iova, key.length, key.va, low)
}

/// A key as it was read, with what was asked.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Found {
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
    /// Bytes from the start of the region's first page.
    position: Bits<64>,
}

/// Table of memory keys.
#[derive(LogicBlock)]
pub struct Keys {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// Questions.
    pub ask: Sink<Ask>,
    /// The answer to the question of 5 cycles ago.
    pub region: Signal<Out, Region>,
    /// Port that it is for, if `region_valid`.
    pub port: Signal<Out, Bit>,
    /// There is an answer.
    pub region_valid: Signal<Out, Bit>,
    /// The answer that `region` will give in the next cycle, to a question about a contiguous region: it needs no more work.
    pub early: Signal<Out, Region>,
    /// Port that it is for, if `early_valid`.
    pub early_port: Signal<Out, Bit>,
    /// There is such an answer.
    pub early_valid: Signal<Out, Bit>,
    /// It is taken now; `region` leaves it out.
    pub early_taken: Signal<In, Bit>,
    /// `abi::table::key` rows.
    pub table: TablePort,
    /// For tests: rows written now are stored damaged.
    pub flip: Signal<In, Bit>,
    /// A row was found damaged.
    pub bad: Signal<Out, BadRow>,
    keys: GuardedTable<Key>,
    swept: Reg<Bits<24>>,
    valid: [Reg<Bit>; 5],
    ports: [DFF<Bit>; 5],
    /// The key index exists.
    inside: [DFF<Bit>; 2],
    asked: [DFF<AccessReq>; 2],
    found: DFF<Found>,
    checked: DFF<Checked>,
    result: DFF<Region>,
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
            ask: Default::default(),
            region: Default::default(),
            port: Default::default(),
            region_valid: Default::default(),
            early: Default::default(),
            early_port: Default::default(),
            early_valid: Default::default(),
            early_taken: Default::default(),
            table: Default::default(),
            flip: Default::default(),
            bad: Default::default(),
            keys: GuardedTable::new(keys, "block"),
            swept: Default::default(),
            valid: Default::default(),
            ports: Default::default(),
            inside: Default::default(),
            asked: Default::default(),
            found: Default::default(),
            checked: Default::default(),
            result: Default::default(),
            reading: Default::default(),
            _keys: Hidden(keys),
        }
    }
}

impl Logic for Keys {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, swept, valid, reading);
        dff_setup!(self, clock, ports, inside, asked, found, checked, result);
        clock!(self, clock, keys);
        let rows: Bits<24> = elab!(bits::<24>(self._keys.0 as u64));
        let sweeping = self.swept.q.val() != rows;
        let access = self.table.valid.val() && !sweeping;
        let row = self.table.req.val();

        // The table bus comes first, and alone: a row is not read while it is written.
        self.table.ready.next = !sweeping;
        self.keys.we.next = sweeping || (access && row.write && row.index < rows);
        self.keys.waddr.next = if sweeping { self.swept.q.val() } else { row.index };
        let mut key: Key = key_of(row.row);
        if sweeping {
            key = unpack::<Key>(bits::<252>(0));
            self.swept.d.next = self.swept.q.val() + 1;
        }
        self.keys.wdata.next = key;
        self.reading[0].d.next = access && !row.write;
        self.reading[1].d.next = self.reading[0].q.val();
        self.table.rvalid.next = self.reading[1].q.val();
        self.table.rdata.next = row_of(self.keys.rdata.val());

        // 0: read the row.
        let ready = !sweeping && !self.table.valid.val();
        self.ask.ready.next = ready;
        let take = self.ask.valid.val() && ready;
        let ask = self.ask.data.val();
        let index = ask.req.key.get_bits::<24>(8);
        self.keys.re.next = take || access && !row.write;
        self.keys.raddr.next = if take { index } else { row.index };
        self.valid[0].d.next = take;
        if take {
            self.asked[0].d.next = ask.req;
            self.inside[0].d.next = index < rows;
        }
        self.ports[0].d.next = ask.port;
        for i in 1..5 {
            self.valid[i].d.next = self.valid[i - 1].q.val();
            self.ports[i].d.next = self.ports[i - 1].q.val();
        }
        if self.early_taken.val() {
            self.valid[4].d.next = false;
        }
        // 1: it is being read.
        if self.valid[0].q.val() {
            self.asked[1].d.next = self.asked[0].q.val();
            self.inside[1].d.next = self.inside[0].q.val();
        }

        // 2: subtract, and compare what is short.
        let req = self.asked[1].q.val();
        let key = self.keys.rdata.val();
        let unknown = !self.inside[1].q.val() || !key.valid || key.byte != req.key.get_bits::<8>(0);
        let in_page: Bits<30> = match key.shift {
            12 => bits::<30>(0xfff),
            16 => bits::<30>(0xffff),
            21 => bits::<30>(0x1f_ffff),
            _ => bits::<30>(0x3fff_ffff),
        };
        if self.valid[1].q.val() {
            self.found.d.next = Found {
                cause: if unknown {
                    bits::<8>(cause::KEY_INVALID as u64)
                } else if key.pd != req.pd {
                    bits::<8>(cause::KEY_PD as u64)
                } else if (req.need & !key.access).any() {
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
                frame: key.frame,
                shift: key.shift,
                len: req.len,
                after: !req.va.get_bits::<30>(0) & in_page,
            };
        }

        // 3: bounds, and the place in the region.
        let found = self.found.q.val();
        let offset = found.offset.get_bits::<64>(0);
        let beyond = offset > found.spare.get_bits::<64>(0);
        let outside = found.offset.get_bit(64) || found.spare.get_bit(64) || beyond;
        let wide = found.contiguous || found.after.get_bits::<16>(14).any();
        if self.valid[2].q.val() {
            self.checked.d.next.position = offset + found.lead.cast::<64>();
            self.checked.d.next.region = Region {
                cause: if self.keys.bad.val().valid {
                    bits::<8>(cause::PARITY as u64)
                } else if found.cause == 0 && outside {
                    bits::<8>(cause::KEY_BOUNDS as u64)
                } else {
                    found.cause
                },
                contiguous: found.contiguous,
                iova: if found.contiguous { found.iova + offset } else { found.va },
                frame: found.frame,
                shift: found.shift,
                len: found.len,
                room: if wide { bits::<15>(1 << 14) } else { found.after.get_bits::<15>(0) + 1 },
            };
        }

        // 4: the first page.
        let checked = self.checked.q.val();
        self.early.next = checked.region;
        self.early_port.next = self.ports[3].q.val();
        self.early_valid.next = self.valid[3].q.val() && checked.region.contiguous;
        let page: Bits<24> = match checked.region.shift {
            12 => checked.position.get_bits::<24>(12),
            16 => checked.position.get_bits::<24>(16),
            21 => checked.position.get_bits::<24>(21),
            _ => checked.position.get_bits::<24>(30),
        };
        if self.valid[3].q.val() {
            self.result.d.next = checked.region;
            self.result.d.next.frame = checked.region.frame + page;
        }
        self.keys.flip.next = self.flip.val();
        self.bad.next = self.keys.bad.val();
        self.region.next = self.result.q.val();
        self.port.next = self.ports[4].q.val();
        self.region_valid.next = self.valid[4].q.val();
    }
}
