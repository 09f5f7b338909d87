//! The built-in container runtime: `knarr_runtime`'s containers and images as one [`ContainerRuntime`].

mod app_armor;
mod containers;
mod errors;
mod forwards;
mod image_volumes;
mod images;
mod sandboxes;
mod sessions;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use futures_util::future::{BoxFuture, join_all};
use knarr_client::Supervisor;
use knarr_runtime::containers::{Cgroups, Event, OciProgram, Runtime};
use knarr_runtime::images::{ImageStore, PullOptions};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use crate::host_security::HostSecurity;
use crate::labels;
use crate::pod_network::PodNetwork;
use crate::runtime::*;
use crate::user_namespaces;

/// The number of events that a receiver may lag behind; one that lags more must list everything again.
const EVENTS: usize = 1024;

/// Knarr's own annotations; all others on a sandbox or container belong to the pod and Kubernetes.
const ATTEMPT: &str = "knarr.io/attempt";
const CGROUP_PARENT: &str = "knarr.io/cgroup-parent";
const HANDLER: &str = "knarr.io/runtime-handler";
const IMAGE: &str = "knarr.io/image";
const IMAGE_ID: &str = "knarr.io/image-id";

/// A handler for RuntimeClasses whose pods are run by an OCI runtime.
#[derive(Debug, Clone)]
pub struct OciHandler {
    pub name: String,
    pub program: OciProgram,
}

/// The built-in runtime. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Embedded {
    inner: Arc<Inner>,
}

struct Inner {
    runtime: Runtime,
    images: ImageStore,
    network: Arc<dyn PodNetwork>,
    pull: PullOptions,
    /// Sorted by name.
    handlers: Vec<OciHandler>,
    /// Whether containers can use the default AppArmor profile.
    has_default_profile: bool,
    /// The folder of the sandboxes' files: resolv.conf, hostname.
    dir: PathBuf,
    addresses: Mutex<BTreeMap<String, Vec<IpAddr>>>,
    /// The pod of each sandbox, kept beyond the sandbox's end for later events.
    pods: Mutex<BTreeMap<String, String>>,
    events: broadcast::Sender<RuntimeEvent>,
    forwards: Arc<forwards::Forwards>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the work to its end even if the caller is cancelled, so that nothing is left half done and unknown.
async fn unbroken<T: Send + 'static>(work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    tokio::spawn(work).await.unwrap_or_else(|e| Err(RuntimeError::Failed(format!("background work: {e}"))))
}

impl Embedded {
    /// Takes over the sandboxes that an earlier server left. `dir` is created if it is missing; `pull` configures
    /// how images are pulled (its keyring is not used). `handlers` are those beside the default one. A task of the
    /// supervisor forwards events.
    pub fn open(
        runtime: Runtime,
        images: ImageStore,
        network: Arc<dyn PodNetwork>,
        pull: PullOptions,
        handlers: Vec<OciHandler>,
        dir: PathBuf,
        supervisor: Supervisor,
    ) -> BoxFuture<'static, Result<Self>> {
        Box::pin(Self::opened(runtime, images, network, pull, handlers, dir, supervisor))
    }

    async fn opened(
        runtime: Runtime,
        images: ImageStore,
        network: Arc<dyn PodNetwork>,
        pull: PullOptions,
        mut handlers: Vec<OciHandler>,
        dir: PathBuf,
        supervisor: Supervisor,
    ) -> Result<Self> {
        handlers.sort_by(|a, b| a.name.cmp(&b.name));
        std::fs::create_dir_all(&dir).map_err(errors::file("create", &dir))?;
        let loaded = tokio::task::spawn_blocking(|| app_armor::prepare(HostSecurity::read()));
        let has_default_profile =
            loaded.await.map_err(|e| RuntimeError::Failed(format!("background work: {e}")))?;
        let (events, _) = broadcast::channel(EVENTS);
        let received = runtime.events();
        let inner = Arc::new(Inner {
            runtime,
            images,
            network,
            pull,
            handlers,
            has_default_profile,
            dir,
            addresses: Mutex::default(),
            pods: Mutex::default(),
            events,
            forwards: Arc::default(),
        });
        let embedded = Self { inner };
        embedded.take_up().await?;
        let (weak, mut received) = (Arc::downgrade(&embedded.inner), Some(received));
        // The task ends when the runtime is dropped.
        tokio::spawn(supervisor.run_until_done("container-events", CancellationToken::new(), move |_| {
            let events = received.take().or_else(|| weak.upgrade().map(|inner| inner.listen_anew()));
            let weak = weak.clone();
            async move {
                if let Some(events) = events {
                    forward(weak, events).await;
                }
            }
        }));
        Ok(embedded)
    }

    /// The cgroups below the root of all pods.
    pub fn cgroups(&self) -> Cgroups {
        self.inner.runtime.cgroups().clone()
    }

    pub fn images(&self) -> &ImageStore {
        &self.inner.images
    }

    async fn take_up(&self) -> Result<()> {
        let mut live = BTreeSet::new();
        for sandbox in self.inner.runtime.list_sandboxes() {
            let uid = sandbox.labels.get(labels::POD_UID).cloned().unwrap_or_default();
            lock(&self.inner.pods).insert(sandbox.id.clone(), uid);
            if sandbox.state == SandboxState::Ready && sandbox.netns_path.is_some() {
                let ips = self.inner.network.addresses(&sandbox.id).await.map_err(errors::network)?;
                lock(&self.inner.addresses).insert(sandbox.id.clone(), ips);
                live.insert(sandbox.id);
            }
        }
        self.inner.network.retain(&live).await.map_err(errors::network)?;
        let containers: BTreeSet<String> =
            self.inner.runtime.list_containers().into_iter().map(|c| c.spec.id.clone()).collect();
        for snapshot in self.inner.images.snapshots().await.map_err(errors::image)? {
            if !containers.contains(image_volumes::owner(&snapshot.name))
                && let Err(error) = self.inner.images.remove_snapshot(&snapshot.name).await
            {
                tracing::warn!(snapshot = %snapshot.name, error = %error.chain(), "cannot remove a snapshot");
            }
        }
        Ok(())
    }
}

