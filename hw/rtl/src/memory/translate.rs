//! The memory translation table: page frames, and the bus address they make.
//!
//! For both access ports, through [`super::mmu`]. Two frames stand in a row of 72 bits, the width of an UltraRAM.
//! Frames come in through the table loader's port, one a cycle.
//!
//! ```text
//! cycle      0         1           2       3
//! region  waits | cut, read | read | compose: piece
//! early                              taken: piece
//! ```
//! Regions wait in a FIFO that has room for all that the ports may have under way. A piece of a region ends with it or with its
//! page. One piece a cycle; it goes into the memory of its port behind logic, not a register. Cannot deadlock: pieces cannot be refused, and a region waits only for those before it and in the
//! cycles of a write (so that no row is read while it is written).

use super::{access::Piece, keys::Region};
use crate::{msg::Chunk, stream::Fifo};
use abi::table::PAGE_FRAME;
use hdl::prelude::*;

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
    /// A chunk that needs no translation may be given now.
    pub free: Signal<Out, Bit>,
    /// It is given, for this port.
    pub early: Signal<In, Chunk>,
    pub early_port: Signal<In, Bit>,
    pub early_valid: Signal<In, Bit>,
    /// A piece, for the port whose `valid` is up.
    pub piece: Signal<Out, Piece>,
    pub valid: Arr<Signal<Out, Bit>, 2>,
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
    /// A write of the table, in this cycle.
    write: Reg<Bit>,
    entry: DFF<Bits<24>>,
    frame: DFF<Bits<PAGE_FRAME>>,
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
            mtt_we: Default::default(),
            mtt_addr: Default::default(),
            mtt_frame: Default::default(),
            rows: RamBe::default().rows(frames / 2).registered().style("ultra"),
            regions: Fifo::new(REGIONS),
            begun: Default::default(),
            cut: Default::default(),
            stages: Default::default(),
            steps: Default::default(),
            write: Default::default(),
            entry: Default::default(),
            frame: Default::default(),
            _frames: Hidden(frames),
        }
    }
}

impl Logic for Translate {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, begun, stages, write);
        dff_setup!(self, clock, cut, steps, entry, frame);
        clock!(self, clock, rows);
        clock_reset!(self, clock, rst, regions);

        // Writes, a cycle later.
        self.write.d.next = self.mtt_we.val();
        self.entry.d.next = self.mtt_addr.val();
        self.frame.d.next = self.mtt_frame.val();
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
        let last = region.refused || cut.left.cast::<15>() <= cut.room;
        let len = if last { cut.left } else { cut.room.get_bits::<14>(0) };
        let go = self.regions.m.valid.val() && !write;
        let direct = region.contiguous || region.refused;
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
                    chunk: Chunk {
                        iova: cut.iova,
                        len: len,
                        offset: cut.offset,
                        last: last,
                        refused: region.refused,
                        cause: region.cause,
                    },
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
        let frame = if step.upper { pair.get_bits::<PAGE_FRAME>(PAGE_FRAME) } else { pair.get_bits::<PAGE_FRAME>(0) };
        let va = step.piece.chunk.iova;
        let paged: Bits<48> = match step.shift {
            12 => cat!(48; frame, va.get_bits::<12>(0)),
            16 => cat!(48; frame.get_bits::<32>(4), va.get_bits::<16>(0)),
            21 => cat!(48; frame.get_bits::<27>(9), va.get_bits::<21>(0)),
            _ => cat!(48; frame.get_bits::<18>(18), va.get_bits::<30>(0)),
        };
        let here = self.stages[1].q.val();
        self.free.next = !here;
        let mut piece = step.piece;
        if !step.direct {
            piece.chunk.iova = paged.cast::<64>();
        }
        if !here {
            let chunk = self.early.val();
            piece = Piece { chunk: chunk, long: chunk.len.get_bits::<2>(12).any() };
        }
        self.piece.next = piece;
        for i in 0..2 {
            let early = self.early_valid.val() && self.early_port.val() == (i == 1);
            self.valid[i].next = early || here && step.port == (i == 1);
        }
    }
}
