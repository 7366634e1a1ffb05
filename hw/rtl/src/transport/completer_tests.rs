//! The completer against a plain reference of the rules, each rule alone, and its timers.

use super::{completer::Completer, kit::*, timers};
use crate::msg::*;
use abi::{
    queue::send_op,
    status::{cause, counter, wc},
    table::{id, qp_recv, qp_send, qp_state},
    wire::op,
};
use hdl::prelude::*;
use rand::RngExt;
use std::collections::{BTreeMap, VecDeque};
use verilate::{
    Model,
    bench::{self, Actor, Sink, Source, Stall},
};

const QPS: usize = 32;
const M24: u64 = 0xff_ffff;
const PEER: u64 = 0x0200_000a;

/// A message that was sent.
#[derive(Clone, Debug, Default)]
struct Message {
    psn: u64,
    packets: u64,
    index: u64,
    blocks: u64,
    opcode: u8,
    signaled: bool,
    length: u64,
    /// READ: where it lands.
    sges: Vec<(u64, u64, u64)>,
}

/// A send side in plain numbers: what the rules say, written down a second time.
#[derive(Clone, Debug)]
struct Reference {
    qpn: u64,
    state: u8,
    mtu: u64,
    retry_count: u64,
    rnr_count: u64,
    timeout: u64,
    /// All messages that were sent, from record 0 on; those before `oldest` are acknowledged.
    messages: Vec<Message>,
    oldest: usize,
    sent: u64,
    psn: u64,
    reads: u64,
    retry: u64,
    rnr_retry: u64,
    recovering: bool,
    halted: bool,
    fault: Option<SendFault>,
    kicks: bool,
}

fn qp(qpn: u64) -> Reference {
    Reference {
        qpn,
        state: qp_state::RTS,
        mtu: 1024,
        retry_count: 7,
        rnr_count: 7,
        timeout: 0,
        messages: vec![],
        oldest: 0,
        sent: 100,
        psn: 100,
        reads: 0,
        retry: 7,
        rnr_retry: 7,
        recovering: false,
        halted: false,
        fault: None,
        kicks: false,
    }
}

/// What a response leads to.
type Outcome = (usize, Vec<RxOp>, Option<GoBack>);

