//! NodeName: a pod that names its node fits on that node only.

use std::sync::Arc;

use crate::framework::profile::Descriptor;
use crate::framework::{ClusterEvent, CycleState, Filter, Interest, NodeInfo, Plugin, PodInfo, Status};

pub const NAME: &str = "NodeName";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 0,
    register: |points, _| {
        let plugin = Arc::new(NodeName);
        points.all.push(plugin.clone());
        points.filter.push(plugin);
    },
};

struct NodeName;

impl Plugin for NodeName {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interests(&self) -> &'static [Interest] {
        const { &[Interest::always(ClusterEvent::NodeAdd)] }
    }
}

impl Filter for NodeName {
    fn filter(&self, _: &CycleState, pod: &PodInfo, node: &NodeInfo) -> Status {
        match pod.spec().and_then(|s| s.node_name.as_deref()) {
            Some(wanted) if !wanted.is_empty() && wanted != node.name() => {
                Status::unresolvable("node(s) didn't match the requested node name")
            }
            _ => Status::SUCCESS,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::Code;
    use crate::plugins::testing::{node, pod};

    #[test]
    fn only_the_named_node_fits() {
        let verdict = |wanted: &str| {
            let pod = PodInfo::new(pod("p").on(wanted).into());
            NodeName.filter(&CycleState::default(), &pod, &NodeInfo::new(node("a").into())).code
        };
        assert_eq!(verdict(""), Code::Success);
        assert_eq!(verdict("a"), Code::Success);
        assert_eq!(verdict("b"), Code::UnschedulableAndUnresolvable);
    }
}
