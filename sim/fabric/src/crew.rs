//! Threads that advance NICs side by side. A NIC is handed to its thread for a window and comes back; the result is the same
//! as one after the other, because NICs meet only between windows.

use nic::Nic;
use std::sync::mpsc::{Receiver, Sender, channel};

/// A NIC and the cycles it is to be advanced.
type Job = (Box<Nic>, u64);

/// A thread that advances one NIC at a time.
pub(crate) struct Worker {
    jobs: Sender<Job>,
    done: Receiver<Box<Nic>>,
}

impl Worker {
    pub(crate) fn start() -> Self {
        let (jobs, todo) = channel::<Job>();
        let (back, done) = channel();
        std::thread::spawn(move || {
            while let Ok((mut nic, cycles)) = todo.recv() {
                (0..cycles).for_each(|_| nic.step());
                if back.send(nic).is_err() {
                    return;
                }
            }
        });
        Worker { jobs, done }
    }

    pub(crate) fn begin(&self, nic: Box<Nic>, cycles: u64) {
        self.jobs.send((nic, cycles)).expect("the worker lives as long as its fabric");
    }

    /// The NIC, advanced. Panics with the NIC's own panic's thread having printed why.
    pub(crate) fn end(&self) -> Box<Nic> {
        self.done.recv().expect("a simulated NIC panicked")
    }
}
