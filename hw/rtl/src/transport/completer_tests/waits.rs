//! How long the completer waits: fast timer, verbs timeout, RNR timer.

use super::{live::*, *};

#[test]
fn the_fast_timer_doubles_and_costs_no_retry() {
    let mut live = Live::new(|r| _ = r.send(send_op::SEND, 10, true));
    assert_eq!(live.run(300, &[]), []);
    live.left(100);
    let start = live.m.cycle() / live.tick;
    let times: Vec<u64> = backs(&live.run(2200, &[])).iter().map(|t| t - start).collect();
    println!("go backs after {times:?} ticks");
    let first = timers::FIRST;
    for (i, t) in times.iter().enumerate() {
        let want = first * ((2 << i) - 1);
        assert!(want <= *t && *t <= want + 4 * (i as u64 + 1), "{i}: {t} for {want}");
    }
    assert_eq!(times.len(), 4);
    // Eight firings and more: far more than seven retries, and no error.
    assert!(
        live.around.counts[&counter::RETRY_FAST_TIMER] == 4
            && !live.around.counts.contains_key(&counter::RETRY_TIMEOUT)
    );
}

#[test]
fn after_a_nak_the_fast_timer_waits_twice_as_long() {
    let mut live = Live::new(|r| (0..4).for_each(|_| _ = r.send(send_op::SEND, 10, true)));
    (100..104).for_each(|psn| live.left(psn));
    assert_eq!(backs(&live.run(2, &[nak(100, 0x60)])).len(), 1);
    let start = live.m.cycle() / live.tick;
    let first = backs(&live.run(400, &[]))[0] - start;
    assert!((2 * timers::FIRST - 4..2 * timers::FIRST + 8).contains(&first), "{first} ticks");
}

#[test]
fn the_fast_timer_follows_the_round_trip() {
    let mut live = Live::new(|r| (0..60).for_each(|_| _ = r.send(send_op::SEND, 10, true)));
    for psn in 100..150 {
        live.left(psn);
        let seen = live.run(12, &[]);
        assert!(backs(&seen).is_empty());
        live.run(1, &[ack(psn)]);
    }
    live.left(150);
    let start = live.m.cycle() / live.tick;
    let first = backs(&live.run(100, &[]))[0] - start;
    println!("fires {first} ticks after a packet, at round trips of 12 ticks");
    assert!((13..20).contains(&first));
}

/// Packets leave one every so many ticks, and each is answered after the trip of its time, so that several are on their way. Returns
/// how long the fast timer takes once the answers stop.
fn stream(live: &mut Live, first: u64, every: u64, trips: &[u64]) -> u64 {
    let leaves = |i: usize| i as u64 * every;
    let mut answers: Vec<_> = trips.iter().enumerate().map(|(i, trip)| (leaves(i) + trip, first + i as u64)).collect();
    answers.sort();
    let mut answers = VecDeque::from(answers);
    let (mut now, mut left) = (0, 0);
    while !answers.is_empty() {
        if left < trips.len() && now == leaves(left) {
            live.left(first + left as u64);
            left += 1;
        }
        let due = answers.iter().take_while(|(due, _)| *due <= now).count();
        let comes: Vec<_> = answers.drain(..due).map(|(_, psn)| ack(psn)).collect();
        assert_eq!(backs(&live.run(1, &comes)), [] as [u64; 0], "after {now} ticks");
        now += 1;
    }
    live.left(first + trips.len() as u64);
    let start = live.m.cycle() / live.tick;
    backs(&live.run(1000, &[]))[0] - start
}

#[test]
fn the_fast_timer_learns_within_a_stream() {
    let mut live = Live::new(|r| (0..127).for_each(|_| _ = r.send(send_op::SEND, 10, true)));
    let fires = stream(&mut live, 100, 1, &[12; 120]);
    println!("fires {fires} ticks after a packet, at round trips of 12 ticks");
    assert!((13..20).contains(&fires), "{fires}");
}

#[test]
fn the_fast_timer_follows_a_stream_whose_round_trip_changes() {
    for (from, to, most) in [(12u64, 60u64, 200), (60, 12, 60)] {
        let mut live = Live::new(|r| (0..127).for_each(|_| _ = r.send(send_op::SEND, 10, true)));
        // By 4 ticks with each packet, from the 30th on, so that the answers stay in order and come half as often at worst.
        let trip = |i: u64| {
            let by = (4 * i).saturating_sub(120);
            if from < to { to.min(from + by) } else { to.max(from.saturating_sub(by)) }
        };
        let fires = stream(&mut live, 100, 4, &(0..125).map(trip).collect::<Vec<_>>());
        println!("from {from} to {to} ticks: fires {fires} ticks after a packet");
        assert!(fires > to && fires < most, "from {from} to {to}: {fires}");
    }
}