impl Reference {
    fn send(&mut self, opcode: u8, length: u64, signaled: bool) -> &mut Self {
        let packets = length.div_ceil(self.mtu).max(1);
        let index = self.messages.last().map_or(0, |m| m.index + m.blocks);
        let blocks = 1 + self.messages.len() as u64 % 3;
        let half = length / 2;
        let sges = vec![(0x1000, 0x11, half), (0x9000, 0x22, length - half)];
        let psn = self.sent;
        self.messages.push(Message { psn, packets, index, blocks, opcode, signaled, length, sges });
        self.sent = (self.sent + packets) & M24;
        self
    }
    fn op(&self) -> RxOp {
        RxOp {
            qpn: self.qpn.to_bits(),
            generation: (self.qpn + 9).to_bits(),
            response: true,
            last: true,
            ..Default::default()
        }
    }
    fn completion(&self, m: &Message, status: u8, why: u8) -> Completion {
        Completion {
            valid: true,
            cqn: (0x40 + self.qpn).to_bits(),
            qpn: self.qpn.to_bits(),
            generation: (self.qpn + 9).to_bits(),
            status: (status as u64).to_bits(),
            cause: (why as u64).to_bits(),
            opcode: (m.opcode as u64).to_bits(),
            wqe_index: (m.index & 0xffff).to_bits(),
            blocks: m.blocks.to_bits(),
            length: m.length.to_bits(),
            ..Default::default()
        }
    }
    fn end(&mut self, status: u8, why: u8) -> RxOp {
        self.halted = true;
        let mut op = self.op();
        match self.messages.get(self.oldest) {
            Some(m) => op.completion = self.completion(m, status, why),
            None => op.completion.cause = (why as u64).to_bits(),
        }
        op
    }
    fn back(&mut self) -> GoBack {
        self.recovering = true;
        self.fault = None;
        let m = self.messages.get(self.oldest).cloned().unwrap_or_default();
        GoBack {
            qpn: self.qpn.to_bits(),
            generation: (self.qpn + 9).to_bits(),
            psn: self.psn.to_bits(),
            record: (self.oldest as u64 & 127).to_bits(),
            wqe_index: (m.index & 0xffff).to_bits(),
            offset: ((self.psn.wrapping_sub(m.psn) & M24) * self.mtu).to_bits(),
            reads: (self.reads & 255).to_bits(),
        }
    }
    /// Goes back at the price of a retry.
    fn retry(&mut self) -> (Option<RxOp>, Option<GoBack>) {
        if self.retry == 0 {
            return (Some(self.end(wc::RETRY_EXC, cause::RETRY_EXCEEDED)), None);
        }
        self.retry -= 1;
        (None, Some(self.back()))
    }
    fn progress(&mut self, rnr: bool) {
        self.retry = self.retry_count;
        if !rnr {
            self.rnr_retry = self.rnr_count;
        }
        self.recovering = false;
    }
    fn due(&mut self) -> Option<RxOp> {
        let f = self.fault?;
        if f.psn.to_u64() != self.psn {
            return None;
        }
        let why = f.cause.to_u64() as u8;
        let status = if f.blocks.any() { wc::LOC_QP_OP } else { wc::LOC_PROT };
        let mut op = self.end(status, why);
        if f.blocks.any() {
            let m = Message {
                index: self.messages[..self.oldest].last().map_or(0, |m| m.index + m.blocks),
                blocks: f.blocks.to_u64(),
                opcode: f.opcode.to_u64() as u8,
                ..Default::default()
            };
            op.completion = self.completion(&m, status, why);
        }
        Some(op)
    }
    /// Verdict, ops and go back of a response.
    fn receive(&mut self, m: &RxMeta) -> Outcome {
        let free = |mut ops: Vec<RxOp>| {
            for op in ops.iter_mut().rev().skip(1) {
                op.more = op.last;
            }
            if let Some(op) = ops.last_mut() {
                op.rows = m.rows;
            }
            ops
        };
        let opcode = m.opcode.to_u64() as u8;
        let nothing = free(vec![self.op()]);
        if !(self.state == qp_state::RTS || self.state == qp_state::SQD) || self.halted {
            return (counter::RX_QP_STATE, nothing, None);
        }
        if m.sip != PEER.to_bits() {
            return (counter::RX_QP_PEER, nothing, None);
        }
        if m.pkey != 0xffffu64.to_bits() {
            return (counter::RX_PKEY, nothing, None);
        }
        let stale = (counter::RX_STALE_RESPONSE, nothing, None);
        let (psn, syndrome) = (m.psn.to_u64(), m.syndrome.to_u64() as u8);
        let ahead = psn.wrapping_sub(self.psn) & M24;
        if ahead >= (self.sent.wrapping_sub(self.psn) & M24) {
            return stale;
        }
        let data = (op::READ_RESPONSE_FIRST..=op::READ_RESPONSE_ONLY).contains(&opcode);
        let (class, low) = (syndrome >> 5, syndrome & 31);
        if !data && (opcode != op::ACK || !matches!(class, 0 | 1 | 3) || class == 3 && low > 3) {
            return stale;
        }
        let ack = !data && class == 0;
        let rnr = !data && class == 1;
        let fatal = !data && class == 3 && low > 0;
        let mut todo = ahead + ack as u64;
        let mut ops = vec![];
        let mut moved = false;
        while todo > 0 {
            let Some(m) = self.messages.get(self.oldest).cloned() else { break };
            let span = (m.psn + m.packets).wrapping_sub(self.psn) & M24;
            if m.opcode == send_op::READ {
                let lost = if ack { todo > span } else { !fatal || todo >= span };
                if lost && !self.recovering {
                    let (op, back) = self.retry();
                    ops.push(op.unwrap_or(self.op()));
                    return (counter::RX_ACCEPTED, free(ops), back);
                }
                if lost {
                    ops.push(self.op());
                    return (counter::RX_ACCEPTED, free(ops), None);
                }
                break;
            }
            self.progress(rnr);
            moved = true;
            self.kicks = true;
            if todo < span {
                self.psn = (self.psn + todo) & M24;
                todo = 0;
            } else {
                self.psn = (m.psn + m.packets) & M24;
                self.oldest += 1;
                todo -= span;
                if m.signaled {
                    let mut op = self.op();
                    op.completion = self.completion(&m, 0, 0);
                    ops.push(op);
                }
            }
            // The last retired message's completion is the last op, unless more is to be said.
            if todo == 0 && ack && self.fault.is_none() {
                if !(m.signaled && self.psn == (m.psn + m.packets) & M24) {
                    ops.push(self.op());
                }
                return (counter::RX_ACCEPTED, free(ops), None);
            }
        }
        if ack {
            let op = self.due().unwrap_or(self.op());
            ops.push(op);
            return (if moved { counter::RX_ACCEPTED } else { counter::RX_STALE_RESPONSE }, free(ops), None);
        }
        if data {
            let Some(r) = self.messages.get(self.oldest).filter(|r| r.opcode == send_op::READ).cloned() else {
                ops.push(self.op());
                return (counter::RX_STALE_RESPONSE, free(ops), None);
            };
            let at = (psn.wrapping_sub(r.psn) & M24) * self.mtu;
            let payload = m.payload.to_u64();
            let left = r.length - at;
            let final_one = (psn + 1) & M24 == (r.psn + r.packets) & M24;
            let ends = opcode == op::READ_RESPONSE_LAST || opcode == op::READ_RESPONSE_ONLY;
            let pad = (payload + m.pad.to_u64()).is_multiple_of(4);
            if ends != final_one || payload != if final_one { left } else { self.mtu } || !pad {
                let op = self.end(wc::BAD_RESP, cause::BAD_RESPONSE);
                ops.push(op);
                return (counter::RX_ACCEPTED, free(ops), None);
            }
            self.progress(false);
            self.kicks = true;
            let (mut done, mut begin) = (0, 0);
            for (va, key, len) in &r.sges {
                let from = (at + done).max(begin);
                if done < payload && from < begin + len {
                    let n = (begin + len - from).min(payload - done);
                    let mut op = self.op();
                    op.write = true;
                    op.key = key.to_bits();
                    op.va = (va + from - begin).to_bits();
                    op.len = n.to_bits();
                    op.span = n.to_bits();
                    op.buf = ((m.buf.to_u64() + done) & 0xfffff).to_bits();
                    op.pd = (0x700 + self.qpn).to_bits();
                    op.need = 1u64.to_bits();
                    done += n;
                    op.last = done == payload;
                    ops.push(op);
                }
                begin += len;
            }
            if payload == 0 {
                ops.push(self.op());
            }
            self.psn = (psn + 1) & M24;
            if final_one {
                self.oldest += 1;
                self.reads += 1;
                if r.signaled {
                    ops.last_mut().unwrap().completion = self.completion(&r, 0, 0);
                }
                if self.fault.is_some() {
                    let op = self.due().unwrap_or(self.op());
                    ops.push(op);
                }
            }
            return (counter::RX_ACCEPTED, free(ops), None);
        }
        let mut back = None;
        let op = if rnr {
            if self.rnr_retry == 0 {
                self.end(wc::RNR_RETRY_EXC, cause::RNR_RETRY_EXCEEDED)
            } else {
                self.rnr_retry -= (self.rnr_retry != 7) as u64;
                self.op()
            }
        } else if fatal {
            let (status, why) = [
                (wc::REM_INV_REQ, cause::NAK_INVALID_REQUEST),
                (wc::REM_ACCESS, cause::NAK_REMOTE_ACCESS),
                (wc::REM_OP, cause::NAK_REMOTE_OPERATION),
            ][low as usize - 1];
            self.end(status, why)
        } else {
            let (op, b) = self.retry();
            back = b;
            op.unwrap_or(self.op())
        };
        ops.push(op);
        (counter::RX_ACCEPTED, free(ops), back)
    }
}

