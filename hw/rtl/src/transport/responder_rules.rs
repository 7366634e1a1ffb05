//! The responder's rules as functions of packet, row and state. `responder` says when each is asked.

use super::opcode::*;
use crate::msg::*;
use abi::{
    queue::{ATOMIC_BYTES, UD_HEADER},
    status::cause,
    table::{access, qp_recv, qp_state, qp_type},
    wire::len,
};
use hdl::prelude::*;

/// No message is under way.
pub const BETWEEN: u8 = 0;
/// A SEND is under way.
pub const SENDING: u8 = 1;
/// A WRITE is under way.
pub const WRITING: u8 = 2;

/// What firmware sets of a receive side. Writer: the table bus.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Attributes {
    /// `abi::table::qp_type`.
    pub kind: Bits<2>,
    /// Path MTU code.
    pub mtu: Bits<3>,
    /// Protection domain.
    pub pd: Bits<16>,
    /// CQ.
    pub cqn: Bits<12>,
    /// READs that may be outstanding.
    pub max_reads: Bits<5>,
    /// A receive is one SGE, not a block of four.
    pub single: Bit,
    /// RNR timer code.
    pub rnr_timer: Bits<5>,
    /// Access flags.
    pub access: Bits<4>,
    /// P_Key.
    pub pkey: Bits<16>,
    /// Receives are taken from this shared queue, each one SGE.
    pub shared: Bit,
    pub queue: Qp,
    /// Peer's IP; UD: Q_Key.
    pub sip: Bits<128>,
}

/// How far a receive side is. Writer: the responder.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Progress {
    /// Expected PSN.
    pub psn: Psn,
    /// Messages completed.
    pub msn: Bits<24>,
    /// `BETWEEN`, `SENDING` or `WRITING`.
    pub message: Bits<2>,
    /// A NAK for this expected PSN is out.
    pub nak_sent: Bit,
    /// An error ended the QP.
    pub halted: Bit,
    /// READs accepted, free-running; the lower 4 bits are the next resource.
    pub reads: Bits<8>,
    /// READ resources that hold one, 0 to 16.
    pub saved: Bits<5>,
}

/// The message that is under way, if one is. Writer: the responder, with each packet of it.
///
/// A SEND of a QP with a shared receive queue keeps the receive that it has taken like a WRITE its memory.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Message {
    /// WRITE: bytes still to come. Kept receive: room that is left.
    pub left: Bits<32>,
    /// Bytes so far.
    pub done: Bits<32>,
    /// WRITE, kept receive: address of the next byte.
    pub va: Bits<64>,
    /// WRITE, kept receive: key.
    pub rkey: Bits<32>,
    /// Kept receive: its index.
    pub index: Bits<16>,
}

/// What of a packet is told without its QP, as it is taken.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Facts {
    /// There is payload.
    pub some: Bit,
    /// It exceeds the path MTU of code i + 1.
    pub over: Bits<5>,
    /// It and its pad fill words of 4 bytes.
    pub padded: Bit,
    /// The message would have more than 2^31 bytes.
    pub long: Bit,
    /// The address is a multiple of 8, as an atomic's must be; the lengths are 8, as those of an atomic write.
    pub straight: Bit,
    pub word: Bit,
    /// The QP number names a QP, but for 0, which is not addressed.
    pub named: Bit,
}

/// More than 2^k.
#[hdl_fn]
fn beyond(n: Bits<14>, k: usize) -> Bit {
    (n & bits::<14>(0x3fff << (k + 1) & 0x3fff)).any() || (n.get_bit(k) && (n & bits::<14>((1 << k) - 1)).any())
}

/// `a` is less than `b`: the sign of their difference, which is one carry chain.
#[hdl_fn]
pub fn less(a: Bits<34>, b: Bits<34>) -> Bit {
    (a.cast::<35>() - b.cast::<35>()).get_bit(34)
}

