//! Work requests that only the control plane may execute: the requester stops a QP at one, shows it in `mmio::ASK`, and goes on
//! when a row of its QP brings the verdict.

use crate::{
    Hardware, Load, MTT_UNIT, Plane,
    pairs::{Loads, state},
    regions::Key,
    regions::{WORDS, is_valid, may, pages_before_last, skews},
    words::{Block, get, get_wide, put, put_wide, set},
};
use abi::{
    cmd::key_kind,
    queue::{WQE_BLOCK, key_wqe, send_op, send_wqe},
    status::cause,
    table::{self, access, id, invalidate, key, qp_send, qp_state, verdict},
};

impl Plane<'_> {
    /// Does what the next work request that is shown asks for; whether there was one.
    pub fn watch_asks(&mut self, hw: &mut impl Hardware) -> bool {
        let ask = hw.ask();
        if ask >> 31 == 0 {
            return false;
        }
        let n = (ask >> 16 & 0xfff) as usize;
        let refused = self.decide(hw, n, ask & 0xffff).err().unwrap_or(0);
        let mut row = self.send_row(n, Loads::Nothing, self.qps[n].holder as u32 - 1);
        put(&mut row, qp_send::VERDICT, verdict::DONE as u32 | refused as u32);
        hw.commit(id::QP_SEND, n as u32, &row);
        true
    }

    /// The cause, if it may not be.
    fn decide(&mut self, hw: &mut impl Hardware, n: usize, index: u32) -> Result<(), u8> {
        let qp = &self.qps[n];
        let slot = index & ((1 << (qp.logs & 15)) - 1);
        let base = qp.sq_base[0] as u64 | (qp.sq_base[1] as u64) << 32;
        let mut wqe: Block = [0; 16];
        if !hw.dma_read(base + (slot * WQE_BLOCK as u32) as u64, &mut wqe) {
            return Err(cause::DMA_ERROR);
        }
        // What a QP has not begun when it fails is flushed.
        if !matches!(state(hw, n), qp_state::RTS | qp_state::SQD) {
            return Err(cause::WQE_OPCODE);
        }
        match get(&wqe, send_wqe::OPCODE) as u8 {
            send_op::REG_MR => self.register(hw, n, &wqe),
            send_op::BIND_MW => self.bind(hw, n, &wqe),
            _ => Err(cause::WQE_OPCODE),
        }
    }

    /// Registers a region of pages, under a new key byte.
    fn register(&mut self, hw: &mut impl Hardware, n: usize, wqe: &Block) -> Result<(), u8> {
        let flags = get(wqe, key_wqe::ACCESS);
        let va = get_wide(wqe, send_wqe::REMOTE_VA);
        let length = get_wide(wqe, key_wqe::SIZE);
        let offset = get(wqe, key_wqe::PAGES);
        let number = get(wqe, send_wqe::RKEY) >> 8;
        let qp = &self.qps[n];
        let found = self.keys.get_mut(number as usize).filter(|k| k.holder == qp.holder && k.kind == key_kind::FAST);
        let own = found.ok_or(cause::KEY_INVALID)?;
        if own.pd != qp.pd {
            return Err(cause::KEY_PD);
        }
        if !may(flags) || is_valid(hw, number) {
            return Err(cause::KEY_ACCESS);
        }
        // It has as many pages as were named when it was made.
        let list = self.grounds.iter().find(|g| g.number == number).ok_or(cause::KEY_INVALID)?.row;
        let shift = list[3];
        let sound = length != 0 && va.checked_add(length.wrapping_sub(1)).is_some();
        if !sound || offset >= list[2] || pages_before_last(va, length, shift) >= (list[2] - offset) as u64 {
            return Err(cause::KEY_BOUNDS);
        }
        let pages = (list[0] as u64 | (list[1] as u64) << 32) + offset as u64 * 8;
        let first = own.first_unit as u32 * MTT_UNIT;
        let count = pages_before_last(va, length, shift) as u32 + 1;
        match hw.load_mtt(pages, first, count, shift) {
            Load::Done => {}
            Load::BusError => return Err(cause::DMA_ERROR),
            Load::BadAddress => return Err(cause::KEY_BOUNDS),
        }
        own.byte = get(wqe, send_wqe::RKEY) as u8;
        let remote = if flags & FAR != 0 { invalidate::REMOTE } else { 0 };
        let mut row = [0; WORDS];
        put(&mut row, key::VALID, 1);
        put(&mut row, key::ACCESS, flags);
        put(&mut row, key::INVALIDATE, (invalidate::LOCAL | remote) as u32);
        put(&mut row, key::KEY_BYTE, own.byte as u32);
        put(&mut row, key::PD, own.pd as u32);
        put_wide(&mut row, key::VA, va);
        put_wide(&mut row, key::LENGTH, length);
        put(&mut row, table::PAGE_SHIFT, shift);
        put(&mut row, table::MTT_INDEX, first);
        hw.commit(id::KEY, number, &row);
        Ok(())
    }

    /// Opens a part of a region to the peer of QP `n`, under a new key byte of a window (IBTA 10.6.7).
    fn bind(&mut self, hw: &mut impl Hardware, n: usize, wqe: &Block) -> Result<(), u8> {
        let flags = get(wqe, key_wqe::ACCESS) & FAR;
        let va = get_wide(wqe, send_wqe::REMOTE_VA);
        let length = get_wide(wqe, key_wqe::SIZE);
        let (rkey, lkey) = (get(wqe, send_wqe::RKEY), get(wqe, key_wqe::LKEY));
        let (number, region) = (rkey >> 8, lkey >> 8);
        let qp = &self.qps[n];
        let is_region = self.keys.get(region as usize).is_some_and(|k| k.kind == key_kind::REGION);
        let own = |k: &&mut Key| k.holder == qp.holder && k.kind == key_kind::WINDOW;
        let window = self.keys.get_mut(number as usize).filter(own).ok_or(cause::KEY_INVALID)?;
        if window.pd != qp.pd {
            return Err(cause::KEY_PD);
        }
        if is_valid(hw, number) {
            return Err(cause::KEY_ACCESS);
        }
        let ground = self.grounds.iter().find(|g| g.number == region && region != 0).ok_or(cause::KEY_INVALID)?;
        if !is_region {
            return Err(cause::KEY_INVALID);
        }
        let mut row = ground.row;
        if get(&row, key::KEY_BYTE) != lkey & 0xff {
            return Err(cause::KEY_INVALID);
        }
        if get(&row, key::PD) != qp.pd as u32 {
            return Err(cause::KEY_PD);
        }
        let (from, size) = (get_wide(&row, key::VA), get_wide(&row, key::LENGTH));
        let ahead = va.wrapping_sub(from);
        if length == 0 || va < from || ahead > size || length > size - ahead {
            return Err(cause::KEY_BOUNDS);
        }
        let local = get(&row, key::ACCESS) & access::LOCAL_WRITE as u32;
        let contiguous = get(&row, key::CONTIGUOUS) == 1;
        let at = get_wide(&row, key::IOVA).wrapping_add(ahead);
        if !may(flags | local) || contiguous && skews(flags, at, va) {
            return Err(cause::KEY_ACCESS);
        }
        if !contiguous {
            let shift = get(&row, table::PAGE_SHIFT);
            let first = get(&row, table::MTT_INDEX) + ((va >> shift) - (from >> shift)) as u32;
            set(&mut row, table::MTT_INDEX, first);
        }
        if window.first_unit == 0 {
            self.bound += 1;
        }
        (window.byte, window.units, window.first_unit) = (rkey as u8, n as u16, region as u16);
        set(&mut row, key::ACCESS, flags);
        set(&mut row, key::KEY_BYTE, rkey & 0xff);
        put(&mut row, key::INVALIDATE, (invalidate::LOCAL | invalidate::REMOTE) as u32);
        put(&mut row, key::WINDOW, 1);
        put(&mut row, key::QPN, n as u32);
        row[key::VA.lsb / 32..][..4].fill(0);
        if contiguous {
            row[key::IOVA.lsb / 32..][..2].fill(0);
            put_wide(&mut row, key::IOVA, at);
        }
        put_wide(&mut row, key::VA, va);
        put_wide(&mut row, key::LENGTH, length);
        hw.commit(id::KEY, number, &row);
        Ok(())
    }
}

/// What a peer may do.
const FAR: u32 = (access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC) as u32;
