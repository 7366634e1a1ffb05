//! A responder under loss, and at the limits of what it holds.

use super::talk::{Talk, Terms, acked, data};
use super::{Row, row};
use abi::status::counter;
use fabric::peer::{Packet, Request, Requester, ack, op, syndrome};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// 64 packets from here on pass the end of the PSNs.
pub const LATE: Terms = Terms { psn: 0xff_fff0, ..Terms::USUAL };

pub const ROWS: &[Row] = &[
    Row {
        terms: LATE,
        ..row!(
            "9.7.1, 9.7.5.1.3",
            sixty_four_packets_with_losses,
            "A WRITE of 64 packets from PSN 0xfffff0 on, some of them lost again and again: go back to where the NAK says, all of it lands, once"
        )
    },
    Row {
        terms: LATE,
        ..row!(
            "9.7.5.1.5",
            a_read_of_sixty_four_packets_with_losses,
            "A READ of 64 packets from PSN 0xfffff0 on whose response loses packets: asked for again from there, it goes on"
        )
    },
    Row {
        terms: Terms { max_dest_reads: 2, ..Terms::USUAL },
        ..row!(
            "9.7.4.1.4, C9-113",
            more_reads_than_were_offered,
            "More READs outstanding than the responder offered: NAK invalid request"
        )
    },
    Row {
        terms: Terms { max_dest_reads: 16, ..Terms::USUAL },
        ..row!(
            "9.7.5.1.5",
            sixteen_reads_at_a_time,
            "As many READs as were offered, 16, outstanding at a time, each answered in its turn, each repeatable"
        )
    },
    row!("9.7.2", messages_of_the_largest_mtu, "Path MTUs from 256 to 4096"),
];

fn sixty_four_packets_with_losses(t: &mut Talk) {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
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
        while let Some((_, answer)) = t.peer.take() {
            let answer = Packet { psn: answer.psn.wrapping_sub(t.terms.psn) & 0xff_ffff, ..answer };
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
    t.ends();
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
