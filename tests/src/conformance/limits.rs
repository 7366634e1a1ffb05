//! A responder under loss, and at the limits of what it holds.

use super::talk::{Talk, Terms, acked, data};
use super::{Row, row};
use abi::status::{cause, counter};
use driver::qp::Changes;
use driver::{Access, Completion};
use fabric::peer::{Operation, Received, Request, Requester, Responder, ack, op, syndrome};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// 64 packets from here on pass the end of the PSNs.
pub const LATE: Terms = Terms { psn: 0xff_fff0, ..Terms::USUAL };

pub const ROWS: &[Row] = &[
    Row {
        terms: LATE,
        ..row!(
            "9.7.1, 9.7.5",
            sixty_four_packets_with_losses,
            "A WRITE of 64 packets from PSN 0xfffff0 on, some of them lost again and again: go back to where the NAK says, all of it lands, once"
        )
    },
    Row {
        terms: LATE,
        ..row!(
            "9.7.5",
            a_read_of_sixty_four_packets_with_losses,
            "A READ of 64 packets from PSN 0xfffff0 on whose response loses packets: asked for again from there, it goes on"
        )
    },
    Row {
        terms: Terms { max_dest_reads: 2, ..Terms::USUAL },
        ..row!(
            "9.7.4",
            more_reads_than_were_offered,
            "More READs outstanding than the responder offered: NAK invalid request"
        )
    },
    Row {
        terms: Terms { max_dest_reads: 16, ..Terms::USUAL },
        ..row!(
            "9.7.5",
            sixteen_reads_at_a_time,
            "As many READs as were offered, 16, outstanding at a time, each answered in its turn, each repeatable"
        )
    },
    Row {
        terms: LATE,
        ..row!(
            "9.7",
            both_ask_at_once_over_a_lossy_path,
            "Messages of all kinds and lengths in both directions at once, over a path that loses packets and answers: all are executed, once, in order"
        )
    },
    row!(
        "10.3.1, 11.2.4.2",
        what_changes_at_work_counts_at_once,
        "RTS to RTS: a new RNR timer code is told and new access holds from the next packet on, expected PSN and MSN stay; what asks for SQD is refused and changes nothing"
    ),
    row!("9.7.4", messages_of_the_largest_mtu, "Path MTUs from 256 to 4096"),
];

fn what_changes_at_work_counts_at_once(t: &mut Talk) {
    let timer = |code| Changes { min_rnr_timer: Some(code), ..Changes::default() };
    t.peer(t.only(0, t.write(0, 10)));
    t.nic(acked(0, 1));
    t.lands(0, 10);
    for code in [0, 17, 31] {
        t.qp.change(&timer(code)).unwrap();
        t.peer(t.only(1, Request::send(data(3))));
        t.nic(ack(1, syndrome::RNR | code, 1));
        t.counts(counter::RX_RNR, 1);
    }
    for changes in [
        Changes { timeout: Some(9), ..timer(3) },
        Changes { retry_count: Some(1), ..timer(3) },
        Changes { rnr_retry: Some(1), ..timer(3) },
        Changes { max_reads: Some(1), ..timer(3) },
        Changes { max_dest_reads: Some(1), ..timer(3) },
    ] {
        let e = t.qp.change(&changes).unwrap_err().to_string();
        assert!(e.contains("is not allowed"), "{changes:?}: {e}");
    }
    t.peer(t.only(1, Request::send(data(3))));
    t.nic(ack(1, syndrome::RNR | 31, 1));
    t.counts(counter::RX_RNR, 1);
    let may = |access| Changes { access: Some(access), ..Changes::default() };
    t.qp.change(&may(Access::LOCAL_WRITE | Access::REMOTE_READ)).unwrap();
    t.peer(t.only(1, t.read(0, 10)));
    t.nic_all(t.response(1, 2, 0, 10));
    t.qp.change(&may(Access::LOCAL_WRITE | Access::REMOTE_WRITE)).unwrap();
    t.peer(t.only(2, t.write(20, 10)));
    t.nic(acked(2, 3));
    t.lands(20, 10);
    t.peer(t.only(3, t.read(0, 10)));
    t.refuses(3, syndrome::INVALID_REQUEST);
    t.ends_by(cause::QP_ACCESS);
}

