//! What holds for every packet: headers, opcodes, ICRC, whom it is from and for.

use super::talk::{Talk, Terms, acked, data};
use super::{Row, row};
use abi::status::{cause, counter, wc};
use driver::Access;
use driver::qp::QpSizes;
use fabric::peer::{Aeth, Deth, Packet, Request, behind, class, icrc, op, syndrome};

pub const ROWS: &[Row] = &[
    row!("9.2, C9-6", reserved_bits_mean_nothing, "Reserved bits of the BTH are sent as 0 and ignored"),
    row!(
        "9.2",
        every_request_opcode_is_taken,
        "All opcodes of SEND, WRITE and READ, with and without immediate data, carry the headers of the opcode table, in its order"
    ),
    row!(
        "9.2, 9.6",
        every_opcode_at_its_least_length,
        "Every opcode from 0 to 255 with its headers and nothing else, and with a byte less: what is not spoken on a reliable connection is dropped, or an invalid request; what is cut is dropped"
    ),
    row!(
        "A17.3.3",
        what_changes_on_the_way_is_not_covered,
        "Traffic class, TTL, header checksum, FECN and BECN may change on the way: the ICRC does not cover them"
    ),
    row!(
        "A17.3.3",
        all_else_is_covered,
        "All else is covered by the ICRC: with a bit of it changed, the packet is dropped"
    ),
    row!("A17.3.3", a_tag_is_not_covered, "A tagged frame has the ICRC of an untagged one"),
    row!(
        "A17",
        a_udp_checksum_is_zero_or_right,
        "A UDP checksum is 0, or right with the ICRC in it; else the packet is dropped"
    ),
    row!(
        "9.6",
        packets_of_others_are_dropped,
        "Another transport version, QP, transport, source or destination address, or P_Key: dropped, and the QP does not notice"
    ),
    row!(
        "9.6.1",
        nobody_is_queue_pair_0,
        "Packets to QPN 0, which is the subnet manager's on InfiniBand and nobody's here, are dropped, whatever they ask"
    ),
    row!(
        "9.6",
        a_limited_member_may_talk_to_a_full_one,
        "P_Keys match by 15 bits, which are not 0, if one side is a full member"
    ),
    row!("9.6", only_ready_queue_pairs_hear, "A QP in RESET or INIT hears nothing"),
    row!(
        "10.3.1",
        a_queue_pair_in_rtr_answers,
        "A QP in RTR answers requests, and SENDs take receives that were posted in INIT"
    ),
    row!(
        "10.3.1",
        a_queue_pair_in_error_is_silent,
        "A QP that its host moves to ERR hears and says nothing more; all that is posted is flushed"
    ),
    row!("A17", fragments_and_options_are_dropped, "Fragments and IP options are not RoCE: dropped"),
    Row {
        terms: Terms { traffic_class: 0xb9, source_port: 0xeeee, ..Terms::USUAL },
        ..row!(
            "A17",
            frames_travel_by_their_path,
            "Frames carry the path's traffic class, hop limit and UDP source port; packets may come with any of these, a mark of congestion is counted"
        )
    },
    row!(
        "A17",
        a_congestion_notification_is_not_answered,
        "A congestion notification is neither sequenced nor acknowledged"
    ),
    row!("A17", frames_are_padded_behind_the_datagram, "Padding of a short frame behind the datagram means nothing"),
];

fn reserved_bits_mean_nothing(t: &mut Talk) {
    let write = t.only(0, t.write(10, 100));
    t.peer(Packet { notice: 0x3f, reserved: 0x7f, migrated: true, ..write });
    t.nic(acked(0, 1));
    t.lands(10, 100);
    // Every comparison of what the NIC says has these bits 0.
    t.post(1, &Request::write(0x1000, 0x77, data(30)));
    t.nic(t.only(0, Request::write(0x1000, 0x77, data(30))));
    t.peer(acked(0, 1));
    t.completes(1);
}

