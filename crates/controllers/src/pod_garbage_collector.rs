//! Pod garbage collector: deletes pods that no kubelet will end, and the oldest ended pods above the threshold.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use knarr_api::kind::{Kind, ObjectKey};
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Event, Lister, Result};

use crate::context::{Context, Descriptor};
use crate::metrics::{self, Metric};
use crate::support::nodes::{index_pods, is_ready, node_of, pods_on, taints};
use crate::support::pod_disruption::{self, Disruption, mark_failed};
use crate::support::pod_state::has_ended;

pub const DESCRIPTOR: Descriptor =
    Descriptor { name: "pod-garbage-collector-controller", run: |cx| Box::pin(async move { run(cx).await }) };

/// How long a node must be missing before its pods count as orphaned.
const QUARANTINE: Duration = Duration::from_secs(40);
/// How long the count of ended pods is delayed, to handle several at once.
const COUNT_DELAY: Duration = Duration::from_secs(1);
/// How many deletions run concurrently.
const BATCH: usize = 16;
const WORKERS: usize = 4;
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// The index of pods that have ended, under the value `true`.
const TERMINATED: &str = "pod-garbage-collector-terminated";
const ORPHANED: Disruption =
    Disruption { reason: "DeletionByPodGC", message: "PodGC: node no longer exists" };

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    /// A pod that is being deleted.
    Pod(ObjectKey),
    /// A node that pods are bound to and that may not exist.
    Missing(String),
    /// A node with terminating pods that may be out of service.
    Node(String),
    /// The number of ended pods, against the threshold.
    Terminated,
}

/// Why a pod is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// The pod has ended and there are more ended pods than the threshold.
    Terminated,
    OutOfService,
    Orphaned,
    /// The pod is being deleted and was never bound to a node.
    Unscheduled,
}

impl Why {
    /// Returns the reason as metrics name it.
    fn label(self) -> &'static str {
        match self {
            Self::Terminated => "terminated",
            Self::OutOfService => "out-of-service",
            Self::Orphaned => "orphaned",
            Self::Unscheduled => "unscheduled",
        }
    }
}

fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

fn is_evicted(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    status.is_some_and(|s| s.phase.as_deref() == Some("Failed") && s.reason.as_deref() == Some("Evicted"))
}

fn is_out_of_service(node: &Node) -> bool {
    !is_ready(node) && taints(node).iter().any(|t| t.key == OUT_OF_SERVICE)
}

/// Returns whether a terminating pod must be force-deleted: it was never bound, or its node is out of service.
fn must_end(pod: &Pod, node: Option<&Node>) -> bool {
    let ended_by_force = has_ended(pod) && pod.metadata.deletion_grace_period_seconds == Some(0);
    is_terminating(pod) && !ended_by_force && (node_of(pod).is_none() || node.is_some_and(is_out_of_service))
}

/// Returns the ended pods above the threshold: evicted ones first, then the oldest.
fn surplus(mut pods: Vec<Arc<Pod>>, threshold: usize) -> Vec<Arc<Pod>> {
    let count = pods.len().saturating_sub(threshold);
    if count > 0 {
        pods.sort_by_cached_key(|p| {
            let created = p.metadata.creation_timestamp.as_ref().map(|t| t.0);
            (Reverse(is_evicted(p)), created, p.name().to_owned())
        });
    }
    pods.truncate(count);
    pods
}

struct Controller {
    cx: Arc<Context>,
    nodes: Lister<Node>,
    pods: Lister<Pod>,
    queue: Arc<WorkQueue<Key>>,
}

async fn run(cx: Arc<Context>) {
    let queue: Arc<WorkQueue<Key>> = WorkQueue::new(Arc::clone(&cx.clock));
    let (nodes, pods) = (cx.informers.informer::<Node>(), cx.informers.informer::<Pod>());
    index_pods(&pods);
    pods.add_index(TERMINATED, |pod| has_ended(pod).then(|| "true".to_owned()).into_iter().collect());
    // Nodes sync first, so that a node which is unknown when a pod arrives does not exist.
    if !nodes.wait_synced().await {
        return;
    }
    let on_node = Arc::clone(&queue);
    nodes.add_handler(move |event| {
        let node = event.object();
        match event {
            Event::Deleted(_) => on_node.add_after(Key::Missing(node.name().to_owned()), QUARANTINE),
            _ if is_out_of_service(node) => on_node.add(Key::Node(node.name().to_owned())),
            _ => {}
        }
    });
    let (on_pod, known) = (Arc::clone(&queue), nodes.lister());
    pods.add_handler(move |event| pod_changed(&on_pod, &known, event));
    if !pods.wait_synced().await {
        return;
    }
    let stop = cx.stop.clone();
    let controller =
        Arc::new(Controller { cx, nodes: nodes.lister(), pods: pods.lister(), queue: Arc::clone(&queue) });
    let reconcile = move |key| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(key).await }
    };
    queue.run(DESCRIPTOR.name, WORKERS, stop, reconcile).await;
}

