//! Shared receive queues.

mod kit;
use abi::{
    cmd::{create_qp, create_srq, head, kind, list_owned, modify_srq, op, query_qp, query_srq, result::*},
    queue::event,
    table::{NOBODY, id, qp_recv, qp_recv_read, qp_state::*, qp_type, srq},
};
use kit::*;

fn create() -> Command {
    command(op::CREATE_SRQ).with(create_srq::LOG2, 3).with(create_srq::SGES, 1).with(create_srq::BASE, 0x4_4440_0040)
}

fn sharing(n: u64) -> Command {
    create_qp().with(create_qp::RQ_SGES, 1).with(create_qp::SHARED, 1).with(create_qp::SRQN, n)
}

fn destroy(n: u64) -> Command {
    command(op::DESTROY_SRQ).number(n)
}

/// A shared queue and a QP of it.
fn both(b: &mut Bench) -> (u64, u64) {
    b.qp();
    let n = b.make(create());
    (n, b.make(sharing(n)))
}

fn row(b: &Bench, n: u64) -> Bytes {
    b.fake.rows[&(id::QP_RECV, n as u32)]
}

#[test]
fn a_shared_queue_is_a_receive_queue_without_a_queue_pair() {
    let mut b = Bench::new();
    b.qp();
    let n = b.make(create());
    assert_eq!(b.commits(), [(id::QP_RECV, n as u32), (id::QP_STATE, n as u32)]);
    let mut whole = [0; 64];
    for (field, value) in [
        (qp_recv::LOAD, 1),
        (qp_recv::LOG2_BLOCKS, 3),
        (qp_recv::ONE_SGE, 1),
        (qp_recv::OWNER, 1),
        (qp_recv::BASE, 0x4_4440_0040),
        (qp_recv::PKEY, 0xffff),
    ] {
        field.set(&mut whole, value);
    }
    assert_eq!(row(&b, n), whole);
    assert_eq!(b.state(n), INIT);
    // Its number is no QP's, and a QP's is none of its kind.
    let qp = b.make(create_qp());
    assert_ne!(qp, n);
    for opcode in [op::MODIFY_QP, op::QUERY_QP, op::DESTROY_QP] {
        assert_eq!(b.refused(command(opcode).number(n)), (NO_OBJECT, head::NUMBER.lsb as u64));
    }
    for opcode in [op::MODIFY_SRQ, op::QUERY_SRQ, op::DESTROY_SRQ] {
        assert_eq!(b.refused(command(opcode).number(qp)), (NO_OBJECT, head::NUMBER.lsb as u64));
        assert_eq!(b.refused(command(opcode).number(n).owner(2)), (NOT_OWNER, head::NUMBER.lsb as u64));
    }
    b.ok(destroy(n));
    assert_eq!(b.state(n), RESET);
    assert_eq!(qp_recv::OWNER.get(&row(&b, n)), NOBODY);
    assert_eq!(b.fake.acts.iter().filter(|a| **a == Act::Drain).count(), 2);
    // Nothing is loaded before all that is under way has passed.
    let drained = b.fake.acts.iter().position(|a| *a == Act::Drain).unwrap();
    let loads = |a: &Act| matches!(a, Act::Commit(id::QP_RECV | id::QP_SEND, _, row) if qp_recv::LOAD.get(row) == 1);
    assert!(!b.fake.acts[..drained].iter().any(loads) && b.fake.acts[drained..].iter().any(loads));
    assert_eq!(b.refused(destroy(n)), (NO_OBJECT, head::NUMBER.lsb as u64));
}

#[test]
fn a_queue_pair_that_shares_has_no_queue_of_its_own() {
    let mut b = Bench::new();
    let (n, q) = both(&mut b);
    b.bring(q, RTR);
    let row = row(&b, q);
    assert_eq!((qp_recv::SHARED.get(&row), qp_recv::QUEUE.get(&row), qp_recv::ONE_SGE.get(&row)), (1, n, 1));
    assert_eq!((qp_recv::OWNER.get(&row), qp_recv::BASE.get(&row)), (NOBODY, 0), "nobody rings it");
    assert_eq!(b.refused(destroy(n)), (IN_USE, head::NUMBER.lsb as u64));
    b.ok(command(op::DESTROY_QP).number(q));
    b.ok(destroy(n));
}

