//! One sandbox on the server's side: the connection to its shim and the state of its containers.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::process::Stdio;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{broadcast, watch};

use super::shim_program::ShimProgram;
use super::{blocking, lock};
use crate::containers::client::{Notice, ShimClient};
use crate::containers::protocol::{Ready, Request, incompatible, lost_by};
use crate::containers::purge::kill_shim;
use crate::containers::spec::{ContainerSpec, IdRange};
use crate::containers::state::{self, SandboxFolder, SandboxRecord};
use crate::containers::status::{ContainerState, ContainerStatus, Event, SandboxState, SandboxStatus};
use crate::containers::{Error, Result};

/// Creating namespaces and a few mounts takes milliseconds, unless the machine is badly overloaded.
const SETUP_TIMEOUT: Duration = Duration::from_secs(30);
/// A shim that cannot end its containers within this time is killed itself.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
const TAKE_UP_TIMEOUT: Duration = Duration::from_secs(10);
const SHIM_EXIT_TIMEOUT: Duration = Duration::from_secs(5);
/// More than the one line that a new shim prints.
const READY_BYTES: u64 = 64 << 10;

/// A container with its spec and latest status.
#[derive(Clone)]
pub struct Entry {
    pub spec: Arc<ContainerSpec>,
    pub status: ContainerStatus,
}

/// One sandbox of the runtime.
pub struct Sandbox {
    folder: SandboxFolder,
    record: SandboxRecord,
    events: broadcast::Sender<Event>,
    inside: Mutex<Inside>,
    /// Counts changes, to wake tasks that wait for one.
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct Inside {
    client: Option<ShimClient>,
    pid: i32,
    containers: BTreeMap<String, Entry>,
}

impl Sandbox {
    fn new(folder: SandboxFolder, record: SandboxRecord, events: broadcast::Sender<Event>) -> Arc<Self> {
        let (changes, _) = watch::channel(0);
        Arc::new(Self { folder, record, events, inside: Mutex::default(), changes })
    }

    /// Starts a shim and waits until the sandbox's namespaces exist.
    pub async fn start(
        shim: Arc<ShimProgram>,
        folder: SandboxFolder,
        record: SandboxRecord,
        events: broadcast::Sender<Event>,
    ) -> Result<Arc<Self>> {
        state::write_json(&folder.record(), &record).map_err(Error::file("write", folder.record()))?;
        let shim_folder = folder.clone();
        let spawned = blocking(move || spawn_shim(&shim, &shim_folder));
        let ready = tokio::time::timeout(SETUP_TIMEOUT, spawned)
            .await
            .map_err(|_| Error::ShimTimeout(SETUP_TIMEOUT.as_secs()))???;
        let pid = match ready {
            Ready::Pid { pid, version } => match incompatible(version) {
                None => pid,
                Some(why) => return Err(Error::Setup(why)),
            },
            Ready::Error(message) => return Err(Error::Setup(message)),
        };
        let sandbox = Self::new(folder, record, events);
        sandbox.connect(pid).await?;
        Ok(sandbox)
    }

    /// Recovers a sandbox that an earlier server left.
    pub async fn recover(
        folder: SandboxFolder,
        record: SandboxRecord,
        events: broadcast::Sender<Event>,
    ) -> Arc<Self> {
        let sandbox = Self::new(folder, record, events);
        {
            let mut inside = lock(&sandbox.inside);
            for id in sandbox.folder.container_ids() {
                let spec = state::read_json::<ContainerSpec>(&sandbox.folder.spec(&id));
                let status = state::read_json::<ContainerStatus>(&sandbox.folder.status(&id));
                if let (Some(spec), Some(status)) = (spec, status) {
                    inside.containers.insert(id, Entry { spec: Arc::new(spec), status });
                }
            }
        }
        let pid =
            fs::read_to_string(sandbox.folder.pid_file()).ok().and_then(|text| text.trim().parse().ok());
        if let Err(error) = sandbox.connect(pid.unwrap_or(0)).await {
            tracing::info!(sandbox = %sandbox.id(), %error, "the sandbox's shim does not answer");
            // A shim that lives but does not answer is treated as dead, and must not keep any resources.
            let folder = sandbox.folder.clone();
            let _ = blocking(move || kill_shim(&folder)).await;
            sandbox.shim_gone();
        }
        sandbox
    }

