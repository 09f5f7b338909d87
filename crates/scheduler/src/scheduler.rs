//! The scheduling loop: takes pods from the queue, decides, and hands them on to be bound.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::api::scheduling::v1beta1::PodGroup;
use knarr_client::events::EventRecorder;
use knarr_client::{Client, Informers};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::background::Background;
use crate::binding::{Bound, Preemptor};
use crate::cache::Cache;
use crate::config::{ConfigError, Configuration};
use crate::extender::Extenders;
use crate::framework::{Catalog, PodInfo, Profiles};
use crate::group_condition::{Report, Reports};
use crate::groups::Groups;
use crate::health::Health;
use crate::metrics::{Measured, Metric, Metrics};
use crate::queue::{PoppedGroup, Queue, Ready};
use crate::schedule_one::Cycles;
use crate::snapshot::PlacedPod;
use crate::waiting::WaitingPods;

/// The number of concurrent bindings. Together with the condition writes below it is not more than what an API server's
/// fair queuing accepts from one client (6 queues of 50 requests, by upstream's defaults) before it refuses.
const MAX_BINDINGS: usize = 224;
/// The number of concurrent condition writes for unschedulable pods.
const MAX_CONDITIONS: usize = 32;
/// The number of pods decided in one batch, after which informers get the lock.
const BATCH: usize = 32;

/// Options of a scheduler.
#[derive(Default)]
pub struct Options {
    pub config: Configuration,
    /// The seed for the random choice among equal nodes.
    pub seed: u64,
}

pub(crate) struct State {
    pub cache: Cache,
    pub queue: Queue,
    pub cycles: Cycles,
}

/// Schedules the pods whose schedulerName is one of its profiles.
pub struct Scheduler {
    pub(crate) profiles: Profiles,
    pub(crate) client: Client,
    pub(crate) recorder: EventRecorder,
    pub(crate) waiting: Arc<WaitingPods>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) health: Arc<Health>,
    pub(crate) reports: Reports,
    state: Mutex<State>,
    pub(crate) wake: Notify,
    bindings: Arc<Semaphore>,
    pub(crate) conditions: Semaphore,
    pub(crate) extenders: Extenders,
    /// Held for the pod that extenders are called for: they get one pod at a time.
    pub(crate) extended: tokio::sync::Mutex<()>,
    pub(crate) background: Arc<Background>,
}

/// The next step for a pod after its cycle, carried out without the lock.
pub(crate) enum Next {
    Nothing,
    /// Extenders must be called first.
    Extend(Arc<PodInfo>),
    /// Extenders must be called for a pod group first.
    ExtendGroup(Box<PoppedGroup>),
    Bind(Box<Bound>),
    /// Pods must be evicted for a pod group.
    Evict(Preemptor, Vec<Arc<PlacedPod>>),
    /// The result of a pod group's attempt, to be written into its status.
    Report(Box<Report>),
    TurnDown {
        pod: Arc<PodInfo>,
        plugins: BTreeSet<&'static str>,
        reason: &'static str,
        message: String,
        nomination: Nomination,
    },
}

impl Next {
    /// The result label of the metrics, if the attempt has ended.
    pub(crate) fn result(&self) -> Option<&'static str> {
        match self {
            Self::TurnDown { reason: "Unschedulable", .. } => Some("unschedulable"),
            Self::TurnDown { .. } => Some("error"),
            _ => None,
        }
    }
}

/// What to do with the pod's `status.nominatedNodeName`.
pub(crate) enum Nomination {
    Keep,
    Withdraw,
    /// Set it to this node: room is made there for the pod and others of its group.
    Set(Box<str>),
    Make(Box<Eviction>),
}

impl Nomination {
    /// Withdraws the pod's nomination, if it has one.
    pub(crate) fn none(pod: &PodInfo) -> Self {
        if pod.nominated_node.is_some() { Self::Withdraw } else { Self::Keep }
    }
}

/// The pods to evict from a node so that another pod fits.
pub(crate) struct Eviction {
    pub node: String,
    pub victims: Vec<Arc<PlacedPod>>,
    /// Pods with lower priority whose nomination to the node is withdrawn.
    pub freed: Vec<Arc<PlacedPod>>,
}

