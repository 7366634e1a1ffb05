//! DMA writes: one ordered channel for payload, completions, events and interrupts.
//!
//! For landing, completion and event, behind one arbiter. Requests are performed in the order in which they are taken:
//! all bursts have one AXI ID. A request is cut at 4 KiB (and at the 256 beats of an AXI burst). The receive buffer is
//! byte-addressed, so a burst that begins in the middle of the bus just reads from so many bytes before its source,
//! and every beat comes out in the lanes it goes to.
//!
//! ```text
//! request  taken, cut | AW valid
//!                     | read buffer .. READ_LATENCY .. data, strobes: W valid
//! ```
//!
//! A request that finds the channel busy waits in a register. The cut of the next burst happens under the last beat of the one before: beats follow each other without a gap, and a
//! write of one beat takes one cycle. Rows of the receive buffer are freed as their last beat leaves it.
//!
//! Cannot deadlock: it waits for AW, W and B of the bus only, and a beat is read when its room in the FIFO is sure.

use super::axi::AxiWriteMaster;
use crate::{
    msg::{BufAddr, DmaWrite},
    stream::{Fifo, READ_LATENCY, Sink},
};
use abi::status::counter::DMA_ERROR;
use hdl::prelude::*;

/// Beats between the receive buffer and the bus.
const QUEUE: usize = 32;
/// Bursts without an answer.
const FLYING: usize = 256;
/// Bits of inline data with the bytes before it in the first beat: 32 + 63 bytes.
const WINDOW: usize = 768;

/// A burst whose beats are being read.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Burst {
    iova: Bits<64>,
    /// Where lane 0 of the next beat comes from.
    source: BufAddr,
    /// First lane of the next beat.
    lane: Bits<6>,
    /// Bytes left, counted from lane 0 of the next beat.
    left: Bits<13>,
    first: Bit,
    is_inline: Bit,
    /// Last burst of its request.
    ends: Bit,
    rows: Bits<12>,
}

/// A beat on its way through the receive buffer.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Step {
    /// First lane that counts, and the one behind the last.
    lane: Bits<6>,
    upto: Bits<7>,
    /// There is data; without, the step only frees rows.
    beat: Bit,
    is_inline: Bit,
    last: Bit,
    rows: Bits<12>,
}

/// A beat on the bus.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct BusBeat<const W: usize> {
    data: Bits<W>,
    strobe: Bits<64>,
    last: Bit,
}

/// DMA writes over an AXI bus of `W` bits.
#[derive(LogicBlock)]
pub struct DmaWriter<const W: usize> {
    pub clock: Signal<In, Clock>,
    /// Only while `idle`: the bus would be left with half a burst.
    pub rst: Signal<In, Bit>,
    /// Requests, from the one arbiter of the channel.
    pub req: Sink<DmaWrite>,
    /// Reads the receive buffer at `buf_addr`.
    pub buf_re: Signal<Out, Bit>,
    /// First byte, for lane 0.
    pub buf_addr: Signal<Out, BufAddr>,
    /// W/8 bytes, `READ_LATENCY` cycles after `buf_re`.
    pub buf_data: Signal<In, Bits<W>>,
    /// The bus.
    pub axi: AxiWriteMaster<W>,
    /// Rows of the receive buffer that are free from now on, 0 in most cycles. Nobody can refuse them.
    pub freed: Signal<Out, Bits<12>>,
    /// Requests with at least a byte that were offered here, modulo 2^16: one that waits counts already, as no other
    /// can come before it. So a ticket noted once the arbiter has taken a write covers that write.
    pub issued: Signal<Out, Bits<16>>,
    /// Of these, those that the host has performed. They are performed in order.
    pub performed: Signal<Out, Bits<16>>,
    /// Starts no more bursts.
    pub quiesce: Signal<In, Bit>,
    /// No burst is without its answer.
    pub idle: Signal<Out, Bit>,
    /// `DMA_ERROR`, once for a burst.
    pub count: Signal<Out, Bits<64>>,