/// What it takes to send again what a NAK asked for is no round trip.
#[test]
fn a_round_trip_over_a_go_back_does_not_count() {
    let mut live = Live::new(|r| (0..127).for_each(|_| _ = r.send(send_op::SEND, 10, true)));
    for psn in 100..140 {
        live.left(psn);
        live.run(12, &[]);
        live.run(1, &[ack(psn)]);
    }
    for psn in (140..200).step_by(10) {
        // The one that is marked is the first of ten, and lost.
        (psn..psn + 10).for_each(|psn| live.left(psn));
        live.run(12, &[]);
        assert_eq!(backs(&live.run(8, &[nak(psn, 0x60)])).len(), 1);
        (psn..psn + 10).for_each(|psn| live.left_again(psn));
        assert_eq!(backs(&live.run(12, &[])), [] as [u64; 0]);
        live.run(1, &(psn..psn + 10).map(ack).collect::<Vec<_>>());
    }
    live.left(200);
    let start = live.m.cycle() / live.tick;
    let fires = backs(&live.run(100, &[]))[0] - start;
    println!("fires {fires} ticks after a packet, at round trips of 12 ticks");
    assert!((13..20).contains(&fires), "{fires}");
}

/// A path of 12 ticks becomes one of 200. What the timer was doubled by firings stays until a packet that was sent once is answered: so
/// the next one is, or the one behind it, and measured; and answers to packets that were sent again measure nothing.
#[test]
fn a_path_that_became_longer_is_learnt_by_the_next_packet() {
    let mut live = Live::new(|r| (0..127).for_each(|_| _ = r.send(send_op::SEND, 10, true)));
    for psn in 100..120 {
        live.left(psn);
        live.run(12, &[]);
        live.run(1, &[ack(psn)]);
    }
    // All but the first leave again when that is answered, and their old answers come close behind.
    (120..140).for_each(|psn| live.left(psn));
    let before = backs(&live.run(200, &[])).len();
    println!("went back {before} times before the first answer");
    assert!((3..6).contains(&before), "{before}");
    for psn in 120..140 {
        live.run(1, &[ack(psn)]);
        if psn < 139 {
            live.left_again(psn + 1);
        }
    }
    let mut more = vec![];
    for psn in 140..160 {
        live.left(psn);
        more.extend(backs(&live.run(200, &[])));
        live.run(1, &[ack(psn)]);
    }
    // Doubled often enough for the sum of the waits, so once too few for each of them at worst.
    assert!(more.len() <= 1, "went back after {more:?}");
    live.left(160);
    let start = live.m.cycle() / live.tick;
    let fires = backs(&live.run(1000, &[]))[0] - start;
    println!("fires {fires} ticks after a packet, at round trips of 200 ticks");
    assert!((200..400).contains(&fires), "{fires}");
}

/// The answers of many QPs wait for each other: each one's timer allows a turn for all that wait, and no longer than they do.
#[test]
fn the_fast_timer_allows_a_turn_for_each_qp_that_waits() {
    const CROWD: u64 = 20;
    let mut live = Live::new(|r| (0..60).for_each(|_| _ = r.send(send_op::SEND, 10, true)));
    for psn in 100..140 {
        live.left(psn);
        live.run(1, &[ack(psn)]);
    }
    // Others, which have no measurement, wait until the verbs timeout of none.
    for q in 2..2 + CROWD {
        live.around.qps[q as usize].send(send_op::SEND, 10, true);
        live.leaves_of(q, 100, true, false);
    }
    live.run(2, &[]);
    live.left(140);
    let start = live.m.cycle() / live.tick;
    let first = backs(&live.run(100, &[]))[0] - start;
    println!("fires {first} ticks after a packet, among {CROWD} that wait");
    assert!((2 * (CROWD + 1)..2 * (CROWD + 1) + 6).contains(&first), "{first}");
}

