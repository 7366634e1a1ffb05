//! Atomics against plain arithmetic on a memory, with a host that performs writes late and reads in any order, and a receive buffer
//! and READ resources that are busy.

use super::*;
use crate::memory::dma_read::ATOMIC;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::collections::{HashMap, HashSet, VecDeque};
use verilate::{Model, Options, bits::of, scale};

/// One request, and what must come of it.
struct Wanted {
    qpn: u64,
    slot: u64,
    address: u64,
    found: u64,
    leaves: u64,
    /// It is written, if the host does not refuse the read.
    changes: bool,
}

/// All around the block.
struct World {
    rng: ChaCha8Rng,
    buffer: Vec<u8>,
    memory: HashMap<u64, u64>,
    /// What atomics and writes leave, in their order.
    order: HashMap<u64, u64>,
    /// Landing's register, and the write channel with the cycle from which a write may be performed.
    register: Option<(u64, u64)>,
    channel: VecDeque<(u64, u64, u64)>,
    issued: u64,
    performed: u64,
    /// Reads: tag, address, value if it was looked at already, cycle from which it may come.
    reads: Vec<(u64, u64, Option<u64>, u64)>,
    latency: u64,
    error_rate: f64,
    puts_rate: f64,
    buf_pipe: [Option<usize>; READ_LATENCY],
    /// What is asked next: its data, whether it is offered, and what it is.
    asked: Option<(Exchange, bool, Option<Wanted>)>,
    wanted: VecDeque<Wanted>,
    refused: HashSet<u64>,
    failures: u64,
    told: Option<u64>,
    results: u64,
    answers: u64,
    puts: u64,
    reads_made: u64,
    writes_made: u64,
}

impl World {
    fn new(seed: u64, latency: u64, error_rate: f64, puts_rate: f64) -> Self {
        let mut rng = verilate::rng(seed);
        let buffer = (0..4096).map(|_| rng.random()).collect();
        World {
            rng,
            buffer,
            memory: HashMap::new(),
            order: HashMap::new(),
            register: None,
            channel: VecDeque::new(),
            issued: 0,
            performed: 0,
            reads: vec![],
            latency,
            error_rate,
            puts_rate,
            buf_pipe: [None; READ_LATENCY],
            asked: None,
            wanted: VecDeque::new(),
            refused: HashSet::new(),
            failures: 0,
            told: None,
            results: 0,
            answers: 0,
            puts: 0,
            reads_made: 0,
            writes_made: 0,
        }
    }

    fn word(&self, at: usize) -> u64 {
        (0..8).fold(0, |v, i| v << 8 | self.buffer[(at + i) % 4096] as u64)
    }

    /// A request about one of `addresses`, an answer, or an atomic write, which is void here, as a step is that its key does not allow.
    fn ask(&mut self, addresses: u64) {
        let mut e = Exchange {
            void: self.rng.random_bool(self.puts_rate),
            response: self.rng.random_bool(0.1),
            iova: bits(0x8000_1234_0000_0000 | self.rng.random_range(0..addresses) << 3),
            buf: bits(self.rng.random_range(8..4088)),
            offset: bits(0),
            qpn: bits(self.rng.random_range(0..4096)),
            slot: bits(self.rng.random_range(0..16)),
            adds: self.rng.random(),
        };
        let at = e.buf.to_u64() as usize;
        let address = e.iova.to_u64();
        let now = *self.order.get(&address).unwrap_or(&0);
        if e.response {
            e.offset = bits(if self.rng.random_bool(0.8) { 0 } else { self.rng.random_range(1..8) });
        } else if !e.adds && self.rng.random_bool(0.7) {
            // It finds what it compares with, if all before it do as they should.
            now.to_be_bytes().iter().enumerate().for_each(|(i, b)| self.buffer[at + i] = *b);
        }
        let wanted = (!e.response && !e.void).then(|| {
            let (operand, compare) = (self.word(at - 8), self.word(at));
            let changes = e.adds || compare == now;
            let leaves = if e.adds {
                now.wrapping_add(operand)
            } else if changes {
                operand
            } else {
                now
            };
            Wanted { qpn: e.qpn.to_u64(), slot: e.slot.to_u64(), address, found: now, leaves, changes }
        });
        self.asked = Some((e, false, wanted));
    }

