//! Device taint eviction: deletes pods whose devices have a NoExecute taint that they do not tolerate, and reports
//! the progress in the statuses of DeviceTaintRules.
//!
//! Source: `k8s.io/kubernetes/pkg/controller/devicetainteviction`, KEP-5055.

mod decide;
mod rule_status;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{DeviceTaintRule, ResourceClaim, ResourceSlice};
use knarr_api::kind::{Kind, ObjectKey};
use knarr_client::events::EventType;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Client, Event, Informer, Lister, Patch, Result};
use serde_json::json;

use self::decide::{Eviction, NO_EXECUTE, Seen, allocated, newest, selects};
use self::rule_status::{Counts, condition, known};
use crate::context::{Context, Descriptor};
use crate::metrics::{Metric, add, record};
use crate::support::pod_disruption::{self, Disruption, mark};

pub const DESCRIPTOR: Descriptor =
    Descriptor { name: "device-taint-eviction-controller", run: |cx| Box::pin(async move { run(cx).await }) };

/// The shortest time between two updates of a rule's status while pods are being evicted for it.
const STATUS_PERIOD: Duration = Duration::from_secs(10);
/// The index of claims and of slices by `driver/pool` of their devices.
const BY_POOL: &str = "device-pool";
const EVENT_REASON: &str = "DeviceTaintManagerEviction";
const DISRUPTION: Disruption = Disruption {
    reason: "DeletionByDeviceTaintManager",
    message: "Device Taint manager: deleting due to NoExecute taint",
};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    Pod(ObjectKey),
    /// Update the status of this rule.
    Rule(String),
}

/// An eviction that is due later.
#[derive(Debug, Clone)]
struct Pending {
    uid: String,
}

#[derive(Default)]
struct Memory {
    pending: BTreeMap<ObjectKey, Pending>,
    /// The uids of pods that were deleted; an entry is removed with its pod.
    evicted: BTreeSet<String>,
    /// The number of pods evicted so far, by uid of the rule; an entry is removed with its rule.
    by_rule: BTreeMap<String, u64>,
}

struct Controller {
    cx: Arc<Context>,
    /// Applies the statuses of rules.
    applier: Client,
    pods: Lister<Pod>,
    claims: Lister<ResourceClaim>,
    slices: Lister<ResourceSlice>,
    rules: Lister<DeviceTaintRule>,
    queue: Arc<WorkQueue<Key>>,
    memory: Arc<Mutex<Memory>>,
}

fn lock(memory: &Mutex<Memory>) -> MutexGuard<'_, Memory> {
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pool_of(driver: &str, pool: &str) -> String {
    format!("{driver}/{pool}")
}

/// Returns the pods that the claim is reserved for.
fn consumers(claim: &ResourceClaim) -> impl Iterator<Item = ObjectKey> + '_ {
    let reserved = claim.status.as_ref().and_then(|s| s.reserved_for.as_deref()).unwrap_or_default();
    let pods =
        reserved.iter().filter(|r| r.resource == "pods" && r.api_group.as_deref().unwrap_or("").is_empty());
    pods.map(|r| ObjectKey::new(claim.namespace(), &r.name))
}

/// Returns the NoExecute taints of a slice's devices, for comparison.
fn tainted(slice: &ResourceSlice) -> impl PartialEq + use<> {
    let devices = slice.spec.devices.iter().flatten();
    let taints = devices.flat_map(|d| {
        let taints = d.taints.iter().flatten().filter(|t| t.effect == NO_EXECUTE);
        taints.map(|t| (d.name.clone(), t.clone())).collect::<Vec<_>>()
    });
    (taints.collect::<Vec<_>>(), slice.spec.pool.generation)
}

async fn run(cx: Arc<Context>) {
    let queue: Arc<WorkQueue<Key>> = WorkQueue::new(Arc::clone(&cx.clock));
    let memory: Arc<Mutex<Memory>> = Arc::default();
    let pods = cx.informers.informer::<Pod>();
    let claims = cx.informers.informer::<ResourceClaim>();
    let slices = cx.informers.informer::<ResourceSlice>();
    let rules = cx.informers.informer::<DeviceTaintRule>();
    claims.add_index(BY_POOL, |claim| allocated(claim).iter().map(|r| pool_of(&r.driver, &r.pool)).collect());
    slices.add_index(BY_POOL, |slice| vec![pool_of(&slice.spec.driver, &slice.spec.pool.name)]);
    watch_pods(&pods, &queue, &memory);
    watch_devices(&claims, &slices, &queue);
    watch_rules(&rules, &claims, &queue, &memory);
    if !(pods.wait_synced().await
        && claims.wait_synced().await
        && slices.wait_synced().await
        && rules.wait_synced().await)
    {
        return;
    }
    let (stop, clock) = (cx.stop.clone(), Arc::clone(&cx.clock));
    let workers = cx.workers();
    let controller = Arc::new(Controller {
        applier: Client::new(Arc::clone(cx.client.transport()), clock, DESCRIPTOR.name),
        pods: pods.lister(),
        claims: claims.lister(),
        slices: slices.lister(),
        rules: rules.lister(),
        queue: Arc::clone(&queue),
        memory,
        cx,
    });
    let reconcile = move |key: Key| {
        let controller = Arc::clone(&controller);
        async move {
            match key {
                Key::Pod(key) => controller.pod(&key).await,
                Key::Rule(name) => controller.rule(&name).await,
            }
        }
    };
    queue.run(DESCRIPTOR.name, workers, stop, reconcile).await;
}