fn row(r: &Reference) -> [u8; 64] {
    let mut row = [0; 64];
    for (field, value) in [
        (qp_send::MTU, (r.mtu / 256).trailing_zeros() as u64 + 1),
        (qp_send::LOAD, 1),
        (qp_send::PD, 0x700 + r.qpn),
        (qp_send::CQN, 0x40 + r.qpn),
        (qp_send::PSN, r.psn),
        (qp_send::RETRY_COUNT, r.retry_count),
        (qp_send::RNR_RETRY, r.rnr_count),
        (qp_send::TIMEOUT, r.timeout),
    ] {
        put(&mut row, field, value);
    }
    row
}

/// Loads a QP, with its peer.
fn load(m: &mut Model, q: usize, r: &Reference) {
    let mut peer = [0; 64];
    put(&mut peer, qp_recv::LOAD, 1);
    put(&mut peer, qp_recv::PKEY, 0x7fff);
    put(&mut peer, qp_recv::SIP_LOW, PEER);
    write_row(m, id::QP_SEND, q as u64, &row(r));
    write_row(m, id::QP_RECV, q as u64, &peer);
}

/// Requester and tables around the completer.
struct Around {
    view: ReadPort<[u64; 1]>,
    sent: ReadPort<[u64; 1]>,
    record: ReadPort<[u64; 1]>,
    land: ReadPort<[u64; 1]>,
    qps: Vec<Reference>,
    counts: BTreeMap<usize, u64>,
    kicks: BTreeMap<u64, u64>,
}

impl Around {
    fn new(m: &Model, qps: &[Reference]) -> Self {
        Around {
            view: ReadPort::new(m, "view_re", ["view_addr"], &["view"]),
            sent: ReadPort::new(m, "sent_re", ["sent_addr"], &["sent"]),
            record: ReadPort::new(m, "record_re", ["record_addr"], &["record"]),
            land: ReadPort::new(m, "land_re", ["land_addr"], &["land"]),
            qps: qps.to_vec(),
            counts: BTreeMap::new(),
            kicks: BTreeMap::new(),
        }
    }
}

impl Actor for Around {
    fn drive(&mut self, m: &mut Model) {
        announce(m);
        let qps = &self.qps;
        self.view.drive(m, |[q]| {
            let state = qps.get(q as usize).map_or(0, |r| r.state) as u64;
            vec![bytes_of(QpView { state: state.to_bits(), generation: ((q + 9) & 255).to_bits() })]
        });
        self.sent.drive(m, |[q]| {
            let Some(r) = qps.get(q as usize) else { return vec![vec![0; 4]] };
            let record = r.messages.len() as u64 & 127;
            vec![bytes_of(Sent { psn: r.sent.to_bits(), record: record.to_bits() })]
        });
        self.record.drive(m, |[at]| {
            let none = Message::default();
            let r = qps.get(at as usize / 128);
            let s = r.and_then(|r| r.messages.get(at as usize % 128)).unwrap_or(&none);
            vec![bytes_of(Record {
                blocks: s.blocks.to_bits(),
                opcode: (s.opcode as u64).to_bits(),
                signaled: s.signaled,
                length: s.length.to_bits(),
            })]
        });
        self.land.drive(m, |[at]| {
            let mut block = vec![];
            if let Some(r) = qps.get(at as usize / 16) {
                // The oldest READ of this slot that is not done: the test knows how many are.
                let reads: Vec<_> = r.messages.iter().filter(|m| m.opcode == send_op::READ).collect();
                let slot = at as usize % 16;
                if let Some(s) = reads.get(slot) {
                    for (va, key, len) in &s.sges {
                        block.extend(va.to_le_bytes());
                        block.extend((*key as u32).to_le_bytes());
                        block.extend((*len as u32).to_le_bytes());
                    }
                }
            }
            block.resize(64, 0);
            vec![block]
        });
        m.set("kick.ready", 1);
    }
    fn observe(&mut self, m: &Model) {
        self.view.observe(m);
        self.sent.observe(m);
        self.record.observe(m);
        self.land.observe(m);
        let bits = m.get("count");
        (0..64).filter(|k| bits >> k & 1 != 0).for_each(|k| *self.counts.entry(k).or_default() += 1);
        if m.bit("kick.valid") {
            *self.kicks.entry(m.get("kick.data")).or_default() += 1;
        }
    }
    fn done(&self) -> bool {
        true
    }
    fn status(&self) -> String {
        "surroundings".into()
    }
}

/// What counts of an op.
fn essence(map: BTreeMap<String, u128>) -> BTreeMap<String, u128> {
    let has = |k: &str| map.contains_key(k);
    let (write, last) = (has("write"), has("last"));
    let valid = last && has("completion.valid");
    let bad = has("completion.status");
    map.clone()
        .into_iter()
        .filter(|(k, _)| match k.as_str() {
            "qpn" | "write" | "last" | "more" | "response" => true,
            "generation" => write || valid,
            "key" | "va" | "len" | "span" | "buf" | "pd" | "need" => write,
            "rows" => last,
            "completion.cause" => last,
            "completion.length" => valid && !bad,
            k if k.starts_with("completion.") => valid,
            _ => false,
        })
        .collect()
}

