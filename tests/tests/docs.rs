//! Documents that speak of tests and of the contract are true.

use ferroce_tests::conformance::{MARKS, TABLES, page};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn sources(folder: &Path, all: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() && path.file_name().unwrap() != "target" {
            sources(&path, all);
        } else if path.extension().is_some_and(|e| e == "rs") {
            all.push(path);
        }
    }
}

/// The files with a test function of each name.
fn tests() -> BTreeMap<String, Vec<PathBuf>> {
    let mut files = Vec::new();
    ["hw", "host", "sim", "tests", "firmware"].iter().for_each(|f| sources(&top().join(f), &mut files));
    let mut tests: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let mut lines = text.lines().map(str::trim);
        while lines.any(|l| l == "#[test]") {
            let name = lines.by_ref().find_map(|l| l.strip_prefix("fn ")).unwrap();
            tests.entry(name[..name.find('(').unwrap()].into()).or_default().push(path.clone());
        }
    }
    tests
}

/// Words of a table cell in backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// `docs/conformance.md`: a heading, a table whose head says where its tests are (`module` or a path), a rule in each row and
/// the names of its tests, as `test` or `suite::test`, or `suite` for all of it.
#[test]
fn every_rule_of_conformance_has_its_test() {
    let tests = tests();
    let text = std::fs::read_to_string(top().join("docs/conformance.md")).unwrap();
    let (mut module, mut rules, mut missing) = (String::new(), 0, Vec::new());
    // What is printed from the rows names no tests that are functions of their own.
    let [from, to] = MARKS.map(|mark| text.find(mark).expect("the page has both marks"));
    let by_hand = [&text[..from], &text[to..]].concat();
    for line in by_hand.lines().filter(|l| l.starts_with('|') && !l.starts_with("|--")) {
        let cells: Vec<_> = line.trim_matches('|').split(" | ").collect();
        let [rule, names] = cells[..] else { panic!("a row of {} cells: {line}", cells.len()) };
        if rule.trim() == "rule" {
            module = quoted(names).next().unwrap_or("").replace("::tests", "").replace("::", "/");
            continue;
        }
        rules += 1;
        assert!(quoted(names).count() > 0, "a rule without a test: {line}");
        for name in quoted(names) {
            let (place, test) = name.rsplit_once("::").unwrap_or((&module, name));
            let here = |p: &PathBuf| p.with_extension("").to_string_lossy().contains(place);
            let suite = top().join(format!("tests/tests/{name}.rs")).exists();
            if !suite && !tests.get(test).is_some_and(|files| files.iter().any(here)) {
                missing.push(format!("{name} (in {place})"));
            }
        }
    }
    assert!(rules > 60, "only {rules} rules were read");
    assert!(missing.is_empty(), "named in docs/conformance.md, but not there: {missing:#?}");
}

#[test]
fn the_rows_of_conformance_are_up_to_date() {
    let text = std::fs::read_to_string(top().join("docs/conformance.md")).unwrap();
    let [from, to] = MARKS.map(|mark| text.find(mark).expect("the page has both marks"));
    let rows = &text[from + MARKS[0].len()..to];
    let different = page().lines().zip(rows.lines()).position(|(a, b)| a != b);
    let how = "cargo run -p ferroce-tests --example conformance";
    assert!(rows == page(), "the rows of docs/conformance.md are out of date (line {different:?} of them): {how}");
    let mut names: Vec<_> = TABLES.iter().flat_map(|t| t.rows.iter().map(|r| (t.module, r.name))).collect();
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count, "each row has a test of its own");
}

/// Links of the documents lead to files.
#[test]
fn links_lead_somewhere() {
    let mut dead = Vec::new();
    for page in ["README.md", "docs/architecture.md", "docs/rtl-style.md", "docs/conformance.md", "hw/hdl/README.md"] {
        let path = top().join(page);
        let text = std::fs::read_to_string(&path).unwrap();
        for (at, _) in text.match_indices("](") {
            let link = &text[at + 2..][..text[at + 2..].find(')').unwrap()];
            let file = link.split('#').next().unwrap();
            if !link.starts_with("http") && !path.parent().unwrap().join(file).exists() {
                dead.push(format!("{page}: {link}"));
            }
        }
    }
    assert!(dead.is_empty(), "{dead:#?}");
}
