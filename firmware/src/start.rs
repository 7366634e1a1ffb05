//! What runs before and instead of Rust on the core: reset entry, memory, and panic.
//!
//! ```text
//! 0: image (code, constants, data) | .bss | the control plane's objects, as many as the device has | stack :end of RAM
//! ```
//! RAM beyond [`mmio::NEAR_BYTES`], which only a device of very many QPs has, holds these: engines reach the stack.

use abi::mmio;
use core::{arch::global_asm, panic::PanicInfo, slice};
use plane::{Counts, Mailbox, Memory, Plane, Qp};

/// What the stack needs at least, in bytes; it takes some 1 KiB.
const STACK: usize = 13 << 7;

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

// Copies and fills in a fifth of the library's room, for the image must fit a small card: by words where both sides and the length are words, as in all
// that rows and commands are, else by bytes.
global_asm!(
    ".section .text.memcpy, \"ax\"",
    ".global memcpy",
    "memcpy:",
    "    mv   t0, a0",
    "    add  t2, a1, a2",
    "    or   t1, a0, a1",
    "    or   t1, t1, a2",
    "    andi t1, t1, 3",
    "    bnez t1, 3f",
    "    andi t1, a2, 4",
    "    beqz t1, 2f",
    "    lw   t1, 0(a1)",
    "    addi a1, a1, 4",
    "    sw   t1, 0(t0)",
    "    addi t0, t0, 4",
    "2:  beq  a1, t2, 4f",
    "    lw   t1, 0(a1)",
    "    lw   a3, 4(a1)",
    "    addi a1, a1, 8",
    "    sw   t1, 0(t0)",
    "    sw   a3, 4(t0)",
    "    addi t0, t0, 8",
    "    j    2b",
    "1:  lbu  t1, 0(a1)",
    "    addi a1, a1, 1",
    "    sb   t1, 0(t0)",
    "    addi t0, t0, 1",
    "3:  bne  a1, t2, 1b",
    "4:  ret",
    ".section .text.memset, \"ax\"",
    ".global memset",
    "memset:",
    "    mv   t0, a0",
    "    add  t2, a0, a2",
    // Nobody fills words with anything but zeros.
    "    or   t1, t0, t2",
    "    andi t1, t1, 3",
    "    or   t1, t1, a1",
    "    bnez t1, 3f",
    "    j    2f",
    "1:  sw   zero, 0(t0)",
    "    addi t0, t0, 4",
    "2:  bne  t0, t2, 1b",
    "    ret",
    "4:  sb   a1, 0(t0)",
    "    addi t0, t0, 1",
    "3:  bne  t0, t2, 4b",
    "    ret",
);

/// The RAM that nobody has taken yet.
struct Rest {
    at: usize,
    end: usize,
}

impl Rest {
    /// The first `bytes` of it are zero from now on, or all. Many would take long: a word takes some 15 cycles.
    fn clear(&self, bytes: usize) {
        // SAFETY: aligned RAM behind the image and before the stack, which is nobody's yet.
        unsafe { (self.at as *mut u8).write_bytes(0, bytes.min(self.end - self.at)) }
    }

    /// `count` places, all of them `NONE`, which is all zeros. Stops where the RAM is too small for the device.
    fn take<T: Copy>(&mut self, count: usize) -> &'static mut [T] {
        let at = self.at.next_multiple_of(align_of::<T>());
        self.at = at + count * size_of::<T>();
        assert!(self.at <= self.end);
        // SAFETY: aligned RAM, cleared and given out once; zeros are a `T` for all types of `Memory`, as the tests of `plane` see.
        unsafe { slice::from_raw_parts_mut(at as *mut T, count) }
    }
}

#[unsafe(no_mangle)]
extern "C" fn start_rust() -> ! {
    let mut device = crate::device::Device::new();
    let counts = Counts::of(plane::Hardware::limits(&device));
    let near = device.ram().min(mmio::NEAR_BYTES);
    let mut rest = Rest { at: &raw mut _ebss as usize, end: near - STACK };
    let mut far = Rest { at: near, end: device.ram() };
    rest.clear(usize::MAX);
    far.clear(counts.qps * size_of::<Qp>());
    let mut plane = Plane::new(Memory {
        pds: rest.take(counts.pds),
        cqs: rest.take(counts.cqs),
        eqs: rest.take(counts.eqs),
        qps: if far.at < far.end { &mut far } else { &mut rest }.take(counts.qps),
        ahs: rest.take(counts.ahs),
        keys: rest.take(counts.keys),
        grounds: rest.take(counts.grounds),
        groups: rest.take(counts.groups),
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
