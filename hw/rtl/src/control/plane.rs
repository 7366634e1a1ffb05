//! All of the control room but the QP states: BAR0, soft core, table bus, mailbox, counters, reset. For the core, which
//! connects its doors to the engines.
//!
//! ```text
//!   BAR0 -- registers -- mmio -- soft core (RAM)
//!              |          |  \        |
//!           counters   table bus  mailbox -- dma_read, dma_write, MTT
//!              |          |
//!            blocks     engines               reset -- device_rst, quiesce
//! ```
//!
//! It cannot deadlock: see its parts. Nothing on the data path waits for it.

use super::{
    counters::{Counters, GROUPS},
    mailbox::Mailbox,
    mmio::Mmio,
    registers::{Identity, Registers, Status},
    reset::{POSITIONS, Reset},
    soft_core::SoftCore,
    table_bus::{DOORS, TableBus},
};
use crate::msg::{BarAccess, DmaData, DmaRead, DmaWrite, Event, QueueIndex};
use crate::stream::{Sink, Source, TableMaster};
use hdl::prelude::*;

/// The control plane on a bus of `W` bits. See the module.
#[derive(LogicBlock, Default)]
pub struct ControlPlane<const W: usize> {
    pub clock: Signal<In, Clock>,
    /// Power-up reset.
    pub rst: Signal<In, Bit>,
    /// Function-level reset, for a cycle at least.
    pub flr: Signal<In, Bit>,
    /// BAR0.
    pub bar: Sink<BarAccess>,
    pub rdata: Signal<Out, Bits<64>>,
    pub rvalid: Signal<Out, Bit>,

    /// Reset of all blocks but this one.
    pub device_rst: Signal<Out, Bit>,
    /// To the DMA channels, and from both of them.
    pub quiesce: Signal<Out, Bit>,
    pub idle: Signal<In, Bit>,
    /// A drain begins, in this cycle.
    pub drains: Signal<Out, Bit>,
    /// Drain positions, see [`Reset`].
    pub filled: Arr<Signal<In, Bits<16>>, POSITIONS>,
    pub emptied: Arr<Signal<In, Bits<16>>, POSITIONS>,

    /// The firmware has waited for an engine or a drain for longer than those take by themselves.
    pub hurry: Signal<Out, Bit>,
    /// Clock in cycles.
    pub now: Signal<Out, Bits<48>>,
    pub link_up: Signal<In, Bit>,
    /// `bar::PARITY_TEST`.
    pub parity_test: Signal<Out, Bits<5>>,
    /// A row of context was found damaged, in this cycle.
    pub damage: Signal<In, Bit>,

    /// Client of memory/dma_read; source of memory/dma_write.
    pub read: Source<DmaRead>,
    pub data: Signal<In, DmaData>,
    pub beat: Signal<In, Bits<W>>,
    pub data_valid: Signal<In, Bit>,
    pub write: Source<DmaWrite>,

    /// Doors of the table bus, numbered by [`super::table_bus::door`].
    pub table: Arr<TableMaster, DOORS>,
    /// A WQE of transport/requester that the firmware decides upon.
    pub ask: Signal<In, QueueIndex>,
    pub asks: Signal<In, Bit>,
    /// Table loader, to memory/mmu.
    pub mtt_we: Signal<Out, Bit>,
    pub mtt_addr: Signal<Out, Bits<24>>,
    pub mtt_frame: Signal<Out, Bits<36>>,

    /// To queue/event.
    pub event: Source<Event>,
    pub msix_re: Signal<In, Bit>,
    pub msix_addr: Signal<In, Bits<6>>,
    pub msix_half: Signal<Out, Bits<64>>,
    pub msix_mask: Signal<Out, Bits<32>>,
    pub msix_pending: Signal<In, Bits<32>>,
    /// MSI-X is off, or wholly masked, in configuration space.
    pub msix_off: Signal<In, Bit>,

    /// The blocks' `count` vectors: those of one group never pulse the same counter in the same cycle.
    pub count: Arr<Signal<In, Bits<64>>, GROUPS>,
    pub rx_bytes: Signal<In, Bits<14>>,
    pub tx_bytes: Signal<In, Bits<14>>,

