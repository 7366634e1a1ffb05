//! The responder against a plain reference of the rules, and each rule alone.

use super::kit::*;
use super::responder::{MOST_HOLES, Responder};
use crate::msg::*;
use abi::{
    queue::{HOLE, recv_op},
    status::{cause, counter, wc},
    table::{access, id, invalidate, qp_recv, qp_recv_read, qp_state, qp_type},
    wire::{op, op_info, transport},
};
use hdl::prelude::*;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use verilate::{
    Model,
    bench::{self, Actor, Sink, Source, Stall},
};

mod rules;

const QPS: usize = 32;
const PEER: u64 = 0x0200_000a;
const QKEY: u64 = 0x8000_1234;

/// A packet in plain numbers.
#[derive(Clone, Debug)]
struct Packet {
    raw: bool,
    qpn: u64,
    opcode: u8,
    psn: u64,
    payload: u64,
    va: u64,
    rkey: u64,
    dma_len: u64,
    ack: bool,
    /// UD: who sent it.
    source: u64,
    ip6: bool,
    pad: Option<u64>,
    pkey: u64,
    sip: u64,
    buf: u64,
    rows: u64,
}

impl Packet {
    fn new(qpn: u64, opcode: u8, psn: u64) -> Self {
        Packet {
            raw: false,
            qpn,
            opcode,
            psn,
            payload: 0,
            va: 0,
            rkey: 0,
            dma_len: 0,
            ack: true,
            source: 0,
            ip6: false,
            pad: None,
            pkey: 0xffff,
            sip: PEER,
            buf: 0x4560,
            rows: 3,
        }
    }
    fn payload(mut self, n: u64) -> Self {
        self.payload = n;
        self
    }
    fn reth(mut self, va: u64, rkey: u64, dma_len: u64) -> Self {
        (self.va, self.rkey, self.dma_len) = (va, rkey, dma_len);
        self
    }
    /// QP that it is for: raw frames have no QPN of their own.
    fn qp(&self) -> u64 {
        if self.raw { 0 } else { self.qpn & 0xfff }
    }
    fn meta(&self) -> RxMeta {
        RxMeta {
            raw: self.raw,
            buf: self.buf.to_bits(),
            payload: self.payload.to_bits(),
            rows: self.rows.to_bits(),
            opcode: (self.opcode as u64).to_bits(),
            qpn: self.qpn.to_bits(),
            psn: self.psn.to_bits(),
            pkey: self.pkey.to_bits(),
            ack_req: self.ack,
            solicited: self.psn & 1 != 0,
            pad: self.pad.unwrap_or(self.payload.wrapping_neg() & 3).to_bits(),
            va: self.va.to_bits(),
            rkey: self.rkey.to_bits(),
            dma_len: self.dma_len.to_bits(),
            imm: (self.psn ^ 0x55aa_0000).to_bits(),
            sip: self.sip.to_bits(),
            ip6: self.ip6,
            msn: self.source.to_bits(),
            vlan: (self.psn & 0xfff).to_bits(),
            ..Default::default()
        }
    }
}

/// A receive side in plain numbers: what the rules say, written down a second time.
#[derive(Clone, Debug, Default)]
struct Reference {
    qpn: u64,
    /// `qp_type`.
    kind: u8,
    state: u8,
    generation: u64,
    mtu: u64,
    pd: u64,
    cqn: u64,
    max_reads: u64,
    timer: u64,
    access: u8,
    psn: u64,
    msn: u64,
    /// Opcode class under way, bytes so far, address, key, DMA length.
    message: Option<(bool, u64, u64, u64, u64)>,
    nak: bool,
    halted: bool,
    /// READs and atomics: PSN, address, key, length, and whether it is an atomic.
    reads: Vec<(u64, u64, u64, u64, bool)>,
    /// READs that the response engine has answered; all of them when `None`.
    answered: Option<u64>,
    /// Receives of one SGE, not of four. SGEs of one that is posted in part.
    single: bool,
    part: u64,
    /// Number of the shared queue that it takes receives from, and what it has taken for the message under way.
    shared: Option<u64>,
    held: Option<u64>,
    /// In receives.
    posted: u64,
    consumer: u64,
    wqes: Vec<[(u64, u64, u64); 4]>,
}

const M24: u64 = 0xff_ffff;

