//! From frames to checked meta data and back: ingress, ICRC, frames, egress.

pub mod builder;
pub mod egress;
pub mod frames;
pub mod gids;
pub mod headers;
pub mod icrc;
pub mod ingress;
pub mod judge;
pub mod parser;
pub mod pieces;
pub mod prepare;
pub mod raw_filter;
pub mod rows;
#[cfg(test)]
mod testing;
pub mod transmit;
pub mod window;

use hdl::prelude::*;

/// Big-endian field of N bits at byte `offset`.
#[hdl_fn]
pub fn be<const M: usize, const N: usize>(bytes: Bits<M>, offset: usize) -> Bits<N> {
    bswap(bytes.get_bits::<N>(offset * 8))
}
