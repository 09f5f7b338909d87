//! Adapts the built-in pod network to the kubelet's interface.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use knarr_kubelet::pod_network::{NetworkError, PodNetwork, PodRef, PortMapping, Protocol};
use knarr_network::pods;

/// The pod network, which is opened once the node's range of pod addresses is known.
#[derive(Default)]
pub struct BuiltIn(OnceLock<Arc<pods::PodNetwork>>);

impl BuiltIn {
    /// Opens the network, so that pods can be connected. A second call changes nothing.
    pub fn open(&self, network: pods::PodNetwork) {
        let _ = self.0.set(Arc::new(network));
    }

    /// Describes what pods can do to each other because the kernel lacks a feature.
    pub fn weakness(&self) -> Option<&'static str> {
        self.0.get()?.weakness()
    }

    fn get(&self) -> Result<Arc<pods::PodNetwork>, NetworkError> {
        self.0.get().cloned().ok_or_else(|| NetworkError("the pod network is not ready yet".to_owned()))
    }
}

/// Runs one call off the async threads; returns its error as text, with all its causes.
async fn blocking<T: Send + 'static, E: std::error::Error + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, NetworkError> {
    let done = tokio::task::spawn_blocking(move || work().map_err(|e| chain(&e))).await;
    done.map_err(|e| NetworkError(e.to_string()))?.map_err(NetworkError)
}

fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |e| e.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Pods have no IPv6 address, so a port of an IPv6 host address is left out.
fn port(mapping: &PortMapping) -> Option<pods::PortMapping> {
    let host_ip = match mapping.host_ip.map(|ip| ip.to_canonical()) {
        Some(IpAddr::V4(ip)) => Some(ip),
        Some(IpAddr::V6(_)) => return None,
        None => None,
    };
    Some(pods::PortMapping {
        protocol: match mapping.protocol {
            Protocol::Tcp => knarr_network::protocol::Protocol::Tcp,
            Protocol::Udp => knarr_network::protocol::Protocol::Udp,
            Protocol::Sctp => knarr_network::protocol::Protocol::Sctp,
        },
        container_port: mapping.container_port,
        host_port: mapping.host_port,
        host_ip,
    })
}

fn addresses(found: pods::PodAddresses) -> Vec<IpAddr> {
    found.ips.into_iter().map(IpAddr::V4).collect()
}

#[async_trait::async_trait]
impl PodNetwork for BuiltIn {
    async fn setup(
        &self,
        pod: &PodRef,
        sandbox_id: &str,
        netns: &Path,
        ports: &[PortMapping],
    ) -> Result<Vec<IpAddr>, NetworkError> {
        let pod = pods::PodRef {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            sandbox_id: sandbox_id.to_owned(),
        };
        let (network, netns) = (self.get()?, netns.to_owned());
        let ports: Vec<_> = ports.iter().filter_map(port).collect();
        blocking(move || network.setup_pod(&pod, &netns, &ports).map(addresses)).await
    }

    async fn teardown(&self, sandbox_id: &str) -> Result<(), NetworkError> {
        let (network, id) = (self.get()?, sandbox_id.to_owned());
        blocking(move || network.teardown_pod(&id)).await
    }

    async fn addresses(&self, sandbox_id: &str) -> Result<Vec<IpAddr>, NetworkError> {
        let (network, id) = (self.get()?, sandbox_id.to_owned());
        blocking(move || network.check(&id).map(|found| found.map(addresses).unwrap_or_default())).await
    }

    async fn retain(&self, live: &BTreeSet<String>) -> Result<(), NetworkError> {
        // A network that was never opened has no connections to remove.
        let Ok(network) = self.get() else { return Ok(()) };
        let live = live.clone();
        blocking(move || network.retain(&live).map(|_| ())).await
    }
}
