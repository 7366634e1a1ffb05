//! ARP (RFC 826) and neighbour discovery (RFC 4861) as frames: what a received one says, and those that are sent.

use crate::device::{Gid, questions_for};
use etherparse::icmpv6::{Icmpv6PayloadSlice, NdpOptionSlice, NdpOptionsIterator, NeighborAdvertisementHeader};
use etherparse::{
    ArpEthIpv4Packet, ArpOperation, EtherType, Ethernet2Header, Icmpv6Header, Icmpv6Type, IpNumber, Ipv6Header,
    Ipv6Slice, LinkSlice, NetSlice, SingleVlanHeader, SlicedPacket, TransportSlice, VlanId, VlanSlice,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// All nodes on the link (RFC 4291).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// Their MAC (RFC 2464).
const ALL_NODES_MAC: Mac = [0x33, 0x33, 0, 0, 0, 1];
/// Hop limit that shows that no router has forwarded a packet.
const OF_THIS_LINK: u8 = 255;

/// A MAC.
pub(super) type Mac = [u8; 6];

/// What a frame says of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// Who has `target`? Asks `from`, or a station (its MAC) that looks whether the address is free.
    Ask { target: IpAddr, from: Option<(IpAddr, Mac)>, station: Mac },
    /// `ip` is at `mac`.
    Tell { ip: IpAddr, mac: Mac },
}

/// What a received frame says, and the VLAN that it came in. None for all other frames, and for those that the RFCs tell to ignore.
pub(super) fn hear(frame: &[u8]) -> Option<(Option<u16>, Said)> {
    let packet = SlicedPacket::from_ethernet(frame).ok()?;
    let vlan = match packet.vlan() {
        None => None,
        // A tag with VLAN 0 carries a priority only.
        Some(VlanSlice::SingleVlan(tag)) => Some(tag.vlan_identifier().value()).filter(|v| *v != 0),
        Some(_) => return None,
    };
    let Some(LinkSlice::Ethernet2(ethernet)) = &packet.link else { return None };
    let source = ethernet.source();
    let said = match &packet.net {
        Some(NetSlice::Arp(arp)) => hear_arp(&arp.to_packet().try_eth_ipv4().ok()?),
        Some(NetSlice::Ipv6(ip)) => hear_discovery(ip, packet.transport.as_ref()?, source),
        _ => None,
    };
    said.map(|s| (vlan, s))
}

/// A MAC that a single station can have.
fn is_station(mac: Mac) -> bool {
    mac[0] & 1 == 0 && mac != [0; 6]
}

fn hear_arp(arp: &ArpEthIpv4Packet) -> Option<Said> {
    let (sender, target) = (arp.sender_ipv4_addr(), arp.target_ipv4_addr());
    if !is_station(arp.sender_mac) || sender.is_multicast() || sender.is_broadcast() {
        return None;
    }
    // A probe asks from 0.0.0.0 (RFC 5227).
    let from = (!sender.is_unspecified()).then_some((sender.into(), arp.sender_mac));
    match arp.operation {
        ArpOperation::REQUEST => Some(Said::Ask { target: target.into(), from, station: arp.sender_mac }),
        ArpOperation::REPLY => from.map(|(ip, mac)| Said::Tell { ip, mac }),
        _ => None,
    }
}

