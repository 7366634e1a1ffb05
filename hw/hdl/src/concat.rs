//! Putting bits together, in both twins: `cat!`, `bswap`, struct literals, and `pack` / `unpack` between structs or enums
//! and plain bits.
use crate::builder;
use crate::ir::Id;
use crate::value::{Ex, ToEx, ex};
use rust_hdl::prelude::{Bits, Synth, VerilogLiteral};

/// A part of `cat!`.
pub trait Part {
    const BITS: usize;
    fn id(self) -> Id;
}
impl<T: Synth> Part for Ex<T> {
    const BITS: usize = T::BITS;
    fn id(self) -> Id {
        self.id
    }
}
impl<const N: usize> Part for Bits<N> {
    const BITS: usize = N;
    fn id(self) -> Id {
        self.to_ex().id
    }
}
impl Part for bool {
    const BITS: usize = 1;
    fn id(self) -> Id {
        self.to_ex().id
    }
}
/// `(a, (b, ()))`: the parts of `cat!(a, b)`, the most significant first.
pub trait Parts {
    const BITS: usize;
    fn ids(self, out: &mut Vec<Id>);
}
impl Parts for () {
    const BITS: usize = 0;
    fn ids(self, _: &mut Vec<Id>) {}
}
impl<A: Part, B: Parts> Parts for (A, B) {
    const BITS: usize = A::BITS + B::BITS;
    fn ids(self, out: &mut Vec<Id>) {
        out.push(self.0.id());
        self.1.ids(out)
    }
}
pub fn cat<const W: usize, P: Parts>(p: P) -> Ex<Bits<W>> {
    const { assert!(P::BITS == W, "cat!: the parts' widths do not add up to the width of the result") }
    let mut parts = vec![];
    p.ids(&mut parts);
    ex(builder::concat(parts))
}

/// `cat!` of plain Rust values.
pub trait SimPart {
    const BITS: usize;
    fn append<const W: usize>(self, to: Bits<W>) -> Bits<W>;
}
impl<const N: usize> SimPart for Bits<N> {
    const BITS: usize = N;
    fn append<const W: usize>(self, to: Bits<W>) -> Bits<W> {
        let own = rust_hdl::prelude::bit_cast::<W, N>(self);
        if N >= W { own } else { (to << N as u64) | own }
    }
}
impl SimPart for bool {
    const BITS: usize = 1;
    fn append<const W: usize>(self, to: Bits<W>) -> Bits<W> {
        Bits::<1>::from(self).append(to)
    }
}
pub trait SimParts {
    const BITS: usize;
    fn append_to<const W: usize>(self, acc: Bits<W>) -> Bits<W>;
}
impl SimParts for () {
    const BITS: usize = 0;
    fn append_to<const W: usize>(self, acc: Bits<W>) -> Bits<W> {
        acc
    }
}
impl<A: SimPart, B: SimParts> SimParts for (A, B) {
    const BITS: usize = A::BITS + B::BITS;
    fn append_to<const W: usize>(self, acc: Bits<W>) -> Bits<W> {
        self.1.append_to(self.0.append(acc))
    }
}
pub fn sim_cat<const W: usize, P: SimParts>(p: P) -> Bits<W> {
    const { assert!(P::BITS == W, "cat!: the parts' widths do not add up to the width of the result") }
    p.append_to(Bits::default())
}

/// Reverses the bytes. `N` is a multiple of 8.
pub fn bswap<const N: usize>(x: Bits<N>) -> Bits<N> {
    const { assert!(N.is_multiple_of(8)) }
    let mut r = Bits::default();
    for i in 0..N / 8 {
        r.set_bits::<8>(N - 8 - 8 * i, x.get_bits::<8>(8 * i))
    }
    r
}
// the function is the model, the type of the same name holds the hardware, and one `use` imports both
#[doc(hidden)]
#[allow(non_camel_case_types)]
pub struct bswap {}
impl bswap {
    pub fn hdl<const N: usize>(x: impl ToEx<Bits<N>>) -> Ex<Bits<N>> {
        const { assert!(N.is_multiple_of(8)) }
        let x = builder::named(x.to_ex().id, "bytes");
        ex(builder::concat((0..N / 8).map(|i| builder::slice(x, 8 * i, 8)).collect()))
    }
}

