//! Plain data that describes a sandbox and a container; stored in the state folder as JSON.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::cgroups::{DeviceRule, Resources};

/// The default size of a pod's shared /dev/shm, as in containerd and Docker.
const DEFAULT_SHM_BYTES: u64 = 64 << 20;

/// A pod sandbox: the namespaces that its containers share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxConfig {
    /// The name of the sandbox and of its folder: letters, digits, '-', '_', '.', at most 128 characters.
    pub id: String,
    /// Stored and returned unchanged.
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// Set in the sandbox's own UTS namespace; ignored with `host_network`.
    pub hostname: String,
    /// Use the host's network and UTS namespaces.
    pub host_network: bool,
    pub host_ipc: bool,
    /// Keep a pid namespace for containers with [`PidMode::Pod`].
    pub shared_pid: bool,
    /// Namespaced sysctls (net.*, kernel.shm*, kernel.msg*, kernel.sem, fs.mqueue.*), by dotted name.
    pub sysctls: BTreeMap<String, String>,
    /// The cgroup of the pod, relative to the runtime's cgroup root, for example `burstable/pod1`. The caller
    /// sets its limits; the cgroups of the containers become its children.
    pub cgroup_parent: String,
    pub shm_bytes: u64,
    /// Give the sandbox a user namespace of its own; not together with namespaces of the host.
    pub user_namespace: Option<IdRange>,
    /// An OCI runtime (`/usr/sbin/runc`) that runs the sandbox's containers; if `None`, the shim runs them
    /// itself.
    pub oci_runtime: Option<PathBuf>,
}

/// A range of host ids that the ids of a user namespace, from 0 on, are mapped to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdRange {
    pub first: u32,
    pub count: u32,
}

impl IdRange {
    /// Returns the host id that an id inside the namespace is mapped to; `None` if the id is not mapped.
    pub fn outside(&self, id: u32) -> Option<u32> {
        if id < self.count { self.first.checked_add(id) } else { None }
    }
}

impl Default for SandboxConfig {
    fn default() -> Self {
        Self {
            id: String::new(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            hostname: String::new(),
            host_network: false,
            host_ipc: false,
            shared_pid: false,
            sysctls: BTreeMap::new(),
            cgroup_parent: String::new(),
            shm_bytes: DEFAULT_SHM_BYTES,
            user_namespace: None,
            oci_runtime: None,
        }
    }
}

/// A container, as the shim starts it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ContainerSpec {
    /// The name of the container, its folder and its cgroup; same alphabet as [`SandboxConfig::id`].
    pub id: String,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// A folder on the host with the root file system, which the caller has mounted.
    pub rootfs: PathBuf,
    /// The files of the root file system already have host ids of the sandbox's user namespace; otherwise they
    /// are id-mapped.
    pub rootfs_has_outside_ids: bool,
    pub readonly_rootfs: bool,
    /// The command and its arguments; must not be empty.
    pub args: Vec<String>,
    /// `KEY=value`. PATH, HOME, HOSTNAME (and TERM with a terminal) are added where missing.
    pub env: Vec<String>,
    /// Created if missing, as runc does; empty means `/`.
    pub cwd: String,
    pub user: User,
    /// Mounts added to the default ones (/proc, /dev, /dev/pts, /dev/shm, /dev/mqueue, /sys, /sys/fs/cgroup); a
    /// mount with the destination of a default one replaces it.
    pub mounts: Vec<Mount>,
    pub devices: Vec<Device>,
    pub capabilities: CapabilityChange,
    pub privileged: bool,
    pub no_new_privileges: bool,
    /// `None` means the default list; with `privileged` nothing is masked.
    pub masked_paths: Option<Vec<String>>,
    pub readonly_paths: Option<Vec<String>>,
    pub seccomp: SeccompProfile,
    /// The name of a profile that is loaded on the host; with `None` the container keeps the shim's, which is
    /// unconfined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_armor: Option<String>,
    pub rlimits: Vec<Rlimit>,
    pub oom_score_adj: Option<i32>,
    pub tty: bool,
    pub stdin: bool,
    /// Close the container's stdin when the first attached client disconnects.
    pub stdin_once: bool,
    /// The file that receives the output in CRI log format; `None` discards the output.
    pub log_path: Option<PathBuf>,
    pub resources: Resources,
    pub pid_mode: PidMode,
    /// The signal that `stop_container` sends first; SIGTERM if empty.
    pub stop_signal: String,
}

/// The user and groups of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    pub additional_gids: Vec<u32>,
}

/// Which processes a container can see.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PidMode {
    #[default]
    Container,
    Pod,
    Host,
    /// The processes of the container with this id, which runs in the same sandbox.
    Target(String),
}

/// Changes to the default capabilities; names with or without `CAP_`, `ALL` allowed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CapabilityChange {
    pub add: Vec<String>,
    pub drop: Vec<String>,
    /// Given to processes of any user, even without file capabilities.
    pub ambient: Vec<String>,
}

/// A mount of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// Absolute path in the container; created if missing.
    pub destination: String,
    pub kind: MountKind,
}

/// What to mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum MountKind {
    Bind(Bind),
    Tmpfs { size_bytes: Option<u64>, mode: u32, read_only: bool },
    Proc,
    Sysfs { read_only: bool },
    Mqueue,
}

/// A bind mount of a host path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bind {
    /// A path on the host, which must exist.
    pub source: PathBuf,
    pub read_only: bool,
    /// With `read_only`: mounts below the source are read-only too.
    pub recursive_read_only: bool,
    /// Mount with noexec: files in it cannot be executed.
    pub no_exec: bool,
    pub propagation: Propagation,
    /// The files already have host ids of the sandbox's user namespace; otherwise they are id-mapped.
    pub has_outside_ids: bool,
}

