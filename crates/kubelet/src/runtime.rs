//! The container runtime as the kubelet needs it, shaped like the container runtime interface (CRI).
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

/// Display carries the whole text; users see it in events and container states.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuntimeError {
    #[error("{0}")]
    NotFound(String),
    /// A process could not be started; worded as an OCI runtime words it.
    #[error("{0}")]
    Start(String),
    /// The command of an exec could not be started (there is no such program, for example).
    #[error("{message}")]
    Exec { message: String, exit_code: i32 },
    #[error("command timed out: {command:?} timed out after {seconds}s")]
    ExecTimeout { command: String, seconds: u64 },
    #[error("{0}")]
    InvalidImageName(String),
    /// The registry does not let us in.
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
    /// `knarr`, `containerd`; the scheme of container ids.
    pub name: String,
    pub version: String,
}

/// One of the ways in which a runtime runs pods, as a RuntimeClass names it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeHandler {
    /// Empty is the default one.
    pub name: String,
    pub recursive_read_only_mounts: bool,
    /// Whether pods with `hostUsers: false` get a user namespace of their own.
    pub user_namespaces: bool,
}

/// Whether a runtime can run pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Readiness {
    /// What keeps pods from running, as the node's Ready condition tells it; nothing if all is well.
    pub not_ready: Vec<String>,
    /// Why it gave no answer now; then the rest is what is known nevertheless.
    pub error: Option<String>,
}

/// What a runtime can do, and what the kubelet can ask of it. Nothing, unless it is set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeFeatures {
    /// Empty if the runtime does not list them.
    pub handlers: Vec<RuntimeHandler>,
    /// `supplementalGroupsPolicy: Strict`.
    pub supplemental_groups_policy: bool,
    /// Whether it applies AppArmor profiles, on hosts that have AppArmor.
    pub app_armor: bool,
    /// Whether it sets SELinux labels, on hosts that have SELinux.
    pub se_linux: bool,
}

impl RuntimeFeatures {
    /// Whether a handler makes mounts read-only with all that is mounted below. One that is not listed does not.
    pub fn recursive_read_only_mounts(&self, handler: &str) -> bool {
        self.handlers.iter().any(|known| known.name == handler && known.recursive_read_only_mounts)
    }
}

/// Which AppArmor profile a container runs under.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AppArmorProfile {
    RuntimeDefault,
    Unconfined,
    /// The name of a profile that is loaded on the host.
    Localhost(String),
}

/// Parts of an SELinux label; what is empty is left to the runtime.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeLinuxOptions {
    pub user: String,
    pub role: String,
    pub type_: String,
    pub level: String,
}

/// Nameservers and the like for a pod's /etc/resolv.conf.
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
    /// How many sandboxes the pod had before.
    pub attempt: u32,
    pub hostname: String,
    pub log_directory: PathBuf,
    /// `None` leaves /etc/resolv.conf to the image.
    pub dns: Option<DnsConfig>,
    pub port_mappings: Vec<PortMapping>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub host_network: bool,
    pub host_ipc: bool,
    pub host_pid: bool,
    pub shared_pid: bool,
    /// Whether any of its containers is.
    pub privileged: bool,
    /// Who the sandbox's own process runs as, where it has one.
    pub user: ContainerUser,
    pub se_linux: Option<SeLinuxOptions>,
    /// Of the pod's RuntimeClass; empty is the runtime's default.
    pub runtime_handler: String,
    pub sysctls: BTreeMap<String, String>,
    /// The pod gets a user namespace of its own, whose ids are these outside.
    pub user_namespace: Option<IdRange>,
    /// Relative to the kubelet's cgroup root; its limits are the kubelet's.
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
    /// Empty with the host's network.
    pub ips: Vec<IpAddr>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub host_network: bool,
    /// By which the runtime runs it; empty is the default one.
    pub runtime_handler: String,
}

/// A bind mount into a container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mount {
    pub container_path: String,
    pub host_path: PathBuf,
    /// The tree of an image in place of `host_path`; it can be neither written to nor executed.
    pub image: Option<ImageMount>,
    pub read_only: bool,
    pub recursive_read_only: bool,
    pub propagation: Propagation,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageMount {
    /// The image's id.
    pub image: String,
    /// What of the tree is mounted; all of it if empty.
    pub sub_path: String,
}

