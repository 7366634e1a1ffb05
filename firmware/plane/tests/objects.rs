//! Numbers, owners, references, and the checks of everything but MODIFY_QP.

mod kit;
use abi::{
    Field,
    cmd::{
        answer, attr, create_ah, create_cq, create_eq, create_mr, create_qp, device, head, kind, list_owned,
        modify_qp as m, op, result::*, set_gid, set_multicast, set_port, set_vfs,
    },
    table::{access, id, qp_address, qp_state::*, qp_type},
};
use kit::*;
use plane::Load;

fn destroy(opcode: u8, n: u64) -> Command {
    command(opcode).number(n)
}

const IN_USE_AT: (u8, u64) = (IN_USE, head::NUMBER.lsb as u64);

#[test]
fn impossible_fields_are_named() {
    let mut b = Bench::new();
    b.qp();
    let max = |f: Field| f.max();
    let mr = create_mr(0x1000, 0x1000);
    let port = command(op::SET_PORT).with(set_port::MAC, 2);
    let limited = port.with(set_port::RAW_CYCLES, 100).with(set_port::RAW_BURST, 1);
    let group = command(op::SET_MULTICAST).with(set_multicast::VALID, 1).with(set_multicast::MAC, 0xff3333);
    let cases: &[(Command, Field, u64, u8)] = &[
        (command(op::NOP), head::OWNER, 16, BAD_FIELD),
        (command(op::NOP), head::OPCODE, 29, BAD_OPCODE),
        (command(op::NOP), head::OPCODE, 255, BAD_OPCODE),
        (create_eq(), create_eq::LOG2_ENTRIES, 23, BAD_FIELD),
        (create_eq(), create_eq::VECTOR, 32, BAD_FIELD),
        (create_eq(), create_eq::BASE, 0x800, BAD_FIELD),
        (create_eq().with(create_eq::LOG2_ENTRIES, 9), create_eq::BASE, max(create_eq::BASE) - 0xfff, BAD_FIELD),
        (create_cq(), create_cq::LOG2_ENTRIES, 31, BAD_FIELD),
        (create_cq(), create_cq::EQN, 1, NO_OBJECT),
        (create_cq(), create_cq::EQN, 255, NO_OBJECT),
        (create_cq(), create_cq::BASE, 1, BAD_FIELD),
        (create_qp(), create_qp::PD, 1, NO_OBJECT),
        (create_qp(), create_qp::PD, 0xffff, NO_OBJECT),
        (create_qp(), create_qp::SEND_CQN, 7, NO_OBJECT),
        (create_qp(), create_qp::RECV_CQN, 0xff_ffff, NO_OBJECT),
        (create_qp(), create_qp::SQ_BASE, 32, BAD_FIELD),
        (create_qp(), create_qp::RQ_SGES, 0, BAD_FIELD),
        (create_qp(), create_qp::RQ_SGES, 5, BAD_FIELD),
        (create_qp(), create_qp::RQ_LOG2, 14, BAD_FIELD),
        (create_qp(), create_qp::RQ_BASE, u64::MAX - 63, BAD_FIELD),
        (mr, create_mr::PD, 9, NO_OBJECT),
        (mr, create_mr::ACCESS, 2, BAD_FIELD),
        (mr, create_mr::ACCESS, 8, BAD_FIELD),
        (mr, create_mr::PAGE_SHIFT, 13, BAD_FIELD),
        (mr, create_mr::PAGE_SHIFT, 0, BAD_FIELD),
        (mr, create_mr::LENGTH, 0, BAD_FIELD),
        (mr, create_mr::LENGTH, u64::MAX - 0xfff, BAD_FIELD),
        (mr, create_mr::LENGTH, (1 << 30) + 1, BAD_FIELD), // more pages than the table has entries
        (mr, create_mr::PAGES, 4, BAD_FIELD),
        (mr, create_mr::PAGES, u64::MAX - 7 + 4, BAD_FIELD),
        (mr.with(create_mr::CONTIGUOUS, 1), create_mr::PAGES, u64::MAX - 0xffe, BAD_FIELD),
        (gid4(0), set_gid::INDEX, 16, BAD_FIELD),
        (gid4(0), set_gid::MAC, 0, BAD_FIELD),
        (gid4(0), set_gid::MAC, 1, BAD_FIELD),
        (gid4(0), set_gid::IP_LOW, 0xffff_0000_0000, BAD_FIELD),
        (gid4(0), set_gid::IP_LOW, 239, BAD_FIELD),
        (gid6(0), set_gid::IP_LOW, 0xff, BAD_FIELD),
        (gid6(0), set_gid::VLAN, 0xfff, BAD_FIELD),
        (port, set_port::MAC, 0, BAD_FIELD),
        (port, set_port::MAC, 3, BAD_FIELD),
        (limited, set_port::RAW_BURST, 0, BAD_FIELD),
        (group, set_multicast::INDEX, 16, BAD_FIELD),
        (group, set_multicast::MAC, 0x20, BAD_FIELD),
        (group, set_multicast::MAC, 0xffff_ffff_ffff, BAD_FIELD),
        (command(op::LIST_OWNED), list_owned::KIND, 7, BAD_FIELD),
        (create_ah(), create_ah::PD, 1, NO_OBJECT),
        (create_ah(), m::GID, 1, NO_OBJECT),
        (create_ah(), m::GID, 255, NO_OBJECT),
        (create_ah(), m::TRAFFIC_CLASS, 3, BAD_FIELD),
        (create_ah(), m::HOP_LIMIT, 0, BAD_FIELD),
        (create_ah(), m::DMAC, 1, BAD_FIELD),
        (create_ah(), m::DIP_LOW, 255, BAD_FIELD),
    ];
    for (good, field, value, result) in cases {
        let got = b.refused(good.with(*field, *value));
        assert_eq!(got, (*result, field.lsb as u64), "opcode {} {} = {value:#x}", good.0[0], field.name);
    }
    for (good, ..) in cases {
        b.ok(*good);
    }
    b.ok(mr.with(create_mr::VA, 0u64.wrapping_sub(0x1000)));
    b.ok(mr.with(create_mr::CONTIGUOUS, 1).with(create_mr::PAGES, u64::MAX - 0xfff));
}

