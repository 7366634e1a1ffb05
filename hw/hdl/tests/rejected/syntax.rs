//! What has no hardware meaning: refused by `#[kernel]`, each at its own place.
use hdl::prelude::*;

#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct P {
    x: Bits<8>,
    y: Bits<8>,
}
fn helper(x: Bits<8>) -> Bits<8> {
    x + 1
}
/// A block around a kernel.
macro_rules! block {
    ($name:ident $update:item) => {
        #[derive(LogicBlock, Default)]
        struct $name {
            pub clock: Signal<In, Clock>,
            pub a: Signal<In, Bits<8>>,
            pub c: Signal<In, Bit>,
            pub arr: [Signal<In, Bits<8>>; 4],
            pub o: Signal<Out, Bits<8>>,
            pub w: Signal<Out, Bits<16>>,
            pub p: Signal<Out, P>,
            r: Reg<Bits<8>>,
        }
        impl Logic for $name {
            #[kernel]
            $update
        }
    };
}
block! { While
    fn update(&mut self) {
        while self.c.val() { self.o.next = self.a.val(); }
    }
}
block! { Loop
    fn update(&mut self) {
        loop { self.o.next = self.a.val(); }
    }
}
block! { Return
    fn update(&mut self) {
        if self.c.val() { return; } self.o.next = self.a.val();
    }
}
block! { Break
    fn update(&mut self) {
        for i in 0..3 { if self.c.val() { break; } self.o.next = self.a.val(); }
    }
}
block! { Closure
    fn update(&mut self) {
        let f = |x: Bits<8>| x + 1; self.o.next = f(self.a.val());
    }
}
block! { IfLet
    fn update(&mut self) {
        if let 3 = 3 { self.o.next = self.a.val(); }
    }
}
block! { LetElse
    fn update(&mut self) {
        let 3 = 3 else { panic!() }; self.o.next = self.a.val();
    }
}
block! { LetWithoutValue
    fn update(&mut self) {
        let x; x = self.a.val(); self.o.next = x;
    }
}
block! { LetPattern
    fn update(&mut self) {
        let Some(x) = Some(3); self.o.next = self.a.val();
    }
}
block! { Guard
    fn update(&mut self) {
        self.o.next = match self.a.val() { 0 if self.c.val() => bits::<8>(1), _ => bits::<8>(2) };
    }
}
block! { BindingPattern
    fn update(&mut self) {
        self.o.next = match self.a.val() { x => x };
    }
}
block! { SmallConstant
    fn update(&mut self) {
        const k: u8 = 3; self.o.next = match self.a.val() { k => bits::<8>(1), _ => bits::<8>(2) };
    }
}
block! { RangePattern
    fn update(&mut self) {
        self.o.next = match self.a.val() { 0..=3 => bits::<8>(1), _ => bits::<8>(2) };
    }
}
block! { TextPattern
    fn update(&mut self) {
        self.o.next = match self.a.val() { "x" => bits::<8>(1), _ => bits::<8>(2) };
    }
}
block! { NoDefault
    fn update(&mut self) {
        match self.a.val() { 0 => self.o.next = 1.into(), 1 => self.o.next = 2.into() }
    }
}
block! { ArmAfterDefault
    fn update(&mut self) {
        match self.a.val() { _ => self.o.next = 1.into(), 1 => self.o.next = 2.into() }
    }
}
block! { ReadOfNext
    fn update(&mut self) {
        self.o.next = self.w.next.get_bits::<8>(0);
    }
}
block! { NoVal
    fn update(&mut self) {
        self.o.next = self.a;
    }
}
block! { ValAssigned
    fn update(&mut self) {
        self.o.val = self.a.val();
    }
}
block! { ValWithArgument
    fn update(&mut self) {
        self.o.next = self.a.val(3);
    }
}
block! { SelfValue
    fn update(&mut self) {
        self.o.next = self;
    }
}
block! { MutableInteger
    fn update(&mut self) {
        let mut k: usize = 0; k = 1; self.o.next = self.arr[k].val();
    }
}
block! { Method
    fn update(&mut self) {
        self.o.next = self.helper(self.a.val());
    }
}
block! { ElabOfASignal
    fn update(&mut self) {
        self.o.next = bits::<8>(elab!(self.a.val().to_u64()));
    }
}
block! { SignalInAnExpression
    fn update(&mut self) {
        let x = { self.o.next = self.a.val(); self.a.val() }; self.w.next = x.cast::<16>();
    }
}
block! { OuterVariableInAnExpression
    fn update(&mut self) {
        let mut x = self.a.val(); self.o.next = x + { x = x + 1; x };
    }
}
block! { IfWithoutElse
    fn update(&mut self) {
        let x = if self.c.val() { self.a.val() }; self.o.next = self.a.val();
    }
}
block! { BlockWithoutValue
    fn update(&mut self) {
        let x = { self.a.val(); }; self.o.next = self.a.val();
    }
}
block! { Macro
    fn update(&mut self) {
        println!("x"); self.o.next = self.a.val();
    }
}
block! { MacroAsValue
    fn update(&mut self) {
        self.o.next = vec![1];
    }
}
block! { Reference
    fn update(&mut self) {
        let x = &self.a.val(); self.o.next = x;
    }
}
block! { Dereference
    fn update(&mut self) {
        self.o.next = *self.a.val();
    }
}
block! { Item
    fn update(&mut self) {
        fn f() {} self.o.next = self.a.val();
    }
}
block! { Label
    fn update(&mut self) {
        'l: for i in 0..3 { self.o.next = self.a.val(); }
    }
}
block! { Statement
    fn update(&mut self) {
        self.a.val().any(); self.o.next = self.a.val();
    }
}
block! { PlainCall
    fn update(&mut self) {
        helper(self.a.val()); self.o.next = self.a.val();
    }
}
block! { LinkOfAValue
    fn update(&mut self) {
        Source::link(&self.a, &mut self.o); self.o.next = self.a.val();
    }
}
block! { SetBitsOfAValue
    fn update(&mut self) {
        self.a.val().set_bits::<2>(0, bits::<2>(1)); self.o.next = self.a.val();
    }
}
block! { Base
    fn update(&mut self) {
        self.p.next = P { x: self.a.val(), ..self.p.val() }; self.o.next = self.a.val();
    }
}
block! { Text
    fn update(&mut self) {
        self.o.next = "x";
    }
}
block! { EmptyCat
    fn update(&mut self) {
        self.o.next = cat!();
    }
}
block! { RegsWithoutReset
    fn update(&mut self) {
        regs!(self, clock, r); self.o.next = self.a.val();
    }
}
block! { Async
    fn update(&mut self) {
        self.o.next = async { 3 };
    }
}

