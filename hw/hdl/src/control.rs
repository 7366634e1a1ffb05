//! Statements of a kernel: `let`, variables, assignments, `if` and `match`, and access to signals by name. `#[kernel]`
//! writes calls of these in place of the Rust statements.
use crate::builder::{self, fail};
use crate::ir::{Base, Case, Id, Kind, Loc, Op, Part, Stmt, VarId};
use crate::ops::{ExIndex, Index, Offset, inside};
use crate::value::{Ex, ToEx, ex};
use rust_hdl::prelude::{Bits, Direction, Signal, Synth, ast::VerilogLink};
use std::{
    cell::{Cell, RefCell},
    marker::PhantomData,
};

// ---- signals
fn set(base: Base, part: Part, v: Id) {
    let (part, v) = match (part, changed_part(&base, v)) {
        (Part::Whole, Some((low, x))) => (Part::Bits { low, width: builder::width(x) }, x),
        (part, _) => (part, v),
    };
    builder::emit(Kind::Set(base, part, v))
}
/// For a value that repeats the target's own bits around one new part, as `x = x.replace_bit(3, b)`: where the part is, and
/// the part.
fn changed_part(base: &Base, v: Id) -> Option<(usize, Id)> {
    let e = builder::get(v);
    let Op::Concat(parts) = e.op else { return None };
    let is_own = |x: Id, at: usize| match builder::get(x).op {
        Op::Slice(of, low) if low == at => match (builder::get(of).op, base) {
            (Op::Signal(n), Base::Signal(b)) => n == *b,
            (Op::Var(n), Base::Var(b)) => n == *b,
            _ => false,
        },
        _ => false,
    };
    let (mut at, mut changed) = (e.width, vec![]);
    for p in parts {
        at -= builder::width(p);
        if !is_own(p, at) {
            changed.push((at, p))
        }
    }
    if changed.len() == 1 { changed.pop() } else { None }
}
/// `self.signal.next = v`.
pub fn assign<D: Direction, T: Synth>(_: &Signal<D, T>, name: String, v: impl ToEx<T>) {
    set(Base::Signal(name), Part::Whole, v.to_ex().id)
}
/// `self.signal.next.field = v`.
pub fn assign_field<D: Direction, T: Synth, U: Synth>(
    _: &Signal<D, T>,
    name: String,
    f: impl FnOnce(&T) -> (U, usize),
    v: impl ToEx<U>,
) {
    let low = f(&T::default()).1;
    set(Base::Signal(name), Part::Bits { low, width: U::BITS }, v.to_ex().id)
}
/// `self.signal.next.set_bits::<M>(offset, v)`.
#[track_caller]
pub fn set_bits<const N: usize, const M: usize, D: Direction>(
    _: &Signal<D, Bits<N>>,
    name: String,
    o: impl Index,
    v: impl ToEx<Bits<M>>,
) {
    let v = v.to_ex().id;
    let part = match o.offset() {
        Offset::Static(low) => {
            inside(low, M, N);
            Part::Bits { low, width: M }
        }
        Offset::Dynamic(offset) => {
            let enough = (usize::BITS - (N - 1).leading_zeros()).max(1) as usize;
            let offset = builder::resize(offset, builder::width(offset).min(enough));
            Part::Dynamic { offset, width: M }
        }
    };
    set(Base::Signal(name), part, v)
}
/// `Interface::link` and `join`: RustHDL says which signal drives which.
pub fn links(links: Vec<VerilogLink>) {
    let path = |owner: &str, field: &str| match field.trim_start_matches('.') {
        "" => owner.to_string(),
        f => format!("{owner}${}", f.replace('.', "$")),
    };
    for l in links {
        let (to, from, field) = match l {
            VerilogLink::Forward(d) => (d.other_name, d.owner_name, d.my_name),
            VerilogLink::Backward(d) => (d.owner_name, d.other_name, d.my_name),
            VerilogLink::Bidirectional(_) => fail("bidirectional signals are not supported"),
        };
        builder::emit(Kind::Link(path(&to, &field), path(&from, &field)))
    }
}
pub fn comment(s: &str) {
    builder::emit(Kind::Comment(s.into()))
}

