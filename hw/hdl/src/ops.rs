//! Arithmetic, bitwise operators and the methods of `Bits` on hardware values, with the meaning that RustHDL's `Bits`
//! gives them: results as wide as the operands, shifts that fill with zeros.
use crate::builder::{self, fail};
use crate::ir::{Binary, Id, Op, Reduce};
use crate::value::{Ex, ToEx, ex, new};
use rust_hdl::prelude::Bits;
use std::ops;

fn binary<A>(op: Binary, a: Ex<A>, b: Ex<A>) -> Ex<A> {
    ex(builder::binary(op, a.id, b.id))
}
macro_rules! bits_ops { ($($tr:ident $f:ident $op:ident),*) => { $(
    impl<const N: usize> ops::$tr<Ex<Bits<N>>> for Ex<Bits<N>> {
        type Output = Ex<Bits<N>>;
        fn $f(self, r: Ex<Bits<N>>) -> Self {
            binary(Binary::$op, self, r)
        }
    }
    impl<const N: usize> ops::$tr<Bits<N>> for Ex<Bits<N>> {
        type Output = Ex<Bits<N>>;
        fn $f(self, r: Bits<N>) -> Self {
            binary(Binary::$op, self, r.to_ex())
        }
    }
    impl<const N: usize> ops::$tr<u64> for Ex<Bits<N>> {
        type Output = Ex<Bits<N>>;
        #[track_caller]
        fn $f(self, r: u64) -> Self {
            binary(Binary::$op, self, r.to_ex())
        }
    }
    impl<const N: usize> ops::$tr<Ex<Bits<N>>> for Bits<N> {
        type Output = Ex<Bits<N>>;
        fn $f(self, r: Ex<Bits<N>>) -> Ex<Bits<N>> {
            binary(Binary::$op, self.to_ex(), r)
        }
    }
    impl<const N: usize> ops::$tr<Ex<Bits<N>>> for u64 {
        type Output = Ex<Bits<N>>;
        #[track_caller]
        fn $f(self, r: Ex<Bits<N>>) -> Ex<Bits<N>> {
            binary(Binary::$op, self.to_ex(), r)
        }
    }
)* } }
bits_ops!(Add add Add, Sub sub Sub, BitAnd bitand And, BitOr bitor Or, BitXor bitxor Xor);
macro_rules! bool_ops { ($($tr:ident $f:ident $op:ident),*) => { $(
    impl<R: ToEx<bool>> ops::$tr<R> for Ex<bool> {
        type Output = Ex<bool>;
        fn $f(self, r: R) -> Self {
            binary(Binary::$op, self, r.to_ex())
        }
    }
    impl ops::$tr<Ex<bool>> for bool {
        type Output = Ex<bool>;
        fn $f(self, r: Ex<bool>) -> Ex<bool> {
            binary(Binary::$op, self.to_ex(), r)
        }
    }
)* } }
bool_ops!(BitAnd bitand And, BitOr bitor Or, BitXor bitxor Xor);
macro_rules! shifts { ($($tr:ident $f:ident),*) => { $(
    impl<const N: usize> ops::$tr<u64> for Ex<Bits<N>> {
        type Output = Ex<Bits<N>>;
        fn $f(self, r: u64) -> Self {
            let amount = builder::number(r, 64);
            ex(builder::binary(Binary::$tr, self.id, amount))
        }
    }
    impl<const N: usize, const M: usize> ops::$tr<Ex<Bits<M>>> for Ex<Bits<N>> {
        type Output = Ex<Bits<N>>;
        fn $f(self, r: Ex<Bits<M>>) -> Self {
            ex(builder::binary(Binary::$tr, self.id, r.id))
        }
    }
    impl<const N: usize, const M: usize> ops::$tr<Ex<Bits<M>>> for Bits<N> {
        type Output = Ex<Bits<N>>;
        fn $f(self, r: Ex<Bits<M>>) -> Ex<Bits<N>> {
            ex(builder::binary(Binary::$tr, self.to_ex().id, r.id))
        }
    }
)* } }
shifts!(Shl shl, Shr shr);
impl<const N: usize> ops::Add<Ex<bool>> for Ex<Bits<N>> {
    type Output = Ex<Bits<N>>;
    fn add(self, r: Ex<bool>) -> Self {
        binary(Binary::Add, self, ex(builder::extend(r.id, N)))
    }
}
impl ops::Mul for Ex<Bits<16>> {
    type Output = Ex<Bits<32>>;
    fn mul(self, r: Self) -> Ex<Bits<32>> {
        binary(Binary::Mul, self.cast::<32>(), r.cast::<32>())
    }
}
impl<const N: usize> ops::Not for Ex<Bits<N>> {
    type Output = Self;
    fn not(self) -> Self {
        new(Op::Not(self.id))
    }
}
impl ops::Not for Ex<bool> {
    type Output = Self;
    fn not(self) -> Self {
        new(Op::Not(self.id))
    }
}

