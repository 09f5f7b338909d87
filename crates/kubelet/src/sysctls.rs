//! Which sysctls pods of this node may set: the safe ones, and those of the node's `--allowed-unsafe-sysctls`.
//!
//! Source: `k8s.io/kubernetes/pkg/kubelet/sysctl`, `k8s.io/component-helpers/node/util/sysctl`.

use std::fmt;
use std::str::FromStr;

use k8s_openapi::api::core::v1::Pod;

use crate::pod;

/// The safe sysctls: namespaced, and without influence on other pods; with the kernel version that namespaced
/// them.
const SAFE: [(&str, (u32, u32)); 14] = [
    ("kernel.shm_rmid_forced", (0, 0)),
    ("net.ipv4.ip_local_port_range", (0, 0)),
    ("net.ipv4.ip_local_reserved_ports", (3, 16)),
    ("net.ipv4.ip_unprivileged_port_start", (0, 0)),
    ("net.ipv4.ping_group_range", (0, 0)),
    ("net.ipv4.tcp_fin_timeout", (4, 6)),
    ("net.ipv4.tcp_keepalive_intvl", (4, 5)),
    ("net.ipv4.tcp_keepalive_probes", (4, 5)),
    ("net.ipv4.tcp_keepalive_time", (4, 5)),
    ("net.ipv4.tcp_notsent_lowat", (4, 6)),
    ("net.ipv4.tcp_rmem", (4, 15)),
    ("net.ipv4.tcp_slow_start_after_idle", (4, 15)),
    ("net.ipv4.tcp_syncookies", (0, 0)),
    ("net.ipv4.tcp_wmem", (4, 15)),
];
const MAX_LENGTH: usize = 253;
const PATTERN: &str = r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*([a-z0-9][-_a-z0-9]*)?[a-z0-9*]";

/// The kernel namespace to which a sysctl belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Namespace {
    Ipc,
    Net,
    Uts,
    User,
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipc => "IPC",
            Self::Net => "Net",
            Self::Uts => "UTS",
            Self::User => "User",
        })
    }
}

/// Returns the namespace of a sysctl; `None` if it is not known to be namespaced.
fn namespace(name: &str) -> Option<Namespace> {
    match name {
        "kernel.domainname" => Some(Namespace::Uts),
        // `kernel.shm` and `kernel.msg` are the prefixes of `kernel.shm*` and `kernel.msg*`.
        "kernel.sem"
        | "kernel.shm"
        | "kernel.shmall"
        | "kernel.shmmax"
        | "kernel.shmmni"
        | "kernel.shm_rmid_forced"
        | "kernel.msg"
        | "kernel.msgmax"
        | "kernel.msgmnb"
        | "kernel.msgmni" => Some(Namespace::Ipc),
        _ if name.starts_with("net.") => Some(Namespace::Net),
        _ if name.starts_with("fs.mqueue.") => Some(Namespace::Ipc),
        _ if name.starts_with("user.") => Some(Namespace::User),
        _ => None,
    }
}

/// Returns the name with dots between its parts; if slashes separate the parts, dots inside a part become slashes.
pub fn normalized(name: &str) -> String {
    if name.find(['.', '/']).is_none_or(|at| name.as_bytes()[at] == b'.') {
        return name.to_owned();
    }
    let swap = |c| match c {
        '.' => '/',
        '/' => '.',
        other => other,
    };
    name.chars().map(swap).collect()
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    #[error("sysctl {0:?} must have at most {MAX_LENGTH} characters and match regex {PATTERN}")]
    Malformed(String),
    #[error("the sysctls {0:?} are not known to be namespaced")]
    NotNamespaced(String),
}

/// A sysctl, or with `*` at its end all sysctls with that prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SysctlPattern {
    text: String,
    name: String,
    is_prefix: bool,
    namespace: Namespace,
}

impl FromStr for SysctlPattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        if text.len() > MAX_LENGTH || !is_well_formed(text) {
            return Err(PatternError::Malformed(text.to_owned()));
        }
        let mut name = normalized(text);
        let star = name.find('*');
        if let Some(star) = star {
            name.truncate(star);
        }
        match namespace(&name) {
            Some(namespace) => Ok(Self { text: text.to_owned(), name, is_prefix: star.is_some(), namespace }),
            None => Err(PatternError::NotNamespaced(name)),
        }
    }
}

/// Formats the pattern as it was given.
impl fmt::Display for SysctlPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn is_well_formed(text: &str) -> bool {
    let end = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let inner = |c: &u8| end(*c) || matches!(c, b'-' | b'_');
    let mut parts: Vec<&[u8]> = text.as_bytes().split(|c| matches!(c, b'.' | b'/')).collect();
    let Some([first @ .., last]) = parts.pop() else { return false };
    let begins = first.first().is_none_or(|c| end(*c)) && first.iter().all(inner);
    begins
        && (end(*last) || *last == b'*')
        && parts.iter().all(|part| match part {
            [only] => end(*only),
            [first, middle @ .., last] => end(*first) && end(*last) && middle.iter().all(inner),
            [] => false,
        })
}

/// The sysctls that pods may set.
#[derive(Debug, Clone)]
pub struct SysctlAllowlist {
    patterns: Vec<SysctlPattern>,
}

