//! The size of the binary.

use std::path::Path;

use anyhow::{Context, Result};

use super::report::Report;

pub fn measure(binary: &Path) -> Result<Report> {
    let bytes = std::fs::metadata(binary).with_context(|| format!("cannot read {}", binary.display()))?.len();
    let mut report = Report::new("size");
    report.add("binary", bytes as f64 / 1e6, "MB");
    Ok(report)
}
