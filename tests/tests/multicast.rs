//! Multicast of datagrams between two hosts: who gets a copy, who does not, and that nobody else is disturbed.

use abi::queue::{UD_HEADER, recv_op};
use abi::status::counter;
use abi::table::MEMBERS;
use abi::wire::QPN_MULTICAST;
use driver::{AddressHandle, AddressVector, Completion, Data, Destination, Gid, Group, Operation, Port};
use ferroce_tests::datagrams::{LEN, QKEY, SIZES, Talker, handle, header, talker, vector};
use ferroce_tests::{Bystander, GUARD, assert_sound, bytes, inject, is_guard, noise, pass, region, seal, wait};
use rand::RngExt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use testbed::{Setup, Testbed};

fn group(bed: &Testbed) -> Group {
    let ip: IpAddr = if bed.hosts[0].gid.ip.is_ipv6() { "ff1e::1:ff02:304" } else { "239.129.2.3" }.parse().unwrap();
    Group { ip, vlan: bed.hosts[0].gid.vlan }
}

/// A handle for a group, without a MAC: that follows from the address.
fn to(bed: &Testbed, from: usize, group: Group) -> AddressHandle {
    let all = AddressVector { ip: group.ip, mac: [0; 6], ..vector(&bed.hosts[from].gid) };
    bed.hosts[from].pd.create_ah(&all).unwrap()
}

fn counted(bed: &Testbed, host: usize, k: usize) -> u64 {
    bed.hosts[host].device.counter(k)
}

/// Posts a receive of all its memory, which is all guards then.
fn ready(t: &mut Talker, id: u64) {
    t.memory.write(0, &[GUARD; LEN]);
    t.qp.post_recv(id, &[t.memory.sge(0, LEN)]).unwrap();
}

/// A datagram came as it should, and nothing but it.
fn holds(t: &Talker, c: &Completion, data: &[u8], from: &Gid, to: IpAddr, imm: Option<[u8; 4]>) {
    assert_eq!((c.status, c.len as usize, c.imm), (Ok(()), UD_HEADER + data.len(), imm), "{c:?}");
    assert_eq!(c.opcode, if imm.is_some() { recv_op::RECV_IMM } else { recv_op::RECV });
    let all = bytes(&t.memory);
    header(&all[..UD_HEADER], from, to, data.len(), imm.is_some());
    assert_eq!(all[UD_HEADER..][..data.len()], *data);
    assert!(is_guard(&t.memory, UD_HEADER + data.len()..LEN));
}

/// As many members as a group can have get each datagram once, whole, with its header; who is not attached gets nothing.
fn copies(setup: Setup) {
    let bed = Testbed::new(&setup).unwrap();
    let group = group(&bed);
    let mut sender = talker(&bed.hosts[0], 1);
    let mut members: Vec<_> = (0..MEMBERS).map(|_| talker(&bed.hosts[1], QKEY)).collect();
    let mut stranger = talker(&bed.hosts[1], QKEY);
    members.iter().for_each(|m| m.qp.attach(group).unwrap());
    let ah = to(&bed, 0, group);
    ready(&mut stranger, 99);
    let mut rng = verilate::rng(8);
    for round in 0..verilate::scale(10) {
        let len = [0, 1, 3, 64, 4096, 1000, rng.random_range(0..=4096)][round % 7];
        let data: Vec<u8> = (0..len).map(noise(round as u64)).collect();
        let source = region(&bed.hosts[0].pd, LEN, driver::Access::all(), noise(round as u64));
        (0..MEMBERS).for_each(|i| ready(&mut members[i], i as u64));
        pass(&bed, 20);
        let imm = (round % 2 == 1).then_some([1, 2, 3, round as u8]);
        let all = ah.to_group(QKEY);
        let operation = imm.map_or(Operation::SendTo(all), |imm| Operation::SendToImm(all, imm));
        sender.send(5, operation, Data::Sges(&[source.sge(0, len)]));
        sender.sent(&bed, 5);
        for (i, m) in members.iter_mut().enumerate() {
            let c = wait(&bed, &mut m.cq, "a copy");
            assert_eq!((c.wr_id, c.source), (i as u64, sender.qp.qpn()));
            holds(m, &c, &data, &bed.hosts[0].gid, group.ip, imm);
        }
        pass(&bed, 50);
        assert!(members.iter_mut().chain([&mut stranger]).all(|m| m.cq.poll().next().is_none()), "one copy each");
    }
    let rounds = verilate::scale(10) as u64;
    assert_eq!(counted(&bed, 1, counter::RX_ACCEPTED), rounds * MEMBERS as u64, "each copy has its verdict");
    assert_eq!(counted(&bed, 0, counter::TX_FRAMES), rounds, "on the wire there is one");
    assert_sound(&bed, "copies");
}

