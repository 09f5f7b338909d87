//! The interface of container runtimes for the kubelet, modelled on the container runtime interface (CRI).
//!
//! Source: `k8s.io/cri-api`, RuntimeService and ImageService.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;

use async_trait::async_trait;
use jiff::Timestamp;
pub use knarr_runtime::containers::cgroups::Details;
pub use knarr_runtime::containers::{
    CapabilityChange, ContainerState, Device, IdRange, InterfaceStats, PidMode, Propagation, Resources,
    SandboxState, SeccompProfile, Stats, TerminalSize,
};
pub use knarr_runtime::images::{Credential, DiskUsage, FsInfo, ImageUser, Keyring};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{broadcast, mpsc, oneshot};

use crate::pod_network::PortMapping;

/// Display contains the whole text; users see it in events and container states.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuntimeError {
    #[error("{0}")]
    NotFound(String),
    /// A process could not be started; with the text of an OCI runtime.
    #[error("{0}")]
    Start(String),
    /// The command of an exec could not be started, for example because the program does not exist.
    #[error("{message}")]
    Exec { message: String, exit_code: i32 },
    #[error("command timed out: {command:?} timed out after {seconds}s")]
    ExecTimeout { command: String, seconds: u64 },
    #[error("{0}")]
    InvalidImageName(String),
    /// The registry has refused the credentials.
    #[error("{0}")]
    Unauthorized(String),
    #[error("{0}")]
    Failed(String),
}

impl RuntimeError {
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound(_))
    }
}

pub type Result<T, E = RuntimeError> = std::result::Result<T, E>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeVersion {
    /// `knarr` or `containerd`; the scheme of container ids.
    pub name: String,
    pub version: String,
}

/// One configuration of a runtime, as named by a RuntimeClass.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeHandler {
    /// Empty for the default handler.
    pub name: String,
    pub recursive_read_only_mounts: bool,
    /// Whether it supports user namespaces, for pods with `hostUsers: false`.
    pub user_namespaces: bool,
}

/// Whether a runtime can run pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Readiness {
    /// What keeps pods from running, with the texts of the node's Ready condition; empty if the runtime is ready.
    pub not_ready: Vec<String>,
    /// The error if the status could not be read now; `not_ready` is then the last known state.
    pub error: Option<String>,
}

/// The features of a runtime that the kubelet can use. The default is none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeFeatures {
    /// Empty if the runtime does not list its handlers.
    pub handlers: Vec<RuntimeHandler>,
    /// Whether it supports `supplementalGroupsPolicy: Strict`.
    pub supplemental_groups_policy: bool,
    /// Whether it applies AppArmor profiles, on hosts that have AppArmor.
    pub app_armor: bool,
    /// Whether it sets SELinux labels, on hosts that have SELinux.
    pub se_linux: bool,
}

impl RuntimeFeatures {
    /// Returns whether a handler can make mounts read-only recursively. A handler that is not listed cannot.
    pub fn recursive_read_only_mounts(&self, handler: &str) -> bool {
        self.handlers.iter().any(|known| known.name == handler && known.recursive_read_only_mounts)
    }
}

/// The AppArmor profile of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AppArmorProfile {
    RuntimeDefault,
    Unconfined,
    /// The name of a profile that is loaded on the host.
    Localhost(String),
}

/// The parts of an SELinux label; the runtime chooses the empty ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeLinuxOptions {
    pub user: String,
    pub role: String,
    pub type_: String,
    pub level: String,
}

