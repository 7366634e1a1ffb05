//! Captures of stock Soft-RoCE as peers: what one side of a connection asked is asked of a NIC, whose answers must be those that the
//! other side gave; and a NIC that asks the same must say what the one side said, and understand the other's answers.

use super::talk::{Talk, Terms};
use crate::{captures_by_name, pcap};
use abi::status::wc;
use driver::{Data, Flags, Operation, Remote};
use fabric::peer::{Packet, Request, ack, ahead, behind, op, syndrome};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

/// Path MTU of all captures.
const MTU: usize = 1024;
/// Where answers to atomics land.
const ATOMICS: usize = 64;
/// The key that the captured requester invented.
const INVENTED_KEY: u32 = 0x00de_adbe;

/// A packet of a flow.
#[derive(Clone, Debug)]
enum Said {
    Request(Packet),
    Answer(Packet),
}

/// What one end of a connection asked, and how the other answered. PSNs count from the first.
pub struct Flow {
    /// Capture, who asks, and the QP number.
    pub name: String,
    /// It went over IPv6.
    pub ip6: bool,
    /// Packets were lost: of requests before they were captured, of answers likewise.
    pub lossy: bool,
    said: Vec<Said>,
    psn: u32,
    /// How the answering end sent.
    traffic_class: u8,
    source_port: u16,
}

/// What a NIC may do otherwise than Soft-RoCE, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Difference {
    /// A SEND longer than its receive is an invalid request (IBTA 9.7.4), not an operational error.
    SendTooLong,
    /// A READ request does not ask for an ACK: it is answered anyway, and the responder ignores it (IBTA 9.7.5).
    ReadWithoutAckReq,
    /// An answer that is not in the capture, for it was lost.
    LostAnswer,
}

/// What a responder owes the requester of a lossy flow, of SENDs and WRITEs: one answer for each that asks, one NAK for a gap, one ACK for
/// each that it has had (IBTA 9.7.5.1).
#[derive(Default)]
struct Owed {
    msn: u32,
    /// The gap has been told of.
    told: bool,
    answers: VecDeque<Packet>,
}

impl Owed {
    /// The requester says `p`; what was expected.
    fn hear(&mut self, p: &Packet, expected: u32) {
        assert!(p.opcode <= op::WRITE_ONLY_IMM, "{p} in a lossy flow: what is owed for it?");
        let closes = !matches!(p.opcode, op::SEND_FIRST | op::SEND_MIDDLE | op::WRITE_FIRST | op::WRITE_MIDDLE);
        let answer = match ahead(p.psn, expected) {
            0 => {
                self.told = false;
                self.msn += u32::from(closes);
                p.ack_req.then(|| ack(p.psn, syndrome::ACK, self.msn))
            }
            1.. => (!std::mem::replace(&mut self.told, true)).then(|| ack(expected, syndrome::SEQUENCE, self.msn)),
            _ => Some(ack(behind(expected, 0xff_ffff), syndrome::ACK, self.msn)),
        };
        self.answers.extend(answer);
    }
}