fn hear_discovery(ip: &Ipv6Slice<'_>, transport: &TransportSlice<'_>, station: Mac) -> Option<Said> {
    let TransportSlice::Icmpv6(icmp) = transport else { return None };
    let header = ip.header();
    let whole = icmp.is_checksum_valid(header.source(), header.destination());
    if header.hop_limit() != OF_THIS_LINK || icmp.code_u8() != 0 || !whole || !is_station(station) {
        return None;
    }
    match icmp.payload_slice().ok()? {
        Icmpv6PayloadSlice::NeighborSolicitation(ask) => {
            let target = ask.target_address();
            let source = header.source_addr();
            let option = link_address(ask.options_iterator(), |o| match o {
                NdpOptionSlice::SourceLinkLayerAddress(a) => a.link_layer_address().try_into().ok(),
                _ => None,
            });
            // Who looks whether an address is free asks its group, and has no address to tell (RFC 4861, 7.1.1).
            let free = source.is_unspecified();
            let sound = !free || option.is_none() && header.destination_addr() == group(target);
            let from = (!free).then_some((source.into(), option.unwrap_or(station)));
            (sound && !target.is_multicast()).then_some(Said::Ask { target: target.into(), from, station })
        }
        Icmpv6PayloadSlice::NeighborAdvertisement(told) => {
            let ip = told.target_address();
            let mac = link_address(told.options_iterator(), |o| match o {
                NdpOptionSlice::TargetLinkLayerAddress(a) => a.link_layer_address().try_into().ok(),
                _ => None,
            })?;
            (!ip.is_multicast()).then_some(Said::Tell { ip: ip.into(), mac })
        }
        _ => None,
    }
}

/// The address that `of` finds in options that are all sound.
fn link_address(options: NdpOptionsIterator<'_>, of: impl Fn(NdpOptionSlice<'_>) -> Option<Mac>) -> Option<Mac> {
    let all = options.collect::<Result<Vec<_>, _>>().ok()?;
    all.into_iter().find_map(of).filter(|mac| is_station(*mac))
}

/// Solicited-node group of an address (RFC 4291).
fn group(ip: Ipv6Addr) -> Ipv6Addr {
    let o = ip.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, o[13], o[14], o[15]])
}

/// The frame by which `own` asks who has `target`, which is of the same family.
pub(super) fn ask(own: &Gid, target: IpAddr) -> Option<Vec<u8>> {
    let to = questions_for(target).unwrap_or([0xff; 6]);
    match (own.ip, target) {
        (IpAddr::V4(sender), IpAddr::V4(target)) => {
            let arp = arp(ArpOperation::REQUEST, (sender, own.mac), (target, [0; 6]));
            Some(frame(own, to, EtherType::ARP, &arp))
        }
        (IpAddr::V6(source), IpAddr::V6(target)) => {
            let body = [&target.octets()[..], &[1, 1], &own.mac].concat();
            let packet = icmp(Icmpv6Type::NeighborSolicitation, source, group(target), &body);
            Some(frame(own, to, EtherType::IPV6, &packet))
        }
        _ => None,
    }
}

