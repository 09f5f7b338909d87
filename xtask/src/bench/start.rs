//! The time from the start of the process to a Ready node.

use std::path::Path;

use anyhow::{Result, bail};

use super::cluster::Cluster;
use super::report::Report;

pub fn measure(binary: &Path, runs: usize) -> Result<Report> {
    let (mut first, mut next) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        let mut cluster = Cluster::new(binary)?;
        first.push(cluster.start(&[])?);
        check(&cluster)?;
        cluster.stop()?;
        next.push(cluster.start(&[])?);
        check(&cluster)?;
    }
    let mut report = Report::new("start");
    report.add_times("first start", &first);
    report.add_times("next start", &next);
    Ok(report)
}

/// Checks the node itself, in addition to the server's report.
fn check(cluster: &Cluster) -> Result<()> {
    let nodes = cluster.access()?.connect()?.json("GET", "/api/v1/nodes", None)?;
    let conditions = nodes["items"][0]["status"]["conditions"].as_array().cloned().unwrap_or_default();
    if !conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True") {
        bail!("no node is Ready: {nodes}");
    }
    Ok(())
}
