//! The rules of a requester: what a packet is, what holds a QP back, and what a packet, a load or a go back makes of its
//! progress. Pure functions; `requester` has the registers.

use super::requester_wqe::{Wqe, fault_of, mtu_bytes, packets_of};
use crate::msg::{Acked, GoBack, Psn, QpView, QueueView};
use abi::{
    queue::send_op,
    status::cause,
    table::{qp_send, qp_state, qp_type},
};
use hdl::prelude::*;

/// Packets that may be unacknowledged (a READ may add 2^23).
pub const WINDOW: u64 = 4096;
/// Messages in flight: one less than there are records, so that full and empty differ.
pub const MESSAGES: u64 = 127;
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

/// What a WQE must still be when it is fetched again.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Seen {
    pub opcode: Bits<8>,
    pub blocks: Bits<3>,
    pub length: Bits<32>,
}

/// The next packet.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Packet {
    pub first: Bit,
    /// Last of its message; a READ is one packet.
    pub last: Bit,
    pub read: Bit,
    /// Payload, and PSNs it takes.
    pub bytes: Bits<14>,
    pub psns: Bits<24>,
    /// Packets of the whole rest of the message.
    pub packets: Bits<24>,
    /// In units of 512 bytes.
    pub units: Bits<6>,
    /// Begins a record that was never written.
    pub opens_record: Bit,
    /// The window ends with it.
    pub fills_window: Bit,
    pub again: Bit,
}

/// What holds a QP back.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Gate {
    /// Not in this pick.
    pub ends: Bit,
    /// Not before a kick, load or go back.
    pub stops: Bit,
    /// Not before a kick, but a faulty WQE is reported all the same.
    pub waits: Bit,
    /// It lies behind what is acknowledged.
    pub skips: Bit,
    /// PSNs in flight.
    pub out: Psn,
    /// Why the WQE cannot be executed (`abi::status::cause`), as far as its head tells.
    pub reason: Bits<8>,
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

/// `psn` lies before `acked`: it is sent `again`, and a late ACK has overtaken that. A READ alone may take 2^23 PSNs, half
/// of all; that far apart, only what is sent again can be behind.
#[hdl_fn]
fn is_behind(psn: Psn, acked: Psn, again: Bit) -> Bit {
    let d = psn - acked;
    d.get_bit(23) && (again || d.get_bits::<23>(0).any())
}

/// READs in flight: `issued - done` of free-running counts, or 0 when what is sent again was done before.
#[hdl_fn]
fn reads_out(issued: Bits<8>, done: Bits<8>) -> Bits<8> {
    let d = issued - done;
    if d.get_bit(7) { 0.into() } else { d }
}

/// PSNs in flight.
#[hdl_fn]
fn psns_out(now: Progress, acked: Acked) -> Psn {
    let again = now.psn != now.high;
    if is_behind(now.psn, acked.psn, again) { 0.into() } else { now.psn - acked.psn }
}

/// The next packet of a message of which `left` bytes are left. A raw frame is one packet, whatever the path MTU.
#[hdl_fn]
pub fn packet_of(now: Progress, acked: Acked, wqe: Wqe, left: Bits<32>, attributes: Attributes) -> Packet {
    let read = wqe.opcode == send_op::READ;
    let raw = attributes.kind == qp_type::RAW;
    let most = mtu_bytes(attributes.mtu);
    let rest = left <= most.cast::<32>() || raw;
    let bytes = if rest { left.get_bits::<14>(0) } else { most };
    let some = if bytes.any() { bytes } else { bits::<14>(1) };
    let packets = if raw { bits::<24>(1) } else { packets_of(left, attributes.mtu) };
    let first = !now.offset.any();
    let opens_record = first && now.record == now.top;
    let crowd = opens_record && now.top - acked.record >= elab!(MESSAGES - 1);
    Packet {
        first,
        last: rest || read,
        read,
        bytes: if read { 0.into() } else { bytes },
        psns: if read { packets } else { 1.into() },
        packets,
        units: (some + 511).get_bits::<5>(9).cast::<6>(),
        opens_record,
        fills_window: psns_out(now, acked) >= elab!(WINDOW - 1) || crowd,
        again: now.psn != now.high,
    }
}

/// What holds a QP in `state` back, whose WQE `wqe` was read with `view`. `changed`: it is not the one that was sent before.
#[hdl_fn]
pub fn gate_of(
    now: Progress,
    acked: Acked,
    wqe: Wqe,
    attributes: Attributes,
    state: QpView,
    view: QueueView,
    changed: Bit,
) -> Gate {
    let begins = !now.offset.any();
    let there = view.fetched - now.index;
    let whole = there >= wqe.blocks.cast::<16>();
    // A doorbell in the middle of a WQE.
    let torn = !whole && view.fetched == view.posted && there.any();
    let running = state.state == qp_state::RTS || state.state == qp_state::SQD && !begins;
    let resumes = state.state == qp_state::INIT || state.state == qp_state::RTR || state.state == qp_state::SQD;
    let read = wqe.opcode == send_op::READ;
    let out = psns_out(now, acked);
    let reads = reads_out(now.reads, acked.reads);
    let crowded = begins && now.record == now.top && now.top - acked.record >= MESSAGES;
    let reading = read && reads >= attributes.max_reads.cast::<8>();
    let fenced = begins && wqe.fence && reads.any();
    let unsound = fault_of(wqe, attributes.kind, attributes.max_reads);
    let misplaced = is_behind(now.psn, acked.message, now.psn != now.high)
        || now.psn == acked.message && begins && now.index != acked.wqe_index;
    Gate {
        ends: !there.any() || !whole && !torn || !running,
        stops: !running && !resumes || now.failed,
        waits: running && whole && (!read && out >= WINDOW || crowded || reading || fenced),
        skips: misplaced && running && !now.failed,
        out,
        reason: if torn {
            bits::<8>(cause::WQE_FORMAT as u64)
        } else if changed {
            bits::<8>(cause::WQE_CHANGED as u64)
        } else {
            unsound
        },
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
        silent: if ack || packet.read { 0.into() } else { now.silent + packet.units },
        failed: now.failed,
        frame_failed: now.frame_failed,
    }
}

/// Progress of a queue that starts at `psn`. Epochs go on over loads: egress knows the last one.
#[hdl_fn]
pub fn loaded(old: Progress, psn: Psn) -> Progress {
    Progress {
        psn,
        high: psn,
        index: 0.into(),
        offset: 0.into(),
        record: 0.into(),
        top: 0.into(),
        reads: 0.into(),
        epoch: old.epoch + 1,
        silent: 0.into(),
        failed: false,
        frame_failed: false,
    }
}

/// Progress after a go back.
#[hdl_fn]
pub fn gone_back(old: Progress, to: GoBack) -> Progress {
    Progress {
        psn: to.psn,
        high: old.high,
        index: to.wqe_index,
        offset: to.offset,
        // The record of a message in the middle is not the next one's.
        record: if to.offset.any() { to.record + 1 } else { to.record },
        top: old.top,
        reads: to.reads,
        epoch: old.epoch + 1,
        silent: 0.into(),
        failed: false,
        frame_failed: false,
    }
}

/// Progress at the oldest message in flight.
#[hdl_fn]
pub fn skipped(now: Progress, acked: Acked) -> Progress {
    Progress {
        psn: acked.message,
        high: now.high,
        index: acked.wqe_index,
        offset: 0.into(),
        record: acked.record,
        top: now.top,
        reads: acked.reads,
        epoch: now.epoch,
        silent: 0.into(),
        failed: now.failed,
        frame_failed: now.frame_failed,
    }
}
