//! What a responder answers (IBTA 9.7.4, 9.7.5, 9.9).

use super::talk::{Talk, Terms, acked, data};
use super::{Row, row};
use abi::status::counter;
use driver::Access;
use fabric::peer::{Packet, Request, Reth, ack, atomic, atomic_ack, atomic_write, op, respond, syndrome};
use syndrome::SEQUENCE;

pub const ROWS: &[Row] = &[
    row!(
        "9.7.4",
        a_future_psn_is_answered_once,
        "A PSN ahead of the expected one: NAK PSN sequence error with the expected PSN, once; more of them are dropped until a packet comes in order"
    ),
    row!("9.7.1", half_of_the_psns_are_behind, "PSNs up to 2^23 - 1 ahead are ahead, all others are duplicates"),
    row!(
        "9.7.5, C9-105",
        a_duplicate_is_acknowledged_and_not_executed,
        "A duplicate SEND or WRITE is not executed; the latest ACK is sent again"
    ),
    row!(
        "9.7.5",
        a_duplicate_within_a_message,
        "The same while a message is under way: what came of it is acknowledged"
    ),
    row!(
        "9.7.5",
        a_duplicate_read_is_executed_again,
        "A duplicate READ, or the rest of one, is executed again and reads what is there now"
    ),
    row!(
        "9.7.5",
        a_duplicate_read_that_is_no_part_of_one_is_dropped,
        "A duplicate READ that is no part of a saved one, or a part that does not reach its end, is dropped"
    ),
    row!(
        "9.7.5",
        a_duplicate_read_of_a_region_that_is_gone,
        "The key of a duplicate READ is looked at again: of a region that is gone nothing is read, and it is dropped; what comes behind is answered"
    ),
    row!(
        "9.7.7.1, C9-148",
        the_msn_counts_messages,
        "The MSN is 0 at first and counts completed new messages, READs when they are accepted; duplicates do not count"
    ),
    row!(
        "9.7.4, o9-30",
        answers_come_in_order,
        "Answers leave in the order of requests, READ data included; one ACK answers all before it"
    ),
    row!(
        "9.7.5, C9-105",
        a_repeat_behind_a_read_or_an_atomic_is_acknowledged,
        "A SEND or WRITE that is repeated behind a READ or an atomic is answered by an ACK of the latest PSN, which the READ's or atomic's answer had, and behind that"
    ),
    row!("9.7.5", an_ack_is_sent_when_it_is_asked_for, "An ACK is sent when AckReq asks for it"),
    row!(
        "9.7.5",
        a_read_takes_the_psns_of_its_response,
        "A READ takes one PSN per packet of its response, at least one; FIRST, LAST and ONLY carry an AETH, MIDDLE none; whether it asks for an ACK means nothing"
    ),
    row!("9.7.4", payloads_of_odd_lengths, "Payloads of 1, 2, 3 and 5 bytes"),
    row!(
        "9.7.5",
        without_a_receive_rnr,
        "No receive: RNR NAK with this PSN and the QP's timer; the expected PSN stays, and what is behind it is dropped"
    ),
    row!("9.7.5", rnr_codes, "Each of the 32 timer codes is told as it was set"),
    row!(
        "9.7.5",
        a_send_fills_its_receive,
        "A SEND fills a receive of its length or more, and completes with its length"
    ),
    row!(
        "9.4.3",
        a_write_with_immediate_takes_a_receive,
        "WRITE with immediate takes one receive, at its last packet, and completes with the length of the message and the immediate data; nothing is written to the receive"
    ),
    row!(
        "9.4.3",
        a_write_with_immediate_without_a_receive,
        "WRITE with immediate without a receive: RNR NAK at its last packet, what came before stays"
    ),
    row!(
        "11.4.2",
        a_solicited_event_wakes,
        "A completion queue that is armed for solicited events is woken once by the SE bit, and not without it"
    ),
    row!(
        "11.4.2",
        an_error_wakes,
        "A completion queue that is armed for solicited events is woken by an error as well"
    ),
];

