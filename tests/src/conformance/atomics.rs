//! Atomics: the NIC as their responder, and as their requester (IBTA 9.4.5, 9.7, 9.9).

use super::talk::{Case, Talk, Terms, acked, data};
use super::{Row, row};
use abi::status::{cause, counter, wc};
use driver::qp::SendOptions;
use driver::{Access, Data, Flags, Operation, Remote};
use fabric::peer::{Packet, Request, atomic, atomic_ack, op, respond, syndrome};
use syndrome::{INVALID_REQUEST, REMOTE_ACCESS};

pub const ROWS: &[Row] = &[
    row!(
        "9.4.5",
        an_atomic_is_answered_with_what_it_found,
        "Compare-and-swap and fetch-and-add (modulo 2^64): the answer has what was in memory; a comparison that fails changes nothing"
    ),
    row!(
        "9.4.5, 9.7.5",
        a_repeated_atomic_is_not_executed_again,
        "A repeated atomic (its answer was lost) is answered from its saved result, whatever is in memory by then; one that is not saved is dropped"
    ),
    row!(
        "9.4.5, 9.7.5",
        sixteen_atomics_whose_answers_are_lost,
        "All that may be outstanding, sixteen, are executed once and answered from their saved results as often as they are repeated, in order"
    ),
    row!(
        "9.7.5",
        reads_and_atomics_are_answered_in_order,
        "READs and atomics are answered in the order of their PSNs, and ACKs of later messages behind them; a READ finds what an atomic before it left"
    ),
    row!(
        "9.7.4, 10.6.7",
        atomics_that_are_refused,
        "An atomic at an address that is not a multiple of 8: NAK invalid request; under a key that is wrong or does not allow it: NAK remote access; nothing is changed, and the QP ends"
    ),
    Row {
        terms: Terms {
            access: Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ),
            ..Terms::USUAL
        },
        ..row!(
            "9.7.4",
            atomics_that_the_qp_does_not_allow,
            "Atomics that the QP's access flags exclude: NAK invalid request"
        )
    },
    Row {
        terms: Terms { max_dest_reads: 2, ..Terms::USUAL },
        ..row!(
            "9.7.4",
            atomics_count_as_outstanding_reads,
            "Atomics count against the READs that may be outstanding: one more is an invalid request"
        )
    },
    row!(
        "9.4.5, 10.7.2",
        the_answer_to_an_atomic_lands_in_host_order,
        "An atomic takes one PSN; its answer lands in the SGE as the host writes numbers, and it completes with 8 bytes"
    ),
    row!(
        "9.7.5",
        an_atomic_whose_answer_is_lost_is_asked_for_again,
        "An atomic whose answer is lost, as a later answer shows, is sent again, unchanged"
    ),
    row!(
        "9.7.3, 9.7.5",
        twenty_atomics_of_which_no_answer_comes,
        "Of more than may be outstanding the first sixteen are sent; when none is answered they are sent again, unchanged, before any other"
    ),
    row!(
        "9.7.6",
        an_answer_of_another_kind_ends_the_queue_pair,
        "A READ response to an atomic, or an atomic's answer to a READ, ends the QP: BAD_RESP; nothing is written"
    ),
    Row {
        terms: Terms { send: SendOptions { max_reads: 2, ..super::requester::USUAL }, ..Terms::USUAL },
        ..row!(
            "9.7.3",
            no_more_atomics_than_the_peer_takes,
            "No more READs and atomics outstanding than the peer takes; a fence waits for them"
        )
    },
];

/// Where scripts have atomics act.
const AT: usize = 4096;

fn word(t: &Talk, at: usize) -> u64 {
    u64::from_le_bytes(t.expected(at, 8).try_into().expect("8 bytes"))
}

/// An atomic of the peer.
fn ask(t: &Talk, opcode: u8, psn: u32, at: usize, operands: [u64; 2]) -> Packet {
    atomic(opcode, psn, t.memory.addr() + at as u64, t.memory.rkey(), operands)
}

