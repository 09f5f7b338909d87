//! Preferred affinity and anti-affinity: weights by topology domain, from the terms of the incoming pod and of existing
//! pods.

use std::collections::HashMap;
use std::sync::Arc;

use crate::framework::points::NodeView;
use crate::framework::terms::Term;
use crate::framework::{Footprint, MAX_NODE_SCORE, NodeScore};
use crate::plugins::domain_counts::DomainCounts;
use crate::snapshot::{NodeIdx, Snapshot};

/// The number of footprints whose effect is cached.
const KNOWN: usize = 4096;

/// The score for preferred affinity and anti-affinity.
pub struct Weights {
    incoming: Arc<Footprint>,
    /// The weight of a required affinity term of an existing pod.
    hard: i64,
    /// Weights for each topology key.
    weights: Vec<DomainCounts>,
    /// By footprint: indexes of `weights`, with what one such pod adds there.
    known: HashMap<u64, Arc<[(usize, i64)]>>,
}

impl Weights {
    pub fn new(cluster: &Snapshot, incoming: &Arc<Footprint>, hard: i64) -> Self {
        let mut all =
            Self { incoming: Arc::clone(incoming), hard, weights: Vec::new(), known: HashMap::new() };
        let mut count = |counted: &crate::snapshot::Counted| {
            for (node, pods) in &counted.by_node {
                all.apply(cluster, *node, &counted.footprint, i64::from(*pods));
            }
        };
        if incoming.terms.preferred.is_empty() && incoming.terms.preferred_anti.is_empty() {
            cluster.counted_with_terms().for_each(&mut count);
        } else {
            cluster.counted().for_each(&mut count);
        }
        all
    }

    fn apply(&mut self, cluster: &Snapshot, node: NodeIdx, footprint: &Footprint, pods: i64) {
        for (at, weight) in self.effect(cluster, footprint).iter() {
            self.weights[*at].add(cluster, node, weight * pods);
        }
    }

    fn effect(&mut self, cluster: &Snapshot, footprint: &Footprint) -> Arc<[(usize, i64)]> {
        if let Some(effect) = self.known.get(&footprint.id) {
            return Arc::clone(effect);
        }
        let incoming = Arc::clone(&self.incoming);
        let (own, theirs) = (&incoming.terms, &footprint.terms);
        let mut effect = Vec::new();
        let mut add = |term: &Term, weight: i64, target: &Footprint| {
            if weight == 0 || !term.matches(target, cluster.namespaces()) {
                return;
            }
            let known = self.weights.iter().position(|w| w.key == term.topology_key);
            let at = known.unwrap_or_else(|| {
                self.weights.push(DomainCounts::new(cluster, &term.topology_key));
                self.weights.len() - 1
            });
            effect.push((at, weight));
        };
        own.preferred.iter().for_each(|(w, t)| add(t, *w, footprint));
        own.preferred_anti.iter().for_each(|(w, t)| add(t, -*w, footprint));
        theirs.required.iter().for_each(|t| add(t, self.hard, &incoming));
        theirs.preferred.iter().for_each(|(w, t)| add(t, *w, &incoming));
        theirs.preferred_anti.iter().for_each(|(w, t)| add(t, -*w, &incoming));
        let effect: Arc<[(usize, i64)]> = effect.into();
        if self.known.len() >= KNOWN {
            self.known.clear();
        }
        self.known.insert(footprint.id, Arc::clone(&effect));
        effect
    }
}

impl NodeScore for Weights {
    fn score(&self, node: &NodeView) -> i64 {
        self.weights.iter().filter_map(|w| w.get(node.cluster, node.at)).sum()
    }

    fn normalize(&self, _: &Snapshot, _: &[NodeIdx], scores: &mut [i64]) {
        let (Some(min), Some(max)) = (scores.iter().copied().min(), scores.iter().copied().max()) else {
            return;
        };
        for score in scores {
            *score = match max - min {
                0 => 0,
                range => (MAX_NODE_SCORE as f64 * ((*score - min) as f64 / range as f64)) as i64,
            };
        }
    }

    fn pod_changed(&mut self, cluster: &Snapshot, node: NodeIdx, footprint: &Footprint, delta: i32) {
        let own = &self.incoming.terms;
        if footprint.terms.is_empty() && own.preferred.is_empty() && own.preferred_anti.is_empty() {
            return;
        }
        self.apply(cluster, node, footprint, i64::from(delta));
    }
}

#[cfg(test)]
mod tests {
    use super::super::DESCRIPTOR;
    use crate::plugins::testing::{PodBuilder, node, pod, scores, scores_with};
    use serde_json::json;

    fn nodes() -> Vec<crate::plugins::testing::NodeBuilder> {
        ["z1", "z1", "z2"].iter().zip(["a", "b", "c"]).map(|(zone, n)| node(n).label("zone", zone)).collect()
    }

    fn web() -> PodBuilder {
        pod("web").label("app", "web")
    }

    #[test]
    fn preferences_attract_and_repel() {
        let likes = pod("p").prefers(10, &[("app", "web")], "zone");
        assert_eq!(scores(DESCRIPTOR, likes, nodes(), vec![(2, web())]), [0, 0, 100]);
        let avoids = pod("p").avoids(10, &[("app", "web")], "zone");
        assert_eq!(scores(DESCRIPTOR, avoids, nodes(), vec![(2, web())]), [100, 100, 0]);
        assert_eq!(scores(DESCRIPTOR, pod("p"), nodes(), vec![(2, web())]), [0, 0, 0]);
    }

    #[test]
    fn existing_pods_wishes_count() {
        let fan = pod("fan").prefers(10, &[("app", "web")], "zone");
        assert_eq!(scores(DESCRIPTOR, web(), nodes(), vec![(0, fan)]), [100, 100, 0]);
        let bound = || vec![(2, pod("bound").affinity(&[("app", "web")], "zone"))];
        assert_eq!(scores(DESCRIPTOR, web(), nodes(), bound()), [0, 0, 100]);
        let without = json!({"hardPodAffinityWeight": 0});
        assert_eq!(scores_with(DESCRIPTOR, &without, web(), nodes(), bound()), [0, 0, 0]);
        let deaf = json!({"ignorePreferredTermsOfExistingPods": true});
        assert_eq!(scores_with(DESCRIPTOR, &deaf, web(), nodes(), bound()), [0, 0, 0]);
    }
}
