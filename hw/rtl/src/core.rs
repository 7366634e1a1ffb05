//! The NIC core: every room's blocks and the wires between them, as the picture in `docs/architecture.md` shows them.
//!
//! For `sim/nic`, which puts it into a simulated host, and for board tops, which put it between a PCIe bridge and a MAC. It has
//! no behaviour of its own but counters of packets and frames for the drain token.

use crate::congestion::Pacer;
use crate::control::{
    counters::Group,
    plane::ControlPlane,
    qp_state::{QpStates, reader},
    registers::Identity,
    reset::position,
    sentry::{Sentry, guard},
    table_bus::door,
};
use crate::memory::{
    atomics::{Atomics, SLOTS},
    axi::{AxiReadMaster, AxiWriteMaster},
    dma_read::{ATOMIC, DmaReader, client},
    dma_write::DmaWriter,
    landing::Landing,
    mmu::Mmu,
    writes::{WriteOrder, writer},
};
use crate::msg::*;
use crate::queue::{
    completion::CompletionQueue,
    doorbell::Doorbell,
    event::{EventQueue, MAX_EQS},
    scheduler::Scheduler,
    work_queue::WorkQueue,
};
use crate::stream::{Arbiter, BeatSink, BeatSource, ByteRam, FreshTable, Loopback, Sink, Source, Table, TableMaster};
use crate::transport::{
    Commit, Completer, Dispatch, Records, Requester, Resources, Respond, Responder, least_timer, turn,
};
use crate::wire::{frames::MAX_SLOTS, ingress::Ingress, transmit::Transmit};
use abi::{
    bar::PACES,
    status::{cause, counter},
    table::id,
};
use hdl::prelude::*;

/// Sizes of a core, beside its width and its number of QPs, which are parameters of the type.
#[derive(Clone, Copy, Debug)]
pub struct CoreConfig {
    /// Completion queues, a power of two.
    pub cqs: usize,
    /// Event queues, a power of two.
    pub eqs: usize,
    /// Memory keys, a power of two.
    pub keys: usize,
    /// Page frames of the translation table, a power of two.
    pub frames: usize,
    /// Receive buffer in bytes, a power of two.
    pub rx_buffer: usize,
    /// Transmit ring in bytes, a power of two.
    pub tx_buffer: usize,
    /// Room for frames to addresses of our own, in bytes.
    pub loopback: usize,
    /// Frames in the transmit ring at one time, a power of two up to 128.
    pub tx_slots: usize,
    /// DMA reads in flight.
    pub reads: usize,
    /// Atomics in flight, 1 or 8.
    pub atomics: usize,
    /// Blocks of a send and of a receive queue on chip, powers of two.
    pub send_blocks: usize,
    pub recv_blocks: usize,
    /// Blocks are read in two halves, a cycle later: half the block RAMs where these are deeper than the rings need. Not at 512 bits.
    pub half_blocks: bool,
    /// Reads of blocks in flight, for the send and for the receive queues, a power of two.
    pub fetches: usize,
    /// QPs can have rates.
    pub paces: bool,
    /// Doorbell pages, a power of two.
    pub pages: usize,
    /// Clock in MHz, which timers count by.
    pub mhz: usize,
    /// RAM of the soft core in bytes, a power of two.
    pub ram: usize,
}

impl Default for CoreConfig {
    fn default() -> Self {
        CoreConfig {
            cqs: 256,
            eqs: 32,
            keys: 1024,
            frames: 1 << 18,
            rx_buffer: 128 << 10,
            tx_buffer: 64 << 10,
            loopback: 16 << 10,
            tx_slots: 128,
            reads: 128,
            atomics: 8,
            send_blocks: 32,
            recv_blocks: 8,
            half_blocks: false,
            fetches: 64,
            paces: true,
            pages: 4096,
            mhz: 250,
            ram: 64 << 10,
        }
    }
}

impl CoreConfig {
    /// For an FPGA without UltraRAM, with 32 QPs at 64 bits.
    pub fn small() -> Self {
        CoreConfig {
            cqs: 64,
            eqs: 8,
            keys: 256,
            frames: 1 << 13,
            rx_buffer: 32 << 10,
            tx_buffer: 16 << 10,
            loopback: 16 << 10,
            tx_slots: 16,
            reads: 32,
            atomics: 1,
            // Eight blocks hide the latency of a fetch at 10 Gbit/s, and fill block RAMs of 512 x 36 bits in halves.
            send_blocks: 8,
            recv_blocks: 8,
            half_blocks: true,
            fetches: 16,
            // Its RAMs are all in use.
            paces: false,
            pages: 32,
            mhz: 125,
            ram: 32 << 10,
        }
    }

