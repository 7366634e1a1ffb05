//! The rings of prefetched blocks: a RAM of 64-byte rows, written word by word or whole, read whole.
//!
//! ```text
//! cycle     0       1       2
//! re,raddr  A       B
//! rdata                     A  ..  (stays until the next read arrives)
//! ```
//! Each 8-byte word of the rows is a [`Table`] of its own. No handshakes, so nothing here can wait.

use crate::stream::Table;
use hdl::prelude::*;

/// RAM of 64-byte rows. See the module.
#[derive(LogicBlock, Default)]
pub struct BlockStore {
    pub clock: Signal<In, Clock>,
    /// Writes the words of row `waddr` whose bit is set.
    pub we: Signal<In, Bits<8>>,
    pub waddr: Signal<In, Bits<24>>,
    pub wdata: Signal<In, Bits<512>>,
    pub re: Signal<In, Bit>,
    pub raddr: Signal<In, Bits<24>>,
    pub rdata: Signal<Out, Bits<512>>,
    words: Arr<Table<Bits<64>>, 8>,
}

impl BlockStore {
    /// As [`Table::new`](Ram::new).
    pub fn new(rows: usize, style: &'static str) -> Self {
        BlockStore { words: Arr::from_fn(|_| Table::new(rows, style)), ..Default::default() }
    }
}

impl Logic for BlockStore {
    #[kernel]
    fn update(&mut self) {
        for w in 0..8 {
            clock!(self, clock, words[w]);
            self.words[w].we.next = self.we.val().get_bit(w);
            self.words[w].waddr.next = self.waddr.val();
            self.words[w].wdata.next = self.wdata.val().get_bits::<64>(64 * w);
            self.words[w].re.next = self.re.val();
            self.words[w].raddr.next = self.raddr.val();
        }
        self.rdata.next = cat!(
            512;
            self.words[7].rdata.val(),
            self.words[6].rdata.val(),
            self.words[5].rdata.val(),
            self.words[4].rdata.val(),
            self.words[3].rdata.val(),
            self.words[2].rdata.val(),
            self.words[1].rdata.val(),
            self.words[0].rdata.val()
        );
    }
}
