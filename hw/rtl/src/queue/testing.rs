//! What tests of blocks with a `table` port share.

use crate::msg::TableReq;
use hdl::prelude::*;
use verilate::{Model, bits};

/// One access of `table`, with no other actor; the answer of a read.
fn access(m: &mut Model, table: u8, index: usize, row: Option<&[u8; 64]>) -> [u8; 64] {
    let req = TableReq {
        table: bits::<4>(table as u64),
        index: bits::<24>(index as u64),
        write: row.is_some(),
        row: 0.into(),
    };
    m.set_bytes("table.req", &bits::of(req));
    m.set_bytes("table.req.row", row.unwrap_or(&[0; 64]));
    m.set("table.valid", 1);
    m.eval();
    let start = m.cycle();
    while !m.bit("table.ready") {
        m.tick();
        assert!(m.cycle() - start < 10_000, "the table port is never ready");
    }
    m.tick();
    m.set("table.valid", 0);
    m.eval();
    let mut answer = [0; 64];
    if row.is_none() {
        while !m.bit("table.rvalid") {
            m.tick();
            assert!(m.cycle() - start < 10_000, "the table port never answers");
        }
        answer.copy_from_slice(m.bytes("table.rdata"));
        m.tick();
    }
    answer
}

/// Writes a row over the block's table port.
pub fn write_row(m: &mut Model, index: usize, row: &[u8; 64]) {
    access(m, 0, index, Some(row));
}

/// Reads one.
pub fn read_row(m: &mut Model, index: usize) -> [u8; 64] {
    access(m, 0, index, None)
}
