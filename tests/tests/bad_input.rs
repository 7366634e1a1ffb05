//! Whatever comes in, from the host or from the wire (`bad_frames.rs`): bad work requests end with the exact status and touch nothing, frames
//! of any content are counted and dropped, commands of any content are answered, and others go on.

use abi::Field;
use abi::cmd::{
    answer, attr, create_ah, create_cq, create_eq, create_mr, create_qp, create_srq, head, kind, list_owned, mcast,
    modify_qp, modify_srq, op, resize_cq, result, set_gid, set_multicast, set_port, set_vfs,
};
use abi::queue::{SEND_PAYLOAD_OFFSET, WQE_BLOCK, send_op, send_wqe, sge};
use abi::status::{cause, wc};
use abi::table::{qp_state, qp_type};
use driver::qp::SendOptions;
use driver::{Access, Data, Device, Flags, Mr, OpenOptions, Operation, PciFunction, Sge, Translation};
use fabric::SimFunction;
use ferroce_tests::{Bystander, GUARD, LEN, assert_sound, bytes, noise, region, small_pairs, wait};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use testbed::{Connect, Setup, Testbed};

/// A send WQE: fields of its head, then SGEs.
fn wqe(fields: &[(Field, u64)], sges: &[Sge]) -> Vec<[u8; WQE_BLOCK]> {
    let mut all = [0; 4 * WQE_BLOCK];
    let blocks = (SEND_PAYLOAD_OFFSET + 16 * sges.len()).div_ceil(WQE_BLOCK);
    send_wqe::SIGNALED.set(&mut all, 1);
    send_wqe::BLOCKS.set(&mut all, blocks as u64);
    send_wqe::SGES.set(&mut all, sges.len() as u64);
    send_wqe::LENGTH.set(&mut all, sges.iter().map(|s| u64::from(s.len)).sum::<u64>() & 0xffff_ffff);
    for (s, at) in sges.iter().zip((SEND_PAYLOAD_OFFSET..).step_by(16)) {
        let b = &mut all[at..at + 16];
        sge::VA.set(b, s.addr);
        sge::LKEY.set(b, s.lkey.into());
        sge::LENGTH.set(b, s.len.into());
    }
    fields.iter().for_each(|(f, v)| f.set(&mut all, *v));
    all.as_chunks::<WQE_BLOCK>().0[..blocks].to_vec()
}

