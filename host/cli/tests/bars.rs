//! Latencies and rates keep their bars: the figures of small messages, where every cycle shows, the line rate of long ones, and
//! their rate under loss, and how soon a lost packet is sent again. How fast queue pairs are made is held by
//! `sim/verilate/tests/firmware.rs`. The rest of `ferroce bench` takes minutes and is left to full runs.

use serde_json::Value;
use std::process::Command;

#[test]
fn small_messages_meet_their_bars() {
    meet("core", "64 B Write", 5);
    meet("core", "64 B Send, ", 3);
    meet("core", "64 B Read", 3);
}

#[test]
fn atomics_meet_their_bars() {
    meet("core", "atomic", 2);
}

/// Some 6 s of one processor.
#[test]
fn long_messages_meet_their_bars() {
    meet("core", "MTU 4096, one QP, address +0", 3);
}

/// Some 30 s of one processor.
#[test]
fn lost_packets_cost_no_more_than_their_bar() {
    meet("core", "loss 1e-3", 1);
}

/// Some 80 s of one processor.
#[test]
fn lost_packets_are_sent_again_in_time() {
    meet("loss", "MTU 4096, added RTT 2 us, worst", 2);
    meet("loss", "goodput, WRITE loss 1e-2, MTU 1024, added RTT 2 us", 1);
}

#[test]
#[ignore = "a quarter of an hour: for `./ferroce test --all`"]
fn all_of_recovery_meets_its_bars() {
    meet("loss", "", 44);
}

#[test]
#[ignore = "10 minutes: for `./ferroce test --all`"]
fn all_of_bandwidth_meets_its_bars() {
    meet("core", "1 MiB", 24);
}

/// The figures of a bench whose name contains `only`, of which there are `count`, meet their bars.
fn meet(bench: &str, only: &str, count: usize) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferroce"));
    // The bars are those without a board's MAC.
    let out = command.args(["bench", bench, "--json", "--no-board", "--only", only]).output();
    let out = out.expect("the program starts");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    let figures: Vec<Value> = serde_json::from_slice(&out.stdout).expect("a list");
    assert_eq!(figures.len(), count, "{said}");
    let missed: Vec<_> = figures.iter().filter(|f| f["meets"] != true).collect();
    assert!(missed.is_empty(), "missed: {missed:#?}");
}
