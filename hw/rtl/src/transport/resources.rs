//! The READ resources of all QPs: what each READ asked for. For the responder, which writes them and searches them for a
//! repeated READ, and for the response engine, which reads them.
//!
//! ```text
//! cycle           0      1      2      3      4
//! re, raddr       A
//! res                           A ..                (the response engine's: until its next read)
//! seek, seek_at   B      B      B                   (held; waits while the response engine reads)
//! found                                B ..         with `found_valid`, until the next search
//! ```
//! One RAM with one read port: the response engine goes first, the responder's searches are rare. A read of the cycle
//! in which its row is written gives undefined data: a resource is read when its packet has landed.
//! No search waits for ever: the response engine does not read in every cycle while it has frames to make.

use crate::msg::ReadResource;
use hdl::prelude::*;

/// See the module.
#[derive(LogicBlock)]
pub struct Resources {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    pub we: Signal<In, Bit>,
    pub waddr: Signal<In, Bits<24>>,
    pub wdata: Signal<In, ReadResource>,
    /// The response engine's read.
    pub re: Signal<In, Bit>,
    pub raddr: Signal<In, Bits<24>>,
    pub res: Signal<Out, ReadResource>,
    /// The responder's, held until `found_valid`.
    pub seek: Signal<In, Bit>,
    pub seek_at: Signal<In, Bits<24>>,
    pub found: Signal<Out, ReadResource>,
    pub found_valid: Signal<Out, Bit>,
    rows: Ram<ReadResource, 24>,
    reads: Reg<Bit>,
    seeks: Reg<Bit>,
    res_q: DFF<ReadResource>,
    found_q: DFF<ReadResource>,
    found_valid_q: Reg<Bit>,
}

impl Resources {
    /// Of `qps` QPs, 16 each.
    pub fn new(qps: usize) -> Self {
        Resources {
            clock: Default::default(),
            rst: Default::default(),
            we: Default::default(),
            waddr: Default::default(),
            wdata: Default::default(),
            re: Default::default(),
            raddr: Default::default(),
            res: Default::default(),
            seek: Default::default(),
            seek_at: Default::default(),
            found: Default::default(),
            found_valid: Default::default(),
            rows: Ram::default().rows(16 * qps).style("block"),
            reads: Default::default(),
            seeks: Default::default(),
            res_q: Default::default(),
            found_q: Default::default(),
            found_valid_q: Default::default(),
        }
    }
}

impl Logic for Resources {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, reads, seeks, found_valid_q);
        dff_setup!(self, clock, res_q, found_q);
        clock!(self, clock, rows);
        let re = self.re.val();
        self.rows.we.next = self.we.val();
        self.rows.waddr.next = self.waddr.val();
        self.rows.wdata.next = self.wdata.val();
        // Only one of the two is looked at, so the search may read whenever nobody else does.
        self.rows.re.next = true;
        self.rows.raddr.next = if re { self.raddr.val() } else { self.seek_at.val() };
        self.reads.d.next = re;
        let done = self.seeks.q.val() || self.found_valid_q.q.val();
        self.seeks.d.next = self.seek.val() && !re && !done;
        if self.reads.q.val() {
            self.res_q.d.next = self.rows.rdata.val();
        }
        if self.seeks.q.val() {
            self.found_q.d.next = self.rows.rdata.val();
        }
        self.found_valid_q.d.next = self.seeks.q.val();
        self.res.next = self.res_q.q.val();
        self.found.next = self.found_q.q.val();
        self.found_valid.next = self.found_valid_q.q.val();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::kit::{bytes_of, options};
    use rand::RngExt;
    use verilate::Model;

    /// Both readers at random, against a plain array.
    #[test]
    fn both_readers_get_what_was_written() {
        let qps = 4;
        let mut m = Model::of(|| Resources::new(qps), options()).unwrap();
        m.reset();
        let mut rng = verilate::rng(7);
        let mut rows = vec![ReadResource::default(); 16 * qps];
        let mut reads = [None; 2];
        let (mut now, mut seek, mut since, mut found) = (None, None, 0, 0);
        for _ in 0..verilate::scale(5000) {
            let mut pick = || rng.random_range(0..rows.len());
            let (write, read, other) = (pick(), pick(), pick());
            let busy = rng.random_bool(0.5);
            let write = (rng.random_bool(0.5) && Some(write) != seek && (!busy || write != read)).then_some(write);
            m.set("we", write.is_some().into());
            if let Some(at) = write {
                let res = ReadResource {
                    psn: rng.random_range(0..1u64 << 24).to_bits(),
                    va: rng.random::<u64>().to_bits(),
                    length: (rng.random::<u32>() as u64).to_bits(),
                    ..Default::default()
                };
                m.set("waddr", at as u64);
                m.set_bytes("wdata", &bytes_of(res));
                rows[at] = res;
            }
            m.set("re", busy.into());
            m.set("raddr", read as u64);
            reads = [busy.then(|| rows[read]), reads[0]];
            now = reads[1].or(now);
            if seek.is_none() && rng.random_bool(0.5) {
                (seek, since) = (Some(other).filter(|at| Some(*at) != write), 0);
            }
            m.set("seek", seek.is_some().into());
            m.set("seek_at", seek.unwrap_or(other) as u64);
            m.tick();
            if let Some(want) = now {
                assert_eq!(m.get_bytes("res"), bytes_of(want));
            }
            since += 1;
            if m.bit("found_valid") {
                let at = seek.expect("found what nobody sought");
                assert_eq!(m.get_bytes("found"), bytes_of(rows[at]));
                (seek, found) = (None, found + 1);
            }
            assert!(seek.is_none() || since < 40, "a search waits");
        }
        assert!(found > 300, "{found}");
    }
}
