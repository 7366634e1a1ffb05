//! `ferroce bench core`: the figures of the NIC core, in cycles at 250 MHz, exact and repeatable.

use super::Figure;
use super::latency;
use super::load::{Buffers, Kind, Load, run};
use crate::report::payload_limit;
use anyhow::Result;
use driver::qp::QpSizes;
use driver::{Access, Translation};
use fabric::{Action, Match};
use nic::{NS, PcieProfile};
use std::time::Instant;
use testbed::{Connect, Setup, Testbed};

/// A megabyte message.
const MIB: usize = 1 << 20;

struct Bench {
    setup: Setup,
    only: String,
    figures: Vec<Figure>,
}

/// All figures whose name contains `only`; `stages` shows where the time of a message goes.
pub fn figures(gen4: bool, board: bool, only: &str, stages: bool) -> Result<Vec<Figure>> {
    let mut setup = Setup::default();
    if gen4 {
        setup.nic.pcie = PcieProfile::gen4x16();
    }
    if board {
        setup.nic.mac_latency = 250 * NS;
    }
    let mut b = Bench { setup, only: only.into(), figures: Vec::new() };
    b.bandwidth()?;
    b.messages()?;
    b.figures.extend(latency::figures(&b.setup, only, stages)?);
    b.loopback()?;
    b.loss()?;
    b.control()?;
    b.speed()?;
    Ok(b.figures)
}

impl Bench {
    fn wants(&self, figure: &str) -> bool {
        figure.contains(&self.only)
    }

    /// A load over `qps` fresh pairs of a fresh testbed.
    fn load(&self, mtu: u32, qps: usize, load: &Load) -> Result<super::load::Reached> {
        let bed = Testbed::new(&self.setup)?;
        let buffers = Buffers::new(&bed, load.len)?;
        let sizes = QpSizes { send_blocks: 512, receives: 128 };
        let connect = Connect { mtu, sizes, cq_entries: 1024, ..Connect::default() };
        let mut pairs = bed.connect_many(&connect, qps)?;
        run(&bed, &mut pairs, &buffers, load)
    }

    fn gbps(&mut self, name: &str, mtu: u32, qps: usize, load: Load, bar: f64) -> Result<()> {
        if self.wants(name) {
            let r = self.load(mtu, qps, &load)?;
            let mut f =
                Figure::at_least(name, r.gbps, "Gb/s", bar, Some(100.0 * payload_limit(mtu.into(), false, false)));
            f.pcie = Some(r.pcie);
            eprintln!("{name}: {:.2} Gb/s", r.gbps);
            self.figures.push(f);
        }
        Ok(())
    }

    fn mmsg(&mut self, name: &str, qps: usize, load: Load, bar: f64, limit: Option<f64>) -> Result<()> {
        if self.wants(name) {
            let r = self.load(4096, qps, &load)?;
            let mut f = Figure::at_least(name, r.mmsg, "Mmsg/s", bar, limit);
            f.pcie = Some(r.pcie);
            eprintln!("{name}: {:.2} Mmsg/s", r.mmsg);
            self.figures.push(f);
        }
        Ok(())
    }

