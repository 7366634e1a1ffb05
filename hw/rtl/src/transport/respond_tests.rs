//! The response engine against a plain reference, which sees the same messages go in and says what must come out next.

use super::kit::*;
use super::respond::Respond;
use crate::msg::*;
use abi::{
    status::{cause, counter},
    table::{id, pace, qp_recv, qp_state},
    wire::op,
};
use hdl::prelude::*;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, VecDeque};
use verilate::{
    Model,
    bench::{self, Actor, Sink, Source, Stall},
};

const QPS: usize = 64;
const M24: u64 = 0xff_ffff;

/// A frame: opcode, PSN, payload, address, key, syndrome, MSN, whether it may have come before.
type Frame = (u8, u64, u64, u64, u64, u64, u64, bool);

/// What a QP owes, in plain numbers.
#[derive(Clone, Debug, Default)]
struct Reference {
    mtu: u64,
    /// READ responses under way: slot, next packet, begun, asked for again.
    reads: VecDeque<(usize, u64, bool, bool)>,
    resources: [(u64, u64, u64, u64, u64); 16],
    /// Which of them are atomics, not done or done.
    atomics: [Option<bool>; 16],
    ack: Option<(u64, u64, u64)>,
    silent: bool,
    /// Next PSN of READ responses.
    cursor: u64,
    /// Times it went back, and the epoch that was told.
    epoch: u64,
    told: u64,
    answered: u64,
    dropped: u64,
}

impl Reference {
    fn go(&mut self, r: &Reply) {
        let (psn, slot) = (r.psn.to_u64(), r.slot.to_u64() as usize);
        if self.silent {
            return;
        }
        if r.read {
            let goes_on = self.reads.back().is_some_and(|b| (b.0 + 1) % 16 == slot) && self.reads.len() < 16;
            let fresh = || self.reads.iter().filter(|r| !r.3).count() as u64;
            if !goes_on || r.again {
                self.dropped += fresh();
                self.reads.iter_mut().for_each(|r| r.3 = true);
            }
            if !goes_on {
                self.reads.clear();
                let goes_back = psn.wrapping_sub(self.cursor) & M24 >= 1 << 23;
                self.epoch = (self.epoch + u64::from(r.again && goes_back)) & 0xff;
                self.cursor = psn;
            }
            let (start, ..) = self.resources[slot];
            let at = if goes_on { 0 } else { psn.wrapping_sub(start) & M24 };
            self.reads.push_back((slot, at, false, r.again));
            if !r.again {
                self.ack = None;
            }
        } else if self.ack.is_none_or(|(old, ..)| psn.wrapping_sub(old) & M24 < 1 << 23) {
            self.ack = Some((psn, r.msn.to_u64(), r.syndrome.to_u64()));
        }
    }
    fn fault(&mut self, psn: u64, why: u64) {
        let syndrome = if why == cause::DMA_ERROR as u64 { 0x63 } else { 0x62 };
        self.reads.clear();
        self.ack = Some((psn, self.ack.map_or(0, |a| a.1), syndrome));
        self.silent = true;
    }
    /// The frame that must come next.
    fn next(&mut self) -> Option<Frame> {
        if let Some(&mut (slot, ref mut at, ref mut begun, again)) = self.reads.front_mut() {
            let (psn, va, key, length, msn) = self.resources[slot];
            let before = *at * self.mtu;
            let n = (length - before).min(self.mtu);
            let ends = before + n == length;
            assert_ne!(self.atomics[slot], Some(false), "an answer to an atomic that is not done");
            let opcode = match (*begun, ends) {
                _ if self.atomics[slot].is_some() => op::ATOMIC_ACK,
                (false, false) => op::READ_RESPONSE_FIRST,
                (true, false) => op::READ_RESPONSE_MIDDLE,
                (true, true) => op::READ_RESPONSE_LAST,
                (false, true) => op::READ_RESPONSE_ONLY,
            };
            let frame = (opcode, (psn + *at) & M24, n, va + before, key, 0x1f, msn, again);
            self.cursor = (psn + *at + 1) & M24;
            (*at, *begun) = (*at + 1, true);
            if ends {
                self.answered += !again as u64;
                self.reads.pop_front();
            }
            return Some(frame);
        }
        self.ack.take().map(|(psn, msn, syndrome)| (op::ACK, psn, 0, 0, 0, syndrome, msn, false))
    }
}

