//! A node with its pods and their sums.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Taint};
use knarr_api::kind::Kind;

use super::pod_info::{HostPort, PodInfo};
use super::resources::Resources;

const ANY_ADDRESS: &str = "0.0.0.0";

/// A node, the pods on it (assumed ones too) and what they take.
#[derive(Debug, Clone)]
pub struct NodeInfo {
    pub node: Arc<Node>,
    /// By uid.
    pub pods: BTreeMap<Box<str>, Arc<PodInfo>>,
    pub requested: Resources,
    /// Requests with assumed minimums, for scoring.
    pub non_zero_requested: Resources,
    pub allocatable: Resources,
    /// Host ports in use.
    pub used_ports: Vec<HostPort>,
    /// Size in bytes by image name.
    pub images: BTreeMap<String, i64>,
}

impl NodeInfo {
    pub fn new(node: Arc<Node>) -> Self {
        let mut info = Self {
            node: Arc::default(),
            pods: BTreeMap::new(),
            requested: Resources::default(),
            non_zero_requested: Resources::default(),
            allocatable: Resources::default(),
            used_ports: Vec::new(),
            images: BTreeMap::new(),
        };
        info.set_node(node);
        info
    }

    pub fn name(&self) -> &str {
        self.node.name()
    }

    /// Takes over a new state of the node; its pods stay.
    pub fn set_node(&mut self, node: Arc<Node>) {
        let status = node.status.as_ref();
        self.allocatable = Resources::from_list(status.and_then(|s| s.allocatable.as_ref()));
        let images = status.and_then(|s| s.images.as_ref()).into_iter().flatten();
        self.images = images
            .flat_map(|i| {
                let size = i.size_bytes.unwrap_or(0);
                i.names.iter().flatten().map(move |name| (name.clone(), size))
            })
            .collect();
        self.node = node;
    }

    pub fn add_pod(&mut self, pod: Arc<PodInfo>) {
        if let Some(old) = self.pods.insert(pod.uid().into(), Arc::clone(&pod)) {
            self.subtract(&old);
        }
        self.requested.add(&pod.requests);
        self.non_zero_requested.add(&pod.non_zero);
        self.used_ports.extend(pod.host_ports.iter().cloned());
    }

    pub fn remove_pod(&mut self, uid: &str) {
        if let Some(old) = self.pods.remove(uid) {
            self.subtract(&old);
        }
    }

    fn subtract(&mut self, pod: &PodInfo) {
        self.requested.sub(&pod.requests);
        self.non_zero_requested.sub(&pod.non_zero);
        for port in &pod.host_ports {
            if let Some(at) = self.used_ports.iter().position(|used| used == port) {
                self.used_ports.swap_remove(at);
            }
        }
    }

    /// Whether a pod on this node already holds the port, on this address or on all.
    pub fn port_conflicts(&self, wanted: &HostPort) -> bool {
        self.used_ports.iter().any(|used| {
            used.port == wanted.port
                && used.protocol == wanted.protocol
                && (used.ip == wanted.ip || used.ip == ANY_ADDRESS || wanted.ip == ANY_ADDRESS)
        })
    }

    pub fn label(&self, key: &str) -> Option<&str> {
        self.node.metadata.labels.as_ref().and_then(|l| l.get(key)).map(String::as_str)
    }

    pub fn taints(&self) -> &[Taint] {
        self.node.spec.as_ref().and_then(|s| s.taints.as_deref()).unwrap_or_default()
    }

    pub fn is_unschedulable(&self) -> bool {
        self.node.spec.as_ref().and_then(|s| s.unschedulable).unwrap_or(false)
    }
}
