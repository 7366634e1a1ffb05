//! QP 1, the general service queue pair: its number, its Q_Key, and whose it is.

use abi::queue::UD_HEADER;
use abi::status::{cause, counter, wc};
use abi::table::{qp_state, qp_type};
use abi::wire::qkey;
use abi::{Field, cmd::create_qp, cmd::head, cmd::op};
use driver::qp::{Rts, Ud};
use driver::{Access, AddressHandle, Cq, Data, Flags, Mr, Operation, Qp};
use fabric::SimFunction;
use ferroce_tests::datagrams::{LEN, QKEY, SIZES, handle, header, talker};
use ferroce_tests::{GUARD, assert_sound, bytes, is_guard, noise, pass, region, reopen_as, wait};
use std::sync::Arc;
use testbed::{Host, Setup, Testbed};

/// Bytes of a management datagram (IBTA 13.4.2).
const MAD: usize = 256;

/// Both hosts' drivers opened as owner 0, the devices' keeper.
fn keepers(setup: &Setup) -> Testbed {
    let mut bed = Testbed::new(setup).unwrap();
    for i in 0..2 {
        let function = Arc::new(SimFunction::new(bed.fabric.clone(), i));
        // Its objects are gone with the reset.
        std::mem::forget(reopen_as(&mut bed, i, function, 0));
    }
    bed
}

struct Gsi {
    qp: Qp<Rts, Ud>,
    cq: Cq,
    memory: Mr,
}

fn gsi(h: &Host) -> Gsi {
    let cq = h.device.create_cq(64, &h.eq).unwrap();
    let qp = h.pd.create_gsi_qp(&cq, &cq, SIZES).unwrap().rtr().unwrap().rts(5).unwrap();
    Gsi { qp, cq, memory: region(&h.pd, LEN, Access::all(), |_| GUARD) }
}

fn send(qp: &mut Qp<Rts, Ud>, id: u64, ah: &AddressHandle, qpn: u32, key: u32, data: Data) {
    qp.post().add(id, Operation::SendTo(ah.to(qpn, key)), data, Flags::SIGNALED).unwrap();
}

/// Management datagrams both ways, whole.
fn mads(setup: &Setup) {
    let bed = keepers(setup);
    let mut ends = [gsi(&bed.hosts[0]), gsi(&bed.hosts[1])];
    assert_eq!(ends.each_ref().map(|e| e.qp.qpn()), [1, 1]);
    for round in 0..verilate::scale(6) {
        let (from, to) = (round % 2, 1 - round % 2);
        let ah = handle(&bed, from, to);
        let mad: Vec<u8> = (0..MAD).map(noise(round as u64)).collect();
        let source = region(&bed.hosts[from].pd, MAD, Access::empty(), noise(round as u64));
        ends[to].memory.write(0, &[GUARD; LEN]);
        let receive = ends[to].memory.sge(0, LEN);
        ends[to].qp.post_recv(7, &[receive]).unwrap();
        pass(&bed, 20);
        // A privileged Q_Key in a work request stands for the QP's own.
        let key = [qkey::QP1, qkey::PRIVILEGED][round / 2 % 2];
        send(&mut ends[from].qp, 3, &ah, 1, key, Data::Sges(&[source.sge(0, MAD)]));
        let c = wait(&bed, &mut ends[from].cq, "a MAD");
        assert_eq!((c.wr_id, c.status), (3, Ok(())));
        let c = wait(&bed, &mut ends[to].cq, "a MAD's receive");
        assert_eq!((c.wr_id, c.status, c.len as usize, c.source), (7, Ok(()), UD_HEADER + MAD, 1));
        let all = bytes(&ends[to].memory);
        header(&all[..UD_HEADER], &bed.hosts[from].gid, bed.hosts[to].gid.ip, MAD, false);
        assert!(all[UD_HEADER..][..MAD] == mad && is_guard(&ends[to].memory, UD_HEADER + MAD..LEN));
    }
    assert_sound(&bed, "management datagrams");
}

#[test]
fn management_datagrams_go_both_ways() {
    mads(&Setup::small());
}

#[test]
fn management_datagrams_go_both_ways_over_ip6_in_a_vlan() {
    mads(&Setup { ip6: true, vlan: Some(12), ..Setup::default() });
}

