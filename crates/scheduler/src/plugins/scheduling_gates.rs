//! SchedulingGates: a pod with scheduling gates stays out of the active queue until all gates are removed.

use std::sync::Arc;

use crate::framework::{
    Action, ClusterEvent, Descriptor, Parts, Plugin, PodInfo, PreEnqueue, Resource, Status,
};

pub const NAME: &str = "SchedulingGates";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 0,
    args: None,
    build: |_| {
        let plugin = Arc::new(SchedulingGates);
        Ok(Parts { pre_enqueue: Some(plugin.clone()), ..Parts::of(plugin) })
    },
};

struct SchedulingGates;

impl Plugin for SchedulingGates {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interests(&self) -> &'static [ClusterEvent] {
        const { &[ClusterEvent::new(Resource::TargetPod, Action::POD_GATES_ELIMINATED)] }
    }
}

impl PreEnqueue for SchedulingGates {
    fn pre_enqueue(&self, pod: &PodInfo) -> Status {
        let gates = pod.spec().and_then(|s| s.scheduling_gates.as_deref()).unwrap_or_default();
        if gates.is_empty() {
            return Status::SUCCESS;
        }
        let names: Vec<&str> = gates.iter().map(|g| g.name.as_str()).collect();
        Status::unresolvable(format!("waiting for scheduling gates: [{}]", names.join(" ")))
    }
}
