//! Suites over the whole of Ferroce, and what they share.

pub mod beside;
pub mod conformance;
pub mod datagrams;
pub mod mix;
pub mod words;

use driver::qp::{Path, QpSizes};
use driver::{Access, Completion, Cq, Data, Device, Flags, Gid, Mr, OpenOptions, Operation, PciFunction, Pd, Port};
use fabric::SimFunction;
use nic::Frame;
use std::sync::Arc;
use testbed::{Connect, Host, Pair, Testbed};

/// Value of memory that nothing may write.
pub const GUARD: u8 = 0xa5;

/// Bytes that differ from place to place and from seed to seed.
pub fn noise(seed: u64) -> impl Fn(usize) -> u8 {
    move |i| ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed) >> 29) as u8
}

/// The way to QP `qpn` of `gid`'s host, whose first PSN is `psn`; without READs.
pub fn path_to(gid: Gid, qpn: u32, mtu: u32, psn: u32) -> Path {
    Path {
        qpn,
        psn,
        ip: gid.ip,
        mac: gid.mac,
        mtu,
        gid: 0,
        traffic_class: 0,
        priority: 0,
        source_port: 0xc000,
        max_dest_reads: 0,
        min_rnr_timer: 0,
    }
}

/// Resets NIC 0 by `function` and opens it anew, as a driver does that has lost its predecessor. The old host's objects are
/// returned: the device knows nothing of them any more.
pub fn reopen(bed: &mut Testbed, function: Arc<SimFunction>) -> Host {
    reopen_as(bed, 0, function, OpenOptions::default().owner)
}

/// The same with NIC `i`, on behalf of doorbell page `owner`.
pub fn reopen_as(bed: &mut Testbed, i: usize, function: Arc<SimFunction>, owner: u16) -> Host {
    function.reset().unwrap();
    let firmware = Some(std::fs::read(verilate::firmware_image().unwrap()).unwrap());
    let device = Device::open(function, &OpenOptions { firmware, owner }).unwrap();
    let gid = bed.hosts[i].gid;
    device.set_port(&Port::new(gid.mac)).unwrap();
    device.set_gid(0, Some(gid)).unwrap();
    let (pd, eq) = (device.create_pd().unwrap(), device.create_eq(1024, 0, 0, 0).unwrap());
    std::mem::replace(&mut bed.hosts[i], Host { device, pd, eq, gid })
}

/// A region full of `fill`.
pub fn region(pd: &Pd, len: usize, access: Access, fill: impl Fn(usize) -> u8) -> Mr {
    let mr = pd.alloc(len, access).unwrap();
    mr.write(0, &(0..len).map(fill).collect::<Vec<_>>());
    mr
}

/// All bytes of a region.
pub fn bytes(mr: &Mr) -> Vec<u8> {
    let mut all = vec![0; mr.len()];
    mr.read(0, &mut all);
    all
}

/// True when all bytes of `range` are guards.
pub fn is_guard(mr: &Mr, range: std::ops::Range<usize>) -> bool {
    bytes(mr)[range].iter().all(|b| *b == GUARD)
}

/// The next completion; panics with `what` when none comes in 20,000 windows (half a million cycles and more).
pub fn wait(bed: &Testbed, cq: &mut Cq, what: &str) -> Completion {
    for _ in 0..20_000 {
        if let Some(c) = cq.poll().next() {
            return c;
        }
        bed.relax();
    }
    panic!("{what}: nothing completes")
}

/// Lets `windows` windows pass.
pub fn pass(bed: &Testbed, windows: usize) {
    (0..windows).for_each(|_| bed.relax());
}

/// No DMA outside of the maps, no health bit but "firmware runs", on both NICs.
pub fn assert_sound(bed: &Testbed, what: &str) {
    for (i, host) in bed.hosts.iter().enumerate() {
        let faults = bed.sim().nic(i).host.iommu.take_faults();
        assert!(faults.is_empty(), "{what}: NIC {i}, DMA outside of the maps: {faults:x?}");
        assert_eq!(host.device.health(), 1, "{what}: health of NIC {i}");
    }
}

/// Lets a frame arrive at a NIC's MAC, behind those that are on their way.
pub fn inject(bed: &Testbed, nic: usize, data: Vec<u8>, error: bool) {
    let mut sim = bed.sim();
    let at = sim.nic(nic).now();
    sim.nic(nic).receive(Frame { at, data, error });
}

