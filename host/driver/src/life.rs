//! Whether the device behind the handles still is the one that they were made on. A device that was reset, that lost its
//! firmware or its access to memory knows nothing of them: whatever they try is refused at once, for good.

use crate::bar::Bar;
use crate::function::{Error, PciFunction, Result};
use crate::reg;
use crate::registers::Registers;
use abi::bar::health;
use std::sync::{Arc, OnceLock};

/// The device's life as this driver has seen it.
pub(crate) struct Life {
    function: Arc<dyn PciFunction>,
    bar: Arc<Bar>,
    /// Resets that it had seen when it was opened.
    resets: u32,
    end: OnceLock<&'static str>,
}

impl Life {
    /// The device is alive now.
    pub(crate) fn new(function: Arc<dyn PciFunction>, bar: Arc<Bar>) -> Self {
        let resets = reg!(bar, Registers, health).read() >> health::RESETS.lsb;
        Life { function, bar, resets, end: OnceLock::new() }
    }

    /// Looks at the device, which takes a register read.
    pub(crate) fn check(&self) -> Result<()> {
        self.known()?;
        let health = reg!(self.bar, Registers, health).read();
        if health == u32::MAX {
            Err(self.ends("its registers read all ones"))
        } else if health >> health::RESETS.lsb != self.resets {
            Err(self.ends("it was reset, or its firmware was loaded again"))
        } else if health & health::READY == 0 {
            Err(self.ends("its firmware does not run"))
        } else if health & health::SILENT != 0 {
            Err(self.ends("its firmware stopped beating"))
        } else if !crate::config::masters_bus(&*self.function) {
            Err(self.ends("Bus Master Enable is off"))
        } else {
            Ok(())
        }
    }

    /// An error if an end has been noticed, without a look at the device.
    pub(crate) fn known(&self) -> Result<()> {
        self.end.get().map_or(Ok(()), |why| Err(error(why)))
    }

    /// An end has been noticed.
    pub(crate) fn is_over(&self) -> bool {
        self.end.get().is_some()
    }

    /// Notes an end; the first one counts.
    pub(crate) fn ends(&self, why: &'static str) -> Error {
        error(self.end.get_or_init(|| why))
    }
}

fn error(why: &str) -> Error {
    Error::new(format!("the device is gone: {why}")).hint("drop all objects of this handle and open the device again")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::function::{BarInfo, DmaLimits, DmaMap, Mapping};
    use std::os::fd::BorrowedFd;
    use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

    /// A function of a health register and a command register.
    #[derive(Default)]
    struct Fake {
        health: AtomicU32,
        command: AtomicU16,
    }

    impl PciFunction for Fake {
        fn config_read(&self, offset: u16, buf: &mut [u8]) -> Result<()> {
            assert_eq!(offset, 4);
            buf.copy_from_slice(&self.command.load(Ordering::Relaxed).to_le_bytes());
            Ok(())
        }
        fn config_write(&self, _: u16, _: &[u8]) -> Result<()> {
            Ok(())
        }
        fn bar_info(&self, _: u8) -> Result<BarInfo> {
            Ok(BarInfo { size: 0x1000, mappable: vec![] })
        }
        fn bar_read(&self, _: u8, offset: u64, buf: &mut [u8]) -> Result<()> {
            assert_eq!(offset, abi::bar::HEALTH as u64);
            buf.copy_from_slice(&self.health.load(Ordering::Relaxed).to_le_bytes());
            Ok(())
        }
        fn bar_write(&self, _: u8, _: u64, _: &[u8]) -> Result<()> {
            Ok(())
        }
        fn bar_map(&self, _: u8, _: u64, _: u64) -> Result<Option<Mapping>> {
            Ok(None)
        }
        fn dma_limits(&self) -> Result<DmaLimits> {
            Ok(DmaLimits { page_sizes: 0x1000, iova: vec![], max_maps: 0, prefers_fd: false })
        }
        unsafe fn dma_map(&self, _: &DmaMap<'_>) -> Result<()> {
            Ok(())
        }
        fn dma_unmap(&self, _: u64, _: usize) -> Result<()> {
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

    #[test]
    fn each_end_is_noticed_by_name_and_stays() {
        let alive = 7 << 16 | health::READY;
        for (health, command, why) in [
            (u32::MAX, 6, "all ones"),
            (8 << 16 | health::READY, 6, "was reset"),
            (7 << 16, 6, "does not run"),
            (alive | health::SILENT, 6, "stopped beating"),
            (alive, 2, "Bus Master Enable"),
        ] {
            let fake = Arc::new(Fake { health: alive.into(), command: 6.into() });
            let bar = Arc::new(Bar::open(fake.clone(), 0).unwrap());
            let life = Life::new(fake.clone(), bar);
            fake.health.store(alive | health::PARITY | health::BUS, Ordering::Relaxed);
            life.check().unwrap();
            fake.health.store(health, Ordering::Relaxed);
            fake.command.store(command, Ordering::Relaxed);
            assert!(!life.is_over() && life.known().is_ok(), "nobody has looked");
            let e = life.check().unwrap_err().to_string();
            assert!(e.contains(why), "{e}");
            fake.health.store(alive, Ordering::Relaxed);
            fake.command.store(6, Ordering::Relaxed);
            assert!(life.is_over() && life.known().unwrap_err().to_string().contains(why));
            assert!(life.check().unwrap_err().to_string().contains(why), "there is no way back");
            assert!(life.ends("anything else").to_string().contains(why), "the first end counts");
        }
    }
}
