//! A packet peer: the other end of a NIC's cable, without a NIC. It sends and hears packets one by one, as a test's script says,
//! or by two small machines, a sound requester and a sound responder, whose packets the script may lose or spoil.
//!
//! All here is written from the protocol and shares nothing with the gates.

mod message;
mod packet;
mod requester;
mod responder;

pub use message::{Operation, Request, ack, atomic, atomic_ack, atomic_write, respond};
pub use packet::{Aeth, Deth, Envelope, Packet, Reth, class, extensions, icrc, op, syndrome};
pub use requester::Requester;
pub use responder::{Received, Responder};

use crate::net::Shared;
use std::collections::VecDeque;

/// PSN `by` behind `psn`.
pub fn behind(psn: u32, by: u32) -> u32 {
    psn.wrapping_add(by) & 0xff_ffff
}

/// How far PSN `a` is ahead of `b`: -2^23 to 2^23 - 1.
pub fn ahead(a: u32, b: u32) -> i32 {
    (a.wrapping_sub(b) << 8) as i32 >> 8
}

/// An endpoint at a socket of a fabric. Time passes when the script lets it: the peer does nothing by itself.
pub struct Peer {
    fabric: Shared,
    socket: usize,
    /// How its frames travel.
    pub envelope: Envelope,
    arrived: VecDeque<Vec<u8>>,
}

impl Peer {
    /// A peer at `socket`, whose frames go in `envelope`.
    pub fn new(fabric: Shared, socket: usize, envelope: Envelope) -> Self {
        Peer { fabric, socket, envelope, arrived: VecDeque::new() }
    }

    /// Sends a packet.
    pub fn send(&self, packet: &Packet) {
        self.send_frame(packet.frame(&self.envelope));
    }

    /// Sends a frame of any content.
    pub fn send_frame(&self, frame: Vec<u8>) {
        self.fabric.lock().unwrap_or_else(|e| e.into_inner()).send(self.socket, frame);
    }

    /// The oldest packet that has arrived and was not taken, and how it travelled. Panics when its frame is not sound, or is for
    /// somebody else.
    pub fn take(&mut self) -> Option<(Envelope, Packet)> {
        let frames = self.fabric.lock().unwrap_or_else(|e| e.into_inner()).arrived(self.socket);
        self.arrived.extend(frames.into_iter().map(|f| f.data));
        let frame = self.arrived.pop_front()?;
        let (envelope, packet) = Packet::of(&frame).unwrap_or_else(|why| panic!("the NIC sent {why}: {frame:02x?}"));
        let turned = ([self.envelope.macs[1], self.envelope.macs[0]], [self.envelope.ips[1], self.envelope.ips[0]]);
        assert_eq!((envelope.macs, envelope.ips), turned, "addresses of {packet}");
        Some((envelope, packet))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    #[test]
    fn psns_wrap() {
        assert_eq!((behind(0xff_fffe, 3), ahead(1, 0xff_fffe), ahead(0xff_fffe, 1)), (1, 3, -3));
        assert_eq!((ahead(0x80_0000, 0), ahead(0x7f_ffff, 0)), (-0x80_0000, 0x7f_ffff));
    }

    const VA: u64 = 0x10_0000;
    const RKEY: u32 = 0x77;
    const MTU: usize = 256;
    const LEN: usize = 40_000;

    /// Requests of all kinds and of lengths around the MTU. READs read what the WRITEs before them wrote, and nothing else writes
    /// there: a READ that is executed again finds what is there then.
    fn requests() -> Vec<Request> {
        let data = |len: usize, i: usize| (0..len).map(|b| (b * 7 + i) as u8).collect::<Vec<_>>();
        let mut all = Vec::new();
        for (i, len) in [0, 1, 3, 255, 256, 257, 511, 512, 513, 2000].into_iter().enumerate() {
            let (va, other) = (VA + 2000 * i as u64, VA + 20_000 + 2000 * i as u64);
            all.push(Request::send(data(len, i)));
            all.push(Request::write(va, RKEY, data(len, i)).imm([i as u8; 4]));
            all.push(Request::read(va, RKEY, len));
            all.push(Request::write(other, RKEY, data(len, i + 1)));
            all.push(Request::read(other, RKEY, len));
            all.push(Request::send(data(len, i)).imm([9; 4]));
        }
        all
    }

    /// The two machines against each other, over a path that loses one packet in `odds`.
    fn talk(odds: u32, psn: u32) {
        let (mut a, mut b) = (Requester::new(psn, MTU), Responder::new(psn, MTU, VA, RKEY, LEN));
        b.receives = 1000;
        let mut rng = ChaCha8Rng::seed_from_u64(psn.into());
        let mut lost = || rng.random_ratio(1, odds);
        let mut wire = VecDeque::new();
        let all = requests();
        let mut todo = all.iter();
        let mut image = vec![0; LEN];
        let mut reads = Vec::new();
        for _ in 0..10_000 {
            match todo.next() {
                Some(r) => wire.extend(a.post(r.clone())),
                None if a.is_busy() => wire.extend(a.timeout()),
                None => break,
            }
            while let Some(p) = wire.pop_front() {
                let answers = if lost() { Vec::new() } else { b.hear(&p) };
                for answer in answers.iter().filter(|_| !lost()) {
                    wire.extend(a.hear(answer));
                }
            }
        }
        assert!(!a.is_busy(), "it comes to no end");
        for r in &all {
            match r.operation {
                Operation::Write { va, .. } => image[(va - VA) as usize..][..r.data.len()].copy_from_slice(&r.data),
                Operation::Read { va, len, .. } => reads.push(image[(va - VA) as usize..][..len].to_vec()),
                Operation::Send => {}
            }
        }
        assert_eq!(a.failed, None);
        assert!(b.memory == image, "one in {odds} lost");
        assert!(a.reads == reads, "one in {odds} lost");
        let is_received = |r: &&Request| r.imm.is_some() || r.operation == Operation::Send;
        let want: Vec<_> = all.iter().filter(is_received).map(Received::of).collect();
        assert!(b.received == want, "one in {odds} lost");
    }

    #[test]
    fn requester_and_responder_understand_each_other() {
        talk(u32::MAX, 0x12_3456);
        for odds in 4..40 {
            talk(odds, 0xff_ffe0 + odds);
        }
    }
}
