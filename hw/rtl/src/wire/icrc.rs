//! The invariant CRC of RoCE v2 (IBTA annex A17.3; CRC-32 of Ethernet), W bits per cycle, for ingress and egress.
//!
//! It covers 8 bytes of ones in place of a routing header, then everything from the IP header on, with the fields that
//! routers may change read as ones. Three tricks make that fit a datapath whose beats begin with the Ethernet header:
//! the CRC of zeros from state 0 is 0, so the L2 bytes are zeroed and the CRC starts at 0; a start state is the same
//! as an XOR to the first 4 bytes, so the state after the 8 bytes of ones goes onto the first 4 IP bytes; and zeros
//! behind a partial last beat are undone, by a table of residues (check) or by inverse networks (generation).
//!
//! A fourth makes the loop through the state two levels of logic. States are polynomials over GF(2) modulo the CRC's, so a
//! field of 2^32 elements, where a bit multiplies by x and a beat by x^W. W is a power of two, so to raise to W is linear,
//! and (x r)^W = x^W r^W: if r is the W-th root of the state, a beat moves r as a bit moves the state. [`Crc`] holds the
//! root; the networks before and behind it are linear anyway and include the change.
//!
//! ```text
//! cycle       0     1     2     3       Crc: a beat a cycle, frames back to back
//! data        B0    B1
//! fold              f0    f1            64 or 128 to 32 bits, of each part of a beat
//! root                    r0    r1      a step and the folds
//! done                          1
//! ```
//! No handshakes, so nothing here can wait.

use hdl::prelude::*;

/// State of the CRC after the 8 bytes of ones.
pub const START: u32 = 0xdebb_20e3;
/// State of the CRC after a frame with its ICRC.
const RESIDUE: u32 = 0xdebb_20e3;
const POLYNOMIAL: u32 = 0xedb8_8320;

/// Bits of a beat that are folded together: as many as few levels of logic can.
const PART: usize = 64;

/// Cycles from a beat to the state behind it.
pub const CRC_LATENCY: usize = 2;
/// Cycles from a frame's last beat to its ICRC in a [`Generator`].
pub const GENERATOR_LATENCY: usize = 5;

/// The state after a zero bit.
fn step(state: u32) -> u32 {
    (state >> 1) ^ if state & 1 == 1 { POLYNOMIAL } else { 0 }
}

/// The state after `bytes` zero bytes.
pub fn forward(state: u32, bytes: usize) -> u32 {
    (0..bytes * 8).fold(state, |s, _| step(s))
}

/// The state before `bytes` zero bytes.
pub fn backward(state: u32, bytes: usize) -> u32 {
    (0..bytes * 8).fold(state, |s, _| ((s ^ if s >> 31 == 1 { POLYNOMIAL } else { 0 }) << 1) | s >> 31)
}

/// The map of a state to its power of 2^n, by columns. State bit 31 stands for 1, bit 31 - i for x^i.
fn power(n: u32) -> [u32; 32] {
    let square = std::array::from_fn(|bit| (0..2 * (31 - bit)).fold(1 << 31, |x, _| step(x)));
    (0..n).fold(std::array::from_fn(|bit| 1 << bit), |map, _| map.map(|state| apply(&square, state)))
}

fn apply(map: &[u32; 32], state: u32) -> u32 {
    (0..32).filter(|bit| state >> bit & 1 == 1).fold(0, |sum, bit| sum ^ map[bit])
}

/// The map of a root to the state whose W-th root it is.
fn of_root<const W: usize>() -> [u32; 32] {
    power(W.ilog2())
}

/// The map of a state to its W-th root: to the power of 2^32 every element of the field is itself.
fn root_of<const W: usize>() -> [u32; 32] {
    power(32 - W.ilog2())
}

/// The linear map whose column i is `columns[i]`, as one mask of input bits per output bit.
fn rows<const N: usize>(columns: &[u32]) -> Vec<Bits<N>> {
    assert_eq!(columns.len(), N);
    (0..32).map(|k| (0..N).fold(Bits::default(), |mask, i| mask.replace_bit(i, columns[i] >> k & 1 == 1))).collect()
}

/// The map of a state by `f`.
fn state_rows(f: impl Fn(u32) -> u32) -> Vec<Bits<32>> {
    rows(&(0..32).map(|i| f(1 << i)).collect::<Vec<_>>())
}

