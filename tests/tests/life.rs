//! Life and death under load: function-level reset, Bus Master Enable off, destruction of busy QPs, and numbers that are used
//! again and again. Memory that is taken from the device is never touched again.

use abi::bar::health;
use abi::status::wc;
use driver::qp::{Path, QpSizes, Reset, Rts, SendOptions};
use driver::{Access, Cq, Data, Flags, Mr, Operation, Qp};
use fabric::SimFunction;
use ferroce_tests::{GUARD, assert_sound, bytes, noise, pass, path_to, region, reopen, wait};
use nic::{Adversary, BarRequest, Hold};
use rand::RngExt;
use std::sync::Arc;
use testbed::{Connect, End, Host, Pair, Setup, Testbed};

const LEN: usize = 6000;
const DEPTH: usize = 16;

/// A friendly host, and one that is as late and out of order as it may be.
fn hosts() -> impl Iterator<Item = Setup> {
    [Adversary::Friendly, Adversary::Hostile].into_iter().map(|adversary| {
        println!("a host, {adversary:?}");
        let mut setup = Setup::default();
        setup.nic.adversary = adversary;
        setup
    })
}

fn connect() -> Connect {
    // A peer that is gone is noticed after 2 x 0.26 ms.
    let send = SendOptions { timeout: 6, retry_count: 1, ..SendOptions::default() };
    let (access, sizes) = (Access::all(), QpSizes::new(64, 16));
    Connect { mtu: 1024, access, sizes, send, ..Connect::default() }
}

/// Memory on both sides, and work in both directions on every pair.
struct Load {
    source: [Mr; 2],
    target: [Mr; 2],
}

impl Load {
    fn new(bed: &Testbed) -> Self {
        let source = [0, 1].map(|i| region(&bed.hosts[i].pd, LEN, Access::all(), noise(i as u64)));
        let target = [0, 1].map(|i| region(&bed.hosts[i].pd, LEN, Access::all(), |_| GUARD));
        Load { source, target }
    }

    /// WRITEs, READs and atomics from both ends, far from done when this returns.
    fn start(&self, bed: &Testbed, pairs: &mut [Pair]) {
        for pair in pairs {
            for from in [0, 1] {
                let end = if from == 0 { &mut pair.a } else { &mut pair.b };
                let mut batch = end.qp.post();
                let far = &self.target[1 - from];
                for i in 0..DEPTH {
                    let (operation, sge) = match i % 4 {
                        0 => (Operation::Write(far.remote(0)), self.source[from].sge(0, LEN)),
                        2 => (Operation::Read(self.source[1 - from].remote(0)), self.target[from].sge(0, LEN)),
                        _ => (Operation::AtomicAdd { remote: far.remote(8 * i), add: 1 }, self.target[from].sge(0, 8)),
                    };
                    batch.add(i as u64, operation, Data::Sges(&[sge]), Flags::SIGNALED).unwrap();
                }
                batch.ring();
            }
        }
        pass(bed, verilate::rng(60).random_range(20..100));
    }
}

/// A WRITE and a READ on a new pair come out right.
fn assert_works(bed: &Testbed, what: &str) {
    let mut pair = bed.connect(&connect()).unwrap();
    let load = Load::new(bed);
    for from in [0, 1] {
        let end = if from == 0 { &mut pair.a } else { &mut pair.b };
        let mut batch = end.qp.post();
        let write = Operation::Write(load.target[1 - from].remote(0));
        batch.add(1, write, Data::Sges(&[load.source[from].sge(0, LEN)]), Flags::empty()).unwrap();
        let read = Operation::Read(load.target[1 - from].remote(0));
        batch.add(2, read, Data::Sges(&[load.target[from].sge(0, LEN)]), Flags::SIGNALED).unwrap();
        batch.ring();
        wait(bed, &mut end.cq, what).status.unwrap();
        assert!(bytes(&load.target[from]) == bytes(&load.source[from]), "{what}: READ back");
        assert!(bytes(&load.target[1 - from]) == bytes(&load.source[from]), "{what}: written");
        load.target[from].write(0, &[GUARD; LEN]);
    }
}

