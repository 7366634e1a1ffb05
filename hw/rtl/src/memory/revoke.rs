//! What the death of a key means for the reads that were let in before it: those that were not issued yet are refused, those that are under way
//! are waited for. For [`super::mmu`]: the transmit port, whose chunks wait for room in the ring, so for the MAC, and landing, which must not.
//!
//! ```text
//! cycle       0      1      2      3
//! asks        R                           a request of the transmit port enters the line behind those that were checked before it
//! kill                      K             a key has died: requests in line with that key are dead from the next cycle on
//! dead                             R      the first in line is: its chunks read nothing
//! reading                          1 ..   until reads under a key like it are back
//! ```
//! Reads come back in any order. They have one of two colours, which [`frames`](crate::wire::frames) turns round (`turns`) whenever all reads of the
//! other colour are back: so what was under way at a time is back two turns later. Of each colour the keys are noted that have read, by
//! the lower bits of their index: a key that has not read lately dies at once.
//!
//! Cannot deadlock: nothing waits here, and whoever waits for `reading` waits for turns, so for reads of the host that were issued, and for
//! no others: not for the MAC, whose peers may wait for what we receive.

use hdl::prelude::*;

/// Requests between check and client: all that the port lets in.
const LINE: usize = 8;
/// Keys that are told from each other.
const KINDS: usize = 16;

/// See the [module](self).
#[derive(LogicBlock)]
pub struct Revoke {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// A request of the transmit port is checked, for this row of the key table.
    pub asks: Signal<In, Bit>,
    pub index: Signal<In, Bits<24>>,
    /// A chunk of the first in line is taken, it is its last, and it is refused anyway.
    pub taken: Signal<In, Bit>,
    pub last: Signal<In, Bit>,
    pub refused: Signal<In, Bit>,
    /// The first in line is dead.
    pub dead: Signal<Out, Bit>,
    /// A key has died. Every fourth cycle at most, and not while a request is checked.
    pub kill: Signal<In, Bit>,
    pub key: Signal<In, Bits<24>>,
    /// Reads change their colour, those that are issued in this cycle too.
    pub turns: Signal<In, Bit>,
    /// Memory of a key that has died may still be read.
    pub reading: Signal<Out, Bit>,
    line: Arr<DFF<Bits<24>>, LINE>,
    used: Reg<Bits<LINE>>,
    died: Reg<Bits<LINE>>,
    /// Kinds of keys that have read in this colour, and in the other one.
    now: Reg<Bits<KINDS>>,
    before: Reg<Bits<KINDS>>,
    /// A key of this kind has just died; turns that are waited for.
    looks: Reg<Bit>,
    kind: DFF<Bits<4>>,
    left: Reg<Bits<2>>,
    _keys: Hidden<usize>,
}

impl Revoke {
    /// For a table of `keys` keys, a power of two.
    pub fn new(keys: usize) -> Self {
        Self {
            clock: Default::default(),
            rst: Default::default(),
            asks: Default::default(),
            index: Default::default(),
            taken: Default::default(),
            last: Default::default(),
            refused: Default::default(),
            dead: Default::default(),
            kill: Default::default(),
            key: Default::default(),
            turns: Default::default(),
            reading: Default::default(),
            line: Default::default(),
            used: Default::default(),
            died: Default::default(),
            now: Default::default(),
            before: Default::default(),
            looks: Default::default(),
            kind: Default::default(),
            left: Default::default(),
            _keys: Hidden(keys),
        }
    }
}

impl Logic for Revoke {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, used, died, now, before, looks, left);
        dff_setup!(self, clock, line, kind);
        // A key beyond the table never dies, and is refused.
        let mask: Bits<24> = elab!(bits::<24>(self._keys.0 as u64 - 1));

        // The line.
        let first = self.line[0].q.val();
        let dead = self.died.q.val().get_bit(0);
        let leaves = self.taken.val() && self.last.val();
        let used: Bits<LINE> = if leaves { self.used.q.val() >> 1 } else { self.used.q.val() };
        let asks = self.asks.val();
        let key = self.key.val() & mask;
        // Who dies is found where it stands, before it is known whether the line moves on.
        let mut died = self.died.q.val();
        for i in 0..LINE {
            let hit = self.kill.val() && self.used.q.val().get_bit(i) && self.line[i].q.val() == key;
            died = died.replace_bit(i, died.get_bit(i) || hit);
            let mut at = self.line[i].q.val();
            if elab!(i + 1 < LINE) {
                if leaves {
                    at = self.line[elab!((i + 1) % LINE)].q.val();
                }
            }
            let ahead = if elab!(i == 0) { true } else { used.get_bit(elab!(i.saturating_sub(1))) };
            if asks && ahead && !used.get_bit(i) {
                at = self.index.val() & mask;
            }
            self.line[i].d.next = at;
        }
        self.died.d.next = if leaves { died >> 1 } else { died };
        self.used.d.next = if asks { (used << 1) | 1 } else { used };
        self.dead.next = dead;

        // What has read.
        let before = self.before.q.val();
        let turns = self.turns.val();
        let mut now: Bits<KINDS> = if turns { 0.into() } else { self.now.q.val() };
        if self.taken.val() && !self.refused.val() && !dead {
            now = now.replace_bit(first.get_bits::<4>(0).index(), true);
        }
        self.now.d.next = now;
        if turns {
            self.before.d.next = self.now.q.val();
        }

        // A cycle behind a death all that was let through is known.
        let looks = self.looks.q.val();
        let left = self.left.q.val();
        self.looks.d.next = self.kill.val();
        if self.kill.val() {
            self.kind.d.next = key.get_bits::<4>(0);
        }
        let found = (self.now.q.val() | before) >> self.kind.q.val().cast::<16>();
        if looks && found.get_bit(0) {
            self.left.d.next = 2.into();
        } else if left.any() && turns {
            self.left.d.next = left - 1;
        }
        self.reading.next = looks || left.any();
    }
}
