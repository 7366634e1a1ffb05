//! Memory keys, translation and DMA.

pub mod axi;
