//! States and generations of all QPs; the only block that writes them. For every engine that must know whether a QP may
//! act, and for the soft core, which moves QPs from state to state.
//!
//! ```text
//! cycle          0        1      2        3       4        5
//! error, table   offered                          taken
//! state          Idle     Read   Wait     Judge   Decide   Idle (Tell while an event waits)
//! view_re[i]     A
//! view[i]                        A's row, until the next read arrives
//! ```
//!
//! 5 cycles a request, one more with an event. An error request moves a QP of its generation from INIT, RTR, RTS, SQD or
//! SQE to ERR, or to SQE if its send queue alone has failed; any other is ignored, and counted when its generation is old. A
//! row that is read in the cycle of its write is seen as written. A shared receive queue has the state of its number, INIT, so that its
//! errors and its limit (which changes nothing) are told.
//!
//! It cannot deadlock: it waits for `event` only, which ends in posted writes.

use crate::msg::{Event, Qp, QpError, QpView};
use crate::stream::{Arbiter, Sink, Source, Table, TablePort};
use abi::{
    queue::event,
    status,
    table::{qp_state, qp_state_row as row},
};
use hdl::prelude::*;

/// Who reports errors.
pub const REPORTERS: usize = 6;
/// The readers of states, by port.
pub mod reader {
    #![allow(missing_docs)]
    pub const RESPONDER: usize = 0;
    pub const COMPLETER: usize = 1;
    pub const REQUESTER: usize = 2;
    pub const RESPOND: usize = 3;
    pub const TRANSMIT: usize = 4;
    pub const SEND_QUEUE: usize = 5;
    pub const RECV_QUEUE: usize = 6;
}
/// Number of readers.
pub const READERS: usize = 7;

const RESET: u64 = qp_state::RESET as u64;
const INIT: u64 = qp_state::INIT as u64;
const SQE: u64 = qp_state::SQE as u64;
const ERR: u64 = qp_state::ERR as u64;

#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
enum State {
    Clear,
    Idle,
    Read,
    Wait,
    Judge,
    Decide,
    Tell,
}

/// The states. See the module.
#[derive(LogicBlock, Default)]
pub struct QpStates {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// Requests to move a QP to ERR.
    pub error: Arr<Sink<QpError>, REPORTERS>,
    /// QP_ERROR, when a request asks for it.
    pub event: Source<Event>,
    /// Read ports: the row is on `view` two cycles after `view_re`.
    pub view_re: Arr<Signal<In, Bit>, READERS>,
    pub view_addr: Arr<Signal<In, Qp>, READERS>,
    pub view: Arr<Signal<Out, QpView>, READERS>,
    /// QP_STATE rows. A write of RESET counts the generation up; the row's own generation is ignored. A QP in ERR takes
    /// RESET only, one in SQE that, ERR, and what resumes it: a state that was on its way when an engine found an error does not undo it.
    pub table: TablePort,
    /// A row has changed: it is `changed_view` now.
    pub changed: Signal<Out, Bit>,
    pub changed_qp: Signal<Out, Qp>,
    pub changed_view: Signal<Out, QpView>,
    pub count: Signal<Out, Bits<64>>,

    arbiter: Arbiter<QpError, REPORTERS>,
    state: Reg<State>,
    is_table: Reg<Bit>,
    clear: Reg<Bits<12>>,
    told: DFF<Event>,
    own: Table<QpView>,
    /// Read at once, in the cycle after `view_re`: a row that was written in that one is there.
    copies: Arr<Ram<QpView, 12>, READERS>,
    reads: Arr<DFF<Bit>, READERS>,
    read_at: Arr<DFF<Bits<12>>, READERS>,
    views: Arr<DFF<QpView>, READERS>,
    /// The request has the QP's generation; the QP is in a state that an error ends; it is in ERR.
    current: DFF<Bit>,
    live: DFF<Bit>,
    failed: DFF<Bit>,
    /// It is in SQE.
    stopped: DFF<Bit>,
    _qps: Hidden<u64>,
}

