//! The NIC's control plane, for its RISC-V core: no operating system, no heap.
//!
//! On the host this is an empty program, so that `cargo test` here runs the tests of its modules.
#![cfg_attr(target_arch = "riscv32", no_std, no_main)]

#[cfg(target_arch = "riscv32")]
mod start;

/// Called by `start` once memory is ready.
#[cfg_attr(not(target_arch = "riscv32"), allow(dead_code))]
fn run() -> ! {
    loop {
        core::hint::spin_loop();
    }
}

#[cfg(not(target_arch = "riscv32"))]
fn main() {}
