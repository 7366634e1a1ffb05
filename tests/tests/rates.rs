//! Rates of queue pairs over whole NICs: what each takes of the wire, from Ethernet header to FCS, as a tap on the cable sees it.

use driver::{Access, Data, Flags, Mr, Operation, RateLimit};
use ferroce_tests::{GUARD, assert_sound, noise, region, wait};
use nic::NS;
use std::sync::{Arc, Mutex};
use testbed::{Connect, Pair, Setup, Testbed};

/// Bytes of the regions.
const LEN: usize = 1 << 20;
const ACK: u8 = 0x11;
/// What a QP may be ahead by, beside its burst: two turns of 4 KiB, or of 64 small messages, with their headers.
const TURNS: f64 = 2.0 * 64.0 * (64.0 + 90.0);

/// What a QP of host 0 or 1 sends: time in ns and bytes of each frame that is no ACK, by the QP that it goes to.
type Seen = Arc<Mutex<Vec<(f64, usize, u32, u64)>>>;

struct Bench {
    bed: Testbed,
    pairs: Vec<Pair>,
    regions: [Mr; 2],
    seen: Seen,
    outstanding: Vec<usize>,
    /// Messages done, of each pair.
    done: Vec<usize>,
}

/// How a pair sends.
#[derive(Clone, Copy)]
struct Work {
    read: bool,
    len: usize,
    depth: usize,
}

const WRITES: Work = Work { read: false, len: 64 << 10, depth: 4 };

impl Work {
    /// Bytes of a turn at most: a READ that is answered ends one.
    fn turn(&self) -> f64 {
        let messages = if self.read { 1 } else { (4096 / self.len.max(64)).clamp(1, self.depth) };
        ((self.len.min(4096) + 100) * messages) as f64
    }
}

/// WRITEs whose turns are less than 1 % of what a rate gives in `us`.
fn fine(gbps: f64, us: f64) -> Work {
    let room = gbps * us * 1e3 / 8.0 / 100.0;
    let small = |len, depth| Work { len, depth, ..WRITES };
    let all = [WRITES, small(1024, 3), small(512, 3), small(1024, 1), small(512, 1)];
    all.into_iter().find(|w| w.turn() <= room).unwrap_or(small(64, 1))
}

/// A rate with a burst of 4 us.
fn limit(gbps: f64) -> RateLimit {
    RateLimit { kbps: (gbps * 1e6) as u64, burst: Some(((gbps / 2.0).ceil() as u32) << 10) }
}

impl Bench {
    fn new(setup: &Setup, pairs: usize) -> Self {
        let bed = Testbed::new(setup).unwrap();
        let pairs = bed.connect_many(&Connect::default(), pairs).unwrap();
        let regions = [0, 1].map(|i| region(&bed.hosts[i].pd, LEN, Access::all(), noise(i as u64)));
        let seen: Seen = Default::default();
        let frames = seen.clone();
        // Behind VLAN tag and IP header stand UDP and BTH.
        let at = 14 + if setup.vlan.is_some() { 4 } else { 0 } + if setup.ip6 { 40 } else { 20 } + 8;
        let tap = move |nic, f: &nic::Frame, _| {
            let (opcode, dest) = (f.data[at], u32::from_be_bytes(f.data[at + 4..at + 8].try_into().unwrap()));
            if opcode != ACK {
                let sent = (f.at as f64 / NS as f64, nic, dest & 0xff_ffff, f.data.len() as u64 + 4);
                frames.lock().unwrap().push(sent);
            }
        };
        bed.sim().tap(Some(Box::new(tap)));
        let count = pairs.len();
        Bench { bed, pairs, regions, seen, outstanding: vec![0; count], done: vec![0; count] }
    }

    /// Keeps the pairs at work for so long; `None` has nothing to do.
    fn run(&mut self, work: &[Option<Work>], ns: f64) {
        let end = self.bed.ns() + ns;
        while self.bed.ns() < end {
            self.post(work);
            self.bed.relax();
        }
    }

    fn post(&mut self, work: &[Option<Work>]) {
        for (i, pair) in self.pairs.iter_mut().enumerate() {
            for c in pair.a.cq.poll() {
                c.status.unwrap();
                self.outstanding[i] -= 1;
                self.done[i] += 1;
            }
            let Some(w) = work[i] else { continue };
            let mut batch = pair.a.qp.post();
            while self.outstanding[i] < w.depth {
                let at = (self.done[i] + self.outstanding[i]) * w.len % (LEN - w.len) / 64 * 64;
                let remote = self.regions[1].remote(at);
                let operation = if w.read { Operation::Read(remote) } else { Operation::Write(remote) };
                batch.add(0, operation, Data::Sges(&[self.regions[0].sge(at, w.len)]), Flags::SIGNALED).unwrap();
                self.outstanding[i] += 1;
            }
        }
    }

