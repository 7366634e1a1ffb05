//! The requester against a plain model of send queues, a lossy peer and a completer that goes back anywhere.

use super::*;
use crate::transport::requester_rules::WINDOW;
use abi::{
    queue::{send_op, sge},
    status::cause,
    wire::op,
};
use rand::{Rng, RngExt};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, VecDeque};
use verilate::{Model, Options};

const N: usize = 64;
/// Blocks of each ring.
const RING: u16 = 256;

/// A message as posted.
#[derive(Clone, Debug)]
struct Message {
    index: u16,
    blocks: u16,
    /// Its blocks as it says itself.
    claims: u16,
    opcode: u8,
    signaled: bool,
    solicited: bool,
    fence: bool,
    inline_data: Option<Vec<u8>>,
    sges: Vec<(u64, u32, u32)>,
    length: u32,
    va: u64,
    rkey: u32,
    imm: u32,
    /// What is wrong with it.
    bad: Option<u8>,
    /// First PSN and READs before it, once it was sent.
    began: Option<(u32, u8)>,
    /// The epoch in which its WQE became another one.
    changed: Option<u64>,
}

impl Message {
    fn atomic(&self) -> bool {
        [send_op::COMPARE_SWAP, send_op::FETCH_ADD].contains(&self.opcode)
    }
    /// Its peer answers it with data.
    fn reads(&self) -> bool {
        self.opcode == send_op::READ || self.atomic()
    }
}

#[derive(Clone, Default)]
struct Pair {
    raw: bool,
    generation: u64,
    mtu: u8,
    max_reads: u64,
    pd: u64,
    memory: Vec<[u8; 64]>,
    messages: Vec<Message>,
    posted: u16,
    fetched: u16,
    consumed: u16,
    /// The model of the requester.
    at: usize,
    offset: u32,
    psn: u32,
    high: u32,
    /// As the completer is told: frames of an old epoch that were dropped count.
    sent: u32,
    reads: u8,
    epoch: u64,
    failed: bool,
    since_ack: (u32, u32),
    segs: Vec<Seg>,
    /// The model of peer and completer: next PSN there, what is acknowledged, the oldest message.
    peer: u32,
    acked: u32,
    oldest: usize,
    /// First PSN of the oldest message.
    message: u32,
    reads_done: u8,
    quiet: u64,
    broken: bool,
    /// The peer counts its receives: messages that it has one for.
    limit: Option<usize>,
}

#[derive(Clone, Debug)]
struct Seg {
    first: bool,
    last: bool,
    is_inline: bool,
    len: u32,
    va: u64,
    key: u32,
    data: Vec<u8>,
}

fn ahead(a: u32, b: u32) -> u32 {
    a.wrapping_sub(b) & 0xff_ffff
}

impl Pair {
    fn mtu_bytes(&self) -> u32 {
        // A raw frame is one packet.
        if self.raw { 1 << 20 } else { 128 << self.mtu }
    }

    fn packets(&self, bytes: u32) -> u32 {
        bytes.div_ceil(self.mtu_bytes()).max(1)
    }

    /// The message that holds a PSN that was sent.
    fn holder(&self, psn: u32) -> usize {
        let sent = |n: &usize| self.messages[*n].began.is_some_and(|b| ahead(psn, b.0) < 0x80_0000);
        (self.oldest..self.messages.len()).take_while(sent).last().unwrap()
    }
}

struct Bench {
    m: Model,
    rng: ChaCha8Rng,
    pairs: Vec<Pair>,
    active: usize,
    /// QP 0 is the raw one.
    raw: bool,
    late: bool,
    /// The block that was asked for two cycles ago or more.
    coming: [u8; 64],
    sq: [Option<(usize, u16)>; 3],
    acks: [Option<usize>; 2],
    views: [Option<usize>; 2],
    recalls: [Option<u64>; 2],
    /// Records as written, by address: blocks, opcode, length.
    records: BTreeMap<u64, [u64; 3]>,
    kicks: VecDeque<usize>,
    inlines: VecDeque<Vec<u8>>,
    /// Segments whose inline data has not come yet.
    waiting: VecDeque<(usize, Seg, Vec<u64>)>,
    /// Go back under way: QP, PSN, and what the model becomes (message, offset, READs).
    back: Option<(usize, u32, (usize, u32, u8))>,
    refetching: u32,
    loading: Option<(usize, u32)>,
    loads: u64,
    frame_faults: VecDeque<(usize, u64, u32, u64)>,
    expected_faults: VecDeque<(usize, u32, u8)>,
    /// SendFaults that came, with the frames before them perhaps still in the output.
    failures: VecDeque<[u64; 4]>,
    /// Skips, with the frames before them perhaps still in the output.
    skips: VecDeque<(usize, u16)>,
    stale: u64,
    /// QP, and the block that a hint names.
    picked: Option<(usize, Option<u16>)>,
    pick_queue: VecDeque<usize>,
    acks_due: VecDeque<(u64, usize, u32)>,
    stall: f64,
    loss: f64,
    delay: u64,
    frames: u64,
    done: u64,
    seen: [u64; 7],
}

impl Bench {
    fn new(seed: u64, active: usize) -> Self {
        Self::with(seed, active, false)
    }

    /// `late`: blocks come three cycles after they are asked for.
    fn with(seed: u64, active: usize, late: bool) -> Self {
        let mut m = Model::of(|| Requester::<N>::new(late), Options::default()).unwrap();
        m.reset();
        for input in ["pick.valid", "back.valid", "kick.valid", "fault.valid", "table.valid"] {
            m.set(input, 0);
        }
        Bench {
            m,
            rng: verilate::rng(seed),
            pairs: vec![Pair::default(); N],
            active,
            raw: false,
            late,
            coming: [0; 64],
            sq: [None; 3],
            acks: [None; 2],
            views: [None; 2],
            recalls: [None; 2],
            records: BTreeMap::new(),
            kicks: VecDeque::new(),
            inlines: VecDeque::new(),
            waiting: VecDeque::new(),
            back: None,
            refetching: 0,
            loading: None,
            loads: 0,
            frame_faults: VecDeque::new(),
            expected_faults: VecDeque::new(),
            failures: VecDeque::new(),
            skips: VecDeque::new(),
            stale: 0,
            picked: None,
            pick_queue: VecDeque::new(),
            acks_due: VecDeque::new(),
            stall: 0.2,
            loss: 0.0,
            delay: 200,
            frames: 0,
            done: 0,
            seen: [0; 7],
        }
    }

