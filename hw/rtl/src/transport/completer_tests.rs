//! The completer against a plain reference of the rules, each rule alone, and its timers.

use super::{completer::Completer, kit::*, timers};
use crate::msg::*;
use abi::{
    queue::send_op,
    status::{cause, counter, wc},
    table::{id, invalidate, qp_recv, qp_send, qp_state, qp_type},
    wire::op,
};
use hdl::prelude::*;
use rand::RngExt;
use std::collections::{BTreeMap, VecDeque};
use verilate::{
    Model,
    bench::{self, Actor, Sink, Source, Stall},
};

mod live;
mod rules;
mod waits;

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
    /// READ, atomic: where it lands.
    sges: Vec<(u64, u64, u64)>,
}

impl Message {
    fn atomic(&self) -> bool {
        [send_op::COMPARE_SWAP, send_op::FETCH_ADD].contains(&self.opcode)
    }
    fn puts(&self) -> bool {
        self.opcode == send_op::ATOMIC_WRITE
    }
    /// Its peer answers it with data, or with a response of none.
    fn reads(&self) -> bool {
        self.opcode == send_op::READ || self.puts() || self.atomic()
    }
}

/// A send side in plain numbers: what the rules say, written down a second time.
#[derive(Clone, Debug)]
struct Reference {
    qpn: u64,
    /// Of a type that nobody acknowledges.
    alone: bool,
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
    /// Messages, counted from the first, that the peer has a receive for, if it counts them.
    limit: Option<u64>,
}

fn qp(qpn: u64) -> Reference {
    Reference {
        qpn,
        alone: false,
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
        limit: None,
    }
}

/// What a response leads to.
type Outcome = (usize, Vec<RxOp>, Option<GoBack>);

