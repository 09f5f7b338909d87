//! Node lifecycle: detects nodes without heartbeats, and sets taints according to the nodes' conditions.

mod health;
mod taints;
#[cfg(test)]
mod testing;
mod zones;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use knarr_api::kind::Kind;
use knarr_client::events::{EventRecorder, EventType, reference};
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Event, ListOptions, Lister, Patch, Result};
use serde_json::json;

use crate::context::{Context, Descriptor};
use crate::metrics::{self, Metric};
use crate::support::nodes::{condition, index_pods, is_ready, node_of, pods_on};
use crate::support::pod_state;
use health::{Health, unknown_conditions};
use taints::{NoExecute, next_labels, next_taints};
use zones::{Change, Permit, Zones, zone_of};

pub const DESCRIPTOR: Descriptor =
    Descriptor { name: "node-lifecycle-controller", run: |cx| Box::pin(async move { run(cx).await }) };

const LEASES: &str = "kube-node-lease";
const WORKERS: usize = 8;
/// How many status writes run concurrently for one node.
const BATCH: usize = 16;

/// The state kept between two reconciliations of the nodes.
#[derive(Default)]
struct Memory {
    healths: HashMap<String, Health>,
    zones: Zones,
}

struct Controller {
    cx: Arc<Context>,
    nodes: Lister<Node>,
    leases: Lister<Lease>,
    pods: Lister<Pod>,
    queue: Arc<WorkQueue<String>>,
    memory: Arc<Mutex<Memory>>,
}

fn lock(memory: &Mutex<Memory>) -> MutexGuard<'_, Memory> {
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_unknown(node: &Node) -> bool {
    condition(node, "Ready").is_some_and(|c| c.status == "Unknown")
}

async fn run(cx: Arc<Context>) {
    let queue: Arc<WorkQueue<String>> = WorkQueue::new(Arc::clone(&cx.clock));
    let memory: Arc<Mutex<Memory>> = Arc::default();
    let (nodes, pods) = (cx.informers.informer::<Node>(), cx.informers.informer::<Pod>());
    let only_nodes = ListOptions {
        field_selector: Some(format!("metadata.namespace={LEASES}")),
        ..ListOptions::default()
    };
    let leases = cx.informers.selected::<Lease>(only_nodes);
    index_pods(&pods);

    let (on_node, seen, events) = (Arc::clone(&queue), Arc::clone(&memory), cx.recorder.clone());
    nodes.add_handler(move |event| node_changed(&on_node, &seen, &events, event));
    let (seen, clock) = (Arc::clone(&memory), Arc::clone(&cx.clock));
    leases.add_handler(move |event| {
        // A renewed lease only restarts the grace period: the queue checks the node again when that ends.
        if let Event::Updated { new, .. } = event
            && let Some(health) = lock(&seen).healths.get_mut(new.name())
        {
            health.observe_lease(new, clock.monotonic());
        }
    });
    let (on_pod, known) = (Arc::clone(&queue), nodes.lister());
    pods.add_handler(move |event| {
        let came = match event {
            Event::Added(_) => true,
            Event::Updated { old, new } => node_of(old) != node_of(new),
            Event::Deleted(_) => false,
        };
        if let Some(node) = node_of(event.object()).filter(|_| came)
            && known.get("", node).is_some_and(|n| is_unknown(&n))
        {
            on_pod.add(node.to_owned());
        }
    });
    let counted = Arc::downgrade(&memory);
    metrics::at_scrape("node zones", move || {
        if let Some(memory) = counted.upgrade() {
            lock(&memory).zones.measure();
        }
    });
    if !(nodes.wait_synced().await && leases.wait_synced().await && pods.wait_synced().await) {
        return;
    }
    let stop = cx.stop.clone();
    let controller = Arc::new(Controller {
        cx,
        nodes: nodes.lister(),
        leases: leases.lister(),
        pods: pods.lister(),
        queue: Arc::clone(&queue),
        memory,
    });
    let reconcile = move |name: String| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(&name).await }
    };
    queue.run(DESCRIPTOR.name, WORKERS, stop, reconcile).await;
}

