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
use crate::msg::{BarAccess, DmaData, DmaRead, DmaWrite, Event};
use crate::stream::{Sink, Source, TableMaster};
use abi::status::counter;
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
    /// Drain positions, see [`Reset`].
    pub filled: Arr<Signal<In, Bits<16>>, POSITIONS>,
    pub emptied: Arr<Signal<In, Bits<16>>, POSITIONS>,

    /// Clock in cycles.
    pub now: Signal<Out, Bits<48>>,
    pub link_up: Signal<In, Bit>,
    /// `bar::RAW_CONTROL`.
    pub raw_control: Signal<Out, Bits<2>>,

    /// Client of memory/dma_read; source of memory/dma_write.
    pub read: Source<DmaRead>,
    pub data: Signal<In, DmaData>,
    pub beat: Signal<In, Bits<W>>,
    pub data_valid: Signal<In, Bit>,
    pub write: Source<DmaWrite>,

    /// Doors of the table bus, numbered by [`super::table_bus::door`].
    pub table: Arr<TableMaster, DOORS>,
    /// Table loader, to memory/mmu.
    pub mtt_we: Signal<Out, Bit>,
    pub mtt_addr: Signal<Out, Bits<24>>,
    pub mtt_frame: Signal<Out, Bits<36>>,

    /// To queue/event.
    pub event: Source<Event>,
    pub msix_re: Signal<In, Bit>,
    pub msix_addr: Signal<In, Bits<8>>,
    pub msix_row: Signal<Out, Bits<128>>,
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
}

impl<const W: usize> ControlPlane<W> {
    /// The control plane of a device that is what `identity` says.
    pub fn new(identity: Identity) -> Self {
        Self {
            registers: Registers::new(identity),
            mmio: Mmio::new(identity.limits, identity.limits2),
            ..Self::default()
        }
    }
}

impl<const W: usize> Logic for ControlPlane<W> {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, clock_q, cause, held);
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

        // Reset.
        self.reset.request.next = self.flr.val() || self.registers.reset.val();
        self.reset.idle.next = self.idle.val();
        for i in 0..POSITIONS {
            self.reset.filled[i].next = self.filled[i].val();
            self.reset.emptied[i].next = self.emptied[i].val();
        }
        self.reset.drain_go.next = self.mmio.drain_go.val();
        self.device_rst.next = device_rst;
        self.quiesce.next = self.reset.quiesce.val();
        let hold = self.registers.hold.val();
        self.held.d.next = hold;
        if self.reset.busy.val() {
            self.cause.d.next = 1.into();
        } else if hold && !self.held.q.val() && self.clock_q.q.val() > 1 {
            self.cause.d.next = 2.into();
        }

        // BAR0.
        Sink::<BarAccess>::link(&mut self.bar, &mut self.registers.bar);
        self.rdata.next = self.registers.rdata.val();
        self.rvalid.next = self.registers.rvalid.val();
        self.registers.firmware.next = self.mmio.firmware.val();
        self.registers.status.next = Status {
            health: self.mmio.health.val(),
            resetting: self.reset.busy.val(),
            link_up: self.link_up.val(),
            mac: self.mmio.mac.val(),
        };
        self.clock_q.d.next = self.clock_q.q.val() + 1;
        self.registers.now.next = self.clock_q.q.val();
        self.now.next = self.clock_q.q.val().get_bits::<48>(0);
        self.raw_control.next = self.registers.host.val().raw_control;
        self.registers.log_word.next = self.mmio.log_word.val();
        self.registers.counter_value.next = self.counters.value.val();
        self.registers.msix_off.next = self.msix_off.val();
        self.registers.msix_re.next = self.msix_re.val();
        self.registers.msix_addr.next = self.msix_addr.val();
        self.registers.msix_pending.next = self.msix_pending.val();
        self.msix_row.next = self.registers.msix_row.val();
        self.msix_mask.next = self.registers.msix_mask.val();

        // Counters.
        let mut dma_error = false;
        for g in 0..GROUPS {
            self.counters.count[g].next = self.count[g].val();
            dma_error = dma_error || self.count[g].val().get_bit(elab!(counter::DMA_ERROR));
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
        self.mmio.trap.next = self.core.trap.val();
        self.mmio.dma_error.next = dma_error;
        self.mmio.log_re.next = self.registers.log_re.val();
        self.mmio.log_addr.next = self.registers.log_addr.val();
        self.mmio.drain_busy.next = self.reset.drain_busy.val();
        Source::<Event>::link(&mut self.event, &mut self.mmio.event);

        // Table bus.
        self.bus.go.next = self.mmio.table_go.val();
        self.bus.request.next = self.mmio.table_request.val();
        self.bus.part.next = self.mmio.table_part.val();
        self.mmio.table_busy.next = self.bus.busy.val();
        self.mmio.table_row.next = self.bus.row.val();
        self.mmio.table_row_valid.next = self.bus.row_valid.val();
        for i in 0..DOORS {
            TableMaster::link(&mut self.table[i], &mut self.bus.m[i]);
        }

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
        self.core.ram_addr.next = self.mailbox.ram_addr.val();
        self.core.ram_wdata.next = self.mailbox.ram_wdata.val();
        self.mailbox.ram_rdata.next = self.core.ram_rdata.val();
        self.mtt_we.next = self.mailbox.mtt_we.val();
        self.mtt_addr.next = self.mailbox.mtt_addr.val();
        self.mtt_frame.next = self.mailbox.mtt_frame.val();
    }
}
