//! Multicast groups, and the general service queue pair with its Q_Key.

mod kit;
use abi::{
    cmd::{QKEY, attr, create_cq, create_qp, head, kind, list_owned, mcast, modify_qp as m, op, result::*, set_gid},
    table::{GIDS, MEMBER_STEP, MEMBERS, gid, id, member, qp_send, qp_state::*, qp_type},
    wire::qkey,
};
use kit::*;

const GROUP4: u64 = u32::from_le_bytes([239, 0x81, 2, 3]) as u64;
/// ff0e::1:ff02:304
const GROUP6: (u64, u64) =
    (u64::from_le_bytes([0xff, 0x0e, 0, 0, 0, 0, 0, 0]), u64::from_le_bytes([0, 0, 0, 1, 0xff, 2, 3, 4]));

fn ud(b: &mut Bench) -> u64 {
    b.make(create_qp().with(create_qp::TYPE, qp_type::UD.into()))
}

/// CREATE_QP of owner 0, with its objects.
fn keeper(b: &mut Bench, kind: u8) -> Command {
    let pd = b.make(command(op::CREATE_PD).owner(0));
    let eq = b.make(create_eq().owner(0));
    let cq = b.make(create_cq().with(create_cq::EQN, eq).owner(0));
    let c = create_qp().owner(0).with(create_qp::TYPE, kind.into()).with(create_qp::PD, pd);
    c.with(create_qp::SEND_CQN, cq).with(create_qp::RECV_CQN, cq)
}

fn attach(n: u64, group: u64) -> Command {
    command(op::ATTACH_MCAST).with(mcast::NUMBER, n).with(mcast::IP_LOW, group)
}

fn attach6(n: u64) -> Command {
    attach(n, GROUP6.0).with(mcast::IP_HIGH, GROUP6.1).with(mcast::IS_IP6, 1)
}

fn detach(c: Command) -> Command {
    c.with(head::OPCODE, op::DETACH_MCAST.into())
}

/// QPs that a row of the MEMBER table names.
fn members(b: &Bench, gid: u64) -> Vec<u64> {
    let row = &b.fake.rows[&(id::MEMBER, gid as u32)];
    let all: Vec<u64> =
        (0..MEMBERS).map(|i| abi::Field { lsb: member::QPN.lsb + i * MEMBER_STEP, ..member::QPN }.get(row)).collect();
    let count = all.iter().filter(|n| **n != 0).count();
    assert_eq!(member::LAST.get(row), count.saturating_sub(1) as u64);
    assert!(all[count..].iter().all(|n| *n == 0), "behind the last is nobody: {all:?}");
    all[..count].to_vec()
}

fn row(b: &Bench, gid: u64) -> Bytes {
    b.fake.rows[&(id::GID, gid as u32)]
}

#[test]
fn a_group_lives_with_its_members() {
    let mut b = Bench::new();
    b.qp();
    let qps: Vec<u64> = (0..MEMBERS).map(|_| ud(&mut b)).collect();
    b.fake.acts.clear();
    let at = b.make(attach(qps[0], GROUP4));
    // The members first: when frames come in there is somebody.
    assert_eq!(b.commits(), [(id::MEMBER, at as u32), (id::GID, at as u32)]);
    assert_eq!(at, GIDS as u64 - 1);
    let mut want = [0; 64];
    for (field, value) in [(gid::VALID, 1), (gid::MAC, 0x0302_015e_0001), (gid::IP_LOW, GROUP4)] {
        field.set(&mut want, value);
    }
    assert_eq!(row(&b, at), want);
    for (i, n) in qps.iter().enumerate().skip(1) {
        assert_eq!(b.make(attach(*n, GROUP4)), at);
        assert_eq!(members(&b, at), qps[..=i]);
    }
    assert_eq!(row(&b, at), want);
    // The last one takes the place of one that leaves.
    b.ok(detach(attach(qps[2], GROUP4)));
    assert_eq!(members(&b, at), [&qps[..2], &qps[7..], &qps[3..7]].concat());
    assert_eq!(b.refused(detach(attach(qps[2], GROUP4))), (NO_OBJECT, mcast::IP_LOW.lsb as u64));
    for n in qps.iter().filter(|n| **n != qps[2]) {
        assert!(!b.fake.acts.contains(&Act::Drain));
        b.ok(detach(attach(*n, GROUP4)));
    }
    assert_eq!((row(&b, at), members(&b, at)), ([0; 64], vec![]));
    // No frame comes in any more before nobody is attached, and none is under way when the entry is free.
    let end: Vec<_> = b.fake.acts[b.fake.acts.len() - 3..].to_vec();
    assert!(matches!(end[..], [Act::Commit(id::GID, ..), Act::Commit(id::MEMBER, ..), Act::Drain]), "{end:?}");
}

