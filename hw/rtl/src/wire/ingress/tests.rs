//! Ingress against a reference that judges whole frames, byte by byte.

use super::super::testing::{GOLDEN, captured, unhex};
use super::*;
use crate::msg::TableReq;
use abi::table::{GIDS, gid, multicast, port};
use rand::{Rng, RngExt};
use rand_chacha::ChaCha8Rng;
use std::collections::VecDeque;
use verilate::{
    Model, Options,
    bench::{Actor, Beat, Sink as Drain, Stall, cycle},
    scale,
};

mod frames;
mod reference;
use frames::*;
use reference::*;

/// Builds the block and writes its rows.
fn build<const W: usize>(buffer: usize) -> Model {
    let options = Options { name: Some(format!("Ingress{W}")), ..Options::default() };
    Model::of(|| Ingress::<W>::new(buffer), options).unwrap()
}

fn write(m: &mut Model, table: u8, index: usize, row: &[u8]) {
    let req =
        TableReq { table: bits::<4>(table as u64), index: bits::<24>(index as u64), write: true, row: little(row) };
    m.set_bytes("table.req", &verilate::bits::of(req));
    m.set("table.valid", 1);
    m.eval();
    assert!(m.bit("table.ready"));
    m.tick();
    m.set("table.valid", 0);
    m.tick();
}

fn configure(m: &mut Model, setup: &Setup) {
    let mac = |mac: [u8; 6]| mac.iter().rev().fold(0, |n, b| n << 8 | *b as u64);
    let mut rows = vec![];
    for (i, address) in setup.gids.iter().enumerate() {
        let mut row = [0; 64];
        gid::VALID.set(&mut row, 1);
        gid::IS_IP6.set(&mut row, (address.ip.len() == 16) as u64);
        gid::TAGGED.set(&mut row, address.vlan.is_some() as u64);
        gid::VLAN.set(&mut row, address.vlan.unwrap_or(0) as u64);
        gid::MAC.set(&mut row, mac(address.mac));
        row[16..16 + address.ip.len()].copy_from_slice(&address.ip);
        rows.push((id::GID, i, row));
    }
    let mut row = [0; 64];
    port::MAC.set(&mut row, mac(setup.mac));
    port::RAW_ON.set(&mut row, setup.raw_on as u64);
    port::PROMISCUOUS.set(&mut row, setup.promiscuous as u64);
    rows.push((id::PORT, 0, row));
    for (i, group) in setup.groups.iter().enumerate() {
        let mut row = [0; 64];
        multicast::VALID.set(&mut row, 1);
        multicast::MAC.set(&mut row, mac(*group));
        rows.push((id::MULTICAST, i, row));
    }
    for (table, index, row) in &rows {
        write(m, *table, *index, row);
    }
    // A lookup in turns sees them all a round later.
    (0..16).for_each(|_| m.tick());
}

/// The MAC and the buffer with its reader.
struct World {
    beat: usize,
    rng: ChaCha8Rng,
    gaps: f64,
    frames: VecDeque<Sent>,
    at: usize,
    buffer: Vec<u8>,
    drops: VecDeque<usize>,
    marks: usize,
    /// QPs that were announced.
    soon: Vec<u64>,
    freed: usize,
}

impl World {
    fn new(beat: usize, buffer: usize, gaps: f64, seed: u64, frames: Vec<Sent>) -> Self {
        let rng = verilate::rng(seed);
        let (frames, buffer) = (frames.into(), vec![0; buffer]);
        World { beat, rng, gaps, frames, at: 0, buffer, drops: VecDeque::new(), marks: 0, soon: vec![], freed: 0 }
    }
}

