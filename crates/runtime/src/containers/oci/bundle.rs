//! Builds the configuration of a container for an OCI runtime; without side effects.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::containers::capabilities;
use crate::containers::cgroups::DeviceRule;
use crate::containers::exec_path::{DEFAULT_PATH, variable};
use crate::containers::init::{Planned, RootfsPlan, What};
use crate::containers::seccomp;
use crate::containers::spec::{Bind, ContainerSpec, MountKind, PidMode, Propagation};

const VERSION: &str = "1.0.2";

/// What a container takes from its sandbox.
pub struct Around<'a> {
    /// `None` means the host's network and UTS namespaces.
    pub netns: Option<PathBuf>,
    /// The process whose IPC and UTS namespaces the container joins.
    pub shim_pid: u32,
    pub host_ipc: bool,
    /// The pid namespace that the container joins, as the path of a descriptor. The path of a process would be
    /// unsafe: its pid might be reused before the runtime opens the path.
    pub joined_pids: Option<PathBuf>,
    pub hostname: &'a str,
    /// An absolute path below each hierarchy.
    pub cgroup: String,
    pub device_rules: &'a [DeviceRule],
}

/// Returns the content of `config.json`. Fails on a seccomp profile that cannot be enforced.
pub fn config(spec: &ContainerSpec, plan: &RootfsPlan, around: &Around<'_>) -> Result<Value, String> {
    let mut mounts: Vec<Value> = Vec::new();
    for mount in &plan.mounts {
        mounts.push(mount_json(mount, plan.privileged));
    }
    let mut devices = vec![json!({"allow": plan.privileged, "access": "rwm"})];
    devices.extend(around.device_rules.iter().filter(|_| !plan.privileged).map(device_rule));
    let nodes: Vec<Value> = plan
        .devices
        .iter()
        .map(|device| {
            json!({"path": device.container_path, "type": if device.block { "b" } else { "c" },
                "major": device.major, "minor": device.minor, "fileMode": device.mode,
                "uid": device.uid, "gid": device.gid})
        })
        .collect();
    let mut linux = json!({
        "namespaces": namespaces(spec, around)?,
        "cgroupsPath": around.cgroup,
        "resources": {"devices": devices},
        "devices": nodes,
        "maskedPaths": plan.masked,
        "readonlyPaths": plan.read_only,
        "rootfsPropagation": "rslave",
    });
    let bounding = capabilities::sets_of(spec).bounding;
    if !spec.privileged
        && let Some(profile) = seccomp::oci(&spec.seccomp, bounding)?
    {
        linux["seccomp"] = profile;
    }
    Ok(json!({
        "ociVersion": VERSION,
        "process": process(spec, around.hostname),
        "root": {"path": plan.rootfs, "readonly": plan.readonly},
        "mounts": mounts,
        "linux": linux,
    }))
}

/// Converts a device rule. A missing number means all; only runc also accepts -1 for that.
fn device_rule(rule: &DeviceRule) -> Value {
    let mut entry = json!({"allow": true, "type": if rule.block { "b" } else { "c" }, "access": rule.access});
    for (name, number) in [("major", rule.major), ("minor", rule.minor)] {
        if let Some(number) = number {
            entry[name] = json!(number);
        }
    }
    entry
}

/// Returns the `process` of a container's configuration, which for a command is the whole file.
pub fn process(spec: &ContainerSpec, hostname: &str) -> Value {
    let sets = capabilities::sets_of(spec);
    let names = |mask: u64| capabilities::names(mask).map(|name| format!("CAP_{name}")).collect::<Vec<_>>();
    let mut env = spec.env.clone();
    let mut add = |key: &str, value: &str| {
        if variable(&env, key).is_none() {
            env.push(format!("{key}={value}"));
        }
    };
    add("PATH", DEFAULT_PATH);
    add("HOSTNAME", hostname);
    if spec.tty {
        add("TERM", "xterm");
    }
    let rlimits: Vec<Value> = spec
        .rlimits
        .iter()
        .map(|limit| json!({"type": limit.kind, "soft": limit.soft, "hard": limit.hard}))
        .collect();
    let mut process = json!({
        "terminal": spec.tty,
        "user": {"uid": spec.user.uid, "gid": spec.user.gid, "additionalGids": spec.user.additional_gids},
        "args": spec.args,
        "env": env,
        "cwd": if spec.cwd.is_empty() { "/" } else { &spec.cwd },
        "capabilities": {
            "bounding": names(sets.bounding),
            "effective": names(sets.permitted),
            "permitted": names(sets.permitted),
            "inheritable": names(sets.inheritable),
            "ambient": names(sets.ambient),
        },
        "rlimits": rlimits,
        "noNewPrivileges": spec.no_new_privileges,
    });
    if let Some(profile) = &spec.app_armor {
        process["apparmorProfile"] = json!(profile);
    }
    if let Some(score) = spec.oom_score_adj {
        process["oomScoreAdj"] = json!(score);
    }
    process
}

