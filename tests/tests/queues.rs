//! Completion and event queues that their owner keeps to the size of never run over, however it polls them.

use abi::queue::event;
use driver::{Access, Data, Flags, Operation};
use ferroce_tests::{assert_sound, noise, pass, region, wait};
use rand::RngExt;
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

/// A CQ gets another size again and again while entries come: none is lost, none comes twice, all in order; what it is armed for stays.
#[test]
fn a_cq_is_resized_under_traffic() {
    const DEPTH: u64 = 100;
    let mut bed = Testbed::new(&Setup::small()).unwrap();
    let mut pair = bed.connect(&Connect { cq_entries: DEPTH as u32, ..Connect::default() }).unwrap();
    let target = region(&bed.hosts[1].pd, 64, Access::all(), noise(2));
    let mut rng = verilate::rng(8);
    let (mut posted, mut done, mut moves, mut armed, mut events) = (0, 0, 0, false, 0);
    let maps = bed.hosts[0].device.dma_maps();
    while moves < verilate::scale(60) {
        let mut batch = pair.a.qp.post();
        while posted - done < DEPTH && rng.random_bool(0.9) {
            let write = Operation::Write(target.remote(0));
            batch.add(posted, write, Data::Inline(&[1; 8]), Flags::SIGNALED).unwrap();
            posted += 1;
        }
        batch.ring();
        pass(&bed, rng.random_range(0..6));
        if rng.random_bool(0.4) {
            // As large as what is posted needs it; often there are entries of two or three rings in it.
            let entries = rng.random_range(posted - done..=8 * DEPTH).max(1) as u32;
            pair.a.cq.resize(entries).unwrap();
            moves += 1;
            // Until the next size no more may be posted than it holds.
            if u64::from(entries) < DEPTH {
                while done < posted {
                    let c = wait(&bed, &mut pair.a.cq, "a small queue");
                    assert_eq!((c.wr_id, c.status), (done, Ok(())));
                    done += 1;
                }
                pair.a.cq.resize(DEPTH as u32).unwrap();
            }
        }
        while let Some(e) = bed.hosts[0].eq.poll() {
            assert!(armed && (e.kind, e.number) == (event::COMPLETION, pair.a.cq.number()), "{e:?}");
            (armed, events) = (false, events + 1);
        }
        if rng.random_bool(0.6) {
            for c in pair.a.cq.poll().take(rng.random_range(0..120)) {
                assert_eq!((c.wr_id, c.status), (done, Ok(())));
                done += 1;
            }
        }
        if !armed && rng.random_bool(0.3) {
            pair.a.cq.arm(false);
            armed = true;
        }
    }
    while done < posted {
        assert_eq!(wait(&bed, &mut pair.a.cq, "the rest").wr_id, done);
        done += 1;
    }
    assert!(pair.a.cq.poll().next().is_none());
    pass(&bed, 100);
    events += std::iter::from_fn(|| bed.hosts[0].eq.poll()).count();
    println!("{done} completions, {moves} moves, {events} events");
    assert!(events > 3 && bed.hosts[0].device.dma_maps() <= maps + 1, "old rings are given back");
    // Fewer than are in it.
    let mut batch = pair.a.qp.post();
    (0..20).for_each(|i| {
        batch.add(i, Operation::Write(target.remote(0)), Data::Inline(&[1; 8]), Flags::SIGNALED).unwrap()
    });
    batch.ring();
    pass(&bed, 500);
    let e = pair.a.cq.resize(19).unwrap_err().to_string();
    assert!(e.contains("19 entries, while 20 are in it"), "{e}");
    pair.a.cq.resize(20).unwrap();
    assert!((0..20).eq(pair.a.cq.poll().map(|c| c.wr_id)));
    for entries in [0, (3 << 20) + 1] {
        assert!(pair.a.cq.resize(entries).unwrap_err().to_string().contains("1 to 3,145,728"));
    }
    assert_sound(&bed, "a CQ that is resized");
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

/// A queue may be armed again and again while nothing comes: each time counts.
#[test]
fn a_cq_that_was_armed_any_number_of_times_fires() {
    let mut bed = Testbed::new(&Setup::small()).unwrap();
    let mut pair = bed.connect(&Connect::default()).unwrap();
    let target = region(&bed.hosts[1].pd, 64, Access::all(), noise(2));
    for times in (1..=9).cycle().take(verilate::scale(18)) {
        // Slowly at first, then as fast as the bus goes.
        for time in 0..times {
            pair.a.cq.arm(time % 3 == 1);
            pass(&bed, times % 2 * 5);
        }
        assert_eq!(bed.hosts[0].eq.poll(), None, "nothing came");
        let mut batch = pair.a.qp.post();
        let flags = Flags::SIGNALED;
        batch.add(times as u64, Operation::Write(target.remote(0)), Data::Inline(&[1; 8]), flags).unwrap();
        batch.ring();
        assert!(wait(&bed, &mut pair.a.cq, "a WRITE").status.is_ok());
        pass(&bed, 100);
        let events: Vec<_> = std::iter::from_fn(|| bed.hosts[0].eq.poll()).map(|e| e.kind).collect();
        let solicited = times % 3 == 2;
        assert!(events.len() == 1 || solicited && events.is_empty(), "armed {times} times: {events:?}");
    }
    assert_sound(&bed, "arms");
}
