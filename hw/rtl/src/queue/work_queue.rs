//! Brings posted WQE blocks on chip ahead of their reader: once for the send queues, once for the receive queues.
//!
//! Each queue has a ring of prefetched 64-byte blocks. An *operation* on a queue is a doorbell or consumption seen (fetch
//! more), a fetch that has come back (retire), a go back, a load, or a query. It passes a pipeline; a second one on the same queue
//! waits until the first has written its row, so that rows have no hazards:
//!
//! ```text
//! cycle     0        1        2         3        4
//!           choose   (RAM)    differ-   decide   write row, flags,
//!           queue             ences              hint, DMA read, error
//! ```
//! A doorbell writes the producer RAM and sets the queue's *dirty* bit; the finder brings the queue up later. [`Fetches`] has the
//! fetches in flight, and retires them in the order in which they were made, whatever the order of their data, so a queue's blocks
//! appear in order. Blocks that were consumed stay until others need their place: a go back fetches again only what is not there any
//! more. The size check of a doorbell counts from the furthest consumer index, for the driver may post anew what a late ACK completes
//! behind a go back. A load, or a go back to blocks that are gone, voids the queue's fetches: their data is dropped and they retire
//! without effect.
//! A direct WQE that is the next one is on chip without a fetch ([`DirectWqe`]; send queues alone have it, and go backs).
//! A doorbell that meets an idle finder becomes an operation at once, and a queue that gets blocks wakes the scheduler with a hint.
//!
//! Indices count *units*: a send queue's is a block, a receive queue's is an SGE of 16 bytes, four to a block, so that receives of
//! one SGE stand four in a block. A fetch that begins or ends within a block reads all of it, and writes on chip what it gains and
//! nothing else: what lies beside may be read in that cycle, or may be posted, and fetched, before this data comes.
//!
//! A receive queue may have a *limit*: when an operation finds fewer units posted and not consumed, it is told of once, and gone.
//!
//! A fetch starts only with a slot free, and its data has its place in the ring: nothing that comes in ever waits. Out,
//! the block waits for `dma_read` and for the QP error intake, which do not wait for it.

use super::{
    direct::DirectWqe,
    fetches::{Fetch, Fetches},
    flags::{Flags, Scan, is_size},
    store::BlockStore,
};
use crate::{
    msg::{DirectWord, DmaData, DmaRead, Qp, QpError, QpView, QueueIndex, QueueView, Ring, Woken, numbers},
    stream::{Fifo, FreshTable, Passage, Sink, Source, Table, TablePort},
};
use abi::{
    queue::{WQE_BLOCK, sge},
    status::{cause, counter},
    table::{id, qp_recv, qp_send, srq},
};
use hdl::prelude::*;

/// Units in a block of a receive queue.
const RECV_UNITS: usize = WQE_BLOCK / sge::BYTES;
/// Operations that may be between the look at the room for their effects, and these.
const PIPE: usize = 6;
/// DMA reads and errors that may wait for their takers.
const WAITING: usize = 16;

/// Where a ring lies.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Place {
    /// Address / 64.
    base: Bits<58>,
    log2: Bits<4>,
}

/// State of a queue.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct State {
    /// Units below are posted, as far as doorbells were sound.
    posted: Bits<16>,
    /// Units below are asked for.
    asked: Bits<16>,
    /// Units below are on chip.
    fetched: Bits<16>,
    /// The furthest consumer index: a go back does not take it back, for all before may be complete by now.
    furthest: Bits<16>,
    /// Blocks below `asked` that are on chip or on their way, consumed or not.
    kept: Bits<7>,
    /// A doorbell or DMA error stopped the queue until it is loaded anew.
    dead: Bit,
}

/// Operations.
#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
enum Kind {
    None,
    Fetch,
    Retire,
    /// Is a direct WQE the next block, with room for it?
    Ask,
    Back,
    Load,
    /// Sets a limit.
    Arm,
    Query,
}

/// An operation in the pipeline.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Op {
    /// There is one.
    live: Bit,
    kind: Kind,
    queue: Qp,
    /// Retire: units, and whether one of them is bad.
    units: Bits<5>,
    bad: Bit,
}

/// What is known of a queue when it is decided.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Distance {
    /// The furthest consumer index.
    furthest: Bits<16>,
    /// The doorbell; how far it is beyond all that was ever consumed, and the sound producer beyond that.
    producer: Bits<16>,
    rung: Bits<16>,
    sound: Bits<16>,
    /// The doorbell is beyond what is asked for, by so many units modulo 32.
    some: Bit,
    units: Bits<5>,
    /// Blocks between them: too many for one fetch, else this many.
    many: Bit,
    few: Bits<3>,
    /// Free blocks on chip: eight or more, else this many.
    wide: Bit,
    room: Bits<3>,
    /// Blocks and units up to the next multiple of 4 blocks or the end of a smaller ring.
    to_end: Bits<3>,
    end_units: Bits<5>,
    /// Units of the ring in host memory.
    size: Bits<16>,
    /// Fetched units to be retired fit below the sound producer.
    retires: Bit,
    /// It has units that were not consumed; it has when those to be retired are.
    works: Bit,
    gains: Bit,
    /// A go back: how far below what is asked for it leads, and whether that is on chip or was.
    behind: Bits<16>,
    below: Bit,
    /// A go back leads beyond what is posted as far as doorbells were seen.
    ahead: Bit,
    /// Units that are posted and not consumed, and the limit.
    fill: Bits<16>,
    limit: Bits<16>,
    /// The direct WQE is of this queue; it would be the next block.
    mine: Bit,
    level: Bit,
}

