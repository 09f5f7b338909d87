//! Writes pod statuses to the API: always the newest one of each pod. Deletes pods that have ended and are marked
//! for deletion.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions};
use knarr_api::kind::Kind;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Client, Lister, Patch};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::{end_all, end_readiness, is_ours};
use crate::allocation;
use crate::pod;

/// The number of statuses that are written at the same time.
const WORKERS: usize = 8;

#[derive(Clone)]
struct Entry {
    namespace: String,
    name: String,
    status: PodStatus,
    /// Whether containers may still run. Then a terminal phase is not published yet, as the scheduler may give the
    /// pod's resources to other pods.
    may_run: bool,
    /// Whether only records, logs and the folder of the pod are left on this node.
    finished: bool,
    /// The pod as the API returned it after the last write; the informer may lag behind it.
    written: Option<Arc<Pod>>,
}

/// Writes the statuses of this node's pods.
pub struct StatusManager {
    client: Client,
    pods: Lister<Pod>,
    entries: Mutex<BTreeMap<String, Entry>>,
    queue: Arc<WorkQueue<String>>,
}

impl StatusManager {
    pub fn new(client: Client, pods: Lister<Pod>) -> Arc<Self> {
        let queue = WorkQueue::new(Arc::clone(client.clock()));
        Arc::new(Self { client, pods, entries: Mutex::default(), queue })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes statuses until `stop` is cancelled.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let queue = Arc::clone(&self.queue);
        let sync = move |uid: String| {
            let manager = Arc::clone(&self);
            async move { manager.sync(&uid).await }
        };
        queue.run("pod status", WORKERS, stop, sync).await;
    }

    /// Returns the status that was set last.
    pub fn get(&self, uid: &str) -> Option<PodStatus> {
        self.lock().get(uid).map(|entry| entry.status.clone())
    }

    /// Sets the status, and queues it for writing.
    pub fn set(&self, pod: &Pod, status: PodStatus, may_run: bool) {
        let mut entries = self.lock();
        let entry = entries.entry(pod.uid().to_owned()).or_insert_with(|| new_entry(pod));
        if entry.finished || (entry.status == status && entry.may_run == may_run) {
            return;
        }
        entry.status = status;
        entry.may_run = may_run;
        drop(entries);
        self.queue.add(pod.uid().to_owned());
    }

    /// Marks the pod as finished: every container has an end, the phase is terminal, and the API object may be
    /// deleted.
    pub fn terminate(&self, pod: &Pod) {
        let now = self.client.clock().now();
        let mut entries = self.lock();
        let entry = entries.entry(pod.uid().to_owned()).or_insert_with(|| new_entry(pod));
        let status = &mut entry.status;
        let (mut main, mut init) = (status.container_statuses.take(), status.init_container_statuses.take());
        end_all(pod, main.as_deref_mut().unwrap_or_default(), init.as_deref_mut().unwrap_or_default());
        (status.container_statuses, status.init_container_statuses) = (main, init);
        let phase = status.phase.get_or_insert_default();
        if !pod::is_terminal_phase(phase) {
            "Failed".clone_into(phase);
        }
        let phase = phase.clone();
        end_readiness(pod, status.conditions.as_deref_mut().unwrap_or_default(), &phase, now);
        entry.may_run = false;
        entry.finished = true;
        drop(entries);
        self.queue.add(pod.uid().to_owned());
    }

    /// Queues the pod, after each change of it in the API, to compare its status there with the one that was set.
    pub fn refresh(&self, uid: &str) {
        if self.lock().contains_key(uid) {
            self.queue.add(uid.to_owned());
        }
    }

    /// Forgets a pod that the API has removed.
    pub fn forget(&self, uid: &str) {
        self.lock().remove(uid);
    }

    async fn sync(&self, uid: &str) -> knarr_client::Result<()> {
        let Some(entry) = self.lock().get(uid).cloned() else { return Ok(()) };
        let known = self.pods.get(&entry.namespace, &entry.name).filter(|pod| pod.uid() == uid);
        let Some(mut current) = newer(known, entry.written.clone()) else { return Ok(()) };
        let status = merge(&current, &entry, self.client.clock().now());
        if let Some(patch) = patch(uid, pod::status(&current), &status) {
            let sent = self
                .client
                .patch::<Pod>(&entry.namespace, &entry.name, Some("status"), &Patch::Strategic(patch))
                .await;
            match sent {
                Ok(pod) => current = self.note_written(uid, pod),
                // The pod is gone, or another pod has its name by now.
                Err(error) if error.is_not_found() => return Ok(()),
                Err(error) if error.is_conflict() => return self.still_there(&entry, uid, error).await,
                Err(error) => return Err(error),
            }
        }
        if entry.finished
            && current.metadata.deletion_timestamp.is_some()
            && pod::is_terminal_phase(pod::phase(&current))
        {
            return self.delete(&entry, uid).await;
        }
        Ok(())
    }

