//! Shared receive queues.
//!
//! To the engines one is a receive queue like any other. It has the number of a queue pair that is none: in INIT, where errors of its
//! ring are heard and packets are not.

use crate::{
    Hardware, Outcome, Plane, Refused, check,
    objects::{held, ring_fits},
    pairs::{Loads, Qp, SRQ, state_row},
    supported,
    words::{Block, get, get_wide, put},
};
use abi::{
    cmd::{create_qp, create_srq, head, modify_srq, query_srq, result},
    queue::{MAX_RECV_LOG2, WQE_BLOCK, sge},
    table::{id, qp_state, qp_type, srq},
};

impl Plane<'_> {
    #[inline(never)]
    pub(crate) fn create_srq(&mut self, hw: &mut impl Hardware, c: &Block, owner: u8) -> Outcome<u32> {
        let log2 = get(c, create_srq::LOG2);
        check(log2 <= MAX_RECV_LOG2, create_srq::LOG2)?;
        supported(get(c, create_srq::SGES) == 1, create_srq::SGES)?;
        let pd = self.pds.find(get(c, create_srq::PD), owner, create_srq::PD)?;
        let base = create_srq::BASE;
        check(ring_fits(get_wide(c, base), (WQE_BLOCK as u32) << log2, WQE_BLOCK as u32), base)?;
        let number = self.vacant_qp().ok_or(Refused::new(result::NO_ROOM, 0))?;
        self.qp_turn.take(number);
        self.pds.items[pd].refs += 1;
        self.qps[number as usize] = Qp {
            holder: owner + 1,
            kind: SRQ,
            pd: pd as u8,
            logs: (log2 as u8) << 4,
            one_sge: true,
            loaded: true,
            rq_base: [c[base.lsb / 32], c[base.lsb / 32 + 1]],
            ..Qp::NONE
        };
        hw.commit(id::QP_RECV, number, &self.recv_row(number as usize, Loads::Queue, owner as u32));
        hw.commit(id::QP_STATE, number, &state_row(qp_state::INIT));
        Ok(number)
    }

    #[inline(never)]
    fn find_srq(&self, number: u32, owner: u8, field: abi::Field) -> Outcome<usize> {
        let holder = self.qps.get(number as usize).map_or(0, Qp::srq_holder);
        held(holder, owner, field).map(|()| number as usize)
    }

    /// The shared queue that a new QP of this kind takes its receives from.
    #[inline(never)]
    pub(crate) fn srq_of(&self, c: &Block, kind: u8, pd: usize, owner: u8) -> Outcome<usize> {
        supported(kind == qp_type::RC || kind == qp_type::UD, create_qp::SHARED)?;
        let n = self.find_srq(get(c, create_qp::SRQN), owner, create_qp::SRQN)?;
        check(self.qps[n].pd as usize == pd, create_qp::SRQN)?;
        check(get(c, create_qp::RQ_SGES) == 1, create_qp::RQ_SGES)?;
        Ok(n)
    }

    pub(crate) fn modify_srq(&self, hw: &mut impl Hardware, c: &Block, owner: u8) -> Outcome {
        let n = self.find_srq(get(c, head::NUMBER), owner, head::NUMBER)?;
        let limit = get(c, modify_srq::LIMIT);
        check(limit <= ((WQE_BLOCK / sge::BYTES) as u32) << (self.qps[n].logs >> 4), modify_srq::LIMIT)?;
        let mut row = [0];
        put(&mut row, srq::LIMIT, limit);
        hw.commit(id::SRQ, n as u32, &row);
        Ok(())
    }

    pub(crate) fn query_srq(&self, hw: &mut impl Hardware, number: u32, owner: u8, a: &mut Block) -> Outcome {
        let n = self.find_srq(number, owner, head::NUMBER)?;
        let mut row = [0];
        hw.fetch(id::SRQ, n as u32, &mut row);
        // As they stand in the row.
        const { assert!(query_srq::POSTED.lsb - query_srq::LIMIT.lsb == srq::POSTED.lsb && srq::LIMIT.lsb == 0) };
        a[query_srq::LIMIT.lsb / 32] = row[0];
        Ok(())
    }

    pub(crate) fn destroy_srq(&mut self, hw: &mut impl Hardware, number: u32, owner: u8) -> Outcome {
        let n = self.find_srq(number, owner, head::NUMBER)?;
        if *self.qps[n].srq_users() != 0 {
            return Err(Refused::at(result::IN_USE, head::NUMBER));
        }
        self.reset(hw, n);
        self.qps[n].holder = 0;
        self.pds.items[self.qps[n].pd as usize].refs -= 1;
        Ok(())
    }
}
