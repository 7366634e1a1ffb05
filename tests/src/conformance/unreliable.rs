//! What queue pairs of UD and UC send, and what they make of what comes (IBTA 9.8): nobody answers, and what does not fit is dropped.

use super::frames::{a_byte_less, extended};
use super::requester::{US, to};
use super::talk::{PEER_QPN, Talk, data};
use super::{Row, row};
use abi::queue::{UD_HEADER, recv_op, send_op, send_wqe};
use abi::status::{cause, counter, wc};
use abi::table::qp_state;
use driver::qp::{QpSizes, Rts, Uc, Ud};
use driver::{Access, AddressHandle, AddressVector, Data, Flags, Qp};
use fabric::peer::{Deth, Operation, Packet, Request, ack, atomic, atomic_write, class, op, syndrome};

pub const ROWS: &[Row] = &[
    row!(
        "9.8.3",
        a_datagram_is_one_packet,
        "UD: a SEND is one packet with a DETH that names Q_Key and sender, goes to the QP and address that its work request names, asks for no ACK, and completes when it has left"
    ),
    row!(
        "9.8.3, A17",
        a_datagram_lands_behind_its_header,
        "UD: 40 bytes in front of the payload take the IP header, an IPv4 header the last 20 of them; the completion counts them, and names the sender and immediate data"
    ),
    row!(
        "9.8.3, C9-205",
        datagrams_that_do_not_fit_are_dropped,
        "UD: another Q_Key, more than the MTU, no receive: dropped without an answer, and the QP lives"
    ),
    row!(
        "9.8.3",
        the_psn_of_a_datagram_means_nothing,
        "UD: any PSN is taken, and nothing is answered, whatever AckReq says"
    ),
    row!(
        "9.8.3, C9-205",
        a_datagram_longer_than_its_receive,
        "UD: a message longer than its receive is dropped without an answer and nothing of it is written, the receive waits for the next one, and the QP lives"
    ),
    row!(
        "9.6",
        opcodes_of_other_transports_are_dropped,
        "UD and UC: packets of another transport, ACKs among them, are dropped"
    ),
    row!(
        "9.2, 9.6",
        every_opcode_at_its_least_length_on_uc_and_ud,
        "UD and UC: every opcode from 0 to 255 with its headers and nothing else, and with a byte less: all but a WRITE of nothing on UC is dropped without an answer, and the QP lives"
    ),
    row!(
        "9.4.4, 9.4.5, 9.6",
        unreliable_queue_pairs_have_no_reads_and_no_atomics,
        "UD and UC have no READs and no atomics: such a packet is dropped, such a work request fails and nothing is sent"
    ),
    row!(
        "9.8.2",
        unreliable_messages_are_cut_and_complete_when_they_have_left,
        "UC: messages are cut at the MTU, with immediate data and RETH as on RC, ask for no ACK, and complete when they have left"
    ),
    row!(
        "9.8.2, 9.8.3",
        nobody_is_asked_for_an_ack,
        "UD and UC: no packet asks for an ACK, however many there are and whatever is signaled"
    ),
    row!(
        "9.8.2, 9.9.3",
        a_message_longer_than_its_receive,
        "UC: a SEND longer than its receive ends the QP without an answer; its receive completes with LOC_LEN, those behind it are flushed, and nothing beyond the receive is written"
    ),
    row!(
        "9.8.2",
        a_gap_drops_the_message,
        "UC: a packet out of sequence drops its message; the next FIRST or ONLY, of any PSN, begins anew and takes the same receive"
    ),
    row!(
        "9.8.2",
        what_reliable_queue_pairs_refuse_is_dropped,
        "UC: opcodes out of sequence, lengths that break the rules, an operation that the QP excludes, a key that does not open (but for a message that has taken a receive by then, which ends with it and the QP), no receive: the message is dropped to its end, without an answer, and the QP lives"
    ),
    row!(
        "10.3.1",
        a_send_that_fails_stops_the_send_queue_alone,
        "UD and UC: a send that fails completes with its status and moves the QP to SQE; sends behind it are flushed, receives go on, and in RTS again sends are sent"
    ),
];

