//! NodeName: a pod that names its node fits only on that node.

use std::sync::Arc;

use crate::framework::points::NodeView;
use crate::framework::{
    Action, ClusterEvent, Descriptor, Filter, NodeFilter, Parts, Plugin, PreFilter, Resource, Scope, Shape,
    Status,
};
use crate::snapshot::Snapshot;

pub const NAME: &str = "NodeName";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 0,
    args: None,
    build: |_| {
        let plugin = Arc::new(NodeName);
        Ok(Parts { filter: Some(plugin.clone()), ..Parts::of(plugin) })
    },
};

struct NodeName;

/// The name in the pod's spec.
#[derive(Clone)]
struct Named(Box<str>);

impl Plugin for NodeName {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interests(&self) -> &'static [ClusterEvent] {
        const { &[ClusterEvent::new(Resource::Node, Action::ADD)] }
    }
}

impl Filter for NodeName {
    fn scope(&self) -> Scope {
        Scope::Row
    }

    fn pre_filter(&self, _: &Snapshot, shape: &Shape) -> PreFilter {
        match shape.spec().and_then(|s| s.node_name.as_deref()) {
            Some(wanted) if !wanted.is_empty() => PreFilter::check(Named(wanted.into())),
            _ => PreFilter::Skip,
        }
    }
}

impl NodeFilter for Named {
    fn check(&self, node: &NodeView) -> Status {
        if *self.0 == *node.row.name() {
            return Status::SUCCESS;
        }
        Status::unresolvable("node(s) didn't match the requested node name")
    }

    fn boxed(&self) -> Box<dyn NodeFilter> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use crate::framework::Code;
    use crate::plugins::testing::{node, pod, verdict};

    #[test]
    fn only_the_named_node_fits() {
        let verdict = |wanted: &str| verdict(super::DESCRIPTOR, pod("p").on(wanted), node("a"), vec![]).code;
        assert_eq!(verdict(""), Code::Success);
        assert_eq!(verdict("a"), Code::Success);
        assert_eq!(verdict("b"), Code::UnschedulableAndUnresolvable);
    }
}