fn check(m: &mut Model, qps: &mut [Reference], metas: &[RxMeta], stall: Stall, seed: u64) -> (u64, Vec<GoBack>) {
    m.reset();
    for (q, r) in qps.iter().enumerate() {
        load(m, q, r);
    }
    let mut around = Around::new(m, qps);
    let mut source = Source::new(m, "meta", stall, seed);
    let mut sink = Sink::new(m, "op", stall, seed + 1);
    let mut backs = Sink::new(m, "back", Stall::Never, seed + 2);
    let (mut expected, mut counts, mut goes) = (vec![], BTreeMap::<usize, u64>::new(), vec![]);
    for meta in metas {
        let mut beat = source.beat();
        beat.set_bytes("data", &bytes_of(*meta));
        source.push(beat);
        let (verdict, ops, back) = qps[meta.qpn.to_u64() as usize].receive(meta);
        *counts.entry(verdict).or_default() += 1;
        expected.extend(ops.into_iter().map(|op| (op, *meta)));
        goes.extend(back);
    }
    sink.expect(expected.len() as u64);
    let start = m.cycle();
    bench::run(m, &mut [&mut source, &mut sink, &mut backs, &mut around], 100 * metas.len() as u64 + 10_000);
    let cycles = m.cycle() - start - 32;
    for (i, (op, meta)) in expected.into_iter().enumerate() {
        let got = essence(fields_of::<RxOp>(&sink.pop().unwrap().bytes("data")));
        let want = essence(fields_of::<RxOp>(&bytes_of(op)));
        assert_eq!(got, want, "op {i}, seed {seed}: {:?}", fields_of::<RxMeta>(&bytes_of(meta)));
    }
    assert!(sink.is_empty());
    for back in &goes {
        let got = backs.pop().map(|beat| fields_of::<GoBack>(&beat.bytes("data")));
        assert_eq!(got, Some(fields_of::<GoBack>(&bytes_of(*back))), "go back, seed {seed}");
    }
    assert!(backs.is_empty());
    for name in
        [counter::RX_ACCEPTED, counter::RX_STALE_RESPONSE, counter::RX_QP_STATE, counter::RX_QP_PEER, counter::RX_PKEY]
    {
        assert_eq!(around.counts.get(&name), counts.get(&name), "{}, seed {seed}", counter::NAMES[name].0);
    }
    for (q, r) in qps.iter().enumerate() {
        m.set("acked_addr", q as u64);
        m.set("acked_re", 1);
        (0..2).for_each(|_| m.tick());
        let acked = fields_of::<Acked>(m.bytes("acked"));
        let get = |k: &str| acked.get(k).copied().unwrap_or(0) as u64;
        assert_eq!((get("psn"), get("record"), get("reads")), (r.psn, r.oldest as u64 & 127, r.reads & 255), "QP {q}");
        // Where the oldest message in flight begins.
        let first = r.messages.first().map_or(r.psn, |m| m.psn);
        let done = r.messages[..r.oldest].last();
        let begins = done.map_or((first, 0), |m| ((m.psn + m.packets) & M24, m.index + m.blocks));
        assert_eq!((get("message"), get("wqe_index")), begins, "oldest message of QP {q}");
        assert_eq!(around.kicks.contains_key(&(q as u64)), r.kicks, "kick of QP {q}");
        let psn = qp_send::PSN.get(&read_row(m, id::QP_SEND, q as u64));
        assert_eq!(psn, r.psn, "oldest PSN of QP {q} as the table bus reads it");
    }
    (cycles, goes)
}

fn model() -> Model {
    Model::of(|| Completer::new(QPS, 0xffff, 5), options()).unwrap()
}

fn qps() -> Vec<Reference> {
    (0..QPS as u64).map(qp).collect()
}

fn response(qpn: u64, opcode: u8, psn: u64) -> RxMeta {
    RxMeta {
        response: true,
        qpn: qpn.to_bits(),
        opcode: (opcode as u64).to_bits(),
        psn: (psn & M24).to_bits(),
        rows: 2u64.to_bits(),
        buf: 0x1240u64.to_bits(),
        syndrome: 0x1fu64.to_bits(),
        sip: PEER.to_bits(),
        pkey: 0xffffu64.to_bits(),
        ..Default::default()
    }
}
fn ack(psn: u64) -> RxMeta {
    response(1, op::ACK, psn)
}
fn nak(psn: u64, syndrome: u64) -> RxMeta {
    RxMeta { syndrome: syndrome.to_bits(), ..ack(psn) }
}
fn data(opcode: u8, psn: u64, payload: u64) -> RxMeta {
    RxMeta { payload: payload.to_bits(), pad: (payload.wrapping_neg() & 3).to_bits(), ..response(1, opcode, psn) }
}

