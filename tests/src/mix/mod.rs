//! Random mixes of all operations over many pairs of QPs between two NICs, with the real driver, and every byte of both hosts' memory
//! compared, guard bytes included.
//!
//! Each operation has a destination of its own, so the outcome does not depend on the order in which QPs are served. Between destinations
//! lie guard bytes that nothing may touch. When an area is full and all is complete, memory is compared and a new *stretch* begins, over the
//! same connections.

mod area;
mod depth;
mod flow;
mod keyed;
mod shared;

use crate::beside::Beside;
use abi::cmd::{answer, head, kind, list_owned, op as command};
use abi::{status::counter, wire::op};
use driver::qp::{QpSizes, SendOptions};
use driver::{Access, OpenOptions};
use fabric::{Action, Match, Packet, Part};
use flow::{Flow, Kind, Lands, Posted};
use nic::{Adversary, NS};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use shared::Shared;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use testbed::{Connect, Host, Pair, Setup, Testbed};

/// Width of the small core.
pub const SMALL: usize = 64;

/// Pairs of each mix, from the first on, that have keys that come and go.
const KEYED: usize = 6;

/// Receives of each queue pair that has its own.
const RECEIVES: usize = 32;

/// What is mixed, and where.
pub struct Mix {
    /// Of the datapath; 64 is the small core.
    pub width: usize,
    /// Of all chance.
    pub seed: u64,
    /// Hosts of the two ends of each pair. Of those between the hosts, each fourth shares its receives on host 1 with the others.
    pub pairs: Vec<[usize; 2]>,
    /// The cable is plugged in.
    pub link: bool,
    /// Path MTU.
    pub mtu: u32,
    /// What the hosts are like.
    pub adversary: Adversary,
    /// Half of it is the probability of each of six faults.
    pub loss: f64,
    /// Operations to be posted, besides those about keys.
    pub operations: u64,
    /// All pairs are between the hosts, most messages are short, and each stretch ends with a proof that all that there is of each QP is free: see `depth`.
    pub deep: bool,
}

/// What the cable has carried, by the NIC that sent it.
#[derive(Default)]
struct Seen {
    /// ACKs and NAKs.
    acks: [[u64; 2]; 2],
    /// PSNs of WRITEs and READs of one packet, by sender, opcode and destination: where it is `Some`.
    requests: Option<HashMap<(usize, u8, u32), BTreeSet<u32>>>,
}

/// A pair of a mix.
struct Lane {
    pair: Pair,
    flows: [Flow; 2],
    /// It goes over the cable.
    between: bool,
}

/// A mix that goes on.
struct Mixer<'a> {
    mix: &'a Mix,
    bed: &'a Testbed,
    rng: ChaCha8Rng,
    lanes: Vec<Lane>,
    shared: Option<Shared>,
    beside: Beside,
    seen: Arc<Mutex<Seen>>,
    /// Operations that are still to be posted.
    left: u64,
}

/// Objects of each kind that the device knows of its driver's.
fn objects(host: &Host) -> Vec<u64> {
    let kinds = [kind::QP, kind::MR, kind::CQ, kind::EQ, kind::PD, kind::AH, kind::SRQ];
    let count = |kind: u8| {
        let mut c = [0; 64];
        head::OPCODE.set(&mut c, command::LIST_OWNED.into());
        head::OWNER.set(&mut c, OpenOptions::default().owner.into());
        list_owned::KIND.set(&mut c, kind.into());
        answer::VALUE.get(&host.device.command_raw(c).unwrap())
    };
    kinds.map(count).to_vec()
}

/// Runs it; how often a receive was not ready.
pub fn run(mix: &Mix) -> u64 {
    println!("seed {}", mix.seed);
    let mut rng = ChaCha8Rng::seed_from_u64(mix.seed);
    let mut setup = if mix.width == SMALL { Setup::small() } else { Setup { width: mix.width, ..Setup::default() } };
    setup.nic.adversary = mix.adversary;
    setup.nic.seed = mix.seed;
    setup.ip6 = rng.random();
    setup.vlan = rng.random_bool(0.5).then(|| rng.random_range(1..4095));
    let bed = Testbed::new(&setup).unwrap();
    let before = bed.hosts.each_ref().map(|h| (h.device.dma_maps(), objects(h)));
    let mut mixer = Mixer::new(mix, &bed, rng);
    while mixer.left > 0 {
        mixer.stretch();
    }
    mixer.assert_counted();
    drop(mixer);
    for (host, before) in bed.hosts.iter().zip(before) {
        let after = (host.device.dma_maps(), objects(host));
        assert_eq!(after, before, "seed {}: maps of the IOMMU or objects are left over", mix.seed);
    }
    bed.hosts.iter().map(|h| h.device.counter(counter::RX_RNR)).sum()
}

