//! Atomics between two NICs, and of a NIC with itself: what they return and leave, in which order they are with other operations of
//! their QP, and that each is executed once whatever the network does.

use abi::{
    queue::send_op,
    status::{cause, counter, wc},
    table::qp_state,
};
use driver::{Access, Completion, Data, Flags, Mr, Operation, Sge, Translation};
use ferroce_tests::words::{self, word};
use ferroce_tests::{assert_sound, wait};
use nic::Adversary;
use rand::RngExt;
use testbed::{Connect, End, Pair, Setup, Testbed};

const FAR: Access = Access::all();

fn connect() -> Connect {
    Connect { access: Access::all(), ..Connect::default() }
}

fn add(mr: &Mr, at: usize, add: u64) -> Operation {
    Operation::AtomicAdd { remote: mr.remote(at), add }
}

fn cas(mr: &Mr, at: usize, compare: u64, swap: u64) -> Operation {
    Operation::AtomicCas { remote: mr.remote(at), compare, swap }
}

/// Does one, directly or not, and waits for it.
fn one(bed: &Testbed, end: &mut End, op: Operation, to: Sge, direct: bool) -> Completion {
    let mut batch = end.qp.post();
    batch.add(1, op, Data::Sges(&[to]), Flags::SIGNALED).unwrap();
    if direct {
        batch.ring_direct()
    } else {
        batch.ring()
    }
    wait(bed, &mut end.cq, "an atomic")
}

fn returns_and_leaves(bed: &Testbed, end: &mut End, hosts: [usize; 2]) {
    // In one stretch, and by pages.
    for translation in [Translation::Auto, Translation::Pages(4096)] {
        answers_land(bed, end, hosts, translation);
    }
}

fn answers_land(bed: &Testbed, end: &mut End, hosts: [usize; 2], translation: Translation) {
    let near = bed.hosts[hosts[0]].pd.alloc_with(3 * 4096, Access::LOCAL_WRITE, translation).unwrap();
    let far = bed.hosts[hosts[1]].pd.alloc_with(4096, FAR, translation).unwrap();
    let big = 0x1122_3344_5566_7788_u64;
    far.write(64, &big.to_le_bytes());
    far.write(4088, &7u64.to_le_bytes());
    // What is asked, what it finds, what it leaves, and where the answer lands: aligned or not, on two pages.
    let cases = [
        (add(&far, 64, 5), 64, big, big + 5, 0),
        (add(&far, 64, u64::MAX), 64, big + 5, big + 4, 1),
        (cas(&far, 64, big, 9), 64, big + 4, big + 4, 4091),
        (cas(&far, 64, big + 4, 9), 64, big + 4, 9, 4095),
        (add(&far, 64, 0), 64, 9, 9, 8188),
        (cas(&far, 4088, 7, !0), 4088, 7, !0, 8185),
        (add(&far, 4088, 1), 4088, !0, 0, 4093),
    ];
    for (i, (op, at, finds, leaves, to)) in cases.into_iter().enumerate() {
        near.write(0, &[0xa5; 3 * 4096]);
        let c = one(bed, end, op, near.sge(to, 8), i % 2 == 1);
        assert_eq!((c.status, c.len), (Ok(()), 8), "case {i}");
        let opcode = if matches!(op, Operation::AtomicAdd { .. }) { send_op::FETCH_ADD } else { send_op::COMPARE_SWAP };
        assert_eq!(c.opcode, opcode);
        assert_eq!((word(&near, to), word(&far, at)), (finds, leaves), "case {i}");
        let mut all = vec![0; 3 * 4096];
        near.read(0, &mut all);
        all[to..to + 8].fill(0xa5);
        assert!(all.iter().all(|b| *b == 0xa5), "case {i}: beside the answer");
        assert_eq!((word(&far, 56), word(&far, 72)), (0, 0), "case {i}: beside the target");
    }
}

#[test]
fn an_atomic_returns_what_was_there_and_leaves_what_it_should() {
    for setup in [Setup::default(), Setup::small()] {
        let bed = Testbed::new(&setup).unwrap();
        let mut pair = bed.connect(&connect()).unwrap();
        returns_and_leaves(&bed, &mut pair.a, [0, 1]);
        returns_and_leaves(&bed, &mut pair.b, [1, 0]);
        let mut own = bed.connect_to_itself(0, &connect()).unwrap();
        returns_and_leaves(&bed, &mut own, [0, 0]);
        assert_sound(&bed, "atomics");
    }
}

