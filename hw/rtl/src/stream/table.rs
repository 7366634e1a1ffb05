//! Tables: RAMs whose number of rows is chosen at construction, for every block that keeps a row per QP, queue or key.
//!
//! ```text
//! cycle     0       1       2
//! re,raddr  A       B
//! RAM               A       B      (output of the array)
//! rdata                     A  ..  (output register, stays until the next read arrives)
//! ```
//! No handshakes, so nothing here can wait.

use hdl::prelude::*;

/// RAM of rows of `T`: `rdata` comes two cycles after `re` and stays until the next read arrives. See [`Ram`]; address bits above
/// the rows are ignored. A row that is read in the cycle of its write gives undefined data (random in simulation), from the next
/// cycle on the new data: it is for an owner that both writes and reads, or whose readers use such data for nothing.
pub type Table<T> = Ram<T, 24>;

/// Style of a [`Table`] of few bits a row: LUTs, up to as many rows as a handful of them hold.
pub fn narrow(rows: usize) -> &'static str {
    if rows <= 64 { "distributed" } else { "block" }
}

/// A [`Table`] with a second read port: two copies that are written together.
#[derive(Clone, Debug, LogicBlock)]
pub struct Table2<T: Synth> {
    pub clock: Signal<In, Clock>,
    pub we: Signal<In, Bit>,
    pub waddr: Signal<In, Bits<24>>,
    pub wdata: Signal<In, T>,
    pub re: Signal<In, Bit>,
    pub raddr: Signal<In, Bits<24>>,
    pub rdata: Signal<Out, T>,
    pub re2: Signal<In, Bit>,
    pub raddr2: Signal<In, Bits<24>>,
    pub rdata2: Signal<Out, T>,
    first: Table<T>,
    second: Table<T>,
}

impl<T: Synth> Table2<T> {
    /// As [`Table::new`](Ram::new).
    pub fn new(rows: usize, style: &'static str) -> Self {
        Table2 {
            clock: Default::default(),
            we: Default::default(),
            waddr: Default::default(),
            wdata: Default::default(),
            re: Default::default(),
            raddr: Default::default(),
            rdata: Default::default(),
            re2: Default::default(),
            raddr2: Default::default(),
            rdata2: Default::default(),
            first: Table::new(rows, style),
            second: Table::new(rows, style),
        }
    }
}

impl<T: Synth> Logic for Table2<T> {
    #[kernel]
    fn update(&mut self) {
        clock!(self, clock, first, second);
        self.first.we.next = self.we.val();
        self.first.waddr.next = self.waddr.val();
        self.first.wdata.next = self.wdata.val();
        self.first.re.next = self.re.val();
        self.first.raddr.next = self.raddr.val();
        self.rdata.next = self.first.rdata.val();
        self.second.we.next = self.we.val();
        self.second.waddr.next = self.waddr.val();
        self.second.wdata.next = self.wdata.val();
        self.second.re.next = self.re2.val();
        self.second.raddr.next = self.raddr2.val();
        self.rdata2.next = self.second.rdata.val();
    }
}

/// A [`Table`] whose writer does not know its reader: a row that is read in the cycle of its write gives the new data, as
/// one that is read later does.
///
/// ```text
/// cycle        0       1       2
/// re,raddr     A
/// we,wdata     A'              A''     (the last one comes too late)
/// RAM                  A?              (undefined; `data` has A')
/// rdata                        A'
/// ```
/// `rdata` is the RAM's output register or that data: one multiplexer behind registers.
#[derive(Clone, Debug, Default, LogicBlock)]
pub struct FreshTable<T: Synth> {
    pub clock: Signal<In, Clock>,
    pub we: Signal<In, Bit>,
    pub waddr: Signal<In, Bits<24>>,
    pub wdata: Signal<In, T>,
    pub re: Signal<In, Bit>,
    pub raddr: Signal<In, Bits<24>>,
    pub rdata: Signal<Out, T>,
    table: Table<T>,
    read: DFF<Bit>,
    same: DFF<Bit>,
    data: DFF<T>,
    given: DFF<Bit>,
    out: DFF<T>,
    _rows: Hidden<usize>,
}

impl<T: Synth> FreshTable<T> {
    /// As [`Table::new`](Ram::new).
    pub fn new(rows: usize, style: &'static str) -> Self {
        FreshTable { table: Table::new(rows, style), _rows: Hidden(rows), ..Default::default() }
    }
}

