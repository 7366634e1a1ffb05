//! Runs the rows of `ferroce_tests::conformance`, each as a test of its own: a NIC, and a packet peer that says what the row's script has.

use ferroce_tests::conformance::talk::Talk;
use ferroce_tests::conformance::{Row, TABLES, setup};
use libtest_mimic::{Arguments, Trial};
use std::process::ExitCode;
use std::sync::Mutex;
use testbed::Solo;

/// Hosts between two rows. One on which a row failed does not come back.
static IDLE: Mutex<Vec<Solo>> = Mutex::new(Vec::new());

fn run(row: Row) {
    let idle = IDLE.lock().expect("nothing panics here").pop();
    let mut solo = idle.unwrap_or_else(|| Solo::new(&setup()).unwrap());
    let mut talk = Talk::new(&mut solo, row.terms);
    (row.script)(&mut talk);
    talk.finish();
    IDLE.lock().expect("nothing panics here").push(solo);
}

fn main() -> ExitCode {
    let trial = |module: &str, row: Row| {
        let test = Trial::test(format!("{module}::{}", row.name), move || {
            run(row);
            Ok(())
        });
        test.with_ignored_flag(row.open.is_some())
    };
    let trials = TABLES.iter().flat_map(|t| t.rows.iter().map(|row| trial(t.module, *row)));
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}
