//! Queues whose memory the host writes as it likes while the device reads it: made by commands, without a driver behind them. Whatever
//! stands in their rings, and whatever their doorbells say, only memory of their own protection domain is touched, no completion goes
//! beside its ring, and they can be destroyed.

use abi::Field;
use abi::cmd::{answer, attr, create_cq, create_qp, head, modify_qp, op, result};
use abi::queue::{
    ATOMIC_SGE_OFFSET, MAX_SGE, SEND_PAYLOAD_OFFSET, WQE_BLOCK, cq_db, cqe, doorbell, recv_op, ring_db, send_op,
    send_wqe, sge,
};
use abi::table::qp_type;
use driver::qp::{QpSizes, SendOptions};
use driver::{Access, Data, Device, Flags, Mr, OpenOptions, Operation, Pd};
use ferroce_tests::{Bystander, GUARD, assert_sound, bytes, pass, path_to, region};
use nic::{Adversary, BarRequest};
use rand::{Rng, RngExt};
use rand_chacha::ChaCha8Rng;
use testbed::{Setup, Testbed};

const LEN: usize = 4096;
/// Bytes of each ring's memory; the rings are smaller.
const RING: usize = 8192;

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

/// Numbers of a protection domain and of an event queue of the owner, as commands name them.
fn number_of(device: &Device, opcode: u8) -> u64 {
    answer::NUMBER.get(&command(device, opcode, &[]))
}

/// A queue pair and its completion queue on host 0, with their rings.
struct Bare {
    qpn: u64,
    cqn: u64,
    logs: [u32; 3],
    sq: Mr,
    rq: Mr,
    cq: Mr,
}

impl Bare {
    fn new(bed: &Testbed, home: &Pd, pd: u64, logs: [u32; 3]) -> Self {
        let device = &bed.hosts[0].device;
        let ring = || region(home, RING, Access::empty(), |_| GUARD);
        let (sq, rq, cq) = (ring(), ring(), ring());
        let base = |mr: &Mr| mr.addr();
        let c = [(create_cq::LOG2_ENTRIES, logs[2].into()), (create_cq::BASE, base(&cq))];
        let cqn = answer::NUMBER.get(&command(device, op::CREATE_CQ, &c));
        let c = [
            (create_qp::TYPE, qp_type::RC.into()),
            (create_qp::SQ_LOG2, logs[0].into()),
            (create_qp::RQ_LOG2, logs[1].into()),
            (create_qp::RQ_SGES, MAX_SGE as u64),
            (create_qp::PD, pd),
            (create_qp::SEND_CQN, cqn),
            (create_qp::RECV_CQN, cqn),
            (create_qp::SQ_BASE, base(&sq)),
            (create_qp::RQ_BASE, base(&rq)),
        ];
        let qpn = answer::NUMBER.get(&command(device, op::CREATE_QP, &c));
        Bare { qpn, cqn, logs, sq, rq, cq }
    }

    /// To RTS, towards QP `peer` of host 1.
    fn connect(&self, bed: &Testbed, peer: u32) {
        let gid = bed.hosts[1].gid;
        let std::net::IpAddr::V4(ip) = gid.ip else { panic!("IPv4 here") };
        let mac = gid.mac.iter().rev().fold(0, |w, b| w << 8 | u64::from(*b));
        let step = |state: u8, mask: u32, fields: &[(Field, u64)]| {
            let of = [
                (head::NUMBER, self.qpn),
                (modify_qp::MASK, (attr::STATE | mask).into()),
                (modify_qp::STATE, state.into()),
                (modify_qp::PORT, 1),
            ];
            command(&bed.hosts[0].device, op::MODIFY_QP, &[&of, fields].concat());
        };
        use abi::table::qp_state::{INIT, RTR, RTS};
        step(INIT, attr::PKEY_INDEX | attr::PORT | attr::ACCESS_FLAGS, &[(modify_qp::ACCESS, 15)]);
        let path = attr::AV | attr::PATH_MTU | attr::DEST_QPN | attr::RQ_PSN;
        let fields = [
            (modify_qp::PATH_MTU, 3),
            (modify_qp::DEST_QPN, peer.into()),
            (modify_qp::MAX_DEST_READS, 16),
            (modify_qp::MIN_RNR_TIMER, 1),
            (modify_qp::HOP_LIMIT, 64),
            (modify_qp::DMAC, mac),
            (modify_qp::SPORT, 0xc000),
            (modify_qp::DIP_LOW, u32::from_le_bytes(ip.octets()).into()),
        ];
        step(RTR, path | attr::MAX_DEST_RD_ATOMIC | attr::MIN_RNR_TIMER, &fields);
        let fields = [(modify_qp::TIMEOUT, 6), (modify_qp::RETRY_CNT, 1), (modify_qp::MAX_READS, 16)];
        let retries = attr::TIMEOUT | attr::RETRY_CNT | attr::RNR_RETRY | attr::MAX_QP_RD_ATOMIC;
        step(RTS, attr::SQ_PSN | retries, &fields);
    }

