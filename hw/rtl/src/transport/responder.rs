//! Decides what a received request does: the responder's half of the protocol, one packet at a time.
//!
//! ```text
//! cycle   0 Idle            1 Fetch        2 Row           3 Judge                      4 Act
//!         take meta,        read WQE       row, view:      verdict;                     decide, write row,
//!         read row, view                   compare all     WQE: where its SGEs end      op (one per SGE stretch)
//! ```
//! So a packet takes 5 cycles, and a further SGE stretch 2 more. Rows that are read a cycle before the packet is taken leave out
//! `Fetch`: of a packet that is announced (`soon`) while the engine is idle (if another one comes, its rows are read when that is
//! seen), and of one that waits while a WRITE or READ acts, so that a stream of these has a packet every 4 cycles: those of another QP are
//! read then, those of the same QP are kept as the packet leaves them. Where WQEs come a cycle late, a packet that reads one takes a cycle more. Nothing of the QP is in flight when
//! the next packet is compared.
//!
//! A UD message is walked over twice, `Row` to `Act`: for the header area in front of it, which is filled from where the IP header lies
//! in the receive buffer, and for its payload. So is the last packet of a SEND with invalidate: for its payload, and for the key.
//!
//! A QP whose receives are *shared* reads the consumer index of that queue once its row is there, and the WQE then: 2 cycles more.
//! It takes a receive with the first packet of a message, for the next packet may be another QP's; the SGE that it is stands in the row
//! from then on, as the memory of a WRITE does. A hole in the queue is passed over, one each time a packet is judged; a packet that
//! has passed [`MOST_HOLES`] finds no receive, for whoever else receives waits meanwhile. The next one goes on behind them.
//!
//! An atomic is a READ to most of this: it takes a READ resource, whose saved result answers it when it is repeated. Landing has it
//! executed. An atomic write is a READ of no bytes that writes as well.
//!
//! Order of the checks: state, type, peer, P_Key, PSN, opcode sequence, access, resources, length, receive length; the
//! key is landing's. A packet that fails is dropped, answered, or ends the QP; `halted` in the row says that it has ended,
//! until the row is loaded anew.
//!
//! It waits for its result's place (`op`), and for a receive WQE whose fetch is in flight, but only while the QP may still
//! receive: fetches end, because what they read into is reserved. The table bus waits for the current packet.

use super::opcode::*;
use super::responder_rules::*;
use super::sge::{select, sge_map};
use crate::{
    msg::*,
    stream::{BadRow, GuardedTable, Sink, Source, TablePort},
};
use abi::{
    queue::{UD_HEADER, recv_op},
    status::{cause, counter, wc},
    table::{access, invalidate},
    wire::syndrome,
};
use hdl::prelude::*;

/// Holes of a shared queue that one packet passes over, a power of two: long frames that come in their time have room in the receive buffer.
pub const MOST_HOLES: usize = 256;
const HOLE_BITS: usize = MOST_HOLES.ilog2() as usize + 1;

/// See the module.
#[derive(LogicBlock)]
pub struct Responder {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// From dispatch.
    pub meta: Sink<RxMeta>,
    /// Perhaps the next cycle brings a packet for this QP.
    pub soon: Signal<In, Bits<24>>,
    pub soon_valid: Signal<In, Bit>,
    /// To dispatch.
    pub op: Source<RxOp>,
    /// Reads the QP's state: `view` two cycles later.
    pub view_re: Signal<Out, Bit>,
    pub view_addr: Signal<Out, Qp>,
    pub view: Signal<In, QpView>,
    /// Reads a receive WQE: block and queue state two cycles later.
    pub rq_re: Signal<Out, Bit>,
    pub rq_queue: Signal<Out, Qp>,
    pub rq_index: Signal<Out, Bits<16>>,
    pub rq_block: Signal<In, Bits<512>>,
    pub rq_view: Signal<In, QueueView>,
    /// The receive queue's new consumer index; always ready.
    pub consume: Source<QueueIndex>,
    /// Writes the READ resource table of the response engine, at QP x 16 + slot.
    pub res_we: Signal<Out, Bit>,
    pub res_addr: Signal<Out, Bits<24>>,
    pub res: Signal<Out, ReadResource>,
    /// Searches it, for a READ that is repeated: one a cycle, held until `seek_ready`; `saved` two cycles later.
    pub seek: Signal<Out, Bit>,
    pub seek_at: Signal<Out, Bits<24>>,
    pub seek_ready: Signal<In, Bit>,
    pub saved: Signal<In, ReadResource>,
    pub saved_valid: Signal<In, Bit>,
    /// Reads how many READs the response engine has answered, free-running: `reads` two cycles later.
    pub reads_re: Signal<Out, Bit>,
    pub reads_addr: Signal<Out, Qp>,
    pub reads: Signal<In, Bits<8>>,
    /// QP_RECV rows.
    pub table: TablePort,
    /// For tests: rows written now are stored damaged.
    pub flip: Signal<In, Bit>,
    /// A row was found damaged.
    pub bad: Signal<Out, BadRow>,
    pub count: Signal<Out, Bits<64>>,