struct Around {
    view: ReadPort<[u64; 1]>,
    res: ReadPort<[u64; 1]>,
    qps: Vec<Reference>,
    rng: ChaCha8Rng,
    /// The transmit ring: QPs of frames before they have a number, and those in it.
    coming: VecDeque<u64>,
    ring: VecDeque<u64>,
    queued: u16,
    gone: u16,
    fresh: [bool; 2],
    /// ACKs and NAKs that came out.
    acks: u64,
    naks: u64,
    frames: u64,
    atomics: u64,
    quick: u64,
    /// QPs of all frames, in order.
    order: Vec<u64>,
    drain: bool,
    /// Replies to come: the next one is announced in half of the cycles.
    replies: VecDeque<ReplyGo>,
    /// Atomics that are not done; QPs of those that are, and this is not told.
    pending: VecDeque<(usize, usize)>,
    told: VecDeque<u64>,
    /// QPs whose number has bit 1 set are paced: when each is kicked, behind its last READ response, if ever; and what it sent since it was.
    paced: bool,
    kicks: BTreeMap<u64, u64>,
    never: bool,
    sent: Vec<u64>,
}

impl Actor for Around {
    fn drive(&mut self, m: &mut Model) {
        let qps = &self.qps;
        self.view.drive(m, |[q]| {
            let generation = (q + 3) & 0xff;
            let state = if q == 5 { qp_state::INIT } else { qp_state::RTS } as u64;
            vec![bytes_of(QpView { state: state.to_bits(), generation: generation.to_bits() })]
        });
        self.res.drive(m, |[at]| {
            let (psn, va, rkey, length, msn) = qps[at as usize / 16].resources[at as usize % 16];
            let atomic = qps[at as usize / 16].atomics[at as usize % 16];
            vec![bytes_of(ReadResource {
                psn: psn.to_bits(),
                msn: msn.to_bits(),
                va: va.to_bits(),
                rkey: rkey.to_bits(),
                length: length.to_bits(),
                atomic: atomic.is_some(),
                done: atomic == Some(true),
                failed: false,
            })]
        });
        while self.coming.len() > 8 || !self.coming.is_empty() && self.rng.random_bool(0.3) {
            self.ring.push_back(self.coming.pop_front().unwrap());
            self.queued = self.queued.wrapping_add(1);
        }
        if self.rng.random_bool(0.05) && !self.ring.is_empty() {
            self.ring.pop_front();
            self.gone = self.gone.wrapping_add(1);
        }
        let soon = self.replies.front().filter(|_| self.rng.random_bool(0.5));
        m.set("soon_valid", soon.is_some().into());
        if let Some(go) = soon {
            m.set_bytes("soon", &bytes_of(*go));
        }
        // An atomic is done, and that is told a cycle or more later.
        m.set("done", 0);
        if let Some(q) = self.told.pop_front() {
            m.set("done", 1);
            m.set("done_qp", q);
        }
        let (q, slot) = (self.rng.random_range(0..QPS), self.rng.random_range(0..16));
        let done = self.rng.random_bool(0.02).then_some((q, slot));
        let next = if self.rng.random_bool(0.03) { self.pending.pop_front() } else { None };
        for (q, slot) in done.into_iter().chain(next) {
            if self.qps[q].atomics[slot] == Some(false) {
                self.qps[q].atomics[slot] = Some(true);
                self.told.push_back(q as u64);
            }
        }
        let kick = self.kicks.iter().find(|k| *k.1 <= m.cycle() && !self.never).map(|k| *k.0);
        m.set("paces", kick.is_some().into());
        if let Some(q) = kick {
            m.set("pace", q);
            self.kicks.remove(&q);
            self.sent[q as usize] = 0;
        }
        m.set("epoch.ready", self.rng.random_bool(0.7).into());
        m.set("queued", self.queued as u64);
        m.set("gone", self.gone as u64);
    }
    fn observe(&mut self, m: &Model) {
        self.view.observe(m);
        self.res.observe(m);
        if m.bit("epoch.valid") && m.bit("epoch.ready") {
            let mark = fields_of::<EpochMark>(m.bytes("epoch.data"));
            let get = |k: &str| mark.get(k).copied().unwrap_or(0) as u64;
            self.qps[get("qpn") as usize].told = get("epoch");
        }
        // What leaves is for egress to count.
        assert_eq!(m.get("count") & !(1 << counter::STALE_GENERATION), 0);
        if m.bit("go.valid") && m.bit("go.ready") {
            let go = fields_of::<ReplyGo>(m.bytes("go.data"));
            self.replies.pop_front();
            let get = |k: &str| go.get(k).copied().unwrap_or(0) as u64;
            let q = get("qpn");
            if get("generation") == (q + 3) & 0xff && q != 5 {
                let reply = Reply {
                    counted: get("reply.counted") != 0,
                    ack: get("reply.ack") != 0,
                    read: get("reply.read") != 0,
                    atomic: get("reply.atomic") != 0,
                    again: get("reply.again") != 0,
                    psn: get("reply.psn").to_bits(),
                    msn: get("reply.msn").to_bits(),
                    syndrome: get("reply.syndrome").to_bits(),
                    slot: get("reply.slot").to_bits(),
                };
                self.qps[q as usize].go(&reply);
            }
        }
        // Frames, when they appear: the one that appears as a reply is taken is its own.
        for (i, name) in ["seg", "quick"].into_iter().enumerate() {
            let valid = m.bit(format!("{name}.valid").as_str());
            if valid && self.fresh[i] {
                let data = m.bytes(format!("{name}.data").as_str());
                let map = if i == 0 { fields_of::<TxSeg>(data) } else { fields_of::<TxHead>(data) };
                let prefix = if i == 0 { "head." } else { "" };
                let head = |k: &str| map.get(&format!("{prefix}{k}")).copied().unwrap_or(0) as u64;
                if i == 0 {
                    assert_eq!(map.get("memory").is_some_and(|x| *x != 0), map.get("len").is_some_and(|x| *x != 0));
                }
                if head("opcode") as u8 == op::ATOMIC_ACK {
                    assert_eq!(head("va"), map["va"] as u64, "its result");
                    self.atomics += 1;
                }
                // A segment of no bytes names no memory.
                let names = |k: &str| i == 0 && (head("opcode") as u8 != op::ACK || !["va", "key"].contains(&k));
                let seg = |k: &str| if names(k) { map.get(k).copied().unwrap_or(0) as u64 } else { 0 };
                let q = head("qpn");
                let want = self.qps[q as usize].next().unwrap_or_else(|| panic!("QP {q} owes nothing: {map:?}"));
                // The MSN of a NAK for a fault is that of the latest reply: it says nothing new.
                let msn = if matches!(want.5, 0x62 | 0x63) { want.6 } else { head("msn") };
                let opcode = head("opcode") as u8;
                let (psn, payload, syndrome, again) =
                    (head("psn"), head("payload"), head("syndrome"), head("again") != 0);
                let got = (opcode, psn, payload, seg("va"), seg("key"), syndrome, msn, again);
                assert_eq!(got, want, "QP {q}, cycle {}", m.cycle());
                assert_eq!(head("generation"), (q + 3) & 0xff);
                // Such a NAK waits for nothing.
                let of_fault = want.0 == op::ACK && self.qps[q as usize].silent;
                assert_eq!((head("of_fault") != 0, of_fault && i == 0), (of_fault, false));
                if want.0 != op::ACK {
                    let r = &self.qps[q as usize];
                    assert_eq!((head("epoch"), r.told), (r.epoch, r.epoch), "epoch of QP {q}");
                }
                if i == 0 {
                    assert_eq!((seg("first"), seg("last"), seg("len")), (1, 1, head("payload")));
                    let data = want.0 != op::ACK;
                    assert_eq!((seg("pd"), seg("need")), (0x700 + q, if data { 4 } else { 0 }));
                    self.coming.push_back(q);
                } else if of_fault {
                    // Of what is still in the ring nothing goes.
                    self.quick += 1;
                } else {
                    assert!(!self.ring.contains(&q) && !self.coming.contains(&q), "overtakes a READ response");
                    self.quick += 1;
                }
                if want.0 != op::ACK && self.paced && q & 2 != 0 {
                    // A turn at most.
                    let frames = &mut self.sent[q as usize];
                    *frames += 1;
                    let mtu = self.qps[q as usize].mtu;
                    assert!(*frames * mtu <= 4096, "QP {q} sends {frames} frames of {mtu} without a kick");
                    self.kicks.insert(q, m.cycle() + self.rng.random_range(6..300));
                }
                if want.0 == op::ACK {
                    *if want.5 >> 5 == 0 { &mut self.acks } else { &mut self.naks } += 1;
                }
                self.frames += 1;
                self.order.push(q);
            }
            self.fresh[i] = !valid || m.bit(format!("{name}.ready").as_str());
        }
        if m.bit("fault.valid") && m.bit("fault.ready") {
            let fault = fields_of::<TxFault>(m.bytes("fault.data"));
            let get = |k: &str| fault.get(k).copied().unwrap_or(0) as u64;
            self.qps[get("qpn") as usize].fault(get("psn"), get("cause"));
        }
    }
    fn done(&self) -> bool {
        !self.drain || self.qps.iter().all(|q| q.reads.is_empty() && q.ack.is_none())
    }
    fn status(&self) -> String {
        let open: Vec<_> =
            self.qps.iter().enumerate().filter(|(_, q)| !q.reads.is_empty() || q.ack.is_some()).collect();
        format!("owed: {open:?}")
    }
}

