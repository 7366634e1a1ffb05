//! What the responder does, rule by rule and in random sequences, held against the reference.

use super::*;

#[test]
fn random_sequences_match_the_reference() {
    random_sequences(model());
}

#[test]
fn random_sequences_match_the_reference_where_blocks_come_late() {
    random_sequences(late_model());
}

fn random_sequences(mut m: Model) {
    let mut total: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in 0..verilate::scale(24) as u64 {
        let mut rng = verilate::rng(seed);
        let mut qps = qps();
        for r in &mut qps {
            r.kind = [qp_type::RC, qp_type::RC, qp_type::UC, qp_type::UD][r.qpn as usize % 4];
            r.mtu = 256 << rng.random_range(0..5);
            r.psn = [0, 1, M24, M24 - 3, 1 << 23, rng.random::<u64>() & M24][rng.random_range(0..6)];
            r.max_reads = rng.random_range(0..=16);
            r.answered = rng.random_bool(0.2).then_some(0);
            if rng.random_bool(0.1) {
                r.access = rng.random_range(0..16);
            }
            if rng.random_bool(0.1) {
                r.state = rng.random_range(0..8);
            }
            r.single = rng.random_bool(0.5);
            r.part = if r.single { 0 } else { rng.random_range(0..4) };
            let (n, size) = (rng.random_range(0..60), [64, r.mtu, 16 * r.mtu, 16 * r.mtu][rng.random_range(0..4)]);
            post(r, n, size, &mut rng);
        }
        // Every other seed, some take their receives from two shared queues, one of which is short.
        for (shared, n) in [(5, 400), (6, 40)].into_iter().filter(|_| seed % 2 == 1) {
            let mtu = qps[9].mtu;
            let queue = &mut qps[shared];
            (queue.state, queue.single, queue.part, queue.posted) = (qp_state::INIT, true, 0, 0);
            queue.wqes.clear();
            post(queue, n, 4 * mtu, &mut rng);
            for wqe in &mut queue.wqes {
                if rng.random_bool(0.1) {
                    wqe[0].2 = u64::from(HOLE) + rng.random_range(0..1 << 30);
                }
            }
            for r in qps.iter_mut().filter(|r| r.qpn > 8 && r.kind != qp_type::UC && (r.qpn % 3) as usize == shared % 3)
            {
                (r.single, r.part, r.posted, r.shared) = (true, 0, 0, Some(shared as u64));
                r.wqes.clear();
            }
        }
        // What to send follows a copy of the reference, so that most packets make sense.
        let mut shadow = qps.clone();
        let mut q = 0;
        let packets: Vec<Packet> = (0..800)
            .map(|_| {
                // In runs of one QP.
                if rng.random_bool(0.5) {
                    q = rng.random_range(0..QPS);
                }
                let r = &shadow[q];
                let mut p = next(r, &mut rng);
                if rng.random_bool(0.03) && !r.reads.is_empty() {
                    // A READ once more, from somewhere within it.
                    let from = r.reads.len().saturating_sub(18);
                    let (psn, va, rkey, len, atomic) = r.reads[rng.random_range(from..r.reads.len())];
                    let skip = rng.random_range(0..len.div_ceil(r.mtu).max(1));
                    p.opcode = if atomic != rng.random_bool(0.1) { op::FETCH_ADD } else { op::READ_REQUEST };
                    p.psn = (psn + skip) & M24;
                    p = p.payload(if atomic { 8 } else { 0 }).reth(va + skip * r.mtu, rkey, len - skip * r.mtu);
                }
                if rng.random_bool(0.06) {
                    match rng.random_range(0..12) {
                        0 | 1 => p.psn = (p.psn + rng.random_range(1..5)) & M24,
                        2 | 3 => p.psn = (p.psn.wrapping_sub(rng.random_range(1..5))) & M24,
                        4 => p.psn = (p.psn + (1 << 23)) & M24,
                        5 => p.opcode = rng.random_range(0..0x20),
                        6 => p.payload = rng.random_range(0..5000),
                        7 => p.dma_len += rng.random_range(1..3),
                        8 => p.pkey = [0, 0x7fff, 0x8001][rng.random_range(0..3)],
                        9 => (p.sip, p.rkey) = (p.sip ^ 1, p.rkey ^ 1),
                        10 => p.pad = Some(rng.random_range(0..4)),
                        _ => p.opcode |= 0x20 * rng.random_range(0..8u8),
                    }
                }
                if p.qpn == 0 {
                    p.raw = rng.random_bool(0.9);
                }
                if rng.random_bool(0.01) {
                    p.qpn = rng.random_range(0..1 << 24);
                }
                // Opcodes of responses do not come here, nor those that no unreliable transport has.
                let response = crate::transport::opcode::is_response((p.opcode as u64).to_bits());
                let alone = p.opcode >> 5 == 1 || p.opcode >> 5 == 3;
                if !p.raw && (response || alone && op_info(p.opcode).is_none()) {
                    p.opcode = op::SEND_ONLY | p.opcode & transport::UC;
                }
                if p.raw || shadow.len() > p.qpn as usize {
                    receive(&mut shadow, &p);
                }
                p
            })
            .collect();
        let stall = [Stall::Never, Stall::Random, Stall::Rate(0.3)][seed as usize % 3];
        let (_, counts) = check(&mut m, &mut qps, &packets, stall, seed);
        counts.iter().for_each(|(k, n)| *total.entry(counter::NAMES[*k].0).or_default() += n);
    }
    println!("{total:?}");
}