/// See [`Facts`]. There are `qps` QPs.
#[hdl_fn]
pub fn facts_of(m: RxMeta, qps: Bits<24>) -> Facts {
    let n = m.payload;
    Facts {
        some: n.any(),
        over: cat!(5; beyond(n, 12), beyond(n, 11), beyond(n, 10), beyond(n, 9), beyond(n, 8)),
        padded: (n.get_bits::<2>(0) + m.pad) == 0,
        straight: !m.va.get_bits::<3>(0).any(),
        word: n == ATOMIC_BYTES as u64 && m.dma_len == ATOMIC_BYTES as u64,
        long: m.dma_len.get_bit(31) && m.dma_len.get_bits::<31>(0).any(),
        named: if m.group { m.qpn.get_bits::<12>(0).any() } else { m.qpn.any() && m.qpn < qps },
    }
}

/// What is found about a packet as it is compared with its QP's rows.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Found {
    /// The QP exists, may receive, and has not ended.
    pub receives: Bit,
    /// Transport is the QP's.
    pub kind: Bit,
    /// From the QP's peer; UD: with the QP's Q_Key.
    pub peer: Bit,
    /// P_Key matches.
    pub pkey: Bit,
    /// Not the expected PSN, and before it rather than beyond.
    pub off: Bit,
    pub before: Bit,
    /// Opcode sequence, access and READ limit hold.
    pub follows: Bit,
    /// The packet's length fits its kind, so far as one packet tells.
    pub sized: Bit,
    /// WRITE: it has all bytes that are still to come; more than those (kept receive: than there is room for).
    pub ends: Bit,
    pub exceeds: Bit,
    /// Why the QP ends, if it does by this packet.
    pub why: Bits<8>,
    /// PSNs that it takes: those of a READ's response, else one.
    pub packets: Bits<24>,
    /// WRITE: bytes to come after this packet; kept receive: room.
    pub left: Bits<32>,
    /// Bytes of the message with this packet, and with the header area if it is UD's.
    pub done: Bits<33>,
    /// WRITE, atomic, atomic write, kept receive: where this packet's bytes go.
    pub va: Bits<64>,
    /// WRITE, kept receive: under which key.
    pub rkey: Bits<32>,
    /// WRITE: bytes that the key must cover from `va`.
    pub span: Bits<32>,
}

/// Verdicts on a packet. At most one of `future`, `duplicate`, `wrong`, `unfit`, `dropped`, `right` holds, and only of a packet that
/// is for this QP and from its peer.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Verdict {
    /// A raw frame, and it may be received.
    pub raw: Bit,
    /// PSN beyond the expected one.
    pub future: Bit,
    /// PSN before the expected one.
    pub duplicate: Bit,
    /// The expected PSN, but opcode sequence, access or READ limit are broken.
    pub wrong: Bit,
    /// The lengths are.
    pub unfit: Bit,
    /// None of these: in order and correct, save for what the receive queue may say.
    pub right: Bit,
    /// Of an unreliable QP, and not right: nobody is told.
    pub dropped: Bit,
    /// It is right or raw: it waits for its WQE.
    pub wants: Bit,
    /// It completes its WQE if that holds it.
    pub takes: Bit,
    /// It is wrong, or unfit, within a SEND, whose WQE fails with it.
    pub spoils: Bit,
    pub spoils_posted: Bit,
}

/// States in which a QP receives.
#[hdl_fn]
pub fn receives(state: Bits<3>) -> Bit {
    state == qp_state::RTR || state == qp_state::RTS || state == qp_state::SQD || state == qp_state::SQE
}

/// P_Keys match: same lower 15 bits, not zero, one of the two a full member.
#[hdl_fn]
pub fn pkeys_match(a: Bits<16>, b: Bits<16>) -> Bit {
    let key = a.get_bits::<15>(0);
    key == b.get_bits::<15>(0) && key.any() && (a.get_bit(15) || b.get_bit(15))
}

