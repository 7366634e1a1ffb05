//! BAR0: what the host reads and writes. For the driver; [`super::mmio`] is the firmware's side of the same registers.
//!
//! ```text
//! cycle      0       1      2      3       4
//! bar read   taken   Read   Wait   Choose  rvalid, rdata     5 cycles
//! bar write  taken   done                                    one a cycle
//! ```
//!
//! A read waits for little: a counter for its turn (two rounds of 64 cycles at most), a row of the MSI-X table for the engine,
//! which reads it first. Each register has one writer: the host here, the firmware in `mmio`, or the block whose state it
//! shows.

use crate::msg::BarAccess;
use crate::stream::Sink;
use abi::{ABI_VERSION, bar};
use hdl::{TextHash, prelude::*};

/// What the build fixes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Identity {
    /// Width of the data path in bits.
    pub width: u32,
    /// Clock in MHz.
    pub mhz: u32,
    /// `bar::LIMITS`.
    pub limits: u32,
    /// `bar::LIMITS2`.
    pub limits2: u32,
    /// Bytes of the soft core's RAM.
    pub ram: u32,
}

/// Registers that the host writes.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct HostRegisters {
    /// `bar::CMD_BASE`.
    pub cmd_base: Bits<64>,
    /// `bar::CMD_LOG2`.
    pub cmd_log2: Bits<3>,
    /// `bar::CMD_PRODUCER`.
    pub cmd_producer: Bits<32>,
    /// `bar::PARITY_TEST`.
    pub parity_test: Bits<5>,
}

/// Registers that the firmware writes.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct FirmwareRegisters {
    /// `bar::CMD_CONSUMER`.
    pub cmd_consumer: Bits<32>,
    /// `bar::READY`.
    pub ready: Bit,
    /// `bar::FW_VERSION`.
    pub version: Bits<32>,
    /// `bar::FW_HEARTBEAT`.
    pub heartbeat: Bits<32>,
    /// `bar::FW_LOG_HEAD`.
    pub log_head: Bits<32>,
}

/// What else the host sees.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Status {
    /// `bar::HEALTH`.
    pub health: Bits<5>,
    /// Resets of device or firmware since power-up.
    pub resets: Bits<16>,
    /// A reset is under way.
    pub resetting: Bit,
    /// `bar::PORT`.
    pub link_up: Bit,
    /// Station address.
    pub mac: Bits<48>,
}

/// MTU of the port in bytes, as `bar::PORT` tells: what the core's largest frame leaves for IP.
pub(super) const PORT_MTU: u64 = (abi::wire::MAX_FRAME - abi::wire::len::ETH - abi::wire::len::VLAN) as u64;

/// Log2 of the command ring's slots at most: the largest value of `bar::CMD_LOG2`.
const MOST_SLOTS: u64 = abi::cmd::MAX_RING_LOG2 as u64;

/// Numbers of the 8 bytes that hold registers.
mod word {
    use abi::bar;

    const fn at(register: usize) -> u64 {
        assert!(register / 8 < 16);
        (register / 8) as u64
    }
    pub const MAGIC: u64 = at(bar::MAGIC);
    pub const BUILD_HASH: u64 = at(bar::BUILD_HASH);
    pub const LIMITS: u64 = at(bar::LIMITS);
    pub const HEALTH: u64 = at(bar::HEALTH);
    pub const FW_HEARTBEAT: u64 = at(bar::FW_HEARTBEAT);
    pub const FW_CONTROL: u64 = at(bar::FW_CONTROL);
    pub const FW_DATA: u64 = at(bar::FW_DATA);
    pub const CMD_BASE: u64 = at(bar::CMD_BASE);
    pub const CMD_LOG2: u64 = at(bar::CMD_LOG2);
    pub const CMD_CONSUMER: u64 = at(bar::CMD_CONSUMER);
    pub const CLOCK: u64 = at(bar::CLOCK);
    pub const PORT: u64 = at(bar::PORT);
    pub const MAC: u64 = at(bar::MAC);
    pub const FW_LOG_HEAD: u64 = at(bar::FW_LOG_HEAD);
}

