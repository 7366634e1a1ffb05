//! Work requests that the control plane executes.

mod kit;
use abi::{
    cmd::{answer, create_mr, head, key_kind, op, result},
    queue::{key_wqe, send_op, send_wqe},
    status::cause,
    table::{MTT_INDEX, PAGE_SHIFT, access, id, invalidate, key, qp_send, qp_state::*, verdict},
};
use kit::*;
use plane::{Load, MTT_UNIT};

const ALL: u64 = 15;

/// A registration of key `rkey`, of 4 pages less a byte at their ends.
fn registration(rkey: u64) -> Bytes {
    let mut wqe = [0; 64];
    for (field, value) in [
        (send_wqe::OPCODE, send_op::REG_MR.into()),
        (send_wqe::BLOCKS, 1),
        (send_wqe::REMOTE_VA, 0x7000_0000_0001),
        (send_wqe::RKEY, rkey),
        (key_wqe::ACCESS, ALL),
        (key_wqe::SIZE, 0x3ffe),
        (key_wqe::PAGES, 1),
    ] {
        field.set(&mut wqe, value);
    }
    wqe
}

fn with(mut wqe: Bytes, field: abi::Field, value: u64) -> Bytes {
    field.set(&mut wqe, value);
    wqe
}

fn fast(pages: u64) -> Command {
    let c = command(op::CREATE_MR).with(create_mr::KIND, key_kind::FAST.into());
    c.with(create_mr::LENGTH, pages).with(create_mr::PAGES, 0xabc_d000).with(create_mr::PAGE_SHIFT, 12)
}

/// A QP in RTS, and the first key of a region for it.
fn bench(pages: u64) -> (Bench, u64, u64) {
    let mut b = Bench::new();
    let n = b.qp();
    b.bring(n, RTS);
    let key = b.ok(fast(pages)).get(answer::VALUE);
    assert_eq!(b.fake.acts, [], "nothing opens yet");
    (b, n, key)
}

/// Shows a work request to the firmware; the verdict on it, that the row of its QP brings. Only that row and `key`'s are written.
fn ask(b: &mut Bench, n: u64, index: u32, wqe: Bytes) -> u8 {
    let at = 0x1_2345_6780 + u64::from(index & 63) * 64;
    b.fake.memory.insert(at, wqe);
    b.fake.ask = 1 << 31 | (n as u32) << 16 | index;
    b.fake.acts.clear();
    assert!(b.plane.watch_asks(&mut b.fake));
    let Some(Act::Commit(id::QP_SEND, q, row)) = b.fake.acts.last() else { panic!("{:?}", b.fake.acts) };
    assert_eq!((u64::from(*q), qp_send::LOAD.get(row), qp_send::RESUME.get(row)), (n, 0, 0));
    assert_eq!((qp_send::MTU.get(row), qp_send::LOG2_BLOCKS.get(row), qp_send::OWNER.get(row)), (5, 6, 1));
    let said = qp_send::VERDICT.get(row) as u8;
    assert_eq!(said & verdict::DONE, verdict::DONE);
    b.fake.ask = 0;
    b.fake.memory.remove(&at);
    assert!(!b.plane.watch_asks(&mut b.fake));
    said & !verdict::DONE
}

#[test]
fn a_registration_fills_the_row_of_its_key() {
    let (mut b, n, key) = bench(5);
    let number = (key >> 8) as u32;
    for (round, index) in [(0u64, 5), (1, 0xffff), (2, 64)] {
        let rkey = key & !0xff | (key + 7 * round) & 0xff;
        assert_eq!(ask(&mut b, n, index, registration(rkey)), 0);
        let [Act::Load { list, first, count, shift }, Act::Commit(id::KEY, k, row), _] = b.fake.acts[..] else {
            panic!("{:?}", b.fake.acts)
        };
        assert_eq!((list, count, shift, k), (0xabc_d008, 4, 12, number));
        let mut want = [0; 64];
        for (field, value) in [
            (key::VALID, 1),
            (key::ACCESS, ALL),
            (key::INVALIDATE, (invalidate::LOCAL | invalidate::REMOTE).into()),
            (key::KEY_BYTE, rkey & 0xff),
            (key::VA, 0x7000_0000_0001),
            (key::LENGTH, 0x3ffe),
            (PAGE_SHIFT, 12),
            (MTT_INDEX, first.into()),
        ] {
            field.set(&mut want, value);
        }
        assert_eq!(row, want);
        // Not while it is valid; again when it is not.
        assert_eq!(ask(&mut b, n, index, registration(rkey)), cause::KEY_ACCESS);
        assert_eq!(b.fake.acts.len(), 1);
        b.fake.rows.remove(&(id::KEY, number));
    }
    // What no peer may use no peer may invalidate.
    let local = with(registration(key), key_wqe::ACCESS, access::LOCAL_WRITE.into());
    assert_eq!(ask(&mut b, n, 1, local), 0);
    let row = b.fake.rows[&(id::KEY, number)];
    assert_eq!(key::INVALIDATE.get(&row), u64::from(invalidate::LOCAL));
}

