//! Lets received packets land: checks the key of every step, writes the payload, passes the verdict on.
//!
//! For responder and completer before it (through `order`), commit behind it. Steps are taken in order; each that moves
//! bytes asks the receive access port as it is taken, so that several checks are under way, and waits in a queue for its
//! turn. At its turn the halt bit of its QP's side is read (for a step that need not wait, as it is taken), its chunks
//! become DMA writes straight from the receive buffer, and the packet's last step goes on as a `Landed`. Its last write is
//! then on offer to the channel: what follows from the packet must wait until that has it (`written`).
//!
//! The first fault of a packet is its cause; the steps behind it write nothing. It also *halts* that side of the QP: later
//! packets write nothing and go on as `flushed`, until a `LOAD` row of that side clears the halt, or a message of an unreliable QP begins. Every packet
//! frees its buffer rows, with its last write or with a write of 0 bytes.
//!
//! ```text
//! cycle   0             1 ..          5                6
//! op    taken, asks | (access) .. | judge, Landed | write, taken if `written` was up
//!       look, if none waits
//! ```
//! A step takes 2 cycles, look and judge (2 more for every chunk but the first). Cannot deadlock: it waits for access, the write channel
//! and commit, none of which waits for it. Halt bits need no clearing at reset: a queue is loaded before it is used.

use crate::{
    msg::*,
    stream::{Fifo, Sink, Source, TablePort},
};
use abi::{
    status::counter::KEY_FAULT,
    table::{access, id, qp_recv, qp_send},
};
use hdl::prelude::*;

/// Steps that wait for their turn: more than the access port's latency, at one step in 2 cycles.
const PENDING: usize = 16;

/// What of a step is of use once its key has been asked for.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Step {
    qpn: Qp,
    generation: Gen,
    response: Bit,
    write: Bit,
    buf: BufAddr,
    /// The key is that of a local WQE.
    own: Bit,
    last: Bit,
    accepted: Bit,
    more: Bit,
    /// It begins a message of an unreliable QP, which ends what was halted.
    anew: Bit,
    /// There are rows to free, and how many.
    frees: Bit,
    rows: Bits<12>,
    psn: Psn,
    reply: Reply,
    valid: Bit,
    cqn: Bits<12>,
    status: Bits<8>,
    cause: Bits<8>,
    opcode: Bits<8>,
    wqe_index: Bits<16>,
    blocks: Bits<3>,
    length: Bits<32>,
    imm: Bits<32>,
    solicited: Bit,
    vlan: Bits<16>,
    src_qpn: Bits<24>,
}

#[hdl_fn]
fn step_of(op: RxOp) -> Step {
    let c = op.completion;
    Step {
        qpn: op.qpn,
        generation: op.generation,
        response: op.response,
        write: op.write,
        buf: op.buf,
        own: op.response || op.need == access::LOCAL_WRITE,
        last: op.last,
        accepted: op.accepted,
        more: op.more,
        anew: is_alone(op.reply) && !op.response && op.reply.slot.get_bit(0),
        frees: op.last && op.rows.any(),
        rows: op.rows,
        psn: op.psn,
        reply: op.reply,
        valid: c.valid,
        cqn: c.cqn,
        status: c.status,
        cause: c.cause,
        opcode: c.opcode,
        wqe_index: c.wqe_index,
        blocks: c.blocks,
        length: c.length,
        imm: c.imm,
        solicited: c.solicited,
        vlan: c.vlan,
        src_qpn: c.src_qpn,
    }
}

#[hdl_fn]
fn completion_of(step: Step) -> Completion {
    Completion {
        valid: step.valid,
        cqn: step.cqn,
        qpn: step.qpn,
        generation: step.generation,
        status: step.status,
        cause: step.cause,
        opcode: step.opcode,
        wqe_index: step.wqe_index,
        blocks: step.blocks,
        length: step.length,
        imm: step.imm,
        solicited: step.solicited,
        vlan: step.vlan,
        src_qpn: step.src_qpn,
    }
}