fn model() -> Model {
    Model::of(|| Respond::<QPS>::new(true), options()).unwrap()
}

fn load(m: &mut Model, q: usize, mtu: u64) {
    load_paced(m, q, mtu, false);
}

fn load_paced(m: &mut Model, q: usize, mtu: u64, paced: bool) {
    let mut row = [0; 64];
    put(&mut row, qp_recv::MTU, (mtu / 256).trailing_zeros() as u64 + 1);
    put(&mut row, qp_recv::LOAD, 1);
    put(&mut row, qp_recv::PD, 0x700 + q as u64);
    m.set("epoch.ready", 1); // a QP that is loaded begins with an epoch
    write_row(m, id::QP_RECV, q as u64, &row);
    if paced && q & 2 != 0 {
        pace(m, q, 0x88 | 1 << 20);
    }
}

fn pace(m: &mut Model, q: usize, quota: u64) {
    // Other bits would load, were they in another row.
    let mut row = [0; 64];
    put(&mut row, pace::QUOTA, quota);
    put(&mut row, pace::BURST, 0xff);
    write_row(m, id::PACE, q as u64, &row);
}

fn around(m: &Model, qps: Vec<Reference>, seed: u64) -> Around {
    Around {
        view: ReadPort::new(m, "view_re", ["view_addr"], &["view"]),
        res: ReadPort::new(m, "res_re", ["res_addr"], &["res"]),
        qps,
        rng: verilate::rng(seed),
        coming: VecDeque::new(),
        ring: VecDeque::new(),
        queued: 0xfff0,
        gone: 0xfff0,
        fresh: [true; 2],
        acks: 0,
        naks: 0,
        frames: 0,
        atomics: 0,
        quick: 0,
        order: vec![],
        drain: true,
        replies: VecDeque::new(),
        pending: VecDeque::new(),
        told: VecDeque::new(),
        paced: false,
        kicks: BTreeMap::new(),
        never: false,
        sent: vec![0; QPS],
    }
}

