use super::bench::*;
use crate::{
    msg::*,
    wire::{
        egress::FAULTS,
        testing::{captured, icrc_of},
    },
};
use abi::{
    queue::ud_target,
    status::{cause, counter},
    table::{id, qp_send},
    wire::{op, op_info},
};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::collections::VecDeque;
use verilate::{bench::Stall, scale};

fn be(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |n, b| n << 8 | u64::from(*b))
}

/// Soft-RoCE's frames, decoded and sent again, come out bit for bit. It differs from us in two ways, which are evened
/// out first: it numbers IPv4 packets (we send identification 0, as RFC 6864 allows with DF set; header checksum and
/// ICRC follow), and it leaves the padding of frames under 60 bytes to its MAC.
fn captures<const W: usize>() {
    let mut b = Bench::new::<W>(model::<W>(), Stall::Random, 1);
    b.host.memory.truncate(MEMORY);
    let mut want = VecDeque::new();
    let mut at = 0;
    let mut opcodes = std::collections::BTreeSet::new();
    for mut frame in captured() {
        let ip6 = frame[12..14] == [0x86, 0xdd];
        let (ip, udp) = if ip6 { (14, 54) } else { (14, 34) };
        let bth = udp + 8;
        let opcode = frame[bth];
        let info = op_info(opcode).unwrap();
        let body = frame.len() - 4;
        assert_eq!(icrc_of(&frame[..body]).to_le_bytes(), frame[body..], "ICRC of the capture");
        opcodes.insert(opcode);
        if !ip6 {
            frame[18..20].fill(0);
            set_checksum(&mut frame[14..34]);
            let icrc = icrc_of(&frame[..body]).to_le_bytes();
            frame[body..].copy_from_slice(&icrc);
        }
        let six = |at: usize| <[u8; 6]>::try_from(&frame[at..at + 6]).unwrap();
        let address = |at: usize| {
            let mut bytes = [0; 16];
            let n = if ip6 { 16 } else { 4 };
            bytes[..n].copy_from_slice(&frame[at..at + n]);
            bytes
        };
        let entry = Gid { ip6, vlan: None, mac: six(6), ip: address(if ip6 { 22 } else { 26 }) };
        let gid = b.gids.iter().position(|g| *g == entry);
        let gid = gid.unwrap_or_else(|| b.add_gid(entry));
        let to = Address {
            dmac: six(0),
            gid,
            class: if ip6 { (be(&frame[14..16]) >> 4) as u8 } else { frame[15] },
            dip: address(if ip6 { 38 } else { 30 }),
            sport: be(&frame[udp..udp + 2]) as u16,
            hops: frame[if ip6 { ip + 7 } else { ip + 8 }],
            ip6,
            priority: 5,
            qpn: be(&frame[bth + 5..bth + 8]) as u32,
            pkey: be(&frame[bth + 2..bth + 4]) as u16,
            flow: if ip6 { be(&frame[15..18]) as u32 & 0xf_ffff } else { 0 },
        };
        let mut target = [0; 8];
        let qp = if info.deth {
            ud_target::QPN.set(&mut target, to.qpn.into());
            let to = Address { qpn: 0, ..to };
            let handle = b.handles.iter().position(|a| *a == to).unwrap_or_else(|| b.add_handle(to));
            ud_target::AH.set(&mut target, handle as u64);
            0
        } else {
            b.addresses.iter().position(|a| *a == to).unwrap_or_else(|| b.add_qp(to))
        };
        let mut ext = bth + 12;
        let mut take = |n: usize| {
            ext += n;
            &frame[ext - n..ext]
        };
        let mut head = TxHead {
            qpn: (qp as u64).into(),
            opcode: u64::from(opcode).into(),
            psn: be(&frame[bth + 9..bth + 12]).into(),
            ack_req: frame[bth + 8] >> 7 == 1,
            solicited: frame[bth + 1] >> 7 == 1,
            va: u64::from_le_bytes(target).into(),
            ..TxHead::default()
        };
        if info.deth {
            let deth = take(8);
            (head.rkey, head.msn) = (be(&deth[..4]).into(), be(&deth[5..]).into());
        }
        if info.reth {
            let reth = take(16);
            (head.va, head.rkey) = (be(&reth[..8]).into(), be(&reth[8..12]).into());
            head.dma_len = be(&reth[12..]).into();
        }
        if info.atomic {
            let atomic = take(12);
            (head.va, head.rkey) = (be(&atomic[..8]).into(), be(&atomic[8..]).into());
        }
        if info.aeth {
            let aeth = take(4);
            (head.syndrome, head.msn) = (be(&aeth[..1]).into(), be(&aeth[1..]).into());
        }
        if info.atomic_ack {
            head.va = be(take(8)).into();
        }
        if info.imm || info.ieth {
            head.imm = u64::from(u32::from_le_bytes(take(4).try_into().unwrap())).into();
        }
        let pad = usize::from(frame[bth + 1] >> 4 & 3);
        assert!(frame[body - pad..body].iter().all(|b| *b == 0), "pad bytes are zero");
        let payload = frame[ext..body - pad].to_vec();
        b.host.memory[at..at + payload.len()].copy_from_slice(&payload);
        b.send(head, &[Part::Memory { key: 1, va: at as u64, len: payload.len() }]);
        at += payload.len();
        frame.resize(frame.len().max(60), 0);
        want.push_back(frame);
    }
    // All rows first: a `Source` queues them, and frames wait for their addresses.
    let seg = std::mem::replace(&mut b.seg, verilate::bench::Source::new(&b.m, "seg", Stall::Never, 0));
    b.settle();
    b.seg = seg;
    b.settle();
    let count = want.len();
    for (i, want) in want.into_iter().enumerate() {
        let got = b.mac.pop_packet().unwrap_or_else(|| panic!("only {i} of {count} frames"));
        assert_eq!(got, want, "frame {i}");
    }
    assert!(b.mac.is_empty() && b.fault.is_empty());
    // The captures know no SEND with invalidate and no atomic write.
    let captured = |o: &u8| *o != op::ATOMIC_WRITE && op_info(*o).is_some_and(|i| !i.ieth);
    let rc = (0..0x20).filter(captured);
    rc.for_each(|o| assert!(opcodes.contains(&o), "no capture of opcode {o:#x}"));
    println!("W={W}: {count} captured frames with {} opcodes", opcodes.len());
}

