//! One direction of a pair of a mix: what it posts, and what that must leave in memory.

use super::area::{Area, Land, cut, guards, scatter};
use super::keyed::Keyed;
use super::shared::Shared;
use crate::noise;
use driver::{Completion, Data, Flags, Operation};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::collections::VecDeque;
use testbed::End;

/// Longest message.
pub const MOST: usize = 4096 * 3 + 3;

/// Work requests of one end: their numbers are in the order in which they complete.
#[derive(Default)]
pub struct Sequence {
    /// Posted so far: the number of the next one.
    pub posted: u64,
    /// Below this number all are complete.
    pub completed: u64,
    /// Sends since the latest signaled one.
    unsignaled: u64,
}

impl Sequence {
    /// Flags of the next send: some wait for READs, and of at most five in a row one completes with a CQE.
    fn flags(&mut self, rng: &mut ChaCha8Rng) -> Flags {
        let mut flags = if rng.random_bool(0.2) { Flags::FENCE } else { Flags::empty() };
        self.unsignaled = if self.unsignaled == 4 || rng.random_bool(0.6) { 0 } else { self.unsignaled + 1 };
        flags.set(Flags::SIGNALED, self.unsignaled == 0);
        flags
    }

    /// Posts one, directly or not; returns its number.
    pub fn post(&mut self, rng: &mut ChaCha8Rng, end: &mut End, op: Operation, data: Data, more: Flags) -> u64 {
        let mut batch = end.qp.post();
        batch.add(self.posted, op, data, self.flags(rng) | more).unwrap();
        if rng.random() {
            batch.ring()
        } else {
            batch.ring_direct()
        }
        self.posted += 1;
        self.posted - 1
    }

    /// A send is complete, and all before it.
    pub fn complete(&mut self, c: &Completion) {
        assert!(c.wr_id >= self.completed, "completions out of order: {c:?}");
        self.completed = c.wr_id + 1;
    }
}

/// A message on its way.
struct Sent {
    imm: Option<[u8; 4]>,
    /// The key that it invalidates.
    invalidates: Option<u32>,
    /// What its completion says that it has, if not what lands.
    len: usize,
    /// What lands in a shared receive.
    data: Vec<u8>,
}

/// One direction of a pair: from the sender's memories to the receiver's.
pub struct Flow {
    /// What the sender reads.
    pub source: Area,
    /// Where its READs and atomics land.
    pub landing: Area,
    /// Where its WRITEs land.
    pub remote: Area,
    /// What it READs.
    pub remote_source: Area,
    /// Words that atomics are about.
    pub words: Area,
    inbox: Area,
    /// Memory behind keys that come and go.
    pub keyed: Option<Keyed>,
    /// The sender's work requests.
    pub sends: Sequence,
    /// Receives that come late, when the peer may have been told that there is none: their stretches, oldest first.
    late: VecDeque<Vec<(usize, usize)>>,
    /// Receives have one SGE.
    one_sge: bool,
    /// The receiver's are shared.
    pub shares: bool,
    /// Oldest first.
    sent: VecDeque<Sent>,
    mtu: usize,
    /// Most messages fit into one packet.
    short: bool,
}

/// Regions of a host, area by area.
pub struct Lands {
    /// For itself.
    pub local: Land,
    /// For WRITEs of the peer.
    pub written: Land,
    /// For its READs.
    pub read: Land,
    /// For its atomics.
    pub words: Land,
}

/// What distinguishes flows.
pub struct Kind {
    /// Receives have one SGE.
    pub one_sge: bool,
    /// Receives are shared.
    pub shares: bool,
    /// Path MTU.
    pub mtu: usize,
    /// Most messages fit into one packet.
    pub short: bool,
    /// Of what it sends.
    pub seed: u64,
}

/// What became of an attempt to post something.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Posted {
    /// It is posted.
    Yes,
    /// Not now.
    Later,
    /// An area is full.
    Full,
}

