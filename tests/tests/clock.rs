//! One clock per core: what its identity says, what the simulation runs at, and what its timers count by.

use abi::status::wc;
use driver::qp::SendOptions;
use driver::{Access, Data, Flags, Operation};
use fabric::{Action, Match};
use ferroce_tests::{noise, region, wait};
use testbed::{Connect, Setup, Testbed};

#[test]
fn the_verbs_timeout_takes_its_time_at_every_clock() {
    for (setup, mhz) in [(Setup::default(), 250), (Setup::small(), 125)] {
        let bed = Testbed::new(&setup).unwrap();
        let device = &bed.hosts[0].device;
        assert_eq!(device.clock_mhz(), mhz);
        // The device's clock against the simulation's time.
        let (before, from) = (device.clock(), bed.ns());
        (0..100).for_each(|_| bed.relax());
        let (ticks, ns) = ((device.clock() - before) as f64, bed.ns() - from);
        assert!((ticks * 1000.0 / f64::from(mhz) / ns - 1.0).abs() < 0.2, "{ticks} cycles in {ns} ns");
        // 4.096 us x 2^6, no retry: a peer that is silent is given up after one to four times that (IBTA 9.7.6.1.3).
        let send = SendOptions { timeout: 6, retry_count: 0, ..SendOptions::default() };
        let mut pair = bed.connect(&Connect { send, ..Connect::default() }).unwrap();
        let source = region(&bed.hosts[0].pd, 64, Access::all(), noise(1));
        let target = region(&bed.hosts[1].pd, 64, Access::all(), noise(2));
        bed.sim().link_mut(0).rules.add(Match::default(), Action::Drop);
        let start = bed.ns();
        let mut batch = pair.a.qp.post();
        let write = Operation::Write(target.remote(0));
        batch.add(1, write, Data::Sges(&[source.sge(0, 64)]), Flags::SIGNALED).unwrap();
        batch.ring();
        let c = wait(&bed, &mut pair.a.cq, "a peer that is silent");
        assert_eq!(c.status.unwrap_err().status, wc::RETRY_EXC);
        let (took, timeout) = (bed.ns() - start, 4096.0 * 64.0);
        println!("{mhz} MHz: {:.2} times the timeout", took / timeout);
        assert!((timeout..4.0 * timeout + 20_000.0).contains(&took), "{took} ns at {mhz} MHz");
    }
}
