//! Converts the kubelet's types to CRI's: sandboxes, containers, resources.

use std::collections::BTreeMap;
use std::path::Path;

use knarr_runtime::containers::{MASKED_PATHS, READONLY_PATHS};

use super::messages as cri;
use crate::pod_network::{PortMapping, Protocol};
use crate::runtime::{
    AppArmorProfile, ContainerConfig, ContainerUser, DnsConfig, ImageUser, Mount, PidMode, PodSandboxConfig,
    Propagation, Resources, SeLinuxOptions, SeccompProfile,
};

/// CRI's signals in the order of their numbers, which start at 1. Real-time signals follow.
const SIGNALS: [&str; 34] = [
    "ABRT", "ALRM", "BUS", "CHLD", "CLD", "CONT", "FPE", "HUP", "ILL", "INT", "IO", "IOT", "KILL", "PIPE",
    "POLL", "PROF", "PWR", "QUIT", "SEGV", "STKFLT", "STOP", "SYS", "TERM", "TRAP", "TSTP", "TTIN", "TTOU",
    "URG", "USR1", "USR2", "VTALRM", "WINCH", "XCPU", "XFSZ",
];
const SIGRTMIN: i32 = 35;
const SIGRTMAX: i32 = 65;

/// Returns CRI's number of `SIGTERM`, `SIGRTMIN+3` and the like; 0, the runtime's default, for unknown signals.
fn stop_signal(name: Option<&str>) -> i32 {
    let Some(name) = name.and_then(|name| name.strip_prefix("SIG")) else { return 0 };
    if let Some(at) = SIGNALS.iter().position(|known| *known == name) {
        return i32::try_from(at + 1).unwrap_or(0);
    }
    let offset = |rest: &str, sign: char| match rest {
        "" => Some(0),
        _ => rest.strip_prefix(sign)?.parse::<i32>().ok().filter(|n| (1..=15).contains(n)),
    };
    if let Some(rest) = name.strip_prefix("RTMIN") {
        return offset(rest, '+').map_or(0, |n| SIGRTMIN + n);
    }
    let from_the_end = name.strip_prefix("RTMAX").and_then(|rest| offset(rest, '-')).filter(|n| *n <= 14);
    from_the_end.map_or(0, |n| SIGRTMAX - n)
}

fn path(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn number(value: u32) -> Option<cri::Int64Value> {
    Some(cri::Int64Value { value: i64::from(value) })
}

fn port(mapping: &PortMapping) -> cri::PortMapping {
    let protocol = match mapping.protocol {
        Protocol::Tcp => cri::Protocol::Tcp,
        Protocol::Udp => cri::Protocol::Udp,
        Protocol::Sctp => cri::Protocol::Sctp,
    };
    cri::PortMapping {
        protocol: protocol.into(),
        container_port: i32::from(mapping.container_port),
        host_port: i32::from(mapping.host_port),
        host_ip: mapping.host_ip.map(|ip| ip.to_string()).unwrap_or_default(),
    }
}

fn dns(config: &DnsConfig) -> cri::DnsConfig {
    cri::DnsConfig {
        servers: config.servers.clone(),
        searches: config.searches.clone(),
        options: config.options.clone(),
    }
}

fn namespaces(sandbox: &PodSandboxConfig, pid: &PidMode) -> cri::NamespaceOption {
    let of = |host: bool| if host { cri::NamespaceMode::Node } else { cri::NamespaceMode::Pod };
    let (pid, target_id) = match pid {
        PidMode::Container => (cri::NamespaceMode::Container, ""),
        PidMode::Pod => (cri::NamespaceMode::Pod, ""),
        PidMode::Host => (cri::NamespaceMode::Node, ""),
        PidMode::Target(id) => (cri::NamespaceMode::Target, id.as_str()),
    };
    cri::NamespaceOption {
        network: of(sandbox.host_network).into(),
        pid: pid.into(),
        ipc: of(sandbox.host_ipc).into(),
        target_id: target_id.to_owned(),
    }
}

fn groups(user: &ContainerUser) -> (Vec<i64>, i32) {
    let policy = if user.strict_groups {
        cri::SupplementalGroupsPolicy::Strict
    } else {
        cri::SupplementalGroupsPolicy::Merge
    };
    (user.supplemental_groups.iter().map(|group| i64::from(*group)).collect(), policy.into())
}

/// Converts a sandbox. `cgroup_parent` has the form of the runtime's cgroup driver.
pub fn sandbox(config: &PodSandboxConfig, cgroup_parent: &str) -> cri::PodSandboxConfig {
    let (supplemental_groups, supplemental_groups_policy) = groups(&config.user);
    let pid = match (config.host_pid, config.shared_pid) {
        (true, _) => PidMode::Host,
        (false, true) => PidMode::Pod,
        (false, false) => PidMode::Container,
    };
    let security_context = cri::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(config, &pid)),
        run_as_user: config.user.uid.and_then(number),
        run_as_group: config.user.gid.and_then(number),
        supplemental_groups,
        supplemental_groups_policy,
        privileged: config.privileged,
        seccomp: Some(cri::SecurityProfile::default()),
        selinux_options: config.se_linux.as_ref().map(se_linux),
    };
    cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: config.name.clone(),
            uid: config.uid.clone(),
            namespace: config.namespace.clone(),
            attempt: config.attempt,
        }),
        // A pod in the host's network keeps the host's name.
        hostname: if config.host_network { String::new() } else { config.hostname.clone() },
        log_directory: path(&config.log_directory),
        dns_config: config.dns.as_ref().map(dns),
        port_mappings: config.port_mappings.iter().map(port).collect(),
        labels: config.labels.clone(),
        annotations: config.annotations.clone(),
        linux: Some(cri::LinuxPodSandboxConfig {
            cgroup_parent: cgroup_parent.to_owned(),
            security_context: Some(security_context),
            sysctls: config.sysctls.clone(),
            // Runtimes with virtual machines expect this field; the kubelet sets the limits itself.
            overhead: Some(cri::LinuxContainerResources::default()),
            resources: Some(cri::LinuxContainerResources::default()),
        }),
    }
}