impl Reference {
    /// SGEs of a receive.
    fn stride(&self) -> u64 {
        if self.single { 1 } else { 4 }
    }
    /// How many SGEs can be on chip, of which there are few beside the largest ring.
    fn fetchable(&self) -> u64 {
        self.posted.min(self.wqes.len() as u64) * self.stride()
    }
    fn op(&self, p: &Packet) -> RxOp {
        RxOp {
            qpn: p.qp().to_bits(),
            generation: self.generation.to_bits(),
            last: true,
            rows: p.rows.to_bits(),
            ..Default::default()
        }
    }
    fn ack(&self, p: &Packet, psn: u64, syndrome: u64) -> RxOp {
        let mut op = self.op(p);
        op.reply.ack = true;
        op.reply.psn = (psn & M24).to_bits();
        op.reply.msn = self.msn.to_bits();
        op.reply.syndrome = syndrome.to_bits();
        op
    }
    fn complete(&mut self, op: &mut RxOp, p: &Packet, status: u8, opcode: u8, length: u64) {
        op.completion = Completion {
            valid: true,
            cqn: self.cqn.to_bits(),
            qpn: p.qp().to_bits(),
            generation: self.generation.to_bits(),
            status: (status as u64).to_bits(),
            opcode: (opcode as u64).to_bits(),
            wqe_index: ((self.receive_index() * self.stride()) & 0xffff).to_bits(),
            blocks: 1u64.to_bits(),
            length: length.to_bits(),
            imm: p.meta().imm,
            solicited: p.meta().solicited,
            vlan: p.meta().vlan,
            src_qpn: if p.opcode >> 5 == 3 { p.meta().msn } else { 0.into() },
            shared: self.shared.is_some(),
            ..Default::default()
        };
        self.consumer += u64::from(self.held.take().is_none());
    }
    /// The receive at hand.
    fn receive_index(&self) -> u64 {
        self.held.unwrap_or(self.consumer)
    }
    /// There is none.
    fn is_empty(&self) -> bool {
        self.held.is_none() && self.posted == self.consumer
    }
    /// Passes over what is none in a shared queue. Is there a receive then, and were there not too many holes?
    fn finds_receive(&mut self) -> bool {
        let is_hole = |r: &Self| r.wqes[r.consumer as usize][0].2 >= u64::from(HOLE);
        let mut holes = 0;
        while self.shared.is_some() && !self.is_empty() && self.held.is_none() && is_hole(self) {
            self.consumer += 1;
            holes += 1;
            if holes == MOST_HOLES {
                return false;
            }
        }
        !self.is_empty()
    }
    fn fail(&mut self, p: &Packet, why: u8) -> (usize, Vec<RxOp>) {
        let mut op = self.ack(p, p.psn, 0x61);
        if matches!(self.message, Some((true, ..))) || why == cause::RECEIVE_TOO_SHORT {
            let status = if why == cause::RECEIVE_TOO_SHORT { wc::LOC_LEN } else { wc::REM_INV_REQ };
            self.complete(&mut op, p, status, recv_op::RECV, 0);
        }
        op.completion.cause = (why as u64).to_bits();
        self.halted = true;
        (counter::RX_INVALID_REQUEST, vec![op])
    }
    fn scatter(&self, p: &Packet, offset: u64) -> Option<Vec<RxOp>> {
        self.walk(p, offset, p.payload, p.buf)
    }
    /// A datagram behind the header area, which has the IP header; none if the receive holds no more than a part.
    fn datagram(&self, p: &Packet) -> Option<Vec<RxOp>> {
        let payload = self.scatter(p, 40)?;
        let back = 28 + 4 * (p.opcode & 1) as u64;
        let header = if p.ip6 {
            self.walk(p, 0, 40, p.buf.wrapping_sub(back + 40))
        } else {
            self.walk(p, 20, 20, p.buf.wrapping_sub(back + 20))
        };
        let mut ops = header?;
        ops.last_mut().unwrap().last = false;
        ops.extend(payload);
        Some(ops)
    }
    /// Steps of `want` bytes from `buf` on to byte `offset` of a receive on.
    fn walk(&self, p: &Packet, offset: u64, want: u64, buf: u64) -> Option<Vec<RxOp>> {
        let wqe = self.wqes[self.receive_index() as usize];
        let (mut at, mut want, mut buf, mut ops) = (offset, want, buf, vec![]);
        if offset + want > wqe.iter().map(|s| s.2).sum::<u64>() {
            return None;
        }
        while want > 0 {
            let mut begin = 0;
            let sge = wqe.iter().find(|s| {
                begin += s.2;
                at < begin
            });
            let (va, key, len) = sge.unwrap();
            let n = want.min(begin - at);
            let mut op = self.op(p);
            op.write = true;
            op.key = key.to_bits();
            op.va = (va + len - (begin - at)).to_bits();
            op.len = n.to_bits();
            op.span = n.to_bits();
            op.buf = (buf & 0xfffff).to_bits();
            op.pd = self.pd.to_bits();
            op.need = (access::LOCAL_WRITE as u64).to_bits();
            op.last = n == want;
            (at, want, buf) = (at + n, want - n, buf + n);
            ops.push(op);
        }
        if ops.is_empty() {
            ops.push(self.op(p));
        }
        Some(ops)
    }
    /// Verdict and ops of a packet.
    fn receive(&mut self, p: &Packet) -> (usize, Vec<RxOp>) {
        let drop = vec![self.op(p)];
        let may = [qp_state::RTR, qp_state::RTS, qp_state::SQD, qp_state::SQE].contains(&self.state) && !self.halted;
        if p.raw {
            if !may || self.posted == self.consumer {
                return (counter::RX_RAW_DROPPED, drop);
            }
            let Some(mut ops) = self.scatter(p, 0) else { return (counter::RX_RAW_DROPPED, drop) };
            self.complete(ops.last_mut().unwrap(), p, 0, recv_op::RECV, p.payload);
            return (counter::RX_RAW, ops);
        }
        if p.opcode == 0x81 {
            return (counter::RX_CNP, drop);
        }
        if !may || p.qpn == 0 {
            return (counter::RX_QP_STATE, drop);
        }
        if p.opcode >> 5 != [0, 1, 3, 8][self.kind as usize] {
            return (counter::RX_QP_TYPE, drop);
        }
        if self.kind == qp_type::UD {
            return self.receive_datagram(p, drop);
        }
        if p.sip != PEER {
            return (counter::RX_QP_PEER, drop);
        }
        // The row has 0x7fff, a partial member: the packet must be from a full one.
        if p.pkey != 0xffff {
            return (counter::RX_PKEY, drop);
        }
        if self.kind == qp_type::UC {
            return self.receive_alone(p, drop);
        }
        let ahead = (p.psn.wrapping_sub(self.psn)) & M24;
        if ahead != 0 && ahead < 1 << 23 {
            let nak = self.ack(p, self.psn, 0x60);
            let first = !std::mem::replace(&mut self.nak, true);
            return (counter::RX_OUT_OF_SEQUENCE, if first { vec![nak] } else { drop });
        }
        let inv = [op::SEND_LAST_INV, op::SEND_ONLY_INV].contains(&p.opcode);
        let is_send = p.opcode <= op::SEND_ONLY_IMM || inv;
        let is_write = (op::WRITE_FIRST..=op::WRITE_ONLY_IMM).contains(&p.opcode);
        let is_atomic = [op::COMPARE_SWAP, op::FETCH_ADD].contains(&p.opcode);
        let is_put = p.opcode == op::ATOMIC_WRITE;
        let is_read = p.opcode == op::READ_REQUEST || is_atomic || is_put;
        // What is read.
        let wants = if is_put && p.dma_len == 8 { 0 } else { p.dma_len };
        if ahead != 0 {
            let mut op = self.op(p);
            if is_read {
                let recent = self.reads.len().min(16);
                for (i, &(psn, va, rkey, len, atomic)) in self.reads.iter().enumerate().rev().take(recent) {
                    let gap = (p.psn.wrapping_sub(psn) & M24) * self.mtu;
                    let place = (gap == 0 || gap < len) && (atomic || p.va == va + gap);
                    let matches = place && p.rkey == rkey && atomic == is_atomic;
                    if matches && wants == len - gap {
                        op.reply.read = true;
                        op.reply.again = true;
                        op.reply.psn = p.psn.to_bits();
                        op.reply.slot = ((i & 15) as u64).to_bits();
                        break;
                    }
                }
            } else if is_send || is_write {
                op = self.ack(p, self.psn + M24, 0x1f);
            }
            return (counter::RX_DUPLICATE, vec![op]);
        }
        let first = [op::SEND_FIRST, op::WRITE_FIRST].contains(&p.opcode);
        let middle = [op::SEND_MIDDLE, op::WRITE_MIDDLE].contains(&p.opcode);
        let only = [op::SEND_ONLY, op::SEND_ONLY_IMM, op::SEND_ONLY_INV, op::WRITE_ONLY, op::WRITE_ONLY_IMM]
            .contains(&p.opcode);
        let imm = [op::SEND_LAST_IMM, op::SEND_ONLY_IMM, op::WRITE_LAST_IMM, op::WRITE_ONLY_IMM].contains(&p.opcode);
        let opens = first || only || is_read;
        let closes = !first && !middle;
        let fits_sequence = match self.message {
            None => opens,
            Some((true, ..)) => is_send && !opens,
            Some((false, ..)) => is_write && !opens,
        };
        if !(is_send || is_write || is_read) || !fits_sequence {
            return self.fail(p, cause::INVALID_REQUEST);
        }
        let need = if is_write || is_put {
            access::REMOTE_WRITE
        } else if is_atomic {
            access::REMOTE_ATOMIC
        } else {
            access::REMOTE_READ
        };
        if !is_send && self.access & need == 0 {
            return self.fail(p, cause::QP_ACCESS);
        }
        let waiting = self.answered.map_or(0, |n| self.reads.len() as u64 - n);
        if is_read && waiting >= self.max_reads {
            return self.fail(p, cause::TOO_MANY_READS);
        }
        if (is_send || imm) && self.is_empty() {
            self.nak = true;
            return (counter::RX_RNR, vec![self.ack(p, p.psn, 0x20 | self.timer)]);
        }
        let (_, done, va, rkey, total) = self.message.unwrap_or((is_send, 0, p.va, p.rkey, p.dma_len));
        let left = total.wrapping_sub(done);
        let good = (p.payload + p.pad.unwrap_or(p.payload.wrapping_neg() & 3)).is_multiple_of(4)
            && (is_send || total <= 1 << 31)
            && if is_atomic {
                // That the operands are whole is ingress's business.
                p.va.is_multiple_of(8)
            } else if is_put {
                p.va.is_multiple_of(8) && (p.payload, p.dma_len) == (8, 8)
            } else if is_read {
                p.payload == 0
            } else if closes {
                p.payload <= self.mtu && (only || p.payload > 0) && (is_send || p.payload == left)
            } else {
                p.payload == self.mtu && (is_send || p.payload < left)
            };
        if !good {
            return self.fail(p, cause::INVALID_REQUEST);
        }
        if (is_send || imm) && !self.finds_receive() {
            self.nak = true;
            return (counter::RX_RNR, vec![self.ack(p, p.psn, 0x20 | self.timer)]);
        }
        let mut ops = if is_send {
            match self.scatter(p, done) {
                Some(ops) => ops,
                None => return self.fail(p, cause::RECEIVE_TOO_SHORT),
            }
        } else {
            let mut op = self.op(p);
            if (is_write || is_atomic || is_put) && p.payload > 0 {
                op.write = true;
                op.key = rkey.to_bits();
                op.va = va.to_bits();
                op.len = p.payload.to_bits();
                op.span = if opens && is_write { p.dma_len } else { p.payload }.to_bits();
                op.adds = p.opcode == op::FETCH_ADD;
                op.reply.atomic = is_atomic;
                op.buf = p.buf.to_bits();
                op.pd = self.pd.to_bits();
                op.need = (need as u64).to_bits();
            }
            vec![op]
        };
        if inv {
            // Behind its payload, the key.
            let mut op = self.op(p);
            ops.last_mut().unwrap().last = false;
            op.write = true;
            op.key = u32::from_be_bytes((p.meta().imm.to_u64() as u32).to_le_bytes()).to_bits();
            op.pd = self.pd.to_bits();
            op.need = to_invalidate(invalidate::REMOTE).to_bits();
            ops.push(op);
        }
        ops.last_mut().unwrap().accepted = true;
        self.nak = false;
        self.message = (!closes).then_some((is_send, done + p.payload, va + p.payload, rkey, total));
        self.msn = (self.msn + closes as u64) & M24;
        let last = ops.last_mut().unwrap();
        if is_read {
            last.reply.read = true;
            last.reply.psn = p.psn.to_bits();
            last.reply.slot = ((self.reads.len() & 15) as u64).to_bits();
            self.reads.push((p.psn, p.va, p.rkey, wants, is_atomic));
            self.psn = (self.psn + wants.div_ceil(self.mtu).max(1)) & M24;
        } else {
            if p.ack {
                last.reply = self.ack(p, p.psn, 0x1f).reply;
            }
            self.psn = (self.psn + 1) & M24;
        }
        // Of an ACK, or of the NAK if it cannot land.
        last.reply.msn = self.msn.to_bits();
        last.reply.counted = closes;
        if closes && (is_send || imm) {
            let opcode = match (is_send, imm) {
                _ if inv => recv_op::RECV_INV,
                (true, false) => recv_op::RECV,
                (true, true) => recv_op::RECV_IMM,
                _ => recv_op::RECV_WRITE_IMM,
            };
            let mut op = ops.pop().unwrap();
            self.complete(&mut op, p, 0, opcode, done + p.payload);
            ops.push(op);
        } else if is_send && self.shared.is_some() && self.held.is_none() {
            self.held = Some(self.consumer);
            self.consumer += 1;
        }
        (counter::RX_ACCEPTED, ops)
    }
}

