//! The proof that nothing of a QP is lost for ever: after a stretch of a mix, all that it may have in flight can be in flight at once.

use super::flow::{Flow, MOST};
use super::{Lane, Mixer, RECEIVES};
use abi::{status::counter, wire::op};
use driver::{Data, Flags, Operation};
use fabric::{Action, Match};
use std::collections::{BTreeSet, HashMap};
use testbed::{Pair, Testbed};

/// Messages that a QP has in flight at most, and READs and atomics among them.
const MESSAGES: usize = 128;
const READS: usize = 16;

/// Lanes that are filled at a time.
const GROUP: usize = 4;

/// Bytes of a READ whose responses take so long that requests wait for them.
const LONG: usize = 240;

impl Mixer<'_> {
    /// While no answer comes, each QP sends 128 messages and not one more, and of READs 16, that the peer's READ resources take; then they all
    /// complete. All receives can be posted and used.
    pub(super) fn assert_deep(&mut self) {
        let faults = std::mem::take(&mut self.bed.sim().link_mut(0).rules.rules);
        // Few at a time: what many send at once, and lose, is sent again ever more slowly.
        for first in (0..self.lanes.len()).step_by(GROUP) {
            let writes = |f: &Flow, _| Operation::Write(f.remote.remote(0));
            self.fill(first, op::WRITE_ONLY, MESSAGES, &[op::ACK], writes, 0);
            let answers = [op::ACK, op::READ_RESPONSE_ONLY];
            let reads = |f: &Flow, i| Operation::Read(f.remote_source.remote(i * LONG));
            self.fill(first, op::READ_REQUEST, READS, &answers, reads, LONG);
        }
        self.fill_receives();
        self.bed.sim().link_mut(0).rules.rules = faults;
    }

    /// Posts a few more than `most` requests on each QP of a group of lanes, each with `len` bytes, and loses the answers until `most` are seen.
    fn fill(
        &mut self,
        first: usize,
        opcode: u8,
        most: usize,
        answers: &[u8],
        request: impl Fn(&Flow, usize) -> Operation,
        len: usize,
    ) {
        let seed = self.mix.seed;
        for answer in answers {
            let lost = Match { opcode: Some(*answer), ..Match::default() };
            self.bed.sim().link_mut(0).rules.add(lost, Action::Drop);
        }
        self.seen.lock().unwrap().requests = Some(HashMap::new());
        let mut flows = 0;
        for lane in self.lanes.iter_mut().skip(first).take(GROUP) {
            let Lane { pair: Pair { a, b }, flows: [forth, back], .. } = lane;
            for (f, end) in [(forth, a), (back, b)] {
                let mut batch = end.qp.post();
                for i in 0..most + 4 {
                    let signaled = if i % 8 == 7 || i == most + 3 { Flags::SIGNALED } else { Flags::empty() };
                    let sges = [f.landing.sge(0, len)];
                    let data = if len == 0 { Data::Sges(&[]) } else { Data::Sges(&sges) };
                    batch.add(f.sends.posted, request(f, i), data, signaled).unwrap();
                    f.sends.posted += 1;
                }
                batch.ring();
                flows += 1;
            }
        }
        let full = |seen: &HashMap<(usize, u8, u32), BTreeSet<u32>>| {
            seen.iter().filter(|((_, op, _), s)| *op == opcode && s.len() >= most).count() == flows
        };
        let mut turns = 0;
        while !full(self.seen.lock().unwrap().requests.as_ref().expect("it is being seen")) {
            self.bed.relax();
            turns += 1;
            if turns == 20_000 {
                let seen: Vec<_> = self.seen.lock().unwrap().requests.take().into_iter().flatten().collect();
                let few = seen.iter().filter(|s| s.1.len() < most).map(|(k, s)| (k, s.len()));
                panic!("seed {seed}: of {flows} QPs {} send, too few: {:?}", seen.len(), few.collect::<Vec<_>>());
            }
        }
        crate::pass(self.bed, 100);
        let seen = self.seen.lock().unwrap().requests.take().expect("it was seen");
        let more: Vec<_> = seen.iter().filter(|s| s.1.len() > most).collect();
        assert!(more.is_empty(), "seed {seed}: more than {most} in flight: {more:?}");
        self.bed.sim().link_mut(0).rules.rules.clear();
        self.settle();
    }

    /// As many messages come at once as there are receives, each queue pair's own and the shared ones, and each finds one.
    fn fill_receives(&mut self) {
        let rnr = |bed: &Testbed| bed.hosts.each_ref().map(|h| h.device.counter(counter::RX_RNR));
        let before = rnr(self.bed);
        for Lane { pair: Pair { a, b }, flows: [forth, back], .. } in &mut self.lanes {
            if !forth.shares {
                forth.send_to_receives(a, b, RECEIVES);
            }
            back.send_to_receives(b, a, RECEIVES);
        }
        let mut lanes: Vec<_> = self.lanes.iter_mut().filter(|l| l.flows[0].shares).collect();
        if let Some(shared) = &mut self.shared {
            let (places, count) = (shared.places(), lanes.len());
            for i in 0..places {
                let Lane { pair: Pair { a, .. }, flows: [f, _], .. } = &mut *lanes[i % count];
                f.send_to_shared(a, shared, i * 79 % MOST);
            }
        }
        self.settle();
        assert_eq!(rnr(self.bed), before, "seed {}: a receive was posted and not found", self.mix.seed);
    }

    /// Waits until all is complete.
    fn settle(&mut self) {
        let seed = self.mix.seed;
        for turn in 0.. {
            assert!(turn < 100_000, "seed {seed}: what was in flight does not complete");
            for lane in &mut self.lanes {
                lane.take(self.shared.as_mut(), seed);
            }
            if !self.lanes.iter().flat_map(|l| &l.flows).any(Flow::is_busy) {
                return;
            }
            self.bed.relax();
        }
    }
}
