//! One pass over one pod: brings the containers on the node to what the pod's spec asks for, and reports the pod's
//! status to the API.
//!
//! The pod's worker decides which pass is due ([`crate::pod_workers`]). Each pass reads the current state anew, so
//! the first run, a retry and a run after a restart are the same.

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
    /// When the pod was first seen here, by the monotonic clock; `None` for a pod that ran before this kubelet
    /// started.
    pub first_seen: Option<Duration>,
    /// Why containers could not be started, by name.
    failures: BTreeMap<String, StartFailure>,
    messages: Messages,
    /// Until when a container waits, by name, as last reported: one `BackOff` event is emitted per wait.
    reported_back_off: BTreeMap<String, Timestamp>,
    /// The limits that were applied to running containers, by id.
    applied: BTreeMap<String, Resources>,
    /// The requests and limits of the spec that `applied` was computed from, by id.
    actuated: BTreeMap<String, ResourceRequirements>,
    applied_to_pod: Option<Resources>,
    /// When a resize that failed is tried again.
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
    /// Locked before `taken` where both locks are held.
    pub allocations: Mutex<Allocations>,
    /// Wakes the worker of a pod, by uid.
    pub wake: Arc<dyn Fn(&str) + Send + Sync>,
    pub crash_back_off: Mutex<BackOff>,
    pub metrics: KubeletMetrics,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs file system work on a thread for blocking work.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|e| format!("background work: {e}"))
}

/// Whether the pod may run here.
pub enum Admission {
    Admitted,
    Rejected,
    /// The Node object is not known yet.
    NotYet,
}

impl PodSyncer {
    fn node(&self) -> Option<Arc<Node>> {
        self.nodes.get("", &self.config.node_name)
    }

    /// Decides whether a new pod is admitted. A rejected pod gets the phase `Failed`, which is final.
    pub fn admit(&self, pod: &Pod) -> Admission {
        let Some(node) = self.node() else { return Admission::NotYet };
        let refused = {
            // A pod that was admitted before a restart is admitted with the resources that were allocated then.
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

    /// Acquires and releases the locks that all passes share, to check that none of them is stuck.
    pub fn pass_through(&self) {
        drop(lock(&self.allocations));
        drop(lock(&self.taken));
    }

    /// Sets the CPU weight of the burstable cgroup to the sum that its pods request.
    fn weigh(&self) {
        let milli_cpu = lock(&self.taken).amounts().get("cpu").copied().unwrap_or(0);
        self.cgroups.weigh_burstable(milli_cpu);
    }

    /// Computes the pod's status from the runtime's state, and hands it to the status manager. `terminal`: no
    /// container will be started any more. `may_run`: a container may still run.
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

    /// Reads the termination messages of ended containers, once per container.
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

    /// Returns the pod's addresses. Probes and hooks use the first one.
    fn pod_ips(&self, pod: &Pod, runtime: &PodRuntimeStatus) -> Vec<String> {
        if pod::is_host_network(pod) {
            return self.config.host_ips();
        }
        runtime.sandboxes.first().map(|s| s.ips.iter().map(ToString::to_string).collect()).unwrap_or_default()
    }
}
