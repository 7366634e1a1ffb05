//! Byte-addressed ring buffer: the receive and the transmit buffer. It aligns, so that nobody else has to.
//!
//! Rows of one beat stand alternately in two banks with byte enables. A beat at any byte address touches row r and row
//! r+1, which are always in different banks: one access each, and a rotation in front (write) or behind (read).
//!
//! ```text
//! cycle            0     1     2     3     4
//! we, waddr, ..    A                              write: rotated into registers, in the banks at the end of cycle 1
//! re, raddr                    A                  a read two cycles after the write sees it
//! bank output                        A  (then its register)
//! rdata, rvalid                                A  in cycle 5: READ_LATENCY cycles after `re`
//! ```
//! A read one cycle after a write is undefined in every row (W/8 bytes) that the write touches, as RAMs are that are read while
//! they are written: what is read has been written before, and nothing else is written beside it meanwhile.
//!
//! One write and one read in every cycle; no handshakes, so nothing here can wait.

use crate::msg::BufAddr;
use hdl::prelude::*;

/// Cycles from `re` to `rdata` and `rvalid`.
pub const READ_LATENCY: usize = 3;
/// A read this many cycles after a write, or later, sees the written bytes.
pub const WRITE_LATENCY: usize = 2;

/// `x` rotated left by `n` bytes (towards higher byte numbers), `n` modulo W/8.
#[hdl_fn]
pub fn rotate_left<const W: usize>(x: Bits<W>, n: Bits<6>) -> Bits<W> {
    let mut y = x;
    for k in 0..6 {
        if (8 << k) < W {
            if n.get_bit(k) {
                y = (y << (8u64 << k)) | (y >> (W as u64 - (8 << k)));
            }
        }
    }
    y
}

/// `x` rotated right by `n` bytes, `n` modulo W/8.
#[hdl_fn]
pub fn rotate_right<const W: usize>(x: Bits<W>, n: Bits<6>) -> Bits<W> {
    let mut y = x;
    for k in 0..6 {
        if (8 << k) < W {
            if n.get_bit(k) {
                y = (y >> (8u64 << k)) | (y << (W as u64 - (8 << k)));
            }
        }
    }
    y
}

/// Byte-addressed buffer of a power of two of bytes; addresses wrap at its size. `we` writes `wbytes` (1 to W/8) bytes
/// of `wdata`, byte 0 at `waddr`. `re` reads the W/8 bytes from `raddr` on.
#[derive(Clone, Debug, LogicBlock)]
pub struct ByteRam<const W: usize> {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    pub we: Signal<In, Bit>,
    pub waddr: Signal<In, BufAddr>,
    pub wdata: Signal<In, Bits<W>>,
    pub wbytes: Signal<In, Bits<7>>,
    pub re: Signal<In, Bit>,
    pub raddr: Signal<In, BufAddr>,
    /// The bytes, `READ_LATENCY` cycles after `re`; stays until the next read arrives.
    pub rdata: Signal<Out, Bits<W>>,
    /// `rdata` came in this cycle.
    pub rvalid: Signal<Out, Bit>,
    /// Half of the rows each, with byte enables.
    even: RamBe<W, 20, 64>,
    odd: RamBe<W, 20, 64>,
    writing: Reg<Bit>,
    write_row: DFF<Bits<20>>,
    write_data: DFF<Bits<W>>,
    write_offset: DFF<Bits<6>>,
    write_bytes: DFF<Bits<7>>,
    reading: [Reg<Bit>; READ_LATENCY],
    offset: [DFF<Bits<6>>; READ_LATENCY - 1],
    from_odd: [DFF<Bit>; READ_LATENCY - 2],
    /// The bytes that come from the odd bank.
    odd_bytes: DFF<Bits<W>>,
    out: DFF<Bits<W>>,
}

