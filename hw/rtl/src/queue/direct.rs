//! The direct WQE of the send queues: told word by word ahead of its doorbell, it needs no fetch.
//!
//! ```text
//! word 0 ..       its page owns the QP     last one      doorbell      its queue comes up
//!   Filling  ---> asks: granted      --->    Told   --->  Posted  --->   taken
//!                 words go into the ring, two a cycle
//! ```
//! While its words come, its queue is asked whether it is the next block to be fetched and has its room on chip. If so, the words
//! go where a fetch would put them, in cycles in which no fetched data does. When the queue comes up behind the doorbell they are
//! there. If anything else moves the queue meanwhile, the WQE is forgotten and fetched from memory like any other; what was
//! written of it lies where the fetch will write.
//!
//! One WQE at a time: a new one takes the place of one that is not posted yet, and is forgotten if there is one that is.
//! Nothing waits here.

use crate::msg::{DirectWord, Qp, Ring};
use abi::queue::{doorbell::DIRECT_BLOCKS, send_wqe};
use hdl::prelude::*;

/// What becomes of the WQE.
#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
enum State {
    None,
    /// Its words come.
    Filling,
    /// Complete, its doorbell not yet seen.
    Told,
    /// To be taken when its queue comes up.
    Posted,
}

/// The direct WQE. See the module.
#[derive(LogicBlock, Default)]
pub struct DirectWqe {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    pub told: Signal<In, DirectWord>,
    pub told_valid: Signal<In, Bit>,
    pub ring: Signal<In, Ring>,
    pub ring_valid: Signal<In, Bit>,
    /// The WQE's place.
    pub queue: Signal<Out, Qp>,
    pub index: Signal<Out, Bits<16>>,
    pub two: Signal<Out, Bit>,
    /// Asks its queue, which answers a few cycles later.
    pub asks: Signal<Out, Bit>,
    pub asked: Signal<In, Bit>,
    pub answers: Signal<In, Bit>,
    pub grants: Signal<In, Bit>,
    /// It is posted, and all of it is in the ring from the next cycle on.
    pub posted: Signal<Out, Bit>,
    pub written: Signal<Out, Bit>,
    /// Its queue took it or moved without it; it restarts.
    pub moves: Signal<In, Bit>,
    pub restarts: Signal<In, Bit>,
    /// Two words for the ring, from `word` of block `row` on; they are taken in this cycle if it is `free`.
    pub free: Signal<In, Bit>,
    pub write: Signal<Out, Bit>,
    pub row: Signal<Out, Bits<6>>,
    pub word: Signal<Out, Bits<3>>,
    pub data: Signal<Out, Bits<128>>,
    state: Reg<State>,
    queue_q: DFF<Qp>,
    index_q: DFF<Bits<16>>,
    two_q: DFF<Bit>,
    /// Until there is another one: the queue is to be asked, has been asked on behalf of this WQE, granted.
    asks_q: Reg<Bit>,
    waits: Reg<Bit>,
    granted: Reg<Bit>,
    /// Its words, the even and the odd ones; pairs that came and pairs that went.
    words: Arr<Ram<Bits<64>, 3>, 2>,
    came: Reg<Bits<4>>,
    went: Reg<Bits<4>>,
}

impl DirectWqe {
    /// None.
    pub fn new() -> Self {
        DirectWqe { words: Arr::from_fn(|_| Ram::default().style("distributed").at_once()), ..Default::default() }
    }
}

impl Logic for DirectWqe {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, state, asks_q, waits, granted, came, went);
        dff_setup!(self, clock, queue_q, index_q, two_q);
        for w in 0..2 {
            clock!(self, clock, words[w]);
        }
        let mut state = self.state.q.val();
        let queue = self.queue_q.q.val();
        let index = self.index_q.q.val();
        let two = self.two_q.q.val();

        // ---- Into the ring.
        let went = self.went.q.val();
        let alive = self.state.q.val() != State::None;
        let write = alive && self.granted.q.val() && went != self.came.q.val();
        let second: Bits<6> = went.get_bits::<1>(2).cast::<6>();
        self.write.next = write;
        self.row.next = index.get_bits::<6>(0) + second;
        self.word.next = cat!(3; went.get_bits::<2>(0), false);
        self.data.next = cat!(128; self.words[1].rdata.val(), self.words[0].rdata.val());
        let goes = write && self.free.val();
        if goes {
            self.went.d.next = went + 1;
        }

        // ---- Words.
        let now = self.state.q.val();
        let told = self.told.val();
        let comes = self.told_valid.val();
        let begins = comes && !told.number.any() && now != State::Posted;
        let follows = comes && now == State::Filling;
        let fills = begins || follows;
        for w in 0..2 {
            self.words[w].we.next = fills && told.number.get_bit(0) == (w == 1);
            self.words[w].waddr.next = told.number.get_bits::<3>(1);
            self.words[w].wdata.next = told.data;
            self.words[w].re.next = true;
            self.words[w].raddr.next = went.get_bits::<3>(0);
        }
        if fills && told.number.get_bit(0) {
            self.came.d.next = self.came.q.val() + 1;
        }
        if follows && told.number == elab!(send_wqe::QPN.lsb as u64 / 64) {
            self.index_q.d.next = told.data.get_bits::<16>(elab!(send_wqe::INDEX.lsb % 64));
            self.queue_q.d.next = told.data.get_bits::<12>(elab!(send_wqe::QPN.lsb % 64));
            self.asks_q.d.next = true;
            if !told.owned {
                state = State::None;
            }
        }
        if follows && told.complete {
            state = State::Told;
        }

        // ---- Its doorbell.
        let ring = self.ring.val();
        if now == State::Told && self.ring_valid.val() {
            let beyond = ring.index.get_bits::<16>(0) - index;
            let next = ring.number == queue && beyond.any() && !beyond.get_bit(15);
            state = if next { State::Posted } else { State::None };
        }

        // ---- Its queue.
        if self.asked.val() {
            self.asks_q.d.next = false;
            self.waits.d.next = true;
        }
        let answers = self.answers.val() && self.waits.q.val();
        if answers {
            self.waits.d.next = false;
            self.granted.d.next = self.grants.val();
        }
        let refused = answers && !self.grants.val();
        if refused || self.moves.val() && self.granted.q.val() || self.restarts.val() {
            state = State::None;
        }

        // ---- A new one.
        if begins {
            state = State::Filling;
            self.came.d.next = 0.into();
            self.went.d.next = 0.into();
            self.asks_q.d.next = false;
            self.waits.d.next = false;
            self.granted.d.next = false;
            self.two_q.d.next = told.data.get_bits::<3>(elab!(send_wqe::BLOCKS.lsb)) != 1;
        }
        self.state.d.next = state;

        // ---- What is told of it.
        self.queue.next = queue;
        self.index.next = index;
        self.two.next = two;
        self.asks.next = alive && self.asks_q.q.val();
        self.posted.next = self.state.q.val() == State::Posted;
        let all = went.get_bit(3) || went.get_bit(2) && !two;
        let all_but_one = if two { bits::<4>(7) } else { bits::<4>(3) };
        self.written.next = self.granted.q.val() && all || goes && went == all_but_one;
    }
}

const _: () = assert!(send_wqe::INDEX.lsb / 64 == send_wqe::QPN.lsb / 64 && send_wqe::BLOCKS.lsb < 64);
const _: () = assert!(DIRECT_BLOCKS == 2);
