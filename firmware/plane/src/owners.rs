//! What an owner has, and taking it all back when the owner is gone.

use crate::{
    Hardware, Outcome, Plane, check,
    words::{Block, get, put, put_wide},
};
use abi::cmd::{answer, key_kind, kind, list_owned, result};

impl Plane<'_> {
    /// Objects of a kind, and the holder of each.
    fn holder(&self, which: u8, i: usize) -> Option<u8> {
        match which {
            kind::QP => self.qps.get(i).map(|o| o.holder - o.srq_holder()),
            kind::SRQ => self.qps.get(i).map(|o| o.srq_holder()),
            kind::MR => self.keys.get(i).map(|o| o.holder),
            kind::CQ => self.cqs.items.get(i).map(|o| o.holder),
            kind::EQ => self.eqs.items.get(i).map(|o| o.holder),
            kind::AH => self.ahs.get(i).map(|o| o.holder),
            _ => self.pds.items.get(i).map(|o| o.holder),
        }
    }

    pub(crate) fn list_owned(&self, c: &Block, owner: u8, a: &mut Block) -> Outcome {
        let which = get(c, list_owned::KIND) as u8;
        check(which <= kind::SRQ, list_owned::KIND)?;
        let (mut i, mut count) = (get(c, list_owned::FROM) as usize, 0);
        while let Some(holder) = self.holder(which, i) {
            if holder == owner + 1 {
                if count == 0 {
                    put(a, answer::NUMBER, i as u32);
                }
                count += 1;
            }
            i += 1;
        }
        put_wide(a, answer::VALUE, count);
        Ok(())
    }

    pub(crate) fn reclaim(&mut self, hw: &mut impl Hardware, owner: u8, a: &mut Block) -> Outcome {
        let (mut count, mut left) = (0, false);
        // Windows before what they are bound to.
        for i in 0..self.keys.len() {
            if self.keys[i].kind == key_kind::WINDOW && self.keys[i].holder == owner + 1 {
                count += self.destroy_mr(hw, i as u32, owner).is_ok() as u64;
            }
        }
        for which in [kind::QP, kind::SRQ, kind::AH, kind::MR, kind::CQ, kind::EQ, kind::PD] {
            let mut i = 0;
            while let Some(holder) = self.holder(which, i) {
                if holder == owner + 1 {
                    let n = i as u32;
                    let done = match which {
                        kind::QP => self.destroy_qp(hw, n, owner),
                        kind::SRQ => self.destroy_srq(hw, n, owner),
                        kind::AH => self.destroy_ah(hw, n, owner),
                        kind::MR => self.destroy_mr(hw, n, owner),
                        kind::CQ => self.destroy_cq(hw, n, owner),
                        kind::EQ => self.destroy_eq(hw, n, owner),
                        _ => self.destroy_pd(n, owner),
                    };
                    count += done.is_ok() as u64;
                    left |= done.is_err();
                }
                i += 1;
            }
        }
        put_wide(a, answer::VALUE, count);
        if left {
            put(a, answer::RESULT, result::IN_USE as u32);
        }
        Ok(())
    }
}
