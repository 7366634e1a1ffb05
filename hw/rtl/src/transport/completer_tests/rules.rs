//! What the completer does, rule by rule and in random sequences, held against the reference.

use super::{live::*, *};

#[test]
fn random_responses_match_the_reference() {
    let mut m = model();
    for seed in 0..verilate::scale(24) as u64 {
        let mut rng = verilate::rng(seed);
        let mut qps = qps();
        for r in &mut qps {
            r.mtu = 256 << rng.random_range(0..5);
            r.psn = [0, M24 - 9, rng.random::<u64>() & M24][rng.random_range(0..3)];
            r.sent = r.psn;
            r.retry_count = rng.random_range(0..8);
            r.retry = r.retry_count;
            r.rnr_count = rng.random_range(0..8);
            r.rnr_retry = r.rnr_count;
            if rng.random_bool(0.1) {
                r.state = rng.random_range(0..8);
            }
            let mut reads = 0;
            for _ in 0..rng.random_range(0..100) {
                use send_op::*;
                let mut opcode = [SEND, WRITE, WRITE_IMM, READ, [COMPARE_SWAP, FETCH_ADD, ATOMIC_WRITE][reads % 3]]
                    [rng.random_range(0..5)];
                if opcode >= READ {
                    reads += 1;
                    if reads > 16 {
                        opcode = send_op::SEND;
                    }
                }
                let length = [0, 1, r.mtu, rng.random_range(0..6 * r.mtu)][rng.random_range(0..4)];
                let length = if opcode > READ { 8 } else { length };
                r.send(opcode, length, rng.random_bool(0.6));
            }
        }
        let mut shadow = qps.clone();
        let metas: Vec<RxMeta> = (0..800)
            .map(|_| {
                let r = &mut shadow[rng.random_range(0..QPS)];
                let flight = r.sent.wrapping_sub(r.psn) & M24;
                let mut x = response(r.qpn, op::ACK, r.psn + rng.random_range(0..=flight.min(6)));
                // Peers of some QPs count their receives, and rarely count wrong.
                if r.qpn % 2 == 1 {
                    let code = if rng.random_bool(0.1) { 31 } else { rng.random_range(0..16u64) };
                    x.syndrome = code.to_bits();
                    let wild = rng.random_bool(0.1);
                    let ahead = if wild { rng.random_range(0..200) } else { rng.random_range(0..3) };
                    x.msn = (r.oldest as u64 + ahead).to_bits();
                }
                (x.rows, x.buf) = (rng.random_range(1..70u64).to_bits(), rng.random_range(0..1u64 << 20).to_bits());
                let oldest = r.messages.get(r.oldest);
                match rng.random_range(0..40) {
                    0 => x.syndrome = 0x60u64.to_bits(),
                    1 => x.syndrome = (0x20 | rng.random_range(0..32u64)).to_bits(),
                    2 if rng.random_bool(0.2) => x.syndrome = (0x61 + rng.random_range(0..4u64)).to_bits(),
                    3 => x.psn = ((r.psn + rng.random_range(0..1000)) & M24).to_bits(),
                    5 => x.sip = (PEER ^ 1).to_bits(),
                    6 => x.pkey = 0x7fffu64.to_bits(),
                    4 => x.psn = (r.psn.wrapping_sub(rng.random_range(1..9)) & M24).to_bits(),
                    _ => {
                        if let Some(s) = oldest.filter(|s| s.reads()) {
                            // The next response packet, rarely not; rarely the answer to something else.
                            let at = (r.psn.wrapping_sub(s.psn) & M24) * r.mtu;
                            let length = if s.puts() { 0 } else { s.length };
                            let n = (length - at).min(r.mtu);
                            let opcode = match (at == 0, at + n == length) {
                                _ if s.atomic() != rng.random_bool(0.01) => op::ATOMIC_ACK,
                                (true, true) => op::READ_RESPONSE_ONLY,
                                (true, false) => op::READ_RESPONSE_FIRST,
                                (false, true) => op::READ_RESPONSE_LAST,
                                _ => op::READ_RESPONSE_MIDDLE,
                            };
                            let n = if rng.random_bool(0.01) { rng.random_range(0..5000) } else { n };
                            x = RxMeta {
                                rows: x.rows,
                                buf: x.buf,
                                msn: x.msn,
                                syndrome: x.syndrome,
                                ..data(opcode, r.psn, n)
                            };
                            x.qpn = r.qpn.to_bits();
                            if rng.random_bool(0.05) {
                                x.psn = ((r.psn + rng.random_range(0..3)) & M24).to_bits();
                            }
                        }
                    }
                }
                r.receive(&x);
                x
            })
            .collect();
        let stall = [Stall::Never, Stall::Random, Stall::Rate(0.3)][seed as usize % 3];
        check(&mut m, &mut qps, &metas, stall, seed);
    }
}

