//! Configuration space of the function: PCI header, PCI Express and MSI-X capabilities.

use abi::{PCI_DEVICE, PCI_VENDOR, bar};

/// Offset of the command register.
const COMMAND: usize = 0x04;
/// Bus Master Enable in the command register.
const BUS_MASTER: u8 = 1 << 2;
/// Offset of the PCI Express capability.
const PCIE: usize = 0x40;
/// Offset of the MSI-X capability.
const MSIX: usize = 0x80;
/// Device Control, in the PCI Express capability.
const DEVICE_CONTROL: usize = PCIE + 8;

/// 4,096 bytes of configuration space with the write masks of their registers.
pub struct ConfigSpace {
    bytes: Vec<u8>,
    writable: Vec<u8>,
}

/// What a write asked for besides storing bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigEffect {
    /// Initiate Function Level Reset was written.
    pub reset: bool,
    /// Bus Master Enable as it stands now.
    pub bus_master: bool,
}

impl Default for ConfigSpace {
    fn default() -> Self {
        Self::new()
    }
}

impl ConfigSpace {
    /// Configuration space after reset.
    pub fn new() -> Self {
        let mut c = ConfigSpace { bytes: vec![0; 4096], writable: vec![0; 4096] };
        c.put(0x00, &PCI_VENDOR.to_le_bytes());
        c.put(0x02, &PCI_DEVICE.to_le_bytes());
        c.put(0x06, &[0x10]); // capability list
        c.put(0x09, &[0x00, 0x00, 0x02]); // Ethernet controller
        c.put(0x10, &[0x04]); // BAR0: 64-bit memory
        c.put(0x18, &[0x0c]); // BAR2: 64-bit memory, prefetchable
        c.put(0x2c, &PCI_VENDOR.to_le_bytes());
        c.put(0x2e, &PCI_DEVICE.to_le_bytes());
        c.put(0x34, &[PCIE as u8]);
        c.put(PCIE, &[0x10, MSIX as u8, 0x02, 0x00]); // endpoint, version 2
        c.put(PCIE + 4, &0x1000_8001u32.to_le_bytes()); // FLR, 256-byte payload
        c.put(MSIX, &[0x11, 0x00]);
        c.put(MSIX + 2, &(bar::MSIX_VECTORS as u16 - 1).to_le_bytes());
        c.put(MSIX + 4, &(bar::MSIX_TABLE as u32).to_le_bytes());
        c.put(MSIX + 8, &(bar::MSIX_PBA as u32).to_le_bytes());
        for (at, mask) in [
            (COMMAND, 0x06),
            (COMMAND + 1, 0x04),
            (0x3c, 0xff),
            (DEVICE_CONTROL, 0xff),
            (DEVICE_CONTROL + 1, 0x7f),
            (MSIX + 3, 0xc0),
        ] {
            c.writable[at] = mask;
        }
        for at in (0x12..0x18).chain(0x1a..0x20) {
            c.writable[at] = 0xff;
        }
        c
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Reads; past the end reads all ones.
    pub fn read(&self, offset: u16, buf: &mut [u8]) {
        for (i, b) in buf.iter_mut().enumerate() {
            *b = self.bytes.get(offset as usize + i).copied().unwrap_or(0xff);
        }
    }

    /// Writes the writable bits.
    pub fn write(&mut self, offset: u16, data: &[u8]) -> ConfigEffect {
        let mut reset = false;
        for (i, d) in data.iter().enumerate() {
            let at = offset as usize + i;
            let Some(mask) = self.writable.get(at) else { continue };
            self.bytes[at] = (self.bytes[at] & !mask) | (d & mask);
            reset |= at == DEVICE_CONTROL + 1 && d & 0x80 != 0;
        }
        ConfigEffect { reset, bus_master: self.bus_master() }
    }

    /// Bus Master Enable.
    pub fn bus_master(&self) -> bool {
        self.bytes[COMMAND] & BUS_MASTER != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_is_read_only_and_bus_master_is_not() {
        let mut c = ConfigSpace::new();
        c.write(0, &[1, 2, 3, 4]);
        let mut id = [0; 4];
        c.read(0, &mut id);
        assert_eq!(u16::from_le_bytes([id[0], id[1]]), PCI_VENDOR);
        assert!(!c.bus_master());
        assert!(c.write(COMMAND as u16, &[0x06, 0]).bus_master);
        assert!(c.write(DEVICE_CONTROL as u16, &[0, 0x80]).reset);
        assert!(!c.write(DEVICE_CONTROL as u16, &[0, 0x00]).reset);
    }
}