impl<const W: usize> ByteRam<W> {
    /// A buffer of `bytes` bytes; `style` as for [`Ram::new`].
    pub fn new(bytes: usize, style: &'static str) -> Self {
        assert!([64, 128, 256, 512].contains(&W), "a datapath of {W} bits");
        assert!(bytes.is_power_of_two() && bytes >= W / 2 && bytes <= 1 << 20, "a buffer of {bytes} bytes");
        let rows = bytes / (W / 8) / 2;
        let bank = || RamBe::default().rows(rows).style(style).lanes_of(8).registered();
        ByteRam {
            clock: Default::default(),
            rst: Default::default(),
            we: Default::default(),
            waddr: Default::default(),
            wdata: Default::default(),
            wbytes: Default::default(),
            re: Default::default(),
            raddr: Default::default(),
            rdata: Default::default(),
            rvalid: Default::default(),
            even: bank(),
            odd: bank(),
            writing: Default::default(),
            write_row: Default::default(),
            write_data: Default::default(),
            write_offset: Default::default(),
            write_bytes: Default::default(),
            reading: Default::default(),
            offset: Default::default(),
            from_odd: Default::default(),
            odd_bytes: Default::default(),
            out: Default::default(),
        }
    }
}

/// Byte offset in a row of W bits.
#[hdl_fn]
fn offset_in<const W: usize>(address: BufAddr) -> Bits<6> {
    address.get_bits::<6>(0) & (W as u64 / 8 - 1)
}

/// Row of a byte address.
#[hdl_fn]
fn row_of<const W: usize>(address: BufAddr) -> Bits<20> {
    address >> (W / 8).trailing_zeros() as u64
}

