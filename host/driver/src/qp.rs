//! Queue pairs: creation, the states in their type, receives.
//!
//! `Qp<Reset>` -> [`init`](Qp::init) -> `Qp<Init>` -> [`rtr`](Qp::rtr) -> `Qp<Rtr>` -> [`rts`](Qp::rts) -> `Qp<Rts>`, and from any state [`reset`](Qp::reset). Receives can be posted
//! from `Init` on, sends (see [`Post`](crate::Post)) in `Rts`.
//!
//! A `Qp<Rts>` goes to [`drain`](Qp::drain) its sends, one of UC or UD is [`stopped`](Qp::stopped) when a send has failed; both come back by `resume`.
//!
//! So for reliable connections. Unreliable ones and datagrams go the same way as `Qp<_, Uc>` and `Qp<_, Ud>`, each with what it needs on the way.

use crate::bar::Doorbell;
use crate::cq::{Cq, CqHandle};
use crate::device::{Device, ip_words, mac_word};
use crate::function::{Error, Result};
use crate::memory::RingMemory;
use crate::mr::{Access, Pd, Sge};
use crate::posted::{Posted, Sharing};
use crate::rate::RateLimit;
use crate::srq::SrqHandle;
use abi::cmd::{QKEY, attr, create_qp, head, modify_qp, op};
use abi::queue::doorbell::DIRECT_BLOCKS;
use abi::queue::{MAX_SGE, WQE_BLOCK, doorbell, ring_db, sge};
use abi::table::{qp_state, qp_type};
use abi::wire::qkey;
use std::marker::PhantomData;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, Weak};

