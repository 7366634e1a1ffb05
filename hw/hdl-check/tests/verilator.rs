//! Verilator itself: a miscompilation that our flags avoid.
use verilate::{Model, Options, PortInfo};

/// Verilator 5.48 folds `(x << a) << b` with run-time amounts into one shift, and loses bits of `a + b` when it does:
/// 28 of 64 cases are wrong. `verilate` switches that rewrite off; this fails if a flag or a version brings it back.
#[test]
fn shifts_of_shifts() {
    let text =
        "module top(input [63:0] x, input [2:0] a, input [2:0] b, output [63:0] y, output [63:0] z, output [63:0] w);
  assign y = (x << a) << b;
  wire [63:0] m = x << a;
  assign z = m << b;
  assign w = (x >> a) >> b;
endmodule
";
    let ports = [
        PortInfo::input("x", 64),
        PortInfo::input("a", 3),
        PortInfo::input("b", 3),
        PortInfo::output("y", 64),
        PortInfo::output("z", 64),
        PortInfo::output("w", 64),
    ];
    let mut model = Model::from_verilog(text, &ports, Options::default()).unwrap_or_else(|e| panic!("{e}"));
    let x = 0x0123_4567_89ab_cdefu64;
    for (a, b) in (0..8).flat_map(|a| (0..8).map(move |b| (a, b))) {
        model.set("x", x);
        model.set("a", a);
        model.set("b", b);
        model.eval();
        let got = (model.get("y"), model.get("z"), model.get("w"));
        assert_eq!(got, (x << a << b, x << a << b, x >> a >> b), "shift by {a} and {b}");
    }
}
