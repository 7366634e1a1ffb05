//! A command ring that its host abuses: moved while it is busy, of another size each time, with producers out of nowhere, and commands
//! that change while they are read. The firmware answers within the slots of the rings only, and goes on.

use abi::bar::{CMD_BASE, CMD_CONSUMER, CMD_LOG2, CMD_PRODUCER};
use abi::cmd::{ANSWER, SLOT, head, op};
use driver::{Access, Device, Mr, OpenOptions, PciFunction};
use fabric::SimFunction;
use ferroce_tests::{Bystander, GUARD, assert_sound, bytes, pass, region};
use nic::Adversary;
use rand::{Rng, RngExt};
use std::sync::Arc;
use testbed::{Setup, Testbed};

/// Largest ring: 64 slots. Memory is twice that, so that a ring lies at a multiple of its size.
const RING: usize = 2 * 64 * SLOT;

#[test]
fn a_command_ring_that_is_abused_is_answered_in_its_slots() {
    let mut setup = Setup::small();
    setup.nic.adversary = Adversary::Hostile;
    let bed = Testbed::new(&setup).unwrap();
    let mut bystander = Bystander::new(&bed);
    let mut rng = verilate::rng(700);
    let function = SimFunction::new(bed.fabric.clone(), 0);
    let set = |at: usize, bytes: usize, value: u64| {
        function.bar_write(0, at as u64, &value.to_le_bytes()[..bytes]).unwrap();
    };
    let get = |at: usize| {
        let mut word = [0; 4];
        function.bar_read(0, at as u64, &mut word).unwrap();
        u32::from_le_bytes(word)
    };
    let ring_of = |mr: &Mr| (mr.addr() + RING as u64 / 2 - 1) & !(RING as u64 / 2 - 1);
    let rings = [0; 3].map(|_| region(&bed.hosts[0].pd, RING, Access::empty(), |_| GUARD));
    let mut producer = get(CMD_PRODUCER);
    for round in 0..verilate::scale(12) {
        // Commands of an owner that has nothing, and may have nothing of others.
        let mr = &rings[rng.random_range(0..3)];
        let log2 = rng.random_range(0..=6u64);
        for slot in 0..64usize {
            let mut command = [0; 64];
            if rng.random_bool(0.3) {
                rng.fill_bytes(&mut command);
            }
            let opcode = [op::NOP, op::QUERY_DEVICE, op::LIST_OWNED, op::CREATE_PD, 200][rng.random_range(0..5)];
            head::OPCODE.set(&mut command, opcode.into());
            head::OWNER.set(&mut command, 9);
            mr.write((ring_of(mr) - mr.addr()) as usize + slot * SLOT, &command);
        }
        set(CMD_LOG2, 4, if rng.random_bool(0.1) { rng.random_range(7..u32::MAX).into() } else { log2 });
        // The low bits of a base that is not aligned say nothing.
        set(CMD_BASE, 8, ring_of(mr) + rng.random_range(0..SLOT as u64));
        // More than the ring has, at times; and moved while they are executed.
        producer = producer.wrapping_add(rng.random_range(0..40));
        set(CMD_PRODUCER, 4, producer.into());
        for _ in 0..rng.random_range(0..6) {
            pass(&bed, rng.random_range(0..20));
            let other = &rings[rng.random_range(0..3)];
            match rng.random_range(0..4) {
                0 => set(CMD_BASE, 8, ring_of(other)),
                1 => set(CMD_LOG2, 4, rng.random_range(0..7)),
                2 => {
                    let at = (ring_of(mr) - mr.addr()) as usize + rng.random_range(0..64) * SLOT + 4;
                    mr.write(at, &rng.random::<[u8; 16]>());
                }
                _ => set(CMD_PRODUCER, 4, producer.into()),
            }
        }
        for turn in 0.. {
            assert!(turn < 20_000, "round {round}: {} of {producer} commands are answered", get(CMD_CONSUMER));
            if get(CMD_CONSUMER) == producer {
                break;
            }
        }
        for mr in &rings {
            let at = (ring_of(mr) - mr.addr()) as usize;
            let all = bytes(mr);
            let (ring, beside) = (&all[at..at + RING / 2], [&all[..at], &all[at + RING / 2..]].concat());
            assert!(beside.iter().all(|b| *b == GUARD), "round {round}: written beside the ring");
            // Of an answer only the last bit tells its lap; that of a slot that none had is whole.
            let answers = ring.chunks(SLOT).map(|slot| &slot[ANSWER..]);
            assert!(
                answers.clone().all(|a| *a == [GUARD; SLOT - ANSWER] || a[SLOT - ANSWER - 1] <= 1),
                "round {round}"
            );
        }
        bed.hosts[0].device.health();
        assert_sound(&bed, &format!("round {round}"));
    }
    // Further ahead than any ring has slots: nothing is executed until it is set right.
    for ahead in [65, 1 << 31, u32::MAX] {
        set(CMD_PRODUCER, 4, producer.wrapping_add(ahead).into());
        pass(&bed, 200);
        assert_eq!(get(CMD_CONSUMER), producer, "{ahead} ahead");
    }
    set(CMD_PRODUCER, 4, producer.into());
    // Somewhere that is not mapped: no answer, and no harm.
    set(CMD_BASE, 8, 0x7000_0000_0000);
    producer = producer.wrapping_add(5);
    set(CMD_PRODUCER, 4, producer.into());
    while get(CMD_CONSUMER) != producer {
        bed.relax();
    }
    let faults = bed.sim().nic(0).host.iommu.take_faults();
    assert!(!faults.is_empty() && faults.iter().all(|f| f.iova >> 20 == 0x7000_0000_0000 >> 20), "{faults:x?}");
    // A driver that comes behind sets its own ring up; what the stranger made is to be had back.
    let device = Device::open(Arc::new(function), &OpenOptions::default()).unwrap();
    let mut reclaim = [0; 64];
    head::OPCODE.set(&mut reclaim, op::RECLAIM.into());
    head::OWNER.set(&mut reclaim, 9);
    device.command_raw(reclaim).unwrap();
    device.create_pd().unwrap();
    bystander.check(&bed, "behind the abuse");
    // The first driver's ring is gone.
    std::mem::forget((bystander, rings, device));
    std::mem::forget(bed);
}
