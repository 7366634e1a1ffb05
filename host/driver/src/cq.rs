//! Completion queues and the event queues behind them.

use crate::bar::Doorbell;
use crate::device::Device;
use crate::forgotten::Forgotten;
use crate::function::{Error, Result};
use crate::memory::RingMemory;
use crate::posted::Posted;
use crate::srq::SrqHandle;
use abi::bar::health;
use abi::cmd::{create_cq, create_eq, head, op, resize_cq};
use abi::queue::{cq_db, cqe, doorbell, eq_db, eqe, event, recv_op, send_op};
use abi::status::{cause, wc};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Turns of a wait loop between looks at the device.
const LOOK: u64 = 4096;

/// What became of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The caller's number of the work request.
    pub wr_id: u64,
    /// QP number.
    pub qpn: u32,
    /// `Ok`, or why it failed.
    pub status: std::result::Result<(), WcError>,
    /// `abi::queue::send_op` or `recv_op`; of a flushed one only whether it is a send or a receive.
    pub opcode: u8,
    /// Bytes received (receives and READs); of a datagram with the 40 in front of it.
    pub len: u32,
    /// Immediate data as 4 wire bytes, when there is any.
    pub imm: Option<[u8; 4]>,
    /// The key that a SEND with invalidate has invalidated, when it was one: it opens nothing any more.
    pub invalidated: Option<u32>,
    /// Who sent a datagram: QP number there; else 0.
    pub source: u32,
    /// The device's clock when it completed, in cycles.
    pub timestamp: u64,
}

/// A failed work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("work completion status {status} ({})", cause_name(*.cause))]
pub struct WcError {
    /// `abi::status::wc`.
    pub status: u8,
    /// `abi::status::cause`.
    pub cause: u8,
}

fn cause_name(code: u8) -> &'static str {
    cause::NAMES.get(usize::from(code)).map_or("unknown cause", |n| n.1.trim())
}

/// An event queue.
pub struct Eq {
    handle: Arc<EqHandle>,
    log2: u32,
    consumer: u32,
    /// Consumer index that the device knows.
    told: u32,
    doorbell: Doorbell,
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// `abi::queue::event`.
    pub kind: u8,
    /// Object.
    pub number: u32,
    /// Value.
    pub value: u32,
}

impl Event {
    /// Its kind's name in `abi::queue::event`.
    pub fn name(&self) -> &'static str {
        event::ALL.values.iter().find(|v| v.1 == self.kind.into()).map_or("UNKNOWN", |v| v.0)
    }
}

impl std::fmt::Display for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.name())?;
        match self.kind {
            event::HEALTH => {
                let states = [
                    (health::READY, "the firmware runs"),
                    (health::SILENT, "the firmware stopped beating"),
                    (health::PARITY, "a row of context was damaged"),
                    (health::BUS, "the host refused an access to its memory: what was to be written is lost"),
                ];
                let now = states.into_iter().filter(|s| self.value & s.0 != 0);
                write!(f, ": {}", now.map(|s| s.1).collect::<Vec<_>>().join("; "))
            }
            event::QP_ERROR | event::DOORBELL => write!(f, " {}: {}", self.number, cause_name(self.value as u8)),
            _ => write!(f, " {}, {}", self.number, self.value),
        }
    }
}

impl Device {
    /// Creates an event queue of at least `entries` entries on MSI-X vector `vector`. An interrupt comes after `count`
    /// events or `cycles` cycles, whichever is first; 0 and 0 for at once.
    pub fn create_eq(&self, entries: u32, vector: u8, count: u16, cycles: u32) -> Result<Eq> {
        let log2 = log2_entries(entries)?;
        let ring = RingMemory::new(&self.0.bus, abi::queue::eqe::BYTES << log2)?;
        let c = self
            .command(op::CREATE_EQ)
            .with(create_eq::LOG2_ENTRIES, log2.into())
            .with(create_eq::VECTOR, vector.into())
            .with(create_eq::BASE, ring.iova())
            .with(create_eq::MODERATION_COUNT, count.into())
            .with(create_eq::MODERATION_CYCLES, cycles.into());
        let (number, _) = self.create(&c)?;
        let doorbell = self.doorbell(doorbell::EQ);
        let handle = Arc::new(EqHandle { device: self.clone(), number, ring });
        Ok(Eq { handle, log2, consumer: 0, told: 0, doorbell })
    }

