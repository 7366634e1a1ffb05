//! Completion queues and the event queues behind them.

use crate::bar::Doorbell;
use crate::device::Device;
use crate::function::{Error, Result};
use crate::memory::RingMemory;
use abi::cmd::{create_cq, create_eq, op};
use abi::queue::{cq_db, cqe, doorbell, eq_db, eqe, recv_op, send_op};
use abi::status::{cause, wc};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

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
    /// Bytes received (receives and READs).
    pub len: u32,
    /// Immediate data as 4 wire bytes, when there is any.
    pub imm: Option<[u8; 4]>,
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
        Ok(Eq { handle, log2, consumer: 0, doorbell })
    }

    /// Creates a completion queue of at least `entries` entries whose events go to `eq`.
    pub fn create_cq(&self, entries: u32, eq: &Eq) -> Result<Cq> {
        let log2 = log2_entries(entries)?;
        let ring = RingMemory::new(&self.0.bus, cqe::BYTES << log2)?;
        let c = self
            .command(op::CREATE_CQ)
            .with(create_cq::LOG2_ENTRIES, log2.into())
            .with(create_cq::EQN, eq.handle.number.into())
            .with(create_cq::BASE, ring.iova());
        let (number, _) = self.create(&c)?;
        let handle = Arc::new(CqHandle {
            device: self.clone(),
            number,
            ring,
            _eq: eq.handle.clone(),
            failed: Mutex::default(),
            any_failed: AtomicBool::new(false),
        });
        let doorbell = self.doorbell(doorbell::CQ);
        Ok(Cq { handle, log2, consumer: 0, told: 0, sequence: 0, doorbell })
    }
}

fn log2_entries(entries: u32) -> Result<u32> {
    if entries == 0 || entries > 1 << 22 {
        return Err(Error::new(format!("a queue of {entries} entries")).hint("1 to 4,194,304 entries are possible"));
    }
    Ok(entries.next_power_of_two().ilog2())
}

impl Eq {
    /// The next event, if there is one.
    pub fn poll(&mut self) -> Option<Event> {
        let phase = (self.consumer >> self.log2 & 1) as u8 ^ 1;
        let at = (self.consumer & ((1 << self.log2) - 1)) as usize * eqe::BYTES;
        let e = self.handle.ring.read_if::<{ eqe::BYTES }>(at, |last| last & 1 == phase)?;
        self.consumer = self.consumer.wrapping_add(1) & 0xff_ffff;
        let get = |f: abi::Field| f.get(&e);
        Some(Event { kind: get(eqe::TYPE) as u8, number: get(eqe::NUMBER) as u32, value: get(eqe::DATA) as u32 })
    }

    /// Frees the entries that were polled and arms the interrupt: one follows if an event is there, or comes.
    pub fn arm(&mut self) {
        let mut word = [0; 8];
        eq_db::NUMBER.set(&mut word, self.handle.number.into());
        eq_db::ARM.set(&mut word, 1);
        eq_db::CONSUMER.set(&mut word, self.consumer.into());
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
    ring: RingMemory,
    _eq: Arc<EqHandle>,
    /// Queues in error that complete here: QP number, and whether it is the send queue. What is posted to them is flushed.
    failed: Mutex<Vec<(u32, bool)>>,
    any_failed: AtomicBool,
}

impl CqHandle {
    fn failed(&self) -> MutexGuard<'_, Vec<(u32, bool)>> {
        self.failed.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// From now on, what is and will be posted to this queue is flushed: the device completes nothing of it any more.
    pub(crate) fn flush(&self, qpn: u32, send: bool) {
        let mut failed = self.failed();
        if !failed.contains(&(qpn, send)) {
            failed.push((qpn, send));
        }
        self.any_failed.store(true, Ordering::Release);
    }

    /// A QP is destroyed.
    pub(crate) fn forget(&self, qpn: u32) {
        self.failed().retain(|f| f.0 != qpn);
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
    log2: u32,
    consumer: u32,
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

    /// Takes completions that are there, oldest first. Once a queue of a QP has failed, all that is posted to it completes with
    /// WR_FLUSH, in order: the device goes silent, and this driver accounts for the rest. The QP's other queue follows with
    /// [`Qp::fail`](crate::Qp::fail). Their entries are free for the device when the iterator is dropped.
    pub fn poll(&mut self) -> Poll<'_> {
        Poll { cq: self }
    }

