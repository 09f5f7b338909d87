//! The checks of the baseline level, which forbid known privilege escalations.

use std::collections::BTreeSet;

use serde_json::Value;

use super::evaluate::{Check, Finding, Pod, containers_named, finding, plural, quoted, setters};

/// Sorted by name, which is the order of the messages.
pub const CHECKS: &[Check] = &[
    check("appArmorProfile", 0, apparmor),
    check("capabilities_baseline", 0, capabilities),
    check("hostNamespaces", 0, host_namespaces),
    check("hostPathVolumes", 0, host_paths),
    check("hostPorts", 0, host_ports),
    check("hostProbesAndHostLifecycle", 34, probe_hosts),
    check("privileged", 0, privileged),
    check("procMount", 0, proc_mount_relaxed),
    check("seLinuxOptions", 0, selinux),
    check("seccompProfile_baseline", 0, seccomp),
    check("sysctls", 0, sysctls),
    check("windowsHostProcess", 0, host_process),
];

const fn check(id: &'static str, since: u32, run: fn(Pod<'_>, u32) -> Option<Finding>) -> Check {
    Check { id, since, overrides: "", run }
}

const APPARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

fn apparmor(pod: Pod<'_>, _: u32) -> Option<Finding> {
    let kind = |v: &Value| v["securityContext"]["appArmorProfile"]["type"].as_str().map(str::to_owned);
    let set = |v: &Value| v["securityContext"]["appArmorProfile"].is_object();
    let bad = |v: &Value| set(v) && !matches!(kind(v).as_deref(), Some("RuntimeDefault" | "Localhost"));
    let mut values: BTreeSet<String> = BTreeSet::new();
    let of_pod = bad(pod.spec);
    if of_pod {
        values.insert(kind(pod.spec).unwrap_or_default());
    }
    values.extend(pod.containers().filter(|c| bad(c)).map(|c| kind(c).unwrap_or_default()));
    let annotations = pod.metadata["annotations"].as_object();
    let mut forbidden: Vec<String> = annotations
        .into_iter()
        .flatten()
        .filter_map(|(k, v)| Some((k, v.as_str()?)))
        .filter(|(k, v)| {
            let allowed = v.is_empty() || *v == "runtime/default" || v.starts_with("localhost/");
            k.starts_with(APPARMOR_ANNOTATION) && !allowed
        })
        .map(|(k, v)| format!("{k}={v:?}"))
        .collect();
    forbidden.sort();
    let mut parts: Vec<String> = setters(of_pod, &pod.containers_that(bad)).into_iter().collect();
    if !forbidden.is_empty() {
        parts.push(plural("annotation", "annotations", forbidden.len()).to_owned());
    }
    if parts.is_empty() {
        return None;
    }
    let values: Vec<String> = values.into_iter().chain(forbidden).collect();
    let reason = plural("forbidden AppArmor profile", "forbidden AppArmor profiles", values.len());
    let detail = format!("{} must not set AppArmor profile type to {}", parts.join(" and "), quoted(values));
    finding(reason, detail)
}

const CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// Returns the capabilities that a container adds.
pub fn added(container: &Value) -> impl Iterator<Item = &str> {
    let list = container["securityContext"]["capabilities"]["add"].as_array();
    list.into_iter().flatten().filter_map(Value::as_str)
}

fn capabilities(pod: Pod<'_>, _: u32) -> Option<Finding> {
    let forbidden = |c: &&str| !CAPABILITIES.contains(c);
    let bad = pod.containers_that(|c| added(c).any(|a| forbidden(&a)));
    if bad.is_empty() {
        return None;
    }
    let names: BTreeSet<&str> = pod.containers().flat_map(added).filter(forbidden).collect();
    let detail = format!(
        "{} must not include {} in securityContext.capabilities.add",
        containers_named(&bad),
        quoted(names)
    );
    finding("non-default capabilities", detail)
}

fn host_namespaces(pod: Pod<'_>, _: u32) -> Option<Finding> {
    let shared = ["hostNetwork", "hostPID", "hostIPC"].into_iter().filter(|f| pod.spec[*f] == true);
    let shared: Vec<String> = shared.map(|f| format!("{f}=true")).collect();
    if shared.is_empty() { None } else { finding("host namespaces", shared.join(", ")) }
}