fn push(source: &mut Source, a: &mut Around, q: u64, reply: Reply) {
    let go = ReplyGo { qpn: q.to_bits(), generation: ((q + 3) & 0xff).to_bits(), reply };
    let mut beat = source.beat();
    beat.set_bytes("data", &bytes_of(go));
    source.push(beat);
    a.replies.push_back(go);
}

fn ack(psn: u64, msn: u64, syndrome: u64) -> Reply {
    Reply {
        ack: true,
        psn: (psn & M24).to_bits(),
        msn: msn.to_bits(),
        syndrome: syndrome.to_bits(),
        ..Default::default()
    }
}

fn read(psn: u64, slot: u64, again: bool) -> Reply {
    Reply { read: true, again, psn: (psn & M24).to_bits(), slot: slot.to_bits(), ..Default::default() }
}

#[test]
fn random_replies_leave_in_order_of_their_requests() {
    let mut m = model();
    for seed in 0..verilate::scale(9) as u64 {
        let stall = [Stall::Never, Stall::Rate(0.5), Stall::Random][seed as usize % 3];
        let mut rng = verilate::rng(seed);
        m.reset();
        let mut qps = vec![Reference::default(); QPS];
        let mut psns = vec![];
        for (q, r) in qps.iter_mut().enumerate() {
            r.mtu = 256 << rng.random_range(0..5);
            let start = [0, M24 - 10, rng.random::<u64>() & M24][rng.random_range(0..3)];
            // Sixteen resources, used once each: their PSNs lie behind each other with gaps.
            let mut psn = start;
            for (slot, atomic) in r.resources.iter_mut().zip(&mut r.atomics) {
                psn += rng.random_range(0..3);
                *atomic = rng.random_bool(0.3).then_some(false);
                let length = [0, 1, r.mtu, rng.random_range(0..6 * r.mtu)][rng.random_range(0..4)];
                let length = if atomic.is_some() { 0 } else { length };
                *slot = (psn & M24, rng.random::<u64>() >> 1, rng.random::<u32>() as u64, length, psn & 0xff);
                psn += length.div_ceil(r.mtu).max(1);
            }
            psns.push((0usize, start));
            load_paced(&mut m, q, r.mtu, true);
        }
        let active = rng.random_range(1..QPS);
        let mut a = around(&m, qps.clone(), seed);
        a.paced = true;
        let mut go = Source::new(&m, "go", stall, seed);
        let mut fault = Source::new(&m, "fault", Stall::Rate(0.99), seed);
        let mut seg = Sink::new(&m, "seg", stall, seed + 1);
        let mut quick = Sink::new(&m, "quick", stall, seed + 2);
        let mut error = Sink::new(&m, "error", stall, seed + 3);
        let mut faulty = 0;
        for _ in 0..1000 {
            let q = rng.random_range(0..active);
            let (slot, psn) = &mut psns[q];
            let r = &qps[q];
            match rng.random_range(0..10) {
                0..2 if *slot < 16 => {
                    let (start, _, _, length, _) = r.resources[*slot];
                    let mut reply = read(start, *slot as u64, false);
                    reply.atomic = r.atomics[*slot].is_some();
                    if reply.atomic {
                        a.pending.push_back((q, *slot));
                    }
                    push(&mut go, &mut a, q as u64, reply);
                    *psn = start + length.div_ceil(r.mtu).max(1);
                    *slot += 1;
                }
                2 if *slot > 0 => {
                    let from = rng.random_range(0..*slot);
                    let (start, _, _, length, _) = r.resources[from];
                    let skip = rng.random_range(0..length.div_ceil(r.mtu).max(1));
                    push(&mut go, &mut a, q as u64, read(start + skip, from as u64, true));
                    // What follows it comes again, or not all of it.
                    for next in from + 1..*slot {
                        if rng.random_bool(0.9) {
                            push(&mut go, &mut a, q as u64, read(r.resources[next].0, next as u64, true));
                        }
                    }
                }
                3 => push(&mut go, &mut a, q as u64, ack(*psn, 1, [0x60, 0x2c][rng.random_range(0..2)])),
                4 => push(&mut go, &mut a, q as u64, ack(*psn + M24, 0, 0x1f)),
                _ => {
                    push(&mut go, &mut a, q as u64, ack(*psn, *psn & 0xff, 0x1f));
                    *psn += 1;
                }
            }
        }
        if seed % 2 == 0 {
            for q in [1, 2].into_iter().filter(|q| *q < active) {
                let f = TxFault {
                    qpn: (q as u64).to_bits(),
                    generation: (q as u64 + 3).to_bits(),
                    psn: 77u64.to_bits(),
                    cause: ([cause::KEY_BOUNDS, cause::DMA_ERROR][q - 1] as u64).to_bits(),
                    ..Default::default()
                };
                let mut beat = fault.beat();
                beat.set_bytes("data", &bytes_of(f));
                fault.push(beat);
                faulty += 1;
            }
        }
        error.expect(faulty);
        bench::run(&mut m, &mut [&mut go, &mut fault, &mut a, &mut seg, &mut quick, &mut error], 400_000);
        assert_eq!(error.len() as u64, faulty);
        // READs answered, as the responder sees them.
        for (q, r) in a.qps.iter().enumerate() {
            if r.silent {
                continue;
            }
            m.set("reads_addr", q as u64);
            m.set("reads_re", 1);
            m.tick();
            m.tick();
            assert_eq!(m.get("reads"), (r.answered + r.dropped) & 0xff, "READs answered of QP {q}, seed {seed}");
        }
        m.set("reads_re", 0);
        println!("seed {seed}: {} frames, {} past the ring, {} NAKs, {} atomics", a.frames, a.quick, a.naks, a.atomics);
        assert!(a.atomics > 0);
    }
}