#[test]
fn random_responses_match_the_reference() {
    let mut m = model();
    for seed in 0..verilate::scale(24) as u64 {
        let mut rng = verilate::rng(seed);
        let mut qps = qps();
        for r in &mut qps {
            r.mtu = 256 << rng.random_range(0..5);
            r.psn = [0, M24 - 9, rng.random::<u64>() & M24][rng.random_range(0..3)];
            r.sent = r.psn;
            r.retry_count = rng.random_range(0..8);
            r.retry = r.retry_count;
            r.rnr_count = rng.random_range(0..8);
            r.rnr_retry = r.rnr_count;
            if rng.random_bool(0.1) {
                r.state = rng.random_range(0..8);
            }
            let mut reads = 0;
            for _ in 0..rng.random_range(0..100) {
                let mut opcode =
                    [send_op::SEND, send_op::WRITE, send_op::WRITE_IMM, send_op::READ][rng.random_range(0..4)];
                if opcode == send_op::READ {
                    reads += 1;
                    if reads > 16 {
                        opcode = send_op::SEND;
                    }
                }
                let length = [0, 1, r.mtu, rng.random_range(0..6 * r.mtu)][rng.random_range(0..4)];
                r.send(opcode, length, rng.random_bool(0.6));
            }
        }
        let mut shadow = qps.clone();
        let metas: Vec<RxMeta> = (0..800)
            .map(|_| {
                let r = &mut shadow[rng.random_range(0..QPS)];
                let flight = r.sent.wrapping_sub(r.psn) & M24;
                let mut x = response(r.qpn, op::ACK, r.psn + rng.random_range(0..=flight.min(6)));
                (x.rows, x.buf) = (rng.random_range(1..70u64).to_bits(), rng.random_range(0..1u64 << 20).to_bits());
                let oldest = r.messages.get(r.oldest);
                match rng.random_range(0..40) {
                    0 => x.syndrome = 0x60u64.to_bits(),
                    1 => x.syndrome = (0x20 | rng.random_range(0..32u64)).to_bits(),
                    2 if rng.random_bool(0.2) => x.syndrome = (0x61 + rng.random_range(0..4u64)).to_bits(),
                    3 => x.psn = ((r.psn + rng.random_range(0..1000)) & M24).to_bits(),
                    5 => x.sip = (PEER ^ 1).to_bits(),
                    6 => x.pkey = 0x7fffu64.to_bits(),
                    4 => x.psn = (r.psn.wrapping_sub(rng.random_range(1..9)) & M24).to_bits(),
                    _ => {
                        if let Some(s) = oldest.filter(|s| s.opcode == send_op::READ) {
                            // The next response packet, rarely not.
                            let at = (r.psn.wrapping_sub(s.psn) & M24) * r.mtu;
                            let n = (s.length - at).min(r.mtu);
                            let opcode = match (at == 0, at + n == s.length) {
                                (true, true) => op::READ_RESPONSE_ONLY,
                                (true, false) => op::READ_RESPONSE_FIRST,
                                (false, true) => op::READ_RESPONSE_LAST,
                                _ => op::READ_RESPONSE_MIDDLE,
                            };
                            let n = if rng.random_bool(0.01) { rng.random_range(0..5000) } else { n };
                            x = RxMeta { rows: x.rows, buf: x.buf, ..data(opcode, r.psn, n) };
                            x.qpn = r.qpn.to_bits();
                            if rng.random_bool(0.05) {
                                x.psn = ((r.psn + rng.random_range(0..3)) & M24).to_bits();
                            }
                        }
                    }
                }
                r.receive(&x);
                x
            })
            .collect();
        let stall = [Stall::Never, Stall::Random, Stall::Rate(0.3)][seed as usize % 3];
        check(&mut m, &mut qps, &metas, stall, seed);
    }
}

/// An outcome in words.
fn words((_, ops, back): &Outcome) -> String {
    let mut text = vec![];
    for op in ops {
        if op.write {
            text.push(format!("write {:x} {}", op.va.to_u64(), op.len.to_u64()));
        }
        let c = op.completion;
        if c.valid {
            text.push(format!("cqe {} status {}", c.wqe_index.to_u64(), c.status.to_u64()));
        }
        if c.cause.any() {
            text.push(format!("end {}", cause::NAMES[c.cause.to_u64() as usize].0));
        }
    }
    if let Some(b) = back {
        text.push(format!("back {} at {} of {}", b.psn.to_u64(), b.offset.to_u64(), b.record.to_u64()));
    }
    if text.is_empty() { "nothing".into() } else { text.join(", ") }
}

/// Responses to one QP, and what each must lead to: by the reference, and by the hardware.
fn rule(setup: impl FnOnce(&mut Reference), script: &[(RxMeta, &str)]) {
    let mut qps = qps();
    setup(&mut qps[1]);
    let mut twin = qps[1].clone();
    for (i, (x, want)) in script.iter().enumerate() {
        assert_eq!(words(&twin.receive(x)), *want, "response {i}");
    }
    let metas: Vec<RxMeta> = script.iter().map(|(x, _)| *x).collect();
    for (seed, stall) in [Stall::Never, Stall::Random].into_iter().enumerate() {
        check(&mut model(), &mut qps.clone(), &metas, stall, seed as u64);
    }
}

/// Two SENDs (100, 101), a READ of 2,500 bytes (102 to 104), a WRITE (105).
fn usual(r: &mut Reference) {
    r.send(send_op::SEND, 10, true).send(send_op::SEND, 10, false);
    r.send(send_op::READ, 2500, true).send(send_op::WRITE, 10, true);
}

#[test]
fn an_ack_completes_all_before_it_in_order() {
    rule(
        |r| _ = r.send(send_op::SEND, 10, true).send(send_op::SEND, 10, false).send(send_op::SEND, 10, true),
        &[(ack(102), "cqe 0 status 0, cqe 3 status 0"), (ack(102), "nothing"), (ack(103), "nothing")],
    );
}

#[test]
fn an_ack_within_a_message_completes_nothing() {
    rule(|r| _ = r.send(send_op::SEND, 3000, true), &[(ack(101), "nothing"), (ack(102), "cqe 0 status 0")]);
}

#[test]
fn a_read_response_lands_and_completes_with_its_last_packet() {
    rule(
        usual,
        &[
            (data(op::READ_RESPONSE_FIRST, 102, 1024), "cqe 0 status 0, write 1000 1024"),
            (data(op::READ_RESPONSE_MIDDLE, 103, 1024), "write 1400 226, write 9000 798"),
            (data(op::READ_RESPONSE_LAST, 104, 452), "write 931e 452, cqe 3 status 0"),
            (ack(105), "cqe 6 status 0"),
        ],
    );
}

#[test]
fn an_answer_beyond_a_read_is_an_implied_nak() {
    rule(
        usual,
        &[
            (ack(105), "cqe 0 status 0, back 102 at 0 of 2"),
            (ack(105), "nothing"),
            (data(op::READ_RESPONSE_FIRST, 102, 1024), "write 1000 1024"),
            (data(op::READ_RESPONSE_LAST, 104, 452), "back 103 at 1024 of 2"),
        ],
    );
}

