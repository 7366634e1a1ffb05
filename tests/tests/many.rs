//! A core of 4,096 queue pairs with all of them at work: its tables, numbers and flags are as wide as they are said to be.

use abi::queue::recv_op;
use driver::qp::{Init, Path, QpSizes, Rts, SendOptions};
use driver::{Access, Cq, Data, Flags, Mr, Operation, Qp};
use fabric::together;
use ferroce_tests::{GUARD, assert_sound, bytes, noise, path_to, region};
use testbed::{Setup, Testbed};

/// Queue pairs for callers: number 0 is the raw one, 1 that of connection management.
const QPS: usize = 4094;
/// Queue pairs that share a completion queue.
const SHARE: usize = 128;
/// Bytes of a message, of which no two are the same.
const LEN: usize = 24;
/// First PSN: it wraps with the second message.
const PSN: u32 = 0xffffff;

/// All QPs of a host, and their completion queues.
struct Side<Q> {
    qps: Vec<Q>,
    cqs: Vec<Cq>,
}

fn setup() -> Setup {
    Setup { width: 64, qps: 4096, ..Setup::default() }
}

fn create(bed: &Testbed, i: usize) -> driver::Result<Side<Qp<Init>>> {
    let host = &bed.hosts[i];
    let sizes = QpSizes::new(4, 4).one_sge();
    let cqs: Vec<Cq> =
        (0..QPS.div_ceil(SHARE)).map(|_| host.device.create_cq(1024, &host.eq)).collect::<Result<_, _>>()?;
    let init = |n: usize| host.pd.create_qp(&cqs[n / SHARE], &cqs[n / SHARE], sizes)?.init(Access::all());
    Ok(Side { qps: (0..QPS).map(init).collect::<Result<_, _>>()?, cqs })
}

/// Connects the QPs of host `i` with those of `numbers` on the other one.
fn connect(bed: &Testbed, i: usize, side: Side<Qp<Init>>, numbers: &[u32]) -> driver::Result<Side<Qp<Rts>>> {
    let ready = |(qp, to): (Qp<Init>, &u32)| {
        // A SEND may come before its receive is known to the device.
        let path = Path { max_dest_reads: 16, min_rnr_timer: 1, ..path_to(bed.hosts[1 - i].gid, *to, 1024, PSN) };
        qp.rtr(&path)?.rts(&SendOptions { psn: PSN, ..SendOptions::default() })
    };
    Ok(Side { qps: side.qps.into_iter().zip(numbers).map(ready).collect::<Result<_, _>>()?, cqs: side.cqs })
}

/// Both hosts do it side by side.
fn both<T: Send>(bed: &Testbed, programs: [impl FnOnce() -> driver::Result<T> + Send; 2]) -> [T; 2] {
    let mut done = together(&bed.fabric, programs.into());
    let (b, a) = (done.pop().unwrap(), done.pop().unwrap());
    [a.unwrap(), b.unwrap()]
}

/// Takes completions until each QP has had `each` of them.
fn complete(bed: &Testbed, sides: &mut [Side<Qp<Rts>>; 2], each: usize) {
    let mut left = 2 * QPS * each;
    let mut seen = [vec![0; 2 * QPS], vec![0; 2 * QPS]];
    for _ in 0..200_000 {
        for (side, seen) in sides.iter_mut().zip(&mut seen) {
            for c in side.cqs.iter_mut().flat_map(|cq| cq.poll().collect::<Vec<_>>()) {
                c.status.unwrap_or_else(|e| panic!("QP {}: {e}", c.qpn));
                seen[c.qpn as usize] += 1;
                let of_receive = c.opcode == recv_op::RECV_IMM;
                assert!(
                    !of_receive || (c.len as usize, c.imm) == (LEN, Some((c.wr_id as u32).to_be_bytes())),
                    "QP {}: {c:?}",
                    c.qpn
                );
                left -= 1;
            }
        }
        if left == 0 {
            for (side, seen) in sides.iter().zip(&seen) {
                assert!(side.qps.iter().all(|qp| seen[qp.qpn() as usize] == each), "the same of each queue pair");
            }
            return;
        }
        bed.relax();
    }
    panic!("{left} completions are missing");
}

/// Place of QP `n`'s message.
fn at(n: usize) -> usize {
    n * LEN
}

#[test]
#[ignore = "half an hour: for `./ferroce test --all`"]
fn all_of_4096_queue_pairs_work_at_once() {
    let bed = Testbed::new(&setup()).unwrap();
    let made = both(
        &bed,
        [0, 1].map(|i| {
            let bed = &bed;
            move || create(bed, i)
        }),
    );
    let numbers = made.each_ref().map(|side| side.qps.iter().map(|qp| qp.qpn()).collect::<Vec<_>>());
    for of_host in &numbers {
        let mut sorted = of_host.clone();
        sorted.sort_unstable();
        assert!(sorted.iter().copied().eq(2..4096), "each number is given once");
    }
    // The n-th of one host with the n-th from behind of the other.
    let peers = numbers.map(|n| n.into_iter().rev().collect::<Vec<_>>());
    let [a, b] = made;
    let [of_a, of_b] = &peers;
    let bed = &bed;
    let mut sides = both(bed, [(0, a, of_b), (1, b, of_a)].map(|(i, side, to)| move || connect(bed, i, side, to)));

    let area = QPS * LEN;
    let make = |i: usize, fill: &dyn Fn(usize) -> u8| -> Mr { region(&bed.hosts[i].pd, area, Access::all(), fill) };
    let sources = [0, 1].map(|i| make(i, &noise(i as u64)));
    let [inboxes, written, read] = [0, 1, 2].map(|_| [0, 1].map(|i| make(i, &|_| GUARD)));
    for (side, inbox) in sides.iter_mut().zip(&inboxes) {
        for (n, qp) in side.qps.iter_mut().enumerate() {
            qp.post_recv(n as u64, &[inbox.sge(at(n), LEN)]).unwrap();
        }
    }
    // Of each QP a WRITE, a SEND and a READ, with one doorbell; those of all before anything completes.
    for (i, side) in sides.iter_mut().enumerate() {
        for (n, qp) in side.qps.iter_mut().enumerate() {
            let (theirs, from) = (QPS - 1 - n, sources[i].sge(at(n), LEN));
            let mut batch = qp.post();
            let write = Operation::Write(written[1 - i].remote(at(theirs)));
            batch.add(1, write, Data::Sges(&[from]), Flags::SIGNALED).unwrap();
            batch
                .add(2, Operation::SendImm((theirs as u32).to_be_bytes()), Data::Sges(&[from]), Flags::SIGNALED)
                .unwrap();
            let to = read[i].sge(at(n), LEN);
            batch
                .add(3, Operation::Read(sources[1 - i].remote(at(theirs))), Data::Sges(&[to]), Flags::SIGNALED)
                .unwrap();
        }
    }
    complete(bed, &mut sides, 4);
    let theirs = |i: usize| {
        let all = bytes(&sources[1 - i]);
        (0..QPS).flat_map(|n| all[at(QPS - 1 - n)..][..LEN].to_vec()).collect::<Vec<_>>()
    };
    for i in 0..2 {
        for (what, got) in [("SENDs", &inboxes), ("WRITEs", &written), ("READs", &read)] {
            assert!(bytes(&got[i]) == theirs(i), "{what} to host {i}");
        }
    }
    assert_sound(bed, "4,096 queue pairs");
}
