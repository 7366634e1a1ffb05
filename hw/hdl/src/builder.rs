//! The kernel under construction: a stack of open blocks of statements, for the symbolic values and the statements that
//! `#[kernel]` writes. Expressions are normalised here, so that the emitter meets few shapes: a slice is always of a
//! signal or a variable, an extension always widens.
use crate::ir::*;
use std::cell::RefCell;

struct Building {
    kernel: Kernel,
    open: Vec<Vec<Stmt>>,
    at: Loc,
    /// The `#[hdl_fn]`s that are running, and where they were called.
    calls: Vec<(&'static str, Loc)>,
}
// a stack, because a kernel may build another block's hardware on the way
thread_local! { static BUILDING: RefCell<Vec<Building>> = const { RefCell::new(vec![]) }; }

fn with<R>(f: impl FnOnce(&mut Building) -> R) -> R {
    BUILDING.with(|b| f(b.borrow_mut().last_mut().expect("a hardware value outside of a kernel")))
}

/// Panics with the kernel's line, and the calls that led to it. Outside of a kernel, an ordinary panic.
#[track_caller]
pub fn fail(message: impl std::fmt::Display) -> ! {
    let place = BUILDING.with(|b| {
        b.borrow().last().map(|b| {
            let calls: String = b.calls.iter().rev().map(|(f, at)| format!("\n  in `{f}`, called at {at}")).collect();
            (b.at, calls)
        })
    });
    match place {
        Some((at, calls)) => panic!("{at}: {message}{calls}"),
        None => panic!("{message}"),
    }
}

/// Runs a kernel's body and hands its circuit to the emitter.
pub fn kernel(block: &'static str, file: &'static str, f: impl FnOnce()) -> rust_hdl::prelude::Verilog {
    /// Closes the kernel also when its body panics.
    struct Guard;
    impl Drop for Guard {
        fn drop(&mut self) {
            if std::thread::panicking() {
                BUILDING.with(|b| b.borrow_mut().pop());
            }
        }
    }
    BUILDING.with(|b| {
        b.borrow_mut().push(Building {
            kernel: Kernel { block, exprs: vec![], vars: vec![], body: vec![] },
            open: vec![vec![]],
            at: Loc { file, line: 0 },
            calls: vec![],
        })
    });
    let guard = Guard;
    f();
    drop(guard);
    let mut b = BUILDING.with(|b| b.borrow_mut().pop().unwrap());
    b.kernel.body = b.open.pop().unwrap();
    hand_over(Body::Kernel(b.kernel))
}

/// The Rust line of the statements to come.
pub fn at(line: u32) {
    with(|b| b.at.line = line)
}
/// The body of an `#[hdl_fn]`: lines are in `file` until it is dropped.
pub struct Call(Loc);
pub fn call(name: &'static str, file: &'static str, line: u32) -> Call {
    with(|b| {
        let from = b.at;
        b.calls.push((name, from));
        b.at = Loc { file, line };
        Call(from)
    })
}
impl Drop for Call {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            with(|b| {
                b.calls.pop();
                b.at = self.0
            })
        }
    }
}

// ---- statements
pub(crate) fn emit(kind: Kind) {
    emit_at(here(), kind)
}
/// The line of the statement that is being built.
pub(crate) fn here() -> Loc {
    with(|b| b.at)
}
pub(crate) fn emit_at(at: Loc, kind: Kind) {
    edit(|b| b.push(Stmt { at, kind }))
}
pub(crate) fn open() {
    with(|b| b.open.push(vec![]))
}
pub(crate) fn close() -> Vec<Stmt> {
    with(|b| b.open.pop().unwrap())
}
/// The statements of the innermost open block.
pub(crate) fn edit<R>(f: impl FnOnce(&mut Vec<Stmt>) -> R) -> R {
    with(|b| f(b.open.last_mut().unwrap()))
}
pub(crate) fn declare(name: &str, width: usize, fixed: bool, value: Option<Id>) -> VarId {
    let v = with(|b| {
        b.kernel.vars.push(Var { name: name.into(), width, fixed });
        VarId(b.kernel.vars.len() as u32 - 1)
    });
    emit(Kind::Declare(v, value));
    v
}