/// Compares a packet `m` with its QP. `answered`: READs that the response engine has finished.
#[hdl_fn]
pub fn find(
    m: RxMeta,
    facts: Facts,
    kind: Kind,
    attributes: Attributes,
    progress: Progress,
    message: Message,
    view: QpView,
    answered: Bits<8>,
) -> Found {
    let delta = m.psn - progress.psn;
    // At most the MTU, and exactly that.
    let (over, top) = (facts.over, m.payload);
    let size: Bits<2> = match attributes.mtu {
        1 => cat!(2; top.get_bit(8), over.get_bit(0)),
        2 => cat!(2; top.get_bit(9), over.get_bit(1)),
        3 => cat!(2; top.get_bit(10), over.get_bit(2)),
        4 => cat!(2; top.get_bit(11), over.get_bit(3)),
        _ => cat!(2; top.get_bit(12), over.get_bit(4)),
    };
    let fits = !size.get_bit(0);
    let full = fits && size.get_bit(1);
    let only = kind.opens && kind.closes;

    // A message of UC begins anew whatever came before, and a datagram has no place.
    let anew = kind.uc && kind.opens;
    let placed = !kind.ud && !anew;
    let sequence = if progress.message == BETWEEN || anew {
        kind.opens
    } else if progress.message == SENDING {
        kind.send && !kind.opens
    } else {
        kind.write && !kind.opens
    };
    let known = kind.send || kind.write || kind.read;
    let allowed = (!(kind.write || kind.puts) || (attributes.access & access::REMOTE_WRITE as u64).any())
        && (!kind.read || kind.atomic || kind.puts || (attributes.access & access::REMOTE_READ as u64).any())
        && (!kind.atomic || (attributes.access & access::REMOTE_ATOMIC as u64).any());
    let outstanding = progress.reads - answered;
    let room = !kind.read || outstanding < attributes.max_reads.cast::<8>();

    let payload = m.payload.cast::<32>();
    let left = if kind.opens { m.dma_len } else { message.left };
    let message_ok = !kind.opens || kind.send || !facts.long;
    let size = if kind.closes { fits && (only || facts.some) } else { full };
    let rest = left.cast::<33>() - payload.cast::<33>();
    let before: Bits<32> = if kind.ud {
        bits::<32>(UD_HEADER as u64)
    } else if kind.opens {
        0.into()
    } else {
        message.done
    };
    let right_kind = kind.rc && attributes.kind == qp_type::RC
        || kind.uc && attributes.kind == qp_type::UC
        || kind.ud && attributes.kind == qp_type::UD;
    let known_to = if kind.ud { m.rkey == attributes.sip.get_bits::<32>(0) } else { m.sip == attributes.sip };
    Found {
        receives: (m.raw || facts.named) && receives(view.state) && !progress.halted,
        kind: right_kind,
        peer: known_to,
        pkey: pkeys_match(m.pkey, attributes.pkey),
        off: (m.psn ^ progress.psn).any() && placed,
        before: delta.get_bit(23) && placed,
        follows: known && sequence && allowed && room,
        sized: facts.padded
            && message_ok
            && if kind.atomic {
                facts.straight
            } else if kind.puts {
                facts.straight && facts.word
            } else if kind.read {
                !facts.some
            } else {
                size
            },
        ends: !(left ^ payload).any(),
        exceeds: rest.get_bit(32),
        why: if !known || !sequence {
            cause::INVALID_REQUEST.to_bits()
        } else if !allowed {
            cause::QP_ACCESS.to_bits()
        } else if !room {
            cause::TOO_MANY_READS.to_bits()
        } else {
            cause::INVALID_REQUEST.to_bits()
        },
        packets: if kind.read { response_psns(m.dma_len, attributes.mtu) } else { 1.into() },
        left: rest.get_bits::<32>(0),
        done: before.cast::<33>() + payload.cast::<33>(),
        va: if kind.opens { m.va } else { message.va },
        rkey: if kind.opens { m.rkey } else { message.rkey },
        span: if kind.opens && !kind.read { m.dma_len } else { payload },
    }
}

