//! The time from the creation of a pod to its Running, seen by a watching client; and from its deletion to
//! its end.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

use super::cluster::Cluster;
use super::report::Report;
use crate::http::{Connection, Watch};

const PODS: &str = "/api/v1/namespaces/default/pods";
const BATCH: usize = 25;

pub fn measure(binary: &Path, runs: usize) -> Result<Report> {
    let mut cluster = Cluster::new(binary)?;
    cluster.start(&[])?;
    let access = cluster.access()?;
    let mut connection = access.connect()?;
    let listed = connection.json("GET", PODS, None)?;
    let from = listed["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
    let mut watch = access.connect()?.watch(&format!("{PODS}?watch=true&resourceVersion={from}"))?;
    // The first batch warms caches, as they are on a busy node.
    batch(&mut connection, &mut watch, &mut Times::default(), "warm-up", BATCH.min(runs))?;
    let mut times = Times::default();
    for begin in (0..runs).step_by(BATCH) {
        batch(&mut connection, &mut watch, &mut times, &format!("pod-{begin}"), BATCH.min(runs - begin))?;
    }
    let mut report = Report::new("pod-start");
    report.add_times("create to bound", &times.bound);
    report.add_times("create to Running", &times.running);
    report.add_times("delete to gone", &times.gone);
    Ok(report)
}

#[derive(Default)]
struct Times {
    bound: Vec<Duration>,
    running: Vec<Duration>,
    gone: Vec<Duration>,
}

/// Creates the pods one after the other and waits for each; then deletes them in the same way. If a pod were
/// deleted at once, its process might not yet handle the signal that asks it to end.
fn batch(
    connection: &mut Connection,
    watch: &mut Watch,
    times: &mut Times,
    name: &str,
    count: usize,
) -> Result<()> {
    let names: Vec<String> = (0..count).map(|n| format!("{name}-{n}")).collect();
    for name in &names {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"containers": [{"name": "web", "image": "knarr.local/web:v1"}]},
        });
        let begun = Instant::now();
        connection.json("POST", PODS, Some(&pod))?;
        times.bound.push(until(watch, name, begun, |_, pod| pod["spec"]["nodeName"].is_string())?);
        times.running.push(until(watch, name, begun, |_, pod| pod["status"]["phase"] == "Running")?);
    }
    std::thread::sleep(Duration::from_secs(1));
    for name in &names {
        let begun = Instant::now();
        connection.json("DELETE", &format!("{PODS}/{name}"), None)?;
        times.gone.push(until(watch, name, begun, |kind, _| kind == "DELETED")?);
    }
    Ok(())
}

fn until(
    watch: &mut Watch,
    name: &str,
    begun: Instant,
    good: impl Fn(&str, &Value) -> bool,
) -> Result<Duration> {
    loop {
        let event = watch.next()?;
        let kind = event["type"].as_str().unwrap_or_default();
        if event["object"]["metadata"]["name"] == name && good(kind, &event["object"]) {
            return Ok(begun.elapsed());
        }
    }
}