impl Scheduler {
    /// Creates a scheduler, and adds its handlers to the component's informers.
    pub fn new(
        informers: &Arc<Informers>,
        recorder: EventRecorder,
        options: Options,
    ) -> Result<Arc<Self>, ConfigError> {
        let catalog = Arc::new(Catalog::of_informers(Arc::clone(informers)));
        let profiles = options.config.profiles(&catalog)?;
        let groups = options.config.generic_workload.then(|| catalog.shared::<Groups>());
        let backoff = options.config.backoff();
        let (mut queue, cache) = match &groups {
            Some(groups) => {
                (Queue::with_groups(backoff, Arc::clone(groups)), Cache::with_groups(Arc::clone(groups)))
            }
            None => (Queue::new(backoff), Cache::default()),
        };
        let metrics = Arc::new(Metrics::new(Arc::clone(informers.client().clock())));
        profiles.measure(&metrics);
        catalog.shared::<Measured>().set(&metrics, &recorder);
        queue.measure(&metrics);
        let cycles = Cycles::measured(options.seed, Arc::clone(&metrics));
        let state = State { cache, queue, cycles };
        let health = catalog.shared::<Health>();
        health.configure(&options.config.node_failure_awareness);
        let scheduler = Arc::new(Self {
            profiles,
            client: informers.client().clone(),
            recorder,
            waiting: catalog.shared::<WaitingPods>(),
            background: catalog.shared::<Background>(),
            catalog,
            metrics,
            health,
            reports: Reports::default(),
            state: Mutex::new(state),
            wake: Notify::new(),
            bindings: Arc::new(Semaphore::new(MAX_BINDINGS)),
            conditions: Semaphore::new(MAX_CONDITIONS),
            extenders: Extenders::new(&options.config.extenders)?,
            extended: tokio::sync::Mutex::default(),
        });
        let on_node = Arc::clone(&scheduler);
        informers.informer::<Node>().add_handler(move |event| on_node.on_node(event));
        let on_namespace = Arc::clone(&scheduler);
        informers.informer::<Namespace>().add_handler(move |event| on_namespace.on_namespace(event));
        scheduler.watch_others(informers);
        if let Some(groups) = groups {
            let on_group = Arc::clone(&scheduler);
            let informer = informers.informer::<PodGroup>();
            informer.add_handler(move |event| on_group.on_pod_group(&groups, event));
        }
        let on_pod = Arc::clone(&scheduler);
        informers.informer::<Pod>().add_handler(move |event| on_pod.on_pod(event));
        Ok(scheduler)
    }

