//! The body of a block with a `#[kernel]`: declarations, wires and processes, instances of sub-blocks, registers.
use super::expr::Printer;
use super::names::{Names, verilog_name};
use super::plan::{Item, Plan, plan};
use super::scope::Scope;
use super::text::{Writer, range};
use super::tree::{Direction, Module};
use super::{Emitter, check, expr};
use crate::ir::*;
use std::collections::BTreeMap;

struct Text<'a> {
    scope: &'a Scope,
    plan: &'a Plan<'a>,
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
    for n in scope.nets.keys().filter(|n| !plan.direct.contains_key(*n)) {
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
                let (target, value) = self.assignment(s);
                self.w.line_at(&format!("assign {target} = {value};"), s.at)
            }
            Item::Process(stmts) => {
                self.w.line("always_comb begin");
                self.w.indent();
                stmts.iter().for_each(|s| self.statement(s));
                self.w.dedent();
                self.w.line("end")
            }
        }
    }
    fn assignment(&self, s: &Stmt) -> (String, String) {
        let Kind::Set(base, part, v) = &s.kind else { unreachable!() };
        let whole = self.printer.base_width(base, |n| self.scope.nets[n].width);
        let name = self.printer.base(base);
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
        (target, self.printer.print(*v))
    }
    /// `begin` .. `end` around a branch, with its variables.
    fn block(&mut self, b: &[Stmt]) {
        self.w.indent();
        for s in b {
            if let Kind::Declare(v, _) = s.kind
                && !self.plan.alias.contains_key(&v)
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
                let (target, value) = self.assignment(s);
                self.w.line_at(&format!("{target} = {value};"), s.at)
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
                            let (target, value) = self.assignment(s);
                            self.w.line_at(&format!("{label}: {target} = {value};"), s.at)
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
    /// What drives or carries a port of a sub-block.
    fn pin(&self, sub: &str, port: &str) -> String {
        let n = format!("{sub}${port}");
        match self.plan.direct.get(&n) {
            Some(x) => self.printer.print(*x),
            None => self.printer.signals[&n].clone(),
        }
    }
    fn sub_block(&mut self, e: &mut Emitter, name: &str, m: &Module) {
        if let Body::Register { init, reset } = &m.body {
            let width = m.signals.iter().find(|s| s.name == "q").unwrap().width;
            let (q, d, clock) = (self.pin(name, "q"), self.pin(name, "d"), self.pin(name, "clock"));
            let init = match init.trim_start_matches('0') {
                "" => format!("{width}'d0"),
                v => format!("{width}'h{v}"),
            };
            self.w.line(&format!("initial {q} = {init};"));
            let next = match reset {
                true => format!("if ({}) {q} <= {init}; else {q} <= {d};", self.pin(name, "rst")),
                false => format!("{q} <= {d};"),
            };
            return self.w.line(&format!("always_ff @(posedge {clock}) {next}"));
        }
        let module = e.module(m, name);
        let instance = self.names.fresh(&format!("u_{}", name.replace('$', "_")));
        self.w.line(&format!("{module} {instance} ("));
        let pins: Vec<_> =
            m.ports().map(|p| format!("  .{}({})", verilog_name(&p.name), self.pin(name, &p.name))).collect();
        self.w.raw(&pins.iter().map(|p| format!("  {p}")).collect::<Vec<_>>().join(",\n"));
        self.w.line(");")
    }
}
