//! The soft core's DMA: copies between host memory and its RAM, and loads page lists into the MTT.
//! For the firmware, through [`super::mmio`].
//!
//! ```text
//! from the host   Chunk | Ask (one DmaRead) | Receive .. all pieces are here | Drain: 4 bytes a cycle into the RAM
//! page list       the same, and                                              | Drain: an entry every 2 cycles into the MTT
//! to the host     Chunk | Fetch: up to 8 words of the RAM | Send: one inline write
//! ```
//!
//! Data comes back in pieces of at most a beat, in any order. They are kept as they come, each with its place, and
//! written out word by word. What is longer than a chunk is served chunk by chunk; a list of 262,144 entries takes 1,024
//! of some 800 cycles.
//!
//! It cannot deadlock: `data` is always taken, as a chunk's pieces have room; `write` ends in posted writes.

use crate::msg::{DmaData, DmaRead, DmaWrite};
use crate::stream::Source;
use hdl::prelude::*;

/// Words of a chunk that is read: beats of 8 bytes, and one more where it is not aligned, fit into [`PIECES`].
const CHUNK: usize = 512;
/// Words of an inline write.
const WRITE: usize = 8;
/// Pieces that are kept: as deep as a block RAM of any family is.
const PIECES: usize = 512;
const _: () = assert!(CHUNK / 2 < PIECES);

#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
enum State {
    Idle,
    Chunk,
    Ask,
    Receive,
    Drain,
    Fetch,
    Send,
}

/// Data that came.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Piece<const W: usize> {
    beat: Bits<W>,
    /// Its first word in the chunk, and how many they are.
    at: Bits<9>,
    words: Bits<5>,
}

/// The mailbox on a bus of `W` bits. See the module.
#[derive(LogicBlock)]
pub struct Mailbox<const W: usize> {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,

    /// Starts a copy of `dma_bytes` (a multiple of 4, at most 4096); all `dma_` inputs stay while `dma_busy`.
    pub dma_go: Signal<In, Bit>,
    pub dma_host: Signal<In, Bits<64>>,
    pub dma_local: Signal<In, Bits<16>>,
    pub dma_bytes: Signal<In, Bits<13>>,
    pub dma_to_host: Signal<In, Bit>,
    pub dma_busy: Signal<Out, Bit>,
    /// The last copy met a bus error.
    pub dma_failed: Signal<Out, Bit>,

    /// Starts a load of `list_entries` page addresses from `list_host` into MTT entries from `list_first` on. All `list_` inputs
    /// stay while `list_busy`.
    pub list_go: Signal<In, Bit>,
    pub list_host: Signal<In, Bits<64>>,
    pub list_first: Signal<In, Bits<24>>,
    /// At most 32.
    pub list_shift: Signal<In, Bits<6>>,
    pub list_entries: Signal<In, Bits<24>>,
    pub list_busy: Signal<Out, Bit>,
    /// The last load met a bus error; or an address that is not a page of its size below 2^48.
    pub list_failed: Signal<Out, Bit>,
    pub list_bad: Signal<Out, Bit>,

    /// Host memory: a client of memory/dma_read, and a source of memory/dma_write.
    pub read: Source<DmaRead>,
    pub data: Signal<In, DmaData>,
    pub beat: Signal<In, Bits<W>>,
    pub data_valid: Signal<In, Bit>,
    pub write: Source<DmaWrite>,

    /// The soft core's RAM, by words: two cycles from `ram_re` to `ram_rdata`.
    pub ram_re: Signal<Out, Bit>,
    pub ram_raddr: Signal<Out, Bits<14>>,
    pub ram_rdata: Signal<In, Bits<32>>,
    pub ram_we: Signal<Out, Bit>,
    pub ram_waddr: Signal<Out, Bits<14>>,
    pub ram_wdata: Signal<Out, Bits<32>>,

    /// The MTT: an entry in this cycle.
    pub mtt_we: Signal<Out, Bit>,
    pub mtt_addr: Signal<Out, Bits<24>>,
    pub mtt_frame: Signal<Out, Bits<36>>,

