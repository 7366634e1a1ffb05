//! Requests that a responder refuses, and in which order it looks at what is wrong (IBTA 9.7.4).

use super::talk::{Case, Talk, Terms, acked, data};
use super::{Row, row};
use abi::queue::event;
use abi::status::{cause, counter, wc};
use driver::Access;
use fabric::peer::{Packet, Request, Reth, ack, op, syndrome};
use syndrome::{INVALID_REQUEST, REMOTE_ACCESS, REMOTE_OPERATION, SEQUENCE};

pub const ROWS: &[Row] = &[
    row!(
        "9.7.4",
        opcodes_follow_each_other,
        "A packet out of the sequence of opcodes: NAK invalid request, and the QP ends with an event"
    ),
    row!(
        "9.7.4",
        a_psn_is_judged_before_all_else,
        "The PSN is judged first: what is out of sequence and wrong besides is only out of sequence, and a duplicate of any content is a duplicate"
    ),
    row!(
        "9.7.4",
        sequence_access_resource_length_key,
        "Then opcode sequence, access flags, receive or READ resource, length, key, in this order"
    ),
    row!(
        "9.7.4, C5-8",
        lengths_that_break_the_rules,
        "FIRST and MIDDLE fill the MTU without pad, LAST has 1 byte to the MTU, ONLY at most the MTU, their sum is the DMA length, pad fills to 4 bytes; else NAK invalid request"
    ),
    row!(
        "9.2",
        a_forged_pad_on_a_runt,
        "A pad count beyond the payload: the packet is dropped or invalid, and nothing is written"
    ),
    row!(
        "9.7.4",
        keys_that_do_not_open,
        "An unknown or stale key, another protection domain, a range beyond the region on either side or beyond 2^64, a region without the right: NAK remote access, nothing is written, the QP ends"
    ),
    row!(
        "9.7.4",
        a_write_that_fails_ends_with_an_event,
        "An error of a request without a receive raises the affiliated event (C9-222.1.1)"
    ),
    row!(
        "9.7.4, 9.9",
        a_write_with_immediate_that_fails_ends_the_receive_that_it_has_taken,
        "A WRITE with immediate data whose key does not open, or not any more: NAK remote access, and the receive that it has taken, of a queue of its own or a shared one, ends with a local access error"
    ),
    Row {
        terms: Terms { access: Access::LOCAL_WRITE, ..Terms::USUAL },
        ..row!(
            "9.7.4",
            what_the_qp_does_not_allow,
            "An operation that the QP's access flags exclude: NAK invalid request"
        )
    },
    row!(
        "9.7.4",
        a_send_longer_than_its_receive,
        "A SEND longer than its receive: NAK invalid request, local length error; nothing beyond the receive is written"
    ),
    row!(
        "9.9",
        a_receive_that_names_bad_memory,
        "A receive whose key does not open: NAK remote operation, local protection error"
    ),
    row!(
        "9.7.5",
        after_an_error_nothing_is_heard,
        "After a NAK that ends the QP nothing is answered, receives are flushed"
    ),
    row!(
        "9.7.4",
        nothing_overtakes_the_nak_of_a_read,
        "What is asked behind a READ that is refused is not answered, neither by an ACK nor by a NAK or RNR NAK of its own, nor by a READ response: the NAK of the READ is the last that is said"
    ),
    row!("9.7.7.1", a_refused_message_is_not_counted, "The MSN of a NAK does not count the message that it refuses"),
    row!(
        "9.7.4, C9-88",
        a_key_of_nothing_is_not_looked_at,
        "The key of a WRITE or READ of zero length is not looked at, with immediate data or not; that of one byte is"
    ),
];

/// The NAK for what the host is told of as this cause.
fn nak_of(cause: u8) -> u8 {
    match cause {
        cause::INVALID_REQUEST | cause::QP_ACCESS | cause::TOO_MANY_READS => INVALID_REQUEST,
        _ => REMOTE_ACCESS,
    }
}

