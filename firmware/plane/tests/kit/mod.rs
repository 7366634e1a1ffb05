//! A device for tests: it records what the control plane does to it.
#![allow(dead_code)] // each test file uses a part

use abi::{
    Field,
    bar::PACES,
    cmd::{
        answer, attr, create_ah, create_cq, create_eq, create_mr, create_qp, head, modify_qp as m, op, result, set_gid,
    },
    table::{id, qp_send, qp_state, qp_state_row, qp_type},
};
use plane::{
    Counts, Ground, Group, Handle, Hardware, Key, Load, Mailbox, Memory, Object, Plane, Qp, Ring, words::Block,
};
use std::collections::BTreeMap;

pub type Bytes = [u8; 64];

pub fn bytes_of(block: &Block) -> Bytes {
    std::array::from_fn(|i| block[i / 4].to_le_bytes()[i % 4])
}

pub fn block_of(bytes: &Bytes) -> Block {
    std::array::from_fn(|i| u32::from_le_bytes(bytes[4 * i..][..4].try_into().unwrap()))
}

/// What was done to the device, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    Commit(u8, u32, Bytes),
    Load { list: u64, first: u32, count: u32, shift: u32 },
    Drain,
    Event { eqn: u8, kind: u8, number: u32, value: u32 },
    Write(u64, Bytes),
    Answered(u32),
}

pub struct Fake {
    pub acts: Vec<Act>,
    pub rows: BTreeMap<(u8, u32), Bytes>,
    pub memory: BTreeMap<u64, Bytes>,
    pub limits: [u32; 2],
    pub port: u32,
    pub ring: Ring,
    pub producer: u32,
    pub load: Load,
    pub log: String,
    /// The work request that waits.
    pub ask: u32,
    /// After so many more fetches, a row changes.
    pub change: Option<(usize, (u8, u32), Bytes)>,
}

impl Default for Fake {
    fn default() -> Self {
        Fake {
            acts: vec![],
            rows: BTreeMap::new(),
            memory: BTreeMap::new(),
            limits: [8 | 8 << 8 | 10 << 16 | 5 << 24, 18 | 4 << 8 | 7 << 16 | 4 << 24 | PACES],
            port: 1 | 4200 << 16,
            ring: Ring { base: 0x10_0000, log2: 2 },
            producer: 0,
            load: Load::Done,
            log: String::new(),
            ask: 0,
            change: None,
        }
    }
}

impl Hardware for Fake {
    fn limits(&self) -> [u32; 2] {
        self.limits
    }
    fn port(&self) -> u32 {
        self.port
    }
    fn producer(&self) -> u32 {
        self.producer
    }
    fn ring(&self) -> Ring {
        self.ring
    }
    fn answered(&mut self, count: u32) {
        self.acts.push(Act::Answered(count));
    }
    fn commit(&mut self, table: u8, index: u32, row: &[u32]) {
        let mut block = [0; 16];
        block[..row.len()].copy_from_slice(row);
        let bytes = bytes_of(&block);
        let old = self.rows.insert((table, index), bytes);
        // As the engines do: an attribute-only row leaves the PSN.
        if let (id::QP_SEND, Some(old), 0) = (table, old, qp_send::LOAD.get(&bytes)) {
            qp_send::PSN.set(self.rows.get_mut(&(table, index)).unwrap(), qp_send::PSN.get(&old));
        }
        self.acts.push(Act::Commit(table, index, bytes));
    }
    fn fetch(&mut self, table: u8, index: u32, words: &mut [u32]) {
        let row = self.rows.get(&(table, index)).map_or([0; 16], block_of);
        words.copy_from_slice(&row[..words.len()]);
        if let Some((left, at, bytes)) = &mut self.change {
            *left -= 1;
            if *left == 0 {
                self.rows.insert(*at, *bytes);
                self.change = None;
            }
        }
    }
    fn dma_read(&mut self, host: u64, words: &mut [u32]) -> bool {
        let Some(bytes) = self.memory.get(&host) else { return false };
        words.copy_from_slice(&block_of(bytes)[..words.len()]);
        true
    }
    fn dma_write(&mut self, host: u64, words: &[u32]) -> bool {
        let bytes = bytes_of(words.try_into().unwrap());
        self.memory.insert(host, bytes);
        self.acts.push(Act::Write(host, bytes));
        true
    }
    fn load_mtt(&mut self, list: u64, first: u32, count: u32, shift: u32) -> Load {
        self.acts.push(Act::Load { list, first, count, shift });
        self.load
    }
    fn ask(&self) -> u32 {
        self.ask
    }
    fn drain(&mut self) {
        self.acts.push(Act::Drain);
    }
    fn event(&mut self, eqn: u8, kind: u8, number: u32, value: u32) {
        self.acts.push(Act::Event { eqn, kind, number, value });
    }
    fn log(&mut self, line: &[u8]) {
        assert_eq!(line.len() % 4, 0);
        self.log += std::str::from_utf8(line).unwrap();
    }
}

