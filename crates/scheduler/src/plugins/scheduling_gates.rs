//! SchedulingGates: a pod with gates stays out of the queue until they are all removed.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use crate::framework::profile::Descriptor;
use crate::framework::{ClusterEvent, Interest, Plugin, PreEnqueue, Status};

pub const NAME: &str = "SchedulingGates";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 0,
    register: |points, _| {
        let plugin = Arc::new(SchedulingGates);
        points.all.push(plugin.clone());
        points.pre_enqueue.push(plugin);
    },
};

struct SchedulingGates;

impl Plugin for SchedulingGates {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interests(&self) -> &'static [Interest] {
        const { &[Interest::always(ClusterEvent::UnscheduledPodUpdate)] }
    }
}

impl PreEnqueue for SchedulingGates {
    fn pre_enqueue(&self, pod: &Pod) -> Status {
        let gates = pod.spec.as_ref().and_then(|s| s.scheduling_gates.as_deref()).unwrap_or_default();
        if gates.is_empty() {
            return Status::SUCCESS;
        }
        let names: Vec<&str> = gates.iter().map(|g| g.name.as_str()).collect();
        Status::unresolvable(format!("waiting for scheduling gates: [{}]", names.join(" ")))
    }
}
