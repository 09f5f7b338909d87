//! Liveness, readiness and startup probes: one worker per probe and container.

mod counts;
mod grpc;
mod prober;
mod results;
mod state;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, Probe};
use knarr_api::kind::Kind;
use knarr_apimachinery::clock::Clock;
use knarr_client::Supervisor;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use counts::{ProbeCounts, Probed};
use prober::Outcome;
pub use results::{ProbeResult, ProbeResults, Results};
pub use state::ProbeKind;
use state::{ProbeState, Tick, View};

use crate::events::Events;
use crate::pod::{self, ContainerKind};
use crate::runtime::ContainerRuntime;
use crate::status::StatusManager;

/// How often a probe that could not be carried out is repeated at once.
const ATTEMPTS: usize = 3;

/// The task name under which all workers are supervised.
const TASK: &str = "probes";

/// The key of a worker: pod uid, container, kind of probe.
type Key = (String, String, ProbeKind);

struct Handle {
    stop: CancellationToken,
    /// Notified to probe at once.
    now: Arc<Notify>,
}

/// Called with the pod's uid when a result has changed.
pub type OnChange = Arc<dyn Fn(&str) + Send + Sync>;

pub struct ProbeManager {
    supervisor: Supervisor,
    runtime: Arc<dyn ContainerRuntime>,
    status: Arc<StatusManager>,
    events: Events,
    clock: Arc<dyn Clock>,
    started: Timestamp,
    results: ProbeResults,
    counts: ProbeCounts,
    on_change: OnChange,
    stop: CancellationToken,
    workers: Mutex<BTreeMap<Key, Handle>>,
}

#[derive(Clone)]
struct Worker {
    manager: Arc<ProbeManager>,
    pod: Arc<Pod>,
    container: Container,
    container_kind: ContainerKind,
    kind: ProbeKind,
    probe: Probe,
    now: Arc<Notify>,
    stop: CancellationToken,
    state: ProbeState,
}

impl ProbeManager {
    pub fn new(
        supervisor: Supervisor,
        runtime: Arc<dyn ContainerRuntime>,
        status: Arc<StatusManager>,
        events: Events,
        clock: Arc<dyn Clock>,
        on_change: OnChange,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let started = clock.now();
        let (results, counts, workers) = (ProbeResults::default(), ProbeCounts::default(), Mutex::default());
        Arc::new(Self {
            supervisor,
            runtime,
            status,
            events,
            clock,
            started,
            results,
            counts,
            on_change,
            stop,
            workers,
        })
    }

    /// Returns the counts of probe results for Prometheus.
    pub fn metrics(&self) -> String {
        self.counts.render()
    }

    pub fn results(&self) -> &ProbeResults {
        &self.results
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Handle>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts workers for the probes of the pod's main containers and sidecars that have none yet.
    pub fn add_pod(self: &Arc<Self>, pod: &Arc<Pod>) {
        let sidecars = pod::init_containers(pod).iter().filter(|c| pod::is_sidecar(c));
        let all = sidecars
            .map(|c| (ContainerKind::Init, c))
            .chain(pod::spec(pod).containers.iter().map(|c| (ContainerKind::Main, c)));
        let mut workers = self.lock();
        for (container_kind, container) in all {
            for kind in ProbeKind::ALL {
                let Some(probe) = kind.of(container) else { continue };
                let key = (pod.uid().to_owned(), container.name.clone(), kind);
                workers.entry(key).or_insert_with(|| {
                    let handle = Handle { stop: self.stop.child_token(), now: Arc::default() };
                    let worker = Worker {
                        manager: Arc::clone(self),
                        pod: Arc::clone(pod),
                        container: container.clone(),
                        container_kind,
                        kind,
                        probe: probe.clone(),
                        now: Arc::clone(&handle.now),
                        stop: handle.stop.clone(),
                        state: ProbeState::default(),
                    };
                    // A worker that panics is restarted, and keeps the results of its container.
                    let stop = handle.stop.clone();
                    tokio::spawn(self.supervisor.run_until_done(TASK, stop, move |_| worker.clone().run()));
                    handle
                });
            }
        }
    }

    /// Stops liveness and startup probes of a pod that is being stopped: it must not be restarted, but its
    /// readiness still counts.
    pub fn stop_liveness_and_startup(&self, uid: &str) {
        self.stop_where(|key| key.0 == uid && key.2 != ProbeKind::Readiness);
    }

    pub fn remove_pod(&self, uid: &str) {
        self.stop_where(|key| key.0 == uid);
    }

    fn stop_where(&self, chosen: impl Fn(&Key) -> bool) {
        self.lock().retain(|key, handle| {
            let stop = chosen(key);
            if stop {
                handle.stop.cancel();
            }
            !stop
        });
    }

    /// Probes readiness at once rather than at the next tick, as a container has just started.
    pub fn probe_readiness_now(&self, uid: &str) {
        for (key, handle) in self.lock().iter() {
            if key.0 == uid && key.2 == ProbeKind::Readiness {
                handle.now.notify_one();
            }
        }
    }

    fn of(&self, kind: ProbeKind) -> &Results {
        match kind {
            ProbeKind::Liveness => &self.results.liveness,
            ProbeKind::Readiness => &self.results.readiness,
            ProbeKind::Startup => &self.results.startup,
        }
    }
}

impl Worker {
    async fn run(mut self) {
        let period =
            Duration::from_secs(u64::try_from(self.probe.period_seconds.unwrap_or(10)).unwrap_or(10).max(1));
        // When the kubelet starts, many probes begin at the same moment: they are spread over their period.
        let age = self.manager.clock.now().duration_since(self.manager.started);
        if Duration::try_from(age).unwrap_or_default() < period
            && !self.wait(period.mul_f64(fastrand::f64())).await
        {
            return;
        }
        while let Some(next) = self.tick(period).await {
            if !self.wait(next).await {
                break;
            }
        }
        self.manager.of(self.kind).remove(self.state.container_id());
        self.manager.counts.forget(&self.probed());
        if !self.stop.is_cancelled() {
            let key = (self.pod.uid().to_owned(), self.container.name.clone(), self.kind);
            self.manager.lock().remove(&key);
        }
    }

