//! Registers and arrays, for authors of blocks: `Reg<T>` (synchronous reset), `Arr<T, N>` and what `regs!` and
//! `dff_setup!` expand to. RustHDL's `DFF` has no reset and its arrays stop at 32 elements; these two fill the gap.
use crate::control::assign;
use crate::ir;
use crate::value::{Ex, ToEx, read};
use rust_hdl::prelude::*;
use std::ops::{Deref, DerefMut};

/// Compile-time data of a block. RustHDL's derive skips fields whose name starts with `_`; `Hidden` marks such a field
/// as a parameter and gives it `Clone`, `Debug` and `Default`. In a kernel write `self._depth.0`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hidden<T>(pub T);
impl<T> Deref for Hidden<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

/// A register with synchronous, active-high reset: at a rising edge `q` takes the reset value if `rst`, else `d`.
/// The power-up value is the reset value too. The emitter writes it as a plain Verilog register, not as a module.
#[derive(Clone, Debug, LogicBlock)]
pub struct Reg<T: Synth> {
    /// Rising-edge clock.
    pub clock: Signal<In, Clock>,
    /// Synchronous reset, active high.
    pub rst: Signal<In, Bit>,
    /// Next value.
    pub d: Signal<In, T>,
    /// Present value.
    pub q: Signal<Out, T>,
    _reset: Hidden<T>,
}
impl<T: Synth> Reg<T> {
    /// A register that resets to `value` rather than to `T::default()`.
    pub fn with_reset(value: T) -> Self {
        Reg {
            clock: Signal::default(),
            rst: Signal::default(),
            d: Signal::default(),
            q: Signal::new_with_default(value),
            _reset: Hidden(value),
        }
    }
}
impl<T: Synth> Default for Reg<T> {
    fn default() -> Self {
        Reg::with_reset(T::default())
    }
}
impl<T: Synth> Logic for Reg<T> {
    fn update(&mut self) {
        if self.clock.pos_edge() {
            self.q.next = if self.rst.val() { self._reset.0 } else { self.d.val() };
        }
    }
    fn connect(&mut self) {
        self.q.connect();
    }
    fn hdl(&self) -> Verilog {
        let init = format!("{:x}", self._reset.0.verilog());
        let states = matches!(T::descriptor().kind, TypeKind::Enum(_));
        ir::hand_over(ir::Body::Register { init: init.split("'h").last().unwrap().into(), reset: true, states })
    }
    fn timing(&self) -> Vec<TimingInfo> {
        vec![TimingInfo {
            name: "reg".into(),
            clock: "clock".into(),
            inputs: vec!["d".into(), "rst".into()],
            outputs: vec!["q".into()],
        }]
    }
}

/// An array of blocks, interfaces or signals of any length (also a const generic), with `Default`. The elements live on
/// the heap: a 512-bit `Signal` takes 1.5 KB in the Rust model. Index, iterate and take `len()` as with an array.
#[derive(Clone, Debug)]
pub struct Arr<T, const N: usize>(Box<[T]>);
impl<T, const N: usize> Arr<T, N> {
    /// Builds element `i` as `f(i)`.
    pub fn from_fn(f: impl FnMut(usize) -> T) -> Self {
        Arr((0..N).map(f).collect())
    }
}
impl<T: Default, const N: usize> Default for Arr<T, N> {
    fn default() -> Self {
        Arr::from_fn(|_| T::default())
    }
}
impl<T, const N: usize> Deref for Arr<T, N> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0
    }
}
impl<T, const N: usize> DerefMut for Arr<T, N> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}
impl<T: Block, const N: usize> Logic for Arr<T, N> {
    fn update(&mut self) {}
}
impl<T: Block, const N: usize> Block for Arr<T, N> {
    fn connect_all(&mut self) {
        self.iter_mut().for_each(Block::connect_all)
    }
    fn update_all(&mut self) {
        self.iter_mut().for_each(Block::update_all)
    }
    fn has_changed(&self) -> bool {
        self.iter().any(Block::has_changed)
    }
    fn accept(&self, name: &str, probe: &mut dyn Probe) {
        for (i, x) in self.iter().enumerate() {
            x.accept(&format!("{name}${i}"), probe)
        }
    }
}