/// Number of the page at `offset`.
const fn page_of(offset: usize) -> u64 {
    (offset >> 12) as u64
}

#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
enum State {
    Idle,
    Read,
    Wait,
    Choose,
    Answer,
}

/// BAR0. See the module.
#[derive(LogicBlock, Default)]
pub struct Registers {
    pub clock: Signal<In, Clock>,
    /// Reset of the device.
    pub rst: Signal<In, Bit>,
    /// Power-up reset only: the firmware's image outlives a reset of the device.
    pub power: Signal<In, Bit>,
    /// Accesses.
    pub bar: Sink<BarAccess>,
    pub rdata: Signal<Out, Bits<64>>,
    pub rvalid: Signal<Out, Bit>,
    pub host: Signal<Out, HostRegisters>,
    pub firmware: Signal<In, FirmwareRegisters>,
    pub status: Signal<In, Status>,
    pub now: Signal<In, Bits<64>>,
    /// The host asks for a reset, in this cycle.
    pub reset: Signal<Out, Bit>,
    /// Holds the soft core in reset; its RAM may be loaded.
    pub hold: Signal<Out, Bit>,
    pub load_we: Signal<Out, Bit>,
    /// Word address.
    pub load_addr: Signal<Out, Bits<14>>,
    pub load_data: Signal<Out, Bits<32>>,
    /// Log ring, by words: two cycles from `log_re` to `log_word`.
    pub log_re: Signal<Out, Bit>,
    pub log_addr: Signal<Out, Bits<8>>,
    pub log_word: Signal<In, Bits<32>>,
    /// Counters: the value is there when it is done.
    pub counter_re: Signal<Out, Bit>,
    pub counter_index: Signal<Out, Bits<6>>,
    pub counter_done: Signal<In, Bit>,
    pub counter_value: Signal<In, Bits<64>>,
    /// MSI-X is off, or all vectors are masked, in configuration space.
    pub msix_off: Signal<In, Bit>,
    /// Table, by halves of rows (vector, half): two cycles from `msix_re` to `msix_half`. Vector masks and pending bits, as
    /// queue/event wants and has them.
    pub msix_re: Signal<In, Bit>,
    pub msix_addr: Signal<In, Bits<6>>,
    pub msix_half: Signal<Out, Bits<64>>,
    pub msix_mask: Signal<Out, Bits<32>>,
    pub msix_pending: Signal<In, Bits<32>>,

    state: Reg<State>,
    access: DFF<BarAccess>,
    writes: Reg<Bit>,
    settings: Reg<HostRegisters>,
    held: Reg<Bit>,
    address: Reg<Bits<16>>,
    /// Vectors' mask bits, 1 after reset (PCI 3.0, 6.8.2.9).
    open: Reg<Bits<32>>,
    table: RamBe<64, 6, 2>,
    /// What a read finds without a RAM, and which RAM it finds the rest in.
    fixed: DFF<Bits<64>>,
    is_counter: DFF<Bit>,
    is_table: DFF<Bit>,
    is_log: DFF<Bit>,
    answer: DFF<Bits<64>>,
    loads: Reg<Bit>,
    load_at: DFF<Bits<14>>,
    load_word: DFF<Bits<32>>,
    build: TextHash,
    _identity: Hidden<Identity>,
}

impl Registers {
    /// Registers of a device that is what `identity` says.
    pub fn new(identity: Identity) -> Self {
        Self { table: RamBe::default().style("block").registered(), _identity: Hidden(identity), ..Self::default() }
    }
}

