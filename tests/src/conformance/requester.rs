//! What a requester sends, and what it makes of answers (IBTA 9.7.3, 9.7.6, 9.7.7).

use super::limits::LATE;
use super::talk::{Talk, Terms, acked, data};
use super::{Row, row};
use abi::status::{counter, wc};
use driver::Flags;
use driver::qp::SendOptions;
use fabric::peer::{Packet, Request, Responder, ack, op, respond, syndrome};
use rand::RngExt;

/// Where the peer's memory is said to be.
pub(super) const VA: u64 = 0x1234_5678_9abc;
pub(super) const RKEY: u32 = 0x77;
/// Cycles of a microsecond.
pub(super) const US: u64 = 125;

pub(super) const USUAL: SendOptions = Terms::USUAL.send;
const TWICE: Terms = Terms { send: SendOptions { retry_count: 2, rnr_retry: 2, ..USUAL }, ..Terms::USUAL };

pub const ROWS: &[Row] = &[
    row!(
        "9.7.3, C5-8",
        messages_are_cut_at_the_mtu,
        "Messages are cut at the MTU into FIRST, MIDDLE, LAST or ONLY, all but the last full; PSNs follow each other; the last packet asks for an ACK; pad fills to 4 bytes"
    ),
    row!(
        "9.7.3, 9.7.5",
        what_asks_for_an_ack,
        "AckReq is in the last packet of each message, signaled or not, and within a long one in each 32nd packet or, of larger ones, that which makes 16 KiB; not in a READ request, which is answered anyway"
    ),
    row!("9.7.3", every_path_mtu, "The same at path MTUs from 256 to 4096"),
    row!("9.4.3, 9.4.1", immediate_and_solicited, "Immediate data and the SE bit go with the last packet"),
    row!(
        "9.7.6",
        an_ack_completes_all_before_it,
        "An ACK completes all messages up to its PSN, in order; within a message it completes those before"
    ),
    row!("9.7.6", stale_and_wild_acks_are_dropped, "ACKs of what is acknowledged, or was never sent, are dropped"),
    row!(
        "9.7.6",
        nak_sequence_goes_back,
        "NAK PSN sequence error acknowledges what is before its PSN, and all from there on is sent again"
    ),
    Row {
        terms: LATE,
        ..row!(
            "9.7.1, 9.7.6",
            sixty_four_packets_with_losses,
            "Messages of 64 packets from PSN 0xfffff0 on over a path that loses packets and answers: all lands, once"
        )
    },
    Row {
        terms: TWICE,
        ..row!(
            "9.7.6",
            retries_are_counted,
            "NAKs without progress are counted against retry_cnt; the one too many ends the QP with RETRY_EXC"
        )
    },
    row!("9.7.6", seven_retries_are_seven, "A retry_cnt of 7 is seven retries, not any number"),
    Row {
        terms: Terms { send: SendOptions { timeout: 0, ..USUAL }, ..Terms::USUAL },
        ..row!("9.7.6", a_timeout_of_zero_never_comes, "A timeout code of 0: silence never ends the QP")
    },
    row!(
        "9.7.7.2",
        credits_limit_sends,
        "A requester sends no more SENDs than the peer's credits allow (LSN = MSN + credits), but one as a probe"
    ),
    row!(
        "9.7.7.2",
        an_unsolicited_ack_brings_credits,
        "An ACK of what is acknowledged may bring credits; code 31 lifts the limit"
    ),
    row!(
        "9.7.7.2",
        lost_credits_hold_nothing_up,
        "If credits are lost, the probe finds out: it asks for an answer, and is sent again"
    ),
    row!(
        "9.7.7.2",
        credits_are_for_receives,
        "Credits hold back what takes a receive, SENDs and WRITEs with immediate; WRITEs and READs before it go"
    ),
    Row { terms: TWICE, ..row!("9.7.6", progress_reloads_the_retries, "Progress reloads the retry counter") },
    Row {
        terms: Terms { send: SendOptions { retry_count: 1, timeout: 4, ..USUAL }, ..Terms::USUAL },
        ..row!(
            "9.7.6",
            silence_ends_the_queue_pair,
            "Without an answer it is sent again; after retry_cnt timeouts of at least 4.096 us x 2^t and one more: RETRY_EXC"
        )
    },
    row!(
        "9.7.6",
        an_rnr_nak_is_waited_for,
        "RNR NAK: nothing is sent for at least the time of its code, then all from its PSN on again"
    ),
    Row {
        terms: TWICE,
        ..row!(
            "9.7.6",
            rnr_retries_are_counted,
            "RNR NAKs are counted against rnr_retry, which any other ACK reloads; the one too many: RNR_RETRY_EXC"
        )
    },
    row!("9.7.6", rnr_retries_without_end, "rnr_retry 7 is without limit"),
    row!(
        "9.7.6",
        naks_that_end_the_queue_pair,
        "NAK invalid request, remote access, remote operation: the message completes with that error, those before it are good, those behind it are flushed, signaled or not"
    ),
    row!(
        "9.7.6",
        reserved_syndromes_are_dropped,
        "Reserved syndromes, and NAK codes that no reliable connection has, are dropped; credits are an ACK"
    ),
    row!("9.6", answers_of_others_are_dropped, "An answer of another version, transport, source or P_Key is dropped"),
];

