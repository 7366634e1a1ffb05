//! The rules of a requester: what a packet is, what holds a QP back, and what a packet, a load or a go back makes of its
//! progress. Pure functions; `requester` has the registers.

use super::{
    opcode::{mtu_bytes, response_psns},
    requester_wqe::{Wqe, bytes_of_sge, fault_of, total_of},
};
use crate::msg::{Acked, GoBack, Psn, QpView, QueueView};
use abi::{
    queue::{ATOMIC_BYTES, send_op},
    status::cause,
    table::{qp_address, qp_send, qp_state, qp_type},
};
use hdl::prelude::*;

/// Packets that may be unacknowledged (a READ may add 2^23).
pub const WINDOW: u64 = 4096;
/// Messages in flight: as many as there are records. When all are in use the next record is the oldest, as when none is; but then
/// there are PSNs in flight.
pub const MESSAGES: u64 = 128;
/// AckReq at least once in so many units of 512 bytes: 16 KiB, or 32 small packets.
pub const ACK_UNITS: u64 = 32;

/// A QP's progress.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Progress {
    /// Next PSN, at most `high`, from which on none was ever sent.
    pub psn: Psn,
    pub high: Psn,
    /// WQE under way, and the bytes of its message that were sent.
    pub index: Bits<16>,
    pub offset: Bits<32>,
    /// Record of the next message that begins; records from `top` on were never written.
    pub record: Bits<7>,
    pub top: Bits<7>,
    /// READs issued.
    pub reads: Bits<8>,
    pub epoch: Bits<8>,
    /// Units sent since the last AckReq.
    pub silent: Bits<6>,
    /// The last WQE concerned this NIC alone: nothing goes before that and all before it is done.
    pub barred: Bit,
    /// What the firmware says of the next WQE that begins (`abi::table::verdict`), or that it was asked.
    pub verdict: Bits<4>,
    /// A WQE or frame failed: nothing more until a go back.
    pub failed: Bit,
    pub frame_failed: Bit,
}

/// Attributes of a QP.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Attributes {
    pub kind: Bits<2>,
    pub mtu: Bits<3>,
    pub pd: Bits<16>,
    pub max_reads: Bits<5>,
}

/// The next packet.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Packet {
    pub first: Bit,
    /// Last of its message; a READ is one packet. So is an atomic, which is a READ to all else, too, but that it has payload.
    pub last: Bit,
    pub read: Bit,
    /// There is none: it concerns this NIC alone.
    pub local: Bit,
    /// Payload, and PSNs it takes.
    pub bytes: Bits<14>,
    pub psns: Bits<24>,
    /// Packets of the whole rest of the message.
    pub packets: Bits<24>,
    /// In units of 512 bytes.
    pub units: Bits<6>,
    /// Begins a record that was never written.
    pub opens_record: Bit,
    pub again: Bit,
}

/// How a QP stands to what it has been told, before anything is made of it.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Gaps {
    /// The window is full, or will be with one more packet; PSNs that a READ may take, unless the QP is sent again behind what
    /// is acknowledged.
    pub full: Bit,
    pub nearly: Bit,
    pub room: Psn,
    pub behind: Bit,
    /// It lies behind the oldest message, or at its place with another block.
    pub misplaced: Bit,
    /// Of the WQE there is something on chip, or all of it; or the doorbell stands in its middle.
    pub some: Bit,
    pub whole: Bit,
    pub torn: Bit,
    /// What follows is on chip; is posted.
    pub follows: Bit,
    pub posted: Bit,
    /// The QP may send; or may some time.
    pub running: Bit,
    pub resumes: Bit,
    /// No record is free; or only one.
    pub crowded: Bit,
    pub crowd: Bit,
    /// READs are at their limit; a fence waits for them.
    pub reading: Bit,
    pub fenced: Bit,
    /// A local operation is not done; what was sent before one asks for no answer.
    pub barred: Bit,
    pub silent: Bit,
    /// The WQE is one for the firmware, which is to be asked; was asked; said that it is not to be.
    pub asks: Bit,
    pub asked: Bit,
    pub refused: Bit,
    /// The peer may have no receive for it, or for what comes behind it; and it must wait for that.
    pub spent: Bit,
    pub unheard: Bit,
    /// Why the WQE cannot be executed, as far as its head tells; its SGEs do not add up to its length.
    pub unsound: Bits<8>,
    pub short: Bit,
    /// It is a datagram of more than a packet.
    pub long: Bit,
    /// Its address handle is none of its protection domain's.
    pub stranger: Bit,
}

