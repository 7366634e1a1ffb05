//! A second opinion on the emitted text: Yosys reads the whole core, and finds no latches, loops, or wires with two drivers or none.

#[test]
fn yosys_reads_the_core() {
    let Some(mut yosys) = verilate::yosys() else { return };
    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    std::fs::write(dir.join("core.sv"), testbed::core_verilog(64, 32).unwrap()).unwrap();
    std::fs::copy(verilate::picorv32_source().unwrap(), dir.join("picorv32.v")).unwrap();
    let script = "read_verilog -sv core.sv; read_verilog picorv32.v; hierarchy -check -top top; proc; \
                  select -assert-none t:$dlatch; check -assert";
    let out = yosys.current_dir(dir).args(["-q", "-p", script]).output().unwrap();
    let text = [out.stdout, out.stderr].map(|t| String::from_utf8_lossy(&t).into_owned()).concat();
    assert!(out.status.success(), "{text}");
}
