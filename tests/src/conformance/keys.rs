//! Keys that a SEND invalidates (IBTA 9.4.1, 10.6.7).

use super::talk::{Talk, acked, data};
use super::{Row, row};
use abi::status::{cause, counter, wc};
use driver::{Access, Data, Flags, Operation};
use fabric::peer::{Request, ack, respond, syndrome::REMOTE_ACCESS};

pub const ROWS: &[Row] = &[
    row!(
        "9.4.1.1.3",
        a_key_that_may_not_be_invalidated,
        "SEND with invalidate of a key that is no window's and no fast-registered region's: its data lands, NAK remote access error, its receive fails, the key opens as before"
    ),
    row!(
        "9.4.1.1.3, 10.6.7",
        a_key_that_a_send_invalidates,
        "SEND with invalidate of a fast-registered region's key, or of a window's: the key opens for the packets before it and for none behind it, and the receive tells which one it was"
    ),
    row!(
        "9.7.5, 10.6.7",
        a_duplicate_read_whose_key_its_peer_invalidates,
        "A duplicate READ that is being answered when its peer, which has had the first response, invalidates the key: the rest of it is dropped, what comes behind is answered"
    ),
];

fn a_key_that_may_not_be_invalidated(t: &mut Talk) {
    let rkey = t.memory.rkey();
    for len in [0, 5, 256, 600] {
        t.apart(t.terms, |t| {
            let rkey = t.memory.rkey();
            let at = t.receive(700);
            let packets = t.cut(0, Request::send(data(len)).invalidate(rkey));
            let last = packets.len() as u32 - 1;
            t.peer_all(packets);
            t.lands(at, len);
            t.refuses(last, REMOTE_ACCESS);
            t.receive_fails_by(wc::REM_INV_REQ, cause::KEY_ACCESS);
        });
    }
    assert_eq!(t.memory.rkey(), rkey);
    t.peer(t.only(0, t.write(0, 10)));
    t.nic(acked(0, 1));
    t.lands(0, 10);
}

fn a_key_that_a_send_invalidates(t: &mut Talk) {
    for window in [false, true] {
        t.apart(t.terms, |t| {
            let pd = &t.solo.host.pd;
            let mut fast = pd.alloc_fast(512).unwrap();
            let ground = pd.alloc_for_windows(512, Access::LOCAL_WRITE, Default::default()).unwrap();
            let mut open = pd.create_window().unwrap();
            let (op, to) = if window {
                let bound = open.of(&ground, 8, 400, Access::REMOTE_WRITE);
                (Operation::Bind(bound), bound.remote(0))
            } else {
                let part = fast.part(8, 400, Access::all());
                (Operation::Register(part), part.remote(0))
            };
            t.qp.post().add(9, op, Data::Sges(&[]), Flags::SIGNALED).unwrap();
            t.completes(9);
            let at = t.receive(100);
            let write = |at: u64, len: usize| Request::write(to.addr + at, to.rkey, data(len));
            let mut packets = vec![t.only(0, write(0, 200)), t.only(1, Request::send(data(30)).invalidate(to.rkey))];
            packets.push(t.only(2, write(200, 200)));
            t.peer_all_at_once(packets);
            t.lands(at, 30);
            // A later answer may stand for an earlier one that has not left yet.
            let mut told = t.heard("an answer");
            for sound in [acked(0, 1), acked(1, 2)] {
                if told == sound {
                    told = t.heard("an answer");
                }
            }
            assert_eq!(told, ack(2, REMOTE_ACCESS, 2));
            t.counts(counter::RX_REMOTE_ACCESS, 1);
            t.receives_and_closes(30, to.rkey);
            t.ends_by(cause::KEY_INVALID);
            let mut got = [0; 512];
            if window { &ground } else { fast.memory() }.read(0, &mut got);
            assert!(got[8..208] == data(200) && got[208..].iter().all(|b| *b == 0), "window {window}");
        });
    }
}

fn a_duplicate_read_whose_key_its_peer_invalidates(t: &mut Talk) {
    const LEN: usize = 64 << 10;
    let mut fast = t.solo.host.pd.alloc_fast(LEN).unwrap();
    fast.memory().write(0, &data(LEN));
    let part = fast.part(0, LEN, Access::all());
    t.qp.post().add(9, Operation::Register(part), Data::Sges(&[]), Flags::SIGNALED).unwrap();
    t.completes(9);
    let at = t.receive(100);
    let read = t.only(0, Request::read(part.remote(0).addr, part.key(), LEN));
    let response = respond(0, 1, &data(LEN), t.terms.mtu);
    let end = response.len() as u32;
    t.peer(read.clone());
    t.nic_all(response.clone());
    // The second response waits for the MAC: most of it is not read yet when the key dies.
    t.solo.sim().nic(0).hold.mac_tx = true;
    t.peer_all_at_once([read, t.only(end, Request::send(data(30)).invalidate(part.key()))]);
    t.receives_and_closes(30, part.key());
    t.lands(at, 30);
    t.solo.sim().nic(0).hold.mac_tx = false;
    let mut again = response.into_iter();
    let told = loop {
        let p = t.heard("what was read in time, and an ACK");
        if Some(&p) != again.next().as_ref() {
            break p;
        }
    };
    assert!(again.len() > 100, "only the last {} frames are dropped", again.len());
    assert_eq!(told, acked(end, 2));
    t.counts(counter::RX_DUPLICATE, 1);
    t.peer_all([t.only(end + 1, t.write(200, 10)), t.only(end + 2, t.read(200, 10))]);
    t.nic(acked(end + 1, 3));
    t.lands(200, 10);
    t.nic_all(t.response(end + 2, 4, 200, 10));
}
