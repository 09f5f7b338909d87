//! What plugins are handed with each write.

use knarr_api::features::Features;
use knarr_auth::authz::Authorizer;
use knarr_registry::Registry;

use crate::config::AdmissionConfig;
use crate::metrics::Metrics;

/// The calling registry, which plugins read, and the server's settings.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    pub registry: &'a Registry,
    pub settings: &'a AdmissionConfig,
    pub features: &'a Features,
    pub authorizer: &'a Authorizer,
    pub metrics: &'a Metrics,
}
