//! What a StatefulSet does next, in order and one at a time, or all at once: pure functions of the set and its pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use knarr_api::kind::Kind;

use super::identity::{in_range, is_identified, ordinal, revision, start, wanted};
use crate::support::pod_state::{is_available, is_ready};

/// A set and its pods.
pub struct View<'v> {
    pub set: &'v StatefulSet,
    pub pods: &'v [Arc<Pod>],
    /// The names of the previous revision and of the template's revision.
    pub current: &'v str,
    pub update: &'v str,
    pub now: Timestamp,
}

/// One step to carry out.
#[derive(Debug, Clone, PartialEq)]
pub enum Action<'v> {
    /// Create the pod with this ordinal, from the update revision or the current one.
    Create {
        ordinal: i32,
        update: bool,
    },
    /// Correct a pod whose labels or volumes differ from those of its ordinal.
    Identify(&'v Pod, i32),
    /// Correct the owners of this pod's claims according to the retention policy.
    Own(&'v Pod, i32),
    /// Create the missing claims of this pending pod.
    Claims(i32),
    Delete(&'v Pod, Why),
}

/// Why a pod is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    Failed,
    Succeeded,
    /// The ordinal is no longer wanted.
    Condemned,
    /// The pod has an old revision.
    Outdated,
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("")
}

fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

fn is_running_and_ready(pod: &Pod) -> bool {
    phase(pod) == "Running" && is_ready(pod)
}

/// Returns whether the pod management policy is Parallel.
pub fn is_parallel(set: &StatefulSet) -> bool {
    set.spec.pod_management_policy.as_deref() == Some("Parallel")
}

/// Returns whether the update strategy is RollingUpdate.
pub fn is_rolling(set: &StatefulSet) -> bool {
    let strategy = set.spec.update_strategy.as_ref();
    strategy.and_then(|s| s.type_.as_deref()).unwrap_or("RollingUpdate") == "RollingUpdate"
}

/// Returns the ordinal from which on pods are updated.
fn partition(set: &StatefulSet) -> i32 {
    let rolling = set.spec.update_strategy.as_ref().and_then(|s| s.rolling_update.as_ref());
    rolling.and_then(|r| r.partition).unwrap_or(0)
}

/// Returns how many pods may be unavailable during an update, at least one.
fn max_unavailable(set: &StatefulSet) -> i32 {
    let rolling = set.spec.update_strategy.as_ref().and_then(|s| s.rolling_update.as_ref());
    let given = match rolling.and_then(|r| r.max_unavailable.as_ref()) {
        None => 1,
        Some(IntOrString::Int(n)) => *n,
        Some(IntOrString::String(text)) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or(0);
            i32::try_from((percent * i64::from(wanted(set))).div_euclid(100)).unwrap_or(i32::MAX)
        }
    };
    given.max(1)
}

impl<'v> View<'v> {
    fn is_available(&self, pod: &Pod) -> bool {
        let seconds = self.set.spec.min_ready_seconds.unwrap_or(0);
        is_running_and_ready(pod) && is_available(pod, seconds, self.now)
    }

    /// Returns whether the pod is available and not terminating.
    fn is_healthy(&self, pod: &Pod) -> bool {
        self.is_available(pod) && !is_terminating(pod)
    }

    fn has_claims(&self) -> bool {
        self.set.spec.volume_claim_templates.as_ref().is_some_and(|templates| !templates.is_empty())
    }

