//! Builds the headers of a frame from its head and rows, and writes them in slices of a beat. For [`prepare`](super::prepare).
//!
//! A wide datapath builds all of them at once, and shifts them out:
//! ```text
//! cycle      0    1    2
//! start      A
//! slices     A0   A1
//! ```
//! One of 64 bits takes them word by word, which needs a tenth of the multiplexers. Behind the Ethernet header all is words of
//! 4 bytes, which stand 2 bytes behind a multiple of 4: half of each word waits in `carry` for the next one.
//! ```text
//! cycle      0    1    2    3    4    5    6  ..  n    n+1
//! start      A                                    B         n words; the next start is n cycles later at the earliest
//! word            A1   A2   A3   A4   A5   A6 ..  An   B1
//! unit                 A1   A2   A3   A4   A5
//! slices                    A0        A1
//! built                                    1                what is not yet written will be, before it is read beat by beat
//! ```
//! Nothing here waits.

use super::headers::{self, ADDRESS_BITS, Exts, GID_BITS, MAX_BITS};
use crate::msg::TxHead;
use hdl::prelude::*;

/// What headers are made of.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Parts {
    pub head: TxHead,
    pub address: Bits<ADDRESS_BITS>,
    pub gid: Bits<GID_BITS>,
    pub ip6: Bit,
    pub tagged: Bit,
    pub udp_len: Bits<16>,
    /// Bytes of the headers.
    pub length: Bits<7>,
    /// Where they go.
    pub row: Bits<4>,
}

/// Words of 4 bytes, in their order. The MAC's first 2 bytes are in front of them.
mod word {
    /// Nothing more: zeros.
    pub const NONE: u64 = 0;
    pub const MACS: u64 = 1;
    /// The last MAC bytes, and a type.
    pub const TYPE: u64 = 3;
    /// Tag and type.
    pub const TAG: u64 = 4;
    pub const IPV4: u64 = 5;
    pub const IPV6: u64 = 10;
    pub const UDP: u64 = 20;
    pub const BTH: u64 = 22;
    pub const LAST_BTH: u64 = 24;
    pub const RETH: u64 = 25;
    /// RETH's key, and DETH.
    pub const KEY: u64 = 27;
    pub const DMA_LEN: u64 = 28;
    pub const SOURCE: u64 = 29;
    pub const AETH: u64 = 30;
    pub const IMM: u64 = 31;
}

/// See the [module](self).
#[derive(LogicBlock)]
pub struct Builder<const W: usize> {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// The parts are there, and (in the cycle before, from the same parts but the GID) half of the checksum.
    pub start: Signal<In, Bit>,
    pub parts: Signal<In, Parts>,
    pub sum: Signal<In, Bits<20>>,
    /// Slice `wslice` of the headers of a row.
    pub we: Signal<Out, Bit>,
    pub wrow: Signal<Out, Bits<4>>,
    pub wslice: Signal<Out, Bits<4>>,
    pub wdata: Signal<Out, Bits<W>>,
    /// Word by word: a start may come [`LEAD`] cycles later; the headers of this row may be read from two cycles later on, a slice a cycle.
    pub may: Signal<Out, Bit>,
    pub built: Signal<Out, Bit>,
    pub built_row: Signal<Out, Bits<4>>,
    // At once.
    rest: DFF<Bits<MAX_BITS>>,
    rest_left: Reg<Bits<7>>,
    rest_row: DFF<Bits<4>>,
    rest_slice: DFF<Bits<4>>,
    // Word by word.
    now: DFF<Parts>,
    /// The first word behind the BTH.
    ext: DFF<Bits<5>>,
    has: DFF<Exts>,
    whole_sum: DFF<Bits<20>>,
    checksum: DFF<Bits<16>>,
    word: Reg<Bits<5>>,
    left: Reg<Bits<5>>,
    half: DFF<Bits<5>>,
    half_way: Reg<Bit>,
    half_row: DFF<Bits<4>>,
    going: Reg<Bit>,
    unit: DFF<Bits<32>>,
    ends: DFF<Bit>,
    opens: DFF<Bit>,
    first_bytes: DFF<Bits<16>>,
    unit_row: DFF<Bits<4>>,
    carry: DFF<Bits<16>>,
    low: DFF<Bits<32>>,
    odd: Reg<Bit>,
    slice: DFF<Bits<4>>,
}

/// Cycles from [`Builder::may`] to a start.
pub const LEAD: u64 = 13;

