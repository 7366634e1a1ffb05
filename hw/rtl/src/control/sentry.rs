//! Acts on rows of context that parity shows to be damaged ([`GuardedTable`](crate::stream::GuardedTable)): raises the PARITY event,
//! tells health and counters, and stops the QP whose row it is. For all blocks with guarded tables.
//!
//! A table that meets the same row again is told of once more only when another row of it came in between. What comes
//! while one is being told of is counted, and told of when it is met again.
//!
//! Cannot deadlock: it waits for the event queue and qp_state, which end in posted writes; nobody waits for it.

use crate::msg::{Event, QpError};
use crate::stream::{BadRow, Source};
use abi::{
    queue::event,
    status::{cause, counter},
    table::id,
};
use hdl::prelude::*;

/// Guarded tables, by who reads them.
pub mod guard {
    #![allow(missing_docs)]
    pub const KEYS: usize = 0;
    pub const COMPLETION: usize = 1;
    pub const EVENT: usize = 2;
    pub const REQUESTER: usize = 3;
    pub const COMPLETER: usize = 4;
    pub const RESPONDER: usize = 5;
    pub const RESPOND: usize = 6;
}
/// Number of guards.
pub const GUARDS: usize = 7;

/// The table (`abi::table::id`) whose rows a guard sees.
pub const fn table_of(guard: usize) -> u8 {
    match guard {
        guard::KEYS => id::KEY,
        guard::COMPLETION => id::CQ,
        guard::EVENT => id::EQ,
        guard::RESPONDER | guard::RESPOND => id::QP_RECV,
        _ => id::QP_SEND,
    }
}

/// What is to be told.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Told {
    table: Bits<4>,
    row: Bits<24>,
    qp: Bit,
}

/// See the [module](self).
#[derive(LogicBlock)]
pub struct Sentry {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    pub bad: Arr<Signal<In, BadRow>, GUARDS>,
    /// PARITY: row and table.
    pub event: Source<Event>,
    /// The QP, whatever its generation.
    pub error: Source<QpError>,
    /// A row was found damaged, in this cycle.
    pub damage: Signal<Out, Bit>,
    pub count: Signal<Out, Bits<64>>,
    /// What the guards saw a cycle ago.
    came: Arr<Reg<Bit>, GUARDS>,
    came_row: Arr<DFF<Bits<24>>, GUARDS>,
    known: Reg<Bits<GUARDS>>,
    last: Arr<DFF<Bits<24>>, GUARDS>,
    due: Reg<Bits<GUARDS>>,
    event_due: Reg<Bit>,
    error_due: Reg<Bit>,
    told: DFF<Told>,
    found: Reg<Bit>,
    _rows: Hidden<[usize; GUARDS]>,
}

impl Sentry {
    /// For tables of `rows` rows, by guard: no more of an index is kept than they need.
    pub fn new(rows: [usize; GUARDS]) -> Self {
        Sentry {
            clock: Default::default(),
            rst: Default::default(),
            bad: Default::default(),
            event: Default::default(),
            error: Default::default(),
            damage: Default::default(),
            count: Default::default(),
            came: Default::default(),
            came_row: Default::default(),
            known: Default::default(),
            last: Default::default(),
            due: Default::default(),
            event_due: Default::default(),
            error_due: Default::default(),
            told: Default::default(),
            found: Default::default(),
            _rows: Hidden(rows),
        }
    }
}

impl Default for Sentry {
    fn default() -> Self {
        Sentry::new([1 << 24; GUARDS])
    }
}

