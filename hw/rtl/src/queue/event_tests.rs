use super::*;
use crate::queue::testing::{read_row, write_row};
use abi::queue::eqe;
use rand::RngExt;

use std::collections::{BTreeMap, btree_map::Entry};
use verilate::{
    Model, Options,
    bench::{self, Actor, Beat, Stall},
};

const EQS: usize = 8;

fn model() -> Model {
    let mut m = Model::of(|| EventQueue::new(EQS, 64), Options::default()).unwrap();
    m.reset();
    m
}

fn row(log2: u64, vector: u64, count: u64, cycles: u64) -> [u8; 64] {
    let mut row = [0; 64];
    eq::VALID.set(&mut row, 1);
    eq::LOG2_ENTRIES.set(&mut row, log2);
    eq::VECTOR.set(&mut row, vector);
    eq::OWNER.set(&mut row, 3);
    eq::MODERATION_COUNT.set(&mut row, count);
    eq::MODERATION_CYCLES.set(&mut row, cycles);
    eq::BASE.set(&mut row, vector << 20 | 0x1000);
    row
}

fn ring(m: &mut Model, eqn: usize, consumer: u64, arm: bool) {
    let bell = Ring {
        number: bits::<12>(eqn as u64),
        index: bits::<24>(consumer),
        arm,
        arm_solicited: false,
        sequence: 0.into(),
    };
    m.set_bytes("ring", &verilate::bits::of(bell));
    m.set("ring_valid", 1);
}

fn event(eqn: usize, kind: u8, number: u64, value: u64) -> Event {
    Event {
        eqn: bits::<8>(eqn as u64),
        kind: bits::<8>(kind as u64),
        number: bits::<24>(number),
        value: bits::<32>(value),
    }
}

/// The MSI-X table in registers: vector v writes v + 0x500 to 0xfee0_0000_0000 + 4 v.
#[derive(Default)]
struct Msix([u64; 2]);
impl Actor for Msix {
    fn drive(&mut self, m: &mut Model) {
        let v = self.0[1] / 2;
        m.set("msix_half", if self.0[1] & 1 == 0 { 0xfee0_0000_0000 + 4 * v } else { 0x500 + v });
        let cycle = m.cycle();
        m.set("now", cycle);
    }
    fn observe(&mut self, m: &Model) {
        self.0[1] = self.0[0];
        if m.bit("msix_re") {
            self.0[0] = m.get("msix_addr");
        }
    }
    fn done(&self) -> bool {
        true
    }
    fn status(&self) -> String {
        String::new()
    }
}

/// The vector, when a write is a message.
fn message(beat: &Beat) -> Option<usize> {
    let v = (beat.get("iova").checked_sub(0xfee0_0000_0000)? / 4) as usize;
    assert_eq!(
        (beat.get("len"), beat.bytes("data.data")[..4].to_vec()),
        (4, (0x500 + v as u32).to_le_bytes().to_vec())
    );
    Some(v)
}

#[derive(Default)]
struct Eq {
    written: u64,
    consumed: u64,
    rung: u64,
    armed: bool,
}

#[test]
fn every_event_arrives_once_and_every_arm_interrupts() {
    let seed = 11;
    println!("seed {seed}");
    let mut rng = verilate::rng(seed);
    let mut m = model();
    // EQ e has 2^(e % 4) entries and vector 8 + e; CQ c reports to EQ c % 8; QP errors go to EQ 0.
    for e in 0..EQS {
        write_row(&mut m, e, &row(e as u64 % 4, 8 + e as u64, [0, 1, 3][e % 3], 200 * (e as u64 % 2)));
    }
    let mut sources: Vec<_> = (0..REPORTERS)
        .map(|i| bench::Source::new(&m, &format!("event[{i}]"), Stall::Random, seed + i as u64))
        .collect();
    let mut w = bench::Sink::new(&m, "write", Stall::Random, seed + 9);
    let mut msix = Msix::default();
    let mut eqs: Vec<Eq> = (0..EQS).map(|_| Eq::default()).collect();
    let mut waiting: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    let (mut sent, mut messages, mut idle) = (0, 0, 0);
    let total = verilate::scale(2000);
    while idle < 6000 {
        idle += 1;
        if sent < total && rng.random_bool(0.1) {
            let number = rng.random_range(0..64);
            let kind = if rng.random_bool(0.7) { event::COMPLETION } else { event::QP_ERROR };
            let eqn = if kind == event::COMPLETION { number as usize % EQS } else { 0 };
            if let Entry::Vacant(place) = waiting.entry((kind.into(), number)) {
                let value = rng.random_range(0..256);
                place.insert(value);
                sources[rng.random_range(0..REPORTERS)].send(event(eqn, kind, number, value));
                sent += 1;
                idle = 0;
            }
        }
        m.set("ring_valid", 0);
        let e = rng.random_range(0..EQS);
        let q = &mut eqs[e];
        if rng.random_bool(0.02) {
            q.consumed = rng.random_range(q.rung..=q.written);
            let arm = !q.armed && rng.random_bool(0.7);
            (q.armed, q.rung) = (q.armed || arm, q.consumed);
            ring(&mut m, e, q.consumed, arm);
        }
        if rng.random_bool(0.01) {
            let mask = if sent < total { rng.random_range(0..1 << 32) } else { 0 };
            m.set("msix_mask", mask);
        }
        let mut actors: Vec<&mut dyn Actor> = sources.iter_mut().map(|s| s as &mut dyn Actor).collect();
        actors.extend([&mut w as &mut dyn Actor, &mut msix]);
        bench::cycle(&mut m, &mut actors);
        while let Some(beat) = w.pop() {
            idle = 0;
            if let Some(v) = message(&beat) {
                assert!(eqs[v - 8].armed, "EQ {} interrupts unarmed", v - 8);
                eqs[v - 8].armed = false;
                messages += 1;
                continue;
            }
            let e = (beat.get("iova") >> 20) as usize - 8;
            let q = &mut eqs[e];
            assert_eq!(beat.get("iova"), ((8 + e as u64) << 20) + 0x1000 + (q.written % (1 << (e % 4))) * 16);
            let entry = beat.bytes("data.data");
            assert!(q.written - q.rung < 1 << (e % 4), "EQ {e} ran over");
            assert_eq!(eqe::PHASE.get(&entry), !(q.written >> (e % 4)) & 1);
            let object = (eqe::TYPE.get(&entry), eqe::NUMBER.get(&entry));
            assert_eq!(waiting.remove(&object), Some(eqe::DATA.get(&entry)), "{object:?}");
            assert_eq!(e, if object.0 == event::COMPLETION as u64 { object.1 as usize % EQS } else { 0 });
            q.written += 1;
        }
    }
    assert!(waiting.is_empty(), "lost: {waiting:?}");
    assert!(sent == total && messages > 100);
    for (e, q) in eqs.iter().enumerate() {
        assert!(!q.armed || q.written == q.rung, "EQ {e} sleeps over {} entries", q.written - q.rung);
        assert_eq!(eq::PRODUCER.get(&read_row(&mut m, e)), q.written);
    }
}

