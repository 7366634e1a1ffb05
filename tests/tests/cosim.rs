//! Two NICs and the real driver: random mixes of operations, and every byte of both hosts' memory compared, guard bytes
//! included.
//!
//! Each operation has a destination of its own, so the outcome does not depend on the order in which QPs are served. Between
//! destinations lie guard bytes that nothing may touch.

use abi::{status::counter, wire::op};
use driver::qp::{Qp, QpSizes, Rts};
use driver::{Access, Data, Flags, Mr, Operation, Sge};
use fabric::{Action, Match, Packet, Part};
use ferroce_tests::beside::Beside;
use nic::{Adversary, NS};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use testbed::{Connect, Pair, Setup, Testbed};

/// Value of memory that nothing may write.
const GUARD: u8 = 0xa5;
/// Bytes of each memory of a pair.
const AREA: usize = 192 << 10;
const SIZES: QpSizes = QpSizes::new(64, 32);

/// Memory of one host for one pair, and what it must hold in the end.
struct Area {
    mr: Mr,
    want: Vec<u8>,
    /// Where the next destination may start.
    next: usize,
}

impl Area {
    fn new(bed: &Testbed, host: usize, access: Access, fill: impl Fn(usize) -> u8) -> Self {
        let mr = bed.hosts[host].pd.alloc(AREA, access).unwrap();
        let want: Vec<u8> = (0..AREA).map(fill).collect();
        mr.write(0, &want);
        Area { mr, want, next: 16 }
    }

    /// A destination of `len` bytes with guards on both sides, if there is room.
    fn place(&mut self, rng: &mut ChaCha8Rng, len: usize) -> Option<usize> {
        let at = self.next + rng.random_range(0..70);
        (at + len + 16 <= AREA).then(|| {
            self.next = at + len + 16;
            at
        })
    }

    fn check(&self, what: &str) {
        let mut got = vec![0; AREA];
        self.mr.read(0, &mut got);
        if let Some(at) = (0..AREA).find(|i| got[*i] != self.want[*i]) {
            let end = (at..AREA).find(|i| got[*i] == self.want[*i]).unwrap_or(AREA);
            panic!("{what}: bytes {at}..{end} differ, first is {:#04x}, want {:#04x}", got[at], self.want[at]);
        }
    }
}

/// One direction of a pair: from the sender's memories to the receiver's.
struct Flow {
    source: Area,
    landing: Area,
    remote: Area,
    remote_source: Area,
    /// Words that atomics are about.
    words: Area,
    inbox: Area,
    posted: u64,
    completed: u64,
    /// Sends since the latest signaled one.
    unsignaled: u64,
    /// Receives that come late, when the peer may have been told that there is none: their stretches, oldest first.
    late: VecDeque<Vec<(usize, usize)>>,
    /// Receives have one SGE.
    one_sge: bool,
    /// What was sent and not received, oldest first.
    sent: VecDeque<(usize, Option<[u8; 4]>)>,
}

fn noise(seed: u64) -> impl Fn(usize) -> u8 {
    move |i| ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed) >> 29) as u8
}

impl Flow {
    fn new(bed: &Testbed, [from, to]: [usize; 2], one_sge: bool, seed: u64) -> Self {
        let local = Access::LOCAL_WRITE;
        Flow {
            source: Area::new(bed, from, local, noise(seed)),
            landing: Area::new(bed, from, local, |_| GUARD),
            remote: Area::new(bed, to, local | Access::REMOTE_WRITE, |_| GUARD),
            remote_source: Area::new(bed, to, Access::REMOTE_READ, noise(seed ^ 0x5555)),
            words: Area::new(bed, to, local | Access::REMOTE_ATOMIC, noise(seed ^ 0xaaaa)),
            inbox: Area::new(bed, to, local, |_| GUARD),
            posted: 0,
            completed: 0,
            unsignaled: 0,
            late: Default::default(),
            one_sge,
            sent: Default::default(),
        }
    }

    fn check(&self, what: &str) {
        for (area, name) in [(&self.landing, "READ landing"), (&self.remote, "WRITE target"), (&self.inbox, "receives")]
        {
            area.check(&format!("{what}, {name}"));
        }
        self.source.check(what);
        self.remote_source.check(what);
        self.words.check(&format!("{what}, words of atomics"));
    }

