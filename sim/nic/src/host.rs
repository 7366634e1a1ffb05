//! The host behind the core's AXI buses: memory through the IOMMU, PCIe timing, interrupts, and BAR accesses on their way.
//!
//! It accepts posted writes always (within the link's rate) and never makes a read wait for a write's acceptance. Writes are
//! performed in order. A read looks at memory at any time between its request and its data, each completion by itself: so it
//! may miss writes that were accepted before it and are not performed yet, as on a real bus. Only a write's response tells.

use crate::iommu::{Iommu, MSI_WINDOW};
use crate::pcie::{
    Adversary, COMPLETION_BOUNDARY, COMPLETION_HEADER, Direction, PcieProfile, READ_HEADER, WRITE_HEADER,
};
use crate::{Fs, NS};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, VecDeque};

/// An access to a BAR, on its way to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarRequest {
    /// 0 or 2.
    pub bar: u8,
    /// Byte offset, aligned to `bytes`.
    pub offset: u32,
    /// 4 or 8.
    pub bytes: u8,
    /// Data to write; `None` reads.
    pub write: Option<u64>,
}

/// Bytes that went over the PCIe link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PcieUse {
    /// From the device to the host: writes and read requests.
    pub up: u64,
    /// From the host to the device: completions and doorbells.
    pub down: u64,
}

/// A read that the device waits for: its beats become ready one by one.
struct Read {
    id: u8,
    /// Address of the next beat's first byte.
    at: u64,
    end: u64,
    /// When each of the beats left is ready, and whether it is an error.
    beats: VecDeque<(Fs, bool)>,
    /// What was read, from the aligned start of the next beat on.
    data: VecDeque<u8>,
}

/// Memory to be read at some time for a completion of the read `id`.
struct Look {
    id: u8,
    from: u64,
    to: u64,
}

/// A beat on the read data channel.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReadBeat {
    pub(crate) id: u8,
    pub(crate) data: Vec<u8>,
    pub(crate) error: bool,
    pub(crate) last: bool,
}

struct Posted {
    at: Fs,
    iova: u64,
    data: Vec<u8>,
    /// The burst ends here: its response follows.
    respond: bool,
}

/// The host of one NIC.
pub struct Host {
    /// Bus address space.
    pub iommu: Iommu,
    /// Bus Master Enable: without it every DMA access is an error.
    pub bus_master: bool,
    profile: PcieProfile,
    adversary: Adversary,
    rng: ChaCha8Rng,
    beat: u64,
    up: Direction,
    down: Direction,
    reads: VecDeque<Read>,
    /// By time, and numbered.
    looks: BTreeMap<(Fs, u64), Look>,
    looked: u64,
    bursts: VecDeque<(u64, u64)>,
    /// Address and bytes of the write TLP being collected.
    tlp: (u64, Vec<u8>),
    /// When the last write TLP was through the link.
    sent: Fs,
    posted: VecDeque<Posted>,
    /// Writes that were sent, and that were performed.
    tickets: (u64, u64),
    responses: VecDeque<bool>,
    failed: bool,
    bar_queue: VecDeque<(Fs, BarRequest)>,
    /// When an answer is back, its value, and the writes before it.
    bar_answers: VecDeque<(Fs, u64, u64)>,
    interrupts: Vec<u32>,
}

impl Host {
    /// A host with a bus of `width` bits. The adversary's choices follow from `seed`.
    pub fn new(profile: PcieProfile, adversary: Adversary, width: usize, seed: u64) -> Self {
        Host {
            iommu: Iommu::default(),
            bus_master: true,
            profile,
            adversary,
            rng: ChaCha8Rng::seed_from_u64(seed),
            beat: width as u64 / 8,
            up: Direction::default(),
            down: Direction::default(),
            reads: VecDeque::new(),
            looks: BTreeMap::new(),
            looked: 0,
            bursts: VecDeque::new(),
            tlp: (0, Vec::new()),
            sent: 0,
            posted: VecDeque::new(),
            tickets: (0, 0),
            responses: VecDeque::new(),
            failed: false,
            bar_queue: VecDeque::new(),
            bar_answers: VecDeque::new(),
            interrupts: Vec::new(),
        }
    }

