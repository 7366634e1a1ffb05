//! The QP state machine: every pair of states, every attribute.

mod kit;
use abi::{
    cmd::{self, attr, attr::*, create_qp, head, modify_qp as m, op, result::*},
    table::{id, qp_recv, qp_send, qp_state::*, qp_state_row, qp_type},
};
use kit::*;

const LIVE: u32 = CUR_STATE | ACCESS_FLAGS | ALT_PATH | PATH_MIG_STATE | MIN_RNR_TIMER | RATE_LIMIT;

/// From, to, required, optional: as the verbs specification lists them for RC. What is not here is no transition.
#[rustfmt::skip]
const TABLE: &[(u8, u8, u32, u32)] = &[
    (RESET, INIT, PKEY_INDEX | PORT | ACCESS_FLAGS, 0),
    (INIT, INIT, 0, PKEY_INDEX | PORT | ACCESS_FLAGS),
    (INIT, RTR, AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER,
        ALT_PATH | ACCESS_FLAGS | PKEY_INDEX),
    (RTR, RTS, SQ_PSN | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC, LIVE),
    (RTS, RTS, 0, LIVE),
    (RTS, SQD, 0, EN_SQD_ASYNC_NOTIFY),
    (SQD, RTS, 0, LIVE),
    (SQD, SQD, 0, PORT | AV | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC | MAX_DEST_RD_ATOMIC | ALT_PATH
        | ACCESS_FLAGS | PKEY_INDEX | MIN_RNR_TIMER | PATH_MIG_STATE),
    (RESET, RESET, 0, 0), (INIT, RESET, 0, 0), (RTR, RESET, 0, 0), (RTS, RESET, 0, 0), (SQD, RESET, 0, 0),
    (SQE, RESET, 0, 0), (ERR, RESET, 0, 0),
    (INIT, ERR, 0, 0), (RTR, ERR, 0, 0), (RTS, ERR, 0, 0), (SQD, ERR, 0, 0), (SQE, ERR, 0, 0), (ERR, ERR, 0, 0),
];

/// The same for UC and UD, without the moves to RESET and ERR, which are those of RC.
#[rustfmt::skip]
const UC: &[(u8, u8, u32, u32)] = &[
    (RESET, INIT, PKEY_INDEX | PORT | ACCESS_FLAGS, 0),
    (INIT, INIT, 0, PKEY_INDEX | PORT | ACCESS_FLAGS),
    (INIT, RTR, AV | PATH_MTU | DEST_QPN | RQ_PSN, ALT_PATH | ACCESS_FLAGS | PKEY_INDEX),
    (RTR, RTS, SQ_PSN, CUR_STATE | ALT_PATH | ACCESS_FLAGS | PATH_MIG_STATE | RATE_LIMIT),
    (RTS, RTS, 0, CUR_STATE | ALT_PATH | ACCESS_FLAGS | PATH_MIG_STATE | RATE_LIMIT),
    (RTS, SQD, 0, EN_SQD_ASYNC_NOTIFY),
    (SQD, RTS, 0, CUR_STATE | ALT_PATH | ACCESS_FLAGS | PATH_MIG_STATE | RATE_LIMIT),
    (SQD, SQD, 0, AV | ALT_PATH | ACCESS_FLAGS | PKEY_INDEX | PATH_MIG_STATE),
    (SQE, RTS, 0, CUR_STATE | ACCESS_FLAGS),
];
#[rustfmt::skip]
const UD: &[(u8, u8, u32, u32)] = &[
    (RESET, INIT, PKEY_INDEX | PORT | QKEY, 0),
    (INIT, INIT, 0, PKEY_INDEX | PORT | QKEY),
    (INIT, RTR, 0, PKEY_INDEX | QKEY),
    (RTR, RTS, SQ_PSN, CUR_STATE | QKEY | RATE_LIMIT),
    (RTS, RTS, 0, CUR_STATE | QKEY | RATE_LIMIT),
    (RTS, SQD, 0, EN_SQD_ASYNC_NOTIFY),
    (SQD, RTS, 0, CUR_STATE | QKEY | RATE_LIMIT),
    (SQD, SQD, 0, PKEY_INDEX | QKEY),
    (SQE, RTS, 0, CUR_STATE | QKEY),
];

