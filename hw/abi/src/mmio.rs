//! What the soft core sees beside its RAM: the control registers, for the firmware.
//!
//! RAM of at most [`RAM_BYTES`], which [`RAM`] tells, lies at address 0, the registers at [`BASE`]. Accesses are 4 bytes; of an 8-byte register the
//! lower half comes first. An engine (table bus, DMA, MTT loader, drain, event) is started by a write of its `GO`
//! register and runs while that register reads 1 in bit 0; what it was given stays stable meanwhile, so the firmware
//! waits before it touches the engine's registers again. Engines run beside each other.
//!
//! The log ring is memory of the registers too: [`LOG`], [`LOG_BYTES`](crate::bar::FW_LOG_BYTES) of it, written in words.

use crate::bar::registers;

/// RAM of the soft core in bytes, at most.
pub const RAM_BYTES: usize = 512 << 10;
/// So much of it is in reach of the engines and of the host that loads the image.
pub const NEAR_BYTES: usize = 64 << 10;
/// Address of the registers.
pub const BASE: usize = 0x1000_0000;
/// Offset of the log ring, that the host sees at `bar::FW_LOG`.
pub const LOG: usize = 0x1000;
/// Words of the row window.
pub const ROW_WORDS: usize = 16;
/// Words of it that a read of a row fills: as far as its PSN. Only these can be read.
pub const READ_WORDS: usize = 3;

registers! {
    /// As `bar::CMD_BASE`.
    CMD_BASE = 0x000, 8, Ro;
    /// As `bar::CMD_LOG2`.
    CMD_LOG2 = 0x008, 4, Ro;
    /// As `bar::CMD_PRODUCER`.
    CMD_PRODUCER = 0x00c, 4, Ro;
    /// As `bar::CMD_CONSUMER`.
    CMD_CONSUMER = 0x010, 4, Wo;
    /// As `bar::READY`.
    READY = 0x014, 4, Wo;
    /// As `bar::FW_VERSION`.
    FW_VERSION = 0x018, 4, Wo;
    /// As `bar::FW_HEARTBEAT`.
    FW_HEARTBEAT = 0x01c, 4, Wo;
    /// As `bar::FW_LOG_HEAD`.
    FW_LOG_HEAD = 0x020, 4, Wo;
    /// As `bar::PORT`.
    PORT = 0x024, 4, Ro;
    /// As `bar::LIMITS`.
    LIMITS = 0x028, 4, Ro;
    /// As `bar::LIMITS2`.
    LIMITS2 = 0x02c, 4, Ro;
    /// Lower half of `bar::CLOCK`.
    CLOCK = 0x030, 4, Ro;
    /// Why the core was reset: 0 power, 1 function-level or `bar::RESET`, 2 `bar::FW_CONTROL`.
    RESET_CAUSE = 0x034, 4, Ro;
    /// As `bar::RESET`: 1 while the host asks for a reset.
    RESET = 0x038, 4, Ro;
    /// RAM of the core in bytes.
    RAM = 0x03c, 4, Ro;
    /// First word of the row window: the row to be written, or the first words of the one that was read. Its 16 words end at
    /// 0x80.
    ROW = 0x040, 4, Rw;
    /// Starts a table access: bits 3:0 table, bit 4 write, bits 31:8 row. A read gives the state of QP_STATE and the PSN of
    /// QP_SEND and QP_RECV, as they stand; of all else zeros.
    TABLE_GO = 0x080, 4, Rw;
    /// Host address of a DMA transfer, aligned to 4.
    DMA_HOST = 0x088, 8, Rw;
    /// Its RAM address, aligned to 4.
    DMA_LOCAL = 0x090, 4, Rw;
    /// Starts the transfer: bits 12:0 bytes (1 to 4096, a multiple of 4), bit 16 to the host. Reads bit 0 busy, bit 1
    /// the last transfer failed. A transfer to the host is done when its bytes have left the RAM; later writes to the
    /// host, events too, stay behind it.
    DMA_GO = 0x094, 4, Rw;
    /// Host address of a list of 8-byte page addresses, aligned to 8.
    MTT_LIST = 0x098, 8, Rw;
    /// First MTT entry to load.
    MTT_FIRST = 0x0a0, 4, Rw;
    /// Log2 of the page size.
    MTT_SHIFT = 0x0a4, 4, Rw;
    /// Starts the load of so many entries. Reads bit 0 busy, bit 1 the last load failed on the bus, bit 2 it met an
    /// address that is not aligned to the page or is 2^48 or more.
    MTT_GO = 0x0a8, 4, Rw;
    /// Starts a drain: done when all that stood in the receive ring, the transmit ring, the write channel and among the
    /// reads in flight has passed.
    DRAIN_GO = 0x0ac, 4, Rw;
    /// Number of the object of an event.
    EVENT_NUMBER = 0x0b0, 4, Rw;
    /// Value of the event.
    EVENT_VALUE = 0x0b4, 4, Rw;
    /// Raises the event: bits 7:0 event queue, 15:8 type, as `queue::event`.
    EVENT_GO = 0x0b8, 4, Rw;
    /// A WQE that waits for the firmware's verdict (`table::qp_send`): bits 15:0 its first block, 27:16 its QP, bit 31 there is one.
    ASK = 0x0bc, 4, Ro;
}