fn every_request_opcode_is_taken(t: &mut Talk) {
    let mut psn = 0;
    let mut opcodes = std::collections::BTreeSet::new();
    let mut msn = 0;
    for len in [200, 256, 600] {
        for imm in [None, Some([1, 2, 3, len as u8])] {
            for send in [true, false] {
                let mut request = if send { Request::send(data(len)) } else { t.write(5 * len, len) };
                request.imm = imm;
                let at = (send || imm.is_some()).then(|| t.receive(700));
                let packets = t.cut(psn, request);
                opcodes.extend(packets.iter().map(|p| p.opcode));
                psn += packets.len() as u32;
                msn += 1;
                t.peer_all(packets);
                t.nic(acked(psn - 1, msn));
                t.lands(if send { at.unwrap_or(0) } else { 5 * len }, len);
                if at.is_some() {
                    t.receives(len, imm);
                }
            }
        }
        t.peer(t.only(psn, t.read(5 * len, len)));
        msn += 1;
        let response = t.response(psn, msn, 5 * len, len);
        psn += response.len() as u32;
        t.nic_all(response);
    }
    assert!(opcodes.into_iter().eq(op::SEND_FIRST..=op::WRITE_ONLY_IMM), "all requests were among them");
}

/// Bytes of extended headers: the opcode table of IBTA 9.2, with those of atomics and invalidation.
pub(super) fn extended(opcode: u8) -> usize {
    match opcode {
        0x03 | 0x05 | 0x09 | 0x0d | 0x0f | 0x10 | 0x11 | 0x16 | 0x17 => 4,
        0x06 | 0x0a | 0x0c | 0x1d => 16,
        0x0b => 20,
        0x12 => 12,
        0x13 | 0x14 => 28,
        0x23 | 0x25 | 0x29 => 4,
        0x26 | 0x2a => 16,
        0x2b => 20,
        0x64 => 8,
        0x65 => 12,
        0x81 => 16,
        _ => 0,
    }
}

/// The peer sends headers and nothing else, without the last byte: it is malformed.
pub(super) fn a_byte_less(t: &mut Talk, bare: &Packet) {
    let mut cut = t.addressed(bare.clone()).frame(&t.peer.envelope);
    let udp = 8 + 12 + extended(bare.opcode) + 4 - 1;
    // Where the UDP header is, and the length of the IP datagram, which of IPv6 does not count the header.
    let (at, length, of) = if t.is_ip6() { (54, 18, udp) } else { (34, 16, 20 + udp) };
    cut.truncate(at + udp);
    cut[length..length + 2].copy_from_slice(&(of as u16).to_be_bytes());
    cut[at + 4..at + 6].copy_from_slice(&(udp as u16).to_be_bytes());
    seal(&mut cut);
    t.frame(cut);
    t.counts(counter::RX_MALFORMED, 1);
}

fn every_opcode_at_its_least_length(t: &mut Talk) {
    use counter::*;
    for opcode in 0..=255 {
        let bare = Packet { opcode, ack_req: true, payload: vec![0; extended(opcode)], ..Packet::default() };
        a_byte_less(t, &bare);
        // Answers to nothing, what is others', what nobody has: the QP does not notice.
        let dropped = match opcode {
            0x0d..=0x12 => RX_STALE_RESPONSE,
            0x20..=0x2b | 0x64 | 0x65 => RX_QP_TYPE,
            0x81 => RX_CNP,
            0x00..=0x14 | 0x16 | 0x17 | 0x1d => {
                t.apart(t.terms, |t| request(t, bare));
                continue;
            }
            _ => RX_OPCODE,
        };
        t.peer(bare);
        t.counts(dropped, 1);
    }
    t.silence();
    t.peer(t.only(0, t.write(0, 10)));
    t.nic(acked(0, 1));
    t.lands(0, 10);
}

/// A request of nothing but zeros: WRITE and READ are of zero length, which names no key.
fn request(t: &mut Talk, bare: Packet) {
    let opcode = bare.opcode;
    t.receive(100);
    t.peer(bare);
    match opcode {
        op::WRITE_ONLY => t.nic(acked(0, 1)),
        op::READ_REQUEST => t.nic_all(t.response(0, 1, 0, 0)),
        op::SEND_ONLY => {
            t.nic(acked(0, 1));
            t.receives(0, None);
        }
        op::SEND_ONLY_IMM | op::WRITE_ONLY_IMM => {
            t.nic(acked(0, 1));
            t.receives(0, Some([0; 4]));
        }
        // Key 0 is nobody's.
        op::COMPARE_SWAP | op::FETCH_ADD => {
            t.refuses(0, syndrome::REMOTE_ACCESS);
            t.ends_by(cause::KEY_INVALID);
        }
        op::SEND_ONLY_INV => {
            t.refuses(0, syndrome::REMOTE_ACCESS);
            t.receive_fails_by(wc::REM_INV_REQ, cause::KEY_INVALID);
        }
        // A FIRST that does not fill the MTU, what has no FIRST before it, what is not spoken.
        _ => {
            t.refuses(0, syndrome::INVALID_REQUEST);
            t.ends_by(cause::INVALID_REQUEST);
        }
    }
}

