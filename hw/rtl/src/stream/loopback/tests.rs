use super::*;
use rand::{Rng, RngExt};
use rand_chacha::ChaCha8Rng;
use std::collections::VecDeque;
use verilate::{Model, Options, bits as raw};

const PORT: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 9];
const GROUP: [u8; 6] = [0x33, 0x33, 0xff, 0, 0, 1];
/// One that a QP is attached to.
const JOINED: [u8; 6] = [1, 0, 0x5e, 1, 2, 3];

/// The MAC of GID `i` after `set_gid`.
fn gid_mac(i: u8) -> [u8; 6] {
    [2, 0, 0, 0, 1, i]
}

fn build<const W: usize>() -> Model {
    let options = Options { name: Some(format!("Loopback{W}")), ..Options::default() };
    Model::of(|| Loopback::<W>::new(16 << 10), options).unwrap()
}

fn write_row(m: &mut Model, table: u8, index: u32, fields: &[(abi::Field, u64)]) {
    let mut row = [0; 64];
    fields.iter().for_each(|(f, v)| f.set(&mut row, *v));
    let mut bits = Bits::<512>::default();
    for (i, byte) in row.iter().enumerate() {
        bits = bits | Bits::<512>::from(u64::from(*byte)) << (8 * i as u64);
    }
    let req = TableReq { table: table.to_bits(), index: index.to_bits(), write: true, row: bits };
    m.set_bytes("table", &raw::of(req));
    m.set("table_we", 1);
    m.tick();
    m.set("table_we", 0);
    m.tick();
}

fn word(mac: [u8; 6]) -> u64 {
    mac.iter().rev().fold(0, |w, b| w << 8 | u64::from(*b))
}

fn set_gid(m: &mut Model, i: u8, valid: bool) {
    write_row(m, id::GID, i.into(), &[(gid::VALID, valid.into()), (gid::MAC, word(gid_mac(i)))]);
}

fn start(m: &mut Model) {
    m.set("power", 1);
    m.reset();
    m.set("power", 0);
    write_row(m, id::PORT, 0, &[(port::MAC, word(PORT))]);
    set_gid(m, 3, true);
    set_gid(m, 15, true);
    write_row(m, id::GID, 9, &[(gid::VALID, 1), (gid::MAC, word(JOINED))]);
    m.set("link_up", 1);
    m.set("room", 1);
    m.set("mac_tx.ready", 1);
    m.tick();
}

/// A frame being driven beat by beat.
#[derive(Default)]
struct Driver {
    frames: VecDeque<Vec<u8>>,
    at: usize,
}
impl Driver {
    fn drive(&self, m: &mut Model, port: &str, width: usize, valid: bool) -> bool {
        let frame = self.frames.front().filter(|_| valid);
        m.set(&*format!("{port}.valid"), frame.is_some().into());
        let Some(frame) = frame else { return false };
        let end = (self.at + width).min(frame.len());
        let mut data = frame[self.at..end].to_vec();
        data.resize(width, 0xee);
        m.set_bytes(&*format!("{port}.data"), &data);
        m.set(&*format!("{port}.bytes"), (end - self.at) as u64);
        m.set(&*format!("{port}.last"), (end == frame.len()).into());
        true
    }
    fn step(&mut self, width: usize) {
        self.at += width;
        if self.frames.front().is_some_and(|f| self.at >= f.len()) {
            self.frames.pop_front();
            self.at = 0;
        }
    }
}

/// Collects frames of a stream.
#[derive(Default)]
struct Collector {
    building: Vec<u8>,
    frames: Vec<Vec<u8>>,
}
impl Collector {
    fn take(&mut self, m: &Model, port: &str) {
        let n = m.get(&*format!("{port}.bytes")) as usize;
        self.building.extend_from_slice(&m.get_bytes(&*format!("{port}.data"))[..n]);
        if m.bit(&*format!("{port}.last")) {
            self.frames.push(std::mem::take(&mut self.building));
        }
    }
}

fn frame(rng: &mut ChaCha8Rng, destination: [u8; 6]) -> Vec<u8> {
    let len = match rng.random_range(0..10) {
        0 => wire::MAX_FRAME,
        1..=5 => rng.random_range(60..200),
        _ => rng.random_range(60..=wire::MAX_FRAME),
    };
    let mut f = vec![0; len];
    rng.fill_bytes(&mut f);
    f[..6].copy_from_slice(&destination);
    f
}

