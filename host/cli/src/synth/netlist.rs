//! Mapped netlists: cells, what they are to a path, and how blocks that were mapped each on its own join to one whole.

use anyhow::{Context, Result};
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// Yosys's JSON, as far as it is needed.
#[derive(Deserialize)]
struct File {
    modules: HashMap<String, Module>,
}
#[derive(Deserialize)]
struct Module {
    #[serde(default)]
    ports: BTreeMap<String, Port>,
    #[serde(default)]
    cells: BTreeMap<String, RawCell>,
    #[serde(default)]
    netnames: BTreeMap<String, Net>,
}
#[derive(Deserialize)]
struct Port {
    direction: String,
    bits: Vec<RawBit>,
}
#[derive(Deserialize)]
struct Net {
    hide_name: u8,
    bits: Vec<RawBit>,
}
#[derive(Deserialize)]
struct RawCell {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    port_directions: BTreeMap<String, String>,
    #[serde(default)]
    connections: BTreeMap<String, Vec<RawBit>>,
}
/// A net, or a constant.
#[derive(Deserialize, Clone, Copy)]
#[serde(untagged)]
enum RawBit {
    Net(usize),
    Constant(#[allow(dead_code)] char),
}

/// What a cell is to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One level from each input.
    Lut,
    /// A wide multiplexer behind LUTs: no level.
    Mux,
    /// Carry chain of UltraScale+: its LUTs are cells of their own. Lane i depends on the lanes up to i.
    Carry,
    /// Carry chain of ECP5 with its two LUTs: a level from all but the carry.
    CarryLut,
    /// Read like a LUT, written at the clock.
    LutRam,
    Register,
    BlockRam,
    UltraRam,
    /// A multiplier: paths end and begin here, which is right only if its registers are in use.
    Dsp,
    /// Not hardware.
    None,
}

/// Kind of a cell type, and the LUTs that it takes.
fn kind(cell: &str) -> (Kind, u64) {
    let starts = |names: &[&str]| names.iter().any(|n| cell.starts_with(n));
    match cell {
        "$scopeinfo" | "GND" | "VCC" => (Kind::None, 0),
        "CCU2C" => (Kind::CarryLut, 2),
        "TRELLIS_DPR16X4" => (Kind::LutRam, 6),
        "RAM32M16" | "RAM64M8" => (Kind::LutRam, 8),
        _ if starts(&["RAM32M", "RAM64M"]) => (Kind::LutRam, 4),
        _ if starts(&["RAM32X", "RAM64X"]) => (Kind::LutRam, 2),
        _ if starts(&["RAM128X", "RAM256X"]) => (Kind::LutRam, 4),
        _ if starts(&["SRL"]) => (Kind::Register, 1),
        _ if starts(&["LUT"]) || cell == "INV" => (Kind::Lut, 1),
        _ if starts(&["MUXF", "PFUMX", "L6MUX"]) => (Kind::Mux, 0),
        _ if starts(&["CARRY"]) => (Kind::Carry, 0),
        _ if starts(&["RAMB", "DP16K", "PDPW"]) => (Kind::BlockRam, 0),
        _ if starts(&["URAM"]) => (Kind::UltraRam, 0),
        _ if starts(&["DSP", "MULT", "ALU54"]) => (Kind::Dsp, 0),
        _ => (Kind::Register, 0),
    }
}

