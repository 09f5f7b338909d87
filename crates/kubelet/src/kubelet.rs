//! The kubelet: assembles its parts and passes events to the pod workers.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{ContainerStatus as ApiStatus, Node, Pod, Service};
use knarr_api::kind::Kind;
use knarr_client::events::EventRecorder;
use knarr_client::{Client, Event, Informer, Informers, ListOptions, Supervisor};
use knarr_runtime::containers::Cgroups;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use crate::back_off::BackOff;
use crate::config::Config;
use crate::events::Events;
use crate::folders;
use crate::host_security::HostSecurity;
use crate::image_manager::ImageManager;
use crate::kubelet_metrics::KubeletMetrics;
use crate::log_rotation;
use crate::node_allocatable;
use crate::node_status::machine::Machine;
use crate::pod;
use crate::pod_cgroups::PodCgroups;
use crate::pod_lookup::{ContainerRef, LookupError, PodLookup};
use crate::pod_syncer::{PodSyncer, pause_after};
use crate::pod_workers::PodWorkers;
use crate::probes::ProbeManager;
use crate::pulled_images::PulledImages;
use crate::runtime::{ContainerRuntime, ContainerState, SandboxState};
use crate::server::{Check, checks};
use crate::status::StatusManager;
use crate::sync_loop::SyncLoop;
use crate::sysctls::SysctlAllowlist;
use crate::termination::Terminator;
use crate::volume_manager::{VolumeUsage, Volumes};
use crate::volumes::ObjectSource;

/// The dependencies of a kubelet.
pub struct Dependencies {
    /// A client with the node's identity.
    pub client: Client,
    /// Informers with the same identity; the kubelet watches its own pods, its node, and services.
    pub informers: Arc<Informers>,
    pub runtime: Arc<dyn ContainerRuntime>,
    pub volumes: Arc<dyn Volumes>,
    pub objects: Arc<ObjectSource>,
    /// A recorder with the component `kubelet` and the node's name as host.
    pub recorder: EventRecorder,
    /// The runtime's cgroup tree; `None` on a simulated node.
    pub cgroups: Option<Cgroups>,
    /// The machine's memory, in bytes.
    pub memory_capacity: i64,
    /// The security modules of the host's kernel.
    pub host_security: HostSecurity,
}

/// The node agent.
pub struct Kubelet {
    config: Config,
    /// The supervisor of the informers, so that the health of all tasks of the node is shown together.
    supervisor: Supervisor,
    syncer: Arc<PodSyncer>,
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    services: Informer<Service>,
    /// Set once the running pods are known.
    workers: Arc<OnceLock<Arc<PodWorkers>>>,
    sync_loop: Arc<SyncLoop>,
    stop: CancellationToken,
}

fn only(selector: String) -> ListOptions {
    ListOptions { field_selector: Some(selector), ..ListOptions::default() }
}

impl Kubelet {
    /// Assembles a kubelet, which does nothing before [`Kubelet::run`]. To be called inside a tokio runtime.
    pub fn new(config: Config, with: Dependencies, stop: CancellationToken) -> Arc<Self> {
        let clock = Arc::clone(with.client.clock());
        let pods = with.informers.selected::<Pod>(only(format!("spec.nodeName={}", config.node_name)));
        let nodes = with.informers.selected::<Node>(only(format!("metadata.name={}", config.node_name)));
        let services = with.informers.informer::<Service>();
        let events = Events::new(with.recorder);
        let status = StatusManager::new(with.client.clone(), pods.lister());
        let workers: Arc<OnceLock<Arc<PodWorkers>>> = Arc::default();
        let on_change = {
            let workers = Arc::clone(&workers);
            let wake: Arc<dyn Fn(&str) + Send + Sync> = Arc::new(move |uid: &str| {
                if let Some(workers) = workers.get() {
                    workers.notify(uid);
                }
            });
            wake
        };
        let supervisor = with.informers.supervisor().clone();
        let probes = ProbeManager::new(
            supervisor.clone(),
            Arc::clone(&with.runtime),
            Arc::clone(&status),
            events.clone(),
            Arc::clone(&clock),
            Arc::clone(&on_change),
            stop.clone(),
        );
        let images = ImageManager::new(
            Arc::clone(&with.runtime),
            Arc::clone(&with.objects),
            Arc::clone(&clock),
            PulledImages::new(&config.data_dir, config.image_verification.clone(), Arc::clone(&clock)),
            config.serialize_image_pulls,
        );
        let terminator = Terminator {
            runtime: Arc::clone(&with.runtime),
            events: events.clone(),
            clock: Arc::clone(&clock),
        };
        let sync_loop = SyncLoop::new(Arc::clone(&clock));
        let syncer = Arc::new(PodSyncer {
            cgroups: PodCgroups::new(with.cgroups, config.pod_pids_limit),
            config: config.clone(),
            runtime_name: with.runtime.version().name,
            runtime: with.runtime,
            volumes: with.volumes,
            objects: with.objects,
            status,
            probes,
            images,
            events,
            services: services.lister(),
            nodes: nodes.lister(),
            terminator,
            memory_capacity: with.memory_capacity,
            host_security: with.host_security,
            user_namespaces: Arc::default(),
            sysctls: SysctlAllowlist::new(&Machine::read().kernel_version, &config.allowed_unsafe_sysctls),
            started: clock.now(),
            clock,
            taken: std::sync::Mutex::default(),
            allocations: std::sync::Mutex::default(),
            wake: on_change,
            crash_back_off: std::sync::Mutex::new(BackOff::default()),
            metrics: KubeletMetrics::default(),
        });
        Arc::new(Self { config, supervisor, syncer, pods, nodes, services, workers, sync_loop, stop })
    }