impl Logic for Registers {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, settings, open);
        // A read that is under way in a reset of the device gets its answer.
        regs!(self, clock, power, state, writes, held, address, loads);
        dff_setup!(self, clock, access, fixed, is_counter, is_table, is_log, answer, load_at, load_word);
        clock!(self, clock, table);
        let state = self.state.q.val();
        let idle = state == State::Idle;
        self.bar.ready.next = idle;
        if idle {
            self.access.d.next = self.bar.data.val();
        }
        self.writes.d.next = idle && self.bar.valid.val() && self.bar.data.val().write;
        let write = self.writes.q.val();
        let a = self.access.q.val();

        // Registers of 4 bytes are halves of the 8 bytes at `word`.
        let low = a.wide || !a.offset.get_bit(2);
        let high = a.wide || a.offset.get_bit(2);
        let (low_data, wide_data) = (a.data.get_bits::<32>(0), a.data.get_bits::<32>(32));
        let high_data = if a.wide { wide_data } else { low_data };
        let word = a.offset.get_bits::<4>(3);
        let is_register = a.offset.get_bits::<17>(7) == 0;
        let (w_low, w_high) = (write && is_register && low, write && is_register && high);

        let mut s = self.settings.q.val();
        if word == word::CMD_BASE {
            let base = s.cmd_base;
            s.cmd_base = cat!(
                if w_high { high_data } else { base.get_bits::<32>(32) },
                if w_low { low_data } else { base.get_bits::<32>(0) }
            );
        }
        if word == word::CMD_LOG2 && w_low {
            let largest: Bits<32> = MOST_SLOTS.to_bits();
            s.cmd_log2 = if low_data > largest { largest.get_bits::<3>(0) } else { low_data.get_bits::<3>(0) };
        }
        if word == word::CMD_LOG2 && w_high {
            s.cmd_producer = high_data;
        }
        if word == word::FW_LOG_HEAD && w_high {
            s.parity_test = high_data.get_bits::<5>(0);
        }
        self.settings.d.next = s;
        // The ring is aligned to its size, whatever the host wrote and in whatever order.
        let slots: Bits<64> = !elab!(bits::<64>(abi::cmd::SLOT as u64 - 1));
        let mut host = self.settings.q.val();
        host.cmd_base = host.cmd_base & (slots << host.cmd_log2);
        self.host.next = host;
        self.reset.next = word == word::FW_HEARTBEAT && w_high && high_data.get_bit(0);

        // The firmware's image.
        if word == word::FW_CONTROL && w_low {
            self.held.d.next = !low_data.get_bit(0);
        }
        if word == word::FW_CONTROL && w_high {
            self.address.d.next = high_data.get_bits::<16>(0);
        }
        let load = word == word::FW_DATA && w_low;
        self.loads.d.next = load && !self.held.q.val();
        if load {
            self.address.d.next = self.address.q.val() + 4;
            self.load_at.d.next = self.address.q.val().get_bits::<14>(2);
            self.load_word.d.next = low_data;
        }
        self.load_we.next = self.loads.q.val();
        self.load_addr.next = self.load_at.q.val();
        self.load_data.next = self.load_word.q.val();
        self.hold.next = !self.held.q.val();

        // MSI-X table.
        let half = a.offset.get_bits::<6>(3);
        let upper = a.offset.get_bit(3);
        let we = write && a.offset.get_bits::<15>(9) == elab!(page_of(bar::MSIX_TABLE) << 3);
        self.table.we.next = if we { cat!(2; high, low) } else { 0.into() };
        self.table.waddr.next = half;
        self.table.wdata.next = cat!(64; high_data, low_data);
        let open = self.open.q.val();
        if we && upper && high {
            self.open.d.next = open.replace_bit(a.offset.get_bits::<5>(4).index(), !high_data.get_bit(0));
        }
        let all: Bits<32> = 0xffff_ffff.into();
        self.msix_mask.next = if self.msix_off.val() { all } else { !open };

        // Reads.
        let page = a.offset.get_bits::<12>(12);
        let in_page = a.offset.get_bits::<3>(9) == 0;
        let reads = state == State::Read;
        // The engine that sends messages goes first.
        let engine = self.msix_re.val();
        self.table.re.next = reads || engine;
        self.table.raddr.next = if engine { self.msix_addr.val() } else { a.offset.get_bits::<6>(3) };
        self.msix_half.next = self.table.rdata.val();
        self.log_re.next = reads;
        self.log_addr.next = a.offset.get_bits::<8>(2);
        let is_counter = page == elab!(page_of(bar::COUNTERS)) && in_page;
        self.counter_re.next = reads && is_counter && !engine;
        self.counter_index.next = a.offset.get_bits::<6>(3);
        match state {
            State::Idle => {
                if self.bar.valid.val() && !self.bar.data.val().write {
                    self.state.d.next = State::Read;
                }
            }
            State::Read => {
                if !engine {
                    self.state.d.next = State::Wait;
                }
            }
            State::Wait => self.state.d.next = State::Choose,
            State::Choose => {
                if !self.is_counter.q.val() || self.counter_done.val() {
                    self.state.d.next = State::Answer;
                }
            }
            State::Answer => self.state.d.next = State::Idle,
        }
        if reads {
            let f = self.firmware.val();
            let status = self.status.val();
            let magic = elab!(bits::<64>((ABI_VERSION as u64) << 32 | bar::MAGIC_VALUE as u64));
            let datapath = elab!(bits::<32>((self._identity.0.mhz as u64) << 16 | self._identity.0.width as u64));
            let limits = elab!(bits::<64>((self._identity.0.limits2 as u64) << 32 | self._identity.0.limits as u64));
            let value: Bits<64> = match word {
                word::MAGIC => magic,
                word::BUILD_HASH => cat!(64; datapath, self.build.value.val()),
                word::LIMITS => limits,
                word::HEALTH => cat!(64; f.version, status.resets, bits::<11>(0), status.health),
                word::FW_HEARTBEAT => cat!(64; bits::<31>(0), status.resetting, f.heartbeat),
                word::FW_CONTROL => cat!(64; bits::<16>(0), self.address.q.val(), bits::<31>(0), !self.held.q.val()),
                word::FW_DATA => cat!(64; bits::<31>(0), f.ready, bits::<32>(0)),
                word::CMD_BASE => host.cmd_base,
                word::CMD_LOG2 => cat!(64; host.cmd_producer, bits::<29>(0), host.cmd_log2),
                word::CMD_CONSUMER => f.cmd_consumer.cast::<64>(),
                word::CLOCK => self.now.val(),
                word::PORT => cat!(64; bits::<32>(0), bits::<16>(PORT_MTU), bits::<15>(0), status.link_up),
                word::MAC => status.mac.cast::<64>(),
                word::FW_LOG_HEAD => cat!(64; bits::<27>(0), host.parity_test, f.log_head),
                _ => bits::<64>(0),
            };
            // Of the MSI-X table's control words the table has the rest: mask bits are in registers.
            let is_table = page == elab!(page_of(bar::MSIX_TABLE)) && in_page;
            let closed = !open.get_bit(a.offset.get_bits::<5>(4).index());
            let mut fixed: Bits<64> = 0.into();
            if is_register {
                fixed = value;
            }
            if page == elab!(page_of(bar::MSIX_PBA)) && a.offset.get_bits::<9>(3) == 0 {
                fixed = self.msix_pending.val().cast::<64>();
            }
            if is_table && a.offset.get_bit(3) {
                fixed = fixed.replace_bit(32, closed);
            }
            self.fixed.d.next = fixed;
            self.is_counter.d.next = is_counter;
            self.is_table.d.next = is_table;
            self.is_log.d.next = page == elab!(page_of(bar::FW_LOG)) && a.offset.get_bits::<2>(10) == 0;
        }
        if state == State::Choose {
            let none: Bits<64> = 0.into();
            let row = self.table.rdata.val();
            let words: Bits<32> = if a.offset.get_bit(3) { 0.into() } else { row.get_bits::<32>(32) };
            let text = self.log_word.val();
            let value = self.fixed.q.val()
                | (if self.is_counter.q.val() { self.counter_value.val() } else { none })
                | (if self.is_table.q.val() { cat!(64; words, row.get_bits::<32>(0)) } else { none })
                | (if self.is_log.q.val() { cat!(text, text) } else { none });
            self.answer.d.next = if a.wide {
                value
            } else if a.offset.get_bit(2) {
                value.get_bits::<32>(32).cast::<64>()
            } else {
                value.get_bits::<32>(0).cast::<64>()
            };
        }
        self.rdata.next = self.answer.q.val();
        self.rvalid.next = state == State::Answer;
    }
}