    /// Starts the load of a QP at a PSN.
    fn load(&mut self, q: usize, psn: u32, mtu: u8) {
        let old = &self.pairs[q];
        let pair = Pair {
            raw: self.raw && q == 0,
            generation: (old.generation + 1) & 0xff,
            epoch: old.epoch,
            mtu,
            max_reads: self.rng.random_range(0..=16),
            pd: self.rng.random_range(0..0x1_0000),
            memory: vec![[0; 64]; RING as usize],
            psn,
            high: psn,
            sent: psn,
            peer: psn,
            acked: psn,
            message: psn,
            failed: true,
            // Peers of some count their receives, and have none at first.
            limit: (self.raw && q % 2 == 1).then_some(0),
            ..Pair::default()
        };
        self.acks_due.retain(|a| a.1 != q);
        self.frame_faults.retain(|f| f.0 != q);
        let mut row = [0; 64];
        let kind = if pair.raw { qp_type::RAW } else { qp_type::RC };
        qp_send::TYPE.set(&mut row, kind.into());
        qp_send::MTU.set(&mut row, mtu as u64);
        qp_send::LOAD.set(&mut row, 1);
        qp_send::PD.set(&mut row, pair.pd);
        qp_send::PSN.set(&mut row, psn as u64);
        qp_send::MAX_READS.set(&mut row, pair.max_reads);
        self.pairs[q] = pair;
        self.m.set("table.req.table", id::QP_SEND as u64);
        self.m.set("table.req.index", q as u64);
        self.m.set("table.req.write", 1);
        self.m.set_bytes("table.req.row", &row);
        self.m.set("table.valid", 1);
        self.loading = Some((q, psn));
        self.loads += 1;
    }

    /// Loads and waits for it; then goes back to block 65,500, so that indices soon wrap.
    fn load_now(&mut self, q: usize, psn: u32, mtu: u8) {
        self.load(q, psn, mtu);
        while self.loading.is_some() {
            self.cycle();
        }
        let start = 65_500u16.wrapping_add(4 * self.rng.random_range(0..100));
        let pair = &mut self.pairs[q];
        (pair.posted, pair.fetched, pair.consumed) = (start, start, start);
        self.go_back(q, psn);
        while self.back.is_some() {
            self.cycle();
        }
    }

    fn random_message(&mut self, q: usize) -> Message {
        if self.pairs[q].raw {
            return self.random_frame(q);
        }
        let rng = &mut self.rng;
        let pair = &self.pairs[q];
        let opcode = [0, 0, 1, 2, 2, 3, 4, 4, 5, 6][rng.random_range(0..10)];
        let opcode = if opcode >= send_op::READ && pair.max_reads == 0 { send_op::WRITE } else { opcode };
        if opcode > send_op::READ {
            return self.random_atomic(q, opcode);
        }
        let inlines = opcode != send_op::READ && rng.random_bool(0.3);
        let mut sges: Vec<(u64, u32, u32)> = vec![];
        let mut length = 0;
        let mut inline_data = None;
        if inlines {
            length = rng.random_range(0..=224);
            let mut data = vec![0; length as usize];
            rng.fill_bytes(&mut data);
            inline_data = Some(data);
        } else {
            for _ in 0..rng.random_range(0..=4) {
                let most = match rng.random_range(0..20) {
                    0 if opcode == send_op::READ => 1 << rng.random_range(13..30),
                    0..4 => 20_000,
                    4..10 => 3000,
                    _ => 200,
                };
                let len = if rng.random_bool(0.2) { 0 } else { rng.random_range(0..=most) };
                sges.push((rng.random(), rng.random(), len));
                length += len;
            }
            if opcode == send_op::READ && rng.random_bool(0.02) {
                sges.truncate(3);
                let rest = (1 << 31) - sges.iter().map(|s| s.2).sum::<u32>();
                sges.push((rng.random(), rng.random(), rest));
                length = 1 << 31;
            }
        }
        let need = if inlines { (length as u16 + 32).div_ceil(64) } else { 1 + (sges.len() > 2) as u16 };
        let blocks = rng.random_range(need..=4.min(need + 1));
        Message {
            index: pair.posted,
            blocks,
            claims: blocks,
            opcode,
            signaled: rng.random_bool(0.5),
            solicited: rng.random(),
            fence: rng.random_bool(0.1),
            inline_data,
            sges,
            length,
            va: rng.random(),
            rkey: rng.random(),
            imm: rng.random(),
            bad: None,
            began: None,
            changed: None,
        }
    }

    /// Its operands stand where the first SGE would.
    fn random_atomic(&mut self, q: usize, opcode: u8) -> Message {
        let rng = &mut self.rng;
        let mut operands = vec![0; 16];
        rng.fill_bytes(&mut operands);
        let blocks = rng.random_range(1..=2);
        Message {
            index: self.pairs[q].posted,
            blocks,
            claims: blocks,
            opcode,
            signaled: rng.random_bool(0.5),
            solicited: rng.random(),
            fence: rng.random_bool(0.1),
            inline_data: Some(operands),
            sges: vec![(0, 0, 0), (rng.random(), rng.random(), 8)],
            length: 8,
            va: rng.random(),
            rkey: rng.random(),
            imm: rng.random(),
            bad: None,
            began: None,
            changed: None,
        }
    }

