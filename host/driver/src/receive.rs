//! Posting receives: one, or a batch with one doorbell.

use crate::function::{Error, Result};
use crate::mr::Sge;
use crate::qp::{Body, CanReceive, Qp, Transport, put_sge};
use abi::queue::{WQE_BLOCK, sge};

/// A batch of receives. They reach the device when the batch is dropped.
pub struct PostRecv<'a> {
    body: &'a mut Body,
    posted: u32,
}

impl<S: CanReceive, T: Transport> Qp<S, T> {
    /// Posts a receive. Errors: queue full, too many SGEs, device gone.
    pub fn post_recv(&mut self, wr_id: u64, sges: &[Sge]) -> Result<()> {
        self.post_recvs().add(wr_id, sges)
    }

    /// Begins a batch of receives.
    pub fn post_recvs(&mut self) -> PostRecv<'_> {
        PostRecv { body: &mut self.body, posted: 0 }
    }
}

impl PostRecv<'_> {
    /// Adds a receive into `sges`, at most as many as [`QpSizes::receive_sges`](crate::qp::QpSizes). Errors change nothing: queue full, too many SGEs, device gone.
    pub fn add(&mut self, wr_id: u64, sges: &[Sge]) -> Result<()> {
        let body = &mut *self.body;
        body.device.0.life.known()?;
        if body.shared.sharing.is_some() {
            return Err(
                Error::new("a receive for a queue pair that takes those of a shared queue").hint("post it there")
            );
        }
        if sges.len() > body.receive_sges {
            let e = Error::new(format!("{} SGEs in a receive", sges.len()));
            return Err(e.hint(format!("at most {}, as the queue pair was made", body.receive_sges)));
        }
        let units = body.receive_units;
        if body.recv.free(body.shared.recv.consumer()) < units.into() {
            return Err(Error::new("the receive queue is full").hint("poll the completion queue first"));
        }
        let mut block = [0; WQE_BLOCK];
        for (s, at) in sges.iter().zip((0..).step_by(sge::BYTES)) {
            put_sge(&mut block, at, s);
        }
        body.recv.push(&block[..usize::from(units) * sge::BYTES]);
        body.shared.recv.post(wr_id, units);
        self.posted += 1;
        Ok(())
    }
}

impl Drop for PostRecv<'_> {
    fn drop(&mut self) {
        if self.posted > 0 && !self.body.device.0.life.is_over() {
            self.body.recv.ring();
        }
    }
}