/// An atomic is aligned by its virtual address: one stretch of bus addresses must be aligned as that is.
#[test]
fn a_region_for_atomics_lies_in_memory_as_it_is_addressed() {
    let mut b = Bench::new();
    b.qp();
    let all = (access::LOCAL_WRITE | access::REMOTE_ATOMIC) as u64;
    for (va, pages, flags, sound) in [
        (0x1000, 0x2004, all, false),
        (0x1003, 0x2008, all, false),
        (0x1003, 0x200b, all, true),
        (0x1000, 0x2004, access::LOCAL_WRITE as u64, true),
    ] {
        let mr = create_mr(va, 64).with(create_mr::CONTIGUOUS, 1).with(create_mr::PAGES, pages);
        let mr = mr.with(create_mr::ACCESS, flags);
        if sound {
            b.ok(mr);
        } else {
            assert_eq!(b.refused(mr), (BAD_FIELD, create_mr::PAGES.lsb as u64), "{va:#x} at {pages:#x}");
        }
    }
}

fn is_unsupported(good: Command, field: Field, values: &[u64]) {
    let mut b = Bench::new();
    b.qp();
    for value in values {
        assert_eq!(b.refused(good.with(field, *value)), (UNSUPPORTED, field.lsb as u64), "{} = {value}", field.name);
    }
    b.ok(good);
}

#[test]
fn on_demand_paging_is_refused_by_name() {
    is_unsupported(create_mr(0x1000, 0x1000), create_mr::ON_DEMAND, &[1]);
    is_unsupported(create_mr(0x1000, 0x1000).with(create_mr::CONTIGUOUS, 1), create_mr::ON_DEMAND, &[1]);
}

#[test]
fn xrc_queue_pairs_are_refused_by_name() {
    let mut others: Vec<u64> = (qp_type::XRC_INI.into()..=create_qp::TYPE.max()).collect();
    others.retain(|kind| *kind != qp_type::GSI.into());
    is_unsupported(create_qp(), create_qp::TYPE, &others);
}

