//! NICs and the links between them, advanced window by window. An end of a link without a NIC is a socket: what arrives there is
//! taken, and what goes from there is put in, by calls.

use crate::capture::Capture;
use crate::crew::Worker;
use crate::fault::{Action, Fired, Rules};
use nic::{Frame, Fs, NS, Nic};
use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

/// A cable between two stations: NICs, or a NIC and a socket.
pub struct Link {
    /// The stations at its ends.
    pub ends: [usize; 2],
    /// Time from end to end.
    pub delay: Fs,
    /// Faults.
    pub rules: Rules,
    /// Frames that fault rules hold back.
    held: Vec<Held>,
    /// The cable is plugged in: see [`Fabric::plug`].
    up: bool,
}

/// A frame that waits for others to pass.
struct Held {
    /// The end that sent it.
    from: usize,
    frame: Frame,
    /// Its number in the capture.
    number: Option<u64>,
    /// Frames that still have to pass.
    passes: u32,
}

/// How long a frame waits for others to pass, at most.
const PATIENCE: Fs = 10_000 * NS;

/// An end of a link without a NIC.
#[derive(Default)]
struct Socket {
    /// Frames that are put in, and go at the end of the window.
    sent: Vec<Frame>,
    /// Frames that have arrived.
    arrived: Vec<Frame>,
}

/// Sees every frame that a link carries: sending station, frame, the rule that fired.
pub type FrameTap = Box<dyn FnMut(usize, &Frame, Option<Fired>) + Send>;

/// Why a NIC is in its slot.
const HERE: &str = "NICs are with their workers only within a window";

/// Frames on their way to a station, in order of arrival, with their numbers in the capture.
type Inbox = Vec<(Frame, Option<u64>)>;

/// The fabric, shared by the functions of its NICs and by whoever watches it.
pub type Shared = Arc<Mutex<Fabric>>;

/// NICs on one timeline.
pub struct Fabric {
    /// All here between windows; all but the first are with their workers within one.
    nics: Vec<Option<Box<Nic>>>,
    workers: Vec<Worker>,
    /// Stations behind the NICs.
    sockets: Vec<Socket>,
    links: Vec<Link>,
    window: u64,
    inboxes: Vec<Inbox>,
    capture: Option<Capture>,
    /// Number in the capture of the frames that a NIC has received and not judged: by NIC, and its number there.
    unjudged: HashMap<(usize, u64), u64>,
    tap: Option<FrameTap>,
}

impl Fabric {
    /// NICs without links; all have the same clock.
    pub fn new(nics: Vec<Nic>) -> Self {
        let inboxes = nics.iter().map(|_| Vec::new()).collect();
        let workers = nics.iter().skip(1).map(|_| Worker::start()).collect();
        let nics = nics.into_iter().map(|n| Some(Box::new(n))).collect();
        Fabric {
            nics,
            workers,
            sockets: Vec::new(),
            links: Vec::new(),
            window: 25,
            inboxes,
            capture: None,
            unjudged: HashMap::new(),
            tap: None,
        }
    }

    /// Adds a socket; returns its number as a station, behind those of the NICs.
    pub fn socket(&mut self) -> usize {
        self.sockets.push(Socket::default());
        self.inboxes.push(Inbox::new());
        self.inboxes.len() - 1
    }

    /// Sends a frame from a socket, now.
    pub fn send(&mut self, socket: usize, data: Vec<u8>) {
        let at = self.now();
        self.sockets[socket - self.nics.len()].sent.push(Frame { at, data, error: false });
    }

    /// Frames that have arrived at a socket since the last call.
    pub fn arrived(&mut self, socket: usize) -> Vec<Frame> {
        std::mem::take(&mut self.sockets[socket - self.nics.len()].arrived)
    }