/// All flows of reliable connections of the captures, up to the first request that is not spoken here. AtomicETH is payload.
pub fn flows() -> Vec<Flow> {
    let mut flows = Vec::new();
    for (name, file) in captures_by_name() {
        let mut open: BTreeMap<(IpAddr, u32), Flow> = BTreeMap::new();
        let mut closed = BTreeSet::new();
        for mut frame in pcap(&file) {
            frame.resize(frame.len().max(60), 0);
            let (e, p) = Packet::of(&frame).unwrap_or_else(|why| panic!("{name}: {why}"));
            let [from, to] = e.ips;
            // Soft-RoCE gave both ends of each connection the same number.
            let (request, key) = match p.opcode {
                0x0d..=0x12 => (false, (to, p.qpn)),
                0..0x20 => (true, (from, p.qpn)),
                _ => continue,
            };
            if request && p.opcode > op::READ_REQUEST && atomic_of(&p).is_none() {
                closed.insert(key);
            }
            if closed.contains(&key) {
                continue;
            }
            let flow = open.entry(key).or_insert_with(|| Flow {
                name: format!("{name}, {from} asks QP {:#x}", p.qpn),
                ip6: from.is_ipv6(),
                lossy: name.contains("loss"),
                said: Vec::new(),
                psn: p.psn,
                traffic_class: e.traffic_class,
                source_port: e.source_port,
            });
            if request {
                // The first may have been lost.
                flow.psn = if ahead(p.psn, flow.psn) < 0 { p.psn } else { flow.psn };
                flow.said.push(Said::Request(p));
            } else {
                flow.said.push(Said::Answer(p));
            }
        }
        flows.extend(open.into_values());
    }
    for f in &mut flows {
        for said in &mut f.said {
            let (Said::Request(p) | Said::Answer(p)) = said;
            (p.psn, p.qpn) = (behind(p.psn, f.psn.wrapping_neg()), 0);
        }
    }
    flows
}

/// What an atomic asks: address, key, what it swaps in or adds, what it compares with.
fn atomic_of(p: &Packet) -> Option<(u64, u32, u64, u64)> {
    let number = |at: std::ops::Range<usize>| p.payload[at].iter().fold(0, |n, b| n << 8 | u64::from(*b));
    matches!(p.opcode, op::COMPARE_SWAP | op::FETCH_ADD)
        .then(|| (number(0..8), number(8..12) as u32, number(12..20), number(20..28)))
}

/// What an answer says; data says that all is well.
fn syndrome_of(p: &Packet) -> u8 {
    p.aeth.map_or(syndrome::ACK, |a| a.syndrome)
}

impl Flow {
    /// How the NIC at one end of it is connected.
    pub fn terms(&self) -> Terms {
        let Terms { send, .. } = Terms::USUAL;
        let answers =
            self.said.iter().filter_map(|s| if let Said::Answer(p) = s { Some(syndrome_of(p)) } else { None });
        let rnr: Vec<_> = answers.filter(|s| s >> 5 == 1).collect();
        Terms {
            psn: self.psn,
            mtu: MTU,
            traffic_class: self.traffic_class,
            source_port: self.source_port,
            rnr_timer: rnr.first().map_or(1, |s| s & 31),
            send: driver::qp::SendOptions { rnr_retry: if rnr.len() == 2 { 1 } else { 7 }, ..send },
            ..Terms::USUAL
        }
    }

    /// How many requests it has.
    pub fn requests(&self) -> usize {
        self.said.iter().filter(|s| matches!(s, Said::Request(_))).count()
    }

    /// What the request at `i` of the flow was refused with, before it was repeated.
    fn refused(&self, i: usize) -> Option<u8> {
        let Said::Request(asked) = &self.said[i] else { return None };
        let same = |s: &&Said| matches!(s, Said::Answer(p) | Said::Request(p) if p.psn == asked.psn);
        match self.said[i + 1..].iter().find(same) {
            Some(Said::Answer(p)) if syndrome_of(p) >> 5 != 0 && syndrome_of(p) != syndrome::SEQUENCE => {
                Some(syndrome_of(p))
            }
            _ => None,
        }
    }

    /// The data that READ `p` was answered with.
    fn response(&self, p: &Packet) -> Vec<u8> {
        let len = p.reth.map_or(0, |r| r.len as usize);
        let packets = len.div_ceil(MTU).max(1) as u32;
        let part = |s: &Said| match s {
            Said::Answer(a) if a.opcode != op::ACK && (0..packets as i32).contains(&ahead(a.psn, p.psn)) => {
                Some((ahead(a.psn, p.psn), a.payload.clone()))
            }
            _ => None,
        };
        let parts: BTreeMap<_, _> = self.said.iter().filter_map(part).collect();
        parts.into_values().collect::<Vec<_>>().concat()
    }

