//! When a Service's endpoints last changed. The time is recorded in an annotation of the endpoints, so that
//! components can measure how long the network took to follow.
//!
//! Source: the behaviour of `k8s.io/endpointslice/util`.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::kind::{Kind, ObjectKey};

use crate::support::pod_state::condition;

pub const ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// When the pods of each Service last changed their readiness, as of the last observation.
#[derive(Default)]
pub struct TriggerTimes(Mutex<HashMap<ObjectKey, BTreeMap<String, Timestamp>>>);

impl TriggerTimes {
    /// Records the current times and returns the earliest change since the last observation, if any.
    pub fn observe(&self, service: &Service, pods: &[Arc<Pod>]) -> Option<Timestamp> {
        let changed = |pod: &Pod| condition(pod, "Ready")?.last_transition_time.as_ref().map(|t| t.0);
        let now: BTreeMap<String, Timestamp> =
            pods.iter().filter_map(|pod| Some((pod.name().to_owned(), changed(pod)?))).collect();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match all.insert(service.key(), now.clone()) {
            // For a new Service, its creation is the change.
            None => service.metadata.creation_timestamp.as_ref().map(|t| t.0),
            Some(before) => {
                let is_new =
                    |(name, at): &(&String, &Timestamp)| before.get(*name).is_none_or(|then| then < *at);
                now.iter().filter(is_new).map(|(_, at)| *at).min()
            }
        }
    }

    pub fn forget(&self, service: &ObjectKey) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(service);
    }
}

/// Sets or removes the annotation with the time of the change.
pub fn annotate(meta: &mut ObjectMeta, trigger: Option<Timestamp>) {
    let annotations = meta.annotations.get_or_insert_default();
    match trigger {
        Some(at) => annotations.insert(ANNOTATION.to_owned(), at.to_string()),
        None => annotations.remove(ANNOTATION),
    };
    meta.annotations = meta.annotations.take().filter(|all| !all.is_empty());
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, ready: &str) -> Arc<Pod> {
        Arc::new(
            serde_json::from_value(json!({"metadata": {"name": name}, "status": {"conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": ready}]}}))
            .unwrap(),
        )
    }

    #[test]
    fn the_earliest_change_since_the_last_look() {
        let service: Service = serde_json::from_value(json!({"metadata": {"name": "s", "namespace": "ns",
            "creationTimestamp": "2026-01-01T00:00:00Z"}}))
        .unwrap();
        let times = TriggerTimes::default();
        let look = |pods: &[Arc<Pod>]| times.observe(&service, pods).map(|at| at.to_string());
        let (a, b) = (pod("a", "2026-01-01T00:00:05Z"), pod("b", "2026-01-01T00:00:03Z"));
        assert_eq!(
            look(std::slice::from_ref(&a)).as_deref(),
            Some("2026-01-01T00:00:00Z"),
            "the Service's creation"
        );
        assert_eq!(look(&[a.clone(), b.clone()]).as_deref(), Some("2026-01-01T00:00:03Z"));
        assert_eq!(look(&[a, b]), None);
        let mut meta = ObjectMeta::default();
        annotate(&mut meta, "2026-01-01T00:00:03Z".parse().ok());
        assert_eq!(meta.annotations.as_ref().unwrap()[ANNOTATION], "2026-01-01T00:00:03Z");
        annotate(&mut meta, None);
        assert_eq!(meta.annotations, None);
    }
}