    pieces: Ram<Piece<W>, 9>,
    state: Reg<State>,
    /// The work is the list's.
    is_list: Reg<Bit>,
    dma_busy_q: Reg<Bit>,
    dma_failed_q: Reg<Bit>,
    list_busy_q: Reg<Bit>,
    list_failed_q: Reg<Bit>,
    list_bad_q: Reg<Bit>,
    /// What is left of it: where it stands in host memory; word of the RAM, or entry of the MTT; words.
    cursor: DFF<Bits<64>>,
    base: DFF<Bits<24>>,
    left: DFF<Bits<25>>,
    /// The chunk in words, and how many have come, and have been written out.
    want: DFF<Bits<10>>,
    got: DFF<Bits<10>>,
    out: DFF<Bits<10>>,
    /// Pieces that came, and that were read; where one is between RAM and `beat`.
    came: DFF<Bits<10>>,
    read_out: DFF<Bits<10>>,
    coming: [Reg<Bit>; 2],
    ready: Reg<Bit>,
    /// The piece that is written out: from the word `place` on, `words` of it.
    shift: DFF<Bits<W>>,
    place: DFF<Bits<9>>,
    words: Reg<Bits<5>>,
    /// Writes of RAM and MTT, a cycle later.
    puts: Reg<Bit>,
    put_at: DFF<Bits<24>>,
    put: DFF<Bits<32>>,
    low: DFF<Bits<32>>,
    low_bad: DFF<Bit>,
    /// The bits below a page of the list, and how many are still to come.
    below: DFF<Bits<32>>,
    grows: Reg<Bits<6>>,
    entry: Reg<Bit>,
    /// Words asked of the RAM for an inline write, with those behind the last as zeros; which of them are underway.
    asked: DFF<Bits<4>>,
    fetched: [Reg<Bit>; 2],
    real: [Reg<Bit>; 2],
    inline_data: DFF<Bits<256>>,
}

impl<const W: usize> Default for Mailbox<W> {
    fn default() -> Self {
        Self {
            clock: Default::default(),
            rst: Default::default(),
            dma_go: Default::default(),
            dma_host: Default::default(),
            dma_local: Default::default(),
            dma_bytes: Default::default(),
            dma_to_host: Default::default(),
            dma_busy: Default::default(),
            dma_failed: Default::default(),
            list_go: Default::default(),
            list_host: Default::default(),
            list_first: Default::default(),
            list_shift: Default::default(),
            list_entries: Default::default(),
            list_busy: Default::default(),
            list_failed: Default::default(),
            list_bad: Default::default(),
            read: Default::default(),
            data: Default::default(),
            beat: Default::default(),
            data_valid: Default::default(),
            write: Default::default(),
            ram_re: Default::default(),
            ram_raddr: Default::default(),
            ram_rdata: Default::default(),
            ram_we: Default::default(),
            ram_waddr: Default::default(),
            ram_wdata: Default::default(),
            mtt_we: Default::default(),
            mtt_addr: Default::default(),
            mtt_frame: Default::default(),
            pieces: Ram::new(PIECES, "block"),
            state: Default::default(),
            is_list: Default::default(),
            dma_busy_q: Default::default(),
            dma_failed_q: Default::default(),
            list_busy_q: Default::default(),
            list_failed_q: Default::default(),
            list_bad_q: Default::default(),
            cursor: Default::default(),
            base: Default::default(),
            left: Default::default(),
            want: Default::default(),
            got: Default::default(),
            out: Default::default(),
            came: Default::default(),
            read_out: Default::default(),
            coming: Default::default(),
            ready: Default::default(),
            shift: Default::default(),
            place: Default::default(),
            words: Default::default(),
            puts: Default::default(),
            put_at: Default::default(),
            put: Default::default(),
            low: Default::default(),
            low_bad: Default::default(),
            below: Default::default(),
            grows: Default::default(),
            entry: Default::default(),
            asked: Default::default(),
            fetched: Default::default(),
            real: Default::default(),
            inline_data: Default::default(),
        }
    }
}