#[test]
fn each_member_gets_each_datagram_once() {
    copies(Setup::small());
}

#[test]
fn each_member_gets_each_datagram_once_over_ip6() {
    copies(Setup { ip6: true, ..Setup::default() });
}

#[test]
fn each_member_gets_each_datagram_once_in_a_vlan() {
    copies(Setup { vlan: Some(7), ..Setup::small() });
}

/// A member that cannot take a copy loses it alone.
#[test]
fn a_member_that_cannot_take_a_copy_loses_it_alone() {
    let bed = Testbed::new(&Setup::small()).unwrap();
    let group = group(&bed);
    let mut sender = talker(&bed.hosts[0], 1);
    let ah = to(&bed, 0, group);
    // With a receive, without, with a short one, with another Q_Key, in ERR, in RESET, and with a receive again.
    let mut members: Vec<_> = (0..7).map(|i| talker(&bed.hosts[1], if i == 3 { QKEY + 1 } else { QKEY })).collect();
    members.iter().for_each(|m| m.qp.attach(group).unwrap());
    for i in [0, 3, 4, 6] {
        ready(&mut members[i], 1);
    }
    let short = members[2].memory.sge(0, UD_HEADER + 19);
    members[2].qp.post_recv(1, &[short]).unwrap();
    members[4].qp.fail().unwrap();
    assert!(wait(&bed, &mut members[4].cq, "a flushed receive").status.is_err());
    let fallen = members.remove(5);
    let fallen = fallen.qp.reset().unwrap();
    pass(&bed, 20);
    let before = [counter::RX_ACCEPTED, counter::RX_UNRELIABLE, counter::RX_QP_PEER, counter::RX_QP_STATE];
    let before = before.map(|k| (k, counted(&bed, 1, k)));
    sender.send(2, Operation::SendTo(ah.to_group(QKEY)), Data::Inline(&[7; 20]));
    sender.sent(&bed, 2);
    for i in [0, 5] {
        let c = wait(&bed, &mut members[i].cq, "a copy");
        holds(&members[i], &c, &[7; 20], &bed.hosts[0].gid, group.ip, None);
    }
    pass(&bed, 100);
    assert!((1..5).all(|i| members[i].cq.poll().next().is_none() && is_guard(&members[i].memory, 0..LEN)));
    let after = before.map(|(k, n)| counted(&bed, 1, k) - n);
    assert_eq!(after, [2, 2, 1, 2], "accepted; no receive or a short one; another Q_Key; not receiving");
    // The short one takes a shorter one, and who is brought up again is a member still.
    let mut risen = Talker {
        qp: fallen.init(QKEY).unwrap().rtr().unwrap().rts(0).unwrap(),
        cq: bed.hosts[1].device.create_cq(16, &bed.hosts[1].eq).unwrap(),
        memory: region(&bed.hosts[1].pd, LEN, driver::Access::all(), |_| GUARD),
    };
    assert!(risen.qp.attach(group).unwrap_err().to_string().contains("attached to the group already"));
    sender.send(3, Operation::SendTo(ah.to_group(QKEY)), Data::Inline(&[8; 19]));
    let c = wait(&bed, &mut members[2].cq, "a shorter one");
    assert_eq!((c.status, c.len as usize), (Ok(()), UD_HEADER + 19));
    pass(&bed, 50);
    assert_eq!(risen.cq.poll().next(), None, "it posted nothing");
    assert_sound(&bed, "members that cannot");
}