pub fn resources(limits: &Resources, oom_score_adj: Option<i32>) -> cri::LinuxContainerResources {
    let signed = |value: Option<u64>| value.and_then(|n| i64::try_from(n).ok()).unwrap_or(0);
    cri::LinuxContainerResources {
        cpu_period: signed(limits.cpu_period),
        cpu_quota: limits.cpu_quota.unwrap_or(0),
        cpu_shares: signed(limits.cpu_shares),
        memory_limit_in_bytes: limits.memory_limit.unwrap_or(0),
        oom_score_adj: i64::from(oom_score_adj.unwrap_or(0)),
        cpuset_cpus: limits.cpuset_cpus.clone().unwrap_or_default(),
        cpuset_mems: limits.cpuset_mems.clone().unwrap_or_default(),
        hugepage_limits: limits
            .hugepage_limits
            .iter()
            .map(|(size, limit)| cri::HugepageLimit { page_size: size.clone(), limit: *limit })
            .collect(),
        unified: limits.unified.clone(),
        memory_swap_limit_in_bytes: limits.memory_swap_limit.unwrap_or(0),
    }
}

fn mount(mount: &Mount) -> cri::Mount {
    let propagation = match mount.propagation {
        Propagation::Private => cri::MountPropagation::Private,
        Propagation::HostToContainer => cri::MountPropagation::HostToContainer,
        Propagation::Bidirectional => cri::MountPropagation::Bidirectional,
    };
    cri::Mount {
        container_path: mount.container_path.clone(),
        host_path: if mount.image.is_some() { String::new() } else { path(&mount.host_path) },
        readonly: mount.read_only,
        propagation: propagation.into(),
        recursive_read_only: mount.recursive_read_only,
        image: mount.image.as_ref().map(|image| cri::ImageSpec::named(&image.image)),
        image_sub_path: mount.image.as_ref().map(|image| image.sub_path.clone()).unwrap_or_default(),
    }
}

fn seccomp(config: &ContainerConfig) -> cri::SecurityProfile {
    let (kind, localhost_ref) = match &config.seccomp {
        SeccompProfile::Unconfined => (cri::ProfileType::Unconfined, String::new()),
        SeccompProfile::RuntimeDefault => (cri::ProfileType::RuntimeDefault, String::new()),
        SeccompProfile::Localhost(_) => (cri::ProfileType::Localhost, path(&config.seccomp_file)),
    };
    cri::SecurityProfile { profile_type: kind.into(), localhost_ref }
}

