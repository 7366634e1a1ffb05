//! Function-level resets at any moment of a NIC that does all it can at once: whatever stands still, whatever the host writes
//! meanwhile, however many resets come on top of each other. No rule of AXI is broken, no memory is touched afterwards, and a driver that
//! opens the device anew finds it as new.

use abi::Field;
use abi::bar::{CMD_PRODUCER, FW_ADDRESS, FW_CONTROL, FW_DATA, HEALTH, RESET};
use abi::queue::{doorbell, ring_db};
use driver::qp::{QpSizes, SendOptions};
use driver::{Access, Data, Flags, Mr, Operation};
use fabric::SimFunction;
use ferroce_tests::beside::Beside;
use ferroce_tests::{GUARD, assert_sound, bytes, inject, noise, pass, region, reopen, wait};
use nic::{Adversary, BarRequest, Hold};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use testbed::{Connect, Pair, Setup, Testbed};

const LEN: usize = 5000;

fn connect() -> Connect {
    let send = SendOptions { timeout: 6, retry_count: 1, ..SendOptions::default() };
    let sizes = QpSizes::new(64, 16);
    Connect { mtu: 1024, access: Access::all(), sizes, send, ..Connect::default() }
}

/// Everything on NIC 0 that a reset makes void: pairs with host 1, one of NIC 0 with itself, datagrams, and their memory.
struct Load {
    pairs: Vec<Pair>,
    beside: Beside,
    source: [Mr; 2],
    target: [Mr; 2],
    /// Nobody may write it.
    guards: [Mr; 2],
}

impl Load {
    fn new(bed: &Testbed) -> Self {
        let mut pairs = bed.connect_many(&connect(), 6).unwrap();
        pairs.push(bed.connect_hosts([0, 0], &connect()).unwrap());
        let mr = |i: usize, fill: fn(usize) -> u8| region(&bed.hosts[i].pd, LEN, Access::all(), fill);
        let (source, target) = ([0, 1].map(|i| mr(i, |i| i as u8)), [0, 1].map(|i| mr(i, |_| GUARD)));
        let guards = [0, 1].map(|i| mr(i, |_| GUARD));
        Load { pairs, beside: Beside::new(bed, [1, 0]), source, target, guards }
    }

    /// All operations from both ends of all pairs, far from done when this returns.
    fn start(&mut self, rng: &mut ChaCha8Rng) {
        for (p, pair) in self.pairs.iter_mut().enumerate() {
            let far = if p == 6 { 0 } else { 1 };
            for (from, to, end) in [(0, far, &mut pair.a), (far, 0, &mut pair.b)] {
                (0..8).for_each(|i| end.qp.post_recv(i, &[self.target[from].sge(200, 900)]).unwrap());
                let mut batch = end.qp.post();
                for i in 0..16 {
                    let (near, there) = (&self.target[from], &self.target[to]);
                    let len = rng.random_range(1..LEN);
                    let (operation, sge) = match rng.random_range(0..6) {
                        0 => (Operation::Read(self.source[to].remote(0)), near.sge(0, len)),
                        1 => (Operation::AtomicAdd { remote: there.remote(8 * i), add: 1 }, near.sge(8 * i, 8)),
                        2 => (Operation::Send, self.source[from].sge(0, len.min(900))),
                        3 => (Operation::WriteImm(there.remote(0), [1; 4]), self.source[from].sge(0, len)),
                        _ => (Operation::Write(there.remote(0)), self.source[from].sge(0, len)),
                    };
                    batch.add(i as u64, operation, Data::Sges(&[sge]), Flags::SIGNALED).unwrap();
                }
            }
        }
    }
}

fn write(bed: &Testbed, bar: u8, offset: usize, bytes: u8, value: u64) {
    bed.sim().nic(0).bar(BarRequest { bar, offset: offset as u32, bytes, write: Some(value) });
}

fn read(bed: &Testbed, offset: usize) -> u64 {
    bed.sim().nic(0).bar(BarRequest { bar: 0, offset: offset as u32, bytes: 4, write: None });
    for _ in 0..1000 {
        bed.relax();
        if let Some(value) = bed.sim().nic(0).bar_answer() {
            return value;
        }
    }
    panic!("BAR0 does not answer at {offset:#x}")
}

/// What a host does to a NIC that is to be reset, or is being reset.
fn abuse(bed: &Testbed, rng: &mut ChaCha8Rng) -> &'static str {
    match rng.random_range(0..8) {
        0 => {
            write(bed, 0, RESET, 4, 1);
            "another reset"
        }
        1 => {
            // An image of which only a part comes.
            write(bed, 0, FW_CONTROL, 4, 1);
            write(bed, 0, FW_ADDRESS, 4, rng.random_range(0..1 << 16));
            (0..rng.random_range(0..200)).for_each(|_| write(bed, 0, FW_DATA, 4, rng.random::<u32>().into()));
            "a part of an image"
        }
        2 => {
            write(bed, 0, FW_CONTROL, 4, rng.random_range(0..2));
            "the firmware let go or held"
        }
        3 => {
            // The slots hold what was commanded before.
            write(bed, 0, CMD_PRODUCER, 4, rng.random::<u32>().into());
            "commands without end"
        }
        4 => {
            for _ in 0..50 {
                let mut word = [0; 8];
                let set = |word: &mut [u8; 8], f: Field, v: u64| f.set(word, v);
                set(&mut word, ring_db::NUMBER, rng.random_range(0..16));
                set(&mut word, ring_db::PRODUCER, rng.random_range(0..70));
                write(bed, 2, doorbell::PAGE + 8 * rng.random_range(0..4), 8, u64::from_le_bytes(word));
            }
            "doorbells"
        }
        5 => {
            for _ in 0..10 {
                let mut frame = vec![0; rng.random_range(60..4000)];
                rng.fill(&mut frame[..]);
                inject(bed, 0, frame, false);
            }
            "frames"
        }
        6 => {
            let up = rng.random_bool(0.5);
            bed.sim().plug(0, up);
            "the cable"
        }
        _ => {
            let on = rng.random_bool(0.5);
            bed.sim().nic(0).host.bus_master = on;
            "Bus Master Enable"
        }
    }
}