#[test]
fn what_is_wrong_with_a_registration_is_named_and_changes_nothing() {
    let (mut b, n, key) = bench(u64::from(MTT_UNIT));
    let region = b.ok(create_mr(0, 0x1000)).get(answer::VALUE);
    let foreign = {
        let pd = b.make(command(op::CREATE_PD));
        b.ok(fast(4).with(create_mr::PD, pd)).get(answer::VALUE)
    };
    let others = {
        let pd = b.make(command(op::CREATE_PD).owner(3));
        b.ok(fast(4).with(create_mr::PD, pd).owner(3)).get(answer::VALUE)
    };
    let sound = registration(key);
    let most = u64::from(MTT_UNIT) << 12;
    let cases = [
        (with(sound, send_wqe::OPCODE, send_op::SEND.into()), cause::WQE_OPCODE),
        (with(sound, send_wqe::OPCODE, send_op::LOCAL_INV.into()), cause::WQE_OPCODE),
        (registration(0), cause::KEY_INVALID),
        (registration(region), cause::KEY_INVALID),
        (registration(others), cause::KEY_INVALID),
        (registration(0xffff_ff00), cause::KEY_INVALID),
        (registration(foreign), cause::KEY_PD),
        (with(sound, key_wqe::ACCESS, 2), cause::KEY_ACCESS),
        (with(sound, key_wqe::ACCESS, 8), cause::KEY_ACCESS),
        (with(sound, key_wqe::SIZE, 0), cause::KEY_BOUNDS),
        (with(sound, key_wqe::SIZE, u64::MAX), cause::KEY_BOUNDS),
        (with(sound, key_wqe::SIZE, most - 0x1000), cause::KEY_BOUNDS),
        (with(sound, key_wqe::PAGES, u64::from(MTT_UNIT)), cause::KEY_BOUNDS),
        (with(sound, key_wqe::PAGES, 0xffff_ffff), cause::KEY_BOUNDS),
    ];
    for (i, (wqe, why)) in cases.into_iter().enumerate() {
        assert_eq!(ask(&mut b, n, i as u32, wqe), why, "case {i}");
        assert_eq!(b.fake.acts.len(), 1, "case {i}: {:?}", b.fake.acts);
    }
    for (load, why) in [(Load::BusError, cause::DMA_ERROR), (Load::BadAddress, cause::KEY_BOUNDS)] {
        b.fake.load = load;
        assert_eq!(ask(&mut b, n, 9, sound), why);
        assert_eq!(b.commits(), [(id::QP_SEND, n as u32)]);
    }
    b.fake.load = Load::Done;
    // Nothing of a QP that has failed meanwhile.
    b.set_state(n, ERR);
    assert_eq!(ask(&mut b, n, 9, sound), cause::WQE_OPCODE);
    assert_eq!(b.commits(), [(id::QP_SEND, n as u32)]);
    b.set_state(n, SQD);
    assert_eq!(ask(&mut b, n, 9, with(sound, key_wqe::SIZE, most - 0x1001)), 0);
    // A ring that cannot be read.
    b.fake.ask = 1 << 31 | (n as u32) << 16;
    b.fake.acts.clear();
    b.plane.watch_asks(&mut b.fake);
    let Act::Commit(_, _, row) = b.fake.acts[0] else { panic!() };
    assert_eq!(qp_send::VERDICT.get(&row), u64::from(verdict::REFUSED | cause::DMA_ERROR));
}

