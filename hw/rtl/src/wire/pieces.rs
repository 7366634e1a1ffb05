//! Cuts what a frame reads of its host into pieces, and lets them go no faster than a link takes them: for [`frames`](super::frames).
//!
//! ```text
//! cycle     0    1    2    3    ..   12   ..   22   23
//! s         A                                       B
//! m              A0   A1   A2 (waits) A2   ..  A3         512 bytes each, from the first boundary on: two at once, then at the pace
//! ```
//! What a host sends faster than the link is a queue in the host, which stands for as long as an empty ring takes to be full; and a
//! frame that is sent again comes behind it. What is asked for at once goes stale at once: so a *skip* drops what is left of a chunk.
//!
//! A narrow datapath is slower than any host: there everything passes as it comes, and `dma_read` cuts it.
//!
//! Cannot deadlock: a piece waits for its sink and for time alone.

use crate::{
    memory::dma_read::PIECE,
    msg::Chunk,
    stream::{Sink, Source},
};
use hdl::prelude::*;

/// Log2 of the bytes of a piece.
const SHIFT: usize = PIECE.ilog2() as usize;
/// Megabytes that are asked for in a second: 104 Gb/s, a little more than the link takes and less than any host gives.
const PACE: usize = 13_000;

/// See the module.
#[derive(LogicBlock)]
pub struct Pieces<const W: usize> {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    pub s: Sink<Chunk>,
    /// `offset` is that of the chunk.
    pub m: Source<Chunk>,
    /// What is taken in this cycle is not read, nor is what is left of its chunk, which goes with it.
    pub skip: Signal<In, Bit>,
    /// A chunk is in hand.
    pub holds: Signal<Out, Bit>,
    full: Reg<Bit>,
    rest: DFF<Chunk>,
    /// Bytes of the next piece, and whether it is all that is left.
    piece: DFF<Bits<14>>,
    whole: DFF<Bit>,
    /// Bytes by which what was asked for is ahead of the pace: less than 0 with nothing to ask for. The next piece may go.
    ahead: Reg<Bits<12>>,
    may: Reg<Bit>,
    /// Bytes in a cycle.
    _pace: Hidden<u64>,
}

impl<const W: usize> Pieces<W> {
    /// For a clock of `mhz`, 10 to 1,000.
    pub fn new(mhz: usize) -> Self {
        Pieces {
            clock: Default::default(),
            rst: Default::default(),
            s: Default::default(),
            m: Default::default(),
            skip: Default::default(),
            holds: Default::default(),
            full: Default::default(),
            rest: Default::default(),
            piece: Default::default(),
            whole: Default::default(),
            ahead: Default::default(),
            may: Default::default(),
            _pace: Hidden((PACE / mhz) as u64),
        }
    }
}