pub(super) const QKEY: u32 = 0x1111_2222;
pub(super) const SIZES: QpSizes = QpSizes::new(64, 16);
pub(super) const RECEIVE: u64 = 500;

/// A QP of datagrams, and the way to the peer.
fn datagrams(t: &Talk) -> (Qp<Rts, Ud>, AddressHandle) {
    datagrams_of(t, QKEY)
}

/// The same with a Q_Key.
pub(super) fn datagrams_of(t: &Talk, qkey: u32) -> (Qp<Rts, Ud>, AddressHandle) {
    let pd = &t.solo.host.pd;
    let qp = pd.create_ud_qp(&t.cq, &t.cq, SIZES).unwrap().init(qkey).unwrap().rtr().unwrap();
    let path = t.path();
    let to = AddressVector {
        ip: path.ip,
        mac: path.mac,
        gid: 0,
        traffic_class: path.traffic_class,
        priority: 0,
        source_port: path.source_port,
    };
    (qp.rts(t.terms.psn).unwrap(), pd.create_ah(&to).unwrap())
}

/// One of an unreliable connection with the peer.
pub(super) fn connection(t: &Talk, access: Access) -> Qp<Rts, Uc> {
    let qp = t.solo.host.pd.create_uc_qp(&t.cq, &t.cq, SIZES).unwrap().init(access).unwrap();
    qp.rtr(&t.path()).unwrap().rts(t.terms.psn).unwrap()
}

/// A datagram of the peer.
pub(super) fn datagram(qpn: u32, psn: u32, payload: Vec<u8>, imm: Option<[u8; 4]>) -> Packet {
    let deth = Some(Deth { qkey: QKEY, source: PEER_QPN });
    Packet {
        opcode: class::UD | (op::SEND_ONLY + u8::from(imm.is_some())),
        qpn,
        psn,
        deth,
        imm,
        payload,
        ..Packet::default()
    }
}

/// Packets of a message on an unreliable connection.
fn cut(t: &Talk, qpn: u32, psn: u32, request: Request) -> Vec<Packet> {
    let packets = t.cut(psn, request).into_iter();
    packets.map(|p| Packet { opcode: p.opcode | class::UC, ack_req: false, qpn, ..p }).collect()
}

/// What the driver calls a SEND or WRITE.
pub(super) fn operation_of(request: &Request) -> driver::Operation {
    let remote = |addr, rkey| driver::Remote { addr, rkey };
    match (request.operation, request.imm) {
        (Operation::Write { va, rkey }, None) => driver::Operation::Write(remote(va, rkey)),
        (Operation::Write { va, rkey }, Some(imm)) => driver::Operation::WriteImm(remote(va, rkey), imm),
        (_, None) => driver::Operation::Send,
        (_, Some(imm)) => driver::Operation::SendImm(imm),
    }
}

/// The oldest receive completes with so many bytes.
pub(super) fn received(t: &mut Talk, id: u64, len: usize, source: u32, opcode: u8, imm: Option<[u8; 4]>) {
    let c = t.cq.wait();
    assert_eq!((c.wr_id, c.status, c.len as usize), (RECEIVE + id, Ok(()), len), "{c:?}");
    assert_eq!((c.source, c.opcode, c.imm), (source, opcode, imm), "{c:?}");
}

/// Nobody has anything to say, nothing completes, and the QP still lives.
pub(super) fn lives<T: driver::qp::Transport>(t: &mut Talk, qp: &Qp<Rts, T>) {
    t.silence();
    assert_eq!(t.cq.poll().next(), None);
    assert_eq!(qp.query().unwrap().state, qp_state::RTS);
}

