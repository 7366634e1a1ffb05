//! The pacer against a plain reference of its pipelines, and with QPs that send whenever they may.

use super::*;
use crate::msg::{TableReq, TxHead};
use abi::{
    table::{gid, id, pace, pace_period, qp_address},
    wire::{self, op, op_info},
};
use hdl::prelude::*;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::collections::VecDeque;
use verilate::{Model, Options, bits as raw};

const M20: i64 = 1 << 20;

/// Frames of these opcodes are charged.
fn opcodes() -> Vec<u8> {
    let free = |o: &u8| ![op::ACK, wire::CNP].contains(o);
    (0..=255).filter(|o| op_info(*o).is_some() && free(o)).collect()
}

/// Bytes on the wire from Ethernet header to FCS.
fn wire_bytes(opcode: u8, payload: i64, is_raw: bool, extra: i64) -> i64 {
    if is_raw {
        return payload.max(60) + 4;
    }
    // The operands of an atomic are its payload.
    let operands = if [op::COMPARE_SWAP, op::FETCH_ADD].contains(&opcode) { 16 } else { 0 };
    let ext = op_info(opcode).unwrap().ext_len() as i64 - operands;
    let extra = if opcode >> 5 == 3 { 0 } else { extra };
    let frame = 14 + 20 + 8 + 12 + ext + extra + (payload + 3) / 4 * 4 + 4;
    frame.max(60) + 4
}

#[derive(Clone, Copy, Debug, Default)]
struct Row {
    quota: i64,
    burst: i64,
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    q: usize,
    opcode: u8,
    payload: i64,
    raw: bool,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Frame(Frame),
    Row(usize, Row),
    /// Its GID.
    Address(usize, usize),
    /// Bytes of a GID's headers beyond those of IPv4.
    Gid(usize, i64),
}

impl Event {
    fn q(&self) -> usize {
        match self {
            Event::Frame(f) => f.q,
            Event::Row(q, _) | Event::Address(q, _) | Event::Gid(q, _) => *q,
        }
    }
}

/// An event on its way: what it read, and what it costs.
#[derive(Clone, Copy, Debug)]
struct Charge {
    event: Event,
    earned: i64,
    bytes: Option<i64>,
    gid: usize,
    extra: i64,
    tokens: i64,
}

/// A visit: QP, what it has earned with it, and whether it has tokens.
type Visit = Option<(usize, i64, bool)>;

/// Sums without bounds, and who is held. Sums are in 2^-12 bytes (`earned`) and bytes.
struct Reference {
    qps: usize,
    rows: Vec<Row>,
    gids: Vec<usize>,
    extras: [i64; 16],
    earned: Vec<i64>,
    spent: Vec<i64>,
    held: Vec<bool>,
    at: usize,
    charges: VecDeque<Option<Charge>>,
    visits: VecDeque<Visit>,
    granted: VecDeque<usize>,
    kick_now: Option<usize>,
    /// Grants that found no room, rows and frames that were on their way at one time for one QP, and kicks.
    crowded: u64,
    kicks: u64,
}

impl Reference {
    fn new(qps: usize) -> Self {
        Reference {
            qps,
            rows: vec![Row::default(); qps],
            gids: vec![0; qps],
            extras: [0; 16],
            earned: vec![0; qps],
            spent: vec![0; qps],
            held: vec![false; qps],
            at: 0,
            charges: VecDeque::from(vec![None; 10]),
            visits: VecDeque::from(vec![None; 6]),
            granted: VecDeque::new(),
            kick_now: None,
            crowded: 0,
            kicks: 0,
        }
    }

    /// The kick of this cycle.
    fn kick(&self) -> Option<usize> {
        self.kick_now.or(self.granted.front().copied())
    }

