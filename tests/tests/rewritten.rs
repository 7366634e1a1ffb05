//! Queues whose memory the host writes as it likes while the device reads it: made by commands, without a driver behind them. Whatever
//! stands in their rings, and whatever their doorbells say, only memory of their own protection domain is touched, no completion goes
//! beside its ring, and they can be destroyed.

use abi::Field;
use abi::cmd::{
    QKEY, answer, attr, create_ah, create_cq, create_mr, create_qp, create_srq, head, key_kind, modify_qp, op,
    query_srq, result,
};
use abi::queue::{
    ATOMIC_BYTES, ATOMIC_SGE_OFFSET, HOLE, MAX_SGE, SEND_PAYLOAD_OFFSET, WQE_BLOCK, cq_db, cqe, doorbell, key_wqe,
    recv_op, ring_db, send_op, send_wqe, sge, ud_target,
};
use abi::status::wc;
use abi::table::{qp_state, qp_type};
use driver::qp::{Path, QpSizes, Rts, SendOptions, Transport, Uc, Ud};
use driver::{Access, AddressHandle, AddressVector, Data, Device, Flags, Mr, OpenOptions, Operation, Pd, Qp};
use ferroce_tests::{Bystander, GUARD, assert_sound, bytes, pass, path_to, region};
use nic::{Adversary, BarRequest};
use rand::{Rng, RngExt};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use testbed::{Setup, Testbed};

const LEN: usize = 4096;
/// Bytes of each ring's memory; the rings are at most half as long.
const RING: usize = 16384;
/// Q_Key of datagrams.
const KEY: u32 = 0x1234;

/// Executes a command as the driver's owner; the answer, if it is good.
fn command(device: &Device, opcode: u8, fields: &[(Field, u64)]) -> [u8; 64] {
    let mut c = [0; 64];
    head::OPCODE.set(&mut c, opcode.into());
    head::OWNER.set(&mut c, OpenOptions::default().owner.into());
    fields.iter().for_each(|(f, v)| f.set(&mut c, *v));
    let a = device.command_raw(c).unwrap();
    assert_eq!(answer::RESULT.get(&a), u64::from(result::OK), "opcode {opcode}: field {}", answer::FIELD.get(&a));
    a
}

/// Where host `i` is, as commands say it.
fn address(bed: &Testbed, i: usize) -> [(Field, u64); 4] {
    let gid = bed.hosts[i].gid;
    let std::net::IpAddr::V4(ip) = gid.ip else { panic!("IPv4 here") };
    [
        (modify_qp::HOP_LIMIT, 64),
        (modify_qp::DMAC, gid.mac.iter().rev().fold(0, |w, b| w << 8 | u64::from(*b))),
        (modify_qp::SPORT, 0xc000),
        (modify_qp::DIP_LOW, u32::from_le_bytes(ip.octets()).into()),
    ]
}

/// Numbers of a protection domain and of an event queue of the owner, as commands name them.
fn number_of(device: &Device, opcode: u8) -> u64 {
    answer::NUMBER.get(&command(device, opcode, &[]))
}

/// What a queue pair is like.
#[derive(Clone, Copy, Debug)]
struct Kind {
    /// One of `qp_type`.
    transport: u8,
    /// Its receives come from a shared queue.
    shared: bool,
    /// Log2 of blocks of the send and the receive ring, and of the entries of the completion queue.
    logs: [u32; 3],
}

impl Kind {
    fn any(rng: &mut ChaCha8Rng) -> Self {
        let transport = [qp_type::RC, qp_type::RC, qp_type::UC, qp_type::UD][rng.random_range(0..4)];
        let shared = transport != qp_type::UC && rng.random_bool(0.4);
        // A completion queue that runs over ends its queue pair soon.
        let entries = if rng.random_bool(0.2) { 0..5 } else { 7..9 };
        let blocks = [0, 1, 2, 3, 4, 5, 5, 6, 6, 6][rng.random_range(0..10)];
        let logs = [blocks, rng.random_range(0..6), rng.random_range(entries)];
        Kind { transport, shared, logs }
    }

    /// SGEs of a receive.
    fn sges(&self) -> usize {
        if self.shared { 1 } else { MAX_SGE }
    }

    /// Receives that its ring holds.
    fn receives(&self) -> u16 {
        ((MAX_SGE / self.sges()) as u16) << self.logs[1]
    }
}