    /// A SEND of the raw QP: a frame of 14 to 9,216 bytes.
    fn random_frame(&mut self, q: usize) -> Message {
        let rng = &mut self.rng;
        let inlines = rng.random_bool(0.3);
        let most = if inlines { 224 } else { [200, 9216][rng.random_range(0..2)] };
        let length: u32 = rng.random_range(14..=most);
        let mut data = vec![0; length as usize];
        rng.fill_bytes(&mut data);
        let mut cuts: Vec<u32> = (0..rng.random_range(0..4)).map(|_| rng.random_range(0..=length)).collect();
        cuts.extend([0, length]);
        cuts.sort_unstable();
        let sges: Vec<_> = cuts.windows(2).map(|c| (rng.random(), rng.random(), c[1] - c[0])).collect();
        let need = if inlines { (length as u16 + 32).div_ceil(64) } else { 1 + (sges.len() > 2) as u16 };
        Message {
            index: self.pairs[q].posted,
            blocks: need,
            claims: need,
            opcode: send_op::SEND,
            signaled: rng.random_bool(0.5),
            solicited: rng.random(),
            fence: false,
            inline_data: inlines.then_some(data),
            sges: if inlines { vec![] } else { sges },
            length,
            va: rng.random(),
            rkey: rng.random(),
            imm: rng.random(),
            bad: None,
            began: None,
            changed: None,
        }
    }

    /// Writes a message's blocks.
    fn write(&mut self, q: usize, message: &Message) {
        let mut wqe = [0u8; 256];
        self.rng.fill_bytes(&mut wqe);
        send_wqe_head(&mut wqe, message);
        for b in 0..message.blocks {
            let at = message.index.wrapping_add(b) % RING;
            self.pairs[q].memory[at as usize].copy_from_slice(&wqe[64 * b as usize..][..64]);
        }
    }

    fn post(&mut self, q: usize, message: Message) {
        self.write(q, &message);
        let pair = &mut self.pairs[q];
        pair.posted = pair.posted.wrapping_add(message.blocks);
        pair.messages.push(message);
    }

    fn room(&self, q: usize) -> bool {
        let pair = &self.pairs[q];
        let oldest = pair.messages.get(pair.oldest).map_or(pair.posted, |m| m.index);
        !pair.failed && pair.posted.wrapping_sub(oldest) + 8 <= RING
    }

    /// Offers a go back to `psn`, that lies between what is acknowledged and what was sent.
    fn go_back(&mut self, q: usize, psn: u32) {
        let pair = &self.pairs[q];
        let (record, index, offset, reads) = if psn == pair.high {
            let at = pair.messages.iter().position(|m| m.began.is_none()).unwrap_or(pair.messages.len());
            let index = pair.messages.get(at).map_or(pair.posted, |m| m.index);
            (at, index, 0, pair.reads)
        } else {
            let n = pair.holder(psn);
            let m = &pair.messages[n];
            let began = m.began.unwrap();
            (n, m.index, ahead(psn, began.0).wrapping_mul(pair.mtu_bytes()), began.1)
        };
        self.m.set("back.data.qpn", q as u64);
        self.m.set("back.data.generation", pair.generation);
        self.m.set("back.data.psn", psn as u64);
        self.m.set("back.data.record", record as u64 % 128);
        self.m.set("back.data.wqe_index", index as u64);
        self.m.set("back.data.offset", offset as u64);
        self.m.set("back.data.reads", reads as u64);
        self.m.set("back.valid", 1);
        self.back = Some((q, psn, (record, offset, reads)));
    }