impl Reference {
    fn send(&mut self, opcode: u8, length: u64, signaled: bool) -> &mut Self {
        let packets = if opcode == send_op::LOCAL_INV { 0 } else { length.div_ceil(self.mtu).max(1) };
        let index = self.messages.last().map_or(0, |m| m.index + m.blocks);
        let blocks = 1 + self.messages.len() as u64 % 4;
        let half = length / 2;
        let sges = vec![(0x1000, 0x11, half), (0x9000, 0x22, length - half)];
        let psn = self.sent;
        let mut message = Message { psn, packets, index, blocks, opcode, signaled, length, sges };
        if message.atomic() {
            // Where SGE 0 would be are its operands.
            message.sges = vec![(0x1000, 0x11, 0), (0x9000, 0x22, length)];
        }
        self.messages.push(message);
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
    /// Takes the credits of an acknowledgement; whether there is something new in them for one that may have to wait for some.
    /// `retired`: messages that it is the last word on.
    fn credit(&mut self, m: &RxMeta, retired: usize) -> bool {
        let (syndrome, msn) = (m.syndrome.to_u64(), m.msn.to_u64());
        let base = (self.oldest - retired) as u64;
        let ahead = msn.wrapping_sub(base) & 127;
        let old = self.limit;
        if old == Some(base) {
            self.limit = Some(self.oldest as u64);
        }
        // What lies far behind or before is not about what is in flight, nor what does not count the message that it acknowledges.
        if syndrome >= 0x20 || ahead >= 32 || ahead < retired as u64 {
            return false;
        }
        let msn = base + ahead;
        self.limit = match syndrome {
            14.. => None,
            13 => Some(msn + 95),
            code => Some(msn + [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64][code as usize]),
        };
        self.kicks |= old.is_some() && old != self.limit;
        old.is_some() && old != self.limit
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
        // An ACK of what is acknowledged may tell of credits.
        let again = ahead == M24 && opcode == op::ACK && syndrome < 0x20;
        if ahead >= (self.sent.wrapping_sub(self.psn) & M24) && !again {
            return stale;
        }
        let atomic = opcode == op::ATOMIC_ACK;
        let data = (op::READ_RESPONSE_FIRST..=op::READ_RESPONSE_ONLY).contains(&opcode) || atomic;
        let (class, low) = (syndrome >> 5, syndrome & 31);
        if !data && (opcode != op::ACK || !matches!(class, 0 | 1 | 3) || class == 3 && low > 3) {
            return stale;
        }
        let ack = !data && class == 0;
        let rnr = !data && class == 1;
        let fatal = !data && class == 3 && low > 0;
        let mut todo = (ahead + ack as u64) & M24;
        let mut ops = vec![];
        let mut moved = false;
        let m0 = m;
        while todo > 0 {
            let Some(m) = self.messages.get(self.oldest).cloned() else { break };
            let span = (m.psn + m.packets).wrapping_sub(self.psn) & M24;
            if m.reads() {
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
            let mut retired = 0;
            moved = true;
            self.kicks = true;
            if todo < span {
                self.psn = (self.psn + todo) & M24;
                todo = 0;
            } else {
                self.psn = (m.psn + m.packets) & M24;
                self.oldest += 1;
                todo -= span;
                retired = 1;
                let ends = todo == 0 && ack && self.fault.is_none();
                if !ends && self.limit == Some(self.oldest as u64 - 1) {
                    self.limit = Some(self.oldest as u64);
                }
                if m.signaled {
                    let mut op = self.op();
                    op.completion = self.completion(&m, 0, 0);
                    ops.push(op);
                }
            }
            // The last retired message's completion is the last op, unless more is to be said.
            if todo == 0 && ack && self.fault.is_none() {
                self.credit(m0, retired);
                if !(m.signaled && self.psn == (m.psn + m.packets) & M24) {
                    ops.push(self.op());
                }
                return (counter::RX_ACCEPTED, free(ops), None);
            }
        }
        if ack {
            let op = self.due().unwrap_or(self.op());
            ops.push(op);
            let credit = self.credit(m, 0);
            let accepted = moved || credit;
            return (if accepted { counter::RX_ACCEPTED } else { counter::RX_STALE_RESPONSE }, free(ops), None);
        }
        if data {
            let Some(r) = self.messages.get(self.oldest).filter(|r| r.reads()).cloned() else {
                ops.push(self.op());
                return (counter::RX_STALE_RESPONSE, free(ops), None);
            };
            let at = (psn.wrapping_sub(r.psn) & M24) * self.mtu;
            let payload = m.payload.to_u64();
            let left = if r.puts() { 0 } else { r.length - at };
            let final_one = (psn + 1) & M24 == (r.psn + r.packets) & M24;
            let ends = opcode == op::READ_RESPONSE_LAST || opcode == op::READ_RESPONSE_ONLY || atomic;
            let pad = (payload + m.pad.to_u64()).is_multiple_of(4);
            if atomic != r.atomic() || ends != final_one || payload != if final_one { left } else { self.mtu } || !pad {
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
                    op.reply.atomic = atomic;
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
            self.oldest += final_one as usize;
            if ends {
                self.credit(m, final_one as usize);
            }
            if final_one {
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
        (qp_send::TYPE, if r.alone { qp_type::UC } else { qp_type::RC }.into()),
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
                blocks: (s.blocks & 3).to_bits(),
                opcode: (s.opcode as u64).to_bits(),
                signaled: s.signaled,
                length: s.length.to_bits(),
            })]
        });
        self.land.drive(m, |[at]| {
            let mut block = vec![];
            if let Some(r) = qps.get(at as usize / 16) {
                // The oldest READ of this slot that is not done: the test knows how many are.
                let reads: Vec<_> = r.messages.iter().filter(|m| m.reads()).collect();
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
            "key" | "va" | "len" | "span" | "buf" | "pd" | "need" | "reply.atomic" => write,
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
        let limit = r.limit.map_or((0, 0), |l| (1, l & 127));
        assert_eq!((get("limited"), get("limited") * get("limit")), limit, "credits of QP {q}");
        assert_eq!(around.kicks.contains_key(&(q as u64)), r.kicks, "kick of QP {q}");
        let psn = qp_send::PSN.get(&read_row(m, id::QP_SEND, q as u64));
        assert_eq!(psn, r.psn, "oldest PSN of QP {q} as the table bus reads it");
    }
    (cycles, goes)
}

fn model() -> Model {
    Model::of(|| Completer::new(QPS, 0xffff, 5, 2), options()).unwrap()
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