/// A command under construction.
#[derive(Clone, Copy)]
pub struct Command(pub Bytes);

pub fn command(opcode: u8) -> Command {
    // The port and its addresses are owner 0's.
    let owner = !matches!(opcode, op::SET_GID | op::SET_PORT | op::SET_MULTICAST);
    Command([0; 64]).with(head::OPCODE, opcode.into()).with(head::OWNER, owner.into())
}

impl Command {
    pub fn with(mut self, field: Field, value: u64) -> Self {
        field.set(&mut self.0, value);
        self
    }
    pub fn owner(self, owner: u64) -> Self {
        self.with(head::OWNER, owner)
    }
    pub fn number(self, number: u64) -> Self {
        self.with(head::NUMBER, number)
    }
}

/// An answer.
#[derive(Clone, Copy)]
pub struct Answer(pub Bytes);

impl Answer {
    pub fn get(&self, field: Field) -> u64 {
        field.get(&self.0)
    }
    /// Result and field.
    pub fn verdict(&self) -> (u8, u64) {
        (self.get(answer::RESULT) as u8, self.get(answer::FIELD))
    }
}

/// A control plane with its device.
pub struct Bench {
    pub plane: Plane<'static>,
    pub mailbox: Mailbox,
    pub fake: Fake,
}

impl Bench {
    pub fn new() -> Self {
        Self::on(Fake::default())
    }

    pub fn on(mut fake: Fake) -> Self {
        let n = Counts::of(fake.limits);
        let mut plane = Plane::new(Memory {
            pds: vec![Object::NONE; n.pds].leak(),
            cqs: vec![Object::NONE; n.cqs].leak(),
            eqs: vec![Object::NONE; n.eqs].leak(),
            qps: vec![Qp::NONE; n.qps].leak(),
            ahs: vec![Handle::NONE; n.ahs].leak(),
            keys: vec![Key::NONE; n.keys].leak(),
            grounds: vec![Ground::NONE; n.grounds].leak(),
            groups: vec![Group::NONE; n.groups].leak(),
        });
        let mut mailbox = Mailbox::new();
        plane.start(&mut fake);
        mailbox.start(&mut fake);
        fake.acts.clear();
        Bench { plane, mailbox, fake }
    }

    /// Has the next command of the ring executed, if there is one.
    pub fn step(&mut self) -> bool {
        self.mailbox.step(&mut self.plane, &mut self.fake)
    }

    pub fn try_(&mut self, c: Command) -> Answer {
        let mut a = [0; 16];
        self.plane.execute(&mut self.fake, &block_of(&c.0), &mut a);
        Answer(bytes_of(&a))
    }

    /// The verdict of a command that must be refused; nothing may happen to the device.
    pub fn refused(&mut self, c: Command) -> (u8, u64) {
        self.fake.acts.clear();
        let a = self.try_(c);
        assert_ne!(a.get(answer::RESULT), 0, "not refused");
        assert_eq!(self.fake.acts, [], "a refused command had an effect");
        assert!(a.0[4..].iter().all(|b| *b == 0));
        a.verdict()
    }

    /// The answer of a command that must succeed; `fake.acts` are its effects.
    pub fn ok(&mut self, c: Command) -> Answer {
        self.fake.acts.clear();
        let a = self.try_(c);
        assert_eq!(a.verdict(), (result::OK, 0), "opcode {}", head::OPCODE.get(&c.0));
        a
    }

    /// Creates an object; its number.
    pub fn make(&mut self, c: Command) -> u64 {
        self.ok(c).get(answer::NUMBER)
    }

    /// PD, CQ and a QP of owner 1 in RESET; GIDs 0 (IPv4) and 3 (IPv6). The QP's number.
    pub fn qp(&mut self) -> u64 {
        self.qp_of(qp_type::RC)
    }

    /// The same with a QP of some type.
    pub fn qp_of(&mut self, kind: u8) -> u64 {
        self.make(command(op::CREATE_PD));
        self.make(create_eq());
        self.make(create_cq());
        self.ok(gid4(0));
        self.ok(gid6(3));
        self.make(create_qp().with(create_qp::TYPE, kind.into()))
    }

    /// Brings QP `n` from RESET to a state.
    pub fn bring(&mut self, n: u64, state: u8) {
        self.bring_by(n, state, [TO_INIT, TO_RTR, TO_RTS]);
    }

    /// The same with the attributes that INIT, RTR and RTS need.
    pub fn bring_by(&mut self, n: u64, state: u8, [to_init, to_rtr, to_rts]: [u32; 3]) {
        use qp_state::*;
        let path: &[(u8, u32)] = match state {
            INIT => &[(INIT, to_init)],
            RTR => &[(INIT, to_init), (RTR, to_rtr)],
            RTS => &[(INIT, to_init), (RTR, to_rtr), (RTS, to_rts)],
            SQD => &[(INIT, to_init), (RTR, to_rtr), (RTS, to_rts), (SQD, 0)],
            ERR => &[(INIT, to_init), (ERR, 0)],
            _ => &[],
        };
        for (state, mask) in path {
            self.ok(modify(n, *state, *mask));
        }
    }