impl<const W: usize> Logic for Mailbox<W> {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, state, is_list, dma_busy_q, dma_failed_q, list_busy_q, list_failed_q, list_bad_q);
        regs!(self, clock, rst, coming, ready, words, puts, grows, entry, fetched, real);
        dff_setup!(self, clock, cursor, base, left, want, got, out, came, read_out, shift, place, put_at, put);
        dff_setup!(self, clock, low, low_bad, below, asked, inline_data);
        clock!(self, clock, pieces);
        let state = self.state.q.val();
        let is_list = self.is_list.q.val();
        let (want, cursor, base) = (self.want.q.val(), self.cursor.q.val(), self.base.q.val());

        if self.dma_go.val() {
            self.dma_busy_q.d.next = true;
            self.dma_failed_q.d.next = false;
        }
        if self.list_go.val() {
            self.list_busy_q.d.next = true;
            self.list_failed_q.d.next = false;
            self.list_bad_q.d.next = false;
            self.below.d.next = 0.into();
            self.grows.d.next = self.list_shift.val();
        }
        // Nobody waits for the mask of the bits below a page: a bit a cycle, before the list is looked at.
        let growing = self.grows.q.val().any();
        if growing {
            self.below.d.next = cat!(self.below.q.val().get_bits::<31>(0), bits::<1>(1));
            self.grows.d.next = self.grows.q.val() - 1;
        }

        // Pieces come in at any time.
        let data = self.data.val();
        let came = self.came.q.val();
        self.pieces.we.next = self.data_valid.val();
        self.pieces.waddr.next = came.get_bits::<9>(0);
        self.pieces.wdata.next.beat = self.beat.val();
        self.pieces.wdata.next.at = data.dest.get_bits::<9>(2);
        self.pieces.wdata.next.words = data.bytes.get_bits::<5>(2);
        if self.data_valid.val() {
            self.came.d.next = came + 1;
            self.got.d.next = self.got.q.val() + data.bytes.get_bits::<5>(2).cast::<10>();
            if data.error {
                if is_list {
                    self.list_failed_q.d.next = true;
                } else {
                    self.dma_failed_q.d.next = true;
                }
            }
        }

        // The next piece waits at the RAM's output while the one before is written out.
        let mut next = false;
        let piece = self.pieces.rdata.val();
        let words = self.words.q.val();
        let waits = self.ready.q.val() || self.coming[1].q.val();
        let emits = words != 0;
        let loads = waits && words.get_bits::<4>(1) == 0;
        self.ready.d.next = waits && !loads;
        let word = self.shift.q.val().get_bits::<32>(0);
        let place = self.place.q.val();
        if loads {
            self.shift.d.next = piece.beat;
            self.place.d.next = piece.at;
            self.words.d.next = piece.words;
            next = self.read_out.q.val() != came;
        } else if emits {
            self.shift.d.next = self.shift.q.val() >> 32u64;
            self.place.d.next = place + 1;
            self.words.d.next = words - 1;
        }
        if emits {
            self.out.d.next = self.out.q.val() + 1;
            self.put.d.next = word;
            self.put_at.d.next = base + if is_list { place.get_bits::<8>(1).cast::<24>() } else { place.cast::<24>() };
        }
        self.puts.d.next = emits && !is_list;
        self.ram_we.next = self.puts.q.val();
        self.ram_waddr.next = self.put_at.q.val().get_bits::<14>(0);
        self.ram_wdata.next = self.put.q.val();

        // An entry is two words: no bit may be set below the page, or from 2^48 on.
        let below = self.below.q.val();
        self.entry.d.next = false;
        if emits && is_list {
            if place.get_bit(0) {
                let bad = self.low_bad.q.val() || word.get_bits::<16>(16).any();
                self.entry.d.next = !bad;
                if bad && !self.list_failed_q.q.val() {
                    self.list_bad_q.d.next = true;
                }
            } else {
                self.low.d.next = word;
                self.low_bad.d.next = (word & below).any();
            }
        }
        self.mtt_we.next = self.entry.q.val();
        self.mtt_addr.next = self.put_at.q.val();
        self.mtt_frame.next = cat!(self.put.q.val().get_bits::<16>(0), self.low.q.val().get_bits::<20>(12));

        // Words for an inline write: the newest is the highest, the others move down by and by.
        let mut fetches = false;
        let mut real = false;
        if self.fetched[1].q.val() {
            let newest = if self.real[1].q.val() { self.ram_rdata.val() } else { 0.into() };
            self.inline_data.d.next = cat!(newest, self.inline_data.q.val().get_bits::<224>(32));
            self.out.d.next = self.out.q.val() + 1;
        }
        let asked = self.asked.q.val();

        match state {
            State::Idle => {
                if self.dma_busy_q.q.val() {
                    self.is_list.d.next = false;
                    self.cursor.d.next = self.dma_host.val();
                    self.base.d.next = self.dma_local.val().get_bits::<14>(2).cast::<24>();
                    self.left.d.next = self.dma_bytes.val().get_bits::<11>(2).cast::<25>();
                    self.state.d.next = State::Chunk;
                } else if self.list_busy_q.q.val() && !growing {
                    self.is_list.d.next = true;
                    self.cursor.d.next = self.list_host.val();
                    self.base.d.next = self.list_first.val();
                    self.left.d.next = cat!(self.list_entries.val(), bits::<1>(0));
                    self.state.d.next = State::Chunk;
                }
            }
            State::Chunk => {
                let left = self.left.q.val();
                let sends = !is_list && self.dma_to_host.val();
                // An inline write does not cross an aligned 32 bytes.
                let line = bits::<4>(WRITE as u64) - cursor.get_bits::<3>(2).cast::<4>();
                let most: Bits<10> = if sends { line.cast::<10>() } else { bits::<10>(CHUNK as u64) };
                self.want.d.next = if left > most.cast::<25>() { most } else { left.get_bits::<10>(0) };
                self.got.d.next = 0.into();
                self.out.d.next = 0.into();
                self.came.d.next = 0.into();
                self.read_out.d.next = 0.into();
                self.asked.d.next = 0.into();
                if left == 0 {
                    if is_list {
                        self.list_busy_q.d.next = false;
                    } else {
                        self.dma_busy_q.d.next = false;
                    }
                    self.state.d.next = State::Idle;
                } else if sends {
                    self.state.d.next = State::Fetch;
                } else {
                    self.state.d.next = State::Ask;
                }
            }
            State::Ask => {
                if self.read.ready.val() {
                    self.state.d.next = State::Receive;
                }
            }
            State::Receive => {
                if self.got.q.val() == want {
                    next = true;
                    self.state.d.next = State::Drain;
                }
            }
            State::Drain => {
                if self.out.q.val() == want {
                    self.state.d.next = State::Chunk;
                }
            }
            State::Fetch => {
                if !asked.get_bit(3) {
                    fetches = true;
                    real = asked < want.get_bits::<4>(0);
                    self.asked.d.next = asked + 1;
                }
                if self.out.q.val().get_bit(3) {
                    self.state.d.next = State::Send;
                }
            }
            State::Send => {
                if self.write.ready.val() {
                    self.state.d.next = State::Chunk;
                }
            }
        }
        // Behind a chunk.
        if state == State::Drain && self.out.q.val() == want || state == State::Send && self.write.ready.val() {
            self.cursor.d.next = cursor + cat!(64; bits::<52>(0), want, bits::<2>(0));
            self.base.d.next = base + if is_list { want.get_bits::<9>(1).cast::<24>() } else { want.cast::<24>() };
            self.left.d.next = self.left.q.val() - want.cast::<25>();
        }
        self.pieces.re.next = next;
        self.pieces.raddr.next = self.read_out.q.val().get_bits::<9>(0);
        if next {
            self.read_out.d.next = self.read_out.q.val() + 1;
        }
        self.coming[0].d.next = next;
        self.coming[1].d.next = self.coming[0].q.val();
        self.fetched[0].d.next = fetches;
        self.fetched[1].d.next = self.fetched[0].q.val();
        self.real[0].d.next = real;
        self.real[1].d.next = self.real[0].q.val();
        self.ram_re.next = fetches && real;
        self.ram_raddr.next = base.get_bits::<14>(0) + asked.cast::<14>();

        self.read.valid.next = state == State::Ask;
        let bytes: Bits<14> = cat!(14; bits::<2>(0), want, bits::<2>(0));
        self.read.data.next = DmaRead { iova: cursor, len: bytes, tag: 0.into(), dest: 0.into() };
        self.write.valid.next = state == State::Send;
        self.write.data.next = DmaWrite {
            iova: cursor,
            len: bytes,
            is_inline: true,
            buf: 0.into(),
            data: self.inline_data.q.val(),
            rows: 0.into(),
        };
        self.dma_busy.next = self.dma_busy_q.q.val();
        self.dma_failed.next = self.dma_failed_q.q.val();
        self.list_busy.next = self.list_busy_q.q.val();
        self.list_failed.next = self.list_failed_q.q.val();
        self.list_bad.next = self.list_bad_q.q.val();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::testing::HostMemory;
    use rand::RngExt;
    use rand_chacha::ChaCha8Rng;
    use std::collections::HashMap;
    use verilate::{Model, Options, bench};

    /// Host memory, soft-core RAM and MTT around a mailbox.
    struct World {
        m: Model,
        host: HostMemory,
        ram: Vec<u32>,
        /// What a read of the RAM found a cycle ago.
        coming: Option<u32>,
        mtt: HashMap<u64, u64>,
        rng: ChaCha8Rng,
    }

    impl World {
        fn new<const W: usize>(seed: u64) -> Self {
            let mut m = Model::of(Mailbox::<W>::default, Options::default()).unwrap();
            m.reset();
            let host = HostMemory::new(&m, seed);
            Self { m, host, ram: vec![0; 1 << 14], coming: None, mtt: HashMap::new(), rng: verilate::rng(seed) }
        }

        fn cycle(&mut self) {
            let word = self.m.bit("ram_re").then(|| self.ram[self.m.get("ram_raddr") as usize]);
            let word = std::mem::replace(&mut self.coming, word);
            if self.m.bit("ram_we") {
                self.ram[self.m.get("ram_waddr") as usize] = self.m.get("ram_wdata") as u32;
            }
            if self.m.bit("mtt_we") {
                self.mtt.insert(self.m.get("mtt_addr"), self.m.get("mtt_frame"));
            }
            bench::cycle(&mut self.m, &mut [&mut self.host]);
            self.m.set("dma_go", 0);
            self.m.set("list_go", 0);
            if let Some(word) = word {
                self.m.set("ram_rdata", word as u64);
            }
            self.m.eval();
        }

        fn until_idle(&mut self, busy: &str) -> u64 {
            let start = self.m.cycle();
            self.cycle();
            while self.m.bit(busy) {
                self.cycle();
                assert!(self.m.cycle() < start + 1_000_000);
            }
            self.m.cycle() - start
        }

        fn copy(&mut self, host: u64, local: u64, bytes: u64, to_host: bool) {
            self.m.set("dma_host", host);
            self.m.set("dma_local", local);
            self.m.set("dma_bytes", bytes);
            self.m.set("dma_to_host", to_host as u64);
            self.m.set("dma_go", 1);
            self.m.eval();
            self.until_idle("dma_busy");
        }
    }

    fn copies<const W: usize>(seed: u64) {
        println!("seed {seed}");
        let mut w = World::new::<W>(seed);
        for _ in 0..verilate::scale(30) {
            let bytes = 4 * if w.rng.random_bool(0.2) { 1024 } else { w.rng.random_range(1..40) };
            let host = (w.rng.random_range(0u64..1 << 50)) & !3;
            let local = 4 * w.rng.random_range(0..(65536 - bytes) / 4);
            let content: Vec<u8> = (0..bytes).map(|_| w.rng.random_range(0..=255)).collect();
            w.host.put(host, &content);
            w.copy(host, local, bytes, false);
            let ram: Vec<u8> =
                w.ram[local as usize / 4..][..bytes as usize / 4].iter().flat_map(|x| x.to_le_bytes()).collect();
            assert_eq!(ram, content);
            let other = host ^ 1 << 40;
            w.copy(other, local, bytes, true);
            (0..32).for_each(|_| w.cycle());
            assert_eq!(w.host.get(other, bytes as usize), content);
            assert!(!w.m.bit("dma_failed"));
        }
        w.host.fail = true;
        w.copy(0x1000, 0, 64, false);
        assert!(w.m.bit("dma_failed"));
    }

    #[test]
    fn copies_between_host_and_ram() {
        copies::<512>(1);
        copies::<64>(2);
        copies::<128>(4);
        copies::<256>(5);
    }

    #[test]
    fn page_lists_fill_the_mtt() {
        lists::<512>(3);
        lists::<64>(6);
    }

    fn lists<const W: usize>(seed: u64) {
        let mut w = World::new::<W>(seed);
        let load = |w: &mut World, list: u64, first: u64, shift: u64, count: u64| {
            w.m.set("list_host", list);
            w.m.set("list_first", first);
            w.m.set("list_shift", shift);
            w.m.set("list_entries", count);
            w.m.set("list_go", 1);
            w.m.eval();
            w.until_idle("list_busy")
        };
        for (count, shift) in [(1, 12), (511, 12), (512, 16), (2000, 21)] {
            let list = 0x77_0000_0000 + 8 * count;
            let pages: Vec<u64> = (0..count).map(|_| w.rng.random_range(0u64..1 << (48 - shift)) << shift).collect();
            for (i, page) in pages.iter().enumerate() {
                w.host.put(list + 8 * i as u64, &page.to_le_bytes());
            }
            w.mtt.clear();
            let cycles = load(&mut w, list, 1000, shift, count);
            assert!(cycles < 1000 * count.div_ceil(256), "{cycles} cycles for {count} entries");
            assert!(!w.m.bit("list_failed") && !w.m.bit("list_bad"));
            assert_eq!(w.mtt.len() as u64, count);
            (0..count).for_each(|i| assert_eq!(w.mtt[&(1000 + i)], pages[i as usize] >> 12));
        }
        // One address within a page; one that is too high.
        for bad in [0x1800u64, 1 << 48] {
            w.host.put(0x100, &bad.to_le_bytes());
            load(&mut w, 0x100, 0, 12, 1);
            assert!(w.m.bit("list_bad") && !w.m.bit("list_failed"));
        }
        w.host.fail = true;
        load(&mut w, 0x100, 0, 12, 3);
        assert!(w.m.bit("list_failed"));
    }
}
