//! Keys that come and go by work request, over a cable that loses, doubles, delays and swaps frames, between hosts that answer as late as
//! they may: each operation happens once and in its place, and one that is sent again touches nothing that came after it.

use driver::{Access, Binding, Data, FastMr, Flags, Mr, Mw, Operation, Registration, Sge, Translation};
use ferroce_tests::{GUARD, assert_sound, bytes, noise, region, small_pairs, wait, words::rough};
use testbed::{End, Pair, Testbed};

/// Bytes of each region.
const LEN: usize = 8192;
/// Bytes of each transfer; of several packets.
const SOME: usize = 2500;

/// A connection; host 1 opens its memory by it, host 0 uses that and closes it.
struct Lane {
    pair: Pair,
    /// Of host 1: registered, and bound a window to, anew each round.
    fast: FastMr,
    ground: Mr,
    window: Mw,
    mail: Mr,
    /// Of host 0.
    source: Mr,
    told: Mr,
    back: Mr,
    part: Option<Registration>,
    bound: Option<Binding>,
}

/// Posts work requests as one batch, all signaled.
fn post(end: &mut End, ops: &[(Operation, Option<Sge>)]) {
    let mut batch = end.qp.post();
    for (i, (op, sge)) in ops.iter().enumerate() {
        // Without a fence a READ may be answered when the key is dead.
        let fence = if matches!(op, Operation::SendInv(_)) { Flags::FENCE } else { Flags::empty() };
        batch.add(i as u64, *op, Data::Sges(sge.as_slice()), Flags::SIGNALED | fence).unwrap();
    }
    batch.ring();
}

/// The requests 0 to `count` complete.
fn complete(bed: &Testbed, end: &mut End, count: u64, what: &str) {
    for id in 0..count {
        let c = wait(bed, &mut end.cq, what);
        assert_eq!((c.wr_id, c.status), (id, Ok(())), "{what}");
    }
}

impl Lane {
    fn new(bed: &Testbed, pair: Pair) -> Self {
        let [near, far] = [0, 1].map(|i| &bed.hosts[i].pd);
        let guards = |pd| region(pd, LEN, Access::all(), |_| GUARD);
        Lane {
            pair,
            fast: far.alloc_fast(LEN).unwrap(),
            ground: far.alloc_for_windows(LEN, Access::LOCAL_WRITE, Translation::Pages(4096)).unwrap(),
            window: far.create_window().unwrap(),
            mail: guards(far),
            source: guards(near),
            told: guards(near),
            back: guards(near),
            part: None,
            bound: None,
        }
    }

    /// Host 1 opens a region and a window, and tells of both with bytes of the region.
    fn open(&mut self, round: usize) {
        self.fast.memory().write(0, &(0..LEN).map(noise(round as u64)).collect::<Vec<_>>());
        self.ground.write(0, &[GUARD; LEN]);
        self.mail.write(0, &[GUARD; LEN]);
        let at = [0, 1000, 4095][round % 3];
        let part = self.fast.part(at, LEN - at, Access::all());
        let bound = self.window.of(&self.ground, at, SOME, Access::REMOTE_WRITE);
        self.pair.b.qp.post_recv(7, &[self.mail.sge(0, LEN)]).unwrap();
        let tell = (Operation::Write(self.told.remote(round % 2 * SOME)), Some(part.sge(0, SOME)));
        post(&mut self.pair.b, &[(Operation::Register(part), None), (Operation::Bind(bound), None), tell]);
        (self.part, self.bound) = (Some(part), Some(bound));
    }

