//! The shell around the scheduling cycle: takes pods from the queue, decides, and hands them on to be bound.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use knarr_client::events::EventRecorder;
use knarr_client::{Client, Informers};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::binding::Bound;
use crate::cache::Cache;
use crate::config::{ConfigError, Configuration};
use crate::framework::{
    Attempt, Catalog, Code, CycleState, NoRoom, PodInfo, Profile, Profiles, Room, Status,
};
use crate::queue::Queue;
use crate::schedule_one::{Cycles, Outcome};
use crate::waiting::WaitingPods;

/// Bindings under way at once.
const MAX_BINDINGS: usize = 512;
/// Pods decided on before informers get their turn.
const BATCH: usize = 32;

/// How a scheduler runs.
#[derive(Default)]
pub struct Options {
    pub config: Configuration,
    /// Seeds the choice among equals.
    pub seed: u64,
}

pub(crate) struct State {
    pub cache: Cache,
    pub queue: Queue,
    pub cycles: Cycles,
}

/// Schedules the pods that name one of its profiles.
pub struct Scheduler {
    pub(crate) profiles: Profiles,
    pub(crate) client: Client,
    pub(crate) recorder: EventRecorder,
    pub(crate) waiting: Arc<WaitingPods>,
    pub(crate) catalog: Arc<Catalog>,
    state: Mutex<State>,
    pub(crate) wake: Notify,
    bindings: Arc<Semaphore>,
}

/// What to do for a pod after its cycle, outside of the lock.
enum Next {
    Nothing,
    Bind(Box<Bound>),
    TurnDown {
        pod: Arc<PodInfo>,
        plugins: BTreeSet<&'static str>,
        reason: &'static str,
        message: String,
        nomination: Nomination,
    },
}

/// What becomes of the node that a pod is nominated to.
pub(crate) enum Nomination {
    Keep,
    Withdraw,
    Make(Box<Eviction>),
}

/// Pods to remove from a node so that another one fits.
pub(crate) struct Eviction {
    pub node: String,
    pub victims: Vec<Arc<crate::snapshot::PlacedPod>>,
}

impl Scheduler {
    /// Sets up the handlers on the component's informers.
    pub fn new(
        informers: &Arc<Informers>,
        recorder: EventRecorder,
        options: Options,
    ) -> Result<Arc<Self>, ConfigError> {
        let catalog = Arc::new(Catalog::of_informers(Arc::clone(informers)));
        let profiles = options.config.profiles(&catalog)?;
        let queue = Queue::new(options.config.backoff());
        let state = State { cache: Cache::default(), queue, cycles: Cycles::new(options.seed) };
        let scheduler = Arc::new(Self {
            profiles,
            client: informers.client().clone(),
            recorder,
            waiting: Arc::default(),
            catalog,
            state: Mutex::new(state),
            wake: Notify::new(),
            bindings: Arc::new(Semaphore::new(MAX_BINDINGS)),
        });
        let on_node = Arc::clone(&scheduler);
        informers.informer::<Node>().add_handler(move |event| on_node.on_node(event));
        let on_namespace = Arc::clone(&scheduler);
        informers.informer::<Namespace>().add_handler(move |event| on_namespace.on_namespace(event));
        scheduler.watch_others(informers);
        let on_pod = Arc::clone(&scheduler);
        informers.informer::<Pod>().add_handler(move |event| on_pod.on_pod(event));
        Ok(scheduler)
    }