/// An op in words: what a table of rules can be compared with.
fn words(op: &RxOp) -> String {
    let mut text = vec![];
    if op.write {
        let key = op.key.to_u64();
        text.push(format!("write {:x} {} of {} key {key:x}", op.va.to_u64(), op.len.to_u64(), op.span.to_u64()));
    }
    if !op.last {
        text.push("more".into());
        return text.join(", ");
    }
    let (r, c) = (op.reply, op.completion);
    if r.ack {
        text.push(format!("reply {:x} psn {} msn {}", r.syndrome.to_u64(), r.psn.to_u64(), r.msn.to_u64()));
    }
    if r.read {
        let again = if r.again { " again" } else { "" };
        text.push(format!("read slot {} psn {}{again}", r.slot.to_u64(), r.psn.to_u64()));
    }
    if c.valid {
        let (status, len) = (c.status.to_u64(), c.length.to_u64());
        text.push(format!("cqe {:x} status {status} wqe {} length {len}", c.opcode.to_u64(), c.wqe_index.to_u64()));
    }
    if c.cause.any() {
        text.push(format!("end {}", cause::NAMES[c.cause.to_u64() as usize].0));
    }
    if text.is_empty() { "nothing".into() } else { text.join(", ") }
}

/// One QP, some packets, and what each must lead to. The hardware is compared with the reference, and the reference
/// with the words: neither can be wrong alone.
fn rule(setup: impl FnOnce(&mut Reference), script: &[(Packet, &str)]) {
    let mut qps = qps();
    // Two WQEs: 1,500 bytes in two SGEs around an empty one, and 100 bytes.
    qps[1].wqes = vec![
        [(0x1000, 0x11, 1000), (0, 0, 0), (0x8000, 0x22, 500), (0, 0, 0)],
        [(0x9000, 0x33, 100), (0, 0, 0), (0, 0, 0), (0, 0, 0)],
    ];
    qps[1].posted = 2;
    setup(&mut qps[1]);
    let mut twin = qps[1].clone();
    for (i, (p, want)) in script.iter().enumerate() {
        let got: Vec<String> = twin.receive(p).1.iter().map(words).collect();
        assert_eq!(got.join("; "), *want, "packet {i}: {p:?}");
    }
    let packets: Vec<Packet> = script.iter().map(|(p, _)| p.clone()).collect();
    for (seed, stall) in [Stall::Never, Stall::Random].into_iter().enumerate() {
        check(&mut model(), &mut qps.clone(), &packets, stall, seed as u64);
    }
}

fn p(opcode: u8, psn: u64) -> Packet {
    Packet::new(1, opcode, psn)
}
fn write_only(psn: u64) -> Packet {
    p(op::WRITE_ONLY, psn).payload(4).reth(0x5000, 0x77, 4)
}
const WRITTEN: &str = "write 5000 4 of 4 key 77, ";

#[test]
fn a_future_psn_is_answered_once() {
    rule(
        |_| (),
        &[
            (write_only(102), "reply 60 psn 100 msn 0"),
            (write_only(103), "nothing"),
            (write_only(100), "write 5000 4 of 4 key 77, reply 1f psn 100 msn 1"),
            (write_only(104), "reply 60 psn 101 msn 1"),
        ],
    );
}