/// A queue pair and its completion queue on host 0, with their rings.
struct Bare {
    kind: Kind,
    qpn: u64,
    cqn: u64,
    /// Whose doorbell posts its receives: its own number or that of its shared queue.
    receiver: u64,
    sq: Mr,
    rq: Mr,
    cq: Mr,
}

impl Bare {
    fn new(bed: &Testbed, home: &Pd, pd: u64, kind: Kind) -> Self {
        let device = &bed.hosts[0].device;
        let ring = || region(home, RING, Access::empty(), |_| GUARD);
        let (sq, rq, cq) = (ring(), ring(), ring());
        let base = |mr: &Mr| mr.addr();
        let make = |opcode, fields: &[(Field, u64)]| answer::NUMBER.get(&command(device, opcode, fields));
        let [send, recv, entries] = kind.logs.map(u64::from);
        let cqn = make(op::CREATE_CQ, &[(create_cq::LOG2_ENTRIES, entries), (create_cq::BASE, base(&cq))]);
        let srq = kind.shared.then(|| {
            let ring = [(create_srq::LOG2, recv), (create_srq::SGES, 1), (create_srq::BASE, base(&rq))];
            make(op::CREATE_SRQ, &[&ring[..], &[(create_srq::PD, pd)]].concat())
        });
        let c = [
            (create_qp::TYPE, kind.transport.into()),
            (create_qp::SQ_LOG2, send),
            (create_qp::RQ_LOG2, recv),
            (create_qp::RQ_SGES, kind.sges() as u64),
            (create_qp::PD, pd),
            (create_qp::SEND_CQN, cqn),
            (create_qp::RECV_CQN, cqn),
            (create_qp::SQ_BASE, base(&sq)),
            (create_qp::RQ_BASE, base(&rq)),
            (create_qp::SHARED, kind.shared.into()),
            (create_qp::SRQN, srq.unwrap_or(0)),
        ];
        let qpn = make(op::CREATE_QP, &c);
        Bare { kind, qpn, cqn, receiver: srq.unwrap_or(qpn), sq, rq, cq }
    }

    /// To RTS, towards QP `peer` of host 1.
    fn connect(&self, bed: &Testbed, peer: u32) {
        let step = |state: u8, mask: u32, fields: &[(Field, u64)]| {
            let of = [
                (head::NUMBER, self.qpn),
                (modify_qp::MASK, (attr::STATE | mask).into()),
                (modify_qp::STATE, state.into()),
                (modify_qp::PORT, 1),
            ];
            command(&bed.hosts[0].device, op::MODIFY_QP, &[&of, fields].concat());
        };
        use qp_state::{INIT, RTR, RTS};
        let common = attr::PKEY_INDEX | attr::PORT;
        if self.kind.transport == qp_type::UD {
            step(INIT, common | attr::QKEY, &[(QKEY, KEY.into())]);
            step(RTR, 0, &[]);
            return step(RTS, attr::SQ_PSN, &[]);
        }
        let of_rc = |mask| if self.kind.transport == qp_type::RC { mask } else { 0 };
        step(INIT, common | attr::ACCESS_FLAGS, &[(modify_qp::ACCESS, 15)]);
        let path = attr::AV | attr::PATH_MTU | attr::DEST_QPN | attr::RQ_PSN;
        let fields = [
            (modify_qp::PATH_MTU, 3),
            (modify_qp::DEST_QPN, peer.into()),
            (modify_qp::MAX_DEST_READS, 16),
            (modify_qp::MIN_RNR_TIMER, 1),
        ];
        let fields = [&fields[..], &address(bed, 1)].concat();
        step(RTR, path | of_rc(attr::MAX_DEST_RD_ATOMIC | attr::MIN_RNR_TIMER), &fields);
        let fields = [(modify_qp::TIMEOUT, 6), (modify_qp::RETRY_CNT, 1), (modify_qp::MAX_READS, 16)];
        let retries = attr::TIMEOUT | attr::RETRY_CNT | attr::RNR_RETRY | attr::MAX_QP_RD_ATOMIC;
        step(RTS, attr::SQ_PSN | of_rc(retries), &fields);
    }

    /// Receives that are posted to its shared queue and not taken, holes among them.
    fn posted(&self, device: &Device) -> u16 {
        query_srq::POSTED.get(&command(device, op::QUERY_SRQ, &[(head::NUMBER, self.receiver)])) as u16
    }

