//! Registers as clocked processes. A kernel assigns `d`, and `regs!` makes it hold: written out so, every register is
//! copied to `d` and back in every cycle, which for wide ones is most of a simulation's time. So the statements that
//! assign `d` pins are taken out of their group into an `always_ff` that assigns `q` where the kernel assigns `d`, and
//! the hold goes without saying. What both parts need (conditions, variables) is in both.
use super::access::{Access, access};
use super::scope::Scope;
use crate::ir::*;
use std::collections::{BTreeMap, BTreeSet};

pub struct Split {
    /// A process for each clock: its statements, and the `d` pins it stands for.
    pub clocked: Vec<(Vec<Stmt>, Vec<String>)>,
    pub rest: Vec<Stmt>,
}

/// Splits a group of statements. `clocks` has the clock of each `d` pin that may be taken.
pub fn split(
    k: &Kernel,
    scope: &Scope,
    clocks: &BTreeMap<String, String>,
    group: &[Stmt],
    read_outside: &dyn Fn(VarId) -> bool,
) -> Split {
    let accesses: Vec<Access> = group.iter().map(|s| access(k, s)).collect();
    let mut pins: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let written: BTreeSet<&Base> = accesses.iter().flat_map(|a| &a.writes).collect();
    for b in &written {
        if let Base::Signal(d) = b
            && let Some(clock) = clocks.get(d)
        {
            pins.entry(clock).or_default().push(d.clone())
        }
    }
    let mut out = Split { clocked: vec![], rest: group.to_vec() };
    for pins in pins.into_values() {
        let is_pin = |b: &Base| matches!(b, Base::Signal(n) if pins.contains(n));
        let mut process: Vec<Option<Stmt>> = group.iter().map(|s| keep(s, &is_pin)).collect();
        drop_unread(k, &mut process, &|_| false);
        // a signal that this group still assigns later, read in between: only one process can have that order
        let intermediate = |(i, s): (usize, &Option<Stmt>)| {
            let Some(s) = s else { return false };
            let is_final = |b: &Base| matches!(b, Base::Var(_)) || !accesses[i..].iter().any(|a| a.writes.contains(b));
            !access(k, s).reads.iter().all(is_final)
        };
        if process.iter().enumerate().any(intermediate) {
            continue;
        }
        let mut process: Vec<Stmt> = process.into_iter().flatten().collect();
        drop_holds(k, scope, &mut process);
        out.clocked.push((process, pins.clone()));
        let mut rest: Vec<Option<Stmt>> = out.rest.iter().map(|s| keep(s, &|b| !is_pin(b))).collect();
        drop_unread(k, &mut rest, read_outside);
        out.rest = rest.into_iter().flatten().collect()
    }
    out
}
/// The part of a statement that assigns the wanted signals; variables are kept.
fn keep(s: &Stmt, wanted: &dyn Fn(&Base) -> bool) -> Option<Stmt> {
    let all = |b: &[Stmt]| -> Vec<Stmt> { b.iter().filter_map(|s| keep(s, wanted)).collect() };
    let kind = match &s.kind {
        Kind::Set(b @ Base::Signal(_), ..) if !wanted(b) => return None,
        Kind::If(c, a, b) => Kind::If(*c, all(a), all(b)),
        Kind::Match(x, cases) => {
            let case = |c: &Case| Case { labels: c.labels.clone(), body: all(&c.body) };
            Kind::Match(*x, cases.iter().map(case).collect())
        }
        Kind::Comment(_) => return None,
        other => other.clone(),
    };
    Some(Stmt { at: s.at, kind })
}
/// Drops the variables that no signal depends on, and branches without statements.
fn drop_unread(k: &Kernel, stmts: &mut [Option<Stmt>], read_outside: &dyn Fn(VarId) -> bool) {
    let mut live = BTreeSet::new();
    loop {
        let before = live.len();
        for s in stmts.iter().flatten() {
            contributes(k, s, read_outside, &mut live);
        }
        if live.len() == before {
            break;
        }
    }
    for s in stmts.iter_mut() {
        *s = s.take().and_then(|s| live_part(s, &live))
    }
}
/// Whether a signal depends on a statement, as far as `live` knows; adds the variables that it reads.
fn contributes(k: &Kernel, s: &Stmt, read_outside: &dyn Fn(VarId) -> bool, live: &mut BTreeSet<VarId>) -> bool {
    let yes = match &s.kind {
        Kind::Set(Base::Signal(_), ..) => true,
        Kind::Set(Base::Var(v), ..) | Kind::Declare(v, _) => {
            if read_outside(*v) {
                live.insert(*v);
            }
            live.contains(v)
        }
        _ => {
            let mut any = false;
            for s in s.branches().into_iter().flatten() {
                any |= contributes(k, s, read_outside, live)
            }
            any
        }
    };
    if yes {
        for id in s.reads() {
            k.visit(id, &mut |e| {
                if let Op::Var(v) = e.op {
                    live.insert(v);
                }
            })
        }
    }
    yes
}
fn live_part(s: Stmt, live: &BTreeSet<VarId>) -> Option<Stmt> {
    let all = |b: Vec<Stmt>| -> Vec<Stmt> { b.into_iter().filter_map(|s| live_part(s, live)).collect() };
    let kind = match s.kind {
        Kind::Set(Base::Var(v), ..) | Kind::Declare(v, _) if !live.contains(&v) => return None,
        Kind::If(c, a, b) => {
            let (a, b) = (all(a), all(b));
            if a.is_empty() && b.is_empty() {
                return None;
            }
            Kind::If(c, a, b)
        }
        Kind::Match(x, cases) => {
            let cases: Vec<_> = cases.into_iter().map(|c| Case { body: all(c.body), ..c }).collect();
            if cases.iter().all(|c| c.body.is_empty()) {
                return None;
            }
            Kind::Match(x, cases)
        }
        other => other,
    };
    Some(Stmt { at: s.at, kind })
}
/// Drops `d = q` where it comes first.
fn drop_holds(k: &Kernel, scope: &Scope, process: &mut Vec<Stmt>) {
    let mut written = BTreeSet::new();
    process.retain(|s| {
        let hold = match &s.kind {
            Kind::Set(Base::Signal(d), Part::Whole, x) => {
                matches!(&k.expr(*x).op, Op::Signal(q) if *q == scope.registers[d].q) && !written.contains(d)
            }
            _ => false,
        };
        s.visit(&mut |s| {
            if let Kind::Set(Base::Signal(d), ..) = &s.kind {
                written.insert(d.clone());
            }
        });
        !hold
    })
}