impl Reference {
    /// A packet of a datagram, to a QP that may receive.
    fn receive_datagram(&mut self, p: &Packet, drop: Vec<RxOp>) -> (usize, Vec<RxOp>) {
        if p.rkey != QKEY {
            return (counter::RX_QP_PEER, drop);
        }
        if p.pkey != 0xffff {
            return (counter::RX_PKEY, drop);
        }
        let low = p.opcode & 31;
        let sound = low == op::SEND_ONLY || low == op::SEND_ONLY_IMM;
        let padded = (p.payload + p.pad.unwrap_or(p.payload.wrapping_neg() & 3)).is_multiple_of(4);
        if !sound || !padded || p.payload > self.mtu {
            return (counter::RX_UNRELIABLE, drop);
        }
        if !self.finds_receive() {
            return (counter::RX_UNRELIABLE, drop);
        }
        let Some(mut ops) = self.datagram(p) else { return (counter::RX_UNRELIABLE, drop) };
        let mut last = ops.pop().unwrap();
        last.accepted = true;
        self.psn = (p.psn + 1) & M24;
        self.msn = (self.msn + 1) & M24;
        (last.reply.msn, last.reply.counted) = (self.msn.to_bits(), true);
        let opcode = if low == op::SEND_ONLY { recv_op::RECV } else { recv_op::RECV_IMM };
        self.complete(&mut last, p, 0, opcode, p.payload + 40);
        ops.push(last);
        (counter::RX_ACCEPTED, ops)
    }