impl Actor for World {
    fn drive(&mut self, m: &mut Model) {
        let send = !self.frames.is_empty() && !self.rng.random_bool(self.gaps);
        let mut data = vec![0; self.beat];
        self.rng.fill_bytes(&mut data);
        m.set("mac.valid", send as u64);
        m.set("mac_error", self.rng.random_range(0..2));
        if send {
            let (frame, error) = &self.frames[0];
            let chunk = &frame[self.at..frame.len().min(self.at + self.beat)];
            data[..chunk.len()].copy_from_slice(chunk);
            let last = self.at + self.beat >= frame.len();
            m.set("mac.bytes", chunk.len() as u64);
            m.set("mac.last", last as u64);
            if last {
                m.set("mac_error", *error as u64);
            }
            self.at += self.beat;
            if last {
                self.at = 0;
                self.frames.pop_front();
            }
        }
        m.set_bytes("mac.data", &data);
        m.set("freed", self.freed as u64);
        self.freed = 0;
    }
    fn observe(&mut self, m: &Model) {
        assert!(m.bit("mac.ready"));
        if m.bit("buf_we") {
            let (at, bytes) = (m.get("buf_addr") as usize, m.get("buf_bytes") as usize);
            assert_eq!((at % self.beat, bytes), (0, self.beat));
            let at = at % self.buffer.len();
            self.buffer[at..at + bytes].copy_from_slice(m.bytes("buf_data"));
        }
        if m.bit("soon_valid") {
            self.soon.push(m.get("soon"));
        }
        let count = m.get("count");
        for k in (0..64).filter(|k| count >> k & 1 == 1) {
            if k == counter::RX_CE {
                self.marks += 1;
            } else {
                self.drops.push_back(k);
            }
        }
    }
    fn done(&self) -> bool {
        self.frames.is_empty()
    }
    fn status(&self) -> String {
        format!("{} frames left", self.frames.len())
    }
}

/// How the frames are sent and the buffer is emptied.
#[derive(Clone, Copy)]
struct Pace {
    gaps: f64,
    stall: Stall,
    /// The reader frees a frame in a cycle with this probability.
    frees: f64,
    /// Frames may be dropped for want of room.
    may_lack_room: bool,
    seed: u64,
}

const EASY: Pace = Pace { gaps: 0.0, stall: Stall::Never, frees: 1.0, may_lack_room: false, seed: 1 };

#[derive(Debug, Default, PartialEq)]
struct Tally {
    passed: usize,
    raw: usize,
    dropped: usize,
    no_room: usize,
    cycles: u64,
}

