//! BAR0: what the host reads and writes. For the driver; [`super::mmio`] is the firmware's side of the same registers.
//!
//! ```text
//! cycle      0       1      2      3      4
//! bar read   taken   Wait   Wait   Wait   rvalid, rdata      5 cycles, whatever is read
//! bar write  taken                                           one a cycle
//! ```
//!
//! A read waits for nothing: every register, counter and table row answers in the same time. Each register has one
//! writer: the host here, the firmware in `mmio`, or the block whose state it shows.

use super::counters;
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
const MOST_SLOTS: u64 = 6;

/// Number of the 8 bytes that hold a register.
const fn at(register: usize) -> u64 {
    (register / 8) as u64
}

#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
enum State {
    Idle,
    First,
    Second,
    Third,
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
    /// Log ring, by words: one cycle from `log_re` to `log_word`.
    pub log_re: Signal<Out, Bit>,
    pub log_addr: Signal<Out, Bits<8>>,
    pub log_word: Signal<In, Bits<32>>,
    /// Counters.
    pub counter_re: Signal<Out, Bit>,
    pub counter_index: Signal<Out, Bits<6>>,
    pub counter_value: Signal<In, Bits<64>>,
    /// MSI-X is off, or all vectors are masked, in configuration space.
    pub msix_off: Signal<In, Bit>,
    /// Table, vector masks and pending bits, as queue/event wants and has them.
    pub msix_re: Signal<In, Bit>,
    pub msix_addr: Signal<In, Bits<8>>,
    pub msix_row: Signal<Out, Bits<128>>,
    pub msix_mask: Signal<Out, Bits<32>>,
    pub msix_pending: Signal<In, Bits<32>>,

    state: Reg<State>,
    access: DFF<BarAccess>,
    settings: Reg<HostRegisters>,
    held: Reg<Bit>,
    address: Reg<Bits<16>>,
    /// Vectors' mask bits, 1 after reset (PCI 3.0, 6.8.2.9).
    open: Reg<Bits<32>>,
    table: RamBe<128, 5, 4>,
    table_copy: RamBe<128, 5, 4>,
    answer: DFF<Bits<64>>,
    build: TextHash,
    _identity: Hidden<Identity>,
}

impl Registers {
    /// Registers of a device that is what `identity` says.
    pub fn new(identity: Identity) -> Self {
        Self {
            table: RamBe::default().registered(),
            table_copy: RamBe::default().registered(),
            _identity: Hidden(identity),
            ..Self::default()
        }
    }
}