fn app_armor(profile: &AppArmorProfile) -> cri::SecurityProfile {
    let (kind, name) = match profile {
        AppArmorProfile::RuntimeDefault => (cri::ProfileType::RuntimeDefault, ""),
        AppArmorProfile::Unconfined => (cri::ProfileType::Unconfined, ""),
        AppArmorProfile::Localhost(name) => (cri::ProfileType::Localhost, name.as_str()),
    };
    cri::SecurityProfile { profile_type: kind.into(), localhost_ref: name.to_owned() }
}

fn se_linux(options: &SeLinuxOptions) -> cri::SeLinuxOption {
    cri::SeLinuxOption {
        user: options.user.clone(),
        role: options.role.clone(),
        kind: options.type_.clone(),
        level: options.level.clone(),
    }
}

fn owned(paths: &[&str]) -> Vec<String> {
    paths.iter().map(|path| (*path).to_owned()).collect()
}

fn security(
    config: &ContainerConfig,
    sandbox: &PodSandboxConfig,
    image_user: Option<&ImageUser>,
) -> cri::LinuxContainerSecurityContext {
    let (supplemental_groups, supplemental_groups_policy) = groups(&config.user);
    let from_image = image_user.filter(|_| config.user.uid.is_none());
    let run_as_user = match (config.user.uid, from_image) {
        (Some(uid), _) => number(uid),
        (None, Some(ImageUser::Uid(uid))) => Some(cri::Int64Value { value: *uid }),
        (None, _) => None,
    };
    let run_as_username = match from_image {
        Some(ImageUser::Name(name)) => name.clone(),
        _ => String::new(),
    };
    let masked = |paths: &[&str]| if config.unmasked_proc { Vec::new() } else { owned(paths) };
    cri::LinuxContainerSecurityContext {
        capabilities: Some(cri::Capability {
            add_capabilities: config.capabilities.add.clone(),
            drop_capabilities: config.capabilities.drop.clone(),
            add_ambient_capabilities: config.capabilities.ambient.clone(),
        }),
        privileged: config.privileged,
        namespace_options: Some(namespaces(sandbox, &config.pid_mode)),
        run_as_user,
        run_as_group: config.user.gid.and_then(number),
        run_as_username,
        readonly_rootfs: config.readonly_rootfs,
        supplemental_groups,
        supplemental_groups_policy,
        no_new_privs: config.no_new_privileges,
        masked_paths: masked(&MASKED_PATHS),
        readonly_paths: masked(&READONLY_PATHS),
        seccomp: Some(seccomp(config)),
        apparmor: config.app_armor.as_ref().map(app_armor),
        selinux_options: config.se_linux.as_ref().map(se_linux),
    }
}