/// Sends frames and compares every verdict with the reference.
fn check(m: &mut Model, setup: &Setup, buffer: usize, pace: Pace, frames: &[Sent]) -> Tally {
    let beat = m.width("mac.data") / 8;
    let mut world = World::new(beat, buffer, pace.gaps, pace.seed, frames.to_vec());
    let mut drain = Drain::new(m, "meta", pace.stall, pace.seed + 1);
    let mut held: VecDeque<(Beat, usize)> = VecDeque::new();
    let mut metas: VecDeque<Beat> = VecDeque::new();
    let mut tally = Tally::default();
    let mut marks = 0;
    let mut next = frames.iter().enumerate();
    let mut rng = verilate::rng(pace.seed + 2);
    let start = m.cycle();
    let (mut quiet, mut waiting) = (0, None);
    while quiet < 200 {
        cycle(m, &mut [&mut world, &mut drain]);
        metas.extend(drain.pop());
        let mut busy = !world.frames.is_empty() || !held.is_empty();
        if world.frames.is_empty() && tally.cycles == 0 {
            tally.cycles = m.cycle() - start;
        }
        // Match verdicts with frames, in order.
        loop {
            if waiting.is_none() {
                waiting = next.next().map(|(i, f)| (i, judge(&f.0, f.1, setup, beat)));
            }
            let Some((i, verdict)) = &waiting else { break };
            let frame = &frames[*i].0;
            let about = || format!("seed {}, frame {i} of {} bytes: {frame:02x?}", pace.seed, frame.len());
            match verdict {
                Verdict::Drop(want) => {
                    let Some(got) = world.drops.pop_front() else { break };
                    let excused = pace.may_lack_room && got == counter::RX_NO_ROOM && *want != counter::RX_MAC_ERROR;
                    let name = |k: usize| counter::NAMES[k].0;
                    assert!(got == *want || excused, "{} instead of {}, {}", name(got), name(*want), about());
                    tally.dropped += 1;
                    tally.no_room += (got == counter::RX_NO_ROOM) as usize;
                }
                Verdict::Pass(want) => {
                    let same = |got: &Beat| {
                        let mut expect: RxMeta = **want;
                        expect.buf = bits::<20>(got.get("buf"));
                        expect.rows = bits::<12>(got.get("rows"));
                        if expect.raw {
                            return got.get("raw") == 1 && got.get("payload") == want.payload.to_u64();
                        }
                        drain.message(expect) == *got
                    };
                    let content = |got: &Beat, world: &World| {
                        let (at, bytes) = (got.get("buf") as usize, got.get("payload") as usize);
                        let from = want.buf.to_u64() as usize;
                        (0..bytes).all(|k| world.buffer[(at + k) % buffer] == frame[from + k])
                    };
                    if let Some(got) = metas.front() {
                        if same(got) && content(got, &world) {
                            let own = want.rows.to_u64();
                            assert!(got.get("rows") >= own);
                            tally.passed += 1;
                            tally.raw += want.raw as usize;
                            marks += (want.ce && !want.raw) as usize;
                            held.push_back((metas.pop_front().unwrap(), *i));
                            waiting = None;
                            busy = true;
                            continue;
                        }
                        assert!(pace.may_lack_room, "{got:?} instead of {:?}, {}", drain.message(**want), about());
                    } else if quiet < 150 {
                        break; // its meta data may still come
                    }
                    let Some(got) = world.drops.pop_front() else { break };
                    let excused = pace.may_lack_room && got == counter::RX_NO_ROOM;
                    assert!(excused, "{} instead of {:?}, {}", counter::NAMES[got].0, drain.message(**want), about());
                    tally.no_room += 1;
                }
            }
            waiting = None;
            busy = true;
        }
        // The reader: the payload is still there when the frame is freed.
        if !held.is_empty() && rng.random_bool(pace.frees) {
            let (got, i) = held.pop_front().unwrap();
            let Verdict::Pass(want) = judge(&frames[i].0, false, setup, beat) else { unreachable!() };
            let (at, from) = (got.get("buf") as usize, want.buf.to_u64() as usize);
            for k in 0..got.get("payload") as usize {
                assert_eq!(world.buffer[(at + k) % buffer], frames[i].0[from + k], "frame {i} was overwritten");
            }
            world.freed = got.get("rows") as usize;
        }
        quiet = if busy { 0 } else { quiet + 1 };
    }
    assert!(waiting.is_none(), "frame {} has no verdict", waiting.unwrap().0);
    assert!(world.drops.is_empty() && metas.is_empty(), "verdicts without a frame");
    assert_eq!(world.marks, marks, "CE marks");
    tally
}

/// Captured and golden frames, each group with the addresses it was sent to.
fn captures<const W: usize>() {
    let mut m = build::<W>(1 << 16);
    let mut frames: Vec<_> = captured();
    frames.extend(GOLDEN.iter().map(|hex| unhex(hex)));
    let address = |f: &Vec<u8>| Address {
        mac: f[..6].try_into().unwrap(),
        vlan: None,
        ip: if f[12] == 8 { f[30..34].to_vec() } else { f[38..54].to_vec() },
    };
    let mut all: Vec<Address> = vec![];
    for frame in &frames {
        let a = address(frame);
        if !all.contains(&a) {
            all.push(a);
        }
    }
    for group in all.chunks(GIDS) {
        let setup = Setup { gids: group.to_vec(), ..Default::default() };
        m.reset();
        configure(&mut m, &setup);
        let chosen: Vec<Sent> =
            frames.iter().filter(|f| group.contains(&address(f))).map(|f| (f.clone(), false)).collect();
        let tally = check(&mut m, &setup, 1 << 16, EASY, &chosen);
        assert_eq!((tally.passed, tally.raw), (chosen.len(), 0));
        // One flipped bit each, in what the ICRC covers: none may pass.
        let mut rng = verilate::rng(3);
        let flipped: Vec<Sent> = chosen
            .iter()
            .map(|(f, _)| {
                let mut f = f.clone();
                let bit = rng.random_range(12 * 8..f.len() * 8);
                f[bit / 8] ^= 1 << (bit % 8);
                (f, false)
            })
            .collect();
        check(&mut m, &setup, 1 << 16, EASY, &flipped);
    }
}