impl Logic for Sentry {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, came, known, due, event_due, error_due, found);
        dff_setup!(self, clock, came_row, last, told);
        let mut due = self.due.q.val();
        let mut known = self.known.q.val();
        let mut found = false;
        let free = !self.event_due.q.val() && !self.error_due.q.val();
        let mut taken = !free;
        if self.event.ready.val() {
            self.event_due.d.next = false;
        }
        if self.error.ready.val() {
            self.error_due.d.next = false;
        }
        for i in 0..GUARDS {
            self.came[i].d.next = self.bad[i].val().valid;
            if self.bad[i].val().valid {
                let index = elab!(bits::<24>(self._rows.0[i].next_power_of_two() as u64 - 1));
                self.came_row[i].d.next = self.bad[i].val().row & index;
            }
            let row = self.came_row[i].q.val();
            if self.due.q.val().get_bit(i) && !taken {
                taken = true;
                due = due.replace_bit(i, false);
                self.event_due.d.next = true;
                self.error_due.d.next = elab!(table_of(i) == id::QP_SEND || table_of(i) == id::QP_RECV);
                self.told.d.next = Told {
                    table: elab!(bits::<4>(table_of(i) as u64)),
                    row: self.last[i].q.val(),
                    qp: elab!(table_of(i) == id::QP_SEND || table_of(i) == id::QP_RECV),
                };
            }
            if self.came[i].q.val() {
                found = true;
                let same = self.known.q.val().get_bit(i) && self.last[i].q.val() == row;
                if !same && !self.due.q.val().get_bit(i) {
                    due = due.replace_bit(i, true);
                    known = known.replace_bit(i, true);
                    self.last[i].d.next = row;
                }
            }
        }
        self.due.d.next = due;
        self.known.d.next = known;
        self.found.d.next = found;
        self.damage.next = self.found.q.val();
        let none: Bits<64> = 0.into();
        self.count.next = none.replace_bit(elab!(counter::PARITY_ERROR), self.found.q.val());

        let told = self.told.q.val();
        self.event.valid.next = self.event_due.q.val();
        self.event.data.next = Event {
            eqn: 0.into(),
            kind: bits::<8>(event::PARITY as u64),
            number: told.row,
            value: told.table.cast::<32>(),
        };
        self.error.valid.next = self.error_due.q.val();
        self.error.data.next = QpError {
            send_only: false,
            limit: false,
            qpn: told.row.get_bits::<12>(0),
            generation: 0.into(),
            any_generation: true,
            cause: bits::<8>(cause::PARITY as u64),
            event: true,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verilate::{
        Model, Options,
        bench::{self, Sink, Stall},
    };

    #[test]
    fn each_damaged_row_is_told_of_once_and_a_qp_is_stopped() {
        let mut m = Model::of(Sentry::default, Options::default()).unwrap();
        m.reset();
        let mut event = Sink::new(&m, "event", Stall::Random, 1);
        let mut error = Sink::new(&m, "error", Stall::Random, 2);
        let mut counted = 0;
        let mut meet = |m: &mut Model, event: &mut Sink, error: &mut Sink, rows: &[(usize, u64)]| {
            rows.iter().for_each(|(g, row)| {
                m.set(&*format!("bad[{g}].valid"), 1);
                m.set(&*format!("bad[{g}].row"), *row);
            });
            for i in 0..40 {
                bench::cycle(m, &mut [event, error]);
                counted += m.get("count") >> counter::PARITY_ERROR & 1;
                if i == 0 {
                    (0..GUARDS).for_each(|g| m.set(&*format!("bad[{g}].valid"), 0));
                }
            }
        };
        meet(&mut m, &mut event, &mut error, &[(guard::KEYS, 700)]);
        meet(&mut m, &mut event, &mut error, &[(guard::KEYS, 700)]);
        meet(&mut m, &mut event, &mut error, &[(guard::RESPONDER, 9), (guard::COMPLETION, 3), (guard::REQUESTER, 8)]);
        meet(&mut m, &mut event, &mut error, &[(guard::KEYS, 701)]);
        let mut events = vec![];
        while let Some(e) = event.pop() {
            assert_eq!(e.get("kind"), u64::from(event::PARITY));
            events.push((e.get("value") as u8, e.get("number")));
        }
        assert_eq!(events[0], (id::KEY, 700));
        assert_eq!(events[4], (id::KEY, 701));
        events[1..4].sort_unstable();
        let mut want = [(id::QP_RECV, 9), (id::CQ, 3), (id::QP_SEND, 8)];
        want.sort_unstable();
        assert_eq!(events[1..4], want);
        let mut stopped = vec![];
        while let Some(e) = error.pop() {
            assert_eq!((e.get("any_generation"), e.get("event"), e.get("cause")), (1, 1, u64::from(cause::PARITY)));
            stopped.push(e.get("qpn"));
        }
        stopped.sort_unstable();
        assert_eq!(stopped, [8, 9]);
        assert_eq!(counted, 4);
    }
}
