//! `ferroce demo FILE`: a file crosses the wire by WRITE, comes back by READ, and its digest follows by SEND.

use crate::report::{count, gbps, note, payload_limit, quantile, say, table};
use abi::status::counter;
use anyhow::{Context, Result, bail, ensure};
use driver::{Access, Completion, Cq, Data, Flags, Mr, Operation};
use fabric::{Action, Capture, Match};
use indicatif::{ProgressBar, ProgressStyle};
use nic::LinkRate;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{IsTerminal, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use testbed::{Connect, Pair, Setup, Testbed};

/// Options of the demo.
#[derive(clap::Args)]
pub struct Args {
    /// The file to move.
    file: PathBuf,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096.
    #[arg(long, default_value_t = 4096, value_parser = mtu, allow_negative_numbers = true)]
    mtu: u32,
    /// Queue pairs that share the work, 1 to 64.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64), allow_negative_numbers = true)]
    qps: u16,
    /// Probability that a frame is lost, such as 1e-3.
    #[arg(long, default_value_t = 0.0, value_parser = probability, allow_negative_numbers = true)]
    loss: f64,
    /// Fault rules of the link, a TOML file as docs/faults.md describes; the loss comes behind them.
    #[arg(long)]
    faults: Option<PathBuf>,
    /// Seed of all that is by chance.
    #[arg(long, default_value_t = 1, value_parser = seed, allow_negative_numbers = true)]
    seed: u64,
    /// Link rate, such as 25G or 100G.
    #[arg(long, default_value = "100G", value_parser = link_rate, allow_hyphen_values = true)]
    link: f64,
    /// IPv6 instead of IPv4.
    #[arg(long)]
    ip6: bool,
    /// Datapath width in bits: 64, 128, 256 or 512.
    #[arg(long, default_value_t = 512, value_parser = width, allow_negative_numbers = true)]
    width: usize,
    /// Where to write the capture of the wire; a file that is there is overwritten.
    #[arg(long, default_value = "demo.pcapng")]
    capture: PathBuf,
}

fn link_rate(text: &str) -> std::result::Result<f64, String> {
    let number = text.strip_suffix(['G', 'g']).unwrap_or(text).parse::<f64>().ok();
    number.filter(|g| (1.0..=400.0).contains(g)).ok_or_else(|| "a rate from 1G to 400G, such as 25G".into())
}

fn probability(text: &str) -> std::result::Result<f64, String> {
    let number = text.parse().ok().filter(|p| (0.0..1.0).contains(p));
    number.ok_or_else(|| "a probability from 0 to below 1, such as 1e-3".into())
}

fn seed(text: &str) -> std::result::Result<u64, String> {
    text.parse().map_err(|_| format!("a whole number from 0 to {}", u64::MAX))
}

fn one_of<T: std::str::FromStr + PartialEq>(text: &str, these: &[T], names: &str) -> std::result::Result<T, String> {
    text.parse().ok().filter(|n| these.contains(n)).ok_or_else(|| names.into())
}

fn mtu(text: &str) -> std::result::Result<u32, String> {
    one_of(text, &[256, 512, 1024, 2048, 4096], "256, 512, 1024, 2048 or 4096")
}

fn width(text: &str) -> std::result::Result<usize, String> {
    one_of(text, &[64, 128, 256, 512], "64, 128, 256 or 512")
}

/// Longest file: it is held in memory four times, and takes an hour or so.
const LARGEST: u64 = 4 << 30;
/// Longest file of fault rules.
const RULES: u64 = 1 << 20;
/// A transfer that is going to take longer is announced, in seconds.
const LONG: f64 = 30.0;
/// Longest message of the transfer.
const MESSAGE: usize = 1 << 20;
/// Messages in flight per QP.
const DEPTH: usize = 4;
/// A transfer is given up when nothing is completed for so many nanoseconds of simulated time, and twice those that all that is in
/// flight should take.
const PATIENCE: f64 = 20e6;
/// Probes of latency.
const PINGS: usize = 200;
/// Small WRITEs whose rate is measured, those of one doorbell, and doorbells ahead per QP: a full send queue.
const BURST: usize = 2048;
const BATCH: usize = 32;
const BATCHES: usize = 8;

fn read_faults(path: &Path) -> Result<Vec<(Match, Action)>> {
    let mut text = String::new();
    let read = File::open(path).and_then(|f| f.take(RULES + 1).read_to_string(&mut text));
    read.with_context(|| format!("cannot read {}", path.display()))?;
    ensure!(text.len() as u64 <= RULES, "{} is no file of fault rules: it has more than {RULES} bytes", path.display());
    fabric::parse_rules(&text).with_context(|| format!("in {}", path.display()))
}

/// Whether two names are of one file, links or not.
fn is_same(a: &Path, b: &Path) -> bool {
    let file = |path: &Path| std::fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
    file(a).is_some_and(|a| file(b) == Some(a))
}

/// Runs the demo.
pub fn run(args: &Args) -> Result<()> {
    let file = read(&args.file)?;
    for input in [Some(&args.file), args.faults.as_ref()].into_iter().flatten() {
        if is_same(input, &args.capture) {
            bail!("the capture would overwrite {}: name another file with --capture", input.display());
        }
    }
    let output = Path::new("/dev/stdout");
    if is_same(output, &args.capture) && !std::fs::metadata(output)?.file_type().is_char_device() {
        bail!("the figures would go into the capture: name another file than standard output with --capture");
    }
    let faults = args.faults.as_deref().map_or(Ok(Vec::new()), read_faults)?;
    ctrlc::set_handler(interrupt).context("cannot handle Ctrl-C")?;
    let capture = Capture::create(&args.capture, &["nic0", "nic1"])
        .with_context(|| format!("cannot create {} (--capture names another place)", args.capture.display()))?;
    let setup = Setup { width: args.width, ip6: args.ip6, ..Setup::default() };
    let setup =
        Setup { nic: nic::NicOptions { seed: args.seed, link: LinkRate::gbps(args.link), ..setup.nic }, ..setup };
    let started = Instant::now();
    // An interrupt ends the compilers too, which then say that they have failed.
    let bed = Testbed::new(&setup);
    go_on("while the NICs were built")?;
    let mut bed = bed?;
    {
        let mut sim = bed.sim();
        sim.capture(Some(capture));
        let rules = &mut sim.link_mut(0).rules;
        faults.into_iter().for_each(|(matches, action)| rules.add(matches, action));
        if args.loss > 0.0 {
            let lost = Match { probability: Some(args.loss), ..Match::default() };
            rules.add_named(format!("--loss {}", args.loss), lost, Action::Drop);
        }
    }
    let device = &bed.hosts[0].device;
    let (mhz, firmware) = (device.clock_mhz(), device.firmware_version());
    note!(
        "two NICs of {} bits at {mhz} MHz (hash of the gates {:08x}), firmware {}.{}: connecting {}",
        args.width,
        device.build_hash(),
        firmware >> 16,
        firmware & 0xffff,
        count(args.qps.into(), "queue pair")
    );
    // The hosts find each other by ARP or neighbour discovery; they go on answering while these live.
    let _networks =
        bed.discover().with_context(|| match bed.sim().link_mut(0).rules.rules.iter().map(|r| r.fired).sum() {
            0u64 => "the hosts do not find each other".to_string(),
            fired => format!("the hosts do not find each other: fault rules and loss have hit {fired} of their frames"),
        })?;
    go_on("before the transfer began")?;
    let connect = Connect { mtu: args.mtu, ..Connect::default() };
    let (cycles, connecting) = (bed.cycle(), Instant::now());
    let mut pairs = bed.connect_many(&connect, args.qps.into())?;
    let speed = (bed.cycle() - cycles) as f64 / connecting.elapsed().as_secs_f64();
    let took = started.elapsed().as_secs_f64();
    let [from, to] = [&bed.hosts[0], &bed.hosts[1]].map(|h| h.gid.ip);
    let qpns = |end: fn(&Pair) -> u32| match (pairs.first().map(end), pairs.last().map(end)) {
        (Some(first), Some(last)) if first != last => format!("QPs {first} to {last}"),
        (first, _) => format!("QP {}", first.unwrap_or(0)),
    };
    let (near, far) = (qpns(|p| p.a.qp.qpn()), qpns(|p| p.b.qp.qpn()));
    note!("ready after {took:.1} s: {near} of {from} with {far} of {to}");
    announce(file.len(), limit(args, &bed).0, 1e3 / f64::from(mhz), speed);

    // What was on the wire until then is kept, whatever the end.
    let moved = move_file(args, &bed, &mut pairs, &file);
    let capture = bed.sim().capture(None).context("writing it failed").and_then(|c| Ok(c.finish()?));
    // The hosts end with this process: to destroy all objects in order would only make the user wait.
    std::mem::forget((pairs, bed));
    let path = args.capture.display();
    let packets = match &capture {
        Ok(written) => format!("{} in {path}", count(*written, "packet")),
        Err(e) => format!("{path} is incomplete: {e:#}"),
    };
    say(&format!("{}\n{packets}", moved.context(packets.clone())?))?;
    // The transfer was good, yet not all that was asked for is there.
    capture.with_context(|| format!("{path} is incomplete")).map(drop)
}

/// The file, if it is one that can be moved.
fn read(path: &Path) -> Result<Vec<u8>> {
    let cannot = || format!("cannot read {}", path.display());
    let about = std::fs::metadata(path).with_context(cannot)?;
    if !about.is_file() {
        bail!("{} is not a file", path.display());
    }
    if about.len() > LARGEST {
        let gib = |n: u64| n as f64 / f64::from(1 << 30);
        bail!("{} has {:.1} GiB; the demo moves up to {:.1} GiB", path.display(), gib(about.len()), gib(LARGEST));
    }
    let file = std::fs::read(path).with_context(cannot)?;
    if file.is_empty() {
        bail!("{} is empty: nothing to move", path.display());
    }
    Ok(file)
}

/// Gb/s of payload that can pass at most, and what sets it: the link, or the NIC's datapath or PCIe behind it.
fn limit(args: &Args, bed: &Testbed) -> (f64, String) {
    let share = payload_limit(args.mtu.into(), args.ip6, false);
    let datapath = (args.width as u32 * bed.hosts[0].device.clock_mhz()) as f64 / 1e3;
    let pcie = nic::PcieProfile::gen3x16();
    let (own, name) =
        [(args.link, "link"), (datapath, "datapath")].into_iter().min_by(|a, b| a.0.total_cmp(&b.0)).expect("two");
    match pcie.payload_gbps() {
        bus if bus < own * share => (bus, format!("PCIe {}", pcie.name)),
        _ => (own * share, format!("{own:.0}G {name} at this MTU")),
    }
}

/// Says how long a large file is going to take, at `speed` cycles a second.
fn announce(len: usize, limit: f64, ns_per_cycle: f64, speed: f64) {
    // There by WRITE and back by READ.
    let cycles = 2.0 * len as f64 * 8.0 / limit / ns_per_cycle;
    if cycles / speed > LONG {
        note!(
            "{len} bytes there and back are {:.1} million cycles: about {:.0} min at the {:.0} kcycles/s of this machine \
             (Ctrl-C ends it and keeps the capture)",
            cycles / 1e6,
            (cycles / speed / 60.0).ceil(),
            speed / 1e3
        );
    }
}

/// Set by Ctrl-C.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// The first Ctrl-C asks the transfer to end, a second one ends the process.
fn interrupt() {
    if INTERRUPTED.swap(true, Ordering::Relaxed) {
        std::process::exit(130);
    }
}

/// Whether Ctrl-C was pressed.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// An error once Ctrl-C was pressed.
fn go_on(when: &str) -> Result<()> {
    ensure!(!interrupted(), "interrupted {when}");
    Ok(())
}

/// Moves the file by WRITE, READ and SEND, measures, and returns the table of figures.
fn move_file(args: &Args, bed: &Testbed, pairs: &mut [Pair], file: &[u8]) -> Result<String> {
    let rw = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let source = bed.hosts[0].pd.alloc(file.len(), rw)?;
    let remote = bed.hosts[1].pd.alloc(file.len(), rw)?;
    let back = bed.hosts[0].pd.alloc(file.len(), rw)?;
    source.write(0, file);

    let (limit, of_what) = limit(args, bed);
    let (cycles, began, wall) = (bed.cycle(), bed.ns(), Instant::now());
    let write = transfer(bed, pairs, file.len(), limit, "WRITE", |at, len| {
        (Operation::Write(remote.remote(at)), source.sge(at, len))
    })?;
    let read = transfer(bed, pairs, file.len(), limit, "READ", |at, len| {
        (Operation::Read(remote.remote(at)), back.sge(at, len))
    })?;
    compare(file, &back, "read back")?;
    digest(bed, &mut pairs[0], file, &remote)?;
    compare(file, &remote, "written to the peer")?;
    let mut latency = pings(bed, &mut pairs[0])?;
    let rate = small_writes(bed, pairs)?;
    let (cycles, us, wall) = (bed.cycle() - cycles, (bed.ns() - began) / 1e3, wall.elapsed());
    let counts = |c: usize| bed.hosts.iter().map(|h| h.device.counter(c)).sum::<u64>();
    let recovery = format!(
        "went back: {} by NAK or gap, {} by fast timer, {} by timeout",
        counts(counter::RETRY_NAK),
        counts(counter::RETRY_FAST_TIMER),
        counts(counter::RETRY_TIMEOUT)
    );
    let faults: Vec<_> = bed.sim().link_mut(0).rules.rules.iter().map(|r| r.fired).collect();

    let mut time = |q| format!("{:.0} ns", quantile(&mut latency, q));
    let row = |what: &str, value: String, note: String| vec![what.to_string(), value, note];
    let of = |ns: f64| format!("{:.1} Gb/s", gbps(file.len() as u64, ns));
    let share =
        |ns: f64| format!("{:.1} % of {limit:.1} Gb/s ({of_what})", 100.0 * gbps(file.len() as u64, ns) / limit);
    let rows = [
        row("file", count(file.len() as u64, "byte"), "every byte compared, digest sent and compared".into()),
        row("WRITE goodput", of(write), share(write)),
        row("READ goodput", of(read), share(read)),
        row(
            "64 B WRITE rate",
            format!("{rate:.1} Mmsg/s"),
            format!(
                "{}, {}, first post to last completion",
                count(BURST as u64, "WRITE"),
                count(args.qps.into(), "QP")
            ),
        ),
        row("64 B WRITE one way, p50", time(0.5), "doorbell to byte in peer memory".into()),
        row("64 B WRITE one way, p99", time(0.99), format!("n = {PINGS}, one at a time")),
        row("64 B WRITE one way, max", time(1.0), String::new()),
        row("faults on the link", count(faults.iter().sum(), "frame"), faults_by_rule(args, &faults)),
        row("recovery", format!("{} sent again", count(counts(counter::TX_RETRANSMITTED), "packet")), recovery),
        row("simulated", count(cycles, "cycle"), format!("{us:.1} us")),
        row(
            "simulation speed",
            format!("{:.0} kcycles/s", cycles as f64 / wall.as_secs_f64() / 1e3),
            format!("{:.1} s, two NICs", wall.as_secs_f64()),
        ),
    ];
    // Nobody waits for their destruction.
    std::mem::forget((source, remote, back));
    Ok(table(&["", "figure", ""], &rows))
}

/// How often each rule fired, in the numbers of the capture.
fn faults_by_rule(args: &Args, fired: &[u64]) -> String {
    let loss = (args.loss > 0.0).then(|| fired.len() - 1);
    let one = |(i, n): (usize, &u64)| match Some(i) == loss {
        true => format!("loss: {n}"),
        false => format!("rule {}: {n}", i + 1),
    };
    fired.iter().enumerate().map(one).collect::<Vec<_>>().join(", ")
}

/// Moves `len` bytes in messages over all pairs; returns the nanoseconds from the first doorbell to the last completion. `rate` is
/// what the way allows, in Gb/s.
fn transfer(
    bed: &Testbed,
    pairs: &mut [Pair],
    len: usize,
    rate: f64,
    name: &'static str,
    request: impl Fn(usize, usize) -> (Operation, driver::Sge),
) -> Result<f64> {
    let bar = ProgressBar::new(len as u64).with_prefix(name);
    if !std::io::stderr().is_terminal() {
        note!("{} by {name}", count(len as u64, "byte"));
    }
    bar.set_style(ProgressStyle::with_template("{prefix:6} {bar:40} {bytes}/{total_bytes} {eta}")?);
    let (start, mut next, mut done) = (bed.ns(), 0, 0);
    let mut flying = vec![0usize; pairs.len()];
    let message = len.div_ceil(pairs.len()).min(MESSAGE);
    let (mut moved, patience) = (start, PATIENCE + 2.0 * 8.0 * (message * DEPTH * pairs.len()) as f64 / rate);
    while done < len {
        go_on(&format!("after {done} of {len} bytes by {name}"))?;
        patient(bed, moved, patience, &format!("{name}, after {done} of {len} bytes,"))?;
        // One message for each pair in turn, so that all share the work.
        for depth in 1..=DEPTH {
            for (pair, flying) in pairs.iter_mut().zip(&mut flying) {
                if *flying >= depth || next == len {
                    continue;
                }
                let n = message.min(len - next);
                let (operation, sge) = request(next, n);
                let mut batch = pair.a.qp.post();
                batch.add(n as u64, operation, Data::Sges(&[sge]), Flags::SIGNALED)?;
                batch.ring();
                next += n;
                *flying += 1;
            }
        }
        for (pair, flying) in pairs.iter_mut().zip(&mut flying) {
            for c in pair.a.cq.poll() {
                check(&c, name)?;
                *flying -= 1;
                done += c.wr_id as usize;
                moved = bed.ns();
                bar.set_position(done as u64);
            }
        }
        bed.relax();
    }
    bar.finish();
    Ok(bed.ns() - start)
}

fn check(c: &Completion, what: &str) -> Result<()> {
    c.status.with_context(|| format!("{what} on QP {} failed", c.qpn))
}

/// An error when nothing has gone on since `moved` for longer than `patience`, both in nanoseconds of simulated time.
fn patient(bed: &Testbed, moved: f64, patience: f64, what: &str) -> Result<()> {
    let still = bed.ns() - moved;
    ensure!(
        still < patience,
        "{what} has not gone on for {:.0} ms of simulated time: see the capture; do fault rules or the loss let nothing through?",
        still / 1e6
    );
    Ok(())
}

/// The next completion.
fn completed(bed: &Testbed, cq: &mut Cq, what: &str) -> Result<Completion> {
    let start = bed.ns();
    loop {
        go_on(&format!("before the {what} was done"))?;
        patient(bed, start, PATIENCE, what)?;
        let next = cq.poll().next();
        if let Some(c) = next {
            check(&c, what)?;
            return Ok(c);
        }
        bed.relax();
    }
}

fn compare(file: &[u8], mr: &Mr, what: &str) -> Result<()> {
    let mut got = vec![0; file.len()];
    mr.read(0, &mut got);
    match file.iter().zip(&got).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(at) => bail!("byte {at} {what} is {:#04x}, the file has {:#04x}", got[at], file[at]),
    }
}

