//! Builds any block with Verilator and loads it.
