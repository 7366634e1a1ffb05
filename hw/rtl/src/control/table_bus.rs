//! The table bus: brings a row to every engine that keeps a part of it, or fetches what engines change of their own: states
//! and PSNs. For the soft core's registers ([`super::mmio`]), which start one access at a time.
//!
//! ```text
//! cycle      0     1     2     3     4
//! go         1
//! busy             1     1     1
//! m[a]             valid,ready
//! m[b]             valid       ready          a write is done when all have taken it
//! m[a]             valid,ready       rvalid
//! words                                 row_valid, busy      a read
//! ```
//!
//! An engine takes a row between two packets, so no packet sees half of one. It cannot deadlock: nobody waits for it but
//! the firmware, and engines take rows whatever else they wait for.

use crate::msg::TableReq;
use crate::stream::TableMaster;
use abi::{mmio, table::id};
use hdl::prelude::*;

/// The doors of the bus, by number.
pub mod door {
    #![allow(missing_docs)]
    pub const QP_STATE: usize = 0;
    pub const SEND_QUEUE: usize = 1;
    pub const RECV_QUEUE: usize = 2;
    pub const DOORBELL: usize = 3;
    pub const REQUESTER: usize = 4;
    pub const COMPLETER: usize = 5;
    pub const RESPONDER: usize = 6;
    pub const RESPOND: usize = 7;
    pub const LANDING: usize = 8;
    pub const INGRESS: usize = 9;
    /// Egress and what belongs to it.
    pub const TRANSMIT: usize = 10;
    pub const COMPLETION: usize = 11;
    pub const EVENT: usize = 12;
    /// Keys.
    pub const MMU: usize = 13;
    /// Multicast.
    pub const COPIES: usize = 14;
    pub const PACER: usize = 15;
}
/// Number of doors.
pub const DOORS: usize = 16;

/// Who takes the rows of a table, as a bit set over [`door`].
const fn takers(table: u8) -> u64 {
    use door::*;
    match table {
        id::QP_STATE => 1 << QP_STATE,
        id::QP_ADDRESS => 1 << TRANSMIT | 1 << PACER,
        id::AH => 1 << REQUESTER | 1 << TRANSMIT,
        id::QP_SEND => {
            let engines = 1 << REQUESTER | 1 << COMPLETER | 1 << LANDING | 1 << TRANSMIT | 1 << PACER;
            1 << SEND_QUEUE | 1 << DOORBELL | engines
        }
        // The completer expects responses from the peer that requests come from.
        id::QP_RECV => 1 << RECV_QUEUE | 1 << DOORBELL | 1 << RESPONDER | 1 << RESPOND | 1 << COMPLETER | 1 << LANDING,
        id::SRQ => 1 << RECV_QUEUE,
        id::CQ => 1 << COMPLETION | 1 << DOORBELL,
        id::EQ => 1 << EVENT | 1 << DOORBELL,
        id::KEY => 1 << MMU,
        id::GID => 1 << INGRESS | 1 << TRANSMIT | 1 << PACER,
        id::PORT | id::MULTICAST => 1 << INGRESS,
        id::MEMBER => 1 << COPIES,
        id::PACE => 1 << PACER | 1 << REQUESTER | 1 << RESPOND,
        _ => 0,
    }
}

/// Who answers for the first words of a row: who changes them, and nobody for rows that the firmware alone writes.
const fn answers(table: u8) -> u64 {
    use door::*;
    match table {
        id::QP_STATE => 1 << QP_STATE,
        id::QP_SEND => 1 << REQUESTER,
        id::QP_RECV => 1 << RESPONDER,
        id::KEY => 1 << MMU,
        id::SRQ => 1 << RECV_QUEUE,
        _ => 0,
    }
}

/// The tables whose bit `i` in `doors` is set, a bit each.
fn tables(doors: fn(u8) -> u64, i: usize) -> Bits<16> {
    bits::<16>((0..16).fold(0, |all, table| all | (doors(table as u8) >> i & 1) << table))
}

/// Bits of the words that are read: up to the PSN.
pub const READ: usize = 32 * mmio::READ_WORDS;

/// Whether door `i` ever answers.
fn can_answer(i: usize) -> bool {
    tables(answers, i) != 0
}

/// The bus. See the module.
#[derive(LogicBlock, Default)]
pub struct TableBus {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// Starts the access `request`, which stays as it is while `busy`.
    pub go: Signal<In, Bit>,
    pub request: Signal<In, TableReq>,
    pub busy: Signal<Out, Bit>,
    /// The first words of the row that was read, in the last cycle of `busy`; zero where nobody answers.
    pub words: Signal<Out, Bits<READ>>,
    pub row_valid: Signal<Out, Bit>,
    pub m: Arr<TableMaster, DOORS>,

