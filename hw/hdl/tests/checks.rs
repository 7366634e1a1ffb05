//! Circuits that `emit` refuses: each message names the Rust line and the signal.
use hdl::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

#[derive(LogicBlock, Default)]
struct Child {
    pub x: Signal<In, Bits<8>>,
    pub y: Signal<Out, Bits<8>>,
}
impl Logic for Child {
    #[kernel]
    fn update(&mut self) {
        self.y.next = self.x.val();
    }
}
#[hdl_fn]
fn too_far(x: Bits<8>, at: usize) -> Bits<4> {
    x.get_bits::<4>(at)
}

/// A block around a kernel, and what emission says about it.
macro_rules! refused {
    ($name:ident, [$($part:literal),*], $update:item) => {
        #[test]
        fn $name() {
            #[derive(LogicBlock, Default)]
            struct Bad {
                pub a: Signal<In, Bits<8>>,
                pub c: Signal<In, Bit>,
                pub arr: [Signal<In, Bits<8>>; 4],
                pub o: Signal<Out, Bits<8>>,
                pub w: Signal<Out, Bits<16>>,
                t: Signal<Local, Bits<8>>,
                child: Child,
            }
            impl Logic for Bad {
                #[kernel]
                $update
            }
            let message = message(|| hdl::emit(&Bad::default(), "bad"));
            for part in ["hw/hdl/tests/checks.rs", $($part),*] {
                assert!(message.contains(part), "no `{part}` in: {message}")
            }
        }
    };
}
fn message(f: impl FnOnce() -> String) -> String {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(text) => panic!("was emitted:\n{text}"),
        Err(e) => e.downcast_ref::<String>().cloned().or(e.downcast_ref::<&str>().map(|s| s.to_string())).unwrap(),
    }
}

refused!(
    latch,
    ["`o` is not assigned on every path", "latch"],
    fn update(&mut self) {
        if self.c.val() {
            self.o.next = self.a.val();
        }
        self.w.next = 1.into();
        self.t.next = 0.into();
        self.child.x.next = 0.into();
    }
);
refused!(
    latch_of_some_bits,
    ["`w` is not assigned on every path (bits 15..12, 3..0)"],
    fn update(&mut self) {
        self.o.next = self.a.val();
        self.w.next.set_bits::<8>(4, self.a.val());
        self.t.next = 0.into();
        self.child.x.next = 0.into();
    }
);
refused!(
    latch_in_one_arm,
    ["`o` is not assigned on every path"],
    fn update(&mut self) {
        match self.a.val() {
            0 => self.o.next = 1.into(),
            1 => {}
            _ => self.o.next = 2.into(),
        }
        self.w.next = 1.into();
        self.t.next = 0.into();
        self.child.x.next = 0.into();
    }
);
refused!(
    read_before_written,
    ["`t` is read before it is written"],
    fn update(&mut self) {
        let x = self.t.val();
        self.t.next = 1.into();
        self.o.next = x;
        self.w.next = 1.into();
        self.child.x.next = 0.into();
    }
);
refused!(
    read_on_the_other_path,
    ["`t` is read before it is written"],
    fn update(&mut self) {
        self.o.next = 0.into();
        if self.c.val() {
            self.t.next = self.a.val();
        } else {
            self.o.next = self.t.val();
            self.t.next = 0.into();
        }
        self.w.next = 1.into();
        self.child.x.next = 0.into();
    }
);
refused!(
    undriven,
    ["`child$x`, an input of a sub-block, is not driven", "output `w` is never assigned"],
    fn update(&mut self) {
        self.o.next = self.a.val();
        self.t.next = 0.into();
    }
);
refused!(
    input_assigned,
    ["`a` is an input of this block"],
    fn update(&mut self) {
        self.a.next = 1.into();
        self.o.next = self.a.val();
        self.w.next = 1.into();
        self.t.next = 0.into();
        self.child.x.next = 0.into();
    }
);
refused!(
    input_of_child_read,
    ["`child$x`, an input of a sub-block, is read back"],
    fn update(&mut self) {
        self.child.x.next = self.a.val();
        self.o.next = self.child.x.val();
        self.w.next = 1.into();
        self.t.next = 0.into();
    }
);
refused!(
    output_of_child_assigned,
    ["`child$y` is an output of a sub-block"],
    fn update(&mut self) {
        self.child.x.next = self.a.val();
        self.child.y.next = self.a.val();
        self.o.next = self.a.val();
        self.w.next = 1.into();
        self.t.next = 0.into();
    }
);
refused!(
    constant_too_large,
    [": constant 0x12c does not fit Bits<8>"],
    fn update(&mut self) {
        self.o.next = self.a.val() + 300;
    }
);
refused!(
    slice_outside,
    ["bits 4..12 of a 8-bit value"],
    fn update(&mut self) {
        self.o.next = self.a.val().get_bits::<8>(4);
    }
);
refused!(
    slice_outside_in_a_function,
    ["bits 6..10 of a 8-bit value", "in `too_far`, called at hw/hdl/tests/checks.rs:"],
    fn update(&mut self) {
        self.o.next = too_far(self.a.val(), 6).cast::<8>();
    }
);
refused!(
    index_outside,
    ["index 4 of an array of 4"],
    fn update(&mut self) {
        for i in 0..5 {
            self.o.next = self.arr[i].val();
        }
    }
);

#[test]
fn one_name_twice() {
    #[derive(LogicBlock, Default)]
    struct Clash {
        pub child_x: Signal<Out, Bits<8>>,
        child: Child,
    }
    impl Logic for Clash {
        #[kernel]
        fn update(&mut self) {
            self.child.x.next = self.child.y.val() + 1;
            self.child_x.next = self.child.y.val();
        }
    }
    let m = message(|| hdl::emit(&Clash::default(), "clash"));
    assert!(m.contains("both called `child_x` in Verilog"), "{m}");
}
#[test]
fn stock_kernels() {
    #[derive(LogicBlock, Default)]
    struct Stock {
        pub a: Signal<In, Bits<8>>,
        pub o: Signal<Out, Bits<8>>,
    }
    impl Logic for Stock {
        #[hdl_gen]
        fn update(&mut self) {
            self.o.next = self.a.val();
        }
    }
    assert!(message(|| hdl::emit(&Stock::default(), "stock")).contains("use #[kernel]"));
}
