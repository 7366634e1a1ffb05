//! The command ring.

mod kit;
use abi::{
    cmd::{ANSWER, SLOT, answer, head, op, result},
    queue::event,
};
use kit::*;

fn put(b: &mut Bench, c: Command) -> u64 {
    let slot = b.fake.producer as u64 & 3;
    let at = b.fake.ring.base + slot * SLOT as u64;
    b.fake.memory.insert(at, c.0);
    b.fake.producer = b.fake.producer.wrapping_add(1);
    at
}

#[test]
fn commands_are_answered_in_order_with_phases() {
    for start in [0, u32::MAX - 5] {
        let mut b = Bench::on(Fake { producer: start, ..Fake::default() });
        assert!(!b.step());
        for lap in 0..3 {
            let at: Vec<_> = (0..4).map(|_| put(&mut b, command(op::CREATE_PD))).collect();
            for i in 0..4u32 {
                b.fake.acts.clear();
                assert!(b.step());
                let done = start.wrapping_add(4 * lap + i);
                let Act::Write(to, bytes) = b.fake.acts[0] else { panic!() };
                assert_eq!(to, at[i as usize] + ANSWER as u64);
                assert_eq!(answer::PHASE.get(&bytes), u64::from(!(done >> 2) & 1));
                assert_eq!(answer::NUMBER.get(&bytes), u64::from(4 * lap + i));
                assert_eq!(b.fake.acts[1..], [Act::Answered(done.wrapping_add(1))]);
            }
            assert!(!b.step());
        }
    }
}

/// A producer that no ring could have is not followed, and said once; set right, commands go on.
#[test]
fn a_producer_astray_executes_nothing() {
    for start in [0, u32::MAX - 5] {
        let mut b = Bench::on(Fake { producer: start, ..Fake::default() });
        put(&mut b, command(op::CREATE_PD));
        let sound = b.fake.producer;
        for (ahead, runs) in [(65, false), (u32::MAX, false), (1 << 31, false), (1, true)] {
            b.fake.acts.clear();
            b.fake.log.clear();
            b.fake.producer = start.wrapping_add(ahead);
            assert_eq!([b.step(), b.step()], [runs, false], "{ahead}");
            assert_eq!(b.fake.acts.is_empty(), !runs);
            let told = format!("the command producer is {ahead} ahead");
            assert_eq!(b.fake.log.trim_end(), if ahead == 65 { told.as_str() } else { "" });
        }
        assert_eq!(b.fake.producer, sound);
        // As far as the largest ring has slots.
        b.fake.producer = sound.wrapping_add(64);
        assert!(b.step());
    }
}

#[test]
fn an_event_follows_the_answer_when_asked_for() {
    let mut b = Bench::new();
    let nop = command(op::NOP).with(head::EVENT, 1);
    put(&mut b, nop);
    assert!(b.step());
    assert_eq!(b.fake.acts.len(), 2, "no event queue");
    b.make(create_eq());
    for (c, events) in [(command(op::NOP), 0), (nop, 1), (command(99).with(head::EVENT, 1), 1)] {
        b.fake.acts.clear();
        put(&mut b, c);
        assert!(b.step());
        let told = Act::Event { eqn: 0, kind: event::COMMAND, number: (b.fake.producer - 1) & 3, value: 0 };
        assert_eq!(b.fake.acts[2..], vec![told; events]);
    }
}

#[test]
fn a_refusal_is_logged() {
    let mut b = Bench::new();
    put(&mut b, command(op::DESTROY_CQ).number(77));
    put(&mut b, command(op::NOP));
    while b.step() {}
    assert_eq!(
        b.fake.log.split_whitespace().collect::<Vec<_>>().join(" "),
        "op 7 owner 1 number 77: result 3 field 32"
    );
    assert!(b.fake.log.ends_with('\n'));
    let longest = Command([0xff; 64]);
    put(&mut b, longest);
    while b.step() {}
}

#[test]
fn a_command_that_cannot_be_read_is_a_device_error() {
    let mut b = Bench::new();
    let at = put(&mut b, command(op::NOP));
    b.fake.memory.remove(&at);
    assert!(b.step());
    let a = b.fake.memory[&(at + ANSWER as u64)];
    assert_eq!(answer::RESULT.get(&a), result::DEVICE_ERROR.into());
    assert_eq!(answer::PHASE.get(&a), 1);
}

#[test]
fn the_driver_hears_of_the_link() {
    let mut b = Bench::new();
    b.fake.port = 0;
    b.mailbox.watch_link(&b.plane, &mut b.fake);
    assert_eq!(b.fake.acts, []);
    b.make(create_eq());
    b.fake.acts.clear();
    for link in [1, 1, 0, 0] {
        b.fake.port = link;
        b.mailbox.watch_link(&b.plane, &mut b.fake);
    }
    let told = |value| Act::Event { eqn: 0, kind: event::PORT, number: 1, value };
    assert_eq!(b.fake.acts, [told(1), told(0)]);
}