impl Flow {
    /// From one host's lands to another's.
    pub fn new(lands: &mut [Lands; 2], [from, to]: [usize; 2], kind: &Kind, keyed: Option<Keyed>) -> Self {
        Flow {
            source: lands[from].local.area(noise(kind.seed)),
            landing: lands[from].local.area(guards),
            remote: lands[to].written.area(guards),
            remote_source: lands[to].read.area(noise(kind.seed ^ 0x5555)),
            words: lands[to].words.area(noise(kind.seed ^ 0xaaaa)),
            inbox: lands[to].local.area(guards),
            keyed,
            sends: Sequence::default(),
            late: Default::default(),
            one_sge: kind.one_sge || kind.shares,
            shares: kind.shares,
            sent: Default::default(),
            mtu: kind.mtu,
            short: kind.short,
        }
    }

    /// All memories hold what they must.
    pub fn check(&self, what: &str) {
        for (area, name) in [
            (&self.landing, "READ landing"),
            (&self.remote, "WRITE target"),
            (&self.inbox, "receives"),
            (&self.source, "source"),
            (&self.remote_source, "READ source"),
            (&self.words, "words of atomics"),
        ] {
            area.check(&format!("{what}, {name}"));
        }
        self.keyed.iter().for_each(|k| k.check(what));
    }

    /// All memories are as they were in the beginning.
    pub fn reset(&mut self) {
        let Flow { source, landing, remote, remote_source, words, inbox, .. } = self;
        [source, landing, remote, remote_source, words, inbox].into_iter().for_each(Area::reset);
        self.keyed.iter_mut().for_each(Keyed::reset);
    }

    /// Lets what is left unsignaled complete.
    pub fn finish(&mut self, from: &mut End) {
        let s = &mut self.sends;
        if s.unsignaled > 0 {
            s.unsignaled = 0;
            from.qp
                .post()
                .add(s.posted, Operation::Write(self.remote.remote(0)), Data::Sges(&[]), Flags::SIGNALED)
                .unwrap();
            s.posted += 1;
        }
    }

    /// Something is not complete.
    pub fn is_busy(&self) -> bool {
        self.sends.completed < self.sends.posted
            || !self.sent.is_empty()
            || self.keyed.as_ref().is_some_and(|k| !k.is_closed())
    }

    /// A message length: small ones, lengths around the MTU, long ones.
    fn length(&self, rng: &mut ChaCha8Rng) -> usize {
        let kind = rng.random_range(0..10);
        match if self.short { [0, 1, 1, 1, 1, 1, 1, 4, 4, 7][kind] } else { kind } {
            0 => 0,
            1..=3 => rng.random_range(1..130),
            4..=6 => (self.mtu * rng.random_range(1..4) + 3).saturating_sub(rng.random_range(0..6)),
            _ => rng.random_range(1..12_000),
        }
    }

    /// A stretch of the source, and what is there.
    pub fn payload(&self, rng: &mut ChaCha8Rng, len: usize) -> (usize, Vec<u8>) {
        let start = rng.random_range(0..super::area::AREA - len);
        (start, self.source.want[start..start + len].to_vec())
    }

    /// Posts a receive for a message, now or later, and notes what must come of it. `data` lands, `len` is told.
    fn expect(
        &mut self,
        rng: &mut ChaCha8Rng,
        to: &mut End,
        shared: Option<&mut Shared>,
        data: &[u8],
        sent: Sent,
    ) -> Posted {
        if self.shares {
            let shared = shared.expect("a queue that is shared");
            if !shared.has_room() {
                return Posted::Later;
            }
            shared.expect(rng.random_bool(0.05));
            self.sent.push_back(Sent { data: data.to_vec(), ..sent });
            return Posted::Yes;
        }
        let room = data.len() + if rng.random_bool(0.5) { rng.random_range(0..50) } else { 0 };
        let Some(at) = self.inbox.place(rng, room) else { return Posted::Full };
        let stretches = if self.one_sge { vec![(at, room)] } else { cut(rng, at, room) };
        scatter(&mut self.inbox.want, &stretches, data);
        // In order, so behind one that is late all are.
        if !self.late.is_empty() || rng.random_bool(0.05) {
            self.late.push_back(stretches);
        } else {
            to.qp.post_recv(self.sends.posted, &self.inbox.sges(&stretches)).unwrap();
        }
        self.sent.push_back(sent);
        Posted::Yes
    }

