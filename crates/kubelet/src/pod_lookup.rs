//! What the node's HTTP server and node status ask of the pods here; [`crate::kubelet::Kubelet`] answers.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;

use crate::server::Check;
use crate::volume_manager::VolumeUsage;

/// A container of a pod as the runtime knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerRef {
    /// Without the `knarr://` in front.
    pub container_id: String,
    pub sandbox_id: String,
    pub log_path: PathBuf,
    pub running: bool,
    pub tty: bool,
    pub stdin: bool,
}

/// Texts as upstream's kubelet answers them.
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
    /// All pods known here with their newest status (as the kubelet sees it, perhaps not yet written), by key.
    fn pods(&self) -> Vec<Arc<Pod>>;

    /// With `uid` given it must match as well.
    fn pod(&self, namespace: &str, name: &str, uid: Option<&str>) -> Option<Arc<Pod>>;

    /// A container of the pod, running or ended; with `previous` the one before the newest.
    async fn container(
        &self,
        pod: &Pod,
        container: &str,
        previous: bool,
    ) -> Result<ContainerRef, LookupError>;

    /// How full the pod's volumes behind claims are, as far as somebody knows.
    async fn volume_usage(&self, _pod: &Pod) -> Vec<VolumeUsage> {
        Vec::new()
    }

    /// How often the pods' probes ended how, as text for Prometheus.
    fn probe_metrics(&self) -> String {
        String::new()
    }

    /// What has been counted about pods, as text for Prometheus.
    fn metrics(&self) -> String {
        String::new()
    }

    /// The checks of `/healthz` beside `ping`.
    fn health(&self) -> Vec<Check> {
        Vec::new()
    }

    /// The ready sandbox of the pod, for port-forward.
    async fn sandbox_id(&self, pod: &Pod) -> Result<String, LookupError>;
}
