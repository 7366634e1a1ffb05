//! Builds headers: for each head that [`frames`](super::frames) or the transport engines give, the headers, the lengths and the verdict
//! ([`judge`](super::judge)) wait here for [`egress`](super::egress) to send the frame.
//!
//! ```text
//! cycle      0    1    2    3    4    5    6         a datapath of 512 bits
//! pick       A              B              C         a head every 3 cycles at most
//! address         A              B                   row read: 2 cycles; so is the verdict
//! GID                       A              B         row read; whether it is tagged comes at once
//! sizes                          A              B
//! to be sent                          A              lengths and verdict
//! header                              A    A         slices of a beat each, read from the cycle behind on
//! ```
//! A datapath of W bits reads the rows of addresses and GIDs in words of W bits, and writes headers in slices of W bits: a narrow one takes
//! longer, and needs no wide RAMs. One of 64 bits has all rows in one RAM, and [builds](super::builder) headers word by word beside the
//! reads for the next frame. ACKs go between any two frames, and so have rows of their own.
//!
//! Cannot deadlock: a head is picked only when a row is free for it, and then nothing waits. Rows become free as frames leave. A row
//! write of the table bus waits until nothing is under way, and nothing is picked meanwhile.

use super::{
    builder::{Builder, LEAD, Parts},
    frames::{row_shift, rows_of},
    headers::{self, ADDRESS_BITS, GID_BITS, MAX_BITS},
    judge::{Claim, Verdict},
};
use crate::{
    msg::{BufAddr, Qp, TxHead, numbers},
    stream::{Sink, Table, TablePort, narrow},
};
use abi::{
    queue::ud_target,
    table::{GIDS, address_handles, gid, id, qp_address, qp_send},
    wire::{self, len, op},
};
use hdl::prelude::*;

/// Frames of each queue that are picked and have not left.
pub const ROWS: usize = 8;

/// A frame that is ready to be sent but for its payload.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Prepared {
    /// Bytes of the headers; up to where the payload goes; what pads it; of all.
    pub header: Bits<7>,
    pub payload_end: Bits<14>,
    pub pad: Bits<2>,
    pub total: Bits<14>,
    /// Where its first byte would lie in the transmit buffer.
    pub start: BufAddr,
    pub verdict: Verdict,
    pub claim: Claim,
    pub psn: Bits<24>,
    pub ip6: Bit,
    pub tagged: Bit,
    pub raw: Bit,
    pub expects: Bit,
    /// Nobody acknowledges it.
    pub alone: Bit,
    pub again: Bit,
    pub ack: Bit,
    pub nak: Bit,
}

