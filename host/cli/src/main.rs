//! The `ferroce` command.
fn main() {}
