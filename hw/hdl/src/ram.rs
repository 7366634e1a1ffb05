//! RAMs for authors of blocks: simple dual port, one clock, read enable, optional lane write enables. The text is what
//! Vivado and Yosys map to block or UltraRAM and what Verilator runs as a plain array.
use crate::ir;
use crate::reg::Hidden;
use rust_hdl::prelude::*;
use std::collections::BTreeMap;

/// When a RAM answers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Answer {
    /// In the same cycle.
    AtOnce,
    /// From the next edge on.
    #[default]
    Next,
    /// One edge later still.
    Registered,
}

/// What a RAM is built from.
#[derive(Clone, Debug, Default)]
struct Options {
    /// 0: as many as there are addresses.
    rows: usize,
    style: &'static str,
    answer: Answer,
    /// Bits of a lane; 0: the write enables share the word evenly.
    lane: usize,
    /// Simulate what synthesis sees.
    hardware: bool,
}

impl Options {
    fn rows(&self, address_bits: usize) -> usize {
        let rows = if self.rows == 0 { 1 << address_bits } else { self.rows };
        assert!(rows <= 1 << address_bits, "{rows} rows have no addresses of {address_bits} bits");
        rows
    }
    /// Address bits that count, of `address_bits`.
    fn index_bits(&self, address_bits: usize) -> usize {
        (self.rows(address_bits).next_power_of_two().trailing_zeros() as usize).max(1)
    }
    fn row(&self, address: u64, address_bits: usize) -> u64 {
        address & ((1 << self.index_bits(address_bits)) - 1)
    }
}

/// `[bits-1:0] `, or nothing for one bit.
fn range(bits: usize) -> String {
    if bits == 1 { String::new() } else { format!("[{}:0] ", bits - 1) }
}

/// What a simulator puts in the place of a word that is written while it is read: numbers of a generator that each clash moves
/// on, so that two runs of one test are alike.
fn noise(bits: usize) -> String {
    let parts = bits.div_ceil(32);
    format!(
        "`ifndef SYNTHESIS\nreg [31:0] noise;\ninitial noise = 32'h2545f491;\n\
         wire [{}:0] noises = {{{parts}{{noise ^ noise >> 15}}}};\n`endif\n",
        32 * parts - 1
    )
}

/// The clash of a read with a write of the same row, behind the read into `target`.
fn clash(bits: usize, target: &str, any: &str, waddr: &str, raddr: &str) -> String {
    format!(
        "`ifndef SYNTHESIS\n  if (re && ({any}) && {waddr} == {raddr}) begin\n    {target} <= noises[{}:0];\n    \
         noise <= noise * 32'd1664525 + 32'd1013904223;\n  end\n`endif\n",
        bits - 1
    )
}

/// Rows of a block RAM of 16 or 36 Kbit that still has a byte in each, and of an UltraRAM.
const BLOCK_ROWS: usize = 2048;
const ULTRA_ROWS: usize = 4096;