    /// Says what is wrong with these sizes for a core of `width` bits and `qps` QPs.
    pub fn check(&self, width: usize, qps: usize) -> Result<(), String> {
        let power = |what: &str, n: usize, least: usize, most: usize| {
            let good = n.is_power_of_two() && (least..=most).contains(&n);
            if good { Ok(()) } else { Err(format!("{what}: {n}, not a power of two from {least} to {most}")) }
        };
        power("datapath width in bits", width, 64, 512)?;
        power("queue pairs", qps, 32, 4096)?;
        power("completion queues (cqs)", self.cqs, 1, 4096)?;
        power("event queues (eqs)", self.eqs, 1, MAX_EQS)?;
        power("memory keys (keys)", self.keys, 1, 1 << 23)?;
        power("page frames (frames)", self.frames, 256, 1 << 24)?;
        if self.half_blocks && width == 512 {
            return Err("blocks of queues in halves (half_blocks): not at 512 bits".into());
        }
        // Two of the largest frames, so that one can come in or be read while the other leaves.
        power("receive buffer in bytes (rx_buffer)", self.rx_buffer, 16 << 10, 1 << 20)?;
        power("transmit ring in bytes (tx_buffer)", self.tx_buffer, 16 << 10, (width / 8) << 13)?;
        power("room for frames to own addresses in bytes (loopback)", self.loopback, 16 << 10, 1 << 17)?;
        power("frames in the transmit ring (tx_slots)", self.tx_slots, 4, MAX_SLOTS)?;
        power("doorbell pages (pages)", self.pages, 1, 4096)?;
        let range = |what: &str, n: usize, least: usize, most: usize| {
            let good = (least..=most).contains(&n);
            if good { Ok(()) } else { Err(format!("{what}: {n}, not from {least} to {most}")) }
        };
        power("RAM of the soft core in bytes (ram)", self.ram, 32 << 10, abi::mmio::RAM_BYTES)?;
        // What the firmware keeps of each object, beside its image and stack; QPs lie beyond what engines reach, if there is more.
        let (near, far) = (self.ram.min(abi::mmio::NEAR_BYTES), self.ram.saturating_sub(abi::mmio::NEAR_BYTES));
        let groups = 72 * (qps / 8).min(abi::table::GIDS);
        let objects = 2 * qps + 11 * self.keys.min(1024) + 4 * (self.cqs.min(256) + self.eqs + 256) + groups;
        let pairs = 80 * qps;
        let fits =
            if far == 0 { (25 << 10) + objects + pairs <= near } else { (25 << 10) + objects <= near && pairs <= far };
        if !fits {
            return Err(format!("RAM of the soft core (ram): {}, too small for so many objects", self.ram));
        }
        range("DMA reads in flight (reads)", self.reads, 1, 128)?;
        if ![1, SLOTS].contains(&self.atomics) {
            return Err(format!("atomics in flight (atomics): {}, not 1 or {SLOTS}", self.atomics));
        }
        range("clock in MHz (mhz)", self.mhz, 10, 1000)
    }
}

/// The core of W bits and N QPs. See the module.
#[derive(LogicBlock)]
pub struct Core<const W: usize, const N: usize> {
    pub clock: Signal<In, Clock>,
    /// Power-up reset.
    pub rst: Signal<In, Bit>,
    /// Reads of host memory.
    pub axi_read: AxiReadMaster<W>,
    /// Writes to host memory and MSI-X messages.
    pub axi_write: AxiWriteMaster<W>,
    /// BAR0 accesses; a read's answer is on `bar0_rdata` with `bar0_rvalid`, in order.
    pub bar0: Sink<BarAccess>,
    pub bar0_rdata: Signal<Out, Bits<64>>,
    pub bar0_rvalid: Signal<Out, Bit>,
    /// BAR2 accesses, one a cycle, never refused.
    pub bar2: Signal<In, BarAccess>,
    pub bar2_valid: Signal<In, Bit>,
    /// Frames from the MAC, never stalled; the error counts with `last`.
    pub mac_rx: BeatSink<W>,
    pub mac_rx_error: Signal<In, Bit>,
    /// Frames to the MAC.
    pub mac_tx: BeatSource<W>,
    /// The frame is unfinished, its FCS must be wrong; counts with `last`.
    pub mac_tx_error: Signal<Out, Bit>,
    /// The link is up.
    pub link_up: Signal<In, Bit>,
    /// Function-level reset from configuration space; MSI-X off or wholly masked there.
    pub flr: Signal<In, Bit>,
    pub msix_off: Signal<In, Bit>,
    /// For traces, what becomes of each frame: it enters ingress, from the MAC or turned round.
    pub trace_entered: Signal<Out, Bit>,
    pub trace_turned: Signal<Out, Bit>,
    /// Ingress counts (bit = `abi::status::counter`) or accepts it, in the order of arrival.
    pub trace_ingress: Signal<Out, Bits<64>>,
    pub trace_accepted: Signal<Out, Bit>,
    /// An accepted frame's engine counts it, each in its order.
    pub trace_responder: Signal<Out, Bits<64>>,
    pub trace_completer: Signal<Out, Bits<64>>,
    /// An accepted frame is through, in the order of arrival: it was the completer's; why it could not land
    /// (`abi::status::cause`), or 0.
    pub trace_landed: Signal<Out, Bit>,
    /// A copy of a multicast frame is through that is not its last.
    pub trace_copy: Signal<Out, Bit>,
    pub trace_response: Signal<Out, Bit>,
    pub trace_cause: Signal<Out, Bits<8>>,
    /// All that was on its way is lost.
    pub trace_reset: Signal<Out, Bit>,

    loopback: Loopback<W>,
    ingress: Ingress<W>,
    rx_buffer: ByteRam<W>,
    dispatch: Dispatch,
    responder: Responder,
    completer: Completer,
    landing: Landing,
    atomics: Atomics<W>,
    commit: Commit,
    respond: Respond<N>,
    scheduler: Scheduler<N>,
    requester: Requester<N>,
    segments: Arbiter<TxSeg, 2>,
    pacer: Pacer,
    transmit: Transmit<W>,
    doorbell: Doorbell,
    send_queue: WorkQueue<W, N>,
    recv_queue: WorkQueue<W, N>,
    completion: CompletionQueue,
    event: EventQueue,
    qp_states: QpStates,
    mmu: Mmu,
    dma_read: DmaReader<W>,
    dma_write: DmaWriter<W>,
    writes: WriteOrder,
    control: ControlPlane<W>,
    counts: Arr<Group, 5>,
    sentry: Sentry,

    records: Records,
    landings: Table<Bits<512>>,
    sent: FreshTable<Sent>,
    resources: Resources,

    packets_in: Reg<Bits<16>>,
    /// Frames that ingress accepted, and that copies is through with: no more than wait in the FIFO of meta data are between the two.
    frames_in: Reg<Bits<8>>,
    frames_out: Reg<Bits<8>>,
}

