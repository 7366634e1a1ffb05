//! Same seed, same cycles: a simulation is a function of its configuration and seed, whatever the machine does meanwhile.

use driver::{Access, Data, Flags, Operation};
use fabric::{Action, Match};
use ferroce_tests::{GUARD, noise, region, small_pairs, wait};
use nic::Adversary;
use std::sync::{Arc, Mutex};
use testbed::{Setup, Testbed};

const LEN: usize = 20_000;

/// When each frame left, by which NIC, how long, with which BTH (READs and WRITEs name addresses of this process, which differ);
/// and when all was done.
type History = (Vec<(u64, usize, usize, Vec<u8>)>, u64);

/// Two pairs with faults on the link and hosts that reorder, both drivers at work at the same time.
fn history(seed: u64) -> History {
    let mut setup = Setup::default();
    setup.nic.adversary = Adversary::Hostile;
    setup.nic.seed = seed;
    let bed = Testbed::new(&setup).unwrap();
    let lost = Match { probability: Some(0.02), ..Match::default() };
    bed.sim().link_mut(0).rules.add(lost, Action::Drop);
    let frames = Arc::new(Mutex::new(Vec::new()));
    let seen = frames.clone();
    let tap =
        move |nic, f: &nic::Frame, _| seen.lock().unwrap().push((f.at, nic, f.data.len(), f.data[42..54].to_vec()));
    bed.sim().tap(Some(Box::new(tap)));
    let mut pairs = bed.connect_many(&small_pairs(), 2).unwrap();
    let source = region(&bed.hosts[0].pd, LEN, Access::all(), noise(seed));
    let target = region(&bed.hosts[1].pd, LEN, Access::all(), |_| GUARD);
    for pair in &mut pairs {
        let mut batch = pair.a.qp.post();
        let sge = [source.sge(0, LEN)];
        batch.add(1, Operation::Write(target.remote(0)), Data::Sges(&sge), Flags::SIGNALED).unwrap();
        batch.add(2, Operation::Read(target.remote(0)), Data::Sges(&sge), Flags::SIGNALED).unwrap();
    }
    for pair in &mut pairs {
        (0..2).for_each(|_| wait(&bed, &mut pair.a.cq, "a mix").status.unwrap());
    }
    let end = bed.cycle();
    bed.sim().tap(None);
    let frames = std::mem::take(&mut *frames.lock().unwrap());
    (frames, end)
}

#[test]
fn one_seed_makes_one_history_and_another_makes_another() {
    let seed = verilate::seed(17);
    let (first, again, other) = (history(seed), history(seed), history(seed + 1));
    assert!(first.0.len() > 80, "{} frames", first.0.len());
    assert!(first == again, "two runs of seed {seed} ended in cycles {} and {}", first.1, again.1);
    assert_ne!(first.1, other.1, "the seed has no effect");
}
