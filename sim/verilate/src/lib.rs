//! Runs any RustHDL block in Verilator from a Rust test: emits it, compiles it once, loads it, moves its ports.
//!
//! For the authors of blocks and for the simulated NIC. Verilator is about a thousand times faster than RustHDL's own
//! simulator, and it runs the Verilog that goes to the FPGA rather than the Rust model of it.
//!
//! ```no_run
//! # use hdl::prelude::*;
//! # fn demo<B: Block + Default + Sync>() -> Result<(), verilate::Error> {
//! use verilate::{Model, Options, bench::{self, Sink, Source, Stall}};
//!
//! let mut m = Model::of(B::default, Options::default())?; // builds, connects and emits the block on a large stack
//! m.reset();
//! let mut s = Source::new(&m, "s", Stall::Random, 1);     // drives ports s.valid, s.data, .. against s.ready
//! let mut k = Sink::new(&m, "m", Stall::Random, 2);       // reads m.valid, m.data, .. and checks the stream protocol
//! s.push_packet(&[0xab; 100]);
//! k.expect_packets(1);
//! bench::run(&mut m, &mut [&mut s, &mut k], 1000);        // panics with a report when the packet is not out by then
//! assert_eq!(k.pop_packet().unwrap(), [0xab; 100]);
//!
//! m.set("limit", 5);                                      // any port, at any time; `m.port("limit")` is a fast handle
//! m.tick();
//! assert_eq!(m.get("status.dropped"), 0);                 // a field of a struct port
//! # Ok(()) }
//! ```
//!
//! Message channels carry a struct: `s.send(Request { .. })` puts one in, `k.pop().unwrap().get("psn")` looks at a field
//! of one that came out, and `assert_eq!(k.pop(), Some(k.message(Reply { .. })))` compares it as a whole.
//!
//! Environment: `FERROCE_VERILATOR` (the tool), `FERROCE_WAVE` (path prefix: every instance writes its waves there),
//! `FERROCE_MODELS` (cache of compiled models, default `target/verilate`), `FERROCE_SCALE` and
//! `FERROCE_SEED` (see [`scale`] and [`seed`]), `FERROCE_COVERAGE` (path prefix: every instance counts its lines there).

pub mod bench;
pub mod bits;
mod compile;
mod model;
mod paths;
mod process;
mod tool;

pub use model::{Model, Pick, Port};
pub use paths::{cache_dir, firmware_image, picorv32_source};
pub use tool::{skip, yosys};

use hdl::prelude::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::{cell::Cell, path::PathBuf};

/// How to build a model. `Options::default()` suits nearly every block.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Name in the cache and in wave files; by default the type of the block.
    pub name: Option<String>,
    /// Third-party Verilog to compile along, not linted (for instance [`picorv32_source`]).
    pub sources: Vec<PathBuf>,
    /// Path prefix of the wave files, one per instance: `<prefix><name>-<process>-<instance>.fst`, or `.vcd` on a
    /// machine without the headers FST needs (Debian: `liblz4-dev zlib1g-dev`). `FERROCE_WAVE` sets it for all.
    pub wave: Option<String>,
    /// Count executed lines, for [`Model::write_coverage`].
    pub coverage: bool,
    /// Lint rules to waive beyond the project's list, for text that is not ours.
    pub waive: Vec<&'static str>,
    /// What to say on standard error before it is compiled, which for a whole NIC takes long; nothing if it is in the cache.
    pub announce: Option<String>,
}

/// A port of the top module. `name` is RustHDL's flattened name, such as `s$data`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    pub name: String,
    pub bits: usize,
    pub input: bool,
    /// The fields of a struct, nested ones as `outer$inner`: name, first bit, bits. Empty for plain bits.
    pub fields: Vec<(String, usize, usize)>,
}

impl PortInfo {
    pub fn input(name: &str, bits: usize) -> Self {
        Self { name: name.into(), bits, input: true, fields: vec![] }
    }
    pub fn output(name: &str, bits: usize) -> Self {
        Self { name: name.into(), bits, input: false, fields: vec![] }
    }
}