/// A READ that waits behind another one's response says nothing about round trips.
#[test]
fn a_read_behind_a_response_measures_no_round_trip() {
    let mut live = Live::new(|r| _ = r.send(send_op::READ, 30 * 1024, true).send(send_op::READ, 2048, true));
    live.left(100);
    live.run(12, &[]);
    live.run(1, &[data(op::READ_RESPONSE_FIRST, 100, 1024)]);
    live.left(130);
    for psn in 101..130 {
        let opcode = if psn == 129 { op::READ_RESPONSE_LAST } else { op::READ_RESPONSE_MIDDLE };
        live.run(8, &[data(opcode, psn, 1024)]);
    }
    live.run(8, &[data(op::READ_RESPONSE_FIRST, 130, 1024)]);
    let start = live.m.cycle() / live.tick;
    let fires = backs(&live.run(1000, &[]))[0] - start;
    println!("fires {fires} ticks after the last response");
    // One measurement of 12, with a deviation of 6.
    assert!(fires < 45, "{fires}");
}

/// A packet of the queue before is not waited for, and its answer not taken for that of another with its PSN.
#[test]
fn a_queue_that_is_loaded_has_no_packet_marked() {
    let mut live = Live::new(|r| (0..60).for_each(|_| _ = r.send(send_op::SEND, 10, true)));
    live.left(100);
    live.run(300, &[]);
    load(&mut live.m, 1, &live.around.qps[1]);
    let fires = stream(&mut live, 100, 4, &[12; 40]);
    assert!((13..20).contains(&fires), "{fires}");
}

/// The packets of a READ response may come further apart than its first one took: on a slow or shared link.
#[test]
fn the_fast_timer_follows_the_pace_of_the_responses() {
    let mut live = Live::new(|r| _ = r.send(send_op::READ, 20 * 1024, true));
    live.left(100);
    for (psn, gap) in (100..).zip([20, 55, 100, 180, 180, 20, 20, 180, 180]) {
        assert_eq!(backs(&live.run(gap, &[])), [] as [u64; 0], "before response {psn}");
        let opcode = if psn == 100 { op::READ_RESPONSE_FIRST } else { op::READ_RESPONSE_MIDDLE };
        live.run(1, &[data(opcode, psn, 1024)]);
    }
    // It stops.
    let start = live.m.cycle() / live.tick;
    let first = backs(&live.run(1000, &[]))[0] - start;
    println!("fires {first} ticks after the last response");
    assert!((2 * 180 - 20..2 * 180 + 20).contains(&first), "{first}");
}

#[test]
fn the_verbs_timeout_costs_retries_until_none_is_left() {
    let mut live = Live::new(|r| {
        (r.timeout, r.retry_count) = (3, 2);
        r.send(send_op::SEND, 10, true);
    });
    live.left(100);
    let seen = live.run(200, &[]);
    // 4 x 2^3 ticks, below the fast timer: each firing counts.
    assert_eq!(backs(&seen).len(), 2);
    assert_eq!(seen.last().unwrap().1, Happens::Op("cqe 0 status 12".into()));
    assert_eq!(live.around.counts[&counter::RETRY_TIMEOUT], 2);
}

#[test]
fn progress_stops_the_timer() {
    let mut live = Live::new(|r| _ = r.send(send_op::SEND, 10, true));
    live.left(100);
    live.run(100, &[ack(100)]);
    assert_eq!(live.run(300, &[]), []);
}

#[test]
fn a_read_whose_response_stops_is_asked_for_again_from_there() {
    let mut live = Live::new(|r| _ = r.send(send_op::READ, 3000, true));
    live.left(100);
    live.run(2, &[data(op::READ_RESPONSE_FIRST, 100, 1024)]);
    let seen = live.run(200, &[]);
    assert_eq!(seen[0].1, Happens::Back(101));
}

#[test]
fn an_rnr_nak_waits_for_its_timer() {
    // Code 7: 120 us, 118 ticks of 1.024 us.
    let mut live = Live::new(|r| _ = r.send(send_op::SEND, 10, true));
    live.left(100);
    let start = live.m.cycle() / live.tick;
    let seen = live.run(400, &[nak(100, 0x20 | 7)]);
    let first = backs(&seen)[0] - start;
    println!("back {first} ticks after RNR");
    assert!((118..122).contains(&first));
}