/// A register or a (nested) array of registers: what `regs!` and `dff_setup!` accept.
#[diagnostic::on_unimplemented(message = "`{Self}` is not a register: expected `Reg`, `DFF` or an array of them")]
pub trait Cells {
    /// `Reg<T>` or `DFF<T>`.
    type Cell;
    /// Visits every register.
    fn each(&mut self, f: &mut dyn FnMut(&mut Self::Cell));
    /// Visits every register with its hardware name.
    fn each_named(&self, name: String, f: &mut dyn FnMut(&Self::Cell, String));
}
macro_rules! leaf { ($($t:ident),*) => { $(
    impl<T: Synth> Cells for $t<T> {
        type Cell = Self;
        fn each(&mut self, f: &mut dyn FnMut(&mut Self)) {
            f(self)
        }
        fn each_named(&self, name: String, f: &mut dyn FnMut(&Self, String)) {
            f(self, name)
        }
    }
)* } }
leaf!(Reg, DFF);
impl<C: Cells> Cells for [C] {
    type Cell = C::Cell;
    fn each(&mut self, f: &mut dyn FnMut(&mut C::Cell)) {
        self.iter_mut().for_each(|x| x.each(f))
    }
    fn each_named(&self, name: String, f: &mut dyn FnMut(&C::Cell, String)) {
        self.iter().enumerate().for_each(|(i, x)| x.each_named(format!("{name}${i}"), f))
    }
}
macro_rules! array { ($($t:ty),*) => { $(
    impl<C: Cells, const N: usize> Cells for $t {
        type Cell = C::Cell;
        fn each(&mut self, f: &mut dyn FnMut(&mut C::Cell)) {
            self[..].each(f)
        }
        fn each_named(&self, name: String, f: &mut dyn FnMut(&C::Cell, String)) {
            self[..].each_named(name, f)
        }
    }
)* } }
array!([C; N], Arr<C, N>);

/// `regs!` and `dff_setup!` in the three twins of a kernel: the Rust model, `connect()` and the hardware.
#[doc(hidden)]
pub mod hold {
    use super::*;
    pub fn regs<T: Synth>(r: &mut (impl Cells<Cell = Reg<T>> + ?Sized), clock: Clock, rst: bool) {
        r.each(&mut |r| {
            r.clock.next = clock;
            r.rst.next = rst;
            r.d.next = r.q.val();
        })
    }
    pub fn regs_connect<T: Synth>(r: &mut (impl Cells<Cell = Reg<T>> + ?Sized)) {
        r.each(&mut |r| {
            r.clock.connect();
            r.rst.connect();
            r.d.connect();
        })
    }
    pub fn regs_hdl<T: Synth>(
        r: &(impl Cells<Cell = Reg<T>> + ?Sized),
        name: String,
        clock: Ex<Clock>,
        rst: impl ToEx<bool>,
    ) {
        let rst = rst.to_ex();
        r.each_named(name, &mut |r, n| {
            assign(&r.clock, format!("{n}$clock"), clock);
            assign(&r.rst, format!("{n}$rst"), rst);
            assign(&r.d, format!("{n}$d"), read(&r.q, format!("{n}$q")));
        })
    }
    pub fn dffs<T: Synth>(r: &mut (impl Cells<Cell = DFF<T>> + ?Sized), clock: Clock) {
        r.each(&mut |r| {
            r.clock.next = clock;
            r.d.next = r.q.val();
        })
    }
    pub fn dffs_connect<T: Synth>(r: &mut (impl Cells<Cell = DFF<T>> + ?Sized)) {
        r.each(&mut |r| {
            r.clock.connect();
            r.d.connect();
        })
    }
    pub fn dffs_hdl<T: Synth>(r: &(impl Cells<Cell = DFF<T>> + ?Sized), name: String, clock: Ex<Clock>) {
        r.each_named(name, &mut |r, n| {
            assign(&r.clock, format!("{n}$clock"), clock);
            assign(&r.d, format!("{n}$d"), read(&r.q, format!("{n}$q")));
        })
    }
}
