//! Work queues against rings in a simulated host memory: doorbells sound and wild, reads that come back in any order,
//! go backs, loads, DMA errors.

use super::*;
use crate::queue::fetches::SLOTS;
use abi::queue::send_wqe;
use rand::{Rng, RngExt};
use rand_chacha::ChaCha8Rng;
use std::collections::VecDeque;
use verilate::{Model, Options};

const N: usize = 64;

/// A DMA read under way: what is left of it, and from which cycle on its data may come.
struct Read {
    tag: u64,
    dest: u64,
    /// As the memory was when it was asked for: later posts must not need it.
    data: Vec<u8>,
    from: u64,
    error: bool,
}

/// A queue as the driver and the reader see it.
#[derive(Default, Clone)]
struct Queue {
    /// Of its units, and their bytes.
    log2: u32,
    unit: usize,
    base: u64,
    memory: Vec<[u8; 64]>,
    posted: u16,
    rung: u16,
    consumed: u16,
    /// The furthest that was consumed.
    top: u16,
    completed: u16,
    dead: bool,
}

impl Queue {
    /// What is posted at an index.
    fn slot(&mut self, index: u16) -> &mut [u8] {
        let at = (index as usize & ((1 << self.log2) - 1)) * self.unit;
        &mut self.memory.as_flattened_mut()[at..][..self.unit]
    }
}

struct Bench {
    m: Model,
    /// `id::QP_SEND` or `id::QP_RECV`.
    table: u8,
    rng: ChaCha8Rng,
    queues: Vec<Queue>,
    width: u64,
    slots: usize,
    reads: VecDeque<Read>,
    latency: (u64, u64),
    errors: Vec<(usize, u64)>,
    /// Queues below their limit.
    low: Vec<usize>,
    /// DMA errors made, not yet reported.
    broken: bool,
    dma_ready: f64,
    answer: Option<usize>,
    asked: [Option<usize>; 2],
    fetched_blocks: u64,
    fetches: u64,
}

impl Bench {
    fn new<const W: usize>(blocks: usize, seed: u64) -> Self {
        Bench::of::<W>(id::QP_SEND, blocks, seed)
    }

    fn of<const W: usize>(table: u8, blocks: usize, seed: u64) -> Self {
        let slots = if W == 64 { 16 } else { SLOTS };
        // Blocks in halves where the bus is narrow.
        let halves = W == 64;
        let queue = || WorkQueue::<W, N>::new(table, blocks, "", slots, halves);
        let mut m = Model::of(queue, Options::default()).unwrap();
        m.reset();
        for input in ["ring_valid", "direct_valid", "table.valid", "re", "consume.valid", "back.valid", "data_valid"] {
            m.set(input, 0);
        }
        m.set("error.ready", 1);
        let queues = vec![Queue::default(); N];
        Bench {
            m,
            table,
            rng: verilate::rng(seed),
            queues,
            width: W as u64 / 8,
            slots,
            reads: VecDeque::new(),
            latency: (20, 200),
            errors: vec![],
            low: vec![],
            broken: false,
            dma_ready: 0.7,
            answer: None,
            asked: [None; 2],
            fetched_blocks: 0,
            fetches: 0,
        }
    }

