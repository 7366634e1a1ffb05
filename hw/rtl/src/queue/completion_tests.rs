use super::*;
use crate::queue::testing::{read_row, write_row};
use abi::queue::cqe;
use rand::{Rng, RngExt};
use rand_chacha::ChaCha8Rng;
use std::collections::VecDeque;
use verilate::{
    Model, Options,
    bench::{self, Stall},
};

const CQS: usize = 16;

fn model() -> Model {
    Model::of(|| CompletionQueue::new(CQS), Options::default()).unwrap()
}

fn row(log2: u64, eqn: u64, base: u64) -> [u8; 64] {
    let mut row = [0; 64];
    cq::VALID.set(&mut row, 1);
    cq::LOG2_ENTRIES.set(&mut row, log2);
    cq::EQN.set(&mut row, eqn);
    cq::OWNER.set(&mut row, 5);
    cq::BASE.set(&mut row, base);
    row
}

fn ring(m: &mut Model, cqn: u64, consumer: u64, arm: bool, arm_solicited: bool, sequence: u64) {
    let bell = Ring {
        number: bits::<12>(cqn),
        index: bits::<24>(consumer),
        arm,
        arm_solicited,
        sequence: bits::<2>(sequence),
    };
    m.set_bytes("ring", &verilate::bits::of(bell));
    m.set("ring_valid", 1);
}

fn completion(rng: &mut ChaCha8Rng, cqn: usize) -> Completion {
    Completion {
        valid: true,
        cqn: bits::<12>(cqn as u64),
        qpn: bits::<12>(rng.random_range(0..4096)),
        generation: bits::<8>(rng.random_range(0..256)),
        status: bits::<8>(if rng.random_bool(0.9) { 0 } else { rng.random_range(1..22) }),
        cause: bits::<8>(rng.random_range(0..256)),
        opcode: bits::<8>(rng.random_range(0..256)),
        wqe_index: bits::<16>(rng.random_range(0..65536)),
        blocks: bits::<3>(rng.random_range(0..8)),
        length: bits::<32>(rng.next_u32() as u64),
        imm: bits::<32>(rng.next_u32() as u64),
        solicited: rng.random_bool(0.2),
        vlan: bits::<16>(rng.random_range(0..65536)),
        src_qpn: bits::<24>(rng.random_range(0..1 << 24)),
        shared: false,
    }
}

/// What the host keeps of a CQ.
#[derive(Default)]
struct Cq {
    log2: u64,
    base: u64,
    /// Completions pushed, CQEs seen in memory, consumer index rung.
    posted: u64,
    written: u64,
    rung: u64,
    notable: u64,
    pending: VecDeque<Completion>,
    sequence: u64,
    /// What is armed and not yet answered.
    armed: bool,
    armed_solicited: bool,
}

#[test]
fn entries_come_in_order_and_every_arm_wakes_once() {
    traffic(7, 0.0);
}

/// Whatever is under way: entries of before are in the old ring, all others in the new one, and an arm stays one.
#[test]
fn a_queue_goes_on_in_another_ring_under_traffic() {
    traffic(8, 0.02);
}

