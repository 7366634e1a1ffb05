//! The memory translation table: page frames, and the bus address they make.
//!
//! For both access ports, through [`super::mmu`]. Two frames stand in a row of 72 bits, the width of an UltraRAM.
//! Frames come in through the table loader's port, one a cycle, or over the table bus, up to eight a row.
//!
//! ```text
//! cycle      0         1           2     3         4
//! region  waits | cut, read | read | compose | piece
//! early                              taken   | piece
//! ```
//! Regions wait in a FIFO that has room for all that the ports may have under way. A piece of a region ends with it or with its
//! page. One piece a cycle. Cannot deadlock: pieces cannot be refused, and a region waits only for those before it and in the
//! cycles of a write (so that no row is read while it is written).

use super::{access::Piece, keys::Region};
use crate::{
    msg::Chunk,
    stream::{Fifo, TablePort},
};
use abi::table::mtt;
use hdl::prelude::*;

/// Bits of a page frame: addresses have 48.
const FRAME: usize = mtt::FRAME.bits;

/// Regions between check and translation: two ports with eight requests each.
const REGIONS: usize = 16;

/// How far the present region has been cut.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Cut {
    frame: Bits<24>,
    iova: Bits<64>,
    left: Bits<14>,
    offset: Bits<14>,
    room: Bits<15>,
}

/// A piece whose bus address is to be found.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Step {
    /// Access port that asks.
    port: Bit,
    /// The table is not needed: the piece is complete. Else its `iova` is the virtual address.
    direct: Bit,
    /// The upper half of the row.
    upper: Bit,
    /// Log2 of the page size.
    shift: Bits<6>,
    piece: Piece,
}

/// Memory translation table.
#[derive(LogicBlock)]
pub struct Translate {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// Regions of both ports, never refused.
    pub region: Signal<In, Region>,
    pub region_valid: Signal<In, Bit>,
    /// A chunk that needs no translation may be given now, to be passed on in the next cycle.
    pub free: Signal<Out, Bit>,
    /// It is given, for this port.
    pub early: Signal<In, Chunk>,
    pub early_port: Signal<In, Bit>,
    pub early_valid: Signal<In, Bit>,
    /// A piece, for the port whose `valid` is up.
    pub piece: Signal<Out, Piece>,
    pub valid: Arr<Signal<Out, Bit>, 2>,
    /// `abi::table::mtt` rows; a read gives no row.
    pub table: TablePort,
    /// The table loader writes a frame; it cannot be refused.
    pub mtt_we: Signal<In, Bit>,
    /// Entry.
    pub mtt_addr: Signal<In, Bits<24>>,
    /// Page frame.
    pub mtt_frame: Signal<In, Bits<36>>,
    rows: RamBe<72, 23, 2>,
    regions: Fifo<Region>,
    begun: Reg<Bit>,
    cut: DFF<Cut>,
    stages: [Reg<Bit>; 2],
    steps: [DFF<Step>; 2],
    done: Arr<Reg<Bit>, 2>,
    result: DFF<Piece>,
    /// A write of the table, in this cycle.
    write: Reg<Bit>,
    entry: DFF<Bits<24>>,
    frame: DFF<Bits<FRAME>>,
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
            region: Default::default(),
            region_valid: Default::default(),
            free: Default::default(),
            early: Default::default(),
            early_port: Default::default(),
            early_valid: Default::default(),
            piece: Default::default(),
            valid: Default::default(),
            table: Default::default(),
            mtt_we: Default::default(),
            mtt_addr: Default::default(),
            mtt_frame: Default::default(),
            rows: RamBe::default().rows(frames / 2).registered().style("ultra"),
            regions: Fifo::new(REGIONS),
            begun: Default::default(),
            cut: Default::default(),
            stages: Default::default(),
            steps: Default::default(),
            done: Default::default(),
            result: Default::default(),
            write: Default::default(),
            entry: Default::default(),
            frame: Default::default(),
            written: Default::default(),
            answered: Default::default(),
            _frames: Hidden(frames),
        }
    }
}