#[test]
fn half_of_the_psn_space_counts_as_duplicate() {
    rule(
        |_| (),
        &[
            (write_only(100 + (1 << 23)), "reply 1f psn 99 msn 0"),
            (write_only(99 + (1 << 23)), "reply 60 psn 100 msn 0"),
        ],
    );
}

#[test]
fn a_duplicate_is_acknowledged_again_and_not_executed() {
    rule(
        |_| (),
        &[
            (write_only(100), &format!("{WRITTEN}reply 1f psn 100 msn 1")),
            (write_only(101), &format!("{WRITTEN}reply 1f psn 101 msn 2")),
            (write_only(100), "reply 1f psn 101 msn 2"),
            (p(op::SEND_ONLY, 101).payload(4), "reply 1f psn 101 msn 2"),
        ],
    );
}

#[test]
fn a_duplicate_read_is_executed_again_if_it_is_the_rest_of_a_saved_one() {
    let read = |psn, va, len| p(op::READ_REQUEST, psn).reth(va, 0x66, len);
    rule(
        |_| (),
        &[
            (read(100, 0x5000, 3000), "read slot 0 psn 100"),
            (read(103, 0x6000, 0), "read slot 1 psn 103"),
            (write_only(104), &format!("{WRITTEN}reply 1f psn 104 msn 3")),
            (read(100, 0x5000, 3000), "read slot 0 psn 100 again"),
            (read(102, 0x5800, 3000 - 2048), "read slot 0 psn 102 again"),
            (read(102, 0x5800, 100), "nothing"),
            (read(102, 0x5801, 3000 - 2048), "nothing"),
            (read(103, 0x6000, 0), "read slot 1 psn 103 again"),
            (read(99, 0x5000, 3000), "nothing"),
        ],
    );
}

fn atomic(opcode: u8, psn: u64, va: u64) -> Packet {
    p(opcode, psn).payload(8).reth(va, 0x66, 0)
}

#[test]
fn an_atomic_takes_a_read_resource_and_one_psn_and_completes_a_message() {
    rule(
        |_| (),
        &[
            (atomic(op::COMPARE_SWAP, 100, 0x5008), "write 5008 8 of 8 key 66, read slot 0 psn 100"),
            (p(op::READ_REQUEST, 101).reth(0x6000, 0x66, 4), "read slot 1 psn 101"),
            (atomic(op::FETCH_ADD, 102, 0x5008), "write 5008 8 of 8 key 66, read slot 2 psn 102"),
            (write_only(103), &format!("{WRITTEN}reply 1f psn 103 msn 4")),
        ],
    );
}

#[test]
fn a_duplicate_atomic_is_answered_from_its_resource_or_not_at_all() {
    let add = |psn| atomic(op::FETCH_ADD, psn, 0x5008);
    rule(
        |_| (),
        &[
            (add(100), "write 5008 8 of 8 key 66, read slot 0 psn 100"),
            (p(op::READ_REQUEST, 101).reth(0x5008, 0x66, 0), "read slot 1 psn 101"),
            (add(102), "write 5008 8 of 8 key 66, read slot 2 psn 102"),
            (add(100), "read slot 0 psn 100 again"),
            (add(102), "read slot 2 psn 102 again"),
            (add(101), "nothing"),
            (add(99), "nothing"),
            (p(op::READ_REQUEST, 102).reth(0x5008, 0x66, 0), "nothing"),
            (p(op::FETCH_ADD, 100).payload(8).reth(0x5008, 0x67, 0), "nothing"),
            (add(103), "write 5008 8 of 8 key 66, read slot 3 psn 103"),
        ],
    );
}

#[test]
fn an_atomic_that_is_not_aligned_is_an_invalid_request() {
    let end = "reply 61 psn 100 msn 0, end INVALID_REQUEST";
    for va in [0x5001, 0x5004, 0x500f] {
        rule(|_| (), &[(atomic(op::COMPARE_SWAP, 100, va), end), (write_only(100), "nothing")]);
    }
}

fn put(psn: u64, va: u64) -> Packet {
    p(op::ATOMIC_WRITE, psn).payload(8).reth(va, 0x66, 8)
}