/// Whatever the old handles of NIC 0 try comes to an end at once: posting, destroying; and what they had posted is flushed, each
/// once, in order. Gives what is left: the ends at host 1, and its memory.
fn assert_gone(bed: &Testbed, pairs: Vec<Pair>, old: Host, load: Load, why: &str) -> (Vec<End>, [Mr; 2]) {
    let start = std::time::Instant::now();
    let e = old.device.check().unwrap_err().to_string();
    assert!(e.contains(why), "{e}");
    let mut peers = vec![];
    for mut pair in pairs {
        let sge = load.source[0].sge(0, 8);
        let write = Operation::Write(load.target[1].remote(0));
        let e = pair.a.qp.post().add(99, write, Data::Sges(&[sge]), Flags::SIGNALED).unwrap_err().to_string();
        assert!(e.contains(why), "{e}");
        let e = pair.a.qp.post_recv(99, &[]).unwrap_err().to_string();
        assert!(e.contains(why), "{e}");
        let numbers: Vec<_> = pair.a.cq.poll().map(|c| (c.wr_id, c.status.is_ok())).collect();
        assert!(numbers.is_sorted_by_key(|c| !c.1), "success before flush: {numbers:?}");
        assert_eq!(numbers.iter().map(|c| c.0).collect::<Vec<_>>(), (0..DEPTH as u64).collect::<Vec<_>>());
        assert!(pair.a.qp.query().unwrap_err().to_string().contains(why));
        drop(pair.a);
        peers.push(pair.b);
    }
    let Load { source: [source, left], target: [target, right] } = load;
    drop((old, source, target));
    let took = start.elapsed();
    println!("old handles are gone within {took:?}");
    assert!(took.as_secs() < 20, "{took:?}");
    assert!(bed.hosts[0].device.check().is_ok(), "the new handle is alive");
    (peers, [left, right])
}

/// The ends of pairs at host 1 notice that their peers are gone.
fn bury(bed: &Testbed, ends: Vec<End>, allowed: &[u8]) {
    for mut end in ends {
        let failed = (0..=DEPTH).map(|_| wait(bed, &mut end.cq, "a QP whose peer is gone"));
        let error = failed.filter_map(|c| c.status.err()).next().expect("an error");
        assert!(allowed.contains(&error.status), "{error}");
    }
}

/// With `hold`, the host keeps all read data and write responses back while the reset waits for them, longer than any of the
/// NIC's own waits in cycles, but less than PCIe's 50 ms.
fn function_level_reset(setup: &Setup, hold: bool) {
    let mut bed = Testbed::new(setup).unwrap();
    let load = Load::new(&bed);
    let mut pairs: Vec<_> = (0..4).map(|_| bed.connect(&connect()).unwrap()).collect();
    load.start(&bed, &mut pairs);
    if hold {
        bed.sim().nic(0).hold = Hold { read_data: true, write_response: true, ..Hold::default() };
        pass(&bed, 20);
    }
    let reset = BarRequest { bar: 0, offset: abi::bar::RESET as u32, bytes: 4, write: Some(1) };
    bed.sim().nic(0).bar(reset);
    pass(&bed, 3000);
    if hold {
        bed.sim().nic(0).bar(BarRequest { write: None, ..reset });
        pass(&bed, 100);
        assert_eq!(bed.sim().nic(0).bar_answer(), Some(1), "the reset waits for what is in flight");
        bed.sim().nic(0).hold = Hold::default();
        pass(&bed, 1000);
    }
    let function = Arc::new(SimFunction::new(bed.fabric.clone(), 0));
    let old = reopen(&mut bed, function);
    // What the device wrote before is there; it writes no more.
    load.target[0].write(0, &[GUARD; LEN]);
    pass(&bed, 1000);
    assert_eq!(bytes(&load.target[0]), [GUARD; LEN], "a device that was reset still writes");
    let (peers, _memory) = assert_gone(&bed, pairs, old, load, "reset");
    bury(&bed, peers, &[wc::RETRY_EXC]);
    bed.sim().nic(0).host.iommu.take_faults();
    assert_works(&bed, "after the reset");
    assert_sound(&bed, "after the reset");
}