fn a_datagram_is_one_packet(t: &mut Talk) {
    let (mut qp, ah) = datagrams(t);
    let to = ah.to(PEER_QPN, 0x77);
    let deth = Some(Deth { qkey: 0x77, source: qp.qpn() });
    for (psn, len) in [0, 1, 2, 3, 5, 256, 1000, 4096].into_iter().enumerate() {
        let imm = (psn % 2 == 1).then_some([9, 8, 7, 6]);
        let operation = imm.map_or(driver::Operation::SendTo(to), |imm| driver::Operation::SendToImm(to, imm));
        t.host_writes(0, &data(len));
        let sges = [t.memory.sge(0, len / 2), t.memory.sge(len / 2, len - len / 2)];
        qp.post().add(psn as u64, operation, Data::Sges(&sges), Flags::SIGNALED | Flags::SOLICITED).unwrap();
        let opcode = class::UD | (op::SEND_ONLY + u8::from(imm.is_some()));
        let psn = psn as u32;
        t.nic(Packet { opcode, psn, deth, imm, solicited: true, payload: data(len), ..Packet::default() });
        t.completes(psn.into());
    }
    // Longer than the port takes.
    t.silence_for(4 * US);
    qp.post().add(9, driver::Operation::SendTo(to), Data::Sges(&[t.memory.sge(0, 4097)]), Flags::empty()).unwrap();
    let c = t.cq.wait();
    assert_eq!((c.wr_id, c.status.unwrap_err().status), (9, wc::LOC_LEN));
}

fn a_datagram_lands_behind_its_header(t: &mut Talk) {
    let (mut qp, _ah) = datagrams(t);
    for (id, len) in [0, 1, 2, 3, 5, 256, 1000, 4096].into_iter().enumerate() {
        let (id, imm) = (id as u64, (id % 2 == 1).then_some([9, 8, 7, 6]));
        // Cut within the header, within the payload.
        let head = if id % 3 == 0 { 27 } else { UD_HEADER + len / 2 };
        let room = 4096 + UD_HEADER;
        qp.post_recv(RECEIVE + id, &[t.memory.sge(0, head), t.memory.sge(head, room - head)]).unwrap();
        t.pass(2 * US);
        let packet = datagram(qp.qpn(), 17 + id as u32, data(len), imm);
        let frame = t.addressed(packet).frame(&t.peer.envelope);
        let (ip, at) = if t.is_ip6() { (40, 0) } else { (20, 20) };
        t.lands_data(at, &frame[14..14 + ip]);
        t.lands(UD_HEADER, len);
        t.frame(frame);
        let opcode = if imm.is_some() { recv_op::RECV_IMM } else { recv_op::RECV };
        received(t, id, UD_HEADER + len, PEER_QPN, opcode, imm);
        t.check_memory();
    }
    lives(t, &qp);
}

fn datagrams_that_do_not_fit_are_dropped(t: &mut Talk) {
    let (mut qp, _ah) = datagrams(t);
    let good = |psn| datagram(qp.qpn(), psn, data(100), None);
    t.peer(good(0));
    t.counts(counter::RX_UNRELIABLE, 1);
    lives(t, &qp);
    let good = good(0);
    qp.post_recv(RECEIVE, &[t.memory.sge(0, 5000)]).unwrap();
    t.pass(2 * US);
    t.peer(Packet { deth: Some(Deth { qkey: QKEY ^ 0x100, source: PEER_QPN }), ..good.clone() });
    t.counts(counter::RX_QP_PEER, 1);
    t.peer(Packet { pkey: 0x7ffe, ..good.clone() });
    t.counts(counter::RX_PKEY, 1);
    t.peer(datagram(qp.qpn(), 0, data(4097), None));
    t.counts(counter::RX_UNRELIABLE, 1);
    lives(t, &qp);
    let frame = t.addressed(good).frame(&t.peer.envelope);
    t.lands_data(20, &frame[14..34]);
    t.lands(UD_HEADER, 100);
    t.frame(frame);
    received(t, 0, UD_HEADER + 100, PEER_QPN, recv_op::RECV, None);
    lives(t, &qp);
}

fn the_psn_of_a_datagram_means_nothing(t: &mut Talk) {
    let (mut qp, _ah) = datagrams(t);
    for (id, psn) in [5, 5, 4, 0x80_0000, 1, 0xff_ffff].into_iter().enumerate() {
        qp.post_recv(RECEIVE + id as u64, &[t.memory.sge(0, 200)]).unwrap();
        t.pass(2 * US);
        let frame = t.addressed(Packet { ack_req: true, ..datagram(qp.qpn(), psn, data(10), None) });
        let frame = frame.frame(&t.peer.envelope);
        t.lands_data(20, &frame[14..34]);
        t.lands(UD_HEADER, 10);
        t.frame(frame);
        received(t, id as u64, UD_HEADER + 10, PEER_QPN, recv_op::RECV, None);
    }
    lives(t, &qp);
}