/// Runs replies of one QP to the end and gives back frames, cycles.
fn run(resources: &[(u64, u64, u64, u64, u64)], replies: &[(u64, Reply)], faults: &[(u64, u8)]) -> (u64, u64, Around) {
    let mut m = model();
    m.reset();
    let mut qps = vec![Reference { mtu: 1024, ..Default::default() }; QPS];
    for (q, r) in qps.iter_mut().enumerate() {
        r.resources[..resources.len()].copy_from_slice(resources);
        load(&mut m, q, 1024);
    }
    let mut a = around(&m, qps, 1);
    let mut go = Source::new(&m, "go", Stall::Never, 1);
    let mut fault = Source::new(&m, "fault", Stall::Never, 1);
    let mut seg = Sink::new(&m, "seg", Stall::Never, 2);
    let mut quick = Sink::new(&m, "quick", Stall::Never, 3);
    let mut error = Sink::new(&m, "error", Stall::Never, 4);
    for (q, reply) in replies {
        push(&mut go, &mut a, *q, *reply);
    }
    for &(psn, why) in faults {
        let mut beat = fault.beat();
        let f = TxFault {
            qpn: 1u64.to_bits(),
            generation: 4u64.to_bits(),
            psn: psn.to_bits(),
            cause: (why as u64).to_bits(),
            ..Default::default()
        };
        beat.set_bytes("data", &bytes_of(f));
        fault.push(beat);
    }
    let start = m.cycle();
    bench::run(&mut m, &mut [&mut go, &mut fault, &mut a, &mut seg, &mut quick, &mut error], 100_000);
    (a.frames, m.cycle() - start - 32, a)
}

