//! The contract between gates, firmware, driver, simulator and tests: every layout, number and name that two of them
//! share is written here once.
//!
//! `no_std`, no dependencies, plain integers. A *layout* is a list of named bit fields ([`layout!`]); RTL slices with
//! [`Field::lsb`] and [`Field::bits`], software reads and writes with [`Field::get`] and [`Field::set`], and the
//! reference page in `docs/` prints [`Layout`]s. All host-side layouts are little-endian, all wire headers big-endian.
#![no_std]
#![forbid(unsafe_code)]

mod field;
pub use field::{Field, Layout, Numbers};

pub mod bar;
pub mod cmd;
pub mod image;
pub mod mmio;
pub mod queue;
pub mod status;
pub mod table;
pub mod wire;

/// Version of this contract. The driver refuses a device whose `ABI_VERSION` register differs in the upper half
/// (major); the lower half only ever adds.
pub const ABI_VERSION: u32 = 0x0001_0000;

/// PCI identity: an id from the range that PCI-SIG leaves to nobody in particular; a product has its own.
pub const PCI_VENDOR: u16 = 0x1d9b;
/// PCI device id of a Ferroce NIC.
pub const PCI_DEVICE: u16 = 0xfe0c;
