//! LUT levels of a mapped netlist.

use crate::report::table;
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// What a cell does to a path that reaches it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Adds a level.
    Lut,
    /// Passes without a level: carry chains and wide multiplexers.
    Through,
    /// Ends paths and begins new ones.
    Edge,
}

fn kind(cell: &str) -> Kind {
    match cell {
        c if c.starts_with("LUT") || c == "INV" || c == "TRELLIS_COMB" || c == "$lut" => Kind::Lut,
        c if c.starts_with("CARRY") || c.starts_with("MUXF") || c == "CCU2C" || c == "PFUMX" || c == "L6MUX21" => {
            Kind::Through
        }
        // A LUT RAM is written at the clock and read like a LUT.
        c if c.starts_with("RAM32") || c.starts_with("RAM64") || c.starts_with("RAMD") => Kind::Lut,
        _ => Kind::Edge,
    }
}

struct Cell {
    kind: Kind,
    inputs: Vec<usize>,
}

/// A flattened netlist: who drives each bit, and what each cell reads.
pub struct Netlist {
    cells: Vec<Cell>,
    driver: HashMap<usize, usize>,
    names: HashMap<usize, String>,
}

impl Netlist {
    /// Reads yosys's JSON.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let json: Value = serde_json::from_slice(&text)?;
        let top = &json["modules"]["top"];
        let bits = |v: &Value| -> Vec<usize> {
            v.as_array().into_iter().flatten().filter_map(|b| b.as_u64().map(|b| b as usize)).collect()
        };
        let mut n = Netlist { cells: Vec::new(), driver: HashMap::new(), names: HashMap::new() };
        for (name, net) in top["netnames"].as_object().context("no nets in the netlist")? {
            for (i, b) in bits(&net["bits"]).into_iter().enumerate() {
                let better = n.names.get(&b).is_none_or(|old| old.starts_with('$') || name.len() + 4 < old.len());
                if better {
                    n.names.insert(b, format!("{name}[{i}]"));
                }
            }
        }
        for cell in top["cells"].as_object().context("no cells in the netlist")?.values() {
            let mut c = Cell { kind: kind(cell["type"].as_str().unwrap_or("")), inputs: Vec::new() };
            for (port, direction) in cell["port_directions"].as_object().into_iter().flatten() {
                let at = bits(&cell["connections"][port]);
                match direction.as_str() {
                    Some("output") => at.into_iter().for_each(|b| {
                        n.driver.insert(b, n.cells.len());
                    }),
                    _ if matches!(
                        port.as_str(),
                        "C" | "CLK" | "CLKARDCLK" | "CLKBWRCLK" | "CLKA" | "CLKB" | "WCLK"
                    ) => {}
                    _ => c.inputs.extend(at),
                }
            }
            n.cells.push(c);
        }
        Ok(n)
    }

    /// Levels up to each bit that a cell drives, and the bit before it on its longest path.
    fn levels(&self) -> HashMap<usize, (u32, Option<usize>)> {
        let mut done: HashMap<usize, (u32, Option<usize>)> = HashMap::new();
        for start in self.driver.keys() {
            let mut stack = vec![*start];
            while let Some(bit) = stack.last().copied() {
                if done.contains_key(&bit) {
                    stack.pop();
                    continue;
                }
                let Some(cell) = self.driver.get(&bit).map(|c| &self.cells[*c]).filter(|c| c.kind != Kind::Edge) else {
                    done.insert(bit, (0, None));
                    continue;
                };
                let open: Vec<_> = cell.inputs.iter().filter(|b| !done.contains_key(b)).copied().collect();
                // A loop through a carry cell's other lanes is no path: what is on the stack already counts as 0.
                let fresh: Vec<_> = if stack.len() > 4096 {
                    Vec::new()
                } else {
                    open.into_iter().filter(|b| !stack.contains(b)).collect()
                };
                if fresh.is_empty() {
                    let worst = cell.inputs.iter().filter_map(|b| done.get(b).map(|d| (d.0, *b))).max();
                    let (level, from) = worst.map_or((0, None), |(l, b)| (l, Some(b)));
                    done.insert(bit, (level + u32::from(cell.kind == Kind::Lut), from));
                } else {
                    stack.extend(fresh);
                }
            }
        }
        done
    }

    /// Histogram of levels at path ends, and the deepest paths by the names of their ends.
    pub fn report(&self) -> String {
        let levels = self.levels();
        let mut ends: Vec<(u32, usize)> = Vec::new();
        for cell in self.cells.iter().filter(|c| c.kind == Kind::Edge) {
            ends.extend(cell.inputs.iter().filter_map(|b| levels.get(b).map(|l| (l.0, *b))));
        }
        ends.sort_unstable_by(|a, b| b.cmp(a));
        let mut histogram: BTreeMap<u32, usize> = BTreeMap::new();
        ends.iter().for_each(|e| *histogram.entry(e.0).or_default() += 1);
        let counts: Vec<_> = histogram.iter().map(|(l, n)| vec![l.to_string(), n.to_string()]).collect();
        let name = |b: usize| self.names.get(&b).cloned().unwrap_or_default();
        let mut worst: Vec<Vec<String>> = Vec::new();
        for (level, end) in ends {
            let mut from = end;
            while let Some((_, Some(before))) = levels.get(&from) {
                from = *before;
            }
            let stem = |n: String| n.split('[').next().unwrap_or_default().to_string();
            let row = vec![level.to_string(), stem(name(from)), stem(name(end))];
            if !worst.contains(&row) {
                worst.push(row);
            }
            if worst.len() == 12 {
                break;
            }
        }
        let histogram = table(&["LUT levels", "path ends"], &counts);
        format!("{histogram}\n{}", table(&["LUT levels", "from", "to"], &worst))
    }
}