/// Why a model could not be built. `Debug` prints the message too, so that `unwrap` in a test reads well.
#[derive(thiserror::Error)]
pub enum Error {
    #[error("{tool} not found: {hint}")]
    Missing { tool: &'static str, hint: String },
    #[error("{step} failed for `{name}` (its Verilog is in {dir}):\n{output}")]
    Build { step: &'static str, name: String, dir: String, output: String },
    #[error("port `{port}` of `{name}` is not a port of the emitted top module")]
    Port { name: String, port: String },
    #[error("{what}: {source}")]
    Io { what: String, source: std::io::Error },
    #[error("cannot load {path}: {source}")]
    Load { path: String, source: libloading::Error },
}

impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

/// Runs `f` on a stack of 256 MiB. A 512-bit `Signal` takes 1.5 KB and a block lives on the stack while it is built,
/// so a large design overruns the 2 MiB of a test thread. Panics in `f` pass through.
pub fn on_big_stack<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(256 << 20).spawn_scoped(scope, f);
        thread.expect("no memory for a large stack").join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// `count` random cases, times `FERROCE_SCALE` (a factor, 1 when unset, at least one case remains).
pub fn scale(count: usize) -> usize {
    let Ok(text) = std::env::var("FERROCE_SCALE") else { return count };
    let factor: f64 = text.parse().unwrap_or_else(|_| panic!("FERROCE_SCALE={text}: want a number"));
    ((count as f64 * factor) as usize).max(1)
}

/// `count` random cases in a test that goes through all that is asked in one run. Says so: `./ferroce test --all` runs it under one
/// seed only.
pub fn whole(count: usize) -> usize {
    println!("{WHOLE}, {count} cases");
    scale(count)
}

/// The marks of [`seed`] and [`whole`] in what a test prints.
pub const RANDOM: &str = "random, FERROCE_SEED=";
pub const WHOLE: &str = "whole in one run";

/// A random number generator of [`seed`]`(base)`.
pub fn rng(base: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed(base))
}

/// The seed of a test that wants `base`: `base` itself, or another for each `FERROCE_SEED` (0 when unset), so that one test runs
/// under as many seeds as one likes. Says so once per thread: by that `./ferroce test --all` knows which tests to repeat.
pub fn seed(base: u64) -> u64 {
    thread_local!(static SAID: Cell<bool> = const { Cell::new(false) });
    let shift = seed_shift();
    if !SAID.replace(true) {
        println!("{RANDOM}{shift}");
    }
    base.wrapping_add(shift << 32)
}

/// `FERROCE_SEED`.
fn seed_shift() -> u64 {
    let Ok(text) = std::env::var("FERROCE_SEED") else { return 0 };
    text.parse().unwrap_or_else(|_| panic!("FERROCE_SEED={text}: want a number without sign"))
}

/// The ports of `block`, found by walking its outermost scope.
pub fn ports<B: Block>(block: &B) -> Vec<PortInfo> {
    #[derive(Default)]
    struct Walk {
        depth: usize,
        path: Vec<String>,
        ports: Vec<PortInfo>,
    }
    impl Probe for Walk {
        fn visit_start_scope(&mut self, _: &str, _: &dyn Block) {
            self.depth += 1;
        }
        fn visit_end_scope(&mut self, _: &str, _: &dyn Block) {
            self.depth -= 1;
        }
        fn visit_start_namespace(&mut self, name: &str, _: &dyn Block) {
            self.path.push(name.into());
        }
        fn visit_end_namespace(&mut self, _: &str, _: &dyn Block) {
            self.path.pop();
        }
        fn visit_atom(&mut self, name: &str, atom: &dyn Atom) {
            if self.depth == 1 && atom.kind().is_parameter() {
                let name = self.path.iter().map(String::as_str).chain([name]).collect::<Vec<_>>().join("$");
                let input = atom.kind() == AtomKind::InputParameter;
                let mut fields = Vec::new();
                struct_fields(&atom.descriptor().kind, "", 0, &mut fields);
                self.ports.push(PortInfo { name, bits: atom.bits(), input, fields });
            }
        }
    }
    let mut walk = Walk::default();
    block.accept("top", &mut walk);
    walk.ports
}

/// Adds the fields of a struct type to `fields`, outer before inner, and gives the width of `kind`. A struct's first
/// field is its least significant.
fn struct_fields(kind: &TypeKind, prefix: &str, at: usize, fields: &mut Vec<(String, usize, usize)>) -> usize {
    match kind {
        TypeKind::Bits(bits) | TypeKind::Signed(bits) => *bits,
        TypeKind::Enum(variants) => clog2(variants.len()).max(1),
        TypeKind::Composite(parts) => parts.iter().fold(0, |width, part| {
            let (name, place) = (format!("{prefix}{}", part.fieldname), fields.len());
            let bits = struct_fields(&part.kind.kind, &format!("{name}$"), at + width, fields);
            fields.insert(place, (name, at + width, bits));
            width + bits
        }),
    }
}
