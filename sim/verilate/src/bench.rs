//! Test-bench kit for streams: sources and sinks with seeded random stalls, which check the stream protocol.
//!
//! A stream is a group of ports with a common prefix: `valid` and the payload go one way, `ready` the other. The payload
//! is whatever else the group has: `data`, `bytes`, `last` for packets, a struct for metadata. The protocol: a
//! transfer happens on a clock edge with `valid` and `ready`; once raised, `valid` stays and the payload is stable until
//! then.

use crate::{Model, Port, bits};
use hdl::prelude::Synth;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::{collections::VecDeque, fmt, sync::Arc};

/// How often a source or sink pauses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stall {
    Never,
    /// In each cycle with this probability.
    Rate(f64),
    /// Phases of random length, from full speed to nearly standing still.
    Random,
}

struct Pauses {
    stall: Stall,
    rate: f64,
    left: u32,
    rng: ChaCha8Rng,
}

impl Pauses {
    fn new(stall: Stall, seed: u64) -> Self {
        Self { stall, rate: 0.0, left: 0, rng: ChaCha8Rng::seed_from_u64(seed.wrapping_add(crate::seed_shift() << 32)) }
    }

    fn now(&mut self) -> bool {
        let rate = match self.stall {
            Stall::Never => return false,
            Stall::Rate(rate) => rate,
            Stall::Random => {
                if self.left == 0 {
                    self.left = self.rng.random_range(1..64);
                    self.rate = [0.0, 0.1, 0.5, 0.9][self.rng.random_range(0..4)];
                }
                self.left -= 1;
                self.rate
            }
        };
        self.rng.random_bool(rate)
    }
}

/// Where the payload of a stream lies in a [`Beat`]: each port in whole bytes, in order.
#[derive(Debug)]
struct Layout {
    prefix: String,
    ports: Vec<Place>,
    /// The fields of struct ports, as `data.psn`.
    fields: Vec<Place>,
    size: usize,
}

#[derive(Debug)]
struct Place {
    name: String,
    port: Port,
    /// First bit in the beat, a multiple of 8 for ports.
    at: usize,
    bits: usize,
}

impl Layout {
    #[track_caller]
    fn find(&self, name: &str) -> &Place {
        let all = || self.ports.iter().chain(&self.fields);
        let short = || all().find(|place| place.name.strip_prefix("data.") == Some(name));
        all().find(|place| place.name == name).or_else(short).unwrap_or_else(|| {
            let names: Vec<_> = all().map(|place| place.name.as_str()).collect();
            panic!("stream `{}` has no `{name}`; it has {}", self.prefix, names.join(", "))
        })
    }
}

/// The two handshake ports and the payload of a stream.
struct Group {
    layout: Arc<Layout>,
    valid: Port,
    ready: Port,
}

impl Group {
    /// `into` says whether the stream enters the block.
    #[track_caller]
    fn new(model: &Model, prefix: &str, into: bool) -> Self {
        // An interface of several channels (AXI) has `ar_valid` rather than `ar.valid`.
        let flat = model.find(&format!("{prefix}_valid")).is_some();
        let start = format!("{prefix}{}", if flat { '_' } else { '.' });
        let (valid, ready) = (model.port(&format!("{start}valid")), model.port(&format!("{start}ready")));
        let start = start.replace(['.', '['], "$").replace(']', "");
        let mut layout = Layout { prefix: prefix.into(), ports: vec![], fields: vec![], size: 0 };
        for info in model.ports() {
            let Some(name) = info.name.strip_prefix(&start) else { continue };
            if name == "ready" || name == "valid" {
                let want = into == (name == "valid");
                assert!(info.input == want, "`{prefix}.{name}` of `{}` points the other way", model.name());
            } else if info.input == into {
                let (port, at, name) = (model.port(&info.name), layout.size * 8, name.replace('$', "."));
                layout.fields.extend(info.fields.iter().map(|(field, lsb, bits)| {
                    let name = format!("{name}.{}", field.replace('$', "."));
                    Place { name, port, at: at + lsb, bits: *bits }
                }));
                layout.ports.push(Place { name, port, at, bits: info.bits });
                layout.size += info.bits.div_ceil(8);
            }
        }
        Self { layout: Arc::new(layout), valid, ready }
    }

