//! Turns a landed packet into its consequences: completion, then QP error, then reply. From landing; to the completion
//! queues, to `qp_state`, and to the response engine.
//!
//! ```text
//! cycle        0      1          2         3
//! landed       take
//! completion          valid, if the packet's writes are taken by now
//! error, go                      valid (in 1 if there is no completion)
//! landed                                   take     (2 cycles per packet without a completion)
//! ```
//! A READ is handed on when the host has performed all writes before it: the memory that it reads is new. For an atomic that is
//! seen to by `memory/atomics`, which is at work on it already. An atomic write is a READ here, which waits for its own write, too.
//!
//! It waits for the completion queues and the performed writes (which wait for the write channel only), for `qp_state`'s intake, and for the
//! response engine's intake, which has room for every reply and waits for nobody.

use crate::{
    memory::landing::is_alone,
    msg::*,
    stream::{Sink, Source},
};
use abi::{
    queue::{recv_op, send_op},
    status::{cause, counter, wc},
    wire::syndrome,
};
use hdl::prelude::*;

/// See the module. It counts the verdict of a request that its engine has accepted: whether it landed.
#[derive(LogicBlock, Default)]
pub struct Commit {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// Write tickets given out so far, those of this cycle and perhaps of the next one included or not; and performed.
    pub issued: Signal<In, Bits<16>>,
    pub performed: Signal<In, Bits<16>>,
    pub landed: Sink<Landed>,
    /// In the next cycle the channel has all writes of the packets that have landed up to this one.
    pub written: Signal<In, Bit>,
    pub completion: Source<Completion>,
    pub error: Source<QpError>,
    pub go: Source<ReplyGo>,
    pub count: Signal<Out, Bits<64>>,
    /// The completion queues have nothing under way.
    pub completed: Signal<In, Bit>,
    /// Packets, modulo 2^16, of which nothing is left here or in the completion queues: for a drain.
    pub through: Signal<Out, Bits<16>>,
    has_completion: Reg<Bit>,
    has_error: Reg<Bit>,
    has_go: Reg<Bit>,
    /// The packet's writes are in the channel.
    clear: Reg<Bit>,
    /// All writes that were issued up to the cycle before are performed.
    calm: Reg<Bit>,
    /// Those before the reply at hand were issued when `ticket` was; it is noted; it need not wait for them, or not any more.
    ticket: DFF<Bits<16>>,
    noted: Reg<Bit>,
    due: Reg<Bit>,
    /// One of them is its own; the channel has that.
    own: Reg<Bit>,
    settled: Reg<Bit>,
    completion_q: DFF<Completion>,
    error_q: DFF<QpError>,
    go_q: DFF<ReplyGo>,
    count_q: Reg<Bits<64>>,
    /// Packets that came, that are done here, and that are through.
    came: Reg<Bits<16>>,
    done: Reg<Bits<16>>,
    through_q: Reg<Bits<16>>,
}

