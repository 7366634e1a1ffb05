//! Keys that come and go by work request: what opens, what no longer does, and in which order with all else.

use abi::{
    queue::{recv_op, send_op},
    status::{cause, counter, wc},
    table::qp_state,
};
use driver::{
    Access, Binding, Completion, Data, FastMr, Flags, Mr, Operation, Registration, Remote, Translation, WcError,
};
use ferroce_tests::{GUARD, LEN, assert_sound, bytes, noise, pass, region, small_pairs, wait};
use testbed::{Connect, End, Setup, Testbed};

/// A SEND that names a key which may not be invalidated is executed, but its receive and the connection end; the key opens as before.
#[test]
fn a_registered_region_is_not_invalidated() {
    for (round, setup) in [Setup::default(), Setup::small()].into_iter().enumerate() {
        let bed = Testbed::new(&setup).unwrap();
        let near = region(&bed.hosts[0].pd, LEN, Access::all(), noise(1));
        let far = region(&bed.hosts[1].pd, LEN, Access::all(), |_| GUARD);
        let own = bed.hosts[1].device.create_pd().unwrap();
        let foreign = region(&own, LEN, Access::all(), |_| GUARD);
        // A region, that of another domain, a stale key byte, no key; in a message of one packet, of several, of none.
        let keys = [far.rkey(), foreign.rkey(), far.rkey() ^ 1, 0, 0xffff_ff00];
        let causes = [cause::KEY_ACCESS, cause::KEY_PD, cause::KEY_INVALID, cause::KEY_INVALID, cause::KEY_INVALID];
        for (i, (key, why)) in keys.into_iter().zip(causes).enumerate() {
            let len = [10, 1500, 0][(i + round) % 3];
            let mut pair = bed.connect(&small_pairs()).unwrap();
            far.write(0, &[GUARD; LEN]);
            pair.b.qp.post_recv(7, &[far.sge(0, LEN)]).unwrap();
            let mut batch = pair.a.qp.post();
            batch.add(1, Operation::SendInv(key), Data::Sges(&[near.sge(0, len)]), Flags::empty()).unwrap();
            let after = Operation::Write(far.remote(1600));
            batch.add(2, after, Data::Sges(&[near.sge(0, 8)]), Flags::SIGNALED).unwrap();
            batch.ring();
            let c = wait(&bed, &mut pair.a.cq, "a SEND that names a key");
            let status = Err(WcError { status: wc::REM_ACCESS, cause: cause::NAK_REMOTE_ACCESS });
            assert_eq!((c.wr_id, c.opcode, c.status), (1, send_op::SEND_INV, status), "key {key:x}");
            assert_eq!(wait(&bed, &mut pair.a.cq, "the WRITE behind it").status.unwrap_err().status, wc::WR_FLUSH);
            let c = wait(&bed, &mut pair.b.cq, "its receive");
            let status = Err(WcError { status: wc::REM_INV_REQ, cause: why });
            assert_eq!((c.wr_id, c.status, c.opcode), (7, status, recv_op::RECV_INV), "key {key:x}");
            assert_eq!(c.invalidated, None);
            assert_eq!(pair.b.qp.query().unwrap().state, qp_state::ERR);
            assert!(bytes(&far)[len..].iter().all(|b| *b == GUARD), "key {key:x}: what was behind it has landed");
        }
        // They open still.
        for mr in [&far, &foreign] {
            let mut pair = bed.connect(&small_pairs()).unwrap();
            let mut batch = pair.a.qp.post();
            let write = Operation::Write(mr.remote(0));
            batch.add(3, write, Data::Sges(&[near.sge(0, 8)]), Flags::SIGNALED).unwrap();
            batch.ring();
            let c = wait(&bed, &mut pair.a.cq, "a WRITE with the key");
            assert_eq!(c.status.is_ok(), mr.rkey() == far.rkey());
        }
        let device = &bed.hosts[1].device;
        assert_eq!(device.counter(counter::RX_REMOTE_ACCESS), keys.len() as u64 + 1);
        assert_sound(&bed, "refused invalidations");
    }
}

/// Posts work requests as one batch, all signaled or the last one alone.
fn post(end: &mut End, ops: &[(Operation, &[driver::Sge])], all: bool) {
    let mut batch = end.qp.post();
    for (i, (op, sges)) in ops.iter().enumerate() {
        let signaled = all || i + 1 == ops.len();
        let flags = if signaled { Flags::SIGNALED } else { Flags::empty() };
        batch.add(i as u64, *op, Data::Sges(sges), flags).unwrap();
    }
    batch.ring();
}

