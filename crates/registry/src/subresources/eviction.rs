//! Eviction: deletes a pod if its disruption budget allows it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, StatusCause};
use knarr_api::object::Object;
use knarr_apimachinery::selector::Selector;
use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};

use super::body_of;
use crate::Registry;
use crate::attributes::{Attributes, Operation};
use crate::delete::{self, How};
use crate::options::WriteParams;
use crate::served::Served;
use crate::{metadata, store, update};
use knarr_wire::output::Answer;
use knarr_wire::request::Request;

/// The number of evicted pods that a budget records until they are deleted.
const MAX_DISRUPTED: usize = 2000;
/// How many times the eviction of a pending pod is retried if the pod changes, and the pause in between.
const ATTEMPTS: usize = 20;
const PAUSE: Duration = Duration::from_millis(500);
/// The retry delay that clients get while a budget is still being processed, in seconds.
const RETRY_SECONDS: i32 = 10;
const DISRUPTION_ALLOWED: &str = "DisruptionAllowed";
const MANY_BUDGETS: &str =
    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
const VIOLATES: &str = "Cannot evict pod as it would violate the pod's disruption budget.";

pub async fn answer(
    registry: &Arc<Registry>,
    request: &Request,
    pods: &Served,
) -> Result<Answer, StatusError> {
    let params = WriteParams::parse(request, "CreateOptions")?;
    let mut eviction = eviction_of(request, &params)?;
    let info = &request.info;
    let own = metadata::text(&eviction, "name");
    if own != info.name {
        return Err(StatusError::bad_request("name in URL does not match name in Eviction object"));
    }
    metadata::match_namespace(pods, &mut eviction, &info.namespace)?;
    let options: DeleteOptions =
        serde_json::from_value(eviction["deleteOptions"].clone()).unwrap_or_default();
    let How { options, dry_run, .. } = delete::checked(options)?;
    let dry = params.dry_run || dry_run;
    let place = (info.namespace.as_str(), info.name.as_str(), "eviction");
    let mut attributes = Attributes::new(request, pods, Operation::Create, place, eviction, dry);
    registry.admit(&mut attributes).await?;
    // A client that set a resourceVersion wants to evict that version only, so no other is tried.
    let fixed = options.preconditions.as_ref().is_some_and(|p| p.resource_version.is_some());
    for _ in 0..ATTEMPTS {
        let current = store::read(registry, pods, &info.namespace, &info.name).await?;
        let current = current.ok_or_else(|| pods.not_found(&info.name))?;
        let pod = current.object.typed::<Pod>().map_err(StatusError::internal)?;
        let way = judge(registry, &current.object, &pod, dry).await?;
        let mut options = options.clone();
        let seen = current.revision.to_string();
        if way != Way::Any {
            // Only the checked version may be deleted: the pod may have become ready in the meantime.
            options.preconditions.get_or_insert_default().resource_version.get_or_insert(seen);
        }
        match (evict(registry, request, pods, options, dry).await, way) {
            (Err(error), Way::WhilePending) if error.is_conflict() && !fixed => {
                registry.clock.sleep(PAUSE).await;
            }
            (Err(error), Way::WhileUnready { budget }) if error.is_conflict() && !fixed => {
                return Err(too_many(still_processed(&budget), RETRY_SECONDS));
            }
            (outcome, _) => return outcome.map(|()| Answer::created()),
        }
    }
    Err(StatusError::modified(&pods.group_resource(), &info.name))
}

/// Decodes the body as policy/v1, or as v1beta1 for clients before 1.22.
fn eviction_of(request: &Request, params: &WriteParams) -> Result<Value, StatusError> {
    let of_version = |version| body_of(request, "policy", version, "Eviction", params);
    of_version("v1").or_else(|error| {
        let mut eviction = of_version("v1beta1").map_err(|_| error)?;
        eviction["apiVersion"] = json!("policy/v1");
        Ok(eviction)
    })
}

/// The condition under which a pod may be evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Way {
    /// In any state: its budget allows it, or it has no budget.
    Any,
    WhilePending,
    /// While it is not ready; the budget has not been charged.
    WhileUnready {
        budget: String,
    },
}

/// Decides whether the pod may be evicted; takes a disruption from its budget if needed.
async fn judge(registry: &Registry, object: &Object, pod: &Pod, dry: bool) -> Result<Way, StatusError> {
    if may_go_freely(pod) {
        let is_pending = pod.status.as_ref().is_some_and(|s| s.phase.as_deref() == Some("Pending"));
        let goes = pod.metadata.deletion_timestamp.is_some();
        return Ok(if is_pending && !goes { Way::WhilePending } else { Way::Any });
    }
    match budgets_of(registry, object)?.as_slice() {
        [] => Ok(Way::Any),
        [budget] => take_from_budget(registry, budget, pod, dry).await,
        _ => Err(StatusError::internal(MANY_BUDGETS)),
    }
}

