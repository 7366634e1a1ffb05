//! Ends of datagrams, for the suites that send some.

use crate::{GUARD, region, wait};
use driver::qp::{QpSizes, Rts, Ud};
use driver::{Access, AddressHandle, AddressVector, Cq, Data, Flags, Gid, Mr, Operation, Qp};
use std::net::IpAddr;
use testbed::{Host, Testbed};

/// Sizes of their queues.
pub const SIZES: QpSizes = QpSizes::new(64, 16);
/// A Q_Key.
pub const QKEY: u32 = 0x1234_5678;
/// Bytes of an end's memory.
pub const LEN: usize = 8192;

/// An end of datagrams, and memory.
pub struct Talker {
    /// In RTS.
    pub qp: Qp<Rts, Ud>,
    /// Of its sends and receives.
    pub cq: Cq,
    /// Full of guards.
    pub memory: Mr,
}

/// One with this Q_Key.
pub fn talker(h: &Host, qkey: u32) -> Talker {
    let cq = h.device.create_cq(256, &h.eq).unwrap();
    let qp = h.pd.create_ud_qp(&cq, &cq, SIZES).unwrap().init(qkey).unwrap().rtr().unwrap().rts(0xff_fffe).unwrap();
    Talker { qp, cq, memory: region(&h.pd, LEN, Access::all(), |_| GUARD) }
}

/// The way to a GID.
pub fn vector(to: &Gid) -> AddressVector {
    AddressVector { ip: to.ip, mac: to.mac, gid: 0, traffic_class: 0x68, priority: 0, source_port: 0xc123 }
}

/// An address handle of host `from` for host `to`.
pub fn handle(bed: &Testbed, from: usize, to: usize) -> AddressHandle {
    bed.hosts[from].pd.create_ah(&vector(&bed.hosts[to].gid)).unwrap()
}

impl Talker {
    /// Posts a send.
    pub fn send(&mut self, id: u64, operation: Operation, data: Data) {
        let mut batch = self.qp.post();
        batch.add(id, operation, data, Flags::SIGNALED).unwrap();
    }

    /// Waits until it has left.
    pub fn sent(&mut self, bed: &Testbed, id: u64) {
        let c = wait(bed, &mut self.cq, "a datagram");
        assert_eq!((c.wr_id, c.status), (id, Ok(())), "{c:?}");
    }
}

/// What must stand in front of a datagram.
pub fn header(area: &[u8], from: &Gid, to: IpAddr, payload: usize, imm: bool) {
    let ip = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let udp = (8 + 12 + 8 + 4 * usize::from(imm) + payload.next_multiple_of(4) + 4) as u16;
    if from.ip.is_ipv4() {
        assert!(area[..20].iter().all(|b| *b == GUARD), "nothing is written in front of an IPv4 header");
        assert_eq!((area[20], area[21], &area[22..24]), (0x45, 0x68, &(udp + 20).to_be_bytes()[..]));
        assert_eq!((&area[32..36], &area[36..40]), (&ip(from.ip)[..], &ip(to)[..]));
    } else {
        assert_eq!((area[0], area[1] >> 4, &area[4..6], area[6]), (0x66, 8, &udp.to_be_bytes()[..], 17));
        assert_eq!((&area[8..24], &area[24..40]), (&ip(from.ip)[..], &ip(to)[..]));
    }
}
