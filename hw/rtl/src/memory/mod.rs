//! Memory keys, translation and DMA.
