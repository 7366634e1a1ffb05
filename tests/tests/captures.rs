//! Captures are what other programs take them for: tshark decodes every packet, an independent program agrees with every checksum,
//! and each packet's comment says what its receiver did with it.

use abi::status::counter;
use driver::{Access, Data, Flags, Operation};
use fabric::{Action, Capture, Match, Part};
use ferroce_tests::{GUARD, assert_sound, bytes, noise, pass, region, wait};
use nic::NS;
use std::path::{Path, PathBuf};
use std::process::Command;
use testbed::{Connect, Setup, Testbed};

const LEN: usize = 100_000;

/// WRITEs, a READ and a SEND of 100,000 bytes each under faults, all captured.
fn capture(name: &str, ip6: bool) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let bed = Testbed::new(&Setup { ip6, ..Setup::default() }).unwrap();
    let mut pair = bed.connect(&Connect { mtu: 1024, ..Connect::default() }).unwrap();
    let rw = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let (a, b) = (bed.hosts[0].pd.alloc(LEN, rw).unwrap(), bed.hosts[1].pd.alloc(LEN, rw).unwrap());
    {
        let mut sim = bed.sim();
        sim.capture(Some(Capture::create(&path, &["nic0", "nic1"]).unwrap()));
        let nth = |n| Match { from: Some(0), nth: Some(n), ..Match::default() };
        let rules = &mut sim.link_mut(0).rules;
        rules.add(nth(10), Action::Drop);
        rules.add(nth(40), Action::Duplicate);
        rules.add(nth(90), Action::Corrupt(Part::Any));
    }
    pair.b.qp.post_recv(0, &[b.sge(0, LEN)]).unwrap();
    for operation in [Operation::Write(b.remote(0)), Operation::Read(b.remote(0)), Operation::Send] {
        let mut batch = pair.a.qp.post();
        batch.add(0, operation, Data::Sges(&[a.sge(0, LEN)]), Flags::SIGNALED).unwrap();
        batch.ring();
        let done = pair.a.cq.wait();
        done.status.unwrap_or_else(|e| panic!("{e}: {done:?}"));
    }
    pair.b.cq.wait().status.unwrap();
    (0..20).for_each(|_| bed.relax()); // the last ACK arrives
    bed.sim().capture(None).unwrap().finish().unwrap();
    path
}

/// The packets' comments, from a program that has checked lengths and checksums of all but the corrupted one.
fn checked(path: &Path) -> Vec<String> {
    let tool = concat!(env!("CARGO_MANIFEST_DIR"), "/tools/icrc.py");
    let out = Command::new("python3").args([Path::new(tool), path]).output().expect("python3");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap().lines().map(String::from).collect()
}

/// How many packets of the file tshark shows under this filter.
fn tshark(path: &Path, filter: &str) -> Option<usize> {
    let mut command = Command::new("tshark");
    // Its guess that port 4791 may carry RPC over RDMA finds malformed packets in any payload.
    command.args(["--disable-protocol", "rpcordma", "-n", "-Y", filter, "-r"]).arg(path);
    let Ok(out) = command.output() else {
        verilate::skip("tshark is not installed, so the capture was not decoded by it");
        return None;
    };
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    Some(String::from_utf8_lossy(&out.stdout).lines().count())
}

fn captures_stand(name: &str, ip6: bool) {
    let path = capture(name, ip6);
    let comments = checked(&path);
    let with = |what: &str| comments.iter().filter(|c| c.contains(what)).count();
    assert!(comments.len() > 3 * LEN / 1024);
    for c in &comments {
        assert!(c.contains("; at NIC ") || c.contains("; lost on the link"), "no verdict: {c}");
    }
    assert_eq!(with("lost on the link"), 1);
    let twice = comments.iter().find(|c| c.contains("fault rule 2")).unwrap();
    assert!(twice.contains("at NIC 1: RX_ACCEPTED") && twice.contains("at NIC 1: RX_DUPLICATE"), "{twice}");
    let hurt = comments.iter().find(|c| c.contains("fault rule 3")).unwrap();
    assert!(!hurt.contains("RX_ACCEPTED"), "{hurt}");
    assert!(with("at NIC 1: RX_OUT_OF_SEQUENCE") > 0);
    assert!(with("at NIC 0: RX_ACCEPTED") > LEN / 1024, "READ responses");
    if let Some(malformed) = tshark(&path, "_ws.malformed && !(frame.comment contains \"Corrupt\")") {
        assert_eq!(malformed, 0);
        assert!(tshark(&path, "infiniband").unwrap() >= comments.len() - 1);
    }
}

