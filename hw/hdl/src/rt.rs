//! Run-time half of `#[kernel]` / `#[hdl_fn]`: symbolic values (`Ex<T>`) whose *Rust type* carries the width, and a
//! statement builder that writes RustHDL's public AST. The macro rewrites a kernel body into Rust code over these, so
//! rustc itself infers and checks every width, evaluates every const and unrolls every loop.
use rust_hdl::prelude::{ast::*, *};
use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    marker::PhantomData,
    ops,
};

// ------------------------------------------------------------------------------------------------ builder
#[derive(Clone)]
struct Node {
    e: VerilogExpression,
    temp: bool,
}
#[derive(Default)]
struct Kernel {
    nodes: Vec<Node>,
    blocks: Vec<VerilogBlock>,
    names: HashMap<String, usize>,
}
thread_local! { static K: RefCell<Vec<Kernel>> = const { RefCell::new(vec![]) }; }
fn with<R>(f: impl FnOnce(&mut Kernel) -> R) -> R {
    K.with(|k| f(k.borrow_mut().last_mut().expect("hdl expression outside of a kernel")))
}
fn node(e: VerilogExpression, temp: bool) -> u32 {
    with(|k| {
        k.nodes.push(Node { e, temp });
        k.nodes.len() as u32 - 1
    })
}
fn get(n: u32) -> VerilogExpression {
    with(|k| k.nodes[n as usize].e.clone())
}
fn bx(n: u32) -> Box<VerilogExpression> {
    Box::new(get(n))
}
fn emit(s: VerilogStatement) {
    with(|k| k.blocks.last_mut().unwrap().push(s))
}
fn push() {
    with(|k| k.blocks.push(vec![]))
}
fn pop() -> VerilogBlock {
    with(|k| k.blocks.pop().unwrap())
}
fn sig(n: String) -> VerilogExpression {
    VerilogExpression::Signal(n)
}
/// a fresh variable, declared by a comment that the emitter reads: `@let|@var name width`
fn fresh(kind: &str, hint: &str, bits: usize) -> String {
    with(|k| {
        let c = k.names.entry(hint.into()).or_insert(0);
        *c += 1;
        let n = format!("%{hint}%{c}");
        k.blocks.last_mut().unwrap().push(VerilogStatement::Comment(format!("@{kind} {n} {bits}")));
        n
    })
}
/// run a kernel body and return its AST
pub fn kernel(f: impl FnOnce()) -> Verilog {
    K.with(|k| k.borrow_mut().push(Kernel { blocks: vec![vec![]], ..Default::default() }));
    struct Guard;
    impl Drop for Guard {
        fn drop(&mut self) {
            if std::thread::panicking() {
                K.with(|k| {
                    k.borrow_mut().pop();
                })
            }
        }
    }
    let g = Guard;
    f();
    drop(g);
    Verilog::Combinatorial(K.with(|k| k.borrow_mut().pop().unwrap()).blocks.pop().unwrap())
}