impl<const W: usize, const N: usize> Core<W, N> {
    /// A core of these sizes. Panics where [`CoreConfig::check`] complains.
    pub fn new(c: &CoreConfig) -> Self {
        c.check(W, N).unwrap_or_else(|e| panic!("a core cannot have these sizes: {e}"));
        let log2 = |n: usize| n.ilog2();
        let tick = c.mhz * 1024 / 1000;
        let identity = Identity {
            width: W as u32,
            mhz: c.mhz as u32,
            limits: log2(N) | log2(c.cqs) << 8 | log2(c.keys) << 16 | log2(c.eqs) << 24,
            limits2: log2(c.frames) | log2(c.pages) << 8 | 7 << 16 | 4 << 24 | if c.paces { PACES } else { 0 },
            ram: c.ram as u32,
        };
        Core {
            clock: Default::default(),
            rst: Default::default(),
            axi_read: Default::default(),
            axi_write: Default::default(),
            bar0: Default::default(),
            bar0_rdata: Default::default(),
            bar0_rvalid: Default::default(),
            bar2: Default::default(),
            bar2_valid: Default::default(),
            mac_rx: Default::default(),
            mac_rx_error: Default::default(),
            mac_tx: Default::default(),
            mac_tx_error: Default::default(),
            link_up: Default::default(),
            flr: Default::default(),
            msix_off: Default::default(),
            trace_entered: Default::default(),
            trace_turned: Default::default(),
            trace_ingress: Default::default(),
            trace_accepted: Default::default(),
            trace_responder: Default::default(),
            trace_completer: Default::default(),
            trace_landed: Default::default(),
            trace_copy: Default::default(),
            trace_response: Default::default(),
            trace_cause: Default::default(),
            trace_reset: Default::default(),
            loopback: Loopback::new(c.loopback),
            ingress: Ingress::new(c.rx_buffer),
            rx_buffer: ByteRam::new(c.rx_buffer, "block"),
            dispatch: Dispatch::new(N),
            responder: Responder::new(N, c.half_blocks),
            completer: Completer::new(N, tick, least_timer(W, tick), turn(W, tick)),
            landing: Landing::new(N),
            atomics: Atomics::new(c.atomics),
            commit: Default::default(),
            respond: Respond::new(c.paces),
            scheduler: Default::default(),
            requester: Requester::new(c.half_blocks, c.paces),
            segments: Default::default(),
            pacer: Pacer::new(N, c.paces),
            transmit: Transmit::new(N, c.tx_buffer, c.tx_slots, c.mhz),
            doorbell: Doorbell::new(N, c.cqs, c.eqs),
            send_queue: WorkQueue::new(id::QP_SEND, c.send_blocks, "ultra", c.fetches, c.half_blocks),
            recv_queue: WorkQueue::new(id::QP_RECV, c.recv_blocks, "block", c.fetches, c.half_blocks),
            completion: CompletionQueue::new(c.cqs),
            event: EventQueue::new(c.eqs, N.max(c.cqs)),
            qp_states: QpStates::new(N),
            mmu: Mmu::new(c.keys, c.frames),
            dma_read: DmaReader::new(c.reads),
            dma_write: Default::default(),
            writes: Default::default(),
            control: ControlPlane::new(identity),
            counts: Default::default(),
            sentry: Sentry::new([c.keys, c.cqs, c.eqs, N, N, N, N]),
            records: Records::new(N),
            landings: Table::new(N * 16, "block"),
            sent: FreshTable::new(N, ""),
            resources: Resources::new(N),
            packets_in: Default::default(),
            frames_in: Default::default(),
            frames_out: Default::default(),
        }
    }
}