fn a_datagram_longer_than_its_receive(t: &mut Talk) {
    // The receive ends within the header area, behind it, within the payload.
    for room in [0, 39, UD_HEADER, 59] {
        let (mut qp, _ah) = datagrams(t);
        qp.post_recv(RECEIVE, &[t.memory.sge(0, room / 2), t.memory.sge(room / 2, room - room / 2)]).unwrap();
        t.pass(2 * US);
        for (psn, len) in [20, 4096].into_iter().enumerate() {
            t.peer(datagram(qp.qpn(), psn as u32, data(len), None));
            t.counts(counter::RX_UNRELIABLE, 1);
        }
        lives(t, &qp);
        t.check_memory();
        // One that fits takes the same receive, for as long a message as it holds.
        let Some(len) = room.checked_sub(UD_HEADER) else { continue };
        let frame = t.addressed(datagram(qp.qpn(), 2, data(len), None)).frame(&t.peer.envelope);
        t.lands_data(20, &frame[14..34]);
        t.lands(UD_HEADER, len);
        t.frame(frame);
        received(t, 0, room, PEER_QPN, recv_op::RECV, None);
        lives(t, &qp);
    }
}

fn opcodes_of_other_transports_are_dropped(t: &mut Talk) {
    let (qp, _ah) = datagrams(t);
    let connected = connection(t, Access::all());
    let (ud, uc) = (qp.qpn(), connected.qpn());
    let write = t.only(0, t.write(0, 4));
    t.peer(Packet { qpn: ud, ..write.clone() });
    t.peer(Packet { qpn: ud, opcode: write.opcode | class::UC, ..write.clone() });
    t.peer(Packet { qpn: uc, ..write });
    t.peer(datagram(uc, 0, data(4), None));
    t.peer(Packet { qpn: t.qp.qpn(), ..datagram(uc, 0, data(4), None) });
    t.counts(counter::RX_QP_TYPE, 5);
    for qpn in [ud, uc] {
        t.peer(Packet { qpn, ..ack(0, syndrome::ACK, 1) });
        t.peer(Packet { qpn, ..ack(0, syndrome::REMOTE_ACCESS, 1) });
    }
    t.counts(counter::RX_QP_TYPE, 4);
    lives(t, &qp);
    lives(t, &connected);
}

fn every_opcode_at_its_least_length_on_uc_and_ud(t: &mut Talk) {
    use counter::*;
    let (qp, _ah) = datagrams(t);
    let connected = connection(t, Access::all());
    for (qpn, own) in [(connected.qpn(), 0x20..=0x2b), (qp.qpn(), 0x64..=0x65)] {
        for opcode in 0..=255 {
            let bare = Packet { opcode, qpn, ack_req: true, payload: vec![0; extended(opcode)], ..Packet::default() };
            a_byte_less(t, &bare);
            t.peer(bare);
            let verdict = match opcode {
                // Of no bytes, by a key that nobody looks at.
                0x2a if own.contains(&0x2a) => RX_ACCEPTED,
                // With a Q_Key of 0.
                0x64 | 0x65 if own.contains(&0x64) => RX_QP_PEER,
                // Without a FIRST or too short for one, or without a receive.
                _ if own.contains(&opcode) => RX_UNRELIABLE,
                0x81 => RX_CNP,
                0x00..=0x14 | 0x16 | 0x17 | 0x1d | 0x20..=0x2b | 0x64 | 0x65 => RX_QP_TYPE,
                _ => RX_OPCODE,
            };
            if verdict != RX_ACCEPTED {
                t.counts(verdict, 1);
            }
        }
    }
    lives(t, &qp);
    lives(t, &connected);
}

