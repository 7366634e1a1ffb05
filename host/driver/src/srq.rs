//! Shared receive queues: receives that several queue pairs take, whichever needs one.
//!
//! A message takes the oldest receive of the queue when it begins, and completes it when it ends, so receives complete out of order.
//! What a completion says of a receive is its place in the ring; a place is used again when its receive is complete. The ring goes on
//! meanwhile: over a place whose receive is still some message's it is led by a *hole*, which the device passes over.

use crate::cq::Cq;
use crate::device::Device;
use crate::function::{Error, Result};
use crate::memory::RingMemory;
use crate::mr::{Pd, Sge};
use crate::qp::{Qp, Rc, Reset, Ring, Ud, put_sge};
use abi::cmd::{create_srq, head, modify_srq, op, query_srq};
use abi::queue::{HOLE, MAX_MESSAGE, WQE_BLOCK, doorbell, sge};
use abi::table::qp_type;
use std::sync::{Arc, Mutex, MutexGuard};

/// Most receives of a shared receive queue: half the places of the largest ring.
pub const MAX_SHARED_RECEIVES: u32 = 1 << 14;

/// A receive that is posted and not complete.
#[derive(Clone, Copy)]
struct Posted {
    wr_id: u64,
    sge: Sge,
    /// Its index, which never wraps here.
    index: u64,
}

/// The places of a ring.
struct Places {
    places: Box<[Option<Posted>]>,
    /// Index of the next one that is written.
    produced: u64,
    /// All before are known to be taken: one behind them is complete. Those from here on are in the ring, or may be.
    taken: u64,
    outstanding: u32,
    most: u32,
}

impl Places {
    /// For `most` receives.
    fn new(most: u32) -> Self {
        // From `taken` on there are no more than `most` receives, and as many holes, for receives that were outstanding when the one
        // at `taken` was posted: so there is always room for another one.
        let log2 = most.next_power_of_two().ilog2() + 1;
        let log2 = log2.max((WQE_BLOCK / sge::BYTES).ilog2());
        Places { places: vec![None; 1 << log2].into(), produced: 0, taken: 0, outstanding: 0, most }
    }

    fn log2(&self) -> u32 {
        self.places.len().ilog2()
    }

    fn at(&mut self, index: u64) -> &mut Option<Posted> {
        let mask = self.places.len() - 1;
        &mut self.places[index as usize & mask]
    }

    /// Posts a receive: `write` writes the next place of the ring. False if there is no room.
    fn post(&mut self, wr_id: u64, sge: Sge, mut write: impl FnMut(Sge)) -> bool {
        if self.outstanding == self.most {
            return false;
        }
        while self.at(self.produced).is_some() {
            write(Sge { addr: 0, lkey: 0, len: HOLE });
            self.produced += 1;
        }
        write(sge);
        let index = self.produced;
        *self.at(index) = Some(Posted { wr_id, sge, index });
        self.produced += 1;
        self.outstanding += 1;
        debug_assert!(self.produced - self.taken <= self.places.len() as u64, "further than the ring is long");
        true
    }

    /// The receive at an index of the ring is complete. None if it is complete already.
    fn complete(&mut self, index: u16) -> Option<Posted> {
        let whole = self.whole(index)?;
        self.complete_whole(whole)
    }

    /// The index of the receive that is outstanding at this one, as it never wraps.
    fn whole(&mut self, index: u16) -> Option<u64> {
        self.at(index.into()).map(|p| p.index).filter(|whole| *whole as u16 == index)
    }

    fn complete_whole(&mut self, index: u64) -> Option<Posted> {
        let done = self.at(index).take_if(|p| p.index == index)?;
        self.outstanding -= 1;
        self.taken = self.taken.max(done.index + 1);
        Some(done)
    }

    /// Completes any that is outstanding.
    fn complete_any(&mut self) -> Option<Posted> {
        let index = self.places.iter().flatten().map(|p| p.index).min()?;
        self.complete_whole(index)
    }
}

/// Ring and places.
struct Queue {
    ring: Ring,
    places: Places,
}

impl Queue {
    fn post(&mut self, wr_id: u64, sge: Sge) -> bool {
        let ring = &mut self.ring;
        self.places.post(wr_id, sge, |s| {
            let mut unit = [0; sge::BYTES];
            put_sge(&mut unit, 0, &s);
            ring.push(&unit);
        })
    }
}

/// The queue itself, which QPs keep as long as they may take receives from it.
pub(crate) struct SrqHandle {
    device: Device,
    pub(crate) number: u32,
    pub(crate) pd: Pd,
    queue: Mutex<Queue>,
}

impl SrqHandle {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn ring(&self) {
        if !self.device.0.life.is_over() {
            self.queue().ring.ring();
        }
    }

    /// The receive at an index of the ring is complete: its number, once.
    pub(crate) fn complete(&self, index: u16) -> Option<u64> {
        self.queue().places.complete(index).map(|p| p.wr_id)
    }

    /// The receive that is outstanding at an index of the ring, by an index that never wraps: what is known of it now may be used when
    /// it is complete already.
    pub(crate) fn whole(&self, index: u16) -> Option<u64> {
        self.queue().places.whole(index)
    }

