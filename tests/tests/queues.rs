//! Completion and event queues that their owner keeps to the size of never run over, however it polls them.

use abi::bar::MSIX_TABLE;
use abi::queue::event;
use abi::status::{cause, wc};
use abi::table::qp_state;
use driver::qp::{QpSizes, SendOptions};
use driver::{Access, Data, Flags, Operation};
use ferroce_tests::{assert_sound, noise, pass, path_to, region, small_pairs, wait};
use nic::BarRequest;
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
        // The first arm is for any completion, and a later one for solicited ones only takes nothing from it.
        assert_eq!(events.len(), 1, "armed {times} times: {events:?}");
    }
    assert_sound(&bed, "arms");
}

/// Event queues of few entries with all there is of moderation: each arm of a completion queue gives one event, each arm of the event queue
/// one message, when it is due and not before.
#[test]
fn events_are_moderated_at_the_ends_of_the_scale() {
    const NEVER: u32 = (1 << 24) - 1;
    let mut bed = Testbed::new(&Setup::small()).unwrap();
    let target = region(&bed.hosts[1].pd, 64, Access::all(), noise(2));
    let mut rng = verilate::rng(17);
    let moderations = [(0, 0), (1, 0), (2, 0), (65535, 0), (1, NEVER), (2, 200), (65535, 300), (0, NEVER), (3, NEVER)];
    for (vector, (count, cycles)) in (0..).step_by(3).zip(moderations) {
        let what = format!("{count} events, {cycles} cycles, vector {vector}");
        let eq = bed.hosts[0].device.create_eq(4, vector, count, cycles).unwrap();
        let wide = std::mem::replace(&mut bed.hosts[0].eq, eq);
        let mut pairs = bed.connect_many(&Connect::default(), 4).unwrap();
        let mut eq = std::mem::replace(&mut bed.hosts[0].eq, wide);
        let at = (MSIX_TABLE + 16 * vector as usize) as u32;
        for (offset, value) in [(at, 0xfee0_0000u64), (at + 8, vector.into())] {
            // The second clears the mask bit as well.
            bed.sim().nic(0).bar(BarRequest { bar: 0, offset, bytes: 8, write: Some(value) });
        }
        let messages = |bed: &Testbed| bed.sim().nic(0).host.take_interrupts();
        for round in 0..verilate::scale(3) {
            eq.arm();
            pairs.iter_mut().for_each(|p| p.a.cq.arm(false));
            pass(&bed, 10);
            assert!(messages(&bed).is_empty(), "{what}: nothing came");
            let fired = rng.random_range(1..=4);
            for pair in &mut pairs[..fired] {
                let mut batch = pair.a.qp.post();
                for i in 0..2 {
                    let write = Operation::Write(target.remote(0));
                    batch.add(i, write, Data::Inline(&[1; 8]), Flags::SIGNALED).unwrap();
                }
            }
            pass(&bed, 200);
            let due = cycles != NEVER || fired >= usize::from(count);
            let want = if due { vec![vector.into()] } else { vec![] };
            assert_eq!(messages(&bed), want, "{what}: round {round}, {fired} events");
            let mut numbers: Vec<_> = std::iter::from_fn(|| eq.poll()).map(|e| (e.kind, e.number)).collect();
            numbers.sort();
            let mut armed: Vec<_> = pairs[..fired].iter().map(|p| (event::COMPLETION, p.a.cq.number())).collect();
            armed.sort();
            assert_eq!(numbers, armed, "{what}: round {round}");
            for pair in &mut pairs[..fired] {
                assert_eq!(pair.a.cq.poll().count(), 2);
            }
            pass(&bed, 50);
            assert!(messages(&bed).is_empty() && eq.poll().is_none(), "{what}: unarmed, or empty");
        }
        drop(pairs);
    }
    assert_sound(&bed, "moderation");
}

/// What a device told of a queue that ran over.
fn overrun(events: &[driver::Event], cq: u32, qps: &[u32]) {
    let errors = |kind| events.iter().filter(|e| e.kind == kind).map(|e| e.number).collect::<Vec<_>>();
    assert_eq!(errors(event::CQ_ERROR), [cq], "{events:?}");
    assert_eq!(errors(event::QP_ERROR), qps, "{events:?}");
    let why = |e: &&driver::Event| e.kind == event::QP_ERROR && e.value != cause::CQ_OVERRUN.into();
    assert!(!events.iter().any(|e| why(&e)), "{events:?}");
}

