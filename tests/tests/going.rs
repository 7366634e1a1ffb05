//! What goes while it is in use: once a region's key, a completion queue or an event queue is destroyed, the device neither reads nor
//! writes its memory, whoever names it, and who gets its place in the tables next is not touched by what was meant for it.

use abi::cmd::{answer, head, op, result};
use abi::queue::recv_op;
use driver::qp::SendOptions;
use driver::{Access, Data, Flags, Mr, OpenOptions, Operation, Translation};
use fabric::together;
use ferroce_tests::{Bystander, GUARD, assert_sound, bytes, pass, region, small_pairs, wait};
use nic::{Adversary, Hold};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::sync::{Arc, Mutex};
use testbed::{Connect, Pair, Setup, Testbed};

const LEN: usize = 6000;
const PAIRS: usize = 4;
/// What lies in a region until its key is gone, and then. Frames of the second hold it nowhere else.
const BEFORE: u8 = 0x11;
const AFTER: u8 = 0xee;

/// What the region at host 0 is used for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Use {
    /// Host 1 WRITEs, READs, does atomics.
    Peer,
    /// Host 0 sends from it.
    Source,
    /// READs and receives of host 0 land in it.
    Sink,
}

/// Work that names `victim`, far from done when this returns.
fn start(pairs: &mut [Pair], how: Use, victim: &Mr, far: &Mr, rng: &mut ChaCha8Rng) {
    for pair in pairs {
        let (near, other) = if how == Use::Peer { (&mut pair.b, None) } else { (&mut pair.a, Some(&mut pair.b)) };
        if how == Use::Sink {
            (0..8).for_each(|i| near.qp.post_recv(i, &[victim.sge(700 * i as usize, 700)]).unwrap());
        }
        let mut batch = near.qp.post();
        for i in 0..12 {
            let at = rng.random_range(0..LEN / 2);
            let len = rng.random_range(1..LEN / 2);
            let (operation, sge) = match (how, rng.random_range(0..3)) {
                (Use::Peer, 0) => (Operation::Write(victim.remote(at)), far.sge(at, len)),
                (Use::Peer, 1) => (Operation::Read(victim.remote(at)), far.sge(at, len)),
                (Use::Peer, _) => (Operation::AtomicAdd { remote: victim.remote(8 * i), add: 1 }, far.sge(8 * i, 8)),
                (Use::Source, _) => (Operation::Write(far.remote(at)), victim.sge(at, len)),
                (Use::Sink, 0) => (Operation::AtomicAdd { remote: far.remote(8 * i), add: 1 }, victim.sge(8 * i, 8)),
                (Use::Sink, _) => (Operation::Read(far.remote(at)), victim.sge(at, len)),
            };
            batch.add(i as u64, operation, Data::Sges(&[sge]), Flags::SIGNALED).unwrap();
        }
        batch.ring();
        if let (Use::Sink, Some(other)) = (how, other) {
            let mut batch = other.qp.post();
            for i in 0..8 {
                batch.add(i, Operation::Send, Data::Sges(&[far.sge(0, 700)]), Flags::SIGNALED).unwrap();
            }
            batch.ring();
        }
    }
}

/// The number of a region's key.
fn number(mr: &Mr) -> u32 {
    mr.rkey() >> 8
}

fn regions_go(mut setup: Setup, rounds: usize, seed: u64) {
    setup.nic.adversary = Adversary::Hostile;
    let bed = Testbed::new(&setup).unwrap();
    let mut bystander = Bystander::new(&bed);
    let send = SendOptions { timeout: 8, retry_count: 1, ..SendOptions::default() };
    let connect = Connect { access: Access::all(), send, ..small_pairs() };
    let device = &bed.hosts[0].device;
    for round in 0..rounds {
        let mut rng = verilate::rng(seed + round as u64);
        let how = [Use::Peer, Use::Source, Use::Sink][rng.random_range(0..3)];
        let by_pages = rng.random_bool(0.5);
        let translation = if by_pages { Translation::Pages(4096) } else { Translation::Auto };
        let victim = bed.hosts[0].pd.alloc_with(LEN, Access::all(), translation).unwrap();
        victim.write(0, &[BEFORE; LEN]);
        let far = region(&bed.hosts[1].pd, LEN, Access::all(), |_| BEFORE);
        let mut pairs = bed.connect_many(&connect, PAIRS).unwrap();
        start(&mut pairs, how, &victim, &far, &mut rng);
        pass(&bed, rng.random_range(10..120));
        let mut still = || rng.random_bool(0.3);
        let hold = Hold { read_data: still(), write_data: still(), write_response: still(), ..Hold::default() };
        let what = format!("seed {}: {how:?}, by pages {by_pages}, {hold:?}", seed + round as u64);
        println!("{what}");
        bed.sim().nic(0).hold = hold;

        // The key goes behind its owner's back; the host moves again only later.
        let late = rng.random_range(0..60);
        let mut destroy = [0; 64];
        head::OPCODE.set(&mut destroy, op::DESTROY_MR.into());
        head::OWNER.set(&mut destroy, OpenOptions::default().owner.into());
        head::NUMBER.set(&mut destroy, number(&victim).into());
        let programs: Vec<Box<dyn FnOnce() -> Option<[u8; 64]> + Send>> = vec![
            Box::new(|| Some(device.command_raw(destroy).unwrap())),
            Box::new(|| {
                (0..late).for_each(|_| device.relax());
                bed.fabric.lock().unwrap().nic(0).hold = Hold::default();
                None
            }),
        ];
        let answered = together(&bed.fabric, programs);
        assert_eq!(answer::RESULT.get(&answered[0].unwrap()), u64::from(result::OK), "{what}");

        // From here on nothing of it may be read or written.
        victim.write(0, &[AFTER; LEN]);
        let seen = Arc::new(Mutex::new(0));
        let count = seen.clone();
        bed.sim().tap(Some(Box::new(move |nic, frame, _| {
            *count.lock().unwrap() += (nic == 0 && frame.data.windows(8).any(|w| w == [AFTER; 8])) as usize;
        })));
        // The rows of the translation table are given out from the lowest: these had been the other's.
        let next = bed.hosts[0].pd.alloc_with(LEN, Access::all(), translation).unwrap();
        next.write(0, &[AFTER; LEN]);
        pass(&bed, 300);
        assert!(bytes(&victim) == [AFTER; LEN], "{what}: written after its key was destroyed");
        assert!(bytes(&next) == [AFTER; LEN], "{what}: who has its pages' rows next was written");
        assert_eq!(*seen.lock().unwrap(), 0, "{what}: frames with what came into memory later");
        bed.sim().tap(None);
        assert!(bytes(&far).iter().all(|b| *b != AFTER), "{what}: it arrived");
        drop(pairs);
        // Its key is destroyed already, and may be another's.
        std::mem::forget(victim);
        bystander.check(&bed, &what);
        assert_sound(&bed, &what);
    }
}

