//! Keys that come and go by work request: what opens, what no longer does, and in which order with all else.

use abi::{
    queue::{recv_op, send_op},
    status::{cause, counter, wc},
    table::qp_state,
};
use driver::{Access, Data, Flags, Operation, WcError};
use ferroce_tests::{GUARD, LEN, assert_sound, bytes, noise, region, small_pairs, wait};
use testbed::{Setup, Testbed};

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
