//! `ferroce bench core`: the figures of the NIC core, in cycles at 250 MHz, exact and repeatable.

use super::load::{Buffers, Kind, Load, Meter, Reached, run};
use super::measure::Ask::{AtLeast, AtMost};
use super::measure::Bench;
use super::{Figure, Run, latency};
use crate::report::payload_limit;
use abi::status::counter;
use anyhow::{Result, ensure};
use driver::qp::QpSizes;
use driver::{Access, Translation};
use fabric::{Action, Match};
use std::time::Instant;
use testbed::{Connect, Setup, Testbed};

/// A megabyte message.
const MIB: usize = 1 << 20;

/// All figures of the core; `stages` shows where the time of a message goes.
pub fn figures(b: &mut Bench, stages: bool) -> Result<()> {
    b.bandwidth()?;
    b.messages()?;
    b.atomics()?;
    latency::figures(b, stages)?;
    b.loopback()?;
    b.loss()?;
    b.control()?;
    b.speed()
}

impl Bench {
    fn gbps(&mut self, name: &str, mtu: u32, qps: usize, load: Load, bar: f64) -> Result<()> {
        let limit = Some(100.0 * payload_limit(mtu.into(), false, false));
        self.measure(name, "Gb/s", AtLeast(bar, limit), |s| Ok(reached(s, mtu, qps, &load)?.bandwidth()))
    }

    fn mmsg(&mut self, name: &str, qps: usize, load: Load, bar: f64, limit: Option<f64>) -> Result<()> {
        self.measure(name, "Mmsg/s", AtLeast(bar, limit), |s| Ok(reached(s, 4096, qps, &load)?.rate()))
    }

    fn bandwidth(&mut self) -> Result<()> {
        for kind in [Kind::Write, Kind::Read, Kind::Send] {
            for offset in [0, 1] {
                let name = |mtu| format!("1 MiB {kind:?}, MTU {mtu}, one QP, address +{offset}");
                self.gbps(&name(4096), 4096, 1, big(kind, offset), 97.0)?;
                self.gbps(&name(1024), 1024, 1, big(kind, offset), 91.5)?;
                self.gbps(&name(256), 256, 1, Load { messages: 6, ..big(kind, offset) }, 65.0)?;
            }
            let name = format!("1 MiB {kind:?}, MTU 4096, 64 QPs interleaved");
            if name.contains(&self.only) {
                // Within 1 % of one QP.
                let one = |f: &Figure| f.figure == format!("1 MiB {kind:?}, MTU 4096, one QP, address +0");
                let one = match self.figures.iter().find(|f| one(f)) {
                    Some(f) => f.value,
                    None => reached(&self.setup, 4096, 1, &big(kind, 0))?.gbps,
                };
                let many = Load { messages: 3, depth: 2, ..big(kind, 0) };
                self.gbps(&name, 4096, 64, many, 0.99 * one)?;
            }
        }
        let both = Load { both: true, ..big(Kind::Write, 0) };
        self.gbps("1 MiB Write, MTU 4096, bidirectional, each way", 4096, 1, both, 96.0)
    }

    fn messages(&mut self) -> Result<()> {
        let small = |kind, messages| Load { kind, len: 64, offset: 0, depth: 256, signal: 32, messages, both: false };
        self.mmsg("64 B Write, one QP", 1, small(Kind::Write, 8192), 25.0, Some(77.2))?;
        self.mmsg("64 B Write, 64 QPs", 64, small(Kind::Write, 512), 50.0, Some(77.2))?;
        let all = Load { signal: 1, depth: 128, ..small(Kind::Write, 512) };
        self.mmsg("64 B Write, 64 QPs, every one signalled", 64, all, 30.0, Some(77.2))?;
        self.mmsg("64 B Send, one QP", 1, small(Kind::Send, 4096), 20.0, Some(77.2))?;
        // A requester sends more SENDs than a responder takes, and the receiving NIC drops what finds no room: some are sent again.
        self.mmsg("64 B Send, 64 QPs", 64, small(Kind::Send, 512), 20.0, Some(77.2))?;
        // No more than the receiving NIC has room for; and what becomes of more.
        self.shared("64 B Send, 64 QPs, one SRQ", Load { depth: 8, signal: 4, ..small(Kind::Send, 512) })?;
        self.shared("overload of one SRQ: 64 B Sends, 64 QPs, 256 outstanding each", small(Kind::Send, 512))?;
        let read = |messages| Load { depth: 64, signal: 16, ..small(Kind::Read, messages) };
        self.mmsg("64 B Read, one QP, 16 outstanding", 1, read(2048), 9.0, None)?;
        self.mmsg("64 B Read, 16 QPs", 16, read(4096), 30.0, None)
    }

