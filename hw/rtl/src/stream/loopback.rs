//! Turns frames to an address of our own round, between egress and ingress, so that QPs of one NIC reach each other and
//! themselves, whatever the link does.
//!
//! ```text
//!              +-----------------> mac_tx          the link is up; else the frame is lost, and counted
//! tx --> held -+                                   both: to a multicast group that a QP of ours is attached to
//!              +--> turned ---+                    a frame whose destination MAC is the port's or a GID row's
//!                             +--> rx
//! mac_rx --+--------> late ---+                    late: what comes while a turned frame passes
//!          +------------------+                    otherwise straight through
//!
//! cycle      0      1      2      3      4      5      6      7
//! mac_rx                   M0     M1
//! turned     whole
//! starts     1
//! rx                       T0     T1                   M0     M1        M0 and M1 were late
//! ```
//! Nobody stalls `rx`, so both RAMs are read as pipelines: a beat comes out two cycles after it is asked for. What is asked for
//! behind the last beat of a turned frame is thrown away.
//!
//! Which way a frame goes is decided by its first beat: its destination MAC, and the link. A link that goes down under a frame
//! whose MAC takes nothing any more holds nobody: the rest of the frame is lost, and its beat that was offered waits beside the
//! way (`stuck`), with an end behind it that says that the frame is unfinished, for a MAC that comes back. The same goes for a frame that a
//! reset of the device cuts off: what tells of it outlives the reset, so no MAC is left in the middle of a frame. A frame to a group that has
//! a GID row goes both ways: it begins when `turned` has room for the longest frame, so the MAC never waits in the middle of one; all other
//! multicast goes to the link only. What a turned frame is worth is for ingress to say, as for any other.
//!
//! The MAC is never stalled: a turned frame starts only in a gap between two frames of the MAC, whole, when nothing is late that
//! is not on its way out; so no more can be late than the longest frame has beats, and all of it passes before the next one. A MAC that has a
//! beat in every cycle for ever has no gaps: its frames then have all of ingress.
//!
//! Cannot deadlock: `turned` holds the longest frame, and empties as long as ingress and whatever frees the receive buffer go
//! on, which wait for nothing that is sent. A turned frame starts only while `room` says that the receive buffer is less than
//! half full: so a host that takes data slowly holds the sender back, through `turned` and egress, and loses no frame.

use super::{BeatSink, BeatSource};
use crate::msg::TableReq;
use abi::{
    status::counter,
    table::{GIDS, gid, id, port},
    wire,
};
use hdl::prelude::*;

/// Addresses of our own: the port's, and one per GID.
const MACS: usize = GIDS + 1;

/// A beat with all that belongs to it, in as few bits as there are.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Beat<const W: usize> {
    data: Bits<W>,
    /// Bytes that do not fill a beat; 0: they do.
    rest: Bits<6>,
    last: Bit,
    error: Bit,
}

/// [`Beat::rest`] of so many bytes.
#[hdl_fn]
fn rest_of<const W: usize>(bytes: Bits<7>) -> Bits<6> {
    bytes.get_bits::<6>(0) & (W as u64 / 8 - 1)
}

/// The bytes of a beat with that [`Beat::rest`].
#[hdl_fn]
fn bytes_of<const W: usize>(rest: Bits<6>) -> Bits<7> {
    if rest.any() { rest.cast::<7>() } else { (W as u64 / 8).to_bits() }
}

/// See the module.
#[derive(Clone, Debug, LogicBlock)]
pub struct Loopback<const W: usize> {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// Power-up reset, with which the MAC forgets too.
    pub power: Signal<In, Bit>,
    /// Frames of ours.
    pub tx: BeatSink<W>,
    /// It ends unfinished: counts with `last`.
    pub tx_error: Signal<In, Bit>,
    /// Those for the link.
    pub mac_tx: BeatSource<W>,
    pub mac_tx_error: Signal<Out, Bit>,
    /// Frames of the link; `ready` is always 1. The error counts with `last`.
    pub mac_rx: BeatSink<W>,
    pub mac_rx_error: Signal<In, Bit>,
    /// All that arrives; the sink must always be ready.
    pub rx: BeatSource<W>,
    pub rx_error: Signal<Out, Bit>,
    /// The receive buffer has room for turned frames.
    pub room: Signal<In, Bit>,
    pub link_up: Signal<In, Bit>,
    /// Copy of the row writes that ingress takes.
    pub table: Signal<In, TableReq>,
    pub table_we: Signal<In, Bit>,
    pub count: Signal<Out, Bits<64>>,
    /// With the last beat of a frame on `rx`: a frame is in; it is a turned one.
    pub entered: Signal<Out, Bit>,
    pub turned_in: Signal<Out, Bit>,