const _: () = assert!(bar::FW_LOG_BYTES == 1024);
const _: () = assert!(bar::READY / 8 == bar::FW_DATA / 8 && bar::RESET / 8 == bar::FW_HEARTBEAT / 8);
const _: () = assert!(bar::CMD_PRODUCER / 8 == bar::CMD_LOG2 / 8 && bar::PARITY_TEST / 8 == bar::FW_LOG_HEAD / 8);

#[cfg(test)]
mod tests {
    use super::*;
    use verilate::{Model, Options, bits as raw};

    fn identity() -> Identity {
        Identity { width: 512, mhz: 250, limits: 0x0612_0c0c, limits2: 0x0407_0812, ram: 65536 }
    }

    fn access(m: &mut Model, offset: usize, wide: bool, write: Option<u64>) -> u64 {
        let access = BarAccess {
            offset: bits::<24>(offset as u64),
            write: write.is_some(),
            wide,
            data: write.unwrap_or(0).into(),
        };
        m.set_bytes("bar.data", &raw::of(access));
        m.set("bar.valid", 1);
        m.eval();
        assert!(m.bit("bar.ready"));
        m.tick();
        m.set("bar.valid", 0);
        m.eval();
        if write.is_some() {
            m.tick();
            return 0;
        }
        let start = m.cycle();
        while !m.bit("rvalid") {
            m.tick();
            assert!(m.cycle() < start + 5);
        }
        let value = m.get("rdata");
        m.tick();
        value
    }

