//! `ferroce bench loss`: how soon a lost packet is sent again, and what is left of the line rate.
//!
//! Goodput is held against what go-back-N can reach: of `W + 1` packet times that a loss costs, `W` is the turnaround measured
//! here, or the one that is asked if that is shorter: who is slow is not asked for less.

use super::load::{Buffers, Kind, Load, run};
use super::measure::{Ask, Bench};
use super::{Figure, Run};
use crate::report::payload_limit;
use anyhow::{Context, Result};
use fabric::{Action, Match, Packet};
use nic::{Fs, NS};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use testbed::{Connect, Setup, Testbed};

/// The link, in Gb/s.
const LINK: f64 = 100.0;
/// A megabyte message.
const MIB: usize = 1 << 20;
/// Losses whose turnaround is measured, one at a time.
const DROPS: u64 = 16;
/// Added by a NIC's own work to the round trip, at most, in microseconds.
const OWN: f64 = 2.5;
/// What a goodput may be below the closed form, in percent of line rate.
const MARGIN: f64 = 2.0;
/// Seeds of each goodput.
const SEEDS: u64 = 3;

/// What is lost.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Lost {
    Writes,
    Responses,
    Acks,
}

impl Lost {
    fn name(self) -> &'static str {
        match self {
            Lost::Writes => "WRITE",
            Lost::Responses => "READ response",
            Lost::Acks => "ACK",
        }
    }
    fn kind(self) -> Kind {
        if self == Lost::Responses { Kind::Read } else { Kind::Write }
    }
    /// The end of the link that sends it.
    fn from(self) -> usize {
        if self == Lost::Writes { 0 } else { 1 }
    }
}

/// A path: MTU, and added round trip in microseconds.
type Way = (u32, u64);
const WAYS: [Way; 4] = [(4096, 2), (1024, 2), (4096, 10), (1024, 10)];

/// All figures of loss.
pub fn figures(b: &mut Bench) -> Result<()> {
    let mut means = HashMap::new();
    for lost in [Lost::Writes, Lost::Responses] {
        for way in WAYS {
            let (mtu, rtt) = way;
            let name = format!("turnaround of a lost {}, MTU {mtu}, added RTT {rtt} us, worst of {DROPS}", lost.name());
            b.measure(&name, "us", Ask::AtMost(rtt as f64 + OWN, None), |s| {
                Ok(Run { value: turnarounds(s, lost, way)?.into_iter().fold(0.0, f64::max), pcie: None })
            })?;
        }
    }
    for loss in [1e-2, 1e-3, 1e-4] {
        for lost in [Lost::Writes, Lost::Responses, Lost::Acks] {
            for way in WAYS {
                let (mtu, rtt) = way;
                let name = format!("goodput, {} loss {loss:.0e}, MTU {mtu}, added RTT {rtt} us", lost.name());
                if !b.wants(&name) {
                    continue;
                }
                let setup = b.setup();
                let line = LINK * payload_limit(mtu.into(), false, false);
                let (value, share) = goodput(setup, lost, loss, way)?;
                let reachable = match lost {
                    // The next one says the same.
                    Lost::Acks => 1.0,
                    _ => {
                        let turnaround = match means.get(&(lost, way)) {
                            Some(mean) => *mean,
                            None => {
                                let all = turnarounds(setup, lost, way)?;
                                let mean = all.iter().sum::<f64>() / all.len() as f64;
                                means.insert((lost, way), mean);
                                mean
                            }
                        };
                        let packet = f64::from(mtu) * 8.0 / line * 1e-3;
                        closed_form(share, turnaround.min(rtt as f64 + OWN) / packet)
                    }
                };
                let limit = line * reachable;
                b.push(Figure::at_least(name, value, "Gb/s", limit - LINK * MARGIN / 100.0, Some(limit)));
            }
        }
    }
    Ok(())
}

/// Share of the packets that count where a share `p` is lost and each loss costs `w` packets besides itself: go-back-N whose
/// losses are noticed at once.
fn closed_form(p: f64, w: f64) -> f64 {
    (1.0 - p) / (1.0 - p + p * (w + 1.0))
}

