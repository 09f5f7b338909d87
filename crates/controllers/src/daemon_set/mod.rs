//! DaemonSet: one pod on every eligible node, with rolling updates.

mod nodes;
mod plan;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet};
use k8s_openapi::api::core::v1::{Node, Pod};
use knarr_api::kind::{Kind, ObjectKey};
use knarr_apimachinery::selector::Selector;
use knarr_client::events::EventType;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Event, Lister, Result};

use crate::context::{Context, Descriptor};
use crate::support::owners::controller_of;
use crate::support::pod_control::PodControl;
use crate::support::pod_state::available_in;
use crate::support::revisions::{Revisions, hash_of};
use crate::support::written::CATCH_UP;
use plan::{GENERATION_ANNOTATION, GENERATION_LABEL, HASH_LABEL, View, Why, Work, by_node};

pub const DESCRIPTOR: Descriptor =
    Descriptor { name: "daemonset-controller", run: |cx| Box::pin(async move { run(cx).await }) };

/// The most pods created or deleted in one reconciliation.
const BURST: usize = 250;
/// How long a failed pod is kept before it is replaced, doubled for each failure in a row.
const FAILED_FIRST: Duration = Duration::from_secs(1);
const FAILED_LONGEST: Duration = Duration::from_secs(15 * 60);

struct Controller {
    cx: Arc<Context>,
    sets: Lister<DaemonSet>,
    nodes: Lister<Node>,
    pods: PodControl,
    revisions: Revisions,
    queue: Arc<WorkQueue<ObjectKey>>,
    /// By set and node: when the next failed pod may be deleted, and the current delay.
    failed: Mutex<HashMap<(ObjectKey, String), Wait>>,
}

/// The back-off of a set's failing pods on a node.
struct Wait {
    /// The generation of the set's spec: a new one resets the back-off.
    generation: Option<i64>,
    until: Duration,
    long: Duration,
}

async fn run(cx: Arc<Context>) {
    let queue = WorkQueue::new(Arc::clone(&cx.clock));
    let sets = cx.informers.informer::<DaemonSet>();
    let nodes = cx.informers.informer::<Node>();
    let revisions = cx.informers.informer::<ControllerRevision>();
    let informer = cx.informers.informer::<Pod>();
    let pods = PodControl::new(Arc::clone(&cx), informer.clone());
    let on_set = Arc::clone(&queue);
    sets.add_handler(move |event| on_set.add(event.object().key()));
    let (on_node, all) = (Arc::clone(&queue), sets.lister());
    nodes.add_handler(move |event| {
        if matters(event) {
            all.list().iter().for_each(|set| on_node.add(set.key()));
        }
    });
    let on_revision = Arc::clone(&queue);
    revisions.add_handler(move |event| {
        let revision = event.object();
        if let Some(owner) = controller_of(&revision.metadata).filter(|o| o.kind == "DaemonSet") {
            on_revision.add(ObjectKey::new(revision.namespace(), &owner.name));
        }
    });
    pods.wake::<DaemonSet>(&queue, sets.lister(), selector_of);
    if !(sets.wait_synced().await
        && nodes.wait_synced().await
        && revisions.wait_synced().await
        && informer.wait_synced().await)
    {
        return;
    }

    let (stop, client) = (cx.stop.clone(), cx.client.clone());
    let workers = cx.workers();
    let controller = Arc::new(Controller {
        sets: sets.lister(),
        nodes: nodes.lister(),
        pods,
        revisions: Revisions { client, lister: revisions.lister(), hash_label: HASH_LABEL },
        queue: Arc::clone(&queue),
        failed: Mutex::default(),
        cx,
    });
    let reconcile = move |key| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(key).await }
    };
    queue.run(DESCRIPTOR.name, workers, stop, reconcile).await;
}

/// Returns whether a node's change may affect where daemon pods run.
fn matters(event: &Event<Node>) -> bool {
    let Event::Updated { old, new } = event else { return true };
    let taints = |n: &Node| n.spec.as_ref().and_then(|s| s.taints.clone());
    old.metadata.labels != new.metadata.labels || taints(old) != taints(new)
}

fn selector_of(set: &DaemonSet) -> Option<Selector> {
    let selector = Selector::from_label_selector(Some(&set.spec.selector)).ok()?;
    (!selector.is_everything()).then_some(selector)
}

impl Controller {
    async fn reconcile(&self, key: ObjectKey) -> Result<()> {
        if self.pods.is_pending(&key).await {
            self.queue.add_after(key, CATCH_UP);
            return Ok(());
        }
        let Some(set) = self.sets.get_key(&key) else {
            self.forget(&key);
            return Ok(());
        };
        let Some(selector) = selector_of(&set) else {
            let text = "This daemon set is selecting all pods. A non-empty selector is required.";
            self.cx.recorder.event(&*set, EventType::Warning, "SelectingAll", text);
            return Ok(());
        };
        if set.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let mut revisions = self.revisions.claim(&*set, &selector).await?;
        let mut collisions = set.status.as_ref().and_then(|s| s.collision_count).unwrap_or(0);
        let current =
            self.revisions.ensure(&*set, &set.spec.template, &mut revisions, &mut collisions).await?;
        let hash = hash_of(&current, HASH_LABEL).to_owned();
        let pods = self.pods.claim(&*set, &selector).await?;
        let (nodes, pod) = (self.nodes.list(), nodes::pod_of(&set));
        let now = self.cx.clock.now();
        let view = View { set: &set, pod: &pod, nodes: &nodes, pods: by_node(&pods), hash: &hash, now };
        let mut result = self.carry_out(&view, view.manage()).await;
        // The rolling update continues only after the informer has seen what `manage` changed.
        if result.is_ok() && !self.pods.is_pending(&key).await && view.is_rolling() {
            result = self.carry_out(&view, view.roll()).await;
        }
        let status_written = self.write_status(&view, collisions).await;
        let dropped = self.drop_history(&set, &revisions, &current, &pods).await;
        self.look_again_when_available(&set, &pods);
        result.and(status_written).and(dropped)
    }