/// State of a QP, as a type.
pub trait State {}
macro_rules! states {
    ($($(#[doc = $doc:literal])* $s:ident),*) => { $($(#[doc = $doc])* #[derive(Clone, Copy, Debug)] pub struct $s; impl State for $s {})* };
}
states! {
    /// Just created.
    Reset,
    /// Receives can be posted.
    Init,
    /// Receives are answered.
    Rtr,
    /// Sends are sent.
    Rts,
    /// A send of UC or UD has failed: receives are answered, sends flushed.
    Sqe,
    /// The messages that have begun are sent, no other one.
    Sqd
}

/// States in which receives can be posted.
pub trait CanReceive: State {}
impl CanReceive for Init {}
impl CanReceive for Rtr {}
impl CanReceive for Rts {}
impl CanReceive for Sqe {}
impl CanReceive for Sqd {}

/// Transport of a QP, as a type.
pub trait Transport {}
macro_rules! transports {
    ($($(#[doc = $doc:literal])* $t:ident),*) => { $($(#[doc = $doc])* #[derive(Clone, Copy, Debug)] pub struct $t; impl Transport for $t {})* };
}
transports! {
    /// Reliable connection; also the raw queue pair.
    Rc,
    /// Unreliable connection: SENDs and WRITEs to one peer, complete when they have left. What the network loses is lost, a message at a time.
    Uc,
    /// Unreliable datagrams: SENDs of one packet to anybody, see [`AddressHandle`](crate::AddressHandle), complete when they have left.
    Ud
}

/// Transports with one peer.
pub trait Connected: Transport {}
impl Connected for Rc {}
impl Connected for Uc {}

/// Transports that nobody acknowledges: a send that fails stops the send queue alone.
pub trait Unreliable: Transport {}
impl Unreliable for Uc {}
impl Unreliable for Ud {}

/// Sizes of a QP's queues.
#[derive(Clone, Copy, Debug)]
pub struct QpSizes {
    /// Blocks of 64 bytes in the send queue; a work request takes 1 to 4.
    pub send_blocks: u32,
    /// Receives.
    pub receives: u32,
    /// SGEs that a receive may have, 1 to [`MAX_SGE`]. With one it is a quarter as long in memory and on chip, so that the device has
    /// four times as many at hand: for many short messages.
    pub receive_sges: u32,
}

impl QpSizes {
    /// Receives may have up to [`MAX_SGE`] SGEs.
    pub const fn new(send_blocks: u32, receives: u32) -> Self {
        QpSizes { send_blocks, receives, receive_sges: MAX_SGE as u32 }
    }

    /// Receives have one SGE.
    pub const fn one_sge(self) -> Self {
        QpSizes { receive_sges: 1, ..self }
    }
}

/// Where the peer is, and how to reach it.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Peer's QP number.
    pub qpn: u32,
    /// First PSN that the peer will send.
    pub psn: u32,
    /// Peer's IP.
    pub ip: IpAddr,
    /// Peer's MAC, or the next hop's.
    pub mac: [u8; 6],
    /// Path MTU in bytes: 256 to 4096.
    pub mtu: u32,
    /// Index of the own GID.
    pub gid: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// VLAN priority (PCP, 0 to 7) of its frames, when the GID has a VLAN.
    pub priority: u8,
    /// UDP source port.
    pub source_port: u16,
    /// READs that the peer may have outstanding here.
    pub max_dest_reads: u8,
    /// RNR timer code for the peer.
    pub min_rnr_timer: u8,
}

/// How to send.
#[derive(Clone, Copy, Debug)]
pub struct SendOptions {
    /// First PSN.
    pub psn: u32,
    /// Verbs timeout code: 4.096 us x 2^t, 0 for never; 29 to 31 act as 28.
    pub timeout: u8,
    /// Retries.
    pub retry_count: u8,
    /// RNR retries, 7 without limit.
    pub rnr_retry: u8,
    /// Outstanding READs.
    pub max_reads: u8,
}

impl Default for SendOptions {
    fn default() -> Self {
        SendOptions { psn: 0, timeout: 14, retry_count: 7, rnr_retry: 7, max_reads: 16 }
    }
}

/// One of the two rings of a QP, from the producer's side.
pub(crate) struct Ring {
    memory: RingMemory,
    /// Of the units that its indices count: blocks of a send queue, SGEs of a receive queue.
    log2: u32,
    unit: usize,
    pub(crate) producer: u16,
    doorbell: Doorbell,
    qpn: u32,
}

impl Ring {
    /// An empty ring of `1 << log2` units, each of `unit` bytes; `doorbell` is told that it is number `qpn`'s.
    pub(crate) fn new(memory: RingMemory, log2: u32, unit: usize, doorbell: Doorbell, qpn: u32) -> Self {
        Ring { memory, log2, unit, producer: 0, doorbell, qpn }
    }

    /// Writes units, which end no later than the ring, at the producer index and steps it.
    pub(crate) fn push(&mut self, units: &[u8]) {
        let at = (u32::from(self.producer) & ((1 << self.log2) - 1)) as usize * self.unit;
        self.memory.write(at, units);
        self.producer = self.producer.wrapping_add((units.len() / self.unit) as u16);
    }

    pub(crate) fn free(&self, consumer: u16) -> u32 {
        // A device that completes what was not posted makes no room.
        (1u32 << self.log2).saturating_sub(self.producer.wrapping_sub(consumer).into())
    }

    /// Tells the device how far the ring is filled.
    pub(crate) fn ring(&self) {
        let mut word = [0; 8];
        ring_db::NUMBER.set(&mut word, self.qpn.into());
        ring_db::PRODUCER.set(&mut word, self.producer.into());
        self.doorbell.ring(u64::from_le_bytes(word));
    }
}

/// The parts of a QP that live as long as it, whatever its state.
pub(crate) struct Body {
    pub(crate) device: Device,
    pub(crate) qpn: u32,
    pub(crate) send: Ring,
    pub(crate) recv: Ring,
    /// SGEs that a receive may have, and those that it takes in the ring.
    pub(crate) receive_sges: usize,
    pub(crate) receive_units: u16,
    pub(crate) shared: Arc<Posted>,
    pub(crate) direct: Vec<Doorbell>,
    /// `qp_type`.
    pub(crate) kind: u8,
    /// UD: its own Q_Key.
    pub(crate) qkey: u32,
    pub(crate) rate: Mutex<Option<RateLimit>>,
    _pd: Pd,
    /// Of the sends, and of the receives.
    cqs: [Arc<CqHandle>; 2],
}

impl Drop for Body {
    fn drop(&mut self) {
        let device = self.device.clone();
        self.settle();
        let alone = device.numbers();
        device.destroy(op::DESTROY_QP, self.qpn);
        self.retire();
        drop(alone);
    }
}

/// A queue pair in state `S`, of transport `T`.
pub struct Qp<S: State, T: Transport = Rc> {
    pub(crate) body: Box<Body>,
    state: PhantomData<(S, T)>,
}

/// What QUERY_QP tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpInfo {
    /// `abi::table::qp_state`.
    pub state: u8,
    /// Next PSN to send.
    pub sq_psn: u32,
    /// Expected PSN.
    pub rq_psn: u32,
}

impl Pd {
    /// Creates a reliable connected queue pair in RESET.
    pub fn create_qp(&self, send_cq: &Cq, recv_cq: &Cq, sizes: QpSizes) -> Result<Qp<Reset>> {
        self.create(qp_type::RC, send_cq, recv_cq, sizes, None)
    }

    /// Creates a queue pair of an unreliable connection in RESET.
    pub fn create_uc_qp(&self, send_cq: &Cq, recv_cq: &Cq, sizes: QpSizes) -> Result<Qp<Reset, Uc>> {
        self.create(qp_type::UC, send_cq, recv_cq, sizes, None)
    }

    /// Creates a queue pair for datagrams in RESET. Its receives begin with [`UD_HEADER`](abi::queue::UD_HEADER) bytes for the IP header.
    pub fn create_ud_qp(&self, send_cq: &Cq, recv_cq: &Cq, sizes: QpSizes) -> Result<Qp<Reset, Ud>> {
        self.create(qp_type::UD, send_cq, recv_cq, sizes, None)
    }

    /// Creates the general service queue pair, QP 1, of which there is one, in INIT: datagrams for connection management, with the Q_Key
    /// that all such have. It is the device's keeper's: of a handle that was opened as owner 0.
    pub fn create_gsi_qp(&self, send_cq: &Cq, recv_cq: &Cq, sizes: QpSizes) -> Result<Qp<Init, Ud>> {
        let qp: Qp<Reset, Ud> = self.create(qp_type::GSI, send_cq, recv_cq, sizes, None)?;
        qp.init(qkey::QP1)
    }

    /// Creates the raw queue pair, of which there is one, ready: its SENDs are whole Ethernet frames without FCS, of 14 to 9,216
    /// bytes, and complete when they have left; its receives get the frames that [`Device::set_port`] lets through.
    pub fn create_raw_qp(&self, send_cq: &Cq, recv_cq: &Cq, sizes: QpSizes) -> Result<Qp<Rts>> {
        let qp: Qp<Reset> = self.create(qp_type::RAW, send_cq, recv_cq, sizes, None)?;
        qp.modify(attr::PORT, qp_state::INIT, &[(modify_qp::PORT, 1)])?;
        qp.modify(0, qp_state::RTR, &[])?;
        qp.modify(0, qp_state::RTS, &[])?;
        Ok(qp.into_state())
    }

    /// Creates a queue pair that takes its receives from a shared queue, in place of the least one of its own.
    pub(crate) fn create_sharing<T: Transport>(
        &self,
        kind: u8,
        send_cq: &Cq,
        recv_cq: &Cq,
        send_blocks: u32,
        srq: &Arc<SrqHandle>,
    ) -> Result<Qp<Reset, T>> {
        self.create(kind, send_cq, recv_cq, QpSizes::new(send_blocks, 1).one_sge(), Some(srq))
    }

    fn create<T: Transport>(
        &self,
        kind: u8,
        send_cq: &Cq,
        recv_cq: &Cq,
        sizes: QpSizes,
        srq: Option<&Arc<SrqHandle>>,
    ) -> Result<Qp<Reset, T>> {
        let device = &self.0.device;
        let log2 = |n: u32, most: u32, what: &str| match n {
            n if (1..=most).contains(&n) => Ok(n.next_power_of_two().ilog2()),
            _ => Err(Error::new(format!("{what} of {n} entries")).hint(format!("1 to {most} are possible"))),
        };
        let receive_sges = sizes.receive_sges as usize;
        if !(1..=MAX_SGE).contains(&receive_sges) {
            let e = Error::new(format!("receives of {receive_sges} SGEs"));
            return Err(e.hint(format!("1 to {MAX_SGE} are possible")));
        }
        let per_block = WQE_BLOCK / sge::BYTES;
        let receive_units = if receive_sges == 1 { 1 } else { per_block as u16 };
        let sq = log2(sizes.send_blocks, 1 << 15, "a send queue")?;
        let units = log2(sizes.receives, (1 << 15) / u32::from(receive_units), "a receive queue")?;
        // In units, of which there is a block at least.
        let rq = (units + u32::from(receive_units).ilog2()).max(per_block.ilog2());
        let send = RingMemory::new(&device.0.bus, WQE_BLOCK << sq)?;
        let recv = RingMemory::new(&device.0.bus, sge::BYTES << rq)?;
        let c = device
            .command(op::CREATE_QP)
            .with(create_qp::TYPE, kind.into())
            .with(create_qp::SQ_LOG2, sq.into())
            .with(create_qp::RQ_LOG2, (rq - per_block.ilog2()).into())
            .with(create_qp::RQ_SGES, receive_sges as u64)
            .with(create_qp::PD, self.0.number.into())
            .with(create_qp::SEND_CQN, send_cq.number().into())
            .with(create_qp::RECV_CQN, recv_cq.number().into())
            .with(create_qp::SQ_BASE, send.iova())
            .with(create_qp::RQ_BASE, recv.iova())
            .with(create_qp::SHARED, srq.is_some().into())
            .with(create_qp::SRQN, srq.map_or(0, |s| s.number.into()));
        let kind = if kind == qp_type::GSI { qp_type::UD } else { kind };
        let _alone = device.numbers();
        let (qpn, _) = device.create(&c)?;
        let sharing = srq.map(|s| Sharing::new(s.clone()));
        let shared = Arc::new(Posted::new([sq, rq], [send_cq.number(), recv_cq.number()], kind, sharing));
        device.qps()[qpn as usize] = Some(shared.clone());
        let ring = |memory, log2, unit, at| Ring::new(memory, log2, unit, device.doorbell(at), qpn);
        Ok(Qp {
            body: Box::new(Body {
                device: device.clone(),
                qpn,
                send: ring(send, sq, WQE_BLOCK, doorbell::SQ),
                recv: ring(recv, rq, sge::BYTES, doorbell::RQ),
                receive_sges,
                receive_units,
                shared,
                direct: (0..DIRECT_BLOCKS * WQE_BLOCK / 8)
                    .map(|i| device.doorbell(doorbell::DIRECT_WQE + 8 * i))
                    .collect(),
                kind,
                qkey: 0,
                rate: Mutex::default(),
                _pd: self.clone(),
                cqs: [send_cq.handle.clone(), recv_cq.handle.clone()],
            }),
            state: PhantomData,
        })
    }
}

impl<S: State, T: Transport> Qp<S, T> {
    /// QP number.
    pub fn qpn(&self) -> u32 {
        self.body.qpn
    }

    /// State and PSNs, as one moment saw them.
    pub fn query(&self) -> Result<QpInfo> {
        let d = &self.body.device;
        let a = d.execute(&d.command(op::QUERY_QP).with(head::NUMBER, self.body.qpn.into()))?;
        Ok(QpInfo {
            state: a.get(modify_qp::STATE) as u8,
            sq_psn: a.get(modify_qp::SQ_PSN) as u32,
            rq_psn: a.get(modify_qp::RQ_PSN) as u32,
        })
    }

    pub(crate) fn modify(&self, mask: u32, state: u8, fields: &[(abi::Field, u64)]) -> Result<()> {
        let d = &self.body.device;
        let c = d
            .command(op::MODIFY_QP)
            .with(head::NUMBER, self.body.qpn.into())
            .with(modify_qp::MASK, (mask | attr::STATE).into())
            .with(modify_qp::STATE, state.into());
        let c = fields.iter().fold(c, |c, (f, v)| c.with(*f, *v));
        d.execute(&c).map(drop)
    }

    fn into_state<N: State>(self) -> Qp<N, T> {
        Qp { body: self.body, state: PhantomData }
    }

    /// To RESET: when this returns the device touches neither its rings nor memory in its name. What was posted is forgotten, its
    /// completions that were not polled as well.
    pub fn reset(mut self) -> Result<Qp<Reset, T>> {
        let device = self.body.device.clone();
        self.body.settle();
        let alone = device.numbers();
        self.modify(0, qp_state::RESET, &[])?;
        let body = &mut *self.body;
        body.retire();
        let (log2, cqs) = ([body.send.log2, body.recv.log2], body.cqs.each_ref().map(|cq| cq.number));
        let sharing = body.shared.sharing.as_ref().map(|s| Sharing::new(s.srq.clone()));
        body.shared = Arc::new(Posted::new(log2, cqs, body.kind, sharing));
        device.qps()[body.qpn as usize] = Some(body.shared.clone());
        (body.send.producer, body.recv.producer) = (0, 0);
        body.rate = Mutex::default();
        drop(alone);
        Ok(self.into_state())
    }

    /// To ERR: all that is outstanding is flushed. The completions are there when the completion queues are polled next.
    pub fn fail(&self) -> Result<()> {
        self.body.device.try_bury(self.body.qpn)
    }
}

impl<T: Connected> Qp<Reset, T> {
    /// To INIT; `access` is what the peer may do.
    pub fn init(self, access: Access) -> Result<Qp<Init, T>> {
        let mask = attr::PKEY_INDEX | attr::PORT | attr::ACCESS_FLAGS;
        let access = u64::from(access.bits());
        self.modify(mask, qp_state::INIT, &[(modify_qp::PORT, 1), (modify_qp::ACCESS, access)])?;
        Ok(self.into_state())
    }
}

impl Qp<Reset, Ud> {
    /// To INIT; datagrams that name this Q_Key are received. One of 2^31 or more is privileged: a handle that was opened as owner 0 may set it.
    pub fn init(mut self, qkey: u32) -> Result<Qp<Init, Ud>> {
        if qkey >= qkey::PRIVILEGED && self.body.device.0.owner != 0 {
            return Err(
                Error::new(format!("a Q_Key of {qkey:#x}, which is privileged")).hint("below 2^31 all are free to use")
            );
        }
        let mask = attr::PKEY_INDEX | attr::PORT | attr::QKEY;
        self.modify(mask, qp_state::INIT, &[(modify_qp::PORT, 1), (QKEY, qkey.into())])?;
        self.body.qkey = qkey;
        Ok(self.into_state())
    }
}

impl Qp<Init, Ud> {
    /// To RTR: datagrams are received from now on.
    pub fn rtr(self) -> Result<Qp<Rtr, Ud>> {
        self.modify(0, qp_state::RTR, &[])?;
        Ok(self.into_state())
    }
}

impl Qp<Init> {
    /// To RTR: packets of the peer are answered from now on.
    pub fn rtr(self, path: &Path) -> Result<Qp<Rtr>> {
        let own = [
            (modify_qp::MAX_DEST_READS, path.max_dest_reads.into()),
            (modify_qp::MIN_RNR_TIMER, path.min_rnr_timer.into()),
        ];
        self.connect(path, attr::MAX_DEST_RD_ATOMIC | attr::MIN_RNR_TIMER, &own)
    }
}

impl Qp<Init, Uc> {
    /// To RTR: packets of the peer are received from now on. What `path` says of READs and of the RNR timer means nothing here.
    pub fn rtr(self, path: &Path) -> Result<Qp<Rtr, Uc>> {
        self.connect(path, 0, &[])
    }
}

impl<T: Connected> Qp<Init, T> {
    /// To RTR with what the transport needs besides the path.
    fn connect(self, path: &Path, own_mask: u32, own: &[(abi::Field, u64)]) -> Result<Qp<Rtr, T>> {
        let mtu = match path.mtu {
            256 | 512 | 1024 | 2048 | 4096 => path.mtu.ilog2() - 7,
            other => {
                return Err(Error::new(format!("a path MTU of {other} bytes"))
                    .hint("256, 512, 1024, 2048 and 4096 are possible"));
            }
        };
        if path.priority > 7 {
            return Err(Error::new(format!("a VLAN priority of {}", path.priority)).hint("0 to 7 are possible"));
        }
        let (low, high) = ip_words(path.ip);
        let mask = attr::AV | attr::PATH_MTU | attr::DEST_QPN | attr::RQ_PSN;
        let fields = [
            (modify_qp::PATH_MTU, mtu.into()),
            (modify_qp::DEST_QPN, path.qpn.into()),
            (modify_qp::RQ_PSN, path.psn.into()),
            (modify_qp::GID, path.gid.into()),
            (modify_qp::TRAFFIC_CLASS, path.traffic_class.into()),
            (modify_qp::HOP_LIMIT, 64),
            (modify_qp::PRIORITY, path.priority.into()),
            (modify_qp::DMAC, mac_word(path.mac)),
            (modify_qp::SPORT, path.source_port.into()),
            (modify_qp::DIP_LOW, low),
            (modify_qp::DIP_HIGH, high),
        ];
        self.modify(mask | own_mask, qp_state::RTR, &[&fields, own].concat())?;
        Ok(self.into_state())
    }
}

impl Qp<Rtr> {
    /// To RTS: sends are sent from now on.
    pub fn rts(self, options: &SendOptions) -> Result<Qp<Rts>> {
        let mask = attr::SQ_PSN | attr::TIMEOUT | attr::RETRY_CNT | attr::RNR_RETRY | attr::MAX_QP_RD_ATOMIC;
        let fields = [
            (modify_qp::SQ_PSN, options.psn.into()),
            (modify_qp::TIMEOUT, options.timeout.into()),
            (modify_qp::RETRY_CNT, options.retry_count.into()),
            (modify_qp::RNR_RETRY, options.rnr_retry.into()),
            (modify_qp::MAX_READS, options.max_reads.into()),
        ];
        self.modify(mask, qp_state::RTS, &fields)?;
        Ok(self.into_state())
    }
}

impl Qp<Rtr, Uc> {
    /// To RTS: sends are sent from now on, from this PSN on.
    pub fn rts(self, psn: u32) -> Result<Qp<Rts, Uc>> {
        self.begin(psn)
    }
}

impl Qp<Rtr, Ud> {
    /// To RTS: sends are sent from now on, from this PSN on.
    pub fn rts(self, psn: u32) -> Result<Qp<Rts, Ud>> {
        self.begin(psn)
    }
}

impl<T: Transport> Qp<Rtr, T> {
    fn begin(self, psn: u32) -> Result<Qp<Rts, T>> {
        self.modify(attr::SQ_PSN, qp_state::RTS, &[(modify_qp::SQ_PSN, psn.into())])?;
        Ok(self.into_state())
    }
}

impl<T: Unreliable> Qp<Rts, T> {
    /// A failed send of it was polled: it is in SQE, and so are its sends until [`Qp::stopped`] and [`Qp::resume`].
    pub fn has_stopped(&self) -> bool {
        self.body.shared.has_stopped()
    }

    /// The queue pair, in SQE, once a failed send of it was polled; else itself.
    pub fn stopped(self) -> std::result::Result<Qp<Sqe, T>, Self> {
        if self.has_stopped() { Ok(self.into_state()) } else { Err(self) }
    }
}

impl<T: Unreliable> Qp<Sqe, T> {
    /// Back to RTS: sends that are posted from now on are sent. Those of before complete with WR_FLUSH, ahead of them.
    pub fn resume(self) -> Result<Qp<Rts, T>> {
        let index = self.body.send.producer.into();
        self.modify(
            attr::CUR_STATE,
            qp_state::RTS,
            &[(modify_qp::CUR_STATE, qp_state::SQE.into()), (modify_qp::SQ_INDEX, index)],
        )?;
        self.body.shared.resume_sends();
        Ok(self.into_state())
    }
}

impl<T: Transport> Qp<Rts, T> {
    /// To SQD: the messages that have begun are sent to their end, those behind them wait. With `notify` the event SQ_DRAINED
    /// comes when all that began is complete, and in its completion queue.
    pub fn drain(self, notify: bool) -> Result<Qp<Sqd, T>> {
        let mask = if notify { attr::EN_SQD_ASYNC_NOTIFY } else { 0 };
        self.modify(mask, qp_state::SQD, &[])?;
        Ok(self.into_state())
    }
}

/// What can be changed of a reliable connection: all of it in SQD, once it has drained; the RNR timer and the access in RTS, too.
#[derive(Clone, Copy, Debug, Default)]
pub struct Changes {
    /// Verbs timeout code.
    pub timeout: Option<u8>,
    /// Retries.
    pub retry_count: Option<u8>,
    /// RNR retries, 7 without limit.
    pub rnr_retry: Option<u8>,
    /// Outstanding READs.
    pub max_reads: Option<u8>,
    /// READs that the peer may have outstanding here.
    pub max_dest_reads: Option<u8>,
    /// RNR timer code for the peer.
    pub min_rnr_timer: Option<u8>,
    /// What the peer may do.
    pub access: Option<Access>,
}

impl Qp<Rts> {
    /// Changes attributes while it is at work; those that ask for SQD are refused.
    pub fn change(&self, changes: &Changes) -> Result<()> {
        self.change_in(qp_state::RTS, changes)
    }
}

impl Qp<Sqd> {
    /// Changes attributes.
    pub fn change(&self, changes: &Changes) -> Result<()> {
        self.change_in(qp_state::SQD, changes)
    }
}

impl<S: State> Qp<S> {
    fn change_in(&self, state: u8, changes: &Changes) -> Result<()> {
        let all = [
            (attr::TIMEOUT, modify_qp::TIMEOUT, changes.timeout),
            (attr::RETRY_CNT, modify_qp::RETRY_CNT, changes.retry_count),
            (attr::RNR_RETRY, modify_qp::RNR_RETRY, changes.rnr_retry),
            (attr::MAX_QP_RD_ATOMIC, modify_qp::MAX_READS, changes.max_reads),
            (attr::MAX_DEST_RD_ATOMIC, modify_qp::MAX_DEST_READS, changes.max_dest_reads),
            (attr::MIN_RNR_TIMER, modify_qp::MIN_RNR_TIMER, changes.min_rnr_timer),
            (attr::ACCESS_FLAGS, modify_qp::ACCESS, changes.access.map(|a| a.bits())),
        ];
        let given = all.into_iter().filter_map(|(mask, field, value)| value.map(|v| (mask, (field, u64::from(v)))));
        let (masks, fields): (Vec<_>, Vec<_>) = given.unzip();
        self.modify(masks.into_iter().fold(0, |all, mask| all | mask), state, &fields)
    }
}

impl<T: Transport> Qp<Sqd, T> {
    /// Back to RTS: what waits is sent. Refused, by CUR_STATE, if a send has failed meanwhile: then the queue has stopped.
    pub fn resume(self) -> Result<Qp<Rts, T>> {
        self.modify(attr::CUR_STATE, qp_state::RTS, &[(modify_qp::CUR_STATE, qp_state::SQD.into())])?;
        Ok(self.into_state())
    }
}

impl<T: Transport> Qp<Rts, T> {
    /// The send queue has room for this many blocks.
    pub(crate) fn has_room(&self, blocks: u32) -> bool {
        self.body.send_room() >= blocks
    }
}

impl Body {
    /// Before it ends: what it has taken from a shared queue completes, and the receive of a message under way is known.
    fn settle(&self) {
        let query = || self.device.execute(&self.device.command(op::QUERY_QP).with(head::NUMBER, self.qpn.into()));
        let in_reset = |a: crate::command::Answer| a.get(modify_qp::STATE) as u8 == qp_state::RESET;
        if self.shared.sharing.is_some() && !query().is_ok_and(in_reset) {
            self.device.bury(self.qpn);
        }
    }

    /// It has ended: its completions are nobody's any more, and receives that it had from a shared queue go back.
    fn retire(&self) {
        let srq = self.shared.sharing.as_ref().map_or(Weak::new(), |s| Arc::downgrade(&s.srq));
        // In this order: whoever polls a completion of it knows by one of the two what to do.
        self.cqs.iter().for_each(|cq| cq.forget(self.qpn, &srq));
        self.device.retire(self.qpn);
        if let Some(s) = &self.shared.sharing
            && let Some(index) = s.take_held()
        {
            s.srq.give_back_whole(index);
        }
    }

    /// The device wants to know of sends: it is there, and has not stopped sending, after which their flushed slots would take
    /// the doorbell further than the queue is deep.
    pub(crate) fn hears(&self) -> bool {
        !self.device.0.life.is_over() && !self.shared.has_stopped()
    }
    /// Blocks that can be posted to the send queue.
    pub(crate) fn send_room(&self) -> u32 {
        self.send.free(self.shared.send.consumer())
    }
    /// Writes the blocks of a send to its ring and notes the caller's number.
    pub(crate) fn push_send(&mut self, wr_id: u64, blocks: &[[u8; WQE_BLOCK]]) {
        blocks.iter().for_each(|b| self.send.push(b));
        self.shared.send.post(wr_id, blocks.len() as u16);
    }
}

/// Writes an SGE at byte `at` of `block`.
pub(crate) fn put_sge(block: &mut [u8], at: usize, s: &Sge) {
    let b = &mut block[at..at + sge::BYTES];
    sge::VA.set(b, s.addr);
    sge::LKEY.set(b, s.lkey.into());
    sge::LENGTH.set(b, s.len.into());
}