    have: Reg<Bit>,
    now: DFF<DmaWrite>,
    active: Reg<Bit>,
    burst: DFF<Burst>,
    /// The burst has no bytes, or this is its last beat.
    empty: DFF<Bit>,
    last: DFF<Bit>,
    window: DFF<Bits<WINDOW>>,
    aw_valid: Reg<Bit>,
    aw_addr: DFF<Bits<64>>,
    aw_len: DFF<Bits<8>>,
    steps: Arr<Reg<Bit>, READ_LATENCY>,
    step: Arr<DFF<Step>, READ_LATENCY>,
    /// Inline beats, under way as long as those from the buffer.
    inline_beats: Ram<Bits<W>, 4>,
    inline_in: Reg<Bits<4>>,
    inline_out: Reg<Bits<4>>,
    /// Room in `beats` that is not spoken for, and whether there is some.
    room: Reg<Bits<6>>,
    has_room: Reg<Bit>,
    beats: Fifo<BusBeat<W>>,
    /// For every burst without an answer: it ends its request.
    tails: Fifo<Bit>,
    flying: Reg<Bits<9>>,
    freed_now: Reg<Bits<12>>,
    taken: Reg<Bits<16>>,
    done: Reg<Bits<16>>,
    failed: Reg<Bit>,
}

impl<const W: usize> Default for DmaWriter<W> {
    fn default() -> Self {
        assert!(W.is_power_of_two() && (64..=512).contains(&W));
        Self {
            clock: Default::default(),
            rst: Default::default(),
            req: Default::default(),
            buf_re: Default::default(),
            buf_addr: Default::default(),
            buf_data: Default::default(),
            axi: Default::default(),
            freed: Default::default(),
            issued: Default::default(),
            performed: Default::default(),
            quiesce: Default::default(),
            idle: Default::default(),
            count: Default::default(),
            have: Default::default(),
            now: Default::default(),
            active: Default::default(),
            burst: Default::default(),
            empty: Default::default(),
            last: Default::default(),
            window: Default::default(),
            aw_valid: Default::default(),
            aw_addr: Default::default(),
            aw_len: Default::default(),
            steps: Default::default(),
            step: Default::default(),
            inline_beats: Ram::default().style("distributed"),
            inline_in: Default::default(),
            inline_out: Default::default(),
            room: Reg::with_reset(bits::<6>(QUEUE as u64)),
            has_room: Reg::with_reset(true),
            beats: Fifo::new(QUEUE),
            tails: Fifo::new(FLYING),
            flying: Default::default(),
            freed_now: Default::default(),
            taken: Default::default(),
            done: Default::default(),
            failed: Default::default(),
        }
    }
}

