//! A waiting pod: its identity and its shape. It takes little memory, so that very many pods can wait.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ObjectReference, Pod, PodSpec};
use knarr_api::kind::{Kind, ObjectKey};

use super::footprint::Footprint;
use super::shape::Shape;
use crate::snapshot::PlacedPod;

/// A pod that waits for a node.
#[derive(Debug, Clone)]
pub struct PodInfo {
    pub uid: Box<str>,
    pub name: Box<str>,
    pub resource_version: Box<str>,
    pub generation: Option<i64>,
    pub shape: Arc<Shape>,
    /// The node where preemption makes room for the pod.
    pub nominated_node: Option<Box<str>>,
    /// The pod is being deleted.
    pub leaving: bool,
    /// The reason and message of its PodScheduled condition, if the status is False.
    pub said: Option<Box<(String, String)>>,
}

impl PodInfo {
    /// Returns the info of a waiting pod.
    pub fn new(pod: &Pod) -> Self {
        let status = pod.status.as_ref();
        let conditions = status.and_then(|s| s.conditions.as_deref()).unwrap_or_default();
        let refused = conditions.iter().find(|c| c.type_ == "PodScheduled" && c.status == "False");
        let text = |t: &Option<String>| t.clone().unwrap_or_default();
        Self {
            uid: pod.uid().into(),
            name: pod.name().into(),
            resource_version: pod.metadata.resource_version.as_deref().unwrap_or_default().into(),
            generation: pod.metadata.generation,
            shape: Shape::of(pod),
            nominated_node: status
                .and_then(|s| s.nominated_node_name.as_deref())
                .filter(|n| !n.is_empty())
                .map(Into::into),
            leaving: pod.metadata.deletion_timestamp.is_some(),
            said: refused.map(|c| Box::new((text(&c.reason), text(&c.message)))),
        }
    }

    pub fn uid(&self) -> &str {
        &self.uid
    }

    pub fn namespace(&self) -> &str {
        self.shape.namespace()
    }

    /// The pod, reduced to the fields that scheduling reads.
    pub fn pod(&self) -> &Pod {
        &self.shape.pod
    }

    pub fn spec(&self) -> Option<&PodSpec> {
        self.shape.spec()
    }

    pub fn footprint(&self) -> &Arc<Footprint> {
        &self.shape.footprint
    }

    /// The pod's priority; 0 if it has none.
    pub fn priority(&self) -> i32 {
        self.footprint().priority
    }

    pub fn scheduler_name(&self) -> &str {
        self.spec().and_then(|s| s.scheduler_name.as_deref()).unwrap_or("default-scheduler")
    }

    /// The pod group that the pod names.
    pub fn group(&self) -> Option<ObjectKey> {
        let group = self.spec()?.scheduling_group.as_ref()?;
        Some(ObjectKey::new(self.namespace(), group.pod_group_name.as_deref()?))
    }

    /// The pod as it counts on a node.
    pub fn placed(&self) -> PlacedPod {
        PlacedPod {
            uid: self.uid.clone(),
            name: self.name.clone(),
            generation: self.generation,
            footprint: Arc::clone(self.footprint()),
            started_seconds: None,
            preempted: false,
        }
    }

    /// The reference to the pod for events.
    pub fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(self.name.to_string()),
            namespace: Some(self.namespace().to_owned()),
            uid: Some(self.uid.to_string()),
            resource_version: Some(self.resource_version.to_string()),
            field_path: None,
        }
    }
}

impl PlacedPod {
    /// Returns the placed pod of a pod that is bound to a node.
    pub fn of(pod: &Pod) -> Self {
        let started = pod.status.as_ref().and_then(|s| s.start_time.as_ref());
        let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
        let preempted = conditions.iter().any(|c| {
            c.type_ == "DisruptionTarget"
                && c.status == "True"
                && c.reason.as_deref() == Some("PreemptionByScheduler")
        });
        Self {
            uid: pod.uid().into(),
            name: pod.name().into(),
            generation: pod.metadata.generation,
            preempted: preempted && pod.metadata.deletion_timestamp.is_some(),
            footprint: Footprint::of_placed(pod),
            started_seconds: started.map(|t| t.0.as_second()),
        }
    }
}