/// On a connection of its own: `sound` and then `wrong`, which is refused at its PSN and ends the QP for this cause.
fn ends_with(t: &mut Talk, what: &str, cause: u8, sound: &[Packet], wrong: Packet) {
    let _case = Case(what);
    t.apart(t.terms, |t| {
        let psn = sound.len() as u32;
        t.peer_all(sound.iter().cloned().map(|p| Packet { ack_req: false, ..p }));
        let (wrong_read, syndrome) = (wrong.opcode == op::READ_REQUEST, nak_of(cause));
        t.peer(Packet { psn, ..wrong });
        if wrong_read && syndrome == REMOTE_ACCESS {
            t.refuses_read(psn, syndrome);
        } else {
            t.refuses(psn, syndrome);
        }
        t.ends_by(cause);
    });
}

fn opcodes_follow_each_other(t: &mut Talk) {
    // To memory of the outer connection, which stays.
    let (w, s) = (t.cut(0, t.write(0, 600)), t.cut(0, Request::send(data(600))));
    t.lands(0, 512);
    let wrong = [
        ("WRITE MIDDLE first", 0, &w[1]),
        ("WRITE LAST first", 0, &w[2]),
        ("SEND MIDDLE first", 0, &s[1]),
        ("SEND LAST first", 0, &s[2]),
        ("WRITE FIRST in a WRITE", 1, &w[0]),
        ("SEND FIRST in a WRITE", 1, &s[0]),
        ("SEND MIDDLE in a WRITE", 1, &s[1]),
        ("SEND LAST in a WRITE", 2, &s[2]),
        ("WRITE MIDDLE behind a whole WRITE", 3, &w[1]),
    ];
    for (what, sound, packet) in wrong {
        ends_with(t, what, cause::INVALID_REQUEST, &w[..sound], packet.clone());
    }
    t.lands(0, 600);
    let only = t.only(0, t.write(0, 10));
    ends_with(t, "WRITE ONLY in a WRITE", cause::INVALID_REQUEST, &w[..1], only);
    let read = t.only(0, t.read(0, 10));
    ends_with(t, "READ in a WRITE", cause::INVALID_REQUEST, &w[..1], read);
    // Within a SEND the receive fails with it.
    t.apart(t.terms, |t| {
        let at = t.receive(700);
        t.peer(t.cut(0, Request::send(data(600)))[0].clone());
        t.lands(at, 256);
        t.peer(t.only(1, t.write(0, 10)));
        t.refuses(1, INVALID_REQUEST);
        t.receive_fails_by(wc::REM_INV_REQ, cause::INVALID_REQUEST);
    });
}

fn a_psn_is_judged_before_all_else(t: &mut Talk) {
    let middle = t.cut(0, t.write(0, 600))[1].clone();
    let bad_key = Packet { reth: Some(Reth { va: 1, rkey: 2, len: 10 }), ..t.only(0, t.write(0, 10)) };
    t.peer(Packet { psn: 1, ..middle.clone() });
    t.nic(ack(0, SEQUENCE, 0));
    t.peer(Packet { psn: 9, ..bad_key.clone() });
    t.counts(counter::RX_OUT_OF_SEQUENCE, 2);
    t.silence();
    for duplicate in [middle, bad_key] {
        t.peer(Packet { psn: 0xff_ffff, ..duplicate });
        t.nic(acked(0xff_ffff, 0));
        t.counts(counter::RX_DUPLICATE, 1);
    }
    t.peer(t.only(0, t.write(0, 10)));
    t.nic(acked(0, 1));
    t.lands(0, 10);
}