#[test]
fn soft_roce_frames_come_out_bit_for_bit_64() {
    captures::<64>();
}
#[test]
fn soft_roce_frames_come_out_bit_for_bit_512() {
    captures::<512>();
}

/// GIDs of all kinds, and QPs over them.
fn populate(b: &mut Bench, rng: &mut ChaCha8Rng) {
    for i in 0..8 {
        let (ip6, vlan) = (i & 1 == 1, (i & 2 == 2).then(|| rng.random_range(0..4096)));
        let mac = random_bytes(rng, 6).try_into().unwrap();
        let mut ip: [u8; 16] = random_bytes(rng, 16).try_into().unwrap();
        if !ip6 {
            ip[4..].fill(0);
        }
        b.add_gid(Gid { ip6, vlan, mac, ip });
    }
    for _ in 0..QPS {
        let gid = rng.random_range(0..8);
        let address = Address {
            dmac: random_bytes(rng, 6).try_into().unwrap(),
            gid,
            class: rng.random(),
            dip: random_bytes(rng, 16).try_into().unwrap(),
            sport: rng.random(),
            hops: rng.random(),
            ip6: b.gids[gid].ip6,
            priority: rng.random_range(0..8),
            qpn: rng.random_range(0..1 << 24),
            pkey: rng.random(),
            flow: rng.random_range(0..1 << 20),
        };
        if b.handles.len() < QPS / 2 {
            b.add_handle(address.clone());
        }
        b.add_qp(address);
    }
    b.settle();
}

