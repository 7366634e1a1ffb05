//! `./ferroce test --all`: every test of both workspaces, and those that draw by chance under many seeds. One test under one seed is a
//! job. What has passed is noted in `target/all.passed` by the text of the program it is in, so a run that was broken off goes on
//! where it was, and after a change only tests whose program has changed run again.

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::{BTreeSet, HashSet};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Runs all tests under many seeds; goes on where it was broken off.
#[derive(Parser)]
#[command(name = "all", bin_name = "./ferroce test --all")]
struct Args {
    /// Only every n-th seed, from the i-th on: for n machines.
    #[arg(long, value_name = "i/n", value_parser = shard, default_value = "1/1")]
    shard: (u64, u64),
    /// Seeds for tests that draw by chance.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    seeds: u64,
    /// Only tests whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Runs again what has passed before.
    #[arg(long)]
    fresh: bool,
    /// Tests at a time; as many as there are processors by default.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Only checks these options.
    #[arg(long, hide = true)]
    check: bool,
}

fn shard(text: &str) -> Result<(u64, u64), String> {
    let parts = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
    parts.filter(|(i, n)| (1..=*n).contains(i)).ok_or_else(|| "i/n with i from 1 to n, such as 2/8".into())
}

/// A program with tests in it.
struct Program {
    /// What cargo calls it: package and target, as arguments.
    cargo: String,
    package: String,
    folder: PathBuf,
    path: PathBuf,
    /// Of its text and of the firmware: what passed with one passes with the same.
    hash: String,
    tests: Vec<String>,
}

/// What one run is about.
struct Run<'a> {
    args: &'a Args,
    programs: Vec<Program>,
    passed: Mutex<Passed>,
    began: Instant,
}

/// What has passed, on disk and here.
struct Passed {
    file: File,
    lines: HashSet<String>,
    /// Tests that draw by chance, by program and name.
    random: BTreeSet<(usize, usize)>,
    /// Failures, as the commands that repeat them.
    failed: Vec<String>,
    done: usize,
    before: usize,
    total: usize,
    /// Sum of the times of `done`.
    busy: Duration,
}

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this crate is at tests")
}

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| top().join("target"), PathBuf::from)
}

/// Builds the tests of a workspace and asks each program for its tests.
fn programs(manifest: &Path, target: &Path, firmware: &[u8]) -> Result<Vec<Program>> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics", "--manifest-path"]);
    cargo.arg(manifest).arg("--target-dir").arg(target).stderr(std::process::Stdio::inherit());
    let out = cargo.current_dir(manifest.parent().expect("a folder")).output().context("cannot run cargo")?;
    ensure!(out.status.success(), "the tests of {} do not build", manifest.display());
    let mut programs = Vec::new();
    for line in String::from_utf8_lossy(&out.stdout).lines() {
        let message: Value = serde_json::from_str(line).with_context(|| format!("cargo says {line}"))?;
        let (Some(path), true) = (message["executable"].as_str(), message["profile"]["test"] == true) else { continue };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
        let own = PathBuf::from(text(&message["manifest_path"]));
        let folder = own.parent().context("a manifest has a folder")?.to_path_buf();
        let package = package_name(&own)?;
        let target = match message["target"]["kind"][0].as_str() {
            Some("test") => format!("--test {}", text(&message["target"]["name"])),
            Some("bin") => format!("--bin {}", text(&message["target"]["name"])),
            _ => "--lib".into(),
        };
        let outside = if manifest.parent() == Some(top()) { "" } else { "--manifest-path firmware/Cargo.toml " };
        let out = Command::new(path).current_dir(&folder).args(["--list", "--format", "terse"]).output();
        let out = out.with_context(|| format!("cannot run {path}"))?;
        let list = String::from_utf8_lossy(&out.stdout).into_owned();
        let tests: Vec<_> = list.lines().filter_map(|l| l.strip_suffix(": test")).map(String::from).collect();
        let mut hash = Sha256::new();
        hash.update(std::fs::read(path)?);
        hash.update(firmware);
        for (name, value) in settings() {
            hash.update(format!("{name}={value};"));
        }
        let hash = hash.finalize().iter().take(8).map(|b| format!("{b:02x}")).collect();
        let cargo = format!("cargo test {outside}--package {package} {target}");
        programs.push(Program { cargo, package, folder, path: path.into(), hash, tests });
    }
    Ok(programs)
}

fn package_name(manifest: &Path) -> Result<String> {
    let text = std::fs::read_to_string(manifest).with_context(|| format!("cannot read {}", manifest.display()))?;
    let name = text.lines().find_map(|l| l.strip_prefix("name = "));
    Ok(name.with_context(|| format!("no name in {}", manifest.display()))?.trim_matches('"').into())
}

/// Settings that change what tests do, to be repeated with them.
fn settings() -> Vec<(&'static str, String)> {
    let names = ["FERROCE_SCALE", "FERROCE_FUZZ_SEED", "FERROCE_VERILATOR", "FERROCE_FIRMWARE"];
    names.into_iter().filter_map(|name| Some((name, std::env::var(name).ok()?))).collect()
}

