//! Load on a testbed: flows that keep messages outstanding, and what they reached.

use super::Run;
use anyhow::{Context, Result};
use driver::{Data, Flags, Mr, Operation, Srq};
use nic::PcieUse;
use testbed::{End, Pair, Testbed};

/// What a flow does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// SEND into posted receives.
    Send,
    /// Atomics that add 1, one after the other to many words, or all to one.
    Add,
    AddToOne,
}

/// A load, the same for all flows.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// What.
    pub kind: Kind,
    /// Bytes of a message.
    pub len: usize,
    /// Offset of the payload from an aligned address, both sides.
    pub offset: usize,
    /// Messages outstanding per flow.
    pub depth: usize,
    /// Every nth message is signalled.
    pub signal: usize,
    /// Messages per flow.
    pub messages: usize,
    /// Both hosts send.
    pub both: bool,
}

impl Load {
    /// Receives that are kept posted per flow.
    pub fn receives(&self) -> usize {
        self.depth.max(64)
    }
}

/// What a load reached: of one flow from the first completion to the last, of many from the first post on.
#[derive(Clone, Copy, Debug)]
pub struct Reached {
    /// Payload in Gb/s, per direction.
    pub gbps: f64,
    /// Millions of messages a second, per direction.
    pub mmsg: f64,
    /// Share of the PCIe link of host 0, up and down, in percent.
    pub pcie: (f64, f64),
}

impl Reached {
    /// As a run that measures bandwidth in Gb/s.
    pub fn bandwidth(self) -> Run {
        Run { value: self.gbps, pcie: Some(self.pcie) }
    }
    /// As a run that measures the message rate in Mmsg/s.
    pub fn rate(self) -> Run {
        Run { value: self.mmsg, pcie: Some(self.pcie) }
    }
}

/// Measures the use of host 0's PCIe link.
pub struct Meter {
    cycle: u64,
    used: PcieUse,
}

impl Meter {
    /// Measures from now on.
    pub fn start(bed: &Testbed) -> Self {
        Meter { cycle: bed.cycle(), used: bed.sim().nic(0).host.pcie_use() }
    }

    /// Share of the link in use since then, up and down, in percent.
    pub fn percent(&self, bed: &Testbed) -> (f64, f64) {
        let now = bed.sim().nic(0).host.pcie_use();
        let rate = bed.sim().nic(0).options().pcie.gbps;
        let ns = (bed.cycle() - self.cycle) as f64 * 4.0;
        let share = |bytes: u64| 100.0 * bytes as f64 * 8.0 / ns / rate;
        (share(now.up - self.used.up), share(now.down - self.used.down))
    }
}

/// One direction of a pair.
struct Flow<'a> {
    from: &'a mut End,
    to: &'a mut End,
    posted: usize,
    done: usize,
    receives: usize,
}

/// Memory of the flows: one region on each host, used by all.
pub struct Buffers {
    mr: [Mr; 2],
    /// That of host 1's ends, if they share one.
    srq: Option<Srq>,
}

impl Buffers {
    /// Regions of `len` bytes (and some more for offsets).
    pub fn new(bed: &Testbed, len: usize) -> Result<Self> {
        Self::on(bed, [0, 1], len)
    }

    /// The same on the hosts of the two ends.
    pub fn on(bed: &Testbed, hosts: [usize; 2], len: usize) -> Result<Self> {
        let alloc = |i: usize| bed.hosts[i].pd.alloc(len + 4096, driver::Access::all());
        Ok(Buffers { mr: [alloc(hosts[0])?, alloc(hosts[1])?], srq: None })
    }

    /// Receives of host 1's ends are those of a shared queue.
    pub fn sharing(self, srq: &Srq) -> Self {
        Buffers { srq: Some(srq.clone()), ..self }
    }

    /// Sum of the words that atomics add to.
    pub fn sum(&self) -> u64 {
        let word = |i: usize| {
            let mut bytes = [0; 8];
            self.mr[1].read(64 * i, &mut bytes);
            u64::from_le_bytes(bytes)
        };
        (0..32).map(word).sum()
    }
}