/// One QP's WRITEs, atomics and READs of one address, without a fence where none is needed.
#[test]
fn atomics_are_in_order_with_what_their_qp_does() {
    let mut setup = Setup::default();
    setup.nic.adversary = Adversary::Hostile;
    let bed = Testbed::new(&setup).unwrap();
    let mut rng = verilate::rng(3);
    let mut pair = bed.connect(&connect()).unwrap();
    let near = bed.hosts[0].pd.alloc(8192, Access::LOCAL_WRITE).unwrap();
    let far = bed.hosts[1].pd.alloc(4096, FAR).unwrap();
    for round in 0..verilate::scale(40) {
        let (mut now, mut want) = (word(&far, 8), vec![]);
        let (mut reads, mut atomics) = (false, false);
        let mut batch = pair.a.qp.post();
        for i in 0..rng.random_range(2..14) {
            let to = 8 * i + 8;
            let value: u64 = rng.random();
            // A WRITE may pass what is asked for before it, an atomic a READ, so they have a fence.
            let fence = |needed: bool| if needed { Flags::FENCE } else { Flags::empty() };
            let (op, data, flags) = match rng.random_range(0..4) {
                0 => {
                    now = value;
                    let flags = fence(reads || atomics);
                    (reads, atomics) = (false, false);
                    (Operation::Write(far.remote(8)), value.to_le_bytes(), flags)
                }
                1 => {
                    want.push((to, now));
                    reads = true;
                    (Operation::Read(far.remote(8)), [0; 8], Flags::empty())
                }
                kind => {
                    want.push((to, now));
                    let compare = if rng.random() { now } else { value };
                    let op = if kind == 2 { cas(&far, 8, compare, value) } else { add(&far, 8, value) };
                    now = if kind == 3 {
                        now.wrapping_add(value)
                    } else if compare == now {
                        value
                    } else {
                        now
                    };
                    let flags = fence(reads);
                    (reads, atomics) = (false, true);
                    (op, [0; 8], flags)
                }
            };
            let list = [near.sge(to, 8)];
            let data = if matches!(op, Operation::Write(_)) { Data::Inline(&data) } else { Data::Sges(&list) };
            batch.add(i as u64, op, data, flags).unwrap();
        }
        batch.add(99, Operation::Read(far.remote(8)), Data::Sges(&[near.sge(4096, 8)]), Flags::SIGNALED).unwrap();
        batch.ring();
        let c = wait(&bed, &mut pair.a.cq, "a batch");
        assert_eq!((c.wr_id, c.status), (99, Ok(())));
        want.push((4096, now));
        want.into_iter().for_each(|(at, v)| assert_eq!(word(&near, at), v, "round {round}, {at}"));
        assert_eq!(word(&far, 8), now);
    }
}

/// Pairs that all add 1 to one address, so many times each.
fn all_add(bed: &Testbed, pairs: &mut [Pair], far: &Mr, each: u64) {
    let near: Vec<Mr> =
        pairs.iter().map(|_| bed.hosts[0].pd.alloc(8 * each as usize, Access::LOCAL_WRITE).unwrap()).collect();
    words::all_complete(bed, pairs, each, 32, |i, end, k| {
        let to = near[i].sge(8 * k as usize, 8);
        end.qp.post().add(k, add(far, 0, 1), Data::Sges(&[to]), Flags::SIGNALED).unwrap();
    });
    // Each found another value, in the order of its QP, and none is missing.
    let mut found = vec![];
    for mr in &near {
        let mine: Vec<u64> = (0..each as usize).map(|k| word(mr, 8 * k)).collect();
        assert!(mine.is_sorted(), "out of order");
        found.extend(mine);
    }
    found.sort_unstable();
    let n = each * pairs.len() as u64;
    assert!(found.into_iter().eq(0..n), "an atomic was executed twice or not at all");
    assert_eq!(word(far, 0), n);
}

#[test]
fn each_is_executed_once_whatever_is_lost_or_doubled() {
    for (seed, small) in [(1, false), (2, true)] {
        let bed = words::rough(seed, small);
        let mut pairs = bed.connect_many(&connect(), if small { 4 } else { 16 }).unwrap();
        let far = bed.hosts[1].pd.alloc(4096, FAR).unwrap();
        all_add(&bed, &mut pairs, &far, verilate::scale(60) as u64);
        let doubled = bed.hosts[1].device.counter(counter::RX_DUPLICATE);
        assert!(doubled > 10, "{doubled} repeated requests");
        assert_sound(&bed, "atomics with losses");
    }
}

