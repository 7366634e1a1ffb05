//! A sound requester without a clock (IBTA 9.7): it goes back when it is told to, or when an answer shows a loss.

use super::{Operation, Packet, Request, ahead, behind, op, syndrome};
use std::collections::VecDeque;

/// A message that is not acknowledged, and what of its READ response has come.
struct Sent {
    psn: u32,
    request: Request,
    got: Vec<u8>,
}

/// What it has sent, and what became of it.
pub struct Requester {
    mtu: usize,
    next: u32,
    sent: VecDeque<Sent>,
    /// Data of READs that are complete, in order.
    pub reads: Vec<Vec<u8>>,
    /// The NAK that ended it.
    pub failed: Option<u8>,
}

impl Requester {
    /// Begins at a PSN.
    pub fn new(psn: u32, mtu: usize) -> Self {
        Requester { mtu, next: psn, sent: VecDeque::new(), reads: Vec::new(), failed: None }
    }

    /// Something is not acknowledged.
    pub fn is_busy(&self) -> bool {
        !self.sent.is_empty() && self.failed.is_none()
    }

    /// Sends a message: these packets.
    pub fn post(&mut self, request: Request) -> Vec<Packet> {
        let packets = request.packets(self.next, self.mtu);
        let psn = self.next;
        self.next = behind(psn, request.psns(self.mtu));
        self.sent.push_back(Sent { psn, request, got: Vec::new() });
        packets
    }

    /// Sends all again that is not acknowledged.
    pub fn timeout(&mut self) -> Vec<Packet> {
        self.sent.front().map_or(Vec::new(), |s| self.again(s.psn))
    }

    /// Hears an answer; returns what it sends for it.
    pub fn hear(&mut self, p: &Packet) -> Vec<Packet> {
        let Some(oldest) = self.sent.front().map(|s| s.psn) else { return Vec::new() };
        if ahead(p.psn, oldest) < 0 || ahead(p.psn, self.next) >= 0 {
            return Vec::new();
        }
        let kind = p.aeth.map_or(syndrome::ACK, |a| a.syndrome);
        match kind >> 5 {
            // What is before a NAK is acknowledged, and so is a READ response's own PSN: by its data.
            0 if p.opcode == op::ACK => self.acknowledge(behind(p.psn, 1), p.psn),
            0 => {
                let lost = self.acknowledge(p.psn, p.psn);
                if lost.is_empty() { self.data(p) } else { lost }
            }
            1 | 3 if matches!(kind, syndrome::SEQUENCE) || kind >> 5 == 1 => {
                let lost = self.acknowledge(p.psn, p.psn);
                if lost.is_empty() { self.again(p.psn) } else { lost }
            }
            _ => {
                self.failed = Some(kind);
                Vec::new()
            }
        }
    }

    /// All before PSN `to` is acknowledged, by an answer of PSN `by`. A READ that ends before the answer lost its response: implied NAK.
    fn acknowledge(&mut self, to: u32, by: u32) -> Vec<Packet> {
        while let Some(s) = self.sent.front() {
            let end = behind(s.psn, s.request.psns(self.mtu));
            let read = matches!(s.request.operation, Operation::Read { .. });
            if read && ahead(by, end) >= 0 {
                return self.again(s.psn);
            }
            if read || ahead(end, to) > 0 {
                break;
            }
            self.sent.pop_front();
        }
        Vec::new()
    }

    /// A packet of the response of the oldest message.
    fn data(&mut self, p: &Packet) -> Vec<Packet> {
        let Some(s) = self.sent.front_mut() else { return Vec::new() };
        let Operation::Read { len, .. } = s.request.operation else { return Vec::new() };
        let want = behind(s.psn, (s.got.len() / self.mtu) as u32);
        match ahead(p.psn, want) {
            0 => {
                s.got.extend(&p.payload);
                if s.got.len() == len {
                    self.reads.extend(self.sent.pop_front().map(|s| s.got));
                }
                Vec::new()
            }
            1.. => self.again(want),
            _ => Vec::new(),
        }
    }

    /// All from PSN `from` on; a READ begins with what of its response has not come.
    fn again(&self, from: u32) -> Vec<Packet> {
        let packets = self.sent.iter().flat_map(|s| match s.request.operation {
            Operation::Read { va, rkey, len } => {
                let got = s.got.len();
                let psn = behind(s.psn, (got / self.mtu) as u32);
                Request::read(va + got as u64, rkey, len - got).packets(psn, self.mtu)
            }
            _ => s.request.packets(s.psn, self.mtu),
        });
        packets.filter(|p| ahead(p.psn, from) >= 0 || p.opcode == op::READ_REQUEST).collect()
    }
}
