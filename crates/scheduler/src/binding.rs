//! The binding cycle, and the handling of unschedulable pods: everything that the scheduler writes to the API.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use knarr_client::Patch;
use knarr_client::events::EventType;
use serde_json::json;
use tokio::sync::oneshot;

use crate::framework::{Action, Changed, ClusterEvent, Code, CycleState, PodInfo, Profile, Resource, Status};
use crate::metrics::{Metric, code_name};
use crate::scheduler::{Nomination, Scheduler};
use crate::snapshot::PlacedPod;

/// A pod with the node that is reserved for it.
pub(crate) struct Bound {
    pub pod: Arc<PodInfo>,
    pub node: String,
    pub state: CycleState,
    /// Set while Permit plugins make the pod wait: receives their answer, with the longest time to wait for it.
    pub permit: Option<(oneshot::Receiver<(&'static str, Status)>, Duration)>,
    /// When the scheduling attempt began.
    pub begun: Duration,
    /// The node in the pod's `status.nominatedNodeName`.
    pub nominated: Option<Box<str>>,
}

/// The pod or pod group that victims are preempted for.
pub(crate) struct Preemptor {
    pub scheduler_name: String,
    /// `pod` or `podgroup`.
    pub kind: &'static str,
    pub uid: String,
}

impl Preemptor {
    fn of(pod: &PodInfo) -> Self {
        let scheduler_name = pod.scheduler_name().to_owned();
        Self { scheduler_name, kind: "pod", uid: pod.uid.to_string() }
    }
}

/// Why a pod was not bound.
enum Unbound {
    /// The plugins that rejected the pod and their message; no plugins when an error occurred.
    Refused(BTreeSet<&'static str>, String),
    /// The lease was lost: another scheduler may have decided about the pod already.
    LeaseLost,
}

fn refused<T>(plugin: &'static str, status: &Status) -> Result<T, Unbound> {
    let plugins = if status.is_rejected() { BTreeSet::from([plugin]) } else { BTreeSet::new() };
    Err(Unbound::Refused(plugins, status.message()))
}

impl Scheduler {
    /// Waits for Permit, then runs PreBind, Bind and PostBind. Takes everything back when one of them fails.
    pub(crate) async fn binding_cycle(self: &Arc<Self>, mut bound: Bound) {
        let Some((_, profile)) = self.profiles.find(bound.pod.scheduler_name()) else { return };
        match self.try_bind(profile, &mut bound).await {
            Ok(()) => {
                self.count_bound(profile, &bound);
                let (pod, node) = (&bound.pod, &bound.node);
                let begun = self.now();
                for plugin in &profile.points.post_bind {
                    let began = self.now();
                    plugin.post_bind(pod, node);
                    self.metrics.sampled(&bound.state, "PostBind", plugin.name(), Code::Success, began);
                }
                self.metrics.point("PostBind", &profile.scheduler_name, Code::Success, begun);
                let text = format!("Successfully assigned {}/{} to {node}", pod.namespace(), pod.name);
                let recorder = self.recorder.as_component(pod.scheduler_name());
                recorder.event_about(pod.reference(), EventType::Normal, "Scheduled", text);
            }
            Err(unbound) => {
                let Bound { pod, node, mut state, nominated, begun, .. } = bound;
                self.unreserve(profile, &mut state, &pod, &node);
                let (plugins, error) = match unbound {
                    Unbound::Refused(plugins, error) if !self.is_over() => (plugins, error),
                    // The pod was not rejected: the next scheduler finds it unchanged.
                    _ => return,
                };
                let result = if plugins.is_empty() { "error" } else { "unschedulable" };
                self.count(profile, Some(result), begun);
                let reason = if plugins.is_empty() { "SchedulerError" } else { "Unschedulable" };
                {
                    let mut state = self.lock();
                    state.cache.forget(pod.uid());
                    // The pod's resources are free again, as if the pod had been deleted.
                    let freed = ClusterEvent::new(Resource::AssignedPod, Action::DELETE);
                    let gone = Changed::of::<Pod>(Some(Arc::new(pod.pod().clone())), None);
                    state.queue.on_event(&self.profiles, freed, &gone, self.now());
                }
                let nomination = if nominated.is_some() { Nomination::Withdraw } else { Nomination::Keep };
                self.turn_down(&pod, plugins, reason, error, nomination);
            }
        }
    }

    /// Removes the bound pod from the queue and records the metrics of its scheduling.
    fn count_bound(&self, profile: &Profile, bound: &Bound) {
        let record = {
            let mut state = self.lock();
            let record = state.queue.record(bound.pod.uid());
            state.queue.remove(bound.pod.uid());
            record
        };
        self.count(profile, Some("scheduled"), bound.begun);
        let Some(record) = record else { return };
        let attempts = if record.attempts >= 15 { "15+".to_owned() } else { record.attempts.to_string() };
        self.metrics.since(Metric::SliDuration, &[&attempts], record.first);
        self.metrics.record(Metric::PodAttempts, &[], f64::from(record.attempts));
        if record.flushed {
            self.metrics.add(Metric::ScheduledAfterFlush, &[], 1.0);
        }
    }

    /// Returns whether this scheduler is ending, or no longer holds the lease (and will be informed of that soon).
    fn is_over(&self) -> bool {
        self.background.is_ending() || !self.client.holds_lease()
    }

    /// Checks the lease. Called right before each write, because another leader also decides about the pod.
    fn still_leads(&self) -> Result<(), Unbound> {
        if self.client.holds_lease() { Ok(()) } else { Err(Unbound::LeaseLost) }
    }

    async fn try_bind(&self, profile: &Profile, bound: &mut Bound) -> Result<(), Unbound> {
        let skipped = self.announce_node(profile, bound).await?;
        let (pod, node) = (&*bound.pod, bound.node.as_str());
        if let Some((answer, patience)) = bound.permit.take() {
            let begun = self.now();
            let answered = tokio::select! {
                biased;
                answered = answer => answered.ok(),
                () = self.background.ending() => Some(("", Status::error("context canceled"))),
                () = self.client.clock().sleep(patience) => None,
            };
            let timeout = || ("", Status::unschedulable("rejected due to timeout after waiting"));
            let (plugin, status) = answered.unwrap_or_else(timeout);
            self.metrics.since(Metric::PermitWait, &[code_name(status.code)], begun);
            if !status.is_success() {
                self.waiting.reject(pod.uid(), plugin, status.clone());
                return refused(plugin, &status);
            }
        }
        let name = profile.scheduler_name.as_str();
        let begun = self.now();
        for plugin in profile.points.pre_bind.iter().filter(|p| !skipped.contains(p.name())) {
            self.still_leads()?;
            let began = self.now();
            let status = plugin.pre_bind(&self.client, &bound.state, pod, node).await;
            self.metrics.sampled(&bound.state, "PreBind", plugin.name(), status.code, began);
            if !status.is_success() && !status.is_skip() {
                self.metrics.point("PreBind", name, status.code, begun);
                return refused(plugin.name(), &status);
            }
        }
        self.metrics.point("PreBind", name, Code::Success, begun);
        self.still_leads()?;
        if let Some(bound) = self.extenders.bind(&**self.client.clock(), pod, node).await {
            return bound.map_err(|error| Unbound::Refused(BTreeSet::new(), crate::extender::chain(&error)));
        }
        let begun = self.now();
        for plugin in &profile.points.bind {
            self.still_leads()?;
            let began = self.now();
            let status = plugin.bind(&self.client, pod, node).await;
            self.metrics.sampled(&bound.state, "Bind", plugin.name(), status.code, began);
            self.metrics.point("Bind", name, status.code, begun);
            match status.code {
                Code::Success => return Ok(()),
                Code::Skip => {}
                _ => return refused(plugin.name(), &status),
            }
        }
        Err(Unbound::Refused(BTreeSet::new(), "no plugin bound the pod".to_owned()))
    }

    /// Runs PreBindPreFlight to find the plugins that have work to do in PreBind. Where that work, or waiting for
    /// Permit, may take a while, publishes the node in `status.nominatedNodeName`. Returns the plugins that have
    /// nothing to do.
    async fn announce_node(
        &self,
        profile: &Profile,
        bound: &mut Bound,
    ) -> Result<BTreeSet<&'static str>, Unbound> {
        let (pod, node) = (&*bound.pod, bound.node.as_str());
        let mut skipped = BTreeSet::new();
        let (name, begun) = (profile.scheduler_name.as_str(), self.now());
        for plugin in &profile.points.pre_bind {
            let began = self.now();
            let status = plugin.pre_flight(&bound.state, pod, node);
            self.metrics.sampled(&bound.state, "PreBindPreFlight", plugin.name(), status.code, began);
            if status.is_skip() {
                skipped.insert(plugin.name());
            } else if !status.is_success() {
                self.metrics.point("PreBindPreFlight", name, Code::Error, begun);
                let why = format!("running PreBindPreFlight {:?}: {}", plugin.name(), status.message());
                return Err(Unbound::Refused(BTreeSet::new(), why));
            }
        }
        let works = skipped.len() < profile.points.pre_bind.len();
        let code = if works { Code::Success } else { Code::Skip };
        self.metrics.point("PreBindPreFlight", name, code, begun);
        if (works || bound.permit.is_some()) && bound.nominated.as_deref() != Some(node) {
            self.still_leads()?;
            let patch = Patch::Strategic(json!({"status": {"nominatedNodeName": node}}));
            match self.client.patch::<Pod>(pod.namespace(), &pod.name, Some("status"), &patch).await {
                Ok(_) => bound.nominated = Some(node.into()),
                Err(error) => tracing::warn!(pod = %pod.name, %error, "failed to write the nominated node"),
            }
        }
        Ok(skipped)
    }

    /// Puts the pod back into the queue, and reports why in an event and in the PodScheduled condition. Evicts the
    /// victims where preemption found a node.
    pub(crate) fn turn_down(
        self: &Arc<Self>,
        pod: &Arc<PodInfo>,
        plugins: BTreeSet<&'static str>,
        reason: &'static str,
        message: String,
        nomination: Nomination,
    ) {
        {
            let now = self.now();
            self.lock().queue.reject(&self.profiles, pod.uid(), plugins, now);
        }
        self.wake.notify_one();
        let recorder = self.recorder.as_component(pod.scheduler_name());
        recorder.event_about(pod.reference(), EventType::Warning, "FailedScheduling", message.clone());
        let is_current = pod.said.as_deref().is_some_and(|(r, m)| r == reason && *m == message);
        if is_current && matches!(nomination, Nomination::Keep) {
            return;
        }
        let scheduler = Arc::clone(self);
        let pod = Arc::clone(pod);
        self.background.run(async move {
            {
                let _turn = tokio::select! {
                    biased;
                    () = scheduler.background.ending() => return,
                    turn = scheduler.conditions.acquire() => turn,
                };
                if !scheduler.client.holds_lease() {
                    return;
                }
                scheduler.write_condition(&pod, reason, &message, &nomination).await;
            }
            if let Nomination::Make(room) = nomination {
                scheduler.free(&room.freed).await;
                let preemptor = Preemptor::of(&pod);
                scheduler.evict(&preemptor, &room.victims, &room.node).await;
            }
        });
    }

    async fn write_condition(&self, pod: &PodInfo, reason: &str, message: &str, nomination: &Nomination) {
        let now = json!(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(self.client.clock().now()));
        let condition = json!({"type": "PodScheduled", "status": "False", "reason": reason, "message": message,
            "lastProbeTime": null, "lastTransitionTime": now, "observedGeneration": pod.generation});
        let mut status = json!({"conditions": [condition]});
        match nomination {
            Nomination::Keep => {}
            Nomination::Withdraw => status["nominatedNodeName"] = json!(null),
            Nomination::Set(node) => status["nominatedNodeName"] = json!(node),
            Nomination::Make(room) => status["nominatedNodeName"] = json!(room.node),
        }
        let patch = Patch::Strategic(json!({ "status": status }));
        let sent = self.client.patch::<Pod>(pod.namespace(), &pod.name, Some("status"), &patch).await;
        if let Err(error) = sent
            && !error.is_not_found()
        {
            tracing::warn!(pod = %pod.name, %error, "failed to write the condition");
        }
    }

    /// Clears `status.nominatedNodeName` of these pods.
    async fn free(&self, pods: &[Arc<PlacedPod>]) {
        for freed in pods {
            if !self.client.holds_lease() {
                return;
            }
            let patch = Patch::Strategic(json!({"status": {"nominatedNodeName": null}}));
            let sent = self.client.patch::<Pod>(freed.namespace(), &freed.name, Some("status"), &patch).await;
            if let Err(error) = sent
                && !error.is_not_found()
            {
                tracing::warn!(pod = %freed.name, %error, "failed to clear the nominated node");
            }
        }
    }

    /// Deletes the victims, after writing the reason into their DisruptionTarget condition, and emits Preempted events.
    pub(crate) async fn evict(&self, preemptor: &Preemptor, victims: &[Arc<PlacedPod>], place: &str) {
        let begun = self.metrics.now();
        let mut result = "success";
        for victim in victims {
            // A victim that waits for Permit is not deleted: it goes back to the queue.
            let refusal = Status::unschedulable("preempted");
            if self.waiting.reject(&victim.uid, "DefaultPreemption", refusal) {
                continue;
            }
            if !self.client.holds_lease() {
                return;
            }
            let now = json!(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(self.client.clock().now()));
            let message = format!(
                "{}: preempting to accommodate a higher priority {}",
                preemptor.scheduler_name, preemptor.kind
            );
            let condition = json!({"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
                "message": message, "lastProbeTime": null, "lastTransitionTime": now,
                "observedGeneration": victim.generation});
            let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
            let (namespace, name) = (victim.namespace(), &*victim.name);
            let marked = self.client.patch::<Pod>(namespace, name, Some("status"), &patch).await;
            let deleted = match marked {
                Ok(_) => self.client.delete::<Pod>(namespace, name, &Default::default()).await.map(drop),
                Err(error) => Err(error),
            };
            match deleted {
                Err(error) if !error.is_not_found() => {
                    result = "error";
                    tracing::warn!(pod = %victim.name, %error, "failed to delete the victim");
                }
                Err(_) => {}
                Ok(()) => {
                    let about = k8s_openapi::api::core::v1::ObjectReference {
                        api_version: Some("v1".to_owned()),
                        kind: Some("Pod".to_owned()),
                        namespace: Some(namespace.to_owned()),
                        name: Some(name.to_owned()),
                        uid: Some(victim.uid.to_string()),
                        ..Default::default()
                    };
                    let text = format!("Preempted by {} {} on node {place}", preemptor.kind, preemptor.uid);
                    let recorder = self.recorder.as_component(&preemptor.scheduler_name);
                    recorder.event_about(about, EventType::Normal, "Preempted", text);
                }
            }
        }
        self.metrics.add(Metric::PreemptionExecutions, &[result], 1.0);
        self.metrics.since(Metric::PreemptionRemoval, &[result], begun);
        self.metrics.since(Metric::PreemptionExecution, &[preemptor.kind, result], begun);
    }
}
