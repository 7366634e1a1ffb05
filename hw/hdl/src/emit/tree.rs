//! The tree of blocks as the emitter sees it: RustHDL's probe walks a design, this collects the signals and the body of
//! every block.
use crate::ir::{self, Body};
use rust_hdl::prelude::{Atom, AtomKind, Block, Probe};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    In,
    Out,
    Local,
}
#[derive(Clone, Debug)]
pub struct Port {
    /// `interface$field`, `array$0`.
    pub name: String,
    pub direction: Direction,
    pub width: usize,
}
#[derive(Debug)]
pub struct Module {
    /// From the top, for messages.
    pub path: String,
    /// Ports and local signals, in declaration order.
    pub signals: Vec<Port>,
    /// Sub-blocks by field name, `array$0` in arrays.
    pub subs: Vec<(String, Module)>,
    pub body: Body,
}
impl Module {
    pub fn ports(&self) -> impl Iterator<Item = &Port> {
        self.signals.iter().filter(|s| s.direction != Direction::Local)
    }
}

/// The design below `block`.
pub fn tree(block: &dyn Block, top: &str) -> Module {
    let mut t = Tree::default();
    block.accept(top, &mut t);
    t.top.expect("a block with fields")
}
/// The ports of `block`, in declaration order.
pub fn ports(block: &dyn Block) -> Vec<Port> {
    let mut t = Tree { shallow: true, ..Tree::default() };
    block.accept("top", &mut t);
    t.top.map_or(vec![], |m| m.ports().cloned().collect())
}

#[derive(Default)]
struct Tree {
    /// Only the outermost block, without its body.
    shallow: bool,
    /// Blocks that are open, each with its name and the interfaces that are open in it.
    stack: Vec<(String, Module, Vec<String>)>,
    top: Option<Module>,
}
impl Probe for Tree {
    fn visit_start_scope(&mut self, name: &str, b: &dyn Block) {
        let path = match self.stack.last() {
            Some((_, m, _)) => format!("{}.{name}", m.path),
            None => name.to_string(),
        };
        let body = if self.shallow {
            Body::Text { block: None, text: String::new(), reg: false, source: String::new() }
        } else {
            ir::body(b, &path)
        };
        self.stack.push((name.into(), Module { path, signals: vec![], subs: vec![], body }, vec![]))
    }
    fn visit_end_scope(&mut self, _: &str, _: &dyn Block) {
        let (name, m, _) = self.stack.pop().unwrap();
        match self.stack.last_mut() {
            Some((_, parent, _)) => parent.subs.push((name, m)),
            None => self.top = Some(m),
        }
    }
    fn visit_start_namespace(&mut self, name: &str, _: &dyn Block) {
        self.stack.last_mut().unwrap().2.push(name.into())
    }
    fn visit_end_namespace(&mut self, _: &str, _: &dyn Block) {
        self.stack.last_mut().unwrap().2.pop();
    }
    fn visit_atom(&mut self, name: &str, a: &dyn Atom) {
        let Some((_, m, interfaces)) = self.stack.last_mut() else { return };
        let direction = match a.kind() {
            AtomKind::InputParameter => Direction::In,
            AtomKind::OutputParameter => Direction::Out,
            AtomKind::LocalSignal => Direction::Local,
            AtomKind::Constant => return,
            k => panic!("{}.{name}: {k:?} is not supported", m.path),
        };
        let path: Vec<_> = interfaces.iter().map(String::as_str).chain([name]).collect();
        m.signals.push(Port { name: path.join("$"), direction, width: a.bits() })
    }
}