/// Landing of received packets.
#[derive(LogicBlock)]
pub struct Landing {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// Steps, the steps of a packet one behind the other.
    pub op: Sink<RxOp>,
    /// Packets that have landed, in order.
    pub landed: Source<Landed>,
    /// While commit is empty: the only reply that it may have in the next cycle.
    pub soon: Signal<Out, ReplyGo>,
    pub soon_valid: Signal<Out, Bit>,
    /// What is on offer to the channel in the next cycle is taken then, at the latest: with it the channel has all writes of the
    /// packets that have landed up to this cycle.
    pub written: Signal<Out, Bit>,
    /// To the receive access port.
    pub req: Source<AccessReq>,
    /// From it.
    pub chunk: Sink<Chunk>,
    /// To the arbiter of the write channel: what that takes is in order with whatever commit causes then, and counted in
    /// the channel's `issued`. Its `ready`, once up, stays until it has taken a write, as an arbiter's does.
    pub write: Source<DmaWrite>,
    /// `QP_RECV` and `QP_SEND` rows with `LOAD` clear that side's halt. A read gives 0.
    pub table: TablePort,
    /// `KEY_FAULT`.
    pub count: Signal<Out, Bits<64>>,
    pending: Fifo<Step>,
    /// By QP and side, 1 for responses. In LUTs, for it is read and looked at a cycle later.
    /// The upper bit: only to the next message.
    halts: Ram<Bits<2>, 13>,
    halted: DFF<Bits<2>>,
    judging: Reg<Bit>,
    /// A step of the present packet failed, and why.
    failed: Reg<Bit>,
    cause: DFF<Bits<8>>,
    write_valid: Reg<Bit>,
    write_data: DFF<DmaWrite>,
    answered: Reg<Bit>,
    fault: Reg<Bit>,
}

impl Landing {
    /// Landing for `qps` QPs, a power of two of at most 4,096.
    pub fn new(qps: usize) -> Self {
        Self {
            clock: Default::default(),
            rst: Default::default(),
            op: Default::default(),
            landed: Default::default(),
            soon: Default::default(),
            soon_valid: Default::default(),
            written: Default::default(),
            req: Default::default(),
            chunk: Default::default(),
            write: Default::default(),
            table: Default::default(),
            count: Default::default(),
            pending: Fifo::new(PENDING),
            halts: Ram::default().rows(2 * qps).style("distributed").at_once(),
            halted: Default::default(),
            judging: Default::default(),
            failed: Default::default(),
            cause: Default::default(),
            write_valid: Default::default(),
            write_data: Default::default(),
            answered: Default::default(),
            fault: Default::default(),
        }
    }
}

/// A request's reply is that of an unreliable QP.
#[hdl_fn]
pub fn is_alone(reply: Reply) -> Bit {
    reply.again && !reply.ack && !reply.read
}

/// Row of a QP's side in the halt bits.
#[hdl_fn]
fn side(qpn: Qp, response: Bit) -> Bits<13> {
    cat!(13; qpn, response)
}

