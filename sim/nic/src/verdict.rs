//! What became of each received frame, from the core's trace ports. For captures and tests.
//!
//! Ingress judges frames in the order of arrival. Those it accepts go to one of two engines, each of which judges in order again,
//! and are through in the order of arrival. A landing that fails outweighs what the engine said.

use abi::status::{cause, counter};
use std::collections::VecDeque;
use verilate::{Model, Port};

/// What the receiver did with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Counted, by number in `abi::status::counter`.
    Counted(u8),
    /// Accepted by its engine, but its payload did not land: `abi::status::cause`.
    NotLanded(u8),
    /// The device was reset while it was on its way.
    Reset,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let say = |(name, meaning): (&str, &str)| format!("{name}: {}", meaning.trim());
        match self {
            Verdict::Counted(n) => f.write_str(&say(counter::NAMES[usize::from(*n)])),
            Verdict::NotLanded(cause::FLUSHED) => f.write_str("FLUSHED: an earlier packet of its QP could not land."),
            Verdict::NotLanded(n) => f.write_str(&say(cause::NAMES[usize::from(*n)])),
            Verdict::Reset => f.write_str("RESET: The device was reset."),
        }
    }
}

/// Counters that are a frame's verdict.
const VERDICTS: u64 = (1 << counter::RX_CE) - 1;

/// Collects the verdicts of one core.
pub(crate) struct Verdicts {
    ingress: Port,
    accepted: Port,
    responder: Port,
    completer: Port,
    landed: Port,
    response: Port,
    cause: Port,
    reset: Port,
    /// Frames of which the core has the last byte, and frames that ingress has judged.
    delivered: u64,
    judged: u64,
    under_way: VecDeque<u64>,
    /// What responder and completer said of frames that are not through yet.
    said: [VecDeque<u8>; 2],
    /// Frame number and verdict.
    pub(crate) out: Vec<(u64, Verdict)>,
}

impl Verdicts {
    pub(crate) fn of(m: &Model) -> Self {
        Verdicts {
            ingress: m.port("trace_ingress"),
            accepted: m.port("trace_accepted"),
            responder: m.port("trace_responder"),
            completer: m.port("trace_completer"),
            landed: m.port("trace_landed"),
            response: m.port("trace_response"),
            cause: m.port("trace_cause"),
            reset: m.port("trace_reset"),
            delivered: 0,
            judged: 0,
            under_way: VecDeque::new(),
            said: Default::default(),
            out: Vec::new(),
        }
    }

    /// Looks at the ports in each cycle; `delivered`: with the last beat of a frame.
    pub(crate) fn observe(&mut self, m: &Model, delivered: bool) {
        self.delivered += u64::from(delivered);
        if self.judged == self.delivered && self.under_way.is_empty() {
            return;
        }
        let dropped = m.get(self.ingress) & VERDICTS;
        if dropped != 0 {
            self.out.push((self.judged, Verdict::Counted(dropped.trailing_zeros() as u8)));
            self.judged += 1;
        } else if m.bit(self.accepted) {
            self.under_way.push_back(self.judged);
            self.judged += 1;
        }
        for (said, port) in self.said.iter_mut().zip([self.responder, self.completer]) {
            let verdict = m.get(port) & VERDICTS;
            if verdict != 0 {
                said.push_back(verdict.trailing_zeros() as u8);
            }
        }
        if m.bit(self.landed) {
            let frame = self.under_way.pop_front().expect("landed, but never accepted");
            let said = self.said[usize::from(m.bit(self.response))].pop_front().expect("landed without a verdict");
            let verdict = match m.get(self.cause) as u8 {
                cause::NONE => Verdict::Counted(said),
                why => Verdict::NotLanded(why),
            };
            self.out.push((frame, verdict));
        }
        if m.bit(self.reset) {
            let lost = self.under_way.drain(..).chain(self.judged..self.delivered);
            self.out.extend(lost.map(|frame| (frame, Verdict::Reset)));
            self.judged = self.delivered;
            self.said.iter_mut().for_each(VecDeque::clear);
        }
    }
}