block! { WildInsideAPattern
    fn update(&mut self) {
        self.o.next = match self.a.val() { 1 | _ => bits::<8>(1), _ => bits::<8>(2) };
    }
}
block! { NestedTupleLet
    fn update(&mut self) {
        let (x, (y, z)) = split(self.a.val()); self.o.next = x;
    }
}
block! { LinkInAnExpression
    fn update(&mut self) {
        self.o.next = { clock_reset!(self, clock, c, r); Source::link(&mut self.a, &mut self.o); self.a.val() };
    }
}
block! { CompoundAssignmentOfASignal
    fn update(&mut self) {
        self.o.next += self.a.val();
    }
}
block! { SetBitsWithoutNext
    fn update(&mut self) {
        self.o.set_bits::<2>(0, bits::<2>(1)); self.o.next = self.a.val();
    }
}
block! { NextOfAVariable
    fn update(&mut self) {
        let mut x = self.a.val(); x.next = self.a.val(); self.o.next = x;
    }
}
block! { TupleField
    fn update(&mut self) {
        self.p.next.0 = self.a.val(); self.o.next = self.a.val();
    }
}
block! { AssignmentToACall
    fn update(&mut self) {
        f() = self.a.val(); self.o.next = self.a.val();
    }
}
block! { SetupOfAValue
    fn update(&mut self) {
        dff_setup!(self, clock, a + 1); self.o.next = self.a.val();
    }
}
block! { AssignmentAsValue
    fn update(&mut self) {
        let mut x = self.a.val(); self.o.next = (x = self.a.val());
    }
}
block! { CompoundAssignmentAsValue
    fn update(&mut self) {
        let mut x = self.a.val(); self.o.next = (x += 1);
    }
}
block! { ValOfAVariable
    fn update(&mut self) {
        let x = self.a.val(); self.o.next = x.val();
    }
}
block! { CallOfAValue
    fn update(&mut self) {
        self.o.next = (self.arr[0].val())(1);
    }
}
block! { NumberedField
    fn update(&mut self) {
        self.p.next = P { 0: self.a.val(), y: self.a.val() }; self.o.next = self.a.val();
    }
}
block! { JumpInAValue
    fn update(&mut self) {
        self.o.next = if self.c.val() { return } else { self.a.val() };
    }
}
#[hdl_fn(fast)]
fn function_with_arguments(x: Bits<8>) -> Bits<8> {
    x
}
#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
struct NoEnum {
    x: Bits<3>,
}
impl P {
    #[hdl_fn]
    fn method(self) -> Bits<8> {
        self.x
    }
}
struct WithArguments;
impl WithArguments {
    #[kernel(fast)]
    fn update(&mut self) {}
}

#[hdl_fn]
fn no_result(x: Bits<8>) {}
#[hdl_fn]
fn mutable_argument(mut x: Bits<8>) -> Bits<8> {
    x
}
#[hdl_fn]
fn pattern_argument((x, y): (Bits<8>, Bits<8>)) -> Bits<8> {
    x
}
#[hdl_fn]
fn reference_argument(x: &Bits<8>) -> Bits<8> {
    x
}
#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
enum One {
    Only,
}
#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
enum Data {
    A(u8),
    B,
}
#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
enum Numbered {
    A = 3,
    B,
}
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Tuple(Bits<3>);
struct Elsewhere;
impl Elsewhere {
    #[kernel]
    fn other(&self) {}
}

fn main() {}
