//! Queues and timers in tight places: a link that loses one packet in a hundred, the smallest queues there are, and completion queues
//! that are armed at any moment.

use abi::status::counter;
use driver::qp::QpSizes;
use driver::{Access, Data, Flags, Operation};
use fabric::{Action, Match, Packet};
use ferroce_tests::{GUARD, assert_sound, bytes, noise, pass, region, wait};
use nic::NS;
use std::sync::{Arc, Mutex};
use testbed::{Connect, Setup, Testbed};

/// Loses frames of both directions by chance.
fn lossy(bed: &Testbed, probability: f64) {
    let some = Match { probability: Some(probability), ..Match::default() };
    bed.sim().link_mut(0).rules.add(some, Action::Drop);
}

/// Frames that were lost.
fn lost(bed: &Testbed) -> u64 {
    bed.sim().link_mut(0).rules.rules[0].fired
}

/// Four messages of 512 KiB of each host at once, WRITEs and READs: all bytes are right, and no loss had to wait for the verbs timeout.
#[test]
fn a_loss_of_one_in_a_hundred_reaches_no_verbs_timeout() {
    const LEN: usize = 512 << 10;
    for mtu in [1024, 4096] {
        let mut setup = Setup::default();
        setup.nic.seed = verilate::seed(u64::from(mtu));
        let bed = Testbed::new(&setup).unwrap();
        lossy(&bed, 1e-2);
        let mut pair = bed.connect(&Connect { mtu, ..Connect::default() }).unwrap();
        let source = [0, 1].map(|i| region(&bed.hosts[i].pd, LEN, Access::all(), noise(i as u64)));
        let target = [0, 1].map(|i| region(&bed.hosts[i].pd, 4 * LEN, Access::all(), |_| GUARD));
        for from in [0, 1] {
            let end = if from == 0 { &mut pair.a } else { &mut pair.b };
            let mut batch = end.qp.post();
            for i in 0..4 {
                // Host 0 writes into the first half of host 1's target and reads into that of its own; host 1 the second halves.
                let place = (2 * from + i / 2) * LEN;
                let (operation, sge) = match i % 2 {
                    0 => (Operation::Write(target[1 - from].remote(place)), source[from].sge(0, LEN)),
                    _ => (Operation::Read(source[1 - from].remote(0)), target[from].sge(place, LEN)),
                };
                batch.add(i as u64, operation, Data::Sges(&[sge]), Flags::SIGNALED).unwrap();
            }
            batch.ring();
        }
        for (end, cq) in [&mut pair.a.cq, &mut pair.b.cq].into_iter().enumerate() {
            for i in 0..4 {
                let c = wait(&bed, cq, "messages under loss");
                assert_eq!((c.wr_id, c.status), (i, Ok(())), "MTU {mtu}, end {end}");
            }
        }
        pass(&bed, 100);
        for host in [0, 1] {
            let got = bytes(&target[host]);
            // What was written here by the peer, and what was read to here, are both the peer's bytes.
            let want = bytes(&source[1 - host]);
            for (place, got) in got.chunks(LEN).enumerate() {
                assert!(got == want, "MTU {mtu}: place {place} of host {host}");
            }
            let count = |c| bed.hosts[host].device.counter(c);
            assert_eq!(count(counter::RETRY_TIMEOUT), 0, "MTU {mtu}: host {host} waited for the verbs timeout");
            assert!(count(counter::RETRY_NAK) > 0, "MTU {mtu}: host {host} went back");
        }
        println!("MTU {mtu}: {} frames lost", lost(&bed));
        assert!(lost(&bed) >= 10, "MTU {mtu}: {}", lost(&bed));
        assert_sound(&bed, "loss");
    }
}