/// See the [module](self).
#[derive(LogicBlock)]
pub struct Prepare<const W: usize> {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// Heads of the ring's frames, in order.
    pub head: Sink<TxHead>,
    /// ACKs, NAKs and CNPs without payload: go first.
    pub quick: Sink<TxHead>,
    /// Rows may be read.
    pub judge_ready: Signal<In, Bit>,
    /// Asks for a verdict.
    pub ask: Signal<Out, Bit>,
    pub claim: Signal<Out, Claim>,
    pub ring: Signal<Out, Bit>,
    pub claim_row: Signal<Out, Bits<3>>,
    pub verdict: Signal<In, Verdict>,
    /// Of the ring, or of the others, one more frame is prepared, in the next row.
    pub prepared: Signal<Out, Bit>,
    pub prepared_quick: Signal<Out, Bit>,
    /// Answers at once: the upper bit chooses the queue.
    pub row: Signal<In, Bits<4>>,
    pub next: Signal<Out, Prepared>,
    /// Header bytes, two cycles later.
    pub re: Signal<In, Bit>,
    pub slice_row: Signal<In, Bits<4>>,
    pub slice: Signal<In, Bits<4>>,
    pub slice_data: Signal<Out, Bits<W>>,
    /// The oldest frame of the ring, or of the others, has left, and its row is free.
    pub free: Signal<In, Bit>,
    pub free_quick: Signal<In, Bit>,
    /// Takes QP_ADDRESS, AH and GID rows, and QP_SEND rows for their LOAD. Nobody reads them back.
    pub table: TablePort,
    /// A send queue is loaded. Held until `loaded`.
    pub load: Signal<Out, Bit>,
    pub load_qpn: Signal<Out, Qp>,
    pub loaded: Signal<In, Bit>,
    /// Of 64 bits, with the GIDs behind them.
    addresses: Table<Bits<W>>,
    gids: Table<Bits<W>>,
    /// Of each GID, whether it is tagged.
    tags: Ram<Bit, 4>,
    // Pick: bit k of `steps` is cycle k of a frame.
    may_pick: Reg<Bit>,
    gap: Reg<Bits<4>>,
    steps: Reg<Bits<16>>,
    picked: DFF<TxHead>,
    picked_row: DFF<Bits<4>>,
    picked_buf: DFF<BufAddr>,
    ext: DFF<Bits<7>>,
    tail: Reg<BufAddr>,
    /// Row of the next frame, rows in use, and whether there is one more: of the ring, and of the others.
    ahead: [Reg<Bits<3>>; 2],
    used: [Reg<Bits<4>>; 2],
    room: [Reg<Bit>; 2],
    // Rows as far as their words are there.
    address: DFF<Bits<512>>,
    gid: DFF<Bits<512>>,
    tagged: DFF<Bit>,
    // Sizes and header.
    sized: DFF<TxHead>,
    sized_row: DFF<Bits<4>>,
    /// With the shortest headers, which every frame of its opcode has at least.
    sized_header: DFF<Bits<7>>,
    sized_end: DFF<Bits<14>>,
    sized_total: DFF<Bits<14>>,
    sized_start: DFF<BufAddr>,
    udp_len: DFF<Bits<16>>,
    sum: DFF<Bits<20>>,
    length: DFF<Bits<7>>,
    store: Ram<Prepared, 4>,
    builder: Builder<W>,
    slices: Table<Bits<W>>,
    // Row writes.
    access: Reg<Bit>,
    word: Reg<Bits<4>>,
    /// What the row that is offered is of.
    writes_gid: DFF<Bit>,
    writes_address: DFF<Bit>,
    loads: DFF<Bit>,
    _gid_base: Hidden<usize>,
    _qps: Hidden<usize>,
}

/// Words of a row of `bits` bits.
const fn words(w: usize, bits: usize) -> usize {
    bits.div_ceil(w)
}

/// Log2 of the rows that a row of `bits` bits takes in a RAM of words.
const fn word_bits(w: usize, bits: usize) -> u64 {
    words(w, bits).next_power_of_two().trailing_zeros() as u64
}

/// The cycle in which sizes are known; the header is built in the one behind.
const fn sizes_step(w: usize) -> usize {
    words(w, ADDRESS_BITS) + words(w, GID_BITS) + 2
}

/// All rows are in one RAM, and headers are built word by word.
const fn is_narrow(w: usize) -> bool {
    w == 64
}

/// Cycles between two heads: until the first has passed on what it holds, and all slices of the longest header are written or,
/// word by word, the builder has begun.
const fn gap(w: usize) -> usize {
    let (steps, slices) = (sizes_step(w) - 1, words(w, MAX_BITS));
    if is_narrow(w) {
        sizes_step(w) + 3
    } else if steps > slices {
        steps
    } else {
        slices
    }
}
const _: () = assert!(sizes_step(64) + 2 == LEAD as usize);

/// The last word of a row of `bits` bits.
fn last_of(w: usize, bits_of_row: usize) -> Bits<4> {
    bits::<4>(words(w, bits_of_row) as u64 - 1)
}

/// Steps `from` to `from + n - 1`.
fn span(from: usize, n: usize) -> Bits<16> {
    bits::<16>(((1 << n) - 1) << from)
}

/// The words of a row so far, and one more.
#[hdl_fn]
fn collect<const W: usize>(so_far: Bits<512>, word: Bits<W>) -> Bits<512> {
    if W == 512 { word.cast::<512>() } else { (so_far >> W as u64) | (word.cast::<512>() << (512 - W) as u64) }
}

/// The row of N bits, of which all words are there.
#[hdl_fn]
fn collected<const W: usize, const N: usize>(words_of_it: Bits<512>) -> Bits<N> {
    (words_of_it >> elab!((512 - W * words(W, N)) as u64)).get_bits::<N>(0)
}

