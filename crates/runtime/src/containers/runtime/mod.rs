//! The embedded runtime as the kubelet uses it: sandboxes and containers by id, events, restarts.

mod containers;
mod exec;
mod sandbox;
mod shim_program;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use tokio::sync::broadcast;

use super::cgroups::Cgroups;
use super::protocol::VERSION;
use super::spec::{SandboxConfig, sandbox_fault, valid_id};
use super::state::{self, Left, SandboxFolder, SandboxRecord};
use super::status::{Event, SandboxStatus};
use super::{Error, Result};
pub use containers::Container;
pub use exec::{AttachRequest, ExecOutput, ExecRequest};
use sandbox::Sandbox;
use shim_program::ShimProgram;

/// A slow receiver that falls this far behind misses events and has to list.
const EVENT_QUEUE: usize = 1024;

#[derive(Debug, Clone)]
pub struct RuntimeOptions {
    /// Holds sockets, mounts and exit codes; made if missing. Must survive a restart of the server.
    pub state_dir: PathBuf,
    /// The executable to run as shim, and the arguments that make it one, such as `["shim"]`.
    pub shim: PathBuf,
    pub shim_args: Vec<String>,
    /// Where pod cgroups go, such as `/kubepods`.
    pub cgroup_root: String,
    /// Where the shims themselves go, such as `/knarr-shims`; outside of `cgroup_root`.
    pub shim_cgroup: String,
}

/// A handle; clones share everything.
#[derive(Clone)]
pub struct Runtime {
    inner: Arc<Inner>,
}

struct Inner {
    options: RuntimeOptions,
    shim: Arc<ShimProgram>,
    cgroups: Cgroups,
    shim_cgroups: Cgroups,
    sandboxes: Mutex<BTreeMap<String, Arc<Sandbox>>>,
    events: broadcast::Sender<Event>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs blocking work off the async threads.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Error::Io { what: "background work", source: std::io::Error::other(error) })
}

/// Runs work to its end even if the caller stops waiting, where half of it would leave a process or an
/// entry that nobody knows.
async fn unbroken<T: Send + 'static>(work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    tokio::spawn(work)
        .await
        .map_err(|error| Error::Io { what: "background work", source: std::io::Error::other(error) })?
}

impl Runtime {
    /// Opens the state folder and takes up every sandbox found in it: those with a living shim go on as
    /// if nothing had happened; containers of dead ones are reported exited with code 137.
    pub async fn open(mut options: RuntimeOptions) -> Result<Self> {
        state::make_private_folder(&state::sandboxes(&options.state_dir))
            .map_err(Error::file("make", &options.state_dir))?;
        // Mount points are compared by their canonical path.
        options.state_dir =
            fs::canonicalize(&options.state_dir).map_err(Error::file("open", &options.state_dir))?;
        let cgroups = Cgroups::detect(&options.cgroup_root)?;
        let shim_cgroups = Cgroups::detect(&options.shim_cgroup)?;
        let shim = ShimProgram::open(&options.shim, &options.shim_args);
        let shim = Arc::new(shim.map_err(Error::file("open", &options.shim))?);
        let (events, _) = broadcast::channel(EVENT_QUEUE);
        let inner = Inner { options, shim, cgroups, shim_cgroups, sandboxes: Mutex::default(), events };
        let runtime = Self { inner: Arc::new(inner) };
        let folder = state::sandboxes(&runtime.inner.options.state_dir);
        for id in state::folder_names(&folder) {
            let folder = SandboxFolder::new(folder.join(&id));
            match Left::read(&folder) {
                Left::Record(record) => {
                    let sandbox = Sandbox::recover(folder, *record, runtime.inner.events.clone()).await;
                    lock(&runtime.inner.sandboxes).insert(id, sandbox);
                }
                Left::Foreign { why, cgroup_parent } => {
                    // Its pod gets another one, with which it would share cgroup and address.
                    tracing::error!(sandbox = %id, why, "a sandbox cannot be taken up: its containers are ended");
                    let cgroups = runtime.inner.cgroups.clone();
                    let removed = blocking(move || {
                        let removed = sandbox::remove_folder(&folder);
                        cgroup_parent
                            .filter(|path| !path.is_empty())
                            .iter()
                            .for_each(|path| cgroups.kill_all(path));
                        removed
                    });
                    if let Ok(Err(error)) | Err(error) = removed.await {
                        tracing::error!(sandbox = %id, %error, "the sandbox left something behind");
                    }
                }
                Left::Nothing => {
                    tracing::warn!(sandbox = %id, "removing a sandbox folder without a record");
                    if let Ok(Err(error)) | Err(error) =
                        blocking(move || sandbox::remove_folder(&folder)).await
                    {
                        tracing::error!(sandbox = %id, %error, "the sandbox left something behind");
                    }
                }
            }
        }
        Ok(runtime)
    }