impl QpStates {
    /// States of `qps` QPs, a power of two of at most 4,096.
    pub fn new(qps: usize) -> Self {
        assert!(qps.is_power_of_two() && qps <= 1 << 12, "{qps} QPs");
        Self {
            own: Table::new(qps, ""),
            copies: Arr::from_fn(|_| Ram::default().rows(qps).style("distributed").at_once()),
            _qps: Hidden(qps as u64),
            ..Self::default()
        }
    }
}

impl Logic for QpStates {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, state, is_table, clear);
        dff_setup!(self, clock, told, current, live, failed, stopped, reads, read_at, views);
        clock!(self, clock, own);
        clock_reset!(self, clock, rst, arbiter);
        for i in 0..REPORTERS {
            Sink::<QpError>::link(&mut self.error[i], &mut self.arbiter.s[i]);
        }
        self.arbiter.more.next = 0.into();
        self.arbiter.m.ready.next = false;
        self.table.ready.next = false;
        self.table.rvalid.next = false;
        self.count.next = 0.into();
        self.changed.next = false;

        let state = self.state.q.val();
        let request = self.arbiter.m.data.val();
        let req = self.table.req.val();
        let is_table = self.is_table.q.val();
        let qp = if is_table { req.index.get_bits::<12>(0) } else { request.qpn };
        let view = self.own.rdata.val();
        let mut we = false;
        let mut address = qp;
        let mut next = view;
        match state {
            State::Clear => {
                // Powered up or reset: all QPs are in RESET. Generations go on from 0: nothing of before is left.
                we = true;
                address = self.clear.q.val();
                next = QpView { state: 0.into(), generation: 0.into() };
                self.clear.d.next = self.clear.q.val() + 1;
                if self.clear.q.val() == elab!(bits::<12>(self._qps.0 - 1)) {
                    self.state.d.next = State::Idle;
                }
            }
            State::Idle => {
                self.is_table.d.next = self.table.valid.val();
                if self.table.valid.val() || self.arbiter.m.valid.val() {
                    self.state.d.next = State::Read;
                }
            }
            // `own` is read in this cycle, when `is_table` has settled who is served.
            State::Read => self.state.d.next = State::Wait,
            State::Wait => self.state.d.next = State::Judge,
            State::Judge => {
                self.current.d.next = request.any_generation || view.generation == request.generation;
                self.live.d.next = view.state >= INIT && view.state <= SQE;
                self.failed.d.next = view.state == ERR;
                self.stopped.d.next = view.state == SQE;
                self.state.d.next = State::Decide;
            }
            State::Decide => {
                self.state.d.next = State::Idle;
                if is_table {
                    self.table.ready.next = true;
                    if req.write {
                        next.state = req.row.get_bits::<3>(elab!(row::STATE.lsb));
                        let undoes = next.state != ERR && !req.row.get_bit(elab!(row::RESUME.lsb));
                        let refuses = self.failed.q.val() || self.stopped.q.val() && undoes;
                        we = !refuses || next.state == RESET;
                        if next.state == RESET {
                            next.generation = view.generation + 1;
                        }
                    } else {
                        self.state.d.next = State::Tell;
                    }
                } else {
                    self.arbiter.m.ready.next = true;
                    if !self.current.q.val() {
                        self.count.next = bits::<64>(1 << status::counter::STALE_GENERATION);
                    } else if self.live.q.val() {
                        we = !request.limit;
                        next.state = if request.send_only { bits::<3>(SQE) } else { bits::<3>(ERR) };
                        if request.event {
                            self.state.d.next = State::Tell;
                        }
                    }
                }
            }
            State::Tell => {
                if is_table {
                    self.table.rvalid.next = true;
                    self.state.d.next = State::Idle;
                } else if self.event.ready.val() {
                    self.state.d.next = State::Idle;
                }
            }
        }
        self.event.valid.next = state == State::Tell && !is_table;
        self.event.data.next = self.told.q.val();
        if state == State::Decide {
            self.told.d.next = Event {
                eqn: 0.into(),
                kind: if request.limit {
                    bits::<8>(event::SRQ_LIMIT as u64)
                } else {
                    bits::<8>(event::QP_ERROR as u64)
                },
                number: qp.cast::<24>(),
                value: request.cause.cast::<32>(),
            };
        }
        self.table.rdata.next = cat!(512; bits::<496>(0), view.generation, bits::<5>(0), view.state);

        self.changed.next = we && state != State::Clear;
        self.changed_qp.next = address;
        self.changed_view.next = next;
        self.own.we.next = we;
        self.own.waddr.next = address.cast::<24>();
        self.own.wdata.next = next;
        self.own.re.next = state == State::Read;
        self.own.raddr.next = qp.cast::<24>();
        for i in 0..READERS {
            clock!(self, clock, copies[i]);
            self.copies[i].we.next = we;
            self.copies[i].waddr.next = address;
            self.copies[i].wdata.next = next;
            self.copies[i].re.next = true;
            self.copies[i].raddr.next = self.read_at[i].q.val();
            self.reads[i].d.next = self.view_re[i].val();
            if self.view_re[i].val() {
                self.read_at[i].d.next = self.view_addr[i].val();
            }
            if self.reads[i].q.val() {
                self.views[i].d.next = self.copies[i].rdata.val();
            }
            self.view[i].next = self.views[i].q.val();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::testing::{read_row, write_row};
    use rand::RngExt;

    use verilate::{
        Model, Options,
        bench::{self, Actor, Stall},
    };

    const QPS: usize = 64;

    fn state_row(state: u8) -> [u8; 64] {
        let mut bytes = [0; 64];
        row::STATE.set(&mut bytes, state.into());
        row::GENERATION.set(&mut bytes, 0x77);
        bytes
    }

    #[test]
    fn a_reset_counts_the_generation_and_readers_follow() {
        let seed = 3;
        println!("seed {seed}");
        let mut rng = verilate::rng(seed);
        let mut m = Model::of(|| QpStates::new(QPS), Options::default()).unwrap();
        m.reset();
        let mut want = [(0u8, 0u8); QPS];
        for _ in 0..verilate::scale(500) {
            let (qp, state) = (rng.random_range(0..QPS), rng.random_range(0..7));
            let resumes = rng.random();
            let mut bytes = state_row(state);
            row::RESUME.set(&mut bytes, u64::from(resumes));
            write_row(&mut m, qp, &bytes);
            let takes = match want[qp].0 {
                qp_state::ERR => state == qp_state::RESET,
                qp_state::SQE => [qp_state::RESET, qp_state::ERR].contains(&state) || resumes,
                _ => true,
            };
            if takes {
                want[qp] = (state, want[qp].1.wrapping_add((state == qp_state::RESET) as u8));
            }
            let answer = read_row(&mut m, qp);
            assert_eq!((row::STATE.get(&answer) as u8, row::GENERATION.get(&answer) as u8), want[qp]);
            let asked: Vec<_> = (0..READERS).map(|_| rng.random_range(0..QPS)).collect();
            for (i, qp) in asked.iter().enumerate() {
                m.set(&*format!("view_re[{i}]"), 1);
                m.set(&*format!("view_addr[{i}]"), *qp as u64);
            }
            m.tick();
            (0..READERS).for_each(|i| m.set(&*format!("view_re[{i}]"), 0));
            m.tick();
            for (i, qp) in asked.iter().enumerate() {
                let got = (m.get(&*format!("view[{i}].state")) as u8, m.get(&*format!("view[{i}].generation")) as u8);
                assert_eq!(got, want[*qp]);
            }
        }
    }

    #[test]
    fn errors_move_live_queue_pairs_once() {
        let seed = 5;
        println!("seed {seed}");
        let mut rng = verilate::rng(seed);
        let mut m = Model::of(|| QpStates::new(QPS), Options::default()).unwrap();
        m.reset();
        for round in 0..verilate::scale(30) as u64 {
            let mut states = [0; QPS];
            for (qp, state) in states.iter_mut().enumerate() {
                *state = rng.random_range(0..7);
                write_row(&mut m, qp, &state_row(qp_state::RESET));
                write_row(&mut m, qp, &state_row(*state));
            }
            let generations: Vec<u64> = (0..QPS).map(|qp| row::GENERATION.get(&read_row(&mut m, qp))).collect();
            let mut sources: Vec<_> = (0..REPORTERS)
                .map(|i| bench::Source::new(&m, &format!("error[{i}]"), Stall::Random, round * 10 + i as u64))
                .collect();
            let mut e = bench::Sink::new(&m, "event", Stall::Random, round * 10 + 9);
            let (mut stale, mut hit) = (0, [None::<u8>; QPS]);
            let mut events = vec![];
            // One request per QP at most, so that the order between the reporters does not matter.
            for qp in 0..QPS {
                if rng.random_bool(0.7) {
                    let (old, tells, send_only) = (rng.random_bool(0.3), rng.random_bool(0.5), rng.random());
                    let limit = tells && rng.random_bool(0.2);
                    let generation = (generations[qp] + old as u64) & 0xff;
                    sources[rng.random_range(0..REPORTERS)].send(QpError {
                        qpn: bits::<12>(qp as u64),
                        generation: bits::<8>(generation),
                        any_generation: false,
                        cause: bits::<8>(qp as u64 + 1),
                        event: tells,
                        send_only,
                        limit,
                    });
                    stale += old as u64;
                    let live = !old && (INIT..=SQE).contains(&(states[qp] as u64));
                    if live {
                        // A limit is told of, no more.
                        let to = if send_only { qp_state::SQE } else { qp_state::ERR };
                        hit[qp] = (!limit).then_some(to);
                        if tells {
                            events.push((qp as u64, if limit { event::SRQ_LIMIT } else { event::QP_ERROR }));
                        }
                    }
                }
            }
            let mut counted = 0;
            for _ in 0..2000 {
                let mut actors: Vec<&mut dyn Actor> = sources.iter_mut().map(|s| s as &mut dyn Actor).collect();
                actors.push(&mut e);
                bench::cycle(&mut m, &mut actors);
                counted += m.get("count") >> status::counter::STALE_GENERATION & 1;
            }
            assert!(sources.iter().all(|s| s.is_empty()));
            assert_eq!(counted, stale);
            let mut got: Vec<_> = std::iter::from_fn(|| e.pop())
                .map(|beat| {
                    assert_eq!([beat.get("eqn"), beat.get("value")], [0, beat.get("number") + 1]);
                    (beat.get("number"), beat.get("kind") as u8)
                })
                .collect();
            got.sort();
            assert_eq!(got, events);
            for qp in 0..QPS {
                let state = hit[qp].unwrap_or(states[qp]);
                assert_eq!(row::STATE.get(&read_row(&mut m, qp)), state as u64, "QP {qp}");
            }
        }
    }

    #[test]
    fn a_row_read_in_the_cycle_of_its_write_is_the_written_one() {
        let mut m = Model::of(|| QpStates::new(QPS), Options::default()).unwrap();
        m.reset();
        (0..QPS).for_each(|_| m.tick());
        for delay in 0..8 {
            write_row(&mut m, 9, &state_row(qp_state::INIT));
            let req = crate::msg::TableReq { table: 0.into(), index: 9.into(), write: true, row: bits::<512>(3) };
            m.set_bytes("table.req", &verilate::bits::of(req));
            m.set("table.valid", 1);
            (0..delay).for_each(|_| {
                m.eval();
                let done = m.bit("table.ready");
                m.tick();
                if done {
                    m.set("table.valid", 0);
                }
            });
            m.set("view_re[2]", 1);
            m.set("view_addr[2]", 9);
            m.eval();
            let (written, done) = (m.bit("changed"), m.bit("table.ready"));
            m.tick();
            m.set("view_re[2]", 0);
            m.set("table.valid", 0);
            m.tick();
            if written || done {
                assert_eq!(m.get("view[2].state"), 3, "delay {delay}");
            }
            (0..8).for_each(|_| m.tick());
        }
    }
}
