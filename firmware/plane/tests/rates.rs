//! Rates of queue pairs.

mod kit;
use abi::{
    bar::PACES,
    cmd::{
        BURST, QUOTA, attr, head, modify_qp as m, op,
        result::{BAD_FIELD, NOT_OWNER, UNSUPPORTED},
    },
    table::{id, pace, qp_send, qp_state::*},
};
use kit::*;

fn rate(n: u64, quota: u64, burst: u64) -> Command {
    modify(n, RTS, attr::RATE_LIMIT).with(QUOTA, quota).with(BURST, burst)
}

/// What the pacer is told: quota and burst.
fn told(b: &Bench) -> Vec<[u64; 2]> {
    let rows = b.fake.acts.iter();
    let of = |a: &Act| {
        if let Act::Commit(id::PACE, _, row) = a { Some([pace::QUOTA, pace::BURST].map(|f| f.get(row))) } else { None }
    };
    rows.filter_map(of).collect()
}

#[test]
fn a_rate_begins_changes_and_ends() {
    let mut b = Bench::new();
    let n = b.qp();
    b.bring(n, RTR);
    // With the way to RTS it comes behind the row that loads the queue.
    b.ok(modify(n, RTS, TO_RTS | attr::RATE_LIMIT).with(QUOTA, 5243).with(BURST, 16));
    assert_eq!(b.commits(), [id::QP_SEND, id::QP_STATE, id::PACE].map(|table| (table, n as u32)));
    assert_eq!(told(&b), [[5243, 16]]);
    for (quota, burst) in [(1 << 27, 255), (0, 0)] {
        b.ok(rate(n, quota, burst));
        assert_eq!(b.commits(), [(id::PACE, n as u32)]);
        assert_eq!(told(&b), [[quota, burst]]);
    }
    // What stands in the same place stays.
    let a = b.ok(command(op::QUERY_QP).number(n));
    assert_eq!((a.get(m::DMAC), a.get(m::SPORT)), (0x1615_1413_1210, 0xc123));
    // A reset loads the queue: that ends it.
    b.ok(rate(n, 5243, 16));
    b.ok(modify(n, RESET, 0));
    assert!(b.fake.acts.iter().any(|a| matches!(a, Act::Commit(id::QP_SEND, _, row) if qp_send::LOAD.get(row) == 1)));
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let at = |f: abi::Field| f.lsb as u64;
    let mut b = Bench::new();
    let n = b.qp();
    b.bring(n, RTS);
    // 65,535 bytes at a time.
    for (quota, burst, fits) in
        [(1, 0, false), (1, 1, true), (0xfff_ffff, 63, false), (0xfff_ffff, 64, true), (0, 0, true)]
    {
        let c = rate(n, quota, burst);
        if fits {
            b.ok(c);
        } else {
            assert_eq!(b.refused(c), (BAD_FIELD, at(BURST)), "{quota} {burst}");
        }
    }
    assert_eq!(b.refused(rate(n, 1, 5).owner(2)), (NOT_OWNER, at(head::NUMBER)));
    let mut fake = Fake::default();
    fake.limits[1] &= !PACES;
    let mut b = Bench::on(fake);
    let n = b.qp();
    b.bring(n, RTS);
    assert_eq!(b.refused(rate(n, 5243, 16)), (UNSUPPORTED, at(QUOTA)));
}