impl SysctlAllowlist {
    /// Creates the list of the safe sysctls of this kernel (`6.1.0-13-amd64`), and the additional ones of the
    /// configuration.
    pub fn new(kernel_version: &str, allowed_unsafe: &[SysctlPattern]) -> Self {
        let mut numbers = kernel_version.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse().ok());
        let kernel = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        let safe = SAFE.iter().filter(|(_, since)| kernel >= *since);
        let safe = safe.filter_map(|(name, _)| name.parse::<SysctlPattern>().ok());
        Self { patterns: safe.chain(allowed_unsafe.iter().cloned()).collect() }
    }

    /// Returns why the pod may not set its sysctls; `None` if it may.
    pub fn forbidden(&self, pod: &Pod) -> Option<String> {
        let wanted = pod::spec(pod).security_context.as_ref()?.sysctls.as_ref()?;
        wanted.iter().find_map(|sysctl| self.refusal(&normalized(&sysctl.name), pod))
    }

    fn refusal(&self, name: &str, pod: &Pod) -> Option<String> {
        let exact = self.patterns.iter().find(|p| !p.is_prefix && p.name == name);
        let prefix = || self.patterns.iter().find(|p| p.is_prefix && name.starts_with(&p.name));
        let Some(pattern) = exact.or_else(prefix) else { return Some(format!("{name:?} not allowlisted")) };
        let spec = pod::spec(pod);
        let is_hosts = match pattern.namespace {
            Namespace::Ipc => spec.host_ipc == Some(true),
            Namespace::Net => pod::is_host_network(pod),
            Namespace::User => spec.host_users != Some(false),
            Namespace::Uts => false,
        };
        is_hosts.then(|| format!("{name:?} not allowed with host {} enabled", pattern.namespace))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use knarr_api::kind::Kind;
    use serde_json::{Value, json};

    fn patterns(texts: &[&str]) -> Vec<SysctlPattern> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn forbidden(list: &SysctlAllowlist, name: &str, more: Value) -> Option<String> {
        let mut spec = more;
        spec["containers"] = json!([{"name": "c"}]);
        spec["securityContext"] = json!({"sysctls": [{"name": name, "value": "1"}]});
        let pod = json!({"metadata": {"name": "p"}, "spec": spec});
        list.forbidden(&Pod::decode(pod.to_string().as_bytes()).unwrap())
    }

    #[test]
    fn safe_ones_and_what_the_node_adds() {
        let list = SysctlAllowlist::new(
            "6.18.5-amd64",
            &patterns(&["net.ipv6.neigh.*", "kernel/msg*", "net.core.somaxconn", "user.max_user_namespaces"]),
        );
        let not = |name: &str| Some(format!("{name:?} not allowlisted"));
        let host = |name: &str, what: &str| Some(format!("{name:?} not allowed with host {what} enabled"));
        let none = json!({});
        for (name, spec, expected) in [
            ("kernel.shm_rmid_forced", none.clone(), None),
            ("kernel/shm_rmid_forced", none.clone(), None),
            ("kernel.shm_rmid_forced", json!({"hostIPC": true}), host("kernel.shm_rmid_forced", "IPC")),
            ("net.ipv4.tcp_rmem", none.clone(), None),
            ("net.ipv4.tcp_rmem", json!({"hostNetwork": true}), host("net.ipv4.tcp_rmem", "Net")),
            ("net.core.somaxconn", none.clone(), None),
            ("net.core.somaxconn_more", none.clone(), not("net.core.somaxconn_more")),
            ("net.ipv6.neigh.eth0.gc_stale_time", none.clone(), None),
            ("net/ipv6/neigh/eth0.100/gc_stale_time", none.clone(), None),
            ("kernel.msgmax", none.clone(), None),
            ("kernel.msgmax", json!({"hostIPC": true}), host("kernel.msgmax", "IPC")),
            ("kernel.shmmax", none.clone(), not("kernel.shmmax")),
            ("vm.swappiness", none.clone(), not("vm.swappiness")),
            ("user.max_user_namespaces", none, host("user.max_user_namespaces", "User")),
            ("user.max_user_namespaces", json!({"hostUsers": false}), None),
        ] {
            assert_eq!(forbidden(&list, name, spec), expected, "{name}");
        }
    }

    #[test]
    fn old_kernels_have_fewer() {
        let count = |version: &str| SysctlAllowlist::new(version, &[]).patterns.len();
        assert_eq!(count("6.18.0"), SAFE.len());
        assert_eq!(
            (count("4.15.0-200-generic"), count("4.14.1"), count("4.6"), count("4.5")),
            (14, 11, 11, 9)
        );
        assert_eq!((count("3.16.0"), count("")), (6, 5));
    }

    #[test]
    fn patterns_are_read_as_upstream_reads_them() {
        for good in ["kernel.shm*", "net.*", "net.ipv4.conf.eth-0_a.x", "net/ipv4/*", "kernel.sem"] {
            assert_eq!(good.parse::<SysctlPattern>().unwrap().to_string(), good);
        }
        for malformed in
            ["", "net.", ".net", "net.*.x", "net..x", "Net.x", "net.-a", "net.a-", "net.**", "net.-*"]
        {
            let error = malformed.parse::<SysctlPattern>().unwrap_err();
            assert_eq!(error, PatternError::Malformed(malformed.to_owned()));
        }
        for (text, name) in [("kernel.*", "kernel."), ("vm.swappiness", "vm.swappiness"), ("*", "")] {
            let error = text.parse::<SysctlPattern>().unwrap_err();
            assert_eq!(error, PatternError::NotNamespaced(name.to_owned()));
        }
    }

    #[test]
    fn names_are_normalized() {
        for (name, expected) in [
            ("a.b.c", "a.b.c"),
            ("a/b/c", "a.b.c"),
            ("net.ipv4.conf.eno2/100.x", "net.ipv4.conf.eno2/100.x"),
            ("net/ipv4/conf/eno2.100/x", "net.ipv4.conf.eno2/100.x"),
        ] {
            assert_eq!(normalized(name), expected);
        }
    }
}
