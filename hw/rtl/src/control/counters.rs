//! The device's counters: collects the `count` pulses of all blocks into 64-bit numbers. For registers, which shows them.
//!
//! Each counter has a short number in registers, that pulses add to at once; a pointer goes round and empties one of
//! them a cycle into the RAM of the long numbers.
//!
//! ```text
//! cycle       0       1              2
//! pointer     k       k+1            k+2
//! RAM         read k  write k + n    ..        only when n is not 0
//! re          A
//! value                              A         not later than `LATENCY`; at most a round behind
//! ```
//!
//! Nothing waits here. A round takes 64 cycles, or 128 while the host reads counters without pause: the short numbers
//! have room for that.

use abi::status::counter;
use hdl::prelude::*;

/// Groups of blocks: blocks of one group never pulse the same counter in the same cycle, so their vectors are or-ed.
pub const GROUPS: usize = 8;
/// Cycles from `re` to `value`.
pub const LATENCY: usize = 2;

/// Bits of a short number: 128 cycles of pulses from all groups.
const SHORT: usize = 11;
/// The same for the byte counters: 128 cycles of frames.
const LONG: usize = 22;

/// Joins the vectors of a group's blocks. A simulation stops where two of them pulse the same counter in one cycle: one pulse
/// would be lost.
#[derive(LogicBlock, Default)]
pub struct Group {
    pub clock: Signal<In, Clock>,
    pub a: Signal<In, Bits<64>>,
    pub b: Signal<In, Bits<64>>,
    pub c: Signal<In, Bits<64>>,
    pub d: Signal<In, Bits<64>>,
    pub all: Signal<Out, Bits<64>>,
}

impl Logic for Group {
    fn update(&mut self) {
        unimplemented!("groups of counters are simulated in Verilator");
    }
    fn connect(&mut self) {
        self.all.connect();
    }
    fn hdl(&self) -> Verilog {
        let text = "always @* all = a | b | c | d;\n\
            `ifndef SYNTHESIS\n\
            wire [63:0] twice = (a & (b | c | d)) | (b & (c | d)) | (c & d);\n\
            always @(posedge clock) if (|twice) begin\n  \
            $display(\"two blocks of one group count at once: %h\", twice);\n  $stop;\nend\n\
            `endif\n";
        Verilog::Custom(text.into())
    }
}

/// The counters. See the module.
#[derive(LogicBlock, Default)]
pub struct Counters {
    pub clock: Signal<In, Clock>,
    /// Clears all counters.
    pub rst: Signal<In, Bit>,
    /// Pulses: bit k counts counter k.
    pub count: Arr<Signal<In, Bits<64>>, GROUPS>,
    /// Bytes of accepted payload in this cycle: `RX_BYTES`.
    pub rx_bytes: Signal<In, Bits<14>>,
    /// Bytes of sent payload in this cycle: `TX_BYTES`.
    pub tx_bytes: Signal<In, Bits<14>>,
    /// Reads counter `index`: `value`, two cycles later, until the next read.
    pub re: Signal<In, Bit>,
    pub index: Signal<In, Bits<6>>,
    pub value: Signal<Out, Bits<64>>,

    pointer: Reg<Bits<6>>,
    short: Arr<Reg<Bits<SHORT>>, 64>,
    rx: Reg<Bits<LONG>>,
    tx: Reg<Bits<LONG>>,
    /// Second stage: counter and what it gets.
    adding: Reg<Bit>,
    to: DFF<Bits<6>>,
    amount: DFF<Bits<LONG>>,
    reading: Reg<Bit>,
    met: DFF<Bit>,
    met_value: DFF<Bits<64>>,
    shown: DFF<Bits<64>>,
    ram: Ram<Bits<64>, 6>,
    clear: Reg<Bit>,
    cleared: Reg<Bits<6>>,
}

