//! Several hosts' programs on one timeline. Each runs on a thread of its own, but only one at a time, in turn; time passes when
//! all of them wait for their devices. So the result does not depend on the machine's scheduler.

use crate::net::Shared;
use std::cell::RefCell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

thread_local! {
    /// The table that this thread's program sits at, and its seat.
    static SEAT: RefCell<Option<(Arc<Table>, usize)>> = const { RefCell::new(None) };
}

/// Whose turn it is.
struct Table {
    fabric: Shared,
    turn: Mutex<Turn>,
    moved: Condvar,
}

struct Turn {
    at: usize,
    /// The program of each seat has not ended.
    runs: Vec<bool>,
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Hands the turn to the next program; a window passes when the round is complete.
    fn pass(&self, turn: &mut Turn) {
        let seats = turn.runs.len();
        let next = (1..=seats).map(|i| turn.at + i).find(|seat| turn.runs[seat % seats]);
        if let Some(next) = next {
            if next >= seats {
                self.fabric.lock().unwrap_or_else(|e| e.into_inner()).advance();
            }
            turn.at = next % seats;
        }
        self.moved.notify_all();
    }

    fn wait(&self, mut turn: MutexGuard<'_, Turn>, seat: usize) {
        while turn.at != seat {
            turn = self.moved.wait(turn).unwrap_or_else(|e| e.into_inner());
        }
    }
}

/// Leaves the table, also when the program panics.
struct Leave(Arc<Table>, usize);

impl Drop for Leave {
    fn drop(&mut self) {
        SEAT.set(None);
        let mut turn = self.0.lock();
        turn.runs[self.1] = false;
        self.0.pass(&mut turn);
    }
}

/// Runs `programs` side by side; each uses devices that no other does. Returns what each returned. A panic in one passes through
/// when all have ended.
pub fn together<T: Send, P: FnOnce() -> T + Send>(fabric: &Shared, programs: Vec<P>) -> Vec<T> {
    let turn = Mutex::new(Turn { at: 0, runs: vec![true; programs.len()] });
    let table = Arc::new(Table { fabric: fabric.clone(), turn, moved: Condvar::new() });
    std::thread::scope(|scope| {
        let start = |(seat, program): (usize, P)| {
            let table = table.clone();
            scope.spawn(move || {
                let _leave = Leave(table.clone(), seat);
                table.wait(table.lock(), seat);
                SEAT.set(Some((table, seat)));
                program()
            })
        };
        let threads: Vec<_> = programs.into_iter().enumerate().map(start).collect();
        let ends: Vec<_> = threads.into_iter().map(|t| t.join()).collect();
        ends.into_iter().map(|end| end.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

/// A window passes, and with it the turns of the programs beside this one.
pub(crate) fn advance(fabric: &Shared) {
    match SEAT.with_borrow(Clone::clone) {
        Some((table, seat)) => {
            let mut turn = table.lock();
            table.pass(&mut turn);
            table.wait(turn, seat);
        }
        None => fabric.lock().unwrap_or_else(|e| e.into_inner()).advance(),
    }
}
