//! Runs a block twice, as RustHDL simulates its Rust body and as Verilator simulates its Verilog, with the same random
//! inputs, and compares all outputs. For whoever changes `#[kernel]` or the emitter: any difference is a bug in them.
use hdl::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use verilate::{Model, Options};

pub use rand_chacha::ChaCha8Rng as Random;

/// Random bits, with a bias to the edges: 0, all ones, the top bit alone, small, nearly all ones.
pub fn bits_of<const N: usize>(r: &mut Random) -> Bits<N> {
    let mut v = Bits::<N>::default();
    for i in 0..N {
        v = v.replace_bit(i, r.random())
    }
    let ones = !Bits::<N>::default();
    let small = v & (ones >> (N as u64 * 3 / 4));
    match r.random_range(0..12) {
        0 => Bits::default(),
        1 => ones,
        2 => ones << (N as u64 - 1),
        3 => small,
        4 => ones - small,
        _ => v,
    }
}

/// Sets an input of any width to random bits.
pub trait Randomize {
    fn randomize(&mut self, r: &mut Random);
}
impl<const N: usize> Randomize for Signal<In, Bits<N>> {
    fn randomize(&mut self, r: &mut Random) {
        self.next = bits_of(r)
    }
}
impl Randomize for Signal<In, Bit> {
    fn randomize(&mut self, r: &mut Random) {
        self.next = r.random()
    }
}
impl<T: Randomize, const N: usize> Randomize for [T; N] {
    fn randomize(&mut self, r: &mut Random) {
        self.iter_mut().for_each(|x| x.randomize(r))
    }
}

/// Compares a combinational block over `vectors` random inputs; `drive` sets the inputs.
pub fn combinational<B: Block + Sync>(
    make: impl Fn() -> B + Sync,
    vectors: usize,
    drive: impl FnMut(&mut B, &mut Random),
) {
    run(make, vectors, drive, |_| {})
}

/// Compares a block with an input `clock` over `cycles` cycles; `drive` sets the other inputs.
pub fn clocked<B: Block + Sync>(
    make: impl Fn() -> B + Sync,
    cycles: usize,
    drive: impl FnMut(&mut B, &mut Random),
    clock: fn(&mut B) -> &mut Signal<In, Clock>,
) {
    run(make, cycles, drive, |u| {
        for level in [true, false] {
            clock(u).next = level.into();
            settle(u)
        }
    })
}

fn settle(u: &mut impl Block) {
    assert!(simulate(u, 100), "the Rust model does not settle")
}
fn run<B: Block + Sync>(
    make: impl Fn() -> B + Sync,
    steps: usize,
    mut drive: impl FnMut(&mut B, &mut Random),
    mut edge: impl FnMut(&mut B),
) {
    let mut model = Model::of(&make, Options::default()).unwrap_or_else(|e| panic!("{e}"));
    let has_clock = model.find("clock").is_some();
    let mut u = Box::new(make());
    u.connect_all();
    let seed = verilate::seed(1);
    let mut r = ChaCha8Rng::seed_from_u64(seed);
    // wrong outputs: how often, and the first time
    let mut wrong: BTreeMap<String, (usize, String)> = BTreeMap::new();
    let steps = verilate::scale(steps);
    for step in 0..steps {
        drive(&mut u, &mut r);
        settle(&mut *u);
        let ports = values(&*u);
        for (name, input, v) in &ports {
            if *input && name != "clock" {
                model.set_bytes(name.as_str(), v)
            }
        }
        model.eval();
        for (name, _, rust) in ports.iter().filter(|p| !p.1) {
            let verilog = model.get_bytes(name.as_str());
            if verilog != *rust {
                let first = || (0, format!("step {step}: Rust {}, Verilog {}", hex(rust), hex(&verilog)));
                wrong.entry(name.clone()).or_insert_with(first).0 += 1
            }
        }
        if has_clock {
            edge(&mut u);
            model.tick()
        }
    }
    let list: Vec<_> = wrong.iter().map(|(n, (k, first))| format!("{n}: {k} times, first at {first}")).collect();
    assert!(wrong.is_empty(), "outputs differ over {steps} steps of seed {seed}:\n{}", list.join("\n"))
}
fn hex(v: &[u8]) -> String {
    v.iter().rev().map(|b| format!("{b:02x}")).collect()
}

/// Name, direction (true: input) and present value of every port.
fn values(u: &dyn Block) -> Vec<(String, bool, Vec<u8>)> {
    #[derive(Default)]
    struct Values {
        depth: usize,
        interfaces: Vec<String>,
        found: Vec<(String, bool, Vec<u8>)>,
    }
    impl Probe for Values {
        fn visit_start_scope(&mut self, _: &str, _: &dyn Block) {
            self.depth += 1
        }
        fn visit_end_scope(&mut self, _: &str, _: &dyn Block) {
            self.depth -= 1
        }
        fn visit_start_namespace(&mut self, name: &str, _: &dyn Block) {
            self.interfaces.push(name.into())
        }
        fn visit_end_namespace(&mut self, _: &str, _: &dyn Block) {
            self.interfaces.pop();
        }
        fn visit_atom(&mut self, name: &str, a: &dyn Atom) {
            if self.depth == 1 && a.kind().is_parameter() {
                let path: Vec<_> = self.interfaces.iter().map(String::as_str).chain([name]).collect();
                let literal = format!("{:x}", a.verilog());
                let digits: Vec<u8> =
                    literal.split("'h").last().unwrap().chars().rev().map(|c| c.to_digit(16).unwrap() as u8).collect();
                let digit = |i: usize| digits.get(i).copied().unwrap_or(0);
                let bytes = (0..a.bits().div_ceil(8)).map(|i| digit(2 * i) | digit(2 * i + 1) << 4).collect();
                self.found.push((path.join("$"), a.kind() == AtomKind::InputParameter, bytes))
            }
        }
    }
    let mut v = Values::default();
    u.accept("top", &mut v);
    v.found
}