fn fails(bed: &Testbed, end: &mut End, id: u64, status: u8, cause: u8, what: &str) {
    let c = wait(bed, &mut end.cq, what);
    assert_eq!((c.wr_id, c.status), (id, Err(WcError { status, cause })), "{what}");
}

fn succeeds(bed: &Testbed, end: &mut End, id: u64, what: &str) -> Completion {
    let c = wait(bed, &mut end.cq, what);
    assert_eq!((c.wr_id, c.status), (id, Ok(())), "{what}");
    c
}

/// What a key opens.
trait Place {
    fn at(&self, offset: usize) -> Remote;
}
impl Place for Registration {
    fn at(&self, offset: usize) -> Remote {
        self.remote(offset)
    }
}
impl Place for Binding {
    fn at(&self, offset: usize) -> Remote {
        self.remote(offset)
    }
}

/// A peer's WRITE by a key: it lands, or is refused and leaves all as it was.
fn peer_writes(bed: &Testbed, to: &impl Place, at: usize, len: usize, lands: bool, memory: &Mr, what: &str) {
    let near = region(&bed.hosts[0].pd, LEN, Access::all(), noise(1));
    let mut pair = bed.connect(&small_pairs()).unwrap();
    let before = bytes(memory);
    post(&mut pair.a, &[(Operation::Write(to.at(at)), &[near.sge(0, len)])], true);
    if lands {
        succeeds(bed, &mut pair.a, 0, what);
    } else {
        fails(bed, &mut pair.a, 0, wc::REM_ACCESS, cause::NAK_REMOTE_ACCESS, what);
        assert!(bytes(memory) == before, "{what}: something is written");
    }
}

fn fast(bed: &Testbed, host: usize, len: usize) -> FastMr {
    let fast = bed.hosts[host].pd.alloc_fast(len).unwrap();
    fast.memory().write(0, &vec![GUARD; len]);
    fast
}

/// A region is registered, used by the peer, invalidated by either side and registered again: each time the new key opens its part and
/// nothing else, and the old one nothing.
#[test]
fn a_fast_region_opens_from_its_registration_to_its_invalidation() {
    for setup in [Setup::default(), Setup::small()] {
        let bed = Testbed::new(&setup).unwrap();
        let mut pair = bed.connect(&small_pairs()).unwrap();
        let mut far = fast(&bed, 1, 3 * 4096);
        let near = region(&bed.hosts[0].pd, LEN, Access::all(), noise(5));
        let mail = region(&bed.hosts[1].pd, LEN, Access::all(), |_| 0);
        let mut old: Option<Registration> = None;
        for round in 0..6 {
            far.memory().write(0, &[GUARD; 3 * 4096]);
            // On one page, on two, all of three.
            let (offset, len) = [(100, 500), (4000, 1500), (0, 3 * 4096), (4095, 1), (8192, 4096), (1, 8191)][round];
            let part = far.part(offset, len, Access::all());
            post(&mut pair.b, &[(Operation::Register(part), &[])], true);
            let c = succeeds(&bed, &mut pair.b, 0, "a registration");
            assert_eq!((c.opcode, c.len), (send_op::REG_MR, 0));
            let write = (Operation::Write(part.remote(len - len.min(8))), &[near.sge(0, len.min(8))][..]);
            post(&mut pair.a, &[write], true);
            succeeds(&bed, &mut pair.a, 0, "a WRITE by the new key");
            let mut all = bytes(far.memory());
            let end = offset + len;
            assert!(all[end - len.min(8)..end].iter().zip(bytes(&near)).all(|(a, b)| *a == b));
            all[end - len.min(8)..end].fill(GUARD);
            assert!(all.iter().all(|b| *b == GUARD), "beside it");
            peer_writes(&bed, &part, len - 1, 2, false, far.memory(), "a WRITE beyond the end");
            peer_writes(&bed, &part, usize::MAX, 2, false, far.memory(), "a WRITE before the begin");
            if let Some(old) = old {
                peer_writes(&bed, &old, 0, 1, false, far.memory(), "a WRITE by the old key");
            }
            if round % 2 == 0 {
                post(&mut pair.b, &[(Operation::LocalInv(part.key()), &[])], true);
                let c = succeeds(&bed, &mut pair.b, 0, "a local invalidate");
                assert_eq!((c.opcode, c.len), (send_op::LOCAL_INV, 0));
            } else {
                pair.b.qp.post_recv(7, &[mail.sge(0, LEN)]).unwrap();
                let len = [0, 10, 1500][round / 2];
                post(&mut pair.a, &[(Operation::SendInv(part.key()), &[near.sge(0, len)])], true);
                succeeds(&bed, &mut pair.a, 0, "a SEND with invalidate");
                let c = succeeds(&bed, &mut pair.b, 7, "its receive");
                assert_eq!((c.opcode, c.invalidated, c.len), (recv_op::RECV_INV, Some(part.key()), len as u32));
                assert!(bytes(&mail)[..len] == bytes(&near)[..len]);
            }
            peer_writes(&bed, &part, 0, 1, false, far.memory(), "a WRITE by the dead key");
            old = Some(part);
        }
        assert_sound(&bed, "fast registrations");
    }
}

