//! The boundary to the pod network, which connects sandboxes; the binary implements it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use async_trait::async_trait;

/// Which pod a sandbox belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodRef {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

/// A port of the node that leads to one of the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortMapping {
    pub protocol: Protocol,
    pub container_port: u16,
    pub host_port: u16,
    /// Every address of the node when absent.
    pub host_ip: Option<IpAddr>,
}

/// The text is shown to users in the FailedCreatePodSandBox event.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NetworkError(pub String);

/// Connects sandboxes. All calls may be repeated.
#[async_trait]
pub trait PodNetwork: Send + Sync + 'static {
    /// Connects the network namespace at `netns`; gives the pod's addresses, the primary one first. The same
    /// sandbox gets the same addresses again.
    async fn setup(
        &self,
        pod: &PodRef,
        sandbox_id: &str,
        netns: &Path,
        ports: &[PortMapping],
    ) -> Result<Vec<IpAddr>, NetworkError>;

    /// Disconnects a sandbox and frees its addresses; fine if it is unknown.
    async fn teardown(&self, sandbox_id: &str) -> Result<(), NetworkError>;

    /// The addresses of a connected sandbox: how running pods are taken up after a restart.
    async fn addresses(&self, sandbox_id: &str) -> Result<Vec<IpAddr>, NetworkError>;

    /// Disconnects every sandbox that is not in `live`; called once at start.
    async fn retain(&self, live: &BTreeSet<String>) -> Result<(), NetworkError>;
}
