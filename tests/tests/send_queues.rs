//! Send queues that stop: SQE, where a send of UC or UD has failed, SQD, where a program drains what it has begun, and the most
//! messages that may be in flight.

use abi::queue::{UD_HEADER, event, send_op, send_wqe};
use abi::status::{cause, counter, wc};
use abi::table::qp_state;
use abi::wire::op;
use driver::qp::{Changes, Path, QpSizes, Rts, Sqd, Uc, Ud, Unreliable};
use driver::{Access, AddressHandle, AddressVector, Cq, Data, Event, Flags, Gid, Mr, Operation, Qp, Sge, WcError};
use fabric::{Action, Match, Packet};
use ferroce_tests::{GUARD, assert_sound, bytes, is_guard, noise, pass, path_to, region, wait};
use std::sync::{Arc, Mutex};
use testbed::{Connect, Host, Pair, Setup, Testbed};

const SIZES: QpSizes = QpSizes::new(16, 16);
const QKEY: u32 = 77;
const LEN: usize = 8192;
/// Of a message that is sent.
const GOOD: usize = 600;

/// An end of an unreliable transport.
struct End<T: Unreliable> {
    qp: Option<Qp<Rts, T>>,
    cq: Cq,
    memory: Mr,
}

/// What cannot be sent, and how that ends.
struct Bad {
    sges: Vec<Sge>,
    opcode: Option<u8>,
    status: u8,
    cause: u8,
}

fn path(bed: &Testbed, to: usize, qpn: u32) -> Path {
    path_to(bed.hosts[to].gid, qpn, 256, 0xff_fffe)
}

fn memory(h: &Host) -> Mr {
    region(&h.pd, LEN, Access::all(), noise(1))
}

impl<T: Unreliable> End<T> {
    fn post(&mut self, id: u64, operation: Operation, data: Data) {
        let flags = if id.is_multiple_of(2) { Flags::SIGNALED } else { Flags::empty() };
        self.qp.as_mut().unwrap().post().add(id, operation, data, flags).unwrap();
    }

    /// The next completion, of this request with this status.
    fn completes(&mut self, bed: &Testbed, id: u64, status: u8, why: u8) {
        let c = wait(bed, &mut self.cq, "a send");
        let (got, cause) = c.status.map_or_else(|e| (e.status, e.cause), |()| (wc::SUCCESS, cause::NONE));
        assert_eq!((c.wr_id, got, cause), (id, status, why), "{c:?}");
    }
}

