//! The fields that the server sets on pods, and the parts that each pod subresource may change.

use knarr_apimachinery::quantity::Quantity;
use serde_json::{Value, json};

use super::app_armor;
use crate::defaults::{Fields, child, existing, items};
use crate::prepare::{
    bump_generation, keep, keep_in, keep_metadata, object, set_generation, update_with_generation,
};

pub fn for_create(pod: &mut Value) {
    set_generation(pod, 1);
    merge_label_keys(pod);
    app_armor::fields_from_annotations(pod);
    let fields = object(pod);
    default_pod_level_resources(child(fields, "spec"));
    let spec = &fields["spec"];
    let mut status = json!({"phase": "Pending", "qosClass": qos_class(spec)});
    if spec.get("schedulingGates").and_then(Value::as_array).is_some_and(|gates| !gates.is_empty()) {
        status["conditions"] = json!([{
            "type": "PodScheduled",
            "status": "False",
            "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        }]);
    }
    fields.insert("status".to_owned(), status);
}

pub fn for_update(new: &mut Value, old: &Value, subresource: Option<&str>) {
    match subresource {
        Some("status") => status(new, old),
        Some("ephemeralcontainers") => {
            let wanted = new.pointer("/spec/ephemeralContainers").cloned().unwrap_or(Value::Null);
            only_spec_part(new, old);
            keep(new, old, "spec");
            let spec = child(object(new), "spec");
            spec.insert("ephemeralContainers".to_owned(), wanted);
            bump_generation(new, old, &["/spec"]);
        }
        Some("resize") => resize(new, old),
        _ => {
            if new.pointer("/spec/resources").is_none_or(Value::is_null) {
                keep_in(new, old, &["spec", "resources"]);
            }
            update_with_generation(new, old, None);
        }
    }
}

/// Restores the status and the editable metadata, for subresources that change a part of the spec.
fn only_spec_part(new: &mut Value, old: &Value) {
    keep(new, old, "status");
    for field in ["labels", "annotations", "finalizers", "ownerReferences", "deletionTimestamp"] {
        keep_metadata(new, old, field);
    }
}

fn status(new: &mut Value, old: &Value) {
    update_with_generation(new, old, Some("status"));
    keep_metadata(new, old, "ownerReferences");
    for field in ["qosClass", "observedGeneration", "resourceClaimStatuses", "extendedResourceClaimStatus"] {
        let given = new.pointer("/status").and_then(|status| status.get(field));
        if given.is_none_or(|v| v.is_null() || v == "" || v == 0) {
            keep_in(new, old, &["status", field]);
        }
    }
    keep_condition_generations(new, old);
}

/// Restores `observedGeneration` of conditions that a client without knowledge of the field has written.
fn keep_condition_generations(new: &mut Value, old: &Value) {
    let before = old.pointer("/status/conditions").and_then(Value::as_array);
    let mut before: Vec<&Value> = before.into_iter().flatten().collect();
    let Some(status) = existing(object(new), "status") else { return };
    for condition in items(status, "conditions") {
        let found = before.iter().position(|b| b.get("type") == condition.get("type"));
        let Some(was) = found.map(|at| before.remove(at)) else { continue };
        let given = condition.get("observedGeneration").and_then(Value::as_i64).unwrap_or(0);
        if let (0, Some(generation)) = (given, was.get("observedGeneration")) {
            condition.insert("observedGeneration".to_owned(), generation.clone());
        }
    }
}

/// Restores all but resources and resize policies. A changed list of containers stays, so that validation refuses
/// it.
fn resize(new: &mut Value, old: &Value) {
    let names = |pod: &Value, list: &str| -> Vec<String> {
        let list = pod.pointer(&format!("/spec/{list}")).and_then(Value::as_array);
        let name = |c: &Value| c.get("name").and_then(Value::as_str).unwrap_or("").to_owned();
        list.into_iter().flatten().map(name).collect()
    };
    let lists = ["containers", "initContainers"];
    if lists.iter().any(|list| names(new, list) != names(old, list)) {
        return;
    }
    let wanted = new.pointer("/spec").cloned().unwrap_or(Value::Null);
    only_spec_part(new, old);
    keep(new, old, "spec");
    let spec = child(object(new), "spec");
    // Pod-level resources that the request omits keep their value (PodLevelResourcesFixDefaulting).
    let of_pod = wanted.get("resources");
    if let Some(resources) = of_pod {
        spec.insert("resources".to_owned(), resources.clone());
    }
    for list in lists {
        for (i, container) in items(spec, list).enumerate() {
            for field in ["resources", "resizePolicy"] {
                let given = wanted.get(list).and_then(|l| l.get(i)).and_then(|c| c.get(field));
                match given {
                    Some(given) => container.insert(field.to_owned(), given.clone()),
                    None => container.remove(field),
                };
            }
        }
    }
    if of_pod.is_some() {
        default_pod_level_resources(spec);
    }
    bump_generation(new, old, &["/spec"]);
}

/// Adds requirements for `matchLabelKeys` and `mismatchLabelKeys` to the term's selector.
fn merge_label_keys(pod: &mut Value) {
    let labels = pod.pointer("/metadata/labels").cloned().unwrap_or(Value::Null);
    let Some(spec) = existing(object(pod), "spec") else { return };
    for constraint in items(spec, "topologySpreadConstraints") {
        merge_keys(constraint, "matchLabelKeys", "In", &labels);
    }
    let Some(affinity) = existing(spec, "affinity") else { return };
    for side in ["podAffinity", "podAntiAffinity"] {
        let Some(side) = existing(affinity, side) else { continue };
        for term in items(side, "requiredDuringSchedulingIgnoredDuringExecution") {
            merge_keys(term, "matchLabelKeys", "In", &labels);
            merge_keys(term, "mismatchLabelKeys", "NotIn", &labels);
        }
        for weighted in items(side, "preferredDuringSchedulingIgnoredDuringExecution") {
            if let Some(term) = existing(weighted, "podAffinityTerm") {
                merge_keys(term, "matchLabelKeys", "In", &labels);
                merge_keys(term, "mismatchLabelKeys", "NotIn", &labels);
            }
        }
    }
}

fn merge_keys(term: &mut Fields, field: &str, operator: &str, labels: &Value) {
    let keys = term.get(field).and_then(Value::as_array).cloned().unwrap_or_default();
    let Some(selector) = existing(term, "labelSelector") else { return };
    for key in keys.iter().filter_map(Value::as_str) {
        let Some(value) = labels.get(key) else { continue };
        let requirement = json!({"key": key, "operator": operator, "values": [value]});
        match selector.entry("matchExpressions").or_insert(Value::Null) {
            Value::Array(list) => list.push(requirement),
            other => *other = json!([requirement]),
        }
    }
}

fn quantity(list: Option<&Value>, name: &str) -> Option<Quantity> {
    Quantity::parse(list?.get(name)?.as_str()?.trim()).ok()
}

const COMPUTE: [&str; 2] = ["cpu", "memory"];

/// Returns `Guaranteed`, `Burstable` or `BestEffort`, from cpu and memory alone.
pub fn qos_class(spec: &Value) -> &'static str {
    let pod_level = spec.get("resources").filter(|r| {
        ["requests", "limits"]
            .iter()
            .any(|f| r.get(f).and_then(Value::as_object).is_some_and(|m| !m.is_empty()))
    });
    let containers = ["containers", "initContainers"].map(|list| spec.get(list).and_then(Value::as_array));
    let of_containers = containers.into_iter().flatten().flatten().map(|c| c.get("resources"));
    let all: Vec<Option<&Value>> = match pod_level {
        Some(resources) => vec![Some(resources)],
        None => of_containers.collect(),
    };
    let positive = |resources: Option<&Value>, side: &str, name: &str| {
        quantity(resources.and_then(|r| r.get(side)), name).filter(|q| q.signum() > 0)
    };
    let (mut any, mut guaranteed) = (false, !all.is_empty());
    let mut sums = [(0i128, 0i128); 2];
    for resources in all {
        for (i, name) in COMPUTE.iter().enumerate() {
            let (request, limit) =
                (positive(resources, "requests", name), positive(resources, "limits", name));
            any |= request.is_some() || limit.is_some();
            guaranteed &= limit.is_some();
            sums[i].0 += request.map_or(0, |q| q.nanos());
            sums[i].1 += limit.map_or(0, |q| q.nanos());
        }
    }
    match (any, guaranteed && sums.iter().all(|(requests, limits)| requests == limits)) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// Sets the pod-level requests if there are pod-level limits: to the sum of the containers' requests, or to the
/// limits.
fn default_pod_level_resources(spec: &mut Fields) {
    let limits = spec.get("resources").and_then(|r| r.get("limits")).and_then(Value::as_object).cloned();
    let Some(limits) = limits.filter(|l| !l.is_empty()) else { return };
    let asked: Vec<(&str, Quantity)> =
        COMPUTE.iter().filter_map(|name| Some((*name, effective_request(spec, name)?))).collect();
    let Some(resources) = existing(spec, "resources") else { return };
    let requests = child(resources, "requests");
    for (name, request) in asked {
        if !requests.contains_key(name) {
            requests.insert(name.to_owned(), json!(request.to_string()));
        }
    }
    for (name, limit) in limits {
        let supported = COMPUTE.contains(&name.as_str()) || name.starts_with("hugepages-");
        if supported && !requests.contains_key(&name) {
            requests.insert(name, limit);
        }
    }
}

/// Returns the effective request of the containers: the sum of main containers and sidecars, or the largest request
/// while init containers run.
fn effective_request(spec: &Fields, name: &str) -> Option<Quantity> {
    let list = |list: &str| spec.get(list).and_then(Value::as_array).into_iter().flatten();
    let request = |c: &Value| quantity(c.pointer("/resources/requests"), name);
    let mut sum: Option<Quantity> = None;
    let add = |sum: &mut Option<Quantity>, more: Option<Quantity>| match (sum.as_mut(), more) {
        (Some(sum), Some(more)) => sum.add(&more),
        (None, more) => *sum = more,
        _ => {}
    };
    let mut sidecars: Option<Quantity> = None;
    let mut largest: Option<Quantity> = None;
    for container in list("initContainers") {
        let mut at_once = sidecars.clone();
        add(&mut at_once, request(container));
        largest = largest.max(at_once);
        if container.get("restartPolicy").is_some_and(|p| p == "Always") {
            add(&mut sidecars, request(container));
        }
    }
    for container in list("containers") {
        add(&mut sum, request(container));
    }
    add(&mut sum, sidecars);
    sum.max(largest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qos() {
        let c = |resources: Value| json!({"resources": resources});
        let (both, cpu) = (json!({"cpu": "1", "memory": "1Gi"}), json!({"cpu": "1000m"}));
        for (containers, expected) in [
            (json!([c(json!({}))]), "BestEffort"),
            (json!([c(json!({"limits": both, "requests": both}))]), "Guaranteed"),
            (json!([c(json!({"limits": both, "requests": both})), c(json!({}))]), "Burstable"),
            (json!([c(json!({"limits": cpu, "requests": cpu}))]), "Burstable"),
            (json!([c(json!({"limits": both, "requests": {"cpu": "500m", "memory": "1Gi"}}))]), "Burstable"),
            (json!([c(json!({"requests": {"example.com/gpu": "1"}}))]), "BestEffort"),
            (json!([c(json!({"requests": {"cpu": "0"}}))]), "BestEffort"),
        ] {
            assert_eq!(qos_class(&json!({"containers": containers})), expected, "{containers}");
        }
    }

    #[test]
    fn limits_of_the_whole_pod_become_its_requests() {
        let c = json!({"resources": {"requests": {"cpu": "250m"}}});
        let limits = json!({"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "4Mi"});
        let mut spec = json!({"containers": [c, c], "resources": {"limits": limits}});
        default_pod_level_resources(spec.as_object_mut().unwrap());
        let requests = json!({"cpu": "500m", "memory": "1Gi", "hugepages-2Mi": "4Mi"});
        assert_eq!(spec["resources"]["requests"], requests);
        assert_eq!(qos_class(&spec), "Burstable");
        spec["resources"]["requests"]["cpu"] = json!("1");
        assert_eq!(qos_class(&spec), "Guaranteed", "pod-level resources override those of containers");
    }

    #[test]
    fn ephemeral_containers_are_all_that_changes() {
        let old = json!({"metadata": {"generation": 1, "labels": {"a": "b"}},
            "spec": {"nodeName": "n"}, "status": {"phase": "Running"}});
        let mut new = json!({"metadata": {"generation": 1, "labels": {"x": "y"}},
            "spec": {"nodeName": "m", "ephemeralContainers": [{"name": "e"}]}, "status": {}});
        for_update(&mut new, &old, Some("ephemeralcontainers"));
        assert_eq!(
            new,
            json!({"metadata": {"generation": 2, "labels": {"a": "b"}},
                "spec": {"nodeName": "n", "ephemeralContainers": [{"name": "e"}]}, "status": {"phase": "Running"}})
        );
    }

    #[test]
    fn resize_takes_resources_only() {
        let old =
            json!({"metadata": {"generation": 1}, "spec": {"containers": [{"name": "c", "image": "a"}]}});
        let mut new = json!({"metadata": {"generation": 1},
            "spec": {"containers": [{"name": "c", "image": "b", "resources": {"limits": {"cpu": "1"}}}]}});
        for_update(&mut new, &old, Some("resize"));
        assert_eq!(
            new["spec"],
            json!({"containers": [{"name": "c", "image": "a", "resources": {"limits": {"cpu": "1"}}}]})
        );
        assert_eq!(new["metadata"]["generation"], 2);

        // Pod-level resources are kept if the request omits them, and defaulted otherwise.
        let old = json!({"metadata": {"generation": 1},
            "spec": {"resources": {"limits": {"cpu": "1"}}, "containers": [{"name": "c"}]}});
        let mut new = json!({"metadata": {"generation": 1}, "spec": {"containers": [{"name": "c"}]}});
        for_update(&mut new, &old, Some("resize"));
        assert_eq!(new["spec"], old["spec"]);
        let mut new = json!({"metadata": {"generation": 1},
            "spec": {"resources": {"limits": {"cpu": "2"}}, "containers": [{"name": "c"}]}});
        for_update(&mut new, &old, Some("resize"));
        assert_eq!(new["spec"]["resources"], json!({"limits": {"cpu": "2"}, "requests": {"cpu": "2"}}));
    }

    #[test]
    fn status_cannot_lose_the_class() {
        let old = json!({"metadata": {"generation": 2, "ownerReferences": [1]}, "spec": {"a": 1},
            "status": {"qosClass": "Burstable", "conditions": [{"type": "Ready", "observedGeneration": 2}]}});
        let mut new = json!({"metadata": {"labels": {"l": "1"}}, "spec": {"a": 2},
            "status": {"phase": "Running", "conditions": [{"type": "Ready"}]}});
        for_update(&mut new, &old, Some("status"));
        assert_eq!(
            new,
            json!({"metadata": {"generation": 2, "labels": {"l": "1"}, "ownerReferences": [1]}, "spec": {"a": 1},
                "status": {"phase": "Running", "qosClass": "Burstable",
                    "conditions": [{"type": "Ready", "observedGeneration": 2}]}})
        );
    }
}
