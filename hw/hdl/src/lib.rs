//! The hardware description layer: typed symbolic values, the Verilog emitter and its checks, over RustHDL's blocks.
extern crate self as hdl;
pub mod rt;
pub mod vgen;
pub use hdl_macros::{hdl_fn, kernel};
/// What a block's file imports.
pub mod prelude {
    pub use crate::rt::{BitsExt, bswap};
    pub use hdl_macros::{hdl_fn, kernel};
    pub use rust_hdl::prelude::*;
}
