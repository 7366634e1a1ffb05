//! The firmware image as a file: a header, then the code, a flat binary that is loaded at address 0.

use crate::layout;

/// `header::MAGIC` reads this: "FRFW".
pub const MAGIC: u32 = 0x5746_5246;
/// Version of the firmware of this release. Driver and firmware of one upper half (major) understand each other.
pub const VERSION: u32 = 0x0001_0000;
/// Bytes of the header.
pub const HEADER: usize = 32;

layout! {
    /// Header of the firmware's image file.
    pub mod header: 32 {
        /// `FRFW`.
        MAGIC = 0, 32;
        /// `ABI_VERSION` that the firmware is made for.
        ABI = 32, 32;
        /// Its version, as `bar::FW_VERSION`.
        VERSION = 64, 32;
        /// Bytes of code behind the header.
        LENGTH = 96, 32;
        /// FNV-1a of the code, 64 bits: tells a damaged file, not a forged one.
        HASH = 128, 64;
    }
}

/// Why a file is not loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It does not begin with an image's header.
    NoImage,
    /// Made for another ABI: its version.
    Abi(u32),
    /// Of another release: its version.
    Version(u32),
    /// The code ends early, or goes on behind its end: bytes that the header tells of, and bytes that are there.
    Length(u32, usize),
    /// More code than the soft core has memory.
    TooLong(u32),
    /// The code is not what was hashed: the header's hash, and the code's.
    Hash(u64, u64),
}

/// FNV-1a.
pub fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ *b as u64).wrapping_mul(0x0100_0000_01b3))
}

/// The header of an image of `code`.
pub fn header_of(code: &[u8]) -> [u8; HEADER] {
    let mut h = [0; HEADER];
    header::MAGIC.set(&mut h, MAGIC.into());
    header::ABI.set(&mut h, crate::ABI_VERSION.into());
    header::VERSION.set(&mut h, VERSION.into());
    header::LENGTH.set(&mut h, code.len() as u64);
    header::HASH.set(&mut h, hash(code));
    h
}

/// Version and code of an image that this release can load.
pub fn open(file: &[u8]) -> Result<(u32, &[u8]), Fault> {
    let (head, code) = file.split_at_checked(HEADER).ok_or(Fault::NoImage)?;
    let get = |f: crate::Field| f.get(head);
    if get(header::MAGIC) != MAGIC as u64 {
        return Err(Fault::NoImage);
    }
    let (abi, version, bytes) = (get(header::ABI) as u32, get(header::VERSION) as u32, get(header::LENGTH) as u32);
    if abi >> 16 != crate::ABI_VERSION >> 16 {
        return Err(Fault::Abi(abi));
    }
    if version >> 16 != VERSION >> 16 {
        return Err(Fault::Version(version));
    }
    if bytes as usize > crate::mmio::NEAR_BYTES {
        return Err(Fault::TooLong(bytes));
    }
    if bytes as usize != code.len() {
        return Err(Fault::Length(bytes, code.len()));
    }
    match (get(header::HASH), hash(code)) {
        (told, is) if told != is => Err(Fault::Hash(told, is)),
        _ => Ok((version, code)),
    }
}