    /// Notified when images were pulled.
    pub fn image_changes(&self) -> Arc<tokio::sync::Notify> {
        self.syncer.images.changes()
    }

    /// Runs until `stop` is cancelled; containers continue to run after that.
    ///
    /// # Errors
    ///
    /// Returns why the kubelet could not start; it may then be run again.
    pub fn run(self: Arc<Self>) -> BoxFuture<'static, Result<(), String>> {
        Box::pin(self.work())
    }

    async fn work(self: Arc<Self>) -> Result<(), String> {
        let stop = self.stop.child_token();
        // If the start fails later, the tasks that were started are stopped.
        let _started = stop.clone().drop_guard();
        let dirs = self.config.dirs();
        let made = tokio::task::spawn_blocking(move || folders::make_all(&dirs)).await;
        made.map_err(|e| e.to_string())?.map_err(|e| format!("cannot make the kubelet's folders: {e}"))?;
        self.syncer.images.take_up().await;
        let cgroups = self.syncer.cgroups.clone();
        tokio::task::spawn_blocking(move || cgroups.open()).await.map_err(|e| e.to_string())??;
        let (syncer, config) = (&self.syncer, self.config.clone());
        let (cgroups, recorder) = (syncer.cgroups.clone(), syncer.events.recorder().clone());
        let clock = Arc::clone(&syncer.clock);
        let enforcing = self.supervisor.run_until_done("node-allocatable", stop.clone(), move |stop| {
            let (cgroups, recorder) = (cgroups.clone(), recorder.clone());
            node_allocatable::enforce(config.clone(), cgroups, recorder, Arc::clone(&clock), stop)
        });
        tokio::spawn(enforcing);
        let (status, config) = (Arc::clone(&syncer.status), self.config.clone());
        self.supervisor.spawn("pod-status", stop.clone(), move |stop| Arc::clone(&status).run(stop));
        let (runtime, clock) = (Arc::clone(&syncer.runtime), Arc::clone(&syncer.clock));
        self.supervisor.spawn("log-rotation", stop.clone(), move |stop| {
            log_rotation::run(config.clone(), Arc::clone(&runtime), Arc::clone(&clock), stop)
        });
        // Subscribed before the first list, so that no event is missed in between.
        let runtime_events = self.syncer.runtime.events();
        let changes = self.syncer.objects.changes();
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            synced = self.synced() => if !synced { return Ok(()) },
        }
        let workers = self.take_up().await?;
        let runtime = Arc::clone(&self.syncer.runtime);
        let again = move || runtime.events();
        self.pass_on("runtime-events", &workers, &stop, runtime_events, again, |workers, event| {
            workers.notify(&event.pod_uid);
        });
        let objects = Arc::clone(&self.syncer.objects);
        let again = move || objects.changes();
        self.pass_on("object-changes", &workers, &stop, changes, again, |workers, uid| {
            workers.notify_from_outside(&uid);
        });
        let (sync_loop, passed) = (Arc::clone(&self.sync_loop), Arc::clone(&workers));
        self.supervisor.spawn("sync-loop", stop.clone(), move |stop| {
            let passed = Arc::clone(&passed);
            Arc::clone(&sync_loop).run(move || passed.pass_through(), stop)
        });
        Arc::clone(&self).remove_orphans().await;
        stop.cancelled().await;
        workers.wait().await;
        Ok(())
    }

    /// Waits until the informers have synced: before that, no pod may be taken for deleted.
    async fn synced(&self) -> bool {
        self.pods.wait_synced().await && self.services.wait_synced().await && self.nodes.wait_synced().await
    }

    /// Counts pods with a running sandbox as admitted; admitted pods keep their allocated resources.
    async fn take_up(&self) -> Result<Arc<PodWorkers>, String> {
        let sandboxes = self.syncer.runtime.list_pod_sandboxes().await.map_err(|e| e.to_string())?;
        let running: BTreeSet<String> = sandboxes.into_iter().map(|s| s.uid).collect();
        let pods = self.pods.lister().list().into_iter();
        let pods = pods.filter(|pod| !pod::is_terminal_phase(pod::phase(pod)));
        let pods = pods.map(|pod| (running.contains(pod.uid()), pod)).map(|(runs, pod)| (pod, runs));
        self.syncer.take_up(pods.collect()).await?;
        let (supervisor, syncer) = (self.supervisor.clone(), Arc::clone(&self.syncer));
        let workers = PodWorkers::new(supervisor, syncer, running, self.stop.clone());
        // A second run continues with the workers of the first.
        if self.workers.set(Arc::clone(&workers)).is_ok() {
            self.watch(&workers);
        }
        Ok(Arc::clone(self.workers.get_or_init(|| workers)))
    }

    /// Forwards events to the workers, in a task. After a failure it subscribes again with `again`, and notifies
    /// all workers.
    fn pass_on<T: Clone + Send + 'static>(
        &self,
        name: &'static str,
        workers: &Arc<PodWorkers>,
        stop: &CancellationToken,
        first: Receiver<T>,
        again: impl Fn() -> Receiver<T> + Send + 'static,
        notify: impl Fn(&PodWorkers, T) + Clone + Send + 'static,
    ) {
        let (workers, mut first) = (Arc::clone(workers), Some(first));
        self.supervisor.spawn(name, stop.clone(), move |stop| {
            let events = first.take().unwrap_or_else(|| {
                let events = again();
                workers.notify_all();
                events
            });
            pass_on(Arc::clone(&workers), events, stop, notify.clone())
        });
    }

    fn watch(&self, workers: &Arc<PodWorkers>) {
        let for_pods = Arc::clone(workers);
        self.pods.add_handler(move |event| match event {
            Event::Added(pod) => for_pods.update(Arc::clone(pod)),
            Event::Updated { old, new } => {
                // Another pod has the same name: the deletion of the first one was missed.
                if old.uid() != new.uid() {
                    for_pods.delete(Arc::clone(old));
                }
                for_pods.update(Arc::clone(new));
            }
            Event::Deleted(pod) => for_pods.delete(Arc::clone(pod)),
        });
        let (for_node, syncer) = (Arc::clone(workers), Arc::clone(&self.syncer));
        // The fields of a node that admission depends on, and with it pending resizes.
        let asked = |node: &Node| {
            let status = node.status.as_ref();
            (
                node.metadata.labels.clone(),
                node.spec.as_ref().and_then(|s| s.taints.clone()),
                status.and_then(|s| s.allocatable.clone()),
                status.and_then(|s| s.features.clone()),
                status.and_then(|s| s.declared_features.clone()),
            )
        };
        self.nodes.add_handler(move |event| match event {
            Event::Added(_) => {
                for_node.notify_all();
                syncer.decide_resizes();
            }
            Event::Updated { old, new } if asked(old) != asked(new) => syncer.decide_resizes(),
            _ => {}
        });
    }

    /// Removes what is left of pods that were deleted while the kubelet did not run.
    async fn remove_orphans(self: Arc<Self>) {
        let uids = match self.syncer.uids_here().await {
            Ok(uids) => uids,
            Err(error) => {
                tracing::warn!(error, "cannot search for pods that are gone");
                return;
            }
        };
        let known: BTreeSet<String> =
            self.pods.lister().list().into_iter().map(|p| p.uid().to_owned()).collect();
        for uid in uids.into_iter().filter(|uid| !known.contains(uid)) {
            let kubelet = Arc::clone(&self);
            tokio::spawn(self.supervisor.run_until_done("pod-cleanup", self.stop.clone(), move |_| {
                let (kubelet, uid) = (Arc::clone(&kubelet), uid.clone());
                async move { kubelet.remove_orphan(&uid).await }
            }));
        }
    }

    async fn remove_orphan(&self, uid: &str) {
        let mut failures = 0;
        while let Err(error) = self.syncer.remove_orphan(uid).await {
            tracing::warn!(pod_uid = %uid, error, "cannot remove a pod that is gone");
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = self.syncer.clock.sleep(pause_after(failures)) => failures += 1,
            }
        }
    }
}

