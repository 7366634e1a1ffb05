//! What tests of the control room share: host memory behind a block's `read`, `data` and `write` ports.

use crate::msg::DmaData;
use hdl::prelude::*;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::collections::HashMap;
use verilate::{
    Model,
    bench::{Actor, Sink, Stall},
    bits as raw,
};

/// Host memory; reads come back in pieces, in any order.
pub struct HostMemory {
    read: Sink,
    write: Sink,
    bytes: HashMap<u64, u8>,
    /// Pieces of answers on their way, and when they may come.
    pieces: Vec<(u64, DmaData, Vec<u8>)>,
    rng: ChaCha8Rng,
    width: usize,
    /// Most cycles until a piece comes.
    pub latency: u64,
    /// Answers carry errors.
    pub fail: bool,
}

impl HostMemory {
    pub fn new(m: &Model, seed: u64) -> Self {
        Self {
            read: Sink::new(m, "read", Stall::Random, seed),
            write: Sink::new(m, "write", Stall::Random, seed + 1),
            bytes: HashMap::new(),
            pieces: vec![],
            rng: verilate::rng(seed),
            width: m.width("beat") / 8,
            latency: 60,
            fail: false,
        }
    }

    pub fn put(&mut self, at: u64, bytes: &[u8]) {
        self.bytes.extend((at..).zip(bytes.iter().copied()));
    }

    pub fn get(&self, at: u64, bytes: usize) -> Vec<u8> {
        (at..at + bytes as u64).map(|a| self.bytes.get(&a).copied().unwrap_or(0)).collect()
    }
}

impl Actor for HostMemory {
    fn drive(&mut self, m: &mut Model) {
        self.read.drive(m);
        self.write.drive(m);
        let now = m.cycle();
        let ready: Vec<_> = (0..self.pieces.len()).filter(|i| self.pieces[*i].0 <= now).collect();
        m.set("data_valid", 0);
        if !ready.is_empty() && self.rng.random_bool(0.8) {
            let (_, data, bytes) = self.pieces.swap_remove(ready[self.rng.random_range(0..ready.len())]);
            m.set_bytes("data", &raw::of(data));
            m.set_bytes("beat", &bytes);
            m.set("data_valid", 1);
        }
    }

    fn observe(&mut self, m: &Model) {
        self.read.observe(m);
        self.write.observe(m);
        while let Some(r) = self.read.pop() {
            let (mut at, end) = (r.get("iova"), r.get("iova") + r.get("len"));
            assert!(r.get("len") <= 4096);
            while at < end {
                let n = (end - at).min(self.width as u64 - at % self.width as u64);
                let mut bytes = self.get(at, n as usize);
                bytes.resize(self.width, 0xee);
                let data = DmaData {
                    tag: 0.into(),
                    dest: bits::<20>(r.get("dest") + at - r.get("iova")),
                    bytes: bits::<7>(n),
                    error: self.fail,
                };
                self.pieces.push((m.cycle() + self.rng.random_range(1..=self.latency), data, bytes));
                at += n;
            }
        }
        while let Some(w) = self.write.pop() {
            assert!(w.get("is_inline") == 1 && (1..=32).contains(&w.get("len")));
            self.put(w.get("iova"), &w.bytes("data.data")[..w.get("len") as usize]);
        }
    }

    fn done(&self) -> bool {
        self.pieces.is_empty()
    }

    fn status(&self) -> String {
        format!("{} pieces on their way", self.pieces.len())
    }
}
