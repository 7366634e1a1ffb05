//! A shared receive queue in a mix. Which message takes which receive is not known before it completes, so a place is looked at then, and
//! used again.

use super::area::check;
use super::flow::MOST;
use crate::{GUARD, region};
use driver::{Access, Completion, Mr, Srq};
use testbed::Host;

/// Bytes of each receive: the longest message, and some that must stay as they are.
const ROOM: usize = MOST + 100;
const PLACES: usize = 160;

/// The queue, its memory, and what is posted.
pub struct Shared {
    /// The queue.
    pub srq: Srq,
    memory: Mr,
    free: Vec<usize>,
    /// Receives that come late, when peers may have been told that there is none.
    late: usize,
}

impl Shared {
    /// Without receives.
    pub fn new(host: &Host) -> Self {
        let memory = region(&host.pd, PLACES * ROOM, Access::LOCAL_WRITE, |_| GUARD);
        Shared { srq: host.pd.create_srq(PLACES as u32).unwrap(), memory, free: (0..PLACES).collect(), late: 0 }
    }

    /// Receives that it has room for, when none is posted.
    pub fn places(&self) -> usize {
        PLACES
    }

    /// One more message may be sent.
    pub fn has_room(&self) -> bool {
        self.free.len() > self.late
    }

    /// A receive for a message that will be sent, now or later.
    pub fn expect(&mut self, late: bool) {
        self.late += 1;
        if !late {
            self.post();
        }
    }

    /// Posts a receive that is late, if there is one.
    pub fn post(&mut self) {
        if self.late > 0 {
            self.late -= 1;
            let place = self.free.pop().expect("room for each message");
            self.srq.post_recv(place as u64, &[self.memory.sge(place * ROOM, ROOM)]).unwrap();
        }
    }

    /// A receive is complete: it holds `data` and nothing else.
    pub fn take(&mut self, c: &Completion, data: &[u8], what: &str) {
        let place = c.wr_id as usize;
        assert!(place < PLACES && !self.free.contains(&place), "{what}: receive {place} is not posted");
        let mut want = vec![GUARD; ROOM];
        want[..data.len()].copy_from_slice(data);
        check(&self.memory, place * ROOM, &want, what);
        self.memory.write(place * ROOM, &[GUARD; ROOM]);
        self.free.insert(0, place);
    }

    /// All that was posted has come back.
    pub fn assert_empty(&self, what: &str) {
        assert_eq!((self.free.len(), self.late), (PLACES, 0), "{what}: receives are left");
    }
}