fn host_paths(pod: Pod<'_>, _: u32) -> Option<Finding> {
    let volumes = pod.spec["volumes"].as_array().into_iter().flatten();
    let bad = volumes.filter(|v| !v["hostPath"].is_null()).map(|v| v["name"].as_str().unwrap_or(""));
    let bad: Vec<&str> = bad.collect();
    if bad.is_empty() {
        return None;
    }
    finding("hostPath volumes", format!("{} {}", plural("volume", "volumes", bad.len()), quoted(bad)))
}

fn host_ports(pod: Pod<'_>, _: u32) -> Option<Finding> {
    fn ports(container: &Value) -> impl Iterator<Item = i64> {
        let list = container["ports"].as_array().into_iter().flatten();
        list.filter_map(|p| p["hostPort"].as_i64()).filter(|p| *p != 0)
    }
    let bad = pod.containers_that(|c| ports(c).next().is_some());
    if bad.is_empty() {
        return None;
    }
    // Sorted as strings, because that is the order of the message.
    let numbers: BTreeSet<String> = pod.containers().flat_map(ports).map(|p| p.to_string()).collect();
    let detail = format!(
        "{} {} {} {}",
        containers_named(&bad),
        plural("uses", "use", bad.len()),
        plural("hostPort", "hostPorts", numbers.len()),
        numbers.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
    );
    finding("hostPort", detail)
}

fn probe_hosts(pod: Pod<'_>, _: u32) -> Option<Finding> {
    fn hosts(container: &Value) -> impl Iterator<Item = &str> {
        let handlers = [
            "/livenessProbe",
            "/readinessProbe",
            "/startupProbe",
            "/lifecycle/postStart",
            "/lifecycle/preStop",
        ];
        let handlers = handlers.into_iter().filter_map(|p| container.pointer(p));
        let hosts = handlers.flat_map(|h| [&h["httpGet"]["host"], &h["tcpSocket"]["host"]]);
        hosts.filter_map(Value::as_str).filter(|h| !h.is_empty())
    }
    let mut bad = pod.containers_that(|c| hosts(c).next().is_some());
    if bad.is_empty() {
        return None;
    }
    bad.sort_unstable();
    let hosts: BTreeSet<&str> = pod.containers().flat_map(hosts).collect();
    let detail = format!(
        "{} {} {} {}",
        containers_named(&bad),
        plural("uses", "use", bad.len()),
        plural("probe or lifecycle host", "probe or lifecycle hosts", hosts.len()),
        quoted(hosts)
    );
    finding("probe or lifecycle host", detail)
}

fn privileged(pod: Pod<'_>, _: u32) -> Option<Finding> {
    let bad = pod.containers_that(|c| c["securityContext"]["privileged"] == true);
    if bad.is_empty() {
        return None;
    }
    finding("privileged", format!("{} must not set securityContext.privileged=true", containers_named(&bad)))
}

fn proc_mount_relaxed(pod: Pod<'_>, minor: u32) -> Option<Finding> {
    if minor >= 35 && pod.has_own_users() { None } else { proc_mount(pod, minor) }
}

pub fn proc_mount(pod: Pod<'_>, _: u32) -> Option<Finding> {
    let mount = |c: &Value| c["securityContext"]["procMount"].as_str().map(str::to_owned);
    let bad = pod.containers_that(|c| mount(c).is_some_and(|m| m != "Default"));
    if bad.is_empty() {
        return None;
    }
    let types: BTreeSet<String> = pod.containers().filter_map(mount).filter(|m| m != "Default").collect();
    let detail =
        format!("{} must not set securityContext.procMount to {}", containers_named(&bad), quoted(types));
    finding("procMount", detail)
}

fn selinux(pod: Pod<'_>, minor: u32) -> Option<Finding> {
    let options = |v: &Value| v["securityContext"]["seLinuxOptions"].clone();
    let field = |v: &Value, name: &str| options(v)[name].as_str().unwrap_or("").to_owned();
    let allowed = |type_: &str| {
        matches!(type_, "" | "container_t" | "container_init_t" | "container_kvm_t")
            || minor >= 31 && type_ == "container_engine_t"
    };
    let set = |v: &Value, name: &str| !field(v, name).is_empty();
    let bad = |v: &Value| !allowed(&field(v, "type")) || set(v, "user") || set(v, "role");
    let who = setters(bad(pod.spec), &pod.containers_that(bad))?;
    let all = || [pod.spec].into_iter().chain(pod.containers());
    let types: BTreeSet<String> = all().map(|v| field(v, "type")).filter(|t| !allowed(t)).collect();
    let mut parts = Vec::new();
    if !types.is_empty() {
        parts.push(format!("{} {}", plural("type", "types", types.len()), quoted(types)));
    }
    for name in ["user", "role"] {
        if all().any(|v| set(v, name)) {
            parts.push(format!("{name} may not be set"));
        }
    }
    let detail = format!("{who} set forbidden securityContext.seLinuxOptions: {}", parts.join("; "));
    finding("seLinuxOptions", detail)
}