fn sixty_four_packets_with_losses(t: &mut Talk) {
    let mut rng = verilate::rng(5);
    let mut peer = Requester::new(0, t.terms.mtu);
    let mut packets = peer.post(t.write(100, 64 * 256));
    let (mut rounds, mut lost) = (0, 0);
    while peer.is_busy() {
        rounds += 1;
        assert!(rounds < 60, "it comes to no end");
        // As the NIC must count them: duplicate, in order, ahead.
        for p in std::mem::take(&mut packets) {
            if rng.random_ratio(1, 12) {
                lost += 1;
            } else {
                t.peer(p);
            }
        }
        t.pass(1500);
        while let Some(answer) = t.take() {
            let more = peer.hear(&answer);
            if !more.is_empty() {
                packets = more;
            }
        }
        if packets.is_empty() {
            packets = peer.timeout();
        }
    }
    assert!(lost > 4, "{lost} packets lost");
    t.lands(100, 64 * 256);
    t.any_sequence();
}

fn a_read_of_sixty_four_packets_with_losses(t: &mut Talk) {
    let len = 64 * 256 - 5;
    t.peer(t.only(0, t.read(3, len)));
    let whole = t.response(0, 1, 3, len);
    t.nic_all(whole);
    // As if all from there on were lost, each time.
    for from in [7, 15, 16, 17, 40, 63] {
        let at = 3 + 256 * from as usize;
        t.peer(t.only(from, t.read(at, len + 3 - at)));
        t.nic_all(t.response(from, 1, at, len + 3 - at));
        t.counts(counter::RX_DUPLICATE, 1);
    }
    t.peer(t.only(64, t.write(0, 5)));
    t.nic(acked(64, 2));
    t.lands(0, 5);
}

fn more_reads_than_were_offered(t: &mut Talk) {
    // So long that the first is not answered when the third comes.
    let reads: Vec<_> = (0..3).map(|i| t.only(40 * i, t.read(0, 10_000))).collect();
    t.peer_all(reads);
    let mut psn = 0;
    loop {
        let heard = t.heard("responses, then a NAK");
        if heard.opcode == op::ACK {
            assert_eq!(heard, ack(80, syndrome::INVALID_REQUEST, 2));
            break;
        }
        assert_eq!(heard.psn, psn, "{heard}");
        psn += 1;
    }
    assert_eq!(psn, 80, "the two READs before it are answered");
    t.counts(counter::RX_INVALID_REQUEST, 1);
    t.ends_by(cause::TOO_MANY_READS);
}

fn sixteen_reads_at_a_time(t: &mut Talk) {
    let read = |t: &Talk, i: u32| t.only(3 * i, t.read(500 * i as usize, 700));
    let all: Vec<_> = (0..16).map(|i| read(t, i)).collect();
    t.peer_all(all.clone());
    for i in 0..16 {
        t.nic_all(t.response(3 * i, i + 1, 500 * i as usize, 700));
    }
    for i in [0, 7, 15] {
        t.peer(all[i as usize].clone());
        // What is behind a repeated READ may be answered anew as well.
        t.nic_all(t.response(3 * i, i + 1, 500 * i as usize, 700));
        t.counts(counter::RX_DUPLICATE, 1);
    }
}

fn messages_of_the_largest_mtu(t: &mut Talk) {
    for mtu in [256, 512, 1024, 2048, 4096] {
        t.apart(Terms { mtu, ..t.terms }, |t| {
            let len = 2 * mtu + 9;
            let at = t.receive(len);
            t.peer_all(t.cut(0, Request::send(data(len))));
            t.nic(acked(2, 1));
            t.lands(at, len);
            t.receives(len, None);
            t.peer_all(t.cut(3, t.write(7, len)));
            t.nic(acked(5, 2));
            t.lands(7, len);
            t.peer(t.only(6, t.read(7, len)));
            t.nic_all(t.response(6, 3, 7, len));
        });
    }
}

/// Where the peer's memory is said to be, and its key.
const VA: u64 = 0x7000_0000_0000;
const RKEY: u32 = 0x1234_5678;
/// Each message has a place of its own, so that a READ that is executed again finds what it found.
const PLACE: usize = 900;

/// A message of any kind to place `i` of a memory.
fn any(rng: &mut ChaCha8Rng, va: u64, rkey: u32, i: usize) -> Request {
    let len = [0, 1, 255, 256, 257, rng.random_range(0..PLACE)][rng.random_range(0..6)];
    let data: Vec<u8> = (0..len).map(|_| rng.random()).collect();
    let va = va + (PLACE * i) as u64;
    match rng.random_range(0..5) {
        0 => Request::read(va, rkey, len),
        1 => Request::write(va, rkey, data),
        2 => Request::write(va, rkey, data).imm([i as u8; 4]),
        3 => Request::send(data).imm([i as u8; 4]),
        _ => Request::send(data),
    }
}

