//! The completer's rules as functions of packet and row. `completer` says when each is asked.

use super::{opcode::*, requester_wqe::status_of, responder_rules::pkeys_match, timers::KEPT};
use crate::msg::*;
use abi::{
    queue::send_op,
    status::{cause, wc},
    table::{qp_recv, qp_send, qp_state, qp_type},
    wire::op,
};
use hdl::prelude::*;

/// Acknowledges up to its PSN, itself included.
pub const SAYS_ACK: u8 = 0;
/// Data of a READ, or the answer to an atomic.
pub const SAYS_DATA: u8 = 1;
/// NAK sequence error: send again from its PSN on.
pub const SAYS_GO_BACK: u8 = 2;
/// The receiver is not ready: wait.
pub const SAYS_RNR: u8 = 3;
/// A NAK that ends the QP.
pub const SAYS_END: u8 = 4;
/// Wake-up call: a timer is over.
pub const SAYS_TIMER: u8 = 5;
/// Wake-up call: the send side failed.
pub const SAYS_FAULT: u8 = 6;

/// What firmware sets of a send side. Writer: the table bus.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Attributes {
    /// Path MTU code.
    pub mtu: Bits<3>,
    /// Protection domain.
    pub pd: Bits<16>,
    /// CQ.
    pub cqn: Bits<12>,
    /// Retries after NAK and timeout.
    pub retry: Bits<3>,
    /// Retries after RNR; 7 is without limit.
    pub rnr_retry: Bits<3>,
    /// Verbs timeout.
    pub timeout: Bits<5>,
    /// Of the raw queue pair, whose messages are one packet each.
    pub raw: Bit,
    /// Nobody acknowledges what it sends: UC, UD, raw.
    pub alone: Bit,
}

/// Whom responses must come from: the same as requests. Writer: the table bus.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Peer {
    /// P_Key.
    pub pkey: Bits<16>,
    /// Source IP.
    pub sip: Bits<128>,
}

/// How far a send side is acknowledged. Writer: the completer.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Row {
    /// Oldest unacknowledged PSN. Within a READ: the next PSN of its response.
    pub psn: Psn,
    /// Oldest record in flight, if it is not the requester's next.
    pub record: Bits<7>,
    /// READs completed, free-running.
    pub reads: Bits<8>,
    /// First block and first PSN behind the messages that are complete.
    pub index: Bits<16>,
    pub message: Psn,
    /// Retries left.
    pub retry: Bits<3>,
    /// RNR retries left.
    pub rnr_retry: Bits<3>,
    /// Waits after an RNR NAK, of this timer code.
    pub rnr: Bit,
    /// RNR timer code.
    pub rnr_code: Bits<5>,
    /// Changes when the timer begins anew.
    pub turn: Bits<4>,
    /// Firings of the fast timer since a packet was sent once and answered.
    pub fires: Bits<4>,
    /// The oldest record is a READ, and its response has begun.
    pub reading: Bit,
    /// Went back, no progress since.
    pub recovering: Bit,
    /// Since the packet that is marked left, data of a READ before it came.
    pub queued: Bit,
    /// A fault of the send side waits for its turn.
    pub fault: Bit,
    /// An error ended the QP.
    pub halted: Bit,
    /// See `timers::fast_timer`.
    pub srtt: Bits<16>,
    /// See `timers::fast_timer`.
    pub rttvar: Bits<16>,
    /// As in [`Acked`].
    pub limited: Bit,
    pub limit: Bits<7>,
}

/// What a packet says, by itself.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Word {
    /// One of the `SAYS` constants.
    pub kind: Bits<3>,
    /// It is a response that we know.
    pub known: Bit,
    /// It is a wake-up call, which is about something that may have been acknowledged meanwhile.
    pub call: Bit,
    /// One that packets have left, which is their ACK.
    pub left: Bit,
    /// READ data that ends the response; whose pad suits its bytes; the answer to an atomic, which is such, too.
    pub closes: Bit,
    pub pad: Bit,
    /// It tells of credits.
    pub credits: Bit,
    pub atomic: Bit,
    /// With `SAYS_END`: status of the completion.
    pub status: Bits<8>,
    /// With `SAYS_END`: cause.
    pub cause: Bits<8>,
}

