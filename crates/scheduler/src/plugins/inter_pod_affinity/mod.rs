//! InterPodAffinity: places pods near to or away from other pods, by topology. The terms of existing pods count as
//! well.

mod filter;
mod score;

use crate::framework::plugin_args::{PluginArgs, judge};
use knarr_apimachinery::field::{Error, ErrorList, Path};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use serde::Deserialize;

use crate::framework::terms::Term;
use crate::framework::{
    Action, Changed, ClusterEvent, Descriptor, Filter, Footprint, NodeScore, Parts, Plugin, PodInfo,
    PreFilter, Resource, Scope, Score, Shape,
};
use crate::snapshot::Snapshot;

pub const NAME: &str = "InterPodAffinity";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 2,
    args: Some(judge::<Args>),
    build: |build| {
        let args: Args = build.args()?;
        let plugin = Arc::new(InterPodAffinity(args));
        Ok(Parts { filter: Some(plugin.clone()), score: Some(plugin.clone()), ..Parts::of(plugin) })
    },
};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Args {
    /// The weight of a required affinity term of an existing pod.
    hard_pod_affinity_weight: i64,
    ignore_preferred_terms_of_existing_pods: bool,
}

impl PluginArgs for Args {
    fn validate(&self, path: &Path) -> ErrorList {
        let (weight, mut errors) = (self.hard_pod_affinity_weight, ErrorList::new());
        if !(0..=100).contains(&weight) {
            let path = path.child("hardPodAffinityWeight");
            errors.push(Error::invalid(&path, weight, "not in valid range [0, 100]"));
        }
        errors
    }
}

impl Default for Args {
    fn default() -> Self {
        Self { hard_pod_affinity_weight: 1, ignore_preferred_terms_of_existing_pods: false }
    }
}

struct InterPodAffinity(Args);

impl Plugin for InterPodAffinity {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interests(&self) -> &'static [ClusterEvent] {
        const {
            &[
                ClusterEvent::new(
                    Resource::AssignedPod,
                    Action::ADD.or(Action::POD_LABEL).or(Action::DELETE),
                ),
                ClusterEvent::new(Resource::TargetPod, Action::POD_LABEL),
                ClusterEvent::new(Resource::Node, Action::ADD.or(Action::NODE_LABEL)),
            ]
        }
    }

    fn hint(&self, pod: &PodInfo, happened: ClusterEvent, change: &Changed) -> bool {
        match happened.resource {
            Resource::AssignedPod => pod_helps(pod.footprint(), change),
            Resource::Node => node_helps(pod.footprint(), change),
            _ => true,
        }
    }
}

/// Returns whether the term may select the pod. Terms with a namespaceSelector count as matching: the labels of
/// namespaces are not available here.
fn may_mean(term: &Term, pod: &Footprint) -> bool {
    let namespace = term.namespaces.contains(&*pod.namespace) || !term.namespace_selector.is_nothing();
    namespace && term.selector.matches(&pod.labels)
}

fn all(terms: &[Term], pod: &Footprint) -> bool {
    !terms.is_empty() && terms.iter().all(|t| may_mean(t, pod))
}

fn any(terms: &[Term], pod: &Footprint) -> bool {
    terms.iter().any(|t| may_mean(t, pod))
}

fn pod_helps(waiting: &Footprint, change: &Changed) -> bool {
    let footprint = |pod: Option<&Pod>| pod.map(Footprint::of);
    let own = &waiting.terms;
    match (footprint(change.old::<Pod>()), footprint(change.new::<Pod>())) {
        (Some(old), Some(new)) => {
            !all(&own.required, &old) && all(&own.required, &new)
                || any(&own.required_anti, &old) && !any(&own.required_anti, &new)
        }
        (None, Some(new)) => all(&own.required, &new),
        (Some(old), None) => any(&own.required_anti, &old) || any(&old.terms.required_anti, waiting),
        (None, None) => true,
    }
}

fn node_helps(waiting: &Footprint, change: &Changed) -> bool {
    let Some(new) = change.new::<Node>() else { return true };
    let label = |node: &Node, key: &str| node.metadata.labels.as_ref().and_then(|l| l.get(key)).cloned();
    let old = change.old::<Node>();
    let affinity = waiting.terms.required.iter().any(|term| {
        let now = label(new, &term.topology_key);
        now.is_some() && old.is_none_or(|old| label(old, &term.topology_key) != now)
    });
    let anti = waiting.terms.required_anti.iter().any(|term| {
        old.is_none_or(|old| {
            let before = label(old, &term.topology_key);
            before.is_some() && before != label(new, &term.topology_key)
        })
    });
    affinity || anti
}

impl Filter for InterPodAffinity {
    fn scope(&self) -> Scope {
        Scope::Cluster
    }

    /// Never returns `Skip`: a pod with anti-affinity to this shape may be placed at any time.
    fn pre_filter(&self, cluster: &Snapshot, shape: &Shape) -> PreFilter {
        PreFilter::check(filter::Rules::new(cluster, &shape.footprint))
    }
}

impl Score for InterPodAffinity {
    fn scope(&self) -> Scope {
        Scope::Cluster
    }

    fn pre_score(&self, cluster: &Snapshot, shape: &Shape) -> Option<Box<dyn NodeScore>> {
        let own = &shape.footprint.terms;
        let prefers = !own.preferred.is_empty() || !own.preferred_anti.is_empty();
        if self.0.ignore_preferred_terms_of_existing_pods && !prefers {
            return None;
        }
        Some(Box::new(score::Weights::new(cluster, &shape.footprint, self.0.hard_pod_affinity_weight)))
    }
}