/// Converts a container. `image_user` is the user of the image; the runtime needs it if the pod sets a group only.
pub fn container(
    config: &ContainerConfig,
    sandbox: &PodSandboxConfig,
    image_user: Option<&ImageUser>,
) -> cri::ContainerConfig {
    let log_path = config.log_path.strip_prefix(&sandbox.log_directory).unwrap_or(&config.log_path);
    let labels: BTreeMap<String, String> = config.labels.clone();
    cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: config.name.clone(), attempt: config.attempt }),
        image: Some(cri::ImageSpec {
            image: config.image.clone(),
            user_specified_image: config.image_name.clone(),
            ..cri::ImageSpec::default()
        }),
        command: config.command.clone(),
        args: config.args.clone(),
        working_dir: config.working_dir.clone(),
        envs: config
            .env
            .iter()
            .map(|(key, value)| cri::KeyValue { key: key.clone(), value: value.clone().into_bytes() })
            .collect(),
        mounts: config.mounts.iter().map(mount).collect(),
        devices: config
            .devices
            .iter()
            .map(|device| cri::Device {
                container_path: device.container_path.clone(),
                host_path: path(&device.host_path),
                permissions: device.access.clone(),
            })
            .collect(),
        labels,
        annotations: config.annotations.clone(),
        log_path: path(log_path),
        stdin: config.stdin,
        stdin_once: config.stdin_once,
        tty: config.tty,
        linux: Some(cri::LinuxContainerConfig {
            resources: Some(resources(&config.resources, config.oom_score_adj)),
            security_context: Some(security(config, sandbox, image_user)),
        }),
        stop_signal: stop_signal(config.stop_signal.as_deref()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_cris_numbers() {
        for (name, expected) in [
            (None, 0),
            (Some("SIGABRT"), 1),
            (Some("SIGKILL"), 13),
            (Some("SIGTERM"), 23),
            (Some("SIGXFSZ"), 34),
            (Some("SIGRTMIN"), 35),
            (Some("SIGRTMIN+15"), 50),
            (Some("SIGRTMAX-14"), 51),
            (Some("SIGRTMAX"), 65),
            (Some("SIGRTMAX-15"), 0),
            (Some("SIGRTMIN-1"), 0),
            (Some("TERM"), 0),
        ] {
            assert_eq!(stop_signal(name), expected, "{name:?}");
        }
    }

    #[test]
    fn a_sandbox_says_whose_namespaces_it_wants() {
        let config = PodSandboxConfig {
            host_network: true,
            hostname: "node".into(),
            shared_pid: true,
            privileged: true,
            user: ContainerUser { uid: Some(7), supplemental_groups: vec![8], ..ContainerUser::default() },
            ..PodSandboxConfig::default()
        };
        let made = sandbox(&config, "/kubepods/podX");
        assert_eq!(made.hostname, "");
        let linux = made.linux.unwrap();
        assert_eq!(linux.cgroup_parent, "/kubepods/podX");
        let context = linux.security_context.unwrap();
        let modes = context.namespace_options.unwrap();
        assert_eq!((modes.network, modes.pid, modes.ipc), (2, 0, 0));
        let modes = namespaces(&config, &PidMode::Target("abc".to_owned()));
        assert_eq!((modes.pid, modes.target_id.as_str()), (3, "abc"));
        assert!(context.privileged);
        assert_eq!((context.run_as_user.unwrap().value, context.supplemental_groups), (7, vec![8]));
    }

    #[test]
    fn profiles_and_labels_are_handed_on() {
        let labels = SeLinuxOptions { level: "s0:c1".into(), ..SeLinuxOptions::default() };
        let of_pod = PodSandboxConfig { se_linux: Some(labels.clone()), ..Default::default() };
        let level = |options: Option<cri::SeLinuxOption>| options.map(|o| o.level);
        let linux = sandbox(&of_pod, "/").linux.unwrap();
        assert_eq!(level(linux.security_context.unwrap().selinux_options), Some("s0:c1".to_owned()));
        let context = |config: &ContainerConfig| {
            container(config, &of_pod, None).linux.unwrap().security_context.unwrap()
        };
        let plain = context(&ContainerConfig::default());
        assert_eq!((plain.apparmor, plain.selinux_options), (None, None));
        for (profile, kind, name) in [
            (AppArmorProfile::RuntimeDefault, cri::ProfileType::RuntimeDefault, ""),
            (AppArmorProfile::Unconfined, cri::ProfileType::Unconfined, ""),
            (AppArmorProfile::Localhost("k8s".into()), cri::ProfileType::Localhost, "k8s"),
        ] {
            let config = ContainerConfig {
                app_armor: Some(profile),
                se_linux: Some(labels.clone()),
                ..ContainerConfig::default()
            };
            let made = context(&config);
            let expected = cri::SecurityProfile { profile_type: kind.into(), localhost_ref: name.into() };
            assert_eq!(made.apparmor, Some(expected));
            assert_eq!(level(made.selinux_options), Some("s0:c1".to_owned()));
        }
    }

    #[test]
    fn a_containers_log_lies_in_its_sandboxs_folder() {
        let sandbox = PodSandboxConfig { log_directory: "/l/ns_pod_uid".into(), ..Default::default() };
        let config = ContainerConfig {
            log_path: "/l/ns_pod_uid/web/3.log".into(),
            attempt: 3,
            user: ContainerUser { gid: Some(5), ..ContainerUser::default() },
            ..ContainerConfig::default()
        };
        let made = container(&config, &sandbox, Some(&ImageUser::Uid(9)));
        assert_eq!(made.log_path, "web/3.log");
        let context = made.linux.unwrap().security_context.unwrap();
        assert_eq!((context.run_as_user.unwrap().value, context.run_as_group.unwrap().value), (9, 5));
        assert!(context.masked_paths.iter().any(|path| path == "/proc/kcore"));
        let config = ContainerConfig { unmasked_proc: true, ..config };
        let made = container(&config, &sandbox, Some(&ImageUser::Name("web".into())));
        let context = made.linux.unwrap().security_context.unwrap();
        assert!(context.masked_paths.is_empty() && context.readonly_paths.is_empty());
        assert_eq!((context.run_as_user, context.run_as_username.as_str()), (None, "web"));
    }
}
