//! Every construct of a kernel, combinational: the Rust model against Verilog.
use hdl::prelude::*;
use hdl_check::{Randomize, bits_of, combinational};
use rand::{Rng as _, RngExt as _};

mod opcode {
    pub const RC_ACK: u8 = 0x11;
    pub const RC_WRITE_ONLY: u8 = 0x0a;
    pub const CNP: u8 = 0x81;
}
use opcode::RC_ACK;
const ROCE_PORT: u16 = 4791;
const PSN_HALF: u64 = 0x80_0000;
const OFF_BTH: usize = 42;
const BIG: u128 = 0xdead_beef_cafe_f00d_0123_4567_89ab_cdef;
const HI: u64 = 0xffff_ffff_8000_0001;

#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Inner {
    pub x: Bits<8>,
    pub ok: Bit,
    pub y: Bits<7>,
}
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Outer {
    a: Bits<4>,
    i: Inner,
    b: Bits<12>,
    j: Inner,
}
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Pair<const N: usize> {
    pub lo: Bits<N>,
    pub hi: Inner,
}
#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
pub enum St {
    Idle,
    Run,
    Wait,
    Stop,
    Bad,
}

#[hdl_fn]
fn be16(hi: Bits<8>, lo: Bits<8>) -> Bits<16> {
    cat!(hi, lo)
}
#[hdl_fn]
fn psn_lt(a: Bits<24>, b: Bits<24>) -> bool {
    let d = a - b;
    d >= PSN_HALF
}
#[hdl_fn]
fn max<const N: usize>(a: Bits<N>, b: Bits<N>) -> Bits<N> {
    if a > b { a } else { b }
}
#[hdl_fn]
fn byte<const N: usize>(x: Bits<N>, i: usize) -> Bits<8> {
    x.get_bits::<8>(i * 8)
}
#[hdl_fn]
fn popcount8(x: Bits<8>) -> Bits<4> {
    let mut n: Bits<4> = 0.into();
    for i in 0..=7 {
        if x.get_bit(i) {
            n += 1
        }
    }
    n
}
#[hdl_fn]
fn minmax(a: Bits<24>, b: Bits<24>) -> (Bits<24>, Bits<24>) {
    let lo = if a < b { a } else { b };
    let hi = max::<24>(a, b);
    (lo, hi)
}
#[hdl_fn]
fn mk(x: Bits<8>, ok: bool) -> Inner {
    Inner { x, ok, y: x.get_bits::<7>(1) }
}
mod util {
    use hdl::prelude::*;
    #[hdl_fn]
    pub fn swap_nibbles(x: Bits<8>) -> Bits<8> {
        cat!(x.get_bits::<4>(0), x.get_bits::<4>(4))
    }
}
use util::swap_nibbles;
const LOCAL_K: u64 = 0x1234;