/// What it says to its QP.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Said {
    /// One of the `SAYS` constants.
    pub kind: Bits<3>,
    /// It is about something that was sent and not acknowledged; a call always is.
    pub about: Bit,
    /// The QP runs.
    pub runs: Bit,
    /// It is a wake-up call.
    pub call: Bit,
    /// The QP hears responses.
    pub hears: Bit,
    /// It comes from the QP's peer, with a P_Key that matches.
    pub peer: Bit,
    pub pkey: Bit,
    /// As in [`Word`].
    pub closes: Bit,
    pub pad: Bit,
    pub atomic: Bit,
    pub status: Bits<8>,
    pub cause: Bits<8>,
}

/// What of a packet is needed once its QP's row is there.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Packet {
    pub qpn: Qp,
    pub psn: Psn,
    pub rows: Bits<12>,
    pub payload: Bits<14>,
    /// RNR timer code.
    pub code: Bits<5>,
    /// The peer's receives, if it tells of them.
    pub credit: Credit,
}

/// What a packet says of the peer's receives: that it counts them, and with its count of messages (MSN) the first message, modulo
/// 128, that it has none for.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Credit {
    pub told: Bit,
    pub limited: Bit,
    pub msn: Bits<7>,
    pub limit: Bits<7>,
}

/// What credits mean to a row.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Worth {
    /// They count, unless the oldest message is retired and they do not count it; they are other than they were.
    pub counts: Bit,
    pub early: Bit,
    pub news: Bit,
    /// The message that is retired now was the first without a receive.
    pub edge: Bit,
}

/// Credits of an AETH (IBTA table 47), as far as they matter to a requester of 128 messages in flight: 128 and more never hold it
/// back, and of 96 it uses 95, so that in 7 bits a limit lies less than 128 ahead.
#[hdl_fn]
pub fn credit_of(told: Bit, code: Bits<5>, msn: Bits<24>) -> Credit {
    let mut credits: Bits<7> = 0.into();
    for k in 0..14 {
        if code == k.to_bits() {
            credits = elab!(bits::<7>(CREDITS[k]));
        }
    }
    let msn = msn.get_bits::<7>(0);
    Credit { told, limited: code < 14, msn, limit: msn + credits }
}

/// Receives of the credit codes below 14.
const CREDITS: [u64; 14] = [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 95];

/// See [`Worth`]. A count of messages that is not about those in flight is an old one's, or means nothing.
#[hdl_fn]
pub fn worth_of(row: Row, credit: Credit) -> Worth {
    let ahead = credit.msn - row.record;
    Worth {
        counts: credit.told && !ahead.get_bits::<2>(5).any(),
        early: !ahead.any(),
        news: row.limited && (!credit.limited || credit.limit != row.limit),
        edge: row.limited && row.record == row.limit,
    }
}

/// States in which responses are heard.
#[hdl_fn]
pub fn runs(state: Bits<3>) -> Bit {
    state == qp_state::RTS || state == qp_state::SQD
}

/// What packet `m` says. The call that packets have left which nobody acknowledges is their ACK.
#[hdl_fn]
pub fn word_of(m: RxMeta, call_fault: Bit, call_left: Bit) -> Word {
    let call = !m.response;
    let class = m.syndrome.get_bits::<3>(5);
    let low = m.syndrome.get_bits::<5>(0);
    let is_ack = m.opcode == op::ACK;
    let atomic = m.opcode == op::ATOMIC_ACK;
    let is_data = m.opcode >= op::READ_RESPONSE_FIRST && m.opcode <= op::READ_RESPONSE_ONLY || atomic;
    let kind: Bits<3> = if call {
        if call_fault {
            SAYS_FAULT.to_bits()
        } else if call_left {
            SAYS_ACK.to_bits()
        } else {
            SAYS_TIMER.to_bits()
        }
    } else if is_data {
        SAYS_DATA.to_bits()
    } else if class == 0 {
        SAYS_ACK.to_bits()
    } else if class == 1 {
        SAYS_RNR.to_bits()
    } else if low == 0 {
        SAYS_GO_BACK.to_bits()
    } else {
        SAYS_END.to_bits()
    };
    Word {
        kind,
        known: is_data || is_ack && (class == 0 || class == 1 || class == 3 && low <= 3),
        call,
        left: call && !call_fault && call_left,
        closes: m.opcode == op::READ_RESPONSE_LAST || m.opcode == op::READ_RESPONSE_ONLY || atomic,
        pad: (m.payload.get_bits::<2>(0) + m.pad) == 0,
        atomic,
        credits: !call
            && class == 0
            && (is_ack || m.opcode == op::READ_RESPONSE_LAST || m.opcode == op::READ_RESPONSE_ONLY || atomic),
        status: if low == 1 {
            wc::REM_INV_REQ.to_bits()
        } else if low == 2 {
            wc::REM_ACCESS.to_bits()
        } else {
            wc::REM_OP.to_bits()
        },
        cause: if low == 1 {
            cause::NAK_INVALID_REQUEST.to_bits()
        } else if low == 2 {
            cause::NAK_REMOTE_ACCESS.to_bits()
        } else {
            cause::NAK_REMOTE_OPERATION.to_bits()
        },
    }
}

