//! Stops containers: events, preStop hooks, grace periods, and the order of containers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::{Container, Pod, Probe};
use knarr_apimachinery::clock::Clock;
use tokio::sync::watch;

use crate::compute_actions::KillReason;
use crate::events::Events;
use crate::hooks;
use crate::labels;
use crate::pod;
use crate::runtime::{ContainerRuntime, ContainerState, ContainerStatus, PodRuntimeStatus, Result};

/// The minimal grace period, so that every process can clean up.
const MIN_GRACE_SECONDS: i64 = 2;

/// The order of termination: main containers are stopped first, then sidecars from the last to the first.
struct Ordering {
    ended: BTreeMap<String, watch::Sender<bool>>,
    /// For each sidecar, the containers that must end before it.
    before: BTreeMap<String, Vec<watch::Receiver<bool>>>,
}

impl Ordering {
    fn new(pod: &Pod, running: &[&ContainerStatus]) -> Self {
        let runs = |name: &str| running.iter().any(|c| c.name == name);
        let (mut ended, mut before) = (BTreeMap::new(), BTreeMap::new());
        let mut waited_for: Vec<watch::Receiver<bool>> = Vec::new();
        let mut add = |name: &str, waited_for: &mut Vec<watch::Receiver<bool>>| {
            let (sender, receiver) = watch::channel(!runs(name));
            ended.insert(name.to_owned(), sender);
            waited_for.push(receiver);
        };
        for container in &pod::spec(pod).containers {
            add(&container.name, &mut waited_for);
        }
        for sidecar in pod::init_containers(pod).iter().rev().filter(|c| pod::is_sidecar(c)) {
            before.insert(sidecar.name.clone(), waited_for.clone());
            add(&sidecar.name, &mut waited_for);
        }
        Self { ended, before }
    }

    async fn wait_for_turn(&self, name: &str) {
        for receiver in self.before.get(name).into_iter().flatten() {
            let mut receiver = receiver.clone();
            // A dropped sender means that its container has ended.
            let _ = receiver.wait_for(|ended| *ended).await;
        }
    }

    fn note_end(&self, name: &str) {
        if let Some(sender) = self.ended.get(name) {
            sender.send_replace(true);
        }
    }
}

/// Stops containers of one runtime.
pub struct Terminator {
    pub runtime: Arc<dyn ContainerRuntime>,
    pub events: Events,
    pub clock: Arc<dyn Clock>,
}

/// Returns the grace period in seconds, by the pod and by the failed probe.
fn grace_seconds(pod: &Pod, container: &Container, reason: KillReason) -> i64 {
    if let Some(seconds) = pod.metadata.deletion_grace_period_seconds {
        return seconds;
    }
    let of = |probe: &Option<Probe>| probe.as_ref().and_then(|p| p.termination_grace_period_seconds);
    let own = match reason {
        KillReason::StartupProbe => of(&container.startup_probe),
        KillReason::LivenessProbe => of(&container.liveness_probe),
        KillReason::Unknown | KillReason::Resize | KillReason::FailedPostStartHook => None,
    };
    own.or(pod::spec(pod).termination_grace_period_seconds).unwrap_or(MIN_GRACE_SECONDS)
}

/// The container to kill, and why.
pub struct Kill<'a> {
    pub id: &'a str,
    pub name: &'a str,
    /// The message of the Killing event; empty for the usual one.
    pub message: &'a str,
    pub reason: KillReason,
    /// Replaces the pod's grace period, in seconds.
    pub grace_seconds: Option<i64>,
}

impl Terminator {
    /// Stops one container; returns when it has ended.
    pub async fn kill_container(&self, pod: &Pod, pod_ip: &str, kill: &Kill<'_>) -> Result<()> {
        self.kill(pod, pod_ip, kill, None).await
    }

    /// Stops all containers of the pod at the same time, but sidecars after the others.
    pub async fn kill_containers(
        &self,
        pod: &Pod,
        pod_ip: &str,
        runtime: &PodRuntimeStatus,
        grace_seconds: Option<i64>,
    ) -> Result<()> {
        let running: Vec<&ContainerStatus> =
            runtime.containers.iter().filter(|c| c.state == ContainerState::Running).collect();
        let ordering = pod::has_sidecars(pod).then(|| Ordering::new(pod, &running));
        let kills = running.iter().map(|c| {
            let ordering = ordering.as_ref();
            async move {
                let kill = Kill {
                    id: &c.id,
                    name: &c.name,
                    message: "",
                    reason: KillReason::Unknown,
                    grace_seconds,
                };
                self.kill(pod, pod_ip, &kill, ordering).await
            }
        });
        join_all(kills).await.into_iter().collect()
    }