    /// Joins two stations by a cable, of which `a` is a NIC; returns the link's index. `delay` is at least a clock cycle.
    pub fn link(&mut self, a: usize, b: usize, delay: Fs, seed: u64) -> usize {
        let clock = self.nic(a).options().clock;
        assert!(delay >= clock, "a link delay of {delay} fs is below the clock period");
        self.links.push(Link { ends: [a, b], delay, rules: Rules::new(seed), held: Vec::new(), up: true });
        self.window = self.links.iter().map(|l| l.delay / clock).min().unwrap_or(25);
        self.links.len() - 1
    }

    /// Plugs a cable in, or out at both ends: frames on it are lost then.
    pub fn plug(&mut self, link: usize, up: bool) {
        self.links[link].up = up;
        self.links[link].held.clear();
        for station in self.links[link].ends {
            if station < self.nics.len() {
                self.nic(station).set_link(up);
            }
            if !up {
                self.inboxes[station].clear();
            }
        }
    }

    /// A NIC.
    pub fn nic(&mut self, index: usize) -> &mut Nic {
        self.nics[index].as_mut().expect(HERE)
    }

    /// Number of NICs.
    pub fn len(&self) -> usize {
        self.nics.len()
    }

    /// True without NICs.
    pub fn is_empty(&self) -> bool {
        self.nics.is_empty()
    }

    /// A link, for its rules.
    pub fn link_mut(&mut self, index: usize) -> &mut Link {
        &mut self.links[index]
    }

    /// Time that all NICs have reached.
    pub fn now(&self) -> Fs {
        self.nics.first().map_or(0, |n| n.as_ref().expect(HERE).now())
    }

    /// Cycles that all NICs have reached.
    pub fn cycle(&self) -> u64 {
        self.nics.first().map_or(0, |n| n.as_ref().expect(HERE).cycle())
    }

    /// Writes every frame that leaves a station to `capture`; interface n is station n.
    pub fn capture(&mut self, capture: Option<Capture>) -> Option<Capture> {
        self.unjudged.clear();
        self.inboxes.iter_mut().flatten().for_each(|(_, number)| *number = None);
        std::mem::replace(&mut self.capture, capture)
    }

    /// Shows every frame to `tap`.
    pub fn tap(&mut self, tap: Option<FrameTap>) {
        self.tap = tap;
    }

    /// Advances all NICs by one window and moves frames over the links.
    pub fn advance(&mut self) {
        self.advance_cycles(self.window);
    }

    /// Advances all NICs by at most a window: for measuring times finer than one.
    pub fn advance_cycles(&mut self, cycles: u64) {
        let window = cycles.min(self.window);
        for (n, (slot, inbox)) in self.nics.iter_mut().zip(&mut self.inboxes).enumerate() {
            let nic = slot.as_mut().expect(HERE);
            // Frames whose time may still be overtaken by a later one's stay here: the MAC wants them in order.
            let limit = nic.now() + window * nic.options().clock;
            let due = inbox.partition_point(|(f, _)| f.at < limit);
            for (frame, number) in inbox.drain(..due) {
                let received = nic.receive(frame);
                self.unjudged.extend(number.map(|number| ((n, received), number)));
            }
        }
        let (first, others) = self.nics.split_first_mut().expect("a fabric has NICs");
        for (slot, worker) in others.iter_mut().zip(&self.workers) {
            worker.begin(slot.take().expect(HERE), window);
        }
        (0..window).for_each(|_| first.as_mut().expect(HERE).step());
        for (slot, worker) in others.iter_mut().zip(&self.workers) {
            *slot = Some(worker.end());
        }
        let now = self.now();
        for (socket, inbox) in self.sockets.iter_mut().zip(&mut self.inboxes[self.nics.len()..]) {
            let due = inbox.partition_point(|(f, _)| f.at <= now);
            for (frame, number) in inbox.drain(..due) {
                socket.arrived.push(frame);
                if let Some(number) = number {
                    write(&mut self.capture, |c| c.judge(number, "at the peer"));
                }
            }
        }
        self.judge();
        self.exchange();
    }