pub(super) fn to(len: usize) -> Request {
    Request::write(VA, RKEY, data(len))
}

/// Posts a message and hears it.
pub(super) fn sends(t: &mut Talk, id: u64, psn: u32, request: &Request) -> usize {
    let at = t.post(id, request);
    t.nic_all(t.cut(psn, request.clone()));
    at
}

/// The peer answers a READ, from its `from`-th packet on.
pub(super) fn responds(t: &Talk, psn: u32, msn: u32, len: usize) -> Vec<Packet> {
    respond(psn, msn, &data(len), t.terms.mtu)
}

fn messages_are_cut_at_the_mtu(t: &mut Talk) {
    let mut psn = 0;
    for (id, len) in [0, 1, 2, 3, 4, 5, 255, 256, 257, 511, 512, 513, 1500].into_iter().enumerate() {
        for request in [to(len), Request::send(data(len))] {
            sends(t, id as u64, psn, &request);
            psn += request.psns(t.terms.mtu);
            t.peer(acked(psn - 1, 2 * id as u32 + 1));
            t.completes(id as u64);
        }
    }
}

fn what_asks_for_an_ack(t: &mut Talk) {
    for (mtu, each) in [(256, 32), (512, 32), (1024, 16), (2048, 8), (4096, 4)] {
        t.apart(Terms { mtu, ..t.terms }, |t| {
            // Which of the packets of a message ask.
            let check = |t: &mut Talk, packets: u32, first: u32| {
                for i in 0..packets {
                    let p = t.heard("a packet of a message");
                    let asks = i + 1 == packets || (i + 1) % each == 0;
                    assert_eq!((p.psn, p.ack_req), (first + i, asks), "MTU {mtu}, packet {i}: {p}");
                }
            };
            let packets = (18_000 / mtu as u32).min(2 * each + 3);
            t.post_with(1, &to(mtu * packets as usize), Flags::empty());
            check(t, packets, 0);
            t.peer(acked(packets - 1, 1));
            t.reuse();
            let mut psn = packets;
            // Of one packet: they begin no count.
            for _ in 0..3 {
                t.post_with(2, &to(10), Flags::empty());
                check(t, 1, psn);
                psn += 1;
            }
            let at = t.post(3, &Request::read(VA, RKEY, 5));
            let read = t.heard("a READ");
            assert_eq!((read.opcode, read.psn, read.ack_req), (op::READ_REQUEST, psn, false), "{read}");
            t.peer(acked(psn - 1, 4));
            t.peer_all(responds(t, psn, 5, 5));
            t.lands(at, 5);
            t.completes(3);
        });
    }
}

fn every_path_mtu(t: &mut Talk) {
    for mtu in [256, 512, 1024, 2048, 4096] {
        t.apart(Terms { mtu, ..t.terms }, |t| {
            sends(t, 1, 0, &to(2 * mtu + 3));
            t.peer(acked(2, 1));
            t.completes(1);
            let at = sends(t, 2, 3, &Request::read(VA, RKEY, mtu + 1));
            t.peer_all(responds(t, 3, 2, mtu + 1));
            t.completes(2);
            t.lands(at, mtu + 1);
        });
    }
}

