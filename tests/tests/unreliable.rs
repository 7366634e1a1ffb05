//! Datagrams and unreliable connections between two hosts: what arrives where, what is dropped without a word, and what ends a queue pair.

use abi::queue::{UD_HEADER, recv_op};
use abi::status::{cause, counter, wc};
use abi::table::qp_state;
use driver::qp::Uc;
use driver::{Access, Data, Flags, Operation, Qp};
use ferroce_tests::datagrams::{LEN, QKEY, SIZES, Talker, handle, header, talker, vector};
use ferroce_tests::{GUARD, assert_sound, bytes, is_guard, noise, pass, path_to, region, wait};
use rand::RngExt;
use testbed::{Host, Setup, Testbed};

/// Datagrams of all lengths in both directions, with and without immediate data, inline and scattered; and to a QP of the same NIC.
fn datagrams(setup: Setup, mtu: usize) {
    let bed = Testbed::new(&setup).unwrap();
    let mut ends = [talker(&bed.hosts[0], QKEY), talker(&bed.hosts[1], QKEY ^ 1)];
    let qkeys = [QKEY, QKEY ^ 1];
    let mut rng = verilate::rng(5);
    for round in 0..verilate::scale(40) {
        let (from, to) = if round % 8 == 7 { (1, 1) } else { (round % 2, 1 - round % 2) };
        let ah = handle(&bed, from, to);
        let len = [0, 1, 2, 3, 5, mtu - 1, mtu, rng.random_range(0..=mtu)][round % 8];
        let data: Vec<u8> = (0..len).map(noise(round as u64)).collect();
        // The receive: in two parts around an empty one.
        let receiver = &mut ends[to];
        receiver.memory.write(0, &[GUARD; LEN]);
        let cut = rng.random_range(0..=UD_HEADER + len);
        let tail = UD_HEADER + len - cut;
        let parts = [receiver.memory.sge(0, cut), receiver.memory.sge(9, 0), receiver.memory.sge(cut + 64, tail)];
        receiver.qp.post_recv(7, &parts).unwrap();
        let (qpn, sender_qpn) = (receiver.qp.qpn(), ends[from].qp.qpn());
        pass(&bed, 20);
        let target = ah.to(qpn, qkeys[to]);
        let imm = (round % 3 == 1).then_some([1, 2, 3, round as u8]);
        let operation = imm.map_or(Operation::SendTo(target), |imm| Operation::SendToImm(target, imm));
        let source = region(&bed.hosts[from].pd, LEN, Access::all(), noise(round as u64));
        if len <= 200 && round % 2 == 0 {
            ends[from].send(3, operation, Data::Inline(&data));
        } else {
            let at = len / 3;
            ends[from].send(3, operation, Data::Sges(&[source.sge(0, at), source.sge(at, len - at)]));
        }
        let mut seen = Vec::new();
        if from == to {
            seen.extend([(); 2].map(|()| wait(&bed, &mut ends[to].cq, "both ends")));
            seen.sort_by_key(|c| c.wr_id);
            assert_eq!((seen[0].wr_id, seen[0].status), (3, Ok(())));
        } else {
            seen.push(wait(&bed, &mut ends[to].cq, "a receive"));
            ends[from].sent(&bed, 3);
        }
        let c = seen.pop().unwrap();
        let opcode = if imm.is_some() { recv_op::RECV_IMM } else { recv_op::RECV };
        assert_eq!((c.wr_id, c.status, c.opcode, c.imm), (7, Ok(()), opcode, imm), "{c:?}");
        assert_eq!((c.len as usize, c.source), (UD_HEADER + len, sender_qpn), "round {round}");
        let all = bytes(&ends[to].memory);
        assert!(is_guard(&ends[to].memory, cut..cut + 64) && is_guard(&ends[to].memory, cut + 64 + tail..LEN));
        let got = [&all[..cut], &all[cut + 64..][..tail]].concat();
        assert_eq!(got[UD_HEADER..], data, "round {round}, {len} bytes");
        header(&got[..UD_HEADER], &bed.hosts[from].gid, bed.hosts[to].gid.ip, len, imm.is_some());
    }
    assert_sound(&bed, "datagrams");
}

#[test]
fn datagrams_arrive_with_their_header() {
    datagrams(Setup::small(), 4096);
}

#[test]
fn datagrams_arrive_over_ip6() {
    datagrams(Setup { ip6: true, ..Setup::default() }, 4096);
}

#[test]
fn datagrams_arrive_over_ip6_in_a_vlan() {
    datagrams(Setup { ip6: true, vlan: Some(4094), ..Setup::default() }, 4096);
}

