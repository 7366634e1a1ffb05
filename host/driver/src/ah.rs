//! Address handles: where datagrams go.

use crate::device::{Device, ip_words, mac_word};
use crate::function::{Error, Result};
use crate::mr::{Pd, Remote};
use crate::multicast::mac_of;
use abi::cmd::{create_ah, modify_qp, op};
use abi::queue::ud_target;
use abi::wire::{QPN_MULTICAST, qkey::PRIVILEGED};
use std::net::IpAddr;

/// Where a peer is, and how to reach it.
#[derive(Clone, Copy, Debug)]
pub struct AddressVector {
    /// Peer's IP, or that of a multicast group.
    pub ip: IpAddr,
    /// Peer's MAC, or the next hop's. Says nothing of a group, whose MAC follows from its IP.
    pub mac: [u8; 6],
    /// Index of the own GID.
    pub gid: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// VLAN priority (PCP, 0 to 7) of its frames, when the GID has a VLAN.
    pub priority: u8,
    /// UDP source port.
    pub source_port: u16,
}

/// An address that the device knows: UD queue pairs of its protection domain send there. When it is dropped, what was posted to it has left or
/// will fail.
pub struct AddressHandle {
    number: u32,
    device: Device,
    _pd: Pd,
}

/// A QP at an address, and the Q_Key that opens it.
#[derive(Clone, Copy, Debug)]
pub struct Destination {
    handle: u32,
    qpn: u32,
    qkey: u32,
}

impl Pd {
    /// Makes an address handle. A device has half as many as it has QPs.
    pub fn create_ah(&self, to: &AddressVector) -> Result<AddressHandle> {
        if to.priority > 7 {
            return Err(Error::new(format!("a VLAN priority of {}", to.priority)).hint("0 to 7 are possible"));
        }
        let device = &self.0.device;
        let (low, high) = ip_words(to.ip);
        let mac = if to.ip.is_multicast() { mac_of(to.ip) } else { to.mac };
        let c = device
            .command(op::CREATE_AH)
            .with(create_ah::PD, self.0.number.into())
            .with(modify_qp::GID, to.gid.into())
            .with(modify_qp::TRAFFIC_CLASS, to.traffic_class.into())
            .with(modify_qp::HOP_LIMIT, 64)
            .with(modify_qp::PRIORITY, to.priority.into())
            .with(modify_qp::DMAC, mac_word(mac))
            .with(modify_qp::SPORT, to.source_port.into())
            .with(modify_qp::DIP_LOW, low)
            .with(modify_qp::DIP_HIGH, high);
        let (number, _) = device.create(&c)?;
        Ok(AddressHandle { number, device: device.clone(), _pd: self.clone() })
    }
}

impl AddressHandle {
    /// A QP there. A Q_Key of 2^31 or more stands for that of the QP that sends.
    pub fn to(&self, qpn: u32, qkey: u32) -> Destination {
        Destination { handle: self.number, qpn, qkey }
    }

    /// All QPs with this Q_Key that are attached to the multicast group whose address it has.
    pub fn to_group(&self, qkey: u32) -> Destination {
        self.to(QPN_MULTICAST, qkey)
    }
}

impl Destination {
    /// As a work request has it, of a QP with this Q_Key.
    pub(crate) fn remote(self, own: u32) -> Remote {
        let mut target = [0; 8];
        ud_target::AH.set(&mut target, self.handle.into());
        ud_target::QPN.set(&mut target, self.qpn.into());
        let rkey = if self.qkey >= PRIVILEGED { own } else { self.qkey };
        Remote { addr: u64::from_le_bytes(target), rkey }
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        self.device.destroy(op::DESTROY_AH, self.number);
    }
}