/// The frame by which `own` answers that its address is its own: to who asked, or to `station` and all that listen, which
/// looked whether the address is free.
pub(super) fn tell(own: &Gid, from: Option<(IpAddr, Mac)>, station: Mac) -> Option<Vec<u8>> {
    match (own.ip, from) {
        (IpAddr::V4(sender), from) => {
            let to = match from {
                Some((IpAddr::V4(ip), mac)) => (ip, mac),
                Some(_) => return None,
                None => (Ipv4Addr::UNSPECIFIED, station),
            };
            Some(frame(own, to.1, EtherType::ARP, &arp(ArpOperation::REPLY, (sender, own.mac), to)))
        }
        (IpAddr::V6(source), from) => {
            let (to, mac) = match from {
                Some((IpAddr::V6(ip), mac)) => (ip, mac),
                Some(_) => return None,
                None => (ALL_NODES, ALL_NODES_MAC),
            };
            let flags = NeighborAdvertisementHeader { router: false, solicited: from.is_some(), r#override: true };
            let body = [&source.octets()[..], &[2, 1], &own.mac].concat();
            Some(frame(own, mac, EtherType::IPV6, &icmp(Icmpv6Type::NeighborAdvertisement(flags), source, to, &body)))
        }
    }
}

fn arp(operation: ArpOperation, sender: (Ipv4Addr, Mac), target: (Ipv4Addr, Mac)) -> Vec<u8> {
    let packet = ArpEthIpv4Packet {
        operation,
        sender_mac: sender.1,
        sender_ipv4: sender.0.octets(),
        target_mac: target.1,
        target_ipv4: target.0.octets(),
    };
    packet.to_bytes().to_vec()
}

fn icmp(kind: Icmpv6Type, source: Ipv6Addr, destination: Ipv6Addr, body: &[u8]) -> Vec<u8> {
    let (source, destination) = (source.octets(), destination.octets());
    let icmp = Icmpv6Header::with_checksum(kind, source, destination, body).expect("a body of few bytes").to_bytes();
    let ip = Ipv6Header {
        payload_length: (icmp.len() + body.len()) as u16,
        next_header: IpNumber::IPV6_ICMP,
        hop_limit: OF_THIS_LINK,
        source,
        destination,
        ..Ipv6Header::default()
    };
    [&ip.to_bytes()[..], &icmp, body].concat()
}

/// An Ethernet frame of `own`, in its VLAN.
fn frame(own: &Gid, destination: Mac, ether_type: EtherType, payload: &[u8]) -> Vec<u8> {
    let tag = own.vlan.map(|vlan| SingleVlanHeader {
        vlan_id: VlanId::try_new(vlan).unwrap_or_default(),
        ether_type,
        ..SingleVlanHeader::default()
    });
    let outer = if tag.is_some() { EtherType::VLAN_TAGGED_FRAME } else { ether_type };
    let head = Ethernet2Header { source: own.mac, destination, ether_type: outer };
    let mut bytes = head.to_bytes().to_vec();
    bytes.extend(tag.iter().flat_map(SingleVlanHeader::to_bytes));
    bytes.extend(payload);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Mac = [2, 0, 0, 0, 0, 1];
    const B: Mac = [2, 0, 0, 0, 0, 2];

    fn gid(last: u8, ip6: bool, vlan: Option<u16>) -> Gid {
        let ip = match ip6 {
            false => IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)),
            true => IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0x12, 0x3400 | u16::from(last))),
        };
        Gid { ip, mac: if last == 1 { A } else { B }, vlan }
    }

    #[test]
    fn what_one_asks_the_other_hears_and_answers() {
        for (ip6, vlan) in [(false, None), (false, Some(5)), (true, None), (true, Some(4094))] {
            let (a, b) = (gid(1, ip6, vlan), gid(2, ip6, vlan));
            let question = ask(&a, b.ip).unwrap();
            let to = questions_for(b.ip).unwrap_or([0xff; 6]);
            assert_eq!(question[..6], to);
            let heard = hear(&question).unwrap();
            let from = Some((a.ip, A));
            assert_eq!(heard, (vlan, Said::Ask { target: b.ip, from, station: A }));
            let answer = tell(&b, from, A).unwrap();
            assert_eq!(answer[..6], A);
            assert_eq!(hear(&answer), Some((vlan, Said::Tell { ip: b.ip, mac: B })));
            let defence = tell(&b, None, A).unwrap();
            assert_eq!(hear(&defence), Some((vlan, Said::Tell { ip: b.ip, mac: B })));
        }
        assert_eq!(ask(&gid(1, true, None), gid(2, false, None).ip), None);
    }

    /// A question from Linux, captured: who has 10.0.0.1? tell 10.0.0.2.
    #[test]
    fn a_padded_frame_is_heard() {
        let mut question = ask(&gid(2, false, None), gid(1, false, None).ip).unwrap();
        question.resize(60, 0);
        assert!(hear(&question).is_some());
    }

    #[test]
    fn damaged_and_forwarded_frames_are_ignored() {
        for ip6 in [false, true] {
            let good = ask(&gid(1, ip6, None), gid(2, ip6, None).ip).unwrap();
            for n in 0..good.len() {
                assert_eq!(hear(&good[..n]), None, "{n} bytes");
            }
        }
        let good = ask(&gid(1, true, None), gid(2, true, None).ip).unwrap();
        // From the IP header on, each byte counts: versions, lengths, hop limit, the checksum and what it covers.
        for at in [14, 18, 19, 20, 21, 30, 45, 54, 55, 56, 60, 70, 78, 79] {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert_eq!(hear(&bad), None, "byte {at}");
        }
        let mut bad = ask(&gid(1, false, None), gid(2, false, None).ip).unwrap();
        bad[22] |= 1; // a group as sender
        assert_eq!(hear(&bad), None);
    }
}