/// What holds a QP back.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Gate {
    /// Nothing does: a packet goes, or what needs none is done.
    pub goes: Bit,
    pub local: Bit,
    /// The firmware is asked first.
    pub asks: Bit,
    /// It lies behind what is acknowledged.
    pub skips: Bit,
    /// Not in this pick.
    pub halts: Bit,
    /// Not before a kick, load or go back.
    pub stops: Bit,
    /// The window, or the peer's credits, end with this packet.
    pub fills: Bit,
    /// Why the WQE cannot be executed (`abi::status::cause`).
    pub reason: Bits<8>,
}

/// What the requester knows of an address handle.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Handle {
    pub valid: Bit,
    pub pd: Bits<16>,
}

/// Where a QP goes on.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Restart {
    pub psn: Psn,
    pub index: Bits<16>,
    pub offset: Bits<32>,
    pub record: Bits<7>,
    pub reads: Bits<8>,
}

/// Attributes of a QP_SEND row.
#[hdl_fn]
pub fn attributes_of(row: Bits<512>) -> Attributes {
    Attributes {
        kind: row.get_bits::<2>(elab!(qp_send::TYPE.lsb)),
        mtu: row.get_bits::<3>(elab!(qp_send::MTU.lsb)),
        pd: row.get_bits::<16>(elab!(qp_send::PD.lsb)),
        max_reads: row.get_bits::<5>(elab!(qp_send::MAX_READS.lsb)),
    }
}

/// `a` lies before `b`, both of this QP: it is sent `again`, and a late ACK has overtaken that. A READ alone may take 2^23 PSNs,
/// half of all; that far apart, only what is sent again can be behind.
#[hdl_fn]
fn is_behind(a: Psn, b: Psn, again: Bit) -> Bit {
    (a - b).get_bit(23) && (again || a.get_bits::<23>(0) != b.get_bits::<23>(0))
}

/// READs in flight: `issued - done` of free-running counts, or 0 when what is sent again was done before.
#[hdl_fn]
fn reads_out(issued: Bits<8>, done: Bits<8>) -> Bits<8> {
    let d = issued - done;
    if d.get_bit(7) { 0.into() } else { d }
}

/// The next packet of a message of which `left` bytes are left. A raw frame is one packet, whatever the path MTU.
#[hdl_fn]
pub fn packet_of(now: Progress, wqe: Wqe, left: Bits<32>, attributes: Attributes) -> Packet {
    let read = wqe.reads;
    let raw = attributes.kind == qp_type::RAW;
    let most = mtu_bytes(attributes.mtu);
    let rest = left <= most.cast::<32>() || raw;
    let bytes = if rest { left.get_bits::<14>(0) } else { most };
    let some = if bytes.any() { bytes } else { bits::<14>(1) };
    let packets = if raw { bits::<24>(1) } else { response_psns(left, attributes.mtu) };
    let first = !now.offset.any();
    let again = now.psn != now.high;
    Packet {
        first,
        last: rest || read || wqe.local,
        read,
        local: wqe.local,
        bytes: if wqe.atomic {
            elab!(bits::<14>(2 * ATOMIC_BYTES as u64))
        } else if read && !wqe.puts {
            0.into()
        } else {
            bytes
        },
        psns: if read {
            packets
        } else if wqe.local {
            0.into()
        } else {
            1.into()
        },
        packets,
        units: (some + 511).get_bits::<5>(9).cast::<6>(),
        opens_record: first && now.record == now.top && !again,
        again,
    }
}

/// A handle of its row.
#[hdl_fn]
pub fn handle_of(row: Bits<512>) -> Handle {
    Handle { valid: row.get_bit(elab!(qp_address::VALID.lsb)), pd: row.get_bits::<16>(elab!(qp_address::PD.lsb)) }
}