impl<const W: usize> Logic for Pieces<W> {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, full, ahead, may);
        dff_setup!(self, clock, rest, piece, whole);
        if elab!(W < 512) {
            self.m.valid.next = self.s.valid.val();
            self.m.data.next = self.s.data.val();
            self.s.ready.next = self.m.ready.val();
            self.holds.next = false;
        } else {
            let full = self.full.q.val();
            let rest = self.rest.q.val();
            let piece = self.piece.q.val();
            let skip = self.skip.val();
            let ends = self.whole.q.val() || skip;
            let valid = full && (self.may.q.val() || skip);
            self.m.valid.next = valid;
            self.m.data.next = rest;
            self.m.data.next.len = piece;
            self.m.data.next.last = rest.last && ends;
            self.s.ready.next = !full;
            self.holds.next = full;
            let new = self.s.data.val();
            let goes = valid && self.m.ready.val();
            if !full {
                let room: Bits<14> = bits::<14>(PIECE as u64) - new.iova.get_bits::<SHIFT>(0).cast::<14>();
                let whole = new.len <= room || new.refused;
                self.full.d.next = self.s.valid.val();
                self.rest.d.next = new;
                self.piece.d.next = if whole { new.len } else { room };
                self.whole.d.next = whole;
            } else if goes {
                let left = rest.len - piece;
                let whole = left <= bits::<14>(PIECE as u64);
                self.full.d.next = !ends;
                self.rest.d.next.iova = ((rest.iova >> elab!(SHIFT as u64)) + 1) << elab!(SHIFT as u64);
                self.rest.d.next.len = left;
                self.piece.d.next = if whole { left } else { bits::<14>(PIECE as u64) };
                self.whole.d.next = whole;
            }
            let ahead = self.ahead.q.val();
            let idle = ahead.get_bit(11);
            let paced: Bits<12> = if idle { 0.into() } else { elab!(bits::<12>(self._pace.0)) };
            let asked: Bits<12> = if goes && !skip && !rest.refused { piece.get_bits::<12>(0) } else { 0.into() };
            self.ahead.d.next = (ahead - paced) + asked;
            self.may.d.next = idle || !(ahead >> elab!(SHIFT as u64)).any();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::kit::{bytes_of, options};
    use rand::RngExt;
    use std::collections::VecDeque;
    use verilate::Model;

    fn chunk(iova: u64, len: u64, last: bool, refused: bool) -> Chunk {
        Chunk { iova: bits(iova), len: bits(len), last, refused, ..Default::default() }
    }

    /// Random chunks, stalls and skips: every byte is asked for once and in order, no piece crosses a boundary, and what is
    /// skipped is not asked for.
    #[test]
    fn a_chunk_goes_in_pieces_and_ends_with_the_one_that_is_skipped() {
        let mut m = Model::of(|| Pieces::<512>::new(250), options()).unwrap();
        m.reset();
        let mut rng = verilate::rng(11);
        let mut wanted: VecDeque<(u64, u64, bool, bool)> = VecDeque::new();
        let (mut next, mut skips, mut pieces) = (None, 0, 0);
        for _ in 0..verilate::scale(40_000) {
            let (iova, len) = (rng.random::<u64>() >> 8, rng.random_range(1..=4096));
            let new = next.get_or_insert((iova, len, rng.random(), rng.random_bool(0.1)));
            m.set("s.valid", rng.random_bool(0.8).into());
            m.set_bytes("s.data", &bytes_of(chunk(new.0, new.1, new.2, new.3)));
            m.set("m.ready", rng.random_bool(0.7).into());
            let skip = rng.random_bool(0.05);
            m.set("skip", skip.into());
            m.eval();
            assert_eq!(m.bit("holds"), !wanted.is_empty());
            if m.bit("m.valid") && m.bit("m.ready") {
                let (iova, len, last, refused) = wanted.pop_front().expect("a piece of nothing");
                let data = m.bytes("m.data").to_vec();
                let room = if refused { len } else { len.min(512 - iova % 512) };
                let ends = skip || room == len;
                assert_eq!(data, bytes_of(chunk(iova, room, last && ends, refused)));
                if !ends {
                    wanted.push_front((iova + room, len - room, last, refused));
                }
                skips += u32::from(skip && room < len);
                pieces += 1;
            }
            if m.bit("s.valid") && m.bit("s.ready") {
                wanted.push_back(next.take().expect("it was offered"));
            }
            m.tick();
        }
        assert!(skips > 20 && pieces > 3_000, "{skips} of {pieces}");
    }

    /// However fast they are taken, pieces go at the pace: two or three at once, then as many bytes as a link takes; small ones as they come.
    #[test]
    fn pieces_go_no_faster_than_a_link_takes_them() {
        // At 322 MHz 40 bytes in a cycle are as many in a second as 52 at 250.
        for (mhz, len, least, most) in
            [(250, 4096, 51.0, 52.5), (250, 1024, 51.0, 52.5), (250, 64, 30.0, 32.0), (322, 4096, 39.0, 40.5)]
        {
            let mut m = Model::of(|| Pieces::<512>::new(mhz), options()).unwrap();
            m.reset();
            m.set("s.valid", 1);
            m.set("m.ready", 1);
            m.set_bytes("s.data", &bytes_of(chunk(0x10_0000, len, true, false)));
            let (mut bytes, cycles) = (0, 4_000);
            for cycle in 0..cycles {
                m.eval();
                if m.bit("m.valid") {
                    bytes += len.min(512);
                    assert!(bytes <= 1536 + 13_000 / mhz as u64 * cycle, "{bytes} bytes in cycle {cycle}");
                }
                m.tick();
            }
            let rate = bytes as f64 / cycles as f64;
            assert!((least..=most).contains(&rate), "{rate} bytes a cycle");
        }
    }
}
