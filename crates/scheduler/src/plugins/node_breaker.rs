//! NodeBreaker: keeps pods away from nodes on which pods of several owners fail to start, until a trial pod has started
//! there. Not an upstream plugin; has no effect while no such node is known.

use std::sync::Arc;

use crate::framework::points::NodeView;
use crate::framework::{
    Action, ClusterEvent, CycleState, Descriptor, Filter, MAX_NODE_SCORE, NodeFilter, NodeScore, Parts,
    Plugin, PodInfo, PreFilter, Reserve, Resource, Scope, Score, Shape, Status,
};
use crate::health::Health;
use crate::health::breaker::Trust;
use crate::health::observe::is_of_daemon_set;
use crate::snapshot::Snapshot;

pub const NAME: &str = "NodeBreaker";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 5,
    args: None,
    build: |build| {
        let plugin = Arc::new(NodeBreaker { health: build.catalog.shared::<Health>() });
        Ok(Parts {
            filter: Some(plugin.clone()),
            score: Some(plugin.clone()),
            reserve: Some(plugin.clone()),
            ..Parts::of(plugin)
        })
    },
};

const AVOIDED: &str = "node(s) were avoided because pods of several owners failed to start there";

struct NodeBreaker {
    health: Arc<Health>,
}

#[derive(Clone)]
struct Avoid(Arc<Health>);

struct PreferTrusted(Arc<Health>);

impl Plugin for NodeBreaker {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interests(&self) -> &'static [ClusterEvent] {
        const {
            &[
                ClusterEvent::new(Resource::Any, Action::ALL),
                ClusterEvent::new(Resource::Node, Action::ADD.or(Action::DELETE)),
            ]
        }
    }
}

/// Returns whether avoiding nodes helps: not where most nodes are affected.
fn is_of_use(health: &Health, cluster: &Snapshot, shape: &Shape) -> bool {
    let distrusted = health.distrusted();
    !distrusted.is_empty()
        && distrusted.iter().filter(|(node, _)| cluster.find(node).is_some()).count() * 2 <= cluster.len()
        // A DaemonSet's pod may be what repairs the node.
        && !is_of_daemon_set(&shape.pod)
}

impl Filter for NodeBreaker {
    fn scope(&self) -> Scope {
        Scope::Row
    }

    fn version(&self, _: &Snapshot, _: &Shape) -> u64 {
        self.health.version()
    }

    fn pre_filter(&self, cluster: &Snapshot, shape: &Shape) -> PreFilter {
        if is_of_use(&self.health, cluster, shape) {
            return PreFilter::check(Avoid(Arc::clone(&self.health)));
        }
        PreFilter::Skip
    }
}

impl NodeFilter for Avoid {
    fn check(&self, node: &NodeView) -> Status {
        if self.0.admits(node.row.name()) { Status::SUCCESS } else { Status::unresolvable(AVOIDED) }
    }

    fn boxed(&self) -> Box<dyn NodeFilter> {
        Box::new(self.clone())
    }
}

impl Score for NodeBreaker {
    fn scope(&self) -> Scope {
        Scope::Row
    }

    fn version(&self, _: &Snapshot, _: &Shape) -> u64 {
        self.health.version()
    }

    fn pre_score(&self, cluster: &Snapshot, shape: &Shape) -> Option<Box<dyn NodeScore>> {
        is_of_use(&self.health, cluster, shape)
            .then(|| Box::new(PreferTrusted(Arc::clone(&self.health))) as Box<dyn NodeScore>)
    }
}

impl NodeScore for PreferTrusted {
    fn score(&self, node: &NodeView) -> i64 {
        // A node on trial gets no low score: without a pod it would never regain trust.
        match self.0.trust(node.row.name()) {
            Trust::Full | Trust::Trial { .. } => MAX_NODE_SCORE,
            Trust::Less | Trust::Avoided { .. } => 0,
        }
    }
}

impl Reserve for NodeBreaker {
    fn reserve(&self, _: &mut CycleState, _: &Snapshot, pod: &PodInfo, node: &str) -> Status {
        self.health.begin(node, pod.uid());
        Status::SUCCESS
    }

    fn unreserve(&self, _: &mut CycleState, pod: &PodInfo, node: &str) {
        self.health.withdraw(node, pod.uid());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Cache;
    use crate::framework::Catalog;
    use crate::framework::work::Work;
    use crate::health::Awareness;
    use crate::plugins::testing::{PodBuilder, node, object, pod, profile_with};
    use serde_json::{Value, json};
    use std::time::Duration;

    fn cluster() -> Cache {
        let mut cache = Cache::default();
        ["a", "b"].into_iter().for_each(|n| cache.set_node(node(n).into()));
        cache
    }

    fn fail(health: &Health, node: &str, owners: usize, pods: usize) {
        for n in 0..pods {
            let owner = format!("{node}{}", n % owners);
            health.observe(node, &owner, &format!("p{n}"), true, Duration::from_secs(1));
        }
    }

    #[test]
    fn bad_nodes_are_scored_down_then_avoided_then_tried() {
        let catalog = Arc::new(Catalog::default());
        let health = catalog.shared::<Health>();
        health.configure(&Awareness::default());
        let profile = profile_with(DESCRIPTOR, &Value::Null, &catalog);
        let cache = cluster();
        let say = |pod: PodBuilder| {
            let shape = PodInfo::new(&pod.build()).shape;
            let mut work = Work::new(&profile, cache.snapshot(), &shape);
            let fits: Vec<_> = work.local(cache.snapshot()).iter().collect();
            let totals = work.totals(cache.snapshot(), &[0, 1]);
            (work.filters.len(), fits, totals)
        };
        assert_eq!(say(pod("p")), (0, vec![0, 1], vec![0, 0]), "no effect in a healthy cluster");
        fail(&health, "a", 2, 2);
        assert_eq!(say(pod("p")), (1, vec![0, 1], vec![0, 500]));
        fail(&health, "a", 3, 5);
        assert_eq!(say(pod("p")).1, [1]);
        let owner = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": true});
        let mut daemon = pod("d").build();
        daemon.metadata.owner_references = Some(vec![object(owner)]);
        assert_eq!(say(daemon.into()).1, [0, 1], "pods of DaemonSets are not kept away");
        health.tick(Duration::from_secs(100));
        assert_eq!(say(pod("p")).1, [0, 1], "one may try");
        health.begin("a", "p");
        assert_eq!(say(pod("q")).1, [1]);
        health.observe("a", "o", "p", false, Duration::from_secs(110));
        assert_eq!(say(pod("q")), (0, vec![0, 1], vec![0, 0]));
        fail(&health, "a", 3, 5);
        fail(&health, "b", 4, 8);
        assert_eq!(say(pod("q")).0, 0, "when most nodes are bad, none is avoided");
    }

    #[test]
    fn switched_off_it_sees_nothing() {
        let health = Health::default();
        health.configure(&Awareness { enabled: false, ..Awareness::default() });
        fail(&health, "a", 3, 9);
        assert!(health.distrusted().is_empty());
    }
}