/// A QP of type `kind` is acknowledged by its peer, or nobody asks; others are done when they have left.
#[hdl_fn]
pub fn answers(kind: Bits<2>) -> Bit {
    kind == qp_type::RC || kind == qp_type::RAW
}

/// See [`Gaps`]. The WQE was read with `view`; `one`: its packet is the last of the message; `handle` is the one that it names.
#[hdl_fn]
pub fn gaps_of(
    now: Progress,
    acked: Acked,
    wqe: Wqe,
    sges: Bits<512>,
    one: Bit,
    handle: Handle,
    attributes: Attributes,
    state: QpView,
    view: QueueView,
) -> Gaps {
    let begins = !now.offset.any();
    let again = now.psn != now.high;
    let out = now.psn - acked.psn;
    let behind = is_behind(now.psn, acked.psn, again);
    // The other way round, and half of all PSNs further.
    let room = (acked.psn - now.psn) ^ 0x80_0000_u64;
    let oldest = now.psn == acked.message;
    let blocks = wqe.blocks.cast::<16>();
    let there = view.fetched - now.index;
    let some = there.any();
    let whole = there >= blocks;
    let opens = begins && now.record == now.top && !again;
    let messages = now.top - acked.record;
    let reads = reads_out(now.reads, acked.reads);
    // The first message beyond the credits goes as a probe, and one more if nothing before it has asked for an answer: so there is
    // always one to come.
    let (place, limit) = (now.record - acked.record, acked.limit - acked.record);
    let receives = wqe.opcode == send_op::SEND
        || wqe.opcode == send_op::SEND_IMM
        || wqe.opcode == send_op::SEND_INV
        || wqe.opcode == send_op::WRITE_IMM;
    let over = acked.limited && place > limit;
    let datagram = attributes.kind == qp_type::UD;
    Gaps {
        full: out >= WINDOW && !behind,
        nearly: out >= elab!(WINDOW - 1) && !behind,
        room,
        behind,
        misplaced: is_behind(now.psn, acked.message, again) || oldest && begins && now.index != acked.wqe_index,
        some,
        whole,
        // A doorbell in the middle of a WQE.
        torn: !whole && view.fetched == view.posted && some,
        follows: there != blocks,
        posted: view.posted - now.index != blocks,
        running: state.state == qp_state::RTS || state.state == qp_state::SQD && !opens,
        resumes: state.state == qp_state::INIT
            || state.state == qp_state::RTR
            || state.state == qp_state::SQD
            || state.state == qp_state::SQE,
        crowded: opens && !messages.any() && now.psn != acked.psn,
        crowd: opens && messages == elab!(MESSAGES - 1),
        reading: wqe.reads && reads >= attributes.max_reads.cast::<8>(),
        fenced: begins && wqe.fence && reads.any(),
        barred: now.barred && (messages.any() || now.psn != acked.psn),
        silent: now.silent.any() && attributes.kind == qp_type::RC,
        asks: wqe.asks && opens && !now.verdict.any(),
        asked: wqe.asks && opens && now.verdict.any() && !now.verdict.get_bit(3),
        refused: wqe.asks && opens && now.verdict.get_bit(3) && now.verdict.get_bits::<3>(0).any(),
        spent: acked.limited && place >= limit,
        unheard: begins && receives && over && !now.silent.any(),
        unsound: fault_of(wqe, attributes.kind, attributes.max_reads),
        short: if wqe.atomic {
            bytes_of_sge(sges, 1.into()) != ATOMIC_BYTES as u64
        } else {
            !wqe.is_inline && total_of(sges) != wqe.length.cast::<34>()
        },
        long: datagram && !one,
        stranger: datagram && !(handle.valid && handle.pd == attributes.pd),
    }
}