#[test]
fn an_atomic_write_writes_and_is_answered_like_a_read_and_once() {
    let done = |psn, slot| format!("write 5008 8 of 8 key 66, read slot {slot} psn {psn}");
    rule(
        |_| (),
        &[
            (put(100, 0x5008), &done(100, 0)),
            (atomic(op::FETCH_ADD, 101, 0x5008), &done(101, 1)),
            (put(102, 0x5008), &done(102, 2)),
            (put(100, 0x5008), "read slot 0 psn 100 again"),
            (put(102, 0x5008), "read slot 2 psn 102 again"),
            (put(101, 0x5008), "nothing"),
            (put(99, 0x5008), "nothing"),
            (put(100, 0x5010), "nothing"),
            (p(op::ATOMIC_WRITE, 100).payload(8).reth(0x5008, 0x67, 8), "nothing"),
            (write_only(103), &format!("{WRITTEN}reply 1f psn 103 msn 4")),
        ],
    );
}

#[test]
fn an_atomic_write_that_is_not_aligned_or_not_of_8_bytes_is_an_invalid_request() {
    let end = "reply 61 psn 100 msn 0, end INVALID_REQUEST";
    let of = |payload, dma_len| p(op::ATOMIC_WRITE, 100).payload(payload).reth(0x5008, 0x66, dma_len);
    for bad in [put(100, 0x5001), put(100, 0x5004), of(8, 9), of(8, 0), of(4, 8), of(0, 0), of(12, 12), of(16, 8)] {
        rule(|_| (), &[(bad, end), (write_only(100), "nothing")]);
    }
    let may = |access| move |r: &mut Reference| r.access = access;
    rule(may(access::REMOTE_WRITE), &[(put(100, 0x5008), "write 5008 8 of 8 key 66, read slot 0 psn 100")]);
    let rest = access::REMOTE_READ | access::REMOTE_ATOMIC;
    rule(may(rest), &[(put(100, 0x5008), "reply 61 psn 100 msn 0, end QP_ACCESS")]);
}

#[test]
fn a_read_takes_one_psn_per_mtu() {
    let read = |psn, len| p(op::READ_REQUEST, psn).reth(0x5000, 0x66, len);
    rule(
        |r| r.psn = 0xfffffe,
        &[
            (read(0xfffffe, 0), "read slot 0 psn 16777214"),
            (read(0xffffff, 1024), "read slot 1 psn 16777215"),
            (read(0, 1025), "read slot 2 psn 0"),
            (write_only(2), &format!("{WRITTEN}reply 1f psn 2 msn 4")),
        ],
    );
}

#[test]
fn middles_fill_the_mtu_and_the_sum_is_the_dma_length() {
    let first = || p(op::WRITE_FIRST, 100).payload(1024).reth(0x5000, 0x77, 2049);
    let begin = "write 5000 1024 of 2049 key 77, reply 1f psn 100 msn 0";
    let middle = "write 5400 1024 of 1024 key 77, reply 1f psn 101 msn 0";
    let end = "reply 61 psn 102 msn 0, end INVALID_REQUEST";
    let good = "write 5800 1 of 1 key 77, reply 1f psn 102 msn 1";
    for (n, want) in [(1, good), (0, end), (2, end)] {
        let last = p(op::WRITE_LAST, 102).payload(n);
        rule(|_| (), &[(first(), begin), (p(op::WRITE_MIDDLE, 101).payload(1024), middle), (last, want)]);
    }
    let end = "reply 61 psn 101 msn 0, end INVALID_REQUEST";
    rule(|_| (), &[(first(), begin), (p(op::WRITE_MIDDLE, 101).payload(1020), end), (write_only(101), "nothing")]);
    let end = "reply 61 psn 100 msn 0, end INVALID_REQUEST";
    rule(|_| (), &[(p(op::WRITE_FIRST, 100).payload(1020).reth(0x5000, 1, 2049), end)]);
    rule(|_| (), &[(p(op::WRITE_FIRST, 100).payload(1024).reth(0x5000, 1, 1024), end)]);
    rule(|_| (), &[(p(op::WRITE_ONLY, 100).payload(1028).reth(0x5000, 1, 1028), end)]);
    rule(|_| (), &[(p(op::WRITE_ONLY, 100).payload(4).reth(0x5000, 1, 5), end)]);
    rule(|_| (), &[(p(op::READ_REQUEST, 100).reth(0x5000, 1, (1 << 31) + 1), end)]);
    let mut odd = write_only(100);
    odd.pad = Some(1);
    rule(|_| (), &[(odd, end)]);
}

