//! Registers the node, updates its status and lease, and emits events about changes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{Node, NodeStatus, ObjectReference, Taint};
use knarr_api::kind::Kind;
use knarr_client::events::{EventRecorder, EventType};
use knarr_client::{Client, Informer, Informers, ListOptions, Patch};
use knarr_runtime::containers::Cgroups;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::machine::{Machine, Usage};
use super::reserved::{Enforce, Reserved, fault};
use super::status::{self, Facts};
use super::thresholds::{Pressure, Thresholds};
use super::{KUBELET_PORT, KUBELET_VERSION, lease, registration};
use crate::config::Config;
use crate::node_allocatable;
use crate::runtime::ContainerRuntime;

/// How often the machine is measured.
const UPDATE_INTERVAL: Duration = Duration::from_secs(10);
/// How often the status is written if nothing changes.
const REPORT_INTERVAL: Duration = Duration::from_secs(300);
/// How often images are listed without a notification of a change.
const IMAGES_INTERVAL: Duration = Duration::from_secs(60);
/// How long a pressure condition stays after the pressure was last measured.
const PRESSURE_TRANSITION: Duration = Duration::from_secs(300);
/// How often a runtime that is not ready is polled.
const RUNTIME_INTERVAL: Duration = Duration::from_secs(1);
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const LONGEST_BACKOFF: Duration = Duration::from_secs(7);
const RETRIES: u32 = 5;

/// Whether pods have a network: `Err` contains why not yet.
pub type NetworkState = Result<(), String>;

/// The node's configured properties, beside the measured ones.
#[derive(Debug, Clone)]
pub struct Options {
    pub node_name: String,
    pub hostname: String,
    /// The node's addresses, the primary one first.
    pub node_ips: Vec<IpAddr>,
    /// Labels beside the default ones, set when the node is first registered.
    pub labels: BTreeMap<String, String>,
    /// Taints that are set when the node is first registered.
    pub taints: Vec<Taint>,
    pub kubelet_port: i32,
    pub max_pods: u32,
    /// A folder on the file system whose size is published as ephemeral storage.
    pub data_dir: PathBuf,
    pub kubelet_version: String,
    pub thresholds: Thresholds,
    pub reserved: Reserved,
    /// The cgroup above all pods, and its limit in bytes, if there is one.
    pub pods: Option<(Cgroups, u64)>,
}

impl Options {
    pub fn new(config: &Config) -> Self {
        Self {
            node_name: config.node_name.clone(),
            hostname: config.node_name.clone(),
            node_ips: config.node_ips.clone(),
            labels: BTreeMap::new(),
            taints: Vec::new(),
            kubelet_port: KUBELET_PORT,
            max_pods: config.max_pods,
            data_dir: config.data_dir.clone(),
            kubelet_version: KUBELET_VERSION.to_owned(),
            thresholds: Thresholds::default(),
            reserved: config.kube_reserved.plus(config.system_reserved),
            pods: None,
        }
    }

    /// Returns the allocatable resources of this machine, as in the node's status.
    pub fn allocatable(&self) -> status::ResourceList {
        status::allocatable(&self.capacity(), &self.thresholds, &self.reserved)
    }

    /// Returns why the machine is too small for the configured reservation; `None` if it is not.
    pub fn reservation_fault(&self) -> Option<String> {
        fault(&self.capacity(), &self.thresholds, &self.reserved)
    }

    /// Starts to measure the memory of all pods together, if they have a common limit.
    pub fn watch_pods(&mut self, config: &Config, cgroups: &Cgroups) {
        if config.enforce_node_allocatable == Enforce::Pods {
            let limit = node_allocatable::limits(config, &Machine::read(), u64::MAX).memory_limit;
            let limit = limit.and_then(|bytes| u64::try_from(bytes).ok());
            self.pods = limit.map(|bytes| (cgroups.clone(), bytes));
        }
    }

    fn usage(&self) -> std::io::Result<Usage> {
        let left = |(cgroups, limit): &(Cgroups, u64)| {
            limit.saturating_sub(cgroups.stats("").memory_working_set_bytes)
        };
        let usage = Usage::read(&self.data_dir)?;
        Ok(Usage { pods_memory_left_bytes: self.pods.as_ref().map(left), ..usage })
    }

    fn capacity(&self) -> status::ResourceList {
        let bytes = Usage::read(&self.data_dir).map_or(0, |usage| usage.node_fs.capacity_bytes);
        status::capacity(&Machine::read(), bytes, self.max_pods)
    }
}