    fn ring(&self, bed: &Testbed, at: usize, producer: u16) {
        let mut word = [0; 8];
        ring_db::NUMBER.set(&mut word, self.qpn);
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
    fn poll(&mut self, bare: &Bare, what: &str) {
        loop {
            let (log2, mut e) = (bare.logs[2], [0; cqe::BYTES]);
            bare.cq.read((self.seen & ((1 << log2) - 1)) as usize * cqe::BYTES, &mut e);
            // The bits beside the phase are clear in an entry.
            if u32::from(e[cqe::BYTES - 1]) != (self.seen >> log2 & 1 ^ 1) {
                return;
            }
            let (status, opcode) = (cqe::STATUS.get(&e) as u8, cqe::OPCODE.get(&e) as u8);
            assert_eq!(cqe::QPN.get(&e), bare.qpn, "{what}: {e:x?}");
            // Of the other queue there may be what had happened by then.
            let queue = usize::from(opcode >= recv_op::RECV);
            assert!(!self.failed[queue], "{what}: an entry behind the failure: {e:x?}");
            let index = cqe::WQE_INDEX.get(&e) as u16;
            if queue == 1 {
                self.received = self.received.wrapping_add(1);
            } else {
                assert!(status != 0 || opcode <= send_op::FETCH_ADD, "{what}: {e:x?}");
                self.sent = index.wrapping_add(1);
            }
            self.failed[queue] |= status != 0;
            self.seen += 1;
        }
    }
}

/// An 8-byte store to the driver's doorbell page.
fn store(bed: &Testbed, at: usize, value: u64) {
    let page = usize::from(OpenOptions::default().owner) * doorbell::PAGE;
    bed.sim().nic(0).bar(BarRequest { bar: 2, offset: (page + at) as u32, bytes: 8, write: Some(value) });
}

/// Memory under a key of the bare domain.
struct Near<'a> {
    mr: &'a Mr,
    key: u64,
}

impl Near<'_> {
    fn put_sge(&self, block: &mut [u8], at: usize, rng: &mut ChaCha8Rng) {
        let b = &mut block[at..at + sge::BYTES];
        sge::VA.set(b, self.mr.addr() + rng.random_range(0..LEN as u64 - 600));
        sge::LKEY.set(b, self.key);
        sge::LENGTH.set(b, rng.random_range(0..600));
    }
}

/// A receive of four SGEs, sound or nearly so.
fn recv_block(rng: &mut ChaCha8Rng, near: &Near) -> [u8; WQE_BLOCK] {
    let mut b = [0; WQE_BLOCK];
    (0..MAX_SGE).for_each(|i| near.put_sge(&mut b, i * sge::BYTES, rng));
    if rng.random_bool(0.01) {
        let at = rng.random_range(0..WQE_BLOCK);
        b[at] = rng.random();
    }
    b
}

