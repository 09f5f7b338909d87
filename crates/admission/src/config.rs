//! The admission configuration of a server.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use knarr_api::quota::Limited;
use knarr_client::kubeconfig::Users;

use super::pod_security::Policy;

/// `staticManifestsDir` of each plugin that has it: the directories of policies and webhooks that are not API
/// objects.
#[derive(Debug, Clone, Default)]
pub struct Manifests {
    pub mutating_policies: Option<PathBuf>,
    pub mutating_webhooks: Option<PathBuf>,
    pub validating_policies: Option<PathBuf>,
    pub validating_webhooks: Option<PathBuf>,
}

/// The enabled plugins, and the settings of those that have any.
#[derive(Debug, Clone, Default)]
pub struct AdmissionConfig {
    /// `--enable-admission-plugins`: plugins in addition to those that are on by default.
    pub enabled: Vec<String>,
    /// `--disable-admission-plugins`.
    pub disabled: Vec<String>,
    /// `--admission-control-config-file`: an AdmissionConfiguration; at the server's start it is read into the fields
    /// below.
    pub control_config_file: Option<PathBuf>,
    /// ResourceQuota: the resources that need a quota to be used at all.
    pub limited_resources: Vec<Limited>,
    /// EventRateLimit: the limits.
    pub event_limits: Vec<EventLimit>,
    /// PodNodeSelector: `clusterDefaultNodeSelector`, and for each namespace the labels that its pods may select.
    pub node_selectors: BTreeMap<String, String>,
    /// PodSecurity: the policy of namespaces without labels.
    pub pod_security_defaults: Policy,
    /// PodSecurity: the exemptions from its policies.
    pub pod_security_exemptions: Exemptions,
    /// DefaultTolerationSeconds: the default toleration times.
    pub toleration_seconds: TolerationSeconds,
    /// MutatingAdmissionWebhook: the API server's credentials for webhooks, by host.
    pub mutating_webhook_users: Option<Arc<Users>>,
    /// ValidatingAdmissionWebhook: the same.
    pub validating_webhook_users: Option<Arc<Users>>,
    /// The policies and webhooks from files.
    pub manifests: Manifests,
    /// NodeRestriction: the node on which this server runs; it may label itself as part of the control plane.
    pub control_plane_node: Option<String>,
}

/// The default toleration times, in seconds, for pods without such tolerations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TolerationSeconds {
    /// `--default-not-ready-toleration-seconds`.
    pub not_ready: i64,
    /// `--default-unreachable-toleration-seconds`.
    pub unreachable: i64,
}

impl Default for TolerationSeconds {
    fn default() -> Self {
        Self { not_ready: 300, unreachable: 300 }
    }
}

/// What a limit counts by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LimitType {
    Server,
    Namespace,
    User,
    SourceAndObject,
}

/// One limit of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventLimit {
    pub type_: LimitType,
    /// The sustained number of Events per second.
    pub qps: u32,
    /// The maximum burst of Events.
    pub burst: u32,
    /// How many token buckets are kept.
    pub cache_size: usize,
}

/// The exemptions from the policies of PodSecurity; none by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exemptions {
    pub usernames: Vec<String>,
    pub namespaces: Vec<String>,
    pub runtime_classes: Vec<String>,
}