/// What a packet with that word, of this sender, says to its QP. `valid`: its PSN is in flight; `last`: it is the last one that is
/// acknowledged, so that an ACK may tell of further credits.
#[hdl_fn]
pub fn understand(
    word: Word,
    sip: Bits<128>,
    pkey: Bits<16>,
    from: Peer,
    hears: Bit,
    runs: Bit,
    valid: Bit,
    last: Bit,
) -> Said {
    let about = word.known && (valid || last && word.kind == SAYS_ACK);
    Said {
        kind: word.kind,
        about: if word.call { !word.left || valid } else { about },
        runs,
        call: word.call,
        hears,
        peer: sip == from.sip,
        pkey: pkeys_match(pkey, from.pkey),
        closes: word.closes,
        pad: word.pad,
        atomic: word.atomic,
        status: word.status,
        cause: word.cause,
    }
}

/// Smoothed round trip and deviation after a sample in ticks (RFC 6298, in eighths and quarters).
#[hdl_fn]
pub fn measure(srtt: Bits<16>, rttvar: Bits<16>, sample: Bits<12>) -> (Bits<16>, Bits<16>) {
    let sample = sample.cast::<16>();
    let smooth = srtt >> 3;
    let above = sample >= smooth;
    let error = if above { sample - smooth } else { smooth - sample };
    let first = !srtt.any();
    // One eighth at least: zero stands for no measurement.
    let begin = (sample << 3) | 1;
    // Never zero: the error is an eighth at most where it is subtracted.
    let next = if above { srtt + error } else { srtt - error };
    (if first { begin } else { next }, if first { sample << 1 } else { rttvar - (rttvar >> 2) + error })
}

/// What row, record and packet say together: found ahead, so that deciding takes no arithmetic. A packet is one case for the oldest
/// record.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Facts {
    /// Case: it is not heard.
    pub nothing: Bit,
    /// It acknowledges the record, or the front of it; that is an operation which concerns this NIC alone, and its time has come.
    pub retire: Bit,
    pub local: Bit,
    /// The response of a READ was lost: implied NAK.
    pub lost: Bit,
    /// All that it acknowledges is done.
    pub quiet: Bit,
    /// READ data; the same for no READ.
    pub data: Bit,
    pub stray: Bit,
    /// NAK sequence error, RNR NAK, a NAK that ends the QP.
    pub nak: Bit,
    pub rnr: Bit,
    pub end: Bit,
    /// A wake-up call about a fault of the send side.
    pub fault: Bit,

    /// There is a record, and it is a READ's or an atomic's.
    pub has: Bit,
    pub is_read: Bit,
    /// It is acknowledged to its end, if what the packet says is sound and landed; and so many PSNs behind it.
    pub whole: Bit,
    pub rest: Psn,
    pub more: Bit,
    /// An acknowledgement with nothing more to say.
    pub finished: Bit,
    /// The READ data is what must come next, and the last of its message.
    pub good: Bit,
    pub final_one: Bit,
    /// The packet has payload.
    pub bytes: Bit,
    /// The send side's fault is due now, and ends the QP.
    pub of_fault: Bit,
    /// Go back, if there is room for that; it costs no retry.
    pub back: Bit,
    pub free: Bit,
    /// The QP has an error, other than data that is not good, and it is that no retry is left.
    pub fails: Bit,
    pub spent: Bit,
}

/// What row and fault of the send side say together, likewise.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Trouble {
    /// It is of this life of the QP.
    pub known: Bit,
    /// It is at a PSN that is acknowledged already, or at the oldest that is not.
    pub past: Bit,
    pub due: Bit,
    /// It has a cause, and blocks of its own; status of its completion.
    pub ends: Bit,
    pub has_blocks: Bit,
    /// It asks to go back.
    pub back: Bit,
    pub status: Bits<8>,
}

