//! From the MAC to [`RxMeta`]: stores every frame in the receive buffer, checks it, and hands it on or forgets it.
//! For `transport/dispatch`, which takes the meta data, and whoever reads the buffer.
//!
//! ```text
//! cycle       0      1      2        3       4      5       6          7       8
//! mac         last beat
//! beat               store  masked   fold    crc    good
//! sum                       masked   words   beat   frame   folded
//! parser                    headers  l4      kind   fields
//! verdict                                                   judged
//! meta                                                      valid
//! with a UDP checksum                                       found      summed  judged, valid
//! count                                                                judged in the cycle before
//! ```
//! Up to 128 bits all frames take the same way: the parser looks their destination up in turns (`wire/rows`), so ICRC and checksum are
//! known before it is done, and meta data show a cycle later, out of the FIFO. That saves comparators and wide multiplexers where a
//! cycle is little of a frame.
//!
//! A beat and a frame per cycle. The MAC never waits: a frame that finds no room, in the buffer or in the FIFO of meta
//! data, is dropped and counted. The rows of a dropped frame are a hole in the ring: they are freed at once when no
//! accepted frame stands before them, and with the next accepted frame otherwise. So garbage can delay others by the
//! room it takes, but never for good.

use super::gids::Gids;
use super::icrc::{Crc, mask_headers, residue};
use super::parser::{Arrival, Parsed, Parser};
use super::raw_filter::RawFilter;
use super::rows::{shortest, turns};
use super::window::{Headers, Window};
use crate::msg::{BufAddr, RxMeta, TableReq};
use crate::stream::{BeatSink, Passage, Source, TablePort};
use abi::{status::counter, table::id, wire};
use hdl::prelude::*;

/// A beat on its way to the checks.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Place {
    /// Number of the beat in its frame, 15 for all from there on.
    number: Bits<4>,
    last: Bit,
    tagged: Bit,
    ip6: Bit,
    /// The length of the IP packet has come, and it does not end before this beat. From here on it has so many whole beats
    /// and a rest.
    known: Bit,
    ahead: Bit,
    beats: Bits<14>,
    rest: Bits<6>,
}

/// A frame on its way out of the checks.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Found {
    meta: RxMeta,
    /// Its verdict so far, 0 for none, and whether there is none.
    fault: Bits<6>,
    good: Bit,
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
    /// The QP that `meta` will name in the next cycle, if a RoCE frame passes at once; a wrong ICRC shows later. Raw frames are not announced.
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

    req: DFF<TableReq>,
    req_valid: Reg<Bit>,
    gids: Gids,
    filter: RawFilter,

    valid: Reg<Bit>,
    data: DFF<Bits<W>>,
    bytes: DFF<Bits<7>>,
    last: DFF<Bit>,
    error: DFF<Bit>,
    number: Reg<Bits<4>>,
    /// Bytes of the frame so far, and whether they are too many.
    position: Reg<Bits<14>>,
    over: Reg<Bit>,
    /// Next row to write, first row of the frame, rows written of it, and whether some could not be.
    row: Reg<Bits<20>>,
    start: Reg<Bits<20>>,
    rows: Reg<Bits<12>>,
    lost: Reg<Bit>,
    window: Window<W>,
    ended: Reg<Bit>,
    arrival: DFF<Arrival>,
    parser: Parser,

    beat_valid: Reg<Bit>,
    beat: DFF<Bits<W>>,
    place: DFF<Place>,
    live: Reg<Bit>,
    first: DFF<Bit>,
    masked: DFF<Bits<W>>,
    crc: Crc<W>,
    closing: [Reg<Bit>; 4],
    pad: [DFF<Bits<6>>; 2],
    /// The CRC of a good frame.
    want: DFF<Bits<32>>,

    plain: DFF<Bits<W>>,
    sum_valid: [Reg<Bit>; 2],
    sum_first: [DFF<Bit>; 2],
    words: [DFF<Bits<18>>; 8],
    beat_sum: DFF<Bits<24>>,
    frame_sum: DFF<Bits<32>>,
    folded: DFF<Bits<18>>,

    /// Of frames whose destination is still being looked up: whether the ICRC was good, and the checksum.
    was_good: Reg<Bits<9>>,
    was_summed: Reg<Bits<8>>,
    /// Frames that wait for their UDP checksum, and what is behind them.
    found_valid: [Reg<Bit>; 2],
    found: [DFF<Found>; 2],
    /// The frame that is judged, and whether it has passed.
    front_valid: Reg<Bit>,
    front: DFF<Found>,
    pass: Reg<Bit>,
    fifo: Passage<RxMeta>,
    /// Rows written and not free; rows named in meta data and not free; rows of frames dropped since.
    used: Reg<Bits<20>>,
    owned: Reg<Bits<20>>,
    holes: Reg<Bits<20>>,
    /// There were so many holes in the cycle before that no frame can name them.
    many: Reg<Bit>,
    /// No rows were owned in the cycle before; rows that have become free.
    idle: Reg<Bit>,
    taken: Reg<Bit>,
    freed_now: Reg<Bits<12>>,
    gone: Reg<Bits<20>>,
    has_room: Reg<Bit>,
    counts: Reg<Bits<64>>,
    _rows: Hidden<usize>,
    _waiting: Hidden<usize>,
}

