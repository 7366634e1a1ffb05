//! Sends requests to the responder and responses to the completer, and puts their results back into the order of
//! arrival. For the landing unit, which thereby frees the receive buffer in order, and lets no completion overtake data.
//!
//! ```text
//! meta --> copies --+--> to_responder    responder    from_responder --+
//!                   |                                                  +--> op      (the order FIFO says whose turn it is)
//! wake -------------+--> to_completer    completer    from_completer --+
//! ```
//! All paths pass through within the cycle, one LUT behind the packet's `response` bit, and whose turn it is is known from registers. A packet enters an engine only when the order FIFO has room for its turn,
//! and each packet yields exactly one op with `last` and
//! without `more`, so every turn ends. A wake-up call takes a turn like a packet; the
//! completer has at most one pending and asks for the next after its turn.

use super::copies::Copies;
use crate::{
    msg::*,
    stream::{Sink, Source, TablePort},
};
use hdl::prelude::*;

/// Turns that may be outstanding: more than both engines hold, one packet each and a result register.
const TURNS: usize = 8;

/// See the module.
#[derive(LogicBlock)]
pub struct Dispatch {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// From ingress.
    pub meta: Sink<RxMeta>,
    /// QPs with which the completer has business of its own (timers, faults of the send side).
    pub wake: Sink<Qp>,
    pub to_responder: Source<RxMeta>,
    /// A wake-up call is no `response`, and says nothing else but `qpn` and `rows`.
    pub to_completer: Source<RxMeta>,
    pub from_responder: Sink<RxOp>,
    pub from_completer: Sink<RxOp>,
    /// In the order of arrival, to landing.
    pub op: Source<RxOp>,
    /// A packet or a wake-up call has got its turn: it ends with the op that has `last` without `more`.
    pub began: Signal<Out, Bit>,
    /// MEMBER rows; always ready.
    pub table: TablePort,
    /// What `meta` becomes.
    copies: Copies,
    /// Turns that are outstanding, and those of them that are the completer's: the next one is bit 0.
    turns: Reg<Bits<TURNS>>,
    completers: Reg<Bits<TURNS>>,
    /// This cycle is a wake-up call's: known ahead, for packets come late in the cycle.
    calls: Reg<Bit>,
}

impl Dispatch {
    /// For packets to `qps` QPs.
    pub fn new(qps: usize) -> Self {
        Dispatch {
            clock: Default::default(),
            rst: Default::default(),
            meta: Default::default(),
            wake: Default::default(),
            to_responder: Default::default(),
            to_completer: Default::default(),
            from_responder: Default::default(),
            from_completer: Default::default(),
            op: Default::default(),
            began: Default::default(),
            table: Default::default(),
            copies: Copies::new(qps),
            turns: Default::default(),
            completers: Default::default(),
            calls: Default::default(),
        }
    }
}

impl Logic for Dispatch {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, turns, completers, calls);
        clock_reset!(self, clock, rst, copies);
        Sink::<RxMeta>::link(&mut self.meta, &mut self.copies.meta);
        TablePort::link(&mut self.table, &mut self.copies.table);
        let (turns, completers) = (self.turns.q.val(), self.completers.q.val());
        let room = !turns.get_bit(TURNS - 1);
        let wake = self.calls.q.val();
        let meta = self.copies.out.data.val();
        let response = meta.response;

        // A call names a QP and has no rows to free. The rest of it, which may change while it waits, means nothing.
        let mut call = meta;
        if wake {
            call.response = false;
            call.qpn = self.wake.data.val().cast::<24>();
            call.rows = 0.into();
        }
        let open = room && !wake;
        let offer = self.copies.out.valid.val() && open;
        self.to_responder.data.next = meta;
        self.to_responder.valid.next = offer && !response;
        self.to_completer.data.next = call;
        self.to_completer.valid.next = (wake && room) || (offer && response);
        let taken_r = offer && !response && self.to_responder.ready.val();
        let taken_c = offer && response && self.to_completer.ready.val();
        let taken_w = wake && room && self.to_completer.ready.val();
        self.copies.out.ready.next =
            open && if response { self.to_completer.ready.val() } else { self.to_responder.ready.val() };
        self.wake.ready.next = taken_w;
        // In front of a packet that was offered and not taken steps no call.
        let stays = offer && !(taken_r || taken_c);
        self.calls.d.next = self.wake.valid.val() && !taken_w && !stays;

        let (of_r, of_c) = (turns.get_bit(0) && !completers.get_bit(0), turns.get_bit(0) && completers.get_bit(0));
        let (from_r, from_c) = (self.from_responder.data.val(), self.from_completer.data.val());
        let (valid_r, valid_c) = (of_r && self.from_responder.valid.val(), of_c && self.from_completer.valid.val());
        let ready = self.op.ready.val();
        self.op.data.next = if completers.get_bit(0) { from_c } else { from_r };
        self.op.valid.next = valid_r || valid_c;
        self.from_completer.ready.next = ready && of_c;
        self.from_responder.ready.next = ready && of_r;

        // A turn that ends makes room for the next ones; a new turn takes the lowest free place.
        let push = taken_r || taken_c || taken_w;
        self.began.next = push;
        let ends_r = valid_r && from_r.last && !from_r.more;
        let ends_c = valid_c && from_c.last && !from_c.more;
        let pop = ready && (ends_r || ends_c);
        let held: Bits<TURNS> = if pop { turns >> 1 } else { turns };
        let whose: Bits<TURNS> = if pop { completers >> 1 } else { completers };
        self.turns.d.next = if push { (held << 1) | 1 } else { held };
        let fresh: Bits<TURNS> = if taken_r { 0.into() } else { !held };
        self.completers.d.next = (whose & held) | fresh;
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
            // Of a call only what it says stays while it waits.
            if self.response && !fields_of::<RxMeta>(m.bytes("to_completer.data")).contains_key("response") {
                self.input.after_reset();
            }
            self.input.observe(m);
            self.output.observe(m);
            if let Some(beat) = self.input.pop() {
                let meta = fields_of::<RxMeta>(&beat.bytes("data"));
                let get = |k: &str| meta.get(k).copied().unwrap_or(0) as u64;
                let call = self.response && get("response") == 0;
                self.calls += call as u64;
                assert!(!call || get("rows") == 0, "a call frees no rows");
                let n = self.rng.random_range(1..=3);
                for i in 0..n {
                    let op = RxOp {
                        qpn: (get("qpn") & 0xfff).to_bits(),
                        psn: if call { 0.into() } else { get("psn").to_bits() },
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
        let mut m = Model::of(|| Dispatch::new(256), options()).unwrap();
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
                let response = rng.random_bool(0.4);
                responses.push(response);
                let meta = RxMeta { response, rows: 3u64.to_bits(), psn: (i + 1).to_bits(), ..Default::default() };
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