/// Groups of one QP, members of several groups, groups that differ by their VLAN or address alone; who is not attached hears nothing.
#[test]
fn groups_do_not_hear_each_other() {
    let bed = Testbed::new(&Setup::small()).unwrap();
    let groups = ["239.1.1.1", "239.129.1.1", "224.5.5.5"].map(|ip| Group { ip: ip.parse().unwrap(), vlan: None });
    let mut sender = talker(&bed.hosts[0], QKEY);
    let ahs = groups.map(|g| to(&bed, 0, g));
    let mut members: Vec<_> = (0..3).map(|_| talker(&bed.hosts[1], QKEY)).collect();
    // Member i hears group i and the next one. The first two groups have one MAC.
    for (i, m) in members.iter().enumerate() {
        m.qp.attach(groups[i]).unwrap();
        m.qp.attach(groups[(i + 1) % 3]).unwrap();
        if i == 0 {
            // The same address in a VLAN is another group.
            m.qp.attach(Group { vlan: Some(9), ..groups[2] }).unwrap();
        }
    }
    for g in 0..3 {
        members.iter_mut().for_each(|m| ready(m, g as u64));
        pass(&bed, 20);
        sender.send(1, Operation::SendTo(ahs[g].to_group(QKEY)), Data::Inline(&[g as u8; 9]));
        sender.sent(&bed, 1);
        pass(&bed, 100);
        for (i, m) in members.iter_mut().enumerate() {
            let c = m.cq.poll().next();
            assert_eq!(c.is_some(), g == i || g == (i + 1) % 3, "member {i}, group {g}");
            if let Some(c) = c {
                holds(m, &c, &[g as u8; 9], &bed.hosts[0].gid, groups[g].ip, None);
            } else {
                // Its receive is still there.
                m.qp.fail().unwrap();
                assert!(wait(&bed, &mut m.cq, "flushed").status.is_err());
                let qp = std::mem::replace(m, talker(&bed.hosts[1], QKEY)).qp;
                drop(qp);
                m.qp.attach(groups[i]).unwrap();
                m.qp.attach(groups[(i + 1) % 3]).unwrap();
            }
        }
    }
    assert_sound(&bed, "groups");
}

/// QPs of the sender's host that are attached get copies too, the sender itself among them, with and without a link; and so does the link.
#[test]
fn members_on_the_senders_host_get_copies_too() {
    for setup in [Setup::small(), Setup { ip6: true, ..Setup::default() }] {
        let bed = Testbed::new(&setup).unwrap();
        let group = group(&bed);
        let ah = to(&bed, 0, group);
        let mut here = [0, 1].map(|_| talker(&bed.hosts[0], QKEY));
        let mut there = talker(&bed.hosts[1], QKEY);
        here.iter().chain([&there]).for_each(|m| m.qp.attach(group).unwrap());
        for link in [true, false, true] {
            bed.sim().plug(0, link);
            let lost = counted(&bed, 0, counter::TX_LINK_DOWN);
            here.iter_mut().for_each(|m| ready(m, 1));
            if link {
                ready(&mut there, 1);
            }
            pass(&bed, 40);
            here[0].send(2, Operation::SendTo(ah.to_group(QKEY)), Data::Inline(&[3; 100]));
            let mut own = [(); 2].map(|()| wait(&bed, &mut here[0].cq, "sent, and a copy"));
            own.sort_by_key(|c| c.wr_id);
            assert_eq!((own[1].wr_id, own[1].status), (2, Ok(())));
            holds(&here[0], &own[0], &[3; 100], &bed.hosts[0].gid, group.ip, None);
            let c = wait(&bed, &mut here[1].cq, "a copy of the neighbour");
            holds(&here[1], &c, &[3; 100], &bed.hosts[0].gid, group.ip, None);
            if link {
                let c = wait(&bed, &mut there.cq, "a copy over the link");
                holds(&there, &c, &[3; 100], &bed.hosts[0].gid, group.ip, None);
            }
            assert_eq!(counted(&bed, 0, counter::TX_LINK_DOWN) - lost, u64::from(!link));
        }
        assert_eq!(counted(&bed, 0, counter::TX_LOOPBACK), 3);
        // When nobody here listens any more, nothing turns round.
        here.iter().for_each(|m| m.qp.detach(group).unwrap());
        ready(&mut there, 1);
        pass(&bed, 20);
        here[0].send(3, Operation::SendTo(ah.to_group(QKEY)), Data::Inline(&[4; 10]));
        here[0].sent(&bed, 3);
        let c = wait(&bed, &mut there.cq, "a copy over the link");
        holds(&there, &c, &[4; 10], &bed.hosts[0].gid, group.ip, None);
        assert_eq!(counted(&bed, 0, counter::TX_LOOPBACK), 3);
        assert_sound(&bed, "members on both hosts");
    }
}