    /// 64 QPs that take their receives from one shared queue, which is never empty.
    fn shared(&mut self, name: &str, load: Load) -> Result<()> {
        self.measure(name, "Mmsg/s", AtLeast(20.0, Some(77.2)), |setup| {
            let bed = Testbed::new(setup)?;
            let srq = bed.hosts[1].pd.create_srq((64 * load.receives()) as u32)?;
            let buffers = Buffers::new(&bed, load.len)?.sharing(&srq);
            let connect = Connect { sizes: QpSizes::new(512, 256), ..Connect::default() };
            let reached = run(&bed, &mut bed.connect_sharing(&connect, 64, Some(&srq))?, &buffers, &load)?;
            all_were_ready(&bed)?;
            Ok(reached.rate())
        })
    }

    fn atomics(&mut self) -> Result<()> {
        let add = |kind, messages| Load { kind, len: 8, offset: 0, depth: 64, signal: 16, messages, both: false };
        self.mops("atomic add, one QP, 16 outstanding", 1, add(Kind::Add, 2048))?;
        self.mops("atomic add, 16 QPs, one address", 16, add(Kind::AddToOne, 256))
    }

    /// Each is executed once: the sum shows it.
    fn mops(&mut self, name: &str, qps: usize, load: Load) -> Result<()> {
        self.measure(name, "Mop/s", AtLeast(5.0, None), |setup| {
            let bed = Testbed::new(setup)?;
            let buffers = Buffers::new(&bed, load.len)?;
            let sizes = QpSizes::new(512, 128);
            let connect = Connect { sizes, access: Access::all(), ..Connect::default() };
            let reached = run(&bed, &mut bed.connect_many(&connect, qps)?, &buffers, &load)?;
            let (sum, want) = (buffers.sum(), (qps * load.messages) as u64);
            ensure!(sum == want, "{want} atomics added {sum}");
            Ok(reached.rate())
        })
    }

    fn loopback(&mut self) -> Result<()> {
        // All of it is written to host memory. Behind that stands a beat of 64 bytes a cycle, 65 for a frame.
        let limit = self.setup.nic.pcie.payload_gbps().min(128.0 * 64.0 / 65.0);
        self.measure("1 MiB Write, MTU 4096, loopback", "Gb/s", AtLeast(97.0, Some(limit)), |setup| {
            let bed = Testbed::new(setup)?;
            let buffers = Buffers::on(&bed, [0, 0], MIB)?;
            let mut pairs = [bed.connect_hosts([0, 0], &Connect::default())?];
            Ok(run(&bed, &mut pairs, &buffers, &big(Kind::Write, 0))?.bandwidth())
        })
    }

    fn loss(&mut self) -> Result<()> {
        // Which packets are lost is a matter of the seed: the worst of three.
        let name = "1 MiB Write, MTU 4096, loss 1e-3, worst of 3 seeds";
        self.measure(name, "Gb/s", AtLeast(95.0, Some(97.3)), |setup| {
            let mut runs = Vec::new();
            for seed in 0..3 {
                let mut setup = setup.clone();
                setup.nic.seed += seed;
                let bed = Testbed::new(&setup)?;
                let lost = Match { probability: Some(1e-3), ..Match::default() };
                bed.sim().link_mut(0).rules.add(lost, Action::Drop);
                let load = Load { messages: 48, ..big(Kind::Write, 0) };
                let buffers = Buffers::new(&bed, MIB)?;
                let mut pairs = [bed.connect(&Connect::default())?];
                runs.push(run(&bed, &mut pairs, &buffers, &load)?);
            }
            let worst = runs.iter().min_by(|a, b| a.gbps.total_cmp(&b.gbps)).expect("three");
            Ok(worst.bandwidth())
        })
    }

