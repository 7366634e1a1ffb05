//! The rules of the protocol as a table: each row names its rule and has a script, a conversation between a NIC and a packet peer
//! that shows whether the NIC keeps it. `tests/conformance.rs` runs the rows, [`page`] prints them for `docs/conformance.md`.

mod atomic_writes;
mod atomics;
mod frames;
mod keys;
mod limits;
mod multicast;
mod reads;
mod refusals;
pub mod replay;
pub mod replay_alone;
mod requester;
mod responder;
mod shared;
pub mod talk;
mod unreliable;

use std::fmt::Write;
use talk::{Talk, Terms};
use testbed::Setup;

/// A rule and its test.
#[derive(Clone, Copy)]
pub struct Row {
    /// Where the rule comes from: section of IBTA volume 1, or its compliance statement.
    pub rule: &'static str,
    /// Name of the test.
    pub name: &'static str,
    /// The rule.
    pub text: &'static str,
    /// How the two are connected.
    pub terms: Terms,
    /// The conversation.
    pub script: fn(&mut Talk),
    /// Why it does not pass yet.
    pub open: Option<&'static str>,
}

/// Rows of one role of the NIC.
pub struct Table {
    /// Where its scripts are.
    pub module: &'static str,
    /// What the NIC is.
    pub role: &'static str,
    /// Its rules.
    pub rows: &'static [Row],
}

/// A row on [`Terms::USUAL`], of a script of this module.
macro_rules! row {
    ($rule:literal, $script:ident, $text:literal) => {
        crate::conformance::Row {
            rule: $rule,
            name: stringify!($script),
            text: $text,
            terms: crate::conformance::talk::Terms::USUAL,
            script: $script,
            open: None,
        }
    };
}
use row;

/// All rules.
pub const TABLES: &[Table] = &[
    Table { module: "frames", role: "Every packet", rows: frames::ROWS },
    Table { module: "responder", role: "The NIC as responder", rows: responder::ROWS },
    Table { module: "refusals", role: "The NIC as responder, to what it refuses", rows: refusals::ROWS },
    Table { module: "limits", role: "The NIC as responder, at its limits", rows: limits::ROWS },
    Table { module: "requester", role: "The NIC as requester", rows: requester::ROWS },
    Table { module: "reads", role: "The NIC as requester of READs", rows: reads::ROWS },
    Table { module: "unreliable", role: "Datagrams and unreliable connections", rows: unreliable::ROWS },
    Table { module: "multicast", role: "Datagrams to groups", rows: multicast::ROWS },
    Table { module: "atomics", role: "The NIC as either, of atomics", rows: atomics::ROWS },
    Table { module: "shared", role: "The NIC as responder, with a shared receive queue", rows: shared::ROWS },
    Table { module: "keys", role: "Keys that come and go", rows: keys::ROWS },
    Table { module: "atomic_writes", role: "The NIC as either, of atomic writes", rows: atomic_writes::ROWS },
];

/// What the rows run on: the core of 64 bits, which simulates fastest.
pub fn setup() -> Setup {
    Setup::small()
}

/// Rows that look at payload and its ends, which depend on the width of the datapath: they run at 512 bits as well.
pub const WIDE: &[&str] = &[
    "every_request_opcode_is_taken",
    "payloads_of_odd_lengths",
    "a_forged_pad_on_a_runt",
    "nothing_overtakes_the_nak_of_a_read",
    "a_read_takes_the_psns_of_its_response",
    "a_send_fills_its_receive",
    "messages_are_cut_at_the_mtu",
    "a_read_takes_psns",
    "responses_of_wrong_length",
    "an_atomic_is_answered_with_what_it_found",
    "the_answer_to_an_atomic_lands_in_host_order",
    "an_atomic_write_is_answered_like_a_read",
    "both_ask_at_once_over_a_lossy_path",
    "a_datagram_is_one_packet",
    "a_datagram_lands_behind_its_header",
    "a_group_gives_a_copy_to_each_member",
    "every_opcode_at_its_least_length",
    "every_opcode_at_its_least_length_on_uc_and_ud",
    "a_message_longer_than_its_receive",
];

/// Rows that run over IPv6 as well: all kinds of requests and answers, and what is read from the IP header.
pub const IP6: &[&str] = &[
    "every_request_opcode_is_taken",
    "payloads_of_odd_lengths",
    "packets_of_others_are_dropped",
    "all_else_is_covered",
    "what_changes_on_the_way_is_not_covered",
    "a_tag_is_not_covered",
    "a_read_takes_the_psns_of_its_response",
    "a_send_fills_its_receive",
    "rnr_codes",
    "sequence_access_resource_length_key",
    "messages_are_cut_at_the_mtu",
    "a_read_takes_psns",
    "an_atomic_is_answered_with_what_it_found",
    "an_atomic_write_is_answered_like_a_read",
    "both_ask_at_once_over_a_lossy_path",
    "a_datagram_is_one_packet",
    "a_datagram_lands_behind_its_header",
    "unreliable_messages_are_cut_and_complete_when_they_have_left",
    "every_opcode_at_its_least_length",
    "every_opcode_at_its_least_length_on_uc_and_ud",
    "nobody_is_queue_pair_0",
];

/// Tables of which all rows run at 512 bits, too.
pub const WIDE_TABLES: &[&str] = &["keys", "shared"];

/// What stands before and behind [`page`] in `docs/conformance.md`.
pub const MARKS: [&str; 2] = ["<!-- rows -->\n", "<!-- end of rows -->\n"];

/// The part of `docs/conformance.md` about the wire.
pub fn page() -> String {
    let mut page = String::new();
    for t in TABLES {
        let _ = write!(page, "\n### {}\n\n| rule | IBTA | test in `conformance/{}` | result |\n", t.role, t.module);
        page += "|---|---|---|---|\n";
        for r in t.rows {
            let result = r.open.map_or("passes".into(), |why| format!("open: {why}"));
            let _ = writeln!(page, "| {} | {} | `{}` | {result} |", r.text, r.rule, r.name);
        }
    }
    page + "\n"
}