impl<const W: usize, const N: usize> Logic for Core<W, N> {
    #[kernel]
    fn update(&mut self) {
        comment!("clock and reset");
        regs!(self, clock, rst, packets_in, frames_in, frames_out);
        let rst = self.control.device_rst.val();
        clock!(self, clock, control, rx_buffer, records, landings, sent, resources);
        clock!(
            self, clock, sentry, loopback, ingress, dispatch, responder, completer, landing, commit, respond,
            scheduler, requester
        );
        clock!(
            self, clock, segments, pacer, transmit, doorbell, send_queue, recv_queue, completion, event, qp_states, mmu
        );
        clock!(self, clock, dma_read, dma_write, writes, atomics);
        self.control.rst.next = self.rst.val();
        self.rx_buffer.rst.next = rst;
        self.resources.rst.next = rst;
        self.loopback.rst.next = rst;
        self.loopback.power.next = self.rst.val();
        self.sentry.rst.next = rst;
        self.ingress.rst.next = rst;
        self.dispatch.rst.next = rst;
        self.responder.rst.next = rst;
        self.completer.rst.next = rst;
        self.landing.rst.next = rst;
        self.commit.rst.next = rst;
        self.respond.rst.next = rst;
        self.scheduler.rst.next = rst;
        self.requester.rst.next = rst;
        self.segments.rst.next = rst;
        self.pacer.rst.next = rst;
        self.transmit.rst.next = rst;
        self.doorbell.rst.next = rst;
        self.send_queue.rst.next = rst;
        self.recv_queue.rst.next = rst;
        self.completion.rst.next = rst;
        self.event.rst.next = rst;
        self.qp_states.rst.next = rst;
        self.mmu.rst.next = rst;
        self.dma_read.rst.next = rst;
        self.dma_write.rst.next = rst;
        self.writes.rst.next = rst;
        self.atomics.rst.next = rst;

        comment!("receive: MAC, loopback, ingress, buffer, dispatch, engines, landing, commit");
        BeatSink::<W>::link(&mut self.mac_rx, &mut self.loopback.mac_rx);
        self.loopback.mac_rx_error.next = self.mac_rx_error.val();
        self.loopback.link_up.next = self.link_up.val();
        self.loopback.room.next = self.ingress.room.val();
        BeatSource::<W>::join(&mut self.loopback.rx, &mut self.ingress.mac);
        self.ingress.mac_error.next = self.loopback.rx_error.val();
        self.ingress.freed.next = self.dma_write.freed.val();
        self.rx_buffer.we.next = self.ingress.buf_we.val();
        self.rx_buffer.waddr.next = self.ingress.buf_addr.val();
        self.rx_buffer.wdata.next = self.ingress.buf_data.val();
        self.rx_buffer.wbytes.next = self.ingress.buf_bytes.val();
        let writer_reads = self.dma_write.buf_re.val();
        self.rx_buffer.re.next = writer_reads || self.atomics.buf_re.val();
        self.rx_buffer.raddr.next =
            if writer_reads { self.dma_write.buf_addr.val() } else { self.atomics.buf_addr.val() };
        self.atomics.buf_busy.next = writer_reads;
        self.atomics.buf_data.next = self.rx_buffer.rdata.val();
        self.dma_write.buf_data.next = self.rx_buffer.rdata.val();
        Source::<RxMeta>::join(&mut self.ingress.meta, &mut self.dispatch.meta);
        Source::<Qp>::join(&mut self.completer.wake, &mut self.dispatch.wake);
        Source::<RxMeta>::join(&mut self.dispatch.to_responder, &mut self.responder.meta);
        Source::<RxMeta>::join(&mut self.dispatch.to_completer, &mut self.completer.meta);
        Source::<RxOp>::join(&mut self.responder.op, &mut self.dispatch.from_responder);
        Source::<RxOp>::join(&mut self.completer.op, &mut self.dispatch.from_completer);
        Source::<RxOp>::join(&mut self.dispatch.op, &mut self.landing.op);
        Source::<Landed>::join(&mut self.landing.landed, &mut self.commit.landed);
        self.commit.written.next = self.landing.written.val();
        self.responder.soon.next = self.ingress.soon.val();
        self.responder.soon_valid.next = self.ingress.soon_valid.val();
        self.completer.soon.next = self.ingress.soon.val();
        self.completer.soon_valid.next = self.ingress.soon_valid.val();
        self.completion.soon.next = self.landing.landed.data.val().completion.cqn;
        self.completion.soon_valid.next = self.landing.landed.valid.val();
        self.commit.issued.next = self.writes.issued.val();
        self.commit.performed.next = self.dma_write.performed.val();
        Source::<Completion>::join(&mut self.commit.completion, &mut self.completion.completion);
        Source::<ReplyGo>::join(&mut self.commit.go, &mut self.respond.go);
        self.respond.soon.next = self.landing.soon.val();
        self.respond.soon_valid.next = self.landing.soon_valid.val();

        comment!("atomics: checked by landing, results to the READ resources");
        Source::<Exchange>::join(&mut self.landing.exchange, &mut self.atomics.exchange);
        Source::<Bits<64>>::join(&mut self.atomics.store, &mut self.landing.store);
        self.landing.stored.next = self.atomics.stored.val();
        self.atomics.clear.next = self.landing.clear.val();
        self.atomics.issued.next = self.writes.issued.val();
        self.atomics.performed.next = self.dma_write.performed.val();
        self.resources.save.next = self.atomics.save.val();
        self.resources.save_at.next = self.atomics.save_at.val();
        self.resources.result.next = self.atomics.result.val();
        self.resources.failed.next = self.atomics.failed.val();
        self.atomics.save_ready.next = self.resources.save_ready.val();
        self.respond.done.next = self.atomics.done.val();
        self.respond.done_qp.next = self.atomics.done_qp.val();

        comment!("READ resources: written and searched by the responder, read by the response engine");
        self.resources.we.next = self.responder.res_we.val();
        self.resources.waddr.next = self.responder.res_addr.val();
        self.resources.wdata.next = self.responder.res.val();
        self.resources.re.next = self.respond.res_re.val();
        self.resources.raddr.next = self.respond.res_addr.val();
        self.respond.res.next = self.resources.res.val();
        self.resources.seek.next = self.responder.seek.val();
        self.resources.seek_at.next = self.responder.seek_at.val();
        self.responder.seek_ready.next = self.resources.seek_ready.val();
        self.responder.saved.next = self.resources.found.val();
        self.responder.saved_valid.next = self.resources.found_valid.val();
        self.respond.reads_re.next = self.responder.reads_re.val();
        self.respond.reads_addr.next = self.responder.reads_addr.val();
        self.responder.reads.next = self.respond.reads.val();

        comment!("doorbells and work queues");
        self.doorbell.bar.next = self.bar2.val();
        self.doorbell.bar_valid.next = self.bar2_valid.val();
        self.send_queue.ring.next = self.doorbell.sq.val();
        self.send_queue.ring_valid.next = self.doorbell.sq_valid.val();
        self.send_queue.direct.next = self.doorbell.direct.val();
        self.send_queue.direct_valid.next = self.doorbell.direct_valid.val();
        self.recv_queue.ring.next = self.doorbell.rq.val();
        self.recv_queue.ring_valid.next = self.doorbell.rq_valid.val();
        self.recv_queue.direct.next = DirectWord { number: 0.into(), owned: false, complete: false, data: 0.into() };
        self.recv_queue.direct_valid.next = false;
        self.completion.ring.next = self.doorbell.cq.val();
        self.completion.ring_valid.next = self.doorbell.cq_valid.val();
        self.event.ring.next = self.doorbell.eq.val();
        self.event.ring_valid.next = self.doorbell.eq_valid.val();
        self.recv_queue.re.next = self.responder.rq_re.val();
        self.recv_queue.number.next = self.responder.rq_queue.val();
        self.recv_queue.index.next = self.responder.rq_index.val();
        self.responder.rq_block.next = self.recv_queue.block.val();
        self.responder.rq_view.next = self.recv_queue.view.val();
        Source::<QueueIndex>::join(&mut self.responder.consume, &mut self.recv_queue.consume);
        self.recv_queue.back.data.next = QueueIndex { queue: 0.into(), index: 0.into() };
        self.recv_queue.back.valid.next = false;
        self.send_queue.re.next = self.requester.sq_re.val();
        self.send_queue.number.next = self.requester.sq_queue.val();
        self.send_queue.index.next = self.requester.sq_index.val();
        self.requester.sq_block.next = self.send_queue.block.val();
        self.requester.sq_view.next = self.send_queue.view.val();
        Source::<QueueIndex>::join(&mut self.requester.consume, &mut self.send_queue.consume);
        Source::<QueueIndex>::join(&mut self.requester.refetch, &mut self.send_queue.back);

        comment!("requester and completer");
        self.scheduler.work.next = self.send_queue.work.val();
        self.scheduler.open.next = self.requester.open.val();
        self.scheduler.woken.next = self.send_queue.woken.val();
        self.scheduler.soon.next = self.send_queue.soon.val();
        self.scheduler.woken_valid.next = self.send_queue.woken_valid.val();
        Source::<Pick>::join(&mut self.scheduler.pick, &mut self.requester.pick);
        Source::<GoBack>::join(&mut self.completer.back, &mut self.requester.back);
        Source::<Qp>::join(&mut self.completer.kick, &mut self.requester.kick);
        Source::<SendFault>::join(&mut self.requester.failed, &mut self.completer.fault);
        self.completer.acked_re.next = self.requester.acked_re.val();
        self.completer.acked_addr.next = self.requester.acked_addr.val();
        self.requester.acked.next = self.completer.acked.val();
        self.records.we.next = self.requester.record_we.val();
        self.records.waddr.next = self.requester.record_addr.val();
        self.records.wdata.next = self.requester.record.val();
        self.records.re.next = self.completer.record_re.val();
        self.records.raddr.next = self.completer.record_addr.val();
        self.completer.record.next = self.records.rdata.val();
        self.records.again_re.next = self.requester.recall_re.val();
        self.records.again_addr.next = self.requester.recall_addr.val();
        self.requester.recall_ready.next = self.records.again_ready.val();
        self.requester.recalled.next = self.records.rdata.val();
        self.landings.we.next = self.requester.land_we.val();
        self.landings.waddr.next = self.requester.land_addr.val();
        self.landings.wdata.next = self.requester.land.val();
        self.landings.re.next = self.completer.land_re.val();
        self.landings.raddr.next = self.completer.land_addr.val();
        self.completer.land.next = self.landings.rdata.val();
        self.sent.we.next = self.requester.sent_we.val();
        self.sent.waddr.next = self.requester.sent_addr.val().cast();
        self.sent.wdata.next = self.requester.sent.val();
        self.sent.re.next = self.completer.sent_re.val();
        self.sent.raddr.next = self.completer.sent_addr.val().cast();
        self.completer.sent.next = self.sent.rdata.val();

        comment!("transmit: arbiter, pacer, frames, egress, MAC");
        Source::<TxSeg>::join(&mut self.requester.seg, &mut self.segments.s[0]);
        Source::<TxSeg>::join(&mut self.respond.seg, &mut self.segments.s[1]);
        self.segments.more.next = cat!(!self.respond.seg.data.val().last, !self.requester.seg.data.val().last);
        Source::<TxSeg>::join(&mut self.segments.m, &mut self.transmit.seg);
        let seg = self.segments.m.data.val();
        self.pacer.head.next = seg.head;
        self.pacer.goes.next = self.segments.m.valid.val() && self.transmit.seg.ready.val() && seg.first;
        let (paced, paces) = (self.pacer.kick.val(), self.pacer.kicks.val());
        self.requester.pace.next = paced;
        self.requester.paces.next = paces;
        self.respond.pace.next = paced;
        self.respond.paces.next = paces;
        Source::<Bits<512>>::join(&mut self.requester.inline_data, &mut self.transmit.inline_data);
        Source::<TxHead>::join(&mut self.respond.quick, &mut self.transmit.quick);
        Source::<EpochMark>::join(&mut self.requester.epoch, &mut self.transmit.epoch);
        Source::<EpochMark>::join(&mut self.respond.epoch, &mut self.transmit.reply_epoch);
        Source::<TxLeft>::join(&mut self.transmit.left, &mut self.completer.left);
        self.respond.queued.next = self.transmit.queued.val();
        self.respond.gone.next = self.transmit.gone.val();
        let fault = self.transmit.fault.data.val();
        let faulty = self.transmit.fault.valid.val();
        self.requester.fault.data.next = fault;
        self.requester.fault.valid.next = faulty && fault.request;
        self.respond.fault.data.next = fault;
        self.respond.fault.valid.next = faulty && !fault.request;
        self.transmit.fault.ready.next =
            if fault.request { self.requester.fault.ready.val() } else { self.respond.fault.ready.val() };
        BeatSource::<W>::join(&mut self.transmit.mac, &mut self.loopback.tx);
        BeatSource::<W>::link(&mut self.mac_tx, &mut self.loopback.mac_tx);
        self.loopback.tx_error.next = self.transmit.mac_error.val();
        self.mac_tx_error.next = self.loopback.mac_tx_error.val();
        self.transmit.hurry.next = self.control.hurry.val();

        comment!("memory");
        Source::<AccessReq>::join(&mut self.landing.req, &mut self.mmu.rx_req);
        Source::<Chunk>::join(&mut self.mmu.rx_chunk, &mut self.landing.chunk);
        Source::<AccessReq>::join(&mut self.transmit.req, &mut self.mmu.tx_req);
        Source::<Chunk>::join(&mut self.mmu.tx_chunk, &mut self.transmit.chunk);
        self.mmu.turns.next = self.transmit.turns.val();
        self.landing.reading.next = self.mmu.reading.val();
        self.control.ask.next = self.requester.ask.val();
        self.control.asks.next = self.requester.asks.val();
        self.mmu.mtt_we.next = self.control.mtt_we.val();
        self.mmu.mtt_addr.next = self.control.mtt_addr.val();
        self.mmu.mtt_frame.next = self.control.mtt_frame.val();
        Source::<DmaWrite>::join(&mut self.landing.write, &mut self.writes.s[elab!(writer::LANDING)]);
        Source::<DmaWrite>::join(&mut self.completion.write, &mut self.writes.s[elab!(writer::COMPLETION)]);
        Source::<DmaWrite>::join(&mut self.event.write, &mut self.writes.s[elab!(writer::EVENT)]);
        Source::<DmaWrite>::join(&mut self.control.write, &mut self.writes.s[elab!(writer::CONTROL)]);
        Source::<DmaWrite>::join(&mut self.writes.m, &mut self.dma_write.req);
        Source::<DmaRead>::join(&mut self.transmit.dma, &mut self.dma_read.req[elab!(client::FRAMES)]);
        Source::<DmaRead>::join(&mut self.send_queue.dma, &mut self.dma_read.req[elab!(client::SEND_QUEUE)]);
        Source::<DmaRead>::join(&mut self.recv_queue.dma, &mut self.dma_read.req[elab!(client::RECV_QUEUE)]);
        // Two share a client. Who it takes is told by its tag.
        let free = self.dma_read.req[elab!(client::CONTROL)].ready.val();
        let atomic = self.atomics.dma.valid.val();
        self.dma_read.req[elab!(client::CONTROL)].valid.next = atomic || self.control.read.valid.val();
        self.dma_read.req[elab!(client::CONTROL)].data.next =
            if atomic { self.atomics.dma.data.val() } else { self.control.read.data.val() };
        self.atomics.dma.ready.next = free;
        self.control.read.ready.next = free && !atomic;
        let data = self.dma_read.data.val();
        let beat = self.dma_read.beat.val();
        self.transmit.data.next = data;
        self.transmit.beat.next = beat;
        self.transmit.data_valid.next = self.dma_read.data_valid[elab!(client::FRAMES)].val();
        self.send_queue.data.next = data;
        self.send_queue.beat.next = beat;
        self.send_queue.data_valid.next = self.dma_read.data_valid[elab!(client::SEND_QUEUE)].val();
        self.recv_queue.data.next = data;
        self.recv_queue.beat.next = beat;
        self.recv_queue.data_valid.next = self.dma_read.data_valid[elab!(client::RECV_QUEUE)].val();
        self.control.data.next = data;
        self.control.beat.next = beat;
        let shared = self.dma_read.data_valid[elab!(client::CONTROL)].val();
        self.control.data_valid.next = shared && !data.tag.get_bit(ATOMIC);
        self.atomics.data.next = data;
        self.atomics.beat.next = beat;
        self.atomics.data_valid.next = shared && data.tag.get_bit(ATOMIC);
        AxiReadMaster::<W>::link(&mut self.axi_read, &mut self.dma_read.axi);
        AxiWriteMaster::<W>::link(&mut self.axi_write, &mut self.dma_write.axi);

        comment!("QP states");
        self.qp_states.view_re[elab!(reader::RESPONDER)].next = self.responder.view_re.val();
        self.qp_states.view_addr[elab!(reader::RESPONDER)].next = self.responder.view_addr.val();
        self.responder.view.next = self.qp_states.view[elab!(reader::RESPONDER)].val();
        self.qp_states.view_re[elab!(reader::COMPLETER)].next = self.completer.view_re.val();
        self.qp_states.view_addr[elab!(reader::COMPLETER)].next = self.completer.view_addr.val();
        self.completer.view.next = self.qp_states.view[elab!(reader::COMPLETER)].val();
        self.qp_states.view_re[elab!(reader::REQUESTER)].next = self.requester.view_re.val();
        self.qp_states.view_addr[elab!(reader::REQUESTER)].next = self.requester.view_addr.val();
        self.requester.view.next = self.qp_states.view[elab!(reader::REQUESTER)].val();
        self.qp_states.view_re[elab!(reader::RESPOND)].next = self.respond.view_re.val();
        self.qp_states.view_addr[elab!(reader::RESPOND)].next = self.respond.view_addr.val();
        self.respond.view.next = self.qp_states.view[elab!(reader::RESPOND)].val();
        self.qp_states.view_re[elab!(reader::TRANSMIT)].next = self.transmit.view_re.val();
        self.qp_states.view_addr[elab!(reader::TRANSMIT)].next = self.transmit.view_addr.val();
        self.transmit.view.next = self.qp_states.view[elab!(reader::TRANSMIT)].val();
        self.qp_states.view_re[elab!(reader::SEND_QUEUE)].next = self.send_queue.qp_re.val();
        self.qp_states.view_addr[elab!(reader::SEND_QUEUE)].next = self.send_queue.qp_addr.val();
        self.send_queue.qp.next = self.qp_states.view[elab!(reader::SEND_QUEUE)].val();
        self.qp_states.view_re[elab!(reader::RECV_QUEUE)].next = self.recv_queue.qp_re.val();
        self.qp_states.view_addr[elab!(reader::RECV_QUEUE)].next = self.recv_queue.qp_addr.val();
        self.recv_queue.qp.next = self.qp_states.view[elab!(reader::RECV_QUEUE)].val();
        Source::<QpError>::join(&mut self.commit.error, &mut self.qp_states.error[0]);
        Source::<QpError>::join(&mut self.respond.error, &mut self.qp_states.error[1]);
        Source::<QpError>::join(&mut self.send_queue.error, &mut self.qp_states.error[2]);
        Source::<QpError>::join(&mut self.recv_queue.error, &mut self.qp_states.error[3]);
        Source::<QpError>::join(&mut self.completion.error, &mut self.qp_states.error[4]);

        comment!("events and clock");
        Source::<Event>::join(&mut self.completion.event, &mut self.event.event[0]);
        Source::<Event>::join(&mut self.qp_states.event, &mut self.event.event[1]);
        Source::<Event>::join(&mut self.doorbell.event, &mut self.event.event[2]);
        Source::<Event>::join(&mut self.control.event, &mut self.event.event[3]);
        self.control.msix_re.next = self.event.msix_re.val();
        self.control.msix_addr.next = self.event.msix_addr.val();
        self.event.msix_half.next = self.control.msix_half.val();
        self.event.msix_mask.next = self.control.msix_mask.val();
        self.control.msix_pending.next = self.event.msix_pending.val();
        self.control.msix_off.next = self.msix_off.val();
        let now = self.control.now.val();
        self.completion.now.next = now;
        self.event.now.next = now;

        comment!("parity of context");
        let test = self.control.parity_test.val();
        let tested = test.get_bits::<4>(0);
        let testing = test.get_bit(4);
        self.mmu.flip.next = testing && tested == id::KEY as u64;
        self.completion.flip.next = testing && tested == id::CQ as u64;
        self.event.flip.next = testing && tested == id::EQ as u64;
        self.requester.flip.next = testing && tested == id::QP_SEND as u64;
        self.completer.flip.next = testing && tested == id::QP_SEND as u64;
        self.responder.flip.next = testing && tested == id::QP_RECV as u64;
        self.respond.flip.next = testing && tested == id::QP_RECV as u64;
        self.sentry.bad[elab!(guard::KEYS)].next = self.mmu.bad.val();
        self.sentry.bad[elab!(guard::COMPLETION)].next = self.completion.bad.val();
        self.sentry.bad[elab!(guard::EVENT)].next = self.event.bad.val();
        self.sentry.bad[elab!(guard::REQUESTER)].next = self.requester.bad.val();
        self.sentry.bad[elab!(guard::COMPLETER)].next = self.completer.bad.val();
        self.sentry.bad[elab!(guard::RESPONDER)].next = self.responder.bad.val();
        self.sentry.bad[elab!(guard::RESPOND)].next = self.respond.bad.val();
        self.control.damage.next = self.sentry.damage.val();
        Source::<QpError>::join(&mut self.sentry.error, &mut self.qp_states.error[5]);
        Source::<Event>::join(&mut self.sentry.event, &mut self.event.event[4]);

        comment!("control");
        Sink::<BarAccess>::link(&mut self.bar0, &mut self.control.bar);
        self.bar0_rdata.next = self.control.rdata.val();
        self.bar0_rvalid.next = self.control.rvalid.val();
        self.control.flr.next = self.flr.val();
        self.control.link_up.next = self.link_up.val();
        TableMaster::join(&mut self.control.table[elab!(door::QP_STATE)], &mut self.qp_states.table);
        TableMaster::join(&mut self.control.table[elab!(door::SEND_QUEUE)], &mut self.send_queue.table);
        TableMaster::join(&mut self.control.table[elab!(door::RECV_QUEUE)], &mut self.recv_queue.table);
        TableMaster::join(&mut self.control.table[elab!(door::DOORBELL)], &mut self.doorbell.table);
        TableMaster::join(&mut self.control.table[elab!(door::REQUESTER)], &mut self.requester.table);
        TableMaster::join(&mut self.control.table[elab!(door::COMPLETER)], &mut self.completer.table);
        TableMaster::join(&mut self.control.table[elab!(door::RESPONDER)], &mut self.responder.table);
        TableMaster::join(&mut self.control.table[elab!(door::RESPOND)], &mut self.respond.table);
        TableMaster::join(&mut self.control.table[elab!(door::LANDING)], &mut self.landing.table);
        TableMaster::join(&mut self.control.table[elab!(door::INGRESS)], &mut self.ingress.table);
        let row = self.control.table[elab!(door::INGRESS)].req.val();
        self.loopback.table.next = row;
        self.loopback.table_we.next = self.control.table[elab!(door::INGRESS)].valid.val() && row.write;
        TableMaster::join(&mut self.control.table[elab!(door::TRANSMIT)], &mut self.transmit.table);
        TableMaster::join(&mut self.control.table[elab!(door::COMPLETION)], &mut self.completion.table);
        TableMaster::join(&mut self.control.table[elab!(door::EVENT)], &mut self.event.table);
        TableMaster::join(&mut self.control.table[elab!(door::MMU)], &mut self.mmu.table);
        TableMaster::join(&mut self.control.table[elab!(door::COPIES)], &mut self.dispatch.table);
        TableMaster::join(&mut self.control.table[elab!(door::PACER)], &mut self.pacer.table);

        comment!("reset and drain: what has gone in and come out of receive path, transmit ring, reads and writes");
        let quiesce = self.control.quiesce.val();
        self.dma_read.quiesce.next = quiesce;
        self.dma_write.quiesce.next = quiesce;
        self.control.idle.next = self.dma_read.idle.val() && self.dma_write.idle.val();
        let entered = self.ingress.meta.valid.val() && self.dispatch.meta.ready.val();
        let landed = self.landing.landed.valid.val() && self.commit.landed.ready.val();
        if self.dispatch.began.val() {
            self.packets_in.d.next = self.packets_in.q.val() + 1;
        }
        if self.ingress.accepted.val() {
            self.frames_in.d.next = self.frames_in.q.val() + 1;
        }
        if entered {
            self.frames_out.d.next = self.frames_out.q.val() + 1;
        }
        if rst {
            // With `commit.through`, which counts them out: a drain compares the two. And so the frames.
            self.packets_in.d.next = 0.into();
            self.frames_in.d.next = 0.into();
            self.frames_out.d.next = 0.into();
        }
        self.control.filled[elab!(position::RECEIVE)].next = self.packets_in.q.val();
        self.control.emptied[elab!(position::RECEIVE)].next = self.commit.through.val();
        self.control.filled[elab!(position::INGRESS)].next = cat!(16; self.frames_in.q.val(), bits::<8>(0));
        self.control.emptied[elab!(position::INGRESS)].next = cat!(16; self.frames_out.q.val(), bits::<8>(0));
        self.commit.completed.next = self.completion.idle.val();
        self.control.filled[elab!(position::TRANSMIT)].next = self.transmit.queued.val();
        self.control.emptied[elab!(position::TRANSMIT)].next = self.transmit.gone.val();
        // Reads come back in any order: they say themselves when those of before are back.
        self.dma_read.mark.next = self.control.drains.val();
        self.control.filled[elab!(position::READS)].next = 0.into();
        self.control.emptied[elab!(position::READS)].next =
            if self.dma_read.passed.val() { 0.into() } else { 0xffff.into() };
        self.control.filled[elab!(position::SEND_FETCHES)].next = self.send_queue.filled.val();
        self.control.emptied[elab!(position::SEND_FETCHES)].next = self.send_queue.emptied.val();
        self.control.filled[elab!(position::RECV_FETCHES)].next = self.recv_queue.filled.val();
        self.control.emptied[elab!(position::RECV_FETCHES)].next = self.recv_queue.emptied.val();
        self.control.filled[elab!(position::ATOMICS)].next = self.atomics.filled.val();
        self.control.emptied[elab!(position::ATOMICS)].next = self.atomics.emptied.val();
        self.control.filled[elab!(position::WRITES)].next = self.writes.issued.val();
        self.control.emptied[elab!(position::WRITES)].next = self.dma_write.performed.val();

        comment!("counters and traces: no two blocks of one group have a counter in common");
        self.control.count[0].next = self.ingress.count.val();
        // What the responder accepts is counted by commit, when it has landed.
        self.control.count[1].next = self.responder.count.val() & !(1u64 << counter::RX_ACCEPTED);
        self.control.count[2].next = self.completer.count.val();
        let none: Bits<64> = 0.into();
        self.counts[0].a.next = self.commit.count.val();
        self.counts[0].b.next = self.transmit.count.val();
        self.counts[0].c.next = self.doorbell.count.val();
        self.counts[0].d.next = self.send_queue.count.val();
        self.counts[1].a.next = self.respond.count.val();
        self.counts[1].b.next = self.completion.count.val();
        self.counts[1].c.next = self.recv_queue.count.val();
        self.counts[1].d.next = none;
        self.counts[2].a.next = self.landing.count.val();
        self.counts[2].b.next = self.requester.count.val();
        self.counts[2].c.next = self.dma_read.count.val();
        self.counts[2].d.next = none;
        self.counts[3].a.next = self.dma_write.count.val();
        self.counts[3].b.next = self.event.count.val();
        self.counts[3].c.next = self.qp_states.count.val();
        self.counts[3].d.next = none;
        self.counts[4].a.next = self.loopback.count.val();
        self.counts[4].b.next = self.sentry.count.val();
        self.counts[4].c.next = none;
        self.counts[4].d.next = none;
        for i in 0..5 {
            clock!(self, clock, counts[i]);
            self.control.count[i + 3].next = self.counts[i].all.val();
        }
        let meta = self.ingress.meta.data.val();
        self.control.rx_bytes.next = if entered && !meta.raw { meta.payload } else { 0.into() };
        self.control.tx_bytes.next = self.transmit.tx_bytes.val();
        self.trace_entered.next = self.loopback.entered.val();
        self.trace_turned.next = self.loopback.turned_in.val();
        self.trace_ingress.next = self.ingress.count.val();
        self.trace_accepted.next = self.ingress.accepted.val();
        self.trace_responder.next = self.responder.count.val();
        self.trace_completer.next = self.completer.count.val();
        // A frame frees its rows with its last step; wake-up calls, which are the completer's, have none.
        let through = self.landing.landed.data.val();
        self.trace_landed.next = landed && through.frame;
        self.trace_copy.next = landed && !through.frame && !through.response;
        self.trace_response.next = through.response;
        self.trace_cause.next = if through.fault {
            through.cause
        } else if through.flushed {
            bits::<8>(cause::FLUSHED as u64)
        } else {
            0.into()
        };
        self.trace_reset.next = rst;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_cannot_be_are_named() {
        let all = CoreConfig::default();
        assert_eq!(all.check(512, 256), Ok(()));
        assert_eq!(CoreConfig { ram: 512 << 10, ..all }.check(512, 4096), Ok(()));
        assert_eq!(CoreConfig::small().check(64, 32), Ok(()));
        for (config, width, qps, name) in [
            (all, 96, 256, "width"),
            (all, 512, 48, "queue pairs"),
            (all, 512, 16, "queue pairs"),
            (all, 512, 8192, "queue pairs"),
            (CoreConfig { cqs: 100, ..all }, 512, 256, "cqs"),
            (CoreConfig { eqs: 128, ..all }, 512, 256, "eqs"),
            (CoreConfig { keys: 0, ..all }, 512, 256, "keys"),
            (CoreConfig { frames: 100, ..all }, 512, 256, "frames"),
            (CoreConfig { rx_buffer: 8 << 10, ..all }, 512, 256, "rx_buffer"),
            (CoreConfig { tx_buffer: 1 << 20, ..all }, 64, 256, "tx_buffer"),
            (CoreConfig { tx_slots: 96, ..all }, 512, 256, "tx_slots"),
            (CoreConfig { reads: 129, ..all }, 512, 256, "reads"),
            (CoreConfig { atomics: 2, ..all }, 512, 256, "atomics"),
            (CoreConfig { half_blocks: true, ..all }, 512, 256, "half_blocks"),
            (CoreConfig { pages: 5000, ..all }, 512, 256, "pages"),
            (CoreConfig { mhz: 0, ..all }, 512, 256, "mhz"),
            (CoreConfig { ram: 16 << 10, ..all }, 512, 256, "ram"),
            (CoreConfig { ram: 32 << 10, ..all }, 512, 256, "ram"),
            (all, 512, 4096, "ram"),
            (CoreConfig { ram: 128 << 10, ..all }, 512, 1024, "ram"),
        ] {
            let error = config.check(width, qps).unwrap_err();
            assert!(error.contains(name), "{error}");
        }
    }
}
