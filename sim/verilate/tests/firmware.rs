//! The real firmware image on the real core; RAM, registers and the driver's memory are modelled here.

use abi::{
    Field, bar,
    cmd::{ANSWER, SLOT, answer, attr, create_cq, create_eq, create_qp, head, mcast, modify_qp as m, op, set_gid},
    mmio,
    table::{MEMBERS, id, member, qp_recv, qp_send, qp_state, qp_state_row, qp_type},
};
use std::{collections::BTreeMap, fs};
use verilate::{Model, Options, Port, PortInfo, firmware_image, picorv32_source};

/// Cycles at 250 MHz of a DMA transfer to or from the host: 600 ns.
const DMA_CYCLES: u64 = 150;
/// Cycles until all engines have taken a row, and of a drain.
const TABLE_CYCLES: u64 = 12;
const DRAIN_CYCLES: u64 = 250;
/// What src/start.rs leaves for the stack, 13 << 7, but a measure of safety.
const STACK: usize = 5 << 8;
/// Slots of the command ring, as a power of two, and its address.
const LOG2: u32 = 6;
const RING: u64 = 0x1_2345_0000;

/// The core with everything around it.
struct Machine {
    model: Model,
    ports: [Port; 6],
    ram: Vec<u8>,
    /// Registers as last written, by word.
    registers: BTreeMap<usize, u32>,
    busy_until: u64,
    rows: BTreeMap<(u8, u32), [u8; 64]>,
    host: BTreeMap<u64, u32>,
    cycle: u64,
    /// Instructions, roughly: fetches.
    fetches: u64,
    log: String,
}

impl Machine {
    /// On a card of the default sizes.
    fn start() -> Self {
        Self::on(8 | 8 << 8 | 10 << 16 | 5 << 24, 18 | 4 << 8 | 7 << 16 | 4 << 24, mmio::NEAR_BYTES)
    }

    /// On a card with these limits and so much RAM.
    fn on(limits: u32, limits2: u32, bytes: usize) -> Self {
        let text = "module top(input clock, input resetn, input mem_ready, input [31:0] mem_rdata, output trap,
                output mem_valid, output mem_instr, output [31:0] mem_addr, output [31:0] mem_wdata,
                output [3:0] mem_wstrb);
            picorv32 #(.ENABLE_MUL(1), .ENABLE_DIV(1), .BARREL_SHIFTER(1)) core(.clk(clock), .resetn(resetn),
                .trap(trap), .mem_valid(mem_valid), .mem_instr(mem_instr), .mem_ready(mem_ready),
                .mem_addr(mem_addr), .mem_wdata(mem_wdata), .mem_wstrb(mem_wstrb), .mem_rdata(mem_rdata),
                .irq(32'd0), .pcpi_wr(1'b0), .pcpi_rd(32'd0), .pcpi_wait(1'b0), .pcpi_ready(1'b0));
            endmodule";
        let (input, output) = (PortInfo::input, PortInfo::output);
        let ports = [
            input("clock", 1),
            input("resetn", 1),
            input("mem_ready", 1),
            input("mem_rdata", 32),
            output("trap", 1),
            output("mem_valid", 1),
            output("mem_instr", 1),
            output("mem_addr", 32),
            output("mem_wdata", 32),
            output("mem_wstrb", 4),
        ];
        let sources = vec![picorv32_source().unwrap()];
        let options =
            Options { name: Some("picorv32".into()), sources, waive: vec!["PINMISSING"], ..Options::default() };
        let mut model = Model::from_verilog(text, &ports, options).unwrap();
        let file = fs::read(firmware_image().unwrap()).unwrap();
        let mut ram = abi::image::open(&file).unwrap().1.to_vec();
        println!("image: {} bytes", ram.len());
        ram.resize(bytes, 0xff); // what the image does not fill is not zero after power-up
        (0..4).for_each(|_| model.tick());
        model.set("resetn", 1);
        let ports =
            ["mem_valid", "mem_addr", "mem_wdata", "mem_wstrb", "mem_rdata", "mem_ready"].map(|name| model.port(name));
        let registers = BTreeMap::from([
            (mmio::CMD_BASE, RING as u32),
            (mmio::CMD_BASE + 4, (RING >> 32) as u32),
            (mmio::CMD_LOG2, LOG2),
            (mmio::PORT, 1 | 4200 << 16),
            (mmio::LIMITS, limits),
            (mmio::RAM, bytes as u32),
            (mmio::LIMITS2, limits2),
        ]);
        Machine {
            model,
            ports,
            ram,
            registers,
            busy_until: 0,
            rows: BTreeMap::new(),
            host: BTreeMap::new(),
            cycle: 0,
            fetches: 0,
            log: String::new(),
        }
    }

