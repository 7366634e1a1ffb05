//! The registers that the soft core sees (`abi::mmio`): it starts the table bus, the mailbox and drains here, raises
//! events, and publishes what the host reads of it in BAR0. Watches, too, that the firmware lives.
//!
//! ```text
//! cycle      0           1
//! io_valid   1           1
//! write      performed
//! io_done                1, with io_rdata
//! ```
//!
//! Every access takes two cycles. It cannot deadlock: it waits for nobody; engines that run show `busy`.

use super::registers::{FirmwareRegisters, HostRegisters, Identity};
use super::table_bus::READ;
use crate::msg::{Event, QueueIndex, TableReq};
use crate::stream::Source;
use abi::{mmio, queue::event, table};
use hdl::prelude::*;

/// Log2 of the cycles without a heartbeat after which the firmware counts as dead: 67 ms at 250 MHz.
const SILENCE: usize = 24;

/// Words of the registers, by number.
mod word {
    use abi::mmio;

    const fn at(register: usize) -> u64 {
        assert!(register / 4 < 64);
        (register / 4) as u64
    }
    pub const CMD_BASE: u64 = at(mmio::CMD_BASE);
    pub const CMD_BASE_HIGH: u64 = CMD_BASE + 1;
    pub const CMD_LOG2: u64 = at(mmio::CMD_LOG2);
    pub const CMD_PRODUCER: u64 = at(mmio::CMD_PRODUCER);
    pub const CMD_CONSUMER: u64 = at(mmio::CMD_CONSUMER);
    pub const READY: u64 = at(mmio::READY);
    pub const FW_VERSION: u64 = at(mmio::FW_VERSION);
    pub const FW_HEARTBEAT: u64 = at(mmio::FW_HEARTBEAT);
    pub const FW_LOG_HEAD: u64 = at(mmio::FW_LOG_HEAD);
    pub const PORT: u64 = at(mmio::PORT);
    pub const LIMITS: u64 = at(mmio::LIMITS);
    pub const LIMITS2: u64 = at(mmio::LIMITS2);
    pub const CLOCK: u64 = at(mmio::CLOCK);
    pub const RESET_CAUSE: u64 = at(mmio::RESET_CAUSE);
    pub const RESET: u64 = at(mmio::RESET);
    pub const RAM: u64 = at(mmio::RAM);
    pub const ROW: u64 = at(mmio::ROW);
    pub const ROW_1: u64 = ROW + 1;
    pub const ROW_2: u64 = ROW + 2;
    pub const TABLE_GO: u64 = at(mmio::TABLE_GO);
    pub const DMA_HOST: u64 = at(mmio::DMA_HOST);
    pub const DMA_HOST_HIGH: u64 = DMA_HOST + 1;
    pub const DMA_LOCAL: u64 = at(mmio::DMA_LOCAL);
    pub const DMA_GO: u64 = at(mmio::DMA_GO);
    pub const MTT_LIST: u64 = at(mmio::MTT_LIST);
    pub const MTT_LIST_HIGH: u64 = MTT_LIST + 1;
    pub const MTT_FIRST: u64 = at(mmio::MTT_FIRST);
    pub const MTT_SHIFT: u64 = at(mmio::MTT_SHIFT);
    pub const MTT_GO: u64 = at(mmio::MTT_GO);
    pub const DRAIN_GO: u64 = at(mmio::DRAIN_GO);
    pub const EVENT_NUMBER: u64 = at(mmio::EVENT_NUMBER);
    pub const EVENT_VALUE: u64 = at(mmio::EVENT_VALUE);
    pub const EVENT_GO: u64 = at(mmio::EVENT_GO);
    pub const ASK: u64 = at(mmio::ASK);
}

/// The registers. See the module.
#[derive(LogicBlock, Default)]
pub struct Mmio {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// Access of the core, at a byte offset from `mmio::BASE`.
    pub io_valid: Signal<In, Bit>,
    pub io_addr: Signal<In, Bits<13>>,
    pub io_write: Signal<In, Bit>,
    pub io_wdata: Signal<In, Bits<32>>,
    pub io_done: Signal<Out, Bit>,
    pub io_rdata: Signal<Out, Bits<32>>,