    offered: Reg<Bits<DOORS>>,
    awaited: Reg<Bits<DOORS>>,
    answer: DFF<Bits<READ>>,
    answered: Reg<Bit>,
}

impl Logic for TableBus {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, offered, awaited, answered);
        dff_setup!(self, clock, answer);
        let request = self.request.val();
        let awaits = self.awaited.q.val();
        let mut offered = self.offered.q.val();
        let mut awaited = awaits;
        let mut words: Bits<READ> = 0.into();
        let mut answered = false;
        for i in 0..DOORS {
            self.m[i].req.next = request;
            self.m[i].valid.next = self.offered.q.val().get_bit(i);
            offered = offered.replace_bit(i, self.offered.q.val().get_bit(i) && !self.m[i].ready.val());
            // One at most is awaited.
            if elab!(can_answer(i)) {
                if awaits.get_bit(i) {
                    words |= self.m[i].rdata.val().get_bits::<READ>(0);
                }
                answered = answered || (awaits.get_bit(i) && self.m[i].rvalid.val());
            }
        }
        if answered {
            awaited = 0.into();
        }
        self.answer.d.next = words;
        self.answered.d.next = answered;
        if self.go.val() {
            for i in 0..DOORS {
                let takes: Bits<16> = elab!(tables(takers, i));
                let answers: Bits<16> = elab!(tables(answers, i));
                let reads = !request.write && answers.get_bit(request.table.index());
                offered = offered.replace_bit(i, reads || (request.write && takes.get_bit(request.table.index())));
                awaited = awaited.replace_bit(i, reads);
            }
            if !request.write && awaited == 0 {
                self.answered.d.next = true;
            }
        }
        self.offered.d.next = offered;
        self.awaited.d.next = awaited;
        self.busy.next = self.offered.q.val().any() || awaits.any() || self.answered.q.val();
        self.words.next = self.answer.q.val();
        self.row_valid.next = self.answered.q.val();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::RngExt;
    use rand_chacha::ChaCha8Rng;
    use verilate::{Model, Options, bits as raw};

    /// One access with engines that are ready and answer at random; who took it, in how many cycles, and the row.
    fn access(m: &mut Model, rng: &mut ChaCha8Rng, table: u64, write: bool) -> (u64, Vec<u8>) {
        let req = TableReq { table: bits::<4>(table), index: 77.into(), write, row: bits::<512>(0x1234) };
        m.set_bytes("request", &raw::of(req));
        m.set("go", 1);
        let (mut taken, mut row, mut answers) = (0u64, vec![], vec![]);
        for cycle in 0..200 {
            let mut rvalid = None;
            for i in 0..DOORS {
                m.set(&*format!("m[{i}].ready"), rng.random_bool(0.2) as u64);
                let now = answers.contains(&(i, cycle));
                m.set(&*format!("m[{i}].rvalid"), now as u64);
                rvalid = if now { Some(i) } else { rvalid };
                m.set_bytes(&*format!("m[{i}].rdata"), &[i as u8 + 1; 64]);
            }
            m.eval();
            if cycle > 0 && !m.bit("busy") {
                return (taken, row);
            }
            for i in 0..DOORS {
                if m.bit(&*format!("m[{i}].valid")) && m.bit(&*format!("m[{i}].ready")) {
                    assert_eq!(taken >> i & 1, 0, "taken twice");
                    assert_eq!(m.get_bytes(&*format!("m[{i}].req")), raw::of(req));
                    taken |= 1 << i;
                    answers.push((i, cycle + rng.random_range(1..9)));
                }
            }
            if m.bit("row_valid") {
                assert!(!write && row.is_empty());
                row = m.get_bytes("words");
            }
            m.tick();
            m.set("go", 0);
        }
        panic!("busy for good");
    }

    #[test]
    fn rows_reach_their_engines_and_reads_their_owner() {
        let mut rng = verilate::rng(1);
        let mut m = Model::of(TableBus::default, Options::default()).unwrap();
        m.reset();
        for _ in 0..verilate::scale(4) {
            for table in 0..16 {
                assert_eq!(access(&mut m, &mut rng, table, true), (takers(table as u8), vec![]));
                let (taken, words) = access(&mut m, &mut rng, table, false);
                assert_eq!(taken, answers(table as u8));
                let owner = if taken == 0 { 0 } else { taken.trailing_zeros() as u8 + 1 };
                assert_eq!(words, [owner; READ / 8]);
            }
        }
    }
}
