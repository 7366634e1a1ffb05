//! A storm of doorbells, sound and unsound, while no DMA of the NIC completes: nothing is lost, nothing hangs, and the
//! counters tell what was refused.

use abi::Field;
use abi::queue::{cq_db, doorbell, event, ring_db};
use abi::status::{cause, counter};
use abi::table::qp_state;
use driver::qp::QpSizes;
use driver::{Access, Data, Event, Flags, Operation};
use ferroce_tests::{Bystander, GUARD, assert_sound, noise, pass, region, wait};
use nic::{BarRequest, Hold};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use testbed::{Connect, Setup, Testbed};

/// Pairs that work, and QPs whose doorbells go wild.
const PAIRS: usize = 4;
const VICTIMS: usize = 4;
/// Messages of each pair.
const MESSAGES: usize = 24;
const LEN: usize = 700;

fn word(fields: &[(Field, u64)]) -> u64 {
    let mut bytes = [0; 8];
    fields.iter().for_each(|(f, v)| f.set(&mut bytes, *v));
    u64::from_le_bytes(bytes)
}

#[test]
fn a_storm_of_doorbells_with_all_dma_stalled() {
    let mut rng = verilate::rng(4242);
    let bed = Testbed::new(&Setup::default()).unwrap();
    let sizes = QpSizes::new(64, 32);
    let connect = Connect { sizes, mtu: 1024, ..Connect::default() };
    let mut pairs: Vec<_> = (0..PAIRS).map(|_| bed.connect(&connect).unwrap()).collect();
    let victims: Vec<_> = (0..VICTIMS).map(|_| bed.connect(&connect).unwrap()).collect();
    let source = region(&bed.hosts[0].pd, LEN * MESSAGES, Access::LOCAL_WRITE, noise(4242));
    let target = region(&bed.hosts[1].pd, LEN * MESSAGES * PAIRS, Access::all(), |_| GUARD);
    let before = bed.hosts[0].device.counter(counter::DOORBELL_REFUSED);

    // Posted while nothing moves.
    let hold = Hold { read_data: true, write_response: true, ..Hold::default() };
    bed.sim().nic(0).hold = hold;
    for (p, pair) in pairs.iter_mut().enumerate() {
        for i in 0..MESSAGES {
            let to = Operation::Write(target.remote((p * MESSAGES + i) * LEN));
            let mut batch = pair.a.qp.post();
            batch.add(i as u64, to, Data::Sges(&[source.sge(i * LEN, LEN)]), Flags::SIGNALED).unwrap();
            batch.ring();
        }
    }
    let mut refused = 0;
    let ring = |page: usize, at: usize, bytes: u8, value: u64| {
        let offset = (page * doorbell::PAGE + at) as u32;
        bed.sim().nic(0).bar(BarRequest { bar: 2, offset, bytes, write: Some(value) });
    };
    let number = |rng: &mut ChaCha8Rng| pairs[rng.random_range(0..PAIRS)].a.qp.qpn() as u64;
    for k in 0..verilate::scale(100_000) {
        let posted = MESSAGES as u64;
        let any = rng.random_range(0..1 << 24);
        let which = [doorbell::SQ, doorbell::RQ, doorbell::CQ, doorbell::EQ][rng.random_range(0..4)];
        match rng.random_range(0..6) {
            // What was told already.
            0 => {
                let n = number(&mut rng);
                ring(1, doorbell::SQ, 8, word(&[(ring_db::NUMBER, n), (ring_db::PRODUCER, posted)]));
            }
            // Another page's.
            1 => {
                let page = rng.random_range(2..4096);
                ring(
                    page,
                    doorbell::SQ,
                    8,
                    word(&[(ring_db::NUMBER, number(&mut rng)), (ring_db::PRODUCER, any & 0xffff)]),
                );
                refused += 1;
            }
            // Indices that no ring has room for.
            2 => {
                let n = victims[rng.random_range(0..VICTIMS)].a.qp.qpn() as u64;
                let at = if rng.random_bool(0.5) { doorbell::SQ } else { doorbell::RQ };
                let wild = rng.random_range(200..0xff00);
                ring(1, at, 8, word(&[(ring_db::NUMBER, n), (ring_db::PRODUCER, wild)]));
            }
            // Objects that do not exist.
            3 => {
                let n = rng.random_range(300..1 << 24);
                ring(1, which, 8, word(&[(cq_db::NUMBER, n), (cq_db::CONSUMER, any)]));
                refused += 1;
            }
            // Halves of a doorbell.
            4 => {
                ring(1, which, 4, number(&mut rng));
                refused += 1;
            }
            // Direct WQEs whose words come from nowhere in order.
            _ => ring(1, doorbell::DIRECT_WQE + 8 * rng.random_range(2..16), 8, any),
        }
        if k % 16 == 0 {
            bed.relax();
        }
    }
    pass(&bed, 200);
    let counted = bed.hosts[0].device.counter(counter::DOORBELL_REFUSED) - before;
    assert_eq!(counted, refused, "doorbells refused");
    assert!(bed.hosts[0].device.counter(counter::DOORBELL_RANGE) >= 1);
    for pair in &mut pairs {
        assert!(pair.a.cq.poll().next().is_none(), "nothing can complete while reads stand still");
    }

    bed.sim().nic(0).hold = Hold::default();
    for (p, pair) in pairs.iter_mut().enumerate() {
        for i in 0..MESSAGES {
            let c = wait(&bed, &mut pair.a.cq, &format!("pair {p}, message {i}"));
            c.status.unwrap();
            assert_eq!(c.wr_id, i as u64);
        }
        assert_eq!(pair.a.qp.query().unwrap().state, qp_state::RTS);
    }
    pass(&bed, 50);
    let sent = ferroce_tests::bytes(&source);
    for (p, got) in ferroce_tests::bytes(&target).chunks(LEN * MESSAGES).enumerate() {
        assert!(got == sent, "pair {p}");
    }
    for v in &victims {
        assert_eq!(v.a.qp.query().unwrap().state, qp_state::ERR, "a wild index ends the QP");
        assert_eq!(v.b.qp.query().unwrap().state, qp_state::RTS, "its peer does not notice");
    }
    assert_sound(&bed, "doorbells");
}