#[test]
fn opcodes_follow_each_other() {
    let end = "reply 61 psn 101 msn 0, end INVALID_REQUEST";
    let first = || p(op::WRITE_FIRST, 100).payload(1024).reth(0x5000, 0x77, 2048);
    let begin = "write 5000 1024 of 2048 key 77, reply 1f psn 100 msn 0";
    for wrong in [write_only(101), p(op::SEND_LAST, 101).payload(4), p(op::READ_REQUEST, 101).reth(0, 0, 4)] {
        rule(|_| (), &[(first(), begin), (wrong, end), (p(op::WRITE_LAST, 101).payload(1024), "nothing")]);
    }
    for wrong in [op::SEND_MIDDLE, op::SEND_LAST, op::WRITE_MIDDLE, op::WRITE_LAST, 0x15, 0x1f] {
        rule(|_| (), &[(p(wrong, 100).payload(1024), "reply 61 psn 100 msn 0, end INVALID_REQUEST")]);
    }
}

#[test]
fn an_error_within_a_send_completes_its_wqe() {
    rule(
        |_| (),
        &[
            (p(op::SEND_FIRST, 100).payload(1024), SCATTERED),
            (write_only(101), "reply 61 psn 101 msn 0, cqe 80 status 9 wqe 0 length 0, end INVALID_REQUEST"),
        ],
    );
}
const SCATTERED: &str = "write 1000 1000 of 1000 key 11, more; write 8000 24 of 24 key 22, reply 1f psn 100 msn 0";

#[test]
fn a_send_is_scattered_and_completes_with_its_length() {
    let mut last = p(op::SEND_LAST_IMM, 101).payload(400);
    last.ack = false;
    rule(
        |_| (),
        &[
            (p(op::SEND_FIRST, 100).payload(1024), SCATTERED),
            (last, "write 8018 400 of 400 key 22, cqe 81 status 0 wqe 0 length 1424"),
            (
                p(op::SEND_ONLY, 102).payload(100),
                "write 9000 100 of 100 key 33, reply 1f psn 102 msn 2, cqe 80 status 0 wqe 4 length 100",
            ),
        ],
    );
}

#[test]
fn a_send_longer_than_the_receive_is_an_invalid_request_and_a_length_error() {
    let end = "reply 61 psn 101 msn 0, cqe 80 status 1 wqe 0 length 0, end RECEIVE_TOO_SHORT";
    rule(
        |_| (),
        &[
            (p(op::SEND_FIRST, 100).payload(1024), SCATTERED),
            (p(op::SEND_LAST, 101).payload(477), end),
            (p(op::SEND_ONLY, 102).payload(4), "nothing"),
        ],
    );
}

#[test]
fn an_empty_receive_queue_is_answered_rnr_and_the_psn_stays() {
    rule(
        |r| r.posted = 1,
        &[
            (p(op::SEND_ONLY, 100).payload(0), "reply 1f psn 100 msn 1, cqe 80 status 0 wqe 0 length 0"),
            (p(op::SEND_ONLY, 101).payload(4), "reply 2c psn 101 msn 1"),
            (write_only(102), "nothing"),
            (p(op::WRITE_ONLY_IMM, 101).payload(4).reth(0x5000, 0x77, 4), "reply 2c psn 101 msn 1"),
            (write_only(101), &format!("{WRITTEN}reply 1f psn 101 msn 2")),
        ],
    );
}

#[test]
fn the_largest_receive_queue_may_be_full() {
    for (single, second) in [(true, 1), (false, 4)] {
        let second = format!("reply 1f psn 101 msn 2, cqe 80 status 0 wqe {second} length 0");
        rule(
            |r| (r.single, r.posted) = (single, 0x8000 / if single { 1 } else { 4 }),
            &[
                (p(op::SEND_ONLY, 100).payload(0), "reply 1f psn 100 msn 1, cqe 80 status 0 wqe 0 length 0"),
                (p(op::SEND_ONLY, 101).payload(0), &second),
            ],
        );
    }
}