    /// A packet of an unreliable connection, from its peer. Its rules are those of a reliable one, but a message begins anywhere, and
    /// what a reliable one answers ends the message.
    fn receive_alone(&mut self, p: &Packet, drop: Vec<RxOp>) -> (usize, Vec<RxOp>) {
        let begins =
            [op::SEND_FIRST, op::SEND_ONLY, op::SEND_ONLY_IMM, op::WRITE_FIRST, op::WRITE_ONLY, op::WRITE_ONLY_IMM];
        let mut twin = Reference { kind: qp_type::RC, ..self.clone() };
        if begins.contains(&(p.opcode & 31)) {
            (twin.psn, twin.message) = (p.psn, None);
        }
        let reliable = Packet { opcode: p.opcode & 31, ..p.clone() };
        let (counter, mut ops) = twin.receive(&reliable);
        let short = ops.last().unwrap().completion.cause.to_u64() == cause::RECEIVE_TOO_SHORT as u64;
        ops.iter_mut().for_each(|op| op.reply.ack = false);
        if counter == counter::RX_ACCEPTED || short {
            let psn = if short { self.psn } else { twin.psn };
            *self = Reference { kind: qp_type::UC, psn, ..twin };
            return (if short { counter::RX_UNRELIABLE } else { counter }, ops);
        }
        self.message = None;
        (counter::RX_UNRELIABLE, drop)
    }
}

