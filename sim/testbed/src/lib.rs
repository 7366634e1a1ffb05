//! Two hosts with a simulated NIC each, joined by a cable, the real driver open on both; or one, and a packet peer.
//!
//! For the `ferroce` command, the benchmarks and the suites: everything that wants "two machines" starts here.

mod core;
mod solo;

pub use crate::core::{SetupError, core_clock, core_model, core_verilog};
pub use crate::solo::Solo;
use driver::qp::{Init, Path, QpSizes, Rts, SendOptions};
use driver::{Access, Cq, Device, Eq, Gid, Network, NetworkOptions, OpenOptions, Pd, Port, Qp, Result, Srq};
use fabric::{Fabric, Shared, SimFunction};
use nic::{Fs, LinkRate, NS, Nic, NicOptions};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// What the two hosts and the cable are like.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Datapath width in bits: 64, 128, 256 or 512.
    pub width: usize,
    /// Queue pairs of the cores: 256, or 32 or 4,096 at 64 bits.
    pub qps: usize,
    /// Options of both NICs; their clock is the core's.
    pub nic: NicOptions,
    /// Delay of the cable.
    pub delay: Fs,
    /// IPv6 instead of IPv4.
    pub ip6: bool,
    /// VLAN of both hosts.
    pub vlan: Option<u16>,
}

impl Default for Setup {
    /// 512 bits, 256 queue pairs, 100G, 100 ns of cable.
    fn default() -> Self {
        Setup { width: 512, qps: 256, nic: NicOptions::default(), delay: 100 * NS, ip6: false, vlan: None }
    }
}

impl Setup {
    /// The small core, as a low-cost FPGA has it: 64 bits, 32 queue pairs, 125 MHz.
    pub fn small() -> Self {
        Setup { width: 64, qps: 32, ..Setup::default() }
    }

    /// The same at another link rate in Gb/s.
    pub fn link(mut self, gbps: f64) -> Self {
        self.nic.link = LinkRate::gbps(gbps);
        self
    }
}

impl Setup {
    /// NICs without links.
    fn fabric(&self, nics: u64) -> std::result::Result<Fabric, SetupError> {
        let model = core_model(self.width, self.qps)?;
        let clock = core_clock(self.width, self.qps)?;
        let nic = |i| {
            let seed = self.nic.seed.wrapping_mul(2).wrapping_add(i);
            Nic::new(model.another(), NicOptions { seed, clock, ..self.nic.clone() })
        };
        Ok(Fabric::new((0..nics).map(nic).collect()))
    }

    /// Address of host `i`'s port.
    fn gid(&self, i: usize) -> Gid {
        let number = 1 + i as u8;
        let ip = match self.ip6 {
            false => IpAddr::V4(Ipv4Addr::new(10, 0, 0, number)),
            true => IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number.into())),
        };
        Gid { ip, mac: [2, 0, 0, 0, 0, number], vlan: self.vlan }
    }

    /// Opens the driver of host `i`.
    fn host(&self, fabric: &Shared, firmware: &[u8], i: usize) -> Result<Host> {
        let options = OpenOptions { firmware: Some(firmware.to_vec()), ..OpenOptions::default() };
        let device = Device::open(Arc::new(SimFunction::new(fabric.clone(), i)), &options)?;
        let gid = self.gid(i);
        device.set_port(&Port::new(gid.mac))?;
        device.set_gid(0, Some(gid))?;
        let (pd, eq) = (device.create_pd()?, device.create_eq(1024, 0, 0, 0)?);
        Ok(Host { device, pd, eq, gid })
    }
}

/// One host.
pub struct Host {
    /// Its device.
    pub device: Device,
    /// A protection domain.
    pub pd: Pd,
    /// The event queue of its completion queues.
    pub eq: Eq,
    /// Address of its port.
    pub gid: Gid,
}

/// Two hosts on a cable.
pub struct Testbed {
    /// The simulation under them.
    pub fabric: Shared,
    /// The hosts.
    pub hosts: [Host; 2],
    /// MAC by which each is reached.
    macs: [[u8; 6]; 2],
}

