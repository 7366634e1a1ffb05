//! RoCE v2 packets, field by field and as frames. A packet can be anything, also what no sound sender sends; a frame is decoded
//! only if it is sound in every bit.
//!
//! Written from the protocol (IBTA 9.2 to 9.5, annex A17) and not from `abi::wire`, on purpose: a mistake in the contract that
//! gates, driver and tests share would go unseen by tests that share it as well.

use etherparse::{
    IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, NetHeaders, PacketBuilder, PacketHeaders, UdpHeader,
};
use std::fmt;
use std::net::IpAddr;

/// UDP port of RoCE v2.
const PORT: u16 = 4791;
/// Length of the BTH, and of the ICRC.
const BTH: usize = 12;
const ICRC: usize = 4;
/// Least length of an Ethernet frame without FCS.
const MIN_FRAME: usize = 60;

/// BTH opcodes of reliable connections (IBTA 9.2).
#[allow(missing_docs)]
pub mod op {
    pub const SEND_FIRST: u8 = 0;
    pub const SEND_MIDDLE: u8 = 1;
    pub const SEND_LAST: u8 = 2;
    pub const SEND_LAST_IMM: u8 = 3;
    pub const SEND_ONLY: u8 = 4;
    pub const SEND_ONLY_IMM: u8 = 5;
    pub const WRITE_FIRST: u8 = 6;
    pub const WRITE_MIDDLE: u8 = 7;
    pub const WRITE_LAST: u8 = 8;
    pub const WRITE_LAST_IMM: u8 = 9;
    pub const WRITE_ONLY: u8 = 10;
    pub const WRITE_ONLY_IMM: u8 = 11;
    pub const READ_REQUEST: u8 = 12;
    pub const RESPONSE_FIRST: u8 = 13;
    pub const RESPONSE_MIDDLE: u8 = 14;
    pub const RESPONSE_LAST: u8 = 15;
    pub const RESPONSE_ONLY: u8 = 16;
    pub const ACK: u8 = 17;
    pub const ATOMIC_ACK: u8 = 18;
    pub const COMPARE_SWAP: u8 = 19;
    pub const FETCH_ADD: u8 = 20;
    pub const SEND_LAST_INV: u8 = 22;
    pub const SEND_ONLY_INV: u8 = 23;
    pub const ATOMIC_WRITE: u8 = 29;
}

/// Upper bits of the opcodes of unreliable connections and datagrams, whose lower bits are those of [`op`].
pub mod class {
    #![allow(missing_docs)]
    pub const UC: u8 = 0x20;
    pub const UD: u8 = 0x60;
}

/// AETH syndromes (IBTA 9.3).
pub mod syndrome {
    /// ACK without credits.
    pub const ACK: u8 = 0x1f;
    /// RNR NAK, or-ed with the timer code.
    pub const RNR: u8 = 0x20;
    /// PSN sequence error.
    pub const SEQUENCE: u8 = 0x60;
    /// Invalid request.
    pub const INVALID_REQUEST: u8 = 0x61;
    /// Remote access error.
    pub const REMOTE_ACCESS: u8 = 0x62;
    /// Remote operational error.
    pub const REMOTE_OPERATION: u8 = 0x63;
}

/// RDMA extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Virtual address.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// DMA length.
    pub len: u32,
}

/// Datagram extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// Queue key.
    pub qkey: u32,
    /// Who sent it.
    pub source: u32,
}

/// ACK extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// One of [`syndrome`].
    pub syndrome: u8,
    /// Message sequence number.
    pub msn: u32,
}

/// A packet from the BTH on. The default is an empty one of the default P_Key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Packet {
    pub opcode: u8,
    pub solicited: bool,
    pub migrated: bool,
    /// Pad count, where it is not what fills the payload to 4 bytes.
    pub pad: Option<u8>,
    /// Transport header version.
    pub version: u8,
    pub pkey: u16,
    /// Byte 4: FECN, BECN and six reserved bits.
    pub notice: u8,
    pub qpn: u32,
    pub ack_req: bool,
    /// Seven reserved bits beside AckReq.
    pub reserved: u8,
    pub psn: u32,
    pub deth: Option<Deth>,
    pub reth: Option<Reth>,
    pub aeth: Option<Aeth>,
    /// Immediate data, or the key to be invalidated.
    pub imm: Option<[u8; 4]>,
    pub payload: Vec<u8>,
}

