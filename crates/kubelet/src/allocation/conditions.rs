//! The conditions of a pod that is being resized: `PodResizePending` and `PodResizeInProgress`.
//!
//! Source: the resize conditions of upstream's status manager. A condition is either `True` or missing.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition};

use crate::api_time::whole_seconds;
use crate::pod;

const PENDING: &str = "PodResizePending";
const IN_PROGRESS: &str = "PodResizeInProgress";
pub const TYPES: [&str; 2] = [PENDING, IN_PROGRESS];

const INFEASIBLE: &str = "Infeasible";
const DEFERRED: &str = "Deferred";
const ERROR: &str = "Error";

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conditions {
    pending: Option<PodCondition>,
    in_progress: Option<PodCondition>,
}

impl Conditions {
    /// Returns the conditions in the pod's status.
    pub fn of(pod: &Pod) -> Self {
        let find =
            |type_: &str| pod::status(pod).conditions.iter().flatten().find(|c| c.type_ == type_).cloned();
        Self { pending: find(PENDING), in_progress: find(IN_PROGRESS) }
    }

    pub fn list(&self) -> Vec<PodCondition> {
        self.pending.iter().chain(&self.in_progress).cloned().collect()
    }

    pub fn clear_pending(&mut self) {
        self.pending = None;
    }

    /// Sets `PodResizePending`; returns whether its reason or generation has changed.
    pub fn wait(&mut self, infeasible: bool, message: &str, generation: Option<i64>, now: Timestamp) -> bool {
        let reason = if infeasible { INFEASIBLE } else { DEFERRED };
        let next = condition(PENDING, self.pending.as_ref(), reason, message, generation, now);
        let news = self.pending.as_ref().is_none_or(|old| {
            old.reason != next.reason || old.observed_generation != next.observed_generation
        });
        self.pending = Some(next);
        news
    }

    /// Sets `PodResizeInProgress`; clears the error of an earlier resize.
    pub fn start(&mut self, generation: Option<i64>, now: Timestamp) {
        self.in_progress = Some(condition(IN_PROGRESS, None, "", "", generation, now));
    }

    pub fn in_progress(&self) -> bool {
        self.in_progress.is_some()
    }

    pub fn finish(&mut self) -> Option<i64> {
        let over = self.in_progress.take()?;
        Some(over.observed_generation.unwrap_or(0))
    }

    pub fn fail(&mut self, message: &str, now: Timestamp) -> Option<i64> {
        let old = self.in_progress.as_ref()?;
        let generation = old.observed_generation;
        // A message with other numbers does not count as another failure.
        let known = old.reason.as_deref() == Some(ERROR);
        if !known || old.message.as_deref() != Some(message) {
            self.in_progress = Some(condition(IN_PROGRESS, Some(old), ERROR, message, generation, now));
        }
        (!known).then(|| generation.unwrap_or(0))
    }

    pub fn waiting_since(&self) -> Option<Timestamp> {
        Some(self.pending.as_ref()?.last_transition_time.as_ref()?.0)
    }
}

/// Returns a condition; keeps the old one if nothing but its time would change, so that the status is not written
/// again.
fn condition(
    type_: &str,
    old: Option<&PodCondition>,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: Timestamp,
) -> PodCondition {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let mut next = PodCondition {
        type_: type_.to_owned(),
        status: "True".to_owned(),
        reason: text(reason),
        message: text(message),
        observed_generation: generation,
        last_probe_time: Some(whole_seconds(now)),
        last_transition_time: Some(whole_seconds(now)),
    };
    if let Some(old) = old.filter(|old| old.reason == next.reason) {
        next.last_transition_time.clone_from(&old.last_transition_time);
        if old.message == next.message && old.observed_generation == generation {
            next.last_probe_time.clone_from(&old.last_probe_time);
        }
    }
    next
}
