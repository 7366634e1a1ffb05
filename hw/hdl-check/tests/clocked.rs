//! Clocked kernels: state machines, struct registers, arrays of registers and blocks, RAMs, interfaces; the Rust model
//! against Verilog.
use hdl::prelude::*;
use hdl_check::{Randomize, clocked};
use rand::RngExt as _;

const RC_ACK: u8 = 0x11;
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Inner {
    pub x: Bits<8>,
    pub ok: Bit,
    pub y: Bits<7>,
}
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Outer {
    pub a: Bits<4>,
    pub i: Inner,
    pub b: Bits<12>,
    pub j: Inner,
}
#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
pub enum St {
    Idle,
    Run,
    Wait,
    Stop,
    Bad,
}
#[hdl_fn]
fn mk(x: Bits<8>, ok: bool) -> Inner {
    Inner { x, ok, y: x.get_bits::<7>(1) }
}

#[derive(LogicBlock, Default)]
struct Fifo1<T: Synth, const D: usize> {
    pub clock: Signal<In, Clock>,
    pub push: Signal<In, Bit>,
    pub din: Signal<In, T>,
    pub dout: Signal<Out, T>,
    pub full: Signal<Out, Bit>,
    pub cnt: Signal<Out, Bits<8>>,
    v: DFF<T>,
    f: DFF<Bit>,
    n: DFF<Bits<8>>,
}
impl<T: Synth, const D: usize> Logic for Fifo1<T, D> {
    #[kernel]
    fn update(&mut self) {
        dff_setup!(self, clock, v, f, n);
        self.dout.next = self.v.q.val();
        self.full.next = self.f.q.val();
        self.cnt.next = self.n.q.val();
        if self.push.val() {
            self.v.d.next = self.din.val();
            self.f.d.next = !self.f.q.val();
            self.n.d.next = if self.n.q.val() == D { 0.into() } else { self.n.q.val() + 1 };
        }
    }
}

#[derive(LogicBlock, Default)]
struct Machine {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    pub go: Signal<In, Bit>,
    pub a: Signal<In, Bits<24>>,
    pub op: Signal<In, Bits<8>>,
    pub o: Signal<Out, Bits<24>>,
    pub oo: Signal<Out, Outer>,
    pub os: Signal<Out, Bits<4>>,
    pub oq: Signal<Out, Bits<8>>,
    pub of: Signal<Out, Inner>,
    pub ocnt: Signal<Out, Bits<8>>,
    st: DFF<St>,
    r: DFF<Outer>,
    acc: DFF<Bits<24>>,
    lane: [Fifo1<Inner, 5>; 3],
    sh: [[DFF<Bits<8>>; 2]; 2],
    sel: DFF<Bits<2>>,
}
impl Logic for Machine {
    #[kernel]
    fn update(&mut self) {
        dff_setup!(self, clock, st, r, acc, sel);
        for i in 0..3 {
            self.lane[i].clock.next = self.clock.val();
            self.lane[i].push.next = self.go.val() && self.sel.q.val() == i.to_bits();
            self.lane[i].din.next = mk(self.op.val(), self.rst.val());
            self.lane[i].din.next.y = i.to_bits();
        }
        for i in 0..=1 {
            for j in 0..=1 {
                self.sh[i][j].clock.next = self.clock.val();
                self.sh[i][j].d.next =
                    if j == 0 { self.op.val() } else { self.sh[i][0].q.val() + self.sh[1 - i][1].q.val() };
            }
        }
        self.sel.d.next = if self.sel.q.val() == 2 { 0.into() } else { self.sel.q.val() + 1 };
        let st = self.st.q.val();
        match st {
            St::Idle => {
                if self.go.val() {
                    self.st.d.next = St::Run;
                    self.r.d.next.b = self.a.val().get_bits::<12>(0);
                }
            }
            St::Run => {
                self.acc.d.next = self.acc.q.val() + self.a.val();
                self.r.d.next.i.x = self.op.val();
                if self.op.val().get_bit(0) {
                    self.st.d.next = St::Wait;
                } else if self.op.val() == RC_ACK {
                    self.st.d.next = St::Stop;
                }
            }
            St::Wait => {
                self.r.d.next.j = self.lane[1].dout.val();
                self.st.d.next = match self.op.val() {
                    0 => St::Idle,
                    _ => St::Stop,
                };
            }
            St::Stop | St::Bad => self.st.d.next = St::Idle,
        }
        if self.rst.val() {
            self.st.d.next = St::Idle;
            self.acc.d.next = 0.into();
            self.r.d.next = Outer {
                a: 3.into(),
                i: mk(1.into(), true),
                b: 0.into(),
                j: Inner { x: 0.into(), ok: false, y: 0.into() },
            };
        }
        self.o.next = self.acc.q.val();
        self.oo.next = self.r.q.val();
        self.os.next = match st {
            St::Idle => bits::<4>(1),
            St::Run => 2.into(),
            St::Wait => 4.into(),
            St::Stop => 8.into(),
            St::Bad => 0.into(),
        };
        self.oq.next = self.sh[0][1].q.val() ^ self.sh[1][1].q.val();
        self.of.next = self.lane[2].dout.val();
        self.ocnt.next = self.lane[0].cnt.val() + self.lane[1].cnt.val() + self.lane[2].cnt.val();
    }
}

