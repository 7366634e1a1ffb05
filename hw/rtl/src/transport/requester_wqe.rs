//! A send WQE, taken apart and checked.

use abi::{
    queue::{ATOMIC_BYTES, MAX_MESSAGE, send_op, send_wqe, sge},
    status::{cause, wc},
    table::qp_type,
    wire::{MAX_FRAME, len, op, qkey, transport},
};
use hdl::prelude::*;

/// Bit of a privileged Q_Key.
const PRIVILEGED: usize = qkey::PRIVILEGED.trailing_zeros() as usize;

/// The head of a send WQE (`abi::queue::send_wqe`).
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Wqe {
    pub opcode: Bits<8>,
    pub signaled: Bit,
    pub solicited: Bit,
    pub fence: Bit,
    pub is_inline: Bit,
    /// An atomic: the front of its payload, inline, is what it sends; the SGE behind that takes the answer.
    pub atomic: Bit,
    /// An atomic write: its 8 bytes are inline.
    pub puts: Bit,
    /// It is one of these, or a READ.
    pub reads: Bit,
    /// It concerns this NIC alone: no packet, no data. Of a LOCAL_INV the length is the key.
    pub local: Bit,
    /// And it asks the firmware for something: to bind a window, to register a region.
    pub asks: Bit,
    pub blocks: Bits<3>,
    pub sges: Bits<3>,
    pub imm: Bits<32>,
    pub va: Bits<64>,
    pub rkey: Bits<32>,
    pub length: Bits<32>,
    /// Its bytes come from memory by its SGEs.
    pub gathers: Bit,
    /// Longer than a message, or than a frame; shorter than an Ethernet header; no longer than the inline data that its blocks
    /// hold.
    pub huge: Bit,
    pub big: Bit,
    pub tiny: Bit,
    pub fits: Bit,
}

/// A stretch of memory within one SGE.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Piece {
    pub key: Bits<32>,
    pub va: Bits<64>,
    /// Bytes: as many as are wanted, or up to the end of the SGE; it is all that was wanted.
    pub len: Bits<14>,
    pub last: Bit,
}

/// SGE `entry` of four (`abi::queue::sge`).
#[hdl_fn]
fn sge_of(sges: Bits<512>, entry: Bits<2>) -> Bits<128> {
    match entry {
        0 => sges.get_bits::<128>(0),
        1 => sges.get_bits::<128>(128),
        2 => sges.get_bits::<128>(256),
        _ => sges.get_bits::<128>(384),
    }
}

/// Bytes of SGE `entry`.
#[hdl_fn]
pub fn bytes_of_sge(sges: Bits<512>, entry: Bits<2>) -> Bits<32> {
    sge_of(sges, entry).get_bits::<32>(elab!(sge::LENGTH.lsb))
}

/// Bytes of all four SGEs.
#[hdl_fn]
pub fn total_of(sges: Bits<512>) -> Bits<34> {
    let low = bytes_of_sge(sges, 0.into()).cast::<34>() + bytes_of_sge(sges, 1.into()).cast::<34>();
    let high = bytes_of_sge(sges, 2.into()).cast::<34>() + bytes_of_sge(sges, 3.into()).cast::<34>();
    low + high
}

/// The first stretch of the `want` bytes at byte `at` of SGE `entry`, which holds that byte.
#[hdl_fn]
pub fn piece_of(sges: Bits<512>, entry: Bits<2>, at: Bits<32>, want: Bits<14>) -> Piece {
    let chosen = sge_of(sges, entry);
    let room = chosen.get_bits::<32>(elab!(sge::LENGTH.lsb)) - at;
    let fits = want.cast::<32>() <= room;
    Piece {
        key: chosen.get_bits::<32>(elab!(sge::LKEY.lsb)),
        va: chosen.get_bits::<64>(elab!(sge::VA.lsb)) + at.cast::<64>(),
        len: if fits { want } else { room.get_bits::<14>(0) },
        last: fits,
    }
}

