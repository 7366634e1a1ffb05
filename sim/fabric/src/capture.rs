//! Writes what passes a link as pcapng, each packet with a comment: what it is, what became of it.

use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
use pcap_file::{DataLink, PcapError};
use std::borrow::Cow;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::time::Duration;

/// An open capture file.
pub struct Capture {
    out: PcapNgWriter<BufWriter<File>>,
    packets: u64,
}

impl Capture {
    /// Creates the file with one interface for each name; time stamps count nanoseconds of simulated time.
    pub fn create(path: &Path, interfaces: &[&str]) -> Result<Self, PcapError> {
        let mut out = PcapNgWriter::new(BufWriter::new(File::create(path).map_err(PcapError::IoError)?))?;
        for name in interfaces {
            let options =
                vec![InterfaceDescriptionOption::IfName(Cow::Borrowed(name)), InterfaceDescriptionOption::IfTsResol(9)];
            out.write_pcapng_block(InterfaceDescriptionBlock { linktype: DataLink::ETHERNET, snaplen: 0, options })?;
        }
        Ok(Capture { out, packets: 0 })
    }

    /// Adds a frame that passed `interface` at `ns` with a comment.
    pub fn add(&mut self, interface: u32, ns: u64, frame: &[u8], comment: &str) -> Result<(), PcapError> {
        self.packets += 1;
        self.out.write_pcapng_block(EnhancedPacketBlock {
            interface_id: interface,
            timestamp: Duration::from_nanos(ns),
            original_len: frame.len() as u32,
            data: Cow::Borrowed(frame),
            options: vec![EnhancedPacketOption::Comment(Cow::Borrowed(comment))],
        })?;
        Ok(())
    }

    /// Frames written.
    pub fn packets(&self) -> u64 {
        self.packets
    }
}
