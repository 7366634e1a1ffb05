//! The READ resources of all QPs: what each READ or atomic asked for, and the result of the latter. For the responder, which writes
//! them and searches them for what is repeated, for the response engine, which reads them, and for the atomics, which save results.
//!
//! ```text
//! cycle           0      1      2      3      4
//! re, raddr       A
//! res                           A ..                (the response engine's: until its next read)
//! seek, seek_at   B      B      C                   (held until `seek_ready`: not while the response engine reads)
//! found                                B      C     with `found_valid`
//! save, save_at   D      D                          (held until `save_ready`)
//! ```
//! One RAM with one read port: the response engine goes first, the responder's searches are rare. A read of the cycle
//! in which its row is written gives undefined data: a resource is read when its packet has landed.
//! A result is saved in a cycle in which nobody reads.
//! Neither search nor result waits for ever: the response engine does not read in every cycle while it has frames to make.

use crate::msg::{Psn, ReadResource};
use hdl::prelude::*;

/// What the responder alone writes. With [`Fate`] it is cut so that neither takes more block RAM than both together.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Asked {
    psn: Psn,
    msn: Bits<24>,
    rkey: Bits<32>,
    length: Bits<26>,
    atomic: Bit,
}

/// What the result of an atomic takes the place of.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Fate {
    va: Bits<64>,
    length: Bits<6>,
    done: Bit,
    failed: Bit,
}

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
    /// The responder's, one a cycle, held until `seek_ready`.
    pub seek: Signal<In, Bit>,
    pub seek_at: Signal<In, Bits<24>>,
    pub seek_ready: Signal<Out, Bit>,
    /// What was sought, two cycles later.
    pub found: Signal<Out, ReadResource>,
    pub found_valid: Signal<Out, Bit>,
    /// The result of an atomic, held until `save_ready`: what was in memory, or that it could not be read.
    pub save: Signal<In, Bit>,
    pub save_at: Signal<In, Bits<24>>,
    pub result: Signal<In, Bits<64>>,
    pub failed: Signal<In, Bit>,
    pub save_ready: Signal<Out, Bit>,
    asked: Ram<Asked, 24>,
    fates: Ram<Fate, 24>,
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
            seek_ready: Default::default(),
            found: Default::default(),
            found_valid: Default::default(),
            save: Default::default(),
            save_at: Default::default(),
            result: Default::default(),
            failed: Default::default(),
            save_ready: Default::default(),
            asked: Ram::default().rows(16 * qps).style("block"),
            fates: Ram::default().rows(16 * qps).style("block"),
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
        clock!(self, clock, asked, fates);
        let re = self.re.val();
        let we = self.we.val();
        let new = self.wdata.val();
        self.asked.we.next = we;
        self.asked.waddr.next = self.waddr.val();
        self.asked.wdata.next = Asked {
            psn: new.psn,
            msn: new.msn,
            rkey: new.rkey,
            length: new.length.get_bits::<26>(0),
            atomic: new.atomic,
        };
        let may_save = !we && !re && !self.seek.val();
        self.save_ready.next = may_save;
        self.fates.we.next = we || self.save.val() && may_save;
        self.fates.waddr.next = if we { self.waddr.val() } else { self.save_at.val() };
        self.fates.wdata.next = Fate {
            va: if we { new.va } else { self.result.val() },
            length: if we { new.length.get_bits::<6>(26) } else { 0.into() },
            done: !we,
            failed: !we && self.failed.val(),
        };
        // Only one of the two is looked at, so the search may read whenever nobody else does.
        let raddr = if re { self.raddr.val() } else { self.seek_at.val() };
        self.asked.re.next = true;
        self.asked.raddr.next = raddr;
        self.fates.re.next = true;
        self.fates.raddr.next = raddr;
        let (asked, fate) = (self.asked.rdata.val(), self.fates.rdata.val());
        let row = ReadResource {
            psn: asked.psn,
            msn: asked.msn,
            va: fate.va,
            rkey: asked.rkey,
            length: cat!(32; fate.length, asked.length),
            atomic: asked.atomic,
            done: fate.done,
            failed: fate.failed,
        };
        self.reads.d.next = re;
        self.seek_ready.next = !re;
        self.seeks.d.next = self.seek.val() && !re;
        if self.reads.q.val() {
            self.res_q.d.next = row;
        }
        if self.seeks.q.val() {
            self.found_q.d.next = row;
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

    /// Both readers and both writers at random, against a plain array.
    #[test]
    fn both_readers_get_what_was_written_and_saved() {
        let qps = 4;
        let mut m = Model::of(|| Resources::new(qps), options()).unwrap();
        m.reset();
        let mut rng = verilate::rng(7);
        let mut rows = vec![ReadResource::default(); 16 * qps];
        let mut reads = [None; 2];
        let mut seeks = [None; 2];
        let (mut now, mut seek, mut found) = (None, None, 0);
        let (mut result, mut saved): (Option<(usize, u64, bool)>, _) = (None, 0);
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
                    atomic: rng.random(),
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
                seek = Some(other).filter(|at| Some(*at) != write);
            }
            m.set("seek", seek.is_some().into());
            m.set("seek_at", seek.unwrap_or(other) as u64);
            if result.is_none() && rng.random_bool(0.3) {
                result = Some((rng.random_range(0..rows.len()), rng.random(), rng.random()));
            }
            m.set("save", result.is_some().into());
            let (at, value, failed) = result.unwrap_or((other, 0, true));
            m.set("save_at", at as u64);
            m.set("result", value);
            m.set("failed", failed.into());
            m.eval();
            let sought = seek.filter(|_| m.bit("seek_ready"));
            assert!(!(busy && sought.is_some()), "it is not its turn");
            if m.bit("save_ready") && result.take().is_some() {
                assert!(write.is_none() && !busy && seek.is_none(), "it is not its turn");
                let length = rows[at].length.get_bits::<26>(0).cast::<32>();
                rows[at] = ReadResource { va: value.to_bits(), length, done: true, failed, ..rows[at] };
                saved += 1;
            }
            m.tick();
            if let Some(want) = now {
                assert_eq!(m.get_bytes("res"), bytes_of(want));
            }
            // As it was when it was read.
            seeks = [sought.map(|at| rows[at]), seeks[0]];
            assert_eq!(m.bit("found_valid"), seeks[1].is_some());
            if let Some(row) = seeks[1] {
                assert_eq!(m.get_bytes("found"), bytes_of(row));
                found += 1;
            }
            if sought.is_some() {
                seek = None;
            }
        }
        assert!(found > 300 && saved > 100, "{found}, {saved}");
    }
}
