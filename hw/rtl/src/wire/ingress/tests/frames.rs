//! Frames of every kind for the tests of ingress: good ones, ones broken in one place, and garbage.

use super::reference::*;
use crate::wire::testing::icrc_of;
use abi::{
    table::GIDS,
    wire::{OpInfo, op_info},
};
use rand::{Rng, RngExt, seq::IndexedRandom};
use rand_chacha::ChaCha8Rng;

/// A frame to be sent: its bytes, and whether the MAC reports it as damaged.
pub type Sent = (Vec<u8>, bool);

/// A random RoCE frame to `to`, to all of a group; `payload` bytes if the opcode has any.
pub fn roce(rng: &mut ChaCha8Rng, to: &Address, opcode: u8, payload: usize) -> Vec<u8> {
    let op = op_info(opcode).unwrap_or(OpInfo { payload: true, ..Default::default() });
    let payload = if op.payload { payload } else { 0 };
    let pad = payload.wrapping_neg() % 4;
    let udp_len = 24 + op.ext_len() + payload + pad;
    let mut f = to.mac.to_vec();
    f.extend([2, 0, 0, 0, 0, 9]);
    let priority = rng.random_range(0..8u16) << 13;
    match to.vlan {
        Some(vlan) => f.extend([[0x81, 0], (vlan | priority).to_be_bytes()].concat()),
        None if rng.random_bool(0.2) => f.extend([[0x81, 0], priority.to_be_bytes()].concat()),
        None => {}
    }
    if to.ip.len() == 4 {
        f.extend([8, 0, 0x45, rng.random()]);
        f.extend((20 + udp_len as u16).to_be_bytes());
        f.extend([rng.random(), rng.random(), 0x40, 0, rng.random_range(1..=255), 17, 0, 0]);
        f.extend([10, 0, 0, rng.random()]);
    } else {
        f.extend([0x86, 0xdd, 0x60 | rng.random_range(0..16), rng.random(), rng.random(), rng.random()]);
        f.extend((udp_len as u16).to_be_bytes());
        f.extend([17, rng.random_range(1..=255)]);
        f.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, rng.random()]);
    }
    f.extend(&to.ip);
    f.extend([0xc0, rng.random(), 0x12, 0xb7]);
    f.extend((udp_len as u16).to_be_bytes());
    f.extend([0, 0]);
    f.extend([opcode, (pad as u8) << 4 | rng.random::<u8>() & 0xc0]);
    let from = f.len();
    f.resize(from + 10 + op.ext_len() + payload + pad + 4, 0);
    rng.fill_bytes(&mut f[from..]);
    if is_group(to) {
        f[from + 3..from + 6].fill(0xff);
    }
    finish(rng, &mut f);
    f
}

/// It is a multicast group's.
pub fn is_group(to: &Address) -> bool {
    to.mac[0] & 1 == 1
}