impl Logic for Counters {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, pointer, short, rx, tx, adding, reading, clear, cleared);
        dff_setup!(self, clock, to, amount, met, met_value, shown);
        clock!(self, clock, ram);
        let mut any: Bits<64> = 0.into();
        for g in 0..GROUPS {
            any |= self.count[g].val();
        }
        let k = self.pointer.q.val();
        // Read by the host in this cycle: the pointer stays.
        let step = !self.re.val();
        let here = self.short[k.index()].q.val();
        let mut amount = here.cast::<LONG>();
        if k == (counter::RX_BYTES as u64) {
            amount += self.rx.q.val();
        }
        if k == (counter::TX_BYTES as u64) {
            amount += self.tx.q.val();
        }
        let add = step && amount != 0 && self.clear.q.val();
        let empty_rx = step && k == (counter::RX_BYTES as u64);
        let empty_tx = step && k == (counter::TX_BYTES as u64);

        if any.any() {
            for i in 0..64 {
                if any.get_bit(i) {
                    let mut pulses: Bits<SHORT> = 0.into();
                    for g in 0..GROUPS {
                        pulses += self.count[g].val().get_bits::<1>(i).cast::<SHORT>();
                    }
                    self.short[i].d.next = self.short[i].q.val() + pulses;
                }
            }
        }
        if add {
            let mut pulses: Bits<SHORT> = 0.into();
            for g in 0..GROUPS {
                pulses += (self.count[g].val() >> k).get_bits::<1>(0).cast::<SHORT>();
            }
            self.short[k.index()].d.next = pulses;
        }
        let rx = if empty_rx { 0.into() } else { self.rx.q.val() };
        let tx = if empty_tx { 0.into() } else { self.tx.q.val() };
        self.rx.d.next = rx + self.rx_bytes.val().cast::<LONG>();
        self.tx.d.next = tx + self.tx_bytes.val().cast::<LONG>();

        self.adding.d.next = add;
        if add {
            self.to.d.next = k;
            self.amount.d.next = amount;
        }
        if step {
            self.pointer.d.next = k + 1;
        }
        self.reading.d.next = self.re.val();
        self.ram.re.next = add || self.re.val();
        self.ram.raddr.next = if self.re.val() { self.index.val() } else { k };
        self.ram.we.next = self.adding.q.val();
        self.ram.waddr.next = self.to.q.val();
        let sum = self.ram.rdata.val() + self.amount.q.val().cast::<64>();
        self.ram.wdata.next = sum;
        if !self.clear.q.val() {
            // After reset: zeros first.
            self.cleared.d.next = self.cleared.q.val() + 1;
            self.clear.d.next = self.cleared.q.val().all();
            self.ram.we.next = true;
            self.ram.waddr.next = self.cleared.q.val();
            self.ram.wdata.next = 0.into();
        }
        // A counter that is written in the cycle of its read: the RAM's answer is void, what was written is not.
        if self.re.val() {
            self.met.d.next = self.adding.q.val() && self.to.q.val() == self.index.val();
            self.met_value.d.next = sum;
        }
        if self.reading.q.val() {
            self.shown.d.next = if self.met.q.val() { self.met_value.q.val() } else { self.ram.rdata.val() };
        }
        self.value.next = self.shown.q.val();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, RngExt};

    use verilate::{Model, Options};

    #[test]
    fn nothing_is_lost() {
        let seed = 2;
        println!("seed {seed}");
        let mut rng = verilate::rng(seed);
        let mut m = Model::of(Counters::default, Options::default()).unwrap();
        for round in 0..2 {
            m.reset();
            (0..70).for_each(|_| m.tick());
            let mut want = [0u64; 64];
            let cycles = verilate::scale(5000);
            for cycle in 0..cycles + 200 {
                let on = cycle < cycles;
                // Dense and sparse phases.
                let dense = cycle / 500 % 2 == round;
                for g in 0..GROUPS {
                    let x = if !on {
                        0
                    } else if dense {
                        u64::MAX
                    } else {
                        rng.next_u64() & rng.next_u64() & rng.next_u64()
                    };
                    m.set(&*format!("count[{g}]"), x);
                    (0..64).for_each(|k| want[k] += x >> k & 1);
                }
                for (name, k) in [("rx_bytes", counter::RX_BYTES), ("tx_bytes", counter::TX_BYTES)] {
                    let n = if on { rng.random_range(0..16384) } else { 0 };
                    m.set(name, n);
                    want[k] += n;
                }
                m.set("re", (on && rng.random_bool(0.3)) as u64);
                m.set("index", rng.random_range(0..64));
                m.tick();
            }
            for (k, want) in want.iter().enumerate() {
                m.set("re", 1);
                m.set("index", k as u64);
                m.tick();
                m.set("re", 0);
                (1..LATENCY).for_each(|_| m.tick());
                assert_eq!(m.get("value"), *want, "counter {k}");
            }
        }
    }
}