    #[test]
    fn registers_read_and_write_in_halves_and_as_a_whole() {
        let mut m = Model::of(|| Registers::new(identity()), Options::default()).unwrap();
        m.set("power", 1);
        m.tick();
        m.set("power", 0);
        m.reset();
        let read = |m: &mut Model, offset| access(m, offset, false, None);
        assert_eq!(read(&mut m, bar::MAGIC), bar::MAGIC_VALUE as u64);
        assert_eq!(read(&mut m, bar::ABI_VERSION), ABI_VERSION as u64);
        let text = hdl::emit(&Registers::new(identity()), "top");
        let hash = text.split("assign value = 32'h").nth(1).map(|t| u64::from_str_radix(&t[..8], 16).unwrap()).unwrap();
        assert_eq!(read(&mut m, bar::BUILD_HASH), hash);
        assert_ne!(hash, 0);
        assert_eq!(read(&mut m, bar::DATAPATH), 250 << 16 | 512);
        assert_eq!(read(&mut m, bar::LIMITS2), 0x0407_0812);
        let base = 0x0123_4567_89ab_c800;
        access(&mut m, bar::CMD_BASE, true, Some(base));
        assert_eq!(access(&mut m, bar::CMD_BASE, true, None), base);
        access(&mut m, bar::CMD_BASE + 4, false, Some(7));
        assert_eq!(access(&mut m, bar::CMD_BASE, true, None), 7 << 32 | (base & 0xffff_ffff));
        assert_eq!((read(&mut m, bar::CMD_BASE), read(&mut m, bar::CMD_BASE + 4)), (base & 0xffff_ffff, 7));
        access(&mut m, bar::CMD_LOG2, false, Some(4));
        access(&mut m, bar::CMD_PRODUCER, false, Some(99));
        assert_eq!((read(&mut m, bar::CMD_LOG2), read(&mut m, bar::CMD_PRODUCER)), (4, 99));
        // The ring: at most 64 slots of 128 bytes, aligned to its size.
        for (written, log2) in [(0, 0u64), (3, 3), (6, 6), (7, 6), (8, 6), (u32::MAX, 6)] {
            access(&mut m, bar::CMD_BASE, true, Some(0x0123_4567_89ab_ffff));
            access(&mut m, bar::CMD_LOG2, false, Some(written.into()));
            let aligned = 0x0123_4567_89ab_ffff >> (7 + log2) << (7 + log2);
            assert_eq!(read(&mut m, bar::CMD_LOG2), log2, "{written} written");
            assert_eq!(access(&mut m, bar::CMD_BASE, true, None), aligned, "{written} written");
            assert_eq!((m.get("host.cmd_base"), m.get("host.cmd_log2")), (aligned, log2), "{written} written");
        }
        m.set("firmware.heartbeat", 5);
        m.set("status.resetting", 1);
        assert_eq!((read(&mut m, bar::FW_HEARTBEAT), read(&mut m, bar::RESET)), (5, 1));
        assert_eq!(access(&mut m, 0x5000, true, None), 0);
        assert_eq!(access(&mut m, 0x38, true, None), 0);
    }