/// Random completions and arms; a CQ moves to a ring of another size at this rate.
fn traffic(seed: u64, resizes: f64) {
    println!("seed {seed}");
    let mut rng = verilate::rng(seed);
    let mut m = model();
    m.reset();
    let mut cqs: Vec<Cq> =
        (0..CQS).map(|i| Cq { log2: i as u64 % 5, base: (i as u64 + 1) << 20 | 0x1000, ..Cq::default() }).collect();
    for (i, q) in cqs.iter().enumerate() {
        write_row(&mut m, i, &row(q.log2, i as u64 + 100, q.base));
    }
    let mut c = bench::Source::new(&m, "completion", Stall::Random, seed + 1);
    let mut w = bench::Sink::new(&m, "write", Stall::Random, seed + 2);
    let mut e = bench::Sink::new(&m, "event", Stall::Random, seed + 3);
    let mut q = bench::Sink::new(&m, "error", Stall::Random, seed + 4);
    let mut events = [0u64; CQS];
    let total = verilate::scale(4000) as u64;
    let (mut pushed, mut idle) = (0, 0);
    let (mut moves, mut moved): (Option<(usize, u64, u64)>, u64) = (None, 0);
    while idle < 2000 {
        idle += 1;
        m.set("ring_valid", 0);
        if moves.is_none() && idle < 1000 && rng.random_bool(resizes) {
            let (i, log2) = (rng.random_range(0..CQS), rng.random_range(0..6));
            let (cq, to) = (&cqs[i], cqs[i].base ^ 0x1_0000);
            if cq.posted - cq.rung <= 1 << log2 {
                let mut row = row(log2, i as u64 + 100, to);
                cq::RESIZE.set(&mut row, 1);
                let row = crate::transport::kit::row_of(&row);
                let index = bits::<24>(i as u64);
                let req = crate::msg::TableReq { table: 0.into(), index, write: true, row };
                m.set_bytes("table.req", &verilate::bits::of(req));
                m.set("table.valid", 1);
                moves = Some((i, log2, to));
            }
        }
        // The transport completes where the CQ has room.
        let i = rng.random_range(0..CQS);
        let cq = &mut cqs[i];
        let log2 = moves.filter(|m| m.0 == i).map_or(cq.log2, |m| m.1.min(cq.log2));
        if pushed < total && cq.posted - cq.rung < 1 << log2 && rng.random_bool(0.4) {
            let message = completion(&mut rng, i);
            c.send(message);
            cq.pending.push_back(message);
            cq.posted += 1;
            pushed += 1;
            idle = 0;
        }
        // The host consumes, and arms when it has seen all and its last arm was answered.
        let cq = &mut cqs[i];
        if rng.random_bool(0.3) {
            let consumer = cq.rung + rng.random_range(0..=cq.written - cq.rung);
            let arm = !cq.armed && !cq.armed_solicited && rng.random_bool(0.5);
            let solicited = arm && rng.random_bool(0.5);
            cq.rung = consumer;
            if arm {
                (cq.armed, cq.armed_solicited) = (!solicited, solicited);
                cq.sequence += 1;
            }
            ring(&mut m, i as u64, consumer & 0xff_ffff, arm && !solicited, solicited, cq.sequence & 3);
        }
        m.set("now", m.cycle());
        // Completions are announced now and then, rightly or not.
        m.set("soon_valid", rng.random_bool(0.5).into());
        m.set("soon", if rng.random() { i } else { rng.random_range(0..CQS) } as u64);
        m.eval();
        let done = moves.filter(|_| m.bit("table.ready"));
        bench::cycle(&mut m, &mut [&mut c, &mut w, &mut e, &mut q]);
        while let Some(beat) = w.pop() {
            assert_eq!((beat.get("len"), beat.get("is_inline"), beat.get("rows")), (32, 1, 0));
            let of = |cq: &&mut Cq| cq.base >> 20 == beat.get("iova") >> 20;
            let (i, cq) = cqs.iter_mut().enumerate().find(|(_, cq)| of(cq)).unwrap();
            assert_eq!(beat.get("iova"), cq.base + (cq.written % (1 << cq.log2)) * 32, "CQ {i}");
            let entry = beat.bytes("data.data");
            let stamp = cqe::TIMESTAMP.get(&entry);
            assert!(stamp <= m.cycle() && stamp + 3000 > m.cycle());
            let want = cq.pending.pop_front().unwrap();
            let mut bytes = [0; 32];
            for (field, value) in [
                (cqe::QPN, want.qpn.to_u64()),
                (cqe::STATUS, want.status.to_u64()),
                (cqe::WQE_INDEX, want.wqe_index.to_u64()),
                (cqe::SYNDROME, want.cause.to_u64()),
                (cqe::OPCODE, want.opcode.to_u64()),
                (cqe::LENGTH, want.length.to_u64()),
                (cqe::IMM, want.imm.to_u64()),
                (cqe::SRC_QPN, want.src_qpn.to_u64()),
                (cqe::VLAN, want.vlan.to_u64()),
                (cqe::TIMESTAMP, stamp),
                (cqe::BLOCKS, want.blocks.to_u64()),
                (cqe::PHASE, !(cq.written >> cq.log2) & 1),
            ] {
                field.set(&mut bytes, value);
            }
            assert_eq!(entry, bytes, "CQE {} of CQ {i}", cq.written);
            cq.written += 1;
            if want.solicited || want.status != 0 {
                cq.notable = cq.written;
            }
            idle = 0;
        }
        if let Some((i, log2, base)) = done {
            m.set("table.valid", 0);
            (cqs[i].log2, cqs[i].base) = (log2, base);
            (moves, moved) = (None, moved + 1);
        }
        while let Some(beat) = e.pop() {
            let i = beat.get("number") as usize;
            let cq = &mut cqs[i];
            assert_eq!((beat.get("eqn"), beat.get("kind")), (i as u64 + 100, event::COMPLETION as u64));
            assert!(cq.armed || cq.armed_solicited, "CQ {i} fired unarmed");
            // The CQE of its cause is there already; the host may have consumed it meanwhile.
            assert!(if cq.armed { cq.written > 0 } else { cq.notable > 0 });
            (cq.armed, cq.armed_solicited) = (false, false);
            events[i] += 1;
            idle = 0;
        }
    }
    println!("{moved} moves");
    assert!(q.is_empty() && pushed == total && moved as f64 >= 1000.0 * resizes);
    for (i, cq) in cqs.iter().enumerate() {
        assert_eq!(cq.written, cq.posted);
        assert!(!cq.armed || cq.written == cq.rung, "CQ {i} sleeps over {} entries", cq.written - cq.rung);
        assert!(!cq.armed_solicited || cq.notable <= cq.rung, "CQ {i} sleeps over a solicited entry");
        assert!(events[i] > 3);
        let row = read_row(&mut m, i);
        assert_eq!(cq::PRODUCER.get(&row), cq.written);
        assert_eq!((cq::LOG2_ENTRIES.get(&row), cq::BASE.get(&row), cq::DEAD.get(&row)), (cq.log2, cq.base, 0));
    }
}