/// Who rings a doorbell that is not its own, or nobody's, is told on by an event, and harms nobody; of more that come close behind, the counter
/// alone tells.
#[test]
fn a_refused_doorbell_is_told_of() {
    let mut bed = Testbed::new(&Setup::small()).unwrap();
    let mut bystander = Bystander::new(&bed);
    let qpn = bystander.pair.a.qp.qpn();
    while bed.hosts[0].eq.poll().is_some() {}
    for (page, which, number) in
        [(2, doorbell::SQ, qpn), (7, doorbell::RQ, qpn), (1, doorbell::SQ, 3000), (1, doorbell::CQ, 4000)]
    {
        let before = bed.hosts[0].device.counter(counter::DOORBELL_REFUSED);
        let value = word(&[(ring_db::NUMBER, number.into()), (ring_db::PRODUCER, 3)]);
        let offset = (page * doorbell::PAGE + which) as u32;
        for _ in 0..3 {
            bed.sim().nic(0).bar(BarRequest { bar: 2, offset, bytes: 8, write: Some(value) });
        }
        // Longer than events keep apart.
        let mut told = Vec::new();
        for _ in 0..4000 {
            bed.relax();
            told.extend(std::iter::from_fn(|| bed.hosts[0].eq.poll()));
        }
        let want = Event { kind: event::DOORBELL, number, value: cause::DOORBELL_OWNER.into() };
        assert_eq!(told, [want], "page {page}, doorbell {which:#x} of {number}");
        assert_eq!(bed.hosts[0].device.counter(counter::DOORBELL_REFUSED) - before, 3);
        bystander.check(&bed, "refused doorbells");
    }
    assert_sound(&bed, "refused doorbells");
}