/// The transition of a QP of this type.
fn transition(kind: u8, from: u8, to: u8) -> Option<(u32, u32)> {
    let table = match kind {
        qp_type::UC if to != RESET && to != ERR => UC,
        qp_type::UD if to != RESET && to != ERR => UD,
        _ => TABLE,
    };
    table.iter().find(|t| (t.0, t.1) == (from, to)).map(|t| (t.2, t.3))
}

const NOT_DONE: u32 = ALT_PATH | PATH_MIG_STATE;

/// A QP that was brought to `state` the regular way.
fn in_state(state: u8) -> (Bench, u64) {
    in_state_of(qp_type::RC, state)
}

/// The same, of a type.
fn in_state_of(kind: u8, state: u8) -> (Bench, u64) {
    let mut b = Bench::new();
    let n = b.qp_of(kind);
    let needs = [(RESET, INIT), (INIT, RTR), (RTR, RTS)].map(|(from, to)| transition(kind, from, to).unwrap().0);
    if state == SQE {
        b.bring_by(n, RTS, needs);
        b.set_state(n, SQE);
    } else {
        b.bring_by(n, state, needs);
    }
    assert_eq!(b.state(n), state);
    (b, n)
}

fn snapshot(b: &mut Bench, n: u64) -> [u8; 64] {
    b.ok(command(op::QUERY_QP).number(n)).0
}

fn with_cur(c: Command, from: u8) -> Command {
    c.with(m::CUR_STATE, from.into())
}

#[test]
fn every_pair_of_states_and_every_attribute() {
    [qp_type::RC, qp_type::UC, qp_type::UD].into_iter().for_each(every_pair);
}

fn every_pair(kind: u8) {
    for from in RESET..=ERR {
        for to in RESET..=ERR {
            let (mut b, n) = in_state_of(kind, from);
            let before = snapshot(&mut b, n);
            let Some((required, optional)) = transition(kind, from, to) else {
                for mask in [0, TO_INIT, TO_RTR, TO_RTS, u32::MAX] {
                    assert_eq!(b.refused(modify(n, to, mask)), (BAD_TRANSITION, 0), "{from} to {to}");
                }
                assert_eq!(snapshot(&mut b, n), before);
                continue;
            };
            for bit in 1..32u32 {
                let (this, full) = (1 << bit, required);
                if required & this != 0 {
                    let want = (MISSING_ATTRIBUTE, bit.into());
                    assert_eq!(b.refused(modify(n, to, full & !this)), want, "{from} to {to}");
                } else if optional & this == 0 {
                    let want = (FORBIDDEN_ATTRIBUTE, bit.into());
                    assert_eq!(b.refused(with_cur(modify(n, to, full | this), from)), want, "{from} to {to}");
                } else if NOT_DONE & this != 0 {
                    let want = (UNSUPPORTED, (m::MASK.lsb as u32 + bit).into());
                    assert_eq!(b.refused(modify(n, to, full | this)), want, "{from} to {to}");
                }
            }
            assert_eq!(snapshot(&mut b, n), before, "{from} to {to}: a refused command changed the QP");
            // With all that may be there, with what must be there, and with each optional attribute alone.
            let optional = optional & !NOT_DONE;
            let each = (0..32).map(|bit| 1 << bit).filter(|this| optional & this != 0);
            for extra in [0, optional].into_iter().chain(each) {
                let (mut b, n) = in_state_of(kind, from);
                b.ok(with_cur(modify(n, to, required | extra), from));
                assert_eq!(b.state(n), to);
            }
        }
    }
}

#[test]
fn a_stale_current_state_is_refused() {
    for (from, to, required, optional) in TABLE.iter().filter(|t| t.3 & CUR_STATE != 0) {
        assert_ne!(optional & CUR_STATE, 0);
        for wrong in (RESET..=ERR).filter(|s| s != from) {
            let (mut b, n) = in_state(*from);
            let c = with_cur(modify(n, *to, required | CUR_STATE), wrong);
            assert_eq!(b.refused(c), (BAD_FIELD, m::CUR_STATE.lsb as u64));
        }
    }
}