/// All operations come out right on a new pair.
fn assert_works(bed: &Testbed, what: &str) {
    let mut pair = bed.connect(&connect()).unwrap();
    let source = region(&bed.hosts[0].pd, LEN, Access::all(), noise(7));
    let target = region(&bed.hosts[1].pd, LEN, Access::all(), |_| GUARD);
    let back = region(&bed.hosts[0].pd, LEN, Access::all(), |_| GUARD);
    pair.b.qp.post_recv(1, &[target.sge(0, 100)]).unwrap();
    let mut batch = pair.a.qp.post();
    let mut add = |id, operation, sge| batch.add(id, operation, Data::Sges(&[sge]), Flags::SIGNALED).unwrap();
    add(0, Operation::Send, source.sge(0, 100));
    add(1, Operation::Write(target.remote(100)), source.sge(100, LEN - 100));
    add(2, Operation::Read(target.remote(0)), back.sge(0, LEN));
    batch.ring();
    for i in 0..3 {
        let c = wait(bed, &mut pair.a.cq, what);
        assert_eq!((c.wr_id, c.status), (i, Ok(())), "{what}");
    }
    assert!(bytes(&back) == bytes(&source) && bytes(&target) == bytes(&source), "{what}");
    assert!(wait(bed, &mut pair.b.cq, what).status.is_ok());
}

fn resets_at_any_moment(mut setup: Setup, rounds: usize, seed: u64) {
    setup.nic.adversary = Adversary::Hostile;
    let mut bed = Testbed::new(&setup).unwrap();
    for round in 0..rounds {
        let mut rng = verilate::rng(seed + round as u64);
        let mut load = Load::new(&bed);
        load.start(&mut rng);
        for _ in 0..rng.random_range(0..100) {
            load.beside.step(&mut rng, true);
            bed.relax();
        }
        // Some of what stands around the core stands still.
        let mut still = || rng.random_bool(0.3);
        let hold = Hold {
            read_address: still(),
            read_data: still(),
            write_address: still(),
            write_data: still(),
            write_response: still(),
            mac_tx: still(),
        };
        bed.sim().nic(0).hold = hold;
        pass(&bed, rng.random_range(0..60));
        let mut done = vec![];
        if rng.random_bool(0.5) {
            done.push(abuse(&bed, &mut rng));
            pass(&bed, rng.random_range(0..20));
        }
        write(&bed, 0, RESET, 4, 1);
        for _ in 0..rng.random_range(0..6) {
            bed.sim().advance_cycles(rng.random_range(1..25));
            done.push(abuse(&bed, &mut rng));
            pass(&bed, rng.random_range(0..20));
            if rng.random_bool(0.2) {
                bed.sim().nic(0).hold = Hold::default();
            }
        }
        bed.sim().nic(0).hold = Hold { mac_tx: hold.mac_tx && rng.random_bool(0.5), ..Hold::default() };
        let what = format!("seed {}: {hold:?}, {done:?}", seed + round as u64);
        println!("{what}");
        for turn in 0.. {
            assert!(turn < 2000, "{what}: the reset does not end");
            if read(&bed, RESET) == 0 {
                break;
            }
        }
        // It writes no more, and has forgotten whoever asks.
        [&load.target[0], &load.source[0]].iter().for_each(|mr| mr.write(0, &[GUARD; LEN]));
        let early = rng.random_bool(0.5);
        let mut load = Some(load);
        let guards = if early {
            let Load { pairs, beside, source: [mine, s], target: [own, t], guards: [g, h] } = load.take().unwrap();
            drop((mine, beside, pairs, own, g));
            vec![(s, t, h)]
        } else {
            vec![]
        };
        pass(&bed, rng.random_range(0..100));
        bed.sim().plug(0, true);
        bed.sim().nic(0).hold = Hold::default();
        let function = Arc::new(SimFunction::new(bed.fabric.clone(), 0));
        let old = reopen(&mut bed, function);
        drop(guards);
        if let Some(load) = load {
            for mr in [&load.target[0], &load.source[0], &load.guards[0], &load.guards[1]] {
                assert!(bytes(mr) == [GUARD; LEN], "{what}: written after the reset, or where nobody may write");
            }
            let Load { pairs, beside, source, target, guards } = load;
            drop((source, beside, target, pairs, guards));
        }
        drop(old);
        assert_works(&bed, &what);
        assert_sound(&bed, &what);
        assert_eq!(read(&bed, HEALTH) & 0xffff, 1);
    }
}

#[test]
fn resets_at_any_moment_at_512_bits() {
    resets_at_any_moment(Setup::default(), verilate::scale(3), 1000);
}

#[test]
fn resets_at_any_moment_at_64_bits() {
    resets_at_any_moment(Setup::small(), verilate::scale(6), 2000);
}