/// A window opens a part of a region, with fewer rights, to the peer of one QP, from its binding to its invalidation by either side;
/// the region stays closed, and is not destroyed meanwhile.
#[test]
fn a_window_opens_a_part_to_one_peer_while_it_is_bound() {
    for setup in [Setup::default(), Setup::small()] {
        let bed = Testbed::new(&setup).unwrap();
        let mut pair = bed.connect(&small_pairs()).unwrap();
        let near = region(&bed.hosts[0].pd, LEN, Access::all(), noise(5));
        let mail = region(&bed.hosts[1].pd, LEN, Access::all(), |_| 0);
        let mut window = bed.hosts[1].pd.create_window().unwrap();
        let mut old: Option<Binding> = None;
        for (round, t) in [Translation::Auto, Translation::Pages(4096)].into_iter().cycle().take(6).enumerate() {
            let far = bed.hosts[1].pd.alloc_for_windows(3 * 4096, Access::LOCAL_WRITE, t).unwrap();
            far.write(0, &[GUARD; 3 * 4096]);
            let (offset, len) = [(100, 500), (4000, 1500), (0, 3 * 4096), (4095, 2), (8192, 4096), (5000, 3000)][round];
            let bound = window.of(&far, offset, len, Access::REMOTE_WRITE);
            post(&mut pair.b, &[(Operation::Bind(bound), &[])], true);
            let c = succeeds(&bed, &mut pair.b, 0, "a binding");
            assert_eq!((c.opcode, c.len), (send_op::BIND_MW, 0));
            let last = len - len.min(8);
            post(&mut pair.a, &[(Operation::Write(bound.remote(last)), &[near.sge(0, len - last)])], true);
            succeeds(&bed, &mut pair.a, 0, "a WRITE by the window");
            let mut all = bytes(&far);
            assert!(all[offset + last..offset + len].iter().zip(bytes(&near)).all(|(a, b)| *a == b));
            all[offset + last..offset + len].fill(GUARD);
            assert!(all.iter().all(|b| *b == GUARD), "beside it");
            // Of another QP, beyond its ends; to READ; by the region's own key, which is the host's.
            peer_writes(&bed, &bound, 0, 1, false, &far, "a WRITE of another QP");
            for (what, op) in [
                ("a WRITE beyond the end", Operation::Write(bound.remote(len - 1))),
                ("a WRITE before the begin", Operation::Write(bound.remote(usize::MAX))),
                ("a READ", Operation::Read(bound.remote(0))),
                ("a WRITE by the region's key", Operation::Write(far.remote(offset))),
            ] {
                if round != 0 {
                    break;
                }
                let mut other = bed.connect(&small_pairs()).unwrap();
                let mut own = bed.hosts[1].pd.create_window().unwrap();
                let again = own.of(&far, offset, len, Access::REMOTE_WRITE);
                post(&mut other.b, &[(Operation::Bind(again), &[])], true);
                succeeds(&bed, &mut other.b, 0, "a second window");
                let remote = |r: Remote| if r.rkey == bound.key() { Remote { rkey: again.key(), ..r } } else { r };
                let op = match op {
                    Operation::Write(r) => Operation::Write(remote(r)),
                    Operation::Read(r) => Operation::Read(remote(r)),
                    op => op,
                };
                post(&mut other.a, &[(op, &[near.sge(0, 2)])], true);
                fails(&bed, &mut other.a, 0, wc::REM_ACCESS, cause::NAK_REMOTE_ACCESS, what);
            }
            if let Some(old) = old {
                peer_writes(&bed, &old, 0, 1, false, &far, "a WRITE by the old key");
            }
            if round % 2 == 0 {
                post(&mut pair.b, &[(Operation::LocalInv(bound.key()), &[])], true);
                succeeds(&bed, &mut pair.b, 0, "a local invalidate");
            } else {
                pair.b.qp.post_recv(7, &[mail.sge(0, LEN)]).unwrap();
                post(&mut pair.a, &[(Operation::SendInv(bound.key()), &[near.sge(0, 10)])], true);
                succeeds(&bed, &mut pair.a, 0, "a SEND with invalidate");
                let c = succeeds(&bed, &mut pair.b, 7, "its receive");
                assert_eq!(c.invalidated, Some(bound.key()));
            }
            old = Some(bound);
        }
        assert_sound(&bed, "windows");
    }
}