fn sequence_access_resource_length_key(t: &mut Talk) {
    let bad_key = Some(Reth { va: 1, rkey: 2, len: 10 });
    let bad_length = Some(Reth { va: 1, rkey: 2, len: 11 });
    // Length before key: both are wrong.
    let write = t.only(0, t.write(0, 10));
    ends_with(t, "length before key", cause::INVALID_REQUEST, &[], Packet { reth: bad_length, ..write.clone() });
    ends_with(t, "key alone", cause::KEY_INVALID, &[], Packet { reth: bad_key, ..write });
    // Opcode sequence before the receive, and before the key.
    t.apart(t.terms, |t| {
        t.peer(Packet { opcode: op::SEND_MIDDLE, psn: 0, ack_req: true, payload: data(256), ..Packet::default() });
        t.refuses(0, INVALID_REQUEST);
        t.ends_by(cause::INVALID_REQUEST);
    });
    let write = t.only(0, t.write(0, 10));
    t.apart(t.terms, |t| {
        let at = t.receive(600);
        t.peer(t.cut(0, Request::send(data(600)))[0].clone());
        t.lands(at, 256);
        t.peer(Packet { psn: 1, reth: bad_key, ..write });
        t.refuses(1, INVALID_REQUEST);
        t.receive_fails_by(wc::REM_INV_REQ, cause::INVALID_REQUEST);
    });
    // READ resources before the key.
    let read = Packet { reth: bad_key, ..t.only(0, t.read(0, 10)) };
    t.apart(Terms { max_dest_reads: 0, ..t.terms }, |t| {
        t.peer(read);
        t.refuses(0, INVALID_REQUEST);
        t.ends_by(cause::TOO_MANY_READS);
    });
    // Receive before length and key; it is RNR, which ends nothing.
    let imm = Packet { imm: Some([0; 4]), opcode: op::WRITE_ONLY_IMM, reth: bad_length, ..t.only(0, t.write(0, 10)) };
    t.apart(t.terms, |t| {
        t.peer(imm.clone());
        t.nic(ack(0, syndrome::RNR | t.terms.rnr_timer, 0));
        t.counts(counter::RX_RNR, 1);
    });
    // Access before receive, and before READ resources.
    t.apart(Terms { access: Access::LOCAL_WRITE, max_dest_reads: 0, ..t.terms }, |t| {
        t.peer(imm);
        t.refuses(0, INVALID_REQUEST);
        t.ends_by(cause::QP_ACCESS);
    });
}

fn lengths_that_break_the_rules(t: &mut Talk) {
    let w = t.cut(0, t.write(0, 600));
    t.lands(0, 512);
    let payload = |p: &Packet, len: usize| Packet { payload: data(len), ..p.clone() };
    let len = |p: &Packet, len: u32| Packet { reth: p.reth.map(|r| Reth { len, ..r }), ..p.clone() };
    let only = t.only(0, t.write(0, 200));
    let cases = [
        ("FIRST below the MTU", 0, payload(&w[0], 252)),
        ("FIRST with pad", 0, payload(&w[0], 255)),
        ("FIRST over the MTU", 0, payload(&w[0], 260)),
        ("FIRST without payload", 0, payload(&w[0], 0)),
        ("FIRST of a message of one packet", 0, len(&w[0], 256)),
        ("FIRST longer than its message", 0, len(&w[0], 100)),
        ("MIDDLE below the MTU", 1, payload(&w[1], 252)),
        ("MIDDLE with pad", 1, payload(&w[1], 253)),
        ("MIDDLE over the MTU", 1, payload(&w[1], 260)),
        ("LAST without payload", 2, payload(&w[2], 0)),
        ("LAST below the DMA length", 2, payload(&w[2], 87)),
        ("LAST beyond the DMA length", 2, payload(&w[2], 89)),
        ("LAST too soon", 1, Packet { opcode: op::WRITE_LAST, ..w[1].clone() }),
        ("MIDDLE that ends the message", 2, payload(&w[1], 88)),
        ("ONLY over the MTU", 0, len(&payload(&only, 257), 257)),
        ("ONLY below its DMA length", 0, len(&only, 201)),
        ("ONLY beyond its DMA length", 0, len(&only, 199)),
        ("a DMA length of 0 with payload", 0, len(&only, 0)),
        ("a DMA length over 2^31", 0, len(&w[0], 0x8000_0001)),
        ("a pad too few", 0, Packet { pad: Some(0), ..len(&payload(&only, 199), 199) }),
        ("a pad too many", 0, Packet { pad: Some(1), ..only.clone() }),
    ];
    for (what, sound, wrong) in cases {
        ends_with(t, what, cause::INVALID_REQUEST, &w[..sound], wrong);
    }
    let read = t.only(0, t.read(0, 10));
    ends_with(t, "a READ over 2^31", cause::INVALID_REQUEST, &[], len(&read, 0x8000_0001));
}

