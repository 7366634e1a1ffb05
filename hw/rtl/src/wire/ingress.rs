//! From the MAC to [`RxMeta`]: stores every frame in the receive buffer, checks it, and hands it on or forgets it.
//! For `transport/dispatch`, which takes the meta data, and whoever reads the buffer.
//!
//! ```text
//! cycle       0      1      2       3      4      5       6          7       8
//! mac         last beat
//! beat               store  masked  fold   crc    good
//! sum                       masked  words  beat   frame   folded
//! parser             l3     l4      kind   fields out
//! verdict                                                 judged
//! meta                                                    valid
//! with a UDP checksum                                     found      summed  judged, valid
//! ```
//! A beat and a frame per cycle. The MAC never waits: a frame that finds no room, in the buffer or in the FIFO of meta
//! data, is dropped and counted. The rows of a dropped frame are a hole in the ring: they are freed at once when no
//! accepted frame stands before them, and with the next accepted frame otherwise. So garbage can delay others by the
//! room it takes, but never for good.

use super::be;
use super::icrc::{Crc, is_good, keep_bytes, mask_headers};
use super::parser::{Arrival, GIDS, Gid, Parsed, Parser};
use super::raw_filter::RawFilter;
use crate::msg::{BufAddr, RxMeta};
use crate::stream::{BeatSink, Fifo, Source, TablePort};
use abi::{
    status::counter,
    table::{gid, id},
    wire,
};
use hdl::prelude::*;

/// Frames whose meta data may wait.
const WAITING: usize = 64;

/// A beat on its way to the checks.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Place {
    /// Number of the beat in its frame, 15 for all from there on.
    number: Bits<4>,
    /// Bytes of the frame before it.
    position: Bits<14>,
    last: Bit,
    tagged: Bit,
    ip6: Bit,
    /// Bytes of the frame up to the end of the IP packet, once its header has come.
    end: Bits<18>,
    end_known: Bit,
}

/// A frame on its way out of the checks.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Found {
    meta: RxMeta,
    /// Its verdict so far, 0 for none.
    fault: Bits<6>,
    /// Its UDP checksum counts, before `fault`.
    summed: Bit,
}

/// The receive side's door.
#[derive(Clone, Debug, LogicBlock)]
pub struct Ingress<const W: usize> {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// Frames without FCS; `ready` is always 1.
    pub mac: BeatSink<W>,
    /// With the last beat: the frame is damaged.
    pub mac_error: Signal<In, Bit>,
    /// GID, PORT and MULTICAST rows.
    pub table: TablePort,
    /// Frames that passed all checks, in the order of arrival.
    pub meta: Source<RxMeta>,
    /// The QP that `meta` will name in the next cycle, if a frame passes at once.
    pub soon: Signal<Out, Bits<24>>,
    pub soon_valid: Signal<Out, Bit>,
    pub buf_we: Signal<Out, Bit>,
    pub buf_addr: Signal<Out, BufAddr>,
    pub buf_data: Signal<Out, Bits<W>>,
    pub buf_bytes: Signal<Out, Bits<7>>,
    /// Rows that are free again, in the order of the ring.
    pub freed: Signal<In, Bits<12>>,
    /// Buffer and FIFO are less than half full: there is room for frames that may be held back.
    pub room: Signal<Out, Bit>,
    pub count: Signal<Out, Bits<64>>,
    /// A frame is accepted. This or a verdict in `count` comes for each frame, in the order of arrival.
    pub accepted: Signal<Out, Bit>,

    gids: Arr<DFF<Gid>, GIDS>,
    gid_valid: Reg<Bits<16>>,
    answer: DFF<Bits<512>>,
    answer_valid: Reg<Bit>,

