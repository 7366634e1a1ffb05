//! The control plane: objects, who owns them, who refers to whom, the states of queue pairs, and the rows that the
//! engines work by. Executes the commands of `abi::cmd`.
//!
//! `no_std`, no heap: everything stands in one [`Plane`] and the [`Memory`] that it is given, as large as the device has objects;
//! and it reaches the device through [`Hardware`] only. [`Mailbox`] serves it the command ring. So the firmware is a thin shell around it, and the tests give it a device of their own.
//!
//! A command is judged whole before anything changes. What it changes it changes in an order in which the engines never
//! see a half-made object: attributes before states, rows invalid before memory is given back, and a drain between.
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod groups;
mod numbers;
mod objects;
mod owners;
mod pairs;
mod regions;
mod requests;
mod ring;
mod shared;
mod transitions;
pub mod words;

use abi::{
    Field,
    cmd::{answer, device, head, op, result, set_vfs},
    table,
};
pub use groups::Group;
use numbers::{Numbers, Turn};
pub use objects::Object;
use objects::{Gid, Objects};
pub use pairs::{Handle, Qp};
pub use regions::{Ground, Key};
pub use ring::Mailbox;
use words::{Block, get, put, put_wide};

/// Version of the firmware, as in `bar::FW_VERSION`.
pub const VERSION: u32 = abi::image::VERSION;
/// Station address until the driver sets one, first wire byte lowest: 02:46:52:43:45:00, locally administered.
pub const DEFAULT_MAC: u64 = 0x0045_4352_4602;
/// Most queue pairs.
pub const QPS: usize = 4096;
/// Most completion queues.
pub const CQS: usize = 256;
/// Most event queues.
pub const EQS: usize = 32;
/// Most memory keys; number 0 is none, so that a key of 0 never is valid.
pub const KEYS: usize = 1024;
/// Most protection domains.
pub const PDS: usize = 256;
/// GID table entries.
pub const GIDS: usize = table::GIDS;
/// Most owners: doorbell pages.
pub const OWNERS: u32 = 16;
/// MTT entries that a region takes at least: with [`KEYS`] regions the table is full, so the smallest never miss room.
pub const MTT_UNIT: u32 = 256;
/// Most MTT units.
pub const MTT_UNITS: usize = 1024;

/// The command ring, as the driver set it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Address in host memory.
    pub base: u64,
    /// Log2 of its slots.
    pub log2: u32,
}

/// How a load of the translation table ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// All entries are in place.
    Done,
    /// The list could not be read.
    BusError,
    /// An address in the list is not one of a page.
    BadAddress,
}

/// The device, as the control plane sees it. All calls return when what they do is done.
pub trait Hardware {
    /// `bar::LIMITS` and `bar::LIMITS2`.
    fn limits(&self) -> [u32; 2];
    /// `bar::PORT`.
    fn port(&self) -> u32;
    /// Commands written, as a free-running count.
    fn producer(&self) -> u32;
    /// The command ring.
    fn ring(&self) -> Ring;
    /// So many commands have been answered.
    fn answered(&mut self, count: u32);
    /// Writes a row of table `table` (`abi::table::id`). The words behind `row` hold no field of it.
    fn commit(&mut self, table: u8, index: u32, row: &[u32]);
    /// Reads the first words of a row as it stands.
    fn fetch(&mut self, table: u8, index: u32, words: &mut [u32]);
    /// Reads from host memory; false after a bus error.
    fn dma_read(&mut self, host: u64, words: &mut [u32]) -> bool;
    /// Writes to host memory, ahead of all later writes and events; false after a bus error.
    fn dma_write(&mut self, host: u64, words: &[u32]) -> bool;
    /// Loads `count` entries from `first` on from a list of page addresses in host memory.
    fn load_mtt(&mut self, list: u64, first: u32, count: u32, page_shift: u32) -> Load;
    /// `mmio::ASK`.
    fn ask(&self) -> u32;
    /// Waits until all that is under way in the data path has passed.
    fn drain(&mut self);
    /// Raises an event of type `kind` (`queue::event`).
    fn event(&mut self, eqn: u8, kind: u8, number: u32, value: u32);
    /// Appends a line to the log ring; its length is a multiple of 4.
    fn log(&mut self, line: &[u8]);
}

/// Why a command is refused: word 0 of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refused(u32);

type Outcome<T = ()> = Result<T, Refused>;

impl Refused {
    fn new(result: u8, number: u32) -> Self {
        Refused(result as u32 | number << 16)
    }
    /// Names the field by its first bit.
    fn at(result: u8, field: Field) -> Self {
        Self::new(result, field.lsb as u32)
    }
    fn bad(field: Field) -> Self {
        Self::at(result::BAD_FIELD, field)
    }
}

/// `Err` with BAD_FIELD unless `good`.
#[inline(always)]
fn check(good: bool, field: Field) -> Outcome {
    if good { Ok(()) } else { Err(Refused::bad(field)) }
}

