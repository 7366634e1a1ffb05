//! A [`Table`] whose rows carry a parity bit: for context, where one wrong bit would read or write memory that nobody meant.
//!
//! ```text
//! cycle     0       1       2       3       4
//! re,raddr  A
//! rdata                     A
//! parity    .       re              bit             (its RAM works a cycle behind)
//! bad                               1, with bad_row
//!
//! we,wdata  A
//! parity            we, ^A
//! ```
//! `bad` comes in the cycle after the data: an owner that acts on memory holds its action back for that long; the others go
//! on, and whoever collects `bad` (`control::sentry`) stops the QP. No handshakes, so nothing here can wait.

use super::Table;
use hdl::prelude::*;

/// Exclusive or of all bits.
#[derive(Clone, Debug, Default, LogicBlock)]
struct Odd<T: Synth> {
    pub data: Signal<In, T>,
    pub odd: Signal<Out, Bit>,
}

impl<T: Synth> Logic for Odd<T> {
    fn update(&mut self) {
        unimplemented!("guarded tables are simulated in Verilator");
    }
    fn connect(&mut self) {
        self.odd.connect();
    }
    fn hdl(&self) -> Verilog {
        Verilog::Custom("always @* odd = ^data;\n".into())
    }
}

/// A row that is not what was written.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct BadRow {
    /// There is one, in this cycle.
    pub valid: Bit,
    /// Its index.
    pub row: Bits<24>,
}

/// See the module. The ports are those of [`Table`], and:
#[derive(Clone, Debug, Default, LogicBlock)]
pub struct GuardedTable<T: Synth> {
    pub clock: Signal<In, Clock>,
    pub we: Signal<In, Bit>,
    pub waddr: Signal<In, Bits<24>>,
    pub wdata: Signal<In, T>,
    pub re: Signal<In, Bit>,
    pub raddr: Signal<In, Bits<24>>,
    pub rdata: Signal<Out, T>,
    /// For tests: rows that are written now get the wrong parity.
    pub flip: Signal<In, Bit>,
    pub bad: Signal<Out, BadRow>,
    table: Table<T>,
    parities: Table<Bits<1>>,
    in_odd: Odd<T>,
    out_odd: Odd<T>,
    writes: DFF<Bit>,
    wrote: DFF<T>,
    at: DFF<Bits<24>>,
    flipped: DFF<Bit>,
    reads: [DFF<Bit>; 3],
    from: [DFF<Bits<24>>; 3],
    odd: DFF<Bit>,
}

impl<T: Synth> GuardedTable<T> {
    /// As [`Table::new`].
    pub fn new(rows: usize, style: &'static str) -> Self {
        GuardedTable { table: Table::new(rows, style), parities: Table::new(rows, "distributed"), ..Default::default() }
    }
}

impl<T: Synth> Logic for GuardedTable<T> {
    #[kernel]
    fn update(&mut self) {
        dff_setup!(self, clock, writes, wrote, at, flipped, reads, from, odd);
        clock!(self, clock, table, parities);
        let (we, re) = (self.we.val(), self.re.val());
        self.table.we.next = we;
        self.table.waddr.next = self.waddr.val();
        self.table.wdata.next = self.wdata.val();
        self.table.re.next = re;
        self.table.raddr.next = self.raddr.val();
        self.rdata.next = self.table.rdata.val();

        self.writes.d.next = we;
        if we {
            self.wrote.d.next = self.wdata.val();
            self.at.d.next = self.waddr.val();
            self.flipped.d.next = self.flip.val();
        }
        self.in_odd.data.next = self.wrote.q.val();
        self.parities.we.next = self.writes.q.val();
        self.parities.waddr.next = self.at.q.val();
        self.parities.wdata.next = if self.in_odd.odd.val() != self.flipped.q.val() { 1.into() } else { 0.into() };

        self.reads[0].d.next = re;
        if re {
            self.from[0].d.next = self.raddr.val();
        }
        for i in 1..3 {
            self.reads[i].d.next = self.reads[i - 1].q.val();
            if self.reads[i - 1].q.val() {
                self.from[i].d.next = self.from[i - 1].q.val();
            }
        }
        self.parities.re.next = self.reads[0].q.val();
        self.parities.raddr.next = self.from[0].q.val();
        self.out_odd.data.next = self.table.rdata.val();
        if self.reads[1].q.val() {
            self.odd.d.next = self.out_odd.odd.val();
        }
        let differs = self.odd.q.val() != self.parities.rdata.val().get_bit(0);
        self.bad.next = BadRow { valid: self.reads[2].q.val() && differs, row: self.from[2].q.val() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;
    use std::collections::BTreeSet;
    use verilate::{Model, Options};

    #[test]
    fn a_damaged_row_is_told_of_in_the_cycle_after_its_data_and_no_other() {
        let rows = 100;
        let mut m = Model::of(|| GuardedTable::<Bits<70>>::new(rows, "block"), Options::default()).unwrap();
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let mut model = vec![0u64; rows];
        let mut damaged = BTreeSet::new();
        let mut recent = [usize::MAX; 2];
        let (mut pipe, mut told): ([Option<usize>; 3], _) = ([None; 3], 0);
        for _ in 0..20_000 {
            let write =
                rng.random_bool(0.3).then(|| (rng.random_range(0..rows), rng.random::<u64>(), rng.random_bool(0.1)));
            let row = rng.random_range(0..rows);
            // A row is not read in the cycle of its write or the one after.
            let clash = recent.contains(&row) || write.is_some_and(|w| w.0 == row);
            let read = (rng.random_bool(0.6) && !clash).then_some(row);
            m.set("we", write.is_some() as u64);
            m.set("flip", write.is_some_and(|w| w.2) as u64);
            if let Some((row, value, flip)) = write {
                m.set("waddr", row as u64);
                m.set("wdata", value);
                model[row] = value;
                if flip {
                    damaged.insert(row)
                } else {
                    damaged.remove(&row)
                };
            }
            m.set("re", read.is_some() as u64);
            m.set("raddr", row as u64);
            let ahead = pipe;
            pipe = [read.filter(|r| damaged.contains(r)), ahead[0], ahead[1]];
            recent = [write.map_or(usize::MAX, |w| w.0), recent[0]];
            m.tick();
            assert_eq!(m.bit("bad.valid"), pipe[2].is_some());
            if let Some(row) = pipe[2] {
                assert_eq!(m.get("bad.row"), row as u64);
                told += 1;
            }
        }
        assert!(told > 500, "{told}");
    }
}