/// A DMA read that is to be made.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Read {
    /// Address / 64.
    from: Bits<58>,
    /// Where its first block stands among four.
    at: Bits<2>,
    blocks: Bits<3>,
    slot: Bits<6>,
}

/// An error that is to be told.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Hurt {
    queue: Qp,
    /// By a doorbell, not by a read.
    range: Bit,
    /// Not hurt: it is below its limit.
    limit: Bit,
}

/// Work queues of N QPs over a bus of W bits.
#[derive(LogicBlock, Default)]
pub struct WorkQueue<const W: usize, const N: usize> {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// A doorbell.
    pub ring: Signal<In, Ring>,
    pub ring_valid: Signal<In, Bit>,
    /// Words of a send WQE, before its doorbell.
    pub direct: Signal<In, DirectWord>,
    pub direct_valid: Signal<In, Bit>,
    /// Rows of QP_SEND or QP_RECV; a read gives the live indices. Also SRQ rows.
    pub table: TablePort,
    /// Reads the block that has unit `index` of queue `number`; `block` and `view` follow two cycles later and stay up to the cycle behind that of the
    /// next read.
    pub re: Signal<In, Bit>,
    pub number: Signal<In, Qp>,
    pub index: Signal<In, Bits<16>>,
    /// A block that is read in halves follows a cycle later still, but ends no later: two cycles behind the next read its upper half
    /// is gone. So it is there at all only if no read comes in the cycle behind its own, and for one cycle if one comes in the next.
    pub block: Signal<Out, Bits<512>>,
    pub view: Signal<Out, QueueView>,
    /// New consumer index: always taken.
    pub consume: Sink<QueueIndex>,
    /// Go back to an index, which becomes the consumer index; blocks that are not on chip any more are fetched again. Taken when done:
    /// from then on `view` tells of it.
    /// Send queues only.
    pub back: Sink<QueueIndex>,
    pub dma: Source<DmaRead>,
    /// Data of the reads, taken always.
    pub data: Signal<In, DmaData>,
    pub beat: Signal<In, Bits<W>>,
    pub data_valid: Signal<In, Bit>,
    /// Queues with units on chip that were not consumed.
    pub work: Signal<Out, Bits<N>>,
    /// A queue got or has such units: they may be read in this cycle. The queue is told a cycle ahead.
    pub woken: Signal<Out, Woken>,
    pub woken_valid: Signal<Out, Bit>,
    pub soon: Signal<Out, Qp>,
    /// A doorbell out of range, or a DMA error.
    pub error: Source<QpError>,
    /// Reads a QP's generation for an error.
    pub qp_re: Signal<Out, Bit>,
    pub qp_addr: Signal<Out, Qp>,
    pub qp: Signal<In, QpView>,
    pub count: Signal<Out, Bits<64>>,
    /// Fetches that were made and that are done, in steps of 2^9, modulo 2^16: for a drain. Behind a load its queue makes none from its old ring.
    pub filled: Signal<Out, Bits<16>>,
    pub emptied: Signal<Out, Bits<16>>,
    // Rows. The producer RAM has the last doorbell, sound or not.
    place: Table<Place>,
    state: Table<State>,
    producer: FreshTable<Bits<16>>,
    /// Of receive queues.
    limits: Table<Bits<16>>,
    consumer: FreshTable<Bits<16>>,
    seen: FreshTable<QueueView>,
    store: BlockStore,
    // Flags.
    dirty: Flags<N>,
    ready: Flags<N>,
    scan: Scan<N>,
    // Pipeline.
    /// The first operation is there for one of these reasons: its `live` is told by them.
    starts: Reg<Bits<5>>,
    first: Reg<Op>,
    second: Reg<Op>,
    third: Reg<Op>,
    fourth: Reg<Op>,
    distance: DFF<Distance>,
    old: DFF<State>,
    old_place: DFF<Place>,
    old_consumer: DFF<Bits<16>>,
    new: DFF<State>,
    new_consumer: DFF<Bits<16>>,
    /// A load, query or go back: it waits or is under way, and still waits. One at a time.
    control: Reg<Op>,
    pending: Reg<Bit>,
    /// A row that is not for us.
    passes: Reg<Bit>,
    /// The last doorbell.
    rang: Reg<Bit>,
    rang_queue: DFF<Qp>,
    rang_index: DFF<Bits<16>>,
    /// One that became no operation at once; a queue to be looked at again.
    missed: Reg<Bit>,
    redo: Reg<Bit>,
    redo_queue: DFF<Qp>,
    missed_queue: DFF<Qp>,
    /// Room for a fetch, and for an error.
    fetch_room: Reg<Bit>,
    error_room: Reg<Bit>,
    /// Decided: so many blocks are fetched from here, or are a direct WQE, and gain so many units; more remains; errors.
    step: Reg<Bits<3>>,
    gain: Reg<Bits<5>>,
    fetches_some: Reg<Bit>,
    skips: Reg<Bit>,
    /// It has blocks that were not consumed, without a direct WQE.
    works: DFF<Bit>,
    fetch_from: DFF<Bits<58>>,
    more: Reg<Bit>,
    /// Of the direct WQE's queue: it is granted its place; it moved.
    mine: Reg<Bit>,
    answers: Reg<Bit>,
    grants: Reg<Bit>,
    moved: Reg<Bit>,
    out_of_range: Reg<Bit>,
    broken: Reg<Bit>,
    /// It is below its limit; what that is, and how many are there.
    low: Reg<Bit>,
    limit: DFF<Bits<16>>,
    fill: DFF<Bits<16>>,
    /// A load, or a go back to blocks that are not on chip any more.
    anew: Reg<Bit>,
    /// A go back leads beyond what is posted: what was told by doorbells counts no more.
    leaps: Reg<Bit>,
    /// The end of a load or go back: rows that others write too.
    last: Reg<Op>,
    last_producer: Reg<Bit>,
    last_consumer: Reg<Bit>,
    fetches: Fetches<W>,
    direct_wqe: DirectWqe,
    // Data, one cycle later.
    data_beat: DFF<Bits<W>>,
    // Output.
    reads: Passage<Read>,
    errors: Fifo<Hurt>,
    error_step: Reg<Bits<2>>,
    _table: Hidden<u8>,
    _blocks: Hidden<u64>,
    /// Direct WQEs and go backs.
    _sends: Hidden<bool>,
    /// Log2 of the units in a block.
    _log2_units: Hidden<usize>,
}

