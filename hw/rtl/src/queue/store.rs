//! The rings of prefetched blocks: a RAM of 64-byte rows, written word by word or whole, read whole.
//!
//! ```text
//! cycle     0       1       2
//! re,raddr  A       B
//! rdata                     A  ..  (stays until the next read arrives)
//! ```
//! Each 8-byte word of the rows is a [`Table`] of its own.
//!
//! *In halves* it has four words twice as deep, for RAMs that are deeper than the rings need: a row comes a cycle later.
//!
//! ```text
//! cycle     0       1       2       3
//! re,raddr  A
//! RAM               lower   upper           (read)
//! rdata                     .       A  ..   (stays until the next read arrives)
//! ```
//! No handshakes, so nothing here can wait.

use crate::stream::Table;
use hdl::prelude::*;

/// RAM of 64-byte rows. See the module.
#[derive(LogicBlock, Default)]
pub struct BlockStore {
    pub clock: Signal<In, Clock>,
    /// Writes the words of row `waddr` whose bit is set, in halves those of one half.
    pub we: Signal<In, Bits<8>>,
    pub waddr: Signal<In, Bits<24>>,
    pub wdata: Signal<In, Bits<512>>,
    pub re: Signal<In, Bit>,
    pub raddr: Signal<In, Bits<24>>,
    pub rdata: Signal<Out, Bits<512>>,
    words: Arr<Table<Bits<64>>, 8>,
    /// In halves: the lower one is being read, and is at the output of the RAMs.
    asked: [DFF<Bit>; 2],
    row: DFF<Bits<23>>,
    low: DFF<Bits<256>>,
    _halves: Hidden<bool>,
}

impl BlockStore {
    /// As [`Table::new`](Ram::new). `halves`: see the module.
    pub fn new(rows: usize, style: &'static str, halves: bool) -> Self {
        let rows = if halves { 2 * rows } else { rows };
        let words = Arr::from_fn(|_| Table::new(rows, style));
        BlockStore { words, _halves: Hidden(halves), ..Default::default() }
    }
}

impl Logic for BlockStore {
    #[kernel]
    fn update(&mut self) {
        dff_setup!(self, clock, asked, row, low);
        let re = self.re.val();
        let we = self.we.val();
        self.asked[0].d.next = re;
        self.asked[1].d.next = self.asked[0].q.val();
        self.row.d.next = self.raddr.val().get_bits::<23>(0);
        let upper = we.get_bits::<4>(4).any();
        let into = cat!(24; self.waddr.val().get_bits::<23>(0), upper);
        let lower = if re { self.raddr.val().get_bits::<23>(0) } else { self.row.q.val() };
        for w in 0..8 {
            clock!(self, clock, words[w]);
            self.words[w].wdata.next = self.wdata.val().get_bits::<64>(64 * w);
            if self._halves.0 {
                // The upper four do not exist: nobody reads them.
                self.words[w].we.next = w < 4 && (we.get_bit(w % 4) || we.get_bit(w % 4 + 4));
                self.words[w].waddr.next = into;
                self.words[w].re.next = w < 4 && (re || self.asked[0].q.val());
                self.words[w].raddr.next = cat!(24; lower, !re);
            } else {
                self.words[w].we.next = we.get_bit(w);
                self.words[w].waddr.next = self.waddr.val();
                self.words[w].re.next = re;
                self.words[w].raddr.next = self.raddr.val();
            }
        }
        let low = cat!(
            256;
            self.words[3].rdata.val(),
            self.words[2].rdata.val(),
            self.words[1].rdata.val(),
            self.words[0].rdata.val()
        );
        let high = cat!(
            256;
            self.words[7].rdata.val(),
            self.words[6].rdata.val(),
            self.words[5].rdata.val(),
            self.words[4].rdata.val()
        );
        if self.asked[1].q.val() {
            self.low.d.next = low;
        }
        self.rdata.next = if self._halves.0 { cat!(512; low, self.low.q.val()) } else { cat!(512; high, low) };
    }
}
