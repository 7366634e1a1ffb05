//! Memory regions: keys, and their pages in the translation table.

use crate::{
    Hardware, Load, MTT_UNIT, Outcome, Plane, Refused, check,
    objects::held,
    supported,
    words::{Block, get, get_wide, put, put_wide, up_to},
};
use abi::{
    cmd::{create_mr, head, result},
    table::{self, access, id},
};

const WORDS: usize = up_to(table::key::IOVA);

/// A memory key.
#[derive(Clone, Copy)]
pub struct Key {
    /// Owner plus 1; 0: there is no such key.
    pub(crate) holder: u8,
    pub(crate) pd: u8,
    /// Key byte of the latest region with this number: an old key does not open a new region.
    pub(crate) byte: u8,
    /// Units of the translation table.
    pub(crate) units: u16,
    pub(crate) first_unit: u16,
}

impl Key {
    /// None.
    pub const NONE: Self = Key { holder: 0, pd: 0, byte: 0, units: 0, first_unit: 0 };
}

impl Plane<'_> {
    /// Number and key.
    pub(crate) fn create_mr(&mut self, hw: &mut impl Hardware, c: &Block, owner: u8) -> Outcome<(u32, u32)> {
        let flags = get(c, create_mr::ACCESS);
        let contiguous = get(c, create_mr::CONTIGUOUS);
        let shift = get(c, create_mr::PAGE_SHIFT);
        let va = get_wide(c, create_mr::VA);
        let length = get_wide(c, create_mr::LENGTH);
        let pages = get_wide(c, create_mr::PAGES);
        let pd = self.pds.find(get(c, create_mr::PD), owner, create_mr::PD)?;
        supported(get(c, create_mr::ON_DEMAND) == 0, create_mr::ON_DEMAND)?;
        // Peers write only where the owner may (IBTA 11.2.8.2).
        let writes = (access::REMOTE_WRITE | access::REMOTE_ATOMIC) as u32;
        check(flags & writes == 0 || flags & access::LOCAL_WRITE as u32 != 0, create_mr::ACCESS)?;
        check(length != 0 && va.checked_add(length - 1).is_some(), create_mr::LENGTH)?;
        let mut units = 0;
        let mut entries = 0;
        if contiguous == 1 {
            check(pages.checked_add(length - 1).is_some(), create_mr::PAGES)?;
            // An atomic is aligned by its virtual address, and drops the low bits of that on the bus.
            let atomic = flags & access::REMOTE_ATOMIC as u32 != 0;
            check(!atomic || (pages ^ va) & 7 == 0, create_mr::PAGES)?;
        } else {
            check(matches!(shift, 12 | 16 | 21 | 30), create_mr::PAGE_SHIFT)?;
            check(pages & 7 == 0, create_mr::PAGES)?;
            // The last byte's page minus the first's: a shift each, no 64-bit division.
            let count = ((va + (length - 1)) >> shift) - (va >> shift);
            check(count < (self.limits.mtt_units * MTT_UNIT) as u64, create_mr::LENGTH)?;
            entries = count as u32 + 1;
            check(pages.checked_add(entries as u64 * 8 - 1).is_some(), create_mr::PAGES)?;
            units = entries.div_ceil(MTT_UNIT);
        }
        let full = Refused::new(result::NO_ROOM, 0);
        let number = self.key_turn.find(1, self.limits.keys, |i| self.keys[i].holder == 0).ok_or(full)?;
        let mut first = 0;
        if units != 0 {
            first = self.mtt.find_run(units, self.limits.mtt_units).ok_or(full)?;
            match hw.load_mtt(pages, first * MTT_UNIT, entries, shift) {
                Load::Done => {}
                Load::BusError => return Err(Refused::at(result::DEVICE_ERROR, create_mr::PAGES)),
                Load::BadAddress => return Err(Refused::bad(create_mr::PAGES)),
            }
        }
        for unit in first..first + units {
            self.mtt.take(unit);
        }
        self.key_turn.take(number);
        self.pds.items[pd].refs += 1;
        let key = &mut self.keys[number as usize];
        let byte = key.byte.wrapping_add(1);
        *key = Key { holder: owner + 1, pd: pd as u8, byte, units: units as u16, first_unit: first as u16 };
        let mut row = [0; WORDS];
        put(&mut row, table::key::VALID, 1);
        put(&mut row, table::key::ACCESS, flags);
        put(&mut row, table::key::CONTIGUOUS, contiguous);
        put(&mut row, table::key::KEY_BYTE, byte as u32);
        put(&mut row, table::key::PD, pd as u32);
        put_wide(&mut row, table::key::VA, va);
        put_wide(&mut row, table::key::LENGTH, length);
        if contiguous == 1 {
            put_wide(&mut row, table::key::IOVA, pages);
        } else {
            put(&mut row, table::PAGE_SHIFT, shift);
            put(&mut row, table::MTT_INDEX, first * MTT_UNIT);
        }
        hw.commit(id::KEY, number, &row);
        Ok((number, number << 8 | byte as u32))
    }

    pub(crate) fn destroy_mr(&mut self, hw: &mut impl Hardware, number: u32, owner: u8) -> Outcome {
        held(self.keys.get(number as usize).map_or(0, |k| k.holder), owner, head::NUMBER)?;
        // Accesses that were let in before may still be on their way to the memory.
        hw.commit(id::KEY, number, &[0; WORDS]);
        hw.drain();
        let key = &mut self.keys[number as usize];
        key.holder = 0;
        for unit in key.first_unit..key.first_unit + key.units {
            self.mtt.free(unit as u32);
        }
        self.pds.items[key.pd as usize].refs -= 1;
        Ok(())
    }
}