#[test]
fn a_region_that_is_registered_later_takes_room_for_its_pages() {
    let mut b = Bench::new();
    b.make(command(op::CREATE_PD));
    let field = |f: abi::Field| (result::BAD_FIELD, f.lsb as u64);
    assert_eq!(b.refused(fast(0)), field(create_mr::LENGTH));
    assert_eq!(b.refused(fast((1 << 18) + 1)), field(create_mr::LENGTH));
    assert_eq!(b.refused(fast(1).with(create_mr::KIND, 3)), field(create_mr::KIND));
    assert_eq!(b.refused(fast(1).with(create_mr::PAGES, 4)), field(create_mr::PAGES));
    assert_eq!(b.refused(fast(1).with(create_mr::PAGE_SHIFT, 13)), field(create_mr::PAGE_SHIFT));
    assert_eq!(b.refused(fast(2).with(create_mr::PAGES, u64::MAX - 7)), field(create_mr::PAGES));
    // All of the table, which is there again once it is gone.
    for _ in 0..2 {
        let all = b.make(fast(1 << 18));
        assert_eq!(b.refused(fast(1)), (result::NO_ROOM, 0));
        b.ok(command(op::DESTROY_MR).number(all));
        assert_eq!(b.fake.acts, [Act::Commit(id::KEY, all as u32, [0; 64]), Act::Drain]);
    }
}

/// A window of the QP's domain, and a region of 4 pages, less a byte at their ends, for it.
fn ground(contiguous: bool, flags: u64) -> (Bench, u64, u64, u64) {
    let (mut b, n, _) = bench(1);
    let region = create_mr(0x7000_0000_0001, 0x3ffe).with(create_mr::BINDS, 1).with(create_mr::ACCESS, flags);
    let region =
        if contiguous { region.with(create_mr::CONTIGUOUS, 1).with(create_mr::PAGES, 0xabc_0001) } else { region };
    let lkey = b.ok(region).get(answer::VALUE);
    let window = b.ok(window()).get(answer::VALUE);
    (b, n, lkey, window)
}

fn window() -> Command {
    command(op::CREATE_MR).with(create_mr::KIND, key_kind::WINDOW.into())
}

fn binding(rkey: u64, lkey: u64, offset: u64, len: u64) -> Bytes {
    let wqe = with(registration(rkey), send_wqe::OPCODE, send_op::BIND_MW.into());
    let wqe = with(wqe, send_wqe::REMOTE_VA, 0x7000_0000_0001u64.wrapping_add(offset));
    with(with(wqe, key_wqe::LKEY, lkey), key_wqe::SIZE, len)
}

#[test]
fn a_window_gets_a_part_of_its_region() {
    for contiguous in [false, true] {
        let (mut b, n, lkey, rkey) = ground(contiguous, ALL);
        let first = MTT_INDEX.get(&b.fake.rows[&(id::KEY, (lkey >> 8) as u32)]);
        for (offset, len, page) in [(0, 0x3ffe, 0), (0xffe, 1, 0), (0xfff, 1, 1), (0x2fff, 0xfff, 3)] {
            let rkey = rkey & !0xff | (rkey + offset) & 0xff;
            assert_eq!(ask(&mut b, n, 5, binding(rkey, lkey, offset, len)), 0);
            let mut want = [0; 64];
            for (field, value) in [
                (key::VALID, 1),
                (key::ACCESS, 14),
                (key::INVALIDATE, 3),
                (key::KEY_BYTE, rkey & 0xff),
                (key::WINDOW, 1),
                (key::QPN, n),
                (key::VA, 0x7000_0000_0001 + offset),
                (key::LENGTH, len),
            ] {
                field.set(&mut want, value);
            }
            if contiguous {
                key::CONTIGUOUS.set(&mut want, 1);
                key::IOVA.set(&mut want, 0xabc_0001 + offset);
            } else {
                PAGE_SHIFT.set(&mut want, 12);
                MTT_INDEX.set(&mut want, first + page);
            }
            assert_eq!(b.fake.rows[&(id::KEY, (rkey >> 8) as u32)], want);
            // It is bound already; its region stays.
            assert_eq!(ask(&mut b, n, 5, binding(rkey, lkey, offset, len)), cause::KEY_ACCESS);
            let in_use = (result::IN_USE, head::NUMBER.lsb as u64);
            assert_eq!(b.refused(command(op::DESTROY_MR).number(lkey >> 8)), in_use);
            b.fake.rows.remove(&(id::KEY, (rkey >> 8) as u32));
        }
        // It opens nothing to the next peer of its QP.
        assert_eq!(ask(&mut b, n, 5, binding(rkey, lkey, 0, 1)), 0);
        b.ok(modify(n, RESET, 0));
        assert_eq!(b.fake.rows[&(id::KEY, (rkey >> 8) as u32)], [0; 64]);
        b.bring(n, RTS);
        // With its QP goes what it opens; then its region may go as well, and what is left of it opens nothing.
        assert_eq!(ask(&mut b, n, 5, binding(rkey, lkey, 0, 1)), 0);
        b.ok(command(op::DESTROY_QP).number(n));
        assert_eq!(b.fake.rows[&(id::KEY, (rkey >> 8) as u32)], [0; 64]);
        b.ok(command(op::DESTROY_MR).number(lkey >> 8));
        b.ok(command(op::DESTROY_MR).number(rkey >> 8));
    }
}

