//! What runs before and instead of Rust on the core: reset entry, memory, and panic.
//!
//! ```text
//! 0: image (code, constants, data) | .bss | the control plane's objects, as many as the device has | stack :end of RAM
//! ```
//! RAM beyond [`mmio::NEAR_BYTES`], which only a device of very many QPs has, holds these: engines reach the stack.

use abi::mmio;
use core::{arch::global_asm, panic::PanicInfo, slice};
use plane::{Counts, Ground, Handle, Key, Mailbox, Memory, Object, Plane, Qp};

/// What the stack needs at least, in bytes; it takes some 1.5 KiB.
const STACK: usize = 3 << 10;

/// `LIMITS` of the smallest card, which has 32 KiB: 32 QPs, 64 CQs, 256 keys, 8 EQs.
const SMALL: u32 = 5 | 6 << 8 | 8 << 16 | 3 << 24;
/// What its objects and stack need beside the image: `link.x` holds the image to it.
const LEAST: usize = Counts::of([SMALL, 0]).bytes() + STACK;
global_asm!(".global _least", ".set _least, {least}", least = const LEAST);

unsafe extern "C" {
    /// The end of what the image takes, from `link.x`.
    static mut _ebss: u32;
}

// The core starts at address 0, where `link.x` puts `.init`. The stack begins at the end of the RAM, which is larger on one
// card than on another, but within reach of the engines.
global_asm!(
    ".section .init, \"ax\"",
    ".global _start",
    "_start:",
    "    li   t0, {ram}",
    "    lw   sp, 0(t0)",
    "    li   t0, {near}",
    "    bltu sp, t0, 3f",
    "    mv   sp, t0",
    "3:",
    "    la   t0, _sbss",
    "    la   t1, _ebss",
    "1:  bgeu t0, t1, 2f",
    "    sw   zero, 0(t0)",
    "    addi t0, t0, 4",
    "    j    1b",
    "2:  call start_rust",
    ram = const mmio::BASE + mmio::RAM,
    near = const mmio::NEAR_BYTES,
);

/// The RAM that nobody has taken yet.
struct Rest {
    at: usize,
    end: usize,
}

impl Rest {
    /// `count` places, all of them `none`. Stops where the RAM is too small for the device.
    fn take<T: Copy>(&mut self, count: usize, none: T) -> &'static mut [T] {
        let at = self.at.next_multiple_of(align_of::<T>());
        self.at = at + count * size_of::<T>();
        assert!(self.at <= self.end);
        // SAFETY: aligned RAM behind the image and before the stack, given out once, and written before it is read.
        unsafe {
            let places = at as *mut T;
            for i in 0..count {
                places.add(i).write(none);
            }
            slice::from_raw_parts_mut(places, count)
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn start_rust() -> ! {
    let mut device = crate::device::Device::new();
    let counts = Counts::of(plane::Hardware::limits(&device));
    let near = device.ram().min(mmio::NEAR_BYTES);
    let mut rest = Rest { at: &raw mut _ebss as usize, end: near - STACK };
    let mut far = Rest { at: near, end: device.ram() };
    let mut plane = Plane::new(Memory {
        pds: rest.take(counts.pds, Object::NONE),
        cqs: rest.take(counts.cqs, Object::NONE),
        eqs: rest.take(counts.eqs, Object::NONE),
        qps: if far.at < far.end { &mut far } else { &mut rest }.take(counts.qps, Qp::NONE),
        ahs: rest.take(counts.ahs, Handle::NONE),
        keys: rest.take(counts.keys, Key::NONE),
        grounds: rest.take(counts.grounds, Ground::NONE),
    });
    crate::run(&mut device, &mut plane, &mut Mailbox::new())
}

/// Stops for good: the watchdog in hardware then raises its event, and the data path goes on.
#[panic_handler]
fn panic(_: &PanicInfo) -> ! {
    loop {
        core::hint::spin_loop();
    }
}