#[test]
fn without_a_state_the_qp_stays_where_it_is() {
    for state in [RTS, SQD] {
        let (mut b, n) = in_state(state);
        b.ok(modify(n, 0, MIN_RNR_TIMER).with(m::MASK, MIN_RNR_TIMER.into()));
        assert_eq!(b.state(n), state);
    }
    let (mut b, n) = in_state(RTR);
    let c = modify(n, 0, 0).with(m::MASK, MIN_RNR_TIMER.into());
    assert_eq!(b.refused(c), (BAD_TRANSITION, 0));
    assert_eq!(b.refused(modify(n, 7, 0)), (BAD_FIELD, m::STATE.lsb as u64));
}

/// The engines know first that a QP failed.
#[test]
fn the_state_of_the_engines_counts() {
    let (mut b, n) = in_state(RTR);
    b.set_state(n, ERR);
    assert_eq!(b.refused(modify(n, RTS, TO_RTS)), (BAD_TRANSITION, 0));
    let a = b.ok(command(op::QUERY_QP).number(n));
    assert_eq!(a.get(m::STATE), ERR.into());
    b.ok(modify(n, RESET, 0));
    b.bring(n, RTS);
}

/// The Q_Key of a UD QP is what its packets are told by, in place of a peer; its MTU is the port's.
#[test]
fn a_datagram_queue_pair_knows_a_key_and_no_peer() {
    let (mut b, n) = in_state_of(qp_type::UD, RTS);
    let row = |b: &Bench, table| b.fake.rows[&(table, n as u32)];
    let recv = row(&b, id::QP_RECV);
    let key = cmd::QKEY.get(&modify(n, 0, 0).0);
    assert_eq!((qp_recv::SIP_LOW.get(&recv), qp_recv::SIP_HIGH.get(&recv)), (key, 0));
    assert_eq!((qp_recv::TYPE.get(&recv), qp_recv::MTU.get(&recv)), (qp_type::UD.into(), 5));
    assert_eq!(qp_send::MTU.get(&row(&b, id::QP_SEND)), 5);
    assert!(!b.fake.rows.contains_key(&(id::QP_ADDRESS, n as u32)));
    b.ok(modify(n, RTS, attr::QKEY).with(cmd::QKEY, 77));
    assert_eq!(b.commits(), [(id::QP_RECV, n as u32)]);
    assert_eq!(qp_recv::SIP_LOW.get(&row(&b, id::QP_RECV)), 77);
    let a = b.ok(command(op::QUERY_QP).number(n));
    assert_eq!(a.get(cmd::QKEY), 77);
    // A port of less.
    let mut b = Bench::new();
    b.fake.port = 1 | 1500 << 16;
    let n = b.qp_of(qp_type::UD);
    b.ok(modify(n, INIT, PKEY_INDEX | PORT | attr::QKEY));
    assert_eq!(qp_recv::MTU.get(&b.fake.rows[&(id::QP_RECV, n as u32)]), 3);
}

/// A QP that fails between the reads of its rows.
#[test]
fn a_query_shows_psns_and_the_state_that_goes_with_them() {
    for fetches in 1..=4 {
        let (mut b, n) = in_state(RTS);
        let row = |field: abi::Field, value: u64| {
            let mut bytes = [0; 64];
            field.set(&mut bytes, value);
            bytes
        };
        b.fake.rows.insert((id::QP_SEND, n as u32), row(qp_send::PSN, 100));
        b.fake.change = Some((fetches, (id::QP_STATE, n as u32), row(qp_state_row::STATE, ERR.into())));
        let a = b.ok(command(op::QUERY_QP).number(n));
        let want = if fetches < 4 { ERR } else { RTS };
        assert_eq!((a.get(m::STATE), a.get(m::SQ_PSN)), (want.into(), 100), "failed behind {fetches} reads");
    }
}

