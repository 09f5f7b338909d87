//! The parts of the node that volume plugins may use.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use knarr_apimachinery::clock::Clock;
use knarr_client::Client;
use knarr_client::events::EventRecorder;

use super::csi::Csi;
use super::object_source::ObjectSource;
use super::pod_certificates::PodCertificates;
use super::token::Tokens;
use super::trust_bundles::TrustBundles;
use crate::config::PodDirs;

/// Settings of the volume manager.
#[derive(Debug, Clone)]
pub struct Options {
    pub dirs: PodDirs,
    /// The node's allocatable resources: they stand in for missing limits, and bound the size of memory volumes.
    pub allocatable: BTreeMap<String, Quantity>,
}

/// The clients and sources that plugins may use.
pub struct Host {
    pub client: Client,
    pub clock: Arc<dyn Clock>,
    pub objects: Arc<ObjectSource>,
    pub tokens: Tokens,
    pub trust_bundles: TrustBundles,
    pub pod_certificates: PodCertificates,
    pub csi: Arc<Csi>,
    pub recorder: Option<EventRecorder>,
    pub options: Options,
}