/// QPs come and go while datagrams come: each gets what comes while it is attached, none twice, and one that has ended is no member.
#[test]
fn members_come_and_go_under_traffic() {
    let bed = Testbed::new(&Setup::small()).unwrap();
    let group = group(&bed);
    let mut sender = talker(&bed.hosts[0], 1);
    let ah = to(&bed, 0, group);
    let mut stays = talker(&bed.hosts[1], QKEY);
    stays.qp.attach(group).unwrap();
    let mut goes = Some(talker(&bed.hosts[1], QKEY));
    let (mut attached, mut rng) = (false, verilate::rng(12));
    let (mut last, mut kept, mut passing) = ([None::<u8>; 2], 0u32, 0u32);
    let seen = |t: &mut Talker, last: &mut Option<u8>, count: &mut u32| {
        let slots: Vec<u64> = t.cq.poll().map(|c| c.status.map(|()| c.wr_id).unwrap_or(u64::MAX)).collect();
        for slot in slots.into_iter().filter(|s| *s != u64::MAX) {
            let mut number = [0];
            t.memory.read(64 * slot as usize + UD_HEADER, &mut number);
            assert!(last.is_none_or(|l| number[0].wrapping_sub(l) as i8 > 0), "{} behind {last:?}", number[0]);
            (*last, *count) = (Some(number[0]), *count + 1);
            t.qp.post_recv(slot, &[t.memory.sge(64 * slot as usize, 64)]).unwrap();
        }
    };
    let fill = |t: &mut Talker| {
        (0..SIZES.receives as u64).for_each(|s| t.qp.post_recv(s, &[t.memory.sge(64 * s as usize, 64)]).unwrap())
    };
    fill(&mut stays);
    fill(goes.as_mut().unwrap());
    let mut sent = 0u32;
    let mut next = |sender: &mut Talker| {
        sender.send(1, Operation::SendTo(ah.to_group(QKEY)), Data::Inline(&[sent as u8; 8]));
        sent += 1;
    };
    for _ in 0..verilate::scale(60) {
        next(&mut sender);
        match (rng.random_range(0..4), &goes) {
            (0, Some(t)) if !attached => {
                t.qp.attach(group).unwrap();
                attached = true;
            }
            (0, Some(t)) => {
                t.qp.detach(group).unwrap();
                attached = false;
            }
            (1, Some(_)) if rng.random_bool(0.5) => {
                // Ended while attached, or not; another one takes its place, and perhaps its number.
                drop(goes.take());
                let mut t = talker(&bed.hosts[1], QKEY);
                fill(&mut t);
                (goes, attached, last[1]) = (Some(t), false, None);
                // One more comes while it is there, and not attached.
                sender.sent(&bed, 1);
                next(&mut sender);
                pass(&bed, 60);
                let before = passing;
                seen(goes.as_mut().unwrap(), &mut last[1], &mut passing);
                assert_eq!(passing, before, "a copy for one that is not attached");
            }
            _ => {}
        }
        sender.sent(&bed, 1);
        seen(&mut stays, &mut last[0], &mut kept);
        seen(goes.as_mut().unwrap(), &mut last[1], &mut passing);
    }
    pass(&bed, 200);
    seen(&mut stays, &mut last[0], &mut kept);
    assert_eq!(kept, sent, "who stays gets all");
    assert!(passing > sent / 8 && passing < sent, "{passing} of {sent}");
    assert_sound(&bed, "coming and going");
}

/// Refusals, each with its reason.
#[test]
fn what_cannot_be_attached_is_refused() {
    let bed = Testbed::new(&Setup::small()).unwrap();
    let group = group(&bed);
    let all: Vec<_> = (0..=MEMBERS).map(|_| talker(&bed.hosts[1], QKEY)).collect();
    let why = |r: driver::Result<()>| r.unwrap_err().to_string();
    assert!(why(all[0].qp.detach(group)).contains("not attached to the group"));
    all[..MEMBERS].iter().for_each(|t| t.qp.attach(group).unwrap());
    assert!(why(all[0].qp.attach(group)).contains("attached to the group already"));
    assert!(why(all[MEMBERS].qp.attach(group)).contains("as many members as it can"));
    let unicast = Group { ip: bed.hosts[1].gid.ip, vlan: None };
    assert!(why(all[0].qp.attach(unicast)).contains("10.0.0.2 is no multicast address"));
    assert!(why(all[0].qp.attach(Group { vlan: Some(4095), ..group })).contains("VLAN"));
    // One that leaves makes room.
    all[3].qp.detach(group).unwrap();
    all[MEMBERS].qp.attach(group).unwrap();
    assert_sound(&bed, "refusals");
}

