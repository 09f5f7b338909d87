//! WorkloadHold: holds back a workload whose pods made one node after another fail, until it is released or the hold
//! expires. Not an upstream plugin; has no effect while no such workload is known.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

use crate::framework::{
    Action, ClusterEvent, Descriptor, Filter, Parts, Plugin, PreFilter, Resource, Scope, Shape, Status,
};
use crate::health::Health;
use crate::health::observe::owner;
use crate::snapshot::Snapshot;

pub const NAME: &str = "WorkloadHold";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 0,
    args: None,
    build: |build| {
        let plugin = Arc::new(WorkloadHold { health: build.catalog.shared::<Health>() });
        Ok(Parts { filter: Some(plugin.clone()), ..Parts::of(plugin) })
    },
};

/// The annotation on one of the workload's pods that releases the workload.
pub const RELEASE: &str = "scheduling.knarr.io/release";

struct WorkloadHold {
    health: Arc<Health>,
}

impl Plugin for WorkloadHold {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interests(&self) -> &'static [ClusterEvent] {
        const { &[ClusterEvent::new(Resource::Any, Action::ALL)] }
    }
}

impl Filter for WorkloadHold {
    fn scope(&self) -> Scope {
        Scope::Row
    }

    fn version(&self, _: &Snapshot, _: &Shape) -> u64 {
        self.health.version()
    }

    fn pre_filter(&self, _: &Snapshot, shape: &Shape) -> PreFilter {
        if self.health.count_held() == 0 {
            return PreFilter::Skip;
        }
        let Some(held) = self.health.held(&owner(&shape.pod)) else { return PreFilter::Skip };
        let until = i64::try_from(held.until.as_secs()).ok().and_then(|s| Timestamp::from_second(s).ok());
        let until = until.map(|t| t.to_string()).unwrap_or_default();
        PreFilter::Reject(Status::unresolvable(format!(
            "held back: nodes {} stopped being ready one after another with pods of this workload; \
            until {until}, or until one of its pods has the annotation {RELEASE}",
            held.nodes.join(", ")
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::Catalog;
    use crate::health::Awareness;
    use crate::plugins::testing::{node, object, pod, verdicts_of};
    use serde_json::json;
    use std::time::Duration;

    #[test]
    fn a_held_workload_is_turned_down_in_clear_words() {
        let catalog = Arc::new(Catalog::default());
        let health = catalog.shared::<Health>();
        health.configure(&Awareness::default());
        let at = Duration::from_secs;
        let of = |name: &str| {
            let reference = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name, "uid": "u",
                "controller": true});
            let mut pod = pod("p").build();
            pod.metadata.owner_references = Some(vec![object(reference)]);
            pod
        };
        let say = |name: &str| {
            verdicts_of(DESCRIPTOR, &catalog, of(name).into(), vec![node("n")], vec![]).remove(0).message()
        };
        assert_eq!(say("bomb"), "");
        let owners = |came| vec![(owner(&of("bomb")), came)];
        for (node, came, fell) in [("a", 0, 10), ("b", 20, 30), ("c", 40, 50)] {
            health.node_fell(node, &owners(at(came)), at(fell));
        }
        assert_eq!(
            say("bomb"),
            "held back: nodes a, b, c stopped being ready one after another with pods of this workload; \
            until 1970-01-01T01:00:50Z, or until one of its pods has the annotation scheduling.knarr.io/release"
        );
        assert_eq!(say("other"), "");
        assert!(health.release(&owner(&of("bomb"))));
        assert_eq!(say("bomb"), "");
    }
}
