//! Own Verilog emitter over RustHDL's public AST: width-correct expressions, explicit parentheses, sized literals,
//! plain names (`$` -> `_`), identical modules emitted once, DFF cells inlined as registers.
use rust_hdl::prelude::{ast::*, *};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write;

#[derive(Clone)]
struct At {
    name: String,
    kind: AtomKind,
    bits: usize,
    lit: String,
}
#[derive(Default)]
struct Module {
    atoms: Vec<At>,
    subs: Vec<(String, Module)>,
    code: Verilog,
    enums: Vec<(String, usize, usize)>,
}
#[derive(Default)]
struct Tree {
    stack: Vec<(String, Module)>,
    ns: Vec<Vec<String>>,
    top: Option<Module>,
}
impl Probe for Tree {
    fn visit_start_scope(&mut self, n: &str, b: &dyn Block) {
        self.stack.push((n.into(), Module { code: b.hdl(), ..Default::default() }));
        self.ns.push(vec![]);
    }
    fn visit_end_scope(&mut self, _n: &str, _b: &dyn Block) {
        self.ns.pop();
        let (n, m) = self.stack.pop().unwrap();
        match self.stack.last_mut() {
            Some(p) => p.1.subs.push((n, m)),
            None => self.top = Some(m),
        }
    }
    fn visit_start_namespace(&mut self, n: &str, _b: &dyn Block) {
        self.ns.last_mut().unwrap().push(n.into())
    }
    fn visit_end_namespace(&mut self, _n: &str, _b: &dyn Block) {
        self.ns.last_mut().unwrap().pop();
    }
    fn visit_atom(&mut self, n: &str, a: &dyn Atom) {
        let mut p = self.ns.last().unwrap().clone();
        p.push(n.into());
        let m = &mut self.stack.last_mut().unwrap().1;
        fn en(d: &TypeDescriptor, out: &mut Vec<(String, usize, usize)>) {
            match &d.kind {
                TypeKind::Enum(v) => {
                    let w = clog2(v.len()).max(1);
                    for (i, l) in v.iter().enumerate() {
                        let e = (l.replace("::", "$"), i, w);
                        if !out.contains(&e) {
                            out.push(e)
                        }
                    }
                }
                TypeKind::Composite(v) => {
                    for f in v {
                        en(&f.kind, out)
                    }
                }
                _ => {}
            }
        }
        en(&a.descriptor(), &mut m.enums);
        m.atoms.push(At { name: p.join("$"), kind: a.kind(), bits: a.bits(), lit: hexlit(&a.verilog()) });
    }
}
fn hexlit(l: &VerilogLiteral) -> String {
    format!("{l:x}")
}
/// text of a sized literal (case labels)
pub fn literal(e: &VerilogExpression) -> String {
    match e {
        VerilogExpression::Signal(s) if s.starts_with(|c: char| c.is_ascii_digit()) => s.clone(),
        VerilogExpression::Literal(l) => hexlit(l),
        VerilogExpression::Cast(l, n) => match &**l {
            VerilogExpression::Literal(l) => {
                format!("{n}'h{}", hexlit(l).split_once("'h").unwrap().1)
            }
            _ => panic!("case label is not a constant"),
        },
        _ => panic!("case label is not a constant: {e:?}"),
    }
}
pub(crate) fn mangle(n: &str) -> String {
    let n = n.replace("$", "_");
    if KEYWORDS.contains(&n.as_str()) { n + "_k" } else { n }
}
/// IEEE 1800 keywords: a signal or `let` of such a name gets `_k`
const KEYWORDS: &[&str] = &[
    "accept_on",
    "alias",
    "always",
    "always_comb",
    "always_ff",
    "always_latch",
    "and",
    "assert",
    "assign",
    "assume",
    "automatic",
    "before",
    "begin",
    "bind",
    "bins",
    "binsof",
    "bit",
    "break",
    "buf",
    "bufif0",
    "bufif1",
    "byte",
    "case",
    "casex",
    "casez",
    "cell",
    "chandle",
    "checker",
    "class",
    "clocking",
    "cmos",
    "config",
    "const",
    "constraint",
    "context",
    "continue",
    "cover",
    "covergroup",
    "coverpoint",
    "cross",
    "deassign",
    "default",
    "defparam",
    "design",
    "disable",
    "dist",
    "do",
    "edge",
    "else",
    "end",
    "endcase",
    "endclass",
    "endclocking",
    "endconfig",
    "endfunction",
    "endgenerate",
    "endgroup",
    "endinterface",
    "endmodule",
    "endpackage",
    "endprimitive",
    "endprogram",
    "endproperty",
    "endsequence",
    "endspecify",
    "endtable",
    "endtask",
    "enum",
    "event",
    "eventually",
    "expect",
    "export",
    "extends",
    "extern",
    "final",
    "first_match",
    "for",
    "force",
    "foreach",
    "forever",
    "fork",
    "forkjoin",
    "function",
    "generate",
    "genvar",
    "global",
    "highz0",
    "highz1",
    "if",
    "iff",
    "ifnone",
    "ignore_bins",
    "illegal_bins",
    "implements",
    "implies",
    "import",
    "incdir",
    "include",
    "initial",
    "inout",
    "input",
    "inside",
    "instance",
    "int",
    "integer",
    "interconnect",
    "interface",
    "intersect",
    "join",
    "join_any",
    "join_none",
    "large",
    "let",
    "liblist",
    "library",
    "local",
    "localparam",
    "logic",
    "longint",
    "macromodule",
    "matches",
    "medium",
    "modport",
    "module",
    "nand",
    "negedge",
    "nettype",
    "new",
    "nexttime",
    "nmos",
    "nor",
    "noshowcancelled",
    "not",
    "notif0",
    "notif1",
    "null",
    "or",
    "output",
    "package",
    "packed",
    "parameter",
    "pmos",
    "posedge",
    "primitive",
    "priority",
    "program",
    "property",
    "protected",
    "pull0",
    "pull1",
    "pulldown",
    "pullup",
    "pulsestyle_ondetect",
    "pulsestyle_onevent",
    "pure",
    "rand",
    "randc",
    "randcase",
    "randsequence",
    "rcmos",
    "real",
    "realtime",
    "ref",
    "reg",
    "reject_on",
    "release",
    "repeat",
    "restrict",
    "return",
    "rnmos",
    "rpmos",
    "rtran",
    "rtranif0",
    "rtranif1",
    "s_always",
    "s_eventually",
    "s_nexttime",
    "s_until",
    "s_until_with",
    "scalared",
    "sequence",
    "shortint",
    "shortreal",
    "showcancelled",
    "signed",
    "small",
    "soft",
    "solve",
    "specify",
    "specparam",
    "static",
    "string",
    "strong",
    "strong0",
    "strong1",
    "struct",
    "super",
    "supply0",
    "supply1",
    "sync_accept_on",
    "sync_reject_on",
    "table",
    "tagged",
    "task",
    "this",
    "throughout",
    "time",
    "timeprecision",
    "timeunit",
    "tran",
    "tranif0",
    "tranif1",
    "tri",
    "tri0",
    "tri1",
    "triand",
    "trior",
    "trireg",
    "type",
    "typedef",
    "union",
    "unique",
    "unique0",
    "unsigned",
    "until",
    "until_with",
    "untyped",
    "use",
    "uwire",
    "var",
    "vectored",
    "virtual",
    "void",
    "wait",
    "wait_order",
    "wand",
    "weak",
    "weak0",
    "weak1",
    "while",
    "wildcard",
    "wire",
    "with",
    "within",
    "wor",
    "xnor",
    "xor",
];

