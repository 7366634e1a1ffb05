//! Random commands: none may stop the firmware, and whatever they made can be taken back.

mod kit;
use abi::{
    cmd::{BURST, QUOTA, attr, create_mr, create_qp, head, kind, list_owned, mcast, modify_qp as m, op, result::*},
    table::{qp_state::*, qp_type},
};
use kit::*;
use plane::Load;

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

/// A command that is mostly sound.
fn likely(r: &mut Random, owner: u64) -> Command {
    let n = r.below(12);
    let c = match r.below(20) {
        0 => command(op::CREATE_PD),
        1 => create_eq(),
        2 => create_cq(),
        3..=4 => create_qp(),
        // Datagrams, and a few groups for them.
        16 => create_qp().with(create_qp::TYPE, [qp_type::UD, qp_type::GSI][r.below(2) as usize].into()),
        17 | 18 => command([op::ATTACH_MCAST, op::DETACH_MCAST][r.below(2) as usize])
            .with(mcast::NUMBER, n)
            .with(mcast::IP_LOW, 0xe0 | r.below(4) << 24),
        5 => create_mr(r.next(), 1 << r.below(31)).with(create_mr::CONTIGUOUS, r.below(2)),
        6 => command([op::DESTROY_PD, op::DESTROY_CQ, op::DESTROY_EQ, op::DESTROY_MR][r.below(4) as usize]).number(n),
        7 => command(op::DESTROY_QP).number(n),
        8 => gid4(r.below(4)),
        9 => gid6(r.below(4)),
        10 => command(op::QUERY_QP).number(n),
        11 => modify(n, r.below(7) as u8, 0),
        12 => {
            let quota = r.below(3) * r.below(1 << 28);
            modify(n, RTS, attr::RATE_LIMIT).with(QUOTA, quota & 0xfff_ffff).with(BURST, r.below(256))
        }
        _ => {
            let (state, mask) = [(INIT, TO_INIT), (RTR, TO_RTR), (RTS, TO_RTS), (SQD, 0)][r.below(4) as usize];
            modify(n, state, mask).with(m::GID, r.below(4))
        }
    };
    c.owner(owner)
}

#[test]
fn no_command_stops_the_firmware() {
    let number = |name, default: u64| match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text}: want a whole number")),
        Err(_) => default,
    };
    let shift = number("FERROCE_SEED", 0);
    println!("random, FERROCE_SEED={shift}"); // by which `./ferroce test --all` knows what to repeat
    for seed in (1..=20 * number("FERROCE_SCALE", 1)).map(|seed| seed + (shift << 32)) {
        let mut r = Random(seed);
        let mut b = Bench::new();
        let mut made = 0;
        for _ in 0..5_000 {
            let owner = r.below(3);
            let mut c = likely(&mut r, owner);
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
            b.fake.acts.clear();
            let a = b.try_(c);
            let (result, field) = a.verdict();
            made += u64::from(result == OK);
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
        for owner in [1, 2, 0] {
            b.ok(command(op::RECLAIM).owner(owner));
            for what in kind::QP..=kind::AH {
                let list = command(op::LIST_OWNED).owner(owner).with(list_owned::KIND, what.into());
                assert_eq!(b.ok(list).get(abi::cmd::answer::VALUE), 0);
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
}
