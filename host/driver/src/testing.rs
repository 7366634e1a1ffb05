//! A function of registers that stand still and maps that are kept, for tests of what the driver makes of them.

use crate::function::{BarInfo, DmaLimits, DmaMap, Mapping, PciFunction, Result};
use crate::memory::PAGE;
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;

#[derive(Default)]
struct State {
    registers: BTreeMap<u64, u32>,
    command: u16,
    writes: Vec<(u64, u32)>,
    /// A write that changes another register.
    trigger: Option<((u64, u32), (u64, u32))>,
    /// DMA maps: bytes by IOVA.
    maps: BTreeMap<u64, usize>,
}

/// BAR0, the command register and the IOMMU, of three maps, of a function.
#[derive(Default)]
pub(crate) struct Fake(Mutex<State>);

impl Fake {
    /// Sets a register of BAR0.
    pub(crate) fn set(&self, offset: usize, value: u32) {
        self.0.lock().unwrap().registers.insert(offset as u64, value);
    }
    /// Sets the command register.
    pub(crate) fn set_command(&self, value: u16) {
        self.0.lock().unwrap().command = value;
    }
    /// The command register.
    pub(crate) fn command(&self) -> u16 {
        self.0.lock().unwrap().command
    }
    /// When `value` is written to `offset`, another register changes.
    pub(crate) fn on_write(&self, offset: usize, value: u32, then: (usize, u32)) {
        self.0.lock().unwrap().trigger = Some(((offset as u64, value), (then.0 as u64, then.1)));
    }
    /// All writes to BAR0.
    pub(crate) fn writes(&self) -> Vec<(u64, u32)> {
        self.0.lock().unwrap().writes.clone()
    }
}

impl PciFunction for Fake {
    fn config_read(&self, offset: u16, buf: &mut [u8]) -> Result<()> {
        assert_eq!(offset, 4);
        buf.copy_from_slice(&self.0.lock().unwrap().command.to_le_bytes());
        Ok(())
    }
    fn config_write(&self, offset: u16, data: &[u8]) -> Result<()> {
        assert_eq!(offset, 4);
        self.set_command(u16::from_le_bytes(data.try_into().expect("2 bytes")));
        Ok(())
    }
    fn bar_info(&self, _: u8) -> Result<BarInfo> {
        Ok(BarInfo { size: 0x1_0000, mappable: vec![] })
    }
    fn bar_read(&self, _: u8, offset: u64, buf: &mut [u8]) -> Result<()> {
        for (word, at) in buf.chunks_mut(4).zip((offset..).step_by(4)) {
            let value = self.0.lock().unwrap().registers.get(&at).copied().unwrap_or(0);
            word.copy_from_slice(&value.to_le_bytes());
        }
        Ok(())
    }
    fn bar_write(&self, _: u8, offset: u64, data: &[u8]) -> Result<()> {
        let mut s = self.0.lock().unwrap();
        let write = (offset, u32::from_le_bytes(data.try_into().expect("4 bytes")));
        s.writes.push(write);
        if let Some((when, (at, value))) = s.trigger
            && when == write
        {
            s.registers.insert(at, value);
        }
        Ok(())
    }
    fn bar_map(&self, _: u8, _: u64, _: u64) -> Result<Option<Mapping>> {
        Ok(None)
    }
    fn dma_limits(&self) -> Result<DmaLimits> {
        Ok(DmaLimits { page_sizes: 0x1000, iova: vec![(0x1000, (1 << 47) - 1)], max_maps: 3, prefers_fd: false })
    }
    unsafe fn dma_map(&self, m: &DmaMap<'_>) -> Result<()> {
        let maps = &mut self.0.lock().unwrap().maps;
        let overlaps = maps.range(..m.iova + m.len as u64).any(|(a, l)| a + *l as u64 > m.iova);
        assert!(!overlaps && m.len.is_multiple_of(PAGE), "maps {:#x}+{:#x} over {maps:x?}", m.iova, m.len);
        maps.insert(m.iova, m.len);
        Ok(())
    }
    fn dma_unmap(&self, iova: u64, len: usize) -> Result<()> {
        assert_eq!(self.0.lock().unwrap().maps.remove(&iova), Some(len), "unmaps what was not mapped so");
        Ok(())
    }
    fn msix_count(&self) -> Result<u32> {
        Ok(0)
    }
    fn msix_set(&self, _: &[Option<BorrowedFd<'_>>]) -> Result<()> {
        Ok(())
    }
    fn reset(&self) -> Result<()> {
        Ok(())
    }
}