#[test]
fn responses_of_others_are_not_heard() {
    let foreign = RxMeta { sip: (PEER ^ 1).to_bits(), ..ack(100) };
    let key = RxMeta { pkey: 0x7fffu64.to_bits(), ..ack(100) };
    rule(usual, &[(foreign, "nothing"), (key, "nothing"), (ack(100), "cqe 0 status 0")]);
}

#[test]
fn an_unsolicited_ack_within_a_read_says_nothing_about_it() {
    rule(usual, &[(ack(103), "cqe 0 status 0"), (ack(104), "nothing")]);
}

#[test]
fn a_response_of_wrong_length_ends_the_qp() {
    let end = "cqe 0 status 0, cqe 3 status 7, end BAD_RESPONSE";
    rule(usual, &[(data(op::READ_RESPONSE_FIRST, 102, 1020), end), (ack(105), "nothing")]);
    rule(usual, &[(data(op::READ_RESPONSE_ONLY, 102, 1024), end)]);
}

#[test]
fn nak_sequence_error_acknowledges_what_is_before_it_and_goes_back() {
    rule(usual, &[(nak(101, 0x60), "cqe 0 status 0, back 101 at 0 of 1"), (ack(101), "nothing")]);
    rule(|r| _ = r.send(send_op::WRITE, 5000, true), &[(nak(102, 0x60), "back 102 at 2048 of 0")]);
}

#[test]
fn retries_are_counted_and_reloaded_by_progress() {
    rule(
        |r| {
            (r.retry_count, r.retry) = (1, 1);
            r.send(send_op::WRITE, 5000, true);
        },
        &[
            (nak(100, 0x60), "back 100 at 0 of 0"),
            (ack(100), "nothing"),
            (nak(101, 0x60), "back 101 at 1024 of 0"),
            (nak(101, 0x60), "cqe 0 status 12, end RETRY_EXCEEDED"),
        ],
    );
}

#[test]
fn fatal_naks_complete_their_message_with_an_error() {
    for (syndrome, status, name) in
        [(0x61, 9, "NAK_INVALID_REQUEST"), (0x62, 10, "NAK_REMOTE_ACCESS"), (0x63, 11, "NAK_REMOTE_OPERATION")]
    {
        let want = format!("cqe 0 status 0, cqe 1 status {status}, end {name}");
        rule(usual, &[(nak(101, syndrome), &want), (ack(105), "nothing")]);
        // Within a READ it is about that READ.
        let want = format!("cqe 0 status 0, cqe 3 status {status}, end {name}");
        rule(usual, &[(nak(103, syndrome), &want)]);
    }
}

#[test]
fn rnr_retries_are_counted_unless_they_are_seven() {
    rule(
        |r| {
            (r.rnr_count, r.rnr_retry) = (1, 1);
            r.send(send_op::SEND, 10, true);
        },
        &[(nak(100, 0x2c), "nothing"), (nak(100, 0x2c), "cqe 0 status 13, end RNR_RETRY_EXCEEDED")],
    );
    rule(|r| _ = r.send(send_op::SEND, 10, true), &[(nak(100, 0x2c), "nothing"); 9]);
}

#[test]
fn an_ack_takes_five_cycles_read_data_six_and_a_further_message_three() {
    let mut m = model();
    let mut qps = qps();
    (0..100).for_each(|_| _ = qps[1].send(send_op::SEND, 10, true));
    let metas: Vec<_> = (100..200).map(ack).collect();
    let (cycles, _) = check(&mut m, &mut qps.clone(), &metas, Stall::Never, 1);
    println!("ACK: {:.2} cycles", cycles as f64 / 100.0);
    assert!(cycles <= 510);
    let (cycles, _) = check(&mut m, &mut qps, &metas[99..], Stall::Never, 1);
    println!("coalesced ACK: {:.2} cycles per message", cycles as f64 / 100.0);
    assert!(cycles <= 310);
    let mut qps = self::qps();
    qps[1].send(send_op::READ, 100 * 1024, true);
    let metas: Vec<_> = (0..100)
        .map(|i| {
            data(
                [op::READ_RESPONSE_FIRST, op::READ_RESPONSE_MIDDLE, op::READ_RESPONSE_LAST]
                    [(i > 0) as usize + (i == 99) as usize],
                100 + i,
                1024,
            )
        })
        .collect();
    let (cycles, _) = check(&mut m, &mut qps, &metas, Stall::Never, 1);
    println!("READ response: {:.2} cycles", cycles as f64 / 100.0);
    assert!(cycles <= 615);
}

/// A clock-by-clock run with wake-up calls returned as dispatch does; for faults and timers.
struct Live {
    m: Model,
    around: Around,
    tick: u64,
}

/// What comes out: ops and go backs in order, with the tick they came in.
#[derive(Debug, Clone, PartialEq)]
enum Event {
    Op(String),
    Back(u64),
}