    /// Host 0 writes by both keys, reads by one, and closes that.
    fn close(&mut self, round: usize) {
        let (part, bound) = (self.part.unwrap(), self.bound.unwrap());
        self.source.write(0, &(0..LEN).map(noise(1000 + round as u64)).collect::<Vec<_>>());
        self.back.write(0, &[GUARD; LEN]);
        let from = |at, len| Some(self.source.sge(at, len));
        let ops = [
            (Operation::Write(part.remote(10)), from(0, SOME)),
            (Operation::Write(bound.remote(0)), from(1, SOME)),
            (Operation::Read(part.remote(0)), Some(self.back.sge(0, SOME))),
            (Operation::SendInv(part.key()), from(2, [0, 20, SOME][round % 3])),
        ];
        post(&mut self.pair.a, &ops);
    }

    /// Host 1 hears of it, finds what was written and nothing else, and takes the window back, perhaps before host 0 knows.
    fn hear(&mut self, bed: &Testbed, round: usize) {
        let c = wait(bed, &mut self.pair.b.cq, "a SEND with invalidate");
        let (part, bound) = (self.part.unwrap(), self.bound.unwrap());
        assert_eq!((c.wr_id, c.status, c.invalidated), (7, Ok(()), Some(part.key())), "round {round}");
        let (source, at) = (bytes(&self.source), [0, 1000, 4095][round % 3]);
        let mut want: Vec<_> = (0..LEN).map(noise(round as u64)).collect();
        want[at + 10..][..SOME].copy_from_slice(&source[..SOME]);
        assert!(bytes(self.fast.memory()) == want, "round {round}: the region");
        want = vec![GUARD; LEN];
        want[at..][..SOME].copy_from_slice(&source[1..][..SOME]);
        assert!(bytes(&self.ground) == want, "round {round}: the window");
        want = vec![GUARD; LEN];
        let len = [0, 20, SOME][round % 3];
        want[..len].copy_from_slice(&source[2..][..len]);
        assert!(bytes(&self.mail) == want, "round {round}: the message");
        post(&mut self.pair.b, &[(Operation::LocalInv(bound.key()), None)]);
    }

    /// Host 0 was told of the region, and has read it as it was behind its WRITE.
    fn read(&mut self, bed: &Testbed, round: usize) {
        complete(bed, &mut self.pair.a, 4, "host 0");
        let mut want: Vec<_> = (0..LEN).map(noise(round as u64)).collect();
        want.drain(..[0, 1000, 4095][round % 3]);
        assert!(bytes(&self.told)[round % 2 * SOME..][..SOME] == want[..SOME], "round {round}: what was told");
        want[10..][..SOME].copy_from_slice(&bytes(&self.source)[..SOME]);
        assert!(bytes(&self.back)[..SOME] == want[..SOME], "round {round}: what was read");
    }
}

fn keys_come_and_go(seed: u64, small: bool) {
    let bed = rough(seed, small);
    let pairs = bed.connect_many(&small_pairs(), 4).unwrap();
    let mut lanes: Vec<_> = pairs.into_iter().map(|pair| Lane::new(&bed, pair)).collect();
    let rounds = verilate::scale(12);
    for round in 0..rounds {
        lanes.iter_mut().for_each(|lane| lane.open(round));
        // What host 0 did before may not be acknowledged yet: then it is sent again, and finds keys that are open anew.
        if round > 0 {
            lanes.iter_mut().for_each(|lane| lane.read(&bed, round - 1));
        }
        lanes.iter_mut().for_each(|lane| complete(&bed, &mut lane.pair.b, 3, "opening"));
        lanes.iter_mut().for_each(|lane| lane.close(round));
        lanes.iter_mut().for_each(|lane| lane.hear(&bed, round));
        lanes.iter_mut().for_each(|lane| complete(&bed, &mut lane.pair.b, 1, "a local invalidate"));
    }
    lanes.iter_mut().for_each(|lane| lane.read(&bed, rounds - 1));
    assert_sound(&bed, "keys over a rough cable");
}

#[test]
fn keys_come_and_go_over_a_rough_cable() {
    keys_come_and_go(31, false);
}

#[test]
fn keys_come_and_go_over_a_rough_cable_of_a_small_nic() {
    keys_come_and_go(32, true);
}
