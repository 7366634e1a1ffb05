//! Kernels that must not compile, and what the author is told. After a change of messages, run with
//! `TRYBUILD=overwrite` and read the difference. What rustc refuses in its own words is in `rejected/types.md`.

#[test]
fn rejected() {
    let t = trybuild::TestCases::new();
    t.compile_fail("tests/rejected/syntax.rs");
}