#[test]
fn a_function_level_reset_under_load() {
    hosts().for_each(|setup| function_level_reset(&setup, false));
}

#[test]
fn a_function_level_reset_waits_for_a_late_host() {
    hosts().for_each(|setup| function_level_reset(&setup, true));
}

/// Deregistration waits for the packets under way, which are counted in and out: both counts start anew.
#[test]
fn what_is_made_after_a_reset_is_destroyed_as_fast_as_before() {
    let mut bed = Testbed::new(&Setup::default()).unwrap();
    let destroy = |bed: &Testbed| {
        let region = bed.hosts[0].pd.alloc(4096, Access::all()).unwrap();
        let cycle = bed.cycle();
        drop(region);
        bed.cycle() - cycle
    };
    (0..10).for_each(|_| assert_works(&bed, "before the reset"));
    let usual = destroy(&bed);
    let function = Arc::new(SimFunction::new(bed.fabric.clone(), 0));
    drop(reopen(&mut bed, function));
    for _ in 0..3 {
        let after = destroy(&bed);
        assert!(after < 2 * usual, "DESTROY_MR takes {after} cycles, {usual} before the reset");
    }
}

#[test]
fn bus_master_off_under_load() {
    for setup in hosts() {
        let mut bed = Testbed::new(&setup).unwrap();
        let load = Load::new(&bed);
        let mut pairs: Vec<_> = (0..4).map(|_| bed.connect(&connect()).unwrap()).collect();
        load.start(&bed, &mut pairs);
        // Every access of the device fails from here on.
        let function = Arc::new(SimFunction::new(bed.fabric.clone(), 0));
        function.set_bus_master(false);
        load.target[0].write(0, &[GUARD; LEN]);
        pass(&bed, 2000);
        assert_eq!(bytes(&load.target[0]), [GUARD; LEN], "a device without Bus Master Enable writes");
        assert_ne!(bed.hosts[0].device.health() & health::BUS, 0, "it says that its accesses fail");
        // A command cannot be answered, and says so; so do all that come after it, at once.
        let start = std::time::Instant::now();
        let e = bed.hosts[0].device.create_pd().err().expect("no answer can come").to_string();
        assert!(e.contains("does not reach memory"), "{e}");
        assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
        let old = reopen(&mut bed, function);
        // Some READs were answered that their data cannot be read.
        let (peers, _memory) = assert_gone(&bed, pairs, old, load, "does not reach memory");
        bury(&bed, peers, &[wc::RETRY_EXC, wc::REM_OP]);
        assert_works(&bed, "with Bus Master Enable again");
        assert_sound(&bed, "with Bus Master Enable again");
    }
}

#[test]
fn a_read_that_the_host_refuses_ends_in_a_remote_operational_error() {
    let bed = Testbed::new(&Setup::default()).unwrap();
    let mut pair = bed.connect(&connect()).unwrap();
    let load = Load::new(&bed);
    // The key is good, but all accesses of the device fail from here on: its function has no Bus Master Enable.
    SimFunction::new(bed.fabric.clone(), 1).set_bus_master(false);
    let mut batch = pair.a.qp.post();
    let read = Operation::Read(load.source[1].remote(0));
    batch.add(1, read, Data::Sges(&[load.target[0].sge(0, LEN)]), Flags::SIGNALED).unwrap();
    batch.ring();
    let error = wait(&bed, &mut pair.a.cq, "a READ of memory that is gone").status.unwrap_err();
    assert_eq!(error.status, wc::REM_OP, "{error}");
    assert_eq!(bytes(&load.target[0]), [GUARD; LEN], "of a READ that failed");
}