/// Both directions under random stalls: each frame comes out where it belongs, whole, in the order of its source; the MAC is
/// never stalled and loses nothing.
fn all_go_their_way<const W: usize>() {
    let mut m = build::<W>();
    for seed in 0..verilate::scale(6) as u64 {
        start(&mut m);
        let mut rng = verilate::rng(seed);
        let (mut tx, mut rx) = (Driver::default(), Driver::default());
        let (mut wire, mut turned, mut from_mac) = (vec![], VecDeque::new(), VecDeque::new());
        for _ in 0..80 {
            let way = rng.random_range(0..7);
            let f = frame(&mut rng, [PORT, gid_mac(3), gid_mac(15), JOINED, PEER, GROUP, [0xff; 6]][way]);
            if way <= 3 {
                turned.push_back(f.clone());
            }
            if way >= 3 {
                wire.push(f.clone());
            }
            tx.frames.push_back(f);
            let f = frame(&mut rng, PORT);
            from_mac.push_back(f.clone());
            rx.frames.push_back(f);
        }
        let (mut sent, mut arrived) = (Collector::default(), Collector::default());
        // With a MAC at full rate until its frames are out, or with gaps.
        let busy = seed % 2 == 0;
        let (mut mac_on, mut room, mut drops) = (true, true, 0u64);
        for cycle in 0.. {
            assert!(
                cycle < 200_000,
                "seed {seed}: {} to send, {} turned, {} of {} sent, {} of the MAC missing",
                tx.frames.len(),
                turned.len(),
                sent.frames.len(),
                wire.len(),
                from_mac.len()
            );
            let valid = rng.random_bool(0.8) || tx.at > 0 && rng.random_bool(0.9);
            let sends = tx.drive(&mut m, "tx", W / 8, valid);
            if rx.at == 0 {
                mac_on = busy || rng.random_bool(0.1);
            }
            let receives = rx.drive(&mut m, "mac_rx", W / 8, mac_on);
            if cycle % 50 == 0 {
                room = rng.random_bool(0.7);
            }
            m.set("room", room.into());
            m.set("mac_tx.ready", rng.random_bool(0.7).into());
            m.set("rx.ready", 1);
            m.eval();
            assert!(m.bit("mac_rx.ready"));
            drops += m.get("count") >> counter::TX_LINK_DOWN & 1;
            if m.bit("mac_tx.valid") && m.bit("mac_tx.ready") {
                sent.take(&m, "mac_tx");
            }
            if m.bit("rx.valid") {
                assert_eq!(m.bit("entered"), m.bit("rx.last"));
                let from_turned = m.bit("turned_in");
                arrived.take(&m, "rx");
                if m.bit("rx.last") {
                    let queue = if from_turned { &mut turned } else { &mut from_mac };
                    let want = queue.pop_front().expect("a frame that nobody sent");
                    let got = arrived.frames.pop().unwrap();
                    assert_eq!(got, want, "seed {seed}, cycle {cycle}, turned {from_turned}");
                }
            }
            let taken = sends && m.bit("tx.ready");
            m.tick();
            if taken {
                tx.step(W / 8);
            }
            if receives {
                rx.step(W / 8);
            }
            if tx.frames.is_empty() && turned.is_empty() && from_mac.is_empty() && sent.frames.len() == wire.len() {
                break;
            }
        }
        assert_eq!(sent.frames, wire, "seed {seed}");
        assert_eq!(drops, 0);
    }
}

#[test]
fn all_go_their_way_at_64_bits() {
    all_go_their_way::<64>();
}
#[test]
fn all_go_their_way_at_128_bits() {
    all_go_their_way::<128>();
}
#[test]
fn all_go_their_way_at_256_bits() {
    all_go_their_way::<256>();
}
#[test]
fn all_go_their_way_at_512_bits() {
    all_go_their_way::<512>();
}

