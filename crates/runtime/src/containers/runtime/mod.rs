//! The embedded runtime's interface for the kubelet: sandboxes and containers by id, events, recovery after
//! restarts.

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

/// A receiver that is this many events behind misses events and must list again.
const EVENT_QUEUE: usize = 1024;

/// The paths, the shim program and the cgroups of a runtime.
#[derive(Debug, Clone)]
pub struct RuntimeOptions {
    /// Contains sockets, mounts and exit codes; created if missing. It must survive a restart of the server.
    pub state_dir: PathBuf,
    /// The executable to run as shim, and the arguments that select the shim, for example `["shim"]`.
    pub shim: PathBuf,
    pub shim_args: Vec<String>,
    /// The parent of the pods' cgroups, for example `/kubepods`.
    pub cgroup_root: String,
    /// The cgroup of the shims, for example `/knarr-shims`; outside of `cgroup_root`.
    pub shim_cgroup: String,
}

/// A handle to the runtime; clones share the same state.
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

/// Runs blocking work outside of the async threads.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Error::Io { what: "background work", source: std::io::Error::other(error) })
}

/// Runs work to its end even if the caller stops waiting, because half-done work would leave a process or an
/// entry that no code tracks.
async fn unbroken<T: Send + 'static>(work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    tokio::spawn(work)
        .await
        .map_err(|error| Error::Io { what: "background work", source: std::io::Error::other(error) })?
}

impl Runtime {
    /// Opens the state folder and recovers every sandbox in it. Sandboxes with a living shim continue
    /// unchanged; containers of dead shims are reported as exited with code 137.
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
                    // The pod gets a new sandbox, which would share cgroup and address with this one.
                    tracing::error!(sandbox = %id, why, "cannot recover a sandbox; ending its containers");
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
                        tracing::error!(sandbox = %id, %error, "cannot remove everything of the sandbox");
                    }
                }
                Left::Nothing => {
                    tracing::warn!(sandbox = %id, "removing a sandbox folder without a record");
                    if let Ok(Err(error)) | Err(error) =
                        blocking(move || sandbox::remove_folder(&folder)).await
                    {
                        tracing::error!(sandbox = %id, %error, "cannot remove everything of the sandbox");
                    }
                }
            }
        }
        Ok(runtime)
    }

    /// Returns the cgroups below `cgroup_root`, for the cgroups of pods and QoS classes.
    pub fn cgroups(&self) -> &Cgroups {
        &self.inner.cgroups
    }

    /// Returns a receiver of all starts, exits and out-of-memory kills from now on.
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.inner.events.subscribe()
    }

    /// Creates a sandbox. In its network namespace only `lo` is up; the caller connects it to the network.
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

    /// Returns the status of a sandbox.
    pub fn sandbox_status(&self, id: &str) -> Result<SandboxStatus> {
        self.sandbox(id).map(|sandbox| sandbox.status())
    }

    /// Returns the status of all sandboxes, sorted by id.
    pub fn list_sandboxes(&self) -> Vec<SandboxStatus> {
        lock(&self.inner.sandboxes).values().map(|sandbox| sandbox.status()).collect()
    }

    /// Kills all containers at once, ends the shim and removes mounts and namespaces. The statuses of the
    /// containers stay available until `remove_sandbox`. Stopping a stopped sandbox succeeds.
    pub async fn stop_sandbox(&self, id: &str) -> Result<()> {
        let sandbox = self.sandbox(id)?;
        sandbox.stop().await
    }

    /// Stops the sandbox if it runs, and forgets it and its containers. The caller removes log files and the
    /// pod's cgroup.
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

    /// Returns the sandbox that a container belongs to.
    fn sandbox_of(&self, container_id: &str) -> Result<Arc<Sandbox>> {
        lock(&self.inner.sandboxes)
            .values()
            .find(|sandbox| sandbox.has(container_id))
            .cloned()
            .ok_or_else(|| Error::ContainerNotFound(container_id.to_owned()))
    }
}
