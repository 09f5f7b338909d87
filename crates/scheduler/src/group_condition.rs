//! Writes the condition PodGroupInitiallyScheduled: the outcome of the attempts to schedule a pod group.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::scheduling::v1beta1::PodGroup;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use knarr_api::kind::{Kind, ObjectKey};
use knarr_client::Patch;
use serde_json::json;

use crate::scheduler::Scheduler;

const TYPE: &str = "PodGroupInitiallyScheduled";

/// The outcome of an attempt.
pub(crate) struct Report {
    pub group: Arc<PodGroup>,
    pub status: &'static str,
    pub reason: &'static str,
    pub message: String,
}

/// The reports that are still to be written, one at a time for each group. A later report replaces one that waits.
#[derive(Default)]
pub(crate) struct Reports(Mutex<HashMap<ObjectKey, Under>>);

#[derive(Default)]
struct Under {
    /// A task is writing reports of this group.
    busy: bool,
    next: Option<Box<Report>>,
    /// The uid of the last written group and its condition: informers may not show them yet.
    last: Option<(Option<String>, Condition)>,
}

impl Reports {
    /// Queues a report. Returns true when no task writes reports of this group yet: the caller must start one.
    fn add(&self, key: &ObjectKey, report: Box<Report>) -> bool {
        let mut all = self.lock();
        let under = all.entry(key.clone()).or_default();
        let same = |r: &Report| r.group.metadata.uid == report.group.metadata.uid;
        // Once the group has been scheduled, no other report matters.
        if !under.next.as_ref().is_some_and(|r| r.status == "True" && same(r)) {
            under.next = Some(report);
        }
        !std::mem::replace(&mut under.busy, true)
    }

    /// Returns the next report, with the condition that was written last.
    fn take(&self, key: &ObjectKey) -> Option<(Box<Report>, Option<Condition>)> {
        let mut all = self.lock();
        let under = all.get_mut(key)?;
        let Some(report) = under.next.take() else {
            under.busy = false;
            return None;
        };
        let last = under.last.clone().filter(|(uid, _)| *uid == report.group.metadata.uid);
        Some((report, last.map(|(_, condition)| condition)))
    }

    fn wrote(&self, key: &ObjectKey, uid: Option<String>, condition: Condition) {
        if let Some(under) = self.lock().get_mut(key) {
            under.last = Some((uid, condition));
        }
    }

    /// Forgets a deleted group.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, Under>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The condition in the group's status.
fn shown(group: &PodGroup) -> Option<&Condition> {
    let conditions = group.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    conditions.iter().find(|c| c.type_ == TYPE)
}

/// Returns the condition to write, or `None` when the group has it already. A group that has been scheduled stays so.
fn condition(report: &Report, known: Option<&Condition>, now: impl FnOnce() -> Time) -> Option<Condition> {
    if known.is_some_and(|c| c.status == "True" && report.status != "True") {
        return None;
    }
    let kept = known.filter(|c| c.status == report.status);
    let condition = Condition {
        type_: TYPE.to_owned(),
        status: report.status.to_owned(),
        reason: report.reason.to_owned(),
        message: report.message.clone(),
        observed_generation: report.group.metadata.generation,
        last_transition_time: kept.map_or_else(now, |c| c.last_transition_time.clone()),
    };
    (known != Some(&condition)).then_some(condition)
}

impl Scheduler {
    pub(crate) fn report(self: &Arc<Self>, report: Box<Report>) {
        let key = report.group.key();
        if !self.reports.add(&key, report) {
            return;
        }
        let scheduler = Arc::clone(self);
        self.background.run(async move {
            while let Some((report, last)) = scheduler.reports.take(&key) {
                scheduler.write_report(&key, &report, last).await;
            }
        });
    }

    async fn write_report(&self, key: &ObjectKey, report: &Report, last: Option<Condition>) {
        let known = last.or_else(|| shown(&report.group).cloned());
        let now = || Time(self.client.clock().now());
        let Some(condition) = condition(report, known.as_ref(), now) else { return };
        let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
        match self.client.patch::<PodGroup>(&key.namespace, &key.name, Some("status"), &patch).await {
            Ok(_) => self.reports.wrote(key, report.group.metadata.uid.clone(), condition),
            Err(error) if error.is_not_found() => {}
            Err(error) => tracing::warn!(pod_group = %key, %error, "failed to write the condition"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::pod_group;

    #[test]
    fn a_condition_is_written_once_and_scheduled_is_final() {
        let time = |seconds| Time(k8s_openapi::jiff::Timestamp::new(seconds, 0).unwrap());
        let mut group = pod_group("g", Some(2));
        let report = |group: &PodGroup, status, message: &str| Report {
            group: Arc::new(group.clone()),
            status,
            reason: if status == "True" { "Scheduled" } else { "Unschedulable" },
            message: message.to_owned(),
        };
        let mut tell = |status, message: &str, at| {
            let report = report(&group, status, message);
            let written = condition(&report, shown(&group), || time(at));
            if let Some(condition) = &written {
                group.status.get_or_insert_default().conditions = Some(vec![condition.clone()]);
            }
            written.map(|c| (c.message, c.last_transition_time))
        };
        assert_eq!(tell("False", "no", 1), Some(("no".into(), time(1))));
        assert_eq!(tell("False", "no", 2), None);
        assert_eq!(tell("False", "still no", 3), Some(("still no".into(), time(1))));
        assert_eq!(tell("True", "", 4), Some((String::new(), time(4))));
        assert_eq!(tell("False", "no", 5), None);
    }
}