impl<'a> Mixer<'a> {
    fn new(mix: &'a Mix, bed: &'a Testbed, mut rng: ChaCha8Rng) -> Self {
        if mix.loss > 0.0 {
            let faults = [Action::Corrupt(Part::Any), Action::Duplicate, Action::Delay(2000 * NS), Action::Reorder(3)];
            for action in faults.into_iter().chain([Action::Drop, Action::Truncate]) {
                let some = Match { probability: Some(mix.loss / 2.0), ..Match::default() };
                bed.sim().link_mut(0).rules.add(some, action);
            }
        }
        // Enough blocks for the most messages that may be in flight, or few, so that they go round often.
        let sizes = QpSizes::new(if mix.deep { 256 } else { 64 }, RECEIVES as u32);
        let connect = Connect {
            mtu: mix.mtu,
            // PSNs of half of all runs wrap.
            psn: if rng.random() { rng.random_range(0..1 << 24) } else { (1 << 24) - rng.random_range(1..200) },
            sizes,
            access: Access::all(),
            // While answers are lost on purpose the fast timers grow up to this, 2 ms, and then all wait so long.
            send: SendOptions { timeout: if mix.deep { 9 } else { 14 }, ..SendOptions::default() },
            ..Connect::default()
        };
        let seen: Arc<Mutex<Seen>> = Default::default();
        let count = seen.clone();
        bed.sim().tap(Some(Box::new(move |from, frame, _| {
            let Some(p) = Packet::of(&frame.data) else { return };
            let mut seen = count.lock().unwrap();
            match p.opcode {
                op::ACK => {
                    let nak = p.aeth.is_some_and(|(syndrome, _)| syndrome >> 5 != 0);
                    seen.acks[from][usize::from(nak)] += 1;
                }
                op::WRITE_ONLY | op::READ_REQUEST => {
                    if let Some(requests) = &mut seen.requests {
                        requests.entry((from, p.opcode, p.qpn)).or_default().insert(p.psn);
                    }
                }
                _ => {}
            }
        })));
        bed.sim().plug(0, mix.link);
        // Receives of one SGE and of four beside each other.
        let ones: Vec<bool> = mix.pairs.iter().map(|_| rng.random()).collect();
        let sharing: Vec<bool> = mix.pairs.iter().enumerate().map(|(i, p)| i % 4 == 3 && *p == [0, 1]).collect();
        let shared = sharing.contains(&true).then(|| Shared::new(&bed.hosts[1]));
        let connected = (0..mix.pairs.len()).map(|i| {
            let c = Connect { sizes: if ones[i] { sizes.one_sge() } else { sizes }, ..connect };
            match &shared {
                Some(shared) if sharing[i] => bed.connect_sharing(&c, 1, Some(&shared.srq)).unwrap().remove(0),
                _ => bed.connect_hosts(mix.pairs[i], &c).unwrap(),
            }
        });
        let connected: Vec<_> = connected.collect();
        let (mut lands, mut grounds) = lands(bed, mix);
        let lane = |(i, pair)| {
            let [a, b] = mix.pairs[i];
            let mut flow = |dir: usize| {
                let hosts = if dir == 0 { [a, b] } else { [b, a] };
                let keyed = (i < KEYED).then(|| keyed::Keyed::new(&bed.hosts[hosts[1]], &mut grounds[hosts[1]]));
                let kind = Kind {
                    one_sge: ones[i],
                    shares: sharing[i] && dir == 0,
                    mtu: mix.mtu as usize,
                    short: mix.deep,
                    seed: mix.seed ^ (i * 2 + dir) as u64,
                };
                Flow::new(&mut lands, hosts, &kind, keyed)
            };
            Lane { pair, flows: [flow(0), flow(1)], between: a != b }
        };
        let lanes = connected.into_iter().enumerate().map(lane).collect();
        let beside = Beside::new(bed, mix.pairs[0]);
        Mixer { mix, bed, rng, lanes, shared, beside, seen, left: mix.operations }
    }

    /// Posts until an area is full or nothing is left, waits until all is complete, and compares all memory.
    fn stretch(&mut self) {
        let (seed, mut quiet, mut full) = (self.mix.seed, 0, false);
        loop {
            // Where many pairs begin at once the first of these are lost for want of room: then they are not all.
            let posts = self.left > 0 && !full;
            let more = posts || self.beside.are_few();
            self.beside.step(&mut self.rng, more);
            let mut busy = more || !self.beside.is_done();
            if self.rng.random_bool(0.2)
                && let Some(shared) = &mut self.shared
            {
                shared.post();
            }
            for lane in &mut self.lanes {
                let (turn, some) = lane.turn(&mut self.rng, self.shared.as_mut(), &mut self.left, posts && !full, seed);
                full |= turn == Posted::Full;
                quiet = if some { 0 } else { quiet };
                busy |= lane.flows.iter().any(Flow::is_busy);
            }
            if !busy {
                break;
            }
            quiet += 1;
            assert!(quiet < 100_000, "seed {seed}: nothing completes any more");
            self.bed.relax();
        }
        // What completes with its last packet's leaving is still on its way; and a WRITE completes when the peer has taken it, and reaches
        // the peer's memory a little later.
        for _ in 0..200 {
            self.beside.step(&mut self.rng, false);
            self.bed.relax();
        }
        self.assert_sound();
        if self.mix.deep {
            self.assert_deep();
        }
        self.lanes.iter_mut().flat_map(|l| &mut l.flows).for_each(Flow::reset);
    }