/// When each pressure was last measured, on the monotonic clock.
#[derive(Default)]
struct Seen {
    memory: Option<Duration>,
    disk: Option<Duration>,
    pids: Option<Duration>,
}

impl Seen {
    /// Extends each pressure for a while after it was last measured, so that the condition does not flap.
    fn smooth(&mut self, seen: Pressure, now: Duration) -> Pressure {
        let lasting = |last: &mut Option<Duration>, seen: bool| {
            if seen {
                *last = Some(now);
            }
            last.is_some_and(|last| now.saturating_sub(last) < PRESSURE_TRANSITION)
        };
        Pressure {
            memory: lasting(&mut self.memory, seen.memory),
            disk: lasting(&mut self.disk, seen.disk),
            pids: lasting(&mut self.pids, seen.pids),
        }
    }
}

/// Publishes the state of the node.
pub struct NodeStatusManager {
    options: Options,
    client: Client,
    node: Informer<Node>,
    runtime: Arc<dyn ContainerRuntime>,
    network: watch::Receiver<NetworkState>,
    volumes_in_use: watch::Receiver<Option<BTreeSet<String>>>,
    recorder: EventRecorder,
    machine: Machine,
    wake: Arc<Notify>,
    images_changed: Arc<Notify>,
    registered: watch::Sender<bool>,
    /// The node as the API server returned it last; may be newer than the informer's.
    last: Mutex<Option<Arc<Node>>>,
    pressure: Mutex<Pressure>,
}

/// The state that the loop keeps between passes.
#[derive(Default)]
struct LoopState {
    registered: bool,
    reported_at: Option<Duration>,
    delay: Duration,
    images: Vec<k8s_openapi::api::core::v1::ContainerImage>,
    images_at: Option<Duration>,
    seen: Seen,
    unschedulable: bool,
    runtime_waits: bool,
    /// Events that are emitted once the node's uid is known.
    events: Vec<(EventType, &'static str, String)>,
}

impl NodeStatusManager {
    /// `volumes_in_use` are the attachable volumes of pods on this node; `None` until they are known.
    /// `images_changed` is notified after images are pulled or removed: the status is then updated.
    pub fn new(
        options: Options,
        informers: &Informers,
        runtime: Arc<dyn ContainerRuntime>,
        network: watch::Receiver<NetworkState>,
        volumes_in_use: watch::Receiver<Option<BTreeSet<String>>>,
        recorder: EventRecorder,
        images_changed: Arc<Notify>,
    ) -> Arc<Self> {
        let selection = ListOptions {
            field_selector: Some(format!("metadata.name={}", options.node_name)),
            ..ListOptions::default()
        };
        let node = informers.selected::<Node>(selection);
        let wake = Arc::new(Notify::new());
        let on_change = Arc::clone(&wake);
        node.add_handler(move |_| on_change.notify_one());
        Arc::new(Self {
            options,
            client: informers.client().clone(),
            node,
            runtime,
            network,
            volumes_in_use,
            recorder,
            machine: Machine::read(),
            wake,
            images_changed,
            registered: watch::Sender::new(false),
            last: Mutex::default(),
            pressure: Mutex::default(),
        })
    }

    /// Returns the newest known state of the node.
    pub fn node(&self) -> Option<Arc<Node>> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        newer(self.node.lister().get("", &self.options.node_name), last)
    }

    /// Returns the pressure as in the published conditions, for admission and eviction.
    pub fn pressure(&self) -> Pressure {
        *self.pressure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers the node, then updates its status and lease until `stop` is cancelled.
    pub fn run(self: Arc<Self>, stop: CancellationToken) -> BoxFuture<'static, ()> {
        Box::pin(self.work(stop))
    }

    async fn work(self: Arc<Self>, stop: CancellationToken) {
        let myself = Arc::clone(&self);
        let uid = move || myself.node().map(|node| node.uid().to_owned());
        let name = self.options.node_name.clone();
        // The lease names the node as its owner, which must exist first.
        let mut registered = self.registered.subscribe();
        let lease = async {
            let exists = async { registered.wait_for(|yes| *yes).await.is_ok() };
            let exists = tokio::select! {
                () = stop.cancelled() => false,
                exists = exists => exists,
            };
            if exists {
                lease::run(self.client.clone(), name, uid, stop.clone()).await;
            }
        };
        let status = self.keep_status(&stop);
        tokio::join!(lease, status);
    }

