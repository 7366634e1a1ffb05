//! Shared receive queues between whole NICs: who gets which receive, and that each comes back once, whatever becomes of those who took it.

use abi::cmd::{answer, create_qp, create_srq, head, op, result};
use abi::queue::{HOLE, UD_HEADER, doorbell, event, recv_op, ring_db};
use abi::status::{cause, counter, wc};
use abi::table::qp_type;
use driver::qp::{QpSizes, Rts, Ud};
use driver::{
    Access, AddressHandle, AddressVector, Completion, Cq, Data, Event, Flags, MAX_SHARED_RECEIVES, Mr, Operation, Qp,
    Sge, Srq,
};
use fabric::{Action, Match};
use ferroce_tests::{GUARD, assert_sound, bytes, noise, pass, region, wait};
use nic::{Adversary, BarRequest};
use rand::RngExt;
use std::collections::{BTreeSet, VecDeque};
use testbed::{Connect, Pair, Setup, Testbed};

const MTU: usize = 1024;
/// Most bytes of a message, and what a receive has room for: a sender lets others in after 4 KiB.
const LEN: usize = 12 * MTU;

fn connect() -> Connect {
    Connect { mtu: MTU as u32, sizes: QpSizes::new(64, 4), cq_entries: 512, ..Connect::default() }
}

/// A shared queue on host 1, and memory for its receives: place `n` is that of receive `n`.
struct Shared {
    srq: Srq,
    inbox: Mr,
    places: u64,
    /// Numbers of the receives that are posted and not complete.
    open: BTreeSet<u64>,
    next: u64,
}

impl Shared {
    fn new(bed: &Testbed, receives: u32) -> Self {
        let host = &bed.hosts[1];
        let inbox = region(&host.pd, (receives as usize + 1) * LEN, Access::LOCAL_WRITE, |_| GUARD);
        let srq = host.pd.create_srq(receives).unwrap();
        Shared { srq, inbox, places: receives.into(), open: BTreeSet::new(), next: 0 }
    }

    /// Posts `n` receives with one doorbell, into places where none is.
    fn post(&mut self, n: usize) {
        let mut batch = self.srq.post_recvs();
        for _ in 0..n {
            let place = (0..self.places).find(|p| !self.open.iter().any(|o| o % self.places == *p)).unwrap();
            let wr_id = self.next * self.places + place;
            self.next += 1;
            batch.add(wr_id, &[self.inbox.sge(place as usize * LEN, LEN)]).unwrap();
            self.open.insert(wr_id);
        }
    }

    /// A receive is complete: once. Its place.
    fn closed(&mut self, c: &Completion) -> usize {
        assert!(self.open.remove(&c.wr_id), "receive {} is not open: {c:?}", c.wr_id);
        (c.wr_id % self.places) as usize * LEN
    }

    /// What is written there, followed by guards up to the end of the place; it is guards again.
    fn take(&mut self, c: &Completion) -> Vec<u8> {
        let at = self.closed(c);
        let mut got = vec![0; LEN];
        self.inbox.read(at, &mut got);
        self.inbox.write(at, &[GUARD; LEN]);
        got
    }
}

/// A pair whose end on host 1 shares, and how far its messages are.
struct Lane {
    pair: Pair,
    sent: u64,
    received: u64,
    /// Lengths of what was sent and not received.
    lengths: VecDeque<usize>,
}

impl Lane {
    fn many(bed: &Testbed, shared: &Shared, count: usize) -> Vec<Lane> {
        let pairs = bed.connect_sharing(&connect(), count, Some(&shared.srq)).unwrap();
        pairs.into_iter().map(|pair| Lane { pair, sent: 0, received: 0, lengths: VecDeque::new() }).collect()
    }

    fn send(&mut self, source: &Mr, len: usize) {
        let mut batch = self.pair.a.qp.post();
        let from = source.sge(self.sent as usize % 64, len);
        batch.add(self.sent, Operation::Send, Data::Sges(&[from]), Flags::SIGNALED).unwrap();
        drop(batch);
        self.lengths.push_back(len);
        self.sent += 1;
    }

    /// Takes what has come, in the order in which it was sent, and looks at every byte.
    fn take(&mut self, shared: &mut Shared, source: &Mr, what: &str) {
        self.pair.a.cq.poll().for_each(|c| c.status.unwrap_or_else(|e| panic!("{what}: {e}")));
        while let Some(c) = self.pair.b.cq.poll().next() {
            c.status.unwrap_or_else(|e| panic!("{what}: {e}"));
            let len = self.lengths.pop_front().expect("a receive that nobody sent");
            assert_eq!((c.qpn, c.len as usize, c.opcode), (self.pair.b.qp.qpn(), len, recv_op::RECV), "{what}");
            let mut want = vec![GUARD; LEN];
            source.read(self.received as usize % 64, &mut want[..len]);
            assert!(shared.take(&c) == want, "{what}: message {} of {len} bytes", self.received);
            self.received += 1;
        }
    }
}

