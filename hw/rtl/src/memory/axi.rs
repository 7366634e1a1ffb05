//! The AXI4 buses towards the host: one that reads, one that writes.
//!
//! Whole bursts of full beats: `len` is beats minus one, the burst type is INCR, the size is the bus width, and an
//! address may be unaligned in its first beat (the bus reads or writes from the lane of its lower bits on). A burst
//! never crosses 4 KiB (AXI4 A3.4.1). Every channel follows the rule of [`crate::stream::Source`].

use hdl::prelude::*;

/// Read side of an AXI bus of `W` bits, seen from the one who asks. Requests of one ID are answered in order; beats of
/// different IDs may come in any order and interleaved.
#[derive(LogicInterface, Clone, Debug, Default)]
#[join = "AxiReadSlave"]
pub struct AxiReadMaster<const W: usize> {
    /// Address of the first byte.
    pub ar_addr: Signal<Out, Bits<64>>,
    /// Beats minus one.
    pub ar_len: Signal<Out, Bits<8>>,
    /// ID.
    pub ar_id: Signal<Out, Bits<8>>,
    /// There is a request.
    pub ar_valid: Signal<Out, Bit>,
    /// It is taken at the end of this cycle.
    pub ar_ready: Signal<In, Bit>,
    /// Data: the byte of address a is in lane a mod W/8.
    pub r_data: Signal<In, Bits<W>>,
    /// ID of the request.
    pub r_id: Signal<In, Bits<8>>,
    /// 0 OKAY; else an error, for this beat.
    pub r_resp: Signal<In, Bits<2>>,
    /// Last beat of the burst.
    pub r_last: Signal<In, Bit>,
    /// There is a beat.
    pub r_valid: Signal<In, Bit>,
    /// It is taken at the end of this cycle.
    pub r_ready: Signal<Out, Bit>,
}

/// Read side of an AXI bus of `W` bits, seen from the one who answers.
#[derive(LogicInterface, Clone, Debug, Default)]
#[join = "AxiReadMaster"]
pub struct AxiReadSlave<const W: usize> {
    /// Address of the first byte.
    pub ar_addr: Signal<In, Bits<64>>,
    /// Beats minus one.
    pub ar_len: Signal<In, Bits<8>>,
    /// ID.
    pub ar_id: Signal<In, Bits<8>>,
    /// There is a request.
    pub ar_valid: Signal<In, Bit>,
    /// It is taken at the end of this cycle.
    pub ar_ready: Signal<Out, Bit>,
    /// Data: the byte of address a is in lane a mod W/8.
    pub r_data: Signal<Out, Bits<W>>,
    /// ID of the request.
    pub r_id: Signal<Out, Bits<8>>,
    /// 0 OKAY; else an error, for this beat.
    pub r_resp: Signal<Out, Bits<2>>,
    /// Last beat of the burst.
    pub r_last: Signal<Out, Bit>,
    /// There is a beat.
    pub r_valid: Signal<Out, Bit>,
    /// It is taken at the end of this cycle.
    pub r_ready: Signal<In, Bit>,
}

/// Write side of an AXI bus of `W` bits, seen from the one who writes. All bursts have one ID: they are performed and
/// answered in order. Data of a burst may come before, with or after its address, but in the order of the addresses.
#[derive(LogicInterface, Clone, Debug, Default)]
#[join = "AxiWriteSlave"]
pub struct AxiWriteMaster<const W: usize> {
    /// Address of the first byte.
    pub aw_addr: Signal<Out, Bits<64>>,
    /// Beats minus one.
    pub aw_len: Signal<Out, Bits<8>>,
    /// There is a request.
    pub aw_valid: Signal<Out, Bit>,
    /// It is taken at the end of this cycle.
    pub aw_ready: Signal<In, Bit>,
    /// Data: the byte of address a is in lane a mod W/8.
    pub w_data: Signal<Out, Bits<W>>,
    /// Lanes to be written; the lower W/8 bits count.
    pub w_strb: Signal<Out, Bits<64>>,
    /// Last beat of the burst.
    pub w_last: Signal<Out, Bit>,
    /// There is a beat.
    pub w_valid: Signal<Out, Bit>,
    /// It is taken at the end of this cycle.
    pub w_ready: Signal<In, Bit>,
    /// 0 OKAY; else an error, for the burst.
    pub b_resp: Signal<In, Bits<2>>,
    /// A burst has been performed.
    pub b_valid: Signal<In, Bit>,
    /// The answer is taken at the end of this cycle.
    pub b_ready: Signal<Out, Bit>,
}

/// Write side of an AXI bus of `W` bits, seen from the one who is written to.
#[derive(LogicInterface, Clone, Debug, Default)]
#[join = "AxiWriteMaster"]
pub struct AxiWriteSlave<const W: usize> {
    /// Address of the first byte.
    pub aw_addr: Signal<In, Bits<64>>,
    /// Beats minus one.
    pub aw_len: Signal<In, Bits<8>>,
    /// There is a request.
    pub aw_valid: Signal<In, Bit>,
    /// It is taken at the end of this cycle.
    pub aw_ready: Signal<Out, Bit>,
    /// Data: the byte of address a is in lane a mod W/8.
    pub w_data: Signal<In, Bits<W>>,
    /// Lanes to be written; the lower W/8 bits count.
    pub w_strb: Signal<In, Bits<64>>,
    /// Last beat of the burst.
    pub w_last: Signal<In, Bit>,
    /// There is a beat.
    pub w_valid: Signal<In, Bit>,
    /// It is taken at the end of this cycle.
    pub w_ready: Signal<Out, Bit>,
    /// 0 OKAY; else an error, for the burst.
    pub b_resp: Signal<Out, Bits<2>>,
    /// A burst has been performed.
    pub b_valid: Signal<Out, Bit>,
    /// The answer is taken at the end of this cycle.
    pub b_ready: Signal<In, Bit>,
}