/// A frame of any opcode with random fields.
fn random_head(rng: &mut ChaCha8Rng) -> TxHead {
    let opcode = loop {
        let opcode: u8 = rng.random();
        if op_info(opcode).is_some() {
            break opcode;
        }
    };
    // Of the datagrams: a handle, and a QPN.
    let va = if opcode >> 5 == 3 {
        rng.random_range(0..QPS as u64 / 2) | rng.random_range(0..1u64 << 24) << 32
    } else {
        rng.random()
    };
    TxHead {
        qpn: rng.random_range(0..QPS as u64).into(),
        request: rng.random(),
        raw: rng.random_bool(0.05),
        opcode: u64::from(opcode).into(),
        psn: rng.random_range(0..1u64 << 24).into(),
        ack_req: rng.random(),
        solicited: rng.random(),
        va: va.into(),
        rkey: u64::from(rng.random::<u32>()).into(),
        dma_len: u64::from(rng.random::<u32>()).into(),
        syndrome: u64::from(rng.random::<u8>()).into(),
        msn: rng.random_range(0..1u64 << 24).into(),
        imm: u64::from(rng.random::<u32>()).into(),
        again: rng.random(),
        of_fault: rng.random(),
        ..TxHead::default()
    }
}

/// 0 to 224 inline bytes over several stretches, or stretches of memory, up to `most` bytes.
fn random_parts(rng: &mut ChaCha8Rng, most: usize) -> Vec<Part> {
    if rng.random_bool(0.4) {
        let mut left = rng.random_range(0..=224usize.min(most));
        let mut parts = vec![];
        loop {
            let n = if left > 64 { rng.random_range(0..=64) } else { left };
            parts.push(Part::Inline(random_bytes(rng, n)));
            left -= n;
            if left == 0 {
                return parts;
            }
        }
    }
    let mut left = match rng.random_range(0..4) {
        0 => rng.random_range(0..=most),
        1 => most,
        _ => rng.random_range(0..=200usize.min(most)),
    };
    let mut parts = vec![];
    loop {
        let n = if rng.random_bool(0.5) { left } else { rng.random_range(0..=left) }.min(4096);
        let va = rng.random_range(0..HOLE - 4096);
        parts.push(Part::Memory { key: 1, va, len: n });
        left -= n;
        if left == 0 {
            return parts;
        }
    }
}

/// A raw frame has at least an Ethernet header.
fn with_payload(head: &TxHead, parts: Vec<Part>) -> Vec<Part> {
    let len = |part: &Part| match part {
        Part::Inline(bytes) => bytes.len(),
        Part::Memory { len, .. } => *len,
    };
    let short = parts.iter().map(len).sum::<usize>() < 14;
    if head.raw && short { vec![Part::Inline(vec![0x55; 14])] } else { parts }
}

/// What must happen to frames in ring order.
#[derive(Clone, Debug)]
struct Want {
    head: TxHead,
    frame: Vec<u8>,
    /// Must come, must not, or either (it raced with what voids it).
    comes: Option<bool>,
}

/// Takes the frames that came and checks them against what was wanted; gives those of the ring.
fn check(b: &mut Bench, ring: &mut VecDeque<Want>, quick: &mut VecDeque<Vec<u8>>) -> Vec<TxHead> {
    let mut sent = vec![];
    while let Some(got) = b.mac.pop_packet() {
        if quick.front() == Some(&got) {
            quick.pop_front();
            continue;
        }
        loop {
            let Some(want) = ring.pop_front() else { panic!("an unexpected frame {got:02x?}") };
            if want.comes != Some(false) && want.frame == got {
                sent.push(want.head);
                break;
            }
            assert!(want.comes != Some(true), "got {got:02x?}, not {:02x?} of {:?}", want.frame, want.head);
        }
    }
    assert!(ring.iter().all(|want| want.comes != Some(true)), "{} frames did not come", ring.len());
    ring.clear();
    assert!(quick.is_empty());
    sent
}

