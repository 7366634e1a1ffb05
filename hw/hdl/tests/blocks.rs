//! The building blocks that every RTL file uses (registers, arrays, RAMs, black boxes): they emit, and the model works.
use hdl::prelude::*;

#[derive(LogicInterface, Clone, Debug, Default)]
#[join = "Sink"]
struct Source<const W: usize> {
    pub data: Signal<Out, Bits<W>>,
    pub valid: Signal<Out, Bit>,
    pub ready: Signal<In, Bit>,
}
#[derive(LogicInterface, Clone, Debug, Default)]
#[join = "Source"]
struct Sink<const W: usize> {
    pub data: Signal<In, Bits<W>>,
    pub valid: Signal<In, Bit>,
    pub ready: Signal<Out, Bit>,
}

/// One register of delay on a stream, as a block with a reset.
#[derive(LogicBlock, Default)]
struct Stage<const W: usize> {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    pub s: Sink<W>,
    pub m: Source<W>,
    valid: Reg<Bit>,
    data: DFF<Bits<W>>,
}
impl<const W: usize> Logic for Stage<W> {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, valid);
        dff_setup!(self, clock, data);
        let take = self.m.ready.val() || !self.valid.q.val();
        if take {
            self.valid.d.next = self.s.valid.val();
            self.data.d.next = self.s.data.val();
        }
        self.s.ready.next = take;
        self.m.valid.next = self.valid.q.val();
        self.m.data.next = self.data.q.val();
    }
}

#[derive(LogicBlock)]
struct Blocks {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    pub s: Sink<8>,
    pub m: Source<8>,
    pub sum: Signal<Out, Bits<16>>,
    pub word: Signal<Out, Bits<16>>,
    pub count: Signal<Out, Bits<8>>,
    stage: Arr<Stage<8>, 3>,
    shift: Arr<Reg<Bits<16>>, 40>,
    pair: [[Reg<Bit>; 2]; 2],
    counter: Reg<Bits<8>>,
    ram: Ram<Bits<16>, 5>,
    lanes: RamBe<32, 4, 4>,
    _step: Hidden<u64>,
}
impl Default for Blocks {
    fn default() -> Self {
        Blocks {
            clock: Default::default(),
            rst: Default::default(),
            s: Default::default(),
            m: Default::default(),
            sum: Default::default(),
            word: Default::default(),
            count: Default::default(),
            stage: Default::default(),
            shift: Default::default(),
            pair: Default::default(),
            counter: Reg::with_reset(0x80.into()),
            ram: Ram::default().registered().style("block"),
            lanes: Default::default(),
            _step: Hidden(3),
        }
    }
}
impl Logic for Blocks {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, shift, pair, counter);
        for i in 0..3 {
            clock_reset!(self, clock, rst, stage[i]);
        }
        clock!(self, clock, ram, lanes);
        Sink::<8>::link(&mut self.s, &mut self.stage[0].s);
        Source::<8>::link(&mut self.m, &mut self.stage[2].m);
        for i in 0..2 {
            self.stage[i + 1].s.data.next = self.stage[i].m.data.val();
            self.stage[i + 1].s.valid.next = self.stage[i].m.valid.val();
            self.stage[i].m.ready.next = self.stage[i + 1].s.ready.val();
        }
        self.pair[0][1].d.next = self.s.valid.val();
        self.pair[1][0].d.next = self.pair[0][1].q.val();
        let mut sum: Bits<16> = 0.into();
        for i in 0..40 {
            self.shift[i].d.next = if i == 0 { self.s.data.val().cast::<16>() } else { self.shift[i - 1].q.val() };
            sum += self.shift[i].q.val();
        }
        self.sum.next = sum;
        self.counter.d.next = self.counter.q.val() + self._step.0;
        self.count.next = self.counter.q.val();

        let address = self.counter.q.val().get_bits::<5>(0);
        self.ram.we.next = self.pair[1][0].q.val();
        self.ram.waddr.next = address;
        self.ram.wdata.next = sum;
        self.ram.re.next = true;
        self.ram.raddr.next = address - 4;
        self.lanes.we.next = cat!(self.pair[1][0].q.val(), false, self.pair[0][1].q.val(), true);
        self.lanes.waddr.next = address.get_bits::<4>(0);
        self.lanes.wdata.next = cat!(sum, sum);
        self.lanes.re.next = true;
        self.lanes.raddr.next = address.get_bits::<4>(1);
        self.word.next = self.ram.rdata.val() ^ self.lanes.rdata.val().get_bits::<16>(8);
    }
}

