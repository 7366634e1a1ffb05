//! Verilog text to shared object, through a cache shared by all tests.
//!
//! An entry is named by a hash of everything that makes it: text, sources, flags, tool versions, this harness. It is
//! built in a directory of its own under a file lock and renamed into place, so parallel tests and interrupted runs
//! are safe. Old entries are never removed here; `cargo clean` removes them.

use crate::{
    Error, Options, PortInfo, paths, process,
    tool::{self, Verilator},
};
use sha2::{Digest, Sha256};
use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex,
};

/// What Verilator is always given.
///
/// The two `dfg` rules miscompile a shift of a shift in 5.48 (`tests/harness.rs` has the proof). Without
/// `--flatten`, deduplicated modules run three times slower.
const FLAGS: &[&str] = &[
    "--cc",
    "-O3",
    "--flatten",
    "--no-timing",
    "-fno-dfg-peephole-replace-shiftl-shiftl",
    "-fno-dfg-peephole-replace-shiftr-shiftr",
    "--x-assign",
    "fast",
    "--x-initial",
    "fast",
    "-Wall",
];

/// Lint rules about style, which emitted text may break. All others (LATCH, WIDTH, UNOPTFLAT, MULTIDRIVEN, ..) stop
/// the build.
const WAIVED: &[&str] = &[
    "DECLFILENAME",    // one file holds all modules
    "UNUSEDSIGNAL",    // a struct's fields are not all read everywhere
    "UNUSEDPARAM",     // nor are constants
    "VARHIDDEN",       // a name may be used again in a sub-block
    "PINCONNECTEMPTY", // an output left open
    "PROCASSINIT",     // registers have initial values: FPGAs load them
    "CASEINCOMPLETE",  // an enum need not fill its bits; a missing default shows as LATCH
    "TIMESCALEMOD",    // a third-party source names a time scale, ours need none
    "UNSIGNED",        // `x >= 0` and
    "CMPCONST",        // `x <= max` come from generic code
];

/// Rules that third-party sources may break as they like: all that Verilator lets one switch off in a comment.
#[rustfmt::skip]
const FOREIGN: &[&str] = &[
    "ASCRANGE", "BLKSEQ", "CASEINCOMPLETE", "CASEOVERLAP", "CASEX", "CMPCONST", "COMBDLY", "EOFNEWLINE", "GENUNNAMED",
    "IMPLICIT", "INITIALDLY", "LATCH", "MULTIDRIVEN", "PINMISSING", "PROCASSINIT", "SELRANGE", "SYNCASYNCNET",
    "UNDRIVEN", "UNOPTFLAT", "UNSIGNED", "UNUSEDSIGNAL", "UNUSEDPARAM", "WIDTHEXPAND", "WIDTHTRUNC", "WIDTHXZEXPAND",
];

/// Above this, the C++ is compiled file by file on two processors, and not as one unit.
const LARGE: u64 = 600_000;

/// Part of every key; `shim.cpp` and this file are not hashed otherwise.
const HARNESS: &str = concat!("2 ", include_str!("shim.cpp"));

pub(crate) struct Built {
    pub library: PathBuf,
    /// Wave file extension, when waves were asked for.
    pub wave: Option<&'static str>,
}

pub(crate) fn build(name: &str, text: &str, ports: &[PortInfo], options: &Options) -> Result<Built, Error> {
    let verilator = Verilator::find()?;
    let wave = options.wave.as_ref().map(|_| if has_fst_headers() { "fst" } else { "vcd" });
    let mut sources: String = FOREIGN.iter().map(|rule| format!("/* verilator lint_off {rule} */\n")).collect();
    for path in &options.sources {
        sources += &(fs::read_to_string(path).map_err(io_error(path))? + "\n");
    }
    let flags: Vec<String> = FLAGS
        .iter()
        .map(|flag| flag.to_string())
        .chain(WAIVED.iter().chain(&options.waive).map(|rule| format!("-Wno-{rule}")))
        .chain(wave.map(|kind| format!("--trace-{kind}")))
        .chain(options.coverage.then(|| "--coverage-line".into()))
        .collect();
    let cases = port_cases(name, text, ports)?;

    // the Rust lines in the comments change more often than the circuit
    let code: String = text.lines().map(|l| l.split("  // ").next().unwrap_or(l)).collect();
    let mut hash = Sha256::new();
    for part in [HARNESS, &verilator.version, tool::compiler_version()?, &flags.join(" "), &sources, &cases, &code] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let key: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();

    let models = paths::models_dir();
    let entry = models.join(format!("{name}-{key}"));
    let built = Built { library: entry.join("model.so"), wave };
    once(&entry, |dir| {
        if let Some(text) = &options.announce {
            // Nobody may be there to read it.
            let _ = writeln!(io::stderr(), "{text}");
        }
        let job = Job { name, dir, verilator, wave, coverage: options.coverage };
        fs::write(dir.join("top.v"), format!("{text}\n")).map_err(io_error(dir))?;
        fs::write(dir.join("sources.v"), &sources).map_err(io_error(dir))?;
        fs::write(dir.join("ports.h"), format!("#define FERROCE_PORTS {cases}\n")).map_err(io_error(dir))?;
        let runtime = job.runtime(&models)?;
        let mut command = verilator.command();
        command.current_dir(dir).args(&flags).args(["--top-module", "top", "--prefix", "Vtop", "--Mdir", "obj"]);
        command.args(["top.v", "sources.v"]);
        job.run("Verilator", &mut command)?;
        job.compile(&runtime)?;
        fs::remove_dir_all(dir.join("obj")).map_err(io_error(dir))
    })?;
    Ok(built)
}