    fn register(&self, offset: usize) -> u32 {
        self.registers.get(&offset).copied().unwrap_or(0)
    }

    fn read(&self, offset: usize) -> u32 {
        match offset {
            mmio::TABLE_GO | mmio::DMA_GO | mmio::MTT_GO | mmio::DRAIN_GO | mmio::EVENT_GO => {
                (self.cycle < self.busy_until).into()
            }
            _ => self.register(offset),
        }
    }

    fn write(&mut self, offset: usize, value: u32) {
        assert!(self.cycle >= self.busy_until, "write to {offset:#x} while an engine runs");
        if (mmio::LOG..mmio::LOG + bar::FW_LOG_BYTES).contains(&offset) {
            self.log += std::str::from_utf8(&value.to_le_bytes()).unwrap();
        }
        self.registers.insert(offset, value);
        let cycles = match offset {
            mmio::TABLE_GO => {
                let key = ((value & 15) as u8, value >> 8);
                for i in 0..16 {
                    let at = mmio::ROW + 4 * i;
                    if value >> 4 & 1 == 1 {
                        let word = self.register(at).to_le_bytes();
                        self.rows.entry(key).or_insert([0; 64])[4 * i..][..4].copy_from_slice(&word);
                    } else {
                        let row = self.rows.get(&key).copied().unwrap_or([0; 64]);
                        self.registers.insert(at, u32::from_le_bytes(row[4 * i..][..4].try_into().unwrap()));
                    }
                }
                TABLE_CYCLES
            }
            mmio::DMA_GO => {
                let host = self.register(mmio::DMA_HOST) as u64 | (self.register(mmio::DMA_HOST + 4) as u64) << 32;
                let local = self.register(mmio::DMA_LOCAL) as usize;
                for i in (0..(value & 0x1fff) as usize).step_by(4) {
                    let word = &mut self.ram[local + i..][..4];
                    if value >> 16 & 1 == 1 {
                        self.host.insert(host + i as u64, u32::from_le_bytes((&*word).try_into().unwrap()));
                    } else {
                        let value = self.host.get(&(host + i as u64)).copied().expect("read of unknown memory");
                        word.copy_from_slice(&value.to_le_bytes());
                    }
                }
                DMA_CYCLES
            }
            mmio::DRAIN_GO => DRAIN_CYCLES,
            _ => 0,
        };
        self.busy_until = self.cycle + cycles;
    }

    /// One cycle; RAM and registers answer in the cycle after the request.
    fn step(&mut self) {
        let [valid, address, wdata, wstrb, rdata, ready] = self.ports;
        self.model.eval();
        let answers = self.model.bit(valid) && !self.model.bit(ready);
        if answers {
            let (address, strobe) = (self.model.get(address) as usize, self.model.get(wstrb));
            let data = self.model.get(wdata) as u32;
            let mut word = 0;
            if let Some(bytes) = self.ram.get_mut(address..address + 4) {
                word = u32::from_le_bytes((&*bytes).try_into().unwrap());
                for (lane, byte) in bytes.iter_mut().enumerate().filter(|(lane, _)| strobe >> lane & 1 == 1) {
                    *byte = data.to_le_bytes()[lane];
                }
                self.fetches += self.model.get("mem_instr");
            } else if let Some(offset) = address.checked_sub(mmio::BASE) {
                if strobe == 0 {
                    word = self.read(offset);
                } else {
                    assert_eq!(strobe, 15, "registers are words");
                    self.write(offset, data);
                }
            } else {
                panic!("access to {address:#x}");
            }
            self.model.set(rdata, word.into());
        }
        self.model.tick();
        self.model.set(ready, answers.into());
        self.cycle += 1;
        assert!(!self.model.bit("trap"), "trap in cycle {}", self.cycle);
    }