    /// The same as [`SrqHandle::complete`], of that one.
    pub(crate) fn complete_whole(&self, index: u64) -> Option<u64> {
        self.queue().places.complete_whole(index).map(|p| p.wr_id)
    }

    /// The device is gone: completes any that is outstanding.
    pub(crate) fn complete_any(&self) -> Option<u64> {
        self.queue().places.complete_any().map(|p| p.wr_id)
    }

    /// A QP is gone with a receive whose completion nobody has seen: it is posted again.
    pub(crate) fn give_back(&self, index: u16) {
        let whole = self.whole(index);
        whole.into_iter().for_each(|index| self.give_back_whole(index));
    }

    /// The same of that one.
    pub(crate) fn give_back_whole(&self, index: u64) {
        let mut queue = self.queue();
        let Some(p) = queue.places.complete_whole(index) else { return };
        let posted = queue.post(p.wr_id, p.sge);
        debug_assert!(posted, "its place has just become free");
        drop(queue);
        self.ring();
    }
}

impl Drop for SrqHandle {
    fn drop(&mut self) {
        self.device.destroy(op::DESTROY_SRQ, self.number);
    }
}

/// A shared receive queue. Its receives have one SGE. It ends with the last handle and the last queue pair of it.
///
/// All methods may be called from any thread.
#[derive(Clone)]
pub struct Srq(Arc<SrqHandle>);

/// What QUERY_SRQ tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqInfo {
    /// The limit that it is armed with; 0 for none, or when SRQ_LIMIT has come.
    pub limit: u32,
    /// Places of its ring that no message has taken: the receives that are posted, and holes between them, of which there is at most
    /// one for each receive that a message under way has.
    pub posted: u32,
}

impl Pd {
    /// Creates a shared receive queue for at most `receives` receives that are not complete. Its number is one that no queue pair has.
    pub fn create_srq(&self, receives: u32) -> Result<Srq> {
        if !(1..=MAX_SHARED_RECEIVES).contains(&receives) {
            return Err(Error::new(format!("a shared receive queue of {receives} entries"))
                .hint(format!("1 to {MAX_SHARED_RECEIVES} are possible")));
        }
        let device = &self.0.device;
        let places = Places::new(receives);
        let log2 = places.log2();
        let memory = RingMemory::new(&device.0.bus, sge::BYTES << log2)?;
        let c = device
            .command(op::CREATE_SRQ)
            .with(create_srq::PD, self.0.number.into())
            .with(create_srq::LOG2, (log2 - (WQE_BLOCK / sge::BYTES).ilog2()).into())
            .with(create_srq::SGES, 1)
            .with(create_srq::BASE, memory.iova());
        let (number, _) = device.create(&c)?;
        let ring = Ring::new(memory, log2, sge::BYTES, device.doorbell(doorbell::RQ), number);
        let queue = Mutex::new(Queue { ring, places });
        Ok(Srq(Arc::new(SrqHandle { device: device.clone(), number, pd: self.clone(), queue })))
    }
}

impl Srq {
    /// Its number, as events name it.
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// Creates a reliable connected queue pair in RESET that takes its receives from this queue, of the same protection domain. They
    /// complete in `recv_cq`.
    pub fn create_qp(&self, send_cq: &Cq, recv_cq: &Cq, send_blocks: u32) -> Result<Qp<Reset, Rc>> {
        self.0.pd.create_sharing(qp_type::RC, send_cq, recv_cq, send_blocks, &self.0)
    }

    /// Creates a queue pair for datagrams that does.
    pub fn create_ud_qp(&self, send_cq: &Cq, recv_cq: &Cq, send_blocks: u32) -> Result<Qp<Reset, Ud>> {
        self.0.pd.create_sharing(qp_type::UD, send_cq, recv_cq, send_blocks, &self.0)
    }

    /// Posts a receive. Errors: queue full, too many SGEs, device gone.
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<()> {
        self.post_recvs().add(wr_id, sges)
    }

    /// Begins a batch of receives.
    pub fn post_recvs(&self) -> PostShared<'_> {
        PostShared { srq: &self.0, posted: 0 }
    }

    /// Asks for the event SRQ_LIMIT (on event queue 0), once, when fewer than `limit` receives are posted that no message has taken:
    /// at once if that is so now. 0 takes it back.
    pub fn arm(&self, limit: u32) -> Result<()> {
        let most = self.0.queue().places.most;
        if limit > most {
            return Err(Error::new(format!("a limit of {limit} receives in a queue of {most}")));
        }
        let c = self.command(op::MODIFY_SRQ).with(modify_srq::LIMIT, limit.into());
        self.0.device.execute(&c).map(drop)
    }

    /// How the device sees it.
    pub fn query(&self) -> Result<SrqInfo> {
        let a = self.0.device.execute(&self.command(op::QUERY_SRQ))?;
        Ok(SrqInfo { limit: a.get(query_srq::LIMIT) as u32, posted: a.get(query_srq::POSTED) as u32 })
    }

    fn command(&self, opcode: u8) -> crate::command::Command {
        self.0.device.command(opcode).with(head::NUMBER, self.0.number.into())
    }
}