    registers: Registers,
    counters: Counters,
    mmio: Mmio,
    bus: TableBus,
    mailbox: Mailbox<W>,
    core: SoftCore,
    reset: Reset,
    clock_q: Reg<Bits<64>>,
    cause: Reg<Bits<2>>,
    held: Reg<Bit>,
    resets: Reg<Bits<16>>,
    resetting: Reg<Bit>,
    waited: Reg<Bits<{ HURRY + 1 }>>,
}

/// Log2 of the cycles after which a wait of the firmware counts as long.
const HURRY: usize = 12;

impl<const W: usize> ControlPlane<W> {
    /// The control plane of a device that is what `identity` says.
    pub fn new(identity: Identity) -> Self {
        Self {
            registers: Registers::new(identity),
            mmio: Mmio::new(identity),
            core: SoftCore::new(identity.ram as usize, W >= 256),
            reset: Reset::new(identity.mhz),
            // As after power-up, when nothing is stopped by that.
            held: Reg::with_reset(true),
            ..Self::default()
        }
    }
}

impl<const W: usize> Logic for ControlPlane<W> {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, clock_q, cause, held, resets, resetting, waited);
        clock_reset!(self, clock, rst, reset);
        let device_rst = self.reset.device_rst.val();
        clock!(self, clock, registers, counters, mmio, bus, mailbox, core);
        self.registers.rst.next = device_rst;
        self.registers.power.next = self.rst.val();
        self.counters.rst.next = device_rst;
        self.mmio.rst.next = device_rst;
        self.bus.rst.next = device_rst;
        self.mailbox.rst.next = device_rst;
        self.core.rst.next = device_rst;

        // Reset. To hold the soft core resets the device too: the firmware that comes knows nothing of what is there.
        let hold = self.registers.hold.val();
        self.held.d.next = hold;
        let stops = hold && !self.held.q.val();
        let asked = self.flr.val() || self.registers.reset.val();
        self.reset.request.next = asked || stops;
        self.reset.idle.next = self.idle.val();
        for i in 0..POSITIONS {
            self.reset.filled[i].next = self.filled[i].val();
            self.reset.emptied[i].next = self.emptied[i].val();
        }
        self.reset.drain_go.next = self.mmio.drain_go.val();
        self.drains.next = self.mmio.drain_go.val();
        self.device_rst.next = device_rst;
        self.quiesce.next = self.reset.quiesce.val();
        let busy = self.reset.busy.val();
        self.resetting.d.next = busy;
        if asked {
            self.cause.d.next = 1.into();
        } else if stops {
            self.cause.d.next = 2.into();
        }
        if busy && !self.resetting.q.val() {
            self.resets.d.next = self.resets.q.val() + 1;
        }
        // Firmware that is held, or is about to be reset, takes no commands.
        let serves = !hold && !busy;

        // BAR0.
        Sink::<BarAccess>::link(&mut self.bar, &mut self.registers.bar);
        self.rdata.next = self.registers.rdata.val();
        self.rvalid.next = self.registers.rvalid.val();
        let mut firmware = self.mmio.firmware.val();
        firmware.ready = firmware.ready && serves;
        self.registers.firmware.next = firmware;
        let health = self.mmio.health.val();
        self.registers.status.next = Status {
            health: health.replace_bit(0, health.get_bit(0) && serves),
            resets: self.resets.q.val(),
            resetting: busy,
            link_up: self.link_up.val(),
            mac: self.mmio.mac.val(),
        };
        self.clock_q.d.next = self.clock_q.q.val() + 1;
        self.registers.now.next = self.clock_q.q.val();
        self.now.next = self.clock_q.q.val().get_bits::<48>(0);
        self.parity_test.next = self.registers.host.val().parity_test;
        self.mmio.damage.next = self.damage.val();
        self.registers.log_word.next = self.mmio.log_word.val();
        self.registers.counter_value.next = self.counters.value.val();
        self.registers.counter_done.next = self.counters.done.val();
        self.registers.msix_off.next = self.msix_off.val();
        self.registers.msix_re.next = self.msix_re.val();
        self.registers.msix_addr.next = self.msix_addr.val();
        self.registers.msix_pending.next = self.msix_pending.val();
        self.msix_half.next = self.registers.msix_half.val();
        self.msix_mask.next = self.registers.msix_mask.val();

        // Counters.
        for g in 0..GROUPS {
            self.counters.count[g].next = self.count[g].val();
        }
        self.counters.rx_bytes.next = self.rx_bytes.val();
        self.counters.tx_bytes.next = self.tx_bytes.val();
        self.counters.re.next = self.registers.counter_re.val();
        self.counters.index.next = self.registers.counter_index.val();

        // Soft core and its registers.
        self.core.hold.next = hold;
        self.core.load_we.next = self.registers.load_we.val();
        self.core.load_addr.next = self.registers.load_addr.val();
        self.core.load_data.next = self.registers.load_data.val();
        self.core.io_done.next = self.mmio.io_done.val();
        self.core.io_rdata.next = self.mmio.io_rdata.val();
        self.mmio.io_valid.next = self.core.io_valid.val();
        self.mmio.io_addr.next = self.core.io_addr.val();
        self.mmio.io_write.next = self.core.io_write.val();
        self.mmio.io_wdata.next = self.core.io_wdata.val();
        self.mmio.host.next = self.registers.host.val();
        self.mmio.port.next = cat!(32; bits::<16>(super::registers::PORT_MTU), bits::<15>(0), self.link_up.val());
        self.mmio.now.next = self.clock_q.q.val().get_bits::<32>(0);
        self.mmio.reset_cause.next = self.cause.q.val();
        self.mmio.reset_busy.next = self.reset.busy.val();
        self.mmio.ask.next = self.ask.val();
        self.mmio.asks.next = self.asks.val();
        self.mmio.trap.next = self.core.trap.val();
        self.mmio.dma_error.next = self.counters.dma_error.val();
        self.mmio.log_re.next = self.registers.log_re.val();
        self.mmio.log_addr.next = self.registers.log_addr.val();
        self.mmio.drain_busy.next = self.reset.drain_busy.val();
        Source::<Event>::link(&mut self.event, &mut self.mmio.event);

        // Table bus.
        self.bus.go.next = self.mmio.table_go.val();
        self.bus.request.next = self.mmio.table_request.val();
        self.mmio.table_busy.next = self.bus.busy.val();
        self.mmio.table_words.next = self.bus.words.val();
        self.mmio.table_row_valid.next = self.bus.row_valid.val();
        for i in 0..DOORS {
            TableMaster::link(&mut self.table[i], &mut self.bus.m[i]);
        }

        // How long the firmware has waited for the data path.
        let waited = self.waited.q.val();
        if !self.bus.busy.val() && !self.reset.drain_busy.val() {
            self.waited.d.next = 0.into();
        } else if !waited.get_bit(HURRY) {
            self.waited.d.next = waited + 1;
        }
        self.hurry.next = waited.get_bit(HURRY);

        // Mailbox.
        self.mailbox.dma_go.next = self.mmio.dma_go.val();
        self.mailbox.dma_host.next = self.mmio.dma_host.val();
        self.mailbox.dma_local.next = self.mmio.dma_local.val();
        self.mailbox.dma_bytes.next = self.mmio.dma_bytes.val();
        self.mailbox.dma_to_host.next = self.mmio.dma_to_host.val();
        self.mmio.dma_busy.next = self.mailbox.dma_busy.val();
        self.mmio.dma_failed.next = self.mailbox.dma_failed.val();
        self.mailbox.list_go.next = self.mmio.list_go.val();
        self.mailbox.list_host.next = self.mmio.list_host.val();
        self.mailbox.list_first.next = self.mmio.list_first.val();
        self.mailbox.list_shift.next = self.mmio.list_shift.val();
        self.mailbox.list_entries.next = self.mmio.list_entries.val();
        self.mmio.list_busy.next = self.mailbox.list_busy.val();
        self.mmio.list_failed.next = self.mailbox.list_failed.val();
        self.mmio.list_bad.next = self.mailbox.list_bad.val();
        Source::<DmaRead>::link(&mut self.read, &mut self.mailbox.read);
        Source::<DmaWrite>::link(&mut self.write, &mut self.mailbox.write);
        self.mailbox.data.next = self.data.val();
        self.mailbox.beat.next = self.beat.val();
        self.mailbox.data_valid.next = self.data_valid.val();
        self.core.ram_re.next = self.mailbox.ram_re.val();
        self.core.ram_we.next = self.mailbox.ram_we.val();
        self.core.ram_raddr.next = self.mailbox.ram_raddr.val();
        self.core.ram_waddr.next = self.mailbox.ram_waddr.val();
        self.core.ram_wdata.next = self.mailbox.ram_wdata.val();
        self.mailbox.ram_rdata.next = self.core.ram_rdata.val();
        self.mtt_we.next = self.mailbox.mtt_we.val();
        self.mtt_addr.next = self.mailbox.mtt_addr.val();
        self.mtt_frame.next = self.mailbox.mtt_frame.val();
    }
}