    async fn keep_status(&self, stop: &CancellationToken) {
        let mut state = LoopState::default();
        state.events.push((EventType::Normal, "Starting", "Starting kubelet.".to_owned()));
        let (mut network, mut volumes) = (self.network.clone(), self.volumes_in_use.clone());
        let (mut backoff, mut network_lives, mut volumes_live) = (FIRST_BACKOFF, true, true);
        loop {
            let result = tokio::select! {
                () = stop.cancelled() => return,
                result = self.sync(&mut state) => result,
            };
            let wait = match result {
                Ok(()) => {
                    backoff = FIRST_BACKOFF;
                    if state.runtime_waits { RUNTIME_INTERVAL } else { UPDATE_INTERVAL }
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot write the node's status");
                    let wait = backoff;
                    backoff = (backoff * 2).min(LONGEST_BACKOFF);
                    wait
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.client.clock().sleep(wait) => {}
                () = self.wake.notified() => {}
                () = self.images_changed.notified() => state.images_at = None,
                changed = network.changed(), if network_lives => network_lives = changed.is_ok(),
                changed = volumes.changed(), if volumes_live => volumes_live = changed.is_ok(),
            }
        }
    }

    async fn sync(&self, state: &mut LoopState) -> knarr_client::Result<()> {
        let facts = self.facts(state).await;
        if state.registered && self.node.has_synced() && self.is_deleted() {
            tracing::info!(node = self.options.node_name, "the node was deleted: registering anew");
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = None;
            state.registered = false;
        }
        if !state.registered {
            self.register(state, &facts).await?;
            state.registered = true;
            self.registered.send_replace(true);
        }
        let mut result = Ok(());
        for attempt in 0..RETRIES {
            let known = if attempt == 0 { self.node() } else { None };
            result = self.update(state, &facts, known).await;
            match &result {
                Err(error) if error.is_conflict() => continue,
                Err(error) if error.is_not_found() => {
                    state.registered = false;
                    break;
                }
                _ => break,
            }
        }
        self.emit_events(state);
        result
    }

    /// Returns whether the node was deleted: the informer has seen all writes of this kubelet, and does not have the
    /// node.
    fn is_deleted(&self) -> bool {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let written = last.as_ref().map_or(0, |node| version(node));
        self.node.observed_version() >= written
            && self.node.lister().get("", &self.options.node_name).is_none()
    }

    async fn facts(&self, state: &mut LoopState) -> Facts {
        let now = self.client.clock().monotonic();
        if state.images_at.is_none_or(|at| now.saturating_sub(at) >= IMAGES_INTERVAL) {
            match self.runtime.list_images().await {
                Ok(images) => state.images = status::images(&images),
                Err(error) => tracing::debug!(%error, "images not listed"),
            }
            state.images_at = Some(now);
        }
        let mut not_ready = self.runtime.readiness().await.not_ready;
        state.runtime_waits = !not_ready.is_empty();
        if let Err(why) = &*self.network.borrow() {
            not_ready.push(format!(
                "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady \
                 message:Network plugin returns error: {why}"
            ));
        }
        let usage = match self.options.usage() {
            Ok(usage) => usage,
            Err(error) => {
                not_ready.push(format!("cannot read {}: {error}", self.options.data_dir.display()));
                Usage { memory_available_bytes: u64::MAX, ..Usage::default() }
            }
        };
        let pressure = state.seen.smooth(self.options.thresholds.pressure(&self.machine, &usage), now);
        *self.pressure.lock().unwrap_or_else(PoisonError::into_inner) = pressure;
        let runtime = self.runtime.version();
        Facts {
            addresses: self.options.node_ips.clone(),
            hostname: self.options.hostname.clone(),
            kubelet_port: self.options.kubelet_port,
            max_pods: self.options.max_pods,
            machine: self.machine.clone(),
            node_fs_bytes: usage.node_fs.capacity_bytes,
            thresholds: self.options.thresholds,
            reserved: self.options.reserved,
            runtime: self.runtime.features(),
            runtime_version: format!("{}://{}", runtime.name, runtime.version),
            kubelet_version: self.options.kubelet_version.clone(),
            images: state.images.clone(),
            pressure,
            not_ready,
            volumes_in_use: self.volumes_in_use.borrow().as_ref().map(|v| v.iter().cloned().collect()),
        }
    }

    async fn register(&self, state: &mut LoopState, facts: &Facts) -> knarr_client::Result<()> {
        let options = &self.options;
        let (first, events) = status::next(&NodeStatus::default(), facts, self.client.clock().now());
        let wanted = registration::node(
            &options.node_name,
            &options.hostname,
            &options.labels,
            &options.taints,
            first,
        );
        let node = match self.client.create(&wanted).await {
            Ok(node) => {
                // If the API server ignores the status at creation, the first update emits the events.
                if node.status.as_ref().is_some_and(|s| s.conditions.is_some()) {
                    self.note(state, &events);
                }
                node
            }
            Err(error) if error.is_already_exists() => {
                let existing: Node = self.client.get("", &options.node_name).await?;
                match registration::correction(&existing, &wanted, &options.hostname) {
                    Some(patch) => {
                        self.client.patch("", &options.node_name, None, &Patch::Merge(patch)).await?
                    }
                    None => existing,
                }
            }
            Err(error) => return Err(error),
        };
        state.unschedulable = is_unschedulable(&node);
        let before = node.status.as_ref().and_then(|s| s.node_info.as_ref()).map(|i| i.boot_id.clone());
        let boot_id = &self.machine.boot_id;
        if before.is_some_and(|id| !id.is_empty() && id != *boot_id) {
            let text = format!("Node {} has been rebooted, boot id: {boot_id}", options.node_name);
            state.events.push((EventType::Warning, "Rebooted", text));
        }
        self.remember(node);
        Ok(())
    }

    /// Writes the status if it has changed, or was not written for long.
    async fn update(
        &self,
        state: &mut LoopState,
        facts: &Facts,
        known: Option<Arc<Node>>,
    ) -> knarr_client::Result<()> {
        let clock = self.client.clock();
        let node = match known {
            Some(node) => node,
            None => Arc::new(self.client.get("", &self.options.node_name).await?),
        };
        let unschedulable = is_unschedulable(&node);
        if unschedulable != state.unschedulable {
            state.unschedulable = unschedulable;
            self.note(state, &[if unschedulable { "NodeNotSchedulable" } else { "NodeSchedulable" }]);
        }
        let old = node.status.clone().unwrap_or_default();
        let (new, events) = status::next(&old, facts, clock.now());
        let changed = status::has_changed(&old, &new);
        let now = clock.monotonic();
        let due = state.reported_at.is_none_or(|at| now.saturating_sub(at) >= REPORT_INTERVAL + state.delay);
        if !changed && !due {
            return Ok(());
        }
        let patch = Patch::Strategic(status::patch(&old, &new));
        let updated: Node = self.client.patch("", &self.options.node_name, Some("status"), &patch).await?;
        self.note(state, &events);
        // Spread over time, so that nodes that started together do not write at the same time forever.
        let first = changed || state.reported_at.is_none();
        state.delay = if first { REPORT_INTERVAL.mul_f64(fastrand::f64() / 2.0) } else { Duration::ZERO };
        state.reported_at = Some(now);
        self.remember(updated);
        Ok(())
    }

    fn remember(&self, node: Node) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(node));
    }

    fn note(&self, state: &mut LoopState, reasons: &[&'static str]) {
        let name = &self.options.node_name;
        let events = reasons
            .iter()
            .map(|reason| (EventType::Normal, *reason, format!("Node {name} status is now: {reason}")));
        state.events.extend(events);
    }

    /// Emits the pending events.
    fn emit_events(&self, state: &mut LoopState) {
        let Some(node) = self.node() else { return };
        let about = ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some(self.options.node_name.clone()),
            uid: Some(node.uid().to_owned()),
            ..ObjectReference::default()
        };
        for (type_, reason, message) in state.events.drain(..) {
            self.recorder.event_about(about.clone(), type_, reason, message);
        }
    }
}

