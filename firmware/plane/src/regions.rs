//! Memory regions: keys, and their pages in the translation table.

use crate::{
    Hardware, Load, MTT_UNIT, Outcome, Plane, Refused, check,
    objects::held,
    supported,
    words::{Block, get, get_wide, put, put_wide, up_to},
};
use abi::{
    cmd::{create_mr, head, key_kind, result},
    table::{self, access, id},
};

pub(crate) const WORDS: usize = up_to(table::key::IOVA);

/// A memory key.
#[derive(Clone, Copy)]
pub struct Key {
    /// Owner plus 1; 0: there is no such key.
    pub(crate) holder: u8,
    pub(crate) pd: u8,
    /// Key byte of the latest region with this number: an old key does not open a new region.
    pub(crate) byte: u8,
    /// `cmd::key_kind`.
    pub(crate) kind: u8,
    /// Units of the translation table. Of a window the QP and the region that it was bound for last.
    pub(crate) units: u16,
    pub(crate) first_unit: u16,
}

/// Row of a region that windows may be bound to, and its number; 0: none. Of one that is registered later it begins with the address of
/// its list of pages, their number, and log2 of their size.
#[derive(Clone, Copy)]
pub struct Ground {
    pub(crate) number: u32,
    pub(crate) row: [u32; WORDS],
}

impl Ground {
    /// None.
    pub const NONE: Self = Ground { number: 0, row: [0; WORDS] };
}

impl Key {
    /// None.
    pub const NONE: Self = Key { holder: 0, pd: 0, byte: 0, kind: 0, units: 0, first_unit: 0 };
}

/// Peers write only where the owner may (IBTA 11.2.8.2).
pub(crate) fn may(flags: u32) -> bool {
    let writes = (access::REMOTE_WRITE | access::REMOTE_ATOMIC) as u32;
    flags & writes == 0 || flags & access::LOCAL_WRITE as u32 != 0
}

/// Atomics and atomic writes are aligned by the virtual address, and drop the low bits of that on the bus.
pub(crate) fn skews(flags: u32, iova: u64, va: u64) -> bool {
    flags & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) as u32 != 0 && (iova ^ va) & 7 != 0
}

pub(crate) fn is_page(shift: u32) -> bool {
    matches!(shift, 12 | 16 | 21 | 30)
}

