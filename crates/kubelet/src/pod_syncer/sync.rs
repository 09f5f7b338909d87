//! The pass of a pod that should run.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use knarr_api::kind::Kind;
use tokio_util::sync::CancellationToken;

use super::start::Start;
use super::{PodMemory, PodSyncer, blocking, lock};
use crate::compute_actions::{PodActions, compute_actions};
use crate::container_config::dns::{parse_resolv_conf, pod_dns};
use crate::container_config::sandbox_config;
use crate::folders;
use crate::pod::{self, ContainerKind};
use crate::runtime::{ContainerState, PodRuntimeStatus, PodSandboxConfig, SandboxState};
use crate::se_linux;
use crate::status::{DEADLINE_EXCEEDED, deadline};
use crate::user_namespaces;
use crate::volume_manager::MountedVolumes;

/// What the worker does after a pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SyncOutcome {
    /// Wait for news, and start the next pass at `look_again` at the latest.
    Done { look_again: Option<Timestamp> },
    /// The pod has ended; its remaining containers and its sandbox are to be stopped.
    Terminal,
    /// The pass failed; retry with growing pauses.
    Failed,
}

/// Returns the earlier of two optional times.
pub(super) fn earlier(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

impl PodSyncer {
    /// Brings the pod to its spec: resizes it, mounts volumes, makes the sandbox, starts and stops containers.
    /// `cancel` ends long waits when the pod is to be stopped.
    pub async fn sync_pod(
        &self,
        pod: &Arc<Pod>,
        memory: &mut PodMemory,
        cancel: &CancellationToken,
    ) -> SyncOutcome {
        let (pod, begun) = (&self.allocated(pod), self.clock.now());
        let runtime = match self.resized_state(pod, memory).await {
            Ok(state) => state,
            Err(error) => {
                tracing::warn!(pod = %pod::format(pod), error, "cannot read the pod's state");
                return SyncOutcome::Failed;
            }
        };
        match self.advance(pod, memory, runtime, cancel).await {
            SyncOutcome::Done { look_again } => {
                // A retry whose time had passed when this pass began was made in this pass.
                let retry = memory.resize_retry.map(|retry| retry.at).filter(|at| *at > begun);
                SyncOutcome::Done { look_again: earlier(look_again, retry) }
            }
            outcome => outcome,
        }
    }

    /// Computes and carries out the actions that lead from the current state to the wanted one.
    async fn advance(
        &self,
        pod: &Arc<Pod>,
        memory: &mut PodMemory,
        runtime: PodRuntimeStatus,
        cancel: &CancellationToken,
    ) -> SyncOutcome {
        let status = self.publish(pod, memory, &runtime, false, true).await;
        if status.phase.as_deref() == Some("Running")
            && let Some(first_seen) = memory.first_seen.take()
        {
            self.metrics.pod_runs_after(self.clock.monotonic().saturating_sub(first_seen));
        }
        if pod::is_terminal_phase(status.phase.as_deref().unwrap_or("")) {
            if status.reason.as_deref() == Some(DEADLINE_EXCEEDED.0) {
                self.events.normal(pod, DEADLINE_EXCEEDED.0, DEADLINE_EXCEEDED.1);
            }
            return SyncOutcome::Terminal;
        }
        let end = deadline(pod, &status);
        // Mounting may take long, for example in a CSI driver; a pod that is to stop does not wait for it.
        let prepared = tokio::select! {
            () = cancel.cancelled() => return SyncOutcome::Done { look_again: end },
            prepared = self.prepare(pod) => prepared,
        };
        let Some(volumes) = prepared else { return SyncOutcome::Failed };
        self.probes.add_pod(pod);
        let actions = compute_actions(pod, &runtime, self.probes.results());
        if actions.is_empty() || cancel.is_cancelled() {
            return SyncOutcome::Done { look_again: end };
        }
        let makes_sandbox = actions.create_sandbox;
        let acted = self.act(pod, memory, runtime, actions, &volumes, cancel).await;
        if makes_sandbox && user_namespaces::wanted(pod) {
            self.metrics.starts_user_namespaced_pod(acted.is_err() || !memory.failures.is_empty());
        }
        match acted {
            Ok(look_again) => SyncOutcome::Done { look_again: earlier(look_again, end) },
            Err(error) => {
                tracing::debug!(pod = %pod::format(pod), error, "the pass failed; it is tried again");
                SyncOutcome::Failed
            }
        }
    }

    /// Returns the pod's state, after its limits are set to the allocated resources. A resize that fails does not
    /// prevent the rest of the pass.
    async fn resized_state(
        &self,
        pod: &Arc<Pod>,
        memory: &mut PodMemory,
    ) -> Result<PodRuntimeStatus, String> {
        let runtime = self.pod_state(pod).await?;
        let recorded = self.record_allocation(pod, &runtime.replaced).await;
        if lock(&self.allocations).in_progress(pod.uid()) {
            self.publish(pod, memory, &runtime, false, true).await;
        }
        let resized = match recorded {
            Ok(()) => self.resize(pod, memory, &runtime).await,
            Err(error) => Err(error),
        };
        match resized {
            Ok(()) if runtime.replaced.is_empty() => {
                memory.resize_retry = None;
                self.finish_resize(pod);
            }
            // The rest of the pass replaces the containers in `replaced`.
            Ok(()) => {}
            Err(error) => self.cannot_resize(pod, memory, &error),
        }
        Ok(runtime)
    }

    /// Makes the pod's cgroup and folders, and mounts its volumes. Returns `None` if one of these fails.
    async fn prepare(&self, pod: &Arc<Pod>) -> Option<MountedVolumes> {
        let dirs = self.config.dirs();
        let (cgroups, for_cgroup, own) = (self.cgroups.clone(), Arc::clone(pod), dirs.pod_dir(pod.uid()));
        let made = blocking(move || {
            // The pod's folder shows that this kubelet owns the cgroup: other kubelets may have cgroups beside it.
            folders::make(&own).map_err(|e| format!("{}: {e}", own.display()))?;
            cgroups.ensure(&for_cgroup)
        });
        let made = made.await.and_then(|r| r);
        if let Err(error) = made {
            let message = format!("unable to ensure pod container exists: {error}");
            self.events.warning(pod, "FailedCreatePodContainer", message);
            return None;
        }
        let (pod_dir, volumes_dir) = (dirs.pod_dir(pod.uid()), dirs.volumes_dir(pod.uid()));
        let logs = dirs.pod_logs_dir(pod.namespace(), pod.name(), pod.uid());
        let made = blocking(move || {
            [volumes_dir, pod_dir.join("containers"), logs].iter().try_for_each(|dir| folders::make(dir))
        });
        if let Err(error) = made.await.and_then(|r| r.map_err(|e| e.to_string())) {
            let message = format!("error making pod data directories: {error}");
            self.events.warning(pod, "FailedToMakePodDataDirectories", message);
            return None;
        }
        match self.volumes.mount(pod).await {
            Ok(volumes) => Some(volumes),
            Err(error) if error.quiet => {
                tracing::debug!(pod = %pod::format(pod), error = error.message, "volumes are not mounted yet");
                None
            }
            Err(error) => {
                self.events.warning(pod, "FailedMount", error.message);
                None
            }
        }
    }

    /// Carries out the actions. Errors are for the log alone: their events have been emitted.
    async fn act(
        &self,
        pod: &Arc<Pod>,
        memory: &mut PodMemory,
        mut runtime: PodRuntimeStatus,
        mut actions: PodActions,
        volumes: &MountedVolumes,
        cancel: &CancellationToken,
    ) -> Result<Option<Timestamp>, String> {
        let mut look_again = None;
        if actions.create_sandbox && !actions.sandbox_id.is_empty() {
            let message = "Pod sandbox changed, it will be killed and re-created.";
            self.events.normal(pod, "SandboxChanged", message);
        }
        let pod_ip = self.pod_ips(pod, &runtime).into_iter().next().unwrap_or_default();
        if actions.kill_pod {
            self.kill_pod(pod, &pod_ip, &runtime, None).await?;
        } else {
            look_again = self.stop_containers(pod, memory, &pod_ip, &mut actions).await?;
        }
        if actions.create_sandbox {
            if cancel.is_cancelled() {
                return Ok(None);
            }
            self.create_sandbox(pod, actions.attempt).await?;
        }
        runtime = self.pod_state(pod).await?;
        // While a container is replaced, the state in between is not published, as in upstream.
        if actions.create_sandbox || actions.kill_pod {
            self.publish(pod, memory, &runtime, false, true).await;
        }
        let waits = self.start_all(pod, memory, &runtime, &actions, volumes, cancel).await;
        let runtime = self.pod_state(pod).await?;
        self.prune(&runtime).await;
        self.publish(pod, memory, &runtime, false, true).await;
        Ok(earlier(look_again, waits))
    }

    async fn create_sandbox(&self, pod: &Arc<Pod>, attempt: u32) -> Result<(), String> {
        let warn = |error: String| {
            self.events.warning(
                pod,
                "FailedCreatePodSandBox",
                format!("Failed to create pod sandbox: {error}"),
            );
            error
        };
        let (mut config, warnings) = self.sandbox_config(pod, attempt).await.map_err(warn)?;
        if let Some(class) = pod::spec(pod).runtime_class_name.as_deref().filter(|name| !name.is_empty()) {
            config.runtime_handler = self.objects.runtime_handler(class).await.map_err(warn)?;
        }
        user_namespaces::check(pod, &config.runtime_handler, &self.runtime.features()).map_err(warn)?;
        if user_namespaces::wanted(pod) {
            config.user_namespace = Some(self.ids_of(pod).await.map_err(warn)?);
        }
        for (reason, message) in warnings.into_iter().chain(se_linux::warning(pod, self.host_security)) {
            self.events.warning(pod, reason, message);
        }
        self.metrics.starts_pod();
        self.runtime.run_pod_sandbox(&config).await.map(drop).map_err(|e| {
            self.metrics.failed_pod();
            warn(e.to_string())
        })
    }

    /// Returns the id range of the pod's user namespace, which is kept on disk as long as the pod's folder.
    async fn ids_of(&self, pod: &Pod) -> Result<crate::runtime::IdRange, String> {
        let (ranges, dirs) = (Arc::clone(&self.user_namespaces), self.config.dirs());
        let uid = pod.uid().to_owned();
        blocking(move || ranges.range_of(&dirs, &uid).map_err(|error| error.to_string())).await?
    }

    /// Returns the configuration of the pod's sandbox, and the warnings to emit about it, each a reason and a
    /// message.
    pub(super) async fn sandbox_config(
        &self,
        pod: &Pod,
        attempt: u32,
    ) -> Result<(PodSandboxConfig, Vec<(&'static str, String)>), String> {
        let resolv_conf = self.config.resolv_conf.clone();
        let host = blocking(move || std::fs::read_to_string(resolv_conf).unwrap_or_default()).await?;
        let dns = pod_dns(pod, &self.config, &parse_resolv_conf(&host));
        Ok((sandbox_config(&self.config, pod, attempt, dns.config)?, dns.warnings))
    }

    /// Starts the containers that the actions name, in order; returns when the next pass is due.
    async fn start_all(
        &self,
        pod: &Arc<Pod>,
        memory: &mut PodMemory,
        runtime: &PodRuntimeStatus,
        actions: &PodActions,
        volumes: &MountedVolumes,
        cancel: &CancellationToken,
    ) -> Option<Timestamp> {
        let sandbox = runtime.sandboxes.first().filter(|s| s.state == SandboxState::Ready)?;
        let ephemeral = pod::ephemeral_containers(pod);
        let pick = |list: &[Container], at: &[usize], kind| -> Vec<(ContainerKind, Container)> {
            at.iter().filter_map(|at| list.get(*at)).map(|c| (kind, c.clone())).collect()
        };
        let mut wanted: Vec<(ContainerKind, Container)> = actions
            .ephemeral_containers_to_start
            .iter()
            .filter_map(|at| ephemeral.get(*at))
            .map(|c| (ContainerKind::Ephemeral, pod::common_shape(c)))
            .collect();
        wanted.extend(pick(
            pod::init_containers(pod),
            &actions.init_containers_to_start,
            ContainerKind::Init,
        ));
        wanted.extend(pick(&pod::spec(pod).containers, &actions.containers_to_start, ContainerKind::Main));

        let pod_ips = self.pod_ips(pod, runtime);
        let mut look_again = None;
        let count = wanted.len();
        for (at, (kind, container)) in wanted.into_iter().enumerate() {
            if cancel.is_cancelled() {
                break;
            }
            let start =
                Start { pod, kind, container: &container, sandbox, runtime, pod_ips: &pod_ips, volumes };
            match self.start_container(&start, memory, cancel).await {
                Ok(()) => {
                    memory.failures.remove(&container.name);
                    memory.reported_back_off.remove(&container.name);
                    if at + 1 < count
                        && let Ok(now) = self.pod_state(pod).await
                    {
                        self.publish(pod, memory, &now, false, true).await;
                    }
                }
                Err(failed) => {
                    look_again = earlier(look_again, failed.retry_at);
                    memory.failures.insert(container.name.clone(), failed.failure);
                    if kind == ContainerKind::Init && !pod::is_sidecar(&container) {
                        break;
                    }
                }
            }
        }
        look_again
    }

    /// Removes ended containers, except the newest one of each name, and old sandboxes without any containers.
    async fn prune(&self, runtime: &PodRuntimeStatus) {
        let mut seen: Vec<&str> = Vec::new();
        let mut kept_sandboxes: Vec<&str> =
            runtime.sandboxes.first().map(|s| s.id.as_str()).into_iter().collect();
        for status in &runtime.containers {
            let newest_end = status.state == ContainerState::Exited && !seen.contains(&status.name.as_str());
            if newest_end {
                seen.push(&status.name);
            }
            if newest_end || status.state != ContainerState::Exited {
                kept_sandboxes.push(&status.sandbox_id);
            } else if let Err(error) = self.runtime.remove_container(&status.id).await {
                tracing::debug!(container = %status.id, %error, "cannot remove an ended container");
                kept_sandboxes.push(&status.sandbox_id);
            } else {
                let (log, attempt) = (status.log_path.clone(), status.attempt);
                let removed = blocking(move || remove_logs(&log, attempt)).await;
                if let Err(error) = removed {
                    tracing::debug!(error, "cannot remove logs");
                }
            }
        }
        for sandbox in runtime.sandboxes.iter().filter(|s| s.state != SandboxState::Ready) {
            if !kept_sandboxes.contains(&sandbox.id.as_str())
                && let Err(error) = self.runtime.remove_pod_sandbox(&sandbox.id).await
            {
                tracing::debug!(sandbox = %sandbox.id, %error, "cannot remove an old sandbox");
            }
        }
    }
}

fn remove_logs(log: &std::path::Path, attempt: u32) {
    // Only files that are named as the kubelet names logs are removed.
    if log.file_name().is_none_or(|name| *name != *format!("{attempt}.log")) {
        return;
    }
    for part in crate::log_rotation::rotated(log).unwrap_or_default() {
        let _ = std::fs::remove_file(part);
    }
    let _ = std::fs::remove_file(log);
}
