//! One host with a simulated NIC, the real driver open on it, and a packet peer at the other end of its cable.

use crate::{Host, Setup, SetupError};
use driver::Gid;
use fabric::peer::{Envelope, Peer};
use fabric::{Fabric, Shared};
use std::sync::{Arc, Mutex, MutexGuard};

/// A host and its peer's place.
pub struct Solo {
    /// The simulation under it.
    pub fabric: Shared,
    /// The host.
    pub host: Host,
    /// Address of the peer.
    pub peer: Gid,
    socket: usize,
}

impl Solo {
    /// Builds the core if it is not in the cache, starts the NIC, loads the firmware and opens the driver.
    pub fn new(setup: &Setup) -> Result<Solo, SetupError> {
        let mut fabric = setup.fabric(1)?;
        let socket = fabric.socket();
        fabric.link(0, socket, setup.delay, setup.nic.seed);
        let fabric: Shared = Arc::new(Mutex::new(fabric));
        let host = setup.host(&fabric, &std::fs::read(verilate::firmware_image()?)?, 0)?;
        Ok(Solo { fabric, host, peer: setup.gid(1), socket })
    }

    /// The simulation, locked. Drop it before the driver is used again.
    pub fn sim(&self) -> MutexGuard<'_, Fabric> {
        self.fabric.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Lets time pass by one window.
    pub fn relax(&self) {
        self.sim().advance();
    }

    /// The peer. There is one at a time: each takes what arrives.
    pub fn peer(&self) -> Peer {
        let envelope = Envelope {
            macs: [self.peer.mac, self.host.gid.mac],
            ips: [self.peer.ip, self.host.gid.ip],
            traffic_class: 0,
            hop_limit: 64,
            source_port: 0xc123,
            checksum: false,
        };
        Peer::new(self.fabric.clone(), self.socket, envelope)
    }
}