/// The peer adds, and gets its answer.
fn adds(t: &mut Talk, psn: u32, msn: u32, at: usize, n: u64) {
    let found = word(t, at);
    t.peer(ask(t, op::FETCH_ADD, psn, at, [n, 0]));
    t.nic(atomic_ack(psn, msn, found));
    t.lands_data(at, &found.wrapping_add(n).to_le_bytes());
}

fn an_atomic_is_answered_with_what_it_found(t: &mut Talk) {
    adds(t, 0, 1, AT, 1);
    adds(t, 1, 2, AT, u64::MAX - 4);
    let found = word(t, AT);
    t.peer(ask(t, op::COMPARE_SWAP, 2, AT, [77, found ^ 1 << 63]));
    t.nic(atomic_ack(2, 3, found));
    t.check_memory();
    t.peer(ask(t, op::COMPARE_SWAP, 3, AT, [0x0102_0304_0506_0708, found]));
    t.nic(atomic_ack(3, 4, found));
    t.lands_data(AT, &0x0102_0304_0506_0708_u64.to_le_bytes());
    t.check_memory();
    // At both ends of the memory.
    adds(t, 4, 5, 0, 3);
    adds(t, 5, 6, super::talk::LEN - 8, 9);
    t.check_memory();
}

fn a_repeated_atomic_is_not_executed_again(t: &mut Talk) {
    let first = word(t, AT);
    adds(t, 0, 1, AT, 5);
    adds(t, 1, 2, AT, 7);
    let again = |t: &Talk, psn, n| ask(t, op::FETCH_ADD, psn, AT, [n, 0]);
    for _ in 0..3 {
        t.peer(again(t, 0, 5));
        t.nic(atomic_ack(0, 1, first));
        t.peer(again(t, 1, 7));
        t.nic(atomic_ack(1, 2, first.wrapping_add(5)));
    }
    t.counts(counter::RX_DUPLICATE, 6);
    // What the host writes meanwhile changes the answer of no repeated one, and stays.
    t.host_writes(AT, &[9; 8]);
    t.peer(again(t, 1, 7));
    t.nic(atomic_ack(1, 2, first.wrapping_add(5)));
    t.peer(ask(t, op::FETCH_ADD, 0xff_fffe, AT, [1, 0]));
    t.silence();
    t.counts(counter::RX_DUPLICATE, 2);
    t.check_memory();
    // Seventeen later ones leave no trace of it.
    for psn in 2..19 {
        adds(t, psn, psn + 1, AT + 8, 1);
    }
    t.peer(again(t, 1, 7));
    t.silence();
    t.counts(counter::RX_DUPLICATE, 1);
    t.check_memory();
}

fn sixteen_atomics_whose_answers_are_lost(t: &mut Talk) {
    let first = word(t, AT);
    let asked: Vec<_> = (0..16).map(|psn| ask(t, op::FETCH_ADD, psn, AT, [3, 0])).collect();
    let answers = |t: &mut Talk| {
        (0..16).for_each(|psn| t.nic(atomic_ack(psn, psn + 1, first.wrapping_add(3 * u64::from(psn)))));
    };
    t.peer_all_at_once(asked.clone());
    answers(t);
    t.lands_data(AT, &first.wrapping_add(48).to_le_bytes());
    for packet in &asked {
        let psn = packet.psn;
        t.peer(packet.clone());
        t.nic(atomic_ack(psn, psn + 1, first.wrapping_add(3 * u64::from(psn))));
    }
    t.counts(counter::RX_DUPLICATE, 16);
    t.check_memory();
    // One more takes the place of the oldest.
    adds(t, 16, 17, AT, 1);
    t.peer(asked[0].clone());
    t.silence();
    t.peer(asked[1].clone());
    t.nic(atomic_ack(1, 2, first.wrapping_add(3)));
    t.counts(counter::RX_DUPLICATE, 2);
    t.check_memory();
}