    /// Decides whether a conflict is retried: only if the pod is still the same one.
    async fn still_there(
        &self,
        entry: &Entry,
        uid: &str,
        error: knarr_client::Error,
    ) -> knarr_client::Result<()> {
        match self.client.get::<Pod>(&entry.namespace, &entry.name).await {
            Ok(pod) if pod.uid() == uid => {
                self.note_written(uid, pod);
                Err(error)
            }
            Ok(_) => Ok(()),
            Err(gone) if gone.is_not_found() => Ok(()),
            Err(other) => Err(other),
        }
    }

    fn note_written(&self, uid: &str, pod: Pod) -> Arc<Pod> {
        let pod = Arc::new(pod);
        if let Some(entry) = self.lock().get_mut(uid) {
            entry.written = Some(Arc::clone(&pod));
        }
        pod
    }

    async fn delete(&self, entry: &Entry, uid: &str) -> knarr_client::Result<()> {
        let options = DeleteOptions {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid: Some(uid.to_owned()), ..Preconditions::default() }),
            ..DeleteOptions::default()
        };
        match self.client.delete::<Pod>(&entry.namespace, &entry.name, &options).await {
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
            _ => Ok(()),
        }
    }
}

fn new_entry(pod: &Pod) -> Entry {
    Entry {
        namespace: pod.namespace().to_owned(),
        name: pod.name().to_owned(),
        status: pod::status(pod).clone(),
        may_run: true,
        finished: false,
        written: None,
    }
}

fn newer(a: Option<Arc<Pod>>, b: Option<Arc<Pod>>) -> Option<Arc<Pod>> {
    // A pod that the informer does not have any more is gone, even if an earlier answer contained it.
    let a = a?;
    let Some(b) = b else { return Some(a) };
    let version = |pod: &Pod| pod.metadata.resource_version.as_deref().and_then(|v| v.parse::<u64>().ok());
    Some(if version(&b) > version(&a) { b } else { a })
}

/// Returns the status to publish now: a terminal phase is published only when no container runs any more.
fn merge(api: &Pod, entry: &Entry, now: jiff::Timestamp) -> PodStatus {
    let (old, mut status) = (pod::status(api), entry.status.clone());
    let ends = pod::is_terminal_phase(status.phase.as_deref().unwrap_or(""));
    if ends && !pod::is_terminal_phase(old.phase.as_deref().unwrap_or("")) && entry.may_run {
        status.phase.clone_from(&old.phase);
        status.reason.clone_from(&old.reason);
        status.message.clone_from(&old.message);
    } else if ends {
        let phase = status.phase.clone().unwrap_or_default();
        end_readiness(api, status.conditions.as_deref_mut().unwrap_or_default(), &phase, now);
    }
    status
}

/// Status fields that other components write.
const NOT_OURS: [&str; 7] = [
    "nominatedNodeName",
    "resourceClaimStatuses",
    "extendedResourceClaimStatus",
    "nodeAllocatableResourceClaimStatuses",
    "resize",
    "volumeHealth",
    "conditions",
];

fn object(status: &PodStatus) -> Map<String, Value> {
    match serde_json::to_value(status) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    }
}

/// Returns the merge patch from the old object to the new one: removed fields are null.
fn merged(old: Option<&Value>, new: Value) -> Value {
    let (Some(Value::Object(old)), Value::Object(mut fields)) = (old, new.clone()) else { return new };
    for (name, before) in old {
        let after = match fields.remove(name) {
            Some(after) => merged(Some(before), after),
            None => Value::Null,
        };
        fields.insert(name.clone(), after);
    }
    Value::Object(fields)
}

/// Returns a strategic merge patch from one status to the other; `None` if they are equal. The patch contains the
/// uid, so that it cannot change another pod of the same name.
fn patch(uid: &str, from: &PodStatus, to: &PodStatus) -> Option<Value> {
    let (mut old, new) = (object(from), object(to));
    let mut changes = Map::new();
    let conditions = changed_conditions(from, to);
    if !conditions.is_empty() {
        changes.insert("conditions".into(), Value::Array(conditions));
    }
    for (field, value) in new {
        let before = old.remove(&field);
        if NOT_OURS.contains(&field.as_str()) || before.as_ref() == Some(&value) {
            continue;
        }
        // These lists are merged by address, unless the patch replaces them.
        let merges = matches!(field.as_str(), "podIPs" | "hostIPs") && before.is_some();
        let value = match value {
            Value::Array(mut items) if merges => {
                items.insert(0, json!({"$patch": "replace"}));
                Value::Array(items)
            }
            value @ Value::Object(_) => merged(before.as_ref(), value),
            other => other,
        };
        changes.insert(field, value);
    }
    for field in old.keys().filter(|field| !NOT_OURS.contains(&field.as_str())) {
        changes.insert(field.clone(), Value::Null);
    }
    (!changes.is_empty()).then(|| json!({"metadata": {"uid": uid}, "status": changes}))
}