#[derive(LogicBlock, Default)]
struct Constructs {
    pub a: Signal<In, Bits<24>>,
    pub b: Signal<In, Bits<24>>,
    pub op: Signal<In, Bits<8>>,
    pub s: Signal<In, Bits<3>>,
    pub w: Signal<In, Bits<512>>,
    pub c: Signal<In, Bit>,
    pub d: Signal<In, Bit>,
    pub arr: [Signal<In, Bits<8>>; 4],
    pub sti: Signal<In, Bits<3>>,
    pub o_let: Signal<Out, Bits<24>>,
    pub o_letcut: Signal<Out, Bit>,
    pub o_slice: Signal<Out, Bits<8>>,
    pub o_slicebit: Signal<Out, Bit>,
    pub o_shadow: Signal<Out, Bits<24>>,
    pub o_loop: [Signal<Out, Bits<8>>; 4],
    pub o_inif: Signal<Out, Bits<24>>,
    pub o_const: Signal<Out, Bits<4>>,
    pub o_constoff: Signal<Out, Bits<8>>,
    pub o_bitsk: Signal<Out, Bits<24>>,
    pub o_into: Signal<Out, Bits<24>>,
    pub o_big: Signal<Out, Bits<128>>,
    pub o_hi: Signal<Out, Bits<64>>,
    pub o_incl: Signal<Out, Bits<8>>,
    pub o_ifx: Signal<Out, Bits<24>>,
    pub o_ifx3: Signal<Out, Bits<8>>,
    pub o_matchx: Signal<Out, Bits<8>>,
    pub o_match: Signal<Out, Bits<4>>,
    pub o_matchbool: Signal<Out, Bits<4>>,
    pub o_enum: Signal<Out, Bits<4>>,
    pub o_enumx: Signal<Out, Bits<4>>,
    pub o_st: Signal<Out, Outer>,
    pub o_nest: Signal<Out, Bits<8>>,
    pub o_nest2: Signal<Out, Bits<7>>,
    pub o_structs: [Signal<Out, Inner>; 2],
    pub o_2d: Signal<Out, Bits<8>>,
    pub o_lit: Signal<Out, Inner>,
    pub o_varst: Signal<Out, Outer>,
    pub o_be16: Signal<Out, Bits<16>>,
    pub o_psnlt: Signal<Out, Bit>,
    pub o_max: Signal<Out, Bits<24>>,
    pub o_byte: Signal<Out, Bits<8>>,
    pub o_pop: Signal<Out, Bits<4>>,
    pub o_minmax: Signal<Out, Bits<24>>,
    pub o_nib: Signal<Out, Bits<8>>,
    pub o_mk: Signal<Out, Inner>,
    pub o_nestfn: Signal<Out, Bits<16>>,
    pub o_cat: Signal<Out, Bits<32>>,
    pub o_catbit: Signal<Out, Bits<26>>,
    pub o_bswap: Signal<Out, Bits<24>>,
    pub o_bswap64: Signal<Out, Bits<512>>,
    pub o_catk: Signal<Out, Bits<40>>,
    pub o_mut: Signal<Out, Bits<8>>,
    pub o_prio: Signal<Out, Bits<5>>,
    pub o_setbits: Signal<Out, Bits<32>>,
    pub o_dynset: Signal<Out, Bits<32>>,
    pub o_andor: Signal<Out, Bit>,
    pub o_cmpk: Signal<Out, Bits<6>>,
    pub o_revlit: Signal<Out, Bits<24>>,
    pub o_addbool: Signal<Out, Bits<24>>,
    pub o_mul: Signal<Out, Bits<32>>,
    pub o_elab: Signal<Out, Bits<8>>,
    pub o_stat: Signal<Out, Bits<8>>,
    pub o_tab: Signal<Out, Bits<8>>,
    pub o_latelocal: Signal<Out, Bits<24>>,
    pub o_constsig: Signal<Out, Bits<24>>,
    pub o_wide: Signal<Out, Bits<512>>,
    pub o_dynbit: Signal<Out, Bit>,
    pub o_dynbyte: Signal<Out, Bits<8>>,
    pub o_shl: Signal<Out, Bits<24>>,
    pub o_cast: Signal<Out, Bits<40>>,
    pub o_not: Signal<Out, Bit>,
    pub o_wcmp: Signal<Out, Bit>,
    pub o_neststr: Signal<Out, Bits<8>>,
    pub o_mux: Signal<Out, Bits<8>>,
    pub o_muxv: Signal<Out, Bits<24>>,
    pub o_muxst: Signal<Out, Bits<8>>,
    pub o_demux: [Signal<Out, Bits<8>>; 3],
    pub o_2dmux: Signal<Out, Bits<8>>,
    pub o_pack: Signal<Out, Bits<44>>,
    pub o_unpack: Signal<Out, Outer>,
    pub o_generic: Signal<Out, Pair<12>>,
    pub o_enumbits: Signal<Out, Bits<3>>,
    pub o_constshift: Signal<Out, Bits<24>>,
    pub o_widemux: Signal<Out, Bits<512>>,
    pub o_revcase: Signal<Out, Bits<8>>,
    t: Signal<Local, Bits<24>>,
    g: [[Signal<Local, Bits<8>>; 2]; 3],
    so: Signal<Local, Outer>,
    ss: [Signal<Local, Inner>; 3],
    st: Signal<Local, St>,
    acc: Signal<Local, Bits<8>>,
    dy: Signal<Local, Bits<32>>,
    _n: usize,
    _tab: [u64; 4],
}
impl Logic for Constructs {
    #[kernel]
    fn update(&mut self) {
        // 1. let
        let x = self.a.val() + self.b.val();
        self.o_let.next = x ^ (x << 1);
        let diff = self.a.val() - self.b.val();
        self.o_letcut.next = diff < 0x800000;
        self.o_slice.next = (self.a.val() ^ self.b.val()).get_bits::<8>(5) ^ x.get_bits::<8>(16);
        self.o_slicebit.next =
            (self.a.val() + self.b.val()).get_bit(23) ^ x.get_bits::<12>(4).get_bits::<4>(8).get_bit(3);
        let x = x + 1;
        {
            let x = x & 0xff00ff;
            self.t.next = x;
        }
        self.o_shadow.next = x ^ self.t.val();
        for i in 0..4 {
            let v = self.arr[i].val() + self.op.val();
            let v: Bits<8> = v + (i as u64);
            self.o_loop[i].next = v;
        }
        self.o_inif.next = 7.into();
        if self.c.val() {
            let y: Bits<24> = x - self.b.val();
            if y.any() {
                let z = y >> 3;
                self.o_inif.next = z ^ y;
            }
        } else if self.d.val() {
            let y = self.a.val();
            self.o_inif.next = y;
        }
        // 2. consts
        self.o_const.next = 0.into();
        if self.op.val() == RC_ACK {
            self.o_const.next = 1.into();
        } else if self.op.val() == opcode::RC_WRITE_ONLY {
            self.o_const.next = 2.into();
        } else if opcode::CNP <= self.op.val() {
            self.o_const.next = 3.into();
        }
        self.o_constoff.next =
            self.w.val().get_bits::<8>(OFF_BTH * 8) ^ self.w.val().get_bits::<{ OFF_BTH - 34 }>(511 - OFF_BTH);
        self.o_bitsk.next = self.a.val() ^ bits::<24>(PSN_HALF) ^ bits::<24>(LOCAL_K + 1);
        self.o_into.next = if self.c.val() { PSN_HALF.into() } else { ROCE_PORT.to_bits() };
        self.o_big.next = BIG.to_bits::<128>() ^ self.w.val().get_bits::<128>(3);
        self.o_hi.next = self.w.val().get_bits::<64>(64) + HI;
        // 3. inclusive ranges, consts as bounds
        const LAST: usize = 3;
        self.acc.next = 0.into();
        for i in 1..=LAST {
            self.acc.next = self.acc.val() + self.arr[i].val();
        }
        for i in (0..OFF_BTH - 40).rev() {
            self.acc.next = (self.acc.val() << 1) ^ self.arr[i].val();
        }
        self.o_incl.next = self.acc.val();
        // 4. if and match as expressions
        self.o_ifx.next = if self.c.val() {
            self.a.val()
        } else if self.d.val() {
            self.b.val()
        } else {
            bits::<24>(5)
        };
        let y = if x.get_bit(0) {
            self.arr[0].val()
        } else {
            let q = self.arr[1].val() + 1;
            q ^ self.arr[2].val()
        };
        self.o_ifx3.next = y + (if self.d.val() { self.arr[3].val() } else { 1.into() });
        let m = match self.op.val() {
            0x00 | 0x02 => self.arr[0].val(),
            RC_ACK => self.arr[1].val(),
            opcode::CNP | 0x04 => bits::<8>(0x55),
            _ => {
                let k = self.arr[2].val();
                !k
            }
        };
        self.o_matchx.next = m;
        // 5. patterns
        self.o_match.next = 0.into();
        match self.op.val().get_bits::<4>(0) {
            0 => self.o_match.next = 9.into(),
            1 | 2 | 3 => {
                self.o_match.next = 1.into();
                if self.c.val() {
                    self.o_match.next = 2.into();
                }
            }
            15 => {}
            _ => self.o_match.next = self.op.val().get_bits::<4>(4),
        }
        if self.op.val().get_bits::<4>(0) == 15 {
            self.o_match.next = 14.into();
        }
        self.o_matchbool.next = match self.c.val() {
            true => 3.into(),
            false => 4.into(),
        };
        self.st.next = match self.sti.val() {
            0 => St::Idle,
            1 => St::Run,
            2 => St::Wait,
            3 => St::Stop,
            _ => St::Bad,
        };
        match self.st.val() {
            St::Idle | St::Run => self.o_enum.next = 1.into(),
            St::Wait => self.o_enum.next = 2.into(),
            St::Stop | St::Bad => self.o_enum.next = 3.into(),
        }
        let e = match self.st.val() {
            St::Run => bits::<4>(1),
            St::Bad => 2.into(),
            _ => self.op.val().get_bits::<4>(0),
        };
        self.o_enumx.next = if self.st.val() == St::Stop { 15.into() } else { e };
        // 6. structs, nested, arrays of them, 2-D arrays
        self.so.next.a = self.op.val().get_bits::<4>(2);
        self.so.next.b = self.a.val().get_bits::<12>(1);
        self.so.next.i = mk(self.op.val(), self.c.val());
        self.so.next.j.x = self.arr[0].val();
        self.so.next.j.ok = self.d.val();
        self.so.next.j.y = 0x2a.into();
        self.o_st.next = self.so.val();
        self.o_nest.next = self.so.val().i.x + self.so.val().j.x;
        let o = self.so.val();
        self.o_nest2.next = if o.j.ok { o.i.y } else { o.j.y };
        self.o_neststr.next = o.j.x.get_bits::<4>(2).cast::<8>();
        for i in 0..3 {
            self.ss[i].next = mk(self.arr[i].val(), self.c.val());
            self.ss[i].next.y = i.to_bits();
        }
        for i in 0..2 {
            self.o_structs[i].next = self.ss[i + 1].val();
            self.o_structs[i].next.x = self.ss[i].val().x;
        }
        for i in 0..3 {
            for j in 0..2 {
                self.g[i][j].next = self.arr[i].val() + ((i * 16 + j) as u64);
            }
        }
        self.o_2d.next = self.g[2][1].val() ^ self.g[1][0].val() ^ self.g[0][1].val();
        self.o_lit.next = Inner { y: self.a.val().get_bits::<7>(3), ok: true, x: self.arr[2].val() };
        let mut v = self.so.val();
        v.b = 0xabc.into();
        if self.c.val() {
            v.i.ok = false;
            v.j = mk(self.arr[3].val(), true);
        }
        v.a = v.a + 1;
        self.o_varst.next = v;
        // 7. functions
        self.o_be16.next = be16(self.arr[0].val(), self.arr[1].val());
        self.o_psnlt.next = psn_lt(self.a.val(), self.b.val());
        self.o_max.next = max::<24>(self.a.val(), max(self.b.val(), bits::<24>(0x400000)));
        self.o_byte.next = byte::<512>(self.w.val(), 63) ^ byte(self.a.val() + self.b.val(), 1);
        self.o_pop.next = popcount8(self.op.val());
        let (lo, hi) = minmax(self.a.val(), self.b.val());
        self.o_minmax.next = hi - lo;
        self.o_nib.next = swap_nibbles(self.op.val()) ^ util::swap_nibbles(self.arr[0].val());
        self.o_mk.next = mk(self.op.val(), self.a.val() == self.b.val());
        self.o_nestfn.next = be16(swap_nibbles(popcount8(self.op.val()).cast::<8>()), 0x5a.into());
        // 8. concatenation
        self.o_cat.next = cat!(self.op.val(), self.arr[0].val(), self.arr[1].val(), self.arr[2].val() + 1);
        self.o_catbit.next = cat!(self.c.val(), self.a.val(), !self.d.val());
        self.o_bswap.next = bswap(self.a.val());
        self.o_bswap64.next = bswap(self.w.val());
        self.o_catk.next = cat!(bits::<8>(0x11), false, self.a.val(), self.s.val(), true, self.sti.val());
        // let mut, set_bits, logic
        let mut n = self.op.val();
        n = n + 1;
        for i in 0..4 {
            n ^= self.arr[i].val();
            if n.get_bit(7) {
                n <<= 1;
            }
        }
        let keep = n;
        n = !n;
        self.o_mut.next = n - keep;
        let mut found = false;
        let mut idx: Bits<5> = 31.into();
        for i in 0..24 {
            if self.a.val().get_bit(i) && !found {
                found = true;
                idx = i.to_bits();
            }
        }
        self.o_prio.next = idx;
        self.o_setbits.next = 0.into();
        for i in 0..4 {
            self.o_setbits.next.set_bits::<8>(24 - i * 8, self.arr[i].val());
        }
        self.dy.next = self.w.val().get_bits::<32>(0);
        self.dy.next.set_bits::<8>(cat!(5; self.s.val().get_bits::<2>(0), bits::<3>(0)).index(), self.op.val());
        self.o_dynset.next = self.dy.val();
        self.o_andor.next =
            self.c.val() && self.d.val() || !self.c.val() && (self.op.val() != 3 && self.a.val() >= self.b.val());
        self.o_cmpk.next = cat!(
            self.op.val() > RC_ACK,
            self.op.val() <= 0x80,
            0x80_0000 > self.a.val(),
            self.a.val() <= self.b.val(),
            self.a.val() != PSN_HALF,
            ROCE_PORT == self.a.val().get_bits::<16>(0)
        );
        self.o_revlit.next = 5 + self.a.val();
        self.o_addbool.next = self.a.val() + self.c.val();
        self.o_mul.next = self.a.val().get_bits::<16>(0) * self.b.val().get_bits::<16>(0);
        // elaboration-time values
        let k = OFF_BTH - 40;
        let k2 = k * 8;
        self.o_elab.next =
            self.w.val().get_bits::<8>(k2) ^ self.w.val().get_bits::<8>(elab!(if OFF_BTH > 3 { 16 } else { 24 }));
        if self._n == 3 {
            self.o_stat.next = self.arr[3].val();
        } else {
            self.o_stat.next = self.arr[0].val();
        }
        let mut tb: Bits<8> = 0.into();
        for i in 0..self._tab.len() {
            tb = tb ^ (self.arr[i].val() & self._tab[i]);
        }
        self.o_tab.next = tb;
        let before = self.t.val();
        self.t.next = self.b.val();
        self.o_latelocal.next = before ^ self.t.val();
        self.o_constsig.next = bits::<24>(0xffffff);
        self.o_wide.next = (self.w.val() << 37) + (self.w.val() >> self.s.val());
        self.o_dynbit.next = self.w.val().get_bits::<8>(9).get_bit(self.s.val().index());
        self.o_dynbyte.next = self.a.val().get_bits::<8>(self.op.val().get_bits::<4>(0).index());
        self.o_shl.next = (self.a.val() - self.b.val()) << self.s.val();
        self.o_cast.next = (self.a.val() + self.b.val()).cast::<40>() + bit_cast::<40, 24>(!self.a.val());
        self.o_not.next = !(!self.a.val() == self.b.val()) & !self.a.val().all();
        // arrays at a run-time index
        self.o_mux.next = self.arr[self.s.val().get_bits::<2>(0).index()].val();
        let nine: Bits<24> = 9.into();
        let list = [self.a.val(), self.b.val(), self.a.val() ^ self.b.val(), nine];
        self.o_muxv.next = list[self.s.val().get_bits::<2>(1).index()];
        let pick = self.s.val().get_bits::<1>(0).index();
        self.o_muxst.next = self.ss[pick].val().x + self.ss[1].val().x;
        for i in 0..3 {
            self.o_demux[i].next = (i as u64).into();
        }
        self.o_demux[self.s.val().get_bits::<1>(2).index()].next = self.op.val();
        self.o_2dmux.next = self.g[self.s.val().get_bits::<1>(0).index()][self.s.val().get_bits::<1>(1).index()].val();
        // pack, unpack, generic structs
        self.o_pack.next =
            cat!(44; pack::<16>(self.so.val().i), self.so.val().b, pack::<16>(mk(self.op.val(), self.c.val())));
        self.o_unpack.next = unpack::<Outer>(self.w.val().get_bits::<48>(77));
        let pair = Pair::<12> { lo: self.a.val().get_bits::<12>(3), hi: mk(self.op.val(), self.d.val()) };
        self.o_generic.next = pair;
        self.o_generic.next.lo = pair.lo + 1;
        self.o_enumbits.next = pack(self.st.val());
        self.o_constshift.next = bits::<24>(0xfffff0) << self.s.val();
        self.o_widemux.next = if self.c.val() {
            self.w.val() + 1
        } else if self.d.val() {
            self.w.val() << 8
        } else {
            0.into()
        };
        self.o_revcase.next = match self.op.val() {
            RC_ACK => 1.into(),
            0x11 | 0x12 => 2.into(),
            _ => 3.into(),
        };
        self.o_wcmp.next = self.w.val().get_bits::<200>(0) < self.w.val().get_bits::<200>(256);
    }
}

#[test]
fn constructs() {
    let make = || Constructs { _n: 3, _tab: [0xff, 0x0f, 0xf0, 0x3c], ..Default::default() };
    let ops = [0u64, 2, 4, 0x0a, 0x11, 0x12, 0x81, 0x82, 0x10, 0x80, 15, 0xff];
    combinational(make, 1500, |u, r| {
        u.a.randomize(r);
        u.b.randomize(r);
        u.op.randomize(r);
        u.s.randomize(r);
        u.w.randomize(r);
        u.sti.randomize(r);
        u.c.randomize(r);
        u.d.randomize(r);
        u.arr.randomize(r);
        if r.random() {
            u.op.next = ops[r.random_range(0..ops.len())].into()
        }
        match r.next_u32() % 8 {
            0 => u.b.next = u.a.next,
            1 => u.a.next = 4791.into(),
            _ => {}
        }
        // an enum holds one of its variants
        let mut w = u.w.next;
        w.set_bits::<8>(0, bits_of(r));
        u.w.next = w;
    })
}
