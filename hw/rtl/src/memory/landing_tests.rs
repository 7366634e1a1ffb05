//! Landing against the rules on plain messages.

use super::*;
use crate::transport::kit::fields_of;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::collections::{HashMap, VecDeque};
use verilate::{
    Model, Options,
    bench::{self, Actor, Sink as Taker, Source as Giver, Stall},
    bits::of,
    scale,
};

/// The chunks that the access port of these tests gives: pages of 4 KiB; a key of 1 to 4 is refused with that cause.
fn chunks(key: u64, va: u64, len: u64) -> Vec<Chunk> {
    if key < 5 {
        return vec![Chunk { last: true, refused: true, cause: bits(key), len: bits(len), ..Chunk::default() }];
    }
    let (mut out, mut at) = (vec![], 0);
    while at < len {
        let n = (4096 - ((va + at) & 4095)).min(len - at);
        let iova = bits((va + at) ^ 0xabcd_0000_0000);
        out.push(Chunk { iova, len: bits(n), offset: bits(at), last: at + n == len, ..Chunk::default() });
        at += n;
    }
    out
}

/// The access port: `latency` cycles, one request a cycle, up to 16 chunks under way.
struct Port {
    rng: ChaCha8Rng,
    stalls: bool,
    latency: u64,
    queue: VecDeque<(u64, Chunk)>,
    requests: u64,
    ready: bool,
    shown: bool,
}
impl Port {
    fn new(seed: u64, latency: u64, stalls: bool) -> Self {
        let rng = verilate::rng(seed);
        Self { rng, stalls, latency, queue: VecDeque::new(), requests: 0, ready: false, shown: false }
    }
}
impl Actor for Port {
    fn drive(&mut self, m: &mut Model) {
        self.ready = self.queue.len() < 12 && !(self.stalls && self.rng.random_bool(0.3));
        m.set("req.ready", self.ready.into());
        let front = self.queue.front().filter(|x| x.0 <= m.cycle());
        self.shown = front.is_some() && (self.shown || !(self.stalls && self.rng.random_bool(0.5)));
        m.set("chunk.valid", self.shown.into());
        let noise = Chunk { refused: true, cause: bits(3), len: bits(77), ..Chunk::default() };
        m.set_bytes("chunk.data", &of(if self.shown { front.unwrap().1 } else { noise }));
    }
    fn observe(&mut self, m: &Model) {
        if self.shown && m.bit("chunk.ready") {
            self.queue.pop_front();
            self.shown = false;
        }
        if self.ready && m.bit("req.valid") {
            let req = m.get_bytes("req.data");
            let field = |at, bits| verilate::bits::get(&req, at, bits);
            let new = chunks(field(0, 32), field(32, 64), field(96, 14));
            self.queue.extend(new.into_iter().map(|chunk| (m.cycle() + self.latency, chunk)));
            self.requests += 1;
        }
    }
    fn done(&self) -> bool {
        self.queue.is_empty()
    }
    fn status(&self) -> String {
        format!("access gave way to {} requests, {} chunks left", self.requests, self.queue.len())
    }
}

