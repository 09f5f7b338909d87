//! Runs the simulated nodes: heartbeats on one queue, pods on another.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeStatus, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions};
use knarr_api::kind::{Kind, ObjectKey};
use knarr_api::object::Object;
use knarr_client::events::EventRecorder;
use knarr_client::reflector::{Change, Reflector};
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Client, Informers, ListOptions, Patch, Result};
use serde::Deserialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::addresses::{self, Pool, Range};
use super::events::{NodeEvents, scheduling_changed};
use super::pod::{self, Action};
use super::{LABEL, Options, node};
use crate::node_status::{lease, status};

/// How often a node writes its status if nothing changes.
const REPORT_INTERVAL: Duration = Duration::from_secs(300);

/// A periodic action of a node, by the node's index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Beat {
    Register(u32),
    Lease(u32),
    Status(u32),
}

#[derive(Default)]
struct NodeState {
    uid: String,
    /// Whether the event `Starting` was emitted.
    started: bool,
    lease: Option<Lease>,
    pool: Option<Pool>,
}

pub struct Runner {
    options: Options,
    client: Client,
    events: NodeEvents,
    nodes: Vec<Mutex<NodeState>>,
    beats: Arc<WorkQueue<Beat>>,
    pods: Arc<WorkQueue<ObjectKey>>,
    pod_store: Arc<Reflector>,
    node_store: Arc<Reflector>,
}

