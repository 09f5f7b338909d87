//! Taint eviction: deletes pods that do not tolerate a NoExecute taint of their node, at once or after
//! `tolerationSeconds`.
//!
//! A toleration's seconds count from the taint's `timeAdded`, or from the pod's binding if that was later, so a
//! restart of this controller gives no pod more time.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod, Taint, Toleration};
use knarr_api::core::pod::placement::tolerates;
use knarr_api::kind::{Kind, ObjectKey};
use knarr_client::events::EventType;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Event, Lister, Result};

use crate::context::{Context, Descriptor};
use crate::metrics::{self, Metric};
use crate::support::nodes::{index_pods, node_of, pods_on, taints};
use crate::support::pod_disruption::{self, Disruption, mark};
use crate::support::pod_state::condition;

pub const DESCRIPTOR: Descriptor =
    Descriptor { name: "taint-eviction-controller", run: |cx| Box::pin(async move { run(cx).await }) };

const WORKERS: usize = 8;
const NO_EXECUTE: &str = "NoExecute";
const DISRUPTION: Disruption = Disruption {
    reason: "DeletionByTaintManager",
    message: "Taint manager: deleting due to NoExecute taint",
};

/// A taint with the time from which tolerations count.
#[derive(Debug, Clone, PartialEq)]
struct Active {
    taint: Taint,
    since: Timestamp,
}

/// What the taints of its node mean for a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Stay,
    /// The pod is to be evicted at this time.
    Evict(Timestamp),
}

/// Decides about a pod with these tolerations that was bound to the node at `bound`.
fn verdict(taints: &[Active], tolerations: &[Toleration], bound: Timestamp, now: Timestamp) -> Verdict {
    let mut earliest: Option<Timestamp> = None;
    for active in taints {
        let Some(toleration) = tolerations.iter().find(|t| tolerates(t, &active.taint)) else {
            return Verdict::Evict(now);
        };
        let Some(seconds) = toleration.toleration_seconds else { continue };
        if seconds <= 0 {
            return Verdict::Evict(now);
        }
        let from = active.since.max(bound);
        // A time that overflows the calendar is never reached.
        if let Ok(at) = from.checked_add(SignedDuration::from_secs(seconds)) {
            earliest = Some(earliest.map_or(at, |e| e.min(at)));
        }
    }
    earliest.map_or(Verdict::Stay, Verdict::Evict)
}

/// Returns when the pod was bound to its node, according to its status.
fn bound_at(pod: &Pod) -> Timestamp {
    let scheduled = condition(pod, "PodScheduled").filter(|c| c.status == "True");
    let scheduled = scheduled.and_then(|c| c.last_transition_time.as_ref());
    let created = pod.metadata.creation_timestamp.as_ref();
    scheduled.or(created).map_or(Timestamp::MIN, |t| t.0)
}

fn no_execute(node: &Node) -> impl Iterator<Item = &Taint> {
    taints(node).iter().filter(|t| t.effect == NO_EXECUTE)
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    /// All pods of this node.
    Node(String),
    Pod(ObjectKey),
}

/// An eviction that is due later.
#[derive(Debug, Clone)]
struct Pending {
    uid: String,
    at: Timestamp,
}

struct Controller {
    cx: Arc<Context>,
    /// The context; events are recorded under the controller's own name, which is not its account's.
    nodes: Lister<Node>,
    pods: Lister<Pod>,
    queue: Arc<WorkQueue<Key>>,
    /// The NoExecute taints by node. A taint without `timeAdded` counts from when it was first seen.
    active: Mutex<HashMap<String, Vec<Active>>>,
    pending: Mutex<BTreeMap<ObjectKey, Pending>>,
}

