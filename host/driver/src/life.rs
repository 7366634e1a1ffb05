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
            Err(self.loses("its registers read all ones"))
        } else if health >> health::RESETS.lsb != self.resets {
            Err(self.ends("it was reset, or its firmware was loaded again"))
        } else if health & health::READY == 0 {
            Err(self.loses("its firmware does not run"))
        } else if health & health::SILENT != 0 {
            Err(self.loses("its firmware stopped beating"))
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

    /// Notes an end after which the device knows nothing of this handle's memory; the first end counts.
    pub(crate) fn ends(&self, why: &'static str) -> Error {
        error(self.end.get_or_init(|| why))
    }

    /// Notes an end after which gates may go on working with this handle's memory, for nobody can tell them to stop: takes
    /// the bus from the device before anyone can know of the end, and so before anything is unmapped or freed.
    pub(crate) fn loses(&self, why: &'static str) -> Error {
        error(self.end.get_or_init(|| {
            if let Err(e) = crate::config::silence(&*self.function) {
                note!("ferroce: the device is gone ({why}), and Bus Master Enable cannot be cleared: {e}");
            }
            why
        }))
    }
}

fn error(why: &str) -> Error {
    Error::new(format!("the device is gone: {why}")).hint("drop all objects of this handle and open the device again")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Fake;
    use abi::bar::HEALTH;

    #[test]
    fn each_end_is_noticed_by_name_and_stays() {
        let alive = 7 << 16 | health::READY;
        // The bus is taken from gates that may go on, never from a device that may be another driver's by now.
        for (health, command, why, then) in [
            (u32::MAX, 6, "all ones", 2),
            (8 << 16 | health::READY, 6, "was reset", 6),
            (7 << 16, 6, "does not run", 2),
            (alive | health::SILENT, 6, "stopped beating", 2),
            (alive, 2, "Bus Master Enable", 2),
        ] {
            let fake = Arc::new(Fake::default());
            fake.set(HEALTH, alive);
            fake.set_command(6);
            let life = Life::new(fake.clone(), Arc::new(Bar::open(fake.clone(), 0).unwrap()));
            fake.set(HEALTH, alive | health::PARITY | health::BUS);
            life.check().unwrap();
            fake.set(HEALTH, health);
            fake.set_command(command);
            assert!(!life.is_over() && life.known().is_ok(), "nobody has looked");
            let e = life.check().unwrap_err().to_string();
            assert!(e.contains(why), "{e}");
            assert_eq!(fake.command(), then, "{why}");
            fake.set(HEALTH, alive);
            fake.set_command(6);
            assert!(life.is_over() && life.known().unwrap_err().to_string().contains(why));
            assert!(life.check().unwrap_err().to_string().contains(why), "there is no way back");
            assert!(life.ends("anything else").to_string().contains(why), "the first end counts");
            assert!(life.loses("anything else").to_string().contains(why), "the first end counts");
        }
    }
}
