//! An open device: identity, limits, commands, doorbell page, and the objects that hang on it.

use crate::bar::Bar;
use crate::command::{Answer, Command, CommandRing};
use crate::config::{self, Identity};
use crate::firmware;
use crate::function::{Error, PciFunction, Result};
use crate::life::Life;
use crate::memory::BusSpace;
use crate::posted::Posted;
use crate::reg;
use crate::registers::Registers;
use abi::cmd::{answer, attr, head, modify_qp, op, query_qp, set_gid, set_multicast, set_port};
use abi::table::{GIDS, qp_state};
use abi::{ABI_VERSION, bar, queue::doorbell};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Owner of the port and its addresses: whoever opens the device sets them for all owners.
const PORT_OWNER: u16 = 0;

/// Powers of two that the device is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// QPs.
    pub qps: u32,
    /// Completion queues.
    pub cqs: u32,
    /// Memory keys.
    pub keys: u32,
    /// Event queues.
    pub eqs: u32,
    /// Translation table entries.
    pub mtt: u32,
    /// Doorbell pages.
    pub pages: u32,
    /// Messages in flight per QP.
    pub messages: u32,
    /// READs in flight per QP.
    pub reads: u32,
    /// QPs can have rates.
    pub rates: bool,
}

/// An address of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gid {
    /// IP address.
    pub ip: IpAddr,
    /// MAC.
    pub mac: [u8; 6],
    /// VLAN id, when its frames are tagged.
    pub vlan: Option<u16>,
}

/// Station address of the port, and which frames go to the raw queue: none, unless `raw` is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Station address.
    pub mac: [u8; 6],
    /// Frames that are not RoCE go there: broadcast ones, those to the station's or a GID's MAC, or to a group of
    /// [`Device::set_multicast`].
    pub raw: bool,
    /// All of them.
    pub promiscuous: bool,
    /// Most frames a second, 0 for no limit; what is beyond is counted (`RX_RAW_RATE`).
    pub rate: u32,
    /// Frames that may come at once, above the rate.
    pub burst: u8,
}

impl Port {
    /// A station without a raw queue.
    pub fn new(mac: [u8; 6]) -> Self {
        Port { mac, raw: false, promiscuous: false, rate: 0, burst: 1 }
    }
}

/// How to open a device.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Firmware image (`abi::image`) to load when none runs.
    pub firmware: Option<Vec<u8>>,
    /// Doorbell page: the owner of all objects made through this handle.
    pub owner: u16,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions { firmware: None, owner: 1 }
    }
}

/// An open device; objects keep it open.
#[derive(Clone)]
pub struct Device(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) function: Arc<dyn PciFunction>,
    pub(crate) bar0: Arc<Bar>,
    pub(crate) doorbells: Arc<Bar>,
    pub(crate) bus: Arc<BusSpace>,
    pub(crate) commands: CommandRing,
    pub(crate) owner: u16,
    pub(crate) limits: Limits,
    /// Queue pairs by number, for the completion queues that count their sends off.
    qps: Mutex<Vec<Option<Arc<Posted>>>>,
    /// GIDs that were set.
    gids: Mutex<[Option<Gid>; GIDS]>,
    /// How many of them are buried, and how many have sends to be flushed.
    buried: AtomicUsize,
    pub(crate) life: Arc<Life>,
    numbers: Mutex<()>,
}

