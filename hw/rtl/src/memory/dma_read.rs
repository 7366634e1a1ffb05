//! DMA reads: turns the requests of four clients into AXI bursts and hands the bytes back, right-aligned.
//!
//! For the transmit frames, the work queues and the mailbox. A request is cut at 512-byte boundaries (so no burst
//! crosses 4 KiB), each piece takes an AXI ID from a list of free ones and leaves its destination in a row of that
//! ID. A beat of data reads that row and how many beats of the piece came before, so pieces may come back in any
//! order and interleaved beat by beat. A piece's first beat may begin in the middle of the bus: it is shifted down to
//! lane 0; later beats begin at lane 0 anyway.
//!
//! ```text
//! request   taken | cut | AR valid (one piece a cycle, the next request behind the last one)
//! R beat    taken, row, progress | place, bytes, shift 0..7 | shift 8 x 0..7 = data, beat, data_valid
//! ```
//! Requests of different clients are served as they come; a client gives one every second cycle.
//!
//! *Drain.* Reads come back in any order, so a count of them does not tell which are back. From a `mark` on new requests are of
//! another colour, once those that waited in front of the ports have been taken; `passed` when none of the old colour is left.
//!
//! Cannot deadlock: `r_ready` is always 1, the clients take every beat (they reserved the room), and a request waits
//! only for a free ID, which a beat from the bus returns.

use super::axi::AxiReadMaster;
use crate::{
    msg::{BufAddr, DmaData, DmaRead},
    stream::{Fifo, FirstCome, Sink},
};
use abi::status::counter::DMA_ERROR;
use hdl::prelude::*;

/// Clients of [`DmaReader`], by number.
pub mod client {
    /// Payload of frames to be sent.
    pub const FRAMES: usize = 0;
    /// Send queues.
    pub const SEND_QUEUE: usize = 1;
    /// Receive queues.
    pub const RECV_QUEUE: usize = 2;
    /// Mailbox and table loader; and atomics, which go first, with [`ATOMIC`](super::ATOMIC) in their tag.
    pub const CONTROL: usize = 3;
}

/// Bit of the tags of atomics, which share a client: it rarely asks.
pub const ATOMIC: usize = 15;

/// Bytes at whose multiples requests are cut: the read request size that every PCIe host grants (PCIe 7.5.3.4).
const PIECE: usize = 512;

/// What is kept of a piece in flight, in the row of its AXI ID.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Piece {
    client: Bits<2>,
    color: Bit,
    tag: Bits<16>,
    /// Where lane 0 of the first beat belongs.
    dest: BufAddr,
    /// Bytes before the piece in its first beat, and these with its own.
    offset: Bits<6>,
    end: Bits<10>,
}

/// What a request says that does not change while it is cut.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Asked {
    client: Bits<2>,
    tag: Bits<16>,
    color: Bit,
}

/// Bytes of a request that were not asked for.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Rest {
    iova: Bits<64>,
    len: Bits<14>,
    dest: BufAddr,
    /// They are one piece.
    whole: Bit,
}

/// An AR message.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Address {
    iova: Bits<64>,
    len: Bits<8>,
    id: Bits<8>,
}

/// How far a piece in flight has come.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Progress {
    begun: Bit,
    beats: Bits<6>,
    error: Bit,
}

/// A beat on its way to lane 0.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Place {
    client: Bits<2>,
    shift: Bits<6>,
    data: DmaData,
}

/// DMA reads over an AXI bus of `W` bits.
#[derive(LogicBlock)]
pub struct DmaReader<const W: usize> {
    pub clock: Signal<In, Clock>,
    /// Only while `idle`: the bus would answer into nothing.
    pub rst: Signal<In, Bit>,
    /// Requests, by client.
    pub req: Arr<Sink<DmaRead>, 4>,
    /// The bus.
    pub axi: AxiReadMaster<W>,
    /// What has come: for the client whose `data_valid` is up.
    pub data: Signal<Out, DmaData>,
    /// Its bytes, from lane 0 on.
    pub beat: Signal<Out, Bits<W>>,
    /// One bit per client, at most one of them up; the client takes it in this cycle.
    pub data_valid: Arr<Signal<Out, Bit>, 4>,
    /// Starts no more bursts.
    pub quiesce: Signal<In, Bit>,
    /// Nothing is in flight on the bus or behind it.
    pub idle: Signal<Out, Bit>,
    /// A drain begins, in this cycle; not before the last one has passed.
    pub mark: Signal<In, Bit>,
    /// All that was asked for up to the last mark is back.
    pub passed: Signal<Out, Bit>,
    /// `DMA_ERROR`, once for a piece.
    pub count: Signal<Out, Bits<64>>,