impl<const W: usize> Default for Builder<W> {
    fn default() -> Self {
        Builder {
            clock: Default::default(),
            rst: Default::default(),
            start: Default::default(),
            parts: Default::default(),
            sum: Default::default(),
            we: Default::default(),
            wrow: Default::default(),
            wslice: Default::default(),
            wdata: Default::default(),
            may: Default::default(),
            built: Default::default(),
            built_row: Default::default(),
            rest: Default::default(),
            rest_left: Default::default(),
            rest_row: Default::default(),
            rest_slice: Default::default(),
            now: Default::default(),
            ext: Default::default(),
            has: Default::default(),
            whole_sum: Default::default(),
            checksum: Default::default(),
            word: Default::default(),
            left: Default::default(),
            half: Default::default(),
            half_way: Default::default(),
            half_row: Default::default(),
            going: Default::default(),
            unit: Default::default(),
            ends: Default::default(),
            opens: Default::default(),
            first_bytes: Default::default(),
            unit_row: Default::default(),
            carry: Default::default(),
            low: Default::default(),
            odd: Default::default(),
            slice: Default::default(),
        }
    }
}

/// The first word behind the BTH.
#[hdl_fn]
fn first_ext(has: Exts) -> Bits<5> {
    if has.reth || has.atomic {
        bits::<5>(word::RETH)
    } else if has.deth {
        bits::<5>(word::KEY)
    } else if has.aeth {
        bits::<5>(word::AETH)
    } else if has.imm {
        bits::<5>(word::IMM)
    } else {
        bits::<5>(word::NONE)
    }
}

/// The word behind `at`, in a frame with that word behind the BTH.
#[hdl_fn]
fn behind(at: Bits<5>, ip6: Bit, tagged: Bit, has: Exts, ext: Bits<5>) -> Bits<5> {
    let ip: Bits<5> = if ip6 { bits::<5>(word::IPV6) } else { bits::<5>(word::IPV4) };
    if at == word::TYPE {
        if tagged { bits::<5>(word::TAG) } else { ip }
    } else if at == word::TAG {
        ip
    } else if at == word::IPV6 - 1 {
        bits::<5>(word::UDP)
    } else if at == word::LAST_BTH {
        ext
    } else if at == word::KEY && has.deth {
        bits::<5>(word::SOURCE)
    } else if at == word::KEY && has.atomic || at == word::KEY - 1 && has.value {
        bits::<5>(word::NONE)
    } else if at == word::AETH && has.value {
        bits::<5>(word::RETH)
    } else if at == word::DMA_LEN || at == word::SOURCE || at == word::AETH {
        if has.imm { bits::<5>(word::IMM) } else { bits::<5>(word::NONE) }
    } else if at == word::IMM || at == word::NONE {
        bits::<5>(word::NONE)
    } else {
        at + 1
    }
}

/// That word.
#[hdl_fn]
fn word_of(at: Bits<5>, p: Parts, checksum: Bits<16>) -> Bits<32> {
    let (macs, tag, kind) =
        (headers::macs(p.address, p.gid), headers::tag(p.address, p.gid), headers::ethertype(p.ip6));
    let v4 = headers::ipv4(p.address, p.gid, p.udp_len, checksum);
    let v6 = headers::ipv6(p.address, p.gid, p.udp_len);
    let (udp, bth) = (headers::udp(p.address, p.udp_len), headers::bth(p.head, p.address));
    let (reth, deth) = (headers::reth(p.head), headers::deth(p.head));
    let mut word: Bits<32> = 0.into();
    for k in 0..2 {
        if at == word::MACS + k as u64 {
            word = macs.get_bits::<32>(16 + 32 * k);
        }
        if at == word::UDP + k as u64 {
            word = udp.get_bits::<32>(32 * k);
        }
        if at == word::RETH + k as u64 {
            word = reth.get_bits::<32>(32 * k);
        }
    }
    for k in 0..3 {
        if at == word::BTH + k as u64 {
            word = bth.get_bits::<32>(32 * k);
        }
    }
    for k in 0..5 {
        if at == word::IPV4 + k as u64 {
            word = v4.get_bits::<32>(32 * k);
        }
    }
    for k in 0..10 {
        if at == word::IPV6 + k as u64 {
            word = v6.get_bits::<32>(32 * k);
        }
    }
    if at == word::TYPE {
        let first = if p.tagged { tag.get_bits::<16>(0) } else { kind };
        word = cat!(first, macs.get_bits::<16>(80));
    }
    if at == word::TAG {
        word = cat!(kind, tag.get_bits::<16>(16));
    }
    if at == word::KEY {
        word = deth.get_bits::<32>(0);
    }
    if at == word::DMA_LEN {
        word = reth.get_bits::<32>(96);
    }
    if at == word::SOURCE {
        word = deth.get_bits::<32>(32);
    }
    if at == word::AETH {
        word = headers::aeth(p.head);
    }
    if at == word::IMM {
        word = p.head.imm;
    }
    word
}