/// A failed send between good ones, again and again: the sends behind it are flushed, and all that are posted until the queue goes on;
/// receives are served all the time, and what is posted then arrives.
fn stops<T: Unreliable>(bed: &Testbed, mut a: End<T>, mut b: End<T>, to: [Operation; 2], header: usize, bads: &[Bad]) {
    const FLUSHED: (u8, u8) = (wc::WR_FLUSH, cause::FLUSHED);
    for (round, bad) in bads.iter().cycle().take(verilate::scale(2 * bads.len())).enumerate() {
        let good = [a.memory.sge(0, 100), a.memory.sge(100, GOOD - 100)];
        let place = |i: usize| 1000 * (1 + i);
        let source = bytes(&a.memory);
        b.memory.write(1000, &[GUARD; 5000]);
        for i in 0..3 {
            b.qp.as_mut().unwrap().post_recv(i, &[b.memory.sge(place(i as usize), 900)]).unwrap();
        }
        a.qp.as_mut().unwrap().post_recv(500, &[a.memory.sge(4000, 900)]).unwrap();
        pass(bed, 20);
        a.post(10, to[1], Data::Sges(&good));
        match bad.opcode {
            None => a.post(11, to[1], Data::Sges(&bad.sges)),
            Some(opcode) => {
                let mut block = [0; 64];
                send_wqe::OPCODE.set(&mut block, opcode.into());
                send_wqe::BLOCKS.set(&mut block, 1);
                a.qp.as_mut().unwrap().post().add_raw(11, &[block]).unwrap();
            }
        }
        a.post(12, to[1], Data::Sges(&good));
        a.post(13, to[1], Data::Sges(&good));
        a.completes(bed, 10, wc::SUCCESS, cause::NONE);
        let running = a.qp.take().unwrap();
        assert!(!running.has_stopped(), "its failed send was not polled yet");
        a.qp = running.stopped().err();
        a.completes(bed, 11, bad.status, bad.cause);
        assert!(a.qp.as_ref().unwrap().has_stopped());
        a.completes(bed, 12, FLUSHED.0, FLUSHED.1);
        a.completes(bed, 13, FLUSHED.0, FLUSHED.1);
        assert_eq!(a.qp.as_ref().unwrap().query().unwrap().state, qp_state::SQE, "round {round}");
        // Many times what the queue holds.
        for id in 100..200 {
            a.post(id, to[1], Data::Inline(&[1; 40]));
            a.completes(bed, id, FLUSHED.0, FLUSHED.1);
        }
        // It still receives.
        let arrives = |b: &mut End<T>, i: usize, len: usize| {
            let c = wait(bed, &mut b.cq, "what was sent");
            assert_eq!((c.wr_id, c.status, c.len as usize), (i as u64, Ok(()), header + len), "round {round}: {c:?}");
            let got = bytes(&b.memory);
            let want = if len == GOOD { source[..GOOD].to_vec() } else { vec![round as u8; len] };
            assert!(got[place(i) + header..][..len] == want, "round {round}: message {i}");
            assert!(is_guard(&b.memory, place(i) + header + len..place(i) + 1000));
        };
        arrives(&mut b, 0, GOOD);
        b.post(600, to[0], Data::Sges(&[b.memory.sge(0, GOOD)]));
        b.completes(bed, 600, wc::SUCCESS, cause::NONE);
        let c = wait(bed, &mut a.cq, "a receive of a queue pair whose sends have stopped");
        assert_eq!((c.wr_id, c.status, c.len as usize), (500, Ok(()), header + GOOD), "{c:?}");
        // What is not polled when the queue goes on comes before what is sent then.
        a.post(20, to[1], Data::Sges(&good));
        a.post(21, to[1], Data::Sges(&good));
        let stopped = a.qp.take().unwrap().stopped().ok().unwrap();
        a.qp = Some(stopped.resume().unwrap());
        a.post(22, to[1], Data::Sges(&good));
        a.post(24, to[1], Data::Inline(&[round as u8; 50]));
        pass(bed, if round % 2 == 0 { 0 } else { 200 });
        a.completes(bed, 20, FLUSHED.0, FLUSHED.1);
        a.completes(bed, 21, FLUSHED.0, FLUSHED.1);
        a.completes(bed, 22, wc::SUCCESS, cause::NONE);
        a.completes(bed, 24, wc::SUCCESS, cause::NONE);
        assert_eq!(a.qp.as_ref().unwrap().query().unwrap().state, qp_state::RTS);
        // Of the good ones all, and nothing of the others.
        arrives(&mut b, 1, GOOD);
        arrives(&mut b, 2, 50);
        pass(bed, 100);
        assert!(b.cq.poll().next().is_none() && a.cq.poll().next().is_none());
        assert_sound(bed, "a queue that stopped");
    }
}

fn datagrams(bed: &Testbed) -> ([End<Ud>; 2], [AddressHandle; 2]) {
    let ends = [0, 1].map(|i| {
        let h = &bed.hosts[i];
        let cq = h.device.create_cq(256, &h.eq).unwrap();
        let qp = h.pd.create_ud_qp(&cq, &cq, SIZES).unwrap().init(QKEY).unwrap().rtr().unwrap().rts(0xff_fffe).unwrap();
        End { qp: Some(qp), cq, memory: memory(h) }
    });
    let to = [0, 1].map(|to| {
        let Gid { ip, mac, .. } = bed.hosts[to].gid;
        let vector = AddressVector { ip, mac, gid: 0, traffic_class: 0, priority: 0, source_port: 0xc000 };
        bed.hosts[1 - to].pd.create_ah(&vector).unwrap()
    });
    (ends, to)
}

fn connection(bed: &Testbed) -> [End<Uc>; 2] {
    let made = [0, 1].map(|i| {
        let h = &bed.hosts[i];
        let cq = h.device.create_cq(256, &h.eq).unwrap();
        (h.pd.create_uc_qp(&cq, &cq, SIZES).unwrap().init(Access::all()).unwrap(), cq)
    });
    let qpns = [made[0].0.qpn(), made[1].0.qpn()];
    let mut from = 0;
    made.map(|(qp, cq)| {
        let to = 1 - from;
        let qp = qp.rtr(&path(bed, to, qpns[to])).unwrap().rts(0xff_fffe).unwrap();
        let end = End { qp: Some(qp), cq, memory: memory(&bed.hosts[from]) };
        from += 1;
        end
    })
}