#[cfg(test)]
mod tests {
    use super::super::table_bus::door;
    use super::*;
    use crate::control::testing::HostMemory;
    use abi::{
        Field, bar,
        bar::health::RESETS,
        cmd::{ANSWER, SLOT, answer, attr, create_cq, create_eq, create_mr, create_qp, head, modify_qp, op, set_gid},
        table::{PAGE_FRAME, id, qp_state, qp_state_row},
    };
    use std::collections::BTreeMap;
    use verilate::{Model, Options, bench, bits as raw, firmware_image, picorv32_source};

    const RING: u64 = 0x7_0000_0000;
    const LOG2: u64 = 6;

    /// The control plane with its firmware; engines and host memory are modelled.
    struct World {
        m: Model,
        host: HostMemory,
        /// Rows as written, by table and index, and how often each door took one.
        rows: BTreeMap<(u8, u64), Vec<u8>>,
        taken: [u64; DOORS],
        answer: Option<usize>,
        mtt: BTreeMap<u64, u64>,
        produced: u64,
        /// Resets of the data path.
        resets: u64,
        in_reset: bool,
    }

    impl World {
        fn new() -> Self {
            let identity = Identity {
                width: 512,
                mhz: 250,
                limits: 10 | 10 << 8 | 10 << 16 | 5 << 24,
                limits2: 18 | 4 << 8 | 7 << 16 | 4 << 24,
                ram: 512 << 10,
            };
            let sources = vec![picorv32_source().unwrap()];
            let mut m =
                Model::of(|| ControlPlane::<512>::new(identity), Options { sources, ..Options::default() }).unwrap();
            m.reset();
            m.set("link_up", 1);
            m.set("event.ready", 1);
            m.set("idle", 1);
            let host = HostMemory::new(&m, 1);
            let rows = BTreeMap::new();
            let (taken, answer, mtt) = ([0; DOORS], None, BTreeMap::new());
            Self { m, host, rows, taken, answer, mtt, produced: 0, resets: 0, in_reset: false }
        }

