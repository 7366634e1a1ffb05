//! Every frame gets one verdict: frames of every opcode, for QPs in every state, with every kind of mistake. `nic::Verdicts` panics
//! when a frame is through without a verdict of its engine, or when an engine judges twice; here the counters are compared with
//! the number of frames as well.

use abi::status::counter;
use abi::wire::{self, op, op_info};
use driver::qp::QpSizes;
use driver::{Access, Data, Flags, Operation};
use fabric::{Action, Match};
use ferroce_tests::{GUARD, assert_sound, bytes, inject, noise, pass, region, seal};
use rand::RngExt;
use testbed::{Connect, Setup, Testbed};

const MTU: usize = 1024;
const LEN: usize = 3000;
const PSN: u32 = 0xff_fffe;

/// A RoCE v2 frame from host 0 to host 1, or nearly so.
struct Fields {
    opcode: u8,
    qpn: u32,
    psn: u32,
    pkey: u16,
    from: u8,
    ack_req: bool,
    /// RETH: address, key, length.
    reth: (u64, u32, u32),
    syndrome: u8,
    payload: usize,
    pad: u8,
}

impl Fields {
    fn frame(&self) -> Vec<u8> {
        let extended = op_info(self.opcode).map_or(0, |o| o.ext_len());
        let mut bth = vec![self.opcode, self.pad << 4];
        bth.extend(self.pkey.to_be_bytes());
        bth.extend(self.qpn.to_be_bytes());
        bth.extend((u32::from(self.ack_req) << 31 | self.psn & 0xff_ffff).to_be_bytes());
        let mut rest = vec![0; extended];
        let info = op_info(self.opcode);
        if info.is_some_and(|o| o.reth) {
            rest[..8].copy_from_slice(&self.reth.0.to_be_bytes());
            rest[8..12].copy_from_slice(&self.reth.1.to_be_bytes());
            rest[12..16].copy_from_slice(&self.reth.2.to_be_bytes());
        }
        if info.is_some_and(|o| o.aeth) {
            rest[0] = self.syndrome;
        }
        rest.extend(vec![0x77; self.payload + usize::from(self.pad)]);
        let udp = 8 + bth.len() + rest.len() + 4;
        let mut f = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
        f.extend(((20 + udp) as u16).to_be_bytes());
        f.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, self.from, 10, 0, 0, 2, 0xc0, 2]);
        f.extend(wire::ROCE_PORT.to_be_bytes());
        f.extend((udp as u16).to_be_bytes());
        f.extend([0, 0]);
        f.extend(bth);
        f.extend(rest);
        f.extend([0; 4]);
        seal(&mut f);
        f
    }
}

/// Sum of the counters that are verdicts on frames.
fn judged(bed: &Testbed) -> u64 {
    (0..counter::RX_CE).map(|i| bed.hosts[1].device.counter(i)).sum()
}