impl<const W: usize> Logic for Builder<W> {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, rest_left, word, left, half_way, going, odd);
        dff_setup!(self, clock, rest, rest_row, rest_slice, now, ext, has, whole_sum, checksum, half, half_row);
        dff_setup!(self, clock, unit, ends, opens, first_bytes, unit_row, carry, low, slice);
        let start = self.start.val();
        let parts = self.parts.val();
        if elab!(W > 64) {
            let mut all: Bits<MAX_BITS> = 0.into();
            if start {
                all = headers::header(parts.head, parts.address, parts.gid, parts.ip6, parts.tagged, parts.udp_len);
                if !parts.ip6 {
                    let sum = headers::checksum_add(self.sum.val(), parts.gid);
                    all = all | headers::checksum_in_place(sum, parts.tagged);
                }
            }
            let left = self.rest_left.q.val();
            let rest = self.rest.q.val();
            let bytes = if start { parts.length } else { left };
            let slice: Bits<4> = if start { 0.into() } else { self.rest_slice.q.val() };
            self.we.next = start || left.any();
            self.wrow.next = if start { parts.row } else { self.rest_row.q.val() };
            self.wslice.next = slice;
            self.wdata.next = if start { all.get_bits::<W>(0) } else { rest.get_bits::<W>(0) };
            if start || left.any() {
                self.rest.d.next = if start { all >> W as u64 } else { rest >> W as u64 };
                self.rest_left.d.next = if bytes > W as u64 / 8 { bytes - W as u64 / 8 } else { 0.into() };
                self.rest_slice.d.next = slice + 1;
            }
            if start {
                self.rest_row.d.next = parts.row;
            }
            self.may.next = true;
            self.built.next = start;
            self.built_row.next = parts.row;
        } else {
            // Which word is next.
            let now = self.now.q.val();
            let has = self.has.q.val();
            let left = self.left.q.val();
            let words = ((parts.length + 2) >> 2).cast::<5>();
            if start {
                self.now.d.next = parts;
                self.has.d.next = headers::exts(parts.head.opcode);
                self.whole_sum.d.next = headers::checksum_add(self.sum.val(), parts.gid);
                self.word.d.next = bits::<5>(word::MACS);
                self.left.d.next = if parts.length.any() { words } else { 1.into() };
                self.half.d.next = if parts.length.any() { (words >> 1) + 1 } else { 1.into() };
            } else if left.any() {
                self.word.d.next = behind(self.word.q.val(), now.ip6, now.tagged, has, self.ext.q.val());
                self.left.d.next = left - 1;
            }
            self.ext.d.next = first_ext(has);
            self.checksum.d.next = headers::checksum_end(self.whole_sum.q.val());
            self.may.next = left <= LEAD + 1;
            self.half_way.d.next = left.any() && left == self.half.q.val();
            self.half_row.d.next = now.row;
            self.built.next = self.half_way.q.val();
            self.built_row.next = self.half_row.q.val();

            // The word itself.
            self.going.d.next = left.any() && now.length.any();
            self.unit.d.next = word_of(self.word.q.val(), now, self.checksum.q.val());
            self.ends.d.next = left == 1;
            self.opens.d.next = self.word.q.val() == word::MACS;
            self.first_bytes.d.next = headers::macs(now.address, now.gid).get_bits::<16>(0);
            self.unit_row.d.next = now.row;

            // Two words with what was left before them are a slice.
            let unit = self.unit.q.val();
            let opens = self.opens.q.val();
            let odd = self.odd.q.val() && !opens;
            let before = if opens { self.first_bytes.q.val() } else { self.carry.q.val() };
            let whole: Bits<32> = cat!(unit.get_bits::<16>(0), before);
            let slice: Bits<4> = if opens { 0.into() } else { self.slice.q.val() };
            if self.going.q.val() {
                self.carry.d.next = unit.get_bits::<16>(16);
                self.low.d.next = whole;
                self.odd.d.next = !odd;
                self.slice.d.next = if odd { slice + 1 } else { slice };
            }
            self.we.next = self.going.q.val() && (odd || self.ends.q.val());
            self.wrow.next = self.unit_row.q.val();
            self.wslice.next = slice;
            let low = if odd { self.low.q.val() } else { whole };
            let high: Bits<32> = if odd { whole } else { 0.into() };
            self.wdata.next = cat!(64; high, low).cast::<W>();
        }
    }
}