#[test]
fn a_datagram_that_fails_stops_the_sends_alone() {
    let bed = Testbed::new(&Setup::small()).unwrap();
    let ([a, b], ahs) = datagrams(&bed);
    let to = [0, 1].map(|i| {
        let end = if i == 0 { &a } else { &b };
        Operation::SendTo(ahs[i].to(end.qp.as_ref().unwrap().qpn(), QKEY))
    });
    let bad = |sges, opcode, status, cause| Bad { sges, opcode, status, cause };
    let outside = Sge { addr: a.memory.addr() + LEN as u64, ..a.memory.sge(0, 4) };
    let bads = [
        bad(vec![a.memory.sge(0, 4097)], None, wc::LOC_LEN, cause::WQE_LENGTH),
        bad(vec![a.memory.sge(0, 40), outside], None, wc::LOC_PROT, cause::KEY_BOUNDS),
        bad(vec![], Some(send_op::WRITE), wc::LOC_QP_OP, cause::WQE_OPCODE),
    ];
    stops(&bed, a, b, to, UD_HEADER, &bads);
}

#[test]
fn a_message_of_an_unreliable_connection_that_fails_stops_the_sends_alone() {
    let bed = Testbed::new(&Setup::small()).unwrap();
    let [a, b] = connection(&bed);
    let bad = |sges, opcode, status, cause| Bad { sges, opcode, status, cause };
    let none = Sge { lkey: 0, ..a.memory.sge(0, 700) };
    let bads = [
        // Its first packets leave.
        bad(vec![a.memory.sge(0, 600), none], None, wc::LOC_PROT, cause::KEY_INVALID),
        bad(vec![none], None, wc::LOC_PROT, cause::KEY_INVALID),
        bad(vec![], Some(send_op::READ), wc::LOC_QP_OP, cause::WQE_OPCODE),
    ];
    stops(&bed, a, b, [Operation::Send; 2], 0, &bads);
}

/// A queue pair in SQE that fails as a whole: what waits on either side is flushed.
#[test]
fn a_stopped_queue_pair_may_fail() {
    let bed = Testbed::new(&Setup::small()).unwrap();
    let [mut a, _b] = connection(&bed);
    let none = Sge { lkey: 0, ..a.memory.sge(0, 700) };
    a.qp.as_mut().unwrap().post_recv(500, &[a.memory.sge(0, 10)]).unwrap();
    a.post(1, Operation::Send, Data::Sges(&[none]));
    a.completes(&bed, 1, wc::LOC_PROT, cause::KEY_INVALID);
    a.post(2, Operation::Send, Data::Inline(&[1]));
    let stopped = a.qp.take().unwrap().stopped().ok().unwrap();
    stopped.fail().unwrap();
    assert_eq!(stopped.query().unwrap().state, qp_state::ERR);
    a.completes(&bed, 2, wc::WR_FLUSH, cause::FLUSHED);
    a.completes(&bed, 500, wc::WR_FLUSH, cause::FLUSHED);
    let e = stopped.resume().err().unwrap().to_string();
    assert!(e.contains("transition"), "{e}");
}