/// The atomics: they take steps, and write, at addresses from [`THEIRS`] on.
struct Unit {
    rng: ChaCha8Rng,
    taken: Vec<Exchange>,
    /// What was to be written, of answers and of their own, at the time.
    answers: VecDeque<u64>,
    stores: VecDeque<(u64, u64)>,
    stored: u64,
    offered: Option<u64>,
    asked: bool,
    ready: bool,
    left: u64,
}
const THEIRS: u64 = 1 << 63;
impl Unit {
    fn new(seed: u64) -> Self {
        let rng = verilate::rng(seed);
        let (answers, stores) = Default::default();
        Self { rng, taken: vec![], answers, stores, stored: 0, offered: None, asked: false, ready: false, left: 40 }
    }
}
impl Actor for Unit {
    fn drive(&mut self, m: &mut Model) {
        self.stored = self.rng.random();
        m.set("stored", self.stored);
        if !self.ready && self.offered.is_none() && self.left > 0 && self.rng.random_bool(0.1) {
            self.left -= 1;
            self.offered = Some(THEIRS | self.rng.random::<u64>());
        }
        m.set("store.valid", self.offered.is_some().into());
        m.set("store.data", self.offered.unwrap_or(7));
        // It writes nothing while it takes a step.
        self.ready |= self.asked && self.offered.is_none() && self.rng.random_bool(0.3);
        m.set("exchange.ready", self.ready.into());
    }
    fn observe(&mut self, m: &Model) {
        if m.bit("store.ready")
            && let Some(at) = self.offered.take()
        {
            self.stores.push_back((at, self.stored));
        }
        if m.bit("exchange.valid") && m.bit("exchange.ready") {
            let get = |name: &str| m.get(format!("exchange.data.{name}").as_str());
            let exchange = Exchange {
                void: get("void") != 0,
                response: get("response") != 0,
                iova: bits(get("iova")),
                buf: bits(get("buf")),
                offset: bits(get("offset")),
                qpn: bits(get("qpn")),
                slot: bits(get("slot")),
                adds: get("adds") != 0,
            };
            if exchange.response && !exchange.void {
                self.answers.push_back(self.stored);
            }
            self.taken.push(exchange);
            self.ready = false;
        }
        self.asked = m.bit("exchange.valid") && !m.bit("exchange.ready");
    }
    fn done(&self) -> bool {
        self.left == 0 && self.offered.is_none()
    }
    fn status(&self) -> String {
        format!("{} steps of atomics, {} to store", self.taken.len(), self.left)
    }
}

/// A packet that has landed has given all its writes to the channel once `written` is up; counts faults.
#[derive(Default)]
struct Order {
    writes: u64,
    landed: usize,
    /// In the cycle before.
    written: bool,
    need: Vec<u64>,
    faults: u64,
}
impl Actor for Order {
    fn drive(&mut self, _: &mut Model) {}
    fn observe(&mut self, m: &Model) {
        let theirs = m.get("write.data.iova") >= THEIRS;
        self.writes += u64::from(m.bit("write.valid") && m.bit("write.ready") && !theirs);
        if self.written && self.landed > 0 {
            assert!(self.writes >= self.need[self.landed - 1], "written before its writes were taken");
        }
        self.landed += usize::from(m.bit("landed.valid") && m.bit("landed.ready"));
        self.written = m.bit("written");
        self.faults += m.get("count") >> KEY_FAULT & 1;
    }
    fn done(&self) -> bool {
        self.landed == self.need.len()
    }
    fn status(&self) -> String {
        format!("{} of {} packets landed, {} writes", self.landed, self.need.len(), self.writes)
    }
}

fn packet(rng: &mut ChaCha8Rng, qps: u64) -> Vec<RxOp> {
    let (qpn, response): (_, bool) = (bits(rng.random_range(0..qps) * 7), rng.random());
    // Of some QPs nothing is answered.
    let again = !response && qpn.to_u64() % 2 == 1;
    let read = !again && rng.random();
    let slot = bits(rng.random_range(0..16));
    let generation = bits(rng.random_range(0..256));
    let steps = if rng.random_bool(0.7) { 1 } else { rng.random_range(2..5) };
    let rows = if rng.random_bool(0.9) { rng.random_range(1..100) } else { 0 };
    let atomic = rng.random_bool(0.3);
    let op = |i: usize, len: u64, rng: &mut ChaCha8Rng| RxOp {
        qpn,
        response,
        generation,
        key: bits(if rng.random_bool(0.05) { rng.random_range(1..5) } else { rng.random_range(5..1 << 32) }),
        va: bits(rng.random::<u64>() >> 16),
        write: len > 0,
        len: bits(len),
        span: bits(rng.random_range(0..1 << 32)),
        buf: bits(rng.random_range(0..1 << 20)),
        pd: bits(rng.random_range(0..1 << 16)),
        // Now and then the key is invalidated: nothing is written, whatever the reply says of the packet.
        need: bits(if rng.random_bool(0.2) { rng.random_range(16..64) } else { rng.random_range(0..16) }),
        last: i + 1 == steps,
        rows: bits(rows),
        psn: bits(rng.random_range(0..1 << 24)),
        more: rng.random(),
        accepted: rng.random(),
        adds: rng.random(),
        reply: Reply { again, read, slot, atomic: !again && atomic, ..Reply::default() },
        completion: Completion {
            valid: rng.random(),
            length: bits(rng.random_range(0..1 << 32)),
            qpn,
            generation,
            ..Completion::default()
        },
    };
    (0..steps)
        .map(|i| {
            let len = if rng.random_bool(0.2) { 0 } else { rng.random_range(1..=9000) };
            op(i, len, rng)
        })
        .collect()
}