/// What holds a QP back. `changed`: its WQE is not the one that was sent before;
/// `first`: it is the first of its pick, and nothing was acknowledged since. A bad WQE that is sent again may have been completed by a late ACK, which the next pick
/// shows: only a pick's first WQE is read later than what is acknowledged.
#[hdl_fn]
pub fn gate_of(gaps: Gaps, packet: Packet, verdict: Bits<4>, failed: Bit, changed: Bit, first: Bit) -> Gate {
    // A READ may take the window up to 2^23 PSNs; none that is sound takes more by itself.
    let wide = packet.read && packet.packets > gaps.room && !gaps.behind;
    let ends = !gaps.some || !gaps.whole && !gaps.torn || !gaps.running;
    let busy = !packet.read && gaps.full || gaps.crowded || gaps.reading || gaps.fenced || gaps.unheard;
    let unsound = gaps.unsound.any();
    let reason: Bits<8> = if gaps.torn {
        bits::<8>(cause::WQE_FORMAT as u64)
    } else if changed {
        bits::<8>(cause::WQE_CHANGED as u64)
    } else if unsound {
        gaps.unsound
    } else if gaps.short || gaps.long {
        bits::<8>(cause::WQE_LENGTH as u64)
    } else if gaps.stranger {
        bits::<8>(cause::WQE_HANDLE as u64)
    } else if gaps.refused {
        verdict.get_bits::<3>(0).cast::<8>()
    } else {
        0.into()
    };
    let faulty = gaps.torn || changed || unsound || gaps.short || gaps.long || gaps.stranger || gaps.refused;
    // A local operation that is not done is the oldest, at the place of what is behind it.
    let skips = gaps.misplaced && gaps.running && !failed && !gaps.barred;
    let waits = (gaps.running && gaps.whole && busy || wide && !ends) && !faulty;
    let stops = !gaps.running && !gaps.resumes || failed || waits || gaps.barred || gaps.asked;
    let halts = stops || ends || packet.again && faulty && !first;
    let free = !skips && !halts && !faulty;
    Gate {
        goes: free && !packet.local,
        local: free && packet.local && !gaps.asks,
        asks: free && gaps.asks,
        skips,
        halts,
        stops,
        fills: gaps.nearly || gaps.crowd || gaps.spent && packet.last,
        reason,
    }
}

/// Progress after a packet of a WQE of `blocks`; `ack`: it asks for an answer.
#[hdl_fn]
pub fn advanced(now: Progress, packet: Packet, blocks: Bits<3>, ack: Bit) -> Progress {
    let next = now.psn + packet.psns;
    Progress {
        psn: next,
        high: if packet.again { now.high } else { next },
        index: if packet.last { now.index + blocks.cast::<16>() } else { now.index },
        offset: if packet.last { 0.into() } else { now.offset + packet.bytes.cast::<32>() },
        record: if packet.first { now.record + 1 } else { now.record },
        top: if packet.opens_record { now.top + 1 } else { now.top },
        reads: if packet.read { now.reads + 1 } else { now.reads },
        epoch: now.epoch,
        silent: if ack || packet.read || packet.local { 0.into() } else { now.silent + packet.units },
        barred: packet.local,
        verdict: if packet.opens_record { 0.into() } else { now.verdict },
        failed: now.failed,
        frame_failed: now.frame_failed,
    }
}

/// Progress of a QP that goes on at `to`. `loads`: its queue begins anew. Epochs go on over loads: egress knows the last one.
#[hdl_fn]
pub fn restarted(now: Progress, to: Restart, loads: Bit, new_epoch: Bit) -> Progress {
    Progress {
        psn: to.psn,
        high: if loads { to.psn } else { now.high },
        index: to.index,
        offset: to.offset,
        record: to.record,
        top: if loads { 0.into() } else { now.top },
        reads: to.reads,
        epoch: if new_epoch { now.epoch + 1 } else { now.epoch },
        silent: 0.into(),
        barred: false,
        // Of a WQE that has not begun, which is still to come.
        verdict: if loads { 0.into() } else { now.verdict },
        failed: false,
        frame_failed: false,
    }
}

/// Where a go back leads. The record of a message in the middle is not the next one's.
#[hdl_fn]
pub fn gone_back(to: GoBack) -> Restart {
    Restart {
        psn: to.psn,
        index: to.wqe_index,
        offset: to.offset,
        record: if to.offset.any() { to.record + 1 } else { to.record },
        reads: to.reads,
    }
}

/// The oldest message in flight.
#[hdl_fn]
pub fn oldest(acked: Acked) -> Restart {
    Restart { psn: acked.message, index: acked.wqe_index, offset: 0.into(), record: acked.record, reads: acked.reads }
}