    fn by_ordinal(&self) -> BTreeMap<i32, &'v Pod> {
        self.pods.iter().filter_map(|p| Some((ordinal(self.set, p)?, &**p))).collect()
    }

    /// Returns all actions to do now, in order; further ones must wait for a change.
    pub fn plan(&self) -> Vec<Action<'v>> {
        let mut actions = Vec::new();
        if self.set.metadata.deletion_timestamp.is_some() {
            return actions;
        }
        let pods = self.by_ordinal();
        if self.keep(&pods, &mut actions) && self.shrink(&pods, &mut actions) && is_rolling(self.set) {
            self.roll(&pods, &mut actions);
        }
        actions
    }

    /// Plans the wanted ordinals, lowest first. Returns whether further steps may follow.
    fn keep(&self, pods: &BTreeMap<i32, &'v Pod>, actions: &mut Vec<Action<'v>>) -> bool {
        let ordered = !is_parallel(self.set);
        let first = start(self.set);
        for n in first..first.saturating_add(wanted(self.set)) {
            let Some(pod) = pods.get(&n).copied() else {
                actions.push(Action::Create { ordinal: n, update: !self.needs_current(n) });
                if ordered {
                    return false;
                }
                continue;
            };
            let ended = match phase(pod) {
                "Failed" => Some(Why::Failed),
                "Succeeded" => Some(Why::Succeeded),
                _ => None,
            };
            if let Some(why) = ended {
                if !is_terminating(pod) {
                    actions.push(Action::Delete(pod, why));
                }
                // Its replacement has the same name and can only be created when it is gone.
                if ordered {
                    return false;
                }
                continue;
            }
            if ordered && is_terminating(pod) {
                return false;
            }
            if phase(pod) == "Pending" {
                actions.push(Action::Claims(n));
            }
            if ordered && !self.is_available(pod) {
                return false;
            }
            actions.extend(self.has_claims().then_some(Action::Own(pod, n)));
            if !is_identified(self.set, pod, n) && !is_terminating(pod) {
                actions.push(Action::Identify(pod, n));
            }
        }
        true
    }

    /// Returns whether a missing pod is created from the previous revision.
    fn needs_current(&self, ordinal: i32) -> bool {
        let offset = ordinal - start(self.set);
        let strategy = self.set.spec.update_strategy.as_ref();
        is_rolling(self.set)
            && match strategy.and_then(|s| s.rolling_update.as_ref()) {
                Some(_) => offset < partition(self.set),
                None => {
                    let current = self.set.status.as_ref().and_then(|s| s.current_replicas);
                    offset < current.unwrap_or(0)
                }
            }
    }

    /// Plans the surplus ordinals, highest first. Returns whether further steps may follow.
    fn shrink(&self, pods: &BTreeMap<i32, &'v Pod>, actions: &mut Vec<Action<'v>>) -> bool {
        let ordered = !is_parallel(self.set);
        let first_unhealthy = pods.values().find(|p| !self.is_healthy(p)).map(|p| p.name());
        let condemned = || pods.iter().rev().filter(|(n, _)| !in_range(self.set, **n));
        actions.extend(condemned().filter(|_| self.has_claims()).map(|(n, pod)| Action::Own(pod, *n)));
        for pod in condemned().map(|(_, pod)| *pod) {
            if is_terminating(pod) {
                if ordered {
                    return false;
                }
                continue;
            }
            if ordered && !self.is_available(pod) && first_unhealthy != Some(pod.name()) {
                return false;
            }
            actions.push(Action::Delete(pod, Why::Condemned));
            if ordered {
                return false;
            }
        }
        true
    }

    /// Replaces pods of old revisions, highest ordinal first, within the limit on unavailable pods. With parallel pod
    /// management, all pods that are unavailable anyway are replaced first.
    fn roll(&self, pods: &BTreeMap<i32, &'v Pod>, actions: &mut Vec<Action<'v>>) {
        let (first, end) = (start(self.set), start(self.set).saturating_add(wanted(self.set)));
        let is_up = |n: &i32| pods.get(n).is_some_and(|pod| self.is_healthy(pod));
        let down = (first..end).filter(|n| !is_up(n)).count();
        let outdated =
            (first.saturating_add(partition(self.set))..end).rev().filter_map(|n| pods.get(&n).copied());
        let outdated = outdated.filter(|pod| revision(pod) != self.update && !is_terminating(pod));
        let (mut up, broken): (Vec<_>, Vec<_>) =
            outdated.partition(|pod| !is_parallel(self.set) || self.is_available(pod));
        up.truncate(usize::try_from(max_unavailable(self.set)).unwrap_or(0).saturating_sub(down));
        actions.extend(broken.into_iter().chain(up).map(|pod| Action::Delete(pod, Why::Outdated)));
    }

    /// Computes the status from the pods.
    pub fn status(&self, collisions: i32) -> StatefulSetStatus {
        let count = |test: &dyn Fn(&Pod) -> bool| self.pods.iter().filter(|p| test(p)).count() as i32;
        let alive = |pod: &Pod, name: &str| !is_terminating(pod) && revision(pod) == name;
        let shown = |n: i32| (n > 0).then_some(n);
        let updated = count(&|p| alive(p, self.update));
        let mut status = StatefulSetStatus {
            observed_generation: self.set.metadata.generation,
            replicas: self.pods.len() as i32,
            ready_replicas: shown(count(&is_running_and_ready)),
            available_replicas: Some(count(&|p| self.is_available(p))),
            current_replicas: shown(count(&|p| alive(p, self.current))),
            updated_replicas: shown(updated),
            current_revision: Some(self.current.to_owned()),
            update_revision: Some(self.update.to_owned()),
            collision_count: Some(collisions),
            conditions: self.set.status.as_ref().and_then(|s| s.conditions.clone()),
        };
        let all = wanted(self.set);
        let ready = status.ready_replicas.unwrap_or(0);
        if updated == all && status.replicas == all && ready == all {
            status.current_replicas = status.updated_replicas;
            status.current_revision = Some(self.update.to_owned());
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use super::super::identity::new_pod;
    use super::*;
    use serde_json::{Value, json};

    fn set(spec: Value) -> StatefulSet {
        let mut whole = json!({"serviceName": "s", "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": []}},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}});
        whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        serde_json::from_value(json!({"metadata": {"name": "w", "namespace": "ns"}, "spec": whole})).unwrap()
    }

    /// Makes a pod from a text such as `3 new ready`, `1 old pending`, `0 old ending`.
    fn pod(set: &StatefulSet, text: &str) -> Arc<Pod> {
        let parts: Vec<&str> = text.split(' ').collect();
        let mut pod = new_pod(set, &set.spec.template, parts[1], parts[0].parse().unwrap());
        let (phase, ready) = match parts[2] {
            "ready" | "ending" => ("Running", "True"),
            "pending" => ("Pending", "False"),
            "failed" => ("Failed", "False"),
            _ => ("Running", "False"),
        };
        let status = json!({"phase": phase, "conditions": [{"type": "Ready", "status": ready}]});
        pod.status = serde_json::from_value(status).unwrap();
        if parts[2] == "ending" {
            pod.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        }
        Arc::new(pod)
    }

    /// Returns the actions as text: `+2 new`, `-2 Condemned`, `claims 1`.
    fn actions(spec: Value, pods: &[&str]) -> Vec<String> {
        let set = set(spec);
        let pods: Vec<_> = pods.iter().map(|text| pod(&set, text)).collect();
        let view = View { set: &set, pods: &pods, current: "old", update: "new", now: Timestamp::UNIX_EPOCH };
        let word = |action: Action<'_>| match action {
            Action::Create { ordinal, update } => {
                format!("+{ordinal} {}", if update { "new" } else { "old" })
            }
            Action::Identify(_, n) => format!("identify {n}"),
            Action::Own(_, n) => format!("own {n}"),
            Action::Claims(n) => format!("claims {n}"),
            Action::Delete(pod, why) => format!("-{} {why:?}", ordinal(&set, pod).unwrap()),
        };
        view.plan().into_iter().map(word).collect()
    }

    #[test]
    fn more_than_one_pod_may_be_unavailable() {
        let spec = |most: Value| {
            let rolling = json!({"partition": 0, "maxUnavailable": most});
            json!({"replicas": 4, "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": rolling}})
        };
        let ready = ["0 old ready", "1 old ready", "2 old ready", "3 old ready"];
        let deletes = |most: Value, pods: &[&str]| {
            let mut all = actions(spec(most), pods);
            all.retain(|a| a.starts_with('-'));
            all
        };
        assert_eq!(deletes(json!(1), &ready), ["-3 Outdated"]);
        assert_eq!(deletes(json!(2), &ready), ["-3 Outdated", "-2 Outdated"]);
        assert_eq!(deletes(json!("75%"), &ready), ["-3 Outdated", "-2 Outdated", "-1 Outdated"]);
    }

    #[test]
    fn in_order_one_after_the_other() {
        let three = || json!({"replicas": 3});
        let table: [(Value, &[&str], &[&str]); 12] = [
            (three(), &[], &["+0 new"]),
            (three(), &["0 new pending"], &["claims 0"]),
            (three(), &["0 new ready"], &["+1 new"]),
            (three(), &["0 new ready", "2 new ready"], &["+1 new"]),
            (three(), &["0 new ready", "1 new starting"], &[]),
            (three(), &["0 new failed", "1 new ready"], &["-0 Failed"]),
            (json!({"replicas": 1}), &["0 new ready", "1 new ready", "2 new ready"], &["-2 Condemned"]),
            (json!({"replicas": 1}), &["0 new ready", "1 new ready", "2 new ending"], &[]),
            (json!({"replicas": 1}), &["0 new starting", "1 new ready"], &[]),
            (json!({"replicas": 2}), &["0 old ready", "1 old ready"], &["-1 Outdated"]),
            (json!({"replicas": 2}), &["0 old ready", "1 new ready"], &["-0 Outdated"]),
            (json!({"replicas": 2, "ordinals": {"start": 5}}), &["5 new ready"], &["+6 new"]),
        ];
        for (spec, pods, expected) in table {
            assert_eq!(actions(spec.clone(), pods), expected, "{spec} {pods:?}");
        }
    }

    #[test]
    fn all_at_once() {
        let three = || json!({"replicas": 3, "podManagementPolicy": "Parallel"});
        let table: [(Value, &[&str], &[&str]); 3] = [
            (three(), &[], &["+0 new", "+1 new", "+2 new"]),
            (
                three(),
                &["0 new starting", "3 new ready", "4 new ending"],
                &["+1 new", "+2 new", "-3 Condemned"],
            ),
            (three(), &["0 new ready", "1 new failed", "2 new ready"], &["-1 Failed"]),
        ];
        for (spec, pods, expected) in table {
            assert_eq!(actions(spec.clone(), pods), expected, "{spec} {pods:?}");
        }
    }

    #[test]
    fn updates_stop_at_the_partition_and_at_unhealthy_pods() {
        let rolling = |rolling: Value| {
            json!({"replicas": 3, "podManagementPolicy": "Parallel",
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": rolling}})
        };
        let on_delete = json!({"replicas": 3, "updateStrategy": {"type": "OnDelete"}});
        let old = ["0 old ready", "1 old ready", "2 old ready"];
        let table: [(Value, &[&str], &[&str]); 11] = [
            (rolling(json!({"partition": 2})), &old, &["-2 Outdated"]),
            (rolling(json!({"partition": 2})), &["0 old ready", "1 old ready", "2 new ready"], &[]),
            (rolling(json!({"partition": 1})), &["1 new ready", "2 new ready"], &["+0 old"]),
            (rolling(json!({"maxUnavailable": 2})), &old, &["-2 Outdated", "-1 Outdated"]),
            (
                rolling(json!({"maxUnavailable": "70%"})),
                &["0 old ready", "1 old ready", "2 new starting"],
                &["-1 Outdated"],
            ),
            (
                rolling(json!({"maxUnavailable": "50%"})),
                &["0 old ready", "1 old ready", "2 new starting"],
                &[],
            ),
            (rolling(json!({})), &["0 old starting", "1 old ready", "2 old ready"], &["-0 Outdated"]),
            (
                rolling(json!({})),
                &["0 old starting", "1 old starting", "2 old ready"],
                &["-1 Outdated", "-0 Outdated"],
            ),
            (rolling(json!({"partition": 2})), &["0 old starting", "1 old ready", "2 old ready"], &[]),
            (rolling(json!({})), &["0 old ready", "1 old ready", "2 new starting"], &[]),
            (on_delete, &old, &[]),
        ];
        for (spec, pods, expected) in table {
            assert_eq!(actions(spec.clone(), pods), expected, "{spec} {pods:?}");
        }
    }

    #[test]
    fn the_update_completes_whatever_replaces_the_pods() {
        let set = set(json!({"replicas": 1, "updateStrategy": {"type": "OnDelete"}}));
        let pods = [pod(&set, "0 new ready")];
        let view = View { set: &set, pods: &pods, current: "old", update: "new", now: Timestamp::UNIX_EPOCH };
        let status = view.status(0);
        assert_eq!((status.current_revision.as_deref(), status.current_replicas), (Some("new"), Some(1)));
    }

    #[test]
    fn claims_change_owners_in_turn() {
        let with_claims = |extra: Value| {
            let mut spec = json!({"volumeClaimTemplates": [{"metadata": {"name": "d"}, "spec": {}}]});
            spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            spec
        };
        let own = |spec: Value, pods: &[&str]| {
            let mut all = actions(spec, pods);
            all.retain(|action| action.starts_with("own"));
            all
        };
        let two = with_claims(json!({"replicas": 1}));
        assert_eq!(
            own(two.clone(), &["0 new starting", "1 new ready"]),
            [""; 0],
            "not before the others are healthy"
        );
        assert_eq!(own(two, &["0 new ready", "1 new ready"]), ["own 0", "own 1"]);
    }
}
