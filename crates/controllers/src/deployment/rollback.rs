//! The rollback of `extensions/v1beta1`, which still exists as an annotation: returns to an earlier revision's
//! template.

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use knarr_api::kind::Kind;
use knarr_client::events::EventType;

use super::revision::{self, OWN_ANNOTATIONS, without_hash};

const ROLLBACK_TO: &str = "deprecated.deployment.rollback.to";

/// The outcome of the request, and the Deployment without the request.
pub struct Rollback {
    pub deployment: Deployment,
    pub type_: EventType,
    pub reason: &'static str,
    pub message: String,
}

/// Returns the requested revision; 0 stands for the previous one.
pub fn asked(deployment: &Deployment) -> Option<i64> {
    deployment.metadata.annotations.as_ref()?.get(ROLLBACK_TO)?.parse().ok()
}

/// Returns the second highest revision, if there are two.
fn before_last(sets: &[ReplicaSet]) -> Option<i64> {
    let mut numbers: Vec<i64> =
        sets.iter().map(|s| revision::revision(&s.metadata)).filter(|n| *n > 0).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers.iter().rev().nth(1).copied()
}

/// Carries out the requested rollback; `None` if none is requested.
pub fn rollback(deployment: &Deployment, sets: &[ReplicaSet]) -> Option<Rollback> {
    let asked = asked(deployment)?;
    let mut next = deployment.clone();
    next.metadata.annotations.get_or_insert_default().remove(ROLLBACK_TO);
    let not_found = |deployment, message: &str| Rollback {
        deployment,
        type_: EventType::Warning,
        reason: "DeploymentRollbackRevisionNotFound",
        message: message.to_owned(),
    };
    let Some(number) = Some(asked).filter(|n| *n != 0).or_else(|| before_last(sets)) else {
        return Some(not_found(next, "Unable to find last revision."));
    };
    let of_number = |set: &&ReplicaSet| revision::revision(&set.metadata) == number;
    let Some((set, template)) =
        sets.iter().find(of_number).and_then(|s| Some((s, s.spec.template.as_ref()?)))
    else {
        return Some(not_found(next, "Unable to find the revision to rollback to."));
    };
    let template = without_hash(template);
    if without_hash(&deployment.spec.template) == template {
        let message = format!(
            "The rollback revision contains the same template as current deployment {:?}",
            deployment.name()
        );
        let (type_, reason) = (EventType::Warning, "DeploymentRollbackTemplateUnchanged");
        return Some(Rollback { deployment: next, type_, reason, message });
    }
    next.spec.template = template;
    // The annotations become those of the earlier revision, except those about sets and revisions.
    let annotations = next.metadata.annotations.get_or_insert_default();
    annotations.retain(|key, _| OWN_ANNOTATIONS.contains(&key.as_str()));
    let then = set.metadata.annotations.iter().flatten();
    let then = then.filter(|(key, _)| !OWN_ANNOTATIONS.contains(&key.as_str()));
    annotations.extend(then.map(|(key, value)| (key.clone(), value.clone())));
    let message = format!("Rolled back deployment {:?} to revision {number}", deployment.name());
    Some(Rollback { deployment: next, type_: EventType::Normal, reason: "DeploymentRollback", message })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn set(number: i64, image: &str) -> ReplicaSet {
        serde_json::from_value(json!({
            "metadata": {"name": format!("d-{number}"), "annotations": {
                "deployment.kubernetes.io/revision": number.to_string(), "why": image}},
            "spec": {"selector": {}, "template": {"metadata": {"labels": {"pod-template-hash": "x"}},
                "spec": {"containers": [{"name": "c", "image": image}]}}}}))
        .unwrap()
    }

    fn outcome(to: &str) -> (&'static str, String, Option<String>) {
        let deployment: Deployment = serde_json::from_value(json!({
            "metadata": {"name": "d", "annotations": {ROLLBACK_TO: to, "why": "v2",
                "deployment.kubernetes.io/revision": "2"}},
            "spec": {"selector": {}, "template": {"metadata": {"labels": {}},
                "spec": {"containers": [{"name": "c", "image": "v2"}]}}}}))
        .unwrap();
        let rollback = rollback(&deployment, &[set(1, "v1"), set(2, "v2")]).unwrap();
        let annotations = rollback.deployment.metadata.annotations.unwrap();
        assert!(!annotations.contains_key(ROLLBACK_TO));
        let image = rollback.deployment.spec.template.spec.unwrap().containers[0].image.clone().unwrap();
        (rollback.reason, image, annotations.get("why").cloned())
    }

    #[test]
    fn to_a_revision_or_the_one_before() {
        let why = |text: &str| Some(text.to_owned());
        assert_eq!(outcome("0"), ("DeploymentRollback", "v1".into(), why("v1")));
        assert_eq!(outcome("1"), ("DeploymentRollback", "v1".into(), why("v1")));
        assert_eq!(outcome("2"), ("DeploymentRollbackTemplateUnchanged", "v2".into(), why("v2")));
        assert_eq!(outcome("7"), ("DeploymentRollbackRevisionNotFound", "v2".into(), why("v2")));
        assert_eq!(asked(&Deployment::default()), None);
    }
}
