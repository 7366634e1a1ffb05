//! A constant that tells designs apart: the hash of their own Verilog.

use crate::ir;
use rust_hdl::prelude::*;

/// What stands in the text while it is hashed.
const BLANK: &str = "32'h00000000 /* hash of this text with this zero */";

/// `value` is a hash (FNV-1a, folded to 32 bits) of all of the text that [`emit`](crate::emit) writes, with zero in its own
/// place: the same text has the same hash, and whoever has the text can check it.
#[derive(Clone, Debug, Default, LogicBlock)]
pub struct TextHash {
    pub value: Signal<Out, Bits<32>>,
}

impl Logic for TextHash {
    fn update(&mut self) {
        unimplemented!("a design has no text but in Verilog");
    }
    fn connect(&mut self) {
        self.value.connect();
    }
    fn hdl(&self) -> Verilog {
        let block = Some(std::any::type_name::<Self>());
        let text = format!("  assign value = {BLANK};\n");
        ir::hand_over(ir::Body::Text { block, text, reg: false, source: String::new() })
    }
}

/// Fills the hash in.
pub(crate) fn fill(text: String) -> String {
    if !text.contains(BLANK) {
        return text;
    }
    let step = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    let value = (hash >> 32) as u32 ^ hash as u32;
    text.replace(BLANK, &BLANK.replace("00000000", &format!("{value:08x}")))
}