fn unreliable_queue_pairs_have_no_reads_and_no_atomics(t: &mut Talk) {
    let (qp, _ah) = datagrams(t);
    let connected = connection(t, Access::all());
    let (va, rkey) = (t.memory.addr(), t.memory.rkey());
    let read = t.only(0, t.read(0, 8));
    let [swap, add] = [op::COMPARE_SWAP, op::FETCH_ADD].map(|o| atomic(o, 0, va, rkey, [1, 0]));
    let asked = [read, swap, add, atomic_write(0, va, rkey, [1; 8])];
    for packet in &asked {
        for (qpn, class) in [(qp.qpn(), class::UD), (connected.qpn(), class::UC)] {
            t.peer(Packet { qpn, opcode: packet.opcode | class, ..packet.clone() });
        }
    }
    t.counts(counter::RX_OPCODE, 8);
    lives(t, &qp);
    lives(t, &connected);
    t.check_memory();
    for opcode in [send_op::READ, send_op::COMPARE_SWAP, send_op::FETCH_ADD, send_op::ATOMIC_WRITE] {
        let mut block = [0; 64];
        send_wqe::BLOCKS.set(&mut block, 1);
        send_wqe::OPCODE.set(&mut block, opcode.into());
        send_wqe::LENGTH.set(&mut block, 8);
        send_wqe::RKEY.set(&mut block, rkey.into());
        send_wqe::REMOTE_VA.set(&mut block, va);
        let mut connected = connection(t, Access::all());
        connected.post().add_raw(1, &[block]).unwrap();
        let (mut qp, _ah) = datagrams(t);
        qp.post().add_raw(1, &[block]).unwrap();
        for _ in 0..2 {
            let e = t.cq.wait().status.unwrap_err();
            assert_eq!((e.status, e.cause), (wc::LOC_QP_OP, cause::WQE_OPCODE), "operation {opcode}");
        }
    }
    // The driver does not even try.
    let (remote, sge) = (driver::Remote { addr: va, rkey }, [t.memory.sge(0, 8)]);
    let mut connected = connected;
    for operation in [
        driver::Operation::Read(remote),
        driver::Operation::AtomicAdd { remote, add: 1 },
        driver::Operation::AtomicCas { remote, compare: 1, swap: 2 },
        driver::Operation::AtomicWrite(remote),
    ] {
        assert!(connected.post().add(1, operation, Data::Sges(&sge), Flags::SIGNALED).is_err());
    }
    t.silence();
}

fn unreliable_messages_are_cut_and_complete_when_they_have_left(t: &mut Talk) {
    let mut qp = connection(t, Access::all());
    let mut psn = 0;
    for (id, len) in [0, 1, 255, 256, 257, 1000].into_iter().enumerate() {
        for request in
            [to(len), Request::send(data(len)), to(len).imm([1, 2, 3, 4]), Request::send(data(len)).imm([5; 4])]
        {
            t.host_writes(0, &data(len));
            let operation = operation_of(&request);
            let local = [t.memory.sge(0, len)];
            qp.post().add(id as u64, operation, Data::Sges(&local), Flags::SIGNALED).unwrap();
            let packets: Vec<_> = cut(t, 0, psn, request);
            psn += packets.len() as u32;
            t.nic_all(packets);
            t.completes(id as u64);
        }
    }
    lives(t, &qp);
}

fn nobody_is_asked_for_an_ack(t: &mut Talk) {
    let mut qp = connection(t, Access::all());
    const LEN: usize = 70 * 256;
    t.host_writes(0, &data(LEN));
    let mut psn = 0;
    for (id, flags) in [Flags::empty(), Flags::SIGNALED].into_iter().enumerate() {
        for request in [to(LEN), Request::send(data(LEN))] {
            let local = [t.memory.sge(0, LEN)];
            qp.post().add(id as u64, operation_of(&request), Data::Sges(&local), flags).unwrap();
            // All are cut without AckReq.
            t.nic_all(cut(t, 0, psn, request));
            psn += 70;
            if flags.contains(Flags::SIGNALED) {
                t.completes(id as u64);
            }
        }
    }
    lives(t, &qp);
    let (mut ud, ah) = datagrams(t);
    let target = driver::Operation::SendTo(ah.to(PEER_QPN, QKEY));
    let mut batch = ud.post();
    for id in 0..40 {
        let flags = if id % 8 == 7 { Flags::SIGNALED } else { Flags::empty() };
        batch.add(id, target, Data::Inline(&[1; 20]), flags).unwrap();
    }
    batch.ring();
    for psn in 0..40 {
        let p = t.heard("a datagram");
        assert_eq!((p.opcode, p.psn, p.ack_req), (class::UD | op::SEND_ONLY, psn, false));
    }
    (7..40).step_by(8).for_each(|id| t.completes(id));
    lives(t, &ud);
}