/// Takes the head out of a WQE's first block.
#[hdl_fn]
pub fn wqe_of(block: Bits<512>) -> Wqe {
    let opcode = block.get_bits::<8>(elab!(send_wqe::OPCODE.lsb));
    let atomic = opcode == send_op::COMPARE_SWAP || opcode == send_op::FETCH_ADD;
    let puts = opcode == send_op::ATOMIC_WRITE;
    let asks = opcode == send_op::BIND_MW || opcode == send_op::REG_MR;
    let local = opcode == send_op::LOCAL_INV || asks;
    let is_inline = block.get_bit(elab!(send_wqe::INLINE.lsb)) || atomic || puts || local;
    let blocks = block.get_bits::<3>(elab!(send_wqe::BLOCKS.lsb));
    let length = block.get_bits::<32>(elab!(send_wqe::LENGTH.lsb));
    // Inline data fill the blocks from byte 32 on.
    let room = cat!(9; blocks, bits::<6>(0)) - 32;
    Wqe {
        opcode,
        signaled: block.get_bit(elab!(send_wqe::SIGNALED.lsb)),
        solicited: block.get_bit(elab!(send_wqe::SOLICITED.lsb)),
        fence: block.get_bit(elab!(send_wqe::FENCE.lsb)),
        is_inline,
        atomic,
        puts,
        reads: opcode == send_op::READ || atomic || puts,
        local,
        asks,
        blocks,
        sges: block.get_bits::<3>(elab!(send_wqe::SGES.lsb)),
        imm: block.get_bits::<32>(elab!(send_wqe::IMM.lsb)),
        va: block.get_bits::<64>(elab!(send_wqe::REMOTE_VA.lsb)),
        rkey: block.get_bits::<32>(elab!(send_wqe::RKEY.lsb)),
        length,
        gathers: length.any() && !is_inline && opcode != send_op::READ,
        huge: length > MAX_MESSAGE,
        big: length > MAX_FRAME as u64,
        tiny: length < len::ETH as u64,
        fits: !length.get_bits::<23>(9).any() && length.get_bits::<9>(0) <= room,
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

/// Why a WQE of a QP of type `kind` cannot be executed (`abi::status::cause`), or 0; the sum of its SGEs is not checked. With `max_reads` a
/// QP of UD may name privileged Q_Keys.
#[hdl_fn]
pub fn fault_of(wqe: Wqe, kind: Bits<2>, max_reads: Bits<5>) -> Bits<8> {
    let read = wqe.reads;
    let raw = kind == qp_type::RAW;
    let known = if raw {
        wqe.opcode == send_op::SEND
    } else if kind == qp_type::UD {
        wqe.opcode <= send_op::SEND_IMM
    } else {
        (wqe.opcode <= send_op::FETCH_ADD || wqe.puts) && !(read && (kind == qp_type::UC || !max_reads.any()))
            || wqe.opcode == send_op::SEND_INV && kind == qp_type::RC
            || wqe.local
    };
    let blocks = wqe.blocks;
    let counts = blocks.any() && blocks <= 4 && wqe.sges <= 4;
    let holds = if wqe.is_inline { !read || wqe.atomic || wqe.puts } else { wqe.sges <= 2 || blocks >= 2 };
    let whole = !raw || !wqe.tiny;
    let right = !(wqe.atomic || wqe.puts) || wqe.length == ATOMIC_BYTES as u64;
    let sized = if wqe.is_inline { wqe.fits || wqe.local } else { !(if raw { wqe.big } else { wqe.huge }) };
    let fits = whole && right && sized;
    let entitled = kind != qp_type::UD || max_reads.any() || !wqe.rkey.get_bit(PRIVILEGED);
    if !known {
        bits::<8>(cause::WQE_OPCODE as u64)
    } else if !counts || !holds {
        bits::<8>(cause::WQE_FORMAT as u64)
    } else if !fits {
        bits::<8>(cause::WQE_LENGTH as u64)
    } else if !entitled {
        bits::<8>(cause::WQE_QKEY as u64)
    } else {
        0.into()
    }
}

/// Completion status (`abi::status::wc`) of a WQE with such a fault.
#[hdl_fn]
pub fn status_of(why: Bits<8>) -> Bits<8> {
    if why == cause::WQE_LENGTH { bits::<8>(wc::LOC_LEN as u64) } else { bits::<8>(wc::LOC_QP_OP as u64) }
}

/// BTH opcode of a packet of a SEND, WRITE, READ, atomic or atomic write of a QP of type `kind`.
#[hdl_fn]
pub fn opcode_of(opcode: Bits<8>, kind: Bits<2>, first: Bit, last: Bit) -> Bits<8> {
    let write = opcode == send_op::WRITE || opcode == send_op::WRITE_IMM;
    let imm = opcode == send_op::SEND_IMM || opcode == send_op::WRITE_IMM;
    let place: Bits<8> = if last {
        let with = if imm { bits::<8>(1) } else { bits::<8>(0) };
        let base = if first { bits::<8>(op::SEND_ONLY as u64) } else { bits::<8>(op::SEND_LAST as u64) };
        if opcode == send_op::SEND_INV {
            if first { bits::<8>(op::SEND_ONLY_INV as u64) } else { bits::<8>(op::SEND_LAST_INV as u64) }
        } else {
            base + with
        }
    } else if first {
        bits::<8>(op::SEND_FIRST as u64)
    } else {
        bits::<8>(op::SEND_MIDDLE as u64)
    };
    let low = if opcode == send_op::READ {
        bits::<8>(op::READ_REQUEST as u64)
    } else if opcode == send_op::COMPARE_SWAP {
        bits::<8>(op::COMPARE_SWAP as u64)
    } else if opcode == send_op::FETCH_ADD {
        bits::<8>(op::FETCH_ADD as u64)
    } else if opcode == send_op::ATOMIC_WRITE {
        bits::<8>(op::ATOMIC_WRITE as u64)
    } else if write {
        place + bits::<8>(op::WRITE_FIRST as u64)
    } else {
        place
    };
    low | class_of(kind)
}

/// Transport of a QP of type `kind`, as in its opcodes; raw frames have none.
#[hdl_fn]
fn class_of(kind: Bits<2>) -> Bits<8> {
    match kind {
        1 => bits::<8>(transport::UC as u64),
        2 => bits::<8>(transport::UD as u64),
        _ => bits::<8>(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_privileged_qkey_needs_a_queue_pair_that_may_name_it() {
        let fault = |rkey: u32, kind: u8, max_reads: u64| {
            let sends = |f: Wqe| Wqe {
                opcode: send_op::SEND.to_bits(),
                blocks: 1.into(),
                length: 8.into(),
                gathers: true,
                ..f
            };
            let wqe = sends(Wqe { rkey: rkey.to_bits(), ..Wqe::default() });
            fault_of(wqe, kind.to_bits(), max_reads.to_bits()).to_u64() as u8
        };
        assert_eq!(fault(qkey::QP1, qp_type::UD, 0), cause::WQE_QKEY);
        assert_eq!(fault(qkey::PRIVILEGED, qp_type::UD, 0), cause::WQE_QKEY);
        assert_eq!(fault(qkey::QP1, qp_type::UD, 1), 0);
        assert_eq!(fault(qkey::PRIVILEGED - 1, qp_type::UD, 0), 0);
        // To all others it is a key, if it is anything.
        assert_eq!([qp_type::RC, qp_type::UC].map(|kind| fault(qkey::QP1, kind, 0)), [0; 2]);
        assert_eq!(status_of(cause::WQE_QKEY.to_bits()).to_u64() as u8, wc::LOC_QP_OP);
    }
}