/// What binds or registers what it may not fails by name, and what is posted behind it is flushed.
#[test]
fn what_may_not_be_opened_fails_and_names_the_cause() {
    let bed = Testbed::new(&Setup::small()).unwrap();
    let pd = &bed.hosts[1].pd;
    let ground = pd.alloc_for_windows(4096, Access::LOCAL_WRITE, Translation::Auto).unwrap();
    let dry = pd.alloc_for_windows(4096, Access::REMOTE_READ, Translation::Auto).unwrap();
    let plain = pd.alloc(4096, Access::all()).unwrap();
    let foreign_pd = bed.hosts[1].device.create_pd().unwrap();
    let mut foreign = foreign_pd.create_window().unwrap();
    let foreign_ground = foreign_pd.alloc_for_windows(4096, Access::all(), Translation::Auto).unwrap();
    let mut window = pd.create_window().unwrap();
    let (mut memory, mut free) = (pd.alloc_fast(4096).unwrap(), pd.alloc_fast(4096).unwrap());
    let mut bind = |mr: &Mr, at: usize, len: usize, access: Access| Operation::Bind(window.of(mr, at, len, access));
    let write = Access::REMOTE_WRITE;
    let mut cases = vec![
        ("a window of another domain", Operation::Bind(foreign.of(&ground, 0, 1, write)), wc::MW_BIND, cause::KEY_PD),
        ("a region of another domain", bind(&foreign_ground, 0, 1, write), wc::MW_BIND, cause::KEY_PD),
        ("a region without windows", bind(&plain, 0, 1, write), wc::MW_BIND, cause::KEY_INVALID),
        ("a region that nobody writes", bind(&dry, 0, 1, write), wc::MW_BIND, cause::KEY_ACCESS),
        ("beyond the end", bind(&ground, 1, 4096, write), wc::MW_BIND, cause::KEY_BOUNDS),
        ("before the begin", bind(&ground, usize::MAX, 10, write), wc::MW_BIND, cause::KEY_BOUNDS),
        ("nothing", bind(&ground, 0, 0, write), wc::MW_BIND, cause::KEY_BOUNDS),
        ("an empty part", Operation::Register(free.part(0, 0, Access::all())), wc::LOC_QP_OP, cause::KEY_BOUNDS),
        ("rights of peers alone", Operation::Register(free.part(0, 1, write)), wc::LOC_QP_OP, cause::KEY_ACCESS),
        ("a plain region invalidated", Operation::LocalInv(plain.lkey()), wc::LOC_QP_OP, cause::KEY_ACCESS),
        ("a stale key invalidated", Operation::LocalInv(plain.lkey() ^ 1), wc::LOC_QP_OP, cause::KEY_INVALID),
        ("one of another domain", Operation::LocalInv(foreign_ground.lkey()), wc::LOC_QP_OP, cause::KEY_PD),
    ];
    let part = memory.part(0, 4096, Access::all());
    let good = Operation::Register(part);
    cases.push(("a region that is registered", good, wc::LOC_QP_OP, cause::KEY_ACCESS));
    let mut first = bed.connect(&small_pairs()).unwrap();
    post(&mut first.b, &[(good, &[])], true);
    succeeds(&bed, &mut first.b, 0, "a registration");
    for (what, op, status, why) in cases {
        let mut pair = bed.connect(&small_pairs()).unwrap();
        let near = bed.hosts[0].pd.alloc(64, Access::all()).unwrap();
        near.write(0, &[1; 64]);
        let ops = [
            (Operation::Write(near.remote(0)), &[plain.sge(0, 8)][..]),
            (op, &[]),
            (Operation::Write(near.remote(32)), &[plain.sge(0, 8)][..]),
        ];
        post(&mut pair.b, &ops, true);
        succeeds(&bed, &mut pair.b, 0, what);
        fails(&bed, &mut pair.b, 1, status, why, what);
        assert_eq!(wait(&bed, &mut pair.b.cq, what).status.unwrap_err().status, wc::WR_FLUSH, "{what}");
        assert_eq!(pair.b.qp.query().unwrap().state, qp_state::ERR, "{what}");
    }
    assert_sound(&bed, "what may not be opened");
}