#[test]
fn each_rnr_timer_code_is_waited_for_up_to_655_ms() {
    // A tick of few cycles: a round of the scanner takes eight of them.
    const TICK: usize = 8;
    for (code, unit) in abi::wire::RNR_TIMER_10US.into_iter().enumerate() {
        let mut live = Live::with_tick(TICK, |r| _ = r.send(send_op::SEND, 10, true));
        live.left(100);
        let start = live.m.cycle() / live.tick;
        let want = (u64::from(unit) * 10_000).div_ceil(1024);
        let mut seen = live.run(1, &[nak(100, 0x20 | code as u64)]);
        // Nothing to look at in the meantime.
        let idle = want.saturating_sub(16);
        (0..idle * live.tick).for_each(|_| live.m.tick());
        seen.extend(live.run(want - idle + 24, &[]));
        let waited = backs(&seen)[0] - start;
        assert!((want..want + 20).contains(&waited), "code {code}: back after {waited} ticks, wanted {want}");
    }
}

/// QP 1 with round trips of a tick, and 20 others that wait for their answers from now on: returns how many there are.
fn crowd(live: &mut Live) -> u64 {
    const OTHERS: u64 = 20;
    for psn in 100..140 {
        live.left(psn);
        live.run(1, &[ack(psn)]);
    }
    for q in 2..2 + OTHERS {
        live.around.qps[q as usize].send(send_op::SEND, 10, true);
        live.leaves_of(q, 100, true, false);
    }
    OTHERS
}

/// What a firing doubles is the QP's own time: a crowd needs no more turns for that.
#[test]
fn the_turns_of_a_crowd_are_not_doubled_by_firings() {
    let mut live = Live::new(|r| (0..60).for_each(|_| _ = r.send(send_op::SEND, 10, true)));
    let turns = 2 * (crowd(&mut live) + 1);
    live.run(2, &[]);
    live.left(140);
    let mut from = live.m.cycle() / live.tick;
    let waited: Vec<u64> = (0..5)
        .map(|_| {
            // The others go back, too.
            let own = |live: &mut Live| {
                live.run(1, &[]).iter().find(|(_, what)| *what == Happens::Back(140)).map(|(tick, _)| *tick)
            };
            let back = (0..500).find_map(|_| own(&mut live)).expect("it goes back");
            live.left_again(140);
            std::mem::replace(&mut from, back).abs_diff(back)
        })
        .collect();
    println!("went back after {waited:?} ticks among {turns} ticks of turns");
    // Its own time is 5 ticks: three doublings are within the turns, the fourth is not.
    // The crowd is a turn smaller for a moment while one goes back.
    assert!(waited[..4].iter().all(|t| (turns - 3..turns + 6).contains(t)), "{waited:?}");
    assert!((80..88).contains(&waited[4]), "{waited:?}");
}

/// However many wait, the verbs timeout is the longest wait.
#[test]
fn a_crowd_does_not_reach_beyond_the_verbs_timeout() {
    // 4 x 2^3 ticks.
    let mut live = Live::new(|r| {
        (r.timeout, r.retry_count) = (3, 7);
        (0..60).for_each(|_| _ = r.send(send_op::SEND, 10, true));
    });
    let turns = 2 * (crowd(&mut live) + 1);
    assert!(turns > 32);
    live.run(2, &[]);
    live.left(140);
    let start = live.m.cycle() / live.tick;
    let first = backs(&live.run(40, &[]))[0] - start;
    assert!((32..36).contains(&first), "{first} ticks");
    assert_eq!(live.around.counts.get(&counter::RETRY_TIMEOUT), Some(&1));
    assert_eq!(live.around.counts.get(&counter::RETRY_FAST_TIMER), None);
}

/// Nobody serves them: they take no turns.
#[test]
fn qps_in_an_rnr_wait_are_no_crowd() {
    let mut live = Live::new(|r| (0..60).for_each(|_| _ = r.send(send_op::SEND, 10, true)));
    let others = crowd(&mut live);
    // RNR timer code 0: 655 ms.
    let naks: Vec<_> = (2..2 + others).map(|q| RxMeta { qpn: q.to_bits(), ..nak(100, 0x20) }).collect();
    live.run(200, &naks);
    live.left(140);
    let start = live.m.cycle() / live.tick;
    let first = backs(&live.run(100, &[]))[0] - start;
    println!("fires {first} ticks after a packet, beside {others} in an RNR wait");
    assert!((5..11).contains(&first), "{first}");
}