/// QPs 1 and 2, of which the second is paced, and what they have sent when QP 2 was kicked so often.
#[test]
fn a_paced_qp_answers_reads_by_turns_and_acks_at_once() {
    let resources = [(100, 0x5000, 7, 10_000, 1), (110, 0x9000, 7, 100, 2)];
    let mut m = model();
    m.reset();
    let mut qps = vec![Reference { mtu: 1024, ..Default::default() }; QPS];
    for (q, r) in qps.iter_mut().enumerate() {
        r.resources[..2].copy_from_slice(&resources);
        load_paced(&mut m, q, 1024, true);
    }
    let mut a = around(&m, qps, 1);
    (a.paced, a.never, a.drain) = (true, true, false);
    let mut go = Source::new(&m, "go", Stall::Never, 1);
    let mut seg = Sink::new(&m, "seg", Stall::Never, 2);
    let mut quick = Sink::new(&m, "quick", Stall::Never, 3);
    // An ACK goes at once, behind a READ it waits for that.
    push(&mut go, &mut a, 2, ack(99, 0, 0x1f));
    (0..300).for_each(|_| bench::cycle(&mut m, &mut [&mut go, &mut a, &mut seg, &mut quick]));
    for q in [1, 2] {
        push(&mut go, &mut a, q, read(100, 0, false));
        push(&mut go, &mut a, q, read(110, 1, false));
        push(&mut go, &mut a, q, ack(111, 3, 0x1f));
    }
    // By kicks of QP 2: frames of 1 and 2, the ACK of before among them. What wakes the QP meanwhile changes nothing.
    let sent = |a: &Around, q| a.order.iter().filter(|o| **o == q).count();
    for kicks in 0..5 {
        for round in 0..6 {
            a.told.extend([2].into_iter().filter(|_| round < 5));
            bench::run(&mut m, &mut [&mut go, &mut a, &mut seg, &mut quick], 100_000);
            (0..40).for_each(|_| bench::cycle(&mut m, &mut [&mut go, &mut a, &mut seg, &mut quick]));
        }
        // The end of a READ ends a turn, too.
        let want = [1 + 4, 1 + 8, 1 + 10, 1 + 11 + 1, 1 + 11 + 1][kicks];
        assert_eq!((sent(&a, 1), sent(&a, 2)), (10 + 1 + 1, want), "after {kicks} kicks");
        a.kicks.insert(2, 0);
        a.never = false;
        bench::cycle(&mut m, &mut [&mut go, &mut a, &mut seg, &mut quick]);
        a.never = true;
    }
    // A READ that comes while it owes nothing waits for kicks as well.
    push(&mut go, &mut a, 2, read(100, 0, true));
    (0..200).for_each(|_| bench::cycle(&mut m, &mut [&mut go, &mut a, &mut seg, &mut quick]));
    assert_eq!(sent(&a, 2), 13 + 4);
    // Until its rate ends.
    pace(&mut m, 2, 0);
    a.paced = false;
    (0..200).for_each(|_| bench::cycle(&mut m, &mut [&mut go, &mut a, &mut seg, &mut quick]));
    assert_eq!(sent(&a, 2), 13 + 10);
}