/// In one batch, without a signal but the last: a region is registered, used as local memory, and dies; what names it behind that fails.
#[test]
fn what_is_posted_behind_finds_the_key_as_it_is_then() {
    let bed = Testbed::new(&Setup::small()).unwrap();
    let far = region(&bed.hosts[0].pd, LEN, Access::all(), |_| GUARD);
    let mut memory = fast(&bed, 1, 4096);
    for round in 0..4 {
        let mut pair = bed.connect(&small_pairs()).unwrap();
        far.write(0, &[GUARD; LEN]);
        memory.memory().write(0, &(0..4096).map(noise(round)).collect::<Vec<_>>());
        let part = memory.part(0, 4096, Access::all());
        let other = memory.part(64, 1000, Access::all());
        let ops = [
            (Operation::Register(part), &[][..]),
            (Operation::Write(far.remote(0)), &[part.sge(0, 700)][..]),
            (Operation::LocalInv(part.key()), &[]),
            (Operation::Register(other), &[]),
            (Operation::Write(far.remote(1000)), &[other.sge(0, 10)]),
            (Operation::LocalInv(other.key()), &[]),
            (Operation::Write(far.remote(1500)), &[other.sge(0, 10)]),
        ];
        let count = if round % 2 == 0 { 6 } else { 7 };
        post(&mut pair.b, &ops[..count], false);
        if count == 6 {
            succeeds(&bed, &mut pair.b, 5, "the last one");
        } else {
            fails(&bed, &mut pair.b, 6, wc::LOC_PROT, cause::KEY_INVALID, "a WRITE of a dead key");
        }
        let (sent, came) = (bytes(memory.memory()), bytes(&far));
        assert!(came[..700] == sent[..700] && came[1000..1010] == sent[64..74]);
        assert!(came[1500..].iter().all(|b| *b == GUARD));
    }
    assert_sound(&bed, "batches");
}

/// A region that is dropped while a window is open on it stays what it was: nobody gets its memory.
#[test]
fn the_memory_under_a_window_is_not_given_away() {
    let bed = Testbed::new(&Setup::small()).unwrap();
    let mut pair = bed.connect(&small_pairs()).unwrap();
    let near = region(&bed.hosts[0].pd, LEN, Access::all(), noise(5));
    let mut window = bed.hosts[1].pd.create_window().unwrap();
    let far = bed.hosts[1].pd.alloc_for_windows(4096, Access::LOCAL_WRITE, Translation::Auto).unwrap();
    let bound = window.of(&far, 0, 4096, Access::REMOTE_WRITE);
    post(&mut pair.b, &[(Operation::Bind(bound), &[])], true);
    succeeds(&bed, &mut pair.b, 0, "a binding");
    drop(far);
    let next: Vec<Mr> = (0..8).map(|_| region(&bed.hosts[1].pd, 4096, Access::all(), |_| GUARD)).collect();
    post(&mut pair.a, &[(Operation::Write(bound.remote(0)), &[near.sge(0, 100)])], true);
    succeeds(&bed, &mut pair.a, 0, "a WRITE by the window");
    assert!(next.iter().all(|mr| bytes(mr).iter().all(|b| *b == GUARD)));
    // With its QP the window is gone, and what comes next may have the number of both.
    drop(pair);
    peer_writes(&bed, &bound, 0, 1, false, &next[0], "a WRITE by a window whose QP is gone");
    assert_sound(&bed, "a window that outlives its region");
}

/// QPs end at any moment of their operations; keys, and who uses them, go on.
#[test]
fn queue_pairs_end_while_keys_change() {
    let bed = Testbed::new(&Setup::small()).unwrap();
    let far = region(&bed.hosts[0].pd, LEN, Access::all(), |_| GUARD);
    let ground = bed.hosts[1].pd.alloc_for_windows(4096, Access::LOCAL_WRITE, Translation::Auto).unwrap();
    let mut window = bed.hosts[1].pd.create_window().unwrap();
    let mut memory = fast(&bed, 1, 4096);
    for round in 0..verilate::scale(40) {
        let mut pair = bed.connect(&small_pairs()).unwrap();
        let part = memory.part(0, 4096, Access::all());
        let bound = window.of(&ground, 0, 64, Access::REMOTE_READ);
        let ops = [
            (Operation::Write(far.remote(0)), &[ground.sge(0, 1500)][..]),
            (Operation::Register(part), &[]),
            (Operation::Write(far.remote(0)), &[part.sge(0, 1500)]),
            (Operation::Bind(bound), &[]),
            (Operation::LocalInv(part.key()), &[]),
            (Operation::LocalInv(bound.key()), &[]),
        ];
        post(&mut pair.b, &ops, false);
        (0..round * 3 % 70).for_each(|_| bed.relax());
        if round % 3 == 0 {
            pair.b.qp.fail().unwrap();
            let mut other = bed.connect(&small_pairs()).unwrap();
            // It may have been registered, or not.
            post(&mut other.b, &[(Operation::LocalInv(part.key()), &[])], true);
            wait(&bed, &mut other.b.cq, "an invalidation");
        }
        drop(pair);
        // Whatever was open: by another QP all is closed, and opened again.
        let mut other = bed.connect(&small_pairs()).unwrap();
        post(&mut other.b, &[(Operation::LocalInv(part.key()), &[])], true);
        wait(&bed, &mut other.b.cq, "an invalidation");
        let mut last = bed.connect(&small_pairs()).unwrap();
        let again = memory.part(64, 100, Access::all());
        post(&mut last.b, &[(Operation::Register(again), &[]), (Operation::LocalInv(again.key()), &[])], true);
        succeeds(&bed, &mut last.b, 0, "a registration");
        succeeds(&bed, &mut last.b, 1, "an invalidation");
    }
    assert_sound(&bed, "queue pairs that end");
}