/// Six of them, in two blocks: a message over two packets, two of one packet, and one that is too long for its own but not for all four.
#[test]
fn a_receive_of_one_sge_takes_one() {
    let setup = |r: &mut Reference| {
        r.single = true;
        r.wqes = (0..6).map(|i| [(0x1000 + 0x100 * i, 0x20 + i, 100), (0, 0, 0), (0, 0, 0), (0, 0, 0)]).collect();
        (r.wqes[1][0].2, r.posted) = (2000, 6);
    };
    rule(
        setup,
        &[
            (
                p(op::SEND_ONLY, 100).payload(100),
                "write 1000 100 of 100 key 20, reply 1f psn 100 msn 1, cqe 80 status 0 wqe 0 length 100",
            ),
            (p(op::SEND_FIRST, 101).payload(1024), "write 1100 1024 of 1024 key 21, reply 1f psn 101 msn 1"),
            (
                p(op::SEND_LAST, 102).payload(976),
                "write 1500 976 of 976 key 21, reply 1f psn 102 msn 2, cqe 80 status 0 wqe 1 length 2000",
            ),
            (p(op::SEND_ONLY, 103).payload(0), "reply 1f psn 103 msn 3, cqe 80 status 0 wqe 2 length 0"),
            (
                p(op::SEND_ONLY, 104).payload(1),
                "write 1300 1 of 1 key 23, reply 1f psn 104 msn 4, cqe 80 status 0 wqe 3 length 1",
            ),
            (
                p(op::SEND_ONLY, 105).payload(99),
                "write 1400 99 of 99 key 24, reply 1f psn 105 msn 5, cqe 80 status 0 wqe 4 length 99",
            ),
            (
                p(op::SEND_ONLY, 106).payload(101),
                "reply 61 psn 106 msn 5, cqe 80 status 1 wqe 5 length 0, end RECEIVE_TOO_SHORT",
            ),
        ],
    );
}

/// A doorbell may stand for a part of a receive of four SGEs: it is as if it ended before it.
#[test]
fn a_receive_that_is_posted_in_part_is_none() {
    for part in 1..4 {
        rule(
            |r| (r.posted, r.part) = (1, part),
            &[
                (p(op::SEND_ONLY, 100).payload(0), "reply 1f psn 100 msn 1, cqe 80 status 0 wqe 0 length 0"),
                (p(op::SEND_ONLY, 101).payload(4), "reply 2c psn 101 msn 1"),
            ],
        );
    }
}

#[test]
fn a_write_with_immediate_takes_a_wqe_at_its_last_packet() {
    rule(
        |_| (),
        &[
            (
                p(op::WRITE_FIRST, 100).payload(1024).reth(0x5000, 0x77, 1030),
                "write 5000 1024 of 1030 key 77, reply 1f psn 100 msn 0",
            ),
            (
                p(op::WRITE_LAST_IMM, 101).payload(6),
                "write 5400 6 of 6 key 77, reply 1f psn 101 msn 1, cqe 82 status 0 wqe 0 length 1030",
            ),
        ],
    );
}

#[test]
fn nothing_of_zero_length_names_a_key() {
    rule(
        |_| (),
        &[
            (p(op::WRITE_ONLY, 100).reth(0x5000, 0x77, 0), "reply 1f psn 100 msn 1"),
            (
                p(op::WRITE_ONLY_IMM, 101).reth(0x5000, 0x77, 0),
                "reply 1f psn 101 msn 2, cqe 82 status 0 wqe 0 length 0",
            ),
        ],
    );
}

#[test]
fn an_operation_that_the_qp_does_not_allow_is_an_invalid_request() {
    let end = "reply 61 psn 100 msn 0, end QP_ACCESS";
    rule(|r| r.access = access::REMOTE_READ, &[(write_only(100), end)]);
    rule(|r| r.access = access::REMOTE_WRITE, &[(p(op::READ_REQUEST, 100).reth(0, 0, 4), end)]);
    rule(|r| r.access = 7, &[(atomic(op::FETCH_ADD, 100, 8), end), (atomic(op::FETCH_ADD, 100, 8), "nothing")]);
    let good = "write 8 8 of 8 key 66, read slot 0 psn 100";
    rule(|r| r.access = access::REMOTE_ATOMIC, &[(atomic(op::FETCH_ADD, 100, 8), good)]);
}

