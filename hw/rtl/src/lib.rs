//! The NIC in gates. `docs/architecture.md` has the map; `msg` has every message between the rooms.
pub mod congestion;
pub mod control;
pub mod core;
pub mod memory;
pub mod msg;
pub mod queue;
pub mod stream;
pub mod transport;
pub mod wire;
