//! The rows of a small table that each frame's destination is compared with: all at once, or in turns where a frame takes
//! several beats anyway. For `wire/gids` and `wire/raw_filter`.
//!
//! ```text
//! in 4 turns     cycle    0        1        2
//! rows                    0 4 8 12 1 5 9 13 ..         at the lanes 0 to 3, as `live` says
//! found                            of these            what was found out about them, in a register
//! [`gather`]                       0 4 8 12 are known  by `turn`
//! ```
//! The turns go round for ever: the results of as many cycles as there are turns are those of all rows, whichever was
//! first. Nothing waits here.

use abi::wire::len;
use hdl::prelude::*;

/// Rows.
pub const ROWS: usize = 16;
/// Lanes at most where there are several turns.
const LANES: usize = 4;
const _: () = assert!(abi::table::GIDS == ROWS && abi::table::MULTICASTS == ROWS);

/// The shortest RoCE packet, before the MAC's padding.
const ROCE: usize = len::ETH + len::IPV4 + len::UDP + len::BTH + len::ICRC;

/// The shortest frame that is looked up; what is shorter is a runt. A lookup of several turns wants a RoCE packet's time: on such a
/// datapath a raw frame must have come with some of its padding.
pub const fn shortest(width: usize) -> usize {
    if turns(width) == 1 { len::ETH } else { ROCE }
}

/// Turns of a lookup: no more than the beats of the shortest frame, and one where the link is so fast that cycles count.
pub const fn turns(width: usize) -> usize {
    if width >= 256 { 1 } else { 512 / width }
}
const _: () = {
    let mut width = 64;
    while width <= 512 {
        assert!(shortest(width).div_ceil(width / 8) >= turns(width));
        width *= 2;
    }
};

/// See the [module](self).
#[derive(Clone, Debug, LogicBlock)]
pub struct Rows<T: Synth> {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    pub write: Signal<In, Bit>,
    pub index: Signal<In, Bits<4>>,
    pub data: Signal<In, T>,
    /// The row that is written counts.
    pub valid: Signal<In, Bit>,
    /// Rows at the lanes, and which of them count.
    pub rows: Arr<Signal<Out, T>, ROWS>,
    pub live: Signal<Out, Bits<ROWS>>,
    /// The turn that the rows of the cycle before had.
    pub turn: Signal<Out, Bits<4>>,

    row: Arr<DFF<T>, ROWS>,
    valids: Reg<Bits<ROWS>>,
    shown: Reg<Bits<ROWS>>,
    ram: Arr<Ram<T, 4>, LANES>,
    at: [Reg<Bits<4>>; 3],
    _turns: Hidden<usize>,
}

impl<T: Synth> Rows<T> {
    /// Rows that are compared in `turns` turns.
    pub fn new(turns: usize) -> Self {
        assert!(turns == 1 || turns.is_power_of_two() && ROWS / turns <= LANES, "{turns} turns");
        Rows {
            clock: Default::default(),
            rst: Default::default(),
            write: Default::default(),
            index: Default::default(),
            data: Default::default(),
            valid: Default::default(),
            rows: Default::default(),
            live: Default::default(),
            turn: Default::default(),
            row: Default::default(),
            valids: Default::default(),
            shown: Default::default(),
            ram: Arr::from_fn(|_| Ram::default().rows(turns).style("distributed").at_once()),
            at: Default::default(),
            _turns: Hidden(turns),
        }
    }
}

impl<T: Synth> Default for Rows<T> {
    fn default() -> Self {
        Rows::new(1)
    }
}

impl<T: Synth> Logic for Rows<T> {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, valids, shown, at);
        dff_setup!(self, clock, row);
        let turns = elab!(self._turns.0);
        let in_turns = elab!(self._turns.0 > 1);
        let index = self.index.val();
        if self.write.val() {
            self.valids.d.next = self.valids.q.val().replace_bit(index.index(), self.valid.val());
        }
        let low: Bits<4> = elab!(bits::<4>(self._turns.0 as u64 - 1));
        let lane = index >> elab!(self._turns.0.trailing_zeros() as u64);
        let at = self.at[0].q.val();
        self.at[0].d.next = if in_turns { (at + 1) & low } else { 0.into() };
        self.at[1].d.next = at;
        self.at[2].d.next = self.at[1].q.val();
        self.turn.next = self.at[2].q.val();
        for i in 0..LANES {
            clock!(self, clock, ram[i]);
            self.ram[i].we.next = in_turns && self.write.val() && lane == i.to_bits::<4>();
            self.ram[i].waddr.next = index & low;
            self.ram[i].wdata.next = self.data.val();
            self.ram[i].re.next = in_turns;
            self.ram[i].raddr.next = at;
            if in_turns {
                let from = elab!(i * turns % ROWS);
                self.row[i].d.next = self.ram[i].rdata.val();
                self.shown
                    .d
                    .next
                    .set_bits::<1>(i, (self.valids.q.val() >> from as u64 >> at.cast::<16>()).get_bits::<1>(0));
            }
        }
        if !in_turns {
            for i in 0..ROWS {
                if self.write.val() && index == i.to_bits::<4>() {
                    self.row[i].d.next = self.data.val();
                }
            }
        }
        for i in 0..ROWS {
            self.rows[i].next = self.row[i].q.val();
        }
        self.live.next = if in_turns { self.shown.q.val() } else { self.valids.q.val() };
    }
}

/// `known`, what is known of all rows, with what was `found` at the lanes: in turn `turn` of `turns`.
#[hdl_fn]
pub fn gather(known: Bits<ROWS>, found: Bits<ROWS>, turn: Bits<4>, turns: usize) -> Bits<ROWS> {
    let mut all = known;
    for i in 0..ROWS {
        if turn == (i % turns).to_bits::<4>() {
            all = all.replace_bit(i, found.get_bit(i / turns));
        }
    }
    all
}
