//! The shell around the scheduling cycle: informers in, bindings, conditions and events out.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::{Node, Pod};
use knarr_api::kind::Kind;
use knarr_client::events::{EventRecorder, EventType};
use knarr_client::{Client, Event, Informers, Patch};
use serde_json::json;
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::cache::{Cache, is_terminal};
use crate::cluster_events::{assigned_pod_update, node_update};
use crate::framework::{ClusterEvent, Code, CycleState, EventObject, PodInfo, Profile};
use crate::queue::Queue;
use crate::schedule_one::{Cycle, Outcome, schedule};

/// Bindings under way at once.
const MAX_BINDINGS: usize = 512;

/// How a scheduler runs.
pub struct Options {
    pub scheduler_name: String,
    /// `percentageOfNodesToScore`; 0 is adaptive.
    pub percentage_of_nodes_to_score: usize,
    /// Seeds the choice among equals.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { scheduler_name: "default-scheduler".to_owned(), percentage_of_nodes_to_score: 0, seed: 0 }
    }
}

struct State {
    cache: Cache,
    queue: Queue,
    cycle: Cycle,
}

/// Schedules the pods that name this scheduler.
pub struct Scheduler {
    profile: Profile,
    client: Client,
    recorder: EventRecorder,
    state: Mutex<State>,
    wake: Notify,
    bindings: Arc<Semaphore>,
}

impl Scheduler {
    /// Sets up the handlers on the component's informers.
    pub fn new(informers: &Informers, recorder: EventRecorder, options: Options) -> Arc<Self> {
        let cycle = Cycle {
            start: 0,
            percentage: options.percentage_of_nodes_to_score,
            rng: fastrand::Rng::with_seed(options.seed),
        };
        let scheduler = Arc::new(Self {
            profile: Profile::default_profile(&options.scheduler_name),
            client: informers.client().clone(),
            recorder,
            state: Mutex::new(State { cache: Cache::default(), queue: Queue::default(), cycle }),
            wake: Notify::new(),
            bindings: Arc::new(Semaphore::new(MAX_BINDINGS)),
        });
        let on_node = Arc::clone(&scheduler);
        informers.informer::<Node>().add_handler(move |event| on_node.on_node(event));
        let on_pod = Arc::clone(&scheduler);
        informers.informer::<Pod>().add_handler(move |event| on_pod.on_pod(event));
        scheduler
    }