    fn cycle(&mut self, m: &mut Model, rate: f64) {
        let now = m.cycle();
        // The host: a write of somebody else's to an address that no atomic is about; then the oldest is performed.
        if self.register.is_none() && self.rng.random_bool(0.02) {
            let address = 0x8000_1234_0000_0000 | self.rng.random_range(0..16u64) << 3;
            let of_asked = self.asked.as_ref().is_some_and(|(e, ..)| e.iova.to_u64() == address);
            if !of_asked && self.wanted.iter().all(|w| w.address != address) {
                let value = self.rng.random();
                self.order.insert(address, value);
                self.issued += 1;
                self.channel.push_back((address, value, now + self.latency));
            }
        }
        // As landing's register, which others use, too: it may be empty and not for us.
        let empty = self.register.is_none();
        m.set("clear", empty.into());
        m.set("store.ready", (empty && self.rng.random_bool(0.5)).into());
        m.set("issued", self.issued & 0xffff);
        m.set("performed", self.performed & 0xffff);
        // Reads are looked at and come in any order.
        for i in 0..self.reads.len() {
            if self.reads[i].2.is_none() && self.rng.random_bool(0.2) {
                self.reads[i].2 = Some(*self.memory.get(&self.reads[i].1).unwrap_or(&0));
            }
        }
        let ready: Vec<usize> =
            (0..self.reads.len()).filter(|i| self.reads[*i].2.is_some() && self.reads[*i].3 <= now).collect();
        m.set("data_valid", 0);
        let mut beat = vec![0xee; m.width("beat") / 8];
        if !ready.is_empty() && (self.latency == 0 || self.rng.random_bool(0.3)) {
            let (tag, address, value, _) = self.reads.swap_remove(ready[self.rng.random_range(0..ready.len())]);
            let error = self.rng.random_bool(self.error_rate);
            if error {
                self.refused.insert(address);
            }
            beat[..8].copy_from_slice(&value.unwrap().to_le_bytes());
            m.set("data_valid", 1);
            m.set("data.tag", tag);
            m.set("data.error", error.into());
        }
        m.set_bytes("beat", &beat);
        m.set("dma.ready", self.rng.random_bool(0.7).into());
        // Buffer and resources.
        m.set("buf_busy", self.rng.random_bool(0.4).into());
        let mut data = vec![0xdd; m.width("buf_data") / 8];
        if let Some(at) = self.buf_pipe[READ_LATENCY - 1] {
            data.iter_mut().enumerate().for_each(|(i, b)| *b = self.buffer[(at + i) % 4096]);
        }
        m.set_bytes("buf_data", &data);
        m.set("save_ready", self.rng.random_bool(0.5).into());
        if let Some((e, offered, _)) = &mut self.asked {
            *offered |= self.rng.random_bool(rate);
            m.set_bytes("exchange.data", &of(*e));
        }
        m.set("exchange.valid", self.asked.as_ref().is_some_and(|a| a.1).into());
        m.eval();

        // What it does.
        self.buf_pipe.rotate_right(1);
        self.buf_pipe[0] = m.bit("buf_re").then(|| m.get("buf_addr") as usize);
        assert!(!m.bit("buf_re") || !m.bit("buf_busy"), "two read the buffer");
        if m.bit("exchange.valid") && m.bit("exchange.ready") {
            assert!(!m.bit("store.valid"));
            let (e, _, wanted) = self.asked.take().unwrap();
            if e.void && !e.response {
                // Landing may write by itself now: nothing is under way, and what comes later finds it.
                assert!(self.wanted.is_empty() && self.register.is_none(), "an atomic write beside an atomic");
                let (address, value) = (e.iova.to_u64(), self.rng.random());
                self.order.insert(address, value);
                self.channel.push_back((address, value, now + self.latency));
                self.issued += 1;
                self.puts += 1;
            }
            if e.response && !e.void {
                let at = e.buf.to_u64() as usize + 4096 - e.offset.to_u64() as usize;
                assert_eq!(m.get("stored"), self.word(at), "an answer");
                self.answers += 1;
            }
            if let Some(w) = wanted {
                self.order.insert(w.address, w.leaves);
                self.wanted.push_back(w);
            }
        }
        if m.bit("dma.valid") && m.bit("dma.ready") {
            assert_eq!(m.get("dma.data.len"), 8);
            let tag = m.get("dma.data.tag");
            assert!(tag >> ATOMIC == 1);
            assert!(self.reads.iter().all(|r| r.0 != tag), "a tag in use");
            self.reads.push((tag, m.get("dma.data.iova"), None, now + self.latency));
            self.reads_made += 1;
        }
        if m.bit("save") && m.bit("save_ready") {
            let w = self.wanted.pop_front().expect("a result of nothing");
            let at = w.qpn << 4 | w.slot;
            assert_eq!(m.get("save_at"), at);
            if m.bit("failed") {
                assert!(self.refused.contains(&w.address), "failed of itself");
                self.failures += 1;
            } else {
                assert_eq!(m.get("result"), w.found, "what was in memory");
                assert!(!w.changes || self.memory.contains_key(&w.address), "told before it was performed");
            }
            self.told = Some(w.qpn);
            self.results += 1;
        }
        if m.bit("done") {
            assert_eq!(self.told.take(), Some(m.get("done_qp")));
        }
        if let Some(write) = self.register.filter(|_| self.rng.random_bool(0.4)) {
            self.channel.push_back((write.0, write.1, now + self.latency));
            self.issued += 1;
            self.register = None;
        }
        if m.bit("store.valid") && m.bit("store.ready") {
            assert!(self.register.replace((m.get("store.data"), m.get("stored"))).is_none());
            self.writes_made += 1;
        }
        if self.channel.front().is_some_and(|w| w.2 <= now) && self.rng.random_bool(0.7) {
            let (address, value, _) = self.channel.pop_front().unwrap();
            self.memory.insert(address, value);
            self.performed += 1;
        }
        m.tick();
    }
}

