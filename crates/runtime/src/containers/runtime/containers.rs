//! Containers of the embedded runtime: create, start, stop, remove, inspect.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::sandbox::{Entry, Sandbox};
use super::{Runtime, blocking, lock, unbroken};
use crate::containers::cgroups::{Resources, Stats};
use crate::containers::protocol::{Request, Response};
use crate::containers::spec::{ContainerSpec, IdRange, spec_fault};
use crate::containers::status::{ContainerState, ContainerStatus, TerminalSize};
use crate::containers::{Error, Result, signal_number};

/// How long to wait for a killed container to exit before the stop is reported as failed.
const KILL_WAIT: Duration = Duration::from_secs(10);
/// How often the kill is repeated meanwhile, for processes that were forked during it.
const KILL_REPEAT: Duration = Duration::from_millis(500);

/// A container with its sandbox's id and the spec that it was created from.
#[derive(Debug, Clone)]
pub struct Container {
    pub sandbox_id: String,
    pub spec: Arc<ContainerSpec>,
    pub status: ContainerStatus,
}

impl Runtime {
    /// Returns a sandbox's own user namespace and its ids, if it has one. Blocks.
    pub fn user_namespace(&self, sandbox_id: &str) -> Result<Option<(OwnedFd, IdRange)>> {
        let sandbox = self.sandbox(sandbox_id)?;
        let Some(ids) = sandbox.user_namespace() else { return Ok(None) };
        let path = sandbox.folder().userns();
        let file = File::open(&path).map_err(Error::file("open", &path))?;
        Ok(Some((file.into(), ids)))
    }

    /// Creates a container without starting it. The spec is stored on disk.
    pub async fn create_container(&self, sandbox_id: &str, spec: ContainerSpec) -> Result<()> {
        if let Some(fault) = spec_fault(&spec) {
            return Err(Error::Invalid(fault));
        }
        let sandbox = self.sandbox(sandbox_id)?;
        if self.sandbox_of(&spec.id).is_ok() {
            return Err(Error::AlreadyExists(spec.id));
        }
        if let Some(why) = sandbox.lost_by(&spec) {
            return Err(Error::State(why));
        }
        unbroken(async move {
            let request = Request::Create(Box::new(spec.clone()));
            let (response, _) = sandbox.client()?.call(request, Vec::new()).await?;
            if let Response::Container(status) = response {
                sandbox.insert(Entry { spec: Arc::new(spec), status });
            }
            Ok(())
        })
        .await
    }

    /// Runs the container's program. If it cannot be run, returns an [`Error::Start`], and the container is
    /// exited with code 128 and reason `StartError`.
    pub async fn start_container(&self, id: &str) -> Result<ContainerStatus> {
        let sandbox = self.sandbox_of(id)?;
        sandbox.client()?.call(Request::Start { id: id.to_owned() }, Vec::new()).await?;
        sandbox.entry(id).map(|entry| entry.status)
    }

    /// Sends the stop signal, and after `grace` SIGKILL to all remaining processes. Returns when the container
    /// has exited; stopping an exited container does nothing.
    pub async fn stop_container(&self, id: &str, grace: Duration) -> Result<ContainerStatus> {
        let sandbox = self.sandbox_of(id)?;
        let entry = sandbox.entry(id)?;
        match entry.status.state {
            ContainerState::Exited => return Ok(entry.status),
            ContainerState::Created => {
                // A process may be starting, blocked by a mount that does not answer.
                self.send_signal(&sandbox, id, libc::SIGKILL, true).await?;
                return Ok(entry.status);
            }
            ContainerState::Running => {}
        }
        if !grace.is_zero() {
            let signal = signal_number(&entry.spec.stop_signal).unwrap_or(libc::SIGTERM);
            self.send_signal(&sandbox, id, signal, false).await?;
            if let Ok(status) = tokio::time::timeout(grace, sandbox.exited(id)).await {
                return status;
            }
        }
        let kill = async {
            loop {
                self.send_signal(&sandbox, id, libc::SIGKILL, true).await?;
                if let Ok(status) = tokio::time::timeout(KILL_REPEAT, sandbox.exited(id)).await {
                    return status;
                }
            }
        };
        tokio::time::timeout(KILL_WAIT, kill)
            .await
            .unwrap_or_else(|_| Err(Error::State(format!("container {id:?} did not end after SIGKILL"))))
    }

    /// Sends a signal to the first process or to all of them; does nothing if the container has exited.
    pub async fn kill_container(&self, id: &str, signal: i32, all: bool) -> Result<()> {
        let sandbox = self.sandbox_of(id)?;
        self.send_signal(&sandbox, id, signal, all).await
    }