    /// Schedules until `stop`. The informers must have synced.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        loop {
            let pod = tokio::select! {
                () = stop.cancelled() => return,
                pod = self.next() => pod,
            };
            self.schedule_pod(pod).await;
        }
    }

    async fn next(&self) -> Arc<PodInfo> {
        loop {
            let notified = self.wake.notified();
            let due = {
                let mut state = self.lock();
                let now = self.client.clock().monotonic();
                if let Some(popped) = state.queue.pop(&self.profile, now) {
                    return popped;
                }
                state.queue.next_due().map(|at| at.saturating_sub(now))
            };
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

    async fn schedule_pod(self: &Arc<Self>, pod: Arc<PodInfo>) {
        let outcome = {
            let mut state = self.lock();
            let State { cache, queue, cycle } = &mut *state;
            if pod.pod.meta().deletion_timestamp.is_some() || cache.is_assumed(pod.uid()) {
                return queue.remove(pod.uid());
            }
            let outcome = schedule(&self.profile, cache.nodes(), &pod, cycle);
            if let Outcome::Placed { node, .. } = &outcome {
                cache.assume(&pod, node);
            }
            outcome
        };
        match outcome {
            Outcome::Placed { node, state } => {
                let Ok(permit) = Arc::clone(&self.bindings).acquire_owned().await else { return };
                let scheduler = Arc::clone(self);
                tokio::spawn(async move {
                    scheduler.binding_cycle(pod, node, state).await;
                    drop(permit);
                });
            }
            Outcome::NoFit(diagnosis) => {
                let plugins = if diagnosis.nodes == 0 {
                    // Any new node may help: every plugin listens to that.
                    self.profile.points.all.iter().map(|p| p.name()).collect()
                } else {
                    diagnosis.plugins.clone()
                };
                self.turn_down(pod, plugins, "Unschedulable", diagnosis.message());
            }
            Outcome::Failed(error) => self.turn_down(pod, BTreeSet::new(), "SchedulerError", error),
        }
    }

    /// Reserve, permit, pre-bind, bind, post-bind; taken back as a whole when one of them fails.
    async fn binding_cycle(&self, pod: Arc<PodInfo>, node: String, mut state: CycleState) {
        match self.try_bind(&pod, &node, &mut state).await {
            Ok(()) => {
                self.lock().queue.remove(pod.uid());
                for plugin in &self.profile.points.post_bind {
                    plugin.post_bind(&pod, &node);
                }
                let text =
                    format!("Successfully assigned {}/{} to {node}", pod.pod.namespace(), pod.pod.name());
                self.recorder.event(&*pod.pod, EventType::Normal, "Scheduled", text);
            }
            Err((plugins, error)) => {
                for plugin in self.profile.points.reserve.iter().rev() {
                    plugin.unreserve(&mut state, &pod, &node);
                }
                self.lock().cache.forget(pod.uid());
                let reason = if plugins.is_empty() { "SchedulerError" } else { "Unschedulable" };
                self.turn_down(pod, plugins, reason, error);
            }
        }
    }

    async fn try_bind(
        &self,
        pod: &PodInfo,
        node: &str,
        state: &mut CycleState,
    ) -> Result<(), (BTreeSet<&'static str>, String)> {
        let failed = |plugin: &'static str, status: crate::framework::Status| {
            let plugins = if status.is_rejected() { BTreeSet::from([plugin]) } else { BTreeSet::new() };
            Err((plugins, status.message()))
        };
        for plugin in &self.profile.points.reserve {
            let status = plugin.reserve(state, pod, node);
            if !status.is_success() {
                return failed(plugin.name(), status);
            }
        }
        for plugin in &self.profile.points.permit {
            let (status, _) = plugin.permit(state, pod, node);
            if !status.is_success() {
                return failed(plugin.name(), status);
            }
        }
        for plugin in &self.profile.points.pre_bind {
            let status = plugin.pre_bind(&self.client, pod, node).await;
            if !status.is_success() {
                return failed(plugin.name(), status);
            }
        }
        for plugin in &self.profile.points.bind {
            let status = plugin.bind(&self.client, pod, node).await;
            match status.code {
                Code::Success => return Ok(()),
                Code::Skip => {}
                _ => return failed(plugin.name(), status),
            }
        }
        Err((BTreeSet::new(), "no plugin bound the pod".to_owned()))
    }

    /// Puts the pod back, and tells why through an event and the PodScheduled condition.
    fn turn_down(
        &self,
        info: Arc<PodInfo>,
        plugins: BTreeSet<&'static str>,
        reason: &'static str,
        message: String,
    ) {
        {
            let mut state = self.lock();
            let now = self.client.clock().monotonic();
            state.queue.reject(&self.profile, info.uid(), plugins, now);
        }
        self.wake.notify_one();
        let pod = Arc::clone(&info.pod);
        self.recorder.event(&*pod, EventType::Warning, "FailedScheduling", message.clone());
        let (client, now) = (self.client.clone(), self.client.clock().now());
        if already_says(&pod, reason, &message) {
            return;
        }
        let transition = json!(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now));
        let condition = json!({"type": "PodScheduled", "status": "False", "reason": reason, "message": message,
            "lastProbeTime": null, "lastTransitionTime": transition});
        tokio::spawn(async move {
            let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
            let sent = client.patch::<Pod>(pod.namespace(), pod.name(), Some("status"), &patch).await;
            if let Err(error) = sent
                && !error.is_not_found()
            {
                tracing::warn!(pod = %pod.key(), %error, "condition not written");
            }
        });
    }

    fn on_node(&self, event: &Event<Node>) {
        let now = self.client.clock().monotonic();
        let mut state = self.lock();
        let State { cache, queue, .. } = &mut *state;
        match event {
            Event::Added(node) => {
                cache.set_node(Arc::clone(node));
                let object = EventObject::Node { old: None, new: Some(Arc::clone(node)) };
                queue.on_event(&self.profile, ClusterEvent::NodeAdd, &object, now);
            }
            Event::Updated { old, new } => {
                cache.set_node(Arc::clone(new));
                let object = EventObject::Node { old: Some(Arc::clone(old)), new: Some(Arc::clone(new)) };
                for event in node_update(old, new) {
                    queue.on_event(&self.profile, event, &object, now);
                }
            }
            Event::Deleted(node) => {
                cache.remove_node(node.name());
                let object = EventObject::Node { old: Some(Arc::clone(node)), new: None };
                queue.on_event(&self.profile, ClusterEvent::NodeDelete, &object, now);
            }
        }
        drop(state);
        self.wake.notify_one();
    }

    fn on_pod(&self, event: &Event<Pod>) {
        let now = self.client.clock().monotonic();
        let mut state = self.lock();
        let State { cache, queue, .. } = &mut *state;
        match event {
            Event::Added(pod) => self.pod_is(cache, queue, None, pod, now),
            Event::Updated { old, new } => self.pod_is(cache, queue, Some(old), new, now),
            Event::Deleted(pod) => {
                queue.remove(pod.uid());
                cache.remove_pod(pod.uid());
                if is_assigned(pod) {
                    let object = EventObject::Pod { old: Some(Arc::clone(pod)), new: None };
                    queue.on_event(&self.profile, ClusterEvent::AssignedPodDelete, &object, now);
                }
            }
        }
        drop(state);
        self.wake.notify_one();
    }

    fn pod_is(
        &self,
        cache: &mut Cache,
        queue: &mut Queue,
        old: Option<&Arc<Pod>>,
        pod: &Arc<Pod>,
        now: std::time::Duration,
    ) {
        if is_assigned(pod) {
            queue.remove(pod.uid());
            cache.set_pod(Arc::clone(pod));
            let event = match old.filter(|old| is_assigned(old)) {
                None => Some(ClusterEvent::AssignedPodAdd),
                Some(old) => assigned_pod_update(old, pod),
            };
            if let Some(event) = event {
                let object = EventObject::Pod { old: old.cloned(), new: Some(Arc::clone(pod)) };
                queue.on_event(&self.profile, event, &object, now);
            }
            return;
        }
        let info = PodInfo::new(Arc::clone(pod));
        let waits = info.scheduler_name() == self.profile.scheduler_name
            && !is_terminal(pod)
            && pod.meta().deletion_timestamp.is_none();
        if waits && !cache.is_assumed(pod.uid()) {
            queue.set(&self.profile, info, now);
        } else if !waits {
            queue.remove(pod.uid());
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_assigned(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).is_some_and(|n| !n.is_empty())
}

/// Whether the pod's PodScheduled condition carries these words already.
fn already_says(pod: &Pod, reason: &str, message: &str) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref()).into_iter().flatten();
    conditions.filter(|c| c.type_ == "PodScheduled").any(|c| {
        c.status == "False" && c.reason.as_deref() == Some(reason) && c.message.as_deref() == Some(message)
    })
}