/// The reference itself agrees with etherparse about the captured frames.
#[test]
fn the_reference_decodes_captures_as_etherparse_does() {
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};
    for f in captured() {
        let sliced = SlicedPacket::from_ethernet(&f).unwrap();
        let Some(TransportSlice::Udp(udp)) = sliced.transport else { panic!() };
        let ip6 = matches!(sliced.net, Some(NetSlice::Ipv6(_)));
        let (sip, dip) = match sliced.net.unwrap() {
            NetSlice::Ipv4(ip) => (ip.header().source().to_vec(), ip.header().destination().to_vec()),
            NetSlice::Ipv6(ip) => (ip.header().source().to_vec(), ip.header().destination().to_vec()),
            _ => panic!(),
        };
        let gids = vec![Address { mac: f[..6].try_into().unwrap(), vlan: None, ip: dip }];
        let Verdict::Pass(meta) = judge(&f, false, &Setup { gids, ..Default::default() }, 64) else {
            panic!("{f:02x?}")
        };
        let bth = udp.payload();
        assert_eq!(meta.sip, little::<128>(&sip));
        assert_eq!(meta.ip6, ip6);
        assert_eq!(meta.opcode.to_u64(), bth[0] as u64);
        assert_eq!(meta.psn.to_u64(), u32::from_be_bytes([0, bth[9], bth[10], bth[11]]) as u64);
        assert_eq!(meta.qpn.to_u64(), u32::from_be_bytes([0, bth[5], bth[6], bth[7]]) as u64);
        let end = meta.buf.to_u64() + meta.payload.to_u64() + meta.pad.to_u64() + 4;
        assert_eq!(end as usize, f.len());
    }
}

#[test]
fn captures_pass_at_64_bits() {
    captures::<64>();
}
#[test]
fn captures_pass_at_512_bits() {
    captures::<512>();
}

/// Random frames of all kinds, under all paces.
fn random<const W: usize>(buffer: usize, count: usize) {
    let mut m = build::<W>(buffer);
    let mut seeds = verilate::rng(W as u64);
    let paces = [
        EASY,
        Pace { gaps: 0.5, stall: Stall::Random, frees: 0.2, may_lack_room: true, ..EASY },
        Pace { gaps: 0.0, stall: Stall::Rate(0.9), frees: W as f64 / 20_000.0, may_lack_room: true, ..EASY },
    ];
    for (i, pace) in paces.into_iter().cycle().take(6).enumerate() {
        let pace = Pace { seed: seeds.random_range(0..1 << 40), ..pace };
        println!("{W} bits, seed {}", pace.seed);
        let mut rng = verilate::rng(pace.seed);
        let mut setup = setup(&mut rng);
        (setup.raw_on, setup.promiscuous) = [(true, false), (false, true), (true, true)][i % 3];
        m.reset();
        configure(&mut m, &setup);
        let largest = if pace.may_lack_room { buffer / 4 } else { buffer / 8 };
        let frames: Vec<Sent> = (0..count).map(|_| any_frame(&mut rng, &setup, largest.min(1500))).collect();
        let tally = check(&mut m, &setup, buffer, pace, &frames);
        println!("{tally:?}");
        assert!(tally.passed > count / 10 && tally.dropped > count / 10);
        // Nothing has leaked: the buffer takes as many frames as it has room for, when nobody frees any.
        let frame = roce(&mut rng, &setup.gids[0], 4, 64);
        let (capacity, rows) = (buffer / (W / 8), frame.len().div_ceil(W / 8));
        let mut world = World::new(W / 8, buffer, 0.0, 1, vec![(frame, false); capacity / rows + 10]);
        let mut drain = Drain::new(&m, "meta", Stall::Never, 1);
        for _ in 0..capacity + 20 * rows + 100 {
            cycle(&mut m, &mut [&mut world, &mut drain]);
        }
        assert_eq!(drain.len(), capacity / rows);
        assert!(world.drops.iter().all(|k| *k == counter::RX_NO_ROOM));
    }
}

#[test]
fn random_frames_at_64_bits() {
    random::<64>(1 << 13, scale(1000));
}
#[test]
fn random_frames_at_128_bits() {
    random::<128>(1 << 14, scale(300));
}
#[test]
fn random_frames_at_256_bits() {
    random::<256>(1 << 14, scale(300));
}
#[test]
fn random_frames_at_512_bits() {
    random::<512>(1 << 14, scale(1000));
}