fn node_changed(
    queue: &WorkQueue<String>,
    memory: &Mutex<Memory>,
    events: &EventRecorder,
    event: &Event<Node>,
) {
    let node = event.object();
    let name = node.name();
    let emit = |reason, what: String| {
        events.event_about(about(node), EventType::Normal, reason, format!("Node {name} event: {what}"));
    };
    let mut memory = lock(memory);
    match event {
        Event::Deleted(_) => {
            memory.healths.remove(name);
            memory.zones.forget(name);
            emit("RemovingNode", format!("Removing Node {name} from Controller"));
        }
        Event::Added(_) => {
            memory.zones.observe(name, node);
            emit("RegisteredNode", format!("Registered Node {name} in Controller"));
        }
        Event::Updated { .. } => memory.zones.observe(name, node),
    }
    drop(memory);
    queue.add(name.to_owned());
}

/// Returns a reference without resourceVersion, as upstream's events have it.
fn about(node: &Node) -> ObjectReference {
    ObjectReference { resource_version: None, ..reference(node) }
}

impl Controller {
    async fn reconcile(&self, name: &str) -> Result<()> {
        self.look_at_zones();
        let Some(node) = self.nodes.get("", name) else { return Ok(()) };
        if self.is_silent(&node).await? && self.mark_unknown(&node).await? {
            // The status change arrives as an event, which requeues the node for its taints.
            return Ok(());
        }
        self.taint(&node).await?;
        if is_unknown(&node) {
            self.mark_pods_not_ready(&node).await?;
        }
        Ok(())
    }

    /// Reacts to zones that become disrupted or recover.
    fn look_at_zones(&self) {
        let monotonic = self.cx.clock.monotonic();
        let mut memory = lock(&self.memory);
        let change = memory.zones.refresh(&self.cx.settings().nodes);
        match change {
            Change::Nothing => return,
            Change::Pace => {}
            Change::Halted => tracing::info!("no node is ready: evictions are halted"),
            Change::Resumed => {
                tracing::info!("some nodes are ready again: evictions resume");
                memory.healths.values_mut().for_each(|h| h.sign(monotonic));
            }
        }
        drop(memory);
        self.nodes.list().iter().for_each(|n| self.queue.add(n.name().to_owned()));
    }

    /// Returns whether the grace period of the node's heartbeat has expired; otherwise requeues the node for when it
    /// may.
    async fn is_silent(&self, node: &Node) -> Result<bool> {
        let clock = &self.cx.clock;
        let name = node.name();
        let time_left = {
            let mut memory = lock(&self.memory);
            let monotonic = clock.monotonic();
            let health = memory.healths.entry(name.to_owned()).or_insert_with(|| Health::new(monotonic));
            health.observe(node, clock.now(), monotonic);
            if let Some(lease) = self.leases.get(LEASES, name) {
                health.observe_lease(&lease, monotonic);
            }
            health.time_left(monotonic, &self.cx.settings().nodes)
        };
        if let Some(time_left) = time_left {
            self.queue.add_after(name.to_owned(), time_left);
            return Ok(false);
        }
        if is_unknown(node) {
            return Ok(true);
        }
        // The informer may lag behind rather than the node, so the lease is read from the API server.
        match self.cx.client.get::<Lease>(LEASES, name).await {
            Ok(lease) => {
                let monotonic = clock.monotonic();
                let mut memory = lock(&self.memory);
                let health = memory.healths.get_mut(name);
                let renewed = health.is_some_and(|h| h.observe_lease(&lease, monotonic));
                drop(memory);
                if renewed {
                    self.queue.add(name.to_owned());
                }
                Ok(!renewed)
            }
            Err(e) if e.is_not_found() => Ok(true),
            Err(e) => Err(e),
        }
    }