/// Datagrams to a QP that shares.
struct Datagrams {
    from: Qp<Rts, Ud>,
    to: Qp<Rts, Ud>,
    cqs: [Cq; 2],
    ah: AddressHandle,
    sent: VecDeque<(u8, usize)>,
}

impl Datagrams {
    fn new(bed: &Testbed, shared: &Shared) -> Self {
        let cqs = [0, 1].map(|i| bed.hosts[i].device.create_cq(256, &bed.hosts[i].eq).unwrap());
        let from = bed.hosts[0].pd.create_ud_qp(&cqs[0], &cqs[0], QpSizes::new(64, 4)).unwrap();
        let to = shared.srq.create_ud_qp(&cqs[1], &cqs[1], 64).unwrap();
        let [from, to] = [from, to].map(|qp| qp.init(7).unwrap().rtr().unwrap().rts(0).unwrap());
        let gid = bed.hosts[1].gid;
        let vector =
            AddressVector { ip: gid.ip, mac: gid.mac, gid: 0, traffic_class: 0, priority: 0, source_port: 0xc000 };
        Datagrams { from, to, cqs, ah: bed.hosts[0].pd.create_ah(&vector).unwrap(), sent: VecDeque::new() }
    }

    fn send(&mut self, len: usize, mark: u8) {
        let to = Operation::SendToImm(self.ah.to(self.to.qpn(), 7), [mark; 4]);
        self.from.post().add(0, to, Data::Inline(&vec![mark; len]), Flags::SIGNALED).unwrap();
        self.sent.push_back((mark, len));
    }

    fn take(&mut self, shared: &mut Shared) {
        self.cqs[0].poll().for_each(|c| c.status.unwrap());
        while let Some(c) = self.cqs[1].poll().next() {
            let (mark, len) = self.sent.pop_front().expect("a datagram that nobody sent");
            assert_eq!((c.status, c.qpn, c.imm), (Ok(()), self.to.qpn(), Some([mark; 4])));
            assert_eq!((c.len as usize, c.source), (UD_HEADER + len, self.from.qpn()));
            let got = shared.take(&c);
            assert!(got[UD_HEADER..UD_HEADER + len].iter().all(|b| *b == mark));
            assert!(got[UD_HEADER + len..].iter().all(|b| *b == GUARD));
        }
    }
}

/// Messages of several packets of many QPs between each other, and datagrams; one is sent only when a receive is there for it, so none may
/// find it missing, and each receive must come back once.
fn receives_go_to_whoever_begins(setup: Setup, receives: u32, lanes: usize, rounds: usize) {
    let what = format!("{receives} receives, {lanes} QPs");
    let mut rng = verilate::rng(setup.nic.seed + u64::from(receives));
    let bed = Testbed::new(&setup).unwrap();
    let source = region(&bed.hosts[0].pd, 64 + LEN, Access::LOCAL_WRITE, noise(setup.nic.seed));
    let mut shared = Shared::new(&bed, receives);
    let mut lanes = Lane::many(&bed, &shared, lanes);
    let mut datagrams = Datagrams::new(&bed, &shared);
    let (mut order, mut sent) = (0, 0);
    let enough = 10 + 2 * receives as usize;
    for turn in 0.. {
        let ends = turn >= verilate::scale(rounds) && sent > enough;
        let wanted: usize = lanes.iter().map(|l| l.lengths.len()).sum::<usize>() + datagrams.sent.len();
        if !ends {
            let free = receives as usize - shared.open.len();
            shared.post([0, 1.min(free), rng.random_range(0..=free)][rng.random_range(0..3)]);
            for _ in 0..rng.random_range(0..=(shared.open.len() - wanted).min(12)) {
                let lane = rng.random_range(0..=lanes.len());
                sent += 1;
                let len = [0, 1, MTU, LEN, LEN, rng.random_range(0..=LEN)][rng.random_range(0..6)];
                match lanes.get_mut(lane) {
                    Some(lane) => lane.send(&source, len),
                    None => datagrams.send(len % 200, turn as u8),
                }
            }
        } else if wanted == 0 {
            break;
        }
        assert!(turn < rounds + 50_000, "{what}: {wanted} messages are missing");
        let before = shared.open.clone();
        lanes.iter_mut().for_each(|lane| lane.take(&mut shared, &source, &what));
        datagrams.take(&mut shared);
        // Out of order: one is complete while an older one is not.
        let done = before.difference(&shared.open).map(|o| o / shared.places).max();
        order += u64::from(done.is_some_and(|d| shared.open.iter().any(|o| o / shared.places < d)));
        bed.sim().advance_cycles(rng.random_range(1..400));
    }
    let total: u64 = lanes.iter().map(|l| l.received).sum();
    println!("{what}: {total} messages, {order} times out of order");
    assert!(receives < 8 || order > 3, "{what}: all complete in order");
    assert_eq!(bed.hosts[1].device.counter(counter::RX_RNR), 0, "{what}: a receive was posted and not found");
    assert_eq!(bed.hosts[1].device.counter(counter::RX_UNRELIABLE), 0, "{what}: a datagram found none");
    let posted = shared.srq.query().unwrap().posted as usize;
    assert!(posted >= shared.open.len() && posted < 2 * receives as usize + 4, "{what}: {posted}");
    assert_sound(&bed, &what);
}