/// The firmware takes them from RAM that it has cleared.
#[test]
fn places_without_an_object_are_zeros() {
    fn check<T>(none: T) {
        // SAFETY: bytes of a value without padding: its fields are as long as it.
        let bytes = unsafe { std::slice::from_raw_parts((&raw const none).cast::<u8>(), size_of::<T>()) };
        assert!(bytes.iter().all(|b| *b == 0), "{}", std::any::type_name::<T>());
    }
    check(plane::Object::NONE);
    check(plane::Qp::NONE);
    check(plane::Handle::NONE);
    check(plane::Key::NONE);
    check(plane::Ground::NONE);
    check(plane::Group::NONE);
}

#[test]
fn virtual_functions_are_refused_by_name() {
    is_unsupported(command(op::SET_VFS).owner(0), set_vfs::COUNT, &[1, 2, 0xffff]);
}

#[test]
fn path_migration_is_refused_by_name() {
    let mut b = Bench::new();
    let qp = b.qp();
    b.bring(qp, RTS);
    for bit in [attr::ALT_PATH, attr::PATH_MIG_STATE] {
        let field = m::MASK.lsb as u64 + u64::from(bit.trailing_zeros());
        assert_eq!(b.refused(modify(qp, RTS, bit)), (UNSUPPORTED, field));
    }
    b.ok(modify(qp, RTS, 0));
}

#[test]
fn objects_in_use_stay() {
    let mut b = Bench::new();
    let qp = b.qp();
    let mr = b.make(create_mr(0, 1));
    assert_eq!(b.refused(destroy(op::DESTROY_PD, 0)), IN_USE_AT);
    assert_eq!(b.refused(destroy(op::DESTROY_CQ, 0)), IN_USE_AT);
    assert_eq!(b.refused(destroy(op::DESTROY_EQ, 0)), IN_USE_AT);
    b.bring(qp, RTR);
    let gid_in_use = (IN_USE, set_gid::INDEX.lsb as u64);
    assert_eq!(b.refused(gid6(0)), gid_in_use);
    b.ok(gid6(3));
    // A new address lets the old one go.
    b.ok(modify(qp, RTS, TO_RTS));
    b.ok(modify(qp, SQD, 0));
    b.ok(modify(qp, SQD, attr::AV).with(m::GID, 3));
    b.ok(gid4(0));
    assert_eq!(b.refused(gid6(3)), gid_in_use);
    b.ok(destroy(op::DESTROY_QP, qp));
    b.ok(gid6(3));
    assert_eq!(b.refused(destroy(op::DESTROY_PD, 0)), IN_USE_AT);
    b.ok(destroy(op::DESTROY_MR, mr));
    assert_eq!(b.refused(destroy(op::DESTROY_EQ, 0)), IN_USE_AT);
    for opcode in [op::DESTROY_PD, op::DESTROY_CQ, op::DESTROY_EQ] {
        b.ok(destroy(opcode, 0));
        assert_eq!(b.refused(destroy(opcode, 0)), (NO_OBJECT, head::NUMBER.lsb as u64));
    }
}

/// Of a handle its row is written, which names its protection domain; its owner, its GID and its domain count on it.
#[test]
fn address_handles_are_rows_of_their_own() {
    let mut b = Bench::new();
    b.qp();
    let n = b.make(create_ah().with(m::GID, 3));
    assert_eq!(b.commits(), [(id::AH, n as u32)]);
    let row = b.fake.rows[&(id::AH, n as u32)];
    let get = |f: Field| f.get(&row);
    assert_eq!((get(qp_address::VALID), get(qp_address::PD), get(qp_address::IS_IP6)), (1, 0, 1));
    assert_eq!((get(qp_address::GID), get(qp_address::DMAC), get(qp_address::SPORT)), (3, 0x1615_1413_1210, 0xc123));
    assert_eq!((get(qp_address::DIP_LOW), get(qp_address::PKEY)), (0x1122_3344_0201_000a, 0xffff));
    assert_eq!(b.refused(gid6(3)), (IN_USE, set_gid::INDEX.lsb as u64));
    assert_eq!(b.refused(destroy(op::DESTROY_PD, 0)), IN_USE_AT);
    assert_eq!(b.refused(create_ah().owner(2)), (NOT_OWNER, create_ah::PD.lsb as u64));
    assert_eq!(b.refused(destroy(op::DESTROY_AH, n).owner(2)), (NOT_OWNER, head::NUMBER.lsb as u64));
    b.ok(destroy(op::DESTROY_AH, n));
    // No send finds it, before those that did have left.
    assert!(matches!(b.fake.acts[..], [Act::Commit(id::AH, ..), Act::Drain]), "{:?}", b.fake.acts);
    assert_eq!(qp_address::VALID.get(&b.fake.rows[&(id::AH, n as u32)]), 0);
    assert_eq!(b.refused(destroy(op::DESTROY_AH, n)), (NO_OBJECT, head::NUMBER.lsb as u64));
    b.ok(gid6(3));
    // Half as many as QPs.
    (0..128).for_each(|_| _ = b.make(create_ah()));
    assert_eq!(b.refused(create_ah()), (NO_ROOM, 0));
}

