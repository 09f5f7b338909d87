//! Binding: assigns a pod to the node that the scheduler chose.

use std::sync::Arc;

use knarr_api::prepare;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::gvk::GroupResource;
use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};

use super::body_of;
use crate::Registry;
use crate::attributes::{Attributes, Operation};
use crate::options::WriteParams;
use crate::{metadata, update};
use knarr_wire::output::Answer;
use knarr_wire::request::Request;

/// Handles POST to `pods/NAME/binding`, or to `bindings`.
pub async fn answer(registry: &Arc<Registry>, request: &Request) -> Result<Answer, StatusError> {
    let params = WriteParams::parse(request, "CreateOptions")?;
    let binding = body_of(request, "", "v1", "Binding", &params)?;
    let info = &request.info;
    let own = metadata::text(&binding, "name");
    let name = if info.subresource.is_empty() { own } else { &info.name };
    if own != name {
        return Err(StatusError::bad_request("name in URL does not match name in Binding object"));
    }
    let in_namespace = metadata::text(&binding, "namespace");
    if !in_namespace.is_empty() && in_namespace != info.namespace {
        return Err(StatusError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    let errors = validate(&binding);
    if !errors.is_empty() {
        // Upstream returns a plain error here, which becomes 500, and clients rely on that.
        return Err(StatusError::new(500, "", errors.to_string()));
    }
    let served = registry.table.find(&info.group, &info.version, &info.resource);
    let served = served.ok_or_else(StatusError::path_not_found)?;
    let place = (info.namespace.as_str(), name, info.subresource.as_str());
    let object = binding.clone();
    let mut attributes = Attributes::new(request, &served, Operation::Create, place, object, params.dry_run);
    let binding = registry.admit(&mut attributes).await?;
    let pods = registry.table.find("", "v1", "pods").ok_or_else(StatusError::path_not_found)?;
    let now = metadata::rfc3339(registry.clock.now());
    let change = |pod: Value| bound(pod, &binding, &now);
    update::modify_raw(registry, &pods, &info.namespace, name, params.dry_run, &change).await?;
    Ok(Answer::created())
}

fn validate(binding: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let target = Path::new("target");
    let text = |field: &str| binding["target"][field].as_str().unwrap_or("");
    if !matches!(text("kind"), "" | "Node") {
        errors.push(Error::not_supported(&target.child("kind"), text("kind"), &["Node", "<empty>"]));
    }
    if text("name").is_empty() {
        errors.push(Error::required(&target.child("name"), ""));
    }
    errors
}

/// Returns the pod with its node set, if it has no node and is not being deleted.
fn bound(mut pod: Value, binding: &Value, now: &str) -> Result<Value, StatusError> {
    check(&pod, binding)?;
    for field in ["annotations", "labels"] {
        if let Some(added) = binding["metadata"][field].as_object() {
            let slot = prepare::metadata(&mut pod).entry(field).or_insert(Value::Null);
            prepare::object(slot).extend(added.clone());
        }
    }
    pod["spec"]["nodeName"] = binding["target"]["name"].clone();
    // The nomination has been fulfilled.
    if let Some(status) = pod["status"].as_object_mut() {
        status.remove("nominatedNodeName");
    }
    let generation = pod["metadata"]["generation"].clone();
    let conditions = &mut pod["status"]["conditions"];
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    if let Value::Array(list) = conditions {
        let scheduled = list.iter().position(|c| c["type"] == "PodScheduled");
        let mut condition = json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now});
        if !generation.is_null() {
            condition["observedGeneration"] = generation;
        }
        match scheduled {
            Some(i) => {
                if list[i]["status"] == "True" {
                    condition["lastTransitionTime"] = list[i]["lastTransitionTime"].clone();
                }
                list[i] = condition;
            }
            None => list.push(condition),
        }
    }
    Ok(pod)
}

/// Checks that the pod has no node and is not being deleted.
fn check(pod: &Value, binding: &Value) -> Result<(), StatusError> {
    let name = metadata::text(pod, "name");
    let conflict = |why: String| {
        let resource = GroupResource::new("", "pods/binding");
        Err(StatusError::conflict(&resource, name, &why))
    };
    for (what, field) in [("UID", "uid"), ("ResourceVersion", "resourceVersion")] {
        let (wanted, existing) = (metadata::text(binding, field), metadata::text(pod, field));
        if !wanted.is_empty() && wanted != existing {
            return conflict(format!(
                "Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {existing}"
            ));
        }
    }
    if metadata::is_deleting(pod) {
        return conflict(format!("pod {name} is being deleted, cannot be assigned to a host"));
    }
    let assigned = pod["spec"]["nodeName"].as_str().unwrap_or("");
    if !assigned.is_empty() {
        return conflict(format!("pod {name} is already assigned to node \"{assigned}\""));
    }
    if pod["spec"]["schedulingGates"].as_array().is_some_and(|g| !g.is_empty()) {
        return conflict(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_bound_once() {
        let pod = json!({"metadata": {"name": "p", "uid": "u", "generation": 3}, "spec": {}, "status": {"nominatedNodeName": "n", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "observedGeneration": 2}]}});
        let binding = json!({"metadata": {"name": "p", "annotations": {"a": "b"}}, "target": {"kind": "Node", "name": "n"}});
        let now = "2026-01-01T00:00:00Z";
        let after = bound(pod, &binding, now).unwrap();
        assert_eq!(after["spec"]["nodeName"], "n");
        assert_eq!(after["metadata"]["annotations"]["a"], "b");
        assert_eq!(after["status"].get("nominatedNodeName"), None);
        let condition = json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now,
            "observedGeneration": 3});
        assert_eq!(after["status"]["conditions"], json!([condition]));
        let again = bound(after, &binding, now).unwrap_err();
        assert_eq!(again.code(), 409);
        assert_eq!(
            again.message(),
            "Operation cannot be fulfilled on pods/binding \"p\": pod p is already assigned to node \"n\""
        );
    }

    #[test]
    fn a_binding_needs_a_node() {
        assert_eq!(validate(&json!({"target": {}})).to_string(), "target.name: Required value");
        assert!(
            validate(&json!({"target": {"kind": "Pod", "name": "x"}}))
                .to_string()
                .starts_with("target.kind: Unsupported value: \"Pod\"")
        );
    }
}
