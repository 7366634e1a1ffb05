//! What the requester does, in random traffic and one by one, held against the model.

use super::{messages::spoil, *};

fn start_psn(rng: &mut ChaCha8Rng) -> u32 {
    if rng.random_bool(0.5) { 0xff_ff00 + rng.random_range(0..256) } else { rng.random_range(0..0x100_0000) }
}

/// Posts, loses, goes back, breaks; everything that is sound is delivered, in order, within the limits.
fn random_traffic(seed: u64, cycles: usize, loss: f64, breaks: bool) {
    for late in [false, true] {
        println!("seed {seed}, late {late}");
        traffic(Bench::with(seed, 8, late), cycles, loss, breaks);
    }
}

fn traffic(mut b: Bench, cycles: usize, loss: f64, breaks: bool) {
    let active = b.active;
    (b.raw, b.paced) = (true, true);
    for q in 0..active {
        let (psn, mtu) = (start_psn(&mut b.rng), b.rng.random_range(1..=5));
        b.load_now(q, psn, mtu);
    }
    b.loss = loss;
    let mut changes = 0;
    for step in 0..verilate::scale(cycles) {
        if step % 512 == 0 {
            b.stall = [0.0, 0.2, 0.8][b.rng.random_range(0..3)];
            b.delay = [10, 200, 1000][b.rng.random_range(0..3)];
        }
        let q = b.rng.random_range(0..active);
        if b.rng.random_bool(0.15) && b.room(q) && b.loading.is_none_or(|l| l.0 != q) {
            let mut message = b.random_message(q);
            if breaks && b.rng.random_bool(0.01) {
                spoil(&mut b.rng, &mut message, b.pairs[q].raw);
            }
            b.post(q, message);
        }
        let now = b.m.cycle();
        let pair = &b.pairs[q];
        let idle = b.back.is_none() && b.loading.is_none();
        if idle && !pair.failed && pair.acked != pair.high {
            let sent = ahead(pair.high, pair.acked);
            if b.rng.random_bool(0.002) || now - pair.quiet > 4000 {
                // Lost, or told so by a NAK: anywhere between what is acknowledged and what was sent.
                let pair = &b.pairs[q];
                let psn = if now - pair.quiet > 4000 {
                    pair.acked
                } else {
                    (pair.acked + b.rng.random_range(0..sent.min(300))) & 0xff_ffff
                };
                let psn = if ahead(psn, pair.peer) < 0x80_0000 { pair.acked } else { psn };
                if breaks && b.rng.random_bool(0.3) {
                    // The driver's fault: a WQE in flight is another one now.
                    let n = b.rng.random_range(b.pairs[q].oldest..b.pairs[q].messages.len());
                    let mut message = b.pairs[q].messages[n].clone();
                    if message.began.is_some() && message.bad.is_none() && message.changed.is_none() {
                        message.length ^= 1;
                        b.write(q, &message);
                        b.pairs[q].messages[n].changed = Some(b.pairs[q].epoch);
                        changes += 1;
                    }
                }
                b.go_back(q, psn);
                b.pairs[q].quiet = now;
            }
        }
        let pair = &b.pairs[q];
        if breaks && idle && !pair.failed && pair.psn != pair.acked && b.rng.random_bool(0.0002) {
            let psn = pair.acked;
            b.frame_faults.push_back((q, pair.epoch, psn, cause::KEY_BOUNDS as u64));
        }
        if b.pairs[q].broken && b.back.is_none() && b.loading.is_none() && now - b.pairs[q].quiet > 1000 {
            let (psn, mtu) = (start_psn(&mut b.rng), b.rng.random_range(1..=5));
            b.expected_faults.retain(|e| e.0 != q);
            b.load_now(q, psn, mtu);
        }
        b.cycle();
    }
    // All that is sound is delivered.
    (b.loss, b.delay) = (0.0, 50);
    let start = b.m.cycle();
    loop {
        let open: Vec<usize> =
            (0..active).filter(|q| !b.pairs[*q].broken && b.pairs[*q].oldest < b.pairs[*q].messages.len()).collect();
        if open.is_empty() {
            break;
        }
        for q in open {
            let pair = &b.pairs[q];
            let silent = b.m.cycle() - pair.quiet > 4000;
            if b.back.is_none() && b.loading.is_none() && !pair.failed && pair.acked != pair.high && silent {
                let psn = pair.acked;
                b.pairs[q].quiet = b.m.cycle();
                b.go_back(q, psn);
            }
        }
        b.cycle();
        let stuck: Vec<_> = (0..active)
            .filter(|q| b.pairs[*q].oldest < b.pairs[*q].messages.len())
            .map(|q| (q, b.pairs[q].oldest, b.pairs[q].at, b.pairs[q].messages.len(), b.pairs[q].broken))
            .collect();
        assert!(b.m.cycle() - start < 300_000, "stuck: {stuck:?}, open {:b}", b.m.get("open"));
    }
    let [new, again, records, lands, backs, faults, probes, locals] = b.seen;
    println!(
        "{} messages, {new} packets, {again} again, {records} records, {lands} landings, {backs} go backs, {faults} faults, \
         {probes} probes, {locals} local operations, {changes} changed, {} loads",
        b.done, b.loads
    );
    assert!(b.done > 200 && backs > 5 && probes > 20 && locals > 20 && b.paces_done > 100);
}