/// An outcome in words.
fn words((_, ops, back): &Outcome) -> String {
    let mut text = vec![];
    for op in ops {
        if op.write {
            text.push(format!("write {:x} {}", op.va.to_u64(), op.len.to_u64()));
        }
        let c = op.completion;
        if c.valid {
            text.push(format!("cqe {} status {}", c.wqe_index.to_u64(), c.status.to_u64()));
        }
        if c.cause.any() {
            text.push(format!("end {}", cause::NAMES[c.cause.to_u64() as usize].0));
        }
    }
    if let Some(b) = back {
        text.push(format!("back {} at {} of {}", b.psn.to_u64(), b.offset.to_u64(), b.record.to_u64()));
    }
    if text.is_empty() { "nothing".into() } else { text.join(", ") }
}

/// Responses to one QP, and what each must lead to: by the reference, and by the hardware.
fn rule(setup: impl FnOnce(&mut Reference), script: &[(RxMeta, &str)]) {
    let mut qps = qps();
    setup(&mut qps[1]);
    let mut twin = qps[1].clone();
    for (i, (x, want)) in script.iter().enumerate() {
        assert_eq!(words(&twin.receive(x)), *want, "response {i}");
    }
    let metas: Vec<RxMeta> = script.iter().map(|(x, _)| *x).collect();
    for (seed, stall) in [Stall::Never, Stall::Random].into_iter().enumerate() {
        check(&mut model(), &mut qps.clone(), &metas, stall, seed as u64);
    }
}

/// Two SENDs (100, 101), a READ of 2,500 bytes (102 to 104), a WRITE (105).
fn usual(r: &mut Reference) {
    r.send(send_op::SEND, 10, true).send(send_op::SEND, 10, false);
    r.send(send_op::READ, 2500, true).send(send_op::WRITE, 10, true);
}

#[test]
fn an_ack_completes_all_before_it_in_order() {
    rule(
        |r| _ = r.send(send_op::SEND, 10, true).send(send_op::SEND, 10, false).send(send_op::SEND, 10, true),
        &[(ack(102), "cqe 0 status 0, cqe 3 status 0"), (ack(102), "nothing"), (ack(103), "nothing")],
    );
}

#[test]
fn an_ack_within_a_message_completes_nothing() {
    rule(|r| _ = r.send(send_op::SEND, 3000, true), &[(ack(101), "nothing"), (ack(102), "cqe 0 status 0")]);
}

#[test]
fn a_read_response_lands_and_completes_with_its_last_packet() {
    rule(
        usual,
        &[
            (data(op::READ_RESPONSE_FIRST, 102, 1024), "cqe 0 status 0, write 1000 1024"),
            (data(op::READ_RESPONSE_MIDDLE, 103, 1024), "write 1400 226, write 9000 798"),
            (data(op::READ_RESPONSE_LAST, 104, 452), "write 931e 452, cqe 3 status 0"),
            (ack(105), "cqe 6 status 0"),
        ],
    );
}

#[test]
fn the_answer_to_an_atomic_lands_behind_its_operands_and_completes_it() {
    let two = |r: &mut Reference| {
        r.send(send_op::FETCH_ADD, 8, true).send(send_op::COMPARE_SWAP, 8, true).send(send_op::SEND, 10, true);
    };
    let answer = |psn| data(op::ATOMIC_ACK, psn, 8);
    rule(
        two,
        &[
            (answer(100), "write 9000 8, cqe 0 status 0"),
            (answer(100), "nothing"),
            (answer(101), "write 9000 8, cqe 1 status 0"),
            (ack(102), "cqe 3 status 0"),
        ],
    );
    // Lost ones are asked for again, from the first on.
    rule(
        two,
        &[
            (answer(101), "back 100 at 0 of 0"),
            (answer(100), "write 9000 8, cqe 0 status 0"),
            (ack(102), "back 101 at 0 of 1"),
            (answer(101), "write 9000 8, cqe 1 status 0"),
        ],
    );
    // Nor is a READ answered with that, or an atomic with data.
    let end = "cqe 0 status 7, end BAD_RESPONSE";
    for wrong in [data(op::READ_RESPONSE_ONLY, 100, 8), data(op::READ_RESPONSE_FIRST, 100, 1024)] {
        rule(two, &[(wrong, end), (answer(100), "nothing")]);
    }
    rule(|r| _ = r.send(send_op::READ, 8, true), &[(answer(100), end)]);
}

