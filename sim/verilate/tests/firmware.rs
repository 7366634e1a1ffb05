//! The real firmware image on the real core, with a memory modelled here: it starts and does not trap.

use std::fs;
use verilate::{Model, Options, PortInfo, firmware_image, picorv32_source};

#[test]
fn the_image_starts_on_the_core() {
    let text = "module top(input clock, input resetn, input mem_ready, input [31:0] mem_rdata, output trap,
            output mem_valid, output [31:0] mem_addr, output [31:0] mem_wdata, output [3:0] mem_wstrb);
        picorv32 #(.ENABLE_MUL(1), .ENABLE_DIV(1)) core(.clk(clock), .resetn(resetn), .trap(trap),
            .mem_valid(mem_valid), .mem_ready(mem_ready), .mem_addr(mem_addr), .mem_wdata(mem_wdata),
            .mem_wstrb(mem_wstrb), .mem_rdata(mem_rdata), .irq(32'd0), .pcpi_wr(1'b0), .pcpi_rd(32'd0),
            .pcpi_wait(1'b0), .pcpi_ready(1'b0));
        endmodule";
    let (input, output) = (PortInfo::input, PortInfo::output);
    let ports = [
        input("clock", 1),
        input("resetn", 1),
        input("mem_ready", 1),
        input("mem_rdata", 32),
        output("trap", 1),
        output("mem_valid", 1),
        output("mem_addr", 32),
        output("mem_wdata", 32),
        output("mem_wstrb", 4),
    ];
    let sources = vec![picorv32_source().unwrap()];
    let options = Options { name: Some("picorv32".into()), sources, waive: vec!["PINMISSING"], ..Options::default() };
    let mut m = Model::from_verilog(text, &ports, options).unwrap();

    let mut memory = fs::read(firmware_image().unwrap()).unwrap();
    let code = 0..memory.len() as u64;
    memory.resize(64 << 10, 0xff); // what the image does not fill is not zero after power-up
    (0..4).for_each(|_| m.tick());
    m.set("resetn", 1);
    m.set("mem_ready", 1);
    let mut fetches = 0;
    for cycle in 0..20_000 {
        m.eval();
        let address = m.get("mem_addr") as usize;
        // Only the RAM is modelled: anything else reads as zero.
        if m.bit("mem_valid") {
            let word = memory.get_mut(address..address + 4);
            let strobe = m.get("mem_wstrb");
            fetches += u64::from(strobe == 0 && code.contains(&(address as u64)));
            m.set("mem_rdata", word.as_ref().map_or(0, |w| u32::from_le_bytes((&**w).try_into().unwrap()).into()));
            for (lane, byte) in word.into_iter().flatten().enumerate().filter(|(lane, _)| strobe >> lane & 1 == 1) {
                *byte = (m.get("mem_wdata") >> (8 * lane)) as u8;
            }
        }
        m.tick();
        assert!(!m.bit("trap"), "trap in cycle {cycle}");
    }
    assert!(fetches > 1000, "{fetches} fetches");
}
