//! Creates per second. Each create is answered only once it is durable.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;

use super::cluster::Cluster;
use super::report::Report;
use crate::http::Access;

const WRITERS: [usize; 3] = [1, 8, 64];
const VALUE_BYTES: usize = 1024;

pub fn measure(binary: &Path, seconds: usize) -> Result<Report> {
    let mut cluster = Cluster::new(binary)?;
    cluster.start(&["--disable-node"])?;
    let access = cluster.access()?;
    let mut report = Report::new("creates");
    for writers in WRITERS {
        let limit = Duration::from_secs(seconds as u64);
        let begun = Instant::now();
        let times = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..writers)
                .map(|writer| {
                    scope.spawn({
                        let access = access.clone();
                        move || write(&access, &format!("{writers}-{writer}"), limit)
                    })
                })
                .collect();
            let mut all = Vec::new();
            for thread in threads {
                all.extend(thread.join().ok().context("a writer panicked")??);
            }
            anyhow::Ok(all)
        })?;
        let passed = begun.elapsed().as_secs_f64();
        report.add(&format!("{writers} writers"), times.len() as f64 / passed, "creates/s");
        report.add_times(&format!("{writers} writers"), &times);
    }
    Ok(report)
}

fn write(access: &Access, name: &str, limit: Duration) -> Result<Vec<Duration>> {
    let mut connection = access.connect()?;
    let mut times = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < limit {
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("{name}-{}", times.len())},
            "data": {"value": "x".repeat(VALUE_BYTES)},
        })
        .to_string();
        let one = Instant::now();
        connection.send("POST", "/api/v1/namespaces/default/configmaps", Some(object.as_bytes()))?;
        times.push(one.elapsed());
    }
    Ok(times)
}