    fn hostile(&self) -> bool {
        self.adversary == Adversary::Hostile
    }

    /// By chance, one time in `n`, when the host is hostile.
    fn mischief(&mut self, n: u32) -> bool {
        self.hostile() && self.rng.random_range(0..n) == 0
    }

    /// True while anything is on its way.
    pub fn is_busy(&self) -> bool {
        let bus = self.reads.len() + self.bursts.len() + self.posted.len() + self.responses.len();
        bus + self.bar_queue.len() + self.bar_answers.len() > 0
    }

    /// Bytes over the link so far.
    pub fn pcie_use(&self) -> PcieUse {
        PcieUse { up: self.up.bytes, down: self.down.bytes }
    }

    // ---- reads

    pub(crate) fn read_ready(&mut self) -> bool {
        self.reads.len() < self.profile.tags && !self.mischief(4)
    }

    /// A read burst of `beats` beats, the first from the address's own lane on.
    pub(crate) fn read(&mut self, now: Fs, addr: u64, beats: u64, id: u8) {
        debug_assert!(self.reads.iter().all(|r| r.id != id), "read ID {id} is still in flight");
        let end = (addr & !(self.beat - 1)) + beats * self.beat;
        let sent = self.up.send(&self.profile, now, READ_HEADER);
        let mut first = sent + self.profile.read_latency
            - self.profile.time(READ_HEADER)
            - self.profile.time(COMPLETION_BOUNDARY + COMPLETION_HEADER);
        let mut limit = self.profile.max_payload;
        if self.hostile() {
            first += self.rng.random_range(0..1000) * NS;
            limit = COMPLETION_BOUNDARY << self.rng.random_range(0..3);
        }
        let (mut at, mut ready) = (addr, VecDeque::with_capacity(beats as usize));
        while at < end {
            let to = ((at + limit) & !(COMPLETION_BOUNDARY - 1)).min(end);
            if self.hostile() {
                first += self.rng.random_range(0..50) * NS;
            }
            let through = self.down.send(&self.profile, first, to - at + COMPLETION_HEADER);
            let beats_through = (to.div_ceil(self.beat) - (addr / self.beat)) as usize;
            let whole =
                if to == end { beats as usize } else { beats_through - usize::from(!to.is_multiple_of(self.beat)) };
            ready.resize(whole, (through, false));
            let look = if self.hostile() { self.rng.random_range(now..through) } else { now.midpoint(through) };
            self.looks.insert((look, self.looked), Look { id, from: at, to });
            self.looked += 1;
            at = to;
        }
        let data = vec![0; (beats * self.beat) as usize].into();
        self.reads.push_back(Read { id, at: addr, end, beats: ready, data });
    }

    /// Reads memory for the completions whose time has come.
    fn look(&mut self, now: Fs) {
        while let Some(first) = self.looks.first_entry().filter(|e| e.key().0 <= now) {
            let Look { id, from, to } = first.remove();
            let mut bytes = vec![0; (to - from) as usize];
            let ok = self.bus_master && self.iommu.read(from, &mut bytes);
            let r = self.reads.iter_mut().find(|r| r.id == id).expect("a read waits for all its completions");
            let base = r.at & !(self.beat - 1);
            let start = (from - base) as usize;
            r.data.range_mut(start..start + bytes.len()).zip(bytes).for_each(|(d, b)| *d = b);
            if !ok {
                let touched = (from - base) / self.beat..(to - base).div_ceil(self.beat);
                r.beats.range_mut(touched.start as usize..touched.end as usize).for_each(|b| b.1 = true);
            }
        }
    }