    /// Sets the node's conditions to Unknown; returns whether anything was written.
    async fn mark_unknown(&self, node: &Node) -> Result<bool> {
        let conditions = unknown_conditions(node, self.cx.clock.now());
        if conditions.is_empty() {
            return Ok(false);
        }
        // With the resourceVersion, the patch cannot undo what the kubelet writes meanwhile.
        let patch = Patch::Strategic(json!({
            "metadata": {"resourceVersion": node.metadata.resource_version},
            "status": {"conditions": conditions},
        }));
        match self.cx.client.patch::<Node>("", node.name(), Some("status"), &patch).await {
            Err(e) if e.is_not_found() => return Ok(true),
            other => other?,
        };
        if is_ready(node) {
            let text = format!("Node {} status is now: NodeNotReady", node.name());
            self.cx.recorder.event_about(about(node), EventType::Normal, "NodeNotReady", text);
        }
        Ok(true)
    }

    async fn taint(&self, node: &Node) -> Result<()> {
        let taints = next_taints(node, self.no_execute(node), self.cx.clock.now());
        let labels = next_labels(node);
        if taints.is_none() && labels.is_empty() {
            return Ok(());
        }
        let mut patch = json!({"metadata": {"resourceVersion": node.metadata.resource_version}});
        if let Some(taints) = taints {
            patch["spec"]["taints"] = if taints.is_empty() { json!(null) } else { json!(taints) };
        }
        if !labels.is_empty() {
            patch["metadata"]["labels"] = json!(labels);
        }
        match self.cx.client.patch::<Node>("", node.name(), None, &Patch::Strategic(patch)).await {
            Err(e) if !e.is_not_found() => Err(e),
            _ => Ok(()),
        }
    }

    /// Returns the NoExecute taint that the node may have now, given the pace of its zone.
    fn no_execute(&self, node: &Node) -> NoExecute {
        let wanted = NoExecute::wanted(node);
        let mut memory = lock(&self.memory);
        if memory.zones.is_halted() && wanted != NoExecute::Unchanged {
            return NoExecute::Neither;
        }
        if !wanted.is_new(node) {
            return wanted;
        }
        match memory.zones.ask(&zone_of(node), self.cx.clock.monotonic(), &self.cx.settings().nodes) {
            Permit::Granted => {
                metrics::add(Metric::NodeEvictions, &[&zone_of(node)], 1.0);
                wanted
            }
            Permit::After(wait) => {
                self.queue.add_after(node.name().to_owned(), wait);
                NoExecute::Neither
            }
            Permit::Held => NoExecute::Neither,
        }
    }

    /// Sets the node's pods to not ready, so that Services stop sending traffic to pods in an unknown state.
    async fn mark_pods_not_ready(&self, node: &Node) -> Result<()> {
        let mut pods = pods_on(&self.pods, node.name());
        pods.retain(|p| pod_state::is_ready(p));
        let mut outcome = Ok(());
        for batch in pods.chunks(BATCH) {
            let all = batch.iter().map(|pod| self.mark_pod_not_ready(pod));
            for result in futures_util::future::join_all(all).await {
                if result.is_err() {
                    outcome = result;
                }
            }
        }
        outcome
    }

    async fn mark_pod_not_ready(&self, pod: &Pod) -> Result<()> {
        let now = Time(self.cx.clock.now());
        let patch = Patch::Strategic(json!({
            "metadata": {"uid": pod.uid()},
            "status": {"conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": now}]},
        }));
        match self.cx.client.patch::<Pod>(pod.namespace(), pod.name(), Some("status"), &patch).await {
            Ok(_) => {}
            Err(e) if e.is_not_found() => return Ok(()),
            Err(e) => return Err(e),
        }
        self.cx.recorder.event(pod, EventType::Warning, "NodeNotReady", "Node is not ready");
        Ok(())
    }
}

#[cfg(test)]
mod tests;
