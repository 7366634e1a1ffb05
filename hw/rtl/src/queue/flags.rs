//! A bit per queue, and a round-robin finder of set bits: what the work queues and the scheduler are made of.
//!
//! ```text
//! cycle    0        1          2           3           4
//! Scan     bits     any/group  group       its 32 bits  lowest bit -> pick
//! ```
//! Both work on groups of 32 bits, so that no path is wider than that. The finder takes a group's bits once and hands
//! them out one a cycle before it turns to the next group: each set bit is found once a round. It waits only for its
//! output to be taken.

use crate::{msg::Qp, stream::Source};
use hdl::prelude::*;

/// Bits of a group, and groups in the largest vector.
const GROUP: usize = 32;
const GROUPS: usize = 128;

/// Whether bit vectors can have `n` bits: 32, or a multiple of 64 up to 4,096.
pub const fn is_size(n: usize) -> bool {
    n == 32 || n.is_multiple_of(64) && n >= 64 && n <= GROUP * GROUPS
}

/// Mask of bit `at`.
#[hdl_fn]
fn one_hot(at: Bits<5>) -> Bits<32> {
    let one: Bits<32> = 1.into();
    one << at
}

/// Number of the only set bit of `x`.
#[hdl_fn]
fn number_of(x: Bits<32>) -> Bits<5> {
    cat!(
        5;
        (x & 0xffff_0000_u64).any(),
        (x & 0xff00_ff00_u64).any(),
        (x & 0xf0f0_f0f0_u64).any(),
        (x & 0xcccc_cccc_u64).any(),
        (x & 0xaaaa_aaaa_u64).any()
    )
}

/// The lowest set bit.
#[hdl_fn]
fn lowest<const M: usize>(x: Bits<M>) -> Bits<M> {
    x & (!x + 1)
}

/// Number of the lowest set bit of `x`; any number where none is.
#[hdl_fn]
pub(super) fn first_of(x: Bits<64>) -> Bits<6> {
    let one = lowest(x);
    let mut n: Bits<6> = 0.into();
    for k in 0..6 {
        let mask = elab!((0..64u64).filter(|i| i >> k & 1 == 1).fold(0, |m, i| m | 1 << i));
        n = n.replace_bit(k, (one & bits::<64>(mask)).any());
    }
    n
}

/// N bits in registers, N as [`is_size`] says. In one cycle a set wins over a clear of the same bit.
#[derive(LogicBlock, Default)]
pub struct Flags<const N: usize> {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// Sets bit `set_at[i]`.
    pub set: Arr<Signal<In, Bit>, 3>,
    pub set_at: Arr<Signal<In, Qp>, 3>,
    /// Clears bit `clear_at`.
    pub clear: Signal<In, Bit>,
    pub clear_at: Signal<In, Qp>,
    /// Clears the bits of group `drop_group`.
    pub drop: Signal<In, Bit>,
    pub drop_group: Signal<In, Bits<7>>,
    pub bits: Signal<Out, Bits<N>>,
    group: Arr<Reg<Bits<32>>, GROUPS>,
}

impl<const N: usize> Logic for Flags<N> {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, group);
        let clear_mask = !one_hot(self.clear_at.val().get_bits::<5>(0));
        let masks = cat!(
            96;
            one_hot(self.set_at[2].val().get_bits::<5>(0)),
            one_hot(self.set_at[1].val().get_bits::<5>(0)),
            one_hot(self.set_at[0].val().get_bits::<5>(0))
        );
        self.bits.next = 0.into();
        for g in 0..N / GROUP {
            let old = self.group[g].q.val();
            let mut new = old;
            if self.drop.val() && self.drop_group.val() == g {
                new = 0.into();
            }
            if self.clear.val() && self.clear_at.val().get_bits::<7>(5) == g {
                new = new & clear_mask;
            }
            for s in 0..3 {
                if self.set[s].val() && self.set_at[s].val().get_bits::<7>(5) == g {
                    new = new | masks.get_bits::<32>(GROUP * s);
                }
            }
            self.group[g].d.next = new;
            self.bits.next.set_bits::<32>(GROUP * g, old);
        }
    }
}

/// Finds the set bits of N, round robin. `take` tells that the bits of `group` are taken: their owner may clear them.
#[derive(LogicBlock, Default)]
pub struct Scan<const N: usize> {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    pub bits: Signal<In, Bits<N>>,
    pub take: Signal<Out, Bit>,
    pub group: Signal<Out, Bits<7>>,
    pub pick: Source<Qp>,
    any: Reg<Bits<128>>,
    /// Group to look into (one bit), its bits, and the group whose bits are handed out.
    look: Reg<Bits<128>>,
    look_valid: Reg<Bit>,
    ahead: Reg<Bits<32>>,
    ahead_any: Reg<Bit>,
    ahead_group: Reg<Bits<7>>,
    now: Reg<Bits<32>>,
    now_any: Reg<Bit>,
    now_group: Reg<Bits<7>>,
    out: Reg<Qp>,
    out_valid: Reg<Bit>,
}

impl<const N: usize> Logic for Scan<N> {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, any, look, look_valid, ahead, ahead_any, ahead_group, now, now_any, now_group);
        regs!(self, clock, rst, out, out_valid);
        let set = self.bits.val();
        let mut any: Bits<128> = 0.into();
        let mut word: Bits<32> = 0.into();
        let mut some_here: Bit = false;
        let mut number: Bits<7> = 0.into();
        let look = self.look.q.val();
        for g in 0..N / GROUP {
            let group = set.get_bits::<32>(GROUP * g);
            any = any.replace_bit(g, group.any());
            if look.get_bit(g) {
                word = word | group;
                number = number | bits::<7>(g as u64);
            }
            some_here = some_here || look.get_bit(g) && group.any();
        }
        self.any.d.next = any;

        // Hand out the lowest bit of the present group, or when that has none left, of the next.
        let free = !self.out_valid.q.val() || self.pick.ready.val();
        let goes_on = !self.now_any.q.val();
        let some = self.now_any.q.val() || self.ahead_any.q.val();
        let now = if goes_on { self.ahead.q.val() } else { self.now.q.val() };
        let group = if goes_on { self.ahead_group.q.val() } else { self.now_group.q.val() };
        let one = lowest(now);
        let rest = now & !one;
        if free {
            self.out_valid.d.next = some;
            self.out.d.next = cat!(group, number_of(one));
        }
        self.now.d.next = if free { rest } else { now };
        self.now_any.d.next = if free { rest.any() } else { some };
        self.now_group.d.next = group;
        if goes_on {
            self.ahead.d.next = 0.into();
            self.ahead_any.d.next = false;
        }

        // Take the bits of the group that was chosen.
        let take = self.look_valid.q.val() && (goes_on || !self.ahead_any.q.val());
        if take {
            self.ahead.d.next = word;
            self.ahead_any.d.next = some_here;
            self.ahead_group.d.next = number;
        }
        self.take.next = take;
        self.group.next = number;

        // Choose a group: the next one above the last, else the lowest.
        if take || !self.look_valid.q.val() {
            let some = self.any.q.val();
            let above = some & !(look | (look - 1));
            self.look_valid.d.next = some.any();
            self.look.d.next = if above.any() { lowest(above) } else { lowest(some) };
        }
        self.pick.valid.next = self.out_valid.q.val();
        self.pick.data.next = self.out.q.val();
    }
}