    /// What the host wrote, and what the firmware did.
    pub host: Signal<In, HostRegisters>,
    pub firmware: Signal<Out, FirmwareRegisters>,
    /// State of the port, of the clock, of resets.
    pub port: Signal<In, Bits<32>>,
    pub now: Signal<In, Bits<32>>,
    pub reset_cause: Signal<In, Bits<2>>,
    pub reset_busy: Signal<In, Bit>,
    /// The core stands still for good.
    pub trap: Signal<In, Bit>,
    /// The bus reported an error, in this cycle.
    pub dma_error: Signal<In, Bit>,
    /// A row of context was found damaged, in this cycle.
    pub damage: Signal<In, Bit>,
    /// `bar::HEALTH`.
    pub health: Signal<Out, Bits<5>>,
    /// Station address, as of the last PORT row.
    pub mac: Signal<Out, Bits<48>>,
    /// Log ring: two cycles from `log_re` to `log_word`.
    pub log_re: Signal<In, Bit>,
    pub log_addr: Signal<In, Bits<8>>,
    pub log_word: Signal<Out, Bits<32>>,

    pub table_go: Signal<Out, Bit>,
    pub table_request: Signal<Out, TableReq>,
    pub table_busy: Signal<In, Bit>,
    pub table_words: Signal<In, Bits<READ>>,
    pub table_row_valid: Signal<In, Bit>,

    pub dma_go: Signal<Out, Bit>,
    pub dma_host: Signal<Out, Bits<64>>,
    pub dma_local: Signal<Out, Bits<16>>,
    pub dma_bytes: Signal<Out, Bits<13>>,
    pub dma_to_host: Signal<Out, Bit>,
    pub dma_busy: Signal<In, Bit>,
    pub dma_failed: Signal<In, Bit>,

    pub list_go: Signal<Out, Bit>,
    pub list_host: Signal<Out, Bits<64>>,
    pub list_first: Signal<Out, Bits<24>>,
    pub list_shift: Signal<Out, Bits<6>>,
    pub list_entries: Signal<Out, Bits<24>>,
    pub list_busy: Signal<In, Bit>,
    pub list_failed: Signal<In, Bit>,
    pub list_bad: Signal<In, Bit>,

    /// A WQE waits for the firmware.
    pub ask: Signal<In, QueueIndex>,
    pub asks: Signal<In, Bit>,

    pub drain_go: Signal<Out, Bit>,
    pub drain_busy: Signal<In, Bit>,
    /// Events of the firmware, of its death, and of the first access that the bus refused.
    pub event: Source<Event>,

    done: Reg<Bit>,
    value: DFF<Bits<32>>,
    published: Reg<FirmwareRegisters>,
    row: Arr<Reg<Bits<32>>, 16>,
    table_start: Reg<Bit>,
    table: Reg<Bits<4>>,
    table_index: Reg<Bits<24>>,
    table_write: Reg<Bit>,
    dma_start: Reg<Bit>,
    dma_host_q: Reg<Bits<64>>,
    dma_local_q: Reg<Bits<16>>,
    dma_bytes_q: Reg<Bits<13>>,
    dma_to_host_q: Reg<Bit>,
    list_start: Reg<Bit>,
    list_host_q: Reg<Bits<64>>,
    list_first_q: Reg<Bits<24>>,
    list_shift_q: Reg<Bits<6>>,
    list_entries_q: Reg<Bits<24>>,
    drain_start: Reg<Bit>,
    event_number: Reg<Bits<24>>,
    event_value: Reg<Bits<32>>,
    event_due: Reg<Bit>,
    event_eqn: Reg<Bits<8>>,
    event_kind: Reg<Bits<8>>,
    log: Ram<Bits<32>, 8>,
    silence: Reg<Bits<25>>,
    dead: Reg<Bit>,
    health_due: Reg<Bit>,
    /// The event channel shows the health event.
    health_shown: Reg<Bit>,
    bus_error: Reg<Bit>,
    damaged: Reg<Bit>,
    mac_q: Reg<Bits<48>>,
    _identity: Hidden<Identity>,
}

impl Mmio {
    /// Registers of a device that is what `identity` says.
    pub fn new(identity: Identity) -> Self {
        Self { log: Ram::default().registered(), _identity: Hidden(identity), ..Self::default() }
    }
}

