//! `ferroce synth core`: what yosys makes of the core: area per block, LUT levels, the worst paths.
//!
//! Yosys maps each block of the core on its own, once for one text of the block, and then what is left of the core around them.
//! A block that comes out deeper than the bars by the quick way is mapped by a longer one too (see `Target::ways`).
//! Area is the sum. The levels are counted on the netlists of all blocks joined to the whole core, so that paths which cross
//! blocks count whole. No logic is shared or optimised across the walls of blocks.
//!
//! It estimates size and depth, not timing closure: nothing is placed.

mod design;
mod levels;
mod netlist;
#[cfg(test)]
mod tests;
mod walls;
mod yosys;

use crate::bench::{Figure, print};
use crate::report::{note, say, table};
use anyhow::{Result, bail};
use design::Design;
use levels::Levels;
use netlist::{Area, Netlist};
use std::collections::HashMap;
use std::path::PathBuf;
use walls::Walls;
use yosys::Yosys;

/// What to synthesise.
#[derive(clap::Args)]
pub struct Args {
    /// Which design.
    #[arg(value_enum, default_value = "core")]
    design: What,
    /// Only this target.
    #[arg(long, value_enum)]
    target: Option<Target>,
    /// Only the blocks whose name contains this text, each on its own: its ports count as ends of paths.
    #[arg(long)]
    only: Option<String>,
    /// A list of {"figure", "value", "unit", "bar", "limit", "meets"} instead of the tables.
    #[arg(long, conflicts_with = "only")]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum What {
    /// The NIC core.
    Core,
}

/// FPGA family, and the core that is meant for it.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Target {
    /// UltraScale+, 512 bits, 256 QPs.
    Xcup,
    /// ECP5, 64 bits, 32 QPs.
    Ecp5,
}

/// What a target's core may take.
struct Bars {
    lut: u64,
    /// In whole block RAMs.
    ram: f64,
    ultra: u64,
    levels: u32,
    loops: u32,
}

impl Target {
    /// Datapath width and queue pairs.
    fn core(self) -> (usize, usize) {
        match self {
            Target::Xcup => (512, 256),
            Target::Ecp5 => (64, 32),
        }
    }
    /// Yosys commands that map module `top`, the quickest first: several ways, as vendors' tools have strategies, for how deep
    /// a block comes out by one way changes by a level with every edit.
    fn ways(self, top: &str) -> Vec<String> {
        let (define, commands) = match self {
            Target::Xcup => {
                let map = "synth_xilinx -family xcup -flatten -noiopad -noclkbuf";
                ("", vec![map.to_string(), format!("scratchpad -copy abc9.script.flow3 abc9.script\n{map}")])
            }
            // abc9 makes a block as fast as it can, and then small. A block of less than three LUT4 levels need not be faster.
            Target::Ecp5 => {
                let map = "scratchpad -set abc9.D 2000\nsynth_ecp5 -abc9";
                let flow = |flow| format!("scratchpad -copy abc9.script.{flow} abc9.script\n{map}");
                (" -DNO_ULTRARAM", vec![map.to_string(), flow("flow3"), flow("flow2")])
            }
        };
        let read = format!("read_verilog -sv -DSYNTHESIS{define} block.v\nhierarchy -check -top {top}\n");
        commands.into_iter().map(|command| format!("{read}{command} -top {top}\n")).collect()
    }
    /// Maps block `top` of this text the first way by which it keeps within the levels of the bars, or else the one by which
    /// it comes nearest. Gives the file of its netlist.
    fn map(self, tool: &Yosys, top: &str, text: &str) -> Result<PathBuf> {
        let bars = self.bars();
        let mut best: Option<((u32, u32), PathBuf)> = None;
        for way in self.ways(top) {
            let path = tool.run(&format!("{}, {top}", self.name()), text, &way)?;
            let block =
                Levels::of(&Netlist::read(&path, top, &HashMap::new())?, bars.levels, bars.loops)?.blocks.remove(0);
            let beyond = (block.inside.saturating_sub(bars.levels), block.looped.saturating_sub(bars.loops));
            if best.as_ref().is_none_or(|(least, _)| beyond < *least) {
                best = Some((beyond, path));
            }
            if beyond == (0, 0) {
                break;
            }
        }
        Ok(best.expect("there is a way").1)
    }
    fn name(self) -> &'static str {
        match self {
            Target::Xcup => "UltraScale+, 512 bit, 256 QPs",
            Target::Ecp5 => "ECP5, 64 bit, 32 QPs",
        }
    }
    fn bars(self) -> Bars {
        match self {
            Target::Xcup => Bars { lut: 140_000, ram: 300.0, ultra: 48, levels: 8, loops: 6 },
            Target::Ecp5 => Bars { lut: 55_000, ram: 190.0, ultra: 0, levels: 8, loops: 8 },
        }
    }
    /// Names of LUT and block RAM.
    fn units(self) -> (&'static str, &'static str) {
        match self {
            Target::Xcup => ("LUT6", "RAMB36"),
            Target::Ecp5 => ("LUT4", "DP16KD"),
        }
    }
}