/// Sends frames one after the other; returns what came out at the link and at ingress.
fn send(m: &mut Model, frames: &[Vec<u8>], cycles: usize) -> (Vec<Vec<u8>>, Vec<Vec<u8>>, [u64; 2]) {
    let mut tx = Driver { frames: frames.iter().cloned().collect(), at: 0 };
    let (mut sent, mut arrived, mut counts) = (Collector::default(), Collector::default(), [0; 2]);
    for _ in 0..cycles {
        let sends = tx.drive(m, "tx", 64, true);
        m.set("mac_rx.valid", 0);
        m.eval();
        for (n, which) in counts.iter_mut().zip([counter::TX_LOOPBACK, counter::TX_LINK_DOWN]) {
            *n += m.get("count") >> which & 1;
        }
        if m.bit("mac_tx.valid") && m.bit("mac_tx.ready") {
            sent.take(m, "mac_tx");
        }
        if m.bit("rx.valid") {
            arrived.take(m, "rx");
        }
        let taken = sends && m.bit("tx.ready");
        m.tick();
        if taken {
            tx.step(64);
        }
    }
    (sent.frames, arrived.frames, counts)
}

#[test]
fn without_link_ours_turn_round_and_the_others_are_lost() {
    let mut m = build::<512>();
    start(&mut m);
    m.set("link_up", 0);
    m.set("mac_tx.ready", 0);
    m.tick();
    let mut rng = verilate::rng(1);
    // One to a group that an empty row looks like.
    let frames = [PEER, PORT, GROUP, gid_mac(3), [1, 0, 0, 0, 0, 0], JOINED].map(|d| frame(&mut rng, d));
    let (sent, arrived, counts) = send(&mut m, &frames, 3000);
    assert_eq!(arrived, [frames[1].clone(), frames[3].clone(), frames[5].clone()]);
    assert!(sent.is_empty());
    assert_eq!(counts, [3, 4], "what goes both ways is counted on both");
}

#[test]
fn a_link_that_goes_down_under_a_frame_holds_nobody() {
    let mut m = build::<512>();
    let mut rng = verilate::rng(4);
    for beats in [0, 1, 5, 30] {
        start(&mut m);
        let mut long = |destination: [u8; 6]| {
            let mut f = vec![0; 40 * 64];
            rng.fill_bytes(&mut f);
            f[..6].copy_from_slice(&destination);
            f
        };
        let frames = [PEER, PORT, PEER, gid_mac(3)].map(&mut long);
        // The MAC takes some beats of the first frame, then the link goes down and it takes none.
        let mut tx = Driver { frames: frames.clone().into(), at: 0 };
        let (mut building, mut arrived, mut lost) = (vec![], Collector::default(), 0);
        let mut offered: Option<Vec<u8>> = None;
        let mut ends = vec![];
        for cycle in 0..1000 {
            let sends = tx.drive(&mut m, "tx", 64, true);
            m.set("mac_rx.valid", 0);
            let back = cycle >= 600;
            if cycle == 600 {
                // All but what the MAC was offered is through. Now it is back, with a frame more.
                assert!(tx.frames.is_empty() && !sends, "the first frame still stands in the way");
                assert_eq!(arrived.frames, [frames[1].clone(), frames[3].clone()]);
                assert_eq!(lost, 2);
                m.set("link_up", 1);
            }
            if cycle == 610 {
                tx.frames.push_back(frames[2].clone());
            }
            if building.len() == 64 * beats && !back {
                m.set("mac_tx.ready", 0);
                m.set("link_up", (cycle < 60) as u64);
            } else {
                m.set("mac_tx.ready", 1);
            }
            m.eval();
            lost += m.get("count") >> counter::TX_LINK_DOWN & 1;
            if m.bit("mac_tx.valid") {
                let beat = m.get_bytes("mac_tx.data");
                assert!(offered.is_none_or(|o| o == beat), "what is offered stays");
                offered = Some(beat.clone());
                if m.bit("mac_tx.ready") {
                    offered = None;
                    building.extend(beat);
                    if m.bit("mac_tx.last") {
                        ends.push((std::mem::take(&mut building), m.bit("mac_tx_error")));
                    }
                }
            } else {
                assert!(offered.is_none(), "an offer was withdrawn");
            }
            if m.bit("rx.valid") {
                arrived.take(&m, "rx");
            }
            let taken = sends && m.bit("tx.ready");
            m.tick();
            if taken {
                tx.step(64);
            }
        }
        // The MAC sees a frame cut short and marked so, then a whole one.
        assert_eq!(ends.len(), 2);
        assert!(ends[0].1 && ends[0].0.len() == 64 * (beats + 2) && ends[0].0[..64 * beats] == frames[0][..64 * beats]);
        assert_eq!(ends[1], (frames[2].clone(), false));
    }
}