/// A connected pair of QPs with a completion queue each.
pub struct Pair {
    /// Host 0's end.
    pub a: End,
    /// Host 1's end.
    pub b: End,
}

/// One end of a connection.
pub struct End {
    /// The queue pair.
    pub qp: Qp<Rts>,
    /// Completions of its sends and receives.
    pub cq: Cq,
}

/// How to connect.
#[derive(Clone, Copy, Debug)]
pub struct Connect {
    /// Path MTU in bytes.
    pub mtu: u32,
    /// Queue sizes.
    pub sizes: QpSizes,
    /// Entries of each completion queue.
    pub cq_entries: u32,
    /// First PSN of both directions.
    pub psn: u32,
    /// Sending options; `psn` above counts.
    pub send: SendOptions,
    /// What peers may do.
    pub access: Access,
    /// VLAN priority.
    pub priority: u8,
}

impl Default for Connect {
    fn default() -> Self {
        Connect {
            mtu: 4096,
            sizes: QpSizes::new(256, 128),
            cq_entries: 1024,
            psn: 0,
            send: SendOptions::default(),
            access: Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ,
            priority: 0,
        }
    }
}

impl Testbed {
    /// Builds the core if it is not in the cache, starts both NICs, loads the firmware and opens the drivers.
    pub fn new(setup: &Setup) -> std::result::Result<Testbed, SetupError> {
        let mut fabric = setup.fabric(2)?;
        fabric.link(0, 1, setup.delay, setup.nic.seed);
        let fabric: Shared = Arc::new(Mutex::new(fabric));
        let firmware = &std::fs::read(verilate::firmware_image()?)?;
        let hosts = both(
            &fabric,
            [0, 1].map(|i| {
                let fabric = &fabric;
                move || setup.host(fabric, firmware, i)
            }),
        )?;
        let macs = hosts.each_ref().map(|h| h.gid.mac);
        Ok(Testbed { fabric, hosts, macs })
    }

    /// The simulation, locked. Drop it before the driver is used again.
    pub fn sim(&self) -> MutexGuard<'_, Fabric> {
        self.fabric.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Cycles since the start.
    pub fn cycle(&self) -> u64 {
        self.sim().cycle()
    }

    /// Nanoseconds since the start.
    pub fn ns(&self) -> f64 {
        self.sim().now() as f64 / NS as f64
    }

    /// Lets time pass by one window.
    pub fn relax(&self) {
        self.sim().advance();
    }

    /// Opens the networks of both hosts and lets each ask for the other's MAC, by which QPs are connected from now on, instead of
    /// being told. Who keeps the networks, and polls them, answers for the hosts' addresses.
    pub fn discover(&mut self) -> Result<[Network; 2]> {
        let open = |h: &Host| {
            let options = NetworkOptions { retry: Duration::from_millis(1), ..NetworkOptions::new(h.gid.mac) };
            Network::open(&h.device, &h.eq, &options)
        };
        let mut networks = both(&self.fabric, self.hosts.each_ref().map(|h| || open(h)))?;
        for to in 0..2 {
            self.macs[to] = loop {
                networks[to].poll()?;
                if let Some(mac) = networks[1 - to].try_resolve(0, self.hosts[to].gid.ip)? {
                    break mac;
                }
                self.relax();
            };
        }
        Ok(networks)
    }

    /// A host's address as its peers see it.
    fn peer(&self, host: usize) -> Gid {
        Gid { mac: self.macs[host], ..self.hosts[host].gid }
    }

    /// Creates and connects a pair of QPs, one on each host.
    pub fn connect(&self, c: &Connect) -> Result<Pair> {
        Ok(self.connect_many(c, 1)?.remove(0))
    }

    /// Creates and connects `count` pairs of QPs, on both hosts at the same time.
    pub fn connect_many(&self, c: &Connect, count: usize) -> Result<Vec<Pair>> {
        self.connect_sharing(c, count, None)
    }