#[test]
fn machine() {
    clocked(
        Machine::default,
        3000,
        |u, r| {
            u.a.randomize(r);
            u.op.randomize(r);
            u.go.randomize(r);
            u.rst.next = r.random_bool(0.02);
            if r.random_bool(0.2) {
                u.op.next = 0x11.into()
            }
        },
        |u| &mut u.clock,
    )
}

#[derive(LogicInterface, Clone, Debug, Default)]
#[join = "AxisSink"]
pub struct AxisSource<const D: usize, const K: usize> {
    pub tdata: Signal<Out, Bits<D>>,
    pub tkeep: Signal<Out, Bits<K>>,
    pub tvalid: Signal<Out, Bit>,
    pub tlast: Signal<Out, Bit>,
    pub tready: Signal<In, Bit>,
}
#[derive(LogicInterface, Clone, Debug, Default)]
#[join = "AxisSource"]
pub struct AxisSink<const D: usize, const K: usize> {
    pub tdata: Signal<In, Bits<D>>,
    pub tkeep: Signal<In, Bits<K>>,
    pub tvalid: Signal<In, Bit>,
    pub tlast: Signal<In, Bit>,
    pub tready: Signal<Out, Bit>,
}
#[derive(LogicBlock, Default)]
pub struct Slice<const D: usize, const K: usize> {
    pub clock: Signal<In, Clock>,
    pub s: AxisSink<D, K>,
    pub m: AxisSource<D, K>,
    d: DFF<Bits<D>>,
    k: DFF<Bits<K>>,
    l: DFF<Bit>,
    v: DFF<Bit>,
}
impl<const D: usize, const K: usize> Logic for Slice<D, K> {
    #[kernel]
    fn update(&mut self) {
        dff_setup!(self, clock, d, k, l, v);
        let ready = self.m.tready.val() || !self.v.q.val();
        self.s.tready.next = ready;
        if ready {
            self.d.d.next = self.s.tdata.val() + (D as u64);
            self.k.d.next = self.s.tkeep.val();
            self.l.d.next = self.s.tlast.val();
            self.v.d.next = self.s.tvalid.val();
        }
        self.m.tdata.next = self.d.q.val();
        self.m.tkeep.next = self.k.q.val();
        self.m.tlast.next = self.l.q.val();
        self.m.tvalid.next = self.v.q.val();
    }
}
#[derive(LogicBlock, Default)]
pub struct Chain {
    pub clock: Signal<In, Clock>,
    pub s: [AxisSink<40, 5>; 2],
    pub m: [AxisSource<40, 5>; 2],
    a: [Slice<40, 5>; 2],
    b: Slice<40, 5>,
    c: Slice<40, 5>,
}
impl Logic for Chain {
    #[kernel]
    fn update(&mut self) {
        clock!(self, clock, b, c);
        for i in 0..2 {
            self.a[i].clock.next = self.clock.val();
        }
        AxisSink::<40, 5>::link(&mut self.s[0], &mut self.a[0].s);
        AxisSink::<40, 5>::link(&mut self.s[1], &mut self.a[1].s);
        AxisSource::<40, 5>::join(&mut self.a[0].m, &mut self.b.s);
        AxisSource::<40, 5>::join(&mut self.a[1].m, &mut self.c.s);
        AxisSource::<40, 5>::link(&mut self.m[0], &mut self.b.m);
        AxisSource::<40, 5>::link(&mut self.m[1], &mut self.c.m);
    }
}

#[test]
fn interfaces() {
    clocked(
        Chain::default,
        1500,
        |u, r| {
            for i in 0..2 {
                u.s[i].tdata.randomize(r);
                u.s[i].tkeep.randomize(r);
                u.s[i].tvalid.randomize(r);
                u.s[i].tlast.randomize(r);
                u.m[i].tready.randomize(r);
            }
        },
        |u| &mut u.clock,
    )
}