    async fn connect(self: &Arc<Self>, pid: i32) -> Result<()> {
        let weak: Weak<Self> = Arc::downgrade(self);
        let notice = Box::new(move |notice| {
            if let Some(sandbox) = weak.upgrade() {
                sandbox.notice(notice);
            }
        });
        let client = ShimClient::connect(self.id(), &self.folder, notice)
            .map_err(Error::file("connect to the shim at", self.folder.socket()))?;
        // The statuses in the answer arrive as notices.
        client.call_within(Request::Subscribe, Vec::new(), TAKE_UP_TIMEOUT).await?;
        let mut inside = lock(&self.inside);
        inside.client = Some(client);
        inside.pid = pid;
        Ok(())
    }

    pub fn id(&self) -> &str {
        &self.record.config.id
    }

    pub fn folder(&self) -> &SandboxFolder {
        &self.folder
    }

    pub fn status(&self) -> SandboxStatus {
        let inside = lock(&self.inside);
        let ready = inside.client.is_some();
        let config = &self.record.config;
        SandboxStatus {
            id: config.id.clone(),
            state: if ready { SandboxState::Ready } else { SandboxState::NotReady },
            created_at: self.record.created_at,
            pid: if ready { inside.pid } else { 0 },
            netns_path: (!config.host_network).then(|| self.folder.netns()),
            labels: config.labels.clone(),
            annotations: config.annotations.clone(),
        }
    }

    /// Returns the connection to the shim; an error if it has ended.
    pub fn client(&self) -> Result<ShimClient> {
        let client = lock(&self.inside).client.clone();
        client.ok_or_else(|| Error::State(format!("sandbox {:?} is not running", self.id())))
    }

    /// Returns why the sandbox's shim cannot run the container; `None` if it can.
    pub fn lost_by(&self, spec: &ContainerSpec) -> Option<String> {
        lost_by(self.record.version, spec)
    }

    pub fn user_namespace(&self) -> Option<IdRange> {
        self.record.config.user_namespace
    }

    pub fn has(&self, container_id: &str) -> bool {
        lock(&self.inside).containers.contains_key(container_id)
    }

    pub fn entry(&self, container_id: &str) -> Result<Entry> {
        let entry = lock(&self.inside).containers.get(container_id).cloned();
        entry.ok_or_else(|| Error::ContainerNotFound(container_id.to_owned()))
    }

    pub fn entries(&self) -> Vec<Entry> {
        lock(&self.inside).containers.values().cloned().collect()
    }

    pub fn insert(&self, entry: Entry) {
        lock(&self.inside).containers.entry(entry.status.id.clone()).or_insert(entry);
    }

    pub fn forget(&self, container_id: &str) {
        lock(&self.inside).containers.remove(container_id);
    }

    pub fn cgroup_of(&self, container_id: &str) -> String {
        format!("{}/{container_id}", self.record.config.cgroup_parent)
    }

    pub fn container_cgroups(&self) -> Vec<String> {
        lock(&self.inside).containers.keys().map(|id| self.cgroup_of(id)).collect()
    }

    /// Resolves when the container has exited.
    pub async fn exited(&self, container_id: &str) -> Result<ContainerStatus> {
        let mut changes = self.changes.subscribe();
        loop {
            changes.borrow_and_update();
            let status = self.entry(container_id)?.status;
            if status.state == ContainerState::Exited {
                return Ok(status);
            }
            if changes.changed().await.is_err() {
                return Err(Error::ShimGone(self.id().to_owned()));
            }
        }
    }

    fn notice(&self, notice: Notice) {
        match notice {
            Notice::Status(status) => self.take_status(status),
            Notice::Oom(container_id) => {
                let _ =
                    self.events.send(Event::ContainerOom { sandbox_id: self.id().to_owned(), container_id });
            }
            Notice::Closed => self.shim_gone(),
        }
    }

