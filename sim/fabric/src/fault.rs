//! Fault rules on a link: what to match, what to do. All chance follows from one seed. Rules come from tests, or from a file
//! (`rules_file`).

use crate::packet::Packet;
use abi::wire::len;
use nic::Fs;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Which frames a rule applies to; every condition that is set must hold.
#[derive(Clone, Debug, Default)]
pub struct Match {
    /// Sent by this end of the link (0 or 1).
    pub from: Option<usize>,
    /// Destination QPN.
    pub qpn: Option<u32>,
    /// BTH opcode.
    pub opcode: Option<u8>,
    /// First and last PSN; they may wrap.
    pub psn: Option<(u32, u32)>,
    /// Only the nth frame (from 1) that meets the other conditions.
    pub nth: Option<u64>,
    /// By chance.
    pub probability: Option<f64>,
}

/// What happens to a matched frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is lost.
    Drop,
    /// It arrives later; frames behind it pass.
    Delay(Fs),
    /// It arrives twice.
    Duplicate,
    /// It arrives behind the next so many frames of the same end, or after 10 us if they do not come.
    Reorder(u32),
    /// A bit of it flips, by chance anywhere in a part of it.
    Corrupt(Part),
    /// It is cut short, by chance anywhere behind the Ethernet header; the MAC sees a whole frame.
    Truncate,
    /// Its IP header gets a CE mark (which the ICRC does not cover; the IPv4 checksum is kept right).
    MarkCe,
}

/// Part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All behind the Ethernet header.
    Any,
    /// IP, UDP, BTH and extended headers. Of a frame that is not RoCE all behind the Ethernet header, as of the other parts.
    Header,
    /// Payload and pad; without any, the ICRC.
    Payload,
    /// The ICRC.
    Icrc,
}

impl Part {
    /// Where it is in a frame of `len` bytes.
    fn range(self, packet: Option<Packet>, len: usize) -> std::ops::Range<usize> {
        match (self, packet) {
            (Part::Header, Some(p)) => p.ip..p.body,
            (Part::Payload, Some(p)) if p.body < p.icrc => p.body..p.icrc,
            (Part::Payload | Part::Icrc, Some(p)) => p.icrc..p.icrc + len::ICRC,
            _ => 14..len,
        }
    }
}

/// A rule.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Which frames.
    pub matches: Match,
    /// What happens.
    pub action: Action,
    name: Option<String>,
    seen: u64,
    /// How often it fired.
    pub fired: u64,
}

impl Rule {
    /// A rule that has not fired yet.
    pub fn new(matches: Match, action: Action) -> Self {
        Rule { matches, action, name: None, seen: 0, fired: 0 }
    }
}

/// A rule that fired on a frame, for captures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fired {
    /// Index of the rule.
    pub rule: usize,
    /// What it did.
    pub action: Action,
}

/// The rules of a link.
pub struct Rules {
    /// In order; the first that matches a frame fires.
    pub rules: Vec<Rule>,
    rng: ChaCha8Rng,
}