#[test]
fn an_atomic_write_is_answered_like_a_read_of_no_bytes() {
    let two = |r: &mut Reference| {
        r.send(send_op::ATOMIC_WRITE, 8, true).send(send_op::SEND, 10, true).send(send_op::ATOMIC_WRITE, 8, false);
    };
    let answer = |psn, n| data(op::READ_RESPONSE_ONLY, psn, n);
    rule(two, &[(answer(100, 0), "cqe 0 status 0"), (answer(100, 0), "nothing"), (answer(102, 0), "cqe 1 status 0")]);
    // A lost answer is asked for again; an ACK is none.
    rule(two, &[(answer(102, 0), "back 100 at 0 of 0"), (answer(100, 0), "cqe 0 status 0")]);
    rule(two, &[(ack(101), "back 100 at 0 of 0")]);
    rule(two, &[(ack(100), "nothing")]);
    let end = "cqe 0 status 7, end BAD_RESPONSE";
    for wrong in
        [answer(100, 8), answer(100, 4), data(op::ATOMIC_ACK, 100, 8), data(op::READ_RESPONSE_FIRST, 100, 1024)]
    {
        rule(two, &[(wrong, end), (answer(100, 0), "nothing")]);
    }
}

#[test]
fn an_answer_beyond_a_read_is_an_implied_nak() {
    rule(
        usual,
        &[
            (ack(105), "cqe 0 status 0, back 102 at 0 of 2"),
            (ack(105), "nothing"),
            (data(op::READ_RESPONSE_FIRST, 102, 1024), "write 1000 1024"),
            (data(op::READ_RESPONSE_LAST, 104, 452), "back 103 at 1024 of 2"),
        ],
    );
}

#[test]
fn responses_of_others_are_not_heard() {
    let foreign = RxMeta { sip: (PEER ^ 1).to_bits(), ..ack(100) };
    let key = RxMeta { pkey: 0x7fffu64.to_bits(), ..ack(100) };
    rule(usual, &[(foreign, "nothing"), (key, "nothing"), (ack(100), "cqe 0 status 0")]);
}

#[test]
fn an_unsolicited_ack_within_a_read_says_nothing_about_it() {
    rule(usual, &[(ack(103), "cqe 0 status 0"), (ack(104), "nothing")]);
}

#[test]
fn a_response_of_wrong_length_ends_the_qp() {
    let end = "cqe 0 status 0, cqe 3 status 7, end BAD_RESPONSE";
    rule(usual, &[(data(op::READ_RESPONSE_FIRST, 102, 1020), end), (ack(105), "nothing")]);
    rule(usual, &[(data(op::READ_RESPONSE_ONLY, 102, 1024), end)]);
}

#[test]
fn nak_sequence_error_acknowledges_what_is_before_it_and_goes_back() {
    rule(usual, &[(nak(101, 0x60), "cqe 0 status 0, back 101 at 0 of 1"), (ack(101), "nothing")]);
    rule(|r| _ = r.send(send_op::WRITE, 5000, true), &[(nak(102, 0x60), "back 102 at 2048 of 0")]);
}

#[test]
fn retries_are_counted_and_reloaded_by_progress() {
    rule(
        |r| {
            (r.retry_count, r.retry) = (1, 1);
            r.send(send_op::WRITE, 5000, true);
        },
        &[
            (nak(100, 0x60), "back 100 at 0 of 0"),
            (ack(100), "nothing"),
            (nak(101, 0x60), "back 101 at 1024 of 0"),
            (nak(101, 0x60), "cqe 0 status 12, end RETRY_EXCEEDED"),
        ],
    );
}

#[test]
fn fatal_naks_complete_their_message_with_an_error() {
    for (syndrome, status, name) in
        [(0x61, 9, "NAK_INVALID_REQUEST"), (0x62, 10, "NAK_REMOTE_ACCESS"), (0x63, 11, "NAK_REMOTE_OPERATION")]
    {
        let want = format!("cqe 0 status 0, cqe 1 status {status}, end {name}");
        rule(usual, &[(nak(101, syndrome), &want), (ack(105), "nothing")]);
        // Within a READ it is about that READ.
        let want = format!("cqe 0 status 0, cqe 3 status {status}, end {name}");
        rule(usual, &[(nak(103, syndrome), &want)]);
    }
}

#[test]
fn rnr_retries_are_counted_unless_they_are_seven() {
    rule(
        |r| {
            (r.rnr_count, r.rnr_retry) = (1, 1);
            r.send(send_op::SEND, 10, true);
        },
        &[(nak(100, 0x2c), "nothing"), (nak(100, 0x2c), "cqe 0 status 13, end RNR_RETRY_EXCEEDED")],
    );
    rule(|r| _ = r.send(send_op::SEND, 10, true), &[(nak(100, 0x2c), "nothing"); 9]);
}