    /// Settles the inputs, moves the DMA side, and steps a cycle. All pulses are cleared afterwards.
    fn cycle(&mut self) {
        let Bench { m, rng, .. } = self;
        m.set("dma.ready", rng.random_bool(self.dma_ready) as u64);
        // A beat of any read whose time has come.
        let now = m.cycle();
        let ripe: Vec<usize> = (0..self.reads.len()).filter(|i| self.reads[*i].from <= now).collect();
        if !ripe.is_empty() && rng.random_bool(0.9) {
            let i = ripe[rng.random_range(0..ripe.len().min(3))];
            let read = &mut self.reads[i];
            // From either end: beats of a read may come in any order.
            let width = self.width as usize;
            let low = rng.random_bool(0.5);
            let at = if low { 0 } else { read.data.len() - width };
            let (dest, tag, error) = (read.dest + at as u64, read.tag, read.error);
            if low {
                read.dest += self.width;
            }
            let beat: Vec<u8> = read.data.drain(at..at + width).collect();
            if read.data.is_empty() {
                self.reads.remove(i);
            }
            m.set_bytes("beat", &beat);
            m.set("data.tag", tag);
            m.set("data.dest", dest);
            m.set("data.bytes", self.width);
            m.set("data.error", error as u64);
            m.set("data_valid", 1);
        }
        m.set("qp.generation", self.asked[1].map_or(0, |q| q as u64 + 100));
        m.eval();
        if m.bit("dma.valid") && m.bit("dma.ready") {
            let len = m.get("dma.data.len");
            assert!([64, 128, 192, 256].contains(&len));
            self.fetched_blocks += len / 64;
            self.fetches += 1;
            let error = self.broken && rng.random_bool(0.02);
            if error {
                self.broken = false;
            }
            let iova = m.get("dma.data.iova");
            let q = &self.queues[(iova >> 32) as usize];
            let offset = (iova & 0xffff_ffff).wrapping_sub(q.base & 0xffff_ffff) as usize;
            // A queue that was loaded anew may be smaller: old reads get garbage.
            let garbage = vec![0xee; len as usize];
            let data = q.memory.as_flattened().get(offset..offset + len as usize).unwrap_or(&garbage).to_vec();
            self.reads.push_back(Read {
                tag: m.get("dma.data.tag"),
                dest: m.get("dma.data.dest"),
                data,
                from: now + rng.random_range(self.latency.0..=self.latency.1),
                error,
            });
            assert!(self.reads.len() <= self.slots);
        }
        // A drain tells by these positions that fetches are under way, those too that the bus has not seen.
        let (filled, emptied) = (m.get("filled"), m.get("emptied"));
        let open = (filled.wrapping_sub(emptied) % (1 << 16)) >> 9;
        let missing = self.reads.len() + usize::from(m.bit("dma.valid") && !m.bit("dma.ready"));
        assert!(open as usize <= self.slots && missing <= open as usize, "{missing} fetches, {open} slots");
        if m.bit("error.valid") && m.bit("error.ready") {
            let qpn = m.get("error.data.qpn") as usize;
            assert_eq!(m.get("error.data.generation"), qpn as u64 + 100);
            assert_eq!(m.get("error.data.event"), 1);
            if m.bit("error.data.limit") {
                assert_eq!(m.get("error.data.cause"), cause::NONE as u64);
                self.low.push(qpn);
            } else {
                self.errors.push((qpn, m.get("error.data.cause")));
            }
        }
        self.asked = [m.bit("qp_re").then(|| m.get("qp_addr") as usize), self.asked[0].or(self.asked[1])];
        assert!(m.bit("consume.ready"));
        self.answer = (m.bit("table.ready") && m.bit("table.valid")).then_some(0);
        m.tick();
        for input in ["ring_valid", "direct_valid", "re", "consume.valid", "data_valid"] {
            m.set(input, 0);
        }
    }

    fn load(&mut self, q: usize, log2: u32) {
        // `log2` is of the blocks.
        let size = 1 << log2;
        let base = ((q as u64) << 32) + self.rng.random_range(0..1000) * 64;
        let mut memory = vec![[0; 64]; size];
        memory.iter_mut().for_each(|b| self.rng.fill_bytes(b));
        let units = if self.sends() { 1usize } else { RECV_UNITS };
        let (units_log2, unit) = (log2 + units.ilog2(), 64 / units);
        self.queues[q] = Queue { log2: units_log2, unit, base, memory, ..Queue::default() };
        let mut row = [0; 64];
        qp_send::LOAD.set(&mut row, 1);
        qp_send::LOG2_BLOCKS.set(&mut row, log2 as u64);
        qp_send::BASE.set(&mut row, base);
        self.access(q, Some(row));
    }