impl Device {
    /// Opens the device behind `function`. Errors: not a Ferroce device, an ABI this driver does not know, firmware missing
    /// or not coming up.
    pub fn open(function: Arc<dyn PciFunction>, options: &OpenOptions) -> Result<Device> {
        Identity::of(&*function)?.check()?;
        config::enable(&*function)?;
        let bar0 = Arc::new(Bar::open(function.clone(), 0)?);
        let doorbells = Arc::new(Bar::open(function.clone(), 2)?);
        let magic = reg!(bar0, Registers, magic).read();
        if magic != bar::MAGIC_VALUE {
            let gone = if magic == u32::MAX { "; all ones mean that the device is gone" } else { "" };
            return Err(Error::new(format!("BAR0 reads {magic:#010x} where {:#010x} belongs{gone}", bar::MAGIC_VALUE)));
        }
        let version = reg!(bar0, Registers, abi_version).read();
        if version >> 16 != ABI_VERSION >> 16 {
            return Err(Error::new(format!("the device speaks ABI {version:#010x}, this driver {ABI_VERSION:#010x}"))
                .hint("use the driver of the release that the bitstream came with"));
        }
        firmware::start(&*function, &bar0, options.firmware.as_deref())?;
        let (a, b) = (reg!(bar0, Registers, limits).read(), reg!(bar0, Registers, limits2).read());
        let power = |word: u32, byte: u32| 1u32 << (word >> (8 * byte) & 31);
        let limits = Limits {
            qps: power(a, 0),
            cqs: power(a, 1),
            keys: power(a, 2),
            eqs: power(a, 3),
            mtt: power(b, 0),
            pages: power(b, 1),
            messages: power(b, 2),
            reads: power(b, 3),
            rates: b & bar::PACES != 0,
        };
        if u32::from(options.owner) >= limits.pages {
            return Err(Error::new(format!("doorbell page {} of {}", options.owner, limits.pages)));
        }
        let (asked, size) = ((u64::from(options.owner) + 1) * doorbell::PAGE as u64, doorbells.size());
        if asked > size {
            return Err(Error::new(format!(
                "BAR2 has {size:#x} bytes, doorbell page {} ends at {asked:#x}",
                options.owner
            ))
            .hint("is the bitstream one of this release?"));
        }
        let bus = Arc::new(BusSpace::new(function.clone())?);
        let life = Arc::new(Life::new(function.clone(), bar0.clone()));
        let commands = CommandRing::new(function.clone(), bar0.clone(), &bus, life.clone())?;
        let qps = Mutex::new(vec![None; limits.qps as usize]);
        let gids = Mutex::new([None; GIDS]);
        let (owner, buried, numbers) = (options.owner, AtomicUsize::new(0), Mutex::new(()));
        Ok(Device(Arc::new(Inner {
            function,
            bar0,
            doorbells,
            bus,
            commands,
            owner,
            limits,
            qps,
            gids,
            buried,
            life,
            numbers,
        })))
    }

    /// What the device is built for.
    pub fn limits(&self) -> Limits {
        self.0.limits
    }

    /// The device's clock in cycles.
    pub fn clock(&self) -> u64 {
        reg!(self.0.bar0, Registers, clock).read()
    }

    /// Health bits, as the register page describes them.
    pub fn health(&self) -> u32 {
        reg!(self.0.bar0, Registers, health).read() & bar::health::STATE
    }

    /// Whether the device still is the one that this handle opened. Once it is not (it was reset, it lost its firmware or its
    /// access to memory), all that is tried with the handle's objects fails at once, and what was posted is flushed. Commands
    /// look too, and so does [`Cq::wait`](crate::Cq::wait) now and then; posting alone notices nothing.
    pub fn check(&self) -> Result<()> {
        self.0.life.check()
    }

    /// Function-level reset. All objects of the device, of all its handles, are void from then on.
    pub fn reset(&self) -> Result<()> {
        self.0.life.ends("it was reset by this handle");
        self.0.function.reset()
    }

    /// Hash of the gates' Verilog: tells builds apart.
    pub fn build_hash(&self) -> u32 {
        reg!(self.0.bar0, Registers, build_hash).read()
    }

    /// Version of the running firmware: major in the upper half, minor in the lower.
    pub fn firmware_version(&self) -> u32 {
        reg!(self.0.bar0, Registers, fw_version).read()
    }

    /// The link is up. Changes come as [`Event`](crate::Event)s of event queue 0.
    pub fn link_up(&self) -> bool {
        reg!(self.0.bar0, Registers, port).read() & 1 == 1
    }

    /// MTU of the port in bytes: what a frame holds beside its Ethernet header, VLAN tag and FCS.
    pub fn mtu(&self) -> u32 {
        reg!(self.0.bar0, Registers, port).read() >> 16
    }

    /// Clock rate in MHz.
    pub fn clock_mhz(&self) -> u32 {
        reg!(self.0.bar0, Registers, datapath).read() >> 16 & 0x3ff
    }

    /// A counter of `abi::status::counter`.
    pub fn counter(&self, index: usize) -> u64 {
        assert!(index < abi::status::counter::NAMES.len(), "no counter {index}");
        self.0.bar0.read(bar::COUNTERS + 8 * index)
    }

    /// The firmware's log, oldest byte first.
    pub fn firmware_log(&self) -> String {
        let head = reg!(self.0.bar0, Registers, fw_log_head).read() as usize % bar::FW_LOG_BYTES;
        let mut ring = Vec::with_capacity(bar::FW_LOG_BYTES);
        for at in (0..bar::FW_LOG_BYTES).step_by(4) {
            ring.extend_from_slice(&self.0.bar0.read::<u32>(bar::FW_LOG + at).to_le_bytes());
        }
        ring.rotate_left(head);
        ring.retain(|b| *b != 0);
        String::from_utf8_lossy(&ring).into_owned()
    }

