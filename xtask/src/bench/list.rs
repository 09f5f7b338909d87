//! One LIST of many pods, and the memory for holding them.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::cluster::Cluster;
use super::report::Report;
use super::{process, report};
use crate::http::Access;

const PODS: &str = "/api/v1/namespaces/default/pods";
const WRITERS: usize = 16;
const REST: Duration = Duration::from_secs(60);

pub fn measure(binary: &Path, runs: usize, objects: usize) -> Result<Report> {
    let mut cluster = Cluster::new(binary)?;
    cluster.start(&["--disable-node"])?;
    let access = cluster.access()?;
    let pid = cluster.pid()?;
    let before = process::memory(pid)?;
    let begun = Instant::now();
    fill(&access, objects)?;
    let filled = begun.elapsed();
    // Writes leave garbage that is collected soon after.
    std::thread::sleep(Duration::from_secs(5));
    let held = process::memory(pid)?;

    let mut connection = access.connect()?;
    let (mut times, mut bytes) = (Vec::new(), 0);
    for _ in 0..runs {
        let begun = Instant::now();
        let body = connection.send("GET", PODS, None)?;
        times.push(begun.elapsed());
        bytes = body.len();
    }
    let list: Value = serde_json::from_slice(&connection.send("GET", PODS, None)?)?;
    let count = list["items"].as_array().map_or(0, Vec::len);
    ensure!(count == objects, "{count} pods were listed, not {objects}");
    let after = process::memory(pid)?;
    // Components release the memory of what they have read after a while.
    std::thread::sleep(REST);
    let rest = process::memory(pid)?;

    let megabytes = bytes as f64 / 1e6;
    let mut report = Report::new("list");
    report.add("pods", objects as f64, "pods");
    report.add("answer", megabytes, "MB");
    report.add_times("LIST", &times);
    let median = report::percentile(&times, 0.5).as_secs_f64();
    report.add("LIST", megabytes / median.max(1e-9), "MB/s");
    report.add("creation of all", objects as f64 / filled.as_secs_f64(), "pods/s");
    report.add("RSS before", before.rss, "MB");
    report.add("RSS with the pods", held.rss, "MB");
    report.add("RSS after the lists", after.rss, "MB");
    report.add("highest RSS", after.peak, "MB");
    report.add("RSS at rest", rest.rss, "MB");
    let each = |rss: f64| (rss - before.rss) * 1000.0 / objects as f64;
    report.add("held a pod", each(held.rss), "kB");
    report.add("held a pod at rest", each(rest.rss), "kB");
    Ok(report)
}

fn fill(access: &Access, objects: usize) -> Result<()> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..WRITERS)
            .map(|writer| {
                scope.spawn(move || {
                    let mut connection = access.connect()?;
                    for number in (writer..objects).step_by(WRITERS) {
                        connection.send("POST", PODS, Some(pod(number).to_string().as_bytes()))?;
                    }
                    anyhow::Ok(())
                })
            })
            .collect();
        for thread in threads {
            thread.join().ok().context("a writer panicked")??;
        }
        Ok(())
    })
}

/// Returns a pod like those of a Deployment. It names no existing scheduler, so that the pods stay unbound.
pub(super) fn pod(number: usize) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": format!("web-5d4f8c7b9-{number:05}"),
            "labels": {"app": "web", "release": "stable", "tier": "frontend", "pod-template-hash": "5d4f8c7b9"},
            "annotations": {"example.com/config-hash": "0f343b0931126a20f133d67c2b018a3b"},
        },
        "spec": {
            "schedulerName": "nobody",
            "containers": [{
                "name": "web",
                "image": "knarr.local/web:v1",
                "env": [
                    {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                    {"name": "LOG_LEVEL", "value": "info"},
                ],
                "ports": [{"name": "http", "containerPort": 80}],
                "readinessProbe": {"httpGet": {"path": "/health.html", "port": "http"}, "periodSeconds": 2},
                "livenessProbe": {"httpGet": {"path": "/health.html", "port": "http"}, "periodSeconds": 5},
                "resources": {"requests": {"cpu": "20m", "memory": "16Mi"}, "limits": {"cpu": "200m", "memory": "64Mi"}},
                "volumeMounts": [{"name": "config", "mountPath": "/etc/web"}],
            }],
            "volumes": [{"name": "config", "configMap": {"name": "web-config"}}],
        },
    })
}