/// READs are under way, and more are waiting for a link that is paused or not, when their key dies by the peer's SEND or by the owner's own hand. What is
/// in the memory from the completion on nobody gets to see: a READ brings what was there before, or is refused. Nor does the completion wait for the link.
#[test]
fn a_key_is_not_read_behind_the_completion_of_its_invalidation() {
    const READS: usize = 12;
    const PART: usize = 4096;
    const AFTER: u8 = 0xc3;
    for mut setup in [Setup::small(), Setup::default()] {
        // A host that takes its time.
        setup.nic.pcie.read_latency *= 8;
        let bed = Testbed::new(&setup).unwrap();
        let mut far = fast(&bed, 1, READS * PART);
        let near = region(&bed.hosts[0].pd, READS * PART, Access::all(), |_| GUARD);
        let mail = region(&bed.hosts[1].pd, LEN, Access::all(), |_| 0);
        let (mut came, mut refused) = (0, 0);
        for round in 0..8u64 {
            let (own, paused) = (round % 2 == 1, round % 4 >= 2);
            let mut pair = bed.connect(&small_pairs()).unwrap();
            near.write(0, &[GUARD; READS * PART]);
            let was: Vec<u8> = (0..READS * PART).map(|i| noise(round)(i) & 0x3f).collect();
            far.memory().write(0, &was);
            let part = far.part(0, READS * PART, Access::all());
            post(&mut pair.b, &[(Operation::Register(part), &[])], true);
            succeeds(&bed, &mut pair.b, 0, "a registration");
            pair.b.qp.post_recv(7, &[mail.sge(0, LEN)]).unwrap();
            // Until the receive is on the chip.
            bed.sim().advance_cycles(4000);
            bed.sim().nic(1).hold.mac_tx = paused;
            let mut batch = pair.a.qp.post();
            for i in 0..READS {
                let read = Operation::Read(part.remote(i * PART));
                batch.add(i as u64, read, Data::Sges(&[near.sge(i * PART, PART)]), Flags::SIGNALED).unwrap();
            }
            if !own {
                batch.add(99, Operation::SendInv(part.key()), Data::Sges(&[]), Flags::SIGNALED).unwrap();
            }
            batch.ring();
            if own {
                bed.sim().advance_cycles(500 + 300 * round);
                post(&mut pair.b, &[(Operation::LocalInv(part.key()), &[])], true);
            }
            let c = wait(&bed, &mut pair.b.cq, "an invalidation");
            assert_eq!(c.status, Ok(()), "round {round}");
            far.memory().write(0, &[AFTER; READS * PART]);
            if paused {
                bed.sim().advance_cycles(3000);
                bed.sim().nic(1).hold.mac_tx = false;
            }
            for _ in 0..READS + usize::from(!own) {
                let c = wait(&bed, &mut pair.a.cq, "a READ");
                came += u32::from(c.status.is_ok() && c.wr_id != 99);
                refused += u32::from(c.status.is_err_and(|e| e.status == wc::REM_ACCESS));
            }
            let seen = bytes(&near);
            let late = seen.iter().filter(|b| **b == AFTER).count();
            assert_eq!(late, 0, "round {round}: bytes read behind the completion");
            assert!(seen.iter().zip(&was).all(|(a, b)| a == b || *a == GUARD), "round {round}");
        }
        println!("{came} READs came, {refused} were refused");
        assert!(came > 1 && refused > 1, "{came} {refused}");
        assert_sound(&bed, "READs under invalidation");
    }
}