    /// A cycle passes, in which `event` comes in.
    fn step(&mut self, event: Option<Event>) {
        self.kicks += u64::from(self.kick().is_some());
        let room = self.granted.len() < 4;
        if self.kick_now.take().is_none() {
            self.granted.pop_front();
        }
        self.charges.pop_back();
        let counts = |e: &Event| matches!(e, Event::Row(..) | Event::Frame(_));
        self.charges.push_front(event.filter(counts).map(|event| Charge {
            event,
            earned: 0,
            bytes: None,
            gid: 0,
            extra: 0,
            tokens: 0,
        }));
        self.visits.pop_back();
        self.visits.push_front(None);
        // Stage 9 of charges and stage 5 of visits see who was held at the same time.
        let held = self.held.clone();
        if let Some((q, earned, may)) = self.visits[5] {
            self.earned[q] = earned;
            if may && held[q] {
                self.crowded += u64::from(!room);
                if room {
                    self.held[q] = false;
                    self.granted.push_back(q);
                }
            }
        }
        if let Some(c) = self.charges[9] {
            let q = c.event.q();
            match c.event {
                Event::Frame(_) if c.bytes.is_none() => {}
                Event::Frame(_) if c.tokens > 0 => self.kick_now = Some(q),
                _ if !held[q] => self.held[q] = true,
                _ => {}
            }
        }
        // Stages 1 to 4.
        if let Some(c) = &mut self.charges[1] {
            c.earned = self.earned[c.event.q()] >> 12;
            c.gid = self.gids[c.event.q()];
        }
        if let Some(c) = &mut self.charges[2] {
            c.extra = self.extras[c.gid];
        }
        if let Some(c) = &mut self.charges[3]
            && let Event::Frame(f) = c.event
            && self.rows[f.q].quota != 0
        {
            c.bytes = Some(wire_bytes(f.opcode, f.payload, f.raw, c.extra));
        }
        if let Some(c) = &mut self.charges[4] {
            let q = c.event.q();
            match c.event {
                Event::Frame(_) => self.spent[q] += c.bytes.unwrap_or(0),
                Event::Row(_, r) if r.quota == 0 => self.spent[q] = c.earned,
                _ => {}
            }
            c.tokens = c.earned - self.spent[q];
            assert!(c.tokens.abs() < M20 / 2, "tokens leave their range");
        }
        match event {
            Some(Event::Row(q, r)) => self.rows[q] = r,
            Some(Event::Address(q, gid)) => self.gids[q] = gid,
            Some(Event::Gid(gid, extra)) => self.extras[gid] = extra,
            _ => {}
        }
        // Stage 0.
        if self.at < self.qps {
            let (q, r) = (self.at, self.rows[self.at]);
            let (sum, limit) = (self.earned[q] + r.quota, self.spent[q] + (r.burst << 10));
            let over = sum >> 12 >= limit;
            let earned = if over { limit << 12 } else { sum };
            self.visits[0] = Some((q, earned, over || r.quota == 0 || (earned >> 12) - self.spent[q] > 0));
        }
        self.at = (self.at + 1) % pace_period(self.qps);
    }
}

/// A pacer that has swept its rows, at the visit of QP 0.
fn pacer(m: &mut Model, qps: usize) {
    m.set("goes", 0);
    m.set("table.valid", 0);
    m.reset();
    // Rows wait until it has.
    m.set("table.valid", 1);
    m.eval();
    let mut cycles = 0;
    while !m.bit("table.ready") {
        assert!(!m.bit("kicks"));
        m.tick();
        m.eval();
        cycles += 1;
    }
    m.set("table.valid", 0);
    assert_eq!(cycles, pace_period(qps));
}

fn offer(m: &mut Model, table: u8, index: usize, row: &[u8; 64]) {
    let (table, index) = ((table as u64).to_bits(), (index as u64).to_bits());
    let req = TableReq { table, index, write: true, row: crate::transport::kit::row_of(row) };
    m.set_bytes("table.req", &raw::of(req));
}