#[test]
fn messages_of_many_queue_pairs_share_their_receives() {
    for receives in [1, 2, 3, 8, 64] {
        receives_go_to_whoever_begins(Setup::default(), receives, 12, 400);
    }
}

#[test]
fn they_do_with_a_hostile_host_and_in_the_small_core() {
    let mut hostile = Setup::default();
    hostile.nic.adversary = Adversary::Hostile;
    receives_go_to_whoever_begins(hostile, 16, 20, 400);
    receives_go_to_whoever_begins(Setup::small(), 1, 3, 150);
    receives_go_to_whoever_begins(Setup::small(), 40, 8, 300);
}

/// Indices of a ring wrap, at 2^16 and at its end.
#[test]
fn indices_of_a_shared_queue_wrap() {
    let bed = Testbed::new(&Setup::default()).unwrap();
    let source = region(&bed.hosts[0].pd, 64 + LEN, Access::LOCAL_WRITE, noise(8));
    let mut shared = Shared::new(&bed, 60);
    let mut lanes = Lane::many(&bed, &shared, 4);
    let total = verilate::scale(70_000) as u64;
    while lanes.iter().map(|l| l.received).sum::<u64>() < total {
        shared.post(60 - shared.open.len());
        let wanted = lanes.iter().map(|l| l.lengths.len()).sum::<usize>();
        for i in wanted..shared.open.len() {
            let lane = &mut lanes[i % 4];
            if lane.lengths.len() < 15 {
                lane.send(&source, i % 4);
            }
        }
        bed.relax();
        lanes.iter_mut().for_each(|lane| lane.take(&mut shared, &source, "wrap"));
    }
    assert_eq!(bed.hosts[1].device.counter(counter::RX_RNR), 0);
    assert_sound(&bed, "wrap");
}

/// Nothing posted: an RNR NAK, to each QP that asks; what is posted then goes to one of them.
#[test]
fn an_empty_shared_queue_is_answered_rnr() {
    let bed = Testbed::new(&Setup::default()).unwrap();
    let source = region(&bed.hosts[0].pd, 64 + LEN, Access::LOCAL_WRITE, noise(9));
    let mut shared = Shared::new(&bed, 4);
    let mut lanes = Lane::many(&bed, &shared, 3);
    let rnr = || bed.hosts[1].device.counter(counter::RX_RNR);
    for round in 0..20u64 {
        let n = (round % 3) as usize;
        lanes[n].send(&source, LEN);
        let before = rnr();
        while rnr() == before {
            bed.relax();
        }
        shared.post(1);
        while lanes[n].received < lanes[n].sent {
            lanes[n].take(&mut shared, &source, "behind the RNR NAK");
            bed.relax();
        }
    }
    // One for two.
    lanes[0].send(&source, 10);
    lanes[1].send(&source, 20);
    shared.post(1);
    let done = |lanes: &[Lane]| lanes.iter().map(|l| l.sent - l.received).sum::<u64>();
    while done(&lanes) == 2 {
        lanes.iter_mut().for_each(|l| l.take(&mut shared, &source, "one for two"));
        bed.relax();
    }
    pass(&bed, 50);
    lanes.iter_mut().for_each(|l| l.take(&mut shared, &source, "one for two"));
    assert_eq!(done(&lanes), 1, "one receive, one message");
    shared.post(1);
    while done(&lanes) > 0 {
        lanes.iter_mut().for_each(|l| l.take(&mut shared, &source, "two for two"));
        bed.relax();
    }
    assert_sound(&bed, "RNR");
}

/// Events of a kind of host 1 that have come.
fn events(bed: &mut Testbed, kind: u8) -> Vec<Event> {
    pass(bed, 30);
    std::iter::from_fn(|| bed.hosts[1].eq.poll()).filter(|e| e.kind == kind).collect()
}

