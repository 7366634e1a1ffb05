//! What the command prints: tables and numbers in fitting units.

use anyhow::Context;
use comfy_table::{Table, presets::UTF8_BORDERS_ONLY};
use std::io::Write;

pub(crate) use driver::note;

/// A table of `rows` under `header`.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut t = Table::new();
    t.load_style(UTF8_BORDERS_ONLY).set_header(header.to_vec());
    rows.iter().for_each(|r| {
        t.add_row(r.clone());
    });
    t.to_string()
}

/// Prints `text` on standard output. A reader that has gone away does not want it: no error.
pub fn say(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot write to standard output"),
    }
}

/// `n` and what they are, in its plural.
pub fn count(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Gb/s of `bytes` in `ns`.
pub fn gbps(bytes: u64, ns: f64) -> f64 {
    bytes as f64 * 8.0 / ns
}

/// The `q` quantile (0 to 1) of `values`, which it sorts.
pub fn quantile(values: &mut [f64], q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * q).round() as usize]
}

/// Payload share of the line: `mtu` bytes of payload in a frame with `overhead` bytes of headers, FCS, preamble and gap.
pub fn payload_limit(mtu: u64, ip6: bool, vlan: bool) -> f64 {
    let overhead = 82 + if ip6 { 20 } else { 0 } + if vlan { 4 } else { 0 };
    mtu as f64 / (mtu + overhead) as f64
}
