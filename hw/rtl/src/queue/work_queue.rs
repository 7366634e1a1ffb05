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
//! A doorbell writes the producer RAM and sets the queue's *dirty* bit; the finder brings the queue up later. Fetches live in
//! 64 slots and are retired in the order in which they were made, whatever the order of their data, so a queue's blocks appear
//! in order. The size check of a doorbell counts from the furthest consumer index, for the driver may post anew what a late ACK
//! completes behind a go back. A go back or load marks the queue's slots void: their data is dropped and they retire without effect.
//! A direct WQE that is the next one is on chip without a fetch; until it is in the block RAM the reader gets it from the register.
//! A doorbell that meets an idle finder becomes an operation at once, and a queue that gets blocks wakes the scheduler with a hint.
//!
//! A fetch starts only with a slot free, and its data has its place in the ring: nothing that comes in ever waits. Out,
//! the block waits for `dma_read` and for the QP error intake, which do not wait for it.

use super::flags::{Flags, Scan, is_size};
use crate::{
    msg::{DirectWord, DmaData, DmaRead, Qp, QpError, QpView, QueueIndex, QueueView, Ring, Woken},
    stream::{Fifo, FreshTable, Sink, Source, Table, TablePort},
};
use abi::{
    queue::{doorbell::DIRECT_BLOCKS, send_wqe},
    status::{cause, counter},
    table::{qp_recv, qp_send},
};
use hdl::prelude::*;

/// Fetches in flight.
const SLOTS: usize = 64;
/// Operations that may be between their choice and their effect.
const PIPE: u64 = 5;
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
    /// Blocks below are posted, as far as doorbells were sound.
    posted: Bits<16>,
    /// Blocks below are asked for.
    asked: Bits<16>,
    /// Blocks below are on chip.
    fetched: Bits<16>,
    /// The furthest consumer index: a go back does not take it back, for all before may be complete by now.
    furthest: Bits<16>,
    /// A doorbell or DMA error stopped the queue until it is loaded anew.
    dead: Bit,
}

/// Operations.
#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
enum Kind {
    None,
    Fetch,
    Retire,
    Back,
    Load,
    Query,
}

/// An operation in the pipeline.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Op {
    kind: Kind,
    queue: Qp,
    /// Retire: blocks, and whether one of them is bad.
    blocks: Bits<3>,
    bad: Bit,
}

/// Differences that decide about a fetch.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Distance {
    /// The furthest consumer index.
    furthest: Bits<16>,
    /// Doorbell beyond all that was ever consumed, and the sound producer beyond that.
    rung: Bits<16>,
    sound: Bits<16>,
    /// Doorbell beyond what is asked for.
    wanted: Bits<16>,
    /// Free blocks on chip.
    room: Bits<16>,
    /// Blocks of the ring in host memory.
    size: Bits<16>,
    /// Fetched blocks to be retired fit below the sound producer.
    retires: Bit,
}

/// A fetch in flight.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Slot {
    queue: Qp,
    index: Bits<16>,
    blocks: Bits<3>,
}