    fn sends(&self) -> bool {
        self.table == id::QP_SEND
    }

    fn access(&mut self, q: usize, row: Option<[u8; 64]>) -> [u8; 64] {
        self.access_table(self.table, q, row)
    }

    fn access_table(&mut self, table: u8, q: usize, row: Option<[u8; 64]>) -> [u8; 64] {
        self.m.set("table.req.table", table as u64);
        self.m.set("table.req.index", q as u64);
        self.m.set("table.req.write", row.is_some() as u64);
        self.m.set_bytes("table.req.row", &row.unwrap_or([0; 64]));
        self.m.set("table.valid", 1);
        let start = self.m.cycle();
        loop {
            self.m.eval();
            let answer = self.m.bit("table.rvalid").then(|| self.m.get_bytes("table.rdata"));
            self.cycle();
            assert!(self.m.cycle() - start < 300, "the table port is stuck");
            if self.answer.take().is_some() {
                self.m.set("table.valid", 0);
                return answer.unwrap_or(vec![0; 64]).try_into().unwrap();
            }
        }
    }

    /// Writes new units and rings for them.
    fn post(&mut self, q: usize, units: u16) {
        let sends = self.sends();
        let queue = &mut self.queues[q];
        for _ in 0..units {
            let index = queue.posted;
            let unit = queue.slot(index);
            self.rng.fill_bytes(unit);
            if sends {
                send_wqe::INDEX.set(unit, index as u64);
                send_wqe::QPN.set(unit, q as u64);
            }
            queue.posted = index.wrapping_add(1);
        }
        queue.rung = queue.posted;
        let index = queue.posted;
        self.ring(q, index);
    }

    fn ring(&mut self, q: usize, index: u16) {
        self.m.set("ring.number", q as u64);
        self.m.set("ring.index", index as u64);
        self.m.set("ring_valid", 1);
    }

    /// Tells a direct WQE, word by word.
    fn tell(&mut self, blocks: &[[u8; 64]], words: usize) {
        for (i, word) in blocks.concat().chunks(8).enumerate().take(words) {
            self.m.set("direct.number", i as u64);
            self.m.set("direct.owned", (i == 3) as u64);
            self.m.set("direct.complete", (i + 1 == 8 * blocks.len()) as u64);
            self.m.set("direct.data", u64::from_le_bytes(word.try_into().unwrap()));
            self.m.set("direct_valid", 1);
            self.cycle();
        }
    }

    fn consume(&mut self, q: usize, to: u16) {
        let queue = &mut self.queues[q];
        queue.consumed = to;
        if (to.wrapping_sub(queue.top) as i16) > 0 {
            queue.top = to;
        }
        self.m.set("consume.data.queue", q as u64);
        self.m.set("consume.data.index", to as u64);
        self.m.set("consume.valid", 1);
    }

    /// Block and view, and the two or three cycles they take.
    fn read(&mut self, q: usize, index: u16) -> (Vec<u8>, u16, u16) {
        self.m.set("re", 1);
        self.m.set("number", q as u64);
        self.m.set("index", index as u64);
        self.cycle();
        self.cycle();
        self.m.eval();
        let (posted, fetched) = (self.m.get("view.posted") as u16, self.m.get("view.fetched") as u16);
        if self.width == 8 {
            self.cycle();
            self.m.eval();
        }
        (self.m.get_bytes("block"), posted, fetched)
    }

