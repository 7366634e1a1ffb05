//! Memory keys, translation and DMA.

pub mod access;
pub mod atomics;
pub mod axi;
pub mod dma_read;
pub mod dma_write;
#[cfg(test)]
mod host;
pub mod keys;
pub mod landing;
pub mod mmu;
pub mod revoke;
pub mod translate;
pub mod writes;
