//! The order of writes: four sources onto the one channel to the host, first come, first served.
//!
//! ```text
//! landing (from the receive buffer) --+
//! completion (inline) ----------------+--> m: dma_write
//! event (inline) ---------------------+
//! control (inline) -------------------+
//! ```
//! A [`crate::stream::Arbiter`] that keeps of each message only what its source can say: landing has 8 bytes of inline data (of
//! atomics) at most, the others have nothing else, events no more than 16 bytes of it. A write that is taken here is ordered, before all that are taken in later cycles, and counts in `issued`.
//!
//! Cannot deadlock: it waits for `dma_write` only.

use crate::{
    msg::{BufAddr, DmaWrite},
    stream::{FirstCome, Sink, Source},
};
use hdl::prelude::*;

/// Sources, by channel.
pub mod writer {
    /// Payload, from the receive buffer; or what atomics write, inline.
    pub const LANDING: usize = 0;
    /// Completion queue entries; inline, as the next two.
    pub const COMPLETION: usize = 1;
    /// Event queue entries and interrupts.
    pub const EVENT: usize = 2;
    /// The mailbox.
    pub const CONTROL: usize = 3;
}

/// See the module.
#[derive(LogicBlock, Default)]
pub struct WriteOrder {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// Writes, by [`writer`].
    pub s: Arr<Sink<DmaWrite>, 4>,
    pub m: Source<DmaWrite>,
    /// Writes of at least a byte that were taken up to the last cycle, modulo 2^16.
    pub issued: Signal<Out, Bits<16>>,
    turns: FirstCome<4>,
    iova: Arr<DFF<Bits<64>>, 4>,
    len: Arr<DFF<Bits<14>>, 4>,
    /// Landing's.
    buf: DFF<BufAddr>,
    rows: DFF<Bits<12>>,
    is_inline: DFF<Bit>,
    value: DFF<Bits<64>>,
    /// The others'.
    data: Arr<DFF<Bits<256>>, 3>,
    taken: Reg<Bits<16>>,
}