#[test]
fn foreign_objects_are_out_of_reach() {
    let mut b = Bench::new();
    let qp = b.qp();
    let mr = b.make(create_mr(0, 1));
    let number = (NOT_OWNER, head::NUMBER.lsb as u64);
    for (opcode, n) in [
        (op::DESTROY_PD, 0),
        (op::DESTROY_MR, mr),
        (op::DESTROY_CQ, 0),
        (op::DESTROY_EQ, 0),
        (op::MODIFY_QP, qp),
        (op::QUERY_QP, qp),
        (op::DESTROY_QP, qp),
    ] {
        assert_eq!(b.refused(destroy(opcode, n).owner(2)), number);
    }
    let not_owner = |f: Field| (NOT_OWNER, f.lsb as u64);
    assert_eq!(b.refused(create_mr(0, 1).owner(2)), not_owner(create_mr::PD));
    assert_eq!(b.refused(create_cq().owner(2)), not_owner(create_cq::EQN));
    assert_eq!(b.refused(create_qp().owner(2)), not_owner(create_qp::PD));
    let own_pd = b.make(command(op::CREATE_PD).owner(2));
    let c = create_qp().owner(2).with(create_qp::PD, own_pd);
    assert_eq!(b.refused(c), not_owner(create_qp::SEND_CQN));
    // Owner 0 keeps event queues for all.
    let shared = b.make(create_eq().owner(0));
    let cq = b.make(create_cq().owner(2).with(create_cq::EQN, shared));
    assert_eq!(b.refused(c.with(create_qp::SEND_CQN, cq)), not_owner(create_qp::RECV_CQN));
    assert_eq!(b.refused(destroy(op::DESTROY_EQ, shared).owner(0)), IN_USE_AT);
}

#[test]
fn the_port_is_owner_0s() {
    let mut b = Bench::new();
    let port = command(op::SET_PORT).with(set_port::MAC, 2);
    let group = command(op::SET_MULTICAST).with(set_multicast::VALID, 1).with(set_multicast::MAC, 0xff3333);
    for c in [gid4(7), command(op::SET_GID).with(set_gid::INDEX, 7), port, group] {
        for owner in [1, 2, 15] {
            assert_eq!(b.refused(c.owner(owner)), (NOT_OWNER, head::OWNER.lsb as u64));
        }
        b.ok(c.owner(0));
    }
}

#[test]
fn tables_fill_up_and_empty() {
    let mut b = Bench::new();
    b.qp();
    for (c, opcode, most) in [
        (command(op::CREATE_PD), op::DESTROY_PD, 255),
        (create_eq(), op::DESTROY_EQ, 31),
        (create_cq(), op::DESTROY_CQ, 255),
        (create_qp(), op::DESTROY_QP, 253),
        (create_mr(0, 1 << 20), op::DESTROY_MR, 1023),
    ] {
        let made: Vec<_> = (0..most).map(|_| b.make(c)).collect();
        let mut distinct = made.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), most);
        assert_eq!(b.refused(c), (NO_ROOM, 0));
        b.ok(destroy(opcode, made[most / 2]));
        assert_eq!(b.make(c), made[most / 2]);
        made.iter().for_each(|n| {
            b.ok(destroy(opcode, *n));
        });
    }
}