/// Frames take the short way out, past the FIFO and the stages of the UDP checksum: where a beat is a whole small frame, and
/// the link so fast that two cycles count.
const fn is_direct(width: usize) -> bool {
    turns(width) == 1
}

impl<const W: usize> Ingress<W> {
    /// For a receive buffer of `bytes` bytes, a power of two.
    pub fn new(bytes: usize) -> Self {
        assert!([64, 128, 256, 512].contains(&W), "a datapath of {W} bits");
        assert!(bytes.is_power_of_two() && bytes >= W && bytes <= 1 << 20, "a buffer of {bytes} bytes");
        // Frames whose meta data may wait.
        let waiting = (bytes >> 11).clamp(16, 64);
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
            req: Default::default(),
            req_valid: Default::default(),
            gids: Gids::new(turns(W)),
            filter: RawFilter::new(turns(W)),
            valid: Default::default(),
            data: Default::default(),
            bytes: Default::default(),
            last: Default::default(),
            error: Default::default(),
            number: Default::default(),
            position: Default::default(),
            over: Default::default(),
            row: Default::default(),
            start: Default::default(),
            rows: Default::default(),
            lost: Default::default(),
            window: Default::default(),
            ended: Default::default(),
            arrival: Default::default(),
            parser: Parser::new(turns(W)),
            beat_valid: Default::default(),
            beat: Default::default(),
            place: Default::default(),
            live: Default::default(),
            first: Default::default(),
            masked: Default::default(),
            crc: Default::default(),
            closing: Default::default(),
            pad: Default::default(),
            want: Default::default(),
            plain: Default::default(),
            sum_valid: Default::default(),
            sum_first: Default::default(),
            words: Default::default(),
            beat_sum: Default::default(),
            frame_sum: Default::default(),
            folded: Default::default(),
            was_good: Default::default(),
            was_summed: Default::default(),
            found_valid: Default::default(),
            found: Default::default(),
            front_valid: Default::default(),
            front: Default::default(),
            pass: Default::default(),
            fifo: if is_direct(W) { Passage::new(waiting) } else { Passage::lasting(waiting) },
            used: Default::default(),
            owned: Default::default(),
            holes: Default::default(),
            many: Default::default(),
            idle: Default::default(),
            taken: Default::default(),
            freed_now: Default::default(),
            gone: Default::default(),
            has_room: Default::default(),
            counts: Default::default(),
            _rows: Hidden(bytes / (W / 8)),
            _waiting: Hidden(waiting),
        }
    }
}