/// A batch of receives of a shared queue. They reach the device when the batch is dropped.
pub struct PostShared<'a> {
    srq: &'a SrqHandle,
    posted: u32,
}

impl PostShared<'_> {
    /// Adds a receive into at most one SGE. Errors change nothing: queue full, too many SGEs, an SGE longer than a message, device gone.
    pub fn add(&mut self, wr_id: u64, sges: &[Sge]) -> Result<()> {
        self.srq.device.0.life.known()?;
        let one = match sges {
            [] => Sge::default(),
            [one] => *one,
            more => {
                let e = Error::new(format!("{} SGEs in a receive", more.len()));
                return Err(e.hint("at most 1 in a shared receive queue"));
            }
        };
        if u64::from(one.len) > MAX_MESSAGE {
            return Err(Error::new(format!("an SGE of {} bytes", one.len)).hint("no message has more than 2^31"));
        }
        if !self.srq.queue().post(wr_id, one) {
            return Err(Error::new("the shared receive queue is full").hint("poll the completion queues first"));
        }
        self.posted += 1;
        Ok(())
    }
}

impl Drop for PostShared<'_> {
    fn drop(&mut self) {
        if self.posted > 0 {
            self.srq.ring();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::seq::IndexedRandom;
    use rand::{RngExt, SeedableRng};
    use std::collections::{BTreeMap, VecDeque};

    /// A device that takes receives in order and completes them in any; some take very long.
    fn receives_complete_in_any_order(most: u32, slow: f64, seed: u64) -> u64 {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        let mut places = Places::new(most);
        let size = places.places.len() as u64;
        let (mut ring, mut holes) = (VecDeque::new(), 0);
        let (mut next, mut index) = (0u64, 0u64);
        // By the index at which they were taken: their numbers, and when they may complete.
        let mut under_way: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for turn in 0..200_000 {
            if rng.random_bool(0.5) {
                let outstanding = ring.iter().filter(|s: &&Sge| s.len != HOLE).count() + under_way.len();
                let sge = Sge { addr: next, lkey: 7, len: 100 };
                let posted = places.post(next, sge, |s| ring.push_back(s));
                assert_eq!(posted, outstanding < most as usize, "turn {turn}: {outstanding} of {most} outstanding");
                next += u64::from(posted);
                // The device's check of a doorbell.
                assert!(ring.len() as u64 <= size, "turn {turn}: {} in a ring of {size}", ring.len());
            }
            if rng.random_bool(0.5)
                && let Some(s) = ring.pop_front()
            {
                if s.len == HOLE {
                    holes += 1;
                } else {
                    let wait =
                        if rng.random_bool(slow) { rng.random_range(0..100_000) } else { rng.random_range(0..4) };
                    under_way.insert(index, (s.addr, turn + wait));
                }
                index += 1;
            }
            let ripe: Vec<u64> = under_way.iter().filter(|u| u.1.1 <= turn).map(|u| *u.0).collect();
            if let Some(at) = ripe.choose(&mut rng) {
                let (wr_id, _) = under_way.remove(at).unwrap();
                let p = places.complete(*at as u16).expect("it was outstanding");
                assert_eq!((p.wr_id, p.sge.addr, p.index), (wr_id, wr_id, *at));
                assert!(places.complete(*at as u16).is_none(), "once");
            }
        }
        holes
    }

    #[test]
    fn every_receive_completes_once_whatever_the_order() {
        let mut holes = 0;
        for (seed, most) in [1, 2, 3, 4, 5, 8, 31, 200].into_iter().enumerate() {
            for slow in [0.0, 0.001, 0.1] {
                holes += receives_complete_in_any_order(most, slow, seed as u64);
            }
        }
        assert!(holes > 1000, "{holes} holes");
    }

    #[test]
    fn a_receive_that_a_message_keeps_is_not_taken_for_one_of_65536_later() {
        let mut places = Places::new(4);
        let any = Sge::default();
        let post = |places: &mut Places, n| {
            let mut written = 0;
            assert!(places.post(n, any, |_| written += 1));
            written
        };
        post(&mut places, 1000);
        for n in 0..70_000u64 {
            let at = places.produced + u64::from(places.at(places.produced).is_some());
            post(&mut places, n);
            assert_eq!(places.complete(at as u16).map(|p| p.wr_id), Some(n));
        }
        assert_eq!(places.complete(0).map(|p| p.wr_id), Some(1000));
        assert_eq!(places.outstanding, 0);
        // Nor one of 65536 later for it.
        places.produced = places.produced.next_multiple_of(1 << 16);
        places.taken = places.produced;
        let at = places.produced;
        post(&mut places, 1);
        assert!(places.complete_whole(at - (1 << 16)).is_none());
        assert_eq!(places.complete_whole(at).map(|p| p.wr_id), Some(1));
        for n in 2..4 {
            post(&mut places, n);
        }
        let rest: Vec<u64> = std::iter::from_fn(|| places.complete_any()).map(|p| p.wr_id).collect();
        assert_eq!(rest, [2, 3]);
    }
}