#[test]
fn an_ack_takes_five_cycles_read_data_six_and_a_further_message_three() {
    let mut m = model();
    let mut qps = qps();
    (0..100).for_each(|_| _ = qps[1].send(send_op::SEND, 10, true));
    let metas: Vec<_> = (100..200).map(ack).collect();
    let (cycles, _) = check(&mut m, &mut qps.clone(), &metas, Stall::Never, 1);
    println!("ACK: {:.2} cycles", cycles as f64 / 100.0);
    assert!(cycles <= 510);
    let (cycles, _) = check(&mut m, &mut qps, &metas[99..], Stall::Never, 1);
    println!("coalesced ACK: {:.2} cycles per message", cycles as f64 / 100.0);
    assert!(cycles <= 310);
    let mut qps = self::qps();
    qps[1].send(send_op::READ, 100 * 1024, true);
    let metas: Vec<_> = (0..100)
        .map(|i| {
            data(
                [op::READ_RESPONSE_FIRST, op::READ_RESPONSE_MIDDLE, op::READ_RESPONSE_LAST]
                    [(i > 0) as usize + (i == 99) as usize],
                100 + i,
                1024,
            )
        })
        .collect();
    let (cycles, _) = check(&mut m, &mut qps, &metas, Stall::Never, 1);
    println!("READ response: {:.2} cycles", cycles as f64 / 100.0);
    assert!(cycles <= 615);
}

#[test]
fn a_failed_wqe_completes_in_its_turn() {
    let setup = |r: &mut Reference| _ = r.send(send_op::SEND, 10, true).send(send_op::SEND, 10, true);
    let op = |text: &str| Happens::Op(text.into());
    let what = |seen: Vec<(u64, Happens)>| seen.into_iter().map(|(_, e)| e).collect::<Vec<_>>();
    // A WQE that was not sent: behind two that were.
    let mut live = Live::new(setup);
    live.fault(102, 1);
    assert_eq!(what(live.run(2, &[])), []);
    assert_eq!(what(live.run(2, &[ack(100)])), [op("cqe 0 status 0")]);
    assert_eq!(what(live.run(2, &[ack(101)])), [op("cqe 1 status 0"), op("cqe 3 status 2")]);
    assert_eq!(what(live.run(2, &[ack(101)])), []);
    // A frame of the second message.
    let mut live = Live::new(setup);
    live.fault(101, 0);
    assert_eq!(what(live.run(2, &[ack(100)])), [op("cqe 0 status 0"), op("cqe 1 status 4")]);
    // A frame that was acknowledged all the same: send on from where we are.
    let mut live = Live::new(setup);
    live.run(2, &[ack(100)]);
    live.fault(100, 0);
    assert_eq!(what(live.run(2, &[])), [Happens::Back(101)]);
}

#[test]
fn a_local_operation_is_done_when_all_before_it_is() {
    let op = |text: &str| Happens::Op(text.into());
    let what = |seen: Vec<(u64, Happens)>| seen.into_iter().map(|(_, e)| e).collect::<Vec<_>>();
    let local = |r: &mut Reference| _ = r.send(send_op::LOCAL_INV, 0xabcd_ef01, true);
    let killed = [op("kills abcdef01"), op("cqe 0 status 0")];
    // With nothing else in flight, and once only; whatever then looks like another word about it.
    let mut live = Live::new(local);
    live.local(100, true);
    assert_eq!(what(live.run(2, &[])), killed);
    assert_eq!(live.around.kicks[&1], 1);
    for asks in [true, false] {
        live.local(100, asks);
        assert_eq!(what(live.run(2, &[ack(99)])), []);
    }
    // Behind two messages, the second a READ or not; told before, between and behind their answers. Nobody tells of one without a signal.
    let read = |psn| RxMeta { payload: 0u64.to_bits(), ..response(1, op::READ_RESPONSE_ONLY, psn) };
    for (second, answer) in [(send_op::WRITE, ack(101)), (send_op::READ, read(101))] {
        for (told, signaled) in [(0, true), (1, true), (2, true), (0, false), (1, false), (2, false)] {
            let mut live = Live::new(|r| {
                r.send(send_op::SEND, 10, true).send(second, 0, true).send(send_op::LOCAL_INV, 0x77, signaled);
            });
            let mut seen = vec![];
            for i in 0..3 {
                if i == told {
                    live.local(102, true);
                }
                seen.extend(what(live.run(2, [&[ack(100)][..], &[answer], &[]][i])));
            }
            let all = [op("cqe 0 status 0"), op("cqe 1 status 0"), op("kills 77"), op("cqe 3 status 0")];
            assert_eq!(seen, all[..if signaled { 4 } else { 3 }], "told {told}, {second}");
            assert_eq!(what(live.run(300, &[ack(101)])), []);
        }
    }
    // Nobody was asked for an answer: sent again at once, at no price, and told again.
    let mut live = Live::new(|r| _ = r.send(send_op::SEND, 10, false).send(send_op::LOCAL_INV, 0x77, true));
    live.local(101, false);
    assert_eq!(what(live.run(2, &[])), [Happens::Back(100)]);
    live.local(101, true);
    assert_eq!(what(live.run(2, &[ack(100)])), [op("kills 77"), op("cqe 1 status 0")]);
    assert!(!live.around.counts.contains_key(&counter::RETRY_TIMEOUT));
}

