//! One pass over one pod: brings what runs here to what the pod wants, and tells the API how it stands.
//!
//! The pod's worker decides which pass is due ([`crate::pod_workers`]); each pass looks at the world anew, so first
//! run, retry and restart are the same.

mod allocate;
mod cleanup;
mod resize;
mod retry;
mod shrink;
mod start;
mod stop;
mod sync;
mod terminate;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, PodStatus, ResourceRequirements, Service};
use knarr_api::kind::Kind;
use knarr_apimachinery::clock::Clock;
use knarr_client::Lister;

use crate::admission::{Rejection, Taken, rejection};
use crate::allocation::Allocations;
use crate::api_time::whole_seconds;
use crate::back_off::BackOff;
use crate::config::Config;
use crate::confinement;
use crate::events::Events;
use crate::host_security::HostSecurity;
use crate::image_manager::ImageManager;
use crate::kubelet_metrics::KubeletMetrics;
use crate::pod;
use crate::pod_cgroups::PodCgroups;
use crate::probes::ProbeManager;
use crate::runtime::{ContainerRuntime, ContainerState, PodRuntimeStatus, Resources};
use crate::status::{self, Input, Messages, StartFailure, StatusManager};
use crate::sysctls::SysctlAllowlist;
use crate::termination::Terminator;
use crate::termination_message;
use crate::user_namespaces::UserNamespaces;
use crate::volume_manager::Volumes;
use crate::volumes::ObjectSource;

use retry::Retry;
pub use retry::pause_after;
pub use sync::SyncOutcome;

/// What a worker remembers of its pod between passes.
#[derive(Debug, Default)]
pub struct PodMemory {
    /// When the pod was first seen here, by the clock that never goes back; `None` of one that ran before.
    pub first_seen: Option<Duration>,
    /// Why containers could not be started, by name.
    failures: BTreeMap<String, StartFailure>,
    messages: Messages,
    /// Until when a container is known to wait, by name: told once.
    told_back_off: BTreeMap<String, Timestamp>,
    /// The limits that running containers have, by id.
    applied: BTreeMap<String, Resources>,
    /// The requests and limits that these came from, by id.
    actuated: BTreeMap<String, ResourceRequirements>,
    applied_to_pod: Option<Resources>,
    /// Of a resize that could not be carried out.
    resize_retry: Option<Retry>,
}

/// The parts of the kubelet that a pass uses.
pub struct PodSyncer {
    pub config: Config,
    pub runtime: Arc<dyn ContainerRuntime>,
    pub runtime_name: String,
    pub volumes: Arc<dyn Volumes>,
    pub objects: Arc<ObjectSource>,
    pub status: Arc<StatusManager>,
    pub probes: Arc<ProbeManager>,
    pub images: ImageManager,
    pub events: Events,
    pub clock: Arc<dyn Clock>,
    pub services: Lister<Service>,
    pub nodes: Lister<Node>,
    pub cgroups: PodCgroups,
    pub terminator: Terminator,
    /// The machine's memory, in bytes.
    pub memory_capacity: i64,
    pub started: Timestamp,
    pub host_security: HostSecurity,
    pub sysctls: SysctlAllowlist,
    pub user_namespaces: Arc<UserNamespaces>,
    pub taken: Mutex<Taken>,
    /// Locked before `taken`, where both are.
    pub allocations: Mutex<Allocations>,
    /// Wakes the worker of a pod, by uid.
    pub wake: Arc<dyn Fn(&str) + Send + Sync>,
    pub crash_back_off: Mutex<BackOff>,
    pub metrics: KubeletMetrics,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// File work off the async threads.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|e| format!("background work: {e}"))
}

/// Whether the pod may run here.
pub enum Admission {
    Admitted,
    Rejected,
    /// The node itself is not known yet.
    NotYet,
}

impl PodSyncer {
    fn node(&self) -> Option<Arc<Node>> {
        self.nodes.get("", &self.config.node_name)
    }