fn a_future_psn_is_answered_once(t: &mut Talk) {
    t.peer(t.only(2, t.write(20, 100)));
    t.nic(ack(0, SEQUENCE, 0));
    for psn in [2, 1, 3, 5000, 0x7f_ffff] {
        t.peer(t.only(psn, t.write(20, 100)));
    }
    t.peer(t.only(7, t.read(20, 100)));
    t.silence();
    t.peer(t.only(0, t.write(20, 100)));
    t.nic(acked(0, 1));
    t.lands(20, 100);
    t.peer(t.only(2, t.read(20, 100)));
    t.nic(ack(1, SEQUENCE, 1));
    t.peer(t.only(1, t.write(20, 101)));
    t.nic(acked(1, 2));
    t.lands(20, 101);
    t.counts(counter::RX_OUT_OF_SEQUENCE, 8);
}

fn half_of_the_psns_are_behind(t: &mut Talk) {
    t.peer(t.only(0x80_0000, t.write(20, 100)));
    t.counts(counter::RX_DUPLICATE, 1);
    t.nic(acked(0xff_ffff, 0));
    t.peer(t.only(0x80_0001, t.write(20, 100)));
    t.counts(counter::RX_DUPLICATE, 1);
    t.nic(acked(0xff_ffff, 0));
    t.peer(t.only(0x7f_ffff, t.write(20, 100)));
    t.counts(counter::RX_OUT_OF_SEQUENCE, 1);
    t.nic(ack(0, SEQUENCE, 0));
}

pub(super) fn a_duplicate_is_acknowledged_and_not_executed(t: &mut Talk) {
    let at = t.receive(100);
    t.receive(100);
    let (send, write) = (t.only(0, Request::send(data(70))), t.only(1, t.write(20, 100)));
    t.peer(send.clone());
    t.nic(acked(0, 1));
    t.lands(at, 70);
    t.receives(70, None);
    t.peer(write.clone());
    t.nic(acked(1, 2));
    t.lands(20, 100);
    // It is acknowledged a little before the host has it.
    t.pass(400);
    t.check_memory();
    t.host_writes(20, &[3; 100]);
    for again in [write, send] {
        // It is answered even if it does not ask.
        t.peer(Packet { ack_req: false, ..again.clone() });
        t.nic(acked(1, 2));
        t.peer(again);
        t.nic(acked(1, 2));
    }
    t.counts(counter::RX_DUPLICATE, 4);
}

fn a_repeat_behind_a_read_or_an_atomic_is_acknowledged(t: &mut Talk) {
    let at = t.receive(100);
    let (send, write) = (t.only(0, Request::send(data(70))), t.only(1, t.write(20, 100)));
    t.peer_all([Packet { ack_req: false, ..send.clone() }, write.clone()]);
    t.nic(acked(1, 2));
    t.lands(at, 70);
    t.lands(20, 100);
    t.receives(70, None);
    // What is asked, the PSNs that it takes, and its answer.
    let (va, rkey) = (t.memory.addr() + 4096, t.memory.rkey());
    let word = u64::from_le_bytes(t.expected(4096, 8).try_into().expect("8 bytes"));
    let cases = [
        (t.only(2, t.read(200, 600)), t.response(2, 3, 200, 600)),
        (atomic(op::FETCH_ADD, 5, va, rkey, [1, 0]), vec![atomic_ack(5, 4, word)]),
        (atomic(op::COMPARE_SWAP, 6, va, rkey, [7, !word]), vec![atomic_ack(6, 5, word.wrapping_add(1))]),
        (atomic_write(7, va, rkey, [5; 8]), respond(7, 6, &[], 256)),
        (t.only(8, t.read(200, 0)), t.response(8, 7, 200, 0)),
    ];
    for (i, (asked, answers)) in cases.into_iter().enumerate() {
        let latest = acked(2 + [2, 3, 4, 5, 6][i], 3 + i as u32);
        t.peer(asked.clone());
        t.nic_all(answers.clone());
        for again in [&write, &send] {
            // Whether it asks or not.
            t.peer(again.clone());
            t.nic(latest.clone());
            t.peer(Packet { ack_req: false, ..again.clone() });
            t.nic(latest.clone());
        }
        // Close behind: the answer is still to come, or again to come.
        t.peer_all_at_once([asked, send.clone()]);
        t.nic_all(answers);
        t.nic(latest);
        t.counts(counter::RX_DUPLICATE, 6);
    }
    t.lands_data(4096, &[5; 8]);
    t.receive(10);
    t.peer(t.only(9, Request::send(vec![])));
    t.nic(acked(9, 8));
    t.receives(0, None);
}

