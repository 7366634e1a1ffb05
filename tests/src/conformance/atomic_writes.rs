//! Atomic writes: the NIC as their responder, and as their requester (IBTA annex A19).

use super::talk::{Case, Talk, Terms, acked};
use super::{Row, row};
use abi::status::{cause, counter, wc};
use driver::qp::SendOptions;
use driver::{Access, Data, Flags, Remote};
use fabric::peer::{Packet, Reth, ack, atomic, atomic_ack, atomic_write, op, respond, syndrome};
use syndrome::{INVALID_REQUEST, REMOTE_ACCESS};

pub const ROWS: &[Row] = &[
    row!(
        "A19",
        an_atomic_write_is_answered_like_a_read,
        "An atomic write leaves its 8 bytes as they came and is answered by a READ RESPONSE ONLY without payload, in the order of PSNs; a READ or an atomic behind it finds what it left"
    ),
    row!(
        "A19, 9.7.5",
        a_repeated_atomic_write_is_not_executed_again,
        "A repeated atomic write (its answer was lost) is answered again and not executed; one that is not saved, or is another one, is dropped"
    ),
    row!(
        "A19, 9.7.4",
        atomic_writes_that_are_refused,
        "An atomic write to an address that is not a multiple of 8, or of a payload or DMA length other than 8: NAK invalid request; under a key that is wrong or does not allow writes: NAK remote access; nothing is written, and the QP ends"
    ),
    Row {
        terms: Terms { access: Access::LOCAL_WRITE.union(Access::REMOTE_READ), ..Terms::USUAL },
        ..row!(
            "A19, 9.7.4",
            atomic_writes_that_the_qp_does_not_allow,
            "Atomic writes where the QP's access flags exclude writes: NAK invalid request"
        )
    },
    row!(
        "A19, 9.7.3",
        an_atomic_write_completes_by_its_answer,
        "An atomic write takes one PSN, has a RETH of 8 bytes, asks for an answer and completes by that, not by an ACK of its PSN; one whose answer is lost is sent again, unchanged"
    ),
    row!(
        "A19, 9.7.6",
        an_atomic_write_is_answered_by_nothing_else,
        "An answer to an atomic write that has data, or is an atomic's, ends the QP: BAD_RESP"
    ),
    Row {
        terms: Terms { send: SendOptions { max_reads: 2, ..super::requester::USUAL }, ..Terms::USUAL },
        ..row!(
            "A19, 9.7.3",
            no_more_atomic_writes_than_the_peer_takes,
            "Atomic writes count as outstanding READs at the requester, and a fence waits for them"
        )
    },
];

/// Where scripts write.
const AT: usize = 4096;

/// The peer writes `data` to place `at`.
fn ask(t: &Talk, psn: u32, at: usize, data: [u8; 8]) -> Packet {
    atomic_write(psn, t.memory.addr() + at as u64, t.memory.rkey(), data)
}

/// What answers an atomic write.
fn answer(psn: u32, msn: u32) -> Packet {
    respond(psn, msn, &[], 256).remove(0)
}

/// The peer writes, and gets its answer.
fn writes(t: &mut Talk, psn: u32, msn: u32, at: usize, data: [u8; 8]) {
    t.peer(ask(t, psn, at, data));
    t.nic(answer(psn, msn));
    t.lands_data(at, &data);
}

fn an_atomic_write_is_answered_like_a_read(t: &mut Talk) {
    writes(t, 0, 1, AT, [1, 2, 3, 4, 5, 6, 7, 8]);
    t.check_memory();
    // At both ends of the memory.
    writes(t, 1, 2, 0, [0xff; 8]);
    writes(t, 2, 3, super::talk::LEN - 8, [0; 8]);
    t.check_memory();
    // Between READs, atomics and WRITEs, at once.
    let far = t.memory.addr() + AT as u64;
    let adds = |psn, n| atomic(op::FETCH_ADD, psn, far, t.memory.rkey(), [n, 0]);
    let write = t.only(8, t.write(8, 20));
    let packets = [
        t.only(3, t.read(AT, 8)),
        ask(t, 4, AT, [9; 8]),
        adds(5, 1),
        ask(t, 6, AT, [3, 0, 0, 0, 0, 0, 0, 0]),
        adds(7, 2),
        write,
        t.only(9, t.read(AT, 8)),
        ask(t, 10, AT, [7; 8]),
    ];
    let before = t.response(3, 4, AT, 8);
    t.peer_all_at_once(packets.to_vec());
    // The first READ may find what was written behind it: no fence held that back.
    let found = t.heard("the response of a READ");
    assert_eq!(Packet { payload: before[0].payload.clone(), ..found.clone() }, before[0]);
    t.nic(answer(4, 5));
    t.nic(atomic_ack(5, 6, u64::from_le_bytes([9; 8])));
    t.nic(answer(6, 7));
    t.nic(atomic_ack(7, 8, 3));
    let found = t.heard("the response of a READ");
    let last = respond(9, 10, &5u64.to_le_bytes(), 256).remove(0);
    assert_eq!(Packet { payload: last.payload.clone(), ..found }, last);
    t.nic(answer(10, 11));
    t.lands(8, 20);
    t.lands_data(AT, &[7; 8]);
    t.check_memory();
}

