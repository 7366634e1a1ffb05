//! What configuration space says of the function, decoded by `pci-driver` from a snapshot that is read through the function: the
//! same for every backend.

use crate::function::{Error, PciFunction, Result};
use pci_driver::config::PciConfig;
use pci_driver::config::caps::{MsiXCapability, PciExpressCapability};
use pci_driver::regions::{AsPciSubregion, BackedByPciSubregion, PciMemoryRegion, PciRegion};

/// Bytes of conventional configuration space.
const CONFIG_BYTES: usize = 256;
/// Offset of the command register.
const COMMAND: u16 = 0x04;
/// Message Control in the MSI-X capability; its lower 11 bits are the table's size minus one.
const MSIX_CONTROL: u64 = 2;
/// Memory Space Enable.
const MEMORY: u16 = 0x0002;
/// Memory Space Enable and Bus Master Enable.
const MEMORY_AND_BUS_MASTER: u16 = 0x0006;

/// A copy of configuration space, aligned as `pci-driver` reads it.
#[derive(Clone, Copy)]
#[repr(align(8))]
struct Snapshot([u8; CONFIG_BYTES]);

/// What the driver asks of configuration space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
    /// Vectors of the MSI-X capability, 0 without one.
    pub msix_vectors: u16,
    /// The function has a PCI Express capability.
    pub express: bool,
}

impl Identity {
    /// Reads and decodes configuration space.
    pub fn of(function: &dyn PciFunction) -> Result<Self> {
        let mut snapshot = Snapshot([0; CONFIG_BYTES]);
        function.config_read(0, &mut snapshot.0)?;
        Self::decode(&snapshot).map_err(|e| Error::new("configuration space does not decode").source(e))
    }

    fn decode(snapshot: &Snapshot) -> std::io::Result<Self> {
        let region = PciMemoryRegion::new(&snapshot.0);
        let config = PciConfig::backed_by(&region);
        let (vendor, device) = (config.vendor_id().read()?, config.device_id().read()?);
        if vendor == u16::MAX {
            // Nobody answers: there is no capability list to walk.
            return Ok(Identity { vendor, device, msix_vectors: 0, express: false });
        }
        let capabilities = config.capabilities()?;
        let msix = capabilities.of_type::<MsiXCapability>()?.next();
        let msix_vectors = match msix {
            Some(c) => (c.as_subregion().read_le_u16(MSIX_CONTROL)? & 0x7ff) + 1,
            None => 0,
        };
        let express = capabilities.of_type::<PciExpressCapability>()?.next().is_some();
        Ok(Identity { vendor, device, msix_vectors, express })
    }

    /// Refuses a function that is not a Ferroce NIC.
    pub fn check(&self) -> Result<()> {
        if self.vendor == u16::MAX {
            return Err(Error::new("configuration space reads all ones").hint("the device is gone, or asleep"));
        }
        if (self.vendor, self.device) != (abi::PCI_VENDOR, abi::PCI_DEVICE) {
            return Err(Error::new(format!(
                "PCI function {:04x}:{:04x} is not a Ferroce NIC",
                self.vendor, self.device
            ))
            .hint(format!("Ferroce is {:04x}:{:04x}", abi::PCI_VENDOR, abi::PCI_DEVICE)));
        }
        if self.msix_vectors == 0 || !self.express {
            return Err(Error::new("the function lacks MSI-X or PCI Express capabilities")
                .hint("is the bitstream one of this release?"));
        }
        Ok(())
    }
}

/// Whether the function may access memory.
pub fn masters_bus(function: &dyn PciFunction) -> bool {
    let mut command = [0; 2];
    function.config_read(COMMAND, &mut command).is_ok()
        && u16::from_le_bytes(command) & MEMORY_AND_BUS_MASTER == MEMORY_AND_BUS_MASTER
}

/// Lets the function answer memory accesses and master the bus.
pub fn enable(function: &dyn PciFunction) -> Result<()> {
    function.config_write(COMMAND, &MEMORY_AND_BUS_MASTER.to_le_bytes())
}

/// Takes the bus from the function: when this returns, none of its writes is under way any more, and no other begins.
pub fn silence(function: &dyn PciFunction) -> Result<()> {
    // The answer to a configuration write pushes what the function had written before it.
    function.config_write(COMMAND, &MEMORY.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Header, a PCI Express capability at 0x40 and MSI-X with 32 vectors at 0x80.
    fn space() -> Snapshot {
        let mut s = [0; CONFIG_BYTES];
        s[..2].copy_from_slice(&abi::PCI_VENDOR.to_le_bytes());
        s[2..4].copy_from_slice(&abi::PCI_DEVICE.to_le_bytes());
        (s[0x06], s[0x34]) = (0x10, 0x40);
        (s[0x40], s[0x41], s[0x42]) = (0x10, 0x80, 0x02);
        (s[0x80], s[0x82]) = (0x11, 31);
        Snapshot(s)
    }

    #[test]
    fn identity_and_capabilities_are_decoded() {
        let id = Identity::decode(&space()).unwrap();
        assert_eq!((id.vendor, id.device), (abi::PCI_VENDOR, abi::PCI_DEVICE));
        assert_eq!((id.msix_vectors, id.express), (32, true));
        id.check().unwrap();
    }

    #[test]
    fn strangers_and_the_dead_are_refused_by_name() {
        let mut s = space();
        s.0[0] ^= 1;
        assert!(Identity::decode(&s).unwrap().check().unwrap_err().to_string().contains("is not a Ferroce NIC"));
        let gone = Identity::decode(&Snapshot([0xff; CONFIG_BYTES])).unwrap().check().unwrap_err();
        assert!(gone.to_string().contains("all ones"), "{gone}");
    }
}
