//! The NIC in gates.
