//! How a kernel's statements become Verilog items. A kernel is one long procedure; as one `always_comb` it would tie all
//! its signals together, which simulators take for combinational loops and run slowly. So statements that do not depend
//! on each other's order become `wire`s, `assign`s and processes of their own:
//!
//! - statements that assign the same signal or variable share a process, in order;
//! - so does a statement that reads a signal which a later statement assigns again;
//! - everything else sees only final values, and order no longer matters.
//!
//! Assignments of registers go on into clocked processes (see `clocked`).
use super::access::{Access, access};
use super::clocked;
use super::scope::{Register, Role, Scope};
use crate::ir::*;
use std::collections::{BTreeMap, BTreeSet};

/// An item of the module, in text order.
pub enum Item {
    /// A `let` of the kernel, as a wire.
    Wire(VarId, Id, Loc),
    /// A single assignment.
    Assign(Stmt),
    Process(Vec<Stmt>),
    /// A clocked process of these registers, by the names of their `d` pins.
    Clocked(Vec<Stmt>, Vec<String>),
    Comment(String),
}
pub struct Plan {
    pub items: Vec<Item>,
    /// Variables that a process assigns and other items read: declared with the module's signals.
    pub shared: BTreeSet<VarId>,
    /// Inputs of sub-blocks that are wired to a name or a constant, without a signal of their own.
    pub direct: BTreeMap<String, Id>,
    /// `d` pins that clocked processes stand for: there is no such signal.
    pub clocked: BTreeSet<String>,
    /// `let`s inside branches that only give another name to something that never changes.
    pub alias: BTreeMap<VarId, Id>,
}

pub fn plan(k: &Kernel, scope: &Scope) -> Plan {
    let accesses: Vec<Access> = k.body.iter().map(|s| access(k, s)).collect();
    let mut writers: BTreeMap<&Base, Vec<usize>> = BTreeMap::new();
    for (i, a) in accesses.iter().enumerate() {
        a.writes.iter().for_each(|b| writers.entry(b).or_default().push(i))
    }
    let mut groups = Groups((0..k.body.len()).collect());
    for w in writers.values() {
        w.iter().for_each(|i| groups.join(w[0], *i))
    }
    for (i, a) in accesses.iter().enumerate() {
        for w in a.reads.iter().filter_map(|b| writers.get(b)) {
            if *w.last().unwrap() > i {
                groups.join(w[0], i)
            }
        }
    }
    let mut members: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for i in 0..k.body.len() {
        members.entry(groups.root(i)).or_default().push(i)
    }
    // a group stands where its last statement stood: the wires that it reads are above
    let mut ordered: Vec<Vec<usize>> = members.into_values().collect();
    ordered.sort_by_key(|g| *g.last().unwrap());

    let mut p = Plan {
        items: vec![],
        shared: BTreeSet::new(),
        direct: BTreeMap::new(),
        clocked: BTreeSet::new(),
        alias: aliases(k, &writers),
    };
    let clocks = clocks(k, scope);
    for mut g in ordered {
        drop_dead(k, &accesses, &mut g);
        let stmts: Vec<Stmt> = g.iter().map(|i| k.body[*i].clone()).collect();
        let read_outside = |v: VarId| {
            let b = Base::Var(v);
            (0..k.body.len()).any(|i| accesses[i].reads.contains(&b) && !g.contains(&i))
        };
        let split = clocked::split(k, scope, &clocks, &stmts, &read_outside);
        for (stmts, registers) in split.clocked {
            p.clocked.extend(registers.iter().cloned());
            p.items.push(Item::Clocked(stmts, registers))
        }
        p.add(k, scope, split.rest, &read_outside)
    }
    p
}
impl Plan {
    /// Statements of one group, without those of clocked processes.
    fn add(&mut self, k: &Kernel, scope: &Scope, stmts: Vec<Stmt>, read_outside: &dyn Fn(VarId) -> bool) {
        match &stmts[..] {
            [] => {}
            [Stmt { kind: Kind::Comment(c), .. }] => self.items.push(Item::Comment(c.clone())),
            [Stmt { kind: Kind::Declare(v, Some(x)), at }] => self.items.push(Item::Wire(*v, *x, *at)),
            [s @ Stmt { kind: Kind::Set(b, Part::Whole, x), .. }] => match b {
                Base::Signal(n) if scope.nets[n].role == Role::SubIn && is_name(k, *x) => {
                    self.direct.insert(n.clone(), *x);
                }
                _ => self.items.push(Item::Assign(s.clone())),
            },
            _ => {
                self.shared.extend(stmts.iter().filter_map(|s| match s.kind {
                    Kind::Declare(v, _) if read_outside(v) => Some(v),
                    _ => None,
                }));
                self.items.push(Item::Process(stmts))
            }
        }
    }
}
/// The clock of each register, by its `d` pin, where it is plain to see.
fn clocks(k: &Kernel, scope: &Scope) -> BTreeMap<String, String> {
    let mut driven: BTreeMap<&str, Option<&str>> = BTreeMap::new();
    for s in &k.body {
        if let Kind::Set(Base::Signal(pin), Part::Whole, x) = &s.kind
            && let Op::Signal(clock) = &k.expr(*x).op
        {
            // driven twice: not plain
            driven.entry(pin).and_modify(|c| *c = None).or_insert(Some(clock));
        }
    }
    let clock = |r: &Register| driven.get(&r.clock[..]).copied().flatten().map(str::to_string);
    scope.registers.iter().filter_map(|(d, r)| Some((d.clone(), clock(r)?))).collect()
}
/// Drops assignments that the next access overwrites, such as the `d = q` of `regs!` before an unconditional `d = x`.
fn drop_dead(k: &Kernel, accesses: &[Access], group: &mut Vec<usize>) {
    let mut i = 0;
    while i < group.len() {
        let dead = match &k.body[group[i]].kind {
            Kind::Set(base, Part::Whole, _) => group[i + 1..]
                .iter()
                .find(|j| accesses[**j].reads.contains(base) || accesses[**j].writes.contains(base))
                .is_some_and(|j| {
                    let overwrites = matches!(&k.body[*j].kind, Kind::Set(b, Part::Whole, _) if b == base);
                    overwrites && !accesses[*j].reads.contains(base)
                }),
            _ => false,
        };
        if dead {
            group.remove(i);
        } else {
            i += 1
        }
    }
}
fn is_name(k: &Kernel, x: Id) -> bool {
    matches!(k.expr(x).op, Op::Signal(_) | Op::Var(_) | Op::Const(..) | Op::Slice(..))
}
fn aliases(k: &Kernel, writers: &BTreeMap<&Base, Vec<usize>>) -> BTreeMap<VarId, Id> {
    let mut alias = BTreeMap::new();
    for s in k.body.iter().flat_map(|s| s.branches()).flatten() {
        s.visit(&mut |s| {
            if let Kind::Declare(v, Some(x)) = s.kind {
                let constant = match &k.expr(x).op {
                    Op::Signal(n) => !writers.contains_key(&Base::Signal(n.clone())),
                    Op::Var(y) => k.var(*y).fixed,
                    _ => false,
                };
                if k.var(v).fixed && constant {
                    alias.insert(v, x);
                }
            }
        })
    }
    alias
}

/// Union-find over statements; the root of a group is its first statement.
struct Groups(Vec<usize>);
impl Groups {
    fn root(&mut self, i: usize) -> usize {
        if self.0[i] != i {
            let r = self.root(self.0[i]);
            self.0[i] = r
        }
        self.0[i]
    }
    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        self.0[a.max(b)] = a.min(b)
    }
}
