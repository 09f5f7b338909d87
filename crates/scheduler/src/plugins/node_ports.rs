//! NodePorts: pods on the same node cannot share a host port.

use crate::framework::Remedy;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use crate::framework::footprint::{Footprint, HostPort};
use crate::framework::points::NodeView;
use crate::framework::{
    Action, Changed, ClusterEvent, Descriptor, Filter, NodeFilter, Parts, Plugin, PodInfo, PreFilter,
    Resource, Scope, Shape, Status,
};
use crate::snapshot::Snapshot;

pub const NAME: &str = "NodePorts";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 0,
    args: None,
    build: |_| {
        let plugin = Arc::new(NodePorts);
        Ok(Parts { filter: Some(plugin.clone()), ..Parts::of(plugin) })
    },
};

struct NodePorts;

/// The host ports of the pod.
#[derive(Clone)]
struct Wanted(Vec<HostPort>);

impl Plugin for NodePorts {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interests(&self) -> &'static [ClusterEvent] {
        const {
            &[
                ClusterEvent::new(Resource::AssignedPod, Action::DELETE),
                ClusterEvent::new(Resource::Node, Action::ADD),
            ]
        }
    }

    /// A removed pod helps only if it had one of the pod's ports.
    fn hint(&self, pod: &PodInfo, _: ClusterEvent, change: &Changed) -> bool {
        let Some(gone) = change.old::<Pod>() else { return true };
        let freed = Footprint::of(gone);
        let wanted = &pod.footprint().host_ports;
        wanted.iter().any(|w| freed.host_ports.iter().any(|f| f.port == w.port && f.protocol == w.protocol))
    }
}

impl Filter for NodePorts {
    fn scope(&self) -> Scope {
        Scope::Row
    }

    fn pre_filter(&self, _: &Snapshot, shape: &Shape) -> PreFilter {
        if shape.footprint.host_ports.is_empty() {
            return PreFilter::Skip;
        }
        PreFilter::check(Wanted(shape.footprint.host_ports.clone()))
    }
}

impl NodeFilter for Wanted {
    fn check(&self, node: &NodeView) -> Status {
        if self.0.iter().any(|port| node.row.port_conflicts(port)) {
            return Status::unschedulable("node(s) didn't have free ports for the requested pod ports");
        }
        Status::SUCCESS
    }

    fn remedies(&self, _: &PodInfo, node: &NodeView) -> Vec<Remedy> {
        let taken = self.0.iter().filter(|port| node.row.port_conflicts(port));
        let text = |port: &HostPort| {
            let same = |used: &HostPort| used.port == port.port && used.protocol == port.protocol;
            let holder = node.row.pods.iter().find(|pod| pod.footprint.host_ports.iter().any(same));
            let holder = holder.map(|pod| format!(", which pod {}/{} has", pod.namespace(), pod.name));
            format!("another hostPort than {}/{}{}", port.protocol, port.port, holder.unwrap_or_default())
        };
        taken.map(|port| text(port).into()).collect()
    }

    fn boxed(&self) -> Box<dyn NodeFilter> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use crate::plugins::testing::{node, pod, verdict};

    #[test]
    fn ports_conflict_by_number_protocol_and_address() {
        // address, protocol and port in use; the pod's; whether it fits
        let table = [
            (("", "TCP", 80), ("", "TCP", 80), false),
            (("", "TCP", 80), ("", "UDP", 80), true),
            (("", "TCP", 80), ("", "TCP", 81), true),
            (("10.0.0.1", "TCP", 80), ("10.0.0.2", "TCP", 80), true),
            (("10.0.0.1", "TCP", 80), ("", "TCP", 80), false),
        ];
        for (used, wanted, fits) in table {
            let there = vec![pod("a").host_port(used.0, used.1, used.2)];
            let incoming = pod("b").host_port(wanted.0, wanted.1, wanted.2);
            let status = verdict(super::DESCRIPTOR, incoming, node("n"), there);
            assert_eq!(status.is_success(), fits, "{used:?} {wanted:?}");
        }
    }
}