    /// Reads what the queue shows and checks it; gives how many unconsumed units are on chip.
    fn check(&mut self, q: usize, blocks: usize) -> u16 {
        let at = self.queues[q].consumed;
        let (_, posted, fetched) = self.read(q, at);
        let there = fetched.wrapping_sub(at);
        assert!(there as usize * self.queues[q].unit <= blocks * 64, "queue {q}: {fetched} on chip, {at} consumed");
        assert!(posted.wrapping_sub(at) >= there, "queue {q}: more on chip than posted");
        assert!(posted.wrapping_sub(at) <= self.queues[q].posted.wrapping_sub(at), "queue {q}: more posted than rung");
        if there > 0 {
            let index = at.wrapping_add(self.rng.random_range(0..there));
            let (block, ..) = self.read(q, index);
            let queue = &mut self.queues[q];
            // What is complete may be overwritten.
            let live = (index.wrapping_sub(queue.completed) as i16) >= 0;
            let at = index as usize * queue.unit % 64;
            assert!(!live || block[at..][..queue.unit] == *queue.slot(index), "queue {q} unit {index}");
        }
        there
    }

    /// Runs until all that is posted was read, block by block, and consumed.
    fn drain(&mut self, blocks: usize) {
        for q in 0..N {
            let start = self.m.cycle();
            while !self.queues[q].dead && self.queues[q].consumed != self.queues[q].posted {
                let there = self.check(q, blocks);
                if there > 0 {
                    let index = self.queues[q].consumed;
                    self.consume(q, index.wrapping_add(there));
                }
                if self.m.cycle() - start > 200_000 {
                    let queue = self.queues[q].clone();
                    let Queue { log2, posted, consumed, top, completed, .. } = queue;
                    let view = self.read(q, consumed);
                    panic!(
                        "queue {q} is stuck: 2^{log2} posted {posted} consumed {consumed} top {top} completed {completed}, view {} {}, {:?}",
                        view.1, view.2, self.errors
                    );
                }
            }
        }
    }
}