#[test]
fn what_is_wrong_with_a_binding_is_named_and_changes_nothing() {
    let (mut b, n, lkey, rkey) = ground(true, ALL);
    let later = b.ok(fast(5)).get(answer::VALUE);
    let pd = b.make(command(op::CREATE_PD));
    let region = create_mr(0x7000_0000_0001, 0x3ffe).with(create_mr::BINDS, 1);
    let far = b.ok(region.with(create_mr::PD, pd)).get(answer::VALUE);
    let dry = b.ok(region.with(create_mr::ACCESS, access::REMOTE_READ.into())).get(answer::VALUE);
    let plain = b.ok(create_mr(0x7000_0000_0001, 0x3ffe)).get(answer::VALUE);
    let strange = b.ok(window().with(create_mr::PD, pd)).get(answer::VALUE);
    let read = access::LOCAL_WRITE | access::REMOTE_READ;
    let skewed = region.with(create_mr::ACCESS, read.into());
    let skewed = b.ok(skewed.with(create_mr::CONTIGUOUS, 1).with(create_mr::PAGES, 0xabc_0002)).get(answer::VALUE);
    let cases = [
        (binding(lkey, lkey, 0, 1), cause::KEY_INVALID),
        (binding(strange, lkey, 0, 1), cause::KEY_PD),
        (binding(rkey, lkey ^ 1, 0, 1), cause::KEY_INVALID),
        (binding(rkey, plain, 0, 1), cause::KEY_INVALID),
        (binding(rkey, 0, 0, 1), cause::KEY_INVALID),
        (binding(rkey, later, 0, 1), cause::KEY_INVALID),
        (binding(rkey, far, 0, 1), cause::KEY_PD),
        (binding(rkey, lkey, 0, 0), cause::KEY_BOUNDS),
        (binding(rkey, lkey, u64::MAX, 1), cause::KEY_BOUNDS),
        (binding(rkey, lkey, 0, 0x3fff), cause::KEY_BOUNDS),
        (binding(rkey, lkey, 0x3ffe, 1), cause::KEY_BOUNDS),
        (binding(rkey, lkey, 1, u64::MAX), cause::KEY_BOUNDS),
        (binding(rkey, dry, 0, 1), cause::KEY_ACCESS),
        (binding(rkey, skewed, 0, 1), cause::KEY_ACCESS),
    ];
    for (i, (wqe, why)) in cases.into_iter().enumerate() {
        assert_eq!(ask(&mut b, n, i as u32, wqe), why, "case {i}");
        assert_eq!(b.fake.acts.len(), 1, "case {i}: {:?}", b.fake.acts);
    }
    // To read what nobody may write is no harm.
    let read = with(binding(rkey, dry, 0, 1), key_wqe::ACCESS, access::REMOTE_READ.into());
    assert_eq!(ask(&mut b, n, 1, read), 0);
}

#[test]
fn grounds_run_out_and_come_back_and_are_reclaimed_behind_their_windows() {
    let mut b = Bench::new();
    let n = b.qp();
    b.bring(n, RTS);
    let region = create_mr(0x7000_0000_0001, 0x3ffe).with(create_mr::BINDS, 1);
    let fields = |f: abi::Field| (result::BAD_FIELD, f.lsb as u64);
    assert_eq!(b.refused(fast(1).with(create_mr::BINDS, 1)), fields(create_mr::BINDS));
    let all: Vec<u64> = (0..64).map(|_| b.ok(region).get(answer::VALUE)).collect();
    assert_eq!(b.refused(region), (result::NO_ROOM, 0));
    b.ok(command(op::DESTROY_MR).number(all[9] >> 8));
    b.make(region);
    let rkey = b.ok(window()).get(answer::VALUE);
    assert_eq!(ask(&mut b, n, 5, binding(rkey, all[0], 0, 1)), 0);
    b.ok(command(op::RECLAIM));
}
