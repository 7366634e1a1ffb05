//! Atomic writes between two NICs, and of a NIC with itself: what they leave, that none is lost beside atomics, and that each is executed
//! once whatever the network does.

use abi::{
    queue::send_op,
    status::{cause, counter, wc},
};
use driver::{Access, Completion, Data, Flags, Operation, Remote};
use ferroce_tests::words::{self, word};
use ferroce_tests::{assert_sound, wait};
use nic::Adversary;
use testbed::{Connect, End, Setup, Testbed};

const FAR: Access = Access::all();

fn connect() -> Connect {
    Connect { access: Access::all(), ..Connect::default() }
}

/// Does one, directly or not, and waits for it.
fn one(bed: &Testbed, end: &mut End, to: Remote, data: u64, direct: bool) -> Completion {
    let mut batch = end.qp.post();
    batch.add(1, Operation::AtomicWrite(to), Data::Inline(&data.to_le_bytes()), Flags::SIGNALED).unwrap();
    if direct {
        batch.ring_direct()
    } else {
        batch.ring()
    }
    wait(bed, &mut end.cq, "an atomic write")
}

#[test]
fn an_atomic_write_leaves_its_bytes_and_no_others() {
    for setup in [Setup::default(), Setup::small()] {
        let bed = Testbed::new(&setup).unwrap();
        let mut pair = bed.connect(&connect()).unwrap();
        let mut own = bed.connect_to_itself(0, &connect()).unwrap();
        let far = [0, 1].map(|host| bed.hosts[host].pd.alloc(4096, FAR).unwrap());
        for (i, at) in [0, 8, 64, 2040, 4088].into_iter().enumerate() {
            for (end, far) in [(&mut pair.a, &far[1]), (&mut pair.b, &far[0]), (&mut own, &far[0])] {
                far.write(0, &[0xa5; 4096]);
                let value = 0x1122_3344_5566_7788 + i as u64;
                let c = one(&bed, end, far.remote(at), value, i % 2 == 1);
                assert_eq!((c.status, c.opcode, c.len), (Ok(()), send_op::ATOMIC_WRITE, 8));
                assert_eq!(word(far, at), value);
                let mut all = vec![0; 4096];
                far.read(0, &mut all);
                all[at..at + 8].fill(0xa5);
                assert!(all.iter().all(|b| *b == 0xa5), "beside its 8 bytes");
            }
        }
        assert_sound(&bed, "atomic writes");
    }
}

/// One QP's WRITEs, atomic writes, atomics and READs of one word: each finds what the one before left. What is behind a READ has a fence.
#[test]
fn atomic_writes_are_in_order_with_what_their_qp_does() {
    for small in [false, true] {
        let mut setup = if small { Setup::small() } else { Setup::default() };
        setup.nic.adversary = Adversary::Hostile;
        let bed = Testbed::new(&setup).unwrap();
        let mut pair = bed.connect(&connect()).unwrap();
        let near = bed.hosts[0].pd.alloc(4096, Access::LOCAL_WRITE).unwrap();
        let far = bed.hosts[1].pd.alloc(64, FAR).unwrap();
        let mut now = 0u64;
        for round in 0..verilate::scale(30) as u64 {
            let mut want = vec![];
            let mut batch = pair.a.qp.post();
            for i in 0..12 {
                let value = round << 40 | i << 20;
                let at = 8 * i as usize;
                // A fixed order of pairs, shifted in each round.
                let kind = (i + round) % 4;
                let fence = if i > 0 && (i - 1 + round) % 4 == 3 { Flags::FENCE } else { Flags::empty() };
                let bytes = value.to_le_bytes();
                let list = [near.sge(at, 8)];
                let (op, data) = match kind {
                    0 => (Operation::AtomicWrite(far.remote(8)), Data::Inline(&bytes)),
                    1 => (Operation::AtomicAdd { remote: far.remote(8), add: 1 }, Data::Sges(&list[..])),
                    2 => (Operation::AtomicWrite(far.remote(8)), Data::Inline(&bytes)),
                    _ => (Operation::Read(far.remote(8)), Data::Sges(&list[..])),
                };
                match kind {
                    1 => (want.push((at, now)), now += 1).1,
                    3 => want.push((at, now)),
                    _ => now = value,
                }
                batch.add(i, op, data, fence | if i == 11 { Flags::SIGNALED } else { Flags::empty() }).unwrap();
            }
            batch.ring();
            let c = wait(&bed, &mut pair.a.cq, "a batch");
            assert_eq!((c.wr_id, c.status), (11, Ok(())));
            want.into_iter().for_each(|(at, v)| assert_eq!(word(&near, at), v, "round {round}, {at}"));
            assert_eq!(word(&far, 8), now, "round {round}");
        }
        assert_sound(&bed, "a mixture of one QP");
    }
}