/// The blocks around the responder.
struct Around {
    view: ReadPort<[u64; 1]>,
    rq: ReadPort<[u64; 2]>,
    reads: ReadPort<[u64; 1]>,
    /// Blocks come a cycle late, and are not there before: the one that comes in the next cycle.
    late: bool,
    block: Option<Vec<u8>>,
    qps: Vec<Reference>,
    fetched: Vec<u64>,
    rng: ChaCha8Rng,
    counts: BTreeMap<usize, u64>,
    consumed: BTreeMap<u64, u64>,
    resources: BTreeMap<u64, (u64, u64)>,
    /// The store itself, and what is sought in it: its address, asked for in this cycle and in the one before.
    store: BTreeMap<u64, Vec<u8>>,
    seeks: [Option<u64>; 2],
    reads_seen: BTreeMap<u64, u64>,
}

impl Around {
    fn new(m: &Model, qps: &[Reference], seed: u64) -> Self {
        Around {
            view: ReadPort::new(m, "view_re", ["view_addr"], &["view"]),
            rq: ReadPort::new(m, "rq_re", ["rq_queue", "rq_index"], &["rq_block", "rq_view"]),
            reads: ReadPort::new(m, "reads_re", ["reads_addr"], &["reads"]),
            late: m.name() == LATE,
            block: None,
            qps: qps.to_vec(),
            fetched: vec![0; qps.len()],
            rng: verilate::rng(seed),
            counts: BTreeMap::new(),
            consumed: BTreeMap::new(),
            resources: BTreeMap::new(),
            store: BTreeMap::new(),
            seeks: [None; 2],
            reads_seen: BTreeMap::new(),
        }
    }
}