#[test]
fn a_fault_behind_messages_that_asked_for_no_ack_sends_them_again() {
    for blocks in [0, 1] {
        let mut live = Live::new(|r| _ = r.send(send_op::SEND, 10, false).send(send_op::SEND, 10, blocks == 0));
        // Of the second message, or behind both; nothing that asks for an answer has left.
        live.fault(101 + blocks, blocks);
        let seen = live.run(timers::FIRST + 10, &[]);
        assert_eq!(seen.into_iter().map(|(_, e)| e).collect::<Vec<_>>(), [Happens::Back(100)]);
        assert_eq!(live.run(300, &[]), []);
    }
}

/// So many leave at once that not each gets a call of its own: the scanner finds the others. Nothing is done before it has left, and nothing is sent
/// again, whatever failed.
#[test]
fn what_nobody_acknowledges_completes_when_it_has_left() {
    let mut live = Live::new(|_| ());
    for (q, r) in live.around.qps.iter_mut().enumerate() {
        *r = Reference { alone: true, ..qp(q as u64) };
        (0..4).for_each(|_| _ = r.send(send_op::SEND, 2000, true));
        load(&mut live.m, q, r);
    }
    let done = |seen: &[(u64, Happens)]| {
        seen.iter().filter(|(_, e)| matches!(e, Happens::Op(s) if s.ends_with("status 0"))).count()
    };
    for q in 0..QPS as u64 {
        live.leaves_of(q, 100, false, false);
    }
    assert_eq!(done(&live.run(4, &[])), 0, "half of a message");
    for q in 0..QPS as u64 {
        (101..104).for_each(|psn| live.leaves_of(q, psn, false, false));
    }
    assert_eq!(done(&live.run(20, &[])), 2 * QPS);
    // Answers of anybody say nothing to it.
    assert_eq!(live.run(2, &[ack(104), nak(104, 0x60), nak(104, 0x61)]), []);
    live.fault(105, 0);
    assert_eq!(live.run(3000, &[]), []);
    live.leaves_of(1, 104, false, false);
    assert_eq!(
        live.run(4, &[]).into_iter().map(|(_, e)| e).collect::<Vec<_>>(),
        [Happens::Op("cqe 3 status 4".into())]
    );
}

/// A raw frame is done when it has left, and those before it; its PSN is nobody's otherwise.
#[test]
fn raw_frames_complete_when_they_have_left() {
    let setup = |r: &mut Reference| _ = (0..4).fold(r, |r, i| r.send(send_op::SEND, 60, i != 1));
    let op = |text: &str| Happens::Op(text.into());
    let what = |seen: Vec<(u64, Happens)>| seen.into_iter().map(|(_, e)| e).collect::<Vec<_>>();
    let mut live = Live::new(setup);
    live.raw_left(100);
    assert_eq!(what(live.run(2, &[])), [op("cqe 0 status 0")]);
    // Two leave before the call for the first is made.
    live.raw_left(101);
    live.raw_left(102);
    assert_eq!(what(live.run(2, &[])), [op("cqe 3 status 0")]);
    // What is done, or was never sent, is not done again.
    live.raw_left(102);
    assert_eq!(what(live.run(2, &[])), []);
    live.raw_left(104);
    assert_eq!(what(live.run(2, &[])), []);
    // A failed frame completes in its turn.
    live.fault(103, 0);
    assert_eq!(what(live.run(2, &[])), [op("cqe 6 status 4")]);
    // No timer runs for them.
    let mut live = Live::new(setup);
    live.raw_left(100);
    assert_eq!(backs(&live.run(3000, &[])), [] as [u64; 0]);
}