    turns: FirstCome<4>,
    asked: Arr<DFF<Asked>, 4>,
    /// Requests as they came.
    held: Arr<DFF<Rest>, 4>,
    /// The rest of the one that is being cut: it makes room for its client's next one with its first piece.
    begun: Reg<Bit>,
    rest_asked: DFF<Asked>,
    rest: DFF<Rest>,
    ar_valid: Reg<Bit>,
    ar: DFF<Address>,

    free: Fifo<Bits<8>>,
    /// IDs put into the list since reset, and whether some are missing.
    filled: Reg<Bits<8>>,
    filling: Reg<Bit>,
    /// Bursts may start.
    open: Reg<Bit>,
    /// In flight, by colour.
    colors: Arr<Reg<Bits<8>>, 2>,
    color: Reg<Bit>,
    /// Requests that are held and of the old colour.
    late: Reg<Bits<4>>,
    marking: Reg<Bit>,
    /// Clients whose request waited at the mark.
    waiting: Reg<Bits<4>>,
    /// By ID, both read in the cycle of the beat.
    pieces: Ram<Piece, 7>,
    progress: Ram<Progress, 7>,

    valid: [Reg<Bit>; 2],
    raw: [DFF<Bits<W>>; 2],
    id: DFF<Bits<8>>,
    bad: DFF<Bit>,
    tail: DFF<Bit>,
    piece: DFF<Piece>,
    read: DFF<Progress>,
    /// The beat before is of the same piece: its progress was not in the RAM yet.
    same: DFF<Bit>,
    after: DFF<Progress>,
    place: DFF<Place>,
    out_valid: Arr<Reg<Bit>, 4>,
    out: DFF<DmaData>,
    out_beat: DFF<Bits<W>>,
    failed: Reg<Bit>,
    _ids: Hidden<usize>,
}

impl<const W: usize> DmaReader<W> {
    /// A reader with at most `ids` (up to 128) bursts in flight.
    pub fn new(ids: usize) -> Self {
        assert!((1..=128).contains(&ids) && W.is_power_of_two() && (64..=512).contains(&W));
        Self {
            clock: Default::default(),
            rst: Default::default(),
            req: Default::default(),
            axi: Default::default(),
            data: Default::default(),
            beat: Default::default(),
            data_valid: Default::default(),
            quiesce: Default::default(),
            idle: Default::default(),
            mark: Default::default(),
            passed: Default::default(),
            count: Default::default(),
            turns: Default::default(),
            asked: Default::default(),
            held: Default::default(),
            begun: Default::default(),
            rest_asked: Default::default(),
            rest: Default::default(),
            ar_valid: Default::default(),
            ar: Default::default(),
            free: Fifo::new(ids),
            filled: Default::default(),
            filling: Reg::with_reset(true),
            open: Default::default(),
            colors: Default::default(),
            color: Default::default(),
            late: Default::default(),
            marking: Default::default(),
            waiting: Default::default(),
            pieces: Ram::default().rows(ids.next_power_of_two().max(2)).style("distributed").at_once(),
            progress: Ram::default().rows(ids.next_power_of_two().max(2)).style("distributed").at_once(),
            valid: Default::default(),
            raw: Default::default(),
            id: Default::default(),
            bad: Default::default(),
            tail: Default::default(),
            piece: Default::default(),
            read: Default::default(),
            same: Default::default(),
            after: Default::default(),
            place: Default::default(),
            out_valid: Default::default(),
            out: Default::default(),
            out_beat: Default::default(),
            failed: Default::default(),
            _ids: Hidden(ids),
        }
    }
}

