//! The circuit that a kernel stands for, between the builder that writes it and the emitter that reads it. Every
//! expression knows its width, so nothing downstream has to infer one; every statement knows its Rust line.
//!
//! RustHDL's `Logic::hdl()` returns its own `Verilog` type, which has no room for this. A kernel therefore leaves its
//! circuit in a thread-local, where the emitter takes it right after calling `hdl()`.
use rust_hdl::prelude::{Block, Verilog};
use std::cell::RefCell;

/// Index of an expression in its kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub u32);
/// Index of a `let`, a `let mut` or the value of an if- or match-expression in its kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VarId(pub u32);

/// A line of Rust.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loc {
    pub file: &'static str,
    pub line: u32,
}
impl std::fmt::Display for Loc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    Add,
    Sub,
    Mul,
    And,
    Or,
    Xor,
    LogicalAnd,
    LogicalOr,
    Eq,
    Ne,
    Lt,
    Le,
    Shl,
    Shr,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduce {
    All,
    Any,
    Xor,
}

/// An operation. Operands of `Binary` have equal widths, except the amount of a shift; a comparison is 1 bit wide.
#[derive(Clone, Debug)]
pub enum Op {
    /// A signal of the block or of a direct sub-block, by RustHDL's name: `sub$port`, `interface$field`, `array$0`.
    Signal(String),
    Var(VarId),
    /// Least significant bit first, with the name of the enum variant if it is one.
    Const(Vec<bool>, Option<String>),
    Not(Id),
    Reduce(Reduce, Id),
    Binary(Binary, Id, Id),
    /// As many bits as the expression is wide, from this bit on; the operand is a signal or a variable.
    Slice(Id, usize),
    /// The same at a run-time offset that cannot get past the end.
    DynSlice(Id, Id),
    /// Zeros above.
    Extend(Id),
    /// Most significant part first.
    Concat(Vec<Id>),
    Mux(Id, Id, Id),
}
#[derive(Clone, Debug)]
pub struct Expr {
    pub op: Op,
    pub width: usize,
}

/// What an assignment writes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Base {
    Signal(String),
    Var(VarId),
}
#[derive(Clone, Copy, Debug)]
pub enum Part {
    Whole,
    Bits { low: usize, width: usize },
    Dynamic { offset: Id, width: usize },
}
#[derive(Clone, Debug)]
pub struct Case {
    /// Constants; empty for the default.
    pub labels: Vec<Id>,
    pub body: Vec<Stmt>,
}
#[derive(Clone, Debug)]
pub enum Kind {
    /// Declares a variable; its first value, or none for the value of an if- or match-expression.
    Declare(VarId, Option<Id>),
    Set(Base, Part, Id),
    If(Id, Vec<Stmt>, Vec<Stmt>),
    Match(Id, Vec<Case>),
    /// A whole signal drives another, from `link` or `join`: destination, source. The emitter, which knows the widths,
    /// turns it into a `Set` before anything else.
    Link(String, String),
    Comment(String),
}
#[derive(Clone, Debug)]
pub struct Stmt {
    pub at: Loc,
    pub kind: Kind,
}
#[derive(Clone, Debug)]
pub struct Var {
    /// The Rust name.
    pub name: String,
    pub width: usize,
    /// Assigned exactly once, where it is declared.
    pub fixed: bool,
}

