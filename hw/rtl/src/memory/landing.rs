//! Lets received packets land: checks the key of every step, writes the payload, passes the verdict on.
//!
//! For responder and completer before it (through `order`), commit behind it. Steps are taken in order; each that moves
//! bytes asks the receive access port at once, so that several checks are under way, and waits in a queue for its
//! turn. At its turn the halt bit of its QP's side is read (for a step that need not wait, as it is taken), its chunks
//! become DMA writes straight from the receive buffer, and the packet's last step goes on as a `Landed`. Its last write is
//! then on offer to the channel: what follows from the packet must wait until `written`.
//!
//! The first fault of a packet is its cause; the steps behind it write nothing. It also *halts* that side of the QP: later
//! packets write nothing and go on with `FLUSHED`, until a `LOAD` row of that side clears the halt. Every packet
//! frees its buffer rows, with its last write or with a write of 0 bytes.
//!
//! ```text
//! cycle   0             1 ..          5                6
//! op    taken, asks | (access) .. | judge, Landed | write, `written` if it is taken
//!       look, if none waits
//! ```
//! A step takes 2 cycles, look and judge (1 more for every chunk but the first). Cannot deadlock: it waits for access, the write channel
//! and commit, none of which waits for it. Halt bits need no clearing at reset: a queue is loaded before it is used.

use crate::{
    msg::{AccessReq, Chunk, DmaWrite, Landed, RxOp},
    stream::{Fifo, Sink, Source, TablePort},
};
use abi::{
    status::{cause, counter::KEY_FAULT},
    table::{id, qp_recv, qp_send},
};
use hdl::prelude::*;

/// Steps that wait for their turn: more than the access port's latency, at one step in 2 cycles.
const PENDING: usize = 16;

/// Landing of received packets.
#[derive(LogicBlock)]
pub struct Landing {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// Steps, the steps of a packet one behind the other.
    pub op: Sink<RxOp>,
    /// Packets that have landed, in order.
    pub landed: Source<Landed>,
    /// The channel has all writes of the packets that have landed, the last one in this cycle.
    pub written: Signal<Out, Bit>,
    /// To the receive access port.
    pub req: Source<AccessReq>,
    /// From it.
    pub chunk: Sink<Chunk>,
    /// To the arbiter of the write channel: what that takes is in order with whatever commit causes then, and counted in
    /// the channel's `issued`.
    pub write: Source<DmaWrite>,
    /// `QP_RECV` and `QP_SEND` rows with `LOAD` clear that side's halt. A read gives 0.
    pub table: TablePort,
    /// `KEY_FAULT`.
    pub count: Signal<Out, Bits<64>>,
    pending: Fifo<RxOp>,
    asking: Reg<Bit>,
    ask: DFF<AccessReq>,
    /// By QP and side: 1 for responses.
    halts: Ram<Bit, 13>,
    judging: Reg<Bit>,
    /// What failed in the present packet, or 0.
    cause: Reg<Bits<8>>,
    write_valid: Reg<Bit>,
    write_data: DFF<DmaWrite>,
    answered: Reg<Bit>,
    fault: Reg<Bit>,
}

impl Default for Landing {
    fn default() -> Self {
        Self {
            clock: Default::default(),
            rst: Default::default(),
            op: Default::default(),
            landed: Default::default(),
            written: Default::default(),
            req: Default::default(),
            chunk: Default::default(),
            write: Default::default(),
            table: Default::default(),
            count: Default::default(),
            pending: Fifo::new(PENDING),
            asking: Default::default(),
            ask: Default::default(),
            halts: Default::default(),
            judging: Default::default(),
            cause: Default::default(),
            write_valid: Default::default(),
            write_data: Default::default(),
            answered: Default::default(),
            fault: Default::default(),
        }
    }
}

