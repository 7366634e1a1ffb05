//! Address handles: where datagrams go.

use crate::device::{Device, ip_words, mac_word};
use crate::function::{Error, Result};
use crate::mr::{Pd, Remote};
use abi::cmd::{create_ah, modify_qp, op};
use abi::queue::ud_target;
use std::net::IpAddr;

/// Q_Keys from here on stand for the sender's own.
const OWN_QKEY: u32 = 1 << 31;

/// Where a peer is, and how to reach it.
#[derive(Clone, Copy, Debug)]
pub struct AddressVector {
    /// Peer's IP.
    pub ip: IpAddr,
    /// Peer's MAC, or the next hop's.
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
        let c = device
            .command(op::CREATE_AH)
            .with(create_ah::PD, self.0.number.into())
            .with(modify_qp::GID, to.gid.into())
            .with(modify_qp::TRAFFIC_CLASS, to.traffic_class.into())
            .with(modify_qp::HOP_LIMIT, 64)
            .with(modify_qp::PRIORITY, to.priority.into())
            .with(modify_qp::DMAC, mac_word(to.mac))
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
}

impl Destination {
    /// As a work request has it, of a QP with this Q_Key.
    pub(crate) fn remote(self, own: u32) -> Remote {
        let mut target = [0; 8];
        ud_target::AH.set(&mut target, self.handle.into());
        ud_target::QPN.set(&mut target, self.qpn.into());
        let rkey = if self.qkey >= OWN_QKEY { own } else { self.qkey };
        Remote { addr: u64::from_le_bytes(target), rkey }
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        self.device.destroy(op::DESTROY_AH, self.number);
    }
}