impl Default for Packet {
    fn default() -> Self {
        Packet {
            opcode: 0,
            solicited: false,
            migrated: false,
            pad: None,
            version: 0,
            pkey: 0xffff,
            notice: 0,
            qpn: 0,
            ack_req: false,
            reserved: 0,
            psn: 0,
            deth: None,
            reth: None,
            aeth: None,
            imm: None,
            payload: Vec::new(),
        }
    }
}

/// How a frame travels: all in front of the BTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Envelope {
    /// MACs of sender and receiver.
    pub macs: [[u8; 6]; 2],
    /// IPs of sender and receiver, of one family.
    pub ips: [IpAddr; 2],
    pub traffic_class: u8,
    pub hop_limit: u8,
    pub source_port: u16,
    /// The UDP checksum is not 0 but right.
    pub checksum: bool,
}

/// Whether opcode has RETH, AETH and immediate data or the key of an IETH (IBTA 9.2). Those of datagrams have a DETH as well. AtomicETH and AtomicAckETH
/// are payload here.
pub fn extensions(opcode: u8) -> (bool, bool, bool) {
    use op::*;
    let opcode = if matches!(opcode & 0xe0, class::UC | class::UD) { opcode & 0x1f } else { opcode };
    (
        matches!(opcode, WRITE_FIRST | WRITE_ONLY | WRITE_ONLY_IMM | READ_REQUEST | ATOMIC_WRITE),
        matches!(opcode, RESPONSE_FIRST | RESPONSE_LAST | RESPONSE_ONLY | ACK | ATOMIC_ACK),
        matches!(
            opcode,
            SEND_LAST_IMM | SEND_ONLY_IMM | WRITE_LAST_IMM | WRITE_ONLY_IMM | SEND_LAST_INV | SEND_ONLY_INV
        ),
    )
}

impl Packet {
    /// Pad bytes that fill the payload to a multiple of 4.
    fn fill(&self) -> usize {
        self.payload.len().wrapping_neg() % 4
    }

    /// From the BTH to the pad.
    fn bytes(&self) -> Vec<u8> {
        let flag = |on: bool, bit: u32| u8::from(on) << bit;
        let pad = self.pad.unwrap_or(self.fill() as u8);
        let flags = flag(self.solicited, 7) | flag(self.migrated, 6) | (pad & 3) << 4 | self.version & 15;
        let mut b = vec![self.opcode, flags];
        b.extend(self.pkey.to_be_bytes());
        b.push(self.notice);
        b.extend(&self.qpn.to_be_bytes()[1..]);
        b.push(flag(self.ack_req, 7) | self.reserved & 0x7f);
        b.extend(&self.psn.to_be_bytes()[1..]);
        if let Some(d) = self.deth {
            b.extend([d.qkey.to_be_bytes(), d.source.to_be_bytes()].concat());
        }
        if let Some(r) = self.reth {
            b.extend([&r.va.to_be_bytes()[..], &r.rkey.to_be_bytes(), &r.len.to_be_bytes()].concat());
        }
        if let Some(a) = self.aeth {
            b.push(a.syndrome);
            b.extend(&a.msn.to_be_bytes()[1..]);
        }
        b.extend(self.imm.into_iter().flatten());
        b.extend(&self.payload);
        b.resize(b.len() + self.fill(), 0);
        b
    }