    /// Maps of the IOMMU in use by this handle.
    pub fn dma_maps(&self) -> usize {
        self.0.bus.maps()
    }

    /// Lets time pass in a wait loop.
    pub fn relax(&self) {
        self.0.function.relax();
    }

    /// Sets or clears an entry of the GID table.
    pub fn set_gid(&self, index: u8, gid: Option<Gid>) -> Result<()> {
        let mut c = Command::new(op::SET_GID, PORT_OWNER).with(set_gid::INDEX, index.into());
        if let Some(g) = gid {
            let (low, high) = ip_words(g.ip);
            c = c
                .with(set_gid::VALID, 1)
                .with(set_gid::IS_IP6, g.ip.is_ipv6().into())
                .with(set_gid::MAC, mac_word(g.mac))
                .with(set_gid::IP_LOW, low)
                .with(set_gid::IP_HIGH, high);
            if let Some(vlan) = g.vlan {
                c = c.with(set_gid::TAGGED, 1).with(set_gid::VLAN, vlan.into());
            }
        }
        self.execute(&c)?;
        if let Some(known) = self.0.gids.lock().unwrap_or_else(|e| e.into_inner()).get_mut(usize::from(index)) {
            *known = gid;
        }
        let group = gid.and_then(|g| questions_for(g.ip));
        self.set_multicast(index, group)
    }

