//! The requester's front: takes a pick and brings the QP's rows and its next WQE to where the engine loads them.
//!
//! ```text
//! cycle    0      1      2      3      4      5
//! pick     A      (B)
//! rows            read   .      there
//! block                         read   .      there: the engine may load
//! hinted          read   .      there: the engine loads, and looks whether it was the right one
//! ```
//! Where blocks come a cycle later than rows do, the engine loads a cycle later, and a hint is judged before that.
//!
//! It keeps nothing but the QP: rows stay at the outputs of their tables and the block at that of the work queue until the next
//! read. When the engine reads a block in between, the front reads its own anew; when other work needs the rows, the front
//! drops its pick. A pick of a QP that the engine has in hand is dropped, too, but for one that comes while a refetch of it ends, which
//! waits for its row. Both come again: the scheduler picks while there is work.
//!
//! Waits for the engine only, which loads whenever it is idle.

use crate::{
    msg::{Pick, Qp},
    stream::Sink,
};
use hdl::prelude::*;

#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
enum Step {
    Empty,
    /// Rows are being read.
    Wait,
    /// Rows are there.
    Rows,
    /// The block is being read.
    Block,
    Late,
    /// Late, and read by a hint: is it the right one?
    Sure,
    There,
    /// The engine looks whether it has loaded the right block.
    Tried,
}

/// See the module.
#[derive(LogicBlock, Default)]
pub struct Front {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    pub pick: Sink<Pick>,
    pub kick: Signal<In, Qp>,
    pub kicks: Signal<In, Bit>,
    /// What the engine has in hand; it writes that QP's row in this cycle.
    pub engine: Signal<In, Qp>,
    pub engine_busy: Signal<In, Bit>,
    pub engine_writes: Signal<In, Bit>,
    /// Other work reads rows in this cycle; for this QP, which the engine has in hand from the next one on.
    pub looks: Signal<In, Bit>,
    pub whose: Signal<In, Qp>,
    /// The engine reads a block in this cycle; or one that it has read waits for it.
    pub engine_reads: Signal<In, Bit>,
    pub engine_holds: Signal<In, Bit>,
    /// Reads the rows of `row_at`.
    pub row_re: Signal<Out, Bit>,
    pub row_at: Signal<Out, Qp>,
    /// Next block, as the row says it two cycles after `row_re`.
    pub index: Signal<In, Bits<16>>,
    pub block_re: Signal<Out, Bit>,
    pub block_queue: Signal<Out, Qp>,
    pub block_index: Signal<Out, Bits<16>>,
    /// Rows and block of `qpn` are there; the engine loads them.
    pub there: Signal<Out, Bit>,
    pub qpn: Signal<Out, Qp>,
    pub loads: Signal<In, Bit>,
    /// Something was acknowledged since the rows were read.
    pub kicked: Signal<Out, Bit>,
    /// What was loaded in the cycle before is the wrong block.
    pub wrong: Signal<Out, Bit>,
    held: Reg<Bit>,
    held_pick: DFF<Pick>,
    /// It is the QP that front or engine has.
    of_front: DFF<Bit>,
    of_engine: DFF<Bit>,
    step: Reg<Step>,
    qpn_q: Reg<Qp>,
    kicked_q: Reg<Bit>,
    /// The block that a hint named is read beside the rows.
    guessed: Reg<Bit>,
    guess: DFF<Bits<16>>,
    right: DFF<Bit>,
    _late: Hidden<bool>,
}

impl Front {
    /// `late`: blocks come three cycles after they are asked for, not two.
    pub fn new(late: bool) -> Self {
        Front { _late: Hidden(late), ..Default::default() }
    }
}

impl Logic for Front {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, held, step, qpn_q, kicked_q, guessed);
        dff_setup!(self, clock, held_pick, of_front, of_engine, guess, right);
        let step = self.step.q.val();
        let qpn = self.qpn_q.q.val();
        let held = self.held.q.val();
        let next = self.held_pick.q.val();
        let guessed = self.guessed.q.val();
        let (loads, looks, busy) = (self.loads.val(), self.looks.val(), self.engine_busy.val());
        let port_free = !self.engine_reads.val() && !self.engine_holds.val();

        // ---- The next pick.
        self.pick.ready.next = !held;
        if !held {
            self.held.d.next = self.pick.valid.val();
            self.held_pick.d.next = self.pick.data.val();
        }
        // Compared ahead, with what the engine has in the next cycle.
        let coming = if held { next.qpn } else { self.pick.data.val().qpn };
        self.of_front.d.next = coming == qpn;
        self.of_engine.d.next = if loads {
            coming == qpn
        } else if looks {
            coming == self.whose.val()
        } else {
            coming == self.engine.val()
        };
        let empty = step == Step::Empty;
        let leaves = (step == Step::There || step == Step::Sure) && loads || step == Step::Tried && self.right.q.val();
        let of_engine = self.of_engine.q.val();
        let in_hand = of_engine && busy || !empty && self.of_front.q.val();
        let takes = held && (empty || leaves) && !looks && !in_hand && !(of_engine && self.engine_writes.val());
        if takes || held && in_hand {
            self.held.d.next = false;
        }
        self.row_re.next = takes;
        self.row_at.next = next.qpn;
        let guesses = held && next.hinted && empty && !busy && port_free;

        // ---- Rows and block.
        let asks = step == Step::Rows && !guessed && port_free;
        self.block_re.next = asks || guesses;
        self.block_queue.next = if empty { next.qpn } else { qpn };
        self.block_index.next = if empty { next.index } else { self.index.val() };
        let kick = self.kicks.val() && self.kick.val() == qpn;
        self.kicked.next = self.kicked_q.q.val() || kick;
        let late = self._late.0;
        let found = if late { step == Step::Sure && self.right.q.val() } else { step == Step::Rows && guessed };
        self.there.next = step == Step::There || found;
        self.qpn.next = qpn;
        self.wrong.next = step == Step::Tried && !self.right.q.val();
        self.right.d.next = self.index.val() == self.guess.q.val();
        if kick {
            self.kicked_q.d.next = true;
        }
        match step {
            Step::Empty => {}
            Step::Wait => {
                self.step.d.next = Step::Rows;
            }
            Step::Rows => {
                self.guessed.d.next = false;
                if guessed && self._late.0 {
                    self.step.d.next = Step::Sure;
                } else if guessed && loads {
                    self.step.d.next = Step::Tried;
                } else if asks {
                    self.step.d.next = Step::Block;
                }
            }
            Step::Block => {
                let next = if self._late.0 { Step::Late } else { Step::There };
                self.step.d.next = if self.engine_reads.val() { Step::Rows } else { next };
            }
            Step::Late => {
                self.step.d.next = if self.engine_reads.val() { Step::Rows } else { Step::There };
            }
            Step::Sure => {
                self.step.d.next = if !self.right.q.val() {
                    Step::Rows
                } else if loads {
                    Step::Empty
                } else {
                    Step::There
                };
            }
            Step::There => {
                if loads {
                    self.step.d.next = Step::Empty;
                } else if self.engine_reads.val() {
                    self.step.d.next = Step::Rows;
                }
            }
            Step::Tried => {
                self.step.d.next = if self.right.q.val() { Step::Empty } else { Step::Rows };
            }
        }
        if takes {
            self.step.d.next = Step::Wait;
            self.qpn_q.d.next = next.qpn;
            self.kicked_q.d.next = self.kicks.val() && self.kick.val() == next.qpn;
            self.guessed.d.next = guesses;
            self.guess.d.next = next.index;
        } else if looks {
            self.step.d.next = Step::Empty;
        }
    }
}
