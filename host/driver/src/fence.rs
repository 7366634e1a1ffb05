//! Order between memory and the device, which the language's fences do not give: theirs is among processors.
//!
//! A register access is fenced where it is made ([`Bar`](crate::bar::Bar), [`Doorbell`](crate::bar::Doorbell)), so nothing else has to be.

/// What was written to memory before is visible to the device before it sees a register written from here on.
#[inline(always)]
pub(crate) fn to_device() {
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    // Stores stay in order, those to uncached device memory as well: only the compiler has to keep it.
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier changes nothing; without `nomem` the compiler moves no access across it.
    unsafe {
        core::arch::asm!("dmb oshst", options(nostack, preserves_flags))
    }
    #[cfg(target_arch = "riscv64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("fence w, ow", options(nostack, preserves_flags))
    }
}

/// What is read from memory from here on is at least as new as what was read of the device, or of what it wrote, before.
#[inline(always)]
pub(crate) fn from_device() {
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    // Loads stay in order.
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as in `to_device`.
    unsafe {
        core::arch::asm!("dmb oshld", options(nostack, preserves_flags))
    }
    #[cfg(target_arch = "riscv64")]
    // SAFETY: as in `to_device`.
    unsafe {
        core::arch::asm!("fence ir, r", options(nostack, preserves_flags))
    }
}

#[cfg(not(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
compile_error!("host/driver/src/fence.rs does not say how this architecture orders memory and device accesses");