impl Live {
    fn new(setup: impl FnOnce(&mut Reference)) -> Self {
        const TICK: usize = 64;
        let mut m = Model::of(|| Completer::new(QPS, TICK, 5), options()).unwrap();
        m.reset();
        let mut qps = qps();
        setup(&mut qps[1]);
        for (q, r) in qps.iter().enumerate() {
            load(&mut m, q, r);
        }
        let around = Around::new(&m, &qps);
        m.set("op.ready", 1);
        m.set("back.ready", 1);
        m.set("wake.ready", 0);
        Live { m, around, tick: TICK as u64 }
    }
    fn left(&mut self, psn: u64) {
        self.leaves(psn, true);
    }
    /// A raw frame leaves: nobody else acknowledges it.
    fn raw_left(&mut self, psn: u64) {
        self.leaves(psn, false);
    }
    fn leaves(&mut self, psn: u64, expects: bool) {
        let left = TxLeft { qpn: 1u64.to_bits(), psn: psn.to_bits(), expects };
        self.m.set_bytes("left.data", &bytes_of(left));
        self.m.set("left.valid", 1);
        self.cycle(None);
        self.m.set("left.valid", 0);
    }
    fn cycle(&mut self, mut seen: Option<&mut Vec<(u64, Event)>>) {
        self.around.drive(&mut self.m);
        self.m.eval();
        self.around.observe(&self.m);
        let now = self.m.cycle() / self.tick;
        if let Some(seen) = &mut seen {
            if self.m.bit("op.valid") {
                let op = fields_of::<RxOp>(self.m.bytes("op.data"));
                let get = |k: &str| op.get(k).copied().unwrap_or(0);
                if get("completion.valid") != 0 || get("completion.cause") != 0 {
                    let text = format!("cqe {} status {}", get("completion.wqe_index"), get("completion.status"));
                    seen.push((now, Event::Op(text)));
                }
            }
            if self.m.bit("back.valid") {
                let back = fields_of::<GoBack>(self.m.bytes("back.data"));
                seen.push((now, Event::Back(back.get("psn").copied().unwrap_or(0) as u64)));
            }
        }
        self.m.tick();
    }
    /// Runs for some ticks.
    fn run(&mut self, ticks: u64, give: &[RxMeta]) -> Vec<(u64, Event)> {
        let mut seen = vec![];
        let mut give: VecDeque<RxMeta> = give.iter().copied().collect();
        let end = self.m.cycle() + ticks * self.tick;
        while self.m.cycle() < end {
            self.m.eval();
            if give.is_empty() && self.m.bit("wake.valid") {
                let q = self.m.get("wake.data");
                give.push_back(RxMeta { qpn: q.to_bits(), ..Default::default() });
                self.m.set("wake.ready", 1);
            }
            if let Some(meta) = give.front() {
                self.m.set_bytes("meta.data", &bytes_of(*meta));
                self.m.set("meta.valid", 1);
                self.m.eval();
                if self.m.bit("meta.ready") {
                    give.pop_front();
                }
            }
            self.cycle(Some(&mut seen));
            self.m.set("wake.ready", 0);
            self.m.set("meta.valid", 0);
        }
        seen
    }
    fn fault(&mut self, psn: u64, blocks: u64) {
        let fault = SendFault {
            qpn: 1u64.to_bits(),
            generation: 10u64.to_bits(),
            psn: psn.to_bits(),
            cause: (if blocks == 0 { cause::KEY_PD } else { cause::WQE_OPCODE } as u64).to_bits(),
            blocks: blocks.to_bits(),
            opcode: 0u64.to_bits(),
        };
        self.m.set_bytes("fault.data", &bytes_of(fault));
        self.m.set("fault.valid", 1);
        self.m.eval();
        while !self.m.bit("fault.ready") {
            self.cycle(None);
            self.m.eval();
        }
        self.cycle(None);
        self.m.set("fault.valid", 0);
    }
}

fn backs(seen: &[(u64, Event)]) -> Vec<u64> {
    seen.iter().filter(|(_, e)| matches!(e, Event::Back(_))).map(|(t, _)| *t).collect()
}

#[test]
fn the_fast_timer_doubles_and_costs_no_retry() {
    let mut live = Live::new(|r| _ = r.send(send_op::SEND, 10, true));
    assert_eq!(live.run(300, &[]), []);
    live.left(100);
    let start = live.m.cycle() / live.tick;
    let times: Vec<u64> = backs(&live.run(2200, &[])).iter().map(|t| t - start).collect();
    println!("go backs after {times:?} ticks");
    let first = timers::FIRST;
    for (i, t) in times.iter().enumerate() {
        let want = first * ((2 << i) - 1);
        assert!(want <= *t && *t <= want + 4 * (i as u64 + 1), "{i}: {t} for {want}");
    }
    assert_eq!(times.len(), 4);
    // Eight firings and more: far more than seven retries, and no error.
    assert!(
        live.around.counts[&counter::RETRY_FAST_TIMER] == 4
            && !live.around.counts.contains_key(&counter::RETRY_TIMEOUT)
    );
}

#[test]
fn after_a_nak_the_fast_timer_waits_twice_as_long() {
    let mut live = Live::new(|r| (0..4).for_each(|_| _ = r.send(send_op::SEND, 10, true)));
    (100..104).for_each(|psn| live.left(psn));
    assert_eq!(backs(&live.run(2, &[nak(100, 0x60)])).len(), 1);
    let start = live.m.cycle() / live.tick;
    let first = backs(&live.run(400, &[]))[0] - start;
    assert!((2 * timers::FIRST - 4..2 * timers::FIRST + 8).contains(&first), "{first} ticks");
}

#[test]
fn the_fast_timer_follows_the_round_trip() {
    let mut live = Live::new(|r| (0..60).for_each(|_| _ = r.send(send_op::SEND, 10, true)));
    for psn in 100..150 {
        live.left(psn);
        let seen = live.run(12, &[]);
        assert!(backs(&seen).is_empty());
        live.run(1, &[ack(psn)]);
    }
    live.left(150);
    let start = live.m.cycle() / live.tick;
    let first = backs(&live.run(100, &[]))[0] - start;
    println!("fires {first} ticks after a packet, at round trips of 12 ticks");
    assert!((13..20).contains(&first));
}

