//! What runs before and instead of Rust on the core: reset entry and panic.

use core::{arch::global_asm, cell::UnsafeCell, panic::PanicInfo};
use plane::{Mailbox, Plane};

/// The control plane's memory. It starts as zeros, so that it takes no room in the image.
struct Memory(UnsafeCell<(Plane, Mailbox)>);

// SAFETY: one core, no interrupts.
unsafe impl Sync for Memory {}

static MEMORY: Memory = Memory(UnsafeCell::new((Plane::new(), Mailbox::new())));

// The core starts at address 0, where `link.x` puts `.init`.
global_asm!(
    ".section .init, \"ax\"",
    ".global _start",
    "_start:",
    "    la   sp, _stack_top",
    "    la   t0, _sbss",
    "    la   t1, _ebss",
    "1:  bgeu t0, t1, 2f",
    "    sw   zero, 0(t0)",
    "    addi t0, t0, 4",
    "    j    1b",
    "2:  call start_rust",
);

#[unsafe(no_mangle)]
extern "C" fn start_rust() -> ! {
    // SAFETY: called once, by `_start`; nobody else uses `MEMORY`.
    let (plane, mailbox) = unsafe { &mut *MEMORY.0.get() };
    crate::run(plane, mailbox)
}

/// Stops for good: the watchdog in hardware then raises its event, and the data path goes on.
#[panic_handler]
fn panic(_: &PanicInfo) -> ! {
    loop {
        core::hint::spin_loop();
    }
}
