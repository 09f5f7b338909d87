//! The usage of pods: compute resources while they run, and their number while they exist.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::amounts::{Amounts, add, count, list, raise};
use super::scopes::Requirement;
use crate::core::pod::qos_class;

const NAMES: [&str; 11] = [
    "count/pods",
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
];
/// If a quota counts one of these, every container must specify it.
const MUST_BE_SET: [&str; 6] =
    ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];
const REQUESTS: &str = "requests.";
const HUGEPAGES: &str = "hugepages-";
const DEVICE_CLASS: &str = "deviceclass.resource.kubernetes.io/";

/// Returns whether the name has no domain or one of kubernetes.io.
fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Returns whether the resource has a domain of its own, such as a device.
fn is_extended(name: &str) -> bool {
    !is_native(name) && !name.starts_with(REQUESTS) || name.starts_with(DEVICE_CLASS)
}

pub fn tracks(name: &str) -> bool {
    let requested = name.strip_prefix(REQUESTS);
    NAMES.contains(&name)
        || name.starts_with(HUGEPAGES)
        || requested
            .is_some_and(|r| r.starts_with(HUGEPAGES) || !is_native(name) || r.starts_with(DEVICE_CLASS))
}

fn items<'v>(pod: &'v Value, pointer: &str) -> impl Iterator<Item = &'v Value> {
    pod.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

pub fn is_terminating(pod: &Value) -> bool {
    pod["spec"]["activeDeadlineSeconds"].as_i64().is_some_and(|s| s >= 0)
}

/// Returns whether the pod still uses compute resources.
fn is_alive(pod: &Value, now: Timestamp) -> bool {
    if matches!(pod["status"]["phase"].as_str(), Some("Failed" | "Succeeded")) {
        return false;
    }
    let meta = &pod["metadata"];
    let at = meta["deletionTimestamp"].as_str().and_then(|t| t.parse::<Timestamp>().ok());
    match (at, meta["deletionGracePeriodSeconds"].as_i64()) {
        (Some(at), Some(grace)) => {
            // A pod that outlives its grace period does not keep others from starting.
            let end = at.checked_add(SignedDuration::from_secs(grace.clamp(0, 1 << 40)));
            end.is_ok_and(|end| now <= end)
        }
        _ => true,
    }
}

pub fn usage(pod: &Value, now: Timestamp) -> Amounts {
    let mut sum = Amounts::from([("count/pods".to_owned(), count(1))]);
    if is_alive(pod, now) {
        add(&mut sum, &computed(&requests(pod), &limits(pod)));
    }
    sum
}

/// Returns requests and limits under their names in quotas.
fn computed(requests: &Amounts, limits: &Amounts) -> Amounts {
    let mut sum = Amounts::from([("pods".to_owned(), count(1))]);
    for name in ["cpu", "memory", "ephemeral-storage"] {
        if let Some(amount) = requests.get(name) {
            sum.insert(name.to_owned(), amount.clone());
            sum.insert(format!("{REQUESTS}{name}"), amount.clone());
        }
        if let Some(amount) = limits.get(name) {
            sum.insert(format!("limits.{name}"), amount.clone());
        }
    }
    for (name, amount) in requests {
        if name.starts_with(HUGEPAGES) {
            sum.insert(name.clone(), amount.clone());
        }
        if name.starts_with(HUGEPAGES) || is_extended(name) {
            sum.insert(format!("{REQUESTS}{name}"), amount.clone());
        }
    }
    sum
}

/// Sums up the containers; init containers count with their peak, sidecars always.
fn of_containers(pod: &Value, of: &dyn Fn(&Value) -> Amounts) -> Amounts {
    let mut sum = Amounts::new();
    items(pod, "/spec/containers").for_each(|c| add(&mut sum, &of(c)));
    let (mut sidecars, mut peak) = (Amounts::new(), Amounts::new());
    for container in items(pod, "/spec/initContainers") {
        let mut moment = of(container);
        if container["restartPolicy"] == "Always" {
            add(&mut sum, &moment);
            add(&mut sidecars, &moment);
            moment.clone_from(&sidecars);
        } else {
            add(&mut moment, &sidecars);
        }
        raise(&mut peak, &moment);
    }
    raise(&mut sum, &peak);
    sum
}

fn status_of<'v>(pod: &'v Value, name: &Value) -> Option<&'v Value> {
    let mut all = items(pod, "/status/containerStatuses").chain(items(pod, "/status/initContainerStatuses"));
    all.find(|s| s["name"] == *name)
}

/// Returns whether the node has refused the requested resize as infeasible.
fn is_resize_infeasible(pod: &Value) -> bool {
    items(pod, "/status/conditions")
        .find(|c| c["type"] == "PodResizePending")
        .is_some_and(|c| c["reason"] == "Infeasible")
}

/// Returns the first candidate that is an object.
fn first(candidates: [Option<&Value>; 3]) -> Amounts {
    candidates.into_iter().flatten().find(|v| v.is_object()).map(list).unwrap_or_default()
}

