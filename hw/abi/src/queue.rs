//! What lies in host memory and in the doorbell pages: send and receive WQEs, CQEs, EQEs, doorbells.
//!
//! Ring indices run free modulo 2^16 (WQE blocks of a send ring, SGEs of a receive ring), 2^24 (CQEs and EQEs): producer minus consumer is the fill, no slot
//! stays spare and nothing is cleared. A *phase* bit tells a new entry from an old one: it is the inverse of bit
//! `log2(entries)` of the index, so the first lap writes 1.

use crate::{layout, numbers};

/// Size of a WQE block; a send WQE takes 1 to [`MAX_WQE_BLOCKS`] of them and wraps the ring end block by block.
pub const WQE_BLOCK: usize = 64;
/// Most blocks of one send WQE.
pub const MAX_WQE_BLOCKS: usize = 4;
/// Most scatter/gather entries of a WQE. A receive WQE is one block of them, or one alone where receives have no more; a send WQE
/// has two in its first block and two at the start of its second.
pub const MAX_SGE: usize = 4;
/// Log2 of most blocks of a receive ring: 2^15 SGEs.
pub const MAX_RECV_LOG2: u32 = 13;
/// Offset of the first SGE, or of inline data, in a send WQE.
pub const SEND_PAYLOAD_OFFSET: usize = 32;
/// Most bytes of inline data.
pub const MAX_INLINE: usize = MAX_WQE_BLOCKS * WQE_BLOCK - SEND_PAYLOAD_OFFSET;
/// Bytes that an atomic reads and writes, at an address that is a multiple of that; also those of its one SGE.
pub const ATOMIC_BYTES: usize = 8;
/// Offset in the WQE of an atomic of what it sends, as wire bytes: 8 that it swaps in or adds, 8 that it compares with (0 if it adds).
pub const ATOMIC_OFFSET: usize = SEND_PAYLOAD_OFFSET;
/// Offset there of the SGE that takes what was in memory, a number in the host's order.
pub const ATOMIC_SGE_OFFSET: usize = ATOMIC_OFFSET + 2 * ATOMIC_BYTES;
/// Longest message (IBTA 9.7.3).
pub const MAX_MESSAGE: u64 = 1 << 31;

numbers! {
    /// Send opcodes, in [`send_wqe::OPCODE`]. The WQE of an atomic is one block, of `LENGTH` 8; its `INLINE` and `SGES` say nothing. The
    /// same goes for that of an atomic write, whose 8 bytes stand where inline data do.
    /// That of a LOCAL_INV, which invalidates a key of this NIC, has the key in place of the `LENGTH`; what is posted behind it waits until
    /// it is done.
    pub mod send_op: u8 {
        SEND = 0;
        SEND_IMM = 1;
        WRITE = 2;
        WRITE_IMM = 3;
        READ = 4;
        COMPARE_SWAP = 5;
        FETCH_ADD = 6;
        SEND_INV = 7;
        LOCAL_INV = 8;
        BIND_MW = 9;
        REG_MR = 10;
        ATOMIC_WRITE = 12;
    }
}

layout! {
    /// First block of a send work queue entry.
    pub mod send_wqe: 64 {
        /// One of `send_op`.
        OPCODE = 0, 8;
        /// Completes with a CQE.
        SIGNALED = 8, 1;
        /// Sets the solicited-event bit of the last packet.
        SOLICITED = 9, 1;
        /// Waits until all earlier READs and atomics of this QP are complete.
        FENCE = 10, 1;
        /// The payload stands in the WQE, from byte 32 on, in place of SGEs.
        INLINE = 11, 1;
        /// Blocks of this WQE, 1 to 4.
        BLOCKS = 16, 3;
        /// Scatter/gather entries, 0 to `MAX_SGE`.
        SGES = 20, 3;
        /// Immediate data, or the key to invalidate, as 4 wire bytes.
        IMM = 32, 32;
        /// Remote virtual address of WRITE, READ and atomics. UD: [`ud_target`](super::ud_target).
        REMOTE_VA = 64, 64;
        /// Remote key. UD: Q_Key.
        RKEY = 128, 32;
        /// Length of the message in bytes; equals the sum of the SGEs.
        LENGTH = 160, 32;
        /// Free-running block index of this block: what a direct WQE is matched by.
        INDEX = 192, 16;
        /// QP number: what a direct WQE is addressed by.
        QPN = 224, 24;
    }
}

layout! {
    /// REG_MR and BIND_MW: a block of [`send_wqe`] of no length, whose `REMOTE_VA` is the first virtual address and `RKEY`
    /// the key from now on, with any key byte.
    pub mod key_wqe: 64 {
        /// Access flags, as `table::access`.
        ACCESS = 256, 4;
        /// BIND_MW: key of the region.
        LKEY = 288, 32;
        /// Bytes.
        SIZE = 320, 64;
        /// REG_MR: its first page in the list that the region was made with.
        PAGES = 384, 32;
    }
}

layout! {
    /// Where a UD message goes, in `send_wqe::REMOTE_VA`.
    pub mod ud_target: 8 {
        /// Address handle.
        AH = 0, 12;
        /// QP number there.
        QPN = 32, 24;
    }
}

/// Bytes in front of a UD message in its receive: an IPv6 header, or 20 bytes of nothing and an IPv4 header.
pub const UD_HEADER: usize = 40;

layout! {
    /// Scatter/gather entry, 16 bytes; length 0 is allowed anywhere and names no memory.
    pub mod sge: 16 {
        /// Virtual address.
        VA = 0, 64;
        /// Local key.
        LKEY = 64, 32;
        /// Bytes.
        LENGTH = 96, 32;
    }
}

