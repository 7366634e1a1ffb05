//! Loads the firmware over BAR0, while the soft core is in reset.

use crate::bar::Bar;
use crate::function::{Error, PciFunction, Result};
use crate::patience::Patience;
use crate::reg;
use crate::registers::Registers;
use abi::ABI_VERSION;
use abi::image::{self, Fault};

/// Major and minor.
fn version(v: u32) -> String {
    format!("{}.{}", v >> 16, v & 0xffff)
}

fn refuse(fault: Fault) -> Error {
    let e = |what: String| Error::new(format!("the firmware image is not loaded: {what}"));
    match fault {
        Fault::NoImage => e("it does not begin with the header of an image".into()),
        Fault::Abi(v) => e(format!("it is made for ABI {}, this driver speaks {}", version(v), version(ABI_VERSION))),
        Fault::Version(v) => {
            e(format!("it has version {}, this driver works with {}", version(v), version(image::VERSION)))
        }
        Fault::Length(told, is) => {
            e(format!("it is cut short or too long: {told} bytes of code by its header, {is} in it"))
        }
        Fault::TooLong(n) => e(format!("{n} bytes of code, the soft core has {}", abi::mmio::NEAR_BYTES)),
        Fault::Hash(told, is) => e(format!("it is damaged: hash {told:#018x} by its header, {is:#018x} by its code")),
    }
    .hint("use the image of the release that this driver came with; `firmware/build.sh` builds it")
}

/// Loads the firmware unless it runs, and waits until it is ready.
pub(crate) fn start(function: &dyn PciFunction, bar0: &Bar, file: Option<&[u8]>) -> Result<()> {
    let running = |want: u32| {
        let is = reg!(bar0, Registers, fw_version).read();
        if is >> 16 == want >> 16 {
            return Ok(());
        }
        let what = format!("the device runs firmware {}, this driver works with {}", version(is), version(want));
        Err(Error::new(what).hint("reset the device with its own driver, or power it off, and open it again"))
    };
    if reg!(bar0, Registers, ready).read() & 1 == 1 {
        return running(image::VERSION);
    }
    let mut loaded = image::VERSION;
    if let Some(file) = file {
        let (version, code) = image::open(file).map_err(refuse)?;
        loaded = version;
        reg!(bar0, Registers, fw_control).write(1);
        reg!(bar0, Registers, fw_address).write(0);
        for word in code.chunks(4) {
            let mut bytes = [0; 4];
            bytes[..word.len()].copy_from_slice(word);
            reg!(bar0, Registers, fw_data).write(u32::from_le_bytes(bytes));
        }
        reg!(bar0, Registers, fw_control).write(0);
    }
    let mut patience = Patience::new();
    while reg!(bar0, Registers, ready).read() & 1 == 0 {
        if patience.ends(bar0) {
            let e = Error::new("the firmware does not become ready");
            return Err(match file {
                Some(f) => e.hint(format!("the image loaded has {} bytes; is it one for this device?", f.len())),
                None => e.hint("no image was given to load"),
            });
        }
        function.relax();
    }
    running(loaded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Fake;
    use abi::bar;
    use abi::image::header;
    use std::sync::Arc;

    fn made() -> Vec<u8> {
        let code: Vec<u8> = (0..203u8).collect();
        [&image::header_of(&code)[..], &code].concat()
    }

    /// Tries to load `file`; what it wrote, and the error.
    fn load(file: &[u8], registers: &[(usize, u32)]) -> (Vec<(u64, u32)>, Result<()>) {
        let fake = Arc::new(Fake::default());
        registers.iter().for_each(|(at, v)| fake.set(*at, *v));
        let bar = Bar::open(fake.clone(), 0).unwrap();
        let started = start(&*fake, &bar, Some(file));
        (fake.writes(), started)
    }

    #[test]
    fn a_good_image_is_loaded_whole_while_the_core_is_held() {
        let fake = Arc::new(Fake::default());
        // Ready once the core is let go.
        fake.on_write(bar::FW_CONTROL, 0, (bar::READY, 1));
        fake.set(bar::FW_VERSION, image::VERSION + 1);
        let bar = Bar::open(fake.clone(), 0).unwrap();
        start(&*fake, &bar, Some(&made())).unwrap();
        let writes = fake.writes();
        let (control, data) = (bar::FW_CONTROL as u64, bar::FW_DATA as u64);
        assert_eq!((writes[0], writes[1]), ((control, 1), (bar::FW_ADDRESS as u64, 0)));
        assert_eq!(writes.last(), Some(&(control, 0)));
        let words: Vec<u8> = writes.iter().filter(|w| w.0 == data).flat_map(|w| w.1.to_le_bytes()).collect();
        assert_eq!(words[..203], made()[image::HEADER..]);
    }

    #[test]
    fn what_is_no_image_of_this_release_is_refused_by_name_and_not_loaded() {
        let with = |f: abi::Field, v: u64| {
            let mut file = made();
            f.set(&mut file[..image::HEADER], v);
            file
        };
        let mut damaged = made();
        damaged[image::HEADER + 77] ^= 4;
        let long = [&made()[..], &[0]].concat();
        for (file, why) in [
            (vec![], "does not begin with"),
            (made()[..image::HEADER - 1].to_vec(), "does not begin with"),
            (made()[image::HEADER..].to_vec(), "does not begin with"),
            (with(header::ABI, 0x0002_0000), "made for ABI 2.0, this driver speaks 1."),
            (with(header::VERSION, 0x0003_0007), "has version 3.7, this driver works with 1."),
            (with(header::LENGTH, 1 << 20), "1048576 bytes of code, the soft core has 65536"),
            (made()[..made().len() - 1].to_vec(), "cut short or too long: 203 bytes of code by its header, 202 in it"),
            (long, "cut short or too long: 203 bytes of code by its header, 204 in it"),
            (with(header::HASH, 5), "damaged: hash 0x0000000000000005 by its header"),
            (damaged, "damaged: hash"),
        ] {
            let (writes, started) = load(&file, &[]);
            let e = started.unwrap_err().to_string();
            assert!(e.contains(why), "{e}");
            assert!(writes.is_empty(), "{why}: {writes:x?}");
        }
    }

    #[test]
    fn firmware_of_another_release_is_refused_when_it_runs_already() {
        let (writes, started) = load(&made(), &[(bar::READY, 1), (bar::FW_VERSION, 0x0002_0001)]);
        let e = started.unwrap_err().to_string();
        assert!(writes.is_empty() && e.contains("runs firmware 2.1"), "{e}");
        assert!(load(&made(), &[(bar::READY, 1), (bar::FW_VERSION, image::VERSION)]).1.is_ok());
    }
}