/// `self.items[i]`, read: `read` gives the value of an element and its name. A run-time index becomes a multiplexer; past
/// the end it gives the last element (the Rust model panics).
#[track_caller]
pub fn read_at<E, T: Synth>(items: &[E], i: impl Index, name: String, read: impl Fn(&E, String) -> Ex<T>) -> Ex<T> {
    match i.offset() {
        Offset::Static(i) => read(element(items, i), format!("{name}${i}")),
        Offset::Dynamic(i) => {
            let of = |k: usize| read(&items[k], format!("{name}${k}"));
            let field = name.rsplit('$').find(|s| !s.starts_with(|c: char| c.is_ascii_digit()));
            multiplex(i, items.len(), &format!("{}_at", field.unwrap_or("element")), of)
        }
    }
}
/// `self.items[i]`, written: `write` assigns an element. A run-time index past the end writes nothing.
#[track_caller]
pub fn write_at<E>(items: &[E], i: impl Index, name: String, write: impl Fn(&E, String)) {
    match i.offset() {
        Offset::Static(i) => write(element(items, i), format!("{name}${i}")),
        Offset::Dynamic(i) => {
            let w = builder::width(i);
            let mut cases = vec![];
            for (k, x) in items.iter().enumerate().take_while(|(k, _)| w >= 64 || k >> w == 0) {
                builder::open();
                write(x, format!("{name}${k}"));
                cases.push(Case { labels: vec![builder::number(k as u64, w)], body: builder::close() })
            }
            cases.push(Case { labels: vec![], body: vec![] });
            builder::emit(Kind::Match(i, cases))
        }
    }
}
#[track_caller]
fn element<E>(items: &[E], i: usize) -> &E {
    items.get(i).unwrap_or_else(|| fail(format_args!("index {i} of an array of {}", items.len())))
}
fn multiplex<T: Synth>(i: Id, n: usize, hint: &str, of: impl Fn(usize) -> Ex<T>) -> Ex<T> {
    let w = builder::width(i);
    let n = if w < 64 { n.min(1 << w) } else { n };
    if n == 0 {
        fail("an array of nothing")
    }
    let join = Join::<T>::new(hint);
    let case = |k: usize| {
        builder::open();
        join.set(of(k));
        let labels = if k + 1 == n { vec![] } else { vec![builder::number(k as u64, w)] };
        Case { labels, body: builder::close() }
    };
    let cases = (0..n).map(case).collect();
    builder::emit(Kind::Match(i, cases));
    join.get()
}

/// `array[i]` of values in a kernel.
#[diagnostic::on_unimplemented(message = "`{Self}` cannot be indexed by `{I}` in a kernel")]
pub trait At<I> {
    type Out;
    fn at(self, i: I) -> Self::Out;
}
impl<T: Clone, const N: usize> At<usize> for [T; N] {
    type Out = T;
    #[track_caller]
    fn at(self, i: usize) -> T {
        element(&self, i).clone()
    }
}
impl<T: Clone> At<usize> for &[T] {
    type Out = T;
    #[track_caller]
    fn at(self, i: usize) -> T {
        element(self, i).clone()
    }
}
impl<T: Synth, const N: usize> At<ExIndex> for [Ex<T>; N] {
    type Out = Ex<T>;
    fn at(self, i: ExIndex) -> Ex<T> {
        multiplex(i.0, N, "element", |k| self[k])
    }
}
impl<const M: usize, const N: usize> At<ExIndex> for [Bits<M>; N] {
    type Out = Ex<Bits<M>>;
    fn at(self, i: ExIndex) -> Ex<Bits<M>> {
        multiplex(i.0, N, "element", |k| self[k].to_ex())
    }
}
#[track_caller]
pub fn index<A: At<I>, I>(a: A, i: I) -> A::Out {
    a.at(i)
}