/// WRITEs and READs of a queue that is drained somewhere in the middle: `loss` of all frames.
fn drains(loss: f64) {
    const EACH: usize = 20_000;
    const COUNT: usize = 10;
    let mut setup = Setup::small();
    setup.nic.seed = verilate::seed(4);
    let mut bed = Testbed::new(&setup).unwrap();
    if loss > 0.0 {
        bed.sim().link_mut(0).rules.add(Match { probability: Some(loss), ..Match::default() }, Action::Drop);
    }
    let source = [0, 1].map(|i| region(&bed.hosts[i].pd, COUNT * EACH, Access::all(), noise(i as u64)));
    let target = [0, 1].map(|i| region(&bed.hosts[i].pd, COUNT * EACH, Access::all(), |_| GUARD));
    let Pair { mut a, b: _b } = bed.connect(&Connect { mtu: 1024, ..Connect::default() }).unwrap();
    let mut middle = 0;
    for round in 0..verilate::scale(6) {
        target.iter().for_each(|t| t.write(0, &[GUARD; COUNT * EACH]));
        let mut batch = a.qp.post();
        for i in 0..COUNT {
            let at = i * EACH;
            let (operation, sge) = match i % 3 {
                2 => (Operation::Read(source[1].remote(at)), target[0].sge(at, EACH)),
                _ => (Operation::Write(target[1].remote(at)), source[0].sge(at, EACH)),
            };
            batch.add(i as u64, operation, Data::Sges(&[sge]), Flags::SIGNALED).unwrap();
        }
        batch.ring();
        pass(&bed, 60 * round);
        let drained: Qp<Sqd> = a.qp.drain(true).unwrap();
        let told = (0..100_000).find_map(|_| {
            bed.relax();
            bed.hosts[0].eq.poll()
        });
        assert_eq!(told, Some(Event { kind: event::SQ_DRAINED, number: drained.qpn(), value: 0 }), "round {round}");
        // All that is complete was so before the event, and the rest has not begun.
        let mut done: Vec<_> = a.cq.poll().map(|c| (c.wr_id as usize, c.status)).collect();
        let first = done.len();
        middle += usize::from(first > 0 && first < COUNT);
        assert_eq!(drained.query().unwrap().state, qp_state::SQD);
        pass(&bed, 500);
        assert_eq!((a.cq.poll().count(), bed.hosts[0].eq.poll()), (0, None), "round {round}");
        let whole = |i: usize| {
            let read = i % 3 == 2;
            let (to, from) = if read { (&target[0], &source[1]) } else { (&target[1], &source[0]) };
            let range = i * EACH..(i + 1) * EACH;
            (bytes(to)[range.clone()] == bytes(from)[range.clone()], is_guard(to, range))
        };
        (0..COUNT)
            .for_each(|i| assert_eq!(whole(i), (i < first, i >= first), "round {round}: message {i}, {first} done"));
        let changes = Changes { timeout: Some(15), max_reads: Some(1 + round as u8), ..Changes::default() };
        drained.change(&changes).unwrap();
        a.qp = drained.resume().unwrap();
        while done.len() < COUNT {
            let c = wait(&bed, &mut a.cq, "what waited");
            done.push((c.wr_id as usize, c.status));
        }
        assert_eq!(done, (0..COUNT).map(|i| (i, Ok(()))).collect::<Vec<_>>(), "round {round}");
        // An ACK may be here before the peer's memory is written.
        pass(&bed, 100);
        (0..COUNT).for_each(|i| assert_eq!(whole(i), (true, false), "round {round}: message {i}"));
    }
    assert!(middle > 1, "the queue was drained in the middle {middle} times");
    // Without being asked nobody tells; and what waits in SQD can be flushed.
    let drained = a.qp.drain(false).unwrap();
    pass(&bed, 300);
    assert_eq!(bed.hosts[0].eq.poll(), None);
    a.qp = drained.resume().unwrap();
    a.qp = a.qp.drain(false).unwrap().resume().unwrap();
    let mut batch = a.qp.post();
    let write = |at| (Operation::Write(target[1].remote(at)), [source[0].sge(at, EACH)]);
    for i in 0..3 {
        let (operation, sge) = write(i * EACH);
        batch.add(i as u64, operation, Data::Sges(&sge), Flags::SIGNALED).unwrap();
    }
    batch.ring();
    pass(&bed, 40);
    let drained = a.qp.drain(false).unwrap();
    pass(&bed, 20_000);
    drained.fail().unwrap();
    let all: Vec<_> = a.cq.poll().map(|c| (c.wr_id, c.status.map_err(|e| e.status))).collect();
    assert!(all.iter().map(|c| c.0).eq(0..3) && all.is_sorted_by_key(|c| c.1.is_err()), "{all:?}");
    assert!(all.iter().all(|c| c.1.is_ok() || c.1 == Err(wc::WR_FLUSH)), "{all:?}");
    assert_sound(&bed, "a drained queue");
}

#[test]
fn a_send_queue_drains_and_goes_on() {
    drains(0.0);
}

