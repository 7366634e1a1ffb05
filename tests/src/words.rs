//! What the suites about words of 8 bytes share: atomics and atomic writes.

use driver::Mr;
use fabric::{Action, Match};
use nic::{Adversary, NS};
use testbed::{End, Pair, Setup, Testbed};

/// The word at `at`.
pub fn word(mr: &Mr, at: usize) -> u64 {
    let mut bytes = [0; 8];
    mr.read(at, &mut bytes);
    u64::from_le_bytes(bytes)
}

/// Two hosts that answer as late as they may, on a cable that loses, doubles, delays and swaps one frame in a hundred each.
pub fn rough(seed: u64, small: bool) -> Testbed {
    let mut setup = if small { Setup::small() } else { Setup::default() };
    setup.nic.seed = verilate::seed(seed);
    setup.nic.adversary = Adversary::Hostile;
    let bed = Testbed::new(&setup).unwrap();
    for action in [Action::Drop, Action::Duplicate, Action::Delay(3000 * NS), Action::Reorder(3)] {
        let some = Match { probability: Some(0.01), ..Match::default() };
        bed.sim().link_mut(0).rules.add(some, action);
    }
    bed
}

/// Requests 0 to `each` of each pair's first end, at most `depth` at a time: `post` posts one, signaled and under its number, given pair, end
/// and number. All complete in order.
pub fn all_complete(
    bed: &Testbed,
    pairs: &mut [Pair],
    each: u64,
    depth: u64,
    mut post: impl FnMut(usize, &mut End, u64),
) {
    let mut posted = vec![0; pairs.len()];
    let mut completed = vec![0; pairs.len()];
    let mut quiet = 0;
    while completed.iter().any(|c| *c < each) {
        for (i, pair) in pairs.iter_mut().enumerate() {
            while posted[i] < each && posted[i] - completed[i] < depth {
                post(i, &mut pair.a, posted[i]);
                posted[i] += 1;
            }
            for c in pair.a.cq.poll() {
                assert_eq!((c.wr_id, c.status), (completed[i], Ok(())));
                completed[i] += 1;
                quiet = 0;
            }
        }
        bed.relax();
        quiet += 1;
        assert!(quiet < 20_000, "{completed:?} of {each}");
    }
}