/// What the length field of an IP packet does not count of the bytes from its own beat on: `kind` as for [`first_address`].
fn before_length(width: usize, kind: usize) -> i64 {
    let known = 23 * 8 / width * width / 8;
    [14, 18][kind & 1] + [0, 40][kind >> 1] - known as i64
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
        regs!(self, clock, rst, req_valid, valid, number, position, over, row, start, rows, lost, ended);
        regs!(self, clock, rst, beat_valid, live, closing, sum_valid, found_valid, used, owned, holes, many, idle);
        regs!(self, clock, rst, was_good, was_summed, front_valid, pass, taken, freed_now, gone, has_room, counts);
        dff_setup!(self, clock, req, data, bytes, last, error, arrival, beat, place, first, masked);
        dff_setup!(self, clock, pad, want, plain, sum_first, words, beat_sum, frame_sum, folded, found, front);
        clock_reset!(self, clock, rst, window, parser, gids, filter, crc, fifo);
        let log = elab!(self._rows.0.trailing_zeros() as usize);
        let row_mask: Bits<20> = elab!(bits::<20>(self._rows.0 as u64 - 1));
        let most: Bits<20> = elab!(bits::<20>(2 * self._rows.0 as u64 - 1)); // of a number of rows
        let direct = elab!(is_direct(W));

        // Table bus. A row that changes while a frame passes counts for it or not.
        let req = self.req.q.val();
        let is_gid = req.table == id::GID as u64;
        self.req_valid.d.next = self.table.valid.val();
        if self.table.valid.val() {
            self.req.d.next = self.table.req.val();
        }
        self.gids.table.next = req;
        self.gids.table_valid.next = self.req_valid.q.val() && is_gid;
        self.filter.table.next = req;
        self.filter.table_valid.next = self.req_valid.q.val() && !is_gid;
        self.table.ready.next = true;
        self.table.rdata.next = 0.into();
        self.table.rvalid.next = false;

        // Take a beat.
        self.mac.ready.next = true;
        self.valid.d.next = self.mac.valid.val();
        if self.mac.valid.val() {
            self.data.d.next = self.mac.data.val();
            self.bytes.d.next = self.mac.bytes.val();
            self.last.d.next = self.mac.last.val();
            self.error.d.next = self.mac_error.val();
        }

        // Store it, sort its headers, and find out where its IP packet ends.
        let valid = self.valid.q.val();
        let data = self.data.q.val();
        let last = self.last.q.val();
        let number = self.number.q.val();
        let position = self.position.q.val();
        let over = self.over.q.val();
        let full = self.used.q.val().get_bit(log);
        let lost = self.lost.q.val() || full && !over;
        let store = valid && !self.lost.q.val() && !full && !over;
        let start = if number == 0 { self.row.q.val() } else { self.start.q.val() };
        let shift = elab!((W as u64 / 8).trailing_zeros() as u64);
        let rows = self.rows.q.val() + if store { bits::<12>(1) } else { 0.into() };
        let whole_beats: Bits<14> = elab!(bits::<14>((shortest(W) / (W / 8) * (W / 8)) as u64));
        let rest: Bits<7> = elab!(bits::<7>((shortest(W) % (W / 8)) as u64));
        self.window.valid.next = valid;
        self.window.data.next = data;
        self.window.last.next = last;
        self.window.number.next = number;
        let (tagged, ip6) = (self.window.tagged.val(), self.window.ip6.val());
        self.beat_valid.d.next = valid;
        self.ended.d.next = valid && last;
        if valid {
            self.rows.d.next = if last { 0.into() } else { rows };
            self.lost.d.next = lost && !last;
            self.start.d.next = start;
            if store {
                self.row.d.next = (self.row.q.val() + 1) & row_mask;
            }
            if last {
                self.number.d.next = 0.into();
                self.position.d.next = 0.into();
                self.over.d.next = false;
                self.arrival.d.next = Arrival {
                    len: position + self.bytes.q.val().cast::<14>(),
                    buf: start << shift,
                    rows,
                    error: self.error.q.val() || over,
                    no_room: lost,
                    runt: position < whole_beats || position == whole_beats && self.bytes.q.val() < rest,
                };
            } else {
                if number != 15 {
                    self.number.d.next = number + 1;
                }
                if !over {
                    self.position.d.next = position + W as u64 / 8;
                    self.over.d.next = position == elab!(wire::MAX_FRAME as u64 - W as u64 / 8);
                }
            }

            // The length lies in the 8 bytes from byte 16 on.
            let lengths = data.get_bits::<64>(elab!(16 * 8 % W));
            let comes = number == elab!((23 * 8 / W).to_bits::<4>());
            let known = number > elab!((23 * 8 / W).to_bits::<4>());
            let mut length: Bits<18> = 0.into();
            let mut before: Bits<18> = 0.into();
            for kind in 0..4 {
                let (tag, v6) = (kind & 1 == 1, kind & 2 == 2);
                if tagged == tag && ip6 == v6 {
                    length = bswap(lengths.get_bits::<16>(32 * (kind & 1) + 16 * (kind >> 1))).cast::<18>();
                    before = elab!(bits::<18>(before_length(W, kind) as u64 & 0x3ffff));
                }
            }
            let end = length + before;
            let was = self.place.q.val();
            let mut place = Place {
                number,
                last,
                tagged,
                ip6,
                known: known || comes,
                ahead: was.ahead && was.beats.any(),
                beats: was.beats - 1,
                rest: was.rest,
            };
            if comes {
                place.ahead = !end.get_bit(17);
                place.beats = (end >> shift).get_bits::<14>(0);
                place.rest = end.get_bits::<6>(0) & (W as u64 / 8 - 1);
            }
            self.beat.d.next = data;
            self.place.d.next = place;
        }
        self.buf_we.next = store;
        self.buf_addr.next = self.row.q.val() << shift;
        self.buf_data.next = data;
        self.buf_bytes.next = (W as u64 / 8).to_bits();

        // The frame's headers are complete with its last beat.
        let headers: Headers = self.window.out.val();
        self.parser.valid.next = self.ended.q.val();
        self.parser.headers.next = headers;
        self.parser.arrived.next = self.arrival.q.val();
        let dmac = if direct { headers.dmac } else { self.parser.mac.val() };
        self.gids.dmac.next = dmac;
        self.gids.to.next = self.parser.to.val();
        self.parser.ours.next = self.gids.ours.val();
        self.parser.gid.next = self.gids.gid.val();
        self.filter.dmac.next = dmac;
        self.filter.own.next = self.gids.own.val();
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
        let whole = !place.known || place.ahead && place.beats.any();
        let live = self.beat_valid.q.val() && (whole || place.ahead && place.rest.any());
        self.live.d.next = live;
        if live {
            let all: Bits<W> = !Bits::<W>::default();
            let keep = if whole { all } else { !(all << (place.rest.cast::<10>() << 3)) };
            let beat = self.beat.q.val();
            self.masked.d.next = mask_headers(beat, place.number, place.tagged, place.ip6) & keep;
            self.plain.d.next = mask_before_addresses(beat, place.number, place.tagged, place.ip6) & keep;
            self.first.d.next = place.number == 0;
        }
        if ends {
            self.pad[0].d.next = (bits::<6>(0) - place.rest) & (W as u64 / 8 - 1);
        }
        self.pad[1].d.next = self.pad[0].q.val();
        self.want.d.next = residue::<W>(self.pad[1].q.val());
        self.crc.data.next = self.masked.q.val();
        self.crc.valid.next = self.live.q.val();
        self.crc.first.next = self.first.q.val();
        self.crc.last.next = false;
        let good = self.crc.root.val() == self.want.q.val();

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
        self.soon_valid.next = self.parser.out_valid.val() && !parsed.meta.raw && !parsed.faulty;
        let folded = self.folded.q.val();
        let summed_well = folded == 0xffff || folded == 0x1fffe || folded == 0x2fffd;
        let (was_good, was_summed) = (self.was_good.q.val(), self.was_summed.q.val());
        self.was_good.d.next = cat!(was_good.get_bits::<8>(0), good);
        self.was_summed.d.next = cat!(was_summed.get_bits::<7>(0), summed_well);
        let holds = if direct { good } else { was_good.get_bit(elab!(turns(W))) };
        let checked = !parsed.meta.raw && !parsed.faulty;
        let passes = !parsed.faulty && (parsed.meta.raw || holds && !parsed.late_fault.any());
        let mut judged = Found {
            meta: parsed.meta,
            fault: if parsed.faulty {
                parsed.fault
            } else if !holds {
                elab!(counter::RX_ICRC.to_bits())
            } else {
                parsed.late_fault
            },
            good: passes,
            summed: checked && parsed.summed,
        };
        let comes = self.parser.out_valid.val();
        if direct {
            let (waits, waited) = (self.found_valid[0].q.val(), self.found_valid[1].q.val());
            let late = waits || waited || judged.summed;
            self.found_valid[0].d.next = comes && late;
            self.found_valid[1].d.next = waits;
            if comes {
                self.found[0].d.next = judged;
            }
            if waits {
                self.found[1].d.next = self.found[0].q.val();
            }
            self.front_valid.d.next = waited || comes && !late;
            self.pass.d.next = if waited {
                self.found[1].q.val().good && (summed_well || !self.found[1].q.val().summed)
            } else {
                comes && passes && !late
            };
            if waited {
                judged = self.found[1].q.val();
                if judged.summed && !summed_well {
                    judged.fault = elab!(counter::RX_IP_CHECKSUM.to_bits());
                }
            }
        } else {
            let fails = judged.summed && !was_summed.get_bit(elab!(turns(W).saturating_sub(2)));
            if fails {
                judged.fault = elab!(counter::RX_IP_CHECKSUM.to_bits());
            }
            self.front_valid.d.next = comes;
            self.pass.d.next = comes && passes && !fails;
        }
        // So many holes no frame can name. Told here, a cycle ahead, for what takes the frame comes late.
        if self.many.q.val() {
            if judged.good {
                judged.fault = elab!(counter::RX_NO_ROOM.to_bits());
            }
            self.pass.d.next = false;
        }
        self.front.d.next = judged;

        // Hand it on, or leave a hole.
        let judged = self.front_valid.q.val();
        let passed = self.pass.q.val();
        let front = self.front.q.val();
        let found = front.meta;
        let holes = self.holes.q.val();
        // A frame of more than a few rows comes long after the one before it, so what the flag lacks is little.
        self.many.d.next = (holes >> 11).any();
        let taken = passed && self.fifo.s.ready.val();
        let rows = holes + found.rows.cast::<20>();
        let mut meta = found;
        meta.rows = rows.get_bits::<12>(0);
        self.fifo.s.data.next = meta;
        self.fifo.s.valid.next = passed;
        Source::<RxMeta>::link(&mut self.meta, &mut self.fifo.m);

        // Rows: the holes go with the next frame, or at once if none is before them.
        self.taken.d.next = taken;
        let release = self.idle.q.val() && !self.taken.q.val() && !taken;
        let kept = if release { 0.into() } else { holes };
        if taken {
            self.holes.d.next = 0.into();
        } else {
            self.holes.d.next = (kept + if judged { found.rows.cast::<20>() } else { 0.into() }) & most;
        }
        let freed = self.freed_now.q.val().cast::<20>();
        self.freed_now.d.next = self.freed.val();
        let owned = self.owned.q.val();
        self.idle.d.next = !owned.any();
        self.owned.d.next = (owned + if taken { rows } else { 0.into() } - freed) & most;
        self.gone.d.next = freed + if release { holes } else { 0.into() };
        self.used.d.next =
            (self.used.q.val() + if store { bits::<20>(1) } else { 0.into() } - self.gone.q.val()) & most;
        let used = self.used.q.val();
        let half = used.get_bit(log) || used.get_bit(log - 1);
        self.has_room.d.next = !half && self.fifo.fill.val() < elab!(self._waiting.0 as u64 / 2);
        self.room.next = self.has_room.q.val();

        let mut count: Bits<64> = 0.into();
        if judged && !taken {
            let why = if passed { elab!(counter::RX_NO_ROOM.to_bits()) } else { front.fault };
            let one: Bits<64> = 1.into();
            count = one << why;
        }
        if taken && found.ce && !found.raw {
            count = count.replace_bit(counter::RX_CE, true);
        }
        self.counts.d.next = count;
        self.count.next = self.counts.q.val();
        self.accepted.next = self.taken.q.val();
    }
}

#[cfg(test)]
mod tests;