    /// What an engine does with a QP that failed.
    pub fn set_state(&mut self, n: u64, state: u8) {
        let row = self.fake.rows.entry((id::QP_STATE, n as u32)).or_insert([0; 64]);
        qp_state_row::STATE.set(row, state.into());
    }

    pub fn state(&self, n: u64) -> u8 {
        self.fake.rows.get(&(id::QP_STATE, n as u32)).map_or(0, |row| qp_state_row::STATE.get(row) as u8)
    }

    /// Rows committed by the latest command: table and number.
    pub fn commits(&self) -> Vec<(u8, u32)> {
        let commits = self.fake.acts.iter();
        commits.filter_map(|a| if let Act::Commit(t, i, _) = a { Some((*t, *i)) } else { None }).collect()
    }
}

pub const TO_INIT: u32 = attr::PKEY_INDEX | attr::PORT | attr::ACCESS_FLAGS;
pub const TO_RTR: u32 =
    attr::AV | attr::PATH_MTU | attr::DEST_QPN | attr::RQ_PSN | attr::MAX_DEST_RD_ATOMIC | attr::MIN_RNR_TIMER;
pub const TO_RTS: u32 = attr::SQ_PSN | attr::TIMEOUT | attr::RETRY_CNT | attr::RNR_RETRY | attr::MAX_QP_RD_ATOMIC;

pub fn create_eq() -> Command {
    command(op::CREATE_EQ).with(create_eq::LOG2_ENTRIES, 6).with(create_eq::VECTOR, 3).with(create_eq::BASE, 0x7000)
}

pub fn create_cq() -> Command {
    command(op::CREATE_CQ).with(create_cq::LOG2_ENTRIES, 8).with(create_cq::BASE, 0x5000)
}

pub fn create_qp() -> Command {
    command(op::CREATE_QP)
        .with(create_qp::SQ_LOG2, 6)
        .with(create_qp::RQ_LOG2, 5)
        .with(create_qp::RQ_SGES, 4)
        .with(create_qp::SQ_BASE, 0x1_2345_6780)
        .with(create_qp::RQ_BASE, 0x2_3456_78c0)
}

/// With the addresses of [`modify`].
pub fn create_ah() -> Command {
    let mut c = modify(0, 0, 0).with(m::STATE, 0).with(m::MASK, 0).with(create_ah::PD, 0);
    head::OPCODE.set(&mut c.0, op::CREATE_AH.into());
    c
}

pub fn create_mr(va: u64, length: u64) -> Command {
    command(op::CREATE_MR)
        .with(create_mr::ACCESS, 7)
        .with(create_mr::VA, va)
        .with(create_mr::LENGTH, length)
        .with(create_mr::PAGE_SHIFT, 12)
        .with(create_mr::PAGES, 0xabc_d000)
}

pub fn gid4(index: u64) -> Command {
    command(op::SET_GID)
        .with(set_gid::INDEX, index)
        .with(set_gid::VALID, 1)
        .with(set_gid::MAC, 0x0605_0403_0202)
        .with(set_gid::IP_LOW, 0xffff_ffff_0101_000a)
        .with(set_gid::IP_HIGH, u64::MAX)
}

pub fn gid6(index: u64) -> Command {
    gid4(index).with(set_gid::IS_IP6, 1).with(set_gid::IP_LOW, 0x80fe).with(set_gid::TAGGED, 1).with(set_gid::VLAN, 77)
}

/// MODIFY_QP to a state with all fields set to something sound; the mask says which count.
pub fn modify(n: u64, state: u8, mask: u32) -> Command {
    command(op::MODIFY_QP)
        .number(n)
        .with(m::MASK, (mask | attr::STATE).into())
        .with(m::STATE, state.into())
        .with(m::PATH_MTU, 5)
        .with(m::ACCESS, 0xe)
        .with(m::MAX_READS, 16)
        .with(m::MAX_DEST_READS, 9)
        .with(m::DEST_QPN, 0x12_3456)
        .with(m::MIN_RNR_TIMER, 12)
        .with(m::RQ_PSN, 0xfe_dcba)
        .with(m::TIMEOUT, 14)
        .with(m::SQ_PSN, 0xab_cdef)
        .with(m::RETRY_CNT, 5)
        .with(m::RNR_RETRY, 6)
        .with(m::GID, 0)
        .with(m::TRAFFIC_CLASS, 0x6a)
        .with(m::HOP_LIMIT, 64)
        .with(m::PRIORITY, 5)
        .with(m::DMAC, 0x1615_1413_1210)
        .with(m::SPORT, 0xc123)
        .with(m::DIP_LOW, 0x1122_3344_0201_000a)
        .with(m::DIP_HIGH, 0x5566_7788_99aa_bbcc)
        .with(m::FLOW_LABEL, 0xf_1234)
        .with(m::PORT, 1)
}