fn a_forged_pad_on_a_runt(t: &mut Talk) {
    // A SEND of nothing whose pad says that 1 to 3 bytes of it are pad; a WRITE of one byte that is all pad and more.
    for pad in 1..4 {
        t.apart(t.terms, |t| {
            t.receive(100);
            t.peer(Packet { pad: Some(pad), ..t.only(0, Request::send(Vec::new())) });
            t.counts(counter::RX_MALFORMED, 1);
            t.silence();
            t.peer(Packet { pad: Some(pad), ..t.only(0, t.write(0, 0)) });
            t.counts(counter::RX_MALFORMED, 1);
            t.silence();
            t.peer(t.only(0, Request::send(Vec::new())));
            t.nic(acked(0, 1));
            t.receives(0, None);
        });
    }
}

fn keys_that_do_not_open(t: &mut Talk) {
    let pd = &t.solo.host.pd;
    let all = Access::all();
    let [write_only, read_only] =
        [Access::LOCAL_WRITE | Access::REMOTE_WRITE, Access::REMOTE_READ].map(|a| pd.alloc(5000, a).unwrap());
    let stale = pd.alloc(5000, all).unwrap();
    let (stale_va, stale_key) = (stale.addr(), stale.rkey());
    drop(stale);
    let foreign_pd = t.solo.host.device.create_pd().unwrap();
    let foreign = foreign_pd.alloc(5000, all).unwrap();
    let (va, key) = (t.memory.addr(), t.memory.rkey());
    let end = va + super::talk::LEN as u64;
    let cases = [
        ("another key byte", va, key ^ 1, true, true, cause::KEY_INVALID),
        ("no such key", va, 0x3ff00, true, true, cause::KEY_INVALID),
        ("beyond the keys", va, u32::MAX, true, true, cause::KEY_INVALID),
        ("a key whose region is gone", stale_va, stale_key, true, true, cause::KEY_INVALID),
        ("another protection domain", foreign.addr(), foreign.rkey(), true, true, cause::KEY_PD),
        ("before the region", va - 1, key, true, true, cause::KEY_BOUNDS),
        ("over the end of the region", end - 99, key, true, true, cause::KEY_BOUNDS),
        ("behind the region", end, key, true, true, cause::KEY_BOUNDS),
        ("beyond 2^64", u64::MAX - 98, key, true, true, cause::KEY_BOUNDS),
        ("up to 2^64", u64::MAX - 99, key, true, true, cause::KEY_BOUNDS),
        ("WRITE to what is read only", read_only.addr(), read_only.rkey(), true, false, cause::KEY_ACCESS),
        ("READ of what is write only", write_only.addr(), write_only.rkey(), false, true, cause::KEY_ACCESS),
    ];
    for (what, va, key, write, read, why) in cases {
        if write {
            let packet = t.only(0, Request::write(va, key, data(100)));
            ends_with(t, what, why, &[], packet);
            // Of a longer message nothing is written either: the key must cover all of it.
            let first = t.cut(0, Request::write(va, key, data(300))).remove(0);
            ends_with(t, what, why, &[], first);
        }
        if read {
            let packet = t.only(0, Request::read(va, key, 100));
            ends_with(t, what, why, &[], packet);
        }
    }
    let wraps = Request::write(0xffff_ffff_ffff_fc00, key, data(256));
    let first = Packet { reth: Some(Reth { va: 0xffff_ffff_ffff_fc00, rkey: key, len: 0x400 }), ..t.only(0, wraps) };
    ends_with(t, "0xfffffffffffffc00 + 0x400", cause::KEY_BOUNDS, &[], Packet { opcode: op::WRITE_FIRST, ..first });
    let read = t.only(0, Request::read(0xffff_ffff_ffff_fc00, key, 0x400));
    ends_with(t, "READ 0xfffffffffffffc00 + 0x400", cause::KEY_BOUNDS, &[], read);
    assert!([&write_only, &read_only, &foreign].iter().all(|mr| crate::bytes(mr).iter().all(|b| *b == 0)));
}

fn a_write_that_fails_ends_with_an_event(t: &mut Talk) {
    t.receive(100);
    t.peer(t.only(0, Request::write(1, 2, data(10))));
    t.refuses(0, REMOTE_ACCESS);
    t.ends_by(cause::KEY_INVALID);
    // The receive was not touched by it: it is flushed.
    t.receive_fails(wc::WR_FLUSH);
}