/// What becomes of a direct WQE.
#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
enum Direct {
    None,
    /// Its words come.
    Filling,
    /// Complete, its doorbell not yet seen.
    Told,
    /// Posted: to be used when the queue comes up.
    Posted,
    /// On chip, waits for free cycles of the block RAM.
    Writing,
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
    /// Rows of QP_SEND or QP_RECV; a read gives the live indices.
    pub table: TablePort,
    /// Reads block `index` of queue `number`; `block` and `view` follow two cycles later and stay until the next.
    pub re: Signal<In, Bit>,
    pub number: Signal<In, Qp>,
    pub index: Signal<In, Bits<16>>,
    pub block: Signal<Out, Bits<512>>,
    pub view: Signal<Out, QueueView>,
    /// New consumer index: always taken.
    pub consume: Sink<QueueIndex>,
    /// Fetch again from an index, which also becomes the consumer index. Taken when done: from then on `view` tells of it.
    pub back: Sink<QueueIndex>,
    pub dma: Source<DmaRead>,
    /// Data of the reads, taken always.
    pub data: Signal<In, DmaData>,
    pub beat: Signal<In, Bits<W>>,
    pub data_valid: Signal<In, Bit>,
    /// Queues with blocks on chip that were not consumed.
    pub work: Signal<Out, Bits<N>>,
    /// A queue got or has such blocks: they may be read in this cycle.
    pub woken: Signal<Out, Woken>,
    pub woken_valid: Signal<Out, Bit>,
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
    consumer: FreshTable<Bits<16>>,
    seen: FreshTable<QueueView>,
    banks: Arr<Table<Bits<64>>, 8>,
    // Flags.
    dirty: Flags<N>,
    ready: Flags<N>,
    scan: Scan<N>,
    // Pipeline.
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
    /// The last doorbell.
    rang: Reg<Bit>,
    rang_queue: DFF<Qp>,
    /// Decided: fetch this many blocks, from here; more remains; error.
    fetch: Reg<Bits<3>>,
    fetch_from: DFF<Bits<58>>,
    fetch_index: DFF<Bits<16>>,
    more: Reg<Bit>,
    fault: Reg<Bits<8>>,
    /// The end of a load or go back: rows that others write too.
    last: Reg<Op>,
    last_producer: Reg<Bit>,
    last_consumer: Reg<Bit>,
    // Slots.
    slots: Arr<Ram<Slot, 6>, 2>,
    slot_queue: Arr<Reg<Qp>, SLOTS>,
    missing: Arr<Reg<Bits<9>>, SLOTS>,
    void: Reg<Bits<64>>,
    bad: Reg<Bits<64>>,
    head: Reg<Bits<7>>,
    tail: Reg<Bits<7>>,
    used: Reg<Bits<7>>,
    /// The slot at the head is being looked at; it has come back.
    looked: Reg<Bit>,
    back_valid: Reg<Bit>,
    came: Reg<Slot>,
    came_void: Reg<Bit>,
    came_bad: Reg<Bit>,
    // Data, one cycle later.
    data_in: Reg<Bit>,
    data_word: DFF<DmaData>,
    data_beat: DFF<Bits<W>>,
    // Direct WQE.
    direct_state: Reg<Direct>,
    direct_words: [DFF<Bits<64>>; 8 * DIRECT_BLOCKS],
    /// Blocks of it that are in the block RAM.
    direct_written: Reg<Bit>,
    /// The reader asked for block `hit_second` of it; what it gets instead of the RAM's.
    hit: Reg<Bit>,
    hit_second: DFF<Bit>,
    shown: Reg<Bit>,
    fresh_read: Reg<Bit>,
    shown_words: [DFF<Bits<64>>; 8],
    // Output.
    reads: Fifo<DmaRead>,
    errors: Fifo<QpError>,
    error_step: Reg<Bits<2>>,
    _table: Hidden<u8>,
    _blocks: Hidden<u64>,
}

impl<const W: usize, const N: usize> WorkQueue<W, N> {
    /// `table` is QP_SEND or QP_RECV; `blocks`, a power of two from 8 to 64, are kept on chip per queue.
    pub fn new(table: u8, blocks: usize) -> Self {
        assert!(is_size(N) && [64, 128, 256, 512].contains(&W), "{N} queues over {W} bits");
        assert!(blocks.is_power_of_two() && (8..=64).contains(&blocks));
        WorkQueue {
            place: Table::new(N, ""),
            state: Table::new(N, ""),
            producer: FreshTable::new(N, ""),
            consumer: FreshTable::new(N, ""),
            seen: FreshTable::new(N, ""),
            banks: Arr::from_fn(|_| Table::new(N * blocks, "ultra")),
            slots: Arr::from_fn(|_| Ram::default().style("distributed")),
            reads: Fifo::new(WAITING),
            errors: Fifo::new(WAITING),
            _table: Hidden(table),
            _blocks: Hidden(blocks as u64),
            ..Default::default()
        }
    }
}

/// The smaller of a 16-bit number and a small one.
#[hdl_fn]
fn least(a: Bits<16>, b: Bits<3>) -> Bits<3> {
    if a < b.cast::<16>() { a.get_bits::<3>(0) } else { b }
}

/// The later of two indices. A go back takes at most 127 WQEs back, so they are never far apart.
#[hdl_fn]
fn later(a: Bits<16>, b: Bits<16>) -> Bits<16> {
    if (a - b).get_bit(15) { b } else { a }
}