/// A value with a bit pattern that plain Rust can take apart and rebuild: `Bits`, `bool`, and everything that derives
/// `LogicStruct` or `LogicState` from `hdl::prelude`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be packed: derive `LogicStruct` or `LogicState` of `hdl::prelude`"
)]
pub trait Pack: Synth {
    /// Appends the bits, least significant first.
    fn put(&self, bits: &mut Vec<bool>);
    /// Rebuilds a value from the next `Self::BITS` bits. Panics if they are no value of an enum.
    fn take(bits: &mut dyn Iterator<Item = bool>) -> Self;
}
impl<const N: usize> Pack for Bits<N> {
    fn put(&self, bits: &mut Vec<bool>) {
        bits.extend((0..N).map(|i| self.get_bit(i)))
    }
    fn take(bits: &mut dyn Iterator<Item = bool>) -> Self {
        let mut x = Bits::default();
        for i in 0..N {
            if bits.next().unwrap() {
                x = x.replace_bit(i, true)
            }
        }
        x
    }
}
impl Pack for bool {
    fn put(&self, bits: &mut Vec<bool>) {
        bits.push(*self)
    }
    fn take(bits: &mut dyn Iterator<Item = bool>) -> Self {
        bits.next().unwrap()
    }
}

/// Widest struct constant: RustHDL can only make literals from `Bits<N>` of a known `N`.
const WIDEST: usize = 4096;
/// The literal of a packed value. Its width is not the value's: the emitter takes that from the type.
#[doc(hidden)]
pub fn packed_literal<T: Pack>(x: &T) -> VerilogLiteral {
    const { assert!(T::BITS <= WIDEST, "a struct of more than 4096 bits") }
    let mut bits = vec![];
    x.put(&mut bits);
    bits.resize(WIDEST, false);
    <Bits<WIDEST> as Pack>::take(&mut bits.into_iter()).into()
}

/// The bits of a struct (first field least significant), of an enum or of a bool. `N` must be its width.
pub fn pack<const N: usize>(x: impl Pack) -> Bits<N> {
    let mut bits = vec![];
    x.put(&mut bits);
    assert_eq!(bits.len(), N, "pack: the value is not as wide as the result");
    Bits::take(&mut bits.into_iter())
}
#[doc(hidden)]
#[allow(non_camel_case_types)]
pub struct pack {}
impl pack {
    pub fn hdl<const N: usize>(x: impl Part) -> Ex<Bits<N>> {
        let id = x.id();
        if builder::width(id) != N {
            builder::fail(format_args!("pack: the value has {} bits, the result {N}", builder::width(id)))
        }
        ex(id)
    }
}
/// The struct, enum or bool with these bits: the inverse of [`pack`]. The widths must be equal; panics on bits that are
/// no variant of an enum (hardware passes them on).
pub fn unpack<T: Pack>(x: impl Pack) -> T {
    let mut bits = vec![];
    x.put(&mut bits);
    assert_eq!(bits.len(), T::BITS, "unpack: the bits are not as many as the value's");
    T::take(&mut bits.into_iter())
}
#[doc(hidden)]
#[allow(non_camel_case_types)]
pub struct unpack {}
impl unpack {
    pub fn hdl<T: Synth>(x: impl Part) -> Ex<T> {
        let id = x.id();
        if builder::width(id) != T::BITS {
            builder::fail(format_args!("unpack: {} bits for a value of {}", builder::width(id), T::BITS))
        }
        ex(id)
    }
}

// A field, in what follows, is a closure that gives for a struct the value of the field and its offset in bits.

/// `x.field`.
pub fn field<T: Synth, U: Synth>(x: Ex<T>, f: impl FnOnce(&T) -> (U, usize)) -> Ex<U> {
    ex(builder::slice(x.id, f(&T::default()).1, U::BITS))
}
/// One field of a struct literal: its offset and its value.
pub fn part<T: Synth, U: Synth>(f: impl FnOnce(&T) -> (U, usize), v: impl ToEx<U>) -> (usize, Id) {
    (f(&T::default()).1, v.to_ex().id)
}
/// A struct literal.
pub fn structure<T: Synth>(mut fields: Vec<(usize, Id)>) -> Ex<T> {
    fields.sort_by_key(|f| std::cmp::Reverse(f.0));
    let x = builder::concat(fields.into_iter().map(|f| f.1).collect());
    assert_eq!(builder::width(x), T::BITS);
    ex(x)
}
