//! LUT levels between registers.
//!
//! A path begins at the output of a register or RAM, or at an input of the netlist, and ends at an input of a register or RAM, or at
//! an output. LUTs, and RAMs of LUTs that are read, add a level each; carry chains and wide multiplexers add none, and are fast.
//! A *loop* is a path from a register (all bits of its name) or RAM to itself: state that decides about itself.

use super::netlist::{Cell, Kind, Netlist};
use anyhow::{Result, bail};
use std::collections::{BTreeMap, HashMap};

/// Nowhere.
pub(super) const NONE: u32 = u32::MAX;

/// A path: its levels and the names of its ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    pub levels: u32,
    pub from: String,
    pub to: String,
}

/// What was found about one block: paths that end in it.
#[derive(Clone, Debug, Default)]
pub struct BlockLevels {
    /// Deepest path, and the deepest that also begins in the block.
    pub deepest: u32,
    pub inside: u32,
    /// Deepest loop.
    pub looped: u32,
    /// Ends of paths of more levels than the limit.
    pub over: usize,
    /// RAMs with an output that does not go straight to a register.
    pub bare_rams: usize,
}

/// Levels of a netlist.
pub struct Levels {
    pub blocks: Vec<BlockLevels>,
    /// Ends of paths by their levels.
    pub histogram: BTreeMap<u32, usize>,
    /// The deepest paths and loops, deepest first, one for each pair of ends.
    pub paths: Vec<Path>,
    pub loops: Vec<Path>,
    /// RAMs whose output is not registered.
    pub bare_rams: Vec<String>,
}

/// The netlist with what is needed to walk it.
pub(super) struct Graph<'a> {
    pub(super) n: &'a Netlist,
    /// By net: the cell that drives it, and which of its outputs.
    pub(super) driver: Vec<(u32, u32)>,
}

/// The nets that output `out` of a combinational cell depends on, with the levels they cost.
pub(super) fn sources<'a>(cell: &'a Cell, out: usize) -> impl Iterator<Item = (usize, u32)> + 'a {
    let (port, lane, _) = cell.outputs[out];
    let kind = cell.kind;
    cell.inputs.iter().filter_map(move |(input, at, net)| {
        let cost = match kind {
            Kind::Lut => Some(1),
            Kind::Mux => Some(0),
            Kind::Carry => (*at <= lane || matches!(*input, "CI" | "CYINIT" | "CI_TOP")).then_some(0),
            Kind::CarryLut if *input == "CIN" => Some(0),
            Kind::CarryLut => (port != "S0" || input.ends_with('0')).then_some(1),
            // Port D of these writes, with its address; the others read.
            Kind::LutRam => {
                let reads = input.starts_with("ADDR") && !matches!(*input, "ADDRD" | "ADDRH")
                    || input.starts_with("DPRA")
                    || input.starts_with("RAD");
                let own = port.trim_start_matches("DO");
                let other = input.starts_with("ADDR") && own.len() == 1 && !input.ends_with(own);
                (reads && !other).then_some(1)
            }
            _ => None,
        };
        cost.map(|c| (*net, c))
    })
}

/// Inputs of a cell at which paths end.
pub(super) fn ends(cell: &Cell) -> impl Iterator<Item = usize> + '_ {
    let kind = cell.kind;
    cell.inputs.iter().filter_map(move |(input, _, net)| {
        let end = match kind {
            Kind::Register | Kind::BlockRam | Kind::UltraRam | Kind::Dsp => true,
            Kind::LutRam => {
                !input.starts_with("DPRA")
                    && !input.starts_with("RAD")
                    && (!input.starts_with("ADDR") || matches!(*input, "ADDRD" | "ADDRH"))
            }
            _ => false,
        };
        end.then_some(*net)
    })
}

fn is_combinational(kind: Kind) -> bool {
    matches!(kind, Kind::Lut | Kind::Mux | Kind::Carry | Kind::CarryLut | Kind::LutRam)
}

impl<'a> Graph<'a> {
    pub(super) fn of(n: &'a Netlist) -> Self {
        let mut driver = vec![(NONE, NONE); n.nets()];
        for (i, cell) in n.cells.iter().enumerate() {
            cell.outputs.iter().enumerate().for_each(|(o, (_, _, net))| driver[*net] = (i as u32, o as u32));
        }
        Graph { n, driver }
    }

