//! The status of an autoscaler: conditions and numbers.

use jiff::Timestamp;
use k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscaler, HorizontalPodAutoscalerCondition, HorizontalPodAutoscalerStatus, MetricStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

pub const ABLE: &str = "AbleToScale";
pub const ACTIVE: &str = "ScalingActive";
pub const LIMITED: &str = "ScalingLimited";
pub const ZERO: &str = "ScaledToZero";

/// A status under construction.
pub struct Draft {
    pub status: HorizontalPodAutoscalerStatus,
    generation: Option<i64>,
    now: Timestamp,
}

impl Draft {
    pub fn of(hpa: &HorizontalPodAutoscaler, now: Timestamp) -> Self {
        Self { status: hpa.status.clone().unwrap_or_default(), generation: hpa.metadata.generation, now }
    }

    /// Sets a condition; the transition time changes only with its status.
    pub fn condition(&mut self, type_: &str, holds: bool, reason: &str, message: impl Into<String>) {
        let all = self.status.conditions.get_or_insert_default();
        let status = if holds { "True" } else { "False" };
        let known = all.iter_mut().find(|c| c.type_ == type_);
        let since = |c: &HorizontalPodAutoscalerCondition| c.last_transition_time.clone();
        let kept = known.as_deref().filter(|c| c.status == status).and_then(since);
        let condition = HorizontalPodAutoscalerCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.into()),
            last_transition_time: kept.or(Some(Time(self.now))),
            observed_generation: known.as_deref().and_then(|c| c.observed_generation),
        };
        match known {
            Some(known) => *known = condition,
            None => all.push(condition),
        }
    }

    pub fn is_scaled_to_zero(&self) -> bool {
        self.status.conditions.iter().flatten().any(|c| c.type_ == ZERO && c.status == "True")
    }

    /// Sets the numbers; `desired` is `None` if nothing could be decided.
    pub fn numbers(
        &mut self,
        current: i32,
        desired: Option<i32>,
        metrics: Vec<MetricStatus>,
        rescaled: bool,
    ) {
        self.status.current_replicas = Some(current);
        if let Some(desired) = desired {
            self.status.desired_replicas = desired;
        }
        self.status.current_metrics = (!metrics.is_empty()).then_some(metrics);
        self.status.observed_generation = self.generation;
        if rescaled {
            self.status.last_scale_time = Some(Time(self.now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    #[test]
    fn a_condition_keeps_its_time_while_its_status_stays() {
        let hpa = HorizontalPodAutoscaler::default();
        let mut draft = Draft::of(&hpa, at(0));
        draft.condition(ABLE, true, "SucceededGetScale", "a");
        draft.now = at(10);
        draft.condition(ABLE, true, "ReadyForNewScale", "b");
        draft.condition(ACTIVE, false, "InvalidSelector", "c");
        let shown: Vec<_> = draft
            .status
            .conditions
            .clone()
            .unwrap()
            .into_iter()
            .map(|c| (c.type_, c.reason.unwrap(), c.last_transition_time.unwrap().0))
            .collect();
        let want = [(ABLE, "ReadyForNewScale", at(0)), (ACTIVE, "InvalidSelector", at(10))];
        assert_eq!(shown, want.map(|(t, r, at)| (t.to_owned(), r.to_owned(), at)));
        draft.now = at(20);
        draft.condition(ABLE, false, "FailedGetScale", "d");
        assert_eq!(draft.status.conditions.unwrap()[0].last_transition_time, Some(Time(at(20))));
    }
}