    /// What an atomic found.
    fn found(&self, p: &Packet) -> u64 {
        let answer = |s: &Said| match s {
            Said::Answer(a) if a.opcode == op::ATOMIC_ACK && a.psn == p.psn => a.payload[..].try_into().ok(),
            _ => None,
        };
        u64::from_be_bytes(self.said.iter().find_map(answer).expect("an atomic is answered"))
    }

    /// Lowest address that a request named.
    fn base(&self) -> u64 {
        let named = |p: &Packet| p.reth.map(|r| r.va).or(atomic_of(p).map(|a| a.0));
        let va = |s: &Said| if let Said::Request(p) = s { named(p) } else { None };
        self.said.iter().filter_map(va).min().unwrap_or(0)
    }

    /// Asks the NIC; returns the ways in which it answers otherwise.
    pub fn ask(&self, t: &mut Talk) -> BTreeSet<Difference> {
        let mut differences = BTreeSet::new();
        let (mut expected, mut cursor, mut receive) = (0, 0, None);
        let mut owed = Owed::default();
        for (i, said) in self.said.iter().enumerate() {
            match said {
                Said::Answer(want) => self.compare(t, want, &mut owed, &mut differences),
                Said::Request(p) => {
                    let mut p = p.clone();
                    let refused = self.refused(i);
                    let in_order = p.psn == expected;
                    if let Some(reth) = &mut p.reth {
                        let at = (reth.va - self.base()) as usize;
                        cursor = if in_order { at } else { cursor };
                        (reth.va, reth.rkey) = match refused {
                            Some(_) if reth.rkey == INVENTED_KEY => (t.memory.addr(), t.memory.rkey() ^ 1),
                            Some(_) => (t.memory.addr() + super::talk::LEN as u64 - 10, t.memory.rkey()),
                            None => (t.memory.addr() + at as u64, t.memory.rkey()),
                        };
                        if p.opcode == op::READ_REQUEST && refused.is_none() {
                            t.host_writes(at, &self.response(&p));
                        }
                    }
                    if let Some((va, _, operand, compare)) = atomic_of(&p) {
                        let at = (va - self.base()) as usize;
                        let found = self.found(&p);
                        t.host_writes(at, &found.to_le_bytes());
                        p = fabric::peer::atomic(
                            p.opcode,
                            p.psn,
                            t.memory.addr() + at as u64,
                            t.memory.rkey(),
                            [operand, compare],
                        );
                        let leaves = match p.opcode {
                            op::FETCH_ADD => found.wrapping_add(operand),
                            _ if found == compare => operand,
                            _ => found,
                        };
                        t.lands_data(at, &leaves.to_le_bytes());
                    }
                    let rnr = refused.is_some_and(|s| s >> 5 == 1);
                    let write_imm = matches!(p.opcode, op::WRITE_LAST_IMM | op::WRITE_ONLY_IMM);
                    let opens = matches!(p.opcode, op::SEND_FIRST | op::SEND_ONLY | op::SEND_ONLY_IMM) || write_imm;
                    if in_order && opens && !rnr {
                        // One that is too short for what was refused.
                        let room = if refused.is_some() { p.payload.len() - 1 } else { 4096 };
                        receive = Some((t.receive(room), 0));
                    }
                    if self.lossy {
                        owed.hear(&p, expected);
                    }
                    t.peer(p.clone());
                    if in_order && refused.is_none() {
                        self.execute(t, &p, &mut cursor, &mut receive);
                        expected = behind(expected, self.psns(&p));
                    }
                    match refused {
                        Some(syndrome::REMOTE_OPERATION) => t.receive_fails(wc::LOC_LEN),
                        Some(s) if s >> 5 == 3 => _ = t.ends(),
                        _ => {}
                    }
                    // The next comes when this is answered, as in the capture.
                    t.pass(if p.ack_req { 400 } else { 0 });
                }
            }
        }
        while let Some(answer) = owed.answers.pop_front() {
            let heard = t.heard(&format!("{}: {answer}", self.name));
            self.assert_lost(&heard, &answer);
        }
        t.any_sequence();
        differences
    }