fn a_duplicate_within_a_message(t: &mut Talk) {
    let packets = t.cut(0, t.write(20, 600));
    t.peer(packets[0].clone());
    t.silence();
    t.peer(packets[0].clone());
    t.nic(acked(0, 0));
    t.peer(packets[1].clone());
    t.peer(packets[0].clone());
    t.nic(acked(1, 0));
    t.counts(counter::RX_DUPLICATE, 2);
    t.peer(packets[2].clone());
    t.nic(acked(2, 1));
    t.lands(20, 600);
}

fn a_duplicate_read_is_executed_again(t: &mut Talk) {
    t.peer(t.only(0, t.read(20, 1000)));
    t.nic_all(t.response(0, 1, 20, 1000));
    t.host_writes(400, &[9; 100]);
    t.peer(t.only(0, t.read(20, 1000)));
    t.nic_all(t.response(0, 1, 20, 1000));
    t.peer(t.only(2, t.read(20 + 512, 1000 - 512)));
    t.nic_all(t.response(2, 1, 20 + 512, 1000 - 512));
    t.peer(t.only(3, t.read(20 + 768, 1000 - 768)));
    t.nic_all(t.response(3, 1, 20 + 768, 1000 - 768));
    t.counts(counter::RX_DUPLICATE, 3);
    t.peer(t.only(4, t.write(20, 10)));
    t.nic(acked(4, 2));
    t.lands(20, 10);
}

fn a_duplicate_read_that_is_no_part_of_one_is_dropped(t: &mut Talk) {
    t.peer(t.only(0, t.read(20, 1000)));
    t.nic_all(t.response(0, 1, 20, 1000));
    t.peer(t.only(4, t.write(20, 10)));
    t.nic(acked(4, 2));
    t.lands(20, 10);
    let rest = t.only(2, t.read(20 + 512, 1000 - 512));
    let reth = rest.reth.unwrap();
    let wrong = [
        Packet { psn: 1, ..rest.clone() },
        Packet { reth: Some(Reth { va: reth.va - 1, ..reth }), ..rest.clone() },
        Packet { reth: Some(Reth { va: reth.va - 600, ..reth }), ..rest.clone() },
        Packet { reth: Some(Reth { len: reth.len + 1, ..reth }), ..rest.clone() },
        // Inside of it, but not up to its end.
        Packet { reth: Some(Reth { len: 256, ..reth }), ..rest.clone() },
        Packet { reth: Some(Reth { rkey: reth.rkey ^ 1, ..reth }), ..rest.clone() },
        // Where there was a WRITE, and long before.
        Packet { psn: 4, ..rest.clone() },
        Packet { psn: 0xff_fff0, ..rest },
    ];
    t.counts(counter::RX_DUPLICATE, wrong.len() as u64);
    t.peer_all(wrong);
    t.silence();
}

fn a_duplicate_read_of_a_region_that_is_gone(t: &mut Talk) {
    let gone = t.solo.host.pd.alloc(1000, Access::all()).unwrap();
    let read = t.only(0, Request::read(gone.addr(), gone.rkey(), 1000));
    t.peer(read.clone());
    t.nic_all(respond(0, 1, &[0; 1000], t.terms.mtu));
    drop(gone);
    t.peer(read);
    t.silence();
    t.counts(counter::RX_DUPLICATE, 1);
    t.peer_all([t.only(4, t.write(20, 10)), t.only(5, t.read(20, 10))]);
    t.nic_all([acked(4, 2)]);
    t.lands(20, 10);
    t.nic_all(t.response(5, 3, 20, 10));
}

