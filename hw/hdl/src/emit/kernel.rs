//! The body of a block with a `#[kernel]`: declarations, wires and processes, instances of sub-blocks, registers.
use super::expr::Printer;
use super::names::{Names, verilog_name};
use super::plan::{Item, Plan, plan};
use super::scope::Scope;
use super::text::{Writer, range};
use super::tree::{Direction, Module, Port};
use super::{Emitter, check, expr};
use crate::ir::*;
use std::collections::BTreeMap;

struct Text<'a> {
    scope: &'a Scope,
    plan: &'a Plan,
    printer: Printer<'a>,
    names: Names,
    w: Writer,
}

/// Everything between the ports and `endmodule`. Panics if the circuit is not well formed.
pub fn kernel(e: &mut Emitter, m: &Module, kernel: &Kernel) -> String {
    let mut k = kernel.clone();
    let scope = Scope::new(m);
    scope.resolve_links(&mut k);
    check::check(&k, &scope, &m.path);
    let plan = plan(&k, &scope);

    let mut names = Names::default();
    let mut signals = BTreeMap::new();
    for n in scope.nets.keys().filter(|n| !plan.direct.contains_key(*n) && !plan.clocked.contains(*n)) {
        match names.exact(n) {
            Ok(v) => _ = signals.insert(n.clone(), v),
            Err(other) => {
                panic!("block {}: `{other}` and `{n}` are both called `{}` in Verilog", m.path, verilog_name(n))
            }
        }
    }
    let printer = Printer { kernel: &k, signals, vars: BTreeMap::new(), alias: &plan.alias };
    let mut t = Text { scope: &scope, plan: &plan, printer, names, w: Writer::default() };
    t.w.indent();
    t.labels();
    t.declarations(m);
    for item in &plan.items {
        t.item(item)
    }
    for (name, sub) in &m.subs {
        t.sub_block(e, name, sub)
    }
    t.w.out
}

