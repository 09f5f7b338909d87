//! The pods of a manifest: the pod itself, or those that its controller would create.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod, Toleration};
use knarr_api::core::pod::placement;
use knarr_api::kind::Kind;
use knarr_api::resources;
use serde_json::{Value, json};

use super::bounds::Budget;
use super::{WhatIf, WhatIfError};
use crate::config::strict;

/// The taints that every pod of a DaemonSet tolerates, with their effects.
const DAEMON_TOLERATIONS: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];

/// Returns the pods of a manifest, with defaults and priorities, or the first `wanted` of them. `namespace` applies to
/// manifests without one.
pub(super) fn pods(
    what_if: &WhatIf,
    namespace: &str,
    manifest: &Value,
    wanted: Option<usize>,
    budget: &mut Budget,
) -> Result<Vec<Pod>, WhatIfError> {
    let kind = manifest["kind"].as_str().unwrap_or_default();
    let name = manifest["metadata"]["name"].as_str().unwrap_or_default();
    let namespace = manifest["metadata"]["namespace"].as_str().unwrap_or(namespace);
    let wrong = |why: String| WhatIfError::Object { at: 0, kind: kind.to_owned(), why };
    let spec = &manifest["spec"];
    let number = |value: &Value, otherwise: u64| value.as_u64().unwrap_or(otherwise);
    let replicas = number(&spec["replicas"], 1);
    let (count, template) = match kind {
        "Pod" => (1, manifest),
        "Deployment" | "ReplicaSet" | "ReplicationController" | "StatefulSet" => {
            (replicas, &spec["template"])
        }
        "Job" => {
            let parallelism = number(&spec["parallelism"], 1);
            (parallelism.min(number(&spec["completions"], parallelism)), &spec["template"])
        }
        "CronJob" => {
            let job = json!({
                "kind": "Job", "metadata": {"name": name, "namespace": namespace}, "spec": spec["jobTemplate"]["spec"],
            });
            return pods(what_if, namespace, &job, wanted, budget).map_err(in_job_template);
        }
        "DaemonSet" => {
            let pod = pod(what_if, namespace, name, &spec["template"]).map_err(wrong)?;
            let pod = for_daemons(&pod);
            let nodes: Vec<&str> = daemon_nodes(what_if, &pod).take(wanted.unwrap_or(usize::MAX)).collect();
            budget.take(kind, name, nodes.len(), bytes_of(&spec["template"]))?;
            return Ok(nodes.into_iter().map(|node| on_node(&pod, node)).collect());
        }
        _ => return Err(WhatIfError::NoPods { kind: kind.to_owned(), name: name.to_owned() }),
    };
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let count = count.min(wanted.unwrap_or(usize::MAX));
    budget.take(kind, name, count, bytes_of(template))?;
    let pod = pod(what_if, namespace, name, template).map_err(wrong)?;
    if kind == "Pod" {
        return Ok(vec![pod]);
    }
    let numbered = |n: usize| {
        let mut pod = pod.clone();
        pod.metadata.name = Some(format!("{name}-{n}"));
        pod
    };
    Ok((0..count).map(numbered).collect())
}

/// Turns an error about a CronJob's Job into one about the CronJob.
fn in_job_template(wrong: WhatIfError) -> WhatIfError {
    match wrong {
        WhatIfError::Object { at, why, .. } => {
            let why = if why.starts_with("spec.") { format!("spec.jobTemplate.{why}") } else { why };
            WhatIfError::Object { at, kind: "CronJob".to_owned(), why }
        }
        other => other,
    }
}

