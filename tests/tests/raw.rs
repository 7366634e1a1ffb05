//! Frames that are not RoCE: to and from the raw queue pair, its filter and its rate, and the neighbours that the driver finds and
//! answers by it.

use abi::queue::{send_op, send_wqe, sge};
use abi::status::{cause, counter, wc};
use driver::qp::QpSizes;
use driver::{Access, Data, Flags, Gid, Network, NetworkOptions, Operation, Port};
use ferroce_tests::{assert_sound, inject, noise, pass, wait};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use testbed::{Setup, Testbed};

const EXPERIMENTAL: [u8; 2] = [0x88, 0xb5];

/// A frame with the local experimental EtherType.
fn frame(to: [u8; 6], from: [u8; 6], len: usize, seed: u64) -> Vec<u8> {
    let mut f: Vec<u8> = (0..len).map(noise(seed)).collect();
    f[..6].copy_from_slice(&to);
    f[6..12].copy_from_slice(&from);
    f[12..14].copy_from_slice(&EXPERIMENTAL);
    f
}

/// Options that let nothing be lost by rate, and that are impatient.
fn options(mac: [u8; 6]) -> NetworkOptions {
    let port = Port { raw: true, ..Port::new(mac) };
    NetworkOptions { port, retry: Duration::from_micros(50), tries: 3, ..NetworkOptions::new(mac) }
}

fn open(bed: &Testbed, host: usize) -> Network {
    let h = &bed.hosts[host];
    Network::open(&h.device, &h.eq, &options(h.gid.mac)).unwrap()
}

/// The next frame; panics when none comes.
fn receive(bed: &Testbed, network: &mut Network, what: &str) -> Vec<u8> {
    for _ in 0..2000 {
        if let Some(f) = network.receive().unwrap() {
            return f;
        }
        bed.relax();
    }
    panic!("{what}: no frame comes")
}

fn counts<const N: usize>(bed: &Testbed, host: usize, which: [usize; N]) -> [u64; N] {
    which.map(|c| bed.hosts[host].device.counter(c))
}

/// Frames of all lengths cross, in order, whole, and padded as Ethernet wants it; to an own MAC they come back.
fn frames_cross(setup: &Setup) {
    let bed = Testbed::new(setup).unwrap();
    let (mut a, mut b) = (open(&bed, 0), open(&bed, 1));
    let [mac_a, mac_b] = [0, 1].map(|h| bed.hosts[h].gid.mac);
    let lengths = [14, 15, 59, 60, 61, 64, 65, 224, 225, 1000, 1518, 4096, 4097, 9000, 9215, 9216];
    for (i, len) in lengths.into_iter().enumerate() {
        for (to, own) in [(mac_b, false), (mac_a, true)] {
            let mut f = frame(to, mac_a, len, i as u64);
            a.send(&f).unwrap();
            let got = receive(&bed, if own { &mut a } else { &mut b }, &format!("{len} bytes to {to:x?}"));
            f.resize(len.max(60), 0);
            assert!(got == f, "{len} bytes to {to:x?}");
        }
    }
    for f in [vec![0; 13], vec![0; 9217]] {
        assert!(a.send(&f).unwrap_err().to_string().contains(&format!("a frame of {} bytes", f.len())));
    }
    let n = lengths.len() as u64;
    assert_eq!(counts(&bed, 0, [counter::TX_RAW, counter::TX_LOOPBACK, counter::RX_RAW]), [2 * n, n, n]);
    assert_eq!(counts(&bed, 1, [counter::RX_RAW, counter::RX_RAW_DROPPED, counter::RX_RAW_RATE]), [n, 0, 0]);
    // Without a link they are gone, and the sender is not held up.
    bed.sim().plug(0, false);
    pass(&bed, 2);
    for i in 0..40 {
        a.send(&frame(mac_b, mac_a, 1000, i)).unwrap();
    }
    pass(&bed, 200);
    assert_eq!(counts(&bed, 0, [counter::TX_RAW, counter::TX_LINK_DOWN]), [2 * n + 40, 40]);
    bed.sim().plug(0, true);
    pass(&bed, 2);
    // Many at a time, more than there are receives: what comes is in order, what does not is counted.
    let burst = |i: u64| frame(mac_b, mac_a, 60 + 7 * (i as usize % 50), i);
    let before = counts(&bed, 1, [counter::RX_RAW, counter::RX_RAW_DROPPED]);
    for i in 0..400 {
        a.send(&burst(i)).unwrap();
        b.poll().unwrap();
    }
    for _ in 0..200 {
        b.poll().unwrap();
        bed.relax();
    }
    let after = counts(&bed, 1, [counter::RX_RAW, counter::RX_RAW_DROPPED]);
    let mut sent = (0..400).map(burst);
    let mut came = 0;
    while let Some(f) = b.receive().unwrap() {
        assert!(sent.any(|s| s == f), "frame {came} of those that came is out of order");
        came += 1;
    }
    assert_eq!(came + b.lost(), after[0] - before[0]);
    assert_eq!(after[0] - before[0] + after[1] - before[1], 400);
    assert!(came > 30, "{came} of a burst of 400");
    drop((a, b));
    assert_sound(&bed, "raw frames");
}