/// One QP writes `i << 32`, for i from 1 on, and the others add 1 to the same word, over a path that loses, doubles and reorders: each write
/// is executed once and takes nothing from an atomic, nor does an atomic undo it. For then what the atomics find is, for each i, a
/// gapless count from `i << 32` on, and no value twice.
#[test]
fn none_is_lost_or_repeated_beside_atomics() {
    for (seed, small) in [(1, false), (2, true)] {
        let bed = words::rough(seed, small);
        let mut pairs = bed.connect_many(&connect(), if small { 4 } else { 8 }).unwrap();
        let each = verilate::scale(100) as u64;
        let far = bed.hosts[1].pd.alloc(64, FAR).unwrap();
        let near = bed.hosts[0].pd.alloc(8 * each as usize * pairs.len(), Access::LOCAL_WRITE).unwrap();
        words::all_complete(&bed, &mut pairs, each, 16, |i, end, k| {
            let bytes = ((k + 1) << 32).to_le_bytes();
            let list = [near.sge(8 * (i * each as usize + k as usize), 8)];
            let (op, data) = if i == 0 {
                (Operation::AtomicWrite(far.remote(0)), Data::Inline(&bytes))
            } else {
                (Operation::AtomicAdd { remote: far.remote(0), add: 1 }, Data::Sges(&list[..]))
            };
            end.qp.post().add(k, op, data, Flags::SIGNALED).unwrap();
        });
        let mut found: Vec<u64> = (each as usize..each as usize * pairs.len()).map(|k| word(&near, 8 * k)).collect();
        found.sort_unstable();
        let mut phases = 0;
        for (k, value) in found.iter().enumerate() {
            let follows = k > 0 && found[k - 1] + 1 == *value;
            assert!(follows || value << 32 == 0, "{value:#x} behind {:#x}", found[k.saturating_sub(1)]);
            phases += u64::from(!follows);
        }
        assert!(phases > each / 10, "{phases} of {each} values were met");
        let rest = found.iter().filter(|v| **v >> 32 == each).count() as u64;
        assert_eq!(word(&far, 0), each << 32 | rest, "the last write, and what was added to it");
        let doubled = bed.hosts[1].device.counter(counter::RX_DUPLICATE);
        assert!(doubled > 10, "{doubled} repeated requests");
        assert_sound(&bed, "atomic writes with losses");
    }
}

/// A key or QP that does not allow it, an address that is not aligned: each with its cause, and nothing is touched.
#[test]
fn what_is_not_allowed_is_refused() {
    let bed = Testbed::new(&Setup::default()).unwrap();
    let far = bed.hosts[1].pd.alloc(64, FAR).unwrap();
    let no_writes = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let closed = bed.hosts[1].pd.alloc(64, no_writes).unwrap();
    let invalid = (wc::REM_INV_REQ, cause::NAK_INVALID_REQUEST);
    let access = (wc::REM_ACCESS, cause::NAK_REMOTE_ACCESS);
    let barred = Connect { access: no_writes, ..connect() };
    for (what, c, mr, at, want) in [
        ("aligned to 4", connect(), &far, 4, invalid),
        ("odd", connect(), &far, 1, invalid),
        ("QP", barred, &far, 8, invalid),
        ("key", connect(), &closed, 8, access),
        ("bounds", connect(), &far, 64, access),
    ] {
        let mut pair = bed.connect(&c).unwrap();
        let to = Remote { addr: mr.addr() + at, rkey: mr.rkey() };
        let e = one(&bed, &mut pair.a, to, !0, false).status.unwrap_err();
        assert_eq!((e.status, e.cause), want, "{what}");
        for mr in [&far, &closed] {
            assert!((0..8).all(|k| word(mr, 8 * k) == 0), "{what}: memory was touched");
        }
    }
}

/// The driver takes 8 bytes of inline data, and nothing else; a request of another length that gets past it fails.
#[test]
fn an_atomic_write_has_8_bytes_inline() {
    use abi::queue::send_wqe;
    let bed = Testbed::new(&Setup::default()).unwrap();
    let mut pair = bed.connect(&connect()).unwrap();
    let near = bed.hosts[0].pd.alloc(64, Access::LOCAL_WRITE).unwrap();
    let far = bed.hosts[1].pd.alloc(64, FAR).unwrap();
    let mut batch = pair.a.qp.post();
    let op = Operation::AtomicWrite(far.remote(0));
    for data in [&[][..], &[1; 4], &[1; 7], &[1; 9], &[1; 16]] {
        assert!(batch.add(1, op, Data::Inline(data), Flags::SIGNALED).is_err());
    }
    assert!(batch.add(1, op, Data::Sges(&[near.sge(0, 8)]), Flags::SIGNALED).is_err());
    batch.ring();
    assert_eq!(one(&bed, &mut pair.a, far.remote(0), 7, false).status, Ok(()));
    assert_eq!(word(&far, 0), 7);
    for length in [0, 4, 9, 16, 1 << 20] {
        let mut pair = bed.connect(&connect()).unwrap();
        let mut block = [0; 64];
        send_wqe::BLOCKS.set(&mut block, 1);
        send_wqe::OPCODE.set(&mut block, send_op::ATOMIC_WRITE.into());
        send_wqe::LENGTH.set(&mut block, length);
        send_wqe::REMOTE_VA.set(&mut block, far.addr());
        send_wqe::RKEY.set(&mut block, far.rkey().into());
        pair.a.qp.post().add_raw(1, &[block]).unwrap();
        let e = wait(&bed, &mut pair.a.cq, "a bad request").status.unwrap_err();
        assert_eq!((e.status, e.cause), (wc::LOC_LEN, cause::WQE_LENGTH), "{length} bytes");
    }
    assert_eq!(word(&far, 0), 7);
}