fn watch_pods(pods: &Informer<Pod>, queue: &Arc<WorkQueue<Key>>, memory: &Arc<Mutex<Memory>>) {
    let (on_pod, of_pods) = (Arc::clone(queue), Arc::clone(memory));
    pods.add_handler(move |event| {
        let concerns = match event {
            Event::Added(_) => true,
            Event::Updated { old, new } => uses(old) != uses(new),
            Event::Deleted(pod) => {
                let mut memory = lock(&of_pods);
                memory.pending.remove(&pod.key());
                memory.evicted.remove(pod.uid());
                false
            }
        };
        if concerns {
            on_pod.add(Key::Pod(event.object().key()));
        }
    });
}

/// Watches for claims whose reservations change and devices whose taints change.
fn watch_devices(
    claims: &Informer<ResourceClaim>,
    slices: &Informer<ResourceSlice>,
    queue: &Arc<WorkQueue<Key>>,
) {
    let on_claim = Arc::clone(queue);
    claims.add_handler(move |event| {
        if let Event::Updated { old, .. } = event {
            consumers(old).for_each(|pod| on_claim.add(Key::Pod(pod)));
        }
        consumers(event.object()).for_each(|pod| on_claim.add(Key::Pod(pod)));
    });
    let (on_slice, of_slice) = (Arc::clone(queue), claims.lister());
    slices.add_handler(move |event| {
        if matches!(event, Event::Updated { old, new } if tainted(old) == tainted(new)) {
            return;
        }
        let spec = &event.object().spec;
        let users = of_slice.by_index(BY_POOL, &pool_of(&spec.driver, &spec.pool.name));
        users.iter().flat_map(|claim| consumers(claim)).for_each(|pod| on_slice.add(Key::Pod(pod)));
    });
}

fn watch_rules(
    rules: &Informer<DeviceTaintRule>,
    claims: &Informer<ResourceClaim>,
    queue: &Arc<WorkQueue<Key>>,
    memory: &Arc<Mutex<Memory>>,
) {
    let (on_rule, of_rule, of_rules) = (Arc::clone(queue), claims.lister(), Arc::clone(memory));
    rules.add_handler(move |event| {
        match event {
            Event::Updated { old, new } if old.spec == new.spec && old.uid() == new.uid() => return,
            Event::Deleted(rule) => drop(lock(&of_rules).by_rule.remove(rule.uid())),
            // The status is updated at once, before any pod is evicted.
            Event::Added(rule) | Event::Updated { new: rule, .. } => {
                on_rule.add(Key::Rule(rule.name().to_owned()))
            }
        }
        let users = of_rule.list();
        let allocated = users.iter().filter(|claim| !allocated(claim).is_empty());
        allocated.flat_map(|claim| consumers(claim)).for_each(|pod| on_rule.add(Key::Pod(pod)));
    });
}

/// Returns the parts of a pod that determine which claims it uses, for comparison.
fn uses(pod: &Pod) -> impl PartialEq + use<> {
    let node = pod.spec.as_ref().and_then(|s| s.node_name.clone());
    (node, pod.status.as_ref().and_then(|s| s.resource_claim_statuses.clone()), pod.uid().to_owned())
}

impl Seen for Controller {
    fn pool(&self, driver: &str, pool: &str) -> Vec<Arc<ResourceSlice>> {
        self.slices.by_index(BY_POOL, &pool_of(driver, pool))
    }

    fn claim(&self, namespace: &str, name: &str) -> Option<Arc<ResourceClaim>> {
        self.claims.get(namespace, name)
    }
}

impl Controller {
    /// Returns the rules that evict.
    fn evicting(&self) -> Vec<Arc<DeviceTaintRule>> {
        self.rules.list().into_iter().filter(|rule| rule.spec.taint.effect == NO_EXECUTE).collect()
    }

    async fn pod(&self, key: &ObjectKey) -> Result<()> {
        let pod = self.pods.get_key(key).filter(|p| p.metadata.deletion_timestamp.is_none());
        let Some(pod) = pod.filter(|p| !lock(&self.memory).evicted.contains(p.uid())) else { return Ok(()) };
        let Some(eviction) = decide::of_pod(&pod, self, &self.evicting()) else {
            let known = lock(&self.memory).pending.remove(key);
            if known.is_some_and(|p| p.uid == pod.uid()) {
                self.cx.recorder.event(&*pod, EventType::Normal, EVENT_REASON, "Cancelling deletion");
            }
            return Ok(());
        };
        lock(&self.memory).pending.insert(key.clone(), Pending { uid: pod.uid().to_owned() });
        self.queue_statuses(&eviction);
        let now = self.cx.clock.now();
        if eviction.when > now {
            let wait = eviction.when.duration_since(now).try_into().unwrap_or_default();
            self.queue.add_after(Key::Pod(key.clone()), wait);
            return Ok(());
        }
        if self.evict(&pod).await? {
            self.count(&eviction, self.cx.clock.now());
        }
        let mut memory = lock(&self.memory);
        memory.pending.remove(key);
        if self.pods.get_key(key).is_some_and(|shown| shown.uid() == pod.uid()) {
            memory.evicted.insert(pod.uid().to_owned());
        }
        Ok(())
    }

