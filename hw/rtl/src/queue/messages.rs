//! MSI-X messages: vectors that are due wait here, as one bit each (`pending`), while they are masked or not yet sent, as PCI
//! says. For [`super::event`], which sends a message between two events, so that it stands behind the EQE it tells of.
//!
//! ```text
//! cycle   0      1           2           3         4         5
//! any     1
//! go      1
//! re             (at, low)   (at, high)
//! half                                   address   data
//! done                                                       1, address, data (until the next go)
//! ```
//!
//! It waits for nobody.

use super::flags::first_of;
use abi::bar::MSIX_VECTORS;
use hdl::prelude::*;

/// The messages. See the module.
#[derive(LogicBlock, Default)]
pub struct Messages {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// `vector` is due.
    pub fire: Signal<In, Bit>,
    pub vector: Signal<In, Bits<5>>,
    /// Vectors that may not be sent now.
    pub mask: Signal<In, Bits<32>>,
    pub pending: Signal<Out, Bits<32>>,
    /// There is one to send. It may have been masked a cycle ago.
    pub any: Signal<Out, Bit>,
    /// Sends it: `address` and `data` of its message come with `done`.
    pub go: Signal<In, Bit>,
    pub done: Signal<Out, Bit>,
    pub address: Signal<Out, Bits<64>>,
    pub data: Signal<Out, Bits<32>>,
    /// The table, by halves of rows: `half` comes two cycles after `re`.
    pub re: Signal<Out, Bit>,
    pub addr: Signal<Out, Bits<6>>,
    pub half: Signal<In, Bits<64>>,

    waits: Reg<Bits<32>>,
    some: Reg<Bit>,
    at: DFF<Bits<5>>,
    chosen: DFF<Bits<5>>,
    steps: [Reg<Bit>; 5],
    address_q: DFF<Bits<64>>,
    data_q: DFF<Bits<32>>,
}

impl Logic for Messages {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, waits, some, steps);
        dff_setup!(self, clock, at, chosen, address_q, data_q);
        let one: Bits<32> = 1.into();
        let mut waits = self.waits.q.val();
        let sendable = waits & !self.mask.val();
        self.some.d.next = sendable.any();
        self.at.d.next = first_of(sendable.cast::<64>()).get_bits::<5>(0);
        if self.go.val() {
            self.chosen.d.next = self.at.q.val();
            waits &= !(one << self.at.q.val());
        }
        if self.fire.val() {
            waits |= one << self.vector.val();
        }
        self.waits.d.next = waits;
        self.steps[0].d.next = self.go.val();
        for i in 1..5 {
            self.steps[i].d.next = self.steps[i - 1].q.val();
        }
        self.re.next = self.steps[0].q.val() || self.steps[1].q.val();
        self.addr.next = cat!(self.chosen.q.val(), self.steps[1].q.val());
        if self.steps[2].q.val() {
            self.address_q.d.next = self.half.val();
        }
        if self.steps[3].q.val() {
            self.data_q.d.next = self.half.val().get_bits::<32>(0);
        }
        self.any.next = self.some.q.val();
        self.pending.next = self.waits.q.val();
        self.done.next = self.steps[4].q.val();
        self.address.next = self.address_q.q.val();
        self.data.next = self.data_q.q.val();
    }
}

const _: () = assert!(MSIX_VECTORS == 32);
