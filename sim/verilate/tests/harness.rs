//! The harness against itself: ports, clock, cache, instances, messages, waves, and the proof that our flags matter.

use hdl::prelude::*;
use std::{fs, path::PathBuf, time::Instant};
use verilate::{Error, Model, Options, PortInfo, on_big_stack};

#[derive(LogicInterface, Clone, Debug, Default)]
#[join = "WordSink"]
pub struct WordSource {
    data: Signal<Out, Bits<16>>,
    valid: Signal<Out, Bit>,
}

#[derive(LogicInterface, Clone, Debug, Default)]
#[join = "WordSource"]
pub struct WordSink {
    data: Signal<In, Bits<16>>,
    valid: Signal<In, Bit>,
}

/// Adds to a sum in each cycle with `s.valid`; wide values pass through.
#[derive(LogicBlock, Default)]
struct Sum {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    pub s: WordSink,
    pub sum: Signal<Out, Bits<40>>,
    pub wide_in: Signal<In, Bits<100>>,
    pub wide_out: Signal<Out, Bits<100>>,
    acc: DFF<Bits<40>>,
}

impl Logic for Sum {
    #[kernel]
    fn update(&mut self) {
        dff_setup!(self, clock, acc);
        if self.s.valid.val() {
            self.acc.d.next = self.acc.q.val() + bit_cast::<40, 16>(self.s.data.val());
        }
        if self.rst.val() {
            self.acc.d.next = 0.into();
        }
        self.sum.next = self.acc.q.val();
        self.wide_out.next = self.wide_in.val();
    }
}

fn sum() -> Model {
    Model::of(Sum::default, Options::default()).unwrap()
}