impl Logic for Landing {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, judging, failed, write_valid, answered, fault);
        dff_setup!(self, clock, halted, cause, write_data);
        clock_reset!(self, clock, rst, pending);
        clock!(self, clock, halts);

        // Take a step, if it moves bytes together with the access port.
        let new = self.op.data.val();
        let room = self.pending.s.ready.val();
        let ready = room && (!new.write || self.req.ready.val());
        let take = self.op.valid.val() && ready;
        self.op.ready.next = ready;
        self.pending.s.data.next = step_of(new);
        self.pending.s.valid.next = take;
        self.req.data.next =
            AccessReq { key: new.key, va: new.va, len: new.len, span: new.span, pd: new.pd, need: new.need };
        self.req.valid.next = self.op.valid.val() && new.write && room;

        // Look: read the halt bit of the oldest step, that may be the one that comes now.
        let op = self.pending.m.data.val();
        let waits = self.pending.m.valid.val();
        let judging = self.judging.q.val();
        self.halts.re.next = true;
        self.halts.raddr.next = if waits { side(op.qpn, op.response) } else { side(new.qpn, new.response) };
        if !judging {
            self.halted.d.next = self.halts.rdata.val();
            self.judging.d.next = waits || take;
        }
        self.soon.next = ReplyGo { qpn: op.qpn, generation: op.generation, reply: op.reply };
        self.soon_valid.next = waits && op.last && (op.reply.read || op.reply.ack) && self.landed.ready.val();

        // Judge: one chunk at a time, or the step that moves nothing.
        let chunk = self.chunk.data.val();
        let may = judging && !self.write_valid.q.val();
        let present = may && (!op.write || self.chunk.valid.val());
        let halt_now = self.halted.q.val();
        let halted = halt_now.get_bit(0) && !(halt_now.get_bit(1) && op.anew);
        let fresh = !self.failed.q.val() && !halted;
        let refused = chunk.refused;
        let fails = fresh && op.write && refused;
        let writes = fresh && op.write && !refused;
        let done = !op.write || chunk.last;
        let ends = done && op.last;
        let goes = !ends || self.landed.ready.val();
        let act = present && goes;
        self.chunk.ready.next = may && op.write && goes;
        self.pending.m.ready.next = act && done;
        self.landed.data.next = Landed {
            fault: self.failed.q.val() || fails,
            flushed: !self.failed.q.val() && halted,
            passing: !self.failed.q.val() && halted && halt_now.get_bit(1),
            cause: if self.failed.q.val() {
                self.cause.q.val()
            } else if op.write {
                chunk.cause
            } else {
                0.into()
            },
            wrote: writes,
            own: op.own,
            frame: op.frees,
            qpn: op.qpn,
            generation: op.generation,
            response: op.response,
            accepted: op.accepted,
            more: op.more,
            psn: op.psn,
            reply: op.reply,
            completion: completion_of(op),
        };
        self.landed.valid.next = present && ends;
        if self.write.ready.val() {
            self.write_valid.d.next = false;
        }
        if may {
            self.write_data.d.next = DmaWrite {
                iova: chunk.iova,
                len: if writes { chunk.len } else { 0.into() },
                is_inline: false,
                buf: op.buf + chunk.offset.cast::<20>(),
                data: 0.into(),
                rows: if ends { op.rows } else { 0.into() },
            };
        }
        if act {
            self.write_valid.d.next = writes || (ends && op.frees);
            if !self.failed.q.val() {
                self.cause.d.next = chunk.cause;
            }
            self.failed.d.next = !ends && (self.failed.q.val() || fails);
            self.judging.d.next = !done;
        }
        self.write.data.next = self.write_data.q.val();
        self.write.valid.next = self.write_valid.q.val();
        self.written.next = self.write.ready.val();

        // Halt, or clear a halt while no step is judged.
        let halt = act && fails;
        let req = self.table.req.val();
        let send = req.table == bits::<4>(id::QP_SEND as u64);
        let recv = req.table == bits::<4>(id::QP_RECV as u64);
        let load =
            (send && req.row.get_bit(elab!(qp_send::LOAD.lsb))) || (recv && req.row.get_bit(elab!(qp_recv::LOAD.lsb)));
        let load_now = self.table.valid.val() && !judging && req.write && load;
        self.table.ready.next = !judging;
        self.answered.d.next = self.table.valid.val() && !judging && !req.write;
        self.table.rvalid.next = self.answered.q.val();
        self.table.rdata.next = 0.into();
        let resumes = act && halt_now.all() && op.anew && !self.failed.q.val();
        self.halts.we.next = halt || resumes || load_now;
        self.halts.waddr.next =
            if judging { side(op.qpn, op.response) } else { side(req.index.get_bits::<12>(0), send) };
        self.halts.wdata.next = cat!(2; halt && is_alone(op.reply) && !op.own, halt);

        self.fault.d.next = halt;
        self.count.next = if self.fault.q.val() { bits::<64>(1 << KEY_FAULT) } else { 0.into() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::kit::fields_of;
    use rand::RngExt;
    use rand_chacha::ChaCha8Rng;
    use std::collections::{HashMap, VecDeque};
    use verilate::{
        Model, Options,
        bench::{self, Actor, Sink as Taker, Source as Giver, Stall},
        bits::of,
        scale,
    };

    /// The chunks that the access port of these tests gives: pages of 4 KiB; a key of 1 to 4 is refused with that cause.
    fn chunks(key: u64, va: u64, len: u64) -> Vec<Chunk> {
        if key < 5 {
            return vec![Chunk { last: true, refused: true, cause: bits(key), len: bits(len), ..Chunk::default() }];
        }
        let (mut out, mut at) = (vec![], 0);
        while at < len {
            let n = (4096 - ((va + at) & 4095)).min(len - at);
            let iova = bits((va + at) ^ 0xabcd_0000_0000);
            out.push(Chunk { iova, len: bits(n), offset: bits(at), last: at + n == len, ..Chunk::default() });
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
            let noise = Chunk { refused: true, cause: bits(3), len: bits(77), ..Chunk::default() };
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
        /// In the cycle before.
        written: bool,
        need: Vec<u64>,
        faults: u64,
    }
    impl Actor for Order {
        fn drive(&mut self, _: &mut Model) {}
        fn observe(&mut self, m: &Model) {
            self.writes += u64::from(m.bit("write.valid") && m.bit("write.ready"));
            if self.written && self.landed > 0 {
                assert!(self.writes >= self.need[self.landed - 1], "written before its writes were taken");
            }
            self.landed += usize::from(m.bit("landed.valid") && m.bit("landed.ready"));
            self.written = m.bit("written");
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
        let (qpn, response): (_, bool) = (bits(rng.random_range(0..qps) * 7), rng.random());
        // Of some QPs nothing is answered.
        let again = !response && qpn.to_u64() % 2 == 1;
        let read = !again && rng.random();
        let slot = bits(rng.random_range(0..16));
        let generation = bits(rng.random_range(0..256));
        let steps = if rng.random_bool(0.7) { 1 } else { rng.random_range(2..5) };
        let rows = if rng.random_bool(0.9) { rng.random_range(1..100) } else { 0 };
        let op = |i: usize, len: u64, rng: &mut ChaCha8Rng| RxOp {
            qpn,
            response,
            generation,
            key: bits(if rng.random_bool(0.03) { rng.random_range(1..5) } else { rng.random_range(5..1 << 32) }),
            va: bits(rng.random::<u64>() >> 16),
            write: len > 0,
            len: bits(len),
            span: bits(rng.random_range(0..1 << 32)),
            buf: bits(rng.random_range(0..1 << 20)),
            pd: bits(rng.random_range(0..1 << 16)),
            need: bits(rng.random_range(0..16)),
            last: i + 1 == steps,
            rows: bits(rows),
            psn: bits(rng.random_range(0..1 << 24)),
            more: rng.random(),
            accepted: rng.random(),
            reply: Reply { again, read, slot, ..Reply::default() },
            completion: Completion {
                valid: rng.random(),
                length: bits(rng.random_range(0..1 << 32)),
                qpn,
                generation,
                ..Completion::default()
            },
        };
        (0..steps)
            .map(|i| {
                let len = if rng.random_bool(0.2) { 0 } else { rng.random_range(1..=9000) };
                op(i, len, rng)
            })
            .collect()
    }

    /// The rules on plain messages: what is written and what lands.
    #[derive(Default)]
    struct Rules {
        /// Side, and whether only to the next message.
        halted: HashMap<(Bits<12>, bool), bool>,
        writes: Vec<DmaWrite>,
        landed: Vec<Landed>,
        need: Vec<u64>,
        faults: u64,
    }
    impl Rules {
        fn packet(&mut self, ops: &[RxOp]) {
            let side = (ops[0].qpn, ops[0].response);
            let reply = ops[0].reply;
            let alone = reply.again && !reply.read && !reply.ack;
            if alone && !side.1 && reply.slot.get_bit(0) && self.halted.get(&side) == Some(&true) {
                self.halted.remove(&side);
            }
            let halt = self.halted.get(&side).copied();
            let flushed = halt.is_some();
            let (mut fault, mut wrote) = (0, false);
            for op in ops {
                let before = self.writes.len();
                wrote = false;
                if op.write && !flushed && fault == 0 {
                    for chunk in chunks(op.key.to_u64(), op.va.to_u64(), op.len.to_u64()) {
                        wrote = chunk.cause == bits(0);
                        if !wrote {
                            fault = chunk.cause.to_u64();
                            let own = op.response || op.need == bits(access::LOCAL_WRITE.into());
                            self.halted.insert(side, alone && !own);
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
            let op = ops.last().unwrap();
            self.landed.push(Landed {
                fault: fault != 0,
                flushed,
                passing: halt == Some(true),
                cause: bits(fault),
                wrote,
                own: op.response || op.need == bits(access::LOCAL_WRITE.into()),
                frame: op.rows != bits(0),
                qpn: op.qpn,
                generation: op.generation,
                response: op.response,
                accepted: op.accepted,
                more: op.more,
                psn: op.psn,
                reply: op.reply,
                completion: op.completion,
            });
            self.need.push(self.writes.len() as u64);
        }
    }

    #[test]
    fn packets_land_fail_and_halt() {
        let mut m = Model::of(|| Landing::new(4096), Options::default()).unwrap();
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
                let mut write = Taker::new(&m, "write", stall, seed + 1).keeps_ready();
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
                    // The cause counts only with a fault.
                    let mut got = fields_of::<Landed>(&landed.pop().unwrap().bytes("data"));
                    if !want.fault {
                        got.remove("cause");
                    }
                    assert_eq!(got, fields_of::<Landed>(&of(*want)));
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
            assert!(rules.faults > 10 && rules.landed.iter().filter(|x| x.flushed).count() > 20);
        }
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
        let mut m = Model::of(|| Landing::new(4096), Options::default()).unwrap();
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
