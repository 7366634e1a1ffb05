//! From frames to checked meta data and back: ingress, ICRC, frames, egress.

pub mod egress;
pub mod frames;
pub mod headers;
pub mod icrc;
#[cfg(test)]
mod testing;
pub mod transmit;