#[test]
fn a_write_that_the_host_refuses_is_told_of_by_one_event_and_counted() {
    let mut bed = Testbed::new(&Setup::default()).unwrap();
    let mut pair = bed.connect(&connect()).unwrap();
    let load = Load::new(&bed);
    // The key is good, but the IOMMU knows the memory no more.
    let refused = bed.hosts[1].pd.alloc(4096, Access::all()).unwrap();
    bed.sim().nic(1).host.iommu.unmap(refused.addr(), 4096).unwrap();
    let mut write = |bed: &Testbed, target: &Mr| {
        let mut batch = pair.a.qp.post();
        let to = Operation::Write(target.remote(0));
        batch.add(1, to, Data::Sges(&[load.source[0].sge(0, 4096)]), Flags::SIGNALED).unwrap();
        batch.ring();
        // It is posted: the peer hears nothing of what becomes of it.
        wait(bed, &mut pair.a.cq, "a WRITE to memory that is gone").status.unwrap();
        pass(bed, 200);
    };
    write(&bed, &load.target[1]);
    assert_eq!(bed.hosts[1].eq.poll(), None);
    let mut counted = 0;
    for told in [true, false] {
        write(&bed, &refused);
        let events: Vec<_> = std::iter::from_fn(|| bed.hosts[1].eq.poll()).collect();
        let health = health::READY | health::BUS;
        let want = driver::Event { kind: abi::queue::event::HEALTH, number: 0, value: health };
        assert_eq!(events, if told { vec![want] } else { vec![] }, "once");
        assert_eq!(bed.hosts[1].device.health(), health);
        let count = bed.hosts[1].device.counter(abi::status::counter::DMA_ERROR);
        assert!(count > counted, "{count}, {counted} before");
        counted = count;
    }
    assert_eq!(bed.hosts[0].eq.poll(), None);
    assert!(!bed.sim().nic(1).host.iommu.take_faults().is_empty());
    // All else works as before.
    write(&bed, &load.target[1]);
    assert_eq!(bytes(&load.target[1])[..4096], bytes(&load.source[0])[..4096]);
}

#[test]
fn busy_qps_are_destroyed() {
    for setup in hosts() {
        let bed = Testbed::new(&setup).unwrap();
        let load = Load::new(&bed);
        for round in 0..verilate::scale(4) {
            println!("round {round}");
            let mut pairs: Vec<_> = (0..4).map(|_| bed.connect(&connect()).unwrap()).collect();
            load.start(&bed, &mut pairs);
            for pair in pairs {
                // The ends go one by one, while the other still sends.
                let Pair { a, b } = pair;
                drop(if round % 2 == 0 { a } else { b });
            }
            // Nothing is under way to memory whose QPs are gone: the device may touch it no more.
            load.target.iter().for_each(|t| t.write(0, &[GUARD; LEN]));
            pass(&bed, 500);
            load.target.iter().for_each(|t| assert_eq!(bytes(t), [GUARD; LEN], "written after its QPs were destroyed"));
            assert_sound(&bed, "busy QPs");
        }
        assert_works(&bed, "after busy QPs were destroyed");
    }
}

/// A pair that is reset again and again, with memory of its own on both sides.
struct Reborn {
    ends: [(Option<Qp<Rts>>, Cq); 2],
    load: Load,
}

/// The end at host `of` of a pair that was reset, or is new, ready to send.
fn ready(bed: &Testbed, qp: Qp<Reset>, of: usize, peer: u32) -> Qp<Rts> {
    let c = connect();
    let path = Path { max_dest_reads: 16, min_rnr_timer: 1, ..path_to(bed.hosts[1 - of].gid, peer, 1024, 0) };
    qp.init(Access::all()).unwrap().rtr(&path).unwrap().rts(&c.send).unwrap()
}

impl Reborn {
    fn new(bed: &Testbed) -> Self {
        let made = [0, 1].map(|i| {
            let host = &bed.hosts[i];
            let cq = host.device.create_cq(256, &host.eq).unwrap();
            (host.pd.create_qp(&cq, &cq, connect().sizes).unwrap(), cq)
        });
        let qpns = made.each_ref().map(|(qp, _)| qp.qpn());
        let mut of = 0;
        let ends = made.map(|(qp, cq)| {
            let qp = ready(bed, qp, of, qpns[1 - of]);
            of += 1;
            (Some(qp), cq)
        });
        Reborn { ends, load: Load::new(bed) }
    }

