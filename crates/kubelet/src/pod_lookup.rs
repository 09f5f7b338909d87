//! The interface through which the node's HTTP server and node status access the pods; [`crate::kubelet::Kubelet`]
//! implements it.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;

use crate::server::Check;
use crate::volume_manager::VolumeUsage;

/// A container of a pod in the runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerRef {
    /// Without the prefix `knarr://`.
    pub container_id: String,
    pub sandbox_id: String,
    pub log_path: PathBuf,
    pub running: bool,
    pub tty: bool,
    pub stdin: bool,
}

/// Errors with the texts of upstream's kubelet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    #[error("pod {0:?} not found")]
    PodNotFound(String),
    #[error("container {container:?} in pod {pod:?} is not available")]
    ContainerNotFound { pod: String, container: String },
    #[error("container {container:?} in pod {pod:?} is waiting to start: {reason}")]
    Waiting { pod: String, container: String, reason: String },
    #[error("previous terminated container {container:?} in pod {pod:?} not found")]
    NoPrevious { pod: String, container: String },
    #[error("container {container:?} is not valid for pod {pod:?}")]
    NoSuchContainer { pod: String, container: String },
    #[error("{0}")]
    Runtime(String),
}

/// The pods of this node.
#[async_trait]
pub trait PodLookup: Send + Sync + 'static {
    /// Returns all pods with their newest status (the kubelet's own, perhaps not yet written to the API), by key.
    fn pods(&self) -> Vec<Arc<Pod>>;

    /// Returns a pod; if `uid` is given it must match as well.
    fn pod(&self, namespace: &str, name: &str, uid: Option<&str>) -> Option<Arc<Pod>>;

    /// Returns a container of the pod, running or ended; with `previous` the one before the newest.
    async fn container(
        &self,
        pod: &Pod,
        container: &str,
        previous: bool,
    ) -> Result<ContainerRef, LookupError>;

    /// Returns the usage of the pod's volumes behind claims, as far as it is known.
    async fn volume_usage(&self, _pod: &Pod) -> Vec<VolumeUsage> {
        Vec::new()
    }

    /// Returns the counts of probe results, as text for Prometheus.
    fn probe_metrics(&self) -> String {
        String::new()
    }

    /// Returns the metrics of pods, as text for Prometheus.
    fn metrics(&self) -> String {
        String::new()
    }

    /// Returns the checks of `/healthz` beside `ping`.
    fn health(&self) -> Vec<Check> {
        Vec::new()
    }

    /// Returns the ready sandbox of the pod, for port-forward.
    async fn sandbox_id(&self, pod: &Pod) -> Result<String, LookupError>;
}