    async fn send_signal(&self, sandbox: &Sandbox, id: &str, signal: i32, all: bool) -> Result<()> {
        let Ok(client) = sandbox.client() else { return Ok(()) };
        match client.call(Request::Kill { id: id.to_owned(), signal, all }, Vec::new()).await {
            // The container ended meanwhile.
            Err(Error::State(_) | Error::ShimGone(_)) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Waits until the container has exited, without a time limit.
    pub async fn wait_container(&self, id: &str) -> Result<ContainerStatus> {
        self.sandbox_of(id)?.exited(id).await
    }

    /// Kills the container if it runs, and forgets it with its cgroup and exit code. The caller removes its log
    /// file and root file system. Removing an unknown container does nothing.
    pub async fn remove_container(&self, id: &str) -> Result<()> {
        let sandbox = match self.sandbox_of(id) {
            Err(Error::ContainerNotFound(_)) => return Ok(()),
            other => other?,
        };
        self.stop_container(id, Duration::ZERO).await?;
        if let Ok(client) = sandbox.client() {
            match client.call(Request::Delete { id: id.to_owned() }, Vec::new()).await {
                Ok(_) | Err(Error::ShimGone(_)) => {}
                // The shim does not know the container; its files are removed below.
                Err(Error::State(_))
                    if !sandbox.entry(id).is_ok_and(|e| e.status.state == ContainerState::Running) => {}
                Err(error) => return Err(error),
            }
        }
        let (cgroups, path) = (self.inner.cgroups.clone(), sandbox.cgroup_of(id));
        let folder = sandbox.folder().container(id);
        blocking(move || -> Result<()> {
            cgroups.remove(&path)?;
            crate::remove_folder(&folder).map_err(Error::file("remove", &folder))
        })
        .await??;
        sandbox.forget(id);
        Ok(())
    }

    /// Returns a container's spec and status.
    pub fn container(&self, id: &str) -> Result<Container> {
        let sandbox = self.sandbox_of(id)?;
        let Entry { spec, status } = sandbox.entry(id)?;
        Ok(Container { sandbox_id: sandbox.id().to_owned(), spec, status })
    }

    /// Returns all containers, sorted by sandbox and container id.
    pub fn list_containers(&self) -> Vec<Container> {
        let sandboxes: Vec<Arc<Sandbox>> = lock(&self.inner.sandboxes).values().cloned().collect();
        let of = |sandbox: Arc<Sandbox>| {
            let sandbox_id = sandbox.id().to_owned();
            let entries = sandbox.entries().into_iter();
            entries.map(move |Entry { spec, status }| Container {
                sandbox_id: sandbox_id.clone(),
                spec,
                status,
            })
        };
        sandboxes.into_iter().flat_map(of).collect()
    }

    /// Returns the resource usage of a running container.
    pub fn container_stats(&self, id: &str) -> Result<Stats> {
        let sandbox = self.sandbox_of(id)?;
        Ok(self.inner.cgroups.stats(&sandbox.cgroup_of(id)))
    }

    /// Returns the limits in force of a running container, as far as its cgroup shows them.
    pub fn container_limits(&self, id: &str) -> Result<Resources> {
        let sandbox = self.sandbox_of(id)?;
        Ok(self.inner.cgroups.limits(&sandbox.cgroup_of(id)))
    }

    /// Changes the limits that are given and keeps the others.
    pub async fn update_resources(&self, id: &str, resources: Resources) -> Result<()> {
        let sandbox = self.sandbox_of(id)?;
        let request = Request::Update { id: id.to_owned(), resources };
        sandbox.client()?.call(request, Vec::new()).await.map(drop)
    }

    /// Reopens the log after its file was renamed: the container continues in a new file of the same name.
    pub async fn reopen_log(&self, id: &str) -> Result<()> {
        let sandbox = self.sandbox_of(id)?;
        sandbox.client()?.call(Request::ReopenLog { id: id.to_owned() }, Vec::new()).await.map(drop)
    }

    /// Changes the size of the terminal of a container that has one.
    pub async fn resize_container(&self, id: &str, size: TerminalSize) -> Result<()> {
        let sandbox = self.sandbox_of(id)?;
        sandbox.client()?.call(Request::Resize { id: id.to_owned(), size }, Vec::new()).await.map(drop)
    }

    /// Returns the path of the container's log; `None` if its output is discarded.
    pub fn log_path(&self, id: &str) -> Result<Option<PathBuf>> {
        Ok(self.container(id)?.spec.log_path.clone())
    }
}