/// Who a container runs as, as far as the pod says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerUser {
    /// `None` leaves it to the image.
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// Beside the image's own groups unless `strict_groups`.
    pub supplemental_groups: Vec<u32>,
    /// `supplementalGroupsPolicy: Strict`.
    pub strict_groups: bool,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct ContainerConfig {
    pub name: String,
    /// The restart count.
    pub attempt: u32,
    /// The image's id, or any name of an image that is present.
    pub image: String,
    /// What the pod calls the image; its status shows this name.
    pub image_name: String,
    /// In place of the image's entrypoint (and, if it is not empty, of its command as well).
    pub command: Vec<String>,
    /// In place of the image's command.
    pub args: Vec<String>,
    pub working_dir: String,
    /// On top of the image's.
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
    /// Where the profile of `SeccompProfile::Localhost` was read; empty for all others.
    pub seccomp_file: PathBuf,
    /// `None` leaves it to the runtime.
    pub app_armor: Option<AppArmorProfile>,
    pub se_linux: Option<SeLinuxOptions>,
    /// `procMount: Unmasked`.
    pub unmasked_proc: bool,
    pub pid_mode: PidMode,
    /// In place of the image's.
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
    /// Set once exited.
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// `Completed`, `Error`, `OOMKilled`, `StartError`, `ContainerStatusUnknown`.
    pub reason: String,
    pub message: String,
    /// What the image is called: a tag where it has one, else its id.
    pub image: String,
    /// `<repository>@<digest>` where it has one, else the image's id.
    pub image_id: String,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub log_path: PathBuf,
    /// uid, gid and groups that the process was started with.
    pub user: Option<(u32, u32, Vec<u32>)>,
}

/// The state of one pod in the runtime.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodRuntimeStatus {
    /// Newest first.
    pub sandboxes: Vec<PodSandboxStatus>,
    /// Newest first.
    pub containers: Vec<ContainerStatus>,
    /// Which of them, by id, are to be followed by another one, for the resources that the pod was given: of those that
    /// have ended, however they did. The kubelet knows that, not the runtime.
    pub replaced: BTreeSet<String>,
}

impl PodRuntimeStatus {
    pub fn is_replaced(&self, container: &ContainerStatus) -> bool {
        self.replaced.contains(&container.id)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Image {
    /// `sha256:…` of the configuration.
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

/// What probes and hooks show of a command's output: upstream's for a probe.
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
    /// As the container was made.
    pub tty: bool,
}

pub type BoxReader = Box<dyn AsyncRead + Send + Unpin>;
pub type BoxWriter = Box<dyn AsyncWrite + Send + Unpin>;

/// An order to an exec'd or attached process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    Resize(TerminalSize),
    Signal(i32),
}

/// A running exec or attach. Streams that were not asked for are `None`; with a terminal all output is `stdout`.
pub struct Session {
    pub stdin: Option<BoxWriter>,
    pub stdout: Option<BoxReader>,
    pub stderr: Option<BoxReader>,
    pub control: mpsc::Sender<Control>,
    /// The exit code (128 + signal if killed). An attach answers 0 when its container ends.
    pub exit: oneshot::Receiver<Result<i32>>,
}

/// A duplex connection into a sandbox.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// Something happened to a pod; whoever hears it asks for the state anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeEvent {
    pub pod_uid: String,
    pub sandbox_id: String,
    /// Empty when it concerns the sandbox.
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

/// Whether statistics have what containers have written to their roots, which takes a walk.
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
    /// What it has written to its root; `None` where it is not known, or was not asked for.
    pub rootfs: Option<DiskUsage>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct SandboxStats {
    pub sandbox_id: String,
    pub pod_uid: String,
    pub at: Timestamp,
    /// Of the pod's cgroup.
    pub usage: Stats,
}

/// Further figures of a container or of a pod, for metrics.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UsageDetails {
    /// Of the container, or of the pod's sandbox.
    pub id: String,
    /// `/kubepods/burstable/podUID`, from the hierarchy's root.
    pub cgroup: String,
    pub figures: Details,
    /// The network of a sandbox that has its own.
    pub interfaces: Vec<InterfaceStats>,
}