/// The rules on plain messages: what is written and what lands.
#[derive(Default)]
struct Rules {
    /// Side, and whether only to the next message.
    halted: HashMap<(Bits<12>, bool), bool>,
    writes: Vec<DmaWrite>,
    landed: Vec<Landed>,
    exchanges: Vec<Exchange>,
    need: Vec<u64>,
    faults: u64,
}
impl Rules {
    fn packet(&mut self, ops: &[RxOp]) {
        let side = (ops[0].qpn, ops[0].response);
        let reply = ops[0].reply;
        let alone = reply.again && !reply.read && !reply.ack;
        if alone && !side.1 && reply.slot.get_bit(0) && self.halted.get(&side) == Some(&true) {
            self.halted.remove(&side);
        }
        let halt = self.halted.get(&side).copied();
        let flushed = halt.is_some();
        let (mut fault, mut fault_own, mut wrote) = (0, false, false);
        for op in ops {
            let before = self.writes.len();
            wrote = false;
            let kills = op.need.to_u64() >= 16;
            let atomic = op.reply.atomic && !kills;
            let len = op.len.to_u64() | u64::from(kills);
            for chunk in chunks(op.key.to_u64(), op.va.to_u64(), len).into_iter().filter(|_| op.write) {
                let fresh = op.write && !flushed && fault == 0;
                let good = fresh && chunk.cause == bits(0);
                if op.write && (atomic || op.reply.read || kills) {
                    self.exchanges.push(Exchange {
                        void: !good || !atomic,
                        response: op.response && atomic,
                        iova: chunk.iova,
                        buf: op.buf,
                        offset: chunk.offset.cast::<3>(),
                        qpn: op.qpn,
                        slot: op.reply.slot,
                        adds: op.adds,
                    });
                }
                wrote = good && (op.response || !atomic) && !kills;
                if fresh && !good {
                    fault = chunk.cause.to_u64();
                    let own = op.response || op.need == bits(access::LOCAL_WRITE.into());
                    fault_own = own;
                    self.halted.insert(side, alone && !own);
                    self.faults += 1;
                } else if wrote {
                    let buf = op.buf + chunk.offset.cast::<20>();
                    let (iova, len, is_inline) = (chunk.iova, chunk.len, atomic);
                    self.writes.push(DmaWrite { iova, len, is_inline, buf, ..Default::default() });
                }
            }
            if op.last && op.rows != bits(0) {
                if self.writes.len() == before {
                    self.writes.push(DmaWrite::default());
                }
                self.writes.last_mut().unwrap().rows = op.rows;
            }
        }
        let op = ops.last().unwrap();
        let kills = op.need.to_u64() >= 16;
        self.landed.push(Landed {
            fault: fault != 0,
            flushed,
            passing: halt == Some(true),
            cause: bits(fault),
            wrote,
            own: if fault != 0 { fault_own } else { op.response || op.need == bits(access::LOCAL_WRITE.into()) },
            frame: op.rows != bits(0),
            qpn: op.qpn,
            generation: op.generation,
            response: op.response,
            accepted: op.accepted,
            more: op.more,
            psn: op.psn,
            reply: Reply { atomic: op.reply.atomic && op.write && !kills, ..op.reply },
            completion: op.completion,
        });
        self.need.push(self.writes.len() as u64);
    }
}