#[test]
fn groups_are_told_apart_by_address_and_vlan() {
    let mut b = Bench::new();
    b.qp();
    let n = ud(&mut b);
    let tagged = |c: Command, vlan| c.with(mcast::TAGGED, 1).with(mcast::VLAN, vlan);
    let all = [
        attach(n, GROUP4),
        attach(n, GROUP4 ^ 0x8000),
        tagged(attach(n, GROUP4), 0xffe),
        tagged(attach(n, GROUP4), 7),
        attach6(n),
        tagged(attach6(n), 7),
    ];
    for (i, c) in all.iter().enumerate() {
        assert_eq!(b.make(*c), (GIDS - 1 - i) as u64);
        assert_eq!(b.refused(*c), (IN_USE, head::NUMBER.lsb as u64));
    }
    // IPv4 takes a word of the address, and without a tag there is no VLAN.
    for same in [attach(n, GROUP4 | 5 << 32).with(mcast::IP_HIGH, 9), attach(n, GROUP4).with(mcast::VLAN, 9)] {
        assert_eq!(b.refused(same), (IN_USE, head::NUMBER.lsb as u64));
    }
    let six = row(&b, GIDS as u64 - 6);
    assert_eq!([gid::IS_IP6, gid::TAGGED, gid::VLAN].map(|f| f.get(&six)), [1, 1, 7]);
    assert_eq!([gid::MAC, gid::IP_LOW, gid::IP_HIGH].map(|f| f.get(&six)), [0x0403_02ff_3333, GROUP6.0, GROUP6.1]);
    for c in all {
        b.ok(detach(c));
    }
    assert!((GIDS - 6..GIDS).all(|i| row(&b, i as u64) == [0; 64]));
}

#[test]
fn what_cannot_be_attached_is_named() {
    let mut b = Bench::new();
    let rc = b.qp();
    let n = ud(&mut b);
    let number = mcast::NUMBER;
    let gsi = keeper(&mut b, qp_type::GSI);
    let gsi = b.make(gsi);
    let raw = b.make(create_qp().with(create_qp::TYPE, qp_type::RAW.into()));
    let good = attach(n, GROUP4);
    for (c, verdict, field) in [
        (good.with(number, rc), BAD_FIELD, number),
        (good.with(number, raw), BAD_FIELD, number),
        (good.with(number, gsi).owner(0), BAD_FIELD, number),
        (good.with(number, gsi), NOT_OWNER, number),
        (good.with(number, 200), NO_OBJECT, number),
        (good.with(number, 0xff_ffff), NO_OBJECT, number),
        (good.owner(2), NOT_OWNER, number),
        (good.with(mcast::IP_LOW, 0x0100_000a), BAD_FIELD, mcast::IP_LOW),
        (good.with(mcast::IP_LOW, 223), BAD_FIELD, mcast::IP_LOW),
        (good.with(mcast::IP_LOW, 240), BAD_FIELD, mcast::IP_LOW),
        (good.with(mcast::IP_LOW, 255), BAD_FIELD, mcast::IP_LOW),
        (attach6(n).with(mcast::IP_LOW, 0xfe), BAD_FIELD, mcast::IP_LOW),
        (good.with(mcast::TAGGED, 1).with(mcast::VLAN, 0xfff), BAD_FIELD, mcast::VLAN),
        (good.with(mcast::TAGGED, 1).with(mcast::VLAN, 0), BAD_FIELD, mcast::VLAN),
        (detach(good), NO_OBJECT, mcast::IP_LOW),
    ] {
        assert_eq!(b.refused(c), (verdict, field.lsb as u64), "{:?} {}", c.0, field.name);
    }
    b.ok(good);
}

