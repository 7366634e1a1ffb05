//! Random mixes of operations between two NICs, and within them: see `ferroce_tests::mix`.

use ferroce_tests::mix::{Mix, SMALL, run};
use nic::Adversary;

/// Width of the large core, of 256 queue pairs.
const FULL: usize = 512;

fn mix(width: usize, mtu: u32, adversary: Adversary, loss: f64) -> u64 {
    let operations = verilate::scale(300) as u64;
    let seed = verilate::seed(u64::from(mtu) * 31 + width as u64 + (loss * 1e6) as u64);
    run(&Mix { width, seed, pairs: vec![[0, 1]; 4], link: true, mtu, adversary, loss, operations, deep: false })
}

/// Pairs within both NICs, with or without pairs between them.
fn mix_of_loopback(width: usize, mtu: u32, adversary: Adversary, between: bool, loss: f64) {
    let operations = verilate::scale(300) as u64;
    let seed = verilate::seed(u64::from(mtu) * 37 + width as u64 + (loss * 1e6) as u64);
    let pairs = if between { vec![[0, 0], [0, 1], [1, 1], [1, 0]] } else { vec![[0, 0], [1, 1], [0, 0]] };
    run(&Mix { width, seed, pairs, link: between, mtu, adversary, loss, operations, deep: false });
}

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

/// Operations over all queue pairs of the small core, or 32 pairs and those beside them of the large one, while frames are lost, doubled,
/// swapped, delayed, cut and spoilt, one in a thousand each.
fn soak(width: usize, mtu: u32, adversary: Adversary, seed: u64, operations: usize) {
    // Two numbers are taken by QP 0 and 1, one by the shared queue, two by what goes on beside.
    let pairs = vec![[0, 1]; if width == SMALL { 27 } else { 32 }];
    let operations = operations as u64;
    run(&Mix { width, seed, pairs, link: true, mtu, adversary, loss: 2e-3, operations, deep: true });
}

#[test]
fn a_soak_of_32_pairs_under_all_faults() {
    soak(FULL, 1024, Adversary::Hostile, verilate::seed(0x50a4), verilate::scale(1000));
}

#[test]
fn a_soak_of_a_small_nics_queue_pairs_under_all_faults() {
    soak(SMALL, 256, Adversary::Friendly, verilate::seed(0x50a6), verilate::scale(1000));
}

/// In rounds with connections of their own.
#[test]
#[ignore = "40 minutes: for `./ferroce test --all`"]
fn a_soak_of_a_million_operations() {
    const ROUNDS: usize = 20;
    let operations = verilate::whole(1_000_000);
    for round in 0..ROUNDS {
        let width = if round % 2 == 0 { FULL } else { SMALL };
        let adversary = [Adversary::Friendly, Adversary::Hostile][round / 2 % 2];
        // In bits that neither the test's own number nor `FERROCE_SEED` takes.
        let seed = verilate::seed(0x50a5) ^ (round as u64) << 16;
        soak(width, [1024, 256, 4096][round % 3], adversary, seed, operations / ROUNDS);
    }
}