fn a_write_with_immediate_that_fails_ends_the_receive_that_it_has_taken(t: &mut Talk) {
    let ends = |t: &mut Talk, psn: u32, why: u8| {
        t.nic(ack(psn, REMOTE_ACCESS, 0));
        t.counts(counter::RX_REMOTE_ACCESS, 1);
        t.receive_fails_by(wc::LOC_ACCESS, why);
        // The completion tells of it: it has no event as well.
        let qpn = t.qp.qpn();
        let told = std::iter::from_fn(|| t.solo.host.eq.poll()).find(|e| e.kind == event::QP_ERROR && e.number == qpn);
        assert_eq!(told, None);
    };
    for shared in [false, true] {
        let terms = Terms { shared, ..t.terms };
        let (va, rkey) = (t.memory.addr(), t.memory.rkey());
        let bad = [(va, rkey ^ 1, cause::KEY_INVALID), (va - 1, rkey, cause::KEY_BOUNDS)];
        for (va, rkey, why) in bad {
            let _case = Case(&format!("shared {shared}, cause {why}"));
            t.apart(terms, |t| {
                t.receive(100);
                t.receive(100);
                t.peer(t.only(0, Request::write(va, rkey, data(10)).imm([7; 4])));
                ends(t, 0, why);
                // Nothing else was taken: it is flushed, or still there for others.
                if shared {
                    assert_eq!(t.srq.as_ref().unwrap().query().unwrap().posted, 1);
                } else {
                    t.receive_fails(wc::WR_FLUSH);
                }
            });
        }
        let _case = Case(&format!("shared {shared}, a key that dies under way"));
        t.apart(terms, |t| {
            let target = t.solo.host.pd.alloc(1000, Access::all()).unwrap();
            t.receive(100);
            let packets = t.cut(0, Request::write(target.addr(), target.rkey(), data(600)).imm([7; 4]));
            let (last, before) = packets.split_last().unwrap();
            t.peer_all(before.iter().cloned().map(|p| Packet { ack_req: false, ..p }));
            t.pass(1000);
            assert_eq!(crate::bytes(&target)[..512], data(600)[..512]);
            drop(target);
            t.peer(last.clone());
            ends(t, 2, cause::KEY_INVALID);
        });
    }
}

fn what_the_qp_does_not_allow(t: &mut Talk) {
    let (write, read) = (t.only(0, t.write(0, 10)), t.only(0, t.read(0, 10)));
    ends_with(t, "WRITE", cause::QP_ACCESS, &[], write);
    ends_with(t, "READ", cause::QP_ACCESS, &[], read);
    let nothing = t.only(0, t.write(0, 0));
    ends_with(t, "WRITE of nothing", cause::QP_ACCESS, &[], nothing);
    // A SEND needs no right.
    let at = t.receive(10);
    t.peer(t.only(0, Request::send(data(10))));
    t.nic(acked(0, 1));
    t.lands(at, 10);
    t.receives(10, None);
}

fn a_send_longer_than_its_receive(t: &mut Talk) {
    for (len, room) in [(1, 0), (100, 99), (256, 255), (257, 256), (600, 520), (600, 255)] {
        t.apart(t.terms, |t| {
            let at = t.receive(room);
            let packets = t.cut(0, Request::send(data(len)));
            let fitting = room / 256;
            for p in &packets[..=fitting] {
                t.peer(p.clone());
            }
            t.lands(at, fitting * 256);
            t.refuses(fitting as u32, INVALID_REQUEST);
            t.receive_fails(wc::LOC_LEN);
        });
    }
}

fn a_receive_that_names_bad_memory(t: &mut Talk) {
    let sge = driver::Sge { lkey: t.memory.lkey() ^ 1, ..t.memory.sge(0, 100) };
    t.qp.post_recv(5, &[sge]).unwrap();
    t.pass(200);
    t.peer(t.only(0, Request::send(data(10))));
    t.refuses(0, REMOTE_OPERATION);
    t.fails_by(5, wc::LOC_PROT, cause::KEY_INVALID);
}

