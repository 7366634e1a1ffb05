//! Queue pairs of UC and UD are drained, reset, failed and destroyed in the middle of traffic: what has begun ends, nothing late touches memory, and the
//! other end goes on.

use abi::queue::{UD_HEADER, event};
use abi::status::wc;
use driver::qp::{QpSizes, Rts, Transport, Uc, Ud};
use driver::{Access, AddressHandle, AddressVector, Cq, Data, Event, Flags, Mr, Operation, Qp};
use ferroce_tests::{GUARD, assert_sound, bytes, noise, pass, path_to, region, wait};
use nic::Adversary;
use rand::RngExt;
use testbed::{Setup, Testbed};

const QKEY: u32 = 0x1234_5678;
/// Messages that are on their way at once, their bytes, and room for one.
const COUNT: usize = 32;
const LEN: usize = 1000;
const ROOM: usize = LEN + UD_HEADER;

/// An end, its memory, and what it does with a message to the other end.
struct End<T: Transport> {
    qp: Qp<Rts, T>,
    cq: Cq,
    source: Mr,
    inbox: Mr,
    operation: Operation,
    /// Bytes in front of a message.
    header: usize,
    _way: Option<AddressHandle>,
}

impl<T: Transport> End<T> {
    fn receive(&mut self) {
        self.inbox.write(0, &[GUARD; COUNT * ROOM]);
        (0..COUNT).for_each(|i| self.qp.post_recv(i as u64, &[self.inbox.sge(i * ROOM, ROOM)]).unwrap());
    }

    fn send(&mut self) {
        let mut batch = self.qp.post();
        for i in 0..COUNT {
            let sge = [self.source.sge(i * 7, LEN)];
            batch.add(100 + i as u64, self.operation, Data::Sges(&sge), Flags::SIGNALED).unwrap();
        }
    }

    /// Message `i` of `from` is here, and nothing behind it.
    fn has(&self, i: usize, from: &Mr) -> bool {
        let place = &bytes(&self.inbox)[i * ROOM..(i + 1) * ROOM];
        place[self.header..][..LEN] == bytes(from)[i * 7..][..LEN]
            && place[self.header + LEN..].iter().all(|b| *b == GUARD)
    }
}

fn memory(bed: &Testbed, i: usize) -> [Mr; 2] {
    let of = |fill: &dyn Fn(usize) -> u8| region(&bed.hosts[i].pd, COUNT * ROOM, Access::all(), fill);
    [of(&noise(i as u64)), of(&|_| GUARD)]
}

fn datagrams(bed: &Testbed) -> [End<Ud>; 2] {
    let cqs = [0, 1].map(|i| bed.hosts[i].device.create_cq(256, &bed.hosts[i].eq).unwrap());
    let qps = [0, 1].map(|i| {
        let qp = bed.hosts[i].pd.create_ud_qp(&cqs[i], &cqs[i], QpSizes::new(64, COUNT as u32)).unwrap();
        qp.init(QKEY).unwrap().rtr().unwrap().rts(0xff_fffe).unwrap()
    });
    let numbers = qps.each_ref().map(|qp| qp.qpn());
    let mut ends = vec![];
    for (i, (qp, cq)) in qps.into_iter().zip(cqs).enumerate() {
        let to = bed.hosts[1 - i].gid;
        let vector =
            AddressVector { ip: to.ip, mac: to.mac, gid: 0, traffic_class: 0, priority: 0, source_port: 0xc123 };
        let way = bed.hosts[i].pd.create_ah(&vector).unwrap();
        let operation = Operation::SendTo(way.to(numbers[1 - i], QKEY));
        let [source, inbox] = memory(bed, i);
        ends.push(End { qp, cq, source, inbox, operation, header: UD_HEADER, _way: Some(way) });
    }
    ends.try_into().ok().expect("two")
}

fn connection(bed: &Testbed) -> [End<Uc>; 2] {
    let made = [0, 1].map(|i| {
        let cq = bed.hosts[i].device.create_cq(256, &bed.hosts[i].eq).unwrap();
        let qp = bed.hosts[i].pd.create_uc_qp(&cq, &cq, QpSizes::new(64, COUNT as u32)).unwrap();
        (qp.init(Access::all()).unwrap(), cq)
    });
    let numbers = made.each_ref().map(|(qp, _)| qp.qpn());
    let mut ends = vec![];
    for (i, (qp, cq)) in made.into_iter().enumerate() {
        // Three packets a message.
        let qp = qp.rtr(&path_to(bed.hosts[1 - i].gid, numbers[1 - i], 512, 0xff_fffe)).unwrap();
        let [source, inbox] = memory(bed, i);
        let qp = qp.rts(0xff_fffe).unwrap();
        ends.push(End { qp, cq, source, inbox, operation: Operation::Send, header: 0, _way: None });
    }
    ends.try_into().ok().expect("two")
}