/// Messages that have begun are sent again as often as need be.
#[test]
fn a_send_queue_drains_under_loss() {
    drains(2e-2);
}

/// While no answer comes, 128 messages of a queue pair leave, and the next one only when the first is done.
#[test]
fn a_hundred_and_twenty_eight_messages_are_in_flight() {
    const COUNT: u64 = 300;
    let bed = Testbed::new(&Setup::small()).unwrap();
    let source = region(&bed.hosts[0].pd, 64, Access::all(), noise(1));
    let target = region(&bed.hosts[1].pd, 64 * COUNT as usize, Access::all(), |_| GUARD);
    let sizes = QpSizes::new(512, 16);
    // A PSN that wraps, and records that go round.
    let mut pair = bed.connect(&Connect { mtu: 1024, psn: 0xff_ff00, sizes, ..Connect::default() }).unwrap();
    for round in 0..3 {
        let rule = bed.sim().link_mut(0).rules.rules.len();
        let acks = Match { from: Some(1), opcode: Some(op::ACK), ..Match::default() };
        bed.sim().link_mut(0).rules.add(acks, Action::Drop);
        // What is sent arrives.
        let sent = || bytes(&target).chunks(64).take_while(|c| **c != [GUARD; 64]).count() as u64;
        let mut batch = pair.a.qp.post();
        for i in 0..COUNT {
            let write = Operation::Write(target.remote(64 * i as usize));
            let flags = if i.is_multiple_of(3) || i + 1 == COUNT { Flags::SIGNALED } else { Flags::empty() };
            batch.add(i, write, Data::Sges(&[source.sge(0, 64)]), flags).unwrap();
        }
        batch.ring();
        // They are sent again and again meanwhile.
        pass(&bed, 3000);
        assert_eq!(sent(), 128, "round {round}");
        assert!(bed.hosts[0].device.counter(counter::TX_RETRANSMITTED) > 0);
        bed.sim().link_mut(0).rules.rules.truncate(rule);
        let signaled = (0..COUNT).filter(|i| i.is_multiple_of(3) || i + 1 == COUNT);
        for i in signaled {
            let c = wait(&bed, &mut pair.a.cq, "a WRITE");
            assert_eq!((c.wr_id, c.status), (i, Ok(())), "round {round}");
        }
        assert_eq!(sent(), COUNT, "round {round}");
        let want = bytes(&source);
        assert!(bytes(&target).chunks(64).all(|c| c == want));
        target.write(0, &[GUARD; 64 * COUNT as usize]);
    }
    assert_sound(&bed, "messages in flight");
}

/// A pair whose ends were changed in SQD. One message has been acknowledged since: retries that are counted are those of before until then.
fn changed(bed: &Testbed, near: &Changes, far: &Changes) -> Pair {
    let Pair { mut a, mut b } = bed.connect(&Connect { mtu: 1024, ..Connect::default() }).unwrap();
    let change = |qp: Qp<Rts>, changes| {
        let drained = qp.drain(false).unwrap();
        drained.change(changes).unwrap();
        drained.resume().unwrap()
    };
    (a.qp, b.qp) = (change(a.qp, near), change(b.qp, far));
    b.qp.post_recv(1, &[]).unwrap();
    pass(bed, 20);
    a.qp.post().add(1, Operation::Send, Data::Inline(&[]), Flags::SIGNALED).unwrap();
    for end in [&mut a, &mut b] {
        assert_eq!(wait(bed, &mut end.cq, "a message").status, Ok(()));
    }
    Pair { a, b }
}

