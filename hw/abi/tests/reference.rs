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

/// No layout is left out.
#[test]
fn it_has_all_layouts() {
    let page = reference::page();
    let mut count = 0;
    for text in [
        include_str!("../src/cmd.rs"),
        include_str!("../src/queue.rs"),
        include_str!("../src/table.rs"),
        include_str!("../src/image.rs"),
    ] {
        // `pub mod name: 64 {`
        for head in text.lines().filter_map(|l| l.strip_prefix("    pub mod ")) {
            let (name, kind) = head.split_once(':').unwrap();
            let bytes = kind.trim().trim_end_matches(" {").parse::<usize>();
            assert!(bytes.is_err() || page.contains(&format!("\n### {name}\n")), "{name} is not in the reference");
            count += usize::from(bytes.is_ok());
        }
    }
    assert!(count > 30, "{count} layouts");
}