impl Actor for Around {
    fn drive(&mut self, m: &mut Model) {
        announce(m);
        let q = self.rng.random_range(0..self.qps.len());
        if self.fetched[q] < self.qps[q].fetchable() {
            self.fetched[q] += 1;
        }
        if let Some(block) = self.block.take() {
            m.set_bytes("rq_block", &block);
        }
        let Around { view, rq, reads, late, block: due, qps, fetched, reads_seen, .. } = self;
        view.drive(m, |[q]| {
            let (state, generation) =
                qps.get(q as usize).map_or((0, 0), |r: &Reference| (r.state as u64, r.generation));
            vec![bytes_of(QpView { state: state.to_bits(), generation: generation.to_bits() })]
        });
        rq.drive(m, |[q, index]| {
            let Some(r) = qps.get(q as usize) else { return vec![vec![0; 64], vec![0; 4]] };
            let mut block = vec![];
            for at in (index & !3)..(index & !3) + 4 {
                if at >= fetched[q as usize] {
                    block.extend([0xee; 16]);
                    continue;
                }
                let (va, key, len) = r.wqes[(at / r.stride()) as usize][(at % r.stride()) as usize];
                block.extend(va.to_le_bytes());
                block.extend((key as u32).to_le_bytes());
                block.extend((len as u32).to_le_bytes());
            }
            let posted = (r.posted * r.stride() + r.part) & 0xffff;
            let view = QueueView { posted: posted.to_bits(), fetched: fetched[q as usize].to_bits() };
            if *late {
                *due = Some(std::mem::replace(&mut block, vec![0x55; 64]));
            }
            vec![block, bytes_of(view)]
        });
        reads.drive(m, |[q]| {
            let all = reads_seen.get(&q).copied().unwrap_or(0);
            vec![vec![qps.get(q as usize).map_or(0, |r| r.answered.unwrap_or(all)) as u8]]
        });
        m.set("consume.ready", 1);
        // The response engine may be in the way of a search for a while.
        m.set("seek_ready", self.rng.random_bool(0.6).into());
        m.set("saved_valid", self.seeks[1].is_some().into());
        if let Some(at) = self.seeks[1] {
            m.set_bytes("saved", &self.store[&at]);
        }
    }
    fn observe(&mut self, m: &Model) {
        self.view.observe(m);
        self.rq.observe(m);
        self.reads.observe(m);
        let bits = m.get("count");
        (0..64).filter(|k| bits >> k & 1 != 0).for_each(|k| *self.counts.entry(k).or_default() += 1);
        if m.bit("consume.valid") {
            let data = fields_of::<QueueIndex>(m.bytes("consume.data"));
            let get = |k: &str| data.get(k).copied().unwrap_or(0) as u64;
            self.consumed.insert(get("queue"), get("index"));
        }
        self.seeks = [(m.bit("seek") && m.bit("seek_ready")).then(|| m.get("seek_at")), self.seeks[0]];
        if m.bit("res_we") {
            let data = fields_of::<ReadResource>(m.bytes("res"));
            assert!(!data.contains_key("done") && !data.contains_key("failed"));
            let mut stored = m.bytes("res").to_vec();
            if data.contains_key("atomic") {
                // It is done at once: the result takes the place of the address, behind PSN and MSN.
                verilate::bits::set(&mut stored, 48, 64, self.rng.random());
            }
            self.store.insert(m.get("res_addr"), stored);
            let get = |k: &str| data.get(k).copied().unwrap_or(0) as u64;
            self.resources.insert(m.get("res_addr"), (get("psn"), get("msn")));
            *self.reads_seen.entry(m.get("res_addr") / 16).or_default() += 1;
        }
    }
    fn done(&self) -> bool {
        true
    }
    fn status(&self) -> String {
        "surroundings".into()
    }
}

/// What counts of an op: fields that mean nothing in it are cleared.
fn essence(map: BTreeMap<String, u128>) -> BTreeMap<String, u128> {
    let has = |k: &str| map.contains_key(k);
    let (write, last) = (has("write"), has("last"));
    let kills = map.get("need").is_some_and(|need| *need >= 16);
    let (ack, read, valid) = (last && has("reply.ack"), last && has("reply.read"), last && has("completion.valid"));
    let bad = has("completion.status");
    map.clone()
        .into_iter()
        .filter(|(k, _)| match k.as_str() {
            "qpn" | "write" | "last" => true,
            "generation" => write || ack || read || valid,
            "key" | "pd" | "need" => write,
            "va" | "len" | "span" | "buf" | "reply.atomic" => write && !kills,
            "adds" => write && has("reply.atomic"),
            "rows" | "accepted" => last,
            "reply.ack" | "reply.read" => last,
            "reply.psn" => ack || read,
            "reply.msn" => ack || has("accepted"),
            "reply.counted" => has("accepted"),
            "reply.syndrome" => ack,
            "reply.slot" | "reply.again" => read,
            "completion.cause" => last,
            "completion.length" | "completion.opcode" => valid && !bad,
            "completion.imm" | "completion.vlan" | "completion.solicited" => valid && !bad,
            k if k.starts_with("completion.") => valid,
            _ => false,
        })
        .collect()
}