#[test]
fn a_cleared_address_is_no_longer_ours() {
    let mut m = build::<512>();
    start(&mut m);
    let mut rng = verilate::rng(2);
    let f = frame(&mut rng, gid_mac(15));
    assert_eq!(send(&mut m, std::slice::from_ref(&f), 500), (vec![], vec![f.clone()], [1, 0]));
    set_gid(&mut m, 15, false);
    assert_eq!(send(&mut m, std::slice::from_ref(&f), 500), (vec![f], vec![], [0, 0]));
}

#[test]
fn what_has_turned_goes_on_while_the_link_is_paused() {
    let mut m = build::<512>();
    start(&mut m);
    m.set("mac_tx.ready", 0);
    m.set("room", 0);
    let mut rng = verilate::rng(3);
    let frames = [PORT, PEER].map(|d| frame(&mut rng, d));
    assert_eq!(send(&mut m, &frames, 500).1, [] as [Vec<u8>; 0]);
    m.set("room", 1);
    assert_eq!(send(&mut m, &[], 500).1, [frames[0].clone()]);
}

/// A frame that goes both ways waits for both: for a paused link, and for room in front of ingress.
#[test]
fn what_goes_both_ways_waits_for_both() {
    let mut m = build::<512>();
    let mut rng = verilate::rng(5);
    let frames: Vec<_> = (0..4)
        .map(|_| {
            let mut f = vec![0; wire::MAX_FRAME];
            rng.fill_bytes(&mut f);
            f[..6].copy_from_slice(&JOINED);
            f
        })
        .collect();
    start(&mut m);
    m.set("mac_tx.ready", 0);
    assert_eq!(send(&mut m, &frames[..1], 500), (vec![], vec![], [0, 0]));
    m.set("tx.valid", 0);
    start(&mut m);
    m.set("room", 0);
    // 16 KiB hold one of these. The next one does not begin, for a MAC cannot wait in the middle of one.
    let mut tx = Driver { frames: frames.into(), at: 0 };
    let mut beats = 0;
    for cycle in 0..2000 {
        let sends = tx.drive(&mut m, "tx", 64, true);
        m.set("mac_rx.valid", 0);
        m.set("mac_tx.ready", 1);
        m.set("room", (cycle > 1000).into());
        m.eval();
        let inside = beats % (wire::MAX_FRAME / 64) != 0;
        assert!(m.bit("mac_tx.valid") || !inside, "cycle {cycle}: a gap behind beat {beats}");
        beats += usize::from(m.bit("mac_tx.valid"));
        assert!(cycle > 1000 || beats <= wire::MAX_FRAME / 64, "cycle {cycle}");
        let taken = sends && m.bit("tx.ready");
        m.tick();
        if taken {
            tx.step(64);
        }
    }
    assert_eq!(beats, 4 * wire::MAX_FRAME / 64);
}

/// A link that goes down under a frame that goes both ways loses the link's half of it alone.
#[test]
fn a_link_that_goes_down_under_both_leaves_the_turned_half() {
    let mut m = build::<512>();
    let mut rng = verilate::rng(6);
    for beats in [0, 1, 7, 39] {
        start(&mut m);
        let mut f = vec![0; 40 * 64];
        rng.fill_bytes(&mut f);
        f[..6].copy_from_slice(&JOINED);
        let mut tx = Driver { frames: [f.clone()].into(), at: 0 };
        let (mut link, mut ends, mut arrived, mut counts) = (vec![], vec![], Collector::default(), [0; 2]);
        for cycle in 0..400 {
            let sends = tx.drive(&mut m, "tx", 64, true);
            m.set("mac_rx.valid", 0);
            let paused = link.len() == 64 * beats && cycle < 300;
            m.set("mac_tx.ready", (!paused).into());
            m.set("link_up", (!(100..300).contains(&cycle)).into());
            m.eval();
            for (n, which) in counts.iter_mut().zip([counter::TX_LOOPBACK, counter::TX_LINK_DOWN]) {
                *n += m.get("count") >> which & 1;
            }
            if m.bit("mac_tx.valid") && m.bit("mac_tx.ready") {
                link.extend(m.get_bytes("mac_tx.data"));
                if m.bit("mac_tx.last") {
                    ends.push((link.len() / 64, m.bit("mac_tx_error")));
                }
            }
            if m.bit("rx.valid") {
                assert!(!m.bit("rx_error"));
                arrived.take(&m, "rx");
            }
            let taken = sends && m.bit("tx.ready");
            m.tick();
            if taken {
                tx.step(64);
            }
        }
        assert!(arrived.frames == [f], "{beats} beats");
        // What was offered, and an end that says that it is none; the last beat makes the frame whole.
        let lost = beats < 39;
        assert_eq!(
            (ends, counts),
            (vec![(if lost { beats + 2 } else { 40 }, lost)], [1, lost.into()]),
            "{beats} beats"
        );
    }
}