    /// Tells the capture what became of received frames.
    fn judge(&mut self) {
        for (n, slot) in self.nics.iter_mut().enumerate() {
            for (received, verdict) in slot.as_mut().expect(HERE).take_verdicts() {
                if let Some(number) = self.unjudged.remove(&(n, received)) {
                    write(&mut self.capture, |c| c.judge(number, &format!("at NIC {n}: {verdict}")));
                }
            }
        }
    }

    fn exchange(&mut self) {
        let now = self.now();
        for link in &mut self.links {
            for from in 0..2 {
                let (a, b) = (link.ends[from], link.ends[1 - from]);
                let inbox = &mut self.inboxes[b];
                let sent = match a.checked_sub(self.nics.len()) {
                    Some(socket) => std::mem::take(&mut self.sockets[socket].sent),
                    None => self.nics[a].as_mut().expect(HERE).take_sent(),
                };
                for mut frame in sent {
                    if !link.up {
                        continue;
                    }
                    let fired = link.rules.apply(from, &mut frame.data);
                    let (delay, copies) = match fired.map(|f| f.action) {
                        Some(Action::Drop) => (0, 0),
                        Some(Action::Duplicate) => (0, 2),
                        Some(Action::Delay(d)) => (d, 1),
                        _ => (0, 1),
                    };
                    let number = write(&mut self.capture, |c| {
                        c.add(a as u32, frame.at / NS, &frame.data, describe(&frame, fired, &link.rules), copies)
                    });
                    if let Some(tap) = &mut self.tap {
                        tap(a, &frame, fired);
                    }
                    frame.at += link.delay + delay;
                    let at = frame.at;
                    if let Some(Action::Reorder(passes)) = fired.map(|f| f.action) {
                        link.held.push(Held { from, frame, number, passes });
                        continue;
                    }
                    (0..copies).for_each(|_| arrive(inbox, frame.clone(), number));
                    if copies > 0 {
                        let passed = link.held.iter_mut().filter(|h| h.from == from);
                        passed.for_each(|h| h.passes = h.passes.saturating_sub(1));
                        for h in link.held.extract_if(.., |h| h.from == from && h.passes == 0) {
                            arrive(inbox, Frame { at, ..h.frame }, h.number);
                        }
                    }
                }
                for h in link.held.extract_if(.., |h| h.from == from && h.frame.at + PATIENCE < now) {
                    arrive(inbox, Frame { at: now + link.delay, ..h.frame }, h.number);
                }
            }
        }
        write(&mut self.capture, |c| c.all_until(now / NS));
    }
}

/// Puts a frame into its place on the way to a NIC.
fn arrive(inbox: &mut Inbox, frame: Frame, number: Option<u64>) {
    let place = inbox.partition_point(|(f, _)| f.at <= frame.at);
    inbox.insert(place, (frame, number));
}

/// Writes to an open capture; gives up on it when that fails.
fn write<T>(capture: &mut Option<Capture>, what: impl FnOnce(&mut Capture) -> io::Result<T>) -> Option<T> {
    match what(capture.as_mut()?) {
        Ok(done) => Some(done),
        Err(e) => {
            // Nobody may be there to read it.
            let _ = writeln!(io::stderr(), "the capture stops here: {e}");
            *capture = None;
            None
        }
    }
}

fn describe(frame: &Frame, fired: Option<Fired>, rules: &Rules) -> String {
    let what = match frame.error {
        true => "cut short by its sender".to_string(),
        false => crate::Packet::of(&frame.data).map_or_else(|| "not RoCE".to_string(), |p| p.to_string()),
    };
    match fired {
        Some(f) if f.action == Action::Drop => format!("{what}; lost on the link ({})", rules.name(f.rule)),
        Some(f) => format!("{what}; {}: {:?}", rules.name(f.rule), f.action),
        None => what,
    }
}