impl Logic for Registers {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, settings, open);
        // A read that is under way in a reset of the device gets its answer.
        regs!(self, clock, power, state, held, address);
        dff_setup!(self, clock, access, answer);
        clock!(self, clock, table, table_copy);
        let state = self.state.q.val();
        let a = self.bar.data.val();
        let write = state == State::Idle && self.bar.valid.val() && a.write;
        let read = state == State::Idle && self.bar.valid.val() && !a.write;
        self.bar.ready.next = state == State::Idle;

        // Registers of 4 bytes are halves of the 8 bytes at `word`.
        let low = a.wide || !a.offset.get_bit(2);
        let high = a.wide || a.offset.get_bit(2);
        let data = if a.wide || low { a.data } else { a.data << 32u64 };
        let (low_data, high_data) = (data.get_bits::<32>(0), data.get_bits::<32>(32));
        let page = a.offset.get_bits::<12>(12);
        let word = a.offset.get_bits::<9>(3);
        let is_register = page == 0;
        let (w_low, w_high) = (write && is_register && low, write && is_register && high);

        let mut s = self.settings.q.val();
        if word == elab!(at(bar::CMD_BASE)) {
            let base = s.cmd_base;
            s.cmd_base = cat!(
                if w_high { high_data } else { base.get_bits::<32>(32) },
                if w_low { low_data } else { base.get_bits::<32>(0) }
            );
        }
        if word == elab!(at(bar::CMD_LOG2)) && w_low {
            let largest: Bits<32> = MOST_SLOTS.to_bits();
            s.cmd_log2 = if low_data > largest { largest.get_bits::<3>(0) } else { low_data.get_bits::<3>(0) };
        }
        if word == elab!(at(bar::CMD_PRODUCER)) && w_high {
            s.cmd_producer = high_data;
        }
        if word == elab!(at(bar::PARITY_TEST)) && w_high {
            s.parity_test = high_data.get_bits::<5>(0);
        }
        self.settings.d.next = s;
        // The ring is aligned to its size, whatever the host wrote and in whatever order.
        let slots: Bits<64> = !elab!(bits::<64>(abi::cmd::SLOT as u64 - 1));
        let mut host = self.settings.q.val();
        host.cmd_base = host.cmd_base & (slots << host.cmd_log2);
        self.host.next = host;
        self.reset.next = word == elab!(at(bar::RESET)) && w_high && high_data.get_bit(0);

        // The firmware's image.
        if word == elab!(at(bar::FW_CONTROL)) && w_low {
            self.held.d.next = !low_data.get_bit(0);
        }
        if word == elab!(at(bar::FW_ADDRESS)) && w_high {
            self.address.d.next = high_data.get_bits::<16>(0);
        }
        let load = word == elab!(at(bar::FW_DATA)) && w_low;
        self.load_we.next = load && !self.held.q.val();
        self.load_addr.next = self.address.q.val().get_bits::<14>(2);
        self.load_data.next = low_data;
        if load {
            self.address.d.next = self.address.q.val() + 4;
        }
        self.hold.next = !self.held.q.val();

        // MSI-X table: dwords of the vector's row.
        let is_table = page == elab!((bar::MSIX_TABLE >> 12) as u64) && a.offset.get_bits::<3>(9) == 0;
        let vector = a.offset.get_bits::<5>(4);
        let upper = a.offset.get_bit(3);
        let lanes: Bits<2> = cat!(high, low);
        let we = write && is_table;
        let lanes: Bits<4> = if !we {
            0.into()
        } else if upper {
            cat!(lanes, bits::<2>(0))
        } else {
            cat!(bits::<2>(0), lanes)
        };
        self.table.we.next = lanes;
        self.table.waddr.next = vector;
        self.table.wdata.next = cat!(data, data);
        self.table.re.next = self.msix_re.val();
        self.table.raddr.next = self.msix_addr.val().get_bits::<5>(0);
        self.msix_row.next = self.table.rdata.val();
        self.table_copy.we.next = lanes;
        self.table_copy.waddr.next = vector;
        self.table_copy.wdata.next = cat!(data, data);
        self.table_copy.re.next = read;
        self.table_copy.raddr.next = vector;
        let open = self.open.q.val();
        if lanes.get_bit(3) {
            self.open.d.next = open.replace_bit(vector.index(), !high_data.get_bit(0));
        }
        let all: Bits<32> = 0xffff_ffff.into();
        self.msix_mask.next = if self.msix_off.val() { all } else { !open };

        // Reads.
        self.log_re.next = read;
        self.log_addr.next = a.offset.get_bits::<8>(2);
        self.counter_re.next = read && page == elab!((bar::COUNTERS >> 12) as u64);
        self.counter_index.next = a.offset.get_bits::<6>(3);
        if read {
            self.access.d.next = a;
            self.state.d.next = State::First;
        }
        match state {
            State::Idle => {}
            State::First => self.state.d.next = State::Second,
            State::Second => self.state.d.next = State::Third,
            State::Third => self.state.d.next = State::Answer,
            State::Answer => self.state.d.next = State::Idle,
        }
        if state == State::Third {
            let r = self.access.q.val();
            let page = r.offset.get_bits::<12>(12);
            let word = r.offset.get_bits::<9>(3);
            let f = self.firmware.val();
            let status = self.status.val();
            let mut value: Bits<64> = 0.into();
            if page == 0 {
                if word == elab!(at(bar::MAGIC)) {
                    value = elab!(bits::<64>((ABI_VERSION as u64) << 32 | bar::MAGIC_VALUE as u64));
                }
                if word == elab!(at(bar::BUILD_HASH)) {
                    let datapath =
                        elab!(bits::<32>((self._identity.0.mhz as u64) << 16 | self._identity.0.width as u64));
                    value = cat!(datapath, self.build.value.val());
                }
                if word == elab!(at(bar::LIMITS)) {
                    value = elab!(bits::<64>((self._identity.0.limits2 as u64) << 32 | self._identity.0.limits as u64));
                }
                if word == elab!(at(bar::HEALTH)) {
                    value = cat!(64; f.version, status.resets, bits::<11>(0), status.health);
                }
                if word == elab!(at(bar::FW_HEARTBEAT)) {
                    value = cat!(64; bits::<31>(0), status.resetting, f.heartbeat);
                }
                if word == elab!(at(bar::FW_CONTROL)) {
                    value = cat!(64; bits::<16>(0), self.address.q.val(), bits::<31>(0), !self.held.q.val());
                }
                if word == elab!(at(bar::READY)) {
                    value = cat!(64; bits::<31>(0), f.ready, bits::<32>(0));
                }
                if word == elab!(at(bar::CMD_BASE)) {
                    value = host.cmd_base;
                }
                if word == elab!(at(bar::CMD_LOG2)) {
                    value = cat!(64; s.cmd_producer, bits::<29>(0), s.cmd_log2);
                }
                if word == elab!(at(bar::CMD_CONSUMER)) {
                    value = f.cmd_consumer.cast::<64>();
                }
                if word == elab!(at(bar::CLOCK)) {
                    value = self.now.val();
                }
                if word == elab!(at(bar::PORT)) {
                    value = cat!(64; bits::<32>(0), bits::<16>(PORT_MTU), bits::<15>(0), status.link_up);
                }
                if word == elab!(at(bar::MAC)) {
                    value = status.mac.cast::<64>();
                }
                if word == elab!(at(bar::FW_LOG_HEAD)) {
                    value = cat!(64; bits::<27>(0), s.parity_test, f.log_head);
                }
            } else if page == elab!((bar::COUNTERS >> 12) as u64) {
                if r.offset.get_bits::<3>(9) == 0 {
                    value = self.counter_value.val();
                }
            } else if page == elab!((bar::MSIX_TABLE >> 12) as u64) {
                if r.offset.get_bits::<3>(9) == 0 {
                    let row = self.table_copy.rdata.val();
                    let closed = !open.get_bit(r.offset.get_bits::<5>(4).index());
                    value = if r.offset.get_bit(3) {
                        cat!(64; bits::<31>(0), closed, row.get_bits::<32>(64))
                    } else {
                        row.get_bits::<64>(0)
                    };
                }
            } else if page == elab!((bar::MSIX_PBA >> 12) as u64) {
                if word == 0 {
                    value = self.msix_pending.val().cast::<64>();
                }
            } else if page == elab!((bar::FW_LOG >> 12) as u64) {
                if r.offset.get_bits::<2>(10) == 0 {
                    let text = self.log_word.val();
                    value = cat!(text, text);
                }
            }
            self.answer.d.next = if r.wide {
                value
            } else if r.offset.get_bit(2) {
                value.get_bits::<32>(32).cast::<64>()
            } else {
                value.get_bits::<32>(0).cast::<64>()
            };
        }
        self.rdata.next = self.answer.q.val();
        self.rvalid.next = state == State::Answer;
    }
}

const _: () = assert!(counters::LATENCY <= 3 && bar::FW_LOG_BYTES == 1024);

#[cfg(test)]
mod tests {
    use super::*;
    use verilate::{Model, Options, bits as raw};

    fn identity() -> Identity {
        Identity { width: 512, mhz: 250, limits: 0x0612_0c0c, limits2: 0x0407_0812 }
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
            m.set("msix_addr", vector as u64);
            m.tick();
            m.set("msix_re", 0);
            m.tick();
            assert_eq!(m.get_bytes("msix_row")[..9], [vector as u8, 0, 0xe0, 0xfe, 9, 0, 0, 0, 0x50 + vector as u8]);
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
            m.eval();
            assert_eq!((m.get("load_we"), m.get("load_addr"), m.get("load_data")), (1, 0x40 + i, i + 7));
            m.tick();
        }
        m.set("bar.valid", 0);
        access(&mut m, bar::FW_CONTROL, false, Some(0));
        m.eval();
        assert!(!m.bit("hold"));
        m.reset();
        assert!(!m.bit("hold"), "a reset of the device does not take the firmware away");
    }
}
