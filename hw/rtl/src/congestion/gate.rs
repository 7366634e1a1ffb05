//! Which QPs of an engine wait for the [`Pacer`](super::Pacer): a *paced* QP from each frame that it sends on, until it is kicked.
//!
//! ```text
//! cycle    0        1        ..   n      n+1
//! sends    1
//! waits             1             1
//! kick                            1
//! frees                           1
//! ```
//! The pacer kicks each QP once its frames are paid for, and always behind the last of them: so nothing waits for good. A kick for an
//! earlier frame, while its QP sends on, is made void by the next frame, in whose cycle it may come. A QP that has no rate (any
//! more), or is loaded, waits for nothing.
//!
//! A bit has one writer: *closed* follows the frames, *opened* the kicks, and a QP waits while they differ.
//!
//! In LUTs, for all is known in the cycle in which it is asked for. No handshakes, so nothing here can wait.

use crate::msg::{Qp, numbers};
use hdl::prelude::*;

/// See the module.
#[derive(LogicBlock, Default)]
pub struct PaceGate {
    pub clock: Signal<In, Clock>,
    /// The QP that the engine has in hand: whether it waits.
    pub qpn: Signal<In, Qp>,
    pub waits: Signal<Out, Bit>,
    /// It sends a frame; and it is paced, so it waits from the next cycle on.
    pub sends: Signal<In, Bit>,
    pub closes: Signal<Out, Bit>,
    /// A row of it is written: whether it is paced. If not, it does not wait from the next cycle on.
    pub we: Signal<In, Bit>,
    pub paced: Signal<In, Bit>,
    /// A kick of the pacer; its QP has waited.
    pub kick: Signal<In, Qp>,
    pub kicks: Signal<In, Bit>,
    pub frees: Signal<Out, Bit>,
    rates: Ram<Bit, 12>,
    /// Read for `qpn` and for `kick`.
    closed: [Ram<Bit, 12>; 2],
    opened: [Ram<Bit, 12>; 2],
    _qps: Hidden<usize>,
    _paces: Hidden<bool>,
}

impl PaceGate {
    /// Of `qps` QPs; without a pacer nobody waits.
    pub fn new(qps: usize, paces: bool) -> Self {
        let bits = || Ram::default().rows(qps).style("distributed").at_once();
        PaceGate {
            rates: bits(),
            closed: [bits(), bits()],
            opened: [bits(), bits()],
            _qps: Hidden(qps),
            _paces: Hidden(paces),
            ..Default::default()
        }
    }
}

impl Logic for PaceGate {
    #[kernel]
    fn update(&mut self) {
        clock!(self, clock, rates, closed[0], closed[1], opened[0], opened[1]);
        let paces: Bit = if self._paces.0 { true } else { false };
        let (qpn, kick) = (self.qpn.val(), self.kick.val());
        let mask: Qp = elab!(numbers(self._qps.0));
        let (closed, opened) = (self.closed[0].rdata.val(), self.opened[0].rdata.val());
        let closes = self.sends.val() && self.rates.rdata.val() && paces;
        let ends = self.we.val() && !self.paced.val() && paces;
        let same = !((qpn ^ kick) & mask).any();
        self.rates.we.next = self.we.val() && paces;
        self.rates.waddr.next = qpn;
        self.rates.wdata.next = self.paced.val();
        self.rates.re.next = true;
        self.rates.raddr.next = qpn;
        let readers = [qpn, kick];
        for i in 0..2 {
            self.closed[i].we.next = closes || ends;
            self.closed[i].waddr.next = qpn;
            self.closed[i].wdata.next = opened != closes;
            self.closed[i].re.next = true;
            self.closed[i].raddr.next = readers[i];
            // A kick that meets the end of pace has nothing to do; one that meets a frame is for one before it.
            self.opened[i].we.next = self.kicks.val() && paces && !((ends || closes) && same);
            self.opened[i].waddr.next = kick;
            self.opened[i].wdata.next = self.closed[1].rdata.val();
            self.opened[i].re.next = true;
            self.opened[i].raddr.next = readers[i];
        }
        self.waits.next = closed != opened && paces;
        self.closes.next = closes;
        self.frees.next = self.kicks.val() && self.closed[1].rdata.val() != self.opened[1].rdata.val() && paces;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::RngExt;
    use verilate::{Model, Options};

    /// Few QPs, so that frames, kicks and loads meet; against a set.
    #[test]
    fn a_paced_qp_waits_from_its_frame_to_its_kick() {
        const QPS: usize = 4;
        let mut m = Model::of(|| PaceGate::new(QPS, true), Options::default()).unwrap();
        let mut rng = verilate::rng(0);
        let (mut paced, mut waits) = ([false; QPS], [false; QPS]);
        let (mut waited, mut freed, mut met) = (0, 0, 0);
        for cycle in 0..verilate::scale(20_000) as u64 {
            // The RAMs hold anything at first.
            let load = cycle < QPS as u64;
            let q = if load { cycle as usize } else { rng.random_range(0..QPS) };
            let k = rng.random_range(0..QPS);
            let row = load || rng.random_bool(0.05);
            let rate = !load && rng.random_bool(0.7);
            let sends = !row && rng.random_bool(0.3);
            let kicks = !load && rng.random_bool(0.3);
            for (name, value) in [
                ("qpn", q as u64),
                ("kick", k as u64 | 0x800),
                ("we", row.into()),
                ("paced", rate.into()),
                ("sends", sends.into()),
                ("kicks", kicks.into()),
            ] {
                m.set(name, value);
            }
            m.eval();
            if !load {
                assert_eq!(m.bit("waits"), waits[q], "cycle {cycle}");
                assert_eq!(m.bit("closes"), sends && paced[q]);
                assert_eq!(m.bit("frees"), kicks && waits[k]);
                (waited, freed) = (waited + u64::from(waits[q]), freed + u64::from(kicks && waits[k]));
                met += u64::from(kicks && k == q && (sends && paced[q] || row && !rate));
            }
            m.tick();
            if kicks {
                waits[k] = false;
            }
            if sends && paced[q] {
                // Whatever is kicked in this cycle.
                waits[q] = true;
            }
            if row {
                paced[q] = rate;
                waits[q] &= rate;
            }
        }
        assert!(waited > 100 && freed > 100 && met > 100, "{waited} {freed} {met}");
    }

    #[test]
    fn without_a_pacer_nobody_waits() {
        let mut m = Model::of(|| PaceGate::new(32, false), Options::default()).unwrap();
        for name in ["we", "paced", "sends", "kicks"] {
            m.set(name, 1);
            m.eval();
            assert_eq!((m.bit("waits"), m.bit("closes"), m.bit("frees")), (false, false, false));
            m.tick();
        }
    }
}