#[test]
fn frames_of_all_lengths_cross_at_512_bits() {
    frames_cross(&Setup::default());
}

#[test]
fn frames_of_all_lengths_cross_at_64_bits() {
    frames_cross(&Setup::small());
}

#[test]
fn the_port_hears_its_own_groups_and_broadcast_or_all() {
    let bed = Testbed::new(&Setup { ip6: true, ..Setup::default() }).unwrap();
    let device = &bed.hosts[1].device;
    let second = Gid { ip: IpAddr::V4(Ipv4Addr::new(10, 9, 9, 9)), mac: [2, 9, 9, 9, 9, 9], vlan: Some(5) };
    device.set_gid(1, Some(second)).unwrap();
    device.set_multicast(9, Some([1, 0, 0x5e, 0, 0, 9])).unwrap();
    let mut b = open(&bed, 1);
    let own = bed.hosts[1].gid.mac;
    let solicited = [0x33, 0x33, 0xff, 0, 0, 2];
    let heard = [own, second.mac, solicited, [1, 0, 0x5e, 0, 0, 9], [0xff; 6]];
    let foreign = [[2, 0, 0, 0, 0, 9], [0x33, 0x33, 0xff, 0, 0, 3], [1, 0, 0x5e, 0, 0, 8], [0; 6]];
    let offer = |b: &mut Network, all: &[[u8; 6]]| {
        all.iter().for_each(|to| inject(&bed, 1, frame(*to, [2; 6], 70, 1), false));
        pass(&bed, 100);
        let mut got = vec![];
        while let Some(f) = b.receive().unwrap() {
            got.push(<[u8; 6]>::try_from(&f[..6]).unwrap());
        }
        got
    };
    assert_eq!(offer(&mut b, &heard), heard);
    assert_eq!(offer(&mut b, &foreign), [[0; 6]; 0]);
    assert_eq!(counts(&bed, 1, [counter::RX_RAW, counter::RX_RAW_DROPPED]), [5, 4]);
    device.set_gid(1, None).unwrap();
    device.set_multicast(9, None).unwrap();
    assert_eq!(offer(&mut b, &heard), [own, solicited, [0xff; 6]]);
    device.set_port(&Port { raw: true, promiscuous: true, ..Port::new(own) }).unwrap();
    assert_eq!(offer(&mut b, &foreign), foreign);
    device.set_port(&Port::new(own)).unwrap();
    assert_eq!(offer(&mut b, &heard), [[0; 6]; 0]);
    let error = device.set_multicast(16, Some([1; 6])).unwrap_err().to_string();
    assert!(error.contains("SET_MULTICAST") && error.contains("INDEX"), "{error}");
    drop(b);
    assert_sound(&bed, "filter");
}

