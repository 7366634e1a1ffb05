//! Writes the rows of the conformance tests into `docs/conformance.md`: `cargo run -p ferroce-tests --example conformance`. A test of
//! `docs.rs` compares the two.

use ferroce_tests::conformance::{MARKS, page};

fn main() -> std::io::Result<()> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/conformance.md");
    let text = std::fs::read_to_string(path)?;
    let [from, to] = MARKS.map(|mark| text.find(mark).expect("the page has both marks"));
    std::fs::write(path, format!("{}{}{}", &text[..from + MARKS[0].len()], page(), &text[to..]))
}