/// A container runtime. Sandboxes and containers outlive the caller. Nothing has a default: a runtime around another one
/// would answer by it in place of handing the call on.
#[async_trait]
pub trait ContainerRuntime: Send + Sync + 'static {
    fn version(&self) -> RuntimeVersion;

    /// As last heard of the runtime.
    fn features(&self) -> RuntimeFeatures;

    /// What has been counted of it, as text for Prometheus.
    fn metrics(&self) -> String;

    async fn readiness(&self) -> Readiness;

    /// Makes a sandbox, connects it to the pod network and gives its id.
    async fn run_pod_sandbox(&self, config: &PodSandboxConfig) -> Result<String>;
    /// Kills what runs in it and disconnects it; fine if it is stopped or unknown.
    async fn stop_pod_sandbox(&self, id: &str) -> Result<()>;
    /// Removes the sandbox and its containers; fine if it is unknown.
    async fn remove_pod_sandbox(&self, id: &str) -> Result<()>;
    async fn list_pod_sandboxes(&self) -> Result<Vec<PodSandboxStatus>>;

    /// `sandbox` is what the sandbox was made from.
    async fn create_container(
        &self,
        sandbox_id: &str,
        config: &ContainerConfig,
        sandbox: &PodSandboxConfig,
    ) -> Result<String>;
    async fn start_container(&self, id: &str) -> Result<()>;
    /// Sends the stop signal, waits up to the grace period, kills; returns when the container has ended. With 0 it
    /// is killed at once. Fine if it has ended.
    async fn stop_container(&self, id: &str, grace_seconds: u64) -> Result<()>;
    /// Kills it if it runs; fine if it is unknown.
    async fn remove_container(&self, id: &str) -> Result<()>;
    async fn list_containers(&self) -> Result<Vec<ContainerStatus>>;
    async fn container_status(&self, id: &str) -> Result<ContainerStatus>;
    /// Sandboxes and containers of one pod.
    async fn pod_status(&self, uid: &str) -> Result<PodRuntimeStatus>;
    async fn update_container_resources(&self, id: &str, resources: &Resources) -> Result<()>;
    /// The limits in force of a container that runs, as far as the runtime reports them; negative is unlimited.
    async fn container_limits(&self, id: &str) -> Result<Resources>;
    /// Opens the container's log anew, after it was renamed.
    async fn reopen_container_log(&self, id: &str) -> Result<()>;

    /// Runs a command to its end. With `timeout_seconds` 0 there is no limit. Of each stream
    /// [`MAX_EXEC_OUTPUT`] is kept.
    async fn exec_sync(&self, id: &str, command: &[String], timeout_seconds: u64) -> Result<ExecOutput>;
    async fn exec(&self, id: &str, request: &ExecRequest) -> Result<Session>;
    async fn attach(&self, id: &str, request: &AttachRequest) -> Result<Session>;
    /// Connects to a TCP port on the sandbox's loopback.
    async fn port_forward(&self, sandbox_id: &str, port: u16) -> Result<Box<dyn Connection>>;

    /// Without what it has written to its root.
    async fn container_stats(&self, id: &str) -> Result<ContainerStats>;
    async fn list_container_stats(&self, disk: Disk) -> Result<Vec<ContainerStats>>;
    async fn list_sandbox_stats(&self) -> Result<Vec<SandboxStats>>;
    /// Of containers and ready sandboxes, as far as it is known.
    async fn usage_details(&self) -> Result<Vec<UsageDetails>>;

    async fn image_status(&self, name: &str) -> Result<Option<Image>>;
    async fn list_images(&self) -> Result<Vec<Image>>;
    /// Tries the credentials that match the image, anonymously only if none does.
    async fn pull_image(&self, name: &str, keyring: &Keyring) -> Result<PulledImage>;
    async fn remove_image(&self, name: &str) -> Result<()>;
    async fn image_fs_info(&self) -> Result<FsInfo>;

    /// What happens from now on. A receiver that lags asks for everything anew.
    fn events(&self) -> broadcast::Receiver<RuntimeEvent>;
}