impl Logic for Commit {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, has_completion, has_error, has_go, clear, calm, noted, due, own, settled, count_q);
        regs!(self, clock, rst, came, done, through_q);
        dff_setup!(self, clock, ticket, completion_q, error_q, go_q);
        let (c, e, g) = (self.has_completion.q.val(), self.has_error.q.val(), self.has_go.q.val());
        let landed = self.landed.data.val();
        let ready = !c && !e && !g;
        let take = self.landed.valid.val() && ready;
        self.landed.ready.next = ready;
        let clear = self.clear.q.val();
        self.clear.d.next = self.written.val() || if take { !landed.wrote } else { clear };
        let behind = clear && !c;

        // The writes before a READ are those that the channel has when the READ is first here, or its own is there.
        let own = self.own.q.val();
        self.settled.d.next = g && clear;
        let (issued, performed) = (self.issued.val(), self.performed.val());
        self.calm.d.next = issued == performed;
        self.noted.d.next = g && (!own || self.settled.q.val());
        if !self.noted.q.val() {
            self.ticket.d.next = issued;
        }
        let due = self.due.q.val() || self.calm.q.val() && !own;
        let reached = self.noted.q.val() && !(performed - self.ticket.q.val()).get_bit(15);
        self.due.d.next = g && (due || reached);
        let goes = g && behind && due;

        self.completion.data.next = self.completion_q.q.val();
        self.completion.valid.next = c && clear;
        self.error.data.next = self.error_q.q.val();
        self.error.valid.next = e && behind;
        self.go.data.next = self.go_q.q.val();
        self.go.valid.next = goes;
        if self.completion.ready.val() && clear {
            self.has_completion.d.next = false;
        }
        if self.error.ready.val() && behind {
            self.has_error.d.next = false;
        }
        if self.go.ready.val() && goes {
            self.has_go.d.next = false;
        }

        let mut completion = landed.completion;
        let mut reply = landed.reply;
        // Of UC a message whose key does not open is dropped, and nobody is told; but a receive that it has taken must end.
        let alone = is_alone(reply) && !landed.response;
        let lost = alone && (landed.passing || landed.fault && !landed.own);
        let drops = lost && !completion.valid;
        let flushed = landed.flushed && !(lost && completion.valid);
        // A key that a SEND was to invalidate: its receive is taken, and ends.
        let inv = completion.opcode == recv_op::RECV_INV && !landed.own;
        if landed.fault {
            // A receive WQE's own memory was at fault, or the peer's key: that of a WRITE with immediate data, which has taken a receive as well.
            completion.valid = completion.valid || landed.own;
            completion.status = if inv {
                wc::REM_INV_REQ.to_bits()
            } else if !landed.own {
                wc::LOC_ACCESS.to_bits()
            } else if completion.opcode == send_op::LOCAL_INV {
                wc::LOC_QP_OP.to_bits()
            } else {
                wc::LOC_PROT.to_bits()
            };
            completion.cause = landed.cause;
            // Raw frames, those of QP 0, are not answered.
            reply.ack = !landed.response && landed.qpn.any() && !alone;
            reply.read = false;
            reply.psn = landed.psn;
            // The message that is refused was not completed (9.7.7.1).
            reply.msn = landed.reply.msn - cat!(24; bits::<23>(0u64), landed.reply.counted);
            reply.syndrome = if landed.own {
                syndrome::NAK_REMOTE_OPERATION.to_bits()
            } else {
                syndrome::NAK_REMOTE_ACCESS.to_bits()
            };
        }
        if lost {
            completion.status = wc::REM_ACCESS.to_bits();
            completion.cause = cause::KEY_ACCESS.to_bits();
        }
        // Behind a fault nothing completes, and the driver flushes what is posted; but not what was taken from a shared queue.
        if flushed {
            completion.status = wc::WR_FLUSH.to_bits();
            completion.cause = cause::FLUSHED.to_bits();
        }
        let mut count: Bits<64> = 0.into();
        if take {
            self.due.d.next = !reply.read || reply.atomic;
            self.own.d.next = reply.read && landed.wrote;
            self.has_completion.d.next = completion.valid && (!flushed || completion.shared);
            self.has_error.d.next = (landed.fault || completion.cause.any()) && !flushed && !drops;
            self.has_go.d.next = (reply.ack || reply.read) && !flushed;
            count = count.replace_bit(counter::RX_ACCEPTED, landed.accepted && !landed.fault && !landed.flushed);
            count = count.replace_bit(counter::RX_QP_STATE, landed.accepted && landed.flushed && !lost);
            count = count.replace_bit(counter::RX_UNRELIABLE, landed.accepted && lost);
            count =
                count.replace_bit(counter::RX_REMOTE_ACCESS, landed.accepted && landed.fault && !landed.own && !alone);
            count = count.replace_bit(counter::RX_REMOTE_OPERATION, landed.accepted && landed.fault && landed.own);
        }
        if ready {
            self.completion_q.d.next = completion;
            self.completion_q.d.next.shared = false;
            self.error_q.d.next = QpError {
                qpn: landed.qpn,
                generation: landed.generation,
                any_generation: false,
                cause: completion.cause,
                event: !completion.valid,
                send_only: landed.response && landed.reply.counted,
                limit: false,
            };
            self.go_q.d.next = ReplyGo { qpn: landed.qpn, generation: landed.generation, reply };
        }
        self.count_q.d.next = count;

        // Nothing is pending here: all that came has been handed on, its writes as well. Nothing is under way behind: nor is what
        // was handed on.
        if take && !landed.more {
            self.came.d.next = self.came.q.val() + 1;
        }
        if ready && clear {
            self.done.d.next = self.came.q.val();
        }
        if self.completed.val() {
            self.through_q.d.next = self.done.q.val();
        }
        self.through.next = self.through_q.q.val();
        self.count.next = self.count_q.q.val();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::kit::{bytes_of, options};
    use abi::{
        queue::recv_op::{RECV, RECV_INV, RECV_WRITE_IMM},
        status::cause,
    };
    use rand::RngExt;
    use std::collections::BTreeMap;
    use verilate::{
        Model,
        bench::{self, Actor, Sink, Source, Stall},
    };

    /// The write channel: it takes a packet's last write some cycles after the packet has landed, and performs it later still.
    /// Nothing follows from a packet before the first, no READ is handed on before the second.
    struct Channel {
        rng: rand_chacha::ChaCha8Rng,
        rate: f64,
        /// Of what is still to land: it writes, and is a READ.
        steps: std::collections::VecDeque<(bool, bool)>,
        up: bool,
        waits: bool,
        /// The channel has the packet's own write in the next cycle.
        takes: bool,
        counts_now: bool,
        /// The reply at hand is a READ, or an atomic write; and before it so many writes were issued.
        reads: bool,
        read: Option<u16>,
        issued: u16,
        performed: u16,
        counts: BTreeMap<usize, u64>,
        waited: u64,
    }
    impl Actor for Channel {
        fn drive(&mut self, m: &mut Model) {
            self.up = self.rng.random_bool(self.rate);
            // Writes of others as well. The packet's own counts a cycle after it was taken.
            if std::mem::replace(&mut self.counts_now, self.takes) {
                self.issued = self.issued.wrapping_add(1);
            } else if std::mem::take(&mut self.takes) {
                self.read = self.reads.then_some(self.issued.wrapping_add(1));
            } else {
                self.issued = self.issued.wrapping_add(u16::from(self.rng.random_bool(0.1)));
            }
            if self.performed != self.issued && self.rng.random_bool(0.3) {
                self.performed = self.performed.wrapping_add(1);
            }
            m.set("written", self.up.into());
            m.set("issued", self.issued.into());
            m.set("performed", self.performed.into());
        }
        fn observe(&mut self, m: &Model) {
            let count = m.get("count");
            (0..64).filter(|i| count >> i & 1 != 0).for_each(|i| *self.counts.entry(i).or_insert(0) += 1);
            let valid = ["completion.valid", "error.valid", "go.valid"].map(|name| m.bit(name));
            assert!(!self.waits || valid == [false; 3], "a consequence before the packet's writes");
            if let Some(ticket) = self.read.filter(|_| valid[2]) {
                assert!(self.performed.wrapping_sub(ticket) < 1 << 15, "a READ before the writes in front of it");
                self.waited += u64::from(ticket == self.performed);
            }
            if m.bit("landed.valid") && m.bit("landed.ready") {
                let (wrote, read) = self.steps.pop_front().unwrap();
                self.waits = wrote;
                self.reads = read;
                self.read = (read && !wrote).then_some(self.issued);
            }
            self.takes = self.waits && self.up;
            self.waits &= !self.up;
        }
        fn done(&self) -> bool {
            true
        }
        fn status(&self) -> String {
            format!("{} of {} writes performed", self.performed, self.issued)
        }
    }

    /// The completion queues take a while for each completion. A packet is through when they are done with it.
    struct Behind {
        rng: rand_chacha::ChaCha8Rng,
        /// Of what is still to land: how many consequences, whether it is a packet's last step, and whether it writes.
        steps: std::collections::VecDeque<(usize, bool, bool)>,
        came: u64,
        /// Consequences that the last step still has, and the number of its packet, from 1.
        pending: usize,
        last: u64,
        /// Its last write still waits for the channel.
        writes: bool,
        /// Cycles that the present completion still takes, and the number of its packet.
        left: u64,
        completing: u64,
        through: u64,
    }
    impl Actor for Behind {
        fn drive(&mut self, m: &mut Model) {
            m.set("completed", (self.left == 0).into());
        }
        fn observe(&mut self, m: &Model) {
            let through = m.get("through");
            assert!(through >= self.through && through <= self.came, "{through} of {} through", self.came);
            assert!(self.left == 0 || through < self.completing, "through with its completion under way");
            assert!(self.pending == 0 || through < self.last, "through with {} consequences to come", self.pending);
            assert!(!self.writes || through < self.last, "through with a write to come");
            self.through = through;
            self.left = self.left.saturating_sub(1);
            let moves = |name: &&str| m.bit(&*format!("{name}.valid")) && m.bit(&*format!("{name}.ready"));
            if moves(&"completion") {
                (self.left, self.completing) = (self.rng.random_range(1..8), self.last);
            }
            self.pending -= ["completion", "error", "go"].iter().filter(|name| moves(name)).count();
            if moves(&"landed") {
                let (pending, last, writes) = self.steps.pop_front().unwrap();
                (self.pending, self.last, self.writes) = (pending, self.came + 1, writes);
                self.came += u64::from(last);
            }
            self.writes &= !m.bit("written");
        }
        fn done(&self) -> bool {
            self.steps.is_empty() && self.through == self.came
        }
        fn status(&self) -> String {
            format!("{} of {} packets through", self.through, self.came)
        }
    }

    /// What a landed packet leads to.
    fn reference(l: &Landed) -> (Option<Completion>, Option<QpError>, Option<ReplyGo>) {
        let (mut completion, mut reply) = (l.completion, l.reply);
        completion.shared = false;
        let alone = is_alone(reply) && !l.response;
        if alone && (l.passing || l.fault && !l.own) {
            // A message of UC that does not open, or the rest of it: only a receive that it has taken tells of it.
            if !completion.valid {
                return (None, None, None);
            }
            (completion.status, completion.cause) = (wc::REM_ACCESS.to_bits(), cause::KEY_ACCESS.to_bits());
            let QpError { any_generation, event, send_only, limit, .. } = QpError::default();
            let (qpn, generation, cause) = (l.qpn, l.generation, completion.cause);
            return (
                Some(completion),
                Some(QpError { qpn, generation, any_generation, cause, event, send_only, limit }),
                None,
            );
        }
        if l.flushed {
            // What was taken from a shared queue is told of.
            (completion.status, completion.cause) = (wc::WR_FLUSH.to_bits(), cause::FLUSHED.to_bits());
            return ((completion.valid && l.completion.shared).then_some(completion), None, None);
        }
        if l.fault {
            // What a receive was taken for tells of it in any case.
            completion.valid = l.own || l.completion.valid;
            let status = match (l.own, l.completion.opcode == RECV_INV as u64) {
                (true, _) => wc::LOC_PROT,
                (false, true) => wc::REM_INV_REQ,
                (false, false) => wc::LOC_ACCESS,
            };
            completion.status = (status as u64).to_bits();
            completion.cause = l.cause;
            let syndrome: u64 = if l.own { 0x63 } else { 0x62 };
            let ack = !l.response && l.qpn.any() && !alone;
            let msn = l.reply.msn - u64::from(l.reply.counted);
            reply = Reply { ack, read: false, psn: l.psn, msn, syndrome: syndrome.to_bits(), ..l.reply };
        }
        let error = QpError {
            qpn: l.qpn,
            generation: l.generation,
            any_generation: false,
            cause: completion.cause,
            event: !completion.valid,
            send_only: l.response && l.reply.counted,
            limit: false,
        };
        let go = ReplyGo { qpn: l.qpn, generation: l.generation, reply };
        (
            completion.valid.then_some(completion),
            completion.cause.any().then_some(error),
            (reply.ack || reply.read).then_some(go),
        )
    }

    #[test]
    fn faults_become_completions_naks_and_errors() {
        let mut m = Model::of(Commit::default, options()).unwrap();
        for (seed, stall) in [Stall::Never, Stall::Rate(0.5), Stall::Random].into_iter().enumerate() {
            let mut rng = verilate::rng(seed as u64);
            m.reset();
            let mut source = Source::new(&m, "landed", stall, 1);
            let mut sinks = ["completion", "error", "go"].map(|name| Sink::new(&m, name, stall, 2));
            let (mut completions, mut errors, mut goes) = (vec![], vec![], vec![]);
            let n = verilate::scale(500) as u64;
            let mut verdicts = BTreeMap::new();
            let (steps, behind_rng) = (Default::default(), verilate::rng(seed as u64 + 10));
            let (came, pending, last, writes, left, completing, through) = Default::default();
            let mut behind = Behind { rng: behind_rng, steps, came, pending, last, writes, left, completing, through };
            let mut channel = Channel {
                rng: rng.clone(),
                rate: if stall == Stall::Never { 1.0 } else { 0.3 },
                steps: Default::default(),
                up: false,
                waits: false,
                takes: false,
                counts_now: false,
                reads: false,
                read: None,
                issued: 0xfff0,
                performed: 0xfff0,
                counts: BTreeMap::new(),
                waited: 0,
            };
            for i in 0..n {
                let why = [0, 0, 0, cause::FLUSHED, cause::KEY_INVALID, cause::KEY_BOUNDS][rng.random_range(0..6)];
                let mut l = Landed { cause: (why as u64).to_bits(), ..Default::default() };
                l.flushed = why == cause::FLUSHED;
                l.fault = !l.flushed && why != 0;
                l.own = rng.random();
                l.qpn = (rng.random_range(0..4096u64) * u64::from(rng.random_bool(0.9))).to_bits();
                l.generation = rng.random_range(0..256u64).to_bits();
                l.psn = i.to_bits();
                l.response = rng.random_bool(0.3);
                l.accepted = !l.response && rng.random_bool(0.5);
                l.reply.ack = !l.response && rng.random_bool(0.5);
                l.reply.read = !l.response && !l.reply.ack && rng.random_bool(0.5);
                l.reply.again = !l.reply.ack && rng.random_bool(0.3);
                l.passing = l.flushed && is_alone(l.reply) && !l.response && rng.random();
                l.wrote = why == 0 && rng.random_bool(if l.reply.read { 0.2 } else { 0.5 });
                l.reply.psn = i.to_bits();
                l.reply.msn = rng.random_range(0..3u64).to_bits();
                l.reply.counted = rng.random();
                l.reply.syndrome = 0x1fu64.to_bits();
                l.more = rng.random_bool(0.2);
                l.completion.valid = rng.random_bool(0.3);
                l.completion.shared = !l.response && rng.random_bool(0.3);
                l.completion.length = i.to_bits();
                l.completion.opcode =
                    [0, RECV, RECV_INV, RECV_WRITE_IMM].map(u64::from)[rng.random_range(0..4)].to_bits();
                if !l.fault && rng.random_bool(0.1) {
                    l.completion.cause = (cause::INVALID_REQUEST as u64).to_bits();
                }
                let mut beat = source.beat();
                beat.set_bytes("data", &bytes_of(l));
                source.push(beat);
                let alone = is_alone(l.reply) && !l.response;
                let verdict = match why {
                    _ if alone && (l.passing || l.fault && !l.own) => counter::RX_UNRELIABLE,
                    0 => counter::RX_ACCEPTED,
                    cause::FLUSHED => counter::RX_QP_STATE,
                    _ if l.own => counter::RX_REMOTE_OPERATION,
                    _ => counter::RX_REMOTE_ACCESS,
                };
                if l.accepted {
                    *verdicts.entry(verdict).or_insert(0) += 1;
                }
                let (c, e, g) = reference(&l);
                channel.steps.push_back((l.wrote, !l.flushed && !l.fault && l.reply.read));
                let consequences = usize::from(c.is_some()) + usize::from(e.is_some()) + usize::from(g.is_some());
                behind.steps.push_back((consequences, !l.more, l.wrote));
                completions.extend(c.map(bytes_of));
                errors.extend(e.map(bytes_of));
                goes.extend(g.map(bytes_of));
            }
            for (sink, want) in sinks.iter_mut().zip([&completions, &errors, &goes]) {
                sink.expect(want.len() as u64);
            }
            let start = m.cycle();
            let [a, b, c] = &mut sinks;
            bench::run(&mut m, &mut [&mut source, &mut channel, &mut behind, a, b, c], 100 * n);
            if stall == Stall::Never {
                let cycles = m.cycle() - start - 32;
                println!("{:.2} cycles per packet", cycles as f64 / n as f64);
                assert!(cycles <= 4 * n);
            }
            assert_eq!(channel.counts, verdicts);
            assert!(channel.waited > n / 50, "no READ waited");
            for (sink, want) in sinks.iter_mut().zip([completions, errors, goes]) {
                for bytes in want {
                    assert_eq!(sink.pop().unwrap().bytes("data"), bytes);
                }
                assert!(sink.is_empty());
            }
        }
    }
}