impl<const W: usize> Logic for DmaWriter<W> {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, have, active, aw_valid, steps, inline_in, inline_out, room, flying, freed_now);
        regs!(self, clock, rst, has_room, taken, done, failed);
        dff_setup!(self, clock, now, burst, empty, last, window, aw_addr, aw_len, step);
        clock_reset!(self, clock, rst, beats, tails);
        clock!(self, clock, inline_beats);
        let width: Bits<13> = bits::<13>((W / 8) as u64);
        let limit: Bits<14> = elab!(bits::<14>(std::cmp::min(4096, 256 * W as u64 / 8)));

        // One beat: at a burst's first beat the address goes too. Every beat is a step, and so is a request of 0 bytes.
        let burst = self.burst.q.val();
        let aw_gone = !self.aw_valid.q.val() || self.axi.aw_ready.val();
        let empty = self.empty.q.val();
        let last = self.last.q.val();
        let may_start = aw_gone && self.tails.s.ready.val() && !self.quiesce.val();
        let may_beat = self.has_room.q.val() && (!burst.first || may_start);
        let go = self.active.q.val() && (empty || may_beat);
        let beat = go && !empty;
        let start = beat && burst.first;
        let upto = if last { burst.left.get_bits::<7>(0) } else { bits::<7>((W / 8) as u64) };
        self.buf_re.next = beat && !burst.is_inline;
        self.buf_addr.next = burst.source;
        self.aw_valid.d.next = start || !aw_gone;
        self.tails.s.valid.next = start;
        self.tails.s.data.next = burst.ends;
        if start {
            self.aw_addr.d.next = burst.iova;
            let beats = (burst.left - 1) >> elab!((W / 8).trailing_zeros() as u64);
            self.aw_len.d.next = beats.get_bits::<8>(0);
        }
        self.inline_beats.we.next = beat && burst.is_inline;
        self.inline_beats.waddr.next = self.inline_in.q.val();
        self.inline_beats.wdata.next = self.window.q.val().get_bits::<W>(0);
        if beat && burst.is_inline {
            self.inline_in.d.next = self.inline_in.q.val() + 1;
            self.window.d.next = self.window.q.val() >> (W as u64);
        }
        if beat {
            self.burst.d.next.source = burst.source + width.cast::<20>();
            self.burst.d.next.left = burst.left - width;
            self.last.d.next = burst.left <= width << 1;
            self.burst.d.next.lane = 0.into();
            self.burst.d.next.first = false;
        }
        self.axi.aw_valid.next = self.aw_valid.q.val();
        self.axi.aw_addr.next = self.aw_addr.q.val();
        self.axi.aw_len.next = self.aw_len.q.val();

        // Cut the next burst, as the burst before ends: from the present request, or from the one that comes now.
        let have = self.have.q.val();
        let now = if have { self.now.q.val() } else { self.req.data.val() };
        let valid = have || self.req.valid.val();
        let next = !self.active.q.val() || (go && last);
        let offset = now.iova.get_bits::<6>(0) & bits::<6>((W / 8 - 1) as u64);
        let inside = now.iova.get_bits::<14>(0) & (limit - 1);
        let whole = now.is_inline || inside.cast::<15>() + now.len.cast::<15>() <= limit.cast::<15>(); // inline data stays inside 4 KiB and needs few beats
        let gap: Bits<14> = limit - inside;
        let take = if whole { now.len } else { gap };
        let left = if whole { now.len + offset.cast::<14>() } else { limit - (inside & !bits::<14>(W as u64 / 8 - 1)) };
        let ends_at: Bits<15> = now.len.cast::<15>() + offset.cast::<15>();
        let one_beat = if whole { ends_at <= width.cast::<15>() } else { gap <= width.cast::<14>() };
        if next {
            self.active.d.next = valid;
            self.empty.d.next = now.len == 0;
            self.last.d.next = now.len == 0 || one_beat;
            self.burst.d.next = Burst {
                iova: now.iova,
                source: now.buf - offset.cast::<20>(),
                lane: offset,
                left: if now.len == 0 { 0.into() } else { left.get_bits::<13>(0) },
                first: true,
                is_inline: now.is_inline,
                ends: whole,
                rows: if whole { now.rows } else { 0.into() },
            };
            if now.is_inline && valid {
                self.window.d.next = now.data.cast::<WINDOW>() << cat!(9; offset, bits::<3>(0));
            }
        }
        // What is left of it waits, or the next request.
        let load = !have || (next && whole);
        let counts = self.req.valid.val() && self.req.data.val().len != 0;
        self.req.ready.next = load;
        if load {
            self.have.d.next = self.req.valid.val() && (have || !next || !whole);
            self.now.d.next = self.req.data.val();
            if counts {
                self.taken.d.next = self.taken.q.val() + 1;
            }
        }
        if next && !whole {
            self.now.d.next = now;
            self.now.d.next.iova = now.iova + take.cast::<64>();
            self.now.d.next.buf = now.buf + take.cast::<20>();
            self.now.d.next.len = now.len - take;
        }
        self.issued.next = if counts { self.taken.q.val() + 1 } else { self.taken.q.val() };

        // Through the receive buffer.
        self.steps[0].d.next = go;
        self.step[0].d.next = Step {
            lane: burst.lane,
            upto: upto,
            beat: beat,
            is_inline: burst.is_inline,
            last: last,
            rows: if last { burst.rows } else { 0.into() },
        };
        for i in 1..READ_LATENCY {
            self.steps[i].d.next = self.steps[i - 1].q.val();
            self.step[i].d.next = self.step[i - 1].q.val();
        }
        let ahead = self.step[READ_LATENCY - 2].q.val();
        let fetch = self.steps[READ_LATENCY - 2].q.val() && ahead.beat && ahead.is_inline;
        self.inline_beats.re.next = fetch;
        self.inline_beats.raddr.next = self.inline_out.q.val();
        if fetch {
            self.inline_out.d.next = self.inline_out.q.val() + 1;
        }
        let step = self.step[READ_LATENCY - 1].q.val();
        let here = self.steps[READ_LATENCY - 1].q.val();
        let arrives = here && step.beat;
        let mut from: Bits<64> = u64::MAX.into();
        let mut behind: Bits<64> = u64::MAX.into();
        from <<= step.lane;
        behind <<= step.upto;
        let arriving = BusBeat::<W> {
            data: if step.is_inline { self.inline_beats.rdata.val() } else { self.buf_data.val() },
            strobe: from & !behind,
            last: step.last,
        };
        self.freed_now.d.next = if here { step.rows } else { 0.into() };
        self.freed.next = self.freed_now.q.val();

        // To the bus, past the FIFO if that is empty.
        let queued = self.beats.m.valid.val();
        let out = if queued { self.beats.m.data.val() } else { arriving };
        let sent = (queued || arrives) && self.axi.w_ready.val();
        self.axi.w_valid.next = queued || arrives;
        self.axi.w_data.next = out.data;
        self.axi.w_strb.next = out.strobe;
        self.axi.w_last.next = out.last;
        self.beats.m.ready.next = self.axi.w_ready.val();
        self.beats.s.valid.next = arrives && (queued || !self.axi.w_ready.val());
        self.beats.s.data.next = arriving;
        if beat && !sent {
            self.room.d.next = self.room.q.val() - 1;
            self.has_room.d.next = self.room.q.val() != 1;
        } else if sent && !beat {
            self.room.d.next = self.room.q.val() + 1;
            self.has_room.d.next = true;
        }

        // Answers.
        let answer = self.axi.b_valid.val();
        self.axi.b_ready.next = true;
        self.tails.m.ready.next = answer;
        if answer && self.tails.m.data.val() {
            self.done.d.next = self.done.q.val() + 1;
        }
        if start && !answer {
            self.flying.d.next = self.flying.q.val() + 1;
        } else if answer && !start {
            self.flying.d.next = self.flying.q.val() - 1;
        }
        self.failed.d.next = answer && self.axi.b_resp.val() != 0;
        self.performed.next = self.done.q.val();
        self.idle.next = self.flying.q.val() == 0;
        self.count.next = if self.failed.q.val() { bits::<64>(1 << DMA_ERROR) } else { 0.into() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::host::AxiWrites;
    use rand::{Rng, RngExt};
    use rand_chacha::ChaCha8Rng;
    use std::collections::{HashMap, VecDeque};
    use verilate::{
        Model, Options,
        bench::{self, Actor, Source, Stall},
        scale,
    };

    /// The receive buffer. Freed rows are spoilt at once: the bytes of their request must have left before.
    struct Buffer {
        bytes: Vec<u8>,
        reads: VecDeque<Option<usize>>,
        rng: ChaCha8Rng,
        /// For every request with rows: its rows and its stretch of the buffer.
        rows: VecDeque<(u64, usize, usize)>,
    }
    impl Buffer {
        fn new(seed: u64) -> Self {
            let mut rng = verilate::rng(seed);
            let mut bytes = vec![0; 1 << 20];
            rng.fill_bytes(&mut bytes);
            let reads = VecDeque::from(vec![None; READ_LATENCY]);
            Self { bytes, reads, rng, rows: VecDeque::new() }
        }
    }
    impl Actor for Buffer {
        fn drive(&mut self, m: &mut Model) {
            let mut data = vec![0; m.width("buf_data") / 8];
            match self.reads.pop_front().unwrap() {
                Some(at) => data.iter_mut().enumerate().for_each(|(i, x)| *x = self.bytes[(at + i) % self.bytes.len()]),
                None => self.rng.fill_bytes(&mut data),
            }
            m.set_bytes("buf_data", &data);
        }
        fn observe(&mut self, m: &Model) {
            self.reads.push_back(m.bit("buf_re").then(|| m.get("buf_addr") as usize));
            let freed = m.get("freed");
            if freed != 0 {
                let (rows, at, len) = self.rows.pop_front().expect("rows nobody gave");
                assert_eq!(freed, rows);
                (at..at + len).for_each(|i| self.bytes[i % (1 << 20)] = 0xee);
            }
        }
        fn done(&self) -> bool {
            self.rows.is_empty()
        }
        fn status(&self) -> String {
            format!("{} requests still hold rows", self.rows.len())
        }
    }

    /// Pushes a request and applies it to `want`.
    fn write(s: &mut Source, b: &mut Buffer, want: &mut HashMap<u64, u8>, r: [u64; 4], inline: Option<[u8; 32]>) {
        let [iova, len, buf, rows] = r;
        let mut data = Bits::<256>::default();
        (0..32).for_each(|i| data.set_bits::<8>(8 * i, bits(u64::from(inline.map_or(0x5a, |x| x[i])))));
        s.send(DmaWrite {
            iova: bits(iova),
            len: bits(len),
            is_inline: inline.is_some(),
            buf: bits(buf),
            data,
            rows: bits(rows),
        });
        for i in 0..len {
            let byte = inline.map_or(b.bytes[(buf + i) as usize % (1 << 20)], |x| x[i as usize]);
            want.insert(iova + i, byte);
        }
        if rows != 0 {
            b.rows.push_back((rows, buf as usize, if inline.is_some() { 0 } else { len as usize }));
        }
    }

    fn same(got: &HashMap<u64, u8>, want: &HashMap<u64, u8>) {
        want.iter().for_each(|(at, byte)| assert_eq!(got.get(at), Some(byte), "at {at:#x}"));
        assert_eq!(got.len(), want.len(), "bytes written that nobody asked for");
    }

    fn random<const W: usize>() {
        let mut m = Model::of(DmaWriter::<W>::default, Options::default()).unwrap();
        for seed in 0..scale(4) as u64 {
            println!("W={W} seed {seed}");
            let mut rng = verilate::rng(seed);
            m.reset();
            let mut s = Source::new(&m, "req", Stall::Random, seed);
            let mut b = Buffer::new(seed);
            let mut host = AxiWrites::new("axi", seed, 300, 0.05);
            let mut want = HashMap::new();
            let mut buf = rng.random_range(0..1 << 20);
            let (mut writes, mut errors) = (0, 0);
            for _ in 0..250 {
                let rows = if rng.random_bool(0.5) { 0 } else { rng.random_range(1..200) };
                let page = rng.random_range(1..6) << 12;
                let len = match rng.random_range(0..6) {
                    0 => 0,
                    1 => rng.random_range(4000..9000),
                    2 => 1024,
                    _ => rng.random_range(1..=200),
                };
                writes += u64::from(len > 0);
                if len <= 32 && len > 0 {
                    let bytes = rng.random();
                    let edge = 2048 - rng.random_range(0..len);
                    let iova = page + if rng.random() { edge } else { rng.random_range(0..=4096 - len) };
                    write(&mut s, &mut b, &mut want, [iova, len, rng.random_range(0..1 << 20), rows], Some(bytes));
                } else {
                    write(&mut s, &mut b, &mut want, [page + rng.random_range(0..4096), len, buf, rows], None);
                    buf = (buf + len) & 0xf_ffff;
                }
            }
            // Tickets never run ahead of the bus.
            while !(s.done() && b.done() && host.done()) {
                assert!(m.cycle() < 10_000_000);
                bench::cycle(&mut m, &mut [&mut s, &mut b, &mut host]);
                errors += m.get("count") >> DMA_ERROR & 1;
                assert!(m.get("performed") <= m.get("issued") && m.get("performed") <= host.answered);
            }
            (0..20).for_each(|_| {
                bench::cycle(&mut m, &mut [&mut s, &mut b, &mut host]);
                errors += m.get("count") >> DMA_ERROR & 1;
            });
            assert_eq!((m.get("issued"), m.get("performed"), m.bit("idle")), (writes, writes, true));
            assert_eq!(errors, host.errors);
            same(&host.memory, &want);
        }
    }

    #[test]
    fn memory_is_as_if_written_one_by_one_at_512_bits() {
        random::<512>();
    }

    #[test]
    fn memory_is_as_if_written_one_by_one_at_128_and_256_bits() {
        random::<128>();
        random::<256>();
    }

    #[test]
    fn memory_is_as_if_written_one_by_one_at_64_bits() {
        random::<64>();
    }

    #[test]
    fn all_alignments_and_lengths() {
        let mut m = Model::of(DmaWriter::<512>::default, Options::default()).unwrap();
        for inline in [false, true] {
            for offset in (0..64u64).map(|x| x + 4096 - 100) {
                m.reset();
                let mut s = Source::new(&m, "req", Stall::Never, 0);
                let mut b = Buffer::new(offset);
                let mut host = AxiWrites::new("axi", 0, 0, 0.0);
                let mut want = HashMap::new();
                for len in 1..=if inline { 32 } else { 140 } {
                    let data = inline.then(|| std::array::from_fn(|i| (i as u64 + len * 7) as u8));
                    write(&mut s, &mut b, &mut want, [(len << 13) + offset, len, len * 200 + offset, 1], data);
                }
                bench::run(&mut m, &mut [&mut s, &mut b, &mut host], 2000);
                same(&host.memory, &want);
            }
        }
    }

    #[test]
    fn rates_and_quiesce() {
        let mut m = Model::of(DmaWriter::<512>::default, Options::default()).unwrap();
        let mut rate = |name: &str, n: u64, len: u64, inline: Option<[u8; 32]>| {
            m.reset();
            let mut s = Source::new(&m, "req", Stall::Never, 0);
            let mut b = Buffer::new(0);
            let mut host = AxiWrites::new("axi", 0, 0, 0.0);
            let mut want = HashMap::new();
            (0..n).for_each(|i| write(&mut s, &mut b, &mut want, [i << 13, len, (i * len) & 0xf_ffff, 0], inline));
            let start = m.cycle();
            bench::run(&mut m, &mut [&mut s, &mut b, &mut host], 100_000);
            let cycles = m.cycle() - 32 - start;
            println!("{n} x {name}: {cycles} cycles");
            cycles
        };
        assert!(rate("4096 bytes", 100, 4096, None) < 6_440);
        assert!(rate("1024 bytes", 200, 1024, None) < 3_240);
        assert!(rate("64 bytes", 500, 64, None) < 540);
        assert!(rate("32 bytes inline", 500, 32, Some([1; 32])) < 540);
        assert!(rate("rows only", 500, 0, None) < 540);

        m.reset();
        let mut s = Source::new(&m, "req", Stall::Never, 0);
        let mut b = Buffer::new(0);
        let mut host = AxiWrites::new("axi", 0, 50, 0.0);
        let mut want = HashMap::new();
        (0..20).for_each(|i| write(&mut s, &mut b, &mut want, [i << 13, 4096, i << 12, 1], None));
        (0..500).for_each(|_| bench::cycle(&mut m, &mut [&mut s, &mut b, &mut host]));
        assert!(!m.bit("idle"));
        m.set("quiesce", 1);
        (0..300).for_each(|_| bench::cycle(&mut m, &mut [&mut s, &mut b, &mut host]));
        assert!(m.bit("idle") && host.done() && !s.is_empty(), "bursts under way end, no new ones start");
        m.set("quiesce", 0);
        bench::run(&mut m, &mut [&mut s, &mut b, &mut host], 10_000);
        same(&host.memory, &want);
    }
}