#[test]
fn what_is_over_the_rate_is_dropped_and_counted() {
    let bed = Testbed::new(&Setup::default()).unwrap();
    let h = &bed.hosts[1];
    // A frame every 10 us, 8 at once.
    let port = Port { raw: true, rate: 100_000, burst: 8, ..Port::new(h.gid.mac) };
    let mut b = Network::open(&h.device, &h.eq, &NetworkOptions { port, ..options(h.gid.mac) }).unwrap();
    let start = bed.ns();
    // A RoCE frame among them is no raw frame, whatever its fate.
    for i in 0..30 {
        inject(&bed, 1, frame(h.gid.mac, [2; 6], 100, i), false);
    }
    pass(&bed, 40);
    let [raw, over] = counts(&bed, 1, [counter::RX_RAW, counter::RX_RAW_RATE]);
    let refilled = ((bed.ns() - start) / 10_000.0) as u64;
    assert_eq!(raw + over, 30);
    assert!((8..=9 + refilled).contains(&raw), "{raw} frames at once, {refilled} by time");
    let mut got = 0;
    while b.receive().unwrap().is_some() {
        got += 1;
    }
    assert_eq!(got, raw);
    // Later they pass again.
    pass(&bed, 1000);
    inject(&bed, 1, frame(h.gid.mac, [2; 6], 100, 99), false);
    assert!(receive(&bed, &mut b, "after a while") == frame(h.gid.mac, [2; 6], 100, 99));
    let bad = Port { burst: 0, ..port };
    let error = h.device.set_port(&bad).unwrap_err().to_string();
    assert!(error.contains("SET_PORT") && error.contains("RAW_BURST"), "{error}");
}

/// Both hosts find each other, by asking; then nobody asks again.
fn neighbours_find_each_other(setup: &Setup) {
    let mut bed = Testbed::new(setup).unwrap();
    let mut networks = bed.discover().unwrap();
    let asked = counts(&bed, 0, [counter::TX_RAW]);
    for to in 0..2 {
        let found = networks[1 - to].try_resolve(0, bed.hosts[to].gid.ip).unwrap();
        assert_eq!(found, Some(bed.hosts[to].gid.mac));
    }
    assert_eq!(counts(&bed, 0, [counter::TX_RAW]), asked);
    // What a host is called itself it knows.
    assert_eq!(networks[0].resolve(0, bed.hosts[0].gid.ip).unwrap(), bed.hosts[0].gid.mac);
    // A pair connected by what was found works.
    let mut pair = bed.connect(&Default::default()).unwrap();
    let (from, to) =
        (bed.hosts[0].pd.alloc(64, Access::all()).unwrap(), bed.hosts[1].pd.alloc(64, Access::all()).unwrap());
    let mut batch = pair.a.qp.post();
    batch.add(0, Operation::Write(to.remote(0)), Data::Sges(&[from.sge(0, 64)]), Flags::SIGNALED).unwrap();
    batch.ring();
    wait(&bed, &mut pair.a.cq, "WRITE to a neighbour that was found").status.unwrap();
    drop(networks);
    assert_sound(&bed, "neighbours");
}

#[test]
fn neighbours_find_each_other_by_arp() {
    neighbours_find_each_other(&Setup::default());
    neighbours_find_each_other(&Setup { vlan: Some(77), ..Setup::default() });
}

#[test]
fn neighbours_find_each_other_by_neighbour_discovery() {
    neighbours_find_each_other(&Setup { ip6: true, ..Setup::small() });
    neighbours_find_each_other(&Setup { ip6: true, vlan: Some(4094), ..Setup::default() });
}