/// A registered RAM of more rows than one RAM of the FPGA has: banks, each with its own output register, for a multiplexer
/// between RAM and register would be on the longest path of any design. A bank that was not read holds 0, so that an OR is
/// enough behind them. Synthesis defines `NO_ULTRARAM` for FPGAs without UltraRAM.
fn banked(style: &str, rows: usize, top: usize, bits: usize, lane: Option<usize>) -> String {
    let ultra = style == "ultra";
    let style = if style.is_empty() { String::new() } else { format!(", ram_style = \"{style}\"") };
    let size = |rows: usize| format!("localparam LOW = {};\n", rows.ilog2());
    let (small, big) = (size(BLOCK_ROWS), size(ULTRA_ROWS));
    let size = if ultra { format!("`ifdef NO_ULTRARAM\n{small}`else\n{big}`endif\n") } else { small };
    let write: String = match lane {
        None => "    if (we && chosen) mem[waddr[LOW-1:0]] <= wdata;\n".into(),
        Some(lane) => (0..bits / lane)
            .map(|k| {
                let r = format!("[{}:{}]", (k + 1) * lane - 1, k * lane);
                format!("    if (we[{k}] && chosen) mem[waddr[LOW-1:0]]{r} <= wdata{r};\n")
            })
            .collect(),
    };
    let range = range(bits);
    // One bank of all rows, where the banks are larger than the RAM.
    format!(
        "{size}localparam BANKS = ({rows} + (1 << LOW) - 1) >> LOW;\nreg fresh;\nreg [{top}:0] row;\n\
         wire [BANKS*{bits}-1:0] outs;\nalways @(posedge clock) begin\n  fresh <= re;\n  \
         if (re) row <= raddr[{top}:0];\nend\ngenerate\nfor (genvar b = 0; b < BANKS; b = b + 1) begin : banks\n  \
         (* no_rw_check{style} *)\n  reg {range}mem [0:(1<<LOW)-1];\n  reg {range}stage;\n  reg {range}out;\n  \
         wire chosen = (waddr[{top}:0] >> LOW) == b;\n  always @(posedge clock) begin\n{write}    \
         if (re) stage <= mem[raddr[LOW-1:0]];\n    \
         if (fresh) out <= (row >> LOW) == b ? stage : {bits}'d0;\n  end\n  assign outs[b*{bits}+:{bits}] = out;\nend\nendgenerate\n\
         always @(*) begin\n  rdata = {bits}'d0;\n  for (integer i = 0; i < BANKS; i = i + 1) rdata = rdata | outs[i*{bits}+:{bits}];\nend\n"
    )
}

/// Verilog of a RAM body of `bits`-wide words, with write enables for lanes of `lane` bits or for the whole word.
fn verilog(block: &'static str, o: &Options, bits: usize, address_bits: usize, lane: Option<usize>) -> Verilog {
    let (rows, top) = (o.rows(address_bits), o.index_bits(address_bits) - 1);
    let style = match o.style {
        "" => "(* no_rw_check *)".to_string(),
        s => format!("(* no_rw_check, ram_style = \"{s}\" *)"),
    };
    // No dimension for one address bit; a RAM of one row has two.
    let at = |port: &str| if address_bits == 1 { port.to_string() } else { format!("{port}[{top}:0]") };
    let (waddr, raddr) = (at("waddr"), at("raddr"));
    let write = match lane {
        None => format!("always @(posedge clock) if (we) mem[{waddr}] <= wdata;\n"),
        Some(lane) => {
            let line = |k| {
                let r = format!("[{}:{}]", (k + 1) * lane - 1, k * lane);
                format!("  if (we[{k}]) mem[{waddr}]{r} <= wdata{r};\n")
            };
            // simulators need not look at every lane; hardware would get the gate for nothing
            let guard = "`ifndef SYNTHESIS\nif (|we)\n`endif\n";
            let lines: String = (0..bits / lane).map(line).collect();
            format!("always @(posedge clock)\n{guard}begin\n{lines}end\n")
        }
    };
    let range = range(bits);
    let any = if lane.is_some() { "|we" } else { "we" };
    let read = match o.answer {
        Answer::AtOnce => {
            format!("wire {range}word = mem[{raddr}];\nalways @(*) rdata = re ? word : {bits}'d0;\n")
        }
        Answer::Next => format!(
            "initial rdata = {bits}'d0;\nalways @(posedge clock) begin\n  if (re) rdata <= mem[{raddr}];\n{}end\n",
            clash(bits, "rdata", any, &waddr, &raddr)
        ),
        Answer::Registered => format!(
            "reg {range}stage;\nreg fresh;\ninitial begin stage = {bits}'d0; fresh = 1'b0; rdata = {bits}'d0; end\n\
             always @(posedge clock) begin\n  if (re) stage <= mem[{raddr}];\n  fresh <= re;\n  \
             if (fresh) rdata <= stage;\n{}end\n",
            clash(bits, "stage", any, &waddr, &raddr)
        ),
    };
    let noise = if o.answer == Answer::AtOnce { String::new() } else { noise(bits) };
    let mut text = format!("{style} reg {range}mem [0:{}];\n{noise}{write}{read}", rows.max(2) - 1);
    if o.answer == Answer::Registered && o.style != "distributed" && rows > BLOCK_ROWS {
        let banks = banked(o.style, rows, top, bits, lane);
        text = if o.hardware { banks } else { format!("`ifdef SYNTHESIS\n{banks}`else\n{text}`endif\n") };
    }
    ir::hand_over(ir::Body::Text { block: Some(block), text, reg: true, source: String::new() })
}