fn model<const W: usize>(slots: usize) -> Model {
    let options = Options { name: Some(format!("Atomics{W}x{slots}")), ..Options::default() };
    Model::of(|| Atomics::<W>::new(slots), options).unwrap()
}

fn in_any_mixture<const W: usize>(slots: usize) {
    let mut m = model::<W>(slots);
    for (seed, addresses) in [(1, 1), (2, 2), (3, 5), (4, 16), (5, 1 << 20)] {
        println!("seed {seed}: {addresses} addresses");
        m.reset();
        let mut world = World::new(seed, [0, 30, 100][seed as usize % 3], 0.0, 0.05);
        let n = scale(600) as u64;
        for i in 0..n {
            let rate = if i % 100 < 50 { 1.0 } else { 0.05 };
            world.ask(addresses);
            let from = m.cycle();
            while world.asked.is_some() {
                world.cycle(&mut m, rate);
                assert!(m.cycle() - from < 5000, "it takes nothing");
            }
        }
        let from = m.cycle();
        while m.get("filled") != m.get("emptied") || !world.channel.is_empty() || world.register.is_some() {
            world.cycle(&mut m, 0.0);
            assert!(m.cycle() - from < 5000, "it ends nothing");
        }
        assert!(world.results > n / 2 && world.answers > n / 20 && world.puts > n / 40);
        assert!(
            world.order.iter().all(|(at, v)| world.memory.get(at).unwrap_or(&0) == v),
            "memory as the order has it"
        );
        assert!(world.wanted.is_empty() && world.told.is_none());
        let (reads, results) = (world.reads_made, world.results);
        assert!(if slots > 1 && addresses == 1 {
            reads * 2 < results
        } else {
            addresses < 1 << 20 || reads == results
        });
        println!("{results} results, {reads} reads, {} writes", world.writes_made);
    }
}

#[test]
fn one_after_the_other_whatever_is_under_way() {
    in_any_mixture::<64>(1);
    in_any_mixture::<64>(SLOTS);
    in_any_mixture::<512>(SLOTS);
}

/// What the host refuses to read is not written, nor what follows it; the others go on.
#[test]
fn a_refused_read_fails_alone() {
    let mut m = model::<64>(SLOTS);
    m.reset();
    let mut world = World::new(9, 20, 0.2, 0.0);
    for _ in 0..scale(400) {
        // An address that was refused may hold anything but what was written to it.
        world.ask(1 << 30);
        while world.asked.is_some() {
            world.cycle(&mut m, 1.0);
        }
    }
    while !world.wanted.is_empty() {
        world.cycle(&mut m, 0.0);
    }
    let refused = world.refused.len() as u64;
    assert!(refused > 20 && world.failures == refused && world.results > 3 * refused);
    assert!(world.memory.keys().all(|at| !world.refused.contains(at)), "written though it could not be read");
}

/// Cycles from one to the next, all about one address or each about its own, where the host takes 137 cycles to read and 60 to write.
#[test]
fn rate() {
    let mut m = model::<512>(SLOTS);
    for addresses in [1, 1 << 30] {
        m.reset();
        let mut world = World::new(3, 140, 0.0, 0.0);
        let (n, from) = (200, m.cycle());
        let mut done = 0;
        while done < n {
            if world.asked.is_none() {
                world.ask(addresses);
                done += 1;
            }
            world.cycle(&mut m, 1.0);
        }
        let each = (m.cycle() - from) / n;
        println!("{addresses} addresses: a request every {each} cycles");
        assert!(each <= 48, "{each} cycles");
    }
}
