//! Registers, table bus, QP state, mailbox, soft core, counters.
