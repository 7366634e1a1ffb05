//! The device's counters: collects the `count` pulses of all blocks into 64-bit numbers. For registers, which shows them.
//!
//! The long numbers stand in a RAM. Each counter has a short number in registers beside it: the lowest bits of what the
//! long one should be. A pointer goes round the counters, one a cycle, and brings the long numbers up to date.
//!
//! ```text
//! cycle      0       1         2       3          4
//! count      pulse   caught
//! short                        + 1
//! pointer    k       k+1       ..
//! RAM        read k                               write k, if it changed
//! short k                      taken
//! sum                                  k + what it lacks
//! done                                            if `asked` is k
//! ```
//!
//! Nothing waits here. A round takes a cycle for each counter there is, and one for all others, which are 0; for so many pulses the
//! short numbers have room, and so long a read may take too.

use abi::status::counter;
use hdl::prelude::*;

/// Groups of blocks: blocks of one group never pulse the same counter in the same cycle, so their vectors are or-ed.
pub const GROUPS: usize = 8;

/// What the blocks of each group count, as `core` groups them: ingress; responder; completer; commit, transmit, doorbell and
/// send queue; respond, completion and receive queue; landing, requester and reads; writes, events and QP states; loopback
/// and sentry. A counter has an adder for those that count it only.
pub const COUNTED: [u64; GROUPS] = {
    use counter::*;
    [
        from_to(RX_RAW, RX_PKEY) | 1 << RX_CE,
        1 << RX_RAW
            | 1 << RX_RAW_DROPPED
            | from_to(RX_QP_STATE, RX_RNR)
            | 1 << RX_INVALID_REQUEST
            | from_to(RX_UNRELIABLE, RX_CNP),
        1 << RX_ACCEPTED | from_to(RX_QP_STATE, RX_PKEY) | 1 << RX_STALE_RESPONSE | from_to(RETRY_NAK, RNR_RECEIVED),
        1 << RX_ACCEPTED
            | 1 << RX_QP_STATE
            | from_to(RX_REMOTE_ACCESS, RX_REMOTE_OPERATION)
            | 1 << RX_UNRELIABLE
            | from_to(TX_FRAMES, TX_ABORTED)
            | 1 << TX_PAUSED
            | from_to(DOORBELL_REFUSED, DOORBELL_RANGE),
        1 << STALE_GENERATION | from_to(DOORBELL_RANGE, CQ_OVERRUN),
        1 << STALE_GENERATION | from_to(KEY_FAULT, DMA_ERROR),
        1 << STALE_GENERATION | 1 << DMA_ERROR,
        from_to(TX_LOOPBACK, TX_LINK_DOWN) | 1 << PARITY_ERROR,
    ]
};

/// Bits `first` to `last`.
const fn from_to(first: usize, last: usize) -> u64 {
    (2 << last) - (1 << first)
}

/// Groups that count counter `k`.
const fn sources(k: usize) -> usize {
    let (mut n, mut g) = (0, 0);
    while g < GROUPS {
        n += (COUNTED[g] >> k & 1) as usize;
        g += 1;
    }
    n
}

/// The counter that stands for those that do not exist, and the cycles of a round.
const NONE: usize = counter::NAMES.len();
const ROUND: usize = NONE + 1;

/// Bits of a short number: a round of pulses from all groups that count it, four at most.
const SHORT: usize = 8;
/// Of one that a single group counts.
const SINGLE: usize = 6;
/// Of the byte counters: a round of frames.
const LONG: usize = 20;
const _: () = {
    let mut k = 0;
    while k < 64 {
        assert!(ROUND * sources(k) < 1 << SHORT && (sources(k) == 0 || k < counter::RX_BYTES));
        k += 1;
    }
    assert!(ROUND < 1 << SINGLE && ROUND << 14 <= 1 << LONG);
};

/// The bits of a short number of counter `k`.
fn range(k: usize) -> u64 {
    let bits = match sources(k) {
        0 if k == counter::RX_BYTES || k == counter::TX_BYTES => LONG,
        0 => 0,
        1 => SINGLE,
        _ => SHORT,
    };
    (1 << bits) - 1
}

/// The counters whose short number has bit `bit`.
fn with_bit(bit: usize) -> u64 {
    (0..64).fold(0, |all, k| all | (range(k) >> bit & 1) << k)
}

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

