//! Latencies and message rates keep their bars: the figures of small messages, where every cycle shows.
//! The rest of `ferroce bench core` takes minutes and is left to whoever changes the data path.

use serde_json::Value;
use std::process::Command;

#[test]
fn small_messages_meet_their_bars() {
    meet("64 B", 8);
}

#[test]
fn atomics_meet_their_bars() {
    meet("atomic", 2);
}

/// The figures whose name contains `only`, of which there are `count`, meet their bars.
fn meet(only: &str, count: usize) {
    let out = Command::new(env!("CARGO_BIN_EXE_ferroce")).args(["bench", "core", "--json", "--only", only]).output();
    let out = out.expect("the program starts");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    let figures: Vec<Value> = serde_json::from_slice(&out.stdout).expect("a list");
    assert_eq!(figures.len(), count, "{said}");
    let missed: Vec<_> = figures.iter().filter(|f| f["meets"] != true).collect();
    assert!(missed.is_empty(), "missed: {missed:#?}");
}
