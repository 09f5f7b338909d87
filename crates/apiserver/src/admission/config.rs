//! What admission is told at the server's start.

use std::collections::BTreeMap;

use knarr_api::quota::Limited;

use super::event_rate_limit::EventLimit;
use super::pod_security::Exemptions;

/// Which plugins run, and the settings of those that have some. Upstream's admission configuration file, as a value.
#[derive(Debug, Clone, Default)]
pub struct AdmissionConfig {
    /// `--enable-admission-plugins`: beside those that are on by default.
    pub enabled: Vec<String>,
    /// `--disable-admission-plugins`.
    pub disabled: Vec<String>,
    /// ResourceQuota: what nobody may use without a quota for it.
    pub limited_resources: Vec<Limited>,
    /// EventRateLimit.
    pub event_limits: Vec<EventLimit>,
    /// PodNodeSelector: `clusterDefaultNodeSelector`, and by namespace what its pods may select.
    pub node_selectors: BTreeMap<String, String>,
    /// PodSecurity.
    pub pod_security_exemptions: Exemptions,
    /// NodeRestriction: the node of this very server, which may call itself a part of the control plane.
    pub control_plane_node: Option<String>,
}
