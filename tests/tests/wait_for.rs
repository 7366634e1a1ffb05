//! Who may wait for whom (`docs/architecture.md`): each thing that a host or a peer can stall for ever is stalled, and all that
//! must not wait for it goes on; then it is let go, and what had waited ends well.

use abi::status::{cause, counter};
use abi::table::qp_state;
use driver::qp::QpSizes;
use driver::{Access, Data, Flags, Mr, Operation};
use ferroce_tests::{GUARD, assert_sound, bytes, noise, pass, region, wait};
use nic::Hold;
use testbed::{Connect, End, Pair, Setup, Testbed};

/// Bytes of a message.
const LEN: usize = 3000;

/// Two hosts, a pair, and what flows over it in each direction.
struct Scene {
    pair: Pair,
    source: [Mr; 2],
    target: [Mr; 2],
    bed: Testbed,
}

fn connect() -> Connect {
    Connect { mtu: 1024, sizes: QpSizes::new(64, 16), ..Connect::default() }
}

impl Scene {
    fn new() -> Self {
        Self::of(&Setup::default())
    }

    fn of(setup: &Setup) -> Self {
        let bed = Testbed::new(setup).unwrap();
        let pair = bed.connect(&connect()).unwrap();
        let make = |fill: u64, guard: bool| {
            [0, 1].map(|i| {
                let byte = noise(fill + i as u64);
                region(&bed.hosts[i].pd, LEN, Access::all(), move |k| if guard { GUARD } else { byte(k) })
            })
        };
        let (source, target) = (make(7, false), make(0, true));
        Scene { bed, pair, source, target }
    }

    fn hold(&self, nic: usize, hold: Hold) {
        self.bed.sim().nic(nic).hold = hold;
    }

    /// Posts a WRITE of `len` bytes from one host to the other.
    fn post(&mut self, from: usize, len: usize) {
        let end = if from == 0 { &mut self.pair.a } else { &mut self.pair.b };
        write(end, &self.source[from], &self.target[1 - from], len);
    }

    /// Waits until the first `len` bytes of a WRITE from `from` are in the peer's memory, then wipes them.
    fn arrives(&self, from: usize, len: usize, what: &str) {
        let (source, target) = (bytes(&self.source[from]), &self.target[1 - from]);
        for _ in 0..20_000 {
            if bytes(target)[..len] == source[..len] {
                target.write(0, &[GUARD; LEN]);
                return;
            }
            self.bed.relax();
        }
        panic!("{what}: the data does not arrive");
    }

    fn completes(&mut self, from: usize, what: &str) {
        let end = if from == 0 { &mut self.pair.a } else { &mut self.pair.b };
        wait(&self.bed, &mut end.cq, what).status.unwrap();
    }

    /// Both directions work.
    fn ends_well(mut self, what: &str) {
        for from in [0, 1] {
            self.post(from, LEN);
            self.completes(from, what);
            self.arrives(from, LEN, what);
        }
        assert_sound(&self.bed, what);
    }
}

fn write(end: &mut End, source: &Mr, target: &Mr, len: usize) {
    let mut batch = end.qp.post();
    batch.add(0, Operation::Write(target.remote(0)), Data::Sges(&[source.sge(0, len)]), Flags::SIGNALED).unwrap();
    batch.ring();
}

#[test]
fn without_read_data_the_receive_side_goes_on() {
    let mut s = Scene::new();
    s.hold(0, Hold { read_data: true, ..Hold::default() });
    s.post(0, LEN);
    pass(&s.bed, 40);
    for _ in 0..40 {
        s.post(1, LEN);
        s.completes(1, "WRITE into a host that answers no reads");
    }
    s.arrives(1, LEN, "WRITE into a host that answers no reads");
    s.hold(0, Hold::default());
    s.completes(0, "what had waited for read data");
    s.ends_well("after read data");
}