    state: Reg<State>,
    /// The rows of `early_qpn` are being read.
    early: Reg<Bit>,
    early_qpn: DFF<Bits<24>>,
    /// The packet at hand ends with its first step and takes no WQE, and the next one waits: of another QP, of the same.
    next_other: Reg<Bit>,
    next_same: Reg<Bit>,
    /// Rows as the last packet left them, in place of those that were read.
    keeps: Reg<Bit>,
    kept_progress: DFF<Progress>,
    kept_message: DFF<Message>,
    /// They were read for the packet at hand, and it is another QP's.
    guessed: Reg<Bit>,
    differs: DFF<Bit>,
    /// The WQE is read, if one is needed: in `Fetch`, or in `Row` if it comes straight.
    asks: Reg<Bit>,
    straight: Reg<Bit>,
    /// In `Fetch`: rows and queue are read anew for the packet at hand.
    anew: Reg<Bit>,
    /// The queue at hand is the shared one.
    moved: Reg<Bit>,
    /// The message under way has taken its receive from it.
    held: DFF<Bit>,
    /// What is next in it is none; how much room a receive of one SGE has behind this packet.
    hole: DFF<Bit>,
    rest: DFF<Bits<32>>,
    /// Holes that the packet at hand has passed.
    passed: DFF<Bits<HOLE_BITS>>,
    /// `Idle` for packets; for the table bus, which goes first if it has asked; `Act`.
    open: Reg<Bit>,
    bus: Reg<Bit>,
    acting: Reg<Bit>,
    m: DFF<RxMeta>,
    kind: DFF<Kind>,
    facts: DFF<Facts>,
    found: DFF<Found>,
    verdict: DFF<Verdict>,
    /// What the receive queue says, true of a packet that takes no WQE: one is posted; it holds the message.
    posted: DFF<Bit>,
    fits: DFF<Bit>,
    /// It is posted, but not on chip.
    absent: DFF<Bit>,
    /// The packet ends within the first SGEs.
    within: DFF<Bits<3>>,
    /// It has bytes for SGEs.
    walks: DFF<Bit>,
    /// The header area of a UD message is written: its payload follows; or the payload in front of a key.
    tail: Reg<Bit>,
    /// Walk over the SGEs: where the first three end in the message, whether the second and third have bytes; the one at
    /// hand, and whether the packet begins in it; the packet's offset in the message, bytes wanted, place in the receive buffer.
    ends: [DFF<Bits<32>>; 3],
    filled: [DFF<Bit>; 2],
    entry: DFF<Bits<2>>,
    /// Which of the block's SGEs that is: of a receive of one SGE, the one that its index tells.
    pick: DFF<Bits<2>>,
    first: DFF<Bit>,
    at: DFF<Bits<32>>,
    want: DFF<Bits<14>>,
    place: DFF<BufAddr>,
    /// Search for the resource of a repeated READ, from the newest on: what is to be asked for, and what to be judged.
    ask_slot: DFF<Bits<4>>,
    asks_left: DFF<Bits<5>>,
    slot: DFF<Bits<4>>,
    slots_left: DFF<Bits<5>>,
    /// One is compared, and is judged.
    liked: Reg<Bit>,
    told: Reg<Bit>,
    likeness: DFF<Likeness>,
    is_rest: DFF<Bit>,
    /// It is still to be done; it was successful.
    unsought: DFF<Bit>,
    sought: DFF<Bit>,

    attributes: GuardedTable<Attributes>,
    progress: GuardedTable<Progress>,
    messages: GuardedTable<Message>,
    /// In LUTs, for it is there a cycle after its read, for the read of the WQE.
    consumers: Ram<Bits<16>, 12>,
    consumer: DFF<Bits<16>>,

    op_valid: Reg<Bit>,
    op_q: DFF<RxOp>,
    consume_valid: Reg<Bit>,
    consume_q: DFF<QueueIndex>,
    res_we_q: Reg<Bit>,
    rvalid: Reg<Bit>,
    rdata: DFF<Bits<512>>,
    count_q: Reg<Bits<64>>,
    _qps: Hidden<usize>,
    _late: Hidden<bool>,
}

#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
enum State {
    Idle,
    Fetch,
    Row,
    /// The WQE comes a cycle later than the rows.
    Late,
    Judge,
    Act,
    /// For what a repeated READ is the rest of.
    Search,
    ReadRow,
    ReadWait,
}