/// What is announced are the QPs of RoCE frames; what lies where a raw frame would have its BTH is nobody's QP.
fn announces<const W: usize>() {
    let mut m = build::<W>(1 << 16);
    let mut rng = verilate::rng(13);
    let setup = Setup { promiscuous: true, ..setup(&mut rng) };
    m.reset();
    configure(&mut m, &setup);
    let mut qpns = vec![];
    let mut frames = vec![];
    for i in 0..200 {
        let mut frame = roce(&mut rng, &setup.gids[i % STATIONS], 4, 64);
        let ip = ip_at(&frame);
        let bth = ip + if frame[ip] >> 4 == 6 { 48 } else { 28 };
        match i % 4 {
            // To another MAC, to another port, and one that does not pass.
            1 => frame[5] ^= 0x55,
            2 => frame[bth - 6] ^= 1,
            3 => frame[bth - 4] ^= 1,
            _ => qpns.push(big::<24>(&frame[bth + 5..bth + 8]).to_u64()),
        }
        frames.push((frame, false));
    }
    let mut world = World::new(W / 8, 1 << 16, 0.0, 1, frames);
    let mut drain = Drain::new(&m, "meta", Stall::Never, 1);
    while !world.done() {
        cycle(&mut m, &mut [&mut world, &mut drain]);
    }
    (0..50).for_each(|_| cycle(&mut m, &mut [&mut world, &mut drain]));
    assert_eq!(drain.len(), 150);
    assert_eq!(world.soon, qpns);
}

#[test]
fn raw_frames_are_not_announced_at_64_bits() {
    announces::<64>();
}
#[test]
fn raw_frames_are_not_announced_at_512_bits() {
    announces::<512>();
}

/// Every length up to over the maximum, as garbage and as good frames where possible.
#[test]
fn every_length_at_512_bits() {
    let buffer = 1 << 16;
    let mut m = build::<512>(buffer);
    let mut rng = verilate::rng(11);
    let setup = setup(&mut rng);
    m.reset();
    configure(&mut m, &setup);
    let mut frames = vec![];
    for n in (1..300).chain((300..9300).step_by(97)).chain(9150..9300) {
        let mut garbage = vec![0; n];
        rng.fill_bytes(&mut garbage);
        frames.push((garbage, false));
        frames.push((roce(&mut rng, &setup.gids[n % GIDS], 1, n - 1), false));
    }
    let tally = check(&mut m, &setup, buffer, EASY, &frames);
    println!("{tally:?}");
}

/// Frames of the smallest and of a common size, back to back: nothing is lost, and no cycle either.
fn back_to_back<const W: usize>(payloads: &[(u8, usize)]) {
    let buffer = 1 << 16;
    let mut m = build::<W>(buffer);
    let mut rng = verilate::rng(12);
    let setup = setup(&mut rng);
    for (opcode, payload) in payloads {
        m.reset();
        configure(&mut m, &setup);
        // To all addresses in turn: rows that are looked up last count as those that are looked up first.
        let frame = |i| {
            let to = &setup.gids[i % GIDS];
            (roce(&mut rng, to, if is_group(to) { 0x64 } else { *opcode }, *payload), false)
        };
        let frames: Vec<Sent> = (0..2000).map(frame).collect();
        let beats: u64 = frames.iter().map(|f| f.0.len().div_ceil(W / 8) as u64).sum();
        let tally = check(&mut m, &setup, buffer, EASY, &frames);
        println!("{W} bits, {} bytes: {} cycles for {} frames", frames[0].0.len(), tally.cycles, frames.len());
        assert_eq!((tally.passed, tally.cycles), (frames.len(), beats));
    }
}

#[test]
fn back_to_back_at_64_bits() {
    back_to_back::<64>(&[(4, 0)]);
}
#[test]
fn back_to_back_at_128_bits() {
    back_to_back::<128>(&[(4, 0)]);
}
#[test]
fn back_to_back_at_256_bits() {
    back_to_back::<256>(&[(4, 0)]);
}
#[test]
fn back_to_back_at_512_bits() {
    back_to_back::<512>(&[(0x11, 0), (4, 0), (4, 64), (1, 4096)]);
}
