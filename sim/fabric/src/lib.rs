//! Simulated networks: links between NICs, faults on them, captures of them, and each NIC as a PCIe function.
//!
//! For the `ferroce` command, tests and benchmarks. NICs advance in windows no longer than the shortest link delay and exchange
//! frames between windows, so the result does not depend on the order in which they are run.

mod capture;
mod crew;
mod fault;
mod function;
mod net;
mod packet;
pub mod peer;
mod rules_file;
mod together;

pub use capture::Capture;
pub use fault::{Action, Fired, Match, Part, Rule, Rules};
pub use function::SimFunction;
pub use net::{Fabric, FrameTap, Link, Shared};
pub use packet::Packet;
pub use rules_file::{RulesError, parse_rules};
pub use together::together;