fn the_msn_counts_messages(t: &mut Talk) {
    t.peer_all(t.cut(0, t.write(0, 600)));
    t.nic(acked(2, 1));
    t.lands(0, 600);
    t.peer(t.only(3, t.read(0, 300)));
    t.nic_all(t.response(3, 2, 0, 300));
    t.receive(10);
    t.peer(t.only(5, Request::send(Vec::new()).imm([1; 4])));
    t.nic(acked(5, 3));
    t.receives(0, Some([1; 4]));
    t.peer(t.only(5, Request::send(Vec::new()).imm([1; 4])));
    t.nic(acked(5, 3));
    t.peer(t.only(3, t.read(0, 300)));
    t.nic_all(t.response(3, 2, 0, 300));
    t.counts(counter::RX_DUPLICATE, 2);
    t.peer(t.only(6, t.write(0, 1)));
    t.nic(acked(6, 4));
    t.lands(0, 1);
}

fn answers_come_in_order(t: &mut Talk) {
    t.receive(100);
    // A later WRITE may be seen by the READ: it goes elsewhere.
    let writes = [t.only(0, t.write(0, 50)), t.only(3, t.write(1000, 60))];
    t.lands(0, 50);
    let read = t.response(1, 2, 0, 500);
    t.peer(writes[0].clone());
    t.peer(t.only(1, t.read(0, 500)));
    t.peer(writes[1].clone());
    t.peer(t.only(4, Request::send(vec![])));
    let first = t.heard("an ACK, or the response");
    if first.opcode == op::ACK {
        assert_eq!(first, acked(0, 1));
        t.nic_all(read);
    } else {
        assert_eq!(first, read[0]);
        t.nic_all(read[1..].to_vec());
    }
    let ack = t.heard("an ACK of both");
    if ack != acked(4, 4) {
        assert_eq!(ack, acked(3, 3));
        t.nic(acked(4, 4));
    }
    t.lands(1000, 60);
    t.receives(0, None);
}

fn an_ack_is_sent_when_it_is_asked_for(t: &mut Talk) {
    t.peer(Packet { ack_req: false, ..t.only(0, t.write(0, 50)) });
    t.silence();
    t.lands(0, 50);
    // FIRST and MIDDLE may ask as well.
    for (i, p) in t.cut(1, t.write(100, 600)).into_iter().enumerate() {
        t.peer(Packet { ack_req: true, ..p });
        t.nic(acked(1 + i as u32, if i == 2 { 2 } else { 1 }));
    }
    t.lands(100, 600);
}

fn a_read_takes_the_psns_of_its_response(t: &mut Talk) {
    let mut psn = 0;
    for (i, len) in [0, 1, 256, 257, 512, 1000].into_iter().enumerate() {
        let read = t.only(psn, t.read(7, len));
        t.peer(Packet { ack_req: i % 2 == 0, ..read });
        let response = t.response(psn, i as u32 + 1, 7, len);
        psn += response.len() as u32;
        t.nic_all(response);
    }
    t.peer(t.only(psn, t.write(0, 5)));
    t.nic(acked(psn, 7));
    t.lands(0, 5);
}

fn payloads_of_odd_lengths(t: &mut Talk) {
    for (i, len) in [1, 2, 3, 5].into_iter().enumerate() {
        let psn = 2 * i as u32;
        let at = t.receive(8);
        t.peer(t.only(psn, t.write(16 * i + 1, len)));
        t.nic(acked(psn, psn + 1));
        t.peer(t.only(psn + 1, Request::send(data(len))));
        t.nic(acked(psn + 1, psn + 2));
        t.lands(16 * i + 1, len);
        t.lands(at, len);
        t.receives(len, None);
        t.check_memory();
    }
}

pub(super) fn without_a_receive_rnr(t: &mut Talk) {
    let send = t.cut(0, Request::send(data(300)));
    let rnr = ack(0, syndrome::RNR | t.terms.rnr_timer, 0);
    t.peer_all(send.clone());
    t.nic(rnr.clone());
    t.counts(counter::RX_RNR, 1);
    t.counts(counter::RX_OUT_OF_SEQUENCE, 1);
    t.silence();
    t.peer(send[0].clone());
    t.nic(rnr);
    t.counts(counter::RX_RNR, 1);
    let at = t.receive(400);
    t.peer_all(send);
    t.nic(acked(1, 1));
    t.lands(at, 300);
    t.receives(300, None);
}