    fn ring(&self, bed: &Testbed, at: usize, producer: u16) {
        let mut word = [0; 8];
        ring_db::NUMBER.set(&mut word, if at == doorbell::RQ { self.receiver } else { self.qpn });
        ring_db::PRODUCER.set(&mut word, producer.into());
        store(bed, at, u64::from_le_bytes(word));
    }

    /// Frees the entries of the completion queue before `consumer`, and arms it if that is odd.
    fn consume(&self, bed: &Testbed, consumer: u32, arm: u64) {
        let mut word = [0; 8];
        cq_db::NUMBER.set(&mut word, self.cqn);
        cq_db::ARM.set(&mut word, arm & 1);
        cq_db::SEQUENCE.set(&mut word, arm);
        cq_db::CONSUMER.set(&mut word, consumer.into());
        store(bed, doorbell::CQ, u64::from_le_bytes(word));
    }

    fn destroy(&self, device: &Device) {
        command(device, op::DESTROY_QP, &[(head::NUMBER, self.qpn)]);
        if self.kind.shared {
            command(device, op::DESTROY_SRQ, &[(head::NUMBER, self.receiver)]);
        }
        command(device, op::DESTROY_CQ, &[(head::NUMBER, self.cqn)]);
    }
}

/// What the doorbells said, and what has come of it.
#[derive(Debug, Default)]
struct Told {
    /// Blocks sent, and receives posted; those whose end is known.
    send: u16,
    recv: u16,
    sent: u16,
    received: u16,
    /// Entries of the completion queue.
    seen: u32,
    /// The send queue, and the receive queue.
    failed: [bool; 2],
}

impl Told {
    /// Takes the entries that have come.
    fn poll(&mut self, bare: &Bare, ends: &mut BTreeMap<u8, [usize; 2]>, what: &str) {
        loop {
            let (log2, mut e) = (bare.kind.logs[2], [0; cqe::BYTES]);
            bare.cq.read((self.seen & ((1 << log2) - 1)) as usize * cqe::BYTES, &mut e);
            // The bits beside the phase are clear in an entry.
            if u32::from(e[cqe::BYTES - 1]) != (self.seen >> log2 & 1 ^ 1) {
                return;
            }
            let (status, opcode) = (cqe::STATUS.get(&e) as u8, cqe::OPCODE.get(&e) as u8);
            assert_eq!(cqe::QPN.get(&e), bare.qpn, "{what}: {e:x?}");
            // Of the other queue there may be what had happened by then.
            let queue = usize::from(opcode >= recv_op::RECV);
            // Of a shared receive that fails while more of its message is under way a second entry tells.
            let again = queue == 1 && bare.kind.shared && status == wc::WR_FLUSH;
            assert!(!self.failed[queue] || again, "{what}: an entry behind the failure: {e:x?}");
            let index = cqe::WQE_INDEX.get(&e) as u16;
            if queue == 1 {
                self.received = self.received.wrapping_add(1);
            } else {
                assert!(status != 0 || opcode <= send_op::ATOMIC_WRITE, "{what}: {e:x?}");
                self.sent = index.wrapping_add(1);
            }
            self.failed[queue] |= status != 0;
            ends.entry(opcode).or_default()[usize::from(status != 0)] += 1;
            self.seen += 1;
        }
    }
}

/// An 8-byte store to the driver's doorbell page.
fn store(bed: &Testbed, at: usize, value: u64) {
    let page = usize::from(OpenOptions::default().owner) * doorbell::PAGE;
    bed.sim().nic(0).bar(BarRequest { bar: 2, offset: (page + at) as u32, bytes: 8, write: Some(value) });
}

/// Keys of the bare domain, and what they open.
struct Near<'a> {
    mr: &'a Mr,
    key: u64,
    /// Of a region of one page that work requests register, of a window, and of what it may be bound to.
    fast: u64,
    window: u64,
    ground: u64,
    /// An address handle of host 1.
    ah: u64,
}

impl Near<'_> {
    fn put_sge(&self, block: &mut [u8], at: usize, rng: &mut ChaCha8Rng) {
        let b = &mut block[at..at + sge::BYTES];
        sge::VA.set(b, self.mr.addr() + rng.random_range(0..LEN as u64 - 600));
        sge::LKEY.set(b, self.key);
        sge::LENGTH.set(b, rng.random_range(0..600));
    }
}

