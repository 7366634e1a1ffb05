//! BAR0: registers. 4-byte accesses unless a register says 8. Reserved offsets read 0 and ignore writes.

/// BAR0 size in bytes.
pub const BAR0_BYTES: usize = 0x1_0000;
/// `MAGIC` reads this: "FRCE".
pub const MAGIC_VALUE: u32 = 0x4543_5246;

/// Who may do what with a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read only.
    Ro,
    /// Read and write.
    Rw,
    /// Write only; reads 0.
    Wo,
}

/// A register of BAR0, for the reference page.
#[derive(Clone, Copy, Debug)]
pub struct Register {
    /// Name.
    pub name: &'static str,
    /// Byte offset in BAR0.
    pub offset: usize,
    /// Bytes: 4 or 8.
    pub bytes: usize,
    /// Access.
    pub access: Access,
    /// What it means.
    pub doc: &'static str,
}

macro_rules! registers {
    ($( $(#[doc = $doc:literal])* $name:ident = $offset:literal, $bytes:literal, $access:ident; )*) => {
        $( $(#[doc = $doc])* pub const $name: usize = $offset; )*
        /// All registers in ascending order.
        pub const REGISTERS: &[$crate::bar::Register] = &[$($crate::bar::Register {
            name: stringify!($name), offset: $offset, bytes: $bytes, access: $crate::bar::Access::$access,
            doc: concat!($($doc),*),
        }),*];
        const _: () = {
            let mut i = 1;
            while i < REGISTERS.len() {
                let r = REGISTERS[i - 1];
                assert!(r.offset + r.bytes <= REGISTERS[i].offset, "registers overlap");
                i += 1;
            }
        };
    };
}
pub(crate) use registers;

registers! {
    /// Reads `MAGIC_VALUE`; all ones means that the device is gone.
    MAGIC = 0x000, 4, Ro;
    /// `ABI_VERSION` of the gates.
    ABI_VERSION = 0x004, 4, Ro;
    /// Hash of the Verilog that the gates were built from: of all of its text, with zero in the hash's own place.
    BUILD_HASH = 0x008, 4, Ro;
    /// Data path: bits 9:0 width in bits, bits 25:16 clock in MHz.
    DATAPATH = 0x00c, 4, Ro;
    /// Limits as powers of two: bits 7:0 QPs, 15:8 CQs, 23:16 memory keys, 31:24 EQs.
    LIMITS = 0x010, 4, Ro;
    /// Limits as powers of two: bits 7:0 MTT entries, 15:8 doorbell pages, 22:16 outstanding messages per QP, 31:24 outstanding READs per QP. Bit 23: QPs can have rates.
    LIMITS2 = 0x014, 4, Ro;
    /// Bit 0 firmware runs; bit 1 firmware stopped beating; bit 2 parity error; bit 3 an access that the host refused; bit 4 EQ overrun; bits 31:16 resets of device or firmware since power-up.
    HEALTH = 0x018, 4, Ro;
    /// Version of the running firmware.
    FW_VERSION = 0x01c, 4, Ro;
    /// Counts up while the firmware lives.
    FW_HEARTBEAT = 0x020, 4, Ro;
    /// Writing 1 resets the device as a function-level reset does; reads 1 until it is done.
    RESET = 0x024, 4, Rw;
    /// Bit 0 holds the soft core in reset; the image can then be loaded. Where it was not held before, the device is reset too, as by `RESET`.
    FW_CONTROL = 0x028, 4, Rw;
    /// Byte address of the next image word.
    FW_ADDRESS = 0x02c, 4, Rw;
    /// Writes an image word and steps the address by 4.
    FW_DATA = 0x030, 4, Wo;
    /// Bit 0: the firmware is ready for commands.
    READY = 0x034, 4, Ro;
    /// Address of the command ring in host memory, aligned to its size.
    CMD_BASE = 0x040, 8, Rw;
    /// Log2 of the ring's slots (0 to 6).
    CMD_LOG2 = 0x048, 4, Rw;
    /// Producer: free-running count of commands written. Where it is more than 64 ahead of the consumer, which no ring holds, nothing is
    /// executed until it is set right, and the firmware's log says so.
    CMD_PRODUCER = 0x04c, 4, Rw;
    /// Consumer: free-running count of commands answered.
    CMD_CONSUMER = 0x050, 4, Ro;
    /// Free-running clock in cycles.
    CLOCK = 0x058, 8, Ro;
    /// Bit 0 link up; bits 31:16 MTU of the port in bytes.
    PORT = 0x060, 4, Ro;
    /// Station address, first wire byte in bits 7:0.
    MAC = 0x068, 8, Ro;
    /// Write offset of the firmware's log ring (window at `FW_LOG`).
    FW_LOG_HEAD = 0x078, 4, Ro;
    /// For tests: while bit 4 is set, rows written to table bits 3:0 (`table::id`: QP_SEND, QP_RECV, CQ, EQ, KEY) are stored damaged, by one bit.
    PARITY_TEST = 0x07c, 4, Rw;
}

/// Bit of `LIMITS2`: QPs can have rates.
pub const PACES: u32 = 1 << 23;

/// Bits of `HEALTH`.
pub mod health {
    use crate::Field;
    /// The firmware runs.
    pub const READY: u32 = 1 << 0;
    /// It stopped beating.
    pub const SILENT: u32 = 1 << 1;
    /// A parity error, until the device is reset.
    pub const PARITY: u32 = 1 << 2;
    /// The host refused an access to its memory, until the device is reset: what was to be written is lost.
    pub const BUS: u32 = 1 << 3;
    /// All of the state.
    pub const STATE: u32 = 0xffff;
    /// Resets of device or firmware since power-up: who has seen another number knows nothing of the device's objects.
    pub const RESETS: Field = Field { name: "RESETS", lsb: 16, bits: 16, doc: "" };
}

/// Counters: 64-bit each, `COUNTERS + 8 * index`, indices from `status::counter`.
pub const COUNTERS: usize = 0x1000;
/// MSI-X table: a page of its own; 16 bytes a vector as PCI defines it.
pub const MSIX_TABLE: usize = 0x2000;
/// MSI-X pending bits: a page of their own.
pub const MSIX_PBA: usize = 0x3000;
/// MSI-X vectors.
pub const MSIX_VECTORS: usize = 32;
/// The firmware's log ring: `FW_LOG_BYTES` of text.
pub const FW_LOG: usize = 0x4000;
/// Size of the log ring in bytes.
pub const FW_LOG_BYTES: usize = 1024;
