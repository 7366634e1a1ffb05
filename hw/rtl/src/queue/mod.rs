//! Doorbells, work queues, scheduler, completions, events.
pub mod bells;
pub mod completion;
pub mod direct;
pub mod doorbell;
pub mod event;
pub mod fetches;
pub mod flags;
pub mod messages;
pub mod scheduler;
pub mod store;
#[cfg(test)]
pub(crate) mod testing;
pub mod work_queue;

use hdl::prelude::*;

/// Entries of a CQ or EQ ring.
#[hdl_fn]
fn entries(log2: Bits<5>) -> Bits<24> {
    let one: Bits<24> = 1.into();
    one << log2
}