/// Random frames of all kinds under random stalls, with faults of key and bus: first without, then with.
fn mix<const W: usize>() {
    let m = model::<W>();
    for (seed, stall) in [Stall::Never, Stall::Random, Stall::Rate(0.4), Stall::Random].into_iter().enumerate() {
        let seed = seed as u64;
        println!("W={W}, seed {seed}");
        let mut b = Bench::new::<W>(m.another(), stall, seed);
        let mut rng = verilate::rng(seed);
        b.host.rates = [(1.0, 1.0), (0.9, 0.9), (0.3, 0.9), (0.9, 0.2)][seed as usize];
        populate(&mut b, &mut rng);
        let (mut frames, mut aborted) = (0, 0);
        for round in 0..scale(6) {
            let faulty = round % 2 == 1;
            let (mut ring, mut quick, mut faults) = (VecDeque::new(), VecDeque::new(), vec![]);
            let mut halted = std::collections::BTreeSet::new();
            let mut expects = 0;
            for _ in 0..60 {
                let head = random_head(&mut rng);
                let mut parts = random_parts(&mut rng, if head.raw { 9000 } else { 4096 });
                parts = with_payload(&head, parts);
                let mut why = 0;
                if faulty && rng.random_bool(0.15) {
                    let bad = u64::from(rng.random_range(1..5u8));
                    let at = rng.random_range(0..=parts.len());
                    let (part, found) = if rng.random_bool(0.5) {
                        (Part::Memory { key: BAD_KEY | bad as u32, va: 77, len: 1 }, bad)
                    } else {
                        (Part::Memory { key: 1, va: HOLE, len: 3 }, u64::from(cause::DMA_ERROR))
                    };
                    parts.insert(at, part);
                    why = found;
                }
                let payload = b.send(head, &parts);
                let mut full = head;
                full.payload = (payload.len() as u64).into();
                let key = (head.qpn.value(), head.request);
                let behind = halted.contains(&key) && (head.request || !head.of_fault);
                // A READ response that went before and whose key is dead is as if lost on the wire.
                let moot = head.again && !head.request && why != u64::from(cause::DMA_ERROR);
                if why != 0 && !behind && !moot {
                    faults.push((head, why));
                    halted.insert(key);
                }
                let comes = why == 0 && !behind;
                expects += u64::from(
                    comes
                        && (head.raw
                            || head.request
                                && (head.ack_req
                                    || head.opcode.value() == u64::from(op::READ_REQUEST)
                                    || (1..4).contains(&(head.opcode.value() >> 5)))),
                );
                aborted += u64::from(!comes);
                frames += u64::from(comes);
                ring.push_back(Want { head, frame: b.expected(&full, &payload), comes: Some(comes) });
                if rng.random_bool(0.3) {
                    let opcode = if rng.random() { u64::from(op::ACK) } else { u64::from(abi::wire::CNP) };
                    // Others come or do not, as the faults before them are found.
                    let of_fault = faulty || rng.random();
                    let head = TxHead { raw: false, request: false, of_fault, ..random_head(&mut rng) };
                    let head = TxHead { opcode: opcode.into(), ..head };
                    b.quick.send(head);
                    quick.push_back(b.expected(&head, &[]));
                    frames += 1;
                }
            }
            b.settle();
            check(&mut b, &mut ring, &mut quick);
            for (head, why) in faults {
                let fault = b.fault.pop().expect("a fault");
                assert_eq!(fault.get("cause"), why);
                assert_eq!(fault.get("psn"), head.psn.value());
                assert_eq!((fault.get("qpn"), fault.get("request")), (head.qpn.value(), u64::from(head.request)));
            }
            assert!(b.fault.is_empty());
            assert_eq!(b.left.len() as u64, expects);
            (0..expects).for_each(|_| drop(b.left.pop()));
            // Loading the send queue lets the QPs go again.
            let mut row = [0; 64];
            qp_send::LOAD.set(&mut row, 1);
            (0..QPS).for_each(|qp| b.write_row(id::QP_SEND, qp, &row));
            b.settle();
        }
        assert_eq!(b.counts.0[counter::TX_FRAMES], frames);
        assert_eq!(b.counts.0[counter::TX_ABORTED], aborted);
    }
}