/// A block of a send ring: sound, nearly so, or anything.
fn send_block(rng: &mut ChaCha8Rng, qpn: u64, index: u16, near: &Near, far: &Mr) -> [u8; WQE_BLOCK] {
    let mut b = [0; WQE_BLOCK];
    if rng.random_bool(0.01) {
        rng.fill_bytes(&mut b);
        return b;
    }
    let sges = rng.random_range(0..=2);
    for i in 0..sges {
        near.put_sge(&mut b, SEND_PAYLOAD_OFFSET + i * sge::BYTES, rng);
    }
    let sum: u64 = (0..sges).map(|i| sge::LENGTH.get(&b[SEND_PAYLOAD_OFFSET + i * sge::BYTES..][..16])).sum();
    let atomic = rng.random_bool(0.2);
    if atomic {
        near.put_sge(&mut b, ATOMIC_SGE_OFFSET, rng);
        sge::LENGTH.set(&mut b[ATOMIC_SGE_OFFSET..], 8);
    }
    let opcode = if atomic { send_op::FETCH_ADD } else { rng.random_range(0..=send_op::READ) };
    let remote = far.remote(rng.random_range(0..LEN / 8 - 150) * 8);
    for (field, value) in [
        (send_wqe::OPCODE, opcode.into()),
        (send_wqe::SIGNALED, 1),
        (send_wqe::BLOCKS, 1),
        (send_wqe::SGES, sges as u64),
        (send_wqe::REMOTE_VA, remote.addr),
        (send_wqe::RKEY, remote.rkey.into()),
        (send_wqe::LENGTH, if atomic { 8 } else { sum }),
        (send_wqe::INDEX, index.into()),
        (send_wqe::QPN, qpn),
    ] {
        field.set(&mut b, value);
    }
    if rng.random_bool(0.02) {
        let at = rng.random_range(0..WQE_BLOCK);
        b[at] = rng.random();
    }
    b
}