/// Makes the IPv4 checksum of a frame and its ICRC right again.
fn seal(frame: &mut [u8]) {
    let end = frame.len() - 4;
    if frame[14] >> 4 == 4 {
        frame[24..26].fill(0);
        let sum = frame[14..34].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum::<u32>();
        frame[24..26].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
    }
    let crc = icrc(&frame[14..end]);
    frame[end..].copy_from_slice(&crc);
}

fn what_changes_on_the_way_is_not_covered(t: &mut Talk) {
    // Sealing makes the header checksum right; the ICRC must come out as it was.
    let changes: &[(usize, u8)] = match t.is_ip6() {
        false => &[(15, 0xff), (22, 1), (42 + 4, 0xc0), (42 + 4, 0x3f)],
        // Traffic class, flow label, hop limit.
        true => &[(14, 0x6f), (15, 0xff), (16, 0xff), (17, 0xff), (21, 1), (62 + 4, 0xc0), (62 + 4, 0x3f)],
    };
    for (psn, (at, value)) in changes.iter().enumerate() {
        let mut frame = t.addressed(t.only(psn as u32, t.write(20, 50))).frame(&t.peer.envelope);
        let icrc = frame[frame.len() - 4..].to_vec();
        frame[*at] = *value;
        seal(&mut frame);
        assert_eq!(frame[frame.len() - 4..], icrc, "the peer's own ICRC");
        t.frame(frame);
        t.nic(acked(psn as u32, psn as u32 + 1));
    }
    t.lands(20, 50);
}

fn all_else_is_covered(t: &mut Talk) {
    let sound = t.addressed(t.only(0, t.write(20, 5))).frame(&t.peer.envelope);
    // Bits of: IP identification, UDP source port, each byte of the BTH but that of FECN and BECN, RETH, payload, pad.
    let (udp, bth) = if t.is_ip6() { (54, 62) } else { (34, 42) };
    let of_ip4 = (!t.is_ip6()).then_some(18);
    let places = of_ip4.into_iter().chain([udp + 1]).chain((bth..bth + 4).chain(bth + 5..sound.len() - 4));
    for at in places {
        let mut frame = sound.clone();
        frame[at] ^= 0x10;
        let icrc = frame[frame.len() - 4..].to_vec();
        seal(&mut frame);
        let end = frame.len() - 4;
        frame[end..].copy_from_slice(&icrc);
        t.frame(frame);
        t.counts(counter::RX_ICRC, 1);
    }
    t.silence();
    t.frame(sound);
    t.nic(acked(0, 1));
    t.lands(20, 5);
}

fn a_tag_is_not_covered(t: &mut Talk) {
    let mut frame = t.addressed(t.only(0, t.write(20, 50))).frame(&t.peer.envelope);
    // Of VLAN 0: a priority, which an untagged port takes.
    frame.splice(12..12, [0x81, 0, 0x60, 0]);
    t.frame(frame);
    t.nic(acked(0, 1));
    t.lands(20, 50);
}

fn a_udp_checksum_is_zero_or_right(t: &mut Talk) {
    t.peer.envelope.checksum = true;
    let packet = t.only(0, t.write(20, 51));
    t.peer(packet);
    t.nic(acked(0, 1));
    t.lands(20, 51);
    let mut frame = t.addressed(t.only(1, t.write(20, 52))).frame(&t.peer.envelope);
    frame[40] ^= 1;
    t.frame(frame);
    t.counts(counter::RX_IP_CHECKSUM, 1);
    t.silence();
    t.peer.envelope.checksum = false;
    t.peer(t.only(1, t.write(20, 53)));
    t.nic(acked(1, 2));
    t.lands(20, 53);
}

