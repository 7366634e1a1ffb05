//! Memory keys, translation and DMA.

pub mod axi;
pub mod dma_read;
pub mod dma_write;
#[cfg(test)]
mod host;