fn both_ask_at_once_over_a_lossy_path(t: &mut Talk) {
    const COUNT: usize = 9;
    let mut rng = verilate::rng(88);
    let mut asks = Requester::new(0, t.terms.mtu);
    let mut answers = Responder::new(0, t.terms.mtu, VA, RKEY, PLACE * COUNT);
    answers.memory.iter_mut().for_each(|b| *b = rng.random());
    let before = answers.memory.clone();
    let (va, rkey) = (t.memory.addr(), t.memory.rkey());
    let theirs: Vec<_> = (0..COUNT).map(|i| any(&mut rng, va, rkey, i)).collect();
    let ours: Vec<_> = (0..COUNT).map(|i| any(&mut rng, VA, RKEY, i)).collect();
    let takes = |r: &&Request| r.imm.is_some() || r.operation == Operation::Send;
    let mut want_reads = Vec::new();
    let places: Vec<_> = theirs.iter().filter(takes).map(|_| t.receive(PLACE)).collect();
    answers.receives = ours.iter().filter(takes).count();
    let at: Vec<_> = ours.iter().enumerate().map(|(i, r)| t.post(i as u64, r)).collect();
    let mut wire: Vec<_> = Vec::new();
    let (mut todo, mut quiet) = (theirs.iter(), 0);
    let mut done: Vec<Completion> = Vec::new();
    while asks.is_busy() || todo.len() > 0 || done.len() < COUNT + places.len() {
        if let Some(r) = todo.next() {
            wire.extend(asks.post(r.clone()));
        } else if quiet > 300 {
            wire.extend(asks.timeout());
            quiet = 0;
        }
        for p in wire.drain(..) {
            if !rng.random_ratio(1, 15) {
                t.peer(p);
            }
        }
        t.solo.relax();
        quiet += 1;
        assert!(t.cycle() < 100_000_000, "it comes to no end: {done:?}");
        while let Some(p) = t.take() {
            if rng.random_ratio(1, 15) {
                continue;
            }
            if p.opcode <= op::READ_REQUEST {
                wire.extend(answers.hear(&p));
            } else {
                wire.extend(asks.hear(&p));
                quiet = 0;
            }
        }
        done.extend(t.cq.poll());
    }
    // What the NIC's messages did at the peer, and what its READs brought.
    let mut memory = before.clone();
    for (i, (r, at)) in ours.iter().zip(at).enumerate() {
        let place = PLACE * i;
        match r.operation {
            Operation::Write { .. } => memory[place..place + r.data.len()].copy_from_slice(&r.data),
            Operation::Read { len, .. } => t.lands_data(at, &before[place..place + len]),
            Operation::Send => {}
        }
    }
    assert!(answers.memory == memory, "what the NIC wrote");
    let want: Vec<_> = ours.iter().filter(takes).map(Received::of).collect();
    assert!(answers.received == want, "what the NIC sent");
    // What the peer's did at the NIC.
    let mut places = places.into_iter();
    for (i, r) in theirs.iter().enumerate() {
        match r.operation {
            Operation::Write { .. } => t.lands_data(PLACE * i, &r.data),
            Operation::Read { len, .. } => want_reads.push(t.expected(PLACE * i, len)),
            Operation::Send => {}
        }
        let place = if takes(&r) { places.next() } else { None };
        if let (Some(place), Operation::Send) = (place, r.operation) {
            t.lands_data(place, &r.data);
        }
    }
    assert!(asks.reads == want_reads, "what the peer read");
    let (sends, receives): (Vec<&Completion>, Vec<&Completion>) = done.iter().partition(|c| c.wr_id < COUNT as u64);
    assert!(done.iter().all(|c| c.status.is_ok()), "{done:?}");
    assert!(sends.iter().map(|c| c.wr_id).eq(0..COUNT as u64), "{sends:?}");
    let got = receives.iter().map(|c| (c.len as usize, c.imm));
    assert!(got.eq(theirs.iter().filter(takes).map(|r| (r.data.len(), r.imm))), "{receives:?}");
    t.any_sequence();
}