#[test]
fn bad_work_requests_end_with_their_cause() {
    let bed = Testbed::new(&Setup::default()).unwrap();
    let mut bystander = Bystander::new(&bed);
    let [pd, peer] = [0, 1].map(|i| &bed.hosts[i].pd);
    let foreign = bed.hosts[0].device.create_pd().unwrap();
    let foreign_peer = bed.hosts[1].device.create_pd().unwrap();
    let good = region(pd, LEN, Access::all(), noise(5));
    let fixed = region(pd, LEN, Access::empty(), |_| GUARD);
    let other = region(&foreign, LEN, Access::all(), |_| GUARD);
    let target = region(peer, LEN, Access::all(), |_| GUARD);
    let closed = region(peer, LEN, Access::LOCAL_WRITE, |_| GUARD);
    let other_target = region(&foreign_peer, LEN, Access::all(), |_| GUARD);

    let g = good.sge(0, 500);
    let key = |s: Sge, lkey| Sge { lkey, ..s };
    let to = |mr: &Mr, at: usize| {
        let r = mr.remote(at);
        vec![(send_wqe::REMOTE_VA, r.addr), (send_wqe::RKEY, r.rkey.into())]
    };
    let op = |op: u8, more: Vec<(Field, u64)>| [vec![(send_wqe::OPCODE, op.into())], more].concat();
    let write = |more: Vec<(Field, u64)>| op(send_op::WRITE, [to(&target, 0), more].concat());
    let bad_key =
        |mr: &Mr, flip: u64| vec![(send_wqe::REMOTE_VA, mr.addr()), (send_wqe::RKEY, u64::from(mr.rkey()) ^ flip)];
    let local = |why| (wc::LOC_PROT, why);
    let remote = (wc::REM_ACCESS, cause::NAK_REMOTE_ACCESS);
    let format = (wc::LOC_QP_OP, cause::WQE_FORMAT);
    let length = (wc::LOC_LEN, cause::WQE_LENGTH);
    let cases = [
        ("lkey without an entry", wqe(&write(vec![]), &[key(g, 0x3ff << 8)]), local(cause::KEY_INVALID)),
        ("lkey of another key byte", wqe(&write(vec![]), &[key(g, g.lkey ^ 1)]), local(cause::KEY_INVALID)),
        ("lkey beyond the table", wqe(&write(vec![]), &[key(g, u32::MAX)]), local(cause::KEY_INVALID)),
        ("lkey of another PD", wqe(&write(vec![]), &[other.sge(0, 500)]), local(cause::KEY_PD)),
        ("end behind the region", wqe(&write(vec![]), &[good.sge(LEN - 499, 500)]), local(cause::KEY_BOUNDS)),
        ("start before the region", wqe(&write(vec![]), &[Sge { addr: g.addr - 1, ..g }]), local(cause::KEY_BOUNDS)),
        ("range past 2^64", wqe(&write(vec![]), &[Sge { addr: u64::MAX - 9, ..g }]), local(cause::KEY_BOUNDS)),
        ("second SGE bad", wqe(&write(vec![]), &[g, key(g, 0)]), local(cause::KEY_INVALID)),
        (
            "READ into memory without LOCAL_WRITE",
            wqe(&op(send_op::READ, to(&target, 0)), &[fixed.sge(0, 500)]),
            local(cause::KEY_ACCESS),
        ),
        ("rkey of another key byte", wqe(&op(send_op::WRITE, bad_key(&target, 1)), &[g]), remote),
        ("rkey without an entry", wqe(&op(send_op::WRITE, bad_key(&target, 0x3ff00)), &[g]), remote),
        ("rkey of another PD", wqe(&op(send_op::WRITE, to(&other_target, 0)), &[g]), remote),
        ("WRITE behind the region", wqe(&op(send_op::WRITE, to(&target, LEN - 499)), &[g]), remote),
        ("WRITE to memory that is closed", wqe(&op(send_op::WRITE, to(&closed, 0)), &[g]), remote),
        ("READ of memory that is closed", wqe(&op(send_op::READ, to(&closed, 0)), &[g]), remote),
        ("READ behind the region", wqe(&op(send_op::READ, to(&target, LEN - 1)), &[g]), remote),
        ("atomic of 500 bytes", wqe(&op(send_op::COMPARE_SWAP, to(&target, 0)), &[g]), length),
        ("opcode 255", wqe(&op(255, to(&target, 0)), &[g]), (wc::LOC_QP_OP, cause::WQE_OPCODE)),
        ("no blocks", wqe(&write(vec![(send_wqe::BLOCKS, 0)]), &[g]), format),
        ("five blocks", wqe(&write(vec![(send_wqe::BLOCKS, 5)]), &[g]), format),
        ("more blocks than posted", wqe(&write(vec![(send_wqe::BLOCKS, 3)]), &[g]), format),
        ("seven SGEs", wqe(&write(vec![(send_wqe::SGES, 7)]), &[g]), format),
        ("three SGEs in one block", wqe(&write(vec![(send_wqe::SGES, 3)]), &[g]), format),
        ("inline READ", wqe(&op(send_op::READ, [to(&target, 0), vec![(send_wqe::INLINE, 1)]].concat()), &[g]), format),
        ("inline data beyond the WQE", wqe(&write(vec![(send_wqe::INLINE, 1)]), &[g]), length),
        ("length over the SGEs", wqe(&write(vec![(send_wqe::LENGTH, 501)]), &[g]), length),
        ("length under the SGEs", wqe(&write(vec![(send_wqe::LENGTH, 499)]), &[g]), length),
        ("length over 2^31", wqe(&write(vec![(send_wqe::LENGTH, 0x8000_0001)]), &[g]), length),
        ("SGEs past 2^32", wqe(&write(vec![]), &[Sge { len: u32::MAX, ..g }, Sge { len: 501, ..g }]), length),
    ];
    let mut wrong = Vec::new();
    for (what, blocks, want) in &cases {
        let mut pair = bed.connect(&small_pairs()).unwrap();
        let mut batch = pair.a.qp.post();
        // A sound request before it completes as ever.
        batch.add(1, Operation::Write(target.remote(1000)), Data::Inline(&[GUARD; 8]), Flags::SIGNALED).unwrap();
        batch.add_raw(2, blocks).unwrap();
        batch.ring();
        let first = wait(&bed, &mut pair.a.cq, what);
        assert_eq!((first.wr_id, first.status), (1, Ok(())), "{what}");
        let c = wait(&bed, &mut pair.a.cq, what);
        let got = c.status.err().map(|e| (e.status, e.cause));
        println!("{what}: {got:?}");
        if (c.wr_id, got) != (2, Some(*want)) {
            wrong.push(format!("{what}: {got:?} of request {}, want {want:?}", c.wr_id));
        }
        let untouched = [&fixed, &other, &target, &closed, &other_target].iter().all(|mr| bytes(mr) == [GUARD; LEN]);
        assert!(untouched, "{what}: memory was written");
        bystander.check(&bed, what);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_sound(&bed, "bad work requests");
}

#[test]
fn bad_receives_end_with_their_cause() {
    let bed = Testbed::new(&Setup::default()).unwrap();
    let mut bystander = Bystander::new(&bed);
    let inbox = region(&bed.hosts[1].pd, LEN, Access::LOCAL_WRITE, |_| GUARD);
    let fixed = region(&bed.hosts[1].pd, LEN, Access::empty(), |_| GUARD);
    let prot = |why| (wc::LOC_PROT, why);
    let operation = (wc::REM_OP, cause::NAK_REMOTE_OPERATION);
    let s = inbox.sge(0, 500);
    let cases = [
        (
            "too short",
            inbox.sge(0, 99),
            (wc::LOC_LEN, cause::RECEIVE_TOO_SHORT),
            (wc::REM_INV_REQ, cause::NAK_INVALID_REQUEST),
        ),
        ("bad key", Sge { lkey: s.lkey ^ 1, ..s }, prot(cause::KEY_INVALID), operation),
        ("read-only memory", fixed.sge(0, 500), prot(cause::KEY_ACCESS), operation),
        ("behind the region", inbox.sge(LEN - 50, 500), prot(cause::KEY_BOUNDS), operation),
    ];
    for (what, sge, at_receiver, at_sender) in cases {
        let mut pair = bed.connect(&small_pairs()).unwrap();
        pair.b.qp.post_recv(7, &[sge]).unwrap();
        let mut batch = pair.a.qp.post();
        batch.add(2, Operation::Send, Data::Inline(&[1; 100]), Flags::SIGNALED).unwrap();
        batch.ring();
        let (c, r) = (wait(&bed, &mut pair.a.cq, what), wait(&bed, &mut pair.b.cq, what));
        let code = |c: &driver::Completion| c.status.err().map(|e| (e.status, e.cause));
        assert_eq!((c.wr_id, code(&c)), (2, Some(at_sender)), "{what}, sender");
        assert_eq!((r.wr_id, code(&r)), (7, Some(at_receiver)), "{what}, receiver");
        assert!(bytes(&fixed) == [GUARD; LEN] && bytes(&inbox)[100..] == [GUARD; LEN - 100], "{what}");
        bystander.check(&bed, what);
    }
    assert_sound(&bed, "bad receives");
}

/// What there is of the kind of object that a command is about, as owner 9 is told of it: a list, and the queue pair's attributes.
fn seen(device: &Device, command: &[u8; 64]) -> Option<Vec<[u8; 64]>> {
    let kind = match head::OPCODE.get(command) as u8 {
        op::CREATE_PD | op::DESTROY_PD => kind::PD,
        op::CREATE_MR | op::DESTROY_MR => kind::MR,
        op::CREATE_CQ | op::DESTROY_CQ => kind::CQ,
        op::CREATE_EQ | op::DESTROY_EQ => kind::EQ,
        op::CREATE_QP | op::DESTROY_QP | op::MODIFY_QP | op::ATTACH_MCAST | op::DETACH_MCAST => kind::QP,
        op::CREATE_SRQ | op::DESTROY_SRQ | op::MODIFY_SRQ => kind::SRQ,
        _ => return None,
    };
    let mut asked = vec![command_of(op::LIST_OWNED, &[(list_owned::KIND, kind.into())])];
    if kind == kind::QP {
        asked.push(command_of(op::QUERY_QP, &[(head::NUMBER, head::NUMBER.get(command))]));
    }
    let mut answers: Vec<_> = asked.into_iter().map(|c| device.command_raw(c).unwrap()).collect();
    answers.iter_mut().for_each(|a| answer::PHASE.set(a, 0));
    Some(answers)
}

/// A command of owner 9.
fn command_of(opcode: u8, fields: &[(Field, u64)]) -> [u8; 64] {
    let mut command = [0; 64];
    head::OWNER.set(&mut command, 9);
    head::OPCODE.set(&mut command, opcode.into());
    fields.iter().for_each(|(f, v)| f.set(&mut command, *v));
    command
}

/// Where the fields of a command begin that a refusal may name.
fn fields(opcode: u8) -> Vec<u64> {
    let own = match opcode {
        op::CREATE_AH => &create_ah::LAYOUT,
        op::CREATE_MR => &create_mr::LAYOUT,
        op::CREATE_CQ => &create_cq::LAYOUT,
        op::CREATE_EQ => &create_eq::LAYOUT,
        op::CREATE_QP => &create_qp::LAYOUT,
        op::MODIFY_QP => &modify_qp::LAYOUT,
        op::RESIZE_CQ => &resize_cq::LAYOUT,
        op::CREATE_SRQ => &create_srq::LAYOUT,
        op::MODIFY_SRQ => &modify_srq::LAYOUT,
        op::ATTACH_MCAST | op::DETACH_MCAST => &mcast::LAYOUT,
        op::SET_GID => &set_gid::LAYOUT,
        op::SET_PORT => &set_port::LAYOUT,
        op::SET_MULTICAST => &set_multicast::LAYOUT,
        op::LIST_OWNED => &list_owned::LAYOUT,
        op::SET_VFS => &set_vfs::LAYOUT,
        _ => &head::LAYOUT,
    };
    let addresses: &[Field] = if opcode == op::CREATE_AH { modify_qp::LAYOUT.fields } else { &[] };
    own.fields.iter().chain(addresses).chain(head::LAYOUT.fields).map(|f| f.lsb as u64).collect()
}

/// Objects of owner 9 that commands are about.
#[derive(Clone, Copy)]
struct Numbers {
    pd: u64,
    eq: u64,
    cq: u64,
    /// RC, UC, UD.
    qps: [u64; 3],
    srq: u64,
}

/// A command that is sound, or would be in another state of what it is about.
fn likely(rng: &mut ChaCha8Rng, n: Numbers) -> [u8; 64] {
    let kind = rng.random_range(0..3);
    let number = (head::NUMBER, n.qps[kind]);
    let log2 = |rng: &mut ChaCha8Rng| rng.random_range(0..14);
    let needs = [
        [attr::ACCESS_FLAGS, attr::MAX_DEST_RD_ATOMIC | attr::MIN_RNR_TIMER, attr::MAX_QP_RD_ATOMIC],
        [attr::ACCESS_FLAGS, 0, 0],
        [attr::QKEY, 0, 0],
    ][kind];
    let path = attr::AV | attr::PATH_MTU | attr::DEST_QPN | attr::RQ_PSN;
    let retries = attr::TIMEOUT | attr::RETRY_CNT | attr::RNR_RETRY;
    match rng.random_range(0..14) {
        0 => command_of(
            op::CREATE_SRQ,
            &[(create_srq::PD, n.pd), (create_srq::LOG2, log2(rng)), (create_srq::SGES, 1), (create_srq::BASE, 0x4000)],
        ),
        1 => command_of(op::MODIFY_SRQ, &[(head::NUMBER, n.srq), (modify_srq::LIMIT, rng.random_range(0..100))]),
        2 => command_of(op::QUERY_SRQ, &[(head::NUMBER, n.srq)]),
        3 => command_of(op::CREATE_AH, &[(create_ah::PD, n.pd), (modify_qp::HOP_LIMIT, 1), (modify_qp::DMAC, 2)]),
        4 => command_of(
            op::RESIZE_CQ,
            &[(head::NUMBER, n.cq), (resize_cq::LOG2_ENTRIES, log2(rng)), (resize_cq::BASE, 0x10_0000)],
        ),
        5 => command_of(op::CREATE_CQ, &[(create_cq::EQN, n.eq), (create_cq::BASE, 0x2000)]),
        6 => {
            let shared = rng.random_bool(0.5);
            let fields = [
                (create_qp::TYPE, [qp_type::RC, qp_type::UC, qp_type::UD][kind].into()),
                (create_qp::PD, n.pd),
                (create_qp::SEND_CQN, n.cq),
                (create_qp::RECV_CQN, n.cq),
                (create_qp::SQ_LOG2, log2(rng)),
                (create_qp::RQ_SGES, if shared { 1 } else { 4 }),
                (create_qp::SHARED, shared.into()),
                (create_qp::SRQN, n.srq),
            ];
            command_of(op::CREATE_QP, &fields)
        }
        7 | 8 => {
            let kind = rng.random_range(0..3);
            let fields = [
                (create_mr::PD, n.pd),
                (create_mr::KIND, kind),
                (create_mr::BINDS, rng.random_range(0..2)),
                (create_mr::PAGE_SHIFT, 12),
                (create_mr::CONTIGUOUS, rng.random_range(0..2)),
                (create_mr::LENGTH, rng.random_range(1..20)),
                (create_mr::PAGES, 0x3000),
            ];
            command_of(op::CREATE_MR, &fields)
        }
        9 => {
            let opcode = [op::DESTROY_MR, op::DESTROY_AH, op::DESTROY_SRQ, op::DESTROY_CQ, op::DESTROY_QP]
                [rng.random_range(0..5)];
            command_of(opcode, &[(head::NUMBER, rng.random_range(0..24))])
        }
        state => {
            // To INIT, RTR, RTS, and from there to SQD.
            let step = state as usize - 10;
            let mask = [
                attr::PKEY_INDEX | attr::PORT | needs[0],
                if kind == 2 { 0 } else { path | needs[1] },
                attr::SQ_PSN | if kind == 0 { retries | needs[2] } else { 0 },
                0,
            ][step];
            let state = [qp_state::INIT, qp_state::RTR, qp_state::RTS, qp_state::SQD][step];
            let fields = [
                number,
                (modify_qp::MASK, (attr::STATE | mask).into()),
                (modify_qp::STATE, state.into()),
                (modify_qp::PORT, 1),
                (modify_qp::PATH_MTU, 3),
                (modify_qp::HOP_LIMIT, 64),
                (modify_qp::DMAC, 2),
            ];
            command_of(op::MODIFY_QP, &fields)
        }
    }
}

/// Commands of any content are answered; those that are refused say which field is wrong, and change nothing.
fn any_commands(setup: &Setup, rounds: usize, n: usize) {
    let mut rng = verilate::rng(99);
    let bed = Testbed::new(setup).unwrap();
    let mut bystander = Bystander::new(&bed);
    let device = &bed.hosts[0].device;
    let (mut results, mut done) = ([0; 16], BTreeMap::<u8, usize>::new());
    for round in 0..rounds {
        // Something to be destroyed, modified, and referred to. The ring of the CQ is nowhere: nothing completes.
        let create = |opcode, fields: &[(Field, u64)]| {
            let a = device.command_raw(command_of(opcode, fields)).unwrap();
            assert_eq!(answer::RESULT.get(&a), u64::from(result::OK));
            answer::NUMBER.get(&a)
        };
        let pd = create(op::CREATE_PD, &[]);
        let eq = create(op::CREATE_EQ, &[(create_eq::BASE, 0x1000)]);
        let cq = create(op::CREATE_CQ, &[(create_cq::EQN, eq), (create_cq::BASE, 0x2000)]);
        let queues = [(create_qp::SEND_CQN, cq), (create_qp::RECV_CQN, cq), (create_qp::PD, pd)];
        let rings = [(create_qp::SQ_BASE, 0x4000), (create_qp::RQ_BASE, 0x8000), (create_qp::RQ_SGES, 4)];
        let ring = [(create_srq::PD, pd), (create_srq::SGES, 1), (create_srq::BASE, 0xc000)];
        let srq = create(op::CREATE_SRQ, &ring);
        let qp = create(op::CREATE_QP, &[&queues[..], &rings].concat());
        let uc = create(op::CREATE_QP, &[&queues[..], &rings, &[(create_qp::TYPE, qp_type::UC.into())]].concat());
        let datagrams = [(create_qp::TYPE, qp_type::UD.into())];
        let ud = create(op::CREATE_QP, &[&queues[..], &rings, &datagrams].concat());
        let group = [(head::NUMBER, ud), (mcast::IP_LOW, 0xef)];
        create(op::ATTACH_MCAST, &group);
        let numbers = [pd, eq, cq, qp, uc, ud, srq];
        let known = Numbers { pd, eq, cq, qps: [qp, uc, ud], srq };
        for _ in 0..n {
            let sound = rng.random_bool(0.5);
            let mut command: [u8; 64] = if sound {
                likely(&mut rng, known)
            } else {
                std::array::from_fn(|_| if rng.random_bool(0.5) { rng.random() } else { 0 })
            };
            if sound && rng.random_bool(0.3) {
                command[rng.random_range(1..64)] = rng.random();
            }
            // Another owner's, so that neither the bystander nor the port are any of its business.
            head::OWNER.set(&mut command, 9);
            let opcode = if sound { head::OPCODE.get(&command) as u8 } else { rng.random_range(0..30) };
            head::OPCODE.set(&mut command, opcode.into());
            if !sound && rng.random_bool(0.7) {
                let any = rng.random_range(0..8);
                head::NUMBER
                    .set(&mut command, if rng.random_bool(0.5) { numbers[rng.random_range(0..7)] } else { any });
            }
            if matches!(opcode, op::ATTACH_MCAST | op::DETACH_MCAST) && rng.random_bool(0.5) {
                mcast::IP_LOW.set(&mut command, 0xef);
            }
            let before = seen(device, &command);
            let a = device.command_raw(command).unwrap();
            let (got, field) = (answer::RESULT.get(&a) as u8, answer::FIELD.get(&a));
            results[got as usize] += 1;
            *done.entry(opcode).or_default() += usize::from(got == result::OK);
            if matches!(got, result::BAD_FIELD | result::NO_OBJECT | result::NOT_OWNER | result::UNSUPPORTED) {
                let mask = modify_qp::MASK.lsb as u64;
                let bit = opcode == op::MODIFY_QP && (mask..mask + 32).contains(&field);
                assert!(bit || fields(opcode).contains(&field), "opcode {opcode}, result {got}: field {field}");
            }
            if matches!(got, result::MISSING_ATTRIBUTE | result::FORBIDDEN_ATTRIBUTE) {
                assert!(opcode == op::MODIFY_QP && field < 32, "opcode {opcode}, result {got}: attribute {field}");
            }
            if got != result::OK {
                assert_eq!(
                    before,
                    seen(device, &command),
                    "result {got}, field {field}: {command:x?} changed something"
                );
            }
        }
        device.command_raw(command_of(op::RECLAIM, &[])).unwrap();
        bystander.check(&bed, &format!("round {round}"));
    }
    println!("answers by result: {results:?}; executed by opcode: {done:?}");
    assert!(results[1..].iter().filter(|n| **n != 0).count() >= 4, "few ways to be refused");
    // CREATE_MR reads its list of pages from wherever the command says; nothing else may have strayed.
    let faults = bed.sim().nic(0).host.iommu.take_faults();
    assert!(faults.iter().all(|f| !f.write), "{faults:x?}");
    assert_eq!(device.health() & 3, 1);
}

#[test]
fn any_command_is_answered() {
    any_commands(&Setup::default(), verilate::scale(2), 40);
}

#[test]
fn any_command_is_answered_by_the_small_core() {
    any_commands(&Setup::small(), verilate::scale(4), 60);
}

/// The firmware's own tests draw ten times as many without a soft core: `no_command_stops_the_firmware`.
#[test]
#[ignore = "an hour: for `./ferroce test --all`"]
fn ten_thousand_commands_are_answered_by_the_soft_core() {
    const EACH: usize = 200;
    any_commands(&Setup::small(), verilate::whole(10_000) / EACH + 1, EACH);
}

/// What a program may ask for and Ferroce does not do: on-demand paging, XRC, path migration, virtual functions.
#[test]
fn what_is_not_done_is_refused_by_name() {
    let bed = Testbed::new(&Setup::small()).unwrap();
    let device = &bed.hosts[0].device;
    let owner = OpenOptions::default().owner.into();
    let pair = bed.connect(&Connect::default()).unwrap();
    let state = u64::from(qp_state::RTS);
    let migrate = |bit: u32| vec![(modify_qp::STATE, state), (modify_qp::MASK, u64::from(attr::STATE | bit))];
    let mask = |bit: u32| modify_qp::MASK.lsb as u64 + u64::from(bit.trailing_zeros());
    let at = |f: Field| f.lsb as u64;
    let qpn = (head::NUMBER, u64::from(pair.a.qp.qpn()));
    for (opcode, fields, field) in [
        (op::CREATE_MR, vec![(create_mr::LENGTH, 1), (create_mr::ON_DEMAND, 1)], at(create_mr::ON_DEMAND)),
        (op::CREATE_QP, vec![(create_qp::TYPE, qp_type::XRC_INI.into())], at(create_qp::TYPE)),
        (op::CREATE_QP, vec![(create_qp::TYPE, qp_type::XRC_TGT.into())], at(create_qp::TYPE)),
        (op::MODIFY_QP, [vec![qpn], migrate(attr::ALT_PATH)].concat(), mask(attr::ALT_PATH)),
        (op::MODIFY_QP, [vec![qpn], migrate(attr::PATH_MIG_STATE)].concat(), mask(attr::PATH_MIG_STATE)),
        (op::SET_VFS, vec![(set_vfs::COUNT, 8)], at(set_vfs::COUNT)),
    ] {
        let mut command = command_of(opcode, &fields);
        head::OWNER.set(&mut command, if opcode == op::SET_VFS { 0 } else { owner });
        let a = device.command_raw(command).unwrap();
        let got = (answer::RESULT.get(&a), answer::FIELD.get(&a));
        assert_eq!(got, (result::UNSUPPORTED.into(), field), "opcode {opcode}: {fields:?}");
    }
    // No capability invites to ask: extended configuration space is empty, so there is no SR-IOV in it.
    let mut extended = [0xff; 4];
    match SimFunction::new(bed.fabric.clone(), 0).config_read(0x100, &mut extended) {
        Ok(()) => assert_eq!(extended, [0; 4]),
        Err(e) => println!("{e}"),
    }
}

#[test]
fn what_cannot_be_told_to_the_device_is_refused_by_the_driver() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    let bed = Testbed::new(&Setup::default()).unwrap();
    let pd = &bed.hosts[0].pd;
    let maps = bed.hosts[0].device.dma_maps();
    for (len, pages, why) in [
        (0, Translation::Auto, "a region of 0 bytes"),
        (usize::MAX, Translation::Auto, "no memory for 18446744073709551615 bytes"),
        (usize::MAX - 100, Translation::Pages(4096), "no memory for"),
        (1 << 60, Translation::Pages(1 << 30), "no memory for"),
        (100, Translation::Pages(5000), "pages of 5000 bytes"),
        (100, Translation::Pages(0), "pages of 0 bytes"),
        (100, Translation::Pages(1 << 63), "pages of 9223372036854775808 bytes"),
        (100, Translation::OnDemand, "CREATE_MR: this device does not do on-demand paging"),
    ] {
        let e = pd.alloc_with(len, Access::all(), pages).err().expect("no such region").to_string();
        assert!(e.contains(why), "{e}");
    }
    assert_eq!(bed.hosts[0].device.dma_maps(), maps);
    let mr = region(pd, 100, Access::all(), noise(1));
    let panics = |f: &mut dyn FnMut()| catch_unwind(AssertUnwindSafe(f)).is_err();
    for offset in [usize::MAX, usize::MAX - 6, 94, 101] {
        assert!(panics(&mut || mr.write(offset, &[0; 7])), "written at {offset}");
        assert!(panics(&mut || mr.read(offset, &mut [0; 7])), "read at {offset}");
    }
    assert!(panics(&mut || _ = mr.byte(100)));
    assert!(panics(&mut || _ = mr.sge(0, 1 << 32)), "a length of 33 bits");
    assert!(panics(&mut || _ = mr.sge(usize::MAX, 1)) && panics(&mut || _ = mr.remote(usize::MAX)));
    assert!(bytes(&mr).iter().enumerate().all(|(i, b)| *b == noise(1)(i)));
    // Numbers of more bits than the device has for them.
    for c in [
        Connect { psn: 1 << 24, ..Connect::default() },
        Connect { send: SendOptions { retry_count: 8, ..SendOptions::default() }, ..Connect::default() },
        Connect { send: SendOptions { timeout: 32, ..SendOptions::default() }, ..Connect::default() },
    ] {
        let e = bed.connect(&c).err().expect("it does not fit").to_string();
        assert!(e.contains("MODIFY_QP: field") && e.contains("does not hold"), "{e}");
    }
}