impl<const W: usize> Prepare<W> {
    /// For `qps` QPs.
    pub fn new(qps: usize) -> Self {
        let rows = |n: usize, bits: usize| n << word_bits(W, bits);
        let slices = 2 * ROWS * words(W, MAX_BITS).next_power_of_two();
        let gid_rows = rows(GIDS, GID_BITS);
        // Behind the QPs' rows are those of address handles.
        let gid_base = rows(qps + address_handles(qps), ADDRESS_BITS);
        let style = narrow(gid_rows);
        Prepare {
            clock: Default::default(),
            rst: Default::default(),
            head: Default::default(),
            quick: Default::default(),
            judge_ready: Default::default(),
            ask: Default::default(),
            claim: Default::default(),
            ring: Default::default(),
            claim_row: Default::default(),
            verdict: Default::default(),
            prepared: Default::default(),
            prepared_quick: Default::default(),
            row: Default::default(),
            next: Default::default(),
            re: Default::default(),
            slice_row: Default::default(),
            slice: Default::default(),
            slice_data: Default::default(),
            free: Default::default(),
            free_quick: Default::default(),
            table: Default::default(),
            load: Default::default(),
            load_qpn: Default::default(),
            loaded: Default::default(),
            addresses: Table::new(if is_narrow(W) { gid_base + gid_rows } else { gid_base }, "block"),
            gids: Table::new(if is_narrow(W) { 1 } else { gid_rows }, style),
            tags: Ram::default().rows(GIDS).style("distributed").at_once(),
            may_pick: Default::default(),
            gap: Default::default(),
            steps: Default::default(),
            picked: Default::default(),
            picked_row: Default::default(),
            picked_buf: Default::default(),
            ext: Default::default(),
            tail: Default::default(),
            ahead: Default::default(),
            used: Default::default(),
            room: [Reg::with_reset(true), Reg::with_reset(true)],
            address: Default::default(),
            gid: Default::default(),
            tagged: Default::default(),
            sized: Default::default(),
            sized_row: Default::default(),
            sized_header: Default::default(),
            sized_end: Default::default(),
            sized_total: Default::default(),
            sized_start: Default::default(),
            udp_len: Default::default(),
            sum: Default::default(),
            length: Default::default(),
            store: Ram::default().style("distributed").at_once(),
            slices: Table::new(slices, narrow(slices)),
            builder: Default::default(),
            access: Default::default(),
            word: Default::default(),
            writes_gid: Default::default(),
            writes_address: Default::default(),
            loads: Default::default(),
            _gid_base: Hidden(gid_base),
            _qps: Hidden(qps),
        }
    }
}

