//! ReplicaSet (apps/v1), which Deployments create.

use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use knarr_apimachinery::selector::Selector;

use super::plan::{Condition, Status};
use super::{Replicas, run};
use crate::context::Descriptor;

const NAME: &str = "replicaset-controller";
pub const DESCRIPTOR: Descriptor =
    Descriptor { name: NAME, run: |cx| Box::pin(async move { run::<ReplicaSet>(cx, NAME).await }) };

impl Replicas for ReplicaSet {
    fn wanted(&self) -> i32 {
        self.spec.replicas.unwrap_or(1)
    }

    fn min_ready_seconds(&self) -> i32 {
        self.spec.min_ready_seconds.unwrap_or(0)
    }

    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.template.as_ref()
    }

    fn selector(&self) -> Option<Selector> {
        let selector = Selector::from_label_selector(Some(&self.spec.selector)).ok()?;
        (!selector.is_everything()).then_some(selector)
    }

    fn status(&self) -> Status {
        let Some(status) = &self.status else { return Status::default() };
        let conditions = status.conditions.iter().flatten().map(|c| Condition {
            type_: c.type_.clone().unwrap_or_default(),
            status: c.status.clone().unwrap_or_default(),
            reason: c.reason.clone(),
            message: c.message.clone(),
            last_transition_time: c.last_transition_time.clone(),
        });
        Status {
            replicas: status.replicas,
            fully_labeled: status.fully_labeled_replicas.unwrap_or(0),
            ready: status.ready_replicas.unwrap_or(0),
            available: status.available_replicas.unwrap_or(0),
            terminating: status.terminating_replicas,
            observed_generation: status.observed_generation,
            conditions: conditions.collect(),
        }
    }

    fn with_status(&self, status: Status) -> Self {
        let conditions: Vec<_> = status
            .conditions
            .into_iter()
            .map(|c| ReplicaSetCondition {
                type_: Some(c.type_),
                status: Some(c.status),
                reason: c.reason,
                message: c.message,
                last_transition_time: c.last_transition_time,
            })
            .collect();
        let count = |n: i32| (n > 0).then_some(n);
        let status = ReplicaSetStatus {
            replicas: status.replicas,
            fully_labeled_replicas: count(status.fully_labeled),
            ready_replicas: count(status.ready),
            available_replicas: count(status.available),
            terminating_replicas: status.terminating,
            observed_generation: status.observed_generation,
            conditions: (!conditions.is_empty()).then_some(conditions),
        };
        Self { status: Some(status), ..self.clone() }
    }
}
