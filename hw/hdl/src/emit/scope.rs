//! The signals that a kernel can name: its block's own, and the ports of direct sub-blocks.
use super::tree::{Direction, Module};
use crate::ir::*;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    In,
    Out,
    Local,
    /// Input of a sub-block: driven by this kernel.
    SubIn,
    /// Output of a sub-block: read by this kernel.
    SubOut,
}
#[derive(Clone, Copy, Debug)]
pub struct Net {
    pub role: Role,
    pub width: usize,
}
/// A register of the block, by the names of its pins.
#[derive(Clone, Debug)]
pub struct Register {
    pub q: String,
    pub clock: String,
    /// If it has a reset.
    pub rst: Option<String>,
    /// Power-up and reset value, a Verilog literal.
    pub init: String,
    /// The state of a machine.
    pub states: bool,
}
pub struct Scope {
    pub nets: BTreeMap<String, Net>,
    /// By the name of the `d` pin.
    pub registers: BTreeMap<String, Register>,
}
impl Scope {
    pub fn new(m: &Module) -> Self {
        let (mut nets, mut registers) = (BTreeMap::new(), BTreeMap::new());
        for s in &m.signals {
            let role = match s.direction {
                Direction::In => Role::In,
                Direction::Out => Role::Out,
                Direction::Local => Role::Local,
            };
            nets.insert(s.name.clone(), Net { role, width: s.width });
        }
        for (sub, m) in &m.subs {
            for p in m.ports() {
                let role = if p.direction == Direction::In { Role::SubIn } else { Role::SubOut };
                nets.insert(format!("{sub}${}", p.name), Net { role, width: p.width });
            }
            if let Body::Register { init, reset, states } = &m.body {
                let pin = |p: &str| format!("{sub}${p}");
                let init = match init.trim_start_matches('0') {
                    "" => format!("{}'d0", nets[&pin("q")].width),
                    v => format!("{}'h{v}", nets[&pin("q")].width),
                };
                let (q, clock, rst) = (pin("q"), pin("clock"), reset.then(|| pin("rst")));
                registers.insert(pin("d"), Register { q, clock, rst, init, states: *states });
            }
        }
        Scope { nets, registers }
    }
    /// Turns links into assignments, now that the widths are known.
    pub fn resolve_links(&self, kernel: &mut Kernel) {
        let mut body = std::mem::take(&mut kernel.body);
        self.resolve(&mut body, kernel);
        kernel.body = body
    }
    fn resolve(&self, body: &mut [Stmt], kernel: &mut Kernel) {
        for s in body {
            match &mut s.kind {
                Kind::Link(to, from) => {
                    let width = self.nets.get(from).map_or(0, |n| n.width);
                    kernel.exprs.push(Expr { op: Op::Signal(from.clone()), width });
                    let id = Id(kernel.exprs.len() as u32 - 1);
                    s.kind = Kind::Set(Base::Signal(std::mem::take(to)), Part::Whole, id)
                }
                Kind::If(_, a, b) => {
                    self.resolve(a, kernel);
                    self.resolve(b, kernel)
                }
                Kind::Match(_, cases) => cases.iter_mut().for_each(|c| self.resolve(&mut c.body, kernel)),
                _ => {}
            }
        }
    }
}
