//! Builds the NIC core for a datapath width and a number of queue pairs.

use hdl::prelude::Block;
use nic::{Fs, NS};
use rtl::core::{Core, CoreConfig};
use std::collections::btree_map::{BTreeMap, Entry};
use std::sync::Mutex;
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
    /// No such core.
    #[error(
        "a core of {width} bits and {qps} queue pairs: 64 bits with 32, 256 or 4096, or 128, 256 or 512 bits with 256 are built here"
    )]
    Core {
        /// Datapath width in bits.
        width: usize,
        /// Queue pairs.
        qps: usize,
    },
}

/// What to do with the type of a core.
trait Visit {
    type Output;
    fn visit<const W: usize, const N: usize>(self, config: CoreConfig) -> Self::Output;
}

/// The cores that are built here: each is a type of its own.
fn with_core<V: Visit>(width: usize, qps: usize, v: V) -> Result<V::Output, SetupError> {
    Ok(match (width, qps) {
        (64, 32) => v.visit::<64, 32>(CoreConfig::small()),
        (64, 256) => v.visit::<64, 256>(CoreConfig::default()),
        (64, 4096) => v.visit::<64, 4096>(CoreConfig { ram: 512 << 10, ..CoreConfig::default() }),
        (128, 256) => v.visit::<128, 256>(CoreConfig::default()),
        (256, 256) => v.visit::<256, 256>(CoreConfig::default()),
        (512, 256) => v.visit::<512, 256>(CoreConfig::default()),
        (width, qps) => return Err(SetupError::Core { width, qps }),
    })
}

/// The core of `width` bits and `qps` queue pairs, built or taken from the cache, and emitted once in a process. It stays the same
/// for one text, one set of flags, one Verilator.
pub fn core_model(width: usize, qps: usize) -> Result<Model, SetupError> {
    static CORES: Mutex<BTreeMap<(usize, usize), Model>> = Mutex::new(BTreeMap::new());
    let mut cores = CORES.lock().unwrap_or_else(|e| e.into_inner());
    Ok(match cores.entry((width, qps)) {
        Entry::Occupied(e) => e.get().another(),
        Entry::Vacant(e) => e.insert(build(width, qps)?).another(),
    })
}

/// The clock period of that core: what its timers count by, and its identity says.
pub fn core_clock(width: usize, qps: usize) -> Result<Fs, SetupError> {
    struct Clock;
    impl Visit for Clock {
        type Output = Fs;
        fn visit<const W: usize, const N: usize>(self, config: CoreConfig) -> Fs {
            1000 * NS / config.mhz as Fs
        }
    }
    with_core(width, qps, Clock)
}

fn build(width: usize, qps: usize) -> Result<Model, SetupError> {
    struct Build(Options);
    impl Visit for Build {
        type Output = Result<Model, verilate::Error>;
        fn visit<const W: usize, const N: usize>(self, config: CoreConfig) -> Self::Output {
            Model::of(|| Core::<W, N>::new(&config), self.0)
        }
    }
    let name = Some(format!("core{width}x{qps}"));
    let announce = Some(format!(
        "compiling the gates of a {width}-bit NIC for {qps} queue pairs; later starts find them compiled"
    ));
    let options = Options { name, announce, sources: vec![verilate::picorv32_source()?], ..Options::default() };
    Ok(with_core(width, qps, Build(options))??)
}

/// The Verilog of the core of `width` bits and `qps` queue pairs, for synthesis. PicoRV32 is not in it.
pub fn core_verilog(width: usize, qps: usize) -> Result<String, SetupError> {
    struct Emit;
    impl Visit for Emit {
        type Output = String;
        fn visit<const W: usize, const N: usize>(self, config: CoreConfig) -> String {
            verilate::on_big_stack(|| {
                let mut core = Core::<W, N>::new(&config);
                core.connect_all();
                hdl::emit(&core, "top")
            })
        }
    }
    with_core(width, qps, Emit)
}
