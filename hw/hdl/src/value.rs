//! Symbolic hardware values. `Ex<T>` stands for a value of Rust type `T` that is known only when the circuit runs; its
//! type carries the width, so rustc checks every width of a kernel. Constants of plain Rust become values by `ToEx`.
use crate::builder::{self, fail};
use crate::ir::{Id, Op};
use rust_hdl::prelude::{Bits, Constant, Synth, ToBits, TypeKind};
use std::marker::PhantomData;

/// A hardware value of type `T`. It has no `PartialEq`, `PartialOrd` or `Display`: using one as if it were known while
/// the circuit is built does not compile.
pub struct Ex<T> {
    pub(crate) id: Id,
    of: PhantomData<fn() -> T>,
}
impl<T> Clone for Ex<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Ex<T> {}
pub(crate) fn ex<T>(id: Id) -> Ex<T> {
    Ex { id, of: PhantomData }
}
/// A fresh expression of type `T`.
pub(crate) fn new<T: Synth>(op: Op) -> Ex<T> {
    ex(builder::expr(op, T::BITS))
}

/// The bits of a constant, least significant first.
pub(crate) fn bits_of<T: Synth>(v: T) -> Vec<bool> {
    let hex = format!("{:x}", v.verilog());
    let digits = hex.split("'h").last().unwrap();
    let mut bits: Vec<bool> = (digits.chars().rev())
        .flat_map(|c| {
            let d = c.to_digit(16).expect("signed values are not supported in kernels");
            (0..4).map(move |i| d >> i & 1 == 1)
        })
        .collect();
    bits.resize(T::BITS, false);
    bits
}
fn constant<T: Synth>(v: T) -> Ex<T> {
    let bits = bits_of(v);
    let label = match T::descriptor().kind {
        TypeKind::Enum(names) => {
            let index = bits.iter().rev().fold(0, |n, b| n * 2 + *b as usize);
            Some(names[index].replace("::", "_"))
        }
        _ => None,
    };
    ex(builder::constant(bits, label))
}

/// Anything that a kernel can use as a hardware value of type `T`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be used as a hardware value of type `{T}`",
    note = "in a kernel the widths must match exactly: use `bit_cast` / `.cast::<N>()`; a run-time value cannot become a Rust integer"
)]
pub trait ToEx<T: Synth> {
    fn to_ex(self) -> Ex<T>;
}
impl<T: Synth> ToEx<T> for Ex<T> {
    fn to_ex(self) -> Ex<T> {
        self
    }
}
impl<T: Synth> ToEx<T> for T {
    fn to_ex(self) -> Ex<T> {
        constant(self)
    }
}
/// Makes the hardware type explicit where rustc cannot infer it.
pub fn lift<T: Synth>(v: impl ToEx<T>) -> Ex<T> {
    v.to_ex()
}

/// A plain Rust integer, checked against the width it meets.
pub trait Int: Copy {
    /// Panics if the integer is negative or does not fit.
    fn bits<const N: usize>(self) -> Bits<N>;
}
macro_rules! ints { ($($t:ty),*) => { $(
    impl Int for $t {
        #[track_caller]
        fn bits<const N: usize>(self) -> Bits<N> {
            match u128::try_from(self) {
                Err(_) => fail(format_args!("constant {self} is negative")),
                Ok(v) if N < 128 && v >> N != 0 => fail(format_args!("constant {v:#x} does not fit Bits<{N}>")),
                Ok(v) => v.to_bits(),
            }
        }
    }
    impl<const N: usize> ToEx<Bits<N>> for $t {
        #[track_caller]
        fn to_ex(self) -> Ex<Bits<N>> {
            Int::bits::<N>(self).to_ex()
        }
    }
)* } }
ints!(u8, u16, u32, u64, u128, usize, i32);

/// `.into()` in a kernel.
pub fn into<U: Synth>(x: impl IntoEx<U>) -> Ex<U> {
    x.into_ex()
}
#[diagnostic::on_unimplemented(message = "`.into()` from `{Self}` to `{U}` is not supported in a kernel")]
pub trait IntoEx<U: Synth> {
    fn into_ex(self) -> Ex<U>;
}
impl<const N: usize> IntoEx<Bits<N>> for u64 {
    #[track_caller]
    fn into_ex(self) -> Ex<Bits<N>> {
        self.to_ex()
    }
}
impl IntoEx<Bits<1>> for Ex<bool> {
    fn into_ex(self) -> Ex<Bits<1>> {
        ex(self.id)
    }
}
impl IntoEx<bool> for Ex<Bits<1>> {
    fn into_ex(self) -> Ex<bool> {
        ex(self.id)
    }
}
impl<T: Synth> IntoEx<T> for Ex<T> {
    fn into_ex(self) -> Ex<T> {
        self
    }
}

/// What `self.x.val()` reads: a signal or a RustHDL `Constant`.
pub trait Readable {
    type T: Synth;
    fn read(&self, name: String) -> Ex<Self::T>;
}
impl<D: rust_hdl::prelude::Direction, T: Synth> Readable for rust_hdl::prelude::Signal<D, T> {
    type T = T;
    fn read(&self, name: String) -> Ex<T> {
        new(Op::Signal(name))
    }
}
impl<T: Synth> Readable for Constant<T> {
    type T = T;
    fn read(&self, _: String) -> Ex<T> {
        self.val().to_ex()
    }
}
pub fn read<S: Readable>(s: &S, name: String) -> Ex<S::T> {
    s.read(name)
}
