//! What the engines are told.

mod kit;
use abi::{
    cmd::{attr, create_mr, head, modify_qp as m, op, resize_cq},
    table::{
        MTT_INDEX, NOBODY, PAGE_SHIFT, cq, eq, gid, id, key, multicast, port, qp_address, qp_recv, qp_send,
        qp_state::*, qp_state_row, qp_type,
    },
};
use kit::*;

fn row(b: &Bench, table: u8, n: u64) -> Bytes {
    let found = b.fake.acts.iter().rev().find_map(|a| match a {
        Act::Commit(t, i, row) if (*t, *i as u64) == (table, n) => Some(*row),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("no row {n} of table {table}"))
}

/// Compares a row with all of its fields that are not 0.
fn fields(row: &Bytes, layout: &abi::Layout, want: &[(abi::Field, u64)]) {
    let mut expected = [0; 64];
    want.iter().for_each(|(f, v)| f.set(&mut expected, *v));
    for f in layout.fields {
        assert_eq!(f.get(row), f.get(&expected), "{}.{}", layout.name, f.name);
    }
    assert_eq!(*row, expected);
}

#[test]
fn receives_of_one_sge_are_told_apart() {
    for sges in 1..=4 {
        let mut b = Bench::new();
        b.qp();
        let n = b.make(create_qp().with(abi::cmd::create_qp::RQ_SGES, sges));
        b.ok(modify(n, INIT, TO_INIT));
        assert_eq!(qp_recv::ONE_SGE.get(&row(&b, id::QP_RECV, n)), (sges == 1) as u64);
    }
}

#[test]
fn a_queue_pair_on_its_way() {
    let mut b = Bench::new();
    let n = b.qp();
    assert_eq!(b.fake.acts, [], "a QP in RESET needs no row");
    let q = n as u32;

    b.ok(modify(n, INIT, TO_INIT));
    assert_eq!(b.commits(), [(id::QP_SEND, q), (id::QP_RECV, q), (id::QP_STATE, q)]);
    let recv = [
        (qp_recv::LOAD, 1),
        (qp_recv::LOG2_BLOCKS, 5),
        (qp_recv::ACCESS, 0xe),
        (qp_recv::OWNER, 1),
        (qp_recv::BASE, 0x2_3456_78c0),
        (qp_recv::PKEY, 0xffff),
    ];
    fields(&row(&b, id::QP_RECV, n), &qp_recv::LAYOUT, &recv);
    let send = [(qp_send::LOAD, 1), (qp_send::LOG2_BLOCKS, 6), (qp_send::OWNER, 1), (qp_send::BASE, 0x1_2345_6780)];
    fields(&row(&b, id::QP_SEND, n), &qp_send::LAYOUT, &send);

    b.ok(modify(n, RTR, TO_RTR));
    assert_eq!(b.commits(), [(id::QP_ADDRESS, q), (id::QP_RECV, q), (id::QP_STATE, q)]);
    let address = [
        (qp_address::DMAC, 0x1615_1413_1210),
        (qp_address::TRAFFIC_CLASS, 0x6a),
        (qp_address::DIP_LOW, 0x0201_000a), // what lies behind an IPv4 address is cut off
        (qp_address::SPORT, 0xc123),
        (qp_address::HOP_LIMIT, 64),
        (qp_address::PRIORITY, 5),
        (qp_address::DEST_QPN, 0x12_3456),
        (qp_address::PKEY, 0xffff),
        (qp_address::FLOW_LABEL, 0xf_1234),
    ];
    fields(&row(&b, id::QP_ADDRESS, n), &qp_address::LAYOUT, &address);
    let mut recv = recv.to_vec();
    recv[0] = (qp_recv::LOAD_PSN, 1); // posted receives stay
    recv.extend([
        (qp_recv::MTU, 5),
        (qp_recv::PSN, 0xfe_dcba),
        (qp_recv::MAX_DEST_READS, 9),
        (qp_recv::MIN_RNR_TIMER, 12),
        (qp_recv::SIP_LOW, 0x0201_000a),
    ]);
    fields(&row(&b, id::QP_RECV, n), &qp_recv::LAYOUT, &recv);

    b.ok(modify(n, RTS, TO_RTS));
    assert_eq!(b.commits(), [(id::QP_SEND, q), (id::QP_STATE, q)]);
    let mut send = send.to_vec();
    send.extend([
        (qp_send::MTU, 5),
        (qp_send::PSN, 0xab_cdef),
        (qp_send::MAX_READS, 16),
        (qp_send::RETRY_COUNT, 5),
        (qp_send::RNR_RETRY, 6),
        (qp_send::TIMEOUT, 14),
    ]);
    fields(&row(&b, id::QP_SEND, n), &qp_send::LAYOUT, &send);
    fields(&row(&b, id::QP_STATE, n), &qp_state_row::LAYOUT, &[(qp_state_row::STATE, 3)]);

    // In RTS only attributes change: nothing is loaded anew, and the state is not written.
    b.ok(modify(n, RTS, attr::MIN_RNR_TIMER).with(m::MIN_RNR_TIMER, 3));
    assert_eq!(b.commits(), [(id::QP_RECV, q)]);
    recv[0] = (qp_recv::MIN_RNR_TIMER, 3);
    recv.retain(|f| *f != (qp_recv::MIN_RNR_TIMER, 12));
    fields(&row(&b, id::QP_RECV, n), &qp_recv::LAYOUT, &recv);

    b.ok(modify(n, SQD, 0));
    assert_eq!(b.commits(), [(id::QP_STATE, q)]);
    b.ok(modify(n, SQD, attr::AV | attr::TIMEOUT).with(m::TIMEOUT, 1).with(m::GID, 3));
    assert_eq!(b.commits(), [(id::QP_ADDRESS, q), (id::QP_SEND, q), (id::QP_RECV, q)]);
    let six = row(&b, id::QP_ADDRESS, n);
    assert_eq!((qp_address::IS_IP6.get(&six), qp_address::GID.get(&six)), (1, 3));
    assert_eq!(qp_address::DIP_HIGH.get(&six), 0x5566_7788_99aa_bbcc);
    let send = row(&b, id::QP_SEND, n);
    assert_eq!((qp_send::LOAD.get(&send), qp_send::TIMEOUT.get(&send)), (0, 1));
    assert_eq!(qp_recv::SIP_HIGH.get(&row(&b, id::QP_RECV, n)), 0x5566_7788_99aa_bbcc);

    b.ok(modify(n, ERR, 0));
    assert_eq!(b.commits(), [(id::QP_STATE, q)]);
}

/// Sends go on behind all that was posted, at the PSN that the engines have reached, when nothing of before is under way.
#[test]
fn a_stopped_send_queue_resumes_behind_what_was_posted() {
    use attr::*;
    let mut b = Bench::new();
    let n = b.qp_of(qp_type::UC);
    let needs = [PKEY_INDEX | PORT | ACCESS_FLAGS, AV | PATH_MTU | DEST_QPN | RQ_PSN, SQ_PSN];
    b.bring_by(n, RTS, needs);
    b.set_state(n, SQE);
    let at = (id::QP_SEND, n as u32);
    qp_send::PSN.set(b.fake.rows.get_mut(&at).unwrap(), 0x12_3456);
    b.ok(modify(n, RTS, CUR_STATE).with(m::CUR_STATE, SQE.into()).with(m::SQ_INDEX, 0xfffd));
    assert_eq!(b.fake.acts[0], Act::Drain);
    assert_eq!(b.commits(), [at, (id::QP_STATE, n as u32)]);
    let want = [
        (qp_send::TYPE, qp_type::UC.into()),
        (qp_send::RESUME, 1),
        (qp_send::MTU, 5),
        (qp_send::PSN, 0x12_3456),
        (qp_send::LOG2_BLOCKS, 6),
        (qp_send::OWNER, 1),
        (qp_send::BASE, 0x1_2345_6780),
        (qp_send::INDEX, 0xfffd),
    ];
    fields(&row(&b, id::QP_SEND, n), &qp_send::LAYOUT, &want);
    let state = [(qp_state_row::STATE, RTS.into()), (qp_state_row::RESUME, 1)];
    fields(&row(&b, id::QP_STATE, n), &qp_state_row::LAYOUT, &state);
    assert_eq!(b.ok(command(op::QUERY_QP).number(n)).get(m::SQ_PSN), 0x12_3456);
    // Another way to RTS does not resume.
    b.ok(modify(n, SQD, 0));
    b.ok(modify(n, RTS, 0));
    fields(&row(&b, id::QP_STATE, n), &qp_state_row::LAYOUT, &state[..1]);
}

/// The event of a drained send queue comes once, when it is asked for and as long as the QP is in SQD.
#[test]
fn a_send_queue_that_drains_is_told_of() {
    let drained = |b: &mut Bench, n: u64, value| {
        let row = b.fake.rows.get_mut(&(id::QP_SEND, n as u32)).unwrap();
        qp_send::DRAINED.set(row, value);
        b.fake.acts.clear();
        b.plane.watch_drains(&mut b.fake);
        b.fake.acts.clone()
    };
    let event = |n: u64| Act::Event { eqn: 0, kind: abi::queue::event::SQ_DRAINED, number: n as u32, value: 0 };
    let mut b = Bench::new();
    let (n, other) = (b.qp(), b.qp());
    for qp in [n, other] {
        b.bring(qp, RTS);
    }
    // Nobody has asked.
    b.ok(modify(n, SQD, 0));
    assert_eq!(drained(&mut b, n, 1), []);
    b.ok(modify(n, RTS, 0));
    for _ in 0..2 {
        b.ok(modify(n, SQD, attr::EN_SQD_ASYNC_NOTIFY));
        assert_eq!(drained(&mut b, n, 0), []);
        b.ok(modify(n, SQD, attr::TIMEOUT).with(m::TIMEOUT, 1));
        assert_eq!(drained(&mut b, n, 0), [], "a change of attributes is no answer");
        assert_eq!(drained(&mut b, n, 1), [Act::Drain, event(n)], "behind what was completed");
        assert_eq!(drained(&mut b, n, 1), [], "once");
        b.ok(modify(n, RTS, 0));
    }
    // One that left SQD is not told of, one that waits beside it is.
    b.ok(modify(other, SQD, attr::EN_SQD_ASYNC_NOTIFY));
    for (to, engines) in [(RTS, None), (ERR, None), (SQD, Some(ERR))] {
        b.ok(modify(n, SQD, attr::EN_SQD_ASYNC_NOTIFY));
        if let Some(state) = engines {
            b.set_state(n, state);
        } else {
            b.ok(modify(n, to, 0));
        }
        if to == RTS {
            b.ok(modify(n, SQD, 0));
        }
        assert_eq!(drained(&mut b, n, 1), []);
        b.ok(modify(n, RESET, 0));
        b.bring(n, RTS);
    }
    assert_eq!(drained(&mut b, other, 1), [Act::Drain, event(other)]);
}

/// A CQ goes on in another ring; what is wrong with that is named.
#[test]
fn a_completion_queue_is_resized() {
    let mut b = Bench::new();
    let eqn = b.make(create_eq());
    let n = b.make(create_cq().with(abi::cmd::create_cq::EQN, eqn));
    let resize = |log2: u64, base: u64| {
        let c = command(op::RESIZE_CQ).number(n);
        c.with(resize_cq::LOG2_ENTRIES, log2).with(resize_cq::BASE, base)
    };
    let bad = abi::cmd::result::BAD_FIELD;
    assert_eq!(b.refused(resize(23, 0x5000)), (bad, resize_cq::LOG2_ENTRIES.lsb as u64));
    assert_eq!(b.refused(resize(7, 0x5008)), (bad, resize_cq::BASE.lsb as u64));
    assert_eq!(b.refused(resize(8, u64::MAX - 4095)), (bad, resize_cq::BASE.lsb as u64));
    let other = resize(7, 0x5000).owner(2);
    assert_eq!(b.refused(other), (abi::cmd::result::NOT_OWNER, head::NUMBER.lsb as u64));
    let none = resize(7, 0x5000).number(99);
    assert_eq!(b.refused(none), (abi::cmd::result::NO_OBJECT, head::NUMBER.lsb as u64));
    b.ok(resize(7, 0x5000));
    assert_eq!(b.commits(), [(id::CQ, n as u32)]);
    let want =
        [(cq::VALID, 1), (cq::RESIZE, 1), (cq::LOG2_ENTRIES, 7), (cq::EQN, eqn), (cq::OWNER, 1), (cq::BASE, 0x5000)];
    fields(&row(&b, id::CQ, n), &cq::LAYOUT, &want);
    b.ok(command(op::DESTROY_CQ).number(n));
}

#[test]
fn reset_drains_before_the_rings_are_given_back() {
    for destroy in [false, true] {
        let mut b = Bench::new();
        let n = b.qp();
        b.bring(n, RTS);
        b.ok(if destroy { command(op::DESTROY_QP).number(n) } else { modify(n, RESET, 0) });
        let acts = &b.fake.acts;
        let state = |i: usize| matches!(acts[i], Act::Commit(id::QP_STATE, _, row) if row == [0; 64]);
        let queue = |i: usize, table, load, base| match acts[i] {
            Act::Commit(t, _, row) => {
                assert_eq!((qp_send::OWNER.get(&row), qp_send::LOAD.get(&row)), (NOBODY, load));
                t == table && (qp_send::BASE.get(&row) != 0) == base
            }
            _ => false,
        };
        assert!(state(0), "no packet is let in any more");
        assert!(queue(1, id::QP_SEND, 0, true) && queue(2, id::QP_RECV, 0, true), "no doorbell");
        assert_eq!(acts[3], Act::Drain);
        assert!(queue(4, id::QP_SEND, 1, false) && queue(5, id::QP_RECV, 1, false), "no ring");
        assert_eq!(acts[6], Act::Drain, "fetches that doorbells of before began");
        assert_eq!(acts.len(), 7);
        // From RESET there is nothing to do.
        if !destroy {
            b.ok(modify(n, RESET, 0));
            assert_eq!(b.fake.acts, []);
            b.bring(n, RTS);
        }
    }
}

#[test]
fn query_tells_live_psns_and_what_was_set() {
    let mut b = Bench::new();
    let n = b.qp();
    let query = command(op::QUERY_QP).number(n);
    let a = b.ok(query);
    assert!(a.0[12..].iter().all(|b| *b == 0));
    b.bring(n, RTS);
    qp_send::PSN.set(b.fake.rows.get_mut(&(id::QP_SEND, n as u32)).unwrap(), 0x77_7777);
    qp_recv::PSN.set(b.fake.rows.get_mut(&(id::QP_RECV, n as u32)).unwrap(), 0x88_8888);
    let a = b.ok(query);
    let mut want = modify(n, RTS, TO_INIT | TO_RTR | TO_RTS)
        .with(m::MASK, (TO_INIT | TO_RTR | TO_RTS).into())
        .with(m::SQ_PSN, 0x77_7777)
        .with(m::RQ_PSN, 0x88_8888)
        .with(m::DIP_LOW, 0x0201_000a)
        .with(m::DIP_HIGH, 0);
    want.0[..8].fill(0);
    assert_eq!(a.0, want.0);
    assert_eq!(b.commits(), []);
}

#[test]
fn completion_and_event_queues() {
    let mut b = Bench::new();
    let n = b.make(
        create_eq()
            .with(abi::cmd::create_eq::MODERATION_COUNT, 0x1234)
            .with(abi::cmd::create_eq::MODERATION_CYCLES, 0x56_789a),
    );
    let want = [
        (eq::VALID, 1),
        (eq::LOG2_ENTRIES, 6),
        (eq::VECTOR, 3),
        (eq::OWNER, 1),
        (eq::MODERATION_COUNT, 0x1234),
        (eq::BASE, 0x7000),
        (eq::MODERATION_CYCLES, 0x56_789a),
    ];
    fields(&row(&b, id::EQ, n), &eq::LAYOUT, &want);
    let n = b.make(create_cq());
    let want = [(cq::VALID, 1), (cq::LOG2_ENTRIES, 8), (cq::OWNER, 1), (cq::BASE, 0x5000)];
    fields(&row(&b, id::CQ, n), &cq::LAYOUT, &want);
    for (opcode, table) in [(op::DESTROY_CQ, id::CQ), (op::DESTROY_EQ, id::EQ)] {
        b.ok(command(opcode).number(0));
        assert_eq!(b.fake.acts, [Act::Commit(table, 0, [0; 64]), Act::Drain]);
    }
}

#[test]
fn regions_by_pages_and_in_one_piece() {
    let mut b = Bench::new();
    b.make(command(op::CREATE_PD));
    // From the middle of a page to the middle of another: 4 pages.
    let a = b.ok(create_mr(0x7fff_0000_0800, 0x3000));
    let n = a.get(abi::cmd::answer::NUMBER);
    assert_eq!(a.get(abi::cmd::answer::VALUE), n << 8 | 1);
    let first = MTT_INDEX.get(&row(&b, id::KEY, n));
    assert_eq!(b.fake.acts[0], Act::Load { list: 0xabc_d000, first: first as u32, count: 4, shift: 12 });
    let mut want = vec![
        (key::VALID, 1),
        (key::ACCESS, 7),
        (key::KEY_BYTE, 1),
        (key::VA, 0x7fff_0000_0800),
        (key::LENGTH, 0x3000),
        // In place of an address.
        (key::IOVA, first | 12 << (PAGE_SHIFT.lsb - key::IOVA.lsb)),
    ];
    fields(&row(&b, id::KEY, n), &key::LAYOUT, &want);

    let n = b.make(create_mr(0x7fff_0000_0800, 0x3000).with(create_mr::CONTIGUOUS, 1).with(create_mr::PAGE_SHIFT, 0));
    assert_eq!(b.commits().len(), b.fake.acts.len(), "no table entries");
    want.truncate(5);
    want.extend([(key::CONTIGUOUS, 1), (key::IOVA, 0xabc_d000)]);
    fields(&row(&b, id::KEY, n), &key::LAYOUT, &want);

    b.ok(command(op::DESTROY_MR).with(head::NUMBER, n));
    assert_eq!(b.fake.acts, [Act::Commit(id::KEY, n as u32, [0; 64]), Act::Drain]);

    for (shift, va, length, count) in [
        (16, 0x1_ffff, 2, 2),
        (21, 0, 1 << 30, 512),
        (30, u64::MAX - (1 << 30) + 1, 1 << 30, 1),
        (30, u64::MAX, 1, 1),
        (12, 0x1000, 0x1001, 2),
    ] {
        b.ok(create_mr(va, length).with(create_mr::PAGE_SHIFT, shift));
        assert!(matches!(b.fake.acts[0], Act::Load { count: c, shift: s, .. } if (c, s as u64) == (count, shift)));
    }
}

#[test]
fn addresses_of_the_port() {
    let mut b = Bench::new();
    let row0 = b.fake.rows[&(id::PORT, 0)];
    assert_eq!(row0[..8], [0x02, 0x46, 0x52, 0x43, 0x45, 0, 0, 0], "before the driver sets it");
    b.ok(gid6(3));
    let want = [
        (gid::VALID, 1),
        (gid::IS_IP6, 1),
        (gid::TAGGED, 1),
        (gid::VLAN, 77),
        (gid::MAC, 0x0605_0403_0202),
        (gid::IP_LOW, 0x80fe),
        (gid::IP_HIGH, u64::MAX),
    ];
    fields(&row(&b, id::GID, 3), &gid::LAYOUT, &want);
    b.ok(gid4(3).with(abi::cmd::set_gid::VLAN, 9));
    fields(&row(&b, id::GID, 3), &gid::LAYOUT, &[want[0], want[4], (gid::IP_LOW, 0x0101_000a)]);
    b.ok(command(op::SET_GID).with(abi::cmd::set_gid::INDEX, 3));
    assert_eq!(row(&b, id::GID, 3), [0; 64]);
    let set = command(op::SET_PORT).with(abi::cmd::set_port::MAC, 0x0605_0403_0202);
    let set = set.with(abi::cmd::set_port::RAW_ON, 1).with(abi::cmd::set_port::PROMISCUOUS, 1);
    b.ok(set.with(abi::cmd::set_port::RAW_BURST, 9).with(abi::cmd::set_port::RAW_CYCLES, 0x8765_4321));
    let want = [
        (port::MAC, 0x0605_0403_0202),
        (port::RAW_ON, 1),
        (port::PROMISCUOUS, 1),
        (port::RAW_BURST, 9),
        (port::RAW_CYCLES, 0x8765_4321),
    ];
    fields(&row(&b, id::PORT, 0), &port::LAYOUT, &want);
    let set = command(op::SET_MULTICAST).with(abi::cmd::set_multicast::INDEX, 15);
    b.ok(set.with(abi::cmd::set_multicast::VALID, 1).with(abi::cmd::set_multicast::MAC, 0x0605_04ff_3333));
    let want = [(multicast::VALID, 1), (multicast::MAC, 0x0605_04ff_3333)];
    fields(&row(&b, id::MULTICAST, 15), &multicast::LAYOUT, &want);
    b.ok(set.with(abi::cmd::set_multicast::MAC, 0x0605_04ff_3333));
    assert_eq!(row(&b, id::MULTICAST, 15), [0; 64]);
}
