//! Random commands: none may stop the firmware, and whatever they made can be taken back.

mod kit;
use abi::{
    cmd::{
        BURST, QUOTA, answer, attr, create_ah, create_cq, create_mr, create_qp, create_srq, head, key_kind, kind,
        list_owned, mcast, modify_qp as m, modify_srq, op, resize_cq, result::*,
    },
    queue::{key_wqe, send_op, send_wqe},
    table::{id, qp_send, qp_state::*, qp_type, verdict},
};
use kit::*;
use plane::Load;
use std::collections::{BTreeMap, BTreeSet};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 32) % n
    }
}

/// What was made of each kind, by owner: some of it is gone.
#[derive(Default)]
struct Made(BTreeMap<(u64, u8), Vec<u64>>);

impl Made {
    /// Mostly one of the latest of the owner's objects that were made by `opcode`; else any number.
    fn any(&self, r: &mut Random, owner: u64, opcode: u8) -> u64 {
        match self.0.get(&(owner, opcode)) {
            Some(all) if r.below(8) > 0 => all[all.len() - 1 - r.below(all.len().min(3) as u64) as usize],
            _ => r.below(12),
        }
    }
}

/// Attributes that the ways to INIT, RTR and RTS need: of RC, UC, UD.
const NEEDED: [[u32; 3]; 3] = [
    [TO_INIT, TO_RTR, TO_RTS],
    [TO_INIT, attr::AV | attr::PATH_MTU | attr::DEST_QPN | attr::RQ_PSN, attr::SQ_PSN],
    [attr::PKEY_INDEX | attr::PORT | attr::QKEY, 0, attr::SQ_PSN],
];

/// A queue pair of any type, with receives of its own or shared ones.
fn any_qp(r: &mut Random, owner: u64, made: &Made) -> Command {
    let types = [qp_type::RC, qp_type::RC, qp_type::UC, qp_type::UD, qp_type::GSI];
    let [pd, send, recv, srq] =
        [op::CREATE_PD, op::CREATE_CQ, op::CREATE_CQ, op::CREATE_SRQ].map(|kind| made.any(r, owner, kind));
    let c = create_qp()
        .with(create_qp::TYPE, types[r.below(5) as usize].into())
        .with(create_qp::PD, pd)
        .with(create_qp::SEND_CQN, send)
        .with(create_qp::RECV_CQN, recv);
    match r.below(3) {
        0 => c.with(create_qp::SHARED, 1).with(create_qp::SRQN, srq).with(create_qp::RQ_SGES, 1),
        1 => c.with(create_qp::RQ_SGES, 1),
        _ => c,
    }
}

/// A region, of any kind of translation; one that is registered later; one that windows may be bound to; a window.
fn any_mr(r: &mut Random, pd: u64) -> Command {
    let c = match r.below(4) {
        0 => create_mr(0, 1 + r.below(64)).with(create_mr::KIND, key_kind::FAST.into()),
        1 => command(op::CREATE_MR).with(create_mr::KIND, key_kind::WINDOW.into()),
        _ => create_mr(r.next(), 1 << r.below(31))
            .with(create_mr::CONTIGUOUS, r.below(2))
            .with(create_mr::BINDS, r.below(2)),
    };
    c.with(create_mr::PD, pd)
}