fn row(r: &Reference) -> [u8; 64] {
    let mut row = [0; 64];
    let code = (r.mtu / 256).trailing_zeros() as u64 + 1;
    for (field, value) in [
        (qp_recv::TYPE, r.kind.into()),
        (qp_recv::MTU, code),
        (qp_recv::LOAD, 1),
        (qp_recv::PD, r.pd),
        (qp_recv::CQN, r.cqn),
        (qp_recv::PSN, r.psn),
        (qp_recv::MAX_DEST_READS, r.max_reads),
        (qp_recv::MIN_RNR_TIMER, r.timer),
        (qp_recv::ONE_SGE, r.single.into()),
        (qp_recv::SHARED, r.shared.is_some().into()),
        (qp_recv::QUEUE, r.shared.unwrap_or(r.qpn)),
        (qp_recv::ACCESS, r.access as u64),
        (qp_recv::PKEY, 0x7fff),
        (qp_recv::SIP_LOW, if r.kind == qp_type::UD { QKEY } else { PEER }),
    ] {
        put(&mut row, field, value);
    }
    row
}

/// What a packet to the QP that it names leads to.
fn receive(qps: &mut [Reference], p: &Packet) -> (usize, Vec<RxOp>) {
    let q = p.qp() as usize;
    let Some(shared) = qps[q].shared else { return qps[q].receive(p) };
    // For so long the queue is the QP's.
    let mut r = std::mem::take(&mut qps[q]);
    let swap = |r: &mut Reference, s: &mut Reference| {
        std::mem::swap(&mut r.wqes, &mut s.wqes);
        std::mem::swap(&mut r.posted, &mut s.posted);
        std::mem::swap(&mut r.consumer, &mut s.consumer);
    };
    swap(&mut r, &mut qps[shared as usize]);
    let result = r.receive(p);
    swap(&mut r, &mut qps[shared as usize]);
    qps[q] = r;
    result
}

/// Runs packets through the responder and compares everything with the references. Gives back cycles, counters.
fn check(
    m: &mut Model,
    qps: &mut [Reference],
    packets: &[Packet],
    stall: Stall,
    seed: u64,
) -> (u64, BTreeMap<usize, u64>) {
    m.reset();
    for (q, r) in qps.iter().enumerate() {
        write_row(m, id::QP_RECV, q as u64, &row(r));
    }
    let mut around = Around::new(m, qps, seed);
    if stall == Stall::Never {
        around.fetched = qps.iter().map(Reference::fetchable).collect();
    }
    let mut source = Source::new(m, "meta", stall, seed);
    let mut sink = Sink::new(m, "op", stall, seed + 1);
    let mut expected = vec![];
    let mut counts: BTreeMap<usize, u64> = BTreeMap::new();
    for p in packets {
        let mut beat = source.beat();
        beat.set_bytes("data", &bytes_of(p.meta()));
        source.push(beat);
        let n = qps.len();
        let (verdict, ops) = match qps.get(p.qp() as usize).filter(|_| p.raw || (p.qpn as usize) < n) {
            Some(_) => receive(qps, p),
            None if p.opcode == 0x81 => (counter::RX_CNP, vec![Reference::default().op(p)]),
            None => (counter::RX_QP_STATE, vec![Reference::default().op(p)]),
        };
        *counts.entry(verdict).or_default() += 1;
        expected.extend(ops.into_iter().map(|op| (op, p.clone(), verdict)));
    }
    sink.expect(expected.len() as u64);
    let start = m.cycle();
    bench::run(m, &mut [&mut source, &mut sink, &mut around], 200 * packets.len() as u64 + 10_000);
    let cycles = m.cycle() - start - 32;
    for (i, (op, p, verdict)) in expected.into_iter().enumerate() {
        let got = sink.pop().unwrap();
        let got = essence(fields_of::<RxOp>(&got.bytes("data")));
        let name = counter::NAMES[verdict].0;
        assert_eq!(got, essence(fields_of::<RxOp>(&bytes_of(op))), "op {i}, seed {seed}, {name}: {p:x?}");
    }
    assert!(sink.is_empty());
    assert_eq!(around.counts, counts, "verdicts, seed {seed}");
    for (q, r) in qps.iter().enumerate() {
        assert_eq!(
            around.consumed.get(&(q as u64)).copied().unwrap_or(0),
            r.consumer * r.stride(),
            "consumer of {q}, seed {seed}"
        );
        let from = r.reads.len().saturating_sub(16);
        for (i, read) in r.reads.iter().enumerate().skip(from) {
            assert_eq!(around.resources[&(q as u64 * 16 + i as u64 % 16)].0, read.0, "READ resource of {q}");
        }
        let psn = qp_recv_read::PSN.get(&read_row(m, id::QP_RECV, q as u64));
        assert_eq!(psn, r.psn, "expected PSN of {q} as the table bus reads it");
        let row = read_row(m, id::QP_RECV, q as u64);
        let taken = (qp_recv_read::TAKEN.get(&row) == 1).then(|| qp_recv_read::TAKEN_INDEX.get(&row));
        // Of a QP that has ended the receive that failed may still stand there.
        assert!(r.halted || taken == r.held, "receive that the message of {q} has taken");
    }
    (cycles, counts)
}