    fn psns(&self, p: &Packet) -> u32 {
        match (p.opcode, p.reth) {
            (op::READ_REQUEST, Some(reth)) => reth.len.div_ceil(MTU as u32).max(1),
            _ => 1,
        }
    }

    /// What an accepted request does to memory and receives.
    fn execute(&self, t: &mut Talk, p: &Packet, cursor: &mut usize, receive: &mut Option<(usize, usize)>) {
        let closes = !matches!(p.opcode, op::SEND_FIRST | op::SEND_MIDDLE | op::WRITE_FIRST | op::WRITE_MIDDLE);
        if (op::WRITE_FIRST..=op::WRITE_ONLY_IMM).contains(&p.opcode) {
            t.lands_data(*cursor, &p.payload);
            *cursor += p.payload.len();
            let start = p.reth.map(|r| r.len);
            if closes && receive.take().is_some() {
                // Its length is that of the message, which began with the RETH.
                t.receives(start.map_or_else(|| self.length(p), |len| len as usize), p.imm);
                t.reuse();
            }
        } else if let Some((at, got)) = receive.as_mut().filter(|_| p.opcode < op::WRITE_FIRST) {
            t.lands_data(*at + *got, &p.payload);
            *got += p.payload.len();
            let got = *got;
            if closes {
                *receive = None;
                t.receives(got, p.imm);
                t.reuse();
            }
        }
    }

    /// Length of the WRITE that ends with `p`.
    fn length(&self, p: &Packet) -> usize {
        let first = |s: &&Said| matches!(s, Said::Request(f) if f.opcode == op::WRITE_FIRST && ahead(f.psn, p.psn) < 0);
        match self.said.iter().rev().find(first) {
            Some(Said::Request(f)) => f.reth.map_or(0, |r| r.len as usize),
            _ => panic!("{}: no FIRST before {p}", self.name),
        }
    }

    /// An answer of the NIC is what it owes, and the capture shows that this was lost when Soft-RoCE gave it: what it acknowledges is asked again.
    fn assert_lost(&self, heard: &Packet, owed: &Packet) {
        assert!(heard == owed, "{}: the NIC answers\n  {heard}\nand owes\n  {owed}", self.name);
        let asked = self.said.iter().filter(|s| matches!(s, Said::Request(p) if p.psn == owed.psn)).count();
        let is_ack = syndrome_of(owed) == syndrome::ACK;
        assert!(is_ack && asked > 1, "{}: {owed} is not in the capture, and nothing shows that it was lost", self.name);
    }

    /// The NIC's next answer is `want`, but for differences that are allowed.
    fn compare(&self, t: &mut Talk, want: &Packet, owed: &mut Owed, differences: &mut BTreeSet<Difference>) {
        loop {
            let heard = t.heard(&format!("{}: {want}", self.name));
            let msn = want.aeth.map_or(0, |a| a.msn);
            let too_long = ack(want.psn, syndrome::INVALID_REQUEST, msn);
            let owes = if self.lossy { owed.answers.pop_front() } else { None };
            if heard == *want {
                assert!(owes.is_none_or(|o| o == *want), "{}: {want} is not owed yet", self.name);
                return;
            } else if syndrome_of(want) == syndrome::REMOTE_OPERATION && heard == too_long {
                differences.insert(Difference::SendTooLong);
                return;
            } else if let Some(owes) = owes {
                self.assert_lost(&heard, &owes);
                differences.insert(Difference::LostAnswer);
            } else {
                panic!("{}: the NIC answers\n  {heard}\nSoft-RoCE answers\n  {want}", self.name);
            }
        }
    }

