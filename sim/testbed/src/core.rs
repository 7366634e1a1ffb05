//! Builds the NIC core for a datapath width.

use hdl::prelude::Block;
use rtl::core::{Core, CoreConfig};
use verilate::{Model, Options};

/// Why a testbed could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The core does not build.
    #[error(transparent)]
    Model(#[from] verilate::Error),
    /// The driver does not open the device.
    #[error(transparent)]
    Driver(#[from] driver::Error),
    /// The firmware image cannot be read.
    #[error("cannot read the firmware image: {0}")]
    Image(#[from] std::io::Error),
    /// No such width.
    #[error("a datapath of {0} bits: 64, 128, 256 and 512 are possible")]
    Width(usize),
}

/// The core at `width` bits, built or taken from the cache. It stays the same for one text, one set of flags, one Verilator.
pub fn core_model(width: usize) -> Result<Model, SetupError> {
    let picorv32 = verilate::picorv32_source()?;
    let options =
        |name: &str| Options { name: Some(name.into()), sources: vec![picorv32.clone()], ..Options::default() };
    let config = CoreConfig::default();
    Ok(match width {
        64 => Model::of(|| Core::<64>::new(&config), options("core64"))?,
        128 => Model::of(|| Core::<128>::new(&config), options("core128"))?,
        256 => Model::of(|| Core::<256>::new(&config), options("core256"))?,
        512 => Model::of(|| Core::<512>::new(&config), options("core512"))?,
        other => return Err(SetupError::Width(other)),
    })
}

/// The Verilog of the core at `width` bits, for synthesis. PicoRV32 is not in it.
pub fn core_verilog(width: usize) -> Result<String, SetupError> {
    fn text<const W: usize>() -> String {
        verilate::on_big_stack(|| {
            let mut core = Core::<W>::new(&CoreConfig::default());
            core.connect_all();
            hdl::emit(&core, "top")
        })
    }
    Ok(match width {
        64 => text::<64>(),
        128 => text::<128>(),
        256 => text::<256>(),
        512 => text::<512>(),
        other => return Err(SetupError::Width(other)),
    })
}
