//! From frames to checked meta data and back: ingress, ICRC, frames, egress.
pub mod icrc;
#[cfg(test)]
mod testing;