    fn bandwidth(&mut self) -> Result<()> {
        let big = |kind, offset| Load { kind, len: MIB, offset, depth: 4, signal: 1, messages: 12, both: false };
        for kind in [Kind::Write, Kind::Read, Kind::Send] {
            for offset in [0, 1] {
                let name = |mtu| format!("1 MiB {kind:?}, MTU {mtu}, one QP, address +{offset}");
                self.gbps(&name(4096), 4096, 1, big(kind, offset), 97.0)?;
                self.gbps(&name(1024), 1024, 1, big(kind, offset), 91.5)?;
                self.gbps(&name(256), 256, 1, Load { messages: 6, ..big(kind, offset) }, 65.0)?;
            }
            let one = |f: &Figure| f.figure == format!("1 MiB {kind:?}, MTU 4096, one QP, address +0");
            let bar = self.figures.iter().find(|f| one(f)).map_or(96.0, |f| 0.99 * f.value);
            let many = Load { messages: 3, depth: 2, ..big(kind, 0) };
            self.gbps(&format!("1 MiB {kind:?}, MTU 4096, 64 QPs interleaved"), 4096, 64, many, bar)?;
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
        let read = |messages| Load { depth: 64, signal: 16, ..small(Kind::Read, messages) };
        self.mmsg("64 B Read, one QP, 16 outstanding", 1, read(2048), 9.0, None)?;
        self.mmsg("64 B Read, 16 QPs", 16, read(4096), 30.0, None)
    }

    fn loopback(&mut self) -> Result<()> {
        let name = "1 MiB Write, MTU 4096, loopback";
        if self.wants(name) {
            let bed = Testbed::new(&self.setup)?;
            let load = Load { kind: Kind::Write, len: MIB, offset: 0, depth: 4, signal: 1, messages: 12, both: false };
            let buffers = Buffers::on(&bed, [0, 0], MIB)?;
            let mut pairs = [bed.connect_hosts([0, 0], &Connect::default())?];
            let r = run(&bed, &mut pairs, &buffers, &load)?;
            // All of it is written to host memory, in TLPs of 256 bytes. Behind that stands a beat of 64 bytes a cycle, 65 for a
            // frame.
            let pcie = self.setup.nic.pcie.gbps * 256.0 / (256.0 + 24.0);
            let limit = pcie.min(128.0 * 64.0 / 65.0);
            let mut f = Figure::at_least(name, r.gbps, "Gb/s", 97.0, Some(limit));
            f.pcie = Some(r.pcie);
            self.figures.push(f);
        }
        Ok(())
    }

    fn loss(&mut self) -> Result<()> {
        let name = "1 MiB Write, MTU 4096, loss 1e-3";
        if self.wants(name) {
            let bed = Testbed::new(&self.setup)?;
            let lost = Match { probability: Some(1e-3), ..Match::default() };
            bed.sim().link_mut(0).rules.add(lost, Action::Drop);
            let load = Load { kind: Kind::Write, len: MIB, offset: 0, depth: 4, signal: 1, messages: 48, both: false };
            let buffers = Buffers::new(&bed, MIB)?;
            let mut pairs = [bed.connect(&Connect::default())?];
            let r = run(&bed, &mut pairs, &buffers, &load)?;
            self.figures.push(Figure::at_least(name, r.gbps, "Gb/s", 95.0, Some(97.3)));
        }
        Ok(())
    }

    fn control(&mut self) -> Result<()> {
        let name = "256 QPs from create to RTS, scaled from 126";
        if self.wants(name) {
            let bed = Testbed::new(&self.setup)?;
            let start = bed.ns();
            let connect =
                Connect { sizes: QpSizes { send_blocks: 16, receives: 16 }, cq_entries: 16, ..Connect::default() };
            // Both devices at the same time, a CQ for each QP.
            let pairs = bed.connect_many(&connect, 126)?;
            let ms = (bed.ns() - start) / 1e6 * 256.0 / pairs.len() as f64;
            self.figures.push(Figure::at_most(name, ms, "ms", 20.0, None));
        }
        for (name, page, bar) in
            [("registering 1 GB, 2 MiB pages", 2 << 20, 1.0), ("registering 1 GB, 4 KiB pages", 4096, 15.0)]
        {
            if self.wants(name) {
                let bed = Testbed::new(&self.setup)?;
                let start = bed.ns();
                let mr = bed.hosts[0].pd.alloc_with(1 << 30, Access::LOCAL_WRITE, Translation::Pages(page))?;
                let ms = (bed.ns() - start) / 1e6;
                drop(mr);
                self.figures.push(Figure::at_most(name, ms, "ms", bar, None));
            }
        }
        Ok(())
    }

    fn speed(&mut self) -> Result<()> {
        let name = "simulation speed, one NIC, 512 bit, bidirectional line rate";
        if self.wants(name) {
            let bed = Testbed::new(&self.setup)?;
            let load = Load { kind: Kind::Write, len: MIB, offset: 0, depth: 4, signal: 1, messages: 8, both: true };
            let buffers = Buffers::new(&bed, MIB)?;
            let mut pairs = [bed.connect(&Connect::default())?];
            let (cycles, wall) = (bed.cycle(), Instant::now());
            run(&bed, &mut pairs, &buffers, &load)?;
            // Two NICs, each on a thread of its own: this is the speed of one on one core.
            let value = (bed.cycle() - cycles) as f64 / wall.elapsed().as_secs_f64() / 1e3;
            self.figures.push(Figure::at_least(name, value, "kcycles/s", 100.0, None));
        }
        Ok(())
    }
}
