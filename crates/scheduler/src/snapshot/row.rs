//! The row of one node: the node object, the pods on it and the sums of their requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Taint};
use knarr_api::kind::Kind;

use crate::framework::footprint::{Footprint, HostPort};
use crate::framework::resources::Resources;

const ANY_ADDRESS: &str = "0.0.0.0";

/// A pod on a node: assumed, bound, or (for nominations) expected there.
#[derive(Debug)]
pub struct PlacedPod {
    pub uid: Box<str>,
    pub name: Box<str>,
    pub generation: Option<i64>,
    /// What the pod counts as.
    pub footprint: Arc<Footprint>,
    /// The pod's start time, in seconds since the Unix epoch.
    pub started_seconds: Option<i64>,
    /// The pod is being evicted by a preemption.
    pub preempted: bool,
}

impl PlacedPod {
    pub fn namespace(&self) -> &str {
        &self.footprint.namespace
    }
}

/// A node, the pods on it and their requests.
#[derive(Debug, Clone, Default)]
pub struct NodeRow {
    /// The node without images and managed fields.
    pub node: Arc<Node>,
    pub pods: Vec<Arc<PlacedPod>>,
    pub requested: Resources,
    /// The sum of requests with assumed minimums, for scoring.
    pub non_zero_requested: Resources,
    pub allocatable: Resources,
    /// The host ports in use.
    pub used_ports: Vec<HostPort>,
    /// Image sizes in bytes, by image name.
    pub images: BTreeMap<Box<str>, i64>,
}

impl NodeRow {
    pub fn name(&self) -> &str {
        self.node.name()
    }

    /// Returns a row outside of any table.
    pub fn of(node: Arc<Node>) -> Self {
        let mut row = Self::default();
        row.set_node(node);
        row
    }

    /// Takes over a new state of the node. The pods are kept.
    pub(super) fn set_node(&mut self, node: Arc<Node>) {
        let status = node.status.as_ref();
        self.allocatable = Resources::from_list(status.and_then(|s| s.allocatable.as_ref()));
        let images = status.and_then(|s| s.images.as_ref()).into_iter().flatten();
        self.images = images
            .flat_map(|i| {
                let size = i.size_bytes.unwrap_or(0);
                i.names.iter().flatten().map(move |name| (name.as_str().into(), size))
            })
            .collect();
        self.node = node;
        if !self.images.is_empty() {
            let lean = Arc::make_mut(&mut self.node);
            if let Some(status) = &mut lean.status {
                status.images = None;
            }
        }
    }

    pub(super) fn add_pod(&mut self, pod: Arc<PlacedPod>) {
        let footprint = &pod.footprint;
        self.requested.add(&footprint.requests);
        self.non_zero_requested.add(&footprint.non_zero);
        self.used_ports.extend(footprint.host_ports.iter().cloned());
        self.pods.push(pod);
    }

    pub(super) fn remove_pod(&mut self, uid: &str) -> Option<Arc<PlacedPod>> {
        let at = self.pods.iter().position(|p| *p.uid == *uid)?;
        let pod = self.pods.swap_remove(at);
        self.requested.sub(&pod.footprint.requests);
        self.non_zero_requested.sub(&pod.footprint.non_zero);
        for port in &pod.footprint.host_ports {
            if let Some(at) = self.used_ports.iter().position(|used| used == port) {
                self.used_ports.swap_remove(at);
            }
        }
        Some(pod)
    }

    /// Adds a pod on trial.
    pub fn put_on(&mut self, pod: Arc<PlacedPod>) {
        self.add_pod(pod);
    }

    /// Removes a pod on trial.
    pub fn take_off(&mut self, uid: &str) {
        self.remove_pod(uid);
    }

    /// Returns whether a pod on this node uses the same port, on this address or on all.
    pub fn port_conflicts(&self, wanted: &HostPort) -> bool {
        self.used_ports.iter().any(|used| {
            used.port == wanted.port
                && used.protocol == wanted.protocol
                && (used.ip == wanted.ip || *used.ip == *ANY_ADDRESS || *wanted.ip == *ANY_ADDRESS)
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
