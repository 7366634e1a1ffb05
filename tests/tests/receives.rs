//! Receive queues between whole NICs: receives of one SGE, which stand four in a block, beside those of a block.

use abi::queue::MAX_SGE;
use abi::status::counter;
use driver::qp::QpSizes;
use driver::{Access, Data, Flags, Mr, Operation};
use ferroce_tests::{GUARD, assert_sound, is_guard, noise, pass, region, wait};
use nic::{Adversary, Hold};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use testbed::{Connect, Pair, Setup, Testbed};

/// Most bytes of a message, and what a receive has room for.
const LEN: usize = 200;

/// A pair with a receive queue of one kind, its memory, and how far it is.
struct Lane {
    pair: Pair,
    /// Most receives that it holds, and SGEs of each.
    receives: u64,
    sges: usize,
    inbox: Mr,
    posted: u64,
    sent: u64,
    received: u64,
    /// Lengths of what was sent and not received.
    lengths: std::collections::VecDeque<usize>,
}

impl Lane {
    fn new(bed: &Testbed, receives: u32, sges: usize) -> Self {
        let sizes = QpSizes { receive_sges: sges as u32, ..QpSizes::new(256, receives) };
        Lane {
            pair: bed.connect(&Connect { mtu: 256, sizes, ..Connect::default() }).unwrap(),
            receives: receives.into(),
            sges,
            inbox: region(&bed.hosts[1].pd, receives as usize * LEN, Access::LOCAL_WRITE, |_| GUARD),
            posted: 0,
            sent: 0,
            received: 0,
            lengths: Default::default(),
        }
    }

    /// Where receive `n` lies.
    fn at(&self, n: u64) -> usize {
        (n % self.receives) as usize * LEN
    }

    /// Posts `n` receives with one doorbell, each in as many SGEs as it may have.
    fn post(&mut self, n: u64) {
        let mut batch = self.pair.b.qp.post_recvs();
        for i in self.posted..self.posted + n {
            let at = (i % self.receives) as usize * LEN;
            let part = LEN / self.sges;
            let cut = |k: usize| self.inbox.sge(at + k * part, if k + 1 == self.sges { LEN - k * part } else { part });
            batch.add(i, &(0..self.sges).map(cut).collect::<Vec<_>>()).unwrap();
        }
        drop(batch);
        self.posted += n;
    }

    fn send(&mut self, source: &Mr, rng: &mut ChaCha8Rng) {
        let len = [0, 1, LEN, rng.random_range(0..=LEN)][rng.random_range(0..4)];
        let mut batch = self.pair.a.qp.post();
        let from = source.sge(self.sent as usize % 64, len);
        batch.add(self.sent, Operation::Send, Data::Sges(&[from]), Flags::SIGNALED).unwrap();
        batch.ring();
        self.lengths.push_back(len);
        self.sent += 1;
    }

    /// Takes what has come, and looks at every byte.
    fn take(&mut self, source: &Mr, what: &str) {
        self.pair.a.cq.poll().for_each(|c| c.status.unwrap_or_else(|e| panic!("{what}: {e}")));
        while let Some(c) = self.pair.b.cq.poll().next() {
            c.status.unwrap_or_else(|e| panic!("{what}: {e}"));
            let len = self.lengths.pop_front().expect("a receive that nobody sent");
            assert_eq!((c.wr_id, c.len as usize), (self.received, len), "{what}");
            let (mut got, mut want) = (vec![0; LEN], vec![GUARD; LEN]);
            self.inbox.read(self.at(self.received), &mut got);
            source.read(self.received as usize % 64, &mut want[..len]);
            assert!(got == want, "{what}: message {} of {len} bytes", self.received);
            self.inbox.write(self.at(self.received), &[GUARD; LEN]);
            self.received += 1;
        }
    }
}

/// Queues from the smallest on, which wrap again and again, filled by one doorbell for each receive or by batches of any number; a
/// message is sent only when its receive is posted, so none may find it missing.
fn receives_are_taken_in_order(setup: Setup, rounds: usize) {
    let mut rng = verilate::rng(setup.nic.seed);
    let bed = Testbed::new(&setup).unwrap();
    let source = region(&bed.hosts[0].pd, 64 + LEN, Access::LOCAL_WRITE, noise(setup.nic.seed));
    let mut lanes: Vec<Lane> = [(1, 1), (1, 4), (2, 1), (3, 2), (4, 1), (8, 1), (8, 3), (32, 1), (64, 1), (33, 4)]
        .into_iter()
        .map(|(receives, sges)| Lane::new(&bed, receives, sges))
        .collect();
    for _ in 0..verilate::scale(rounds) {
        for lane in &mut lanes {
            let free = lane.receives - (lane.posted - lane.received);
            match rng.random_range(0..4) {
                0 if free > 0 => lane.post(1),
                1 if free > 0 => lane.post(rng.random_range(1..=free)),
                _ => {}
            }
            let there = (lane.posted - lane.sent).min(16);
            for _ in 0..rng.random_range(0..=there) {
                lane.send(&source, &mut rng);
            }
            lane.take(&source, "mixed");
        }
        bed.sim().advance_cycles(rng.random_range(1..300));
    }
    for turn in 0.. {
        lanes.iter_mut().for_each(|lane| lane.take(&source, "at the end"));
        if lanes.iter().all(|lane| lane.received == lane.sent) {
            break;
        }
        assert!(turn < 20_000, "messages are missing");
        bed.relax();
    }
    for lane in &lanes {
        assert!(lane.received > lane.receives, "{} of {} SGEs: {}", lane.receives, lane.sges, lane.received);
        assert!(is_guard(&lane.inbox, 0..lane.inbox.len()));
    }
    assert_eq!(bed.hosts[1].device.counter(counter::RX_RNR), 0, "a receive was posted and not taken");
    assert_sound(&bed, "receives");
}