#[test]
fn moderation_counts_and_times() {
    let mut m = model();
    write_row(&mut m, 1, &row(4, 2, 4, 500));
    let mut s = bench::Source::new(&m, "event[0]", Stall::Never, 1);
    let mut w = bench::Sink::new(&m, "write", Stall::Never, 2);
    let mut msix = Msix::default();
    let mut waits = vec![];
    let mut consumer = 0;
    for count in [4, 1, 6] {
        ring(&mut m, 1, consumer, true);
        bench::cycle(&mut m, &mut [&mut s, &mut w, &mut msix]);
        m.set("ring_valid", 0);
        (0..count).for_each(|i| s.send(event(1, event::COMPLETION, i, 0)));
        let start = m.cycle();
        let mut got = 0;
        while m.cycle() < start + 1000 {
            bench::cycle(&mut m, &mut [&mut s, &mut w, &mut msix]);
            while let Some(beat) = w.pop() {
                if message(&beat).is_some() {
                    waits.push(m.cycle() - start);
                } else {
                    got += 1;
                }
            }
        }
        assert_eq!(got, count);
        consumer += count;
    }
    assert_eq!(waits.len(), 3);
    assert!(waits[0] < 70 && (500..560).contains(&waits[1]) && waits[2] < 70, "{waits:?}");
}

#[test]
fn a_masked_vector_waits_and_is_sent_once() {
    let mut m = model();
    write_row(&mut m, 0, &row(4, 5, 0, 0));
    let mut s = bench::Source::new(&m, "event[3]", Stall::Never, 1);
    let mut w = bench::Sink::new(&m, "write", Stall::Never, 2);
    let mut msix = Msix::default();
    m.set("msix_mask", 1 << 5);
    ring(&mut m, 0, 0, true);
    bench::cycle(&mut m, &mut [&mut s, &mut w, &mut msix]);
    m.set("ring_valid", 0);
    s.send(event(0, event::DOORBELL, 77, 3));
    bench::run(&mut m, &mut [&mut s, &mut w, &mut msix], 1000);
    assert_eq!((w.len(), m.get("msix_pending")), (1, 1 << 5));
    w.pop();
    m.set("msix_mask", 0);
    bench::run(&mut m, &mut [&mut s, &mut w, &mut msix], 1000);
    assert_eq!((w.pop().and_then(|b| message(&b)), w.len(), m.get("msix_pending")), (Some(5), 0, 0));
}

/// When all kept events are delivered the engine rests: it takes the next event at once, whenever it comes.
#[test]
fn nothing_is_looked_for_when_no_event_is_kept() {
    let mut m = model();
    write_row(&mut m, 0, &row(3, 5, 0, 0));
    write_row(&mut m, 1, &row(0, 6, 0, 0));
    let mut s = bench::Source::new(&m, "event[0]", Stall::Never, 1);
    let mut w = bench::Sink::new(&m, "write", Stall::Never, 2);
    let mut msix = Msix::default();
    // Of two events for an EQ of one entry the second is kept, and delivered when there is room. Its slot is not the last one: that none is
    // kept any more is found before all slots are looked through.
    [0, 5].into_iter().for_each(|number| s.send(event(1, event::COMPLETION, number, 0)));
    let mut steps = |m: &mut Model, s: &mut bench::Source, n: u64| {
        let (start, mut written) = (m.cycle(), vec![]);
        while m.cycle() < start + n {
            bench::cycle(m, &mut [s, &mut w, &mut msix]);
            while w.pop().is_some() {
                written.push(m.cycle() - start);
            }
        }
        written
    };
    assert_eq!(steps(&mut m, &mut s, 1000).len(), 1);
    ring(&mut m, 1, 1, false);
    let mut written = steps(&mut m, &mut s, 1).len();
    m.set("ring_valid", 0);
    written += steps(&mut m, &mut s, 5000).len();
    assert_eq!(written, 1);
    // At all distances: what the engine did between two events began behind the first.
    let waits: Vec<_> = (0..8)
        .map(|number| {
            s.send(event(0, event::COMPLETION, number, 0));
            steps(&mut m, &mut s, 100 + number)
        })
        .collect();
    assert!(waits.iter().all(|w| w.len() == 1 && *w == waits[0]), "{waits:?}");
}