#[test]
fn without_read_requests_taken_the_receive_side_goes_on() {
    let mut s = Scene::new();
    s.hold(0, Hold { read_address: true, ..Hold::default() });
    s.post(0, LEN);
    for _ in 0..10 {
        s.post(1, LEN);
        s.completes(1, "WRITE into a host that takes no reads");
    }
    s.hold(0, Hold::default());
    s.completes(0, "what had waited for the read channel");
    s.ends_well("after read requests");
}

#[test]
fn atomics_without_read_data_stop_landing_only_when_their_slots_are_full() {
    for (setup, slots) in [(Setup::default(), 8), (Setup::small(), 1)] {
        for same in [true, false] {
            atomics_wait(&setup, slots, same);
        }
    }
}

/// Compare-and-swaps on words of host 0, which answers no reads: as many as there are slots hold nobody up, one more stops landing,
/// and what leaves without a read still leaves. All of them the `same` word, or each its own.
fn atomics_wait(setup: &Setup, slots: usize, same: bool) {
    let what = format!("{} bits, same word: {same}", setup.width);
    let mut s = Scene::of(setup);
    let pair = s.bed.connect(&Connect { access: Access::all(), ..connect() }).unwrap();
    let (_near, mut atomics) = (pair.a, pair.b);
    let words = region(&s.bed.hosts[0].pd, 8 * (slots + 1), Access::all(), |_| 0);
    let found = region(&s.bed.hosts[1].pd, 8 * (slots + 1), Access::all(), |_| GUARD);
    let mut swap = |k: usize| {
        // On one word each finds what the one before it left.
        let (at, compare) = if same { (0, k as u64) } else { (8 * k, 0) };
        let operation = Operation::AtomicCas { remote: words.remote(at), compare, swap: 1 + k as u64 };
        let mut batch = atomics.qp.post();
        batch.add(k as u64, operation, Data::Sges(&[found.sge(8 * k, 8)]), Flags::SIGNALED).unwrap();
        batch.ring();
    };
    // A WRITE that leaves host 0 without a read of its memory.
    let data = bytes(&s.source[0]);
    let direct = |s: &mut Scene| {
        let mut batch = s.pair.a.qp.post();
        let operation = Operation::Write(s.target[1].remote(0));
        batch.add(0, operation, Data::Inline(&data[..64]), Flags::SIGNALED).unwrap();
        batch.ring_direct();
        s.arrives(0, 64, &format!("{what}: direct WRITE"));
    };

    s.hold(0, Hold { read_data: true, ..Hold::default() });
    (0..slots).for_each(&mut swap);
    pass(&s.bed, 40);
    for _ in 0..10 {
        s.post(1, LEN);
        s.completes(1, &format!("{what}: WRITE beside atomics that wait"));
        s.arrives(1, LEN, &what);
        direct(&mut s);
        s.completes(0, &format!("{what}: direct WRITE beside atomics that wait"));
    }

    swap(slots);
    pass(&s.bed, 40);
    for _ in 0..5 {
        s.post(1, LEN);
        direct(&mut s);
    }
    pass(&s.bed, 300);
    let none = |end: &mut End| end.cq.poll().next().is_none();
    assert!(none(&mut s.pair.a) && none(&mut s.pair.b), "{what}: landing passed an atomic without a slot");
    assert!(none(&mut atomics), "{what}: an atomic was done without its read");

    s.hold(0, Hold::default());
    for k in 0..=slots {
        let c = wait(&s.bed, &mut atomics.cq, &what);
        assert_eq!((c.status, c.wr_id), (Ok(()), k as u64), "{what}");
    }
    (0..5).for_each(|_| s.completes(0, &what));
    (0..5).for_each(|_| s.completes(1, &what));
    s.arrives(1, LEN, &what);
    let all =
        |mr: &Mr| -> Vec<u64> { bytes(mr).chunks(8).map(|w| u64::from_le_bytes(w.try_into().unwrap())).collect() };
    let counts = |from: u64| (from..=from + slots as u64).collect::<Vec<_>>();
    let end = slots as u64 + 1;
    let left = if same { [vec![end], vec![0; slots]].concat() } else { counts(1) };
    assert_eq!(all(&words), left, "{what}");
    assert_eq!(all(&found), if same { counts(0) } else { vec![0; slots + 1] }, "{what}");
    s.ends_well(&what);
}

