//! Adapts CNI plugins to the kubelet's interface.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::OnceLock;

use knarr_kubelet::pod_network::{NetworkError, PodNetwork, PodRef, PortMapping, Protocol};
use knarr_network::cni::{self, Cni, CniError};

/// The plugins, set once the node's range of pod addresses is known.
#[derive(Default)]
pub struct Plugins(OnceLock<Cni>);

impl Plugins {
    /// Opens the network, so that pods can be connected. A second call changes nothing.
    pub fn open(&self, cni: Cni) {
        let _ = self.0.set(cni);
    }

    fn get(&self) -> Result<&Cni, NetworkError> {
        self.0.get().ok_or_else(|| NetworkError("cni plugin not initialized".to_owned()))
    }
}

fn network_error(error: CniError) -> NetworkError {
    NetworkError(error.to_string())
}

fn port(mapping: &PortMapping) -> cni::PortMapping {
    let protocol = match mapping.protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    };
    cni::PortMapping {
        host_port: mapping.host_port,
        container_port: mapping.container_port,
        protocol: protocol.to_owned(),
        host_ip: mapping.host_ip.map(|ip| ip.to_string()).unwrap_or_default(),
    }
}

#[async_trait::async_trait]
impl PodNetwork for Plugins {
    async fn setup(
        &self,
        pod: &PodRef,
        sandbox_id: &str,
        netns: &Path,
        ports: &[PortMapping],
    ) -> Result<Vec<IpAddr>, NetworkError> {
        let pod = cni::PodRef {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            sandbox_id: sandbox_id.to_owned(),
        };
        let ports: Vec<_> = ports.iter().filter(|p| p.host_port != 0).map(port).collect();
        self.get()?.add(&pod, netns, &ports).await.map_err(network_error)
    }

    async fn teardown(&self, sandbox_id: &str) -> Result<(), NetworkError> {
        self.get()?.del(sandbox_id).await.map_err(network_error)
    }

    async fn addresses(&self, sandbox_id: &str) -> Result<Vec<IpAddr>, NetworkError> {
        self.get()?.addresses(sandbox_id).map_err(network_error)
    }

    async fn retain(&self, live: &BTreeSet<String>) -> Result<(), NetworkError> {
        // A network that was never opened has no connections to remove.
        match self.0.get() {
            Some(cni) => cni.retain(live).await.map_err(network_error),
            None => Ok(()),
        }
    }
}
