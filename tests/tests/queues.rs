//! Completion and event queues that their owner keeps to the size of never run over, however it polls them.

use abi::queue::event;
use driver::{Access, Data, Flags, Operation};
use ferroce_tests::{assert_sound, noise, pass, region, wait};
use testbed::{Connect, Setup, Testbed};

#[test]
fn a_full_cq_that_is_polled_in_part_and_posted_to_again_does_not_run_over() {
    const ENTRIES: u64 = 64;
    let mut bed = Testbed::new(&Setup::default()).unwrap();
    let mut pair = bed.connect(&Connect { cq_entries: ENTRIES as u32, ..Connect::default() }).unwrap();
    let source = region(&bed.hosts[0].pd, 64, Access::all(), noise(1));
    let target = region(&bed.hosts[1].pd, 64, Access::all(), noise(2));
    let mut post = |n: u64| {
        let mut batch = pair.a.qp.post();
        let write = Operation::Write(target.remote(0));
        batch.add(n, write, Data::Sges(&[source.sge(0, 64)]), Flags::SIGNALED).unwrap();
    };
    let (mut posted, mut done) = (0, 0);
    for round in 0..verilate::scale(40) {
        // As many requests as the CQ was made for; in each third round more of them go out while the CQ is polled.
        while posted - done < ENTRIES {
            post(posted);
            posted += 1;
        }
        pass(&bed, 100);
        let busy = round % 3 == 2;
        for c in pair.a.cq.poll().take(if busy { 64 } else { 15 }) {
            assert!(c.status.is_ok() && c.wr_id == done, "round {round}: {c:?}");
            done += 1;
            if busy {
                post(posted);
                posted += 1;
                pass(&bed, 2);
            }
        }
        assert!(posted - done <= if busy { 64 } else { 49 }, "round {round}: not polled");
        let events: Vec<_> = std::iter::from_fn(|| bed.hosts[0].eq.poll()).collect();
        assert!(events.is_empty(), "round {round}: {events:?}");
    }
    while done < posted {
        assert_eq!(wait(&bed, &mut pair.a.cq, "the rest").wr_id, done);
        done += 1;
    }
    assert_sound(&bed, "a CQ filled again and again");
}

#[test]
fn an_eq_that_is_only_polled_gives_more_events_than_it_has_entries() {
    let mut bed = Testbed::new(&Setup::default()).unwrap();
    let narrow = bed.hosts[0].device.create_eq(8, 1, 0, 0).unwrap();
    let wide = std::mem::replace(&mut bed.hosts[0].eq, narrow);
    let mut pair = bed.connect(&Connect::default()).unwrap();
    let mut narrow = std::mem::replace(&mut bed.hosts[0].eq, wide);
    let target = region(&bed.hosts[1].pd, 64, Access::all(), noise(2));
    let cq = &mut pair.a.cq;
    for round in 0..verilate::scale(40) {
        cq.arm(false);
        let mut batch = pair.a.qp.post();
        batch.add(round as u64, Operation::Write(target.remote(0)), Data::Inline(&[1; 8]), Flags::SIGNALED).unwrap();
        batch.ring();
        let event = (0..2000).find_map(|_| {
            bed.relax();
            narrow.poll()
        });
        let event = event.unwrap_or_else(|| panic!("no event in round {round}"));
        assert_eq!((event.kind, event.number), (event::COMPLETION, cq.number()));
        assert_eq!(cq.poll().next().unwrap().wr_id, round as u64);
    }
    assert_sound(&bed, "an EQ that is only polled");
}