    /// Bytes that host `nic` sent for pair `i` between two times.
    fn sent(&self, nic: usize, i: usize, from: f64, to: f64) -> f64 {
        let qpn = [self.pairs[i].b.qp.qpn(), self.pairs[i].a.qp.qpn()][nic];
        let seen = self.seen.lock().unwrap();
        let mine = seen.iter().filter(|s| (s.1, s.2) == (nic, qpn) && (from..to).contains(&s.0));
        mine.map(|s| s.3).sum::<u64>() as f64
    }

    /// Host `nic` has kept pair `i` to its rate from then until now, within 1 % or a turn, and never was further ahead than its burst and two
    /// turns in a stretch of it.
    fn keeps(&self, nic: usize, i: usize, (gbps, w): (f64, Work), from: f64, what: &str) {
        let (to, burst) = (self.bed.ns(), f64::from(limit(gbps).burst.unwrap()));
        let real = self.sent(nic, i, from, to) * 8.0 / (to - from);
        println!("{what}: {real:.5} of {gbps} Gb/s");
        let grain = w.turn() * 8.0 / (to - from);
        assert!((real - gbps).abs() <= (0.01 * gbps).max(grain), "{what}: {real:.5} of {gbps} Gb/s");
        let steps = 16;
        let time = |k: i32| from + (to - from) * f64::from(k) / f64::from(steps);
        for (a, b) in (0..steps).flat_map(|k| (k + 1..=steps).map(move |l| (time(k), time(l)))) {
            let ahead = self.sent(nic, i, a, b) - (b - a) * gbps / 8.0;
            assert!(ahead <= burst + TURNS, "{what}: ahead by {ahead}");
        }
    }

    /// All that is outstanding completes, and nothing but what was asked for has happened.
    fn finish(mut self, what: &str) {
        for i in 0..self.pairs.len() {
            while self.outstanding[i] > 0 {
                wait(&self.bed, &mut self.pairs[i].a.cq, what).status.unwrap();
                self.outstanding[i] -= 1;
            }
        }
        assert_sound(&self.bed, what);
    }
}

#[test]
fn a_write_stream_keeps_to_its_rate() {
    for (rate, us) in [(0.01, 12_000.0), (1.0, 900.0), (10.0, 350.0), (50.0, 100.0)] {
        let mut b = Bench::new(&Setup::default(), 1);
        b.pairs[0].a.qp.set_rate_limit(Some(limit(rate))).unwrap();
        assert_eq!(b.pairs[0].a.qp.rate_limit(), Some(limit(rate)));
        let w = fine(rate, us);
        // The burst is gone, whatever was kept of it.
        b.run(&[Some(w)], 1024.0 * 8.0 / rate + 20_000.0);
        let start = b.bed.ns();
        b.run(&[Some(w)], us * 1e3);
        b.keeps(0, 0, (rate, w), start, "WRITEs");
        b.pairs[0].a.qp.set_rate_limit(None).unwrap();
        b.finish("WRITEs");
    }
}

#[test]
fn small_messages_and_long_headers_count_whole() {
    for (ip6, vlan) in [(false, None), (true, None), (true, Some(7)), (false, Some(9))] {
        let mut b = Bench::new(&Setup { ip6, vlan, ..Setup::default() }, 2);
        let flows = [(1.0, 4), (3.0, 16)].map(|(rate, depth)| (rate, Work { len: 64, depth, ..WRITES }));
        for (pair, (rate, _)) in b.pairs.iter().zip(flows) {
            pair.a.qp.set_rate_limit(Some(limit(rate))).unwrap();
        }
        let w = flows.map(|f| Some(f.1));
        b.run(&w, 30e3);
        let start = b.bed.ns();
        b.run(&w, 500e3);
        for (i, flow) in flows.into_iter().enumerate() {
            b.keeps(0, i, flow, start, &format!("64 B, IPv6 {ip6}, VLAN {vlan:?}"));
        }
        b.finish("64 B");
    }
}

#[test]
fn many_rates_at_once_and_one_without() {
    let rates = [0.5, 0.7, 1.0, 1.5, 2.0, 5.0, 10.0, 20.0];
    let mut b = Bench::new(&Setup::default(), 9);
    for (pair, rate) in b.pairs.iter().zip(rates) {
        pair.a.qp.set_rate_limit(Some(limit(rate))).unwrap();
    }
    let us = 3000.0;
    let flows = rates.map(|rate| (rate, fine(rate, us)));
    let mut w: Vec<_> = flows.iter().map(|f| Some(f.1)).collect();
    w.push(Some(WRITES));
    b.run(&w, 100e3);
    let start = b.bed.ns();
    b.run(&w, us * 1e3);
    for (i, flow) in flows.into_iter().enumerate() {
        b.keeps(0, i, flow, start, "one of many");
    }
    // What is left of the wire: 20 bytes of a frame are preamble and gap, some 4,180 the frame.
    let used: f64 = rates.iter().sum();
    let rest = b.sent(0, 8, start, b.bed.ns()) * 8.0 / (b.bed.ns() - start);
    println!("beside them {rest:.2} Gb/s");
    assert!(rest >= 0.99 * (100.0 * 4180.0 / 4200.0 - used), "beside them {rest:.2} Gb/s");
    b.finish("many");
}