impl Logic for Translate {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, begun, stages, done, write, written, answered);
        dff_setup!(self, clock, cut, steps, result, entry, frame);
        clock!(self, clock, rows);
        clock_reset!(self, clock, rst, regions);

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
        self.write.d.next = self.mtt_we.val() || bus;
        self.entry.d.next = entry;
        self.frame.d.next = frame;
        let (write, entry, frame) = (self.write.q.val(), self.entry.q.val(), self.frame.q.val());
        let inside = write && entry.cast::<25>() < elab!(bits::<25>(self._frames.0 as u64));
        self.rows.we.next = cat!(inside && entry.get_bit(0), inside && !entry.get_bit(0));
        self.rows.waddr.next = entry.get_bits::<23>(1);
        self.rows.wdata.next = cat!(72; frame, frame);

        // 0: cut the oldest region, and read.
        self.regions.s.data.next = self.region.val();
        self.regions.s.valid.next = self.region_valid.val();
        let region = self.regions.m.data.val();
        let begin =
            Cut { frame: region.frame, iova: region.iova, left: region.len, offset: 0.into(), room: region.room };
        let cut = if self.begun.q.val() { self.cut.q.val() } else { begin };
        let fault = region.cause != 0;
        let last = fault || cut.left.cast::<15>() <= cut.room;
        let len = if last { cut.left } else { cut.room.get_bits::<14>(0) };
        let go = self.regions.m.valid.val() && !write;
        let direct = region.contiguous || fault;
        self.regions.m.ready.next = !write && last;
        if go {
            self.begun.d.next = !last;
            self.cut.d.next = Cut {
                frame: cut.frame + 1,
                iova: 0.into(), // a page begins: the bits below its size are 0
                left: cut.left - len,
                offset: cut.offset + len,
                room: if region.shift == 12 { bits::<15>(1 << 12) } else { bits::<15>(1 << 14) },
            };
            self.steps[0].d.next = Step {
                port: region.port,
                direct: direct,
                upper: cut.frame.get_bit(0),
                shift: region.shift,
                piece: Piece {
                    chunk: Chunk { iova: cut.iova, len: len, offset: cut.offset, last: last, cause: region.cause },
                    long: region.len.get_bits::<2>(12).any(),
                },
            };
        }
        self.rows.re.next = go;
        self.rows.raddr.next = cut.frame.get_bits::<23>(1);
        self.stages[0].d.next = go;
        self.stages[1].d.next = self.stages[0].q.val();
        // 1: it is being read.
        if self.stages[0].q.val() {
            self.steps[1].d.next = self.steps[0].q.val();
        }
        // 2: the frame above, the virtual address below.
        let step = self.steps[1].q.val();
        let pair = self.rows.rdata.val();
        let frame = if step.upper { pair.get_bits::<FRAME>(FRAME) } else { pair.get_bits::<FRAME>(0) };
        let va = step.piece.chunk.iova;
        let paged: Bits<48> = match step.shift {
            12 => cat!(48; frame, va.get_bits::<12>(0)),
            16 => cat!(48; frame.get_bits::<32>(4), va.get_bits::<16>(0)),
            21 => cat!(48; frame.get_bits::<27>(9), va.get_bits::<21>(0)),
            _ => cat!(48; frame.get_bits::<18>(18), va.get_bits::<30>(0)),
        };
        let early = self.early_valid.val();
        self.free.next = !self.stages[1].q.val();
        if early {
            let chunk = self.early.val();
            self.result.d.next = Piece { chunk: chunk, long: chunk.len.get_bits::<2>(12).any() };
        } else if self.stages[1].q.val() {
            self.result.d.next = step.piece;
            if !step.direct {
                self.result.d.next.chunk.iova = paged.cast::<64>();
            }
        }
        for i in 0..2 {
            let early = early && self.early_port.val() == (i == 1);
            self.done[i].d.next = early || self.stages[1].q.val() && step.port == (i == 1);
            self.valid[i].next = self.done[i].q.val();
        }
        self.piece.next = self.result.q.val();
    }
}
