//! Expression shapes whose meaning in Verilog depends on context widths: stock RustHDL gets nine of them wrong.
use hdl::prelude::*;
use hdl_check::{Randomize, combinational};

#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct P {
    x: Bits<24>,
    y: Bit,
    z: Bits<7>,
}
#[derive(LogicBlock, Default)]
struct Operators {
    pub a: Signal<In, Bits<24>>,
    pub b: Signal<In, Bits<24>>,
    pub s: Signal<In, Bits<5>>,
    pub w: Signal<In, Bits<512>>,
    pub index: Signal<In, Bits<9>>,
    pub psn_compare: Signal<Out, Bit>,
    pub psn_compare_local: Signal<Out, Bit>,
    pub psn_compare_bits: Signal<Out, Bit>,
    pub psn_compare_wide: Signal<Out, Bit>,
    pub add_literal: Signal<Out, Bit>,
    pub sub_equal: Signal<Out, Bit>,
    pub cast_add: Signal<Out, Bits<32>>,
    pub cast_not: Signal<Out, Bits<32>>,
    pub precedence: Signal<Out, Bit>,
    pub shift_sum: Signal<Out, Bits<24>>,
    pub minus_one: Signal<Out, Bits<24>>,
    pub dynamic_slice: Signal<Out, Bits<32>>,
    pub shift_left: Signal<Out, Bits<512>>,
    pub shift_right: Signal<Out, Bits<512>>,
    pub shift_dynamic: Signal<Out, Bits<512>>,
    pub shift_twice: Signal<Out, Bits<512>>,
    pub add_wide: Signal<Out, Bits<512>>,
    pub replace: Signal<Out, Bits<512>>,
    pub truncate: Signal<Out, Bits<8>>,
    pub shift_literal: Signal<Out, Bits<24>>,
    pub structure: Signal<Out, P>,
    pub not_compare: Signal<Out, Bit>,
    pub nested: Signal<Out, Bits<24>>,
    pub bit_by_bit: Signal<Out, Bits<24>>,
    pub rotated: Signal<Out, Bits<24>>,
    t: Signal<Local, Bits<24>>,
}
impl Logic for Operators {
    #[kernel]
    fn update(&mut self) {
        self.psn_compare.next = (self.a.val() - self.b.val()) < 0x800000;
        self.t.next = self.a.val() - self.b.val();
        self.psn_compare_local.next = self.t.val() < 0x800000;
        self.psn_compare_bits.next = (self.a.val() - self.b.val()) < bits::<24>(0x800000);
        self.psn_compare_wide.next = bit_cast::<32, 24>(self.a.val() - self.b.val()) < 0x800000;
        self.add_literal.next = (self.a.val() + 1) == 0;
        self.sub_equal.next = (self.a.val() - self.b.val()) == 0xfffffe;
        self.cast_add.next = bit_cast::<32, 24>(self.a.val() + self.b.val());
        self.cast_not.next = bit_cast::<32, 24>(!self.a.val());
        self.precedence.next = self.a.val() & self.b.val() == self.b.val();
        self.shift_sum.next = (self.a.val() + self.b.val()) >> 1;
        self.minus_one.next = self.a.val() - 1;
        self.dynamic_slice.next = self.w.val().get_bits::<32>(self.index.val().index());
        self.shift_left.next = self.w.val() << 200;
        self.shift_right.next = self.w.val() >> 200;
        self.shift_dynamic.next = self.w.val() >> self.index.val();
        self.shift_twice.next =
            ((self.w.val() << self.s.val()) << self.s.val()) ^ ((self.w.val() >> self.s.val()) >> self.s.val());
        self.add_wide.next = self.w.val() + 1;
        self.replace.next = self.w.val().replace_bit(300, self.a.val().get_bit(0));
        self.truncate.next = bit_cast::<8, 24>(self.a.val() >> 4);
        self.shift_literal.next = self.a.val() << 4;
        self.structure.next.x = self.a.val();
        self.structure.next.y = self.a.val() == self.b.val();
        self.structure.next.z = bit_cast::<7, 5>(self.s.val());
        self.not_compare.next = (!self.a.val()) == 0;
        let mut m = self.a.val();
        for i in 0..24 {
            m = m.replace_bit(i, self.b.val().get_bit(23 - i) ^ m.get_bit((i + 1) % 24));
        }
        self.bit_by_bit.next = m;
        m = cat!(m.get_bits::<8>(16), m.get_bits::<8>(0), m.get_bits::<8>(8));
        self.rotated.next = cat!(m.get_bits::<4>(20), m.get_bits::<20>(0));
        self.rotated.next = self.rotated.val().replace_bit(5, true);
        self.nested.next = self.a.val() - (self.b.val() - (self.a.val() + self.b.val())) - self.a.val();
    }
}

#[test]
fn operators() {
    combinational(Operators::default, 1000, |u, r| {
        u.a.randomize(r);
        u.b.randomize(r);
        u.s.randomize(r);
        u.w.randomize(r);
        u.index.randomize(r);
        // PSNs that are equal, and two apart
        match r.next_u32() % 8 {
            0 => u.b.next = u.a.next,
            1 => u.a.next = u.b.next - 2,
            _ => {}
        }
    })
}
use rand::Rng as _;
