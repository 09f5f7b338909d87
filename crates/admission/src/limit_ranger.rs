//! LimitRanger: sets the namespace's defaults for containers, and refuses pods and claims outside of its limits.

use std::collections::BTreeSet;

use async_trait::async_trait;
use knarr_api::quota::{Amounts, list, spec_limits, spec_requests};
use knarr_apimachinery::quantity::Quantity;
use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};

use super::{Attributes, Operation, Plugin, lookup};
use crate::Context;

pub struct LimitRanger;

const ANNOTATION: &str = "kubernetes.io/limit-ranger";
const LIMIT_RANGES: (&str, &str, &str) = ("", "v1", "limitranges");
/// Larger amounts are compared in whole units, others in thousandths.
const MAX_MILLI_VALUE: i64 = i64::MAX / 1000;

#[async_trait]
impl Plugin for LimitRanger {
    fn name(&self) -> &'static str {
        "LimitRanger"
    }

    fn handles(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
    }

    async fn mutate(
        &self,
        attributes: &mut Attributes<'_>,
        context: &Context<'_>,
    ) -> Result<(), StatusError> {
        if is_concerned(attributes) && attributes.resource.plural == "pods" {
            for range in ranges(attributes, context)? {
                set_defaults(&mut attributes.object, &range);
            }
        }
        Ok(())
    }

    async fn validate(&self, attributes: &Attributes<'_>, context: &Context<'_>) -> Result<(), StatusError> {
        if !is_concerned(attributes) {
            return Ok(());
        }
        for range in ranges(attributes, context)? {
            let errors = match attributes.resource.plural {
                "pods" => pod_errors(&attributes.object, &range),
                _ => claim_errors(&attributes.object, &range),
            };
            if let Some(why) = aggregated(errors) {
                return Err(attributes.forbidden(&why));
            }
        }
        Ok(())
    }
}

/// Returns whether limits apply: to new and resized pods, and to new and changed claims that are not being deleted.
fn is_concerned(attributes: &Attributes<'_>) -> bool {
    let create = attributes.operation == Operation::Create;
    let concerned = attributes.is("", "pods") && create
        || attributes.is_part("", "pods", "resize") && !create
        || attributes.is("", "persistentvolumeclaims");
    let going = attributes.old.is_some_and(|old| !old["metadata"]["deletionTimestamp"].is_null());
    concerned && !going
}

/// Reads the LimitRanges from the cache. A slightly stale limit is acceptable.
fn ranges(attributes: &Attributes<'_>, context: &Context<'_>) -> Result<Vec<Value>, StatusError> {
    lookup::list_whole((attributes.request, context), LIMIT_RANGES, Some(attributes.namespace))
}

fn limits_of<'v>(range: &'v Value, type_: &str) -> impl Iterator<Item = &'v Value> {
    let limits = range["spec"]["limits"].as_array().into_iter().flatten();
    limits.filter(move |l| l["type"] == type_)
}

fn set_defaults(pod: &mut Value, range: &Value) {
    let (mut requests, mut limits) = (Value::Null, Value::Null);
    for item in limits_of(range, "Container") {
        for (all, field) in [(&mut requests, "defaultRequest"), (&mut limits, "default")] {
            for (name, amount) in item[field].as_object().into_iter().flatten() {
                all[name.as_str()] = amount.clone();
            }
        }
    }
    let mut notes = Vec::new();
    for (list, prefix) in [("containers", "container"), ("initContainers", "init container")] {
        let containers = pod.pointer_mut(&format!("/spec/{list}")).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten().filter(|c| c.is_object()) {
            let name = container["name"].as_str().unwrap_or("").to_owned();
            let limited = fill(container, "limits", &limits);
            let requested = fill(container, "requests", &requests);
            for (set, what) in [(requested, "request"), (limited, "limit")] {
                if !set.is_empty() {
                    let set: Vec<&str> = set.iter().map(String::as_str).collect();
                    notes.push(format!("{} {what} for {prefix} {name}", set.join(", ")));
                }
            }
        }
    }
    if !notes.is_empty() {
        let meta = knarr_api::prepare::metadata(pod);
        let annotations = meta.entry("annotations").or_insert(Value::Null);
        let note = format!("LimitRanger plugin set: {}", notes.join("; "));
        knarr_api::prepare::object(annotations).insert(ANNOTATION.to_owned(), note.into());
    }
}

/// Sets the values that the container lacks; returns the names of those it set.
fn fill(container: &mut Value, field: &str, defaults: &Value) -> BTreeSet<String> {
    let mut set = BTreeSet::new();
    for (name, amount) in defaults.as_object().into_iter().flatten() {
        let resources = &mut container["resources"];
        if !resources.is_object() {
            *resources = json!({});
        }
        let own = &mut resources[field];
        if !own.is_object() {
            *own = json!({});
        }
        if own.get(name.as_str()).is_none() {
            own[name.as_str()] = amount.clone();
            set.insert(name.clone());
        }
    }
    set
}