/// In a stream of WRITEs a packet is lost, and what is sent again of it: of that no NAK tells. So the fast timer must have learnt the round
/// trip while others were under way.
#[test]
fn the_fast_timer_learns_within_a_stream() {
    const LEN: usize = 1 << 20;
    const MTU: u32 = 1024;
    const LOST: u32 = 1500;
    let bed = Testbed::new(&Setup::default()).unwrap();
    let mut pair = bed.connect(&Connect { mtu: MTU, psn: 0, ..Connect::default() }).unwrap();
    let source = region(&bed.hosts[0].pd, LEN, Access::all(), noise(1));
    let target = region(&bed.hosts[1].pd, LEN, Access::all(), |_| GUARD);
    // When it was sent, in microseconds.
    let times: Arc<Mutex<Vec<f64>>> = Arc::default();
    {
        let mut sim = bed.sim();
        // What the first rule takes does not come to the second.
        for _ in 0..2 {
            let packet = Match { from: Some(0), psn: Some((LOST, LOST)), nth: Some(1), ..Match::default() };
            sim.link_mut(0).rules.add(packet, Action::Drop);
        }
        let noted = times.clone();
        sim.tap(Some(Box::new(move |from, frame, _| {
            if from == 0 && Packet::of(&frame.data).is_some_and(|p| p.psn == LOST) {
                noted.lock().unwrap().push(frame.at as f64 / NS as f64 * 1e-3);
            }
        })));
    }
    let mut batch = pair.a.qp.post();
    for i in 0..2 {
        let write = Operation::Write(target.remote(0));
        batch.add(i, write, Data::Sges(&[source.sge(0, LEN)]), Flags::SIGNALED).unwrap();
    }
    batch.ring();
    for i in 0..2 {
        let c = wait(&bed, &mut pair.a.cq, "a stream");
        assert_eq!((c.wr_id, c.status), (i, Ok(())));
    }
    let times = times.lock().unwrap();
    println!("sent at {times:.1?} us");
    assert_eq!(times.len(), 3, "{times:?}");
    // Before its first measurement it would take 262 us, for it is doubled by the NAK of the first loss.
    assert!((4.0..25.0).contains(&(times[2] - times[1])), "{times:?}");
    assert_eq!(bed.hosts[0].device.counter(counter::RETRY_FAST_TIMER), 1);
    assert!(bytes(&source) == bytes(&target));
    assert_sound(&bed, "a stream");
}

/// A send queue of four blocks goes round and round with operations of one and two blocks, SGEs of length 0 between others, while
/// packets are lost.
#[test]
fn a_send_queue_of_four_blocks_goes_round_with_mixed_operations() {
    const LEN: usize = 3000;
    let bed = Testbed::new(&Setup::default()).unwrap();
    lossy(&bed, 2e-2);
    let sizes = QpSizes::new(4, 4);
    let mut pair = bed.connect(&Connect { mtu: 256, sizes, psn: 0xff_fff0, ..Connect::default() }).unwrap();
    let source = [0, 1].map(|i| region(&bed.hosts[i].pd, LEN, Access::all(), noise(i as u64)));
    let target = [0, 1].map(|i| region(&bed.hosts[i].pd, LEN, Access::all(), |_| GUARD));
    for round in 0..verilate::scale(40) as u64 {
        target.iter().for_each(|t| t.write(0, &[GUARD; LEN]));
        pair.b.qp.post_recv(round, &[target[1].sge(2000, 0), target[1].sge(2000, 40)]).unwrap();
        let (s, t) = (&source[0], &target[0]);
        let at = (round as usize * 7) % 100;
        // One block each but the last, which has four SGEs, two of them empty.
        let mut batch = pair.a.qp.post();
        let write = Operation::Write(target[1].remote(at));
        batch.add(4 * round, write, Data::Sges(&[s.sge(at, 900)]), Flags::empty()).unwrap();
        let read = Operation::Read(source[1].remote(at));
        batch.add(4 * round + 1, read, Data::Sges(&[t.sge(at, 1500)]), Flags::SIGNALED).unwrap();
        batch.ring();
        assert_eq!(wait(&bed, &mut pair.a.cq, "a READ").wr_id, 4 * round + 1);
        let mut batch = pair.a.qp.post();
        let write = Operation::Write(target[1].remote(1100));
        batch.add(4 * round + 2, write, Data::Inline(&[round as u8; 20]), Flags::empty()).unwrap();
        let parts = [s.sge(at, 10), s.sge(at, 0), s.sge(at + 10, 30), s.sge(0, 0)];
        batch.add(4 * round + 3, Operation::Send, Data::Sges(&parts), Flags::SIGNALED).unwrap();
        batch.ring();
        let c = wait(&bed, &mut pair.a.cq, "a SEND");
        assert_eq!((c.wr_id, c.status), (4 * round + 3, Ok(())));
        let c = wait(&bed, &mut pair.b.cq, "its receive");
        assert_eq!((c.wr_id, c.len, c.status), (round, 40, Ok(())));
        pass(&bed, 20);
        let mut want = [[GUARD; LEN]; 2];
        want[1][at..at + 900].copy_from_slice(&bytes(s)[at..at + 900]);
        want[1][1100..1120].fill(round as u8);
        want[1][2000..2040].copy_from_slice(&bytes(s)[at..at + 40]);
        want[0][at..at + 1500].copy_from_slice(&bytes(&source[1])[at..at + 1500]);
        for host in [0, 1] {
            assert!(bytes(&target[host]) == want[host], "round {round}: memory of host {host}");
        }
    }
    assert!(lost(&bed) > 0);
    assert_sound(&bed, "a small send queue");
}

