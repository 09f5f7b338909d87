//! The checks of each level, and their run over a pod.

use serde_json::Value;

use super::policy::{Level, LevelVersion, Version};
use super::{baseline, restricted};

/// The last release whose checks differ from those before.
const NEWEST: u32 = 37;

/// The parts of a pod, or of a pod template, that checks look at.
#[derive(Clone, Copy)]
pub struct Pod<'a> {
    pub metadata: &'a Value,
    pub spec: &'a Value,
}

impl<'a> Pod<'a> {
    /// Init containers, containers, ephemeral containers.
    pub fn containers(&self) -> impl Iterator<Item = &'a Value> + use<'a> {
        let spec = self.spec;
        let lists = ["initContainers", "containers", "ephemeralContainers"];
        lists.into_iter().flat_map(move |list| spec[list].as_array().into_iter().flatten())
    }

    /// Names of the containers for which this holds.
    pub fn containers_that(&self, holds: impl Fn(&Value) -> bool) -> Vec<&'a str> {
        self.containers().filter(|c| holds(c)).map(|c| c["name"].as_str().unwrap_or("")).collect()
    }

    pub fn is_windows(&self) -> bool {
        self.spec["os"]["name"] == "windows"
    }

    /// Whether it runs in a user namespace of its own.
    pub fn has_own_users(&self) -> bool {
        self.spec["hostUsers"] == false
    }
}

/// What a check has against a pod.
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
    /// The first minor release that has it.
    pub since: u32,
    /// The check of the level below that this one replaces.
    pub overrides: &'static str,
    /// By the rules of this minor release.
    pub run: fn(Pod<'_>, u32) -> Option<Finding>,
}

/// What the level has against the pod, in the order of the checks.
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

/// `host namespaces (hostNetwork=true), privileged (container "a" …)`.
pub fn details(findings: &[Finding]) -> String {
    let one = |f: &Finding| match f.detail.as_str() {
        "" => f.reason.clone(),
        detail => format!("{} ({detail})", f.reason),
    };
    findings.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// `host namespaces, privileged`.
pub fn reasons(findings: &[Finding]) -> String {
    findings.iter().map(|f| f.reason.as_str()).collect::<Vec<_>>().join(", ")
}

/// `"a", "b"`.
pub fn quoted<T: AsRef<str>>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|i| format!("\"{}\"", i.as_ref())).collect::<Vec<_>>().join(", ")
}

pub fn plural<'t>(one: &'t str, many: &'t str, count: usize) -> &'t str {
    if count == 1 { one } else { many }
}

/// `container "a"`, `containers "a", "b"`.
pub fn containers_named(names: &[&str]) -> String {
    format!("{} {}", plural("container", "containers", names.len()), quoted(names))
}

/// `pod and container "a"`; `None` if nobody.
pub fn setters(pod: bool, containers: &[&str]) -> Option<String> {
    let named = (!containers.is_empty()).then(|| containers_named(containers));
    let parts: Vec<String> = pod.then(|| "pod".to_owned()).into_iter().chain(named).collect();
    (!parts.is_empty()).then(|| parts.join(" and "))
}