#[test]
fn captures_over_ipv4_stand() {
    captures_stand("ipv4.pcapng", false);
}

#[test]
fn captures_over_ipv6_stand() {
    captures_stand("ipv6.pcapng", true);
}

/// What the driver says by the raw queue pair is ARP and neighbour discovery to others too, checksums included.
#[test]
fn questions_and_answers_of_neighbours_stand() {
    for (ip6, vlan) in [(false, None), (true, None), (false, Some(9)), (true, Some(9))] {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("neighbours{ip6}{}.pcapng", vlan.is_some()));
        let mut bed = Testbed::new(&Setup { ip6, vlan, ..Setup::default() }).unwrap();
        bed.sim().capture(Some(Capture::create(&path, &["nic0", "nic1"]).unwrap()));
        let networks = bed.discover().unwrap();
        (0..20).for_each(|_| bed.relax());
        bed.sim().capture(None).unwrap().finish().unwrap();
        drop(networks);
        let Some(malformed) = tshark(&path, "_ws.malformed || _ws.expert.severity >= \"error\"") else { return };
        assert_eq!(malformed, 0, "{}", path.display());
        // The one that is asked learns who asks: one question, one answer.
        let sound = if ip6 { "icmpv6.checksum.status == 1 && " } else { "" };
        let (asks, tells) = if ip6 {
            (
                "icmpv6.type == 135 && icmpv6.nd.ns.target_address == fd00::1",
                "icmpv6.type == 136 && icmpv6.nd.na.flag.s == 1",
            )
        } else {
            (
                "arp.opcode == 1 && arp.dst.proto_ipv4 == 10.0.0.1",
                "arp.opcode == 2 && arp.dst.hw_mac == 02:00:00:00:00:02",
            )
        };
        let inside = if vlan.is_some() { "vlan.id == 9 && " } else { "!vlan && " };
        for what in [asks, tells] {
            let filter = format!("{inside}{sound}{what} && frame.comment contains \"RX_RAW:\"");
            assert_eq!(tshark(&path, &filter), Some(1), "{filter} in {}", path.display());
        }
    }
}

/// Each kind of fault is named, once, in the comment of the frame that it befell, and is made good; a mark of congestion is counted, and the
/// packet taken.
#[test]
fn each_fault_is_named_with_its_frame() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("each fault.pcapng");
    let bed = Testbed::new(&Setup::small()).unwrap();
    let mut pair = bed.connect(&Connect { mtu: 1024, ..Connect::default() }).unwrap();
    let source = region(&bed.hosts[0].pd, LEN, Access::all(), noise(5));
    let target = region(&bed.hosts[1].pd, LEN, Access::all(), |_| GUARD);
    let faults = [
        Action::Drop,
        Action::Delay(20_000 * NS),
        Action::Duplicate,
        Action::Reorder(2),
        Action::Corrupt(Part::Payload),
        Action::Truncate,
        Action::MarkCe,
    ];
    bed.sim().capture(Some(Capture::create(&path, &["nic0", "nic1"]).unwrap()));
    for (i, fault) in faults.into_iter().enumerate() {
        let nth = Match { from: Some(0), nth: Some(10 * i as u64 + 5), ..Match::default() };
        bed.sim().link_mut(0).rules.add(nth, fault);
    }
    let write = Operation::Write(target.remote(0));
    pair.a.qp.post().add(1, write, Data::Sges(&[source.sge(0, LEN)]), Flags::SIGNALED).unwrap();
    assert_eq!(wait(&bed, &mut pair.a.cq, "a WRITE under faults").status, Ok(()));
    pass(&bed, 400);
    bed.sim().capture(None).unwrap().finish().unwrap();
    assert!(bytes(&target) == bytes(&source));
    assert_eq!(bed.hosts[1].device.counter(counter::RX_CE), 1);
    let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
    let becomes = [
        "lost on the link (fault rule 1)",
        "fault rule 2: Delay(20000000000); at NIC 1: RX_DUPLICATE",
        "fault rule 3: Duplicate; at NIC 1: RX_ACCEPTED",
        "fault rule 4: Reorder(2); at NIC 1: RX_",
        "fault rule 5: Corrupt(Payload); at NIC 1: RX_ICRC",
        "fault rule 6: Truncate; at NIC 1: RX_MALFORMED",
        "fault rule 7: MarkCe; at NIC 1: RX_ACCEPTED",
    ];
    becomes.into_iter().for_each(|what| assert_eq!(text.matches(what).count(), 1, "{what}"));
    assert_eq!(text.matches("fault rule ").count(), faults.len());
    assert_sound(&bed, "each fault");
}
