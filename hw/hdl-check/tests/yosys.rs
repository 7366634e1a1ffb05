//! What Yosys makes of our Verilog: no latches, and RAMs that become block RAMs.
use hdl::prelude::*;
use std::path::Path;

#[derive(LogicBlock)]
struct Rams {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    pub we: Signal<In, Bits<64>>,
    pub waddr: Signal<In, Bits<9>>,
    pub raddr: Signal<In, Bits<9>>,
    pub data: Signal<In, Bits<512>>,
    pub wide: Signal<Out, Bits<512>>,
    pub lanes: Signal<Out, Bits<512>>,
    pub sum: Signal<Out, Bits<16>>,
    ram: Ram<Bits<512>, 9>,
    bytes: RamBe<512, 9, 64>,
    total: Reg<Bits<16>>,
}
impl Default for Rams {
    fn default() -> Self {
        Rams {
            clock: Default::default(),
            rst: Default::default(),
            we: Default::default(),
            waddr: Default::default(),
            raddr: Default::default(),
            data: Default::default(),
            wide: Default::default(),
            lanes: Default::default(),
            sum: Default::default(),
            ram: Ram::default().style("block"),
            bytes: RamBe::default().style("block").registered(),
            total: Default::default(),
        }
    }
}
impl Logic for Rams {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, total);
        clock!(self, clock, ram, bytes);
        self.ram.we.next = self.we.val().any();
        self.ram.waddr.next = self.waddr.val();
        self.ram.wdata.next = self.data.val();
        self.ram.re.next = true;
        self.ram.raddr.next = self.raddr.val();
        self.bytes.we.next = self.we.val();
        self.bytes.waddr.next = self.waddr.val();
        self.bytes.wdata.next = self.data.val();
        self.bytes.re.next = self.we.val().get_bit(0);
        self.bytes.raddr.next = self.raddr.val();
        self.wide.next = self.ram.rdata.val();
        self.lanes.next = self.bytes.rdata.val();
        if self.we.val().any() {
            let mut part: Bits<16> = self.data.val().get_bits::<16>(0);
            if self.rst.val() {
                part ^= self.total.q.val();
            }
            self.total.d.next = self.total.q.val() + part;
        }
        self.sum.next = self.total.q.val();
    }
}

#[test]
fn block_rams_and_no_latches() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    std::fs::write(dir.join("rams.sv"), hdl::emit(&Rams::default(), "rams")).unwrap();
    let script = "read_verilog -sv rams.sv; synth_xilinx -family xcup -top rams -flatten -run begin:map_ffs; \
                  select -assert-none t:$dlatch t:$_DLATCH_*; select -assert-count 15 t:RAMB18E2; \
                  select -assert-count 8 t:RAMB36E2; select -assert-max 700 t:$_DFF*_ t:$_SDFF*_; check -assert";
    let Some(mut yosys) = verilate::yosys() else { return };
    let out = yosys.current_dir(dir).args(["-q", "-p", script]).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{text}")
}
