//! One simulated NIC: the Verilated core and the host around it.
//!
//! For `fabric`, which joins NICs by links, and through it for the driver's in-process backend, tests and benchmarks. Time
//! is counted in cycles of the core's clock; everything is a function of configuration and seed.

mod axi;
mod config;
mod host;
mod iommu;
mod mac;
mod nic;
mod pcie;
mod verdict;

pub use config::ConfigSpace;
pub use host::{BarRequest, Host, PcieUse};
pub use iommu::{DmaFault, Iommu};
pub use mac::{Frame, LinkRate};
pub use nic::{Hold, Nic, NicOptions, Passage};
pub use pcie::{Adversary, PcieProfile};
pub use verdict::Verdict;

/// Femtoseconds: the unit in which wires and buses are timed.
pub type Fs = u64;

/// Femtoseconds in a nanosecond.
pub const NS: Fs = 1_000_000;