/// See [`Facts`]. The record, a READ's or an `atomic`'s if `is_read`, that of a local operation if `is_local`, of `length` bytes, takes `packets` PSNs, of which `behind` with `before` bytes are acknowledged; the packet acknowledges
/// `todo` more, `some` if that is not 0. Of a READ response a packet has the MTU, or at the end all that remains. FIRST and MIDDLE
/// are taken for each other: after a go back the old response may still arrive. `timely`: the timer that fired, `fired_verbs` or
/// a fast one, is the present one.
#[hdl_fn]
pub fn facts_of(
    row: Row,
    has: Bit,
    is_read: Bit,
    is_local: Bit,
    atomic: Bit,
    length: Bits<32>,
    packets: Psn,
    behind: Psn,
    before: Bits<32>,
    payload: Bits<14>,
    said: Said,
    todo: Psn,
    some: Bit,
    mtu: Bits<3>,
    trouble: Trouble,
    timely: Bit,
    fired_verbs: Bit,
) -> Facts {
    let target = behind + todo;
    let (all, more) = (target >= packets, target > packets);
    let kind = said.kind;
    let (says_data, says_nak, says_rnr) = (kind == SAYS_DATA, kind == SAYS_GO_BACK, kind == SAYS_RNR);
    let (says_end, says_ack) = (kind == SAYS_END, kind == SAYS_ACK);
    let (says_timer, says_fault) = (kind == SAYS_TIMER, kind == SAYS_FAULT);

    let heard = said.runs && said.about && (said.call || said.hears && said.peer && said.pkey);
    let own = heard && !some;
    let local = own && is_local && (says_ack || says_fault);
    let retire = heard && some && has && !is_read || local;
    // An ACK within a READ's PSNs is unsolicited, a NAK there is about it.
    let unread = heard && some && is_read;
    let lost = unread && if says_ack { more } else { !says_end || all };
    let bare = heard && some && !has;
    // What it says itself, once nothing is left to acknowledge, or where a NAK is about a READ.
    let quiet = own && says_ack && !local || unread && says_ack && !more || bare && !says_end;
    let data = own && says_data && is_read;
    let end = says_end && (own || bare || unread && !all);

    let final_one = behind + 1 == packets;
    let sound_last = said.closes && said.pad && before + payload.cast::<32>() == length;
    let sound = !said.closes && said.pad && payload == mtu_bytes(mtu);
    let good = said.atomic == atomic && if final_one { sound_last } else { sound };

    // A WQE or frame failed: its turn is now, later, or, if it was acknowledged meanwhile, never.
    let fault = own && says_fault && !local;
    let of_fault = (quiet && row.fault || fault) && trouble.due && trouble.ends;
    let free = (says_timer && (row.rnr || !fired_verbs)) || says_fault;
    let goes =
        lost && !row.recovering || own && says_nak || own && says_timer && has && timely || fault && trouble.back;
    let spent = goes && !free && !row.retry.any();
    let worn = own && says_rnr && !row.rnr_retry.any();
    Facts {
        nothing: !heard,
        retire,
        local,
        lost,
        quiet,
        data,
        stray: own && says_data && !is_read,
        nak: own && says_nak,
        rnr: own && says_rnr,
        end,
        fault,
        has,
        is_read,
        whole: if says_data && !some { final_one } else { all },
        rest: target - packets,
        more,
        finished: !more && says_ack && !row.fault,
        good,
        final_one,
        bytes: payload.any(),
        of_fault,
        back: goes && !spent,
        free,
        fails: spent || worn || end || of_fault,
        spent,
    }
}

/// Blocks of its WQE.
#[hdl_fn]
pub fn blocks_of(record: Record) -> Bits<3> {
    cat!(!record.blocks.any(), record.blocks)
}

/// It is an atomic write.
#[hdl_fn]
pub fn puts(record: Record) -> Bit {
    record.opcode.get_bits::<2>(2).all()
}

/// What of the firings stays over progress: [`KEPT`](super::timers::KEPT) at most.
#[hdl_fn]
pub fn kept(fires: Bits<4>) -> Bits<4> {
    if fires.get_bit(3) { KEPT.to_bits() } else { fires }
}