        fn cycle(&mut self) {
            let m = &mut self.m;
            for i in 0..DOORS {
                m.set(&*format!("table[{i}].ready"), 1);
                m.set(&*format!("table[{i}].rvalid"), (self.answer == Some(i)) as u64);
            }
            if let Some(i) = self.answer.take() {
                let key = (m.get(&*format!("table[{i}].req.table")) as u8, m.get(&*format!("table[{i}].req.index")));
                let row = self.rows.get(&key).cloned().unwrap_or(vec![0; 64]);
                m.set_bytes(&*format!("table[{i}].rdata"), &row);
            }
            m.eval();
            let resets = m.bit("device_rst");
            self.resets += u64::from(resets && !self.in_reset);
            self.in_reset = resets;
            for i in 0..DOORS {
                if !m.bit(&*format!("table[{i}].valid")) {
                    continue;
                }
                self.taken[i] += 1;
                let name = |field: &str| format!("table[{i}].req.{field}");
                if m.bit(&*name("write")) {
                    let key = (m.get(&*name("table")) as u8, m.get(&*name("index")));
                    self.rows.insert(key, m.get_bytes(&*name("row")));
                } else {
                    self.answer = Some(i);
                }
            }
            if m.bit("mtt_we") {
                self.mtt.insert(m.get("mtt_addr"), m.get("mtt_frame"));
            }
            bench::cycle(m, &mut [&mut self.host]);
            m.eval();
        }