#[test]
fn more_reads_than_offered_are_an_invalid_request() {
    let read = |psn| p(op::READ_REQUEST, psn).reth(0x5000, 0x66, 4);
    rule(
        |r| (r.max_reads, r.answered) = (2, Some(0)),
        &[
            (read(100), "read slot 0 psn 100"),
            (read(101), "read slot 1 psn 101"),
            (read(102), "reply 61 psn 102 msn 2, end TOO_MANY_READS"),
        ],
    );
    rule(
        |r| (r.max_reads, r.answered) = (1, Some(0)),
        &[
            (read(100), "read slot 0 psn 100"),
            (atomic(op::FETCH_ADD, 101, 8), "reply 61 psn 101 msn 1, end TOO_MANY_READS"),
        ],
    );
}

#[test]
fn packets_of_others_are_dropped() {
    let mut foreign = write_only(100);
    foreign.sip ^= 1 << 31;
    let mut key = write_only(100);
    key.pkey = 0x7fff;
    let mut uc = write_only(100);
    uc.opcode |= abi::wire::transport::UC;
    let good = format!("{WRITTEN}reply 1f psn 100 msn 1");
    rule(|_| (), &[(foreign, "nothing"), (key, "nothing"), (uc, "nothing"), (write_only(100), &good)]);
    for state in [qp_state::RESET, qp_state::INIT, qp_state::ERR] {
        rule(|r| r.state = state, &[(write_only(100), "nothing")]);
    }
    for state in [qp_state::RTR, qp_state::SQD, qp_state::SQE] {
        rule(|r| r.state = state, &[(write_only(100), &good)]);
    }
}

#[test]
fn a_packet_takes_at_most_five_cycles_and_four_in_a_stream() {
    let mut m = model();
    let time = |m: &mut Model, make: &dyn Fn(u64) -> Packet| {
        let mut qps = qps();
        qps[1].wqes = vec![[(0x1000, 1, 4096), (0, 0, 0), (0, 0, 0), (0, 0, 0)]; 200];
        qps[1].posted = 200;
        qps[1].max_reads = 16;
        qps[2] = qps[1].clone();
        let packets: Vec<Packet> = (0..200).map(|i| make(100 + i)).collect();
        check(m, &mut qps, &packets, Stall::Never, 0).0
    };
    let mut cycles = |name: &str, most: u64, make: &dyn Fn(u64) -> Packet| {
        let n = time(&mut m, make);
        println!("{name}: {:.2} cycles per packet", n as f64 / 200.0);
        assert!(n <= 200 * most + 20, "{name}: {n} cycles for 200 packets");
    };
    cycles("WRITE_ONLY", 4, &write_only);
    cycles("READ", 4, &|psn| p(op::READ_REQUEST, psn).reth(0x5000, 1, 4));
    cycles("duplicate", 4, &|_| write_only(50));
    cycles("SEND_ONLY", 5, &|psn| p(op::SEND_ONLY, psn).payload(4));
    // Two QPs in turn.
    let turns = |mut packet: Packet| {
        (packet.qpn, packet.psn) = (1 + (packet.psn & 1), 50 + packet.psn / 2);
        packet
    };
    cycles("WRITE_ONLY by turns", 4, &|psn| turns(write_only(psn)));
    cycles("READ by turns", 4, &|psn| turns(p(op::READ_REQUEST, psn).reth(0x5000, 1, 4)));
}

/// What is kept for the next packet is not what a SEND of several steps walks on.
#[test]
fn a_send_behind_a_repeated_write_is_walked_once() {
    let mut m = model();
    for again in [write_only(100), write_only(105), p(op::READ_REQUEST, 105).reth(0x5000, 1, 4)] {
        let mut qps = qps();
        qps[1].mtu = 256;
        qps[1].wqes = vec![[(0x1000, 1, 300), (0x2000, 2, 300), (0, 0, 0), (0, 0, 0)]];
        qps[1].posted = 1;
        let send = |opcode, psn, len| p(opcode, psn).payload(len);
        let packets = [
            write_only(100),
            send(op::SEND_FIRST, 101, 256),
            again.clone(),
            send(op::SEND_MIDDLE, 102, 256),
            again,
            send(op::SEND_LAST, 103, 88),
        ];
        check(&mut m, &mut qps, &packets, Stall::Never, 0);
    }
}