/// Runs `make` in a fresh directory which then becomes `entry`, unless `entry` exists; once among all processes. A
/// failed directory stays for inspection as `<entry>.failed`.
fn once(entry: &Path, make: impl FnOnce(&Path) -> Result<(), Error>) -> Result<(), Error> {
    if entry.exists() {
        return Ok(());
    }
    let with = |suffix: &str| PathBuf::from(format!("{}.{suffix}", entry.display()));
    fs::create_dir_all(entry.parent().expect("a cache directory")).map_err(io_error(entry))?;
    let lock = fs::File::create(with("lock")).map_err(io_error(entry))?;
    lock.lock().map_err(io_error(entry))?;
    if entry.exists() {
        return Ok(());
    }
    let (fresh, failed) = (with("new"), with("failed"));
    for old in [&fresh, &failed] {
        let _ = fs::remove_dir_all(old); // left by an interrupted or failed run, if any
    }
    fs::create_dir(&fresh).map_err(io_error(&fresh))?;
    let made = make(&fresh);
    fs::rename(&fresh, if made.is_ok() { entry } else { &failed }).map_err(io_error(&fresh))?;
    made
}

/// One build, in `dir`.
struct Job<'a> {
    name: &'a str,
    dir: &'a Path,
    verilator: &'a Verilator,
    wave: Option<&'static str>,
    coverage: bool,
}

impl Job<'_> {
    fn run(&self, step: &'static str, command: &mut Command) -> Result<(), Error> {
        let dir = format!("{}.failed", self.dir.with_extension("").display());
        let said = process::run(command);
        said.map(drop).map_err(|output| Error::Build { step, name: self.name.into(), dir, output })
    }

    fn gpp(&self, dir: &Path) -> Command {
        let include = self.verilator.root.join("include");
        let mut command = Command::new("g++");
        command.current_dir(dir).args(["-std=c++20", "-fPIC", "-fvisibility=hidden", "-w"]);
        // Unique symbols are shared by everything a process loads: each model must keep to its own.
        command.args(["-fno-gnu-unique", "-DVL_TIME_CONTEXT", "-DVL_IGNORE_UNKNOWN_ARCH"]);
        command.arg(format!("-DVM_COVERAGE={}", u8::from(self.coverage)));
        command.arg(format!("-DVM_TRACE={}", u8::from(self.wave.is_some())));
        if let Some(kind) = self.wave {
            let upper = kind.to_uppercase();
            command
                .args([format!("-DVM_TRACE_{upper}=1"), format!("-include{}/verilated_{kind}_c.h", include.display())]);
            command.arg(format!("-DFERROCE_TRACE=Verilated{}{}C", &upper[..1], &kind[1..]));
        }
        command.arg("-I").arg(&include).arg("-I").arg(include.join("vltstd"));
        command
    }

    /// What all models with these options share: Verilator's own library `runtime.o`, and its header `common.h`, which
    /// takes most of the time of a small block if it is not precompiled.
    fn runtime(&self, models: &Path) -> Result<PathBuf, Error> {
        let mut units = vec!["verilated".to_string(), "verilated_threads".into()];
        units.extend(self.wave.map(|kind| format!("verilated_{kind}_c")));
        units.extend(self.coverage.then(|| "verilated_cov".into()));
        let mut hash = Sha256::new();
        hash.update(format!("{HARNESS} {} {} {units:?}", self.verilator.version, tool::compiler_version()?));
        let key: String = hash.finalize().iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        let entry = models.join(format!("runtime-{key}"));
        once(&entry, |dir| {
            let text: String = units.iter().map(|unit| format!("#include \"{unit}.cpp\"\n")).collect();
            fs::write(dir.join("runtime.cpp"), text).map_err(io_error(dir))?;
            let trace = self.wave.map(|kind| format!("#include \"verilated_{kind}_c.h\"\n"));
            let text = format!("#include \"verilated.h\"\n{}", trace.unwrap_or_default());
            fs::write(dir.join("common.h"), text).map_err(io_error(dir))?;
            self.run("g++", self.gpp(dir).args(["-O2", "-c", "runtime.cpp"]))?;
            self.run("g++", self.gpp(dir).args(["-O2", "-x", "c++-header", "common.h"]))
        })?;
        Ok(entry)
    }

    fn compile(&self, runtime: &Path) -> Result<(), Error> {
        let obj = self.dir.join("obj");
        let mut units = Vec::new();
        let mut size = 0;
        for file in fs::read_dir(&obj).map_err(io_error(&obj))? {
            let file = file.map_err(io_error(&obj))?;
            let unit = file.file_name().to_string_lossy().into_owned();
            if unit.ends_with(".cpp") {
                size += file.metadata().map_err(io_error(&obj))?.len();
                units.push(unit);
            }
        }
        units.sort();
        fs::write(obj.join("shim.cpp"), format!("#include \"../ports.h\"\n{}", include_str!("shim.cpp")))
            .map_err(io_error(&obj))?;
        units.push("shim.cpp".into());
        let mut link = self.gpp(&obj);
        link.args(["-shared", "-o", "../model.so", "-include"]).arg(runtime.join("common.h"));
        if size < LARGE {
            let text: String = units.iter().map(|unit| format!("#include \"{unit}\"\n")).collect();
            fs::write(obj.join("all.cpp"), text).map_err(io_error(&obj))?;
            link.args(["-O2", "all.cpp"]);
        } else {
            self.compile_each(&obj, &units, runtime)?;
            link.args(units.iter().map(|unit| format!("{unit}.o")));
        }
        link.arg(runtime.join("runtime.o"))
            .args(if self.wave == Some("fst") { &["-llz4", "-lz"][..] } else { &[] })
            .arg("-lpthread");
        self.run("g++", &mut link)
    }

    /// Two compilers at a time: the machines this is for have few processors, and a large unit takes a lot of memory.
    fn compile_each(&self, obj: &Path, units: &[String], runtime: &Path) -> Result<(), Error> {
        let left = Mutex::new(units.iter());
        let work = || {
            loop {
                let Some(unit) = left.lock().expect("no panic holds it").next() else { return Ok(()) };
                // What Verilator calls slow runs once per instance.
                let level = if unit.contains("Slow") { "-O0" } else { "-O2" };
                let mut command = self.gpp(obj);
                command.arg("-include").arg(runtime.join("common.h"));
                self.run("g++", command.args([level, "-c", unit, "-o", &format!("{unit}.o")]))?;
            }
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(work);
            work().and(other.join().expect("compiling does not panic"))
        })
    }
}

