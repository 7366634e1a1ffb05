//! The soft core's DMA: copies up to 4 KiB between host memory and its RAM, and loads page lists into the MTT.
//! For the firmware, through [`super::mmio`].
//!
//! ```text
//! from the host   Ask (one DmaRead) | Receive .. all bytes in the buffer | Drain: 4 bytes a cycle into the RAM
//! page list       the same, 512 entries at a time, and                   | Drain: 1 entry a cycle into the MTT
//! to the host     Fetch: 8 words of the RAM | Send: one inline write of up to 32 bytes | ..
//! ```
//!
//! Data may come back in any order, so it goes to a byte-addressed buffer first. Copy and list are served one after the
//! other, chunk by chunk. A list of 262,144 entries takes 512 chunks of about a thousand cycles.
//!
//! It cannot deadlock: `data` is always taken, as its room is the whole buffer; `write` ends in posted writes.

use crate::msg::{DmaData, DmaRead, DmaWrite};
use crate::stream::{ByteRam, Source};
use hdl::prelude::*;

/// Bytes of the buffer, and most bytes of one transfer.
pub const BUFFER: usize = 4096;

#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
enum State {
    Idle,
    Ask,
    Receive,
    Drain,
    Fetch,
    Fetched,
    Send,
}

/// The mailbox on a bus of `W` bits. See the module.
#[derive(LogicBlock)]
pub struct Mailbox<const W: usize> {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,

    /// Starts a copy of `dma_bytes` (a multiple of 4, at most [`BUFFER`]); all `dma_` inputs stay while `dma_busy`.
    pub dma_go: Signal<In, Bit>,
    pub dma_host: Signal<In, Bits<64>>,
    pub dma_local: Signal<In, Bits<16>>,
    pub dma_bytes: Signal<In, Bits<13>>,
    pub dma_to_host: Signal<In, Bit>,
    pub dma_busy: Signal<Out, Bit>,
    /// The last copy met a bus error.
    pub dma_failed: Signal<Out, Bit>,

    /// Starts a load of `list_entries` page addresses from `list_host` into MTT entries from `list_first` on.
    pub list_go: Signal<In, Bit>,
    pub list_host: Signal<In, Bits<64>>,
    pub list_first: Signal<In, Bits<24>>,
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

    /// The soft core's RAM, by words: one cycle from `ram_re` to `ram_rdata`. The core waits meanwhile.
    pub ram_re: Signal<Out, Bit>,
    pub ram_we: Signal<Out, Bit>,
    pub ram_addr: Signal<Out, Bits<14>>,
    pub ram_wdata: Signal<Out, Bits<32>>,
    pub ram_rdata: Signal<In, Bits<32>>,

    /// The MTT: an entry in this cycle.
    pub mtt_we: Signal<Out, Bit>,
    pub mtt_addr: Signal<Out, Bits<24>>,
    pub mtt_frame: Signal<Out, Bits<36>>,

    buffer: ByteRam<W>,
    state: Reg<State>,
    /// The chunk belongs to the list.
    is_list: Reg<Bit>,
    dma_busy_q: Reg<Bit>,
    dma_failed_q: Reg<Bit>,
    list_busy_q: Reg<Bit>,
    list_failed_q: Reg<Bit>,
    list_bad_q: Reg<Bit>,
    /// What is left of the list.
    cursor: DFF<Bits<64>>,
    entry: DFF<Bits<24>>,
    left: DFF<Bits<24>>,
    /// The chunk: bytes, bytes received, bytes read out of the buffer, and those that came out.
    want: Reg<Bits<13>>,
    got: Reg<Bits<13>>,
    asked: Reg<Bits<13>>,
    out: Reg<Bits<13>>,
    /// Words of an inline write.
    words: Reg<Bits<4>>,
    shift: DFF<Bits<256>>,
    low: DFF<Bits<36>>,
    mask: DFF<Bits<64>>,
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
            ram_we: Default::default(),
            ram_addr: Default::default(),
            ram_wdata: Default::default(),
            ram_rdata: Default::default(),
            mtt_we: Default::default(),
            mtt_addr: Default::default(),
            mtt_frame: Default::default(),
            buffer: ByteRam::new(BUFFER, ""),
            state: Default::default(),
            is_list: Default::default(),
            dma_busy_q: Default::default(),
            dma_failed_q: Default::default(),
            list_busy_q: Default::default(),
            list_failed_q: Default::default(),
            list_bad_q: Default::default(),
            cursor: Default::default(),
            entry: Default::default(),
            left: Default::default(),
            want: Default::default(),
            got: Default::default(),
            asked: Default::default(),
            out: Default::default(),
            words: Default::default(),
            shift: Default::default(),
            low: Default::default(),
            mask: Default::default(),
        }
    }
}

