//! The committed reference page is the one that the contract prints.

#[path = "../examples/reference.rs"]
mod reference;

#[test]
fn the_page_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference.md");
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    let different = reference::page().lines().zip(committed.lines()).position(|(a, b)| a != b);
    assert!(
        committed == reference::page(),
        "docs/reference.md is out of date (line {:?}): cargo run -p abi --example reference > docs/reference.md",
        different.map(|line| line + 1)
    );
}