/// The packets of a READ response may come further apart than its first one took: on a slow or shared link.
#[test]
fn the_fast_timer_follows_the_pace_of_the_responses() {
    let mut live = Live::new(|r| _ = r.send(send_op::READ, 20 * 1024, true));
    live.left(100);
    for (psn, gap) in (100..).zip([20, 55, 100, 180, 180, 20, 20, 180, 180]) {
        assert_eq!(backs(&live.run(gap, &[])), [] as [u64; 0], "before response {psn}");
        let opcode = if psn == 100 { op::READ_RESPONSE_FIRST } else { op::READ_RESPONSE_MIDDLE };
        live.run(1, &[data(opcode, psn, 1024)]);
    }
    // It stops.
    let start = live.m.cycle() / live.tick;
    let first = backs(&live.run(1000, &[]))[0] - start;
    println!("fires {first} ticks after the last response");
    assert!((2 * 180 - 20..2 * 180 + 20).contains(&first), "{first}");
}

#[test]
fn the_verbs_timeout_costs_retries_until_none_is_left() {
    let mut live = Live::new(|r| {
        (r.timeout, r.retry_count) = (3, 2);
        r.send(send_op::SEND, 10, true);
    });
    live.left(100);
    let seen = live.run(200, &[]);
    // 4 x 2^3 ticks, below the fast timer: each firing counts.
    assert_eq!(backs(&seen).len(), 2);
    assert_eq!(seen.last().unwrap().1, Event::Op("cqe 0 status 12".into()));
    assert_eq!(live.around.counts[&counter::RETRY_TIMEOUT], 2);
}

#[test]
fn progress_stops_the_timer() {
    let mut live = Live::new(|r| _ = r.send(send_op::SEND, 10, true));
    live.left(100);
    live.run(100, &[ack(100)]);
    assert_eq!(live.run(300, &[]), []);
}

#[test]
fn a_read_whose_response_stops_is_asked_for_again_from_there() {
    let mut live = Live::new(|r| _ = r.send(send_op::READ, 3000, true));
    live.left(100);
    live.run(2, &[data(op::READ_RESPONSE_FIRST, 100, 1024)]);
    let seen = live.run(200, &[]);
    assert_eq!(seen[0].1, Event::Back(101));
}

#[test]
fn an_rnr_nak_waits_for_its_timer() {
    // Code 7: 120 us, 118 ticks of 1.024 us.
    let mut live = Live::new(|r| _ = r.send(send_op::SEND, 10, true));
    live.left(100);
    let start = live.m.cycle() / live.tick;
    let seen = live.run(400, &[nak(100, 0x20 | 7)]);
    let first = backs(&seen)[0] - start;
    println!("back {first} ticks after RNR");
    assert!((118..122).contains(&first));
}

#[test]
fn a_failed_wqe_completes_in_its_turn() {
    let setup = |r: &mut Reference| _ = r.send(send_op::SEND, 10, true).send(send_op::SEND, 10, true);
    let op = |text: &str| Event::Op(text.into());
    let what = |seen: Vec<(u64, Event)>| seen.into_iter().map(|(_, e)| e).collect::<Vec<_>>();
    // A WQE that was not sent: behind two that were.
    let mut live = Live::new(setup);
    live.fault(102, 1);
    assert_eq!(what(live.run(2, &[])), []);
    assert_eq!(what(live.run(2, &[ack(100)])), [op("cqe 0 status 0")]);
    assert_eq!(what(live.run(2, &[ack(101)])), [op("cqe 1 status 0"), op("cqe 3 status 2")]);
    assert_eq!(what(live.run(2, &[ack(101)])), []);
    // A frame of the second message.
    let mut live = Live::new(setup);
    live.fault(101, 0);
    assert_eq!(what(live.run(2, &[ack(100)])), [op("cqe 0 status 0"), op("cqe 1 status 4")]);
    // A frame that was acknowledged all the same: send on from where we are.
    let mut live = Live::new(setup);
    live.run(2, &[ack(100)]);
    live.fault(100, 0);
    assert_eq!(what(live.run(2, &[])), [Event::Back(101)]);
}

#[test]
fn a_fault_behind_messages_that_asked_for_no_ack_sends_them_again() {
    for blocks in [0, 1] {
        let mut live = Live::new(|r| _ = r.send(send_op::SEND, 10, false).send(send_op::SEND, 10, blocks == 0));
        // Of the second message, or behind both; nothing that asks for an answer has left.
        live.fault(101 + blocks, blocks);
        let seen = live.run(timers::FIRST + 10, &[]);
        assert_eq!(seen.into_iter().map(|(_, e)| e).collect::<Vec<_>>(), [Event::Back(100)]);
        assert_eq!(live.run(300, &[]), []);
    }
}

/// A raw frame is done when it has left, and those before it; its PSN is nobody's otherwise.
#[test]
fn raw_frames_complete_when_they_have_left() {
    let setup = |r: &mut Reference| _ = (0..4).fold(r, |r, i| r.send(send_op::SEND, 60, i != 1));
    let op = |text: &str| Event::Op(text.into());
    let what = |seen: Vec<(u64, Event)>| seen.into_iter().map(|(_, e)| e).collect::<Vec<_>>();
    let mut live = Live::new(setup);
    live.raw_left(100);
    assert_eq!(what(live.run(2, &[])), [op("cqe 0 status 0")]);
    // Two leave before the call for the first is made.
    live.raw_left(101);
    live.raw_left(102);
    assert_eq!(what(live.run(2, &[])), [op("cqe 3 status 0")]);
    // What is done, or was never sent, is not done again.
    live.raw_left(102);
    assert_eq!(what(live.run(2, &[])), []);
    live.raw_left(104);
    assert_eq!(what(live.run(2, &[])), []);
    // A failed frame completes in its turn.
    live.fault(103, 0);
    assert_eq!(what(live.run(2, &[])), [op("cqe 6 status 4")]);
    // No timer runs for them.
    let mut live = Live::new(setup);
    live.raw_left(100);
    assert_eq!(backs(&live.run(3000, &[])), [] as [u64; 0]);
}