/// Loads a QP's row at a cycle, and sees which packets were taken before.
struct Loader {
    at: u64,
    cycle: u64,
    req: Vec<u8>,
    loaded: bool,
    before: Vec<bool>,
}
impl Actor for Loader {
    fn drive(&mut self, m: &mut Model) {
        m.set_bytes("table.req", &self.req);
        m.set("table.valid", (self.cycle >= self.at && !self.loaded).into());
    }
    fn observe(&mut self, m: &Model) {
        self.cycle += 1;
        self.loaded |= m.bit("table.valid") && m.bit("table.ready");
        if m.bit("meta.valid") && m.bit("meta.ready") {
            self.before.push(!self.loaded);
        }
    }
    fn done(&self) -> bool {
        self.loaded
    }
    fn status(&self) -> String {
        format!("loaded: {}", self.loaded)
    }
}

/// A row that is loaded in the middle of a stream holds for the next packet, whatever was kept for it.
#[test]
fn a_row_that_is_loaded_between_packets_is_not_kept_from_them() {
    let mut m = model();
    for at in 0..24 {
        m.reset();
        let qps = qps();
        qps.iter().enumerate().for_each(|(q, r)| write_row(&mut m, id::QP_RECV, q as u64, &row(r)));
        let mut around = Around::new(&m, &qps, 1);
        let mut source = Source::new(&m, "meta", Stall::Never, 1);
        let mut sink = Sink::new(&m, "op", Stall::Never, 2);
        let packets: Vec<_> = (0..12).map(|i| write_only(100 + i)).collect();
        for p in &packets {
            let mut beat = source.beat();
            beat.set_bytes("data", &bytes_of(p.meta()));
            source.push(beat);
        }
        sink.expect(packets.len() as u64);
        // All of them are duplicates then.
        let anew = Reference { psn: 5000, ..qps[1].clone() };
        let req = TableReq {
            table: u64::from(id::QP_RECV).to_bits(),
            index: 1u64.to_bits(),
            write: true,
            row: row_of(&row(&anew)),
        };
        let mut loader = Loader { at, cycle: 0, req: bytes_of(req), loaded: false, before: vec![] };
        bench::run(&mut m, &mut [&mut source, &mut sink, &mut around, &mut loader], 1000);
        assert!(loader.before.contains(&false), "loaded too late");
        for (i, before) in loader.before.into_iter().enumerate() {
            let op = fields_of::<RxOp>(&sink.pop().unwrap().bytes("data"));
            assert_eq!(op.contains_key("accepted"), before, "packet {i}, load at {at}");
        }
    }
}

/// While it passes over holes, nobody receives anything: so it has an end, and the next packet begins where it was.
#[test]
fn a_packet_passes_over_so_many_holes_of_a_shared_queue_and_no_more() {
    let hole = [(0, 0, u64::from(HOLE)), (0, 0, 0), (0, 0, 0), (0, 0, 0)];
    let receive = [(0x1000, 0x11, 1000), (0, 0, 0), (0, 0, 0), (0, 0, 0)];
    for (kind, opcode, dropped) in
        [(qp_type::RC, op::SEND_ONLY, counter::RX_RNR), (qp_type::UD, 0x60 | op::SEND_ONLY, counter::RX_UNRELIABLE)]
    {
        for holes in [MOST_HOLES - 1, MOST_HOLES, MOST_HOLES + 1, 2 * MOST_HOLES + 5] {
            let mut qps = qps();
            let queue = &mut qps[5];
            (queue.state, queue.single) = (qp_state::INIT, true);
            queue.wqes = vec![hole; holes];
            queue.wqes.push(receive);
            queue.posted = queue.wqes.len() as u64;
            let who = &mut qps[1];
            (who.kind, who.single, who.shared) = (kind, true, Some(5));
            let tries = holes / MOST_HOLES + 1;
            let packets = vec![Packet { rkey: QKEY, ..p(opcode, 100).payload(4) }; tries];
            let (_, counts) = check(&mut model(), &mut qps, &packets, Stall::Never, 1);
            let want = [(counter::RX_ACCEPTED, 1), (dropped, tries as u64 - 1)];
            assert_eq!(counts, want.into_iter().filter(|(_, n)| *n > 0).collect(), "{holes} holes");
        }
    }
}