impl Logic for Landing {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, asking, judging, cause, write_valid, answered, fault);
        dff_setup!(self, clock, ask, write_data);
        clock_reset!(self, clock, rst, pending);
        clock!(self, clock, halts);

        // Take a step; if it moves bytes, ask, in this cycle if the port takes it.
        let new = self.op.data.val();
        let asking = self.asking.q.val();
        let ready = self.pending.s.ready.val() && !asking;
        let take = self.op.valid.val() && ready;
        let asks = take && new.write && new.len != 0;
        self.op.ready.next = ready;
        self.pending.s.data.next = new;
        self.pending.s.valid.next = take;
        let req = AccessReq { key: new.key, va: new.va, len: new.len, span: new.span, pd: new.pd, need: new.need };
        self.req.data.next = if asking { self.ask.q.val() } else { req };
        self.req.valid.next = asking || asks;
        self.asking.d.next = (asking || asks) && !self.req.ready.val();
        if asks {
            self.ask.d.next = req;
        }

        // Look: read the halt bit of the oldest step, that may be the one that comes now.
        let op = self.pending.m.data.val();
        let waits = self.pending.m.valid.val();
        let judging = self.judging.q.val();
        let look = !judging && (waits || take);
        let side = cat!(13; op.response, op.qpn);
        self.halts.re.next = look;
        self.halts.raddr.next = if waits { side } else { cat!(13; new.response, new.qpn) };
        if look {
            self.judging.d.next = true;
        }

        // Judge: one chunk a cycle, or the step that moves nothing.
        let write_gone = !self.write_valid.q.val() || self.write.ready.val();
        let chunk = self.chunk.data.val();
        let moves = op.write && op.len != 0;
        let may = judging && write_gone;
        let present = may && (!moves || self.chunk.valid.val());
        let before = self.cause.q.val();
        let halted = self.halts.rdata.val();
        let fresh = before == 0 && !halted;
        let fails = fresh && moves && chunk.cause != 0;
        let writes = fresh && moves && chunk.cause == 0;
        let done = !moves || chunk.last;
        let ends = done && op.last;
        let goes = !ends || self.landed.ready.val();
        let act = present && goes;
        let verdict = if before != 0 {
            before
        } else if halted {
            bits::<8>(cause::FLUSHED as u64)
        } else if fails {
            chunk.cause
        } else {
            0.into()
        };
        self.chunk.ready.next = may && moves && goes;
        self.pending.m.ready.next = act && done;
        self.landed.data.next = Landed { cause: verdict, op: op };
        self.landed.valid.next = present && ends;
        self.write_valid.d.next = !write_gone;
        if act {
            if writes || (ends && op.rows != 0) {
                self.write_valid.d.next = true;
                self.write_data.d.next = DmaWrite {
                    iova: chunk.iova,
                    len: if writes { chunk.len } else { 0.into() },
                    is_inline: false,
                    buf: op.buf + chunk.offset.cast::<20>(),
                    data: 0.into(),
                    rows: if ends { op.rows } else { 0.into() },
                };
            }
            if ends {
                self.cause.d.next = 0.into();
            } else if fails {
                self.cause.d.next = chunk.cause;
            }
            if done {
                self.judging.d.next = false;
            }
        }
        self.write.data.next = self.write_data.q.val();
        self.write.valid.next = self.write_valid.q.val();
        self.written.next = write_gone;

        // Halt, or clear a halt in a cycle that does neither read nor halt.
        let halt = act && fails;
        let quiet = !look && !halt;
        let req = self.table.req.val();
        let send = req.table == bits::<4>(id::QP_SEND as u64);
        let recv = req.table == bits::<4>(id::QP_RECV as u64);
        let load =
            (send && req.row.get_bit(elab!(qp_send::LOAD.lsb))) || (recv && req.row.get_bit(elab!(qp_recv::LOAD.lsb)));
        let access = self.table.valid.val() && quiet;
        self.table.ready.next = quiet;
        self.answered.d.next = access && !req.write;
        self.table.rvalid.next = self.answered.q.val();
        self.table.rdata.next = 0.into();
        self.halts.we.next = halt || (access && req.write && load);
        self.halts.waddr.next = if halt { side } else { cat!(13; send, req.index.get_bits::<12>(0)) };
        self.halts.wdata.next = halt;

        self.fault.d.next = halt;
        self.count.next = if self.fault.q.val() { bits::<64>(1 << KEY_FAULT) } else { 0.into() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::msg::TableReq;
    use rand::RngExt;
    use rand_chacha::ChaCha8Rng;
    use std::collections::{HashSet, VecDeque};
    use verilate::{
        Model, Options,
        bench::{self, Actor, Sink as Taker, Source as Giver, Stall},
        bits::of,
        scale,
    };

    /// The chunks that the access port of these tests gives: pages of 4 KiB; a key of 1 to 4 is refused with that cause.
    fn chunks(key: u64, va: u64, len: u64) -> Vec<Chunk> {
        if key < 5 {
            return vec![Chunk { last: true, cause: bits(key), len: bits(len), ..Chunk::default() }];
        }
        let (mut out, mut at) = (vec![], 0);
        while at < len {
            let n = (4096 - ((va + at) & 4095)).min(len - at);
            let iova = bits((va + at) ^ 0xabcd_0000_0000);
            out.push(Chunk { iova, len: bits(n), offset: bits(at), last: at + n == len, cause: bits(0) });
            at += n;
        }
        out
    }

    /// The access port: `latency` cycles, one request a cycle, up to 16 chunks under way.
    struct Port {
        rng: ChaCha8Rng,
        stalls: bool,
        latency: u64,
        queue: VecDeque<(u64, Chunk)>,
        requests: u64,
        ready: bool,
        shown: bool,
    }
    impl Port {
        fn new(seed: u64, latency: u64, stalls: bool) -> Self {
            let rng = verilate::rng(seed);
            Self { rng, stalls, latency, queue: VecDeque::new(), requests: 0, ready: false, shown: false }
        }
    }
    impl Actor for Port {
        fn drive(&mut self, m: &mut Model) {
            self.ready = self.queue.len() < 12 && !(self.stalls && self.rng.random_bool(0.3));
            m.set("req.ready", self.ready.into());
            let front = self.queue.front().filter(|x| x.0 <= m.cycle());
            self.shown = front.is_some() && (self.shown || !(self.stalls && self.rng.random_bool(0.5)));
            m.set("chunk.valid", self.shown.into());
            let noise = Chunk { cause: bits(3), len: bits(77), ..Chunk::default() };
            m.set_bytes("chunk.data", &of(if self.shown { front.unwrap().1 } else { noise }));
        }
        fn observe(&mut self, m: &Model) {
            if self.shown && m.bit("chunk.ready") {
                self.queue.pop_front();
                self.shown = false;
            }
            if self.ready && m.bit("req.valid") {
                let req = m.get_bytes("req.data");
                let field = |at, bits| verilate::bits::get(&req, at, bits);
                let new = chunks(field(0, 32), field(32, 64), field(96, 14));
                self.queue.extend(new.into_iter().map(|chunk| (m.cycle() + self.latency, chunk)));
                self.requests += 1;
            }
        }
        fn done(&self) -> bool {
            self.queue.is_empty()
        }
        fn status(&self) -> String {
            format!("access gave way to {} requests, {} chunks left", self.requests, self.queue.len())
        }
    }

    /// A packet that has landed has given all its writes to the channel once `written` is up; counts faults.
    #[derive(Default)]
    struct Order {
        writes: u64,
        landed: usize,
        need: Vec<u64>,
        faults: u64,
    }
    impl Actor for Order {
        fn drive(&mut self, _: &mut Model) {}
        fn observe(&mut self, m: &Model) {
            self.writes += u64::from(m.bit("write.valid") && m.bit("write.ready"));
            if m.bit("written") && self.landed > 0 {
                assert!(self.writes >= self.need[self.landed - 1], "written before its writes were taken");
            }
            self.landed += usize::from(m.bit("landed.valid") && m.bit("landed.ready"));
            self.faults += m.get("count") >> KEY_FAULT & 1;
        }
        fn done(&self) -> bool {
            self.landed == self.need.len()
        }
        fn status(&self) -> String {
            format!("{} of {} packets landed, {} writes", self.landed, self.need.len(), self.writes)
        }
    }

    fn packet(rng: &mut ChaCha8Rng, qps: u64) -> Vec<RxOp> {
        let (qpn, response) = (bits(rng.random_range(0..qps) * 7), rng.random());
        let steps = if rng.random_bool(0.7) { 1 } else { rng.random_range(2..5) };
        let rows = if rng.random_bool(0.9) { rng.random_range(1..100) } else { 0 };
        let op = |i: usize, rng: &mut ChaCha8Rng| RxOp {
            qpn,
            response,
            generation: bits(rng.random_range(0..256)),
            write: rng.random_bool(0.8),
            key: bits(if rng.random_bool(0.03) { rng.random_range(1..5) } else { rng.random_range(5..1 << 32) }),
            va: bits(rng.random::<u64>() >> 16),
            len: bits(if rng.random_bool(0.1) { 0 } else { rng.random_range(1..=9000) }),
            span: bits(rng.random_range(0..1 << 32)),
            buf: bits(rng.random_range(0..1 << 20)),
            pd: bits(rng.random_range(0..1 << 16)),
            need: bits(rng.random_range(0..16)),
            last: i + 1 == steps,
            rows: bits(rows),
            psn: bits(rng.random_range(0..1 << 24)),
            ..RxOp::default()
        };
        (0..steps).map(|i| op(i, rng)).collect()
    }

    /// The rules on plain messages: what is written and what lands.
    #[derive(Default)]
    struct Rules {
        halted: HashSet<(Bits<12>, bool)>,
        writes: Vec<DmaWrite>,
        landed: Vec<Landed>,
        need: Vec<u64>,
        faults: u64,
    }
    impl Rules {
        fn packet(&mut self, ops: &[RxOp]) {
            let side = (ops[0].qpn, ops[0].response);
            let mut verdict = if self.halted.contains(&side) { u64::from(cause::FLUSHED) } else { 0 };
            for op in ops {
                let before = self.writes.len();
                if op.write && op.len != bits(0) && verdict == 0 {
                    for chunk in chunks(op.key.to_u64(), op.va.to_u64(), op.len.to_u64()) {
                        if chunk.cause != bits(0) {
                            verdict = chunk.cause.to_u64();
                            self.halted.insert(side);
                            self.faults += 1;
                        } else {
                            let buf = op.buf + chunk.offset.cast::<20>();
                            self.writes.push(DmaWrite { iova: chunk.iova, len: chunk.len, buf, ..Default::default() });
                        }
                    }
                }
                if op.last && op.rows != bits(0) {
                    if self.writes.len() == before {
                        self.writes.push(DmaWrite::default());
                    }
                    self.writes.last_mut().unwrap().rows = op.rows;
                }
            }
            self.landed.push(Landed { cause: bits(verdict), op: *ops.last().unwrap() });
            self.need.push(self.writes.len() as u64);
        }
    }

    #[test]
    fn packets_land_fail_and_halt() {
        let mut m = Model::of(Landing::default, Options::default()).unwrap();
        for seed in 0..scale(8) as u64 {
            println!("seed {seed}");
            let mut rng = verilate::rng(seed);
            let mut rules = Rules::default();
            m.reset();
            for side in 0..8192 {
                load(&mut m, if side & 1 == 0 { id::QP_SEND } else { id::QP_RECV }, side >> 1);
            }
            let (mut port, mut order) = (Port::new(seed, 12, seed % 2 == 1), Order::default());
            for round in 0..4 {
                let stall = [Stall::Never, Stall::Random][(seed % 2) as usize];
                let mut s = Giver::new(&m, "op", stall, seed);
                let mut write = Taker::new(&m, "write", stall, seed + 1);
                let mut landed = Taker::new(&m, "landed", stall, seed + 2);
                let from = (rules.writes.len(), rules.landed.len());
                for _ in 0..150 {
                    let ops = packet(&mut rng, 20);
                    rules.packet(&ops);
                    ops.into_iter().for_each(|op| s.send(op));
                }
                order.need.clone_from(&rules.need);
                write.expect((rules.writes.len() - from.0) as u64);
                landed.expect((rules.landed.len() - from.1) as u64);
                bench::run(&mut m, &mut [&mut s, &mut port, &mut write, &mut landed, &mut order], 100_000);
                for want in &rules.writes[from.0..] {
                    let got = write.pop().unwrap();
                    for (name, value) in [("len", want.len.to_u64()), ("rows", want.rows.to_u64())] {
                        assert_eq!(got.get(name), value, "{name} in round {round}");
                    }
                    if want.len != bits(0) {
                        assert_eq!((got.get("iova"), got.get("buf")), (want.iova.to_u64(), want.buf.to_u64()));
                        assert_eq!(got.get("is_inline"), 0);
                    }
                }
                for want in &rules.landed[from.1..] {
                    let (got, want) = (landed.pop().unwrap(), of(*want));
                    assert_eq!(got.bytes("data"), want);
                }
                assert!(write.is_empty() && landed.is_empty());
                assert_eq!(order.faults, rules.faults);
                // Clear one side of some.
                for qpn in 0..10u64 {
                    load(&mut m, if qpn & 1 == 0 { id::QP_SEND } else { id::QP_RECV }, qpn * 7);
                    rules.halted.remove(&(bits(qpn * 7), qpn & 1 == 0));
                    // without LOAD a row changes nothing
                    table(&mut m, id::QP_SEND, (qpn + 10) * 7, bits(0x7f));
                }
            }
            assert!(rules.faults > 10 && rules.landed.iter().filter(|x| x.cause == bits(22)).count() > 20);
        }
        assert_eq!(cause::FLUSHED, 22);
    }

    fn load(m: &mut Model, id: u8, qpn: u64) {
        table(m, id, qpn, bits(0x80));
    }

    fn table(m: &mut Model, id: u8, qpn: u64, row: Bits<512>) {
        let req = TableReq { table: bits(id.into()), index: bits(qpn), write: true, row };
        m.set("table.valid", 1);
        m.set_bytes("table.req", &of(req));
        m.eval();
        assert!(m.bit("table.ready"));
        m.tick();
        m.set("table.valid", 0);
    }

    #[test]
    fn rate_and_latency() {
        let mut m = Model::of(Landing::default, Options::default()).unwrap();
        let mut run = |n: u64| {
            m.reset();
            let (mut port, mut order) = (Port::new(0, 10, false), Order::default());
            let mut s = Giver::new(&m, "op", Stall::Never, 0);
            let mut write = Taker::new(&m, "write", Stall::Never, 0);
            let mut landed = Taker::new(&m, "landed", Stall::Never, 0);
            let (key, len, rows) = (bits(9), bits(1024), bits(17));
            (0..n).for_each(|_| s.send(RxOp { write: true, last: true, key, len, rows, ..RxOp::default() }));
            order.need = (1..=n).collect();
            landed.expect(n);
            let start = m.cycle();
            bench::run(&mut m, &mut [&mut s, &mut port, &mut write, &mut landed, &mut order], 100_000);
            m.cycle() - 32 - start
        };
        let (latency, many) = (run(1) - 1, run(1000));
        println!("latency {latency} with an access of 10; 1000 packets: {many} cycles");
        assert!(latency <= 16 && many < 2100);
    }
}