/// A crowd that is served one by one takes its turns to the last: those before it no longer wait, but it has waited for them.
#[test]
fn the_last_of_a_crowd_waits_for_those_that_were_before_it() {
    let mut live = Live::new(|r| (0..100).for_each(|_| _ = r.send(send_op::SEND, 10, true)));
    let others = crowd(&mut live);
    live.left(140);
    // Three quarters of a turn each.
    for q in 2..2 + others {
        let answer = RxMeta { qpn: q.to_bits(), ..ack(100) };
        assert_eq!(backs(&live.run(if q % 2 == 0 { 1 } else { 2 }, &[answer])), [] as [u64; 0], "before QP {q}");
    }
    live.run(1, &[ack(140)]);
    // And it is forgotten when it is over, with the round trip that it made.
    for psn in 141..180 {
        live.left(psn);
        live.run(4, &[]);
        live.run(1, &[ack(psn)]);
    }
    live.left(180);
    let start = live.m.cycle() / live.tick;
    let first = backs(&live.run(100, &[]))[0] - start;
    println!("fires {first} ticks after a packet");
    assert!((5..14).contains(&first), "{first}");
}

/// Responses to a READ that was asked for again say nothing of one behind it, nor do they end what firings have doubled: its own
/// response does.
#[test]
fn data_of_a_repeated_read_settles_nothing() {
    let mut live = Live::new(|r| {
        (0..20).for_each(|_| _ = r.send(send_op::SEND, 10, true));
        r.send(send_op::READ, 30 * 1024, true).send(send_op::READ, 2048, true).send(send_op::SEND, 10, true);
    });
    for psn in 100..120 {
        live.left(psn);
        live.run(12, &[]);
        live.run(1, &[ack(psn)]);
    }
    // The first READ fires some times, and is asked for again each time.
    live.left(120);
    let mut fired = 0;
    while fired < 3 {
        if !backs(&live.run(1, &[])).is_empty() {
            fired += 1;
            live.left_again(120);
        }
    }
    live.run(1, &[data(op::READ_RESPONSE_FIRST, 120, 1024)]);
    // The second READ leaves, once.
    live.left(150);
    let next = |live: &mut Live, psns: std::ops::Range<u64>| {
        for psn in psns {
            let opcode = if psn == 149 { op::READ_RESPONSE_LAST } else { op::READ_RESPONSE_MIDDLE };
            assert_eq!(backs(&live.run(1, &[data(opcode, psn, 1024)])), [] as [u64; 0]);
        }
    };
    next(&mut live, 121..140);
    // Now they stop: three times doubled.
    let start = live.m.cycle() / live.tick;
    let first = backs(&live.run(1000, &[]))[0] - start;
    println!("fires {first} ticks after the last response");
    assert!((8 * 13 - 8..8 * 20).contains(&first), "{first}");
    live.left_again(140);
    next(&mut live, 140..150);
    // Of the READs all is asked for again: so nothing of them settles. What leaves for the first time and is answered does.
    live.left_again(150);
    live.run(1, &[data(op::READ_RESPONSE_FIRST, 150, 1024)]);
    live.run(1, &[data(op::READ_RESPONSE_LAST, 151, 1024)]);
    live.left(152);
    live.run(12, &[]);
    live.run(1, &[ack(152)]);
    live.around.qps[1].send(send_op::SEND, 10, true);
    live.left(153);
    let start = live.m.cycle() / live.tick;
    let first = backs(&live.run(1000, &[]))[0] - start;
    assert!((13..24).contains(&first), "{first}");
}

/// A stream of READs settles by those that are asked for once, though each waits behind the response before.
#[test]
fn a_stream_of_reads_settles_by_the_first_that_was_asked_for_once() {
    let mut live = Live::new(|r| (0..100).for_each(|_| _ = r.send(send_op::READ, 2048, true)));
    let mut psn = 100;
    let answer = |live: &mut Live, psn: u64| {
        let opcode = if psn % 2 == 1 { op::READ_RESPONSE_LAST } else { op::READ_RESPONSE_FIRST };
        live.run(2, &[data(opcode, psn, 1024)])
    };
    for _ in 0..20 {
        live.left(psn);
        live.run(12, &[]);
        (psn..psn + 2).for_each(|psn| _ = answer(&mut live, psn));
        psn += 2;
    }
    live.left(psn);
    let mut fired = 0;
    while fired < 3 {
        if !backs(&live.run(1, &[])).is_empty() {
            fired += 1;
            live.left_again(psn);
        }
    }
    // From now on there is always one more on its way.
    for _ in 0..10 {
        live.left(psn + 2);
        (psn..psn + 2).for_each(|psn| assert_eq!(backs(&answer(&mut live, psn)), [] as [u64; 0]));
        psn += 2;
    }
    let start = live.m.cycle() / live.tick;
    let first = backs(&live.run(1000, &[]))[0] - start;
    println!("fires {first} ticks after the last response");
    assert!((13..40).contains(&first), "{first}");
}