/// Sets an event up for this cycle.
fn put(m: &mut Model, event: Option<Event>) {
    let frame = matches!(event, Some(Event::Frame(_)));
    m.set("goes", frame as u64);
    m.set("table.valid", (event.is_some() && !frame) as u64);
    let mut row = [0; 64];
    match event {
        Some(Event::Frame(f)) => {
            let head = TxHead {
                qpn: (f.q as u64).to_bits(),
                opcode: (f.opcode as u64).to_bits(),
                payload: (f.payload as u64).to_bits(),
                raw: f.raw,
                ..Default::default()
            };
            m.set_bytes("head", &raw::of(head));
        }
        Some(Event::Row(q, r)) => {
            pace::QUOTA.set(&mut row, r.quota as u64);
            pace::BURST.set(&mut row, r.burst as u64);
            offer(m, id::PACE, q, &row);
        }
        Some(Event::Address(q, gid)) => {
            qp_address::GID.set(&mut row, gid as u64);
            offer(m, id::QP_ADDRESS, q, &row);
        }
        Some(Event::Gid(gid, extra)) => {
            gid::IS_IP6.set(&mut row, (extra >= 20) as u64);
            gid::TAGGED.set(&mut row, (extra % 20 != 0) as u64);
            offer(m, id::GID, gid, &row);
        }
        None => {}
    }
    m.eval();
    if event.is_some() && !frame {
        assert!(m.bit("table.ready"));
    }
}

fn kick_of(m: &Model) -> Option<usize> {
    m.bit("kicks").then(|| m.get("kick") as usize)
}

/// A row whose QP earns `quota` units at a visit.
fn random_row(rng: &mut ChaCha8Rng) -> Row {
    let bytes = [0, 1, 300, 6000, 60_000][rng.random_range(0..5)];
    let quota = if bytes == 0 { 0 } else { (bytes << 12) | rng.random_range(0..1 << 12) };
    let burst = (bytes / 1024 + 1 + rng.random_range(0..20)).min(255);
    Row { quota, burst: if quota == 0 { 0 } else { burst } }
}

/// Frames and rows of few QPs in any cycle: what is kicked, and when.
#[test]
fn kicks_are_those_of_the_reference() {
    for qps in [32, 256, 512] {
        let mut m = Model::of(move || Pacer::new(qps, true), Options::default()).unwrap();
        let all = opcodes();
        for seed in 0..verilate::scale(6) as u64 {
            let mut rng = verilate::rng(seed);
            pacer(&mut m, qps);
            let mut r = Reference::new(qps);
            let active: Vec<usize> = match seed % 3 {
                0 => vec![0, 1, qps - 1],
                1 => (0..8).map(|i| i * (qps / 8)).collect(),
                _ => (0..qps).collect(),
            };
            let density = [0.01, 0.1, 0.5, 1.0][rng.random_range(0..4)];
            for cycle in 0..20_000u64 {
                let q = active[rng.random_range(0..active.len())];
                // As much as it may owe.
                let owes = r.spent[q] - (r.earned[q] >> 12);
                let event = if rng.random_bool(0.02) {
                    Some(match rng.random_range(0..4) {
                        0 => Event::Address(q, rng.random_range(0..16)),
                        1 => Event::Gid(rng.random_range(0..16), [0, 4, 20, 24][rng.random_range(0..4)]),
                        _ => Event::Row(q, random_row(&mut rng)),
                    })
                } else if rng.random_bool(density) && owes < 100_000 {
                    let is_raw = rng.random_bool(0.1);
                    let payload = rng.random_range(0..=if is_raw { 9000 } else { 4096 });
                    let small = rng.random_bool(0.5);
                    Some(Event::Frame(Frame {
                        q,
                        opcode: all[rng.random_range(0..all.len())],
                        payload: if small { payload % 70 } else { payload },
                        raw: is_raw,
                    }))
                } else {
                    None
                };
                put(&mut m, event);
                assert_eq!(kick_of(&m), r.kick(), "seed {seed}, {qps} QPs, cycle {cycle}");
                m.tick();
                r.step(event);
            }
            assert!(r.kicks > 30, "{}", r.kicks);
        }
    }
}

