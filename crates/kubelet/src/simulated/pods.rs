//! The pods of all simulated nodes: bound ones become Running, deleted ones go, some succeed after a while.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions};
use knarr_api::kind::{Kind, ObjectKey};
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Client, Informer, Lister, Patch, Result};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::addresses::Addresses;
use super::{CONCURRENCY, Options, RUN_SECONDS, objects};

struct Pods {
    options: Arc<Options>,
    client: Client,
    pods: Lister<Pod>,
    nodes: Lister<Node>,
    addresses: Mutex<Addresses>,
    queue: Arc<WorkQueue<ObjectKey>>,
}

/// What to do about one pod now.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Nothing,
    Wait(Duration),
    Run,
    Succeed,
    Remove,
}

pub async fn run(
    options: Arc<Options>,
    client: Client,
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    names: Arc<Vec<String>>,
    stop: CancellationToken,
) {
    let queue = WorkQueue::new(Arc::clone(client.clock()));
    let own: HashSet<String> = names.iter().cloned().collect();
    let state = Arc::new(Pods {
        options,
        client,
        pods: pods.lister(),
        nodes: nodes.lister(),
        addresses: Mutex::default(),
        queue: Arc::clone(&queue),
    });
    let (on_pod, gone) = (Arc::clone(&queue), Arc::clone(&state));
    pods.add_handler(move |event| {
        let pod = event.object();
        if pod.spec.as_ref().and_then(|s| s.node_name.as_ref()).is_some_and(|n| own.contains(n)) {
            if matches!(event, knarr_client::Event::Deleted(_)) {
                gone.lock_addresses().release(pod.uid());
            }
            on_pod.add(pod.key());
        }
    });
    let reconcile = move |key| {
        let state = Arc::clone(&state);
        async move { state.reconcile(key).await }
    };
    queue.run("simulated-pods", CONCURRENCY, stop, reconcile).await;
}

/// Decides by the pod's own times, so that a restart goes on where it was.
fn next_step(pod: &Pod, options: &Options, now: Timestamp) -> Step {
    let since = |then: Timestamp| Duration::try_from(now.duration_since(then)).unwrap_or_default();
    if let Some(deadline) = &pod.metadata.deletion_timestamp {
        let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(0).max(0);
        let begun = deadline.0.checked_sub(Duration::from_secs(grace.unsigned_abs())).unwrap_or(deadline.0);
        let wait =
            options.stop_latency.min(Duration::from_secs(grace.unsigned_abs())).saturating_sub(since(begun));
        return if wait.is_zero() { Step::Remove } else { Step::Wait(wait) };
    }
    match pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("Pending") {
        "Pending" => {
            let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref()).into_iter().flatten();
            let bound = conditions.filter(|c| c.type_ == "PodScheduled" && c.status == "True");
            let bound = bound.filter_map(|c| c.last_transition_time.as_ref()).map(|t| t.0).next();
            let wait = bound.map_or(Duration::ZERO, |at| options.start_latency.saturating_sub(since(at)));
            if wait.is_zero() { Step::Run } else { Step::Wait(wait) }
        }
        "Running" => {
            let annotation = pod.metadata.annotations.as_ref().and_then(|a| a.get(RUN_SECONDS));
            let Some(seconds) = annotation.and_then(|s| s.parse().ok()) else { return Step::Nothing };
            let started = objects::started_at(pod).unwrap_or(now);
            let left = Duration::from_secs(seconds).saturating_sub(since(started));
            if left.is_zero() { Step::Succeed } else { Step::Wait(left) }
        }
        _ => Step::Nothing,
    }
}

impl Pods {
    async fn reconcile(&self, key: ObjectKey) -> Result<()> {
        let Some(pod) = self.pods.get_key(&key) else { return Ok(()) };
        let now = self.client.clock().now();
        let result = match next_step(&pod, &self.options, now) {
            Step::Nothing => Ok(()),
            Step::Wait(delay) => {
                self.queue.add_after(key, delay);
                Ok(())
            }
            Step::Run => {
                let (host, ip) = self.addresses_of(&pod);
                self.report(&pod, json!({ "status": objects::running(&pod, host.as_deref(), ip, now) })).await
            }
            Step::Succeed => {
                let (host, ip) = self.addresses_of(&pod);
                self.report(&pod, json!({ "status": objects::succeeded(&pod, host.as_deref(), ip, now) }))
                    .await
            }
            Step::Remove => self.remove(&pod).await,
        };
        match result {
            Err(e) if e.is_not_found() || e.is_conflict() => Ok(()),
            other => other,
        }
    }

    fn addresses_of(&self, pod: &Pod) -> (Option<String>, Option<std::net::Ipv4Addr>) {
        let node_name = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or("");
        let Some(node) = self.nodes.get("", node_name) else { return (None, None) };
        let addresses = node.status.as_ref().and_then(|s| s.addresses.as_ref()).into_iter().flatten();
        let host = addresses.filter(|a| a.type_ == "InternalIP").map(|a| a.address.clone()).next();
        let prefix = node.spec.as_ref().and_then(|s| s.pod_cidr.as_deref());
        let ip = prefix.and_then(|prefix| self.lock_addresses().get(node_name, prefix, pod.uid()));
        (host, ip)
    }

    async fn report(&self, pod: &Pod, mut patch: serde_json::Value) -> Result<()> {
        patch["metadata"] = json!({ "uid": pod.uid() });
        let patch = Patch::Strategic(patch);
        self.client.patch::<Pod>(pod.namespace(), pod.name(), Some("status"), &patch).await.map(|_| ())
    }

    async fn remove(&self, pod: &Pod) -> Result<()> {
        let options = DeleteOptions {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid: pod.metadata.uid.clone(), resource_version: None }),
            ..DeleteOptions::default()
        };
        self.client.delete::<Pod>(pod.namespace(), pod.name(), &options).await
    }

    fn lock_addresses(&self) -> std::sync::MutexGuard<'_, Addresses> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::PodStatus;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn pod(phase: &str, started: i64, run_seconds: Option<&str>) -> Pod {
        let status = PodStatus {
            phase: Some(phase.into()),
            start_time: Some(Time(at(started))),
            ..PodStatus::default()
        };
        let mut pod = Pod { status: Some(status), ..Pod::default() };
        pod.metadata.annotations = run_seconds.map(|s| [(RUN_SECONDS.to_owned(), s.to_owned())].into());
        pod
    }

    #[test]
    fn a_pod_goes_through_its_life_by_the_clock() {
        let options = Options { stop_latency: Duration::from_secs(2), ..Options::default() };
        assert_eq!(next_step(&pod("Pending", 0, None), &options, at(100)), Step::Run);
        assert_eq!(next_step(&pod("Running", 0, None), &options, at(100)), Step::Nothing);
        assert_eq!(
            next_step(&pod("Running", 95, Some("10")), &options, at(100)),
            Step::Wait(Duration::from_secs(5))
        );
        assert_eq!(next_step(&pod("Running", 90, Some("10")), &options, at(100)), Step::Succeed);
        assert_eq!(next_step(&pod("Succeeded", 90, Some("10")), &options, at(100)), Step::Nothing);
        let mut deleted = pod("Running", 0, None);
        deleted.metadata.deletion_timestamp = Some(Time(at(130)));
        deleted.metadata.deletion_grace_period_seconds = Some(30);
        assert_eq!(next_step(&deleted, &options, at(100)), Step::Wait(Duration::from_secs(2)));
        assert_eq!(next_step(&deleted, &options, at(102)), Step::Remove);
    }
}
