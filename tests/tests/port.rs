//! The port: VLAN and priority of an address, link events, MTU.

use abi::queue::event;
use abi::status::counter;
use driver::qp::{Path, QpSizes};
use driver::{Access, Data, Event, Flags, Operation};
use ferroce_tests::{assert_sound, inject, noise, pass, region, wait};
use std::sync::{Arc, Mutex};
use testbed::{Connect, Setup, Testbed};

/// Frames that left each NIC.
type Seen = [Vec<Vec<u8>>; 2];

/// A WRITE and a READ of a few packets between the hosts, with VLAN priority 5 both ways; all frames.
fn traffic(bed: &Testbed) -> Seen {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let tap = seen.clone();
    bed.sim().tap(Some(Box::new(move |from, frame, _| tap.lock().unwrap()[from].push(frame.data.clone()))));
    let mut pair = bed.connect(&Connect { priority: 5, mtu: 1024, ..Connect::default() }).unwrap();
    let source = region(&bed.hosts[0].pd, 3000, Access::all(), noise(1));
    let target = region(&bed.hosts[1].pd, 3000, Access::all(), noise(2));
    for operation in [Operation::Write(target.remote(0)), Operation::Read(target.remote(0))] {
        let mut batch = pair.a.qp.post();
        batch.add(0, operation, Data::Sges(&[source.sge(0, 3000)]), Flags::SIGNALED).unwrap();
        batch.ring();
        wait(bed, &mut pair.a.cq, "traffic").status.unwrap();
    }
    pass(bed, 20);
    // The frames that are injected later find their QP.
    std::mem::forget(pair);
    bed.sim().tap(None);
    std::mem::take(&mut *seen.lock().unwrap())
}

/// What NIC 1 counts for an injected frame.
fn verdict(bed: &Testbed, frame: Vec<u8>) -> Vec<&'static str> {
    let all = |bed: &Testbed| (0..=counter::RX_CNP).map(|c| bed.hosts[1].device.counter(c)).collect::<Vec<_>>();
    let before = all(bed);
    inject(bed, 1, frame, false);
    pass(bed, 20);
    let after = all(bed);
    (0..before.len()).filter(|i| after[*i] != before[*i]).map(|i| counter::NAMES[i].0).collect()
}

/// The frame with this tag in place of its own, if it has one.
fn tagged(frame: &[u8], tag: Option<u16>) -> Vec<u8> {
    let rest = if frame[12..14] == [0x81, 0] { &frame[16..] } else { &frame[12..] };
    let tag = tag.map_or(vec![], |t| [[0x81, 0], t.to_be_bytes()].concat());
    [&frame[..12], &tag, rest].concat()
}

#[test]
fn frames_of_an_address_in_a_vlan_carry_its_tag_and_no_others_are_taken() {
    for ip6 in [false, true] {
        let bed = Testbed::new(&Setup { vlan: Some(77), ip6, ..Setup::default() }).unwrap();
        let seen = traffic(&bed);
        for (from, frames) in seen.iter().enumerate() {
            assert!(frames.len() > 3);
            for f in frames {
                assert_eq!(f[12..16], [0x81, 0x00, 0xa0, 77], "from {from}");
            }
        }
        let write = &seen[0][0];
        // A repeated WRITE is a duplicate, of any priority, drop eligible or not; in another VLAN, or in none, it is nobody's.
        assert_eq!(verdict(&bed, write.clone()), ["RX_DUPLICATE"]);
        assert_eq!(verdict(&bed, tagged(write, Some(2 << 13 | 77))), ["RX_DUPLICATE"]);
        assert_eq!(verdict(&bed, tagged(write, Some(0x1000 | 77))), ["RX_DUPLICATE"]);
        for tag in [Some(5 << 13 | 78), Some(5 << 13), Some(0xa000 | 77 << 4), Some(0xfff), None] {
            assert_eq!(verdict(&bed, tagged(write, tag)), ["RX_ADDRESS"], "tag {tag:x?}");
        }
        assert_sound(&bed, "VLAN");
    }
}

#[test]
fn an_address_without_a_vlan_takes_untagged_and_priority_tagged_frames_only() {
    let bed = Testbed::new(&Setup::default()).unwrap();
    let seen = traffic(&bed);
    assert!(seen.iter().flatten().all(|f| f[12..14] == [8, 0]));
    let write = &seen[0][0];
    assert_eq!(verdict(&bed, write.clone()), ["RX_DUPLICATE"]);
    assert_eq!(verdict(&bed, tagged(write, Some(5 << 13))), ["RX_DUPLICATE"]);
    assert_eq!(verdict(&bed, tagged(write, Some(5 << 13 | 77))), ["RX_ADDRESS"]);
    assert_sound(&bed, "no VLAN");
}

#[test]
fn the_driver_sees_the_link_go_and_come() {
    let mut bed = Testbed::new(&Setup::default()).unwrap();
    let told = |bed: &mut Testbed| {
        pass(bed, 40);
        bed.hosts.each_mut().map(|h| std::iter::from_fn(|| h.eq.poll()).collect::<Vec<_>>())
    };
    told(&mut bed);
    for up in [false, true, false, true] {
        bed.sim().plug(0, up);
        let want = Event { kind: event::PORT, number: 1, value: up.into() };
        assert_eq!(told(&mut bed), [vec![want], vec![want]]);
        assert_eq!(bed.hosts.each_ref().map(|h| h.device.link_up()), [up, up]);
    }
}

#[test]
fn path_mtus_are_those_that_the_port_and_the_protocol_know() {
    let bed = Testbed::new(&Setup::default()).unwrap();
    let h = &bed.hosts[0];
    assert_eq!(h.device.mtu(), 9198);
    let cq = h.device.create_cq(16, &h.eq).unwrap();
    let path = |mtu| Path {
        qpn: 5,
        psn: 0,
        ip: bed.hosts[1].gid.ip,
        mac: bed.hosts[1].gid.mac,
        mtu,
        gid: 0,
        traffic_class: 0,
        priority: 0,
        source_port: 0xc000,
        max_dest_reads: 1,
        min_rnr_timer: 1,
    };
    for mtu in [256, 512, 1024, 2048, 4096] {
        let qp = h.pd.create_qp(&cq, &cq, QpSizes::new(16, 16)).unwrap();
        qp.init(Access::empty()).unwrap().rtr(&path(mtu)).unwrap();
    }
    for mtu in [0, 255, 1500, 8192] {
        let qp = h.pd.create_qp(&cq, &cq, QpSizes::new(16, 16)).unwrap();
        let error = qp.init(Access::empty()).unwrap().rtr(&path(mtu)).map(drop).unwrap_err().to_string();
        assert!(error.contains(&format!("a path MTU of {mtu} bytes")), "{error}");
    }
    let qp = h.pd.create_qp(&cq, &cq, QpSizes::new(16, 16)).unwrap();
    let bad = Path { priority: 8, ..path(1024) };
    assert!(qp.init(Access::empty()).unwrap().rtr(&bad).is_err(), "there is no VLAN priority 8");
}
