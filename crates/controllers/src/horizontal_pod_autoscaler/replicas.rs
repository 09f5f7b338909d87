//! How many pods a metric requires: pure functions of pods and their measurements.
//!
//! Source: the behaviour of `k8s.io/kubernetes/pkg/controller/podautoscaler/replica_calculator.go`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use knarr_api::kind::Kind;
use knarr_apimachinery::quantity::Quantity;

use crate::settings::AutoscalerSettings;

/// One pod's value, in thousandths.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PodMetric {
    pub at: Timestamp,
    pub window: Duration,
    pub value: i64,
}

/// Values by the pods' names.
pub type Metrics = BTreeMap<String, PodMetric>;

/// How far usage may be from its target without a change, as fractions of the target.
#[derive(Debug, Clone, Copy)]
pub struct Tolerances {
    pub down: f64,
    pub up: f64,
}

impl Tolerances {
    fn within(self, ratio: f64) -> bool {
        1.0 - self.down <= ratio && ratio <= 1.0 + self.up
    }
}

/// The result of one metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proposal {
    pub replicas: i32,
    /// The measured value, in thousandths.
    pub usage: i64,
    /// The usage in percent of the request.
    pub utilization: Option<i32>,
}

/// The inputs that all metrics of one autoscaler share.
pub struct Scene<'a> {
    pub pods: &'a [Arc<Pod>],
    /// `spec.replicas` and `status.replicas` of the scale.
    pub current: i32,
    pub observed: i32,
    pub tolerances: Tolerances,
    pub settings: &'a AutoscalerSettings,
    pub now: Timestamp,
}

#[derive(Default)]
struct Groups {
    ready: usize,
    unready: BTreeSet<String>,
    missing: BTreeSet<String>,
    ignored: BTreeSet<String>,
}

fn group(scene: &Scene, metrics: &Metrics, resource: &str) -> Groups {
    let mut groups = Groups::default();
    for pod in scene.pods {
        let name = pod.name().to_owned();
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("");
        let metric = metrics.get(&name);
        match metric {
            _ if pod.metadata.deletion_timestamp.is_some() || phase == "Failed" => {
                groups.ignored.insert(name)
            }
            _ if phase == "Pending" => groups.unready.insert(name),
            None => groups.missing.insert(name),
            Some(metric) if resource == "cpu" && is_unready(pod, metric, scene.settings, scene.now) => {
                groups.unready.insert(name)
            }
            Some(_) => {
                groups.ready += 1;
                true
            }
        };
    }
    groups
}

/// Returns whether a pod's CPU usage does not count yet.
fn is_unready(pod: &Pod, metric: &PodMetric, settings: &AutoscalerSettings, now: Timestamp) -> bool {
    let Some(status) = &pod.status else { return true };
    let ready = status.conditions.iter().flatten().find(|c| c.type_ == "Ready");
    let (Some(ready), Some(start)) = (ready, status.start_time.as_ref().map(|t| t.0)) else { return true };
    let changed = ready.last_transition_time.as_ref().map_or(start, |t| t.0);
    if start.checked_add(settings.cpu_initialization).is_ok_and(|until| until > now) {
        let seen = changed.checked_add(SignedDuration::try_from(metric.window).unwrap_or_default());
        ready.status == "False" || seen.is_ok_and(|seen| metric.at < seen)
    } else {
        ready.status == "False"
            && start.checked_add(settings.initial_readiness).is_ok_and(|until| until > changed)
    }
}