fn random_traffic<const W: usize>(table: u8, blocks: usize, rounds: usize) {
    println!("table {table}, width {W}, {blocks} blocks");
    let mut b = Bench::of::<W>(table, blocks, 0);
    let sends = b.sends();
    for q in 0..N {
        let log2 = b.rng.random_range(0..8);
        b.load(q, log2);
    }
    let (mut wild, mut loads, mut backs, mut directs) = (0, 0, 0, 0);
    for round in 0..verilate::scale(rounds) {
        // Few queues at a time, so that they meet in the pipeline.
        let q = if b.rng.random_bool(0.7) { b.rng.random_range(0..4) } else { b.rng.random_range(0..N) };
        if round % 64 == 0 {
            b.dma_ready = [1.0, 0.7, 0.1][b.rng.random_range(0..3)];
            let low = b.rng.random_range(0..100);
            b.latency = (low, low + [0, 10, 400][b.rng.random_range(0..3)]);
        }
        let queue = b.queues[q].clone();
        let size = 1u32 << queue.log2;
        match b.rng.random_range(0..100) {
            0..40 if !queue.dead => {
                let free = size - queue.posted.wrapping_sub(queue.completed) as u32;
                let most = if sends { 6 } else { [3, 40][b.rng.random_range(0..2)] };
                let n = b.rng.random_range(0..=free.min(most)) as u16;
                b.post(q, n);
                if sends && n > 0 && b.rng.random_bool(0.3) {
                    // The same with a direct WQE before it, sometimes a stale, foreign or incomplete one.
                    let first = queue.posted.wrapping_add(if b.rng.random_bool(0.2) { 1 } else { 0 });
                    let of = if b.rng.random_bool(0.1) { (q + 1) % 4 } else { q };
                    let at = (queue.posted as u32 % size) as usize;
                    let mut block = b.queues[q].memory[at];
                    if first != queue.posted || of != q {
                        b.rng.fill_bytes(&mut block);
                    }
                    send_wqe::INDEX.set(&mut block, first as u64);
                    send_wqe::QPN.set(&mut block, of as u64);
                    let sound = first == queue.posted && of == q;
                    let two = sound && n > 1 && b.rng.random_bool(0.5);
                    send_wqe::BLOCKS.set(&mut block, 1 + two as u64);
                    if first == queue.posted && of == q {
                        b.queues[q].memory[at] = block;
                    }
                    b.m.set("ring_valid", 0);
                    let second = b.queues[q].memory[((queue.posted as u32 + 1) % size) as usize];
                    let words = if b.rng.random_bool(0.95) { 16 } else { b.rng.random_range(1..8) };
                    let both = [block, second];
                    b.tell(&both[..1 + two as usize], words);
                    let index = b.queues[q].posted;
                    b.ring(q, index);
                    directs += 1;
                    if first != queue.posted && n > 1 {
                        // The block that was told is not the one in memory, so it must not be used: none can be, as
                        // the queue asks for the block before it first.
                        b.queues[q].memory[(first as u32 % size) as usize] = block;
                    }
                }
            }
            40..70 => {
                let there = b.check(q, blocks);
                if there > 0 {
                    let n = b.rng.random_range(1..=there);
                    let to = b.queues[q].consumed.wrapping_add(n);
                    b.consume(q, to);
                }
            }
            70..85 => {
                let n = queue.top.wrapping_sub(queue.completed);
                b.queues[q].completed = queue.completed.wrapping_add(b.rng.random_range(0..=n));
            }
            85..90 if sends => {
                // Go back to anything that is not complete; it may become so later.
                let n = queue.top.wrapping_sub(queue.completed);
                let to = queue.completed.wrapping_add(b.rng.random_range(0..=n));
                b.m.set("back.data.queue", q as u64);
                b.m.set("back.data.index", to as u64);
                b.m.set("back.valid", 1);
                let start = b.m.cycle();
                loop {
                    b.m.eval();
                    let taken = b.m.bit("back.ready");
                    b.cycle();
                    assert!(b.m.cycle() - start < 100, "a go back is stuck");
                    if taken {
                        break;
                    }
                }
                b.m.set("back.valid", 0);
                b.queues[q].consumed = to;
                b.check(q, blocks);
                backs += 1;
            }
            90..91 => {
                let log2 = b.rng.random_range(0..8);
                // What was reported of the old queue does not concern the new one.
                (0..50).for_each(|_| b.cycle());
                b.errors.retain(|e| e.0 != q);
                b.load(q, log2);
                loads += 1;
            }
            91..92 if !queue.dead && queue.posted == queue.rung => {
                // Beyond the size, or backwards.
                let bad = if b.rng.random_bool(0.5) || queue.posted == queue.top {
                    queue.top.wrapping_add(size as u16).wrapping_add(b.rng.random_range(1..1000) + 600)
                } else {
                    queue.top.wrapping_sub(1)
                };
                (0..200).for_each(|_| b.cycle());
                b.ring(q, bad);
                b.queues[q].dead = true;
                (0..200).for_each(|_| b.cycle());
                assert!(b.errors.contains(&(q, cause::DOORBELL_RANGE as u64)), "queue {q} took {bad}");
                wild += 1;
            }
            _ => {}
        }
        (0..b.rng.random_range(1..8)).for_each(|_| b.cycle());
    }
    b.drain(blocks);
    (0..500).for_each(|_| b.cycle());
    let work = b.m.get("work");
    for q in 0..N {
        let row = b.access(q, None);
        let queue = b.queues[q].clone();
        assert_eq!(qp_send::CONSUMER.get(&row), queue.consumed as u64);
        if !queue.dead {
            assert_eq!(qp_send::PRODUCER.get(&row), queue.posted as u64);
            assert_eq!(qp_send::FETCHED.get(&row), queue.posted as u64);
            assert_eq!(work >> q & 1, 0);
        }
        assert_eq!(b.errors.iter().filter(|e| e.0 == q).count(), queue.dead as usize);
    }
    assert!(b.reads.is_empty());
    println!(
        "{} blocks in {} fetches, {directs} direct, {backs} go backs, {loads} loads, {wild} wild",
        b.fetched_blocks, b.fetches
    );
}