fn packets_of_others_are_dropped(t: &mut Talk) {
    use counter::*;
    let sound = t.only(0, t.write(30, 40));
    let wrong = [
        (Packet { version: 1, ..sound.clone() }, RX_OPCODE),
        (Packet { qpn: 31, ..sound.clone() }, RX_QP_STATE),
        (Packet { qpn: 0xff_fff0, ..sound.clone() }, RX_QP_STATE),
        (Packet { qpn: 0xff_ffff, ..sound.clone() }, RX_ADDRESS),
        (Packet { opcode: 0x2a, ..sound.clone() }, RX_QP_TYPE),
        (Packet { pkey: 0x1234, ..sound.clone() }, RX_PKEY),
    ];
    for (packet, counter) in wrong {
        t.peer(packet);
        t.counts(counter, 1);
    }
    let right = t.peer.envelope;
    let other = |ip: std::net::IpAddr| match ip {
        std::net::IpAddr::V4(ip) => std::net::Ipv4Addr::from_bits(ip.to_bits() ^ 64).into(),
        std::net::IpAddr::V6(ip) => std::net::Ipv6Addr::from_bits(ip.to_bits() ^ 64).into(),
    };
    t.peer.envelope.ips[0] = other(right.ips[0]);
    t.peer(sound.clone());
    t.counts(RX_QP_PEER, 1);
    t.peer.envelope = right;
    t.peer.envelope.ips[1] = other(right.ips[1]);
    t.peer(sound.clone());
    t.counts(RX_ADDRESS, 1);
    t.peer.envelope = right;
    t.silence();
    t.peer(sound);
    t.nic(acked(0, 1));
    t.lands(30, 40);
}

fn nobody_is_queue_pair_0(t: &mut Talk) {
    let deth = Some(Deth { qkey: abi::wire::qkey::QP1, source: 1 });
    let datagram = Packet { opcode: class::UD | op::SEND_ONLY, deth, payload: data(256), ..Packet::default() };
    let write = t.only(0, t.write(30, 40));
    let asked = [
        write.clone(),
        Packet { opcode: write.opcode | class::UC, ..write.clone() },
        t.only(0, t.read(30, 40)),
        t.only(0, Request::send(data(5))),
        acked(0, 1),
        datagram.clone(),
        Packet { deth: Some(Deth { qkey: 0, source: 0 }), ..datagram },
    ];
    for packet in asked {
        let frame = Packet { qpn: 0, psn: behind(packet.psn, t.terms.psn), ..packet }.frame(&t.peer.envelope);
        t.frame(frame);
        t.counts(counter::RX_QP_STATE, 1);
    }
    t.silence();
    t.peer(write);
    t.nic(acked(0, 1));
    t.lands(30, 40);
}

fn a_limited_member_may_talk_to_a_full_one(t: &mut Talk) {
    t.peer(Packet { pkey: 0x7fff, ..t.only(0, t.write(30, 40)) });
    t.nic(acked(0, 1));
    t.lands(30, 40);
    for pkey in [0, 0x8000, 0x7ffe, 0xbfff] {
        t.peer(Packet { pkey, ..t.only(1, t.write(30, 50)) });
        t.counts(counter::RX_PKEY, 1);
    }
    t.silence();
    // Answers are under the same rule.
    t.post(1, &Request::send(data(9)));
    t.nic(t.only(0, Request::send(data(9))));
    t.peer(Packet { pkey: 0x8000, ..acked(0, 1) });
    t.counts(counter::RX_PKEY, 1);
    t.peer(Packet { pkey: 0x7fff, ..acked(0, 1) });
    t.completes(1);
}

fn only_ready_queue_pairs_hear(t: &mut Talk) {
    let sizes = QpSizes::new(4, 4);
    let reset = t.solo.host.pd.create_qp(&t.cq, &t.cq, sizes).unwrap();
    let init = t.solo.host.pd.create_qp(&t.cq, &t.cq, sizes).unwrap().init(Access::all()).unwrap();
    for qpn in [reset.qpn(), init.qpn()] {
        t.peer(Packet { qpn, ..t.only(0, t.write(30, 40)) });
        t.peer(Packet { qpn, ..acked(0, 1) });
        t.counts(counter::RX_QP_STATE, 2);
    }
    t.silence();
}

fn a_congestion_notification_is_not_answered(t: &mut Talk) {
    for _ in 0..3 {
        let cnp = Packet { opcode: 0x81, notice: 0x40, payload: vec![0; 16], ..Packet::default() };
        t.peer(cnp);
        t.counts(counter::RX_CNP, 1);
    }
    t.silence();
    t.peer(t.only(0, t.write(30, 40)));
    t.nic(acked(0, 1));
    t.lands(30, 40);
}

