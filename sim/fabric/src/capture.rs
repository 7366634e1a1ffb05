//! Writes what passes a link as pcapng, each packet with a comment: what it is, what became of it. So a packet waits for its
//! receiver's verdict, and those sent after it wait behind it.

use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
use pcap_file::{DataLink, PcapError};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Duration;

/// An open capture file.
pub struct Capture {
    out: PcapNgWriter<BufWriter<File>>,
    packets: u64,
    /// Packets that are not written yet, in the order of sending.
    pending: VecDeque<Pending>,
}

/// A packet with arrivals whose verdict is not known yet.
struct Pending {
    interface: u32,
    ns: u64,
    frame: Vec<u8>,
    comment: String,
    arrivals: u32,
}

impl Capture {
    /// Creates the file with one interface for each name; time stamps count nanoseconds of simulated time.
    pub fn create(path: &Path, interfaces: &[&str]) -> io::Result<Self> {
        let mut out = PcapNgWriter::new(BufWriter::new(File::create(path)?)).map_err(plain)?;
        for name in interfaces {
            let options =
                vec![InterfaceDescriptionOption::IfName(Cow::Borrowed(name)), InterfaceDescriptionOption::IfTsResol(9)];
            out.write_pcapng_block(InterfaceDescriptionBlock { linktype: DataLink::ETHERNET, snaplen: 0, options })
                .map_err(plain)?;
        }
        Ok(Capture { out, packets: 0, pending: VecDeque::new() })
    }

    /// Adds a frame that passed `interface` at `ns`, with what is known of it, and that arrives `arrivals` times. Returns its
    /// number.
    pub fn add(&mut self, interface: u32, ns: u64, frame: &[u8], comment: String, arrivals: u32) -> io::Result<u64> {
        self.pending.push_back(Pending { interface, ns, frame: frame.to_vec(), comment, arrivals });
        self.packets += 1;
        self.write(false)?;
        Ok(self.packets - 1)
    }

    /// An arrival of frame `number` had this verdict.
    pub fn judge(&mut self, number: u64, verdict: &str) -> io::Result<()> {
        let first = self.packets - self.pending.len() as u64;
        let p = &mut self.pending[(number - first) as usize];
        p.comment = format!("{}; {verdict}", p.comment);
        p.arrivals -= 1;
        self.write(false)
    }

    /// Writes what is known, or everything.
    fn write(&mut self, everything: bool) -> io::Result<()> {
        while self.pending.front().is_some_and(|p| everything || p.arrivals == 0) {
            let p = self.pending.pop_front().expect("just seen");
            let open = if p.arrivals > 0 { "; on its way when the capture ended" } else { "" };
            self.out
                .write_pcapng_block(EnhancedPacketBlock {
                    interface_id: p.interface,
                    timestamp: Duration::from_nanos(p.ns),
                    original_len: p.frame.len() as u32,
                    data: Cow::Borrowed(&p.frame),
                    options: vec![EnhancedPacketOption::Comment(Cow::Owned(p.comment + open))],
                })
                .map_err(plain)?;
        }
        Ok(())
    }

    /// Writes what is left. Returns the number of packets.
    pub fn finish(mut self) -> io::Result<u64> {
        self.write(true)?;
        self.out.get_mut().flush()?;
        Ok(self.packets)
    }
}

/// The error of the file, without the library's words around it.
fn plain(e: PcapError) -> io::Error {
    match e {
        PcapError::IoError(e) => e,
        other => io::Error::other(other),
    }
}