fn immediate_and_solicited(t: &mut Talk) {
    let mut psn = 0;
    for len in [0, 3, 256, 600] {
        for request in [
            to(len),
            Request::send(data(len)).solicited(),
            to(len).imm([1, 2, 3, 4]).solicited(),
            Request::send(data(len)).imm([4, 3, 2, 1]),
        ] {
            sends(t, 1, psn, &request);
            psn += request.psns(t.terms.mtu);
            t.peer(acked(psn - 1, 1));
            t.completes(1);
        }
    }
}

fn an_ack_completes_all_before_it(t: &mut Talk) {
    sends(t, 1, 0, &to(10));
    sends(t, 2, 1, &to(600));
    sends(t, 3, 4, &Request::send(data(300)));
    t.peer(acked(2, 1));
    t.completes(1);
    t.pass(300);
    assert_eq!(t.cq.poll().next(), None, "the second is not acknowledged as a whole");
    t.peer(acked(5, 3));
    t.completes(2);
    t.completes(3);
}

fn stale_and_wild_acks_are_dropped(t: &mut Talk) {
    let before = [acked(0, 1), acked(0xff_ffff, 0), acked(0x80_0000, 0), acked(0x7f_ffff, 0)];
    t.counts(counter::RX_STALE_RESPONSE, before.len() as u64);
    t.peer_all(before);
    sends(t, 1, 0, &to(10));
    t.peer(acked(1, 1));
    t.peer(acked(0xff_ffff, 0));
    t.peer(ack(1, syndrome::REMOTE_ACCESS, 0));
    t.peer(ack(0xff_ffff, syndrome::SEQUENCE, 0));
    t.counts(counter::RX_STALE_RESPONSE, 4);
    t.pass(300);
    assert_eq!(t.cq.poll().next(), None, "it is not acknowledged");
    t.peer(acked(0, 1));
    t.completes(1);
    t.peer(acked(0, 1));
    t.counts(counter::RX_STALE_RESPONSE, 1);
}

fn nak_sequence_goes_back(t: &mut Talk) {
    sends(t, 1, 0, &to(10));
    sends(t, 2, 1, &to(600));
    sends(t, 3, 4, &Request::send(data(5)));
    t.peer(ack(2, syndrome::SEQUENCE, 1));
    t.completes(1);
    let second = t.cut(1, to(600));
    t.nic_all(second[1..].to_vec());
    t.nic_all(t.cut(4, Request::send(data(5))));
    t.peer(acked(4, 3));
    t.completes(2);
    t.completes(3);
}

fn sixty_four_packets_with_losses(t: &mut Talk) {
    let mut rng = verilate::rng(6);
    let len = 64 * 256 - 3;
    let mut peer = Responder::new(0, t.terms.mtu, VA, RKEY, len);
    t.post(1, &to(len));
    let (mut heard, mut answered, mut done) = (0, 0, Vec::new());
    for _ in 0..20_000 {
        t.solo.relax();
        while let Some(p) = t.take() {
            heard += 1;
            let answers = if rng.random_ratio(1, 12) { Vec::new() } else { peer.hear(&p) };
            for answer in answers {
                if !rng.random_ratio(1, 6) {
                    answered += 1;
                    t.peer(answer);
                }
            }
        }
        done.extend(t.cq.poll().map(|c| (c.wr_id, c.status)));
        if !done.is_empty() {
            break;
        }
    }
    assert_eq!(done, [(1, Ok(()))]);
    assert!(heard > 70 && answered > 0, "{heard} heard, {answered} answered");
    assert!(peer.memory == data(len), "what has landed at the peer");
    t.any_sequence();
}

fn retries_are_counted(t: &mut Talk) {
    sends(t, 1, 0, &to(10));
    for _ in 0..2 {
        t.peer(ack(0, syndrome::SEQUENCE, 0));
        t.nic(t.only(0, to(10)));
    }
    t.peer(ack(0, syndrome::SEQUENCE, 0));
    t.fails(1, wc::RETRY_EXC);
}

fn seven_retries_are_seven(t: &mut Talk) {
    sends(t, 1, 0, &to(10));
    for _ in 0..7 {
        t.peer(ack(0, syndrome::SEQUENCE, 0));
        t.nic(t.only(0, to(10)));
    }
    t.peer(ack(0, syndrome::SEQUENCE, 0));
    t.fails(1, wc::RETRY_EXC);
}

fn a_timeout_of_zero_never_comes(t: &mut Talk) {
    sends(t, 1, 0, &to(10));
    t.pass(2000 * US);
    assert_eq!(t.cq.poll().next(), None);
    while let Some(p) = t.take() {
        assert_eq!(p, t.only(0, to(10)), "only the same again");
    }
    t.peer(acked(0, 1));
    t.completes(1);
}