/// `Err` with UNSUPPORTED unless `done`: what Ferroce does not do is refused by name.
#[inline(always)]
fn supported(done: bool, field: Field) -> Outcome {
    if done { Ok(()) } else { Err(Refused::at(result::UNSUPPORTED, field)) }
}

/// Objects of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Protection domains.
    pub pds: usize,
    /// Completion queues.
    pub cqs: usize,
    /// Event queues.
    pub eqs: usize,
    /// Queue pairs.
    pub qps: usize,
    /// Address handles.
    pub ahs: usize,
    /// Memory keys.
    pub keys: usize,
    /// Regions that windows may be bound to.
    pub grounds: usize,
    /// Multicast groups.
    pub groups: usize,
}

impl Counts {
    /// Of a device with these [`Hardware::limits`]: as many as the gates have, and at most as many as this code covers.
    pub const fn of(limits: [u32; 2]) -> Self {
        let word = limits[0];
        let qps = limit(word, 0, QPS as u32).0 as usize;
        Counts {
            // Two for each QP are more than enough.
            pds: if 2 * qps < PDS { 2 * qps } else { PDS },
            cqs: limit(word, 1, CQS as u32).0 as usize,
            eqs: limit(word, 3, EQS as u32).0 as usize,
            qps,
            ahs: table::address_handles(qps),
            keys: limit(word, 2, KEYS as u32).0 as usize,
            grounds: (limit(word, 2, KEYS as u32).0 as usize).div_ceil(16),
            // Half of the GID table stays for addresses, whatever is attached.
            groups: if qps / 8 < GIDS / 2 { qps / 8 } else { GIDS / 2 },
        }
    }

    /// Bytes of their [`Memory`], each of its slices aligned to a word at most.
    pub const fn bytes(&self) -> usize {
        let slices = [
            (self.pds + self.cqs + self.eqs) * size_of::<Object>(),
            self.qps * size_of::<Qp>(),
            self.ahs * size_of::<Handle>(),
            self.keys * size_of::<Key>(),
            self.grounds * size_of::<Ground>(),
            self.groups * size_of::<Group>(),
        ];
        let (mut sum, mut i) = (0, 0);
        while i < slices.len() {
            sum += slices[i].next_multiple_of(4);
            i += 1;
        }
        sum
    }
}

/// A place for each object, all of them `NONE` at first: as many as [`Counts`] says.
#[allow(missing_docs)]
pub struct Memory<'a> {
    pub pds: &'a mut [Object],
    pub cqs: &'a mut [Object],
    pub eqs: &'a mut [Object],
    pub qps: &'a mut [Qp],
    pub ahs: &'a mut [Handle],
    pub keys: &'a mut [Key],
    pub grounds: &'a mut [Ground],
    pub groups: &'a mut [Group],
}

/// The control plane.
pub struct Plane<'a> {
    pds: Objects<'a>,
    cqs: Objects<'a>,
    eqs: Objects<'a>,
    gids: [Gid; GIDS],
    qps: &'a mut [Qp],
    qp_turn: Turn,
    ahs: &'a mut [Handle],
    ah_turn: Turn,
    keys: &'a mut [Key],
    grounds: &'a mut [Ground],
    groups: &'a mut [Group],
    /// Windows that were bound once.
    bound: u16,
    key_turn: Turn,
    mtt: Numbers<{ MTT_UNITS / 32 }>,
    limits: Limits,
    /// The event of a drained send queue may be due.
    draining: bool,
}

/// What the gates have and this memory covers.
#[derive(Clone, Copy, Default)]
struct Limits {
    qps: u32,
    cqs: u32,
    keys: u32,
    eqs: u32,
    mtt_units: u32,
    owners: u32,
    reads: u32,
    /// As the registers show them.
    words: [u32; 2],
}

/// Smaller of a limit of the gates, as a power of two in byte `byte`, and of this memory; and its log2 in place.
const fn limit(word: u32, byte: u32, most: u32) -> (u32, u32) {
    let log2 = word >> (8 * byte) & 31;
    let mut own = 0;
    while own < log2 && 2 << own <= most {
        own += 1;
    }
    (1 << own, own << (8 * byte))
}

impl<'a> Plane<'a> {
    /// Without any object.
    pub fn new(memory: Memory<'a>) -> Self {
        const { assert!(MTT_UNITS as u32 * MTT_UNIT == 1 << 18) };
        Plane {
            pds: Objects::new(memory.pds),
            cqs: Objects::new(memory.cqs),
            eqs: Objects::new(memory.eqs),
            gids: [Gid::NONE; GIDS],
            qps: memory.qps,
            qp_turn: Turn::default(),
            ahs: memory.ahs,
            ah_turn: Turn::default(),
            keys: memory.keys,
            grounds: memory.grounds,
            groups: memory.groups,
            bound: 0,
            key_turn: Turn::default(),
            mtt: Numbers::new(),
            limits: Limits { qps: 0, cqs: 0, keys: 0, eqs: 0, mtt_units: 0, owners: 0, reads: 0, words: [0; 2] },
            draining: false,
        }
    }