    /// Bytes of the stack that were in use at some time: what the RAM's end holds of what was not there at first.
    fn stack(&self) -> usize {
        let unused = self.ram.chunks(256).rposition(|c| c.iter().all(|b| *b == 0xff)).expect("the RAM is full");
        self.ram.len() - 256 * (unused + 1)
    }

    /// Has commands executed as one batch; their answers.
    fn execute(&mut self, commands: &[[u8; 64]]) -> Vec<[u8; 64]> {
        assert!(commands.len() <= 1 << LOG2);
        let first = self.register(mmio::CMD_PRODUCER);
        let slot = |i: usize| RING + (first as u64 + i as u64) % (1 << LOG2) * SLOT as u64;
        for (i, command) in commands.iter().enumerate() {
            for at in (0..64).step_by(4) {
                let word = u32::from_le_bytes(command[at..][..4].try_into().unwrap());
                self.host.insert(slot(i) + at as u64, word);
            }
        }
        let done = first + commands.len() as u32;
        self.registers.insert(mmio::CMD_PRODUCER, done);
        // RECLAIM is as many commands as there are objects.
        let each = if commands.iter().any(|c| c[0] == op::RECLAIM) { 2_000_000 } else { 20_000 };
        let deadline = self.cycle + each * (1 + commands.len() as u64);
        while self.register(mmio::CMD_CONSUMER) != done {
            self.step();
            assert!(self.cycle < deadline, "no answer; the log says: {}", self.log);
        }
        let word = |i: usize, at: usize| self.host[&(slot(i) + (ANSWER + at / 4 * 4) as u64)].to_le_bytes()[at % 4];
        let answers: Vec<[u8; 64]> = (0..commands.len()).map(|i| std::array::from_fn(|at| word(i, at))).collect();
        for (i, a) in answers.iter().enumerate() {
            let lap = (first + i as u32) >> LOG2;
            assert_eq!(answer::PHASE.get(a), u64::from(!lap & 1));
        }
        answers
    }
}

fn command(opcode: u8, fields: &[(Field, u64)]) -> [u8; 64] {
    let mut c = [0; 64];
    head::OPCODE.set(&mut c, opcode.into());
    head::OWNER.set(&mut c, 1);
    fields.iter().for_each(|(f, v)| f.set(&mut c, *v));
    c
}

