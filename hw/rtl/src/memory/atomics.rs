//! Executes atomics: reads 8 bytes of host memory, computes, writes them, one after the other for all QPs. From landing, which has
//! checked the key; to landing, through whose register it writes, to the READ resources, which keep the result, and to the response
//! engine, which sends it.
//!
//! ```text
//! step      Look Ask  .. operands: 8 .. Give      take: into the next slot, of 8
//!           Look Scan (a cycle a slot) Read       issue: a DMA read, or it follows a slot of the same address
//!           Look Load Merge Put Stamp             execute: a write, if it changes something
//!           Look Save Tell                        retire: the host has performed the write
//! ```
//! A small core has one slot, without Scan and Copy: its next atomic waits for the one before.
//!
//! Slots pass the four steps in order, each at its own pace: so reads of several are under way, and responses are in order.
//!
//! *Atomic.* Execution is one at a time, and a slot whose address another one in front of it has does not read: it takes what that one
//! leaves, which thus need not be performed yet. So no atomic of this NIC comes between read and write of another one. A write or
//! a host's store to the same address may.
//!
//! *Order.* A slot reads when all that landed before it is performed, and is retired when its own write is: then a READ behind it finds
//! what it left. It is executed once: a repeated request is answered from its resource.
//!
//! *Atomic writes* are landing's, but that each waits here until all slots are free: what it writes is not lost to one that has read
//! before, and no later one takes what a slot before it leaves.
//!
//! *Answers* to atomics of ours pass here for their bytes only, which come from the receive buffer and are turned.
//!
//! Cannot deadlock: it waits for the host to read and to perform writes, for landing's register, which the write channel empties, and
//! for commit in `Give` (through landing), which waits for the write channel and performed writes; none of these waits for it. A
//! cycle in which the receive buffer is not read, and one in which no resource is, comes: what reads them waits for landing, or has
//! gaps.

use crate::{
    msg::{BufAddr, DmaData, DmaRead, Exchange, Qp},
    stream::{READ_LATENCY, Sink, Source},
};
use abi::queue::ATOMIC_BYTES;
use hdl::prelude::*;

/// Most slots.
pub const SLOTS: usize = 8;

#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
enum State {
    /// What can be done: one kind a cycle.
    LookTake,
    LookIssue,
    LookExecute,
    LookRetire,
    /// The receive buffer is read: what is swapped in or added, then what is compared; or the answer.
    Place,
    Ask,
    Wait,
    Give,
    Scan,
    Match,
    Read,
    Copy,
    Load,
    Merge,
    Put,
    Stamp,
    Save,
    Tell,
}

/// Who a slot is for.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Owner {
    qpn: Qp,
    slot: Bits<4>,
    adds: Bit,
}

/// A slot takes its value from another one.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Follows {
    some: Bit,
    slot: Bits<3>,
}

/// See the module.
#[derive(LogicBlock)]
pub struct Atomics<const W: usize> {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// Checked steps.
    pub exchange: Sink<Exchange>,
    /// An address to be written, with `stored`.
    pub store: Source<Bits<64>>,
    /// All that it took has gone to the channel.
    pub clear: Signal<In, Bit>,
    /// What is written there, or the bytes of the answer that is taken.
    pub stored: Signal<Out, Bits<64>>,
    /// Reads the receive buffer, in a cycle in which nobody else does.
    pub buf_busy: Signal<In, Bit>,
    pub buf_re: Signal<Out, Bit>,
    pub buf_addr: Signal<Out, BufAddr>,
    /// `READ_LATENCY` cycles later.
    pub buf_data: Signal<In, Bits<W>>,
    pub dma: Source<DmaRead>,
    /// Returned data; always taken.
    pub data: Signal<In, DmaData>,
    pub beat: Signal<In, Bits<W>>,
    pub data_valid: Signal<In, Bit>,
    /// Write tickets, as of the last cycle.
    pub issued: Signal<In, Bits<16>>,
    pub performed: Signal<In, Bits<16>>,
    /// The result of an atomic, for its READ resource at QP x 16 + slot, held until `save_ready`.
    pub save: Signal<Out, Bit>,
    pub save_at: Signal<Out, Bits<24>>,
    pub result: Signal<Out, Bits<64>>,
    pub failed: Signal<Out, Bit>,
    pub save_ready: Signal<In, Bit>,
    /// It has been saved.
    pub done: Signal<Out, Bit>,
    pub done_qp: Signal<Out, Qp>,
    /// Atomics taken and retired, modulo 16, in the upper bits: for a drain.
    pub filled: Signal<Out, Bits<16>>,
    pub emptied: Signal<Out, Bits<16>>,

