//! How control plane components end pods: the condition `DisruptionTarget` with its reason, and the deletion.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions, Time};
use knarr_api::kind::Kind;
use knarr_client::{Client, Patch, Result};
use serde_json::{Value, json};

use crate::support::pod_state::{condition, has_ended};

pub const TYPE: &str = "DisruptionTarget";

/// Why a pod is to be deleted: reason and message of the condition.
#[derive(Debug, Clone, Copy)]
pub struct Disruption {
    pub reason: &'static str,
    pub message: &'static str,
}

impl Disruption {
    fn is_on(&self, pod: &Pod) -> bool {
        condition(pod, TYPE).is_some_and(|c| {
            c.status == "True"
                && c.reason.as_deref() == Some(self.reason)
                && c.message.as_deref() == Some(self.message)
        })
    }

    fn condition(&self, pod: &Pod, now: Timestamp) -> Value {
        let known = condition(pod, TYPE).filter(|c| c.status == "True");
        let since = known.and_then(|c| c.last_transition_time.clone()).unwrap_or(Time(now));
        let mut condition = json!({"type": TYPE, "status": "True", "reason": self.reason,
            "message": self.message, "lastTransitionTime": since});
        if let Some(generation) = pod.metadata.generation {
            condition["observedGeneration"] = json!(generation);
        }
        condition
    }
}

/// Returns the strategic patch of the status that sets the condition; `None` if the pod has it already.
pub fn mark(pod: &Pod, disruption: Disruption, now: Timestamp) -> Option<Value> {
    if disruption.is_on(pod) {
        return None;
    }
    Some(json!({"metadata": {"uid": pod.uid()},
        "status": {"conditions": [disruption.condition(pod, now)]}}))
}

/// Returns the strategic patch of the status that makes a pod Failed, for a pod that no kubelet will report on any
/// more; `None` if the pod has ended already.
pub fn mark_failed(pod: &Pod, disruption: Option<Disruption>, now: Timestamp) -> Option<Value> {
    if has_ended(pod) {
        return None;
    }
    let mut status = json!({"phase": "Failed"});
    if let Some(generation) = pod.metadata.generation {
        status["observedGeneration"] = json!(generation);
    }
    if let Some(disruption) = disruption {
        status["conditions"] = json!([disruption.condition(pod, now)]);
    }
    Some(json!({"metadata": {"uid": pod.uid()}, "status": status}))
}

/// Sends the patch of the status, if there is one, and deletes this pod, with its own grace period if none is given.
/// Returns false if the pod was gone already.
///
/// A conflict is returned as an error to retry: it does not prove that another pod has taken the name, and if one
/// has, the informer shows it by the next attempt.
pub async fn delete(
    client: &Client,
    pod: &Pod,
    patch: Option<Value>,
    grace_seconds: Option<i64>,
) -> Result<bool> {
    let (namespace, name) = (pod.namespace(), pod.name());
    if let Some(patch) = patch {
        match client.patch::<Pod>(namespace, name, Some("status"), &Patch::Strategic(patch)).await {
            Err(error) if error.is_not_found() => return Ok(false),
            other => other?,
        };
    }
    let options = DeleteOptions {
        grace_period_seconds: grace_seconds,
        preconditions: Some(Preconditions { uid: pod.metadata.uid.clone(), resource_version: None }),
        ..DeleteOptions::default()
    };
    match client.delete::<Pod>(namespace, name, &options).await {
        Err(error) if error.is_not_found() => Ok(false),
        other => other.map(|()| true),
    }
}