    /// Creates a completion queue whose events go to `eq`. It never runs over while at most `entries` requests that complete
    /// in it are posted and not polled.
    pub fn create_cq(&self, entries: u32, eq: &Eq) -> Result<Cq> {
        let log2 = log2_entries(entries)?;
        let ring = CqRing::new(self, log2)?;
        let c = self
            .command(op::CREATE_CQ)
            .with(create_cq::LOG2_ENTRIES, log2.into())
            .with(create_cq::EQN, eq.handle.number.into())
            .with(create_cq::BASE, ring.memory.iova());
        let (number, _) = self.create(&c)?;
        let rings = Rings { now: Arc::new(ring), before: Vec::new() };
        let handle = Arc::new(CqHandle {
            device: self.clone(),
            number,
            rings: Mutex::new(rings.clone()),
            consumer: AtomicU32::new(0),
            forgotten: Forgotten::new(),
            _eq: eq.handle.clone(),
        });
        let doorbell = self.doorbell(doorbell::CQ);
        Ok(Cq { handle, rings, told: 0, sequence: 0, doorbell })
    }
}

/// Most entries that a queue can be asked for: the largest ring has 2^22.
const MAX_ENTRIES: u32 = 3 << 20;

/// Log2 of the ring for `entries` entries: there is room beside those that were polled and that the device is not told of yet.
fn log2_entries(entries: u32) -> Result<u32> {
    if !(1..=MAX_ENTRIES).contains(&entries) {
        return Err(Error::new(format!("a queue of {entries} entries")).hint("1 to 3,145,728 entries are possible"));
    }
    let room = |log2: u32| (1 << log2) - (1u32 << log2).div_ceil(4) + 1;
    Ok((0..22).find(|log2| room(*log2) >= entries).unwrap_or(22))
}

/// Whether so many entries were polled that the device has to be told: a doorbell for each quarter of the ring keeps it going.
fn is_due(consumer: u32, told: u32, log2: u32) -> bool {
    (consumer.wrapping_sub(told) & 0xff_ffff) * 4 >= 1 << log2
}

impl Eq {
    /// The next event, if there is one (event queue 0 of a device gets those of the device itself); its entry is free again. Once QP_ERROR is returned, what is posted to that QP is flushed: see [`Cq::poll`].
    /// LAST_WQE: what it has taken from its shared receive queue is complete, or is when it has been polled for.
    pub fn poll(&mut self) -> Option<Event> {
        let phase = (self.consumer >> self.log2 & 1) as u8 ^ 1;
        let at = (self.consumer & ((1 << self.log2) - 1)) as usize * eqe::BYTES;
        let e = self.handle.ring.read_if::<{ eqe::BYTES }>(at, |last| last & 1 == phase)?;
        self.consumer = self.consumer.wrapping_add(1) & 0xff_ffff;
        if is_due(self.consumer, self.told, self.log2) {
            self.ring(false);
        }
        let get = |f: abi::Field| f.get(&e);
        let e = Event { kind: get(eqe::TYPE) as u8, number: get(eqe::NUMBER) as u32, value: get(eqe::DATA) as u32 };
        if matches!(e.kind, event::QP_ERROR | event::LAST_WQE) {
            self.handle.device.bury_if_failed(e.number);
        }
        Some(e)
    }

    /// Arms the interrupt: one follows if an event is there that was not polled, or comes.
    pub fn arm(&mut self) {
        self.ring(true);
    }

    fn ring(&mut self, arm: bool) {
        if self.handle.device.0.life.is_over() {
            return;
        }
        let mut word = [0; 8];
        eq_db::NUMBER.set(&mut word, self.handle.number.into());
        eq_db::ARM.set(&mut word, arm.into());
        self.told = self.consumer;
        eq_db::CONSUMER.set(&mut word, self.told.into());
        self.doorbell.ring(u64::from_le_bytes(word));
    }
}

/// The device's side of an event queue and its memory, which completion queues keep as long as they may report to it.
pub(crate) struct EqHandle {
    device: Device,
    number: u32,
    ring: RingMemory,
}

impl Drop for EqHandle {
    fn drop(&mut self) {
        self.device.destroy(op::DESTROY_EQ, self.number);
    }
}

/// The device's side of a completion queue and its memory, which QPs keep as long as they may complete into it.
pub(crate) struct CqHandle {
    pub(crate) device: Device,
    pub(crate) number: u32,
    /// As the queue's own, for those who do not poll it.
    rings: Mutex<Rings>,
    /// Free-running index of the next entry to be polled.
    consumer: AtomicU32,
    /// With the shared queue whose receives they complete, if it is one.
    forgotten: Forgotten<Weak<SrqHandle>>,
    _eq: Arc<EqHandle>,
}