    /// A frame came out: the one that the model expects, and within the limits.
    fn frame(&mut self, q: usize, segs: Vec<Seg>, head: Vec<u64>) {
        let names = HEAD;
        let get = |name: &str| head[names.iter().position(|n| *n == name).unwrap()];
        let pair = &mut self.pairs[q];
        if get("generation") != pair.generation || get("epoch") != pair.epoch {
            return;
        }
        assert!(!pair.failed, "QP {q} sends after a fault");
        let mtu = pair.mtu_bytes();
        let m = pair.messages[pair.at].clone();
        let changed = m.changed.is_some_and(|epoch| epoch != pair.epoch);
        assert!(m.bad.is_none() && !changed, "QP {q} sends {m:?}");
        let read = m.reads();
        let left = m.length - pair.offset;
        let bytes = if m.atomic() {
            16
        } else if read {
            0
        } else {
            left.min(mtu)
        };
        let (first, last) = (pair.offset == 0, read || left <= mtu);
        let again = pair.psn != pair.high;
        let base = if m.opcode == send_op::WRITE || m.opcode == send_op::WRITE_IMM { op::WRITE_FIRST } else { 0 };
        let imm = m.opcode == send_op::SEND_IMM || m.opcode == send_op::WRITE_IMM;
        let opcode = match (first, last) {
            _ if m.opcode == send_op::COMPARE_SWAP => op::COMPARE_SWAP,
            _ if m.opcode == send_op::FETCH_ADD => op::FETCH_ADD,
            _ if read => op::READ_REQUEST,
            (true, true) => base + op::SEND_ONLY + imm as u8,
            (false, true) => base + op::SEND_LAST + imm as u8,
            (true, false) => base + op::SEND_FIRST,
            (false, false) => base + op::SEND_MIDDLE,
        };
        assert_eq!(get("opcode"), opcode as u64, "QP {q} {m:?} at {}", pair.offset);
        assert_eq!(get("psn"), pair.psn as u64, "QP {q}");
        assert_eq!(get("payload"), bytes as u64);
        assert_eq!(get("again"), again as u64, "QP {q} {:x} {:x}", pair.psn, pair.high);
        assert_eq!((get("request"), get("raw")), (1, pair.raw as u64));
        assert_eq!(get("solicited"), (m.solicited && last && !read) as u64);
        if first && base != 0 || read {
            assert_eq!(get("va"), m.va.wrapping_add(pair.offset as u64));
            assert_eq!(get("rkey"), m.rkey as u64);
            assert!(m.atomic() || get("dma_len") == left as u64);
        }
        if imm {
            assert_eq!(get("imm"), m.imm as u64);
        }
        // Stretches.
        let mut want: Vec<(u64, u32, u32)> = vec![];
        let mut data = vec![];
        if bytes == 0 {
            want.push((0, 0, 0));
        } else if let Some(inline) = &m.inline_data {
            let mut rest = bytes;
            while rest > 0 {
                let part = rest.min(if want.is_empty() { 32 } else { 64 });
                want.push((0, 0, part));
                rest -= part;
            }
            data = inline.clone();
        } else {
            let (mut begin, mut at, end) = (0, pair.offset, pair.offset + bytes);
            for (va, key, len) in &m.sges {
                if at < begin + len && at < end {
                    let part = (begin + len).min(end) - at;
                    want.push((va.wrapping_add((at - begin) as u64), *key, part));
                    at += part;
                }
                begin += len;
            }
        }
        assert_eq!(segs.len(), want.len(), "QP {q} {m:?} at {}: {segs:?}", pair.offset);
        let mut got: Vec<u8> = vec![];
        for (i, (s, w)) in segs.iter().zip(&want).enumerate() {
            assert_eq!((s.first, s.last, s.len), (i == 0, i + 1 == want.len(), w.2), "QP {q} {m:?}: {segs:?}");
            assert_eq!(s.is_inline, bytes > 0 && m.inline_data.is_some());
            if w.2 > 0 && !s.is_inline {
                assert_eq!((s.va, s.key), (w.0, w.1), "QP {q} {m:?} at {}", pair.offset);
            }
            got.extend(s.data.iter().copied().take(s.len as usize * s.is_inline as usize));
        }
        assert_eq!(got, data);
        // Limits.
        let out = ahead(pair.psn, pair.acked);
        let out = if out > 0x80_0000 || out == 0x80_0000 && again { 0 } else { out };
        let packets = pair.packets(left);
        let reads_out = (pair.reads.wrapping_sub(pair.reads_done) as i8).max(0) as u64;
        if read {
            assert!(out + packets <= 0x80_0000 && reads_out < pair.max_reads);
        } else {
            assert!(out < WINDOW as u32);
        }
        assert!(!(first && m.fence) || reads_out == 0, "QP {q} passes a fence");
        assert!(pair.at - pair.oldest.min(pair.at) < 128);
        let ack = get("ack_req") == 1;
        // Beyond the credits goes one message, which asks; and one more, if those before it have not asked.
        if let Some(limit) = pair.limit {
            let receives = matches!(m.opcode, send_op::SEND | send_op::SEND_IMM | send_op::WRITE_IMM);
            let over = pair.at > limit && pair.since_ack.0 == 0;
            assert!(!(first && receives && over), "QP {q}: message {} of {limit}", pair.at);
            assert!(ack || read || !last || pair.at < pair.oldest.max(limit), "QP {q} asks for no ACK at its limit");
            self.seen[6] += (first && receives && pair.at >= limit) as u64;
        }
        assert!(ack || read || !(last && (m.signaled || again)), "QP {q} {m:?} asks for no ACK");
        assert!(ack || !m.atomic(), "QP {q} {m:?} asks for no answer");
        pair.since_ack.0 += 1;
        pair.since_ack.1 += bytes;
        assert!(ack || read || pair.since_ack.0 < 32 && pair.since_ack.1 < 16 << 10, "QP {q} {:?}", pair.since_ack);
        if ack || read {
            pair.since_ack = (0, 0);
        }
        // On.
        if first {
            pair.messages[pair.at].began = Some((pair.psn, pair.reads));
        }
        let psn = pair.psn;
        pair.psn = (psn + if read { packets } else { 1 }) & 0xff_ffff;
        pair.reads = pair.reads.wrapping_add(read as u8);
        if !again {
            pair.high = pair.psn;
        }
        pair.offset = if last { 0 } else { pair.offset + bytes };
        pair.at += last as usize;
        self.frames += 1;
        self.seen[again as usize] += 1;
        // The peer takes what is in sequence, and answers it if it is asked.
        let lost = self.rng.random_bool(self.loss);
        let duplicate = psn != pair.peer && ahead(psn, pair.peer) >= 0x80_0000;
        if !lost && (psn == pair.peer || duplicate) {
            let end = (psn + if read { packets } else { 1 }) & 0xff_ffff;
            if !duplicate {
                pair.peer = end;
            }
            if ack || read {
                let due = self.m.cycle() + self.delay;
                self.acks_due.push_back((due, q, pair.peer));
            }
        }
    }

    /// The completer: acknowledges what came, retires messages, kicks.
    fn acknowledge(&mut self, q: usize, psn: u32) {
        let pair = &mut self.pairs[q];
        if pair.failed && pair.broken || ahead(psn, pair.acked) > 0x80_0000 {
            return;
        }
        pair.acked = psn;
        while let Some(m) = pair.messages.get(pair.oldest) {
            let Some((began, reads)) = m.began else { break };
            let read = m.reads();
            if ahead(psn, (began + pair.packets(m.length)) & 0xff_ffff) >= 0x80_0000 {
                break;
            }
            if read {
                pair.reads_done = reads.wrapping_add(1);
            }
            pair.message = (began + pair.packets(m.length)) & 0xff_ffff;
            pair.oldest += 1;
            self.done += 1;
        }
        // What comes after may be more receives, or none.
        if let Some(limit) = &mut pair.limit {
            let credits = if self.rng.random_bool(0.02) { 40 } else { self.rng.random_range(0..3) };
            *limit = (*limit).max(pair.oldest + credits);
        }
        pair.quiet = self.m.cycle();
        self.kicks.push_back(q);
    }

