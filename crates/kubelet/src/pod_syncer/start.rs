//! Starting one container: back-off, image, configuration, creation, start, postStart hook.

use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use knarr_api::kind::Kind;
use tokio_util::sync::CancellationToken;

use super::resize::note_start;
use super::{PodMemory, PodSyncer, blocking, lock};
use crate::back_off;
use crate::compute_actions::{KillReason, newest};
use crate::container_config::downward::Addresses;
use crate::container_config::env::{Context, Sources, environment, wants_links};
use crate::container_config::mounts::{Given, mounts};
use crate::container_config::services::service_env;
use crate::container_config::{Parts, container_config};
use crate::hooks;
use crate::image_manager::{ImageFailure, go_duration};
use crate::labels::container_hash;
use crate::pod::{self, ContainerKind};
use crate::qos;
use crate::runtime::{ContainerConfig, ContainerState, Image, PodRuntimeStatus, PodSandboxStatus};
use crate::se_linux;
use crate::status::StartFailure;
use crate::termination::Kill;
use crate::volume_manager::MountedVolumes;

/// The container to start, and what its start depends on.
pub(super) struct Start<'a> {
    pub pod: &'a Arc<Pod>,
    pub kind: ContainerKind,
    pub container: &'a Container,
    pub sandbox: &'a PodSandboxStatus,
    pub runtime: &'a PodRuntimeStatus,
    pub pod_ips: &'a [String],
    pub volumes: &'a MountedVolumes,
}

pub(super) type Failed = ImageFailure;

impl PodSyncer {
    pub(super) async fn start_container(
        &self,
        start: &Start<'_>,
        memory: &mut PodMemory,
        cancel: &CancellationToken,
    ) -> Result<(), Failed> {
        self.check_back_off(start, memory)?;
        self.metrics.starts_container(start.kind);
        let started = self.start_now(start, memory, cancel).await;
        started.inspect_err(|error| self.metrics.failed_container(start.kind, &error.failure.reason))
    }