/// A command that is mostly sound.
fn likely(r: &mut Random, b: &Bench, owner: u64, made: &Made) -> Command {
    let mut of = |opcode| made.any(r, owner, opcode);
    let (pd, eq, cq, qp, srq) =
        (of(op::CREATE_PD), of(op::CREATE_EQ), of(op::CREATE_CQ), of(op::CREATE_QP), of(op::CREATE_SRQ));
    let n = qp;
    let c = match r.below(32) {
        0 => command(op::CREATE_PD),
        1 => create_eq(),
        2 => create_cq().with(create_cq::EQN, eq),
        3..=5 => any_qp(r, owner, made),
        // A few groups for datagrams.
        6 | 7 => command([op::ATTACH_MCAST, op::DETACH_MCAST][r.below(2) as usize])
            .with(mcast::NUMBER, n)
            .with(mcast::IP_LOW, 0xe0 | r.below(4) << 24),
        8 | 9 => any_mr(r, pd),
        10 => {
            let (end, make) = [
                (op::DESTROY_PD, op::CREATE_PD),
                (op::DESTROY_CQ, op::CREATE_CQ),
                (op::DESTROY_EQ, op::CREATE_EQ),
                (op::DESTROY_MR, op::CREATE_MR),
                (op::DESTROY_AH, op::CREATE_AH),
                (op::DESTROY_SRQ, op::CREATE_SRQ),
            ][r.below(6) as usize];
            command(end).number(made.any(r, owner, make))
        }
        11 => command(op::DESTROY_QP).number(n),
        12 => gid4(r.below(4)),
        13 => gid6(r.below(4)),
        14 if r.below(2) == 0 => command(op::QUERY_SRQ).number(srq),
        14 => command(op::QUERY_QP).number(n),
        15 => modify(n, r.below(7) as u8, 0),
        16 => {
            let quota = r.below(3) * r.below(1 << 28);
            modify(n, RTS, attr::RATE_LIMIT).with(QUOTA, quota & 0xfff_ffff).with(BURST, r.below(256))
        }
        17 => command(op::CREATE_SRQ)
            .with(create_srq::LOG2, r.below(14))
            .with(create_srq::PD, pd)
            .with(create_srq::SGES, 1)
            .with(create_srq::BASE, 0x4_4440_0040),
        18 => command(op::MODIFY_SRQ).number(srq).with(modify_srq::LIMIT, 1 << r.below(16)),
        19 => create_ah().with(create_ah::PD, pd).with(m::GID, r.below(4)),
        20 => command(op::RESIZE_CQ)
            .number(cq)
            .with(resize_cq::LOG2_ENTRIES, r.below(23))
            .with(resize_cq::BASE, r.below(1 << 30) << 12),
        _ => {
            // Mostly the next state of its life.
            let [to_init, to_rtr, to_rts] = NEEDED[r.below(3) as usize];
            let now = if r.below(4) > 0 { b.state(n) } else { r.below(5) as u8 };
            let (state, mask) = match now {
                RESET => (INIT, to_init),
                INIT => (RTR, to_rtr),
                RTR => (RTS, to_rts),
                RTS if r.below(4) == 0 => (SQD, 0),
                RTS | SQD => (RTS, 0),
                _ => (RESET, 0),
            };
            modify(n, state, mask).with(m::GID, r.below(4))
        }
    };
    c.owner(owner)
}

/// A QP in RTS asks for a registration or a binding: mostly of a key that there is, or was. The answer is a verdict, whatever it is.
fn ask(r: &mut Random, b: &mut Bench, n: u64, keys: &[(u64, Command)], seed: u64) -> bool {
    if b.state(n) != RTS {
        return false;
    }
    let mut wqe = [0; 64];
    // Sound if the kinds are right, and nobody has opened or destroyed them.
    let mut latest = |later: bool| {
        let all = keys.iter().rev().filter(|k| (create_mr::KIND.get(&k.1.0) != 0) == later);
        let some: Vec<_> = all.take(6).collect();
        some.get(r.below(6) as usize).copied().copied()
    };
    let (Some((key, made)), Some((lkey, ground))) = (latest(true), latest(false)) else { return false };
    let window = create_mr::KIND.get(&made.0) == u64::from(key_kind::WINDOW);
    let (opcode, of) = if window { (send_op::BIND_MW, ground) } else { (send_op::REG_MR, made) };
    let rkey = if r.below(8) == 0 { key ^ r.next() } else { key };
    for (field, value) in [
        (send_wqe::OPCODE, opcode.into()),
        (send_wqe::BLOCKS, 1),
        (send_wqe::REMOTE_VA, create_mr::VA.get(&of.0)),
        (send_wqe::RKEY, rkey & 0xffff_ffff),
        (key_wqe::ACCESS, if window { 4 } else { 15 }),
        (key_wqe::LKEY, lkey & 0xffff_ffff),
        (key_wqe::SIZE, 1 << r.below(16)),
        (key_wqe::PAGES, r.below(2)),
    ] {
        field.set(&mut wqe, value);
    }
    if r.below(4) == 0 {
        wqe[r.below(64) as usize] = r.next() as u8;
    }
    // Where `create_qp` has its send ring.
    let at = 0x1_2345_6780;
    b.fake.memory.insert(at, wqe);
    b.fake.ask = 1 << 31 | (n as u32) << 16;
    b.fake.acts.clear();
    assert!(b.plane.watch_asks(&mut b.fake), "seed {seed}");
    let Some(Act::Commit(id::QP_SEND, q, row)) = b.fake.acts.last() else { panic!("seed {seed}: {:?}", b.fake.acts) };
    let said = qp_send::VERDICT.get(row) as u8;
    assert_eq!((u64::from(*q), said & verdict::DONE), (n, verdict::DONE), "seed {seed}");
    b.fake.ask = 0;
    b.fake.memory.remove(&at);
    said == verdict::DONE
}

