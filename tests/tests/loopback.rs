//! QPs of one NIC reach each other and themselves: frames to an address of our own turn round in front of the MAC.

use abi::status::counter;
use driver::qp::QpSizes;
use driver::{Access, Data, Flags, Mr, Operation};
use ferroce_tests::{GUARD, assert_sound, bytes, noise, region, wait};
use testbed::{Connect, End, Setup, Testbed};

/// Bytes of a message: several packets, and a rest.
const LEN: usize = 40_003;

fn connect() -> Connect {
    Connect { mtu: 1024, sizes: QpSizes::new(64, 16), ..Connect::default() }
}

fn post(end: &mut End, operation: Operation, mr: &Mr) {
    let mut batch = end.qp.post();
    batch.add(1, operation, Data::Sges(&[mr.sge(0, LEN)]), Flags::SIGNALED).unwrap();
    batch.ring();
}

/// WRITE, READ and SEND of a QP with itself.
fn talks_to_itself(setup: &Setup, link: bool) {
    let bed = Testbed::new(setup).unwrap();
    bed.sim().plug(0, link);
    let mut own = bed.connect_to_itself(0, &connect()).unwrap();
    let pd = &bed.hosts[0].pd;
    let source = region(pd, LEN, Access::all(), noise(1));
    let [written, read, received] = [2, 3, 4].map(|_| region(pd, LEN, Access::all(), |_| GUARD));
    post(&mut own, Operation::Write(written.remote(0)), &source);
    wait(&bed, &mut own.cq, "WRITE").status.unwrap();
    post(&mut own, Operation::Read(written.remote(0)), &read);
    wait(&bed, &mut own.cq, "READ").status.unwrap();
    own.qp.post_recv(2, &[received.sge(0, LEN)]).unwrap();
    post(&mut own, Operation::Send, &source);
    let mut seen: Vec<_> = (0..2).map(|_| wait(&bed, &mut own.cq, "SEND")).map(|c| (c.status, c.wr_id)).collect();
    seen.sort_by_key(|s| s.1);
    assert_eq!(seen, [(Ok(()), 1), (Ok(()), 2)]);
    for (mr, what) in [(&written, "WRITE"), (&read, "READ"), (&received, "SEND")] {
        assert!(bytes(mr) == bytes(&source), "{what}");
    }
    let device = &bed.hosts[0].device;
    assert!(device.counter(counter::TX_LOOPBACK) > 3 * LEN as u64 / 1024);
    assert_eq!(device.counter(counter::TX_LOOPBACK), device.counter(counter::TX_FRAMES), "nothing for the link");
    assert_eq!(bed.hosts[1].device.counter(counter::RX_ACCEPTED), 0);
    for lost in [counter::RX_NO_ROOM, counter::RX_OUT_OF_SEQUENCE, counter::TX_RETRANSMITTED, counter::TX_LINK_DOWN] {
        assert_eq!(device.counter(lost), 0, "{}", counter::NAMES[lost].0);
    }
    assert_sound(&bed, "a QP with itself");
}

#[test]
fn a_qp_talks_to_itself() {
    talks_to_itself(&Setup::default(), true);
    talks_to_itself(&Setup { ip6: true, ..Setup::small() }, true);
}

#[test]
fn a_qp_talks_to_itself_without_a_link_and_in_a_vlan() {
    talks_to_itself(&Setup { vlan: Some(7), ..Setup::default() }, false);
}

#[test]
fn loopback_loses_no_frame_however_slow_the_host_takes_data() {
    let bed = Testbed::new(&Setup::default()).unwrap();
    let mut own = bed.connect_to_itself(0, &connect()).unwrap();
    let source = region(&bed.hosts[0].pd, LEN, Access::all(), noise(1));
    let target = region(&bed.hosts[0].pd, LEN, Access::all(), |_| GUARD);
    bed.sim().nic(0).hold.write_data = true;
    // More than the receive buffer and the room in front of it can hold: the sender is held back.
    for _ in 0..8 {
        post(&mut own, Operation::Write(target.remote(0)), &source);
    }
    ferroce_tests::pass(&bed, 1000);
    bed.sim().nic(0).hold.write_data = false;
    (0..8).for_each(|_| wait(&bed, &mut own.cq, "WRITE").status.unwrap());
    assert!(bytes(&target) == bytes(&source));
    assert_eq!(bed.hosts[0].device.counter(counter::RX_NO_ROOM), 0);
    assert_sound(&bed, "a slow host");
}

#[test]
fn what_is_sent_without_a_link_is_counted_and_sent_again() {
    let bed = Testbed::new(&Setup::default()).unwrap();
    let mut pair = bed.connect(&connect()).unwrap();
    let source = region(&bed.hosts[0].pd, LEN, Access::all(), noise(5));
    let target = region(&bed.hosts[1].pd, LEN, Access::all(), |_| GUARD);
    bed.sim().plug(0, false);
    post(&mut pair.a, Operation::Write(target.remote(0)), &source);
    ferroce_tests::pass(&bed, 100);
    assert!(bed.hosts[0].device.counter(counter::TX_LINK_DOWN) > 10);
    assert!(bytes(&target).iter().all(|b| *b == GUARD));
    bed.sim().plug(0, true);
    wait(&bed, &mut pair.a.cq, "WRITE after the link came back").status.unwrap();
    ferroce_tests::pass(&bed, 100);
    assert!(bytes(&target) == bytes(&source));
    assert_sound(&bed, "link down and up");
}