/// Returns the pod's requests, or its allocated resources where these are greater; overhead included.
pub fn requests(pod: &Value) -> Amounts {
    let infeasible = is_resize_infeasible(pod);
    let wanted = |c: &'_ Value| c["resources"]["requests"].clone();
    let spec = |c: &Value| list(&wanted(c));
    let allocated = |c: &Value| {
        let (wanted, status) = (wanted(c), status_of(pod, &c["name"]));
        first([status.map(|s| &s["allocatedResources"]), (!infeasible).then_some(&wanted), None])
    };
    let actual = |c: &Value| {
        let (wanted, status) = (wanted(c), status_of(pod, &c["name"]));
        first([
            status.map(|s| &s["resources"]["requests"]),
            status.map(|s| &s["allocatedResources"]),
            (!infeasible).then_some(&wanted),
        ])
    };
    let mut sum = of_containers(pod, &actual);
    raise(&mut sum, &of_containers(pod, &allocated));
    if !infeasible {
        raise(&mut sum, &of_containers(pod, &spec));
    }
    sum.extend(of_pod(pod, "requests"));
    add(&mut sum, &list(&pod["spec"]["overhead"]));
    sum
}

/// Returns the requests of the spec, without overhead.
pub fn spec_requests(pod: &Value) -> Amounts {
    of_spec(pod, "requests")
}

/// Returns the limits of the spec, without overhead.
pub fn spec_limits(pod: &Value) -> Amounts {
    of_spec(pod, "limits")
}

fn of_spec(pod: &Value, field: &str) -> Amounts {
    let mut sum = of_containers(pod, &|c| list(&c["resources"][field]));
    sum.extend(of_pod(pod, field));
    sum
}

fn limits(pod: &Value) -> Amounts {
    let infeasible = is_resize_infeasible(pod);
    let wanted = |c: &'_ Value| c["resources"]["limits"].clone();
    let spec = |c: &Value| list(&wanted(c));
    let actual = |c: &Value| {
        let (wanted, status) = (wanted(c), status_of(pod, &c["name"]));
        first([status.map(|s| &s["resources"]["limits"]), (!infeasible).then_some(&wanted), None])
    };
    let mut sum = of_containers(pod, &actual);
    if !infeasible {
        raise(&mut sum, &of_containers(pod, &spec));
    }
    sum.extend(of_pod(pod, "limits"));
    for (name, overhead) in list(&pod["spec"]["overhead"]) {
        if let Some(own) = sum.get_mut(&name).filter(|own| !own.is_zero()) {
            own.add(&overhead);
        }
    }
    sum
}

/// Returns the pod-level resources, of the kinds that pods can specify as a whole.
fn of_pod(pod: &Value, field: &str) -> Amounts {
    let mut amounts = list(&pod["spec"]["resources"][field]);
    amounts.retain(|name, _| matches!(name.as_str(), "cpu" | "memory") || name.starts_with(HUGEPAGES));
    amounts
}

/// Requires that every container specifies the resources that a quota counts, unless the pod specifies them as a
/// whole.
pub fn constraints(names: &BTreeSet<String>, pod: &Value) -> Result<(), String> {
    if !of_pod(pod, "requests").is_empty() || !of_pod(pod, "limits").is_empty() {
        return Ok(());
    }
    let mut missing: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for container in items(pod, "/spec/containers").chain(items(pod, "/spec/initContainers")) {
        let resources = &container["resources"];
        let specified = computed(&list(&resources["requests"]), &list(&resources["limits"]));
        for name in MUST_BE_SET.into_iter().filter(|n| names.contains(*n) && !specified.contains_key(*n)) {
            missing.entry(name).or_default().insert(container["name"].as_str().unwrap_or(""));
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let lines = missing.iter().map(|(name, containers)| {
        let containers: Vec<&str> = containers.iter().copied().collect();
        format!("{name} for: {}", containers.join(","))
    });
    Err(format!("must specify {}", lines.collect::<Vec<_>>().join("; ")))
}

pub fn in_scope(requirement: &Requirement, pod: &Value) -> bool {
    match requirement.scope.as_str() {
        "Terminating" => is_terminating(pod),
        "NotTerminating" => !is_terminating(pod),
        "BestEffort" => is_best_effort(pod),
        "NotBestEffort" => !is_best_effort(pod),
        "PriorityClass" => {
            let class = pod["spec"]["priorityClassName"].as_str().filter(|c| !c.is_empty());
            requirement.holds(class)
        }
        "CrossNamespacePodAffinity" => crosses_namespaces(pod),
        _ => false,
    }
}

fn is_best_effort(pod: &Value) -> bool {
    qos_class(&pod["spec"]) == "BestEffort"
}

/// Returns whether an affinity term of the pod selects pods of other namespaces.
fn crosses_namespaces(pod: &Value) -> bool {
    let crosses = |term: &Value| {
        term["namespaces"].as_array().is_some_and(|n| !n.is_empty()) || !term["namespaceSelector"].is_null()
    };
    ["podAffinity", "podAntiAffinity"].iter().any(|kind| {
        let affinity = &pod["spec"]["affinity"][*kind];
        let required = affinity["requiredDuringSchedulingIgnoredDuringExecution"].as_array();
        let preferred = affinity["preferredDuringSchedulingIgnoredDuringExecution"].as_array();
        required.into_iter().flatten().any(crosses)
            || preferred.into_iter().flatten().any(|p| crosses(&p["podAffinityTerm"]))
    })
}