/// SQD: what has begun leaves, is complete, and then the event comes; what waits is sent when it goes on.
fn drained<T: Transport>(make: impl Fn(&Testbed) -> [End<T>; 2]) {
    let mut middle = 0;
    // So slow a link that a command comes to the device while some of the messages wait.
    let mut bed = Testbed::new(&Setup::small().link(1.0)).unwrap();
    for round in 0..verilate::scale(8) {
        let [mut a, mut b] = make(&bed);
        b.receive();
        pass(&bed, 100);
        a.send();
        pass(&bed, 40 * round);
        let qp = a.qp.drain(true).unwrap();
        let told = (0..10_000).find_map(|_| {
            bed.relax();
            bed.hosts[0].eq.poll()
        });
        assert_eq!(told, Some(Event { kind: event::SQ_DRAINED, number: qp.qpn(), value: 0 }), "round {round}");
        let mut done: Vec<_> = a.cq.poll().map(|c| (c.wr_id, c.status)).collect();
        let first = done.len();
        middle += usize::from(first > 0 && first < COUNT);
        pass(&bed, 1000);
        assert_eq!(a.cq.poll().count(), 0, "round {round}: one left in SQD");
        assert_eq!(b.cq.poll().count(), first, "round {round}: what is complete has left, and no more");
        a.qp = qp.resume().unwrap();
        while done.len() < COUNT {
            let c = wait(&bed, &mut a.cq, "what waited");
            done.push((c.wr_id, c.status));
        }
        assert_eq!(done, (100..100 + COUNT as u64).map(|i| (i, Ok(()))).collect::<Vec<_>>(), "round {round}");
        pass(&bed, 1000);
        assert_eq!(b.cq.poll().count(), COUNT - first, "round {round}");
        assert!((0..COUNT).all(|i| b.has(i, &a.source)), "round {round}: a message");
    }
    assert!(middle > 1, "drained in the middle {middle} times");
    assert_sound(&bed, "drained");
}

#[test]
fn a_send_queue_of_datagrams_is_drained_and_goes_on() {
    drained(datagrams);
}

#[test]
fn a_send_queue_of_an_unreliable_connection_is_drained_and_goes_on() {
    drained(connection);
}

/// One end ends while both send: by RESET, by ERR, by its destruction.
fn ended<T: Transport>(make: impl Fn(&Testbed) -> [End<T>; 2]) {
    for mut setup in [Setup::default(), Setup::small()] {
        setup.nic.adversary = Adversary::Hostile;
        let bed = Testbed::new(&setup).unwrap();
        let mut rng = verilate::rng(setup.width as u64);
        for round in 0..verilate::scale(12) {
            let [mut ending, mut other] = make(&bed);
            ending.receive();
            other.receive();
            pass(&bed, 60);
            ending.send();
            other.send();
            pass(&bed, rng.random_range(0..80));
            let what = format!("{} bits, round {round}", setup.width);
            let End { qp, mut cq, source, inbox, .. } = ending;
            match round % 3 {
                0 => drop(qp),
                1 => drop(qp.reset().unwrap()),
                _ => {
                    qp.fail().unwrap();
                    let all: Vec<_> = cq.poll().map(|c| (c.wr_id, c.status.map_err(|e| e.status))).collect();
                    for of in [0..COUNT as u64, 100..100 + COUNT as u64] {
                        let mine: Vec<_> = all.iter().filter(|c| of.contains(&c.0)).collect();
                        assert!(mine.iter().map(|c| c.0).eq(of), "{what}: each once, in order: {all:?}");
                        assert!(mine.is_sorted_by_key(|c| c.1.is_err()), "{what}: success before flush");
                        assert!(mine.iter().all(|c| c.1.is_ok() || c.1 == Err(wc::WR_FLUSH)), "{what}: {all:?}");
                    }
                    drop(qp);
                }
            }
            assert_eq!(cq.poll().count(), 0, "{what}: completions of a queue pair that is gone");
            inbox.write(0, &[GUARD; COUNT * ROOM]);
            source.write(0, &[0x66; COUNT * ROOM]);
            // All that the other one sends leaves, whoever hears it.
            for i in 0..COUNT as u64 {
                let sent = |c: &driver::Completion| c.wr_id >= 100;
                let c = std::iter::repeat_with(|| wait(&bed, &mut other.cq, &what)).find(sent).unwrap();
                assert_eq!((c.wr_id, c.status), (100 + i, Ok(())), "{what}");
            }
            pass(&bed, 200);
            assert!(bytes(&inbox) == [GUARD; COUNT * ROOM], "{what}: written by a queue pair that is gone");
            assert_eq!(cq.poll().count(), 0, "{what}: completed by a queue pair that is gone");
            assert_sound(&bed, &what);
        }
    }
}

#[test]
fn queue_pairs_of_datagrams_end_under_traffic() {
    ended(datagrams);
}

#[test]
fn unreliable_connections_end_under_traffic() {
    ended(connection);
}