/// Four receives of one SGE, or one of four: sound or nearly so, with a hole now and then if they are shared.
fn recv_block(rng: &mut ChaCha8Rng, near: &Near, kind: Kind, bent: f64) -> [u8; WQE_BLOCK] {
    let mut b = [0; WQE_BLOCK];
    for i in 0..MAX_SGE {
        near.put_sge(&mut b, i * sge::BYTES, rng);
        if kind.shared {
            let one = &mut b[i * sge::BYTES..][..sge::BYTES];
            sge::VA.set(one, near.mr.addr() + rng.random_range(0..2000));
            sge::LENGTH.set(one, if rng.random_bool(0.1) { HOLE.into() } else { 2000 });
        }
    }
    if rng.random_bool(bent) {
        let at = rng.random_range(0..WQE_BLOCK);
        b[at] = rng.random();
    }
    b
}

/// Opcodes that queue pairs of a type execute, the more likely ones more often.
fn opcodes(transport: u8) -> &'static [u8] {
    use send_op::*;
    match transport {
        qp_type::RC => &[
            SEND,
            SEND,
            SEND_IMM,
            SEND_IMM,
            WRITE,
            WRITE,
            WRITE_IMM,
            WRITE_IMM,
            READ,
            READ,
            COMPARE_SWAP,
            COMPARE_SWAP,
            FETCH_ADD,
            FETCH_ADD,
            ATOMIC_WRITE,
            ATOMIC_WRITE,
        ],
        qp_type::UC => &[SEND, SEND_IMM, WRITE, WRITE_IMM],
        _ => &[SEND, SEND_IMM],
    }
}

/// What opens and closes keys: what it finds open already, or closed, ends its queue pair.
const OF_KEYS: [u8; 4] = [send_op::SEND_INV, send_op::LOCAL_INV, send_op::BIND_MW, send_op::REG_MR];

/// A block of a send ring: sound, nearly so, or anything.
fn send_block(rng: &mut ChaCha8Rng, bare: &Bare, index: u16, near: &Near, far: &Far, bent: f64) -> [u8; WQE_BLOCK] {
    let mut b = [0; WQE_BLOCK];
    if rng.random_bool(bent) {
        rng.fill_bytes(&mut b);
        return b;
    }
    let transport = bare.kind.transport;
    let all = opcodes(transport);
    let opcode = match rng.random::<f64>() {
        x if x < bent => rng.random_range(0..14),
        x if x < 2.0 * bent => OF_KEYS[rng.random_range(0..4)],
        _ => all[rng.random_range(0..all.len())],
    };
    let keys = (send_op::LOCAL_INV..=send_op::REG_MR).contains(&opcode);
    let inline = rng.random_bool(0.2) && opcode != send_op::READ && !keys;
    let sges = if inline || keys { 0 } else { rng.random_range(0..=2) };
    for i in 0..sges {
        near.put_sge(&mut b, SEND_PAYLOAD_OFFSET + i * sge::BYTES, rng);
    }
    let sum: u64 = (0..sges).map(|i| sge::LENGTH.get(&b[SEND_PAYLOAD_OFFSET + i * sge::BYTES..][..16])).sum();
    let mut len = if inline { rng.random_range(0..=(WQE_BLOCK - SEND_PAYLOAD_OFFSET) as u64) } else { sum };
    let remote = far.memory.remote(rng.random_range(0..LEN / 8 - 150) * 8);
    let (mut va, mut rkey) = (remote.addr, u64::from(remote.rkey));
    if matches!(opcode, send_op::COMPARE_SWAP | send_op::FETCH_ADD | send_op::ATOMIC_WRITE) {
        len = ATOMIC_BYTES as u64;
        near.put_sge(&mut b, ATOMIC_SGE_OFFSET, rng);
        sge::LENGTH.set(&mut b[ATOMIC_SGE_OFFSET..], len);
    }
    let window = match opcode {
        send_op::REG_MR => false,
        send_op::BIND_MW => true,
        _ => rng.random(),
    };
    // With the key byte that it was made with, or another.
    let own = if window { near.window } else { near.fast } ^ rng.random_range(0..2);
    match opcode {
        send_op::SEND_INV => send_wqe::IMM.set(&mut b, u64::from(remote.rkey.swap_bytes())),
        send_op::LOCAL_INV => len = own,
        send_op::REG_MR | send_op::BIND_MW => {
            (len, rkey, va) = (0, own, near.mr.addr() + rng.random_range(0..600));
            let fields =
                [(key_wqe::ACCESS, 15), (key_wqe::LKEY, near.ground), (key_wqe::SIZE, rng.random_range(1..600))];
            fields.iter().for_each(|(f, v)| f.set(&mut b, *v));
        }
        _ => {}
    }
    if transport == qp_type::UD {
        let mut target = [0; 8];
        ud_target::AH.set(&mut target, near.ah);
        ud_target::QPN.set(&mut target, far.qpn.into());
        (va, rkey) = (u64::from_le_bytes(target), KEY.into());
    }
    for (field, value) in [
        (send_wqe::OPCODE, opcode.into()),
        (send_wqe::SIGNALED, 1),
        (send_wqe::SOLICITED, rng.random_range(0..2)),
        (send_wqe::FENCE, u64::from(rng.random_bool(0.2))),
        (send_wqe::INLINE, inline.into()),
        (send_wqe::BLOCKS, 1),
        (send_wqe::SGES, sges as u64),
        (send_wqe::REMOTE_VA, va),
        (send_wqe::RKEY, rkey),
        (send_wqe::LENGTH, len),
        (send_wqe::INDEX, index.into()),
        (send_wqe::QPN, bare.qpn),
    ] {
        field.set(&mut b, value);
    }
    if rng.random_bool(bent) {
        let at = rng.random_range(0..WQE_BLOCK);
        b[at] = rng.random();
    }
    b
}