// ---- expressions
pub(crate) fn expr(op: Op, width: usize) -> Id {
    with(|b| {
        b.kernel.exprs.push(Expr { op, width });
        Id(b.kernel.exprs.len() as u32 - 1)
    })
}
pub(crate) fn get(id: Id) -> Expr {
    with(|b| b.kernel.expr(id).clone())
}
pub(crate) fn width(id: Id) -> usize {
    with(|b| b.kernel.expr(id).width)
}
pub(crate) fn constant(bits: Vec<bool>, label: Option<String>) -> Id {
    let width = bits.len();
    expr(Op::Const(bits, label), width)
}
pub(crate) fn number(value: u64, width: usize) -> Id {
    constant((0..width).map(|i| i < 64 && value >> i & 1 == 1).collect(), None)
}
pub(crate) fn binary(op: Binary, a: Id, b: Id) -> Id {
    use Binary::*;
    let width = if matches!(op, LogicalAnd | LogicalOr | Eq | Ne | Lt | Le) { 1 } else { width(a) };
    expr(Op::Binary(op, a, b), width)
}
pub(crate) fn is_fixed(v: VarId) -> bool {
    with(|b| b.kernel.var(v).fixed)
}
/// `x` itself if it is a signal, a variable or a constant; else a new `let` that holds it.
pub(crate) fn named(x: Id, hint: &str) -> Id {
    let e = get(x);
    match e.op {
        Op::Signal(_) | Op::Var(_) | Op::Const(..) => x,
        _ => {
            let v = declare(hint, e.width, true, Some(x));
            expr(Op::Var(v), e.width)
        }
    }
}
/// Bits `low .. low + w` of `x`, which must be inside.
pub(crate) fn slice(x: Id, low: usize, w: usize) -> Id {
    let e = get(x);
    assert!(low + w <= e.width);
    if w == e.width {
        return x;
    }
    match e.op {
        Op::Const(bits, _) => constant(bits[low..low + w].to_vec(), None),
        Op::Slice(y, l) => expr(Op::Slice(y, l + low), w),
        Op::Extend(y) => {
            let inner = width(y);
            if low >= inner { number(0, w) } else { extend(slice(y, low, w.min(inner - low)), w) }
        }
        Op::Concat(parts) => {
            let (mut at, mut out) = (e.width, vec![]);
            for p in parts {
                let n = width(p);
                at -= n;
                let (from, to) = (low.max(at), (low + w).min(at + n));
                if from < to {
                    out.push(slice(p, from - at, to - from))
                }
            }
            concat(out)
        }
        _ => {
            let y = named(x, "whole");
            expr(Op::Slice(y, low), w)
        }
    }
}
/// `x` with zeros above, to at least its own width.
pub(crate) fn extend(x: Id, w: usize) -> Id {
    let e = get(x);
    assert!(w >= e.width);
    match e.op {
        _ if w == e.width => x,
        Op::Const(mut bits, _) => {
            bits.resize(w, false);
            constant(bits, None)
        }
        Op::Extend(y) => expr(Op::Extend(y), w),
        _ => expr(Op::Extend(x), w),
    }
}
/// Truncation or zero extension.
pub(crate) fn resize(x: Id, w: usize) -> Id {
    if w < width(x) { slice(x, 0, w) } else { extend(x, w) }
}
/// Concatenation, most significant part first.
pub(crate) fn concat(parts: Vec<Id>) -> Id {
    let mut flat = vec![];
    for p in parts {
        match get(p).op {
            Op::Concat(v) => flat.extend(v),
            _ => flat.push(p),
        }
    }
    let w = flat.iter().map(|p| width(*p)).sum();
    if flat.len() == 1 { flat[0] } else { expr(Op::Concat(flat), w) }
}