/// Runs the synthesis and prints what came out.
pub fn run(args: &Args) -> Result<()> {
    let What::Core = args.design;
    note!("starting yosys (for the first time this takes a minute or two)");
    let tool = Yosys::find()?;
    let mut figures = Vec::new();
    for target in [Target::Xcup, Target::Ecp5] {
        if args.target.is_some_and(|t| t != target) {
            continue;
        }
        let (width, qps) = target.core();
        note!("{}: emitting the core's text", target.name());
        let mut verilog = testbed::core_verilog(width, qps)?;
        // Another hash of the text, by an edit anywhere, is no reason to map the registers anew, which then come out otherwise.
        let end = verilog.find(" /* hash of this text").expect("the core tells its hash");
        verilog.replace_range(end - 8..end, "5a5a5a5a");
        if target == Target::Ecp5 {
            // It has one kind of block RAM only.
            verilog = verilog.replace(", ram_style = \"ultra\"", "");
        }
        let design = Design::parse(&verilog, &std::fs::read_to_string(verilate::picorv32_source()?)?);
        match &args.only {
            Some(only) => some_blocks(&tool, target, &design, only)?,
            None => figures.extend(whole(&tool, target, &design, args.json)?),
        }
    }
    if args.json {
        say(&serde_json::to_string_pretty(&figures)?)
    } else if !figures.is_empty() {
        print(&figures)
    } else {
        Ok(())
    }
}

/// The blocks named like `only`, each on its own.
fn some_blocks(tool: &Yosys, target: Target, design: &Design, only: &str) -> Result<()> {
    let wanted = only.to_lowercase();
    let parts = design.parts("top");
    let chosen: Vec<_> = parts.iter().filter(|p| p.to_lowercase().contains(&wanted)).collect();
    if chosen.is_empty() {
        bail!("no block of the core is called {only}. There are: {}", parts.join(", "));
    }
    for block in chosen {
        let what = format!("{}, {block}", target.name());
        let path = target.map(tool, block, &design.closure(block))?;
        let n = Netlist::read(&path, block, &HashMap::new())?;
        let bars = target.bars();
        let levels = Levels::of(&n, bars.levels, bars.loops)?;
        say(&format!("{what}\n{}{}", report(target, &n, &levels), at_the_walls(&Walls::of(&n)?)))?;
    }
    Ok(())
}

/// The whole core; its figures.
fn whole(tool: &Yosys, target: Target, design: &Design, quiet: bool) -> Result<Vec<Figure>> {
    let mut parts = HashMap::new();
    for block in design.parts("top") {
        parts.insert(block.to_string(), target.map(tool, block, &design.closure(block))?);
    }
    let rest = tool.run(&format!("{}, the rest", target.name()), &design.shell("top"), &target.ways("top")[0])?;
    let n = Netlist::read(&rest, "top", &parts)?;
    let bars = target.bars();
    let levels = Levels::of(&n, bars.levels, bars.loops)?;
    if !quiet {
        let what = format!("{}: blocks mapped one by one, levels of the whole", target.name());
        say(&format!("{what}\n{}", report(target, &n, &levels)))?;
    }
    let area = total(&n);
    let deepest = levels.histogram.keys().max().copied().unwrap_or(0);
    let looped = levels.blocks.iter().map(|b| b.looped).max().unwrap_or(0);
    let (lut, ram) = target.units();
    let figure = |what: String, value: f64, unit, bar: f64| {
        Figure::at_most(format!("{}: {what}", target.name()), value, unit, bar, None)
    };
    let mut figures = vec![
        figure(lut.into(), area.lut as f64, "LUTs", bars.lut as f64),
        figure(ram.into(), area.half_rams as f64 / 2.0, "RAMs", bars.ram),
    ];
    if bars.ultra > 0 {
        figures.push(figure("URAM".into(), area.ultra as f64, "RAMs", bars.ultra as f64));
    }
    figures.push(figure("deepest path".into(), f64::from(deepest), "levels", f64::from(bars.levels)));
    figures.push(figure("deepest loop through state".into(), f64::from(looped), "levels", f64::from(bars.loops)));
    figures.push(figure("RAMs without output register".into(), levels.bare_rams.len() as f64, "RAMs", 0.0));
    Ok(figures)
}

