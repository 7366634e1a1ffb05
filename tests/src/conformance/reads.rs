//! READs of a requester: their responses, what is lost of them, and what waits for them (IBTA 9.7.6, 10.8).

use super::requester::{RKEY, US, USUAL, VA, responds, sends, to};
use super::talk::{Case, Talk, Terms, acked, data};
use super::{Row, row};
use abi::status::{counter, wc};
use driver::Flags;
use driver::qp::SendOptions;
use fabric::peer::{Packet, Request, op, respond};

pub const ROWS: &[Row] = &[
    row!(
        "9.7.3",
        a_read_takes_psns,
        "A READ takes the PSNs of its response; its data lands and it completes with the last packet"
    ),
    row!(
        "9.7.6",
        an_answer_beyond_a_read_is_an_implied_nak,
        "WRITE, READ, WRITE, then the last alone is acknowledged: the first is complete, the READ is sent again, and all behind it"
    ),
    row!(
        "9.7.6",
        an_unsolicited_ack_within_a_read,
        "READ of 4 packets of which the last two are lost, then an ACK for the last PSN: it says nothing about the READ, whose rest is asked for again"
    ),
    row!(
        "9.7.6",
        a_lost_response_is_asked_for_from_there,
        "A READ whose response lost a packet is asked for again from there: PSN, address and length move on"
    ),
    row!(
        "9.7.6",
        responses_out_of_place_are_dropped,
        "READ responses that came already, or that nobody asked for, are dropped"
    ),
    row!(
        "9.7.6",
        responses_of_wrong_length,
        "A READ response of wrong length ends the QP: BAD_RESP; nothing is written beyond the READ's memory"
    ),
    Row {
        terms: Terms { send: SendOptions { retry_count: 2, timeout: 4, ..USUAL }, ..Terms::USUAL },
        ..row!(
            "9.7.6",
            a_read_that_is_never_answered_ends_the_queue_pair,
            "A READ that is never answered, while all behind it is acknowledged, is asked for again, and ends the QP with RETRY_EXC"
        )
    },
    row!(
        "10.8",
        a_fence_waits_for_reads,
        "A fenced message waits until the READs before it are complete; without a fence it does not"
    ),
    Row {
        terms: Terms { send: SendOptions { max_reads: 2, ..USUAL }, ..Terms::USUAL },
        ..row!("9.7.3", no_more_reads_than_the_peer_takes, "No more READs outstanding than the peer takes")
    },
];

fn a_read_takes_psns(t: &mut Talk) {
    let mut psn = 0;
    for (id, len) in [0, 1, 5, 256, 257, 512, 1000].into_iter().enumerate() {
        let at = sends(t, id as u64, psn, &Request::read(VA, RKEY, len));
        let response = responds(t, psn, id as u32 + 1, len);
        psn += response.len() as u32;
        t.peer_all(response);
        t.completes(id as u64);
        t.lands(at, len);
        t.check_memory();
    }
    sends(t, 9, psn, &to(1));
    t.peer(acked(psn, 9));
    t.completes(9);
}

fn an_answer_beyond_a_read_is_an_implied_nak(t: &mut Talk) {
    sends(t, 1, 0, &to(10));
    let read = Request::read(VA, RKEY, 20);
    let at = sends(t, 2, 1, &read);
    sends(t, 3, 2, &to(30));
    t.peer(acked(2, 3));
    t.completes(1);
    t.nic(t.only(1, read));
    t.nic(t.only(2, to(30)));
    t.peer_all(responds(t, 1, 2, 20));
    t.completes(2);
    t.lands(at, 20);
    t.check_memory();
    t.peer(acked(2, 3));
    t.completes(3);
}

fn an_unsolicited_ack_within_a_read(t: &mut Talk) {
    let at = sends(t, 1, 0, &Request::read(VA, RKEY, 1000));
    let response = responds(t, 0, 1, 1000);
    t.peer_all(response[..2].to_vec());
    t.peer(acked(3, 1));
    t.counts(counter::RX_STALE_RESPONSE, 1);
    t.nic(t.only(2, Request::read(VA + 512, RKEY, 1000 - 512)));
    assert_eq!(t.cq.poll().next(), None, "it is not complete");
    t.peer_all(respond(2, 1, &data(1000)[512..], 256));
    t.completes(1);
    t.lands(at, 1000);
}

fn a_lost_response_is_asked_for_from_there(t: &mut Talk) {
    let at = sends(t, 1, 0, &Request::read(VA, RKEY, 1200));
    let response = responds(t, 0, 1, 1200);
    t.peer(response[0].clone());
    t.peer(response[2].clone());
    t.nic(t.only(1, Request::read(VA + 256, RKEY, 1200 - 256)));
    let rest = respond(1, 1, &data(1200)[256..], 256);
    t.peer_all(rest[..2].to_vec());
    // Nothing more: the timer asks.
    t.nic(t.only(3, Request::read(VA + 768, RKEY, 1200 - 768)));
    t.peer_all(respond(3, 1, &data(1200)[768..], 256));
    t.completes(1);
    t.lands(at, 1200);
}

