//! Frames that no sound peer sends: each is counted under one name and dropped, or answered by rule; memory stays as it is, and
//! others go on.

use abi::status::counter;
use driver::{Access, Data, Flags, Operation};
use ferroce_tests::{
    Bystander, GUARD, LEN, assert_sound, bytes, captures, inject, noise, pass, region, seal, small_pairs, wait,
};
use rand::{Rng, RngExt};
use testbed::{Setup, Testbed};

/// MAC and IP of host 1.
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const IP: [u8; 4] = [10, 0, 0, 2];
/// Where headers start in an untagged frame over IPv4.
const IP_AT: usize = 14;
const UDP_AT: usize = 34;
const BTH_AT: usize = 42;
const RETH_AT: usize = 54;

/// The verdict counters of host 1.
fn verdicts(bed: &Testbed) -> Vec<u64> {
    (0..counter::RX_CE).map(|i| bed.hosts[1].device.counter(i)).collect()
}

/// What was counted since `before`: the name of each verdict, as often as it was given.
fn counted(bed: &Testbed, before: &[u64]) -> Vec<(&'static str, u64)> {
    let now = verdicts(bed);
    let names = counter::NAMES.iter().map(|n| n.0);
    names.zip(now.iter().zip(before)).filter(|(_, (n, b))| n > b).map(|(name, (n, b))| (name, n - b)).collect()
}

/// Random bytes in frames of every length that a link carries, and longer: of no meaning at all, and behind headers that lead them
/// as far into the NIC as random bytes get.
#[test]
fn random_bytes_of_every_length_are_counted_and_dropped() {
    let mut rng = verilate::rng(31);
    let bed = Testbed::new(&Setup::default()).unwrap();
    let mut bystander = Bystander::new(&bed);
    let before = verdicts(&bed);
    let (mut sent, longest) = (0, 9_200);
    for from in (1..=longest).step_by(100) {
        for len in from..from + 100 {
            let mut frame = vec![0; len];
            rng.fill_bytes(&mut frame);
            if len > 58 && len % 4 != 0 {
                frame[..6].copy_from_slice(&MAC);
                frame[12..15].copy_from_slice(&[8, 0, 0x45]);
                frame[30..34].copy_from_slice(&IP);
                if len % 4 > 1 {
                    frame[16..18].copy_from_slice(&(len as u16 - 14).to_be_bytes());
                    frame[20..24].copy_from_slice(&[0x40, 0, 64, 17]);
                    frame[36..40].copy_from_slice(&[0x12, 0xb7, ((len - 34) >> 8) as u8, (len - 34) as u8]);
                    frame[40..42].fill(0);
                    seal(&mut frame);
                }
            }
            inject(&bed, 1, frame, false);
            sent += 1;
        }
        while bed.sim().nic(1).is_busy() {
            bed.relax();
        }
    }
    pass(&bed, 20);
    let all = counted(&bed, &before);
    println!("{all:?}");
    assert_eq!(all.iter().map(|c| c.1).sum::<u64>(), sent, "each frame has one verdict: {all:?}");
    assert!(all.iter().all(|c| c.0 != "RX_ACCEPTED"), "{all:?}");
    assert!(all.iter().any(|c| c.0 == "RX_OPCODE"), "some got past the ICRC: {all:?}");
    bystander.check(&bed, "after random bytes");
    assert_sound(&bed, "random bytes");
}

/// Sets a big-endian field.
fn set(frame: &mut [u8], at: usize, bytes: usize, value: u64) {
    frame[at..at + bytes].copy_from_slice(&value.to_be_bytes()[8 - bytes..]);
}