/// A burst: more datagrams than the window, to two QPs, by two QPs at once; none is lost on a clean path, all complete, in order.
#[test]
fn datagrams_of_many_complete_when_they_have_left() {
    let bed = Testbed::new(&Setup::small()).unwrap();
    let mut senders: Vec<_> = (0..3).map(|_| talker(&bed.hosts[0], QKEY)).collect();
    let mut receiver = talker(&bed.hosts[1], QKEY);
    let ah = handle(&bed, 0, 1);
    let target = ah.to(receiver.qp.qpn(), QKEY);
    let (mut sent, mut done, mut received, mut posted) = ([0u64; 3], [0u64; 3], 0, 0);
    let each = verilate::scale(100) as u64;
    for _ in 0..100_000 {
        while posted - received < 16 {
            let slot = posted as usize % 16;
            receiver.qp.post_recv(posted, &[receiver.memory.sge(128 * slot, 128)]).unwrap();
            posted += 1;
        }
        for (i, s) in senders.iter_mut().enumerate() {
            // Some fall into the gaps of the receiver, which is slow.
            let mut batch = s.qp.post();
            for _ in 0..4 {
                if sent[i] < each && sent[i] - done[i] < 60 {
                    let flags = if sent[i] % 3 == 2 || sent[i] + 1 == each { Flags::SIGNALED } else { Flags::empty() };
                    batch.add(sent[i], Operation::SendTo(target), Data::Inline(&[i as u8; 30]), flags).unwrap();
                    sent[i] += 1;
                }
            }
            drop(batch);
            for c in s.cq.poll() {
                assert!(c.status.is_ok() && c.wr_id >= done[i], "{c:?}");
                done[i] = c.wr_id + 1;
            }
        }
        for c in receiver.cq.poll() {
            assert!(c.status.is_ok() && c.wr_id == received, "{c:?}");
            received += 1;
        }
        if done.iter().all(|d| *d == each) {
            break;
        }
        pass(&bed, 1);
    }
    pass(&bed, 200);
    received += receiver.cq.poll().count() as u64;
    let [late, full] = [counter::RX_UNRELIABLE, counter::RX_NO_ROOM].map(|k| bed.hosts[1].device.counter(k));
    println!("{received} of {} received, {late} without a receive, {full} without room in the NIC", 3 * each);
    assert_eq!((done, received + late + full), ([each; 3], 3 * each));
    assert_eq!(bed.hosts[0].device.counter(counter::TX_FRAMES), 3 * each);
    assert_sound(&bed, "many datagrams");
}

/// What is wrong with a datagram does not matter to the QP that it is for: it is dropped, counted, and the next one arrives.
#[test]
fn what_does_not_fit_is_dropped_and_the_queue_pair_lives() {
    let bed = Testbed::new(&Setup::small()).unwrap();
    let (mut a, mut b) = (talker(&bed.hosts[0], QKEY), talker(&bed.hosts[1], QKEY));
    let ah = handle(&bed, 0, 1);
    let counted = |k| bed.hosts[1].device.counter(k);
    let n = b.qp.qpn();
    let check = |a: &mut Talker, b: &mut Talker, to: (u32, u32), k: usize| {
        let before = counted(k);
        a.send(1, Operation::SendTo(ah.to(to.0, to.1)), Data::Inline(&[1; 20]));
        a.sent(&bed, 1);
        pass(&bed, 100);
        assert_eq!((counted(k), b.cq.poll().next()), (before + 1, None), "{}", counter::NAMES[k].0);
    };
    check(&mut a, &mut b, (n, QKEY), counter::RX_UNRELIABLE);
    b.qp.post_recv(1, &[b.memory.sge(0, 100)]).unwrap();
    pass(&bed, 20);
    check(&mut a, &mut b, (n, QKEY + 1), counter::RX_QP_PEER);
    check(&mut a, &mut b, (n + 1, QKEY), counter::RX_QP_STATE);
    // A Q_Key with its highest bit stands for the sender's own.
    a.send(2, Operation::SendTo(ah.to(n, 0x8000_0000)), Data::Inline(&[2; 20]));
    a.sent(&bed, 2);
    let c = wait(&bed, &mut b.cq, "a receive");
    assert_eq!((c.wr_id, c.status, c.len), (1, Ok(()), 60));
    // A receive that is too short waits for a shorter one.
    b.qp.post_recv(2, &[b.memory.sge(0, 59)]).unwrap();
    b.qp.post_recv(3, &[b.memory.sge(0, 100)]).unwrap();
    pass(&bed, 20);
    b.memory.write(0, &[GUARD; 200]);
    check(&mut a, &mut b, (n, QKEY), counter::RX_UNRELIABLE);
    assert!(is_guard(&b.memory, 0..200));
    for (id, len) in [(2, 19), (3, 20)] {
        a.send(id, Operation::SendTo(ah.to(n, QKEY)), Data::Inline(&[3; 20][..len]));
        a.sent(&bed, id);
        let c = wait(&bed, &mut b.cq, "a receive that is long enough");
        assert_eq!((c.wr_id, c.status, c.len as usize), (id, Ok(()), UD_HEADER + len));
    }
    assert_eq!((b.qp.query().unwrap().state, a.qp.query().unwrap().state), (qp_state::RTS, qp_state::RTS));
    assert_sound(&bed, "dropped datagrams");
}