    /// The next beat of read data, if one is ready.
    pub(crate) fn read_beat(&mut self, now: Fs) -> Option<ReadBeat> {
        let due = |r: &Read| r.beats.front().is_some_and(|b| b.0 <= now);
        let pick = if self.hostile() {
            if self.mischief(8) {
                return None;
            }
            let n = self.reads.iter().filter(|r| due(r)).count();
            let k = if n == 0 { return None } else { self.rng.random_range(0..n) };
            (0..self.reads.len()).filter(|i| due(&self.reads[*i])).nth(k)?
        } else {
            self.reads.front().filter(|r| due(r))?;
            0
        };
        let r = &mut self.reads[pick];
        r.at = (r.at & !(self.beat - 1)) + self.beat;
        let data = r.data.drain(..self.beat as usize).collect();
        let (_, error) = r.beats.pop_front()?;
        let beat = ReadBeat { id: r.id, data, error, last: r.at == r.end };
        if beat.last {
            self.reads.remove(pick);
        }
        Some(beat)
    }

    // ---- writes

    pub(crate) fn write_address_ready(&mut self) -> bool {
        self.bursts.len() < 16 && !self.mischief(4)
    }

    pub(crate) fn write_address(&mut self, addr: u64, beats: u64) {
        self.bursts.push_back((addr & !(self.beat - 1), beats));
    }

    pub(crate) fn write_data_ready(&mut self, now: Fs) -> bool {
        !self.bursts.is_empty() && self.up.backlog(now) < self.profile.time(1024) && !self.mischief(4)
    }

    /// A beat of write data; `strobe` bit i enables lane i.
    pub(crate) fn write_data(&mut self, now: Fs, data: &[u8], strobe: u64, last: bool) {
        let (at, left) = self.bursts.front_mut().expect("write data before its address");
        let base = *at;
        *at += self.beat;
        *left -= 1;
        assert_eq!(*left == 0, last, "w_last disagrees with aw_len");
        let mut lane = 0;
        while lane < self.beat {
            let from = lane;
            while lane < self.beat && strobe >> lane & 1 == 1 {
                lane += 1;
            }
            if lane > from {
                let (addr, bytes) = (base + from, &data[from as usize..lane as usize]);
                if self.tlp.0 + self.tlp.1.len() as u64 != addr {
                    self.post(now);
                    self.tlp.0 = addr;
                }
                self.tlp.1.extend_from_slice(bytes);
                self.post_whole(now);
            }
            lane += 1;
        }
        if last {
            self.bursts.pop_front();
            self.post(now);
            self.posted_at(self.sent.max(now), Posted { at: 0, iova: 0, data: Vec::new(), respond: true });
        }
    }

    /// Sends what is collected in write TLPs of the largest payload, as a bridge does that has enough of a burst.
    fn post_whole(&mut self, now: Fs) {
        let limit = self.profile.max_payload;
        while self.tlp.1.len() as u64 >= limit {
            let rest = self.tlp.1.split_off(limit as usize);
            let next = self.tlp.0 + limit;
            self.post(now);
            self.tlp = (next, rest);
        }
    }

    /// Sends what is collected, at most the largest payload, as a write TLP.
    fn post(&mut self, now: Fs) {
        let (iova, data) = std::mem::take(&mut self.tlp);
        if data.is_empty() {
            return;
        }
        self.sent = self.up.send(&self.profile, now, data.len() as u64 + WRITE_HEADER);
        self.posted_at(self.sent, Posted { at: 0, iova, data, respond: false });
    }

    /// What is through the link at `sent` is performed some time later, behind all before it.
    fn posted_at(&mut self, sent: Fs, mut p: Posted) {
        let late = if self.mischief(16) { self.rng.random_range(0..2000) * NS } else { 0 };
        p.at = sent + self.profile.write_latency + late;
        self.posted.push_back(p);
        self.tickets.0 += 1;
    }

