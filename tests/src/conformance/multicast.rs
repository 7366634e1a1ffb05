//! Datagrams to multicast groups (IBTA 9.6.1, 10.5.2): who gets a copy, and what the multicast QPN is for.

use super::talk::{Case, PEER_QPN, Talk, data};
use super::unreliable::{QKEY, RECEIVE, SIZES, datagram, lives, received};
use super::{Row, row};
use abi::queue::{UD_HEADER, recv_op};
use abi::status::counter;
use abi::wire::QPN_MULTICAST;
use driver::qp::{Rts, Ud};
use driver::{AddressVector, Data, Flags, Group, Qp};
use fabric::peer::{Deth, Envelope, Packet, class, op};

pub const ROWS: &[Row] = &[
    row!(
        "10.5.2",
        a_group_gives_a_copy_to_each_member,
        "UD: a datagram to a multicast address goes once to each QP that is attached to the group, header area included, and to none that is not, or no more"
    ),
    row!(
        "9.6.1, 10.2.5",
        each_member_checks_its_copy,
        "UD: each member of a group checks Q_Key, P_Key and its receive for itself, and drops its copy alone"
    ),
    row!(
        "9.6.1",
        the_multicast_qpn_belongs_to_groups,
        "QPN 0xffffff without a multicast address, another QPN with one, and all but datagrams to one are dropped"
    ),
    row!(
        "10.5.2, A17",
        a_datagram_to_a_group_names_all_its_queue_pairs,
        "UD: a datagram to a group has its IP address, the MAC that belongs to that, and QPN 0xffffff"
    ),
];

/// Bytes between the memories of members.
const ROOM: usize = 6000;

/// 239.129.2.3 has the MAC of 239.1.2.3.
fn group() -> Group {
    Group { ip: [239, 129, 2, 3].into(), vlan: None }
}
const MAC: [u8; 6] = [1, 0, 0x5e, 1, 2, 3];

/// A member of the group, if it is to be one, with this Q_Key.
fn member(t: &Talk, attached: bool, qkey: u32) -> Qp<Rts, Ud> {
    let qp = t.solo.host.pd.create_ud_qp(&t.cq, &t.cq, SIZES).unwrap().init(qkey).unwrap().rtr().unwrap();
    if attached {
        qp.attach(group()).unwrap();
    }
    qp.rts(t.terms.psn).unwrap()
}

/// From the peer to the group.
fn way(t: &Talk) -> Envelope {
    let mut way = t.peer.envelope;
    (way.macs[1], way.ips[1]) = (MAC, group().ip);
    way
}

fn to_all(psn: u32, len: usize) -> Packet {
    datagram(QPN_MULTICAST, psn, data(len), None)
}

fn a_group_gives_a_copy_to_each_member(t: &mut Talk) {
    let mut qps: Vec<_> = (0..4).map(|i| member(t, i < 3, QKEY)).collect();
    for (round, len) in [0, 1, 100, 4096].into_iter().enumerate() {
        let frame = t.addressed(to_all(round as u32, len)).frame(&way(t));
        for (i, qp) in qps.iter_mut().enumerate() {
            qp.post_recv(RECEIVE + i as u64, &[t.memory.sge(i * ROOM, ROOM)]).unwrap();
        }
        t.pass(1000);
        // The first round goes to all; then the second one leaves.
        let left = [0, 2];
        let members: &[usize] = if round == 0 { &[0, 1, 2] } else { &left };
        for i in members {
            t.lands_data(i * ROOM + 20, &frame[14..34]);
            t.lands(i * ROOM + UD_HEADER, len);
        }
        t.frame(frame);
        t.copied(members.len());
        for i in members {
            received(t, *i as u64, UD_HEADER + len, PEER_QPN, recv_op::RECV, None);
        }
        t.check_memory();
        if round == 0 {
            qps[1].detach(group()).unwrap();
        }
        lives(t, &qps[1]);
    }
    // When all have left nobody is addressed any more.
    [0, 2].iter().for_each(|i| qps[*i].detach(group()).unwrap());
    t.frame(t.addressed(to_all(9, 10)).frame(&way(t)));
    t.counts(counter::RX_ADDRESS, 1);
    lives(t, &qps[0]);
}

