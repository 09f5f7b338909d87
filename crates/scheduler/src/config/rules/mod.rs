//! Validates a configuration, with upstream's messages in upstream's order.
//!
//! Source: `pkg/scheduler/apis/config/validation` of Kubernetes 1.37.

use std::collections::BTreeSet;

use knarr_api::validate::invalid_text;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::{Value, json};

use super::profiles::known;
use super::{API_VERSION, ConfigError, Configuration, Enabled, PluginConfig, PluginSet, ProfileConfig};
use crate::extender::config::validate;

/// Plugins that were removed upstream.
const REMOVED: [&str; 4] = ["AzureDiskLimits", "CinderLimits", "EBSLimits", "GCEPDLimits"];

impl Configuration {
    /// Adds the unknown fields to `unknown` and all violations to `errors`.
    pub(super) fn judge(&self, unknown: &mut Vec<String>, errors: &mut ErrorList) -> Result<(), ConfigError> {
        errors.extend(self.client_connection.validate(&Path::new("clientConnection")));
        errors.extend(self.leader_election.validate(&Path::new("leaderElection")));
        if self.parallelism <= 0 {
            let why = "should be an integer value greater than zero";
            errors.push(Error::invalid(&Path::new("parallelism"), self.parallelism, why));
        }
        let path = Path::new("profiles");
        let mut names: BTreeSet<&str> = BTreeSet::new();
        for (at, profile) in self.profiles.iter().enumerate() {
            profile.judge(&path.index(at), unknown, errors)?;
            let name = profile.scheduler_name.as_deref().unwrap_or_default();
            if !name.is_empty() && !names.insert(name) {
                errors.push(Error::duplicate(&path.index(at).child("schedulerName"), name));
            }
        }
        self.queue_sort(&path, errors);
        percentage(&Path::default(), self.percentage_of_nodes_to_score, errors);
        self.backoffs(errors);
        errors.extend(validate(&self.extenders));
        Ok(())
    }

    fn backoffs(&self, errors: &mut ErrorList) {
        let (first, most) = (self.pod_initial_backoff_seconds, self.pod_max_backoff_seconds);
        if first <= 0 {
            let path = Path::new("podInitialBackoffSeconds");
            errors.push(Error::invalid(&path, first, "must be greater than 0"));
        }
        if most < first {
            let why = "must be greater than or equal to PodInitialBackoffSeconds";
            errors.push(Error::invalid(&Path::new("podMaxBackoffSeconds"), most, why));
        }
    }

    /// Checks that all profiles have the same queue sort plugin, since there is one queue.
    fn queue_sort(&self, path: &Path, errors: &mut ErrorList) {
        let Some((first, others)) = self.profiles.split_first() else { return };
        let sorting = &first.plugins.queue_sort;
        if sorting.enabled.len() > 1 {
            let path = path.index(0).child("plugins").child("queueSort").child("Enabled");
            let why = "only one queue sort plugin can be enabled";
            errors.push(Error::invalid(&path, sorting.enabled.len(), why));
        }
        for (at, other) in others.iter().enumerate().filter(|(_, other)| other.plugins.queue_sort != *sorting)
        {
            let path = path.index(at + 1).child("plugins").child("queueSort");
            let text = set_text(&other.plugins.queue_sort);
            errors.push(invalid_text(&path, &text, "must be the same for all profiles"));
        }
    }
}

/// A plugin set as upstream's messages print it.
fn set_text(set: &PluginSet) -> String {
    let list = |plugins: &[Enabled]| {
        let shown = plugins.iter().map(|p| format!("{{\"Name\":{},\"Weight\":{}}}", json!(p.name), p.weight));
        let shown: Vec<String> = shown.collect();
        if shown.is_empty() { "null".to_owned() } else { format!("[{}]", shown.join(",")) }
    };
    format!("{{\"Enabled\":{},\"Disabled\":{}}}", list(&set.enabled), list(&set.disabled))
}

fn percentage(path: &Path, percent: Option<i64>, errors: &mut ErrorList) {
    if let Some(percent) = percent.filter(|p| !(0..=100).contains(p)) {
        let path = path.child("percentageOfNodesToScore");
        errors.push(Error::invalid(&path, percent, "not in valid range [0-100]"));
    }
}

fn gone(path: &Path, name: &str) -> Error {
    let why =
        format!("was invalid in version \"v1\" (KubeSchedulerConfiguration is version {API_VERSION:?})");
    Error::invalid(path, name, why)
}

impl ProfileConfig {
    fn judge(
        &self,
        path: &Path,
        unknown: &mut Vec<String>,
        errors: &mut ErrorList,
    ) -> Result<(), ConfigError> {
        if self.scheduler_name.as_deref().unwrap_or_default().is_empty() {
            errors.push(Error::required(&path.child("schedulerName"), ""));
        }
        percentage(path, self.percentage_of_nodes_to_score, errors);
        for (point, set) in self.plugins.by_name() {
            let path = path.child("plugins").child(point).child("enabled");
            for (at, plugin) in set.enabled.iter().enumerate() {
                if REMOVED.contains(&plugin.name.as_str()) {
                    errors.push(gone(&path.index(at), &plugin.name));
                }
            }
        }
        let path = path.child("pluginConfig");
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        for (at, plugin) in self.plugin_config.iter().enumerate() {
            if !seen.insert(&plugin.name) {
                errors.push(Error::duplicate(&path.index(at), plugin.name.as_str()));
            }
            if REMOVED.contains(&plugin.name.as_str()) {
                errors.push(gone(&path.index(at), &plugin.name));
                continue;
            }
            plugin.judge(&path.index(at), unknown, errors)?;
        }
        Ok(())
    }
}

impl PluginConfig {
    /// For plugins without arguments, every field is unknown.
    fn judge(
        &self,
        path: &Path,
        unknown: &mut Vec<String>,
        errors: &mut ErrorList,
    ) -> Result<(), ConfigError> {
        let Some(judge) = known().find(|d| d.name == self.name).and_then(|d| d.args) else { return Ok(()) };
        let name = &self.name;
        let kind = self.args.get("kind").and_then(Value::as_str);
        let group = API_VERSION.trim_end_matches("/v1");
        if let Some(kind) = kind.filter(|kind| *kind != format!("{name}Args")) {
            let why = format!("were not of type {name}Args.{group}, got {kind}.{group}");
            return Err(ConfigError::Decode(format!("decoding .{path}: args for plugin {name} {why}")));
        }
        let decoding = format!("decoding args for plugin {name}");
        let judged = judge(&self.args, &path.child("args"));
        let judged =
            judged.map_err(|why| ConfigError::Decode(format!("decoding .{path}: {decoding}: {why}")))?;
        if !judged.unknown.is_empty() {
            let strict = "strict decoding error";
            let fields = judged.unknown.join(", ");
            unknown.push(format!("decoding .{path}: {strict}: {decoding}: {strict}: {fields}"));
        }
        errors.extend(judged.errors);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