#[test]
fn the_limit_is_told_of_once_and_can_be_armed_again() {
    let mut bed = Testbed::new(&Setup::default()).unwrap();
    let source = region(&bed.hosts[0].pd, 64 + LEN, Access::LOCAL_WRITE, noise(10));
    let mut shared = Shared::new(&bed, 10);
    let mut lanes = Lane::many(&bed, &shared, 2);
    let number = shared.srq.number();
    let mut take_one = |bed: &Testbed, shared: &mut Shared, n: usize| {
        let lane = &mut lanes[n];
        lane.send(&source, 2 * MTU + 5);
        while lane.received < lane.sent {
            lane.take(shared, &source, "limit");
            bed.relax();
        }
    };
    shared.post(10);
    pass(&bed, 30);
    for round in 0..3 {
        shared.srq.arm(4).unwrap();
        assert_eq!(shared.srq.query().unwrap().limit, 4);
        for left in (0..10).rev() {
            take_one(&bed, &mut shared, left % 2);
            let came = events(&mut bed, event::SRQ_LIMIT);
            let want = if left == 3 { vec![number] } else { vec![] };
            assert_eq!(came.iter().map(|e| e.number).collect::<Vec<_>>(), want, "round {round}: {left} left");
            let info = shared.srq.query().unwrap();
            assert_eq!((info.posted, info.limit), (left as u32, if left > 3 { 4 } else { 0 }));
        }
        shared.post(10);
        pass(&bed, 30);
    }
    // What is so already is told at once, and not what was taken back.
    shared.srq.arm(10).unwrap();
    assert!(events(&mut bed, event::SRQ_LIMIT).is_empty());
    shared.srq.arm(0).unwrap();
    take_one(&bed, &mut shared, 0);
    assert!(events(&mut bed, event::SRQ_LIMIT).is_empty());
    shared.srq.arm(10).unwrap();
    assert_eq!(events(&mut bed, event::SRQ_LIMIT).len(), 1);
    assert!(shared.srq.arm(11).unwrap_err().to_string().contains("a limit of 11 receives in a queue of 10"));
    assert_sound(&bed, "limit");
}

/// How a QP ends with a message under way.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Fail,
    Reset,
    Destroy,
}

/// A QP ends in the middle of a message, and others go on with what is left: the receive that it had comes back, by a flushed completion if
/// the QP was brought to ERR first, by being posted again if not.
#[test]
fn a_receive_of_a_message_under_way_comes_back() {
    let mut bed = Testbed::new(&Setup::default()).unwrap();
    let source = region(&bed.hosts[0].pd, 64 + LEN, Access::LOCAL_WRITE, noise(11));
    for (i, end) in [End::Fail, End::Reset, End::Destroy, End::Fail, End::Destroy].into_iter().enumerate() {
        let what = &format!("{end:?}, {i}");
        let mut shared = Shared::new(&bed, 6);
        let mut lanes = Lane::many(&bed, &shared, 3);
        shared.post(6);
        // The victim's messages do not end: all behind the second packet is lost.
        let mut victim = lanes.pop().unwrap();
        let qpn = victim.pair.b.qp.qpn();
        let cut = Match { from: Some(0), qpn: Some(qpn), psn: Some((2, 0xff_ffff)), ..Match::default() };
        bed.sim().link_mut(0).rules.add(cut, Action::Drop);
        victim.send(&source, LEN);
        pass(&bed, 30);
        assert_eq!(shared.srq.query().unwrap().posted, 5, "{what}: one is taken");
        // Others go on, past it, and round the ring.
        let go_on = |lanes: &mut [Lane], shared: &mut Shared, count: usize| {
            for k in 0..count {
                let lane = &mut lanes[k % 2];
                lane.send(&source, LEN - k % 300);
                while lane.received < lane.sent {
                    lane.take(shared, &source, what);
                    bed.relax();
                }
                shared.post(1);
                pass(&bed, 5);
            }
        };
        go_on(&mut lanes, &mut shared, 30);
        let peer = victim.pair.a;
        let (qp, mut cq) = (victim.pair.b.qp, victim.pair.b.cq);
        // The first one posted has been open all the time.
        let oldest = *shared.open.first().unwrap();
        assert_eq!(oldest / shared.places, 0, "{what}");
        match end {
            End::Fail => {
                qp.fail().unwrap();
                let c = wait(&bed, &mut cq, what);
                assert_eq!((c.wr_id, c.qpn), (oldest, qpn), "{what}");
                assert_eq!(c.status.unwrap_err().status, wc::WR_FLUSH, "{what}");
                shared.closed(&c);
                assert!(cq.poll().next().is_none(), "{what}: the receives of the others stay");
                qp.fail().unwrap();
                pass(&bed, 30);
                assert!(cq.poll().next().is_none(), "{what}: once");
                drop(qp);
                shared.post(1);
            }
            End::Reset => {
                let qp = qp.reset().unwrap();
                pass(&bed, 30);
                assert!(cq.poll().next().is_none(), "{what}: RESET forgets");
                drop(qp);
            }
            End::Destroy => {
                drop(qp);
                pass(&bed, 30);
                assert!(cq.poll().next().is_none(), "{what}");
            }
        }
        // All six are there for the others; in one of them the message had begun.
        shared.inbox.write(0, &vec![GUARD; shared.inbox.len()]);
        lanes.iter_mut().for_each(|l| l.take(&mut shared, &source, what));
        for k in 0..6 {
            lanes[k % 2].send(&source, 100);
        }
        for _ in 0..2000 {
            lanes.iter_mut().for_each(|l| l.take(&mut shared, &source, what));
            bed.relax();
        }
        assert_eq!(shared.open, BTreeSet::new(), "{what}: receives that did not come back");
        drop(peer);
        drop((lanes, shared));
        let last: Vec<u32> = events(&mut bed, event::LAST_WQE).iter().map(|e| e.number).collect();
        assert!(last.contains(&qpn) && last.iter().filter(|n| **n == qpn).count() == 1, "{what}: {last:?}");
    }
    assert_eq!(bed.hosts[1].device.counter(counter::RX_RNR), 0);
    assert_sound(&bed, "ends");
}