fn pod_changed(queue: &WorkQueue<Key>, nodes: &Lister<Node>, event: &Event<Pod>) {
    if matches!(event, Event::Deleted(_)) {
        return;
    }
    let pod = event.object();
    if is_terminating(pod) {
        queue.add(Key::Pod(pod.key()));
    }
    if has_ended(pod) {
        queue.add_after(Key::Terminated, COUNT_DELAY);
    }
    if let Some(node) = node_of(pod)
        && nodes.get("", node).is_none()
    {
        queue.add_after(Key::Missing(node.to_owned()), QUARANTINE);
    }
}

impl Controller {
    async fn reconcile(&self, key: Key) -> Result<()> {
        match key {
            Key::Pod(key) => {
                let Some(pod) = self.pods.get_key(&key) else { return Ok(()) };
                let node = node_of(&pod).and_then(|n| self.nodes.get("", n));
                let why = if node.is_some() { Why::OutOfService } else { Why::Unscheduled };
                if must_end(&pod, node.as_deref()) { self.end(&pod, why).await } else { Ok(()) }
            }
            Key::Node(name) => {
                let Some(node) = self.nodes.get("", &name) else { return Ok(()) };
                let mut pods = pods_on(&self.pods, &name);
                pods.retain(|p| must_end(p, Some(&node)));
                self.end_all(pods, Why::OutOfService).await
            }
            Key::Missing(name) => self.end_orphans(name).await,
            Key::Terminated => {
                let Some(kept) = self.cx.settings().terminated_pods_kept else { return Ok(()) };
                let ended = self.pods.by_index(TERMINATED, "true");
                self.end_all(surplus(ended, kept), Why::Terminated).await
            }
        }
    }

    async fn end_orphans(&self, node: String) -> Result<()> {
        if self.nodes.get("", &node).is_some() {
            return Ok(());
        }
        let pods = pods_on(&self.pods, &node);
        if pods.is_empty() {
            return Ok(());
        }
        // The informer may lag behind: only the API server's answer proves that the node is gone.
        match self.cx.client.get::<Node>("", &node).await {
            Ok(_) => {
                self.queue.add_after(Key::Missing(node), QUARANTINE);
                Ok(())
            }
            Err(e) if e.is_not_found() => self.end_all(pods, Why::Orphaned).await,
            Err(e) => Err(e),
        }
    }

    /// Deletes the pods in batches, past failures, and returns the last error.
    async fn end_all(&self, pods: Vec<Arc<Pod>>, why: Why) -> Result<()> {
        let mut outcome = Ok(());
        for batch in pods.chunks(BATCH) {
            let all = batch.iter().map(|pod| self.end(pod, why));
            for result in futures_util::future::join_all(all).await {
                if result.is_err() {
                    outcome = result;
                }
            }
        }
        outcome
    }

    async fn end(&self, pod: &Pod, why: Why) -> Result<()> {
        let labels = [pod.namespace(), why.label()];
        metrics::add(Metric::PodGcDeletions, &labels, 1.0);
        // No kubelet will report the pod's end, so its status is set to Failed first.
        let disruption = (why == Why::Orphaned).then_some(ORPHANED);
        let patch = mark_failed(pod, disruption, self.cx.clock.now());
        let ended = pod_disruption::delete(&self.cx.client, pod, patch, Some(0)).await.map(drop);
        if ended.is_err() {
            metrics::add(Metric::PodGcErrors, &labels, 1.0);
        }
        ended
    }
}

#[cfg(test)]
#[path = "pod_garbage_collector_tests.rs"]
mod tests;
