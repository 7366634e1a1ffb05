//! The completer clock by clock, for rules in which time matters.

use super::*;

/// A clock-by-clock run with wake-up calls returned as dispatch does; for faults and timers.
pub(super) struct Live {
    pub(super) m: Model,
    pub(super) around: Around,
    pub(super) tick: u64,
}

/// What comes out: ops and go backs in order, with the tick they came in.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Happens {
    Op(String),
    Back(u64),
}

impl Live {
    pub(super) fn new(setup: impl FnOnce(&mut Reference)) -> Self {
        Self::with_tick(64, setup)
    }
    /// A tick has so many cycles.
    pub(super) fn with_tick(tick: usize, setup: impl FnOnce(&mut Reference)) -> Self {
        let mut m = Model::of(|| Completer::new(QPS, tick, 5, 2), options()).unwrap();
        m.reset();
        let mut qps = qps();
        setup(&mut qps[1]);
        for (q, r) in qps.iter().enumerate() {
            load(&mut m, q, r);
        }
        let around = Around::new(&m, &qps);
        m.set("op.ready", 1);
        m.set("back.ready", 1);
        m.set("wake.ready", 0);
        Live { m, around, tick: tick as u64 }
    }
    pub(super) fn left(&mut self, psn: u64) {
        self.leaves(psn, true);
    }
    /// It leaves once more.
    pub(super) fn left_again(&mut self, psn: u64) {
        self.leaves_of(1, psn, true, true);
    }
    /// A raw frame leaves: nobody else acknowledges it.
    pub(super) fn raw_left(&mut self, psn: u64) {
        self.leaves(psn, false);
    }
    pub(super) fn leaves(&mut self, psn: u64, expects: bool) {
        self.leaves_of(1, psn, expects, false);
    }
    pub(super) fn leaves_of(&mut self, qpn: u64, psn: u64, expects: bool, again: bool) {
        let left = TxLeft { qpn: qpn.to_bits(), psn: psn.to_bits(), expects, again };
        self.m.set_bytes("left.data", &bytes_of(left));
        self.m.set("left.valid", 1);
        self.cycle(None);
        self.m.set("left.valid", 0);
    }
    pub(super) fn cycle(&mut self, mut seen: Option<&mut Vec<(u64, Happens)>>) {
        self.around.drive(&mut self.m);
        self.m.eval();
        self.around.observe(&self.m);
        let now = self.m.cycle() / self.tick;
        if let Some(seen) = &mut seen {
            if self.m.bit("op.valid") {
                let op = fields_of::<RxOp>(self.m.bytes("op.data"));
                let get = |k: &str| op.get(k).copied().unwrap_or(0);
                if get("write") != 0 && get("need") == to_invalidate(invalidate::LOCAL).into() {
                    assert_eq!((get("pd"), get("last"), get("completion.opcode")), (0x701, 1, 8));
                    seen.push((now, Happens::Op(format!("kills {:x}", get("key")))));
                }
                if get("completion.valid") != 0 || get("completion.cause") != 0 {
                    let text = format!("cqe {} status {}", get("completion.wqe_index"), get("completion.status"));
                    seen.push((now, Happens::Op(text)));
                }
            }
            if self.m.bit("back.valid") {
                let back = fields_of::<GoBack>(self.m.bytes("back.data"));
                seen.push((now, Happens::Back(back.get("psn").copied().unwrap_or(0) as u64)));
            }
        }
        self.m.tick();
    }
    /// Runs for some ticks.
    pub(super) fn run(&mut self, ticks: u64, give: &[RxMeta]) -> Vec<(u64, Happens)> {
        let mut seen = vec![];
        let mut give: VecDeque<RxMeta> = give.iter().copied().collect();
        let end = self.m.cycle() + ticks * self.tick;
        while self.m.cycle() < end {
            self.m.eval();
            if give.is_empty() && self.m.bit("wake.valid") {
                let q = self.m.get("wake.data");
                give.push_back(RxMeta { qpn: q.to_bits(), ..Default::default() });
                self.m.set("wake.ready", 1);
            }
            if let Some(meta) = give.front() {
                self.m.set_bytes("meta.data", &bytes_of(*meta));
                self.m.set("meta.valid", 1);
                self.m.eval();
                if self.m.bit("meta.ready") {
                    give.pop_front();
                }
            }
            self.cycle(Some(&mut seen));
            self.m.set("wake.ready", 0);
            self.m.set("meta.valid", 0);
        }
        seen
    }
    pub(super) fn fault(&mut self, psn: u64, blocks: u64) {
        let fault = SendFault {
            qpn: 1u64.to_bits(),
            generation: 10u64.to_bits(),
            psn: psn.to_bits(),
            cause: (if blocks == 0 { cause::KEY_PD } else { cause::WQE_OPCODE } as u64).to_bits(),
            blocks: blocks.to_bits(),
            opcode: 0u64.to_bits(),
        };
        self.tell(fault);
    }
    /// A local operation is to be done; what was sent before it asks for an answer.
    pub(super) fn local(&mut self, psn: u64, asks: bool) {
        self.tell(SendFault {
            qpn: 1u64.to_bits(),
            generation: 10u64.to_bits(),
            psn: psn.to_bits(),
            cause: 0u64.to_bits(),
            blocks: u64::from(!asks).to_bits(),
            opcode: 8u64.to_bits(),
        });
    }
    pub(super) fn tell(&mut self, fault: SendFault) {
        self.m.set_bytes("fault.data", &bytes_of(fault));
        self.m.set("fault.valid", 1);
        self.m.eval();
        while !self.m.bit("fault.ready") {
            self.cycle(None);
            self.m.eval();
        }
        self.cycle(None);
        self.m.set("fault.valid", 0);
    }
}

/// When it went back.
pub(super) fn backs(seen: &[(u64, Happens)]) -> Vec<u64> {
    seen.iter().filter(|(_, e)| matches!(e, Happens::Back(_))).map(|(t, _)| *t).collect()
}