/// The peer of a bare queue pair: a queue pair of the driver's on host 1.
enum Peer {
    Rc(Qp<Rts>),
    Uc(Qp<Rts, Uc>),
    Ud(Qp<Rts, Ud>, AddressHandle),
}

/// It, and its memory.
struct Far<'a> {
    peer: Peer,
    qpn: u32,
    memory: &'a Mr,
}

/// Posts `count` receives and as many sends.
fn exchange<T: Transport>(qp: &mut Qp<Rts, T>, memory: &Mr, count: u64, send: Operation) {
    for i in 0..count {
        // Full, or in ERR.
        if qp.post_recv(i, &[memory.sge(100, 2000)]).is_err() {
            break;
        }
    }
    let mut batch = qp.post();
    for i in 0..count {
        if batch.add(i, send, Data::Sges(&[memory.sge(0, 300)]), Flags::SIGNALED).is_err() {
            break;
        }
    }
    batch.ring();
}

impl Far<'_> {
    fn exchange(&mut self, count: u64, bare: &Bare) {
        match &mut self.peer {
            Peer::Rc(qp) => exchange(qp, self.memory, count, Operation::Send),
            Peer::Uc(qp) => exchange(qp, self.memory, count, Operation::Send),
            Peer::Ud(qp, ah) => exchange(qp, self.memory, count, Operation::SendTo(ah.to(bare.qpn as u32, KEY))),
        }
    }
}

/// A peer in RTS for a queue pair of this kind, made behind `bare`.
fn far<'a>(bed: &Testbed, pd: &Pd, cq: &driver::Cq, memory: &'a Mr, bare: &Bare) -> Far<'a> {
    let sizes = QpSizes::new(64, 64);
    let path = Path { max_dest_reads: 16, min_rnr_timer: 1, ..path_to(bed.hosts[0].gid, bare.qpn as u32, 1024, 0) };
    let send = SendOptions { timeout: 6, retry_count: 1, ..SendOptions::default() };
    let (qpn, peer) = match bare.kind.transport {
        qp_type::RC => {
            let qp = pd.create_qp(cq, cq, sizes).unwrap().init(Access::all()).unwrap();
            bare.connect(bed, qp.qpn());
            (qp.qpn(), Peer::Rc(qp.rtr(&path).unwrap().rts(&send).unwrap()))
        }
        qp_type::UC => {
            let qp = pd.create_uc_qp(cq, cq, sizes).unwrap().init(Access::all()).unwrap();
            bare.connect(bed, qp.qpn());
            (qp.qpn(), Peer::Uc(qp.rtr(&path).unwrap().rts(0).unwrap()))
        }
        _ => {
            let qp = pd.create_ud_qp(cq, cq, sizes).unwrap().init(KEY).unwrap().rtr().unwrap().rts(0).unwrap();
            bare.connect(bed, qp.qpn());
            let gid = bed.hosts[0].gid;
            let (traffic_class, priority, source_port) = (0, 0, 0xc000);
            let to = AddressVector { ip: gid.ip, mac: gid.mac, gid: 0, traffic_class, priority, source_port };
            (qp.qpn(), Peer::Ud(qp, pd.create_ah(&to).unwrap()))
        }
    };
    Far { peer, qpn, memory }
}