const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";

fn seccomp(pod: Pod<'_>, minor: u32) -> Option<Finding> {
    if minor >= 19 {
        return bad_seccomp(pod);
    }
    let annotations = &pod.metadata["annotations"];
    let keys = pod.containers().map(|c| format!("{SECCOMP_CONTAINER}{}", c["name"].as_str().unwrap_or("")));
    let keys = [SECCOMP_POD.to_owned()].into_iter().chain(keys);
    let bad = |key: String| {
        let value = annotations[&key].as_str()?;
        let allowed =
            matches!(value, "runtime/default" | "docker/default") || value.starts_with("localhost/");
        (!allowed).then(|| format!("{key}={value:?}"))
    };
    let forbidden: BTreeSet<String> = keys.filter_map(bad).collect();
    if forbidden.is_empty() {
        return None;
    }
    let list: Vec<&str> = forbidden.iter().map(String::as_str).collect();
    let detail = format!("forbidden {} {}", plural("annotation", "annotations", list.len()), list.join(", "));
    finding("seccompProfile", detail)
}

/// Returns the type of the seccomp profile, if one is set.
pub fn seccomp_type(v: &Value) -> Option<String> {
    let profile = &v["securityContext"]["seccompProfile"];
    profile.is_object().then(|| profile["type"].as_str().unwrap_or("").to_owned())
}

pub fn is_good_seccomp(type_: &str) -> bool {
    matches!(type_, "Localhost" | "RuntimeDefault")
}

/// Checks that all profiles that are set are allowed ones.
pub fn bad_seccomp(pod: Pod<'_>) -> Option<Finding> {
    let bad = |v: &Value| seccomp_type(v).is_some_and(|t| !is_good_seccomp(&t));
    let who = setters(bad(pod.spec), &pod.containers_that(bad))?;
    let all = [pod.spec].into_iter().chain(pod.containers());
    let types: BTreeSet<String> = all.filter_map(seccomp_type).filter(|t| !is_good_seccomp(t)).collect();
    let detail = format!("{who} must not set securityContext.seccompProfile.type to {}", quoted(types));
    finding("seccompProfile", detail)
}

/// The safe sysctls, and the minor release since which each is considered safe.
const SYSCTLS: [(&str, u32); 14] = [
    ("kernel.shm_rmid_forced", 0),
    ("net.ipv4.ip_local_port_range", 0),
    ("net.ipv4.tcp_syncookies", 0),
    ("net.ipv4.ping_group_range", 0),
    ("net.ipv4.ip_unprivileged_port_start", 0),
    ("net.ipv4.ip_local_reserved_ports", 27),
    ("net.ipv4.tcp_keepalive_time", 29),
    ("net.ipv4.tcp_fin_timeout", 29),
    ("net.ipv4.tcp_keepalive_intvl", 29),
    ("net.ipv4.tcp_keepalive_probes", 29),
    ("net.ipv4.tcp_rmem", 32),
    ("net.ipv4.tcp_wmem", 32),
    ("net.ipv4.tcp_slow_start_after_idle", 37),
    ("net.ipv4.tcp_notsent_lowat", 37),
];

fn sysctls(pod: Pod<'_>, minor: u32) -> Option<Finding> {
    let list = pod.spec["securityContext"]["sysctls"].as_array().into_iter().flatten();
    let names = list.map(|s| s["name"].as_str().unwrap_or(""));
    let safe = |name: &str| SYSCTLS.iter().any(|(n, since)| *n == name && *since <= minor);
    let bad: Vec<&str> = names.filter(|n| !safe(n)).collect();
    if bad.is_empty() { None } else { finding("forbidden sysctls", bad.join(", ")) }
}

fn host_process(pod: Pod<'_>, _: u32) -> Option<Finding> {
    let bad = |v: &Value| v["securityContext"]["windowsOptions"]["hostProcess"] == true;
    let who = setters(bad(pod.spec), &pod.containers_that(bad))?;
    finding("hostProcess", format!("{who} must not set securityContext.windowsOptions.hostProcess=true"))
}
