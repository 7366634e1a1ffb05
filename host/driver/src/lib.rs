//! The host driver: device, rings, doorbells, translation tables, verbs objects.
pub mod function;
pub use function::{Error, PciFunction, Result};
