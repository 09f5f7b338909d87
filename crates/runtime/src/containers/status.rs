//! What the runtime reports: the states of sandboxes and containers, and events.

use std::collections::BTreeMap;
use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Whether a sandbox's shim is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SandboxState {
    Ready,
    NotReady,
}

/// The current state of a sandbox.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxStatus {
    pub id: String,
    pub state: SandboxState,
    pub created_at: Timestamp,
    /// The shim's pid on the host; 0 after the shim has ended.
    pub pid: i32,
    /// The bind mount of the network namespace; `None` if the sandbox uses the host's network.
    pub netns_path: Option<PathBuf>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

/// The state of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContainerState {
    Created,
    Running,
    Exited,
}

/// The current state of one container. `reason` and `message` are for people; reasons are `Completed`, `Error`,
/// `OOMKilled`, `StartError` and `ContainerStatusUnknown`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContainerStatus {
    pub id: String,
    pub state: ContainerState,
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// The first process's pid on the host; 0 unless it is running.
    #[serde(default)]
    pub pid: i32,
    /// Set after the exit: the process's own code, or 128 + signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    #[serde(default)]
    pub oom_killed: bool,
    #[serde(default)]
    pub reason: String,
    #[serde(default)]
    pub message: String,
}

impl ContainerStatus {
    pub(super) fn created(id: &str, now: Timestamp) -> Self {
        Self {
            id: id.to_owned(),
            state: ContainerState::Created,
            created_at: now,
            started_at: None,
            finished_at: None,
            pid: 0,
            exit_code: None,
            signal: None,
            oom_killed: false,
            reason: String::new(),
            message: String::new(),
        }
    }

    pub(super) fn running(&mut self, pid: i32, now: Timestamp) {
        self.state = ContainerState::Running;
        self.pid = pid;
        self.started_at = Some(now);
    }

    pub(super) fn exited(&mut self, exit_code: i32, signal: Option<i32>, oom_killed: bool, now: Timestamp) {
        self.state = ContainerState::Exited;
        self.pid = 0;
        self.exit_code = Some(exit_code);
        self.signal = signal;
        self.oom_killed = oom_killed;
        self.finished_at = Some(now);
        self.reason = match (oom_killed, exit_code) {
            (true, _) => "OOMKilled",
            (false, 0) => "Completed",
            (false, _) => "Error",
        }
        .to_owned();
    }

    /// Records that the process could not be started, as containerd reports it.
    pub(super) fn start_failed(&mut self, message: &str, now: Timestamp) {
        self.exited(128, None, false, now);
        self.reason = "StartError".to_owned();
        self.message = message.to_owned();
    }

    /// Records that the exit code is unknown, because no shim was alive to wait for the process.
    pub(super) fn lost(&mut self, now: Timestamp) {
        self.exited(137, None, false, now);
        self.reason = "ContainerStatusUnknown".to_owned();
        self.message = "The container's shim is gone; its exit status is not known".to_owned();
    }
}

/// A change that is sent to [`super::Runtime::events`].
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    ContainerStarted {
        sandbox_id: String,
        status: ContainerStatus,
    },
    ContainerExited {
        sandbox_id: String,
        status: ContainerStatus,
    },
    /// The kernel killed a process of the container for lack of memory; the container may still run.
    ContainerOom {
        sandbox_id: String,
        container_id: String,
    },
    /// The sandbox's shim has ended, whether or not it was asked to.
    SandboxStopped {
        sandbox_id: String,
    },
}

/// The size of a terminal, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    pub columns: u16,
    pub rows: u16,
}
