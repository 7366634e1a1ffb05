//! Foreign Verilog inside a block, for authors who wrap vendor IP or a soft core: the instance, and the source once.
use crate::emit::{Port, ports, verilog_name};
use crate::ir;
use rust_hdl::prelude::{Block, Verilog};

/// Describes the Verilog module that a block stands for; `instance(self)` in the block's `hdl()` writes it.
///
/// ```
/// use hdl::prelude::*;
/// #[derive(LogicBlock, Default)]
/// struct Buffer {
///     pub input: Signal<In, Bit>,
///     pub output: Signal<Out, Bit>,
/// }
/// impl Logic for Buffer {
///     fn update(&mut self) {
///         self.output.next = self.input.val(); // the model, or nothing
///     }
///     fn connect(&mut self) {
///         self.output.connect(); // every output
///     }
///     fn hdl(&self) -> Verilog {
///         BlackBox::new("BUFG").port("input", "I").port("output", "O").instance(self)
///     }
/// }
/// ```
#[derive(Clone, Debug, Default)]
pub struct BlackBox {
    module: String,
    parameters: Vec<(String, String)>,
    renamed: Vec<(String, String)>,
    source: String,
}
impl BlackBox {
    /// The name of the Verilog module.
    pub fn new(module: &str) -> Self {
        BlackBox { module: module.into(), ..Default::default() }
    }
    /// Sets a parameter; `value` is Verilog text, such as `1`, `"8'h20"` or `"\"BLOCK\""`.
    pub fn parameter(mut self, name: &str, value: impl ToString) -> Self {
        self.parameters.push((name.into(), value.to_string()));
        self
    }
    /// Connects the block's signal `field` (`bus$data` for a field of an interface) to the module's port `port`.
    /// Signals that are not named here go to the port of their own name (`bus_data`).
    pub fn port(mut self, field: &str, port: &str) -> Self {
        self.renamed.push((field.into(), port.into()));
        self
    }
    /// Verilog text of the module, added once to the output however many instances there are.
    pub fn source(mut self, text: &str) -> Self {
        self.source = text.into();
        self
    }
    /// The block's Verilog: one instance, connected to the block's signals.
    pub fn instance<B: Block>(&self, block: &B) -> Verilog {
        let mut text = format!("  {}", self.module);
        if !self.parameters.is_empty() {
            let p: Vec<_> = self.parameters.iter().map(|(n, v)| format!(".{n}({v})")).collect();
            text.push_str(&format!(" #({})", p.join(", ")))
        }
        let pin = |p: &Port| {
            let own = verilog_name(&p.name);
            let port = self.renamed.iter().find(|r| r.0 == p.name).map_or(&own, |r| &r.1);
            format!("    .{port}({own})")
        };
        let pins: Vec<_> = ports(block).iter().map(pin).collect();
        text.push_str(&format!(" instance_ (\n{}\n  );\n", pins.join(",\n")));
        let block = Some(std::any::type_name::<B>());
        ir::hand_over(ir::Body::Text { block, text, reg: false, source: self.source.clone() })
    }
}