fn rings_of_any_content(mut setup: Setup, rounds: usize, seed: u64) {
    setup.nic.adversary = Adversary::Hostile;
    let bed = Testbed::new(&setup).unwrap();
    let mut bystander = Bystander::new(&bed);
    let device = &bed.hosts[0].device;
    let pd = number_of(device, op::CREATE_PD);
    let peer_pd = bed.hosts[1].device.create_pd().unwrap();
    // The rings are in memory of a domain that none of the queue pairs belongs to.
    let home = device.create_pd().unwrap();
    let far = region(&peer_pd, LEN, Access::all(), |_| 0x33);
    // A region of the bare domain: the driver makes it, and it moves there by its key's row.
    let near_memory = region(&home, LEN, Access::empty(), |_| 0x44);
    let c = [
        (abi::cmd::create_mr::PD, pd),
        (abi::cmd::create_mr::ACCESS, 15),
        (abi::cmd::create_mr::CONTIGUOUS, 1),
        (abi::cmd::create_mr::VA, near_memory.addr()),
        (abi::cmd::create_mr::LENGTH, LEN as u64),
        (abi::cmd::create_mr::PAGES, near_memory.addr()),
    ];
    let made = command(device, op::CREATE_MR, &c);
    let key = answer::VALUE.get(&made);
    let near = Near { mr: &near_memory, key };
    let (mut completed, mut failed) = (0, 0);
    for round in 0..rounds {
        let mut rng = verilate::rng(seed + round as u64);
        let logs = [rng.random_range(0..5), rng.random_range(0..5), rng.random_range(0..7)];
        let what = format!("seed {}: rings of 2^{logs:?}", seed + round as u64);
        let bare = Bare::new(&bed, &home, pd, logs);
        let cq = bed.hosts[1].device.create_cq(256, &bed.hosts[1].eq).unwrap();
        let far_qp = peer_pd.create_qp(&cq, &cq, QpSizes::new(64, 16)).unwrap().init(Access::all()).unwrap();
        bare.connect(&bed, far_qp.qpn());
        let send = SendOptions { timeout: 6, retry_count: 1, ..SendOptions::default() };
        let path = driver::qp::Path {
            max_dest_reads: 16,
            min_rnr_timer: 1,
            ..path_to(bed.hosts[0].gid, bare.qpn as u32, 1024, 0)
        };
        let mut far_qp = far_qp.rtr(&path).unwrap().rts(&send).unwrap();
        (0..16).for_each(|i| far_qp.post_recv(i, &[far.sge(100, 600)]).unwrap());
        let mut batch = far_qp.post();
        for i in 0..12 {
            batch.add(i, Operation::Send, Data::Sges(&[far.sge(0, 300)]), Flags::SIGNALED).unwrap();
        }
        batch.ring();
        let mut told = Told::default();
        for _ in 0..rng.random_range(100..400) {
            told.poll(&bare, &what);
            // What is told, and what is told no more, changes at any time.
            for _ in 0..rng.random_range(0..4) {
                let index = told.send.wrapping_add(rng.random_range(0..1 << logs[0]));
                let block = send_block(&mut rng, bare.qpn, index, &near, &far);
                bare.sq.write((index as usize & ((1 << logs[0]) - 1)) * WQE_BLOCK, &block);
                let slot = rng.random_range(0..1usize << logs[1]);
                bare.rq.write(slot * WQE_BLOCK, &recv_block(&mut rng, &near));
            }
            let room = (1u16 << logs[0]).saturating_sub(told.send.wrapping_sub(told.sent));
            let recv_room = (1u16 << logs[1]).saturating_sub(told.recv.wrapping_sub(told.received));
            match rng.random_range(0..12) {
                0..4 if room > 0 => {
                    told.send = told.send.wrapping_add(rng.random_range(1..=room));
                    bare.ring(&bed, doorbell::SQ, told.send);
                }
                4..7 if recv_room > 0 => {
                    told.recv = told.recv.wrapping_add(rng.random_range(1..=recv_room));
                    bare.ring(&bed, doorbell::RQ, MAX_SGE as u16 * told.recv);
                }
                7 if room > 0 => {
                    // A direct WQE, which may be torn.
                    let block = send_block(&mut rng, bare.qpn, told.send, &near, &far);
                    for (i, word) in block.as_chunks::<8>().0.iter().enumerate().filter(|_| rng.random_bool(0.95)) {
                        store(&bed, doorbell::DIRECT_WQE + 8 * i, u64::from_le_bytes(*word));
                    }
                    told.send = told.send.wrapping_add(1);
                    bare.ring(&bed, doorbell::SQ, told.send);
                }
                8 => bare.consume(&bed, told.seen, rng.random_range(0..4)),
                9 if rng.random_bool(0.01) => bare.consume(&bed, rng.random_range(0..1 << 24), 0),
                10 if rng.random_bool(0.01) => bare.ring(&bed, doorbell::SQ, rng.random()),
                11 if rng.random_bool(0.01) => bare.ring(&bed, doorbell::RQ, rng.random()),
                _ => {}
            }
            bed.relax();
        }
        told.poll(&bare, &what);
        assert!(bytes(&bare.cq)[cqe::BYTES << logs[2]..].iter().all(|b| *b == GUARD), "{what}: beside the ring");
        println!("{what}: {told:?}");
        completed += told.seen;
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
        drop(far_qp);
        bystander.check(&bed, &what);
        assert_sound(&bed, &what);
    }
    println!("{completed} entries, {failed} of {rounds} queue pairs failed");
    assert!(completed > rounds as u32 && failed > 0, "most of it is refused at once, or nothing");
    command(device, op::DESTROY_MR, &[(head::NUMBER, answer::NUMBER.get(&made))]);
    command(device, op::DESTROY_PD, &[(head::NUMBER, pd)]);
}

#[test]
fn rings_of_any_content_at_64_bits() {
    rings_of_any_content(Setup::small(), verilate::scale(12), 1);
}

#[test]
fn rings_of_any_content_at_512_bits() {
    rings_of_any_content(Setup::default(), verilate::scale(5), 500);
}