// ------------------------------------------------------------------------------------------------ values
/// A hardware value of Rust type `T`, known only when the circuit runs. Deliberately without `PartialEq`/`PartialOrd`.
pub struct Ex<T> {
    n: u32,
    p: PhantomData<fn() -> T>,
}
impl<T> Clone for Ex<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Ex<T> {}
fn ex<T>(e: VerilogExpression) -> Ex<T> {
    Ex { n: node(e, false), p: PhantomData }
}
fn tmp<T>(name: String) -> Ex<T> {
    Ex { n: node(sig(name), true), p: PhantomData }
}
/// run-time bit index (`x.val().index()`)
#[derive(Clone, Copy)]
pub struct ExIndex(u32);
pub trait Index {
    fn ix(self, width: usize, need: usize) -> VerilogExpression;
}
impl Index for usize {
    #[track_caller]
    fn ix(self, width: usize, need: usize) -> VerilogExpression {
        assert!(self + need <= width, "bits {}..{} of a {width}-bit value", self, self + need);
        VerilogExpression::Literal(self.into())
    }
}
impl Index for ExIndex {
    fn ix(self, _: usize, _: usize) -> VerilogExpression {
        get(self.0)
    }
}
fn lit<T: Synth>(v: T) -> VerilogExpression {
    match T::descriptor().kind {
        TypeKind::Enum(_) => sig(format!("{}'d{} /*{:?}*/", T::BITS.max(1), v.verilog().as_usize(), v)),
        _ if T::BITS == 1 => VerilogExpression::Literal((v.verilog().as_usize() == 1).into()),
        _ => VerilogExpression::Cast(Box::new(VerilogExpression::Literal(v.verilog())), T::BITS),
    }
}
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
        ex(lit(self))
    }
}
/// plain Rust integers, range-checked against the width they meet
pub trait Int: Copy {
    fn bits<const N: usize>(self) -> Bits<N>;
}
macro_rules! ints { ($($t:ty),*) => { $(
    impl HLit for $t { type Out = bool; fn cmp_lit(self, r: Rel, k: u128) -> bool { rel(i128::try_from(self).expect("constant over 127 bits"), r, k as i128) } }
    impl Int for $t { #[track_caller] fn bits<const N: usize>(self) -> Bits<N> { let v = u128::try_from(self).expect("negative constant"); assert!(N >= 128 || v >> N == 0, "constant {v:#x} does not fit Bits<{N}>"); v.to_bits() } }
    impl<const N: usize> ToEx<Bits<N>> for $t { #[track_caller] fn to_ex(self) -> Ex<Bits<N>> { Int::bits::<N>(self).to_ex() } }
    impl<const N: usize> HEq<$t> for Bits<N> { type Out = bool; #[track_caller] fn h_eq(self, r: $t) -> bool { self == Int::bits::<N>(r) } }
    impl<const N: usize> HEq<Bits<N>> for $t { type Out = bool; #[track_caller] fn h_eq(self, r: Bits<N>) -> bool { r == Int::bits::<N>(self) } }
    impl<const N: usize> HOrd<$t> for Bits<N> { type Out = bool; #[track_caller] fn h_lt(self, r: $t) -> bool { self < Int::bits::<N>(r) } #[track_caller] fn h_le(self, r: $t) -> bool { self <= Int::bits::<N>(r) } }
    impl<const N: usize> HOrd<Bits<N>> for $t { type Out = bool; #[track_caller] fn h_lt(self, r: Bits<N>) -> bool { Int::bits::<N>(self) < r } #[track_caller] fn h_le(self, r: Bits<N>) -> bool { Int::bits::<N>(self) <= r } }
    impl<const N: usize> HEq<Ex<Bits<N>>> for $t { type Out = Ex<bool>; #[track_caller] fn h_eq(self, r: Ex<Bits<N>>) -> Ex<bool> { bin(VerilogOp::Eq, self.to_ex(), r) } }
    impl<const N: usize> HOrd<Ex<Bits<N>>> for $t { type Out = Ex<bool>; #[track_caller] fn h_lt(self, r: Ex<Bits<N>>) -> Ex<bool> { bin(VerilogOp::Lt, self.to_ex(), r) } #[track_caller] fn h_le(self, r: Ex<Bits<N>>) -> Ex<bool> { bin(VerilogOp::Le, self.to_ex(), r) } }
)* } }
ints!(u8, u16, u32, u64, u128, usize, i32);
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
/// comparison with an integer literal: its own trait, so that the literal's type never has to be inferred
#[derive(Clone, Copy)]
pub enum Rel {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}
#[diagnostic::on_unimplemented(message = "`{Self}` cannot be compared with an integer literal")]
pub trait HLit {
    type Out;
    fn cmp_lit(self, r: Rel, k: u128) -> Self::Out;
}
fn rel<T: PartialOrd>(a: T, r: Rel, b: T) -> bool {
    match r {
        Rel::Eq => a == b,
        Rel::Ne => a != b,
        Rel::Lt => a < b,
        Rel::Le => a <= b,
        Rel::Gt => a > b,
        Rel::Ge => a >= b,
    }
}
impl<const N: usize> HLit for Bits<N> {
    type Out = bool;
    #[track_caller]
    fn cmp_lit(self, r: Rel, k: u128) -> bool {
        rel(self, r, Int::bits::<N>(k))
    }
}
impl<const N: usize> HLit for Ex<Bits<N>> {
    type Out = Ex<bool>;
    #[track_caller]
    fn cmp_lit(self, r: Rel, k: u128) -> Ex<bool> {
        let k: Ex<Bits<N>> = k.to_ex();
        bin(
            match r {
                Rel::Eq => VerilogOp::Eq,
                Rel::Ne => VerilogOp::Ne,
                Rel::Lt => VerilogOp::Lt,
                Rel::Le => VerilogOp::Le,
                Rel::Gt => VerilogOp::Gt,
                Rel::Ge => VerilogOp::Ge,
            },
            self,
            k,
        )
    }
}
#[track_caller]
pub fn cmp_lit<A: HLit>(a: A, r: Rel, k: u128) -> A::Out {
    a.cmp_lit(r, k)
}
/// comparisons, of constants (a Rust bool, now) or of hardware values (an `Ex<bool>`)
#[diagnostic::on_unimplemented(message = "cannot compare `{Self}` with `{R}`: the widths must be equal")]
pub trait HEq<R> {
    type Out: Negate;
    fn h_eq(self, r: R) -> Self::Out;
}
#[diagnostic::on_unimplemented(message = "cannot order `{Self}` and `{R}`: the widths must be equal")]
pub trait HOrd<R> {
    type Out;
    fn h_lt(self, r: R) -> Self::Out;
    fn h_le(self, r: R) -> Self::Out;
}
impl<T: PartialEq> HEq<T> for T {
    type Out = bool;
    fn h_eq(self, r: T) -> bool {
        self == r
    }
}
impl<T: PartialOrd> HOrd<T> for T {
    type Out = bool;
    fn h_lt(self, r: T) -> bool {
        self < r
    }
    fn h_le(self, r: T) -> bool {
        self <= r
    }
}
impl<T: Synth, R: ToEx<T>> HEq<R> for Ex<T> {
    type Out = Ex<bool>;
    #[track_caller]
    fn h_eq(self, r: R) -> Ex<bool> {
        bin(VerilogOp::Eq, self, r.to_ex())
    }
}
impl<const N: usize, R: ToEx<Bits<N>>> HOrd<R> for Ex<Bits<N>> {
    type Out = Ex<bool>;
    #[track_caller]
    fn h_lt(self, r: R) -> Ex<bool> {
        bin(VerilogOp::Lt, self, r.to_ex())
    }
    #[track_caller]
    fn h_le(self, r: R) -> Ex<bool> {
        bin(VerilogOp::Le, self, r.to_ex())
    }
}
impl<T: Synth> HEq<Ex<T>> for T {
    type Out = Ex<bool>;
    fn h_eq(self, r: Ex<T>) -> Ex<bool> {
        bin(VerilogOp::Eq, self.to_ex(), r)
    }
}
impl<const N: usize> HOrd<Ex<Bits<N>>> for Bits<N> {
    type Out = Ex<bool>;
    fn h_lt(self, r: Ex<Bits<N>>) -> Ex<bool> {
        bin(VerilogOp::Lt, self.to_ex(), r)
    }
    fn h_le(self, r: Ex<Bits<N>>) -> Ex<bool> {
        bin(VerilogOp::Le, self.to_ex(), r)
    }
}
#[track_caller]
pub fn eq<A: HEq<B>, B>(a: A, b: B) -> A::Out {
    a.h_eq(b)
}
#[track_caller]
pub fn ne<A: HEq<B>, B>(a: A, b: B) -> A::Out {
    a.h_eq(b).negate()
}
#[track_caller]
pub fn lt<A: HOrd<B>, B>(a: A, b: B) -> A::Out {
    a.h_lt(b)
}
#[track_caller]
pub fn le<A: HOrd<B>, B>(a: A, b: B) -> A::Out {
    a.h_le(b)
}
#[track_caller]
pub fn gt<A, B: HOrd<A>>(a: A, b: B) -> B::Out {
    b.h_lt(a)
}
#[track_caller]
pub fn ge<A, B: HOrd<A>>(a: A, b: B) -> B::Out {
    b.h_le(a)
}
pub trait HBool<R> {
    type Out;
    fn land(self, r: R) -> Self::Out;
    fn lor(self, r: R) -> Self::Out;
}
impl HBool<bool> for bool {
    type Out = bool;
    fn land(self, r: bool) -> bool {
        self && r
    }
    fn lor(self, r: bool) -> bool {
        self || r
    }
}
impl HBool<Ex<bool>> for bool {
    type Out = Ex<bool>;
    fn land(self, r: Ex<bool>) -> Ex<bool> {
        bin(VerilogOp::LogicalAnd, self.to_ex(), r)
    }
    fn lor(self, r: Ex<bool>) -> Ex<bool> {
        bin(VerilogOp::LogicalOr, self.to_ex(), r)
    }
}
impl<R: ToEx<bool>> HBool<R> for Ex<bool> {
    type Out = Ex<bool>;
    fn land(self, r: R) -> Ex<bool> {
        bin(VerilogOp::LogicalAnd, self, r.to_ex())
    }
    fn lor(self, r: R) -> Ex<bool> {
        bin(VerilogOp::LogicalOr, self, r.to_ex())
    }
}
pub fn land<A: HBool<B>, B>(a: A, b: B) -> A::Out {
    a.land(b)
}
pub fn lor<A: HBool<B>, B>(a: A, b: B) -> A::Out {
    a.lor(b)
}

fn bin<A, C>(op: VerilogOp, a: Ex<A>, b: Ex<A>) -> Ex<C> {
    let (a, b) = (bx(a.n), bx(b.n));
    ex(VerilogExpression::Binary(a, op, b))
}
fn un<A, C>(op: VerilogOpUnary, a: Ex<A>) -> Ex<C> {
    let a = bx(a.n);
    ex(VerilogExpression::Unary(op, a))
}
macro_rules! ops { ($($tr:ident $f:ident),*) => { $(
    impl<const N: usize> ops::$tr<Ex<Bits<N>>> for Ex<Bits<N>> { type Output = Ex<Bits<N>>; fn $f(self, r: Ex<Bits<N>>) -> Self { bin(VerilogOp::$tr, self, r) } }
    impl<const N: usize> ops::$tr<Bits<N>> for Ex<Bits<N>> { type Output = Ex<Bits<N>>; fn $f(self, r: Bits<N>) -> Self { bin(VerilogOp::$tr, self, r.to_ex()) } }
    impl<const N: usize> ops::$tr<u64> for Ex<Bits<N>> { type Output = Ex<Bits<N>>; #[track_caller] fn $f(self, r: u64) -> Self { bin(VerilogOp::$tr, self, ToEx::<Bits<N>>::to_ex(r)) } }
    impl<const N: usize> ops::$tr<Ex<Bits<N>>> for Bits<N> { type Output = Ex<Bits<N>>; fn $f(self, r: Ex<Bits<N>>) -> Ex<Bits<N>> { bin(VerilogOp::$tr, self.to_ex(), r) } }
    impl<const N: usize> ops::$tr<Ex<Bits<N>>> for u64 { type Output = Ex<Bits<N>>; #[track_caller] fn $f(self, r: Ex<Bits<N>>) -> Ex<Bits<N>> { bin(VerilogOp::$tr, ToEx::<Bits<N>>::to_ex(self), r) } }
)* } }
ops!(Add add, Sub sub, BitAnd bitand, BitOr bitor, BitXor bitxor);
impl<const N: usize> ops::Add<Ex<bool>> for Ex<Bits<N>> {
    type Output = Ex<Bits<N>>;
    fn add(self, r: Ex<bool>) -> Self {
        let c: Ex<Bits<N>> = ex(VerilogExpression::Cast(bx(r.n), N));
        bin(VerilogOp::Add, self, c)
    }
}
impl ops::Mul for Ex<Bits<16>> {
    type Output = Ex<Bits<32>>;
    fn mul(self, r: Self) -> Ex<Bits<32>> {
        bin(VerilogOp::Mul, bit_cast::<32, 16>(self), bit_cast::<32, 16>(r))
    }
}
macro_rules! bops { ($($tr:ident $f:ident),*) => { $(
    impl<R: ToEx<bool>> ops::$tr<R> for Ex<bool> { type Output = Ex<bool>; fn $f(self, r: R) -> Self { bin(VerilogOp::$tr, self, r.to_ex()) } }
    impl ops::$tr<Ex<bool>> for bool { type Output = Ex<bool>; fn $f(self, r: Ex<bool>) -> Ex<bool> { bin(VerilogOp::$tr, self.to_ex(), r) } }
)* } }
bops!(BitAnd bitand, BitOr bitor, BitXor bitxor);
macro_rules! shifts { ($($tr:ident $f:ident),*) => { $(
    impl<const N: usize> ops::$tr<u64> for Ex<Bits<N>> { type Output = Ex<Bits<N>>; fn $f(self, r: u64) -> Self { let a = bx(self.n); ex(VerilogExpression::Binary(a, VerilogOp::$tr, Box::new(VerilogExpression::Literal(r.into())))) } }
    impl<const N: usize, const M: usize> ops::$tr<Ex<Bits<M>>> for Ex<Bits<N>> { type Output = Ex<Bits<N>>; fn $f(self, r: Ex<Bits<M>>) -> Self { let (a, b) = (bx(self.n), bx(r.n)); ex(VerilogExpression::Binary(a, VerilogOp::$tr, b)) } }
)* } }
shifts!(Shl shl, Shr shr);
impl<const N: usize> ops::Not for Ex<Bits<N>> {
    type Output = Self;
    fn not(self) -> Self {
        un(VerilogOpUnary::Not, self)
    }
}
impl ops::Not for Ex<bool> {
    type Output = Self;
    fn not(self) -> Self {
        un(VerilogOpUnary::Not, self)
    }
}
impl<const N: usize> Ex<Bits<N>> {
    #[track_caller]
    pub fn get_bits<const M: usize>(self, o: impl Index) -> Ex<Bits<M>> {
        let o = o.ix(N, M);
        let s = bx(self.n);
        ex(VerilogExpression::Slice(s, M, Box::new(o)))
    }
    #[track_caller]
    pub fn get_bit(self, o: impl Index) -> Ex<bool> {
        let o = o.ix(N, 1);
        let s = bx(self.n);
        ex(VerilogExpression::Index(s, Box::new(o)))
    }
    #[track_caller]
    pub fn replace_bit(self, o: impl Index, v: impl ToEx<bool>) -> Self {
        let o = o.ix(N, 1);
        let v = bx(v.to_ex().n);
        let s = bx(self.n);
        ex(VerilogExpression::IndexReplace(s, Box::new(o), v))
    }
    pub fn any(self) -> Ex<bool> {
        un(VerilogOpUnary::Any, self)
    }
    pub fn all(self) -> Ex<bool> {
        un(VerilogOpUnary::All, self)
    }
    pub fn xor(self) -> Ex<bool> {
        un(VerilogOpUnary::Xor, self)
    }
    pub fn index(self) -> ExIndex {
        ExIndex(self.n)
    }
    pub fn cast<const M: usize>(self) -> Ex<Bits<M>> {
        bit_cast::<M, N>(self)
    }
}
/// `.cast::<M>()` on plain `Bits`, so that the same kernel text works in simulation
pub trait BitsExt {
    fn cast<const M: usize>(self) -> Bits<M>;
}
impl<const N: usize> BitsExt for Bits<N> {
    fn cast<const M: usize>(self) -> Bits<M> {
        rust_hdl::prelude::bit_cast::<M, N>(self)
    }
}
pub fn bit_cast<const M: usize, const N: usize>(x: impl ToEx<Bits<N>>) -> Ex<Bits<M>> {
    let x = bx(x.to_ex().n);
    ex(VerilogExpression::Cast(x, M))
}
pub fn into<U: Synth>(x: impl Into2<U>) -> Ex<U> {
    x.into2()
}
#[diagnostic::on_unimplemented(message = "`.into()` from `{Self}` to `{U}` is not supported in a kernel")]
pub trait Into2<U: Synth> {
    fn into2(self) -> Ex<U>;
}
impl<const N: usize> Into2<Bits<N>> for u64 {
    #[track_caller]
    fn into2(self) -> Ex<Bits<N>> {
        self.to_ex()
    }
}
impl Into2<Bits<1>> for Ex<bool> {
    fn into2(self) -> Ex<Bits<1>> {
        Ex { n: self.n, p: PhantomData }
    }
}
impl Into2<bool> for Ex<Bits<1>> {
    fn into2(self) -> Ex<bool> {
        Ex { n: self.n, p: PhantomData }
    }
}
impl<T: Synth> Into2<T> for Ex<T> {
    fn into2(self) -> Ex<T> {
        self
    }
}

// ------------------------------------------------------------------------------------------------ concatenation
/// (a, (b, ())) : a is the most significant part
pub trait Parts {
    const BITS: usize;
    fn put(self, out: &mut Vec<(VerilogExpression, usize)>);
}
impl Parts for () {
    const BITS: usize = 0;
    fn put(self, _: &mut Vec<(VerilogExpression, usize)>) {}
}
pub trait Part {
    const BITS: usize;
    fn expr(self) -> VerilogExpression;
}
impl<T: Synth> Part for Ex<T> {
    const BITS: usize = T::BITS;
    fn expr(self) -> VerilogExpression {
        get(self.n)
    }
}
impl<const N: usize> Part for Bits<N> {
    const BITS: usize = N;
    fn expr(self) -> VerilogExpression {
        lit(self)
    }
}
impl Part for bool {
    const BITS: usize = 1;
    fn expr(self) -> VerilogExpression {
        lit(self)
    }
}
impl<A: Part, B: Parts> Parts for (A, B) {
    const BITS: usize = A::BITS + B::BITS;
    fn put(self, out: &mut Vec<(VerilogExpression, usize)>) {
        out.push((self.0.expr(), A::BITS));
        self.1.put(out)
    }
}
pub fn cat<const W: usize, P: Parts>(p: P) -> Ex<Bits<W>> {
    const { assert!(P::BITS == W, "cat!: the parts' widths do not add up to the width of the result") }
    let mut v = vec![];
    p.put(&mut v);
    ex(concat(v))
}
/// marker understood by the emitter: Unsigned(a << k | b << j ..) is `{a, b, ..}`; any other reader sees the same value
fn concat(v: Vec<(VerilogExpression, usize)>) -> VerilogExpression {
    let w: usize = v.iter().map(|x| x.1).sum();
    let mut at = w;
    let mut acc: Option<VerilogExpression> = None;
    for (e, n) in v {
        at -= n;
        let x = VerilogExpression::Binary(
            Box::new(VerilogExpression::Cast(Box::new(e), w)),
            VerilogOp::Shl,
            Box::new(VerilogExpression::Literal(at.into())),
        );
        acc = Some(match acc {
            None => x,
            Some(a) => VerilogExpression::Binary(Box::new(a), VerilogOp::BitOr, Box::new(x)),
        });
    }
    VerilogExpression::Unsigned(Box::new(acc.expect("empty cat!")))
}
pub trait SimPart {
    const BITS: usize;
    fn or_into<const W: usize>(self, acc: Bits<W>) -> Bits<W>;
}
impl<const N: usize> SimPart for Bits<N> {
    const BITS: usize = N;
    fn or_into<const W: usize>(self, a: Bits<W>) -> Bits<W> {
        if N >= W { self.cast() } else { (a << N as u64) | self.cast::<W>() }
    }
}
impl SimPart for bool {
    const BITS: usize = 1;
    fn or_into<const W: usize>(self, a: Bits<W>) -> Bits<W> {
        Bits::<1>::from(self).or_into(a)
    }
}
pub trait SimParts {
    const BITS: usize;
    fn run<const W: usize>(self, acc: Bits<W>) -> Bits<W>;
}
impl SimParts for () {
    const BITS: usize = 0;
    fn run<const W: usize>(self, a: Bits<W>) -> Bits<W> {
        a
    }
}
impl<A: SimPart, B: SimParts> SimParts for (A, B) {
    const BITS: usize = A::BITS + B::BITS;
    fn run<const W: usize>(self, a: Bits<W>) -> Bits<W> {
        self.1.run(self.0.or_into(a))
    }
}
pub fn sim_cat<const W: usize, P: SimParts>(p: P) -> Bits<W> {
    const { assert!(P::BITS == W, "cat!: the parts' widths do not add up to the width of the result") }
    p.run(Bits::default())
}
/// byte swap, usable in kernels: the function is the simulation model, the type of the same name holds the hardware
pub fn bswap<const N: usize>(x: Bits<N>) -> Bits<N> {
    const { assert!(N % 8 == 0) }
    let mut r = Bits::default();
    for i in 0..N / 8 {
        r.set_bits::<8>(N - 8 - 8 * i, x.get_bits::<8>(8 * i))
    }
    r
}
#[allow(non_camel_case_types)]
pub struct bswap {}
impl bswap {
    pub fn hdl<const N: usize>(x: impl ToEx<Bits<N>>) -> Ex<Bits<N>> {
        let x = bind("bswap", x.to_ex());
        ex(concat(
            (0..N / 8)
                .map(|i| {
                    (VerilogExpression::Slice(bx(x.n), 8, Box::new(VerilogExpression::Literal((8 * i).into()))), 8)
                })
                .collect(),
        ))
    }
}

// ------------------------------------------------------------------------------------------------ signals, structs
pub trait Readable {
    type T: Synth;
    fn read(&self, name: String) -> Ex<Self::T>;
}
impl<D: Direction, T: Synth> Readable for Signal<D, T> {
    type T = T;
    fn read(&self, name: String) -> Ex<T> {
        ex(sig(name))
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
pub fn assign<D: Direction, T: Synth>(_: &Signal<D, T>, name: String, v: impl ToEx<T>) {
    let v = get(v.to_ex().n);
    emit(VerilogStatement::Assignment(sig(name), v))
}
fn slice_assign(base: VerilogExpression, width: usize, offset: VerilogExpression, v: VerilogExpression) {
    emit(VerilogStatement::SliceAssignment { base, width, offset, replacement: v })
}
pub fn assign_field<D: Direction, T: Synth, U: Synth>(
    _: &Signal<D, T>,
    name: String,
    f: impl FnOnce(&T) -> (U, usize),
    v: impl ToEx<U>,
) {
    let o = f(&T::default()).1;
    let v = get(v.to_ex().n);
    slice_assign(sig(name), U::BITS, VerilogExpression::Literal(o.into()), v)
}
#[track_caller]
pub fn set_bits<const N: usize, const M: usize, D: Direction>(
    _: &Signal<D, Bits<N>>,
    name: String,
    o: impl Index,
    v: impl ToEx<Bits<M>>,
) {
    let o = o.ix(N, M);
    let v = get(v.to_ex().n);
    slice_assign(sig(name), M, o, v)
}
pub fn field<T: Synth, U: Synth>(e: Ex<T>, f: impl FnOnce(&T) -> (U, usize)) -> Ex<U> {
    let o = f(&T::default()).1;
    let s = bx(e.n);
    ex(if U::BITS == 1 {
        VerilogExpression::Index(s, Box::new(VerilogExpression::Literal(o.into())))
    } else {
        VerilogExpression::Slice(s, U::BITS, Box::new(VerilogExpression::Literal(o.into())))
    })
}
pub fn part<T: Synth, U: Synth>(
    f: impl FnOnce(&T) -> (U, usize),
    v: impl ToEx<U>,
) -> (usize, VerilogExpression, usize) {
    (f(&T::default()).1, get(v.to_ex().n), U::BITS)
}
pub fn pack<T: Synth>(mut v: Vec<(usize, VerilogExpression, usize)>) -> Ex<T> {
    v.sort_by_key(|x| std::cmp::Reverse(x.0));
    assert_eq!(v.iter().map(|x| x.2).sum::<usize>(), T::BITS);
    ex(concat(v.into_iter().map(|x| (x.1, x.2)).collect()))
}
pub fn links(v: Vec<VerilogLink>) {
    emit(VerilogStatement::Link(v))
}
pub fn comment(s: &str) {
    emit(VerilogStatement::Comment(s.into()))
}

// ------------------------------------------------------------------------------------------------ let
pub trait Bind {
    type Out;
    fn bind(self, name: &str) -> Self::Out;
}
impl<T: Synth> Bind for Ex<T> {
    type Out = Self;
    fn bind(self, name: &str) -> Self {
        if with(|k| k.nodes[self.n as usize].temp) {
            return self;
        }
        let n = fresh("let", name, T::BITS);
        let v = get(self.n);
        emit(VerilogStatement::Assignment(sig(n.clone()), v));
        tmp(n)
    }
}
impl<T: PartialEq> Bind for T {
    type Out = T;
    fn bind(self, _: &str) -> T {
        self
    }
}
pub fn bind<B: Bind>(name: &str, v: B) -> B::Out {
    v.bind(name)
}
pub fn bind_arr<B: Bind, const N: usize>(name: &str, v: [B; N]) -> [B::Out; N] {
    let mut i = 0;
    v.map(|x| {
        i += 1;
        x.bind(&format!("{name}_{}", i - 1))
    })
}
pub fn bind_as<T: Synth>(name: &str, v: impl ToEx<T>) -> Ex<T> {
    v.to_ex().bind(name)
}
/// `let mut`: a variable assigned with blocking assignments; copies of it are never taken as temporaries
pub fn var<T: Synth>(name: &str, v: impl ToEx<T>) -> Ex<T> {
    let v = get(v.to_ex().n);
    let n = fresh("var", name, T::BITS);
    emit(VerilogStatement::Assignment(sig(n.clone()), v));
    ex(sig(n))
}
pub fn set<T: Synth>(x: Ex<T>, v: impl ToEx<T>) {
    let v = get(v.to_ex().n);
    let x = get(x.n);
    emit(VerilogStatement::Assignment(x, v))
}
pub fn set_field<T: Synth, U: Synth>(x: Ex<T>, f: impl FnOnce(&T) -> (U, usize), v: impl ToEx<U>) {
    let o = f(&T::default()).1;
    let v = get(v.to_ex().n);
    let x = get(x.n);
    slice_assign(x, U::BITS, VerilogExpression::Literal(o.into()), v)
}
pub fn lift<T: Synth>(v: impl ToEx<T>) -> Ex<T> {
    v.to_ex()
}

// ------------------------------------------------------------------------------------------------ if, match
pub enum Cond {
    Static(bool),
    Dyn(VerilogExpression, RefCell<Option<VerilogBlock>>),
}
#[diagnostic::on_unimplemented(
    message = "the condition of an `if` in a kernel must be a bool",
    label = "this is `{Self}`"
)]
pub trait Test {
    fn test(self) -> Cond;
}
impl Test for bool {
    fn test(self) -> Cond {
        Cond::Static(self)
    }
}
impl Test for Ex<bool> {
    fn test(self) -> Cond {
        Cond::Dyn(get(self.n), RefCell::new(None))
    }
}
pub fn test(c: impl Test) -> Cond {
    c.test()
}
impl Cond {
    pub fn then(&self) -> bool {
        match self {
            Cond::Static(b) => *b,
            Cond::Dyn(..) => {
                push();
                true
            }
        }
    }
    pub fn els(&self) -> bool {
        match self {
            Cond::Static(b) => !*b,
            Cond::Dyn(_, t) => {
                *t.borrow_mut() = Some(pop());
                push();
                true
            }
        }
    }
    pub fn end(self) {
        if let Cond::Dyn(test, t) = self {
            let last = pop();
            let (then, otherwise) = match t.into_inner() {
                None => (last, VerilogBlockOrConditional::None),
                Some(t) => (
                    t,
                    match <[_; 1]>::try_from(last) {
                        Ok([s @ VerilogStatement::If(_)]) => VerilogBlockOrConditional::Conditional(Box::new(s)),
                        Ok([s]) => VerilogBlockOrConditional::Block(vec![s]),
                        Err(b) => VerilogBlockOrConditional::Block(b),
                    },
                ),
            };
            emit(VerilogStatement::If(VerilogConditional { test, then, otherwise }))
        }
    }
}
/// value of an if- or match-expression: a variable that every branch sets
pub struct Join<T: Synth> {
    name: String,
    used: Cell<bool>,
    p: PhantomData<T>,
}
impl<T: Synth> Join<T> {
    pub fn new(hint: &str) -> Self {
        Join { name: fresh("let", hint, T::BITS), used: Cell::new(false), p: PhantomData }
    }
    pub fn set(&self, v: impl ToEx<T>) {
        self.used.set(true);
        let v = get(v.to_ex().n);
        emit(VerilogStatement::Assignment(sig(self.name.clone()), v))
    }
    pub fn get(self) -> Ex<T> {
        assert!(self.used.get());
        tmp(self.name)
    }
}
pub struct Match<T: Synth> {
    test: VerilogExpression,
    cases: RefCell<Vec<VerilogCase>>,
    p: PhantomData<T>,
}
pub fn match_<T: Synth>(x: Ex<T>) -> Match<T> {
    Match { test: get(x.n), cases: RefCell::default(), p: PhantomData }
}
impl<T: Synth> Match<T> {
    fn flush(&self) {
        if !self.cases.borrow().is_empty() {
            let b = pop();
            self.cases.borrow_mut().last_mut().unwrap().block = b
        }
    }
    #[track_caller]
    pub fn pat(&self, p: impl ToEx<T>) -> VerilogExpression {
        get(p.to_ex().n)
    }
    pub fn case(&self, pats: &[VerilogExpression]) {
        self.flush();
        push();
        self.cases.borrow_mut().push(VerilogCase {
            condition: pats.iter().map(crate::vgen::literal).collect::<Vec<_>>().join(", "),
            block: vec![],
        })
    }
    pub fn default(&self) {
        self.flush();
        push();
        self.cases.borrow_mut().push(VerilogCase { condition: "default".into(), block: vec![] })
    }
    pub fn end(self) {
        self.flush();
        emit(VerilogStatement::Match(VerilogMatch { test: self.test, cases: self.cases.into_inner() }))
    }
}