/// A datagram over the MTU, one to a handle of another protection domain or of none, and one from memory that is not there.
#[test]
fn what_cannot_be_sent_completes_with_an_error() {
    let bed = Testbed::new(&Setup::small()).unwrap();
    let h = &bed.hosts[0];
    let other = h.device.create_pd().unwrap();
    let foreign = other.create_ah(&vector(&bed.hosts[1].gid)).unwrap();
    let ah = handle(&bed, 0, 1);
    let gone = handle(&bed, 0, 1).to(9, QKEY);
    let foreign = foreign.to(9, QKEY);
    let memory = region(&h.pd, LEN, Access::all(), noise(1));
    let outside = driver::Sge { addr: memory.addr() + LEN as u64, ..memory.sge(0, 4) };
    let cases = [
        (ah.to(9, QKEY), memory.sge(0, 4097), wc::LOC_LEN, cause::WQE_LENGTH),
        (foreign, memory.sge(0, 4), wc::LOC_QP_OP, cause::WQE_HANDLE),
        (gone, memory.sge(0, 4), wc::LOC_QP_OP, cause::WQE_HANDLE),
        (ah.to(9, QKEY), outside, wc::LOC_PROT, cause::KEY_BOUNDS),
    ];
    for (to, sge, status, why) in cases {
        let mut a = talker(h, QKEY);
        a.send(1, Operation::SendTo(ah.to(9, QKEY)), Data::Sges(&[memory.sge(0, 4096)]));
        a.send(2, Operation::SendTo(to), Data::Sges(&[sge]));
        a.send(3, Operation::SendTo(ah.to(9, QKEY)), Data::Sges(&[memory.sge(0, 4)]));
        a.sent(&bed, 1);
        let c = wait(&bed, &mut a.cq, "the bad one");
        let e = c.status.unwrap_err();
        assert_eq!((c.wr_id, e.status, e.cause), (2, status, why), "{c:?}");
        let c = wait(&bed, &mut a.cq, "the one behind it");
        assert_eq!((c.wr_id, c.status.unwrap_err().status), (3, wc::WR_FLUSH));
    }
    assert_sound(&bed, "datagrams that cannot be sent");
}

/// Unreliable connections: messages of many packets, WRITEs with and without immediate data, in both directions.
#[test]
fn messages_of_unreliable_connections_arrive() {
    const MTU: usize = 1024;
    let bed = Testbed::new(&Setup::small()).unwrap();
    let make = |h: &Host| {
        let cq = h.device.create_cq(256, &h.eq).unwrap();
        (h.pd.create_uc_qp(&cq, &cq, SIZES).unwrap().init(Access::all()).unwrap(), cq)
    };
    let [(qa, ca), (qb, cb)] = [0, 1].map(|i| make(&bed.hosts[i]));
    let path = |to: usize, qpn| path_to(bed.hosts[to].gid, qpn, MTU as u32, 0xff_fffe);
    let (na, nb) = (qa.qpn(), qb.qpn());
    let ready = |qp: Qp<driver::qp::Init, Uc>, path| qp.rtr(&path).unwrap().rts(0xff_fffe).unwrap();
    let mut ends = [(ready(qa, path(1, nb)), ca), (ready(qb, path(0, na)), cb)];
    let memory = [0, 1].map(|i| region(&bed.hosts[i].pd, 2 * LEN, Access::all(), |_| GUARD));
    for round in 0..verilate::scale(40) {
        let (from, to) = (round % 2, 1 - round % 2);
        let len = [0, 1, MTU, MTU + 1, 3 * MTU, 5000, 7][round % 7];
        memory[to].write(0, &[GUARD; LEN]);
        memory[from].write(LEN, &(0..LEN).map(noise(round as u64)).collect::<Vec<_>>());
        let imm = [1, 2, 3, round as u8];
        let remote = memory[to].remote(0);
        let (operation, opcode) = match round % 4 {
            0 => (Operation::Send, Some(recv_op::RECV)),
            1 => (Operation::SendImm(imm), Some(recv_op::RECV_IMM)),
            2 => (Operation::Write(remote), None),
            _ => (Operation::WriteImm(remote, imm), Some(recv_op::RECV_WRITE_IMM)),
        };
        if opcode.is_some() {
            ends[to].0.post_recv(7, &[memory[to].sge(0, 100), memory[to].sge(100, LEN - 100)]).unwrap();
            pass(&bed, 20);
        }
        let data = [memory[from].sge(LEN, len)];
        ends[from].0.post().add(3, operation, Data::Sges(&data), Flags::SIGNALED).unwrap();
        let c = wait(&bed, &mut ends[from].1, "a message");
        assert_eq!((c.wr_id, c.status), (3, Ok(())), "{c:?}");
        if let Some(opcode) = opcode {
            let c = wait(&bed, &mut ends[to].1, "a receive");
            assert_eq!((c.wr_id, c.status, c.opcode, c.len as usize), (7, Ok(()), opcode, len), "{c:?}");
            assert_eq!((c.imm, c.source), (opcode.ne(&recv_op::RECV).then_some(imm), 0));
        } else {
            pass(&bed, 400);
        }
        let got = bytes(&memory[to]);
        let want: Vec<u8> = (0..len).map(noise(round as u64)).collect();
        assert!(got[..len] == want && is_guard(&memory[to], len..LEN), "round {round}, {len} bytes");
    }
    assert_sound(&bed, "unreliable connections");
}
