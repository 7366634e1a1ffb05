//! Messages, and the packets that they are.

use super::{Aeth, Packet, Reth, behind, op, syndrome};

/// What a message does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Operation {
    Send,
    Write { va: u64, rkey: u32 },
    Read { va: u64, rkey: u32, len: usize },
}

/// A message of a requester.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What it does.
    pub operation: Operation,
    /// What it carries.
    pub data: Vec<u8>,
    /// Immediate data, of a SEND or WRITE; or, if it `invalidates`, the key that a SEND names, as it stands on the wire.
    pub imm: Option<[u8; 4]>,
    /// See `imm`.
    pub invalidates: bool,
    /// Solicited event.
    pub solicited: bool,
}

impl Request {
    fn new(operation: Operation, data: Vec<u8>) -> Self {
        Request { operation, data, imm: None, invalidates: false, solicited: false }
    }

    /// A SEND.
    pub fn send(data: Vec<u8>) -> Self {
        Self::new(Operation::Send, data)
    }

    /// A WRITE.
    pub fn write(va: u64, rkey: u32, data: Vec<u8>) -> Self {
        Self::new(Operation::Write { va, rkey }, data)
    }

    /// A READ of `len` bytes.
    pub fn read(va: u64, rkey: u32, len: usize) -> Self {
        Self::new(Operation::Read { va, rkey, len }, Vec::new())
    }

    /// The same with immediate data.
    pub fn imm(self, imm: [u8; 4]) -> Self {
        Request { imm: Some(imm), ..self }
    }

    /// A SEND that invalidates a key.
    pub fn invalidate(self, rkey: u32) -> Self {
        Request { imm: Some(rkey.to_be_bytes()), invalidates: true, ..self }
    }

    /// The same with a solicited event.
    pub fn solicited(self) -> Self {
        Request { solicited: true, ..self }
    }

    /// PSNs that it takes: those of a READ's response, else one for each packet.
    pub fn psns(&self, mtu: usize) -> u32 {
        let len = if let Operation::Read { len, .. } = self.operation { len } else { self.data.len() };
        len.div_ceil(mtu).max(1) as u32
    }

    /// Its packets from `psn` on, the last with AckReq. The QPN is left 0.
    pub fn packets(&self, psn: u32, mtu: usize) -> Vec<Packet> {
        let (va, rkey, len) = match self.operation {
            Operation::Read { va, rkey, len } => return vec![read(va, rkey, len, psn)],
            Operation::Write { va, rkey } => (va, rkey, self.data.len()),
            Operation::Send => (0, 0, 0),
        };
        let write = self.operation != Operation::Send;
        let mut parts: Vec<&[u8]> = self.data.chunks(mtu).collect();
        if parts.is_empty() {
            parts.push(&[]);
        }
        let last = parts.len() - 1;
        let packet = |(i, part): (usize, &[u8])| {
            let send = match (i == 0, i == last) {
                (true, false) => op::SEND_FIRST,
                (false, false) => op::SEND_MIDDLE,
                (false, true) => op::SEND_LAST,
                (true, true) => op::SEND_ONLY,
            };
            let imm = self.imm.filter(|_| i == last);
            Packet {
                opcode: match (send, imm) {
                    (op::SEND_LAST, Some(_)) if self.invalidates => op::SEND_LAST_INV,
                    (op::SEND_ONLY, Some(_)) if self.invalidates => op::SEND_ONLY_INV,
                    _ => send + if write { op::WRITE_FIRST } else { 0 } + u8::from(imm.is_some()),
                },
                solicited: self.solicited && i == last,
                ack_req: i == last,
                psn: behind(psn, i as u32),
                reth: (write && i == 0).then_some(Reth { va, rkey, len: len as u32 }),
                imm,
                payload: part.to_vec(),
                ..Packet::default()
            }
        };
        parts.into_iter().enumerate().map(packet).collect()
    }
}