/// A sound WRITE that is spoilt in one place, everything else made to fit, has the verdict of that place; what a checksum would
/// reveal is left wrong only where the checksum is the place.
#[test]
fn a_frame_that_contradicts_itself_has_the_verdict_of_its_fault() {
    const PAYLOAD: usize = 100;
    type Spoil = fn(&mut Vec<u8>);
    // Name, what is spoilt, whether checksums are made right after, verdict.
    let cases: &[(&str, Spoil, bool, &str)] = &[
        ("IP version 5", |f| f[IP_AT] = 0x55, true, "RX_RAW_DROPPED"),
        ("IP header of 24 bytes", |f| f[IP_AT] = 0x46, true, "RX_RAW_DROPPED"),
        ("IP header of 16 bytes", |f| f[IP_AT] = 0x44, true, "RX_RAW_DROPPED"),
        ("a fragment", |f| f[IP_AT + 6] = 0x20, true, "RX_IP_UNSUPPORTED"),
        ("IP length 4 short", |f| set(f, IP_AT + 2, 2, 160 - 4), true, "RX_MALFORMED"),
        ("IP length 4 long", |f| set(f, IP_AT + 2, 2, 160 + 4), true, "RX_MALFORMED"),
        ("IP length 0", |f| set(f, IP_AT + 2, 2, 0), true, "RX_MALFORMED"),
        ("IP length 65535", |f| set(f, IP_AT + 2, 2, 0xffff), true, "RX_MALFORMED"),
        ("UDP length 4 short", |f| set(f, UDP_AT + 4, 2, 140 - 4), true, "RX_MALFORMED"),
        ("UDP length 4 long", |f| set(f, UDP_AT + 4, 2, 140 + 4), true, "RX_MALFORMED"),
        ("UDP length 0", |f| set(f, UDP_AT + 4, 2, 0), true, "RX_MALFORMED"),
        ("IP checksum", |f| f[IP_AT + 10] ^= 1, false, "RX_IP_CHECKSUM"),
        ("UDP checksum", |f| set(f, UDP_AT + 6, 2, 0x1234), true, "RX_IP_CHECKSUM"),
        ("ICRC", |f| *f.last_mut().unwrap() ^= 1, false, "RX_ICRC"),
        ("a bit of the payload", |f| f[80] ^= 4, false, "RX_ICRC"),
        ("a byte less", |f| f.truncate(173), false, "RX_MALFORMED"),
        ("another UDP port", |f| set(f, UDP_AT + 2, 2, 4790), true, "RX_RAW_DROPPED"),
        ("transport version 1", |f| f[BTH_AT + 1] |= 1, true, "RX_OPCODE"),
        ("a reserved opcode", |f| f[BTH_AT] = 0x1f, true, "RX_OPCODE"),
        ("an opcode of XRC", |f| f[BTH_AT] = 0xaa, true, "RX_OPCODE"),
        ("another MAC", |f| f[5] = 77, true, "RX_ADDRESS"),
        ("another IP", |f| f[IP_AT + 19] = 77, true, "RX_ADDRESS"),
        ("a VLAN tag", |f| drop(f.splice(12..12, [0x81, 0, 0, 5])), false, "RX_ADDRESS"),
        ("a QP that nobody has", |f| set(f, BTH_AT + 5, 3, 250), true, "RX_QP_STATE"),
        ("a QP beyond all", |f| set(f, BTH_AT + 5, 3, 0xff_fff0), true, "RX_QP_STATE"),
        ("the opcode of another transport", |f| f[BTH_AT] = 0x2a, true, "RX_QP_TYPE"),
        ("another source IP", |f| f[IP_AT + 15] = 77, true, "RX_QP_PEER"),
        ("another P_Key", |f| set(f, BTH_AT + 2, 2, 0x1234), true, "RX_PKEY"),
        ("a PSN ahead", |f| f[BTH_AT + 11] += 1, true, "RX_OUT_OF_SEQUENCE"),
        ("a DMA length below the payload", |f| set(f, RETH_AT + 12, 4, 99), true, "RX_INVALID_REQUEST"),
        ("a DMA length above the payload", |f| set(f, RETH_AT + 12, 4, 101), true, "RX_INVALID_REQUEST"),
        ("a DMA length above 2^31", |f| set(f, RETH_AT + 12, 4, 0x8000_0001), true, "RX_INVALID_REQUEST"),
        ("a pad that leaves 99 bytes", |f| f[BTH_AT + 1] |= 0x10, true, "RX_INVALID_REQUEST"),
        ("a MIDDLE without a FIRST", |f| f[BTH_AT] = 7, true, "RX_INVALID_REQUEST"),
        ("another key", |f| f[RETH_AT + 11] ^= 1, true, "RX_REMOTE_ACCESS"),
        ("the end of the memory", |f| set(f, RETH_AT, 8, u64::MAX - 9), true, "RX_REMOTE_ACCESS"),
    ];
    let bed = Testbed::new(&Setup::default()).unwrap();
    let mut bystander = Bystander::new(&bed);
    let source = region(&bed.hosts[0].pd, LEN, Access::all(), noise(9));
    let target = region(&bed.hosts[1].pd, LEN, Access::all(), |_| GUARD);
    let mut wrong = Vec::new();
    for (what, spoil, sealed, want) in cases {
        // A sound frame of this pair is the material; the next PSN is expected after it.
        let mut pair = bed.connect(&small_pairs()).unwrap();
        let (tell, frames) = std::sync::mpsc::channel();
        bed.sim().tap(Some(Box::new(move |nic, frame, _| {
            let _ = (nic == 0).then(|| tell.send(frame.data.clone()));
        })));
        let mut batch = pair.a.qp.post();
        let data = Data::Sges(&[source.sge(0, PAYLOAD)]);
        batch.add(1, Operation::Write(target.remote(0)), data, Flags::SIGNALED).unwrap();
        batch.ring();
        wait(&bed, &mut pair.a.cq, what).status.unwrap();
        bed.sim().tap(None);
        let mut sound: Vec<u8> = frames.try_iter().next().unwrap();
        assert_eq!((sound.len(), sound[BTH_AT]), (174, 0x0a), "a WRITE ONLY of {PAYLOAD} bytes");
        sound[BTH_AT + 11] += 1;
        seal(&mut sound);
        target.write(0, &[GUARD; LEN]);

        let mut frame = sound.clone();
        spoil(&mut frame);
        if *sealed {
            seal(&mut frame);
        }
        let before = verdicts(&bed);
        inject(&bed, 1, frame, false);
        pass(&bed, 60);
        let got = counted(&bed, &before);
        if !got.iter().map(|c| c.0).eq(want.split(' ')) || got.iter().any(|c| c.1 != 1) {
            wrong.push(format!("{what}: {got:?}, want {want}"));
        }
        assert!(bytes(&target) == [GUARD; LEN], "{what}: memory was written");
        // What does not end the QP leaves it where it was: the sound frame is still the expected one.
        let ends = ["RX_INVALID_REQUEST", "RX_REMOTE_ACCESS"].contains(want);
        inject(&bed, 1, sound, false);
        pass(&bed, 60);
        let landed = bytes(&target)[..PAYLOAD] == bytes(&source)[..PAYLOAD];
        assert_eq!(landed, !ends, "{what}: the sound frame after it");
        target.write(0, &[GUARD; LEN]);
        bystander.check(&bed, what);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_sound(&bed, "contradictions");
}

/// A sound frame cut anywhere, its lengths left as they were or made to fit the rest.
#[test]
fn headers_that_are_cut_are_dropped() {
    let bed = Testbed::new(&Setup::default()).unwrap();
    let mut bystander = Bystander::new(&bed);
    let frames = genuine(&bed, &mut bystander);
    let sound = frames.iter().find(|f| f[BTH_AT] == 0x06).expect("a WRITE FIRST");
    let before = verdicts(&bed);
    let mut sent = 0;
    for len in 1..RETH_AT + 16 + 4 {
        for fit in [false, true] {
            let mut frame = sound[..len].to_vec();
            if fit && len >= BTH_AT {
                set(&mut frame, IP_AT + 2, 2, (len - IP_AT) as u64);
                set(&mut frame, UDP_AT + 4, 2, (len - UDP_AT) as u64);
                seal(&mut frame);
            }
            inject(&bed, 1, frame, false);
            sent += 1;
        }
    }
    pass(&bed, 200);
    let all = counted(&bed, &before);
    assert_eq!(all.iter().map(|c| c.1).sum::<u64>(), sent, "{all:?}");
    let cut = ["RX_MALFORMED", "RX_IP_CHECKSUM", "RX_ICRC", "RX_RAW_DROPPED", "RX_ADDRESS"];
    assert!(all.iter().all(|c| cut.contains(&c.0)), "{all:?}");
    bystander.check(&bed, "after cut headers");
    assert_sound(&bed, "cut headers");
}

/// Frames that the two NICs send each other, as material for mutations.
fn genuine(bed: &Testbed, bystander: &mut Bystander) -> Vec<Vec<u8>> {
    let (tell, frames) = std::sync::mpsc::channel();
    bed.sim().tap(Some(Box::new(move |_, frame, _| tell.send(frame.data.clone()).unwrap_or(()))));
    bystander.check(bed, "before");
    bed.sim().tap(None);
    frames.try_iter().collect()
}

#[test]
fn any_frame_is_counted_and_dropped() {
    let mut rng = verilate::rng(77);
    let bed = Testbed::new(&Setup::default()).unwrap();
    let mut bystander = Bystander::new(&bed);
    let real = genuine(&bed, &mut bystander);
    let captured = captures();
    for round in 0..verilate::scale(10) {
        // The frames that get through the ingress meet this one, which is in error sooner or later.
        let victim = bed.connect(&small_pairs()).unwrap();
        for _ in 0..100 {
            let mut frame = match rng.random_range(0..5) {
                0 => {
                    let len = [rng.random_range(1..200), rng.random_range(1..9200)][rng.random_range(0..2)];
                    (0..len).map(|_| rng.random()).collect()
                }
                1 => real[rng.random_range(0..real.len())].clone(),
                2 => {
                    let mut f = real[rng.random_range(0..real.len())].clone();
                    f[42] = rng.random_range(0..0x18);
                    f[47..50].copy_from_slice(&victim.b.qp.qpn().to_be_bytes()[1..]);
                    f[51..54].copy_from_slice(&[0, 0, rng.random_range(0..4)]);
                    f
                }
                _ => captured[rng.random_range(0..captured.len())].clone(),
            };
            // To us, cut or grown, with a few bytes changed; some get past the checksums with that.
            if rng.random_bool(0.8) && frame.len() > 34 {
                frame[..6].copy_from_slice(&MAC);
                frame[30..34].copy_from_slice(&IP);
            }
            for _ in 0..rng.random_range(1..4) {
                let at = rng.random_range(0..frame.len());
                frame[at] = rng.random();
            }
            if rng.random_bool(0.3) {
                frame.truncate(rng.random_range(1..=frame.len()));
            } else if rng.random_bool(0.1) {
                frame.resize(frame.len() + rng.random_range(1..100), 0);
            }
            let sealed = rng.random_bool(0.7);
            // A changed frame that is sealed must not be one that the bystander's pair would take.
            let ours = |f: &[u8]| f.len() > 50 && f[47..50] == bystander.pair.b.qp.qpn().to_be_bytes()[1..];
            if sealed && frame.len() > 58 && !ours(&frame) {
                seal(&mut frame);
            }
            inject(&bed, 1, frame, rng.random_bool(0.05));
        }
        pass(&bed, 300);
        bystander.check(&bed, &format!("round {round}"));
    }
    let device = &bed.hosts[1].device;
    for (i, (name, _)) in counter::NAMES.iter().enumerate().filter(|c| c.1.0.starts_with("RX_")) {
        println!("{name:20} {}", device.counter(i));
    }
    assert_sound(&bed, "any frame");
}
