//! PCIe timing: what a TLP costs on the link, when a read returns, when a write is performed.

use crate::{Fs, NS};

/// Link and root complex. All reads and writes of one function share the two directions of its link.
#[derive(Clone, Debug, PartialEq)]
pub struct PcieProfile {
    /// Name for tables.
    pub name: &'static str,
    /// Rate of each direction after the link layer, in Gb/s.
    pub gbps: f64,
    /// A 64-byte read returns after this time.
    pub read_latency: Fs,
    /// A posted write, and a doorbell, arrives after this time.
    pub write_latency: Fs,
    /// Largest payload of a write or completion TLP in bytes.
    pub max_payload: u64,
    /// Largest read request in bytes.
    pub max_read: u64,
    /// Read requests that may be outstanding.
    pub tags: usize,
}

/// Header bytes of a write TLP.
pub(crate) const WRITE_HEADER: u64 = 24;
/// Header bytes of a read request TLP.
pub(crate) const READ_HEADER: u64 = 24;
/// Header bytes of a completion TLP.
pub(crate) const COMPLETION_HEADER: u64 = 20;
/// Completions may be split at multiples of this address.
pub(crate) const COMPLETION_BOUNDARY: u64 = 64;

impl PcieProfile {
    /// PCIe Gen3 x16, latencies as measured on server platforms.
    pub fn gen3x16() -> Self {
        PcieProfile {
            name: "Gen3 x16",
            gbps: 115.76,
            read_latency: 547 * NS,
            write_latency: 200 * NS,
            max_payload: 256,
            max_read: 512,
            tags: 128,
        }
    }

    /// PCIe Gen4 x16: twice the rate, the same latencies.
    pub fn gen4x16() -> Self {
        PcieProfile { name: "Gen4 x16", gbps: 231.52, ..Self::gen3x16() }
    }

    /// Payload that writes of full TLPs carry, in Gb/s.
    pub fn payload_gbps(&self) -> f64 {
        self.gbps * self.max_payload as f64 / (self.max_payload + WRITE_HEADER) as f64
    }

    /// Time of `bytes` on one direction of the link.
    pub fn time(&self, bytes: u64) -> Fs {
        (bytes as f64 * 8.0 * NS as f64 / self.gbps).round() as Fs
    }
}

/// How hostile the host is within what AXI permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Adversary {
    /// Reads return in order of issue, in the time of the profile.
    #[default]
    Friendly,
    /// By seed: read latency varies, completions are split and interleaved at 64 bytes and return in any order, a read
    /// may miss writes that are not performed yet, responses and readiness come late.
    Hostile,
}

/// One direction of the link: when it is free, what it carried.
#[derive(Default)]
pub(crate) struct Direction {
    free_at: Fs,
    pub(crate) bytes: u64,
}

impl Direction {
    /// Puts a TLP of `bytes` on the link at `at` or later; returns when its last byte is through.
    pub(crate) fn send(&mut self, profile: &PcieProfile, at: Fs, bytes: u64) -> Fs {
        self.free_at = self.free_at.max(at) + profile.time(bytes);
        self.bytes += bytes;
        self.free_at
    }

    /// How far the link is booked beyond `now`.
    pub(crate) fn backlog(&self, now: Fs) -> Fs {
        self.free_at.saturating_sub(now)
    }
}