/// A register file, RAMs of both kinds, registers with reset values.
#[derive(LogicBlock)]
struct Memories {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    pub we: Signal<In, Bits<4>>,
    pub write: Signal<In, Bits<3>>,
    pub read: Signal<In, Bits<3>>,
    pub data: Signal<In, Bits<32>>,
    pub file: Signal<Out, Bits<32>>,
    pub plain: Signal<Out, Inner>,
    pub late: Signal<Out, Bits<32>>,
    pub lanes: Signal<Out, Bits<32>>,
    pub few: Signal<Out, Bits<32>>,
    pub few_lanes: Signal<Out, Bits<32>>,
    pub count: Signal<Out, Bits<8>>,
    regs: Arr<Reg<Bits<32>>, 8>,
    counter: Reg<Bits<8>>,
    ram: Ram<Inner, 3>,
    ram_late: Ram<Bits<32>, 3>,
    ram_lanes: RamBe<32, 3, 4>,
    ram_few: Ram<Bits<32>, 24>,
    ram_few_lanes: RamBe<32, 20, 64>,
}
impl Default for Memories {
    fn default() -> Self {
        Memories {
            clock: Default::default(),
            rst: Default::default(),
            we: Default::default(),
            write: Default::default(),
            read: Default::default(),
            data: Default::default(),
            file: Default::default(),
            plain: Default::default(),
            late: Default::default(),
            lanes: Default::default(),
            few: Default::default(),
            few_lanes: Default::default(),
            count: Default::default(),
            regs: Default::default(),
            counter: Reg::with_reset(0xa5.into()),
            ram: Default::default(),
            ram_late: Ram::default().registered(),
            ram_lanes: RamBe::default().style("distributed"),
            ram_few: Ram::default().rows(4).style("distributed").at_once(),
            ram_few_lanes: RamBe::default().rows(4).lanes_of(8).registered(),
        }
    }
}
impl Logic for Memories {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, regs, counter);
        clock!(self, clock, ram, ram_late, ram_lanes, ram_few, ram_few_lanes);
        let (write, read, data) = (self.write.val(), self.read.val(), self.data.val());
        let we = self.we.val();
        if we.any() {
            self.regs[write.index()].d.next = data;
        }
        self.file.next = self.regs[read.index()].q.val();
        self.counter.d.next = self.counter.q.val() + 3;
        self.count.next = self.counter.q.val();
        // reading what is being written is undefined
        let re = we.get_bit(3) && read != write;
        self.ram.we.next = we.get_bit(0);
        self.ram.waddr.next = write;
        self.ram.wdata.next = unpack::<Inner>(data.get_bits::<16>(0));
        self.ram.re.next = re;
        self.ram.raddr.next = read;
        self.plain.next = self.ram.rdata.val();
        self.ram_late.we.next = we.get_bit(0);
        self.ram_late.waddr.next = write;
        self.ram_late.wdata.next = data;
        self.ram_late.re.next = re;
        self.ram_late.raddr.next = read;
        self.late.next = self.ram_late.rdata.val();
        self.ram_lanes.we.next = we;
        self.ram_lanes.waddr.next = write;
        self.ram_lanes.wdata.next = data;
        self.ram_lanes.re.next = re;
        self.ram_lanes.raddr.next = read;
        self.lanes.next = self.ram_lanes.rdata.val();
        // four rows: upper address bits are ignored
        self.ram_few.we.next = we.get_bit(1);
        self.ram_few.waddr.next = write.cast::<24>();
        self.ram_few.wdata.next = data;
        self.ram_few.re.next = we.get_bit(3);
        self.ram_few.raddr.next = read.cast::<24>();
        self.few.next = self.ram_few.rdata.val();
        self.ram_few_lanes.we.next = we.cast::<64>();
        self.ram_few_lanes.waddr.next = write.cast::<20>();
        self.ram_few_lanes.wdata.next = data;
        self.ram_few_lanes.re.next = we.get_bit(3) && read.get_bits::<2>(0) != write.get_bits::<2>(0);
        self.ram_few_lanes.raddr.next = read.cast::<20>();
        self.few_lanes.next = self.ram_few_lanes.rdata.val();
    }
}

#[test]
fn memories() {
    clocked(
        Memories::default,
        2000,
        |u, r| {
            u.we.randomize(r);
            u.write.randomize(r);
            u.read.randomize(r);
            u.data.randomize(r);
            u.rst.next = r.random_bool(0.02);
        },
        |u| &mut u.clock,
    )
}