/// The resolver settings for a pod's /etc/resolv.conf.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DnsConfig {
    pub servers: Vec<String>,
    pub searches: Vec<String>,
    pub options: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodSandboxConfig {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// The number of earlier sandboxes of the pod.
    pub attempt: u32,
    pub hostname: String,
    pub log_directory: PathBuf,
    /// `None` keeps the image's /etc/resolv.conf.
    pub dns: Option<DnsConfig>,
    pub port_mappings: Vec<PortMapping>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub host_network: bool,
    pub host_ipc: bool,
    pub host_pid: bool,
    pub shared_pid: bool,
    /// Whether any of its containers is privileged.
    pub privileged: bool,
    /// The user of the sandbox's own process, if it has one.
    pub user: ContainerUser,
    pub se_linux: Option<SeLinuxOptions>,
    /// The handler of the pod's RuntimeClass; empty for the runtime's default.
    pub runtime_handler: String,
    pub sysctls: BTreeMap<String, String>,
    /// The ids on the host of the pod's user namespace, if it has one.
    pub user_namespace: Option<IdRange>,
    /// The pod's cgroup, relative to the kubelet's cgroup root; the kubelet sets its limits.
    pub cgroup_parent: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct PodSandboxStatus {
    pub id: String,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub attempt: u32,
    pub state: SandboxState,
    pub created_at: Timestamp,
    /// Empty for a pod in the host's network.
    pub ips: Vec<IpAddr>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub host_network: bool,
    /// The handler that runs it; empty for the default one.
    pub runtime_handler: String,
}

/// A bind mount into a container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mount {
    pub container_path: String,
    pub host_path: PathBuf,
    /// The tree of an image in place of `host_path`; it is mounted read-only and noexec.
    pub image: Option<ImageMount>,
    pub read_only: bool,
    pub recursive_read_only: bool,
    pub propagation: Propagation,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageMount {
    /// The image's id.
    pub image: String,
    /// The part of the tree that is mounted; all of it if empty.
    pub sub_path: String,
}

/// The user of a container, as far as the pod sets it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerUser {
    /// `None` for the image's user.
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// Added to the image's own groups unless `strict_groups`.
    pub supplemental_groups: Vec<u32>,
    /// Whether the pod has `supplementalGroupsPolicy: Strict`.
    pub strict_groups: bool,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct ContainerConfig {
    pub name: String,
    /// The restart count.
    pub attempt: u32,
    /// The image's id, or any name of an image that is present.
    pub image: String,
    /// The image's name in the pod's spec, which the status shows.
    pub image_name: String,
    /// Replaces the image's entrypoint, and if it is not empty, the image's command as well.
    pub command: Vec<String>,
    /// Replaces the image's command.
    pub args: Vec<String>,
    pub working_dir: String,
    /// Added to the image's variables.
    pub env: Vec<(String, String)>,
    pub mounts: Vec<Mount>,
    pub devices: Vec<Device>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub log_path: PathBuf,
    pub stdin: bool,
    pub stdin_once: bool,
    pub tty: bool,
    pub resources: Resources,
    pub oom_score_adj: Option<i32>,
    pub user: ContainerUser,
    pub privileged: bool,
    pub readonly_rootfs: bool,
    pub no_new_privileges: bool,
    pub capabilities: CapabilityChange,
    pub seccomp: SeccompProfile,
    /// The file from which the profile of `SeccompProfile::Localhost` was read; empty for all others.
    pub seccomp_file: PathBuf,
    /// `None` lets the runtime choose.
    pub app_armor: Option<AppArmorProfile>,
    pub se_linux: Option<SeLinuxOptions>,
    /// Whether the container has `procMount: Unmasked`.
    pub unmasked_proc: bool,
    pub pid_mode: PidMode,
    /// Replaces the image's stop signal.
    pub stop_signal: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ContainerStatus {
    pub id: String,
    pub sandbox_id: String,
    pub name: String,
    pub attempt: u32,
    pub state: ContainerState,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    /// Set once the container has exited.
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// `Completed`, `Error`, `OOMKilled`, `StartError`, `ContainerStatusUnknown`.
    pub reason: String,
    pub message: String,
    /// The image's name: a tag if it has one, else its id.
    pub image: String,
    /// `<repository>@<digest>` if the image has one, else its id.
    pub image_id: String,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub log_path: PathBuf,
    /// The uid, gid and groups with which the process was started.
    pub user: Option<(u32, u32, Vec<u32>)>,
}

/// The state of one pod in the runtime.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodRuntimeStatus {
    /// Newest first.
    pub sandboxes: Vec<PodSandboxStatus>,
    /// Newest first.
    pub containers: Vec<ContainerStatus>,
    /// The ids of containers that a resize replaces: running ones that are to be stopped, and ended ones that were
    /// asked to stop and have no successor yet, whatever their exit code. The kubelet sets this, not the runtime.
    pub replaced: BTreeSet<String>,
}

impl PodRuntimeStatus {
    pub fn is_replaced(&self, container: &ContainerStatus) -> bool {
        self.replaced.contains(&container.id)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Image {
    /// The `sha256:…` of the image's configuration.
    pub id: String,
    pub repo_tags: Vec<String>,
    pub repo_digests: Vec<String>,
    pub size: u64,
    pub user: Option<ImageUser>,
}

/// A pulled image, and the credential that the registry accepted, if one was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PulledImage {
    pub image: Image,
    pub credential: Option<Credential>,
}

/// The maximal length of a command's output in probes and hooks, in bytes: upstream's for a probe.
pub const MAX_EXEC_OUTPUT: usize = 10 << 10;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecOutput {
    pub exit_code: i32,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecRequest {
    pub command: Vec<String>,
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
    pub size: Option<TerminalSize>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AttachRequest {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    /// Whether the container was created with a terminal.
    pub tty: bool,
}

pub type BoxReader = Box<dyn AsyncRead + Send + Unpin>;
pub type BoxWriter = Box<dyn AsyncWrite + Send + Unpin>;

/// A control message to an exec'd or attached process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    Resize(TerminalSize),
    Signal(i32),
}

/// A running exec or attach. Streams that were not requested are `None`; with a terminal all output is `stdout`.
pub struct Session {
    pub stdin: Option<BoxWriter>,
    pub stdout: Option<BoxReader>,
    pub stderr: Option<BoxReader>,
    pub control: mpsc::Sender<Control>,
    /// The exit code (128 + signal if killed). An attach returns 0 when its container ends.
    pub exit: oneshot::Receiver<Result<i32>>,
}

/// A duplex connection into a sandbox.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// An event of a pod; receivers read the state anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeEvent {
    pub pod_uid: String,
    pub sandbox_id: String,
    /// Empty if the event concerns the sandbox.
    pub container_id: String,
    pub kind: RuntimeEventKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuntimeEventKind {
    ContainerStarted,
    ContainerExited,
    ContainerOom,
    SandboxStopped,
}

/// Whether statistics include the disk usage of containers' root file systems, which must be computed by a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disk {
    Measured,
    LeftOut,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ContainerStats {
    pub container_id: String,
    pub sandbox_id: String,
    pub name: String,
    pub at: Timestamp,
    pub usage: Stats,
    /// The disk usage of its root file system; `None` if it is not known, or was not requested.
    pub rootfs: Option<DiskUsage>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct SandboxStats {
    pub sandbox_id: String,
    pub pod_uid: String,
    pub at: Timestamp,
    /// The usage of the pod's cgroup.
    pub usage: Stats,
}

/// Further statistics of a container or of a pod, for metrics.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UsageDetails {
    /// The id of the container, or of the pod's sandbox.
    pub id: String,
    /// `/kubepods/burstable/podUID`, from the hierarchy's root.
    pub cgroup: String,
    pub figures: Details,
    /// The network interfaces of a sandbox with its own network.
    pub interfaces: Vec<InterfaceStats>,
}

/// A container runtime. Sandboxes and containers outlive the caller. No method has a default: a runtime that wraps
/// another one would use it in place of passing the call on.
#[async_trait]
pub trait ContainerRuntime: Send + Sync + 'static {
    fn version(&self) -> RuntimeVersion;

    /// Returns the last known features of the runtime.
    fn features(&self) -> RuntimeFeatures;

    /// Returns metrics of the runtime, as text for Prometheus.
    fn metrics(&self) -> String;

    async fn readiness(&self) -> Readiness;

    /// Creates a sandbox, connects it to the pod network and returns its id.
    async fn run_pod_sandbox(&self, config: &PodSandboxConfig) -> Result<String>;
    /// Kills the processes in it and disconnects it; succeeds if it is stopped or unknown.
    async fn stop_pod_sandbox(&self, id: &str) -> Result<()>;
    /// Removes the sandbox and its containers; succeeds if it is unknown.
    async fn remove_pod_sandbox(&self, id: &str) -> Result<()>;
    async fn list_pod_sandboxes(&self) -> Result<Vec<PodSandboxStatus>>;

    /// Creates a container; `sandbox` is the configuration of its sandbox.
    async fn create_container(
        &self,
        sandbox_id: &str,
        config: &ContainerConfig,
        sandbox: &PodSandboxConfig,
    ) -> Result<String>;
    async fn start_container(&self, id: &str) -> Result<()>;
    /// Sends the stop signal, waits up to the grace period, and kills; returns when the container has ended. With
    /// 0 it is killed at once. Succeeds if it has ended already.
    async fn stop_container(&self, id: &str, grace_seconds: u64) -> Result<()>;
    /// Removes a container, and kills it if it runs; succeeds if it is unknown.
    async fn remove_container(&self, id: &str) -> Result<()>;
    async fn list_containers(&self) -> Result<Vec<ContainerStatus>>;
    async fn container_status(&self, id: &str) -> Result<ContainerStatus>;
    /// Returns the sandboxes and containers of one pod.
    async fn pod_status(&self, uid: &str) -> Result<PodRuntimeStatus>;
    async fn update_container_resources(&self, id: &str, resources: &Resources) -> Result<()>;
    /// Returns the limits in force of a running container, as far as the runtime reports them; negative means
    /// unlimited.
    async fn container_limits(&self, id: &str) -> Result<Resources>;
    /// Reopens the container's log after it was renamed.
    async fn reopen_container_log(&self, id: &str) -> Result<()>;

    /// Runs a command to its end. With `timeout_seconds` 0 there is no limit. [`MAX_EXEC_OUTPUT`] bytes of each
    /// stream are kept.
    async fn exec_sync(&self, id: &str, command: &[String], timeout_seconds: u64) -> Result<ExecOutput>;
    async fn exec(&self, id: &str, request: &ExecRequest) -> Result<Session>;
    async fn attach(&self, id: &str, request: &AttachRequest) -> Result<Session>;
    /// Connects to a TCP port on the sandbox's loopback.
    async fn port_forward(&self, sandbox_id: &str, port: u16) -> Result<Box<dyn Connection>>;

    /// Returns statistics without the disk usage of the root file system.
    async fn container_stats(&self, id: &str) -> Result<ContainerStats>;
    async fn list_container_stats(&self, disk: Disk) -> Result<Vec<ContainerStats>>;
    async fn list_sandbox_stats(&self) -> Result<Vec<SandboxStats>>;
    /// Returns the details of containers and ready sandboxes, as far as they are known.
    async fn usage_details(&self) -> Result<Vec<UsageDetails>>;

    async fn image_status(&self, name: &str) -> Result<Option<Image>>;
    async fn list_images(&self) -> Result<Vec<Image>>;
    /// Pulls an image with the credentials that match it, anonymously only if none does.
    async fn pull_image(&self, name: &str, keyring: &Keyring) -> Result<PulledImage>;
    async fn remove_image(&self, name: &str) -> Result<()>;
    async fn image_fs_info(&self) -> Result<FsInfo>;

    /// Subscribes to the events from now on. A receiver that lags behind must list everything again.
    fn events(&self) -> broadcast::Receiver<RuntimeEvent>;
}
