//! Protection domains, completion and event queues, and the port with its addresses.

use crate::{
    GIDS, Hardware, Outcome, Plane, Refused, Turn, check,
    words::{Block, get, get_wide, put, put_wide, up_to},
};
use abi::{
    Field, bar,
    cmd::{create_cq, create_eq, head, resize_cq, result, set_gid, set_multicast, set_port},
    table::{self, id},
};

/// Who holds an object, and how many others refer to it.
#[derive(Clone, Copy)]
pub struct Object {
    /// Owner plus 1; 0: there is no such object.
    pub(crate) holder: u8,
    /// Event queue of a completion queue.
    pub(crate) eqn: u8,
    pub(crate) refs: u16,
}

impl Object {
    /// None.
    pub const NONE: Self = Object { holder: 0, eqn: 0, refs: 0 };
}

/// A table of objects.
pub(crate) struct Objects<'a> {
    pub turn: Turn,
    pub items: &'a mut [Object],
}

const EQ_WORDS: usize = up_to(table::eq::MODERATION_CYCLES);
const CQ_WORDS: usize = up_to(table::cq::BASE);
pub(crate) const GID_WORDS: usize = up_to(table::gid::IP_HIGH);
const PORT_WORDS: usize = up_to(table::port::RAW_CYCLES);
const MULTICAST_WORDS: usize = up_to(table::multicast::MAC);

/// An entry of the GID table: one that is not valid but referred to is a multicast group's.
#[derive(Clone, Copy)]
pub(crate) struct Gid {
    pub valid: bool,
    pub is_ip6: bool,
    pub refs: u16,
}

impl Gid {
    pub const NONE: Self = Gid { valid: false, is_ip6: false, refs: 0 };
}

/// Whether `owner` may use what `holder` holds; the refusal names `field`.
#[inline(always)]
pub(crate) fn held(holder: u8, owner: u8, field: Field) -> Outcome {
    if holder == owner + 1 {
        return Ok(());
    }
    Err(Refused::at(if holder == 0 { result::NO_OBJECT } else { result::NOT_OWNER }, field))
}

impl<'a> Objects<'a> {
    pub fn new(items: &'a mut [Object]) -> Self {
        Objects { turn: Turn::default(), items }
    }

    /// Index of the object `number` of `owner`.
    #[inline]
    pub fn find(&self, number: u32, owner: u8, field: Field) -> Outcome<usize> {
        let holder = self.items.get(number as usize).map_or(0, |o| o.holder);
        held(holder, owner, field).map(|()| number as usize)
    }

    /// A free number.
    fn vacant(&self, limit: u32) -> Outcome<u32> {
        self.turn.find(0, limit, |i| self.items[i].holder == 0).ok_or(Refused::new(result::NO_ROOM, 0))
    }

    fn add(&mut self, number: u32, owner: u8, eqn: u8) {
        self.turn.take(number);
        self.items[number as usize] = Object { holder: owner + 1, eqn, refs: 0 };
    }

    /// The object `number` of `owner`, to be destroyed.
    fn unused(&self, number: u32, owner: u8) -> Outcome<usize> {
        let i = self.find(number, owner, head::NUMBER)?;
        if self.items[i].refs == 0 { Ok(i) } else { Err(Refused::at(result::IN_USE, head::NUMBER)) }
    }

    fn remove(&mut self, i: usize) {
        self.items[i].holder = 0;
    }
}

/// A ring of `bytes` at `base`, aligned to `align`, does not pass 2^64.
pub(crate) fn ring_fits(base: u64, bytes: u32, align: u32) -> bool {
    base as u32 & (align - 1) == 0 && base.checked_add(bytes as u64 - 1).is_some()
}

/// A MAC (first wire byte lowest) that a single station can have.
pub(crate) fn is_unicast(mac: u64) -> bool {
    mac != 0 && mac & 1 == 0
}

/// An IP (wire bytes, first lowest) that a single station can have.
pub(crate) fn is_host(is_ip6: bool, ip: &[u32]) -> bool {
    let first = ip[0] & 0xff;
    if is_ip6 { ip[0] | ip[1] | ip[2] | ip[3] != 0 && first != 0xff } else { ip[0] != 0 && first < 224 }
}