    async fn carry_out(&self, view: &View<'_>, work: Work<'_>) -> Result<()> {
        let going = work.delete.into_iter().filter(|(pod, why)| self.may_delete(view.set, pod, *why));
        self.pods.delete_all(view.set, going.take(BURST).map(|(pod, _)| pod)).await?;
        let pods: Vec<Pod> = work
            .create
            .iter()
            .take(BURST)
            .map(|node| {
                let mut pod = view.pod.clone();
                nodes::tie(&mut pod, node);
                label(&mut pod, view.set, view.hash);
                pod
            })
            .collect();
        self.pods.create_all(view.set, &pods).await.1
    }

    /// Emits events about ended pods, and delays the deletion of pods that fail repeatedly.
    fn may_delete(&self, set: &DaemonSet, pod: &Pod, why: Why) -> bool {
        let node = nodes::node_of(pod).unwrap_or("");
        let message = |what: &str, fate: &str| {
            format!(
                "Found {what} daemon pod {}/{} on node {node}, will try to {fate} it",
                pod.namespace(),
                pod.name()
            )
        };
        match why {
            Why::Surplus => true,
            Why::Succeeded => {
                let text = message("succeeded", "delete");
                self.cx.recorder.event(set, EventType::Normal, "SucceededDaemonPod", text);
                true
            }
            Why::Failed => {
                let now = self.cx.clock.monotonic();
                let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
                let generation = set.metadata.generation;
                let first = || Wait { generation, until: now, long: FAILED_FIRST / 2 };
                let entry = failed.entry((set.key(), node.to_owned())).or_insert_with(first);
                if entry.generation != generation {
                    *entry = first();
                }
                if now < entry.until {
                    self.queue.add_after(set.key(), entry.until - now);
                    return false;
                }
                // A node without failures for long enough starts again with the first delay.
                let is_well = now > entry.until + 2 * FAILED_LONGEST;
                entry.long = if is_well { FAILED_FIRST } else { (entry.long * 2).min(FAILED_LONGEST) };
                entry.until = now + entry.long;
                let text = message("failed", "kill");
                self.cx.recorder.event(set, EventType::Warning, "FailedDaemonPod", text);
                true
            }
        }
    }

    fn forget(&self, key: &ObjectKey) {
        self.pods.forget(key);
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).retain(|(set, _), _| set != key);
    }

    async fn drop_history(
        &self,
        set: &DaemonSet,
        revisions: &[ControllerRevision],
        current: &ControllerRevision,
        pods: &[Arc<Pod>],
    ) -> Result<()> {
        let hash = |pod: &Pod| pod.metadata.labels.as_ref().and_then(|l| l.get(HASH_LABEL).cloned());
        let live = |revision: &ControllerRevision| {
            let own = hash_of(revision, HASH_LABEL);
            revision.name() == current.name() || pods.iter().any(|p| hash(p).as_deref() == Some(own))
        };
        // Revisions that pods still have count towards the limit, but are never deleted.
        let limit = usize::try_from(set.spec.revision_history_limit.unwrap_or(10)).unwrap_or(0);
        let kept = revisions.iter().filter(|r| r.name() != current.name() && live(r)).count();
        let limit = i32::try_from(limit.saturating_sub(kept)).unwrap_or(i32::MAX);
        self.revisions.truncate(revisions, live, limit).await
    }

    async fn write_status(&self, view: &View<'_>, collisions: i32) -> Result<()> {
        let status = view.status(collisions);
        if view.set.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let next = DaemonSet { status: Some(status), ..view.set.clone() };
        match self.cx.client.update_status(&next).await {
            Err(e) if !e.is_not_found() => Err(e),
            _ => Ok(()),
        }
    }

    fn look_again_when_available(&self, set: &DaemonSet, pods: &[Arc<Pod>]) {
        let (wanted, now) = (set.spec.min_ready_seconds.unwrap_or(0), self.cx.clock.now());
        let next = pods.iter().filter_map(|p| available_in(p, wanted, now)).filter(|d| !d.is_zero()).min();
        if let Some(delay) = next {
            self.queue.add_after(set.key(), delay);
        }
    }
}

/// Sets the labels that identify a pod's template.
fn label(pod: &mut Pod, set: &DaemonSet, hash: &str) {
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(HASH_LABEL.to_owned(), hash.to_owned());
    let generation = set.metadata.annotations.as_ref().and_then(|a| a.get(GENERATION_ANNOTATION));
    if let Some(generation) = generation {
        labels.insert(GENERATION_LABEL.to_owned(), generation.clone());
    }
}
