//! Links that are slower than the core: the fast timer waits for responses at the spacing at which they come.

use abi::status::counter;
use driver::{Access, Data, Flags, Operation};
use ferroce_tests::{assert_sound, bytes, noise, region};
use testbed::{Connect, Setup, Testbed, core_clock};

/// Bytes of a READ.
const READ: usize = 32 << 10;
/// READs in flight on a QP.
const DEPTH: usize = 4;

/// Reads `len` bytes over `qps` QPs of a link, and asks for nine tenths of what the MTU allows.
fn reads(setup: Setup, gbps: f64, qps: usize, len: usize) {
    let what = format!("{} bits, {gbps} Gb/s, {qps} QP(s)", setup.width);
    let core = setup.width as f64 * 1e6 / core_clock(setup.width, setup.qps).unwrap() as f64;
    let bed = Testbed::new(&setup.link(gbps)).unwrap();
    let mut pairs = bed.connect_many(&Connect::default(), qps).unwrap();
    let source = region(&bed.hosts[1].pd, len, Access::all(), noise(1));
    let target = region(&bed.hosts[0].pd, len, Access::all(), noise(2));
    let start = bed.ns();
    let (mut flying, mut next, mut done) = (vec![0; qps], 0, 0);
    while done < len {
        for (pair, flying) in pairs.iter_mut().zip(&mut flying) {
            while *flying < DEPTH && next < len {
                let operation = Operation::Read(source.remote(next));
                pair.a.qp.post().add(0, operation, Data::Sges(&[target.sge(next, READ)]), Flags::SIGNALED).unwrap();
                next += READ;
                *flying += 1;
            }
            for c in pair.a.cq.poll() {
                assert!(c.status.is_ok(), "{what}: {c:?}");
                *flying -= 1;
                done += READ;
            }
        }
        bed.relax();
    }
    let rate = len as f64 * 8.0 / (bed.ns() - start);
    // Of a packet, 86 bytes are preamble, headers, ICRC, FCS and gap.
    let limit = gbps.min(core) * 4096.0 / (4096.0 + 86.0);
    let fires = bed.hosts[0].device.counter(counter::RETRY_FAST_TIMER);
    println!("{what}: {rate:.2} of {limit:.2} Gb/s, the fast timer fired {fires} times");
    assert!(rate >= 0.9 * limit, "{what}: {rate:.2} of {limit:.2} Gb/s, the fast timer fired {fires} times");
    assert!(bytes(&source) == bytes(&target), "{what}: other data");
    assert_sound(&bed, &what);
}

#[test]
fn reads_reach_the_limit_of_slow_links_of_a_64_bit_core() {
    reads(Setup::small(), 2.0, 1, 8 * READ);
    reads(Setup::small(), 2.0, 4, 16 * READ);
    reads(Setup::small(), 10.0, 1, 32 * READ);
    reads(Setup::small(), 10.0, 4, 32 * READ);
}

#[test]
fn reads_reach_the_limit_of_slow_links_of_a_512_bit_core() {
    reads(Setup::default(), 1.0, 1, 6 * READ);
    reads(Setup::default(), 10.0, 8, 32 * READ);
    reads(Setup::default(), 25.0, 8, 48 * READ);
}
