//! Frames of any content at the rate of the line, beside work in both directions, at all widths: each has one verdict, the work comes
//! out right, and memory stays as it is.

use abi::status::counter;
use driver::qp::{QpSizes, SendOptions};
use driver::{Access, Cq, Data, Flags, Gid, Mr, Operation, Sge};
use fabric::peer::{Deth, Envelope, Packet, class, icrc, op};
use ferroce_tests::{
    Bystander, GUARD, assert_sound, bytes, captures, inject, noise, pass, path_to, region, seal, small_pairs,
};
use nic::Adversary;
use rand::{Rng, RngExt};
use rand_chacha::ChaCha8Rng;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use testbed::{Connect, End, Pair, Setup, Testbed};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const LEN: usize = 3000;
/// QPs that frames get through to: four of RC, one each of UC, UD and RC with a shared receive queue.
const VICTIMS: usize = 7;
/// The second address of host 1, and from where frames come to it.
const IP6: [IpAddr; 2] =
    [IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 7)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2))];
const QKEY: u32 = 0x1357;

/// Work that goes on and on from one end of a pair, and what it must have done.
struct Work {
    source: Mr,
    target: Mr,
    back: Mr,
    rounds: u64,
    /// Rounds that came out right.
    right: u64,
    left: u64,
}

impl Work {
    /// From host `from` to the other.
    fn new(bed: &Testbed, from: usize, seed: u64) -> Self {
        let mr = |i: usize| bed.hosts[i].pd.alloc(LEN, Access::all()).unwrap();
        let source = region(&bed.hosts[from].pd, LEN, Access::all(), noise(seed));
        Work { source, target: mr(1 - from), back: mr(from), rounds: 0, right: 0, left: 0 }
    }

    /// Once all that was posted is complete and right, posts more, if there is to be more.
    fn step(&mut self, near: &mut End, far: &mut End, more: bool, what: &str) {
        while let Some(c) = near.cq.poll().next() {
            c.status.unwrap_or_else(|e| panic!("{what}: round {}, request {}: {e}", self.rounds, c.wr_id));
            self.left -= u64::from(c.opcode < abi::queue::recv_op::RECV);
        }
        if self.left > 0 {
            return;
        }
        if self.rounds > self.right {
            self.right = self.rounds;
            assert!(bytes(&self.back) == bytes(&self.source), "{what}: round {}", self.rounds);
            self.back.write(0, &[GUARD; LEN]);
            self.target.write(0, &[GUARD; LEN]);
        }
        if !more {
            return;
        }
        far.qp.post_recv(self.rounds, &[self.target.sge(0, 1000)]).unwrap();
        let mut batch = near.qp.post();
        let mut add = |operation, sge, flags| batch.add(self.rounds, operation, Data::Sges(&[sge]), flags).unwrap();
        add(Operation::Send, self.source.sge(0, 1000), Flags::empty());
        add(Operation::Write(self.target.remote(1000)), self.source.sge(1000, LEN - 1000), Flags::empty());
        add(Operation::Read(self.target.remote(0)), self.back.sge(0, LEN), Flags::SIGNALED);
        (self.rounds, self.left) = (self.rounds + 1, 1);
    }
}

/// How long the next frame of no meaning is: nine of ten below 256 bytes, where all headers end.
fn any_length(rng: &mut ChaCha8Rng) -> usize {
    match rng.random_range(0..20) {
        0 => rng.random_range(256..1500),
        1 => rng.random_range(256..9200),
        _ => rng.random_range(1..256),
    }
}

