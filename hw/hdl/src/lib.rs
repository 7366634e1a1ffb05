//! The hardware description layer: typed symbolic values, the Verilog emitter and its checks, over RustHDL's blocks.
extern crate self as hdl;
pub mod blackbox;
pub mod ram;
pub mod reg;
pub mod rt;
pub mod vgen;
pub use hdl_macros::{hdl_fn, kernel};
use rust_hdl::prelude::Block;

/// Verilog of `block` and everything below it; the top module is called `top`. Connects the block first, so a plain
/// `emit(&mut Foo::default(), "foo")` is enough. The same circuit always gives the same text.
///
/// Panics, naming the signal, if the circuit is not well formed: an undriven input of a sub-block, a latch, a signal
/// read before it is written, two signals of one name.
pub fn emit(block: &mut impl Block, top: &str) -> String {
    block.connect_all();
    vgen::emit(block, top)
}

/// What a block's file imports.
pub mod prelude {
    pub use crate::blackbox::BlackBox;
    pub use crate::ram::{Ram, RamBe};
    pub use crate::reg::{Arr, Hidden, Reg};
    pub use crate::rt::{BitsExt, bswap};
    pub use hdl_macros::{hdl_fn, kernel};
    pub use rust_hdl::prelude::*;
}