impl<const W: usize> Logic for Mailbox<W> {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, state, is_list, dma_busy_q, dma_failed_q, list_busy_q, list_failed_q, list_bad_q);
        regs!(self, clock, rst, want, got, asked, out, words);
        dff_setup!(self, clock, cursor, entry, left, shift, low, mask);
        clock_reset!(self, clock, rst, buffer);
        let state = self.state.q.val();
        let is_list = self.is_list.q.val();
        let local = self.dma_local.val();

        if self.dma_go.val() {
            self.dma_busy_q.d.next = true;
            self.dma_failed_q.d.next = false;
        }
        if self.list_go.val() {
            self.list_busy_q.d.next = self.list_entries.val() != 0;
            self.list_failed_q.d.next = false;
            self.list_bad_q.d.next = false;
            self.cursor.d.next = self.list_host.val();
            self.entry.d.next = self.list_first.val();
            self.left.d.next = self.list_entries.val();
            // Bits of an address that must be 0: below the page, and from 2^48 on.
            let one: Bits<64> = 1.into();
            self.mask.d.next = ((one << self.list_shift.val()) - 1) | 0xffff_0000_0000_0000;
        }

        // What comes back goes where it belongs.
        let data = self.data.val();
        self.buffer.we.next = self.data_valid.val();
        self.buffer.waddr.next = data.dest;
        self.buffer.wdata.next = self.beat.val();
        self.buffer.wbytes.next = data.bytes;
        if self.data_valid.val() {
            self.got.d.next = self.got.q.val() + data.bytes.cast::<13>();
            if data.error {
                if is_list {
                    self.list_failed_q.d.next = true;
                } else {
                    self.dma_failed_q.d.next = true;
                }
            }
        }

        self.buffer.re.next = false;
        self.buffer.raddr.next = self.asked.q.val().cast::<20>();
        let wide = self.buffer.rdata.val().get_bits::<64>(0);
        let came = self.buffer.rvalid.val() && state == State::Drain;
        self.ram_re.next = false;
        self.ram_we.next = came && !is_list;
        let place = if state == State::Drain { self.out.q.val() } else { self.asked.q.val() };
        self.ram_addr.next = (local + place.cast::<16>()).get_bits::<14>(2);
        self.ram_wdata.next = wide.get_bits::<32>(0);
        let wrong = (wide & self.mask.q.val()).any();
        self.mtt_we.next = came && is_list && !wrong;
        self.mtt_addr.next = self.entry.q.val();
        self.mtt_frame.next = wide.get_bits::<36>(12);
        let step: Bits<13> = if is_list { 8.into() } else { 4.into() };

        match state {
            State::Idle => {
                self.got.d.next = 0.into();
                self.asked.d.next = 0.into();
                self.out.d.next = 0.into();
                if self.dma_busy_q.q.val() {
                    self.is_list.d.next = false;
                    self.want.d.next = self.dma_bytes.val();
                    if self.dma_bytes.val() == 0 {
                        self.dma_busy_q.d.next = false;
                    } else if self.dma_to_host.val() {
                        self.words.d.next = 0.into();
                        self.state.d.next = State::Fetch;
                    } else {
                        self.state.d.next = State::Ask;
                    }
                } else if self.list_busy_q.q.val() {
                    self.is_list.d.next = true;
                    let all = self.left.q.val() >= elab!((BUFFER / 8) as u64);
                    self.want.d.next = if all {
                        bits::<13>(BUFFER as u64)
                    } else {
                        cat!(self.left.q.val().get_bits::<10>(0), bits::<3>(0))
                    };
                    self.state.d.next = State::Ask;
                }
            }
            State::Ask => {
                if self.read.ready.val() {
                    self.state.d.next = State::Receive;
                }
            }
            State::Receive => {
                if self.got.q.val() == self.want.q.val() {
                    self.state.d.next = State::Drain;
                }
            }
            State::Drain => {
                if self.asked.q.val() != self.want.q.val() {
                    self.buffer.re.next = true;
                    self.asked.d.next = self.asked.q.val() + step;
                }
                if came {
                    self.out.d.next = self.out.q.val() + step;
                    if is_list {
                        self.entry.d.next = self.entry.q.val() + 1;
                        if wrong && !self.list_failed_q.q.val() {
                            self.list_bad_q.d.next = true;
                        }
                    }
                }
                if self.out.q.val() == self.want.q.val() {
                    self.state.d.next = State::Idle;
                    if is_list {
                        let left = self.left.q.val() - self.want.q.val().get_bits::<10>(3).cast::<24>();
                        self.left.d.next = left;
                        self.cursor.d.next = self.cursor.q.val() + self.want.q.val().cast::<64>();
                        self.list_busy_q.d.next = left != 0;
                    } else {
                        self.dma_busy_q.d.next = false;
                    }
                }
            }
            State::Fetch => {
                self.ram_re.next = true;
                self.state.d.next = State::Fetched;
            }
            State::Fetched => {
                // The newest word is the highest; the others move down by and by.
                self.shift.d.next = cat!(self.ram_rdata.val(), self.shift.q.val().get_bits::<224>(32));
                self.asked.d.next = self.asked.q.val() + 4;
                self.words.d.next = self.words.q.val() + 1;
                let last = self.asked.q.val() + 4 == self.want.q.val();
                self.state.d.next = if last || self.words.q.val() == 7 { State::Send } else { State::Fetch };
            }
            State::Send => {
                if self.write.ready.val() {
                    self.out.d.next = self.asked.q.val();
                    self.words.d.next = 0.into();
                    if self.asked.q.val() == self.want.q.val() {
                        self.dma_busy_q.d.next = false;
                        self.state.d.next = State::Idle;
                    } else {
                        self.state.d.next = State::Fetch;
                    }
                }
            }
        }

        self.read.valid.next = state == State::Ask;
        self.read.data.next = DmaRead {
            iova: if is_list { self.cursor.q.val() } else { self.dma_host.val() },
            len: self.want.q.val().cast::<14>(),
            tag: 0.into(),
            dest: 0.into(),
        };
        self.write.valid.next = state == State::Send;
        // Fewer than 8 words stand in the upper part.
        let words = self.words.q.val();
        let missing = bits::<4>(8) - words;
        self.write.data.next = DmaWrite {
            iova: self.dma_host.val() + self.out.q.val().cast::<64>(),
            len: (words.cast::<14>()) << 2u64,
            is_inline: true,
            buf: 0.into(),
            data: self.shift.q.val() >> cat!(9; missing, bits::<5>(0)),
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
        mtt: HashMap<u64, u64>,
        rng: ChaCha8Rng,
    }

    impl World {
        fn new<const W: usize>(seed: u64) -> Self {
            let mut m = Model::of(Mailbox::<W>::default, Options::default()).unwrap();
            m.reset();
            let host = HostMemory::new(&m, seed);
            Self { m, host, ram: vec![0; 1 << 14], mtt: HashMap::new(), rng: verilate::rng(seed) }
        }

        fn cycle(&mut self) {
            let word = self.m.bit("ram_re").then(|| self.ram[self.m.get("ram_addr") as usize]);
            if self.m.bit("ram_we") {
                self.ram[self.m.get("ram_addr") as usize] = self.m.get("ram_wdata") as u32;
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
        let mut w = World::new::<512>(3);
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
            assert!(cycles < 1500 * count.div_ceil(512), "{cycles} cycles for {count} entries");
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
