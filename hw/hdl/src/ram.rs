//! RAMs for authors of blocks: simple dual port, one clock, read enable, optional lane write enables. The text is what
//! Vivado and Yosys map to block or UltraRAM and what Verilator runs as a plain array.
use crate::ir;
use crate::reg::Hidden;
use rust_hdl::prelude::*;
use std::collections::BTreeMap;

/// What a RAM is built from, and how late it answers.
#[derive(Clone, Debug, Default)]
struct Options {
    style: &'static str,
    registered: bool,
}

/// Verilog of a RAM body: `lanes` write enables over a `bits`-wide word.
fn verilog(block: &'static str, o: &Options, bits: usize, address_bits: usize, lanes: usize) -> Verilog {
    let words = 1u64 << address_bits;
    let style = match o.style {
        "" => "(* no_rw_check *)".to_string(),
        s => format!("(* no_rw_check, ram_style = \"{s}\" *)"),
    };
    let lane = bits / lanes;
    let write: String = match lanes {
        1 => "always @(posedge clock) if (we) mem[waddr] <= wdata;\n".into(),
        _ => {
            let line = |k| {
                let r = format!("[{}:{}]", (k + 1) * lane - 1, k * lane);
                format!("  if (we[{k}]) mem[waddr]{r} <= wdata{r};\n")
            };
            // simulators need not look at every lane; hardware would get the gate for nothing
            let guard = "`ifndef SYNTHESIS\nif (|we)\n`endif\n";
            format!("always @(posedge clock)\n{guard}begin\n{}end\n", (0..lanes).map(line).collect::<String>())
        }
    };
    let range = if bits == 1 { String::new() } else { format!("[{}:0] ", bits - 1) };
    let read = if o.registered {
        format!(
            "reg {range}stage;\nreg fresh;\ninitial begin stage = {bits}'d0; fresh = 1'b0; rdata = {bits}'d0; end\n\
             always @(posedge clock) begin\n  if (re) stage <= mem[raddr];\n  fresh <= re;\n  \
             if (fresh) rdata <= stage;\nend\n"
        )
    } else {
        format!("initial rdata = {bits}'d0;\nalways @(posedge clock) if (re) rdata <= mem[raddr];\n")
    };
    let text = format!("{style} reg {range}mem [0:{}];\n{write}{read}", words - 1);
    ir::hand_over(ir::Body::Text { block: Some(block), text, reg: true, source: String::new() })
}

macro_rules! options {
    ($($generics:tt)*) => { $($generics)* {
        /// Adds a second output register: `rdata` is valid two edges after `re` instead of one, and holds until the next
        /// read has come through.
        pub fn registered(mut self) -> Self {
            self._options.0.registered = true;
            self
        }
        /// Asks synthesis for a kind of memory: `"block"`, `"ultra"` or `"distributed"`. Panics on any other name.
        pub fn style(mut self, style: &'static str) -> Self {
            assert!(["block", "ultra", "distributed"].contains(&style), "no such RAM style: {style}");
            self._options.0.style = style;
            self
        }
    } };
}

/// Simple dual port RAM of 2^`A` words of `T`, zero at power-up. `we` writes `wdata` at `waddr`; `re` reads `raddr`,
/// and `rdata` holds the word from the next rising edge until the next read.
///
/// Reading the word that is written at the same edge gives **undefined** data in hardware (old data in simulation):
/// forward the write data, or keep the two apart.
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
impl<T: Synth, const A: usize> Logic for Ram<T, A> {
    fn update(&mut self) {
        if self.clock.pos_edge() {
            let old = self._stage.0;
            if self.re.val() {
                let address = self.raddr.val().to_u64();
                self._stage.0 = self._mem.0.get(&address).copied().unwrap_or_default();
            }
            self.rdata.next = if self._options.0.registered { old } else { self._stage.0 };
            if self.we.val() {
                self._mem.0.insert(self.waddr.val().to_u64(), self.wdata.val());
            }
        }
    }
    fn connect(&mut self) {
        self.rdata.connect();
    }
    fn hdl(&self) -> Verilog {
        verilog(std::any::type_name::<Self>(), &self._options.0, T::BITS, A, 1)
    }
}

/// `Ram` of `D`-bit words with `BE` write enables: bit k of `we` writes lane k, `D / BE` bits from bit `k * D / BE`.
/// With `BE = D / 8` these are byte enables. `BE` must divide `D` and be at least 2.
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
impl<const D: usize, const A: usize, const BE: usize> Logic for RamBe<D, A, BE> {
    fn update(&mut self) {
        if self.clock.pos_edge() {
            let old = self._stage.0;
            if self.re.val() {
                let address = self.raddr.val().to_u64();
                self._stage.0 = self._mem.0.get(&address).copied().unwrap_or_default();
            }
            self.rdata.next = if self._options.0.registered { old } else { self._stage.0 };
            let (we, data) = (self.we.val(), self.wdata.val());
            if we.any() {
                let word = self._mem.0.entry(self.waddr.val().to_u64()).or_default();
                for bit in (0..D).filter(|b| we.get_bit(b / (D / BE))) {
                    *word = word.replace_bit(bit, data.get_bit(bit));
                }
            }
        }
    }
    fn connect(&mut self) {
        self.rdata.connect();
    }
    fn hdl(&self) -> Verilog {
        const { assert!(BE > 1 && D.is_multiple_of(BE), "RamBe: BE must be at least 2 and divide D") }
        verilog(std::any::type_name::<Self>(), &self._options.0, D, A, BE)
    }
}