    fn cycle(&mut self) {
        let now = self.m.cycle();
        while self.acks_due.front().is_some_and(|a| a.0 <= now) {
            let (_, q, psn) = self.acks_due.pop_front().unwrap();
            self.acknowledge(q, psn);
        }
        let (m, rng) = (&mut self.m, &mut self.rng);
        // What was asked two cycles ago.
        if let Some((q, index)) = self.sq[1] {
            let pair = &self.pairs[q];
            let block = pair.memory.get((index % RING) as usize).copied().unwrap_or([0; 64]);
            m.set_bytes("sq_block", &if self.late { rng.random() } else { block });
            m.set("sq_view.posted", pair.posted as u64);
            m.set("sq_view.fetched", pair.fetched as u64);
            self.coming = block;
        }
        if self.sq[2].is_some() && self.late && self.sq[1].is_none() {
            m.set_bytes("sq_block", &self.coming);
        }
        if let Some(q) = self.acks[1] {
            m.set("acked.psn", self.pairs[q].acked as u64);
            m.set("acked.record", self.pairs[q].oldest as u64 % 128);
            m.set("acked.reads", self.pairs[q].reads_done as u64);
            let pair = &self.pairs[q];
            m.set("acked.limited", pair.limit.is_some() as u64);
            m.set("acked.limit", pair.limit.unwrap_or(0) as u64 % 128);
            m.set("acked.message", pair.message as u64);
            m.set("acked.wqe_index", pair.messages.get(pair.oldest).map_or(pair.posted, |m| m.index) as u64);
        }
        // A record stays for one cycle only: then the completer reads another one.
        let record = self.recalls[1].map(|at| self.records[&at]).unwrap_or_else(|| [rng.random(); 3]);
        for (field, value) in ["blocks", "opcode", "length"].into_iter().zip(record) {
            m.set(&*format!("recalled.{field}"), value & if field == "length" { 0xffff_ffff } else { 7 });
        }
        m.set("recall_ready", rng.random_bool(0.5) as u64);
        if let Some(q) = self.views[1] {
            m.set("view.state", if self.pairs[q].broken { qp_state::ERR } else { qp_state::RTS } as u64);
            m.set("view.generation", self.pairs[q].generation);
        }
        // Picks: of open QPs with work, sometimes of any.
        if self.picked.is_none() {
            if self.pick_queue.is_empty() {
                let open = m.get("open");
                for q in 0..self.active {
                    if self.pairs[q].fetched != self.pairs[q].consumed && open >> q & 1 == 1 || rng.random_bool(0.001) {
                        self.pick_queue.push_back(q);
                    }
                }
            }
            // Hints are mostly right.
            self.picked = self.pick_queue.pop_front().map(|q| {
                let hint = self.pairs[q].consumed.wrapping_add(rng.random_bool(0.1) as u16);
                (q, rng.random_bool(0.5).then_some(hint))
            });
        }
        m.set("pick.valid", self.picked.is_some() as u64);
        let (qpn, hint) = self.picked.unwrap_or((0, None));
        m.set("pick.data.qpn", qpn as u64);
        m.set("pick.data.hinted", hint.is_some() as u64);
        m.set("pick.data.index", hint.unwrap_or(0) as u64);
        m.set("kick.valid", !self.kicks.is_empty() as u64);
        m.set("kick.data", self.kicks.front().copied().unwrap_or(0) as u64);
        let fault = self.frame_faults.front().copied();
        m.set("fault.valid", fault.is_some() as u64);
        if let Some((q, epoch, psn, why)) = fault {
            m.set("fault.data.qpn", q as u64);
            m.set("fault.data.generation", self.pairs[q].generation);
            m.set("fault.data.request", 1);
            m.set("fault.data.epoch", epoch);
            m.set("fault.data.psn", psn as u64);
            m.set("fault.data.cause", why);
        }
        for output in ["seg", "inline_data", "failed", "epoch"] {
            m.set(&*format!("{output}.ready"), !rng.random_bool(self.stall) as u64);
        }
        m.set("consume.ready", 1);
        m.set("refetch.ready", (self.refetching == 1) as u64);
        m.eval();

        let take = |m: &Model, name: &str| m.bit(&*format!("{name}.valid")) && m.bit(&*format!("{name}.ready"));
        if take(m, "pick") {
            self.picked = None;
        }
        if take(m, "kick") {
            self.kicks.pop_front();
        }
        if take(m, "consume") {
            let q = m.get("consume.data.queue") as usize;
            self.pairs[q].consumed = m.get("consume.data.index") as u16;
            assert!(self.pairs[q].fetched.wrapping_sub(self.pairs[q].consumed) <= RING);
        }
        // A refetch takes some cycles, in which the view may still be the old one.
        if m.bit("refetch.valid") {
            self.refetching = if self.refetching == 0 { rng.random_range(2..10) } else { self.refetching - 1 };
            if self.refetching == 0 {
                let q = m.get("refetch.data.queue") as usize;
                let index = m.get("refetch.data.index") as u16;
                let pair = &mut self.pairs[q];
                (pair.fetched, pair.consumed) = (index, index);
                // Not for a go back: a late ACK was there first.
                if self.back.is_none_or(|b| b.0 != q) {
                    self.skips.push_back((q, index));
                }
            }
        }
        let mut faults = vec![];
        if take(m, "fault") {
            faults.push(self.frame_faults.pop_front().unwrap());
        }
        if m.bit("record_we") {
            let address = m.get("record_addr");
            let (q, record) = ((address >> 7) as usize, address as usize & 127);
            let pair = &self.pairs[q];
            // The frame may still wait in the output: find the message by its WQE.
            let n = (pair.oldest..pair.messages.len()).find(|n| n % 128 == record).unwrap();
            let message = &pair.messages[n];
            let field = |f: &str| m.get(&*format!("record.{f}"));
            assert_eq!(field("length"), message.length as u64, "QP {q} record {record}");
            assert_eq!((field("blocks"), field("opcode")), (message.blocks as u64, message.opcode as u64));
            assert_eq!(field("signaled"), message.signaled as u64);
            self.records.insert(address, ["blocks", "opcode", "length"].map(field));
            self.seen[2] += 1;
        }
        if m.bit("land_we") {
            let address = m.get("land_addr");
            let q = (address >> 4) as usize;
            let row = m.get_bytes("land");
            let pair = &self.pairs[q];
            let found = pair.messages.iter().any(|message| lands(&row, message));
            assert!(found, "QP {q} lands in nobody's SGEs");
            self.seen[3] += 1;
        }
        if m.bit("sent_we") {
            let q = m.get("sent_addr") as usize;
            let ahead_of = ahead(m.get("sent.psn") as u32, self.pairs[q].high);
            assert!(ahead_of <= 0x80_0000 || self.loading.is_some(), "QP {q} takes back what it sent");
            self.pairs[q].sent = m.get("sent.psn") as u32;
        }
        if take(m, "epoch") {
            let q = m.get("epoch.data.qpn") as usize;
            let epoch = m.get("epoch.data.epoch");
            let pair = &mut self.pairs[q];
            assert_eq!(epoch, (pair.epoch + 1) & 0xff);
            pair.epoch = epoch;
            pair.failed = false;
            pair.since_ack = (0, 0);
            pair.segs.clear();
            if let Some((_, psn, model)) = self.back.filter(|b| b.0 == q && self.loading.is_none_or(|l| l.0 != q)) {
                (pair.at, pair.offset, pair.reads) = model;
                pair.high = pair.sent;
                pair.psn = psn;
                self.seen[4] += 1;
            }
        }
        if m.bit("back.valid") && m.bit("back.ready") {
            m.set("back.valid", 0);
            self.back = None;
        }
        if m.bit("table.valid") && m.bit("table.ready") {
            self.loading = None;
        }
        if m.bit("count") || m.get("count") != 0 {
            assert_eq!(m.get("count"), 1 << counter::STALE_GENERATION);
            self.stale += 1;
        }
        if take(m, "failed") {
            let field = |f: &str| m.get(&*format!("failed.data.{f}"));
            // A WQE has blocks and is no receive, whatever it says; a frame has none.
            let of_frame = field("cause") == cause::KEY_BOUNDS as u64;
            assert!(of_frame == (field("blocks") == 0) && field("opcode") < 0x80);
            self.failures.push_back(["qpn", "generation", "psn", "cause"].map(field));
        }
        // Segments, and their inline data.
        if take(m, "inline_data") {
            self.inlines.push_back(m.get_bytes("inline_data.data"));
        }
        if take(m, "seg") {
            let field = |f: &str| m.get(&*format!("seg.data.{f}"));
            let seg = Seg {
                first: field("first") == 1,
                last: field("last") == 1,
                is_inline: field("is_inline") == 1,
                len: field("len") as u32,
                va: field("va"),
                key: field("key") as u32,
                data: vec![],
            };
            assert_eq!(field("memory") == 1, seg.len > 0 && !seg.is_inline);
            let q = field("head.qpn") as usize;
            assert!(
                seg.len == 0 || field("pd") == self.pairs[q].pd || field("head.generation") != self.pairs[q].generation
            );
            assert_eq!(field("need"), 0);
            let head = HEAD.iter().map(|f| field(&format!("head.{f}"))).collect();
            self.waiting.push_back((q, seg, head));
        }
        self.sq =
            [m.bit("sq_re").then(|| (m.get("sq_queue") as usize, m.get("sq_index") as u16)), self.sq[0], self.sq[1]];
        self.acks = [m.bit("acked_re").then(|| m.get("acked_addr") as usize), self.acks[0]];
        self.views = [m.bit("view_re").then(|| m.get("view_addr") as usize), self.views[0]];
        let recalls = m.bit("recall_re") && m.bit("recall_ready");
        self.recalls = [recalls.then(|| m.get("recall_addr")), self.recalls[0]];
        m.tick();
        if self.loading.is_none() {
            m.set("table.valid", 0);
        }

        while self.waiting.front().is_some_and(|w| !w.1.is_inline || !self.inlines.is_empty()) {
            let (q, mut seg, head) = self.waiting.pop_front().unwrap();
            if seg.is_inline {
                seg.data = self.inlines.pop_front().unwrap();
            }
            let last = seg.last;
            self.pairs[q].segs.push(seg);
            if last {
                let segs = std::mem::take(&mut self.pairs[q].segs);
                self.frame(q, segs, head);
            }
        }
        for (q, epoch, psn, why) in faults {
            if epoch == self.pairs[q].epoch && !self.expected_faults.iter().any(|e| e.0 == q) {
                self.expected_faults.push_back((q, psn, why as u8));
            }
        }
        let in_output = !self.waiting.is_empty() || self.m.bit("seg.valid");
        while let Some((q, index)) = self.skips.front().copied().filter(|_| !in_output) {
            self.skips.pop_front();
            let pair = &mut self.pairs[q];
            let n = pair.messages.iter().rposition(|m| m.index == index).unwrap_or(pair.messages.len());
            assert!(
                n <= pair.oldest && (n > pair.at || pair.at >= pair.oldest),
                "QP {q} skips from {} to {n}",
                pair.at
            );
            pair.at = n;
            pair.offset = 0;
            let done = &pair.messages[..n];
            pair.psn = done.last().map_or(pair.message, |m| (m.began.unwrap().0 + pair.packets(m.length)) & 0xff_ffff);
            pair.reads = done.iter().filter(|m| m.reads()).count() as u8;
            pair.since_ack = (0, 0);
        }
        while let Some([q, generation, psn, why]) = self.failures.front().copied().filter(|_| !in_output) {
            self.failures.pop_front();
            let q = q as usize;
            assert_eq!(generation, self.pairs[q].generation);
            if why == cause::KEY_BOUNDS as u64 {
                let expected = self.expected_faults.iter().position(|e| e.0 == q);
                let (_, at, cause) = self.expected_faults.remove(expected.expect("a frame's fault")).unwrap();
                assert_eq!((psn, why), (at as u64, cause as u64));
            } else {
                let pair = &self.pairs[q];
                let message = &pair.messages[pair.at];
                let want = if message.changed.is_some() {
                    cause::WQE_CHANGED
                } else {
                    message.bad.unwrap_or_else(|| {
                        panic!(
                            "QP {q} psn {psn:x} cause {why}, model {:x} {message:?} {:?}",
                            pair.psn,
                            pair.messages.get(pair.at + 1)
                        )
                    })
                };
                assert_eq!((psn, why), (pair.psn as u64, want as u64), "QP {q} {message:?}");
            }
            // The QP goes to ERR, and is loaded anew later.
            self.pairs[q].failed = true;
            self.pairs[q].broken = true;
            self.pairs[q].quiet = now;
            self.seen[5] += 1;
        }
        // More blocks come on chip.
        for q in 0..self.active {
            let pair = &mut self.pairs[q];
            if pair.fetched != pair.posted && self.rng.random_bool(0.2) {
                let n = pair.posted.wrapping_sub(pair.fetched).min(8);
                pair.fetched = pair.fetched.wrapping_add(self.rng.random_range(1..=n));
            }
        }
    }
}