impl Run<'_> {
    /// Runs jobs until there are no more.
    fn work(&self, jobs: &Mutex<impl Iterator<Item = (u64, usize, usize)>>) {
        loop {
            let Some(job) = jobs.lock().expect("no panic holds it").next() else { return };
            self.job(job);
        }
    }

    fn passed(&self) -> std::sync::MutexGuard<'_, Passed> {
        self.passed.lock().expect("no panic holds it")
    }

    fn job(&self, (seed, p, t): (u64, usize, usize)) {
        let (program, test) = (&self.programs[p], &self.programs[p].tests[t]);
        let first = seed + 1 == self.args.shard.0;
        let line = |kind: &str| format!("{} {test} {seed} {kind}", program.hash);
        {
            let mut passed = self.passed();
            if !first && !passed.random.contains(&(p, t)) {
                return;
            }
            if let Some(kind) = ["fixed", "random"].into_iter().find(|kind| passed.lines.contains(&line(kind))) {
                passed.before += 1;
                if kind == "random" {
                    self.repeat(&mut passed, p, t, first);
                }
                return;
            }
        }
        let start = Instant::now();
        let out = Command::new(&program.path)
            .args(["--exact", test, "--include-ignored", "--show-output", "--test-threads=1"])
            .current_dir(&program.folder)
            .env("CARGO_MANIFEST_DIR", &program.folder)
            .env("CARGO_PKG_NAME", &program.package)
            .env("FERROCE_SEED", seed.to_string())
            .output();
        let took = start.elapsed();
        let (fine, text) = match out {
            Ok(out) => {
                let text = [out.stdout, out.stderr].map(|t| String::from_utf8_lossy(&t).into_owned()).concat();
                (out.status.success() && text.contains("1 passed"), text)
            }
            Err(e) => (false, e.to_string()),
        };
        let random = text.contains(verilate::RANDOM) && !text.contains(verilate::WHOLE);
        let mut passed = self.passed();
        passed.done += 1;
        passed.busy += took;
        if random {
            self.repeat(&mut passed, p, t, first);
        }
        let verdict = if fine { "ok" } else { "FAILED" };
        let count = passed.done + passed.before;
        println!(
            "[{count}/{}{}] {} {test}, seed {seed}: {verdict} in {:.1} s",
            passed.total,
            self.left(&passed),
            program.package,
            took.as_secs_f64()
        );
        if fine {
            let line = line(if random { "random" } else { "fixed" });
            writeln!(passed.file, "{line}").unwrap_or_else(|e| eprintln!("ferroce: cannot note it: {e}"));
            passed.lines.insert(line);
        } else {
            let settings: String = settings().iter().map(|(name, value)| format!("{name}={value} ")).collect();
            let command = format!(
                "FERROCE_SEED={seed} {settings}{} -- --exact {test} --include-ignored --nocapture",
                program.cargo
            );
            println!("{text}\nrepeat it by: {command}");
            passed.failed.push(command);
        }
    }

    /// A test that draws by chance runs under the shard's other seeds too.
    fn repeat(&self, passed: &mut Passed, p: usize, t: usize, first: bool) {
        if first && passed.random.insert((p, t)) {
            let ((i, n), seeds) = (self.args.shard, self.args.seeds);
            passed.total += (i - 1..seeds).step_by(n as usize).count() - 1;
        }
    }

    /// How long it may take yet, once that can be told.
    fn left(&self, passed: &Passed) -> String {
        let rest = passed.total.saturating_sub(passed.done + passed.before);
        let each = self.began.elapsed().as_secs_f64() / passed.done.max(1) as f64;
        match passed.done {
            0..20 => String::new(),
            _ => format!(", {:.0} min left", (each * rest as f64 / 60.0).ceil()),
        }
    }
}

fn run(args: &Args) -> Result<bool> {
    let ((i, n), seeds) = (args.shard, args.seeds);
    ensure!(i <= seeds, "shard {i}/{n} has none of {seeds} seeds");
    let firmware = std::fs::read(verilate::firmware_image()?).context("cannot read the firmware image")?;
    let mut programs = self::programs(&top().join("Cargo.toml"), &target(), &firmware)?;
    programs.extend(self::programs(&top().join("firmware/Cargo.toml"), &target().join("firmware"), &firmware)?);
    programs.iter_mut().for_each(|p| p.tests.retain(|t| t.contains(&args.only)));
    let total = programs.iter().map(|p| p.tests.len()).sum();
    if total == 0 {
        bail!("no test has `{}` in its name", args.only);
    }
    let path = target().join("all.passed");
    if args.fresh && path.exists() {
        std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    let file = OpenOptions::new().create(true).append(true).open(&path);
    let file = file.with_context(|| format!("cannot write {}", path.display()))?;
    let passed = Passed {
        file,
        lines: known.lines().map(String::from).collect(),
        random: BTreeSet::new(),
        failed: Vec::new(),
        done: 0,
        before: 0,
        total,
        busy: Duration::ZERO,
    };
    println!(
        "{total} tests in {} programs; those that draw by chance under {seeds} seeds, shard {i}/{n}",
        programs.len()
    );
    let run = Run { args, programs, passed: Mutex::new(passed), began: Instant::now() };
    let all: Vec<_> = run
        .programs
        .iter()
        .enumerate()
        .flat_map(|(p, program)| (0..program.tests.len()).map(move |t| (p, t)))
        .collect();
    let workers = args.jobs.map_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()), usize::from);
    // Seed after seed: the first tells which tests the others are for.
    for seed in (i - 1..seeds).step_by(n as usize) {
        let jobs = Mutex::new(all.iter().map(|(p, t)| (seed, *p, *t)));
        std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(|| run.work(&jobs)))));
    }
    let passed = run.passed();
    let minutes = |d: Duration| d.as_secs_f64() / 60.0;
    println!(
        "{} of {} jobs passed ({} of them in earlier runs), {} failed; {:.1} min, {:.1} min of tests",
        passed.done + passed.before - passed.failed.len(),
        passed.total,
        passed.before,
        passed.failed.len(),
        minutes(run.began.elapsed()),
        minutes(passed.busy)
    );
    passed.failed.iter().for_each(|command| println!("failed: {command}"));
    Ok(passed.failed.is_empty())
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.check {
        return ExitCode::SUCCESS;
    }
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("ferroce: {e:#}");
            ExitCode::FAILURE
        }
    }
}
