//! Order that software relies on: a READ sees the WRITEs before it, and a completion is never ahead of its data.

use driver::qp::QpSizes;
use driver::{Access, Data, Flags, Operation};
use ferroce_tests::{GUARD, assert_sound, is_guard, noise, region};
use nic::Adversary;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use testbed::{Connect, Pair, Setup, Testbed};

/// Bytes of one place.
const PLACE: usize = 3000;
/// Operations under way at one time.
const DEPTH: usize = 8;

/// A testbed whose hosts reorder and delay as far as the bus permits, and a pair on it.
fn hostile(seed: u64) -> (Testbed, Pair, ChaCha8Rng) {
    println!("seed {seed}");
    let mut setup = Setup::default();
    setup.nic.adversary = Adversary::Hostile;
    setup.nic.seed = seed;
    let bed = Testbed::new(&setup).unwrap();
    let sizes = QpSizes::new(64, 32);
    let pair = bed.connect(&Connect { mtu: 1024, sizes, ..Connect::default() }).unwrap();
    (bed, pair, ChaCha8Rng::seed_from_u64(seed))
}

/// Lets a few cycles pass, so that a poll falls between any two writes of the device.
fn moment(bed: &Testbed, rng: &mut ChaCha8Rng) {
    bed.sim().advance_cycles(rng.random_range(1..12));
}

#[test]
fn a_read_sees_the_write_before_it() {
    for seed in (0..verilate::scale(8) as u64).map(verilate::seed) {
        let (bed, mut pair, mut rng) = hostile(seed);
        let (local, remote) = (&bed.hosts[0].pd, &bed.hosts[1].pd);
        let source = region(local, PLACE * DEPTH * 2, Access::LOCAL_WRITE, noise(seed));
        let target = region(remote, PLACE * DEPTH, Access::all(), |_| GUARD);
        let landing = region(local, PLACE * DEPTH, Access::LOCAL_WRITE, |_| GUARD);
        for _ in 0..verilate::scale(12) {
            // WRITE and READ of the same bytes, one behind the other, in many places at once.
            let mut wants = Vec::new();
            let mut batch = pair.a.qp.post();
            for i in 0..DEPTH {
                let len = rng.random_range(1..PLACE);
                let (from, at) = (rng.random_range(0..PLACE * DEPTH), i * PLACE);
                let write = Operation::Write(target.remote(at));
                batch.add(0, write, Data::Sges(&[source.sge(from, len)]), Flags::empty()).unwrap();
                let read = Operation::Read(target.remote(at));
                batch.add(i as u64, read, Data::Sges(&[landing.sge(at, len)]), Flags::SIGNALED).unwrap();
                wants.push((from, len));
            }
            batch.ring();
            let (mut done, mut quiet) = (0, 0);
            while done < DEPTH {
                for c in pair.a.cq.poll() {
                    c.status.unwrap();
                    assert_eq!(c.wr_id, done as u64);
                    let (from, len) = wants[done];
                    let (mut got, mut want) = (vec![0; len], vec![0; len]);
                    landing.read(done * PLACE, &mut got);
                    source.read(from, &mut want);
                    assert!(got == want, "seed {seed}: READ {done} of {len} bytes missed the WRITE before it");
                    done += 1;
                    quiet = 0;
                }
                moment(&bed, &mut rng);
                quiet += 1;
                assert!(quiet < 200_000, "seed {seed}: nothing completes");
            }
        }
        assert_sound(&bed, "order");
    }
}

#[test]
fn a_receive_completes_behind_its_data() {
    for seed in (100..100 + verilate::scale(8) as u64).map(verilate::seed) {
        let (bed, mut pair, mut rng) = hostile(seed);
        let source = region(&bed.hosts[0].pd, PLACE * 4, Access::LOCAL_WRITE, noise(seed));
        let inbox = region(&bed.hosts[1].pd, PLACE * DEPTH, Access::all(), |_| GUARD);
        let mut sent = std::collections::VecDeque::new();
        let (mut posted, mut done, mut acked, mut quiet) = (0, 0, 0, 0);
        let total = verilate::scale(100);
        while acked < total || done < total {
            // SENDs, and WRITEs with immediate data into the same places.
            if posted < total && posted - done < DEPTH && posted - acked < DEPTH {
                let (len, at) = (rng.random_range(1..PLACE), posted % DEPTH * PLACE);
                let from = rng.random_range(0..PLACE * 3);
                pair.b.qp.post_recv(posted as u64, &[inbox.sge(at, PLACE)]).unwrap();
                let operation = match rng.random_bool(0.5) {
                    true => Operation::Send,
                    false => Operation::WriteImm(inbox.remote(at), [1, 2, 3, 4]),
                };
                let mut batch = pair.a.qp.post();
                batch.add(posted as u64, operation, Data::Sges(&[source.sge(from, len)]), Flags::SIGNALED).unwrap();
                batch.ring();
                sent.push_back((from, len));
                posted += 1;
            }
            for c in pair.b.cq.poll() {
                c.status.unwrap();
                assert_eq!(c.wr_id, done as u64);
                let (from, len) = sent.pop_front().unwrap();
                let (mut got, mut want) = (vec![0; len], vec![0; len]);
                inbox.read(done % DEPTH * PLACE, &mut got);
                source.read(from, &mut want);
                assert!(got == want, "seed {seed}: message {done} of {len} bytes completed ahead of its data");
                // What a late write would leave here is seen by the next message.
                inbox.write(done % DEPTH * PLACE, &vec![GUARD; PLACE]);
                done += 1;
                quiet = 0;
            }
            for c in pair.a.cq.poll() {
                c.status.unwrap();
                acked += 1;
                quiet = 0;
            }
            moment(&bed, &mut rng);
            quiet += 1;
            assert!(quiet < 200_000, "seed {seed}: nothing completes");
        }
        assert!(is_guard(&inbox, 0..inbox.len()), "seed {seed}: data came behind its completion");
        assert_sound(&bed, "order");
    }
}
