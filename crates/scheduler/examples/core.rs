//! Measures the scheduler's core without an API: thousands of nodes, and pods of the shapes of upstream's
//! scheduler_perf.
//!
//! `cargo run --release -p knarr-scheduler --example core -- [nodes] [pods] [workload]` prints one line of JSON for
//! each workload.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::api::core::v1::{Node, Pod};
use knarr_scheduler::cache::Cache;
use knarr_scheduler::framework::{PodInfo, Profile};
use knarr_scheduler::schedule_one::{Cycles, Outcome};
use serde_json::{Value, json};

const ZONE: &str = "topology.kubernetes.io/zone";
const HOST: &str = "kubernetes.io/hostname";

/// A workload: its name, the labels of its pods, additions to their spec, and the same for pods that are placed before.
struct Workload {
    name: &'static str,
    spec: Value,
    /// The number of pods placed before the measured ones, in percent of them.
    before: usize,
    before_spec: Value,
}

fn term(key: &str) -> Value {
    json!({"labelSelector": {"matchLabels": {"color": "blue"}}, "topologyKey": key, "namespaces": ["default"]})
}

fn required(kind: &str, key: &str) -> Value {
    json!({"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term(key)]}}})
}

fn preferred(kind: &str, key: &str) -> Value {
    let weighted = json!([{"weight": 1, "podAffinityTerm": term(key)}]);
    json!({"affinity": {kind: {"preferredDuringSchedulingIgnoredDuringExecution": weighted}}})
}

fn spread(action: &str) -> Value {
    json!({"topologySpreadConstraints": [{"maxSkew": 5, "topologyKey": ZONE, "whenUnsatisfiable": action,
        "labelSelector": {"matchLabels": {"color": "blue"}}}]})
}

fn node_affinity() -> Value {
    let expression = json!({"key": ZONE, "operator": "In", "values": ["zone-0", "zone-1"]});
    json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}})
}

fn workloads() -> Vec<Workload> {
    let one = |name, spec: Value| Workload { name, before_spec: spec.clone(), spec, before: 10 };
    vec![
        one("SchedulingBasic", json!({})),
        one("SchedulingPodAntiAffinity", required("podAntiAffinity", HOST)),
        one("SchedulingPodAffinity", required("podAffinity", ZONE)),
        one("SchedulingPreferredPodAffinity", preferred("podAffinity", HOST)),
        one("SchedulingPreferredPodAntiAffinity", preferred("podAntiAffinity", HOST)),
        one("SchedulingNodeAffinity", node_affinity()),
        one("TopologySpreading", spread("DoNotSchedule")),
        one("PreferredTopologySpreading", spread("ScheduleAnyway")),
        Workload {
            name: "MixedSchedulingBasePod",
            spec: json!({}),
            before: 50,
            before_spec: preferred("podAffinity", ZONE),
        },
        one("Unschedulable", json!({"nodeSelector": {"no-such": "label"}})),
    ]
}

fn node(n: usize) -> Node {
    let name = format!("node-{n}");
    let labels = BTreeMap::from([(HOST, name.clone()), (ZONE, format!("zone-{}", n % 3))]);
    let amounts = json!({"cpu": "32", "memory": "64Gi", "pods": "110"});
    let node = json!({"metadata": {"name": name, "labels": labels}, "status": {"allocatable": amounts}});
    serde_json::from_value(node).unwrap_or_default()
}

fn pod(n: usize, extra: &Value) -> Pod {
    let resources = json!({"requests": {"cpu": "100m", "memory": "500Mi"}});
    let mut spec = json!({"containers": [{"name": "pause", "image": "pause:3.10", "resources": resources}]});
    if let (Some(spec), Some(extra)) = (spec.as_object_mut(), extra.as_object()) {
        spec.extend(extra.clone());
    }
    let name = format!("pod-{n}");
    let metadata = json!({"name": name, "uid": name, "namespace": "default", "labels": {"color": "blue", "name": "test"}});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap_or_default()
}

struct Run {
    cache: Cache,
    cycles: Cycles,
    profile: Profile,
    placed: usize,
    /// Nanoseconds spent on computing the pods' shapes.
    shaping: u64,
}

impl Run {
    /// Schedules one pod. Returns the nanoseconds from the API's pod to the assumed one.
    fn one(&mut self, pod: &Pod) -> u64 {
        let begin = Instant::now();
        let info = PodInfo::new(pod);
        self.shaping += begin.elapsed().as_nanos() as u64;
        if let Outcome::Placed(at) = self.cycles.schedule(0, &self.profile, self.cache.snapshot(), &info) {
            let name = self.cache.snapshot().row(at).name().to_owned();
            self.cache.assume(&info, &name);
            self.placed += 1;
        }
        begin.elapsed().as_nanos() as u64
    }
}

fn measure(workload: &Workload, nodes: usize, pods: usize) -> Result<Value, String> {
    let profile = knarr_scheduler::plugins::default_profile("default-scheduler", &Arc::default())?;
    let mut run = Run { cache: Cache::default(), cycles: Cycles::new(1), profile, placed: 0, shaping: 0 };
    (0..nodes).for_each(|n| run.cache.set_node(Arc::new(node(n))));
    // With anti-affinity by host, a node can have only one pod.
    let pods = if workload.name == "SchedulingPodAntiAffinity" { pods.min(nodes * 8 / 10) } else { pods };
    let before = pods * workload.before / 100;
    for n in 0..before {
        run.one(&pod(n, &workload.before_spec));
    }
    (run.placed, run.shaping) = (0, 0);
    let measured: Vec<Pod> = (before..before + pods).map(|n| pod(n, &workload.spec)).collect();
    let mut times: Vec<u64> = measured.iter().map(|pod| run.one(pod)).collect();
    let total: u64 = times.iter().sum();
    times.sort_unstable();
    let at = |percent: usize| {
        times.get((times.len() * percent / 100).min(times.len() - 1)).copied().unwrap_or(0) / 1000
    };
    Ok(json!({"workload": workload.name, "nodes": nodes, "pods": pods, "placed": run.placed,
        "pods_per_second": (pods as f64 / (total as f64 / 1e9)) as u64, "p50_us": at(50), "p99_us": at(99),
        "shape_us": run.shaping / 1000 / pods.max(1) as u64}))
}

fn main() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |at: usize, default: usize| arguments.get(at).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (nodes, pods) = (number(0, 5000), number(1, 10_000));
    for workload in workloads() {
        if arguments.get(2).is_none_or(|only| workload.name == only) {
            println!("{}", measure(&workload, nodes, pods)?);
        }
    }
    Ok(())
}