/// The row of a CQ whose ring a command describes; `field` has the log2 of its entries.
#[inline(never)]
fn cq_row(c: &Block, field: Field, eqn: u32, owner: u8) -> Outcome<[u32; CQ_WORDS]> {
    const { assert!(create_cq::BASE.lsb == resize_cq::BASE.lsb) };
    let (log2, base) = (get(c, field), get_wide(c, create_cq::BASE));
    check(log2 <= 22, field)?;
    check(ring_fits(base, (abi::queue::cqe::BYTES as u32) << log2, 4096), create_cq::BASE)?;
    let mut row = [0; CQ_WORDS];
    put(&mut row, table::cq::VALID, 1);
    put(&mut row, table::cq::LOG2_ENTRIES, log2);
    put(&mut row, table::cq::EQN, eqn);
    put(&mut row, table::cq::OWNER, owner as u32);
    put_wide(&mut row, table::cq::BASE, base);
    Ok(row)
}

/// A row of the GID table, of words of an IP as commands have them.
#[inline(never)]
pub(crate) fn gid_row(is_ip6: bool, tagged: u32, vlan: u32, mac: u64, ip: &[u32]) -> [u32; GID_WORDS] {
    let mut row = [0; GID_WORDS];
    put(&mut row, table::gid::VALID, 1);
    put(&mut row, table::gid::IS_IP6, is_ip6 as u32);
    put(&mut row, table::gid::TAGGED, tagged);
    put(&mut row, table::gid::VLAN, if tagged == 1 { vlan } else { 0 });
    put_wide(&mut row, table::gid::MAC, mac);
    let used = if is_ip6 { 4 } else { 1 };
    row[table::gid::IP_LOW.lsb / 32..][..used].copy_from_slice(&ip[..used]);
    row
}

