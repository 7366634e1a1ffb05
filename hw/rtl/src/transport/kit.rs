//! Tests only: messages as the bytes of a port, and back by field name.

use hdl::prelude::*;
use std::collections::BTreeMap;
use verilate::Model;

/// Announces a packet of a QP in half of the cycles, rightly or not.
pub fn announce(m: &mut Model) {
    let noise = m.cycle().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    m.set("soon_valid", noise >> 40 & 1);
    m.set("soon", noise >> 50 & 3);
}

/// The bytes of a port that carries `value`.
pub fn bytes_of<T: Synth>(value: T) -> Vec<u8> {
    let text = format!("{:x}", value.verilog());
    let digits = text.rsplit("'h").next().unwrap().trim().to_string();
    let mut bytes: Vec<u8> = digits
        .as_bytes()
        .rchunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).expect("hex digits"))
        .collect();
    bytes.resize(T::BITS.div_ceil(8), 0);
    bytes
}

/// The fields of a struct port by name (`"reply.psn"`), zero ones left out: what a failing test shows.
pub fn fields_of<T: Synth>(bytes: &[u8]) -> BTreeMap<String, u128> {
    fn walk(kind: &TypeKind, name: &str, at: &mut usize, bytes: &[u8], map: &mut BTreeMap<String, u128>) {
        let mut leaf = |bits: usize| {
            let bit = |i: usize| (bytes[(*at + i) / 8] >> ((*at + i) % 8)) as u128 & 1;
            let value = (0..bits.min(128)).fold(0, |v, i| v | bit(i) << i);
            if value != 0 {
                map.insert(name.into(), value);
            }
            *at += bits;
        };
        match kind {
            TypeKind::Bits(n) => leaf(*n),
            TypeKind::Composite(fields) => {
                for f in fields {
                    let dot = if name.is_empty() { "" } else { "." };
                    walk(&f.kind.kind, &format!("{name}{dot}{}", f.fieldname), at, bytes, map)
                }
            }
            other => panic!("no messages of {other:?}"),
        }
    }
    let mut map = BTreeMap::new();
    walk(&T::descriptor().kind, "", &mut 0, bytes, &mut map);
    map
}

/// Sets a field of a table row.
pub fn put(row: &mut [u8; 64], field: abi::Field, value: u64) {
    field.set(row, value)
}

/// Lint options of this room's models.
pub fn options() -> verilate::Options {
    verilate::Options { ..Default::default() }
}

/// A read port of a block under test: the block asks, a closure answers, two cycles later.
pub struct ReadPort<K> {
    re: verilate::Port,
    keys: Vec<verilate::Port>,
    outs: Vec<verilate::Port>,
    pipe: [Option<K>; 2],
}

impl<const N: usize> ReadPort<[u64; N]> {
    /// Ports `re` and `keys` of the block ask; `outs` take the answer.
    pub fn new(m: &verilate::Model, re: &str, keys: [&str; N], outs: &[&str]) -> Self {
        ReadPort {
            re: m.port(re),
            keys: keys.map(|k| m.port(k)).into(),
            outs: outs.iter().map(|o| m.port(o)).collect(),
            pipe: [None; 2],
        }
    }

    /// Before the evaluation of a cycle.
    pub fn drive(&mut self, m: &mut verilate::Model, answer: impl FnOnce([u64; N]) -> Vec<Vec<u8>>) {
        if let Some(key) = self.pipe[1] {
            for (port, bytes) in self.outs.iter().zip(answer(key)) {
                m.set_bytes(*port, &bytes);
            }
        }
    }

    /// After it.
    pub fn observe(&mut self, m: &verilate::Model) {
        self.pipe[1] = self.pipe[0];
        let key = || std::array::from_fn(|i| m.get(self.keys[i]));
        self.pipe[0] = m.bit(self.re).then(key);
    }
}

/// A table's row from its bytes.
pub fn row_of(row: &[u8; 64]) -> Bits<512> {
    let mut wide = Bits::<512>::default();
    for i in 0..512 {
        wide = wide.replace_bit(i, row[i / 8] >> (i % 8) & 1 != 0);
    }
    wide
}

/// Writes a table row over the table bus of a block under test.
pub fn write_row(m: &mut verilate::Model, table: u8, index: u64, row: &[u8; 64]) {
    use crate::msg::TableReq;
    let req = TableReq { table: (table as u64).to_bits(), index: index.to_bits(), write: true, row: row_of(row) };
    m.set_bytes("table.req", &bytes_of(req));
    m.set("table.valid", 1);
    m.eval();
    while !m.bit("table.ready") {
        m.tick();
    }
    m.tick();
    m.set("table.valid", 0);
}

/// Reads a table row over the table bus of a block under test.
pub fn read_row(m: &mut verilate::Model, table: u8, index: u64) -> [u8; 64] {
    use crate::msg::TableReq;
    let req = TableReq { table: (table as u64).to_bits(), index: index.to_bits(), write: false, row: 0.into() };
    m.set_bytes("table.req", &bytes_of(req));
    m.set("table.valid", 1);
    m.eval();
    while !m.bit("table.ready") {
        m.tick();
    }
    m.tick();
    m.set("table.valid", 0);
    m.eval();
    for _ in 0..100 {
        if m.bit("table.rvalid") {
            return m.bytes("table.rdata").try_into().unwrap();
        }
        m.tick();
    }
    panic!("no row came");
}