    /// Flags of the next send: some wait for READs, and of at most five in a row one completes with a CQE.
    fn flags(&mut self, rng: &mut ChaCha8Rng) -> Flags {
        let mut flags = if rng.random_bool(0.2) { Flags::FENCE } else { Flags::empty() };
        self.unsignaled = if self.unsignaled == 4 || rng.random_bool(0.6) { 0 } else { self.unsignaled + 1 };
        flags.set(Flags::SIGNALED, self.unsignaled == 0);
        flags
    }

    /// Lets what is left unsignaled complete.
    fn finish(&mut self, qp: &mut Qp<Rts>) {
        if self.unsignaled > 0 {
            self.unsignaled = 0;
            let nothing = Operation::Write(self.remote.mr.remote(0));
            qp.post().add(self.posted, nothing, Data::Sges(&[]), Flags::SIGNALED).unwrap();
            self.posted += 1;
        }
    }
}

/// A message length: small ones, lengths around the MTU, long ones.
fn length(rng: &mut ChaCha8Rng, mtu: usize) -> usize {
    match rng.random_range(0..10) {
        0 => 0,
        1..=3 => rng.random_range(1..130),
        4..=6 => (mtu * rng.random_range(1..4) + 3).saturating_sub(rng.random_range(0..6)),
        _ => rng.random_range(1..12_000),
    }
}

/// Cuts `len` bytes at `at` into 1 to 4 stretches, some of them empty.
fn cut(rng: &mut ChaCha8Rng, at: usize, len: usize) -> Vec<(usize, usize)> {
    let mut cuts: Vec<usize> = (0..rng.random_range(0..4)).map(|_| rng.random_range(0..=len)).collect();
    cuts.extend([0, len]);
    cuts.sort_unstable();
    cuts.windows(2).map(|w| (at + w[0], w[1] - w[0])).collect()
}

fn sges(mr: &Mr, stretches: &[(usize, usize)]) -> Vec<Sge> {
    stretches.iter().map(|(at, len)| mr.sge(*at, *len)).collect()
}

/// Copies `data` over stretches, in order.
fn scatter(want: &mut [u8], stretches: &[(usize, usize)], mut data: &[u8]) {
    for (at, len) in stretches {
        let n = (*len).min(data.len());
        want[*at..at + n].copy_from_slice(&data[..n]);
        data = &data[n..];
    }
}

struct Mix {
    width: usize,
    seed: u64,
    /// Hosts of the two ends of each pair.
    pairs: &'static [[usize; 2]],
    /// The cable is plugged in.
    link: bool,
    mtu: u32,
    adversary: Adversary,
    loss: f64,
    operations: u64,
}