fn a_repeated_atomic_write_is_not_executed_again(t: &mut Talk) {
    writes(t, 0, 1, AT, [1; 8]);
    writes(t, 1, 2, AT, [2; 8]);
    for _ in 0..3 {
        t.peer(ask(t, 0, AT, [1; 8]));
        t.nic(answer(0, 1));
        t.peer(ask(t, 1, AT, [2; 8]));
        t.nic(answer(1, 2));
    }
    t.counts(counter::RX_DUPLICATE, 6);
    t.check_memory();
    // What the host writes meanwhile stays.
    t.host_writes(AT, &[9; 8]);
    t.peer(ask(t, 1, AT, [2; 8]));
    t.nic(answer(1, 2));
    // None of that PSN; another one.
    t.peer(ask(t, 0xff_fffe, AT, [3; 8]));
    t.peer(ask(t, 1, AT + 8, [3; 8]));
    t.peer(atomic(op::FETCH_ADD, 1, t.memory.addr() + AT as u64, t.memory.rkey(), [1, 0]));
    t.silence();
    t.counts(counter::RX_DUPLICATE, 4);
    t.check_memory();
    // Sixteen of which no answer came.
    let asked: Vec<_> = (2..18).map(|psn| ask(t, psn, AT + 8 * psn as usize, [psn as u8; 8])).collect();
    t.peer_all_at_once(asked.clone());
    (2..18).for_each(|psn| t.nic(answer(psn, psn + 1)));
    (2..18).for_each(|psn| t.lands_data(AT + 8 * psn as usize, &[psn as u8; 8]));
    t.check_memory();
    for packet in asked {
        let psn = packet.psn;
        t.peer(packet);
        t.nic(answer(psn, psn + 1));
    }
    t.counts(counter::RX_DUPLICATE, 16);
    t.peer(ask(t, 1, AT, [2; 8]));
    t.silence();
    t.counts(counter::RX_DUPLICATE, 1);
    t.check_memory();
}