/// A receive whose key does not open, or that is too short, ends the QP that met it, with messages behind it under way. Each receive that the
/// device took completes; the others are there for others.
#[test]
fn a_bad_receive_ends_only_the_queue_pair_that_met_it() {
    let mut bed = Testbed::new(&Setup::default()).unwrap();
    let source = region(&bed.hosts[0].pd, 64 + LEN, Access::LOCAL_WRITE, noise(12));
    for (i, (status, packets)) in [(wc::LOC_PROT, 1), (wc::LOC_PROT, 4), (wc::LOC_LEN, 1), (wc::LOC_LEN, 4)]
        .into_iter()
        .cycle()
        .take(12)
        .enumerate()
    {
        let what = &format!("{i}: status {status}, {packets} packets");
        let mut shared = Shared::new(&bed, 40);
        let mut lanes = Lane::many(&bed, &shared, 2);
        let len = packets * MTU;
        // A good one, a bad one, good ones.
        shared.post(1);
        let bad = u64::MAX;
        let sge = shared.inbox.sge(40 * LEN, if status == wc::LOC_LEN { len - 1 } else { LEN });
        let lkey = if status == wc::LOC_LEN { sge.lkey } else { sge.lkey ^ 1 };
        shared.srq.post_recv(bad, &[Sge { lkey, ..sge }]).unwrap();
        shared.post(20);
        let mut victim = lanes.remove(0);
        for _ in 0..15 {
            victim.send(&source, len);
        }
        pass(&bed, 300);
        let (mut good, mut failed) = (0, vec![]);
        for c in victim.pair.b.cq.poll() {
            match c.status {
                Ok(()) => {
                    shared.closed(&c);
                    good += 1;
                    assert!(failed.is_empty(), "{what}: in order");
                }
                Err(e) => {
                    if c.wr_id != bad {
                        shared.closed(&c);
                    }
                    failed.push((c.wr_id, e.status));
                }
            }
        }
        assert_eq!(good, 1, "{what}: {failed:?}");
        assert_eq!(failed[0], (bad, status), "{what}");
        assert!(failed[1..].iter().all(|f| f.1 == wc::WR_FLUSH), "{what}: {failed:?}");
        println!("{what}: {} flushed", failed.len() - 1);
        // Its sends: the first went well, one failed, the rest were flushed.
        let sends: Vec<_> = (0..15).map(|_| wait(&bed, &mut victim.pair.a.cq, what)).collect();
        assert!(sends[0].status.is_ok() && sends[1..].iter().all(|c| c.status.is_err()), "{what}: {sends:?}");
        let last: Vec<u32> = events(&mut bed, event::LAST_WQE).iter().map(|e| e.number).collect();
        assert!(last.contains(&victim.pair.b.qp.qpn()), "{what}");
        let lane = &mut lanes[0];
        let left = shared.open.len();
        assert_eq!(shared.srq.query().unwrap().posted as usize, left, "{what}: what is not complete is in the queue");
        for _ in 0..left {
            lane.send(&source, 30);
        }
        for _ in 0..2000 {
            lane.take(&mut shared, &source, what);
            bed.relax();
        }
        assert_eq!(lane.received, left as u64, "{what}");
        assert!(shared.open.is_empty(), "{what}");
    }
    assert_sound(&bed, "bad receives");
}

