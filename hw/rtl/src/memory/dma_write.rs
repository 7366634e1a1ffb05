//! DMA writes: one ordered channel for payload, completions, events and interrupts.
//!
//! For landing, completion and event, behind one arbiter. Requests are performed in the order in which they are taken:
//! all bursts have one AXI ID. A request is cut at 4 KiB (and at the 256 beats of an AXI burst). The receive buffer is
//! byte-addressed, so a burst that begins in the middle of the bus just reads from so many bytes before its source,
//! and every beat comes out in the lanes it goes to. Inline data is rotated into its lanes on the way beside the buffer, in a stage
//! for every two bits of the amount.
//!
//! ```text
//! request  taken, cut | AW valid
//!                     | read buffer .. READ_LATENCY .. data, strobes: W valid
//! ```
//!
//! A request is taken as its first burst is cut, under the last beat of the burst before: beats follow each other without a gap, and a
//! write of one beat takes one cycle. What is left of it waits in a register. Rows of the receive buffer are freed as their last beat leaves it.
//!
//! Cannot deadlock: it waits for AW, W and B of the bus only, and a beat is read when its room in the FIFO is sure.

use super::axi::AxiWriteMaster;
use crate::{
    msg::{BufAddr, DmaWrite},
    stream::{Fifo, Passage, READ_LATENCY, Sink, rotate_left},
};
use abi::status::counter::DMA_ERROR;
use hdl::prelude::*;

/// Beats between the receive buffer and the bus.
const QUEUE: usize = 16;
/// Inline data is rotated in a step for each cycle of the buffer.
const _: () = assert!(READ_LATENCY == 3);
/// Bursts without an answer: one for every 2 ns or so of the host's latency, at most.
const fn flying(width: usize) -> usize {
    if width < 256 { width } else { 256 }
}

/// What is left of a request.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Left {
    iova: Bits<64>,
    len: Bits<14>,
    buf: BufAddr,
    rows: Bits<12>,
    is_inline: Bit,
    /// First lane of the whole request: what is left of inline data keeps its lanes.
    turn: Bits<6>,
}

/// A burst whose beats are being read.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Burst {
    iova: Bits<64>,
    /// Where lane 0 of the next beat comes from.
    source: BufAddr,
    /// First lane of the first beat, and of the next one.
    offset: Bits<6>,
    lane: Bits<6>,
    /// Bytes left, counted from lane 0 of the next beat.
    left: Bits<13>,
    /// Its address goes out with the next beat.
    first: Bit,
    is_inline: Bit,
    /// Last burst of its request.
    ends: Bit,
    rows: Bits<12>,
}

/// A beat on its way through the receive buffer.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Step {
    /// First lane of the burst's first beat.
    offset: Bits<6>,
    /// First lane that counts, and the one behind the last.
    lane: Bits<6>,
    upto: Bits<7>,
    /// There is data; without, the step only frees rows.
    beat: Bit,
    is_inline: Bit,
    last: Bit,
    rows: Bits<12>,
}

/// A burst's address on the bus.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Address {
    iova: Bits<64>,
    len: Bits<8>,
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
    /// Requests with at least a byte that the host has performed, modulo 2^16. They are performed in order.
    pub performed: Signal<Out, Bits<16>>,
    /// Starts no more bursts.
    pub quiesce: Signal<In, Bit>,
    /// No burst is without its answer.
    pub idle: Signal<Out, Bit>,
    /// `DMA_ERROR`, once for a burst.
    pub count: Signal<Out, Bits<64>>,

    have: Reg<Bit>,
    now: DFF<Left>,
    active: Reg<Bit>,
    burst: DFF<Burst>,
    /// The burst has no bytes, or this is its last beat.
    empty: DFF<Bit>,
    last: DFF<Bit>,
    /// Inline data of the burst that was not sent.
    rest: DFF<Bits<256>>,
    aw_valid: Reg<Bit>,
    aw: DFF<Address>,
    steps: Arr<Reg<Bit>, READ_LATENCY>,
    step: Arr<DFF<Step>, READ_LATENCY>,
    /// Inline beats on their way into their lanes, and the bytes of the last one, of which some belong to the next.
    turned: Arr<DFF<Bits<W>>, READ_LATENCY>,
    behind: DFF<Bits<W>>,
    strobe: DFF<Bits<64>>,
    /// Room in `beats` that is not spoken for, and whether there is some.
    room: Reg<Bits<6>>,
    has_room: Reg<Bit>,
    beats: Passage<BusBeat<W>>,
    /// For every burst without an answer: it ends its request.
    tails: Fifo<Bit>,
    /// A burst may start, as far as these and `quiesce` go.
    open: Reg<Bit>,
    freed_now: Reg<Bits<12>>,
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
            rest: Default::default(),
            aw_valid: Default::default(),
            aw: Default::default(),
            steps: Default::default(),
            step: Default::default(),
            turned: Default::default(),
            behind: Default::default(),
            strobe: Default::default(),
            room: Reg::with_reset(bits::<6>(QUEUE as u64)),
            has_room: Reg::with_reset(true),
            beats: Passage::new(QUEUE),
            tails: Fifo::new(flying(W)),
            open: Default::default(),
            freed_now: Default::default(),
            done: Default::default(),
            failed: Default::default(),
        }
    }
}