#[test]
fn an_ack_waits_for_the_read_responses_before_it() {
    // The reference demands the order; the last ACK of a burst is enough.
    let resources = [(100, 0x5000, 7, 5000, 1)];
    let (frames, _, a) =
        run(&resources, &[(1, read(100, 0, false)), (1, ack(105, 2, 0x1f)), (1, ack(106, 3, 0x1f))], &[]);
    assert_eq!(frames, 5 + 1);
    assert_eq!((a.acks, a.quick), (1, 0));
}

#[test]
fn a_nak_is_not_replaced_by_an_older_ack() {
    let resources = [(100, 0x5000, 7, 5000, 1)];
    let (_, _, a) = run(&resources, &[(1, read(100, 0, false)), (1, ack(105, 1, 0x60)), (1, ack(104, 1, 0x1f))], &[]);
    assert_eq!((a.acks, a.naks), (0, 1));
}

#[test]
fn a_read_of_zero_bytes_is_one_response() {
    let resources = [(100, 0x5000, 7, 0, 1)];
    assert_eq!(run(&resources, &[(1, read(100, 0, false))], &[]).0, 1);
}

#[test]
fn a_read_whose_key_fails_ends_in_nak_remote_access_and_silence() {
    let (frames, _, a) = run(&[(100, 0x5000, 7, 1, 1)], &[(2, ack(3, 3, 0x1f))], &[(100, cause::KEY_PD)]);
    assert_eq!((frames, a.naks), (2, 1));
    assert!(a.qps[1].silent);
}

#[test]
fn a_read_that_the_host_refuses_ends_in_nak_remote_operation_and_silence() {
    // The reference knows the syndrome by the cause.
    let (frames, _, a) = run(&[(100, 0x5000, 7, 1, 1)], &[(2, ack(3, 3, 0x1f))], &[(100, cause::DMA_ERROR)]);
    assert_eq!((frames, a.naks), (2, 1));
    assert!(a.qps[1].silent);
}

#[test]
fn a_read_that_is_asked_for_again_voids_the_responses_before() {
    // The reference demands the epoch, told before the first frame of it. A duplicate that goes on where the last one ended
    // begins none, not even when all before it was sent: else each would void the one before, for ever.
    let resources = [(100, 0x5000, 7, 5000, 1), (105, 0x7000, 7, 5000, 2)];
    let again = [(1, read(100, 0, false)), (1, read(105, 1, false)), (1, read(102, 0, true)), (1, read(105, 1, true))];
    let (_, _, a) = run(&resources, &again, &[]);
    assert_eq!((a.qps[1].epoch, a.qps[1].told), (1, 1));
}

/// Takes what is offered in the cycle so many later.
struct Late {
    after: u64,
    since: u64,
}
impl Actor for Late {
    fn drive(&mut self, m: &mut Model) {
        m.set("seg.ready", (self.since >= self.after).into());
    }
    fn observe(&mut self, m: &Model) {
        self.since = if m.bit("seg.valid") && self.since < self.after { self.since + 1 } else { 0 };
    }
    fn done(&self) -> bool {
        true
    }
    fn status(&self) -> String {
        String::new()
    }
}