#[test]
fn without_writes_taken_the_transmit_side_goes_on() {
    for hold in [
        Hold { write_address: true, ..Hold::default() },
        Hold { write_data: true, ..Hold::default() },
        Hold { write_response: true, ..Hold::default() },
    ] {
        let what = format!("{hold:?}");
        let mut s = Scene::new();
        s.hold(0, hold);
        // The receive buffer of NIC 0 fills and runs over meanwhile.
        for _ in 0..50 {
            s.post(1, LEN);
        }
        pass(&s.bed, 300);
        for _ in 0..5 {
            s.post(0, LEN);
            s.arrives(0, LEN, &what);
        }
        s.hold(0, Hold::default());
        (0..5).for_each(|_| s.completes(0, &what));
        (0..50).for_each(|_| s.completes(1, &what));
        s.ends_well(&what);
    }
}

#[test]
fn while_the_link_is_paused_the_receive_side_goes_on() {
    let mut s = Scene::new();
    s.hold(0, Hold { mac_tx: true, ..Hold::default() });
    for _ in 0..40 {
        s.post(0, LEN);
    }
    for _ in 0..5 {
        s.post(1, LEN);
        s.arrives(1, LEN, "WRITE into a host that cannot send");
    }
    s.hold(0, Hold::default());
    (0..40).for_each(|_| s.completes(0, "what had waited for the link"));
    (0..5).for_each(|_| s.completes(1, "what had waited for its ACK"));
    s.ends_well("after the pause");
}

#[test]
fn while_the_link_is_paused_what_has_turned_round_goes_on() {
    let mut s = Scene::new();
    let mut own = s.bed.connect_to_itself(0, &connect()).unwrap();
    let area = region(&s.bed.hosts[0].pd, LEN, Access::all(), |_| GUARD);
    // Ahead of the frames for the paused link.
    s.hold(0, Hold { mac_tx: true, ..Hold::default() });
    write(&mut own, &s.source[0], &area, LEN);
    pass(&s.bed, 100);
    for _ in 0..40 {
        s.post(0, LEN);
    }
    wait(&s.bed, &mut own.cq, "WRITE to itself, the link paused").status.unwrap();
    assert!(bytes(&area) == bytes(&s.source[0]));
    // Behind them: it waits, and nobody for it.
    write(&mut own, &s.source[0], &area, LEN);
    for _ in 0..5 {
        s.post(1, LEN);
        s.arrives(1, LEN, "WRITE into a host that cannot send");
    }
    s.hold(0, Hold::default());
    wait(&s.bed, &mut own.cq, "WRITE to itself after the pause").status.unwrap();
    (0..40).for_each(|_| s.completes(0, "what had waited for the link"));
    (0..5).for_each(|_| s.completes(1, "what had waited for its ACK"));
    s.ends_well("after the pause");
}

#[test]
fn without_writes_taken_a_full_loopback_holds_up_egress_only() {
    let mut s = Scene::new();
    let mut own = s.bed.connect_to_itself(0, &connect()).unwrap();
    let area = region(&s.bed.hosts[0].pd, 8 * LEN, Access::all(), |_| GUARD);
    s.hold(0, Hold { write_data: true, ..Hold::default() });
    for _ in 0..60 {
        write(&mut own, &s.source[0], &area, LEN);
    }
    for _ in 0..40 {
        s.post(0, LEN);
        s.post(1, LEN);
    }
    pass(&s.bed, 1000);
    s.hold(0, Hold::default());
    (0..60).for_each(|_| wait(&s.bed, &mut own.cq, "WRITE to itself").status.unwrap());
    (0..40).for_each(|_| s.completes(0, "what had waited behind it"));
    (0..40).for_each(|_| s.completes(1, "what had waited for writes"));
    s.ends_well("a full loopback");
}