impl<const W: usize> Logic for ByteRam<W> {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, writing, reading);
        dff_setup!(self, clock, write_row, write_data, write_offset, write_bytes, offset, from_odd, odd_bytes, out);
        clock!(self, clock, even, odd);

        // Write: rotate; then split the lanes between row r and row r+1.
        self.writing.d.next = self.we.val();
        if self.we.val() {
            let offset = offset_in::<W>(self.waddr.val());
            self.write_row.d.next = row_of::<W>(self.waddr.val());
            self.write_data.d.next = rotate_left(self.wdata.val(), offset);
            self.write_offset.d.next = offset;
            self.write_bytes.d.next = self.wbytes.val();
        }
        let row = self.write_row.q.val();
        let mut lanes: Bits<128> = 0.into();
        if self.writing.q.val() {
            let all: Bits<128> = !Bits::<128>::default();
            let offset = self.write_offset.q.val();
            let end = offset.cast::<8>() + self.write_bytes.q.val().cast::<8>();
            lanes = (all << offset) & !(all << end);
        }
        let here = lanes.get_bits::<64>(0);
        let beyond = lanes.get_bits::<64>(W / 8);
        self.even.we.next = if row.get_bit(0) { beyond } else { here };
        self.odd.we.next = if row.get_bit(0) { here } else { beyond };
        self.even.waddr.next = (row + 1) >> 1;
        self.even.wdata.next = self.write_data.q.val();
        self.odd.waddr.next = row >> 1;
        self.odd.wdata.next = self.write_data.q.val();

        // Read: both banks, then each lane from its bank, then rotate.
        self.reading[0].d.next = self.re.val();
        for i in 1..READ_LATENCY {
            self.reading[i].d.next = self.reading[i - 1].q.val();
        }
        if self.re.val() {
            self.offset[0].d.next = offset_in::<W>(self.raddr.val());
        }
        for i in 1..READ_LATENCY - 1 {
            if self.reading[i - 1].q.val() {
                self.offset[i].d.next = self.offset[i - 1].q.val();
            }
        }
        let row = row_of::<W>(self.raddr.val());
        self.even.re.next = self.re.val();
        self.even.raddr.next = (row + 1) >> 1;
        self.odd.re.next = self.re.val();
        self.odd.raddr.next = row >> 1;
        if self.re.val() {
            self.from_odd[0].d.next = row_of::<W>(self.raddr.val()).get_bit(0);
        }
        for i in 1..READ_LATENCY - 2 {
            if self.reading[i - 1].q.val() {
                self.from_odd[i].d.next = self.from_odd[i - 1].q.val();
            }
        }
        if self.reading[READ_LATENCY - 3].q.val() {
            // The lanes from the offset on come from the first row, those below from the next.
            let ones: Bits<W> = !Bits::<W>::default();
            let first = ones << (self.offset[READ_LATENCY - 3].q.val().cast::<9>() << 3);
            self.odd_bytes.d.next = if self.from_odd[READ_LATENCY - 3].q.val() { first } else { !first };
        }
        if self.reading[READ_LATENCY - 2].q.val() {
            let odd = self.odd_bytes.q.val();
            let row = (self.odd.rdata.val() & odd) | (self.even.rdata.val() & !odd);
            self.out.d.next = rotate_right(row, self.offset[READ_LATENCY - 2].q.val());
        }
        self.rdata.next = self.out.q.val();
        self.rvalid.next = self.reading[READ_LATENCY - 1].q.val();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, RngExt};

    use std::collections::VecDeque;
    use verilate::{Model, Options};

    fn any_address<const W: usize>() {
        let size = 1024;
        let options = Options { name: Some(format!("ByteRam{W}")), ..Options::default() };
        let mut m = Model::of(|| ByteRam::<W>::new(size, "block"), options).unwrap();
        m.reset();
        let mut rng = verilate::rng(W as u64);
        let mut memory = vec![0u8; size];
        // Reads under way, by the cycle in which they arrive.
        let mut reads: VecDeque<(u64, usize, Vec<u8>)> = VecDeque::new();
        // By the writes of the last two cycles; a read may not touch bytes of this one, and rows of the last one.
        let mut written = [(0, 0); 2];
        for cycle in 0..20_000u64 {
            assert_eq!(m.bit("rvalid"), reads.front().is_some_and(|r| r.0 == cycle), "cycle {cycle}");
            if m.bit("rvalid") {
                let (_, at, want) = reads.pop_front().unwrap();
                assert_eq!(m.bytes("rdata"), want, "cycle {cycle}, address {at}");
            }
            let write = rng.random_bool(0.7);
            m.set("we", write as u64);
            let (at, bytes) = (rng.random_range(0..size), rng.random_range(1..=W / 8));
            let mut data = vec![0; W / 8];
            rng.fill_bytes(&mut data);
            m.set("waddr", (at + size * rng.random_range(0..4)) as u64);
            m.set("wbytes", bytes as u64);
            m.set_bytes("wdata", &data);
            // Reads see the writes of all earlier cycles.
            let from = if rng.random_bool(0.3) { written[1].0 } else { rng.random_range(0..size) };
            let read = rng.random_bool(0.7);
            let overlap = |a: usize, n: usize| (0..W / 8).any(|i| ((from + i + size - a) % size) < n);
            let meets = |a: usize, n: usize| {
                (0..n).any(|i| {
                    let row = |byte: usize| byte % size / (W / 8);
                    row(a + i) == row(from) || row(a + i) == row(from + W / 8 - 1)
                })
            };
            let read = read && !(write && overlap(at, bytes)) && !meets(written[0].0, written[0].1);
            m.set("re", read as u64);
            m.set("raddr", from as u64);
            if read {
                let bytes = (0..W / 8).map(|i| memory[(from + i) % size]).collect();
                reads.push_back((cycle + READ_LATENCY as u64, from, bytes));
            }
            written = [if write { (at, bytes) } else { (0, 0) }, written[0]];
            if write {
                (0..bytes).for_each(|i| memory[(at + i) % size] = data[i]);
            }
            m.tick();
        }
    }

    #[test]
    fn any_bytes_at_any_address_at_64_bits() {
        any_address::<64>();
    }
    #[test]
    fn any_bytes_at_any_address_at_128_bits() {
        any_address::<128>();
    }
    #[test]
    fn any_bytes_at_any_address_at_256_bits() {
        any_address::<256>();
    }
    #[test]
    fn any_bytes_at_any_address_at_512_bits() {
        any_address::<512>();
    }
}
