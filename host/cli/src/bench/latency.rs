//! Latencies of an idle system, and where their cycles go.

use super::Run;
use super::load::Meter;
use super::measure::{Ask, Bench};
use crate::report::{note, quantile};
use anyhow::Result;
use driver::{Access, Data, Flags, Operation};
use testbed::{Connect, Setup, Testbed};

/// Messages that are measured.
const MESSAGES: u8 = 100;
/// Bytes of each.
const LEN: usize = 64;

/// Measures them; `stages` shows where the time of a message goes.
pub fn figures(b: &mut Bench, stages: bool) -> Result<()> {
    for (name, direct, bar, limit) in [
        ("64 B Write one way, fetched WQE", false, 2.0, 1.7),
        ("64 B Write one way, direct WQE with inline data", true, 1.0, 0.6),
    ] {
        b.measure(name, "us", Ask::AtMost(bar, Some(limit)), |s| write(s, direct, stages.then_some(name)))?;
    }
    // From the doorbell to the completion's arrival. Two reads of host memory alone would take 1.7 us: a direct WQE.
    let name = "64 B Read, idle round trip, direct WQE";
    b.measure(name, "us", Ask::AtMost(1.6, Some(1.3)), |s| read(s, stages.then_some(name)))
}

/// Times from the doorbell's store until the last byte is in the peer's memory, in microseconds.
fn write(setup: &Setup, direct: bool, stages: Option<&str>) -> Result<Run> {
    let bed = Testbed::new(setup)?;
    let mut pair = bed.connect(&Connect::default())?;
    let from = bed.hosts[0].pd.alloc(LEN, Access::LOCAL_WRITE)?;
    let to = bed.hosts[1].pd.alloc(LEN, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let (mut times, meter) = (Vec::new(), Meter::start(&bed));
    for i in 1..=MESSAGES {
        let mark = [i; LEN];
        from.write(0, &mark);
        let start = bed.cycle();
        note(&bed, stages.is_some());
        let sge = [from.sge(0, LEN)];
        let mut batch = pair.a.qp.post();
        let data = if direct { Data::Inline(&mark) } else { Data::Sges(&sge) };
        batch.add(0, Operation::Write(to.remote(0)), data, Flags::SIGNALED)?;
        if direct {
            batch.ring_direct()
        } else {
            batch.ring()
        }
        while to.byte(LEN - 1) != i {
            bed.sim().advance_cycles(1);
        }
        times.push((bed.cycle() - start) as f64 * 0.004);
        if i == MESSAGES {
            show(&bed, stages, start);
        }
        pair.a.cq.wait().status?;
    }
    Ok(Run { value: quantile(&mut times, 0.5), pcie: Some(meter.percent(&bed)) })
}

/// Times from the doorbell's store until the completion is in memory, in microseconds.
fn read(setup: &Setup, stages: Option<&str>) -> Result<Run> {
    let bed = Testbed::new(setup)?;
    let mut pair = bed.connect(&Connect::default())?;
    let to = bed.hosts[0].pd.alloc(LEN, Access::LOCAL_WRITE)?;
    let from = bed.hosts[1].pd.alloc(LEN, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
    let (mut times, meter) = (Vec::new(), Meter::start(&bed));
    for i in 1..=MESSAGES {
        let start = bed.cycle();
        note(&bed, stages.is_some());
        let mut batch = pair.a.qp.post();
        batch.add(0, Operation::Read(from.remote(0)), Data::Sges(&[to.sge(0, LEN)]), Flags::SIGNALED)?;
        batch.ring_direct();
        let done = loop {
            bed.sim().advance_cycles(1);
            let next = pair.a.cq.poll().next();
            if let Some(c) = next {
                break c;
            }
        };
        times.push((bed.cycle() - start) as f64 * 0.004);
        if i == MESSAGES {
            show(&bed, stages, start);
        }
        done.status?;
    }
    Ok(Run { value: quantile(&mut times, 0.5), pcie: Some(meter.percent(&bed)) })
}

/// Lets both NICs note what passes from now on.
fn note(bed: &Testbed, wanted: bool) {
    if wanted {
        (0..2).for_each(|n| drop(bed.sim().nic(n).note_passages()));
    }
}

/// Shows what has passed since: cycle from `start` on, cycles since the line before, NIC, what.
fn show(bed: &Testbed, name: Option<&str>, start: u64) {
    let Some(name) = name else { return };
    let mut all: Vec<_> = (0..2)
        .flat_map(|n| bed.sim().nic(n).note_passages().into_iter().map(move |(at, what)| (at, n, what)))
        .collect();
    all.sort_by_key(|(at, ..)| *at);
    note!("{name}: {} cycles", bed.cycle() - start);
    let mut last = start;
    for (at, n, what) in all {
        note!("{:6} {:+5}  NIC {n}  {what:?}", at - start, at - last);
        last = at;
    }
}
