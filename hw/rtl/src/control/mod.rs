//! Registers, table bus, QP state, mailbox, soft core, counters.
pub mod qp_state;
pub mod table_bus;
