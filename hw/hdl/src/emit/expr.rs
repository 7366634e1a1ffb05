//! Expressions as Verilog text. All literals are sized and operands have equal widths, so Verilog's context rules give
//! exactly the width of the Rust type everywhere; there are no casts. Extension is a concatenation with zeros and a part
//! is only ever taken of a name.
use crate::ir::*;
use std::collections::BTreeMap;

/// How tightly a text binds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bind {
    /// A name, a literal, a concatenation.
    Atom,
    /// `!x`, `~x`.
    Unary,
    /// Any operator; associative ones may follow themselves without parentheses.
    Operator(&'static str),
}
struct Text {
    s: String,
    bind: Bind,
}
impl Text {
    fn atom(s: String) -> Self {
        Text { s, bind: Bind::Atom }
    }
    /// As an operand of `op`.
    fn operand(self, op: &str) -> String {
        match self.bind {
            Bind::Atom | Bind::Unary => self.s,
            Bind::Operator(own) if own == op && ["&", "|", "^", "&&", "||", "+"].contains(&op) => self.s,
            Bind::Operator(_) => format!("({})", self.s),
        }
    }
}

/// Prints the expressions of one kernel.
pub struct Printer<'a> {
    pub kernel: &'a Kernel,
    /// Verilog name of every signal in scope.
    pub signals: BTreeMap<String, String>,
    /// Verilog name of every variable declared so far.
    pub vars: BTreeMap<VarId, String>,
    pub alias: &'a BTreeMap<VarId, Id>,
}
impl Printer<'_> {
    pub fn print(&self, id: Id) -> String {
        self.text(id).s
    }
    pub fn base(&self, b: &Base) -> &str {
        match b {
            Base::Signal(n) => &self.signals[n],
            Base::Var(v) => &self.vars[v],
        }
    }
    pub fn base_width(&self, b: &Base, signal: impl Fn(&str) -> usize) -> usize {
        match b {
            Base::Signal(n) => signal(n),
            Base::Var(v) => self.kernel.var(*v).width,
        }
    }
    fn text(&self, id: Id) -> Text {
        let e = self.kernel.expr(id);
        match &e.op {
            Op::Signal(n) => Text::atom(self.signals[n].clone()),
            Op::Var(v) => match self.alias.get(v) {
                Some(x) => self.text(*x),
                None => Text::atom(self.vars[v].clone()),
            },
            Op::Const(_, Some(label)) => Text::atom(label.clone()),
            Op::Const(bits, None) => Text::atom(literal(bits)),
            Op::Not(a) => {
                let op = if e.width == 1 { "!" } else { "~" };
                Text { s: format!("{op}{}", self.text(*a).operand("")), bind: Bind::Unary }
            }
            Op::Reduce(r, a) => {
                let op = match r {
                    Reduce::All => "&",
                    Reduce::Any => "|",
                    Reduce::Xor => "^",
                };
                Text { s: format!("{op}{}", self.text(*a).operand("")), bind: Bind::Operator("reduce") }
            }
            Op::Binary(o, a, b) => {
                let op = match o {
                    Binary::Add => "+",
                    Binary::Sub => "-",
                    Binary::Mul => "*",
                    Binary::And => "&",
                    Binary::Or => "|",
                    Binary::Xor => "^",
                    Binary::LogicalAnd => "&&",
                    Binary::LogicalOr => "||",
                    Binary::Eq => "==",
                    Binary::Ne => "!=",
                    Binary::Lt => "<",
                    Binary::Le => "<=",
                    Binary::Shl => "<<",
                    Binary::Shr => ">>",
                };
                let right = match &self.kernel.expr(*b).op {
                    Op::Const(bits, None) if matches!(o, Binary::Shl | Binary::Shr) => amount(bits).to_string(),
                    // `a - (b + c)`, `a + (b + c)`: only the left operand may go without parentheses
                    _ => self.text(*b).operand(""),
                };
                let s = format!("{} {op} {right}", self.text(*a).operand(op));
                Text { s, bind: Bind::Operator(op) }
            }
            Op::Slice(x, low) => {
                let name = self.text(*x).s;
                Text::atom(match e.width {
                    1 => format!("{name}[{low}]"),
                    w => format!("{name}[{}:{low}]", low + w - 1),
                })
            }
            Op::DynSlice(x, offset) => self.dynamic(*x, *offset, e.width),
            Op::Extend(x) => {
                let pad = e.width - self.kernel.expr(*x).width;
                Text::atom(format!("{{{pad}'d0, {}}}", self.parts(*x)))
            }
            Op::Concat(_) => Text::atom(format!("{{{}}}", self.parts(id))),
            Op::Mux(c, a, b) => {
                let b = self.text(*b);
                let b = if b.bind == Bind::Operator("?") { b.s } else { b.operand("") };
                let s = format!("{} ? {} : {b}", self.text(*c).operand(""), self.text(*a).operand(""));
                Text { s, bind: Bind::Operator("?") }
            }
        }
    }
    /// `x` as part of a concatenation.
    fn parts(&self, x: Id) -> String {
        match &self.kernel.expr(x).op {
            Op::Concat(parts) => parts.iter().map(|p| self.print(*p)).collect::<Vec<_>>().join(", "),
            _ => self.print(x),
        }
    }
    /// `width` bits of `x` at a run-time offset. A part select is undefined past the end, where Rust reads zeros: the
    /// builder uses it only where the offset cannot get there, and shifts otherwise.
    fn dynamic(&self, x: Id, offset: Id, width: usize) -> Text {
        let name = self.text(x).s;
        let i = self.select_index(offset, self.kernel.expr(x).width);
        Text::atom(if width == 1 { format!("{name}[{i}]") } else { format!("{name}[{i} +: {width}]") })
    }
    /// An offset into `width` bits, as wide as Verilog wants its index.
    pub fn select_index(&self, offset: Id, width: usize) -> String {
        let need = usize::BITS as usize - (width - 1).leading_zeros() as usize;
        let own = self.kernel.expr(offset).width;
        match need.max(1).saturating_sub(own) {
            0 => self.print(offset),
            pad => format!("{{{pad}'d0, {}}}", self.print(offset)),
        }
    }
}

/// The value of a constant that is small enough for a shift amount.
fn amount(bits: &[bool]) -> u128 {
    bits.iter().take(128).rev().fold(0, |n, b| n << 1 | *b as u128)
}
/// `8'd5`, `24'h800000`.
pub fn literal(bits: &[bool]) -> String {
    let w = bits.len();
    let digit = |c: &[bool]| char::from_digit(c.iter().rev().fold(0, |n, b| n << 1 | *b as u32), 16).unwrap();
    let hex: String = bits.chunks(4).map(digit).collect::<Vec<_>>().into_iter().rev().collect();
    match hex.trim_start_matches('0') {
        "" => format!("{w}'d0"),
        d @ ("1" | "2" | "3" | "4" | "5" | "6" | "7" | "8" | "9") => format!("{w}'d{d}"),
        d => format!("{w}'h{d}"),
    }
}
