//! ValidatingAdmissionPolicy status: type-checks a policy's expressions against the kinds it matches and reports
//! warnings.

use std::sync::Arc;

use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use knarr_api::admissionregistration::type_checking;
use knarr_api::kind::Kind;
use knarr_client::client::Patch;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Lister, Result};
use serde_json::{Value, json};

use crate::context::{Context, Descriptor};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "validatingadmissionpolicy-status-controller",
    run: |cx| Box::pin(async move { run(cx).await }),
};

async fn run(cx: Arc<Context>) {
    let queue: Arc<WorkQueue<String>> = WorkQueue::new(Arc::clone(&cx.clock));
    let policies = cx.informers.informer::<ValidatingAdmissionPolicy>();
    let definitions = cx.informers.informer::<CustomResourceDefinition>();
    let on_change = Arc::clone(&queue);
    policies.add_handler(move |event| on_change.add(event.object().name().to_owned()));
    if !(policies.wait_synced().await && definitions.wait_synced().await) {
        return;
    }
    let (policies, definitions, stop) = (policies.lister(), definitions.lister(), cx.stop.clone());
    let workers = cx.workers();
    let reconcile = move |name: String| {
        let (cx, policies, definitions) = (Arc::clone(&cx), policies.clone(), definitions.clone());
        async move { check(&cx, &policies, &definitions, &name).await }
    };
    queue.run(DESCRIPTOR.name, workers, stop, reconcile).await;
}

async fn check(
    cx: &Context,
    policies: &Lister<ValidatingAdmissionPolicy>,
    definitions: &Lister<CustomResourceDefinition>,
    name: &str,
) -> Result<()> {
    let Some(policy) = policies.get("", name).filter(|p| is_unseen(p)) else { return Ok(()) };
    let definitions: Vec<Value> =
        definitions.list().iter().filter_map(|d| serde_json::to_value(&**d).ok()).collect();
    let patch = Patch::Apply { object: status(&policy, &definitions), force: true };
    match cx.client.patch::<ValidatingAdmissionPolicy>("", name, Some("status"), &patch).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

/// Returns whether the policy changed since its expressions were last type-checked.
fn is_unseen(policy: &ValidatingAdmissionPolicy) -> bool {
    let seen = policy.status.as_ref().and_then(|s| s.observed_generation);
    policy.metadata.generation.unwrap_or(0) > seen.unwrap_or(0)
}

/// Returns the status that is applied to the policy.
fn status(policy: &ValidatingAdmissionPolicy, definitions: &[Value]) -> Value {
    let spec = serde_json::to_value(&policy.spec).unwrap_or_default();
    let warnings = type_checking::warnings(&spec, definitions);
    let mut checking = json!({});
    if !warnings.is_empty() {
        checking["expressionWarnings"] = Value::Array(warnings);
    }
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": policy.metadata.name},
        "status": {"observedGeneration": policy.metadata.generation, "typeChecking": checking},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_policy_is_checked_once() {
        let mut policy: ValidatingAdmissionPolicy = serde_json::from_value(json!({
            "metadata": {"name": "p", "generation": 2},
            "spec": {
                "matchConstraints": {"resourceRules": [{"apiGroups": ["apps"], "apiVersions": ["v1"],
                    "operations": ["*"], "resources": ["deployments"]}]},
                "validations": [{"expression": "object.spec.replicas > 1"}, {"expression": "object.spec.x > 1"}],
            },
        }))
        .unwrap();
        assert!(is_unseen(&policy));
        let applied = status(&policy, &[]);
        assert_eq!(applied["status"]["observedGeneration"], 2);
        let warnings = applied["status"]["typeChecking"]["expressionWarnings"].as_array().unwrap();
        assert_eq!(warnings.len(), 1);
        assert_eq!(warnings[0]["fieldRef"], "spec.validations[1].expression");
        policy.status = serde_json::from_value(json!({"observedGeneration": 2})).unwrap();
        assert!(!is_unseen(&policy));
        policy.spec = serde_json::from_value(json!({"validations": [{"expression": "true"}]})).unwrap();
        assert_eq!(status(&policy, &[])["status"]["typeChecking"], json!({}));
    }
}
