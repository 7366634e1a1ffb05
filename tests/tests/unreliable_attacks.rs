//! Attacks on unreliable connections and datagrams: strangers' packets between those of a message, receives of every shape,
//! messages longer than any window.

use abi::queue::{UD_HEADER, recv_op};
use abi::status::{counter, wc};
use abi::table::qp_state;
use driver::qp::{QpSizes, Rts, Uc};
use driver::{Access, AddressVector, Data, Flags, Operation, Qp, Remote};
use fabric::peer::{Packet, Request, class, op};
use ferroce_tests::conformance::talk::{Talk, Terms, data};
use ferroce_tests::{GUARD, bytes, is_guard, noise, pass, path_to, region, wait};
use rand::RngExt;
use testbed::{Host, Setup, Solo, Testbed};

const SIZES: QpSizes = QpSizes::new(64, 16);
const US: u64 = 125;

fn connection(t: &Talk, sizes: QpSizes) -> Qp<Rts, Uc> {
    let qp = t.solo.host.pd.create_uc_qp(&t.cq, &t.cq, sizes).unwrap().init(Access::all()).unwrap();
    qp.rtr(&t.path()).unwrap().rts(t.terms.psn).unwrap()
}

fn cut(t: &Talk, qpn: u32, psn: u32, request: Request) -> Vec<Packet> {
    let packets = t.cut(psn, request).into_iter();
    packets.map(|p| Packet { opcode: p.opcode | class::UC, ack_req: false, qpn, ..p }).collect()
}

/// A WRITE whose FIRST begins in front of its region: its rest would land. Between its packets a stranger says something.
fn refused_message(between: impl FnOnce(&mut Talk, u32)) {
    let mut solo = Solo::new(&Setup::small()).unwrap();
    let mut t = Talk::new(&mut solo, Terms::USUAL);
    let mut qp = connection(&t, SIZES);
    let n = qp.qpn();
    qp.post_recv(1, &[t.memory.sge(2000, 700)]).unwrap();
    t.pass(2 * US);
    let request = Request::write(t.memory.addr() - 256, t.memory.rkey(), data(600));
    let mut packets = cut(&t, n, 0, request);
    t.peer(packets.remove(0));
    between(&mut t, n);
    t.peer_all(packets);
    t.pass(20 * US);
    t.check_memory();
    assert_eq!(qp.query().unwrap().state, qp_state::RTS);
    assert_eq!(t.solo.host.device.counter(counter::RX_UNRELIABLE), 3);
}

#[test]
fn a_uc_write_whose_first_is_refused_is_dropped_to_its_end() {
    refused_message(|_, _| {});
}

#[test]
fn a_uc_write_whose_first_is_refused_is_dropped_to_its_end_whatever_a_stranger_with_another_pkey_sends() {
    refused_message(|t, n| {
        let only = cut(t, n, 0, Request::send(data(8))).remove(0);
        t.peer(Packet { pkey: 0x7ffe, ..only });
    });
}

#[test]
fn a_uc_write_whose_first_is_refused_is_dropped_to_its_end_whatever_another_transport_sends() {
    refused_message(|t, n| {
        let deth = Some(fabric::peer::Deth { qkey: 1, source: 7 });
        t.peer(Packet { opcode: class::UD | op::SEND_ONLY, qpn: n, deth, payload: data(8), ..Packet::default() });
    });
}

/// Half of a message, told as whole, it would be.
#[test]
fn a_uc_write_imm_whose_first_is_refused_completes_no_receive_whatever_a_stranger_sends() {
    let mut solo = Solo::new(&Setup::small()).unwrap();
    let mut t = Talk::new(&mut solo, Terms::USUAL);
    let mut qp = connection(&t, SIZES);
    let n = qp.qpn();
    qp.post_recv(1, &[t.memory.sge(2000, 700)]).unwrap();
    t.pass(2 * US);
    let request = Request::write(t.memory.addr() - 256, t.memory.rkey(), data(600)).imm([1, 2, 3, 4]);
    let mut packets = cut(&t, n, 0, request);
    t.peer(packets.remove(0));
    let only = cut(&t, n, 0, Request::send(data(8))).remove(0);
    t.peer(Packet { pkey: 0x7ffe, ..only });
    t.peer_all(packets);
    t.pass(20 * US);
    let c = t.cq.poll().next();
    assert!(c.is_none_or(|c| c.status.is_err()), "half a message was received: {c:?}");
    t.check_memory();
}

