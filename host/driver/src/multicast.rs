//! Multicast groups of datagrams: QPs that are attached to one get a copy each of what is sent to it, by whomever, this host's QPs included.

use crate::device::ip_words;
use crate::function::{Error, Result};
use crate::qp::{Qp, State, Ud};
use abi::cmd::{mcast, op};
use std::net::IpAddr;

/// A multicast group, in a VLAN if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its address.
    pub ip: IpAddr,
    /// VLAN id, when its frames are tagged.
    pub vlan: Option<u16>,
}

/// The MAC that belongs to a multicast address (RFC 1112, RFC 2464).
pub(crate) fn mac_of(group: IpAddr) -> [u8; 6] {
    match group {
        IpAddr::V4(v4) => {
            let o = v4.octets();
            [1, 0, 0x5e, o[1] & 0x7f, o[2], o[3]]
        }
        IpAddr::V6(v6) => {
            let o = v6.octets();
            [0x33, 0x33, o[12], o[13], o[14], o[15]]
        }
    }
}

impl<S: State> Qp<S, Ud> {
    /// Attaches the queue pair to a group, in whatever state it is: once it receives, it gets a copy of each datagram to the group that has
    /// its Q_Key, until it is detached or ends. Errors: the address is none of a group; it is attached already; the group has 8 members;
    /// the device has no room for another group.
    pub fn attach(&self, group: Group) -> Result<()> {
        self.change(op::ATTACH_MCAST, group)
    }

    /// Detaches it from a group. Copies that are under way may still come.
    pub fn detach(&self, group: Group) -> Result<()> {
        self.change(op::DETACH_MCAST, group)
    }

    fn change(&self, opcode: u8, group: Group) -> Result<()> {
        if !group.ip.is_multicast() {
            return Err(Error::new(format!("{} is no multicast address", group.ip))
                .hint("224.0.0.0/4 and ff00::/8 are multicast addresses"));
        }
        let device = &self.body.device;
        let (low, high) = ip_words(group.ip);
        let c = device
            .command(opcode)
            .with(mcast::NUMBER, self.qpn().into())
            .with(mcast::IS_IP6, group.ip.is_ipv6().into())
            .with(mcast::TAGGED, group.vlan.is_some().into())
            .with(mcast::VLAN, group.vlan.unwrap_or(0).into())
            .with(mcast::IP_LOW, low)
            .with(mcast::IP_HIGH, high);
        device.execute(&c).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn macs_of_groups() {
        let mac = |ip: &str| mac_of(ip.parse().unwrap());
        assert_eq!(mac("239.255.2.3"), [1, 0, 0x5e, 0x7f, 2, 3]);
        assert_eq!(mac("224.0.0.251"), [1, 0, 0x5e, 0, 0, 0xfb]);
        assert_eq!(mac("ff0e::1:ff02:304"), [0x33, 0x33, 0xff, 2, 3, 4]);
    }
}
