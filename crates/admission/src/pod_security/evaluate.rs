//! Runs the checks of a level on a pod.

use serde_json::Value;

use super::policy::{Level, LevelVersion, Version};
use super::{baseline, restricted};

/// The latest minor release that changed a check.
const NEWEST: u32 = 37;

/// The parts of a pod, or of a pod template, that the checks use.
#[derive(Clone, Copy)]
pub struct Pod<'a> {
    pub metadata: &'a Value,
    pub spec: &'a Value,
}

impl<'a> Pod<'a> {
    /// Returns the init containers, containers and ephemeral containers.
    pub fn containers(&self) -> impl Iterator<Item = &'a Value> + use<'a> {
        let spec = self.spec;
        let lists = ["initContainers", "containers", "ephemeralContainers"];
        lists.into_iter().flat_map(move |list| spec[list].as_array().into_iter().flatten())
    }

    /// Returns the names of the containers for which `holds` returns true.
    pub fn containers_that(&self, holds: impl Fn(&Value) -> bool) -> Vec<&'a str> {
        self.containers().filter(|c| holds(c)).map(|c| c["name"].as_str().unwrap_or("")).collect()
    }

    pub fn is_windows(&self) -> bool {
        self.spec["os"]["name"] == "windows"
    }

    /// Returns whether the pod runs in a user namespace.
    pub fn has_own_users(&self) -> bool {
        self.spec["hostUsers"] == false
    }
}

/// A violation that a check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub reason: String,
    pub detail: String,
}

pub fn finding(reason: &str, detail: String) -> Option<Finding> {
    Some(Finding { reason: reason.to_owned(), detail })
}

/// One check.
pub struct Check {
    pub id: &'static str,
    /// The first minor release with this check.
    pub since: u32,
    /// The check of the lower level that this one replaces.
    pub overrides: &'static str,
    /// Checks a pod by the rules of this minor release.
    pub run: fn(Pod<'_>, u32) -> Option<Finding>,
}

/// Returns the violations of the level, in the order of the checks.
pub fn evaluate(level: LevelVersion, pod: Pod<'_>) -> Vec<Finding> {
    let minor = match level.version {
        Version::Latest => NEWEST,
        Version::Minor(minor) => minor.min(NEWEST),
    };
    let of_level: &[Check] = match level.level {
        Level::Privileged => return Vec::new(),
        Level::Baseline => &[],
        Level::Restricted => restricted::CHECKS,
    };
    let current = |check: &&Check| check.since <= minor;
    let overridden = |check: &&Check| of_level.iter().filter(current).any(|c| c.overrides == check.id);
    let below = baseline::CHECKS.iter().filter(current).filter(|c| !overridden(c));
    below.chain(of_level.iter().filter(current)).filter_map(|check| (check.run)(pod, minor)).collect()
}

/// Formats violations with details: `host namespaces (hostNetwork=true), privileged (container "a" …)`.
pub fn details(findings: &[Finding]) -> String {
    let one = |f: &Finding| match f.detail.as_str() {
        "" => f.reason.clone(),
        detail => format!("{} ({detail})", f.reason),
    };
    findings.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Formats violations without details: `host namespaces, privileged`.
pub fn reasons(findings: &[Finding]) -> String {
    findings.iter().map(|f| f.reason.as_str()).collect::<Vec<_>>().join(", ")
}

/// Formats a list as `"a", "b"`.
pub fn quoted<T: AsRef<str>>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|i| format!("\"{}\"", i.as_ref())).collect::<Vec<_>>().join(", ")
}

pub fn plural<'t>(one: &'t str, many: &'t str, count: usize) -> &'t str {
    if count == 1 { one } else { many }
}

/// Formats names as `container "a"`, `containers "a", "b"`.
pub fn containers_named(names: &[&str]) -> String {
    format!("{} {}", plural("container", "containers", names.len()), quoted(names))
}

/// Formats the origins of a setting as `pod and container "a"`; `None` if there are none.
pub fn setters(pod: bool, containers: &[&str]) -> Option<String> {
    let named = (!containers.is_empty()).then(|| containers_named(containers));
    let parts: Vec<String> = pod.then(|| "pod".to_owned()).into_iter().chain(named).collect();
    (!parts.is_empty()).then(|| parts.join(" and "))
}