    /// Posts a receive that is late, if there is one.
    pub fn post_late(&mut self, to: &mut End) {
        if let Some(stretches) = self.late.pop_front() {
            to.qp.post_recv(0, &self.inbox.sges(&stretches)).unwrap();
        }
    }

    /// A message has come.
    pub fn received(&mut self, c: &Completion, shared: Option<&mut Shared>, what: &str) {
        let sent = self.sent.pop_front().unwrap_or_else(|| panic!("{what}: a receive that nobody sent: {c:?}"));
        let want = (sent.len, sent.imm, sent.invalidates);
        assert_eq!((c.len as usize, c.imm, c.invalidated), want, "{what}: {c:?}");
        if self.shares {
            shared.expect("a queue that is shared").take(c, &sent.data, what);
        }
        if sent.invalidates.is_some() {
            self.keyed.as_mut().expect("a key").closed();
        }
    }

    /// Posts some operation.
    pub fn post(&mut self, rng: &mut ChaCha8Rng, from: &mut End, to: &mut End, shared: Option<&mut Shared>) -> Posted {
        match rng.random_range(0..14) {
            kind @ (0..=3 | 8..=11) => self.message(rng, from, to, shared, kind % 4),
            4 | 5 => self.read(rng, from),
            6 => self.atomic_write(rng, from),
            _ => self.atomic(rng, from),
        }
    }

    /// A WRITE or a SEND, each with immediate or without.
    fn message(
        &mut self,
        rng: &mut ChaCha8Rng,
        from: &mut End,
        to: &mut End,
        shared: Option<&mut Shared>,
        kind: i32,
    ) -> Posted {
        let len = self.length(rng);
        let (start, data) = self.payload(rng, len);
        let imm = [rng.random(), rng.random(), rng.random(), rng.random()];
        let with = (kind % 2 == 1).then_some(imm);
        let sent = Sent { imm: with, invalidates: None, len, data: vec![] };
        let operation = if kind < 2 {
            let Some(at) = self.remote.place(rng, len) else { return Posted::Full };
            // An immediate takes a receive, whose memory stays untouched.
            let posted = if with.is_some() { self.expect(rng, to, shared, &[], sent) } else { Posted::Yes };
            if posted != Posted::Yes {
                return posted;
            }
            self.remote.want[at..at + len].copy_from_slice(&data);
            let remote = self.remote.remote(at);
            with.map_or(Operation::Write(remote), |imm| Operation::WriteImm(remote, imm))
        } else {
            match self.expect(rng, to, shared, &data, sent) {
                Posted::Yes => with.map_or(Operation::Send, Operation::SendImm),
                not => return not,
            }
        };
        self.send(rng, from, operation, start, &data, Flags::empty());
        Posted::Yes
    }

    /// Posts a message with payload, inline or gathered; returns its number.
    pub fn send(
        &mut self,
        rng: &mut ChaCha8Rng,
        from: &mut End,
        op: Operation,
        start: usize,
        data: &[u8],
        more: Flags,
    ) -> u64 {
        let list = self.source.sges(&cut(rng, start, data.len()));
        let small = data.len() <= 224 && rng.random();
        let payload = if small { Data::Inline(data) } else { Data::Sges(&list) };
        self.sends.post(rng, from, op, payload, more)
    }

    /// A SEND that invalidates a key of the receiver's, behind all that its sender has read.
    pub fn send_and_invalidate(
        &mut self,
        rng: &mut ChaCha8Rng,
        from: &mut End,
        to: &mut End,
        shared: Option<&mut Shared>,
        key: u32,
    ) -> Posted {
        let len = self.length(rng);
        let (start, data) = self.payload(rng, len);
        let sent = Sent { imm: None, invalidates: Some(key), len, data: vec![] };
        let posted = self.expect(rng, to, shared, &data, sent);
        if posted == Posted::Yes {
            self.send(rng, from, Operation::SendInv(key), start, &data, Flags::FENCE);
        }
        posted
    }