/// A completion queue of one entry: three completions that are taken one by one come, each once.
#[test]
fn a_completion_queue_of_one_entry_gives_three_completions_one_by_one() {
    let bed = Testbed::new(&Setup::default()).unwrap();
    let mut pair = bed.connect(&Connect { cq_entries: 1, ..Connect::default() }).unwrap();
    let target = region(&bed.hosts[1].pd, 64, Access::all(), |_| GUARD);
    for i in 0..3 {
        let mut batch = pair.a.qp.post();
        batch.add(i, Operation::Write(target.remote(0)), Data::Inline(&[i as u8; 8]), Flags::SIGNALED).unwrap();
        batch.ring();
        let c = wait(&bed, &mut pair.a.cq, "one at a time");
        assert_eq!((c.wr_id, c.status), (i, Ok(())));
        assert!(pair.a.cq.poll().next().is_none());
    }
    assert_eq!(bed.hosts[0].device.counter(counter::CQ_OVERRUN), 0);
    assert_sound(&bed, "a completion queue of one entry");
}

/// Whenever a completion queue is armed around a completion, either the completion is seen by the poll behind it, or an event comes:
/// the caller that sleeps then is never left asleep.
#[test]
fn a_completion_queue_armed_in_any_gap_loses_no_event() {
    let mut bed = Testbed::new(&Setup::default()).unwrap();
    let mut pair = bed.connect(&Connect::default()).unwrap();
    let target = region(&bed.hosts[1].pd, 64, Access::all(), |_| GUARD);
    let (mut polled, mut told) = (0, 0);
    // A WRITE takes less than 500 cycles from its doorbell to its completion.
    for (round, gap) in (0..600).enumerate() {
        let mut batch = pair.a.qp.post();
        let write = Operation::Write(target.remote(0));
        batch.add(round as u64, write, Data::Inline(&[round as u8; 8]), Flags::SIGNALED).unwrap();
        batch.ring();
        (0..gap / 20).for_each(|_| bed.sim().advance_cycles(20));
        bed.sim().advance_cycles(gap % 20);
        pair.a.cq.arm(false);
        let seen = pair.a.cq.poll().next();
        let c = match seen {
            Some(c) => {
                polled += 1;
                c
            }
            None => {
                let event = (0..1000).find_map(|_| {
                    bed.relax();
                    bed.hosts[0].eq.poll()
                });
                let event = event.unwrap_or_else(|| panic!("gap {gap}: armed before its completion, and no event"));
                assert_eq!(event.number, pair.a.cq.number(), "gap {gap}");
                told += 1;
                pair.a.cq.poll().next().unwrap_or_else(|| panic!("gap {gap}: an event without a completion"))
            }
        };
        assert_eq!((c.wr_id, c.status), (round as u64, Ok(())), "gap {gap}");
        // An arm that is left over may fire with this completion.
        pass(&bed, 20);
        while bed.hosts[0].eq.poll().is_some() {}
    }
    println!("{polled} were polled, {told} told");
    assert!(polled > 10 && told > 10, "the gaps lie around the completions: {polled} polled, {told} told");
    assert_sound(&bed, "arming");
}