#[test]
fn a_full_group_and_a_full_table_have_no_room() {
    let mut b = Bench::new();
    b.qp();
    let qps: Vec<u64> = (0..=MEMBERS).map(|_| ud(&mut b)).collect();
    for n in &qps[..MEMBERS] {
        b.ok(attach(*n, GROUP4));
    }
    assert_eq!(b.refused(attach(qps[MEMBERS], GROUP4)), (NO_ROOM, 0));
    // A port with all its addresses has no entry for a group, and they none for an address.
    for i in 1..GIDS as u64 - 1 {
        b.ok(gid4(i));
    }
    let (used, set) = ((IN_USE, set_gid::INDEX.lsb as u64), gid4(GIDS as u64 - 1));
    assert_eq!(b.refused(set), used);
    assert_eq!(b.refused(set.with(set_gid::VALID, 0)), used);
    assert_eq!(b.refused(attach(qps[0], GROUP4 + (1 << 24))), (NO_ROOM, 0));
    for n in &qps[..MEMBERS] {
        b.ok(detach(attach(*n, GROUP4)));
    }
    b.ok(set);
    assert_eq!(b.refused(attach(qps[0], GROUP4)), (NO_ROOM, 0));
    b.ok(set.with(set_gid::VALID, 0));
    b.ok(attach(qps[0], GROUP4));
}

/// As many groups as the firmware keeps: more than one card has, on a small one a few.
#[test]
fn groups_are_as_many_as_the_card_has_room_for() {
    let mut b = Bench::on(Fake {
        limits: [5 | 6 << 8 | 8 << 16 | 3 << 24, 14 | 5 << 8 | 7 << 16 | 4 << 24],
        ..Fake::default()
    });
    b.qp();
    let n = ud(&mut b);
    for i in 0..4 {
        b.ok(attach(n, GROUP4 + (i << 24)));
    }
    assert_eq!(b.refused(attach(n, GROUP4 + (4 << 24))), (NO_ROOM, 0));
    b.ok(detach(attach(n, GROUP4 + (2 << 24))));
    b.ok(attach(n, GROUP4 + (4 << 24)));
}

#[test]
fn nobody_sends_from_a_group() {
    let mut b = Bench::new();
    b.qp();
    let n = ud(&mut b);
    let at = b.make(attach(n, GROUP4));
    assert_eq!(b.refused(create_ah().with(m::GID, at)), (NO_OBJECT, m::GID.lsb as u64));
}

#[test]
fn an_address_handle_leads_to_a_group_by_its_mac() {
    let mut b = Bench::new();
    b.qp();
    let to = create_ah().with(m::DIP_LOW, GROUP4).with(m::DMAC, 0x0302_015e_0001);
    for mac in [0x0302_815e_0001, 0x0302_015e_0003, 0x0302_0100_0002] {
        assert_eq!(b.refused(to.with(m::DMAC, mac)), (BAD_FIELD, m::DMAC.lsb as u64), "{mac:#x}");
    }
    b.ok(to);
    b.ok(gid6(1));
    let to = create_ah().with(m::GID, 1).with(m::DIP_LOW, GROUP6.0).with(m::DIP_HIGH, GROUP6.1);
    b.ok(to.with(m::DMAC, 0x0403_02ff_3333));
    assert_eq!(b.refused(to.with(m::DMAC, 0x0302_015e_0001)), (BAD_FIELD, m::DMAC.lsb as u64));
    // A connection does not.
    let n = b.make(create_qp());
    b.bring(n, INIT);
    let rtr = modify(n, RTR, TO_RTR).with(m::DIP_LOW, GROUP4).with(m::DMAC, 0x0302_015e_0001);
    assert_eq!(b.refused(rtr), (BAD_FIELD, m::DMAC.lsb as u64));
    assert_eq!(b.refused(rtr.with(m::DMAC, 2)), (BAD_FIELD, m::DIP_LOW.lsb as u64));
}

