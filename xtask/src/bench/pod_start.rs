//! From the creation of a pod to its Running, seen by a client that watches; and from its deletion to its end.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

use super::cluster::Cluster;
use super::http::{Connection, Watch};
use super::report::Report;

const PODS: &str = "/api/v1/namespaces/default/pods";

pub fn measure(binary: &Path, runs: usize) -> Result<Report> {
    let mut cluster = Cluster::new(binary)?;
    cluster.start(&[])?;
    let access = cluster.access()?;
    let mut connection = access.connect()?;
    let listed = connection.json("GET", PODS, None)?;
    let from = listed["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
    let mut watch = access.connect()?.watch(&format!("{PODS}?watch=true&resourceVersion={from}"))?;
    // The first one warms caches that a node at work has warm.
    one(&mut connection, &mut watch, "warm-up")?;
    let mut times = Times::default();
    for number in 0..runs {
        let (bound, running, gone) = one(&mut connection, &mut watch, &format!("pod-{number}"))?;
        times.bound.push(bound);
        times.running.push(running);
        times.gone.push(gone);
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

fn one(connection: &mut Connection, watch: &mut Watch, name: &str) -> Result<(Duration, Duration, Duration)> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "web", "image": "knarr.local/web:v1"}]},
    });
    let begun = Instant::now();
    connection.json("POST", PODS, Some(&pod))?;
    let bound = until(watch, name, begun, |_, pod| pod["spec"]["nodeName"].is_string())?;
    let running = until(watch, name, begun, |_, pod| pod["status"]["phase"] == "Running")?;
    let begun = Instant::now();
    connection.json("DELETE", &format!("{PODS}/{name}"), None)?;
    let gone = until(watch, name, begun, |kind, _| kind == "DELETED")?;
    Ok((bound, running, gone))
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