    /// The messages, each with its packets and the answers to them in the order of the capture.
    fn messages(&self) -> Vec<(Request, Vec<Packet>, Vec<Said>)> {
        let mut messages: Vec<(Request, Vec<Packet>, Vec<Said>)> = Vec::new();
        let mut next = 0;
        for said in &self.said {
            match said {
                Said::Request(p) if p.psn == next => {
                    if p.reth.is_some()
                        || atomic_of(p).is_some()
                        || matches!(p.opcode, op::SEND_FIRST | op::SEND_ONLY | op::SEND_ONLY_IMM)
                    {
                        let request = match (p.opcode, p.reth) {
                            (op::READ_REQUEST, Some(r)) => Request::read(r.va, r.rkey, r.len as usize),
                            (_, Some(r)) => Request::write(r.va, r.rkey, Vec::new()),
                            _ => Request::send(Vec::new()),
                        };
                        messages.push((request, Vec::new(), Vec::new()));
                    }
                    let (request, packets, said) = messages.last_mut().expect("a message begins with its first packet");
                    request.data.extend(&p.payload);
                    request.imm = p.imm.or(request.imm);
                    request.solicited |= p.solicited;
                    packets.push(p.clone());
                    said.push(Said::Request(p.clone()));
                    next = behind(next, self.psns(p));
                }
                _ => {
                    let (Said::Request(p) | Said::Answer(p)) = said;
                    let of = messages.iter_mut().rev().find(|m| ahead(p.psn, m.1[0].psn) >= 0);
                    of.expect("an answer to a message").2.push(said.clone());
                }
            }
        }
        messages
    }

    /// Has the NIC ask; returns the ways in which it asks otherwise.
    pub fn answer(&self, t: &mut Talk) -> BTreeSet<Difference> {
        let mut differences = BTreeSet::new();
        for (id, (request, _, said)) in self.messages().into_iter().enumerate() {
            let id = id as u64;
            let first = self.messages()[id as usize].1[0].clone();
            let at = match atomic_of(&first) {
                Some((addr, rkey, operand, compare)) => {
                    let remote = Remote { addr, rkey };
                    let operation = match first.opcode {
                        op::FETCH_ADD => Operation::AtomicAdd { remote, add: operand },
                        _ => Operation::AtomicCas { remote, compare, swap: operand },
                    };
                    let list = [t.memory.sge(ATOMICS, 8)];
                    t.qp.post().add(id, operation, Data::Sges(&list), Flags::SIGNALED).expect("room");
                    ATOMICS
                }
                None => t.post(id, &request),
            };
            let mut last = syndrome::ACK;
            for said in said {
                match said {
                    Said::Request(want) => {
                        let heard = t.heard(&format!("{}: {want}", self.name));
                        let unasked = Packet { ack_req: false, ..want.clone() };
                        if want.opcode == op::READ_REQUEST && heard == unasked {
                            differences.insert(Difference::ReadWithoutAckReq);
                        } else {
                            assert!(heard == want, "{}: the NIC asks\n  {heard}\nSoft-RoCE asks\n  {want}", self.name);
                        }
                    }
                    Said::Answer(p) => {
                        last = syndrome_of(&p);
                        t.peer(p);
                    }
                }
            }
            match last {
                syndrome::ACK => t.completes(id),
                syndrome::REMOTE_ACCESS => t.fails(id, wc::REM_ACCESS),
                syndrome::REMOTE_OPERATION => t.fails(id, wc::REM_OP),
                _ => t.fails(id, wc::RNR_RETRY_EXC),
            }
            if let fabric::peer::Operation::Read { .. } = request.operation {
                let data = self.messages()[id as usize].1.first().map_or(Vec::new(), |p| self.response(p));
                t.lands_data(at, if last == syndrome::ACK { &data } else { &[] });
            }
            if atomic_of(&first).is_some() {
                t.lands_data(at, &self.found(&first).to_le_bytes());
            }
            t.check_memory();
            t.reuse();
        }
        differences
    }
}
