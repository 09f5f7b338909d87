//! Scheduler and kubelets in one: pods get nodes, start, end and go, each at its time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions, Time};
use knarr_api::kind::Kind;
use knarr_testing::FakeApi;
use std::sync::Arc;

use crate::objects::{NAMESPACE, NODES};

/// One container of a pod failing in this many of a job's.
const FAILING: f64 = 0.2;

pub struct Node {
    rng: fastrand::Rng,
    /// When the next thing happens to a pod, by uid.
    due: BTreeMap<String, Duration>,
    /// Pods of jobs by their end.
    pub succeeded: BTreeSet<String>,
    pub failed: BTreeSet<String>,
    /// Processes that run: uids by the pod's name.
    pub running: BTreeMap<String, BTreeSet<String>>,
}

pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("")
}

pub fn app(pod: &Pod) -> &str {
    pod.metadata.labels.as_ref().and_then(|l| l.get("app")).map_or("", String::as_str)
}

pub fn is_active(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none() && !matches!(phase(pod), "Succeeded" | "Failed")
}

pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    is_active(pod) && conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
}

/// The node that a DaemonSet's pod is for.
fn bound_to(pod: &Pod) -> Option<String> {
    let affinity = pod.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()?;
    let required = affinity.required_during_scheduling_ignored_during_execution.as_ref()?;
    required.node_selector_terms.first()?.match_fields.as_ref()?.first()?.values.as_ref()?.first().cloned()
}

impl Node {
    pub fn new(rng: fastrand::Rng) -> Self {
        Self {
            rng,
            due: BTreeMap::new(),
            succeeded: BTreeSet::new(),
            failed: BTreeSet::new(),
            running: BTreeMap::new(),
        }
    }

    pub async fn tick(&mut self, api: &Arc<FakeApi>, now: Duration) {
        let pods = api.all::<Pod>();
        let there: BTreeSet<&str> = pods.iter().map(|p| p.uid()).collect();
        self.due.retain(|uid, _| there.contains(uid.as_str()));
        for uids in self.running.values_mut() {
            uids.retain(|uid| there.contains(uid.as_str()));
        }
        for pod in &pods {
            let wait = Duration::from_secs_f64(0.1 + self.rng.f64() * 3.0);
            let due = *self.due.entry(pod.uid().to_owned()).or_insert(now + wait);
            if due > now {
                continue;
            }
            self.due.insert(pod.uid().to_owned(), now + wait);
            self.advance(api, pod).await;
        }
    }

    async fn advance(&mut self, api: &Arc<FakeApi>, pod: &Pod) {
        let (name, uid) = (pod.name(), pod.uid().to_owned());
        let node = pod.spec.as_ref().and_then(|s| s.node_name.clone());
        if pod.metadata.deletion_timestamp.is_some() {
            self.end(api, pod, &uid).await;
        } else if node.is_none() {
            let node = bound_to(pod).unwrap_or_else(|| NODES[self.rng.usize(..NODES.len())].to_owned());
            api.edit::<Pod>(NAMESPACE, name, |p| p.spec.get_or_insert_default().node_name = Some(node));
        } else if !matches!(phase(pod), "Running" | "Succeeded" | "Failed") {
            self.running.entry(name.to_owned()).or_default().insert(uid);
            set(api, name, "Running", true);
        } else if phase(pod) == "Running" && app(pod) == "batch" {
            let fails = self.rng.f64() < FAILING;
            if fails {
                self.failed.insert(uid)
            } else {
                self.succeeded.insert(uid)
            };
            set(api, name, if fails { "Failed" } else { "Succeeded" }, false);
        }
    }

    /// A pod that is being deleted stops, tells how it ended, and goes.
    async fn end(&mut self, api: &Arc<FakeApi>, pod: &Pod, uid: &str) {
        if app(pod) == "batch" && phase(pod) == "Running" {
            self.failed.insert(uid.to_owned());
            return set(api, pod.name(), "Failed", false);
        }
        if let Some(uids) = self.running.get_mut(pod.name()) {
            uids.remove(uid);
        }
        let options = DeleteOptions {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None }),
            ..DeleteOptions::default()
        };
        // It may have gone meanwhile.
        let _ = api.client().delete::<Pod>(NAMESPACE, pod.name(), &options).await;
    }
}

fn set(api: &Arc<FakeApi>, name: &str, phase: &str, ready: bool) {
    let now = Time(api.client().clock().now());
    api.edit::<Pod>(NAMESPACE, name, |pod| {
        let status = pod.status.get_or_insert_default();
        status.phase = Some(phase.to_owned());
        status.start_time.get_or_insert(now.clone());
        status.conditions = Some(vec![PodCondition {
            type_: "Ready".to_owned(),
            status: if ready { "True" } else { "False" }.to_owned(),
            last_transition_time: Some(now),
            ..PodCondition::default()
        }]);
    });
}