#[test]
fn blocks_arrive_in_order_at_512_bits() {
    random_traffic::<512>(id::QP_SEND, 32, 20_000);
}

#[test]
fn receives_of_one_sge_arrive_in_order_at_512_bits() {
    random_traffic::<512>(id::QP_RECV, 8, 20_000);
}

#[test]
fn receives_of_one_sge_arrive_in_order_at_64_and_128_bits() {
    random_traffic::<64>(id::QP_RECV, 8, 10_000);
    random_traffic::<128>(id::QP_RECV, 8, 5_000);
}

#[test]
fn blocks_arrive_in_order_at_128_and_256_bits() {
    random_traffic::<128>(id::QP_SEND, 8, 5_000);
    random_traffic::<256>(id::QP_SEND, 32, 5_000);
}

#[test]
fn blocks_arrive_in_order_at_64_bits() {
    random_traffic::<64>(id::QP_SEND, 8, 10_000);
}

/// A failed read stops its queue and says so once; nothing waits for its blocks.
#[test]
fn a_failed_read_stops_the_queue() {
    let mut b = Bench::new::<512>(32, 3);
    for q in 0..N {
        b.load(q, 5);
    }
    for q in 0..N {
        b.broken = true;
        for _ in 0..4 {
            b.post(q, 8);
            (0..30).for_each(|_| b.cycle());
        }
    }
    (0..2000).for_each(|_| b.cycle());
    let hurt: Vec<usize> = b.errors.iter().map(|e| e.0).collect();
    assert!(!hurt.is_empty() && b.errors.iter().all(|e| e.1 == cause::DMA_ERROR as u64), "{:?}", b.errors);
    for q in 0..N {
        let (_, posted, fetched) = b.read(q, 0);
        assert_eq!(posted, if hurt.contains(&q) { fetched } else { 32 });
        assert_eq!(hurt.iter().filter(|h| **h == q).count(), hurt.contains(&q) as usize);
    }
}

/// Cycles per block, with `active` queues kept full and consumed block by block as fast as they come.
fn rate(active: usize, ring_by: u16) -> f64 {
    let mut b = Bench::new::<512>(32, 5);
    for q in 0..active {
        b.load(q, 8);
    }
    (b.latency, b.dma_ready) = ((175, 185), 1.0);
    let mut fetched = vec![0u16; active];
    let (mut consumed, mut start) = (0u64, 0);
    let mut turn = 0;
    while consumed < 12_000 {
        if consumed < 2000 {
            start = b.m.cycle();
        }
        // The reader goes round and takes a block where there is one, one in two cycles (the time of a read).
        turn = (turn + 1) % active;
        let q = turn;
        if b.queues[q].posted.wrapping_sub(b.queues[q].consumed) <= 200 {
            b.post(q, ring_by);
        }
        let at = b.queues[q].consumed;
        fetched[q] = b.read(q, at).2;
        if fetched[q] != at {
            b.consume(q, at.wrapping_add(1));
            consumed += u64::from(consumed > 0 || fetched[q] > 0);
        }
    }
    let cycles = (b.m.cycle() - start) as f64 / 10_000.0;
    println!(
        "{active} queues, {ring_by} per doorbell: {cycles:.2} cycles per block, {:.2} blocks per read",
        b.fetched_blocks as f64 / b.fetches as f64
    );
    cycles
}

#[test]
fn blocks_keep_up() {
    assert!(rate(1, 1) <= 10.0);
    assert!(rate(64, 1) <= 5.0);
    assert!(rate(8, 4) <= 5.0);
}