impl Logic for Mmio {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, done, published, row, table_start, table, table_index, table_write, dma_start);
        regs!(
            self,
            clock,
            rst,
            dma_host_q,
            dma_local_q,
            dma_bytes_q,
            dma_to_host_q,
            list_start,
            list_host_q,
            list_first_q,
            list_shift_q
        );
        regs!(self, clock, rst, list_entries_q, drain_start, event_number, event_value, event_due, event_eqn);
        regs!(self, clock, rst, event_kind, silence, dead, health_due, health_shown, bus_error, damaged, mac_q);
        dff_setup!(self, clock, value);
        clock!(self, clock, log);
        let act = self.io_valid.val() && !self.done.q.val();
        let write = act && self.io_write.val();
        let w = self.io_wdata.val();
        let is_log = self.io_addr.val().get_bit(12);
        let word = self.io_addr.val().get_bits::<6>(2);
        let known = self.io_addr.val().get_bits::<5>(8) == 0;
        let set = write && known;
        self.done.d.next = act;
        self.io_done.next = self.done.q.val();
        self.io_rdata.next = self.value.q.val();

        // What the firmware publishes.
        let mut p = self.published.q.val();
        let beats = set && word == word::FW_HEARTBEAT;
        if set {
            match word {
                word::CMD_CONSUMER => p.cmd_consumer = w,
                word::READY => p.ready = w.get_bit(0),
                word::FW_VERSION => p.version = w,
                word::FW_HEARTBEAT => p.heartbeat = w,
                word::FW_LOG_HEAD => p.log_head = w,
                _ => {}
            }
        }
        self.published.d.next = p;
        self.firmware.next = self.published.q.val();
        self.log.we.next = write && is_log;
        self.log.waddr.next = self.io_addr.val().get_bits::<8>(2);
        self.log.wdata.next = w;
        self.log.re.next = self.log_re.val();
        self.log.raddr.next = self.log_addr.val();
        self.log_word.next = self.log.rdata.val();

        // The row window and the table bus.
        let is_row = word.get_bits::<2>(4) == elab!(word::ROW >> 4);
        if self.table_row_valid.val() {
            for i in 0..mmio::READ_WORDS {
                self.row[i].d.next = self.table_words.val().get_bits::<32>(32 * i);
            }
        } else if set && is_row {
            self.row[word.get_bits::<4>(0).index()].d.next = w;
        }
        let row: Bits<512> = cat!(512;
            self.row[15].q.val(), self.row[14].q.val(), self.row[13].q.val(), self.row[12].q.val(),
            self.row[11].q.val(), self.row[10].q.val(), self.row[9].q.val(), self.row[8].q.val(),
            self.row[7].q.val(), self.row[6].q.val(), self.row[5].q.val(), self.row[4].q.val(),
            self.row[3].q.val(), self.row[2].q.val(), self.row[1].q.val(), self.row[0].q.val()
        );
        self.table_start.d.next = false;
        if set && word == word::TABLE_GO {
            self.table_start.d.next = true;
            self.table.d.next = w.get_bits::<4>(0);
            self.table_index.d.next = w.get_bits::<24>(8);
            self.table_write.d.next = w.get_bit(4);
        }
        if self.table_start.q.val() && self.table_write.q.val() && self.table.q.val() == (table::id::PORT as u64) {
            self.mac_q.d.next = row.get_bits::<48>(elab!(table::port::MAC.lsb));
        }
        self.mac.next = self.mac_q.q.val();
        self.table_go.next = self.table_start.q.val();
        self.table_request.next = TableReq {
            table: self.table.q.val(),
            index: self.table_index.q.val(),
            write: self.table_write.q.val(),
            row,
        };

        // DMA, page lists, drains.
        self.dma_start.d.next = false;
        self.list_start.d.next = false;
        self.drain_start.d.next = false;
        if set {
            let (dma, list) = (self.dma_host_q.q.val(), self.list_host_q.q.val());
            match word {
                word::DMA_HOST => self.dma_host_q.d.next = cat!(dma.get_bits::<32>(32), w),
                word::DMA_HOST_HIGH => self.dma_host_q.d.next = cat!(w, dma.get_bits::<32>(0)),
                word::DMA_LOCAL => self.dma_local_q.d.next = w.get_bits::<16>(0),
                word::DMA_GO => {
                    self.dma_start.d.next = true;
                    self.dma_bytes_q.d.next = w.get_bits::<13>(0);
                    self.dma_to_host_q.d.next = w.get_bit(16);
                }
                word::MTT_LIST => self.list_host_q.d.next = cat!(list.get_bits::<32>(32), w),
                word::MTT_LIST_HIGH => self.list_host_q.d.next = cat!(w, list.get_bits::<32>(0)),
                word::MTT_FIRST => self.list_first_q.d.next = w.get_bits::<24>(0),
                word::MTT_SHIFT => self.list_shift_q.d.next = w.get_bits::<6>(0),
                word::MTT_GO => {
                    self.list_start.d.next = true;
                    self.list_entries_q.d.next = w.get_bits::<24>(0);
                }
                word::DRAIN_GO => self.drain_start.d.next = true,
                word::EVENT_NUMBER => self.event_number.d.next = w.get_bits::<24>(0),
                word::EVENT_VALUE => self.event_value.d.next = w,
                _ => {}
            }
        }
        self.dma_go.next = self.dma_start.q.val();
        self.dma_host.next = self.dma_host_q.q.val();
        self.dma_local.next = self.dma_local_q.q.val();
        self.dma_bytes.next = self.dma_bytes_q.q.val();
        self.dma_to_host.next = self.dma_to_host_q.q.val();
        self.list_go.next = self.list_start.q.val();
        self.list_host.next = self.list_host_q.q.val();
        self.list_first.next = self.list_first_q.q.val();
        self.list_shift.next = self.list_shift_q.q.val();
        self.list_entries.next = self.list_entries_q.q.val();
        self.drain_go.next = self.drain_start.q.val();

        // Health: the firmware beats, or it is dead.
        let ready = self.published.q.val().ready;
        let dead = self.dead.q.val();
        let silence = self.silence.q.val();
        if beats || !ready {
            self.silence.d.next = 0.into();
        } else if !silence.get_bit(SILENCE) {
            self.silence.d.next = silence + 1;
        }
        let dies = (self.trap.val() || silence.get_bit(SILENCE)) && !dead;
        self.dead.d.next = (dead || dies) && !beats;
        let refused = self.dma_error.val() && !self.bus_error.q.val();
        if refused {
            self.bus_error.d.next = true;
        }
        if self.damage.val() {
            self.damaged.d.next = true;
        }
        let health: Bits<5> = cat!(5; false, self.bus_error.q.val(), self.damaged.q.val(), dead, ready);
        self.health.next = health;

        // Events: one of the firmware's, one about its health.
        let shown = self.health_shown.q.val();
        if set && word == word::EVENT_GO {
            self.event_due.d.next = true;
            self.event_eqn.d.next = w.get_bits::<8>(0);
            self.event_kind.d.next = w.get_bits::<8>(8);
        }
        let waits = self.event_due.q.val() || shown;
        self.event.valid.next = waits;
        if self.event.ready.val() && waits {
            if shown {
                self.health_due.d.next = false;
                self.health_shown.d.next = false;
            } else {
                self.event_due.d.next = false;
            }
        } else if !waits {
            self.health_shown.d.next = self.health_due.q.val();
        }
        // What changes while the last change is told of is told of again.
        if dies || refused {
            self.health_due.d.next = true;
        }
        self.event.data.next = if shown {
            Event { eqn: 0.into(), kind: bits::<8>(event::HEALTH as u64), number: 0.into(), value: health.cast::<32>() }
        } else {
            Event {
                eqn: self.event_eqn.q.val(),
                kind: self.event_kind.q.val(),
                number: self.event_number.q.val(),
                value: self.event_value.q.val(),
            }
        };

        // Reads.
        if act {
            let host = self.host.val();
            let limits = elab!(bits::<32>(self._identity.0.limits as u64));
            let limits2 = elab!(bits::<32>(self._identity.0.limits2 as u64));
            let list_busy = self.list_busy.val() || self.list_start.q.val();
            let v: Bits<32> = match word {
                word::CMD_BASE => host.cmd_base.get_bits::<32>(0),
                word::CMD_BASE_HIGH => host.cmd_base.get_bits::<32>(32),
                word::CMD_LOG2 => host.cmd_log2.cast::<32>(),
                word::CMD_PRODUCER => host.cmd_producer,
                word::PORT => self.port.val(),
                word::LIMITS => limits,
                word::LIMITS2 => limits2,
                word::CLOCK => self.now.val(),
                word::RESET_CAUSE => self.reset_cause.val().cast::<32>(),
                word::RESET => cat!(32; bits::<31>(0), self.reset_busy.val()),
                word::RAM => elab!(bits::<32>(self._identity.0.ram as u64)),
                word::ROW => self.row[0].q.val(),
                word::ROW_1 => self.row[1].q.val(),
                word::ROW_2 => self.row[2].q.val(),
                word::TABLE_GO => cat!(32; bits::<31>(0), self.table_busy.val() || self.table_start.q.val()),
                word::DMA_GO => {
                    cat!(32; bits::<30>(0), self.dma_failed.val(), self.dma_busy.val() || self.dma_start.q.val())
                }
                word::MTT_GO => cat!(32; bits::<29>(0), self.list_bad.val(), self.list_failed.val(), list_busy),
                word::DRAIN_GO => cat!(32; bits::<31>(0), self.drain_busy.val() || self.drain_start.q.val()),
                word::ASK => {
                    cat!(32; self.asks.val(), bits::<3>(0), self.ask.val().queue, self.ask.val().index)
                }
                word::EVENT_GO => cat!(32; bits::<31>(0), self.event_due.q.val()),
                _ => bits::<32>(0),
            };
            self.value.d.next = if known { v } else { 0.into() };
        }
    }
}

const _: () = assert!(mmio::ROW.is_multiple_of(64) && mmio::LOG == 0x1000 && mmio::ROW_WORDS == 16);
const _: () = assert!(mmio::READ_WORDS == 3);