struct Ctx<'a> {
    w: HashMap<String, usize>,
    loops: Vec<(String, usize)>,
    consts: HashMap<String, (usize, usize)>,
    alias: HashMap<String, String>,
    links: Vec<VerilogLink>,
    out: String,
    ind: usize,
    lets: Vec<(String, usize, bool)>,
    pretty: HashMap<String, String>,
    subst: HashMap<String, E>,
    taken: HashSet<String>,
    written: HashSet<String>,
    once: HashSet<String>,
    kinds: HashMap<String, char>, /* l: own Local or Out, s: a sub-block's input */
    done: HashSet<String>,
    _p: std::marker::PhantomData<&'a ()>,
}
#[derive(Clone)]
struct E {
    s: String,
    w: Option<usize>,
    atom: bool,
    sl: Option<(String, usize, usize)>, /* plain part of a signal: name, offset, its width */
} // w=None: untyped literal
impl<'a> Ctx<'a> {
    fn id(&self, a: &str) -> String {
        let mut x = a.trim_start_matches('.').replace("::", "$").replace('.', "$");
        if let Some(y) = x.strip_suffix("$next") {
            x = y.into()
        }
        while let Some(s) = x.find('[') {
            let e = x[s..].find(']').unwrap() + s;
            let v = self.eval(&x[s + 1..e]);
            x = format!("{}${}{}", &x[..s], v, &x[e + 1..]);
        }
        x
    }
    fn eval(&self, t: &str) -> usize {
        // + - * over loop vars and integers (all RustHDL index expressions)
        let t = t.replace(' ', "");
        let t = t.trim_start_matches('(').trim_end_matches(')');
        t.split('+')
            .map(|p| {
                p.split('-')
                    .map(|q| {
                        q.split('*')
                            .map(|f| {
                                let f = f.trim_matches(|c| c == '(' || c == ')');
                                f.parse::<usize>().unwrap_or_else(|_| {
                                    self.loops
                                        .iter()
                                        .rev()
                                        .find(|l| l.0 == f)
                                        .unwrap_or_else(|| panic!("unknown index {f}"))
                                        .1
                                })
                            })
                            .product::<usize>()
                    })
                    .reduce(|a, b| a - b)
                    .unwrap()
            })
            .sum()
    }
    fn sized(&self, e: &E, w: usize) -> String {
        match e.w {
            None => {
                let v = u128::from_str_radix(e.s.trim_start_matches("0x"), 16).unwrap();
                let m = if w >= 128 { !0 } else { (1u128 << w) - 1 };
                format!("{w}'h{:x}", v & m)
            }
            Some(_) => {
                if e.atom {
                    e.s.clone()
                } else {
                    format!("({})", e.s)
                }
            }
        }
    }
    /// force Rust semantics: evaluate in exactly w bits
    fn cut(s: String, w: usize) -> E {
        E { s: format!("{w}'({s})"), w: Some(w), atom: true, sl: None }
    }
    fn ex(&self, e: &VerilogExpression) -> E {
        use VerilogExpression::*;
        match e {
            Signal(n) => {
                if let Some(l) = self.loops.iter().rev().find(|l| &l.0 == n) {
                    return E { s: format!("{:x}", l.1), w: None, atom: true, sl: None };
                }
                if n.starts_with(|c: char| c.is_ascii_digit()) {
                    let w = n.split_once('\'').unwrap().0.parse().unwrap();
                    return E { s: n.clone(), w: Some(w), atom: true, sl: None };
                }
                let n = self.id(n);
                if let Some(e) = self.subst.get(&n) {
                    return e.clone();
                }
                if let Some((v, w)) = self.consts.get(&n) {
                    return E { s: format!("{w}'d{v} /*{n}*/"), w: Some(*w), atom: true, sl: None };
                }
                match self.kinds.get(&n) {
                    Some('l') if !self.done.contains(&n) => {
                        panic!("{n} is read before it is written")
                    }
                    Some('s') => {
                        panic!("{n}, an input of a sub-block, is read back: keep the value in a `let` instead")
                    }
                    _ => {}
                }
                let w = *self.w.get(&n).unwrap_or_else(|| panic!("unknown signal {n}"));
                let m = self.nm(&n);
                E { s: m.clone(), w: Some(w), atom: true, sl: Some((m, 0, w)) }
            }
            Literal(l) => {
                let s = hexlit(l);
                let (w, v) = s.split_once("'h").unwrap();
                if w == "1" {
                    E { s, w: Some(1), atom: true, sl: None }
                } else {
                    E { s: v.into(), w: None, atom: true, sl: None }
                }
            }
            Paren(e) => self.ex(e),
            Signed(e) => self.ex(e),
            Unsigned(e) => {
                fn parts(e: &VerilogExpression, out: &mut Vec<VerilogExpression>) -> bool {
                    match e {
                        Binary(a, VerilogOp::BitOr, b) => parts(a, out) && parts(b, out),
                        Binary(a, VerilogOp::Shl, _) => match &**a {
                            Cast(x, _) => {
                                out.push((**x).clone());
                                true
                            }
                            _ => false,
                        },
                        _ => false,
                    }
                }
                let mut v = vec![];
                if !parts(e, &mut v) {
                    return self.ex(e);
                }
                let v: Vec<E> = v.iter().map(|x| self.ex(x)).collect();
                let w = v.iter().map(|x| x.w.expect("unsized part of a concatenation")).sum();
                if v.len() == 1 {
                    return v[0].clone();
                }
                E {
                    s: format!("{{{}}}", v.iter().map(|x| x.s.as_str()).collect::<Vec<_>>().join(", ")),
                    w: Some(w),
                    atom: true,
                    sl: None,
                }
            }
            Cast(l, n) if matches!(**l, Literal(_)) => E { s: literal(e), w: Some(*n), atom: true, sl: None },
            Cast(e, n) => {
                let x = self.ex(e);
                match x.w {
                    None => E { s: self.sized(&x, *n), w: Some(*n), atom: true, sl: None },
                    Some(w) if w == *n => x,
                    Some(_) => Self::cut(x.s, *n),
                }
            }
            Unary(o, e) => {
                let x = self.ex(e);
                let xs = self.sized(&x, x.w.unwrap_or(32));
                match o {
                    VerilogOpUnary::Not => {
                        let w = x.w.unwrap();
                        if w == 1 {
                            E { s: format!("!{xs}"), w: Some(1), atom: false, sl: None }
                        } else {
                            Self::cut(format!("~{xs}"), w)
                        }
                    }
                    VerilogOpUnary::Neg => Self::cut(format!("-{xs}"), x.w.unwrap()),
                    VerilogOpUnary::All => E { s: format!("&{xs}"), w: Some(1), atom: false, sl: None },
                    VerilogOpUnary::Any => E { s: format!("|{xs}"), w: Some(1), atom: false, sl: None },
                    VerilogOpUnary::Xor => E { s: format!("^{xs}"), w: Some(1), atom: false, sl: None },
                }
            }
            Binary(l, o, r) => {
                let (a, b) = (self.ex(l), self.ex(r));
                use VerilogOp::*;
                if a.w.is_none() && b.w.is_none() {
                    let p = |x: &E| usize::from_str_radix(&x.s, 16).unwrap();
                    let v = match o {
                        Add => p(&a) + p(&b),
                        Sub => p(&a) - p(&b),
                        Mul => p(&a) * p(&b),
                        Shl => p(&a) << p(&b),
                        _ => panic!("const op"),
                    };
                    return E { s: format!("{v:x}"), w: None, atom: true, sl: None };
                }
                if matches!(o, Shl | Shr) {
                    let w = a.w.unwrap();
                    let sh = match b.w {
                        None => u64::from_str_radix(&b.s, 16).unwrap().to_string(),
                        _ => self.sized(&b, 0),
                    };
                    let t = format!("{} {} {}", self.sized(&a, w), if matches!(o, Shl) { "<<" } else { ">>" }, sh);
                    return Self::cut(t, w);
                }
                let w = a.w.or(b.w).unwrap();
                let (x, y) = (self.sized(&a, w), self.sized(&b, w));
                let (t, cmp, arith) = match o {
                    Add => ("+", false, true),
                    Sub => ("-", false, true),
                    Mul => ("*", false, true),
                    BitXor => ("^", false, false),
                    BitAnd => ("&", false, false),
                    BitOr => ("|", false, false),
                    LogicalAnd => ("&&", true, false),
                    LogicalOr => ("||", true, false),
                    Eq => ("==", true, false),
                    Ne => ("!=", true, false),
                    Lt => ("<", true, false),
                    Le => ("<=", true, false),
                    Gt => (">", true, false),
                    Ge => (">=", true, false),
                    _ => unreachable!(),
                };
                let s = format!("{x} {t} {y}");
                if arith { Self::cut(s, w) } else { E { s, w: Some(if cmp { 1 } else { w }), atom: false, sl: None } }
            }
            Index(e, i) => self.slice(e, 1, i),
            Slice(e, n, o) => self.slice(e, *n, o),
            IndexReplace(e, i, v) => {
                let x = self.ex(e);
                let w = x.w.unwrap();
                let i = self.idx(i);
                let v = self.ex(v);
                E {
                    s: format!("({} & ~({w}'d1 << {i})) | ({w}'({}) << {i})", self.sized(&x, w), self.sized(&v, 1)),
                    w: Some(w),
                    atom: false,
                    sl: None,
                }
            }
        }
    }
    fn nm(&self, n: &str) -> String {
        self.pretty.get(n).cloned().unwrap_or_else(|| mangle(n))
    }
    fn slice(&self, e: &VerilogExpression, n: usize, o: &VerilogExpression) -> E {
        let x = self.ex(e);
        let w = x.w.expect("slice of an unsized literal");
        let i = self.ex(o);
        match (i.w, &x.sl) {
            (None, _) if w == n && usize::from_str_radix(&i.s, 16).unwrap() == 0 => x,
            (None, Some((b, off, bw))) => {
                let off = off + usize::from_str_radix(&i.s, 16).unwrap();
                if off + n > *bw {
                    return Self::cut(
                        format!("{} >> {}", self.sized(&x, w), usize::from_str_radix(&i.s, 16).unwrap()),
                        n,
                    );
                }
                E {
                    s: if *bw == 1 {
                        b.clone()
                    } else if n == 1 {
                        format!("{b}[{off}]")
                    } else {
                        format!("{b}[{}:{off}]", off + n - 1)
                    },
                    w: Some(n),
                    atom: true,
                    sl: Some((b.clone(), off, *bw)),
                }
            }
            (None, None) => {
                Self::cut(format!("{} >> {}", self.sized(&x, w), usize::from_str_radix(&i.s, 16).unwrap()), n)
            }
            // a part select must stay inside: else shift, which gives the zeros that Rust gives
            (Some(iw), Some((b, 0, bw))) if *bw == w && w > 1 && iw < 32 && (1usize << iw) - 1 + n <= w => E {
                s: if n == 1 { format!("{b}[{}]", i.s) } else { format!("{b}[{} +: {n}]", i.s) },
                w: Some(n),
                atom: true,
                sl: None,
            },
            (Some(_), _) => Self::cut(format!("{} >> {}", self.sized(&x, w), self.sized(&i, 0)), n),
        }
    }
    fn idx(&self, e: &VerilogExpression) -> String {
        let i = self.ex(e);
        match i.w {
            None => usize::from_str_radix(&i.s, 16).unwrap().to_string(),
            _ => i.s,
        }
    }
    fn line(&mut self, s: &str) {
        let _ = writeln!(self.out, "{}{}", "  ".repeat(self.ind), s);
    }
    fn lw(&mut self, l: &VerilogExpression) -> (String, usize) {
        match l {
            VerilogExpression::Signal(n) => {
                let n = self.id(n);
                self.done.insert(n.clone());
                (self.nm(&n), *self.w.get(&n).unwrap_or_else(|| panic!("unknown target {n}")))
            }
            _ => panic!("lhs"),
        }
    }
    fn rhs(&self, e: &VerilogExpression, w: usize) -> String {
        let x = self.ex(e);
        match x.w {
            None => self.sized(&x, w),
            _ => {
                let mut s = x.s; /* drop a redundant outermost cast: assignment truncates to w anyway */
                let p = format!("{w}'(");
                if s.starts_with(&p) && s.ends_with(')') {
                    let inner = &s[p.len()..s.len() - 1];
                    let mut d = 0i32;
                    let ok = inner.chars().all(|c| {
                        if c == '(' {
                            d += 1
                        }
                        if c == ')' {
                            d -= 1
                        }
                        d >= 0
                    });
                    if ok && x.w == Some(w) && !inner.contains('\'') {
                        s = inner.into()
                    }
                }
                s
            }
        }
    }
    fn block(&mut self, b: &VerilogBlock) {
        let mut i = 0;
        while i < b.len() {
            // an if-expression without statements in its branches: `c ? a : b`; used right away: no variable either
            if let Some((n, e)) = b.get(i..i + 2).and_then(|s| self.ternary(s)) {
                if let Some(VerilogStatement::Assignment(l, VerilogExpression::Signal(r))) = b.get(i + 2) {
                    if *r == n && !self.is_let(l) {
                        let (l, _) = self.lw(l);
                        self.line(&format!("{l} = {};", e.s));
                        i += 3;
                        continue;
                    }
                }
                self.st(&b[i]);
                let l = self.nm(&n);
                self.line(&format!("{l} = {};", e.s));
                i += 2;
                continue;
            }
            self.st(&b[i]);
            i += 1
        }
    }
    fn is_let(&self, e: &VerilogExpression) -> bool {
        matches!(e, VerilogExpression::Signal(n) if self.lets.last().is_some_and(|l| l.0 == *n))
    }
    /// `@let n w; if (c) n = a; else n = b;` as an expression
    fn ternary(&self, s: &[VerilogStatement]) -> Option<(String, E)> {
        let [VerilogStatement::Comment(c), VerilogStatement::If(i)] = s else {
            return None;
        };
        let mut d = c.strip_prefix("@let ")?.split(' ');
        let (n, w) = (d.next()?, d.next()?.parse::<usize>().ok()?);
        let br = |b: &VerilogBlock| match &b[..] {
            [VerilogStatement::Assignment(VerilogExpression::Signal(l), r)] if l == n => Some(self.ex(r)),
            [a, f, VerilogStatement::Assignment(VerilogExpression::Signal(l), VerilogExpression::Signal(r))]
                if l == n =>
            {
                let (m, e) = self.ternary(&[a.clone(), f.clone()])?;
                (m == *r).then_some(e)
            }
            _ => None,
        };
        let VerilogBlockOrConditional::Block(o) = &i.otherwise else {
            return None;
        };
        let (a, b) = (br(&i.then)?, br(o)?);
        let t = self.ex(&i.test);
        let b = if b.s.contains(" ? ") && !b.atom { b.s.clone() } else { self.sized(&b, w) };
        Some((
            n.into(),
            E { s: format!("{} ? {} : {b}", self.sized(&t, 1), self.sized(&a, w)), w: Some(w), atom: false, sl: None },
        ))
    }
    /// an expression that never changes while the kernel runs: it needs no variable of its own
    fn steady(&self, e: &VerilogExpression) -> bool {
        use VerilogExpression::*;
        match e {
            Signal(n) => {
                n.starts_with(|c: char| c.is_ascii_digit()) || {
                    let n = self.id(n);
                    self.subst.contains_key(&n) || (!self.written.contains(&n) && self.w.contains_key(&n))
                }
            }
            Literal(_) => true,
            Cast(l, _) => matches!(**l, Literal(_)),
            Slice(x, _, o) | Index(x, o) => matches!(**o, Literal(_)) && self.steady(x) && self.ex(x).sl.is_some(),
            _ => false,
        }
    }
    fn st(&mut self, s: &VerilogStatement) {
        use VerilogStatement::*;
        match s {
            Assignment(VerilogExpression::Signal(l), _) if self.alias.contains_key(&self.id(l)) => {}
            Assignment(VerilogExpression::Signal(n), r)
                if self.lets.last().is_some_and(|l| l.0 == *n) && self.once.contains(n) && self.steady(r) =>
            {
                let e = self.ex(r);
                let n = self.lets.pop().unwrap().0;
                let p = self.pretty.remove(&n).unwrap();
                self.taken.remove(&p);
                self.subst.insert(n, e);
            }
            Assignment(l, r) => {
                let w = {
                    let VerilogExpression::Signal(n) = l else { panic!("lhs") };
                    let n = self.id(n);
                    *self.w.get(&n).unwrap_or_else(|| panic!("unknown target {n}"))
                };
                let r = self.rhs(r, w);
                let (n, _) = self.lw(l);
                self.line(&format!("{n} = {r};"))
            }
            SliceAssignment { base, width, offset, replacement } => {
                let o = self.idx(offset);
                let r = self.rhs(replacement, *width);
                let (n, w) = self.lw(base);
                let t = if *width == w {
                    n
                } else {
                    match o.parse::<usize>() {
                        Ok(o) if *width == 1 => format!("{n}[{o}]"),
                        Ok(o) => format!("{n}[{}:{o}]", o + width - 1),
                        _ => format!("{n}[{o} +: {width}]"),
                    }
                };
                self.line(&format!("{t} = {r};"))
            }
            If(c) => {
                let t = self.ex(&c.test).s;
                self.line(&format!("if ({t}) begin"));
                self.ind += 1;
                self.block(&c.then);
                self.ind -= 1;
                self.line("end");
                match &c.otherwise {
                    VerilogBlockOrConditional::Block(b) => {
                        self.line("else begin");
                        self.ind += 1;
                        self.block(b);
                        self.ind -= 1;
                        self.line("end")
                    }
                    VerilogBlockOrConditional::Conditional(c) => {
                        self.line("else");
                        self.st(c)
                    }
                    VerilogBlockOrConditional::None => {}
                }
            }
            Match(m) => {
                let t = self.ex(&m.test).s;
                self.line(&format!("case ({t})"));
                self.ind += 1;
                for c in &m.cases {
                    let k = if c.condition == "default" || c.condition.contains('\'') {
                        c.condition.clone()
                    } else {
                        self.ex(&VerilogExpression::Signal(c.condition.clone())).s
                    };
                    self.line(&format!("{k}: begin"));
                    self.ind += 1;
                    self.block(&c.block);
                    self.ind -= 1;
                    self.line("end")
                }
                self.ind -= 1;
                self.line("endcase")
            }
            Loop(l) => {
                for i in l.from.as_usize()..l.to.as_usize() {
                    self.loops.push((l.index.clone(), i));
                    self.block(&l.block);
                    self.loops.pop();
                }
            }
            Comment(c) => {
                if let Some(d) = c.strip_prefix('@') {
                    let d: Vec<_> = d.split(' ').collect();
                    let w: usize = d[2].parse().unwrap();
                    self.w.insert(d[1].into(), w);
                    let base = mangle(d[1].split('%').nth(1).unwrap());
                    let mut n = base.clone();
                    let mut k = 1;
                    while !self.taken.insert(n.clone()) {
                        k += 1;
                        n = format!("{base}_{k}")
                    }
                    self.pretty.insert(d[1].into(), n.clone());
                    self.lets.push((d[1].into(), w, self.ind > 2));
                } else {
                    self.line(&format!("// {c}"))
                }
            }
            Macro(b) => self.block(b),
            Link(v) => {
                for l in v {
                    let f = |d: &VerilogLinkDetails| VerilogLinkDetails {
                        my_name: self.id(&d.my_name),
                        owner_name: self.id(&d.owner_name),
                        other_name: self.id(&d.other_name),
                    };
                    let l = match l {
                        VerilogLink::Forward(d) => VerilogLink::Forward(f(d)),
                        VerilogLink::Backward(d) => VerilogLink::Backward(f(d)),
                        VerilogLink::Bidirectional(d) => VerilogLink::Bidirectional(f(d)),
                    };
                    self.links.push(l)
                }
            }
        }
    }
}
fn links_of(b: &VerilogBlock) -> Vec<VerilogLink> {
    b.iter()
        .flat_map(|s| match s {
            VerilogStatement::Link(v) => v.clone(),
            VerilogStatement::Macro(b) => links_of(b),
            VerilogStatement::Loop(l) => links_of(&l.block),
            _ => vec![],
        })
        .collect()
}
fn is_linked(b: &VerilogBlock, n: &str) -> bool {
    links_of(b).iter().any(|l| {
        let (VerilogLink::Forward(d) | VerilogLink::Backward(d) | VerilogLink::Bidirectional(d)) = l;
        [&d.owner_name, &d.other_name]
            .iter()
            .any(|o| n == o.as_str() || n.starts_with(&format!("{}$", o.trim_start_matches('.'))))
    })
}
/// how often each signal is assigned in the text
fn writes(b: &VerilogBlock, c: &Ctx, out: &mut HashMap<String, usize>) {
    use VerilogStatement::*;
    let mut one = |e: &VerilogExpression| {
        if let VerilogExpression::Signal(n) = e {
            if !n.contains('[') {
                *out.entry(c.id(n)).or_insert(0) += 1
            }
        }
    };
    for s in b {
        match s {
            Assignment(l, _) => one(l),
            SliceAssignment { base, .. } => {
                one(base);
                one(base)
            }
            _ => {}
        }
    }
    for s in b {
        match s {
            If(i) => {
                writes(&i.then, c, out);
                match &i.otherwise {
                    VerilogBlockOrConditional::Block(b) => writes(b, c, out),
                    VerilogBlockOrConditional::Conditional(s) => writes(&vec![(**s).clone()], c, out),
                    _ => {}
                }
            }
            Match(m) => {
                for k in &m.cases {
                    writes(&k.block, c, out)
                }
            }
            Macro(b) => writes(b, c, out),
            Loop(l) => {
                writes(&l.block, c, out);
                writes(&l.block, c, out)
            }
            _ => {}
        }
    }
}
/// the bits that every path assigns
fn surely(b: &VerilogBlock, c: &Ctx) -> HashMap<String, Vec<bool>> {
    use VerilogStatement::*;
    let mut out: HashMap<String, Vec<bool>> = HashMap::new();
    let meet = |v: Vec<HashMap<String, Vec<bool>>>| {
        let mut it = v.into_iter();
        let mut a = it.next().unwrap_or_default();
        for b in it {
            a = a
                .into_iter()
                .filter_map(|(k, x)| b.get(&k).map(|y| (k, x.iter().zip(y).map(|(p, q)| *p && *q).collect())))
                .collect()
        }
        a
    };
    let mark = |n: String, r: std::ops::Range<usize>, out: &mut HashMap<String, Vec<bool>>| {
        if let Some(w) = c.w.get(&n) {
            let v = out.entry(n).or_insert_with(|| vec![false; *w]);
            v[r.start.min(*w)..r.end.min(*w)].fill(true)
        }
    };
    for s in b {
        let more = match s {
            Assignment(VerilogExpression::Signal(n), _) => {
                mark(c.id(n), 0..usize::MAX, &mut out);
                continue;
            }
            SliceAssignment {
                base: VerilogExpression::Signal(n),
                width,
                offset: VerilogExpression::Literal(o),
                ..
            } => {
                let o = o.as_usize();
                mark(c.id(n), o..o + width, &mut out);
                continue;
            }
            If(i) => {
                let a = surely(&i.then, c);
                let b = match &i.otherwise {
                    VerilogBlockOrConditional::Block(b) => surely(b, c),
                    VerilogBlockOrConditional::Conditional(s) => surely(&vec![(**s).clone()], c),
                    VerilogBlockOrConditional::None => HashMap::new(),
                };
                meet(vec![a, b])
            }
            Match(m) if m.cases.iter().any(|k| k.condition == "default") => {
                meet(m.cases.iter().map(|k| surely(&k.block, c)).collect())
            }
            Macro(b) => surely(b, c),
            Loop(l) => {
                let mut all = HashMap::new();
                for i in l.from.as_usize()..l.to.as_usize() {
                    let mut c2 = Ctx {
                        w: c.w.clone(),
                        loops: c.loops.clone(),
                        consts: HashMap::new(),
                        alias: HashMap::new(),
                        links: vec![],
                        out: String::new(),
                        ind: 0,
                        lets: vec![],
                        pretty: HashMap::new(),
                        subst: HashMap::new(),
                        taken: HashSet::new(),
                        written: HashSet::new(),
                        once: HashSet::new(),
                        kinds: HashMap::new(),
                        done: HashSet::new(),
                        _p: Default::default(),
                    };
                    c2.loops.push((l.index.clone(), i));
                    all.extend(surely(&l.block, &c2))
                }
                all
            }
            _ => continue,
        };
        for (k, v) in more {
            let e = out.entry(k).or_insert_with(|| vec![false; v.len()]);
            for (a, b) in e.iter_mut().zip(v) {
                *a |= b
            }
        }
    }
    out
}
/// a register: its power-up value, and its reset value if it has a reset
fn is_dff(m: &Module) -> Option<(&str, bool)> {
    let mut n: Vec<_> = m.atoms.iter().map(|a| a.name.as_str()).collect();
    n.sort();
    let reset = n == ["clock", "d", "q", "rst"];
    match &m.code {
        Verilog::Custom(c) if (reset || n == ["clock", "d", "q"]) && m.subs.is_empty() && c.contains("q <= d;") => {
            Some((c.split("q = ").nth(1)?.split(';').next()?, reset))
        }
        _ => None,
    }
}
fn rng(b: usize) -> String {
    if b == 1 { "".into() } else { format!("[{}:0] ", b - 1) }
}