/// Bytes of the regions of a [`Bystander`].
pub const LEN: usize = 2000;

/// Pairs with small queues and an MTU of 1024.
pub fn small_pairs() -> Connect {
    Connect { mtu: 1024, sizes: QpSizes::new(64, 16), ..Connect::default() }
}

/// A pair that must not notice, and its memory.
pub struct Bystander {
    /// The pair.
    pub pair: Pair,
    source: Mr,
    target: Mr,
    /// Memory that nobody may write, on either side.
    guards: [Mr; 2],
}

impl Bystander {
    /// Connects it.
    pub fn new(bed: &Testbed) -> Self {
        Bystander {
            pair: bed.connect(&small_pairs()).unwrap(),
            source: region(&bed.hosts[0].pd, LEN, Access::all(), noise(3)),
            target: region(&bed.hosts[1].pd, LEN, Access::all(), |_| GUARD),
            guards: [0, 1].map(|i| region(&bed.hosts[i].pd, LEN, Access::all(), |_| GUARD)),
        }
    }

    /// The pair still works, and the guards are whole.
    pub fn check(&mut self, bed: &Testbed, what: &str) {
        self.target.write(0, &[GUARD; LEN]);
        let mut batch = self.pair.a.qp.post();
        let to = Operation::Write(self.target.remote(0));
        batch.add(9, to, Data::Sges(&[self.source.sge(0, LEN)]), Flags::empty()).unwrap();
        batch
            .add(9, Operation::Read(self.target.remote(0)), Data::Sges(&[self.source.sge(0, LEN)]), Flags::SIGNALED)
            .unwrap();
        batch.ring();
        wait(bed, &mut self.pair.a.cq, what).status.unwrap_or_else(|e| panic!("{what}: bystander: {e}"));
        assert!(bytes(&self.target) == bytes(&self.source), "{what}: the bystander's data");
        self.guards.iter().for_each(|g| assert_eq!(bytes(g), [GUARD; LEN], "{what}: guards"));
    }
}

/// Frames of a classic little-endian pcap file.
pub fn pcap(file: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut rest = &file[24..];
    while rest.len() > 16 {
        let len = u32::from_le_bytes(rest[8..12].try_into().expect("four bytes")) as usize;
        frames.push(rest[16..16 + len].to_vec());
        rest = &rest[16 + len..];
    }
    frames
}

/// The captures in `tests/captures`, by name.
pub fn captures_by_name() -> Vec<(String, Vec<u8>)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/captures");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    let name = |p: &std::path::PathBuf| p.file_stem().unwrap().to_string_lossy().into_owned();
    paths.iter().map(|p| (name(p), std::fs::read(p).unwrap())).collect()
}

/// All their frames.
pub fn captures() -> Vec<Vec<u8>> {
    captures_by_name().iter().flat_map(|(_, file)| pcap(file)).collect()
}

/// Makes the IPv4 header checksum and the ICRC of a RoCE v2 frame over untagged IPv4 right again, so that a change in it
/// gets past the ingress.
pub fn seal(frame: &mut [u8]) {
    let (ip, end) = (14, frame.len() - 4);
    if end < ip + 40 {
        return;
    }
    frame[ip + 10..ip + 12].fill(0);
    let sum = frame[ip..ip + 20].as_chunks::<2>().0.iter().map(|w| u32::from(u16::from_be_bytes(*w))).sum::<u32>();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    frame[ip + 10..ip + 12].copy_from_slice(&(!folded as u16).to_be_bytes());
    // Fields that change on the way count as ones (IBTA annex A17.3.3).
    let mut image = [vec![0xff; 8], frame[ip..end].to_vec()].concat();
    [1, 8, 10, 11, 26, 27, 32].iter().for_each(|i| image[8 + i] = 0xff);
    let crc = !image.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |c, _| c >> 1 ^ if c & 1 == 1 { 0xedb8_8320 } else { 0 })
    });
    frame[end..].copy_from_slice(&crc.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealing_a_captured_frame_changes_nothing() {
        let roce = |f: &Vec<u8>| f[12..15] == [8, 0, 0x45] && f[23] == 17 && f[36..38] == 4791u16.to_be_bytes();
        let frames: Vec<_> = captures().into_iter().filter(roce).collect();
        assert!(frames.len() > 300);
        for frame in frames {
            let mut sealed = frame.clone();
            seal(&mut sealed);
            assert_eq!(sealed, frame);
        }
    }
}