/// Until `wqes` entries have told of what became of work requests and receives. One in 1 / `bent` is bent.
fn rings_of_any_content(mut setup: Setup, wqes: usize, bent: f64, seed: u64) {
    setup.nic.adversary = Adversary::Hostile;
    let bed = Testbed::new(&setup).unwrap();
    let mut bystander = Bystander::new(&bed);
    let device = &bed.hosts[0].device;
    let pd = number_of(device, op::CREATE_PD);
    let peer_pd = bed.hosts[1].device.create_pd().unwrap();
    // The rings are in memory of a domain that none of the queue pairs belongs to.
    let home = device.create_pd().unwrap();
    let far_memory = region(&peer_pd, LEN, Access::all(), |_| 0x33);
    // Regions of the bare domain: the driver makes the memory, and it moves there by its key's row.
    let near_memory = region(&home, LEN, Access::empty(), |_| 0x44);
    let list = region(&home, 4096, Access::empty(), |_| 0);
    list.write(0, &near_memory.addr().to_le_bytes());
    let mut made = Vec::new();
    let mut key_of = |fields: &[(Field, u64)]| {
        let a = command(device, op::CREATE_MR, &[&[(create_mr::PD, pd)], fields].concat());
        made.push(answer::NUMBER.get(&a));
        answer::VALUE.get(&a)
    };
    let whole = [
        (create_mr::ACCESS, 15),
        (create_mr::CONTIGUOUS, 1),
        (create_mr::VA, near_memory.addr()),
        (create_mr::LENGTH, LEN as u64),
        (create_mr::PAGES, near_memory.addr()),
    ];
    let pages = [(create_mr::PAGE_SHIFT, 12), (create_mr::LENGTH, 1), (create_mr::PAGES, list.addr())];
    let to = [&[(create_ah::PD, pd)], &address(&bed, 1)[..]].concat();
    let near = Near {
        mr: &near_memory,
        key: key_of(&whole),
        fast: key_of(&[&[(create_mr::KIND, key_kind::FAST.into())], &pages[..]].concat()),
        ground: key_of(&[&whole[..], &[(create_mr::BINDS, 1)]].concat()),
        window: key_of(&[(create_mr::KIND, key_kind::WINDOW.into())]),
        ah: answer::NUMBER.get(&command(device, op::CREATE_AH, &to)),
    };
    // By opcode: entries of success, and of failure.
    let mut ends = BTreeMap::<u8, [usize; 2]>::new();
    let (mut completed, mut failed, mut rounds) = (0, 0, 0);
    while completed < wqes {
        let seed = seed + rounds;
        rounds += 1;
        let mut rng = verilate::rng(seed);
        let kind = Kind::any(&mut rng);
        let what = format!("seed {seed}: {kind:?}");
        let bare = Bare::new(&bed, &home, pd, kind);
        let (blocks, receives) = (1u16 << kind.logs[0], kind.receives());
        let mut cq = bed.hosts[1].device.create_cq(256, &bed.hosts[1].eq).unwrap();
        let mut far = far(&bed, &peer_pd, &cq, &far_memory, &bare);
        for index in 0..blocks {
            let block = send_block(&mut rng, &bare, index, &near, &far, bent);
            bare.sq.write(index as usize * WQE_BLOCK, &block);
        }
        for slot in 0..1usize << kind.logs[1] {
            bare.rq.write(slot * WQE_BLOCK, &recv_block(&mut rng, &near, kind, bent));
        }
        let mut told = Told::default();
        let mut left = rng.random_range(200..800).max((4.0 / bent) as usize);
        let mut recv_room = receives;
        while left > 0 {
            told.poll(&bare, &mut ends, &what);
            // A failure is the end, but for what comes behind it.
            left = if told.failed.contains(&true) { left.min(40) } else { left } - 1;
            if left % 30 == 0 {
                cq.poll().for_each(drop);
                far.exchange(20, &bare);
                if kind.shared {
                    recv_room = receives.saturating_sub(bare.posted(device));
                }
            }
            if !kind.shared {
                recv_room = receives.saturating_sub(told.recv.wrapping_sub(told.received));
            }
            // What is told, and what is told no more, changes at any time.
            for _ in 0..rng.random_range(0..4) {
                let index = told.send.wrapping_add(rng.random_range(0..blocks));
                let block = send_block(&mut rng, &bare, index, &near, &far, bent);
                bare.sq.write((index & (blocks - 1)) as usize * WQE_BLOCK, &block);
                let slot = rng.random_range(0..1usize << kind.logs[1]);
                bare.rq.write(slot * WQE_BLOCK, &recv_block(&mut rng, &near, kind, bent));
            }
            let room = blocks.saturating_sub(told.send.wrapping_sub(told.sent));
            match rng.random_range(0..12) {
                0..4 if room > 0 => {
                    told.send = told.send.wrapping_add(rng.random_range(1..=room));
                    bare.ring(&bed, doorbell::SQ, told.send);
                }
                4..7 if recv_room > 0 => {
                    let more = rng.random_range(1..=recv_room);
                    recv_room -= more;
                    told.recv = told.recv.wrapping_add(more);
                    bare.ring(&bed, doorbell::RQ, (kind.sges() as u16).wrapping_mul(told.recv));
                }
                7 if room > 0 => {
                    // A direct WQE, which may be torn.
                    let block = send_block(&mut rng, &bare, told.send, &near, &far, bent);
                    let torn = 5.0 * bent;
                    for (i, word) in block.as_chunks::<8>().0.iter().enumerate().filter(|_| !rng.random_bool(torn)) {
                        store(&bed, doorbell::DIRECT_WQE + 8 * i, u64::from_le_bytes(*word));
                    }
                    told.send = told.send.wrapping_add(1);
                    bare.ring(&bed, doorbell::SQ, told.send);
                }
                8 | 9 => bare.consume(&bed, told.seen, rng.random_range(0..4)),
                10 if rng.random_bool(bent / 2.0) => match rng.random_range(0..3) {
                    0 => bare.consume(&bed, rng.random_range(0..1 << 24), 0),
                    1 => bare.ring(&bed, doorbell::SQ, rng.random()),
                    _ => bare.ring(&bed, doorbell::RQ, rng.random()),
                },
                _ => {}
            }
            bed.relax();
        }
        told.poll(&bare, &mut ends, &what);
        assert!(bytes(&bare.cq)[cqe::BYTES << kind.logs[2]..].iter().all(|b| *b == GUARD), "{what}: beside the ring");
        println!("{what}: {told:?}");
        completed += told.seen as usize;
        failed += usize::from(told.failed.contains(&true));
        bare.destroy(device);
        // Whatever the rings say, nothing reads or writes in their name any more.
        near.mr.write(0, &[0x44; LEN]);
        bare.cq.write(0, &[GUARD; RING]);
        let rings = [&bare.sq, &bare.rq].map(bytes);
        pass(&bed, 60);
        assert!(bytes(near.mr) == [0x44; LEN], "{what}: written after the queue pair was destroyed");
        assert!(bytes(&bare.cq) == [GUARD; RING], "{what}: completed after the queues were destroyed");
        assert!(rings == [&bare.sq, &bare.rq].map(bytes), "{what}: a ring of WQEs was written");
        drop(far);
        bystander.check(&bed, &what);
        assert_sound(&bed, &what);
    }
    println!("{completed} entries, {failed} of {rounds} queue pairs failed, {ends:?}");
    assert!(failed > 0, "nothing is refused");
    command(device, op::DESTROY_AH, &[(head::NUMBER, near.ah)]);
    made.iter().rev().for_each(|n| _ = command(device, op::DESTROY_MR, &[(head::NUMBER, *n)]));
    command(device, op::DESTROY_PD, &[(head::NUMBER, pd)]);
}

#[test]
fn rings_of_any_content_at_64_bits() {
    rings_of_any_content(Setup::small(), verilate::scale(1500), 0.02, 1);
}

#[test]
fn rings_of_any_content_at_512_bits() {
    rings_of_any_content(Setup::default(), verilate::scale(500), 0.02, 500);
}

#[test]
#[ignore = "an hour: for `./ferroce test --all`"]
fn a_million_work_requests_of_any_content() {
    rings_of_any_content(Setup::small(), verilate::whole(1_000_000), 0.001, 10_000);
}