/// Some frame. What gets past the ingress names a QP below `qps` that is none of `spared`.
fn any_frame(rng: &mut ChaCha8Rng, material: &[Vec<u8>], spared: &[u32]) -> Vec<u8> {
    let mut frame = vec![0; any_length(rng)];
    match rng.random_range(0..4) {
        0 => rng.fill_bytes(&mut frame),
        // Long ones are as rare among those that mean something.
        _ => {
            let mut some = || &material[rng.random_range(0..material.len())];
            frame = [some(), some(), some()].into_iter().min_by_key(|f| f.len()).expect("three").clone();
        }
    }
    if rng.random_bool(0.9) && frame.len() > 34 {
        frame[..6].copy_from_slice(&MAC);
        frame[30..34].copy_from_slice(&[10, 0, 0, 2]);
    }
    for _ in 0..rng.random_range(0..4) {
        let at = rng.random_range(0..frame.len());
        frame[at] = rng.random();
    }
    match rng.random_range(0..8) {
        // Cut; a tag more; grown.
        0 => frame.truncate(rng.random_range(1..=frame.len())),
        1 if frame.len() > 14 => drop(frame.splice(12..12, [0x81, 0, 0, 5])),
        2 => frame.resize(frame.len() + rng.random_range(1..100), 0),
        3 if frame.len() > 40 => {
            // Lengths that disagree.
            let at = [16, 38][rng.random_range(0..2)];
            let near = (frame.len() as u16).wrapping_sub(rng.random_range(0..60));
            frame[at..at + 2].copy_from_slice(&near.to_be_bytes());
        }
        4 if frame.len() > 14 => frame[14] = rng.random(),
        _ => {}
    }
    if frame.len() > 58 && rng.random_bool(0.7) {
        let victim = (2..30).filter(|q| !spared.contains(q)).nth(rng.random_range(0..VICTIMS)).expect("there are more");
        frame[47..50].copy_from_slice(&victim.to_be_bytes()[1..]);
        if rng.random_bool(0.7) {
            // As from its peer.
            frame[26..30].copy_from_slice(&[10, 0, 0, 1]);
            frame[44..46].fill(0xff);
        }
        if rng.random_bool(0.5) {
            frame[42] = rng.random_range(0..0x40);
            frame[51..54].copy_from_slice(&[0, 0, rng.random_range(0..4)]);
        }
        seal(&mut frame);
    }
    frame
}

/// A sound frame over IPv6 of any opcode to a victim, or one of which some bytes are changed.
fn any_frame_over_ip6(rng: &mut ChaCha8Rng, spared: &[u32]) -> Vec<u8> {
    let victim = (2..30).filter(|q| !spared.contains(q)).nth(rng.random_range(0..VICTIMS)).expect("there are more");
    let packet = Packet {
        opcode: [rng.random_range(0..0x30), class::UD | op::SEND_ONLY][rng.random_range(0..2)],
        qpn: victim,
        psn: rng.random_range(0..4),
        ack_req: rng.random(),
        payload: (0..rng.random_range(0..120)).map(|_| rng.random()).collect(),
        ..Packet::default()
    };
    let datagram = packet.opcode == class::UD | op::SEND_ONLY;
    let deth = datagram.then_some(Deth { qkey: QKEY, source: 9 });
    let way = Envelope {
        macs: [[2, 0, 0, 0, 0, 1], MAC],
        ips: IP6,
        traffic_class: 0,
        hop_limit: 64,
        source_port: 0xc000,
        checksum: false,
    };
    let mut frame = Packet { deth, ..packet }.frame(&way);
    let end = frame.len() - 4;
    for _ in 0..rng.random_range(0..3) {
        let at = rng.random_range(14..end);
        frame[at] = rng.random();
    }
    if frame[14] >> 4 == 6 && rng.random_bool(0.8) {
        let crc = icrc(&frame[14..end]);
        frame[end..].copy_from_slice(&crc);
    }
    frame
}

/// Posts a receive under a number, if its queue takes it.
type Post = Box<dyn FnMut(u64, &[Sge]) -> bool>;

/// A QP that nobody's work needs, its receives, and where they land.
struct Idle {
    cq: Cq,
    post: Post,
    memory: Mr,
    posted: u64,
    received: u64,
}