impl Inner {
    /// Emits an event for every pod, as events may have been missed.
    fn notify_all(&self) {
        let all: Vec<(String, String)> = lock(&self.pods).clone().into_iter().collect();
        for (sandbox_id, pod_uid) in all {
            let (container_id, kind) = (String::new(), RuntimeEventKind::ContainerExited);
            let _ = self.events.send(RuntimeEvent { pod_uid, sandbox_id, container_id, kind });
        }
    }

    /// Subscribes to the runtime's events again, after some may have been missed.
    fn listen_anew(&self) -> broadcast::Receiver<Event> {
        let events = self.runtime.events();
        self.notify_all();
        events
    }
}

/// Forwards the runtime's events, with the pod to which they belong.
async fn forward(inner: std::sync::Weak<Inner>, mut events: broadcast::Receiver<Event>) {
    loop {
        let event = match events.recv().await {
            Ok(event) => event,
            Err(RecvError::Lagged(_)) => {
                let Some(inner) = inner.upgrade() else { return };
                inner.notify_all();
                continue;
            }
            Err(RecvError::Closed) => return,
        };
        let Some(inner) = inner.upgrade() else { return };
        let (sandbox_id, container_id, kind) = match event {
            Event::ContainerStarted { sandbox_id, status } => {
                (sandbox_id, status.id, RuntimeEventKind::ContainerStarted)
            }
            Event::ContainerExited { sandbox_id, status } => {
                (sandbox_id, status.id, RuntimeEventKind::ContainerExited)
            }
            Event::ContainerOom { sandbox_id, container_id } => {
                (sandbox_id, container_id, RuntimeEventKind::ContainerOom)
            }
            Event::SandboxStopped { sandbox_id } => {
                (sandbox_id, String::new(), RuntimeEventKind::SandboxStopped)
            }
        };
        let pod_uid = lock(&inner.pods).get(&sandbox_id).cloned().unwrap_or_default();
        let _ = inner.events.send(RuntimeEvent { pod_uid, sandbox_id, container_id, kind });
    }
}

#[async_trait]
impl ContainerRuntime for Embedded {
    fn version(&self) -> RuntimeVersion {
        RuntimeVersion { name: "knarr".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() }
    }

    fn features(&self) -> RuntimeFeatures {
        let default = RuntimeHandler {
            name: String::new(),
            recursive_read_only_mounts: true,
            user_namespaces: user_namespaces::host_has_them(),
        };
        let others = self.inner.handlers.iter().map(|handler| RuntimeHandler {
            name: handler.name.clone(),
            recursive_read_only_mounts: handler.program.recursive_read_only_mounts,
            user_namespaces: false,
        });
        RuntimeFeatures {
            handlers: std::iter::once(default).chain(others).collect(),
            supplemental_groups_policy: true,
            app_armor: true,
            se_linux: false,
        }
    }

    /// Returns nothing: the runtime has no metrics of its own.
    fn metrics(&self) -> String {
        String::new()
    }

    /// Returns ready: the runtime runs as long as this process.
    async fn readiness(&self) -> Readiness {
        Readiness::default()
    }

