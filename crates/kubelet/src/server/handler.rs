//! The state from which requests are answered.

use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use knarr_apimachinery::clock::Clock;
use knarr_apimachinery::zpages::Component;
use knarr_client::Client;
use serde_json::Value;

use super::auth::Auth;
use super::certificates::Certificates;
use super::families::OtherMetrics;
use super::request_counts::RequestCounts;
use super::route::Target;
use super::stats;
use crate::node_status::KUBELET_VERSION;
use crate::pod_lookup::PodLookup;
use crate::runtime::ContainerRuntime;

/// Answers requests about this node.
pub struct Handler {
    pub node_name: String,
    pub pods: Arc<dyn PodLookup>,
    pub runtime: Arc<dyn ContainerRuntime>,
    pub client: Client,
    pub rates: stats::Rates,
    pub requests: RequestCounts,
    /// The kubelet's own certificates.
    pub certificates: Option<Certificates>,
    pub other_metrics: OtherMetrics,
    pub(super) auth: Auth,
    pub(super) shown: Shown,
    pub(super) folders: Folders,
}

/// The kubelet's configuration and version, as the server shows them.
pub struct Shown {
    /// The configuration, for `/configz`.
    pub configz: Value,
    /// The component, for `/flagz` and `/statusz`.
    pub component: Component,
}

impl Shown {
    /// The state of a kubelet that starts now.
    pub fn new(configz: Value, flags: Vec<(String, String)>, clock: &Arc<dyn Clock>) -> Self {
        let component = Component::new("kubelet", KUBELET_VERSION, flags, Arc::clone(clock));
        Self { configz, component }
    }
}

/// The folders that requests may access.
#[derive(Clone)]
pub struct Folders {
    /// The parent of the folders of provisioned volumes.
    pub local_path: PathBuf,
    /// The folder of `/logs/`: `/var/log`.
    pub system_logs: PathBuf,
}

impl Handler {
    pub fn new(
        node_name: &str,
        shown: Shown,
        pods: Arc<dyn PodLookup>,
        runtime: Arc<dyn ContainerRuntime>,
        client: Client,
        folders: Folders,
    ) -> Self {
        let auth = Auth::new(client.clone(), node_name);
        let rates = stats::Rates::default();
        Self {
            node_name: node_name.to_owned(),
            pods,
            runtime,
            client,
            rates,
            requests: RequestCounts::default(),
            certificates: None,
            other_metrics: Arc::new(String::new),
            auth,
            shown,
            folders,
        }
    }

    pub fn pod(&self, target: &Target) -> Option<Arc<Pod>> {
        self.pods.pod(&target.namespace, &target.pod, target.uid.as_deref())
    }
}