    /// The combinational cell that drives `net`, and which of its outputs.
    pub(super) fn logic(&self, net: usize) -> Option<(&Cell, usize)> {
        let (cell, out) = self.driver[net];
        (cell != NONE).then(|| (&self.n.cells[cell as usize], out as usize)).filter(|(c, _)| is_combinational(c.kind))
    }

    /// All nets that logic drives or reads, each behind those that it depends on.
    pub(super) fn order(&self) -> Result<Vec<usize>> {
        let mut order = Vec::new();
        let mut mark = vec![0u8; self.driver.len()]; // 1: on the way, 2: done
        for start in 0..self.driver.len() {
            let mut stack = vec![start];
            while let Some(net) = stack.last().copied() {
                if mark[net] == 2 {
                    stack.pop();
                    continue;
                }
                let before = stack.len();
                if let Some((cell, out)) = self.logic(net) {
                    stack.extend(sources(cell, out).map(|s| s.0).filter(|s| mark[*s] != 2));
                }
                if stack.len() == before {
                    mark[net] = 2;
                    order.push(net);
                    stack.pop();
                } else if mark[net] == 1 {
                    let names: Vec<_> =
                        stack.iter().filter(|s| mark[**s] == 1).filter_map(|s| self.n.name(*s)).collect();
                    bail!("a combinational loop through {}", names[names.len().saturating_sub(12)..].join(", "));
                } else {
                    mark[net] = 1;
                }
            }
        }
        Ok(order)
    }
}

impl Levels {
    /// Counts. `limit` and `loop_limit` are what a path and a loop may have.
    pub fn of(n: &Netlist, limit: u32, loop_limit: u32) -> Result<Levels> {
        let g = Graph::of(n);
        let order = g.order()?;
        let mut level = vec![0u32; n.nets()];
        let mut inside = vec![0u32; n.nets()]; // from registers of the same block, else NONE
        let mut from = vec![NONE; n.nets()];
        for net in &order {
            let (cell, _) = g.driver[*net];
            inside[*net] = NONE;
            if cell != NONE {
                inside[*net] = 0;
            }
            let Some((cell, out)) = g.logic(*net) else { continue };
            let mut own = NONE;
            for (source, cost) in sources(cell, out) {
                if level[source] + cost > level[*net] || from[*net] == NONE {
                    (level[*net], from[*net]) = (level[source] + cost, source as u32);
                }
                let block = g.driver[source].0;
                if inside[source] != NONE && block != NONE && n.cells[block as usize].block == cell.block {
                    own = if own == NONE { inside[source] + cost } else { own.max(inside[source] + cost) };
                }
            }
            inside[*net] = own;
        }
        let mut l = Levels {
            blocks: vec![BlockLevels::default(); n.blocks.len()],
            histogram: BTreeMap::new(),
            paths: Vec::new(),
            loops: Vec::new(),
            bare_rams: Vec::new(),
        };
        let mut found: Vec<(u32, usize, Option<usize>)> = Vec::new(); // levels, net, cell
        for (i, cell) in n.cells.iter().enumerate() {
            for net in ends(cell) {
                found.push((level[net], net, Some(i)));
                let b = &mut l.blocks[cell.block];
                b.deepest = b.deepest.max(level[net]);
                let own = g.driver[net].0;
                if inside[net] != NONE && own != NONE && n.cells[own as usize].block == cell.block {
                    b.inside = b.inside.max(inside[net]);
                }
                b.over += usize::from(level[net] > limit);
            }
        }
        found.extend(n.outputs.iter().map(|(_, net)| (level[*net], *net, None)));
        found.iter().for_each(|e| *l.histogram.entry(e.0).or_default() += 1);
        found.sort_by(|a, b| b.cmp(a));
        for (levels, end, cell) in found {
            if l.paths.len() == 40 || levels == 0 {
                break;
            }
            let mut start = end;
            while from[start] != NONE {
                start = from[start] as usize;
            }
            let to = cell.map_or_else(|| n.name(end).unwrap_or("an output").into(), |c| n.cell_name(&n.cells[c]));
            let path = Path { levels, from: g.start_name(start), to };
            if !l.paths.iter().any(|p| (&p.from, &p.to) == (&path.from, &path.to)) {
                l.paths.push(path);
            }
        }
        l.find_loops(&g, &order, loop_limit);
        l.find_bare_rams(&g);
        Ok(l)
    }