    /// Waits; returns false when the worker must end.
    async fn wait(&self, time: Duration) -> bool {
        tokio::select! {
            () = self.stop.cancelled() => false,
            () = self.now.notified() => true,
            () = self.manager.clock.sleep(time) => true,
        }
    }

    fn probed(&self) -> Probed {
        Probed {
            uid: self.pod.uid().to_owned(),
            container: self.container.name.clone(),
            kind: self.kind,
            namespace: self.pod.namespace().to_owned(),
            pod: self.pod.name().to_owned(),
        }
    }

    fn set(&self, result: ProbeResult) {
        if self.manager.of(self.kind).set(self.state.container_id(), result) {
            (self.manager.on_change)(self.pod.uid());
        }
    }

    /// Runs one tick. Returns the time until the next one; `None` when the worker must end.
    async fn tick(&mut self, period: Duration) -> Option<Duration> {
        let Some(status) = self.manager.status.get(self.pod.uid()) else { return Some(period) };
        let now = self.manager.clock.now();
        let step = self.state.tick(&View {
            pod: &self.pod,
            container: &self.container,
            kind: self.kind,
            status: &status,
            kubelet_started: self.manager.started,
            now,
        });
        if let Some(old) = &step.forget {
            self.manager.of(self.kind).remove(old);
        }
        if let Some(result) = step.set {
            self.set(result);
        }
        match step.tick {
            Tick::Wait => return Some(period),
            Tick::Stop => return None,
            Tick::Probe => {}
        }
        let pod_ip = status.pod_ip.unwrap_or_default();
        let began = self.manager.clock.monotonic();
        let starting = self.state.starting_for(self.kind, now).filter(|left| *left < period);
        let result = tokio::select! {
            () = self.stop.cancelled() => return None,
            result = self.probe(&pod_ip, starting.is_some()) => result,
        };
        if let Some(result) = result {
            let took = self.manager.clock.monotonic().saturating_sub(began);
            self.manager.counts.record(&self.probed(), result, took);
        }
        if let Some(again) = starting.filter(|_| result != Some(ProbeResult::Success)) {
            return Some(again);
        }
        if let Some(result) = result
            && let Some(verdict) = self.state.observe(self.kind, &self.probe, result)
        {
            self.set(verdict);
        }
        Some(period)
    }

    /// Probes once; `None` if the probe could not be carried out. While a container is starting, only a success
    /// counts.
    async fn probe(&self, pod_ip: &str, starting: bool) -> Option<ProbeResult> {
        let events = self.manager.events.of(&self.pod, self.container_kind, &self.container.name);
        let mut last = String::new();
        for _ in 0..ATTEMPTS {
            let runtime = self.manager.runtime.as_ref();
            let id = self.state.container_id();
            match prober::probe(runtime, id, &self.container, pod_ip, &self.probe).await {
                Ok(Outcome::Success) => return Some(ProbeResult::Success),
                Ok(Outcome::Warning(output)) => {
                    events.warning("ProbeWarning", format!("{} probe warning: {output}", self.kind));
                    return Some(ProbeResult::Success);
                }
                Ok(Outcome::Failure(_)) if starting => return Some(ProbeResult::Failure),
                Err(_) if starting => return None,
                Ok(Outcome::Failure(output)) => {
                    events.warning("Unhealthy", format!("{} probe failed: {output}", self.kind));
                    return Some(ProbeResult::Failure);
                }
                Err(error) => last = error,
            }
        }
        let unknown = ProbeResult::Unknown;
        events.warning(
            "Unhealthy",
            format!("{} probe errored and resulted in {unknown} state: {last}", self.kind),
        );
        None
    }
}
