//! `ferroce bench`: figures beside their bars.

mod core;
mod latency;
mod load;
mod loss;
mod measure;

use crate::report::{say, table};
use anyhow::{Result, bail};
use serde::Serialize;

/// What to measure.
#[derive(clap::Args)]
pub struct Args {
    /// Which bench.
    #[arg(value_enum, default_value = "core")]
    bench: Bench,
    /// A list of {"figure", "value", "unit", "bar", "limit", "meets"} instead of the table.
    #[arg(long)]
    json: bool,
    /// Only figures whose name contains this text.
    #[arg(long, default_value = "")]
    only: String,
    /// PCIe Gen4 x16 instead of Gen3 x16.
    #[arg(long)]
    gen4: bool,
    /// Only with a board's MAC, which takes 250 ns more on each side (else, of `core`, a column of its own, unless `--json`).
    #[arg(long)]
    board: bool,
    /// Without the column of the board's MAC, in half the time.
    #[arg(long, conflicts_with = "board")]
    no_board: bool,
    /// Shows, for each latency, the cycle of all that passes between NICs, hosts and cable.
    #[arg(long)]
    stages: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Bench {
    /// The NIC core in simulation, in cycles.
    Core,
    /// Recovery of lost packets, and goodput under loss.
    Loss,
}

/// A measured figure and what was asked of it.
#[derive(Serialize)]
pub struct Figure {
    /// What was measured.
    pub figure: String,
    /// The value.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// The value asked for.
    pub bar: f64,
    /// The value that no implementation can pass, where there is one.
    pub limit: Option<f64>,
    /// The bar is met.
    pub meets: bool,
    /// The value with a board's MAC.
    #[serde(skip)]
    pub board: Option<f64>,
    /// Share of the PCIe link in use, up and down, in percent.
    #[serde(skip)]
    pub pcie: Option<(f64, f64)>,
}

/// What one run of a figure gave.
#[derive(Clone, Copy)]
pub struct Run {
    /// The value.
    pub value: f64,
    /// Share of host 0's PCIe link in use, up and down, in percent; where it matters.
    pub pcie: Option<(f64, f64)>,
}

impl Figure {
    /// A figure that should be at least `bar`.
    pub fn at_least(figure: impl Into<String>, value: f64, unit: &'static str, bar: f64, limit: Option<f64>) -> Self {
        Figure { figure: figure.into(), value, unit, bar, limit, meets: value >= bar, board: None, pcie: None }
    }
    /// A figure that should be at most `bar`.
    pub fn at_most(figure: impl Into<String>, value: f64, unit: &'static str, bar: f64, limit: Option<f64>) -> Self {
        Figure { figure: figure.into(), value, unit, bar, limit, meets: value <= bar, board: None, pcie: None }
    }
}

/// Whether figures are measured with a board's MAC, which takes 250 ns on each side.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Board {
    /// All of them, with it only.
    Only,
    /// Each of them also with it.
    Beside,
    /// None.
    Without,
}

/// Runs a bench and prints it. The figures that miss their bar do not make the command fail: they are shown.
pub fn run(args: &Args) -> Result<()> {
    let board = match (args.board, args.no_board || args.json, args.bench) {
        (true, ..) => Board::Only,
        (_, true, _) | (.., Bench::Loss) => Board::Without,
        _ => Board::Beside,
    };
    let mut bench = measure::Bench::new(args.gen4, board, &args.only);
    match args.bench {
        Bench::Core => core::figures(&mut bench, args.stages)?,
        Bench::Loss => loss::figures(&mut bench)?,
    }
    let figures = bench.done();
    if figures.is_empty() {
        bail!("no figure's name contains {:?}; without --only all are measured and named", args.only);
    }
    if args.json {
        return say(&serde_json::to_string_pretty(&figures)?);
    }
    print(&figures)
}

/// A table of figures beside their bars.
pub fn print(figures: &[Figure]) -> Result<()> {
    let number = |v: f64| if v >= 1000.0 { format!("{v:.0}") } else { format!("{v:.2}") };
    let rows: Vec<_> = figures
        .iter()
        .map(|f| {
            let pcie = f.pcie.map_or(String::new(), |(u, d)| format!("{u:.0} / {d:.0} %"));
            let limit = f.limit.map_or(String::new(), number);
            let meets = if f.meets { "yes" } else { "NO" };
            let board = f.board.map_or(String::new(), number);
            vec![f.figure.clone(), number(f.value), board, f.unit.into(), number(f.bar), limit, meets.into(), pcie]
        })
        .collect();
    let header = ["figure", "value", "board", "unit", "bar", "limit", "meets", "PCIe up / down"];
    // A column that says nothing is left out.
    let said: Vec<_> = (0..header.len()).filter(|&i| rows.iter().any(|r: &Vec<String>| !r[i].is_empty())).collect();
    let keep = |row: &[String]| said.iter().map(|&i| row[i].clone()).collect();
    let header: Vec<_> = said.iter().map(|&i| header[i]).collect();
    say(&table(&header, &rows.iter().map(|r| keep(r)).collect::<Vec<_>>()))
}