    async fn kill(
        &self,
        pod: &Pod,
        pod_ip: &str,
        kill: &Kill<'_>,
        ordering: Option<&Ordering>,
    ) -> Result<()> {
        let Some((kind, container)) = pod::find_container(pod, kill.name) else {
            // The container is not in the spec any more: its hooks and grace period are not known.
            return self.runtime.stop_container(kill.id, MIN_GRACE_SECONDS as u64).await;
        };
        let message = match kill.message {
            "" => format!("Stopping container {}", kill.name),
            message => message.to_owned(),
        };
        let events = self.events.of(pod, kind, kill.name);
        events.normal("Killing", message);
        let grace = kill.grace_seconds.unwrap_or_else(|| grace_seconds(pod, &container, kill.reason));
        let started = self.clock.monotonic();
        let deadline = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
        let left = || deadline.saturating_sub(self.clock.monotonic().saturating_sub(started));

        if let Some(hook) = container.lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref())
            && !left().is_zero()
        {
            let run = hooks::run(self.runtime.as_ref(), kill.id, pod, &container, pod_ip, hook);
            tokio::select! {
                result = run => if let Err(error) = result {
                    tracing::debug!(pod = %pod::format(pod), container = kill.name, error, "preStop hook failed");
                    events.warning("FailedPreStopHook", "PreStopHook failed");
                },
                () = self.clock.sleep(left()) => {}
            }
        }
        if let Some(ordering) = ordering
            && !left().is_zero()
        {
            tokio::select! {
                () = ordering.wait_for_turn(kill.name) => {}
                () = self.clock.sleep(left()) => {}
            }
        }
        // The seconds are rounded up, so that the time spent in this process does not shorten the grace period.
        let seconds = left().as_millis().div_ceil(1000).max(MIN_GRACE_SECONDS as u128);
        let seconds = u64::try_from(seconds).unwrap_or(u64::MAX);
        let stopped = self.runtime.stop_container(kill.id, seconds).await;
        if let Some(ordering) = ordering {
            ordering.note_end(kill.name);
        }
        stopped
    }
}

/// Returns the grace period with which a container was started, for pods that the API does not have any more.
pub fn remembered_grace(status: &ContainerStatus) -> Option<i64> {
    status.annotations.get(labels::TERMINATION_GRACE_PERIOD)?.parse().ok()
}

/// Returns the grace period of a pod: that of its deletion, and never more than it was given before.
pub fn effective_grace(pod: &Pod, given_before: Option<i64>) -> i64 {
    let wanted = pod
        .metadata
        .deletion_grace_period_seconds
        .or(pod::spec(pod).termination_grace_period_seconds)
        .unwrap_or(MIN_GRACE_SECONDS);
    given_before.map_or(wanted, |before| before.min(wanted)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::PodSpec;

    #[test]
    fn grace_periods() {
        let with = |deletion: Option<i64>, spec: Option<i64>| {
            let spec = PodSpec { termination_grace_period_seconds: spec, ..PodSpec::default() };
            let mut pod = Pod { spec: Some(spec), ..Pod::default() };
            pod.metadata.deletion_grace_period_seconds = deletion;
            pod
        };
        let probe =
            |seconds| Some(Probe { termination_grace_period_seconds: Some(seconds), ..Probe::default() });
        let container = Container { liveness_probe: probe(5), ..Container::default() };
        for (deletion, spec, reason, expected) in [
            (None, Some(30), KillReason::Unknown, 30),
            (None, Some(30), KillReason::LivenessProbe, 5),
            (None, Some(30), KillReason::StartupProbe, 30),
            (Some(3), Some(30), KillReason::LivenessProbe, 3),
            (None, None, KillReason::Unknown, 2),
        ] {
            assert_eq!(grace_seconds(&with(deletion, spec), &container, reason), expected);
        }
        for (deletion, before, expected) in
            [(None, None, 30), (Some(10), None, 10), (Some(10), Some(5), 5), (Some(0), Some(30), 1)]
        {
            assert_eq!(effective_grace(&with(deletion, Some(30)), before), expected);
        }
    }

    #[tokio::test]
    async fn sidecars_wait_for_main_containers_and_later_sidecars() {
        let container = |name: &str, always: bool| Container {
            name: name.into(),
            restart_policy: always.then(|| "Always".to_owned()),
            ..Container::default()
        };
        let spec = PodSpec {
            containers: vec![container("main", false)],
            init_containers: Some(vec![container("a", true), container("init", false), container("b", true)]),
            ..PodSpec::default()
        };
        let pod = Pod { spec: Some(spec), ..Pod::default() };
        let status = |name: &str| ContainerStatus {
            id: name.into(),
            sandbox_id: String::new(),
            name: name.into(),
            attempt: 0,
            state: ContainerState::Running,
            created_at: jiff::Timestamp::UNIX_EPOCH,
            started_at: None,
            finished_at: None,
            exit_code: None,
            signal: None,
            reason: String::new(),
            message: String::new(),
            image: String::new(),
            image_id: String::new(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            log_path: std::path::PathBuf::new(),
            user: None,
        };
        let all = [status("main"), status("a"), status("b")];
        let ordering = Ordering::new(&pod, &all.iter().collect::<Vec<_>>());
        let waits = async |name: &str| {
            tokio::time::timeout(Duration::from_millis(10), ordering.wait_for_turn(name)).await.is_err()
        };
        assert!(!waits("main").await);
        assert!(waits("b").await && waits("a").await);
        ordering.note_end("main");
        assert!(!waits("b").await && waits("a").await);
        ordering.note_end("b");
        assert!(!waits("a").await);
    }
}