#[test]
fn read_responses_keep_to_the_rate_of_their_responder() {
    // With more READs outstanding than come within a few round trips the peer's fast timer asks again.
    for (rate, len, depth, alone) in [(25.0, 64 << 10, 4, false), (10.0, 16 << 10, 4, false), (0.5, 512, 1, true)] {
        let mut b = Bench::new(&Setup::default(), 2);
        b.pairs[0].b.qp.set_rate_limit(Some(limit(rate))).unwrap();
        let read = Work { read: true, len, depth };
        // The other one has none.
        let w = [Some(read), Some(Work { read: true, ..WRITES }).filter(|_| !alone)];
        b.run(&w, 40e3);
        let start = b.bed.ns();
        b.run(&w, if rate < 1.0 { 1000e3 } else { 300e3 });
        b.keeps(1, 0, (rate, read), start, "READ responses");
        let rest = b.sent(1, 1, start, b.bed.ns()) * 8.0 / (b.bed.ns() - start);
        println!("beside them {rest:.2} Gb/s");
        assert!(alone || rest >= 0.97 * (98.0 - rate), "beside them {rest:.2} Gb/s");
        b.finish("READs");
    }
}

#[test]
fn a_new_rate_counts_at_once_for_who_waits() {
    let mut b = Bench::new(&Setup::default(), 1);
    let slow = RateLimit { burst: Some(1 << 10), ..limit(0.001) };
    let w = [Some(WRITES)];
    for (next, least) in [(Some(limit(20.0)), 18.0), (None, 90.0)] {
        b.pairs[0].a.qp.set_rate_limit(Some(slow)).unwrap();
        b.run(&w, 60e3);
        // It owes for what it has sent: at this rate for some 30 ms a turn.
        let start = b.bed.ns();
        b.run(&w, 100e3);
        assert!(b.sent(0, 0, start + 50e3, b.bed.ns()) < 5000.0);
        b.pairs[0].a.qp.set_rate_limit(next).unwrap();
        // The first frame comes within a few us.
        let start = b.bed.ns();
        b.run(&w, 10e3);
        assert!(b.sent(0, 0, start - 2e3, b.bed.ns()) > 5000.0, "{next:?}");
        let start = b.bed.ns();
        b.run(&w, 50e3);
        let real = b.sent(0, 0, start, b.bed.ns()) * 8.0 / 50e3;
        assert!(real >= least, "{real} Gb/s, then {next:?}");
    }
    b.finish("changes");
}

/// A QP that waits is reset, or destroyed, at once; the next with its number has no rate.
#[test]
fn a_rate_ends_with_its_qp() {
    let slow = RateLimit { burst: Some(1 << 10), ..limit(0.001) };
    let mut b = Bench::new(&Setup::default(), 1);
    b.pairs[0].a.qp.set_rate_limit(Some(slow)).unwrap();
    b.run(&[Some(WRITES)], 60e3);
    let qpns: Vec<u32> = b.pairs.iter().map(|p| p.a.qp.qpn()).collect();
    let Pair { a, b: far } = b.pairs.remove(0);
    let reset = a.qp.reset().unwrap();
    assert_eq!(reset.rate_limit(), None);
    drop((reset, far, a.cq));
    // All numbers come round, that one too.
    let mut met = false;
    for _ in 0..300 {
        let mut pair = b.bed.connect(&Connect::default()).unwrap();
        if qpns.contains(&pair.a.qp.qpn()) {
            met = true;
            assert_eq!(pair.a.qp.rate_limit(), None);
            let start = b.bed.ns();
            let target = region(&b.bed.hosts[1].pd, 64 << 10, Access::all(), |_| GUARD);
            let sge = [b.regions[0].sge(0, 64 << 10)];
            pair.a.qp.post().add(0, Operation::Write(target.remote(0)), Data::Sges(&sge), Flags::SIGNALED).unwrap();
            wait(&b.bed, &mut pair.a.cq, "the next").status.unwrap();
            assert!(b.bed.ns() - start < 20e3);
            // And is destroyed while it waits.
            pair.a.qp.set_rate_limit(Some(slow)).unwrap();
            pair.a.qp.post().add(0, Operation::Write(target.remote(0)), Data::Sges(&sge), Flags::SIGNALED).unwrap();
            (0..100).for_each(|_| b.bed.relax());
            break;
        }
    }
    assert!(met, "its number was not used again");
    assert_sound(&b.bed, "ends");
}

#[test]
fn a_card_without_a_pacer_says_so() {
    let bed = Testbed::new(&Setup::small()).unwrap();
    assert!(!bed.hosts[0].device.has_rate_limits());
    let pair = bed.connect(&Connect::default()).unwrap();
    let e = pair.a.qp.set_rate_limit(Some(limit(1.0))).unwrap_err().to_string();
    assert!(e.contains("does not do rate limits"), "{e}");
    pair.a.qp.set_rate_limit(None).unwrap();
}
