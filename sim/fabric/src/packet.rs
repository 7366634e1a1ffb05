//! What a frame on the wire says, for fault rules, captures and tests. Decoded with `etherparse` down to UDP and by hand
//! from the BTH on; independent of the RTL's parser.

use abi::wire::{ROCE_PORT, len, op_info};
use etherparse::{NetSlice, SlicedPacket, TransportSlice};

/// A decoded RoCE v2 frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// BTH opcode.
    pub opcode: u8,
    /// Destination QPN.
    pub qpn: u32,
    /// PSN.
    pub psn: u32,
    /// AckReq.
    pub ack_req: bool,
    /// AETH syndrome and MSN, for opcodes that have an AETH.
    pub aeth: Option<(u8, u32)>,
    /// Payload bytes without pad.
    pub payload: usize,
    /// Where the BTH starts in the frame.
    pub bth: usize,
    /// Where the IP header starts.
    pub ip: usize,
    /// Where the payload starts, or would.
    pub body: usize,
    /// Where the ICRC starts.
    pub icrc: usize,
}

impl Packet {
    /// Decodes a frame; `None` when it is not RoCE v2 or is cut short.
    pub fn of(frame: &[u8]) -> Option<Packet> {
        let sliced = SlicedPacket::from_ethernet(frame).ok()?;
        let Some(TransportSlice::Udp(udp)) = &sliced.transport else { return None };
        if udp.destination_port() != ROCE_PORT {
            return None;
        }
        let at = |part: &[u8]| part.as_ptr() as usize - frame.as_ptr() as usize;
        let ip = match &sliced.net {
            Some(NetSlice::Ipv4(ip)) => at(ip.header().slice()),
            Some(NetSlice::Ipv6(ip)) => at(ip.header().slice()),
            _ => return None,
        };
        let b = udp.payload();
        let info = b.first().and_then(|o| op_info(*o));
        let ext = info.map_or(0, |i| i.ext_len());
        let pad = b.get(1).map_or(0, |x| usize::from(x >> 4 & 3));
        let payload = b.len().checked_sub(len::BTH + ext + pad + len::ICRC)?;
        let word = |o: usize| u32::from_be_bytes([0, b[o], b[o + 1], b[o + 2]]);
        let aeth = info.filter(|i| i.aeth).map(|_| (b[len::BTH], word(len::BTH + 1)));
        Some(Packet {
            opcode: b[0],
            qpn: word(5),
            psn: word(9),
            ack_req: b[8] & 0x80 != 0,
            aeth,
            payload,
            bth: at(b),
            ip,
            body: at(b) + len::BTH + ext,
            icrc: at(b) + b.len() - len::ICRC,
        })
    }
}

impl std::fmt::Display for Packet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = op_info(self.opcode).map_or("reserved", |i| i.name);
        write!(f, "{name} qpn {} psn {:#08x} payload {}", self.qpn, self.psn, self.payload)?;
        if let Some((syndrome, msn)) = self.aeth {
            write!(f, " syndrome {syndrome:#04x} msn {msn}")?;
        }
        Ok(())
    }
}