#[derive(LogicBlock, Default)]
struct Wrapped {
    pub a: Signal<In, Bits<4>>,
    pub y: Signal<Out, Bits<4>>,
}
impl Logic for Wrapped {
    fn update(&mut self) {
        self.y.next = self.a.val();
    }
    fn connect(&mut self) {
        self.y.connect();
    }
    fn hdl(&self) -> Verilog {
        let source =
            "module passer #(parameter W = 1) (input [W-1:0] in, output [W-1:0] out);\n  assign out = in;\nendmodule";
        BlackBox::new("passer").parameter("W", 4).port("a", "in").port("y", "out").source(source).instance(self)
    }
}
#[derive(LogicBlock, Default)]
struct Twice {
    pub a: Signal<In, Bits<4>>,
    pub y: Signal<Out, Bits<4>>,
    one: Wrapped,
    two: Wrapped,
}
impl Logic for Twice {
    #[kernel]
    fn update(&mut self) {
        self.one.a.next = self.a.val();
        self.two.a.next = self.one.y.val() + 1;
        self.y.next = self.two.y.val();
    }
}

#[test]
fn blocks_emit() {
    let u = Blocks::default();
    let v = hdl::emit(&u, "top");
    assert!(v.contains("always_ff @(posedge clock) if (rst) counter_q <= 8'h80; else counter_q <= counter_q + 8'd3;"));
    assert!(v.contains("ram_style = \"block\""));
    assert_eq!(v.matches("module Stage_8").count(), 1, "equal blocks are one module");
}

#[test]
fn black_box_source_once() {
    let u = Twice::default();
    let v = hdl::emit(&u, "top");
    assert!(v.contains("passer #(.W(4)) instance_ (\n    .in(a),\n    .out(y)\n  );"), "{v}");
    assert_eq!(v.matches("module passer").count(), 1);
}

#[test]
fn registers_reset_and_hold() {
    let mut u = Blocks::default();
    u.connect_all();
    assert_eq!(u.counter.q.val(), bits::<8>(0x80), "power-up value");
    let mut tick = |rst: bool| {
        u.rst.next = rst;
        assert!(simulate(&mut u, 20));
        u.clock.next = true.into();
        assert!(simulate(&mut u, 20));
        u.clock.next = false.into();
        assert!(simulate(&mut u, 20));
        u.count.val()
    };
    assert_eq!(tick(false), bits::<8>(0x83));
    assert_eq!(tick(true), bits::<8>(0x80));
}

/// A counter that knows its own text.
#[derive(LogicBlock, Default)]
struct Known<const STEP: u64> {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    pub count: Signal<Out, Bits<8>>,
    pub hash: Signal<Out, Bits<32>>,
    value: Reg<Bits<8>>,
    text: hdl::TextHash,
}
impl<const STEP: u64> Logic for Known<STEP> {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, value);
        self.value.d.next = self.value.q.val() + STEP;
        self.count.next = self.value.q.val();
        self.hash.next = self.text.value.val();
    }
}

#[test]
fn a_design_knows_the_hash_of_its_text() {
    fn text<const STEP: u64>() -> (String, String) {
        let mut block = Known::<STEP>::default();
        block.connect_all();
        let text = hdl::emit(&block, "known");
        let hash = text.split("assign value = 32'h").nth(1).unwrap()[..8].to_string();
        (text, hash)
    }
    let (one, hash) = text::<1>();
    assert_eq!(text::<1>(), (one.clone(), hash.clone()), "the same text, the same hash");
    assert_ne!(text::<3>().1, hash, "another text, another hash");
    let fnv = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3);
    let blank = one.replace(&format!("32'h{hash}"), "32'h00000000");
    let whole = blank.bytes().fold(0xcbf2_9ce4_8422_2325, fnv);
    assert_eq!(format!("{:08x}", (whole >> 32) as u32 ^ whole as u32), hash, "whoever has the text can check it");
}
