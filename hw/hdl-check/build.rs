//! Writes random kernels for `tests/fuzz.rs`: each seed gives a block with the same inputs and many random outputs.
//! `FERROCE_FUZZ_SEED=5,6` adds blocks of those seeds to the fixed ones.
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::fmt::Write;

const WIDTHS: [usize; 10] = [3, 5, 8, 16, 24, 33, 64, 65, 128, 200];
/// Outputs of a block.
const OUTPUTS: usize = 24;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=FERROCE_FUZZ_SEED");
    let mut seeds: Vec<u64> = vec![1, 2];
    if let Ok(s) = std::env::var("FERROCE_FUZZ_SEED") {
        seeds.extend(s.split(',').map(|s| s.parse::<u64>().expect("FERROCE_FUZZ_SEED is a list of numbers")))
    }
    let blocks: String = seeds.iter().map(|s| Generator::new(*s).block(*s)).collect();
    std::fs::write(format!("{}/fuzz.rs", std::env::var("OUT_DIR").unwrap()), blocks).unwrap()
}

/// Names in scope.
#[derive(Clone, Default)]
struct Scope {
    values: BTreeMap<usize, Vec<String>>,
    bools: Vec<String>,
    records: Vec<String>,
}
impl Scope {
    /// Forgets a name that is about to be shadowed.
    fn forget(&mut self, name: &str) {
        self.values.values_mut().chain([&mut self.bools, &mut self.records]).for_each(|v| v.retain(|n| n != name))
    }
}
struct Generator {
    r: ChaCha8Rng,
    scope: Scope,
    names: usize,
}
impl Generator {
    fn new(seed: u64) -> Self {
        Generator { r: ChaCha8Rng::seed_from_u64(seed), scope: Scope::default(), names: 0 }
    }
    fn below(&mut self, n: usize) -> usize {
        self.r.random_range(0..n)
    }
    fn chance(&mut self, p: f64) -> bool {
        self.r.random_bool(p)
    }
    fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }
    fn width(&mut self) -> usize {
        self.pick(&WIDTHS)
    }
    fn at_least(&mut self, w: usize) -> usize {
        let wide: Vec<_> = WIDTHS.iter().copied().filter(|x| *x >= w).collect();
        self.pick(&wide)
    }
    fn number(&mut self, w: usize) -> u128 {
        let all = if w >= 128 { u128::MAX } else { (1 << w) - 1 };
        let random = self.r.random::<u128>() & all;
        self.pick(&[0, 1, all, 1 << (w.min(128) - 1), random])
    }
    fn input(&mut self, w: usize) -> String {
        format!("self.i{}_{w}.val()", self.below(2))
    }

    // ---- expressions; `depth` limits their size
    /// A hardware value, never a constant: what operators and methods need on their left.
    fn value(&mut self, w: usize, depth: usize) -> String {
        if depth == 0 {
            let known = self.scope.values.get(&w).cloned().unwrap_or_default();
            return if !known.is_empty() && self.chance(0.5) { self.pick(&known) } else { self.input(w) };
        }
        let d = depth - 1;
        match self.below(24) {
            0..4 => {
                let op = self.pick(&["+", "-", "&", "|", "^"]);
                format!("({} {op} {})", self.value(w, d), self.any(w, d))
            }
            4 => {
                let (op, k) = (self.pick(&["+", "-", "&", "|", "^"]), self.number(w.min(63)));
                format!("({} {op} {k:#x})", self.value(w, d))
            }
            5 => format!("(!{})", self.value(w, d)),
            6 => {
                let (op, n) = (self.pick(&["<<", ">>"]), self.below(w));
                format!("({} {op} {n})", self.value(w, d))
            }
            7 => {
                let (op, s) = (self.pick(&["<<", ">>"]), self.pick(&[3, 5]));
                format!("({} {op} {})", self.value(w, d), self.value(s, d))
            }
            8 => {
                let v = self.width();
                format!("{}.cast::<{w}>()", self.value(v, d))
            }
            9 => {
                let v = self.width();
                format!("bit_cast::<{w}, {v}>({})", self.any(v, d))
            }
            10 => {
                let v = self.at_least(w);
                let low = self.below(v - w + 1);
                format!("{}.get_bits::<{w}>({low})", self.value(v, d))
            }
            11 => {
                let v = self.at_least(w.max(8));
                let i = if v < 32 { 3 } else { self.pick(&[3, 5]) };
                format!("{}.get_bits::<{w}>({}.index())", self.value(v, d), self.value(i, d))
            }
            12 | 13 => {
                let (c, a, b) = (self.bool(d), self.value(w, d), self.any(w, d));
                format!("(if {c} {{ {a} }} else {{ {b} }})")
            }
            14 => {
                let (c1, a) = (self.bool(d), self.body(w, d));
                let (c2, b, c) = (self.bool(d), self.any(w, d), self.body(w, d));
                format!("(if {c1} {{ {a} }} else if {c2} {{ {b} }} else {{ {c} }})")
            }
            15 => {
                let v = self.pick(&[3, 5, 8]);
                let k = self.below(8);
                let (s, a, b) = (self.value(v, d), self.value(w, d), self.body(w, d));
                let (c, e) = (self.any(w, d), self.any(w, d));
                let ks = [k, (k + 1) % 8, (k + 3) % 8, (k + 6) % 8];
                format!(
                    "(match {s} {{ {} | {} => {a}, {} => {{ {b} }} {} => {c}, _ => {e} }})",
                    ks[0], ks[1], ks[2], ks[3]
                )
            }
            16 => {
                let (a, b, c) = (self.value(w, d), self.body(w, d), self.any(w, d));
                let s = self.state();
                format!(
                    "(match {s} {{ State::Idle | State::Last => {a}, State::Run => {{ {b} }} State::Wait | State::Hold => {c} }})"
                )
            }
            17 => self.concatenation(w, d),
            18 if w.is_multiple_of(8) => format!("bswap({})", self.value(w, d)),
            19 => {
                let (i, b) = (self.below(w), self.bool(d));
                format!("{}.replace_bit({i}, {b})", self.value(w, d))
            }
            20 => format!("max::<{w}>({}, {})", self.value(w, d), self.any(w, d)),
            21 => {
                let (a, b, i) = (self.value(w, d), self.value(w, d), self.bool(d));
                let v = self.pick(&["swap_if({}, {}, {}).0", "swap_if({}, {}, {}).1"]);
                v.replacen("{}", &a, 1).replacen("{}", &b, 1).replacen("{}", &i, 1)
            }
            22 if w == 8 => format!("{}.small", self.record(d)),
            22 if w == 24 => format!("{}.inner.psn", self.record(d)),
            22 if w == 3 => format!("pack::<3>({})", self.state()),
            22 if w == 33 => format!("pack::<36>({}).get_bits::<33>({})", self.record(d), self.below(4)),
            23 if w == 16 => format!("self.file[{}.index()].q.val()", self.value(3, d)),
            23 if w == 5 => format!("self.lanes[{}.get_bits::<2>(1).index()].val()", self.value(3, d)),
            _ => self.value(w, d),
        }
    }
    /// A hardware value or a constant.
    fn any(&mut self, w: usize, depth: usize) -> String {
        if self.chance(0.1) {
            let v = self.number(w);
            return if w <= 64 { format!("bits::<{w}>({v:#x}u64)") } else { format!("{v:#x}_u128.to_bits::<{w}>()") };
        }
        self.value(w, depth)
    }
    fn bool(&mut self, depth: usize) -> String {
        if depth == 0 {
            let mut all = self.scope.bools.clone();
            all.extend(["self.c.val()".into(), "self.d.val()".into()]);
            return self.pick(&all);
        }
        let (d, w) = (depth - 1, self.width());
        let relation = self.pick(&["==", "!=", "<", "<=", ">", ">="]);
        match self.below(10) {
            0..3 => format!("({} {relation} {})", self.value(w, d), self.any(w, d)),
            3 => {
                let k = self.number(w.min(63));
                format!("({} {relation} {k:#x})", self.value(w, d))
            }
            4 => format!("{}.{}()", self.value(w, d), self.pick(&["any", "all", "xor"])),
            5 => {
                let i = self.below(w);
                format!("{}.get_bit({i})", self.value(w, d))
            }
            6 => {
                let op = self.pick(&["&&", "||", "&", "|", "^"]);
                format!("({} {op} {})", self.bool(d), self.bool(d))
            }
            7 => format!("{}.inner.flag", self.record(d)),
            8 => format!("({} == State::{})", self.state(), self.pick(&["Idle", "Run", "Wait", "Hold", "Last"])),
            _ => format!("(!{})", self.bool(d)),
        }
    }
    fn state(&mut self) -> String {
        self.pick(&["self.state.val()", "self.machine.q.val()", "self.record.val().state"]).into()
    }
    fn record(&mut self, depth: usize) -> String {
        let d = depth.saturating_sub(1);
        let known = self.scope.records.clone();
        match self.below(4) {
            0 if !known.is_empty() => self.pick(&known),
            1 => "self.kept.q.val()".into(),
            2 => {
                let (s, p, f, st) = (self.any(8, d), self.value(24, d), self.bool(d), self.state());
                format!("(Record {{ small: {s}, inner: Inner {{ flag: {f}, psn: {p} }}, state: {st} }})")
            }
            _ => "self.record.val()".into(),
        }
    }
    fn concatenation(&mut self, w: usize, depth: usize) -> String {
        let (mut parts, mut left) = (vec![], w);
        while left > 0 {
            let fits: Vec<_> = WIDTHS.iter().copied().filter(|x| *x <= left).collect();
            if fits.is_empty() || self.chance(0.1) {
                parts.push(self.bool(depth));
                left -= 1
            } else {
                let x = self.pick(&fits);
                parts.push(self.any(x, depth.saturating_sub(1)));
                left -= x
            }
        }
        format!("cat!({w}; {})", parts.join(", "))
    }
    /// A block's inside: some `let`s and a value.
    fn body(&mut self, w: usize, depth: usize) -> String {
        let saved = self.scope.clone();
        let mut t = String::new();
        for _ in 0..1 + self.below(2) {
            t += &self.binding(depth)
        }
        t += &self.any(w, depth);
        self.scope = saved;
        t
    }
    fn binding(&mut self, depth: usize) -> String {
        self.names += 1;
        let n =
            if self.chance(0.8) { format!("v{}", self.names) } else { self.pick(&["x", "y", "reg", "t"]).to_string() };
        let (kind, w) = (self.below(8), self.width());
        let (value, ty) = match kind {
            0 | 1 => (self.bool(depth), String::new()),
            2 => (self.record(depth), String::new()),
            _ => (self.value(w, depth), if self.chance(0.5) { format!(": Bits<{w}>") } else { String::new() }),
        };
        self.scope.forget(&n);
        match kind {
            0 | 1 => self.scope.bools.push(n.clone()),
            2 => self.scope.records.push(n.clone()),
            _ => self.scope.values.entry(w).or_default().push(n.clone()),
        }
        format!("let {n}{ty} = {value}; ")
    }

    // ---- statements
    /// Assigns `self.o{k}`, of width `w`.
    fn output(&mut self, k: usize, w: usize) -> String {
        let saved = self.scope.clone();
        let text = match self.below(24) {
            20.. => self.mixed(k, w),
            0..9 => format!("self.o{k}.next = {};", self.any(w, 4)),
            9..13 => {
                let first = self.any(w, 2);
                let (c, l, a) = (self.bool(2), self.binding(2), self.any(w, 3));
                self.scope = saved.clone();
                let (m, b) = (self.binding(2), self.any(w, 2));
                format!(
                    "self.o{k}.next = {first}; if {c} {{ {l} self.o{k}.next = {a}; }} else {{ {m} self.o{k}.next = self.o{k}.val() ^ {b}; }}"
                )
            }
            13..16 => {
                let (init, c, a, b) = (self.any(w, 2), self.bool(2), self.any(w, 2), self.any(w, 1));
                format!(
                    "let mut m{k}: Bits<{w}> = {init}; for i in 0..3 {{ if {c} {{ m{k} = m{k} + {a}; }} else {{ m{k} ^= {b} + (i as u64); }} }} self.o{k}.next = m{k};"
                )
            }
            16 | 17 => {
                // a local that is read between two assignments
                let (a, b, c) = (self.any(w, 2), self.bool(2), self.any(w, 2));
                format!(
                    "self.l{k}.next = {a}; let before = self.l{k}.val(); if {b} {{ self.l{k}.next = {c} + before; }} self.o{k}.next = self.l{k}.val() - before;"
                )
            }
            18 => {
                let (a, s, f, low) = (self.record(2), self.any(8, 2), self.bool(2), self.below(37 - w.min(33)));
                format!(
                    "let mut p{k}: Record = {a}; if {f} {{ p{k}.small = {s}; p{k}.inner.flag = true; }} self.o{k}.next = pack::<36>(p{k}).get_bits::<{}>({low}).cast::<{w}>();",
                    w.min(33)
                )
            }
            _ => {
                let (a, v, low) = (self.any(w, 2), self.any(3, 3), self.below(w - 2));
                format!("self.o{k}.next = {a}; if {} {{ self.o{k}.next.set_bits::<3>({low}, {v}); }}", self.bool(2))
            }
        };
        self.scope = saved;
        text
    }
    /// Outputs, registers and a variable assigned in the same branches.
    fn mixed(&mut self, k: usize, w: usize) -> String {
        let (i, j, bit, low) = (self.below(4), self.below(4), self.below(24), self.below(16));
        let (first, n, c) = (self.any(w, 2), self.any(24, 2), self.bool(2));
        let (step, o1, r1) = (self.any(24, 1), self.any(w, 2), self.value(24, 2));
        let (s, part, o2, b) = (self.value(3, 1), self.any(8, 2), self.any(w, 1), self.bool(2));
        let (r2, x, i3) = (self.any(24, 2), self.value(24, 1), self.value(3, 1));
        format!(
            "self.o{k}.next = {first}; let mut n{k}: Bits<24> = {n}; \
             if {c} {{ n{k} += {step}; self.o{k}.next = {o1}; self.acc[{i}].d.next = n{k} ^ {r1}; \
             match {s} {{ 0 | 1 => {{ self.acc[{j}].d.next.set_bits::<8>({low}, {part}); }} 5 => self.o{k}.next = {o2}, \
             _ => {{ n{k} = n{k}.replace_bit({bit}, {b}); }} }} }} \
             else {{ self.acc[{j}].d.next = {r2}; self.acc[{i3}.get_bits::<2>(0).index()].d.next = n{k} - {x}; }} \
             self.o{k}.next = self.o{k}.val() ^ n{k}.cast::<{w}>() ^ self.acc[{i}].q.val().cast::<{w}>();"
        )
    }
    /// Assigns the registers.
    fn registers(&mut self) -> String {
        let mut t = String::new();
        let (c, st) = (self.bool(3), self.pick(&["Run", "Wait", "Hold", "Last"]));
        let _ = write!(
            t,
            "if {c} {{ self.machine.d.next = match self.machine.q.val() {{ State::Idle => State::{st}, State::Run => State::Hold, State::Hold | State::Wait => self.state.val(), State::Last => State::Idle }}; }} "
        );
        let (c, r) = (self.bool(2), self.record(2));
        let _ = write!(t, "if {c} {{ self.kept.d.next = {r}; }} ");
        let (c, p) = (self.bool(2), self.any(24, 2));
        let _ = write!(t, "if {c} {{ self.kept.d.next.inner.psn = {p}; }} ");
        let (c, i, v) = (self.bool(2), self.value(3, 1), self.any(16, 2));
        let _ = write!(t, "if {c} {{ self.file[{i}.index()].d.next = {v}; }} ");
        let (i, v) = (self.below(8), self.any(16, 2));
        let _ = write!(t, "self.file[{i}].d.next = {v} + self.file[{}].q.val(); ", (i + 3) % 8);
        t
    }
    fn block(&mut self, seed: u64) -> String {
        let inputs = WIDTHS.iter().flat_map(|w| (0..2).map(move |k| format!("i{k}_{w}: {w}")));
        let inputs = inputs.collect::<Vec<_>>().join(", ");
        let (mut outputs, mut body) = (vec![], String::new());
        for k in 0..OUTPUTS {
            if self.chance(0.5) {
                let l = self.binding(3);
                let _ = writeln!(body, "        {l}");
            }
            let w = self.width();
            outputs.push(format!("o{k} l{k}: {w}"));
            let o = self.output(k, w);
            // every local signal has a value, used or not
            let _ = writeln!(body, "        self.l{k}.next = 0.into(); {o}");
        }
        let _ = writeln!(body, "        {}", self.registers());
        format!(
            "fuzz_block! {{ seed_{seed}; {inputs}; {};\n    fn update(&mut self) {{\n        \
             regs!(self, clock, rst, machine, file, acc);\n        dff_setup!(self, clock, kept);\n{body}    }}\n}}\n",
            outputs.join(", ")
        )
    }
}