/// Length of an SGE that is no receive: in a shared receive queue it is passed over. (The upper two bits tell.)
pub const HOLE: u32 = 3 << 30;

numbers! {
    /// What a CQE completes, in [`cqe::OPCODE`]: the send opcode, or one of these.
    pub mod recv_op: u8 {
        RECV = 0x80;
        RECV_IMM = 0x81;
        RECV_WRITE_IMM = 0x82;
        RECV_INV = 0x83;
    }
}

layout! {
    /// Completion queue entry, 32 bytes, written as one aligned burst.
    pub mod cqe: 32 {
        /// QP number.
        QPN = 0, 24;
        /// One of `status::wc`.
        STATUS = 24, 8;
        /// Index of the WQE's first block (send) or first SGE (receive).
        WQE_INDEX = 32, 16;
        /// Names the cause of an error: one of `status::cause`.
        SYNDROME = 48, 8;
        /// Send opcode, or one of `recv_op`.
        OPCODE = 56, 8;
        /// Bytes received or sent; of a UD message with the [`UD_HEADER`](super::UD_HEADER) bytes in front of it.
        LENGTH = 64, 32;
        /// Immediate data, or the key that was invalidated, as 4 wire bytes.
        IMM = 96, 32;
        /// Sender's QP number (UD).
        SRC_QPN = 128, 24;
        /// VLAN tag of the packet, 0 for none.
        VLAN = 160, 16;
        /// P_Key index.
        PKEY_INDEX = 176, 16;
        /// Clock of the device when the CQE was made, in cycles.
        TIMESTAMP = 192, 48;
        /// Blocks that the send WQE took.
        BLOCKS = 240, 3;
        /// Phase.
        PHASE = 248, 1;
    }
}

numbers! {
    /// Event types, in [`eqe::TYPE`].
    pub mod event: u8 {
        /// An armed CQ has a new entry; number = CQN.
        COMPLETION = 1;
        /// A CQ ran over; number = CQN.
        CQ_ERROR = 2;
        /// A QP went to ERR without a WQE to tell it; number = QPN, data = cause. Also of a shared receive queue, from which no
        /// more is taken than is on chip.
        QP_ERROR = 3;
        /// A command finished; number = slot.
        COMMAND = 4;
        /// Link up (data 1) or down (data 0).
        PORT = 5;
        /// A doorbell was refused; number = object, data = cause.
        DOORBELL = 6;
        /// Device health changed: the firmware stopped, or the host refused an access for the first time since the reset; data = health register.
        HEALTH = 7;
        /// The send queue of a QP in SQD has drained, all that it completed is in its CQ; number = QPN.
        SQ_DRAINED = 8;
        /// A row of context is damaged (parity): number = row, data = table (`table::id`). The device acts on it no more.
        PARITY = 9;
        /// Fewer receives than its limit are posted to a shared receive queue, which is not armed any more; number = SRQ.
        SRQ_LIMIT = 10;
        /// A QP in ERR takes no more receives from its shared receive queue: those that it took are complete, but for one that a
        /// message under way has, which is the driver's to flush; number = QPN.
        LAST_WQE = 11;
    }
}

layout! {
    /// Event queue entry, 16 bytes.
    pub mod eqe: 16 {
        /// One of `event`.
        TYPE = 0, 8;
        /// Object's number.
        NUMBER = 32, 24;
        /// Depends on the type.
        DATA = 64, 32;
        /// Phase.
        PHASE = 120, 1;
    }
}

/// Doorbells: offsets in a 4 KiB page of BAR2; the page number is the owner of the objects it may ring.
pub mod doorbell {
    /// Bytes of a doorbell page.
    pub const PAGE: usize = 4096;
    /// Send queue: [`ring`](super::ring_db).
    pub const SQ: usize = 0x00;
    /// Receive queue: [`ring`](super::ring_db).
    pub const RQ: usize = 0x08;
    /// Completion queue: [`cq`](super::cq_db).
    pub const CQ: usize = 0x10;
    /// Event queue: [`eq`](super::eq_db).
    pub const EQ: usize = 0x18;
    /// Direct WQE: all its blocks, at most [`DIRECT_BLOCKS`], as 8-byte stores in ascending order, then the SQ doorbell.
    pub const DIRECT_WQE: usize = 0x80;
    /// Blocks of the longest direct WQE.
    pub const DIRECT_BLOCKS: usize = 2;
}

layout! {
    /// SQ and RQ doorbell.
    pub mod ring_db: 8 {
        /// QP number.
        NUMBER = 0, 24;
        /// Producer index in blocks, or in SGEs of a receive ring, free-running. What stands for a part of a receive posts none.
        PRODUCER = 32, 16;
    }
}

layout! {
    /// CQ doorbell: frees entries and may arm the CQ.
    pub mod cq_db: 8 {
        /// CQ number.
        NUMBER = 0, 24;
        /// Arms for the next completion.
        ARM = 24, 1;
        /// Arms for the next solicited completion or error only; what it is armed for already stays.
        ARM_SOLICITED = 25, 1;
        /// Arm sequence: an arm with the number of the one before is that one again, and does nothing.
        SEQUENCE = 26, 2;
        /// Consumer index, free-running: entries below it are free. An armed CQ whose producer is beyond it fires at once.
        CONSUMER = 32, 24;
    }
}

layout! {
    /// EQ doorbell: frees entries and may arm the interrupt.
    pub mod eq_db: 8 {
        /// EQ number.
        NUMBER = 0, 24;
        /// Arms the interrupt.
        ARM = 24, 1;
        /// Consumer index, free-running.
        CONSUMER = 32, 24;
    }
}