fn credits_limit_sends(t: &mut Talk) {
    sends(t, 1, 0, &Request::send(data(4)));
    t.peer(ack(0, 0, 1));
    t.completes(1);
    (2..5).for_each(|id| _ = t.post(id, &Request::send(data(4))));
    t.nic(t.only(1, Request::send(data(4))));
    t.silence_for(4 * US);
    t.peer(ack(1, 2, 2));
    t.nic(t.only(2, Request::send(data(4))));
    t.nic(t.only(3, Request::send(data(4))));
    t.peer(ack(3, syndrome::ACK, 4));
    (2..5).for_each(|id| t.completes(id));
}

fn an_unsolicited_ack_brings_credits(t: &mut Talk) {
    let send = || Request::send(data(4));
    sends(t, 1, 0, &send());
    t.peer(ack(0, 0, 1));
    t.completes(1);
    (2..7).for_each(|id| _ = t.post(id, &send()));
    t.nic(t.only(1, send()));
    t.silence_for(4 * US);
    t.peer(ack(0, 2, 1));
    t.nic_all([2, 3].map(|psn| t.only(psn, send())));
    t.silence_for(4 * US);
    t.peer(ack(0, syndrome::ACK, 1));
    t.nic_all([4, 5].map(|psn| t.only(psn, send())));
    t.peer(ack(5, syndrome::ACK, 6));
    (2..7).for_each(|id| t.completes(id));
}

fn lost_credits_hold_nothing_up(t: &mut Talk) {
    let send = || Request::send(data(4));
    sends(t, 1, 0, &send());
    t.peer(ack(0, 0, 1));
    t.completes(1);
    // Nobody wants to know of the first, but the probe asks all the same.
    t.post_with(2, &send(), Flags::empty());
    t.post(3, &send());
    t.nic(t.only(1, send()));
    t.nic(t.only(1, send()));
    t.peer(ack(1, syndrome::RNR | 1, 1));
    t.nic(t.only(1, send()));
    t.peer(ack(1, 0, 2));
    t.nic(t.only(2, send()));
    t.peer(ack(2, 0, 3));
    t.completes(3);
}

fn credits_are_for_receives(t: &mut Talk) {
    sends(t, 1, 0, &Request::send(data(4)));
    t.peer(ack(0, 0, 1));
    t.completes(1);
    let imm = || to(10).imm([1, 2, 3, 4]);
    let read = Request::read(VA, RKEY, 4);
    t.post(2, &to(10));
    t.post(3, &to(10));
    let place = t.post(4, &read);
    t.post(5, &imm());
    t.nic_all([1, 2].map(|psn| t.only(psn, to(10))));
    t.nic(t.only(3, read));
    t.silence_for(4 * US);
    t.peer(ack(2, 0, 3));
    t.completes(2);
    t.completes(3);
    t.silence_for(4 * US);
    // The answer to a READ tells of credits as well.
    t.peer_all(responds(t, 3, 4, 4));
    t.lands(place, 4);
    t.completes(4);
    t.nic(t.only(4, imm()));
    t.peer(acked(4, 5));
    t.completes(5);
}

fn progress_reloads_the_retries(t: &mut Talk) {
    for id in 0..3 {
        sends(t, id, id as u32, &to(10));
        for _ in 0..2 {
            t.peer(ack(id as u32, syndrome::SEQUENCE, 0));
            t.nic(t.only(id as u32, to(10)));
        }
        t.peer(acked(id as u32, id as u32 + 1));
        t.completes(id);
    }
}

fn silence_ends_the_queue_pair(t: &mut Talk) {
    let from = t.cycle();
    sends(t, 1, 0, &to(10));
    t.fails(1, wc::RETRY_EXC);
    let took = t.cycle() - from;
    // Two timeouts of 4.096 us x 2^4, each of which may take four times as long.
    let timeout = 66 * US;
    assert!(took >= 2 * timeout && took <= 2 * 4 * timeout + 100 * US, "{took} cycles");
    while let Some(p) = t.take() {
        assert_eq!(p, t.only(0, to(10)), "only the same again");
    }
}