/// Converts the amounts to numbers of the same unit, so that they can be compared.
fn values(amounts: [Option<&Quantity>; 3]) -> [i64; 3] {
    let whole = amounts.map(|a| a.map_or(0, Quantity::value));
    if whole.iter().all(|v| *v <= MAX_MILLI_VALUE) {
        return amounts.map(|a| a.map_or(0, Quantity::milli_value));
    }
    whole
}

fn min_error(
    type_: &str,
    name: &str,
    least: &Quantity,
    req: Option<&Quantity>,
    lim: Option<&Quantity>,
) -> Option<String> {
    let [request, limit, enforced] = values([req, lim, Some(least)]);
    let start = format!("minimum {name} usage per {type_} is {least}");
    let Some(req) = req else { return Some(format!("{start}.  No request is specified")) };
    if request < enforced {
        return Some(format!("{start}, but request is {req}"));
    }
    lim.filter(|_| limit < enforced).map(|lim| format!("{start}, but limit is {lim}"))
}

fn max_error(
    type_: &str,
    name: &str,
    most: &Quantity,
    req: Option<&Quantity>,
    lim: Option<&Quantity>,
) -> Option<String> {
    let [request, limit, enforced] = values([req, lim, Some(most)]);
    let start = format!("maximum {name} usage per {type_} is {most}");
    let Some(lim) = lim else { return Some(format!("{start}.  No limit is specified")) };
    if limit > enforced {
        return Some(format!("{start}, but limit is {lim}"));
    }
    req.filter(|_| request > enforced).map(|req| format!("{start}, but request is {req}"))
}

/// Checks the maximum of objects that have requests but no limits.
fn max_request_error(type_: &str, name: &str, most: &Quantity, req: Option<&Quantity>) -> Option<String> {
    let [request, _, enforced] = values([req, None, Some(most)]);
    let start = format!("maximum {name} usage per {type_} is {most}");
    let Some(req) = req else { return Some(format!("{start}.  No request is specified")) };
    (request > enforced).then(|| format!("{start}, but request is {req}"))
}

fn ratio_error(
    type_: &str,
    name: &str,
    most: &Quantity,
    req: Option<&Quantity>,
    lim: Option<&Quantity>,
) -> Option<String> {
    let [request, limit, _] = values([req, lim, Some(most)]);
    let start = format!("{name} max limit to request ratio per {type_} is {most}, but");
    if request == 0 {
        return Some(format!("{start} no request is specified or request is 0"));
    }
    if limit == 0 {
        return Some(format!("{start} no limit is specified or limit is 0"));
    }
    let ratio = limit as f64 / request as f64;
    (ratio > most.as_f64()).then(|| format!("{start} provided ratio is {ratio:.6}"))
}

fn errors_of(type_: &str, item: &Value, requests: &Amounts, limits: &Amounts, errors: &mut Vec<String>) {
    for (field, check) in [
        (
            "min",
            min_error as fn(&str, &str, &Quantity, Option<&Quantity>, Option<&Quantity>) -> Option<String>,
        ),
        ("max", max_error),
        ("maxLimitRequestRatio", ratio_error),
    ] {
        for (name, enforced) in &list(&item[field]) {
            errors.extend(check(type_, name, enforced, requests.get(name), limits.get(name)));
        }
    }
}

fn pod_errors(pod: &Value, range: &Value) -> Vec<String> {
    let mut errors = Vec::new();
    let containers = ["containers", "initContainers"]
        .into_iter()
        .flat_map(|l| pod["spec"][l].as_array().into_iter().flatten());
    let containers: Vec<&Value> = containers.collect();
    for item in limits_of(range, "Container") {
        for container in &containers {
            let resources = &container["resources"];
            errors_of(
                "Container",
                item,
                &list(&resources["requests"]),
                &list(&resources["limits"]),
                &mut errors,
            );
        }
    }
    for item in limits_of(range, "Pod") {
        errors_of("Pod", item, &spec_requests(pod), &spec_limits(pod), &mut errors);
    }
    errors
}

fn claim_errors(claim: &Value, range: &Value) -> Vec<String> {
    const TYPE: &str = "PersistentVolumeClaim";
    let requests = list(&claim["spec"]["resources"]["requests"]);
    let mut errors = Vec::new();
    for item in limits_of(range, TYPE) {
        for (name, least) in &list(&item["min"]) {
            errors.extend(min_error(TYPE, name, least, requests.get(name), None));
        }
        for (name, most) in &list(&item["max"]) {
            errors.extend(max_request_error(TYPE, name, most, requests.get(name)));
        }
    }
    errors
}