#[test]
fn while_the_link_is_paused_commands_get_through() {
    let mut s = Scene::new();
    let mut pairs: Vec<_> = (0..4).map(|_| s.bed.connect(&connect()).unwrap()).collect();
    s.hold(0, Hold { mac_tx: true, ..Hold::default() });
    // Every QP of host 0 has more to send than the transmit ring holds: packets of one stretch, of several, and inline ones; and
    // owes its peer READ responses and ACKs.
    let spare = region(&s.bed.hosts[0].pd, LEN, Access::all(), noise(3));
    for (i, pair) in pairs.iter_mut().enumerate() {
        let mut batch = pair.a.qp.post();
        for k in 0..16 {
            let sges: Vec<_> = (0..4).map(|j| spare.sge(700 * j + k, 650)).collect();
            let data = if (i + k) % 3 == 0 { Data::Inline(&[5; 200]) } else { Data::Sges(&sges[..1 + (i + k) % 4]) };
            batch.add(k as u64, Operation::Write(s.target[1].remote(0)), data, Flags::SIGNALED).unwrap();
        }
        batch.ring();
        let mut batch = pair.b.qp.post();
        for k in 0..16 {
            let read = Operation::Read(s.source[0].remote(0));
            batch.add(k, read, Data::Sges(&[s.target[1].sge(0, LEN)]), Flags::SIGNALED).unwrap();
        }
        batch.ring();
    }
    (0..40).for_each(|_| s.post(0, LEN));
    pass(&s.bed, 400);
    // The first command waits until the link has stood still for 2^18 cycles; those behind it hardly at all.
    let start = s.bed.cycle();
    let mut last = start;
    let mut took = |bed: &Testbed, what: &str| {
        let now = bed.cycle();
        println!("{what}: {} cycles", now - last);
        assert!(now - last < (1 << 18) + 200_000, "{what}");
        last = now;
    };
    let mut ends: Vec<_> = pairs.into_iter().map(|p| (p.a, p.b)).collect();
    let (dead, _silent) = ends.pop().unwrap();
    drop(dead.qp);
    took(&s.bed, "DESTROY_QP");
    let (mut failed, _silent) = ends.pop().unwrap();
    failed.qp.fail().unwrap();
    took(&s.bed, "MODIFY_QP to ERR");
    assert_eq!(failed.cq.poll().filter(|c| c.status.is_err()).count(), 16, "nothing was acknowledged");
    assert_eq!(s.pair.a.qp.query().unwrap().state, qp_state::RTS);
    took(&s.bed, "QUERY_QP");
    drop(s.bed.hosts[0].pd.alloc(4096, Access::LOCAL_WRITE).unwrap());
    took(&s.bed, "CREATE_MR, DESTROY_MR");
    let fresh = s.bed.connect(&connect()).unwrap();
    took(&s.bed, "16 commands of a new pair");
    drop(fresh);
    took(&s.bed, "its end");
    assert!(s.bed.cycle() - start < 800_000, "all of them");
    assert!(s.bed.hosts[0].device.counter(counter::TX_PAUSED) > 0);
    s.hold(0, Hold::default());
    // What was lost meanwhile is sent again, by the timers.
    let patience = |end: &mut End| {
        for _ in 0..200_000 {
            if let Some(c) = end.cq.poll().next() {
                return c.status.unwrap();
            }
            s.bed.relax();
        }
        panic!("nothing completes after the pause")
    };
    (0..40).for_each(|_| patience(&mut s.pair.a));
    for (a, b) in &mut ends {
        (0..16).for_each(|_| patience(a));
        (0..16).for_each(|_| patience(b));
    }
    // Frames of the QPs that are gone came to nothing, and a frame cut short was seen as such.
    assert!(s.bed.hosts[1].device.counter(counter::RX_MALFORMED) == 0);
    s.ends_well("after a pause with commands");
}

