//! Work requests that are posted and not complete: what a QP writes and its completion queues read.
//!
//! A QP's owner is the only one who posts; whoever polls its completion queue is the only one who completes.

#[cfg(test)]
use loom::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
#[cfg(not(test))]
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

/// A work request in a ring, by the index of its first block.
#[derive(Default)]
struct Slot {
    wr_id: AtomicU64,
    blocks: AtomicU16,
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
    pub(crate) fn post(&self, wr_id: u64, blocks: u16) {
        let at = self.producer.load(Ordering::Relaxed);
        self.slot(at).wr_id.store(wr_id, Ordering::Relaxed);
        self.slot(at).blocks.store(blocks, Ordering::Relaxed);
        self.producer.store(at.wrapping_add(blocks), Ordering::Release);
    }

    /// Index up to which all is complete.
    pub(crate) fn consumer(&self) -> u16 {
        self.consumer.load(Ordering::Acquire)
    }

    /// The work request at `index` is complete, and all before it; returns its number.
    pub(crate) fn complete(&self, index: u16) -> u64 {
        let slot = self.slot(index);
        let (wr_id, blocks) = (slot.wr_id.load(Ordering::Relaxed), slot.blocks.load(Ordering::Relaxed));
        // From here on the slot is the poster's again.
        self.consumer.store(index.wrapping_add(blocks), Ordering::Release);
        wr_id
    }

    /// Completes the oldest that is posted, if there is one.
    fn flush(&self) -> Option<u64> {
        let oldest = self.consumer.load(Ordering::Relaxed);
        (oldest != self.producer.load(Ordering::Acquire)).then(|| self.complete(oldest))
    }
}

/// What completion and event queues need of a QP.
pub(crate) struct Posted {
    pub(crate) send: Slots,
    pub(crate) recv: Slots,
    /// Numbers of the completion queues of its sends and of its receives.
    pub(crate) cqs: [u32; 2],
    /// It is in ERR, and all completions that the device has for it are in the rings: what is left is flushed.
    buried: AtomicBool,
}

impl Posted {
    pub(crate) fn new(log2: [u32; 2], cqs: [u32; 2]) -> Self {
        let (send, recv) = (Slots::new(log2[0]), Slots::new(log2[1]));
        Posted { send, recv, cqs, buried: AtomicBool::new(false) }
    }

    pub(crate) fn bury(&self) {
        self.buried.store(true, Ordering::Release);
    }

    pub(crate) fn is_buried(&self) -> bool {
        self.buried.load(Ordering::Acquire)
    }

    /// Completes the oldest that is posted and completes in `cq`; its number, and whether it is a send.
    pub(crate) fn flush(&self, cq: u32) -> Option<(u64, bool)> {
        let flush = |slots: &Slots, send: bool| slots.flush().map(|wr_id| (wr_id, send));
        let send = (self.cqs[0] == cq).then(|| flush(&self.send, true)).flatten();
        send.or_else(|| (self.cqs[1] == cq).then(|| flush(&self.recv, false)).flatten())
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
}