/// Each attribute that is changed in SQD holds from then on, and is another than it was.
#[test]
fn what_is_changed_in_sqd_takes_effect() {
    const EACH: usize = 20_000;
    const READS: usize = 6;
    let mut bed = Testbed::new(&Setup::small()).unwrap();
    let source = region(&bed.hosts[1].pd, READS * EACH, Access::all(), noise(1));
    let target = region(&bed.hosts[0].pd, READS * EACH, Access::all(), |_| GUARD);
    let reads = |pair: &mut Pair| {
        let mut batch = pair.a.qp.post();
        for i in 0..READS {
            let read = Operation::Read(source.remote(i * EACH));
            batch.add(i as u64, read, Data::Sges(&[target.sge(i * EACH, EACH)]), Flags::SIGNALED).unwrap();
        }
        batch.ring();
    };
    let none = Changes::default();
    // READs outstanding: requests less last packets of responses.
    let out = Arc::new(Mutex::new((0, 0)));
    let count = out.clone();
    bed.sim().tap(Some(Box::new(move |_, frame, _| {
        let mut out = count.lock().unwrap();
        match Packet::of(&frame.data).map(|p| p.opcode) {
            Some(op::READ_REQUEST) => *out = (out.0 + 1, out.1.max(out.0 + 1)),
            Some(op::READ_RESPONSE_LAST) => out.0 -= 1,
            _ => {}
        }
    })));
    for max_reads in [None, Some(1), Some(3)] {
        let mut pair = changed(&bed, &Changes { max_reads, ..none }, &none);
        *out.lock().unwrap() = (0, 0);
        reads(&mut pair);
        (0..READS as u64).for_each(|i| assert_eq!(wait(&bed, &mut pair.a.cq, "a READ").wr_id, i));
        assert_eq!(*out.lock().unwrap(), (0, max_reads.map_or(READS as i32, i32::from)), "max_reads {max_reads:?}");
        assert!(bytes(&target) == bytes(&source));
        target.write(0, &[GUARD; READS * EACH]);
    }
    bed.sim().tap(None);
    // READs that the responder takes.
    let mut pair = changed(&bed, &none, &Changes { max_dest_reads: Some(2), ..none });
    reads(&mut pair);
    let ends: Vec<_> = (0..READS).map(|_| wait(&bed, &mut pair.a.cq, "a READ").status).collect();
    let refused = WcError { status: wc::REM_INV_REQ, cause: cause::NAK_INVALID_REQUEST };
    assert!(ends[..2] == [Ok(()); 2] && ends[2] == Err(refused), "{ends:?}");
    let eq = &mut bed.hosts[1].eq;
    let told = std::iter::from_fn(|| eq.poll()).find(|e| e.kind == event::QP_ERROR).expect("an event");
    assert_eq!((told.number, told.value), (pair.b.qp.qpn(), cause::TOO_MANY_READS.into()));
    // RNR NAKs until the end.
    for limit in [0, 2, 5] {
        let quick = Changes { min_rnr_timer: Some(1), ..none };
        let mut pair = changed(&bed, &Changes { rnr_retry: Some(limit), ..none }, &quick);
        let told = || bed.hosts[1].device.counter(counter::RX_RNR);
        let before = told();
        pair.a.qp.post().add(1, Operation::Send, Data::Inline(&[1]), Flags::SIGNALED).unwrap();
        let e = wait(&bed, &mut pair.a.cq, "a SEND").status.unwrap_err();
        assert_eq!((e.status, e.cause), (wc::RNR_RETRY_EXC, cause::RNR_RETRY_EXCEEDED));
        assert_eq!(told() - before, u64::from(limit) + 1, "rnr_retry {limit}");
    }
    // A silent peer is given up after so many timeouts of one to four times 4.096 us x 2^t (IBTA 9.7.6.1.3).
    for (timeout, retries) in [(4, 0), (4, 7), (7, 0)] {
        let changes = Changes { timeout: Some(timeout), retry_count: Some(retries), ..none };
        let mut pair = changed(&bed, &changes, &none);
        bed.sim().link_mut(0).rules.add(Match { from: Some(1), ..Match::default() }, Action::Drop);
        let start = bed.ns();
        pair.a.qp.post().add(1, Operation::Send, Data::Inline(&[1]), Flags::SIGNALED).unwrap();
        let e = wait(&bed, &mut pair.a.cq, "a SEND that nobody answers").status.unwrap_err();
        assert_eq!((e.status, e.cause), (wc::RETRY_EXC, cause::RETRY_EXCEEDED));
        let (took, least) = (bed.ns() - start, f64::from(4096 << timeout) * f64::from(retries + 1));
        println!("timeout {timeout}, {retries} retries: {:.2} of the least", took / least);
        assert!((least..4.0 * least + 40_000.0).contains(&took), "timeout {timeout}, {retries} retries: {took} ns");
        bed.sim().link_mut(0).rules.rules.clear();
    }
    assert_sound(&bed, "changes in SQD");
}