    fn control(&mut self) -> Result<()> {
        self.measure("256 QPs from create to RTS, scaled from 254", "ms", AtMost(20.0, None), |setup| {
            let connect = Connect { sizes: QpSizes::new(16, 16), cq_entries: 16, ..Connect::default() };
            // Both devices at the same time, a CQ for each QP. Numbers 0 and 1 are not for callers.
            let mut r = timed(setup, |bed| Ok(bed.connect_many(&connect, 254)?))?;
            r.value *= 256.0 / 254.0;
            Ok(r)
        })?;
        for (name, page, bar) in
            [("registering 1 GB, 2 MiB pages", 2 << 20, 1.0), ("registering 1 GB, 4 KiB pages", 4096, 15.0)]
        {
            self.measure(name, "ms", AtMost(bar, None), |setup| {
                let pages = Translation::Pages(page);
                timed(setup, |bed| Ok(bed.hosts[0].pd.alloc_with(1 << 30, Access::LOCAL_WRITE, pages)?))
            })?;
        }
        Ok(())
    }

    fn speed(&mut self) -> Result<()> {
        let name = "simulation speed, one NIC, 512 bit, bidirectional line rate";
        // Of the host's time: a board makes no difference.
        let board = self.board.take();
        self.measure(name, "kcycles/s", AtLeast(100.0, None), |setup| {
            let bed = Testbed::new(setup)?;
            let load = Load { messages: 8, both: true, ..big(Kind::Write, 0) };
            let buffers = Buffers::new(&bed, MIB)?;
            let mut pairs = [bed.connect(&Connect::default())?];
            let (cycles, wall) = (bed.cycle(), Instant::now());
            let r = run(&bed, &mut pairs, &buffers, &load)?;
            // Two NICs, each on a thread of its own: this is the speed of one on one core.
            Ok(Run { value: (bed.cycle() - cycles) as f64 / wall.elapsed().as_secs_f64() / 1e3, ..r.bandwidth() })
        })?;
        self.board = board;
        Ok(())
    }
}

/// Messages of a megabyte, four at a time.
fn big(kind: Kind, offset: usize) -> Load {
    Load { kind, len: MIB, offset, depth: 4, signal: 1, messages: 12, both: false }
}

/// A load over `qps` fresh pairs of a fresh testbed.
fn reached(setup: &Setup, mtu: u32, qps: usize, load: &Load) -> Result<Reached> {
    let bed = Testbed::new(setup)?;
    let buffers = Buffers::new(&bed, load.len)?;
    let sizes = QpSizes::new(512, 256).one_sge();
    let connect = Connect { mtu, sizes, cq_entries: 1024, ..Connect::default() };
    let mut pairs = bed.connect_many(&connect, qps)?;
    let reached = run(&bed, &mut pairs, &buffers, load)?;
    all_were_ready(&bed)?;
    Ok(reached)
}

/// No message was refused for want of a receive: all loads post those before.
fn all_were_ready(bed: &Testbed) -> Result<()> {
    let missed: u64 = bed.hosts.iter().map(|h| h.device.counter(counter::RX_RNR)).sum();
    ensure!(missed == 0, "{missed} RNR NAKs while receives were posted");
    Ok(())
}

/// Device time that `work` takes, in milliseconds; what it makes is given back later.
fn timed<T>(setup: &Setup, work: impl Fn(&Testbed) -> Result<T>) -> Result<Run> {
    let bed = Testbed::new(setup)?;
    let (start, meter) = (bed.ns(), Meter::start(&bed));
    let made = work(&bed)?;
    let r = Run { value: (bed.ns() - start) / 1e6, pcie: Some(meter.percent(&bed)) };
    drop(made);
    Ok(r)
}