    /// Queues the statuses of the eviction's rules with a delay, because further evictions may follow.
    fn queue_statuses(&self, eviction: &Eviction) {
        for rule in self.rules.list().iter().filter(|rule| eviction.rules.contains(rule.uid())) {
            self.queue.add_after(Key::Rule(rule.name().to_owned()), STATUS_PERIOD);
        }
    }

    fn count(&self, eviction: &Eviction, now: Timestamp) {
        add(Metric::DeviceTaintEvictions, &[], 1.0);
        record(Metric::DeviceTaintEvictionSeconds, &[], now.duration_since(eviction.when).as_secs_f64());
        let mut memory = lock(&self.memory);
        for uid in &eviction.rules {
            *memory.by_rule.entry(uid.clone()).or_default() += 1;
        }
        drop(memory);
        self.queue_statuses(eviction);
    }

    /// Evicts the pod; returns false if another client deleted it first.
    async fn evict(&self, pod: &Pod) -> Result<bool> {
        self.cx.recorder.event(pod, EventType::Normal, EVENT_REASON, "Marking for deletion");
        let patch = mark(pod, DISRUPTION, self.cx.clock.now());
        pod_disruption::delete(&self.cx.client, pod, patch, None).await
    }

    async fn rule(&self, name: &str) -> Result<()> {
        let Some(rule) = self.rules.get("", name) else { return Ok(()) };
        let now = self.cx.clock.now();
        if let Some(shown) = known(&rule).filter(|c| c.observed_generation == rule.metadata.generation) {
            let since = now.duration_since(shown.last_transition_time.0);
            let left = SignedDuration::try_from(STATUS_PERIOD).unwrap_or_default().checked_sub(since);
            if let Some(left) = left.filter(|left| left.is_positive()) {
                self.queue.add_after(Key::Rule(name.to_owned()), left.try_into().unwrap_or_default());
                return Ok(());
            }
        }
        let Some(next) = condition(&rule, self.counts(&rule), now) else { return Ok(()) };
        let object = json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule",
            "metadata": {"name": name, "uid": rule.uid()}, "status": {"conditions": [next]}});
        let patch = Patch::Apply { object, force: true };
        match self.applier.patch::<DeviceTaintRule>("", name, Some("status"), &patch).await {
            Err(error) if error.is_not_found() => Ok(()),
            sent => sent.map(drop),
        }
    }

    fn counts(&self, rule: &Arc<DeviceTaintRule>) -> Counts {
        let evicted_pods = lock(&self.memory).by_rule.get(rule.uid()).copied().unwrap_or(0);
        let mut counts = Counts { evicted_pods, ..Counts::default() };
        let rules = match rule.spec.taint.effect.as_str() {
            NO_EXECUTE => self.evicting(),
            "None" => {
                self.count_devices(rule, &mut counts);
                let mut evicts = (**rule).clone();
                NO_EXECUTE.clone_into(&mut evicts.spec.taint.effect);
                vec![Arc::new(evicts)]
            }
            _ => return counts,
        };
        let mut namespaces = BTreeSet::new();
        for pod in self.pods.list().iter().filter(|p| p.metadata.deletion_timestamp.is_none()) {
            let eviction = decide::of_pod(pod, self, &rules);
            if eviction.is_some_and(|e| e.rules.contains(rule.uid())) {
                counts.pending_pods += 1;
                namespaces.insert(pod.namespace().to_owned());
            }
        }
        counts.pending_namespaces = namespaces.len();
        counts
    }

    fn count_devices(&self, rule: &DeviceTaintRule, counts: &mut Counts) {
        let mut pools: BTreeMap<String, Vec<Arc<ResourceSlice>>> = BTreeMap::new();
        for slice in self.slices.list() {
            pools.entry(pool_of(&slice.spec.driver, &slice.spec.pool.name)).or_default().push(slice);
        }
        for slice in pools.values().flat_map(|slices| newest(slices)) {
            let of = |name: &str| selects(rule, &slice.spec.driver, &slice.spec.pool.name, name);
            counts.published_devices += slice.spec.devices.iter().flatten().filter(|d| of(&d.name)).count();
        }
        for claim in self.claims.list() {
            let selected = allocated(&claim).iter().filter(|r| selects(rule, &r.driver, &r.pool, &r.device));
            counts.allocated_devices += selected.count();
        }
    }
}
