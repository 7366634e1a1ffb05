//! BAR0 as a block struct; its offsets are checked against the contract.

use abi::bar;
use volatile_register::{RO, RW, WO};

/// The registers of BAR0 (see the reference page for their bits).
#[repr(C)]
#[allow(missing_docs)]
pub struct Registers {
    pub magic: RO<u32>,
    pub abi_version: RO<u32>,
    pub build_hash: RO<u32>,
    pub datapath: RO<u32>,
    pub limits: RO<u32>,
    pub limits2: RO<u32>,
    pub health: RO<u32>,
    pub fw_version: RO<u32>,
    pub fw_heartbeat: RO<u32>,
    pub reset: RW<u32>,
    pub fw_control: RW<u32>,
    pub fw_address: RW<u32>,
    pub fw_data: WO<u32>,
    pub ready: RO<u32>,
    _reserved: [u32; 2],
    pub cmd_base: RW<u64>,
    pub cmd_log2: RW<u32>,
    pub cmd_producer: RW<u32>,
    pub cmd_consumer: RO<u32>,
    _reserved2: u32,
    pub clock: RO<u64>,
    pub port: RO<u32>,
    _reserved3: u32,
    pub mac: RO<u64>,
    _reserved4: [u32; 2],
    pub fw_log_head: RO<u32>,
    pub parity_test: RW<u32>,
}

macro_rules! check {
    ($($field:ident = $offset:ident),*) => {
        $(const _: () = assert!(std::mem::offset_of!(Registers, $field) == bar::$offset);)*
    };
}
check!(
    magic = MAGIC,
    abi_version = ABI_VERSION,
    build_hash = BUILD_HASH,
    datapath = DATAPATH,
    limits = LIMITS,
    limits2 = LIMITS2,
    health = HEALTH,
    fw_version = FW_VERSION,
    fw_heartbeat = FW_HEARTBEAT,
    reset = RESET,
    fw_control = FW_CONTROL,
    fw_address = FW_ADDRESS,
    fw_data = FW_DATA,
    ready = READY,
    cmd_base = CMD_BASE,
    cmd_log2 = CMD_LOG2,
    cmd_producer = CMD_PRODUCER,
    cmd_consumer = CMD_CONSUMER,
    clock = CLOCK,
    port = PORT,
    mac = MAC,
    fw_log_head = FW_LOG_HEAD,
    parity_test = PARITY_TEST
);