    fn write(&self, model: &mut Model, beat: &[u8]) {
        for place in &self.layout.ports {
            model.set_bytes(place.port, &beat[place.at / 8..][..place.bits.div_ceil(8)]);
        }
    }

    fn read(&self, model: &Model) -> Beat {
        let mut bytes = Vec::with_capacity(self.layout.size);
        self.layout.ports.iter().for_each(|place| bytes.extend_from_slice(model.bytes(place.port)));
        Beat { layout: self.layout.clone(), bytes }
    }

    fn beat(&self) -> Beat {
        Beat { layout: self.layout.clone(), bytes: vec![0; self.layout.size] }
    }

    #[track_caller]
    fn message<T: Synth>(&self, message: T) -> Beat {
        let [place] = &self.layout.ports[..] else { panic!("`{}` is not a message channel", self.layout.prefix) };
        assert_eq!(T::BITS, place.bits, "`{}` carries messages of another type", self.layout.prefix);
        Beat { layout: self.layout.clone(), bytes: bits::of(message) }
    }
}

/// One transfer: the values of the payload ports by name (`"data"`, `"last"`) and of the fields of struct ports
/// (`"data.psn"`, or just `"psn"`).
#[derive(Clone)]
pub struct Beat {
    layout: Arc<Layout>,
    bytes: Vec<u8>,
}

impl Beat {
    /// Little-endian value of a port or field.
    #[track_caller]
    pub fn bytes(&self, name: &str) -> Vec<u8> {
        let place = self.layout.find(name);
        bits::get_bytes(&self.bytes, place.at, place.bits)
    }

    /// Value of a port or field of at most 64 bits.
    #[track_caller]
    pub fn get(&self, name: &str) -> u64 {
        let place = self.layout.find(name);
        bits::get(&self.bytes, place.at, place.bits)
    }

    /// Sets a port or field from little-endian bytes; missing high bytes are zero.
    #[track_caller]
    pub fn set_bytes(&mut self, name: &str, value: &[u8]) {
        let place = self.layout.find(name);
        assert!(value.len() <= place.bits.div_ceil(8), "{} bytes do not fit `{name}`", value.len());
        bits::set_bytes(&mut self.bytes, place.at, place.bits, value);
    }

    /// Sets a port or field; `value` must fit.
    #[track_caller]
    pub fn set(&mut self, name: &str, value: u64) {
        let place = self.layout.find(name);
        bits::set(&mut self.bytes, place.at, place.bits, value);
    }

    /// [`set`](Beat::set), to be chained.
    #[track_caller]
    pub fn with(mut self, name: &str, value: u64) -> Self {
        self.set(name, value);
        self
    }
}

impl PartialEq for Beat {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl fmt::Debug for Beat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Fields where there are some, without the structs around them.
        let all = || self.layout.ports.iter().chain(&self.layout.fields);
        let inner = |place: &Place| all().any(|other| other.name.starts_with(&format!("{}.", place.name)));
        let mut map = f.debug_map();
        for place in all().filter(|place| !inner(place)) {
            let value = bits::get_bytes(&self.bytes, place.at, place.bits);
            let digits: String = value.iter().rev().map(|byte| format!("{byte:02x}")).collect();
            map.entry(&format_args!("{}", place.name), &format_args!("{digits}"));
        }
        map.finish()
    }
}

/// What takes part in a clock cycle; [`Source`] and [`Sink`] do, and a test's own models may.
pub trait Actor {
    /// Sets inputs for this cycle.
    fn drive(&mut self, model: &mut Model);
    /// Looks at the settled ports just before the clock edge.
    fn observe(&mut self, model: &Model);
    /// Whether it has done or got all it was told to.
    fn done(&self) -> bool;
    /// For the report when a run takes too long.
    fn status(&self) -> String;
}

/// One clock cycle with all actors.
pub fn cycle(model: &mut Model, actors: &mut [&mut dyn Actor]) {
    actors.iter_mut().for_each(|actor| actor.drive(model));
    model.eval();
    actors.iter_mut().for_each(|actor| actor.observe(model));
    model.tick();
}