/// A datagram as it lies on the wire.
fn captured(bed: &Testbed, sender: &mut Talker, to: Destination) -> Vec<u8> {
    captured_with(bed, sender, to, Data::Inline(&[9; 24]))
}

fn captured_with(bed: &Testbed, sender: &mut Talker, to: Destination, data: Data) -> Vec<u8> {
    let seen = Arc::new(Mutex::new(vec![]));
    let tap = seen.clone();
    bed.sim().tap(Some(Box::new(move |_, frame, _| tap.lock().unwrap().push(frame.data.clone()))));
    sender.send(1, Operation::SendTo(to), data);
    sender.sent(bed, 1);
    pass(bed, 50);
    bed.sim().tap(None);
    let mut seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 1);
    seen.remove(0)
}

/// The multicast QPN belongs to groups, and groups to the multicast QPN: all else is dropped and counted, as is what is no datagram.
#[test]
fn the_multicast_qpn_is_for_groups_alone() {
    let bed = Testbed::new(&Setup::small()).unwrap();
    let group = group(&bed);
    let mut sender = talker(&bed.hosts[0], QKEY);
    let mut member = talker(&bed.hosts[1], QKEY);
    member.qp.attach(group).unwrap();
    ready(&mut member, 1);
    pass(&bed, 20);
    let (all, one) = (to(&bed, 0, group), handle(&bed, 0, 1));
    let n = member.qp.qpn();
    for (ah, qpn) in [(&one, QPN_MULTICAST), (&all, n), (&all, 1), (&all, 0)] {
        let before = counted(&bed, 1, counter::RX_ADDRESS);
        sender.send(1, Operation::SendTo(ah.to(qpn, QKEY)), Data::Inline(&[1; 8]));
        sender.sent(&bed, 1);
        pass(&bed, 100);
        assert_eq!(counted(&bed, 1, counter::RX_ADDRESS), before + 1, "QPN {qpn:#x}");
        assert_eq!(member.cq.poll().next(), None);
    }
    // Not a datagram: an RC SEND, a UC WRITE, an ACK.
    let good = captured(&bed, &mut sender, all.to_group(QKEY));
    let c = wait(&bed, &mut member.cq, "the good one");
    holds(&member, &c, &[9; 24], &bed.hosts[0].gid, group.ip, None);
    ready(&mut member, 2);
    pass(&bed, 20);
    for opcode in [0x04, 0x2a, 0x11, 0x0c] {
        let mut frame = good.clone();
        frame[42] = opcode;
        seal(&mut frame);
        let before = counted(&bed, 1, counter::RX_ADDRESS);
        inject(&bed, 1, frame, false);
        pass(&bed, 100);
        assert_eq!(counted(&bed, 1, counter::RX_ADDRESS), before + 1, "opcode {opcode:#x}");
    }
    assert_eq!(member.cq.poll().next(), None);
    inject(&bed, 1, good, false);
    let c = wait(&bed, &mut member.cq, "the good one again");
    holds(&member, &c, &[9; 24], &bed.hosts[0].gid, group.ip, None);
    assert_sound(&bed, "the multicast QPN");
}