    /// WRITEs, READs and SENDs from both ends, and receives for the SENDs.
    fn start(&mut self) {
        for from in [0, 1] {
            let qp = self.ends[from].0.as_mut().unwrap();
            for i in 0..8 {
                qp.post_recv(i, &[self.load.target[from].sge(100 * i as usize, 100)]).unwrap();
            }
            let mut batch = qp.post();
            for i in 0..DEPTH {
                let (operation, local, len) = match i % 3 {
                    0 => (Operation::Write(self.load.target[1 - from].remote(0)), &self.load.source[from], LEN),
                    1 => (Operation::Read(self.load.source[1 - from].remote(0)), &self.load.target[from], LEN),
                    _ => (Operation::Send, &self.load.source[from], 90),
                };
                batch.add(i as u64, operation, Data::Sges(&[local.sge(0, len)]), Flags::SIGNALED).unwrap();
            }
        }
    }

    /// Takes an end out of the middle of its work; nothing of it touches memory any more. Then the pair is made anew.
    fn reset(&mut self, bed: &Testbed, of: usize) {
        let reset = self.ends[of].0.take().unwrap().reset().unwrap();
        self.load.target[of].write(0, &[GUARD; LEN]);
        pass(bed, 20);
        assert!(bytes(&self.load.target[of]) == [GUARD; LEN], "written in the name of a queue pair in RESET");
        assert!(self.ends[of].1.poll().next().is_none(), "a completion of a queue pair in RESET");
        let peer = self.ends[1 - of].0.take().unwrap();
        let qpns = if of == 0 { [reset.qpn(), peer.qpn()] } else { [peer.qpn(), reset.qpn()] };
        let peer = peer.reset().unwrap();
        for (i, qp) in [(of, reset), (1 - of, peer)] {
            self.ends[i].0 = Some(ready(bed, qp, i, qpns[1 - i]));
            let left = self.ends[i].1.poll().next();
            assert!(left.is_none(), "a completion of a life before: {left:?}");
        }
    }
}

/// Busy queue pairs are reset or destroyed so many times: the device stays healthy, nothing late touches memory, and the queue pair works
/// in its next life.
fn reset_and_destroy(count: usize) {
    let mut setup = Setup::small();
    setup.nic.adversary = Adversary::Hostile;
    let bed = Testbed::new(&setup).unwrap();
    let mut rng = verilate::rng(61);
    let mut pairs: Vec<_> = (0..3).map(|_| Reborn::new(&bed)).collect();
    let guards = [0, 1].map(|i| region(&bed.hosts[i].pd, LEN, Access::all(), |_| GUARD));
    pairs.iter_mut().for_each(Reborn::start);
    for round in 0..count {
        let i = rng.random_range(0..pairs.len());
        pass(&bed, rng.random_range(0..30));
        let of = rng.random_range(0..2);
        if rng.random_bool(0.2) {
            // Destroyed, one end ahead of the other.
            let Reborn { ends, load } = pairs.swap_remove(i);
            let [a, b] = ends;
            let (first, last) = if of == 0 { (a, b) } else { (b, a) };
            drop(first);
            load.target[of].write(0, &[GUARD; LEN]);
            pass(&bed, 20);
            assert!(bytes(&load.target[of]) == [GUARD; LEN], "round {round}: written after its QP was destroyed");
            drop(last);
            pairs.push(Reborn::new(&bed));
            pairs.last_mut().unwrap().start();
        } else {
            pairs[i].reset(&bed, of);
            pairs[i].start();
        }
        if round % 50 == 49 || round + 1 == count {
            println!("{} of {count}", round + 1);
            // A life that ends well.
            let pair = &mut pairs[0];
            pair.reset(&bed, 0);
            pair.start();
            for (_, cq) in &mut pair.ends {
                for _ in 0..DEPTH + 5 {
                    wait(&bed, cq, "a new life").status.unwrap();
                }
            }
            guards.iter().for_each(|g| assert!(bytes(g) == [GUARD; LEN], "round {round}: guards"));
            assert_sound(&bed, "queue pairs that are reset and destroyed");
        }
    }
}