#[test]
fn regions_go_while_they_are_used_at_512_bits() {
    regions_go(Setup::default(), verilate::scale(5), 100);
}

#[test]
fn regions_go_while_they_are_used_at_64_bits() {
    regions_go(Setup::small(), verilate::scale(10), 200);
}

/// Completion queues that are armed and busy, and their event queue: when one is destroyed, nothing is written to its ring any more, which
/// the IOMMU would tell; and the next ones with their numbers begin empty.
#[test]
fn queues_go_while_events_fire() {
    let mut setup = Setup::small();
    setup.nic.adversary = Adversary::Hostile;
    let mut bed = Testbed::new(&setup).unwrap();
    let mut bystander = Bystander::new(&bed);
    let target = region(&bed.hosts[1].pd, 64, Access::all(), |_| GUARD);
    let mut rng = verilate::rng(300);
    for round in 0..verilate::scale(12) {
        let what = format!("round {round}");
        let count = [0, 1, 3][rng.random_range(0..3)];
        let eq = bed.hosts[0].device.create_eq(1 << rng.random_range(0..6), 0, count, 50).unwrap();
        let wide = std::mem::replace(&mut bed.hosts[0].eq, eq);
        let connect = Connect { cq_entries: 256, ..small_pairs() };
        let mut pairs = bed.connect_many(&connect, 3).unwrap();
        let mut eq = std::mem::replace(&mut bed.hosts[0].eq, wide);
        for pair in &mut pairs {
            assert!(pair.a.cq.poll().next().is_none(), "{what}: an entry of a queue of before");
            pair.b.cq.arm(false);
            (0..8).for_each(|i| pair.b.qp.post_recv(i, &[]).unwrap());
            let mut batch = pair.a.qp.post();
            for i in 0..30 {
                let write = Operation::WriteImm(target.remote(0), [7; 4]);
                batch.add(i, write, Data::Inline(&[GUARD; 8]), Flags::SIGNALED | Flags::SOLICITED).unwrap();
            }
            batch.ring();
        }
        assert!(eq.poll().is_none(), "{what}: an event of a queue of before");
        for _ in 0..rng.random_range(0..60) {
            pairs.iter_mut().for_each(|p| p.a.cq.arm(rng.random_bool(0.5)));
            if rng.random_bool(0.3) {
                eq.arm();
                eq.poll();
            }
            bed.relax();
        }
        for Pair { a, b } in pairs {
            if rng.random_bool(0.5) {
                let testbed::End { qp, mut cq } = b;
                drop(qp);
                assert!(cq.poll().all(|c| c.opcode == recv_op::RECV_WRITE_IMM || c.status.is_err()), "{what}");
            }
            let testbed::End { qp, mut cq } = a;
            drop(qp);
            cq.arm(false);
            drop(cq);
        }
        drop(eq);
        pass(&bed, 30);
        assert_sound(&bed, &what);
        bystander.check(&bed, &what);
    }
    let mut pair = bed.connect(&small_pairs()).unwrap();
    let mut batch = pair.a.qp.post();
    batch.add(1, Operation::Write(target.remote(0)), Data::Inline(&[1; 8]), Flags::SIGNALED).unwrap();
    batch.ring();
    wait(&bed, &mut pair.a.cq, "afterwards").status.unwrap();
}
