//! The configuration file: `KubeSchedulerConfiguration` of `kubescheduler.config.k8s.io/v1`, validated as strictly as
//! by upstream.

pub mod go_duration;
pub mod process;
mod profiles;
mod rules;
pub mod strict;

use std::time::Duration;

use knarr_apimachinery::field::ErrorList;
use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use crate::extender::config::ExtenderConfig;
use crate::health::Awareness;
use crate::queue::Backoff;
use process::{ClientConnection, LeaderElection};

const API_VERSION: &str = "kubescheduler.config.k8s.io/v1";
const KIND: &str = "KubeSchedulerConfiguration";
const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// An invalid configuration: the problem, with the path to the field.
#[derive(Debug, Error, PartialEq)]
pub enum ConfigError {
    #[error("strict decoding error: {0}")]
    Strict(String),
    #[error("{0}")]
    Decode(String),
    #[error("Object '{0}' is missing")]
    Missing(&'static str),
    #[error("no kind {kind:?} is registered for version {version:?}")]
    Kind { kind: String, version: String },
    #[error("{0}")]
    Invalid(ErrorList),
    #[error("initializing profiles: creating profile for scheduler name {scheduler}: {why}")]
    Profile { scheduler: String, why: String },
}

/// The content of the file. Fields without effect in Knarr (parallelism, profiling) are read and validated only.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Configuration {
    pub api_version: String,
    pub kind: String,
    pub parallelism: i32,
    pub leader_election: LeaderElection,
    pub client_connection: ClientConnection,
    pub enable_profiling: bool,
    pub enable_contention_profiling: bool,
    pub delay_cache_until_active: bool,
    pub percentage_of_nodes_to_score: Option<i64>,
    pub pod_initial_backoff_seconds: i64,
    pub pod_max_backoff_seconds: i64,
    pub profiles: Vec<ProfileConfig>,
    pub extenders: Vec<ExtenderConfig>,
    /// Knarr's own field.
    pub node_failure_awareness: Awareness,
    /// The feature gate GenericWorkload, which is not part of the file: pod groups are scheduled as a whole.
    #[serde(skip)]
    pub generic_workload: bool,
}

impl Default for Configuration {
    fn default() -> Self {
        Self {
            api_version: API_VERSION.to_owned(),
            kind: KIND.to_owned(),
            parallelism: 16,
            leader_election: LeaderElection::default(),
            client_connection: ClientConnection::default(),
            enable_profiling: true,
            enable_contention_profiling: true,
            delay_cache_until_active: false,
            percentage_of_nodes_to_score: None,
            pod_initial_backoff_seconds: 1,
            pod_max_backoff_seconds: 10,
            profiles: Vec::new(),
            extenders: Vec::new(),
            node_failure_awareness: Awareness::default(),
            generic_workload: false,
        }
    }
}

/// An entry of `profiles`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProfileConfig {
    pub scheduler_name: Option<String>,
    pub percentage_of_nodes_to_score: Option<i64>,
    pub plugins: Plugins,
    pub plugin_config: Vec<PluginConfig>,
}

/// An entry of `pluginConfig`: the arguments of a plugin.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PluginConfig {
    pub name: String,
    pub args: Value,
}

/// The plugins of a profile by extension point. `multi_point` applies to all extension points.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Plugins {
    pub pre_enqueue: PluginSet,
    pub queue_sort: PluginSet,
    pub pre_filter: PluginSet,
    pub filter: PluginSet,
    pub post_filter: PluginSet,
    pub pre_score: PluginSet,
    pub score: PluginSet,
    pub reserve: PluginSet,
    pub permit: PluginSet,
    pub pre_bind: PluginSet,
    pub bind: PluginSet,
    pub post_bind: PluginSet,
    pub multi_point: PluginSet,
    pub placement_generate: PluginSet,
    pub placement_score: PluginSet,
    pub pod_group_post_filter: PluginSet,
}

/// The plugins that are enabled and disabled at an extension point; `*` disables all default ones.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PluginSet {
    pub enabled: Vec<Enabled>,
    pub disabled: Vec<Enabled>,
}

/// A plugin in a [`PluginSet`]; the weight only matters for scores.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Enabled {
    pub name: String,
    pub weight: i64,
}

impl Configuration {
    /// Reads the text of a file, YAML or JSON.
    pub fn from_yaml(text: &str) -> Result<Self, ConfigError> {
        let content = serde_saphyr::from_str(text).map_err(|error| ConfigError::Strict(error.to_string()))?;
        Self::parse(content)
    }

    /// Reads the decoded content of a file.
    pub fn parse(mut content: Value) -> Result<Self, ConfigError> {
        strict::drop_nulls(&mut content);
        let text = |name: &str| content.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (kind, version) = (text("kind"), text("apiVersion"));
        match (kind.as_str(), version.as_str()) {
            ("", _) => return Err(ConfigError::Missing("Kind")),
            (_, "") => return Err(ConfigError::Missing("apiVersion")),
            (KIND, API_VERSION) => {}
            _ => return Err(ConfigError::Kind { kind, version }),
        }
        let (mut own, mut unknown): (Self, _) = strict::read(&content).map_err(ConfigError::Decode)?;
        if let [only] = own.profiles.as_mut_slice() {
            only.scheduler_name.get_or_insert_with(|| DEFAULT_SCHEDULER.to_owned());
        }
        let mut errors = ErrorList::new();
        own.judge(&mut unknown, &mut errors)?;
        if !unknown.is_empty() {
            return Err(ConfigError::Strict(unknown.join(", ")));
        }
        if errors.is_empty() { Ok(own) } else { Err(ConfigError::Invalid(errors)) }
    }

    pub(crate) fn backoff(&self) -> Backoff {
        let seconds = |n: i64| Duration::from_secs(u64::try_from(n).unwrap_or(1));
        Backoff {
            initial: seconds(self.pod_initial_backoff_seconds),
            max: seconds(self.pod_max_backoff_seconds),
        }
    }
}