/// Computes the result of a per-pod metric: `ratio` compares usage with the target, and `filler` is the value assumed
/// for a missing pod when scaling down.
fn weigh(
    scene: &Scene,
    mut metrics: Metrics,
    resource: &str,
    ratio: impl Fn(&Metrics) -> Result<(f64, i64, Option<i32>), String>,
    filler: impl Fn(&str) -> i64,
) -> Result<Proposal, String> {
    if scene.pods.is_empty() {
        return Err("no pods returned by selector while calculating replica count".to_owned());
    }
    let groups = group(scene, &metrics, resource);
    metrics.retain(|name, _| !groups.ignored.contains(name) && !groups.unready.contains(name));
    if metrics.is_empty() {
        return Err("did not receive metrics for targeted pods (pods might be unready)".to_owned());
    }
    let (first, usage, utilization) = ratio(&metrics)?;
    let propose = |replicas: i32| Ok(Proposal { replicas, usage, utilization });
    let with_unready = !groups.unready.is_empty() && first > 1.0;
    if !with_unready && groups.missing.is_empty() {
        let kept = scene.tolerances.within(first);
        return propose(if kept { scene.current } else { ceil(first * groups.ready as f64) });
    }
    let mut fill = |names: &BTreeSet<String>, value: &dyn Fn(&str) -> i64| {
        for name in names {
            let metric = PodMetric { at: scene.now, window: Duration::ZERO, value: value(name) };
            metrics.insert(name.clone(), metric);
        }
    };
    if first < 1.0 {
        fill(&groups.missing, &filler);
    } else if first > 1.0 {
        fill(&groups.missing, &|_| 0);
    }
    if with_unready {
        fill(&groups.unready, &|_| 0);
    }
    let (second, ..) = ratio(&metrics)?;
    let turned = (first < 1.0 && second > 1.0) || (first > 1.0 && second < 1.0);
    let replicas = ceil(second * metrics.len() as f64);
    let wrong = (second < 1.0 && replicas > scene.current) || (second > 1.0 && replicas < scene.current);
    propose(if scene.tolerances.within(second) || turned || wrong { scene.current } else { replicas })
}

/// Rounds up and saturates at the largest count.
fn ceil(replicas: f64) -> i32 {
    replicas.ceil() as i32
}

/// Evaluates usage as a percentage of the pods' requests.
pub fn by_utilization(
    scene: &Scene,
    metrics: Metrics,
    resource: &str,
    container: &str,
    target: i32,
) -> Result<Proposal, String> {
    let requests =
        if scene.pods.is_empty() { BTreeMap::new() } else { requests(scene.pods, container, resource)? };
    let ratio = |metrics: &Metrics| {
        let known: Vec<(i64, i64)> =
            metrics.iter().filter_map(|(name, m)| Some((m.value, *requests.get(name)?))).collect();
        let used: i64 = known.iter().map(|(used, _)| used).sum();
        let requested: i64 = known.iter().map(|(_, requested)| requested).sum();
        if requested == 0 {
            return Err("no metrics returned matched known pods".to_owned());
        }
        let percent = i32::try_from(used.saturating_mul(100) / requested).unwrap_or(i32::MAX);
        Ok((f64::from(percent) / f64::from(target), used / known.len() as i64, Some(percent)))
    };
    let full = i64::from(target.max(100));
    let filler = |name: &str| requests.get(name).copied().unwrap_or(0).saturating_mul(full) / 100;
    weigh(scene, metrics, resource, ratio, filler)
}

/// Evaluates usage per pod against a value, in thousandths. `resource` is empty for custom metrics.
pub fn by_value(scene: &Scene, metrics: Metrics, resource: &str, target: i64) -> Result<Proposal, String> {
    let ratio = |metrics: &Metrics| {
        let average = metrics.values().map(|m| m.value).sum::<i64>() / metrics.len() as i64;
        Ok((average as f64 / target as f64, average, None))
    };
    weigh(scene, metrics, resource, ratio, |_| target)
}

/// Evaluates one value for all pods together.
pub fn by_total(scene: &Scene, usage: i64, target: i64) -> Result<Proposal, String> {
    let ratio = usage as f64 / target as f64;
    let proposal = |replicas| Ok(Proposal { replicas, usage, utilization: None });
    if scene.current == 0 {
        return proposal(ceil(ratio));
    }
    if scene.tolerances.within(ratio) {
        return proposal(scene.current);
    }
    if scene.pods.is_empty() {
        let why = "no pods returned by selector while calculating replica count";
        return Err(format!("unable to calculate ready pods: {why}"));
    }
    let ready = scene.pods.iter().filter(|p| is_ready(p)).count();
    proposal(ceil(ratio * ready as f64))
}