    req: DFF<TableReq>,
    req_we: Reg<Bit>,
    /// All zeros, which is no station's, where there is none.
    macs: Arr<Reg<Bits<48>>, MACS>,
    up: Reg<Bit>,
    // Transmit.
    open: Reg<Bit>,
    holds: Reg<Bit>,
    held: DFF<Beat<W>>,
    /// It is the first of its frame.
    starting: DFF<Bit>,
    /// Where its frame goes: round, to the link, both, or (neither) nowhere; and whether it is meant for the link.
    round: Reg<Bit>,
    link: Reg<Bit>,
    outward: Reg<Bit>,
    /// The MAC has a part of a frame.
    parted: Reg<Bit>,
    stuck: Reg<Bit>,
    stuck_beat: DFF<Beat<W>>,
    /// Turned frames; next row to write, to ask for, and to come out; rows written and not out, whether that is all,
    /// and whether the longest frame has room beside them.
    turned: Ram<Beat<W>, 16>,
    tail: Reg<Bits<16>>,
    next: Reg<Bits<16>>,
    head: Reg<Bits<16>>,
    fill: Reg<Bits<16>>,
    full: Reg<Bit>,
    fits: Reg<Bit>,
    /// Whole ones that have not started, and whether there are some.
    whole: Reg<Bits<16>>,
    some_whole: Reg<Bit>,
    // Receive.
    /// `rx` comes from the RAMs; a turned frame is being read.
    stored: Reg<Bit>,
    turning: Reg<Bit>,
    /// A beat of a RAM in the RAM, at its output.
    turned_comes: [Reg<Bit>; 2],
    late_comes: [Reg<Bit>; 2],
    /// A frame of the MAC is under way.
    inside: Reg<Bit>,
    late: Ram<Beat<W>, 16>,
    late_tail: Reg<Bits<16>>,
    late_head: Reg<Bits<16>>,
    /// Late beats not asked for, and whether there are some, more than one.
    waiting: Reg<Bits<16>>,
    some_wait: Reg<Bit>,
    more_wait: Reg<Bit>,
    _rows: Hidden<usize>,
    _late_rows: Hidden<usize>,
}

impl<const W: usize> Loopback<W> {
    /// With room for `bytes` bytes of turned frames, at least the longest one.
    pub fn new(bytes: usize) -> Self {
        assert!([64, 128, 256, 512].contains(&W), "a datapath of {W} bits");
        assert!(bytes >= wire::MAX_FRAME, "loopback room of {bytes} bytes, less than a frame may have");
        assert!(bytes.is_power_of_two(), "loopback room of {bytes} bytes, not a power of two");
        let rows = bytes / (W / 8);
        // What comes while a turned frame passes, and its first beats are on the way.
        let late_rows = (wire::MAX_FRAME / (W / 8) + 8).next_power_of_two();
        let store = |rows| Ram::default().rows(rows).style("block").registered();
        Loopback {
            clock: Default::default(),
            rst: Default::default(),
            power: Default::default(),
            tx: Default::default(),
            tx_error: Default::default(),
            mac_tx: Default::default(),
            mac_tx_error: Default::default(),
            mac_rx: Default::default(),
            mac_rx_error: Default::default(),
            rx: Default::default(),
            rx_error: Default::default(),
            room: Default::default(),
            link_up: Default::default(),
            table: Default::default(),
            table_we: Default::default(),
            count: Default::default(),
            entered: Default::default(),
            turned_in: Default::default(),
            req: Default::default(),
            req_we: Default::default(),
            macs: Default::default(),
            up: Default::default(),
            open: Default::default(),
            holds: Default::default(),
            held: Default::default(),
            starting: Default::default(),
            round: Default::default(),
            link: Default::default(),
            outward: Default::default(),
            parted: Default::default(),
            stuck: Default::default(),
            stuck_beat: Default::default(),
            turned: store(rows),
            tail: Default::default(),
            next: Default::default(),
            head: Default::default(),
            fill: Default::default(),
            full: Default::default(),
            fits: Default::default(),
            whole: Default::default(),
            some_whole: Default::default(),
            stored: Default::default(),
            turning: Default::default(),
            turned_comes: Default::default(),
            late_comes: Default::default(),
            inside: Default::default(),
            late: store(late_rows),
            late_tail: Default::default(),
            late_head: Default::default(),
            waiting: Default::default(),
            some_wait: Default::default(),
            more_wait: Default::default(),
            _rows: Hidden(rows),
            _late_rows: Hidden(late_rows),
        }
    }
}

