//! Checks in every cycle that the core keeps the rules of AXI4 towards its host, whatever the host does. A breach is a bug of the
//! gates: the simulation stops with a panic that names the rule.

use std::collections::VecDeque;

/// Bursts stay within a page of this size (AXI4 A3.4.1).
const PAGE: u64 = 4096;

/// What a channel offers in a cycle: nothing, or a payload. Once offered, it stays until it is taken (AXI4 A3.2.1).
pub(crate) struct Offer<T> {
    channel: &'static str,
    held: Option<T>,
}

impl<T: Clone + PartialEq + std::fmt::Debug> Offer<T> {
    pub(crate) fn new(channel: &'static str) -> Self {
        Offer { channel, held: None }
    }

    /// Returns what is taken at the end of this cycle.
    pub(crate) fn observe(&mut self, offered: Option<T>, ready: bool) -> Option<T> {
        if let Some(held) = self.held.take() {
            assert_eq!(offered.as_ref(), Some(&held), "{}: changed or withdrawn before it was taken", self.channel);
        }
        if ready {
            return offered;
        }
        self.held = offered;
        None
    }
}

/// A beat of write data: bytes, strobe, last.
pub(crate) type WriteBeat = (Vec<u8>, u64, bool);

/// Watches the channels of one core.
pub(crate) struct Checker {
    beat: u64,
    max_read: u64,
    read_address: Offer<(u64, u64, u8)>,
    write_address: Offer<(u64, u64)>,
    write_data: Offer<WriteBeat>,
    /// Which read IDs are in flight.
    ids: [bool; 256],
    /// Bursts whose data is not complete: first lane, beats left.
    bursts: VecDeque<(u64, u64)>,
    /// Beats of the oldest burst that came so far.
    come: u64,
    /// Bursts whose response has not come.
    unanswered: u64,
}

impl Checker {
    /// For a bus of `width` bits and read requests of at most `max_read` bytes.
    pub(crate) fn new(width: usize, max_read: u64) -> Self {
        Checker {
            beat: width as u64 / 8,
            max_read,
            read_address: Offer::new("AXI read address"),
            write_address: Offer::new("AXI write address"),
            write_data: Offer::new("AXI write data"),
            ids: [false; 256],
            bursts: VecDeque::new(),
            come: 0,
            unanswered: 0,
        }
    }

    /// Bytes from `address` to the end of a burst of `beats`.
    fn span(&self, what: &str, address: u64, beats: u64) -> u64 {
        let end = (address & !(self.beat - 1)) + beats * self.beat;
        assert!(address / PAGE == (end - 1) / PAGE, "AXI {what}: {beats} beats from {address:#x} cross 4 KiB");
        end - address
    }

    /// The read address channel: address, beats and ID, if it is valid.
    pub(crate) fn read_address(&mut self, offered: Option<(u64, u64, u8)>, ready: bool) {
        let Some((address, beats, id)) = self.read_address.observe(offered, ready) else { return };
        let bytes = self.span("read", address, beats);
        assert!(bytes <= self.max_read, "AXI read: {bytes} bytes from {address:#x} in one request");
        assert!(!std::mem::replace(&mut self.ids[usize::from(id)], true), "AXI read: ID {id} is still in flight");
    }

    /// A beat of read data that the host offers; the core promises to take all it has asked for at once.
    pub(crate) fn read_data(&mut self, id: u8, last: bool, ready: bool) {
        assert!(ready, "AXI read data: not taken at once");
        assert!(self.ids[usize::from(id)], "the host answers ID {id}, which nobody asked");
        self.ids[usize::from(id)] = !last;
    }

    /// The write address channel: address and beats, if it is valid.
    pub(crate) fn write_address(&mut self, offered: Option<(u64, u64)>, ready: bool) {
        let Some((address, beats)) = self.write_address.observe(offered, ready) else { return };
        self.span("write", address, beats);
        self.bursts.push_back((address % self.beat, beats));
        self.unanswered += 1;
    }

    /// The write data channel, if it is valid. Data that is taken ahead of its address is the host's affair.
    pub(crate) fn write_data(&mut self, offered: Option<WriteBeat>, ready: bool) {
        let Some((_, strobe, last)) = self.write_data.observe(offered, ready) else { return };
        let (lane, left) = self.bursts.front_mut().expect("the host takes data behind its address");
        if self.come == 0 {
            let below = strobe & ((1 << *lane) - 1);
            assert!(below == 0, "AXI write data: strobes {strobe:#x} below the address's lane {lane}");
        }
        self.come += 1;
        *left -= 1;
        assert!(last == (*left == 0), "AXI write data: last is {last} with {left} beats to come");
        if last {
            self.bursts.pop_front();
            self.come = 0;
        }
    }

    /// The host offers a write response.
    pub(crate) fn write_response(&mut self, ready: bool) {
        assert!(ready, "AXI write response: not taken at once");
        assert!(self.unanswered > self.bursts.len() as u64, "a write response without a burst");
        self.unanswered -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checker() -> Checker {
        Checker::new(512, 512)
    }

    #[test]
    fn sound_bursts_pass() {
        let mut c = checker();
        for ready in [false, true] {
            c.read_address(Some((0x1fc1, 1, 3)), ready);
            c.write_address(Some((0x1f85, 2)), ready);
        }
        c.read_data(3, true, true);
        c.read_address(Some((0x2000, 8, 3)), true);
        c.write_data(Some((vec![0; 64], u64::MAX << 5, false)), true);
        c.write_data(Some((vec![0; 64], 1, true)), false);
        c.write_data(Some((vec![0; 64], 1, true)), true);
        c.write_response(true);
    }

    #[test]
    #[should_panic(expected = "changed or withdrawn")]
    fn an_offer_must_not_be_withdrawn() {
        let mut c = checker();
        c.read_address(Some((0x1000, 1, 0)), false);
        c.read_address(None, false);
    }

    #[test]
    #[should_panic(expected = "changed or withdrawn")]
    fn write_data_must_not_change() {
        let mut c = checker();
        c.write_address(Some((0x1000, 1)), true);
        c.write_data(Some((vec![1; 64], 1, true)), false);
        c.write_data(Some((vec![2; 64], 1, true)), true);
    }

    #[test]
    #[should_panic(expected = "cross 4 KiB")]
    fn reads_stay_in_their_page() {
        checker().read_address(Some((0x1fc1, 2, 0)), true);
    }

    #[test]
    #[should_panic(expected = "cross 4 KiB")]
    fn writes_stay_in_their_page() {
        checker().write_address(Some((0x1fff, 2)), true);
    }

    #[test]
    #[should_panic(expected = "in one request")]
    fn reads_are_limited() {
        checker().read_address(Some((0x1000, 9, 0)), true);
    }

    #[test]
    #[should_panic(expected = "ID 7 is still in flight")]
    fn an_id_in_flight_is_not_used_again() {
        let mut c = checker();
        c.read_address(Some((0x1000, 2, 7)), true);
        c.read_data(7, false, true);
        c.read_address(Some((0x1000, 1, 7)), true);
    }

    #[test]
    #[should_panic(expected = "last is true with 1 beats")]
    fn last_marks_the_end() {
        let mut c = checker();
        c.write_address(Some((0x1000, 2)), true);
        c.write_data(Some((vec![1; 64], 1, true)), true);
    }

    #[test]
    #[should_panic(expected = "below the address's lane")]
    fn lanes_below_the_address_are_silent() {
        let mut c = checker();
        c.write_address(Some((0x1003, 1)), true);
        c.write_data(Some((vec![1; 64], 0b1100, true)), true);
    }
}
