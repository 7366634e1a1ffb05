//! READs whose responses come in a rush, or pause and go on while their request is repeated.

use abi::{status::counter, wire::op};
use driver::{Access, Data, Flags, Mr, Operation, qp::Qp, qp::Rts};
use fabric::{Action, Match, Packet};
use ferroce_tests::{bytes, noise, region, wait};
use nic::NS;
use std::sync::{Arc, Mutex};
use testbed::{Connect, Setup, Testbed};

/// Posts a READ of the whole of `source` into `target`.
fn read(qp: &mut Qp<Rts>, source: &Mr, target: &Mr, len: usize) {
    let mut batch = qp.post();
    batch.add(1, Operation::Read(source.remote(0)), Data::Sges(&[target.sge(0, len)]), Flags::SIGNALED).unwrap();
    batch.ring();
}

#[test]
fn a_long_read_of_small_packets_finds_room() {
    let bed = Testbed::new(&Setup::default()).unwrap();
    let len = 2 << 20;
    let [near, far] = [0, 1].map(|i| bed.hosts[i].pd.alloc(len, Access::all()).unwrap());
    let mut pair = bed.connect(&Connect { mtu: 256, ..Connect::default() }).unwrap();
    read(&mut pair.a.qp, &far, &near, len);
    wait(&bed, &mut pair.a.cq, "a long READ").status.unwrap();
    let count = |i| bed.hosts[0].device.counter(i);
    assert_eq!(
        [count(counter::RX_NO_ROOM), count(counter::RETRY_NAK)],
        [0, 0],
        "lost in the receive buffer, went back"
    );
}

/// The landing row of a READ is read for late responses while its request goes out again.
#[test]
fn responses_that_go_on_while_their_request_is_repeated() {
    const LEN: usize = 256 * 300;
    const CYCLE: u64 = 4 * NS;
    /// Responses from this one on are late.
    const LATE: u32 = 20;
    let bed = Testbed::new(&Setup::default()).unwrap();
    let source = region(&bed.hosts[1].pd, LEN, Access::all(), noise(1));
    let target = region(&bed.hosts[0].pd, LEN, Access::all(), |_| 0);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let tell = seen.clone();
    bed.sim().tap(Some(Box::new(move |_, f, _| {
        tell.lock().unwrap().extend(Packet::of(&f.data).map(|p| (f.at / CYCLE, p.opcode, p.psn)))
    })));
    // How many cycles after the first late response left the request was repeated.
    let late_by = |cycles: u64| {
        let mut pair = bed.connect(&Connect { mtu: 256, ..Connect::default() }).unwrap();
        seen.lock().unwrap().clear();
        let late = Match { from: Some(1), psn: Some((LATE, 0xffff)), ..Match::default() };
        bed.sim().link_mut(0).rules.add(late, Action::Delay(cycles * CYCLE));
        target.write(0, &[0; LEN]);
        read(&mut pair.a.qp, &source, &target, LEN);
        let c = wait(&bed, &mut pair.a.cq, "a READ");
        bed.sim().link_mut(0).rules.rules.clear();
        assert_eq!(c.status, Ok(()), "late by {cycles} cycles");
        assert!(bytes(&target) == bytes(&source), "late by {cycles} cycles: the data is wrong");
        let seen = seen.lock().unwrap();
        let left = seen.iter().find(|e| e.2 == LATE).expect("a late response").0;
        seen.iter().filter(|e| e.1 == op::READ_REQUEST).nth(1).map(|e| e.0 - left)
    };
    let repeated = late_by(100_000).expect("so late that it is asked for again");
    for i in 0..verilate::scale(50) as u64 {
        late_by((repeated + 8 * i).saturating_sub(304));
    }
}

/// Messages of all QPs at once, of both hosts if `both`, some rounds of them. Returns how often a host went back by a timer.
fn asked_again(
    bed: &Testbed,
    count: usize,
    both: bool,
    len: usize,
    post: impl Fn(&mut Qp<Rts>, &Mr, &Mr, usize),
) -> u64 {
    const ROUNDS: usize = 3;
    let memory = [0, 1].map(|i| region(&bed.hosts[i].pd, count * len, Access::all(), noise(i as u64)));
    let mut pairs = bed.connect_many(&Connect { access: Access::all(), ..Connect::default() }, count).unwrap();
    let before = [0, 1].map(|i| bed.hosts[i].device.counter(counter::RETRY_FAST_TIMER));
    for _ in 0..ROUNDS {
        for (i, pair) in pairs.iter_mut().enumerate() {
            post(&mut pair.a.qp, &memory[1], &memory[0], i * len);
            if both {
                post(&mut pair.b.qp, &memory[0], &memory[1], i * len);
            }
        }
        for pair in &mut pairs {
            wait(bed, &mut pair.a.cq, "many at once").status.unwrap();
            if both {
                wait(bed, &mut pair.b.cq, "many at once").status.unwrap();
            }
        }
    }
    let after = [0, 1].map(|i| bed.hosts[i].device.counter(counter::RETRY_FAST_TIMER));
    after.iter().zip(before).map(|(a, b)| a - b).sum()
}

/// Answers of many QPs wait for each other, longer than one alone takes: on a link that loses nothing nobody asks again. (READs of 64 QPs
/// both ways, or some 250 atomics at once, come faster than a NIC takes them: some are lost in it.)
#[test]
fn reads_and_atomics_of_many_qps_are_not_asked_for_again() {
    const LEN: usize = 32 << 10;
    let bed = Testbed::new(&Setup::default()).unwrap();
    for (count, both) in [(16, false), (64, false), (16, true)] {
        let again = asked_again(&bed, count, both, LEN, |qp, far, near, at| {
            let mut batch = qp.post();
            for half in [at, at + LEN / 2] {
                let (sge, flags) =
                    ([near.sge(half, LEN / 2)], if half == at { Flags::empty() } else { Flags::SIGNALED });
                batch.add(1, Operation::Read(far.remote(half)), Data::Sges(&sge), flags).unwrap();
            }
            batch.ring();
        });
        assert_eq!(again, 0, "READs of {count} QPs, both {both}");
    }
    let again = asked_again(&bed, 16, false, 256, |qp, far, near, at| {
        let mut batch = qp.post();
        for i in 0..8 {
            let (sge, flags) = ([near.sge(at + 8 * i, 8)], if i < 7 { Flags::empty() } else { Flags::SIGNALED });
            let add = Operation::AtomicAdd { remote: far.remote(at + 128 + 8 * i), add: 1 };
            batch.add(1, add, Data::Sges(&sge), flags).unwrap();
        }
        batch.ring();
    });
    assert_eq!(again, 0, "atomics of 16 QPs");
}