fn each_member_checks_its_copy(t: &mut Talk) {
    let mut qps = [member(t, true, QKEY ^ 1), member(t, true, QKEY), member(t, true, QKEY)];
    qps[0].post_recv(RECEIVE, &[t.memory.sge(0, ROOM)]).unwrap();
    qps[1].post_recv(RECEIVE + 1, &[t.memory.sge(ROOM, ROOM)]).unwrap();
    t.pass(1000);
    {
        let _case = Case("a P_Key of none");
        let frame = t.addressed(Packet { pkey: 0x1234, ..to_all(0, 9) }).frame(&way(t));
        t.frame(frame);
        t.copied(3);
        t.counts(counter::RX_QP_PEER, 1);
        t.counts(counter::RX_PKEY, 2);
        lives(t, &qps[1]);
    }
    {
        let _case = Case("a Q_Key of one");
        let deth = Some(Deth { qkey: QKEY ^ 1, source: PEER_QPN });
        let frame = t.addressed(Packet { deth, ..to_all(1, 9) }).frame(&way(t));
        t.lands_data(20, &frame[14..34]);
        t.lands(UD_HEADER, 9);
        t.frame(frame);
        t.copied(3);
        t.counts(counter::RX_QP_PEER, 2);
        received(t, 0, UD_HEADER + 9, PEER_QPN, recv_op::RECV, None);
        lives(t, &qps[0]);
    }
    {
        let _case = Case("a receive of one, and the Q_Key of two");
        let frame = t.addressed(to_all(2, 30)).frame(&way(t));
        t.lands_data(ROOM + 20, &frame[14..34]);
        t.lands(ROOM + UD_HEADER, 30);
        t.frame(frame);
        t.copied(3);
        t.counts(counter::RX_QP_PEER, 1);
        t.counts(counter::RX_UNRELIABLE, 1);
        received(t, 1, UD_HEADER + 30, PEER_QPN, recv_op::RECV, None);
        lives(t, &qps[2]);
    }
}

fn the_multicast_qpn_belongs_to_groups(t: &mut Talk) {
    let mut qp = member(t, true, QKEY);
    qp.post_recv(RECEIVE, &[t.memory.sge(0, ROOM)]).unwrap();
    t.pass(1000);
    let own = t.qp.qpn();
    let write = t.only(0, t.write(9000, 50));
    let mut frames = vec![t.addressed(to_all(0, 10)).frame(&t.peer.envelope)];
    for packet in [
        datagram(qp.qpn(), 0, data(10), None),
        datagram(1, 0, data(10), None),
        Packet { opcode: op::SEND_ONLY, deth: None, ..to_all(0, 10) },
        Packet { qpn: QPN_MULTICAST, ..write.clone() },
        Packet { qpn: own, ..write.clone() },
        Packet { qpn: QPN_MULTICAST, opcode: write.opcode | class::UC, ..write },
        Packet { qpn: QPN_MULTICAST, ..super::talk::acked(0, 0) },
    ] {
        frames.push(t.addressed(packet).frame(&way(t)));
    }
    for frame in frames {
        t.frame(frame);
        t.counts(counter::RX_ADDRESS, 1);
        lives(t, &qp);
        t.check_memory();
    }
    // The receive is still there.
    let frame = t.addressed(to_all(1, 10)).frame(&way(t));
    t.lands_data(20, &frame[14..34]);
    t.lands(UD_HEADER, 10);
    t.frame(frame);
    received(t, 0, UD_HEADER + 10, PEER_QPN, recv_op::RECV, None);
    lives(t, &qp);
}

fn a_datagram_to_a_group_names_all_its_queue_pairs(t: &mut Talk) {
    let mut qp = member(t, false, QKEY);
    let path = t.path();
    let ah = AddressVector {
        ip: group().ip,
        mac: [0; 6],
        gid: 0,
        traffic_class: path.traffic_class,
        priority: 0,
        source_port: path.source_port,
    };
    let ah = t.solo.host.pd.create_ah(&ah).unwrap();
    let right = t.peer.envelope;
    // The peer stands for the group: it looks at the addresses of what it takes.
    (t.peer.envelope.macs[0], t.peer.envelope.ips[0]) = (MAC, group().ip);
    for (psn, len) in [0, 1, 4096].into_iter().enumerate() {
        t.host_writes(0, &data(len));
        let operation = driver::Operation::SendTo(ah.to_group(0x77));
        qp.post().add(psn as u64, operation, Data::Sges(&[t.memory.sge(0, len)]), Flags::SIGNALED).unwrap();
        t.completes(psn as u64);
        t.pass(1000);
        let (_, heard) = t.peer.take().expect("a datagram");
        let deth = Some(Deth { qkey: 0x77, source: qp.qpn() });
        let is = (heard.opcode, heard.qpn, heard.deth, heard.payload);
        assert_eq!(is, (class::UD | op::SEND_ONLY, QPN_MULTICAST, deth, data(len)));
    }
    t.peer.envelope = right;
}
