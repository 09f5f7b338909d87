//! The scheduler's core without an API: pods scheduled per second on thousands of nodes, by the shape of the
//! pods.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::report::Report;

pub fn measure(nodes: usize, pods: usize) -> Result<Report> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["run", "--release", "-q", "-p", "knarr-scheduler", "--example", "core", "--"])
        .args([nodes.to_string(), pods.to_string()])
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    ensure!(output.status.success(), "the benchmark ended with {}", output.status);
    let mut report = Report::new("scheduler-core");
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let result: Value = serde_json::from_str(line).with_context(|| format!("not JSON: {line}"))?;
        let name = result["workload"].as_str().unwrap_or_default();
        let number = |key: &str| result[key].as_f64().unwrap_or(0.0);
        report.add(&format!("{name} pods"), number("pods_per_second"), "/s");
        report.add(&format!("{name} p50"), number("p50_us"), "us");
        report.add(&format!("{name} p99"), number("p99_us"), "us");
    }
    Ok(report)
}
