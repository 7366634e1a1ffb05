//! The requester against a plain model of send queues, a lossy peer and a completer that goes back anywhere.

use super::*;
use crate::transport::requester_rules::WINDOW;
use abi::{
    queue::{send_op, sge},
    status::cause,
    wire::op,
};
use messages::{lands, send_wqe_head};
use rand::{Rng, RngExt};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, VecDeque};
use verilate::{Model, Options};

#[path = "requester_tests/messages.rs"]
mod messages;
#[path = "requester_tests/rules.rs"]
mod rules;

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
    fn local(&self) -> bool {
        self.opcode == send_op::LOCAL_INV
    }
    /// Its peer answers it with data, or with a response of none.
    fn reads(&self) -> bool {
        self.opcode == send_op::READ || self.opcode == send_op::ATOMIC_WRITE || self.atomic()
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
    /// The completer was told of a local operation since the last go back.
    told: bool,
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

    /// PSNs of a message.
    fn span(&self, message: &Message) -> u32 {
        if message.local() { 0 } else { self.packets(message.length) }
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
    /// QPs 2, 3, 6, 7 are paced: when each is kicked, behind its last frame; what it sent since it was, and kicks in all.
    paced: bool,
    paces: BTreeMap<usize, u64>,
    sent: [u32; N],
    paces_done: u64,
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
    /// The completer takes no reports; it has executed so many local operations before it was told of them.
    deaf: bool,
    early: usize,
    loss: f64,
    delay: u64,
    frames: u64,
    done: u64,
    seen: [u64; 8],
}

impl Bench {
    fn new(seed: u64, active: usize) -> Self {
        Self::with(seed, active, false)
    }

    /// `late`: blocks come three cycles after they are asked for.
    fn with(seed: u64, active: usize, late: bool) -> Self {
        let mut m = Model::of(|| Requester::<N>::new(late, true), Options::default()).unwrap();
        m.reset();
        for input in ["pick.valid", "back.valid", "kick.valid", "paces", "fault.valid", "table.valid"] {
            m.set(input, 0);
        }
        Bench {
            m,
            rng: verilate::rng(seed),
            pairs: vec![Pair::default(); N],
            active,
            raw: false,
            late,
            paced: false,
            paces: BTreeMap::new(),
            sent: [0; N],
            paces_done: 0,
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
            deaf: false,
            early: 0,
            loss: 0.0,
            delay: 200,
            frames: 0,
            done: 0,
            seen: [0; 8],
        }
    }

    fn is_paced(&self, q: usize) -> bool {
        self.paced && q & 2 != 0
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

    /// Writes a rate, and waits for it to be taken.
    fn pace(&mut self, q: usize, quota: u64) {
        let mut row = [0; 64];
        pace::QUOTA.set(&mut row, quota);
        self.m.set("table.req.table", id::PACE as u64);
        self.m.set("table.req.index", q as u64);
        self.m.set_bytes("table.req.row", &row);
        self.m.set("table.valid", 1);
        self.loading = Some((q, self.pairs[q].psn));
        while self.loading.is_some() {
            self.cycle();
        }
    }

    /// Loads and waits for it; then goes back to block 65,500, so that indices soon wrap.
    fn load_now(&mut self, q: usize, psn: u32, mtu: u8) {
        self.load(q, psn, mtu);
        while self.loading.is_some() {
            self.cycle();
        }
        if self.is_paced(q) {
            self.pace(q, 1);
        }
        let start = 65_500u16.wrapping_add(4 * self.rng.random_range(0..100));
        let pair = &mut self.pairs[q];
        (pair.posted, pair.fetched, pair.consumed) = (start, start, start);
        self.go_back(q, psn);
        while self.back.is_some() {
            self.cycle();
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
            // A local operation that is not done is done again.
            let at = (pair.oldest..pair.messages.len())
                .find(|n| pair.messages[*n].began.is_none() || pair.messages[*n].local())
                .unwrap_or(pair.messages.len());
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
        let before = pair.oldest.min(pair.at)..pair.at;
        assert!(!m.local() && !pair.messages[before].iter().any(Message::local), "QP {q} passes a local operation");
        let changed = m.changed.is_some_and(|epoch| epoch != pair.epoch);
        assert!(m.bad.is_none() && !changed, "QP {q} sends {m:?}");
        let read = m.reads();
        let left = m.length - pair.offset;
        let puts = m.opcode == send_op::ATOMIC_WRITE;
        let bytes = if m.atomic() {
            16
        } else if puts {
            8
        } else if read {
            0
        } else {
            left.min(mtu)
        };
        let (first, last) = (pair.offset == 0, read || left <= mtu);
        let again = pair.psn != pair.high;
        let base = if m.opcode == send_op::WRITE || m.opcode == send_op::WRITE_IMM { op::WRITE_FIRST } else { 0 };
        let imm = m.opcode == send_op::SEND_IMM || m.opcode == send_op::WRITE_IMM;
        let inv = m.opcode == send_op::SEND_INV;
        let opcode = match (first, last) {
            _ if m.opcode == send_op::COMPARE_SWAP => op::COMPARE_SWAP,
            _ if m.opcode == send_op::FETCH_ADD => op::FETCH_ADD,
            _ if puts => op::ATOMIC_WRITE,
            _ if read => op::READ_REQUEST,
            (true, true) if inv => op::SEND_ONLY_INV,
            (false, true) if inv => op::SEND_LAST_INV,
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
        if imm || inv {
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
        // Of a message that was acknowledged as it was sent again, the WQE may be another one by now: its peer has it.
        assert!(got == data || pair.at < pair.oldest, "QP {q} {m:?}: {got:?}");
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
            let receives =
                matches!(m.opcode, send_op::SEND | send_op::SEND_IMM | send_op::SEND_INV | send_op::WRITE_IMM);
            let over = pair.at > limit && pair.since_ack.0 == 0;
            assert!(!(first && receives && over), "QP {q}: message {} of {limit}", pair.at);
            assert!(ack || read || !last || pair.at < pair.oldest.max(limit), "QP {q} asks for no ACK at its limit");
            self.seen[6] += (first && receives && pair.at >= limit) as u64;
        }
        assert!(ack || read || !(last && (m.signaled || again)), "QP {q} {m:?} asks for no ACK");
        assert!(ack || !(m.atomic() || puts), "QP {q} {m:?} asks for no answer");
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

    /// A local operation waits for all before it.
    fn local(&mut self, q: usize, psn: u32) {
        let pair = &mut self.pairs[q];
        let (at, reads) = (pair.at, pair.reads);
        let m = &mut pair.messages[at];
        assert!(m.local() && m.bad.is_none() && !pair.failed, "QP {q} {m:?}");
        assert_eq!((psn, psn, pair.offset), (pair.psn, pair.high, 0), "QP {q} {m:?}");
        // One that goes again is as it was.
        assert!(m.changed.is_none_or(|epoch| epoch == pair.epoch), "QP {q} {m:?}");
        m.began.get_or_insert((psn, reads));
        (pair.at, pair.told, pair.since_ack) = (at + 1, true, (0, 0));
        self.seen[7] += 1;
        let acked = pair.acked;
        self.acknowledge(q, acked);
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
            if ahead(psn, (began + pair.span(m)) & 0xff_ffff) >= 0x80_0000 || m.local() && !pair.told {
                break;
            }
            pair.told &= !m.local();
            if read {
                pair.reads_done = reads.wrapping_add(1);
            }
            pair.message = (began + pair.span(m)) & 0xff_ffff;
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
            let mask = if field == "length" {
                0xffff_ffff
            } else if field == "blocks" {
                3
            } else {
                15
            };
            m.set(&*format!("recalled.{field}"), value & mask);
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
        // The pacer kicks some time after the last frame.
        let pace = self.paces.iter().find(|p| *p.1 <= now).map(|p| *p.0);
        m.set("paces", pace.is_some() as u64);
        m.set("pace", pace.unwrap_or(0) as u64);
        if let Some(q) = pace {
            self.paces.remove(&q);
            self.sent[q] = 0;
            self.paces_done += 1;
        }
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
        if self.deaf {
            m.set("failed.ready", 0);
        }
        m.set("consume.ready", 1);
        m.set("refetch.ready", (self.refetching == 1) as u64);
        m.eval();

        let take = |m: &Model, name: &str| m.bit(&*format!("{name}.valid")) && m.bit(&*format!("{name}.ready"));
        if take(m, "pick") {
            self.picked = None;
        }
        // The completer has no room for a kick that waits, whatever the pacer says.
        assert!(m.bit("kick.ready"), "a kick is not taken");
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
            assert_eq!((field("blocks"), field("opcode")), (message.blocks as u64 & 3, message.opcode as u64));
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
                pair.told = false;
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
            self.sent[m.get("table.req.index") as usize] = 0;
            self.loading = None;
        }
        if m.bit("count") || m.get("count") != 0 {
            assert_eq!(m.get("count"), 1 << counter::STALE_GENERATION);
            self.stale += 1;
        }
        if take(m, "failed") {
            let field = |f: &str| m.get(&*format!("failed.data.{f}"));
            // A WQE has blocks and is no receive, whatever it says; a frame has none.
            let (of_frame, local) = (field("cause") == cause::KEY_BOUNDS as u64, field("cause") == 0);
            assert!((local || of_frame == (field("blocks") == 0)) && field("opcode") < 0x80);
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
            if seg.first && self.paced && q & 2 != 0 {
                // A turn at most.
                assert!(self.sent[q] < QUANTUM as u32, "QP {q} has sent {} since it was kicked", self.sent[q]);
                self.sent[q] += field("head.payload").clamp(64, QUANTUM) as u32;
                self.paces.insert(q, now + rng.random_range(6..400));
            }
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
            pair.psn = done.last().map_or(pair.message, |m| (m.began.unwrap().0 + pair.span(m)) & 0xff_ffff);
            pair.reads = done.iter().filter(|m| m.reads()).count() as u8;
            pair.since_ack = (0, 0);
        }
        while let Some([q, generation, psn, why]) = self.failures.front().copied().filter(|_| !in_output) {
            self.failures.pop_front();
            let q = q as usize;
            assert_eq!(generation, self.pairs[q].generation);
            if why == 0 {
                if self.early > 0 {
                    self.early -= 1;
                } else {
                    self.local(q, psn as u32);
                }
                continue;
            }
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