    /// Decides about a new pod; one that is refused is told so in its status, for good.
    pub fn admit(&self, pod: &Pod) -> Admission {
        let Some(node) = self.node() else { return Admission::NotYet };
        let refused = {
            // One that was admitted before a restart is admitted with what it was given.
            let mut allocations = lock(&self.allocations);
            let given = allocations.of(pod);
            let pod = &*given;
            let mut taken = lock(&self.taken);
            taken.remove(pod.uid());
            let refused = confinement::forbidden_sysctl(pod, &self.sysctls)
                .or_else(|| rejection(pod, &node, &taken))
                .or_else(|| confinement::unenforceable(pod, self.host_security, &self.runtime.features()));
            match &refused {
                None => {
                    taken.add(pod);
                    allocations.admit(pod);
                }
                Some(_) => allocations.forget(pod.uid()),
            }
            refused
        };
        match refused {
            None => {
                self.weigh();
                Admission::Admitted
            }
            Some(refused) => {
                self.reject(pod, &refused);
                Admission::Rejected
            }
        }
    }

    fn reject(&self, pod: &Pod, refused: &Rejection) {
        self.events.warning(pod, &refused.reason, refused.message.clone());
        let mut status = pod::status(pod).clone();
        status.phase = Some("Failed".to_owned());
        status.reason = Some(refused.reason.clone());
        status.message = Some(format!("Pod was rejected: {}", refused.message));
        status.qos_class = Some(crate::qos::qos_class(pod).to_owned());
        status.start_time.get_or_insert_with(|| whole_seconds(self.clock.now()));
        self.status.set(pod, status, false);
        self.status.terminate(pod);
    }

    /// Takes the locks that all passes share.
    pub fn pass_through(&self) {
        drop(lock(&self.allocations));
        drop(lock(&self.taken));
    }

    /// Sees to it that the burstable class weighs what its pods ask for.
    fn weigh(&self) {
        let milli_cpu = lock(&self.taken).amounts().get("cpu").copied().unwrap_or(0);
        self.cgroups.weigh_burstable(milli_cpu);
    }

    /// Makes the pod's status from what is, and hands it to be written. `terminal`: nothing will be started any
    /// more. `may_run`: something may still run.
    async fn publish(
        &self,
        pod: &Pod,
        memory: &mut PodMemory,
        runtime: &PodRuntimeStatus,
        terminal: bool,
        may_run: bool,
    ) -> PodStatus {
        self.read_messages(pod, memory, runtime).await;
        let (given, resize) = {
            let allocations = lock(&self.allocations);
            (allocations.of(pod), allocations.conditions(pod.uid()))
        };
        let pod = &*given;
        let old = self.status.get(pod.uid()).unwrap_or_else(|| pod::status(pod).clone());
        let host_ips = self.config.host_ips();
        let handler = runtime.sandboxes.first().map_or("", |sandbox| sandbox.runtime_handler.as_str());
        let status = status::generate(&Input {
            pod,
            old: &old,
            runtime,
            failures: &memory.failures,
            probes: self.probes.results(),
            messages: &memory.messages,
            actuated: &memory.actuated,
            resize: &resize,
            host_ips: &host_ips,
            runtime_name: &self.runtime_name,
            recursive_read_only: self.runtime.features().recursive_read_only_mounts(handler),
            kubelet_started: self.started,
            terminal,
            now: self.clock.now(),
        });
        self.status.set(pod, status.clone(), may_run);
        let not_ready = |s: &k8s_openapi::api::core::v1::ContainerStatus| !s.ready && s.started == Some(true);
        if status.container_statuses.iter().chain(&status.init_container_statuses).flatten().any(not_ready) {
            self.probes.probe_readiness_now(pod.uid());
        }
        status
    }

    /// Termination messages are read once per container.
    async fn read_messages(&self, pod: &Pod, memory: &mut PodMemory, runtime: &PodRuntimeStatus) {
        memory.messages.retain(|id, _| runtime.containers.iter().any(|c| c.id == *id));
        for status in &runtime.containers {
            if status.state != ContainerState::Exited || memory.messages.contains_key(&status.id) {
                continue;
            }
            let (dirs, uid, ended) = (self.config.dirs(), pod.uid().to_owned(), status.clone());
            let own = status.message.clone();
            let read = blocking(move || termination_message::read(&dirs, &uid, &ended)).await;
            memory.messages.insert(status.id.clone(), read.ok().flatten().unwrap_or(own));
        }
    }

    /// The address that probes and hooks use: the pod's first.
    fn pod_ips(&self, pod: &Pod, runtime: &PodRuntimeStatus) -> Vec<String> {
        if pod::is_host_network(pod) {
            return self.config.host_ips();
        }
        runtime.sandboxes.first().map(|s| s.ips.iter().map(ToString::to_string).collect()).unwrap_or_default()
    }
}
