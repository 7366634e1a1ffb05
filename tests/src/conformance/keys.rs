//! Keys that a SEND invalidates (IBTA 9.4.1, 10.6.7).

use super::talk::{Talk, acked, data};
use super::{Row, row};
use abi::status::wc;
use fabric::peer::{Request, syndrome::REMOTE_ACCESS};

pub const ROWS: &[Row] = &[row!(
    "9.4.1.1.3",
    a_key_that_may_not_be_invalidated,
    "SEND with invalidate of a key that is no window's and no fast-registered region's: its data lands, NAK remote access error, its receive fails, the key opens as before"
)];

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
            t.receive_fails(wc::REM_INV_REQ);
        });
    }
    assert_eq!(t.memory.rkey(), rkey);
    t.peer(t.only(0, t.write(0, 10)));
    t.nic(acked(0, 1));
    t.lands(0, 10);
}