impl<const W: usize> Logic for Prepare<W> {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, may_pick, gap, steps, tail, ahead, used, room, access, word);
        dff_setup!(self, clock, picked, picked_row, picked_buf, ext, address, gid, tagged, sized, sized_row);
        dff_setup!(
            self,
            clock,
            writes_gid,
            writes_address,
            loads,
            sized_header,
            sized_end,
            sized_total,
            sized_start,
            udp_len,
            sum,
            length
        );
        clock!(self, clock, addresses, gids, tags, store, slices);
        clock_reset!(self, clock, rst, builder);

        // Pick a head.
        let may = self.may_pick.q.val();
        let pick_quick = may && self.quick.valid.val() && self.room[1].q.val();
        let can_ring = may && self.room[0].q.val() && !pick_quick;
        let pick_ring = can_ring && self.head.valid.val();
        let pick = pick_quick || pick_ring;
        self.quick.ready.next = may && self.room[1].q.val();
        self.head.ready.next = can_ring;
        let steps = self.steps.q.val();
        let first: Bits<16> = if pick { 2.into() } else { 0.into() };
        self.steps.d.next = ((steps << 1) | first) & elab!(span(1, sizes_step(W) + 1));
        let gap_left = self.gap.q.val();
        let waits = self.table.valid.val() || self.access.q.val();
        if pick {
            // What only frames with a payload or RETH have is not looked at in the others.
            let quick = self.quick.data.val();
            let mut head = self.head.data.val();
            if pick_quick {
                head.qpn = quick.qpn;
                head.generation = quick.generation;
                head.request = false;
                head.epoch = quick.epoch;
                head.raw = false;
                head.opcode = quick.opcode;
                head.psn = quick.psn;
                head.ack_req = quick.ack_req;
                head.solicited = quick.solicited;
                head.payload = 0.into();
                head.syndrome = quick.syndrome;
                head.msn = quick.msn;
                head.again = quick.again;
                head.of_fault = quick.of_fault;
            }
            head.qpn = head.qpn & elab!(numbers(self._qps.0));
            self.picked.d.next = head;
            let ahead = if pick_quick { self.ahead[1].q.val() } else { self.ahead[0].q.val() };
            self.picked_row.d.next = cat!(pick_quick, ahead);
            self.gap.d.next = elab!(bits::<4>(gap(W) as u64 - 1));
            self.may_pick.d.next = false;
        } else {
            self.gap.d.next = if gap_left > 1 { gap_left - 1 } else { 0.into() };
            self.may_pick.d.next = gap_left <= 1 && !waits && self.judge_ready.val() && self.builder.may.val();
        }
        for i in 0..2 {
            let takes = if i == 1 { pick_quick } else { pick_ring };
            let frees = if i == 1 { self.free_quick.val() } else { self.free.val() };
            if takes {
                self.ahead[i].d.next = self.ahead[i].q.val() + 1;
            }
            let used = self.used[i].q.val();
            if takes && !frees {
                self.used[i].d.next = used + 1;
                self.room[i].d.next = used != ROWS as u64 - 1;
            } else if frees && !takes {
                self.used[i].d.next = used - 1;
                self.room[i].d.next = true;
            }
        }

        // Ask for its verdict, and place its payload behind that of the frame before.
        let picked = self.picked.q.val();
        let picked_row = self.picked_row.q.val();
        let is_quick = picked_row.get_bit(3);
        let is_ack = picked.opcode == op::ACK as u64 && !picked.request;
        self.ask.next = steps.get_bit(1);
        self.claim.next = Claim {
            qpn: picked.qpn,
            generation: picked.generation,
            request: picked.request,
            epoch: picked.epoch,
            answers: is_ack || is_quick,
            of_fault: picked.of_fault,
        };
        self.ring.next = !is_quick;
        self.claim_row.next = picked_row.get_bits::<3>(0);
        self.ext.d.next = headers::ext_len(picked.opcode);
        if steps.get_bit(1) {
            self.picked_buf.d.next = self.tail.q.val();
            if !is_quick {
                let rows = rows_of::<W>(picked.payload).cast::<20>();
                self.tail.d.next = self.tail.q.val() + (rows << elab!(row_shift(W)));
            }
        }

        // Its address and the GID's row, or those of a row access, word by word.
        let req = self.table.req.val();
        let access = self.access.q.val();
        let word = self.word.q.val();
        let mut address_word: Bits<4> = word;
        let mut gid_word: Bits<4> = word;
        for k in 1..8 {
            if steps.get_bit(1 + k) && elab!(k < words(W, ADDRESS_BITS)) {
                address_word = k.to_bits();
            }
            if steps.get_bit(elab!(words(W, ADDRESS_BITS) + 2 + k)) && elab!(k < words(W, GID_BITS)) {
                gid_word = k.to_bits();
            }
        }
        let reads_address = (steps & elab!(span(1, words(W, ADDRESS_BITS)))).any();
        let reads_gid = (steps & elab!(span(words(W, ADDRESS_BITS) + 2, words(W, GID_BITS)))).any();
        let whole = collect::<W>(self.address.q.val(), self.addresses.rdata.val());
        let gid_words = if elab!(is_narrow(W)) { self.addresses.rdata.val() } else { self.gids.rdata.val() };
        let whole_gid = collect::<W>(self.gid.q.val(), gid_words);
        if (steps & elab!(span(3, words(W, ADDRESS_BITS)))).any() {
            self.address.d.next = whole;
        }
        if (steps & elab!(span(words(W, ADDRESS_BITS) + 4, words(W, GID_BITS)))).any() {
            self.gid.d.next = whole_gid;
        }
        let address_comes = steps.get_bit(elab!(words(W, ADDRESS_BITS) + 2));
        let address_now = collected::<W, ADDRESS_BITS>(if address_comes { whole } else { self.address.q.val() });
        let gid_index = address_now.get_bits::<8>(elab!(qp_address::GID.lsb)) & (GIDS as u64 - 1);
        let gid_base: Bits<24> = elab!(if is_narrow(W) { bits::<24>(self._gid_base.0 as u64) } else { bits::<24>(0) });
        let gid_row = gid_base + (gid_index.cast::<24>() << elab!(word_bits(W, GID_BITS))) + gid_word.cast::<24>();
        let handles: Bits<24> = elab!(bits::<24>(self._qps.0 as u64));
        let addressed = if headers::is_datagram(picked.opcode) && !picked.raw {
            picked.va.get_bits::<12>(elab!(ud_target::AH.lsb)).cast::<24>() | handles
        } else {
            picked.qpn.cast::<24>()
        };
        let address_row = (addressed << elab!(word_bits(W, ADDRESS_BITS))) | address_word.cast::<24>();
        let both = elab!(is_narrow(W));
        self.addresses.re.next = reads_address || both && reads_gid;
        self.addresses.raddr.next = if both && reads_gid { gid_row } else { address_row };
        self.gids.re.next = !both && reads_gid;
        self.gids.raddr.next = gid_row;
        self.tags.re.next = true;
        self.tags.raddr.next = gid_index.get_bits::<4>(0);
        if address_comes {
            self.tagged.d.next = self.tags.rdata.val();
        }

        // What the sizes need; then the next head may come.
        if steps.get_bit(elab!(sizes_step(W) - 1)) {
            self.sized.d.next = picked;
            self.sized_row.d.next = picked_row;
            let raw = picked.raw;
            let shortest: Bits<7> = if raw { 0.into() } else { headers::shortest(self.ext.q.val()) };
            let behind: Bits<14> =
                if raw { 0.into() } else { headers::pad(picked.payload).cast::<14>() + len::ICRC as u64 };
            let end = shortest.cast::<14>() + picked.payload;
            self.sized_header.d.next = shortest;
            self.sized_end.d.next = end;
            self.sized_total.d.next = end + behind;
            self.sized_start.d.next = self.picked_buf.q.val() - shortest.cast::<20>();
            self.udp_len.d.next = headers::udp_len(picked, self.ext.q.val());
        }

        // Sizes.
        let address = collected::<W, ADDRESS_BITS>(self.address.q.val());
        let ip6 = address.get_bit(elab!(qp_address::IS_IP6.lsb));
        let tagged = self.tagged.q.val();
        let head = self.sized.q.val();
        let row = self.sized_row.q.val();
        let longer: Bits<7> = if head.raw { 0.into() } else { headers::longer(ip6, tagged) };
        let header = self.sized_header.q.val() + longer;
        let bare = self.sized_total.q.val() + longer.cast::<14>();
        let is_ack = head.opcode == op::ACK as u64 && !head.raw;
        let is_nak = head.syndrome.get_bits::<3>(5).any();
        self.sum.d.next = headers::checksum_start(address, self.udp_len.q.val());
        self.length.d.next = header;
        self.store.we.next = steps.get_bit(elab!(sizes_step(W)));
        self.store.waddr.next = row;
        self.store.wdata.next = Prepared {
            header,
            payload_end: self.sized_end.q.val() + longer.cast::<14>(),
            pad: headers::pad(head.payload),
            total: if bare < wire::MIN_FRAME as u64 { bits::<14>(wire::MIN_FRAME as u64) } else { bare },
            start: self.sized_start.q.val() - longer.cast::<20>(),
            verdict: self.verdict.val(),
            claim: Claim {
                qpn: head.qpn,
                generation: head.generation,
                request: head.request,
                epoch: head.epoch,
                answers: head.opcode == op::ACK as u64 && !head.request || row.get_bit(3),
                of_fault: head.of_fault,
            },
            psn: head.psn,
            ip6,
            tagged,
            raw: head.raw,
            expects: headers::expects_answer(head),
            alone: headers::is_alone(head),
            again: head.again,
            ack: is_ack && !is_nak,
            nak: is_ack && is_nak,
        };
        self.store.re.next = true;
        self.store.raddr.next = self.row.val();
        self.next.next = self.store.rdata.val();

        // All headers. Those built word by word come before their last slices are written.
        let builds = steps.get_bit(elab!(sizes_step(W) + 1));
        self.builder.start.next = builds;
        self.builder.parts.next = Parts {
            head,
            address,
            gid: collected::<W, GID_BITS>(whole_gid),
            ip6,
            tagged,
            udp_len: self.udp_len.q.val(),
            length: self.length.q.val(),
            row,
        };
        self.builder.sum.next = self.sum.q.val();
        self.slices.we.next = self.builder.we.val();
        self.slices.waddr.next = (self.builder.wrow.val().cast::<24>() << elab!(word_bits(W, MAX_BITS)))
            | self.builder.wslice.val().cast::<24>();
        self.slices.wdata.next = self.builder.wdata.val();
        let prepared = if elab!(is_narrow(W)) { self.builder.built.val() } else { steps.get_bit(elab!(sizes_step(W))) };
        let prepared_row = if elab!(is_narrow(W)) { self.builder.built_row.val() } else { row };
        self.prepared.next = prepared && !prepared_row.get_bit(3);
        self.prepared_quick.next = prepared && prepared_row.get_bit(3);
        self.slices.re.next = self.re.val();
        self.slices.raddr.next =
            (self.slice_row.val().cast::<24>() << elab!(word_bits(W, MAX_BITS))) | self.slice.val().cast::<24>();
        self.slice_data.next = self.slices.rdata.val();

        // A row write, when nothing is under way: a word a cycle.
        self.writes_gid.d.next = req.write && req.table == id::GID;
        // A handle that goes leaves its address to the frames that still need it.
        let made = req.row.get_bit(elab!(qp_address::VALID.lsb));
        self.writes_address.d.next = req.write && (req.table == id::QP_ADDRESS || req.table == id::AH && made);
        let anew = req.row.get_bit(elab!(qp_send::LOAD.lsb)) || req.row.get_bit(elab!(qp_send::RESUME.lsb));
        self.loads.d.next = req.write && req.table == id::QP_SEND && anew;
        let (of_gid, of_address, loads) = (self.writes_gid.q.val(), self.writes_address.q.val(), self.loads.q.val());
        let last_word: Bits<4> = if of_gid { elab!(last_of(W, GID_BITS)) } else { elab!(last_of(W, ADDRESS_BITS)) };
        let done = access && (if loads { self.loaded.val() } else { word == last_word });
        if access {
            self.word.d.next = if done { 0.into() } else { word + 1 };
            self.access.d.next = !done;
        } else {
            self.access.d.next = self.table.valid.val() && !may && !steps.any();
        }
        self.table.ready.next = done;
        self.load.next = access && loads;
        self.load_qpn.next = req.index.get_bits::<12>(0);
        let mut piece: Bits<W> = req.row.get_bits::<W>(0);
        for k in 1..512 / W {
            if elab!(k < words(W, ADDRESS_BITS)) && word == k as u64 {
                piece = req.row.get_bits::<W>(k * W);
            }
        }
        let written = if req.table == id::AH { req.index | handles } else { req.index };
        let address_at = (written << elab!(word_bits(W, ADDRESS_BITS))) | word.cast::<24>();
        let gid_at = gid_base + ((req.index & (GIDS as u64 - 1)) << elab!(word_bits(W, GID_BITS))) + word.cast::<24>();
        self.addresses.we.next = access && (of_address || both && of_gid);
        self.addresses.waddr.next = if both && of_gid { gid_at } else { address_at };
        self.addresses.wdata.next = piece;
        self.gids.we.next = !both && access && of_gid;
        self.gids.waddr.next = gid_at;
        self.gids.wdata.next = piece;
        self.tags.we.next = access && of_gid;
        self.tags.waddr.next = req.index.get_bits::<4>(0);
        self.tags.wdata.next = req.row.get_bit(elab!(gid::TAGGED.lsb));
        self.table.rvalid.next = false;
        self.table.rdata.next = 0.into();
    }
}