fn frames_are_padded_behind_the_datagram(t: &mut Talk) {
    t.receive(100);
    let mut frame = t.addressed(t.only(0, Request::send(Vec::new()))).frame(&t.peer.envelope);
    assert_eq!(frame.len(), 60);
    frame[58..].fill(0xee);
    frame.resize(90, 0xdd);
    t.frame(frame);
    t.nic(Packet { aeth: Some(Aeth { syndrome: syndrome::ACK, msn: 1 }), opcode: op::ACK, ..Packet::default() });
    t.receives(0, None);
}

fn a_queue_pair_in_rtr_answers(t: &mut Talk) {
    let sizes = QpSizes::new(4, 4);
    let mut init = t.solo.host.pd.create_qp(&t.cq, &t.cq, sizes).unwrap().init(Access::all()).unwrap();
    init.post_recv(1, &[t.memory.sge(3000, 50)]).unwrap();
    let rtr = init.rtr(&t.path()).unwrap();
    let qpn = rtr.qpn();
    t.peer(Packet { qpn, ..t.only(0, t.write(30, 40)) });
    t.nic(acked(0, 1));
    t.lands(30, 40);
    t.peer(Packet { qpn, ..t.only(1, Request::send(data(50))) });
    t.nic(acked(1, 2));
    t.lands(3000, 50);
    t.completes(1);
    t.peer(Packet { qpn, ..t.only(2, t.read(30, 300)) });
    t.nic_all(t.response(2, 3, 30, 300));
    // It has sent nothing, and waits for no answer: it does not hear one.
    t.peer(Packet { qpn, ..acked(0, 1) });
    t.counts(counter::RX_QP_STATE, 1);
    t.silence();
}

fn a_queue_pair_in_error_is_silent(t: &mut Talk) {
    t.receive(10);
    t.post(1, &Request::send(data(5)));
    t.nic(t.only(0, Request::send(data(5))));
    t.qp.fail().unwrap();
    let late = [acked(0, 1), t.only(0, t.write(0, 5)), t.only(0, t.read(0, 5)), t.only(0, Request::send(data(5)))];
    t.counts(counter::RX_QP_STATE, late.len() as u64);
    t.peer_all(late);
    t.silence();
    let mut flushed: Vec<_> = t.cq.poll().map(|c| (c.wr_id, c.status.err().map(|e| e.status))).collect();
    flushed.sort();
    assert_eq!(flushed, [(1, Some(wc::WR_FLUSH)), (1000, Some(wc::WR_FLUSH))]);
    t.has_ended();
}

fn fragments_and_options_are_dropped(t: &mut Talk) {
    let sound = t.addressed(t.only(0, t.write(20, 50))).frame(&t.peer.envelope);
    // More fragments; an offset; both.
    for flags in [[0x20, 0], [0, 1], [0x3f, 0xff]] {
        let mut frame = sound.clone();
        frame[20..22].copy_from_slice(&flags);
        seal(&mut frame);
        t.frame(frame);
        t.counts(counter::RX_IP_UNSUPPORTED, 1);
    }
    let mut frame = sound.clone();
    frame[14] = 0x46;
    frame[16..18].copy_from_slice(&(sound.len() as u16 - 14 + 4).to_be_bytes());
    frame.splice(34..34, [1, 1, 1, 0]);
    t.frame(frame);
    t.counts(counter::RX_IP_UNSUPPORTED, 1);
    t.silence();
    t.frame(sound);
    t.nic(acked(0, 1));
    t.lands(20, 50);
}

fn frames_travel_by_their_path(t: &mut Talk) {
    let marked = t.solo.host.device.counter(counter::RX_CE);
    for (psn, class) in [0, 1, 2, 3, 0xff, 0xfc].into_iter().enumerate() {
        let psn = psn as u32;
        t.peer.envelope.traffic_class = class;
        t.peer.envelope.hop_limit = 1 + psn as u8;
        t.peer.envelope.source_port = 7 * psn as u16;
        // Every comparison of what the NIC says has those of its path.
        t.peer(t.only(psn, t.write(20, 50)));
        t.nic(acked(psn, psn + 1));
    }
    t.lands(20, 50);
    assert_eq!(t.solo.host.device.counter(counter::RX_CE) - marked, 2, "marks of congestion");
    t.post(1, &Request::send(data(5)));
    t.nic(t.only(0, Request::send(data(5))));
    t.peer(acked(0, 1));
    t.completes(1);
}