fn post(rng: &mut ChaCha8Rng, pair: &mut Pair, dir: usize, f: &mut Flow, mtu: usize) -> bool {
    let (from, to) = if dir == 0 { (&mut pair.a, &mut pair.b) } else { (&mut pair.b, &mut pair.a) };
    let len = length(rng, mtu);
    let start = rng.random_range(0..AREA - len);
    let gather = cut(rng, start, len);
    let data = f.source.want[start..start + len].to_vec();
    let imm = [rng.random(), rng.random(), rng.random(), rng.random()];
    let kind = rng.random_range(0..6);
    if kind == 5 {
        // About one of a few words, or of many; those of a QP are executed in order.
        let Some(to) = f.landing.place(rng, 8) else { return false };
        let some = if rng.random() { 3 } else { AREA / 8 };
        let at = 8 * rng.random_range(0..some);
        let there = u64::from_le_bytes(f.words.want[at..at + 8].try_into().unwrap());
        let (remote, operand) = (f.words.mr.remote(at), rng.random());
        let compare = if rng.random_bool(0.7) { there } else { operand };
        let (op, leaves) = match rng.random() {
            true => (Operation::AtomicAdd { remote, add: operand }, there.wrapping_add(operand)),
            false => {
                let leaves = if compare == there { operand } else { there };
                (Operation::AtomicCas { remote, compare, swap: operand }, leaves)
            }
        };
        f.words.want[at..at + 8].copy_from_slice(&leaves.to_le_bytes());
        f.landing.want[to..to + 8].copy_from_slice(&there.to_le_bytes());
        let mut batch = from.qp.post();
        batch.add(f.posted, op, Data::Sges(&[f.landing.mr.sge(to, 8)]), f.flags(rng)).unwrap();
        if rng.random() {
            batch.ring()
        } else {
            batch.ring_direct()
        }
        f.posted += 1;
        return true;
    }
    let (operation, wire) = match kind {
        0 | 1 => {
            let Some(at) = f.remote.place(rng, len) else { return false };
            f.remote.want[at..at + len].copy_from_slice(&data);
            let remote = f.remote.mr.remote(at);
            if kind == 0 {
                (Operation::Write(remote), None)
            } else {
                // Takes a receive, whose memory stays untouched.
                (Operation::WriteImm(remote, imm), Some((0, Some(imm))))
            }
        }
        2 => {
            let Some(at) = f.landing.place(rng, len) else { return false };
            let stretches = cut(rng, at, len);
            let from_at = rng.random_range(0..AREA - len);
            let bytes = f.remote_source.want[from_at..from_at + len].to_vec();
            scatter(&mut f.landing.want, &stretches, &bytes);
            let list = sges(&f.landing.mr, &stretches);
            let mut batch = from.qp.post();
            let op = Operation::Read(f.remote_source.mr.remote(from_at));
            batch.add(f.posted, op, Data::Sges(&list), f.flags(rng)).unwrap();
            drop(batch);
            f.posted += 1;
            return true;
        }
        3 => (Operation::Send, Some((len, None))),
        _ => (Operation::SendImm(imm), Some((len, Some(imm)))),
    };
    if let Some((bytes, imm)) = wire {
        let room = bytes + if rng.random_bool(0.5) { rng.random_range(0..50) } else { 0 };
        let Some(at) = f.inbox.place(rng, room) else { return false };
        let stretches = if f.one_sge { vec![(at, room)] } else { cut(rng, at, room) };
        if bytes > 0 {
            scatter(&mut f.inbox.want, &stretches, &data);
        }
        // In order, so behind one that is late all are.
        if !f.late.is_empty() || rng.random_bool(0.05) {
            f.late.push_back(stretches);
        } else {
            to.qp.post_recv(f.posted, &sges(&f.inbox.mr, &stretches)).unwrap();
        }
        f.sent.push_back((len, imm));
    }
    let mut batch = from.qp.post();
    let small = len <= 224 && rng.random_bool(0.5);
    let list = sges(&f.source.mr, &gather);
    let payload = if small { Data::Inline(&data) } else { Data::Sges(&list) };
    batch.add(f.posted, operation, payload, f.flags(rng)).unwrap();
    if rng.random_bool(0.5) {
        batch.ring()
    } else {
        batch.ring_direct()
    }
    f.posted += 1;
    true
}