impl Responder {
    /// A responder of `qps` QPs, at most 4,096. `late`: receive WQEs come three cycles after they are asked for, not two.
    pub fn new(qps: usize, late: bool) -> Self {
        Responder {
            clock: Default::default(),
            rst: Default::default(),
            meta: Default::default(),
            soon: Default::default(),
            soon_valid: Default::default(),
            op: Default::default(),
            view_re: Default::default(),
            view_addr: Default::default(),
            view: Default::default(),
            rq_re: Default::default(),
            rq_queue: Default::default(),
            rq_index: Default::default(),
            rq_block: Default::default(),
            rq_view: Default::default(),
            consume: Default::default(),
            res_we: Default::default(),
            res_addr: Default::default(),
            res: Default::default(),
            seek: Default::default(),
            seek_at: Default::default(),
            seek_ready: Default::default(),
            saved: Default::default(),
            saved_valid: Default::default(),
            reads_re: Default::default(),
            reads_addr: Default::default(),
            reads: Default::default(),
            table: Default::default(),
            flip: Default::default(),
            bad: Default::default(),
            count: Default::default(),
            state: Default::default(),
            early: Default::default(),
            early_qpn: Default::default(),
            next_other: Default::default(),
            next_same: Default::default(),
            keeps: Default::default(),
            kept_progress: Default::default(),
            kept_message: Default::default(),
            guessed: Default::default(),
            differs: Default::default(),
            asks: Default::default(),
            straight: Default::default(),
            anew: Default::default(),
            moved: Default::default(),
            held: Default::default(),
            hole: Default::default(),
            rest: Default::default(),
            passed: Default::default(),
            open: Reg::with_reset(true),
            bus: Default::default(),
            acting: Default::default(),
            m: Default::default(),
            kind: Default::default(),
            facts: Default::default(),
            found: Default::default(),
            verdict: Default::default(),
            posted: Default::default(),
            fits: Default::default(),
            absent: Default::default(),
            within: Default::default(),
            walks: Default::default(),
            tail: Default::default(),
            ends: Default::default(),
            filled: Default::default(),
            entry: Default::default(),
            pick: Default::default(),
            first: Default::default(),
            at: Default::default(),
            want: Default::default(),
            place: Default::default(),
            ask_slot: Default::default(),
            asks_left: Default::default(),
            slot: Default::default(),
            slots_left: Default::default(),
            liked: Default::default(),
            told: Default::default(),
            likeness: Default::default(),
            is_rest: Default::default(),
            unsought: Default::default(),
            sought: Default::default(),
            attributes: GuardedTable::new(qps, "block"),
            progress: GuardedTable::new(qps, "block"),
            messages: GuardedTable::new(qps, "block"),
            consumers: Ram::default().rows(qps).style("distributed").at_once(),
            consumer: Default::default(),
            op_valid: Default::default(),
            op_q: Default::default(),
            consume_valid: Default::default(),
            consume_q: Default::default(),
            res_we_q: Default::default(),
            rvalid: Default::default(),
            rdata: Default::default(),
            count_q: Default::default(),
            _qps: Hidden(qps),
            _late: Hidden(late),
        }
    }
}