#[test]
fn random_frames_64() {
    mix::<64>();
}
#[test]
fn random_frames_512() {
    mix::<512>();
}

/// The widths in between.
#[test]
#[ignore = "takes long: ./ferroce test --all"]
fn random_frames_128() {
    mix::<128>();
}
#[test]
#[ignore = "takes long: ./ferroce test --all"]
fn random_frames_256() {
    mix::<256>();
}

/// Rows are written between the reads for frames, which take rows as they were or as they are, never a mixture.
fn rows_change<const W: usize>() {
    let mut b = Bench::new::<W>(model::<W>(), Stall::Random, 3);
    let mut rng = verilate::rng(3);
    populate(&mut b, &mut rng);
    let mut want = vec![];
    for i in 0..scale(300) {
        // The frames in flight are fewer than the QPs, so none of them is of this one.
        let qp = i % QPS;
        let old = b.addresses[rng.random_range(0..QPS)].clone();
        let new = Address { dmac: random_bytes(&mut rng, 6).try_into().unwrap(), sport: rng.random(), ..old };
        b.write_row(id::QP_ADDRESS, qp, &address_row(&new));
        b.addresses[qp] = new.clone();
        let handle = qp % (QPS / 2);
        b.write_row(id::AH, handle, &handle_row(&new));
        // One that goes leaves its address.
        b.write_row(id::AH, handle, &[0; 64]);
        b.handles[handle] = new;
        let gid = rng.random_range(0..b.gids.len());
        b.write_row(id::GID, gid, &gid_row(&b.gids[gid]));
        while !b.table.is_empty() {
            b.cycle();
        }
        let head = TxHead { qpn: (qp as u64).into(), raw: false, ..random_head(&mut rng) };
        let payload = b.send(head, &[Part::Inline(vec![i as u8; i % 65])]);
        let mut full = head;
        full.payload = (payload.len() as u64).into();
        want.push(b.expected(&full, &payload));
        while !b.seg.is_empty() {
            b.cycle();
        }
    }
    b.settle();
    for (i, want) in want.iter().enumerate() {
        assert_eq!(b.mac.pop_packet().as_ref(), Some(want), "frame {i}");
    }
    assert!(b.mac.is_empty());
}

#[test]
fn rows_change_between_frames_64() {
    rows_change::<64>();
}
#[test]
fn rows_change_between_frames_512() {
    rows_change::<512>();
}

