//! Round-robin arbiter of N channels onto one; keeps a packet of several messages together.
//!
//! ```text
//! cycle      0    1    2    3
//! s[0]       A    C    C           more[0] 0
//! s[1]       B    B    D           more[1] 1 with B: D belongs to B
//! m.data          A    B    D ..
//! ```
//! The output is a register, full rate. While a packet is open only its channel is served: its source must bring the
//! rest without waiting for another channel of this arbiter.

use super::{Sink, Source};
use hdl::prelude::*;

/// Arbiter of N channels, 2 or more. `more` bit i says that the message now on `s[i]` is not the last of its packet;
/// drive 0 where every message stands alone.
#[derive(Clone, Debug, Default, LogicBlock)]
pub struct Arbiter<T: Synth, const N: usize> {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    pub s: Arr<Sink<T>, N>,
    pub more: Signal<In, Bits<N>>,
    pub m: Source<T>,
    /// Channels behind the one that was served last.
    behind: Reg<Bits<N>>,
    /// The channel whose packet is open, or none.
    open: Reg<Bits<N>>,
    valid: Reg<Bit>,
    data: DFF<T>,
}

/// The lowest set bit.
#[hdl_fn]
fn lowest<const N: usize>(x: Bits<N>) -> Bits<N> {
    x & (!x + 1)
}

impl<T: Synth, const N: usize> Logic for Arbiter<T, N> {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, behind, open, valid);
        dff_setup!(self, clock, data);
        let mut offered: Bits<N> = 0.into();
        for i in 0..N {
            offered = offered.replace_bit(i, self.s[i].valid.val());
        }
        let next = offered & self.behind.q.val();
        let fair = if next.any() { lowest(next) } else { lowest(offered) };
        let grant = if self.open.q.val().any() { offered & self.open.q.val() } else { fair };
        let free = self.m.ready.val() || !self.valid.q.val();
        let mut chosen = self.data.q.val();
        for i in 0..N {
            self.s[i].ready.next = free && grant.get_bit(i);
            if grant.get_bit(i) {
                chosen = self.s[i].data.val();
            }
        }
        if free {
            self.valid.d.next = grant.any();
            self.data.d.next = chosen;
            if grant.any() {
                self.behind.d.next = !(grant | (grant - 1));
                self.open.d.next = grant & self.more.val();
            }
        }
        self.m.valid.next = self.valid.q.val();
        self.m.data.next = self.data.q.val();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::RngExt;

    use verilate::{
        Model, Options,
        bench::{self, Actor, Sink as Drain, Source as Feed, Stall},
    };

    /// Message: bit 0 last of its packet, bits 15:8 channel, 31:16 number.
    fn message(channel: u64, number: u64, last: bool) -> u64 {
        u64::from(last) | channel << 8 | number << 16
    }

    /// Drives `more` from the messages on the channels.
    struct More;
    impl Actor for More {
        fn drive(&mut self, m: &mut Model) {
            let more = (0..3).map(|i| (m.get(format!("s[{i}].data").as_str()) & 1 ^ 1) << i).sum();
            m.set("more", more);
        }
        fn observe(&mut self, _: &Model) {}
        fn done(&self) -> bool {
            true
        }
        fn status(&self) -> String {
            String::new()
        }
    }

    #[test]
    fn packets_stay_whole_and_channels_take_turns() {
        let mut m = Model::of(Arbiter::<Bits<32>, 3>::default, Options::default()).unwrap();
        for (seed, stall) in [Stall::Never, Stall::Rate(0.5), Stall::Random].into_iter().enumerate() {
            let seed = seed as u64;
            m.reset();
            let mut rng = verilate::rng(seed);
            let mut feeds: Vec<_> = (0..3).map(|i| Feed::new(&m, &format!("s[{i}]"), stall, seed * 10 + i)).collect();
            let mut drain = Drain::new(&m, "m", stall, seed + 5);
            let per_channel = 1000;
            for (i, feed) in feeds.iter_mut().enumerate() {
                for number in 0..per_channel {
                    let last = number + 1 == per_channel || rng.random_bool(0.5);
                    feed.push(feed.beat().with("data", message(i as u64, number, last)));
                }
            }
            drain.expect(3 * per_channel);
            let [a, b, c] = &mut feeds[..] else { unreachable!() };
            let start = m.cycle();
            bench::run(&mut m, &mut [a, b, c, &mut More, &mut drain], 100_000);
            if stall == Stall::Never {
                assert!(m.cycle() - start < 3 * per_channel + 40, "not full rate");
            }
            let (mut next, mut open, mut order) = ([0; 3], None, vec![]);
            while let Some(beat) = drain.pop() {
                let word = beat.get("data");
                let (last, channel, number) = (word & 1 == 1, (word >> 8 & 0xff) as usize, word >> 16);
                assert_eq!(number, next[channel], "channel {channel} out of order");
                assert!(open.is_none_or(|c| c == channel), "a packet was split");
                next[channel] += 1;
                if open.is_none() {
                    order.push(channel);
                }
                open = (!last).then_some(channel);
            }
            if stall == Stall::Never {
                assert!(order[..300].windows(3).all(|w| w[0] != w[1] && w[1] != w[2] && w[0] != w[2]), "not in turn");
            }
        }
    }
}