/// A WRITE with immediate data takes a receive, and its key does not open: the peers of many queue pairs do so one after the other, and take
/// none away from the others by it.
#[test]
fn writes_with_immediate_that_fail_do_not_drain_the_queue() {
    let mut bed = Testbed::new(&Setup::default()).unwrap();
    let source = region(&bed.hosts[0].pd, 64 + LEN, Access::LOCAL_WRITE, noise(15));
    let receives = 12;
    let mut shared = Shared::new(&bed, receives);
    let mut lane = Lane::many(&bed, &shared, 1).remove(0);
    let (mut failed, mut flushed, mut asked) = (0, 0, 0);
    for round in 0..verilate::scale(16) {
        shared.post(receives as usize - shared.open.len());
        let mut victims = Lane::many(&bed, &shared, 8);
        for (i, victim) in victims.iter_mut().enumerate() {
            // Of one packet; of several, the first of which is refused; and others close behind it.
            let len = [10, 10, 3 * MTU][(round + i) % 3];
            let to = driver::Remote { addr: shared.inbox.addr(), rkey: shared.inbox.rkey() };
            let mut batch = victim.pair.a.qp.post();
            for n in 0..1 + (round + i) as u64 % 2 {
                let write = Operation::WriteImm(to, [i as u8; 4]);
                batch.add(n, write, Data::Sges(&[source.sge(0, len)]), Flags::SIGNALED).unwrap();
            }
            asked += u64::from(len == 10);
        }
        for victim in &mut victims {
            let c = wait(&bed, &mut victim.pair.a.cq, "a WRITE that fails");
            assert_eq!(c.status.unwrap_err().status, wc::REM_ACCESS);
        }
        pass(&bed, 30);
        for victim in &mut victims {
            for c in victim.pair.b.cq.poll() {
                shared.closed(&c);
                let e = c.status.unwrap_err();
                let first = c.qpn == victim.pair.b.qp.qpn() && e.status == wc::LOC_ACCESS;
                assert!(first && e.cause == cause::KEY_ACCESS || e.status == wc::WR_FLUSH, "{c:?}");
                *if first { &mut failed } else { &mut flushed } += 1;
            }
        }
        let posted = shared.srq.query().unwrap().posted as usize;
        assert_eq!(posted, shared.open.len(), "round {round}: each that was taken is complete");
        let last = events(&mut bed, event::LAST_WQE);
        assert!(victims.iter().all(|v| last.iter().any(|e| e.number == v.pair.b.qp.qpn())), "round {round}: {last:?}");
    }
    println!("{failed} failed, {flushed} flushed behind them");
    assert_eq!(failed, asked, "one each, of those that have taken one");
    shared.post(receives as usize - shared.open.len());
    (0..receives).for_each(|_| lane.send(&source, LEN));
    while lane.received < u64::from(receives) {
        lane.take(&mut shared, &source, "behind all that");
        bed.relax();
    }
    assert_eq!(bytes(&shared.inbox), vec![GUARD; shared.inbox.len()]);
    assert_sound(&bed, "WRITEs that fail");
}

/// Queue pairs are destroyed with completions in their queue that nobody has seen: those receives go back as well.
#[test]
fn receives_whose_completions_nobody_saw_go_back() {
    let bed = Testbed::new(&Setup::default()).unwrap();
    let source = region(&bed.hosts[0].pd, 64 + LEN, Access::LOCAL_WRITE, noise(13));
    let mut shared = Shared::new(&bed, 8);
    shared.post(8);
    for round in 0..10 {
        let mut lane = Lane::many(&bed, &shared, 1).remove(0);
        (0..5).for_each(|_| lane.send(&source, 100 + round));
        (0..5).for_each(|_| wait(&bed, &mut lane.pair.a.cq, "sends").status.unwrap());
        let Pair { a, b } = lane.pair;
        if round % 2 == 0 {
            drop(b.qp);
        } else {
            drop(b.qp.reset().unwrap());
        }
        // They go back as they are passed over.
        let mut cq = b.cq;
        assert!(cq.poll().next().is_none());
        drop((a, cq));
    }
    let mut lane = Lane::many(&bed, &shared, 1).remove(0);
    (0..8).for_each(|_| lane.send(&source, 77));
    shared.inbox.write(0, &vec![GUARD; shared.inbox.len()]);
    while lane.received < 8 {
        lane.take(&mut shared, &source, "at the end");
        bed.relax();
    }
    assert!(shared.open.is_empty());
    assert_eq!(bed.hosts[1].device.counter(counter::RX_RNR), 0);
    assert_sound(&bed, "unseen completions");
}