/// More faults than the queue of reports holds, and nobody takes one: the frames pass all the same. Those whose report found
/// no room are as if lost on the wire: they hold nothing back, and when they are sent again, each is reported, once.
#[test]
fn fault_reports_stall_nobody() {
    let mut b = Bench::new::<64>(model::<64>(), Stall::Never, 4);
    let mut rng = verilate::rng(4);
    populate(&mut b, &mut rng);
    b.fault = verilate::bench::Sink::new(&b.m, "fault", Stall::Rate(1.0), 0);
    let heads: Vec<TxHead> = (0..2 * QPS)
        .map(|i| {
            let opcode = u64::from(op::WRITE_ONLY).into();
            let (qpn, request) = ((i as u64 / 2).into(), i & 1 == 1);
            TxHead { qpn, request, opcode, raw: false, of_fault: false, again: false, ..random_head(&mut rng) }
        })
        .collect();
    let bad = Part::Memory { key: BAD_KEY | 1, va: 0, len: 20 };
    for head in &heads {
        b.send(*head, std::slice::from_ref(&bad));
    }
    while b.m.get("gone") < 2 * QPS as u64 {
        b.cycle();
        assert!(b.m.cycle() < 100_000);
    }
    b.fault = verilate::bench::Sink::new(&b.m, "fault", Stall::Never, 0);
    b.settle();
    assert_eq!(b.fault.len(), FAULTS);
    assert!(b.mac.is_empty());
    let mut told = std::collections::BTreeMap::new();
    let mut take = |b: &mut Bench| {
        while let Some(fault) = b.fault.pop() {
            let before = told.insert((fault.get("qpn"), fault.get("request")), fault.get("psn"));
            assert!(before.is_none(), "{fault:?} was reported before");
        }
        told.len()
    };
    assert_eq!(take(&mut b), FAULTS);
    // Again, those that were reported too: they are held back now.
    for head in &heads {
        b.send(TxHead { again: head.request, ..*head }, std::slice::from_ref(&bad));
    }
    b.settle();
    assert_eq!(take(&mut b), 2 * QPS);
    for head in &heads {
        assert_eq!(told[&(head.qpn.value(), u64::from(head.request))], head.psn.value());
    }
    // And so is all that comes behind.
    for head in &heads {
        b.send(*head, &[Part::Inline(vec![1; 20])]);
    }
    b.settle();
    assert!(b.mac.is_empty() && b.fault.is_empty());
    assert_eq!(b.counts.0[counter::TX_ABORTED], 6 * QPS as u64);
}

/// What a QP says behind a READ response that could not be read.
fn held<const W: usize>() {
    let mut b = Bench::new::<W>(model::<W>(), Stall::Never, 5);
    let mut rng = verilate::rng(5);
    populate(&mut b, &mut rng);
    let mut answer = |qpn: u64, opcode: u8, of_fault| {
        let opcode = u64::from(opcode).into();
        TxHead { qpn: qpn.into(), opcode, request: false, raw: false, of_fault, again: false, ..random_head(&mut rng) }
    };
    let bad = Part::Memory { key: BAD_KEY | 1, va: 0, len: 20 };
    for pause in 0..40 {
        let nothing = || Part::Memory { key: 1, va: 0, len: 0 };
        // Through the ring, close behind or later; then past it. That of another QP goes.
        b.send(answer(1, op::READ_RESPONSE_ONLY, false), std::slice::from_ref(&bad));
        (0..pause).for_each(|_| b.cycle());
        b.send(answer(1, op::ACK, false), &[nothing()]);
        let (other, last) = (answer(2, op::ACK, false), answer(1, op::ACK, true));
        b.send(other, &[nothing()]);
        b.settle();
        b.quick.send(answer(1, op::ACK, false));
        b.settle();
        b.quick.send(last);
        b.settle();
        let came: Vec<_> = std::iter::from_fn(|| b.mac.pop_packet()).collect();
        assert_eq!(came, [b.expected(&other, &[]), b.expected(&last, &[])], "{pause} cycles behind the response");
        assert_eq!(b.fault.len(), 1);
        b.fault.pop();
        let mut row = [0; 64];
        qp_send::LOAD.set(&mut row, 1);
        b.write_row(id::QP_SEND, 1, &row);
        b.settle();
    }
}