#[test]
fn the_image_brings_queue_pairs_up() {
    let mut machine = Machine::start();
    while machine.register(mmio::READY) != 1 {
        machine.step();
        assert!(machine.cycle < 500_000, "not ready");
    }
    println!("ready after {} cycles", machine.cycle);
    assert_eq!(machine.log, "ready, reset cause 0   \n");
    let gid = [(head::OWNER, 0), (set_gid::VALID, 1), (set_gid::MAC, 2), (set_gid::IP_LOW, 0x0100_000a)];
    let refused = command(op::CREATE_QP, &[(create_qp::PD, 99), (create_qp::RQ_SGES, 4)]);
    let answers = machine.execute(&[
        command(op::CREATE_PD, &[]),
        command(op::CREATE_EQ, &[(create_eq::BASE, 0x1000)]),
        command(op::CREATE_CQ, &[(create_cq::BASE, 0x2000), (create_cq::LOG2_ENTRIES, 10)]),
        command(op::SET_GID, &gid),
        refused,
    ]);
    let results: Vec<_> = answers.iter().map(|a| answer::RESULT.get(a)).collect();
    assert_eq!(results, [0, 0, 0, 0, u64::from(abi::cmd::result::NO_OBJECT)]);
    let told = format!("op 10 owner 1 number {}: result 3 field 48", head::NUMBER.get(&refused));
    assert!(machine.log.contains(&told), "{}", machine.log);

    let to = |n: u64, state: u8, mask: u32, fields: &[(Field, u64)]| {
        let fixed = [(head::NUMBER, n), (m::MASK, (mask | attr::STATE).into()), (m::STATE, state.into())];
        command(op::MODIFY_QP, &[&fixed, fields].concat())
    };
    let qps = verilate::scale(16).min(250);
    let mut cycles = [0; 5];
    let mut timed = |machine: &mut Machine, kind: usize, commands: &[[u8; 64]]| {
        let start = machine.cycle;
        let answers = machine.execute(commands);
        answers.iter().for_each(|a| assert_eq!((answer::RESULT.get(a), answer::FIELD.get(a)), (0, 0)));
        cycles[kind] += machine.cycle - start;
        answers
    };
    let fetches = machine.fetches;
    let start = machine.cycle;
    let mut numbers = vec![];
    for _ in 0..qps {
        let rings = [(create_qp::SQ_BASE, 0x10_0040), (create_qp::RQ_BASE, 0x20_0080), (create_qp::RQ_SGES, 4)];
        let n = answer::NUMBER.get(&timed(&mut machine, 0, &[command(op::CREATE_QP, &rings)])[0]);
        numbers.push(n);
        let mask = attr::PKEY_INDEX | attr::PORT | attr::ACCESS_FLAGS;
        timed(&mut machine, 1, &[to(n, qp_state::INIT, mask, &[(m::PORT, 1), (m::ACCESS, 7)])]);
        let mask = attr::AV | attr::PATH_MTU | attr::DEST_QPN | attr::RQ_PSN;
        let mask = mask | attr::MAX_DEST_RD_ATOMIC | attr::MIN_RNR_TIMER;
        let path = [
            (m::PATH_MTU, 5),
            (m::DEST_QPN, 0x12_3456),
            (m::RQ_PSN, 0xfe_dcba),
            (m::HOP_LIMIT, 64),
            (m::DMAC, 0x4),
            (m::DIP_LOW, 0x0200_000a),
        ];
        timed(&mut machine, 2, &[to(n, qp_state::RTR, mask, &path)]);
        let mask = attr::SQ_PSN | attr::TIMEOUT | attr::RETRY_CNT | attr::RNR_RETRY | attr::MAX_QP_RD_ATOMIC;
        timed(&mut machine, 3, &[to(n, qp_state::RTS, mask, &[(m::SQ_PSN, 0xab_cdef), (m::MAX_READS, 16)])]);
        assert_eq!(qp_state_row::STATE.get(&machine.rows[&(id::QP_STATE, n as u32)]), u64::from(qp_state::RTS));
        assert_eq!(qp_send::PSN.get(&machine.rows[&(id::QP_SEND, n as u32)]), 0xab_cdef);
        assert_eq!(qp_recv::PSN.get(&machine.rows[&(id::QP_RECV, n as u32)]), 0xfe_dcba);
    }
    let took = machine.cycle - start;
    println!("{} bytes of stack", machine.stack());
    assert!(machine.stack() <= STACK, "the stack is deeper than src/start.rs leaves room for");
    let per_instruction = took as f64 / (machine.fetches - fetches) as f64;
    for n in numbers {
        timed(&mut machine, 4, &[command(op::DESTROY_QP, &[(head::NUMBER, n)])]);
    }
    println!(
        "cycles a command: create {}, to INIT {}, to RTR {}, to RTS {}, destroy {}; {per_instruction:.1} per fetch",
        cycles[0] / qps as u64,
        cycles[1] / qps as u64,
        cycles[2] / qps as u64,
        cycles[3] / qps as u64,
        cycles[4] / qps as u64
    );
    // 256 QPs from nothing to RTS in 20 ms at 250 MHz.
    assert!(took / (qps as u64 * 4) < 4_800, "{} cycles a command", took / (qps as u64 * 4));
}