/// A WRITE with immediate data whose key does not open has taken a receive, which must end: it completes with the error, and the QP
/// ends. Without a receive nothing tells of it.
#[test]
fn a_uc_write_imm_whose_key_does_not_open_ends_the_receive_that_it_has_taken() {
    let mut solo = Solo::new(&Setup::small()).unwrap();
    let mut t = Talk::new(&mut solo, Terms::USUAL);
    for len in [8, 600] {
        let mut qp = connection(&t, SIZES);
        let n = qp.qpn();
        qp.post_recv(1, &[t.memory.sge(2000, 700)]).unwrap();
        t.pass(2 * US);
        let bad = Request::write(t.memory.addr(), 0xdead_be00, data(len)).imm([1, 2, 3, 4]);
        t.peer_all(cut(&t, n, 0, bad));
        t.pass(20 * US);
        let c = t.cq.poll().next().expect("the receive completes");
        assert_eq!((c.wr_id, c.status.unwrap_err().status), (1, wc::REM_ACCESS), "{len} bytes");
        assert_eq!(qp.query().unwrap().state, qp_state::ERR, "{len} bytes");
        t.check_memory();
    }
}

/// Datagrams into receives of up to four SGEs of any lengths, empty ones anywhere, over both IP versions.
fn datagrams_into_any_receive(setup: Setup) {
    const QKEY: u32 = 0x1234_5678;
    const LEN: usize = 8192;
    let bed = Testbed::new(&setup).unwrap();
    let make = |h: &Host| {
        let cq = h.device.create_cq(256, &h.eq).unwrap();
        let qp = h.pd.create_ud_qp(&cq, &cq, SIZES).unwrap().init(QKEY).unwrap().rtr().unwrap().rts(0).unwrap();
        (qp, cq)
    };
    let (mut from, mut from_cq) = make(&bed.hosts[0]);
    let to = bed.hosts[1].gid;
    let to = AddressVector { ip: to.ip, mac: to.mac, gid: 0, traffic_class: 0, priority: 0, source_port: 0xc123 };
    let ah = bed.hosts[0].pd.create_ah(&to).unwrap();
    let source = region(&bed.hosts[0].pd, LEN, Access::all(), noise(1));
    let target = region(&bed.hosts[1].pd, LEN, Access::all(), |_| GUARD);
    let all = bytes(&source);
    let mut rng = verilate::rng(9);
    let (mut receiver, mut cq) = make(&bed.hosts[1]);
    let (mut fits, mut dropped) = (0, 0);
    for round in 0..verilate::scale(60) {
        target.write(0, &[GUARD; LEN]);
        let len = match rng.random_range(0..4) {
            0 => rng.random_range(0..8),
            1 => rng.random_range(0..300),
            2 => rng.random_range(0..=4096),
            _ => [0, 1, 4095, 4096][rng.random_range(0..4)],
        };
        // Room: enough, just enough, or not.
        let need = UD_HEADER + len;
        let room = match rng.random_range(0..6) {
            0 => need,
            1 if need > 0 => rng.random_range(0..need),
            2 => need - 1,
            _ => need + rng.random_range(0..100),
        };
        let parts = rng.random_range(1..=4);
        let mut cuts: Vec<usize> = (1..parts)
            .map(|_| {
                let near = rng.random_range(0..=64.min(room));
                if rng.random_bool(0.6) { near } else { rng.random_range(0..=room) }
            })
            .collect();
        if cuts.len() > 1 && rng.random_bool(0.4) {
            cuts[1] = cuts[0];
        }
        cuts.extend([0, room]);
        cuts.sort();
        let mut places = Vec::new();
        let mut at = rng.random_range(0..5);
        let mut sges = Vec::new();
        for w in cuts.windows(2) {
            let n = w[1] - w[0];
            sges.push(target.sge(at, n));
            places.extend(at..at + n);
            at += n + rng.random_range(0..9);
        }
        receiver.post_recv(7, &sges).unwrap();
        pass(&bed, 20);
        // What is sent: up to four parts, empty ones anywhere.
        let base = rng.random_range(0..1000);
        let mut cuts: Vec<usize> = (1..rng.random_range(1..=4)).map(|_| rng.random_range(0..=len)).collect();
        cuts.extend([0, len]);
        cuts.sort();
        let parts: Vec<_> = cuts.windows(2).map(|w| source.sge(base + w[0], w[1] - w[0])).collect();
        let inline = len <= 224 && rng.random_bool(0.3);
        let payload = &all[base..base + len];
        let data = if inline { Data::Inline(payload) } else { Data::Sges(&parts) };
        from.post().add(3, Operation::SendTo(ah.to(receiver.qpn(), QKEY)), data, Flags::SIGNALED).unwrap();
        let s = wait(&bed, &mut from_cq, "a datagram");
        assert_eq!((s.wr_id, s.status), (3, Ok(())), "round {round}");
        let mut want = vec![GUARD; LEN];
        let skip = if setup.ip6 { 0 } else { 20 };
        let got;
        if room >= need {
            let c = wait(&bed, &mut cq, &format!("round {round}: a receive of {len} bytes into {sges:?}"));
            got = bytes(&target);
            assert_eq!((c.status, c.opcode, c.len as usize), (Ok(()), recv_op::RECV, need), "round {round}");
            for (i, p) in places.iter().enumerate().take(need) {
                want[*p] = match i {
                    _ if i < skip => GUARD,
                    _ if i < UD_HEADER => got[*p],
                    _ => payload[i - UD_HEADER],
                };
            }
            assert_eq!(got[places[skip]] >> 4, if setup.ip6 { 6 } else { 4 }, "round {round}");
            fits += 1;
        } else {
            // It is dropped, and nothing written.
            pass(&bed, 100);
            dropped += 1;
            let counted = bed.hosts[1].device.counter(counter::RX_UNRELIABLE);
            assert_eq!((counted, cq.poll().next()), (dropped, None), "round {round}: {need} bytes in {room}");
            got = bytes(&target);
            // The receive is there for the longest that it holds.
            if let Some(len) = room.checked_sub(UD_HEADER) {
                let data = Data::Sges(&[source.sge(0, len)]);
                from.post().add(4, Operation::SendTo(ah.to(receiver.qpn(), QKEY)), data, Flags::SIGNALED).unwrap();
                assert_eq!(wait(&bed, &mut from_cq, "a datagram").status, Ok(()), "round {round}");
                let c = wait(&bed, &mut cq, &format!("round {round}: {len} bytes into {sges:?}"));
                assert_eq!((c.status, c.len as usize), (Ok(()), room), "round {round}");
            } else {
                (receiver, cq) = make(&bed.hosts[1]);
            }
        }
        if let Some(i) = (0..LEN).find(|i| got[*i] != want[*i]) {
            panic!("round {round}: byte {i} is {:#x}, want {:#x}; {len} bytes into {sges:?}", got[i], want[i]);
        }
    }
    assert!(fits > 0 && dropped > 0, "{fits} fitted, {dropped} did not");
}