    /// The cgroups below `cgroup_root`, for pod and QoS cgroups.
    pub fn cgroups(&self) -> &Cgroups {
        &self.inner.cgroups
    }

    /// Starts, exits and kills from now on.
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.inner.events.subscribe()
    }

    /// Makes a sandbox. Its network namespace is there with `lo` up and waits to be wired.
    pub async fn run_sandbox(&self, config: SandboxConfig) -> Result<SandboxStatus> {
        if !valid_id(&config.id) {
            return Err(Error::Invalid(format!("sandbox id {:?}", config.id)));
        }
        if let Some(fault) = sandbox_fault(&config) {
            return Err(Error::Invalid(fault));
        }
        let runtime = self.clone();
        unbroken(async move { runtime.make_sandbox(config).await }).await
    }

    async fn make_sandbox(&self, config: SandboxConfig) -> Result<SandboxStatus> {
        let id = config.id.clone();
        let folder = SandboxFolder::new(state::sandboxes(&self.inner.options.state_dir).join(&id));
        match fs::create_dir(folder.path()) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                return Err(Error::AlreadyExists(id));
            }
            other => other.map_err(Error::file("make", folder.path()))?,
        }
        let record = SandboxRecord {
            version: VERSION,
            config,
            created_at: Timestamp::now(),
            cgroups: self.inner.cgroups.clone(),
            shim_cgroups: self.inner.shim_cgroups.clone(),
        };
        let started =
            Sandbox::start(self.inner.shim.clone(), folder.clone(), record, self.inner.events.clone()).await;
        match started {
            Ok(sandbox) => {
                let status = sandbox.status();
                lock(&self.inner.sandboxes).insert(id, sandbox);
                Ok(status)
            }
            Err(error) => {
                let removed = blocking(move || sandbox::remove_folder(&folder)).await;
                if let Ok(Err(remove_error)) | Err(remove_error) = removed {
                    tracing::warn!(%remove_error, "a failed sandbox left files behind");
                }
                Err(error)
            }
        }
    }

    pub fn sandbox_status(&self, id: &str) -> Result<SandboxStatus> {
        self.sandbox(id).map(|sandbox| sandbox.status())
    }

    /// By id.
    pub fn list_sandboxes(&self) -> Vec<SandboxStatus> {
        lock(&self.inner.sandboxes).values().map(|sandbox| sandbox.status()).collect()
    }

    /// Kills all containers at once, ends the shim and takes down mounts and namespaces. What is known
    /// of the containers stays until `remove_sandbox`. Stopping twice is no fault.
    pub async fn stop_sandbox(&self, id: &str) -> Result<()> {
        let sandbox = self.sandbox(id)?;
        sandbox.stop().await
    }

    /// Stops the sandbox if need be and forgets it and its containers. Log files and the pod's cgroup
    /// are the caller's.
    pub async fn remove_sandbox(&self, id: &str) -> Result<()> {
        let sandbox = match self.sandbox(id) {
            Err(Error::SandboxNotFound(_)) => return Ok(()),
            other => other?,
        };
        sandbox.stop().await?;
        let (folder, cgroups) = (sandbox.folder().clone(), self.inner.cgroups.clone());
        let paths = sandbox.container_cgroups();
        blocking(move || {
            for path in paths {
                cgroups.remove(&path)?;
            }
            sandbox::remove_folder(&folder)
        })
        .await??;
        lock(&self.inner.sandboxes).remove(id);
        Ok(())
    }

    fn sandbox(&self, id: &str) -> Result<Arc<Sandbox>> {
        lock(&self.inner.sandboxes).get(id).cloned().ok_or_else(|| Error::SandboxNotFound(id.to_owned()))
    }

    /// The sandbox that holds a container.
    fn sandbox_of(&self, container_id: &str) -> Result<Arc<Sandbox>> {
        lock(&self.inner.sandboxes)
            .values()
            .find(|sandbox| sandbox.has(container_id))
            .cloned()
            .ok_or_else(|| Error::ContainerNotFound(container_id.to_owned()))
    }
}
