//! A [`ContainerRuntime`] over CRI v1, for containerd and CRI-O.

mod client;
mod conditions;
mod config;
mod containers;
mod events;
mod images;
mod messages;
mod relists;
mod sandboxes;
mod stats;
mod status;
mod streaming;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use knarr_apimachinery::clock::Clock;
use knarr_client::Supervisor;
use knarr_runtime::containers::Cgroups;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use crate::runtime::*;
use client::Client;
use messages as cri;
use relists::Relists;

const VERSION: &str = "/runtime.v1.RuntimeService/Version";
/// The number of events that a receiver may lag behind; one that lags more must list everything again.
const EVENTS: usize = 1024;

/// The endpoints and settings of a CRI runtime.
#[derive(Clone)]
pub struct Options {
    /// The URL of the runtime's socket, such as `unix:///run/containerd/containerd.sock`.
    pub runtime_endpoint: String,
    /// The URL of the image service's socket; `None` for the runtime's.
    pub image_endpoint: Option<String>,
    /// The cgroups below whose root the pods' cgroups are.
    pub cgroups: Cgroups,
    pub clock: Arc<dyn Clock>,
    /// Runs the task that compares the runtime's lists.
    pub supervisor: Supervisor,
}

/// The client of a CRI runtime. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Cri {
    inner: Arc<Inner>,
}

struct Inner {
    runtime: Client,
    images: Client,
    cgroups: Cgroups,
    clock: Arc<dyn Clock>,
    version: Mutex<RuntimeVersion>,
    /// Each container's log path, by id: lists do not contain it.
    logs: Mutex<std::collections::BTreeMap<String, PathBuf>>,
    events: broadcast::Sender<RuntimeEvent>,
    health: Mutex<conditions::Health>,
    features: Mutex<RuntimeFeatures>,
    relists: Relists,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the version for the node's status: a semantic version unchanged, of any other its numbers.
fn shown_version(text: &str) -> String {
    let text = text.trim().trim_start_matches('v');
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (numbers, rest) = text.split_at(end);
    let semantic = numbers.split('.').count() == 3 && (rest.is_empty() || rest.starts_with(['-', '+']));
    if semantic { text.to_owned() } else { numbers.trim_end_matches('.').to_owned() }
}

impl Cri {
    /// Connects, and watches the runtime until `stop` is cancelled. The error text describes the problem of the
    /// runtime.
    pub fn open(options: Options, stop: CancellationToken) -> BoxFuture<'static, Result<Self, String>> {
        Box::pin(Self::opened(options, stop))
    }

    async fn opened(options: Options, stop: CancellationToken) -> Result<Self, String> {
        let runtime = client::socket(&options.runtime_endpoint)?;
        let images = options.image_endpoint.as_deref().map_or_else(|| Ok(runtime.clone()), client::socket)?;
        let (events, _) = broadcast::channel(EVENTS);
        let opened = Self {
            inner: Arc::new(Inner {
                runtime: Client::new(runtime),
                images: Client::new(images),
                cgroups: options.cgroups,
                relists: Relists::new(Arc::clone(&options.clock)),
                clock: options.clock,
                version: Mutex::new(RuntimeVersion { name: String::new(), version: String::new() }),
                logs: Mutex::default(),
                events,
                health: Mutex::default(),
                features: Mutex::default(),
            }),
        };
        let endpoint = &options.runtime_endpoint;
        let invalid = |error| format!("validate CRI v1 runtime API for endpoint {endpoint:?}: {error}");
        opened.ask_version().await.map_err(invalid)?;
        opened.check_cgroup_driver().await?;
        // The features must be known before the first pod starts; readiness is read again later.
        opened.ask_readiness().await;
        opened.all_images().await.map_err(|error| format!("validate CRI v1 image API: {error}"))?;
        let picture = opened.picture().await.map_err(invalid)?;
        tracing::info!(endpoint, runtime = %opened.version().name, "container runtime connected");
        let (looker, picture) = (opened.clone(), Arc::new(tokio::sync::Mutex::new(picture)));
        options.supervisor.spawn("container-events", stop, move |stop| {
            let (runtime, picture) = (looker.clone(), Arc::clone(&picture));
            async move { events::run(runtime, &mut *picture.lock().await, stop).await }
        });
        Ok(opened)
    }

    /// The cgroups below the root of all pods.
    pub fn cgroups(&self) -> Cgroups {
        self.inner.cgroups.clone()
    }