/// Resets at any moment of frames to the MAC, which takes beats at any time: what was offered stays until it is taken, a frame that was begun ends
/// with an error, without a gap, and the frames behind it are whole.
fn resets_leave_no_frame_open<const W: usize>() {
    let mut m = build::<W>();
    let mut rng = verilate::rng(9);
    let (mut cuts, mut whole) = (0, 0);
    start(&mut m);
    let mut sent = Collector::default();
    let mut offered: Option<(Vec<u8>, u64, bool, bool)> = None;
    for _ in 0..verilate::scale(300) {
        write_row(&mut m, id::GID, 9, &[(gid::VALID, 1), (gid::MAC, word(JOINED))]);
        let mut frames: Vec<_> = (0..3)
            .map(|_| {
                let to = [PEER, JOINED, PORT][rng.random_range(0..3)];
                frame(&mut rng, to)
            })
            .collect();
        frames.iter_mut().for_each(|f| f.truncate(W * 3));
        let mut want: VecDeque<_> = frames.iter().filter(|f| f[..6] != PORT).cloned().collect();
        let mut tx = Driver { frames: frames.into(), at: 0 };
        write_row(&mut m, id::PORT, 0, &[(port::MAC, word(PORT))]);
        let (reset, hold) = (rng.random_range(0..100), rng.random_range(1..20));
        let pace = if rng.random_bool(0.3) { 0.05 } else { 0.7 };
        for cycle in 0..400 {
            let resets = (reset..reset + hold).contains(&cycle);
            if cycle == reset {
                tx = Driver::default();
                want.clear();
            }
            m.set("rst", resets.into());
            let sends = tx.drive(&mut m, "tx", W / 8, !resets);
            m.set("mac_rx.valid", 0);
            m.set("mac_tx.ready", (rng.random_bool(pace) || cycle > 300).into());
            m.eval();
            let is_valid = m.bit("mac_tx.valid");
            assert!(is_valid || sent.building.is_empty(), "a gap in a frame");
            let beat = (m.get_bytes("mac_tx.data"), m.get("mac_tx.bytes"), m.bit("mac_tx.last"), m.bit("mac_tx_error"));
            let now = is_valid.then_some(beat);
            assert!(offered.is_none() || offered == now, "what is offered stays");
            offered = now;
            if is_valid && m.bit("mac_tx.ready") {
                offered = None;
                sent.take(&m, "mac_tx");
                if let Some(f) = sent.frames.pop() {
                    if m.bit("mac_tx_error") {
                        cuts += 1;
                        assert!(cycle >= reset, "cut off before the reset");
                    } else if cycle < reset {
                        assert_eq!(want.pop_front(), Some(f));
                        whole += 1;
                    }
                }
            }
            let taken = sends && m.bit("tx.ready");
            m.tick();
            if taken {
                tx.step(W / 8);
            }
        }
        assert!(sent.building.is_empty() && offered.is_none(), "a frame is open");
    }
    assert!(cuts > 20 && whole > 20, "{cuts} cut off, {whole} whole");
}

#[test]
fn resets_leave_no_frame_open_at_512_bits() {
    resets_leave_no_frame_open::<512>();
}
#[test]
fn resets_leave_no_frame_open_at_64_bits() {
    resets_leave_no_frame_open::<64>();
}