/// The smallest card: the firmware's memory holds as many objects as the card has.
#[test]
fn the_image_fits_a_small_card() {
    let mut machine = Machine::on(5 | 6 << 8 | 8 << 16 | 3 << 24, 14 | 5 << 8 | 7 << 16 | 4 << 24, 32 << 10);
    while machine.register(mmio::READY) != 1 {
        machine.step();
        assert!(machine.cycle < 500_000, "not ready");
    }
    let create = |op, n| vec![command(op, &[(create_cq::BASE, 0x2000), (create_cq::LOG2_ENTRIES, 10)]); n];
    let results = |machine: &mut Machine, commands: Vec<[u8; 64]>| -> Vec<u64> {
        let batches: Vec<_> = commands.chunks(1 << LOG2).collect();
        batches.into_iter().flat_map(|b| machine.execute(b)).map(|a| answer::RESULT.get(&a)).collect()
    };
    let full = u64::from(abi::cmd::result::NO_ROOM);
    assert_eq!(results(&mut machine, create(op::CREATE_PD, 1)), [0]);
    let eqs = vec![command(op::CREATE_EQ, &[(create_eq::BASE, 0x1000)]); 9];
    assert_eq!(results(&mut machine, eqs), [vec![0; 8], vec![full]].concat());
    assert_eq!(results(&mut machine, create(op::CREATE_CQ, 65)), [vec![0; 64], vec![full]].concat());
    // QPs 0 and 1 are asked for by their types.
    let rings = [(create_qp::SQ_BASE, 0x10_0040), (create_qp::RQ_BASE, 0x20_0080), (create_qp::RQ_SGES, 4)];
    let datagrams = [&rings[..], &[(create_qp::TYPE, qp_type::UD.into())]].concat();
    let qps = vec![command(op::CREATE_QP, &datagrams); 31];
    assert_eq!(results(&mut machine, qps), [vec![0; 30], vec![full]].concat());
    // All groups that it has, and all members that they may have.
    let attach =
        |group: u64, n: u64| command(op::ATTACH_MCAST, &[(mcast::NUMBER, n), (mcast::IP_LOW, 0xef | group << 24)]);
    let start = machine.cycle;
    let all: Vec<_> = (0..4).flat_map(|group| (2..10).map(move |n| attach(group, n))).collect();
    assert_eq!(results(&mut machine, all), [0; 32]);
    let each = (machine.cycle - start) / 32;
    assert_eq!(results(&mut machine, vec![attach(0, 10), attach(4, 2)]), [full; 2]);
    let members = &machine.rows[&(id::MEMBER, 12)];
    assert_eq!((member::LAST.get(members), member::QPN.get(members)), (MEMBERS as u64 - 1, 2));
    let start = machine.cycle;
    assert_eq!(results(&mut machine, vec![command(op::DESTROY_QP, &[(head::NUMBER, 2)])]), [0]);
    let destroy = machine.cycle - start;
    println!("cycles: attach {each}, destroy a QP of four groups {destroy}");
    // As long as MODIFY_QP and DESTROY_QP of a QP that is in none.
    assert!(each < 4_800 && destroy < 6_400);
    assert_eq!(results(&mut machine, vec![command(op::RECLAIM, &[])]), [0]);
    assert!((12..16).all(|i| machine.rows[&(id::GID, i)] == [0; 64]));
    println!("{} bytes of stack", machine.stack());
    assert!(machine.stack() <= STACK, "the stack is deeper than src/start.rs leaves room for");
}