/// The body of one `#[kernel]`.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// `type_name` of the block.
    pub block: &'static str,
    pub exprs: Vec<Expr>,
    pub vars: Vec<Var>,
    pub body: Vec<Stmt>,
}
impl Kernel {
    pub fn expr(&self, id: Id) -> &Expr {
        &self.exprs[id.0 as usize]
    }
    pub fn var(&self, id: VarId) -> &Var {
        &self.vars[id.0 as usize]
    }
    /// Calls `f` on `id` and everything below it, parents first.
    pub fn visit(&self, id: Id, f: &mut dyn FnMut(&Expr)) {
        let e = self.expr(id);
        f(e);
        match &e.op {
            Op::Signal(_) | Op::Var(_) | Op::Const(..) => {}
            Op::Not(a) | Op::Reduce(_, a) | Op::Slice(a, _) | Op::Extend(a) => self.visit(*a, f),
            Op::Binary(_, a, b) | Op::DynSlice(a, b) => [a, b].into_iter().for_each(|x| self.visit(*x, f)),
            Op::Concat(v) => v.iter().for_each(|x| self.visit(*x, f)),
            Op::Mux(c, a, b) => [c, a, b].into_iter().for_each(|x| self.visit(*x, f)),
        }
    }
}
impl Stmt {
    /// The statements directly inside this one, branch by branch.
    pub fn branches(&self) -> Vec<&[Stmt]> {
        match &self.kind {
            Kind::If(_, a, b) => vec![a, b],
            Kind::Match(_, cases) => cases.iter().map(|c| &c.body[..]).collect(),
            _ => vec![],
        }
    }
    /// Calls `f` on this statement and everything below it, in text order.
    pub fn visit(&self, f: &mut dyn FnMut(&Stmt)) {
        f(self);
        self.branches().into_iter().flatten().for_each(|s| s.visit(f))
    }
    /// The expressions that this statement itself reads.
    pub fn reads(&self) -> Vec<Id> {
        match &self.kind {
            Kind::Declare(_, v) => v.iter().copied().collect(),
            Kind::Set(_, Part::Dynamic { offset, .. }, v) => vec![*offset, *v],
            Kind::Set(_, _, v) => vec![*v],
            Kind::If(c, ..) | Kind::Match(c, _) => vec![*c],
            Kind::Link(..) | Kind::Comment(_) => vec![],
        }
    }
}

/// What a block is made of.
#[derive(Clone, Debug)]
pub enum Body {
    Kernel(Kernel),
    /// A register: power-up value, and whether `rst` brings it back. Hexadecimal.
    Register {
        init: String,
        reset: bool,
        /// It holds the state of a machine, an enum: synthesis may choose another code.
        states: bool,
    },
    /// Verilog text between the ports and `endmodule`.
    Text {
        /// `type_name` of the block, if known.
        block: Option<&'static str>,
        text: String,
        /// The text assigns its outputs in processes (`reg`) rather than by an instance (`wire`).
        reg: bool,
        /// Foreign modules that the text needs, once per design.
        source: String,
    },
}
thread_local! { static DONE: RefCell<Option<Body>> = const { RefCell::new(None) }; }

/// What a block's `hdl()` returns: leaves the body for the emitter, and text that fails loudly for anyone else.
pub fn hand_over(body: Body) -> Verilog {
    DONE.set(Some(body));
    Verilog::Custom("`error \"this block is emitted with hdl::emit, not with generate_verilog\"\n".into())
}
/// The body of a block. Panics on stock RustHDL kernels (`#[hdl_gen]`), whose Verilog can differ from their Rust.
pub fn body(block: &dyn Block, path: &str) -> Body {
    DONE.take();
    let v = block.hdl();
    let text = |text, reg, source| Body::Text { block: None, text, reg, source };
    match (DONE.take(), v) {
        (Some(b), _) => b,
        (_, Verilog::Custom(t)) => match t.split("q = ").nth(1).and_then(|x| x.split([';', '\n']).next()) {
            // RustHDL's DFF
            Some(init) if t.contains("always @(posedge clock) begin\n   q <= d;\nend") => {
                Body::Register { init: init.split("'h").last().unwrap().into(), reset: false, states: false }
            }
            _ => text(t, true, String::new()),
        },
        (_, Verilog::Wrapper(w)) => text(w.code, false, w.cores),
        (_, Verilog::Empty) => text(String::new(), false, String::new()),
        (_, Verilog::Combinatorial(_)) => panic!("{path}: written with #[hdl_gen]; use #[kernel]"),
        (_, Verilog::Blackbox(_)) => panic!("{path}: use hdl's BlackBox"),
    }
}