/// Marks the pod and deletes it, both subject to the preconditions.
async fn evict(
    registry: &Arc<Registry>,
    request: &Request,
    pods: &Served,
    mut options: DeleteOptions,
    dry: bool,
) -> Result<(), StatusError> {
    let info = &request.info;
    if !dry {
        let now = metadata::rfc3339(registry.clock.now());
        let mark = |pod: Value| {
            delete::preconditions(pods, &info.name, &options, &pod)?;
            Ok(marked(pod, &now))
        };
        let marked = update::modify_raw(registry, pods, &info.namespace, &info.name, false, &mark).await?;
        if let Some(version) = options.preconditions.as_mut().and_then(|p| p.resource_version.as_mut()) {
            *version = marked.resource_version().to_string();
        }
    }
    let how = How { options, dry_run: dry, admitted: true };
    delete::delete(registry, request, pods, &info.namespace, &info.name, &how).await.map(drop)
}

/// Returns the pod with the condition that gives the reason of its deletion.
fn marked(mut pod: Value, now: &str) -> Value {
    const TYPE: &str = "DisruptionTarget";
    if !pod["status"]["conditions"].is_array() {
        pod["status"]["conditions"] = json!([]);
    }
    let Some(conditions) = pod["status"]["conditions"].as_array_mut() else { return pod };
    let before = conditions.iter().find(|c| c["type"] == TYPE && c["status"] == "True");
    let since = before.map_or_else(|| json!(now), |c| c["lastTransitionTime"].clone());
    conditions.retain(|c| c["type"] != TYPE);
    let mut condition = json!({
        "type": TYPE, "status": "True", "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting",
        "lastProbeTime": null, "lastTransitionTime": since,
    });
    let generation = pod["metadata"]["generation"].clone();
    if !generation.is_null() {
        condition["observedGeneration"] = generation;
    }
    if let Some(conditions) = pod["status"]["conditions"].as_array_mut() {
        conditions.push(condition);
    }
    pod
}