/// Two hosts on a longer cable.
fn bed(setup: &Setup, rtt: u64, seed: u64) -> Result<Testbed> {
    let mut setup = setup.clone();
    setup.delay += Fs::from(rtt as u32 * 500) * NS;
    setup.nic.seed += seed;
    Ok(Testbed::new(&setup)?)
}

/// Messages of a megabyte, four at a time.
fn load(kind: Kind, messages: usize) -> Load {
    Load { kind, len: MIB, offset: 0, depth: 4, signal: 1, messages, both: false }
}

/// When lost packets were first sent, by PSN, and the microseconds that those sent again took.
type Times = (HashMap<u32, Fs>, Vec<f64>);

/// Microseconds from each lost packet's first transmission to its second, one loss at a time somewhere in a stream.
fn turnarounds(setup: &Setup, lost: Lost, (mtu, rtt): Way) -> Result<Vec<f64>> {
    let bed = bed(setup, rtt, 0)?;
    let mut pairs = [bed.connect(&Connect { mtu, ..Connect::default() })?];
    let buffers = Buffers::new(&bed, MIB)?;
    // Far enough apart for the one before to be over, and at other places in their messages each.
    let apart = 300 * 4096 / u64::from(mtu);
    let times: Arc<Mutex<Times>> = Arc::default();
    {
        let mut sim = bed.sim();
        for n in 1..=DROPS {
            let nth =
                Match { from: Some(lost.from()), nth: Some(n * apart + 7 * n * n % apart / 2), ..Match::default() };
            sim.link_mut(0).rules.add(nth, Action::Drop);
        }
        let noted = times.clone();
        sim.tap(Some(Box::new(move |from, frame, fired| {
            let Some(packet) = Packet::of(&frame.data).filter(|_| from == lost.from()) else { return };
            let (waits, done) = &mut *noted.lock().expect("nobody panics with it");
            if let Some(first) = waits.remove(&packet.psn) {
                done.push((frame.at - first) as f64 / NS as f64 * 1e-3);
            }
            if fired.is_some() {
                waits.insert(packet.psn, frame.at);
            }
        })));
    }
    let messages = (DROPS + 2) * apart * u64::from(mtu) / MIB as u64;
    run(&bed, &mut pairs, &buffers, &load(lost.kind(), messages as usize))?;
    let times = times.lock().expect("nobody panics with it");
    anyhow::ensure!(times.1.len() as u64 == DROPS, "{} of {DROPS} lost packets were sent again", times.1.len());
    Ok(times.1.clone())
}

/// Mean payload in Gb/s of one flow over some seeds, and the share of the packets that was lost in them.
fn goodput(setup: &Setup, lost: Lost, loss: f64, (mtu, rtt): Way) -> Result<(f64, f64)> {
    // The rarer a loss, the more data it takes; and the faster it goes.
    let messages = if loss > 5e-3 {
        6
    } else if loss > 5e-4 {
        12
    } else {
        20
    };
    let (mut sum, mut dropped, mut sent) = (0.0, 0, 0);
    for seed in 0..SEEDS {
        let bed = bed(setup, rtt, seed)?;
        let mut pairs = [bed.connect(&Connect { mtu, ..Connect::default() })?];
        let buffers = Buffers::new(&bed, MIB)?;
        let from = Some(lost.from());
        let some = Match { from, probability: Some(loss), ..Match::default() };
        let count = Arc::new(Mutex::new(0u64));
        {
            let mut sim = bed.sim();
            sim.link_mut(0).rules.add(some, Action::Drop);
            let count = count.clone();
            sim.tap(Some(Box::new(move |end, _, _| {
                *count.lock().expect("nobody panics with it") += u64::from(Some(end) == from);
            })));
        }
        let reached =
            run(&bed, &mut pairs, &buffers, &load(lost.kind(), messages)).with_context(|| format!("seed {seed}"))?;
        sum += reached.gbps;
        sent += *count.lock().expect("nobody panics with it");
        dropped += bed.sim().link_mut(0).rules.rules[0].fired;
    }
    Ok((sum / SEEDS as f64, dropped as f64 / sent as f64))
}