/// Notifies the workers that an event concerns; all of them after missed events.
async fn pass_on<T: Clone>(
    workers: Arc<PodWorkers>,
    mut events: Receiver<T>,
    stop: CancellationToken,
    notify: impl Fn(&PodWorkers, T),
) {
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => return,
            event = events.recv() => event,
        };
        match event {
            Ok(event) => notify(&workers, event),
            Err(RecvError::Lagged(_)) => workers.notify_all(),
            Err(RecvError::Closed) => return,
        }
    }
}

#[async_trait]
impl PodLookup for Kubelet {
    fn pods(&self) -> Vec<Arc<Pod>> {
        self.pods.lister().list().into_iter().map(|pod| self.with_status(pod)).collect()
    }

    fn pod(&self, namespace: &str, name: &str, uid: Option<&str>) -> Option<Arc<Pod>> {
        let pod = self.pods.lister().get(namespace, name)?;
        uid.is_none_or(|uid| uid == pod.uid()).then(|| self.with_status(pod))
    }

    fn probe_metrics(&self) -> String {
        self.syncer.probes.metrics()
    }

    fn metrics(&self) -> String {
        [self.syncer.metrics.render(), self.syncer.runtime.metrics(), self.syncer.volumes.metrics()].concat()
    }

    fn health(&self) -> Vec<Check> {
        checks(self.sync_loop.check(), self.supervisor.health())
    }

