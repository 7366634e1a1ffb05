//! LUT levels at the walls of a block: how deep behind its inputs its registers lie, and how deep its outputs behind its registers.
//!
//! A path that crosses a wall has the levels of both sides. The tables show the ports that leave their neighbours the least.

use super::levels::{Graph, NONE, ends, sources};
use super::netlist::Netlist;
use anyhow::Result;
use std::collections::BTreeMap;

/// Levels by port, deepest first.
pub type Depths = Vec<(u32, String)>;

/// The walls of a block.
pub struct Walls {
    /// From an input to a register or RAM.
    pub inward: Depths,
    /// From a register or RAM to an output.
    pub outward: Depths,
    /// From some input to an output.
    pub through: Depths,
}

impl Walls {
    pub fn of(n: &Netlist) -> Result<Walls> {
        let g = Graph::of(n);
        let order = g.order()?;
        let deeper = |a: u32, b: u32| if a == NONE { b } else { a.max(b) };
        // Levels behind registers and behind inputs, and levels to the deepest end; NONE where there is no such path.
        let (mut registers, mut inputs, mut after) = (vec![NONE; n.nets()], vec![NONE; n.nets()], vec![NONE; n.nets()]);
        for net in &order {
            let Some((cell, out)) = g.logic(*net) else {
                let side = if g.driver[*net].0 == NONE { &mut inputs } else { &mut registers };
                side[*net] = 0;
                continue;
            };
            for (source, cost) in sources(cell, out) {
                for side in [&mut registers, &mut inputs] {
                    if side[source] != NONE {
                        side[*net] = deeper(side[*net], side[source] + cost);
                    }
                }
            }
        }
        n.cells.iter().flat_map(ends).for_each(|net| after[net] = 0);
        for net in order.iter().rev() {
            if let Some((cell, out)) = g.logic(*net).filter(|_| after[*net] != NONE) {
                sources(cell, out).for_each(|(source, cost)| after[source] = deeper(after[source], after[*net] + cost));
            }
        }
        Ok(Walls {
            inward: depths(&n.inputs, &after),
            outward: depths(&n.outputs, &registers),
            through: depths(&n.outputs, &inputs),
        })
    }
}

/// The depth of each port that has one.
fn depths(ports: &[(String, usize)], depth: &[u32]) -> Depths {
    let mut deepest: BTreeMap<&str, u32> = BTreeMap::new();
    for (name, net) in ports.iter().filter(|(_, net)| depth[*net] != NONE) {
        let d = deepest.entry(name).or_default();
        *d = (*d).max(depth[*net]);
    }
    let mut depths: Depths = deepest.into_iter().map(|(name, d)| (d, name.to_string())).collect();
    depths.sort_by_key(|d| std::cmp::Reverse(d.0));
    depths
}
