//! What the DMA reader does, against a host that answers in any order. See [`super`].

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
            ask(&mut s, &mut c, (tag % 4) as usize, tag / 4, 0x1000 * (tag + 1) + offset + 448 * (len & 1), len, tag);
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
    marks(77, 0.0);
}

/// What was offered at the mark and is then no longer asked for, as its epoch has ended, holds no drain, though its client is silent from then on.
#[test]
fn a_mark_does_not_wait_for_reads_that_nobody_asks_for_any_more() {
    marks(78, 0.2);
}

/// Marks among reads of all clients, of which those that are offered while a mark is waited for are taken back at a rate of `withdrawn` a cycle.
fn marks(seed: u64, withdrawn: f64) {
    let mut rng = verilate::rng(seed);
    let mut m = Model::of(|| DmaReader::<64>::new(8), Options::default()).unwrap();
    m.reset();
    let mut serial = 0u64;
    let mut offered: [Option<u64>; 4] = [None; 4];
    let (mut taken, mut flying): (Vec<u64>, Vec<(u64, u64)>) = (vec![], vec![]);
    let mut old: Option<Vec<u64>> = None;
    let (mut passes, mut overtaken, mut patience, mut forgotten) = (0, 0, 0, 0);
    let mut silent = [false; 4];
    for cycle in 0..verilate::scale(40_000) {
        for (i, offer) in offered.iter_mut().enumerate() {
            if let Some(before) = &mut old {
                if offer.is_some() && rng.random_bool(withdrawn) {
                    let serial = offer.take().unwrap();
                    forgotten += u64::from(before.contains(&serial));
                    before.retain(|s| *s != serial);
                    silent[i] = true;
                }
            } else {
                silent[i] = false;
            }
            if offer.is_none() && !silent[i] && rng.random_bool(0.1) {
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
        let back =
            (!flying.is_empty() && rng.random_bool(0.3)).then(|| flying.swap_remove(rng.random_range(0..flying.len())));
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
    // With fewer reads there is less to overtake.
    assert!(passes > 20 && (overtaken > 5 || withdrawn > 0.0), "{passes} {overtaken}");
    assert_eq!(forgotten > 20, withdrawn > 0.0, "{forgotten}");
}
