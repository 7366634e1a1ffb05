//! Wire headers, opcodes and their extended headers. Offsets are bytes from the start of the named header; all fields
//! are big-endian except the ICRC, which is little-endian (protocol facts: IBTA 9.2 to 9.5, annexes A16 and A17).

use crate::numbers;

/// UDP destination port of RoCE v2.
pub const ROCE_PORT: u16 = 4791;
/// Ethertype of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// Ethertype of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// Ethertype of an 802.1Q tag.
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// IP protocol number of UDP.
pub const IP_PROTO_UDP: u8 = 17;
/// Half of the PSN space: `(a - b) mod 2^24 < PSN_HALF` means a is b or later.
pub const PSN_HALF: u32 = 0x80_0000;
/// Multicast QPN.
pub const QPN_MULTICAST: u32 = 0xff_ffff;

/// Q_Keys with a meaning.
pub mod qkey {
    /// With this bit it is privileged: a work request that names one means that of its QP (IBTA 10.2.5).
    pub const PRIVILEGED: u32 = 1 << 31;
    /// That of QP 1, the general service queue pair.
    pub const QP1: u32 = 0x8001_0000;
}
/// Smallest Ethernet frame without FCS; ours are padded to it.
pub const MIN_FRAME: usize = 60;
/// Largest frame without FCS that the core takes: MTU 4096 with every header, and raw frames up to 9,000 bytes of payload.
pub const MAX_FRAME: usize = 9216;

/// Header sizes in bytes.
pub mod len {
    #![allow(missing_docs)]
    pub const ETH: usize = 14;
    pub const VLAN: usize = 4;
    pub const IPV4: usize = 20;
    pub const IPV6: usize = 40;
    pub const UDP: usize = 8;
    pub const BTH: usize = 12;
    pub const RETH: usize = 16;
    pub const AETH: usize = 4;
    pub const DETH: usize = 8;
    pub const IMM: usize = 4;
    pub const ATOMIC: usize = 28;
    pub const ATOMIC_ACK: usize = 8;
    pub const ICRC: usize = 4;
}

/// What follows the BTH of an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct OpInfo {
    /// Name as in the IBTA tables.
    pub name: &'static str,
    /// Extended headers, in this order on the wire.
    pub deth: bool,
    /// RDMA extended header.
    pub reth: bool,
    /// Atomic extended header.
    pub atomic: bool,
    /// Acknowledge extended header.
    pub aeth: bool,
    /// Atomic acknowledge extended header.
    pub atomic_ack: bool,
    /// Immediate data.
    pub imm: bool,
    /// Invalidate extended header.
    pub ieth: bool,
    /// May carry payload.
    pub payload: bool,
}

impl OpInfo {
    /// Bytes of extended headers behind the BTH.
    pub const fn ext_len(&self) -> usize {
        self.deth as usize * len::DETH
            + self.reth as usize * len::RETH
            + self.atomic as usize * len::ATOMIC
            + self.aeth as usize * len::AETH
            + self.atomic_ack as usize * len::ATOMIC_ACK
            + (self.imm as usize + self.ieth as usize) * len::IMM
    }
}

/// Transport prefixes: the upper 3 bits of the opcode.
pub mod transport {
    #![allow(missing_docs)]
    pub const RC: u8 = 0x00;
    pub const UC: u8 = 0x20;
    pub const RD: u8 = 0x40;
    pub const UD: u8 = 0x60;
    pub const CNP: u8 = 0x80;
    pub const XRC: u8 = 0xa0;
}

/// Operations: the lower 5 bits of the opcode.
pub mod op {
    #![allow(missing_docs)]
    pub const SEND_FIRST: u8 = 0x00;
    pub const SEND_MIDDLE: u8 = 0x01;
    pub const SEND_LAST: u8 = 0x02;
    pub const SEND_LAST_IMM: u8 = 0x03;
    pub const SEND_ONLY: u8 = 0x04;
    pub const SEND_ONLY_IMM: u8 = 0x05;
    pub const WRITE_FIRST: u8 = 0x06;
    pub const WRITE_MIDDLE: u8 = 0x07;
    pub const WRITE_LAST: u8 = 0x08;
    pub const WRITE_LAST_IMM: u8 = 0x09;
    pub const WRITE_ONLY: u8 = 0x0a;
    pub const WRITE_ONLY_IMM: u8 = 0x0b;
    pub const READ_REQUEST: u8 = 0x0c;
    pub const READ_RESPONSE_FIRST: u8 = 0x0d;
    pub const READ_RESPONSE_MIDDLE: u8 = 0x0e;
    pub const READ_RESPONSE_LAST: u8 = 0x0f;
    pub const READ_RESPONSE_ONLY: u8 = 0x10;
    pub const ACK: u8 = 0x11;
    pub const ATOMIC_ACK: u8 = 0x12;
    pub const COMPARE_SWAP: u8 = 0x13;
    pub const FETCH_ADD: u8 = 0x14;
    pub const SEND_LAST_INV: u8 = 0x16;
    pub const SEND_ONLY_INV: u8 = 0x17;
    pub const ATOMIC_WRITE: u8 = 0x1d;
}

/// Congestion notification packet.
pub const CNP: u8 = 0x81;