    /// For each register and RAM the deepest path to itself.
    fn find_loops(&mut self, g: &Graph, order: &[usize], limit: u32) {
        let n = g.n;
        let mut place = vec![NONE; n.nets()];
        order.iter().enumerate().for_each(|(i, net)| place[*net] = i as u32);
        let mut groups: HashMap<(usize, String), Vec<usize>> = HashMap::new();
        for (i, cell) in n.cells.iter().enumerate() {
            if matches!(cell.kind, Kind::Register | Kind::BlockRam | Kind::UltraRam | Kind::LutRam) {
                groups.entry((cell.block, n.cell_name(cell))).or_default().push(i);
            }
        }
        // What the group reaches in logic, and how deep: valid where `stamp` is the group's number.
        let (mut stamp, mut depth) = (vec![NONE; n.nets()], vec![0u32; n.nets()]);
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort();
        for (number, ((block, name), cells)) in groups.into_iter().enumerate() {
            let number = number as u32;
            // The cone of logic in front of the group, sources first.
            let mut cone: Vec<usize> = Vec::new();
            let mut stack: Vec<usize> = cells.iter().flat_map(|c| ends(&n.cells[*c])).collect();
            while let Some(net) = stack.pop() {
                if stamp[net] == number {
                    continue;
                }
                stamp[net] = number;
                cone.push(net);
                if let Some((cell, out)) = g.logic(net) {
                    stack.extend(sources(cell, out).map(|s| s.0));
                }
            }
            cone.sort_unstable_by_key(|net| place[*net]);
            for net in &cone {
                depth[*net] = NONE;
                let (driver, out) = g.driver[*net];
                if driver == NONE {
                    continue;
                }
                let cell = &n.cells[driver as usize];
                if is_combinational(cell.kind) {
                    let deepest =
                        sources(cell, out as usize).filter(|s| depth[s.0] != NONE).map(|s| depth[s.0] + s.1).max();
                    depth[*net] = deepest.unwrap_or(NONE);
                }
                // A RAM of LUTs begins a path, too.
                if depth[*net] == NONE && cells.binary_search(&(driver as usize)).is_ok() {
                    depth[*net] = u32::from(cell.kind == Kind::LutRam);
                }
            }
            let looped = cells.iter().flat_map(|c| ends(&n.cells[*c])).map(|e| depth[e]).filter(|d| *d != NONE).max();
            let Some(levels) = looped else { continue };
            let b = &mut self.blocks[block];
            b.looped = b.looped.max(levels);
            if levels > limit {
                self.loops.push(Path { levels, from: name.clone(), to: name });
            }
        }
        self.loops.sort_by(|a, b| (b.levels, &a.from).cmp(&(a.levels, &b.from)));
    }

    /// RAMs with an output bit that something else than the data input of a register reads.
    fn find_bare_rams(&mut self, g: &Graph) {
        let n = g.n;
        let ram = |net: usize| {
            let cell = g.driver[net].0;
            (cell != NONE)
                .then_some(cell as usize)
                .filter(|c| matches!(n.cells[*c].kind, Kind::BlockRam | Kind::UltraRam))
        };
        let mut bare: BTreeMap<(usize, String), ()> = BTreeMap::new();
        for cell in &n.cells {
            for (port, _, net) in &cell.inputs {
                let registers = cell.kind == Kind::Register && matches!(*port, "D" | "DI" | "M");
                if let Some(ram) = ram(*net).filter(|_| !registers) {
                    let ram = &n.cells[ram];
                    bare.insert((ram.block, n.cell_name(ram)), ());
                }
            }
        }
        for (block, name) in bare.into_keys() {
            self.blocks[block].bare_rams += 1;
            self.bare_rams.push(name);
        }
    }
}

impl Graph<'_> {
    fn start_name(&self, net: usize) -> String {
        let (cell, _) = self.driver[net];
        if cell == NONE {
            return self.n.name(net).map_or("a constant".into(), |n| format!("input {n}"));
        }
        self.n.cell_name(&self.n.cells[cell as usize])
    }
}