impl Plane<'_> {
    pub(crate) fn create_pd(&mut self, owner: u8) -> Outcome<u32> {
        let number = self.pds.vacant(self.pds.items.len() as u32)?;
        self.pds.add(number, owner, 0);
        Ok(number)
    }

    pub(crate) fn destroy_pd(&mut self, number: u32, owner: u8) -> Outcome {
        let i = self.pds.unused(number, owner)?;
        self.pds.remove(i);
        Ok(())
    }

    pub(crate) fn create_eq(&mut self, hw: &mut impl Hardware, c: &Block, owner: u8) -> Outcome<u32> {
        let log2 = get(c, create_eq::LOG2_ENTRIES);
        let vector = get(c, create_eq::VECTOR);
        let base = get_wide(c, create_eq::BASE);
        check(log2 <= 22, create_eq::LOG2_ENTRIES)?;
        check(vector < bar::MSIX_VECTORS as u32, create_eq::VECTOR)?;
        check(ring_fits(base, (abi::queue::eqe::BYTES as u32) << log2, 4096), create_eq::BASE)?;
        let number = self.eqs.vacant(self.limits.eqs)?;
        let mut row = [0; EQ_WORDS];
        put(&mut row, table::eq::VALID, 1);
        put(&mut row, table::eq::LOG2_ENTRIES, log2);
        put(&mut row, table::eq::VECTOR, vector);
        put(&mut row, table::eq::OWNER, owner as u32);
        put(&mut row, table::eq::MODERATION_COUNT, get(c, create_eq::MODERATION_COUNT));
        put_wide(&mut row, table::eq::BASE, base);
        put(&mut row, table::eq::MODERATION_CYCLES, get(c, create_eq::MODERATION_CYCLES));
        hw.commit(id::EQ, number, &row);
        self.eqs.add(number, owner, 0);
        Ok(number)
    }

    pub(crate) fn destroy_eq(&mut self, hw: &mut impl Hardware, number: u32, owner: u8) -> Outcome {
        let i = self.eqs.unused(number, owner)?;
        hw.commit(id::EQ, number, &[0; EQ_WORDS]);
        hw.drain();
        self.eqs.remove(i);
        Ok(())
    }

    pub(crate) fn create_cq(&mut self, hw: &mut impl Hardware, c: &Block, owner: u8) -> Outcome<u32> {
        let eqn = get(c, create_cq::EQN);
        // Owner 0 is the device's keeper, whose event queues serve all.
        let eq = self.eqs.find(eqn, owner, create_cq::EQN).or_else(|own| {
            let shared = self.eqs.find(eqn, 0, create_cq::EQN);
            shared.map_err(|_| own)
        })?;
        let row = cq_row(c, create_cq::LOG2_ENTRIES, eqn, owner)?;
        let number = self.cqs.vacant(self.limits.cqs)?;
        hw.commit(id::CQ, number, &row);
        self.cqs.add(number, owner, eqn as u8);
        self.eqs.items[eq].refs += 1;
        Ok(number)
    }

    /// The entries of before are in the write channel when the row is taken, and the answer goes behind them.
    pub(crate) fn resize_cq(&mut self, hw: &mut impl Hardware, c: &Block, number: u32, owner: u8) -> Outcome {
        let i = self.cqs.find(number, owner, head::NUMBER)?;
        let mut row = cq_row(c, resize_cq::LOG2_ENTRIES, self.cqs.items[i].eqn as u32, owner)?;
        put(&mut row, table::cq::RESIZE, 1);
        hw.commit(id::CQ, number, &row);
        Ok(())
    }

    pub(crate) fn destroy_cq(&mut self, hw: &mut impl Hardware, number: u32, owner: u8) -> Outcome {
        let i = self.cqs.unused(number, owner)?;
        hw.commit(id::CQ, number, &[0; CQ_WORDS]);
        hw.drain();
        self.cqs.remove(i);
        self.eqs.items[self.cqs.items[i].eqn as usize].refs -= 1;
        Ok(())
    }

    pub(crate) fn set_gid(&mut self, hw: &mut impl Hardware, c: &Block) -> Outcome {
        let index = get(c, set_gid::INDEX) as usize;
        check(index < GIDS, set_gid::INDEX)?;
        let valid = get(c, set_gid::VALID) == 1;
        let is_ip6 = get(c, set_gid::IS_IP6) == 1;
        let mut row = [0; GID_WORDS];
        if valid {
            let tagged = get(c, set_gid::TAGGED);
            let vlan = get(c, set_gid::VLAN);
            let mac = get_wide(c, set_gid::MAC);
            let words = set_gid::IP_LOW.lsb / 32;
            let ip = &c[words..words + 4];
            check(tagged == 0 || vlan != 0xfff, set_gid::VLAN)?;
            check(is_unicast(mac), set_gid::MAC)?;
            check(is_host(is_ip6, ip), set_gid::IP_LOW)?;
            row = gid_row(is_ip6, tagged, vlan, mac, ip);
        }
        if self.gids[index].refs != 0 {
            return Err(Refused::at(result::IN_USE, set_gid::INDEX));
        }
        hw.commit(id::GID, index as u32, &row);
        self.gids[index] = Gid { valid, is_ip6: valid && is_ip6, refs: 0 };
        Ok(())
    }

    pub(crate) fn set_port(&mut self, hw: &mut impl Hardware, c: &Block) -> Outcome {
        let mac = get_wide(c, set_port::MAC);
        check(is_unicast(mac), set_port::MAC)?;
        let mut row = [0; PORT_WORDS];
        put_wide(&mut row, table::port::MAC, mac);
        put(&mut row, table::port::RAW_ON, get(c, set_port::RAW_ON));
        put(&mut row, table::port::PROMISCUOUS, get(c, set_port::PROMISCUOUS));
        let (burst, cycles) = (get(c, set_port::RAW_BURST), get(c, set_port::RAW_CYCLES));
        check(cycles == 0 || burst != 0, set_port::RAW_BURST)?;
        put(&mut row, table::port::RAW_BURST, burst);
        put(&mut row, table::port::RAW_CYCLES, cycles);
        hw.commit(id::PORT, 0, &row);
        Ok(())
    }

    pub(crate) fn set_multicast(&mut self, hw: &mut impl Hardware, c: &Block) -> Outcome {
        let index = get(c, set_multicast::INDEX);
        let mac = get_wide(c, set_multicast::MAC);
        check(index < table::MULTICASTS as u32, set_multicast::INDEX)?;
        let mut row = [0; MULTICAST_WORDS];
        if get(c, set_multicast::VALID) == 1 {
            // Broadcast needs no entry.
            check(mac & 1 == 1 && mac != set_multicast::MAC.max(), set_multicast::MAC)?;
            put(&mut row, table::multicast::VALID, 1);
            put_wide(&mut row, table::multicast::MAC, mac);
        }
        hw.commit(id::MULTICAST, index, &row);
        Ok(())
    }
}