fn namespaces(spec: &ContainerSpec, around: &Around<'_>) -> Result<Vec<Value>, String> {
    let of = |pid: u32, name: &str| format!("/proc/{pid}/ns/{name}");
    let mut namespaces = vec![json!({"type": "mount"})];
    if !spec.privileged {
        namespaces.push(json!({"type": "cgroup"}));
    }
    if let Some(netns) = &around.netns {
        namespaces.push(json!({"type": "network", "path": netns}));
        namespaces.push(json!({"type": "uts", "path": of(around.shim_pid, "uts")}));
    }
    if !around.host_ipc {
        namespaces.push(json!({"type": "ipc", "path": of(around.shim_pid, "ipc")}));
    }
    match (&spec.pid_mode, &around.joined_pids) {
        (PidMode::Container, _) => namespaces.push(json!({"type": "pid"})),
        (PidMode::Pod | PidMode::Target(_), Some(path)) => {
            namespaces.push(json!({"type": "pid", "path": path}))
        }
        (PidMode::Pod, None) => return Err("the sandbox has no shared pid namespace".to_owned()),
        (PidMode::Target(id), None) => return Err(format!("target container {id:?} is not running")),
        (PidMode::Host, _) => {}
    }
    Ok(namespaces)
}

fn mount_json(mount: &Planned, privileged: bool) -> Value {
    const SAFE: [&str; 3] = ["nosuid", "noexec", "nodev"];
    let made = |kind: &str, options: Vec<String>| json!({"destination": mount.destination, "type": kind, "source": kind, "options": options});
    let with = |more: &[&str]| more.iter().map(|option| (*option).to_owned()).collect::<Vec<_>>();
    let access = |read_only: bool| if read_only { "ro" } else { "rw" };
    match &mount.what {
        What::Given(MountKind::Bind(bind)) => {
            let options = bind_options(bind);
            json!({"destination": mount.destination, "type": "bind", "source": bind.source, "options": options})
        }
        What::Given(MountKind::Proc) => made("proc", with(&SAFE)),
        What::Given(MountKind::Mqueue) => made("mqueue", with(&SAFE)),
        What::Given(MountKind::Sysfs { read_only }) => {
            made("sysfs", [with(&SAFE), with(&[access(*read_only)])].concat())
        }
        What::Given(MountKind::Tmpfs { size_bytes, mode, read_only }) => {
            let mut options = with(&["nosuid", "nodev", access(*read_only)]);
            options.push(format!("mode={mode:o}"));
            options.extend(size_bytes.map(|bytes| format!("size={bytes}")));
            made("tmpfs", options)
        }
        What::Dev => made("tmpfs", with(&["nosuid", "strictatime", "mode=755", "size=65536k"])),
        What::Devpts => {
            let options = ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"];
            made("devpts", with(&options))
        }
        What::Cgroup => made("cgroup", [with(&SAFE), with(&["relatime", access(!privileged)])].concat()),
    }
}

