//! Messages of 2^31 bytes, the longest there are: lengths, offsets and PSNs reach the ends of their fields on both sides.

use driver::qp::{QpSizes, SendOptions};
use driver::{Access, Data, Flags, Mr, Operation};
use ferroce_tests::{assert_sound, region};
use testbed::{Connect, Setup, Testbed};

const LEN: usize = 1 << 31;

/// Both regions hold the same.
fn same(a: &Mr, b: &Mr) -> bool {
    let (mut of_a, mut of_b) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    (0..LEN).step_by(1 << 20).all(|at| {
        a.read(at, &mut of_a);
        b.read(at, &mut of_b);
        of_a == of_b
    })
}

/// One message over a perfect cable; then one of a few bytes, for what is left of the long one.
fn crosses(mtu: u32, psn: u32, operation: impl Fn(&Mr) -> Operation) {
    let bed = Testbed::new(&Setup::default()).unwrap();
    // Eight bytes that are nowhere else, for each 8.
    let fill = |i: usize| ((i as u64 / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (i % 8 * 8)) as u8;
    let far = region(&bed.hosts[1].pd, LEN, Access::all(), fill);
    let near = region(&bed.hosts[0].pd, LEN, Access::all(), |_| 0x55);
    let send = SendOptions { timeout: 20, ..SendOptions::default() };
    let connect = Connect { mtu, psn, sizes: QpSizes::new(16, 16), send, ..Connect::default() };
    let mut pair = bed.connect(&connect).unwrap();
    let reads = matches!(operation(&far), Operation::Read(_));
    // What host 1 sends it sends from its region; what it is asked for lies there.
    let (end, other) = if reads { (&mut pair.a, &mut pair.b) } else { (&mut pair.b, &mut pair.a) };
    let from = if reads { &near } else { &far };
    other.qp.post_recv(1, &[near.sge(0, LEN)]).unwrap();
    other.qp.post_recv(2, &[]).unwrap();
    let mut batch = end.qp.post();
    batch
        .add(1, operation(if reads { &far } else { &near }), Data::Sges(&[from.sge(0, LEN)]), Flags::SIGNALED)
        .unwrap();
    batch.add(2, Operation::Send, Data::Sges(&[]), Flags::SIGNALED | Flags::FENCE).unwrap();
    batch.ring();
    let mut done = vec![];
    let start = bed.cycle();
    while done.len() < 2 {
        done.extend(end.cq.poll().map(|c| (c.wr_id, c.status, c.len as usize)));
        bed.relax();
        assert!(bed.cycle() - start < 200_000_000, "{done:?}");
    }
    assert_eq!(done, [(1, Ok(()), LEN), (2, Ok(()), 0)]);
    let received: Vec<_> = other.cq.poll().map(|c| (c.status, c.len as usize)).collect();
    assert!(received.contains(&(Ok(()), 0)) || received.contains(&(Ok(()), LEN)), "{received:?}");
    assert!(same(&near, &far), "every byte");
    println!("MTU {mtu}: {} cycles", bed.cycle() - start);
    assert_sound(&bed, "a message of 2^31 bytes");
}

#[test]
#[ignore = "an hour, and 5 GB of memory: for `./ferroce test --all`"]
fn a_read_of_two_gib_at_the_least_mtu() {
    crosses(256, 0xff_fff0, |far| Operation::Read(far.remote(0)));
}

#[test]
#[ignore = "an hour, and 5 GB of memory: for `./ferroce test --all`"]
fn a_write_of_two_gib_at_the_least_mtu() {
    crosses(256, 0x7f_fff0, |far| Operation::Write(far.remote(0)));
}

#[test]
#[ignore = "an hour, and 5 GB of memory: for `./ferroce test --all`"]
fn a_send_of_two_gib() {
    crosses(4096, 0xff_fffe, |_| Operation::Send);
}
