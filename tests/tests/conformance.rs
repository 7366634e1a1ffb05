//! Runs the rows of `ferroce_tests::conformance`, each as a test of its own: a NIC, and a packet peer that says what the row's script has.

use ferroce_tests::conformance::talk::Talk;
use ferroce_tests::conformance::{self, IP6, Row, TABLES, WIDE, WIDE_TABLES};
use libtest_mimic::{Arguments, Trial};
use std::panic::catch_unwind;
use std::process::ExitCode;
use std::sync::Mutex;
use testbed::{Setup, Solo};

/// What a row runs on.
#[derive(Clone, Copy)]
enum On {
    /// 64 bits, over IPv4.
    Usual,
    /// 512 bits.
    Wide,
    /// IPv6.
    Ip6,
}

/// Hosts between two rows, of each kind. One on which a row failed does not come back.
static IDLE: [Mutex<Vec<Solo>>; 3] = [const { Mutex::new(Vec::new()) }; 3];

fn run(row: Row, on: On) {
    let idle = || IDLE[on as usize].lock().expect("nothing panics here");
    let found = idle().pop();
    let setup = || match on {
        On::Usual => conformance::setup(),
        On::Wide => Setup::default(),
        On::Ip6 => Setup { ip6: true, ..conformance::setup() },
    };
    let mut solo = found.unwrap_or_else(|| Solo::new(&setup()).unwrap());
    let mut talk = Talk::new(&mut solo, row.terms);
    (row.script)(&mut talk);
    talk.finish();
    idle().push(solo);
}

fn main() -> ExitCode {
    let trial = |name: String, row: Row, on: On| {
        let test = move || {
            match row.open {
                None => run(row, on),
                // Only when it is asked for, so that a fix does not go unnoticed.
                Some(_) => {
                    let passes = catch_unwind(|| run(row, on)).is_ok();
                    assert!(!passes, "{} passes now: it is not open any more", row.name);
                }
            }
            Ok(())
        };
        Trial::test(name, test).with_ignored_flag(row.open.is_some())
    };
    let named = |name: &&&str| TABLES.iter().any(|t| t.rows.iter().any(|row| row.name == **name));
    let lost: Vec<_> = WIDE.iter().chain(IP6).filter(|name| !named(name)).collect();
    assert!(lost.is_empty(), "no row is named {lost:?}");
    let mut trials = Vec::new();
    for (module, row) in TABLES.iter().flat_map(|t| t.rows.iter().map(|row| (t.module, *row))) {
        trials.push(trial(format!("{module}::{}", row.name), row, On::Usual));
        if WIDE.contains(&row.name) || WIDE_TABLES.contains(&module) {
            trials.push(trial(format!("{module}::{}_at_512_bits", row.name), row, On::Wide));
        }
        if IP6.contains(&row.name) {
            trials.push(trial(format!("{module}::{}_over_ip6", row.name), row, On::Ip6));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