/// A key or QP that does not allow it, an address that is not aligned: each with its cause, and nothing is touched.
#[test]
fn what_is_not_allowed_is_refused() {
    let bed = Testbed::new(&Setup::default()).unwrap();
    let near = bed.hosts[0].pd.alloc(64, Access::LOCAL_WRITE).unwrap();
    let far = bed.hosts[1].pd.alloc(64, FAR).unwrap();
    let no_atomics = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let closed = bed.hosts[1].pd.alloc(64, no_atomics).unwrap();
    let invalid = (wc::REM_INV_REQ, cause::NAK_INVALID_REQUEST);
    let access = (wc::REM_ACCESS, cause::NAK_REMOTE_ACCESS);
    let barred = Connect { access: no_atomics, ..connect() };
    for (what, c, mr, at, want) in [
        ("aligned to 4", connect(), &far, 4, invalid),
        ("odd", connect(), &far, 1, invalid),
        ("QP", barred, &far, 8, invalid),
        ("key", connect(), &closed, 8, access),
        ("bounds", connect(), &far, 64, access),
    ] {
        let mut pair = bed.connect(&c).unwrap();
        let op = Operation::AtomicAdd { remote: driver::Remote { addr: mr.addr() + at, rkey: mr.rkey() }, add: 1 };
        let e = one(&bed, &mut pair.a, op, near.sge(0, 8), false).status.unwrap_err();
        assert_eq!((e.status, e.cause), want, "{what}");
        for mr in [&far, &closed, &near] {
            assert!((0..8).all(|k| word(mr, 8 * k) == 0), "{what}: memory was touched");
        }
    }
}

/// The key is good, but the host gives the device nothing: the peer learns it when its turn comes, behind the answers to what was asked for
/// before, and nothing is written. Atomics of others about other memory go on.
#[test]
fn an_atomic_that_the_host_refuses_fails_in_its_turn() {
    for setup in [Setup::default(), Setup::small()] {
        let bed = Testbed::new(&setup).unwrap();
        let mut pairs = bed.connect_many(&connect(), 3).unwrap();
        let near = bed.hosts[0].pd.alloc(4096, Access::LOCAL_WRITE).unwrap();
        let far = bed.hosts[1].pd.alloc(4096, FAR).unwrap();
        let gone = bed.hosts[1].pd.alloc(4096, FAR).unwrap();
        near.write(0, &[0xa5; 4096]);
        gone.write(0, &9u64.to_le_bytes());
        bed.sim().nic(1).host.iommu.unmap(gone.addr(), 4096).unwrap();
        // Of the first two both ask for what is gone: whichever is first, the other one takes nothing from it.
        for (i, pair) in pairs.iter_mut().enumerate() {
            let mut batch = pair.a.qp.post();
            let at = 8 * i;
            let asked =
                [add(&far, at, 1), Operation::Read(far.remote(at)), add(if i < 2 { &gone } else { &far }, at & !8, 1)];
            for (k, op) in asked.into_iter().enumerate() {
                let to = near.sge(64 * i + 8 * k, 8);
                batch.add(k as u64, op, Data::Sges(&[to]), Flags::SIGNALED | Flags::FENCE).unwrap();
            }
            batch.ring();
        }
        for (i, pair) in pairs.iter_mut().enumerate() {
            let answers: Vec<_> = (0..3).map(|_| wait(&bed, &mut pair.a.cq, "three answers")).collect();
            assert!(answers[..2].iter().all(|c| c.status.is_ok()), "QP {i}: what comes before");
            if i < 2 {
                let e = answers[2].status.unwrap_err();
                assert_eq!((e.status, e.cause), (wc::REM_OP, cause::NAK_REMOTE_OPERATION), "QP {i}");
                assert_eq!(word(&near, 64 * i + 16), 0xa5a5_a5a5_a5a5_a5a5, "QP {i}: no answer lands");
                assert_eq!(pair.b.qp.query().unwrap().state, qp_state::ERR, "QP {i} at its responder");
            } else {
                assert_eq!(answers[2].status, Ok(()));
            }
            assert_eq!((word(&near, 64 * i), word(&near, 64 * i + 8)), (0, 1), "QP {i}");
        }
        assert_eq!(word(&gone, 0), 9, "written though it could not be read");
        assert!(!bed.sim().nic(1).host.iommu.take_faults().is_empty());
        // The one that is left goes on.
        let end = &mut pairs[2].a;
        assert_eq!(one(&bed, end, add(&far, 16, 1), near.sge(0, 8), false).status, Ok(()));
    }
}

/// The driver takes one SGE of 8 bytes, and nothing else.
#[test]
fn an_atomic_has_one_sge_of_8_bytes() {
    let bed = Testbed::new(&Setup::default()).unwrap();
    let mut pair = bed.connect(&connect()).unwrap();
    let near = bed.hosts[0].pd.alloc(64, Access::LOCAL_WRITE).unwrap();
    let far = bed.hosts[1].pd.alloc(64, FAR).unwrap();
    let mut batch = pair.a.qp.post();
    let lists = [vec![], vec![near.sge(0, 4)], vec![near.sge(0, 8), near.sge(8, 8)], vec![near.sge(0, 16)]];
    for list in &lists {
        assert!(batch.add(1, add(&far, 0, 1), Data::Sges(list), Flags::SIGNALED).is_err());
    }
    assert!(batch.add(1, add(&far, 0, 1), Data::Inline(&[0; 8]), Flags::SIGNALED).is_err());
    batch.ring();
    assert_eq!(one(&bed, &mut pair.a, add(&far, 0, 1), near.sge(0, 8), false).status, Ok(()));
}
