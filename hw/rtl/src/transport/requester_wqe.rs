//! A send WQE, taken apart and checked.

use abi::{
    queue::{MAX_MESSAGE, send_op, send_wqe, sge},
    status::{cause, wc},
    table::qp_type,
    wire::{MAX_FRAME, len, op},
};
use hdl::prelude::*;

/// The head of a send WQE (`abi::queue::send_wqe`).
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Wqe {
    pub opcode: Bits<8>,
    pub signaled: Bit,
    pub solicited: Bit,
    pub fence: Bit,
    pub is_inline: Bit,
    pub blocks: Bits<3>,
    pub sges: Bits<3>,
    pub imm: Bits<32>,
    pub va: Bits<64>,
    pub rkey: Bits<32>,
    pub length: Bits<32>,
}

/// Takes the head out of a WQE's first block.
#[hdl_fn]
pub fn wqe_of(block: Bits<512>) -> Wqe {
    Wqe {
        opcode: block.get_bits::<8>(elab!(send_wqe::OPCODE.lsb)),
        signaled: block.get_bit(elab!(send_wqe::SIGNALED.lsb)),
        solicited: block.get_bit(elab!(send_wqe::SOLICITED.lsb)),
        fence: block.get_bit(elab!(send_wqe::FENCE.lsb)),
        is_inline: block.get_bit(elab!(send_wqe::INLINE.lsb)),
        blocks: block.get_bits::<3>(elab!(send_wqe::BLOCKS.lsb)),
        sges: block.get_bits::<3>(elab!(send_wqe::SGES.lsb)),
        imm: block.get_bits::<32>(elab!(send_wqe::IMM.lsb)),
        va: block.get_bits::<64>(elab!(send_wqe::REMOTE_VA.lsb)),
        rkey: block.get_bits::<32>(elab!(send_wqe::RKEY.lsb)),
        length: block.get_bits::<32>(elab!(send_wqe::LENGTH.lsb)),
    }
}

/// Half of a WQE's SGEs, of 0 and 1 or of 2 and 3, those beyond its `count` empty.
#[hdl_fn]
pub fn sges_of(pair: Bits<256>, from: usize, count: Bits<3>) -> Bits<256> {
    let mut empty: Bits<256> = 0.into();
    let ones: Bits<256> = (!bits::<32>(0)).cast::<256>();
    for i in 0..2 {
        if count <= from + i {
            empty = empty | ones << elab!(128 * i as u64 + sge::LENGTH.lsb as u64);
        }
    }
    pair & !empty
}

/// Why a WQE of a QP of type `kind` cannot be executed (`abi::status::cause`), or 0; the sum of its SGEs is not checked.
#[hdl_fn]
pub fn fault_of(wqe: Wqe, kind: Bits<2>, max_reads: Bits<5>) -> Bits<8> {
    let read = wqe.opcode == send_op::READ;
    let raw = kind == qp_type::RAW;
    let known = if raw {
        wqe.opcode == send_op::SEND
    } else {
        wqe.opcode <= send_op::READ && kind == qp_type::RC && !(read && !max_reads.any())
    };
    let blocks = wqe.blocks;
    let counts = blocks.any() && blocks <= 4 && wqe.sges <= 4;
    let holds = if wqe.is_inline { !read } else { wqe.sges <= 2 || blocks >= 2 };
    // Inline data fill the blocks from byte 32 on.
    let room = cat!(32; bits::<23>(0), blocks, bits::<6>(0)) - 32;
    let most: Bits<32> = if raw { bits::<32>(MAX_FRAME as u64) } else { bits::<32>(MAX_MESSAGE) };
    let whole = !raw || wqe.length >= len::ETH as u64;
    let fits = whole && if wqe.is_inline { wqe.length <= room } else { wqe.length <= most };
    if !known {
        bits::<8>(cause::WQE_OPCODE as u64)
    } else if !counts || !holds {
        bits::<8>(cause::WQE_FORMAT as u64)
    } else if !fits {
        bits::<8>(cause::WQE_LENGTH as u64)
    } else {
        0.into()
    }
}

/// Completion status (`abi::status::wc`) of a WQE with such a fault.
#[hdl_fn]
pub fn status_of(why: Bits<8>) -> Bits<8> {
    if why == cause::WQE_LENGTH { bits::<8>(wc::LOC_LEN as u64) } else { bits::<8>(wc::LOC_QP_OP as u64) }
}

/// BTH opcode of a packet of a SEND, WRITE or READ.
#[hdl_fn]
pub fn opcode_of(opcode: Bits<8>, first: Bit, last: Bit) -> Bits<8> {
    let write = opcode == send_op::WRITE || opcode == send_op::WRITE_IMM;
    let imm = opcode == send_op::SEND_IMM || opcode == send_op::WRITE_IMM;
    let place: Bits<8> = if last {
        let with = if imm { bits::<8>(1) } else { bits::<8>(0) };
        let base = if first { bits::<8>(op::SEND_ONLY as u64) } else { bits::<8>(op::SEND_LAST as u64) };
        base + with
    } else if first {
        bits::<8>(op::SEND_FIRST as u64)
    } else {
        bits::<8>(op::SEND_MIDDLE as u64)
    };
    if opcode == send_op::READ {
        bits::<8>(op::READ_REQUEST as u64)
    } else if write {
        place + bits::<8>(op::WRITE_FIRST as u64)
    } else {
        place
    }
}