    /// All memory is as it must be, and both NICs are well.
    fn assert_sound(&self) {
        let seed = self.mix.seed;
        for (i, lane) in self.lanes.iter().enumerate() {
            for (dir, f) in lane.flows.iter().enumerate() {
                f.check(&format!("seed {seed}, pair {i}, direction {dir}"));
            }
        }
        self.shared.iter().for_each(|s| s.assert_empty(&format!("seed {seed}")));
        for nic in 0..2 {
            let faults = self.bed.sim().nic(nic).host.iommu.take_faults();
            assert!(faults.is_empty(), "seed {seed}: DMA outside of the maps: {faults:x?}");
            assert_eq!(self.bed.hosts[nic].device.health() & !1, 0, "seed {seed}");
        }
    }

    /// What is counted in the end is what was seen.
    fn assert_counted(&self) {
        let (seed, lost) = (self.mix.seed, self.mix.loss > 0.0);
        for (posted, arrived) in self.beside.arrived() {
            println!("{arrived} of {posted} messages arrived that nobody acknowledges");
            assert!(arrived > posted / 4 && (lost || arrived <= posted), "seed {seed}: {arrived} of {posted}");
        }
        // Each frame on the wire is counted once. Turned frames are not on it, and corrupted ones not what was sent.
        if !lost && self.lanes.iter().all(|l| l.between) {
            for nic in 0..2 {
                let counted = [counter::TX_ACK, counter::TX_NAK].map(|c| self.bed.hosts[nic].device.counter(c));
                let seen = self.seen.lock().unwrap().acks[nic];
                assert_eq!(counted, seen, "seed {seed}: ACKs and NAKs of NIC {nic}");
                assert!(seen[0] > 0, "seed {seed}: no ACK of NIC {nic}");
            }
        }
    }
}

impl Lane {
    /// Perhaps posts something in each direction, and takes what has completed, if there was any.
    fn turn(
        &mut self,
        rng: &mut ChaCha8Rng,
        mut shared: Option<&mut Shared>,
        left: &mut u64,
        posts: bool,
        seed: u64,
    ) -> (Posted, bool) {
        let mut all = Posted::Yes;
        for dir in 0..2 {
            let Pair { a, b } = &mut self.pair;
            let [forth, back] = &mut self.flows;
            let ([f, back], [from, to]) = if dir == 0 { ([forth, back], [a, b]) } else { ([back, forth], [b, a]) };
            let posts = posts && *left > 0 && all != Posted::Full;
            if posts && f.sends.posted - f.sends.completed < 12 && rng.random_bool(0.3) {
                match f.post(rng, from, to, shared.as_deref_mut()) {
                    Posted::Yes => *left -= 1,
                    Posted::Later => {}
                    Posted::Full => all = Posted::Full,
                }
            }
            if keyed::step(rng, [f, back], [from, to], shared.as_deref_mut(), posts) == Posted::Full {
                all = Posted::Full;
            }
            if !posts {
                f.finish(from);
            }
            if rng.random_bool(0.05) {
                f.post_late(to);
            }
        }
        (all, self.take(shared, seed))
    }

    /// Takes what has completed, if there was any.
    fn take(&mut self, mut shared: Option<&mut Shared>, seed: u64) -> bool {
        let mut came = false;
        for end in 0..2 {
            let cq = if end == 0 { &mut self.pair.a.cq } else { &mut self.pair.b.cq };
            for c in cq.poll() {
                came = true;
                c.status.unwrap_or_else(|e| panic!("seed {seed}: {e}: {c:?}"));
                if c.opcode < 0x80 {
                    self.flows[end].sends.complete(&c);
                } else {
                    self.flows[1 - end].received(&c, shared.as_deref_mut(), &format!("seed {seed}"));
                }
            }
        }
        came
    }
}

/// Room on both hosts for all flows, and what windows are bound to.
fn lands(bed: &Testbed, mix: &Mix) -> ([Lands; 2], [area::Land; 2]) {
    // The small core translates fewer pages.
    let page = if mix.width == SMALL { 65536 } else { 4096 };
    let local = Access::LOCAL_WRITE;
    let lands = [0, 1].map(|h| {
        // Each pair has a flow from each of its ends to the other.
        let ends = mix.pairs.iter().flatten().filter(|p| **p == h).count();
        let land = |areas, access| area::Land::new(&bed.hosts[h].pd, areas, access, page);
        Lands {
            local: land(3 * ends, local),
            written: land(ends, local | Access::REMOTE_WRITE),
            read: land(ends, Access::REMOTE_READ),
            words: land(ends, local | Access::REMOTE_ATOMIC | Access::REMOTE_WRITE),
        }
    });
    let grounds = [0, 1].map(|h| area::Land::for_windows(&bed.hosts[h].pd, 2 * KEYED, page));
    (lands, grounds)
}