#[test]
fn a_smaller_device_has_smaller_tables() {
    let fake = Fake { limits: [3 | 2 << 8 | 4 << 16 | 1 << 24, 10 | 1 << 8 | 7 << 16 | 2 << 24], ..Fake::default() };
    let limits = fake.limits;
    let mut b = Bench::on(fake);
    b.qp();
    let a = b.ok(command(op::QUERY_DEVICE));
    assert_eq!([a.get(device::LIMITS), a.get(device::LIMITS2)], limits.map(u64::from));
    assert_eq!([a.get(device::GIDS), a.get(device::PKEYS), a.get(device::FW_VERSION)], [16, 1, 0x1_0000]);
    for (c, more) in [(create_eq(), 1), (create_cq(), 3), (create_qp(), 5), (create_mr(0, 1 << 20), 4)] {
        (0..more).for_each(|_| {
            b.ok(c);
        });
        assert_eq!(b.refused(c), (NO_ROOM, 0));
    }
    assert_eq!(b.refused(create_mr(0, (1 << 22) + 1)), (BAD_FIELD, create_mr::LENGTH.lsb as u64));
    assert_eq!(b.refused(command(op::NOP).owner(2)), (BAD_FIELD, head::OWNER.lsb as u64));
    let big = Fake { limits: [u32::MAX; 2], ..Fake::default() };
    let a = Bench::on(big).ok(command(op::QUERY_DEVICE));
    assert_eq!([a.get(device::LIMITS), a.get(device::LIMITS2)], [0x050a_080c, 0x04ff_0412]);
}

#[test]
fn a_key_never_comes_back_soon() {
    let mut b = Bench::new();
    b.make(command(op::CREATE_PD));
    let mut last = [0; 1024];
    for _ in 0..3000 {
        let a = b.ok(create_mr(0, 1).with(create_mr::CONTIGUOUS, 1));
        let (n, key) = (a.get(answer::NUMBER) as usize, a.get(answer::VALUE));
        assert_ne!(n, 0, "a key of 0 never is valid");
        assert_eq!(key >> 8, n as u64);
        assert_eq!(key & 0xff, last[n] + 1);
        last[n] = key & 0xff;
        b.ok(destroy(op::DESTROY_MR, n as u64));
    }
}

#[test]
fn translation_entries_do_not_overlap() {
    let mut b = Bench::new();
    b.make(command(op::CREATE_PD));
    let mut x = 5u64;
    let mut live: Vec<(u64, u32, u32)> = vec![];
    for _ in 0..4000 {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let r = x >> 33;
        if r % 5 < 2 && !live.is_empty() {
            let (n, ..) = live.swap_remove(r as usize % live.len());
            b.ok(destroy(op::DESTROY_MR, n));
            continue;
        }
        let pages = (1 << (r % 14)) | (r % 999);
        b.fake.acts.clear();
        let a = b.try_(create_mr(0, pages << 12));
        if a.verdict() == (NO_ROOM, 0) {
            continue;
        }
        let Act::Load { first, count, .. } = b.fake.acts[0] else { panic!() };
        assert_eq!(count as u64, pages);
        assert!(first + count <= 1 << 18);
        assert!(live.iter().all(|(_, f, c)| f + c <= first || first + count <= *f), "overlap");
        live.push((a.get(answer::NUMBER), first, count));
    }
    for (n, ..) in live {
        b.ok(destroy(op::DESTROY_MR, n));
    }
    b.ok(create_mr(0, 1 << 30));
}

#[test]
fn a_list_that_cannot_be_loaded_makes_no_region() {
    let mut b = Bench::new();
    b.make(command(op::CREATE_PD));
    for (load, result) in [(Load::BusError, DEVICE_ERROR), (Load::BadAddress, BAD_FIELD)] {
        b.fake.load = load;
        let a = b.try_(create_mr(0, 1 << 30));
        assert_eq!(a.verdict(), (result, create_mr::PAGES.lsb as u64));
        assert_eq!(b.commits(), []);
    }
    b.fake.load = Load::Done;
    b.ok(destroy(op::DESTROY_PD, 0));
    b.make(command(op::CREATE_PD));
    b.ok(create_mr(0, 1 << 30).with(create_mr::PD, 1));
}