macro_rules! options {
    ($($generics:tt)*) => { $($generics)* {
        /// Adds a second output register: `rdata` is valid two edges after `re` instead of one, and holds until the next
        /// read has come through.
        pub fn registered(mut self) -> Self {
            self._options.0.answer = Answer::Registered;
            self
        }
        /// `rdata` follows `raddr` in the same cycle while `re` is high, and is 0 else: for RAMs of LUTs.
        pub fn at_once(mut self) -> Self {
            self._options.0.answer = Answer::AtOnce;
            self
        }
        /// Fewer rows than there are addresses. Address bits that only more rows would need are ignored.
        pub fn rows(mut self, rows: usize) -> Self {
            assert!(rows > 0, "a RAM without rows");
            self._options.0.rows = rows;
            self
        }
        /// For tests: a simulation sees the text that synthesis sees.
        #[doc(hidden)]
        pub fn as_hardware(mut self) -> Self {
            self._options.0.hardware = true;
            self
        }
        /// Asks synthesis for a kind of memory: `"block"`, `"ultra"`, `"distributed"`, `"registers"`, or `""` for its own choice. Panics on
        /// any other name.
        pub fn style(mut self, style: &'static str) -> Self {
            assert!(["", "block", "ultra", "distributed", "registers"].contains(&style), "no such RAM style: {style}");
            self._options.0.style = style;
            self
        }
    } };
}

/// Simple dual port RAM of 2^`A` words of `T`, or of fewer [`rows`](Self::rows), zero at power-up. `we` writes `wdata` at `waddr`; `re` reads `raddr`,
/// and `rdata` holds the word from the next rising edge until the next read.
///
/// Reading the word that is written at the same edge gives **undefined** data: any in hardware, random data in the emitted
/// Verilog, so that a test finds who relies on it (old data in a simulation of the Rust code, which whole designs never run
/// in). Forward the write data, or keep the two apart. A read at the next edge gives the new word. A RAM that answers
/// [`at_once`](Self::at_once) gives the old word until the edge of the write and the new one from then on.
#[derive(Clone, Debug, Default, LogicBlock)]
pub struct Ram<T: Synth, const A: usize> {
    pub clock: Signal<In, Clock>,
    pub we: Signal<In, Bit>,
    pub waddr: Signal<In, Bits<A>>,
    pub wdata: Signal<In, T>,
    pub re: Signal<In, Bit>,
    pub raddr: Signal<In, Bits<A>>,
    pub rdata: Signal<Out, T>,
    _options: Hidden<Options>,
    _mem: Hidden<BTreeMap<u64, T>>,
    _stage: Hidden<T>,
}
options!(impl<T: Synth, const A: usize> Ram<T, A>);
impl<T: Synth, const A: usize> Ram<T, A> {
    /// A RAM of `rows` rows with an output register; `style` as for [`style`](Self::style).
    pub fn new(rows: usize, style: &'static str) -> Self {
        Self::default().rows(rows).style(style).registered()
    }
}
impl<T: Synth, const A: usize> Logic for Ram<T, A> {
    fn update(&mut self) {
        let row = |address: Bits<A>| self._options.0.row(address.to_u64(), A);
        let (read, write) = (row(self.raddr.val()), row(self.waddr.val()));
        if self.clock.pos_edge() {
            let old = self._stage.0;
            if self.re.val() {
                self._stage.0 = self._mem.0.get(&read).copied().unwrap_or_default();
            }
            self.rdata.next = if self._options.0.answer == Answer::Registered { old } else { self._stage.0 };
            if self.we.val() {
                self._mem.0.insert(write, self.wdata.val());
            }
        }
        if self._options.0.answer == Answer::AtOnce {
            let word = self._mem.0.get(&read).copied().unwrap_or_default();
            self.rdata.next = if self.re.val() { word } else { T::default() };
        }
    }
    fn connect(&mut self) {
        self.rdata.connect();
    }
    fn hdl(&self) -> Verilog {
        verilog(std::any::type_name::<Self>(), &self._options.0, T::BITS, A, None)
    }
}