/// Runs `load` over `pairs`.
pub fn run(bed: &Testbed, pairs: &mut [Pair], buffers: &Buffers, load: &Load) -> Result<Reached> {
    let mut times: [Vec<(f64, usize)>; 2] = Default::default();
    let start = bed.cycle();
    let meter = Meter::start(bed);
    // Each direction of each pair is a flow; the same ends serve both directions in turn.
    let mut states = vec![[(0usize, 0usize, 0usize); 2]; pairs.len()];
    loop {
        let mut idle = true;
        for (pair, state) in pairs.iter_mut().zip(&mut states) {
            for dir in 0..if load.both { 2 } else { 1 } {
                let (from, to) = if dir == 0 { (&mut pair.a, &mut pair.b) } else { (&mut pair.b, &mut pair.a) };
                let (posted, done, receives) = state[dir];
                let mut flow = Flow { from, to, posted, done, receives };
                flow.step(buffers, load, dir, &mut times[dir])?;
                state[dir] = (flow.posted, flow.done, flow.receives);
                idle &= flow.done >= load.messages;
            }
        }
        if idle {
            break;
        }
        bed.relax();
    }
    let pcie = meter.percent(bed);
    // One flow completes in order: between its first and last completion the NIC did what was completed, and nothing else. Of
    // many flows all first messages are half done by the first completion: there the ramp counts as well.
    let began = start as f64 * 4.0;
    let span = |t: &[(f64, usize)]| {
        let last = t.iter().map(|x| x.0).fold(0.0, f64::max);
        let (first, skip) = if pairs.len() == 1 { (t.first().map_or(0.0, |x| x.0), 1) } else { (began, 0) };
        let messages: usize = t.iter().skip(skip).map(|x| x.1).sum();
        messages as f64 / (last - first)
    };
    let mut per_ns = span(&times[0]);
    if load.both {
        per_ns = per_ns.min(span(&times[1]));
    }
    Ok(Reached { gbps: per_ns * load.len as f64 * 8.0, mmsg: per_ns * 1e3, pcie })
}

impl Flow<'_> {
    /// Takes completions, keeps receives posted, posts what the depth allows in one batch.
    fn step(&mut self, b: &Buffers, load: &Load, dir: usize, times: &mut Vec<(f64, usize)>) -> Result<()> {
        let (local, remote) = (&b.mr[dir], &b.mr[1 - dir]);
        for c in self.from.cq.poll() {
            c.status.with_context(|| format!("{load:?}"))?;
            if c.opcode < 0x80 {
                self.done += c.wr_id as usize;
                times.push((bed_ns(&c), c.wr_id as usize));
            }
        }
        if load.kind == Kind::Send {
            if !load.both {
                self.receives -= self.to.cq.poll().count();
            }
            // All flows together post what each of them needs, whoever takes it.
            let missing = load.receives() - self.receives;
            let receive = [remote.sge(load.offset, load.len)];
            if let Some(srq) = &b.srq {
                let mut batch = srq.post_recvs();
                (0..missing).try_for_each(|_| batch.add(0, &receive))?;
            } else {
                let mut batch = self.to.qp.post_recvs();
                (0..missing).try_for_each(|_| batch.add(0, &receive))?;
            }
            self.receives += missing;
        }
        let mut batch = self.from.qp.post();
        while self.posted < load.messages && self.posted - self.done < load.depth {
            self.posted += 1;
            let signaled = self.posted.is_multiple_of(load.signal) || self.posted == load.messages;
            let flags = if signaled { Flags::SIGNALED } else { Flags::empty() };
            let since = match self.posted % load.signal {
                0 => load.signal,
                rest => rest,
            };
            let place = load.offset + if load.len <= 64 { 64 * (self.posted % 32) } else { 0 };
            let operation = match load.kind {
                Kind::Write => Operation::Write(remote.remote(place)),
                Kind::Read => Operation::Read(remote.remote(place)),
                Kind::Send => Operation::Send,
                Kind::Add => Operation::AtomicAdd { remote: remote.remote(place), add: 1 },
                Kind::AddToOne => Operation::AtomicAdd { remote: remote.remote(0), add: 1 },
            };
            batch.add(since as u64, operation, Data::Sges(&[local.sge(place, load.len)]), flags)?;
        }
        Ok(())
    }
}

/// When a completion was made, by the device's clock, in nanoseconds.
fn bed_ns(c: &driver::Completion) -> f64 {
    c.timestamp as f64 * 4.0
}