async fn run(cx: Arc<Context>) {
    let queue: Arc<WorkQueue<Key>> = WorkQueue::new(Arc::clone(&cx.clock));
    let (nodes, pods) = (cx.informers.informer::<Node>(), cx.informers.informer::<Pod>());
    index_pods(&pods);
    let on_node = Arc::clone(&queue);
    nodes.add_handler(move |event| {
        let concerns = match event {
            Event::Updated { old, new } => !no_execute(old).eq(no_execute(new)),
            Event::Added(node) => no_execute(node).next().is_some(),
            Event::Deleted(_) => true,
        };
        if concerns {
            on_node.add(Key::Node(event.object().name().to_owned()));
        }
    });
    let on_pod = Arc::clone(&queue);
    pods.add_handler(move |event| {
        let tolerations = |p: &Pod| p.spec.as_ref().and_then(|s| s.tolerations.clone());
        let concerns = match event {
            Event::Updated { old, new } => {
                node_of(old) != node_of(new) || tolerations(old) != tolerations(new)
            }
            Event::Added(_) | Event::Deleted(_) => true,
        };
        if concerns && node_of(event.object()).is_some() {
            on_pod.add(Key::Pod(event.object().key()));
        }
    });
    if !(nodes.wait_synced().await && pods.wait_synced().await) {
        return;
    }
    let stop = cx.stop.clone();
    let controller = Arc::new(Controller {
        cx,
        nodes: nodes.lister(),
        pods: pods.lister(),
        queue: Arc::clone(&queue),
        active: Mutex::default(),
        pending: Mutex::default(),
    });
    let reconcile = move |key| {
        let controller = Arc::clone(&controller);
        async move {
            match key {
                Key::Node(name) => controller.reconcile_node(&name),
                Key::Pod(key) => controller.reconcile_pod(&key).await?,
            }
            Ok::<(), knarr_client::Error>(())
        }
    };
    queue.run(DESCRIPTOR.name, WORKERS, stop, reconcile).await;
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Controller {
    fn reconcile_node(&self, name: &str) {
        self.active_taints(name);
        pods_on(&self.pods, name).iter().for_each(|pod| self.queue.add(Key::Pod(pod.key())));
    }

    /// Returns the node's current NoExecute taints.
    fn active_taints(&self, name: &str) -> Vec<Active> {
        let node = self.nodes.get("", name);
        let mut all = lock(&self.active);
        let known = all.remove(name).unwrap_or_default();
        let now = self.cx.clock.now();
        let since = |taint: &Taint| match &taint.time_added {
            Some(time) => time.0,
            None => known.iter().find(|k| k.taint == *taint).map_or(now, |k| k.since),
        };
        let taints = node.as_ref().into_iter().flat_map(|n| no_execute(n));
        let active: Vec<Active> =
            taints.map(|taint| Active { taint: taint.clone(), since: since(taint) }).collect();
        if !active.is_empty() {
            all.insert(name.to_owned(), active.clone());
        }
        active
    }

    async fn reconcile_pod(&self, key: &ObjectKey) -> Result<()> {
        let pod = self.pods.get_key(key).filter(|p| p.metadata.deletion_timestamp.is_none());
        let Some((pod, node)) = pod.as_ref().and_then(|p| Some((p, node_of(p)?))) else {
            self.cancel(key, pod.as_deref());
            return Ok(());
        };
        let now = self.cx.clock.now();
        let tolerations = pod.spec.as_ref().and_then(|s| s.tolerations.as_deref()).unwrap_or_default();
        let decided = verdict(&self.active_taints(node), tolerations, bound_at(pod), now);
        let Verdict::Evict(at) = decided else {
            self.cancel(key, Some(pod));
            return Ok(());
        };
        let at = self.note(key, pod, at);
        if at > now {
            let wait = at.duration_since(now).try_into().unwrap_or_default();
            self.queue.add_after(Key::Pod(key.clone()), wait);
            return Ok(());
        }
        self.evict(pod).await?;
        metrics::add(Metric::TaintDeletions, &[], 1.0);
        metrics::record(Metric::TaintDeletionSeconds, &[], now.duration_since(at).as_secs_f64());
        lock(&self.pending).remove(key);
        Ok(())
    }

    /// Records when the pod is to be evicted and returns that time. A new taint never postpones a pending eviction.
    fn note(&self, key: &ObjectKey, pod: &Pod, at: Timestamp) -> Timestamp {
        let mut pending = lock(&self.pending);
        let known = pending.get(key).filter(|p| p.uid == pod.uid());
        let at = known.map_or(at, |p| p.at.min(at));
        pending.insert(key.clone(), Pending { uid: pod.uid().to_owned(), at });
        at
    }

    fn cancel(&self, key: &ObjectKey, pod: Option<&Pod>) {
        if lock(&self.pending).remove(key).is_some()
            && let Some(pod) = pod
        {
            let text = format!("Cancelling deletion of Pod {key}");
            self.cx.recorder.event(pod, EventType::Normal, "TaintManagerEviction", text);
        }
    }

    async fn evict(&self, pod: &Pod) -> Result<()> {
        let text = format!("Marking for deletion Pod {}", pod.key());
        self.cx.recorder.event(pod, EventType::Normal, "TaintManagerEviction", text);
        let patch = mark(pod, DISRUPTION, self.cx.clock.now());
        pod_disruption::delete(&self.cx.client, pod, patch, None).await.map(drop)
    }
}

#[cfg(test)]
#[path = "taint_eviction_tests.rs"]
mod tests;