impl<const W: usize, const N: usize> WorkQueue<W, N> {
    /// `table` is QP_SEND, with a unit to a block, or QP_RECV, with four; `blocks`, a power of two from 8 to 64, are kept on chip per
    /// queue, in RAM of this style; `slots` fetches are in flight, a power of two from 8 to 64. `halves`: blocks are read in two halves (see [`BlockStore`]).
    pub fn new(table: u8, blocks: usize, style: &'static str, slots: usize, halves: bool) -> Self {
        assert!(is_size(N) && [64, 128, 256, 512].contains(&W), "{N} queues over {W} bits");
        assert!(blocks.is_power_of_two() && (8..=64).contains(&blocks));
        assert!(!halves || W < 512, "what is written at once goes into one half");
        WorkQueue {
            place: Table::new(N, ""),
            state: Table::new(N, "block"),
            producer: FreshTable::new(N, ""),
            limits: Table::new(N, "distributed"),
            consumer: FreshTable::new(N, ""),
            seen: FreshTable::new(N, ""),
            store: BlockStore::new(N * blocks, style, halves),
            fetches: Fetches::new(slots, PIPE),
            direct_wqe: DirectWqe::new(),
            reads: Passage::lasting(WAITING),
            errors: Fifo::new(WAITING),
            _table: Hidden(table),
            _blocks: Hidden(blocks as u64),
            _sends: Hidden(table == id::QP_SEND),
            _log2_units: Hidden(if table == id::QP_SEND { 0 } else { RECV_UNITS.trailing_zeros() as usize }),
            ..Default::default()
        }
    }
}

/// The later of two indices. A go back takes at most 128 WQEs back, so they are never far apart.
#[hdl_fn]
fn later(a: Bits<16>, b: Bits<16>) -> Bits<16> {
    if (a - b).get_bit(15) { b } else { a }
}

/// Whether `op` is on `queue`.
#[hdl_fn]
fn meets(op: Op, queue: Qp) -> Bit {
    op.live && op.queue == queue
}

/// Whether `queue` has no operation under way, nor any that waits for an empty pipeline.
#[hdl_fn]
fn is_free(queue: Qp, first: Op, second: Op, third: Op, fourth: Op, control: Op) -> Bit {
    let met = cat!(
        5;
        meets(first, queue),
        meets(second, queue),
        meets(third, queue),
        meets(fourth, queue),
        meets(control, queue)
    );
    !met.any()
}