    valid: Reg<Bit>,
    data: DFF<Bits<W>>,
    bytes: DFF<Bits<7>>,
    last: DFF<Bit>,
    error: DFF<Bit>,
    number: Reg<Bits<4>>,
    position: Reg<Bits<14>>,
    /// Next row to write, first row of the frame, rows written of it, and whether some could not be.
    row: Reg<Bits<20>>,
    start: Reg<Bits<20>>,
    rows: Reg<Bits<12>>,
    lost: Reg<Bit>,
    window: DFF<Bits<1024>>,

    beat_valid: Reg<Bit>,
    beat: DFF<Bits<W>>,
    place: DFF<Place>,
    parser: Parser,
    filter: RawFilter,

    live: Reg<Bit>,
    first: DFF<Bit>,
    masked: DFF<Bits<W>>,
    crc: Crc<W>,
    closing: [Reg<Bit>; 4],
    pad: [DFF<Bits<6>>; 3],

    plain: DFF<Bits<W>>,
    sum_valid: [Reg<Bit>; 2],
    sum_first: [DFF<Bit>; 2],
    words: [DFF<Bits<18>>; 8],
    beat_sum: DFF<Bits<24>>,
    frame_sum: DFF<Bits<32>>,
    folded: DFF<Bits<18>>,

    /// Frames whose headers and ICRC are judged; those with a UDP checksum, and what is behind them, take two steps more.
    found_valid: [Reg<Bit>; 3],
    found: [DFF<Found>; 3],
    fifo: Fifo<RxMeta>,
    /// Rows written and not free; rows named in meta data and not free; rows of frames dropped since.
    used: Reg<Bits<20>>,
    owned: Reg<Bits<20>>,
    holes: Reg<Bits<20>>,
    freed_now: Reg<Bits<12>>,
    _rows: Hidden<usize>,
}

impl<const W: usize> Ingress<W> {
    /// For a receive buffer of `bytes` bytes, a power of two.
    pub fn new(bytes: usize) -> Self {
        assert!([64, 128, 256, 512].contains(&W), "a datapath of {W} bits");
        assert!(bytes.is_power_of_two() && bytes >= W && bytes <= 1 << 20, "a buffer of {bytes} bytes");
        Ingress {
            clock: Default::default(),
            rst: Default::default(),
            mac: Default::default(),
            mac_error: Default::default(),
            table: Default::default(),
            meta: Default::default(),
            soon: Default::default(),
            soon_valid: Default::default(),
            buf_we: Default::default(),
            buf_addr: Default::default(),
            buf_data: Default::default(),
            buf_bytes: Default::default(),
            freed: Default::default(),
            room: Default::default(),
            count: Default::default(),
            accepted: Default::default(),
            gids: Default::default(),
            gid_valid: Default::default(),
            answer: Default::default(),
            answer_valid: Default::default(),
            valid: Default::default(),
            data: Default::default(),
            bytes: Default::default(),
            last: Default::default(),
            error: Default::default(),
            number: Default::default(),
            position: Default::default(),
            row: Default::default(),
            start: Default::default(),
            rows: Default::default(),
            lost: Default::default(),
            window: Default::default(),
            beat_valid: Default::default(),
            beat: Default::default(),
            place: Default::default(),
            parser: Default::default(),
            filter: Default::default(),
            live: Default::default(),
            first: Default::default(),
            masked: Default::default(),
            crc: Default::default(),
            closing: Default::default(),
            pad: Default::default(),
            plain: Default::default(),
            sum_valid: Default::default(),
            sum_first: Default::default(),
            words: Default::default(),
            beat_sum: Default::default(),
            frame_sum: Default::default(),
            folded: Default::default(),
            found_valid: Default::default(),
            found: Default::default(),
            fifo: Fifo::new(WAITING),
            used: Default::default(),
            owned: Default::default(),
            holes: Default::default(),
            freed_now: Default::default(),
            _rows: Hidden(bytes / (W / 8)),
        }
    }
}

/// A field of a table row in its place.
#[hdl_fn]
fn put<const N: usize>(x: Bits<N>, lsb: usize) -> Bits<512> {
    x.cast::<512>() << lsb as u64
}