/// QP 1 hears its own Q_Key alone; who has another one cannot name it.
#[test]
fn the_qkey_of_qp_1_is_kept() {
    let mut bed = Testbed::new(&Setup::small()).unwrap();
    let function = Arc::new(SimFunction::new(bed.fabric.clone(), 1));
    std::mem::forget(reopen_as(&mut bed, 1, function, 0));
    let mut b = gsi(&bed.hosts[1]);
    b.qp.post_recv(7, &[b.memory.sge(0, LEN)]).unwrap();
    pass(&bed, 20);
    // Host 0 is one of the many: owner 1.
    let mut a = talker(&bed.hosts[0], QKEY);
    let ah = handle(&bed, 0, 1);
    for key in [QKEY, qkey::QP1 ^ qkey::PRIVILEGED, 0, qkey::QP1] {
        // The driver puts the QP's own in place of a privileged one.
        let before = bed.hosts[1].device.counter(counter::RX_QP_PEER);
        send(&mut a.qp, 1, &ah, 1, key, Data::Inline(&[1; MAD - 56]));
        a.sent(&bed, 1);
        pass(&bed, 100);
        assert_eq!(bed.hosts[1].device.counter(counter::RX_QP_PEER), before + 1, "Q_Key {key:#x}");
    }
    // A program that writes its work requests itself gets no further: the device refuses to send it.
    let mut block = [0; 64];
    for (field, value) in [
        (abi::queue::send_wqe::OPCODE, u64::from(abi::queue::send_op::SEND)),
        (abi::queue::send_wqe::SIGNALED, 1),
        (abi::queue::send_wqe::BLOCKS, 1),
        (abi::queue::send_wqe::INLINE, 1),
        (abi::queue::send_wqe::LENGTH, 8),
        (abi::queue::send_wqe::RKEY, qkey::QP1.into()),
    ] {
        field.set(&mut block, value);
    }
    let mut target = [0; 8];
    abi::queue::ud_target::QPN.set(&mut target, 1);
    // Whichever its handle is.
    let handles = bed.hosts[0].device.limits().qps / 2;
    let frames = bed.hosts[0].device.counter(counter::TX_FRAMES);
    for number in 0..handles {
        abi::queue::ud_target::AH.set(&mut target, number.into());
        abi::queue::send_wqe::REMOTE_VA.set(&mut block, u64::from_le_bytes(target));
        let mut batch = a.qp.post();
        batch.add_raw(9, &[block]).unwrap();
        batch.ring();
        let c = wait(&bed, &mut a.cq, "a stolen Q_Key");
        let e = c.status.unwrap_err();
        assert_eq!((c.wr_id, e.status, e.cause), (9, wc::LOC_QP_OP, cause::WQE_QKEY), "handle {number}");
        // It stops the send queue alone.
        a.qp = a.qp.stopped().unwrap_or_else(|_| panic!("it has not stopped")).resume().unwrap();
    }
    assert_eq!(bed.hosts[0].device.counter(counter::TX_FRAMES), frames, "nothing left");
    assert_eq!(b.cq.poll().next(), None);
    assert_eq!((b.qp.query().unwrap().state, a.qp.query().unwrap().state), (qp_state::RTS, qp_state::RTS));
    assert_sound(&bed, "the Q_Key of QP 1");
}

/// One port has one, of its keeper's; nobody else gets it, its number, or a privileged Q_Key.
#[test]
fn qp_1_is_the_keepers() {
    let bed = Testbed::new(&Setup::small()).unwrap();
    let h = &bed.hosts[0];
    let cq = h.device.create_cq(64, &h.eq).unwrap();
    let error = h.pd.create_gsi_qp(&cq, &cq, SIZES).err().unwrap().to_string();
    assert!(error.contains("only owner 0"), "{error}");
    let ud = h.pd.create_ud_qp(&cq, &cq, SIZES).unwrap();
    let error = ud.init(qkey::QP1).err().unwrap().to_string();
    assert!(error.contains("privileged"), "{error}");
    // Whatever the driver says: the command itself is refused.
    let mut command = [0; 64];
    let fields: [(Field, u64); 3] =
        [(head::OPCODE, op::CREATE_QP.into()), (head::OWNER, 1), (create_qp::TYPE, qp_type::GSI.into())];
    fields.iter().for_each(|(f, v)| f.set(&mut command, *v));
    let a = h.device.command_raw(command).unwrap();
    assert_eq!(abi::cmd::answer::RESULT.get(&a), u64::from(abi::cmd::result::NOT_OWNER));
    // As many as there are: none is number 1.
    let all: Vec<_> = (0..30).map(|_| h.pd.create_ud_qp(&cq, &cq, SIZES).unwrap()).collect();
    assert!(all.iter().all(|q| q.qpn() >= 2) && h.pd.create_ud_qp(&cq, &cq, SIZES).is_err());
    drop((all, cq));
    let bed = keepers(&Setup::small());
    let h = &bed.hosts[0];
    let first = gsi(h);
    let cq = h.device.create_cq(64, &h.eq).unwrap();
    assert!(h.pd.create_gsi_qp(&cq, &cq, SIZES).is_err(), "there is one");
    // Its keeper's other QPs may have privileged Q_Keys, that of QP 1 among them.
    let other = h.pd.create_ud_qp(&cq, &cq, SIZES).unwrap().init(qkey::QP1).unwrap();
    assert_ne!(other.qpn(), 1);
    drop(first);
    assert_eq!(h.pd.create_gsi_qp(&cq, &cq, SIZES).unwrap().qpn(), 1);
    assert_sound(&bed, "whose QP 1 is");
}
