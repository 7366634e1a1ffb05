//! Test bench of the transmit block: QPs and GIDs, a host memory behind `access` and `dma_read`, and the frames that
//! must come, built byte by byte from the header formats.

use super::Transmit;
use crate::{msg::*, wire::testing::icrc_of};
use abi::{
    queue::ud_target,
    table::{gid, id, qp_address},
    wire::{self, op_info},
};
use hdl::prelude::*;
use rand::{Rng, RngExt};
use rand_chacha::ChaCha8Rng;
use std::collections::VecDeque;
use verilate::{
    Model, Options, Port,
    bench::{self, Actor, Sink, Source, Stall},
};

pub const QPS: usize = 64;
pub const RING: usize = 32 << 10;
pub const MEMORY: usize = 1 << 20;
/// Reading this key fails with its lower byte as the cause.
pub const BAD_KEY: u32 = 0xbad0_0000;
/// Addresses from here on cannot be read.
pub const HOLE: u64 = 0xf_0000;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gid {
    pub ip6: bool,
    pub vlan: Option<u16>,
    pub mac: [u8; 6],
    pub ip: [u8; 16],
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Address {
    pub dmac: [u8; 6],
    pub gid: usize,
    pub class: u8,
    pub dip: [u8; 16],
    pub sport: u16,
    pub hops: u8,
    pub ip6: bool,
    pub priority: u8,
    pub qpn: u32,
    pub pkey: u16,
    pub flow: u32,
}

#[derive(Clone, Debug)]
pub enum Part {
    Inline(Vec<u8>),
    Memory { key: u32, va: u64, len: usize },
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

pub fn wide<const N: usize>(bytes: &[u8]) -> Bits<N> {
    let mut word: Bits<N> = 0.into();
    bytes.iter().enumerate().for_each(|(i, b)| word.set_bits::<8>(8 * i, u64::from(*b).into()));
    word
}

pub fn random_bytes(rng: &mut ChaCha8Rng, n: usize) -> Vec<u8> {
    let mut bytes = vec![0; n];
    rng.fill_bytes(&mut bytes);
    bytes
}

/// Bus address of a virtual address: pages are shuffled.
fn translate(va: u64) -> u64 {
    let page = va >> 12 & (MEMORY as u64 / 4096 - 1);
    (((page * 37 + 11) % (MEMORY as u64 / 4096)) << 12) | (va & 0xfff)
}

/// `access`, `dma_read` and the QP states.
pub struct Host {
    pub rng: ChaCha8Rng,
    /// By virtual address.
    pub memory: Vec<u8>,
    pub generations: Vec<u8>,
    /// Chance that a beat of data, a chunk comes in a cycle.
    pub rates: (f64, f64),
    /// Full beats and no late translations: for measurements.
    pub plain: bool,
    beat_bytes: usize,
    requests: VecDeque<AccessRequest>,
    chunk: Option<Chunk>,
    /// Pieces of reads in flight: tag, dest, bus address, bytes.
    pieces: Vec<(u64, u64, u64, usize)>,
    views: [Option<u64>; 2],
    view: u64,
    pub reads: usize,
}

struct AccessRequest {
    key: u32,
    va: u64,
    len: u64,
    done: u64,
    wait: u32,
}

fn field(model: &Model, port: &str, at: usize, width: usize) -> u64 {
    verilate::bits::get(model.bytes(port), at, width)
}

impl Host {
    pub fn new(beat_bytes: usize, seed: u64) -> Self {
        let mut rng = verilate::rng(seed);
        let memory = random_bytes(&mut rng, MEMORY);
        Host {
            rng,
            memory,
            generations: vec![0; QPS],
            rates: (0.9, 0.9),
            plain: false,
            beat_bytes,
            requests: VecDeque::new(),
            chunk: None,
            pieces: vec![],
            views: [None; 2],
            view: 0,
            reads: 0,
        }
    }

    pub fn read(&self, va: u64, len: usize) -> Vec<u8> {
        self.memory[va as usize..][..len].to_vec()
    }

    fn at_bus(&self, iova: u64) -> u8 {
        let page = iova >> 12;
        let pages = MEMORY as u64 / 4096;
        let virtual_page = (0..pages).find(|p| (p * 37 + 11) % pages == page).unwrap();
        self.memory[(virtual_page << 12 | iova & 0xfff) as usize]
    }
}

impl Actor for Host {
    fn drive(&mut self, model: &mut Model) {
        let held = self.chunk.is_some();
        if !held
            && self.rng.random_bool(self.rates.1)
            && let Some(request) = self.requests.front_mut()
        {
            if request.wait > 0 {
                request.wait -= 1;
            } else {
                let left = request.len - request.done;
                let va = request.va + request.done;
                let len = left.min(4096 - (va & 0xfff));
                let refused = request.key & 0xffff_0000 == BAD_KEY;
                let last = refused || len == left;
                self.chunk = Some(Chunk {
                    iova: translate(va).into(),
                    len: len.into(),
                    offset: request.done.into(),
                    last,
                    refused,
                    cause: if refused { u64::from(request.key & 0xff) } else { 0 }.into(),
                });
                request.done += len;
                if last {
                    self.requests.pop_front();
                }
            }
        }
        model.set("chunk.valid", u64::from(self.chunk.is_some()));
        if let Some(chunk) = self.chunk {
            model.set_bytes("chunk.data", &verilate::bits::of(chunk));
        }
        let ready = self.rng.random_bool(self.rates.1);
        model.set("req.ready", u64::from(ready));
        let ready = self.pieces.len() < 500 && self.rng.random_bool(self.rates.1);
        model.set("dma.ready", u64::from(ready));
        let mut beat = random_bytes(&mut self.rng, self.beat_bytes);
        let some = !self.pieces.is_empty() && self.rng.random_bool(self.rates.0);
        if some {
            let pick = self.rng.random_range(0..self.pieces.len().min(40));
            let (tag, dest, iova, bytes) = self.pieces.remove(pick);
            let error = iova >= translate_hole() && iova < translate_hole() + 0x1000;
            (0..bytes).for_each(|i| beat[i] = self.at_bus(iova + i as u64));
            let data = DmaData { tag: tag.into(), dest: dest.into(), bytes: (bytes as u64).into(), error };
            model.set_bytes("data", &verilate::bits::of(data));
        }
        model.set_bytes("beat", &beat);
        model.set("data_valid", u64::from(some));
        if let Some(view) = self.views[1] {
            self.view = view;
        }
        model.set("view", self.view);
    }

    fn observe(&mut self, model: &Model) {
        if model.bit("chunk.ready") {
            self.chunk = None;
        }
        if model.bit("req.valid") && model.bit("req.ready") {
            let get = |at, width| field(model, "req.data", at, width);
            let wait = if !self.plain && self.rng.random_bool(0.1) { self.rng.random_range(0..60) } else { 0 };
            assert_eq!(get(96, 14), get(110, 32), "span is the stretch");
            self.requests.push_back(AccessRequest {
                key: get(0, 32) as u32,
                va: get(32, 64),
                len: get(96, 14),
                done: 0,
                wait,
            });
        }
        if model.bit("dma.valid") && model.bit("dma.ready") {
            let get = |at, width| field(model, "dma.data", at, width);
            let (iova, len, tag, dest) = (get(0, 64), get(64, 14) as usize, get(78, 16), get(94, 20));
            assert!((1..=4096).contains(&len));
            self.reads += 1;
            let (mut at, full) = (0, self.plain || self.rng.random_bool(0.7));
            while at < len {
                let most = self.beat_bytes.min(len - at);
                let bytes = if full { most } else { self.rng.random_range(1..=most) };
                self.pieces.push((tag, (dest + at as u64) & 0xf_ffff, iova + at as u64, bytes));
                at += bytes;
            }
        }
        let qpn = model.get("view_addr") as usize;
        let now = model.bit("view_re").then(|| u64::from(self.generations[qpn]) << 3 | 3);
        self.views = [now, self.views[0]];
    }

    fn done(&self) -> bool {
        self.requests.is_empty() && self.chunk.is_none() && self.pieces.is_empty()
    }

    fn status(&self) -> String {
        format!("host: {} requests, {} pieces", self.requests.len(), self.pieces.len())
    }
}

fn translate_hole() -> u64 {
    translate(HOLE)
}

/// Checks that no frame has gaps towards the MAC, and notes when frames end.
pub struct Wire {
    valid: Port,
    ready: Port,
    last: Port,
    inside: bool,
    pub ends: Vec<u64>,
    pub beats: u64,
}

impl Wire {
    fn new(m: &Model) -> Self {
        let port = |name| m.port(name);
        let (valid, ready, last) = (port("mac.valid"), port("mac.ready"), port("mac.last"));
        Wire { valid, ready, last, inside: false, ends: vec![], beats: 0 }
    }
}

impl Actor for Wire {
    fn drive(&mut self, _: &mut Model) {}
    fn observe(&mut self, m: &Model) {
        assert!(!self.inside || m.bit(self.valid), "a gap inside a frame in cycle {}", m.cycle());
        if m.bit(self.valid) && m.bit(self.ready) {
            self.inside = !m.bit(self.last);
            self.beats += 1;
            if m.bit(self.last) {
                self.ends.push(m.cycle());
            }
        }
    }
    fn done(&self) -> bool {
        true
    }
    fn status(&self) -> String {
        format!("wire: {} frames", self.ends.len())
    }
}

/// Sums the counters.
pub struct Counts(pub [u64; 64], pub u64);

impl Actor for Counts {
    fn drive(&mut self, _: &mut Model) {}
    fn observe(&mut self, m: &Model) {
        let pulses = m.get("count");
        (0..64).for_each(|i| self.0[i] += pulses >> i & 1);
        self.1 += m.get("tx_bytes");
    }
    fn done(&self) -> bool {
        true
    }
    fn status(&self) -> String {
        String::new()
    }
}

pub struct Bench {
    pub m: Model,
    pub seg: Source,
    pub inline_data: Source,
    pub quick: Source,
    pub epoch: Source,
    pub reply_epoch: Source,
    pub table: Source,
    pub mac: Sink,
    pub fault: Sink,
    pub left: Sink,
    pub host: Host,
    pub wire: Wire,
    pub counts: Counts,
    pub gids: Vec<Gid>,
    pub addresses: Vec<Address>,
    /// Address handles.
    pub handles: Vec<Address>,
}

/// A small ring and few slots: they wrap often and run full.
pub fn model<const W: usize>() -> Model {
    sized_model::<W>(RING, 16)
}

pub fn sized_model<const W: usize>(ring: usize, slots: usize) -> Model {
    let options = Options { name: Some(format!("Transmit{W}")), ..Options::default() };
    Model::of(|| Transmit::<W>::new(QPS, ring, slots, 250), options).unwrap()
}

impl Bench {
    pub fn new<const W: usize>(mut m: Model, stall: Stall, seed: u64) -> Self {
        m.reset();
        let input = |m: &Model, name, k| Source::new(m, name, stall, seed * 100 + k);
        Bench {
            seg: input(&m, "seg", 1),
            inline_data: input(&m, "inline_data", 2),
            quick: input(&m, "quick", 3),
            epoch: input(&m, "epoch", 4),
            reply_epoch: input(&m, "reply_epoch", 9),
            table: input(&m, "table", 5),
            mac: Sink::new(&m, "mac", stall, seed * 100 + 6),
            fault: Sink::new(&m, "fault", stall, seed * 100 + 7),
            left: Sink::new(&m, "left", Stall::Never, 0),
            host: Host::new(W / 8, seed * 100 + 8),
            wire: Wire::new(&m),
            counts: Counts([0; 64], 0),
            gids: vec![],
            addresses: vec![],
            handles: vec![],
            m,
        }
    }

    pub fn cycle(&mut self) {
        let Bench {
            m, seg, inline_data, quick, epoch, reply_epoch, table, mac, fault, left, host, wire, counts, ..
        } = self;
        bench::cycle(
            m,
            &mut [seg, inline_data, quick, epoch, reply_epoch, table, mac, fault, left, host, wire, counts],
        );
    }

    /// Until all queued work is done, all frames are gone and the pipeline is empty.
    #[track_caller]
    pub fn settle(&mut self) {
        let mut quiet = 0;
        let mut left = 400_000;
        while quiet < 100 {
            let (beats, accepted) = (self.wire.beats, self.m.get("queued"));
            self.cycle();
            let idle = beats == self.wire.beats
                && accepted == self.m.get("gone")
                && [&self.seg, &self.inline_data, &self.quick, &self.epoch, &self.reply_epoch, &self.table]
                    .iter()
                    .all(|s| s.is_empty())
                && self.host.done()
                && !self.m.bit("mac.valid")
                && !self.m.bit("fault.valid");
            quiet = if idle { quiet + 1 } else { 0 };
            left -= 1;
            if left == 0 {
                let parts: Vec<String> =
                    [&self.seg as &dyn Actor, &self.inline_data, &self.quick, &self.mac, &self.host]
                        .iter()
                        .map(|a| a.status())
                        .collect();
                panic!(
                    "not settled: queued {}, gone {}, {}",
                    self.m.get("queued"),
                    self.m.get("gone"),
                    parts.join("; ")
                );
            }
        }
    }

    pub fn write_row(&mut self, table: u8, index: usize, row: &[u8; 64]) {
        self.table.send(TableReq {
            table: u64::from(table).into(),
            index: (index as u64).into(),
            write: true,
            row: wide(row),
        });
    }

    pub fn add_gid(&mut self, entry: Gid) -> usize {
        let index = self.gids.len();
        self.write_row(id::GID, index, &gid_row(&entry));
        self.gids.push(entry);
        index
    }

    pub fn add_qp(&mut self, address: Address) -> usize {
        let index = self.addresses.len();
        self.write_row(id::QP_ADDRESS, index, &address_row(&address));
        self.addresses.push(address);
        index
    }

    /// Its QPN and P_Key aside, it is only an address.
    pub fn add_handle(&mut self, address: Address) -> usize {
        let index = self.handles.len();
        self.write_row(id::AH, index, &handle_row(&address));
        self.handles.push(address);
        index
    }

    /// Where a frame goes.
    fn target(&self, head: &TxHead) -> (&Address, u32) {
        let to = &self.addresses[head.qpn.value() as usize];
        if head.opcode.value() >> 5 != 3 {
            return (to, to.qpn);
        }
        let target = head.va.value().to_le_bytes();
        (&self.handles[ud_target::AH.get(&target) as usize], ud_target::QPN.get(&target) as u32)
    }

    /// Queues a frame; gives its payload.
    pub fn send(&mut self, mut head: TxHead, parts: &[Part]) -> Vec<u8> {
        let mut payload = vec![];
        let lens = parts.iter().map(|part| match part {
            Part::Inline(bytes) => bytes.len(),
            Part::Memory { len, .. } => *len,
        });
        head.payload = (lens.sum::<usize>() as u64).into();
        for (i, part) in parts.iter().enumerate() {
            let mut seg = TxSeg { first: i == 0, last: i + 1 == parts.len(), ..TxSeg::default() };
            if seg.first {
                seg.head = head;
            } else {
                seg.head.qpn = self.host.rng.random_range(0..QPS as u64).into(); // counts on `first` only
            }
            match part {
                Part::Inline(bytes) => {
                    seg.is_inline = true;
                    seg.len = (bytes.len() as u64).into();
                    let mut entry = random_bytes(&mut self.host.rng, 64);
                    entry[..bytes.len()].copy_from_slice(bytes);
                    self.inline_data.send::<Bits<512>>(wide(&entry));
                    payload.extend_from_slice(bytes);
                }
                Part::Memory { key, va, len } => {
                    seg.memory = *len > 0;
                    seg.key = u64::from(*key).into();
                    seg.va = (*va).into();
                    seg.len = (*len as u64).into();
                    payload.extend(self.host.read(*va, *len));
                }
            }
            self.seg.send(seg);
        }
        payload
    }

    /// The frame that the formats demand.
    pub fn expected(&self, head: &TxHead, payload: &[u8]) -> Vec<u8> {
        let mut frame = if head.raw { payload.to_vec() } else { self.roce(head, payload) };
        frame.resize(frame.len().max(wire::MIN_FRAME), 0);
        frame
    }

    /// As [`expected`](Self::expected), before the padding to the smallest Ethernet frame.
    pub fn roce(&self, head: &TxHead, payload: &[u8]) -> Vec<u8> {
        let n = |b: u64| b;
        let (to, qpn) = self.target(head);
        let from = &self.gids[to.gid];
        let opcode = n(head.opcode.value()) as u8;
        let info = op_info(opcode).unwrap();
        let mut bth = vec![opcode];
        let pad = payload.len().wrapping_neg() & 3;
        bth.push(u8::from(head.solicited) << 7 | (pad as u8) << 4);
        bth.extend(to.pkey.to_be_bytes());
        bth.push(if opcode == wire::CNP { 0x40 } else { 0 });
        bth.extend(&qpn.to_be_bytes()[1..]);
        bth.push(u8::from(head.ack_req) << 7);
        bth.extend(&(head.psn.value() as u32).to_be_bytes()[1..]);
        if info.deth {
            bth.extend((head.rkey.value() as u32).to_be_bytes());
            bth.extend((head.msn.value() as u32).to_be_bytes());
        }
        if info.reth {
            bth.extend(head.va.value().to_be_bytes());
            bth.extend((head.rkey.value() as u32).to_be_bytes());
            bth.extend((head.dma_len.value() as u32).to_be_bytes());
        }
        if info.atomic {
            // The operands are the payload.
            bth.extend(head.va.value().to_be_bytes());
            bth.extend((head.rkey.value() as u32).to_be_bytes());
        }
        if info.aeth {
            bth.push(head.syndrome.value() as u8);
            bth.extend(&(head.msn.value() as u32).to_be_bytes()[1..]);
        }
        if info.atomic_ack {
            bth.extend(head.va.value().to_be_bytes());
        }
        if info.imm || info.ieth {
            bth.extend((head.imm.value() as u32).to_le_bytes());
        }
        if opcode == wire::CNP {
            bth.extend([0; 16]);
        }
        bth.extend(payload);
        bth.extend(vec![0; pad]);
        let udp_len = (8 + bth.len() + 4) as u16;
        let mut frame = [to.dmac, from.mac].concat();
        if let Some(vlan) = from.vlan {
            frame.extend([0x81, 0]);
            frame.extend((u16::from(to.priority) << 13 | vlan).to_be_bytes());
        }
        if to.ip6 {
            frame.extend([0x86, 0xdd]);
            frame.extend((6 << 28 | u32::from(to.class) << 20 | to.flow).to_be_bytes());
            frame.extend(udp_len.to_be_bytes());
            frame.extend([17, to.hops]);
            frame.extend(from.ip);
            frame.extend(to.dip);
        } else {
            frame.extend([8, 0]);
            let mut ip = vec![0x45, to.class];
            ip.extend((udp_len + 20).to_be_bytes());
            ip.extend([0, 0, 0x40, 0, to.hops, 17, 0, 0]);
            ip.extend(&from.ip[..4]);
            ip.extend(&to.dip[..4]);
            set_checksum(&mut ip);
            frame.extend(ip);
        }
        frame.extend(to.sport.to_be_bytes());
        frame.extend(wire::ROCE_PORT.to_be_bytes());
        frame.extend(udp_len.to_be_bytes());
        frame.extend([0, 0]);
        frame.extend(bth);
        frame.extend(icrc_of(&frame).to_le_bytes());
        frame
    }
}

/// Sets the checksum of an IPv4 header.
pub fn set_checksum(ip: &mut [u8]) {
    ip[10..12].fill(0);
    let mut sum: u32 = ip[..20].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    ip[10..12].copy_from_slice(&(!sum as u16).to_be_bytes());
}

/// The value of a field, for tests.
pub trait Value {
    fn value(&self) -> u64;
}
impl<const N: usize> Value for Bits<N> {
    fn value(&self) -> u64 {
        number(&verilate::bits::of(*self))
    }
}

pub fn gid_row(entry: &Gid) -> [u8; 64] {
    let mut row = [0; 64];
    gid::VALID.set(&mut row, 1);
    gid::IS_IP6.set(&mut row, u64::from(entry.ip6));
    gid::TAGGED.set(&mut row, u64::from(entry.vlan.is_some()));
    gid::VLAN.set(&mut row, u64::from(entry.vlan.unwrap_or(0)));
    gid::MAC.set(&mut row, number(&entry.mac));
    gid::IP_LOW.set(&mut row, number(&entry.ip[..8]));
    gid::IP_HIGH.set(&mut row, number(&entry.ip[8..]));
    row
}

/// The row of an address handle that exists.
pub fn handle_row(a: &Address) -> [u8; 64] {
    let mut row = address_row(a);
    qp_address::VALID.set(&mut row, 1);
    row
}

pub fn address_row(a: &Address) -> [u8; 64] {
    let mut row = [0; 64];
    qp_address::DMAC.set(&mut row, number(&a.dmac));
    qp_address::GID.set(&mut row, a.gid as u64);
    qp_address::TRAFFIC_CLASS.set(&mut row, u64::from(a.class));
    qp_address::DIP_LOW.set(&mut row, number(&a.dip[..8]));
    qp_address::DIP_HIGH.set(&mut row, number(&a.dip[8..]));
    qp_address::SPORT.set(&mut row, u64::from(a.sport));
    qp_address::HOP_LIMIT.set(&mut row, u64::from(a.hops));
    qp_address::IS_IP6.set(&mut row, u64::from(a.ip6));
    qp_address::PRIORITY.set(&mut row, u64::from(a.priority));
    qp_address::DEST_QPN.set(&mut row, u64::from(a.qpn));
    qp_address::PKEY.set(&mut row, u64::from(a.pkey));
    qp_address::FLOW_LABEL.set(&mut row, u64::from(a.flow));
    row
}