const HEAD: [&str; 14] = [
    "generation",
    "request",
    "epoch",
    "raw",
    "opcode",
    "psn",
    "ack_req",
    "solicited",
    "payload",
    "va",
    "rkey",
    "dma_len",
    "imm",
    "again",
];

fn sge_bytes(sges: &[(u64, u32, u32)]) -> [u8; 64] {
    let mut bytes = [0; 64];
    for (i, (va, key, len)) in sges.iter().enumerate() {
        let entry = &mut bytes[16 * i..16 * i + 16];
        sge::VA.set(entry, *va);
        sge::LKEY.set(entry, *key as u64);
        sge::LENGTH.set(entry, *len as u64);
    }
    bytes
}

/// The row's SGEs are the message's; those beyond its count are empty, whatever else they hold.
fn lands(row: &[u8], message: &Message) -> bool {
    message.reads()
        && (0..4).all(|i| {
            let entry = &row[16 * i..16 * i + 16];
            match message.sges.get(i) {
                Some(s) if s.2 > 0 => {
                    (sge::VA.get(entry), sge::LKEY.get(entry), sge::LENGTH.get(entry)) == (s.0, s.1 as u64, s.2 as u64)
                }
                _ => sge::LENGTH.get(entry) == 0,
            }
        })
}

fn send_wqe_head(wqe: &mut [u8; 256], m: &Message) {
    use abi::queue::send_wqe as w;
    w::OPCODE.set(wqe, m.opcode as u64);
    w::SIGNALED.set(wqe, m.signaled as u64);
    w::SOLICITED.set(wqe, m.solicited as u64);
    w::FENCE.set(wqe, m.fence as u64);
    w::INLINE.set(wqe, m.inline_data.is_some() as u64);
    w::BLOCKS.set(wqe, m.claims as u64);
    w::SGES.set(wqe, m.sges.len() as u64);
    w::IMM.set(wqe, m.imm as u64);
    w::REMOTE_VA.set(wqe, m.va);
    w::RKEY.set(wqe, m.rkey as u64);
    w::LENGTH.set(wqe, m.length as u64);
    let bytes = sge_bytes(&m.sges);
    wqe[32..32 + 16 * m.sges.len()].copy_from_slice(&bytes[..16 * m.sges.len()]);
    if let Some(data) = &m.inline_data {
        wqe[32..32 + data.len()].copy_from_slice(data);
    }
}