/// The entry that had room is given, whole; what else was posted is flushed.
#[test]
fn three_completions_at_once_overrun_a_queue_of_one() {
    let mut bed = Testbed::new(&Setup::default()).unwrap();
    let mut pair = bed.connect(&Connect { cq_entries: 1, ..Connect::default() }).unwrap();
    let target = region(&bed.hosts[1].pd, 64, Access::all(), noise(2));
    let mut batch = pair.a.qp.post();
    for i in 0..3 {
        batch.add(i, Operation::Write(target.remote(0)), Data::Inline(&[1; 8]), Flags::SIGNALED).unwrap();
    }
    batch.ring();
    pass(&bed, 500);
    let events: Vec<_> = std::iter::from_fn(|| bed.hosts[0].eq.poll()).collect();
    overrun(&events, pair.a.cq.number(), &[pair.a.qp.qpn()]);
    let done: Vec<_> = pair.a.cq.poll().map(|c| (c.wr_id, c.status.err().map(|e| e.status))).collect();
    assert_eq!(done, [(0, None), (1, Some(wc::WR_FLUSH)), (2, Some(wc::WR_FLUSH))]);
    assert_eq!(pair.a.qp.query().unwrap().state, qp_state::ERR);
    assert_sound(&bed, "a queue of one entry");
}

/// All QPs whose receives complete there end as their turn comes; who completes elsewhere does not.
#[test]
fn a_receive_cq_that_runs_over_ends_each_of_its_qps() {
    let mut bed = Testbed::new(&Setup::small()).unwrap();
    let mut pairs = bed.connect_many(&small_pairs(), 3).unwrap();
    let far = &bed.hosts[1];
    let inbox = region(&far.pd, 64, Access::all(), noise(2));
    let mut narrow = far.device.create_cq(2, &far.eq).unwrap();
    let wide = far.device.create_cq(64, &far.eq).unwrap();
    // Two of host 1 share a narrow queue, which holds one receive of each.
    let mut sharers = Vec::new();
    for pair in &mut pairs[..2] {
        let qp = far.pd.create_qp(&wide, &narrow, QpSizes::new(4, 16)).unwrap().init(Access::all()).unwrap();
        let near = bed.hosts[0].pd.create_qp(&pair.a.cq, &pair.a.cq, QpSizes::new(16, 4)).unwrap();
        let near = near.init(Access::all()).unwrap();
        let (here, there) = (near.qpn(), qp.qpn());
        let ready = |qp: driver::Qp<driver::qp::Init>, gid, to| {
            qp.rtr(&path_to(gid, to, 1024, 0)).unwrap().rts(&SendOptions::default()).unwrap()
        };
        sharers.push((ready(near, far.gid, there), ready(qp, bed.hosts[0].gid, here)));
    }
    for (near, far) in &mut sharers {
        (0..4).for_each(|i| far.post_recv(i, &[inbox.sge(0, 8)]).unwrap());
        let mut batch = near.post();
        (0..3).for_each(|i| batch.add(i, Operation::Send, Data::Inline(&[1; 8]), Flags::SIGNALED).unwrap());
    }
    pass(&bed, 1000);
    let events: Vec<_> = std::iter::from_fn(|| bed.hosts[1].eq.poll()).collect();
    let mut numbers: Vec<_> = sharers.iter().map(|(_, far)| far.qpn()).collect();
    numbers.sort_unstable();
    overrun(&events, narrow.number(), &numbers);
    let done: Vec<_> = narrow.poll().collect();
    assert_eq!(done.iter().filter(|c| c.status.is_ok()).count(), 2, "what had room is there: {done:?}");
    let flushed = |c: &&driver::Completion| c.status.is_err_and(|e| e.status == wc::WR_FLUSH);
    assert_eq!(done.iter().filter(flushed).count(), 6, "{done:?}");
    assert!(sharers.iter().all(|(_, far)| far.query().unwrap().state == qp_state::ERR));
    // The third pair, on the same NIC.
    let pair = &mut pairs[2];
    pair.b.qp.post_recv(1, &[inbox.sge(0, 8)]).unwrap();
    pair.a.qp.post().add(1, Operation::Send, Data::Inline(&[2; 8]), Flags::SIGNALED).unwrap();
    assert_eq!(wait(&bed, &mut pair.b.cq, "beside it").status, Ok(()));
    assert_sound(&bed, "a receive CQ that ran over");
}
