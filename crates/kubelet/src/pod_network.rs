//! The interface to the pod network, which connects sandboxes; the binary implements it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use async_trait::async_trait;

/// The pod to which a sandbox belongs.
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

/// A port of the node that is forwarded to one of the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortMapping {
    pub protocol: Protocol,
    pub container_port: u16,
    pub host_port: u16,
    /// `None` means every address of the node.
    pub host_ip: Option<IpAddr>,
}

/// An error; users see the text in the FailedCreatePodSandBox event.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NetworkError(pub String);

/// Connects sandboxes. All calls are idempotent.
#[async_trait]
pub trait PodNetwork: Send + Sync + 'static {
    /// Connects the network namespace at `netns`; returns the pod's addresses, the primary one first. The same
    /// sandbox gets the same addresses again.
    async fn setup(
        &self,
        pod: &PodRef,
        sandbox_id: &str,
        netns: &Path,
        ports: &[PortMapping],
    ) -> Result<Vec<IpAddr>, NetworkError>;

    /// Disconnects a sandbox and releases its addresses; succeeds if it is unknown.
    async fn teardown(&self, sandbox_id: &str) -> Result<(), NetworkError>;

    /// Returns the addresses of a connected sandbox, by which running pods are taken over after a restart.
    async fn addresses(&self, sandbox_id: &str) -> Result<Vec<IpAddr>, NetworkError>;

    /// Disconnects every sandbox that is not in `live`; called once at the start.
    async fn retain(&self, live: &BTreeSet<String>) -> Result<(), NetworkError>;
}