fn atomic_writes_that_are_refused(t: &mut Talk) {
    let reth = |t: &Talk, at: u64, len| Reth { va: t.memory.addr() + at, rkey: t.memory.rkey(), len };
    let of = |reth: Reth, payload: usize| Packet {
        reth: Some(reth),
        payload: vec![0xee; payload],
        ..atomic_write(1, 0, 0, [0; 8])
    };
    for (what, at, len, payload) in [
        ("at 4", 4, 8, 8),
        ("at 1", 1, 8, 8),
        ("of 4", 0, 4, 4),
        ("of nothing", 0, 0, 0),
        ("of 16", 0, 16, 16),
        ("shorter than it says", 0, 8, 4),
        ("longer than it says", 0, 8, 12),
        ("of a DMA length of 9", 0, 9, 8),
        ("of a DMA length of 2^31 + 8", 0, (1 << 31) + 8, 8),
    ] {
        let _case = Case(what);
        t.apart(t.terms, |t| {
            writes(t, 0, 1, AT, [1; 8]);
            t.peer(of(reth(t, at, len), payload));
            t.refuses(1, INVALID_REQUEST);
            t.ends_by(cause::INVALID_REQUEST);
            t.check_memory();
        });
    }
    for (what, at, key, why) in [
        ("another key", 0, 1, cause::KEY_INVALID),
        ("behind the region", super::talk::LEN as u64, 0, cause::KEY_BOUNDS),
    ] {
        let _case = Case(what);
        t.apart(t.terms, |t| {
            writes(t, 0, 1, AT, [1; 8]);
            let r = reth(t, at, 8);
            t.peer(of(Reth { rkey: r.rkey ^ key, ..r }, 8));
            t.refuses(1, REMOTE_ACCESS);
            t.ends_by(why);
            t.check_memory();
        });
    }
    let _case = Case("a region without the right");
    let barred = t.solo.host.pd.alloc(64, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
    t.peer(atomic_write(0, barred.addr(), barred.rkey(), [1; 8]));
    t.refuses(0, REMOTE_ACCESS);
    t.ends_by(cause::KEY_ACCESS);
    assert_eq!(crate::bytes(&barred), [0; 64]);
}

fn atomic_writes_that_the_qp_does_not_allow(t: &mut Talk) {
    t.peer(ask(t, 0, AT, [1; 8]));
    t.refuses(0, INVALID_REQUEST);
    t.ends_by(cause::QP_ACCESS);
    t.check_memory();
}

/// Remote memory that the NIC's atomic writes name.
const FAR: Remote = Remote { addr: 0x5_0008, rkey: 0x1234 };

/// The NIC posts an atomic write.
fn posts(t: &mut Talk, id: u64, data: [u8; 8], flags: Flags) {
    let mut batch = t.qp.post();
    batch.add(id, driver::Operation::AtomicWrite(FAR), Data::Inline(&data), Flags::SIGNALED | flags).unwrap();
    batch.ring();
}

fn sent(psn: u32, data: [u8; 8]) -> Packet {
    atomic_write(psn, FAR.addr, FAR.rkey, data)
}

fn an_atomic_write_completes_by_its_answer(t: &mut Talk) {
    let data = [1, 2, 3, 4, 5, 6, 7, 8];
    posts(t, 1, data, Flags::SOLICITED);
    t.nic(sent(0, data));
    // An ACK of its own PSN acknowledges no more than what is before it.
    t.peer(ack(0, syndrome::ACK, 1));
    t.counts(counter::RX_ACCEPTED, 0);
    t.silence_for(200);
    t.peer(answer(0, 1));
    t.completes(1);
    // A later answer shows that it is lost.
    posts(t, 2, [2; 8], Flags::empty());
    posts(t, 3, [3; 8], Flags::empty());
    t.nic(sent(1, [2; 8]));
    t.nic(sent(2, [3; 8]));
    t.peer(answer(2, 3));
    t.nic(sent(1, [2; 8]));
    t.nic(sent(2, [3; 8]));
    t.peer(answer(1, 2));
    t.completes(2);
    t.peer(answer(2, 3));
    t.completes(3);
    t.any_sequence();
    // Nothing more comes: the timer asks.
    posts(t, 4, [4; 8], Flags::empty());
    t.nic(sent(3, [4; 8]));
    t.nic(sent(3, [4; 8]));
    t.peer(answer(3, 4));
    t.completes(4);
}

fn an_atomic_write_is_answered_by_nothing_else(t: &mut Talk) {
    for (what, wrong) in [
        ("data", respond(0, 1, &[1, 2, 3, 4, 5, 6, 7, 8], 256).remove(0)),
        ("a word", respond(0, 1, &[1, 2, 3, 4], 256).remove(0)),
        ("an atomic's answer", atomic_ack(0, 1, 5)),
        ("the begin of a response", respond(0, 1, &[1; 300], 256).remove(0)),
    ] {
        let _case = Case(what);
        t.apart(t.terms, |t| {
            posts(t, 1, [1; 8], Flags::empty());
            t.nic(sent(0, [1; 8]));
            t.peer(wrong);
            t.fails(1, wc::BAD_RESP);
            t.check_memory();
        });
    }
    let write = fabric::peer::Request::write(0x7000, 9, vec![1; 20]);
    super::requester::sends(t, 1, 0, &write);
    t.peer(acked(0, 1));
    t.completes(1);
}

fn no_more_atomic_writes_than_the_peer_takes(t: &mut Talk) {
    for (id, flags) in [(0, Flags::empty()), (1, Flags::empty()), (2, Flags::empty()), (3, Flags::FENCE)] {
        posts(t, id, [id as u8; 8], flags);
    }
    t.nic(sent(0, [0; 8]));
    t.nic(sent(1, [1; 8]));
    t.silence_for(1000);
    t.peer(answer(0, 1));
    t.completes(0);
    t.nic(sent(2, [2; 8]));
    t.peer(answer(1, 2));
    t.completes(1);
    t.silence_for(1000);
    t.peer(answer(2, 3));
    t.completes(2);
    t.nic(sent(3, [3; 8]));
    t.peer(answer(3, 4));
    t.completes(3);
}
