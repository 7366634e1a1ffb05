//! The records of messages in flight, 128 per QP: the requester writes them, the completer reads the oldest whenever it likes, and
//! the requester reads one in a cycle in which the completer does not, to see whether a WQE is still what it was.
//!
//! ```text
//! cycle       0      1      2      3      4
//! re          A
//! again_re    B      B
//! again_ready 0      1
//! rdata                     A      B
//! ```
//! The completer leaves every third cycle free at least, so the requester's turn comes.

use crate::{msg::Record, stream::Table};
use hdl::prelude::*;

/// See the module. Addresses are QP x 128 + record.
#[derive(LogicBlock)]
pub struct Records {
    pub clock: Signal<In, Clock>,
    pub we: Signal<In, Bit>,
    pub waddr: Signal<In, Bits<24>>,
    pub wdata: Signal<In, Record>,
    /// Reads for the completer: on `rdata` two cycles later.
    pub re: Signal<In, Bit>,
    pub raddr: Signal<In, Bits<24>>,
    /// Reads for the requester: two cycles after `again_ready`, for one cycle.
    pub again_re: Signal<In, Bit>,
    pub again_addr: Signal<In, Bits<24>>,
    pub again_ready: Signal<Out, Bit>,
    pub rdata: Signal<Out, Record>,
    table: Table<Record>,
}

impl Records {
    /// Records of `qps` QPs.
    pub fn new(qps: usize) -> Self {
        Records {
            clock: Default::default(),
            we: Default::default(),
            waddr: Default::default(),
            wdata: Default::default(),
            re: Default::default(),
            raddr: Default::default(),
            again_re: Default::default(),
            again_addr: Default::default(),
            again_ready: Default::default(),
            rdata: Default::default(),
            table: Table::new(qps * 128, "block"),
        }
    }
}

impl Logic for Records {
    #[kernel]
    fn update(&mut self) {
        clock!(self, clock, table);
        self.table.we.next = self.we.val();
        self.table.waddr.next = self.waddr.val();
        self.table.wdata.next = self.wdata.val();
        self.table.re.next = self.re.val() || self.again_re.val();
        self.table.raddr.next = if self.re.val() { self.raddr.val() } else { self.again_addr.val() };
        self.again_ready.next = !self.re.val();
        self.rdata.next = self.table.rdata.val();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::kit::bytes_of;
    use rand::RngExt;
    use verilate::{Model, Options};

    /// Both readers get what was written, the requester in the gaps that the completer leaves.
    #[test]
    fn two_readers_share_a_port() {
        const QPS: usize = 8;
        let mut m = Model::of(|| Records::new(QPS), Options::default()).unwrap();
        let mut rng = verilate::rng(1);
        let mut model = vec![0u64; QPS * 128];
        let (mut pipe, mut recalls) = ([None; 2], 0);
        let mut again = None;
        for _ in 0..verilate::scale(5000) {
            let write = rng.random_bool(0.3).then(|| (rng.random_range(0..model.len()), rng.random::<u64>() >> 32));
            // Nobody reads a record in the cycle of its write.
            let mut row = || Some(rng.random_range(0..model.len())).filter(|r| write.is_none_or(|w| w.0 != *r));
            let first = row();
            let other = row();
            let first = first.filter(|_| rng.random_bool(0.4));
            again = again.filter(|a| write.is_none_or(|w| w.0 != *a)).or(other);
            m.set("we", write.is_some() as u64);
            if let Some((row, length)) = write {
                m.set("waddr", row as u64);
                let record = Record { length: length.to_bits(), ..Default::default() };
                m.set_bytes("wdata", &bytes_of(record));
            }
            m.set("re", first.is_some() as u64);
            m.set("raddr", first.unwrap_or(0) as u64);
            m.set("again_re", again.is_some() as u64);
            m.set("again_addr", again.unwrap_or(0) as u64);
            m.eval();
            assert_eq!(m.bit("again_ready"), first.is_none());
            let granted = again.filter(|_| first.is_none());
            let read = first.or(granted).map(|r| model[r]);
            if granted.is_some() {
                again = None;
                recalls += 1;
            }
            if let Some((row, length)) = write {
                model[row] = length;
            }
            pipe = [read, pipe[0]];
            m.tick();
            if let Some(want) = pipe[1] {
                assert_eq!(m.get("rdata.length"), want);
            }
        }
        assert!(recalls > 100, "{recalls}");
    }
}