/// Makes a pod of the template, as the API server would store it.
fn pod(what_if: &WhatIf, namespace: &str, name: &str, template: &Value) -> Result<Pod, String> {
    let mut value = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"], "spec": template["spec"],
    });
    if !value["metadata"].is_object() {
        value["metadata"] = json!({});
    }
    value["metadata"]["namespace"] = namespace.into();
    value["metadata"]["name"] = name.into();
    if let Some(resource) = resources::of(&Pod::RESOURCE) {
        resource.strategy.default(&mut value);
    }
    // The decoder's own error does not contain the path.
    let placed = |error: String| match strict::read::<Pod>(&value) {
        Err(why) if template["kind"] == "Pod" => why,
        Err(why) => format!("spec.template.{why}"),
        Ok(_) => error,
    };
    let mut pod = Pod::decode(value.to_string().as_bytes()).map_err(|e| placed(e.to_string()))?;
    set_priority(what_if, &mut pod)?;
    Ok(pod)
}

/// Sets the priority, as the Priority admission plugin does.
fn set_priority(what_if: &WhatIf, pod: &mut Pod) -> Result<(), String> {
    let Some(spec) = pod.spec.as_mut() else { return Err("spec: Required value".to_owned()) };
    if spec.priority.is_some() {
        return Ok(());
    }
    let class = match spec.priority_class_name.as_deref().filter(|n| !n.is_empty()) {
        Some(name) => Some(
            what_if
                .classes
                .iter()
                .find(|c| c.name() == name)
                .ok_or_else(|| format!("no PriorityClass with name {name} was found"))?,
        ),
        None => what_if.classes.iter().filter(|c| c.global_default == Some(true)).min_by_key(|c| c.value),
    };
    spec.priority = Some(class.and_then(|c| c.value).unwrap_or(0));
    if spec.preemption_policy.is_none() {
        spec.preemption_policy = class.and_then(|c| c.preemption_policy.clone());
    }
    Ok(())
}

/// The size of a template in bytes, in JSON form.
fn bytes_of(template: &Value) -> usize {
    template.to_string().len()
}

/// Returns a DaemonSet's pod, not yet for a certain node.
fn for_daemons(template: &Pod) -> Pod {
    let mut pod = template.clone();
    if let Some(spec) = &mut pod.spec {
        let own = DAEMON_TOLERATIONS.iter().map(|(key, effect)| Toleration {
            key: Some((*key).to_owned()),
            operator: Some("Exists".to_owned()),
            effect: Some((*effect).to_owned()),
            ..Toleration::default()
        });
        spec.tolerations.get_or_insert_default().extend(own);
    }
    pod
}

/// Returns the names of the nodes that the DaemonSet would have this pod on.
fn daemon_nodes<'a>(what_if: &'a WhatIf, pod: &Pod) -> impl Iterator<Item = &'a str> {
    let wanted = move |node: &&Arc<Node>| {
        let tolerations = placement::tolerations(pod);
        let hard = |effect: &str| effect == "NoSchedule" || effect == "NoExecute";
        let mut taints = placement::taints(node).iter().filter(|t| hard(&t.effect));
        placement::node_matches(pod, node) && taints.all(|t| placement::tolerated(tolerations, t))
    };
    what_if.nodes().filter(wanted).map(|node| node.name())
}

/// Returns the pod with an affinity to this node's name, as the DaemonSet controller creates it.
fn on_node(pod: &Pod, node: &str) -> Pod {
    let mut pod = pod.clone();
    pod.metadata.name = Some(format!("{}-{node}", pod.name()));
    let name = json!([{"key": "metadata.name", "operator": "In", "values": [node]}]);
    if let (Some(spec), Ok(requirements)) = (pod.spec.as_mut(), serde_json::from_value::<Vec<_>>(name)) {
        let affinity = spec.affinity.get_or_insert_default().node_affinity.get_or_insert_default();
        let selector = affinity.required_during_scheduling_ignored_during_execution.get_or_insert_default();
        if selector.node_selector_terms.is_empty() {
            selector.node_selector_terms.push(Default::default());
        }
        for term in &mut selector.node_selector_terms {
            term.match_fields = Some(requirements.clone());
        }
    }
    pod
}