    /// Takes over a device fresh from reset.
    pub fn start(&mut self, hw: &mut impl Hardware) {
        let [a, b] = hw.limits();
        let (qps, qps_log2) = limit(a, 0, self.qps.len() as u32);
        let (cqs, cqs_log2) = limit(a, 1, self.cqs.items.len() as u32);
        let (keys, keys_log2) = limit(a, 2, self.keys.len() as u32);
        let (eqs, eqs_log2) = limit(a, 3, self.eqs.items.len() as u32);
        let (mtt, mtt_log2) = limit(b, 0, MTT_UNITS as u32 * MTT_UNIT);
        let (owners, owners_log2) = limit(b, 1, OWNERS);
        let (reads, reads_log2) = limit(b, 3, 16);
        let words = [qps_log2 | cqs_log2 | keys_log2 | eqs_log2, mtt_log2 | owners_log2 | b & 0xff_0000 | reads_log2];
        self.limits = Limits { qps, cqs, keys, eqs, mtt_units: mtt / MTT_UNIT, owners, reads, words };
        let mut row = [0; 2];
        put_wide(&mut row, table::port::MAC, DEFAULT_MAC);
        hw.commit(table::id::PORT, 0, &row);
    }

    /// Executes a command. The answer is zero before, and lacks its phase only.
    pub fn execute(&mut self, hw: &mut impl Hardware, c: &Block, a: &mut Block) {
        if let Err(refused) = self.dispatch(hw, c, a) {
            a[0] = refused.0;
        }
    }

    fn dispatch(&mut self, hw: &mut impl Hardware, c: &Block, a: &mut Block) -> Outcome {
        let opcode = get(c, head::OPCODE) as u8;
        let owner = get(c, head::OWNER);
        check(owner < self.limits.owners, head::OWNER)?;
        let owner = owner as u8;
        let number = get(c, head::NUMBER);
        match opcode {
            op::NOP => {}
            op::QUERY_DEVICE => {
                put(a, device::LIMITS, self.limits.words[0]);
                put(a, device::LIMITS2, self.limits.words[1]);
                put(a, device::GIDS, GIDS as u32);
                put(a, device::PKEYS, 1);
                put(a, device::FW_VERSION, VERSION);
            }
            op::CREATE_PD => put(a, answer::NUMBER, self.create_pd(owner)?),
            op::DESTROY_PD => self.destroy_pd(number, owner)?,
            op::CREATE_MR => {
                let (number, key) = self.create_mr(hw, c, owner)?;
                put(a, answer::NUMBER, number);
                put_wide(a, answer::VALUE, key as u64);
            }
            op::DESTROY_MR => self.destroy_mr(hw, number, owner)?,
            op::CREATE_CQ => put(a, answer::NUMBER, self.create_cq(hw, c, owner)?),
            op::RESIZE_CQ => self.resize_cq(hw, c, number, owner)?,
            op::DESTROY_CQ => self.destroy_cq(hw, number, owner)?,
            op::CREATE_EQ => put(a, answer::NUMBER, self.create_eq(hw, c, owner)?),
            op::DESTROY_EQ => self.destroy_eq(hw, number, owner)?,
            op::CREATE_QP => put(a, answer::NUMBER, self.create_qp(c, owner)?),
            op::MODIFY_QP => self.modify_qp(hw, c, owner)?,
            op::QUERY_QP => self.query_qp(hw, number, owner, a)?,
            op::DESTROY_QP => self.destroy_qp(hw, number, owner)?,
            op::CREATE_SRQ => put(a, answer::NUMBER, self.create_srq(hw, c, owner)?),
            op::MODIFY_SRQ => self.modify_srq(hw, c, owner)?,
            op::QUERY_SRQ => self.query_srq(hw, number, owner, a)?,
            op::DESTROY_SRQ => self.destroy_srq(hw, number, owner)?,
            op::CREATE_AH => put(a, answer::NUMBER, self.create_ah(hw, c, owner)?),
            op::DESTROY_AH => self.destroy_ah(hw, number, owner)?,
            op::ATTACH_MCAST => put(a, answer::NUMBER, self.attach(hw, c, owner, false)?),
            op::DETACH_MCAST => _ = self.attach(hw, c, owner, true)?,
            op::SET_GID | op::SET_PORT | op::SET_MULTICAST | op::SET_VFS if owner != 0 => {
                return Err(Refused::at(result::NOT_OWNER, head::OWNER));
            }
            op::SET_VFS => supported(get(c, set_vfs::COUNT) == 0, set_vfs::COUNT)?,
            op::SET_GID => self.set_gid(hw, c)?,
            op::SET_PORT => self.set_port(hw, c)?,
            op::SET_MULTICAST => self.set_multicast(hw, c)?,
            op::LIST_OWNED => self.list_owned(c, owner, a)?,
            op::RECLAIM => self.reclaim(hw, owner, a)?,
            _ => return Err(Refused::at(result::BAD_OPCODE, head::OPCODE)),
        }
        Ok(())
    }
}
