//! The rules of ingress for a whole frame, byte by byte: what the block is compared with.

use super::super::*;
use crate::wire::testing::icrc_of;
use abi::wire::{len, op_info};

/// A GID row of the reference.
#[derive(Clone, Debug, PartialEq)]
pub struct Address {
    pub mac: [u8; 6],
    pub vlan: Option<u16>,
    /// 4 or 16 bytes.
    pub ip: Vec<u8>,
}

#[derive(Clone, Default)]
pub struct Setup {
    pub gids: Vec<Address>,
    pub mac: [u8; 6],
    pub raw_on: bool,
    pub promiscuous: bool,
    pub groups: Vec<[u8; 6]>,
}

pub enum Verdict {
    Drop(usize),
    /// Meta data with `buf` counted from the frame's start and its own `rows`.
    Pass(Box<RxMeta>),
}

pub fn big<const N: usize>(bytes: &[u8]) -> Bits<N> {
    bits::<N>(bytes.iter().fold(0, |n, b| n << 8 | *b as u64))
}

pub fn little<const N: usize>(bytes: &[u8]) -> Bits<N> {
    bytes.iter().rev().fold(0.into(), |n: Bits<N>, b| n << 8 | bits::<N>(*b as u64))
}

/// Ones' complement sum of big-endian words.
pub fn sum16(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| (pair[0] as u32) << 8 | *pair.get(1).unwrap_or(&0) as u32;
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

pub fn word(frame: &[u8], at: usize) -> usize {
    (frame[at] as usize) << 8 | frame[at + 1] as usize
}

/// Where the frame's IP header begins.
pub fn ip_at(frame: &[u8]) -> usize {
    if word(frame, 12) == 0x8100 { 18 } else { 14 }
}

/// The sum over UDP header, payload and pseudo header.
pub fn udp_sum(frame: &[u8]) -> u16 {
    let ip = ip_at(frame);
    let (addresses, udp) = if frame[ip] >> 4 == 6 { (ip + 8, ip + 40) } else { (ip + 12, ip + 20) };
    let end = udp + word(frame, udp + 4);
    sum16(&[&frame[addresses..udp], &[0, 17], &frame[udp + 4..udp + 6], &frame[udp..end]].concat())
}

/// The rules, frame by frame.
pub fn judge(frame: &[u8], error: bool, setup: &Setup, beat: usize) -> Verdict {
    use counter::*;
    let size = frame.len();
    if error || size > wire::MAX_FRAME {
        return Verdict::Drop(RX_MAC_ERROR);
    }
    if size < shortest(8 * beat) {
        return Verdict::Drop(RX_MALFORMED);
    }
    let ip = ip_at(frame);
    let tci = if ip == 18 && size >= 16 { word(frame, 14) } else { 0 };
    let kind = if size >= ip { word(frame, ip - 2) } else { 0 };
    let header = match kind {
        0x0800 => 20,
        0x86dd => 40,
        _ => 0,
    };
    let cut = header != 0 && size < ip + header;
    let whole = header != 0 && !cut;
    let ip4 = whole && header == 20 && frame[ip] >> 4 == 4;
    let ip6 = whole && header == 40 && frame[ip] >> 4 == 6;
    let multicast = frame[0] & 1 == 1;
    let own = frame[..6] == setup.mac || !multicast && setup.gids.iter().any(|g| g.mac == frame[..6]);
    let heard = frame[..6] == [0xff; 6] || setup.groups.iter().any(|g| *g == frame[..6]);
    let raw_wanted = setup.raw_on && (setup.promiscuous || own || heard);
    let base = RxMeta { rows: bits::<12>(size.div_ceil(beat) as u64), ..Default::default() };
    let raw = RxMeta { raw: true, payload: bits::<14>(size as u64), ..base };

    let (mut roce_port, mut ours, mut unsupported, mut later, mut extension) = (false, None, false, false, false);
    let (mut datagram, mut short) = (false, false);
    if ip4 || ip6 {
        let (ihl, next) = if ip4 { ((frame[ip] & 15) as usize * 4, frame[ip + 9]) } else { (40, frame[ip + 6]) };
        let dip = if ip4 { &frame[ip + 16..ip + 20] } else { &frame[ip + 24..ip + 40] };
        ours = setup.gids.iter().position(|gid| {
            gid.mac == frame[..6]
                && gid.ip == dip
                && gid.vlan.unwrap_or(0) as usize == tci & 0xfff
                && (gid.vlan.is_none() || ip == 18)
        });
        let fragment = if ip4 { word(frame, ip + 6) } else { 0 };
        later = fragment & 0x1fff != 0;
        unsupported = ip4 && ihl != 20 || fragment & 0x2000 != 0;
        extension = ip6 && [0, 43, 44, 60].contains(&next);
        short = next == 17 && size < ip + ihl + 8;
        datagram = next == 17 && !short && !later;
        roce_port = datagram && word(frame, ip + ihl + 2) == 4791;
    }
    let Some(gid) = ours.filter(|_| roce_port) else {
        return if raw_wanted {
            Verdict::Pass(Box::new(raw))
        } else if roce_port {
            Verdict::Drop(RX_ADDRESS)
        } else if ours.is_some() && (later || extension) {
            Verdict::Drop(RX_IP_UNSUPPORTED)
        } else if cut || short {
            Verdict::Drop(RX_MALFORMED)
        } else {
            Verdict::Drop(RX_RAW_DROPPED)
        };
    };
    assert!(datagram);
    if unsupported {
        return Verdict::Drop(RX_IP_UNSUPPORTED);
    }
    if ip4 && sum16(&frame[ip..ip + 20]) != 0xffff {
        return Verdict::Drop(RX_IP_CHECKSUM);
    }
    let udp = ip + header;
    let udp_len = word(frame, udp + 4);
    let ip_len = if ip4 { word(frame, ip + 2) } else { word(frame, ip + 4) + 40 };
    if ip + ip_len > size || udp_len + header != ip_len || udp_len < 24 || !udp_len.is_multiple_of(4) {
        return Verdict::Drop(RX_MALFORMED);
    }
    if word(frame, udp + 6) != 0 && udp_sum(frame) != 0xffff {
        return Verdict::Drop(RX_IP_CHECKSUM);
    }
    let end = udp + udp_len;
    if icrc_of(&frame[..end - 4]).to_le_bytes() != frame[end - 4..end] {
        return Verdict::Drop(RX_ICRC);
    }
    let bth = udp + 8;
    let (Some(op), 0) = (op_info(frame[bth]), frame[bth + 1] & 15) else { return Verdict::Drop(RX_OPCODE) };
    let to_all = frame[bth + 5..bth + 8] == [0xff; 3];
    if multicast != to_all || multicast && !op.deth {
        return Verdict::Drop(RX_ADDRESS);
    }
    let pad = (frame[bth + 1] >> 4 & 3) as usize;
    let ext = bth + 12;
    let payload = (udp_len as isize) - (24 + op.ext_len() + pad) as isize;
    if payload < 0 || payload > 0 && !op.payload {
        return Verdict::Drop(RX_MALFORMED);
    }
    // The last operand of an atomic is payload, as is what its acknowledge brings.
    let operand = if op.atomic || op.atomic_ack { 8 } else { 0 };
    let at = |from: usize, bytes: usize| &frame[from..from + bytes];
    let imm = ext + op.deth as usize * len::DETH + op.reth as usize * len::RETH;
    let (va, rkey, dma_len) = (op.reth || op.atomic, op.reth || op.atomic || op.deth, op.reth);
    Verdict::Pass(Box::new(RxMeta {
        raw: false,
        response: (0x0d..=0x12).contains(&frame[bth]),
        buf: bits::<20>((ext + op.ext_len() - operand) as u64),
        payload: bits::<14>((payload + operand as isize) as u64),
        opcode: bits::<8>(frame[bth] as u64),
        qpn: big(at(bth + 5, 3)),
        psn: big(at(bth + 9, 3)),
        pkey: big(at(bth + 2, 2)),
        ack_req: frame[bth + 8] >> 7 == 1,
        solicited: frame[bth + 1] >> 7 == 1,
        pad: bits::<2>(pad as u64),
        va: if va { big(at(ext, 8)) } else { 0.into() },
        rkey: if rkey { big(at(ext + va as usize * 8, 4)) } else { 0.into() },
        dma_len: if dma_len { big(at(ext + 12, 4)) } else { 0.into() },
        syndrome: if op.aeth { bits::<8>(frame[ext] as u64) } else { 0.into() },
        msn: if op.aeth {
            big(at(ext + 1, 3))
        } else if op.deth {
            big(at(ext + 5, 3))
        } else {
            0.into()
        },
        imm: if op.imm || op.ieth { little(at(imm, 4)) } else { 0.into() },
        sip: if ip4 { little(at(ip + 12, 4)) } else { little(at(ip + 8, 16)) },
        ip6,
        gid: bits::<8>(gid as u64),
        group: multicast,
        vlan: bits::<16>(tci as u64),
        ce: if ip4 { frame[ip + 1] & 3 == 3 } else { frame[ip + 1] >> 4 & 3 == 3 },
        ..base
    }))
}