#[test]
fn packets_land_fail_and_halt() {
    let mut m = Model::of(|| Landing::new(4096), Options::default()).unwrap();
    for seed in 0..scale(8) as u64 {
        println!("seed {seed}");
        let mut rng = verilate::rng(seed);
        let mut rules = Rules::default();
        m.reset();
        for side in 0..8192 {
            load(&mut m, if side & 1 == 0 { id::QP_SEND } else { id::QP_RECV }, side >> 1);
        }
        let (mut port, mut order) = (Port::new(seed, 12, seed % 2 == 1), Order::default());
        let mut unit = Unit::new(seed + 3);
        for round in 0..4 {
            let stall = [Stall::Never, Stall::Random][(seed % 2) as usize];
            let mut s = Giver::new(&m, "op", stall, seed);
            let mut write = Taker::new(&m, "write", stall, seed + 1).keeps_ready();
            let mut landed = Taker::new(&m, "landed", stall, seed + 2);
            let from = (rules.writes.len(), rules.landed.len());
            for _ in 0..150 {
                let ops = packet(&mut rng, 20);
                rules.packet(&ops);
                ops.into_iter().for_each(|op| s.send(op));
            }
            order.need.clone_from(&rules.need);
            unit.left = 40;
            write.expect((rules.writes.len() - from.0) as u64 + unit.left);
            landed.expect((rules.landed.len() - from.1) as u64);
            bench::run(&mut m, &mut [&mut s, &mut port, &mut write, &mut landed, &mut order, &mut unit], 100_000);
            let mut mine = VecDeque::new();
            while let Some(got) = write.pop() {
                if got.get("iova") < THEIRS {
                    mine.push_back(got);
                } else {
                    let data = verilate::bits::get(&got.bytes("data.data"), 0, 64);
                    assert_eq!(Some((got.get("iova"), data)), unit.stores.pop_front());
                    assert_eq!((got.get("len"), got.get("rows"), got.get("is_inline")), (8, 0, 1));
                }
            }
            assert!(unit.stores.is_empty() && unit.taken == rules.exchanges);
            for want in &rules.writes[from.0..] {
                let got = mine.pop_front().unwrap();
                for (name, value) in [("len", want.len.to_u64()), ("rows", want.rows.to_u64())] {
                    assert_eq!(got.get(name), value, "{name} in round {round}");
                }
                if want.len != bits(0) {
                    assert_eq!((got.get("iova"), got.get("buf")), (want.iova.to_u64(), want.buf.to_u64()));
                    assert_eq!(got.get("is_inline") != 0, want.is_inline);
                    if want.is_inline {
                        let data = verilate::bits::get(&got.bytes("data.data"), 0, 64);
                        assert_eq!(Some(data), unit.answers.pop_front());
                    }
                }
            }
            for want in &rules.landed[from.1..] {
                // The cause counts only with a fault.
                let mut got = fields_of::<Landed>(&landed.pop().unwrap().bytes("data"));
                if !want.fault {
                    got.remove("cause");
                }
                assert_eq!(got, fields_of::<Landed>(&of(*want)));
            }
            assert!(mine.is_empty() && landed.is_empty() && unit.answers.is_empty());
            assert_eq!(order.faults, rules.faults);
            // Clear one side of some.
            for qpn in 0..10u64 {
                load(&mut m, if qpn & 1 == 0 { id::QP_SEND } else { id::QP_RECV }, qpn * 7);
                rules.halted.remove(&(bits(qpn * 7), qpn & 1 == 0));
                // without LOAD a row changes nothing
                table(&mut m, id::QP_SEND, (qpn + 10) * 7, bits(0x7f));
            }
        }
        assert!(rules.exchanges.iter().filter(|e| !e.void).count() > 50);
        assert!(rules.faults > 10 && rules.landed.iter().filter(|x| x.flushed).count() > 20);
    }
}

/// Memory under a key is being read, or atomics are under way: a step that invalidates it waits for both, whatever else its packet says (a LOCAL_INV
/// comes behind what its queue was told of last, be that an atomic's answer), and whether it waits in line or is looked at as it comes.
#[test]
fn an_invalidation_waits_for_reads_and_atomics() {
    let mut m = Model::of(|| Landing::new(4096), Options::default()).unwrap();
    for case in 0..8 {
        let (atomic, response, behind) = (case & 1 != 0, case & 2 != 0, case & 4 != 0);
        m.reset();
        (0..32).for_each(|side| load(&mut m, if side & 1 == 0 { id::QP_SEND } else { id::QP_RECV }, side >> 1));
        let (mut port, mut unit) = (Port::new(0, 10, false), Unit::new(case));
        unit.left = 0;
        let mut s = Giver::new(&m, "op", Stall::Never, 0);
        let mut write = Taker::new(&m, "write", Stall::Never, 0);
        let mut landed = Taker::new(&m, "landed", Stall::Never, 0);
        let (key, len) = (bits(9), bits(1024));
        if behind {
            s.send(RxOp { write: true, last: true, key, len, qpn: bits(1), ..RxOp::default() });
            write.expect(1);
            landed.expect(1);
        }
        let reply = Reply { atomic, ..Reply::default() };
        s.send(RxOp { write: true, last: true, key, need: bits(32), qpn: bits(2), response, reply, ..RxOp::default() });
        m.set("reading", 1);
        for _ in 0..200 {
            bench::cycle(&mut m, &mut [&mut s, &mut port, &mut write, &mut landed, &mut unit]);
        }
        assert!(unit.taken.is_empty() && landed.len() == usize::from(behind), "case {case}: it waits for no reads");
        m.set("reading", 0);
        landed.expect(1);
        bench::run(&mut m, &mut [&mut s, &mut port, &mut write, &mut landed, &mut unit], 10_000);
        assert!(unit.taken.len() == 1 && unit.taken[0].void, "case {case}: it waits for no atomics, {:?}", unit.taken);
    }
}