    fn take_status(&self, status: ContainerStatus) {
        let before = {
            let mut inside = lock(&self.inside);
            let Some(entry) = inside.containers.get_mut(&status.id) else { return };
            std::mem::replace(&mut entry.status, status.clone()).state
        };
        self.changes.send_modify(|count| *count += 1);
        let sandbox_id = self.id().to_owned();
        let event = match (before, status.state) {
            (ContainerState::Created, ContainerState::Running) => {
                Event::ContainerStarted { sandbox_id, status }
            }
            (ContainerState::Created | ContainerState::Running, ContainerState::Exited) => {
                Event::ContainerExited { sandbox_id, status }
            }
            _ => return,
        };
        let _ = self.events.send(event);
    }

    /// Handles the end of the shim. Statuses that it wrote last are on disk; containers without a final status
    /// died with it.
    fn shim_gone(&self) {
        let ids: Vec<String> = {
            let mut inside = lock(&self.inside);
            inside.client = None;
            inside.pid = 0;
            inside.containers.keys().cloned().collect()
        };
        for id in ids {
            let on_disk = state::read_json::<ContainerStatus>(&self.folder.status(&id));
            let Some(mut status) = on_disk.or_else(|| self.entry(&id).ok().map(|entry| entry.status)) else {
                continue;
            };
            if status.state != ContainerState::Exited {
                self.record.cgroups.kill_all(&self.cgroup_of(&id));
                status.lost(Timestamp::now());
                if let Err(error) = state::write_json(&self.folder.status(&id), &status) {
                    tracing::warn!(container = %id, %error, "cannot write status");
                }
            }
            self.take_status(status);
        }
        self.changes.send_modify(|count| *count += 1);
        let _ = self.events.send(Event::SandboxStopped { sandbox_id: self.id().to_owned() });
    }

    /// Ends the shim and all its containers, by force if it does not answer.
    pub async fn stop(self: &Arc<Self>) -> Result<()> {
        let client = lock(&self.inside).client.clone();
        if let Some(client) = client {
            let answer = client.call_within(Request::Stop, Vec::new(), STOP_TIMEOUT).await;
            if let Err(error) = answer {
                tracing::warn!(sandbox = %self.id(), %error, "the shim did not stop; killing it");
                let folder = self.folder.clone();
                blocking(move || kill_shim(&folder)).await?;
            }
            let _ = tokio::time::timeout(SHIM_EXIT_TIMEOUT, client.closed()).await;
        }
        let sandbox = self.clone();
        blocking(move || {
            for path in sandbox.container_cgroups() {
                sandbox.record.cgroups.remove(&path)?;
            }
            state::unmount_below(sandbox.folder.path());
            Ok(())
        })
        .await?
    }
}

/// Runs the shim's first process, which ends when the actual shim is ready.
fn spawn_shim(shim: &ShimProgram, folder: &SandboxFolder) -> Result<Ready> {
    let log = fs::File::create(folder.shim_log()).map_err(Error::file("make", folder.shim_log()))?;
    let mut child = shim
        .command(folder)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .map_err(Error::io("run the shim"))?;
    let mut text = String::new();
    let read = match child.stdout.take() {
        Some(stdout) => stdout.take(READY_BYTES).read_to_string(&mut text).map(drop),
        None => Err(io::ErrorKind::BrokenPipe.into()),
    };
    child.wait().map_err(Error::io("wait for the shim"))?;
    read.map_err(Error::io("read from the shim"))?;
    serde_json::from_str(&text).map_err(|_| {
        let log = fs::read_to_string(folder.shim_log()).unwrap_or_default();
        let last = log.lines().next_back().unwrap_or("it ended without a message").to_owned();
        Error::Setup(last)
    })
}

/// Removes the mounts and processes that are left of a sandbox, and deletes its folder.
pub fn remove_folder(folder: &SandboxFolder) -> Result<()> {
    kill_shim(folder);
    state::unmount_below(folder.path());
    crate::remove_folder(folder.path()).map_err(Error::file("remove", folder.path()))
}