/// A READ response that went before and whose key is dead by now is not told of and holds nothing back; one that the host refuses is, and does.
#[test]
fn a_response_that_is_sent_again_by_a_dead_key_is_lost() {
    let mut b = Bench::new::<64>(model::<64>(), Stall::Never, 6);
    let mut rng = verilate::rng(6);
    populate(&mut b, &mut rng);
    let mut answer = |opcode: u8| {
        let opcode = u64::from(opcode).into();
        TxHead { qpn: 1u64.into(), opcode, request: false, raw: false, of_fault: false, ..random_head(&mut rng) }
    };
    let ack = answer(op::ACK);
    let host = (Part::Memory { key: 1, va: HOLE, len: 3 }, cause::DMA_ERROR);
    let keys = (1..5).map(|why| (Part::Memory { key: BAD_KEY | u32::from(why), va: 0, len: 20 }, why));
    for (part, why) in keys.chain([host]) {
        for again in [true, false] {
            b.send(TxHead { again, ..answer(op::READ_RESPONSE_ONLY) }, std::slice::from_ref(&part));
            b.send(ack, &[Part::Memory { key: 1, va: 0, len: 0 }]);
            b.settle();
            let told = !again || why == cause::DMA_ERROR;
            let came: Vec<_> = std::iter::from_fn(|| b.mac.pop_packet()).collect();
            let want = if told { vec![] } else { vec![b.expected(&ack, &[])] };
            assert_eq!((b.fault.len(), came), (usize::from(told), want), "again {again}, cause {why}");
            b.fault.pop();
            let mut row = [0; 64];
            qp_send::LOAD.set(&mut row, 1);
            b.write_row(id::QP_SEND, 1, &row);
            b.settle();
        }
    }
}

#[test]
fn acks_do_not_pass_a_fault_64() {
    held::<64>();
}
#[test]
fn acks_do_not_pass_a_fault_512() {
    held::<512>();
}

/// Epochs and generations change while frames are under way.
fn voided<const W: usize>() {
    let m = model::<W>();
    for seed in 0..scale(3) as u64 {
        let mut b = Bench::new::<W>(m.another(), Stall::Random, 50 + seed);
        let mut rng = verilate::rng(50 + seed);
        populate(&mut b, &mut rng);
        // Of requests and of READ responses; ACKs have none.
        let mut epochs = [[0u8; QPS]; 2];
        let has_epoch = |head: &TxHead| head.request || head.opcode.value() != u64::from(op::ACK);
        let (mut ring, mut quick) = (VecDeque::<Want>::new(), VecDeque::new());
        for _ in 0..scale(40) {
            for _ in 0..rng.random_range(1..12) {
                let mut head = random_head(&mut rng);
                head.qpn = rng.random_range(0..4u64).into(); // few QPs, often voided
                let qp = head.qpn.value() as usize;
                let stale = rng.random_bool(0.1) && has_epoch(&head);
                head.epoch = u64::from(epochs[usize::from(!head.request)][qp].wrapping_sub(u8::from(stale))).into();
                let wrong = rng.random_bool(0.1);
                head.generation = u64::from(b.host.generations[qp].wrapping_sub(u8::from(wrong))).into();
                let parts = with_payload(&head, random_parts(&mut rng, 600));
                let payload = b.send(head, &parts);
                let mut full = head;
                full.payload = (payload.len() as u64).into();
                let comes = !(wrong || stale);
                ring.push_back(Want { head, frame: b.expected(&full, &payload), comes: Some(comes) });
            }
            (0..rng.random_range(0..200)).for_each(|_| b.cycle());
            let qp = rng.random_range(0..4);
            if rng.random_bool(0.3) {
                // Its queue is loaded, sooner or later than the requester's mark of that comes: it leaves epochs alone.
                let mut row = [0; 64];
                qp_send::LOAD.set(&mut row, 1);
                b.write_row(id::QP_SEND, qp, &row);
            }
            if rng.random_bool(0.7) {
                let response: bool = rng.random();
                let epoch = &mut epochs[usize::from(response)][qp];
                *epoch = epoch.wrapping_add(1);
                let mark = EpochMark { qpn: (qp as u64).into(), epoch: u64::from(*epoch).into() };
                (if response { &mut b.reply_epoch } else { &mut b.epoch }).send(mark);
                while !b.epoch.is_empty() || !b.reply_epoch.is_empty() {
                    b.cycle();
                }
                let of_it =
                    |head: &TxHead| has_epoch(head) && head.request != response && head.qpn.value() == qp as u64;
                ring.iter_mut().filter(|w| of_it(&w.head)).for_each(|w| {
                    w.comes = w.comes.filter(|comes| !comes);
                });
            } else {
                b.host.generations[qp] = b.host.generations[qp].wrapping_add(1);
                (0..3).for_each(|_| b.cycle());
                ring.iter_mut().filter(|w| w.head.qpn.value() == qp as u64).for_each(|w| {
                    w.comes = w.comes.filter(|comes| !comes);
                });
            }
        }
        b.settle();
        let total = ring.len();
        let sent = check(&mut b, &mut ring, &mut quick);
        println!("W={W}, seed {seed}: {} of {total} frames sent", sent.len());
        assert!(sent.len() > total / 10 && sent.len() < total);
    }
}