fn load(m: &mut Model, id: u8, qpn: u64) {
    table(m, id, qpn, bits(0x80));
}

fn table(m: &mut Model, id: u8, qpn: u64, row: Bits<512>) {
    let req = TableReq { table: bits(id.into()), index: bits(qpn), write: true, row };
    m.set("table.valid", 1);
    m.set_bytes("table.req", &of(req));
    m.eval();
    assert!(m.bit("table.ready"));
    m.tick();
    m.set("table.valid", 0);
}

/// Always offers something to be stored; the cycles since it was taken last, and most of them.
#[derive(Default)]
struct Stores {
    since: u64,
    worst: u64,
}
impl Actor for Stores {
    fn drive(&mut self, m: &mut Model) {
        m.set("store.valid", 1);
        m.set("store.data", THEIRS);
    }
    fn observe(&mut self, m: &Model) {
        self.since = if m.bit("store.ready") { 0 } else { self.since + 1 };
        self.worst = self.worst.max(self.since);
    }
    fn done(&self) -> bool {
        true
    }
    fn status(&self) -> String {
        format!("not taken for {} cycles", self.since)
    }
}

/// Neither waits for the other for long: a stream of writes without a gap, and stores of the atomics, which may wait for the first
/// access.
#[test]
fn stores_and_a_stream_of_writes_take_turns() {
    let mut m = Model::of(|| Landing::new(4096), Options::default()).unwrap();
    m.reset();
    let (mut port, mut order, mut stores) = (Port::new(0, 10, false), Order::default(), Stores::default());
    let mut s = Giver::new(&m, "op", Stall::Never, 0);
    let mut write = Taker::new(&m, "write", Stall::Never, 0);
    let mut landed = Taker::new(&m, "landed", Stall::Never, 0);
    let (key, len, rows) = (bits(9), bits(1024), bits(17));
    (0..500).for_each(|_| s.send(RxOp { write: true, last: true, key, len, rows, ..RxOp::default() }));
    order.need = (1..=500).collect();
    landed.expect(500);
    let start = m.cycle();
    bench::run(&mut m, &mut [&mut s, &mut port, &mut write, &mut landed, &mut order, &mut stores], 100_000);
    let cycles = m.cycle() - start;
    assert!(stores.worst <= 12 && cycles < 2100, "a store waits {} cycles, 500 writes take {cycles}", stores.worst);
}

#[test]
fn rate_and_latency() {
    let mut m = Model::of(|| Landing::new(4096), Options::default()).unwrap();
    let mut run = |n: u64| {
        m.reset();
        let (mut port, mut order) = (Port::new(0, 10, false), Order::default());
        let mut s = Giver::new(&m, "op", Stall::Never, 0);
        let mut write = Taker::new(&m, "write", Stall::Never, 0);
        let mut landed = Taker::new(&m, "landed", Stall::Never, 0);
        let (key, len, rows) = (bits(9), bits(1024), bits(17));
        (0..n).for_each(|_| s.send(RxOp { write: true, last: true, key, len, rows, ..RxOp::default() }));
        order.need = (1..=n).collect();
        landed.expect(n);
        let start = m.cycle();
        bench::run(&mut m, &mut [&mut s, &mut port, &mut write, &mut landed, &mut order], 100_000);
        m.cycle() - 32 - start
    };
    let (latency, many) = (run(1) - 1, run(1000));
    println!("latency {latency} with an access of 10; 1000 packets: {many} cycles");
    assert!(latency <= 16 && many < 2100);
}