#[test]
fn every_frame_gets_one_verdict() {
    let mut rng = verilate::rng(2024);
    let bed = Testbed::new(&Setup::default()).unwrap();
    let pd = &bed.hosts[1].pd;
    let open = region(pd, LEN, Access::all(), |_| GUARD);
    let closed = region(pd, LEN, Access::empty(), |_| GUARD);
    let guard = region(pd, LEN, Access::all(), |_| GUARD);
    let source = region(pd, LEN, Access::all(), noise(1));
    // Only what is injected arrives.
    bed.sim().link_mut(0).rules.add(Match::default(), Action::Drop);
    let sizes = QpSizes::new(64, 16);
    let connect = Connect { mtu: MTU as u32, sizes, psn: PSN, ..Connect::default() };
    let cq = bed.hosts[1].device.create_cq(64, &bed.hosts[1].eq).unwrap();
    let (before, mut sent) = (judged(&bed), 0);
    for round in 0..verilate::scale(6) {
        // READY with requests under way and receives of all kinds, ERR, INIT, RESET, and numbers that nobody has.
        let mut pairs = bed.connect_many(&connect, 6).unwrap();
        let remote = bed.hosts[0].pd.alloc(LEN, Access::all()).unwrap();
        for (i, pair) in pairs.iter_mut().enumerate() {
            let memory = [&open, &closed][i % 2];
            for k in 0..[0, 1, 12][i % 3] {
                pair.b.qp.post_recv(k, &[memory.sge(0, [LEN, 40][k as usize % 2])]).unwrap();
            }
            let mut batch = pair.b.qp.post();
            for k in 0..4 {
                let operation = match (i + k) % 3 {
                    0 => Operation::Read(remote.remote(0)),
                    1 => Operation::Write(remote.remote(0)),
                    _ => Operation::Send,
                };
                batch.add(k as u64, operation, Data::Sges(&[source.sge(0, LEN)]), Flags::SIGNALED).unwrap();
            }
            batch.ring();
        }
        pairs[5].b.qp.fail().unwrap();
        let init = pd.create_qp(&cq, &cq, sizes).unwrap().init(Access::all()).unwrap();
        let reset = pd.create_qp(&cq, &cq, sizes).unwrap();
        let mut numbers: Vec<u32> = pairs.iter().map(|p| p.b.qp.qpn()).collect();
        numbers.extend([init.qpn(), reset.qpn(), 0, 1, 0xfff, 0xff_ffff]);
        pass(&bed, 40);
        for i in 0..250 {
            let n = if rng.random_bool(0.8) { rng.random_range(0..5) } else { rng.random_range(0..numbers.len()) };
            let opcode = match rng.random_range(0..10) {
                0 => rng.random(),
                1 => wire::CNP,
                2..5 => rng.random_range(op::READ_RESPONSE_FIRST..=op::ACK),
                _ => rng.random_range(0..=op::READ_REQUEST),
            };
            let key = [open.rkey(), open.rkey(), closed.rkey(), open.rkey() ^ 1][rng.random_range(0..4)];
            let payload = [0, 1, 64, rng.random_range(0..=MTU), MTU, MTU][rng.random_range(0..6)];
            let length = [payload as u32, payload as u32, LEN as u32, rng.random()][rng.random_range(0..4)];
            let fields = Fields {
                opcode,
                qpn: numbers[n],
                psn: PSN.wrapping_add(if rng.random_bool(0.9) { rng.random_range(0..8) } else { rng.random() }),
                pkey: [0x7fff, 1][usize::from(rng.random_bool(0.05))] | 0x8000,
                from: [1, 9][usize::from(rng.random_bool(0.05))],
                ack_req: rng.random(),
                reth: (open.addr() + rng.random_range(0..8), key, length),
                syndrome: [0x1f, 0x1f, 0x20 | rng.random_range(0..32), 0x60, 0x61, 0x62, 0x63, rng.random()]
                    [rng.random_range(0..8)],
                payload: if op_info(opcode).is_some_and(|o| o.payload) || rng.random_bool(0.1) { payload } else { 0 },
                pad: if rng.random_bool(0.95) { (4 - payload % 4) as u8 % 4 } else { rng.random_range(0..4) },
            };
            let mut frame = fields.frame();
            if rng.random_bool(0.05) {
                *frame.last_mut().unwrap() ^= 1;
            }
            inject(&bed, 1, frame, rng.random_bool(0.02));
            sent += 1;
            if i % 10 == 0 {
                pass(&bed, rng.random_range(0..20));
            }
        }
        pass(&bed, 200);
        assert_eq!(judged(&bed) - before, sent, "round {round}");
    }
    let counts = |i: usize| bed.hosts[1].device.counter(i);
    for i in 0..counter::RX_CE {
        println!("{:20} {}", counter::NAMES[i].0, counts(i));
    }
    use counter::*;
    let all =
        [RX_ACCEPTED, RX_MAC_ERROR, RX_MALFORMED, RX_ICRC, RX_OPCODE, RX_QP_STATE, RX_QP_TYPE, RX_QP_PEER, RX_PKEY];
    let more =
        [RX_DUPLICATE, RX_OUT_OF_SEQUENCE, RX_RNR, RX_INVALID_REQUEST, RX_REMOTE_ACCESS, RX_STALE_RESPONSE, RX_CNP];
    let missing: Vec<_> = all.iter().chain(&more).filter(|i| counts(**i) == 0).map(|i| counter::NAMES[*i].0).collect();
    assert!(missing.is_empty(), "no frame had these verdicts: {missing:?}");
    assert_eq!(bytes(&guard), [GUARD; LEN]);
    assert_sound(&bed, "every verdict");
}
