//! A simulated NIC as a PCIe function, for the driver in this process. Driver and simulation share one timeline: a read of a
//! register, and `relax` in the driver's wait loops, advance it.

use crate::net::{Fabric, Shared};
use crate::together::advance;
use driver::function::{BarInfo, DmaLimits, DmaMap, Error, Mapping, PciFunction, Result};
use nic::{BarRequest, ConfigSpace};
use std::fs::File;
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard};

/// Offset of the command register.
const COMMAND: u16 = 0x04;
/// Bus Master Enable in it.
const BUS_MASTER: u16 = 1 << 2;

/// How many windows a register read may take before the device counts as gone.
const PATIENCE: u64 = 100_000;

struct State {
    config: ConfigSpace,
    vectors: Vec<Option<File>>,
}

/// One NIC of a fabric.
pub struct SimFunction {
    fabric: Shared,
    nic: usize,
    state: Mutex<State>,
}

impl SimFunction {
    /// NIC `nic` of `fabric`. A second function of a NIC that is in use leaves it as it is.
    pub fn new(fabric: Shared, nic: usize) -> Self {
        SimFunction { fabric, nic, state: Mutex::new(State { config: ConfigSpace::new(), vectors: Vec::new() }) }
    }

    /// Bus Master Enable, as the host's software or its bridge may switch it under a driver.
    pub fn set_bus_master(&self, on: bool) {
        let mut state = self.state();
        let mut command = [0; 2];
        state.config.read(COMMAND, &mut command);
        let command = u16::from_le_bytes(command) & !BUS_MASTER | if on { BUS_MASTER } else { 0 };
        let effect = state.config.write(COMMAND, &command.to_le_bytes());
        self.lock().nic(self.nic).host.bus_master = effect.bus_master;
    }

    fn lock(&self) -> MutexGuard<'_, Fabric> {
        self.fabric.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Signals the event fds of the interrupts that have arrived.
    fn deliver(&self, fabric: &mut Fabric) {
        let words = fabric.nic(self.nic).host.take_interrupts();
        if words.is_empty() {
            return;
        }
        let mut state = self.state();
        for word in words {
            if let Some(Some(fd)) = state.vectors.get_mut(word as usize) {
                // An event fd's counter that is full is signalled anyway.
                let _ = fd.write(&1u64.to_ne_bytes());
            }
        }
    }

    fn check(bar: u8, offset: u64, len: usize) -> Result<()> {
        let size = size_of_bar(bar);
        if !matches!(len, 4 | 8) || !offset.is_multiple_of(len as u64) || offset + len as u64 > size {
            return Err(Error::new(format!(
                "access of {len} bytes at offset {offset:#x} of BAR{bar} ({size:#x} bytes)"
            ))
            .hint("accesses are 4 or 8 bytes, aligned, inside of the BAR"));
        }
        Ok(())
    }
}

fn size_of_bar(bar: u8) -> u64 {
    match bar {
        0 => abi::bar::BAR0_BYTES as u64,
        2 => 4096 * abi::queue::doorbell::PAGE as u64,
        _ => 0,
    }
}

impl PciFunction for SimFunction {
    fn config_read(&self, offset: u16, buf: &mut [u8]) -> Result<()> {
        self.state().config.read(offset, buf);
        Ok(())
    }

    fn config_write(&self, offset: u16, data: &[u8]) -> Result<()> {
        let effect = self.state().config.write(offset, data);
        self.lock().nic(self.nic).host.bus_master = effect.bus_master;
        if effect.reset { self.reset() } else { Ok(()) }
    }

    fn bar_info(&self, bar: u8) -> Result<BarInfo> {
        Ok(BarInfo { size: size_of_bar(bar), mappable: Vec::new() })
    }

    fn bar_read(&self, bar: u8, offset: u64, buf: &mut [u8]) -> Result<()> {
        Self::check(bar, offset, buf.len())?;
        self.lock().nic(self.nic).bar(BarRequest { bar, offset: offset as u32, bytes: buf.len() as u8, write: None });
        for _ in 0..PATIENCE {
            self.relax();
            let answer = self.lock().nic(self.nic).bar_answer();
            if let Some(v) = answer {
                buf.copy_from_slice(&v.to_le_bytes()[..buf.len()]);
                return Ok(());
            }
        }
        Err(Error::new(format!("the device does not answer a read of BAR{bar} at {offset:#x}")))
    }

    fn bar_write(&self, bar: u8, offset: u64, data: &[u8]) -> Result<()> {
        Self::check(bar, offset, data.len())?;
        let mut word = [0; 8];
        word[..data.len()].copy_from_slice(data);
        let write = Some(u64::from_le_bytes(word));
        self.lock().nic(self.nic).bar(BarRequest { bar, offset: offset as u32, bytes: data.len() as u8, write });
        Ok(())
    }

    fn bar_map(&self, _: u8, _: u64, _: u64) -> Result<Option<Mapping>> {
        Ok(None)
    }

    fn dma_limits(&self) -> Result<DmaLimits> {
        let iova = vec![(0x1000, 0xfedf_ffff), (0xfef0_0000, (1 << 48) - 1)];
        Ok(DmaLimits { page_sizes: 0x4020_1000, iova, max_maps: 65_535, prefers_fd: false })
    }

    unsafe fn dma_map(&self, map: &DmaMap<'_>) -> Result<()> {
        // SAFETY: the caller's promise is the IOMMU's.
        unsafe { self.lock().nic(self.nic).host.iommu.map(map) }
    }

    fn dma_unmap(&self, iova: u64, len: usize) -> Result<()> {
        self.lock().nic(self.nic).host.iommu.unmap(iova, len)
    }

    fn msix_count(&self) -> Result<u32> {
        Ok(abi::bar::MSIX_VECTORS as u32)
    }

    /// Writes the MSI-X table as a kernel would: vector n sends the word n into the MSI window.
    fn msix_set(&self, fds: &[Option<BorrowedFd<'_>>]) -> Result<()> {
        let own = |fd: &Option<BorrowedFd<'_>>| fd.map(|f| f.try_clone_to_owned().map(File::from)).transpose();
        let vectors: std::io::Result<Vec<_>> = fds.iter().map(own).collect();
        let vectors = vectors.map_err(|e| Error::new("cannot keep the event fds of MSI-X").source(e))?;
        for v in 0..abi::bar::MSIX_VECTORS {
            let at = (abi::bar::MSIX_TABLE + 16 * v) as u64;
            let on = vectors.get(v).is_some_and(Option::is_some);
            self.bar_write(0, at, &0xfee0_0000u64.to_le_bytes())?;
            self.bar_write(0, at + 8, &(v as u32).to_le_bytes())?;
            self.bar_write(0, at + 12, &u32::from(!on).to_le_bytes())?;
        }
        self.state().vectors = vectors;
        Ok(())
    }

    /// Function-level reset: the device's own reset register, then configuration space as new.
    fn reset(&self) -> Result<()> {
        self.bar_write(0, abi::bar::RESET as u64, &1u32.to_le_bytes())?;
        let mut busy = [0; 4];
        for _ in 0..PATIENCE {
            self.bar_read(0, abi::bar::RESET as u64, &mut busy)?;
            if busy == [0; 4] {
                *self.state() = State { config: ConfigSpace::new(), vectors: Vec::new() };
                self.lock().nic(self.nic).host.bus_master = false;
                return Ok(());
            }
        }
        Err(Error::new("the device does not come out of its function-level reset"))
    }

    fn relax(&self) {
        advance(&self.fabric);
        self.deliver(&mut self.lock());
    }
}