fn owned(b: &mut Bench, owner: u64, what: u8) -> Vec<u64> {
    let list =
        |from| command(op::LIST_OWNED).owner(owner).with(list_owned::KIND, what.into()).with(list_owned::FROM, from);
    let (mut found, mut from) = (vec![], 0);
    loop {
        let a = b.ok(list(from));
        if a.get(answer::VALUE) == 0 {
            return found;
        }
        found.push(a.get(answer::NUMBER));
        from = a.get(answer::NUMBER) + 1;
    }
}

#[test]
fn a_dead_owner_is_reclaimed() {
    let mut b = Bench::new();
    b.ok(gid4(0));
    let mut have = [0; 3];
    for owner in [1u64, 2] {
        for i in 0..3 {
            let pd = b.make(command(op::CREATE_PD).owner(owner));
            let eq = b.make(create_eq().owner(owner));
            let cq = b.make(create_cq().owner(owner).with(create_cq::EQN, eq));
            let qp = create_qp().owner(owner).with(create_qp::PD, pd);
            let qp = b.make(qp.with(create_qp::SEND_CQN, cq).with(create_qp::RECV_CQN, cq));
            b.make(create_mr(0, 1).owner(owner).with(create_mr::PD, pd));
            b.make(create_ah().owner(owner).with(create_ah::PD, pd));
            if i == 1 {
                b.ok(modify(qp, INIT, TO_INIT).owner(owner));
            }
            have[owner as usize] += 6;
        }
    }
    for what in kind::QP..=kind::AH {
        for owner in [1, 2] {
            assert_eq!(owned(&mut b, owner, what).len(), 3);
        }
    }
    let a = b.ok(command(op::RECLAIM).owner(1));
    assert_eq!(a.get(answer::VALUE), have[1]);
    let order: Vec<_> = b.commits().iter().map(|c| c.0).collect();
    let order: Vec<_> = order.into_iter().filter(|t| [id::KEY, id::CQ, id::EQ, id::QP_STATE].contains(t)).collect();
    let want = [id::QP_STATE, id::KEY, id::KEY, id::KEY, id::CQ, id::CQ, id::CQ, id::EQ, id::EQ, id::EQ];
    assert_eq!(order, want, "QPs, MRs, CQs, EQs");
    for what in kind::QP..=kind::AH {
        assert_eq!(owned(&mut b, 1, what), []);
        assert_eq!(owned(&mut b, 2, what).len(), 3);
    }
    assert_eq!(b.ok(command(op::RECLAIM).owner(1)).get(answer::VALUE), 0);

    // An event queue that others use stays until they are gone.
    let eq = b.make(create_eq().owner(0));
    b.make(create_cq().owner(2).with(create_cq::EQN, eq));
    let a = b.try_(command(op::RECLAIM).owner(0));
    assert_eq!((a.verdict(), a.get(answer::VALUE)), ((IN_USE, 0), 0));
    assert_eq!(b.ok(command(op::RECLAIM).owner(2)).get(answer::VALUE), have[2] + 1);
    assert_eq!(b.ok(command(op::RECLAIM).owner(0)).get(answer::VALUE), 1);
}

#[test]
fn a_path_mtu_fits_the_port() {
    let mut b = Bench::new();
    let qp = b.qp();
    b.bring(qp, INIT);
    b.fake.port = 1 | 1500 << 16;
    let with = |code| modify(qp, RTR, TO_RTR).with(m::PATH_MTU, code);
    // 2,048 and 80 bytes of headers are more than 1,500; there are no codes 0, 6 and 7.
    for code in [0, 4, 5, 6, 7] {
        assert_eq!(b.refused(with(code)), (BAD_FIELD, m::PATH_MTU.lsb as u64), "code {code}");
    }
    b.fake.port = 1 | 1103 << 16;
    assert_eq!(b.refused(with(3)), (BAD_FIELD, m::PATH_MTU.lsb as u64));
    b.fake.port = 1 | 1104 << 16;
    b.ok(with(3));
}