/// What follows from it. `sending`: a SEND is under way.
#[hdl_fn]
pub fn judge(found: Found, kind: Kind, raw: Bit, sending: Bit) -> Verdict {
    let admitted = found.receives && found.kind && found.peer && found.pkey;
    let now = admitted && !found.off;
    let sum = !kind.write || if kind.closes { found.ends } else { !found.ends && !found.exceeds };
    let good = found.sized && sum;
    let right = now && found.follows && good;
    let alone = kind.uc || kind.ud;
    let unfit = now && found.follows && !good && !alone;
    let wrong = now && !found.follows && !alone;
    let raw = found.receives && raw;
    Verdict {
        raw,
        future: admitted && found.off && !found.before && !alone,
        duplicate: admitted && found.before && !alone,
        wrong,
        unfit,
        right,
        dropped: admitted && alone && !right,
        wants: right || raw,
        takes: raw || (right && kind.closes && (kind.send || kind.imm)),
        spoils: wrong && sending,
        spoils_posted: unfit && sending,
    }
}

/// A raw frame is received like a SEND ONLY.
#[hdl_fn]
pub fn raw_kind() -> Kind {
    Kind {
        send: true,
        write: false,
        read: false,
        atomic: false,
        adds: false,
        puts: false,
        opens: true,
        closes: true,
        imm: false,
        inv: false,
        rc: false,
        uc: false,
        ud: false,
        cnp: false,
    }
}

/// Where in the header area of a UD message its IP header goes.
#[hdl_fn]
pub fn header_at(ip6: Bit) -> Bits<32> {
    if ip6 { 0.into() } else { bits::<32>((len::IPV6 - len::IPV4) as u64) }
}

/// Bytes of that.
#[hdl_fn]
pub fn header_len(ip6: Bit) -> Bits<14> {
    if ip6 { bits::<14>(len::IPV6 as u64) } else { bits::<14>(len::IPV4 as u64) }
}

/// How far before the payload that lies in the receive buffer.
#[hdl_fn]
pub fn header_back(ip6: Bit, imm: Bit) -> BufAddr {
    let imm: BufAddr = if imm { bits::<20>(len::IMM as u64) } else { 0.into() };
    header_len(ip6).cast::<20>() + imm + (len::UDP + len::BTH + len::DETH) as u64
}

/// What a READ asks for, compared with a saved one: where it begins in it by its PSN, by its address and by its length. An atomic is
/// known by its PSN; the address has made room for the result.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Likeness {
    /// Bytes by the PSN.
    pub gap: Bits<37>,
    /// Bytes by the address.
    pub skipped: Bits<64>,
    /// Bytes by the length: negative if it asks for more than the saved one.
    pub shorter: Bits<33>,
    /// The same key, and both are READs or both atomics.
    pub key: Bit,
    pub atomic: Bit,
    /// It asks for something.
    pub some: Bit,
}

/// See [`Likeness`].
#[hdl_fn]
pub fn compare(m: RxMeta, atomic: Bit, saved: ReadResource, mtu: Bits<3>) -> Likeness {
    Likeness {
        gap: psns_to_bytes(m.psn - saved.psn, mtu),
        skipped: m.va - saved.va,
        shorter: saved.length.cast::<33>() - m.dma_len.cast::<33>(),
        key: m.rkey == saved.rkey && atomic == saved.atomic,
        atomic,
        some: m.dma_len.any(),
    }
}

/// A repeated READ is the rest of a saved one.
#[hdl_fn]
pub fn is_rest(l: Likeness) -> Bit {
    let inside = !l.shorter.get_bit(32) && (l.some || !l.gap.any());
    inside && l.key && l.gap == l.shorter.cast::<37>() && (l.atomic || l.skipped == l.gap.cast::<64>())
}

/// The row restarts the protocol. Whether it restarts the ring as well makes no difference here: before RTR nothing is
/// consumed.
#[hdl_fn]
pub fn loads(row: Bits<512>) -> Bit {
    row.get_bit(elab!(qp_recv::LOAD.lsb)) || row.get_bit(elab!(qp_recv::LOAD_PSN.lsb))
}