/// A flag of a table row in its place.
#[hdl_fn]
fn flag(x: Bit, lsb: usize) -> Bits<512> {
    if x { put(bits::<1>(1), lsb) } else { 0.into() }
}

/// A GID row as the table bus reads it.
#[hdl_fn]
fn gid_row(valid: Bit, g: Gid) -> Bits<512> {
    let flags = flag(valid, elab!(gid::VALID.lsb))
        | flag(g.ip6, elab!(gid::IS_IP6.lsb))
        | flag(g.tagged, elab!(gid::TAGGED.lsb));
    flags | put(g.vlan, elab!(gid::VLAN.lsb)) | put(g.mac, elab!(gid::MAC.lsb)) | put(g.ip, elab!(gid::IP_LOW.lsb))
}

/// The first 24 bytes of the frame once beat `number` is there; bytes still to come are noise.
#[hdl_fn]
fn front<const W: usize>(window: Bits<1024>, beat: Bits<W>, number: Bits<4>) -> Bits<192> {
    let mut front: Bits<192> = 0.into();
    for i in 0..3 {
        let n = i * 64 / W;
        let part = if number == n.to_bits() { beat.get_bits::<64>(i * 64 % W) } else { window.get_bits::<64>(i * 64) };
        front |= part.cast::<192>() << (i as u64 * 64);
    }
    front
}

/// Zeroes what the UDP checksum does not cover: all before the IP addresses.
#[hdl_fn]
fn mask_before_addresses<const W: usize>(beat: Bits<W>, number: Bits<4>, tagged: Bit, ip6: Bit) -> Bits<W> {
    let mut masked = beat;
    for n in 0..4 {
        for kind in 0..4 {
            let (tag, v6) = (kind & 1 == 1, kind & 2 == 2);
            if elab!(n * W < first_address(kind)) {
                if number == n.to_bits() && tagged == tag && ip6 == v6 {
                    masked = beat & elab!(bits_from::<W>(first_address(kind) - n * W));
                }
            }
        }
    }
    masked
}

/// Bit of the frame where the IP addresses begin: `kind` bit 0 tagged, bit 1 IPv6.
fn first_address(kind: usize) -> usize {
    8 * ([14, 18][kind & 1] + [12, 8][kind >> 1])
}

/// Ones in all bits from `from` on.
fn bits_from<const W: usize>(from: usize) -> Bits<W> {
    (from..W).fold(Bits::default(), |b: Bits<W>, i| b.replace_bit(i, true))
}