fn after_an_error_nothing_is_heard(t: &mut Talk) {
    t.receive(10);
    t.receive(10);
    t.peer(Packet { psn: 0, ..t.cut(0, t.write(0, 600))[1].clone() });
    t.refuses(0, INVALID_REQUEST);
    let sound = [t.only(0, t.write(0, 10)), t.only(1, t.read(0, 10)), t.only(0, Request::send(vec![])), acked(0, 1)];
    t.counts(counter::RX_QP_STATE, sound.len() as u64);
    t.peer_all(sound);
    t.silence();
    t.ends_by(cause::INVALID_REQUEST);
    t.receive_fails(wc::WR_FLUSH);
    t.receive_fails(wc::WR_FLUSH);
}

fn nothing_overtakes_the_nak_of_a_read(t: &mut Talk) {
    let bad_read = || Request::read(1, 2, 10);
    let wrote: Vec<u8> = data(10).iter().map(|b| !b).collect();
    type Behind<'a> = &'a dyn Fn(&Talk) -> Packet;
    let cases: [(&str, Behind); 8] = [
        ("ACK", &|t| t.only(2, Request { data: wrote.clone(), ..t.write(100, 10) })),
        ("NAK remote access", &|t| t.only(2, Request::write(1, 2, data(10)))),
        ("NAK invalid request", &|t| t.cut(2, t.write(0, 600))[1].clone()),
        ("NAK sequence", &|t| t.only(3, t.write(0, 10))),
        ("RNR NAK", &|t| t.only(2, Request::send(data(10)))),
        ("NAK of a second READ", &|t| t.only(2, bad_read())),
        ("READ response", &|t| t.only(2, t.read(0, 600))),
        ("READ response of zero length", &|t| t.only(2, Request::read(1, 2, 0))),
    ];
    for (what, behind) in cases {
        // Close behind the READ, while it is answered, and when it has been.
        for gap in [0, 10, 20, 40, 80, 150, 300] {
            let _case = Case(&format!("{what}, {gap} cycles behind the READ"));
            t.apart(t.terms, |t| {
                t.peer(Packet { ack_req: false, ..t.only(0, t.write(0, 10)) });
                t.peer(t.only(1, bad_read()));
                t.pass(gap);
                t.peer(behind(t));
                t.refuses_read(1, REMOTE_ACCESS);
                t.silence();
                t.any_sequence();
                t.ends_by(cause::KEY_INVALID);
                t.lands(0, 10);
                if what == "ACK" {
                    // The key of a READ is looked at when it is answered: a WRITE close behind it may write.
                    t.may_land(100, &wrote);
                }
            });
        }
    }
}

fn a_refused_message_is_not_counted(t: &mut Talk) {
    // The key of a READ is looked at when it is answered: until then it was accepted.
    for (request, verdict) in
        [(Request::write(1, 2, data(10)), Some(counter::RX_REMOTE_ACCESS)), (Request::read(1, 2, 10), None)]
    {
        t.apart(t.terms, |t| {
            t.peer(t.only(0, t.write(0, 10)));
            t.nic(acked(0, 1));
            t.lands(0, 10);
            t.peer(t.only(1, request.clone()));
            t.nic(ack(1, REMOTE_ACCESS, 1));
            match verdict {
                Some(verdict) => t.counts(verdict, 1),
                None => t.uncounted(),
            }
            t.ends_by(cause::KEY_INVALID);
        });
    }
}

fn a_key_of_nothing_is_not_looked_at(t: &mut Talk) {
    let nowhere = |len: usize| Request::write(u64::MAX, 0xdead_beef, data(len));
    t.receive(10);
    t.peer(t.only(0, nowhere(0)));
    t.nic(acked(0, 1));
    t.peer(t.only(1, nowhere(0).imm([7; 4])));
    t.nic(acked(1, 2));
    t.receives(0, Some([7; 4]));
    t.peer(t.only(2, Request::read(u64::MAX, 0xdead_beef, 0)));
    t.nic_all(t.response(2, 3, 0, 0));
    t.peer(t.only(3, nowhere(1)));
    t.refuses(3, REMOTE_ACCESS);
    t.ends_by(cause::KEY_INVALID);
}
