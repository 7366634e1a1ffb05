//! The MAC at both ends of a link: turns the core's beats into frames timed by the line rate, and back.
//!
//! The sender takes beats as fast as the line drains them, with a few beats of slack. It checks in every cycle that the core does what a
//! real MAC, which cannot wait in the middle of a frame, asks of it: a breach is a bug of the gates, and stops the simulation.
//! The receiver stores a frame and hands it to the core, a beat a cycle, once its last byte has arrived.

use crate::axi::Offer;
use crate::{Fs, NS};
use std::collections::VecDeque;

/// Preamble, FCS and inter-frame gap: bytes that a frame takes on the wire beyond its own.
const OVERHEAD: u64 = 24;
/// How far the sender may run ahead of the line, in bytes.
const SLACK: u64 = 256;

/// A frame without FCS, stamped with the time at which its last byte left or arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Time of the last byte.
    pub at: Fs,
    /// Bytes from the destination address on.
    pub data: Vec<u8>,
    /// Its FCS is wrong: the receiving MAC reports an error.
    pub error: bool,
}

/// Rate of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkRate {
    fs_per_byte: Fs,
}

impl LinkRate {
    /// A rate in Gb/s.
    pub fn gbps(rate: f64) -> Self {
        LinkRate { fs_per_byte: (8.0 * NS as f64 / rate).round() as Fs }
    }
    /// Time of `bytes` on the line.
    pub fn time(self, bytes: u64) -> Fs {
        self.fs_per_byte * bytes
    }
}

/// Sending side.
pub(crate) struct MacTx {
    rate: LinkRate,
    free_at: Fs,
    building: Vec<u8>,
    offer: Offer<Beat>,
    pub(crate) out: Vec<Frame>,
}

/// A beat for the MAC: bytes, last, and the error that makes a frame that ends here one with a wrong FCS.
pub(crate) type Beat = (Vec<u8>, bool, bool);

impl MacTx {
    pub(crate) fn new(rate: LinkRate) -> Self {
        MacTx { rate, free_at: 0, building: Vec::new(), offer: Offer::new("MAC"), out: Vec::new() }
    }

    pub(crate) fn ready(&self, now: Fs) -> bool {
        self.free_at < now + self.rate.time(SLACK)
    }

    /// What the core offers in a cycle, and whether the MAC takes it.
    pub(crate) fn observe(&mut self, now: Fs, offered: Option<Beat>, ready: bool) {
        assert!(offered.is_some() || !ready || self.building.is_empty(), "MAC: a gap inside a frame");
        if let Some((bytes, last, error)) = self.offer.observe(offered, ready) {
            self.beat(now, &bytes, last, error);
        }
    }

    fn beat(&mut self, now: Fs, bytes: &[u8], last: bool, error: bool) {
        assert!(!bytes.is_empty(), "MAC: a beat without bytes");
        self.building.extend_from_slice(bytes);
        self.free_at = self.free_at.max(now) + self.rate.time(bytes.len() as u64);
        if last {
            self.out.push(Frame { at: self.free_at, data: std::mem::take(&mut self.building), error });
            self.free_at += self.rate.time(OVERHEAD);
        }
    }
}

/// Receiving side.
#[derive(Default)]
pub(crate) struct MacRx {
    frames: VecDeque<Frame>,
    at: usize,
}

impl MacRx {
    /// Adds a frame; they arrive in the order of their times.
    pub(crate) fn push(&mut self, frame: Frame) {
        debug_assert!(self.frames.back().is_none_or(|f| f.at <= frame.at) && !frame.data.is_empty());
        self.frames.push_back(frame);
    }

    /// The next beat of at most `width` bytes: bytes, last, error.
    pub(crate) fn beat(&mut self, now: Fs, width: usize) -> Option<(&[u8], bool, bool)> {
        if self.at > 0 && self.frames.front().is_some_and(|f| self.at >= f.data.len()) {
            self.frames.pop_front();
            self.at = 0;
        }
        let f = self.frames.front().filter(|f| f.at <= now)?;
        let from = self.at;
        self.at = (from + width).min(f.data.len());
        Some((&f.data[from..self.at], self.at == f.data.len(), f.error))
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.frames.is_empty() || (self.frames.len() == 1 && self.at > 0 && self.at >= self.frames[0].data.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_to_back_frames_take_the_line_rate() {
        let mut tx = MacTx::new(LinkRate::gbps(100.0));
        let (mut now, mut sent) = (0, 0);
        while sent < 1000 {
            if tx.ready(now) {
                tx.beat(now, &[0; 64], true, false);
                sent += 1;
            }
            now += 4 * NS;
        }
        let rate = 1000.0 * (64.0 + 24.0) * 8.0 / (tx.out[999].at as f64 / NS as f64);
        assert!((rate - 100.0).abs() < 0.2, "{rate} Gb/s");
    }

    #[test]
    fn a_frame_arrives_in_beats() {
        let mut rx = MacRx::default();
        rx.push(Frame { at: 10, data: (0..70).collect(), error: false });
        assert_eq!(rx.beat(9, 64), None);
        assert_eq!(rx.beat(10, 64).unwrap().0.len(), 64);
        let (b, last, _) = rx.beat(11, 64).unwrap();
        assert_eq!((b, last), (&[64, 65, 66, 67, 68, 69][..], true));
        assert!(rx.is_idle());
        assert_eq!(rx.beat(12, 64), None);
    }
}