#[test]
fn void_frames_are_dropped_64() {
    voided::<64>();
}
#[test]
fn void_frames_are_dropped_512() {
    voided::<512>();
}

/// Cycles per frame, sustained.
fn cycles<const W: usize>(m: &verilate::Model, opcode: u8, part: impl Fn(usize) -> Part) -> (f64, f64) {
    let mut b = Bench::new::<W>(m.another(), Stall::Never, 9);
    (b.host.rates, b.host.plain) = ((1.0, 1.0), true);
    let mut rng = verilate::rng(9);
    b.add_gid(Gid { mac: [2; 6], ip: [10; 16], ..Gid::default() });
    b.add_qp(Address { hops: 64, ..Address::default() });
    b.settle();
    for i in 0..300 {
        let mut head = random_head(&mut rng);
        (head.qpn, head.raw, head.opcode) = (0.into(), false, u64::from(opcode).into());
        b.send(head, &[part(i)]);
    }
    b.settle();
    let ends = &b.wire.ends;
    assert_eq!(ends.len(), 300);
    (((ends[250] - ends[50]) as f64) / 200.0, b.wire.beats as f64 / 300.0)
}

#[test]
fn rate_of_frames() {
    let m = sized_model::<512>(64 << 10, 128);
    let inline = |n: usize| move |_| Part::Inline(vec![7; n]);
    let memory = |n: usize| move |i: usize| Part::Memory { key: 1, va: (i * 4096 % 0x8_0000) as u64, len: n };
    let mut report = vec![];
    let mut measure = |name: &str, (cycles, beats): (f64, f64), most: f64| {
        println!("{name}: {cycles:.2} cycles per frame of {beats} beats");
        report.push((name.to_string(), cycles, most));
    };
    measure("SEND 64 B inline", cycles::<512>(&m, op::SEND_ONLY, inline(64)), 3.1);
    measure("WRITE 64 B inline", cycles::<512>(&m, op::WRITE_ONLY, inline(64)), 3.1);
    measure("WRITE 64 B", cycles::<512>(&m, op::WRITE_ONLY, memory(64)), 3.1);
    measure("READ request", cycles::<512>(&m, op::READ_REQUEST, inline(0)), 3.1);
    // At the pace of their reads; the link takes 22.1 and 83.5.
    measure("WRITE 1024 B", cycles::<512>(&m, op::WRITE_MIDDLE, memory(1024)), 19.8);
    measure("WRITE 4096 B", cycles::<512>(&m, op::WRITE_MIDDLE, memory(4096)), 78.9);
    let m = model::<64>();
    measure("SEND 64 B inline at 64 bits", cycles::<64>(&m, op::SEND_ONLY, inline(64)), 16.1);
    measure("WRITE 1024 B at 64 bits", cycles::<64>(&m, op::WRITE_MIDDLE, memory(1024)), 136.1);
    for (name, cycles, most) in report {
        assert!(cycles <= most, "{name} takes {cycles} cycles, not {most}");
    }
}