#[test]
fn reads_that_are_served_at_once_do_not_starve_those_that_wait() {
    // QP 1 owes a READ that outlasts all others. READs of 50 other QPs, each of which owes none, come without end; at one pace or another the
    // output is free for them just when it was not for QP 1.
    let mut resources = vec![(100, 0x5000, 7, 1 << 20, 1)];
    resources.extend((1..16).map(|i| (5000 + i, 0x5000, 7, 64, 1)));
    let mut m = model();
    for after in 0..10 {
        m.reset();
        let mut qps = vec![Reference { mtu: 1024, ..Default::default() }; QPS];
        for (q, r) in qps.iter_mut().enumerate() {
            r.resources.copy_from_slice(&resources);
            load(&mut m, q, 1024);
        }
        let mut a = around(&m, qps, 1);
        let mut go = Source::new(&m, "go", Stall::Never, 1);
        let mut quick = Sink::new(&m, "quick", Stall::Never, 3);
        push(&mut go, &mut a, 1, read(100, 0, false));
        for i in 0..15 * 50 {
            push(&mut go, &mut a, 6 + i % 50, read(5001 + i / 50, 1 + i / 50, false));
        }
        bench::run(&mut m, &mut [&mut go, &mut a, &mut Late { after, since: 0 }, &mut quick], 100_000);
        let most = a.order.split(|q| *q == 1).map(|others| others.len()).max().unwrap();
        println!("taken {after} cycles later: at most {most} READs of others between two frames of the one that waits");
        // Those that wait take turns; in front of each, four may be let in and served at once.
        assert!(most <= 50 * 5, "{most} of {}", 15 * 50);
    }
}

#[test]
fn a_frame_takes_few_cycles() {
    let acks: Vec<_> = (0..800).map(|i| (i % 64, ack(i, i, 0x1f))).filter(|(q, _)| *q != 5).collect();
    let [half, whole] = [acks.len() / 2, acks.len()].map(|n| run(&[], &acks[..n], &[]).1);
    // In the end all QPs that are left are served: that is in both.
    let steady = (whole - half) as f64 / (acks.len() - acks.len() / 2) as f64;
    println!("ACKs in and out: {steady:.2} cycles per packet, {whole} cycles for {}", acks.len());
    assert!(steady <= 4.5 && whole <= 5 * acks.len() as u64);
    let resources: Vec<_> = (0..16).map(|i| (100 + i, 0x5000, 7, 64, 1)).collect();
    let reads: Vec<_> = (0..16 * 30).map(|i| (6 + i % 30, read(100 + i / 30, i / 30, false))).collect();
    let (frames, cycles, _) = run(&resources, &reads, &[]);
    println!("READs in and out: {:.2} cycles per READ", cycles as f64 / frames as f64);
    assert!(cycles <= 4 * frames + 20);
    let (frames, cycles, _) = run(&[(100, 0x5000, 7, 1 << 20, 1)], &[(1, read(100, 0, false))], &[]);
    println!("READ of 1 MiB: {:.2} cycles per frame", cycles as f64 / frames as f64);
    assert!(cycles <= 5 * frames);
}

#[test]
fn a_damaged_row_is_told_of() {
    let mut m = model();
    for (damage, told) in [("row", 3), ("debt", 4)] {
        m.reset();
        let mut qps = vec![Reference { mtu: 1024, ..Default::default() }; QPS];
        qps[3].resources[0] = (100, 0x5000, 7, 1, 1);
        (0..QPS).for_each(|q| load(&mut m, q, 1024));
        let mut bad = vec![];
        let mut reply = |m: &mut Model, q: u64| {
            let go = ReplyGo { qpn: q.to_bits(), generation: (q + 3).to_bits(), reply: ack(5, 5, 0x1f) };
            let view = QpView { state: (qp_state::RTS as u64).to_bits(), generation: (q + 3).to_bits() };
            m.set_bytes("view", &bytes_of(view));
            m.set_bytes("go.data", &bytes_of(go));
            m.set("go.valid", 1);
            m.set("quick.ready", 1);
            for _ in 0..40 {
                m.eval();
                let taken = m.bit("go.ready");
                if m.bit("bad.valid") {
                    bad.push(m.get("bad.row"));
                }
                m.tick();
                if taken {
                    m.set("go.valid", 0);
                }
            }
        };
        m.set("flip", 1);
        if damage == "row" {
            load(&mut m, 3, 1024);
        } else {
            reply(&mut m, 4);
        }
        m.set("flip", 0);
        (2..6).for_each(|q| reply(&mut m, q));
        assert!(!bad.is_empty() && bad.iter().all(|q| *q == told), "{damage}: {bad:?}");
    }
}
