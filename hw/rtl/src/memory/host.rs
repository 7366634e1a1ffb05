//! The host as the DMA tests see it: an AXI memory that is as unkind as the protocol allows.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::collections::{HashMap, HashSet, VecDeque};
use verilate::{Model, bench::Actor, bits};

/// The fields of a message, of `widths` bits (at most 64 each).
pub fn fields(bytes: &[u8], widths: &[usize]) -> Vec<u64> {
    let mut at = 0;
    let field = |width: &usize| {
        at += width;
        bits::get(bytes, at - width, *width)
    };
    widths.iter().map(field).collect()
}

/// What host memory holds at an address.
pub fn content(address: u64) -> u8 {
    (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u8
}

struct Burst {
    id: u64,
    address: u64,
    beats: u64,
    sent: u64,
    ready_at: u64,
    error: bool,
}

/// Answers reads: any burst in flight may give the next beat, after a random latency; IDs may not be reused.
pub struct AxiReads {
    prefix: String,
    rng: ChaCha8Rng,
    latency: u64,
    error_rate: f64,
    flight: Vec<Burst>,
    shown: Option<usize>,
    /// Beats that carried an error.
    pub error_beats: u64,
    /// Bursts with an error in any beat.
    pub error_bursts: u64,
    /// Bursts so far.
    pub bursts: u64,
}

impl AxiReads {
    /// `latency` is the most cycles before a burst's first beat; 0 answers in order and without pauses.
    pub fn new(_: &Model, prefix: &str, seed: u64, latency: u64, error_rate: f64) -> Self {
        Self {
            prefix: prefix.into(),
            rng: verilate::rng(seed),
            latency,
            error_rate,
            flight: vec![],
            shown: None,
            error_beats: 0,
            error_bursts: 0,
            bursts: 0,
        }
    }
    fn name(&self, field: &str) -> String {
        format!("{}.{field}", self.prefix)
    }
}

impl Actor for AxiReads {
    fn drive(&mut self, m: &mut Model) {
        let calm = self.latency == 0;
        let pause = |rng: &mut ChaCha8Rng| !calm && rng.random_bool(0.2);
        m.set(self.name("ar_ready").as_str(), u64::from(!pause(&mut self.rng)));
        self.shown = None;
        let now = m.cycle();
        let ready: Vec<usize> = (0..self.flight.len()).filter(|i| self.flight[*i].ready_at <= now).collect();
        let valid = !ready.is_empty() && !pause(&mut self.rng);
        m.set(self.name("r_valid").as_str(), u64::from(valid));
        let width = m.width(self.name("r_data").as_str()) / 8;
        let mut data = vec![0; width];
        let (mut id, mut last, mut resp) = (self.rng.random_range(0..128), self.rng.random_range(0..2), 0);
        if valid {
            let pick = if calm { ready[0] } else { ready[self.rng.random_range(0..ready.len())] };
            let error = self.rng.random_bool(self.error_rate);
            let burst = &mut self.flight[pick];
            let base = (burst.address & !(width as u64 - 1)) + burst.sent * width as u64;
            data.iter_mut().enumerate().for_each(|(i, byte)| *byte = content(base + i as u64));
            (id, last) = (burst.id, u64::from(burst.sent + 1 == burst.beats));
            if error {
                resp = 2 + self.rng.random_range(0..2);
                burst.error = true;
                self.error_beats += 1;
            }
            self.shown = Some(pick);
        }
        m.set_bytes(self.name("r_data").as_str(), &data);
        m.set(self.name("r_id").as_str(), id);
        m.set(self.name("r_last").as_str(), last);
        m.set(self.name("r_resp").as_str(), resp);
    }

    fn observe(&mut self, m: &Model) {
        assert!(m.bit(self.name("r_ready").as_str()));
        if let Some(i) = self.shown {
            self.flight[i].sent += 1;
            if self.flight[i].sent == self.flight[i].beats {
                self.error_bursts += u64::from(self.flight[i].error);
                self.flight.remove(i);
            }
        }
        if m.bit(self.name("ar_valid").as_str()) && m.bit(self.name("ar_ready").as_str()) {
            let (address, id) = (m.get(self.name("ar_addr").as_str()), m.get(self.name("ar_id").as_str()));
            let beats = m.get(self.name("ar_len").as_str()) + 1;
            let width = m.width(self.name("r_data").as_str()) as u64 / 8;
            let end = (address & !(width - 1)) + beats * width - 1;
            assert_eq!(address >> 9, end >> 9, "a burst crosses 512 bytes");
            let ids: HashSet<u64> = self.flight.iter().map(|burst| burst.id).collect();
            assert!(!ids.contains(&id), "ID {id} is in flight");
            let ready_at = m.cycle() + 1 + if self.latency == 0 { 0 } else { self.rng.random_range(0..self.latency) };
            self.flight.push(Burst { id, address, beats, sent: 0, ready_at, error: false });
            self.bursts += 1;
        }
    }

    fn done(&self) -> bool {
        self.flight.is_empty()
    }

    fn status(&self) -> String {
        format!("{} bursts in flight", self.flight.len())
    }
}

/// Takes writes with pauses and answers them in order after a random latency. Addresses and data may come apart.
pub struct AxiWrites {
    prefix: String,
    rng: ChaCha8Rng,
    latency: u64,
    error_rate: f64,
    addresses: VecDeque<(u64, u64)>,
    beats: VecDeque<(Vec<u8>, u64, bool)>,
    answers: VecDeque<(u64, u64)>,
    /// What was written.
    pub memory: HashMap<u64, u8>,
    /// Bursts so far, data beats so far, bursts answered, answers with an error.
    pub bursts: u64,
    pub data_beats: u64,
    pub answered: u64,
    pub errors: u64,
    ready: (bool, bool),
}

impl AxiWrites {
    /// `latency` is the most cycles between the last beat and its answer; 0 also means no pauses.
    pub fn new(prefix: &str, seed: u64, latency: u64, error_rate: f64) -> Self {
        Self {
            prefix: prefix.into(),
            rng: verilate::rng(seed),
            latency,
            error_rate,
            addresses: VecDeque::new(),
            beats: VecDeque::new(),
            answers: VecDeque::new(),
            memory: HashMap::new(),
            bursts: 0,
            data_beats: 0,
            answered: 0,
            errors: 0,
            ready: (false, false),
        }
    }
    fn name(&self, field: &str) -> String {
        format!("{}.{field}", self.prefix)
    }

    /// Performs the oldest burst if all of it is there.
    fn perform(&mut self, now: u64) {
        let Some((address, count)) = self.addresses.front().copied() else { return };
        if self.beats.len() < count as usize {
            return;
        }
        self.addresses.pop_front();
        let width = self.beats[0].0.len() as u64;
        for k in 0..count {
            let (data, strobe, last) = self.beats.pop_front().unwrap();
            assert_eq!(last, k + 1 == count, "w_last in beat {k} of {count}");
            let base = (address & !(width - 1)) + k * width;
            for lane in (0..width).filter(|lane| strobe >> lane & 1 == 1) {
                assert!(base + lane >= address, "a strobe before the address");
                self.memory.insert(base + lane, data[lane as usize]);
            }
        }
        let wait = if self.latency == 0 { 1 } else { self.rng.random_range(1..self.latency) };
        let at = self.answers.back().map_or(0, |answer| answer.0).max(now + wait);
        let error = self.rng.random_bool(self.error_rate);
        self.errors += u64::from(error);
        self.answers.push_back((at, if error { 2 } else { 0 }));
    }
}

impl Actor for AxiWrites {
    fn drive(&mut self, m: &mut Model) {
        let calm = self.latency == 0;
        self.ready = (calm || self.rng.random_bool(0.6), calm || self.rng.random_bool(0.8));
        m.set(self.name("aw_ready").as_str(), u64::from(self.ready.0));
        m.set(self.name("w_ready").as_str(), u64::from(self.ready.1));
        let answer = self.answers.front().filter(|answer| answer.0 <= m.cycle()).map(|answer| answer.1);
        m.set(self.name("b_valid").as_str(), u64::from(answer.is_some()));
        m.set(self.name("b_resp").as_str(), answer.unwrap_or(3));
    }

    fn observe(&mut self, m: &Model) {
        if m.bit(self.name("b_valid").as_str()) && m.bit(self.name("b_ready").as_str()) {
            self.answers.pop_front();
            self.answered += 1;
        }
        let width = m.width(self.name("w_data").as_str()) as u64 / 8;
        if m.bit(self.name("aw_valid").as_str()) && self.ready.0 {
            let (address, beats) = (m.get(self.name("aw_addr").as_str()), m.get(self.name("aw_len").as_str()) + 1);
            let last = (address & !(width - 1)) + beats * width - 1;
            assert_eq!(address >> 12, last >> 12, "a burst crosses 4 KiB");
            self.addresses.push_back((address, beats));
            self.bursts += 1;
        }
        if m.bit(self.name("w_valid").as_str()) && self.ready.1 {
            let data = m.bytes(self.name("w_data").as_str()).to_vec();
            let strobe = m.get(self.name("w_strb").as_str());
            self.beats.push_back((data, strobe, m.bit(self.name("w_last").as_str())));
            self.data_beats += 1;
        }
        self.perform(m.cycle());
    }

    fn done(&self) -> bool {
        self.addresses.is_empty() && self.beats.is_empty() && self.answers.is_empty()
    }

    fn status(&self) -> String {
        format!("{} bursts, {} beats, {} answers open", self.addresses.len(), self.beats.len(), self.answers.len())
    }
}
