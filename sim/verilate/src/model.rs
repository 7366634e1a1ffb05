//! A running model: typed access to the ports of one instance, its clock, its waves.

use crate::{Error, Options, PortInfo, compile, on_big_stack, ports};
use hdl::prelude::Block;
use libloading::Library;
use std::{
    collections::BTreeMap,
    ffi::{CString, c_char, c_int, c_void},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

/// A port of a model, or a field of a struct port; looked up once by [`Model::port`]; valid for every instance of the same block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port(u32);

/// What names a port or a field of a struct port: a [`Port`] (for hot paths) or a name (`"s.data"`, `"lane[2].valid"`,
/// `"s.data.psn"`; RustHDL's `s$data` too).
pub trait Pick {
    fn pick(self, model: &Model) -> Port;
}
impl Pick for Port {
    fn pick(self, _: &Model) -> Port {
        self
    }
}
impl Pick for &str {
    fn pick(self, model: &Model) -> Port {
        model.port(self)
    }
}

/// One instance of a block in Verilator. Ports hold their values until written; outputs follow on [`eval`](Model::eval)
/// or [`tick`](Model::tick).
pub struct Model {
    design: Arc<Design>,
    instance: *mut c_void,
    slots: Vec<Slot>,
    clock: Option<*mut u8>,
    cycle: u64,
}

// An instance is plain memory with its own Verilator context and is used by one thread at a time (`&mut self`).
unsafe impl Send for Model {}

/// What all instances of a block share. The library stays loaded for good, as threads may hold its thread-locals.
struct Design {
    name: String,
    ports: Vec<PortInfo>,
    index: BTreeMap<String, Port>,
    wave: Option<(String, &'static str)>,
    /// Path prefix of the line counts.
    coverage: Option<String>,
    calls: Calls,
}

#[derive(Clone, Copy)]
struct Calls {
    new: unsafe extern "C" fn() -> *mut c_void,
    delete: unsafe extern "C" fn(*mut c_void),
    eval: unsafe extern "C" fn(*mut c_void),
    port: unsafe extern "C" fn(*mut c_void, c_int) -> *mut u8,
    trace: unsafe extern "C" fn(*mut c_void, *const c_char),
    dump: unsafe extern "C" fn(*mut c_void),
    coverage: unsafe extern "C" fn(*mut c_void, *const c_char),
}

impl Design {
    /// A file name for the next instance.
    fn file(&self, prefix: &str, extension: &str) -> String {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        format!("{prefix}{}-{}-{number}.{extension}", self.name, std::process::id())
    }
}

struct Slot {
    /// Verilator's variable of the port.
    at: *mut u8,
    bits: u32,
    input: bool,
    part: Option<Part>,
}

/// A field of a struct port: where it starts, and the bytes its port takes.
#[derive(Clone, Copy)]
struct Part {
    lsb: u32,
    storage: u32,
}

impl Model {
    /// Makes a block with `make`, connects it and builds it, all on a large stack.
    pub fn of<B: Block + Sync>(make: impl FnOnce() -> B + Send, options: Options) -> Result<Model, Error> {
        on_big_stack(|| {
            let mut block = make();
            block.connect_all();
            Self::build(&block, options)
        })
    }

    /// Builds a block on which `connect_all` was called. Emission runs on a large stack; its errors are panics that
    /// name the kernel's line.
    pub fn build<B: Block + Sync>(block: &B, options: Options) -> Result<Model, Error> {
        let (text, ports) = on_big_stack(|| (hdl::emit(block, "top"), ports(block)));
        let name = || {
            let path = std::any::type_name::<B>();
            let path = path.split('<').next().unwrap_or(path);
            path.rsplit("::").next().unwrap_or(path).to_string()
        };
        let name = options.name.clone().unwrap_or_else(name);
        Self::from_verilog(&text, &ports, Options { name: Some(name), ..options })
    }

    /// Builds Verilog text with a module `top` of the given ports; `$` in a port name is `_` in the text.
    pub fn from_verilog(text: &str, ports: &[PortInfo], options: Options) -> Result<Model, Error> {
        let name = options.name.clone().unwrap_or_else(|| "verilog".into());
        let wave = options.wave.clone().or_else(|| std::env::var("FERROCE_WAVE").ok());
        let coverage = std::env::var("FERROCE_COVERAGE").ok();
        let counts = options.coverage || coverage.is_some();
        let built = compile::build(&name, text, ports, &Options { wave: wave.clone(), coverage: counts, ..options })?;
        // SAFETY: our own library; its static constructors only fill Verilator's tables.
        let library = unsafe { Library::new(&built.library) };
        let load = |source| Error::Load { path: built.library.display().to_string(), source };
        let library: &'static Library = Box::leak(Box::new(library.map_err(load)?));
        // SAFETY: the types are those of the shim in `compile`.
        let calls = unsafe {
            Calls {
                new: *library.get(b"ferroce_new").map_err(load)?,
                delete: *library.get(b"ferroce_delete").map_err(load)?,
                eval: *library.get(b"ferroce_eval").map_err(load)?,
                port: *library.get(b"ferroce_port").map_err(load)?,
                trace: *library.get(b"ferroce_trace").map_err(load)?,
                dump: *library.get(b"ferroce_dump").map_err(load)?,
                coverage: *library.get(b"ferroce_coverage").map_err(load)?,
            }
        };
        // Ports first, in order, then the fields of all struct ports: as `instance` makes the slots.
        let fields = ports.iter().flat_map(|p| p.fields.iter().map(move |field| format!("{}${}", p.name, field.0)));
        let names = ports.iter().map(|p| p.name.clone()).chain(fields);
        let index = names.enumerate().map(|(i, name)| (name, Port(i as u32))).collect();
        let wave = wave.zip(built.wave);
        Ok(Self::instance(Arc::new(Design { name, ports: ports.to_vec(), index, wave, coverage, calls })))
    }

    /// Another instance of the same block, in its power-up state.
    pub fn another(&self) -> Model {
        Self::instance(self.design.clone())
    }

    fn instance(design: Arc<Design>) -> Model {
        // SAFETY: `calls` belong to the library of these ports, and the instance lives until `drop`.
        let instance = unsafe { (design.calls.new)() };
        let mut slots = Vec::new();
        for (i, p) in design.ports.iter().enumerate() {
            let at = unsafe { (design.calls.port)(instance, i as c_int) };
            slots.push(Slot { at, bits: p.bits as u32, input: p.input, part: None });
        }
        for (i, p) in design.ports.iter().enumerate() {
            let (at, input, storage) = (slots[i].at, p.input, storage(p.bits as u32) as u32);
            slots.extend(p.fields.iter().map(|&(_, lsb, bits)| {
                let part = Some(Part { lsb: lsb as u32, storage });
                Slot { at, bits: bits as u32, input, part }
            }));
        }
        let clock =
            |name: &str| design.index.get(name).map(|p| &slots[p.0 as usize]).filter(|s| s.input && s.bits == 1);
        let clock = clock("clock").or_else(|| clock("clk")).map(|slot| slot.at);
        if let Some((prefix, extension)) = &design.wave {
            let path = CString::new(design.file(prefix, extension)).expect("wave path");
            unsafe { (design.calls.trace)(instance, path.as_ptr()) };
        }
        let mut model = Model { design, instance, slots, clock, cycle: 0 };
        model.eval(); // Verilator sees an edge only against an earlier evaluation
        model
    }

    /// Name of the block.
    pub fn name(&self) -> &str {
        &self.design.name
    }

    /// All ports, in declaration order.
    pub fn ports(&self) -> &[PortInfo] {
        &self.design.ports
    }

    /// The port of this name, if there is one.
    pub fn find(&self, name: &str) -> Option<Port> {
        let plain = || name.replace(['.', '['], "$").replace(']', "");
        self.design.index.get(name).or_else(|| self.design.index.get(&plain())).copied()
    }

    /// The port of this name; panics with the names there are.
    #[track_caller]
    pub fn port(&self, name: &str) -> Port {
        self.find(name).unwrap_or_else(|| {
            let names: Vec<_> = self.ports().iter().map(|p| p.name.replace('$', ".")).collect();
            panic!("`{}` has no port `{name}`; it has {}", self.name(), names.join(", "))
        })
    }

    /// Width of a port in bits.
    pub fn width(&self, port: impl Pick) -> usize {
        self.slots[port.pick(self).0 as usize].bits as usize
    }

    /// Writes an input. Panics when the value does not fit, or the port is an output.
    #[inline]
    #[track_caller]
    pub fn set(&mut self, port: impl Pick, value: u64) {
        let port = port.pick(self);
        let slot = self.input(port);
        let (at, bits) = (slot.at, slot.bits);
        assert!(bits >= 64 || value >> bits == 0, "{value:#x} does not fit the {bits} bits of {}", self.name_of(port));
        if slot.part.is_some() {
            return self.set_bytes(port, &value.to_le_bytes()[..(bits.div_ceil(8) as usize).min(8)]);
        }
        // SAFETY: `at` is the port's variable in the live instance, and Verilator stores this width in that type.
        unsafe {
            match bits {
                0..=8 => at.write(value as u8),
                9..=16 => at.cast::<u16>().write(value as u16),
                17..=32 => at.cast::<u32>().write(value as u32),
                33..=64 => at.cast::<u64>().write(value),
                _ => {
                    at.write_bytes(0, storage(bits));
                    at.cast::<u64>().write_unaligned(value);
                }
            }
        }
    }

    /// Reads a port of at most 64 bits.
    #[inline]
    #[track_caller]
    pub fn get(&self, port: impl Pick) -> u64 {
        let port = port.pick(self);
        let slot = &self.slots[port.0 as usize];
        let bits = slot.bits;
        assert!(bits <= 64, "{} has {bits} bits: use `bytes` or `get_bytes`", self.name_of(port));
        if slot.part.is_some() {
            return crate::bits::get(&self.get_bytes(port), 0, bits as usize);
        }
        // SAFETY: as in `set`.
        unsafe {
            match bits {
                0..=8 => slot.at.read().into(),
                9..=16 => slot.at.cast::<u16>().read().into(),
                17..=32 => slot.at.cast::<u32>().read().into(),
                _ => slot.at.cast::<u64>().read(),
            }
        }
    }

    /// Reads a one-bit port.
    #[inline]
    #[track_caller]
    pub fn bit(&self, port: impl Pick) -> bool {
        self.get(port) != 0
    }

    /// Writes an input of any width from little-endian bytes; missing high bytes are zero.
    #[inline]
    #[track_caller]
    pub fn set_bytes(&mut self, port: impl Pick, value: &[u8]) {
        let port = port.pick(self);
        let slot = self.input(port);
        let (bits, spare) = (slot.bits as usize, value.len() * 8);
        let fits = spare <= bits || (value.len() == bits.div_ceil(8) && value[bits / 8] >> (bits % 8) == 0);
        assert!(fits, "{} bytes do not fit the {bits} bits of {}", value.len(), self.name_of(port));
        if let Some(part) = slot.part {
            // SAFETY: the storage of a port of the live instance.
            let whole = unsafe { std::slice::from_raw_parts_mut(slot.at, part.storage as usize) };
            return crate::bits::set_bytes(whole, part.lsb as usize, bits, value);
        }
        // SAFETY: as in `set`; `value` is not longer than the storage.
        unsafe {
            slot.at.write_bytes(0, storage(slot.bits));
            slot.at.copy_from_nonoverlapping(value.as_ptr(), value.len());
        }
    }

    /// The value of a whole port of any width, as little-endian bytes (width / 8, rounded up).
    #[inline]
    #[track_caller]
    pub fn bytes(&self, port: impl Pick) -> &[u8] {
        let port = port.pick(self);
        let slot = &self.slots[port.0 as usize];
        assert!(slot.part.is_none(), "{} is a part of a port: use `get_bytes`", self.name_of(port));
        // SAFETY: as in `set`; written only through `&mut self`.
        unsafe { std::slice::from_raw_parts(slot.at, slot.bits.div_ceil(8) as usize) }
    }

    /// As [`bytes`](Model::bytes), also for a field of a struct port.
    #[track_caller]
    pub fn get_bytes(&self, port: impl Pick) -> Vec<u8> {
        let port = port.pick(self);
        let slot = &self.slots[port.0 as usize];
        let Some(part) = slot.part else { return self.bytes(port).to_vec() };
        // SAFETY: the storage of a port of the live instance.
        let whole = unsafe { std::slice::from_raw_parts(slot.at, part.storage as usize) };
        crate::bits::get_bytes(whole, part.lsb as usize, slot.bits as usize)
    }

    #[inline]
    #[track_caller]
    fn input(&self, port: Port) -> &Slot {
        let slot = &self.slots[port.0 as usize];
        assert!(slot.input, "{} is an output", self.name_of(port));
        slot
    }

    fn name_of(&self, port: Port) -> String {
        let found = self.design.index.iter().find(|(_, p)| **p == port);
        found.map_or_else(String::new, |(name, _)| name.replace('$', "."))
    }

    /// Lets outputs follow inputs, without a clock edge.
    #[inline]
    pub fn eval(&mut self) {
        // SAFETY: a live instance.
        unsafe { (self.design.calls.eval)(self.instance) }
        if self.design.wave.is_some() {
            unsafe { (self.design.calls.dump)(self.instance) }
        }
    }

    /// One clock cycle: registers take what the present inputs make of them, then outputs follow.
    #[inline]
    #[track_caller]
    pub fn tick(&mut self) {
        let clock = self.clock.expect("the block has no input `clock` or `clk`");
        // SAFETY: a one-bit port's variable in the live instance.
        unsafe { clock.write(1) };
        self.eval();
        unsafe { clock.write(0) };
        self.eval();
        self.cycle += 1;
    }

    /// The rising edge alone: registers take what the inputs of the last [`eval`](Model::eval) make of them. The clock falls
    /// with the next `eval`. For loops that must see outputs that follow inputs within the cycle: set, `eval`, look, `edge`.
    #[inline]
    #[track_caller]
    pub fn edge(&mut self) {
        let clock = self.clock.expect("the block has no input `clock` or `clk`");
        // SAFETY: a one-bit port's variable in the live instance.
        unsafe { clock.write(1) };
        self.eval();
        unsafe { clock.write(0) };
        self.cycle += 1;
    }

    /// Clock cycles so far.
    pub fn cycle(&self) -> u64 {
        self.cycle
    }

    /// Holds the input `rst` (or `reset`) for two cycles; does nothing on a block without.
    pub fn reset(&mut self) {
        if let Some(reset) = self.find("rst").or_else(|| self.find("reset")) {
            self.set(reset, 1);
            (0..2).for_each(|_| self.tick());
            self.set(reset, 0);
            self.eval();
        }
    }

    /// Writes the line counts of all instances since their start in Verilator's format (`verilator_coverage` reads
    /// it). Needs [`Options::coverage`].
    pub fn write_coverage(&self, path: &Path) {
        let path = CString::new(path.to_string_lossy().as_bytes()).expect("coverage path");
        // SAFETY: a live instance.
        unsafe { (self.design.calls.coverage)(self.instance, path.as_ptr()) }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        if let Some(prefix) = &self.design.coverage {
            self.write_coverage(Path::new(&self.design.file(prefix, "dat")));
        }
        // SAFETY: made by `new`, used by nobody after this.
        unsafe { (self.design.calls.delete)(self.instance) }
    }
}

/// Bytes Verilator stores a port of `bits` in.
fn storage(bits: u32) -> usize {
    match bits {
        0..=8 => 1,
        9..=16 => 2,
        17..=32 => 4,
        33..=64 => 8,
        _ => bits.div_ceil(32) as usize * 4,
    }
}
