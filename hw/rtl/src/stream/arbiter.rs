//! Arbiter of N channels onto one: first come, first served; keeps a packet of several messages together.
//!
//! ```text
//! cycle      0    1    2    3    4
//! s[0]       A         C              more[0] 0
//! s[1]       B         D              more[1] 1 with B: D belongs to B
//! m.data          A    B    D    C
//! ```
//! Every channel has a register for one message, and which of them is offered is decided in the cycle before: `s[i].ready` and
//! `m.valid` are registers, `m.data` is a multiplexer behind registers. A channel gives a message every second cycle, all
//! together one a cycle. While a packet is open only its channel is served: its source must bring the rest without waiting
//! for another channel of this arbiter.

use super::{Sink, Source};
use hdl::prelude::*;

/// Who is served: the deciding half of an [`Arbiter`], for blocks that keep the messages themselves. Of two messages the one that
/// was taken in an earlier cycle goes first, of one cycle the one of the lower channel.
#[derive(Clone, Debug, LogicBlock)]
pub struct FirstCome<const N: usize> {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// Channels that offer a message.
    pub offers: Signal<In, Bits<N>>,
    /// It is not the last of its packet.
    pub more: Signal<In, Bits<N>>,
    /// Channels whose register is empty: what they offer now is taken.
    pub ready: Signal<Out, Bits<N>>,
    /// The channel that is served, if `valid`; else any one or none.
    pub turn: Signal<Out, Bits<N>>,
    /// There is a message.
    pub valid: Signal<Out, Bit>,
    /// It leaves at the end of this cycle.
    pub leaves: Signal<In, Bit>,
    /// Channels that hold no message, and of the others whether it is not the last one of its packet.
    room: Reg<Bits<N>>,
    unfinished: DFF<Bits<N>>,
    /// By channel, those whose messages came before its own.
    before: Arr<DFF<Bits<N>>, N>,
    now: Reg<Bits<N>>,
    serves: Reg<Bit>,
    /// A packet of the channel that was served last is open.
    open: Reg<Bit>,
}

impl<const N: usize> Default for FirstCome<N> {
    fn default() -> Self {
        FirstCome {
            clock: Default::default(),
            rst: Default::default(),
            offers: Default::default(),
            more: Default::default(),
            ready: Default::default(),
            turn: Default::default(),
            valid: Default::default(),
            leaves: Default::default(),
            room: Reg::with_reset(!Bits::<N>::default()),
            unfinished: Default::default(),
            before: Default::default(),
            now: Default::default(),
            serves: Default::default(),
            open: Default::default(),
        }
    }
}

impl<const N: usize> Logic for FirstCome<N> {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, room, now, serves, open);
        dff_setup!(self, clock, unfinished, before);
        let (have, now) = (!self.room.q.val(), self.now.q.val());
        let comes = self.offers.val() & !have;
        let serves = self.serves.q.val();
        let goes = serves && self.leaves.val();
        // If somebody else is chosen, what is served now has gone. So the choice needs not know whether it goes.
        let left = if serves { have & !now } else { have };
        let next = left | comes;
        self.room.d.next = if goes { !next } else { !(have | comes) };
        self.unfinished.d.next = (self.unfinished.q.val() & have) | (self.more.val() & !have);
        let open = if serves { (self.unfinished.q.val() & now).any() } else { self.open.q.val() };

        let mut oldest: Bits<N> = 0.into();
        for i in 0..N {
            // What comes now is behind all that is here, and behind lower channels of its own cycle.
            let lower: Bits<N> = elab!(bits::<N>((1u64 << i) - 1));
            let before = if have.get_bit(i) { self.before[i].q.val() } else { have | (comes & lower) };
            self.before[i].d.next = if goes { before & !now } else { before };
            let mine = if have.get_bit(i) { self.before[i].q.val() & left } else { left | (comes & lower) };
            oldest = oldest.replace_bit(i, next.get_bit(i) && !mine.any());
        }
        if goes || !serves {
            self.open.d.next = open;
            // An open packet's channel stays, with or without a message. Else some message is the oldest, if there is any.
            self.serves.d.next = if open { (next & now).any() } else { next.any() };
            if !open {
                self.now.d.next = oldest;
            }
        }
        self.ready.next = self.room.q.val();
        self.turn.next = now;
        self.valid.next = serves;
    }
}

/// Arbiter of N channels, 2 to 8. `more` bit i says that the message now on `s[i]` is not the last of its packet;
/// drive 0 where every message stands alone.
#[derive(Clone, Debug, Default, LogicBlock)]
pub struct Arbiter<T: Synth, const N: usize> {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    pub s: Arr<Sink<T>, N>,
    pub more: Signal<In, Bits<N>>,
    pub m: Source<T>,
    turns: FirstCome<N>,
    held: Arr<DFF<T>, N>,
}

impl<T: Synth, const N: usize> Logic for Arbiter<T, N> {
    #[kernel]
    fn update(&mut self) {
        dff_setup!(self, clock, held);
        clock_reset!(self, clock, rst, turns);
        let (ready, turn) = (self.turns.ready.val(), self.turns.turn.val());
        let mut offers: Bits<N> = 0.into();
        let mut chosen = self.held[0].q.val();
        for i in 0..N {
            let valid = self.s[i].valid.val();
            offers = offers.replace_bit(i, valid);
            self.s[i].ready.next = ready.get_bit(i);
            if valid && ready.get_bit(i) {
                self.held[i].d.next = self.s[i].data.val();
            }
            if turn.get_bit(i) {
                chosen = self.held[i].q.val();
            }
        }
        self.turns.offers.next = offers;
        self.turns.more.next = self.more.val();
        self.turns.leaves.next = self.m.ready.val();
        self.m.valid.next = self.turns.valid.val();
        self.m.data.next = chosen;
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
        let cases = [(Stall::Never, 1.0), (Stall::Never, 0.5), (Stall::Rate(0.5), 0.5), (Stall::Random, 0.5)];
        for (seed, (stall, single)) in cases.into_iter().enumerate() {
            let seed = seed as u64;
            m.reset();
            let mut rng = verilate::rng(seed);
            let mut feeds: Vec<_> = (0..3).map(|i| Feed::new(&m, &format!("s[{i}]"), stall, seed * 10 + i)).collect();
            let mut drain = Drain::new(&m, "m", stall, seed + 5);
            let per_channel = 1000;
            for (i, feed) in feeds.iter_mut().enumerate() {
                for number in 0..per_channel {
                    let last = number + 1 == per_channel || rng.random_bool(single);
                    feed.push(feed.beat().with("data", message(i as u64, number, last)));
                }
            }
            drain.expect(3 * per_channel);
            let [a, b, c] = &mut feeds[..] else { unreachable!() };
            let start = m.cycle();
            bench::run(&mut m, &mut [a, b, c, &mut More, &mut drain], 100_000);
            if stall == Stall::Never {
                // A message that has to come behind one of its own channel costs a cycle more.
                let most = if single == 1.0 { 3 * per_channel } else { 5 * per_channel };
                assert!(m.cycle() - start < most + 40, "{} cycles", m.cycle() - start);
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