#[test]
fn who_does_not_answer_is_named_and_who_is_fixed_is_not_asked() {
    let bed = Testbed::new(&Setup::default()).unwrap();
    let mut a = open(&bed, 0);
    let nobody = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 200));
    let error = a.resolve(0, nobody).unwrap_err().to_string();
    assert!(
        error.contains("nobody answers for 10.0.0.200") && error.contains("asked 3 times from 10.0.0.1"),
        "{error}"
    );
    assert_eq!(counts(&bed, 0, [counter::TX_RAW]), [3]);
    a.set_neighbour(0, nobody, Some([2, 0, 0, 0, 0, 0xc8])).unwrap();
    assert_eq!(a.resolve(0, nobody).unwrap(), [2, 0, 0, 0, 0, 0xc8]);
    assert_eq!(counts(&bed, 0, [counter::TX_RAW]), [3]);
    let error = a.resolve(0, "fd00::2".parse().unwrap()).unwrap_err().to_string();
    assert!(error.contains("fd00::2 cannot be reached from GID 0, which is 10.0.0.1"), "{error}");
    // A group's MAC follows from its address, but no more can be sent to one of another family.
    assert_eq!(a.resolve(0, "239.129.2.3".parse().unwrap()).unwrap(), [1, 0, 0x5e, 1, 2, 3]);
    let error = a.resolve(0, "ff02::1".parse().unwrap()).unwrap_err().to_string();
    assert!(error.contains("ff02::1 cannot be reached from GID 0, which is 10.0.0.1"), "{error}");
    assert!(a.resolve(3, nobody).unwrap_err().to_string().contains("GID 3 is not set"));
    // One port has one.
    let h = &bed.hosts[0];
    assert!(Network::open(&h.device, &h.eq, &options(h.gid.mac)).is_err());
}

/// What the raw queue pair cannot send completes with an error, and leaves nothing behind.
#[test]
fn bad_work_requests_complete_with_errors() {
    let bed = Testbed::new(&Setup::default()).unwrap();
    let h = &bed.hosts[0];
    let mr = h.pd.alloc(20_000, Access::all()).unwrap();
    let mut cq = h.device.create_cq(64, &h.eq).unwrap();
    let sizes = QpSizes::new(64, 16);
    let wqe = |opcode: u8, length: u64, key: u32| {
        let mut block = [0; 64];
        send_wqe::OPCODE.set(&mut block, opcode.into());
        send_wqe::SIGNALED.set(&mut block, 1);
        send_wqe::BLOCKS.set(&mut block, 1);
        send_wqe::SGES.set(&mut block, 1);
        send_wqe::LENGTH.set(&mut block, length);
        sge::VA.set(&mut block[32..], mr.sge(0, 1).addr);
        sge::LKEY.set(&mut block[32..], key.into());
        sge::LENGTH.set(&mut block[32..], length);
        block
    };
    let key = mr.sge(0, 1).lkey;
    for (block, status, why) in [
        (wqe(send_op::SEND, 13, key), wc::LOC_LEN, cause::WQE_LENGTH),
        (wqe(send_op::SEND, 9217, key), wc::LOC_LEN, cause::WQE_LENGTH),
        (wqe(send_op::WRITE, 100, key), wc::LOC_QP_OP, cause::WQE_OPCODE),
        (wqe(send_op::READ, 100, key), wc::LOC_QP_OP, cause::WQE_OPCODE),
        (wqe(send_op::SEND_IMM, 100, key), wc::LOC_QP_OP, cause::WQE_OPCODE),
        (wqe(send_op::SEND, 100, key ^ 1), wc::LOC_PROT, cause::KEY_INVALID),
    ] {
        let mut qp = h.pd.create_raw_qp(&cq, &cq, sizes).unwrap();
        let mut batch = qp.post();
        // A good one before, whose completion is there first, and one behind, which is flushed.
        for (id, block) in [(1, wqe(send_op::SEND, 9216, key)), (2, block), (3, wqe(send_op::SEND, 60, key))] {
            batch.add_raw(id, &[block]).unwrap();
        }
        batch.ring();
        let done = [(); 3].map(|()| wait(&bed, &mut cq, "a bad work request"));
        assert_eq!(done.map(|c| c.wr_id), [1, 2, 3]);
        assert_eq!(done[0].status, Ok(()));
        let error = done[1].status.unwrap_err();
        assert_eq!((error.status, error.cause), (status, why));
        assert_eq!(done[2].status.unwrap_err().status, wc::WR_FLUSH);
    }
    assert_eq!(counts(&bed, 0, [counter::TX_RAW]), [6]);
    assert_sound(&bed, "bad raw work requests");
}