fn a_message_longer_than_its_receive(t: &mut Talk) {
    for (len, room) in [(1_usize, 0), (100, 99), (256, 255), (257, 256), (600, 520), (600, 255)] {
        let mut qp = connection(t, Access::all());
        let n = qp.qpn();
        qp.post_recv(RECEIVE, &[t.memory.sge(0, room)]).unwrap();
        qp.post_recv(RECEIVE + 1, &[t.memory.sge(2000, 100)]).unwrap();
        t.pass(2 * US);
        let (whole, over) = (room / 256, len.div_ceil(256) - room / 256 - 1);
        t.peer_all(cut(t, n, 0, Request::send(data(len))));
        t.lands(0, 256 * whole);
        t.counts(counter::RX_UNRELIABLE, 1);
        // The rest of it, and what would be sound.
        t.counts(counter::RX_QP_STATE, over as u64 + 1);
        let c = t.cq.wait();
        let e = driver::WcError { status: wc::LOC_LEN, cause: cause::RECEIVE_TOO_SHORT };
        assert_eq!((c.wr_id, c.status), (RECEIVE, Err(e)), "{len} bytes into {room}");
        t.peer_all(cut(t, n, 9, Request::send(data(10))));
        t.silence();
        let c = t.cq.wait();
        assert_eq!((c.wr_id, c.status.unwrap_err().status), (RECEIVE + 1, wc::WR_FLUSH), "{len} bytes into {room}");
        assert_eq!(qp.query().unwrap().state, qp_state::ERR);
        t.check_memory();
    }
}

fn a_gap_drops_the_message(t: &mut Talk) {
    let mut qp = connection(t, Access::all());
    let n = qp.qpn();
    qp.post_recv(RECEIVE, &[t.memory.sge(0, 2000)]).unwrap();
    qp.post_recv(RECEIVE + 1, &[t.memory.sge(2000, 2000)]).unwrap();
    t.pass(2 * US);
    // The second of four packets is lost; then the last of another message.
    let lost = cut(t, n, 0, Request::send(data(900)));
    t.peer_all([0, 2, 3].map(|i| lost[i].clone()));
    t.lands_data(0, &data(256));
    t.counts(counter::RX_UNRELIABLE, 2);
    t.peer_all(cut(t, n, 77, Request::send(data(600))).into_iter().take(2));
    t.lands(0, 512);
    // A message in its place, which is not its PSN's: all the same.
    t.peer_all(cut(t, n, 40, Request::send(data(700))));
    t.lands(0, 700);
    received(t, 0, 700, 0, recv_op::RECV, None);
    // Without a message in front of it a MIDDLE or LAST is nothing.
    t.peer_all(cut(t, n, 43, Request::send(data(700))).into_iter().skip(1));
    t.counts(counter::RX_UNRELIABLE, 2);
    // WRITEs likewise; what came before the gap stays.
    let request = t.write(5000, 700).imm([1, 2, 3, 4]);
    let lost = cut(t, n, 100, request);
    t.peer_all([0, 2].map(|i| lost[i].clone()));
    t.lands_data(5000, &data(256));
    t.counts(counter::RX_UNRELIABLE, 1);
    let request = t.write(6000, 700).imm([1, 2, 3, 4]);
    t.peer_all(cut(t, n, 7, request));
    t.lands(6000, 700);
    received(t, 1, 700, 0, recv_op::RECV_WRITE_IMM, Some([1, 2, 3, 4]));
    lives(t, &qp);
}