/// What a beat of W bits adds to the root behind it. Data bit i acts as state bit 0 with W-i bits to go.
fn beat_rows<const W: usize>() -> Vec<Bits<W>> {
    let (root, mut columns, mut state) = (root_of::<W>(), vec![0; W], 1);
    for column in columns.iter_mut().rev() {
        state = step(state);
        *column = apply(&root, state);
    }
    rows(&columns)
}

/// Part `i` of a beat.
fn part_of<const W: usize>(beat: Bits<W>, i: usize) -> Bits<PART> {
    (0..PART).fold(Bits::default(), |part, j| part.replace_bit(j, beat.get_bit(PART * i + j)))
}

/// Parts that are folded into one register: as many as leave the second cycle, the loop through the root, few to add.
fn parts_together(width: usize) -> usize {
    if width >= 4 * PART { 2 } else { 1 }
}

/// CRC-32 over beats, from state 0. The caller zeroes the bytes that do not count.
#[derive(Clone, Debug, LogicBlock)]
pub struct Crc<const W: usize> {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    pub data: Signal<In, Bits<W>>,
    pub valid: Signal<In, Bit>,
    /// Starts at state 0.
    pub first: Signal<In, Bit>,
    /// `done` comes `CRC_LATENCY` cycles later.
    pub last: Signal<In, Bit>,
    /// W-th root of the state after the last beat; stays until the next beat has passed.
    pub root: Signal<Out, Bits<32>>,
    pub done: Signal<Out, Bit>,
    /// Of each part of the beat, or two of them; they add up.
    fold: [DFF<Bits<32>>; 4],
    fold_valid: Reg<Bit>,
    fold_first: DFF<Bit>,
    fold_last: DFF<Bit>,
    sum: DFF<Bits<32>>,
    sum_last: Reg<Bit>,
    _beat: Hidden<Vec<Bits<W>>>,
    _step: Hidden<Vec<Bits<32>>>,
}

impl<const W: usize> Default for Crc<W> {
    fn default() -> Self {
        Crc {
            clock: Default::default(),
            rst: Default::default(),
            data: Default::default(),
            valid: Default::default(),
            first: Default::default(),
            last: Default::default(),
            root: Default::default(),
            done: Default::default(),
            fold: Default::default(),
            fold_valid: Default::default(),
            fold_first: Default::default(),
            fold_last: Default::default(),
            sum: Default::default(),
            sum_last: Default::default(),
            _beat: Hidden(beat_rows()),
            _step: Hidden(state_rows(step)),
        }
    }
}

impl<const W: usize> Logic for Crc<W> {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, fold_valid, sum_last);
        dff_setup!(self, clock, fold, fold_first, fold_last, sum);
        self.fold_valid.d.next = self.valid.val();
        if self.valid.val() {
            for i in 0..W / PART / elab!(parts_together(W)) {
                let mut fold: Bits<32> = 0.into();
                for j in 0..elab!(parts_together(W)) {
                    let at = elab!(parts_together(W)) * i + j;
                    let part = self.data.val().get_bits::<PART>(PART * at);
                    for k in 0..32 {
                        let bit = (part & elab!(part_of(self._beat.0[k], at))).xor();
                        fold = fold.replace_bit(k, fold.get_bit(k) ^ bit);
                    }
                }
                self.fold[i].d.next = fold;
            }
            self.fold_first.d.next = self.first.val();
            self.fold_last.d.next = self.last.val();
        }
        self.sum_last.d.next = self.fold_valid.q.val() && self.fold_last.q.val();
        if self.fold_valid.q.val() {
            let mut sum: Bits<32> = 0.into();
            if !self.fold_first.q.val() {
                for k in 0..32 {
                    sum = sum.replace_bit(k, (self.sum.q.val() & elab!(self._step.0[k])).xor());
                }
            }
            for i in 0..W / PART / elab!(parts_together(W)) {
                sum ^= self.fold[i].q.val();
            }
            self.sum.d.next = sum;
        }
        self.root.next = self.sum.q.val();
        self.done.next = self.sum_last.q.val();
    }
}

/// The W-th root of the state behind a good frame with its ICRC and `pad` zero bytes.
#[hdl_fn]
pub fn residue<const W: usize>(pad: Bits<6>) -> Bits<32> {
    let mut want: Bits<32> = 0.into();
    for k in 0..32 {
        let column: Bits<64> = elab!(residue_bit::<W>(k));
        want = want.replace_bit(k, column.get_bit(pad.index()));
    }
    want
}

