//! The port's raw queue pair, and what this driver does with it: answers who asks for its addresses (ARP, neighbour discovery),
//! and asks for those of its peers.
//!
//! Nothing here runs by itself: frames are handled in [`Network::poll`], which every other call makes as well. A program calls it in its
//! wait loops, or when the completion queue's event comes ([`Network::arm`]); as long as it does neither, nobody learns
//! this host's MAC. Frames that are neither are handed to the program by [`Network::receive`].
//!
//! ```no_run
//! # use driver::*; use std::net::IpAddr;
//! # fn go(device: Device, eq: Eq, peer: IpAddr) -> Result<()> {
//! let mut network = Network::open(&device, &eq, &NetworkOptions::new([2, 0, 0, 0, 0, 1]))?;
//! let mac = network.resolve(0, peer)?;
//! # Ok(()) }
//! ```

mod cache;
mod wire;

use crate::cq::{Cq, Eq};
use crate::device::{Device, Gid, Port};
use crate::function::{Error, Result};
use crate::mr::{Access, Mr, Pd};
use crate::multicast::mac_of;
use crate::post::{Data, Flags, Operation};
use crate::qp::{Qp, QpSizes, Rts};
use abi::queue::{MAX_INLINE, recv_op};
use abi::wire::{MAX_FRAME, len};
use cache::{Cache, Patience, Step};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;
use wire::Said;

/// Receives that are posted.
const RECEIVES: usize = 32;
/// Long frames that may be under way; short ones go within their work requests.
const SENDS: usize = 8;
/// Frames that wait for the program.
const WAITING: usize = 256;

/// How to use the raw queue pair.
#[derive(Clone, Debug)]
pub struct NetworkOptions {
    /// What the port hears. Its `raw` is set.
    pub port: Port,
    /// How long to wait for an answer before asking again.
    pub retry: Duration,
    /// How often to ask.
    pub tries: u32,
    /// How long a neighbour is believed that says nothing more.
    pub lifetime: Duration,
}

impl NetworkOptions {
    /// For a station with this MAC: at most 10,000 frames a second, 64 at once; three questions, one a second; a minute.
    pub fn new(mac: [u8; 6]) -> Self {
        let port = Port { raw: true, rate: 10_000, burst: 64, ..Port::new(mac) };
        NetworkOptions { port, retry: Duration::from_secs(1), tries: 3, lifetime: Duration::from_secs(60) }
    }
}

/// The raw queue pair of a port.
pub struct Network {
    device: Device,
    port: Port,
    patience: Patience,
    cache: Cache,
    qp: Qp<Rts>,
    cq: Cq,
    inbox: Mr,
    outbox: Mr,
    /// Places in the outbox that are free.
    free: Vec<usize>,
    frames: VecDeque<Vec<u8>>,
    lost: u64,
    _pd: Pd,
}

impl Network {
    /// Takes the raw queue pair, which only one can have, and lets it hear. The events of its completion queue go to `eq`.
    pub fn open(device: &Device, eq: &Eq, options: &NetworkOptions) -> Result<Network> {
        let mhz = u64::from(device.clock_mhz());
        let cycles = |d: Duration| u64::try_from(d.as_nanos() * u128::from(mhz) / 1000).unwrap_or(u64::MAX);
        let patience =
            Patience { retry: cycles(options.retry), tries: options.tries.max(1), lifetime: cycles(options.lifetime) };
        let pd = device.create_pd()?;
        let cq = device.create_cq((RECEIVES + 256) as u32, eq)?;
        let sizes = QpSizes::new(256, RECEIVES as u32);
        let qp = pd.create_raw_qp(&cq, &cq, sizes)?;
        let inbox = pd.alloc(RECEIVES * MAX_FRAME, Access::LOCAL_WRITE)?;
        let outbox = pd.alloc(SENDS * MAX_FRAME, Access::empty())?;
        let port = Port { raw: true, ..options.port };
        let mut network = Network {
            device: device.clone(),
            port,
            patience,
            cache: Cache::default(),
            qp,
            cq,
            inbox,
            outbox,
            free: (0..SENDS).collect(),
            frames: VecDeque::new(),
            lost: 0,
            _pd: pd,
        };
        (0..RECEIVES).try_for_each(|slot| network.post(slot))?;
        device.set_port(&port)?;
        Ok(network)
    }

    /// Handles the frames that have arrived: learns, and answers. The error: the queue pair has failed.
    pub fn poll(&mut self) -> Result<()> {
        while let Some(c) = self.next()? {
            let slot = c.wr_id as usize;
            if c.opcode < recv_op::RECV {
                self.free.extend((slot < SENDS).then_some(slot));
                continue;
            }
            let mut frame = vec![0; c.len as usize];
            self.inbox.read(slot * MAX_FRAME, &mut frame);
            self.post(slot)?;
            self.hear(frame)?;
        }
        Ok(())
    }

    fn next(&mut self) -> Result<Option<crate::Completion>> {
        let c = self.cq.poll().next();
        match c {
            Some(c) => match c.status {
                Ok(()) => Ok(Some(c)),
                Err(e) => Err(Error::new(format!("the raw queue pair has failed: {e}")).hint("open the network anew")),
            },
            None => Ok(None),
        }
    }

    fn post(&mut self, slot: usize) -> Result<()> {
        self.qp.post_recv(slot as u64, &[self.inbox.sge(slot * MAX_FRAME, MAX_FRAME)])
    }