/// Sets the checksums and the ICRC that the headers ask for, if they make any sense.
pub fn finish(rng: &mut ChaCha8Rng, f: &mut [u8]) {
    let ip = ip_at(f);
    let ip6 = f[ip] >> 4 == 6;
    if !ip6 {
        f[ip + 10..ip + 12].fill(0);
        let sum = !sum16(&f[ip..ip + 20]);
        f[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
    }
    let udp = ip + if ip6 { 40 } else { 20 };
    let end = udp + word(f, udp + 4);
    if end > f.len() || end < udp + 24 {
        return;
    }
    let icrc = icrc_of(&f[..end - 4]).to_le_bytes();
    f[end - 4..end].copy_from_slice(&icrc);
    f[udp + 6..udp + 8].fill(0);
    if rng.random_bool(0.5) {
        let sum = !udp_sum(f);
        f[udp + 6..udp + 8].copy_from_slice(&sum.to_be_bytes());
    }
}

/// GID rows in front that are no groups.
pub const STATIONS: usize = 13;

pub fn setup(rng: &mut ChaCha8Rng) -> Setup {
    let mac = [2, 0, 0, 0, 0, 1];
    let gids = (0..GIDS as u8).map(|i| Address {
        mac: match usize::from(i) {
            0..10 => mac,
            10..STATIONS => [2, 0, 0, 0, 1, i],
            // Groups that QPs are attached to, the last one with the MAC of one that the raw queue hears.
            _ => [0x33, 0x33, 0xff, 0, 0, 17 - i],
        },
        vlan: (i % 3 == 2).then(|| rng.random_range(1..4096)),
        ip: if i % 2 == 0 { vec![10, 0, 1, i] } else { (0..16).map(|k| k * 7 + i).collect() },
    });
    let groups = (0..3).map(|i| [0x33, 0x33, 0xff, 0, 0, i]).collect();
    Setup { gids: gids.collect(), mac, raw_on: true, promiscuous: false, groups }
}

/// Every kind of frame: good, broken in one place with all else set right, broken after the fact, and garbage.
pub fn any_frame(rng: &mut ChaCha8Rng, setup: &Setup, largest: usize) -> Sent {
    let to = setup.gids.choose(rng).unwrap().clone();
    let known: Vec<u8> = (0..=255).filter(|o| op_info(*o).is_some()).collect();
    let opcode = if rng.random_bool(0.9) { *known.choose(rng).unwrap() } else { rng.random() };
    let largest = rng.random_range(0..=largest);
    let payload = if rng.random_bool(0.5) { largest.min(80) } else { largest };
    let mut f = roce(rng, &to, opcode, payload);
    let ip = ip_at(&f);
    let ip6 = f[ip] >> 4 == 6;
    let udp = ip + if ip6 { 40 } else { 20 };
    match rng.random_range(0..17) {
        0..6 => {}
        16 => {
            // To a QP of a group, to all of an address.
            let qpn = if is_group(&to) { rng.random() } else { [0xff; 3] };
            f[udp + 13..udp + 16].copy_from_slice(&qpn);
            finish(rng, &mut f);
        }
        6 | 7 => {
            for _ in 0..rng.random_range(1..3) {
                let bit = rng.random_range(0..f.len() * 8);
                f[bit / 8] ^= 1 << (bit % 8);
            }
        }
        8 => f.truncate(rng.random_range(1..=f.len())),
        9 => {
            // Another value in one header byte, the rest set right.
            let at = rng.random_range(ip..(udp + 40).min(f.len()));
            f[at] = rng.random();
            finish(rng, &mut f);
        }
        10 => {
            // Lengths a little off.
            let at = *[ip + if ip6 { 4 } else { 2 }, udp + 4].choose(rng).unwrap();
            let length = (word(&f, at) as i32 + rng.random_range(-30..30)).max(0) as u16;
            f[at..at + 2].copy_from_slice(&length.to_be_bytes());
            finish(rng, &mut f);
        }
        11 if !ip6 => {
            // Options and fragments.
            if rng.random_bool(0.5) {
                f[ip] = 0x40 | rng.random_range(0..16);
            } else {
                f[ip + 6] = *[0x20, 0x00, 0x01, 0x60].choose(rng).unwrap();
            }
            finish(rng, &mut f);
        }
        11 => f[ip + 6] = *[0, 6, 43, 44, 58, 60].choose(rng).unwrap(),
        12 => {
            let at = *[udp + 2, udp + 3, 0, 5, 12, 13, 15, udp + 8, udp + 9].choose(rng).unwrap();
            f[at] = rng.random();
            finish(rng, &mut f);
        }
        13 => {
            let fill = rng.random();
            f.resize(rng.random_range(1..=largest.max(1)), fill);
        }
        _ => {
            f.resize(rng.random_range(1..=largest.max(1)), 0);
            rng.fill_bytes(&mut f);
            let group = *setup.groups.choose(rng).unwrap();
            let known = [to.mac, setup.mac, [0xff; 6], group];
            if rng.random_bool(0.7) && f.len() > 6 {
                f[..6].copy_from_slice(known.choose(rng).unwrap());
            }
        }
    }
    // The MAC's padding, and more of it than it ever adds.
    if f.len() < 60 && rng.random_bool(0.7) {
        f.resize(60, 0);
    } else if rng.random_bool(0.1) {
        let from = f.len();
        f.resize(from + rng.random_range(1..150), 0);
        rng.fill_bytes(&mut f[from..]);
    }
    (f, rng.random_bool(0.02))
}