#[test]
fn every_field_is_checked() {
    let at_rtr: &[(abi::Field, u64, u8)] = &[
        (m::PATH_MTU, 0, BAD_FIELD),
        (m::PATH_MTU, 6, BAD_FIELD),
        (m::DEST_QPN, 0, BAD_FIELD),
        (m::DEST_QPN, 1, BAD_FIELD),
        (m::DEST_QPN, 0xff_ffff, BAD_FIELD),
        (m::MAX_DEST_READS, 17, BAD_FIELD),
        (m::GID, 1, NO_OBJECT),
        (m::GID, 16, NO_OBJECT),
        (m::GID, 255, NO_OBJECT),
        (m::TRAFFIC_CLASS, 3, BAD_FIELD),
        (m::HOP_LIMIT, 0, BAD_FIELD),
        (m::DMAC, 0, BAD_FIELD),
        (m::DMAC, 0xffff_ffff_ffff, BAD_FIELD),
        (m::DMAC, 0x01, BAD_FIELD),
        (m::DIP_LOW, 0xffff_ffff_0000_0000, BAD_FIELD),
        (m::DIP_LOW, 224, BAD_FIELD),
        (m::DIP_LOW, 255, BAD_FIELD),
    ];
    let (mut b, n) = in_state(INIT);
    let before = snapshot(&mut b, n);
    for (field, value, result) in at_rtr {
        let got = b.refused(modify(n, RTR, TO_RTR).with(*field, *value));
        assert_eq!(got, (*result, field.lsb as u64), "{} = {value}", field.name);
    }
    let six = modify(n, RTR, TO_RTR).with(m::GID, 3);
    for (low, high) in [(0, 0), (0x01ff, 1)] {
        let c = six.with(m::DIP_LOW, low).with(m::DIP_HIGH, high);
        assert_eq!(b.refused(c), (BAD_FIELD, m::DIP_LOW.lsb as u64));
    }
    for port in [4175, 1500, 0] {
        b.fake.port = 1 | port << 16;
        assert_eq!(b.refused(modify(n, RTR, TO_RTR)), (BAD_FIELD, m::PATH_MTU.lsb as u64));
    }
    assert_eq!(snapshot(&mut b, n), before);
    b.fake.port = 1 | 1500 << 16;
    b.ok(modify(n, RTR, TO_RTR).with(m::PATH_MTU, 3));
    let got = b.refused(modify(n, RTS, TO_RTS).with(m::MAX_READS, 17));
    assert_eq!(got, (BAD_FIELD, m::MAX_READS.lsb as u64));

    let (mut b, n) = in_state(RESET);
    for (field, value) in [(m::PKEY_INDEX, 1), (m::PORT, 0), (m::PORT, 2)] {
        let got = b.refused(modify(n, INIT, TO_INIT).with(field, value));
        assert_eq!(got, (BAD_FIELD, field.lsb as u64));
    }
}

#[test]
fn the_raw_queue_pair_needs_a_port_only() {
    let mut b = Bench::new();
    b.qp();
    let raw = create_qp().with(create_qp::TYPE, qp_type::RAW.into());
    let n = b.make(raw);
    assert_eq!(n, 0);
    assert_eq!(b.refused(raw), (NO_ROOM, 0));
    assert_eq!(b.refused(modify(n, INIT, TO_INIT)), (FORBIDDEN_ATTRIBUTE, 3));
    assert_eq!(b.refused(modify(n, INIT, 0)), (MISSING_ATTRIBUTE, 5));
    b.ok(modify(n, INIT, PORT));
    assert_eq!(b.refused(modify(n, RTR, TO_RTR)), (FORBIDDEN_ATTRIBUTE, 7));
    b.ok(modify(n, RTR, 0));
    b.ok(modify(n, RTS, 0));
    b.ok(command(op::DESTROY_QP).with(head::NUMBER, 0));
    assert_eq!(b.make(raw), 0);
    b.ok(command(op::DESTROY_QP).with(head::NUMBER, 0));
    for _ in 3..256 {
        assert_ne!(b.make(create_qp()), 0);
    }
    assert_eq!(b.refused(create_qp()), (NO_ROOM, 0));
}