#[test]
fn an_overrun_kills_the_queue_and_its_callers_until_it_is_loaded_anew() {
    let mut rng = verilate::rng(1);
    let mut m = model();
    m.reset();
    write_row(&mut m, 3, &row(2, 9, 0x1_0000));
    let mut c = bench::Source::new(&m, "completion", Stall::Never, 1);
    let mut w = bench::Sink::new(&m, "write", Stall::Never, 2);
    let mut e = bench::Sink::new(&m, "event", Stall::Never, 3);
    let mut q = bench::Sink::new(&m, "error", Stall::Never, 4);
    let sent: Vec<_> = (0..7).map(|_| completion(&mut rng, 3)).collect();
    for message in &sent {
        c.send(*message);
    }
    bench::run(&mut m, &mut [&mut c, &mut w, &mut e, &mut q], 1000);
    assert_eq!((w.len(), e.len(), q.len()), (4, 1, 3));
    let event = e.pop().unwrap();
    assert_eq!([event.get("eqn"), event.get("kind"), event.get("number")], [0, event::CQ_ERROR as u64, 3]);
    for message in &sent[4..] {
        let want = QpError {
            send_only: false,
            limit: false,
            qpn: message.qpn,
            generation: message.generation,
            any_generation: false,
            cause: bits::<8>(status::cause::CQ_OVERRUN as u64),
            event: true,
        };
        assert_eq!(q.pop(), Some(q.message(want)));
    }
    assert_eq!(cq::DEAD.get(&read_row(&mut m, 3)), 1);
    write_row(&mut m, 3, &row(2, 9, 0x1_0000));
    c.send(sent[0]);
    bench::run(&mut m, &mut [&mut c, &mut w, &mut e, &mut q], 1000);
    assert_eq!((w.len(), e.len(), q.len()), (5, 0, 0));
}