        fn access(&mut self, offset: usize, wide: bool, write: Option<u64>) -> u64 {
            let access = BarAccess {
                offset: bits::<24>(offset as u64),
                write: write.is_some(),
                wide,
                data: write.unwrap_or(0).into(),
            };
            self.m.set_bytes("bar.data", &raw::of(access));
            self.m.set("bar.valid", 1);
            self.m.eval();
            while !self.m.bit("bar.ready") {
                self.cycle();
            }
            self.cycle();
            self.m.set("bar.valid", 0);
            self.m.eval();
            if write.is_some() {
                return 0;
            }
            for _ in 0..8 {
                if self.m.bit("rvalid") {
                    return self.m.get("rdata");
                }
                self.cycle();
            }
            panic!("no answer to a read of {offset:#x}");
        }

        fn read(&mut self, offset: usize) -> u64 {
            self.access(offset, false, None)
        }

        fn write(&mut self, offset: usize, value: u64) {
            self.access(offset, false, Some(value));
        }

        fn until(&mut self, offset: usize, value: u64, limit: u64) -> u64 {
            let start = self.m.cycle();
            while self.read(offset) != value {
                (0..20).for_each(|_| self.cycle());
                if self.m.cycle() - start > limit {
                    let log: Vec<u8> = (0..bar::FW_LOG_BYTES)
                        .step_by(4)
                        .flat_map(|i| (self.read(bar::FW_LOG + i) as u32).to_le_bytes())
                        .collect();
                    panic!("{offset:#x} does not become {value}; log: {}", String::from_utf8_lossy(&log));
                }
            }
            self.m.cycle() - start
        }

        fn set_up_ring(&mut self) {
            self.access(bar::CMD_BASE, true, Some(RING));
            self.write(bar::CMD_LOG2, LOG2);
            self.produced = 0;
        }

        /// Executes commands, as many at a time as the ring holds; their answers and the cycles they took.
        fn execute(&mut self, commands: &[[u8; 64]]) -> (Vec<Vec<u8>>, u64) {
            let (mut answers, mut cycles) = (vec![], 0);
            for batch in commands.chunks(1 << LOG2) {
                let slot = |i: usize| RING + (self.produced + i as u64) % (1 << LOG2) * SLOT as u64;
                let slots: Vec<_> = (0..batch.len()).map(slot).collect();
                (0..batch.len()).for_each(|i| self.host.put(slots[i], &batch[i]));
                self.produced += batch.len() as u64;
                self.write(bar::CMD_PRODUCER, self.produced);
                cycles += self.until(bar::CMD_CONSUMER, self.produced, 30_000 * batch.len() as u64);
                (0..60).for_each(|_| self.cycle());
                answers.extend(slots.iter().map(|slot| self.host.get(slot + ANSWER as u64, 64)));
            }
            (answers, cycles)
        }
    }

    fn command(opcode: u8, fields: &[(Field, u64)]) -> [u8; 64] {
        let mut c = [0; 64];
        head::OPCODE.set(&mut c, opcode.into());
        head::OWNER.set(&mut c, 1);
        fields.iter().for_each(|(f, v)| f.set(&mut c, *v));
        c
    }