/// Runs it; how often a receive was not ready.
fn run(mix: &Mix) -> u64 {
    println!("seed {}", mix.seed);
    let mut rng = ChaCha8Rng::seed_from_u64(mix.seed);
    let mut setup = if mix.width == SMALL { Setup::small() } else { Setup { width: mix.width, ..Setup::default() } };
    setup.nic.adversary = mix.adversary;
    setup.nic.seed = mix.seed;
    setup.ip6 = rng.random();
    setup.vlan = rng.random_bool(0.5).then(|| rng.random_range(1..4095));
    let bed = Testbed::new(&setup).unwrap();
    let maps = bed.hosts.each_ref().map(|h| h.device.dma_maps());
    if mix.loss > 0.0 {
        let faults = [Action::Corrupt(Part::Any), Action::Duplicate, Action::Delay(2000 * NS), Action::Reorder(3)];
        for action in faults.into_iter().chain([Action::Drop, Action::Truncate]) {
            let some = Match { probability: Some(mix.loss / 2.0), ..Match::default() };
            bed.sim().link_mut(0).rules.add(some, action);
        }
    }
    let connect = Connect {
        mtu: mix.mtu,
        // PSNs of half of all runs wrap.
        psn: if rng.random() { rng.random_range(0..1 << 24) } else { (1 << 24) - rng.random_range(1..200) },
        sizes: SIZES,
        access: Access::all(),
        ..Connect::default()
    };
    // Acknowledgements on the wire: ACKs and NAKs, by the NIC that sent them.
    let seen: Arc<Mutex<[[u64; 2]; 2]>> = Default::default();
    let count = seen.clone();
    bed.sim().tap(Some(Box::new(move |from, frame, _| {
        if let Some(Packet { opcode: op::ACK, aeth: Some((syndrome, _)), .. }) = Packet::of(&frame.data) {
            count.lock().unwrap()[from][(syndrome >> 5 != 0) as usize] += 1;
        }
    })));
    bed.sim().plug(0, mix.link);
    // Receives of one SGE and of four beside each other.
    let ones: Vec<bool> = mix.pairs.iter().map(|_| rng.random()).collect();
    let sized = |one| Connect { sizes: if one { SIZES.one_sge() } else { SIZES }, ..connect };
    let mut pairs: Vec<_> =
        mix.pairs.iter().zip(&ones).map(|(hosts, one)| bed.connect_hosts(*hosts, &sized(*one)).unwrap()).collect();
    let flow =
        |i: usize, hosts: [usize; 2], dir: usize| Flow::new(&bed, hosts, ones[i], mix.seed ^ (i * 2 + dir) as u64);
    let flows = mix.pairs.iter().enumerate().map(|(i, [a, b])| [flow(i, [*a, *b], 0), flow(i, [*b, *a], 1)]);
    let mut flows: Vec<[Flow; 2]> = flows.collect();
    let mut beside = Beside::new(&bed, mix.pairs[0]);
    let (mut left, mut quiet) = (mix.operations, 0);
    loop {
        // Where many pairs begin at once the first of these are lost for want of room: then they are not all.
        let more = left > 0 || beside.are_few();
        beside.step(&mut rng, more);
        let mut busy = more || !beside.is_done();
        for (pair, both) in pairs.iter_mut().zip(&mut flows) {
            for (dir, f) in both.iter_mut().enumerate() {
                if left > 0 && f.posted - f.completed < 12 && rng.random_bool(0.3) {
                    left = if post(&mut rng, pair, dir, f, mix.mtu as usize) { left - 1 } else { 0 };
                    quiet = 0;
                }
                let [from, to] = if dir == 0 { [&mut pair.a, &mut pair.b] } else { [&mut pair.b, &mut pair.a] };
                if left == 0 {
                    f.finish(&mut from.qp);
                }
                if rng.random_bool(0.05)
                    && let Some(stretches) = f.late.pop_front()
                {
                    to.qp.post_recv(0, &sges(&f.inbox.mr, &stretches)).unwrap();
                }
                busy |= f.completed < f.posted || !f.sent.is_empty();
            }
            for end in 0..2 {
                let cq = if end == 0 { &mut pair.a.cq } else { &mut pair.b.cq };
                for c in cq.poll() {
                    quiet = 0;
                    c.status.unwrap_or_else(|e| panic!("seed {}: {e}: {c:?}", mix.seed));
                    if c.opcode < 0x80 {
                        let f = &mut both[end];
                        assert!(c.wr_id >= f.completed, "completions out of order: {c:?}");
                        f.completed = c.wr_id + 1;
                    } else {
                        let f = &mut both[1 - end];
                        let (len, imm) = f.sent.pop_front().expect("a receive that nobody sent");
                        assert_eq!((c.len as usize, c.imm), (len, imm), "seed {}: {c:?}", mix.seed);
                    }
                }
            }
        }
        if !busy {
            break;
        }
        quiet += 1;
        assert!(quiet < 100_000, "seed {}: nothing completes any more", mix.seed);
        bed.relax();
    }
    // What completes with its last packet's leaving is still on its way.
    (0..100).for_each(|_| {
        beside.step(&mut rng, false);
        bed.relax();
    });
    let lost = mix.loss > 0.0;
    for (posted, arrived) in beside.arrived() {
        println!("{arrived} of {posted} messages arrived that nobody acknowledges");
        assert!(arrived > posted / 4 && (lost || arrived <= posted), "seed {}: {arrived} of {posted}", mix.seed);
    }
    // A WRITE completes when the peer has taken it; it reaches the peer's memory a little later.
    (0..100).for_each(|_| bed.relax());
    for (i, both) in flows.iter().enumerate() {
        for (dir, f) in both.iter().enumerate() {
            f.check(&format!("seed {}, pair {i}, direction {dir}", mix.seed));
        }
    }
    for nic in 0..2 {
        let faults = bed.sim().nic(nic).host.iommu.take_faults();
        assert!(faults.is_empty(), "seed {}: DMA outside of the maps: {faults:x?}", mix.seed);
        assert_eq!(bed.hosts[nic].device.health() & !1, 0, "seed {}", mix.seed);
        // Each frame on the wire is counted once. Turned frames are not on it, and corrupted ones not what was sent.
        if mix.loss == 0.0 && mix.pairs.iter().all(|[a, b]| a != b) {
            let counted = [counter::TX_ACK, counter::TX_NAK].map(|c| bed.hosts[nic].device.counter(c));
            let seen = seen.lock().unwrap()[nic];
            assert_eq!(counted, seen, "seed {}: ACKs and NAKs of NIC {nic}", mix.seed);
            assert!(seen[0] > 0, "seed {}: no ACK of NIC {nic}", mix.seed);
        }
    }
    drop((pairs, flows, beside));
    for (host, maps) in bed.hosts.iter().zip(maps) {
        assert_eq!(host.device.dma_maps(), maps, "seed {}: maps of the IOMMU are left over", mix.seed);
    }
    bed.hosts.iter().map(|h| h.device.counter(counter::RX_RNR)).sum()
}