fn responses_out_of_place_are_dropped(t: &mut Talk) {
    t.peer_all(responds(t, 0, 1, 600));
    t.counts(counter::RX_STALE_RESPONSE, 3);
    let at = sends(t, 1, 0, &Request::read(VA, RKEY, 600));
    let response = responds(t, 0, 1, 600);
    let wrong = |p: &Packet| Packet { payload: vec![0xee; p.payload.len()], ..p.clone() };
    t.peer(response[0].clone());
    t.peer(wrong(&response[0]));
    t.peer(response[1].clone());
    t.peer(wrong(&response[0]));
    t.peer(wrong(&response[1]));
    t.counts(counter::RX_STALE_RESPONSE, 3);
    t.peer(response[2].clone());
    t.completes(1);
    t.peer(wrong(&response[2]));
    t.counts(counter::RX_STALE_RESPONSE, 1);
    t.lands(at, 600);
}

fn responses_of_wrong_length(t: &mut Talk) {
    let sound = responds(t, 0, 1, 600);
    let payload = |i: usize, len: usize| Packet { payload: vec![0xee; len], ..sound[i].clone() };
    let only = Packet { opcode: op::RESPONSE_ONLY, ..sound[0].clone() };
    let cases = [
        ("FIRST below the MTU", 0, payload(0, 252)),
        ("FIRST over the MTU", 0, payload(0, 260)),
        ("ONLY for a longer READ", 0, only),
        ("MIDDLE below the MTU", 1, payload(1, 252)),
        ("MIDDLE with pad", 1, payload(1, 255)),
        ("LAST too soon", 1, Packet { opcode: op::RESPONSE_LAST, aeth: sound[0].aeth, ..sound[1].clone() }),
        ("LAST too short", 2, payload(2, 87)),
        ("LAST too long", 2, payload(2, 89)),
        ("LAST of the MTU", 2, payload(2, 256)),
        ("LAST of nothing", 2, payload(2, 0)),
        ("MIDDLE as the last", 2, Packet { opcode: op::RESPONSE_MIDDLE, aeth: None, ..payload(2, 256) }),
    ];
    for (what, before, wrong) in cases {
        let _case = Case(what);
        t.apart(t.terms, |t| {
            let at = sends(t, 1, 0, &Request::read(VA, RKEY, 600));
            t.peer_all(sound[..before].to_vec());
            t.lands(at, 256 * before);
            t.peer(wrong);
            t.fails(1, wc::BAD_RESP);
        });
    }
}

fn a_read_that_is_never_answered_ends_the_queue_pair(t: &mut Talk) {
    sends(t, 1, 0, &Request::read(VA, RKEY, 20));
    sends(t, 2, 1, &to(30));
    t.peer(acked(1, 2));
    let (from, mut asked) = (t.cycle(), 0);
    let first = loop {
        while let Some(p) = t.take() {
            asked += u32::from(p.opcode == op::READ_REQUEST);
            if p.psn == 1 {
                t.peer(acked(1, 2));
            }
        }
        if let Some(c) = t.cq.poll().next() {
            break c;
        }
        assert!(t.cycle() < from + 5000 * US, "it comes to no end");
        t.solo.relax();
    };
    assert_eq!((first.wr_id, first.status.err().map(|e| e.status)), (1, Some(wc::RETRY_EXC)));
    assert!(asked > 1, "asked again {asked} times");
    t.has_ended();
    t.any_sequence();
}

fn a_fence_waits_for_reads(t: &mut Talk) {
    let at = sends(t, 1, 0, &Request::read(VA, RKEY, 20));
    sends(t, 2, 1, &to(5));
    t.post_with(3, &Request::send(data(6)), Flags::SIGNALED | Flags::FENCE);
    t.silence_for(4 * US);
    t.peer_all(responds(t, 0, 1, 20));
    t.completes(1);
    t.lands(at, 20);
    t.nic(t.only(2, Request::send(data(6))));
    t.peer(acked(2, 3));
    t.completes(2);
    t.completes(3);
}

fn no_more_reads_than_the_peer_takes(t: &mut Talk) {
    let read = Request::read(VA, RKEY, 20);
    let mut at = Vec::new();
    for id in 0..4 {
        at.push(t.post(id, &read));
    }
    for psn in 0..2 {
        t.nic(t.only(psn, read.clone()));
    }
    t.silence_for(4 * US);
    for psn in 0..4 {
        t.peer_all(responds(t, psn, psn + 1, 20));
        t.completes(psn.into());
        t.lands(at[psn as usize], 20);
        if psn < 2 {
            t.nic(t.only(psn + 2, read.clone()));
        }
    }
}