#[test]
fn datagrams_fill_any_receive_at_64_bits() {
    datagrams_into_any_receive(Setup::small());
}

#[test]
fn datagrams_fill_any_receive_at_512_bits_over_ip6() {
    datagrams_into_any_receive(Setup { ip6: true, ..Setup::default() });
}

/// More packets than the window has, in one message.
#[test]
fn a_long_message_of_an_unreliable_connection_arrives() {
    const LEN: usize = (2 << 20) + 1;
    let bed = Testbed::new(&Setup::default()).unwrap();
    let make = |h: &Host| {
        let cq = h.device.create_cq(256, &h.eq).unwrap();
        (h.pd.create_uc_qp(&cq, &cq, SIZES).unwrap().init(Access::all()).unwrap(), cq)
    };
    let [(qa, mut ca), (qb, _cb)] = [0, 1].map(|i| make(&bed.hosts[i]));
    let path = |to: usize, qpn| path_to(bed.hosts[to].gid, qpn, 256, 0xff_fffe);
    let (na, nb) = (qa.qpn(), qb.qpn());
    let mut qa = qa.rtr(&path(1, nb)).unwrap().rts(0xff_fffe).unwrap();
    let _qb = qb.rtr(&path(0, na)).unwrap().rts(0xff_fffe).unwrap();
    let source = region(&bed.hosts[0].pd, LEN + 1, Access::all(), noise(5));
    let target = region(&bed.hosts[1].pd, LEN + 100, Access::all(), |_| GUARD);
    let to = Remote { addr: target.addr() + 3, rkey: target.rkey() };
    qa.post().add(5, Operation::Write(to), Data::Sges(&[source.sge(1, LEN)]), Flags::SIGNALED).unwrap();
    let c = wait(&bed, &mut ca, "a long message");
    assert_eq!((c.wr_id, c.status), (5, Ok(())));
    pass(&bed, 400);
    assert!(bytes(&target)[3..3 + LEN] == bytes(&source)[1..], "all arrived");
    assert!(is_guard(&target, 0..3) && is_guard(&target, LEN + 3..LEN + 100));
}
