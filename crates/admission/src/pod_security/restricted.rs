//! The additional checks of the restricted level, for pods hardened by current best practice.

use std::collections::BTreeSet;

use serde_json::Value;

use super::baseline::{added, bad_seccomp, is_good_seccomp, proc_mount, seccomp_type};
use super::evaluate::{Check, Finding, Pod, containers_named, finding, plural, quoted, setters};

/// Sorted by name, which is the order of the messages.
pub const CHECKS: &[Check] = &[
    check("allowPrivilegeEscalation", 8, "", privilege_escalation),
    check("capabilities_restricted", 22, "capabilities_baseline", capabilities),
    check("procMount_restricted", 35, "procMount", proc_mount),
    check("restrictedVolumes", 0, "hostPathVolumes", volumes),
    check("runAsNonRoot", 0, "", run_as_non_root),
    check("runAsUser", 23, "", run_as_user),
    check("seccompProfile_restricted", 19, "seccompProfile_baseline", seccomp),
];

const fn check(
    id: &'static str,
    since: u32,
    overrides: &'static str,
    run: fn(Pod<'_>, u32) -> Option<Finding>,
) -> Check {
    Check { id, since, overrides, run }
}

/// Returns whether a Windows pod is exempt: Windows has no such settings, and since this release the check skips it.
fn is_exempt_windows(pod: Pod<'_>, minor: u32) -> bool {
    minor >= 25 && pod.is_windows()
}

fn privilege_escalation(pod: Pod<'_>, minor: u32) -> Option<Finding> {
    let bad = pod.containers_that(|c| c["securityContext"]["allowPrivilegeEscalation"] != false);
    if bad.is_empty() || is_exempt_windows(pod, minor) {
        return None;
    }
    let detail =
        format!("{} must set securityContext.allowPrivilegeEscalation=false", containers_named(&bad));
    finding("allowPrivilegeEscalation != false", detail)
}

fn capabilities(pod: Pod<'_>, minor: u32) -> Option<Finding> {
    if is_exempt_windows(pod, minor) {
        return None;
    }
    let drops_all = |c: &Value| {
        let dropped = c["securityContext"]["capabilities"]["drop"].as_array();
        dropped.into_iter().flatten().any(|d| d == "ALL")
    };
    let forbidden = |c: &&str| *c != "NET_BIND_SERVICE";
    let missing = pod.containers_that(|c| !drops_all(c));
    let adding = pod.containers_that(|c| added(c).any(|a| forbidden(&a)));
    let mut parts = Vec::new();
    if !missing.is_empty() {
        let who = containers_named(&missing);
        parts.push(format!("{who} must set securityContext.capabilities.drop=[\"ALL\"]"));
    }
    if !adding.is_empty() {
        let names: BTreeSet<&str> = pod.containers().flat_map(added).filter(forbidden).collect();
        let who = containers_named(&adding);
        parts.push(format!("{who} must not include {} in securityContext.capabilities.add", quoted(names)));
    }
    if parts.is_empty() { None } else { finding("unrestricted capabilities", parts.join("; ")) }
}

const VOLUMES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];
const OTHER_VOLUMES: [&str; 21] = [
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "gitRepo",
    "nfs",
    "iscsi",
    "glusterfs",
    "rbd",
    "flexVolume",
    "cinder",
    "cephfs",
    "flocker",
    "fc",
    "azureFile",
    "vsphereVolume",
    "quobyte",
    "azureDisk",
    "photonPersistentDisk",
    "portworxVolume",
    "scaleIO",
    "storageos",
];

fn volumes(pod: Pod<'_>, _: u32) -> Option<Finding> {
    let has = |volume: &Value, kind: &str| !volume[kind].is_null();
    let all = pod.spec["volumes"].as_array().into_iter().flatten();
    let bad: Vec<&Value> = all.filter(|v| !VOLUMES.iter().any(|kind| has(v, kind))).collect();
    if bad.is_empty() {
        return None;
    }
    let kind = |v: &&Value| OTHER_VOLUMES.into_iter().find(|kind| has(v, kind)).unwrap_or("unknown");
    let kinds: BTreeSet<&str> = bad.iter().map(kind).collect();
    let detail = format!(
        "{} {} {} {} {}",
        plural("volume", "volumes", bad.len()),
        quoted(bad.iter().map(|v| v["name"].as_str().unwrap_or(""))),
        plural("uses", "use", bad.len()),
        plural("restricted volume type", "restricted volume types", kinds.len()),
        quoted(kinds)
    );
    finding("restricted volume types", detail)
}

fn run_as_non_root(pod: Pod<'_>, minor: u32) -> Option<Finding> {
    const REASON: &str = "runAsNonRoot != true";
    if minor >= 35 && pod.has_own_users() {
        return None;
    }
    let setting = |v: &Value| v["securityContext"]["runAsNonRoot"].as_bool();
    let of_pod = setting(pod.spec);
    let bad = pod.containers_that(|c| setting(c) == Some(false));
    if let Some(who) = setters(of_pod == Some(false), &bad) {
        return finding(REASON, format!("{who} must not set securityContext.runAsNonRoot=false"));
    }
    let silent = pod.containers_that(|c| setting(c).is_none());
    if of_pod == Some(true) || silent.is_empty() {
        return None;
    }
    let detail = format!("pod or {} must set securityContext.runAsNonRoot=true", containers_named(&silent));
    finding(REASON, detail)
}

fn run_as_user(pod: Pod<'_>, minor: u32) -> Option<Finding> {
    if minor >= 35 && pod.has_own_users() {
        return None;
    }
    let bad = |v: &Value| v["securityContext"]["runAsUser"].as_i64() == Some(0);
    let who = setters(bad(pod.spec), &pod.containers_that(bad))?;
    finding("runAsUser=0", format!("{who} must not set runAsUser=0"))
}

fn seccomp(pod: Pod<'_>, minor: u32) -> Option<Finding> {
    if is_exempt_windows(pod, minor) {
        return None;
    }
    if let Some(bad) = bad_seccomp(pod) {
        return Some(bad);
    }
    let set = seccomp_type(pod.spec).is_some_and(|t| is_good_seccomp(&t));
    let silent = pod.containers_that(|c| seccomp_type(c).is_none());
    if set || silent.is_empty() {
        return None;
    }
    let detail = format!(
        "pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"",
        containers_named(&silent)
    );
    finding("seccompProfile", detail)
}