/// The extended headers of `opcode`, or `None` when the opcode is reserved or Ferroce does not speak its transport.
pub const fn op_info(opcode: u8) -> Option<OpInfo> {
    const NONE: OpInfo = OpInfo {
        name: "",
        deth: false,
        reth: false,
        atomic: false,
        aeth: false,
        atomic_ack: false,
        imm: false,
        ieth: false,
        payload: false,
    };
    const DATA: OpInfo = OpInfo { payload: true, ..NONE };
    if opcode == CNP {
        return Some(OpInfo { name: "CNP", payload: true, ..NONE });
    }
    let (prefix, low) = (opcode & 0xe0, opcode & 0x1f);
    let ud = prefix == transport::UD;
    let info = match low {
        op::SEND_FIRST => OpInfo { name: "SEND_FIRST", ..DATA },
        op::SEND_MIDDLE => OpInfo { name: "SEND_MIDDLE", ..DATA },
        op::SEND_LAST => OpInfo { name: "SEND_LAST", ..DATA },
        op::SEND_LAST_IMM => OpInfo { name: "SEND_LAST_IMM", imm: true, ..DATA },
        op::SEND_ONLY => OpInfo { name: "SEND_ONLY", deth: ud, ..DATA },
        op::SEND_ONLY_IMM => OpInfo { name: "SEND_ONLY_IMM", deth: ud, imm: true, ..DATA },
        op::WRITE_FIRST => OpInfo { name: "WRITE_FIRST", reth: true, ..DATA },
        op::WRITE_MIDDLE => OpInfo { name: "WRITE_MIDDLE", ..DATA },
        op::WRITE_LAST => OpInfo { name: "WRITE_LAST", ..DATA },
        op::WRITE_LAST_IMM => OpInfo { name: "WRITE_LAST_IMM", imm: true, ..DATA },
        op::WRITE_ONLY => OpInfo { name: "WRITE_ONLY", reth: true, ..DATA },
        op::WRITE_ONLY_IMM => OpInfo { name: "WRITE_ONLY_IMM", reth: true, imm: true, ..DATA },
        op::READ_REQUEST => OpInfo { name: "READ_REQUEST", reth: true, ..NONE },
        op::READ_RESPONSE_FIRST => OpInfo { name: "READ_RESPONSE_FIRST", aeth: true, ..DATA },
        op::READ_RESPONSE_MIDDLE => OpInfo { name: "READ_RESPONSE_MIDDLE", ..DATA },
        op::READ_RESPONSE_LAST => OpInfo { name: "READ_RESPONSE_LAST", aeth: true, ..DATA },
        op::READ_RESPONSE_ONLY => OpInfo { name: "READ_RESPONSE_ONLY", aeth: true, ..DATA },
        op::ACK => OpInfo { name: "ACKNOWLEDGE", aeth: true, ..NONE },
        op::ATOMIC_ACK => OpInfo { name: "ATOMIC_ACKNOWLEDGE", aeth: true, atomic_ack: true, ..NONE },
        op::COMPARE_SWAP => OpInfo { name: "COMPARE_SWAP", atomic: true, ..NONE },
        op::FETCH_ADD => OpInfo { name: "FETCH_ADD", atomic: true, ..NONE },
        op::SEND_LAST_INV => OpInfo { name: "SEND_LAST_INV", ieth: true, ..DATA },
        op::SEND_ONLY_INV => OpInfo { name: "SEND_ONLY_INV", ieth: true, ..DATA },
        op::ATOMIC_WRITE => OpInfo { name: "ATOMIC_WRITE", reth: true, ..DATA },
        _ => return None,
    };
    let known = match prefix {
        transport::RC => true,
        transport::UC => low <= op::WRITE_ONLY_IMM,
        transport::UD => low == op::SEND_ONLY || low == op::SEND_ONLY_IMM,
        _ => false,
    };
    if known { Some(info) } else { None }
}

numbers! {
    /// Acknowledge syndromes (AETH byte 0).
    pub mod syndrome: u8 {
        /// ACK without credit information.
        ACK = 0x1f;
        /// RNR NAK: or-ed with the 5-bit timer code.
        RNR = 0x20;
        NAK_PSN = 0x60;
        NAK_INVALID_REQUEST = 0x61;
        NAK_REMOTE_ACCESS = 0x62;
        NAK_REMOTE_OPERATION = 0x63;
    }
}

/// RNR timer codes 0..31 in units of 10 microseconds (IBTA table 45).
pub const RNR_TIMER_10US: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
    6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// Path MTU codes 1..=5 (256 to 4096 bytes): `256 << (code - 1)`.
pub const fn mtu_bytes(code: u8) -> Option<usize> {
    if code >= 1 && code <= 5 { Some(256 << (code - 1)) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extended_headers_have_the_lengths_of_the_opcode_table() {
        assert_eq!(op_info(op::WRITE_ONLY_IMM).unwrap().ext_len(), 20);
        assert_eq!(op_info(op::ATOMIC_ACK).unwrap().ext_len(), 12);
        assert_eq!(op_info(transport::UD | op::SEND_ONLY_IMM).unwrap().ext_len(), 12);
        assert_eq!(op_info(0x15), None);
        assert_eq!(op_info(transport::UC | op::READ_REQUEST), None);
        assert_eq!((0..=255).filter(|o| op_info(*o).is_some()).count(), 24 + 12 + 2 + 1);
    }
}