/// `case` lines from port number to C++ variable.
fn port_cases(name: &str, text: &str, ports: &[PortInfo]) -> Result<String, Error> {
    let mut cases = String::new();
    for (i, port) in ports.iter().enumerate() {
        let plain = port.name.replace('$', "_");
        // The emitter appends `_k` to a keyword of SystemVerilog.
        let emitted = [plain.clone(), plain + "_k"].into_iter().find(|word| has_word(text, word));
        let emitted = emitted.ok_or_else(|| Error::Port { name: name.into(), port: port.name.clone() })?;
        cases += &format!("case {i}: return &top->{}; ", emitted.replace("__", "___05F"));
    }
    Ok(cases)
}

fn has_word(text: &str, word: &str) -> bool {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_' || c == '$');
    text.match_indices(word)
        .any(|(at, _)| !part(text[..at].chars().next_back()) && !part(text[at + word.len()..].chars().next()))
}

fn has_fst_headers() -> bool {
    let args = ["-fsyntax-only", "-include", "lz4.h", "-include", "zlib.h", "-x", "c++", "/dev/null"];
    process::run(Command::new("g++").args(args)).is_ok()
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let what = path.display().to_string();
    move |source| Error::Io { what, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_made_once_and_a_failure_is_tried_again() {
        let dir = std::env::temp_dir().join(format!("ferroce-once-{}", std::process::id()));
        let entry = dir.join("entry");
        let fail = |dir: &Path| Err(io_error(dir)(io::Error::other("on purpose")));
        once(&entry, fail).unwrap_err();
        assert!(!entry.exists() && dir.join("entry.failed").exists());
        once(&entry, |dir| fs::write(dir.join("made"), "").map_err(io_error(dir))).unwrap();
        once(&entry, |_| panic!("made again")).unwrap();
        assert!(entry.join("made").exists());
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_port_is_found_as_a_whole_word() {
        let text = "input a_data, input wire_k, input x";
        let cases = |name| port_cases("m", text, &[PortInfo::input(name, 1)]);
        assert_eq!(cases("a$data").unwrap(), "case 0: return &top->a_data; ");
        assert_eq!(cases("wire").unwrap(), "case 0: return &top->wire_k; ");
        assert!(cases("data").is_err());
    }
}
