//! Writes what passes a link as pcapng, each packet with a comment: what it is, what became of it. So a packet waits for its
//! receiver's verdict, and those sent after it wait behind it.

use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
use pcap_file::{DataLink, PcapError};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::fs::{File, TryLockError};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Duration;

/// An open capture file.
pub struct Capture {
    out: PcapNgWriter<BufWriter<File>>,
    packets: u64,
    /// Packets that are not written yet, in the order of sending.
    pending: VecDeque<Pending>,
    /// All packets that were sent before this time are here.
    complete: u64,
}

/// A packet with arrivals whose verdict is not known yet.
struct Pending {
    number: u64,
    interface: u32,
    ns: u64,
    frame: Vec<u8>,
    comment: String,
    arrivals: u32,
}

impl Capture {
    /// Creates the file with one interface for each name; time stamps count nanoseconds of simulated time. One that another
    /// capture is being written to is refused and stays as it is.
    pub fn create(path: &Path, interfaces: &[&str]) -> io::Result<Self> {
        let file = File::options().write(true).create(true).truncate(false).open(path)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => return Err(io::Error::other("another capture is being written to it")),
            // A file system without locks, or a device.
            Err(TryLockError::Error(_)) | Ok(()) => {}
        }
        if file.metadata()?.is_file() {
            file.set_len(0)?;
        }
        let mut out = PcapNgWriter::new(BufWriter::new(file)).map_err(plain)?;
        for name in interfaces {
            let options =
                vec![InterfaceDescriptionOption::IfName(Cow::Borrowed(name)), InterfaceDescriptionOption::IfTsResol(9)];
            out.write_pcapng_block(InterfaceDescriptionBlock { linktype: DataLink::ETHERNET, snaplen: 0, options })
                .map_err(plain)?;
        }
        Ok(Capture { out, packets: 0, pending: VecDeque::new(), complete: 0 })
    }

    /// Adds a frame that passed `interface` at `ns`, with what is known of it, and that arrives `arrivals` times. Returns its
    /// number.
    pub fn add(&mut self, interface: u32, ns: u64, frame: &[u8], comment: String, arrivals: u32) -> io::Result<u64> {
        let number = self.packets;
        // Another end's frames of the same time may have come first.
        let place = self.pending.partition_point(|p| p.ns <= ns);
        self.pending.insert(place, Pending { number, interface, ns, frame: frame.to_vec(), comment, arrivals });
        self.packets += 1;
        Ok(number)
    }

    /// All frames that were sent before `ns` have been added: those whose verdicts are known can be written.
    pub fn all_until(&mut self, ns: u64) -> io::Result<()> {
        self.complete = ns;
        self.write(false)
    }

    /// An arrival of frame `number` had this verdict.
    pub fn judge(&mut self, number: u64, verdict: &str) -> io::Result<()> {
        let p = self.pending.iter_mut().find(|p| p.number == number).expect("a packet waits for its verdicts");
        p.comment = format!("{}; {verdict}", p.comment);
        p.arrivals -= 1;
        Ok(())
    }

    /// Writes what is known, or everything.
    fn write(&mut self, everything: bool) -> io::Result<()> {
        let complete = self.complete;
        while self.pending.front().is_some_and(|p| everything || p.arrivals == 0 && p.ns < complete) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_written_in_the_order_of_their_times() {
        let path = std::env::temp_dir().join(format!("ferroce-order-{}", std::process::id()));
        let mut capture = Capture::create(&path, &["nic0", "nic1"]).unwrap();
        let first = capture.add(0, 70, &[1; 60], "late".into(), 1).unwrap();
        capture.add(1, 30, &[2; 60], "early".into(), 0).unwrap();
        capture.judge(first, "passed").unwrap();
        capture.all_until(50).unwrap();
        capture.add(1, 60, &[3; 60], "between".into(), 0).unwrap();
        assert_eq!(capture.finish().unwrap(), 3);
        let file = std::fs::read(&path).unwrap();
        let mut reader = pcap_file::pcapng::PcapNgReader::new(&file[..]).unwrap();
        let mut seen = Vec::new();
        while let Some(block) = reader.next_block() {
            if let pcap_file::pcapng::Block::EnhancedPacket(packet) = block.unwrap() {
                seen.push(packet.data[0]);
            }
        }
        assert_eq!(seen, [2, 3, 1]);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_file_that_is_being_written_is_not_another_captures() {
        let path = std::env::temp_dir().join(format!("ferroce-capture-{}", std::process::id()));
        std::fs::write(&path, [7; 1000]).unwrap();
        let mut first = Capture::create(&path, &["nic0"]).unwrap();
        first.add(0, 1, &[1; 60], "a frame".into(), 0).unwrap();
        let refused = Capture::create(&path, &["nic0"]).err().expect("taken twice");
        assert!(refused.to_string().contains("another capture"), "{refused}");
        assert_eq!(first.finish().unwrap(), 1);
        // What was there before is gone.
        assert!(std::fs::read(&path).unwrap().len() < 500);
        Capture::create(&path, &["nic0"]).unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}
