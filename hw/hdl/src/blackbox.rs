//! Foreign Verilog inside a block, for authors who wrap vendor IP or a soft core: the instance, and the source once.
use rust_hdl::prelude::{Atom, Block, Probe, Verilog, ast::Wrapper};
use std::fmt::Write;

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
    pub fn instance(&self, block: &dyn Block) -> Verilog {
        let mut signals = Signals::default();
        block.accept("", &mut signals);
        let mut code = self.module.clone();
        if !self.parameters.is_empty() {
            let p: Vec<_> = self.parameters.iter().map(|(n, v)| format!(".{n}({v})")).collect();
            let _ = write!(code, " #({})", p.join(", "));
        }
        let ports: Vec<_> = (signals.names.iter())
            .map(|n| {
                let own = crate::vgen::mangle(n);
                let port = self.renamed.iter().find(|r| r.0 == *n).map_or(&own, |r| &r.1);
                format!("    .{port}({own})")
            })
            .collect();
        let _ = write!(code, " instance_ (\n{}\n  );\n", ports.join(",\n"));
        Verilog::Wrapper(Wrapper { code: format!("  {code}"), cores: self.source.clone() })
    }
}

/// The signals of the outermost block, as `interface$field`.
#[derive(Default)]
struct Signals {
    depth: usize,
    namespace: Vec<String>,
    names: Vec<String>,
}
impl Probe for Signals {
    fn visit_start_scope(&mut self, _: &str, _: &dyn Block) {
        self.depth += 1
    }
    fn visit_end_scope(&mut self, _: &str, _: &dyn Block) {
        self.depth -= 1
    }
    fn visit_start_namespace(&mut self, name: &str, _: &dyn Block) {
        self.namespace.push(name.into())
    }
    fn visit_end_namespace(&mut self, _: &str, _: &dyn Block) {
        self.namespace.pop();
    }
    fn visit_atom(&mut self, name: &str, a: &dyn Atom) {
        if self.depth == 1 && a.kind().is_parameter() {
            let path: Vec<_> = self.namespace.iter().map(String::as_str).chain([name]).collect();
            self.names.push(path.join("$"))
        }
    }
}
