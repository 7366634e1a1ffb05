//! Random kernels, written by `build.rs`: the Rust model against Verilog. Each block mixes combinational outputs with
//! registers, structs, enums, local signals and arrays.
#![allow(unused, clippy::all)]
use hdl::prelude::*;
use rand::RngExt as _;

#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
pub enum State {
    Idle,
    Run,
    Wait,
    Hold,
    Last,
}
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Inner {
    pub psn: Bits<24>,
    pub flag: Bit,
}
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Record {
    pub small: Bits<8>,
    pub inner: Inner,
    pub state: State,
}
#[hdl_fn]
pub fn max<const N: usize>(a: Bits<N>, b: Bits<N>) -> Bits<N> {
    if a > b { a } else { b }
}
#[hdl_fn]
pub fn swap_if<const N: usize>(a: Bits<N>, b: Bits<N>, swap: bool) -> (Bits<N>, Bits<N>) {
    let low = if swap { b } else { a };
    let high = if swap { a } else { b };
    (low, high)
}

/// A block around a random kernel.
macro_rules! fuzz_block {
    ($name:ident; $($input:ident: $iw:literal),*; $($output:ident $local:ident: $ow:literal),*; $update:item) => {
        mod $name {
            use super::*;
            #[derive(LogicBlock, Default)]
            pub struct Fuzz {
                pub clock: Signal<In, Clock>,
                pub rst: Signal<In, Bit>,
                pub c: Signal<In, Bit>,
                pub d: Signal<In, Bit>,
                pub state: Signal<In, State>,
                pub record: Signal<In, Record>,
                pub lanes: [Signal<In, Bits<5>>; 4],
                $(pub $input: Signal<In, Bits<$iw>>,)*
                $(pub $output: Signal<Out, Bits<$ow>>,)*
                $($local: Signal<Local, Bits<$ow>>,)*
                machine: Reg<State>,
                kept: DFF<Record>,
                file: Arr<Reg<Bits<16>>, 8>,
                acc: [Reg<Bits<24>>; 4],
            }
            impl Logic for Fuzz {
                #[kernel]
                $update
            }
            #[test]
            fn $name() {
                let states = [State::Idle, State::Run, State::Wait, State::Hold, State::Last];
                hdl_check::clocked(Fuzz::default, 250, |u, r| {
                    use hdl_check::{Randomize, bits_of};
                    u.rst.next = r.random_bool(0.02);
                    u.c.randomize(r);
                    u.d.randomize(r);
                    u.lanes.randomize(r);
                    u.state.next = states[r.random_range(0..5)];
                    let inner = Inner { psn: bits_of(r), flag: r.random() };
                    u.record.next = Record { small: bits_of(r), inner, state: states[r.random_range(0..5)] };
                    $(u.$input.randomize(r);)*
                }, |u| &mut u.clock)
            }
        }
    };
}
include!(concat!(env!("OUT_DIR"), "/fuzz.rs"));