#[test]
fn the_end_of_a_queue_pair_detaches_it() {
    let mut b = Bench::new();
    b.qp();
    let (one, two) = (ud(&mut b), ud(&mut b));
    let first = b.make(attach(one, GROUP4));
    b.ok(attach(two, GROUP4));
    let second = b.make(attach(one, GROUP4 + (1 << 24)));
    b.bring_by(one, RTS, [attr::PKEY_INDEX | attr::PORT | attr::QKEY, 0, attr::SQ_PSN]);
    b.fake.acts.clear();
    b.ok(command(op::DESTROY_QP).number(one));
    assert_eq!((members(&b, first), members(&b, second), row(&b, second)), (vec![two], vec![], [0; 64]));
    // Before it is reset: behind the drains of that no copy for it is under way.
    let at = |want: u8| b.fake.acts.iter().position(|a| matches!(a, Act::Commit(table, ..) if *table == want)).unwrap();
    assert!(at(id::MEMBER) < at(id::QP_STATE));
    // Nor does one live on that its owner leaves behind.
    b.ok(command(op::RECLAIM));
    assert_eq!((members(&b, first), row(&b, first)), (vec![], [0; 64]));
    b.ok(gid4(first));
}

#[test]
fn the_general_service_queue_pair_is_number_1_and_has_its_qkey() {
    let mut b = Bench::new();
    b.qp();
    let gsi = create_qp().with(create_qp::TYPE, qp_type::GSI.into());
    assert_eq!(b.refused(gsi), (NOT_OWNER, head::OWNER.lsb as u64));
    let own = keeper(&mut b, qp_type::GSI);
    assert_eq!(b.make(own), 1);
    assert_eq!(b.refused(own), (NO_ROOM, 0));
    // Nobody else gets its number, when it is gone either.
    b.ok(command(op::DESTROY_QP).number(1).owner(0));
    for _ in 0..300 {
        let a = b.try_(create_qp());
        assert_ne!(a.get(abi::cmd::answer::NUMBER), 1);
    }
    b.ok(own);
    let init = |key: u32| {
        command(op::MODIFY_QP)
            .number(1)
            .owner(0)
            .with(m::MASK, u64::from(attr::STATE | attr::PKEY_INDEX | attr::PORT | attr::QKEY))
            .with(m::STATE, INIT.into())
            .with(m::PORT, 1)
            .with(QKEY, key.into())
    };
    for key in [0, 1, 0x1234, qkey::QP1 + 1, qkey::QP1 ^ qkey::PRIVILEGED] {
        assert_eq!(b.refused(init(key)), (BAD_FIELD, QKEY.lsb as u64), "{key:#x}");
    }
    b.ok(init(qkey::QP1));
    let again = init(9).with(m::MASK, attr::QKEY.into());
    assert_eq!(b.refused(again), (BAD_FIELD, QKEY.lsb as u64));
    b.ok(again.with(QKEY, qkey::QP1.into()));
    // It is a datagram QP that may name privileged Q_Keys.
    let send = &b.fake.rows[&(id::QP_SEND, 1)];
    assert_eq!((qp_send::TYPE.get(send), qp_send::MAX_READS.get(send)), (qp_type::UD.into(), 1));
    let list = command(op::LIST_OWNED).owner(0).with(list_owned::KIND, kind::QP.into());
    assert_eq!(b.try_(list).get(abi::cmd::answer::NUMBER), 1);
}

#[test]
fn privileged_qkeys_are_owner_0s() {
    let mut b = Bench::new();
    b.qp();
    let n = ud(&mut b);
    let mine = keeper(&mut b, qp_type::UD);
    let mine = b.make(mine);
    for (qp, owner, key, good) in [
        (n, 1, qkey::QP1, false),
        (n, 1, qkey::PRIVILEGED, false),
        (n, 1, qkey::PRIVILEGED - 1, true),
        (mine, 0, qkey::QP1, true),
        (mine, 0, u32::MAX, true),
    ] {
        let c = command(op::MODIFY_QP)
            .number(qp)
            .owner(owner)
            .with(m::MASK, u64::from(attr::STATE | attr::PKEY_INDEX | attr::PORT | attr::QKEY))
            .with(m::STATE, INIT.into())
            .with(m::PORT, 1)
            .with(QKEY, key.into());
        if good {
            b.ok(c);
            let row = &b.fake.rows[&(id::QP_SEND, qp as u32)];
            assert_eq!(qp_send::MAX_READS.get(row), u64::from(owner == 0));
            b.ok(command(op::MODIFY_QP).number(qp).owner(owner).with(m::MASK, attr::STATE.into()));
        } else {
            assert_eq!(b.refused(c), (BAD_FIELD, QKEY.lsb as u64));
        }
    }
}
