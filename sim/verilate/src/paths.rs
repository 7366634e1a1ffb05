//! Where the launcher keeps what it installs, and the files in there that tests and the simulated NIC want.

use crate::{Error, process};
use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// The launcher's directory: `$XDG_CACHE_HOME/ferroce`, or `~/.cache/ferroce`.
pub fn cache_dir() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache");
    std::env::var_os("XDG_CACHE_HOME")
        .filter(|dir| Path::new(dir).is_absolute())
        .map_or_else(home, PathBuf::from)
        .join("ferroce")
}

/// Top of the repository this was compiled from.
fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("this crate is at sim/verilate")
}

/// Cache of compiled models.
pub(crate) fn models_dir() -> PathBuf {
    let build = || std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository().join("target"), PathBuf::from);
    // Absolute, for compilers run in directories of their own.
    let models = std::env::var_os("FERROCE_MODELS").map_or_else(|| build().join("verilate"), PathBuf::from);
    std::path::absolute(&models).unwrap_or(models)
}

/// The control processor's Verilog, for [`crate::Options::sources`].
pub fn picorv32_source() -> Result<PathBuf, Error> {
    let path = cache_dir().join("picorv32.v");
    let hint = "type `./ferroce setup` at the top of the repository".into();
    if path.exists() { Ok(path) } else { Err(Error::Missing { tool: "picorv32.v", hint }) }
}

/// The firmware image of the sources in this repository (`abi::image`). Runs `firmware/build.sh`
/// once per process, which builds it if need be and says what to type if it can't.
pub fn firmware_image() -> Result<PathBuf, Error> {
    static IMAGE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let build = || {
        let out = process::run(Command::new("bash").arg(repository().join("firmware/build.sh")))?;
        Ok(PathBuf::from(out.trim()))
    };
    IMAGE.get_or_init(build).clone().map_err(|hint| Error::Missing { tool: "the firmware image", hint })
}
