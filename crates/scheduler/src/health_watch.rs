//! Feeds observed pod starts and node failures to [`Health`](crate::health::Health), and publishes its results as node
//! conditions, events and metrics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use knarr_api::kind::Kind;
use knarr_client::Patch;
use knarr_client::events::EventType;
use serde_json::json;

use crate::framework::{Action, Changed, ClusterEvent, Resource};
use crate::health::breaker::Trust;
use crate::health::observe::{Start, is_of_daemon_set, owner, start, suspect};
use crate::metrics::Metric;
use crate::plugins::workload_hold::RELEASE;
use crate::scheduler::{Scheduler, State};

/// The condition of nodes on which pods of several owners failed to start.
pub(crate) const CONDITION: &str = "PodsFailToStart";
const MIRROR: &str = "kubernetes.io/config.mirror";
/// A pod that is deleted after this many seconds without having started counts as failed.
const STUCK_SECONDS: i64 = 120;

impl Scheduler {
    /// The wall clock time since the Unix epoch.
    fn wall(&self) -> Duration {
        Duration::from_secs(u64::try_from(self.client.clock().now().as_second()).unwrap_or(0))
    }

    /// How long until the state of a node or workload changes by the passage of time alone.
    pub(crate) fn health_due(&self) -> Option<Duration> {
        self.health.next_due().map(|at| at.saturating_sub(self.wall()).max(Duration::from_secs(1)))
    }

    /// Applies the changes that are due by now.
    pub(crate) fn health_tick(&self, state: &mut State) {
        let now = self.wall();
        if self.health.next_due().is_none_or(|due| due > now) {
            return;
        }
        let (nodes, released) = self.health.tick(now);
        nodes.iter().for_each(|node| self.publish_trust(state, node));
        if released || !nodes.is_empty() {
            self.health_changed(state);
        }
    }

    /// Retries pods that were kept back, since they may fit now, and updates the metrics.
    fn health_changed(&self, state: &mut State) {
        let happened = ClusterEvent::new(Resource::Any, Action::ALL);
        state.queue.on_event(&self.profiles, happened, &Changed::default(), self.now());
        let avoided = self.health.distrusted();
        let avoided = avoided.iter().filter(|(_, t)| matches!(t, Trust::Avoided { .. })).count();
        self.metrics.set(Metric::AvoidedNodes, &[], avoided as f64);
        self.metrics.set(Metric::HeldWorkloads, &[], self.health.count_held() as f64);
    }