#[test]
fn what_does_not_share_is_named() {
    let mut b = Bench::new();
    let (n, q) = both(&mut b);
    let pd = b.make(command(op::CREATE_PD));
    for (c, verdict, field) in [
        (create().with(create_srq::SGES, 4), UNSUPPORTED, create_srq::SGES),
        (create().with(create_srq::SGES, 0), UNSUPPORTED, create_srq::SGES),
        (create().with(create_srq::LOG2, 14), BAD_FIELD, create_srq::LOG2),
        (create().with(create_srq::BASE, 32), BAD_FIELD, create_srq::BASE),
        (create().with(create_srq::PD, 9), NO_OBJECT, create_srq::PD),
        (sharing(n).with(create_qp::TYPE, qp_type::UC.into()), UNSUPPORTED, create_qp::SHARED),
        (sharing(n).with(create_qp::TYPE, qp_type::RAW.into()), UNSUPPORTED, create_qp::SHARED),
        (sharing(n).with(create_qp::RQ_SGES, 4), BAD_FIELD, create_qp::RQ_SGES),
        (sharing(n).with(create_qp::PD, pd), BAD_FIELD, create_qp::SRQN),
        (sharing(q), NO_OBJECT, create_qp::SRQN),
        (sharing(0xff_ffff), NO_OBJECT, create_qp::SRQN),
        (command(op::MODIFY_SRQ).number(n).with(modify_srq::LIMIT, 33), BAD_FIELD, modify_srq::LIMIT),
    ] {
        assert_eq!(b.refused(c), (verdict, field.lsb as u64), "{}", field.name);
    }
    b.ok(sharing(n).with(create_qp::TYPE, qp_type::UD.into()));
}

#[test]
fn a_limit_is_set_and_read() {
    let mut b = Bench::new();
    let (n, _) = both(&mut b);
    b.ok(command(op::MODIFY_SRQ).number(n).with(modify_srq::LIMIT, 32));
    assert_eq!(b.commits(), [(id::SRQ, n as u32)]);
    srq::POSTED.set(b.fake.rows.get_mut(&(id::SRQ, n as u32)).unwrap(), 17);
    let a = b.ok(command(op::QUERY_SRQ).number(n));
    assert_eq!((a.get(query_srq::LIMIT), a.get(query_srq::POSTED)), (32, 17));
}

#[test]
fn the_last_receive_is_told_of_once_behind_the_drain() {
    let mut b = Bench::new();
    let (_, q) = both(&mut b);
    let told = |b: &Bench| {
        let at = b.fake.acts.iter().position(|a| matches!(a, Act::Event { .. }))?;
        assert!(b.fake.acts[..at].contains(&Act::Drain), "ahead of completions");
        Some(b.fake.acts[at].clone())
    };
    let last = Act::Event { eqn: 0, kind: event::LAST_WQE, number: q as u32, value: 0 };
    for _ in 0..2 {
        b.bring(q, RTS);
        // The engines have moved it, or the driver does.
        b.set_state(q, ERR);
        b.ok(modify(q, ERR, 0));
        assert_eq!(told(&b), Some(last.clone()));
        b.ok(modify(q, ERR, 0));
        assert_eq!(told(&b), None, "once");
        let row = b.fake.rows.get_mut(&(id::QP_RECV, q as u32)).unwrap();
        *row = [0; 64];
        qp_recv_read::TAKEN.set(row, 1);
        qp_recv_read::TAKEN_INDEX.set(row, 0xfedc);
        let a = b.ok(command(op::QUERY_QP).number(q));
        assert_eq!((a.get(query_qp::TAKEN), a.get(query_qp::TAKEN_INDEX)), (1, 0xfedc));
        b.ok(modify(q, RESET, 0));
    }
    // One with a queue of its own has nothing to tell.
    let own = b.make(create_qp());
    b.bring(own, RTS);
    b.ok(modify(own, ERR, 0));
    assert_eq!(told(&b), None);
}

#[test]
fn they_are_listed_and_reclaimed() {
    let mut b = Bench::new();
    let (n, q) = both(&mut b);
    let list = |which: u8| command(op::LIST_OWNED).with(list_owned::KIND, which.into()).with(list_owned::FROM, 3);
    let a = b.ok(list(kind::SRQ));
    assert_eq!((a.get(abi::cmd::answer::NUMBER), a.get(abi::cmd::answer::VALUE)), (n, 1));
    let a = b.ok(list(kind::QP));
    assert_eq!((a.get(abi::cmd::answer::NUMBER), a.get(abi::cmd::answer::VALUE)), (q, 1));
    b.ok(command(op::RECLAIM));
    assert_eq!(b.ok(list(kind::SRQ)).get(abi::cmd::answer::VALUE), 0);
    assert_eq!(b.refused(destroy(n)), (NO_OBJECT, head::NUMBER.lsb as u64));
}