impl Idle {
    /// One whose receives `post` posts.
    fn new(bed: &Testbed, cq: Cq, post: Post) -> Self {
        Idle { cq, post, memory: region(&bed.hosts[1].pd, LEN, Access::all(), |_| GUARD), posted: 0, received: 0 }
    }

    /// Takes what has come and posts receives anew, as long as its QP takes any.
    fn step(&mut self) {
        self.received += self.cq.poll().filter(|c| c.status.is_ok()).count() as u64;
        while self.posted - self.received < 8 && (self.post)(self.posted, &[self.memory.sge(0, LEN)]) {
            self.posted += 1;
        }
    }
}

fn verdicts(bed: &Testbed) -> u64 {
    (0..counter::RX_CE).map(|i| bed.hosts[1].device.counter(i)).sum()
}

/// Lets `frames` come at least.
fn flood(mut setup: Setup, frames: u64, seed: u64) {
    let what = format!("{} bits", setup.width);
    setup.nic.adversary = Adversary::Hostile;
    let width = setup.width as u64 / 8;
    let bed = Testbed::new(&setup).unwrap();
    let mut rng = verilate::rng(seed);
    let mut bystander = Bystander::new(&bed);
    let send = SendOptions { retry_count: 7, ..SendOptions::default() };
    let connect = Connect { access: Access::all(), send, ..small_pairs() };
    let mut pairs = bed.connect_many(&connect, 2).unwrap();
    let mut work: Vec<_> = (0..4).map(|i| Work::new(&bed, i % 2, i as u64)).collect();
    let spared: Vec<_> = pairs.iter().chain([&bystander.pair]).map(|p| p.b.qp.qpn()).collect();
    // Whom the frames get through to: nothing that they could name is in reach.
    let victims: Vec<Pair> = bed.connect_many(&connect, 4).unwrap();

    // With an end here alone: of each kind of receiving, and its receives.
    let h = &bed.hosts[1];
    let queue = || h.device.create_cq(256, &h.eq).unwrap();
    let sizes = QpSizes::new(64, 16);
    let from = path_to(bed.hosts[0].gid, 9, 1024, 0);
    let (cq, other, third) = (queue(), queue(), queue());
    let uc = h.pd.create_uc_qp(&cq, &cq, sizes).unwrap().init(Access::all()).unwrap();
    let mut uc = uc.rtr(&from).unwrap();
    let mut ud = h.pd.create_ud_qp(&other, &other, sizes).unwrap().init(QKEY).unwrap().rtr().unwrap();
    let srq = h.pd.create_srq(sizes.receives).unwrap();
    let shares = srq.create_qp(&third, &third, sizes.send_blocks).unwrap().init(Access::all()).unwrap();
    let shares = shares.rtr(&from).unwrap();
    h.device.set_gid(1, Some(Gid { ip: IP6[1], ..h.gid })).unwrap();
    let mut idle = [
        Idle::new(&bed, cq, Box::new(move |id, sges| uc.post_recv(id, sges).is_ok())),
        Idle::new(&bed, other, Box::new(move |id, sges| ud.post_recv(id, sges).is_ok())),
        Idle::new(
            &bed,
            third,
            Box::new(move |id, sges| {
                // The queue keeps its QP.
                let _shares = &shares;
                srq.post_recv(id, sges).is_ok()
            }),
        ),
    ];

    let material: Vec<_> = captures().into_iter().filter(|f| f.len() > 60).collect();
    let before = verdicts(&bed);
    let crossed = Arc::new(AtomicU64::new(0));
    let count = crossed.clone();
    bed.sim().tap(Some(Box::new(move |nic, _, _| {
        count.fetch_add(u64::from(nic == 0), Ordering::Relaxed);
    })));
    let step = |pairs: &mut Vec<Pair>, work: &mut Vec<Work>, more| {
        for (pair, work) in pairs.iter_mut().zip(work.chunks_mut(2)) {
            work[0].step(&mut pair.a, &mut pair.b, more, &what);
            work[1].step(&mut pair.b, &mut pair.a, more, &what);
        }
    };
    let (start, mut sent, mut sent_beats, mut small) = (bed.cycle(), 0, 0, 0);
    while sent < frames {
        // Bursts at all that the port takes, and gaps in which what was lost is sent again.
        let burst = bed.cycle() / 4000 % 3 != 2;
        let share = if burst { 7 } else { 2 };
        while sent_beats * 10 < (bed.cycle() - start) * share {
            let frame = match rng.random_range(0..8) {
                0 => any_frame_over_ip6(&mut rng, &spared),
                _ => any_frame(&mut rng, &material, &spared),
            };
            sent_beats += (frame.len() as u64).div_ceil(width);
            sent += 1;
            small += u64::from(frame.len() < 256);
            inject(&bed, 1, frame, rng.random_bool(0.02));
            if rng.random_bool(0.05) {
                // A frame in each cycle.
                for _ in 0..40 {
                    let bytes = (0..rng.random_range(1..=width)).map(|_| rng.random()).collect();
                    inject(&bed, 1, bytes, rng.random_bool(0.1));
                }
                (sent, small, sent_beats) = (sent + 40, small + 40, sent_beats + 40);
            }
        }
        sent_beats = sent_beats.max((bed.cycle() - start) * share / 10);
        step(&mut pairs, &mut work, true);
        idle.iter_mut().for_each(Idle::step);
        bed.relax();
    }
    for _ in 0..100_000 {
        step(&mut pairs, &mut work, false);
        if work.iter().all(|w| w.right == w.rounds) {
            break;
        }
        bed.relax();
    }
    let rounds: Vec<_> = work.iter().map(|w| w.right).collect();
    let cycles = bed.cycle() - start;
    let of_host = crossed.load(Ordering::Relaxed);
    println!("{what}: {sent} frames in {cycles} cycles, {small} below 256 B, {of_host} of host 0, rounds {rounds:?}");
    let received: Vec<_> = idle.iter().map(|i| i.received).collect();
    println!("{what}: received {received:?}");
    assert!(received[1] > 0, "{what}: no datagram is received");
    assert!(small * 10 >= sent * 9, "{what}: headers are what matters");
    assert!(work.iter().all(|w| w.right == w.rounds && w.right > 1), "{what}: the work stands still");
    drop(pairs);
    pass(&bed, 200);
    bed.sim().tap(None);
    for (i, (name, _)) in counter::NAMES.iter().enumerate().filter(|c| c.1.0.starts_with("RX_")) {
        print!("{name} {}, ", bed.hosts[1].device.counter(i));
    }
    println!();
    assert_eq!(verdicts(&bed) - before, sent + of_host, "{what}: each frame has one verdict");
    drop((victims, idle));
    bystander.check(&bed, &what);
    assert_sound(&bed, &what);
}

#[test]
fn work_goes_on_in_a_flood_at_64_bits() {
    flood(Setup::small(), verilate::scale(6_000) as u64, 1);
}

#[test]
fn work_goes_on_in_a_flood_at_128_bits() {
    flood(Setup { width: 128, ..Setup::default() }, verilate::scale(6_000) as u64, 2);
}

#[test]
fn work_goes_on_in_a_flood_at_256_bits() {
    flood(Setup { width: 256, ..Setup::default() }, verilate::scale(8_000) as u64, 3);
}

#[test]
fn work_goes_on_in_a_flood_at_512_bits() {
    flood(Setup::default(), verilate::scale(12_000) as u64, 4);
}

#[test]
#[ignore = "an hour and more: for `./ferroce test --all`"]
fn work_goes_on_in_a_flood_of_ten_million_frames() {
    flood(Setup::small(), verilate::whole(10_000_000) as u64, 5);
}