    state: Reg<State>,
    /// Slots that have passed each step, modulo 16.
    taken: Reg<Bits<4>>,
    issues: Reg<Bits<4>>,
    executed: Reg<Bits<4>>,
    retired: Reg<Bits<4>>,
    /// Row of the RAMs that is looked at, and of `words` its half.
    at: DFF<Bits<3>>,
    second: Reg<Bit>,
    /// Slot that is compared with the address of the one that is issued.
    scan: DFF<Bits<4>>,
    /// The one behind it was compared; it is the same.
    compared: Reg<Bit>,
    same: DFF<Bit>,
    address: DFF<Bits<61>>,
    /// By slot: data came, in error; another one follows it and is not executed.
    came: Reg<Bits<8>>,
    bad: Reg<Bits<8>>,
    followed: Reg<Bits<8>>,
    /// The sum of these is what goes out of here.
    x: DFF<Bits<64>>,
    y: DFF<Bits<64>>,
    /// What the slot compares with is what it has found. It writes.
    equal: DFF<Bit>,
    changes: DFF<Bit>,
    /// Data of the slot that was looked at in the last cycle came in error.
    spoilt: DFF<Bit>,
    /// The buffer's data comes in so many cycles; it has come, into x, for this half of `words`.
    reading: Reg<Bits<READ_LATENCY>>,
    keeps: Reg<Bit>,
    half: Reg<Bit>,
    buf_at: DFF<BufAddr>,
    addresses: Ram<Bits<61>, 3>,
    owners: Ram<Owner, 3>,
    /// Ticket that a slot waits for: to be issued, then to be retired.
    tickets: Ram<Bits<16>, 3>,
    follows: Ram<Follows, 3>,
    /// By slot what is swapped in or added, and what is compared, then what the slot leaves.
    words: Ram<Bits<64>, 4>,
    /// What was in memory.
    found: Ram<Bits<64>, 3>,
    _slots: Hidden<usize>,
}

impl<const W: usize> Atomics<W> {
    /// With `slots` slots, 1 or [`SLOTS`].
    pub fn new(slots: usize) -> Self {
        assert!([1, SLOTS].contains(&slots), "{slots} slots");
        Atomics {
            clock: Default::default(),
            rst: Default::default(),
            exchange: Default::default(),
            store: Default::default(),
            clear: Default::default(),
            stored: Default::default(),
            buf_busy: Default::default(),
            buf_re: Default::default(),
            buf_addr: Default::default(),
            buf_data: Default::default(),
            dma: Default::default(),
            data: Default::default(),
            beat: Default::default(),
            data_valid: Default::default(),
            issued: Default::default(),
            performed: Default::default(),
            save: Default::default(),
            save_at: Default::default(),
            result: Default::default(),
            failed: Default::default(),
            save_ready: Default::default(),
            done: Default::default(),
            done_qp: Default::default(),
            filled: Default::default(),
            emptied: Default::default(),
            state: Default::default(),
            taken: Default::default(),
            issues: Default::default(),
            executed: Default::default(),
            retired: Default::default(),
            at: Default::default(),
            second: Default::default(),
            scan: Default::default(),
            compared: Default::default(),
            same: Default::default(),
            address: Default::default(),
            came: Default::default(),
            bad: Default::default(),
            followed: Default::default(),
            x: Default::default(),
            y: Default::default(),
            equal: Default::default(),
            changes: Default::default(),
            spoilt: Default::default(),
            reading: Default::default(),
            keeps: Default::default(),
            half: Default::default(),
            buf_at: Default::default(),
            addresses: at_once(slots),
            owners: at_once(slots),
            tickets: at_once(slots),
            follows: at_once(slots),
            words: at_once(2 * slots),
            found: at_once(slots),
            _slots: Hidden(slots),
        }
    }
}