fn reads_and_atomics_are_answered_in_order(t: &mut Talk) {
    let before = word(t, AT);
    let long = t.response(0, 1, 8192, 600);
    t.peer(t.only(0, t.read(8192, 600)));
    t.peer(ask(t, op::FETCH_ADD, 3, AT, [1, 0]));
    t.peer(t.only(4, t.read(8192, 8)));
    t.peer(ask(t, op::COMPARE_SWAP, 5, AT, [40, before.wrapping_add(1)]));
    t.peer(ask(t, op::FETCH_ADD, 6, AT, [2, 0]));
    t.peer(t.only(7, t.read(AT, 8)));
    let write = t.write(8, 20);
    t.peer(t.only(8, write));
    t.lands(8, 20);
    t.nic_all(long);
    t.nic(atomic_ack(3, 2, before));
    let one = before.wrapping_add(1);
    t.nic_all(t.response(4, 3, 8192, 8));
    t.nic(atomic_ack(5, 4, one));
    t.nic(atomic_ack(6, 5, 40));
    t.nic_all(respond(7, 6, &42u64.to_le_bytes(), 256));
    t.nic(acked(8, 7));
    t.lands_data(AT, &42u64.to_le_bytes());
    t.check_memory();
}

fn atomics_that_are_refused(t: &mut Talk) {
    for (what, at, key, syndrome, why) in [
        ("at 4", 4, 0, INVALID_REQUEST, cause::INVALID_REQUEST),
        ("at 1", 1, 0, INVALID_REQUEST, cause::INVALID_REQUEST),
        ("another key", 0, 1, REMOTE_ACCESS, cause::KEY_INVALID),
        ("behind the region", super::talk::LEN, 0, REMOTE_ACCESS, cause::KEY_BOUNDS),
    ] {
        let _case = Case(what);
        t.apart(t.terms, |t| {
            adds(t, 0, 1, AT, 1);
            let (va, rkey) = (t.memory.addr() + at as u64, t.memory.rkey() ^ key);
            t.peer(atomic(op::FETCH_ADD, 1, va, rkey, [1, 0]));
            t.refuses(1, syndrome);
            t.ends_by(why);
            t.check_memory();
        });
    }
    let _case = Case("a region without the right");
    let barred = t.solo.host.pd.alloc(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ).unwrap();
    t.peer(atomic(op::COMPARE_SWAP, 0, barred.addr(), barred.rkey(), [1, 0]));
    t.refuses(0, REMOTE_ACCESS);
    t.ends_by(cause::KEY_ACCESS);
    assert_eq!(crate::bytes(&barred), [0; 64]);
}

fn atomics_that_the_qp_does_not_allow(t: &mut Talk) {
    t.peer(ask(t, op::FETCH_ADD, 0, AT, [1, 0]));
    t.refuses(0, INVALID_REQUEST);
    t.ends_by(cause::QP_ACCESS);
    t.check_memory();
}

fn atomics_count_as_outstanding_reads(t: &mut Talk) {
    let found = word(t, AT);
    // Three at once: the first is not answered before the third is judged.
    let packets: Vec<_> = (0..3).map(|psn| ask(t, op::FETCH_ADD, psn, AT, [1, 0])).collect();
    t.peer_all_at_once(packets);
    t.nic(atomic_ack(0, 1, found));
    t.nic(atomic_ack(1, 2, found.wrapping_add(1)));
    t.refuses(2, INVALID_REQUEST);
    t.ends_by(cause::TOO_MANY_READS);
    t.lands_data(AT, &found.wrapping_add(2).to_le_bytes());
    t.check_memory();
}

/// Remote memory that the NIC's atomics name.
const FAR: Remote = Remote { addr: 0x5_0000, rkey: 0x1234 };

/// The NIC posts an atomic that adds `n`; its packet, and where the answer lands.
fn posts(t: &mut Talk, id: u64, n: u64, flags: Flags) -> usize {
    let at = 24_000 + 13 * id as usize;
    let list = [t.memory.sge(at, 8)];
    let mut batch = t.qp.post();
    batch.add(id, Operation::AtomicAdd { remote: FAR, add: n }, Data::Sges(&list), Flags::SIGNALED | flags).unwrap();
    batch.ring();
    at
}

fn added(psn: u32, n: u64) -> Packet {
    atomic(op::FETCH_ADD, psn, FAR.addr, FAR.rkey, [n, 0])
}