fn mix(width: usize, mtu: u32, adversary: Adversary, loss: f64) -> u64 {
    let operations = verilate::scale(300) as u64;
    let seed = verilate::seed(u64::from(mtu) * 31 + width as u64 + (loss * 1e6) as u64);
    run(&Mix { width, seed, pairs: &[[0, 1]; 4], link: true, mtu, adversary, loss, operations })
}

/// Pairs within both NICs, with or without pairs between them.
fn mix_of_loopback(width: usize, mtu: u32, adversary: Adversary, between: bool, loss: f64) {
    let operations = verilate::scale(300) as u64;
    let seed = verilate::seed(u64::from(mtu) * 37 + width as u64 + (loss * 1e6) as u64);
    let pairs: &[_] = if between { &[[0, 0], [0, 1], [1, 1], [1, 0]] } else { &[[0, 0], [1, 1], [0, 0]] };
    run(&Mix { width, seed, pairs, link: between, mtu, adversary, loss, operations });
}

/// The core of 512 bits and 256 queue pairs, and the one of 64 bits and 32.
const FULL: usize = 512;
const SMALL: usize = 64;

#[test]
fn random_mixes_at_512_bits() {
    let late = [4096, 1024, 256].map(|mtu| mix(FULL, mtu, Adversary::Friendly, 0.0));
    assert_ne!(late.iter().sum::<u64>(), 0, "no receive came late");
}

#[test]
fn random_mixes_against_a_hostile_host_at_512_bits() {
    mix(FULL, 1024, Adversary::Hostile, 0.0);
    mix(FULL, 4096, Adversary::Hostile, 0.0);
}

#[test]
fn random_mixes_with_loss_at_512_bits() {
    mix(FULL, 1024, Adversary::Friendly, 1e-2);
    mix(FULL, 256, Adversary::Hostile, 1e-2);
}

#[test]
fn random_mixes_at_64_bits_and_32_queue_pairs() {
    mix(SMALL, 1024, Adversary::Hostile, 0.0);
    mix(SMALL, 256, Adversary::Friendly, 1e-2);
}

/// The widths in between, whose cores nothing else builds.
#[test]
#[ignore = "builds two more cores: ./ferroce test --all"]
fn random_mixes_at_128_and_256_bits() {
    for width in [128, 256] {
        mix(width, 1024, Adversary::Hostile, 0.0);
        mix(width, 256, Adversary::Friendly, 1e-2);
        mix_of_loopback(width, 4096, Adversary::Friendly, true, 0.0);
    }
}

#[test]
fn random_mixes_within_nics_beside_those_between_them() {
    mix_of_loopback(FULL, 4096, Adversary::Friendly, true, 0.0);
    mix_of_loopback(FULL, 1024, Adversary::Hostile, true, 1e-2);
    mix_of_loopback(SMALL, 256, Adversary::Friendly, true, 1e-2);
}

#[test]
fn random_mixes_within_nics_without_a_link() {
    mix_of_loopback(FULL, 1024, Adversary::Hostile, false, 0.0);
    mix_of_loopback(SMALL, 4096, Adversary::Friendly, false, 0.0);
}

/// Rounds of a thousand operations, half of them with a hostile host, over 32 pairs of QPs while frames are lost, doubled, swapped, delayed,
/// cut and spoilt, one in a thousand each.
fn soak(width: usize, seed: u64, rounds: usize) {
    let pairs = &[[0, 1]; 32];
    for round in 0..rounds as u64 {
        for (half, (mtu, adversary)) in [(1024, Adversary::Friendly), (256, Adversary::Hostile)].into_iter().enumerate()
        {
            // In bits that neither the test's own number nor `FERROCE_SEED` takes.
            let seed = seed ^ (2 * round + half as u64) << 16;
            run(&Mix { width, seed, pairs, link: true, mtu, adversary, loss: 2e-3, operations: 500 });
        }
    }
}

#[test]
fn a_soak_of_32_pairs_under_all_faults() {
    soak(FULL, verilate::seed(0x50a4), verilate::scale(1));
}

#[test]
#[ignore = "hours: for `./ferroce test --all`"]
fn a_soak_of_a_million_operations() {
    soak(128, verilate::seed(0x50a5), verilate::whole(1000));
}