/// The last byte's page minus the first's: a shift each, no 64-bit division.
pub(crate) fn pages_before_last(va: u64, length: u64, shift: u32) -> u64 {
    ((va + (length - 1)) >> shift) - (va >> shift)
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
        check(may(flags), create_mr::ACCESS)?;
        let kind = get(c, create_mr::KIND) as u8;
        check(kind <= key_kind::WINDOW, create_mr::KIND)?;
        let (fast, window) = (kind == key_kind::FAST, kind == key_kind::WINDOW);
        check(window || length != 0 && va.checked_add(length - 1).is_some(), create_mr::LENGTH)?;
        let mut units = 0;
        let mut entries = 0;
        let full = Refused::new(result::NO_ROOM, 0);
        let mut ground = None;
        let binds = get(c, create_mr::BINDS) != 0;
        check(!binds || kind == key_kind::REGION, create_mr::BINDS)?;
        if binds || fast {
            ground = Some(self.grounds.iter().position(|g| g.number == 0).ok_or(full)?);
        }
        if fast {
            // Room for its pages is all that it has yet.
            check(length <= (self.limits.mtt_units * MTT_UNIT) as u64, create_mr::LENGTH)?;
            check(is_page(shift), create_mr::PAGE_SHIFT)?;
            check(pages & 7 == 0 && pages.checked_add(length * 8 - 1).is_some(), create_mr::PAGES)?;
            units = (length as u32).div_ceil(MTT_UNIT);
        } else if window {
            // All is said when it is bound.
        } else if contiguous == 1 {
            check(pages.checked_add(length - 1).is_some(), create_mr::PAGES)?;
            check(!skews(flags, pages, va), create_mr::PAGES)?;
        } else {
            check(is_page(shift), create_mr::PAGE_SHIFT)?;
            check(pages & 7 == 0, create_mr::PAGES)?;
            let count = pages_before_last(va, length, shift);
            check(count < (self.limits.mtt_units * MTT_UNIT) as u64, create_mr::LENGTH)?;
            entries = count as u32 + 1;
            check(pages.checked_add(entries as u64 * 8 - 1).is_some(), create_mr::PAGES)?;
            units = entries.div_ceil(MTT_UNIT);
        }
        let number = self.key_turn.find(1, self.limits.keys, |i| self.keys[i].holder == 0).ok_or(full)?;
        let mut first = 0;
        if units != 0 {
            first = self.mtt.find_run(units, self.limits.mtt_units).ok_or(full)?;
            match if fast { Load::Done } else { hw.load_mtt(pages, first * MTT_UNIT, entries, shift) } {
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
        *key = Key { holder: owner + 1, pd: pd as u8, byte, kind, units: units as u16, first_unit: first as u16 };
        let mut row = [0; WORDS];
        if fast {
            row[..4].copy_from_slice(&[pages as u32, (pages >> 32) as u32, length as u32, shift]);
        }
        if let Some(i) = ground.filter(|_| fast) {
            self.grounds[i] = Ground { number, row };
        }
        if fast || window {
            return Ok((number, number << 8 | byte as u32));
        }
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
        if let Some(i) = ground {
            self.grounds[i] = Ground { number, row };
        }
        Ok((number, number << 8 | byte as u32))
    }

    pub(crate) fn destroy_mr(&mut self, hw: &mut impl Hardware, number: u32, owner: u8) -> Outcome {
        held(self.keys.get(number as usize).map_or(0, |k| k.holder), owner, head::NUMBER)?;
        let ground = self.grounds.iter().position(|g| g.number == number);
        if ground.is_some() && self.bound != 0 {
            // Not while a window is open on it.
            for i in 0..self.keys.len() {
                if self.is_bound(i) && self.keys[i].first_unit as u32 == number && is_valid(hw, i as u32) {
                    return Err(Refused::at(result::IN_USE, head::NUMBER));
                }
            }
        }
        if let Some(i) = ground {
            self.grounds[i] = Ground::NONE;
        }
        // Accesses that were let in before may still be on their way to the memory.
        hw.commit(id::KEY, number, &[0; WORDS]);
        hw.drain();
        if self.is_bound(number as usize) {
            self.bound -= 1;
        }
        let key = &mut self.keys[number as usize];
        key.holder = 0;
        let units = if key.kind == key_kind::WINDOW { 0 } else { key.units };
        for unit in key.first_unit..key.first_unit + units {
            self.mtt.free(unit as u32);
        }
        self.pds.items[key.pd as usize].refs -= 1;
        Ok(())
    }

    /// It is a window that was bound once.
    pub(crate) fn is_bound(&self, i: usize) -> bool {
        let key = &self.keys[i];
        key.holder != 0 && key.kind == key_kind::WINDOW && key.first_unit != 0
    }

    /// The windows of a QP that begins anew, or is gone, open no more.
    pub(crate) fn close_windows(&mut self, hw: &mut impl Hardware, qpn: u32) {
        let mut i = 0;
        while self.bound != 0 && i < self.keys.len() {
            if self.is_bound(i) && self.keys[i].units as u32 == qpn {
                hw.commit(id::KEY, i as u32, &[0; WORDS]);
                self.keys[i].first_unit = 0;
                self.bound -= 1;
            }
            i += 1;
        }
    }
}

/// The key opens something: what may be invalidated tells itself.
pub(crate) fn is_valid(hw: &mut impl Hardware, number: u32) -> bool {
    let mut row = [0; 1];
    hw.fetch(id::KEY, number, &mut row);
    get(&row, table::key::VALID) != 0
}