// ---- let and let mut
/// Something that `let` can name: a hardware value gets a variable of its own, a Rust value stays what it is.
pub trait Bind {
    type Out;
    fn bind(self, name: &str) -> Self::Out;
}
fn let_(name: &str, x: Id) -> Id {
    let width = builder::width(x);
    let v = builder::declare(name, width, true, Some(x));
    builder::expr(Op::Var(v), width)
}
impl<T: Synth> Bind for Ex<T> {
    type Out = Self;
    fn bind(self, name: &str) -> Self {
        ex(let_(name, self.id))
    }
}
impl Bind for ExIndex {
    type Out = Self;
    fn bind(self, name: &str) -> Self {
        ExIndex(let_(name, self.0))
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
pub fn bind_array<B: Bind, const N: usize>(name: &str, v: [B; N]) -> [B::Out; N] {
    let mut i = 0;
    v.map(|x| {
        i += 1;
        x.bind(&format!("{name}_{}", i - 1))
    })
}
/// `let name: T = v`.
pub fn bind_as<T: Synth>(name: &str, v: impl ToEx<T>) -> Ex<T> {
    v.to_ex().bind(name)
}
/// An argument of an `#[hdl_fn]`: named only if it is not a name or a constant already.
pub fn argument<T: Synth>(name: &str, v: impl ToEx<T>) -> Ex<T> {
    let v = v.to_ex();
    match builder::get(v.id).op {
        Op::Var(x) if builder::is_fixed(x) => v,
        Op::Signal(_) | Op::Const(..) => v,
        _ => v.bind(name),
    }
}
/// `let mut name: T = v`.
pub fn var<T: Synth>(name: &str, v: impl ToEx<T>) -> Ex<T> {
    let x = builder::declare(name, T::BITS, false, Some(v.to_ex().id));
    ex(builder::expr(Op::Var(x), T::BITS))
}
fn var_of<T>(x: Ex<T>) -> VarId {
    match builder::get(x.id).op {
        Op::Var(v) => v,
        _ => unreachable!("only variables are assigned"),
    }
}
pub fn set_var<T: Synth>(x: Ex<T>, v: impl ToEx<T>) {
    set(Base::Var(var_of(x)), Part::Whole, v.to_ex().id)
}
pub fn set_var_field<T: Synth, U: Synth>(x: Ex<T>, f: impl FnOnce(&T) -> (U, usize), v: impl ToEx<U>) {
    let low = f(&T::default()).1;
    set(Base::Var(var_of(x)), Part::Bits { low, width: U::BITS }, v.to_ex().id)
}

// ---- if
/// The condition of an `if`: known while the circuit is built, or hardware.
pub enum Cond {
    Static(bool),
    /// The condition, its line, and the `then` branch once it is complete.
    Dynamic(Id, Loc, RefCell<Option<Vec<Stmt>>>),
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
        Cond::Dynamic(self.id, builder::here(), RefCell::new(None))
    }
}
pub fn test(c: impl Test) -> Cond {
    c.test()
}
impl Cond {
    /// Whether to build the `then` branch; opens it.
    pub fn then(&self) -> bool {
        match self {
            Cond::Static(b) => *b,
            Cond::Dynamic(..) => {
                builder::open();
                true
            }
        }
    }
    /// Whether to build the `else` branch; opens it.
    pub fn els(&self) -> bool {
        match self {
            Cond::Static(b) => !*b,
            Cond::Dynamic(_, _, then) => {
                *then.borrow_mut() = Some(builder::close());
                builder::open();
                true
            }
        }
    }
    pub fn end(self) {
        if let Cond::Dynamic(c, at, then) = self {
            let last = builder::close();
            builder::emit_at(
                at,
                match then.into_inner() {
                    None => Kind::If(c, last, vec![]),
                    Some(then) => Kind::If(c, then, last),
                },
            )
        }
    }
}
/// A wider if-expression stays an `if`: simulators then compute only the branch that is taken.
const WIDEST_MUX: usize = 64;

/// The value of an if- or match-expression: a variable that every branch sets.
pub struct Join<T: Synth> {
    var: VarId,
    used: Cell<bool>,
    of: PhantomData<T>,
}
impl<T: Synth> Join<T> {
    pub fn new(hint: &str) -> Self {
        Join { var: builder::declare(hint, T::BITS, false, None), used: Cell::new(false), of: PhantomData }
    }
    pub fn set(&self, v: impl ToEx<T>) {
        self.used.set(true);
        set(Base::Var(self.var), Part::Whole, v.to_ex().id)
    }
    pub fn get(self) -> Ex<T> {
        assert!(self.used.get());
        let own = |s: &[Stmt]| match s {
            [Stmt { kind: Kind::Set(Base::Var(v), Part::Whole, x), .. }] if *v == self.var => Some(*x),
            _ => None,
        };
        // the value itself if the branch was chosen at build time, `c ? a : b` if the branches are expressions
        enum Simple {
            Value(Id),
            Mux(Id, Id, Id),
        }
        let simple = builder::edit(|b| {
            let last = b.last()?;
            let s = match &last.kind {
                Kind::If(c, then, els) if T::BITS <= WIDEST_MUX => Simple::Mux(*c, own(then)?, own(els)?),
                _ => Simple::Value(own(std::slice::from_ref(last))?),
            };
            let sets = |s: &Stmt| matches!(&s.kind, Kind::Set(Base::Var(v), ..) if *v == self.var);
            if matches!(s, Simple::Value(_)) && b.iter().filter(|s| sets(s)).count() > 1 {
                return None;
            }
            b.pop();
            b.retain(|s| !matches!(s.kind, Kind::Declare(v, _) if v == self.var));
            Some(s)
        });
        match simple {
            Some(Simple::Value(x)) => ex(x),
            Some(Simple::Mux(c, a, b)) => ex(builder::expr(Op::Mux(c, a, b), T::BITS)),
            None => ex(builder::expr(Op::Var(self.var), T::BITS)),
        }
    }
}

// ---- match
pub struct Match<T: Synth> {
    test: Id,
    at: Loc,
    cases: RefCell<Vec<Case>>,
    of: PhantomData<T>,
}
pub fn match_<T: Synth>(x: Ex<T>) -> Match<T> {
    Match { test: x.id, at: builder::here(), cases: RefCell::default(), of: PhantomData }
}
impl<T: Synth> Match<T> {
    fn finish_case(&self) {
        if let Some(c) = self.cases.borrow_mut().last_mut() {
            c.body = builder::close()
        }
    }
    /// A constant pattern.
    #[track_caller]
    pub fn pattern(&self, p: impl ToEx<T>) -> Id {
        p.to_ex().id
    }
    /// Opens the arm of these patterns; of none, the last arm.
    pub fn case(&self, labels: Vec<Id>) {
        self.finish_case();
        builder::open();
        self.cases.borrow_mut().push(Case { labels, body: vec![] })
    }
    pub fn end(self) {
        self.finish_case();
        builder::emit_at(self.at, Kind::Match(self.test, self.cases.into_inner()))
    }
}