impl CqHandle {
    /// A QP is destroyed, all its completions are in the ring: they are nobody's any more, for its number is used again.
    pub(crate) fn forget(&self, qpn: u32, srq: &Weak<SrqHandle>) {
        let consumer = || self.consumer.load(Ordering::Acquire);
        let rings = self.rings();
        self.forgotten.add(qpn, srq.clone(), rings.log2(), consumer, |index| rings.entry(index).is_some());
    }

    fn rings(&self) -> std::sync::MutexGuard<'_, Rings> {
        self.rings.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Where entries are written.
struct CqRing {
    memory: RingMemory,
    log2: u32,
}

impl CqRing {
    /// A ring without an entry, at whatever index it begins: the device leaves the bits beside an entry's phase clear.
    fn new(device: &Device, log2: u32) -> Result<Self> {
        let memory = RingMemory::new(&device.0.bus, cqe::BYTES << log2)?;
        (0..1 << log2).for_each(|i| memory.write((i + 1) * cqe::BYTES - 1, &[0xff]));
        Ok(CqRing { memory, log2 })
    }

    /// The entry of a free-running index, if it is there.
    fn entry(&self, index: u32) -> Option<[u8; cqe::BYTES]> {
        let phase = (index >> self.log2 & 1) as u8 ^ 1;
        let at = (index & ((1 << self.log2) - 1)) as usize * cqe::BYTES;
        self.memory.read_if(at, |last| last == phase)
    }
}

/// The rings of a completion queue.
#[derive(Clone)]
struct Rings {
    /// That of the newest entries.
    now: Arc<CqRing>,
    /// Those of older ones, oldest first, with the index behind their last entry.
    before: Vec<(Arc<CqRing>, u32)>,
}

impl Rings {
    /// The entry of a free-running index, if it is there.
    fn entry(&self, index: u32) -> Option<[u8; cqe::BYTES]> {
        let older = self.before.iter().find(|(_, end)| (end.wrapping_sub(index) as i32) > 0);
        older.map_or(&self.now, |(ring, _)| ring).entry(index)
    }

    /// Log2 of more entries than they hold.
    fn log2(&self) -> u32 {
        let largest = self.before.iter().map(|(ring, _)| ring.log2).fold(self.now.log2, u32::max);
        largest + self.before.len() as u32
    }
}

impl Drop for CqHandle {
    fn drop(&mut self) {
        self.device.destroy(op::DESTROY_CQ, self.number);
    }
}

/// A completion queue.
pub struct Cq {
    pub(crate) handle: Arc<CqHandle>,
    rings: Rings,
    /// Consumer index that the device knows.
    told: u32,
    sequence: u8,
    doorbell: Doorbell,
}

impl Cq {
    /// CQ number.
    pub fn number(&self) -> u32 {
        self.handle.number
    }

    /// Takes completions that are there, oldest first. Once a QP has failed, all that is posted to its two queues completes
    /// with WR_FLUSH, in order, behind what the device completed: the device goes silent, and this driver accounts for the
    /// rest. It learns of it by a failed completion, by the QP_ERROR event ([`Eq::poll`]), or by
    /// [`Qp::fail`](crate::Qp::fail), and has the device drain the QP before it goes on (a command, so a few microseconds).
    /// A send of UC or UD that fails stops the send queue alone, until [`Qp::resume`](crate::Qp::resume): receives go on.
    /// What is posted while the iterator is in use finds room for its completion.
    pub fn poll(&mut self) -> Poll<'_> {
        Poll { cq: self }
    }

    /// Waits for one completion, letting time pass. A device that is gone completes what was posted with WR_FLUSH.
    pub fn wait(&mut self) -> Completion {
        for turn in 1u64.. {
            if let Some(c) = self.poll().next() {
                return c;
            }
            self.handle.device.relax();
            if turn.is_multiple_of(LOOK) {
                // What it finds shows in the next poll.
                let _ = self.handle.device.check();
            }
        }
        unreachable!("turns do not run out")
    }

