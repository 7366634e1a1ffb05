//! Completions of destroyed QPs that are still in a ring: whoever polls it passes over them.
//!
//! The ring itself stays the device's: whoever destroys a QP while another thread polls must not write to entries, for
//! the device may have the next round's there by then.

#[cfg(test)]
use loom::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};
#[cfg(not(test))]
use std::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};

/// The destroyed QPs of one ring, with what is to be known of each.
pub(crate) struct Forgotten<T> {
    /// There are some.
    any: AtomicBool,
    /// QP number, and free-running index of the first entry that may be of a new QP with this number.
    until: Mutex<Vec<(u32, u32, T)>>,
}

impl<T: Clone> Forgotten<T> {
    pub(crate) fn new() -> Self {
        Forgotten { any: AtomicBool::new(false), until: Mutex::new(Vec::new()) }
    }

    /// A QP is destroyed and all its completions are in the ring, of `1 << log2` entries: those from `consumer()` on for which
    /// `is_there` are nobody's any more. Others may poll the ring meanwhile.
    pub(crate) fn add(&self, qpn: u32, of: T, log2: u32, consumer: impl Fn() -> u32, is_there: impl Fn(u32) -> bool) {
        let start = consumer();
        let mut seen = 0u32;
        loop {
            while seen < 1 << log2 && is_there(start.wrapping_add(seen)) {
                seen += 1;
            }
            // What was polled meanwhile may be overwritten, which looks like the end.
            let polled = consumer().wrapping_sub(start).min(1 << log2);
            if polled <= seen {
                break;
            }
            seen = polled;
        }
        let mut until = self.until.lock().unwrap_or_else(|e| e.into_inner());
        until.push((qpn, start.wrapping_add(seen), of));
        self.any.store(true, Ordering::Release);
    }

    /// Whether entry `index`, of QP `qpn`, is nobody's. Its caller has polled all before it.
    pub(crate) fn has(&self, qpn: u32, index: u32) -> Option<T> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let mut until = self.until.lock().unwrap_or_else(|e| e.into_inner());
        // 2^31 entries are more than any ring holds.
        until.retain(|(_, end, _)| (end.wrapping_sub(index) as i32) > 0);
        self.any.store(!until.is_empty(), Ordering::Release);
        until.iter().find(|(n, ..)| *n == qpn).map(|(.., of)| of.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::sync::{Arc, atomic::AtomicU32};

    /// A ring of two entries, as the device fills it: `filled` is the index behind the last one.
    struct Ring {
        filled: AtomicU32,
        consumer: AtomicU32,
        forgotten: Forgotten<()>,
    }

    impl Ring {
        fn is_there(&self, index: u32) -> bool {
            let filled = self.filled.load(Ordering::Acquire);
            // An entry is seen by its phase, so one of the next round in its place looks like none.
            (1..=2).contains(&filled.wrapping_sub(index))
        }
        fn forget(&self, qpn: u32) {
            self.forgotten.add(qpn, (), 1, || self.consumer.load(Ordering::Acquire), |i| self.is_there(i));
        }
    }

    #[test]
    fn entries_of_a_destroyed_qp_are_passed_over_while_another_thread_polls() {
        loom::model(|| {
            // Indices wrap; entry 0 (behind u32::MAX) and the one before are QP 7's.
            let ring =
                Ring { filled: AtomicU32::new(1), consumer: AtomicU32::new(u32::MAX), forgotten: Forgotten::new() };
            let ring = Arc::new(ring);
            let poller = loom::thread::spawn({
                let ring = ring.clone();
                move || {
                    // Takes one; the device may use its place then.
                    ring.forgotten.has(7, u32::MAX);
                    ring.consumer.store(0, Ordering::Release);
                    ring.filled.store(2, Ordering::Release);
                }
            });
            ring.forget(7);
            poller.join().unwrap();
            // The old QP's second entry is nobody's. What the device wrote during the call may be taken for the old QP's only if it
            // came before the call ended: a new QP 7 is not there before.
            assert!(ring.forgotten.has(7, 0).is_some());
            assert!(ring.forgotten.has(8, 0).is_none(), "another QP's");
            assert!(ring.forgotten.has(7, 2).is_none(), "a new QP's");
            assert!(!ring.forgotten.any.load(Ordering::Relaxed), "nothing is kept once it is polled");
        });
    }
}
