//! Sends requests to the responder and responses to the completer, and puts their results back into the order of
//! arrival. For the landing unit, which thereby frees the receive buffer in order, and lets no completion overtake data.
//!
//! ```text
//! meta --+--> to_responder    responder    from_responder --+
//!        |                                                  +--> op      (the order FIFO says whose turn it is)
//! wake --+--> to_completer    completer    from_completer --+
//! ```
//! All paths pass through within the cycle. A packet enters an engine only when the order FIFO has room for its turn,
//! and each packet yields exactly one op with `last` and
//! without `more`, so every turn ends. A wake-up call takes a turn like a packet; the
//! completer has at most one pending and asks for the next after its turn.

use super::opcode::{WAKE, is_response};
use crate::{
    msg::*,
    stream::{Sink, Source},
};
use hdl::prelude::*;

/// Turns that may be outstanding: both engines hold at most one packet each, and a result register.
const TURNS: u64 = 16;

/// See the module.
#[derive(LogicBlock, Default)]
pub struct Dispatch {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// From ingress.
    pub meta: Sink<RxMeta>,
    /// QPs with which the completer has business of its own (timers, faults of the send side).
    pub wake: Sink<Qp>,
    pub to_responder: Source<RxMeta>,
    pub to_completer: Source<RxMeta>,
    pub from_responder: Sink<RxOp>,
    pub from_completer: Sink<RxOp>,
    /// In the order of arrival, to landing.
    pub op: Source<RxOp>,
    /// A packet or a wake-up call has got its turn: it ends with the op that has `last` without `more`.
    pub began: Signal<Out, Bit>,
    /// Whose turn: bit set for the completer. A ring of [`TURNS`] bits.
    turns: Reg<Bits<16>>,
    head: Reg<Bits<4>>,
    fill: Reg<Bits<5>>,
    /// A packet was offered and not taken: no wake-up call may step in front of it.
    offered: Reg<Bit>,
}