/// Lets a group count what [`COUNTED`] says it does. A simulation stops at any other pulse: it would be lost.
#[derive(LogicBlock, Default)]
struct Counted {
    pub clock: Signal<In, Clock>,
    pub count: Signal<In, Bits<64>>,
    pub counted: Signal<Out, Bits<64>>,
    _mask: Hidden<u64>,
}

impl Logic for Counted {
    fn update(&mut self) {
        unimplemented!("groups of counters are simulated in Verilator");
    }
    fn connect(&mut self) {
        self.counted.connect();
    }
    fn hdl(&self) -> Verilog {
        let mask = self._mask.0;
        Verilog::Custom(format!(
            "always @* counted = count & 64'h{mask:x};\n\
            `ifndef SYNTHESIS\n\
            always @(posedge clock) if (|(count & ~64'h{mask:x})) begin\n  \
            $display(\"a group counts what it does not: %h\", count & ~64'h{mask:x});\n  $stop;\nend\n\
            `endif\n"
        ))
    }
}

/// The counters. See the module.
#[derive(LogicBlock)]
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
    /// The bus reported an error a cycle ago.
    pub dma_error: Signal<Out, Bit>,
    /// Asks for counter `index`: `value` is valid in the cycle of `done`, within two rounds and a few cycles, and stays until the next is asked for.
    pub re: Signal<In, Bit>,
    pub index: Signal<In, Bits<6>>,
    pub done: Signal<Out, Bit>,
    pub value: Signal<Out, Bits<64>>,

    counted: Arr<Counted, GROUPS>,
    pulses: Arr<Reg<Bits<64>>, GROUPS>,
    short: Arr<Reg<Bits<SHORT>>, 64>,
    rx_in: Reg<Bits<14>>,
    tx_in: Reg<Bits<14>>,
    rx: Reg<Bits<LONG>>,
    tx: Reg<Bits<LONG>>,
    pointer: Reg<Bits<6>>,
    /// The first round since reset is over.
    again: Reg<Bit>,
    /// The counters behind the pointer, by stage: being read, short number taken, sum made; and whether what the RAM holds counts.
    at: [Reg<Bits<6>>; 3],
    keep: [Reg<Bit>; 3],
    here: DFF<Bits<LONG>>,
    sum: DFF<Bits<64>>,
    changed: Reg<Bit>,
    asked: DFF<Bits<6>>,
    asking: DFF<Bit>,
    found: DFF<Bit>,
    shown: DFF<Bits<64>>,
    ram: Ram<Bits<64>, 6>,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            clock: Default::default(),
            rst: Default::default(),
            count: Default::default(),
            rx_bytes: Default::default(),
            tx_bytes: Default::default(),
            dma_error: Default::default(),
            re: Default::default(),
            index: Default::default(),
            done: Default::default(),
            value: Default::default(),
            counted: Arr::from_fn(|g| Counted { _mask: Hidden(COUNTED[g]), ..Counted::default() }),
            pulses: Default::default(),
            short: Default::default(),
            rx_in: Default::default(),
            tx_in: Default::default(),
            rx: Default::default(),
            tx: Default::default(),
            pointer: Default::default(),
            again: Default::default(),
            at: Default::default(),
            keep: Default::default(),
            here: Default::default(),
            sum: Default::default(),
            changed: Default::default(),
            asked: Default::default(),
            asking: Default::default(),
            found: Default::default(),
            shown: Default::default(),
            ram: Ram::new(64, "block"),
        }
    }
}