fn total(n: &Netlist) -> Area {
    let mut sum = Area::default();
    n.area.iter().for_each(|a| sum += *a);
    sum
}

/// The ports that leave their neighbours the least.
fn at_the_walls(walls: &Walls) -> String {
    let sides = [
        ("input to register", &walls.inward),
        ("register to output", &walls.outward),
        ("input to output", &walls.through),
    ];
    let tables = sides.map(|(what, depths)| {
        let rows: Vec<_> =
            depths.iter().take(12).map(|(levels, port)| vec![levels.to_string(), port.clone()]).collect();
        table(&["levels", what], &rows)
    });
    tables.join("\n") + "\n"
}

/// Tables of blocks, levels and paths.
fn report(target: Target, n: &Netlist, l: &Levels) -> String {
    let row = |name: &str, a: &Area, levels: [u32; 3], over: usize, bare: usize| {
        let [deepest, inside, looped] = levels.map(|x| x.to_string());
        let rams = format!("{}", a.half_rams as f64 / 2.0);
        let counts = [a.lut, a.ff].map(|x| x.to_string());
        let [lut, ff] = counts;
        vec![
            name.into(),
            lut,
            ff,
            rams,
            a.ultra.to_string(),
            deepest,
            inside,
            looped,
            over.to_string(),
            bare.to_string(),
        ]
    };
    let mut rows: Vec<_> = (0..n.blocks.len()).collect();
    rows.sort_by_key(|i| std::cmp::Reverse(n.area[*i].lut));
    let mut rows: Vec<Vec<String>> = rows
        .into_iter()
        .map(|i| {
            let b = &l.blocks[i];
            row(&n.blocks[i], &n.area[i], [b.deepest, b.inside, b.looped], b.over, b.bare_rams)
        })
        .collect();
    if n.blocks.len() > 1 {
        let worst = |f: fn(&levels::BlockLevels) -> u32| l.blocks.iter().map(f).max().unwrap_or(0);
        let all = [worst(|b| b.deepest), worst(|b| b.inside), worst(|b| b.looped)];
        let over = l.blocks.iter().map(|b| b.over).sum();
        rows.push(row("whole core", &total(n), all, over, l.bare_rams.len()));
    }
    let (lut, ram) = target.units();
    let over = format!("ends over {}", target.bars().levels);
    let header = ["block", lut, "FF", ram, "URAM", "levels", "inside", "loops", &over, "bare RAMs"];
    let histogram: Vec<_> =
        l.histogram.iter().map(|(levels, ends)| vec![levels.to_string(), ends.to_string()]).collect();
    let paths = |paths: &[levels::Path]| -> Vec<Vec<String>> {
        paths.iter().take(24).map(|p| vec![p.levels.to_string(), p.from.clone(), p.to.clone()]).collect()
    };
    let mut out = format!("{}\n{}\n", table(&header, &rows), table(&["levels", "path ends"], &histogram));
    out += &format!("{}\n", table(&["levels", "from", "to"], &paths(&l.paths)));
    if !l.loops.is_empty() {
        let loops: Vec<_> = paths(&l.loops).into_iter().map(|r| r[..2].to_vec()).collect();
        out += &format!("{}\n", table(&["levels", "loop through"], &loops));
    }
    if !l.bare_rams.is_empty() {
        out += &format!("RAMs whose output is not registered: {}\n", l.bare_rams.join(", "));
    }
    out
}
