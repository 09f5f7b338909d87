//! What admission is told at the server's start.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use knarr_api::quota::Limited;
use knarr_client::kubeconfig::Users;

use super::default_toleration_seconds::TolerationSeconds;
use super::event_rate_limit::EventLimit;
use super::pod_security::{Exemptions, Policy};

/// `staticManifestsDir` of each plugin that has it: the folders of policies and webhooks that the API does not have.
#[derive(Debug, Clone, Default)]
pub struct Manifests {
    pub mutating_policies: Option<PathBuf>,
    pub mutating_webhooks: Option<PathBuf>,
    pub validating_policies: Option<PathBuf>,
    pub validating_webhooks: Option<PathBuf>,
}

/// Which plugins run, and the settings of those that have some.
#[derive(Debug, Clone, Default)]
pub struct AdmissionConfig {
    /// `--enable-admission-plugins`: beside those that are on by default.
    pub enabled: Vec<String>,
    /// `--disable-admission-plugins`.
    pub disabled: Vec<String>,
    /// `--admission-control-config-file`: an AdmissionConfiguration, read at the server's start into what follows.
    pub control_config_file: Option<PathBuf>,
    /// ResourceQuota: what nobody may use without a quota for it.
    pub limited_resources: Vec<Limited>,
    /// EventRateLimit.
    pub event_limits: Vec<EventLimit>,
    /// PodNodeSelector: `clusterDefaultNodeSelector`, and by namespace what its pods may select.
    pub node_selectors: BTreeMap<String, String>,
    /// PodSecurity: what holds where a namespace says nothing.
    pub pod_security_defaults: Policy,
    /// PodSecurity: whom its policies do not concern.
    pub pod_security_exemptions: Exemptions,
    /// DefaultTolerationSeconds.
    pub toleration_seconds: TolerationSeconds,
    /// MutatingAdmissionWebhook: who the API server is to webhooks, by their hosts.
    pub mutating_webhook_users: Option<Arc<Users>>,
    /// ValidatingAdmissionWebhook: the same.
    pub validating_webhook_users: Option<Arc<Users>>,
    /// Policies and webhooks of files.
    pub manifests: Manifests,
    /// NodeRestriction: the node of this very server, which may call itself a part of the control plane.
    pub control_plane_node: Option<String>,
}