fn what_reliable_queue_pairs_refuse_is_dropped(t: &mut Talk) {
    let mut qp = connection(t, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let n = qp.qpn();
    let drops = |t: &mut Talk, packets: Vec<Packet>| {
        t.counts(counter::RX_UNRELIABLE, packets.len() as u64);
        t.peer_all(packets);
    };
    // No receive; a MIDDLE that does not fill the MTU, and what is behind it; a LAST of another kind.
    let sends = cut(t, n, 0, Request::send(data(600)));
    drops(t, sends);
    lives(t, &qp);
    let mut short = cut(t, n, 9, t.write(0, 700));
    short[1].payload.truncate(252);
    t.peer(short.remove(0));
    t.lands(0, 256);
    drops(t, short);
    let mut mixed = cut(t, n, 20, t.write(300, 300));
    mixed[1].opcode = class::UC | op::SEND_LAST;
    t.peer(mixed.remove(0));
    t.lands_data(300, &data(256));
    drops(t, mixed);
    // A key that is none: all of the message, although its rest by itself would land.
    let bad = Request::write(t.memory.addr(), 0xdead_be00, data(600));
    let bad = cut(t, n, 30, bad);
    drops(t, bad);
    let end = t.memory.addr() + t.memory.len() as u64;
    let beyond = cut(t, n, 40, Request::write(end - 300, t.memory.rkey(), data(600)));
    drops(t, beyond);
    lives(t, &qp);
    // And the next one is good.
    qp.post_recv(RECEIVE, &[t.memory.sge(2000, 700)]).unwrap();
    t.pass(2 * US);
    let good = cut(t, n, 50, t.write(1000, 600));
    t.peer_all(good);
    t.lands(1000, 600);
    let good = cut(t, n, 53, Request::send(data(600)));
    t.peer_all(good);
    t.lands(2000, 600);
    received(t, 0, 600, 0, recv_op::RECV, None);
    lives(t, &qp);
    let closed = connection(t, Access::LOCAL_WRITE);
    let writes = cut(t, closed.qpn(), 0, t.write(0, 600));
    drops(t, writes);
    lives(t, &closed);
}

fn a_send_that_fails_stops_the_send_queue_alone(t: &mut Talk) {
    let (mut qp, ah) = datagrams(t);
    let bad = driver::Sge { lkey: 0, ..t.memory.sge(0, 4) };
    let operation = driver::Operation::SendTo(ah.to(PEER_QPN, QKEY));
    qp.post().add(1, operation, Data::Sges(&[bad]), Flags::empty()).unwrap();
    let c = t.cq.wait();
    assert_eq!((c.wr_id, c.status.unwrap_err().status), (1, wc::LOC_PROT));
    let behind = |qp: &mut Qp<Rts, Ud>, id| {
        qp.post().add(id, operation, Data::Inline(&[9; 10]), Flags::SIGNALED).unwrap();
    };
    behind(&mut qp, 2);
    let c = t.cq.wait();
    assert_eq!((c.wr_id, c.status.unwrap_err().status), (2, wc::WR_FLUSH));
    assert_eq!(qp.query().unwrap().state, qp_state::SQE);
    t.silence();
    // It receives.
    qp.post_recv(RECEIVE, &[t.memory.sge(3000, 100)]).unwrap();
    t.pass(2 * US);
    let frame = t.addressed(datagram(qp.qpn(), 7, data(20), None)).frame(&t.peer.envelope);
    t.lands_data(3020, &frame[14..34]);
    t.lands_data(3000 + UD_HEADER, &data(20));
    t.frame(frame);
    received(t, 0, UD_HEADER + 20, PEER_QPN, recv_op::RECV, None);
    let Ok(stopped) = qp.stopped() else { panic!("it has stopped") };
    let mut qp = stopped.resume().unwrap();
    behind(&mut qp, 3);
    let p = t.heard("what is sent in RTS again");
    assert_eq!((p.opcode, p.payload), (class::UD | op::SEND_ONLY, vec![9; 10]));
    let c = t.cq.wait();
    assert_eq!((c.wr_id, c.status), (3, Ok(())));
    lives(t, &qp);
}