#[test]
fn receives_of_one_sge_and_of_blocks_are_taken_in_order() {
    receives_are_taken_in_order(Setup::default(), 600);
}

#[test]
fn receives_of_one_sge_and_of_blocks_are_taken_in_order_by_the_small_core() {
    receives_are_taken_in_order(Setup::small(), 300);
}

/// With nothing posted there is an RNR NAK, once; the receive that is posted then, alone in its block, is found.
#[test]
fn a_receive_of_one_sge_that_comes_late_is_found() {
    let bed = Testbed::new(&Setup::default()).unwrap();
    let source = region(&bed.hosts[0].pd, 64 + LEN, Access::LOCAL_WRITE, noise(5));
    let mut rng = verilate::rng(5);
    let mut lane = Lane::new(&bed, 6, 1);
    for n in 1..=20 {
        lane.send(&source, &mut rng);
        while bed.hosts[1].device.counter(counter::RX_RNR) < n {
            bed.relax();
        }
        lane.post(1);
        wait(&bed, &mut lane.pair.a.cq, "behind the RNR NAK").status.unwrap();
        bed.relax();
        lane.take(&source, "late");
        assert_eq!((lane.received, bed.hosts[1].device.counter(counter::RX_RNR)), (n, n));
    }
    assert_sound(&bed, "receives");
}

/// WRITEs with immediate take receives while the host is slow to bring them: what a SEND finds behind them is its own receive, and comes.
#[test]
fn sends_behind_many_writes_with_immediate_find_their_receives() {
    let mut setup = Setup::default();
    setup.nic.adversary = Adversary::Hostile;
    let bed = Testbed::new(&setup).unwrap();
    let source = region(&bed.hosts[0].pd, 64 + LEN, Access::LOCAL_WRITE, noise(6));
    let aim = bed.hosts[1].pd.alloc(64, Access::all()).unwrap();
    let mut rng = verilate::rng(6);
    for ahead in [5, 9, 40, 117, 121, 125, 129, 200] {
        let mut lane = Lane::new(&bed, 256, 4);
        bed.sim().nic(1).hold = Hold { read_data: true, ..Hold::default() };
        lane.post(ahead + 16);
        let mut batch = lane.pair.a.qp.post();
        for i in 0..ahead {
            batch
                .add(i, Operation::WriteImm(aim.remote(0), [i as u8; 4]), Data::Inline(&[7]), Flags::SIGNALED)
                .unwrap();
        }
        batch.ring();
        pass(&bed, 100);
        bed.sim().nic(1).hold = Hold::default();
        for _ in 0..ahead {
            let c = wait(&bed, &mut lane.pair.b.cq, "WRITEs with immediate");
            assert_eq!((c.wr_id, c.status), (lane.received, Ok(())));
            lane.received += 1;
        }
        lane.sent = ahead;
        (0..16).for_each(|_| lane.send(&source, &mut rng));
        while lane.received < lane.sent {
            lane.take(&source, &format!("behind {ahead}"));
            bed.relax();
        }
        assert_eq!(bed.hosts[1].device.counter(counter::RX_RNR), 0);
    }
    assert_sound(&bed, "receives");
}

#[test]
fn a_receive_has_no_more_sges_than_its_queue_pair_was_made_for() {
    let bed = Testbed::new(&Setup::default()).unwrap();
    for sges in 1..=MAX_SGE {
        let mut lane = Lane::new(&bed, 2, sges);
        let list = [lane.inbox.sge(0, 8); MAX_SGE + 1];
        let e = lane.pair.b.qp.post_recv(0, &list[..sges + 1]).unwrap_err().to_string();
        assert!(e.contains(&format!("{} SGEs in a receive", sges + 1)), "{e}");
        lane.post(2);
        // A ring is a block at least, which holds four of one SGE.
        (0..if sges == 1 { 2 } else { 0 }).for_each(|_| lane.pair.b.qp.post_recv(0, &[]).unwrap());
        assert!(lane.pair.b.qp.post_recv(0, &[]).is_err(), "{sges} SGEs: more than the ring holds");
    }
    let sizes = |receives, sges| QpSizes { receive_sges: sges, ..QpSizes::new(16, receives) };
    let host = &bed.hosts[0];
    let cq = host.device.create_cq(16, &host.eq).unwrap();
    for (receives, sges, words) in
        [(1, 0, "receives of 0 SGEs"), (1, 5, "receives of 5 SGEs"), (8193, 2, "of 8193"), (0x8001, 1, "of 32769")]
    {
        let e = host.pd.create_qp(&cq, &cq, sizes(receives, sges)).err().unwrap().to_string();
        assert!(e.contains(words), "{e}");
    }
    for (receives, sges) in [(8192, 4), (0x8000, 1)] {
        host.pd.create_qp(&cq, &cq, sizes(receives, sges)).unwrap();
    }
}