impl Logic for WriteOrder {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, taken);
        dff_setup!(self, clock, iova, len, buf, rows, is_inline, value, data);
        clock_reset!(self, clock, rst, turns);
        let (ready, turn) = (self.turns.ready.val(), self.turns.turn.val());
        let mut offers: Bits<4> = 0.into();
        let mut count: Bits<16> = 0.into();
        let mut data: Bits<256> = 0.into();
        let mut iova = self.iova[0].q.val();
        let mut len = self.len[0].q.val();
        for i in 0..4 {
            let write = self.s[i].data.val();
            let offered = self.s[i].valid.val();
            let takes = offered && ready.get_bit(i);
            offers = offers.replace_bit(i, offered);
            self.s[i].ready.next = ready.get_bit(i);
            if takes {
                self.iova[i].d.next = write.iova;
                self.len[i].d.next = write.len;
            }
            // Only landing has writes of no bytes.
            if takes && (i > 0 || write.len.any()) {
                count += 1;
            }
            if turn.get_bit(i) {
                iova = self.iova[i].q.val();
                len = self.len[i].q.val();
            }
        }
        let write = self.s[elab!(writer::LANDING)].data.val();
        if ready.get_bit(elab!(writer::LANDING)) {
            self.buf.d.next = write.buf;
            self.rows.d.next = write.rows;
            self.is_inline.d.next = write.is_inline;
            self.value.d.next = write.data.get_bits::<64>(0);
        }
        for i in 1..4 {
            let mut said = self.s[i].data.val().data;
            if i == writer::EVENT {
                said = said.get_bits::<128>(0).cast::<256>();
            }
            if ready.get_bit(i) && self.s[i].valid.val() {
                self.data[i - 1].d.next = said;
            }
            if turn.get_bit(i) {
                data |= self.data[i - 1].q.val();
            }
        }
        self.turns.offers.next = offers;
        self.turns.more.next = 0.into();
        self.turns.leaves.next = self.m.ready.val();
        self.taken.d.next = self.taken.q.val() + count;
        self.issued.next = self.taken.q.val();
        let landing = turn.get_bit(elab!(writer::LANDING));
        if landing {
            data |= self.value.q.val().cast::<256>();
        }
        self.m.valid.next = self.turns.valid.val();
        self.m.data.next = DmaWrite {
            iova: iova,
            len: len,
            is_inline: !landing || self.is_inline.q.val(),
            buf: if landing { self.buf.q.val() } else { 0.into() },
            data: data,
            rows: if landing { self.rows.q.val() } else { 0.into() },
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::RngExt;
    use std::collections::VecDeque;
    use verilate::{
        Model, Options,
        bench::{self, Actor, Sink as Drain, Source as Feed, Stall},
        scale,
    };

    /// Notes when each channel's message is taken, and looks at the count. A channel that is ready stays so until it has taken a message:
    /// landing counts on that, for it asks a cycle before it writes.
    #[derive(Default)]
    struct Watch {
        ready: [bool; 4],
        taken: VecDeque<(u64, usize)>,
        issued: u64,
    }
    impl Actor for Watch {
        fn drive(&mut self, _: &mut Model) {}
        fn observe(&mut self, m: &Model) {
            assert_eq!(m.get("issued"), self.issued & 0xffff);
            for i in 0..4 {
                let [valid, ready] = ["valid", "ready"].map(|end| m.bit(format!("s[{i}].{end}").as_str()));
                assert!(ready || !self.ready[i], "cycle {}: channel {i} is no longer ready", m.cycle());
                self.ready[i] = ready && !valid;
                if valid && ready {
                    self.taken.push_back((m.cycle(), i));
                    self.issued += u64::from(m.get(format!("s[{i}].data.len").as_str()) != 0);
                }
            }
        }
        fn done(&self) -> bool {
            true
        }
        fn status(&self) -> String {
            String::new()
        }
    }

    #[test]
    fn writes_leave_in_the_order_in_which_they_were_taken() {
        let mut m = Model::of(WriteOrder::default, Options::default()).unwrap();
        for (seed, stall) in [Stall::Never, Stall::Rate(0.5), Stall::Random].into_iter().enumerate() {
            m.reset();
            let seed = seed as u64;
            let mut rng = verilate::rng(seed);
            let n = scale(800) as u64;
            let mut feeds: Vec<_> = (0..4).map(|i| Feed::new(&m, &format!("s[{i}]"), stall, seed * 10 + i)).collect();
            let mut drain = Drain::new(&m, "m", stall, seed + 7);
            let mut sent: Vec<VecDeque<DmaWrite>> = vec![VecDeque::new(); 4];
            for (i, feed) in feeds.iter_mut().enumerate() {
                for _ in 0..n {
                    let landing = i == writer::LANDING;
                    let mut data = Bits::<256>::default();
                    (0..if i == writer::EVENT { 2 } else { 4 })
                        .for_each(|k| data.set_bits::<64>(64 * k, bits(rng.random())));
                    let write = DmaWrite {
                        iova: bits(rng.random()),
                        len: bits(if landing { rng.random_range(0..4) * 1000 } else { rng.random_range(1..=32) }),
                        is_inline: !landing,
                        buf: bits(if landing { rng.random_range(0..1 << 20) } else { 0 }),
                        data: if landing { 0.into() } else { data },
                        rows: bits(if landing { rng.random_range(0..1 << 12) } else { 0 }),
                    };
                    feed.send(write);
                    sent[i].push_back(write);
                }
            }
            drain.expect(4 * n);
            let mut watch = Watch::default();
            let [a, b, c, d] = &mut feeds[..] else { unreachable!() };
            let start = m.cycle();
            bench::run(&mut m, &mut [a, b, c, d, &mut drain, &mut watch], 100_000);
            if stall == Stall::Never {
                assert!(m.cycle() - start < 4 * n + 40, "not full rate");
            }
            for (cycle, i) in watch.taken {
                let (got, want) = (drain.pop().unwrap(), sent[i].pop_front().unwrap());
                assert_eq!(got.bytes("data"), verilate::bits::of(want), "taken in cycle {cycle} from {i}");
            }
        }
    }
}