impl<const W: usize> Logic for Loopback<W> {
    #[kernel]
    fn update(&mut self) {
        regs!(
            self, clock, rst, req_we, macs, up, open, holds, round, link, outward, tail, next, head, fill, full, fits
        );
        regs!(self, clock, power, parted, stuck);
        regs!(self, clock, rst, whole, some_whole, stored, turning, turned_comes, late_comes, inside);
        regs!(self, clock, rst, late_tail, late_head, waiting, some_wait, more_wait);
        dff_setup!(self, clock, req, held, starting, stuck_beat);
        clock!(self, clock, turned, late);
        let mask: Bits<16> = elab!(bits::<16>(self._rows.0 as u64 - 1));
        let most: Bits<16> = elab!(bits::<16>(2 * self._rows.0 as u64 - 1)); // of a number of rows
        let late_mask: Bits<16> = elab!(bits::<16>(self._late_rows.0 as u64 - 1));

        // Our addresses.
        self.req_we.d.next = self.table_we.val();
        if self.table_we.val() {
            self.req.d.next = self.table.val();
        }
        let req = self.req.q.val();
        if self.req_we.q.val() && req.table == id::PORT {
            self.macs[0].d.next = req.row.get_bits::<48>(elab!(port::MAC.lsb));
        }
        if self.req_we.q.val() && req.table == id::GID {
            let valid = req.row.get_bit(elab!(gid::VALID.lsb));
            for i in 0..GIDS {
                if req.index.get_bits::<4>(0) == i.to_bits::<4>() {
                    self.macs[i + 1].d.next =
                        if valid { req.row.get_bits::<48>(elab!(gid::MAC.lsb)) } else { 0.into() };
                }
            }
        }
        self.up.d.next = self.link_up.val();

        // Take a beat of ours, and at the first of a frame choose its way.
        let holds = self.holds.q.val();
        let (round, link) = (self.round.q.val(), self.link.q.val());
        let held = self.held.q.val();
        let stuck = self.stuck.q.val();
        let stuck_beat = self.stuck_beat.q.val();
        let taken = self.mac_tx.ready.val();
        let up = self.up.q.val();
        let whole_fits = self.fits.q.val() || !(link && self.starting.q.val());
        let room = !round || !self.full.q.val() && whole_fits;
        let gives_up = holds && link && !up && (stuck || !taken);
        // Each way takes the beat, or is none of its frame.
        let goes = room && (!link || !up || taken && !stuck);
        let free = !holds || goes;
        let take = self.tx.valid.val() && free;
        let begins = take && !self.open.q.val();
        self.tx.ready.next = free;
        let destination = self.tx.data.val().get_bits::<48>(0);
        let mut own = false;
        for i in 0..MACS {
            own = own || self.macs[i].q.val() == destination;
        }
        let outward = !own || destination.get_bit(0);
        if free {
            self.holds.d.next = take;
        }
        if take {
            self.open.d.next = !self.tx.last.val();
            self.starting.d.next = begins;
            self.held.d.next = Beat::<W> {
                data: self.tx.data.val(),
                rest: rest_of::<W>(self.tx.bytes.val()),
                last: self.tx.last.val(),
                error: self.tx_error.val(),
            };
        }
        if gives_up {
            self.link.d.next = false;
        }
        if begins {
            self.round.d.next = own;
            self.link.d.next = outward && up;
            self.outward.d.next = outward;
        }
        let offered = if stuck { stuck_beat } else { held };
        let offers = stuck || holds && link && room;
        self.mac_tx.valid.next = offers;
        self.mac_tx.data.next = offered.data;
        self.mac_tx.bytes.next = bytes_of::<W>(offered.rest);
        self.mac_tx.last.next = offered.last;
        self.mac_tx_error.next = offered.error;
        if stuck && taken {
            self.stuck.d.next = !stuck_beat.last;
            self.stuck_beat.d.next.last = true;
            self.stuck_beat.d.next.error = true;
        } else if gives_up && room && !stuck {
            // It was offered.
            self.stuck.d.next = true;
            self.stuck_beat.d.next = held;
        }
        let parted = if offers && taken { !offered.last } else { self.parted.q.val() };
        self.parted.d.next = parted;
        if self.rst.val() {
            // What was offered stays offered, and what has begun ends.
            let waits = offers && !taken;
            self.stuck.d.next = waits || parted;
            self.stuck_beat.d.next = offered;
            if !waits {
                self.stuck_beat.d.next.last = true;
                self.stuck_beat.d.next.error = true;
            }
        }
        let ends = holds && goes && held.last;
        let mut count: Bits<64> = 0.into();
        count = count.replace_bit(counter::TX_LOOPBACK, ends && round);
        count = count.replace_bit(counter::TX_LINK_DOWN, ends && self.outward.q.val() && (!link || gives_up && stuck));
        self.count.next = count;

        // Turned frames.
        let turns = holds && round && goes;
        let came = turns && held.last;
        self.turned.we.next = turns;
        self.turned.waddr.next = self.tail.q.val();
        self.turned.wdata.next = held;
        if turns {
            self.tail.d.next = (self.tail.q.val() + 1) & mask;
        }

        // Merge: frames of the MAC as they come, turned ones in the gaps.
        let stored = self.stored.q.val();
        let comes = self.mac_rx.valid.val();
        let beat = Beat::<W> {
            data: self.mac_rx.data.val(),
            rest: rest_of::<W>(self.mac_rx.bytes.val()),
            last: self.mac_rx.last.val(),
            error: self.mac_rx_error.val(),
        };
        self.mac_rx.ready.next = true;
        let from_turned = self.turned_comes[1].q.val();
        let late = self.late.rdata.val();
        let turned = self.turned.rdata.val();
        let mut out = if from_turned { turned } else { late };
        let mut valid = from_turned || self.late_comes[1].q.val();
        if !stored {
            out = beat;
            valid = comes;
        }
        self.rx.valid.next = valid;
        self.rx.data.next = out.data;
        self.rx.bytes.next = bytes_of::<W>(out.rest);
        self.rx.last.next = out.last;
        self.rx_error.next = out.error;
        self.entered.next = valid && out.last;
        self.turned_in.next = from_turned;

        // Late beats.
        let turning = self.turning.q.val();
        let is_late = comes && stored;
        let asks = self.some_wait.q.val() && !turning;
        self.late.we.next = is_late;
        self.late.waddr.next = self.late_tail.q.val();
        self.late.wdata.next = beat;
        self.late.re.next = asks;
        self.late.raddr.next = self.late_head.q.val();
        if comes {
            self.inside.d.next = !beat.last;
        }
        if is_late {
            self.late_tail.d.next = (self.late_tail.q.val() + 1) & late_mask;
        }
        if asks {
            self.late_head.d.next = (self.late_head.q.val() + 1) & late_mask;
        }
        let waiting = self.waiting.q.val();
        if is_late && !asks {
            self.waiting.d.next = (waiting + 1) & late_mask;
            self.some_wait.d.next = true;
            self.more_wait.d.next = self.some_wait.q.val();
        } else if asks && !is_late {
            self.waiting.d.next = (waiting - 1) & late_mask;
            self.some_wait.d.next = self.more_wait.q.val();
            self.more_wait.d.next = waiting != 2 && self.more_wait.q.val();
        }

        // A frame whose last beat comes just now may start if its first one is in the RAM.
        let ready = self.some_whole.q.val() || came && !self.starting.q.val();
        let gap = !comes && !self.inside.q.val() && !turning && !self.more_wait.q.val();
        let starts = gap && ready && self.room.val();
        let leaves = from_turned;
        let over = from_turned && turned.last;
        // One beat at a time: the last late one may be asked for just now.
        let turned_asks = starts && !self.some_wait.q.val() || turning;
        self.turned.re.next = turned_asks;
        self.turned.raddr.next = self.next.q.val();
        if turned_asks {
            self.next.d.next = (self.next.q.val() + 1) & mask;
        }
        if leaves {
            self.head.d.next = (self.head.q.val() + 1) & mask;
        }
        self.turned_comes[0].d.next = turned_asks;
        self.turned_comes[1].d.next = self.turned_comes[0].q.val();
        self.late_comes[0].d.next = asks;
        self.late_comes[1].d.next = self.late_comes[0].q.val();
        if !self.some_wait.q.val() && !self.late_comes[0].q.val() && !comes && !turning {
            self.stored.d.next = false;
        }
        if starts {
            self.stored.d.next = true;
            self.turning.d.next = true;
        }
        if over {
            self.turning.d.next = false;
            self.turned_comes[0].d.next = false;
            self.turned_comes[1].d.next = false;
            self.next.d.next = (self.head.q.val() + 1) & mask;
        }
        let fill = self.fill.q.val();
        // Two beats may be on their way into `fill`.
        let longest = elab!(wire::MAX_FRAME.div_ceil(W / 8) + 2);
        self.fits.d.next = fill <= elab!(bits::<16>(self._rows.0.saturating_sub(longest) as u64));
        if turns && !leaves {
            self.fill.d.next = (fill + 1) & most;
            self.full.d.next = fill == mask;
        } else if leaves && !turns {
            self.fill.d.next = (fill - 1) & most;
            self.full.d.next = false;
        }
        let whole = self.whole.q.val();
        if came && !starts {
            self.whole.d.next = (whole + 1) & most;
            self.some_whole.d.next = true;
        } else if starts && !came {
            self.whole.d.next = (whole - 1) & most;
            self.some_whole.d.next = whole != 1;
        }
    }
}

#[cfg(test)]
mod tests;