    /// The frame, without FCS.
    pub fn frame(&self, e: &Envelope) -> Vec<u8> {
        let mut body = self.bytes();
        body.extend([0; ICRC]);
        let mut frame = Vec::new();
        let link = PacketBuilder::ethernet2(e.macs[0], e.macs[1]);
        let network = match (e.ips[0], e.ips[1]) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let mut ip = Ipv4Header::new(0, e.hop_limit, IpNumber::UDP, from.octets(), to.octets())
                    .expect("no payload is short enough");
                ip.dscp = (e.traffic_class >> 2).try_into().expect("6 bits");
                ip.ecn = (e.traffic_class & 3).try_into().expect("2 bits");
                link.ip(etherparse::IpHeaders::Ipv4(ip, Default::default()))
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let ip = Ipv6Header {
                    traffic_class: e.traffic_class,
                    flow_label: Ipv6FlowLabel::ZERO,
                    payload_length: 0,
                    next_header: IpNumber::UDP,
                    hop_limit: e.hop_limit,
                    source: from.octets(),
                    destination: to.octets(),
                };
                link.ip(etherparse::IpHeaders::Ipv6(ip, Default::default()))
            }
            families => panic!("an envelope from {} to {}", families.0, families.1),
        };
        let udp = network.udp(e.source_port, PORT);
        udp.write(&mut frame, &body).expect("a vector takes it");
        let at = frame.len() - body.len();
        let end = frame.len() - ICRC;
        let crc = icrc(&frame[14..end]);
        frame[end..].copy_from_slice(&crc);
        let sum = if e.checksum { udp_checksum(&frame, at) } else { 0 };
        frame[at - 2..at].copy_from_slice(&sum.to_be_bytes());
        frame.resize(frame.len().max(MIN_FRAME), 0);
        frame
    }

    /// Decodes a frame without FCS. What is not sound in it is the error.
    pub fn of(frame: &[u8]) -> Result<(Envelope, Packet), String> {
        let h = PacketHeaders::from_ethernet_slice(frame).map_err(|e| e.to_string())?;
        let (Some(etherparse::LinkHeader::Ethernet2(eth)), Some(etherparse::TransportHeader::Udp(udp))) =
            (h.link, h.transport)
        else {
            return Err("not UDP in Ethernet".into());
        };
        let body = h.payload.slice();
        let at = body.as_ptr() as usize - frame.as_ptr() as usize;
        let (ips, traffic_class, hop_limit) = match h.net {
            Some(NetHeaders::Ipv4(ip, _)) => {
                ensure(ip.header_checksum == ip.calc_header_checksum(), "the IP checksum is wrong")?;
                ensure(ip.options.is_empty() && !ip.is_fragmenting_payload(), "options or fragments")?;
                let class = ip.dscp.value() << 2 | ip.ecn.value();
                ([ip.source.into(), ip.destination.into()], class, ip.time_to_live)
            }
            Some(NetHeaders::Ipv6(ip, _)) => {
                ([ip.source.into(), ip.destination.into()], ip.traffic_class, ip.hop_limit)
            }
            _ => return Err("not IP".into()),
        };
        ensure(udp.destination_port == PORT, "another UDP port")?;
        ensure(usize::from(udp.length) == 8 + body.len(), "the UDP length is wrong")?;
        ensure(udp.checksum == 0 || udp.checksum == udp_checksum(frame, at), "the UDP checksum is wrong")?;
        ensure(frame[at + body.len()..].iter().all(|b| *b == 0), "padding of the frame that is not 0")?;
        ensure(frame.len() >= MIN_FRAME, "a short frame")?;
        ensure(body.len() >= BTH + ICRC && body.len().is_multiple_of(4), "a BTH that is cut")?;
        let (b, crc) = body.split_at(body.len() - ICRC);
        ensure(icrc(&frame[14..at + b.len()]) == *crc, "the ICRC is wrong")?;
        let envelope = Envelope {
            macs: [eth.source, eth.destination],
            ips,
            traffic_class,
            hop_limit,
            source_port: udp.source_port,
            checksum: udp.checksum != 0,
        };
        Ok((envelope, Self::body(b)?))
    }

    /// Decodes from the BTH to the pad.
    fn body(b: &[u8]) -> Result<Packet, String> {
        let word = |at: usize| u32::from_be_bytes(b[at..at + 4].try_into().expect("four bytes"));
        let (reth, aeth, imm) = extensions(b[0]);
        let deth = b[0] & 0xe0 == class::UD;
        let extended = 8 * usize::from(deth) + 16 * usize::from(reth) + 4 * usize::from(aeth) + 4 * usize::from(imm);
        let pad = usize::from(b[1] >> 4 & 3);
        let head = BTH + extended;
        ensure(b.len() >= head + pad, "shorter than its headers and pad")?;
        let (payload, fill) = b[head..].split_at(b.len() - head - pad);
        ensure(fill.iter().all(|b| *b == 0), "pad bytes that are not 0")?;
        let after_reth = BTH + 8 * usize::from(deth) + 16 * usize::from(reth);
        Ok(Packet {
            opcode: b[0],
            solicited: b[1] & 0x80 != 0,
            migrated: b[1] & 0x40 != 0,
            pad: None,
            version: b[1] & 15,
            pkey: (word(0) & 0xffff) as u16,
            notice: b[4],
            qpn: word(4) & 0xff_ffff,
            ack_req: b[8] & 0x80 != 0,
            reserved: b[8] & 0x7f,
            psn: word(8) & 0xff_ffff,
            deth: deth.then(|| Deth { qkey: word(BTH), source: word(BTH + 4) & 0xff_ffff }),
            reth: reth.then(|| Reth {
                va: u64::from(word(BTH)) << 32 | u64::from(word(BTH + 4)),
                rkey: word(BTH + 8),
                len: word(BTH + 12),
            }),
            aeth: aeth.then(|| Aeth { syndrome: b[BTH], msn: word(BTH) & 0xff_ffff }),
            imm: imm.then(|| word(after_reth).to_be_bytes()),
            payload: payload.to_vec(),
        })
    }
}

