//! What became of each received frame, from the core's trace ports. For captures and tests.
//!
//! Frames enter ingress from the MAC, in the order in which they came there, or turned round, which bear no number here. Ingress judges
//! them in the order in which they entered. Those it accepts go to one of two engines, each of which judges in order again,
//! and are through in the order of arrival. A landing that fails outweighs what the engine said. Of a multicast frame each copy is judged:
//! it is accepted if one is, else its verdict is that of the last.

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
    entered: Port,
    turned: Port,
    ingress: Port,
    accepted: Port,
    responder: Port,
    completer: Port,
    landed: Port,
    copy: Port,
    response: Port,
    cause: Port,
    reset: Port,
    /// Frames of which the core has the last byte, and those of them that have entered ingress.
    delivered: u64,
    inside: u64,
    /// Frames that ingress has not judged, and those that it has accepted; none is the number of one that was turned round.
    unjudged: VecDeque<Option<u64>>,
    under_way: VecDeque<Option<u64>>,
    /// What responder and completer said of frames that are not through yet.
    said: [VecDeque<u8>; 2],
    /// A copy of the oldest one is accepted.
    copied: bool,
    /// Frame number and verdict.
    pub(crate) out: Vec<(u64, Verdict)>,
}

impl Verdicts {
    pub(crate) fn of(m: &Model) -> Self {
        Verdicts {
            entered: m.port("trace_entered"),
            turned: m.port("trace_turned"),
            ingress: m.port("trace_ingress"),
            accepted: m.port("trace_accepted"),
            responder: m.port("trace_responder"),
            completer: m.port("trace_completer"),
            landed: m.port("trace_landed"),
            copy: m.port("trace_copy"),
            response: m.port("trace_response"),
            cause: m.port("trace_cause"),
            reset: m.port("trace_reset"),
            delivered: 0,
            inside: 0,
            unjudged: VecDeque::new(),
            under_way: VecDeque::new(),
            said: Default::default(),
            copied: false,
            out: Vec::new(),
        }
    }

    /// Looks at the ports in each cycle; `delivered`: with the last beat of a frame.
    pub(crate) fn observe(&mut self, m: &Model, delivered: bool) {
        self.delivered += u64::from(delivered);
        if m.bit(self.entered) {
            let turned = m.bit(self.turned);
            self.unjudged.push_back((!turned).then_some(self.inside));
            self.inside += u64::from(!turned);
        }
        if self.inside == self.delivered && self.unjudged.is_empty() && self.under_way.is_empty() {
            return;
        }
        let dropped = m.get(self.ingress) & VERDICTS;
        if dropped != 0 {
            let frame = self.unjudged.pop_front().expect("judged, but never in");
            self.tell(frame, Verdict::Counted(dropped.trailing_zeros() as u8));
        } else if m.bit(self.accepted) {
            self.under_way.push_back(self.unjudged.pop_front().expect("accepted, but never in"));
        }
        for (said, port) in self.said.iter_mut().zip([self.responder, self.completer]) {
            let verdict = m.get(port) & VERDICTS;
            if verdict != 0 {
                said.push_back(verdict.trailing_zeros() as u8);
            }
        }
        let landed = m.bit(self.landed);
        if landed || m.bit(self.copy) {
            let said = self.said[usize::from(m.bit(self.response))].pop_front().expect("landed without a verdict");
            let verdict = match m.get(self.cause) as u8 {
                cause::NONE => Verdict::Counted(said),
                why => Verdict::NotLanded(why),
            };
            const ACCEPTED: Verdict = Verdict::Counted(counter::RX_ACCEPTED as u8);
            self.copied |= verdict == ACCEPTED;
            if landed {
                let frame = self.under_way.pop_front().expect("landed, but never accepted");
                let accepted = std::mem::take(&mut self.copied);
                self.tell(frame, if accepted { ACCEPTED } else { verdict });
            }
        }
        if m.bit(self.reset) {
            self.copied = false;
            let lost = self.under_way.drain(..).chain(self.unjudged.drain(..)).flatten();
            self.out.extend(lost.chain(self.inside..self.delivered).map(|frame| (frame, Verdict::Reset)));
            self.inside = self.delivered;
            self.said.iter_mut().for_each(VecDeque::clear);
        }
    }

    /// Notes the verdict of a frame of the MAC.
    fn tell(&mut self, frame: Option<u64>, verdict: Verdict) {
        self.out.extend(frame.map(|frame| (frame, verdict)));
    }
}
