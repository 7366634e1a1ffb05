//! The memory translation table: page frames, and the bus address they make.
//!
//! For both access ports, through [`super::mmu`]. Two frames stand in a row of 72 bits, the width of an UltraRAM.
//! Frames come in through the table loader's port, one a cycle, or over the table bus, up to eight a row.
//!
//! ```text
//! cycle    0       1      2        3
//! step   taken | read | read | compose | chunk
//! ```
//! One step a cycle. Cannot deadlock: chunks cannot be refused, and a step waits only in the cycles of a write (so that no
//! row is read while it is written).

use crate::{
    msg::Chunk,
    stream::{Sink, TablePort},
};
use abi::table::mtt;
use hdl::prelude::*;

/// Bits of a page frame: addresses have 48.
const FRAME: usize = mtt::FRAME.bits;

/// A chunk whose bus address is to be found.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Step {
    /// Access port that asks.
    pub port: Bit,
    /// The table is not needed: `chunk` is complete. Else `chunk.iova` is the virtual address.
    pub direct: Bit,
    /// Entry of the page.
    pub frame: Bits<24>,
    /// Log2 of the page size.
    pub shift: Bits<6>,
    /// The rest.
    pub chunk: Chunk,
}

/// Memory translation table.
#[derive(LogicBlock)]
pub struct Translate {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// Questions.
    pub step: Sink<Step>,
    /// The answer to the question of 3 cycles ago.
    pub chunk: Signal<Out, Chunk>,
    /// Port that it is for, if `chunk_valid`.
    pub port: Signal<Out, Bit>,
    /// There is an answer.
    pub chunk_valid: Signal<Out, Bit>,
    /// `abi::table::mtt` rows; a read gives 0.
    pub table: TablePort,
    /// The table loader writes a frame; it cannot be refused.
    pub mtt_we: Signal<In, Bit>,
    /// Entry.
    pub mtt_addr: Signal<In, Bits<24>>,
    /// Page frame.
    pub mtt_frame: Signal<In, Bits<36>>,
    rows: RamBe<72, 23, 2>,
    valid: [Reg<Bit>; 3],
    steps: [DFF<Step>; 2],
    result: DFF<Chunk>,
    port_out: DFF<Bit>,
    /// Entries of the row on the table bus that are written.
    written: Reg<Bits<3>>,
    answered: Reg<Bit>,
    _frames: Hidden<usize>,
}

impl Translate {
    /// A table of `frames` page frames, an even number.
    pub fn new(frames: usize) -> Self {
        assert!(frames.is_multiple_of(2) && (2..=1 << 24).contains(&frames), "{frames} page frames");
        Self {
            clock: Default::default(),
            rst: Default::default(),
            step: Default::default(),
            chunk: Default::default(),
            port: Default::default(),
            chunk_valid: Default::default(),
            table: Default::default(),
            mtt_we: Default::default(),
            mtt_addr: Default::default(),
            mtt_frame: Default::default(),
            rows: RamBe::default().rows(frames / 2).registered().style("ultra"),
            valid: Default::default(),
            steps: Default::default(),
            result: Default::default(),
            port_out: Default::default(),
            written: Default::default(),
            answered: Default::default(),
            _frames: Hidden(frames),
        }
    }
}

impl Logic for Translate {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, valid, written, answered);
        dff_setup!(self, clock, steps, result, port_out);
        clock!(self, clock, rows);

        // Writes: the loader before the table bus, which writes a row's entries one by one.
        let row = self.table.req.val();
        let written = self.written.q.val();
        let count = row.row.get_bits::<4>(elab!(mtt::COUNT.lsb));
        let bus = self.table.valid.val() && row.write && !self.mtt_we.val();
        let last = written.cast::<4>() + 1 >= count;
        let mut frame: Bits<FRAME> = row.row.get_bits::<FRAME>(0);
        for i in 1..8 {
            if written == i.to_bits::<3>() {
                frame = row.row.get_bits::<FRAME>(64 * i);
            }
        }
        if bus {
            self.written.d.next = if last { 0.into() } else { written + 1 };
        }
        self.table.ready.next = !row.write || (last && !self.mtt_we.val());
        self.answered.d.next = self.table.valid.val() && !row.write;
        self.table.rvalid.next = self.answered.q.val();
        self.table.rdata.next = 0.into();
        let entry = if self.mtt_we.val() { self.mtt_addr.val() } else { row.index + written.cast::<24>() };
        if self.mtt_we.val() {
            frame = self.mtt_frame.val();
        }
        let inside = entry.cast::<25>() < elab!(bits::<25>(self._frames.0 as u64));
        let write = inside && (self.mtt_we.val() || bus);
        self.rows.we.next = cat!(write && entry.get_bit(0), write && !entry.get_bit(0));
        self.rows.waddr.next = entry.get_bits::<23>(1);
        self.rows.wdata.next = cat!(72; frame, frame);

        // 0: read.
        let ready = !self.mtt_we.val() && !self.table.valid.val();
        let take = self.step.valid.val() && ready;
        let step = self.step.data.val();
        self.step.ready.next = ready;
        self.rows.re.next = take && !step.direct;
        self.rows.raddr.next = step.frame.get_bits::<23>(1);
        self.valid[0].d.next = take;
        self.valid[1].d.next = self.valid[0].q.val();
        self.valid[2].d.next = self.valid[1].q.val();
        if take {
            self.steps[0].d.next = step;
        }
        // 1: it is being read.
        if self.valid[0].q.val() {
            self.steps[1].d.next = self.steps[0].q.val();
        }
        // 2: the frame above, the virtual address below.
        let step = self.steps[1].q.val();
        let pair = self.rows.rdata.val();
        let frame = if step.frame.get_bit(0) { pair.get_bits::<FRAME>(FRAME) } else { pair.get_bits::<FRAME>(0) };
        let va = step.chunk.iova;
        let paged: Bits<48> = match step.shift {
            12 => cat!(48; frame, va.get_bits::<12>(0)),
            16 => cat!(48; frame.get_bits::<32>(4), va.get_bits::<16>(0)),
            21 => cat!(48; frame.get_bits::<27>(9), va.get_bits::<21>(0)),
            _ => cat!(48; frame.get_bits::<18>(18), va.get_bits::<30>(0)),
        };
        if self.valid[1].q.val() {
            self.result.d.next = step.chunk;
            if !step.direct {
                self.result.d.next.iova = paged.cast::<64>();
            }
            self.port_out.d.next = step.port;
        }
        self.chunk.next = self.result.q.val();
        self.port.next = self.port_out.q.val();
        self.chunk_valid.next = self.valid[2].q.val();
    }
}