/// A table that answers in the same cycle, of LUTs unless it is tiny.
fn at_once<T: Synth, const A: usize>(rows: usize) -> Ram<T, A> {
    Ram::default().rows(rows).style(if rows < 4 { "registers" } else { "distributed" }).at_once()
}

/// Its slot.
#[hdl_fn]
fn slot_of(count: Bits<4>, most: Bits<3>) -> Bits<3> {
    count.get_bits::<3>(0) & most
}

impl<const W: usize> Logic for Atomics<W> {
    #[kernel]
    fn update(&mut self) {
        regs!(
            self, clock, rst, state, taken, issues, executed, retired, came, bad, followed, reading, compared, keeps,
            half, second
        );
        dff_setup!(self, clock, at, scan, same, address, x, y, equal, changes, spoilt, buf_at);
        clock!(self, clock, addresses, owners, tickets, follows, words, found);
        let most: Bits<3> = elab!(bits::<3>(self._slots.0 as u64 - 1));
        let many = elab!(self._slots.0 > 1);
        let state = self.state.q.val();
        let (taken, issues) = (self.taken.q.val(), self.issues.q.val());
        let (executed, retired) = (self.executed.q.val(), self.retired.q.val());
        let at = self.at.q.val() & most;
        let ask = self.exchange.data.val();
        let (came, bad) = (self.came.q.val(), self.bad.q.val());
        let second = self.second.q.val();

        // What is looked at.
        self.addresses.re.next = true;
        self.addresses.raddr.next = at;
        self.owners.re.next = true;
        self.owners.raddr.next = at;
        self.tickets.re.next = true;
        self.tickets.raddr.next = at;
        self.follows.re.next = true;
        self.follows.raddr.next = at;
        self.words.re.next = true;
        self.words.raddr.next = cat!(4; at, second);
        self.found.re.next = true;
        self.found.raddr.next = at;
        let owner = self.owners.rdata.val();
        let follows = self.follows.rdata.val();
        let word = self.words.rdata.val();
        let found = self.found.rdata.val();
        let address = self.addresses.rdata.val();
        let reached = !(self.performed.val() - self.tickets.rdata.val()).get_bit(15);

        // What comes from the host takes its place at once; a copy in a cycle without.
        let comes = self.data_valid.val();
        let slot = self.data.val().tag.get_bits::<3>(0) & most;
        let copies = many && state == State::Copy && !comes;
        self.found.we.next = comes || copies;
        self.found.waddr.next = if comes { slot } else { slot_of(executed, most) };
        self.found.wdata.next = if comes { self.beat.val().get_bits::<64>(0) } else { word };
        let mut now_came = came;
        let mut now_bad = bad;
        if comes {
            now_came = now_came.replace_bit(slot.index(), true);
            now_bad = now_bad.replace_bit(slot.index(), self.data.val().error);
        }

        // The receive buffer.
        let may = state == State::Ask && !self.buf_busy.val();
        self.buf_re.next = may;
        self.buf_addr.next = self.buf_at.q.val();
        let reading = self.reading.q.val();
        self.reading.d.next = cat!(READ_LATENCY; reading.get_bits::<{ READ_LATENCY - 1 }>(0), may);
        let catches = reading.get_bit(READ_LATENCY - 1);
        let keeps = self.keeps.q.val();
        self.keeps.d.next = catches && !ask.response;
        self.half.d.next = if state == State::LookTake { false } else { self.half.q.val() || keeps };
        // Of an answer, what is behind the bytes that are written already comes first when it is turned.
        let skips: Bits<20> = bits::<20>(0) - ask.offset.cast::<20>();
        let before: Bits<20> = if ask.response {
            skips
        } else if second {
            0.into()
        } else {
            elab!(bits::<20>((1 << 20) - ATOMIC_BYTES as u64))
        };
        self.buf_at.d.next = ask.buf + before;

        // x and y.
        let sum = self.x.q.val() + self.y.q.val();
        if state == State::Load {
            self.equal.d.next = found == word;
        }
        let puts = owner.adds || self.equal.q.val();
        let swaps = !owner.adds && self.equal.q.val();
        if catches {
            self.x.d.next = bswap(self.buf_data.val().get_bits::<64>(0));
        } else if state == State::Merge {
            self.x.d.next = if swaps { 0.into() } else { found };
        }
        let executing = slot_of(executed, most);
        if state == State::Merge {
            self.y.d.next = if puts { word } else { 0.into() };
            self.changes.d.next = puts && !bad.get_bit(executing.index());
        } else if state == State::Place {
            self.y.d.next = 0.into();
        }

        // RAM writes.
        let writes = state == State::Put;
        let gives = state == State::Give && self.exchange.valid.val();
        let fills = gives && !ask.void && !ask.response;
        let stamps = state == State::Stamp && self.clear.val();
        let here: Bits<3> =
            if writes || state == State::Stamp { slot_of(executed, most) } else { slot_of(taken, most) };
        self.words.we.next = keeps || writes;
        self.words.waddr.next = cat!(4; here, self.half.q.val() || writes);
        self.words.wdata.next = sum;
        self.addresses.we.next = fills;
        self.addresses.waddr.next = here;
        self.addresses.wdata.next = ask.iova.get_bits::<61>(3);
        self.owners.we.next = fills;
        self.owners.waddr.next = here;
        self.owners.wdata.next = Owner { qpn: ask.qpn, slot: ask.slot, adds: ask.adds };
        self.tickets.we.next = fills || stamps;
        self.tickets.waddr.next = here;
        self.tickets.wdata.next = self.issued.val();
        let scan = self.scan.q.val();
        // Compared in one cycle, decided upon in the next.
        self.same.d.next = address == self.address.q.val();
        self.compared.d.next = state == State::Scan;
        let decides = state == State::Scan && self.compared.q.val() || state == State::Match;
        let hit = many && decides && self.same.q.val();
        let same_slot = (scan.get_bits::<3>(0) + 1) & most;
        let asked = state == State::Read && self.dma.ready.val();
        let issued_at = slot_of(issues, most);
        self.follows.we.next = hit || state == State::Read;
        self.follows.waddr.next = issued_at;
        self.follows.wdata.next = Follows { some: hit, slot: same_slot };

        let changes = self.changes.q.val();
        let mut now_followed = self.followed.q.val();
        let mut looks: Bit = false;
        match state {
            State::LookTake => {
                let room = taken - retired != elab!(bits::<4>(self._slots.0 as u64));
                let free = if ask.void { taken == retired } else { room };
                if self.exchange.valid.val() && (free || ask.response) {
                    self.state.d.next = if ask.void { State::Give } else { State::Place };
                } else {
                    self.state.d.next = State::LookIssue;
                }
                self.second.d.next = false;
                self.at.d.next = issued_at;
            }
            State::LookIssue => {
                self.address.d.next = address;
                self.scan.d.next = issues - 1;
                if issues != taken && reached {
                    self.at.d.next = issued_at - 1;
                    self.state.d.next = if !many || issues == retired { State::Read } else { State::Scan };
                    now_came = now_came.replace_bit(issued_at.index(), false);
                    now_bad = now_bad.replace_bit(issued_at.index(), false);
                } else {
                    looks = true;
                }
            }
            State::LookExecute => {
                if many && executed != issues && follows.some {
                    self.at.d.next = follows.slot;
                    self.state.d.next = State::Copy;
                } else if executed != issues && came.get_bit(executing.index()) {
                    self.state.d.next = State::Load;
                } else {
                    self.at.d.next = slot_of(retired, most);
                    self.state.d.next = State::LookRetire;
                }
            }
            State::LookRetire => {
                let free = reached && !now_followed.get_bit(at.index());
                self.state.d.next = if retired != executed && free { State::Save } else { State::LookTake };
            }
            State::Place => {
                self.state.d.next = State::Ask;
            }
            State::Ask => {
                if may {
                    self.second.d.next = true;
                    self.state.d.next = if ask.response || second { State::Wait } else { State::Place };
                }
            }
            State::Wait => {
                if !reading.any() {
                    self.state.d.next = State::Give;
                }
            }
            State::Give => {
                if gives {
                    if fills {
                        self.taken.d.next = taken + 1;
                    }
                    self.at.d.next = issued_at;
                    self.state.d.next = State::LookIssue;
                }
            }
            State::Scan => {
                if scan == retired {
                    self.state.d.next = State::Match;
                }
                self.scan.d.next = scan - 1;
                self.at.d.next = scan.get_bits::<3>(0) - 1;
            }
            State::Match => {
                self.state.d.next = State::Read;
            }
            State::Read => {
                if asked {
                    self.issues.d.next = issues + 1;
                    looks = true;
                }
            }
            State::Copy => {
                // What it leaves is what we find, if there is something.
                if copies {
                    now_bad = now_bad.replace_bit(executing.index(), bad.get_bit(at.index()));
                    now_followed = now_followed.replace_bit(at.index(), false);
                    self.at.d.next = executing;
                    self.state.d.next = State::Load;
                }
            }
            State::Load => {
                self.second.d.next = false;
                self.state.d.next = State::Merge;
            }
            State::Merge => {
                self.state.d.next = State::Put;
            }
            State::Put => {
                if !changes || self.store.ready.val() {
                    self.state.d.next = State::Stamp;
                }
            }
            State::Stamp => {
                if stamps {
                    self.executed.d.next = executed + 1;
                    self.at.d.next = slot_of(retired, most);
                    self.state.d.next = State::LookRetire;
                }
            }
            State::Save => {
                if self.save_ready.val() {
                    self.state.d.next = State::Tell;
                }
            }
            State::Tell => {
                self.retired.d.next = retired + 1;
                self.state.d.next = State::LookTake;
            }
        }
        if hit {
            self.issues.d.next = issues + 1;
            now_followed = now_followed.replace_bit(same_slot.index(), true);
        }
        if looks || hit {
            self.at.d.next = executing;
            self.second.d.next = true;
            self.state.d.next = State::LookExecute;
        }
        self.followed.d.next = now_followed;
        self.came.d.next = now_came;
        self.bad.d.next = now_bad;

        // Outputs.
        self.exchange.ready.next = state == State::Give;
        self.store.valid.next = writes && changes;
        self.store.data.next = cat!(64; address, bits::<3>(0));
        self.stored.next = sum;
        self.dma.valid.next = state == State::Read;
        self.dma.data.next = DmaRead {
            iova: cat!(64; self.address.q.val(), bits::<3>(0)),
            len: ATOMIC_BYTES.to_bits(),
            tag: cat!(16; true, bits::<12>(0), issued_at),
            dest: 0.into(),
        };
        self.save.next = state == State::Save;
        self.save_at.next = cat!(24; owner.qpn.cast::<20>(), owner.slot);
        self.result.next = found;
        // The slot has been looked at for a cycle before it is saved.
        self.spoilt.d.next = bad.get_bit(at.index());
        self.failed.next = self.spoilt.q.val();
        self.done.next = state == State::Tell;
        self.done_qp.next = owner.qpn;
        self.filled.next = cat!(16; taken, bits::<12>(0));
        self.emptied.next = cat!(16; retired, bits::<12>(0));
    }
}

#[cfg(test)]
#[path = "atomics_tests.rs"]
mod tests;