#[test]
fn active_queue_pairs_are_reset_and_destroyed() {
    reset_and_destroy(verilate::scale(30));
}

#[test]
#[ignore = "an hour and more: for `./ferroce test --all`"]
fn active_queue_pairs_are_reset_and_destroyed_ten_thousand_times() {
    reset_and_destroy(verilate::whole(10_000));
}

#[test]
fn numbers_are_used_again() {
    let bed = Testbed::new(&Setup::default()).unwrap();
    let host = &bed.hosts[0];
    let maps = host.device.dma_maps();
    let cq = host.device.create_cq(16, &host.eq).unwrap();
    let mut highest = 0;
    for _ in 0..verilate::scale(300) {
        let qp = host.pd.create_qp(&cq, &cq, QpSizes::new(64, 64)).unwrap();
        highest = qp.qpn().max(highest);
        let mr = host.pd.alloc(4096, Access::LOCAL_WRITE).unwrap();
        drop((qp, mr));
    }
    println!("highest QP number {highest}");
    drop(cq);
    assert_eq!(host.device.dma_maps(), maps, "maps of the IOMMU are left over");
    assert_works(&bed, "after many numbers");
    assert_sound(&bed, "after many numbers");
}

#[test]
fn an_error_flushes_what_is_posted_in_order_and_once() {
    for setup in hosts() {
        let bed = Testbed::new(&setup).unwrap();
        let load = Load::new(&bed);
        let mut pair = bed.connect(&connect()).unwrap();
        for i in 0..3 {
            pair.a.qp.post_recv(100 + i, &[]).unwrap();
        }
        // The third names a key that does not exist; the one before it is neither signaled nor asks for an ACK of its own. Flushed requests complete, signaled or not, whatever blocks they take.
        let bad = driver::Sge { lkey: 0x3ff << 8, ..load.source[0].sge(0, 100) };
        let mut batch = pair.a.qp.post();
        for i in 0..10 {
            let flags = if i % 2 == 0 { Flags::SIGNALED } else { Flags::empty() };
            let data = if i == 2 { Data::Sges(&[bad]) } else { Data::Inline(&[7; 224][..20 * i]) };
            batch.add(i as u64, Operation::Write(load.target[1].remote(0)), data, flags).unwrap();
        }
        batch.ring();
        let mut next = || {
            let c = wait(&bed, &mut pair.a.cq, "flushing");
            (c.wr_id, c.status.err().map(|e| e.status))
        };
        assert_eq!(next(), (0, None));
        assert_eq!(next(), (2, Some(wc::LOC_PROT)));
        for i in 3..10 {
            assert_eq!(next(), (i, Some(wc::WR_FLUSH)));
        }
        // The receive queue follows by itself; what is posted to a QP in error is flushed too.
        for i in 0..3 {
            let c = wait(&bed, &mut pair.a.cq, "receives");
            assert_eq!((c.wr_id, c.status.unwrap_err().status), (100 + i, wc::WR_FLUSH));
        }
        let mut batch = pair.a.qp.post();
        batch.add(10, Operation::Send, Data::Inline(&[]), Flags::empty()).unwrap();
        batch.ring();
        assert_eq!(wait(&bed, &mut pair.a.cq, "posted late").wr_id, 10);
        pair.a.qp.post_recv(103, &[]).unwrap();
        assert_eq!(wait(&bed, &mut pair.a.cq, "a receive posted late").wr_id, 103);
        pass(&bed, 50);
        assert!(pair.a.cq.poll().next().is_none());
        assert_sound(&bed, "flush");
    }
}