fn model() -> Model {
    Model::of(|| Responder::new(QPS, false), options()).unwrap()
}

/// The responder of a core whose blocks are read in halves.
const LATE: &str = "LateResponder";
fn late_model() -> Model {
    Model::of(|| Responder::new(QPS, true), verilate::Options { name: Some(LATE.into()), ..options() }).unwrap()
}

fn qp(qpn: u64) -> Reference {
    Reference {
        qpn,
        state: qp_state::RTS,
        generation: qpn + 7,
        mtu: 1024,
        pd: 0x100 + qpn,
        cqn: 0x20 + qpn,
        max_reads: 4,
        timer: 12,
        access: access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC,
        psn: 100,
        ..Default::default()
    }
}

fn qps() -> Vec<Reference> {
    (0..QPS as u64).map(qp).collect()
}

/// Adds `n` receive WQEs of random SGEs that hold `bytes` on average.
fn post(r: &mut Reference, n: usize, bytes: u64, rng: &mut ChaCha8Rng) {
    for _ in 0..n {
        let mut wqe = [(0, 0, 0); 4];
        let sges = rng.random_range(1..=r.stride() as usize);
        for sge in wqe.iter_mut().take(sges) {
            let len = if rng.random_bool(0.2) { 0 } else { rng.random_range(1..=bytes) };
            *sge = (rng.random::<u64>() >> 1, rng.random::<u32>() as u64, len);
        }
        r.wqes.push(wqe);
    }
    r.posted += n as u64;
}

/// A packet that the QP might well get next.
fn next(r: &Reference, rng: &mut ChaCha8Rng) -> Packet {
    let mut p = Packet::new(r.qpn, 0, r.psn);
    p.ack = rng.random_bool(0.5);
    (p.buf, p.rows) = (rng.random_range(0..1 << 20), rng.random_range(1..80));
    let imm = rng.random_bool(0.3) as u8;
    if r.kind == qp_type::UD {
        p.opcode = transport::UD | (op::SEND_ONLY + imm);
        p.payload = [0, 1, r.mtu, rng.random_range(0..=r.mtu)][rng.random_range(0..4)];
        (p.rkey, p.source, p.ip6) = (QKEY, rng.random_range(0..1 << 24), rng.random());
        p.psn = rng.random_range(0..1 << 24);
        return p;
    }
    match r.message {
        Some((true, ..)) => {
            let last = rng.random_bool(0.5);
            p.opcode = if last { op::SEND_LAST + imm } else { op::SEND_MIDDLE };
            if last && r.kind == qp_type::RC && rng.random_bool(0.3) {
                p.opcode = op::SEND_LAST_INV;
            }
            p.payload = if last { rng.random_range(1..=r.mtu) } else { r.mtu };
        }
        Some((false, done, _, _, total)) => {
            let last = total - done <= r.mtu;
            p.opcode = if last { op::WRITE_LAST + imm } else { op::WRITE_MIDDLE };
            p.payload = (total - done).min(r.mtu);
        }
        None => {
            p = p.reth(rng.random::<u64>() >> 1, rng.random::<u32>() as u64, 0);
            p.opcode = match rng.random_range(0..6) {
                0 => op::SEND_FIRST,
                1 if r.kind == qp_type::RC && rng.random_bool(0.3) => op::SEND_ONLY_INV,
                1 => op::SEND_ONLY + imm,
                2 => op::WRITE_FIRST,
                3 => op::WRITE_ONLY + imm,
                _ if r.kind == qp_type::UC => op::WRITE_ONLY,
                4 => op::READ_REQUEST,
                5 if rng.random_bool(0.3) => op::ATOMIC_WRITE,
                _ => op::COMPARE_SWAP + imm,
            };
            p.payload = match p.opcode {
                op::SEND_FIRST | op::WRITE_FIRST => r.mtu,
                op::READ_REQUEST => 0,
                op::COMPARE_SWAP | op::FETCH_ADD | op::ATOMIC_WRITE => 8,
                _ => [0, 1, r.mtu, rng.random_range(0..=r.mtu)][rng.random_range(0..4)],
            };
            p.dma_len = match p.opcode {
                op::WRITE_FIRST => r.mtu + rng.random_range(1..=3 * r.mtu),
                op::READ_REQUEST => rng.random::<u64>() >> 33 >> rng.random_range(0..31),
                op::COMPARE_SWAP | op::FETCH_ADD => 0,
                _ => p.payload,
            };
            if p.opcode >= op::COMPARE_SWAP {
                p.va &= !7;
            }
        }
    }
    if r.kind == qp_type::UC {
        p.opcode |= transport::UC;
    }
    p
}