/// The few fields of a pod from which it is decided whether there is anything to do.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct PodView {
    metadata: PodMeta,
    spec: PodSpecView,
    status: PodStatusView,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct PodMeta {
    deletion_timestamp: Option<String>,
    deletion_grace_period_seconds: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct PodSpecView {
    node_name: String,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct PodStatusView {
    phase: String,
    #[serde(rename = "podIP")]
    pod_ip: String,
}

fn pod_view(object: &Object) -> PodView {
    serde_json::from_slice(&object.json()).unwrap_or_default()
}

/// Decodes an object without caching its typed form, which would be many times its size.
fn decode<K: Kind>(object: &Object) -> Option<K> {
    K::decode(&object.json()).inspect_err(|error| tracing::debug!(%error, "cannot decode")).ok()
}

impl Runner {
    pub fn new(
        options: Options,
        client: Client,
        recorder: EventRecorder,
        informers: &Informers,
    ) -> Arc<Self> {
        let clock = Arc::clone(client.clock());
        let bound =
            ListOptions { field_selector: Some("spec.nodeName!=".to_owned()), ..ListOptions::default() };
        let ours = ListOptions { label_selector: Some(format!("{LABEL}=true")), ..ListOptions::default() };
        let nodes = (0..options.count).map(|_| Mutex::default()).collect();
        Arc::new(Self {
            nodes,
            events: NodeEvents::new(recorder),
            beats: WorkQueue::new(Arc::clone(&clock)),
            pods: WorkQueue::new(clock),
            pod_store: informers.untyped(Pod::RESOURCE, bound),
            node_store: informers.untyped(Node::RESOURCE, ours),
            options,
            client,
        })
    }

    pub async fn run(self: Arc<Self>, informers: &Informers, stop: CancellationToken) {
        if !informers.wait_synced().await {
            return;
        }
        let runner = Arc::downgrade(&self);
        let handler = move |change: &Change| {
            if let Some(runner) = runner.upgrade() {
                runner.node_changed(change);
            }
        };
        self.node_store.add_handler(&stop, Arc::new(handler));
        let runner = Arc::downgrade(&self);
        let handler = move |change: &Change| {
            if let Some(runner) = runner.upgrade() {
                runner.pod_changed(change);
            }
        };
        self.pod_store.add_handler(&stop, Arc::new(handler));
        for index in 0..self.options.count {
            self.beats.add(Beat::Register(index));
        }
        let workers = self.options.concurrency.max(1);
        let beat = Arc::clone(&self);
        let beats = Arc::clone(&self.beats).run("simulated nodes", workers, stop.clone(), move |key| {
            let runner = Arc::clone(&beat);
            async move { runner.beat(key).await }
        });
        let pod = Arc::clone(&self);
        let pods = Arc::clone(&self.pods).run("simulated pods", workers, stop, move |key| {
            let runner = Arc::clone(&pod);
            async move { runner.pod(&key).await }
        });
        tokio::join!(beats, pods);
    }

    fn node(&self, index: u32) -> MutexGuard<'_, NodeState> {
        // Indexes are below the count for which the list was made.
        self.nodes[index as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn node_changed(&self, change: &Change) {
        match change {
            Change::Added(_) => {}
            Change::Updated { old, new } => {
                if self.options.node_index(new.name()).is_some()
                    && let Some(reason) = scheduling_changed(old, new)
                {
                    self.events.status_is(new.name(), new.uid(), &[reason]);
                }
            }
            Change::Deleted(object) => {
                if let Some(index) = self.options.node_index(object.name()) {
                    self.beats.add(Beat::Register(index));
                }
            }
        }
    }

    fn pod_changed(&self, change: &Change) {
        match change {
            Change::Added(new) | Change::Updated { new, .. } => {
                let view = pod_view(new);
                let Some(index) = self.options.node_index(&view.spec.node_name) else { return };
                if let (Change::Added(_), Ok(address)) = (change, view.status.pod_ip.parse()) {
                    self.with_pool(index, |pool| pool.keep(address));
                }
                self.pods.add_after(new.key(), self.delay(&view));
            }
            Change::Deleted(old) => {
                let view = pod_view(old);
                let index = self.options.node_index(&view.spec.node_name);
                if let (Some(index), Ok(address)) = (index, view.status.pod_ip.parse()) {
                    self.with_pool(index, |pool| pool.release(address));
                }
            }
        }
    }

    /// Returns how long after a change the pod is handled.
    fn delay(&self, view: &PodView) -> Duration {
        if view.metadata.deletion_timestamp.is_some() {
            let grace = Duration::from_secs(view.metadata.deletion_grace_period_seconds.unwrap_or(0));
            return self.options.stop_latency.min(grace);
        }
        match view.status.phase.as_str() {
            "Running" | "Succeeded" | "Failed" => Duration::ZERO,
            _ => self.options.start_latency.mul_f64(0.5 + fastrand::f64()),
        }
    }

    fn with_pool<T>(&self, index: u32, work: impl FnOnce(&mut Pool) -> T) -> T {
        let range = self.pod_range(index);
        let mut node = self.node(index);
        if node.pool.as_ref().is_none_or(|pool| pool.range() != range) {
            node.pool = Some(Pool::new(range));
        }
        work(node.pool.get_or_insert_with(|| Pool::new(range)))
    }

    fn pod_range(&self, index: u32) -> Range {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct View {
            spec: Spec,
        }
        #[derive(Deserialize, Default)]
        #[serde(default, rename_all = "camelCase")]
        struct Spec {
            #[serde(rename = "podCIDR")]
            pod_cidr: String,
        }
        let object = self.node_store.store().get(&ObjectKey::new("", &self.options.node_name(index)));
        let view: Option<View> = object.and_then(|o| serde_json::from_slice(&o.json()).ok());
        view.and_then(|v| Range::parse(&v.spec.pod_cidr)).unwrap_or_else(|| Range::fallback(index))
    }

    async fn beat(&self, beat: Beat) -> Result<()> {
        match beat {
            Beat::Register(index) => self.register(index).await,
            Beat::Lease(index) => self.renew(index).await,
            Beat::Status(index) => self.report(index).await,
        }
    }

    async fn register(&self, index: u32) -> Result<()> {
        let (wanted, events) = node::node(&self.options, index, self.client.clock().now());
        let (node, events) = match self.client.create(&wanted).await {
            Err(error) if error.is_already_exists() => {
                (self.client.get::<Node>("", wanted.name()).await?, Vec::new())
            }
            Err(error) => return Err(error),
            // If the API server ignores the status at creation, the first update emits the events.
            Ok(made) if made.status.as_ref().is_none_or(|s| s.conditions.is_none()) => (made, Vec::new()),
            Ok(made) => (made, events),
        };
        let has_started = {
            let mut state = self.node(index);
            node.uid().clone_into(&mut state.uid);
            std::mem::replace(&mut state.started, true)
        };
        if !has_started {
            self.events.starting(node.name(), node.uid());
        }
        self.events.status_is(node.name(), node.uid(), &events);
        // Writes the status at once if the node existed before, or was created without one.
        self.write_status(index, &node).await?;
        // The first heartbeats are spread over the interval, and so are all later ones.
        let part = f64::from(index) / f64::from(self.options.count.max(1));
        self.beats.add_after(Beat::Lease(index), lease::RENEW_INTERVAL.mul_f64(part));
        self.beats.add_after(Beat::Status(index), REPORT_INTERVAL.mul_f64(0.5 + part / 2.0));
        Ok(())
    }

    async fn renew(&self, index: u32) -> Result<()> {
        let name = self.options.node_name(index);
        let (known, uid) = {
            let mut node = self.node(index);
            (node.lease.take(), node.uid.clone())
        };
        let lease = lease::renew(&self.client, known.as_ref(), &name, Some(&uid)).await?;
        self.node(index).lease = Some(lease);
        self.beats.add_after(Beat::Lease(index), lease::RENEW_INTERVAL);
        Ok(())
    }

    async fn report(&self, index: u32) -> Result<()> {
        let node: Node = match self.client.get("", &self.options.node_name(index)).await {
            Err(error) if error.is_not_found() => {
                self.beats.add(Beat::Register(index));
                return Ok(());
            }
            other => other?,
        };
        self.send_status(index, &node).await?;
        self.beats.add_after(Beat::Status(index), REPORT_INTERVAL);
        Ok(())
    }

    async fn write_status(&self, index: u32, node: &Node) -> Result<()> {
        let old = node.status.clone().unwrap_or_default();
        let (new, _) = self.next_status(index, &old);
        if status::has_changed(&old, &new) { self.send_status(index, node).await } else { Ok(()) }
    }

    fn next_status(&self, index: u32, old: &NodeStatus) -> (NodeStatus, Vec<&'static str>) {
        node::next_status(&self.options, index, Some(old), self.client.clock().now())
    }

    async fn send_status(&self, index: u32, node: &Node) -> Result<()> {
        let old = node.status.clone().unwrap_or_default();
        let (new, events) = self.next_status(index, &old);
        let patch = Patch::Strategic(status::patch(&old, &new));
        self.client.patch::<Node>("", node.name(), Some("status"), &patch).await?;
        self.events.status_is(node.name(), node.uid(), &events);
        Ok(())
    }

    async fn pod(&self, key: &ObjectKey) -> Result<()> {
        let Some(pod) = self.pod_store.store().get(key).and_then(|o| decode::<Pod>(&o)) else {
            return Ok(());
        };
        let name = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or("");
        let Some(index) = self.options.node_index(name) else { return Ok(()) };
        let now = self.client.clock().now();
        match pod::decide(&pod, now) {
            Action::Nothing => Ok(()),
            Action::Later(wait) => {
                self.pods.add_after(key.clone(), wait);
                Ok(())
            }
            Action::Start => self.start(index, &pod).await,
            Action::Reassure => self.patch_status(&pod, pod::reassured(&pod, now)).await,
            Action::Finish { exit_code } => {
                self.patch_status(&pod, pod::finished(&pod, exit_code, now)).await
            }
            Action::Remove => self.remove(&pod).await,
        }
    }

    async fn start(&self, index: u32, pod: &Pod) -> Result<()> {
        let host = addresses::of_node(index);
        let own = (!pod::is_host_network(pod)).then(|| self.with_pool(index, Pool::take));
        let address: Ipv4Addr = match own {
            None => host,
            Some(Some(address)) => address,
            // All addresses are in use: try again when a pod has been removed.
            Some(None) => {
                self.pods.add_after(pod.key(), Duration::from_secs(1));
                return Ok(());
            }
        };
        let patch = pod::started(pod, host, address, self.client.clock().now());
        let sent = self.patch_status(pod, patch).await;
        if sent.is_err() && own.is_some() {
            self.with_pool(index, |pool| pool.release(address));
        }
        sent
    }

    async fn patch_status(&self, pod: &Pod, patch: Value) -> Result<()> {
        let patch = Patch::Strategic(patch);
        let sent = self.client.patch::<Pod>(pod.namespace(), pod.name(), Some("status"), &patch).await;
        gone_is_fine(sent.map(drop))
    }

    async fn remove(&self, pod: &Pod) -> Result<()> {
        let preconditions = Preconditions { uid: Some(pod.uid().to_owned()), resource_version: None };
        let options = DeleteOptions {
            grace_period_seconds: Some(0),
            preconditions: Some(preconditions),
            ..DeleteOptions::default()
        };
        gone_is_fine(self.client.delete::<Pod>(pod.namespace(), pod.name(), &options).await)
    }
}

/// Treats a pod that is gone, or another pod of its name, as success.
fn gone_is_fine(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
        other => other,
    }
}
