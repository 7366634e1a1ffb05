//! What the translation of a kernel knows at each point. Its methods stand with what they translate: statements in
//! `statement`, expressions in `value`.
use std::collections::HashMap;

#[derive(Default)]
pub struct Hardware {
    /// How many expressions we are inside of; there, signals are not assigned.
    pub depth: usize,
    /// Depth at which each `let mut` was declared.
    pub vars: HashMap<String, usize>,
}
