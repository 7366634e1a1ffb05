//! How fast QPs may send: the pacer, which gives each its rate, and the gates at which their engines wait for it.

mod gate;
mod pacer;
#[cfg(test)]
mod pacer_tests;

pub use gate::PaceGate;
pub use pacer::Pacer;