/// Attributes of a QP_RECV row.
#[hdl_fn]
pub fn attributes_of(row: Bits<512>) -> Attributes {
    Attributes {
        kind: row.get_bits::<2>(elab!(qp_recv::TYPE.lsb)),
        mtu: row.get_bits::<3>(elab!(qp_recv::MTU.lsb)),
        pd: row.get_bits::<16>(elab!(qp_recv::PD.lsb)),
        cqn: row.get_bits::<12>(elab!(qp_recv::CQN.lsb)),
        max_reads: row.get_bits::<5>(elab!(qp_recv::MAX_DEST_READS.lsb)),
        single: row.get_bit(elab!(qp_recv::ONE_SGE.lsb)),
        rnr_timer: row.get_bits::<5>(elab!(qp_recv::MIN_RNR_TIMER.lsb)),
        access: row.get_bits::<4>(elab!(qp_recv::ACCESS.lsb)),
        pkey: row.get_bits::<16>(elab!(qp_recv::PKEY.lsb)),
        shared: row.get_bit(elab!(qp_recv::SHARED.lsb)),
        queue: row.get_bits::<12>(elab!(qp_recv::QUEUE.lsb)),
        sip: row.get_bits::<128>(elab!(qp_recv::SIP_LOW.lsb)),
    }
}

/// Progress of a queue that a QP_RECV row has just loaded.
#[hdl_fn]
pub fn fresh(row: Bits<512>) -> Progress {
    Progress {
        psn: row.get_bits::<24>(elab!(qp_recv::PSN.lsb)),
        msn: 0.into(),
        message: BETWEEN.to_bits(),
        nak_sent: false,
        halted: false,
        reads: 0.into(),
        saved: 0.into(),
    }
}

/// What a read of the QP_RECV row gives (`abi::table::qp_recv_read`).
#[hdl_fn]
pub fn row_of(attributes: Attributes, progress: Progress, message: Message) -> Bits<512> {
    cat!(
        512;
        bits::<440>(0u64),
        progress.psn,
        bits::<23>(0u64),
        attributes.shared && progress.message == SENDING,
        message.index,
        bits::<8>(0u64)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::table::qp_recv_read;

    #[test]
    fn a_row_loads_a_queue_or_its_psn() {
        for (field, want) in [(qp_recv::LOAD, true), (qp_recv::LOAD_PSN, true), (qp_recv::MTU, false)] {
            assert_eq!(loads(bits::<512>(1u64 << field.lsb)), want, "{}", field.name);
        }
    }

    #[test]
    fn a_copy_names_a_member_by_its_lower_half() {
        let named =
            |group, qpn: u64| facts_of(RxMeta { group, qpn: qpn.to_bits(), ..RxMeta::default() }, 256.into()).named;
        assert!(named(true, 0xfff005) && !named(true, 0xfff000), "a group without members");
        assert!(named(false, 5) && !named(false, 0xfff005) && !named(false, 0) && !named(false, 256));
    }

    #[test]
    fn partial_members_match_full_ones_only() {
        let m = |a: u16, b: u16| pkeys_match(a.to_bits(), b.to_bits());
        assert!(m(0xffff, 0x7fff) && m(0x7fff, 0xffff) && m(0xffff, 0xffff));
        assert!(!m(0x7fff, 0x7fff) && !m(0x8000, 0x8000) && !m(0x8001, 0x8002));
    }

    #[test]
    fn a_read_gives_the_psn_and_the_receive_that_was_taken() {
        let attributes = Attributes { shared: true, ..Attributes::default() };
        let message = Message { index: 0x1234u64.to_bits(), ..Message::default() };
        let progress = Progress { psn: 0xfffffeu64.to_bits(), message: SENDING.to_bits(), ..Progress::default() };
        let row = row_of(attributes, progress, message);
        assert_eq!(row.get_bits::<24>(qp_recv_read::PSN.lsb), progress.psn);
        assert_eq!(row.get_bits::<16>(qp_recv_read::TAKEN_INDEX.lsb), message.index);
        let taken = |row: Bits<512>| row.get_bit(qp_recv_read::TAKEN.lsb);
        assert!(taken(row));
        assert!(!taken(row_of(Attributes::default(), progress, message)), "it is in its own queue");
        let between = Progress { message: BETWEEN.to_bits(), ..progress };
        assert!(!taken(row_of(attributes, between, message)));
    }
}
