//! The RISC-V core that runs the firmware, with its RAM. For [`super::mmio`], whose registers it sees, the mailbox, which
//! shares the RAM, and registers, through which the host loads the image.
//!
//! ```text
//! cycle       -1            0           1
//! RAM read    mem_la_read   mem_valid   mem_ready, data     2 cycles: the core tells the address a cycle ahead
//! RAM write                 mem_valid   mem_ready           2 cycles
//! register                  io_valid .. io_done, then mem_ready in the next cycle
//! ```
//!
//! In a cycle in which the mailbox reads the RAM the core's read waits, and its write while the mailbox or the host writes. It
//! cannot deadlock: the mailbox waits for nobody while it holds the RAM, registers answer at once, and no block on the
//! data path waits for the core.

use abi::mmio;
use hdl::prelude::*;

/// Log2 of the RAM's words.
const WORDS: usize = 17;
/// Of those that mailbox and registers reach.
const NEAR: usize = 14;
const _: () = assert!(mmio::RAM_BYTES == 4 << WORDS && mmio::NEAR_BYTES == 4 << NEAR);

/// Makes `picorv32` (a third-party source, given to synthesis and simulation beside ours) a module of the signals used. Its firmware
/// multiplies (the compiler divides by constants so) and never divides. Where LUTs are dear (`LARGE` is 0) it has no divider, and shifts
/// by 4 bits and by 1 in place of a barrel shifter. A fast core has both: the ways into its registers get no deeper by them; it branches
/// a cycle later, for a comparison would be the longest of these ways.
const WRAPPER: &str = "\
module soft_core_cpu (
  input clk, input resetn, output trap,
  output mem_la_read, output [31:0] mem_la_addr, output mem_valid, input mem_ready, output [31:0] mem_addr, output [31:0] mem_wdata, output [3:0] mem_wstrb,
  input [31:0] mem_rdata
);
  picorv32 #(
    .ENABLE_COUNTERS(0), .ENABLE_COUNTERS64(0), .BARREL_SHIFTER(LARGE), .ENABLE_MUL(0), .ENABLE_FAST_MUL(1),
    .ENABLE_DIV(LARGE), .TWO_CYCLE_COMPARE(LARGE), .CATCH_MISALIGN(1), .CATCH_ILLINSN(1), .PROGADDR_RESET(32'd0)
  ) core (
    .clk(clk), .resetn(resetn), .trap(trap),
    .mem_valid(mem_valid), .mem_instr(), .mem_ready(mem_ready), .mem_addr(mem_addr), .mem_wdata(mem_wdata),
    .mem_wstrb(mem_wstrb), .mem_rdata(mem_rdata),
    .mem_la_read(mem_la_read), .mem_la_write(), .mem_la_addr(mem_la_addr), .mem_la_wdata(), .mem_la_wstrb(),
    .pcpi_valid(), .pcpi_insn(), .pcpi_rs1(), .pcpi_rs2(), .pcpi_wr(1'b0), .pcpi_rd(32'd0), .pcpi_wait(1'b0),
    .pcpi_ready(1'b0), .irq(32'd0), .eoi(), .trace_valid(), .trace_data()
  );
endmodule
";

/// The processor alone.
#[derive(LogicBlock, Default)]
struct Cpu {
    pub clk: Signal<In, Clock>,
    pub resetn: Signal<In, Bit>,
    pub trap: Signal<Out, Bit>,
    pub mem_la_read: Signal<Out, Bit>,
    pub mem_la_addr: Signal<Out, Bits<32>>,
    pub mem_valid: Signal<Out, Bit>,
    pub mem_ready: Signal<In, Bit>,
    pub mem_addr: Signal<Out, Bits<32>>,
    pub mem_wdata: Signal<Out, Bits<32>>,
    pub mem_wstrb: Signal<Out, Bits<4>>,
    pub mem_rdata: Signal<In, Bits<32>>,
    _large: Hidden<bool>,
}
impl Logic for Cpu {
    fn update(&mut self) {
        unimplemented!("the processor is simulated in Verilator");
    }
    fn connect(&mut self) {
        self.trap.connect();
        self.mem_la_read.connect();
        self.mem_la_addr.connect();
        self.mem_valid.connect();
        self.mem_addr.connect();
        self.mem_wdata.connect();
        self.mem_wstrb.connect();
    }
    fn hdl(&self) -> Verilog {
        let large = if self._large.0 { "1" } else { "0" };
        BlackBox::new("soft_core_cpu").source(&WRAPPER.replace("LARGE)", &format!("{large})"))).instance(self)
    }
}

/// Core and RAM. See the module.
#[derive(LogicBlock)]
pub struct SoftCore {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// Holds the core in reset; the RAM works.
    pub hold: Signal<In, Bit>,
    /// The image, while held: a word address.
    pub load_we: Signal<In, Bit>,
    pub load_addr: Signal<In, Bits<NEAR>>,
    pub load_data: Signal<In, Bits<32>>,
    /// An access to the registers, at a byte offset from `mmio::BASE`; stays until `io_done`, which brings `io_rdata`.
    pub io_valid: Signal<Out, Bit>,
    pub io_addr: Signal<Out, Bits<13>>,
    pub io_write: Signal<Out, Bit>,
    pub io_wdata: Signal<Out, Bits<32>>,
    pub io_done: Signal<In, Bit>,
    pub io_rdata: Signal<In, Bits<32>>,
    /// The mailbox's door to the RAM; goes before the core. Two cycles from `ram_re` to `ram_rdata`.
    pub ram_re: Signal<In, Bit>,
    pub ram_raddr: Signal<In, Bits<NEAR>>,
    pub ram_rdata: Signal<Out, Bits<32>>,
    pub ram_we: Signal<In, Bit>,
    pub ram_waddr: Signal<In, Bits<NEAR>>,
    pub ram_wdata: Signal<In, Bits<32>>,
    /// The core met an instruction or address that does not exist and stands still.
    pub trap: Signal<Out, Bit>,

    cpu: Cpu,
    /// Out of reset, a cycle later: reset goes deep into the core.
    running: Reg<Bit>,
    memory: RamBe<32, WORDS, 4>,
    /// A read is in the RAM's first stage; at its output.
    issued: Reg<Bit>,
    arrived: Reg<Bit>,
    /// A write or an access of a register is done.
    answered: Reg<Bit>,
    /// `arrived` or `answered`: at once, for the longest ways in the core begin here.
    done: Reg<Bit>,
    was_io: DFF<Bit>,
    io_value: DFF<Bits<32>>,
}

impl Default for SoftCore {
    fn default() -> Self {
        Self::new(mmio::NEAR_BYTES, true)
    }
}

impl SoftCore {
    /// With a RAM of `bytes`, a power of two of at most [`mmio::RAM_BYTES`], with or without divider and barrel shifter.
    pub fn new(bytes: usize, large: bool) -> Self {
        assert!(bytes.is_power_of_two() && bytes <= mmio::RAM_BYTES, "{bytes} bytes of RAM");
        Self {
            clock: Default::default(),
            rst: Default::default(),
            hold: Default::default(),
            load_we: Default::default(),
            load_addr: Default::default(),
            load_data: Default::default(),
            io_valid: Default::default(),
            io_addr: Default::default(),
            io_write: Default::default(),
            io_wdata: Default::default(),
            io_done: Default::default(),
            io_rdata: Default::default(),
            ram_re: Default::default(),
            ram_raddr: Default::default(),
            ram_rdata: Default::default(),
            ram_we: Default::default(),
            ram_waddr: Default::default(),
            ram_wdata: Default::default(),
            trap: Default::default(),
            cpu: Cpu { _large: Hidden(large), ..Default::default() },
            running: Default::default(),
            memory: RamBe::default().rows(bytes / 4).style("block").registered(),
            issued: Default::default(),
            arrived: Default::default(),
            answered: Default::default(),
            done: Default::default(),
            was_io: Default::default(),
            io_value: Default::default(),
        }
    }
}

impl Logic for SoftCore {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, running, issued, arrived, answered, done);
        dff_setup!(self, clock, was_io, io_value);
        clock!(self, clock, memory);
        self.cpu.clk.next = self.clock.val();
        self.running.d.next = !self.hold.val();
        self.cpu.resetn.next = self.running.q.val();
        self.trap.next = self.cpu.trap.val();

        let address = self.cpu.mem_addr.val();
        let strobe = self.cpu.mem_wstrb.val();
        let is_io = address.get_bits::<4>(28) == elab!((mmio::BASE >> 28) as u64);
        let valid = self.cpu.mem_valid.val();
        let (issued, arrived) = (self.issued.q.val(), self.arrived.q.val());

        // Reads of the RAM begin with the address that the core will ask for; when that cycle was taken, with the one it asks for.
        let early = self.cpu.mem_la_read.val();
        let late = valid && !is_io && !strobe.any() && !issued && !arrived;
        let free = !self.ram_re.val();
        let ahead = self.cpu.mem_la_addr.val().get_bits::<WORDS>(2);
        self.issued.d.next = (early || late) && free;
        let arrives = issued && valid && !is_io;
        self.arrived.d.next = arrives;
        self.memory.re.next = self.ram_re.val() || early || late;
        self.memory.raddr.next = if self.ram_re.val() {
            self.ram_raddr.val().cast::<WORDS>()
        } else if early {
            ahead
        } else {
            address.get_bits::<WORDS>(2)
        };
        self.ram_rdata.next = self.memory.rdata.val();

        // Writes.
        let asks = valid && !self.answered.q.val();
        let foreign = self.load_we.val() || self.ram_we.val();
        let writes = asks && !is_io && strobe.any() && !foreign;
        let all: Bits<4> = 0xf.into();
        self.memory.we.next = if foreign {
            all
        } else if writes {
            strobe
        } else {
            0.into()
        };
        self.memory.waddr.next = if self.load_we.val() {
            self.load_addr.val().cast::<WORDS>()
        } else if self.ram_we.val() {
            self.ram_waddr.val().cast::<WORDS>()
        } else {
            address.get_bits::<WORDS>(2)
        };
        self.memory.wdata.next = if self.load_we.val() {
            self.load_data.val()
        } else if self.ram_we.val() {
            self.ram_wdata.val()
        } else {
            self.cpu.mem_wdata.val()
        };

        // Registers.
        let answers = writes || (asks && is_io && self.io_done.val());
        self.answered.d.next = answers;
        self.done.d.next = arrives || answers;
        self.was_io.d.next = is_io;
        if asks && is_io {
            self.io_value.d.next = self.io_rdata.val();
        }
        self.cpu.mem_ready.next = self.done.q.val();
        self.cpu.mem_rdata.next = if self.was_io.q.val() { self.io_value.q.val() } else { self.memory.rdata.val() };
        self.io_valid.next = asks && is_io;
        self.io_addr.next = address.get_bits::<13>(0);
        self.io_write.next = strobe.any();
        self.io_wdata.next = self.cpu.mem_wdata.val();
    }
}