impl Text<'_> {
    /// Enum variants that the kernel names.
    fn labels(&mut self) {
        let mut labels = BTreeMap::new();
        for e in &self.printer.kernel.exprs {
            if let Op::Const(bits, Some(label)) = &e.op {
                labels.insert(label.clone(), bits.clone());
            }
        }
        for (label, bits) in labels {
            let n = self.names.fresh(&label);
            assert_eq!(n, label, "an enum variant and a signal are both called `{label}` in Verilog");
            self.w.line(&format!("localparam {}{n} = {};", range(bits.len()), expr::literal(&bits)))
        }
    }
    fn declarations(&mut self, m: &Module) {
        for s in m.signals.iter().filter(|s| s.direction == Direction::Local) {
            self.w.line(&format!("logic {}{};", range(s.width), self.printer.signals[&s.name]))
        }
        for (sub, sm) in &m.subs {
            for p in sm.ports() {
                if let Some(n) = self.printer.signals.get(&format!("{sub}${}", p.name)) {
                    self.w.line(&format!("logic {}{n};", range(p.width)))
                }
            }
        }
        for v in &self.plan.shared {
            self.declare(*v, "")
        }
    }
    fn declare(&mut self, v: VarId, lifetime: &str) {
        let var = self.printer.kernel.var(v);
        let n = self.names.fresh(&var.name);
        self.w.line(&format!("{lifetime}logic {}{n};", range(var.width)));
        self.printer.vars.insert(v, n);
    }
    fn item(&mut self, item: &Item) {
        match item {
            Item::Comment(c) => self.w.line(&format!("// {c}")),
            Item::Wire(v, x, at) => {
                let var = self.printer.kernel.var(*v);
                let n = self.names.fresh(&var.name);
                self.w.line_at(&format!("wire {}{n} = {};", range(var.width), self.printer.print(*x)), *at);
                self.printer.vars.insert(*v, n);
            }
            Item::Assign(s) => {
                let assignment = self.assignment(s);
                self.w.line_at(&format!("assign {assignment}"), s.at)
            }
            Item::Process(stmts) => {
                self.w.line("always_comb begin");
                self.block(stmts);
                self.w.line("end")
            }
            Item::Clocked(stmts, pins) => self.clocked(stmts, pins),
        }
    }
    /// The reset comes last, where it wins over what the statements assign; registers without reset do not see it.
    fn clocked(&mut self, stmts: &[Stmt], pins: &[String]) {
        let registers: Vec<_> = pins.iter().map(|d| &self.scope.registers[d]).collect();
        let clock = self.pin(&registers[0].clock);
        let mut resets: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for r in &registers {
            if let Some(rst) = &r.rst {
                let reset = format!("{} <= {};", self.printer.signals[&r.q], r.init);
                resets.entry(self.pin(rst)).or_default().push(reset)
            }
        }
        match (stmts, &resets.iter().collect::<Vec<_>>()[..]) {
            ([], []) => return,
            ([s @ Stmt { kind: Kind::Set(..), .. }], [(rst, reset)]) if pins.len() == 1 => {
                let line = format!("always_ff @(posedge {clock}) if ({rst}) {} else {}", reset[0], self.assignment(s));
                return self.w.line_at(&line, s.at);
            }
            ([s @ Stmt { kind: Kind::Set(..), .. }], []) => {
                return self.w.line_at(&format!("always_ff @(posedge {clock}) {}", self.assignment(s)), s.at);
            }
            _ => {}
        }
        // variables may also be in a process of their own: these are other copies
        let outside = self.printer.vars.clone();
        for s in stmts {
            s.visit(&mut |s| {
                if let Kind::Declare(v, _) = s.kind {
                    self.printer.vars.remove(&v);
                }
            })
        }
        self.w.line(&format!("always_ff @(posedge {clock}) begin"));
        self.block(stmts);
        self.w.indent();
        for (rst, resets) in resets {
            self.w.line(&format!("if ({rst}) begin"));
            self.w.indent();
            resets.iter().for_each(|r| self.w.line(r));
            self.w.dedent();
            self.w.line("end")
        }
        self.w.dedent();
        self.w.line("end");
        self.printer.vars = outside
    }
    /// `x = y`, or `q <= y` for the `d` of a register with a clocked process.
    fn assignment(&self, s: &Stmt) -> String {
        let Kind::Set(base, part, v) = &s.kind else { unreachable!() };
        let whole = self.printer.base_width(base, |n| self.scope.nets[n].width);
        let (name, op) = match base {
            Base::Signal(d) if self.plan.clocked.contains(d) => {
                (&self.printer.signals[&self.scope.registers[d].q][..], "<=")
            }
            _ => (self.printer.base(base), "="),
        };
        let target = match part {
            Part::Whole => name.to_string(),
            Part::Bits { width, .. } if *width == whole => name.to_string(),
            Part::Bits { low, width: 1 } => format!("{name}[{low}]"),
            Part::Bits { low, width } => format!("{name}[{}:{low}]", low + width - 1),
            Part::Dynamic { width, .. } if *width == whole => name.to_string(),
            Part::Dynamic { offset, width } => {
                format!("{name}[{} +: {width}]", self.printer.select_index(*offset, whole))
            }
        };
        format!("{target} {op} {};", self.printer.print(*v))
    }
    /// `begin` .. `end` around a branch, with its variables.
    fn block(&mut self, b: &[Stmt]) {
        self.w.indent();
        for s in b {
            if let Kind::Declare(v, _) = s.kind
                && !self.plan.alias.contains_key(&v)
                && !self.printer.vars.contains_key(&v)
            {
                self.declare(v, "automatic ")
            }
        }
        b.iter().for_each(|s| self.statement(s));
        self.w.dedent()
    }
    fn statement(&mut self, s: &Stmt) {
        match &s.kind {
            Kind::Declare(v, Some(x)) if !self.plan.alias.contains_key(v) => {
                let line = format!("{} = {};", self.printer.vars[v], self.printer.print(*x));
                self.w.line_at(&line, s.at)
            }
            Kind::Declare(..) => {}
            Kind::Set(..) => {
                let assignment = self.assignment(s);
                self.w.line_at(&assignment, s.at)
            }
            Kind::If(..) => self.conditional(s, ""),
            Kind::Match(x, cases) => {
                self.w.line_at(&format!("case ({})", self.printer.print(*x)), s.at);
                self.w.indent();
                let mut seen = vec![];
                for c in cases {
                    let mut labels: Vec<_> = c.labels.iter().map(|l| self.printer.print(*l)).collect();
                    labels.retain(|l| !seen.contains(l)); // the first arm that matches wins, as in Rust
                    if labels.is_empty() && !c.labels.is_empty() {
                        continue;
                    }
                    seen.extend(labels.iter().cloned());
                    let label = if labels.is_empty() { "default".into() } else { labels.join(", ") };
                    match &c.body[..] {
                        [] => self.w.line(&format!("{label}: ;")),
                        [s @ Stmt { kind: Kind::Set(..), .. }] => {
                            let assignment = self.assignment(s);
                            self.w.line_at(&format!("{label}: {assignment}"), s.at)
                        }
                        b => {
                            self.w.line(&format!("{label}: begin"));
                            self.block(b);
                            self.w.line("end")
                        }
                    }
                }
                self.w.dedent();
                self.w.line("endcase")
            }
            Kind::Comment(c) => self.w.line(&format!("// {c}")),
            Kind::Link(..) => unreachable!("resolved before"),
        }
    }
    /// An `if`, also as the continuation of an `else`.
    fn conditional(&mut self, s: &Stmt, prefix: &str) {
        let Kind::If(c, then, els) = &s.kind else { unreachable!() };
        self.w.line_at(&format!("{prefix}if ({}) begin", self.printer.print(*c)), s.at);
        self.block(then);
        match &els[..] {
            [] => self.w.line("end"),
            [s @ Stmt { kind: Kind::If(..), .. }] => self.conditional(s, "end else "),
            b => {
                self.w.line("end else begin");
                self.block(b);
                self.w.line("end")
            }
        }
    }
    /// What drives or carries `sub$port`.
    fn pin(&self, pin: &str) -> String {
        match self.plan.direct.get(pin) {
            Some(x) => self.printer.print(*x),
            None => self.printer.signals[pin].clone(),
        }
    }
    fn sub_block(&mut self, e: &mut Emitter, name: &str, m: &Module) {
        let d = format!("{name}$d");
        if let Some(r) = self.scope.registers.get(&d) {
            let (q, init) = (&self.printer.signals[&r.q], &r.init);
            // Yosys gives a state of its own code, a bit per state, only if it has no power-up value beside its reset.
            let lines: &[&str] = if r.states { &["`ifndef SYNTHESIS", "", "`endif"] } else { &[""] };
            for line in lines {
                self.w.line(&if line.is_empty() { format!("initial {q} = {init};") } else { line.to_string() });
            }
            if self.plan.clocked.contains(&d) {
                return;
            }
            let reset = match &r.rst {
                Some(rst) => format!("if ({}) {q} <= {init}; else ", self.pin(rst)),
                None => String::new(),
            };
            let (clock, d) = (self.pin(&r.clock), self.pin(&d));
            return self.w.line(&format!("always_ff @(posedge {clock}) {reset}{q} <= {d};"));
        }
        let module = e.module(m, name);
        let instance = self.names.fresh(&format!("u_{}", name.replace('$', "_")));
        self.w.line(&format!("{module} {instance} ("));
        let pin = |p: &Port| format!("    .{}({})", verilog_name(&p.name), self.pin(&format!("{name}${}", p.name)));
        let pins: Vec<_> = m.ports().map(pin).collect();
        self.w.raw(&pins.join(",\n"));
        self.w.line(");")
    }
}