/// Evaluates one value, divided by the number of pods.
pub fn by_share(scene: &Scene, usage: i64, target: i64) -> Proposal {
    let observed = f64::from(scene.observed);
    let ratio = usage as f64 / (target as f64 * observed);
    let replicas =
        if scene.tolerances.within(ratio) { scene.observed } else { ceil(usage as f64 / target as f64) };
    Proposal { replicas, usage: (usage as f64 / observed).ceil() as i64, utilization: None }
}

fn is_ready(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return false };
    status.phase.as_deref() == Some("Running")
        && status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
}

/// Returns what each pod requests, in thousandths.
fn requests(pods: &[Arc<Pod>], container: &str, resource: &str) -> Result<BTreeMap<String, i64>, String> {
    pods.iter().map(|pod| Ok((pod.name().to_owned(), request(pod, container, resource)?))).collect()
}

fn request(pod: &Pod, container: &str, resource: &str) -> Result<i64, String> {
    let Some(spec) = &pod.spec else { return Ok(0) };
    let milli = |q: &k8s_openapi::apimachinery::pkg::api::resource::Quantity| {
        Quantity::parse(&q.0).map(|q| q.milli_value()).unwrap_or(0)
    };
    let whole = spec.resources.as_ref().and_then(|r| r.requests.as_ref()).filter(|r| !r.is_empty());
    if let Some(requests) = whole.filter(|_| container.is_empty()) {
        let found = requests.get(resource).map(milli);
        return found
            .ok_or_else(|| format!("missing pod-level request for {resource} in Pod {}", pod.name()));
    }
    let sidecars = spec.init_containers.iter().flatten();
    let sidecars = sidecars.filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let mut sum = 0i64;
    for c in spec.containers.iter().chain(sidecars).filter(|c| container.is_empty() || c.name == container) {
        let found = c.resources.as_ref().and_then(|r| r.requests.as_ref()?.get(resource));
        let Some(found) = found else {
            let (name, pod) = (&c.name, pod.name());
            return Err(format!("missing request for {resource} in container {name} of Pod {pod}"));
        };
        sum = sum.saturating_add(milli(found));
        if !container.is_empty() {
            return Ok(sum);
        }
    }
    if container.is_empty() {
        Ok(sum)
    } else {
        Err(format!("container {container} not found in Pod {}", pod.name()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use serde_json::{Value, json};

    use super::*;
    use crate::testing::at;

    fn pod(name: &str, request: &str, status: Value) -> Arc<Pod> {
        Arc::new(
            serde_json::from_value(json!({"metadata": {"name": name},
                "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": request}}}]},
                "status": status}))
            .unwrap(),
        )
    }

    fn running() -> Value {
        let long_ago = "2025-12-31T00:00:00Z";
        json!({"phase": "Running", "startTime": long_ago,
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": long_ago}]})
    }

    fn measured(values: &[(&str, i64)]) -> Metrics {
        let metric = |value| PodMetric { at: at(0), window: Duration::from_secs(15), value };
        values.iter().map(|(name, value)| ((*name).to_owned(), metric(*value))).collect()
    }

    fn scene(pods: &[Arc<Pod>], current: i32) -> Scene<'_> {
        let tolerances = Tolerances { down: 0.1, up: 0.1 };
        static SETTINGS: LazyLock<AutoscalerSettings> = LazyLock::new(AutoscalerSettings::default);
        Scene { pods, current, observed: current, tolerances, settings: &SETTINGS, now: at(0) }
    }

    fn three() -> Vec<Arc<Pod>> {
        ["a", "b", "c"].map(|n| pod(n, "1", running())).to_vec()
    }

    #[test]
    fn utilization() {
        let pods = three();
        for (values, target, replicas, percent) in [
            ([300, 500, 700], 30, 5, 50),
            ([300, 500, 700], 50, 3, 50),
            ([300, 500, 700], 48, 3, 50),
            ([100, 100, 100], 50, 1, 10),
            ([0, 0, 0], 50, 0, 0),
        ] {
            let metrics = measured(&[("a", values[0]), ("b", values[1]), ("c", values[2])]);
            let got = by_utilization(&scene(&pods, 3), metrics, "cpu", "", target).unwrap();
            assert_eq!((got.replicas, got.utilization), (replicas, Some(percent)), "{values:?} {target}");
        }
    }

    #[test]
    fn pods_without_usable_metrics() {
        let mut pods = three();
        // One pod's metric is missing: it counts as 0 when scaling up and as 100 percent when scaling down.
        let up =
            by_utilization(&scene(&pods, 3), measured(&[("a", 900), ("b", 900)]), "cpu", "", 30).unwrap();
        assert_eq!(up.replicas, 6);
        let down =
            by_utilization(&scene(&pods, 3), measured(&[("a", 100), ("b", 100)]), "cpu", "", 60).unwrap();
        assert_eq!(down.replicas, 2);
        pods[2] = pod("c", "1", json!({"phase": "Pending"}));
        let pending =
            by_utilization(&scene(&pods, 3), measured(&[("a", 900), ("b", 900)]), "cpu", "", 45).unwrap();
        assert_eq!(pending.replicas, 4);
        let fails =
            |pods: &[Arc<Pod>], metrics| by_utilization(&scene(pods, 3), metrics, "cpu", "", 50).unwrap_err();
        assert_eq!(
            fails(&pods, measured(&[("c", 5)])),
            "did not receive metrics for targeted pods (pods might be unready)"
        );
        assert_eq!(fails(&[], measured(&[])), "no pods returned by selector while calculating replica count");
        let other = by_utilization(&scene(&pods, 3), measured(&[("a", 5)]), "memory", "", 50).unwrap_err();
        assert_eq!(other, "missing request for memory in container c of Pod a");
        let none = by_utilization(&scene(&pods, 3), measured(&[("a", 5)]), "cpu", "x", 50).unwrap_err();
        assert_eq!(none, "container x not found in Pod a");
    }

    #[test]
    fn values() {
        let pods = three();
        let metrics = || measured(&[("a", 20_000), ("b", 10_000), ("c", 30_000)]);
        let got = by_value(&scene(&pods, 3), metrics(), "", 10_000).unwrap();
        assert_eq!((got.replicas, got.usage), (6, 20_000));
        assert_eq!(by_value(&scene(&pods, 3), metrics(), "", 19_000).unwrap().replicas, 3);
        assert_eq!(by_total(&scene(&pods, 3), 20_000, 10_000).unwrap().replicas, 6);
        assert_eq!(by_total(&scene(&pods, 3), 10_500, 10_000).unwrap().replicas, 3);
        assert_eq!(by_total(&scene(&[], 0), 25_000, 10_000).unwrap().replicas, 3);
        assert_eq!(by_share(&scene(&pods, 3), 60_000, 10_000).replicas, 6);
        assert_eq!(by_share(&scene(&pods, 3), 60_000, 10_000).usage, 20_000);
        assert_eq!(by_share(&scene(&pods, 3), 30_500, 10_000).replicas, 3);
    }

    #[test]
    fn a_pods_first_minutes() {
        let since = |second: i64, ready: &str, changed: i64| {
            let time = |s: i64| at(s).to_string();
            json!({"phase": "Running", "startTime": time(second),
                "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": time(changed)}]})
        };
        for (status, unready) in [
            (since(-60, "True", -50), false),
            (since(-60, "True", -5), true),
            (since(-60, "False", -50), true),
            (since(-600, "False", -590), true),
            (since(-600, "False", -60), false),
            (since(-600, "True", -590), false),
            (json!({"phase": "Running"}), true),
        ] {
            let metric = measured(&[("a", 1)])["a"];
            assert_eq!(
                is_unready(&pod("a", "1", status.clone()), &metric, &AutoscalerSettings::default(), at(0)),
                unready,
                "{status}"
            );
        }
    }
}
