//! Work requests that are posted and not complete: what a QP writes and its completion queues read.
//!
//! A QP's owner is the only one who posts; whoever polls its completion queue is the only one who completes.

use crate::srq::SrqHandle;
use abi::table::qp_type;
#[cfg(test)]
use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, Ordering};
#[cfg(not(test))]
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, Ordering};

/// A work request in a ring, by the index of its first unit: a block of a send queue, an SGE of a receive queue.
#[derive(Default)]
struct Slot {
    wr_id: AtomicU64,
    units: AtomicU16,
}

/// The work requests of a ring: those from consumer to producer are posted and not complete.
pub(crate) struct Slots {
    slots: Box<[Slot]>,
    producer: AtomicU16,
    consumer: AtomicU16,
}

impl Slots {
    fn new(log2: u32) -> Self {
        let slots = (0..1usize << log2).map(|_| Slot::default()).collect();
        Slots { slots, producer: AtomicU16::new(0), consumer: AtomicU16::new(0) }
    }

    fn slot(&self, index: u16) -> &Slot {
        &self.slots[usize::from(index) & (self.slots.len() - 1)]
    }

    /// Notes a work request at the producer index.
    pub(crate) fn post(&self, wr_id: u64, units: u16) {
        let at = self.producer.load(Ordering::Relaxed);
        self.slot(at).wr_id.store(wr_id, Ordering::Relaxed);
        self.slot(at).units.store(units, Ordering::Relaxed);
        self.producer.store(at.wrapping_add(units), Ordering::Release);
    }

    /// Index up to which all is complete.
    pub(crate) fn consumer(&self) -> u16 {
        self.consumer.load(Ordering::Acquire)
    }

    /// The work request at `index` is complete, and all before it; returns its number.
    pub(crate) fn complete(&self, index: u16) -> u64 {
        let slot = self.slot(index);
        let (wr_id, units) = (slot.wr_id.load(Ordering::Relaxed), slot.units.load(Ordering::Relaxed));
        // From here on the slot is the poster's again.
        self.consumer.store(index.wrapping_add(units), Ordering::Release);
        wr_id
    }

    /// Completes the oldest that is posted, if there is one.
    fn flush(&self) -> Option<u64> {
        let oldest = self.consumer.load(Ordering::Relaxed);
        (oldest != self.producer.load(Ordering::Acquire)).then(|| self.complete(oldest))
    }
}

/// How a send queue stands that can fail alone.
mod sends {
    /// It sends.
    pub const RUN: u8 = 0;
    /// It has stopped (SQE): all that is posted is flushed.
    pub const STOPPED: u8 = 1;
    /// It sends again; what was posted before that may be still to be flushed.
    pub const OWES: u8 = 2;
}

/// Of a QP that takes its receives from a shared queue.
pub(crate) struct Sharing {
    pub(crate) srq: std::sync::Arc<SrqHandle>,
    /// The receive that a message under way had when the QP was buried, by its index that never wraps.
    held: std::sync::Mutex<Option<u64>>,
    /// Index of the receive that failed first: its message may be told of once more.
    failed: std::sync::Mutex<Option<u16>>,
}

impl Sharing {
    pub(crate) fn new(srq: std::sync::Arc<SrqHandle>) -> Self {
        Sharing { srq, held: Default::default(), failed: Default::default() }
    }

    /// The QP is in ERR, with this receive taken.
    pub(crate) fn hold(&self, index: Option<u16>) {
        *self.held.lock().unwrap_or_else(|e| e.into_inner()) = index.and_then(|i| self.srq.whole(i));
    }

    /// The device has completed this receive; its number, once.
    pub(crate) fn complete(&self, index: u16, failed: bool) -> Option<u64> {
        if failed {
            let mut first = self.failed.lock().unwrap_or_else(|e| e.into_inner());
            if *first == Some(index) {
                return None;
            }
            first.get_or_insert(index);
        }
        self.srq.complete(index)
    }

    /// That receive, once.
    pub(crate) fn take_held(&self) -> Option<u64> {
        self.held.lock().unwrap_or_else(|e| e.into_inner()).take()
    }

    /// Completes it, unless it has failed, and so is complete. Of a device that is gone all that is outstanding is somebody's.
    fn flush(&self, gone: bool) -> Option<u64> {
        let held = self.take_held().and_then(|index| self.srq.complete_whole(index));
        held.or_else(|| gone.then(|| self.srq.complete_any()).flatten())
    }
}

/// What completion and event queues need of a QP.
pub(crate) struct Posted {
    pub(crate) send: Slots,
    pub(crate) recv: Slots,
    /// Where its receives are, if they are not its own.
    pub(crate) sharing: Option<Sharing>,
    /// Numbers of the completion queues of its sends and of its receives.
    pub(crate) cqs: [u32; 2],
    /// It is in ERR, and all completions that the device has for it are in the rings: what is left is flushed.
    buried: AtomicBool,
    /// It is of UC or UD: a send that fails stops the send queue alone.
    pub(crate) lone_sends: bool,
    /// One of `sends`; with OWES, sends up to `until` are to be flushed.
    sends: AtomicU8,
    until: AtomicU16,
}