    /// Schedules until `stop` is cancelled or a cycle has panicked; after a panic this scheduler must be replaced by a
    /// new one. The informers must have synced. Returns when the running cycles have ended and their events are
    /// written, within bounds. Cycles that have not ended by then, or when the future is dropped, are abandoned.
    pub fn run(self: Arc<Self>, stop: CancellationToken) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(self.work(stop))
    }

    async fn work(self: Arc<Self>, stop: CancellationToken) {
        let _given_up = self.background.give_up_on_drop();
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = self.background.failed() => {}
            () = self.cycles() => {}
        }
        self.background.end(&**self.client.clock()).await;
        self.recorder.written().await;
    }

    async fn cycles(self: &Arc<Self>) {
        loop {
            for next in self.next_batch().await {
                self.carry_out(next).await;
            }
        }
    }

    /// Decides about the pods that are ready, up to a batch. Waits while there are none.
    async fn next_batch(&self) -> Vec<Next> {
        loop {
            let notified = self.wake.notified();
            let mut batch = Vec::new();
            let due = {
                let mut state = self.lock();
                self.health_tick(&mut state);
                let now = self.now();
                while batch.len() < BATCH {
                    match state.queue.next(&self.profiles, now) {
                        None => break,
                        Some(Ready::Pod(pod)) => batch.push(self.schedule_pod(&mut state, pod, now)),
                        Some(Ready::Group(group)) => {
                            batch.extend(self.schedule_group(&mut state, group, now))
                        }
                    }
                }
                let due = state.queue.next_due().map(|at| at.saturating_sub(now));
                due.into_iter().chain(self.health_due()).min()
            };
            if !batch.is_empty() {
                return batch;
            }
            match due {
                None => notified.await,
                Some(wait) => {
                    tokio::select! {
                        biased;
                        () = notified => {}
                        () = self.client.clock().sleep(wait) => {}
                    }
                }
            }
        }
    }

    pub(crate) async fn carry_out(self: &Arc<Self>, next: Next) {
        if self.background.is_ending() {
            return;
        }
        match next {
            Next::Nothing => {}
            Next::Extend(pod) => {
                // A slow extender must not delay other pods.
                let cycle = Arc::clone(self).extended_cycle(pod);
                self.background.run(cycle);
            }
            Next::ExtendGroup(popped) => {
                self.background.run(Arc::clone(self).extended_group_cycle(*popped));
            }
            Next::Bind(bound) => {
                // A pod that waits for Permit, for its volumes or for its devices must not keep others from being
                // bound.
                let devices = bound.pod.spec().is_some_and(|s| s.resource_claims.is_some())
                    || !bound.pod.footprint().requests.scalar.is_empty();
                let waits = bound.permit.is_some() || !bound.pod.footprint().claims.is_empty() || devices;
                let permit = if waits { None } else { Arc::clone(&self.bindings).acquire_owned().await.ok() };
                let scheduler = Arc::clone(self);
                self.background.run(async move {
                    scheduler.binding_cycle(*bound).await;
                    drop(permit);
                });
            }
            Next::Evict(preemptor, victims) => {
                let scheduler = Arc::clone(self);
                // The room of a group spans several nodes.
                self.background.run(async move { scheduler.evict(&preemptor, &victims, "cluster").await });
            }
            Next::Report(report) => self.report(report),
            Next::TurnDown { pod, plugins, reason, message, nomination } => {
                self.turn_down(&pod, plugins, reason, message, nomination);
            }
        }
    }

    /// Like `carry_out`, boxed because `carry_out` itself leads to this call.
    pub(crate) fn carry_on(self: Arc<Self>, next: Next) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move { self.carry_out(next).await })
    }

    /// The trust in nodes and workloads, as the plugins see it.
    pub fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// The scheduler's metrics in the text format of Prometheus.
    pub fn metrics(&self) -> String {
        let mut state = self.lock();
        for ((queue, event), n) in state.queue.take_incoming() {
            self.metrics.add(Metric::IncomingPods, &[&event, queue], n as f64);
        }
        for ((queue, event, kind), n) in state.queue.take_incoming_entities() {
            self.metrics.add(Metric::IncomingEntities, &[&event, queue, kind], n as f64);
        }
        self.metrics.clear(Metric::InFlightEvents);
        for (event, n) in state.queue.in_flight_events() {
            self.metrics.set(Metric::InFlightEvents, &[&event], n as f64);
        }
        for ((at, point, plugin), n) in state.cycles.take_evaluations() {
            if let Some(profile) = self.profiles.iter().nth(at) {
                let labels = [point, plugin, &profile.scheduler_name];
                self.metrics.add(Metric::Evaluations, &labels, n as f64);
            }
        }
        let single = state.queue.pending();
        for (queue, n) in single {
            self.metrics.set(Metric::PendingPods, &[queue], n as f64);
        }
        for (queue, groups, pods) in state.queue.groups_pending().into_iter().flatten() {
            let alone = single.iter().find(|(name, _)| *name == queue).map_or(0, |(_, n)| *n);
            self.metrics.set(Metric::PendingPods, &[queue], (alone + pods) as f64);
            if queue != "incomplete" {
                self.metrics.set(Metric::QueuedEntities, &[queue, "podgroup"], groups as f64);
                self.metrics.set(Metric::QueuedEntities, &[queue, "pod"], alone as f64);
            }
        }
        self.metrics.clear(Metric::UnschedulablePods);
        for ((plugin, profile), n) in state.queue.unschedulable() {
            self.metrics.set(Metric::UnschedulablePods, &[plugin, profile], n as f64);
        }
        for (kind, n) in state.cache.sizes() {
            self.metrics.set(Metric::CacheSize, &[kind], n as f64);
        }
        drop(state);
        let binding = MAX_BINDINGS - self.bindings.available_permits();
        self.metrics.set(Metric::Goroutines, &["binding"], binding as f64);
        self.metrics.render()
    }

    pub(crate) fn now(&self) -> Duration {
        self.client.clock().monotonic()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use knarr_api::kind::Kind;
    use knarr_client::clock::TokioClock;
    use knarr_testing::fake_api::FakeApi;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_cycle_that_panics_ends_the_scheduler_and_one_that_ends_does_not() {
        let clock = Arc::new(TokioClock::starting_at(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
        let (client, stop) = (FakeApi::new(clock, &[Pod::RESOURCE]).client(), CancellationToken::new());
        let informers = Arc::new(Informers::new(client.clone(), stop.clone()));
        let recorder = EventRecorder::new(client, "default-scheduler", "", stop.clone());
        let options = Options { config: Configuration::default(), seed: 1 };
        let scheduler = Scheduler::new(&informers, recorder, options).unwrap();
        let mut running = tokio::spawn(Arc::clone(&scheduler).run(stop.clone()));
        scheduler.background.run(async {});
        tokio::time::timeout(Duration::from_secs(60), &mut running).await.unwrap_err();
        scheduler.background.run(async { panic!("a fault in a plugin") });
        tokio::time::timeout(Duration::from_secs(60), running).await.unwrap().unwrap();
        assert!(!stop.is_cancelled());
    }
}