    /// The GID table as far as this handle has set it.
    pub fn gids(&self) -> [Option<Gid>; GIDS] {
        *self.0.gids.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Sets or clears a multicast MAC that the raw queue hears. [`Device::set_gid`] sets the entry with the GID's number, so that
    /// questions for its address are heard.
    pub fn set_multicast(&self, index: u8, group: Option<[u8; 6]>) -> Result<()> {
        let mut c = Command::new(op::SET_MULTICAST, PORT_OWNER).with(set_multicast::INDEX, index.into());
        if let Some(mac) = group {
            c = c.with(set_multicast::VALID, 1).with(set_multicast::MAC, mac_word(mac));
        }
        self.execute(&c).map(drop)
    }

    /// Sets the station address, and which frames go to the raw queue.
    pub fn set_port(&self, port: &Port) -> Result<()> {
        let hertz = u64::from(self.clock_mhz()) * 1_000_000;
        let cycles = if port.rate == 0 { 0 } else { (hertz / u64::from(port.rate)).max(1) };
        let c = Command::new(op::SET_PORT, PORT_OWNER)
            .with(set_port::MAC, mac_word(port.mac))
            .with(set_port::RAW_ON, port.raw.into())
            .with(set_port::PROMISCUOUS, port.promiscuous.into())
            .with(set_port::RAW_BURST, port.burst.into())
            .with(set_port::RAW_CYCLES, cycles);
        self.execute(&c).map(drop)
    }

    /// Executes the 64 bytes of a command as they are and gives the answer's, for tests of what the firmware makes of them.
    /// Hidden, for a program has no use for it: it changes objects behind the back of their handles.
    #[doc(hidden)]
    pub fn command_raw(&self, command: [u8; 64]) -> Result<[u8; 64]> {
        self.0.commands.submit(&Command::raw(command)).map(|a| a.0)
    }

    pub(crate) fn command(&self, opcode: u8) -> Command {
        Command::new(opcode, self.0.owner)
    }

    pub(crate) fn execute(&self, command: &Command) -> Result<Answer> {
        self.0.commands.execute(command)
    }

    /// Creates an object; returns its number and the whole answer.
    pub(crate) fn create(&self, command: &Command) -> Result<(u32, Answer)> {
        let a = self.execute(command)?;
        Ok((a.get(answer::NUMBER) as u32, a))
    }

    /// Destroys an object in a destructor; whether it is gone. With the device went its objects.
    pub(crate) fn destroy(&self, opcode: u8, number: u32) -> bool {
        let destroyed = self.execute(&self.command(opcode).with(head::NUMBER, number.into()));
        if let Err(e) = destroyed
            && !self.0.life.is_over()
        {
            note!("ferroce: {e}");
            return false;
        }
        true
    }

    /// Queue pairs by number.
    pub(crate) fn qps(&self) -> MutexGuard<'_, Vec<Option<Arc<Posted>>>> {
        self.0.qps.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Held while a QP begins, fails or ends, so that what the driver keeps by its number is in step with the device.
    pub(crate) fn numbers(&self) -> MutexGuard<'_, ()> {
        self.0.numbers.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A QP is destroyed.
    pub(crate) fn retire(&self, qpn: u32) {
        let qp = self.qps().get_mut(qpn as usize).and_then(Option::take);
        let owed = qp.map_or(0, |q| usize::from(q.is_buried()) + usize::from(q.forgive_sends()));
        self.0.buried.fetch_sub(owed, Ordering::Relaxed);
    }

    /// Some QP has to be flushed, or has had to be.
    pub(crate) fn owes(&self) -> bool {
        self.0.buried.load(Ordering::Acquire) != 0
    }

    /// The device has failed a send of UC or UD, and sends no more: completion queues flush the rest.
    pub(crate) fn stop_sends(&self, qp: &Posted) {
        if qp.stop_sends() {
            self.0.buried.fetch_add(1, Ordering::Release);
        }
    }

    /// The sends of a QP are flushed as far as they are to be.
    pub(crate) fn settle(&self, qp: &Posted) {
        if qp.settles() {
            self.0.buried.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// QPs that completion queue `cq` has to flush.
    pub(crate) fn buried(&self, cq: u32) -> Vec<(u32, Arc<Posted>)> {
        let gone = self.0.life.is_over();
        if !self.owes() && !gone {
            return Vec::new();
        }
        let qps = self.qps();
        let all = (0..).zip(qps.iter()).filter_map(|(n, q)| q.as_ref().map(|q| (n, q)));
        all.filter(|(_, q)| q.cqs.contains(&cq) && (gone || q.is_buried() || q.owes_sends()))
            .map(|(n, q)| (n, q.clone()))
            .collect()
    }

    /// Brings a QP to ERR, behind which all completions that the device has for it are there, and lets its completion
    /// queues flush the rest: once, whoever comes first; all others wait for it.
    pub(crate) fn try_bury(&self, qpn: u32) -> Result<()> {
        let _alone = self.numbers();
        let qp = self.qps().get(qpn as usize).cloned().flatten();
        let Some(qp) = qp.filter(|q| !q.is_buried()) else { return Ok(()) };
        let c = self.command(op::MODIFY_QP).with(head::NUMBER, qpn.into());
        let c = c.with(modify_qp::MASK, attr::STATE.into()).with(modify_qp::STATE, qp_state::ERR.into());
        let moved = self.execute(&c).map(drop);
        if let Some(sharing) = &qp.sharing {
            let query = self.execute(&self.command(op::QUERY_QP).with(head::NUMBER, qpn.into()));
            let taken = query.ok().filter(|a| a.get(query_qp::TAKEN) == 1);
            sharing.hold(taken.map(|a| a.get(query_qp::TAKEN_INDEX) as u16));
        }
        self.0.buried.fetch_add(1, Ordering::Release);
        qp.bury();
        moved
    }

    /// The same for a QP that has told of its failure.
    pub(crate) fn bury(&self, qpn: u32) {
        if let Err(e) = self.try_bury(qpn)
            && !self.0.life.is_over()
        {
            note!("ferroce: QP {qpn} has failed: {e}");
        }
    }

    /// The same for a QP number from an event, which may be older than the QP that has the number now.
    pub(crate) fn bury_if_failed(&self, qpn: u32) {
        if self.qps().get(qpn as usize).is_none_or(Option::is_none) {
            return;
        }
        let state = self.execute(&self.command(op::QUERY_QP).with(head::NUMBER, qpn.into()));
        if state.is_ok_and(|a| a.get(modify_qp::STATE) as u8 == qp_state::ERR) {
            self.bury(qpn);
        }
    }

    pub(crate) fn doorbell(&self, offset: usize) -> crate::bar::Doorbell {
        self.0.doorbells.doorbell(usize::from(self.0.owner) * doorbell::PAGE + offset)
    }
}

/// A MAC as the contract carries it: first wire byte lowest.
pub(crate) fn mac_word(mac: [u8; 6]) -> u64 {
    mac.iter().rev().fold(0, |w, b| w << 8 | u64::from(*b))
}

/// The multicast MAC on which questions for an address arrive (RFC 4291 and 2464); IPv4's are broadcast.
pub(crate) fn questions_for(ip: IpAddr) -> Option<[u8; 6]> {
    match ip {
        IpAddr::V4(_) => None,
        IpAddr::V6(v6) => {
            let o = v6.octets();
            Some([0x33, 0x33, 0xff, o[13], o[14], o[15]])
        }
    }
}

/// An IP as the contract carries it: wire bytes, first lowest.
pub(crate) fn ip_words(ip: IpAddr) -> (u64, u64) {
    match ip {
        IpAddr::V4(v4) => (u32::from_le_bytes(v4.octets()).into(), 0),
        IpAddr::V6(v6) => {
            let w = u128::from_le_bytes(v6.octets());
            (w as u64, (w >> 64) as u64)
        }
    }
}