/// What the first test leaves to chance: a frame, or a row that ends or changes the rate, in each cycle relative to a visit. Its QP is kicked
/// behind it, as soon as it has tokens.
#[test]
fn whoever_is_held_is_kicked_whenever_it_is() {
    const QPS: usize = 32;
    let mut m = Model::of(|| Pacer::new(QPS, true), Options::default()).unwrap();
    let period = pace_period(QPS) as u64;
    let row = |bytes: i64| Row { quota: bytes << 12, burst: if bytes == 0 { 0 } else { 16 } };
    let frame = |payload| Event::Frame(Frame { q: 5, opcode: op::SEND_ONLY, payload, raw: payload > 4096 });
    // A frame; a frame and, while it is held, a row: no limit, or a higher one.
    for (then, least, most) in [(None, 6, 8), (Some(row(0)), 0, 1), (Some(row(4000)), 0, 2)] {
        for offset in 0..period + 20 {
            pacer(&mut m, QPS);
            put(&mut m, Some(Event::Row(5, row(500))));
            m.tick();
            put(&mut m, None);
            let mut kicks = 0;
            for _ in 0..36 * period + offset {
                kicks += u64::from(kick_of(&m) == Some(5));
                m.tick();
            }
            assert_eq!(kicks, 1, "the row's own");
            // It has 16 KiB: the first frames are kicked for at once.
            for payload in [4096, 4096, 4096, 1000, 6596] {
                put(&mut m, Some(frame(payload)));
                m.tick();
                put(&mut m, None);
                for cycle in 1..14 {
                    let has = cycle == 10 && payload <= 4096;
                    assert_eq!(kick_of(&m), has.then_some(5), "offset {offset}, cycle {cycle}");
                    if !(payload > 4096 && then.is_some() && cycle == 13) {
                        m.tick();
                    }
                }
            }
            if let Some(row) = then {
                put(&mut m, Some(Event::Row(5, row)));
                m.tick();
                put(&mut m, None);
            }
            let start = m.cycle();
            let mut came = vec![];
            for _ in 0..10 * period {
                if kick_of(&m) == Some(5) {
                    came.push((m.cycle() - start) / period);
                }
                m.tick();
            }
            // A visit under way may end both the wait and, at the next one, that of the row.
            let few = (1..=1 + usize::from(then.is_some())).contains(&came.len());
            assert!(few && (least..=most).contains(&came[0]), "offset {offset}: {came:?}, then {then:?}");
        }
    }
}

