//! What the tests of channels share.

use rand::Rng;
use verilate::{
    Model,
    bench::{self, Sink, Source, Stall},
};

/// Random 77-bit messages through `s` and `m` of a block under all stalls: all come, in order, and at
/// `cycles_per_message` when nobody stalls.
pub fn pass(m: &mut Model, cycles_per_message: u64) {
    for (seed, stalls) in [
        (Stall::Never, Stall::Never),
        (Stall::Rate(0.5), Stall::Never),
        (Stall::Never, Stall::Rate(0.5)),
        (Stall::Rate(0.4), Stall::Rate(0.4)),
        (Stall::Random, Stall::Random),
    ]
    .into_iter()
    .enumerate()
    {
        m.reset();
        let seed = seed as u64;
        let (mut s, mut k) = (Source::new(m, "s", stalls.0, seed), Sink::new(m, "m", stalls.1, seed + 100));
        let mut rng = verilate::rng(seed);
        let messages: Vec<[u8; 10]> = (0..3000)
            .map(|_| {
                let mut message = [0; 10];
                rng.fill_bytes(&mut message);
                message[9] &= 0x1f;
                message
            })
            .collect();
        for message in &messages {
            let mut beat = s.beat();
            beat.set_bytes("data", message);
            s.push(beat);
        }
        k.expect(messages.len() as u64);
        let start = m.cycle();
        bench::run(m, &mut [&mut s, &mut k], 100_000);
        if stalls == (Stall::Never, Stall::Never) {
            let limit = messages.len() as u64 * cycles_per_message + 40;
            assert!(m.cycle() - start < limit, "{} cycles for {} messages", m.cycle() - start, messages.len());
        }
        for message in &messages {
            assert_eq!(k.pop().unwrap().bytes("data"), message);
        }
        assert!(k.is_empty());
    }
}