/// How mounts that are created later propagate between host and container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Propagation {
    #[default]
    Private,
    HostToContainer,
    Bidirectional,
}

/// A device of the host that the container may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    pub host_path: PathBuf,
    pub container_path: String,
    /// Any of `r`, `w`, `m`.
    pub access: String,
}

/// Which system call filter a container gets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SeccompProfile {
    #[default]
    Unconfined,
    RuntimeDefault,
    /// The text of a profile in Docker's or the OCI's JSON form.
    Localhost(String),
}

/// A resource limit such as `RLIMIT_NOFILE`; `u64::MAX` is unlimited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rlimit {
    pub kind: String,
    pub soft: u64,
    pub hard: u64,
}

/// A device of the container after its type and numbers were read from the host.
#[derive(Debug, Clone)]
pub(super) struct ResolvedDevice {
    pub host_path: PathBuf,
    pub container_path: String,
    pub block: bool,
    pub major: u32,
    pub minor: u32,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub access: String,
}

impl ResolvedDevice {
    /// Returns the rule that permits access to the device.
    pub fn rule(&self) -> DeviceRule {
        DeviceRule {
            block: self.block,
            major: Some(self.major),
            minor: Some(self.minor),
            access: self.access.clone(),
        }
    }
}

/// Returns whether an id is safe as a file name and as a cgroup name.
pub(super) fn valid_id(id: &str) -> bool {
    (1..=128).contains(&id.len())
        && id.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        && !id.starts_with('.')
}

/// Returns why a sandbox's configuration is invalid on any machine; `None` if it is valid.
pub(super) fn sandbox_fault(config: &SandboxConfig) -> Option<String> {
    if config.oci_runtime.as_ref().is_some_and(|program| !program.is_absolute()) {
        return Some("the path of an OCI runtime is absolute".to_owned());
    }
    let ids = config.user_namespace?;
    if config.oci_runtime.is_some() {
        return Some("user namespaces are not supported for containers of an OCI runtime".to_owned());
    }
    if config.host_network || config.host_ipc {
        return Some("a user namespace cannot be combined with namespaces of the host".to_owned());
    }
    let last = ids.count.checked_sub(1).and_then(|last| ids.first.checked_add(last));
    // 4294967295 is not a valid id: system calls take it for "unchanged".
    if ids.first == 0 || last.is_none_or(|last| last == u32::MAX) {
        return Some(format!("ids {}+{} of the user namespace", ids.first, ids.count));
    }
    None
}

/// The highest id, as in the runtime specification. The ids above include -1 as an unsigned number, which
/// setresuid(2) takes for "no change": the process would stay root.
const MAX_ID: u32 = i32::MAX as u32;

fn user_fault(user: &User) -> Option<String> {
    let mut ids = [user.uid, user.gid].into_iter().chain(user.additional_gids.iter().copied());
    ids.find(|id| *id > MAX_ID).map(|id| format!("user or group id {id} is out of range"))
}

/// Returns why a spec is invalid on any machine; `None` if it is valid.
pub(super) fn spec_fault(spec: &ContainerSpec) -> Option<String> {
    if !valid_id(&spec.id) {
        return Some(format!("container id {:?}", spec.id));
    }
    if spec.args.first().is_none_or(String::is_empty) {
        return Some("no command specified".to_owned());
    }
    if !spec.rootfs.is_absolute() {
        return Some(format!("rootfs {:?} is not an absolute path", spec.rootfs));
    }
    if spec.args.iter().chain(&spec.env).any(|text| text.contains('\0')) {
        return Some("arguments and environment must not contain NUL".to_owned());
    }
    if !spec.cwd.is_empty() && !spec.cwd.starts_with('/') {
        return Some(format!("working directory {:?} is not an absolute path", spec.cwd));
    }
    for mount in &spec.mounts {
        if !mount.destination.starts_with('/') || mount.destination.contains('\0') {
            return Some(format!("mount destination {:?} is not an absolute path", mount.destination));
        }
    }
    if spec.app_armor.as_ref().is_some_and(|name| name.is_empty() || name.contains(['\0', '\n'])) {
        return Some(format!("AppArmor profile {:?}", spec.app_armor.as_deref().unwrap_or_default()));
    }
    if !spec.stop_signal.is_empty() && super::signal_number(&spec.stop_signal).is_none() {
        return Some(format!("stop signal {:?}", spec.stop_signal));
    }
    user_fault(&spec.user).or_else(|| super::capabilities::change_fault(&spec.capabilities))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_file_names() {
        for (id, want) in [("a1-b_c.d", true), ("", false), ("..", false), ("a/b", false), (".x", false)] {
            assert_eq!(valid_id(id), want, "{id}");
        }
    }

    #[test]
    fn faults_name_the_field() {
        let good = ContainerSpec {
            id: "a".into(),
            args: vec!["sh".into()],
            rootfs: "/r".into(),
            ..ContainerSpec::default()
        };
        assert_eq!(spec_fault(&good), None);
        let cases: [(ContainerSpec, &str); 6] = [
            (ContainerSpec { app_armor: Some("a\nb".into()), ..good.clone() }, "AppArmor profile"),
            (ContainerSpec { args: vec![], ..good.clone() }, "no command"),
            (ContainerSpec { rootfs: "r".into(), ..good.clone() }, "rootfs"),
            (ContainerSpec { cwd: "x".into(), ..good.clone() }, "working directory"),
            (ContainerSpec { stop_signal: "NOPE".into(), ..good.clone() }, "stop signal"),
            (ContainerSpec { env: vec!["A=\0".into()], ..good.clone() }, "NUL"),
        ];
        for (spec, want) in cases {
            let fault = spec_fault(&spec).unwrap_or_default();
            assert!(fault.contains(want), "{fault}");
        }
    }
}
