//! One PCIe function, whoever stands behind it: the kernel's VFIO, a vfio-user server, or a model in this process.
//!
//! Everything above this trait is the same for all of them. Implementations must be callable from several threads.

use std::io;
use std::os::fd::BorrowedFd;

/// What was tried, what went wrong, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[error("{what}{}{}", .source.as_ref().map(|e| format!(": {e}")).unwrap_or_default(),
        .hint.as_ref().map(|h| format!("\n  hint: {h}")).unwrap_or_default())]
pub struct Error {
    /// What was tried and failed.
    pub what: String,
    /// What the user can do.
    pub hint: Option<String>,
    /// The system's error.
    pub source: Option<io::Error>,
}

impl Error {
    /// An error without hint and source.
    pub fn new(what: impl Into<String>) -> Self {
        Error { what: what.into(), hint: None, source: None }
    }
    /// Adds what the user can do.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
    /// Adds the system's error.
    pub fn source(mut self, source: io::Error) -> Self {
        self.source = Some(source);
        self
    }
}

/// Result of an access to the function.
pub type Result<T> = std::result::Result<T, Error>;

/// A BAR.
#[derive(Clone, Debug, Default)]
pub struct BarInfo {
    /// Bytes.
    pub size: u64,
    /// (offset, length) windows that [`PciFunction::bar_map`] can map; empty: every access is trapped.
    pub mappable: Vec<(u64, u64)>,
}

/// Part of a BAR in this process's address space.
pub struct Mapping {
    /// Start.
    pub ptr: *mut u8,
    /// Bytes.
    pub len: usize,
    /// Undoes the mapping when dropped.
    pub guard: Box<dyn Send + Sync>,
}

// SAFETY: the pointer names device memory; accesses are volatile and of the device's own granularity.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// What the IOMMU allows.
#[derive(Clone, Debug)]
pub struct DmaLimits {
    /// Bitmap of page sizes; the lowest set bit is the granule.
    pub page_sizes: u64,
    /// Ranges of bus addresses, both ends inclusive, without holes such as the MSI window.
    pub iova: Vec<(u64, u64)>,
    /// Maps at one time.
    pub max_maps: u32,
    /// Memory without a file behind it costs a copy for each access.
    pub prefers_fd: bool,
}

/// Who may do what with mapped memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DmaAccess {
    /// The device reads.
    ToDevice,
    /// The device writes.
    FromDevice,
    /// Both.
    Both,
}

/// A stretch of memory for the device.
pub struct DmaMap<'a> {
    /// Bus address.
    pub iova: u64,
    /// Address in this process.
    pub ptr: *mut u8,
    /// Bytes, a multiple of the granule.
    pub len: usize,
    /// Direction.
    pub access: DmaAccess,
    /// The file behind `ptr` and the offset in it, where there is one.
    pub fd: Option<(BorrowedFd<'a>, u64)>,
}

/// News about the function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FunctionEvent {
    /// Let go of the device soon (unbind, hot unplug).
    RemoveRequested,
    /// AER, or a fault reported by the IOMMU.
    Error,
    /// Gone: reads give all ones.
    Gone,
}

/// A PCIe function.
pub trait PciFunction: Send + Sync {
    /// Reads configuration space.
    fn config_read(&self, offset: u16, buf: &mut [u8]) -> Result<()>;
    /// Writes configuration space.
    fn config_write(&self, offset: u16, data: &[u8]) -> Result<()>;
    /// Describes a BAR; size 0 when it does not exist.
    fn bar_info(&self, bar: u8) -> Result<BarInfo>;
    /// One aligned access of 1, 2, 4 or 8 bytes.
    fn bar_read(&self, bar: u8, offset: u64, buf: &mut [u8]) -> Result<()>;
    /// One aligned access of 1, 2, 4 or 8 bytes. May be posted: ordered before any later read, not yet done on return.
    fn bar_write(&self, bar: u8, offset: u64, data: &[u8]) -> Result<()>;
    /// Maps a part of a BAR; `None`: this range has to be trapped.
    fn bar_map(&self, bar: u8, offset: u64, len: u64) -> Result<Option<Mapping>>;
    /// What the IOMMU allows.
    fn dma_limits(&self) -> Result<DmaLimits>;
    /// Makes memory reachable for the device.
    ///
    /// # Safety
    /// The memory must stay mapped in this process until `dma_unmap`, and no Rust reference to it may be used while the
    /// device may write it.
    unsafe fn dma_map(&self, map: &DmaMap<'_>) -> Result<()>;
    /// Undoes exactly one earlier map. When it returns, the device does not touch the memory any more.
    fn dma_unmap(&self, iova: u64, len: usize) -> Result<()>;
    /// Number of MSI-X vectors.
    fn msix_count(&self) -> Result<u32>;
    /// Connects vectors 0.. to event fds (`None`: left off); an empty slice turns MSI-X off. Replaces what was set before.
    fn msix_set(&self, fds: &[Option<BorrowedFd<'_>>]) -> Result<()>;
    /// Function-level reset. DMA maps stay; MSI-X and the command register must be set again.
    fn reset(&self) -> Result<()>;
    /// Readable when `next_event` has news.
    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// News, oldest first.
    fn next_event(&self) -> Option<FunctionEvent> {
        None
    }
    /// Called by wait loops. A model that shares the caller's timeline advances its time here.
    fn relax(&self) {
        std::hint::spin_loop();
    }
}