impl Posted {
    /// Of a QP of type `kind` (`qp_type`) with rings of these sizes.
    pub(crate) fn new(log2: [u32; 2], cqs: [u32; 2], kind: u8, sharing: Option<Sharing>) -> Self {
        let lone_sends = matches!(kind, qp_type::UC | qp_type::UD);
        let (send, recv) = (Slots::new(log2[0]), Slots::new(log2[1]));
        let (sends, until) = (AtomicU8::new(sends::RUN), AtomicU16::new(0));
        Posted { send, recv, sharing, cqs, buried: AtomicBool::new(false), lone_sends, sends, until }
    }

    /// The device has completed a failed send, its last one: what else is posted is flushed. False if that is known.
    pub(crate) fn stop_sends(&self) -> bool {
        self.sends.swap(sends::STOPPED, Ordering::AcqRel) == sends::RUN
    }

    /// Its failed send was polled, and it has not been told to go on since.
    pub(crate) fn has_stopped(&self) -> bool {
        self.sends.load(Ordering::Acquire) == sends::STOPPED
    }

    /// The device sends again what is posted from now on.
    pub(crate) fn resume_sends(&self) {
        // Before the next post, whose request a poller then never takes for one of before.
        self.until.store(self.send.producer.load(Ordering::Relaxed), Ordering::Relaxed);
        self.sends.store(sends::OWES, Ordering::Release);
    }

    /// There are sends to be flushed, or may be.
    pub(crate) fn owes_sends(&self) -> bool {
        self.sends.load(Ordering::Acquire) != sends::RUN
    }

    /// Sends of before it was told to go on are to be flushed: ahead of what the device completes since.
    pub(crate) fn owes_old_sends(&self) -> bool {
        self.sends.load(Ordering::Acquire) == sends::OWES && self.send.consumer() != self.until.load(Ordering::Relaxed)
    }

    /// The next send that was posted to a stopped queue.
    pub(crate) fn flush_send(&self) -> Option<u64> {
        // In this order: whose post is seen has said before that the queue goes on.
        let posted = self.send.producer.load(Ordering::Acquire);
        let end = match self.sends.load(Ordering::Acquire) {
            sends::STOPPED => posted,
            sends::OWES => self.until.load(Ordering::Relaxed),
            _ => return None,
        };
        let oldest = self.send.consumer.load(Ordering::Relaxed);
        (oldest != end).then(|| self.send.complete(oldest))
    }

    /// Nothing is owed any more, and that is news. For whoever polls the send queue's completions: nobody else knows what is flushed.
    pub(crate) fn settles(&self) -> bool {
        let (owes, run) = (sends::OWES, sends::RUN);
        self.sends.load(Ordering::Acquire) == owes
            && !self.owes_old_sends()
            && self.sends.compare_exchange(owes, run, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Takes back what is owed, because the QP is gone. Whether something was.
    pub(crate) fn forgive_sends(&self) -> bool {
        self.sends.swap(sends::RUN, Ordering::AcqRel) != sends::RUN
    }

    pub(crate) fn bury(&self) {
        self.buried.store(true, Ordering::Release);
    }

    pub(crate) fn is_buried(&self) -> bool {
        self.buried.load(Ordering::Acquire)
    }

    /// Completes the oldest that is posted and completes in `cq`; its number, and whether it is a send. `gone`: so is the device.
    pub(crate) fn flush(&self, cq: u32, gone: bool) -> Option<(u64, bool)> {
        let flush = |slots: &Slots, send: bool| slots.flush().map(|wr_id| (wr_id, send));
        let send = (self.cqs[0] == cq).then(|| flush(&self.send, true)).flatten();
        let recv = || match &self.sharing {
            Some(sharing) => sharing.flush(gone).map(|wr_id| (wr_id, false)),
            None => flush(&self.recv, false),
        };
        send.or_else(|| (self.cqs[1] == cq).then(recv).flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::{sync::Arc, thread};

    /// In all interleavings, and with all that the memory orders allow, of a poster and a poller of a ring of one request.
    #[test]
    fn a_slot_is_read_before_a_poster_on_another_thread_may_use_it_again() {
        loom::model(|| {
            let slots = Arc::new(Slots::new(0));
            slots.post(7, 1);
            let poster = slots.clone();
            let poster = thread::spawn(move || {
                while poster.consumer() != 1 {
                    thread::yield_now();
                }
                poster.post(8, 1);
            });
            let done = slots.flush();
            assert_eq!(done, Some(7), "the number of another request");
            poster.join().unwrap();
            assert_eq!(slots.flush(), Some(8));
        });
    }

    #[test]
    fn what_is_posted_once_a_stopped_queue_goes_on_is_not_flushed() {
        loom::model(|| {
            let qp = Arc::new(Posted::new([2, 0], [0, 0], qp_type::UD, None));
            qp.send.post(1, 1);
            qp.send.post(2, 2);
            assert!(qp.stop_sends() && qp.has_stopped());
            let poster = qp.clone();
            let poster = thread::spawn(move || {
                poster.resume_sends();
                poster.send.post(3, 1);
            });
            let flushed: Vec<_> = std::iter::from_fn(|| qp.flush_send()).collect();
            assert_eq!(flushed, [1, 2]);
            poster.join().unwrap();
            assert_eq!(qp.flush_send(), None);
            assert!(qp.settles() && !qp.settles() && !qp.owes_sends());
            assert_eq!(qp.send.complete(3), 3);
        });
    }
}