/// Formats several errors as Go does: each once, in brackets.
pub fn aggregated(errors: Vec<String>) -> Option<String> {
    let mut once: Vec<String> = Vec::new();
    for error in errors {
        if !once.contains(&error) {
            once.push(error);
        }
    }
    match once.as_slice() {
        [] => None,
        [only] => Some(only.clone()),
        several => Some(format!("[{}]", several.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(item: Value) -> Value {
        json!({"spec": {"limits": [item]}})
    }

    #[test]
    fn defaults_are_set_where_nothing_is_said() {
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {
            "containers": [
                {"name": "a", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "memory": "1Gi"}}},
                {"name": "b"}],
            "initContainers": [{"name": "i"}]}});
        let range = range(json!({"type": "Container",
            "default": {"cpu": "200m", "memory": "512Mi"}, "defaultRequest": {"cpu": "100m", "memory": "256Mi"}}));
        set_defaults(&mut pod, &range);
        assert_eq!(
            pod["metadata"]["annotations"][ANNOTATION],
            "LimitRanger plugin set: memory request for container a; cpu, memory request for container b; \
             cpu, memory limit for container b; cpu, memory request for init container i; cpu, memory limit for init container i"
        );
        assert_eq!(
            pod["spec"]["containers"][0]["resources"]["requests"],
            json!({"cpu": "1", "memory": "256Mi"})
        );
        assert_eq!(pod["spec"]["containers"][0]["resources"]["limits"], json!({"cpu": "2", "memory": "1Gi"}));
        let before = pod.clone();
        set_defaults(&mut pod, &range);
        assert_eq!(pod, before);
        set_defaults(&mut json!({"spec": {"containers": [3, null]}}), &range);
    }

    #[test]
    fn bounds() {
        let pod = |requests: Value, limits: Value| json!({"spec": {"containers": [{"name": "a", "resources": {"requests": requests, "limits": limits}}]}});
        let container = |field: &str, amounts: Value| range(json!({"type": "Container", field: amounts}));
        for (range, pod, expected) in [
            (container("min", json!({"cpu": "50m"})), pod(json!({"cpu": "50m"}), json!({})), None),
            (
                container("min", json!({"cpu": "50m"})),
                pod(json!({}), json!({})),
                Some("minimum cpu usage per Container is 50m.  No request is specified"),
            ),
            (
                container("min", json!({"cpu": "50m"})),
                pod(json!({"cpu": "10m"}), json!({})),
                Some("minimum cpu usage per Container is 50m, but request is 10m"),
            ),
            (
                container("max", json!({"memory": "1Gi"})),
                pod(json!({}), json!({})),
                Some("maximum memory usage per Container is 1Gi.  No limit is specified"),
            ),
            (
                container("max", json!({"memory": "1Gi"})),
                pod(json!({}), json!({"memory": "2Gi"})),
                Some("maximum memory usage per Container is 1Gi, but limit is 2Gi"),
            ),
            (
                container("maxLimitRequestRatio", json!({"cpu": "2"})),
                pod(json!({"cpu": "100m"}), json!({"cpu": "300m"})),
                Some("cpu max limit to request ratio per Container is 2, but provided ratio is 3.000000"),
            ),
            (
                container("maxLimitRequestRatio", json!({"cpu": "2"})),
                pod(json!({}), json!({"cpu": "300m"})),
                Some(
                    "cpu max limit to request ratio per Container is 2, but no request is specified or request is 0",
                ),
            ),
            (
                range(json!({"type": "Pod", "max": {"cpu": "1", "memory": "1Gi"}})),
                pod(json!({}), json!({"cpu": "2", "memory": "2Gi"})),
                Some(
                    "[maximum cpu usage per Pod is 1, but limit is 2, maximum memory usage per Pod is 1Gi, but limit is 2Gi]",
                ),
            ),
        ] {
            assert_eq!(aggregated(pod_errors(&pod, &range)).as_deref(), expected, "{range} {pod}");
        }
        let claim = json!({"spec": {"resources": {"requests": {"storage": "1Gi"}}}});
        let of = |field: &str, amount: &str| {
            range(json!({"type": "PersistentVolumeClaim", field: {"storage": amount}}))
        };
        for (range, expected) in [
            (of("min", "1Gi"), None),
            (
                of("min", "2Gi"),
                Some("minimum storage usage per PersistentVolumeClaim is 2Gi, but request is 1Gi"),
            ),
            (
                of("max", "500Mi"),
                Some("maximum storage usage per PersistentVolumeClaim is 500Mi, but request is 1Gi"),
            ),
        ] {
            assert_eq!(aggregated(claim_errors(&claim, &range)).as_deref(), expected);
        }
    }
}