fn read(va: u64, rkey: u32, len: usize, psn: u32) -> Packet {
    let reth = Some(Reth { va, rkey, len: len as u32 });
    Packet { opcode: op::READ_REQUEST, ack_req: true, psn, reth, ..Packet::default() }
}

/// An atomic about the word at `va` under `rkey` (IBTA 9.4.5): compare-and-swap of `compare` by `operand`, or fetch-and-add of `operand`.
pub fn atomic(opcode: u8, psn: u32, va: u64, rkey: u32, [operand, compare]: [u64; 2]) -> Packet {
    let words = [operand.to_be_bytes(), compare.to_be_bytes()].concat();
    let payload = [&va.to_be_bytes()[..], &rkey.to_be_bytes(), &words].concat();
    Packet { opcode, psn, ack_req: true, payload, ..Packet::default() }
}

/// An atomic write of `data` to `va` under `rkey` (IBTA 1.5, 9.4.6). A [`respond`] without data answers it.
pub fn atomic_write(psn: u32, va: u64, rkey: u32, data: [u8; 8]) -> Packet {
    let reth = Some(Reth { va, rkey, len: 8 });
    Packet { opcode: op::ATOMIC_WRITE, psn, ack_req: true, reth, payload: data.to_vec(), ..Packet::default() }
}

/// The answer to an atomic that found `value`.
pub fn atomic_ack(psn: u32, msn: u32, value: u64) -> Packet {
    Packet { opcode: op::ATOMIC_ACK, payload: value.to_be_bytes().to_vec(), ..ack(psn, syndrome::ACK, msn) }
}

/// An ACK or NAK.
pub fn ack(psn: u32, syndrome: u8, msn: u32) -> Packet {
    Packet { opcode: op::ACK, psn, aeth: Some(Aeth { syndrome, msn }), ..Packet::default() }
}

/// The response of a READ of `data` from `psn` on.
pub fn respond(psn: u32, msn: u32, data: &[u8], mtu: usize) -> Vec<Packet> {
    // The same cut as a SEND's.
    let mut packets = Request::send(data.to_vec()).packets(psn, mtu);
    for p in &mut packets {
        p.opcode = match p.opcode {
            op::SEND_FIRST => op::RESPONSE_FIRST,
            op::SEND_MIDDLE => op::RESPONSE_MIDDLE,
            op::SEND_LAST => op::RESPONSE_LAST,
            _ => op::RESPONSE_ONLY,
        };
        p.ack_req = false;
        p.aeth = (p.opcode != op::RESPONSE_MIDDLE).then_some(Aeth { syndrome: syndrome::ACK, msn });
    }
    packets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_at_the_mtu() {
        let cut = |r: Request| {
            r.packets(0xff_ffff, 256).iter().map(|p| (p.opcode, p.psn, p.payload.len())).collect::<Vec<_>>()
        };
        assert_eq!(cut(Request::send(vec![0; 600])), [(0, 0xff_ffff, 256), (1, 0, 256), (2, 1, 88)]);
        assert_eq!(cut(Request::write(0, 0, vec![0; 512]).imm([1; 4])), [(6, 0xff_ffff, 256), (9, 0, 256)]);
        assert_eq!(cut(Request::send(vec![]).invalidate(1)), [(23, 0xff_ffff, 0)]);
        assert_eq!(cut(Request::send(vec![0; 512]).invalidate(1)), [(0, 0xff_ffff, 256), (22, 0, 256)]);
        assert_eq!(cut(Request::write(0, 0, vec![]).imm([1; 4])), [(11, 0xff_ffff, 0)]);
        assert_eq!((cut(Request::read(0, 0, 600)), Request::read(0, 0, 600).psns(256)), (vec![(12, 0xff_ffff, 0)], 3));
        let opcodes: Vec<_> = respond(0, 1, &[0; 600], 256).iter().map(|p| p.opcode).collect();
        assert_eq!(opcodes, [13, 14, 15]);
        assert_eq!(respond(0, 1, &[], 256)[0].opcode, 16);
    }
}