/// A cell of the joined netlist.
pub struct Cell {
    pub kind: Kind,
    pub block: usize,
    name: String,
    /// Port, lane, net.
    pub inputs: Vec<(&'static str, usize, usize)>,
    pub outputs: Vec<(&'static str, usize, usize)>,
}

/// What a block takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Area {
    pub lut: u64,
    pub ff: u64,
    /// In halves: a RAMB18 is half of a RAMB36.
    pub half_rams: u64,
    pub ultra: u64,
    pub dsp: u64,
}

impl std::ops::AddAssign for Area {
    fn add_assign(&mut self, b: Area) {
        self.lut += b.lut;
        self.ff += b.ff;
        self.half_rams += b.half_rams;
        self.ultra += b.ultra;
        self.dsp += b.dsp;
    }
}

/// Cells and nets of one block, or of blocks that were joined.
#[derive(Default)]
pub struct Netlist {
    pub cells: Vec<Cell>,
    /// Nets under which blocks were joined: each points to its representative in the end.
    same: Vec<usize>,
    /// Names of the instances; number 0 is the top itself.
    pub blocks: Vec<String>,
    pub area: Vec<Area>,
    names: HashMap<usize, (String, usize)>,
    /// What comes in and goes out at the top: names of ports, each with a net.
    pub inputs: Vec<(String, usize)>,
    pub outputs: Vec<(String, usize)>,
    port_names: Vec<&'static str>,
}

/// Names of ports are few: they are kept for good.
fn intern(known: &mut Vec<&'static str>, name: &str) -> &'static str {
    if let Some(k) = known.iter().find(|k| **k == name) {
        return k;
    }
    known.push(Box::leak(name.to_string().into_boxed_str()));
    known.last().expect("just pushed")
}

impl Netlist {
    /// Reads module `top` of `path`; cells that are named in `parts` are replaced by the netlist of that module.
    pub fn read(path: &Path, top: &str, parts: &HashMap<String, std::path::PathBuf>) -> Result<Self> {
        let mut n = Netlist::default();
        let mut files: HashMap<String, Module> = HashMap::new();
        for (name, path) in parts {
            files.insert(name.clone(), module(path, name)?);
        }
        let whole = module(path, top)?;
        let map = n.add(&whole, top.to_string(), &files);
        for (name, port) in &whole.ports {
            let nets = port.bits.iter().filter_map(|b| Some((name.clone(), net(&map, *b)?)));
            if port.direction == "output" { n.outputs.extend(nets) } else { n.inputs.extend(nets) }
        }
        for (name, cell) in &whole.cells {
            let Some(part) = files.get(&cell.kind) else { continue };
            let inner = n.add(part, name.trim_start_matches("u_").to_string(), &files);
            for (port, outer) in &cell.connections {
                let Some(port) = part.ports.get(port) else { continue };
                for (a, b) in outer.iter().zip(&port.bits) {
                    if let (Some(a), Some(b)) = (net(&map, *a), net(&inner, *b)) {
                        let (a, b) = (n.find(a), n.find(b));
                        n.same[b] = a;
                    }
                }
            }
        }
        n.settle();
        Ok(n)
    }

    /// Adds a module's cells and nets; gives the number of each net of the module.
    fn add(&mut self, m: &Module, name: String, parts: &HashMap<String, Module>) -> HashMap<usize, usize> {
        let block = self.blocks.len();
        let prefix = if block == 0 { String::new() } else { format!("{name}.") };
        self.blocks.push(name);
        let mut map = HashMap::new();
        let mut number = |n: &mut Vec<usize>, b: RawBit| match b {
            RawBit::Constant(_) => None,
            RawBit::Net(b) => Some(*map.entry(b).or_insert_with(|| {
                n.push(n.len());
                n.len() - 1
            })),
        };
        let mut area = Area::default();
        for port in m.ports.values() {
            port.bits.iter().for_each(|b| {
                number(&mut self.same, *b);
            });
        }
        for (name, raw) in &m.cells {
            let (kind, luts) = kind(&raw.kind);
            if parts.contains_key(&raw.kind) {
                for bits in raw.connections.values() {
                    bits.iter().for_each(|b| {
                        number(&mut self.same, *b);
                    });
                }
                continue;
            }
            area.lut += luts;
            match kind {
                Kind::None => continue,
                Kind::Register if luts == 0 => area.ff += 1,
                Kind::BlockRam => area.half_rams += if raw.kind.starts_with("RAMB18") { 1 } else { 2 },
                Kind::UltraRam => area.ultra += 1,
                Kind::Dsp => area.dsp += 1,
                _ => {}
            }
            let keeps_name = matches!(kind, Kind::BlockRam | Kind::UltraRam | Kind::LutRam);
            let name = if keeps_name { format!("{prefix}{}", ram_name(name)) } else { String::new() };
            let mut cell = Cell { kind, block, name, inputs: Vec::new(), outputs: Vec::new() };
            for (port, bits) in &raw.connections {
                if is_clock(port) {
                    continue;
                }
                let output = raw.port_directions.get(port).is_some_and(|d| d == "output");
                let port = intern(&mut self.port_names, port);
                for (lane, bit) in bits.iter().enumerate() {
                    if let Some(b) = number(&mut self.same, *bit) {
                        if output { &mut cell.outputs } else { &mut cell.inputs }.push((port, lane, b));
                    }
                }
            }
            self.cells.push(cell);
        }
        self.area.push(area);
        // The name of the register, so that all its bits are told as one, else the shortest name that the author gave.
        let rank = |name: &str| (!name.ends_with("_q"), name.len());
        for (name, net) in m.netnames.iter().filter(|(_, n)| n.hide_name == 0) {
            let full = format!("{prefix}{name}");
            for (i, bit) in net.bits.iter().enumerate() {
                let Some(b) = number(&mut self.same, *bit) else { continue };
                let better = self.names.get(&b).is_none_or(|(old, _)| rank(old) > rank(&full));
                if better {
                    self.names.insert(b, (full.clone(), i));
                }
            }
        }
        map
    }

    fn find(&self, mut net: usize) -> usize {
        while self.same[net] != net {
            net = self.same[net];
        }
        net
    }

    /// Gives every net the number of its representative.
    fn settle(&mut self) {
        let to: Vec<usize> = (0..self.same.len()).map(|n| self.find(n)).collect();
        for cell in &mut self.cells {
            cell.inputs.iter_mut().chain(&mut cell.outputs).for_each(|p| p.2 = to[p.2]);
        }
        self.inputs.iter_mut().chain(&mut self.outputs).for_each(|(_, n)| *n = to[*n]);
        let mut names: HashMap<usize, (String, usize)> = HashMap::new();
        let mut old: Vec<_> = std::mem::take(&mut self.names).into_iter().collect();
        old.sort();
        for (net, name) in old {
            names.entry(to[net]).or_insert(name);
        }
        self.names = names;
    }

    /// Number of nets.
    pub fn nets(&self) -> usize {
        self.same.len()
    }

    /// Name of a net without its index, if its author gave one.
    pub fn name(&self, net: usize) -> Option<&str> {
        self.names.get(&net).map(|(n, _)| n.as_str())
    }

    /// Name of a sequential cell: the RAM's, or that of the net that the register drives.
    pub fn cell_name(&self, cell: &Cell) -> String {
        if !cell.name.is_empty() {
            return cell.name.clone();
        }
        let named = cell.outputs.iter().find_map(|o| self.name(o.2));
        named.map_or_else(|| format!("{}: a register without a name", self.blocks[cell.block]), str::to_string)
    }
}

/// `u_rows.mem.0.1` is row `u_rows.mem`'s part: the RAM is `rows`.
fn ram_name(cell: &str) -> String {
    let stem = cell.split(".mem").next().unwrap_or(cell);
    stem.split('.').map(|s| s.trim_start_matches("u_")).collect::<Vec<_>>().join(".")
}

fn is_clock(port: &str) -> bool {
    matches!(port, "C" | "CLK" | "CLKA" | "CLKB" | "CLKR" | "CLKW" | "CLKARDCLK" | "CLKBWRCLK" | "WCLK" | "WCK")
}

fn net(map: &HashMap<usize, usize>, bit: RawBit) -> Option<usize> {
    match bit {
        RawBit::Net(b) => map.get(&b).copied(),
        RawBit::Constant(_) => None,
    }
}

fn module(path: &Path, name: &str) -> Result<Module> {
    let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut file: File = serde_json::from_slice(&text).with_context(|| format!("in {}", path.display()))?;
    file.modules.remove(name).with_context(|| format!("no module {name} in {}", path.display()))
}