    async fn container(
        &self,
        pod: &Pod,
        container: &str,
        previous: bool,
    ) -> Result<ContainerRef, LookupError> {
        let (name, container_name) = (pod.name().to_owned(), container.to_owned());
        let Some((_, spec)) = pod::find_container(pod, container) else {
            return Err(LookupError::NoSuchContainer { pod: name, container: container_name });
        };
        let runtime = self.syncer.runtime.pod_status(pod.uid()).await;
        let runtime = runtime.map_err(|e| LookupError::Runtime(e.to_string()))?;
        let mut found = runtime.containers.iter().filter(|c| c.name == container);
        // Between two runs of a container, its last run counts as the previous one already.
        let ended = previous.then(|| last_ended(pod, container)).flatten();
        let status = match (previous, ended) {
            (true, Some(id)) => found.find(|c| id.ends_with(&c.id)),
            (true, None) => found.nth(1),
            (false, _) => found.next(),
        };
        match status {
            Some(status) => Ok(ContainerRef {
                container_id: status.id.clone(),
                sandbox_id: status.sandbox_id.clone(),
                log_path: status.log_path.clone(),
                running: status.state == ContainerState::Running,
                tty: spec.tty == Some(true),
                stdin: spec.stdin == Some(true),
            }),
            None if previous => Err(LookupError::NoPrevious { pod: name, container: container_name }),
            None => {
                let reason = waiting_reason(pod, container);
                Err(LookupError::Waiting { pod: name, container: container_name, reason })
            }
        }
    }

    async fn volume_usage(&self, pod: &Pod) -> Vec<VolumeUsage> {
        self.syncer.volumes.usage(pod.uid()).await
    }

    async fn sandbox_id(&self, pod: &Pod) -> Result<String, LookupError> {
        let runtime = self.syncer.runtime.pod_status(pod.uid()).await;
        let runtime = runtime.map_err(|e| LookupError::Runtime(e.to_string()))?;
        let ready = runtime.sandboxes.into_iter().find(|s| s.state == SandboxState::Ready);
        ready.map(|s| s.id).ok_or_else(|| LookupError::PodNotFound(pod.name().to_owned()))
    }
}

impl Kubelet {
    fn with_status(&self, pod: Arc<Pod>) -> Arc<Pod> {
        match self.syncer.status.get(pod.uid()) {
            Some(status) => Arc::new(Pod { status: Some(status), ..(*pod).clone() }),
            None => pod,
        }
    }
}

/// Returns the id of the container in `lastState`.
fn last_ended<'a>(pod: &'a Pod, container: &str) -> Option<&'a str> {
    let last = container_status(pod, container)?.last_state.as_ref()?.terminated.as_ref()?;
    last.container_id.as_deref().filter(|id| !id.is_empty())
}

fn container_status<'a>(pod: &'a Pod, container: &str) -> Option<&'a ApiStatus> {
    let status = pod.status.as_ref()?;
    let lists =
        [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    lists.into_iter().flatten().flatten().find(|s| s.name == container)
}

fn waiting_reason(pod: &Pod, container: &str) -> String {
    let waiting =
        container_status(pod, container).and_then(|s| s.state.as_ref()?.waiting.as_ref()?.reason.clone());
    waiting.unwrap_or_else(|| "ContainerCreating".to_owned())
}