    /// Posts `count` receives of no bytes, and as many SENDs that take them.
    pub fn send_to_receives(&mut self, from: &mut End, to: &mut End, count: usize) {
        let none = [self.inbox.sge(0, 0)];
        (0..count).for_each(|_| to.qp.post_recv(0, &none).unwrap());
        let mut batch = from.qp.post();
        for i in 0..count {
            let signaled = if i + 1 == count { Flags::SIGNALED } else { Flags::empty() };
            batch.add(self.sends.posted, Operation::Send, Data::Sges(&[]), signaled).unwrap();
            self.sends.posted += 1;
            self.sent.push_back(Sent { imm: None, invalidates: None, len: 0, data: vec![] });
        }
        batch.ring();
    }

    /// A SEND of `len` bytes to a shared receive, which is there.
    pub fn send_to_shared(&mut self, from: &mut End, shared: &mut Shared, len: usize) {
        shared.expect(false);
        self.sent.push_back(Sent { imm: None, invalidates: None, len, data: self.source.want[..len].to_vec() });
        let list = [self.source.sge(0, len)];
        let number = self.sends.posted;
        from.qp.post().add(number, Operation::Send, Data::Sges(&list), Flags::SIGNALED).unwrap();
        self.sends.posted += 1;
    }

    fn read(&mut self, rng: &mut ChaCha8Rng, from: &mut End) -> Posted {
        let len = self.length(rng);
        let Some(at) = self.landing.place(rng, len) else { return Posted::Full };
        let stretches = cut(rng, at, len);
        let from_at = rng.random_range(0..super::area::AREA - len);
        scatter(&mut self.landing.want, &stretches, &self.remote_source.want[from_at..from_at + len]);
        let list = self.landing.sges(&stretches);
        let op = Operation::Read(self.remote_source.remote(from_at));
        self.sends.post(rng, from, op, Data::Sges(&list), Flags::empty());
        Posted::Yes
    }

    /// The place of a word: one of a few, or of many; what is there when all that was posted is done, for those of a QP are executed in
    /// order.
    fn word(&self, rng: &mut ChaCha8Rng) -> (usize, u64) {
        let some = if rng.random() { 3 } else { super::area::AREA / 8 };
        let at = 8 * rng.random_range(0..some);
        (at, u64::from_le_bytes(self.words.want[at..at + 8].try_into().unwrap()))
    }

    fn atomic_write(&mut self, rng: &mut ChaCha8Rng, from: &mut End) -> Posted {
        let (at, data) = (self.word(rng).0, rng.random::<[u8; 8]>());
        self.words.want[at..at + 8].copy_from_slice(&data);
        let op = Operation::AtomicWrite(self.words.remote(at));
        self.sends.post(rng, from, op, Data::Inline(&data), Flags::empty());
        Posted::Yes
    }

    fn atomic(&mut self, rng: &mut ChaCha8Rng, from: &mut End) -> Posted {
        let Some(to) = self.landing.place(rng, 8) else { return Posted::Full };
        let (at, there) = self.word(rng);
        let (remote, operand) = (self.words.remote(at), rng.random());
        let compare = if rng.random_bool(0.7) { there } else { operand };
        let (op, leaves) = match rng.random() {
            true => (Operation::AtomicAdd { remote, add: operand }, there.wrapping_add(operand)),
            false => {
                let leaves = if compare == there { operand } else { there };
                (Operation::AtomicCas { remote, compare, swap: operand }, leaves)
            }
        };
        self.words.want[at..at + 8].copy_from_slice(&leaves.to_le_bytes());
        self.landing.want[to..to + 8].copy_from_slice(&there.to_le_bytes());
        self.sends.post(rng, from, op, Data::Sges(&[self.landing.sge(to, 8)]), Flags::empty());
        Posted::Yes
    }
}
