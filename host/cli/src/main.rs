//! The `ferroce` command.

mod bench;
mod demo;
mod report;
mod synth;

use crate::report::note;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Ferroce: an open RoCE v2 NIC, simulated down to the gate.
#[derive(Parser)]
#[command(name = "ferroce", bin_name = "./ferroce", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Moves a file by RDMA between two simulated NICs, through the real driver, and shows how fast.
    Demo(demo::Args),
    /// Measures and compares with what was asked.
    Bench(bench::Args),
    /// Size and LUT levels on FPGAs, by yosys.
    Synth(synth::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Demo(args) => demo::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Synth(args) => synth::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            note!("ferroce: {e:#}");
            // As a shell reports a program that Ctrl-C has ended.
            if demo::interrupted() { ExitCode::from(130) } else { ExitCode::FAILURE }
        }
    }
}