    async fn start_now(
        &self,
        start: &Start<'_>,
        memory: &mut PodMemory,
        cancel: &CancellationToken,
    ) -> Result<(), Failed> {
        let events = self.events.of(start.pod, start.kind, &start.container.name);
        let images = async {
            let volumes = self.image_volumes(start).await?;
            Ok((self.images.ensure(start.container, &events).await?, volumes))
        };
        let images = tokio::select! {
            () = cancel.cancelled() => return Err(self.failed("ContainerCreating", "the pod is being stopped")),
            images = images => images,
        };
        let (image, volumes) = images.inspect_err(|error: &Failed| {
            events.warning("Failed", format!("Error: {}", error.failure.reason));
        })?;
        let failed = |reason: &'static str| {
            let events = &events;
            move |error: String| {
                events.warning("Failed", format!("Error: {error}"));
                self.failed(reason, &error)
            }
        };
        let config =
            self.configure(start, image, volumes).await.map_err(failed("CreateContainerConfigError"))?;
        if start.kind == ContainerKind::Ephemeral
            && config.se_linux.is_some()
            && let Some((reason, message)) = se_linux::warning(start.pod, self.host_security)
        {
            // The warnings of the other containers were emitted when the sandbox was made.
            events.warning(reason, message);
        }
        let sandbox = self.sandbox_config(start.pod, start.sandbox.attempt).await;
        let (sandbox, _) = sandbox.map_err(failed("CreateContainerConfigError"))?;
        let created = self.runtime.create_container(&start.sandbox.id, &config, &sandbox).await;
        let id = created.map_err(|e| failed("CreateContainerError")(e.to_string()))?;
        events.normal("Created", "Container created");
        note_start(memory, start.pod, start.container, &id);
        let started = self.runtime.start_container(&id).await;
        started.map_err(|e| failed("RunContainerError")(e.to_string()))?;
        events.normal("Started", "Container started");
        self.post_start(start, &id, cancel).await
    }

    /// Returns the mounted volumes, with the pulled images of those image volumes that the container mounts.
    async fn image_volumes(&self, start: &Start<'_>) -> Result<MountedVolumes, Failed> {
        let mut volumes = start.volumes.clone();
        let mounted = |name: &str| start.container.volume_mounts.iter().flatten().any(|m| m.name == name);
        for volume in pod::spec(start.pod).volumes.iter().flatten() {
            let Some(source) = volume.image.as_ref().filter(|_| mounted(&volume.name)) else { continue };
            let reference = source.reference.as_deref().unwrap_or("");
            let events = self.events.of_pod(start.pod);
            let image = self.images.ensure_named(reference, source.pull_policy.as_deref(), &events).await?;
            volumes.entry(volume.name.clone()).or_default().image = Some(image.id);
        }
        Ok(volumes)
    }

    fn failed(&self, reason: &str, message: &str) -> Failed {
        let failure = StartFailure { reason: reason.to_owned(), message: message.to_owned() };
        Failed { failure, retry_at: self.clock.now().checked_add(back_off::INITIAL).ok() }
    }

    /// Refuses to start a container whose crash back-off has not passed; otherwise counts this start for the next
    /// back-off.
    fn check_back_off(&self, start: &Start<'_>, memory: &mut PodMemory) -> Result<(), Failed> {
        let name = &start.container.name;
        let ended =
            start.runtime.containers.iter().find(|c| c.name == *name && c.state == ContainerState::Exited);
        let Some(ended_at) = ended.map(|c| c.finished_at.unwrap_or(c.created_at)) else { return Ok(()) };
        let key = back_off_key(start.pod, start.container);
        let now = self.clock.now();
        let waiting = {
            let mut back_off = lock(&self.crash_back_off);
            match back_off.wait_since(&key, ended_at, now) {
                Some(until) => Some((until, back_off.get(&key))),
                None => {
                    back_off.next(&key, ended_at, now);
                    None
                }
            }
        };
        let Some((until, wait)) = waiting else { return Ok(()) };
        let pod_text = pod::format(start.pod);
        if memory.reported_back_off.insert(name.clone(), until) != Some(until) {
            let message = format!("Back-off restarting failed container {name} in pod {pod_text}");
            self.events.of(start.pod, start.kind, name).warning("BackOff", message);
        }
        let message =
            format!("back-off {} restarting failed container={name} pod={pod_text}", go_duration(wait));
        let failure = StartFailure { reason: "CrashLoopBackOff".to_owned(), message };
        Err(Failed { failure, retry_at: Some(until) })
    }

    /// Computes the container's configuration for the runtime.
    async fn configure(
        &self,
        start: &Start<'_>,
        image: Image,
        volumes: MountedVolumes,
    ) -> Result<ContainerConfig, String> {
        let Start { pod, kind, container, pod_ips, .. } = *start;
        let restart_count = self.restart_count(start).await;
        let sources = Sources::fetch(&self.objects, pod.namespace(), container).await?;
        let services = service_env(
            &self.services.list(),
            pod.namespace(),
            wants_links(pod),
            &self.config.master_service_namespace,
        );
        let node = self.node();
        let allocatable =
            node.as_ref().and_then(|n| n.status.as_ref()?.allocatable.clone()).unwrap_or_default();
        let addresses = Addresses { pod_ips: pod_ips.to_vec(), host_ips: self.config.host_ips() };
        let context = Context { pod, services: &services, addresses: &addresses, allocatable: &allocatable };
        let env = environment(&context, container, &sources)?;

        let target = target(start)?;
        let (config, pod, container) = (self.config.clone(), Arc::clone(pod), container.clone());
        let pod_ips = pod_ips.to_vec();
        let memory_capacity = self.memory_capacity;
        let handler = &start.sandbox.runtime_handler;
        let recursive_read_only = self.runtime.features().recursive_read_only_mounts(handler);
        blocking(move || {
            let value_of = |name: &str| env.get(name).cloned();
            let given = Given { volumes: &volumes, recursive_read_only };
            let mounts = mounts(&config, &pod, &container, restart_count, &pod_ips, &given, value_of)?;
            let own_oom_score_adj = qos::own_oom_score_adj();
            let parts =
                Parts { restart_count, image, env, mounts, memory_capacity, own_oom_score_adj, target };
            container_config(&config, &pod, kind, &container, parts)
        })
        .await?
    }

    /// Returns the restart count for a new container: one more than that of the newest container in the runtime,
    /// or else than that of the newest log file.
    async fn restart_count(&self, start: &Start<'_>) -> u32 {
        if let Some(last) = newest(start.runtime, &start.container.name) {
            return last.attempt.saturating_add(1);
        }
        let pod = start.pod;
        let logs = self.config.dirs().pod_logs_dir(pod.namespace(), pod.name(), pod.uid());
        let folder = logs.join(&start.container.name);
        blocking(move || next_log(&folder)).await.unwrap_or(0)
    }

    async fn post_start(
        &self,
        start: &Start<'_>,
        id: &str,
        cancel: &CancellationToken,
    ) -> Result<(), Failed> {
        let hook = start.container.lifecycle.as_ref().and_then(|l| l.post_start.as_ref());
        let Some(hook) = hook else { return Ok(()) };
        let pod_ip = start.pod_ips.first().map_or("", String::as_str);
        let run = hooks::run(self.runtime.as_ref(), id, start.pod, start.container, pod_ip, hook);
        let failed = tokio::select! {
            () = cancel.cancelled() => return Ok(()),
            result = run => match result {
                Ok(()) => return Ok(()),
                Err(error) => error,
            },
        };
        let name = &start.container.name;
        self.events.of(start.pod, start.kind, name).warning("FailedPostStartHook", "PostStartHook failed");
        let kill = Kill {
            id,
            name,
            message: "FailedPostStartHook",
            reason: KillReason::FailedPostStartHook,
            grace_seconds: None,
        };
        if let Err(error) = self.terminator.kill_container(start.pod, pod_ip, &kill).await {
            tracing::warn!(container = %id, %error, "cannot kill a container whose postStart hook failed");
        }
        let failure = StartFailure { reason: "PostStartHookError".to_owned(), message: failed };
        Err(Failed { failure, retry_at: Some(self.now()) })
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

/// Returns the key under which crashes of a container are counted: its image and resources. So a restart for a
/// resize is the first of its key and does not wait, unless the container goes back to resources that it had in
/// the last ten minutes.
///
/// Source: `GetBackoffKey` and `doBackOff` of `k8s.io/kubernetes/pkg/kubelet/kuberuntime`.
fn back_off_key(pod: &Pod, container: &Container) -> String {
    let resources = container.resources.as_ref().and_then(|r| serde_json::to_string(r).ok());
    let resources = resources.unwrap_or_default();
    format!("{}_{}_{}_{resources}", pod.uid(), container.name, container_hash(container))
}

/// Returns the id of the container whose process namespace an ephemeral container joins, unless the pod's
/// containers share one.
fn target(start: &Start<'_>) -> Result<Option<String>, String> {
    if start.kind != ContainerKind::Ephemeral {
        return Ok(None);
    }
    let ephemeral = pod::ephemeral_containers(start.pod).iter().find(|c| c.name == start.container.name);
    let Some(name) = ephemeral.and_then(|c| c.target_container_name.as_deref()).filter(|n| !n.is_empty())
    else {
        return Ok(None);
    };
    match newest(start.runtime, name) {
        Some(target) => Ok(Some(target.id.clone())),
        None => Err(format!("unable to find target container {name}")),
    }
}

/// Returns the number after the highest `<n>.log` in a folder; 0 if there is none.
fn next_log(folder: &Path) -> u32 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| {
        let name = entry.file_name();
        name.to_str()?.split('.').next()?.parse::<u32>().ok()
    });
    numbers.max().map_or(0, |n| n.saturating_add(1))
}