impl Logic for Dispatch {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, turns, head, fill, offered);
        let room = self.fill.q.val() != TURNS;
        let wake = self.wake.valid.val() && !self.offered.q.val();
        let meta = self.meta.data.val();
        let response = !meta.raw && is_response(meta.opcode);

        let mut call = RxMeta {
            raw: false,
            buf: 0.into(),
            payload: 0.into(),
            rows: 0.into(),
            opcode: WAKE.to_bits(),
            qpn: self.wake.data.val().cast::<24>(),
            psn: 0.into(),
            pkey: 0.into(),
            ack_req: false,
            solicited: false,
            pad: 0.into(),
            va: 0.into(),
            rkey: 0.into(),
            dma_len: 0.into(),
            syndrome: 0.into(),
            msn: 0.into(),
            imm: 0.into(),
            sip: 0.into(),
            ip6: false,
            gid: 0.into(),
            vlan: 0.into(),
            ce: false,
        };
        if !wake {
            call = meta;
        }
        let offer = self.meta.valid.val() && room && !wake;
        self.to_responder.data.next = meta;
        self.to_responder.valid.next = offer && !response;
        self.to_completer.data.next = call;
        self.to_completer.valid.next = (wake && room) || (offer && response);
        let taken_r = offer && !response && self.to_responder.ready.val();
        let taken_c = offer && response && self.to_completer.ready.val();
        let taken_w = wake && room && self.to_completer.ready.val();
        self.meta.ready.next = taken_r || taken_c;
        self.wake.ready.next = taken_w;
        self.offered.d.next = offer && !(taken_r || taken_c);

        let some = self.fill.q.val().any();
        let completer = self.turns.q.val().get_bit(self.head.q.val().index());
        let op = if completer { self.from_completer.data.val() } else { self.from_responder.data.val() };
        let valid = some && if completer { self.from_completer.valid.val() } else { self.from_responder.valid.val() };
        self.op.data.next = op;
        self.op.valid.next = valid;
        let ready = some && self.op.ready.val();
        self.from_completer.ready.next = ready && completer;
        self.from_responder.ready.next = ready && !completer;

        let push = taken_r || taken_c || taken_w;
        self.began.next = push;
        let pop = valid && self.op.ready.val() && op.last && !op.more;
        if push {
            let tail = self.head.q.val() + self.fill.q.val().get_bits::<4>(0);
            self.turns.d.next = self.turns.q.val().replace_bit(tail.index(), !taken_r);
        }
        if pop {
            self.head.d.next = self.head.q.val() + 1;
        }
        if push && !pop {
            self.fill.d.next = self.fill.q.val() + 1;
        }
        if pop && !push {
            self.fill.d.next = self.fill.q.val() - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::kit::{bytes_of, fields_of, options};
    use rand::RngExt;
    use std::collections::VecDeque;
    use verilate::{
        Model,
        bench::{self, Actor, Beat, Sink, Source, Stall},
    };

    /// An engine: turns each packet into one to three ops that carry its PSN, some cycles later.
    struct Engine {
        input: Sink,
        output: Source,
        rng: rand_chacha::ChaCha8Rng,
        calls: u64,
        held: VecDeque<Beat>,
        response: bool,
    }
    impl Actor for Engine {
        fn drive(&mut self, m: &mut Model) {
            self.input.drive(m);
            if let Some(beat) = self.held.pop_front() {
                self.output.push(beat);
            }
            self.output.drive(m);
        }
        fn observe(&mut self, m: &Model) {
            self.input.observe(m);
            self.output.observe(m);
            if let Some(beat) = self.input.pop() {
                let meta = fields_of::<RxMeta>(&beat.bytes("data"));
                let get = |k: &str| meta.get(k).copied().unwrap_or(0) as u64;
                self.calls += (get("opcode") == WAKE as u64) as u64;
                let n = self.rng.random_range(1..=3);
                for i in 0..n {
                    let op = RxOp {
                        qpn: (get("qpn") & 0xfff).to_bits(),
                        psn: get("psn").to_bits(),
                        response: self.response,
                        last: i + 1 == n,
                        ..Default::default()
                    };
                    let mut beat = self.output.beat();
                    beat.set_bytes("data", &bytes_of(op));
                    self.held.push_back(beat);
                }
            }
        }
        fn done(&self) -> bool {
            self.held.is_empty() && self.output.done()
        }
        fn status(&self) -> String {
            self.output.status()
        }
    }

    /// Counts turns.
    #[derive(Default)]
    struct Turns(u64);
    impl Actor for Turns {
        fn drive(&mut self, _: &mut Model) {}
        fn observe(&mut self, m: &Model) {
            self.0 += m.get("began");
        }
        fn done(&self) -> bool {
            true
        }
        fn status(&self) -> String {
            format!("{} turns", self.0)
        }
    }

    #[test]
    fn results_leave_in_order_of_arrival() {
        let mut m = Model::of(Dispatch::default, options()).unwrap();
        for (seed, stall) in [Stall::Never, Stall::Rate(0.5), Stall::Random].into_iter().enumerate() {
            let mut rng = verilate::rng(seed as u64);
            m.reset();
            let mut source = Source::new(&m, "meta", stall, 1);
            let mut wake = Source::new(&m, "wake", Stall::Random, 2);
            let mut sink = Sink::new(&m, "op", stall, 3);
            let mut engines = ["responder", "completer"].map(|name| Engine {
                input: Sink::new(&m, &format!("to_{name}"), stall, 4),
                output: Source::new(&m, &format!("from_{name}"), Stall::Random, 5),
                rng: verilate::rng(6),
                calls: 0,
                held: VecDeque::new(),
                response: name == "completer",
            });
            let n = verilate::scale(500) as u64;
            let mut responses = vec![];
            for i in 0..n {
                let opcode: u64 = [0x0a, 0x11, 0x0d, 0x81, 0x64][rng.random_range(0..5)];
                let raw = rng.random_bool(0.1);
                responses.push(!raw && (opcode == 0x11 || opcode == 0x0d));
                let meta = RxMeta { raw, opcode: opcode.to_bits(), psn: (i + 1).to_bits(), ..Default::default() };
                let mut beat = source.beat();
                beat.set_bytes("data", &bytes_of(meta));
                source.push(beat);
            }
            (0..n / 10).for_each(|q| wake.push(wake.beat().with("data", q)));
            sink.expect(n);
            let [a, b] = &mut engines;
            let mut turns = Turns::default();
            bench::run(&mut m, &mut [&mut source, &mut wake, a, b, &mut sink, &mut turns], 1000 * n);
            assert_eq!(turns.0, n + n / 10);
            assert_eq!((engines[0].calls, engines[1].calls), (0, n / 10));
            // Wake-up calls carry PSN 0; the packets count up, each from its engine.
            let mut psn = 0;
            while let Some(beat) = sink.pop() {
                let op = fields_of::<RxOp>(&beat.bytes("data"));
                let now = op.get("psn").copied().unwrap_or(0) as u64;
                if now != 0 {
                    assert!(now == psn || now == psn + 1, "{now} after {psn}");
                    psn = now;
                    assert_eq!(op.contains_key("response"), responses[psn as usize - 1]);
                }
            }
            assert_eq!(psn, n);
        }
    }
}