/// Queue pairs end at any moment, in any way, over a link that loses packets, and new ones come: in the end each receive is there once.
#[test]
fn no_receive_is_lost_whenever_a_queue_pair_ends() {
    let mut setup = Setup::default();
    setup.nic.seed = verilate::seed(21);
    let mut rng = verilate::rng(setup.nic.seed);
    let bed = Testbed::new(&setup).unwrap();
    let some = Match { probability: Some(0.02), ..Match::default() };
    bed.sim().link_mut(0).rules.add(some, Action::Drop);
    let source = region(&bed.hosts[0].pd, 64 + LEN, Access::LOCAL_WRITE, noise(21));
    let mut shared = Shared::new(&bed, 24);
    let mut lanes = Lane::many(&bed, &shared, 6);
    let (mut done, mut flushed) = (0, 0);
    for round in 0..verilate::scale(40) {
        shared.post(24 - shared.open.len());
        for lane in &mut lanes {
            let room = 40 - lane.lengths.len().min(40);
            for _ in 0..rng.random_range(0..6).min(room) {
                let len = [0, MTU, LEN, rng.random_range(0..=LEN)][rng.random_range(0..4)];
                lane.send(&source, len);
            }
        }
        for _ in 0..rng.random_range(0..12) {
            bed.sim().advance_cycles(rng.random_range(1..300));
            for lane in &mut lanes {
                lane.pair.a.cq.poll().for_each(|c| c.status.unwrap());
                lane.pair.b.cq.poll().for_each(|c| {
                    c.status.unwrap();
                    shared.closed(&c);
                    lane.lengths.pop_front();
                    done += 1;
                });
                // So that there is always something to take, and to lose.
                shared.post(24 - shared.open.len());
            }
        }
        // The one that ends has more to say.
        let mut victim = lanes.swap_remove(rng.random_range(0..6));
        (0..3).for_each(|_| victim.send(&source, LEN));
        bed.sim().advance_cycles(rng.random_range(300..2500));
        let Pair { a, b } = victim.pair;
        let (qp, mut cq) = (b.qp, b.cq);
        let count = |shared: &mut Shared, cq: &mut Cq| {
            let (mut good, mut bad) = (0, 0);
            cq.poll().for_each(|c| {
                shared.closed(&c);
                *if c.status.is_ok() { &mut good } else { &mut bad } += 1;
            });
            (good, bad)
        };
        match round % 3 {
            0 => {
                qp.fail().unwrap();
                let (good, bad) = count(&mut shared, &mut cq);
                assert!(bad <= 1, "round {round}: {bad} flushed, one message can be under way");
                (done, flushed) = (done + good, flushed + bad);
                drop(qp);
            }
            1 => drop(qp.reset().unwrap()),
            _ => drop(qp),
        }
        // What nobody has seen is passed over.
        assert_eq!(count(&mut shared, &mut cq), (0, 0), "round {round}");
        drop((a, cq));
        lanes.extend(Lane::many(&bed, &shared, 1));
    }
    println!("{done} received, {flushed} flushed");
    assert!(done > 50 && flushed > 0, "{done} received, {flushed} flushed");
    // One after the other they end, and one that comes then finds all that is left.
    for lane in lanes {
        let Pair { a, b } = lane.pair;
        let mut cq = b.cq;
        drop((a, b.qp));
        assert!(cq.poll().next().is_none());
    }
    let mut lane = Lane::many(&bed, &shared, 1).remove(0);
    let left = shared.open.len();
    (0..left).for_each(|_| lane.send(&source, 9));
    shared.inbox.write(0, &vec![GUARD; shared.inbox.len()]);
    for _ in 0..20_000 {
        lane.take(&mut shared, &source, "what is left");
        if lane.received == left as u64 {
            break;
        }
        bed.relax();
    }
    assert_eq!((lane.received, shared.open.len()), (left as u64, 0), "receives are lost");
    assert_sound(&bed, "ends at random");
}

/// With the device goes what was posted: each receive is flushed once, by one of the queue pairs that might have taken it.
#[test]
fn a_device_that_is_gone_flushes_shared_receives() {
    let bed = Testbed::new(&Setup::default()).unwrap();
    let mut shared = Shared::new(&bed, 5);
    let mut lanes = Lane::many(&bed, &shared, 2);
    shared.post(5);
    bed.hosts[1].device.reset().unwrap();
    for n in 0..5 {
        let c = lanes[n % 2].pair.b.cq.wait();
        assert_eq!(c.status.unwrap_err().status, wc::WR_FLUSH);
        shared.closed(&c);
    }
    assert!(shared.open.is_empty());
    assert!(lanes.iter_mut().all(|l| l.pair.b.cq.poll().next().is_none()));
}

