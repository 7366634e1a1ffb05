//! Context on the chip carries parity: a damaged row is told of, and the device acts on it no more.

use abi::bar::{PARITY_TEST, health};
use abi::queue::event;
use abi::status::{cause, counter, wc};
use abi::table::{id, qp_state};
use driver::{Access, Data, Event, Flags, Mr, Operation};
use ferroce_tests::{GUARD, bytes, noise, pass, region, wait};
use nic::BarRequest;
use testbed::{Connect, End, Setup, Testbed};

const LEN: usize = 500;

/// From now on rows of `table` are stored damaged at a host; with `None` no longer.
fn damage(bed: &Testbed, host: usize, table: Option<u8>) {
    let value = table.map_or(0, |t| 16 | u64::from(t));
    let request = BarRequest { bar: 0, offset: PARITY_TEST as u32, bytes: 4, write: Some(value) };
    bed.sim().nic(host).bar(request);
    pass(bed, 40);
}

fn write(end: &mut End, source: &Mr, target: &Mr) {
    let mut batch = end.qp.post();
    batch.add(1, Operation::Write(target.remote(0)), Data::Sges(&[source.sge(0, LEN)]), Flags::SIGNALED).unwrap();
    batch.ring();
}

fn events(bed: &mut Testbed, host: usize) -> Vec<Event> {
    pass(bed, 100);
    std::iter::from_fn(|| bed.hosts[host].eq.poll()).collect()
}

/// The event, health and counter of a damaged row.
fn assert_told(bed: &Testbed, host: usize, events: &[Event], table: u8, row: u32) {
    let told: Vec<_> = events.iter().filter(|e| e.kind == event::PARITY).collect();
    assert!(!told.is_empty() && told.iter().all(|e| (e.value, e.number) == (table.into(), row)), "{events:?}");
    let device = &bed.hosts[host].device;
    assert_eq!(device.health(), health::READY | health::PARITY);
    assert!(device.counter(counter::PARITY_ERROR) >= 1);
    assert!(bed.sim().nic(host).host.iommu.take_faults().is_empty());
}

#[test]
fn damaged_context_is_told_of_and_never_acted_on() {
    let mut bed = Testbed::new(&Setup::default()).unwrap();
    let connect = Connect { mtu: 1024, ..Connect::default() };
    let mut good = bed.connect(&connect).unwrap();
    let source = region(&bed.hosts[0].pd, LEN, Access::all(), noise(1));
    let target = region(&bed.hosts[1].pd, LEN, Access::all(), |_| GUARD);
    assert_eq!(bed.hosts[1].device.health(), health::READY);

    // A key: the access is refused.
    damage(&bed, 1, Some(id::KEY));
    let bad = region(&bed.hosts[1].pd, LEN, Access::all(), |_| GUARD);
    damage(&bed, 1, None);
    let mut pair = bed.connect(&connect).unwrap();
    write(&mut pair.a, &source, &bad);
    let c = wait(&bed, &mut pair.a.cq, "a WRITE by a damaged key");
    assert_eq!(c.status.unwrap_err().status, wc::REM_ACCESS);
    assert_eq!(bytes(&bad), [GUARD; LEN]);
    let told = events(&mut bed, 1);
    assert_told(&bed, 1, &told, id::KEY, bad.rkey() >> 8);
    assert!(told.iter().any(|e| e.kind == event::QP_ERROR && e.value == cause::PARITY.into()), "{told:?}");

    // A completion queue: no CQE goes anywhere, the QP stops.
    damage(&bed, 1, Some(id::CQ));
    let mut pair = bed.connect(&connect).unwrap();
    damage(&bed, 1, None);
    write(&mut pair.b, &target, &source);
    let told = events(&mut bed, 1);
    assert_told(&bed, 1, &told, id::CQ, pair.b.cq.number());
    assert!(told.iter().any(|e| e.kind == event::QP_ERROR && e.value == cause::PARITY.into()), "{told:?}");
    assert_eq!(wait(&bed, &mut pair.b.cq, "what was posted").status.unwrap_err().status, wc::WR_FLUSH);
    source.write(0, &(0..LEN).map(noise(1)).collect::<Vec<_>>());

    // The two sides of a queue pair: it stops, and tells why.
    for (host, table) in [(0, id::QP_SEND), (1, id::QP_RECV)] {
        let mut pair = bed.connect(&connect).unwrap();
        damage(&bed, host, Some(table));
        write(&mut pair.a, &source, &target);
        pass(&bed, 100);
        damage(&bed, host, None);
        write(&mut pair.a, &source, &target);
        let told = events(&mut bed, host);
        let end = if host == 0 { &pair.a } else { &pair.b };
        assert_told(&bed, host, &told, table, end.qp.qpn());
        assert!(
            told.iter().any(|e| (e.kind, e.number, e.value) == (event::QP_ERROR, end.qp.qpn(), cause::PARITY.into()))
        );
        assert_eq!(end.qp.query().unwrap().state, qp_state::ERR);
        if host == 0 {
            let failed = (0..2).filter(|_| wait(&bed, &mut pair.a.cq, "what was posted").status.is_err()).count();
            assert!(failed >= 1, "a QP with a damaged row goes on");
        }
    }

    // All others go on.
    for _ in 0..3 {
        target.write(0, &[GUARD; LEN]);
        write(&mut good.a, &source, &target);
        wait(&bed, &mut good.a.cq, "beside damaged rows").status.unwrap();
        assert!(bytes(&target) == bytes(&source));
    }
}