#[derive(Default)]
pub struct Emit {
    bodies: BTreeMap<String, String>,
    pub text: String,
    cores: Vec<String>,
    used: HashMap<String, usize>,
}
impl Emit {
    fn module(&mut self, m: &Module, want: &str) -> String {
        let mut c = Ctx {
            w: HashMap::new(),
            loops: vec![],
            consts: HashMap::new(),
            alias: HashMap::new(),
            links: vec![],
            out: String::new(),
            ind: 2,
            lets: vec![],
            pretty: HashMap::new(),
            subst: HashMap::new(),
            taken: HashSet::new(),
            written: HashSet::new(),
            once: HashSet::new(),
            kinds: HashMap::new(),
            done: HashSet::new(),
            _p: Default::default(),
        };
        for a in &m.atoms {
            c.w.insert(a.name.clone(), a.bits);
        }
        for (n, v, w) in &m.enums {
            c.consts.insert(n.clone(), (*v, *w));
        }
        for (n, s) in &m.subs {
            for a in s.atoms.iter().filter(|a| a.kind.is_parameter()) {
                c.w.insert(format!("{n}${}", a.name), a.bits);
            }
            for (e, v, w) in &s.enums {
                c.consts.insert(e.clone(), (*v, *w));
            }
        }
        let mut alias: HashMap<String, String> = HashMap::new();
        fn al(
            b: &VerilogBlock,
            subs: &[(String, Module)],
            c: &Ctx,
            lo: &mut Vec<(String, usize)>,
            out: &mut HashMap<String, String>,
        ) {
            for s in b {
                match s {
                    VerilogStatement::Macro(b) => al(b, subs, c, lo, out),
                    VerilogStatement::Loop(l) => {
                        for i in l.from.as_usize()..l.to.as_usize() {
                            let mut c2 = Ctx {
                                w: HashMap::new(),
                                loops: c.loops.clone(),
                                consts: HashMap::new(),
                                alias: HashMap::new(),
                                links: vec![],
                                out: String::new(),
                                ind: 0,
                                lets: vec![],
                                pretty: HashMap::new(),
                                subst: HashMap::new(),
                                taken: HashSet::new(),
                                written: HashSet::new(),
                                once: HashSet::new(),
                                kinds: HashMap::new(),
                                done: HashSet::new(),
                                _p: Default::default(),
                            };
                            c2.loops.push((l.index.clone(), i));
                            al(&l.block, subs, &c2, lo, out)
                        }
                    }
                    VerilogStatement::Assignment(VerilogExpression::Signal(d), VerilogExpression::Signal(r)) => {
                        let (d, r) = (c.id(d), c.id(r));
                        if (d.ends_with("clock") && r.ends_with("clock")) || (d.ends_with("$rst") && r == "rst") {
                            out.insert(d, r);
                        }
                    }
                    _ => {}
                }
            }
        }
        if let Verilog::Combinatorial(b) = &m.code {
            al(b, &m.subs, &c, &mut vec![], &mut alias)
        }
        if let Verilog::Combinatorial(b) = &m.code {
            let mut wr = HashMap::new();
            writes(b, &c, &mut wr);
            alias.retain(|d, r| wr.get(d) == Some(&1) && !wr.contains_key(r))
        }
        c.alias = alias.clone();
        let comb = matches!(m.code, Verilog::Combinatorial(_));
        if let Verilog::Combinatorial(b) = &m.code {
            let mut wr = HashMap::new();
            writes(b, &c, &mut wr);
            c.once = wr.iter().filter(|x| *x.1 == 1).map(|x| x.0.clone()).collect();
            c.written = wr.into_keys().collect();
            for k in c.w.keys() {
                let n = mangle(k);
                assert!(c.taken.insert(n.clone()), "two signals of {want} are both called {n} in Verilog")
            }
            for l in links_of(b) {
                let (VerilogLink::Forward(d) | VerilogLink::Backward(d) | VerilogLink::Bidirectional(d)) = l;
                for o in [&d.owner_name, &d.other_name] {
                    let o = c.id(o);
                    c.written.insert(o.clone());
                    let p = format!("{o}$");
                    let more: Vec<_> = m
                        .atoms
                        .iter()
                        .filter(|a| a.kind == AtomKind::OutputParameter && a.name.starts_with(&p))
                        .map(|a| a.name.clone())
                        .collect();
                    c.written.extend(more)
                }
            }
            for a in &m.atoms {
                if matches!(a.kind, AtomKind::LocalSignal | AtomKind::OutputParameter)
                    && c.written.contains(&a.name)
                    && !is_linked(b, &a.name)
                {
                    c.kinds.insert(a.name.clone(), 'l');
                }
            }
            for (n, s) in &m.subs {
                for a in s.atoms.iter().filter(|a| a.kind == AtomKind::InputParameter) {
                    c.kinds.insert(format!("{n}${}", a.name), 's');
                }
            }
            c.block(b);
            let sure = surely(b, &c);
            let mut bad: Vec<String> = c
                .written
                .iter()
                .filter(|n| c.w.contains_key(*n) && !n.starts_with('%'))
                .filter(|n| !(sure.get(*n).is_some_and(|v| v.iter().all(|x| *x)) || is_linked(b, n)))
                .cloned()
                .collect();
            bad.sort();
            assert!(bad.is_empty(), "{want}: not assigned on every path (would be a latch): {}", bad.join(", "));
        }
        let mut linked = String::new();
        let mut wire_out: Vec<String> = vec![];
        let join = |o: &str, n: &str| {
            let n = n.trim_start_matches('$');
            if n.is_empty() { o.to_string() } else { format!("{o}${n}") }
        };
        for l in &c.links {
            let (dst, src) = match l {
                VerilogLink::Forward(d) => (join(&d.other_name, &d.my_name), join(&d.owner_name, &d.my_name)),
                VerilogLink::Backward(d) => (join(&d.owner_name, &d.my_name), join(&d.other_name, &d.my_name)),
                VerilogLink::Bidirectional(_) => panic!("inout link"),
            };
            let _ = writeln!(linked, "  assign {} = {};", mangle(&dst), mangle(&src));
            wire_out.push(dst);
        }
        let p: Vec<_> = m.atoms.iter().filter(|a| a.kind.is_parameter()).collect();
        let mut s = String::new();
        let ports: Vec<_> = p
            .iter()
            .map(|a| {
                format!(
                    "  {} {}{}",
                    match a.kind {
                        AtomKind::InputParameter => "input wire",
                        _ if !matches!(m.code, Verilog::Wrapper(_)) && !wire_out.contains(&a.name) => "output reg",
                        _ => "output wire",
                    },
                    rng(a.bits),
                    mangle(&a.name)
                )
            })
            .collect();
        let _ = writeln!(s, "(\n{}\n);", ports.join(",\n"));
        for a in &m.atoms {
            match a.kind {
                AtomKind::Constant => {
                    let _ = writeln!(s, "  localparam {}{} = {};", rng(a.bits), mangle(&a.name), a.lit);
                }
                AtomKind::LocalSignal => {
                    let _ = writeln!(s, "  reg {}{};", rng(a.bits), mangle(&a.name));
                }
                _ => {}
            }
        }
        for (n, sm) in &m.subs {
            for a in sm.atoms.iter().filter(|a| a.kind.is_parameter()) {
                let f = format!("{n}${}", a.name);
                let isin = a.kind == AtomKind::InputParameter;
                if alias.contains_key(&f) {
                    continue;
                }
                let k = if (isin && wire_out.contains(&f)) || (!isin && is_dff(sm).is_none()) { "wire" } else { "reg" };
                let _ = writeln!(s, "  {k} {}{};", rng(a.bits), mangle(&f));
            }
            if let Some((init, reset)) = is_dff(sm) {
                let pin = |p: &str| mangle(alias.get(&format!("{n}${p}")).unwrap_or(&format!("{n}${p}")));
                let (ck, rst) = (pin("clock"), pin("rst"));
                let n = mangle(n);
                let _ = writeln!(s, "  initial {n}_q = {init};");
                let _ = if reset {
                    writeln!(s, "  always @(posedge {ck}) if ({rst}) {n}_q <= {init}; else {n}_q <= {n}_d;")
                } else {
                    writeln!(s, "  always @(posedge {ck}) {n}_q <= {n}_d;")
                };
            } else {
                let k = self.module(sm, &format!("{want}_{}", mangle(n)));
                let _ = writeln!(s, "  {k} u_{} (", mangle(n));
                let c: Vec<_> = sm
                    .atoms
                    .iter()
                    .filter(|a| a.kind.is_parameter())
                    .map(|a| {
                        format!("    .{}({})", mangle(&a.name), {
                            let f = format!("{n}${}", a.name);
                            mangle(alias.get(&f).unwrap_or(&f))
                        })
                    })
                    .collect();
                let _ = writeln!(s, "{}\n  );", c.join(",\n"));
            }
        }
        for (n, w, _) in &c.lets {
            let _ = writeln!(s, "  reg {}{};", rng(*w), c.pretty[n]);
        }
        let dc: String =
            c.lets.iter().filter(|l| l.2).map(|(n, w, _)| format!("    {} = {w}'bx;\n", c.pretty[n])).collect();
        if comb && !c.out.is_empty() {
            let _ = write!(s, "  always @* begin\n{dc}{}  end\n", c.out);
        }
        match &m.code {
            Verilog::Custom(t) => s += t,
            Verilog::Wrapper(w) => {
                s += &w.code;
                if !w.cores.is_empty() && !self.cores.contains(&w.cores) {
                    self.cores.push(w.cores.clone())
                }
            }
            _ => {}
        }
        s += &linked;
        s += "\nendmodule\n";
        if let Some(n) = self.bodies.get(&s) {
            return n.clone();
        }
        let k = self.used.entry(want.into()).or_insert(0);
        *k += 1;
        let name = if *k == 1 { want.to_string() } else { format!("{want}_{k}") };
        self.text += &format!("module {name} {s}\n");
        self.bodies.insert(s, name.clone());
        name
    }
}
/// `end else begin` and `end else if` on one line
fn tidy(t: &str) -> String {
    let mut out: Vec<String> = vec![];
    for l in t.lines() {
        let x = l.trim();
        let glue = out.last().is_some_and(|p| {
            let p = p.trim();
            (p == "end" && x.starts_with("else")) || (p.ends_with("end else") && x.starts_with("if ("))
        });
        if glue {
            let p = out.last_mut().unwrap();
            p.push(' ');
            p.push_str(x)
        } else {
            out.push(l.into())
        }
    }
    out.join("\n") + "\n"
}
pub fn emit<B: Block>(b: &B, top: &str) -> String {
    check_all(b).unwrap();
    let mut t = Tree::default();
    b.accept(top, &mut t);
    let mut e = Emit::default();
    e.module(&t.top.unwrap(), top);
    tidy(&e.text) + &e.cores.iter().map(|c| format!("\n{}\n", c.trim_end())).collect::<String>()
}