/// Sends the file's digest; the peer compares it with that of its own memory. Its receive completes behind the WRITEs
/// before it, so their data is there by then.
fn digest(bed: &Testbed, pair: &mut Pair, file: &[u8], remote: &Mr) -> Result<()> {
    let sent = Sha256::digest(file);
    let inbox = bed.hosts[1].pd.alloc(sent.len(), Access::LOCAL_WRITE)?;
    pair.b.qp.post_recv(7, &[inbox.sge(0, sent.len())])?;
    let mut batch = pair.a.qp.post();
    batch.add(8, Operation::Send, Data::Inline(&sent), Flags::SIGNALED)?;
    batch.ring();
    completed(bed, &mut pair.a.cq, "SEND of the digest")?;
    let arrived = completed(bed, &mut pair.b.cq, "receive of the digest")?;
    let (mut got, mut memory) = (vec![0; sent.len()], vec![0; file.len()]);
    inbox.read(0, &mut got);
    remote.read(0, &mut memory);
    ensure!(arrived.len as usize == sent.len() && got == Sha256::digest(&memory).as_slice(), "the digests differ");
    Ok(())
}

/// One-way times of 64-byte WRITEs, one at a time, in nanoseconds.
fn pings(bed: &Testbed, pair: &mut Pair) -> Result<Vec<f64>> {
    let from = bed.hosts[0].pd.alloc(64, Access::LOCAL_WRITE)?;
    let to = bed.hosts[1].pd.alloc(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let mut times = Vec::with_capacity(PINGS);
    note!("{PINGS} WRITEs of 64 bytes, one at a time");
    for i in 0..PINGS {
        let mark = (i % 255) as u8 + 1;
        from.write(0, &[mark; 64]);
        let start = bed.ns();
        let mut batch = pair.a.qp.post();
        batch.add(0, Operation::Write(to.remote(0)), Data::Sges(&[from.sge(0, 64)]), Flags::SIGNALED)?;
        batch.ring();
        let mut done = None;
        while to.byte(63) != mark {
            bed.sim().advance_cycles(1);
            // A WRITE that fails never comes.
            done = done.or_else(|| pair.a.cq.poll().next());
            done.iter().try_for_each(|c| check(c, "64-byte WRITE"))?;
            go_on("between WRITEs of 64 bytes")?;
        }
        times.push(bed.ns() - start);
        match done {
            Some(c) => check(&c, "64-byte WRITE")?,
            None => drop(completed(bed, &mut pair.a.cq, "64-byte WRITE")?),
        }
    }
    Ok(times)
}

/// Rate of 64-byte WRITEs over all pairs in Mmsg/s.
fn small_writes(bed: &Testbed, pairs: &mut [Pair]) -> Result<f64> {
    note!("{BURST} WRITEs of 64 bytes at once");
    let from = bed.hosts[0].pd.alloc(4096, Access::LOCAL_WRITE)?;
    let to = bed.hosts[1].pd.alloc(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let start = bed.ns();
    let (mut left, mut flying) = (BURST / BATCH, vec![0usize; pairs.len()]);
    while left > 0 || flying.iter().any(|f| *f > 0) {
        // One doorbell for each pair in turn, so that all share the work.
        for depth in 1..=BATCHES {
            for (pair, flying) in pairs.iter_mut().zip(&mut flying) {
                if *flying >= depth || left == 0 {
                    continue;
                }
                let mut batch = pair.a.qp.post();
                for i in 0..BATCH {
                    let flags = if i + 1 == BATCH { Flags::SIGNALED } else { Flags::empty() };
                    batch.add(0, Operation::Write(to.remote(64 * i)), Data::Sges(&[from.sge(64 * i, 64)]), flags)?;
                }
                batch.ring();
                (left, *flying) = (left - 1, *flying + 1);
            }
        }
        for (pair, flying) in pairs.iter_mut().zip(&mut flying) {
            go_on("between WRITEs of 64 bytes")?;
            for c in pair.a.cq.poll() {
                check(&c, "64-byte WRITE")?;
                *flying -= 1;
            }
        }
        bed.relax();
    }
    Ok(BURST as f64 / (bed.ns() - start) * 1e3)
}
