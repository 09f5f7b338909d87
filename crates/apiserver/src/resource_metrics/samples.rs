//! Two measurements of a node, and the usage between them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use knarr_api::kind::Kind;
use knarr_apimachinery::quantity::{Format, Quantity};
use serde_json::{Value, json};

use knarr_registry::metadata::rfc3339;

/// The cumulative CPU time and the current memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    pub at: Timestamp,
    pub cpu_nanos: u64,
    pub memory: u64,
}

/// The summary of a kubelet at one moment.
#[derive(Debug)]
pub struct Snapshot {
    pub at: Timestamp,
    node: Option<Point>,
    /// The containers, by the uid of their pod.
    pods: BTreeMap<String, BTreeMap<String, Point>>,
}

/// The last two measurements of a node.
#[derive(Debug, Clone)]
pub struct Pair {
    pub old: Arc<Snapshot>,
    pub new: Arc<Snapshot>,
}

impl Snapshot {
    /// Parses the response of `/stats/summary`.
    pub fn parse(summary: &Value, at: Timestamp) -> Self {
        let array = |v: &Value| v.as_array().cloned().unwrap_or_default();
        let container = |c: &Value| Some((c["name"].as_str()?.to_owned(), point(c)?));
        let pods = array(&summary["pods"]).into_iter().filter_map(|pod| {
            let uid = pod["podRef"]["uid"].as_str()?.to_owned();
            Some((uid, array(&pod["containers"]).iter().filter_map(container).collect()))
        });
        Self { at, node: point(&summary["node"]), pods: pods.collect() }
    }
}

fn point(stats: &Value) -> Option<Point> {
    Some(Point {
        at: stats["cpu"]["time"].as_str()?.parse().ok()?,
        cpu_nanos: stats["cpu"]["usageCoreNanoSeconds"].as_u64()?,
        memory: stats["memory"]["workingSetBytes"].as_u64()?,
    })
}

/// Returns the usage between two points and the interval between them; `None` if a restart lies between.
fn usage(old: &Point, new: &Point) -> Option<(Value, Duration)> {
    let window = Duration::try_from(new.at.duration_since(old.at)).ok().filter(|w| !w.is_zero())?;
    let used = i128::from(new.cpu_nanos.checked_sub(old.cpu_nanos)?);
    let nanos = used * 1_000_000_000 / i128::try_from(window.as_nanos()).ok()?;
    let memory = i64::try_from(new.memory).unwrap_or(i64::MAX);
    let (cpu, memory) = (
        Quantity::from_nanos(nanos, Format::DecimalSI).to_api().0,
        Quantity::new(memory, Format::BinarySI).to_api().0,
    );
    Some((json!({"cpu": cpu, "memory": memory}), window))
}

/// Formats a duration as the API does: `15.02s`, `1m0.5s`.
fn shown(window: Duration) -> String {
    let millis = window.as_millis();
    let (minutes, rest) = (millis / 60_000, millis % 60_000);
    let (seconds, fraction) = (rest / 1000, rest % 1000);
    let fraction = format!(".{fraction:03}");
    let fraction = fraction.trim_end_matches('0').trim_end_matches('.');
    let minutes = if minutes > 0 { format!("{minutes}m") } else { String::new() };
    format!("{minutes}{seconds}{fraction}s")
}

fn object<K: Kind>(of: &K, at: Timestamp, window: Duration) -> Value {
    let mut metadata = json!({"name": of.name(), "creationTimestamp": rfc3339(at)});
    if !of.namespace().is_empty() {
        metadata["namespace"] = of.namespace().into();
    }
    if let Some(labels) = of.meta().labels.as_ref().filter(|l| !l.is_empty()) {
        metadata["labels"] = json!(labels);
    }
    json!({"metadata": metadata, "timestamp": rfc3339(at), "window": shown(window)})
}

impl Pair {
    pub fn node(&self, node: &Node) -> Option<Value> {
        let new = self.new.node?;
        let (usage, window) = usage(&self.old.node?, &new)?;
        let mut value = object(node, new.at, window);
        value["usage"] = usage;
        Some(value)
    }

    /// Returns the usage of a pod; `None` unless all its containers are measured, because a part would look like low
    /// usage.
    pub fn pod(&self, pod: &Pod) -> Option<Value> {
        let (old, new) = (self.old.pods.get(pod.uid())?, self.new.pods.get(pod.uid())?);
        let running = pod.status.as_ref()?.container_statuses.as_ref()?;
        let mut running = running.iter().filter(|c| c.state.as_ref().is_some_and(|s| s.running.is_some()));
        if !running.all(|c| new.contains_key(&c.name)) {
            return None;
        }
        let mut containers = Vec::new();
        let (mut at, mut longest) = (None, Duration::ZERO);
        for (name, point) in new {
            let (usage, window) = usage(old.get(name)?, point)?;
            containers.push(json!({"name": name, "usage": usage}));
            longest = longest.max(window);
            at = at.max(Some(point.at));
        }
        let mut value = object(pod, at?, longest);
        value["containers"] = containers.into();
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(second: i64, cpu: u64) -> Snapshot {
        let at = Timestamp::from_second(second).unwrap();
        let stats = json!({"cpu": {"time": rfc3339(at), "usageCoreNanoSeconds": cpu},
            "memory": {"workingSetBytes": 8192}});
        let mut container = stats.clone();
        container["name"] = "web".into();
        let pods = json!([{"podRef": {"uid": "u1"}, "containers": [container]}]);
        Snapshot::parse(&json!({"node": stats, "pods": pods}), at)
    }

    fn pair(old: (i64, u64), new: (i64, u64)) -> Pair {
        Pair { old: Arc::new(summary(old.0, old.1)), new: Arc::new(summary(new.0, new.1)) }
    }

    #[test]
    fn use_is_measured_between_two_moments() {
        let node: Node =
            serde_json::from_value(json!({"metadata": {"name": "n1", "labels": {"a": "b"}}})).unwrap();
        let item = pair((100, 1_000_000_000), (110, 3_500_000_000)).node(&node).unwrap();
        assert_eq!(item["usage"], json!({"cpu": "250m", "memory": "8Ki"}));
        assert_eq!(item["window"], "10s");
        assert_eq!(item["metadata"]["labels"]["a"], "b");
        assert_eq!(pair((100, 5), (110, 4)).node(&node), None, "counted anew");
        assert_eq!(pair((100, 5), (100, 6)).node(&node), None, "no time in between");
    }

    #[test]
    fn a_pod_is_told_of_whole() {
        let pod = |containers: Value| -> Pod {
            serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u1"},
                "status": {"containerStatuses": containers}}))
            .unwrap()
        };
        let running = |name: &str| {
            json!({"name": name, "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "state": {"running": {}}})
        };
        let measured = pair((100, 0), (102, 1_000_000));
        let item = measured.pod(&pod(json!([running("web")]))).unwrap();
        assert_eq!(item["containers"], json!([{"name": "web", "usage": {"cpu": "500u", "memory": "8Ki"}}]));
        assert_eq!(measured.pod(&pod(json!([running("web"), running("side")]))), None);
        let mut other = pod(json!([]));
        other.metadata.uid = Some("u2".into());
        assert_eq!(measured.pod(&other), None);
    }

    #[test]
    fn durations() {
        for (millis, text) in [(15_020, "15.02s"), (1000, "1s"), (60_500, "1m0.5s"), (1, "0.001s")] {
            assert_eq!(shown(Duration::from_millis(millis)), text);
        }
    }
}