fn changed_conditions(from: &PodStatus, to: &PodStatus) -> Vec<Value> {
    let mut changed = Vec::new();
    let owned = to.conditions.iter().flatten().filter(|c| is_ours(&c.type_));
    for condition in owned {
        let before = from.conditions.iter().flatten().find(|c| c.type_ == condition.type_);
        if before == Some(condition) {
            continue;
        }
        let Ok(mut value) = serde_json::to_value(condition) else { continue };
        // A condition is merged field by field: fields that are not set any more must be null.
        if let Some(fields) = value.as_object_mut() {
            for (name, had, has) in [
                ("reason", before.is_some_and(|b| b.reason.is_some()), condition.reason.is_some()),
                ("message", before.is_some_and(|b| b.message.is_some()), condition.message.is_some()),
            ] {
                if had && !has {
                    fields.insert(name.to_owned(), Value::Null);
                }
            }
        }
        changed.push(value);
    }
    for type_ in allocation::TYPES {
        let has = |status: &PodStatus| status.conditions.iter().flatten().any(|c| c.type_ == type_);
        if has(from) && !has(to) {
            changed.push(json!({"type": type_, "$patch": "delete"}));
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{PodCondition, PodIP};

    fn condition(type_: &str, status: &str, reason: Option<&str>) -> PodCondition {
        PodCondition {
            type_: type_.into(),
            status: status.into(),
            reason: reason.map(str::to_owned),
            ..PodCondition::default()
        }
    }

    #[test]
    fn patches_say_only_what_changed() {
        let ip = |ip: &str| Some(vec![PodIP { ip: ip.into() }]);
        let old = PodStatus {
            phase: Some("Pending".into()),
            message: Some("gone".into()),
            pod_ips: ip("10.0.0.1"),
            nominated_node_name: Some("n".into()),
            conditions: Some(vec![
                condition("Ready", "False", Some("ContainersNotReady")),
                condition("PodScheduled", "True", None),
                condition("example.com/gate", "True", None),
                condition("PodResizePending", "True", Some("Deferred")),
            ]),
            ..PodStatus::default()
        };
        assert_eq!(patch("u", &old, &old), None);
        let new = PodStatus {
            phase: Some("Running".into()),
            pod_ips: ip("10.0.0.2"),
            conditions: Some(vec![
                condition("Ready", "True", None),
                condition("PodScheduled", "True", None),
                condition("example.com/gate", "False", None),
            ]),
            ..PodStatus::default()
        };
        let expected = json!({
            "metadata": {"uid": "u"},
            "status": {
                "phase": "Running",
                "message": null,
                "podIPs": [{"$patch": "replace"}, {"ip": "10.0.0.2"}],
                "conditions": [
                    {"type": "Ready", "status": "True", "reason": null},
                    {"type": "PodResizePending", "$patch": "delete"},
                ],
            }
        });
        assert_eq!(patch("u", &old, &new), Some(expected));
    }

    #[test]
    fn resources_that_are_gone_are_taken_away() {
        let with = |resources: Value, given: Value| -> PodStatus {
            serde_json::from_value(json!({"resources": resources, "allocatedResources": given})).unwrap()
        };
        let old = with(
            json!({"limits": {"cpu": "1"}, "requests": {"cpu": "1", "memory": "1Gi"}}),
            json!({"cpu": "1"}),
        );
        let new = with(json!({"requests": {"cpu": "2"}}), json!({"memory": "1Gi"}));
        let expected = json!({
            "metadata": {"uid": "u"},
            "status": {
                "resources": {"limits": null, "requests": {"cpu": "2", "memory": null}},
                "allocatedResources": {"cpu": null, "memory": "1Gi"},
            },
        });
        assert_eq!(patch("u", &old, &new), Some(expected));
    }

    #[test]
    fn a_terminal_phase_waits_for_the_containers() {
        let status = |phase: &str| PodStatus { phase: Some(phase.into()), ..PodStatus::default() };
        let api = Pod { status: Some(status("Running")), ..Pod::default() };
        let mut entry = new_entry(&api);
        entry.status = status("Succeeded");
        let now = jiff::Timestamp::UNIX_EPOCH;
        assert_eq!(merge(&api, &entry, now).phase.as_deref(), Some("Running"));
        entry.may_run = false;
        assert_eq!(merge(&api, &entry, now).phase.as_deref(), Some("Succeeded"));
    }
}