/// `Ram` of `D`-bit words with up to `BE` write enables, at least 2: bit k of `we` writes lane k. The enables share the word evenly:
/// with `BE = D / 8` they are byte enables. [`lanes_of`](Self::lanes_of) gives lanes of a width that does not follow from `BE`.
#[derive(Clone, Debug, Default, LogicBlock)]
pub struct RamBe<const D: usize, const A: usize, const BE: usize> {
    pub clock: Signal<In, Clock>,
    pub we: Signal<In, Bits<BE>>,
    pub waddr: Signal<In, Bits<A>>,
    pub wdata: Signal<In, Bits<D>>,
    pub re: Signal<In, Bit>,
    pub raddr: Signal<In, Bits<A>>,
    pub rdata: Signal<Out, Bits<D>>,
    _options: Hidden<Options>,
    _mem: Hidden<BTreeMap<u64, Bits<D>>>,
    _stage: Hidden<Bits<D>>,
}
options!(impl<const D: usize, const A: usize, const BE: usize> RamBe<D, A, BE>);
impl<const D: usize, const A: usize, const BE: usize> RamBe<D, A, BE> {
    /// Lanes of `bits` bits, so that the upper write enables may be without use.
    pub fn lanes_of(mut self, bits: usize) -> Self {
        self._options.0.lane = bits;
        self
    }
    fn lane_bits(&self) -> usize {
        let lane = if self._options.0.lane == 0 { D / BE } else { self._options.0.lane };
        let lanes = D.checked_div(lane).unwrap_or(0);
        assert!(
            lanes * lane == D && (2..=BE).contains(&lanes),
            "RamBe: {D} bits do not part into lanes of {lane} for {BE} enables"
        );
        lane
    }
}
impl<const D: usize, const A: usize, const BE: usize> Logic for RamBe<D, A, BE> {
    fn update(&mut self) {
        let row = |address: Bits<A>| self._options.0.row(address.to_u64(), A);
        let (read, write, lane) = (row(self.raddr.val()), row(self.waddr.val()), self.lane_bits());
        if self.clock.pos_edge() {
            let old = self._stage.0;
            if self.re.val() {
                self._stage.0 = self._mem.0.get(&read).copied().unwrap_or_default();
            }
            self.rdata.next = if self._options.0.answer == Answer::Registered { old } else { self._stage.0 };
            let (we, data) = (self.we.val(), self.wdata.val());
            if we.any() {
                let word = self._mem.0.entry(write).or_default();
                for bit in (0..D).filter(|b| we.get_bit(b / lane)) {
                    *word = word.replace_bit(bit, data.get_bit(bit));
                }
            }
        }
        if self._options.0.answer == Answer::AtOnce {
            let word = self._mem.0.get(&read).copied().unwrap_or_default();
            self.rdata.next = if self.re.val() { word } else { 0.into() };
        }
    }
    fn connect(&mut self) {
        self.rdata.connect();
    }
    fn hdl(&self) -> Verilog {
        verilog(std::any::type_name::<Self>(), &self._options.0, D, A, Some(self.lane_bits()))
    }
}