    /// Reads the runtime's version. Repeated from time to time, as the runtime may be upgraded while this process
    /// runs.
    async fn ask_version(&self) -> Result<()> {
        let request = cri::VersionRequest { version: "0.1.0".to_owned() };
        let answer: cri::VersionResponse =
            self.inner.runtime.call(VERSION, &request).await.map_err(client::error)?;
        if answer.runtime_name.is_empty() || answer.runtime_version.is_empty() {
            return Err(RuntimeError::Failed("not all fields are set in VersionResponse".to_owned()));
        }
        *lock(&self.inner.version) =
            RuntimeVersion { name: answer.runtime_name, version: shown_version(&answer.runtime_version) };
        Ok(())
    }
}

#[async_trait]
impl ContainerRuntime for Cri {
    fn version(&self) -> RuntimeVersion {
        lock(&self.inner.version).clone()
    }

    fn features(&self) -> RuntimeFeatures {
        lock(&self.inner.features).clone()
    }

    fn metrics(&self) -> String {
        self.inner.relists.render()
    }

    async fn readiness(&self) -> Readiness {
        self.ask_readiness().await
    }

    async fn run_pod_sandbox(&self, config: &PodSandboxConfig) -> Result<String> {
        self.run_sandbox(config).await
    }

    async fn stop_pod_sandbox(&self, id: &str) -> Result<()> {
        self.stop_sandbox(id).await
    }

    async fn remove_pod_sandbox(&self, id: &str) -> Result<()> {
        self.remove_sandbox(id).await
    }

    async fn list_pod_sandboxes(&self) -> Result<Vec<PodSandboxStatus>> {
        self.sandboxes(Default::default()).await
    }

    async fn create_container(
        &self,
        sandbox_id: &str,
        config: &ContainerConfig,
        sandbox: &PodSandboxConfig,
    ) -> Result<String> {
        self.make_container(sandbox_id, config, sandbox).await
    }

    async fn start_container(&self, id: &str) -> Result<()> {
        self.start(id).await
    }

    async fn stop_container(&self, id: &str, grace_seconds: u64) -> Result<()> {
        self.stop(id, grace_seconds).await
    }

    async fn remove_container(&self, id: &str) -> Result<()> {
        self.drop_container(id).await
    }

    async fn list_containers(&self) -> Result<Vec<ContainerStatus>> {
        self.containers().await
    }

    async fn container_status(&self, id: &str) -> Result<ContainerStatus> {
        self.status_with_sandbox(id).await
    }

    async fn pod_status(&self, uid: &str) -> Result<PodRuntimeStatus> {
        self.status_of_pod(uid).await
    }

    async fn update_container_resources(&self, id: &str, resources: &Resources) -> Result<()> {
        self.update_resources(id, resources).await
    }

    async fn container_limits(&self, id: &str) -> Result<Resources> {
        self.limits_of(id).await
    }

    async fn reopen_container_log(&self, id: &str) -> Result<()> {
        self.reopen_log(id).await
    }

    async fn exec_sync(&self, id: &str, command: &[String], timeout_seconds: u64) -> Result<ExecOutput> {
        self.run_command(id, command, timeout_seconds).await
    }

    async fn exec(&self, id: &str, request: &ExecRequest) -> Result<Session> {
        self.open_exec(id, request).await
    }

    async fn attach(&self, id: &str, request: &AttachRequest) -> Result<Session> {
        self.open_attach(id, request).await
    }

    async fn port_forward(&self, sandbox_id: &str, port: u16) -> Result<Box<dyn Connection>> {
        self.open_port(sandbox_id, port).await
    }

    async fn container_stats(&self, id: &str) -> Result<ContainerStats> {
        self.stats_of(id).await
    }

    async fn list_container_stats(&self, _: Disk) -> Result<Vec<ContainerStats>> {
        self.all_stats().await
    }

    async fn list_sandbox_stats(&self) -> Result<Vec<SandboxStats>> {
        self.pod_stats().await
    }

    async fn usage_details(&self) -> Result<Vec<UsageDetails>> {
        self.pod_details().await
    }

    async fn image_status(&self, name: &str) -> Result<Option<Image>> {
        self.find_image(name).await
    }

    async fn list_images(&self) -> Result<Vec<Image>> {
        self.all_images().await
    }

    async fn pull_image(&self, name: &str, keyring: &Keyring) -> Result<PulledImage> {
        self.pull(name, keyring).await
    }

    async fn remove_image(&self, name: &str) -> Result<()> {
        self.drop_image(name).await
    }

    async fn image_fs_info(&self) -> Result<FsInfo> {
        self.image_file_system().await
    }

    fn events(&self) -> broadcast::Receiver<RuntimeEvent> {
        self.inner.events.subscribe()
    }
}