    /// Records the outcome when a pod on a node has started or failed to start.
    pub(crate) fn observe_start(&self, state: &mut State, old: Option<&Arc<Pod>>, pod: &Pod) {
        self.release_on_request(state, pod);
        // A pod whose earlier state is unknown shows no transition.
        let Some(old) = old else { return };
        let (before, after) = (start(old), start(pod));
        if before == after || after == Start::Open {
            return;
        }
        let Some(node) = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()) else { return };
        let now = self.wall();
        let changed = if after == Start::Failed {
            self.health.observe(node, &suspect(pod), pod.uid(), true, now)
        } else {
            for container in pod.spec.iter().flat_map(|s| &s.containers) {
                self.health.vouch(&format!("image:{}", container.image.as_deref().unwrap_or_default()), now);
            }
            self.health.observe(node, &owner(pod), pod.uid(), false, now)
        };
        if changed {
            self.publish_trust(state, node);
            self.health_changed(state);
        }
    }

    /// Records that a pod on a node was deleted.
    pub(crate) fn observe_gone(&self, state: &mut State, pod: &Pod) {
        let Some(node) = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()) else { return };
        let (now, began) = (self.wall(), pod.status.as_ref().and_then(|s| s.start_time.as_ref()));
        let waited = began.map_or(0, |t| now.as_secs() as i64 - t.0.as_second());
        let stuck = start(pod) == Start::Open && waited >= STUCK_SECONDS;
        let mut changed = stuck && self.health.observe(node, &owner(pod), pod.uid(), true, now);
        changed |= self.health.withdraw(node, pod.uid());
        if changed {
            self.publish_trust(state, node);
            self.health_changed(state);
        }
    }

    /// Releases a held workload when one of its pods has the annotation `RELEASE`.
    pub(crate) fn release_on_request(&self, state: &mut State, pod: &Pod) {
        let asked = pod.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(RELEASE));
        if asked && self.health.release(&owner(pod)) {
            self.recorder.event(pod, EventType::Normal, "WorkloadReleased", "Scheduled again on request");
            self.health_changed(state);
        }
    }

    /// Records a node that stopped being ready, with the workloads that had pods on it.
    pub(crate) fn observe_node(&self, state: &mut State, old: &Node, node: &Node) {
        if !self.health.is_enabled() || !is_ready(old) || is_ready(node) {
            return;
        }
        let mut owners: BTreeMap<String, Duration> = BTreeMap::new();
        let there = state.cache.snapshot().named(node.name()).map(|row| row.pods.clone()).unwrap_or_default();
        for placed in there {
            let Some(pod) = self.catalog.get::<Pod>(placed.namespace(), &placed.name) else { continue };
            let mirror = pod.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(MIRROR));
            if mirror || is_of_daemon_set(&pod) {
                continue;
            }
            let began = pod.status.as_ref().and_then(|s| s.start_time.as_ref());
            let came = began.or(pod.metadata.creation_timestamp.as_ref()).map_or(0, |t| t.0.as_second());
            let came = Duration::from_secs(u64::try_from(came).unwrap_or(0));
            let newest = owners.entry(owner(&pod)).or_default();
            *newest = came.max(*newest);
        }
        let owners: Vec<_> = owners.into_iter().collect();
        let held = self.health.node_fell(node.name(), &owners, self.wall());
        for (owner, held) in &held {
            self.metrics.add(Metric::WorkloadHolds, &[], 1.0);
            let text = format!(
                "Pods of {owner} are held back: nodes {} stopped being ready one after another with them",
                held.nodes.join(", ")
            );
            tracing::warn!("{text}");
            self.recorder.event(node, EventType::Warning, "WorkloadHeldBack", text);
        }
        if !held.is_empty() {
            self.health_changed(state);
        }
    }

    /// Publishes the trust in a node, in its condition and in an event.
    fn publish_trust(&self, state: &State, name: &str) {
        let Some(row) = state.cache.snapshot().named(name) else { return };
        let node = Arc::clone(&row.node);
        let conditions = node.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
        let has_condition = conditions.iter().any(|c| c.type_ == CONDITION && c.status == "True");
        let (status, reason, text) = match self.health.trust(name) {
            Trust::Avoided { times, .. } => {
                self.metrics.add(Metric::BreakerTrips, &[], 1.0);
                let text = if times > 1 {
                    "the pod that tried failed to start, too; no further pods for now"
                } else {
                    "pods of several owners failed to start; no further pods for now"
                };
                self.recorder.event(&*node, EventType::Warning, CONDITION, text);
                ("True", "SeveralOwnersFailed", text)
            }
            Trust::Trial { .. } => {
                self.recorder.event(&*node, EventType::Normal, "PodStartTrial", "One pod may try to start");
                return;
            }
            Trust::Full | Trust::Less if has_condition => {
                self.recorder.event(&*node, EventType::Normal, "PodsStart", "Pods start again");
                ("False", "PodsStart", "pods start again")
            }
            Trust::Full | Trust::Less => return,
        };
        let now = json!(Time(self.client.clock().now()));
        let condition = json!({"type": CONDITION, "status": status, "reason": reason, "message": text,
            "lastHeartbeatTime": now, "lastTransitionTime": now});
        let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
        let (client, name) = (self.client.clone(), name.to_owned());
        self.background.run(async move {
            if let Err(error) = client.patch::<Node>("", &name, Some("status"), &patch).await
                && !error.is_not_found()
            {
                tracing::warn!(node = %name, %error, "failed to write the condition");
            }
        });
    }
}

fn is_ready(node: &Node) -> bool {
    let mut conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions.any(|c| c.type_ == "Ready" && c.status == "True")
}