    /// Schedules until `stop`. The informers must have synced.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        loop {
            let batch = tokio::select! {
                () = stop.cancelled() => return,
                batch = self.next_batch() => batch,
            };
            for next in batch {
                self.carry_out(next).await;
            }
        }
    }

    /// Decides on the pods that are ready, up to a batch; waits while there is none.
    async fn next_batch(&self) -> Vec<Next> {
        loop {
            let notified = self.wake.notified();
            let mut batch = Vec::new();
            let due = {
                let mut state = self.lock();
                let now = self.now();
                while batch.len() < BATCH {
                    let Some(pod) = state.queue.pop(&self.profiles, now) else { break };
                    batch.push(self.schedule_pod(&mut state, pod));
                }
                state.queue.next_due().map(|at| at.saturating_sub(now))
            };
            if !batch.is_empty() {
                return batch;
            }
            match due {
                None => notified.await,
                Some(wait) => {
                    tokio::select! {
                        () = notified => {}
                        () = self.client.clock().sleep(wait) => {}
                    }
                }
            }
        }
    }

    fn schedule_pod(&self, state: &mut State, pod: Arc<PodInfo>) -> Next {
        let State { cache, queue, cycles } = state;
        let known = self.profiles.find(pod.scheduler_name());
        let Some((at, profile)) = known.filter(|_| !pod.leaving && !cache.is_assumed(pod.uid())) else {
            queue.remove(pod.uid());
            return Next::Nothing;
        };
        match cycles.schedule(at, profile, cache.snapshot(), &pod) {
            Outcome::Placed(node) => {
                let node = cache.snapshot().row(node).name().to_owned();
                cache.assume(&pod, &node);
                cache.nominate(&pod, None);
                self.reserve(cache, profile, pod, node)
            }
            Outcome::NoFit(mut diagnosis) => {
                let (mut room, mut withdraw) = (None, false);
                let work = cycles.work(at, pod.shape.id).filter(|_| diagnosis.nodes > 0);
                if let Some(work) = work {
                    let attempt =
                        Attempt { cluster: cache.snapshot(), pod: &pod, work, diagnosis: &diagnosis };
                    match make_room(profile, &attempt) {
                        Ok(found) => {
                            let node = cache.snapshot().row(found.node).name().to_owned();
                            diagnosis.post_filter = Some(found.words);
                            room = Some(Box::new(Eviction { node, victims: found.victims }));
                        }
                        Err(None) => {}
                        Err(Some(none)) => {
                            withdraw = none.withdraw && pod.nominated_node.is_some();
                            diagnosis.post_filter = Some(none.words);
                        }
                    }
                }
                if let Some(room) = &room {
                    cache.nominate(&pod, Some(&room.node));
                } else if withdraw {
                    cache.nominate(&pod, None);
                }
                let message = diagnosis.message();
                let plugins = if diagnosis.nodes == 0 {
                    // Any new node may help: every plugin listens to that.
                    profile.points.all.iter().map(|p| p.name()).collect()
                } else {
                    diagnosis.plugins
                };
                let nomination = room
                    .map_or(if withdraw { Nomination::Withdraw } else { Nomination::Keep }, Nomination::Make);
                Next::TurnDown { pod, plugins, reason: "Unschedulable", message, nomination }
            }
            Outcome::Failed(message) => Next::TurnDown {
                pod,
                plugins: BTreeSet::new(),
                reason: "SchedulerError",
                message,
                nomination: Nomination::Keep,
            },
        }
    }

    /// Reserve and Permit, on the assumed pod; taken back as a whole when one of them says no.
    fn reserve(&self, cache: &mut Cache, profile: &Profile, pod: Arc<PodInfo>, node: String) -> Next {
        let mut state = CycleState::default();
        let mut failed: Option<(&'static str, Status)> = None;
        for plugin in &profile.points.reserve {
            let status = plugin.reserve(&mut state, cache.snapshot(), &pod, &node);
            if !status.is_success() {
                failed = Some((plugin.name(), status));
                break;
            }
        }
        let mut waits: BTreeSet<&'static str> = BTreeSet::new();
        let mut patience = Duration::MAX;
        for plugin in &profile.points.permit {
            if failed.is_some() {
                break;
            }
            let (status, wait) = plugin.permit(&state, &pod, &node);
            match status.code {
                Code::Success | Code::Skip => {}
                Code::Wait => {
                    waits.insert(plugin.name());
                    patience = patience.min(wait);
                }
                _ => failed = Some((plugin.name(), status)),
            }
        }
        if let Some((plugin, status)) = failed {
            profile.points.reserve.iter().rev().for_each(|p| p.unreserve(&mut state, &pod, &node));
            cache.forget(pod.uid());
            let rejected = status.is_rejected();
            let plugins = if rejected { BTreeSet::from([plugin]) } else { BTreeSet::new() };
            let reason = if rejected { "Unschedulable" } else { "SchedulerError" };
            return Next::TurnDown {
                pod,
                plugins,
                reason,
                message: status.message(),
                nomination: Nomination::Keep,
            };
        }
        let permit = (!waits.is_empty()).then(|| (self.waiting.wait(pod.uid(), waits), patience));
        Next::Bind(Box::new(Bound { pod, node, state, permit }))
    }

    async fn carry_out(self: &Arc<Self>, next: Next) {
        match next {
            Next::Nothing => {}
            Next::Bind(bound) => {
                // A pod that waits for others or for its volumes must not keep others from being bound.
                let waits = bound.permit.is_some() || !bound.pod.footprint().claims.is_empty();
                let permit = if waits { None } else { Arc::clone(&self.bindings).acquire_owned().await.ok() };
                let scheduler = Arc::clone(self);
                tokio::spawn(async move {
                    scheduler.binding_cycle(*bound).await;
                    drop(permit);
                });
            }
            Next::TurnDown { pod, plugins, reason, message, nomination } => {
                self.turn_down(&pod, plugins, reason, message, nomination);
            }
        }
    }

    pub(crate) fn now(&self) -> Duration {
        self.client.clock().monotonic()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first room that a PostFilter plugin finds; otherwise what the last one of them said.
fn make_room(profile: &Profile, attempt: &Attempt) -> Result<Room, Option<NoRoom>> {
    let mut said = None;
    for plugin in &profile.points.post_filter {
        match plugin.post_filter(attempt) {
            Ok(room) => return Ok(room),
            Err(none) => said = Some(none),
        }
    }
    Err(said)
}
