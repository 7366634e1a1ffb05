//! Registers, table bus, QP state, mailbox, soft core, counters.
pub mod counters;
pub mod mailbox;
pub mod mmio;
pub mod plane;
pub mod qp_state;
pub mod registers;
pub mod reset;
pub mod sentry;
pub mod soft_core;
pub mod table_bus;
#[cfg(test)]
mod testing;
