//! Datagrams and an unreliable connection between two hosts beside other traffic. What arrives is what was sent, whatever of it is lost,
//! and all that is posted completes.

use crate::noise;
use abi::queue::UD_HEADER;
use driver::qp::{Path, QpSizes, Rts, Transport, Uc, Ud};
use driver::{Access, AddressHandle, AddressVector, Cq, Data, Flags, Mr, Operation, Qp};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use testbed::{Host, Testbed};

const SIZES: QpSizes = QpSizes::new(64, SLOTS as u32);
/// Receives of each QP, and the bytes of each.
const SLOTS: usize = 8;
const SLOT: usize = 4096;
/// Longest message.
const MOST: usize = 3000;
const QKEY: u32 = 0xbe51de;

/// One way, with a QP of one kind at each end.
struct Way<T: Transport> {
    from: Qp<Rts, T>,
    to: Qp<Rts, T>,
    source: Mr,
    inbox: Mr,
    /// Bytes in front of what was sent.
    header: usize,
    posted: u64,
    done: u64,
    receives: u64,
    arrived: u64,
}

/// See the module.
pub struct Beside {
    datagrams: Way<Ud>,
    messages: Way<Uc>,
    /// Of the datagrams and the messages: completions of sends, and of receives.
    cqs: [[Cq; 2]; 2],
    ah: AddressHandle,
}

/// A message begins with its number, which tells its length and the rest of it.
fn message(number: u64) -> Vec<u8> {
    let len = [8, 9, 100, 1023, 1025, MOST][number as usize % 6];
    let mut bytes: Vec<u8> = (0..len).map(noise(number)).collect();
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

impl<T: Transport> Way<T> {
    fn new(from: Qp<Rts, T>, to: Qp<Rts, T>, hosts: [&Host; 2], header: usize) -> Self {
        let source = hosts[0].pd.alloc(64 * SLOT, Access::empty()).unwrap();
        let inbox = hosts[1].pd.alloc(SLOTS * SLOT, Access::LOCAL_WRITE).unwrap();
        let mut way = Way { from, to, source, inbox, header, posted: 0, done: 0, receives: 0, arrived: 0 };
        (0..SLOTS).for_each(|_| way.receive());
        way
    }

    fn receive(&mut self) {
        let at = self.receives as usize % SLOTS * SLOT;
        self.to.post_recv(self.receives, &[self.inbox.sge(at, 27), self.inbox.sge(at + 27, SLOT - 27)]).unwrap();
        self.receives += 1;
    }

    /// Sends a message, if there is room, and takes what has come.
    fn step(&mut self, operation: Option<Operation>, [sent, received]: &mut [Cq; 2]) {
        if let Some(operation) = operation.filter(|_| self.posted - self.done < 20) {
            let bytes = message(self.posted);
            let at = self.posted as usize % 64 * SLOT;
            self.source.write(at, &bytes);
            // Three of four complete with those behind them.
            let flags = if self.posted % 4 == 3 { Flags::SIGNALED } else { Flags::empty() };
            let (half, rest) = (bytes.len() / 2, bytes.len() - bytes.len() / 2);
            let sges = [self.source.sge(at, half), self.source.sge(at + half, rest)];
            self.from.post().add(self.posted, operation, Data::Sges(&sges), flags).unwrap();
            self.posted += 1;
        }
        for c in sent.poll() {
            assert!(c.status.is_ok() && c.wr_id >= self.done, "{c:?}");
            self.done = c.wr_id + 1;
        }
        while let Some(c) = received.poll().next() {
            assert!(c.status.is_ok() && c.wr_id == self.arrived, "{c:?}");
            let mut bytes = vec![0; c.len as usize];
            self.inbox.read(c.wr_id as usize % SLOTS * SLOT, &mut bytes);
            let bytes = &bytes[self.header..];
            let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            assert!(number < self.posted && bytes == message(number), "message {number}: {c:?}");
            assert_eq!(c.imm.map(u32::from_le_bytes), (number % 2 == 1).then_some(number as u32));
            self.arrived += 1;
            self.receive();
        }
    }

    /// All that can be told is complete.
    fn is_done(&self) -> bool {
        self.posted - self.done < 4
    }
}

impl Beside {
    /// From host `from` to host `to`, which may be the same.
    pub fn new(bed: &Testbed, [from, to]: [usize; 2]) -> Self {
        let hosts = [from, to].map(|i| &bed.hosts[i]);
        let cq = |h: &Host| h.device.create_cq(64, &h.eq).unwrap();
        let cqs = [(); 2].map(|()| hosts.map(cq));
        let datagrams = |i: usize| {
            let (h, cq) = (hosts[i], &cqs[0][i]);
            h.pd.create_ud_qp(cq, cq, SIZES).unwrap().init(QKEY).unwrap().rtr().unwrap().rts(0xff_fff0).unwrap()
        };
        let connections = [0, 1].map(|i| {
            let cq = &cqs[1][i];
            hosts[i].pd.create_uc_qp(cq, cq, SIZES).unwrap().init(Access::LOCAL_WRITE).unwrap()
        });
        let qpns = connections.each_ref().map(|qp| qp.qpn());
        let mut other = 2;
        let [a, b] = connections.map(|qp| {
            other -= 1;
            let gid = hosts[other].gid;
            let path = Path {
                qpn: qpns[other],
                psn: 0xff_fff0,
                ip: gid.ip,
                mac: gid.mac,
                mtu: 1024,
                gid: 0,
                traffic_class: 0,
                priority: 0,
                source_port: 0xd000,
                max_dest_reads: 0,
                min_rnr_timer: 0,
            };
            qp.rtr(&path).unwrap().rts(0xff_fff0).unwrap()
        });
        let gid = hosts[1].gid;
        let (traffic_class, priority, source_port) = (0, 3, 0xd001);
        let to = AddressVector { ip: gid.ip, mac: gid.mac, gid: 0, traffic_class, priority, source_port };
        Beside {
            ah: hosts[0].pd.create_ah(&to).unwrap(),
            datagrams: Way::new(datagrams(0), datagrams(1), hosts, UD_HEADER),
            messages: Way::new(a, b, hosts, 0),
            cqs,
        }
    }

    /// Perhaps sends something, if `more` is to be sent at all, and takes what has come.
    pub fn step(&mut self, rng: &mut ChaCha8Rng, more: bool) {
        let to = self.ah.to(self.datagrams.to.qpn(), QKEY);
        let imm = |number: u64| (number % 2 == 1).then_some((number as u32).to_le_bytes());
        let datagram = imm(self.datagrams.posted).map_or(Operation::SendTo(to), |imm| Operation::SendToImm(to, imm));
        let message = imm(self.messages.posted).map_or(Operation::Send, Operation::SendImm);
        let [of_datagrams, of_messages] = &mut self.cqs;
        self.datagrams.step((more && rng.random_bool(0.2)).then_some(datagram), of_datagrams);
        self.messages.step((more && rng.random_bool(0.2)).then_some(message), of_messages);
    }

    /// Too few were posted to say anything about how many arrive.
    pub fn are_few(&self) -> bool {
        self.datagrams.posted.min(self.messages.posted) < 20
    }

    /// All that was posted is complete, as far as it tells.
    pub fn is_done(&self) -> bool {
        self.datagrams.is_done() && self.messages.is_done()
    }

    /// What was posted and arrived: datagrams, messages.
    pub fn arrived(&self) -> [(u64, u64); 2] {
        [(self.datagrams.posted, self.datagrams.arrived), (self.messages.posted, self.messages.arrived)]
    }
}