fn the_answer_to_an_atomic_lands_in_host_order(t: &mut Talk) {
    let value = 0x8091_a2b3_c4d5_e6f7_u64;
    let at = posts(t, 1, 5, Flags::empty());
    t.nic(added(0, 5));
    t.peer(atomic_ack(0, 1, value));
    t.completes(1);
    t.lands_data(at, &value.to_le_bytes());
    let list = [t.memory.sge(AT + 3, 8)];
    let swap = Operation::AtomicCas { remote: FAR, compare: 2, swap: 3 };
    t.qp.post().add(2, swap, Data::Sges(&list), Flags::SIGNALED).unwrap();
    t.nic(atomic(op::COMPARE_SWAP, 1, FAR.addr, FAR.rkey, [3, 2]));
    t.peer(atomic_ack(1, 2, !value));
    t.completes(2);
    t.lands_data(AT + 3, &(!value).to_le_bytes());
    t.check_memory();
}

fn an_atomic_whose_answer_is_lost_is_asked_for_again(t: &mut Talk) {
    let ats = [1, 2].map(|id| posts(t, id, id, Flags::empty()));
    t.nic(added(0, 1));
    t.nic(added(1, 2));
    t.peer(atomic_ack(1, 2, 1));
    t.nic(added(0, 1));
    t.nic(added(1, 2));
    t.peer(atomic_ack(0, 1, 0));
    t.completes(1);
    t.peer(atomic_ack(1, 2, 1));
    t.completes(2);
    t.lands_data(ats[0], &0u64.to_le_bytes());
    t.lands_data(ats[1], &1u64.to_le_bytes());
    t.check_memory();
    t.any_sequence();
    // Nothing more comes: the timer asks.
    let at = posts(t, 3, 9, Flags::empty());
    t.nic(added(2, 9));
    t.nic(added(2, 9));
    t.peer(atomic_ack(2, 3, 3));
    t.completes(3);
    t.lands_data(at, &3u64.to_le_bytes());
}

fn twenty_atomics_of_which_no_answer_comes(t: &mut Talk) {
    let ats: Vec<_> = (0..20).map(|id| posts(t, id, id, Flags::empty())).collect();
    for _ in 0..2 {
        (0..16).for_each(|psn| t.nic(added(psn, psn.into())));
    }
    for psn in 0..20 {
        t.peer(atomic_ack(psn, psn + 1, u64::from(psn) << 40));
        t.completes(psn.into());
        if psn < 4 {
            t.nic(added(psn + 16, u64::from(psn) + 16));
        }
    }
    ats.iter().enumerate().for_each(|(i, at)| t.lands_data(*at, &((i as u64) << 40).to_le_bytes()));
    t.check_memory();
}

fn an_answer_of_another_kind_ends_the_queue_pair(t: &mut Talk) {
    t.apart(t.terms, |t| {
        posts(t, 1, 5, Flags::empty());
        t.nic(added(0, 5));
        t.peer_all(respond(0, 1, &data(8), 256));
        t.fails(1, wc::BAD_RESP);
    });
    let read = Request::read(0x7000, 9, 8);
    super::requester::sends(t, 1, 0, &read);
    t.peer(atomic_ack(0, 1, 5));
    t.fails(1, wc::BAD_RESP);
}

fn no_more_atomics_than_the_peer_takes(t: &mut Talk) {
    let mut ats: Vec<_> = (0..3).map(|id| posts(t, id, id, Flags::empty())).collect();
    ats.push(posts(t, 3, 3, Flags::FENCE));
    for psn in 0..2 {
        t.nic(added(psn, psn.into()));
    }
    t.silence_for(1000);
    t.peer(atomic_ack(0, 1, 10));
    t.completes(0);
    t.nic(added(2, 2));
    t.peer(atomic_ack(1, 2, 11));
    t.completes(1);
    t.silence_for(1000);
    t.peer(atomic_ack(2, 3, 12));
    t.completes(2);
    t.nic(added(3, 3));
    t.peer(atomic_ack(3, 4, 13));
    t.completes(3);
    ats.iter().enumerate().for_each(|(i, at)| t.lands_data(*at, &(10 + i as u64).to_le_bytes()));
    t.check_memory();
}
