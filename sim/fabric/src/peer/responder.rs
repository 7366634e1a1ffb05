//! A sound responder (IBTA 9.7.4, 9.9) for peers that are sound themselves: it panics at a request that no sound requester sends.

use super::{Operation, Packet, Request, Reth, ack, ahead, behind, extensions, op, respond, syndrome};

/// What a receive got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Data of a SEND; none of a WRITE.
    pub data: Vec<u8>,
    /// Immediate data.
    pub imm: Option<[u8; 4]>,
}

impl Received {
    /// What a message leaves in its receive.
    pub fn of(request: &Request) -> Self {
        let data = if request.operation == Operation::Send { request.data.clone() } else { Vec::new() };
        Received { data, imm: request.imm }
    }
}

/// A message under way.
struct Message {
    /// Of a WRITE; its length counts down.
    write: Option<Reth>,
    data: Vec<u8>,
}

/// Its memory, and how far it is.
pub struct Responder {
    mtu: usize,
    expected: u32,
    msn: u32,
    /// A NAK for the expected PSN is out.
    nak_out: bool,
    va: u64,
    rkey: u32,
    message: Option<Message>,
    /// Requests may write and read it.
    pub memory: Vec<u8>,
    /// Receives that are posted.
    pub receives: usize,
    /// Receives that are complete.
    pub received: Vec<Received>,
}

impl Responder {
    /// Expects `psn` first; its memory begins at `va` and has `len` bytes.
    pub fn new(psn: u32, mtu: usize, va: u64, rkey: u32, len: usize) -> Self {
        Responder {
            mtu,
            expected: psn,
            msn: 0,
            nak_out: false,
            va,
            rkey,
            message: None,
            memory: vec![0; len],
            receives: 0,
            received: Vec::new(),
        }
    }

    /// Hears a request; returns its answers.
    pub fn hear(&mut self, p: &Packet) -> Vec<Packet> {
        match ahead(p.psn, self.expected) {
            0 => self.execute(p),
            1.. if self.nak_out => Vec::new(),
            1.. => {
                self.nak_out = true;
                vec![ack(self.expected, syndrome::SEQUENCE, self.msn)]
            }
            _ if p.opcode == op::READ_REQUEST => self.read(p),
            _ => vec![ack(behind(self.expected, 0xff_ffff), syndrome::ACK, self.msn)],
        }
    }

    fn execute(&mut self, p: &Packet) -> Vec<Packet> {
        let opens = matches!(p.opcode, 0 | 4..=6 | 10..=12);
        let closes = !matches!(p.opcode, op::SEND_FIRST | op::SEND_MIDDLE | op::WRITE_FIRST | op::WRITE_MIDDLE);
        let write = (op::WRITE_FIRST..=op::WRITE_ONLY_IMM).contains(&p.opcode);
        assert!(p.opcode <= op::READ_REQUEST && opens == self.message.is_none(), "out of turn: {p}");
        assert_eq!((p.reth.is_some(), false, p.imm.is_some()), extensions(p.opcode), "{p}");
        let takes = closes && (!write || p.imm.is_some()) && p.opcode != op::READ_REQUEST;
        if (takes || p.opcode < op::WRITE_FIRST) && self.receives == 0 {
            return vec![ack(self.expected, syndrome::RNR | 1, self.msn)];
        }
        self.nak_out = false;
        if p.opcode == op::READ_REQUEST {
            let len = p.reth.map_or(0, |r| r.len as usize);
            self.expected = behind(self.expected, len.div_ceil(self.mtu).max(1) as u32);
            self.msn += 1;
            return self.read(p);
        }
        let full = p.payload.len() == self.mtu;
        assert!(if closes { p.payload.len() <= self.mtu } else { full }, "of another length: {p}");
        assert!(opens || !p.payload.is_empty(), "an empty end: {p}");
        let mut m = self.message.take().unwrap_or(Message { write: p.reth, data: Vec::new() });
        assert_eq!(m.write.is_some(), write, "a message within another: {p}");
        match &mut m.write {
            Some(reth) if !p.payload.is_empty() => {
                let at = self.place(reth.va, p.payload.len(), reth.rkey);
                self.memory[at.clone()].copy_from_slice(&p.payload);
                (reth.va, reth.len) = (reth.va + at.len() as u64, reth.len - at.len() as u32);
            }
            Some(_) => {}
            None => m.data.extend(&p.payload),
        }
        self.expected = behind(self.expected, 1);
        if closes {
            assert_eq!(m.write.map_or(0, |reth| reth.len), 0, "shorter than its DMA length: {p}");
            self.msn += 1;
            if takes {
                self.receives -= 1;
                self.received.push(Received { data: m.data, imm: p.imm });
            }
        } else {
            self.message = Some(m);
        }
        if p.ack_req { vec![ack(p.psn, syndrome::ACK, self.msn)] } else { Vec::new() }
    }

    fn read(&self, p: &Packet) -> Vec<Packet> {
        let reth = p.reth.expect("a READ request has one");
        let at = if reth.len == 0 { 0..0 } else { self.place(reth.va, reth.len as usize, reth.rkey) };
        respond(p.psn, self.msn, &self.memory[at], self.mtu)
    }

    /// Where in the memory an access is.
    fn place(&self, va: u64, len: usize, rkey: u32) -> std::ops::Range<usize> {
        assert_eq!(rkey, self.rkey, "another key");
        let at = va.checked_sub(self.va).expect("before the memory") as usize;
        assert!(at + len <= self.memory.len(), "behind the memory");
        at..at + len
    }
}