fn ensure(holds: bool, what: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what.into()) }
}

/// ICRC over a packet from the IP header to the pad (A17.3.3): what changes on the way counts as ones, as does an LRH.
pub fn icrc(packet: &[u8]) -> [u8; 4] {
    let mut image = packet.to_vec();
    let (udp, masked): (usize, &[usize]) =
        if packet[0] >> 4 == 4 { (20, &[1, 8, 10, 11]) } else { (40, &[1, 2, 3, 7]) };
    masked.iter().chain(&[udp + 6, udp + 7, udp + 8 + 4]).for_each(|at| image[*at] = 0xff);
    if udp == 40 {
        image[0] |= 0x0f;
    }
    let mut crc = crc32fast::Hasher::new();
    crc.update(&[0xff; 8]);
    crc.update(&image);
    crc.finalize().to_le_bytes()
}

/// UDP checksum of a frame whose BTH is at `at`, over all of the datagram with its ICRC.
fn udp_checksum(frame: &[u8], at: usize) -> u16 {
    let length = u16::from_be_bytes([frame[at - 4], frame[at - 3]]);
    let port = u16::from_be_bytes([frame[at - 8], frame[at - 7]]);
    let body = &frame[at..at - 8 + usize::from(length)];
    let udp = UdpHeader { source_port: port, destination_port: PORT, length, checksum: 0 };
    let octets = |from: usize| frame[from..from + 16].try_into().expect("sixteen bytes");
    let sum = match frame[14] >> 4 {
        4 => udp.calc_checksum_ipv4_raw(
            frame[26..30].try_into().expect("four bytes"),
            frame[30..34].try_into().expect("four bytes"),
            body,
        ),
        _ => udp.calc_checksum_ipv6_raw(octets(22), octets(38), body),
    };
    sum.expect("a datagram that was built or decoded")
}