    #[test]
    fn the_firmware_serves_the_host() {
        let file = std::fs::read(firmware_image().unwrap()).unwrap();
        let (_, image) = abi::image::open(&file).unwrap();
        // The small soft core does not divide.
        let word = |w: &[u8]| w.iter().rev().fold(0, |n, b| n << 8 | u32::from(*b));
        assert!(!image.chunks_exact(4).map(word).any(|w| w & 0xfe00_407f == 0x0200_4033), "the firmware divides");
        let mut w = World::new();
        assert_eq!((w.read(bar::MAGIC), w.read(bar::READY)), (bar::MAGIC_VALUE as u64, 0));
        w.write(bar::FW_CONTROL, 1);
        w.write(bar::FW_ADDRESS, 0);
        for word in image.chunks(4) {
            let mut bytes = [0; 4];
            bytes[..word.len()].copy_from_slice(word);
            w.write(bar::FW_DATA, u32::from_le_bytes(bytes).into());
        }
        w.write(bar::FW_CONTROL, 0);
        println!("ready after {} cycles", w.until(bar::READY, 1, 1_000_000));
        assert!(w.read(bar::FW_VERSION) != 0 && w.read(bar::HEALTH) == 1);
        w.set_up_ring();

        // An object of each kind, and a region whose pages come as a list.
        let list = 0x9000_0000;
        (0..700).for_each(|i| w.host.put(list + 8 * i, &(0x1_0000_0000 + 0x1000 * (i * 7)).to_le_bytes()));
        let region = [
            (create_mr::PD, 0),
            (create_mr::ACCESS, 7),
            (create_mr::PAGE_SHIFT, 12),
            (create_mr::VA, 0x5000_0000),
            (create_mr::LENGTH, 700 * 4096),
            (create_mr::PAGES, list),
        ];
        let gid = [(head::OWNER, 0), (set_gid::VALID, 1), (set_gid::MAC, 2), (set_gid::IP_LOW, 0x0100_000a)];
        let (answers, _) = w.execute(&[
            command(op::CREATE_PD, &[]),
            command(op::CREATE_EQ, &[(create_eq::BASE, 0x1000)]),
            command(op::CREATE_CQ, &[(create_cq::BASE, 0x2000), (create_cq::LOG2_ENTRIES, 10)]),
            command(op::SET_GID, &gid),
            command(op::CREATE_MR, &region),
            command(99, &[]),
        ]);
        let results: Vec<_> = answers.iter().map(|a| (answer::RESULT.get(a), answer::FIELD.get(a))).collect();
        assert_eq!(results, [(0, 0), (0, 0), (0, 0), (0, 0), (0, 0), (1, 0)]);
        assert_eq!(w.mtt.len(), 700);
        let first = *w.mtt.keys().next().unwrap();
        (0..700).for_each(|i| assert_eq!(w.mtt[&(first + i)], (0x1_0000_0000u64 + 0x1000 * (i * 7)) >> 12));
        assert_eq!(PAGE_FRAME, 36);
        assert!(w.taken[door::COMPLETION] > 0 && w.taken[door::EVENT] > 0 && w.taken[door::MMU] > 0);

        // Queue pairs to RTS.
        let pairs = verilate::scale(16) as u64;
        let to = |n: u64, state: u8, mask: u32, fields: &[(Field, u64)]| {
            let fixed =
                [(head::NUMBER, n), (modify_qp::MASK, (mask | attr::STATE).into()), (modify_qp::STATE, state.into())];
            command(op::MODIFY_QP, &[&fixed, fields].concat())
        };
        let create = [
            (create_qp::SQ_LOG2, 4),
            (create_qp::RQ_LOG2, 4),
            (create_qp::RQ_SGES, 4),
            (create_qp::SQ_BASE, 0x4000),
            (create_qp::RQ_BASE, 0x8000),
        ];
        let (answers, created) = w.execute(&vec![command(op::CREATE_QP, &create); pairs as usize]);
        let numbers: Vec<_> = answers.iter().map(|a| answer::NUMBER.get(a)).collect();
        let peer = [
            (modify_qp::PATH_MTU, 3),
            (modify_qp::DEST_QPN, 5),
            (modify_qp::MIN_RNR_TIMER, 1),
            (modify_qp::MAX_DEST_READS, 4),
            (modify_qp::DMAC, 0x0200_0000_0002),
            (modify_qp::SPORT, 0xc000),
            (modify_qp::HOP_LIMIT, 64),
            (modify_qp::DIP_LOW, 0x0200_000a),
        ];
        let rtr =
            attr::AV | attr::PATH_MTU | attr::DEST_QPN | attr::RQ_PSN | attr::MAX_DEST_RD_ATOMIC | attr::MIN_RNR_TIMER;
        let rts = attr::SQ_PSN | attr::TIMEOUT | attr::RETRY_CNT | attr::RNR_RETRY | attr::MAX_QP_RD_ATOMIC;
        let init = attr::PKEY_INDEX | attr::PORT | attr::ACCESS_FLAGS;
        let mut moves = vec![];
        for n in &numbers {
            moves.push(to(*n, qp_state::INIT, init, &[(modify_qp::PORT, 1), (modify_qp::ACCESS, 6)]));
            moves.push(to(*n, qp_state::RTR, rtr, &peer));
            moves.push(to(*n, qp_state::RTS, rts, &[(modify_qp::RETRY_CNT, 7), (modify_qp::TIMEOUT, 14)]));
        }
        let (answers, moved) = w.execute(&moves);
        for (i, a) in answers.iter().enumerate() {
            assert_eq!((answer::RESULT.get(a), answer::FIELD.get(a)), (0, 0), "move {i}");
        }
        for n in &numbers {
            assert_eq!(qp_state_row::STATE.get(&w.rows[&(id::QP_STATE, *n)]), qp_state::RTS as u64);
        }
        let each = (created + moved) / (4 * pairs);
        println!("{pairs} queue pairs: {each} cycles a command");
        assert!(each < 4800, "256 queue pairs take more than 20 ms");

        // A reset of the device: the firmware starts again by itself, and knows nothing.
        w.write(bar::RESET, 1);
        w.until(bar::RESET, 0, 1000);
        w.until(bar::READY, 1, 1_000_000);
        assert_eq!(w.read(bar::CMD_CONSUMER), 0);
        w.set_up_ring();
        let (answers, _) = w.execute(&[command(op::CREATE_PD, &[])]);
        assert_eq!(answer::RESULT.get(&answers[0]), 0);

        // Firmware that is loaded anew finds a device that knows as little as itself; nobody is told that it is ready before.
        let health = w.read(bar::HEALTH);
        assert_eq!(health & 1, 1);
        w.m.set("idle", 0);
        w.write(bar::FW_CONTROL, 1);
        assert_eq!((w.read(bar::READY), w.read(bar::HEALTH) & 1, w.read(bar::RESET)), (0, 0, 1));
        let resets = w.resets;
        w.m.set("idle", 1);
        w.until(bar::RESET, 0, 1000);
        assert_eq!(w.resets, resets + 1, "the data path is not reset with its firmware");
        assert_eq!((w.read(bar::READY), w.read(bar::CMD_BASE), w.read(bar::CMD_CONSUMER)), (0, 0, 0));
        w.write(bar::FW_CONTROL, 0);
        w.until(bar::READY, 1, 1_000_000);
        assert_eq!(RESETS.get(&w.read(bar::HEALTH).to_le_bytes()), RESETS.get(&health.to_le_bytes()) + 1);
        // Held before a reset that is under way is done: one reset.
        w.m.set("idle", 0);
        w.write(bar::RESET, 1);
        w.write(bar::FW_CONTROL, 1);
        w.write(bar::FW_CONTROL, 0);
        assert_eq!((w.read(bar::READY), w.read(bar::RESET)), (0, 1));
        w.m.set("idle", 1);
        w.until(bar::READY, 1, 1_000_000);
        assert_eq!(w.resets, resets + 2);
        w.set_up_ring();
        let (answers, _) = w.execute(&[command(op::CREATE_PD, &[])]);
        assert_eq!(answer::RESULT.get(&answers[0]), 0);
    }
}