#[test]
fn the_error_event_flushes_both_queues_behind_what_succeeded() {
    for round in 0..verilate::scale(4) {
        println!("round {round}");
        let mut bed = Testbed::new(&Setup::default()).unwrap();
        let load = Load::new(&bed);
        let mut pair = bed.connect(&connect()).unwrap();
        (0..3).for_each(|i| pair.b.qp.post_recv(100 + i, &[]).unwrap());
        // Host 1 is busy in both queues when its peer names a key that does not exist: its QP fails without a WQE to tell it.
        let mut batch = pair.b.qp.post();
        for i in 0..DEPTH as u64 {
            let write = Operation::Write(load.target[0].remote(0));
            batch.add(i, write, Data::Sges(&[load.source[1].sge(0, LEN)]), Flags::SIGNALED).unwrap();
        }
        batch.ring();
        pass(&bed, 10 + 7 * round);
        let mut batch = pair.a.qp.post();
        batch.add(0, Operation::SendImm([9; 4]), Data::Inline(&[]), Flags::SIGNALED).unwrap();
        let bad = Operation::Write(driver::Remote { rkey: 0x3ff << 8, ..load.target[1].remote(0) });
        batch.add(1, bad, Data::Inline(&[1; 8]), Flags::SIGNALED).unwrap();
        batch.ring();
        assert!(wait(&bed, &mut pair.a.cq, "before the bad WRITE").status.is_ok());
        assert_eq!(wait(&bed, &mut pair.a.cq, "a bad WRITE").status.unwrap_err().status, wc::REM_ACCESS);
        pass(&bed, 100);
        let early: Vec<_> = pair.b.cq.poll().collect();
        assert!(early.iter().all(|c| c.status.is_ok()), "the driver cannot know yet");
        let event = bed.hosts[1].eq.poll().expect("an event");
        assert_eq!((event.kind, event.number), (abi::queue::event::QP_ERROR, pair.b.qp.qpn()));
        let mut queues = [vec![], vec![]];
        for c in early.into_iter().chain(pair.b.cq.poll()) {
            queues[usize::from(c.opcode >= abi::queue::recv_op::RECV)]
                .push((c.wr_id, c.status.err().map(|e| e.status)));
        }
        for (queue, (first, count, sure)) in queues.iter().zip([(0, DEPTH, 0), (100, 3, 1)]) {
            let numbers: Vec<_> = queue.iter().map(|c| c.0).collect();
            assert_eq!(numbers, (first..first + count as u64).collect::<Vec<_>>(), "each once, in order");
            let good = queue.iter().take_while(|c| c.1.is_none()).count();
            assert!(good >= sure && queue[good..].iter().all(|c| c.1 == Some(wc::WR_FLUSH)), "{queue:?}");
        }
        pass(&bed, 200);
        assert!(pair.b.cq.poll().next().is_none());
        assert_sound(&bed, "the error event");
    }
}

#[test]
fn completions_of_a_destroyed_qp_are_not_those_of_its_successor() {
    let bed = Testbed::new(&Setup::default()).unwrap();
    let load = Load::new(&bed);
    let host = &bed.hosts[0];
    let mut pair = bed.connect(&connect()).unwrap();
    let number = pair.a.qp.qpn();
    let mut batch = pair.a.qp.post();
    for i in 0..3 {
        let write = Operation::Write(load.target[1].remote(0));
        batch.add(7 + i, write, Data::Inline(&[1; 8]), Flags::SIGNALED).unwrap();
    }
    batch.ring();
    pass(&bed, 200);
    // One is taken, two are in the ring when the QP goes.
    assert_eq!(wait(&bed, &mut pair.a.cq, "the first").wr_id, 7);
    let Pair { a, b } = pair;
    let mut cq = a.cq;
    drop(a.qp);
    let mut successors = vec![host.pd.create_qp(&cq, &cq, connect().sizes).unwrap()];
    while successors.last().unwrap().qpn() != number {
        successors.push(host.pd.create_qp(&cq, &cq, connect().sizes).unwrap());
    }
    assert!(cq.poll().next().is_none());
    drop((successors, b));
    assert_sound(&bed, "a successor");
}