    async fn run_pod_sandbox(&self, config: &PodSandboxConfig) -> Result<String> {
        let (this, config) = (self.clone(), config.clone());
        unbroken(async move { this.run_sandbox(config).await }).await
    }

    async fn stop_pod_sandbox(&self, id: &str) -> Result<()> {
        let (this, id) = (self.clone(), id.to_owned());
        unbroken(async move { this.stop_sandbox(&id).await }).await
    }

    async fn remove_pod_sandbox(&self, id: &str) -> Result<()> {
        let (this, id) = (self.clone(), id.to_owned());
        unbroken(async move { this.remove_sandbox(&id).await }).await
    }

    async fn list_pod_sandboxes(&self) -> Result<Vec<PodSandboxStatus>> {
        Ok(self.sandboxes())
    }

    async fn create_container(
        &self,
        sandbox_id: &str,
        config: &ContainerConfig,
        _: &PodSandboxConfig,
    ) -> Result<String> {
        let (this, sandbox_id, config) = (self.clone(), sandbox_id.to_owned(), config.clone());
        unbroken(async move { this.make_container(&sandbox_id, config).await }).await
    }

    async fn start_container(&self, id: &str) -> Result<()> {
        self.inner.runtime.start_container(id).await.map(drop).map_err(errors::container)
    }

    async fn stop_container(&self, id: &str, grace_seconds: u64) -> Result<()> {
        let grace = std::time::Duration::from_secs(grace_seconds);
        errors::fine_if_missing(self.inner.runtime.stop_container(id, grace).await.map(drop))
    }

    async fn remove_container(&self, id: &str) -> Result<()> {
        let (this, id) = (self.clone(), id.to_owned());
        unbroken(async move { this.drop_container(&id).await }).await
    }

    async fn list_containers(&self) -> Result<Vec<ContainerStatus>> {
        Ok(self.inner.runtime.list_containers().iter().map(containers::status).collect())
    }

    async fn container_status(&self, id: &str) -> Result<ContainerStatus> {
        self.inner.runtime.container(id).map(|c| containers::status(&c)).map_err(errors::container)
    }

    async fn pod_status(&self, uid: &str) -> Result<PodRuntimeStatus> {
        Ok(self.status_of(uid))
    }

    async fn update_container_resources(&self, id: &str, resources: &Resources) -> Result<()> {
        self.inner.runtime.update_resources(id, resources.clone()).await.map_err(errors::container)
    }

    async fn container_limits(&self, id: &str) -> Result<Resources> {
        self.inner.runtime.container_limits(id).map_err(errors::container)
    }

    async fn reopen_container_log(&self, id: &str) -> Result<()> {
        self.inner.runtime.reopen_log(id).await.map_err(errors::container)
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
        let sandbox = self.inner.runtime.sandbox_status(sandbox_id).map_err(errors::container)?;
        self.inner.forwards.connect(sandbox_id, sandbox.netns_path, port).await
    }

    async fn container_stats(&self, id: &str) -> Result<ContainerStats> {
        let container = self.inner.runtime.container(id).map_err(errors::container)?;
        self.stats_of(&container, Disk::LeftOut).await
    }

    async fn list_container_stats(&self, disk: Disk) -> Result<Vec<ContainerStats>> {
        let containers = self.inner.runtime.list_containers();
        let all = join_all(containers.iter().map(|container| self.stats_of(container, disk))).await;
        // Containers that are removed meanwhile are left out.
        Ok(all.into_iter().flatten().collect())
    }

    async fn list_sandbox_stats(&self) -> Result<Vec<SandboxStats>> {
        Ok(self.all_sandbox_stats())
    }

    async fn usage_details(&self) -> Result<Vec<UsageDetails>> {
        Ok(self.all_details())
    }

    async fn image_status(&self, name: &str) -> Result<Option<Image>> {
        self.find_image(name).await
    }

    async fn list_images(&self) -> Result<Vec<Image>> {
        let images = self.inner.images.list().await.map_err(errors::image)?;
        Ok(images.iter().map(images::image).collect())
    }

    async fn pull_image(&self, name: &str, keyring: &Keyring) -> Result<PulledImage> {
        self.pull(name, keyring).await
    }

    async fn remove_image(&self, name: &str) -> Result<()> {
        self.inner.images.remove(name).await.map(drop).map_err(errors::image)
    }

    async fn image_fs_info(&self) -> Result<FsInfo> {
        self.inner.images.fs_info().await.map_err(errors::image)
    }

    fn events(&self) -> broadcast::Receiver<RuntimeEvent> {
        self.inner.events.subscribe()
    }
}