impl<const W: usize> Logic for Ingress<W> {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, gid_valid, answer_valid, valid, number, position, row, start, rows, lost);
        regs!(self, clock, rst, beat_valid, live, closing, sum_valid, found_valid, used, owned, holes, freed_now);
        dff_setup!(self, clock, gids, answer, data, bytes, last, error, window, beat, place, first, masked);
        dff_setup!(self, clock, pad, plain, sum_first, words, beat_sum, frame_sum, folded, found);
        clock_reset!(self, clock, rst, parser, filter, crc, fifo);
        let capacity: Bits<20> = elab!(bits::<20>(self._rows.0 as u64));
        let row_mask: Bits<20> = elab!(bits::<20>(self._rows.0 as u64 - 1));

        // Table bus. A row that changes while a frame passes counts for it or not.
        let req = self.table.req.val();
        let is_gid = req.table == id::GID as u64;
        let row_number = req.index.get_bits::<4>(0);
        let mut answer: Bits<512> = 0.into();
        if self.table.valid.val() {
            let row = req.row;
            if is_gid {
                for i in 0..GIDS {
                    if row_number == i.to_bits() {
                        answer = gid_row(self.gid_valid.q.val().get_bit(i), self.gids[i].q.val());
                        if req.write {
                            self.gid_valid.d.next =
                                self.gid_valid.q.val().replace_bit(i, row.get_bit(elab!(gid::VALID.lsb)));
                            self.gids[i].d.next = Gid {
                                ip6: row.get_bit(elab!(gid::IS_IP6.lsb)),
                                tagged: row.get_bit(elab!(gid::TAGGED.lsb)),
                                vlan: row.get_bits::<12>(elab!(gid::VLAN.lsb)),
                                mac: row.get_bits::<48>(elab!(gid::MAC.lsb)),
                                ip: row.get_bits::<128>(elab!(gid::IP_LOW.lsb)),
                            };
                        }
                    }
                }
            } else {
                answer = self.filter.row.val();
            }
            self.answer.d.next = answer;
        }
        self.filter.table.next = req;
        self.filter.table_valid.next = self.table.valid.val() && !is_gid;
        self.answer_valid.d.next = self.table.valid.val() && !req.write;
        self.table.ready.next = true;
        self.table.rdata.next = self.answer.q.val();
        self.table.rvalid.next = self.answer_valid.q.val();

        // Take a beat.
        self.mac.ready.next = true;
        self.valid.d.next = self.mac.valid.val();
        if self.mac.valid.val() {
            self.data.d.next = self.mac.data.val();
            self.bytes.d.next = self.mac.bytes.val();
            self.last.d.next = self.mac.last.val();
            self.error.d.next = self.mac_error.val();
        }

        // Store it, and find out where its IP packet ends.
        let data = self.data.q.val();
        let last = self.last.q.val();
        let number = self.number.q.val();
        let position = self.position.q.val();
        let begins = number == 0;
        let full = self.used.q.val() == capacity;
        let over = position == wire::MAX_FRAME as u64;
        let lost = self.lost.q.val() || full && !over;
        let store = self.valid.q.val() && !lost && !over;
        let start = if begins { self.row.q.val() } else { self.start.q.val() };
        let shift = elab!((W as u64 / 8).trailing_zeros() as u64);
        let rows = self.rows.q.val() + if store { bits::<12>(1) } else { 0.into() };
        self.beat_valid.d.next = self.valid.q.val();
        if self.valid.q.val() {
            self.number.d.next = if last {
                0.into()
            } else if number == 15 {
                number
            } else {
                number + 1
            };
            self.position.d.next = if last {
                0.into()
            } else if over {
                position
            } else {
                position + W as u64 / 8
            };
            self.rows.d.next = if last { 0.into() } else { rows };
            self.lost.d.next = lost && !last;
            self.start.d.next = start;
            if store {
                self.row.d.next = (self.row.q.val() + 1) & row_mask;
            }

            for n in 0..896usize.div_ceil(W) {
                if number == n.to_bits() {
                    self.window.d.next.set_bits::<W>(n * W, data);
                }
            }
            let front = front(self.window.q.val(), data, number);
            let tagged = be::<192, 16>(front, 12) == wire::ETHERTYPE_VLAN as u64;
            let ethertype = if tagged { be::<192, 16>(front, 16) } else { be::<192, 16>(front, 12) };
            let ip6 = ethertype == wire::ETHERTYPE_IPV6 as u64;
            let ip = if tagged { front.get_bits::<48>(144) } else { front.get_bits::<48>(112) };
            let length = if ip6 { be::<48, 16>(ip, 4) } else { be::<48, 16>(ip, 2) };
            let before =
                if tagged { bits::<18>(18) } else { bits::<18>(14) } + if ip6 { bits::<18>(40) } else { 0.into() };
            self.beat.d.next = data;
            self.place.d.next = Place {
                number,
                position,
                last,
                tagged,
                ip6,
                end: length.cast::<18>() + before,
                end_known: number >= elab!(bits::<4>(24u64.div_ceil(W as u64 / 8) - 1)),
            };
        }
        self.buf_we.next = store;
        self.buf_addr.next = self.row.q.val() << shift;
        self.buf_data.next = data;
        self.buf_bytes.next = (W as u64 / 8).to_bits();

        // The frame's headers are complete with its last beat.
        self.parser.window.next = self.window.q.val();
        for n in 0..896usize.div_ceil(W) {
            if number == n.to_bits() {
                self.parser.window.next.set_bits::<W>(n * W, data);
            }
        }
        self.parser.valid.next = self.valid.q.val() && last;
        self.parser.arrival.next = Arrival {
            len: position + self.bytes.q.val().cast::<14>(),
            buf: start << shift,
            rows,
            error: self.error.q.val() || over,
            no_room: lost,
        };
        self.parser.gid_valid.next = self.gid_valid.q.val();
        self.filter.gid_valid.next = self.gid_valid.q.val();
        for i in 0..GIDS {
            self.parser.gids[i].next = self.gids[i].q.val();
            self.filter.gids[i].next = self.gids[i].q.val();
        }
        self.filter.dmac.next = self.parser.dmac.val();
        self.parser.wanted_raw.next = self.filter.wanted.val();
        self.parser.raw_open.next = self.filter.open.val();
        self.filter.taken.next = self.parser.raw_taken.val();
        let place = self.place.q.val();
        let ends = self.beat_valid.q.val() && place.last;
        self.closing[0].d.next = ends;
        for i in 1..4 {
            self.closing[i].d.next = self.closing[i - 1].q.val();
        }

        // ICRC and UDP checksum cover bytes up to the end of the IP packet.
        let inside = !place.end_known || place.end > place.position.cast::<18>();
        let live = self.beat_valid.q.val() && inside;
        self.live.d.next = live;
        if live {
            let left = place.end - place.position.cast::<18>();
            let whole = !place.end_known || left >= W as u64 / 8;
            let keep: Bits<7> = if whole { (W as u64 / 8).to_bits() } else { left.get_bits::<7>(0) };
            let beat = keep_bytes(self.beat.q.val(), keep);
            let masked = mask_headers(self.beat.q.val(), place.number, place.tagged, place.ip6);
            self.masked.d.next = keep_bytes(masked, keep);
            self.plain.d.next = mask_before_addresses(beat, place.number, place.tagged, place.ip6);
            self.first.d.next = place.number == 0;
        }
        if ends {
            self.pad[0].d.next = (bits::<6>(0) - place.end.get_bits::<6>(0)) & (W as u64 / 8 - 1);
        }
        for i in 1..3 {
            self.pad[i].d.next = self.pad[i - 1].q.val();
        }
        self.crc.data.next = self.masked.q.val();
        self.crc.valid.next = self.live.q.val();
        self.crc.first.next = self.first.q.val();
        self.crc.last.next = false;
        let good = is_good::<W>(self.crc.state.val(), self.pad[2].q.val());

        // The sum of 16-bit words is the same in both byte orders, but for the order of its bytes.
        self.sum_valid[0].d.next = self.live.q.val();
        if self.live.q.val() {
            self.sum_first[0].d.next = self.first.q.val();
            for i in 0..W / 64 {
                let mut sum: Bits<18> = 0.into();
                for j in 0..4 {
                    sum += self.plain.q.val().get_bits::<16>(64 * i + 16 * j).cast::<18>();
                }
                self.words[i].d.next = sum;
            }
        }
        self.sum_valid[1].d.next = self.sum_valid[0].q.val();
        if self.sum_valid[0].q.val() {
            self.sum_first[1].d.next = self.sum_first[0].q.val();
            let mut sum: Bits<24> = 0.into();
            for i in 0..W / 64 {
                sum += self.words[i].q.val().cast::<24>();
            }
            self.beat_sum.d.next = sum;
        }
        if self.sum_valid[1].q.val() {
            let before = if self.sum_first[1].q.val() { 0.into() } else { self.frame_sum.q.val() };
            self.frame_sum.d.next = before + self.beat_sum.q.val().cast::<32>();
        }
        if self.closing[3].q.val() {
            let sum = self.frame_sum.q.val();
            let pseudo = bswap(self.parser.udp_len.val()).cast::<18>() + ((wire::IP_PROTO_UDP as u64) << 8);
            self.folded.d.next = sum.get_bits::<16>(0).cast::<18>() + sum.get_bits::<16>(16).cast::<18>() + pseudo;
        }

        // Judge: first headers and ICRC, then, where there is one, the UDP checksum.
        let parsed: Parsed = self.parser.out.val();
        self.soon.next = parsed.meta.qpn;
        self.soon_valid.next = self.parser.out_valid.val();
        let folded = self.folded.q.val();
        let summed_well = folded == 0xffff || folded == 0x1fffe || folded == 0x2fffd;
        self.found_valid[0].d.next = self.parser.out_valid.val();
        if self.parser.out_valid.val() {
            self.found[0].d.next = Found {
                meta: parsed.meta,
                fault: if parsed.fault.any() {
                    parsed.fault
                } else if parsed.meta.raw {
                    0.into()
                } else if !good {
                    elab!(counter::RX_ICRC.to_bits())
                } else {
                    parsed.late_fault
                },
                summed: parsed.summed && !parsed.meta.raw && !parsed.fault.any(),
            };
        }
        let behind = self.found_valid[1].q.val() || self.found_valid[2].q.val();
        let early = self.found_valid[0].q.val() && !behind && !self.found[0].q.val().summed;
        self.found_valid[1].d.next = self.found_valid[0].q.val() && !early;
        self.found_valid[2].d.next = self.found_valid[1].q.val();
        if self.found_valid[0].q.val() {
            self.found[1].d.next = self.found[0].q.val();
        }
        if self.found_valid[1].q.val() {
            let mut found = self.found[1].q.val();
            if found.summed && !summed_well {
                found.fault = elab!(counter::RX_IP_CHECKSUM.to_bits());
            }
            self.found[2].d.next = found;
        }

        // Hand it on, past the FIFO if that is empty, or leave a hole.
        let judged = early || self.found_valid[2].q.val();
        let verdict = if behind { self.found[2].q.val() } else { self.found[0].q.val() };
        let found = verdict.meta;
        let passed = judged && !verdict.fault.any();
        let rows = self.holes.q.val() + found.rows.cast::<20>();
        let room = self.fifo.s.ready.val() && !self.holes.q.val().get_bits::<9>(11).any();
        let taken = passed && room;
        let mut meta = found;
        meta.rows = rows.get_bits::<12>(0);
        let queued = self.fifo.m.valid.val();
        self.meta.data.next = if queued { self.fifo.m.data.val() } else { meta };
        self.meta.valid.next = queued || taken;
        self.fifo.m.ready.next = self.meta.ready.val();
        self.fifo.s.data.next = meta;
        self.fifo.s.valid.next = taken && (queued || !self.meta.ready.val());

        let release = !taken && !self.owned.q.val().any();
        let holes = if release { 0.into() } else { self.holes.q.val() };
        self.holes.d.next = if taken {
            0.into()
        } else if judged {
            holes + found.rows.cast::<20>()
        } else {
            holes
        };
        let freed = self.freed_now.q.val().cast::<20>();
        self.freed_now.d.next = self.freed.val();
        self.owned.d.next = self.owned.q.val() + if taken { rows } else { 0.into() } - freed;
        self.used.d.next = self.used.q.val() + if store { bits::<20>(1) } else { 0.into() }
            - freed
            - if release { self.holes.q.val() } else { 0.into() };

        let half = elab!(bits::<20>(self._rows.0 as u64 / 2));
        self.room.next = self.used.q.val() < half && self.fifo.fill.val() < (WAITING / 2) as u64;

        let mut count: Bits<64> = 0.into();
        if judged && !taken {
            let why = if passed { elab!(counter::RX_NO_ROOM.to_bits()) } else { verdict.fault };
            let one: Bits<64> = 1.into();
            count = one << why;
        }
        if taken && found.ce && !found.raw {
            count = count.replace_bit(counter::RX_CE, true);
        }
        self.count.next = count;
        self.accepted.next = taken;
    }
}

#[cfg(test)]
mod tests;