/// Runs until all actors are done and 32 cycles more, in which a surplus beat would show. Panics with a report if
/// that takes more than `limit` cycles.
#[track_caller]
pub fn run(model: &mut Model, actors: &mut [&mut dyn Actor], limit: u64) {
    let end = model.cycle() + limit;
    while !actors.iter().all(|actor| actor.done()) {
        if model.cycle() >= end {
            let report: Vec<_> = actors.iter().map(|actor| actor.status()).collect();
            panic!("`{}` is not done after {limit} cycles: {}", model.name(), report.join("; "));
        }
        cycle(model, actors);
    }
    (0..32).for_each(|_| cycle(model, actors));
}

/// Drives a stream into the block: its queue, in order. While `valid` is low the payload is random, and so are the
/// bytes past the end of a packet: the block must not look at them.
pub struct Source {
    group: Group,
    pauses: Pauses,
    queue: VecDeque<Beat>,
    raised: bool,
    sent: u64,
}

impl Source {
    /// The stream with ports `<prefix>.valid`, `<prefix>.ready`, ..
    #[track_caller]
    pub fn new(model: &Model, prefix: &str, stall: Stall, seed: u64) -> Self {
        let group = Group::new(model, prefix, true);
        Self { group, pauses: Pauses::new(stall, seed), queue: VecDeque::new(), raised: false, sent: 0 }
    }

    /// An all-zero beat of this stream, to be filled and pushed.
    pub fn beat(&self) -> Beat {
        self.group.beat()
    }

    /// The beat of a message: for channels whose payload is one struct.
    #[track_caller]
    pub fn message<T: Synth>(&self, message: T) -> Beat {
        self.group.message(message)
    }

    /// Queues a message.
    #[track_caller]
    pub fn send<T: Synth>(&mut self, message: T) {
        self.push(self.message(message));
    }

    /// Queues a beat.
    pub fn push(&mut self, beat: Beat) {
        assert_eq!(beat.bytes.len(), self.group.layout.size, "a beat of another stream");
        self.queue.push_back(beat);
    }

    /// Cuts a packet into beats of `data`, `bytes`, `last`; further fields are zero.
    #[track_caller]
    pub fn push_packet(&mut self, packet: &[u8]) {
        self.push_packet_with(packet, |beat| beat);
    }

    /// As [`push_packet`](Source::push_packet); `edit` may fill further fields of every beat.
    #[track_caller]
    pub fn push_packet_with(&mut self, packet: &[u8], edit: impl Fn(Beat) -> Beat) {
        assert!(!packet.is_empty(), "a packet has at least one byte");
        let width = self.beat().bytes("data").len();
        let count = packet.len().div_ceil(width);
        for (i, chunk) in packet.chunks(width).enumerate() {
            let mut data = vec![0; width];
            self.pauses.rng.fill_bytes(&mut data);
            data[..chunk.len()].copy_from_slice(chunk);
            let mut beat = self.beat().with("bytes", chunk.len() as u64).with("last", u64::from(i + 1 == count));
            beat.set_bytes("data", &data);
            self.push(edit(beat));
        }
    }

    /// Beats not yet taken.
    pub fn len(&self) -> usize {
        self.queue.len()
    }
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

impl Actor for Source {
    fn drive(&mut self, model: &mut Model) {
        if !self.raised {
            self.raised = !self.queue.is_empty() && !self.pauses.now();
        }
        model.set(self.group.valid, u64::from(self.raised));
        if self.raised {
            self.group.write(model, &self.queue[0].bytes);
        } else {
            let mut noise = self.beat();
            self.pauses.rng.fill_bytes(&mut noise.bytes);
            for place in self.group.layout.ports.iter().filter(|place| place.bits % 8 != 0) {
                noise.bytes[(place.at + place.bits) / 8] &= (1 << (place.bits % 8)) - 1;
            }
            self.group.write(model, &noise.bytes);
        }
    }

    fn observe(&mut self, model: &Model) {
        if self.raised && model.bit(self.group.ready) {
            self.queue.pop_front();
            self.sent += 1;
            self.raised = false;
        }
    }

    fn done(&self) -> bool {
        self.queue.is_empty()
    }

