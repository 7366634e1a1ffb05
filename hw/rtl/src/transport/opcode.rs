//! What an opcode asks of the responder.

use abi::wire::{op, transport};
use hdl::prelude::*;

/// A request's opcode, taken apart.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Kind {
    /// SEND, with or without immediate or key.
    pub send: Bit,
    /// WRITE, with or without immediate.
    pub write: Bit,
    /// READ request, or an atomic or atomic write, which take a READ resource as well.
    pub read: Bit,
    /// Atomic; it adds.
    pub atomic: Bit,
    pub adds: Bit,
    /// Atomic write.
    pub puts: Bit,
    /// FIRST or ONLY, or a READ request.
    pub opens: Bit,
    /// LAST or ONLY, or a READ request.
    pub closes: Bit,
    /// Carries immediate data; a key to be invalidated.
    pub imm: Bit,
    pub inv: Bit,
    /// Of reliable connections, unreliable connections, unreliable datagrams.
    pub rc: Bit,
    pub uc: Bit,
    pub ud: Bit,
    /// Congestion notification.
    pub cnp: Bit,
}

/// Takes a BTH opcode apart. An opcode that is not implemented yet is none of `send`, `write`, `read`.
#[hdl_fn]
pub fn kind_of(opcode: Bits<8>) -> Kind {
    let low = opcode.get_bits::<5>(0);
    let write = low >= op::WRITE_FIRST && low <= op::WRITE_ONLY_IMM;
    let adds = low == op::FETCH_ADD;
    let atomic = low == op::COMPARE_SWAP || adds;
    let puts = low == op::ATOMIC_WRITE;
    let read = low == op::READ_REQUEST || atomic || puts;
    let inv = low == op::SEND_LAST_INV || low == op::SEND_ONLY_INV;
    let send_only = low == op::SEND_ONLY || low == op::SEND_ONLY_IMM || low == op::SEND_ONLY_INV;
    let write_only = low == op::WRITE_ONLY || low == op::WRITE_ONLY_IMM;
    let send_last = low == op::SEND_LAST || low == op::SEND_LAST_IMM || low == op::SEND_LAST_INV;
    let write_last = low == op::WRITE_LAST || low == op::WRITE_LAST_IMM;
    Kind {
        send: low <= op::SEND_ONLY_IMM || inv,
        write,
        read,
        atomic,
        adds,
        puts,
        opens: low == op::SEND_FIRST || low == op::WRITE_FIRST || send_only || write_only || read,
        closes: send_last || write_last || send_only || write_only || read,
        imm: low == op::SEND_LAST_IMM
            || low == op::SEND_ONLY_IMM
            || low == op::WRITE_LAST_IMM
            || low == op::WRITE_ONLY_IMM,
        inv,
        rc: (opcode & 0xe0) == transport::RC,
        uc: (opcode & 0xe0) == transport::UC,
        ud: (opcode & 0xe0) == transport::UD,
        cnp: opcode == abi::wire::CNP,
    }
}

/// Responses go to the completer, all else to the responder.
#[hdl_fn]
pub fn is_response(opcode: Bits<8>) -> Bit {
    opcode >= op::READ_RESPONSE_FIRST && opcode <= op::ATOMIC_ACK
}

/// Bytes of a path MTU code, 1 to 5.
#[hdl_fn]
pub fn mtu_bytes(code: Bits<3>) -> Bits<14> {
    match code {
        1 => 256.into(),
        2 => 512.into(),
        3 => 1024.into(),
        4 => 2048.into(),
        _ => 4096.into(),
    }
}

/// `n` PSNs in bytes: shifted by the log2 of the MTU.
#[hdl_fn]
pub fn psns_to_bytes(n: Bits<24>, mtu: Bits<3>) -> Bits<37> {
    let wide = n.cast::<37>();
    match mtu {
        1 => wide << 8,
        2 => wide << 9,
        3 => wide << 10,
        4 => wide << 11,
        _ => wide << 12,
    }
}

/// PSNs that a READ of `length` bytes takes: one per MTU, at least one.
#[hdl_fn]
pub fn response_psns(length: Bits<32>, mtu: Bits<3>) -> Bits<24> {
    let up = length.cast::<33>() + (mtu_bytes(mtu) - 1).cast::<33>();
    // By 8 bits for a code of 1, 12 for 5: in steps, which are a level or two.
    let more: Bits<3> = mtu - 1;
    let n: Bits<25> = up.get_bits::<25>(8) >> more.get_bits::<2>(0);
    let n = if more.get_bit(2) { up.get_bits::<21>(12).cast::<24>() } else { n.get_bits::<24>(0) };
    // No bytes, and only they, give none.
    n.replace_bit(0, n.get_bit(0) || !length.any())
}