/// Bit `k` of the residue by the zero bytes behind the frame: a LUT.
fn residue_bit<const W: usize>(k: usize) -> Bits<64> {
    let root = root_of::<W>();
    bits::<64>((0..64).fold(0, |all, pad| all | u64::from(apply(&root, forward(RESIDUE, pad)) >> k & 1) << pad))
}

/// For beat `number` (15: that or later) of a frame with or without VLAN tag: the bytes that are kept, the bytes that
/// read as ones, and the start state in place.
fn header_masks<const W: usize>(number: usize, tagged: bool, ip6: bool) -> [Bits<W>; 3] {
    let ip = if tagged { 18 } else { 14 };
    let (mut keep, mut ones, mut start) = ([0xffu8; 128], [0u8; 128], [0u8; 128]);
    keep[..ip].fill(0);
    start[ip..ip + 4].copy_from_slice(&START.to_le_bytes());
    let at: &[usize] = if ip6 {
        ones[ip] = 0x0f; // upper half of the traffic class
        &[1, 2, 3, 7, 46, 47, 52] // rest of it and flow label, hop limit, UDP checksum, BTH byte 4
    } else {
        &[1, 8, 10, 11, 26, 27, 32] // TOS, TTL, header checksum, UDP checksum, BTH byte 4
    };
    at.iter().for_each(|i| ones[ip + i] = 0xff);
    let beat = |bytes: [u8; 128]| {
        let beat = &bytes[number * W / 8..][..W / 8];
        (0..W).fold(Bits::default(), |b: Bits<W>, i| b.replace_bit(i, beat[i / 8] >> (i % 8) & 1 == 1))
    };
    [beat(keep), beat(ones), beat(start)]
}

/// A frame's beat as the ICRC reads it: L2 bytes zeroed, changeable fields as ones, start state in. `number` is the
/// beat's, staying at 15 from there on. The bytes that decide `tagged` and `ip6` lie in the same beat as the first
/// byte whose treatment depends on them, or in an earlier one.
#[hdl_fn]
pub fn mask_headers<const W: usize>(beat: Bits<W>, number: Bits<4>, tagged: Bit, ip6: Bit) -> Bits<W> {
    let mut masked = beat;
    for n in 0..1024 / W {
        for kind in 0..4 {
            let (tag, v6) = (kind & 1 == 1, kind & 2 == 2);
            if n * W < 71 * 8 {
                if number == n.to_bits() && tagged == tag && ip6 == v6 {
                    masked = ((beat & elab!(header_masks::<W>(n, tag, v6)[0]))
                        | elab!(header_masks::<W>(n, tag, v6)[1]))
                        ^ elab!(header_masks::<W>(n, tag, v6)[2]);
                }
            }
        }
    }
    masked
}

/// The first `bytes` bytes of a beat, zeros behind.
#[hdl_fn]
pub fn keep_bytes<const W: usize>(beat: Bits<W>, bytes: Bits<7>) -> Bits<W> {
    let all: Bits<W> = !Bits::<W>::default();
    beat & !(all << (bytes.cast::<10>() << 3))
}

/// The ICRC of frames of which one beat comes per cycle at most.
#[derive(Clone, Debug, LogicBlock)]
pub struct Generator<const W: usize> {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// A beat of the frame, from the Ethernet header to the byte before the ICRC.
    pub data: Signal<In, Bits<W>>,
    /// Valid bytes, W/8 except on the last beat: there 2 more than a multiple of 4, as all that follows an Ethernet header is.
    pub bytes: Signal<In, Bits<7>>,
    pub last: Signal<In, Bit>,
    pub valid: Signal<In, Bit>,
    /// The frame has a VLAN tag.
    pub tagged: Signal<In, Bit>,
    /// It is IPv6.
    pub ip6: Signal<In, Bit>,
    /// The ICRC, its first wire byte in bits 7:0, [`GENERATOR_LATENCY`] cycles after the last beat.
    pub icrc: Signal<Out, Bits<32>>,
    /// `icrc` is that of a frame, in this cycle only.
    pub done: Signal<Out, Bit>,
    number: Reg<Bits<4>>,
    masked: DFF<Bits<W>>,
    masked_valid: Reg<Bit>,
    masked_first: DFF<Bit>,
    masked_last: DFF<Bit>,
    /// Zero bytes behind the frame, beside the CRC and the inverse networks.
    pad: [DFF<Bits<6>>; 4],
    crc: Crc<W>,
    state: [DFF<Bits<32>>; 2],
    ready: [Reg<Bit>; 2],
    _odd: Hidden<Vec<Vec<Bits<32>>>>,
    _undo: Hidden<Vec<Vec<Bits<32>>>>,
}

