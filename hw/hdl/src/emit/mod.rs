//! From a tree of blocks to SystemVerilog: one module per distinct block, named after the Rust type, leaves first. The
//! same design always gives the same text.
mod access;
mod check;
mod clocked;
mod expr;
mod kernel;
mod names;
mod plan;
mod scope;
mod text;
mod tree;
pub use names::verilog_name;
pub use tree::{Direction, Port, ports};

use crate::ir::Body;
use names::Names;
use rust_hdl::prelude::Block;
use std::collections::BTreeMap;
use text::{Writer, range};
use tree::Module;

/// Modules written so far.
#[derive(Default)]
pub struct Emitter {
    text: String,
    /// Name of the module with this text.
    modules: BTreeMap<String, String>,
    names: Names,
    sources: Vec<String>,
}
impl Emitter {
    /// Writes `m` and everything below it unless an equal module is there already; gives its name. `field` names a block
    /// whose type is not known.
    fn module(&mut self, m: &Module, field: &str) -> String {
        let text = self.text_of(m);
        if let Some(name) = self.modules.get(&text) {
            return name.clone();
        }
        let name = match &m.body {
            Body::Kernel(k) => names::type_name(k.block),
            Body::Text { block: Some(b), .. } => names::type_name(b),
            _ => field.replace('$', "_"),
        };
        let name = self.names.fresh(&name);
        self.text.push_str(&format!("module {name} {text}\n"));
        self.modules.insert(text, name.clone());
        name
    }
    /// The module from its ports to `endmodule`.
    fn text_of(&mut self, m: &Module) -> String {
        let (body, outputs) = match &m.body {
            Body::Kernel(k) => (kernel::kernel(self, m, k), "output logic"),
            Body::Text { text, reg, source, .. } => {
                if !source.is_empty() && !self.sources.contains(source) {
                    self.sources.push(source.clone())
                }
                let mut w = Writer::default();
                w.raw(text);
                (w.out, if *reg { "output reg" } else { "output wire" })
            }
            Body::Register { .. } => panic!("{}: a register on its own is no design", m.path),
        };
        let port = |p: &Port| {
            let direction = if p.direction == Direction::In { "input wire" } else { outputs };
            format!("  {direction} {}{}", range(p.width), verilog_name(&p.name))
        };
        format!("(\n{}\n);\n{body}endmodule\n", m.ports().map(port).collect::<Vec<_>>().join(",\n"))
    }
}

/// Verilog of `block`, whose module is called `top`. See [`crate::emit`].
pub fn emit(block: &dyn Block, top: &str) -> String {
    let mut e = Emitter::default();
    e.names.exact(top).expect("the first name");
    let text = e.text_of(&tree::tree(block, top));
    let mut out = format!("{}module {top} {text}", e.text);
    for source in &e.sources {
        let words = source.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|w| !w.is_empty());
        let words: Vec<&str> = words.collect();
        for module in words.windows(2).filter(|w| w[0] == "module").map(|w| w[1]) {
            assert!(!e.names.is_taken(module), "foreign module `{module}` has the name of one of our blocks")
        }
        out.push_str(&format!("\n{}\n", source.trim_end()))
    }
    out
}