/// A doorbell further than the ring is long ends the queue: its event names it, what is on chip is still taken, then there is RNR.
#[test]
fn a_doorbell_out_of_range_ends_the_shared_queue_alone() {
    let mut bed = Testbed::new(&Setup::default()).unwrap();
    let source = region(&bed.hosts[0].pd, 64 + LEN, Access::LOCAL_WRITE, noise(14));
    let mut shared = Shared::new(&bed, 8);
    let mut other = Shared::new(&bed, 8);
    let mut lanes = Lane::many(&bed, &shared, 1);
    let mut others = Lane::many(&bed, &other, 1);
    shared.post(2);
    other.post(8);
    pass(&bed, 30);
    let mut word = [0; 8];
    ring_db::NUMBER.set(&mut word, shared.srq.number().into());
    ring_db::PRODUCER.set(&mut word, 2 + 17);
    let ring = |page: usize, word: [u8; 8]| {
        let offset = (page * doorbell::PAGE + doorbell::RQ) as u32;
        let write = Some(u64::from_le_bytes(word));
        bed.sim().nic(1).bar(BarRequest { bar: 2, offset, bytes: 8, write });
    };
    // Another page's is refused.
    ring(2, word);
    pass(&bed, 30);
    assert_eq!(bed.hosts[1].device.counter(counter::DOORBELL_REFUSED), 1);
    ring(1, word);
    pass(&bed, 30);
    let failed = events(&mut bed, event::QP_ERROR);
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!((failed[0].number, failed[0].value), (shared.srq.number(), cause::DOORBELL_RANGE.into()));
    (0..3).for_each(|_| lanes[0].send(&source, 50));
    (0..8).for_each(|_| others[0].send(&source, 50));
    pass(&bed, 300);
    lanes[0].take(&mut shared, &source, "the dead queue");
    others[0].take(&mut other, &source, "another queue");
    assert_eq!((lanes[0].received, others[0].received), (2, 8));
    assert!(bed.hosts[1].device.counter(counter::RX_RNR) > 0);
    assert_sound(&bed, "doorbells");
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let bed = Testbed::new(&Setup::default()).unwrap();
    let host = &bed.hosts[1];
    let shared = Shared::new(&bed, 4);
    let mut pair = bed.connect_sharing(&connect(), 1, Some(&shared.srq)).unwrap().remove(0);
    let said = |e: driver::Error| e.to_string();
    for n in [0, MAX_SHARED_RECEIVES + 1] {
        assert!(said(host.pd.create_srq(n).err().unwrap()).contains(&format!("a shared receive queue of {n} entries")));
    }
    host.pd.create_srq(MAX_SHARED_RECEIVES).unwrap();
    let sge = shared.inbox.sge(0, 8);
    assert!(said(shared.srq.post_recv(0, &[sge; 2]).unwrap_err()).contains("2 SGEs in a receive"));
    assert!(said(shared.srq.post_recv(0, &[Sge { len: HOLE, ..sge }]).unwrap_err()).contains("an SGE of"));
    assert!(said(pair.b.qp.post_recv(0, &[sge]).unwrap_err()).contains("those of a shared queue"));
    (0..4).for_each(|n| shared.srq.post_recv(n, &[sge]).unwrap());
    assert!(said(shared.srq.post_recv(4, &[sge]).unwrap_err()).contains("the shared receive queue is full"));

    // Straight to the firmware.
    let command = |opcode: u8, fields: &[(abi::Field, u64)]| {
        let mut c = [0; 64];
        head::OPCODE.set(&mut c, opcode.into());
        head::OWNER.set(&mut c, 1);
        fields.iter().for_each(|(f, v)| f.set(&mut c, *v));
        let a = host.device.command_raw(c).unwrap();
        (answer::RESULT.get(&a) as u8, answer::FIELD.get(&a) as usize)
    };
    let (srq, qp) = (u64::from(shared.srq.number()), u64::from(pair.b.qp.qpn()));
    assert_eq!(command(op::DESTROY_SRQ, &[(head::NUMBER, srq)]), (result::IN_USE, head::NUMBER.lsb));
    for opcode in [op::DESTROY_SRQ, op::QUERY_SRQ, op::MODIFY_SRQ] {
        assert_eq!(command(opcode, &[(head::NUMBER, qp)]), (result::NO_OBJECT, head::NUMBER.lsb), "a QP is none");
        let other = [(head::NUMBER, srq), (head::OWNER, 2)];
        assert_eq!(command(opcode, &other), (result::NOT_OWNER, head::NUMBER.lsb));
    }
    for opcode in [op::DESTROY_QP, op::QUERY_QP, op::MODIFY_QP] {
        assert_eq!(command(opcode, &[(head::NUMBER, srq)]), (result::NO_OBJECT, head::NUMBER.lsb), "it is no QP");
    }
    let unsupported = [(create_srq::SGES, 4)];
    assert_eq!(command(op::CREATE_SRQ, &unsupported), (result::UNSUPPORTED, create_srq::SGES.lsb));
    let cq = u64::from(pair.b.cq.number());
    let uc = [
        (create_qp::TYPE, qp_type::UC.into()),
        (create_qp::SEND_CQN, cq),
        (create_qp::RECV_CQN, cq),
        (create_qp::RQ_SGES, 1),
        (create_qp::SHARED, 1),
        (create_qp::SRQN, srq),
    ];
    assert_eq!(command(op::CREATE_QP, &uc), (result::UNSUPPORTED, create_qp::SHARED.lsb));
    let mut none = uc;
    (none[0].1, none[5].1) = (qp_type::RC.into(), qp);
    assert_eq!(command(op::CREATE_QP, &none), (result::NO_OBJECT, create_qp::SRQN.lsb));
    assert_eq!(bytes(&shared.inbox), vec![GUARD; 5 * LEN]);
    assert_sound(&bed, "refusals");
}