fn version(node: &Node) -> u64 {
    node.metadata.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(0)
}

fn newer(a: Option<Arc<Node>>, b: Option<Arc<Node>>) -> Option<Arc<Node>> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if version(&a) >= version(&b) { a } else { b }),
        (a, b) => a.or(b),
    }
}

fn is_unschedulable(node: &Node) -> bool {
    node.spec.as_ref().and_then(|s| s.unschedulable).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::fake_runtime::Leaked;
    use k8s_openapi::api::coordination::v1::Lease;
    use k8s_openapi::api::core::v1::Event;
    use knarr_apimachinery::status::StatusError;
    use knarr_client::clock::TokioClock;
    use knarr_testing::FakeApi;

    struct Lab {
        api: Arc<FakeApi>,
        network: watch::Sender<NetworkState>,
        stop: CancellationToken,
    }

    impl Drop for Lab {
        fn drop(&mut self) {
            self.stop.cancel();
        }
    }

    impl Lab {
        fn new() -> Self {
            let clock = TokioClock::starting_at("2026-01-01T00:00:00Z".parse().unwrap());
            let api = FakeApi::new(Arc::new(clock), &[Node::RESOURCE, Lease::RESOURCE, Event::RESOURCE]);
            let (network, _) = watch::channel(Err("not yet".to_owned()));
            Self { api, network, stop: CancellationToken::new() }
        }

        fn start(&self) {
            let client = self.api.client();
            let informers = Informers::new(client.clone(), self.stop.clone());
            let recorder = EventRecorder::new(client, "kubelet", "n1", self.stop.clone());
            let config = Config::new("n1", "10.0.0.1".parse().unwrap(), "/");
            let mut options = Options::new(&config);
            // The tests do not depend on the usage of this machine.
            options.thresholds = "".parse().unwrap();
            let runtime = Arc::new(Leaked::new());
            let manager = NodeStatusManager::new(
                options,
                &informers,
                runtime,
                self.network.subscribe(),
                watch::channel(None).1,
                recorder,
                Arc::default(),
            );
            tokio::spawn(manager.run(self.stop.clone()));
        }

        fn ready(&self) -> Option<(String, String)> {
            let status = self.api.get::<Node>("", "n1")?.status?;
            let ready = status.conditions?.into_iter().find(|c| c.type_ == "Ready")?;
            Some((ready.status, ready.message.unwrap_or_default()))
        }

        fn writes_to_status(&self) -> usize {
            self.api.writes().iter().filter(|r| r.path.ends_with("/nodes/n1/status")).count()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_registers_becomes_ready_and_keeps_quiet() {
        let lab = Lab::new();
        lab.start();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (status, message) = lab.ready().unwrap();
        assert_eq!(status, "False");
        assert_eq!(
            message,
            "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:Network \
             plugin returns error: not yet"
        );
        lab.network.send(Ok(())).unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert_eq!(lab.ready().unwrap(), ("True".into(), "kubelet is posting ready status".into()));
        let node = lab.api.get::<Node>("", "n1").unwrap();
        let status = node.status.as_ref().unwrap();
        assert_eq!(status.images.as_ref().unwrap()[0].names.as_deref(), Some(&["a:1".to_owned()][..]));
        assert_eq!(status.node_info.as_ref().unwrap().container_runtime_version, "knarr://0.1.0");
        let lease = lab.api.get::<Lease>(lease::NAMESPACE, "n1").unwrap();
        assert_eq!(lease.metadata.owner_references.unwrap()[0].uid, node.uid());

        let written = lab.writes_to_status();
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert!(lab.writes_to_status() <= written + 1, "no news, no writes");
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert!(lab.writes_to_status() > written, "the status is written again after some minutes");
        let renewals = lab.api.writes().iter().filter(|r| r.path.contains("/leases")).count();
        assert!((65..=80).contains(&renewals), "{renewals}");

        let reasons: std::collections::BTreeSet<String> =
            lab.api.all::<Event>().into_iter().filter_map(|e| e.reason).collect();
        for reason in ["Starting", "NodeReady", "NodeHasSufficientMemory", "NodeHasNoDiskPressure"] {
            assert!(reasons.contains(reason), "{reason} in {reasons:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn outages_and_deletion_are_survived() {
        let lab = Lab::new();
        lab.network.send_replace(Ok(())).unwrap_err();
        lab.api.guard(|_, _| Some(StatusError::unavailable("down")));
        lab.start();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(lab.ready().is_none());
        lab.api.guard(|_, _| None);
        tokio::time::sleep(Duration::from_secs(40)).await;
        assert_eq!(lab.ready().unwrap().0, "True");
        let first = lab.api.get::<Node>("", "n1").unwrap();
        lab.api.remove::<Node>("", "n1");
        tokio::time::sleep(Duration::from_secs(15)).await;
        let second = lab.api.get::<Node>("", "n1").unwrap();
        assert_ne!(first.uid(), second.uid());
        assert_eq!(lab.ready().unwrap().0, "True");
        tokio::time::sleep(Duration::from_secs(15)).await;
        let lease = lab.api.get::<Lease>(lease::NAMESPACE, "n1").unwrap();
        assert_eq!(lease.metadata.owner_references.unwrap()[0].uid, second.uid());
    }

    #[test]
    fn pressure_lasts_a_while() {
        let mut seen = Seen::default();
        let at = Duration::from_secs;
        let memory = Pressure { memory: true, ..Pressure::default() };
        assert_eq!(seen.smooth(Pressure::default(), at(0)), Pressure::default());
        assert_eq!(seen.smooth(memory, at(10)), memory);
        assert_eq!(seen.smooth(Pressure::default(), at(309)), memory);
        assert_eq!(seen.smooth(Pressure::default(), at(310)), Pressure::default());
    }
}