    fn status(&self) -> String {
        format!("`{}` took {} beats, {} left", self.group.layout.prefix, self.sent, self.queue.len())
    }
}

/// Takes a stream out of the block and checks its protocol.
pub struct Sink {
    group: Group,
    pauses: Pauses,
    got: VecDeque<Beat>,
    /// The beat that was offered and not taken: it must be offered again.
    held: Option<Beat>,
    /// `ready`, once up, stays until a beat comes; and whether it does now.
    keeps: bool,
    kept: bool,
    beats: u64,
    packets: u64,
    want_beats: u64,
    want_packets: u64,
}

impl Sink {
    /// The stream with ports `<prefix>.valid`, `<prefix>.ready`, ..
    #[track_caller]
    pub fn new(model: &Model, prefix: &str, stall: Stall, seed: u64) -> Self {
        let group = Group::new(model, prefix, false);
        let (got, pauses) = (VecDeque::new(), Pauses::new(stall, seed));
        let (beats, packets, want_beats, want_packets) = (0, 0, 0, 0);
        Self { group, pauses, got, held: None, keeps: false, kept: false, beats, packets, want_beats, want_packets }
    }

    /// `ready`, once up, stays until a beat comes, as that of an arbiter does.
    pub fn keeps_ready(mut self) -> Self {
        self.keeps = true;
        self
    }

    /// [`run`] goes on until this many more beats came.
    pub fn expect(&mut self, beats: u64) {
        self.want_beats = self.want_beats.max(self.beats) + beats;
    }

    /// [`run`] goes on until this many more packets came.
    pub fn expect_packets(&mut self, packets: u64) {
        self.want_packets = self.want_packets.max(self.packets) + packets;
    }

    /// The beat of a message, to compare with.
    #[track_caller]
    pub fn message<T: Synth>(&self, message: T) -> Beat {
        self.group.message(message)
    }

    /// The oldest beat that came.
    pub fn pop(&mut self) -> Option<Beat> {
        self.got.pop_front()
    }

    /// The oldest packet that came in full. Panics when a beat before the last is not full.
    #[track_caller]
    pub fn pop_packet(&mut self) -> Option<Vec<u8>> {
        let end = self.got.iter().position(|beat| beat.get("last") == 1)?;
        let mut packet = Vec::new();
        for (i, beat) in self.got.drain(..=end).enumerate() {
            let (data, bytes) = (beat.bytes("data"), beat.get("bytes") as usize);
            assert!((1..=data.len()).contains(&bytes), "`{}`: {bytes} bytes in beat {i}", self.group.layout.prefix);
            assert!(i == end || bytes == data.len(), "`{}`: beat {i} is not full", self.group.layout.prefix);
            packet.extend_from_slice(&data[..bytes]);
        }
        Some(packet)
    }

    /// Beats that came and were not popped.
    pub fn len(&self) -> usize {
        self.got.len()
    }
    pub fn is_empty(&self) -> bool {
        self.got.is_empty()
    }

    /// Forgets the offered beat: for a reset in mid-stream.
    pub fn after_reset(&mut self) {
        self.held = None;
    }
}

impl Actor for Sink {
    fn drive(&mut self, model: &mut Model) {
        let ready = self.kept || !self.pauses.now();
        self.kept = self.keeps && ready;
        model.set(self.group.ready, u64::from(ready));
    }

    fn observe(&mut self, model: &Model) {
        let (prefix, cycle) = (&self.group.layout.prefix, model.cycle());
        let offered = model.bit(self.group.valid).then(|| self.group.read(model));
        if let Some(held) = self.held.take() {
            let Some(beat) = &offered else { panic!("`{prefix}` dropped valid before ready in cycle {cycle}") };
            assert_eq!(*beat, held, "`{prefix}` changed its payload while stalled in cycle {cycle}");
        }
        let Some(beat) = offered else { return };
        if !model.bit(self.group.ready) {
            self.held = Some(beat);
            return;
        }
        self.kept = false;
        self.beats += 1;
        let mut ports = self.group.layout.ports.iter();
        self.packets += u64::from(ports.any(|place| place.name == "last") && beat.get("last") == 1);
        self.got.push_back(beat);
    }

    fn done(&self) -> bool {
        self.beats >= self.want_beats && self.packets >= self.want_packets
    }

    fn status(&self) -> String {
        let Self { beats, packets, want_beats, want_packets, .. } = self;
        format!("`{}` gave {beats}/{want_beats} beats, {packets}/{want_packets} packets", self.group.layout.prefix)
    }
}
