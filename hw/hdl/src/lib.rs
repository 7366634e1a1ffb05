//! The hardware description layer, for authors of RTL and for the harness that runs it. `#[kernel]` turns a block's Rust
//! body into a circuit of typed symbolic values; `emit` writes that as SystemVerilog, and refuses what is not well
//! formed. Blocks, signals and interfaces are RustHDL's.
#![doc = include_str!("../README.md")]
extern crate self as hdl;
pub mod blackbox;
mod builder;
mod compare;
mod concat;
mod control;
mod emit;
mod ir;
mod ops;
pub mod ram;
pub mod reg;
mod text_hash;
mod value;

pub use emit::{Direction, Port, ports, verilog_name};
pub use rust_hdl;
use rust_hdl::prelude::Block;
pub use text_hash::TextHash;

/// SystemVerilog of `block` and everything below it; the top module is called `top`. The same circuit always gives the
/// same text.
///
/// Panics, naming the Rust line and the signal, if the circuit is not well formed: an undriven input of a sub-block, a
/// latch, a signal read before it is written, two signals of one name.
pub fn emit(block: &impl Block, top: &str) -> String {
    text_hash::fill(emit::emit(block, top))
}

/// What the macros write. Not for use by hand.
#[doc(hidden)]
pub mod rt {
    pub use crate::builder::{at, call, kernel};
    pub use crate::compare::*;
    pub use crate::concat::*;
    pub use crate::control::*;
    pub use crate::ops::bit_cast;
    pub use crate::reg::hold::*;
    pub use crate::value::*;
    pub use rust_hdl::prelude::{Synth, TypeDescriptor, TypeField, TypeKind, VCDValue, Verilog, VerilogLiteral, clog2};
}

/// What a block's file imports.
pub mod prelude {
    pub use crate::blackbox::BlackBox;
    pub use crate::concat::{Pack, bswap, pack, unpack};
    pub use crate::ops::BitsExt;
    pub use crate::ram::{Ram, RamBe};
    pub use crate::reg::{Arr, Hidden, Reg};
    pub use hdl_macros::{LogicState, LogicStruct, hdl_fn, kernel};
    pub use rust_hdl::prelude::*;
}

#[cfg(doctest)]
#[doc = include_str!("../tests/rejected/types.md")]
mod rejected_types {}
