//! Memory behind keys that come and go by work request in a mix: the receiver of a flow registers a part of it or binds a window to it, the
//! sender writes there and reads, and one of the two closes it. In each moment at most one of a flow's keys is open.

use super::area::{Area, Land, check, guards};
use super::flow::{Flow, Posted};
use super::shared::Shared;
use crate::GUARD;
use driver::{Access, Data, FastMr, Flags, Mw, Operation, Remote};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use testbed::{End, Host};

/// Bytes that can be registered.
const FAST: usize = 48 << 10;

/// A key that opens a part.
#[derive(Clone, Copy)]
struct Open {
    key: u32,
    /// Where the part begins, for the peer.
    remote: Remote,
    /// Where it begins in its memory.
    at: usize,
    len: usize,
    /// A window's part, to write; else a registration's, to read too.
    window: bool,
    /// WRITEs that are still to come.
    uses: u32,
}

enum State {
    Closed,
    /// The receiver has asked for it with this work request.
    Opening(u64, Open),
    Open(Open),
    /// The sender has used it for the last time with this work request.
    Used(u64, u32),
    /// A SEND that invalidates it is under way.
    Sent,
    /// The receiver has asked to invalidate it with this work request.
    Closing(u64),
}

/// See the module.
pub struct Keyed {
    // In this order they are destroyed: a region with a window on it stays.
    window: Mw,
    ground: Area,
    fast: FastMr,
    /// What the fast region must hold.
    want: Vec<u8>,
    next: usize,
    state: State,
}

impl Keyed {
    /// Of the receiver's `host`, with a ground for windows.
    pub fn new(host: &Host, ground: &mut Land) -> Self {
        let fast = host.pd.alloc_fast(FAST).unwrap();
        let window = host.pd.create_window().unwrap();
        let mut keyed =
            Keyed { window, ground: ground.area(guards), fast, want: vec![], next: 0, state: State::Closed };
        keyed.reset();
        keyed
    }

    /// As in the beginning.
    pub fn reset(&mut self) {
        self.ground.reset();
        self.want = vec![GUARD; FAST];
        self.next = 16;
        self.fast.memory().write(0, &self.want);
    }

    /// Its memories hold what they must.
    pub fn check(&self, what: &str) {
        self.ground.check(&format!("{what}, behind windows"));
        check(self.fast.memory(), 0, &self.want, &format!("{what}, a fast region"));
    }

    /// Nothing is open, or about to be.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// The sender's SEND has closed it.
    pub fn closed(&mut self) {
        assert!(matches!(self.state, State::Sent), "a key that nobody asked to invalidate");
        self.state = State::Closed;
    }

    /// The next part and the work request that opens it, if there is room.
    fn open(&mut self, rng: &mut ChaCha8Rng) -> Option<(Operation, Open)> {
        let (len, uses) = (rng.random_range(1..5000), rng.random_range(1..4));
        if rng.random() {
            let at = self.ground.place(rng, len)?;
            let bound = self.window.of(&self.ground.mr, self.ground.offset(at), len, Access::REMOTE_WRITE);
            let open = Open { key: bound.key(), remote: bound.remote(0), at, len, window: true, uses };
            return Some((Operation::Bind(bound), open));
        }
        let at = self.next + rng.random_range(0..70);
        if at + len + 16 > FAST {
            return None;
        }
        self.next = at + len + 16;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let part = self.fast.part(at, len, access);
        let open = Open { key: part.key(), remote: part.remote(0), at, len, window: false, uses };
        Some((Operation::Register(part), open))
    }
}

/// A place in a part.
fn within(part: &Open, offset: usize) -> Remote {
    Remote { addr: part.remote.addr + offset as u64, ..part.remote }
}

/// The next step of a flow's key, if it has one; `back` is the flow the other way. New ones open while there is `more` to do.
pub fn step(
    rng: &mut ChaCha8Rng,
    [flow, back]: [&mut Flow; 2],
    [from, to]: [&mut End; 2],
    shared: Option<&mut Shared>,
    more: bool,
) -> Posted {
    let Some(keyed) = &mut flow.keyed else { return Posted::Later };
    let room = flow.sends.posted - flow.sends.completed < 12 && back.sends.posted - back.sends.completed < 12;
    if !room || !rng.random_bool(0.3) {
        return Posted::Later;
    }
    match keyed.state {
        State::Closed if more && rng.random_bool(0.3) => {
            let Some((op, open)) = keyed.open(rng) else { return Posted::Full };
            let number = back.sends.post(rng, to, op, Data::Sges(&[]), Flags::empty());
            keyed.state = State::Opening(number, open);
        }
        State::Opening(number, open) if back.sends.completed > number => keyed.state = State::Open(open),
        State::Open(open) if open.uses > 0 => {
            keyed.state = State::Open(Open { uses: open.uses - 1, ..open });
            let offset = rng.random_range(0..=open.len);
            let len = rng.random_range(0..=open.len - offset);
            let want = if open.window { &mut keyed.ground.want } else { &mut keyed.want };
            let start = rng.random_range(0..super::area::AREA - len);
            let data = flow.source.want[start..start + len].to_vec();
            want[open.at + offset..][..len].copy_from_slice(&data);
            flow.send(rng, from, Operation::Write(within(&open, offset)), start, &data, Flags::empty());
        }
        State::Open(open) => {
            let by_send = rng.random();
            let mut last = flow.sends.posted - 1;
            if !open.window
                && let Some(at) = flow.landing.place(rng, open.len)
            {
                let data = &keyed.want[open.at..open.at + open.len];
                flow.landing.want[at..at + open.len].copy_from_slice(data);
                let list = [flow.landing.sge(at, open.len)];
                last = flow.sends.post(rng, from, Operation::Read(open.remote), Data::Sges(&list), Flags::empty());
            }
            keyed.state = State::Used(last, open.key);
            if by_send {
                let posted = flow.send_and_invalidate(rng, from, to, shared, open.key);
                if posted == Posted::Yes {
                    flow.keyed.as_mut().expect("it has one").state = State::Sent;
                }
                return posted;
            }
        }
        State::Used(last, key) if flow.sends.completed > last => {
            let number = back.sends.post(rng, to, Operation::LocalInv(key), Data::Sges(&[]), Flags::empty());
            keyed.state = State::Closing(number);
        }
        State::Closing(number) if back.sends.completed > number => keyed.state = State::Closed,
        _ => return Posted::Later,
    }
    Posted::Yes
}
