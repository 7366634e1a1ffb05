//! Runs a program to its end.

use std::process::Command;

/// Runs to the end and gives what the command printed; the error is everything it said.
pub(crate) fn run(command: &mut Command) -> Result<String, String> {
    let out = command.output().map_err(|e| format!("{}: {e}", command.get_program().to_string_lossy()))?;
    let (text, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    if out.status.success() { Ok(text.into_owned()) } else { Err(format!("{text}{errors}")) }
}