    /// Gives the queue another size, as [`Device::create_cq`] does, whatever is under way: no completion is lost, none comes
    /// twice, all in their order; an arm stays. Errors change nothing: fewer entries than are in it, device gone.
    pub fn resize(&mut self, entries: u32) -> Result<()> {
        let log2 = log2_entries(entries)?;
        let handle = self.handle.clone();
        let start = handle.consumer.load(Ordering::Relaxed);
        let filled = |rings: &Rings| (0..).find(|i| rings.entry(start.wrapping_add(*i)).is_none()).unwrap_or(0);
        let there = filled(&self.rings);
        if there > entries {
            return Err(Error::new(format!("a completion queue of {entries} entries, while {there} are in it"))
                .hint("poll it first"));
        }
        let ring = CqRing::new(&handle.device, log2)?;
        // The room in the new ring counts from here.
        self.ring(None);
        let c = handle
            .device
            .command(op::RESIZE_CQ)
            .with(head::NUMBER, self.number().into())
            .with(resize_cq::LOG2_ENTRIES, log2.into())
            .with(resize_cq::BASE, ring.memory.iova());
        let mut shared = handle.rings();
        handle.device.execute(&c)?;
        // All entries of before are in the old ring, which changes no more: the new one begins where it ends.
        let old = std::mem::replace(&mut self.rings.now, Arc::new(ring));
        self.rings.before.push((old, start.wrapping_add(filled(&shared))));
        *shared = self.rings.clone();
        Ok(())
    }

    /// Arms the queue: the next completion (`solicited`: the next solicited one or error) raises an event; one that came
    /// since the last poll raises it at once.
    pub fn arm(&mut self, solicited: bool) {
        self.sequence = self.sequence.wrapping_add(1) & 3;
        self.ring(Some(solicited));
    }

    fn ring(&mut self, arm: Option<bool>) {
        if self.handle.device.0.life.is_over() {
            return;
        }
        let mut word = [0; 8];
        cq_db::NUMBER.set(&mut word, self.number().into());
        cq_db::ARM.set(&mut word, (arm == Some(false)).into());
        cq_db::ARM_SOLICITED.set(&mut word, (arm == Some(true)).into());
        cq_db::SEQUENCE.set(&mut word, self.sequence.into());
        self.told = self.consumer();
        cq_db::CONSUMER.set(&mut word, self.told.into());
        self.doorbell.ring(u64::from_le_bytes(word));
    }

    /// Consumer index as the device counts it.
    fn consumer(&self) -> u32 {
        self.handle.consumer.load(Ordering::Relaxed) & 0xff_ffff
    }

    /// The next flushed work request of a QP in error. The device's own completions come first: those of a buried QP are
    /// all there, but another thread may have buried it since this one looked for them.
    fn flush(&mut self) -> Option<Completion> {
        let buried = self.handle.device.buried(self.number());
        if buried.is_empty() {
            return None;
        }
        if let Some(c) = self.take() {
            return Some(c);
        }
        let (device, cq) = (&self.handle.device, self.number());
        let gone = device.0.life.is_over();
        let flush = |(qpn, qp): &(u32, Arc<Posted>)| {
            let all = gone || qp.is_buried();
            let lone = || (qp.cqs[0] == cq).then(|| qp.flush_send()).flatten().map(|wr_id| (wr_id, true));
            let next = if all { qp.flush(cq, gone) } else { lone() };
            if qp.cqs[0] == cq {
                device.settle(qp);
            }
            next.map(|(wr_id, send)| flushed(*qpn, wr_id, send))
        };
        buried.iter().find_map(flush)
    }

    /// Before the device's entry for a send of a QP that goes on after a failed one: what that left to be flushed.
    fn owed(&self, e: &[u8; cqe::BYTES]) -> Option<Completion> {
        if !self.handle.device.owes() || cqe::OPCODE.get(e) as u8 >= recv_op::RECV {
            return None;
        }
        let qpn = cqe::QPN.get(e) as u32;
        let qps = self.handle.device.qps();
        let qp = qps.get(qpn as usize)?.as_ref().filter(|qp| !qp.is_buried())?;
        self.handle.device.settle(qp);
        qp.owes_old_sends().then(|| qp.flush_send()).flatten().map(|wr_id| flushed(qpn, wr_id, true))
    }

    fn take(&mut self) -> Option<Completion> {
        loop {
            let index = self.handle.consumer.load(Ordering::Relaxed);
            if self.rings.before.first().is_some_and(|(_, end)| *end == index) {
                self.rings.before.remove(0);
                *self.handle.rings() = self.rings.clone();
                continue;
            }
            let e = self.rings.entry(index)?;
            if let Some(c) = self.owed(&e) {
                return Some(c);
            }
            self.handle.consumer.store(index.wrapping_add(1), Ordering::Release);
            if is_due(self.consumer(), self.told, self.rings.now.log2) {
                self.ring(None);
            }
            if let Some(c) = self.completion(index, &e) {
                return Some(c);
            }
        }
    }

