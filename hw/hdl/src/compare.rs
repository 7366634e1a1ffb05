//! Comparisons and `&&` / `||` in both twins of a kernel. rustc fixes the result of `==` to `bool`, so `#[kernel]` turns
//! these operators into calls of the traits here: of constants they give a Rust bool, of hardware values an `Ex<bool>`.
use crate::builder;
use crate::ir::Binary;
use crate::value::{Ex, Int, ToEx, ex};
use rust_hdl::prelude::{Bits, Synth};

fn binary<A>(op: Binary, a: Ex<A>, b: Ex<A>) -> Ex<bool> {
    ex(builder::binary(op, a.id, b.id))
}

/// The negation of a comparison's result.
pub trait Negate {
    fn negate(self) -> Self;
}
impl Negate for bool {
    fn negate(self) -> bool {
        !self
    }
}
impl Negate for Ex<bool> {
    fn negate(self) -> Self {
        !self
    }
}

#[derive(Clone, Copy)]
pub enum Rel {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}
/// Comparison with an integer literal: a trait of its own, so that the literal's type never has to be inferred.
#[diagnostic::on_unimplemented(message = "`{Self}` cannot be compared with an integer literal")]
pub trait CompareLiteral {
    type Out;
    fn compare(self, r: Rel, k: u128) -> Self::Out;
}
fn compare<T: PartialOrd>(a: T, r: Rel, b: T) -> bool {
    match r {
        Rel::Eq => a == b,
        Rel::Ne => a != b,
        Rel::Lt => a < b,
        Rel::Le => a <= b,
        Rel::Gt => a > b,
        Rel::Ge => a >= b,
    }
}
impl<const N: usize> CompareLiteral for Bits<N> {
    type Out = bool;
    #[track_caller]
    fn compare(self, r: Rel, k: u128) -> bool {
        compare(self, r, Int::bits::<N>(k))
    }
}
impl<const N: usize> CompareLiteral for Ex<Bits<N>> {
    type Out = Ex<bool>;
    #[track_caller]
    fn compare(self, r: Rel, k: u128) -> Ex<bool> {
        let k: Ex<Bits<N>> = k.to_ex();
        match r {
            Rel::Eq => binary(Binary::Eq, self, k),
            Rel::Ne => binary(Binary::Ne, self, k),
            Rel::Lt => binary(Binary::Lt, self, k),
            Rel::Le => binary(Binary::Le, self, k),
            Rel::Gt => binary(Binary::Lt, k, self),
            Rel::Ge => binary(Binary::Le, k, self),
        }
    }
}
#[track_caller]
pub fn compare_literal<A: CompareLiteral>(a: A, r: Rel, k: u128) -> A::Out {
    a.compare(r, k)
}