/// Groups, the raw queue and connections side by side: a group's MAC is not the port's own, so frames to it that are no RoCE go to the raw queue
/// only if that hears the MAC itself.
#[test]
fn groups_disturb_neither_the_raw_queue_nor_connections() {
    let bed = Testbed::new(&Setup::small()).unwrap();
    let mut bystander = Bystander::new(&bed);
    let group = group(&bed);
    let mut sender = talker(&bed.hosts[0], QKEY);
    let mut member = talker(&bed.hosts[1], QKEY);
    member.qp.attach(group).unwrap();
    let h = &bed.hosts[1];
    let mut cq = h.device.create_cq(64, &h.eq).unwrap();
    let mut raw = h.pd.create_raw_qp(&cq, &cq, SIZES).unwrap();
    let inbox = region(&h.pd, LEN, driver::Access::all(), |_| GUARD);
    raw.post_recv(1, &[inbox.sge(0, LEN)]).unwrap();
    h.device.set_port(&Port { raw: true, ..Port::new(h.gid.mac) }).unwrap();
    pass(&bed, 20);
    let mac = [1, 0, 0x5e, 1, 2, 3];
    let plain = |mac: [u8; 6]| [&mac[..], &[2, 0, 0, 0, 0, 9, 0x88, 0xb5], &[5; 60]].concat();
    let before = counted(&bed, 1, counter::RX_RAW_DROPPED);
    inject(&bed, 1, plain(mac), false);
    pass(&bed, 50);
    assert_eq!((counted(&bed, 1, counter::RX_RAW_DROPPED), cq.poll().next()), (before + 1, None));
    h.device.set_multicast(5, Some(mac)).unwrap();
    inject(&bed, 1, plain(mac), false);
    let c = wait(&bed, &mut cq, "a raw frame to the group's MAC");
    assert_eq!((c.status, c.len), (Ok(()), 74));
    let ah = to(&bed, 0, group);
    for _ in 0..verilate::scale(6) {
        ready(&mut member, 2);
        pass(&bed, 20);
        sender.send(1, Operation::SendTo(ah.to_group(QKEY)), Data::Inline(&[6; 50]));
        bystander.check(&bed, "beside a group");
        sender.sent(&bed, 1);
        let c = wait(&bed, &mut member.cq, "a copy");
        holds(&member, &c, &[6; 50], &bed.hosts[0].gid, group.ip, None);
    }
    assert_sound(&bed, "side by side");
}

/// A datagram that waits in the receive path, behind copies of others, while the last member leaves its group: the group that comes to have
/// its row of the GID table does not get it, though it has the same Q_Key.
#[test]
fn a_row_that_is_used_again_takes_no_datagram_along() {
    // Of 4 KiB, each copy of which takes its time: the receive buffer is full of them.
    const WAITING: usize = 6;
    let bed = Testbed::new(&Setup::small()).unwrap();
    let [slow, old, new] =
        ["239.1.1.1", "239.1.1.2", "239.1.1.3"].map(|ip| Group { ip: ip.parse().unwrap(), vlan: None });
    let mut sender = talker(&bed.hosts[0], 1);
    let mut many: Vec<_> = (0..MEMBERS).map(|_| talker(&bed.hosts[1], QKEY)).collect();
    many.iter().for_each(|m| m.qp.attach(slow).unwrap());
    let mut leaver = talker(&bed.hosts[1], QKEY);
    let mut comer = talker(&bed.hosts[1], QKEY);
    leaver.qp.attach(old).unwrap();
    let source = region(&bed.hosts[0].pd, LEN, driver::Access::all(), noise(3));
    let [slow_ah, old_ah, new_ah] = [slow, old, new].map(|g| to(&bed, 0, g));
    let long = captured_with(&bed, &mut sender, slow_ah.to_group(QKEY), Data::Sges(&[source.sge(0, 4096)]));
    let short = captured(&bed, &mut sender, old_ah.to_group(QKEY));
    for m in many.iter_mut() {
        (0..SIZES.receives as u64).for_each(|i| m.qp.post_recv(i, &[m.memory.sge(0, LEN)]).unwrap());
    }
    ready(&mut leaver, 1);
    ready(&mut comer, 2);
    pass(&bed, 100);
    let got = |bed: &Testbed| counted(bed, 1, counter::RX_ACCEPTED);
    let before = got(&bed);
    (0..WAITING).for_each(|_| inject(&bed, 1, long.clone(), false));
    inject(&bed, 1, short, false);
    // Until all are in.
    bed.sim().advance_cycles(3500);
    let start = bed.sim().nic(1).cycle();
    leaver.qp.detach(old).unwrap();
    comer.qp.attach(new).unwrap();
    let cycles = bed.sim().nic(1).cycle() - start;
    println!("a row used again after {cycles} cycles, {} of {} copies through", got(&bed) - before, WAITING * MEMBERS);
    pass(&bed, 2000);
    assert_eq!(got(&bed) - before, (WAITING * MEMBERS) as u64, "copies of the datagrams in front");
    assert!(leaver.cq.poll().next().is_none(), "who has left");
    assert!(comer.cq.poll().next().is_none() && is_guard(&comer.memory, 0..LEN), "a datagram of another group");
    sender.send(2, Operation::SendTo(new_ah.to_group(QKEY)), Data::Inline(&[7; 20]));
    sender.sent(&bed, 2);
    let c = wait(&bed, &mut comer.cq, "its own");
    holds(&comer, &c, &[7; 20], &bed.hosts[0].gid, new.ip, None);
    assert_sound(&bed, "a row that is used again");
}