/// QPs that always have something to send, in turns, as soon as they are kicked: each gets its rate, exactly, and is never further ahead
/// than it may be.
#[test]
fn rates_are_exact_over_time() {
    const QPS: usize = 256;
    let mut m = Model::of(|| Pacer::new(QPS, true), Options::default()).unwrap();
    for seed in 0..2 {
        let mut rng = verilate::rng(seed);
        pacer(&mut m, QPS);
        // Bytes a visit; all together less than a frame of 4 KiB in 80 cycles.
        let quotas = [1.28, 3.7, 128.0, 333.3, 1280.0, 6400.0];
        let active: Vec<(usize, i64)> =
            quotas.iter().enumerate().map(|(i, b)| (i * 40 + 7, (b * 4096.0) as i64)).collect();
        let burst = 64;
        // They have nothing on their way, and are kicked by their rows.
        for (q, quota) in &active {
            put(&mut m, Some(Event::Row(*q, Row { quota: *quota, burst })));
            m.tick();
        }
        put(&mut m, None);
        let start = m.cycle();
        let mut sent = vec![0i64; QPS];
        let mut turns: VecDeque<usize> = VecDeque::new();
        // Frames of turns that are to come, and when.
        let mut coming: VecDeque<(u64, Frame)> = VecDeque::new();
        let (mut most_ahead, mut busy) = (0, 0);
        let cycles = verilate::scale(600_000) as u64;
        // Kicks before the last frame of a turn was sent tell nothing.
        let mut sending = vec![0u64; QPS];
        while m.cycle() < start + cycles {
            let now = m.cycle();
            if let Some(q) = kick_of(&m)
                && sending[q] < now
                && !turns.contains(&q)
            {
                turns.push_back(q);
            }
            if now >= busy
                && let Some(q) = turns.pop_front()
            {
                let size = [64, 1024, 4096][rng.random_range(0..3)];
                let mut at = now + rng.random_range(0..30);
                for _ in 0..4096 / size {
                    at += rng.random_range(2..5);
                    coming.push_back((at, Frame { q, opcode: op::SEND_MIDDLE, payload: size, raw: false }));
                }
                (sending[q], busy) = (at, at);
            }
            let frame = coming.front().filter(|c| c.0 <= now).map(|c| c.1);
            put(&mut m, frame.map(Event::Frame));
            if let Some(f) = frame {
                coming.pop_front();
                sent[f.q] += wire_bytes(f.opcode, f.payload, false, 0);
                if let Some((_, quota)) = active.iter().find(|a| a.0 == f.q) {
                    let earned = (((now - start) / 256 + 1) as i64 * quota) >> 12;
                    most_ahead = most_ahead.max(sent[f.q] - earned);
                }
            }
            m.tick();
        }
        // A turn of 64 frames of 64 bytes.
        let turn = 64 * wire_bytes(op::SEND_MIDDLE, 64, false, 0);
        assert!(most_ahead <= (burst << 10) + 2 * turn, "ahead by {most_ahead}");
        for (q, quota) in active {
            let earned = ((cycles / 256) as i64 * quota) >> 12;
            let off = sent[q] - earned;
            assert!((-quota / 4096 - 4400..=2 * turn).contains(&off), "seed {seed}, QP {q}: {} of {earned}", sent[q]);
        }
    }
}

#[test]
fn acks_are_free() {
    let mut m = Model::of(|| Pacer::new(32, true), Options::default()).unwrap();
    pacer(&mut m, 32);
    put(&mut m, Some(Event::Row(3, Row { quota: 200 << 12, burst: 1 })));
    m.tick();
    for opcode in [op::ACK, wire::CNP] {
        for _ in 0..100 {
            put(&mut m, Some(Event::Frame(Frame { q: 3, opcode, payload: 0, raw: false })));
            m.tick();
        }
    }
    put(&mut m, None);
    // Its row's kick alone; had they been charged, there were one for each, or none for long.
    let mut kicks = 0;
    for _ in 0..2000 {
        kicks += u64::from(m.bit("kicks"));
        m.tick();
    }
    assert!(kicks <= 1);
    put(&mut m, Some(Event::Frame(Frame { q: 3, opcode: op::SEND_ONLY, payload: 4, raw: false })));
    m.tick();
    put(&mut m, None);
    let mut came = false;
    for _ in 0..12 {
        came |= kick_of(&m) == Some(3);
        m.tick();
    }
    assert!(came, "it has tokens");
}

#[test]
fn a_core_without_a_pacer_takes_its_rows() {
    let mut m = Model::of(|| Pacer::new(32, false), Options::default()).unwrap();
    m.reset();
    for _ in 0..1000 {
        put(&mut m, Some(Event::Row(1, Row { quota: 1 << 20, burst: 5 })));
        assert!(!m.bit("kicks"));
        m.tick();
        put(&mut m, Some(Event::Frame(Frame { q: 1, opcode: 0, payload: 100, raw: false })));
        assert!(!m.bit("kicks"));
        m.tick();
    }
}