impl<const W: usize> Logic for DmaWriter<W> {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, have, aw_valid, active, steps, room, has_room, open, freed_now, done, failed);
        dff_setup!(self, clock, now, aw, burst, empty, last, rest, step, turned, behind, strobe);
        clock_reset!(self, clock, rst, beats, tails);
        let width: Bits<13> = bits::<13>((W / 8) as u64);
        let limit: Bits<14> = elab!(bits::<14>(std::cmp::min(4096, 256 * W as u64 / 8)));

        // One beat: at a burst's first beat the address goes too. Every beat is a step, and so is a request of 0 bytes.
        let burst = self.burst.q.val();
        let empty = self.empty.q.val();
        let last = self.last.q.val();
        let aw_free = !self.aw_valid.q.val() || self.axi.aw_ready.val();
        let may_start = self.open.q.val() && aw_free;
        let go = self.active.q.val() && self.has_room.q.val() && (!burst.first || may_start);
        let beat = go && !empty;
        let start = go && burst.first;
        let inline_beat = beat && burst.is_inline;
        let upto = if last { burst.left.get_bits::<7>(0) } else { bits::<7>((W / 8) as u64) };
        // A beat that stalls is read again; data counts in the cycle that its step says.
        self.buf_re.next = self.active.q.val() && !burst.is_inline;
        self.buf_addr.next = burst.source;
        self.tails.s.valid.next = start;
        self.tails.s.data.next = burst.ends;
        self.open.d.next = self.tails.fill.val() < elab!(flying(W) as u64 - 1) && !self.quiesce.val();
        let beats = (burst.left - 1) >> elab!((W / 8).trailing_zeros() as u64);
        if aw_free {
            self.aw_valid.d.next = start;
            self.aw.d.next = Address { iova: burst.iova, len: beats.get_bits::<8>(0) };
        }
        let address = self.aw.q.val();
        self.axi.aw_valid.next = self.aw_valid.q.val();
        self.axi.aw_addr.next = address.iova;
        self.axi.aw_len.next = address.len;
        if beat {
            self.burst.d.next.source = burst.source + width.cast::<20>();
            self.burst.d.next.left = burst.left - width;
            self.last.d.next = burst.left <= width << 1;
            self.burst.d.next.lane = 0.into();
            self.burst.d.next.first = false;
        }

        // Cut the next burst, as the burst before ends: from what is left of a request, or from the one that comes now.
        let have = self.have.q.val();
        let new = self.req.data.val();
        let lanes: Bits<6> = bits::<6>((W / 8 - 1) as u64);
        let comes = Left {
            iova: new.iova,
            len: new.len,
            buf: new.buf,
            rows: new.rows,
            is_inline: new.is_inline,
            turn: new.iova.get_bits::<6>(0) & lanes,
        };
        let now = if have { self.now.q.val() } else { comes };
        let valid = have || self.req.valid.val();
        let next = !self.active.q.val() || (go && last);
        let offset = now.iova.get_bits::<6>(0) & lanes;
        let inside = now.iova.get_bits::<14>(0) & (limit - 1);
        let whole = inside.cast::<15>() + now.len.cast::<15>() <= limit.cast::<15>();
        let gap: Bits<14> = limit - inside;
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
                offset: now.turn,
                lane: offset,
                left: left.get_bits::<13>(0),
                first: now.len.any(),
                is_inline: now.is_inline,
                ends: whole,
                rows: if whole { now.rows } else { 0.into() },
            };
        }
        // What is left of it waits.
        self.req.ready.next = next && !have;
        if next {
            self.have.d.next = valid && !whole;
            self.now.d.next = Left {
                iova: (now.iova & !(limit.cast::<64>() - 1)) + limit.cast::<64>(),
                len: now.len - gap,
                buf: now.buf + gap.cast::<20>(),
                rows: now.rows,
                is_inline: now.is_inline,
                turn: now.turn,
            };
        }

        // Through the receive buffer, and inline data beside it.
        self.steps[0].d.next = go;
        self.step[0].d.next = Step {
            offset: burst.offset,
            lane: burst.lane,
            upto: upto,
            beat: beat,
            is_inline: burst.is_inline,
            last: last,
            rows: if last { burst.rows } else { 0.into() },
        };
        let word: Bits<W> = self.rest.q.val().cast::<W>();
        if inline_beat {
            self.turned[0].d.next = rotate_left::<W>(word, burst.offset & 0x30);
        }
        if next && !have {
            self.rest.d.next = new.data;
        } else if elab!(W < 256) && inline_beat {
            self.rest.d.next = self.rest.q.val() >> (W as u64);
        }
        for i in 1..READ_LATENCY {
            let step = self.step[i - 1].q.val();
            self.steps[i].d.next = self.steps[i - 1].q.val();
            self.step[i].d.next = step;
            if self.steps[i - 1].q.val() && step.beat && step.is_inline {
                let some: Bits<6> = if i == 1 { bits::<6>(0xc) } else { bits::<6>(3) };
                self.turned[i].d.next = rotate_left::<W>(self.turned[i - 1].q.val(), step.offset & some);
            }
        }
        let ahead = self.step[READ_LATENCY - 2].q.val();
        let mut from: Bits<64> = elab!(bits::<64>(u64::MAX >> (64 - W / 8)));
        let mut behind: Bits<64> = u64::MAX.into();
        from <<= ahead.lane;
        behind <<= ahead.upto;
        self.strobe.d.next = from & !behind & elab!(bits::<64>(u64::MAX >> (64 - W / 8)));

        let step = self.step[READ_LATENCY - 1].q.val();
        let here = self.steps[READ_LATENCY - 1].q.val();
        let arrives = here && step.beat;
        // Where inline data takes several beats, the lanes below its offset come from the beat before. Else both have all of it.
        let mut inline_data = self.turned[READ_LATENCY - 1].q.val();
        if W < 256 {
            let mut lanes: Bits<W> = elab!(!Bits::<W>::default());
            lanes <<= cat!(9; step.offset, bits::<3>(0));
            inline_data = (inline_data & lanes) | (self.behind.q.val() & !lanes);
            if arrives && step.is_inline {
                self.behind.d.next = self.turned[READ_LATENCY - 1].q.val();
            }
        }
        self.freed_now.d.next = if here { step.rows } else { 0.into() };
        self.freed.next = self.freed_now.q.val();

        // To the bus.
        self.beats.s.valid.next = arrives;
        self.beats.s.data.next = BusBeat::<W> {
            data: if step.is_inline { inline_data } else { self.buf_data.val() },
            strobe: self.strobe.q.val(),
            last: step.last,
        };
        let out = self.beats.m.data.val();
        let sent = self.beats.m.valid.val() && self.axi.w_ready.val();
        self.axi.w_valid.next = self.beats.m.valid.val();
        self.axi.w_data.next = out.data;
        self.axi.w_strb.next = out.strobe;
        self.axi.w_last.next = out.last;
        self.beats.m.ready.next = self.axi.w_ready.val();
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
        self.failed.d.next = answer && self.axi.b_resp.val() != 0;
        self.performed.next = self.done.q.val();
        self.idle.next = self.tails.fill.val() == 0;
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
                    // Within a beat, over its end, over that of a burst, over 4 KiB.
                    let edge = [2048, 4096][rng.random_range(0..2)] - rng.random_range(0..len);
                    let iova = page + if rng.random() { edge } else { rng.random_range(0..4096) };
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
                assert!(m.get("performed") <= writes && m.get("performed") <= host.answered);
            }
            (0..20).for_each(|_| {
                bench::cycle(&mut m, &mut [&mut s, &mut b, &mut host]);
                errors += m.get("count") >> DMA_ERROR & 1;
            });
            assert_eq!((m.get("performed"), m.bit("idle")), (writes, true));
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
            for offset in (0..104u64).map(|x| x + 4096 - 100) {
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