    #[test]
    fn vectors_are_masked_until_the_host_opens_them() {
        let mut m = Model::of(|| Registers::new(identity()), Options::default()).unwrap();
        m.reset();
        assert_eq!(m.get("msix_mask"), 0xffff_ffff);
        let at = |vector: usize| bar::MSIX_TABLE + 16 * vector;
        for vector in [0, 7, 31] {
            assert_eq!(access(&mut m, at(vector) + 12, false, None), 1);
            access(&mut m, at(vector), false, Some(0xfee0_0000 + vector as u64));
            access(&mut m, at(vector) + 4, false, Some(9));
            access(&mut m, at(vector) + 8, true, Some(0x50 + vector as u64));
            assert_eq!(access(&mut m, at(vector), true, None), 9 << 32 | (0xfee0_0000 + vector as u64));
            assert_eq!(access(&mut m, at(vector) + 8, true, None), 0x50 + vector as u64);
            m.set("msix_re", 1);
            m.set("msix_addr", 2 * vector as u64);
            m.tick();
            m.set("msix_addr", 2 * vector as u64 + 1);
            m.tick();
            m.set("msix_re", 0);
            assert_eq!(m.get("msix_half"), 9 << 32 | (0xfee0_0000 + vector as u64));
            m.tick();
            assert_eq!(m.get("msix_half") & 0xffff_ffff, 0x50 + vector as u64);
        }
        assert_eq!(m.get("msix_mask"), !(1u32 << 0 | 1 << 7 | 1 << 31) as u64);
        access(&mut m, at(7) + 12, false, Some(1));
        assert_eq!(m.get("msix_mask"), !(1u32 << 0 | 1 << 31) as u64);
        m.set("msix_off", 1);
        m.set("msix_pending", 1 << 7);
        assert_eq!((access(&mut m, bar::MSIX_PBA, true, None), m.get("msix_mask")), (1 << 7, 0xffff_ffff));
    }

    #[test]
    fn the_image_goes_to_the_core_while_it_is_held() {
        let mut m = Model::of(|| Registers::new(identity()), Options::default()).unwrap();
        m.set("power", 1);
        m.tick();
        m.set("power", 0);
        m.reset();
        assert!(m.bit("hold"));
        access(&mut m, bar::FW_ADDRESS, false, Some(0x100));
        for i in 0..4 {
            let access = BarAccess {
                offset: bits::<24>(bar::FW_DATA as u64),
                write: true,
                wide: false,
                data: bits::<64>(i + 7),
            };
            m.set_bytes("bar.data", &raw::of(access));
            m.set("bar.valid", 1);
            m.tick();
            m.set("bar.valid", 0);
            m.tick();
            assert_eq!((m.get("load_we"), m.get("load_addr"), m.get("load_data")), (1, 0x40 + i, i + 7));
        }
        m.set("bar.valid", 0);
        access(&mut m, bar::FW_CONTROL, false, Some(0));
        m.eval();
        assert!(!m.bit("hold"));
        m.reset();
        assert!(!m.bit("hold"), "a reset of the device does not take the firmware away");
    }
}