impl Rules {
    /// No rules yet.
    pub fn new(seed: u64) -> Self {
        Rules { rules: Vec::new(), rng: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// Adds a rule.
    pub fn add(&mut self, matches: Match, action: Action) {
        self.rules.push(Rule::new(matches, action));
    }

    /// Adds a rule that captures call `name`.
    pub fn add_named(&mut self, name: impl Into<String>, matches: Match, action: Action) {
        self.rules.push(Rule { name: Some(name.into()), ..Rule::new(matches, action) });
    }

    /// What captures call the rule at this index: its name, else its number, from 1.
    pub fn name(&self, rule: usize) -> String {
        self.rules[rule].name.clone().unwrap_or_else(|| format!("fault rule {}", rule + 1))
    }

    /// The rule that fires on `frame`, sent by end `from`. A rule that corrupts, cuts or marks has done so on return.
    pub fn apply(&mut self, from: usize, frame: &mut Vec<u8>) -> Option<Fired> {
        if self.rules.is_empty() {
            return None;
        }
        let packet = Packet::of(frame);
        let hit = self.rules.iter_mut().position(|r| {
            let m = &r.matches;
            let named = m.qpn.is_some() || m.opcode.is_some() || m.psn.is_some();
            let fits = m.from.is_none_or(|f| f == from)
                && (!named
                    || packet.is_some_and(|p| {
                        m.qpn.is_none_or(|q| q == p.qpn)
                            && m.opcode.is_none_or(|o| o == p.opcode)
                            && m.psn.is_none_or(|range| within(range, p.psn))
                    }));
            if !fits || m.probability.is_some_and(|p| !self.rng.random_bool(p)) {
                return false;
            }
            r.seen += 1;
            m.nth.is_none_or(|n| n == r.seen)
        })?;
        let rule = &mut self.rules[hit];
        rule.fired += 1;
        match rule.action {
            Action::Corrupt(part) if frame.len() > 14 => {
                let at = self.rng.random_range(part.range(packet, frame.len()));
                frame[at] ^= 1 << self.rng.random_range(0..8);
            }
            Action::Truncate if frame.len() > 14 => frame.truncate(self.rng.random_range(14..frame.len())),
            Action::MarkCe => {
                if let Some(p) = packet {
                    mark_ce(frame, p.ip);
                }
            }
            _ => {}
        }
        Some(Fired { rule: hit, action: rule.action })
    }
}

/// Whether a PSN is in a range that may wrap.
fn within((first, last): (u32, u32), psn: u32) -> bool {
    (psn.wrapping_sub(first) & 0xff_ffff) <= (last.wrapping_sub(first) & 0xff_ffff)
}

/// Sets both ECN bits of the IP header at `ip`.
fn mark_ce(frame: &mut [u8], ip: usize) {
    if frame[ip] >> 4 == 6 {
        frame[ip + 1] |= 0x30;
        return;
    }
    frame[ip + 1] |= 3;
    frame[ip + 10..ip + 12].fill(0);
    let sum: u32 = frame[ip..ip + 20].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    frame[ip + 10..ip + 12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A RoCE v2 SEND_ONLY of 0 bytes, AckReq, from protocol vector V6.
    fn frame() -> Vec<u8> {
        let hex = "02000000000202000000000108004502002c00004000401126bd0a0000010a000002c00012b7001800000440ffff00000012800000011839f5ef";
        (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect()
    }

    #[test]
    fn rules_match_by_end_and_packet_and_count() {
        let mut rules = Rules::new(1);
        rules.add(Match { from: Some(1), ..Match::default() }, Action::Drop);
        rules.add(
            Match { qpn: Some(0x12), opcode: Some(4), psn: Some((1, 1)), nth: Some(2), ..Match::default() },
            Action::Drop,
        );
        let mut f = frame();
        assert_eq!(rules.apply(0, &mut f), None);
        assert_eq!(rules.apply(0, &mut f), Some(Fired { rule: 1, action: Action::Drop }));
        assert_eq!(rules.apply(0, &mut f), None);
        assert_eq!(rules.apply(1, &mut f).unwrap().rule, 0);
        assert_eq!(rules.rules[1].fired, 1);
    }

    #[test]
    fn a_ce_mark_keeps_the_ip_checksum_and_a_corruption_changes_one_bit() {
        let mut rules = Rules::new(1);
        rules.add(Match { nth: Some(1), ..Match::default() }, Action::MarkCe);
        rules.add(Match::default(), Action::Corrupt(Part::Any));
        let mut f = frame();
        rules.apply(0, &mut f).unwrap();
        assert_eq!(f[15] & 3, 3);
        let ip = etherparse::Ipv4HeaderSlice::from_slice(&f[14..]).unwrap();
        assert_eq!(ip.header_checksum(), ip.to_header().calc_header_checksum());
        let before = f.clone();
        rules.apply(0, &mut f).unwrap();
        let flipped: u32 = before.iter().zip(&f).map(|(a, b)| (a ^ b).count_ones()).sum();
        assert_eq!(flipped, 1);
    }

    #[test]
    fn a_corruption_stays_in_its_part_and_a_cut_frame_is_shorter() {
        // The frame has 14 + 20 + 8 + 12 bytes of headers, no payload and 4 of ICRC.
        for (part, range) in
            [(Part::Header, 14..54), (Part::Payload, 54..58), (Part::Icrc, 54..58), (Part::Any, 14..58)]
        {
            let mut rules = Rules::new(3);
            rules.add(Match::default(), Action::Corrupt(part));
            let mut hit = std::collections::HashSet::new();
            for _ in 0..2000 {
                let mut f = frame();
                rules.apply(0, &mut f).unwrap();
                hit.extend((0..f.len()).filter(|i| f[*i] != frame()[*i]));
            }
            let mut hit: Vec<_> = hit.into_iter().collect();
            hit.sort_unstable();
            assert_eq!(hit, range.collect::<Vec<_>>(), "{part:?}");
        }
        let mut rules = Rules::new(3);
        rules.add(Match::default(), Action::Truncate);
        let mut f = frame();
        rules.apply(0, &mut f).unwrap();
        assert!((14..58).contains(&f.len()) && f == frame()[..f.len()]);
    }

    #[test]
    fn psn_ranges_may_wrap() {
        for (range, inside, outside) in
            [((5, 7), [5, 7], [4, 8]), ((0xff_fffe, 1), [0xff_ffff, 0], [2, 0xff_fffd]), ((3, 3), [3, 3], [2, 4])]
        {
            assert!(inside.iter().all(|p| within(range, *p)), "{range:?}");
            assert!(!outside.iter().any(|p| within(range, *p)), "{range:?}");
        }
    }

    #[test]
    fn loss_by_chance_repeats_with_its_seed() {
        let run = |seed| {
            let mut rules = Rules::new(seed);
            rules.add(Match { probability: Some(0.1), ..Match::default() }, Action::Drop);
            (0..1000).map(|_| rules.apply(0, &mut frame()).is_some()).collect::<Vec<_>>()
        };
        assert_eq!(run(5), run(5));
        assert_ne!(run(5), run(6));
        assert!((70..130).contains(&run(5).iter().filter(|x| **x).count()));
    }
}