#[diagnostic::on_unimplemented(message = "cannot compare `{Self}` with `{R}`: the widths must be equal")]
pub trait Equal<R> {
    type Out: Negate;
    fn equal(self, r: R) -> Self::Out;
}
#[diagnostic::on_unimplemented(message = "cannot order `{Self}` and `{R}`: the widths must be equal")]
pub trait Order<R> {
    type Out;
    fn less(self, r: R) -> Self::Out;
    fn less_or_equal(self, r: R) -> Self::Out;
}
impl<T: PartialEq> Equal<T> for T {
    type Out = bool;
    fn equal(self, r: T) -> bool {
        self == r
    }
}
impl<T: PartialOrd> Order<T> for T {
    type Out = bool;
    fn less(self, r: T) -> bool {
        self < r
    }
    fn less_or_equal(self, r: T) -> bool {
        self <= r
    }
}
impl<T: Synth, R: ToEx<T>> Equal<R> for Ex<T> {
    type Out = Ex<bool>;
    #[track_caller]
    fn equal(self, r: R) -> Ex<bool> {
        binary(Binary::Eq, self, r.to_ex())
    }
}
impl<T: Synth> Equal<Ex<T>> for T {
    type Out = Ex<bool>;
    fn equal(self, r: Ex<T>) -> Ex<bool> {
        binary(Binary::Eq, self.to_ex(), r)
    }
}
impl<const N: usize, R: ToEx<Bits<N>>> Order<R> for Ex<Bits<N>> {
    type Out = Ex<bool>;
    #[track_caller]
    fn less(self, r: R) -> Ex<bool> {
        binary(Binary::Lt, self, r.to_ex())
    }
    #[track_caller]
    fn less_or_equal(self, r: R) -> Ex<bool> {
        binary(Binary::Le, self, r.to_ex())
    }
}
impl<const N: usize> Order<Ex<Bits<N>>> for Bits<N> {
    type Out = Ex<bool>;
    fn less(self, r: Ex<Bits<N>>) -> Ex<bool> {
        binary(Binary::Lt, self.to_ex(), r)
    }
    fn less_or_equal(self, r: Ex<Bits<N>>) -> Ex<bool> {
        binary(Binary::Le, self.to_ex(), r)
    }
}
macro_rules! ints { ($($t:ty),*) => { $(
    impl CompareLiteral for $t {
        type Out = bool;
        fn compare(self, r: Rel, k: u128) -> bool {
            compare(i128::try_from(self).expect("constant over 127 bits"), r, k as i128)
        }
    }
    impl<const N: usize> Equal<$t> for Bits<N> {
        type Out = bool;
        #[track_caller]
        fn equal(self, r: $t) -> bool {
            self == Int::bits::<N>(r)
        }
    }
    impl<const N: usize> Equal<Bits<N>> for $t {
        type Out = bool;
        #[track_caller]
        fn equal(self, r: Bits<N>) -> bool {
            r == Int::bits::<N>(self)
        }
    }
    impl<const N: usize> Order<$t> for Bits<N> {
        type Out = bool;
        #[track_caller]
        fn less(self, r: $t) -> bool {
            self < Int::bits::<N>(r)
        }
        #[track_caller]
        fn less_or_equal(self, r: $t) -> bool {
            self <= Int::bits::<N>(r)
        }
    }
    impl<const N: usize> Order<Bits<N>> for $t {
        type Out = bool;
        #[track_caller]
        fn less(self, r: Bits<N>) -> bool {
            Int::bits::<N>(self) < r
        }
        #[track_caller]
        fn less_or_equal(self, r: Bits<N>) -> bool {
            Int::bits::<N>(self) <= r
        }
    }
    impl<const N: usize> Equal<Ex<Bits<N>>> for $t {
        type Out = Ex<bool>;
        #[track_caller]
        fn equal(self, r: Ex<Bits<N>>) -> Ex<bool> {
            binary(Binary::Eq, self.to_ex(), r)
        }
    }
    impl<const N: usize> Order<Ex<Bits<N>>> for $t {
        type Out = Ex<bool>;
        #[track_caller]
        fn less(self, r: Ex<Bits<N>>) -> Ex<bool> {
            binary(Binary::Lt, self.to_ex(), r)
        }
        #[track_caller]
        fn less_or_equal(self, r: Ex<Bits<N>>) -> Ex<bool> {
            binary(Binary::Le, self.to_ex(), r)
        }
    }
)* } }
ints!(u8, u16, u32, u64, u128, usize, i32);

#[track_caller]
pub fn eq<A: Equal<B>, B>(a: A, b: B) -> A::Out {
    a.equal(b)
}
#[track_caller]
pub fn ne<A: Equal<B>, B>(a: A, b: B) -> A::Out {
    a.equal(b).negate()
}
#[track_caller]
pub fn lt<A: Order<B>, B>(a: A, b: B) -> A::Out {
    a.less(b)
}
#[track_caller]
pub fn le<A: Order<B>, B>(a: A, b: B) -> A::Out {
    a.less_or_equal(b)
}
#[track_caller]
pub fn gt<A, B: Order<A>>(a: A, b: B) -> B::Out {
    b.less(a)
}
#[track_caller]
pub fn ge<A, B: Order<A>>(a: A, b: B) -> B::Out {
    b.less_or_equal(a)
}

/// `&&` and `||`.
pub trait Logical<R> {
    type Out;
    fn and(self, r: R) -> Self::Out;
    fn or(self, r: R) -> Self::Out;
}
impl Logical<bool> for bool {
    type Out = bool;
    fn and(self, r: bool) -> bool {
        self && r
    }
    fn or(self, r: bool) -> bool {
        self || r
    }
}
impl Logical<Ex<bool>> for bool {
    type Out = Ex<bool>;
    fn and(self, r: Ex<bool>) -> Ex<bool> {
        binary(Binary::LogicalAnd, self.to_ex(), r)
    }
    fn or(self, r: Ex<bool>) -> Ex<bool> {
        binary(Binary::LogicalOr, self.to_ex(), r)
    }
}
impl<R: ToEx<bool>> Logical<R> for Ex<bool> {
    type Out = Ex<bool>;
    fn and(self, r: R) -> Ex<bool> {
        binary(Binary::LogicalAnd, self, r.to_ex())
    }
    fn or(self, r: R) -> Ex<bool> {
        binary(Binary::LogicalOr, self, r.to_ex())
    }
}
pub fn and<A: Logical<B>, B>(a: A, b: B) -> A::Out {
    a.and(b)
}
pub fn or<A: Logical<B>, B>(a: A, b: B) -> A::Out {
    a.or(b)
}