    fn hear(&mut self, frame: Vec<u8>) -> Result<()> {
        let Some((vlan, said)) = wire::hear(&frame) else {
            if self.frames.len() == WAITING {
                self.lost += 1;
            } else {
                self.frames.push_back(frame);
            }
            return Ok(());
        };
        let now = self.device.clock();
        match said {
            Said::Tell { ip, mac } => self.cache.heard((vlan, ip), mac, now, false),
            Said::Ask { target, from, station } => {
                let own = self.device.gids().into_iter().flatten().find(|g| g.vlan == vlan && g.ip == target);
                if let Some((ip, mac)) = from {
                    self.cache.heard((vlan, ip), mac, now, own.is_some());
                }
                let answer = own.and_then(|own| wire::tell(&own, from, station));
                // Without room it is lost, as on the wire: the asker asks again.
                if let Some(answer) = answer.filter(|a| self.has_room(a.len())) {
                    self.send(&answer)?;
                }
            }
        }
        Ok(())
    }

    /// The MAC of `ip`, which is on the link of GID `gid` or a multicast group: for [`Path::mac`](crate::qp::Path::mac). `None`: it was asked for, call again.
    /// Errors: no such GID, another family, nobody answers.
    pub fn try_resolve(&mut self, gid: u8, ip: IpAddr) -> Result<Option<[u8; 6]>> {
        self.poll()?;
        let own = self.own(gid)?;
        let other_family = || {
            Error::new(format!("{ip} cannot be reached from GID {gid}, which is {}", own.ip))
                .hint("use a GID of the same family")
        };
        if ip.is_multicast() {
            return if ip.is_ipv4() == own.ip.is_ipv4() { Ok(Some(mac_of(ip))) } else { Err(other_family()) };
        }
        if let Some(same) = self.device.gids().into_iter().flatten().find(|g| g.ip == ip && g.vlan == own.vlan) {
            return Ok(Some(same.mac));
        }
        let question = wire::ask(&own, ip).ok_or_else(other_family)?;
        match self.cache.step((own.vlan, ip), self.device.clock(), &self.patience) {
            Step::Known(mac) => Ok(Some(mac)),
            Step::Wait => Ok(None),
            Step::Ask => self.send(&question).map(|()| None),
            Step::Nobody => {
                let vlan = own.vlan.map_or(String::new(), |v| format!(" in VLAN {v}"));
                Err(Error::new(format!("nobody answers for {ip}{vlan}: asked {} times from {}", self.patience.tries, own.ip))
                    .hint("is the peer up, its driver polled, and on this link? A peer behind a router is reached by the router's address"))
            }
        }
    }

    /// The same, waiting for the answer.
    pub fn resolve(&mut self, gid: u8, ip: IpAddr) -> Result<[u8; 6]> {
        loop {
            if let Some(mac) = self.try_resolve(gid, ip)? {
                return Ok(mac);
            }
            self.device.relax();
        }
    }

    fn own(&self, gid: u8) -> Result<Gid> {
        let own = self.device.gids().get(usize::from(gid)).copied().flatten();
        own.ok_or_else(|| Error::new(format!("GID {gid} is not set")).hint("set it with set_gid"))
    }

    /// Says where a neighbour on the link of GID `gid` is, whatever others say; `None` asks again.
    pub fn set_neighbour(&mut self, gid: u8, ip: IpAddr, mac: Option<[u8; 6]>) -> Result<()> {
        let own = self.own(gid)?;
        self.cache.fix((own.vlan, ip), mac);
        Ok(())
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.qp.has_room(4) && (bytes <= MAX_INLINE || !self.free.is_empty())
    }

    /// Sends an Ethernet frame, without FCS: 14 to 9,216 bytes; shorter than 60 it is padded. While the link is down it is lost and
    /// counted (`TX_LINK_DOWN`). To a MAC of this port it comes back.
    pub fn send(&mut self, frame: &[u8]) -> Result<()> {
        if !(len::ETH..=MAX_FRAME).contains(&frame.len()) {
            return Err(Error::new(format!("a frame of {} bytes", frame.len()))
                .hint(format!("{} to {MAX_FRAME} bytes are possible", len::ETH)));
        }
        while !self.has_room(frame.len()) {
            self.poll()?;
            self.device.relax();
        }
        // Numbers from `SENDS` on have no place in the outbox.
        let (slot, sge);
        let data = if frame.len() <= MAX_INLINE {
            slot = SENDS;
            Data::Inline(frame)
        } else {
            slot = self.free.pop().expect("there is room");
            self.outbox.write(slot * MAX_FRAME, frame);
            sge = [self.outbox.sge(slot * MAX_FRAME, frame.len())];
            Data::Sges(&sge)
        };
        let mut batch = self.qp.post();
        batch.add(slot as u64, Operation::Send, data, Flags::SIGNALED)?;
        batch.ring();
        Ok(())
    }

    /// The next frame that is neither ARP nor neighbour discovery, if there is one.
    pub fn receive(&mut self) -> Result<Option<Vec<u8>>> {
        self.poll()?;
        Ok(self.frames.pop_front())
    }

    /// Frames that nobody fetched with [`Network::receive`] while 256 waited.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Asks for an event when the next frame has come or gone.
    pub fn arm(&mut self) {
        self.cq.arm(false);
    }

    /// Number of its completion queue, which events name.
    pub fn cq_number(&self) -> u32 {
        self.cq.number()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if let Err(e) = self.device.set_port(&Port { raw: false, ..self.port }) {
            note!("ferroce: {e}");
        }
    }
}
