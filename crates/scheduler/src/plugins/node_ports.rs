//! NodePorts: no two pods of a node share a host port.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use crate::cache::Nodes;
use crate::framework::profile::Descriptor;
use crate::framework::{
    ClusterEvent, CycleState, EventObject, Filter, Interest, NodeInfo, Plugin, PodInfo, PreFilter, Status,
};

pub const NAME: &str = "NodePorts";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 0,
    register: |points, _| {
        let plugin = Arc::new(NodePorts);
        points.all.push(plugin.clone());
        points.pre_filter.push(plugin.clone());
        points.filter.push(plugin);
    },
};

struct NodePorts;

/// A pod that goes away helps only if it held one of the wanted ports.
fn frees_a_port(waiting: &Pod, change: &EventObject) -> bool {
    let EventObject::Pod { old: Some(gone), .. } = change else { return true };
    let (wanted, freed) =
        (PodInfo::new(Arc::new(waiting.clone())).host_ports, PodInfo::new(Arc::clone(gone)).host_ports);
    wanted.iter().any(|w| freed.iter().any(|f| f.port == w.port && f.protocol == w.protocol))
}

impl Plugin for NodePorts {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interests(&self) -> &'static [Interest] {
        const {
            &[
                Interest::when(ClusterEvent::AssignedPodDelete, frees_a_port),
                Interest::always(ClusterEvent::NodeAdd),
            ]
        }
    }
}

impl PreFilter for NodePorts {
    fn pre_filter(
        &self,
        _: &mut CycleState,
        pod: &PodInfo,
        _: &Nodes,
    ) -> Result<Option<BTreeSet<String>>, Status> {
        if pod.host_ports.is_empty() { Err(Status::SKIP) } else { Ok(None) }
    }
}

impl Filter for NodePorts {
    fn filter(&self, _: &CycleState, pod: &PodInfo, node: &NodeInfo) -> Status {
        if pod.host_ports.iter().any(|p| node.port_conflicts(p)) {
            return Status::unschedulable("node(s) didn't have free ports for the requested pod ports");
        }
        Status::SUCCESS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{node, pod};

    #[test]
    fn ports_conflict_by_number_protocol_and_address() {
        // address, protocol and port in use; wanted; whether it fits
        let table = [
            (("", "TCP", 80), ("", "TCP", 80), false),
            (("", "TCP", 80), ("", "UDP", 80), true),
            (("", "TCP", 80), ("", "TCP", 81), true),
            (("10.0.0.1", "TCP", 80), ("10.0.0.2", "TCP", 80), true),
            (("10.0.0.1", "TCP", 80), ("", "TCP", 80), false),
        ];
        for (used, wanted, fits) in table {
            let mut info = NodeInfo::new(node("n").into());
            info.add_pod(PodInfo::new(pod("a").host_port(used.0, used.1, used.2).into()).into());
            let pod = PodInfo::new(pod("b").host_port(wanted.0, wanted.1, wanted.2).into());
            let status = NodePorts.filter(&CycleState::default(), &pod, &info);
            assert_eq!(status.is_success(), fits, "{used:?} {wanted:?}");
        }
    }
}