    /// Performs the writes that are due, and reads what is to be read by now.
    pub(crate) fn perform(&mut self, now: Fs) {
        self.look(now);
        while self.posted.front().is_some_and(|p| p.at <= now) {
            if self.mischief(8) {
                return;
            }
            let p = self.posted.pop_front().expect("just seen");
            self.tickets.1 += 1;
            if p.respond {
                self.responses.push_back(std::mem::take(&mut self.failed));
            } else if MSI_WINDOW.contains(&p.iova) && self.bus_master {
                let mut word = [0; 4];
                word[..p.data.len().min(4)].copy_from_slice(&p.data[..p.data.len().min(4)]);
                self.interrupts.push(u32::from_le_bytes(word));
            } else {
                self.failed |= !(self.bus_master && self.iommu.write(p.iova, &p.data));
            }
        }
    }

    /// A write response is there; true inside is an error.
    pub(crate) fn write_response(&mut self) -> Option<bool> {
        if self.responses.is_empty() || self.mischief(4) { None } else { self.responses.pop_front() }
    }

    /// Data words of the interrupt messages since the last call, in order.
    pub fn take_interrupts(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.interrupts)
    }

    // ---- BAR accesses

    /// Sends an access to the device; the answer of a read comes by [`Host::bar_answer`], in order.
    pub fn bar(&mut self, now: Fs, request: BarRequest) {
        let bytes = if request.write.is_some() { WRITE_HEADER + u64::from(request.bytes) } else { READ_HEADER };
        let at = self.down.send(&self.profile, now, bytes) + self.profile.write_latency;
        self.bar_queue.push_back((at, request));
    }

    /// The access that has arrived at the device, if there is one.
    pub(crate) fn bar_arrived(&self, now: Fs) -> Option<BarRequest> {
        self.bar_queue.front().filter(|(at, _)| *at <= now).map(|(_, r)| *r)
    }

    /// The device takes the access that has arrived.
    pub(crate) fn bar_taken(&mut self) {
        self.bar_queue.pop_front();
    }

    /// The device answers a read. The answer pushes the writes before it (PCIe 2.4.1: completions do not pass them).
    pub(crate) fn bar_answered(&mut self, now: Fs, value: u64) {
        let at = self.up.send(&self.profile, now, COMPLETION_HEADER + 8) + self.profile.write_latency;
        self.bar_answers.push_back((at, value, self.tickets.0));
    }

    /// The answer of the oldest read, once it is back.
    pub fn bar_answer(&mut self, now: Fs) -> Option<u64> {
        self.bar_answers.front().filter(|(at, _, behind)| *at <= now && *behind <= self.tickets.1)?;
        self.bar_answers.pop_front().map(|(_, v, _)| v)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use driver::function::{DmaAccess, DmaMap};

    fn host(adversary: Adversary, memory: &mut [u8]) -> Host {
        let mut h = Host::new(PcieProfile::gen3x16(), adversary, 512, 7);
        let map =
            DmaMap { iova: 0x1_0000, ptr: memory.as_mut_ptr(), len: memory.len(), access: DmaAccess::Both, fd: None };
        // SAFETY: `memory` outlives the host in these tests.
        unsafe { h.iommu.map(&map).unwrap() };
        h
    }

    #[test]
    fn a_read_of_64_bytes_takes_547_ns_and_longer_ones_the_rate() {
        let mut memory = vec![5u8; 8192];
        let mut h = host(Adversary::Friendly, &mut memory);
        for (bytes, want) in [(64, 547.0), (512, 547.0 + 448.0 * 8.0 / 115.76 + 20.0 * 8.0 / 115.76)] {
            let t0 = 1_000_000 * NS + bytes * NS * 10;
            h.read(t0, 0x1_0000, bytes / 64, 3);
            let mut now = t0;
            let end = loop {
                h.perform(now);
                match h.read_beat(now) {
                    Some(b) if b.last => break now,
                    Some(_) => {}
                    None => now += NS / 10,
                }
            };
            let took = (end - t0) as f64 / NS as f64;
            assert!((took - want).abs() < 3.0, "{bytes} bytes: {took} ns, want {want}");
        }
    }

    #[test]
    fn hostile_reads_return_each_beat_once_with_the_right_bytes() {
        let mut memory: Vec<u8> = (0..8192).map(|i| (i * 7 + i / 256) as u8).collect();
        let copy = memory.clone();
        let mut h = host(Adversary::Hostile, &mut memory);
        let mut at: Vec<u64> = (0..16).map(|i| 0x1_0000 + i * 512 + i * 3).collect();
        for (i, a) in at.iter().enumerate() {
            h.read(0, *a, 8 - i as u64 / 10, i as u8);
        }
        let (mut now, mut order) = (0, Vec::new());
        while h.is_busy() {
            now += 4 * NS;
            h.perform(now);
            let Some(b) = h.read_beat(now) else { continue };
            let a = &mut at[b.id as usize];
            let lane = (*a % 64) as usize;
            let from = (*a - 0x1_0000) as usize;
            assert_eq!(b.data[lane..], copy[from..from + 64 - lane]);
            *a += 64 - lane as u64;
            order.push(b.id);
        }
        assert!(order.windows(2).any(|w| w[0] > w[1]), "nothing was reordered");
    }

    #[test]
    fn a_hostile_read_may_miss_a_write_until_its_response() {
        let mut missed = 0;
        for early in [true, false] {
            let mut memory = vec![0u8; 4096];
            let mut h = host(Adversary::Hostile, &mut memory);
            let mut now = 0;
            for round in 1..200u8 {
                h.write_address(0x1_0000, 1);
                h.write_data(now, &[round; 64], u64::MAX, true);
                let mut response = None;
                while !early && response.is_none() {
                    now += 4 * NS;
                    h.perform(now);
                    response = h.write_response();
                }
                h.read(now, 0x1_0000, 1, 0);
                let beat = loop {
                    now += 4 * NS;
                    h.perform(now);
                    let Some(b) = h.read_beat(now) else { continue };
                    break b;
                };
                assert!(early || beat.data[0] == round, "round {round}: a write with a response was missed");
                missed += u32::from(beat.data[0] != round);
                while h.is_busy() {
                    now += 4 * NS;
                    h.perform(now);
                    h.write_response();
                }
            }
        }
        assert!(missed > 10, "{missed} reads of 199 missed a write on its way");
    }

    #[test]
    fn bursts_back_to_back_fill_the_link() {
        let mut memory = vec![0u8; 1 << 16];
        let mut h = host(Adversary::Friendly, &mut memory);
        let (mut now, mut beats, bursts) = (0, 0, 64);
        let mut asked = 0;
        while beats < bursts * 64 {
            if asked < bursts && h.write_address_ready() {
                h.write_address(0x1_0000 + asked % 16 * 4096, 64);
                asked += 1;
            }
            if h.write_data_ready(now) {
                beats += 1;
                h.write_data(now, &[1; 64], u64::MAX, beats % 64 == 0);
            }
            now += 4 * NS;
        }
        let gbps = (beats * 64 * 8) as f64 / (now as f64 / NS as f64);
        let limit = 115.76 * 256.0 / (256.0 + 24.0);
        assert!(gbps > 0.98 * limit && gbps < 1.03 * limit, "{gbps} Gb/s of {limit}");
    }

    #[test]
    fn writes_are_performed_in_order_with_strobes_and_interrupts_behind_them() {
        let mut memory = vec![0u8; 4096];
        let ptr = memory.as_ptr();
        let mut h = host(Adversary::Hostile, &mut memory);
        h.write_address(0x1_0000, 2);
        h.write_data(0, &[1; 64], u64::MAX << 60, false);
        h.write_data(0, &[2; 64], 0b111, true);
        h.write_address(0xfee0_0000, 1);
        h.write_data(0, &[9; 64], 0b1111, true);
        let mut now = 0;
        while h.take_interrupts() != [0x0909_0909] {
            now += 4 * NS;
            h.perform(now);
        }
        // SAFETY: the host is at rest.
        let got = unsafe { std::slice::from_raw_parts(ptr, 68) };
        assert_eq!(got[59..68], [0, 1, 1, 1, 1, 2, 2, 2, 0]);
        assert!(now >= 200 * NS);
    }
}