fn start_psn(rng: &mut ChaCha8Rng) -> u32 {
    if rng.random_bool(0.5) { 0xff_ff00 + rng.random_range(0..256) } else { rng.random_range(0..0x100_0000) }
}

/// Posts, loses, goes back, breaks; everything that is sound is delivered, in order, within the limits.
fn random_traffic(seed: u64, cycles: usize, loss: f64, breaks: bool) {
    for late in [false, true] {
        println!("seed {seed}, late {late}");
        traffic(Bench::with(seed, 8, late), cycles, loss, breaks);
    }
}

fn traffic(mut b: Bench, cycles: usize, loss: f64, breaks: bool) {
    let active = b.active;
    b.raw = true;
    for q in 0..active {
        let (psn, mtu) = (start_psn(&mut b.rng), b.rng.random_range(1..=5));
        b.load_now(q, psn, mtu);
    }
    b.loss = loss;
    let mut changes = 0;
    for step in 0..verilate::scale(cycles) {
        if step % 512 == 0 {
            b.stall = [0.0, 0.2, 0.8][b.rng.random_range(0..3)];
            b.delay = [10, 200, 1000][b.rng.random_range(0..3)];
        }
        let q = b.rng.random_range(0..active);
        if b.rng.random_bool(0.15) && b.room(q) && b.loading.is_none_or(|l| l.0 != q) {
            let mut message = b.random_message(q);
            if breaks && b.rng.random_bool(0.01) {
                spoil(&mut b.rng, &mut message, b.pairs[q].raw);
            }
            b.post(q, message);
        }
        let now = b.m.cycle();
        let pair = &b.pairs[q];
        let idle = b.back.is_none() && b.loading.is_none();
        if idle && !pair.failed && pair.acked != pair.high {
            let sent = ahead(pair.high, pair.acked);
            if b.rng.random_bool(0.002) || now - pair.quiet > 4000 {
                // Lost, or told so by a NAK: anywhere between what is acknowledged and what was sent.
                let pair = &b.pairs[q];
                let psn = if now - pair.quiet > 4000 {
                    pair.acked
                } else {
                    (pair.acked + b.rng.random_range(0..sent.min(300))) & 0xff_ffff
                };
                let psn = if ahead(psn, pair.peer) < 0x80_0000 { pair.acked } else { psn };
                if breaks && b.rng.random_bool(0.3) {
                    // The driver's fault: a WQE in flight is another one now.
                    let n = b.rng.random_range(b.pairs[q].oldest..b.pairs[q].messages.len());
                    let mut message = b.pairs[q].messages[n].clone();
                    if message.began.is_some() && message.bad.is_none() && message.changed.is_none() {
                        message.length ^= 1;
                        b.write(q, &message);
                        b.pairs[q].messages[n].changed = Some(b.pairs[q].epoch);
                        changes += 1;
                    }
                }
                b.go_back(q, psn);
                b.pairs[q].quiet = now;
            }
        }
        let pair = &b.pairs[q];
        if breaks && idle && !pair.failed && pair.psn != pair.acked && b.rng.random_bool(0.0002) {
            let psn = pair.acked;
            b.frame_faults.push_back((q, pair.epoch, psn, cause::KEY_BOUNDS as u64));
        }
        if b.pairs[q].broken && b.back.is_none() && b.loading.is_none() && now - b.pairs[q].quiet > 1000 {
            let (psn, mtu) = (start_psn(&mut b.rng), b.rng.random_range(1..=5));
            b.expected_faults.retain(|e| e.0 != q);
            b.load_now(q, psn, mtu);
        }
        b.cycle();
    }
    // All that is sound is delivered.
    (b.loss, b.delay) = (0.0, 50);
    let start = b.m.cycle();
    loop {
        let open: Vec<usize> =
            (0..active).filter(|q| !b.pairs[*q].broken && b.pairs[*q].oldest < b.pairs[*q].messages.len()).collect();
        if open.is_empty() {
            break;
        }
        for q in open {
            let pair = &b.pairs[q];
            let silent = b.m.cycle() - pair.quiet > 4000;
            if b.back.is_none() && b.loading.is_none() && !pair.failed && pair.acked != pair.high && silent {
                let psn = pair.acked;
                b.pairs[q].quiet = b.m.cycle();
                b.go_back(q, psn);
            }
        }
        b.cycle();
        let stuck: Vec<_> = (0..active)
            .filter(|q| b.pairs[*q].oldest < b.pairs[*q].messages.len())
            .map(|q| (q, b.pairs[q].oldest, b.pairs[q].at, b.pairs[q].messages.len(), b.pairs[q].broken))
            .collect();
        assert!(b.m.cycle() - start < 300_000, "stuck: {stuck:?}, open {:b}", b.m.get("open"));
    }
    let [new, again, records, lands, backs, faults, probes] = b.seen;
    println!(
        "{} messages, {new} packets, {again} again, {records} records, {lands} landings, {backs} go backs, {faults} faults, \
         {probes} probes, {changes} changed, {} loads",
        b.done, b.loads
    );
    assert!(b.done > 200 && backs > 5 && probes > 20);
}

