//! Stock Soft-RoCE as a peer, from captures: as requester, and as responder. See `ferroce_tests::conformance::replay`.

use abi::wire::op;
use fabric::Packet;
use fabric::peer::class;
use ferroce_tests::captures;
use ferroce_tests::conformance::replay::{Difference, Flow, flows};
use ferroce_tests::conformance::replay_alone;
use ferroce_tests::conformance::{setup, talk::Talk};
use std::collections::BTreeSet;
use testbed::{Setup, Solo};

/// Runs a conversation for each flow; returns in which ways they differed from the capture.
fn all(flows: &[Flow], converse: impl Fn(&Flow, &mut Talk) -> BTreeSet<Difference>) -> BTreeSet<Difference> {
    let mut solos = [false, true].map(|ip6| Solo::new(&Setup { ip6, ..setup() }).unwrap());
    let mut differences = BTreeSet::new();
    for flow in flows {
        let mut t = Talk::new(&mut solos[usize::from(flow.ip6)], flow.terms());
        let differs = converse(flow, &mut t);
        t.finish();
        println!("{}: {} requests, {differs:?}", flow.name, flow.requests());
        differences.extend(differs);
    }
    differences
}

/// What the NIC answers to the requesters of the captures is what Soft-RoCE answered, field by field.
#[test]
fn captured_requesters_hear_what_they_heard() {
    let flows = flows();
    assert!(flows.iter().filter(|f| f.name.starts_with("atomic")).count() >= 2);
    // All that was asked on reliable connections.
    let captured: Vec<_> = captures().iter().filter_map(|frame| Packet::of(frame)).map(|p| p.opcode).collect();
    let requests =
        captured.iter().filter(|o| **o < class::UC && !(op::READ_RESPONSE_FIRST..=op::ATOMIC_ACK).contains(o));
    let replayed = flows.iter().map(Flow::requests).sum::<usize>();
    assert_eq!((flows.len(), replayed, requests.count()), (27, 489, 489));
    use Difference::*;
    let allowed = BTreeSet::from([SendTooLong, LostAnswer]);
    assert!(all(&flows, Flow::ask).is_subset(&allowed));
}

/// What the NIC asks of the responders of the captures is what Soft-RoCE asked, field by field, and it takes their answers.
#[test]
fn captured_responders_are_asked_the_same() {
    // Without those that lost packets, for their requests come as they are lost; and without one that says 22 times that it is not
    // ready for 10 ms.
    let mut flows = flows();
    flows.retain(|f| !f.lossy && f.terms().rnr_timer != 20);
    assert_eq!((flows.len(), flows.iter().map(Flow::requests).sum::<usize>()), (23, 309));
    assert!(
        all(&flows, Flow::answer).into_iter().eq([Difference::ReadWithoutAckReq]),
        "a difference that is not listed, or is gone"
    );
}

/// What the captured QPs of UD and UC sent arrives, and a NIC that sends the same sends it field by field.
#[test]
fn captured_datagrams_and_unreliable_messages_arrive_and_are_sent_the_same() {
    let mut solos = [false, true].map(|ip6| Solo::new(&Setup { ip6, ..setup() }).unwrap());
    let flows = replay_alone::flows();
    assert_eq!((flows.len(), flows.iter().map(replay_alone::Flow::messages).sum::<usize>()), (12, 69));
    for flow in flows {
        for converse in [replay_alone::Flow::ask, replay_alone::Flow::answer] {
            let mut t = Talk::new(&mut solos[usize::from(flow.ip6)], flow.terms);
            converse(&flow, &mut t);
            t.finish();
        }
        println!("{}: {} messages", flow.name, flow.messages());
    }
}