impl Logic for Counters {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, pulses, short, rx_in, tx_in, rx, tx, pointer, again, at, keep, changed);
        // A reset does not lose a read that is under way.
        dff_setup!(self, clock, here, sum, asked, asking, found, shown);
        clock!(self, clock, ram);

        // What is counted.
        let mut any: Bits<64> = 0.into();
        let mut dma_error = false;
        for g in 0..GROUPS {
            clock!(self, clock, counted[g]);
            self.counted[g].count.next = self.count[g].val();
            self.pulses[g].d.next = self.counted[g].counted.val();
            any |= self.pulses[g].q.val();
            dma_error = dma_error || self.pulses[g].q.val().get_bit(elab!(counter::DMA_ERROR));
        }
        self.dma_error.next = dma_error;
        if any.any() {
            for i in 0..64 {
                let mut short = self.short[i].q.val();
                for g in 0..GROUPS {
                    short += self.pulses[g].q.val().get_bits::<1>(i).cast::<SHORT>();
                }
                self.short[i].d.next = short & elab!(bits::<SHORT>(range(i) & ((1 << SHORT) - 1)));
            }
        }
        self.rx_in.d.next = self.rx_bytes.val();
        self.tx_in.d.next = self.tx_bytes.val();
        self.rx.d.next = self.rx.q.val() + self.rx_in.q.val().cast::<LONG>();
        self.tx.d.next = self.tx.q.val() + self.tx_in.q.val().cast::<LONG>();

        // The pointer. In its first round the RAM's numbers count as zeros.
        let pointer = self.pointer.q.val();
        let again = self.again.q.val();
        self.pointer.d.next = pointer + 1;
        if pointer == NONE.to_bits::<6>() {
            self.pointer.d.next = 0.into();
            self.again.d.next = true;
        }
        self.ram.re.next = true;
        self.ram.raddr.next = pointer;
        self.at[0].d.next = pointer;
        self.keep[0].d.next = again;
        for i in 1..3 {
            self.at[i].d.next = self.at[i - 1].q.val();
            self.keep[i].d.next = self.keep[i - 1].q.val();
        }
        let k = self.at[0].q.val();
        self.here.d.next = if k == (counter::RX_BYTES as u64) {
            self.rx.q.val()
        } else if k == (counter::TX_BYTES as u64) {
            self.tx.q.val()
        } else {
            self.short[k.index()].q.val().cast::<LONG>()
        };

        // The short number is the long one's lowest bits, but for what the long one lacks.
        let k = self.at[1].q.val();
        let long = if self.keep[1].q.val() { self.ram.rdata.val() } else { 0.into() };
        let mut lacks = self.here.q.val() - long.get_bits::<LONG>(0);
        for bit in 0..LONG {
            let has: Bits<64> = elab!(bits::<64>(with_bit(bit)));
            lacks = lacks.replace_bit(bit, lacks.get_bit(bit) && has.get_bit(k.index()));
        }
        let sum = long + lacks.cast::<64>();
        self.sum.d.next = sum;
        self.changed.d.next = lacks.any() || !self.keep[1].q.val();
        self.ram.we.next = self.changed.q.val();
        self.ram.waddr.next = self.at[2].q.val();
        self.ram.wdata.next = self.sum.q.val();

        if self.re.val() {
            self.asking.d.next = true;
            let index = self.index.val();
            self.asked.d.next = if index > NONE.to_bits::<6>() { NONE.to_bits::<6>() } else { index };
        }
        self.found.d.next = false;
        if self.asking.q.val() && self.keep[2].q.val() && self.asked.q.val() == self.at[2].q.val() {
            self.asking.d.next = false;
            self.found.d.next = true;
            self.shown.d.next = self.sum.q.val();
        }
        self.done.next = self.found.q.val();
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
            let mut want = [0u64; 64];
            let cycles = verilate::scale(5000);
            for cycle in 0..cycles {
                // All that can be, from the first cycle on, and sparse phases.
                let dense = cycle / 500 % 2 == round;
                for (g, counted) in COUNTED.iter().enumerate() {
                    let x = if dense { u64::MAX } else { rng.next_u64() & rng.next_u64() & rng.next_u64() };
                    m.set(&*format!("count[{g}]"), x & counted);
                    (0..64).for_each(|k| want[k] += (x & counted) >> k & 1);
                }
                for (name, k) in [("rx_bytes", counter::RX_BYTES), ("tx_bytes", counter::TX_BYTES)] {
                    let n = if dense { 16383 } else { rng.random_range(0..16384) };
                    m.set(name, n);
                    want[k] += n;
                }
                m.tick();
            }
            (0..GROUPS).for_each(|g| m.set(&*format!("count[{g}]"), 0));
            m.set("rx_bytes", 0);
            m.set("tx_bytes", 0);
            (0..4).for_each(|_| m.tick());
            for (k, want) in want.iter().enumerate() {
                m.set("re", 1);
                m.set("index", k as u64);
                m.tick();
                m.set("re", 0);
                let start = m.cycle();
                while !m.bit("done") {
                    m.tick();
                    assert!(m.cycle() < start + 140);
                }
                assert_eq!(m.get("value"), *want, "counter {k}");
            }
        }
    }

    #[test]
    fn no_counter_is_left_out() {
        let used = COUNTED.iter().fold(1 << counter::RX_BYTES | 1 << counter::TX_BYTES, |all, group| all | group);
        assert_eq!(used, (1 << counter::NAMES.len()) - 1);
    }
}