/// How often the fast timer is doubled. After a NAK the next answer takes longer than a round trip: WQE and data are read again first.
#[hdl_fn]
pub fn doublings(row: Row) -> Bits<4> {
    if row.recovering && !row.fires.any() { 1.into() } else { row.fires }
}

/// A head: oldest record, and slot of the next READ.
#[hdl_fn]
pub fn head_of(row: Row) -> Bits<11> {
    cat!(11; row.reads.get_bits::<4>(0), row.record)
}

/// See [`Trouble`].
#[hdl_fn]
pub fn trouble_of(row: Row, fault: SendFault, generation: Gen) -> Trouble {
    let known = fault.generation == generation;
    let delta = fault.psn - row.psn;
    let (past, here) = (delta.get_bit(23), fault.psn == row.psn);
    let ends = fault.cause.any();
    Trouble {
        known,
        past,
        due: known && here,
        ends,
        has_blocks: fault.blocks.any(),
        // Of what failed and was acknowledged; of what a local operation waits for and nobody was asked for.
        back: known && if ends { past } else { fault.blocks.any() && !past && !here },
        // A frame fails at its key.
        status: if !fault.blocks.any() {
            wc::LOC_PROT.to_bits()
        } else if fault.opcode == send_op::BIND_MW {
            wc::MW_BIND.to_bits()
        } else {
            status_of(fault.cause)
        },
    }
}

/// The row restarts its queue, or what is sent of it.
#[hdl_fn]
pub fn loads(row: Bits<512>) -> Bit {
    row.get_bit(elab!(qp_send::LOAD.lsb)) || row.get_bit(elab!(qp_send::RESUME.lsb))
}

/// Attributes of a QP_SEND row.
#[hdl_fn]
pub fn attributes_of(row: Bits<512>) -> Attributes {
    Attributes {
        mtu: row.get_bits::<3>(elab!(qp_send::MTU.lsb)),
        pd: row.get_bits::<16>(elab!(qp_send::PD.lsb)),
        cqn: row.get_bits::<12>(elab!(qp_send::CQN.lsb)),
        retry: row.get_bits::<3>(elab!(qp_send::RETRY_COUNT.lsb)),
        rnr_retry: row.get_bits::<3>(elab!(qp_send::RNR_RETRY.lsb)),
        timeout: row.get_bits::<5>(elab!(qp_send::TIMEOUT.lsb)),
        raw: row.get_bits::<2>(elab!(qp_send::TYPE.lsb)) == qp_type::RAW,
        alone: row.get_bits::<2>(elab!(qp_send::TYPE.lsb)) != qp_type::RC,
    }
}

/// Peer of a QP_RECV row.
#[hdl_fn]
pub fn peer_of(row: Bits<512>) -> Peer {
    Peer { pkey: row.get_bits::<16>(elab!(qp_recv::PKEY.lsb)), sip: row.get_bits::<128>(elab!(qp_recv::SIP_LOW.lsb)) }
}

/// Row of a queue that a QP_SEND row has just loaded.
#[hdl_fn]
pub fn fresh(row: Bits<512>) -> Row {
    let attributes = attributes_of(row);
    Row {
        psn: row.get_bits::<24>(elab!(qp_send::PSN.lsb)),
        record: 0.into(),
        reads: 0.into(),
        index: row.get_bits::<16>(elab!(qp_send::INDEX.lsb)),
        message: row.get_bits::<24>(elab!(qp_send::PSN.lsb)),
        retry: attributes.retry,
        rnr_retry: attributes.rnr_retry,
        rnr: false,
        rnr_code: 0.into(),
        turn: 0.into(),
        fires: 0.into(),
        reading: false,
        recovering: false,
        queued: false,
        fault: false,
        halted: false,
        srtt: 0.into(),
        rttvar: 0.into(),
        limited: false,
        limit: 0.into(),
    }
}

/// The QP_SEND row as it stands, with the oldest unacknowledged PSN.
#[hdl_fn]
pub fn row_of(attributes: Attributes, row: Row) -> Bits<512> {
    cat!(
        512;
        bits::<411>(0),
        attributes.timeout,
        bits::<5>(0),
        row.rnr_retry,
        false,
        row.retry,
        bits::<12>(0),
        row.psn,
        bits::<12>(0),
        attributes.cqn,
        attributes.pd,
        false,
        attributes.mtu,
        bits::<4>(0)
    )
}