impl<const W: usize, const N: usize> Logic for WorkQueue<W, N> {
    #[kernel]
    fn update(&mut self) {
        regs!(
            self, clock, rst, starts, first, second, third, fourth, control, pending, passes, rang, fetch_room,
            error_room
        );
        regs!(self, clock, rst, step, gain, fetches_some, skips, more, out_of_range, broken, last, last_producer);
        regs!(
            self,
            clock,
            rst,
            last_consumer,
            error_step,
            mine,
            answers,
            grants,
            moved,
            missed,
            redo,
            anew,
            leaps,
            low
        );
        dff_setup!(self, clock, distance, old, old_place, old_consumer, new, new_consumer, fetch_from, works);
        dff_setup!(self, clock, data_beat, rang_queue, rang_index, missed_queue, redo_queue, limit, fill);
        clock!(self, clock, place, state, producer, limits, consumer, seen, store);
        clock_reset!(self, clock, rst, dirty, ready, scan, reads, errors, fetches, direct_wqe);
        let depth: Bits<7> = elab!(bits::<7>(self._blocks.0));
        // A direct WQE may be written into the next two places before it is asked for.
        let keeps: Bits<7> = elab!(bits::<7>(self._blocks.0 - 2));
        let mask: Bits<6> = elab!(bits::<6>(self._blocks.0 - 1));
        let numbers: Qp = elab!(numbers(N));

        // ---- The reader.
        let row = (self.number.val().cast::<24>() << elab!(self._blocks.0.trailing_zeros() as u64))
            | (self.index.val().get_bits::<6>(elab!(self._log2_units.0)) & mask).cast::<24>();
        self.store.re.next = self.re.val();
        self.store.raddr.next = row;
        self.block.next = self.store.rdata.val();
        self.seen.re.next = self.re.val();
        self.seen.raddr.next = self.number.val().cast::<24>();
        self.view.next = self.seen.rdata.val();

        // ---- Loads, queries and go backs: one at a time, for loads and go backs end in `last`.
        let control = self.control.q.val();
        let last = self.last.q.val();
        let fourth = self.fourth.q.val();
        let req = self.table.req.val();
        let last_done = last.live
            && !self.last_producer.q.val()
            && !self.last_consumer.q.val()
            && !self.more.q.val()
            && !self.fetches.voiding.val();
        let answers = fourth.live && fourth.kind == Kind::Query;
        let arms = fourth.live && fourth.kind == Kind::Arm && !self._sends.0;
        let passes = self.passes.q.val();
        self.passes.d.next = false;
        if answers || arms || last_done {
            self.control.d.next.kind = Kind::None;
            self.control.d.next.live = false;
        } else if !control.live && !passes {
            let mut kind = Kind::None;
            if self.table.valid.val() {
                let loads = req.row.get_bit(elab!(qp_send::LOAD.lsb));
                let limits = req.table == elab!(id::SRQ) && !self._sends.0;
                if limits {
                    kind = if req.write { Kind::Arm } else { Kind::Query };
                } else if req.table != elab!(self._table.0) || req.write && !loads {
                    self.passes.d.next = true;
                } else {
                    kind = if req.write { Kind::Load } else { Kind::Query };
                }
            } else if self.back.valid.val() && self._sends.0 {
                kind = Kind::Back;
            }
            let queue = if self.table.valid.val() { req.index.get_bits::<12>(0) } else { self.back.data.val().queue };
            self.control.d.next =
                Op { live: kind != Kind::None, kind, queue: queue & numbers, units: 0.into(), bad: false };
            self.pending.d.next = kind != Kind::None;
        }
        self.table.ready.next = passes || answers || arms || last_done && last.kind == Kind::Load;
        self.back.ready.next = last_done && last.kind == Kind::Back;

        // ---- Choose an operation on a queue that has none under way.
        let mut first = self.first.q.val();
        first.live = self.starts.q.val().any();
        let second = self.second.q.val();
        let third = self.third.q.val();
        let done = self.fetches.done.val();
        self.error_room.d.next = self.errors.fill.val() < elab!((WAITING - PIPE) as u64);
        self.fetch_room.d.next = self.reads.fill.val() <= elab!((WAITING - PIPE) as u64)
            && self.fetches.room.val()
            && self.error_room.q.val();
        let fetch_room = self.fetch_room.q.val();
        let found = self.scan.pick.data.val();
        let rang_queue = self.rang_queue.q.val();
        let asker = self.direct_wqe.queue.val();
        // The choice is made among all, and comes to nothing if its queue is not free.
        let pending = self.pending.q.val();
        let controls = pending && !first.live && !second.live && !third.live && !fourth.live;
        let retires = self.fetches.done_valid.val() && self.error_room.q.val() && !pending;
        let asks = self.direct_wqe.asks.val() && self._sends.0 && !pending && !retires;
        let finds = self.scan.pick.valid.val() && fetch_room && !pending && !retires && !asks;
        // A doorbell that finds nothing else to do goes at once; else the finder comes upon its queue.
        let rings = self.rang.q.val() && fetch_room && !pending && !retires && !asks && !finds;
        let take_retire = retires && is_free(done.queue, first, second, third, fourth, control);
        let take_ask = asks && is_free(asker, first, second, third, fourth, control);
        let take_found = finds && is_free(found, first, second, third, fourth, control);
        let take_rung = rings && is_free(rang_queue, first, second, third, fourth, control);
        let mut op = Op {
            live: false,
            kind: Kind::Fetch,
            queue: rang_queue,
            units: if self._sends.0 { done.units & bits::<5>(7) } else { done.units },
            bad: self.fetches.done_bad.val(),
        };
        if pending {
            op.kind = control.kind;
            op.queue = control.queue;
        } else if retires {
            op.kind = Kind::Retire;
            op.queue = done.queue;
        } else if asks {
            op.kind = Kind::Ask;
            op.queue = asker;
        } else if finds {
            op.queue = found;
        }
        if controls {
            self.pending.d.next = false;
        }
        self.fetches.done_ready.next = take_retire;
        self.scan.pick.ready.next = take_found;
        self.starts.d.next = cat!(5; controls, take_retire, take_ask, take_found, take_rung);
        self.first.d.next = op;
        let at = op.queue.cast::<24>();
        self.place.re.next = true;
        self.place.raddr.next = at;
        self.state.re.next = true;
        self.state.raddr.next = at;
        self.producer.re.next = true;
        self.producer.raddr.next = at;
        self.limits.re.next = true;
        self.limits.raddr.next = at;
        self.consumer.re.next = true;
        self.consumer.raddr.next = at;
        self.second.d.next = first;

        // ---- Cycle 2: differences.
        let state = self.state.rdata.val();
        let place = self.place.rdata.val();
        let producer = self.producer.rdata.val();
        let consumer = self.consumer.rdata.val();
        let one: Bits<16> = 1.into();
        let furthest = later(state.furthest, consumer);
        let direct_index = self.direct_wqe.index.val();
        let wanted = producer - state.asked;
        // In blocks. A receive queue's last may be asked for in part, or consumed in part, and is whole on chip.
        let (from, to): (Bits<14>, Bits<14>) = (state.asked.get_bits::<14>(2), producer.get_bits::<14>(2));
        let beyond = to + !from + cat!(14; bits::<13>(0), producer.get_bits::<2>(0).any());
        let many = if self._sends.0 { wanted.get_bits::<13>(3).any() } else { beyond.get_bits::<12>(2).any() };
        let few: Bits<3> =
            if self._sends.0 { wanted.get_bits::<3>(0) } else { beyond.get_bits::<2>(0).cast::<3>() + 1 };
        let room = consumer.get_bits::<7>(elab!(self._log2_units.0)) + depth
            - state.asked.get_bits::<7>(elab!(self._log2_units.0));
        // Fetches end at multiples of 4 blocks and at the end of a smaller ring.
        let in_four = state.asked.get_bits::<2>(elab!(self._log2_units.0));
        let to_end = if place.log2 == 0 {
            1.into()
        } else if place.log2 == 1 {
            cat!(3; false, !in_four.get_bit(0), in_four.get_bit(0))
        } else {
            bits::<3>(4) - in_four.cast::<3>()
        };
        let in_block: Bits<5> = if self._sends.0 { 0.into() } else { state.asked.get_bits::<2>(0).cast() };
        self.third.d.next = second;
        self.old.d.next = state;
        self.old_place.d.next = place;
        self.old_consumer.d.next = consumer;
        self.distance.d.next = Distance {
            furthest,
            producer,
            rung: producer - furthest,
            sound: state.posted - furthest,
            some: wanted.any(),
            units: wanted.get_bits::<5>(0),
            many,
            few,
            wide: room.get_bits::<4>(3).any(),
            room: room.get_bits::<3>(0),
            to_end,
            end_units: (to_end.cast::<5>() << elab!(self._log2_units.0 as u64)) - in_block,
            size: (one << place.log2) << elab!(self._log2_units.0 as u64),
            retires: state.posted - state.fetched >= second.units.cast::<16>(),
            works: state.fetched != consumer,
            gains: state.fetched + second.units.cast::<16>() != consumer,
            behind: state.asked - self.back.data.val().index,
            below: !(state.fetched - self.back.data.val().index).get_bit(15),
            fill: producer - consumer,
            limit: if self._sends.0 { 0.into() } else { self.limits.rdata.val() },
            ahead: self._sends.0 && (state.posted - self.back.data.val().index).get_bit(15),
            mine: asker == second.queue,
            level: direct_index == state.asked && state.asked == state.fetched,
        };

        // ---- Cycle 3: decide.
        let d = self.distance.q.val();
        let old = self.old.q.val();
        self.fourth.d.next = third;
        let mut new = old;
        new.furthest = d.furthest;
        let mut new_consumer = self.old_consumer.q.val();
        let full = if d.many || d.few >= d.to_end { d.to_end } else { d.few };
        let some = d.some;
        let sound = d.rung <= d.size && d.rung >= d.sound;
        let looks = third.live && third.kind == Kind::Fetch && !old.dead;
        let runs = looks && sound;
        // A direct WQE that is next is there; one that is next but not yet written is waited for; any other is forgotten.
        let two = self.direct_wqe.two.val();
        let direct_blocks: Bits<3> = if two { 2.into() } else { 1.into() };
        let enough = d.many || d.few >= direct_blocks;
        let fits_direct = d.wide || d.room >= direct_blocks;
        let next = self.direct_wqe.posted.val() && d.mine && d.level && enough && self._sends.0;
        let written = self.direct_wqe.written.val();
        // When room is what limits, wait for a whole fetch of it.
        let fits = (d.wide || d.room >= full) && some && !next;
        let skips = runs && next && written;
        let fetches = runs && fits;
        self.skips.d.next = skips;
        self.fetches_some.d.next = fetches;
        self.step.d.next = if skips {
            direct_blocks
        } else if fetches {
            full
        } else {
            0.into()
        };
        self.gain.d.next = if skips {
            direct_blocks.cast()
        } else if !fetches {
            0.into()
        } else if d.many || d.few > d.to_end {
            d.end_units
        } else {
            d.units
        };
        let rest = d.many || d.few != (if next { direct_blocks } else { full });
        self.more.d.next = runs && (next && !written || (next || fits) && rest);
        self.out_of_range.d.next = looks && !sound;
        self.low.d.next = runs && d.fill < d.limit;
        self.limit.d.next = d.limit;
        self.fill.d.next = d.fill;
        self.broken.d.next = third.live && third.kind == Kind::Retire && third.bad && !old.dead;
        self.direct_wqe.asked.next = take_ask;
        self.answers.d.next = third.live && third.kind == Kind::Ask;
        self.grants.d.next = !old.dead && d.level && fits_direct;
        self.mine.d.next = d.mine;
        self.moved.d.next = looks && (!sound || some && !(next && !written));
        let back = self.back.data.val().index;
        // What is still on chip needs no second fetch: that would take as long as all the rest of a go back.
        let kept = !d.behind.get_bits::<9>(7).any() && d.behind.get_bits::<7>(0) <= old.kept;
        let reuses = kept && d.below && !old.dead;
        self.anew.d.next = third.live && (third.kind == Kind::Load || third.kind == Kind::Back && !reuses);
        match third.kind {
            Kind::Fetch => {
                if looks && !sound {
                    new.dead = true;
                    new.posted = old.asked;
                } else if looks {
                    new.posted = d.producer;
                }
            }
            Kind::Retire => {
                if third.bad {
                    new.dead = true;
                    new.posted = old.fetched;
                    new.asked = old.fetched;
                } else if d.retires {
                    new.fetched = old.fetched + third.units.cast::<16>();
                }
            }
            Kind::Back => {
                if !reuses {
                    new.asked = back;
                    new.fetched = back;
                    new.kept = 0.into();
                }
                new_consumer = back;
                // To a place ahead, which is behind all that is posted, it goes when a queue resumes.
                if old.dead || d.ahead {
                    new.posted = back;
                }
            }
            Kind::Load => {
                new = State {
                    posted: 0.into(),
                    asked: 0.into(),
                    fetched: 0.into(),
                    furthest: 0.into(),
                    kept: 0.into(),
                    dead: false,
                };
                new_consumer = 0.into();
            }
            _ => {}
        }
        self.leaps.d.next = third.kind == Kind::Back && d.ahead;
        let restart = third.kind == Kind::Back || third.kind == Kind::Load;
        let gains = third.kind == Kind::Retire && !third.bad && d.retires;
        self.works.d.next = if restart {
            third.kind == Kind::Back && reuses && old.fetched != back
        } else if gains {
            d.gains
        } else {
            d.works
        };
        self.new.d.next = new;
        self.new_consumer.d.next = new_consumer;
        let offset = old.asked & (d.size - 1);
        self.fetch_from.d.next =
            self.old_place.q.val().base + (offset >> elab!(self._log2_units.0 as u64)).cast::<58>();

        // ---- Cycle 4: effects.
        let mut new = self.new.q.val();
        let skipped = self.skips.q.val();
        let asked_from = new.asked;
        let step = self.step.q.val();
        new.asked = asked_from + self.gain.q.val().cast::<16>();
        let kept = new.kept + step.cast::<7>();
        new.kept = if !elab!(self._sends.0) {
            0.into()
        } else if kept < keeps {
            kept
        } else {
            keeps
        };
        if skipped {
            new.fetched = new.asked;
        }
        let at = fourth.queue.cast::<24>();
        let writes = fourth.live && fourth.kind != Kind::Query && fourth.kind != Kind::Ask;
        let restarts = fourth.live && (fourth.kind == Kind::Back || fourth.kind == Kind::Load);
        self.state.we.next = writes;
        self.state.waddr.next = at;
        self.state.wdata.next = new;
        self.seen.we.next = writes;
        self.seen.waddr.next = at;
        self.seen.wdata.next = QueueView { posted: new.posted, fetched: new.fetched };
        self.place.we.next = fourth.live && fourth.kind == Kind::Load;
        self.place.waddr.next = at;
        self.place.wdata.next = Place {
            base: req.row.get_bits::<58>(elab!(qp_send::BASE.lsb + 6)),
            log2: req.row.get_bits::<4>(elab!(qp_send::LOG2_BLOCKS.lsb)),
        };
        let has_work = skipped || self.works.q.val();
        self.ready.set[0].next = writes && has_work;
        self.ready.set_at[0].next = fourth.queue;
        self.ready.clear.next = writes && !has_work;
        self.ready.clear_at.next = fourth.queue;
        for s in 1..3 {
            self.ready.set[s].next = false;
            self.ready.set_at[s].next = 0.into();
        }
        self.ready.drop.next = false;
        self.ready.drop_group.next = 0.into();
        self.work.next = self.ready.bits.val();
        self.woken_valid.next = writes && has_work;
        self.woken.next = Woken { queue: fourth.queue, index: self.new_consumer.q.val() };
        self.soon.next = third.queue;

        let enter = self.fetches_some.q.val();
        self.fetches.enter.next = enter;
        let first: Bits<4> = if self._sends.0 { 0.into() } else { asked_from.get_bits::<4>(0) };
        self.fetches.fetch.next = Fetch {
            queue: fourth.queue,
            index: asked_from.get_bits::<6>(elab!(self._log2_units.0)) & mask,
            blocks: step,
            first,
            units: self.gain.q.val(),
        };
        self.fetches.void.next = self.anew.q.val();
        self.fetches.void_queue.next = fourth.queue;
        self.filled.next = self.fetches.filled.val();
        self.emptied.next = self.fetches.emptied.val();
        self.reads.s.valid.next = enter;
        self.reads.s.data.next = Read {
            from: self.fetch_from.q.val(),
            at: asked_from.get_bits::<2>(elab!(self._log2_units.0)),
            blocks: step,
            slot: self.fetches.tag.val(),
        };
        let read = self.reads.m.data.val();
        self.reads.m.ready.next = self.dma.ready.val();
        self.dma.valid.next = self.reads.m.valid.val();
        self.dma.data.next = DmaRead {
            iova: cat!(64; read.from, bits::<6>(0)),
            len: cat!(14; bits::<5>(0), read.blocks, bits::<6>(0)),
            tag: read.slot.cast::<16>(),
            dest: cat!(8; read.at, bits::<6>(0)).cast(),
        };
        let low = self.low.q.val();
        self.limits.we.next = (low || arms || restarts) && !self._sends.0;
        self.limits.waddr.next = at;
        self.limits.wdata.next = if arms { req.row.get_bits::<16>(elab!(srq::LIMIT.lsb)) } else { 0.into() };
        self.errors.s.valid.next = self.out_of_range.q.val() || self.broken.q.val() || low;
        self.errors.s.data.next = Hurt { queue: fourth.queue, range: self.out_of_range.q.val(), limit: low };
        let none: Bits<64> = 0.into();
        self.count.next = none.replace_bit(elab!(counter::DOORBELL_RANGE), self.out_of_range.q.val());

        // ---- The end of loads and go backs: rows that doorbells and consumption write too.
        if restarts {
            self.last.d.next = fourth;
            self.last_producer.d.next = fourth.kind == Kind::Load || self.leaps.q.val();
            self.last_consumer.d.next = true;
        } else if last_done {
            self.last.d.next.kind = Kind::None;
            self.last.d.next.live = false;
        }
        let ring = self.ring.val();
        let rung = self.ring_valid.val();
        let consumed = self.consume.valid.val();
        // A doorbell is written in the cycle in which it may become an operation.
        let rang = self.rang.q.val();
        let restart = if last.kind == Kind::Back { back } else { 0.into() };
        self.producer.we.next = rang || self.last_producer.q.val();
        self.producer.waddr.next = if rang { rang_queue.cast::<24>() } else { last.queue.cast::<24>() };
        self.producer.wdata.next = if rang { self.rang_index.q.val() } else { restart };
        if !rang && !restarts {
            self.last_producer.d.next = false;
        }
        let eaten = self.consume.data.val();
        self.consumer.we.next = consumed || self.last_consumer.q.val();
        self.consumer.waddr.next = if consumed { eaten.queue.cast::<24>() } else { last.queue.cast::<24>() };
        self.consumer.wdata.next = if consumed { eaten.index } else { restart };
        if !consumed && !restarts {
            self.last_consumer.d.next = false;
        }
        self.consume.ready.next = true;
        self.table.rvalid.next = answers;
        self.table.rdata.next = 0.into();
        self.table.rdata.next.set_bits::<16>(elab!(qp_send::PRODUCER.lsb), self.new.q.val().posted);
        self.table.rdata.next.set_bits::<16>(elab!(qp_send::CONSUMER.lsb), self.new_consumer.q.val());
        self.table.rdata.next.set_bits::<16>(elab!(qp_send::FETCHED.lsb), self.new.q.val().fetched);
        if !self._sends.0 {
            self.table.rdata.next.set_bits::<16>(elab!(srq::LIMIT.lsb), self.limit.q.val());
            self.table.rdata.next.set_bits::<16>(elab!(srq::POSTED.lsb), self.fill.q.val());
        }

        // ---- Dirty queues.
        self.rang.d.next = rung;
        self.rang_queue.d.next = ring.number & numbers;
        self.rang_index.d.next = ring.index.get_bits::<16>(0);
        self.missed.d.next = rang && !take_rung;
        self.missed_queue.d.next = rang_queue;
        self.dirty.set[0].next = self.missed.q.val();
        self.dirty.set_at[0].next = self.missed_queue.q.val();
        self.dirty.set[1].next = consumed;
        self.dirty.set_at[1].next = eaten.queue & numbers;
        let again = last_done && last.kind == Kind::Back;
        // A limit that is set is looked at, whether the queue moves or not.
        self.redo.d.next = self.more.q.val() || again || arms;
        self.redo_queue.d.next = if self.more.q.val() || arms { fourth.queue } else { last.queue };
        self.dirty.set[2].next = self.redo.q.val();
        self.dirty.set_at[2].next = self.redo_queue.q.val();
        self.dirty.clear.next = false;
        self.dirty.clear_at.next = 0.into();
        self.dirty.drop.next = self.scan.take.val();
        self.dirty.drop_group.next = self.scan.group.val();
        self.scan.bits.next = self.dirty.bits.val();

        // ---- Data, in the order in which it comes, and direct WQEs between.
        self.fetches.data.next = self.data.val();
        self.fetches.data_valid.next = self.data_valid.val();
        if self.data_valid.val() {
            self.data_beat.d.next = self.beat.val();
        }
        let beat = self.data_beat.q.val();
        let comes = self.fetches.comes.val();
        let lands = self.fetches.lands.val();
        let direct = self.direct_wqe.write.val() && !comes && self._sends.0;
        let words = self.direct_wqe.data.val();
        let from = if comes { self.fetches.word.val() } else { self.direct_wqe.word.val() };
        let whose = if comes { self.fetches.queue.val() } else { asker };
        let line = if comes { self.fetches.index.val() } else { self.direct_wqe.row.val() };
        self.store.waddr.next =
            (whose.cast::<24>() << elab!(self._blocks.0.trailing_zeros() as u64)) | (line & mask).cast::<24>();
        let four = self.fetches.index.val().get_bits::<2>(0);
        let mut we: Bits<8> = 0.into();
        for b in 0..8 {
            let lane: Bits<3> = bits::<3>((b / (W / 64) * (W / 64)) as u64);
            let pair: Bits<3> = bits::<3>((b / 2 * 2) as u64);
            // Of a receive queue only what the fetch gains.
            let unit: Bits<5> = cat!(5; false, four, bits::<2>((b / 2) as u64));
            let gained = self._sends.0 || unit >= self.fetches.first.val().cast::<5>() && unit < self.fetches.end.val();
            we = we.replace_bit(b, lands && from == lane && gained || direct && from == pair);
            let fetched = beat.get_bits::<64>(64 * b % W);
            let word = if self._sends.0 && !comes { words.get_bits::<64>(b % 2 * 64) } else { fetched };
            self.store.wdata.next.set_bits::<64>(64 * b, word);
        }
        self.store.we.next = we;
        self.direct_wqe.free.next = !comes;
        self.direct_wqe.told.next = self.direct.val();
        self.direct_wqe.told_valid.next = self.direct_valid.val() && self._sends.0;
        self.direct_wqe.ring.next = ring;
        self.direct_wqe.ring_valid.next = rung;
        self.direct_wqe.answers.next = self.answers.q.val();
        self.direct_wqe.grants.next = self.grants.q.val();
        self.direct_wqe.moves.next = self.mine.q.val() && self.moved.q.val();
        self.direct_wqe.restarts.next = self.mine.q.val() && restarts;

        // ---- Errors get the generation of their QP.
        let step = self.error_step.q.val();
        let error = self.errors.m.data.val();
        let waits = self.errors.m.valid.val();
        self.qp_re.next = waits && step == 0;
        self.qp_addr.next = error.queue;
        self.error.valid.next = waits && step == 2;
        let cause = if error.limit {
            bits::<8>(cause::NONE as u64)
        } else if error.range {
            bits::<8>(cause::DOORBELL_RANGE as u64)
        } else {
            bits::<8>(cause::DMA_ERROR as u64)
        };
        self.error.data.next = QpError {
            send_only: false,
            limit: error.limit,
            qpn: error.queue,
            generation: self.qp.val().generation,
            any_generation: false,
            cause,
            event: true,
        };
        let gone = step == 2 && self.error.ready.val();
        self.errors.m.ready.next = gone;
        if gone {
            self.error_step.d.next = 0.into();
        } else if waits && step != 2 {
            self.error_step.d.next = step + 1;
        }
    }
}

const _: () = {
    assert!(qp_send::LOAD.lsb == qp_recv::LOAD.lsb && qp_send::BASE.lsb == qp_recv::BASE.lsb);
    assert!(qp_send::LOG2_BLOCKS.lsb == qp_recv::LOG2_BLOCKS.lsb && qp_send::PRODUCER.lsb == qp_recv::PRODUCER.lsb);
    assert!(qp_send::CONSUMER.lsb == qp_recv::CONSUMER.lsb && qp_send::FETCHED.lsb == qp_recv::FETCHED.lsb);
};

#[cfg(test)]
#[path = "work_queue_tests.rs"]
mod tests;
