//! Handshakes that pass through a block in both directions: no signal depends on itself, and Verilator must not think so.
use hdl::prelude::*;
use hdl_check::{Randomize, clocked};

/// Passes a stream on without a register, and says how much passed.
#[derive(LogicBlock, Default)]
struct Pass {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    pub s_valid: Signal<In, Bit>,
    pub s_data: Signal<In, Bits<16>>,
    pub s_ready: Signal<Out, Bit>,
    pub m_valid: Signal<Out, Bit>,
    pub m_data: Signal<Out, Bits<16>>,
    pub m_ready: Signal<In, Bit>,
    open: Reg<Bit>,
    count: Reg<Bits<16>>,
}
impl Logic for Pass {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, open, count);
        self.open.d.next = !self.open.q.val() || self.s_data.val().get_bit(0);
        self.s_ready.next = false;
        self.m_valid.next = false;
        self.m_data.next = 0.into();
        if self.open.q.val() {
            let small = self.count.q.val().get_bits::<4>(0) != 3;
            let mut shown = self.s_data.val() + 1;
            if small {
                shown ^= self.count.q.val();
            }
            self.s_ready.next = self.m_ready.val() && small;
            self.m_valid.next = self.s_valid.val() && small;
            self.m_data.next = shown;
            if self.s_valid.val() && self.m_ready.val() {
                self.count.d.next = self.count.q.val() + 1;
            }
        }
    }
}
#[derive(LogicBlock, Default)]
struct Chain {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    pub valid: Signal<In, Bit>,
    pub data: Signal<In, Bits<16>>,
    pub ready: Signal<Out, Bit>,
    pub out_valid: Signal<Out, Bit>,
    pub out_data: Signal<Out, Bits<16>>,
    pub out_ready: Signal<In, Bit>,
    pass: [Pass; 3],
    held: Reg<Bit>,
}
impl Logic for Chain {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, held);
        self.held.d.next = !self.out_ready.val();
        for i in 0..3 {
            clock_reset!(self, clock, rst, pass[i]);
            self.pass[i].s_valid.next = false;
            self.pass[i].s_data.next = 0.into();
            self.pass[i].m_ready.next = false;
        }
        self.ready.next = false;
        self.out_valid.next = false;
        self.out_data.next = 0.into();
        // one `if` around all the wires
        if !self.held.q.val() {
            self.pass[0].s_valid.next = self.valid.val();
            self.pass[0].s_data.next = self.data.val();
            self.ready.next = self.pass[0].s_ready.val();
            for i in 0..2 {
                let data = self.pass[i].m_data.val();
                self.pass[i + 1].s_valid.next = self.pass[i].m_valid.val() && data != 7;
                self.pass[i + 1].s_data.next = data;
                self.pass[i].m_ready.next = self.pass[i + 1].s_ready.val();
            }
            self.out_valid.next = self.pass[2].m_valid.val();
            self.out_data.next = self.pass[2].m_data.val();
            self.pass[2].m_ready.next = self.out_ready.val();
        }
    }
}

#[test]
fn no_loops() {
    clocked(
        Chain::default,
        1000,
        |u, r| {
            u.valid.randomize(r);
            u.data.randomize(r);
            u.out_ready.randomize(r);
        },
        |u| &mut u.clock,
    )
}