/// ACKs open it, and go backs, yet it sends no more than a turn until it is kicked, which it then does.
#[test]
fn a_paced_qp_sends_a_turn_for_each_kick() {
    let mut b = Bench::new(1, 3);
    b.paced = true;
    b.load_now(2, 100, 3);
    b.delay = 20;
    for _ in 0..30 {
        b.write_of_512(2);
    }
    b.pairs[2].fetched = b.pairs[2].posted;
    for kicks in 0..5 {
        for cycle in 0..2000 {
            b.paces.clear();
            b.cycle();
            if cycle == 1000 && b.pairs[2].psn != b.pairs[2].acked {
                b.go_back(2, b.pairs[2].acked);
            }
        }
        // Eight frames of 512 bytes.
        assert_eq!(b.frames, [8, 16, 24, 30, 30][kicks], "after {kicks} kicks");
        b.paces.insert(2, 0);
        b.cycle();
    }
    assert_eq!(b.done, 30);
}

/// It waits for a kick that will not come.
#[test]
fn a_qp_whose_rate_ends_goes_on() {
    let mut b = Bench::new(1, 3);
    b.paced = true;
    b.load_now(2, 100, 3);
    for _ in 0..30 {
        b.write_of_512(2);
    }
    b.pairs[2].fetched = b.pairs[2].posted;
    for _ in 0..2000 {
        b.paces.clear();
        b.cycle();
    }
    assert_eq!(b.frames, 8);
    b.paced = false;
    b.pace(2, 0);
    (0..2000).for_each(|_| b.cycle());
    assert_eq!((b.frames, b.done), (30, 30));
}

#[test]
fn messages_go_out_in_order() {
    random_traffic(1, 60_000, 0.0, false);
}

/// The record of a local operation may be found, and the operation executed, before the completer is told of it: its kick is not lost.
#[test]
fn a_local_operation_that_is_done_before_it_is_told_of_holds_nobody_back() {
    for wait in 0..12 {
        let mut b = Bench::new(wait, 1);
        b.load_now(0, 100, 3);
        b.stall = 0.0;
        while b.seen[7] == 0 {
            let local = b.random_message(0);
            if local.local() {
                b.deaf = true;
                b.post(0, local);
                let message = Message { signaled: true, fence: false, ..b.random_message(0) };
                let message = if message.reads() || message.local() { b.random_frame(0) } else { message };
                b.post(0, message);
                let records = b.seen[2];
                while b.seen[2] == records {
                    b.cycle();
                }
                b.local(0, 100);
                b.early = 1;
            }
        }
        (0..wait).for_each(|_| b.cycle());
        b.deaf = false;
        let end = b.m.cycle() + 2000;
        while b.done < 2 {
            assert!(b.m.cycle() < end, "wait {wait}: the QP is closed for ever");
            b.cycle();
        }
    }
}

/// A late ACK, while a pick's rows wait for the engine, lets the host write over a WQE that is then sent again: no fault of it.
#[test]
fn a_wqe_that_was_acknowledged_after_its_pick_is_no_fault() {
    random_traffic(14371303253874534969, 60_000, 0.0, false);
}

/// The same, of the inline data behind its first block.
#[test]
fn inline_data_of_what_was_acknowledged_as_it_was_sent_may_be_another_wqes() {
    random_traffic(7459245043871873599, 60_000, 0.0, false);
}

#[test]
fn lost_packets_are_sent_again() {
    random_traffic(2, 60_000, 0.02, false);
}

#[test]
fn what_is_wrong_is_reported() {
    random_traffic(3, 60_000, 0.01, true);
}

/// A go back for a QP that was reset since is dropped and counted.
#[test]
fn a_stale_go_back_is_dropped() {
    let mut b = Bench::new(1, 1);
    b.load_now(0, 5, 3);
    let stale = b.stale;
    b.go_back(0, 5);
    b.m.set("back.data.generation", b.pairs[0].generation ^ 1);
    while b.back.is_some() {
        b.cycle();
    }
    b.cycle();
    assert_eq!(b.stale, stale + 1);
}

/// Cycles per 64-byte message, `burst` messages posted at a time.
fn rate(active: usize, burst: usize) -> f64 {
    let mut b = Bench::new(9, active);
    for q in 0..active {
        b.load_now(q, 0, 3);
    }
    (b.stall, b.delay) = (0.0, 100);
    let (mut start, mut first) = (0, 0);
    while b.frames < 4000 {
        if b.frames < 1000 {
            (start, first) = (b.m.cycle(), b.frames);
        }
        for q in 0..active {
            let pair = &b.pairs[q];
            if pair.consumed == pair.posted || burst > 1 && b.room(q) && pair.posted.wrapping_sub(pair.consumed) < 20 {
                for _ in 0..burst {
                    let message = Message {
                        index: b.pairs[q].posted,
                        blocks: 1,
                        claims: 1,
                        opcode: send_op::WRITE,
                        signaled: true,
                        solicited: false,
                        fence: false,
                        inline_data: None,
                        sges: vec![(1 << 32, 7, 64)],
                        length: 64,
                        va: 5,
                        rkey: 6,
                        imm: 0,
                        bad: None,
                        began: None,
                        changed: None,
                    };
                    b.post(q, message);
                }
            }
            b.pairs[q].fetched = b.pairs[q].posted;
        }
        b.cycle();
    }
    let cycles = (b.m.cycle() - start) as f64 / (b.frames - first) as f64;
    println!("{active} QPs, {burst} at a time: {cycles:.2} cycles per message");
    cycles
}

#[test]
fn small_messages_are_fast() {
    assert!(rate(32, 1) <= 5.1);
    assert!(rate(32, 4) <= 5.0);
    assert!(rate(1, 8) <= 10.0);
    assert!(rate(4, 1) <= 8.0);
}
