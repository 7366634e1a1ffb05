//! Picks the QPs whose send queue has blocks on chip (*work*) and whose requester may send (*open*), round robin.
//!
//! ```text
//! cycle       0      1..3     4      5
//! work,open   A,B    (scan)
//! pick                        A      B      (A again a round later, if it is still set)
//! ```
//! A queue that wakes while there is nothing else to pick is picked in the same cycle.
//!
//! A pick a cycle while a group of 32 QPs has several, one in at most three cycles else. A pick may be stale by a
//! few cycles: the requester checks everything again on the row it reads, and drops a QP that it is just processing.
//! Waits only for the requester to take a pick.

use super::flags::Scan;
use crate::{
    msg::{Pick, Qp, Woken},
    stream::Source,
};
use hdl::prelude::*;

/// The scheduler of N QPs.
#[derive(LogicBlock, Default)]
pub struct Scheduler<const N: usize> {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// Send queues with blocks on chip that were not consumed.
    pub work: Signal<In, Bits<N>>,
    /// QPs that may send.
    pub open: Signal<In, Bits<N>>,
    /// A queue that just got such blocks, told a cycle ahead.
    pub soon: Signal<In, Qp>,
    pub woken: Signal<In, Woken>,
    pub woken_valid: Signal<In, Bit>,
    /// The next QP. Here `valid` may fall again: a hint counts in its own cycle only.
    pub pick: Source<Pick>,
    scan: Scan<N>,
    /// The queue of `soon` is open.
    opens: Reg<Bit>,
}

impl<const N: usize> Logic for Scheduler<N> {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, opens);
        clock_reset!(self, clock, rst, scan);
        self.scan.bits.next = self.work.val() & self.open.val();
        let woken = self.woken.val();
        let found = self.scan.pick.valid.val();
        let hints = self.woken_valid.val() && self.opens.q.val();
        let soon = self.soon.val() & elab!(bits::<12>(N.next_power_of_two() as u64 - 1));
        self.opens.d.next = self.open.val().get_bit(soon.index());
        self.scan.pick.ready.next = self.pick.ready.val();
        self.pick.valid.next = found || hints;
        self.pick.data.next = Pick {
            qpn: if found { self.scan.pick.data.val() } else { woken.queue },
            hinted: !found,
            index: woken.index,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::RngExt;
    use rand_chacha::ChaCha8Rng;
    use verilate::{Model, Options};

    fn bytes(set: &[bool]) -> Vec<u8> {
        set.chunks(8).map(|c| c.iter().enumerate().fold(0, |b, (i, s)| b | (*s as u8) << i)).collect()
    }

    /// Runs `cycles` and gives the picks with their cycle.
    fn picks(
        m: &mut Model,
        work: &[bool],
        open: &[bool],
        cycles: u64,
        ready: f64,
        rng: &mut ChaCha8Rng,
    ) -> Vec<(u64, usize)> {
        m.set_bytes("work", &bytes(work));
        m.set_bytes("open", &bytes(open));
        let mut out = vec![];
        for cycle in 0..cycles {
            m.set("pick.ready", rng.random_bool(ready) as u64);
            m.eval();
            if m.bit("pick.valid") && m.bit("pick.ready") {
                out.push((cycle, m.get("pick.data.qpn") as usize));
            }
            m.tick();
        }
        out
    }

    #[test]
    fn each_of_256_is_picked_once_a_round() {
        each_is_picked_once_a_round::<256>();
    }

    #[test]
    fn each_of_32_is_picked_once_a_round() {
        each_is_picked_once_a_round::<32>();
    }

    fn each_is_picked_once_a_round<const N: usize>() {
        let mut rng = verilate::rng(0);
        let mut m = Model::of(Scheduler::<N>::default, Options::default()).unwrap();
        m.reset();
        for round in 0..verilate::scale(200) {
            let density = [0.004, 0.02, 0.1, 0.5, 1.0][round % 5];
            let work: Vec<bool> = (0..N).map(|_| rng.random_bool(density)).collect();
            let open: Vec<bool> = (0..N).map(|_| rng.random_bool(0.8)).collect();
            let want: Vec<usize> = (0..N).filter(|i| work[*i] && open[*i]).collect();
            let rate = [1.0, 0.3][round % 2];
            let _ = picks(&mut m, &work, &open, 400, 1.0, &mut rng);
            let got = picks(&mut m, &work, &open, 1500, rate, &mut rng);
            if want.is_empty() {
                assert!(got.is_empty());
                continue;
            }
            // Round robin: any two picks of one QP have all the others between them.
            for (i, (_, qp)) in got.iter().enumerate() {
                assert!(want.contains(qp));
                if i >= want.len() {
                    assert_eq!(got[i - want.len()].1, *qp, "of {want:?}");
                }
            }
            if rate == 1.0 {
                let gap = got.windows(2).map(|w| w[1].0 - w[0].0).max().unwrap();
                let limit = if want.len() == 1 { 6 } else { 3 };
                assert!(gap <= limit, "{gap} cycles between two picks of {want:?}");
            }
        }
    }

    #[test]
    fn a_woken_qp_is_picked_in_the_same_cycle() {
        const N: usize = 256;
        let mut rng = verilate::rng(1);
        let mut m = Model::of(Scheduler::<N>::default, Options::default()).unwrap();
        m.reset();
        let none = vec![false; N];
        for (queue, open, busy) in [(200, true, false), (200, false, false), (7, true, true)] {
            let opens: Vec<bool> = (0..N).map(|i| open && i == queue || i == 3).collect();
            let work: Vec<bool> = (0..N).map(|i| busy && i == 3).collect();
            let _ = picks(&mut m, &work, &opens, 20, if busy { 0.0 } else { 1.0 }, &mut rng);
            m.set("soon", queue as u64);
            m.tick();
            m.set("woken.queue", queue as u64);
            m.set("woken.index", 77);
            m.set("woken_valid", 1);
            m.set("pick.ready", 1);
            m.eval();
            assert_eq!(m.bit("pick.valid"), open || busy);
            if busy {
                assert_eq!((m.get("pick.data.qpn"), m.bit("pick.data.hinted")), (3, false));
            } else if open {
                let hinted = (m.get("pick.data.qpn") as usize, m.bit("pick.data.hinted"), m.get("pick.data.index"));
                assert_eq!(hinted, (queue, true, 77));
            }
            m.tick();
            m.set("woken_valid", 0);
            let _ = picks(&mut m, &none, &none, 20, 1.0, &mut rng);
        }
    }

    #[test]
    fn a_new_qp_is_picked_at_once() {
        const N: usize = 256;
        let mut rng = verilate::rng(1);
        let mut m = Model::of(Scheduler::<N>::default, Options::default()).unwrap();
        m.reset();
        let none = vec![false; N];
        let _ = picks(&mut m, &none, &none, 20, 1.0, &mut rng);
        let one: Vec<bool> = (0..N).map(|i| i == 200).collect();
        let got = picks(&mut m, &one, &one, 20, 1.0, &mut rng);
        assert!(got[0] == (5, 200) || got[0] == (4, 200), "{got:?}");
    }
}
