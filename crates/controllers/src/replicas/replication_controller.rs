//! ReplicationController (core/v1): the predecessor of ReplicaSet, with a selector of plain labels.

use k8s_openapi::api::core::v1::{
    PodTemplateSpec, ReplicationController, ReplicationControllerCondition, ReplicationControllerSpec,
    ReplicationControllerStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use knarr_apimachinery::selector::Selector;

use super::plan::{Condition, Status};
use super::{Replicas, run};
use crate::context::Descriptor;

const NAME: &str = "replicationcontroller-controller";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    run: |cx| Box::pin(async move { run::<ReplicationController>(cx, NAME).await }),
};

fn spec(of: &ReplicationController) -> Option<&ReplicationControllerSpec> {
    of.spec.as_ref()
}

impl Replicas for ReplicationController {
    fn wanted(&self) -> i32 {
        spec(self).and_then(|s| s.replicas).unwrap_or(1)
    }

    fn min_ready_seconds(&self) -> i32 {
        spec(self).and_then(|s| s.min_ready_seconds).unwrap_or(0)
    }

    fn template(&self) -> Option<&PodTemplateSpec> {
        spec(self)?.template.as_ref()
    }

    fn selector(&self) -> Option<Selector> {
        let labels = LabelSelector { match_labels: spec(self)?.selector.clone(), match_expressions: None };
        let selector = Selector::from_label_selector(Some(&labels)).ok()?;
        (!selector.is_everything()).then_some(selector)
    }

    fn status(&self) -> Status {
        let Some(status) = &self.status else { return Status::default() };
        let conditions = status.conditions.iter().flatten().map(|c| Condition {
            type_: c.type_.clone(),
            status: c.status.clone(),
            reason: c.reason.clone(),
            message: c.message.clone(),
            last_transition_time: c.last_transition_time.clone(),
        });
        Status {
            replicas: status.replicas,
            fully_labeled: status.fully_labeled_replicas.unwrap_or(0),
            ready: status.ready_replicas.unwrap_or(0),
            available: status.available_replicas.unwrap_or(0),
            terminating: None,
            observed_generation: status.observed_generation,
            conditions: conditions.collect(),
        }
    }

    fn with_status(&self, status: Status) -> Self {
        let conditions: Vec<_> = status
            .conditions
            .into_iter()
            .map(|c| ReplicationControllerCondition {
                type_: c.type_,
                status: c.status,
                reason: c.reason,
                message: c.message,
                last_transition_time: c.last_transition_time,
            })
            .collect();
        let count = |n: i32| (n > 0).then_some(n);
        let status = ReplicationControllerStatus {
            replicas: status.replicas,
            fully_labeled_replicas: count(status.fully_labeled),
            ready_replicas: count(status.ready),
            available_replicas: count(status.available),
            observed_generation: status.observed_generation,
            conditions: (!conditions.is_empty()).then_some(conditions),
        };
        Self { status: Some(status), ..self.clone() }
    }
}
