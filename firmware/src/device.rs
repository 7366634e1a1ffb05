//! The device behind its registers (`abi::mmio`).

use abi::{bar::FW_LOG_BYTES, mmio};
use core::arch::asm;
use plane::{Hardware, Load, Ring};

/// The registers; there is one of it.
pub struct Device {
    log: usize,
    beats: u32,
}

fn read(offset: usize) -> u32 {
    // SAFETY: a register of `abi::mmio`; reading has no effect on memory.
    unsafe { ((mmio::BASE + offset) as *const u32).read_volatile() }
}

fn write(offset: usize, value: u32) {
    // SAFETY: a register of `abi::mmio`. The only writes with an effect on RAM are those of `Device::transfer`.
    unsafe { ((mmio::BASE + offset) as *mut u32).write_volatile(value) }
}

fn write_wide(offset: usize, value: u64) {
    write(offset, value as u32);
    write(offset + 4, (value >> 32) as u32);
}

/// Waits for an engine; what its register then reads.
fn wait(go: usize) -> u32 {
    loop {
        let status = read(go);
        if status & 1 == 0 {
            return status;
        }
    }
}

/// Starts an engine and waits for it.
fn go(register: usize, how: u32) -> u32 {
    write(register, how);
    wait(register)
}

impl Device {
    pub fn new() -> Self {
        Device { log: 0, beats: 0 }
    }

    /// Bytes of RAM.
    pub fn ram(&self) -> usize {
        read(mmio::RAM) as usize
    }

    /// Lets the watchdog see that the firmware lives.
    pub fn beat(&mut self) {
        self.beats = self.beats.wrapping_add(1);
        write(mmio::FW_HEARTBEAT, self.beats);
    }

    /// From now on the driver may send commands.
    pub fn announce(&mut self, version: u32) {
        let line = [*b"ready, reset cause 0   \n", *b"ready, reset cause 1   \n", *b"ready, reset cause 2   \n"];
        plane::Hardware::log(self, &line[read(mmio::RESET_CAUSE) as usize % 3]);
        write(mmio::FW_VERSION, version);
        write(mmio::READY, 1);
    }

    /// Moves bytes between host and RAM.
    fn transfer(&mut self, host: u64, local: usize, words: usize, to_host: u32) -> bool {
        write_wide(mmio::DMA_HOST, host);
        write(mmio::DMA_LOCAL, local as u32);
        // SAFETY: empty; tells the compiler that memory is read and written here, as the DMA engine does.
        unsafe { asm!("", in("a0") local, options(nostack, preserves_flags)) };
        let status = go(mmio::DMA_GO, words as u32 * 4 | to_host << 16);
        // SAFETY: as above.
        unsafe { asm!("", in("a0") local, options(nostack, preserves_flags)) };
        status & 2 == 0
    }
}

impl Hardware for Device {
    fn limits(&self) -> [u32; 2] {
        [read(mmio::LIMITS), read(mmio::LIMITS2)]
    }

    fn port(&self) -> u32 {
        read(mmio::PORT)
    }

    fn producer(&self) -> u32 {
        read(mmio::CMD_PRODUCER)
    }

    fn ring(&self) -> Ring {
        let base = read(mmio::CMD_BASE) as u64 | (read(mmio::CMD_BASE + 4) as u64) << 32;
        Ring { base, log2: read(mmio::CMD_LOG2) & 7 }
    }

    fn answered(&mut self, count: u32) {
        write(mmio::CMD_CONSUMER, count);
    }

    #[inline(never)]
    fn commit(&mut self, table: u8, index: u32, row: &[u32]) {
        for (i, word) in row.iter().enumerate() {
            write(mmio::ROW + 4 * i, *word);
        }
        go(mmio::TABLE_GO, table as u32 | 1 << 4 | index << 8);
    }

    fn fetch(&mut self, table: u8, index: u32, words: &mut [u32]) {
        go(mmio::TABLE_GO, table as u32 | index << 8);
        for (i, word) in words.iter_mut().enumerate() {
            *word = read(mmio::ROW + 4 * i);
        }
    }

    fn dma_read(&mut self, host: u64, words: &mut [u32]) -> bool {
        self.transfer(host, words.as_mut_ptr() as usize, words.len(), 0)
    }

    fn dma_write(&mut self, host: u64, words: &[u32]) -> bool {
        self.transfer(host, words.as_ptr() as usize, words.len(), 1)
    }

    fn load_mtt(&mut self, list: u64, first: u32, count: u32, page_shift: u32) -> Load {
        write_wide(mmio::MTT_LIST, list);
        write(mmio::MTT_FIRST, first);
        write(mmio::MTT_SHIFT, page_shift);
        match go(mmio::MTT_GO, count) {
            0 => Load::Done,
            status if status & 2 != 0 => Load::BusError,
            _ => Load::BadAddress,
        }
    }

    fn ask(&self) -> u32 {
        read(mmio::ASK)
    }

    fn drain(&mut self) {
        self.beat();
        go(mmio::DRAIN_GO, 1);
    }

    fn event(&mut self, eqn: u8, kind: u8, number: u32, value: u32) {
        write(mmio::EVENT_NUMBER, number);
        write(mmio::EVENT_VALUE, value);
        go(mmio::EVENT_GO, eqn as u32 | (kind as u32) << 8);
    }

    fn log(&mut self, line: &[u8]) {
        for word in line.chunks_exact(4) {
            write(mmio::LOG + self.log, u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
            self.log = (self.log + 4) % FW_LOG_BYTES;
        }
        write(mmio::FW_LOG_HEAD, self.log as u32);
    }
}