#[test]
fn a_qp_without_receives_holds_nobody_up() {
    let mut s = Scene::new();
    let mut dry = s.bed.connect(&connect()).unwrap();
    let data = bytes(&s.source[0]);
    let mut batch = dry.a.qp.post();
    batch.add(1, Operation::Send, Data::Inline(&data[..100]), Flags::SIGNALED).unwrap();
    batch.ring();
    for _ in 0..20 {
        s.post(0, LEN);
        s.completes(0, "beside a QP without receives");
    }
    assert!(s.bed.hosts[1].device.counter(counter::RX_RNR) >= 1);
    assert!(dry.a.cq.poll().next().is_none());
    dry.b.qp.post_recv(2, &[s.target[1].sge(0, 100)]).unwrap();
    wait(&s.bed, &mut dry.a.cq, "a SEND whose receive came late").status.unwrap();
    let c = wait(&s.bed, &mut dry.b.cq, "the late receive");
    assert_eq!((c.status, c.wr_id, c.len), (Ok(()), 2, 100));
    s.ends_well("without receives");
}

#[test]
fn a_full_completion_queue_ends_its_qp_only() {
    let mut s = Scene::new();
    let mut narrow = s.bed.connect(&Connect { cq_entries: 4, ..connect() }).unwrap();
    for _ in 0..12 {
        write(&mut narrow.a, &s.source[0], &s.target[1], 64);
    }
    for _ in 0..40 {
        s.post(0, LEN);
        s.completes(0, "beside a full completion queue");
    }
    assert!(s.bed.hosts[0].device.counter(counter::CQ_OVERRUN) >= 1);
    assert_eq!(narrow.a.cq.poll().filter(|c| c.status.is_ok()).count(), 4, "what had room is there");
    assert_eq!(narrow.a.qp.query().unwrap().state, qp_state::ERR);
    let events: Vec<_> = std::iter::from_fn(|| s.bed.hosts[0].eq.poll()).collect();
    let told = |kind, number| events.iter().any(|e| e.kind == kind && e.number == number);
    assert!(told(abi::queue::event::CQ_ERROR, narrow.a.cq.number()), "{events:?}");
    assert!(told(abi::queue::event::QP_ERROR, narrow.a.qp.qpn()), "{events:?}");
    let overrun = |e: &driver::Event| e.kind == abi::queue::event::QP_ERROR && e.value == cause::CQ_OVERRUN.into();
    assert!(events.iter().any(overrun), "{events:?}");
    s.ends_well("a full completion queue");
}

#[test]
fn a_full_event_queue_holds_nobody_up_and_loses_nothing() {
    let mut s = Scene::new();
    // An event queue of one entry, and four completion queues that each want to tell it something.
    let narrow = s.bed.hosts[0].device.create_eq(1, 1, 0, 0).unwrap();
    let wide = std::mem::replace(&mut s.bed.hosts[0].eq, narrow);
    let mut pairs: Vec<_> = (0..4).map(|_| s.bed.connect(&connect()).unwrap()).collect();
    let mut narrow = std::mem::replace(&mut s.bed.hosts[0].eq, wide);
    for pair in &mut pairs {
        pair.a.cq.arm(false);
        write(&mut pair.a, &s.source[0], &s.target[1], 64);
    }
    for pair in &mut pairs {
        wait(&s.bed, &mut pair.a.cq, "on a full event queue").status.unwrap();
    }
    for _ in 0..20 {
        s.post(0, LEN);
        s.completes(0, "beside a full event queue");
    }
    let mut told = Vec::new();
    for _ in 0..1000 {
        while let Some(e) = narrow.poll() {
            assert_eq!(e.kind, abi::queue::event::COMPLETION);
            told.push(e.number);
            narrow.arm();
        }
        s.bed.relax();
    }
    told.sort_unstable();
    let mut want: Vec<_> = pairs.iter().map(|p| p.a.cq.number()).collect();
    want.sort_unstable();
    assert_eq!(told, want, "each armed queue tells once");
    drop(pairs);
    s.ends_well("a full event queue");
}