impl<const W: usize> Logic for DmaReader<W> {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, begun, ar_valid, filled, filling, open, valid, out_valid, failed);
        regs!(self, clock, rst, colors, color, late, marking, waiting);
        dff_setup!(
            self, clock, asked, held, rest_asked, rest, ar, raw, id, bad, tail, piece, read, same, after, place, out,
            out_beat
        );
        clock_reset!(self, clock, rst, turns, free);
        clock!(self, clock, pieces, progress);
        let filling = self.filling.q.val();
        let (ready, turn) = (self.turns.ready.val(), self.turns.turn.val());

        // Requests come into the register of their client.
        let color = self.color.q.val();
        let mut offers: Bits<4> = 0.into();
        let mut waiting = self.waiting.q.val();
        let mut asked = self.asked[0].q.val();
        let mut rest = self.held[0].q.val();
        for i in 0..4 {
            let valid = self.req[i].valid.val();
            let new = self.req[i].data.val();
            // Place of its last byte, seen from where its first piece begins.
            let last_at = new.len.cast::<15>() + new.iova.get_bits::<9>(0).cast::<15>() - 1;
            offers = offers.replace_bit(i, valid);
            self.req[i].ready.next = ready.get_bit(i);
            let taken = valid && ready.get_bit(i);
            if taken {
                self.asked[i].d.next = Asked { client: i.to_bits(), tag: new.tag, color: color };
                self.held[i].d.next =
                    Rest { iova: new.iova, len: new.len, dest: new.dest, whole: !last_at.get_bits::<6>(9).any() };
            }
            if self.mark.val() {
                waiting = waiting.replace_bit(i, valid && !taken);
            } else if taken {
                waiting = waiting.replace_bit(i, false);
            }
            if i > 0 {
                if turn.get_bit(i) {
                    asked = self.asked[i].q.val();
                    rest = self.held[i].q.val();
                }
            }
        }
        self.turns.offers.next = offers;
        self.turns.more.next = 0.into();

        // Cut what is left of one, else the one whose turn it is; a piece goes to the bus with a free ID.
        let begun = self.begun.q.val();
        if begun {
            asked = self.rest_asked.q.val();
            rest = self.rest.q.val();
        }
        let offset = rest.iova.get_bits::<6>(0) & bits::<6>((W / 8 - 1) as u64);
        let upto: Bits<9> = !rest.iova.get_bits::<9>(0); // bytes behind the first one up to the next cut
        let room: Bits<14> = upto.cast::<14>() + 1;
        // What is cut ends 512 bytes behind where its first piece began: no sum is needed for it.
        let lane: u64 = elab!((W / 8).trailing_zeros() as u64);
        let sum: Bits<10> = offset.cast::<10>() + rest.len.get_bits::<10>(0);
        let sum_beats: Bits<10> = (offset.cast::<10>() + rest.len.get_bits::<10>(0) - 1) >> lane;
        let cut_beats: Bits<10> = upto.cast::<10>() >> lane;
        let end = if rest.whole { sum } else { (cut_beats + 1) << lane };
        let beats = if rest.whole { sum_beats } else { cut_beats };
        self.open.d.next = !filling && !self.quiesce.val();
        let ar_free = !self.ar_valid.q.val() || self.axi.ar_ready.val();
        let may = self.open.q.val() && self.free.m.valid.val() && ar_free;
        let go = may && (begun || self.turns.valid.val());
        let leaves = may && !begun && self.turns.valid.val();
        let id = self.free.m.data.val();
        self.turns.leaves.next = may && !begun;
        self.free.m.ready.next = go;
        self.pieces.we.next = go;
        self.pieces.waddr.next = id.get_bits::<7>(0);
        self.pieces.wdata.next = Piece {
            client: asked.client,
            color: asked.color,
            tag: asked.tag,
            dest: rest.dest - offset.cast::<20>(),
            offset: offset,
            end: end,
        };
        if self.axi.ar_ready.val() {
            self.ar_valid.d.next = false;
        }
        if go {
            self.ar_valid.d.next = true;
            self.ar.d.next = Address { iova: rest.iova, len: beats.cast::<8>(), id: id };
            let left = rest.len - room;
            self.begun.d.next = !rest.whole;
            self.rest_asked.d.next = asked;
            self.rest.d.next = Rest {
                iova: (rest.iova & !bits::<64>(PIECE as u64 - 1)) + bits::<64>(PIECE as u64),
                len: left,
                dest: rest.dest + room.cast::<20>(),
                whole: left <= bits::<14>(PIECE as u64),
            };
        }
        let address = self.ar.q.val();
        self.axi.ar_valid.next = self.ar_valid.q.val();
        self.axi.ar_addr.next = address.iova;
        self.axi.ar_len.next = address.len;
        self.axi.ar_id.next = address.id;

        // The colour changes when what waited at the mark has been taken; what is held then is late.
        let mut late = self.late.q.val();
        if leaves {
            late &= !turn;
        }
        self.waiting.d.next = waiting;
        if self.mark.val() {
            self.marking.d.next = true;
        } else if self.marking.q.val() && !self.waiting.q.val().any() {
            self.marking.d.next = false;
            self.color.d.next = !color;
            let mut held = (!ready) | offers;
            if leaves {
                held &= !turn;
            }
            late = held;
        }
        self.late.d.next = late;

        // A beat: read the rows of its ID.
        self.axi.r_ready.next = true;
        let came = self.axi.r_valid.val();
        let rid = self.axi.r_id.val();
        let here = self.valid[0].q.val();
        self.pieces.re.next = true;
        self.pieces.raddr.next = rid.get_bits::<7>(0);
        self.progress.re.next = true;
        self.progress.raddr.next = rid.get_bits::<7>(0);
        self.valid[0].d.next = came;
        if came {
            self.raw[0].d.next = self.axi.r_data.val();
            self.id.d.next = rid;
            self.bad.d.next = self.axi.r_resp.val() != 0;
            self.tail.d.next = self.axi.r_last.val();
            self.piece.d.next = self.pieces.rdata.val();
            self.read.d.next = self.progress.rdata.val();
            self.same.d.next = here && self.id.q.val() == rid;
        }

        // Where it goes.
        let rid = self.id.q.val();
        let piece = self.piece.q.val();
        let progress = if self.same.q.val() { self.after.q.val() } else { self.read.q.val() };
        let last = self.tail.q.val();
        let error = progress.error || self.bad.q.val();
        let base = progress.beats.cast::<20>() << elab!((W / 8).trailing_zeros() as u64);
        let end_beat: Bits<10> = piece.end >> elab!((W / 8).trailing_zeros() as u64);
        let full = end_beat.get_bits::<7>(0) != progress.beats.cast::<7>();
        let odd = piece.end.get_bits::<7>(0) & bits::<7>((W / 8 - 1) as u64);
        let upto: Bits<7> = if full { bits::<7>((W / 8) as u64) } else { odd };
        let skip: Bits<6> = if progress.begun { 0.into() } else { piece.offset };
        self.valid[1].d.next = here;
        if here {
            self.raw[1].d.next = self.raw[0].q.val() >> cat!(6; skip.get_bits::<3>(0), bits::<3>(0));
            self.place.d.next.client = piece.client;
            self.place.d.next.shift = skip;
            self.place.d.next.data = DmaData {
                tag: piece.tag,
                dest: piece.dest + (base | skip.cast::<20>()),
                bytes: upto - skip.cast::<7>(),
                error: self.bad.q.val(),
            };
        }
        let after =
            Progress { begun: !last, beats: if last { 0.into() } else { progress.beats + 1 }, error: !last && error };
        if here {
            self.after.d.next = after;
        }
        self.failed.d.next = here && last && error;
        let none = Progress { begun: false, beats: 0.into(), error: false };
        self.progress.we.next = here || filling;
        self.progress.waddr.next = if filling { self.filled.q.val().get_bits::<7>(0) } else { rid.get_bits::<7>(0) };
        self.progress.wdata.next = if filling { none } else { after };

        // The ID is free again with its last beat; after reset all are.
        self.free.s.valid.next = filling || (here && last);
        self.free.s.data.next = if filling { self.filled.q.val() } else { rid };
        if filling {
            self.filled.d.next = self.filled.q.val() + 1;
            self.filling.d.next = self.filled.q.val() != bits::<8>(self._ids.0 as u64 - 1);
        }

        for i in 0..2 {
            let begins = go && asked.color == (i == 1);
            let ends = here && last && piece.color == (i == 1);
            if begins && !ends {
                self.colors[i].d.next = self.colors[i].q.val() + 1;
            } else if ends && !begins {
                self.colors[i].d.next = self.colors[i].q.val() - 1;
            }
        }
        let old = if color { self.colors[0].q.val() } else { self.colors[1].q.val() };
        let rest_late = begun && self.rest_asked.q.val().color != color;
        self.passed.next = !self.marking.q.val() && !old.any() && !self.late.q.val().any() && !rest_late;

        // Down to lane 0: the second of two steps.
        let place = self.place.q.val();
        if self.valid[1].q.val() {
            self.out.d.next = place.data;
            self.out_beat.d.next = self.raw[1].q.val() >> cat!(9; place.shift.get_bits::<3>(3), bits::<6>(0));
        }
        for i in 0..4 {
            self.out_valid[i].d.next = self.valid[1].q.val() && place.client == i.to_bits::<2>();
            self.data_valid[i].next = self.out_valid[i].q.val();
        }
        self.data.next = self.out.q.val();
        self.beat.next = self.out_beat.q.val();

        let behind = self.valid[0].q.val() || self.valid[1].q.val();
        let flying = self.colors[0].q.val().any() || self.colors[1].q.val().any();
        self.idle.next = !flying && !behind;
        self.count.next = if self.failed.q.val() { bits::<64>(1 << DMA_ERROR) } else { 0.into() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::host::{AxiReads, content, fields};
    use rand::RngExt;

    use std::collections::HashMap;
    use verilate::{
        Model, Options,
        bench::{self, Actor, Source, Stall},
        scale,
    };

    /// Widths of the fields of `DmaData`.
    const DATA: [usize; 4] = [16, 20, 7, 1];

    struct Asked {
        iova: u64,
        dest: u64,
        got: Vec<bool>,
    }

    /// The four clients: every byte of every request must come once, where it belongs.
    struct Clients {
        asked: Vec<HashMap<u64, Asked>>,
        errors: u64,
        failed: u64,
        bytes: u64,
        beats: u64,
        first: u64,
    }
    impl Actor for Clients {
        fn drive(&mut self, _: &mut Model) {}
        fn observe(&mut self, m: &Model) {
            self.failed += m.get("count") >> DMA_ERROR & 1;
            let hot: Vec<usize> = (0..4).filter(|i| m.bit(format!("data_valid[{i}]").as_str())).collect();
            assert!(hot.len() <= 1);
            let Some(client) = hot.first() else { return };
            if self.first == 0 {
                self.first = m.cycle();
            }
            let data = fields(m.bytes("data"), &DATA);
            let asked = self.asked[*client].get_mut(&data[0]).expect("data of a request that is not in flight");
            let at = (data[1].wrapping_sub(asked.dest) & 0xf_ffff) as usize;
            let beat = m.bytes("beat").to_vec();
            assert!(data[2] >= 1 && data[2] as usize <= beat.len());
            for (i, byte) in beat.iter().enumerate().take(data[2] as usize) {
                assert!(!std::mem::replace(&mut asked.got[at + i], true), "byte {} came twice", at + i);
                if data[3] == 0 {
                    assert_eq!(*byte, content(asked.iova + (at + i) as u64), "byte {} of {:#x}", at + i, asked.iova);
                }
            }
            self.errors += data[3];
            self.bytes += data[2];
            self.beats += 1;
            if asked.got.iter().all(|x| *x) {
                self.asked[*client].remove(&data[0]);
            }
        }
        fn done(&self) -> bool {
            self.asked.iter().all(HashMap::is_empty)
        }
        fn status(&self) -> String {
            format!("clients miss {:?} requests", self.asked.iter().map(HashMap::len).collect::<Vec<_>>())
        }
    }

    fn clients() -> Clients {
        let asked = (0..4).map(|_| HashMap::new()).collect();
        Clients { asked, errors: 0, failed: 0, bytes: 0, beats: 0, first: 0 }
    }

    fn ask(s: &mut [Source], c: &mut Clients, client: usize, tag: u64, iova: u64, len: u64, dest: u64) {
        let (to, len14) = (bits::<20>(dest), bits::<14>(len));
        s[client].send(DmaRead { iova: bits(iova), len: len14, tag: bits(tag), dest: to });
        let asked = Asked { iova, dest, got: vec![false; len as usize] };
        assert!(c.asked[client].insert(tag, asked).is_none());
    }

    fn run(m: &mut Model, s: &mut [Source], host: &mut AxiReads, c: &mut Clients, limit: u64) {
        let mut actors: Vec<&mut dyn Actor> = s.iter_mut().map(|s| s as &mut dyn Actor).collect();
        actors.push(host);
        actors.push(c);
        bench::run(m, &mut actors, limit);
        assert!(m.bit("idle"));
    }

    fn random<const W: usize>(ids: usize) {
        let mut m = Model::of(move || DmaReader::<W>::new(ids), Options::default()).unwrap();
        for seed in 0..scale(4) as u64 {
            println!("W={W} ids={ids} seed {seed}");
            let mut rng = verilate::rng(seed);
            m.reset();
            let mut s: Vec<_> =
                (0..4).map(|i| Source::new(&m, &format!("req[{i}]"), Stall::Random, seed * 10 + i)).collect();
            let mut host = AxiReads::new(&m, "axi", seed, 600, if seed % 2 == 0 { 0.0 } else { 0.02 });
            let mut c = clients();
            for tag in 0..300u64 {
                let client = rng.random_range(0..4);
                let len = match rng.random_range(0..4) {
                    0 => 4096,
                    1 => rng.random_range(1..=64),
                    2 => 64 * rng.random_range(1..=4),
                    _ => rng.random_range(1..=4096),
                };
                let iova = match rng.random_range(0..3) {
                    0 => rng.random::<u64>() >> 1 & !63,
                    1 => (rng.random::<u64>() >> 1 | 0xfff) - rng.random_range(0..100),
                    _ => rng.random::<u64>() >> 1,
                };
                ask(&mut s, &mut c, client, tag, iova, len, rng.random_range(0..1 << 20));
            }
            run(&mut m, &mut s, &mut host, &mut c, 2_000_000);
            assert_eq!((c.errors, c.failed), (host.error_beats, host.error_bursts));
        }
    }

    #[test]
    fn every_byte_comes_once_at_512_bits() {
        random::<512>(128);
    }

    #[test]
    fn every_byte_comes_once_at_128_and_256_bits() {
        random::<128>(16);
        random::<256>(64);
    }

    #[test]
    fn every_byte_comes_once_at_64_bits_with_few_ids() {
        random::<64>(5);
    }

    #[test]
    fn all_alignments_and_lengths() {
        let mut m = Model::of(|| DmaReader::<512>::new(128), Options::default()).unwrap();
        m.reset();
        let mut s: Vec<_> = (0..4).map(|i| Source::new(&m, &format!("req[{i}]"), Stall::Never, i)).collect();
        let mut host = AxiReads::new(&m, "axi", 1, 20, 0.0);
        let mut c = clients();
        let mut tag = 0;
        for offset in 0..64u64 {
            for len in 1..=200 {
                ask(
                    &mut s,
                    &mut c,
                    (tag % 4) as usize,
                    tag / 4,
                    0x1000 * (tag + 1) + offset + 448 * (len & 1),
                    len,
                    tag,
                );
                tag += 1;
            }
        }
        run(&mut m, &mut s, &mut host, &mut c, 1_000_000);
    }

    #[test]
    fn full_rate_and_quiesce() {
        let mut m = Model::of(|| DmaReader::<512>::new(128), Options::default()).unwrap();
        m.reset();
        let mut s: Vec<_> = (0..4).map(|i| Source::new(&m, &format!("req[{i}]"), Stall::Never, i)).collect();
        let mut host = AxiReads::new(&m, "axi", 1, 0, 0.0);
        let mut c = clients();
        for tag in 0..100 {
            ask(&mut s, &mut c, 0, tag, tag << 13, 4096, 0);
        }
        let start = m.cycle();
        run(&mut m, &mut s, &mut host, &mut c, 100_000);
        let cycles = m.cycle() - 32 - start;
        println!("100 x 4096 bytes: {cycles} cycles, first data after {}", c.first - start);
        assert!(cycles < 6_600);
        for tag in 0..1000 {
            ask(&mut s, &mut c, (tag % 4) as usize, tag, tag << 13, 64, 0);
        }
        let start = m.cycle();
        run(&mut m, &mut s, &mut host, &mut c, 100_000);
        let cycles = m.cycle() - 32 - start;
        println!("1000 x 64 bytes: {cycles} cycles");
        assert!(cycles < 1_200);

        m.set("quiesce", 1);
        ask(&mut s, &mut c, 0, 1, 0, 4096, 0);
        for _ in 0..100 {
            let mut actors: Vec<&mut dyn Actor> = s.iter_mut().map(|s| s as &mut dyn Actor).collect();
            actors.push(&mut host);
            bench::cycle(&mut m, &mut actors);
            assert!(!m.bit("axi.ar_valid") && m.bit("idle"));
        }
        m.set("quiesce", 0);
        run(&mut m, &mut s, &mut host, &mut c, 1_000);
    }

    /// Reads come back in any order; a drain waits for those of before its mark, and for no others.
    #[test]
    fn a_mark_is_passed_when_the_reads_of_before_are_back() {
        let mut rng = verilate::rng(77);
        let mut m = Model::of(|| DmaReader::<64>::new(8), Options::default()).unwrap();
        m.reset();
        let mut serial = 0u64;
        let mut offered: [Option<u64>; 4] = [None; 4];
        let (mut taken, mut flying): (Vec<u64>, Vec<(u64, u64)>) = (vec![], vec![]);
        let mut old: Option<Vec<u64>> = None;
        let (mut passes, mut overtaken, mut patience) = (0, 0, 0);
        for cycle in 0..verilate::scale(40_000) {
            for (i, offer) in offered.iter_mut().enumerate() {
                if offer.is_none() && rng.random_bool(0.1) {
                    serial += 1;
                    *offer = Some(serial);
                    let read = DmaRead { iova: (serial << 12).into(), len: 8.into(), tag: 0.into(), dest: 0.into() };
                    m.set_bytes(&*format!("req[{i}].data"), &verilate::bits::of(read));
                }
                m.set(&*format!("req[{i}].valid"), offer.is_some() as u64);
            }
            let marks = old.is_none() && cycle > 20 && rng.random_bool(0.05);
            m.set("mark", marks as u64);
            m.set("axi.ar_ready", rng.random_bool(0.7) as u64);
            let back = (!flying.is_empty() && rng.random_bool(0.3))
                .then(|| flying.swap_remove(rng.random_range(0..flying.len())));
            m.set("axi.r_valid", back.is_some() as u64);
            m.set("axi.r_last", 1);
            m.set("axi.r_id", back.map_or(0, |b| b.1));
            m.eval();
            if let Some(before) = &mut old {
                let all_back = before.is_empty();
                if m.bit("passed") {
                    assert!(all_back, "passed with {before:?} on their way");
                    overtaken += !flying.is_empty() as u64;
                    passes += 1;
                    old = None;
                } else {
                    patience = if all_back { patience + 1 } else { 0 };
                    assert!(patience < 1000, "all are back");
                }
            }
            if let (Some(before), Some((serial, _))) = (&mut old, back) {
                before.retain(|s| *s != serial);
            }
            if marks {
                let on_way =
                    flying.iter().map(|f| f.0).chain(taken.iter().copied()).chain(offered.iter().flatten().copied());
                old = Some(on_way.collect());
                patience = 0;
            }
            if m.bit("axi.ar_valid") && m.bit("axi.ar_ready") {
                let serial = m.get("axi.ar_addr") >> 12;
                taken.retain(|t| *t != serial);
                flying.push((serial, m.get("axi.ar_id")));
            }
            for (i, offer) in offered.iter_mut().enumerate() {
                if offer.is_some() && m.bit(&*format!("req[{i}].ready")) {
                    taken.extend(offer.take());
                }
            }
            m.tick();
        }
        assert!(passes > 20 && overtaken > 5, "{passes} {overtaken}");
    }
}