/// From the doorbell to the hint it takes 5 cycles, and the reader gets both blocks in that very cycle, whatever else comes.
fn direct_wqes_are_there_at_once<const W: usize>() {
    let mut b = Bench::new::<W>(8, 1);
    b.dma_ready = 1.0;
    b.latency = (20, 20);
    (0..2).for_each(|q| b.load(q, 6));
    let mut fetches = 0;
    for round in 0..50u16 {
        // In every second round data of the other queue comes meanwhile, and keeps the block RAM busy.
        if round % 2 == 1 {
            b.post(1, 4);
            fetches += 1;
            b.cycle();
            (0..round % 17).for_each(|_| b.cycle());
        }
        let at = b.queues[0].posted;
        b.post(0, 2);
        b.m.set("ring_valid", 0);
        let blocks: Vec<[u8; 64]> = (0..2)
            .map(|i| {
                let block = &mut b.queues[0].memory[((at + i) % 64) as usize];
                send_wqe::BLOCKS.set(block, 2);
                *block
            })
            .collect();
        b.tell(&blocks, 16);
        b.ring(0, at + 2);
        let mut waited = 0;
        while !(b.m.bit("woken_valid") && b.m.get("woken.queue") == 0) {
            b.cycle();
            b.m.eval();
            waited += 1;
            // The words wait for cycles in which no data comes.
            assert!(waited < 20 + 4 * 512 / W, "round {round}");
        }
        assert!(round % 2 == 1 || waited == 5, "a hint after {waited} cycles");
        assert_eq!(b.m.get("woken.index"), at as u64);
        for (i, want) in blocks.iter().enumerate() {
            let (block, posted, fetched) = b.read(0, at + i as u16);
            assert_eq!((block, posted, fetched), (want.to_vec(), at + 2, at + 2), "round {round}");
        }
        (0..30).for_each(|_| b.cycle());
        assert_eq!(b.read(0, at + 1).0, blocks[1], "from the block RAM");
        b.consume(0, at + 2);
        b.queues[0].completed = at + 2;
        (0..40).for_each(|_| b.cycle());
        let posted = b.queues[1].posted;
        b.consume(1, posted);
        b.cycle();
    }
    assert_eq!(b.fetches, fetches, "fetches of the other queue only");
}

#[test]
fn direct_wqes_are_there_at_once_512() {
    direct_wqes_are_there_at_once::<512>();
}

#[test]
fn direct_wqes_are_there_at_once_64() {
    direct_wqes_are_there_at_once::<64>();
}

/// The words of the next direct WQE begin at any cycle around the time at which one is put into the block RAM; whoever reads
/// that one in any of these cycles gets it whole.
#[test]
fn the_next_direct_wqe_disturbs_no_reader() {
    let mut b = Bench::new::<512>(8, 2);
    b.dma_ready = 1.0;
    b.latency = (20, 20);
    b.load(0, 6);
    for (gap, blocks) in (0..16).flat_map(|gap| [(gap, 1u16), (gap, 2)]) {
        let at = b.queues[0].posted;
        b.post(0, blocks);
        b.m.set("ring_valid", 0);
        let want: Vec<[u8; 64]> = (0..blocks)
            .map(|i| {
                let block = &mut b.queues[0].memory[((at + i) % 64) as usize];
                send_wqe::BLOCKS.set(block, blocks as u64);
                *block
            })
            .collect();
        b.tell(&want, 16);
        b.ring(0, at + blocks);
        let (mut asked, mut seen) = (VecDeque::from([None; 2]), 0);
        for cycle in 0..80 {
            // What was asked two cycles ago.
            if let Some(index) = asked.pop_front().unwrap() {
                let fetched = b.m.get("view.fetched") as u16;
                if fetched == at + blocks {
                    assert_eq!(b.m.get_bytes("block"), want[index as usize], "gap {gap}, cycle {cycle}");
                    seen += 1;
                }
            }
            let index = cycle % blocks;
            b.m.set("re", 1);
            b.m.set("number", 0);
            b.m.set("index", (at + index) as u64);
            asked.push_back(Some(index));
            if (gap..gap + 4).contains(&cycle) {
                b.m.set("direct.number", (cycle - gap) as u64);
                b.m.set("direct.complete", 0);
                b.m.set("direct.data", u64::MAX);
                b.m.set("direct_valid", 1);
            }
            b.cycle();
            b.m.eval();
        }
        assert!(seen > 20, "gap {gap}: {seen} reads");
        b.consume(0, at + blocks);
        b.queues[0].completed = at + blocks;
        b.cycle();
    }
    assert!((1..16).contains(&b.fetches), "{} of 32 were replaced in time", b.fetches);
}