impl<T: Synth> Logic for FreshTable<T> {
    #[kernel]
    fn update(&mut self) {
        dff_setup!(self, clock, read, same, data, given, out);
        clock!(self, clock, table);
        let re = self.re.val();
        let mask: Bits<24> = elab!(bits::<24>(self._rows.0.next_power_of_two() as u64 - 1));
        self.table.we.next = self.we.val();
        self.table.waddr.next = self.waddr.val();
        self.table.wdata.next = self.wdata.val();
        self.table.re.next = re;
        self.table.raddr.next = self.raddr.val();
        self.read.d.next = re;
        if re {
            self.same.d.next = self.we.val() && !((self.waddr.val() ^ self.raddr.val()) & mask).any();
        }
        if self.we.val() {
            self.data.d.next = self.wdata.val();
        }
        if self.read.q.val() {
            self.given.d.next = self.same.q.val();
            if self.same.q.val() {
                self.out.d.next = self.data.q.val();
            }
        }
        self.rdata.next = if self.given.q.val() { self.out.q.val() } else { self.table.rdata.val() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::RngExt;

    use verilate::{Model, Options};

    /// Few rows, so that reads and writes meet; upper address bits differ.
    #[test]
    fn a_fresh_row_is_new_from_the_cycle_of_its_write_on() {
        let rows = 5;
        let mut m = Model::of(|| FreshTable::<Bits<40>>::new(rows, "block"), Options::default()).unwrap();
        let mut rng = verilate::rng(2);
        let mut model = vec![0u64; rows];
        let (mut pipe, mut now, mut met) = ([None; 2], 0u64, 0);
        for _ in 0..5000 {
            let write = rng.random_bool(0.6).then(|| (rng.random_range(0..rows), rng.random::<u64>() >> 24));
            let read = rng.random_bool(0.6).then(|| rng.random_range(0..rows));
            m.set("we", write.is_some() as u64);
            if let Some((row, value)) = write {
                m.set("waddr", row as u64 | 1 << 23);
                m.set("wdata", value);
                model[row] = value;
                met += (read == Some(row)) as u64;
            }
            m.set("re", read.is_some() as u64);
            m.set("raddr", read.unwrap_or(0) as u64);
            pipe = [read.map(|row| model[row]), pipe[0]];
            now = pipe[1].unwrap_or(now);
            m.tick();
            assert_eq!(m.get("rdata"), now);
        }
        assert!(met > 200, "{met}");
    }

    /// The text that synthesis sees: a table of more rows than a RAM has.
    #[test]
    fn tables_of_several_rams_hold_their_rows() {
        for style in ["block", "ultra"] {
            let rows = 5 * 2048;
            let table = || Table::<Bits<40>>::new(rows, style).as_hardware();
            let waive = vec!["WIDTHEXPAND", "WIDTHTRUNC"]; // numbers of banks
            let mut m = Model::of(table, Options { name: Some(style.into()), waive, ..Options::default() }).unwrap();
            let mut rng = verilate::rng(3);
            let mut model = std::collections::HashMap::new();
            let (mut pipe, mut now) = ([None; 2], None);
            for _ in 0..20_000 {
                // Few rows of each bank, first and last among them.
                let mut row = || (rng.random_range(0..5) * 2048 + [0, 1, 2047][rng.random_range(0..3)]) as u64;
                let (write, read) = (row(), row());
                let value = rng.random::<u64>() >> 24;
                let (we, re) = (rng.random_bool(0.5) as u64, rng.random_bool(0.7) && write != read);
                m.set("we", we);
                m.set("waddr", write);
                m.set("wdata", value);
                m.set("re", re as u64);
                m.set("raddr", read);
                pipe = [re.then(|| model.get(&read).copied()), pipe[0]];
                if let Some(row) = pipe[1] {
                    now = row;
                }
                if we == 1 {
                    model.insert(write, value);
                }
                m.tick();
                if let Some(now) = now {
                    assert_eq!(m.get("rdata"), now);
                }
            }
            assert_eq!(model.len(), 15);
        }
    }

    /// What a row gives in the cycle of its write is neither old nor new, and the same in every run.
    #[test]
    fn a_row_that_is_read_in_the_cycle_of_its_write_is_random() {
        let run = || {
            let mut m = Model::of(|| Table::<Bits<40>>::new(4, "block"), Options::default()).unwrap();
            let (mut got, mut old) = (vec![], 0);
            for value in 1..=50u64 {
                for (we, row) in [(1, 2), (0, 2)] {
                    m.set("we", we);
                    m.set("waddr", 2);
                    m.set("wdata", value);
                    m.set("re", 1);
                    m.set("raddr", row);
                    m.tick();
                }
                let random = m.get("rdata");
                assert!(random != old && random != value, "write of {value}");
                got.push(random);
                m.set("re", 0);
                m.tick();
                assert_eq!(m.get("rdata"), value, "a read in the next cycle gives the new row");
                old = value;
            }
            got.dedup();
            assert_eq!(got.len(), 50);
            got
        };
        assert_eq!(run(), run());
    }

    #[test]
    fn rows_come_two_cycles_later_and_stay() {
        let rows = 100;
        let mut m = Model::of(|| Table2::<Bits<70>>::new(rows, "block"), Options::default()).unwrap();
        let mut rng = verilate::rng(1);
        let mut model = vec![0u64; rows];
        let (mut pipe, mut now) = ([[None; 2]; 2], [0u64; 2]);
        for _ in 0..5000 {
            let write = rng.random_bool(0.5).then(|| (rng.random_range(0..rows), rng.random::<u64>()));
            m.set("we", write.is_some() as u64);
            if let Some((row, value)) = write {
                m.set("waddr", row as u64 | 1 << 23); // upper bits are ignored
                m.set("wdata", value);
            }
            for (k, (re, raddr)) in [("re", "raddr"), ("re2", "raddr2")].into_iter().enumerate() {
                let row = rng.random_range(0..rows);
                let read = rng.random_bool(0.5) && write.is_none_or(|w| w.0 != row);
                m.set(re, read as u64);
                m.set(raddr, row as u64);
                pipe[k] = [read.then(|| model[row]), pipe[k][0]];
                now[k] = pipe[k][1].unwrap_or(now[k]);
            }
            if let Some((row, value)) = write {
                model[row] = value;
            }
            m.tick();
            assert_eq!(now, ["rdata", "rdata2"].map(|p| u64::from_le_bytes(m.bytes(p)[..8].try_into().unwrap())));
        }
    }
}
