//! Reference frames and the reference ICRC, for the tests of this room.

use std::path::Path;

/// Frames with a known ICRC, RoCE v2 over Ethernet: hardware and Soft-RoCE captures, and three made by hand.
pub const GOLDEN: [&str; 6] = [
    "e41d2dab2bc27cfe90643b32080045c2003c718c4000401191610a0011010a001201000012b7002800008100ffff400001180000000000000000\
     00000000000000000000000082fd002a",
    "000000000000000000000000080045010040047840004011b4d5c0a80007c0a80007c00012b7002caca22460ffff000000d300cf17104630818be\
     28935d90e9a95505401be885e50000078f353f3",
    "00000000000000000000000086dd6e21face002c11ff2022000000000000000000000000102320230000000000000000000000001024c00012b7\
     002ce7c52460ffff000000d300cf17104630818be28935d90e9a95505401be885e5000003e5b743b",
    "02000000000202000000000108004502002c00004000401126bd0a0000010a000002c00012b7001800000440ffff000000128000000118\
     39f5ef",
    "02000000000202000000000108004502003000004000401126b90a0000010a000002c00012b7001c00000470ffff0000001200000001aa000000\
     f8ae3af3",
    "02000000000202000000000108004502004400004000401126a50a0000010a000002c00012b7003000000a70ffff000000128000000100000000\
     00001000000012340000000568656c6c6f00000058c5fe85",
];

pub fn unhex(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

/// All RoCE v2 frames of the captures under `tests/captures`.
pub fn captured() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/captures");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let mut frames = vec![];
    for path in paths.iter().filter(|path| path.extension().is_some_and(|e| e == "pcap")) {
        let mut reader = pcap_file::pcap::PcapReader::new(std::fs::File::open(path).unwrap()).unwrap();
        while let Some(packet) = reader.next_packet() {
            let packet = packet.unwrap();
            assert_eq!(packet.data.len(), packet.orig_len as usize, "a truncated frame in {}", path.display());
            frames.push(packet.data.into_owned());
        }
    }
    frames.retain(|frame| {
        let headers = etherparse::SlicedPacket::from_ethernet(frame).unwrap();
        matches!(headers.transport, Some(etherparse::TransportSlice::Udp(udp)) if udp.destination_port() == 4791)
    });
    assert!(frames.len() > 500, "{} captured frames", frames.len());
    frames
}

/// ICRC of a frame that ends before its ICRC, byte by byte from the rule. Ethernet, VLAN tag or not, IPv4 or IPv6.
pub fn icrc_of(frame: &[u8]) -> u32 {
    let ip = if frame[12..14] == [0x81, 0] { 18 } else { 14 };
    let mut bytes = frame[ip..].to_vec();
    let at: &[usize] = if frame[ip - 2..ip] == [0x86, 0xdd] {
        bytes[0] |= 0x0f;
        &[1, 2, 3, 7, 46, 47, 52]
    } else {
        &[1, 8, 10, 11, 26, 27, 32]
    };
    at.iter().for_each(|i| bytes[*i] = 0xff);
    let mut crc = crc32fast::Hasher::new();
    crc.update(&[0xff; 8]);
    crc.update(&bytes);
    crc.finalize()
}