/// One queue of each kind over the end of its 16-bit indices.
#[test]
fn indices_wrap() {
    for (table, blocks) in [(id::QP_SEND, 32), (id::QP_RECV, 8)] {
        let mut b = Bench::of::<512>(table, blocks, 7);
        b.load(0, 7);
        (b.latency, b.dma_ready) = ((20, 30), 1.0);
        let mut sent = 0;
        while sent < 70_000 {
            let n = b.rng.random_range(1..=32);
            b.post(0, n);
            b.drain(blocks);
            b.queues[0].completed = b.queues[0].consumed;
            sent += n as u32;
        }
        assert!(b.errors.is_empty(), "{:?}", b.errors);
    }
}

/// Wild indices on all queues while nobody takes the reports: none is lost when they are taken at last.
#[test]
fn errors_of_all_queues_at_once_are_all_told() {
    let mut b = Bench::new::<512>(32, 9);
    for q in 0..N {
        b.load(q, 5);
    }
    b.m.set("error.ready", 0);
    for q in 0..N {
        b.ring(q, 1000);
        b.cycle();
    }
    (0..500).for_each(|_| b.cycle());
    assert!(b.errors.is_empty());
    b.m.set("error.ready", 1);
    (0..5000).for_each(|_| b.cycle());
    let mut told: Vec<usize> = b.errors.iter().map(|e| e.0).collect();
    told.sort_unstable();
    assert_eq!(told, (0..N).collect::<Vec<_>>());
}

#[test]
fn a_limit_is_told_of_once() {
    let mut b = Bench::of::<512>(id::QP_RECV, 8, 0);
    let mut limits = [0u64; 4];
    for (q, log2) in [(0, 0), (1, 1), (2, 3), (3, 5)] {
        b.load(q, log2);
    }
    let mut told = 0;
    for _ in 0..verilate::scale(400) {
        let q = b.rng.random_range(0..4);
        let size = 1u64 << b.queues[q].log2;
        let fill = |b: &Bench, q: usize| u64::from(b.queues[q].posted.wrapping_sub(b.queues[q].consumed));
        match b.rng.random_range(0..5) {
            0 | 1 => {
                let n = b.rng.random_range(0..=size - fill(&b, q));
                b.post(q, n as u16);
            }
            2 | 3 => {
                let there = b.check(q, 8);
                let to = b.queues[q].consumed.wrapping_add(b.rng.random_range(0..=there));
                b.consume(q, to);
            }
            // Whether it is below already or not; 0 takes it back.
            _ => {
                limits[q] = b.rng.random_range(0..=size);
                let mut row = [0; 64];
                srq::LIMIT.set(&mut row, limits[q]);
                b.access_table(id::SRQ, q, Some(row));
            }
        }
        (0..400).for_each(|_| b.cycle());
        let low = fill(&b, q) < limits[q];
        assert_eq!(std::mem::take(&mut b.low), vec![q; low.into()], "queue {q}: {} of {}", fill(&b, q), limits[q]);
        if low {
            limits[q] = 0;
            told += 1;
        }
        let row = b.access_table(id::SRQ, q, None);
        assert_eq!((srq::LIMIT.get(&row), srq::POSTED.get(&row)), (limits[q], fill(&b, q)));
        if b.rng.random_bool(0.02) {
            b.load(q, b.queues[q].log2 - 2);
            limits[q] = 0;
        }
    }
    assert!(told > 10 && b.errors.is_empty(), "{told} told, {:?}", b.errors);
}