#[test]
fn ports_of_all_widths_and_the_clock() {
    let mut m = sum();
    let (data, sum) = (m.port("s.data"), m.port("sum"));
    m.reset();
    m.set("s.valid", 1);
    for i in 0..1000 {
        m.set(data, 0xf000 + i);
        m.tick();
    }
    assert_eq!(m.get(sum), (0..1000).map(|i| 0xf000 + i).sum::<u64>());
    assert_eq!(m.cycle(), 1002);
    let wide: Vec<u8> = (1..=12).chain([0x0f]).collect();
    m.set_bytes("wide_in", &wide);
    m.eval();
    assert_eq!(m.bytes("wide_out"), wide);
    m.set("wide_in", 7);
    m.eval();
    assert_eq!(m.bytes("wide_out"), [7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn instances_are_separate_and_move_between_threads() {
    let first = sum();
    let second = first.another();
    let run = |mut m: Model, value: u64| {
        move || {
            m.set("s.valid", 1);
            m.set("s.data", value);
            (0..10_000).for_each(|_| m.tick());
            m.get("sum")
        }
    };
    let threads = [std::thread::spawn(run(first, 3)), std::thread::spawn(run(second, 5))];
    assert_eq!(threads.map(|t| t.join().unwrap()), [30_000, 50_000]);
}

#[test]
fn parallel_builds_of_one_model_share_the_work() {
    // A text of its own, so that nothing is cached on the first run of this process.
    let text = format!("// {:?}\n{NOT}", Instant::now());
    let models: Vec<_> = std::thread::scope(|scope| {
        let builds: Vec<_> = (0..4).map(|_| scope.spawn(|| not(&text, Options::default()).unwrap())).collect();
        builds.into_iter().map(|b| b.join().unwrap()).collect()
    });
    for mut m in models {
        m.eval();
        assert_eq!(m.get("y"), 0xff);
    }
}

const NOT: &str = "module top(input [7:0] a, output [7:0] y); assign y = ~a; endmodule";

fn not(text: &str, options: Options) -> Result<Model, Error> {
    Model::from_verilog(text, &[PortInfo::input("a", 8), PortInfo::output("y", 8)], options)
}

#[test]
fn correctness_lint_stops_the_build_and_says_where() {
    let latch = "module top(input [7:0] a, output reg [7:0] y); always @* if (a[0]) y = a; endmodule";
    let error = not(latch, Options::default()).err().unwrap().to_string();
    assert!(error.contains("LATCH") && error.contains("top.v"), "{error}");
    let width = "module top(input [7:0] a, output [7:0] y); assign y = a + 9'd1; endmodule";
    let error = not(width, Options::default()).err().unwrap().to_string();
    assert!(error.contains("WIDTH"), "{error}");
    not(width, Options { waive: vec!["WIDTHTRUNC", "WIDTHEXPAND"], ..Options::default() }).unwrap();
}

#[test]
fn third_party_sources_are_compiled_and_not_linted() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("third_party.v");
    fs::write(&path, "module other(input [7:0] a, output [7:0] y); assign y = a + 9'd1; endmodule").unwrap();
    let text = "module top(input [7:0] a, output [7:0] y); other o(.a(a), .y(y)); endmodule";
    let mut m = not(text, Options { sources: vec![path], ..Options::default() }).unwrap();
    m.set("a", 41);
    m.eval();
    assert_eq!(m.get("y"), 42);
}

#[test]
#[should_panic(expected = "`Sum` has no port `s.dta`; it has clock, rst, s.data")]
fn an_unknown_port_lists_the_known() {
    sum().port("s.dta");
}

#[test]
#[should_panic(expected = "0x10000 does not fit the 16 bits of s.data")]
fn a_value_too_large_is_refused() {
    sum().set("s.data", 0x10000);
}

#[test]
#[should_panic(expected = "sum is an output")]
fn an_output_is_not_written() {
    sum().set("sum", 1);
}

#[test]
fn a_port_not_in_the_text_is_an_error() {
    let error = Model::from_verilog(NOT, &[PortInfo::input("b", 8)], Options::default()).err().unwrap();
    assert!(matches!(error, Error::Port { .. }), "{error}");
}

#[test]
fn waves_and_coverage_are_written_on_demand() {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("waves");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    let wave = Some(format!("{}/", dir.display()));
    let mut m = Model::of(Sum::default, Options { wave, coverage: true, ..Options::default() }).unwrap();
    (0..10).for_each(|_| m.tick());
    m.write_coverage(&dir.join("coverage.dat"));
    drop(m.another());
    drop(m);
    let sizes: Vec<_> = fs::read_dir(&dir).unwrap().map(|f| f.unwrap().metadata().unwrap().len()).collect();
    assert!(sizes.len() == 3 && sizes.iter().all(|&size| size > 100), "{sizes:?}");
}

#[test]
fn a_panic_on_the_big_stack_passes_through() {
    let panic = std::panic::catch_unwind(|| on_big_stack(|| -> u8 { panic!("in the block") })).unwrap_err();
    assert_eq!(*panic.downcast::<&str>().unwrap(), "in the block");
    let deep = on_big_stack(|| std::hint::black_box([1u8; 64 << 20]).iter().map(|&x| u64::from(x)).sum::<u64>());
    assert_eq!(deep, 64 << 20);
}

/// Verilator 5.48 at -O3 gets 28 of these 64 cases wrong without the two flags in `compile.rs`.
#[test]
fn a_shift_of_a_shift_is_right_with_our_flags() {
    let text = "module top(input [63:0] x, input [2:0] a, input [2:0] b, \
                output [63:0] y, output [63:0] z, output [63:0] w);
                assign y = (x << a) << b; wire [63:0] m = x << a; assign z = m << b; assign w = (x >> a) >> b;
                endmodule";
    let input = PortInfo::input;
    let output = |name| PortInfo::output(name, 64);
    let ports = [input("x", 64), input("a", 3), input("b", 3), output("y"), output("z"), output("w")];
    let mut m = Model::from_verilog(text, &ports, Options::default()).unwrap();
    let x = 0x0123_4567_89ab_cdef_u64;
    m.set("x", x);
    for (a, b) in (0..8).flat_map(|a| (0..8).map(move |b| (a, b))) {
        m.set("a", a);
        m.set("b", b);
        m.eval();
        let got = ["y", "z", "w"].map(|port| m.get(port));
        assert_eq!(got, [x << a << b, x << a << b, x >> a >> b], "a={a} b={b}");
    }
}