fn an_rnr_nak_is_waited_for(t: &mut Talk) {
    const TENTHS: [u64; 14] = [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96];
    sends(t, 1, 0, &to(10));
    for (code, tenths) in TENTHS.into_iter().enumerate().skip(1) {
        t.peer(ack(0, syndrome::RNR | code as u8, 0));
        let from = t.cycle();
        t.nic(t.only(0, to(10)));
        let (took, timer) = (t.cycle() - from, tenths * 10 * US);
        assert!(took >= timer && took < timer + timer / 4 + 20 * US, "code {code}: {took} cycles for {timer}");
    }
    t.peer(acked(0, 1));
    t.completes(1);
}

fn rnr_retries_are_counted(t: &mut Talk) {
    let rnr = |psn| ack(psn, syndrome::RNR | 1, 0);
    for id in 0..2 {
        sends(t, id, id as u32, &to(10));
        for _ in 0..2 {
            t.peer(rnr(id as u32));
            t.nic(t.only(id as u32, to(10)));
        }
        if id == 0 {
            t.peer(acked(0, 1));
            t.completes(0);
        }
    }
    t.peer(rnr(1));
    t.fails(1, wc::RNR_RETRY_EXC);
}

fn rnr_retries_without_end(t: &mut Talk) {
    sends(t, 1, 0, &to(10));
    for _ in 0..20 {
        t.peer(ack(0, syndrome::RNR | 1, 0));
        t.nic(t.only(0, to(10)));
    }
    t.peer(acked(0, 1));
    t.completes(1);
}

fn naks_that_end_the_queue_pair(t: &mut Talk) {
    let naks = [
        (syndrome::INVALID_REQUEST, wc::REM_INV_REQ),
        (syndrome::REMOTE_ACCESS, wc::REM_ACCESS),
        (syndrome::REMOTE_OPERATION, wc::REM_OP),
    ];
    for (nak, status) in naks {
        t.apart(t.terms, |t| {
            sends(t, 1, 0, &to(10));
            // An error is told of even if nothing was asked to be.
            t.post_with(2, &to(600), Flags::empty());
            t.nic_all(t.cut(1, to(600)));
            t.post_with(3, &Request::send(data(5)), Flags::empty());
            t.nic(t.only(4, Request::send(data(5))));
            sends(t, 4, 5, &Request::send(data(6)));
            t.peer(ack(2, nak, 1));
            t.completes(1);
            t.fails(2, status);
            t.fails(3, wc::WR_FLUSH);
            t.fails(4, wc::WR_FLUSH);
        });
    }
    // Of a READ: at its first PSN, or where it stopped.
    for at in [0, 1] {
        t.apart(t.terms, |t| {
            let place = sends(t, 1, 0, &Request::read(VA, RKEY, 600));
            if at == 1 {
                t.peer(responds(t, 0, 1, 600).remove(0));
                t.lands(place, 256);
            }
            t.peer(ack(at, syndrome::REMOTE_ACCESS, 0));
            t.fails(1, wc::REM_ACCESS);
        });
    }
}

fn reserved_syndromes_are_dropped(t: &mut Talk) {
    sends(t, 1, 0, &to(10));
    let reserved: Vec<u8> = (0x40..0x60).chain(0x64..=0xff).collect();
    t.counts(counter::RX_STALE_RESPONSE, reserved.len() as u64);
    t.peer_all(reserved.iter().map(|s| ack(0, *s, 1)));
    assert_eq!(t.cq.poll().next(), None);
    t.peer(acked(0, 1));
    t.completes(1);
    for credits in 0..32 {
        sends(t, 2, 1 + credits, &to(4));
        t.peer(ack(1 + credits, credits as u8, 2 + credits));
        t.completes(2);
    }
}

fn answers_of_others_are_dropped(t: &mut Talk) {
    sends(t, 1, 0, &to(10));
    t.peer(Packet { version: 1, ..acked(0, 1) });
    t.counts(counter::RX_OPCODE, 1);
    t.peer(Packet { pkey: 0x7ffe, ..acked(0, 1) });
    t.counts(counter::RX_PKEY, 1);
    let right = t.peer.envelope;
    t.peer.envelope.ips[0] = "10.0.0.77".parse().expect("an address");
    t.peer(acked(0, 1));
    t.counts(counter::RX_QP_PEER, 1);
    t.peer.envelope = right;
    assert_eq!(t.cq.poll().next(), None, "it is not acknowledged");
    t.peer(acked(0, 1));
    t.completes(1);
}