impl fmt::Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 18] = [
            "SEND FIRST",
            "SEND MIDDLE",
            "SEND LAST",
            "SEND LAST imm",
            "SEND ONLY",
            "SEND ONLY imm",
            "WRITE FIRST",
            "WRITE MIDDLE",
            "WRITE LAST",
            "WRITE LAST imm",
            "WRITE ONLY",
            "WRITE ONLY imm",
            "READ request",
            "READ response FIRST",
            "READ response MIDDLE",
            "READ response LAST",
            "READ response ONLY",
            "ACK",
        ];
        let name =
            NAMES.get(usize::from(self.opcode)).map_or_else(|| format!("opcode {:#04x}", self.opcode), |n| (*n).into());
        write!(f, "{name} psn {:#08x}", self.psn)?;
        for (on, what) in [(self.ack_req, "AckReq"), (self.solicited, "SE"), (self.migrated, "MigReq")] {
            if on {
                write!(f, " {what}")?;
            }
        }
        if let Some(r) = self.reth {
            write!(f, " va {:#x} rkey {:#x} len {}", r.va, r.rkey, r.len)?;
        }
        if let Some(a) = self.aeth {
            write!(f, " syndrome {:#04x} msn {}", a.syndrome, a.msn)?;
        }
        if let Some(i) = self.imm {
            write!(f, " imm {i:02x?}")?;
        }
        let n = self.payload.len();
        write!(f, " payload {n} {:02x?}{}", &self.payload[..n.min(8)], if n > 8 { ".." } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Golden vectors of three origins: hardware or its makers (UC SEND ONLY over IPv4 and IPv6 with UDP checksums), and this
    /// project's own RC ones.
    const GOLDEN: [&str; 5] = [
        "000000000000000000000000080045010040047840004011b4d5c0a80007c0a80007c00012b7002caca22460ffff000000d300cf17104630818be28935d90e9a95505401be885e50000078f353f3",
        "00000000000000000000000086dd6e21face002c11ff2022000000000000000000000000102320230000000000000000000000001024c00012b7002ce7c52460ffff000000d300cf17104630818be28935d90e9a95505401be885e5000003e5b743b",
        "02000000000202000000000108004502002c00004000401126bd0a0000010a000002c00012b7001800000440ffff00000012800000011839f5ef",
        "02000000000202000000000108004502003000004000401126b90a0000010a000002c00012b7001c00000470ffff0000001200000001aa000000f8ae3af3",
        "02000000000202000000000108004502004400004000401126a50a0000010a000002c00012b7003000000a70ffff00000012800000010000000000001000000012340000000568656c6c6f00000058c5fe85",
    ];

    fn golden(text: &str) -> Vec<u8> {
        let mut frame: Vec<u8> =
            (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect();
        frame.resize(frame.len().max(MIN_FRAME), 0);
        frame
    }

    #[test]
    fn golden_frames_decode_and_encode() {
        for text in GOLDEN {
            let frame = golden(text);
            let (e, p) = Packet::of(&frame).unwrap_or_else(|why| panic!("{why}: {text}"));
            let again = p.frame(&e);
            assert_eq!(Packet::of(&again), Ok((e, p.clone())), "{p}");
            // From the BTH on, ICRC apart where IP id and flow label are others'.
            let (at, end) = if frame[12] == 8 { (42, frame.len() - 4) } else { (62, frame.len() - 4) };
            assert_eq!(again[at..end.min(again.len())], frame[at..end], "{p}");
        }
    }

    #[test]
    fn fields_are_where_the_standard_has_them() {
        let (e, p) = Packet::of(&golden(GOLDEN[4])).unwrap();
        let want = Packet {
            opcode: op::WRITE_ONLY,
            migrated: true,
            qpn: 0x12,
            ack_req: true,
            psn: 1,
            reth: Some(Reth { va: 0x1000, rkey: 0x1234, len: 5 }),
            payload: b"hello".to_vec(),
            ..Packet::default()
        };
        assert_eq!(p, want);
        assert_eq!((e.traffic_class, e.hop_limit, e.source_port, e.checksum), (2, 64, 0xc000, false));
        assert_eq!(p.frame(&e), golden(GOLDEN[4]));
    }

    #[test]
    fn what_is_not_sound_is_refused() {
        let sound = golden(GOLDEN[4]);
        // All but the fields that the ICRC leaves out: traffic class, TTL, IP and UDP checksum, the byte with FECN and BECN.
        for at in (14..sound.len()).filter(|at| ![15, 22, 46].contains(at)) {
            let mut frame = sound.clone();
            frame[at] ^= 4;
            assert!(Packet::of(&frame).is_err(), "byte {at}");
        }
    }

    #[test]
    fn the_contract_has_the_same_extended_headers() {
        let datagrams = [op::SEND_ONLY, op::SEND_ONLY_IMM].map(|low| class::UD | low);
        for opcode in (0..=op::ACK)
            .chain([op::ATOMIC_WRITE])
            .chain((0..=op::WRITE_ONLY_IMM).map(|low| class::UC | low))
            .chain(datagrams)
        {
            let info = abi::wire::op_info(opcode).expect("spoken");
            assert_eq!(extensions(opcode), (info.reth, info.aeth, info.imm), "{}", info.name);
            assert_eq!(opcode & 0xe0 == class::UD, info.deth, "{}", info.name);
        }
    }
}