impl Logic for Responder {
    #[kernel]
    fn update(&mut self) {
        regs!(
            self,
            clock,
            rst,
            state,
            early,
            next_other,
            next_same,
            keeps,
            guessed,
            asks,
            straight,
            anew,
            open,
            bus,
            acting,
            op_valid,
            consume_valid,
            res_we_q,
            rvalid
        );
        regs!(self, clock, rst, count_q, tail, moved, liked, told);
        dff_setup!(
            self, clock, m, kind, facts, found, verdict, posted, absent, fits, within, ends, filled, entry, first, pick
        );
        dff_setup!(self, clock, at, want, place, slot, slots_left, likeness, is_rest, unsought, sought, walks, differs);
        dff_setup!(self, clock, ask_slot, asks_left);
        dff_setup!(self, clock, consumer, early_qpn, op_q, consume_q, rdata, kept_progress, kept_message);
        dff_setup!(self, clock, held, hole, rest, passed);
        clock!(self, clock, attributes, progress, messages, consumers);

        let state = self.state.q.val();
        let m = self.m.q.val();
        let kind = self.kind.q.val();
        let found = self.found.q.val();
        let verdict = self.verdict.q.val();
        let attributes = self.attributes.rdata.val();
        let keeps = self.keeps.q.val();
        let progress = if keeps { self.kept_progress.q.val() } else { self.progress.rdata.val() };
        let message = if keeps { self.kept_message.q.val() } else { self.messages.rdata.val() };
        let consumer = self.consumer.q.val();
        let view = self.view.val();
        let qp = m.qpn.get_bits::<12>(0);
        let moved = self.moved.q.val();
        let queue = if moved { attributes.queue } else { qp };

        // The table bus goes first. Raw frames are those of QP 0, whatever lies where the BTH would be.
        let table = self.table.req.val();
        let bus = self.bus.q.val();
        let table_now = bus && self.table.valid.val();
        let open = self.open.q.val();
        let take = open && self.meta.valid.val();
        let incoming = self.meta.data.val();
        let qpn: Bits<24> = if incoming.raw { 0.into() } else { incoming.qpn };

        // Rows may be read a cycle ahead.
        let early = self.early.q.val();
        let anew = self.anew.q.val();
        let mask: Qp = elab!(numbers(self._qps.0));
        let other = ((qpn.get_bits::<12>(0) ^ qp) & mask).any();
        let waits = self.meta.valid.val() && !kind.send && !kind.imm;
        self.next_other.d.next = waits && other;
        self.next_same.d.next = waits && qpn == m.qpn;
        let act = self.acting.q.val() && !self.op_valid.q.val();
        let stays = act && self.next_same.q.val();
        let ahead = (open && self.soon_valid.val() && !self.meta.valid.val()) || (act && self.next_other.q.val());
        self.early.d.next = ahead || stays;
        if act {
            self.early_qpn.d.next = qpn;
        } else if open && !self.meta.valid.val() {
            self.early_qpn.d.next = self.soon.val();
        }
        self.differs.d.next = self.early_qpn.q.val() != m.qpn;
        let reads_row = (take && !early) || ahead || anew;
        let who = if anew {
            m.qpn
        } else if self.meta.valid.val() {
            qpn
        } else {
            self.soon.val()
        };

        // Ports.
        self.meta.ready.next = open;
        self.table.ready.next = bus;
        self.table.rdata.next = self.rdata.q.val();
        self.table.rvalid.next = self.rvalid.q.val();
        self.rvalid.d.next = false;
        self.view_re.next = reads_row || stays;
        self.view_addr.next = who.get_bits::<12>(0);
        self.reads_re.next = reads_row || stays;
        self.reads_addr.next = who.get_bits::<12>(0);
        self.rq_re.next = self.asks.q.val() && (kind.send || kind.imm);
        self.rq_queue.next = queue;
        self.rq_index.next = consumer;
        self.op.data.next = self.op_q.q.val();
        self.op.valid.next = self.op_valid.q.val();
        self.consume.data.next = self.consume_q.q.val();
        self.consume.valid.next = self.consume_valid.q.val();
        self.res_we.next = self.res_we_q.q.val();
        // The cycle after the op was made: packet and op are still here.
        let made = self.op_q.q.val();
        self.res_addr.next = cat!(24; made.qpn.cast::<20>(), made.reply.slot);
        self.res.next = ReadResource {
            psn: m.psn,
            msn: made.reply.msn,
            va: m.va,
            rkey: m.rkey,
            length: m.dma_len,
            atomic: made.reply.atomic,
            done: false,
            failed: false,
        };
        // One a cycle; what is found is compared in the next one, and judged in the one behind.
        let searches = state == State::Search;
        let seeks_more = searches && self.asks_left.q.val().any();
        self.seek.next = seeks_more;
        self.seek_at.next = cat!(24; qp.cast::<20>(), self.ask_slot.q.val());
        if seeks_more && self.seek_ready.val() {
            self.ask_slot.d.next = self.ask_slot.q.val() - 1;
            self.asks_left.d.next = self.asks_left.q.val() - 1;
        }
        self.liked.d.next = searches && self.saved_valid.val();
        self.told.d.next = searches && self.liked.q.val();
        if self.op.ready.val() {
            self.op_valid.d.next = false;
        }
        if self.consume.ready.val() {
            self.consume_valid.d.next = false;
        }

        // Tables: read by a packet or the table bus, written by either.
        let row = if bus { table.index } else { who };
        let read_row = reads_row || (table_now && !table.write);
        self.attributes.re.next = read_row;
        self.attributes.raddr.next = row;
        self.progress.re.next = read_row;
        self.progress.raddr.next = row;
        self.messages.re.next = read_row;
        self.messages.raddr.next = row;
        self.consumers.re.next = true;
        let takes_wqe = kind.send || (kind.imm && kind.write);
        let held_now = attributes.shared && progress.message == SENDING;
        let reads_wqe = takes_wqe && !held_now;
        let moves = state == State::Row && reads_wqe && attributes.shared && !moved;
        self.held.d.next = held_now;
        // As `row`, or a shared queue's; what comes from other blocks is late.
        let in_row = state == State::Row;
        let near = if bus { table.index } else { m.qpn };
        let near = if in_row { attributes.queue } else { near.get_bits::<12>(0) };
        let late = if self.meta.valid.val() { qpn } else { self.soon.val() };
        self.consumers.raddr.next = if in_row || bus || anew { near } else { late.get_bits::<12>(0) };
        if read_row || moves {
            self.consumer.d.next = self.consumers.rdata.val();
        }
        if read_row {
            self.keeps.d.next = false;
        } else if stays {
            self.keeps.d.next = true;
        }
        let load = table_now && table.write && loads(table.row);
        self.progress.flip.next = self.flip.val();
        self.attributes.flip.next = self.flip.val();
        self.messages.flip.next = self.flip.val();
        // All three are read together.
        let bad = self.progress.bad.val();
        self.bad.next = BadRow {
            valid: bad.valid || self.messages.bad.val().valid || self.attributes.bad.val().valid,
            row: bad.row,
        };
        self.attributes.we.next = table_now && table.write;
        self.attributes.waddr.next = table.index;
        self.attributes.wdata.next = attributes_of(table.row);

        // ---- What Row and Judge find. What they look at stays until the next packet's rows are read, so nothing says when.
        let held = self.held.q.val();
        let needs_wqe = takes_wqe && !held;
        let facts = self.facts.q.val();
        let tail = self.tail.q.val();
        let header = kind.ud && !tail;
        let kills = kind.inv && tail;
        // The first of two walks.
        let fore = (kind.ud || kind.inv) && !tail;
        let alone = kind.uc || kind.ud;
        self.found.d.next = find(m, facts, kind, attributes, progress, message, view, self.reads.val());
        let verdict_now = judge(found, kind, m.raw, progress.message == SENDING);
        self.verdict.d.next = verdict_now;
        let ahead_posted = self.rq_view.val().posted - consumer;
        let ahead_fetched = self.rq_view.val().fetched - consumer;
        // A full ring of 32,768 is just within reach; less than none is posted after a fetch that failed.
        // Of a receive of four SGEs all must be there.
        let single = attributes.single;
        let (part_posted, part_fetched) = (ahead_posted.get_bits::<2>(0).any(), ahead_fetched.get_bits::<2>(0).any());
        let some_posted = (ahead_posted.get_bits::<14>(2).any() || single && part_posted)
            && !(ahead_posted.get_bit(15) && ahead_posted.get_bits::<15>(0).any());
        let passed = self.passed.q.val();
        let worn = passed.get_bit(elab!(HOLE_BITS - 1));
        self.posted.d.next = (!needs_wqe || some_posted) && !worn;
        let on_chip = (ahead_fetched.get_bits::<13>(2).any() || single && part_fetched) && !ahead_fetched.get_bit(15);
        self.absent.d.next = needs_wqe && some_posted && !on_chip && !worn;
        let shared = attributes.shared;
        let sges = self.rq_block.val();
        let entries = sge_map(sges);
        let unit = consumer.get_bits::<2>(0);
        let only = select::<32>(
            unit,
            sges.get_bits::<32>(96),
            sges.get_bits::<32>(224),
            sges.get_bits::<32>(352),
            sges.get_bits::<32>(480),
        );
        let at = self.at.q.val();
        let (start, whole) = (at.cast::<34>(), found.done.cast::<34>());
        // How far this walk goes. Whether all fits is known in the first one: of a datagram that does not, nothing is written.
        let reach = if header { bits::<34>(UD_HEADER as u64) } else { whole };
        self.walks.d.next = (facts.some || header) && kind.send && !kills;
        self.ends[0].d.next = entries.end0.get_bits::<32>(0);
        self.ends[1].d.next = entries.end1.get_bits::<32>(0);
        self.ends[2].d.next = entries.end2.get_bits::<32>(0);
        self.filled[0].d.next = sges.get_bits::<32>(224).any();
        self.filled[1].d.next = sges.get_bits::<32>(352).any();
        // A receive of one SGE ends in it, or does not fit.
        let rest = only.cast::<35>() - whole.cast::<35>();
        let holds = !rest.get_bit(34);
        self.rest.d.next = rest.get_bits::<32>(0);
        self.hole.d.next = shared && needs_wqe && on_chip && only.get_bit(31) && only.get_bit(30) && !worn;
        let within0 = single || !less(entries.end0, reach);
        self.within.d.next = cat!(3; !less(entries.end2, reach), !less(entries.end1, reach), within0);
        let enough = if single { holds } else { !less(entries.total, whole) };
        self.fits.d.next = !kind.send || if held { !found.exceeds } else { enough };
        let (in0, in1, in2) = (less(start, entries.end0), less(start, entries.end1), less(start, entries.end2));
        self.likeness.d.next = compare(m, kind.atomic, self.saved.val(), attributes.mtu);
        self.is_rest.d.next = is_rest(self.likeness.q.val());

        // ---- What Act does, from registers. The verdicts exclude each other.
        let (posted, fits) = (self.posted.q.val(), self.fits.q.val());
        let duplicate = verdict.duplicate;
        let right = verdict.right;
        let executes = right && posted && fits;
        let not_ready = (right || verdict.unfit) && !posted && !alone;
        let short = right && posted && !fits;
        let drops = verdict.dropped || (right && !posted && alone) || (short && kind.ud);
        let ends = verdict.wrong || (verdict.unfit && posted) || (short && !kind.ud);
        let raw = verdict.raw && posted && fits;
        // The stretch of memory at hand: a packet over several SGEs is several steps, all but the first from the begin of an entry.
        let (want, within) = (self.want.q.val(), self.within.q.val());
        let (entry, first) = (self.entry.q.val(), self.first.q.val());
        let end = select::<32>(entry, self.ends[0].q.val(), self.ends[1].q.val(), self.ends[2].q.val(), 0.into());
        let begin = select::<32>(entry, 0.into(), self.ends[0].q.val(), self.ends[1].q.val(), self.ends[2].q.val());
        let skipped: Bits<32> = if first { at - begin } else { 0.into() };
        let pick = self.pick.q.val();
        let base = select::<64>(
            pick,
            sges.get_bits::<64>(0),
            sges.get_bits::<64>(128),
            sges.get_bits::<64>(256),
            sges.get_bits::<64>(384),
        );
        let wqe_key = select::<32>(
            pick,
            sges.get_bits::<32>(64),
            sges.get_bits::<32>(192),
            sges.get_bits::<32>(320),
            sges.get_bits::<32>(448),
        );
        let stretch_last = entry == 3 || within.get_bit(entry.index());
        let from = if first { at } else { begin };
        let room = end.get_bits::<14>(0) - from.get_bits::<14>(0);
        let stretch_len = if stretch_last { want } else { room };
        let one = stretch_last || !(self.walks.q.val() && (right || verdict.raw) && posted && fits);
        let turns = one && executes && fore;
        let last = one && !turns;
        // Only a packet that would be executed waits for its WQE, and only while its QP may receive.
        let passes = verdict.wants && self.hole.q.val();
        let fetching = verdict.wants && self.absent.q.val() || passes;
        let acts = act && !fetching;
        let final_act = acts && last;
        let fails_wqe = verdict.spoils || (verdict.spoils_posted && posted) || (short && !kind.ud);
        let done = stretch_last || !self.walks.q.val();
        let takes = verdict.takes && posted && fits && done && !fore;
        // The next packet may be another QP's.
        let binds = executes && shared && kind.send && !kind.closes;
        let receive = if held { message.index } else { consumer };

        let mut new_progress = progress;
        if executes {
            new_progress.psn = m.psn + found.packets;
            new_progress.nak_sent = false;
        } else {
            new_progress.nak_sent = true;
        }
        if executes && !kind.read {
            new_progress.message = if kind.closes {
                0.into()
            } else if kind.send {
                SENDING.to_bits()
            } else {
                WRITING.to_bits()
            };
        }
        if drops {
            new_progress.message = BETWEEN.to_bits();
        }
        if executes && kind.closes {
            new_progress.msn = progress.msn + 1;
        }
        if executes && kind.read {
            new_progress.reads = progress.reads + 1;
            if !progress.saved.get_bit(4) {
                new_progress.saved = progress.saved + 1;
            }
        }
        if ends {
            new_progress.halted = true;
        }
        let msn = new_progress.msn;
        let write_progress = load
            || acts
                && (verdict.future
                    || verdict.wrong
                    || verdict.unfit
                    || drops
                    || (right && (done || !(posted && fits))));
        let write_consumer = (acts && (takes || binds || fails_wqe) && !held) || (act && passes);
        let consumer_next = consumer + cat!(16; bits::<13>(0), !single, false, single);

        let mut count: Bits<64> = 0.into();
        let known = !m.raw && !kind.cnp;
        count = count.replace_bit(counter::RX_RAW, final_act && raw);
        count = count.replace_bit(counter::RX_RAW_DROPPED, acts && m.raw && !raw);
        count = count.replace_bit(counter::RX_CNP, acts && kind.cnp);
        count = count.replace_bit(counter::RX_QP_STATE, acts && known && !found.receives);
        let heard = acts && known && found.receives;
        count = count.replace_bit(counter::RX_QP_TYPE, heard && !found.kind);
        count = count.replace_bit(counter::RX_QP_PEER, heard && found.kind && !found.peer);
        count = count.replace_bit(counter::RX_PKEY, heard && found.kind && found.peer && !found.pkey);
        count = count.replace_bit(counter::RX_OUT_OF_SEQUENCE, acts && verdict.future);
        count = count.replace_bit(counter::RX_DUPLICATE, acts && duplicate);
        count = count.replace_bit(counter::RX_INVALID_REQUEST, acts && ends && !alone);
        count = count.replace_bit(counter::RX_RNR, acts && not_ready);
        count = count.replace_bit(counter::RX_UNRELIABLE, acts && (drops || (ends && alone)));
        count = count.replace_bit(counter::RX_ACCEPTED, final_act && executes);
        self.count_q.d.next = count;
        self.count.next = self.count_q.q.val();

        // The step. It frees the rows if it is the packet's last; one NAK per gap, the next waits until a packet came in order.
        let older = verdict.future || (duplicate && !kind.read);
        let acks = (verdict.future && !progress.nak_sent)
            || (duplicate && (kind.send || kind.write))
            || (ends && !alone)
            || not_ready
            || (executes && m.ack_req && !kind.read && !alone);
        // The receive that the message has is in the row, as the memory of a WRITE.
        let from_wqe = kind.send && !held;
        let key = if from_wqe { wqe_key } else { found.rkey };
        let op = RxOp {
            qpn: qp,
            generation: view.generation,
            response: false,
            write: (facts.some || header || kills)
                && (raw || (executes && (kind.send || kind.write || kind.atomic || kind.puts))),
            adds: kind.adds,
            key: if kills {
                // As wire bytes.
                cat!(32; m.imm.get_bits::<8>(0), m.imm.get_bits::<8>(8), m.imm.get_bits::<8>(16), m.imm.get_bits::<8>(24))
            } else {
                key
            },
            va: if from_wqe { base + skipped.cast::<64>() } else { found.va },
            len: if kind.send { stretch_len } else { m.payload },
            span: if kind.send { stretch_len.cast::<32>() } else { found.span },
            buf: self.place.q.val(),
            pd: attributes.pd,
            need: if kills {
                elab!(bits::<6>(to_invalidate(invalidate::REMOTE)))
            } else if kind.send {
                access::LOCAL_WRITE.to_bits()
            } else if kind.atomic {
                access::REMOTE_ATOMIC.to_bits()
            } else {
                access::REMOTE_WRITE.to_bits()
            },
            last,
            accepted: executes && last,
            more: false,
            rows: m.rows,
            psn: m.psn,
            reply: Reply {
                ack: acks,
                read: if duplicate { self.sought.q.val() } else { executes && kind.read },
                atomic: executes && kind.atomic,
                // Without an answer: of a QP that never answers; then the slot tells where a message begins, if it does: what a
                // stranger sends, or what is dropped, begins none.
                again: duplicate || alone,
                psn: if older { progress.psn - cat!(24; bits::<23>(0u64), duplicate) } else { m.psn },
                msn,
                counted: executes && kind.closes,
                syndrome: if verdict.future {
                    syndrome::NAK_PSN.to_bits()
                } else if ends {
                    syndrome::NAK_INVALID_REQUEST.to_bits()
                } else if not_ready {
                    cat!(bits::<3>(1u64), attributes.rnr_timer)
                } else {
                    syndrome::ACK.to_bits()
                },
                slot: if alone {
                    cat!(4; bits::<3>(0u64), kind.opens && executes)
                } else if duplicate {
                    self.slot.q.val()
                } else {
                    progress.reads.get_bits::<4>(0)
                },
            },
            completion: Completion {
                valid: takes || fails_wqe,
                cqn: attributes.cqn,
                qpn: qp,
                generation: view.generation,
                status: if !ends {
                    wc::SUCCESS.to_bits()
                } else if right {
                    wc::LOC_LEN.to_bits()
                } else {
                    wc::REM_INV_REQ.to_bits()
                },
                cause: if !ends {
                    cause::NONE.to_bits()
                } else if right {
                    cause::RECEIVE_TOO_SHORT.to_bits()
                } else {
                    found.why
                },
                opcode: if kind.write && !ends {
                    recv_op::RECV_WRITE_IMM.to_bits()
                } else if kind.imm && !ends {
                    recv_op::RECV_IMM.to_bits()
                } else if kind.inv && !ends {
                    recv_op::RECV_INV.to_bits()
                } else {
                    recv_op::RECV.to_bits()
                },
                wqe_index: receive,
                blocks: 1.into(),
                length: found.done.get_bits::<32>(0),
                imm: m.imm,
                solicited: m.solicited,
                vlan: m.vlan,
                src_qpn: if kind.ud { m.msn } else { 0.into() },
                shared,
            },
        };
        if act {
            self.op_q.d.next = op;
        }
        if acts {
            self.want.d.next = want - room;
            self.place.d.next = self.place.q.val() + room.cast::<20>();
            self.first.d.next = false;
        }
        if state == State::Judge {
            let third: Bits<2> = if in2 { 2.into() } else { 3.into() };
            let begins: Bits<2> = if in1 { cat!(2; false, !in0) } else { third };
            self.entry.d.next = if single { 0.into() } else { begins };
            self.pick.d.next = if single { unit } else { begins };
            self.first.d.next = true;
        } else if acts {
            // The next one that has bytes.
            let third: Bits<2> = if self.filled[1].q.val() { 2.into() } else { 3.into() };
            let follows: Bits<2> = if entry == 0 && self.filled[0].q.val() {
                1.into()
            } else if entry.get_bit(1) {
                3.into()
            } else {
                third
            };
            self.entry.d.next = follows;
            self.pick.d.next = follows;
        }
        self.res_we_q.d.next = acts && executes && kind.read;
        if act {
            self.consume_q.d.next = QueueIndex { queue, index: consumer_next };
        }
        if write_consumer {
            self.consume_valid.d.next = true;
        }

        let misses = self.guessed.q.val() && self.differs.q.val();
        let seeks = verdict_now.duplicate && self.unsought.q.val();
        let told = self.told.q.val();
        let found_or_none = self.is_rest.q.val() || self.slots_left.q.val() == 1;
        let mut next = state;
        match state {
            State::Idle => {
                if table_now {
                    if !table.write {
                        next = State::ReadRow;
                    }
                } else if take {
                    next = if early { State::Row } else { State::Fetch };
                    self.guessed.d.next = early;
                    self.straight.d.next = early;
                }
                if open {
                    self.m.d.next = incoming;
                    self.m.d.next.qpn = qpn;
                    // An atomic write reads nothing; that its length is 8 is noted beside.
                    self.m.d.next.dma_len =
                        incoming.dma_len.replace_bit(3, incoming.dma_len.get_bit(3) && !kind_of(incoming.opcode).puts);
                    self.facts.d.next = facts_of(incoming, elab!(bits::<24>(self._qps.0 as u64)));
                    self.kind.d.next = if incoming.raw { raw_kind() } else { kind_of(incoming.opcode) };
                }
                self.sought.d.next = false;
                self.passed.d.next = 0.into();
                self.tail.d.next = false;
                self.moved.d.next = false;
            }
            State::Fetch => {
                next = if anew { State::Fetch } else { State::Row };
                self.anew.d.next = false;
            }
            State::Row => {
                self.at.d.next = if kind.opens { 0.into() } else { message.done };
                self.want.d.next = m.payload;
                self.place.d.next = m.buf;
                if kind.ud {
                    self.at.d.next = if tail { bits::<32>(UD_HEADER as u64) } else { header_at(m.ip6) };
                }
                if header {
                    self.want.d.next = header_len(m.ip6);
                    self.place.d.next = m.buf - header_back(m.ip6, kind.imm);
                }
                self.slot.d.next = progress.reads.get_bits::<4>(0) - 1;
                self.ask_slot.d.next = progress.reads.get_bits::<4>(0) - 1;
                self.slots_left.d.next = progress.saved;
                self.asks_left.d.next = progress.saved;
                self.unsought.d.next = kind.read && progress.saved.any();
                // A WQE that is read in this cycle comes a cycle after the rows.
                self.straight.d.next = false;
                let judged = if self._late.0 && reads_wqe { State::Late } else { State::Judge };
                next = if reads_wqe && self.straight.q.val() { State::Row } else { judged };
                if moves {
                    next = State::Fetch;
                    self.moved.d.next = true;
                }
            }
            State::Late => {
                next = State::Judge;
            }
            State::Judge => {
                self.guessed.d.next = false;
                if misses {
                    self.anew.d.next = true;
                    self.moved.d.next = false;
                    next = State::Fetch;
                } else if seeks {
                    // A repeated READ is looked up first.
                    next = State::Search;
                } else {
                    next = State::Act;
                }
            }
            State::Act => {
                if act {
                    self.op_valid.d.next = !fetching;
                    if fetching {
                        if passes {
                            self.passed.d.next = passed + 1;
                        }
                        // State and WQE are read again, then decided upon as before.
                        self.anew.d.next = true;
                        self.moved.d.next = false;
                        next = State::Fetch;
                    } else if last {
                        next = State::Idle;
                    } else if turns {
                        self.tail.d.next = true;
                        next = State::Row;
                    }
                }
            }
            State::Search => {
                let rest = self.is_rest.q.val();
                if told {
                    self.sought.d.next = rest;
                    self.unsought.d.next = !found_or_none;
                    self.slots_left.d.next = self.slots_left.q.val() - 1;
                    if !rest {
                        self.slot.d.next = self.slot.q.val() - 1;
                    }
                    if found_or_none {
                        next = State::Act;
                    }
                }
            }
            State::ReadRow => {
                next = State::ReadWait;
            }
            State::ReadWait => {
                self.rdata.d.next = row_of(attributes, progress, message);
                self.rvalid.d.next = true;
                next = State::Idle;
            }
        }

        self.state.d.next = next;
        // What some states are seen by, told from what leads to them.
        let judges = state == State::Judge;
        self.asks.d.next = take || (judges && misses) || (act && fetching) || (state == State::Fetch && anew) || moves;
        // `Idle` comes next.
        let over = (acts && last) || state == State::ReadWait;
        let rests = over || (open && !take) || (bus && !(self.table.valid.val() && !table.write));
        self.open.d.next = rests && !self.table.valid.val();
        self.bus.d.next = rests && self.table.valid.val();
        let acts_on = self.acting.q.val() && !(act && (fetching || last || turns));
        self.acting.d.next = acts_on || (judges && !misses && !seeks) || (searches && told && found_or_none);

        let written = if bus { table.index } else { m.qpn };
        self.progress.we.next = write_progress;
        self.progress.waddr.next = written;
        self.progress.wdata.next = if bus { fresh(table.row) } else { new_progress };
        // Of a queue that was just loaded no message is under way, whatever its row says.
        let goes_on = executes && !kind.read;
        let new_message = Message {
            left: if from_wqe { self.rest.q.val() } else { found.left },
            done: found.done.get_bits::<32>(0),
            va: (if from_wqe { base } else { found.va }) + m.payload.cast::<64>(),
            rkey: key,
            index: receive,
        };
        self.messages.we.next = load || (final_act && goes_on);
        self.messages.waddr.next = written;
        self.messages.wdata.next = new_message;
        // A SEND, which may take several steps, leaves nothing to keep, and what it has itself must stay.
        if act && !kind.send {
            self.kept_progress.d.next = if write_progress { new_progress } else { progress };
            self.kept_message.d.next = if goes_on { new_message } else { message };
        }
        self.consumers.we.next = load || write_consumer;
        self.consumers.waddr.next = if bus { table.index.get_bits::<12>(0) } else { queue };
        self.consumers.wdata.next = if bus { 0.into() } else { consumer_next };
    }
}
