//! The NIC's control plane, on its RISC-V core: start-up, the device behind its registers, the command loop. What it
//! does is in the crate `plane`.
//!
//! On the host this is an empty program, so that `cargo test` here runs the tests of the other crates.
#![cfg_attr(target_arch = "riscv32", no_std, no_main)]

#[cfg(target_arch = "riscv32")]
mod device;
#[cfg(target_arch = "riscv32")]
mod start;

#[cfg(target_arch = "riscv32")]
/// Called by `start` once memory is ready.
fn run(device: &mut device::Device, plane: &mut plane::Plane, mailbox: &mut plane::Mailbox) -> ! {
    plane.start(device);
    mailbox.start(device);
    device.announce(plane::VERSION);
    loop {
        device.beat();
        mailbox.watch_link(plane, device);
        plane.watch_drains(device);
        // By turns: neither queue pairs that ask nor commands hold the others up.
        plane.watch_asks(device);
        while mailbox.step(plane, device) {
            device.beat();
            plane.watch_asks(device);
        }
    }
}

#[cfg(not(target_arch = "riscv32"))]
fn main() {}