/// Makes a message impossible.
fn spoil(rng: &mut ChaCha8Rng, m: &mut Message, raw: bool) {
    if raw {
        match rng.random_range(0..3) {
            0 => (m.opcode, m.bad) = (rng.random_range(1..=8), Some(cause::WQE_OPCODE)),
            1 if m.inline_data.is_some() => (m.length, m.bad) = (rng.random_range(0..14), Some(cause::WQE_LENGTH)),
            2 if m.inline_data.is_none() => {
                let length = [rng.random_range(0..14), rng.random_range(9217..40_000)][rng.random_range(0..2)];
                (m.sges, m.length) = (vec![(0, 0, length)], length);
                m.bad = Some(cause::WQE_LENGTH);
            }
            _ => {}
        }
        return;
    }
    match rng.random_range(0..6) {
        0 => (m.opcode, m.bad) = (send_op::FETCH_ADD + rng.random_range(1..200), Some(cause::WQE_OPCODE)),
        1 if m.inline_data.is_none() => (m.length, m.bad) = (m.length.wrapping_add(1), Some(cause::WQE_LENGTH)),
        1 | 2 if m.atomic() => {
            if rng.random() {
                m.length = rng.random_range(9..100);
            } else {
                m.sges[1].2 = [0, 4, 16][rng.random_range(0..3)];
            }
            m.bad = Some(cause::WQE_LENGTH);
        }
        2 if m.inline_data.is_some() => (m.length, m.bad) = (m.blocks as u32 * 64 - 31, Some(cause::WQE_LENGTH)),
        3 if m.sges.len() == 2 && m.inline_data.is_none() => {
            m.sges.push((0, 0, 0));
            (m.blocks, m.claims) = (1, 1);
            m.bad = Some(cause::WQE_FORMAT);
        }
        4 => (m.claims, m.bad) = (0, Some(cause::WQE_FORMAT)),
        5 if m.opcode == send_op::READ => {
            m.inline_data = Some(vec![]);
            m.bad = Some(cause::WQE_FORMAT);
        }
        _ => {}
    }
}

#[test]
fn messages_go_out_in_order() {
    random_traffic(rand::random(), 60_000, 0.0, false);
}

/// A late ACK, while a pick's rows wait for the engine, lets the host write over a WQE that is then sent again: no fault of it.
#[test]
fn a_wqe_that_was_acknowledged_after_its_pick_is_no_fault() {
    random_traffic(14371303253874534969, 60_000, 0.0, false);
}

#[test]
fn lost_packets_are_sent_again() {
    random_traffic(rand::random(), 60_000, 0.02, false);
}

#[test]
fn what_is_wrong_is_reported() {
    random_traffic(rand::random(), 60_000, 0.01, true);
}

/// A go back for a QP that was reset since is dropped and counted.
#[test]
fn a_stale_go_back_is_dropped() {
    let mut b = Bench::new(1, 1);
    b.load_now(0, 5, 3);
    let stale = b.stale;
    b.go_back(0, 5);
    b.m.set("back.data.generation", b.pairs[0].generation ^ 1);
    while b.back.is_some() {
        b.cycle();
    }
    b.cycle();
    assert_eq!(b.stale, stale + 1);
}

/// Cycles per 64-byte message, `burst` messages posted at a time.
fn rate(active: usize, burst: usize) -> f64 {
    let mut b = Bench::new(9, active);
    for q in 0..active {
        b.load_now(q, 0, 3);
    }
    (b.stall, b.delay) = (0.0, 100);
    let (mut start, mut first) = (0, 0);
    while b.frames < 4000 {
        if b.frames < 1000 {
            (start, first) = (b.m.cycle(), b.frames);
        }
        for q in 0..active {
            let pair = &b.pairs[q];
            if pair.consumed == pair.posted || burst > 1 && b.room(q) && pair.posted.wrapping_sub(pair.consumed) < 20 {
                for _ in 0..burst {
                    let message = Message {
                        index: b.pairs[q].posted,
                        blocks: 1,
                        claims: 1,
                        opcode: send_op::WRITE,
                        signaled: true,
                        solicited: false,
                        fence: false,
                        inline_data: None,
                        sges: vec![(1 << 32, 7, 64)],
                        length: 64,
                        va: 5,
                        rkey: 6,
                        imm: 0,
                        bad: None,
                        began: None,
                        changed: None,
                    };
                    b.post(q, message);
                }
            }
            b.pairs[q].fetched = b.pairs[q].posted;
        }
        b.cycle();
    }
    let cycles = (b.m.cycle() - start) as f64 / (b.frames - first) as f64;
    println!("{active} QPs, {burst} at a time: {cycles:.2} cycles per message");
    cycles
}

#[test]
fn small_messages_are_fast() {
    assert!(rate(32, 1) <= 5.1);
    assert!(rate(32, 4) <= 5.0);
    assert!(rate(1, 8) <= 10.0);
    assert!(rate(4, 1) <= 8.0);
}
