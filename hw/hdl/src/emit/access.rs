//! What statements read and write: the ground on which a kernel is cut into items.
use crate::ir::*;
use std::collections::BTreeSet;

/// What a statement, with everything inside it, reads and writes.
pub struct Access {
    pub reads: BTreeSet<Base>,
    pub writes: BTreeSet<Base>,
}
pub fn access(k: &Kernel, s: &Stmt) -> Access {
    let mut a = Access { reads: BTreeSet::new(), writes: BTreeSet::new() };
    s.visit(&mut |s| {
        for id in s.reads() {
            k.visit(id, &mut |e| match &e.op {
                Op::Signal(n) => _ = a.reads.insert(Base::Signal(n.clone())),
                Op::Var(v) => _ = a.reads.insert(Base::Var(*v)),
                _ => {}
            })
        }
        match &s.kind {
            Kind::Set(b, ..) => _ = a.writes.insert(b.clone()),
            Kind::Declare(v, _) => _ = a.writes.insert(Base::Var(*v)),
            _ => {}
        }
    });
    a
}