#[test]
fn four_cycles_an_entry() {
    let mut rng = verilate::rng(1);
    let mut m = model();
    m.reset();
    write_row(&mut m, 0, &row(10, 0, 0x1_0000));
    let mut c = bench::Source::new(&m, "completion", Stall::Never, 1);
    let mut w = bench::Sink::new(&m, "write", Stall::Never, 2);
    for _ in 0..1000 {
        c.send(completion(&mut rng, 0));
    }
    let start = m.cycle();
    bench::run(&mut m, &mut [&mut c, &mut w], 10_000);
    assert!(m.cycle() - start <= 4 * 1000 + 40, "{} cycles", m.cycle() - start);
}

#[test]
fn a_burst_of_arms_overflows_the_jobs_and_still_wakes_all() {
    let mut rng = verilate::rng(1);
    let mut m = Model::of(|| CompletionQueue::new(64), Options::default()).unwrap();
    m.reset();
    let mut c = bench::Source::new(&m, "completion", Stall::Never, 1);
    let mut w = bench::Sink::new(&m, "write", Stall::Never, 2);
    let mut e = bench::Sink::new(&m, "event", Stall::Never, 3);
    for i in 0..64 {
        write_row(&mut m, i, &row(4, 1, 0x1_0000 * (i as u64 + 1)));
        c.send(completion(&mut rng, i));
    }
    bench::run(&mut m, &mut [&mut c, &mut w, &mut e], 1000);
    assert!(e.is_empty());
    for i in 0..64 {
        ring(&mut m, i, 0, true, false, 0);
        bench::cycle(&mut m, &mut [&mut e]);
    }
    m.set("ring_valid", 0);
    e.expect(64 - e.len() as u64);
    bench::run(&mut m, &mut [&mut e], 1000);
    assert_eq!(e.len(), 64);
    // The same sequence again is ignored.
    ring(&mut m, 5, 0, true, false, 0);
    bench::cycle(&mut m, &mut [&mut e]);
    m.set("ring_valid", 0);
    (0..100).for_each(|_| bench::cycle(&mut m, &mut [&mut e]));
    assert_eq!(e.len(), 64);
}

/// As often as a CQ may be armed while nothing comes, slowly or in each cycle: the next entry fires.
#[test]
fn a_queue_that_was_armed_any_number_of_times_fires() {
    let mut rng = verilate::rng(1);
    let mut m = model();
    m.reset();
    write_row(&mut m, 3, &row(10, 9, 0x1_0000));
    let mut c = bench::Source::new(&m, "completion", Stall::Never, 1);
    let mut w = bench::Sink::new(&m, "write", Stall::Never, 2);
    let mut e = bench::Sink::new(&m, "event", Stall::Never, 3);
    let mut sequence = 0;
    for (consumer, (times, gap)) in (1..=12).flat_map(|n| [(n, 0), (n, 3), (n, 20)]).enumerate() {
        for _ in 0..times {
            sequence += 1;
            ring(&mut m, 3, consumer as u64, true, false, sequence & 3);
            bench::cycle(&mut m, &mut [&mut e]);
            m.set("ring_valid", 0);
            (0..gap).for_each(|_| bench::cycle(&mut m, &mut [&mut e]));
        }
        (0..200).for_each(|_| bench::cycle(&mut m, &mut [&mut e]));
        assert!(e.is_empty(), "nothing came");
        c.send(completion(&mut rng, 3));
        bench::run(&mut m, &mut [&mut c, &mut w, &mut e], 300);
        assert_eq!((w.len(), e.len()), (consumer + 1, 1), "armed {times} times, {gap} cycles apart");
        e.pop();
        // Unarmed, it is silent.
        (0..50).for_each(|_| bench::cycle(&mut m, &mut [&mut e]));
        assert!(e.is_empty());
    }
}