impl<const W: usize, const N: usize> Logic for WorkQueue<W, N> {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, first, second, third, fourth, rang, fetch, more, fault, last, last_producer);
        regs!(self, clock, rst, last_consumer, slot_queue, missing, void, bad, head, tail, used, looked, back_valid);
        regs!(self, clock, rst, came, came_void, came_bad, data_in, direct_state, direct_written, error_step);
        regs!(self, clock, rst, hit, shown, fresh_read);
        dff_setup!(self, clock, distance, old, old_place, old_consumer, new, new_consumer, fetch_from, fetch_index);
        dff_setup!(self, clock, data_word, data_beat, direct_words, rang_queue, hit_second, shown_words);
        clock!(self, clock, place, state, producer, consumer, seen);
        clock_reset!(self, clock, rst, dirty, ready, scan, reads, errors);
        for b in 0..8 {
            clock!(self, clock, banks[b]);
        }
        for s in 0..2 {
            clock!(self, clock, slots[s]);
        }
        let depth: Bits<24> = elab!(bits::<24>(self._blocks.0));
        let mask: Bits<16> = elab!(bits::<16>(self._blocks.0 - 1));

        // ---- The reader.
        let row = (self.number.val().cast::<16>() * depth.get_bits::<16>(0)).get_bits::<24>(0)
            + (self.index.val() & mask).cast::<24>();
        for b in 0..8 {
            self.banks[b].re.next = self.re.val();
            self.banks[b].raddr.next = row;
        }
        let stored = cat!(
            512;
            self.banks[7].rdata.val(),
            self.banks[6].rdata.val(),
            self.banks[5].rdata.val(),
            self.banks[4].rdata.val(),
            self.banks[3].rdata.val(),
            self.banks[2].rdata.val(),
            self.banks[1].rdata.val(),
            self.banks[0].rdata.val()
        );
        let shown = cat!(
            512;
            self.shown_words[7].q.val(),
            self.shown_words[6].q.val(),
            self.shown_words[5].q.val(),
            self.shown_words[4].q.val(),
            self.shown_words[3].q.val(),
            self.shown_words[2].q.val(),
            self.shown_words[1].q.val(),
            self.shown_words[0].q.val()
        );
        self.block.next = if self.shown.q.val() { shown } else { stored };
        // A direct WQE that is not in the RAM yet.
        let direct_index =
            self.direct_words[elab!(send_wqe::INDEX.lsb / 64)].q.val().get_bits::<16>(elab!(send_wqe::INDEX.lsb % 64));
        let direct_queue =
            self.direct_words[elab!(send_wqe::QPN.lsb / 64)].q.val().get_bits::<12>(elab!(send_wqe::QPN.lsb % 64));
        let direct_two = self.direct_words[0].q.val().get_bits::<3>(elab!(send_wqe::BLOCKS.lsb)) != 1;
        let ahead = self.index.val() - direct_index;
        let within = !ahead.get_bits::<15>(1).any() && (direct_two || !ahead.get_bit(0));
        let held = self.direct_state.q.val() == Direct::Writing;
        self.fresh_read.d.next = self.re.val();
        if self.re.val() {
            self.hit.d.next = held && within && self.number.val() == direct_queue;
            self.hit_second.d.next = ahead.get_bit(0);
        }
        if self.fresh_read.q.val() {
            self.shown.d.next = self.hit.q.val();
            if self.hit.q.val() {
                for w in 0..8 {
                    let second = self.direct_words[w + 8].q.val();
                    self.shown_words[w].d.next =
                        if self.hit_second.q.val() { second } else { self.direct_words[w].q.val() };
                }
            }
        }
        self.seen.re.next = self.re.val();
        self.seen.raddr.next = self.number.val().cast::<24>();
        self.view.next = self.seen.rdata.val();

        // ---- Choose an operation on a queue that has none under way.
        let first = self.first.q.val();
        let second = self.second.q.val();
        let third = self.third.q.val();
        let fourth = self.fourth.q.val();
        let last = self.last.q.val();
        let came = self.came.q.val();
        let req = self.table.req.val();
        let mine = self.table.valid.val() && req.table == elab!(self._table.0);
        let loads = mine && req.write && req.row.get_bit(elab!(qp_send::LOAD.lsb));
        let query = mine && !req.write;
        let busy_table = first.kind == Kind::Load
            || second.kind == Kind::Load
            || third.kind == Kind::Load
            || fourth.kind == Kind::Load
            || last.kind == Kind::Load
            || first.kind == Kind::Query
            || second.kind == Kind::Query
            || third.kind == Kind::Query
            || fourth.kind == Kind::Query;
        let busy_back = first.kind == Kind::Back
            || second.kind == Kind::Back
            || third.kind == Kind::Back
            || fourth.kind == Kind::Back
            || last.kind == Kind::Back;
        let error_room = self.errors.fill.val() <= elab!(WAITING as u64 - PIPE);
        let fetch_room = self.reads.fill.val() <= elab!(WAITING as u64 - PIPE)
            && self.used.q.val() <= elab!(SLOTS as u64 - PIPE)
            && error_room;
        // Loads and go backs end in `last`: one of them at a time.
        let mut op = Op { kind: Kind::None, queue: self.scan.pick.data.val(), blocks: came.blocks, bad: false };
        if (loads || query) && !busy_table && !busy_back {
            op.kind = if loads { Kind::Load } else { Kind::Query };
            op.queue = req.index.get_bits::<12>(0);
        } else if self.back.valid.val() && !busy_table && !busy_back {
            op.kind = Kind::Back;
            op.queue = self.back.data.val().queue;
        } else if self.back_valid.q.val() && !self.came_void.q.val() && error_room {
            op.kind = Kind::Retire;
            op.queue = came.queue;
            op.bad = self.came_bad.q.val();
        } else if fetch_room {
            // A doorbell that finds nothing else to do goes at once; else the finder comes upon its queue.
            if self.scan.pick.valid.val() {
                op.kind = Kind::Fetch;
            } else if self.rang.q.val() {
                op.kind = Kind::Fetch;
                op.queue = self.rang_queue.q.val();
            }
        }
        let taken = first.kind != Kind::None && first.queue == op.queue
            || second.kind != Kind::None && second.queue == op.queue
            || third.kind != Kind::None && third.queue == op.queue
            || fourth.kind != Kind::None && fourth.queue == op.queue
            || last.kind != Kind::None && last.queue == op.queue;
        if taken {
            op.kind = Kind::None;
        }
        let fetches = op.kind == Kind::Fetch;
        self.scan.pick.ready.next = fetches;
        let at_once = fetches && !self.scan.pick.valid.val();
        self.first.d.next = op;
        let go = op.kind != Kind::None;
        let at = op.queue.cast::<24>();
        self.place.re.next = go;
        self.place.raddr.next = at;
        self.state.re.next = go;
        self.state.raddr.next = at;
        self.producer.re.next = go;
        self.producer.raddr.next = at;
        self.consumer.re.next = go;
        self.consumer.raddr.next = at;
        self.second.d.next = first;

        // ---- Cycle 2: differences.
        let state = self.state.rdata.val();
        let place = self.place.rdata.val();
        let producer = self.producer.rdata.val();
        let consumer = self.consumer.rdata.val();
        let one: Bits<16> = 1.into();
        let furthest = later(state.furthest, consumer);
        self.third.d.next = second;
        self.old.d.next = state;
        self.old_place.d.next = place;
        self.old_consumer.d.next = consumer;
        self.distance.d.next = Distance {
            furthest,
            rung: producer - furthest,
            sound: state.posted - furthest,
            wanted: producer - state.asked,
            room: consumer + depth.get_bits::<16>(0) - state.asked,
            size: one << place.log2,
            retires: state.posted - state.fetched >= second.blocks.cast::<16>(),
        };

        // ---- Cycle 3: decide.
        let d = self.distance.q.val();
        let old = self.old.q.val();
        self.fourth.d.next = third;
        let mut new = old;
        new.furthest = d.furthest;
        let mut new_consumer = self.old_consumer.q.val();
        let mut fetch: Bits<3> = 0.into();
        let mut fault: Bits<8> = 0.into();
        let mut more: Bit = false;
        let mut direct = self.direct_state.q.val();
        let direct_blocks: Bits<3> = if direct_two { 2.into() } else { 1.into() };
        // Fetches end at multiples of 4 blocks and at the end of a smaller ring.
        let in_four = old.asked.get_bits::<2>(0);
        let to_end = if d.size == 1 {
            1.into()
        } else if d.size == 2 {
            cat!(3; false, !in_four.get_bit(0), in_four.get_bit(0))
        } else {
            bits::<3>(4) - in_four.cast::<3>()
        };
        let full = least(d.wanted, to_end);
        let sound = d.rung <= d.size && d.rung >= d.sound;
        let armed = direct == Direct::Posted && direct_queue == third.queue;
        match third.kind {
            Kind::Fetch => {
                if !old.dead && !sound {
                    new.dead = true;
                    new.posted = old.asked;
                    fault = bits::<8>(cause::DOORBELL_RANGE as u64);
                } else if !old.dead {
                    new.posted = old.asked + d.wanted;
                    let blocks = direct_blocks.cast::<16>();
                    let next = armed && direct_index == old.asked && old.asked == old.fetched;
                    if next && d.wanted >= blocks && d.room >= blocks {
                        direct = Direct::Writing;
                        new.asked = old.asked + blocks;
                        new.fetched = new.asked;
                        more = d.wanted != blocks;
                    } else {
                        if d.room >= full.cast::<16>() {
                            // When room is what limits, wait for a whole fetch of it.
                            fetch = full;
                        }
                        // Its doorbell is seen, but it is not next, or fetches are under way.
                        if armed && d.wanted.any() {
                            direct = Direct::None;
                        }
                        more = fetch.any() && d.wanted != fetch.cast::<16>();
                        new.asked = old.asked + fetch.cast::<16>();
                    }
                }
            }
            Kind::Retire => {
                if third.bad {
                    new.dead = true;
                    new.posted = old.fetched;
                    new.asked = old.fetched;
                    if !old.dead {
                        fault = bits::<8>(cause::DMA_ERROR as u64);
                    }
                } else if d.retires {
                    new.fetched = old.fetched + third.blocks.cast::<16>();
                }
            }
            Kind::Back => {
                let index = self.back.data.val().index;
                new.asked = index;
                new.fetched = index;
                new_consumer = index;
                if old.dead {
                    new.posted = index;
                }
                if armed {
                    direct = Direct::None;
                }
            }
            Kind::Load => {
                new = State { posted: 0.into(), asked: 0.into(), fetched: 0.into(), furthest: 0.into(), dead: false };
                new_consumer = 0.into();
                if direct_queue == third.queue {
                    direct = Direct::None;
                }
            }
            _ => {}
        }
        self.new.d.next = new;
        self.new_consumer.d.next = new_consumer;
        self.fetch.d.next = fetch;
        self.fetch_index.d.next = old.asked;
        let offset = old.asked & (d.size - 1);
        self.fetch_from.d.next = self.old_place.q.val().base + offset.cast::<58>();
        self.more.d.next = more;
        self.fault.d.next = fault;

        // ---- Cycle 4: effects.
        let new = self.new.q.val();
        let at = fourth.queue.cast::<24>();
        let writes = fourth.kind != Kind::None && fourth.kind != Kind::Query;
        let restarts = fourth.kind == Kind::Back || fourth.kind == Kind::Load;
        self.state.we.next = writes;
        self.state.waddr.next = at;
        self.state.wdata.next = new;
        self.seen.we.next = writes;
        self.seen.waddr.next = at;
        self.seen.wdata.next = QueueView { posted: new.posted, fetched: new.fetched };
        self.place.we.next = fourth.kind == Kind::Load;
        self.place.waddr.next = at;
        self.place.wdata.next = Place {
            base: req.row.get_bits::<58>(elab!(qp_send::BASE.lsb + 6)),
            log2: req.row.get_bits::<4>(elab!(qp_send::LOG2_BLOCKS.lsb)),
        };
        let has_work = new.fetched != self.new_consumer.q.val();
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

        let fetch = self.fetch.q.val();
        let tail = self.tail.q.val().get_bits::<6>(0);
        let enter = fetch.any();
        let slot = Slot { queue: fourth.queue, index: self.fetch_index.q.val(), blocks: fetch };
        for s in 0..2 {
            self.slots[s].we.next = enter;
            self.slots[s].waddr.next = tail;
            self.slots[s].wdata.next = slot;
        }
        self.reads.s.valid.next = enter;
        self.reads.s.data.next = DmaRead {
            iova: cat!(64; self.fetch_from.q.val(), bits::<6>(0)),
            len: cat!(14; bits::<5>(0), fetch, bits::<6>(0)),
            tag: tail.cast::<16>(),
            dest: 0.into(),
        };
        Source::<DmaRead>::link(&mut self.dma, &mut self.reads.m);
        self.errors.s.valid.next = self.fault.q.val().any();
        self.errors.s.data.next = QpError {
            qpn: fourth.queue,
            generation: 0.into(),
            any_generation: false,
            cause: self.fault.q.val(),
            event: true,
        };
        // Slots are numbered modulo 2^7.
        self.filled.next = cat!(self.tail.q.val(), bits::<9>(0));
        self.emptied.next = cat!(self.head.q.val(), bits::<9>(0));
        let none: Bits<64> = 0.into();
        let out_of_range = self.fault.q.val() == cause::DOORBELL_RANGE;
        self.count.next = none.replace_bit(elab!(counter::DOORBELL_RANGE), out_of_range);

        // ---- The end of loads and go backs: rows that doorbells and consumption write too.
        let last_done =
            last.kind != Kind::None && !self.last_producer.q.val() && !self.last_consumer.q.val() && !self.more.q.val();
        if restarts {
            self.last.d.next = fourth;
            self.last_producer.d.next = fourth.kind == Kind::Load;
            self.last_consumer.d.next = true;
        } else if last_done {
            self.last.d.next.kind = Kind::None;
        }
        let ring = self.ring.val();
        let rung = self.ring_valid.val();
        let consumed = self.consume.valid.val();
        self.producer.we.next = rung || self.last_producer.q.val();
        self.producer.waddr.next = if rung { ring.number.cast::<24>() } else { last.queue.cast::<24>() };
        self.producer.wdata.next = if rung { ring.index.get_bits::<16>(0) } else { 0.into() };
        if !rung && !restarts {
            self.last_producer.d.next = false;
        }
        let eaten = self.consume.data.val();
        self.consumer.we.next = consumed || self.last_consumer.q.val();
        self.consumer.waddr.next = if consumed { eaten.queue.cast::<24>() } else { last.queue.cast::<24>() };
        let restart = if last.kind == Kind::Back { self.back.data.val().index } else { 0.into() };
        self.consumer.wdata.next = if consumed { eaten.index } else { restart };
        if !consumed && !restarts {
            self.last_consumer.d.next = false;
        }
        self.consume.ready.next = true;
        self.back.ready.next = last_done && last.kind == Kind::Back;
        let answers = fourth.kind == Kind::Query;
        self.table.ready.next = self.table.valid.val() && !mine
            || mine && req.write && !loads
            || answers
            || last_done && last.kind == Kind::Load;
        self.table.rvalid.next = answers;
        self.table.rdata.next = 0.into();
        self.table.rdata.next.set_bits::<16>(elab!(qp_send::PRODUCER.lsb), new.posted);
        self.table.rdata.next.set_bits::<16>(elab!(qp_send::CONSUMER.lsb), self.new_consumer.q.val());
        self.table.rdata.next.set_bits::<16>(elab!(qp_send::FETCHED.lsb), new.fetched);

        // ---- Dirty queues.
        self.rang.d.next = rung;
        self.rang_queue.d.next = ring.number;
        self.dirty.set[0].next = self.rang.q.val() && !at_once;
        self.dirty.set_at[0].next = self.rang_queue.q.val();
        self.dirty.set[1].next = consumed;
        self.dirty.set_at[1].next = eaten.queue;
        let again = last_done && last.kind == Kind::Back;
        self.dirty.set[2].next = self.more.q.val() || again;
        self.dirty.set_at[2].next = if self.more.q.val() { fourth.queue } else { last.queue };
        self.dirty.clear.next = false;
        self.dirty.clear_at.next = 0.into();
        self.dirty.drop.next = self.scan.take.val();
        self.dirty.drop_group.next = self.scan.group.val();
        self.scan.bits.next = self.dirty.bits.val();

        // ---- Data, in the order in which it comes.
        let data = self.data.val();
        self.data_in.d.next = self.data_valid.val();
        if self.data_valid.val() {
            self.data_word.d.next = data;
            self.data_beat.d.next = self.beat.val();
        }
        self.slots[0].re.next = self.data_valid.val();
        self.slots[0].raddr.next = data.tag.get_bits::<6>(0);
        let word = self.data_word.q.val();
        let beat = self.data_beat.q.val();
        let of = self.slots[0].rdata.val();
        let comes = self.data_in.q.val();
        let tag = word.tag.get_bits::<6>(0);
        let lands = comes && !self.void.q.val().get_bit(tag.index());
        let writing = held && !comes;
        let second = self.direct_written.q.val();
        let index = if writing {
            direct_index + (if second { bits::<16>(1) } else { bits::<16>(0) })
        } else {
            of.index + word.dest.get_bits::<2>(6).cast::<16>()
        };
        let whose = if writing { direct_queue } else { of.queue };
        let line = (whose.cast::<16>() * depth.get_bits::<16>(0)).get_bits::<24>(0) + (index & mask).cast::<24>();
        for b in 0..8 {
            let lane: Bits<3> = bits::<3>((b / (W / 64) * (W / 64)) as u64);
            self.banks[b].we.next = writing || lands && word.dest.get_bits::<3>(3) == lane;
            self.banks[b].waddr.next = line;
            let of_second = self.direct_words[b + 8].q.val();
            let of_direct = if second { of_second } else { self.direct_words[b].q.val() };
            self.banks[b].wdata.next = if writing { of_direct } else { beat.get_bits::<64>(64 * b % W) };
        }
        if comes {
            self.missing[tag.index()].d.next = self.missing[tag.index()].q.val() - word.bytes.cast::<9>();
        }
        if enter {
            self.missing[tail.index()].d.next = cat!(9; fetch, bits::<6>(0));
            self.slot_queue[tail.index()].d.next = fourth.queue;
        }

        // ---- Slots: void those of a queue that restarts; retire the oldest when all of its data is there.
        let mut void = self.void.q.val();
        let mut bad = self.bad.q.val();
        if restarts {
            for s in 0..SLOTS {
                if self.slot_queue[s].q.val() == fourth.queue {
                    void = void.replace_bit(s, true);
                }
            }
        }
        if comes && word.error {
            bad = bad.replace_bit(tag.index(), true);
        }
        if enter {
            void = void.replace_bit(tail.index(), false);
            bad = bad.replace_bit(tail.index(), false);
            self.tail.d.next = self.tail.q.val() + 1;
        }
        self.void.d.next = void;
        self.bad.d.next = bad;
        let head = self.head.q.val().get_bits::<6>(0);
        let some = self.head.q.val() != self.tail.q.val();
        let retire = op.kind == Kind::Retire || self.back_valid.q.val() && self.came_void.q.val();
        self.slots[1].re.next = some;
        self.slots[1].raddr.next = head;
        self.looked.d.next = some;
        let missing = self.missing[head.index()].q.val();
        let done = !missing.any() || comes && tag == head && missing == word.bytes.cast::<9>();
        let pop = self.looked.q.val() && done && (!self.back_valid.q.val() || retire);
        if retire {
            self.back_valid.d.next = false;
        }
        if restarts && came.queue == fourth.queue {
            self.came_void.d.next = true;
        }
        if pop {
            self.back_valid.d.next = true;
            self.came.d.next = self.slots[1].rdata.val();
            self.came_void.d.next = void.get_bit(head.index());
            self.came_bad.d.next = bad.get_bit(head.index());
            self.head.d.next = self.head.q.val() + 1;
            self.looked.d.next = false;
        }
        if enter && !pop {
            self.used.d.next = self.used.q.val() + 1;
        } else if pop && !enter {
            self.used.d.next = self.used.q.val() - 1;
        }

        // ---- Direct WQEs.
        if direct == Direct::Told && rung {
            let beyond = ring.index.get_bits::<16>(0) - direct_index;
            let next = ring.number == direct_queue && beyond.any() && !beyond.get_bit(15);
            direct = if next { Direct::Posted } else { Direct::None };
        }
        if direct != Direct::Writing {
            self.direct_written.d.next = false;
        } else if writing {
            self.direct_written.d.next = direct_two && !second;
            if second || !direct_two {
                direct = Direct::None;
            }
        }
        let told = self.direct.val();
        if self.direct_valid.val() {
            // The next one takes its place, unless it is just written: a read of the last such cycle takes its words in the next.
            if !told.number.any() && !held && direct != Direct::Writing {
                direct = Direct::Filling;
            }
            if direct == Direct::Filling {
                self.direct_words[told.number.index()].d.next = told.data;
                if told.complete {
                    direct = Direct::Told;
                }
            }
        }
        self.direct_state.d.next = direct;

        // ---- Errors get the generation of their QP.
        let step = self.error_step.q.val();
        let error = self.errors.m.data.val();
        let waits = self.errors.m.valid.val();
        self.qp_re.next = waits && step == 0;
        self.qp_addr.next = error.qpn;
        self.error.valid.next = waits && step == 2;
        self.error.data.next = QpError {
            qpn: error.qpn,
            generation: self.qp.val().generation,
            any_generation: false,
            cause: error.cause,
            event: error.event,
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