fn bind_options(bind: &Bind) -> Vec<&'static str> {
    let mut options = vec!["rbind"];
    options.push(match bind.propagation {
        Propagation::Private => "rprivate",
        Propagation::HostToContainer => "rslave",
        Propagation::Bidirectional => "rshared",
    });
    match (bind.read_only, bind.recursive_read_only) {
        (true, true) => options.extend(["ro", "rro"]),
        (true, false) => options.push("ro"),
        (false, _) => {}
    }
    options.extend(bind.no_exec.then_some("noexec"));
    options
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::containers::init::{Procfs, Shared};
    use crate::containers::spec::{Mount, SeccompProfile, User};

    fn around(hostname: &str) -> Around<'_> {
        let (netns, cgroup) = (Some(PathBuf::from("/run/s/netns")), "/kubepods/pod1/c".to_owned());
        Around { netns, shim_pid: 7, host_ipc: false, joined_pids: None, hostname, cgroup, device_rules: &[] }
    }

    fn configured(spec: &ContainerSpec, around: &Around<'_>) -> Value {
        let shared = Shared { shm: Path::new("/shm"), procfs: Procfs::Own };
        let plan = RootfsPlan::of(spec, shared, Vec::new(), Vec::new());
        config(spec, &plan, around).unwrap()
    }

    fn spec() -> ContainerSpec {
        ContainerSpec {
            id: "c".into(),
            rootfs: "/root-of-c".into(),
            args: vec!["sh".into()],
            env: vec!["A=b".into()],
            user: User { uid: 5, gid: 6, additional_gids: vec![7] },
            seccomp: SeccompProfile::RuntimeDefault,
            no_new_privileges: true,
            app_armor: Some("web".into()),
            ..ContainerSpec::default()
        }
    }

    #[test]
    fn a_container_joins_its_sandbox() {
        let config = configured(&spec(), &around("pod"));
        assert_eq!(
            config["linux"]["namespaces"],
            json!([
                {"type": "mount"}, {"type": "cgroup"},
                {"type": "network", "path": "/run/s/netns"}, {"type": "uts", "path": "/proc/7/ns/uts"},
                {"type": "ipc", "path": "/proc/7/ns/ipc"}, {"type": "pid"},
            ])
        );
        assert_eq!(config["linux"]["cgroupsPath"], "/kubepods/pod1/c");
        assert_eq!(config["root"], json!({"path": "/root-of-c", "readonly": false}));
        assert_eq!(config["process"]["user"], json!({"uid": 5, "gid": 6, "additionalGids": [7]}));
        assert_eq!(config["process"]["env"], json!(["A=b", format!("PATH={DEFAULT_PATH}"), "HOSTNAME=pod"]));
        assert_eq!(config["process"]["capabilities"]["bounding"].as_array().map(Vec::len), Some(14));
        assert_eq!(config["process"]["capabilities"]["ambient"], json!([]));
        assert_eq!(config["process"]["noNewPrivileges"], true);
        assert_eq!(config["process"]["apparmorProfile"], "web");
        assert_eq!(config["linux"]["seccomp"]["defaultAction"], "SCMP_ACT_ERRNO");
        assert_eq!(config["linux"]["resources"]["devices"][0], json!({"allow": false, "access": "rwm"}));
        let shared = ContainerSpec { pid_mode: PidMode::Pod, ..spec() };
        let sandbox = Around { joined_pids: Some("/proc/7/fd/9".into()), ..around("pod") };
        let joined = configured(&shared, &sandbox);
        assert_eq!(joined["linux"]["namespaces"][5], json!({"type": "pid", "path": "/proc/7/fd/9"}));
        let host = Around { netns: None, host_ipc: true, ..around("pod") };
        let config = configured(&ContainerSpec { pid_mode: PidMode::Host, ..spec() }, &host);
        assert_eq!(config["linux"]["namespaces"], json!([{"type": "mount"}, {"type": "cgroup"}]));
    }

    #[test]
    fn devices_without_numbers_are_all() {
        let all = DeviceRule { block: true, major: None, minor: None, access: "m".to_owned() };
        assert_eq!(device_rule(&all), json!({"allow": true, "type": "b", "access": "m"}));
        let some = DeviceRule { block: false, major: Some(136), access: "rwm".to_owned(), ..all };
        assert_eq!(device_rule(&some), json!({"allow": true, "type": "c", "major": 136, "access": "rwm"}));
    }

    #[test]
    fn mounts_keep_their_options() {
        let bind = |bind: Bind| Mount { destination: "/data".into(), kind: MountKind::Bind(bind) };
        let find = |config: &Value, destination: &str| {
            let mounts = config["mounts"].as_array().unwrap();
            mounts.iter().find(|mount| mount["destination"] == destination).unwrap().clone()
        };
        for (given, options) in [
            (Bind::default(), json!(["rbind", "rprivate"])),
            (
                Bind { read_only: true, recursive_read_only: true, ..Bind::default() },
                json!(["rbind", "rprivate", "ro", "rro"]),
            ),
            (
                Bind {
                    read_only: true,
                    no_exec: true,
                    propagation: Propagation::HostToContainer,
                    ..Bind::default()
                },
                json!(["rbind", "rslave", "ro", "noexec"]),
            ),
        ] {
            let config = configured(&ContainerSpec { mounts: vec![bind(given)], ..spec() }, &around("pod"));
            assert_eq!(find(&config, "/data")["options"], options);
            assert_eq!(find(&config, "/sys")["options"], json!(["nosuid", "noexec", "nodev", "ro"]));
            assert_eq!(find(&config, "/dev/shm")["source"], "/shm");
        }
    }

    #[test]
    fn a_privileged_container_is_open() {
        let config = configured(&ContainerSpec { privileged: true, ..spec() }, &around("pod"));
        assert_eq!(config["linux"]["resources"]["devices"], json!([{"allow": true, "access": "rwm"}]));
        assert_eq!(config["linux"]["seccomp"], Value::Null);
        assert_eq!(config["linux"]["maskedPaths"], json!([]));
        assert_eq!(config["process"]["capabilities"]["bounding"].as_array().map(Vec::len), Some(41));
    }
}