fn rnr_codes(t: &mut Talk) {
    for code in 0..32 {
        t.apart(Terms { rnr_timer: code, ..t.terms }, |t| {
            t.peer(t.only(0, Request::send(data(3))));
            t.nic(ack(0, syndrome::RNR | code, 0));
            t.counts(counter::RX_RNR, 1);
        });
    }
}

pub(super) fn a_send_fills_its_receive(t: &mut Talk) {
    let mut psn = 0;
    for (i, (len, room)) in
        [(0, 0), (0, 9), (7, 7), (255, 256), (256, 256), (257, 257), (900, 1000)].into_iter().enumerate()
    {
        let at = t.receive(room);
        let packets = t.cut(psn, Request::send(data(len)));
        psn += packets.len() as u32;
        t.peer_all(packets);
        t.nic(acked(psn - 1, i as u32 + 1));
        t.lands(at, len);
        t.receives(len, None);
        t.check_memory();
    }
}

pub(super) fn a_write_with_immediate_takes_a_receive(t: &mut Talk) {
    let mut psn = 0;
    for (i, len) in [0, 1, 256, 600].into_iter().enumerate() {
        t.receive(16);
        let imm = [i as u8, 0xab, 0, 0xff];
        let packets = t.cut(psn, t.write(1000 * i, len).imm(imm));
        psn += packets.len() as u32;
        t.peer_all(packets);
        t.nic(acked(psn - 1, i as u32 + 1));
        t.lands(1000 * i, len);
        t.receives(len, Some(imm));
        t.check_memory();
    }
}

pub(super) fn a_write_with_immediate_without_a_receive(t: &mut Talk) {
    let packets = t.cut(0, t.write(0, 600).imm([1; 4]));
    t.peer_all(packets.clone());
    t.nic(ack(2, syndrome::RNR | t.terms.rnr_timer, 0));
    t.counts(counter::RX_RNR, 1);
    t.lands(0, 512);
    t.check_memory();
    t.receive(16);
    t.peer(packets[2].clone());
    t.nic(acked(2, 1));
    t.lands(0, 600);
    t.receives(600, Some([1; 4]));
}

fn a_solicited_event_wakes(t: &mut Talk) {
    let at = [t.receive(10), t.receive(10)];
    t.cq.arm(true);
    let cq = t.cq.number();
    t.pass(400);
    t.peer(t.only(0, Request::send(data(3))));
    t.nic(acked(0, 1));
    t.receives(3, None);
    t.pass(400);
    assert_eq!(t.solo.host.eq.poll(), None, "it was not solicited");
    t.peer(t.only(1, Request::send(data(4)).solicited()));
    t.nic(acked(1, 2));
    t.receives(4, None);
    t.pass(400);
    let completion = (abi::queue::event::COMPLETION, cq);
    assert_eq!(t.solo.host.eq.poll().map(|e| (e.kind, e.number)), Some(completion), "it was");
    // Once: until it is armed anew.
    t.receive(10);
    t.peer(t.only(2, Request::send(data(0)).solicited()));
    t.nic(acked(2, 3));
    t.receives(0, None);
    t.pass(400);
    assert_eq!(t.solo.host.eq.poll(), None, "it was not armed again");
    t.lands(at[0], 3);
    t.lands(at[1], 4);
}

fn an_error_wakes(t: &mut Talk) {
    t.receive(1);
    t.cq.arm(true);
    let cq = t.cq.number();
    t.pass(400);
    t.peer(t.only(0, Request::send(data(3))));
    t.refuses(0, syndrome::INVALID_REQUEST);
    t.pass(400);
    let events: Vec<_> = std::iter::from_fn(|| t.solo.host.eq.poll()).map(|e| (e.kind, e.number)).collect();
    assert!(events.contains(&(abi::queue::event::COMPLETION, cq)), "{events:?}");
    t.receive_fails(abi::status::wc::LOC_LEN);
}