/// A run-time index: what `x.index()` gives in a kernel.
#[derive(Clone, Copy)]
pub struct ExIndex(pub(crate) Id);
/// A bit offset: a Rust `usize`, or a run-time index.
pub trait Index {
    fn offset(self) -> Offset;
}
pub enum Offset {
    Static(usize),
    Dynamic(Id),
}
impl Index for usize {
    fn offset(self) -> Offset {
        Offset::Static(self)
    }
}
impl Index for ExIndex {
    fn offset(self) -> Offset {
        Offset::Dynamic(self.0)
    }
}
/// Panics unless bits `low .. low + need` exist.
#[track_caller]
pub(crate) fn inside(low: usize, need: usize, width: usize) {
    if low + need > width {
        fail(format_args!("bits {}..{} of a {width}-bit value", low, low + need))
    }
}
impl<const N: usize> Ex<Bits<N>> {
    #[track_caller]
    fn part(self, o: impl Index, need: usize) -> Id {
        match o.offset() {
            Offset::Static(low) => {
                inside(low, need, N);
                builder::slice(self.id, low, need)
            }
            Offset::Dynamic(i) => {
                let w = builder::width(i);
                if w < usize::BITS as usize - 1 && (1 << w) - 1 + need <= N {
                    let x = builder::named(self.id, "whole");
                    builder::expr(Op::DynSlice(x, i), need)
                } else {
                    builder::resize(builder::binary(Binary::Shr, self.id, i), need)
                }
            }
        }
    }
    #[track_caller]
    pub fn get_bits<const M: usize>(self, o: impl Index) -> Ex<Bits<M>> {
        ex(self.part(o, M))
    }
    #[track_caller]
    pub fn get_bit(self, o: impl Index) -> Ex<bool> {
        ex(self.part(o, 1))
    }
    #[track_caller]
    pub fn replace_bit(self, o: impl Index, v: impl ToEx<bool>) -> Self {
        let v = v.to_ex();
        match o.offset() {
            Offset::Static(i) => {
                inside(i, 1, N);
                let x = builder::named(self.id, "whole");
                let mut parts = vec![];
                if i + 1 < N {
                    parts.push(builder::slice(x, i + 1, N - i - 1))
                }
                parts.push(v.id);
                if i > 0 {
                    parts.push(builder::slice(x, 0, i))
                }
                ex(builder::concat(parts))
            }
            Offset::Dynamic(i) => {
                let at = |x: Id| ex::<Bits<N>>(builder::binary(Binary::Shl, builder::extend(x, N), i));
                let (one, v) = (at(builder::number(1, 1)), at(v.id));
                (self & !one) | v
            }
        }
    }
    pub fn any(self) -> Ex<bool> {
        new(Op::Reduce(Reduce::Any, self.id))
    }
    pub fn all(self) -> Ex<bool> {
        new(Op::Reduce(Reduce::All, self.id))
    }
    pub fn xor(self) -> Ex<bool> {
        new(Op::Reduce(Reduce::Xor, self.id))
    }
    pub fn index(self) -> ExIndex {
        ExIndex(self.id)
    }
    pub fn cast<const M: usize>(self) -> Ex<Bits<M>> {
        ex(builder::resize(self.id, M))
    }
}
pub fn bit_cast<const M: usize, const N: usize>(x: impl ToEx<Bits<N>>) -> Ex<Bits<M>> {
    x.to_ex().cast()
}

/// `.cast::<M>()` on plain `Bits`, so that a kernel's text is also its model: truncates, or extends with zeros.
pub trait BitsExt {
    fn cast<const M: usize>(self) -> Bits<M>;
}
impl<const N: usize> BitsExt for Bits<N> {
    fn cast<const M: usize>(self) -> Bits<M> {
        rust_hdl::prelude::bit_cast::<M, N>(self)
    }
}
