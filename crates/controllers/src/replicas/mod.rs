//! ReplicaSet and ReplicationController: each keeps the number of pods that its spec requires.
//!
//! A lagging informer cannot make them create too many pods: after each write they wait until the informer has seen
//! it before they count pods again.

mod plan;
mod replica_set;
mod replication_controller;

use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use knarr_api::kind::{Kind, ObjectKey};
use knarr_apimachinery::selector::Selector;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Informer, Result};

use crate::context::Context;
use crate::support::owners::controller_of;
use crate::support::pod_control::{PodControl, pod_from};
use crate::support::pod_state::{available_in, is_active};
use crate::support::written::{CATCH_UP, Written};
use plan::{Plan, Status, plan};

pub use replica_set::DESCRIPTOR as REPLICA_SET;
pub use replication_controller::DESCRIPTOR as REPLICATION_CONTROLLER;

/// The most pods created or deleted in one reconciliation.
const BURST: usize = 500;
/// Reconciling a set of many thousand pods takes milliseconds, and every pod that starts or ends requeues the set. A
/// set that takes longer than this is delayed for many times as long.
const LONG: Duration = Duration::from_millis(1);
const REST: u32 = 16;
const LONGEST_REST: Duration = Duration::from_millis(250);

/// A kind that maintains a number of identical pods.
trait Replicas: Kind {
    /// Returns the wanted number of pods.
    fn wanted(&self) -> i32;
    fn min_ready_seconds(&self) -> i32;
    fn template(&self) -> Option<&PodTemplateSpec>;
    /// Returns the selector; `None` if it is invalid or would select everything.
    fn selector(&self) -> Option<Selector>;
    fn status(&self) -> Status;
    fn with_status(&self, status: Status) -> Self;
}

struct Controller<K> {
    cx: Arc<Context>,
    sets: Informer<K>,
    pods: PodControl,
    queue: Arc<WorkQueue<ObjectKey>>,
    /// The newest own writes of the sets' statuses.
    written: Written,
    /// The monotonic times until which large sets are delayed.
    resting: Mutex<HashMap<ObjectKey, Duration>>,
}

async fn run<K: Replicas>(cx: Arc<Context>, name: &'static str) {
    let queue = WorkQueue::new(Arc::clone(&cx.clock));
    let sets = cx.informers.informer::<K>();
    let informer = cx.informers.informer::<Pod>();
    let pods = PodControl::new(Arc::clone(&cx), informer.clone());
    let on_set = Arc::clone(&queue);
    sets.add_handler(move |event| on_set.add(event.object().key()));
    pods.wake::<K>(&queue, sets.lister(), K::selector);
    if !(sets.wait_synced().await && informer.wait_synced().await) {
        return;
    }

    let (stop, workers) = (cx.stop.clone(), cx.workers());
    let (written, resting) = (Written::default(), Mutex::default());
    let controller = Arc::new(Controller { cx, sets, pods, queue: Arc::clone(&queue), written, resting });
    let reconcile = move |key| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(key).await }
    };
    queue.run(name, workers, stop, reconcile).await;
}

impl<K: Replicas> Controller<K> {
    async fn reconcile(&self, key: ObjectKey) -> Result<()> {
        if self.pods.is_pending(&key).await || self.written.is_pending(&key, self.sets.observed_version()) {
            self.queue.add_after(key, CATCH_UP);
            return Ok(());
        }
        let Some(set) = self.sets.lister().get_key(&key) else {
            self.pods.forget(&key);
            self.written.forget(&key);
            self.resting().remove(&key);
            return Ok(());
        };
        let begun = self.cx.clock.monotonic();
        if let Some(until) = self.resting().get(&key).filter(|until| **until > begun) {
            self.queue.add_after(key, *until - begun);
            return Ok(());
        }
        let Some(selector) = set.selector() else { return Ok(()) };
        let pods = self.pods.claim_unended(&*set, &selector).await?;
        let plan = {
            // Computed at most once, and only if pods are to be deleted.
            let crowds = OnceCell::new();
            let on_node =
                |node: &str| crowds.get_or_init(|| self.family_by_node(&set)).get(node).copied().unwrap_or(0);
            plan(set.wanted(), &pods, self.cx.clock.now(), on_node)
        };
        let planned = self.cx.clock.monotonic();
        let result =
            if set.meta().deletion_timestamp.is_some() { Ok(()) } else { self.carry_out(&set, &plan).await };
        let carried_out = self.cx.clock.monotonic();
        let error = result.as_ref().err().map(ToString::to_string);
        let status = plan::status(&*set, &pods, error.as_deref(), self.cx.clock.now());
        self.look_again_when_available(&set, &pods);
        let now = self.cx.clock.monotonic();
        let took = planned.saturating_sub(begun) + now.saturating_sub(carried_out);
        if took > LONG {
            self.resting().insert(key, now + (took * REST).min(LONGEST_REST));
        }
        self.write_status(&set, status).await?;
        result
    }

    fn resting(&self) -> MutexGuard<'_, HashMap<ObjectKey, Duration>> {
        self.resting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn carry_out(&self, set: &K, plan: &Plan<'_>) -> Result<()> {
        match plan {
            Plan::Enough => Ok(()),
            Plan::Create(count) => {
                let pods = vec![pod_from(set, set.template()); (*count).min(BURST)];
                self.pods.create_all(set, &pods).await.1
            }
            Plan::Delete(pods) => self.pods.delete_all(set, pods.iter().take(BURST).copied()).await,
        }
    }

    /// Returns how many pods of sets with the same owner (old and new of one Deployment) run on each node.
    fn family_by_node(&self, set: &K) -> HashMap<String, usize> {
        let owner = controller_of(set.meta()).map(|o| o.uid.as_str());
        let sets = self.sets.lister().list_namespace(set.namespace());
        let family = sets.iter().filter(|s| {
            s.uid() == set.uid()
                || (owner.is_some() && controller_of(s.meta()).map(|o| o.uid.as_str()) == owner)
        });
        let mut crowds = HashMap::new();
        for pod in family.flat_map(|s| self.pods.of(s.uid())).filter(|pod| is_active(pod)) {
            if let Some(node) = pod.spec.as_ref().and_then(|s| s.node_name.as_ref()) {
                *crowds.entry(node.clone()).or_insert(0) += 1;
            }
        }
        crowds
    }

    async fn write_status(&self, set: &K, status: Status) -> Result<()> {
        if set.status() == status {
            return Ok(());
        }
        match self.cx.client.update_status(&set.with_status(status)).await {
            Ok(set) => {
                self.written.note(&set.key(), set.meta());
                Ok(())
            }
            Err(e) if e.is_not_found() => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn look_again_when_available(&self, set: &K, pods: &[Arc<Pod>]) {
        let wanted = set.min_ready_seconds();
        let now = self.cx.clock.now();
        let next = pods.iter().filter_map(|p| available_in(p, wanted, now)).filter(|d| !d.is_zero()).min();
        if let Some(delay) = next {
            self.queue.add_after(set.key(), delay);
        }
    }
}

#[cfg(test)]
mod tests;