    /// Waits for one completion, letting time pass.
    pub fn wait(&mut self) -> Completion {
        loop {
            if let Some(c) = self.poll().next() {
                return c;
            }
            self.handle.device.relax();
        }
    }

    /// Arms the queue: the next completion (`solicited`: the next solicited one or error) raises an event; one that came
    /// since the last poll raises it at once.
    pub fn arm(&mut self, solicited: bool) {
        self.sequence = self.sequence.wrapping_add(1) & 3;
        self.ring(Some(solicited));
    }

    fn ring(&mut self, arm: Option<bool>) {
        let mut word = [0; 8];
        cq_db::NUMBER.set(&mut word, self.number().into());
        cq_db::ARM.set(&mut word, (arm == Some(false)).into());
        cq_db::ARM_SOLICITED.set(&mut word, (arm == Some(true)).into());
        cq_db::SEQUENCE.set(&mut word, self.sequence.into());
        cq_db::CONSUMER.set(&mut word, self.consumer.into());
        self.doorbell.ring(u64::from_le_bytes(word));
        self.told = self.consumer;
    }

    /// The next flushed work request of a queue in error. The device's own completions come first.
    fn flush(&mut self) -> Option<Completion> {
        if !self.handle.any_failed.load(Ordering::Acquire) {
            return None;
        }
        let qps = self.handle.device.0.qps.lock().unwrap_or_else(|e| e.into_inner());
        let flushed = self.handle.failed().iter().find_map(|(qpn, send)| {
            let qp = qps.get(*qpn as usize)?.as_ref()?;
            let wr_id = if *send { qp.send.flush() } else { qp.recv.flush() }?;
            Some((*qpn, *send, wr_id))
        });
        let (qpn, send, wr_id) = flushed?;
        let status = Err(WcError { status: wc::WR_FLUSH, cause: cause::FLUSHED });
        let opcode = if send { send_op::SEND } else { recv_op::RECV };
        Some(Completion { wr_id, qpn, status, opcode, len: 0, imm: None, timestamp: 0 })
    }

    fn take(&mut self) -> Option<Completion> {
        let phase = (self.consumer >> self.log2 & 1) as u8 ^ 1;
        let at = (self.consumer & ((1 << self.log2) - 1)) as usize * cqe::BYTES;
        let e = self.handle.ring.read_if::<{ cqe::BYTES }>(at, |last| last & 1 == phase)?;
        self.consumer = self.consumer.wrapping_add(1) & 0xff_ffff;
        let get = |f: abi::Field| f.get(&e);
        let (qpn, opcode, index) = (get(cqe::QPN) as u32, get(cqe::OPCODE) as u8, get(cqe::WQE_INDEX) as u16);
        let status = match get(cqe::STATUS) as u8 {
            wc::SUCCESS => Ok(()),
            status => Err(WcError { status, cause: get(cqe::SYNDROME) as u8 }),
        };
        let qps = self.handle.device.0.qps.lock().unwrap_or_else(|e| e.into_inner());
        let send = opcode < recv_op::RECV;
        let wr_id = match qps.get(qpn as usize).and_then(Option::as_ref) {
            Some(qp) if send => qp.send.complete(index),
            Some(qp) => qp.recv.complete(index),
            // A late completion of a QP that is destroyed.
            None => 0,
        };
        drop(qps);
        if status.is_err() {
            // The device's last word on this queue.
            self.handle.flush(qpn, send);
        }
        let has_imm = matches!(opcode, recv_op::RECV_IMM | recv_op::RECV_WRITE_IMM);
        let imm = has_imm.then(|| (get(cqe::IMM) as u32).to_le_bytes());
        Some(Completion {
            wr_id,
            qpn,
            status,
            opcode,
            len: get(cqe::LENGTH) as u32,
            imm,
            timestamp: get(cqe::TIMESTAMP),
        })
    }
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

impl Drop for Poll<'_> {
    fn drop(&mut self) {
        // A doorbell for each quarter of the ring is enough to keep the device going.
        let unknown = self.cq.consumer.wrapping_sub(self.cq.told) & 0xff_ffff;
        if unknown * 4 >= 1 << self.cq.log2 {
            self.cq.ring(None);
        }
    }
}
