//! PodSecurityConfiguration: the policy of namespaces without labels, and the exemptions.

use std::collections::BTreeSet;

use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;
use serde::Deserialize;
use serde_json::Value;

use super::strict::{self, Shape};
use crate::AdmissionConfig;
use crate::config::Exemptions;
use crate::pod_security::{Level, LevelVersion, Policy, Version};

const GROUP: &str = "pod-security.admission.config.k8s.io";
const VERSIONS: [&str; 3] = ["v1", "v1beta1", "v1alpha1"];
const SHAPE: Shape = Shape::Object(&[
    (
        "defaults",
        Shape::Object(&[
            ("enforce", Shape::Any),
            ("enforce-version", Shape::Any),
            ("audit", Shape::Any),
            ("audit-version", Shape::Any),
            ("warn", Shape::Any),
            ("warn-version", Shape::Any),
        ]),
    ),
    (
        "exemptions",
        Shape::Object(&[
            ("usernames", Shape::Any),
            ("namespaces", Shape::Any),
            ("runtimeClasses", Shape::Any),
        ]),
    ),
]);

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    defaults: Defaults,
    #[serde(default)]
    exemptions: ExemptionsFile,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", default)]
struct Defaults {
    enforce: String,
    enforce_version: String,
    audit: String,
    audit_version: String,
    warn: String,
    warn_version: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ExemptionsFile {
    usernames: Option<Vec<String>>,
    namespaces: Option<Vec<String>>,
    runtime_classes: Option<Vec<String>>,
}

pub fn load(value: Option<&Value>, settings: &mut AdmissionConfig) -> Result<(), String> {
    let Some(value) = value else { return Ok(()) };
    let versions = VERSIONS.map(|version| format!("{GROUP}/{version}"));
    let kinds: Vec<_> = versions.iter().map(|v| (v.as_str(), "PodSecurityConfiguration")).collect();
    let file: File = strict::decode(value, &kinds, &SHAPE)?;
    let mut errors = ErrorList::new();
    let defaults = &file.defaults;
    let mut mode = |name: &str, level: &str, version: &str| level_version(name, level, version, &mut errors);
    let policy = Policy {
        enforce: mode("enforce", &defaults.enforce, &defaults.enforce_version),
        warn: mode("warn", &defaults.warn, &defaults.warn_version),
        audit: mode("audit", &defaults.audit, &defaults.audit_version),
    };
    let exemptions = file.exemptions;
    let subdomain = |name: &str| names::dns1123_subdomain(name).join(", ");
    let label = |name: &str| names::dns1123_label(name).join(", ");
    let user = |name: &str| if name.is_empty() { "username must not be empty".into() } else { String::new() };
    let mut list = |name: &str, values: Option<Vec<String>>, problem: &dyn Fn(&str) -> String| {
        exempt(&Path::new("exemptions").child(name), values, problem, &mut errors)
    };
    let exemptions = Exemptions {
        namespaces: list("namespaces", exemptions.namespaces, &label),
        runtime_classes: list("runtimeClasses", exemptions.runtime_classes, &subdomain),
        usernames: list("usernames", exemptions.usernames, &user),
    };
    if !errors.is_empty() {
        return Err(errors.to_string());
    }
    settings.pod_security_defaults = policy;
    settings.pod_security_exemptions = exemptions;
    Ok(())
}

/// Parses one mode. An absent level is privileged, an absent version is latest.
fn level_version(name: &str, level: &str, version: &str, errors: &mut ErrorList) -> LevelVersion {
    let path = |field: &str| Path::new("defaults").child(field);
    let mut out = LevelVersion::default();
    match Level::parse(level) {
        Some(known) => out.level = known,
        None if level.is_empty() => {}
        None => {
            let why = "must be one of privileged, baseline, restricted";
            errors.push(Error::invalid(&path(name), level, why));
        }
    }
    match Version::parse(version) {
        Some(known) => out.version = known,
        None if version.is_empty() => {}
        None => {
            let why = "must be \"latest\" or \"v1.x\"";
            errors.push(Error::invalid(&path(&format!("{name}-version")), version, why));
        }
    }
    out
}

fn exempt(
    path: &Path,
    values: Option<Vec<String>>,
    problem: &dyn Fn(&str) -> String,
    errors: &mut ErrorList,
) -> Vec<String> {
    let values = values.unwrap_or_default();
    let mut seen = BTreeSet::new();
    for (index, value) in values.iter().enumerate() {
        let why = problem(value);
        if !why.is_empty() {
            errors.push(Error::invalid(&path.index(index), value.as_str(), why));
        } else if !seen.insert(value) {
            errors.push(Error::duplicate(&path.index(index), value.as_str()));
        }
    }
    values
}
