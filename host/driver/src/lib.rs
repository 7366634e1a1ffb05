//! The host driver: a PCIe function, rings and doorbells, memory, and verbs objects with owned handles.
//!
//! ```no_run
//! # use driver::*; use std::sync::Arc;
//! # fn go(function: Arc<dyn PciFunction>, path: qp::Path) -> Result<()> {
//! let device = Device::open(function, &OpenOptions::default())?;
//! let pd = device.create_pd()?;
//! let mr = pd.alloc(1 << 20, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
//! let eq = device.create_eq(256, 0, 0, 0)?;
//! let mut cq = device.create_cq(256, &eq)?;
//! let sizes = qp::QpSizes::new(256, 64);
//! let mut qp = pd.create_qp(&cq, &cq, sizes)?.init(Access::REMOTE_WRITE)?.rtr(&path)?.rts(&Default::default())?;
//! let mut batch = qp.post();
//! batch.add(1, Operation::Send, Data::Sges(&[mr.sge(0, 4096)]), Flags::SIGNALED)?;
//! batch.ring();
//! cq.wait().status.unwrap();
//! # Ok(()) }
//! ```

/// As `eprintln!`, but does not panic where nobody reads standard error any more (`2>&1 | head`): destructors say things.
#[doc(hidden)]
#[macro_export]
macro_rules! note {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

mod ah;
pub mod bar;
mod command;
mod config;
mod cq;
mod device;
mod fence;
mod firmware;
mod forgotten;
pub mod function;
mod life;
mod memory;
mod mr;
mod multicast;
mod neighbour;
mod patience;
mod post;
mod posted;
pub mod qp;
mod rate;
mod receive;
pub mod registers;
mod srq;
#[cfg(test)]
mod testing;

pub use ah::{AddressHandle, AddressVector, Destination};
pub use cq::{Completion, Cq, Eq, Event, WcError};
pub use device::{Device, Gid, Limits, OpenOptions, Port};
pub use function::{Error, PciFunction, Result};
pub use mr::{Access, Binding, FastMr, Mr, Mw, Pd, Registration, Remote, Sge, Translation};
pub use multicast::Group;
pub use neighbour::{Network, NetworkOptions};
pub use post::{Data, Flags, Operation, Post};
pub use qp::Qp;
pub use rate::RateLimit;
pub use receive::PostRecv;
pub use srq::{MAX_SHARED_RECEIVES, PostShared, Srq, SrqInfo};