    /// What entry `at` of the ring says, unless its QP is destroyed.
    fn completion(&self, at: u32, e: &[u8; cqe::BYTES]) -> Option<Completion> {
        let get = |f: abi::Field| f.get(e);
        let (qpn, opcode, index) = (get(cqe::QPN) as u32, get(cqe::OPCODE) as u8, get(cqe::WQE_INDEX) as u16);
        let status = match get(cqe::STATUS) as u8 {
            wc::SUCCESS => Ok(()),
            status => Err(WcError { status, cause: get(cqe::SYNDROME) as u8 }),
        };
        let send = opcode < recv_op::RECV;
        let (wr_id, failed) = {
            let qps = self.handle.device.qps();
            // In this order: a new QP of this number is there only when the old one is forgotten.
            let qp = qps.get(qpn as usize)?.as_ref();
            if let Some(srq) = self.handle.forgotten.has(qpn, at) {
                if let Some(srq) = srq.upgrade().filter(|_| !send) {
                    srq.give_back(index);
                }
                return None;
            }
            let qp = qp?;
            let lone = send && qp.lone_sends;
            if lone && status.is_err() {
                // Before its slot is free: the device is told no more of what is posted.
                self.handle.device.stop_sends(qp);
            }
            let wr_id = match &qp.sharing {
                _ if send => Some(qp.send.complete(index)),
                // The rest of a message that has failed is told of once more.
                Some(sharing) => sharing.complete(index, status.is_err()),
                None => Some(qp.recv.complete(index)),
            };
            (wr_id, status.is_err() && !lone)
        };
        if failed {
            self.handle.device.bury(qpn);
        }
        let wr_id = wr_id?;
        let has_imm = matches!(opcode, recv_op::RECV_IMM | recv_op::RECV_WRITE_IMM);
        let imm = has_imm.then(|| (get(cqe::IMM) as u32).to_le_bytes());
        let invalidated = (opcode == recv_op::RECV_INV && status.is_ok()).then(|| (get(cqe::IMM) as u32).swap_bytes());
        // What moves no data has none to tell of.
        let local = matches!(opcode, send_op::LOCAL_INV | send_op::BIND_MW | send_op::REG_MR);
        let (len, source) = (if local { 0 } else { get(cqe::LENGTH) as u32 }, get(cqe::SRC_QPN) as u32);
        Some(Completion { wr_id, qpn, status, opcode, len, imm, invalidated, source, timestamp: get(cqe::TIMESTAMP) })
    }
}

/// The completion of a request that the driver flushes.
fn flushed(qpn: u32, wr_id: u64, send: bool) -> Completion {
    let status = Err(WcError { status: wc::WR_FLUSH, cause: cause::FLUSHED });
    let opcode = if send { send_op::SEND } else { recv_op::RECV };
    Completion { wr_id, qpn, status, opcode, len: 0, imm: None, invalidated: None, source: 0, timestamp: 0 }
}

/// Iterator over the completions that are there.
pub struct Poll<'a> {
    cq: &'a mut Cq,
}

impl Iterator for Poll<'_> {
    type Item = Completion;
    fn next(&mut self) -> Option<Completion> {
        self.cq.take().or_else(|| self.cq.flush())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_names() {
        let told = |kind, number, value| Event { kind, number, value }.to_string();
        let lost = "the host refused an access to its memory: what was to be written is lost";
        assert_eq!(told(event::HEALTH, 0, health::READY | health::BUS), format!("HEALTH: the firmware runs; {lost}"));
        assert_eq!(told(event::COMPLETION, 5, 0), "COMPLETION 5, 0");
        assert!(told(event::QP_ERROR, 9, cause::FLUSHED.into()).starts_with("QP_ERROR 9: "));
        assert_eq!(told(200, 1, 2), "UNKNOWN 1, 2");
    }

    #[test]
    fn a_ring_holds_what_was_asked_for_beside_what_the_device_is_not_told_of() {
        let asked = (1..2000).chain((11..22).flat_map(|log2| (1 << log2) - 1..(1 << log2) + 2)).chain([MAX_ENTRIES]);
        for entries in asked {
            let log2 = log2_entries(entries).unwrap();
            let untold = (0..).take_while(|n| !is_due(*n, 0, log2)).count() as u32 - 1;
            assert!(entries + untold <= 1 << log2, "{entries} entries in 2^{log2}, {untold} of them not told");
            assert!(log2 < 2 || entries * 3 > 1 << log2, "{entries} entries in 2^{log2}: more than is needed");
        }
        assert!(is_due(3, 0xff_ffff, 4), "indices have 24 bits");
        for entries in [0, MAX_ENTRIES + 1, u32::MAX] {
            let e = log2_entries(entries).unwrap_err().to_string();
            assert!(e.contains(&format!("a queue of {entries} entries")), "{e}");
        }
    }
}