/// An atomic of the owner's queue has just been answered when its LOCAL_INV behind it has its turn: it waits for the peer's READs and atomics
/// under the key as any other does, so that what is in the memory from its completion on nobody sees or changes.
#[test]
fn an_invalidation_behind_an_atomic_waits_for_reads_and_atomics() {
    const READS: usize = 12;
    const ATOMICS: usize = 4;
    const PART: usize = 4096;
    const ALL: usize = (READS + 1) * PART;
    const AFTER: u8 = 0xc3;
    for mut setup in [Setup::small(), Setup::default()] {
        setup.nic.pcie.read_latency *= 8;
        let bed = Testbed::new(&setup).unwrap();
        let mut memory = fast(&bed, 1, ALL);
        let near = region(&bed.hosts[0].pd, ALL, Access::all(), |_| 0);
        let mail = region(&bed.hosts[1].pd, LEN, Access::all(), |_| 0);
        let (mut came, mut refused, mut added) = (0, 0, 0);
        for round in 0..12u64 {
            let mut pair = bed.connect(&Connect { access: Access::all(), ..small_pairs() }).unwrap();
            near.write(0, &[GUARD; ALL]);
            let was: Vec<u8> = (0..ALL).map(|i| if i < READS * PART { noise(round)(i) & 0x3f } else { 0 }).collect();
            memory.memory().write(0, &was);
            let part = memory.part(0, ALL, Access::all());
            post(&mut pair.b, &[(Operation::Register(part), &[])], true);
            succeeds(&bed, &mut pair.b, 0, "a registration");
            let mut batch = pair.a.qp.post();
            // The peer's atomics behind its READs, or before them.
            let first = if round % 2 == 0 { 0 } else { READS };
            for i in (0..READS + ATOMICS).map(|i| (i + first) % (READS + ATOMICS)) {
                let (op, sge) = if i < READS {
                    (Operation::Read(part.remote(i * PART)), near.sge(i * PART, PART))
                } else {
                    let at = READS * PART + 8 * i;
                    (Operation::AtomicAdd { remote: part.remote(at), add: 1 }, near.sge(at, 8))
                };
                batch.add(i as u64, op, Data::Sges(&[sge]), Flags::SIGNALED).unwrap();
            }
            batch.ring();
            bed.sim().advance_cycles(200 * (round / 2));
            let atomic = Operation::AtomicAdd { remote: near.remote(ALL - 8), add: 1 };
            post(&mut pair.b, &[(atomic, &[mail.sge(0, 8)]), (Operation::LocalInv(part.key()), &[])], true);
            succeeds(&bed, &mut pair.b, 0, "the owner's atomic");
            succeeds(&bed, &mut pair.b, 1, "its invalidation");
            added += bytes(memory.memory())[READS * PART..].iter().filter(|b| **b != 0).count();
            memory.memory().write(0, &[AFTER; ALL]);
            for _ in 0..READS + ATOMICS {
                let c = wait(&bed, &mut pair.a.cq, "a READ or an atomic");
                came += u32::from(c.status.is_ok());
                refused += u32::from(c.status.is_err_and(|e| e.status == wc::REM_ACCESS));
            }
            let seen = bytes(&near);
            let late = seen[..READS * PART].iter().filter(|b| **b == AFTER).count();
            assert_eq!(late, 0, "round {round}: bytes read behind the completion");
            let kept = bytes(memory.memory()).iter().all(|b| *b == AFTER);
            assert!(kept, "round {round}: an atomic is written behind the completion");
        }
        println!("{came} READs and atomics came, {refused} were refused, {added} sums were there");
        assert!(came > 1 && refused > 1 && added > 0, "{came} {refused} {added}");
        assert_sound(&bed, "READs and atomics under invalidation");
    }
}

/// What a peer asks of memory, and the right that it needs.
const ASKS: [(&str, Access); 5] = [
    ("a WRITE", Access::REMOTE_WRITE),
    ("a READ", Access::REMOTE_READ),
    ("compare-and-swap", Access::REMOTE_ATOMIC),
    ("fetch-and-add", Access::REMOTE_ATOMIC),
    ("an atomic write", Access::REMOTE_WRITE),
];

/// Asks for the `i`th of them at `to`: WRITE and READ of `len` bytes of `near`, the others of a word in which `found` is.
fn ask(end: &mut End, i: usize, to: Remote, near: &Mr, len: usize, found: u64) {
    let mut batch = end.qp.post();
    let word = [near.sge(LEN, 8)];
    let (op, data) = match i {
        0 => (Operation::Write(to), Data::Sges(&[near.sge(0, len)])),
        1 => (Operation::Read(to), Data::Sges(&[near.sge(LEN, len)])),
        2 => (Operation::AtomicCas { remote: to, compare: found, swap: !found }, Data::Sges(&word)),
        3 => (Operation::AtomicAdd { remote: to, add: 1 }, Data::Sges(&word)),
        _ => (Operation::AtomicWrite(to), Data::Inline(&[0x5a; 8])),
    };
    batch.add(7, op, data, Flags::SIGNALED).unwrap();
    batch.ring();
}

