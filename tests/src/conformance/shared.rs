//! A responder that takes its receives from a shared queue: what holds for one with a queue of its own, and what is different.

use super::responder;
use super::talk::{RECEIVE, Talk, Terms, acked, data};
use super::{Row, row};
use abi::queue::event;
use abi::status::{counter, wc};
use driver::Completion;
use driver::qp::SendOptions;
use fabric::peer::{Packet, Request, syndrome};

const SHARED: Terms = Terms { shared: true, ..Terms::USUAL };

macro_rules! shared {
    ($rule:literal, $script:ident, $text:literal) => {
        Row { terms: SHARED, ..row!($rule, $script, $text) }
    };
}

pub const ROWS: &[Row] = &[
    shared!(
        "9.7.5, 10.2.9",
        an_empty_shared_queue_is_rnr,
        "No receive in the shared queue: RNR NAK; a SEND, and a WRITE with immediate at its last packet, go on when one is posted"
    ),
    shared!(
        "10.2.9",
        messages_take_shared_receives,
        "SENDs of any length and WRITEs with immediate take and complete the receives of a shared queue; duplicates take none"
    ),
    shared!(
        "10.2.9",
        messages_of_two_take_in_the_order_in_which_they_begin,
        "Messages of two QPs take the receives of their shared queue in the order in which they begin, keep them, and complete in the order in which they end, as receives of their QP"
    ),
    shared!(
        "10.2.9, 9.9.3",
        an_error_ends_one_of_two,
        "A message longer than its receive ends its QP alone: LOC_LEN of that receive, LAST_WQE of that QP, the other goes on with what is in the queue"
    ),
    shared!(
        "10.2.9",
        a_receive_of_a_message_under_way_is_flushed,
        "A QP that goes to ERR in a message flushes the receive that this has, and no other of the shared queue"
    ),
    shared!(
        "10.2.9, 11.2.3",
        the_limit_is_told_of,
        "SRQ_LIMIT comes once, with the message that leaves fewer receives than the limit, and disarms"
    ),
];

fn an_empty_shared_queue_is_rnr(t: &mut Talk) {
    responder::without_a_receive_rnr(t);
    t.apart(t.terms, responder::a_write_with_immediate_without_a_receive);
}

fn messages_take_shared_receives(t: &mut Talk) {
    responder::a_send_fills_its_receive(t);
    t.apart(t.terms, responder::a_write_with_immediate_takes_a_receive);
    t.apart(t.terms, responder::a_duplicate_is_acknowledged_and_not_executed);
}

type Other = driver::Qp<driver::qp::Rts>;

/// Another QP of the same queue, with the same peer.
fn other(t: &Talk) -> Other {
    let qp = t.srq.as_ref().unwrap().create_qp(&t.cq, &t.cq, 16).unwrap();
    let qp = qp.init(t.terms.access).unwrap().rtr(&t.path()).unwrap();
    qp.rts(&SendOptions { psn: t.terms.psn, ..t.terms.send }).unwrap()
}

fn to(qp: &Other, p: &Packet) -> Packet {
    Packet { qpn: qp.qpn(), ..p.clone() }
}

/// The next completion is of receive `n`, by this QP.
fn completes(t: &mut Talk, n: u64, qpn: u32) -> Completion {
    let c = t.completion("a receive");
    assert_eq!((c.wr_id, c.qpn), (RECEIVE + n, qpn), "{c:?}");
    c
}

fn messages_of_two_take_in_the_order_in_which_they_begin(t: &mut Talk) {
    let qp = other(t);
    let own = t.qp.qpn();
    let at: Vec<usize> = (0..4).map(|_| t.receive(700)).collect();
    let send = t.cut(0, Request::send(data(600)));
    t.peer(send[0].clone());
    t.peer(to(&qp, &send[0]));
    t.peer(send[1].clone());
    t.peer(to(&qp, &send[1]));
    t.peer(to(&qp, &send[2]));
    t.nic(acked(2, 1));
    assert_eq!(completes(t, 1, qp.qpn()).status, Ok(()), "the second one ends first");
    // The next message of the one begins while the first one of the other is still under way.
    let next = t.only(3, Request::send(data(90)));
    t.peer(to(&qp, &next));
    t.nic(acked(3, 2));
    assert_eq!(completes(t, 2, qp.qpn()).len, 90);
    t.peer(send[2].clone());
    t.nic(acked(2, 1));
    assert_eq!(completes(t, 0, own).len, 600);
    t.peer(next);
    t.nic(acked(3, 2));
    assert_eq!(completes(t, 3, own).len, 90);
    t.lands(at[0], 600);
    t.lands(at[1], 600);
    t.lands(at[2], 90);
    t.lands(at[3], 90);
    t.check_memory();
}

fn an_error_ends_one_of_two(t: &mut Talk) {
    let qp = other(t);
    let at = [t.receive(550), t.receive(700)];
    let send = t.cut(0, Request::send(data(600)));
    t.peer(to(&qp, &send[0]));
    t.peer(send[0].clone());
    t.peer(to(&qp, &send[1]));
    t.peer(send[1].clone());
    t.peer(to(&qp, &send[2]));
    t.refuses(2, syndrome::INVALID_REQUEST);
    let c = completes(t, 0, qp.qpn());
    assert_eq!(c.status.unwrap_err().status, wc::LOC_LEN);
    let last = std::iter::from_fn(|| t.solo.host.eq.poll()).filter(|e| e.kind == event::LAST_WQE).collect::<Vec<_>>();
    assert!(last.len() == 1 && last[0].number == qp.qpn(), "{last:?}");
    t.peer(send[2].clone());
    t.nic(acked(2, 1));
    assert_eq!(completes(t, 1, t.qp.qpn()).status, Ok(()));
    // What came before the packet that did not fit is there.
    t.lands(at[0], 512);
    t.lands(at[1], 600);
    t.check_memory();
}

fn a_receive_of_a_message_under_way_is_flushed(t: &mut Talk) {
    let qp = other(t);
    let at: Vec<usize> = (0..3).map(|_| t.receive(700)).collect();
    let send = t.cut(0, Request::send(data(600)));
    t.peer(to(&qp, &send[0]));
    t.peer(to(&qp, &send[1]));
    t.pass(400);
    qp.fail().unwrap();
    let c = completes(t, 0, qp.qpn());
    assert_eq!(c.status.unwrap_err().status, wc::WR_FLUSH);
    // The rest of it comes to nothing.
    t.peer(to(&qp, &send[2]));
    t.counts(counter::RX_QP_STATE, 1);
    for n in 1..3 {
        t.peer(t.only(n - 1, Request::send(data(40))));
        t.nic(acked(n - 1, n));
        assert_eq!(completes(t, n.into(), t.qp.qpn()).status, Ok(()));
        t.lands(at[n as usize], 40);
    }
    t.lands(at[0], 512);
    t.check_memory();
}

fn the_limit_is_told_of(t: &mut Talk) {
    let srq = t.srq.clone().unwrap();
    for _ in 0..5 {
        t.receive(50);
    }
    srq.arm(4).unwrap();
    for n in 0..5 {
        t.peer(t.only(n, Request::send(vec![])));
        t.nic(acked(n, n + 1));
        t.receives(0, None);
        t.pass(400);
        let told = std::iter::from_fn(|| t.solo.host.eq.poll()).filter(|e| e.kind == event::SRQ_LIMIT);
        let told: Vec<u32> = told.map(|e| e.number).collect();
        assert_eq!(told, if n == 1 { vec![srq.number()] } else { vec![] }, "with message {n}");
    }
}