#[test]
fn no_command_stops_the_firmware() {
    let number = |name, default: u64| match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text}: want a whole number")),
        Err(_) => default,
    };
    let shift = number("FERROCE_SEED", 0);
    println!("random, FERROCE_SEED={shift}"); // by which `./ferroce test --all` knows what to repeat
    let (mut kinds, mut asked) = ([0; 29], 0);
    for seed in (1..=20 * number("FERROCE_SCALE", 1)).map(|seed| seed + (shift << 32)) {
        let mut r = Random(seed);
        let mut b = Bench::new();
        let mut made = 0;
        let (mut keys, mut all) = (vec![(0, create_mr(0, 1))], Made::default());
        for _ in 0..5_000 {
            let owner = r.below(3);
            let mut c = likely(&mut r, &b, owner, &all);
            // One in four is bent somewhere, one in sixteen is noise.
            match r.below(16) {
                0 => c.0.iter_mut().skip(1).for_each(|byte| *byte = r.next() as u8),
                1..=3 => c.0[r.below(64) as usize] = r.next() as u8,
                _ => {}
            }
            head::OWNER.set(&mut c.0, if r.below(50) == 0 { r.below(4096) } else { owner });
            b.fake.load = if r.below(20) == 0 { Load::BadAddress } else { Load::Done };
            if r.below(30) == 0 {
                b.set_state(r.below(12), ERR);
            }
            if r.below(3) == 0 {
                let n = all.any(&mut r, owner, op::CREATE_QP);
                asked += u64::from(ask(&mut r, &mut b, n, &keys, seed));
            }
            b.fake.acts.clear();
            let opcode = usize::from(c.0[0]);
            let a = b.try_(c);
            let (result, field) = a.verdict();
            made += u64::from(result == OK);
            if result == OK {
                kinds[opcode] += 1;
                all.0.entry((head::OWNER.get(&c.0), opcode as u8)).or_default().push(a.get(answer::NUMBER));
                if opcode == usize::from(op::CREATE_MR) {
                    keys.push((a.get(answer::VALUE), c));
                }
            }
            match result {
                BAD_FIELD | NO_OBJECT => assert!(field < 512, "seed {seed}: field {field}"),
                MISSING_ATTRIBUTE | FORBIDDEN_ATTRIBUTE => assert!(field < 32),
                _ => assert!(result <= DEVICE_ERROR),
            }
            if result != OK && c.0[0] != op::RECLAIM {
                assert_eq!(b.commits(), [], "seed {seed}");
            }
        }
        assert!(made > 500, "seed {seed}: {made} commands had an effect");
        // Users of shared event queues first.
        let owners: BTreeSet<_> = all.0.keys().map(|(owner, _)| *owner).collect();
        for owner in owners.into_iter().rev() {
            b.ok(command(op::RECLAIM).owner(owner));
            for what in kind::QP..=kind::SRQ {
                let list = command(op::LIST_OWNED).owner(owner).with(list_owned::KIND, what.into());
                assert_eq!(b.ok(list).get(answer::VALUE), 0);
            }
        }
        // No reference is left over: all can be made again, and addresses can be changed.
        (0..4).for_each(|i| {
            b.ok(gid4(i));
        });
        b.fake.load = Load::Done;
        for _ in 0..3 {
            let pd = b.make(command(op::CREATE_PD));
            b.ok(create_mr(0, 1 << 30).with(create_mr::PD, pd));
            b.ok(command(op::RECLAIM));
        }
    }
    // Each kind of command has an effect now and then, but what is owner 0's and what is not done.
    let rare = [op::SET_PORT, op::SET_MULTICAST, op::SET_VFS, op::RECLAIM, op::NOP, op::LIST_OWNED, op::QUERY_DEVICE];
    let never = (0..kinds.len()).filter(|k| kinds[*k] == 0 && !rare.contains(&(*k as u8)));
    assert_eq!(never.collect::<Vec<_>>(), [0; 0], "{kinds:?}");
    assert!(asked > 10, "{asked} keys were opened");
}