/// Returns whether the pod may be evicted regardless of budgets: it has finished, is pending or is being deleted.
fn may_go_freely(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("");
    matches!(phase, "Succeeded" | "Failed" | "Pending") || pod.metadata.deletion_timestamp.is_some()
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

/// Returns the budgets whose selector matches the pod.
fn budgets_of(registry: &Registry, pod: &Object) -> Result<Vec<Arc<Object>>, StatusError> {
    let Some(served) = registry.table.find("policy", "v1", "poddisruptionbudgets") else {
        return Ok(Vec::new());
    };
    let mut matching = Vec::new();
    for object in served.cache()?.list(Some(pod.namespace())) {
        let Ok(budget) = object.typed::<PodDisruptionBudget>() else { continue };
        let selector = budget.spec.as_ref().and_then(|s| s.selector.as_ref());
        let Ok(selector) = Selector::from_label_selector(selector) else { continue };
        if selector.matches_with(|key| pod.header().label(key)) {
            matching.push(object);
        }
    }
    Ok(matching)
}

/// Takes one of the disruptions that the budget allows, or returns the refusal.
async fn take_from_budget(
    registry: &Registry,
    budget: &Object,
    pod: &Pod,
    dry: bool,
) -> Result<Way, StatusError> {
    let served = registry
        .table
        .find("policy", "v1", "poddisruptionbudgets")
        .ok_or_else(StatusError::path_not_found)?;
    let now = metadata::rfc3339(registry.clock.now());
    let ready = is_ready(pod);
    let name = pod.metadata.name.as_deref().unwrap_or("");
    let taken = AtomicBool::new(true);
    let change = |budget: Value| {
        let next = decremented(&budget, name, ready, &now)?;
        taken.store(next != budget, Ordering::Relaxed);
        Ok(next)
    };
    update::modify_raw(registry, &served, budget.namespace(), budget.name(), dry, &change).await?;
    Ok(match taken.load(Ordering::Relaxed) {
        true => Way::Any,
        false => Way::WhileUnready { budget: budget.name().to_owned() },
    })
}

fn still_processed(budget: &str) -> String {
    format!("The disruption budget {budget} is still being processed by the server.")
}

fn decremented(budget: &Value, pod: &str, ready: bool, now: &str) -> Result<Value, StatusError> {
    let name = metadata::text(budget, "name");
    let status = |field: &str| budget["status"][field].as_i64().unwrap_or(0);
    let policy = budget["spec"]["unhealthyPodEvictionPolicy"].as_str().unwrap_or("");
    let healthy = status("currentHealthy") >= status("desiredHealthy") && status("desiredHealthy") > 0;
    if !ready && (policy == "AlwaysAllow" || healthy) {
        return Ok(budget.clone());
    }
    if status("observedGeneration") < budget["metadata"]["generation"].as_i64().unwrap_or(0) {
        return Err(too_many(still_processed(name), RETRY_SECONDS));
    }
    let forbidden = |why: &str| {
        let resource = knarr_apimachinery::gvk::GroupResource::new("policy", "poddisruptionbudgets");
        Err(StatusError::forbidden(&resource, name, why))
    };
    if status("disruptionsAllowed") < 0 {
        return forbidden("pdb disruptions allowed is negative");
    }
    if budget["status"]["disruptedPods"].as_object().map_or(0, serde_json::Map::len) > MAX_DISRUPTED {
        return forbidden("DisruptedPods map too big - too many evictions not confirmed by PDB controller");
    }
    if status("disruptionsAllowed") == 0 {
        // The time until a disruption is allowed is unknown, so the answer has no retry delay.
        return Err(too_many(why_none(budget), 0));
    }
    let mut budget = budget.clone();
    let left = status_allowed(&budget) - 1;
    budget["status"]["disruptionsAllowed"] = left.into();
    if left == 0 {
        forbid_further(&mut budget["status"], now);
    }
    if !budget["status"]["disruptedPods"].is_object() {
        budget["status"]["disruptedPods"] = json!({});
    }
    budget["status"]["disruptedPods"][pod] = now.into();
    Ok(budget)
}

/// Sets the budget's condition after the last allowed disruption was taken.
fn forbid_further(status: &mut Value, now: &str) {
    let generation = status["observedGeneration"].clone();
    let conditions = status["conditions"].as_array_mut();
    for condition in conditions.into_iter().flatten().filter(|c| c["type"] == DISRUPTION_ALLOWED) {
        if condition["status"] != "False" {
            condition["lastTransitionTime"] = now.into();
        }
        condition["status"] = "False".into();
        condition["reason"] = "InsufficientPods".into();
        condition["message"] = "".into();
        condition["observedGeneration"] = generation.clone();
    }
}

/// Returns the message for a budget that allows no disruption.
fn why_none(budget: &Value) -> String {
    let name = metadata::text(budget, "name");
    let status = |field: &str| budget["status"][field].as_i64().unwrap_or(0);
    let conditions = budget["status"]["conditions"].as_array();
    let refuses = |c: &&Value| c["type"] == DISRUPTION_ALLOWED && c["status"] == "False";
    let condition = conditions.into_iter().flatten().find(refuses);
    let (reason, message) = condition
        .map_or(("", ""), |c| (c["reason"].as_str().unwrap_or(""), c["message"].as_str().unwrap_or("")));
    let refusal = format!("The disruption budget {name} does not allow evicting pods currently");
    match (reason, message) {
        ("SyncFailed", message) if !message.is_empty() => {
            format!("{refusal} because it failed sync: {message}")
        }
        _ if status("currentHealthy") <= status("desiredHealthy") => format!(
            "The disruption budget {name} needs {} healthy pods and has {} currently",
            status("desiredHealthy"),
            status("currentHealthy")
        ),
        (_, "") => refusal,
        (reason, message) => format!("{refusal} ({reason}): {message}"),
    }
}

fn status_allowed(budget: &Value) -> i64 {
    budget["status"]["disruptionsAllowed"].as_i64().unwrap_or(0)
}

fn too_many(message: String, retry_after_seconds: i32) -> StatusError {
    let mut error = StatusError::too_many_requests(VIOLATES, retry_after_seconds);
    if let Some(details) = &mut error.0.details {
        details.retry_after_seconds = details.retry_after_seconds.filter(|seconds| *seconds > 0);
        details.causes = Some(vec![StatusCause {
            reason: Some("DisruptionBudget".into()),
            message: Some(message),
            field: None,
        }]);
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evicted_pods_say_so() {
        let pod = json!({"metadata": {"generation": 3}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let once = marked(pod, "2026-01-01T00:00:00Z");
        let condition = &once["status"]["conditions"][1];
        assert_eq!(condition["type"], "DisruptionTarget");
        assert_eq!(condition["reason"], "EvictionByEvictionAPI");
        assert_eq!(condition["observedGeneration"], 3);
        // A second call keeps one condition with its original time.
        assert_eq!(marked(once.clone(), "2026-02-01T00:00:00Z"), once);
        assert_eq!(marked(json!({}), "now")["status"]["conditions"][0]["message"], "Eviction API: evicting");
    }

    #[test]
    fn budgets_are_used_up() {
        let budget = |allowed: i64| {
            json!({"metadata": {"name": "b", "generation": 1}, "spec": {}, "status": {
                "observedGeneration": 1, "disruptionsAllowed": allowed, "desiredHealthy": 2, "currentHealthy": 2}})
        };
        let after = decremented(&budget(1), "p", true, "t").unwrap();
        assert_eq!(after["status"]["disruptionsAllowed"], 0);
        assert_eq!(after["status"]["disruptedPods"]["p"], "t");
        let refused = decremented(&after, "q", true, "t").unwrap_err();
        assert_eq!((refused.code(), refused.message()), (429, VIOLATES));
        let details = refused.0.details.as_ref().unwrap();
        assert_eq!(details.retry_after_seconds, None, "nobody knows when");
        let cause = details.causes.as_ref().unwrap()[0].message.as_deref();
        assert_eq!(cause, Some("The disruption budget b needs 2 healthy pods and has 2 currently"));
        let mut stale = budget(1);
        stale["metadata"]["generation"] = 2.into();
        let refused = decremented(&stale, "p", true, "t").unwrap_err();
        assert_eq!(refused.0.details.as_ref().unwrap().retry_after_seconds, Some(10));
        // A pod that is not ready may be evicted while enough others are healthy.
        assert!(decremented(&after, "q", false, "t").is_ok());
    }
}