impl<const W: usize> Default for Generator<W> {
    fn default() -> Self {
        Generator {
            clock: Default::default(),
            rst: Default::default(),
            data: Default::default(),
            bytes: Default::default(),
            last: Default::default(),
            valid: Default::default(),
            tagged: Default::default(),
            ip6: Default::default(),
            icrc: Default::default(),
            done: Default::default(),
            number: Default::default(),
            masked: Default::default(),
            masked_valid: Default::default(),
            masked_first: Default::default(),
            masked_last: Default::default(),
            pad: Default::default(),
            crc: Default::default(),
            state: Default::default(),
            ready: Default::default(),
            _odd: Hidden(
                (0..4).map(|n| state_rows(|root| backward(apply(&of_root::<W>(), root), 4 * n + 2))).collect(),
            ),
            _undo: Hidden((0..4).map(|n| state_rows(|s| backward(s, 16 * n))).collect()),
        }
    }
}

impl<const W: usize> Logic for Generator<W> {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, number, masked_valid, ready);
        dff_setup!(self, clock, masked, masked_first, masked_last, pad, state);
        clock_reset!(self, clock, rst, crc);

        self.masked_valid.d.next = self.valid.val();
        if self.valid.val() {
            let number = self.number.q.val();
            let masked = mask_headers(self.data.val(), number, self.tagged.val(), self.ip6.val());
            self.masked.d.next = keep_bytes(masked, self.bytes.val());
            self.masked_first.d.next = number == 0;
            self.masked_last.d.next = self.last.val();
            self.pad[0].d.next = (bits::<7>(W as u64 / 8) - self.bytes.val()).get_bits::<6>(0);
            if self.last.val() {
                self.number.d.next = 0.into();
            } else if number != 15 {
                self.number.d.next = number + 1;
            }
        }
        self.crc.data.next = self.masked.q.val();
        self.crc.valid.next = self.masked_valid.q.val();
        self.crc.first.next = self.masked_first.q.val();
        self.crc.last.next = self.masked_last.q.val();
        for i in 1..4 {
            self.pad[i].d.next = self.pad[i - 1].q.val();
        }

        self.ready[0].d.next = self.crc.done.val();
        self.ready[1].d.next = self.ready[0].q.val();
        let ended = self.crc.root.val();
        let pad = self.pad[CRC_LATENCY].q.val();
        // Undo the padding: 2, 6, 10 or 14 bytes, then 0, 16, 32 or 48; one network for each, so that none stands behind another.
        let mut state: Bits<32> = 0.into();
        for n in 0..4 {
            if 4 * n + 2 < W / 8 {
                let mut undone: Bits<32> = 0.into();
                for j in 0..32 {
                    undone = undone.replace_bit(j, (ended & elab!(self._odd.0[n][j])).xor());
                }
                if pad.get_bits::<2>(2) == n as u64 {
                    state = undone;
                }
            }
        }
        self.state[0].d.next = state;
        let ended = self.state[0].q.val();
        let pad = self.pad[CRC_LATENCY + 1].q.val();
        let mut state = ended;
        for n in 1..4 {
            if 16 * n < W / 8 {
                let mut undone: Bits<32> = 0.into();
                for j in 0..32 {
                    undone = undone.replace_bit(j, (ended & elab!(self._undo.0[n][j])).xor());
                }
                if pad.get_bits::<2>(4) == n as u64 {
                    state = undone;
                }
            }
        }
        self.state[1].d.next = state;
        self.icrc.next = !self.state[1].q.val();
        self.done.next = self.ready[1].q.val();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::testing::{GOLDEN, captured, icrc_of, unhex};
    use rand::{Rng, RngExt};

    use verilate::{Model, Options};

    #[test]
    fn the_reference_agrees_with_the_golden_frames() {
        for hex in GOLDEN {
            let frame = unhex(hex);
            let (body, icrc) = frame.split_at(frame.len() - 4);
            assert_eq!(icrc_of(body).to_le_bytes(), icrc);
        }
    }

    #[test]
    fn zeros_are_undone() {
        for n in 0..64 {
            assert_eq!(backward(forward(0x1234_5678, n), n), 0x1234_5678);
        }
    }

    /// A beat moves the root as a bit moves the state.
    fn roots<const W: usize>() {
        for state in [1, 0x8000_0000, START, RESIDUE] {
            let root = apply(&root_of::<W>(), state);
            assert_eq!(apply(&of_root::<W>(), root), state);
            assert_eq!(apply(&of_root::<W>(), step(root)), forward(state, W / 8));
        }
    }

    #[test]
    fn a_beat_moves_the_root_as_a_bit_the_state() {
        roots::<64>();
        roots::<128>();
        roots::<256>();
        roots::<512>();
    }

    /// Frames without ICRC through the generator.
    fn generates<const W: usize>(frames: &[Vec<u8>]) {
        let options = Options { name: Some(format!("Generator{W}")), ..Options::default() };
        let mut m = Model::of(Generator::<W>::default, options).unwrap();
        m.reset();
        let mut rng = verilate::rng(W as u64);
        let mut want = std::collections::VecDeque::new();
        let mut got = 0;
        let check = |m: &Model, want: &mut std::collections::VecDeque<(u64, u32)>, got: &mut usize| {
            let due = want.front().is_some_and(|w| w.0 == m.cycle());
            assert_eq!(m.bit("done"), due);
            if due {
                assert_eq!(m.get("icrc") as u32, want.pop_front().unwrap().1, "frame {got}");
                *got += 1;
            }
        };
        for frame in frames {
            let count = frame.len().div_ceil(W / 8);
            m.set("tagged", u64::from(frame[12..14] == [0x81, 0]));
            m.set("ip6", u64::from(frame[12..14] == [0x86, 0xdd] || frame[16..18] == [0x86, 0xdd]));
            for (i, chunk) in frame.chunks(W / 8).enumerate() {
                while rng.random_bool(0.2) {
                    m.set("valid", 0);
                    m.tick();
                    check(&m, &mut want, &mut got);
                }
                let mut data = vec![0; W / 8];
                rng.fill_bytes(&mut data);
                data[..chunk.len()].copy_from_slice(chunk);
                m.set("valid", 1);
                m.set_bytes("data", &data);
                m.set("bytes", chunk.len() as u64);
                m.set("last", u64::from(i + 1 == count));
                if i + 1 == count {
                    want.push_back((m.cycle() + GENERATOR_LATENCY as u64, icrc_of(frame)));
                }
                m.tick();
                check(&m, &mut want, &mut got);
            }
        }
        m.set("valid", 0);
        for _ in 0..10 {
            m.tick();
            check(&m, &mut want, &mut got);
        }
        assert_eq!(got, frames.len());
    }

    /// Golden and captured frames, each also with a VLAN tag, and random ones of all lengths.
    fn frames() -> Vec<Vec<u8>> {
        let mut frames: Vec<Vec<u8>> = GOLDEN.iter().map(|hex| unhex(hex)).chain(captured()).collect();
        frames.iter_mut().for_each(|frame| frame.truncate(frame.len() - 4));
        let tag = |frame: &Vec<u8>| [&frame[..12], &[0x81, 0, 0x20, 5], &frame[12..]].concat();
        let tagged: Vec<_> = frames.iter().map(tag).collect();
        frames.extend(tagged);
        let mut rng = verilate::rng(7);
        for n in 0..100 {
            let mut frame = frames[rng.random_range(0..frames.len())][..54].to_vec();
            frame.resize(78 + 4 * n, 0);
            rng.fill_bytes(&mut frame[54..]);
            frames.push(frame);
        }
        frames
    }

    #[test]
    fn generates_at_64_bits() {
        generates::<64>(&frames());
    }
    #[test]
    fn generates_at_128_bits() {
        generates::<128>(&frames());
    }
    #[test]
    fn generates_at_256_bits() {
        generates::<256>(&frames());
    }
    #[test]
    fn generates_at_512_bits() {
        generates::<512>(&frames());
    }
}
