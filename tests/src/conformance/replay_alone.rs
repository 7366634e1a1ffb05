//! Captures of stock Soft-RoCE whose packets nobody answers: datagrams and unreliable connections. What was sent must arrive at a NIC, and a NIC
//! that sends the same must send it field by field; but AckReq, which Soft-RoCE sets as it does on reliable connections, and which nobody answers, is 0.

use super::talk::{PEER_QPN, Talk, Terms};
use super::unreliable::{connection, datagrams_of, operation_of};
use crate::{captures_by_name, pcap};
use abi::queue::UD_HEADER;
use abi::wire::qkey;
use driver::{Access, Data, Flags, Operation};
use fabric::peer::{Packet, Request, behind, class, op};
use std::collections::BTreeMap;

/// Path MTU of all captures.
const MTU: usize = 1024;
/// Where receives, and what WRITEs fill, lie.
const RECEIVE: usize = 0;
const TARGET: usize = 10_000;

/// What one QP sent to another.
pub struct Flow {
    /// Capture, and who sent.
    pub name: String,
    /// It went over IPv6.
    pub ip6: bool,
    /// How it is sent.
    pub terms: Terms,
    /// Packets of each message.
    messages: Vec<Vec<Packet>>,
}

/// All flows, their PSNs counted from the first.
pub fn flows() -> Vec<Flow> {
    let mut flows = BTreeMap::new();
    for (name, file) in captures_by_name() {
        for mut frame in pcap(&file) {
            frame.resize(frame.len().max(60), 0);
            let (e, mut p) = Packet::of(&frame).unwrap_or_else(|why| panic!("{name}: {why}"));
            if p.opcode & 0xe0 != class::UC && p.opcode & 0xe0 != class::UD {
                continue;
            }
            let key = (name.clone(), e.ips[0], p.qpn, p.opcode >> 5, p.deth.map(|d| d.source));
            let (traffic_class, source_port) = (e.traffic_class, e.source_port);
            let flow = flows.entry(key).or_insert_with(|| Flow {
                name: format!("{name}, {} to QP {:#x}", e.ips[0], p.qpn),
                ip6: e.ips[0].is_ipv6(),
                terms: Terms { psn: p.psn, mtu: MTU, traffic_class, source_port, ..Terms::USUAL },
                messages: Vec::new(),
            });
            p.psn = behind(p.psn, flow.terms.psn.wrapping_neg());
            p.qpn = 0;
            // What was said between QPs 1 is said here between others, which may not have a privileged Q_Key.
            if let Some(deth) = &mut p.deth {
                deth.qkey &= !qkey::PRIVILEGED;
            }
            let low = p.opcode & 0x1f;
            if matches!(low, op::SEND_MIDDLE..=op::SEND_LAST_IMM | op::WRITE_MIDDLE..=op::WRITE_LAST_IMM) {
                flow.messages.last_mut().expect("a message begins with its first packet").push(p);
            } else {
                flow.messages.push(vec![p]);
            }
        }
    }
    flows.into_values().collect()
}

/// The message of some packets.
fn request(packets: &[Packet]) -> Request {
    let data = packets.iter().flat_map(|p| p.payload.clone()).collect();
    let (first, last) = (&packets[0], &packets[packets.len() - 1]);
    let request = match first.reth {
        Some(r) => {
            assert_eq!(r.len as usize, packets.iter().map(|p| p.payload.len()).sum::<usize>());
            Request::write(r.va, r.rkey, data)
        }
        None => Request::send(data),
    };
    Request { imm: last.imm, solicited: last.solicited, ..request }
}

impl Flow {
    /// Messages of it.
    pub fn messages(&self) -> usize {
        self.messages.len()
    }

    /// Sends it to the NIC.
    pub fn ask(&self, t: &mut Talk) {
        let deth = self.messages[0][0].deth;
        let (mut ud, _ah) = datagrams_of(t, deth.map_or(0, |d| d.qkey));
        let mut uc = connection(t, Access::all());
        for (id, packets) in self.messages.iter().enumerate() {
            let request = request(packets);
            let (len, id) = (request.data.len(), id as u64);
            let (header, qpn) = if deth.is_some() { (UD_HEADER, ud.qpn()) } else { (0, uc.qpn()) };
            let write = packets[0].reth.is_some();
            let receives = !write || request.imm.is_some();
            if receives {
                let place = [t.memory.sge(RECEIVE, header + len)];
                if deth.is_some() { ud.post_recv(id, &place) } else { uc.post_recv(id, &place) }.unwrap();
                t.pass(250);
            }
            for p in packets {
                let mut p = Packet { qpn, ..p.clone() };
                if let Some(reth) = &mut p.reth {
                    (reth.va, reth.rkey) = (t.memory.addr() + TARGET as u64, t.memory.rkey());
                }
                let frame = t.addressed(p).frame(&t.peer.envelope);
                match (deth.is_some(), self.ip6) {
                    (true, false) => t.lands_data(RECEIVE + 20, &frame[14..34]),
                    (true, true) => t.lands_data(RECEIVE, &frame[14..54]),
                    _ => {}
                }
                t.frame(frame);
            }
            t.lands_data(if write { TARGET } else { RECEIVE + header }, &request.data);
            if receives {
                let c = t.cq.wait();
                assert_eq!((c.wr_id, c.status, c.len as usize), (id, Ok(()), header + len), "{}: {c:?}", self.name);
                assert_eq!((c.imm, c.source), (request.imm, deth.map_or(0, |d| d.source)), "{}", self.name);
            }
            t.pass(2000);
            t.check_memory();
        }
    }

    /// Has the NIC send it. A Q_Key of the upper half is the sender's own.
    pub fn answer(&self, t: &mut Talk) {
        let qkey = self.messages[0][0].deth.map_or(0, |d| d.qkey);
        let (mut ud, ah) = datagrams_of(t, qkey);
        let mut uc = connection(t, Access::all());
        for (id, packets) in self.messages.iter().enumerate() {
            let request = request(packets);
            let (len, id) = (request.data.len(), id as u64);
            t.host_writes(RECEIVE, &request.data);
            let place = [t.memory.sge(RECEIVE, len)];
            let solicited = if request.solicited { Flags::SOLICITED } else { Flags::empty() };
            let flags = Flags::SIGNALED | solicited;
            let mut want = packets.clone();
            if let Some(d) = &mut want[0].deth {
                let to = ah.to(PEER_QPN, d.qkey);
                d.source = ud.qpn();
                let operation = request.imm.map_or(Operation::SendTo(to), |imm| Operation::SendToImm(to, imm));
                ud.post().add(id, operation, Data::Sges(&place), flags).unwrap();
            } else {
                uc.post().add(id, operation_of(&request), Data::Sges(&place), flags).unwrap();
            }
            for mut want in want {
                // Soft-RoCE asks for an answer here and there, which nobody gives.
                want.ack_req = false;
                let heard = t.heard(&format!("{}: {want}", self.name));
                assert!(heard == want, "{}: the NIC sends\n  {heard}\nSoft-RoCE sends\n  {want}", self.name);
            }
            t.completes(id);
        }
    }
}