    /// The same; those of host 1 take their receives from a shared queue of its.
    pub fn connect_sharing(&self, c: &Connect, count: usize, srq: Option<&Srq>) -> Result<Vec<Pair>> {
        let make = |i: usize| {
            let srq = srq.filter(|_| i == 1);
            (0..count).map(|_| create(&self.hosts[i], c, srq)).collect::<Result<Vec<_>>>()
        };
        let made = both(&self.fabric, [0, 1].map(|i| move || make(i)))?;
        let qpns = made.each_ref().map(|ends| ends.iter().map(|(qp, _)| qp.qpn()).collect::<Vec<_>>());
        let connect = &|made: Vec<(Qp<Init>, Cq)>, peer: Gid, qpns: &[u32]| -> Result<Vec<End>> {
            made.into_iter().zip(qpns).map(|((qp, cq), qpn)| Ok(End { qp: ready(qp, peer, *qpn, c)?, cq })).collect()
        };
        let ([a, b], [of_a, of_b]) = (made, &qpns);
        let [gid_a, gid_b] = [0, 1].map(|h| self.peer(h));
        let ends = [(a, gid_b, of_b), (b, gid_a, of_a)].map(|(made, peer, qpns)| move || connect(made, peer, qpns));
        let [a, b] = both(&self.fabric, ends)?;
        Ok(a.into_iter().zip(b).map(|(a, b)| Pair { a, b }).collect())
    }

    /// Creates and connects a pair of QPs on the hosts with these numbers, which may be one and the same.
    pub fn connect_hosts(&self, hosts: [usize; 2], c: &Connect) -> Result<Pair> {
        let [a, b] = hosts.map(|h| self.peer(h));
        let [(qa, ca), (qb, cb)] = [create(&self.hosts[hosts[0]], c, None)?, create(&self.hosts[hosts[1]], c, None)?];
        let (na, nb) = (qa.qpn(), qb.qpn());
        Ok(Pair { a: End { qp: ready(qa, b, nb, c)?, cq: ca }, b: End { qp: ready(qb, a, na, c)?, cq: cb } })
    }

    /// Creates a QP that is connected with itself.
    pub fn connect_to_itself(&self, host: usize, c: &Connect) -> Result<End> {
        let (qp, cq) = create(&self.hosts[host], c, None)?;
        let qpn = qp.qpn();
        Ok(End { qp: ready(qp, self.peer(host), qpn, c)?, cq })
    }
}

/// What the programs of host 0 and host 1 make, side by side.
fn both<T: Send>(fabric: &Shared, programs: [impl FnOnce() -> Result<T> + Send; 2]) -> Result<[T; 2]> {
    let mut made = fabric::together(fabric, programs.into());
    let (b, a) = (made.pop().expect("two programs"), made.pop().expect("two programs"));
    Ok([a?, b?])
}

/// A QP with a completion queue.
fn create(h: &Host, c: &Connect, srq: Option<&Srq>) -> Result<(Qp<Init>, Cq)> {
    let cq = h.device.create_cq(c.cq_entries, &h.eq)?;
    let qp = match srq {
        Some(srq) => srq.create_qp(&cq, &cq, c.sizes.send_blocks)?,
        None => h.pd.create_qp(&cq, &cq, c.sizes)?,
    };
    Ok((qp.init(c.access)?, cq))
}

/// Connects a QP with QP `qpn` of host `peer`.
fn ready(qp: Qp<Init>, peer: Gid, qpn: u32, c: &Connect) -> Result<Qp<Rts>> {
    let path = Path {
        qpn,
        psn: c.psn,
        ip: peer.ip,
        mac: peer.mac,
        mtu: c.mtu,
        gid: 0,
        traffic_class: 0,
        priority: c.priority,
        source_port: 0xc000 | (qpn as u16 & 0x3fff),
        max_dest_reads: 16,
        min_rnr_timer: 1,
    };
    qp.rtr(&path)?.rts(&SendOptions { psn: c.psn, ..c.send })
}
