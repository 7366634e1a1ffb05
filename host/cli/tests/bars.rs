//! Latencies and rates keep their bars: the figures of small messages, where every cycle shows, the line rate of long ones, and
//! their rate under loss. How fast queue pairs are made is held by `sim/verilate/tests/firmware.rs`. The rest of `ferroce bench core`
//! takes minutes and is left to whoever changes the data path.

use serde_json::Value;
use std::process::Command;

#[test]
fn small_messages_meet_their_bars() {
    meet("64 B Write", 5);
    meet("64 B Send, ", 3);
    meet("64 B Read", 3);
}

#[test]
fn atomics_meet_their_bars() {
    meet("atomic", 2);
}

/// Some 6 s of one processor.
#[test]
fn long_messages_meet_their_bars() {
    meet("MTU 4096, one QP, address +0", 3);
}

/// Some 30 s of one processor.
#[test]
fn lost_packets_cost_no_more_than_their_bar() {
    meet("loss 1e-3", 1);
}

/// The figures whose name contains `only`, of which there are `count`, meet their bars.
fn meet(only: &str, count: usize) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferroce"));
    // The bars are those without a board's MAC.
    let out = command.args(["bench", "core", "--json", "--no-board", "--only", only]).output();
    let out = out.expect("the program starts");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    let figures: Vec<Value> = serde_json::from_slice(&out.stdout).expect("a list");
    assert_eq!(figures.len(), count, "{said}");
    let missed: Vec<_> = figures.iter().filter(|f| f["meets"] != true).collect();
    assert!(missed.is_empty(), "missed: {missed:#?}");
}