/// Each operation goes through the key of a window and of a fast region, over the end of a page, if that gives the right to it, within its
/// bounds, and until it is invalidated.
#[test]
fn each_operation_needs_its_right_of_a_window_or_fast_region() {
    // Where a part begins, and what it spans: no whole number of words.
    const AT: usize = 4000;
    const SPAN: usize = 1500;
    let every = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let connect = Connect { access: Access::all(), ..small_pairs() };
    for setup in [Setup::default(), Setup::small()] {
        let bed = Testbed::new(&setup).unwrap();
        let mut owner = bed.connect(&connect).unwrap();
        let near = region(&bed.hosts[0].pd, 2 * LEN, Access::all(), noise(9));
        let ground = bed.hosts[1].pd.alloc_for_windows(8192, Access::LOCAL_WRITE, Translation::Pages(4096)).unwrap();
        let mut window = bed.hosts[1].pd.create_window().unwrap();
        let mut far = bed.hosts[1].pd.alloc_fast(8192).unwrap();
        let was: Vec<u8> = (0..8192).map(noise(4)).collect();
        for (of_window, right) in [false, true].into_iter().flat_map(|w| {
            let each = [every, Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC];
            each.into_iter().take(if setup.width == 64 { 4 } else { 1 }).map(move |right| (w, right))
        }) {
            for (i, (what, needs)) in ASKS.into_iter().enumerate() {
                let what = format!("{what} by {right:?} of a {}", if of_window { "window" } else { "fast region" });
                let words = i >= 2;
                let allowed = right.contains(needs);
                // In the part, over its end, before its begin.
                let inner = if words { SPAN - 12 } else { 0 };
                let edges = [inner, if words { SPAN - 4 } else { 1 }, usize::MAX - 7];
                for (edge, at) in
                    edges.into_iter().take(if right == every && setup.width == 64 { 3 } else { 1 }).enumerate()
                {
                    let mut pair = bed.connect(&connect).unwrap();
                    let (op, to, key) = if of_window {
                        let bound = window.of(&ground, AT, SPAN, right);
                        (Operation::Bind(bound), bound.remote(at), bound.key())
                    } else {
                        let part = far.part(AT, SPAN, right | Access::LOCAL_WRITE);
                        (Operation::Register(part), part.remote(at), part.key())
                    };
                    let closer = if of_window { &mut pair.b } else { &mut owner.b };
                    post(closer, &[(op, &[])], true);
                    succeeds(&bed, closer, 0, &what);
                    let memory = if of_window { &ground } else { far.memory() };
                    memory.write(0, &was);
                    near.write(LEN, &[GUARD; LEN]);
                    let mut want = was.clone();
                    let found = u64::from_le_bytes(was[AT + inner..][..8].try_into().unwrap());
                    ask(&mut pair.a, i, to, &near, SPAN, found);
                    if allowed && edge == 0 {
                        succeeds(&bed, &mut pair.a, 7, &what);
                        let (mut sent, mut came) = ([0; SPAN], [0; SPAN]);
                        near.read(0, &mut sent);
                        near.read(LEN, &mut came);
                        let part = &mut want[AT + inner..][..if words { 8 } else { SPAN }];
                        match i {
                            0 => part.copy_from_slice(&sent),
                            1 => assert!(came[..] == *part, "{what}"),
                            2 => part.copy_from_slice(&(!found).to_le_bytes()),
                            3 => part.copy_from_slice(&found.wrapping_add(1).to_le_bytes()),
                            _ => part.fill(0x5a),
                        }
                        assert!(!matches!(i, 2 | 3) || came[..8] == found.to_le_bytes(), "{what}");
                        // A WRITE is acknowledged a little before it has landed.
                        pass(&bed, 20);
                        assert!(bytes(memory) == want, "{what}");
                        post(closer, &[(Operation::LocalInv(key), &[])], true);
                        succeeds(&bed, closer, 0, &what);
                        ask(&mut pair.a, i, to, &near, SPAN, found);
                    }
                    fails(
                        &bed,
                        &mut pair.a,
                        7,
                        wc::REM_ACCESS,
                        cause::NAK_REMOTE_ACCESS,
                        &format!("{what}, edge {edge}"),
                    );
                    assert!(bytes(memory) == want, "{what}, edge {edge}: something is written");
                    if !(of_window || allowed && edge == 0) {
                        post(&mut owner.b, &[(Operation::LocalInv(key), &[])], true);
                        succeeds(&bed, &mut owner.b, 0, &what);
                    }
                }
            }
        }
        assert_sound(&bed, "each right");
    }
}
