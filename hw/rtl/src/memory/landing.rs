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
//! An atomic's step, once its chunk is there, waits until [`super::atomics`] has taken it with its operands; of an answer that gives
//! the 8 bytes in the host's order. What it stores goes through our register, in a cycle in which that is free.
//!
//! A step that invalidates a key waits until nothing reads the memory that it opened (`reading`): then it may be told that the key is dead.
//!
//! A step takes 2 cycles, look and judge (2 more for every chunk but the first). Cannot deadlock: it waits for access, the write channel,
//! reads that the host owes, the atomics and commit, none of which waits for it but the atomics for this register, which the channel empties. Halt bits need no clearing at reset: a queue is loaded before it is used.

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
    /// It is written here; a request that is an atomic is written when it has been executed, and a key that is invalidated is not.
    moves: Bit,
    /// It waits for the atomics: to be executed, or, an atomic write, until none is under way.
    exchanges: Bit,
    adds: Bit,
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
    shared: Bit,
}

#[hdl_fn]
fn step_of(op: RxOp) -> Step {
    let c = op.completion;
    // What invalidates a key is no atomic, whatever its packet answers.
    let atomic = op.write && op.reply.atomic && !invalidates(op.need);
    let mut reply = op.reply;
    reply.atomic = atomic;
    Step {
        qpn: op.qpn,
        generation: op.generation,
        response: op.response,
        write: op.write,
        moves: op.write && !(atomic && !op.response) && !invalidates(op.need),
        // Nothing that has been let in writes behind the death of its key: an atomic may be in its slot.
        exchanges: op.write && (op.reply.atomic || op.reply.read || invalidates(op.need)),
        adds: op.adds,
        buf: op.buf,
        own: op.response || op.need == access::LOCAL_WRITE,
        last: op.last,
        accepted: op.accepted,
        more: op.more,
        anew: is_alone(op.reply) && !op.response && op.reply.slot.get_bit(0),
        frees: op.last && op.rows.any(),
        rows: op.rows,
        psn: op.psn,
        reply,
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
        shared: c.shared,
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
        shared: step.shared,
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
    /// Memory of a key that a chunk of ours has invalidated may still be read.
    pub reading: Signal<In, Bit>,
    /// To the arbiter of the write channel: what that takes is in order with whatever commit causes then, and counted in
    /// the channel's `issued`. Its `ready`, once up, stays until it has taken a write, as an arbiter's does.
    pub write: Source<DmaWrite>,
    /// An atomic's step; it is taken when the commit can go on with it.
    pub exchange: Source<Exchange>,
    /// What they write: 8 bytes to a bus address, or the bytes of the answer that is taken.
    pub store: Sink<Bits<64>>,
    pub stored: Signal<In, Bits<64>>,
    /// All that was taken of them has gone to the channel.
    pub clear: Signal<Out, Bit>,
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
    /// The step invalidates a key, and reads under it may be under way.
    held: Reg<Bit>,
    /// A step of the present packet failed, and why.
    failed: Reg<Bit>,
    cause: DFF<Bits<8>>,
    failed_own: DFF<Bit>,
    write_valid: Reg<Bit>,
    write_data: DFF<DmaWrite>,
    /// A step has passed while the atomics waited to store: they go first now.
    yields: Reg<Bit>,
    answered: Reg<Bit>,
    fault: Reg<Bit>,
    _qps: Hidden<usize>,
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
            reading: Default::default(),
            write: Default::default(),
            exchange: Default::default(),
            store: Default::default(),
            stored: Default::default(),
            table: Default::default(),
            count: Default::default(),
            pending: Fifo::new(PENDING),
            halts: Ram::default().rows(2 * qps).style("distributed").at_once(),
            halted: Default::default(),
            judging: Default::default(),
            held: Default::default(),
            failed: Default::default(),
            cause: Default::default(),
            failed_own: Default::default(),
            write_valid: Default::default(),
            yields: Default::default(),
            clear: Default::default(),
            write_data: Default::default(),
            answered: Default::default(),
            fault: Default::default(),
            _qps: Hidden(qps),
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
        regs!(self, clock, rst, judging, held, failed, write_valid, answered, fault, yields);
        dff_setup!(self, clock, halted, cause, failed_own, write_data);
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
        self.req.data.next = AccessReq {
            key: new.key,
            va: new.va,
            // One byte at least, of which nothing comes.
            len: new.len.replace_bit(0, new.len.get_bit(0) || invalidates(new.need)),
            span: new.span,
            pd: new.pd,
            qpn: new.qpn,
            need: new.need,
        };
        self.req.valid.next = self.op.valid.val() && new.write && room;

        // Look: read the halt bit of the oldest step, that may be the one that comes now.
        let mut op = self.pending.m.data.val();
        op.qpn = op.qpn & elab!(numbers(self._qps.0));
        let waits = self.pending.m.valid.val();
        let judging = self.judging.q.val();
        self.halts.re.next = true;
        self.halts.raddr.next = if waits { side(op.qpn, op.response) } else { side(new.qpn, new.response) };
        if !judging {
            self.halted.d.next = self.halts.rdata.val();
            self.judging.d.next = waits || take;
            // Who exchanges and neither moves nor is an atomic invalidates.
            let kills = op.exchanges && !op.moves && !op.reply.atomic;
            self.held.d.next = if waits { kills } else { new.write && invalidates(new.need) };
        } else if self.chunk.valid.val() && !self.reading.val() {
            // Its key is dead, and all that it opened has been read.
            self.held.d.next = false;
        }
        self.soon.next = ReplyGo { qpn: op.qpn, generation: op.generation, reply: op.reply };
        // Not that of an atomic, which may wait for long: who looks ahead would hold up the results of those before it.
        let announces = (op.reply.read || op.reply.ack) && !op.exchanges;
        self.soon_valid.next = waits && op.last && announces && self.landed.ready.val();

        // Judge: one chunk at a time, or the step that moves nothing.
        let chunk = self.chunk.data.val();
        let free = !self.write_valid.q.val();
        let yields = self.yields.q.val();
        let may = judging && free && !yields && !self.held.q.val();
        let present = may && (!op.write || self.chunk.valid.val());
        let halt_now = self.halted.q.val();
        let halted = halt_now.get_bit(0) && !(halt_now.get_bit(1) && op.anew);
        let fresh = !self.failed.q.val() && !halted;
        let refused = chunk.refused;
        let fails = fresh && op.write && refused;
        let opens = fresh && !refused;
        let done = !op.write || chunk.last;
        let ends = done && op.last;
        let atomic = op.reply.atomic;
        // Between two steps, while one waits for the atomics, which offer nothing while they take it, or behind one that passed while
        // they waited: they hold what they offer.
        let open = !judging || op.exchanges || yields;
        let theirs = self.store.valid.val() && open;
        self.store.ready.next = free && open;
        self.clear.next = free;
        let goes = !ends || self.landed.ready.val();
        let exchanged = !op.exchanges || self.exchange.ready.val();
        let act = present && goes && exchanged;
        self.exchange.valid.next = present && goes && op.exchanges;
        self.exchange.data.next = Exchange {
            void: !opens || !atomic,
            // What only waits for the slots is no answer, whosever it is.
            response: op.response && atomic,
            iova: chunk.iova,
            buf: op.buf,
            offset: chunk.offset.get_bits::<3>(0),
            qpn: op.qpn,
            slot: op.reply.slot,
            adds: op.adds,
        };
        let moves = opens && op.moves;
        self.chunk.ready.next = may && op.write && goes && exchanged;
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
            wrote: moves,
            own: if self.failed.q.val() { self.failed_own.q.val() } else { op.own },
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
        self.landed.valid.next = present && ends && exchanged;
        if self.write.ready.val() {
            self.write_valid.d.next = false;
        }
        if free {
            self.write_data.d.next = DmaWrite {
                iova: if theirs { self.store.data.val() } else { chunk.iova },
                len: if theirs {
                    8.into()
                } else if moves {
                    chunk.len
                } else {
                    0.into()
                },
                is_inline: theirs || atomic,
                buf: op.buf + chunk.offset.cast::<20>(),
                data: self.stored.val().cast::<256>(),
                rows: if ends && !theirs { op.rows } else { 0.into() },
            };
        }
        if free && theirs {
            self.write_valid.d.next = true;
            self.yields.d.next = false;
        }
        if act {
            self.yields.d.next = self.store.valid.val();
            self.write_valid.d.next = moves || (ends && op.frees);
            if !self.failed.q.val() {
                self.cause.d.next = chunk.cause;
                self.failed_own.d.next = op.own;
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
#[path = "landing_tests.rs"]
mod tests;
