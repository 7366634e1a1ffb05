//! Refuses circuits that Verilog would accept and get wrong: latches (bit by bit), signals read before they are written,
//! inputs that nobody drives, signals driven from the wrong side. Messages name the Rust line and the signal.
use super::scope::{Net, Role, Scope};
use crate::ir::*;
use std::collections::BTreeMap;

/// For each signal that the kernel drives, the bits assigned so far on every path.
type Assigned = BTreeMap<String, Vec<bool>>;

struct Check<'a> {
    kernel: &'a Kernel,
    scope: &'a Scope,
    /// First assignment of each signal.
    first: BTreeMap<String, Loc>,
    errors: Vec<String>,
}

/// Panics with every error of this kernel. `path` is the block's place in the design.
pub fn check(kernel: &Kernel, scope: &Scope, path: &str) {
    let mut c = Check { kernel, scope, first: BTreeMap::new(), errors: vec![] };
    let mut assigned = Assigned::new();
    c.block(&kernel.body, &mut assigned);
    let file = kernel.body.first().map_or("", |s| s.at.file);
    for (name, net) in &scope.nets {
        match (net.role, c.first.get(name)) {
            (Role::In | Role::SubOut, _) => {}
            (_, Some(at)) => {
                let missing: Vec<_> = (0..net.width).filter(|i| !assigned.get(name).is_some_and(|a| a[*i])).collect();
                if !missing.is_empty() {
                    let bits = match missing.len() == net.width {
                        true => String::new(),
                        false => format!(" (bits {})", ranges(&missing)),
                    };
                    c.errors.push(format!("{at}: `{name}` is not assigned on every path{bits}: this would be a latch"))
                }
            }
            (Role::Out, None) => c.errors.push(format!("{file}: output `{name}` is never assigned")),
            (Role::Local, None) => c.errors.push(format!("{file}: local signal `{name}` is never assigned")),
            (Role::SubIn, None) => c.errors.push(format!("{file}: `{name}`, an input of a sub-block, is not driven")),
        }
    }
    c.errors.sort();
    c.errors.dedup();
    assert!(c.errors.is_empty(), "block {path} ({}):\n  {}", kernel.block, c.errors.join("\n  "))
}
/// `7..4, 0`
fn ranges(bits: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = vec![];
    for &b in bits {
        match runs.last_mut() {
            Some(r) if r.1 + 1 == b => r.1 = b,
            _ => runs.push((b, b)),
        }
    }
    let text = |r: &(usize, usize)| if r.0 == r.1 { r.0.to_string() } else { format!("{}..{}", r.1, r.0) };
    runs.iter().rev().map(text).collect::<Vec<_>>().join(", ")
}

impl Check<'_> {
    fn block(&mut self, b: &[Stmt], assigned: &mut Assigned) {
        for s in b {
            for id in s.reads() {
                self.read(id, s.at, assigned)
            }
            match &s.kind {
                Kind::Set(Base::Signal(name), part, v) => {
                    self.write(name, *part, self.kernel.expr(*v).width, s.at, assigned)
                }
                Kind::If(_, a, b) => {
                    let mut other = assigned.clone();
                    self.block(a, assigned);
                    self.block(b, &mut other);
                    meet(assigned, &other)
                }
                Kind::Match(_, cases) => {
                    let before = assigned.clone();
                    let exhaustive = cases.iter().any(|c| c.labels.is_empty());
                    let mut all: Option<Assigned> = (!exhaustive).then(|| before.clone());
                    for c in cases {
                        let mut own = before.clone();
                        self.block(&c.body, &mut own);
                        match &mut all {
                            Some(a) => meet(a, &own),
                            None => all = Some(own),
                        }
                    }
                    *assigned = all.unwrap_or(before)
                }
                _ => {}
            }
        }
    }
    fn net(&mut self, name: &str, at: Loc) -> Option<Net> {
        let net = self.scope.nets.get(name).copied();
        if net.is_none() {
            self.errors.push(format!("{at}: `{name}` is not a signal of this block or of a direct sub-block"))
        }
        net
    }
    fn write(&mut self, name: &str, part: Part, width: usize, at: Loc, assigned: &mut Assigned) {
        let Some(net) = self.net(name, at) else { return };
        match net.role {
            Role::In => self.errors.push(format!("{at}: `{name}` is an input of this block: it cannot be assigned")),
            Role::SubOut => self.errors.push(format!("{at}: `{name}` is an output of a sub-block: it is driven there")),
            _ => {}
        }
        self.first.entry(name.into()).or_insert(at);
        let bits = assigned.entry(name.into()).or_insert_with(|| vec![false; net.width]);
        match part {
            Part::Whole => {
                assert_eq!(width, net.width, "{at}: width of `{name}`");
                bits.fill(true)
            }
            Part::Bits { low, width } => bits[low..low + width].fill(true),
            // which bits is not known
            Part::Dynamic { .. } => {}
        }
    }
    fn read(&mut self, id: Id, at: Loc, assigned: &Assigned) {
        let e = self.kernel.expr(id);
        match &e.op {
            Op::Signal(n) => self.read_bits(n, 0, e.width, at, assigned),
            Op::Slice(x, low) => match &self.kernel.expr(*x).op {
                Op::Signal(n) => self.read_bits(n, *low, e.width, at, assigned),
                _ => self.read(*x, at, assigned),
            },
            Op::Var(_) | Op::Const(..) => {}
            Op::Not(a) | Op::Reduce(_, a) | Op::Extend(a) => self.read(*a, at, assigned),
            Op::Binary(_, a, b) | Op::DynSlice(a, b) => [a, b].into_iter().for_each(|x| self.read(*x, at, assigned)),
            Op::Concat(v) => v.iter().for_each(|x| self.read(*x, at, assigned)),
            Op::Mux(c, a, b) => [c, a, b].into_iter().for_each(|x| self.read(*x, at, assigned)),
        }
    }
    fn read_bits(&mut self, name: &str, low: usize, width: usize, at: Loc, assigned: &Assigned) {
        let Some(net) = self.net(name, at) else { return };
        match net.role {
            Role::In | Role::SubOut => {}
            Role::SubIn => self.errors.push(format!(
                "{at}: `{name}`, an input of a sub-block, is read back: keep the value in a `let` instead"
            )),
            Role::Out | Role::Local => {
                if !assigned.get(name).is_some_and(|a| a[low..low + width].iter().all(|b| *b)) {
                    self.errors.push(format!("{at}: `{name}` is read before it is written"))
                }
            }
        }
    }
}
/// What both paths assign.
fn meet(a: &mut Assigned, b: &Assigned) {
    a.retain(|name, bits| match b.get(name) {
        Some(other) => {
            bits.iter_mut().zip(other).for_each(|(x, y)| *x &= *y);
            true
        }
        None => false,
    })
}
