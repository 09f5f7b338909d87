//! TaintToleration: NoSchedule and NoExecute taints exclude nodes, PreferNoSchedule taints lower their score.

use crate::framework::Remedy;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Taint, Toleration};
use knarr_api::core::pod::placement::{taints, tolerated};

use crate::framework::points::NodeView;
use crate::framework::{
    Action, Changed, ClusterEvent, Descriptor, Filter, MAX_NODE_SCORE, NodeFilter, NodeScore, Parts, Plugin,
    PodInfo, PreFilter, Resource, Scope, Score, Shape, Status,
};
use crate::snapshot::{NodeIdx, Snapshot};

pub const NAME: &str = "TaintToleration";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 3,
    args: None,
    build: |_| {
        let plugin = Arc::new(TaintToleration);
        Ok(Parts { filter: Some(plugin.clone()), score: Some(plugin.clone()), ..Parts::of(plugin) })
    },
};

struct TaintToleration;

/// The tolerations of a pod.
#[derive(Clone)]
struct Tolerations(Vec<Toleration>);

fn of(shape: &Shape) -> &[Toleration] {
    shape.spec().and_then(|s| s.tolerations.as_deref()).unwrap_or_default()
}

/// Returns whether the tolerations leave a NoSchedule or NoExecute taint uncovered.
pub fn keeps_off(taints: &[Taint], tolerations: &[Toleration]) -> bool {
    let blocking = taints.iter().filter(|t| matches!(t.effect.as_str(), "NoSchedule" | "NoExecute"));
    { blocking }.any(|taint| !tolerated(tolerations, taint))
}

impl Plugin for TaintToleration {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interests(&self) -> &'static [ClusterEvent] {
        const {
            &[
                ClusterEvent::new(Resource::Node, Action::ADD.or(Action::NODE_TAINT)),
                ClusterEvent::new(Resource::TargetPod, Action::POD_TOLERATION),
            ]
        }
    }

    fn hint(&self, pod: &PodInfo, _: ClusterEvent, change: &Changed) -> bool {
        let kept_off = |node: &Node| keeps_off(taints(node), of(&pod.shape));
        change.new::<Node>().is_none_or(|new| change.old::<Node>().is_none_or(kept_off) && !kept_off(new))
    }
}

impl Filter for TaintToleration {
    fn scope(&self) -> Scope {
        Scope::Row
    }

    fn pre_filter(&self, _: &Snapshot, shape: &Shape) -> PreFilter {
        PreFilter::check(Tolerations(of(shape).to_vec()))
    }
}

const CORDON: &str = "node.kubernetes.io/unschedulable";

impl NodeFilter for Tolerations {
    fn check(&self, node: &NodeView) -> Status {
        if keeps_off(node.row.taints(), &self.0) {
            return Status::unresolvable("node(s) had untolerated taint(s)");
        }
        Status::SUCCESS
    }

    fn remedies(&self, _: &PodInfo, node: &NodeView) -> Vec<Remedy> {
        // The remedy for a cordon is reported by NodeUnschedulable.
        let others = node.row.taints().iter().filter(|taint| taint.key != CORDON);
        let taints = others.filter(|taint| keeps_off(std::slice::from_ref(taint), &self.0));
        let text = |taint: &Taint| {
            let value = taint.value.as_deref().filter(|v| !v.is_empty()).map(|v| format!("={v}"));
            format!("{}{}:{}", taint.key, value.unwrap_or_default(), taint.effect)
        };
        taints.map(|taint| format!("a toleration for {}", text(taint)).into()).collect()
    }

    fn boxed(&self) -> Box<dyn NodeFilter> {
        Box::new(self.clone())
    }
}

impl Score for TaintToleration {
    fn scope(&self) -> Scope {
        Scope::Row
    }

    fn pre_score(&self, _: &Snapshot, shape: &Shape) -> Option<Box<dyn NodeScore>> {
        let soft = |t: &&Toleration| matches!(t.effect.as_deref(), None | Some("" | "PreferNoSchedule"));
        Some(Box::new(Tolerations(of(shape).iter().filter(soft).cloned().collect())))
    }
}

impl NodeScore for Tolerations {
    /// The number of PreferNoSchedule taints that the pod does not tolerate.
    fn score(&self, node: &NodeView) -> i64 {
        let soft = node.row.taints().iter().filter(|t| t.effect == "PreferNoSchedule");
        soft.filter(|taint| !tolerated(&self.0, taint)).count() as i64
    }

    fn normalize(&self, _: &Snapshot, _: &[NodeIdx], scores: &mut [i64]) {
        reverse_normalize(scores);
    }
}

/// Scales scores to 0..=100, the smallest best; all 100 when every score is 0.
pub fn reverse_normalize(scores: &mut [i64]) {
    let max = scores.iter().copied().max().unwrap_or(0);
    for score in scores {
        *score = if max == 0 { MAX_NODE_SCORE } else { MAX_NODE_SCORE - *score * MAX_NODE_SCORE / max };
    }
}

#[cfg(test)]
mod tests {
    use crate::plugins::testing::{node, pod, scores, verdict};

    #[test]
    fn tolerations_match_taints_as_documented() {
        // key, operator, value and effect of the toleration; whether it covers key1=value1:NoSchedule
        let table = [
            ("key1", "Equal", "value1", "NoSchedule", true),
            ("key1", "", "value1", "NoSchedule", true),
            ("key1", "Equal", "other", "NoSchedule", false),
            ("key1", "Exists", "", "NoSchedule", true),
            ("key1", "Exists", "", "", true),
            ("key1", "Exists", "", "NoExecute", false),
            ("", "Exists", "", "", true),
            ("", "Equal", "", "", false),
            ("key2", "Exists", "", "", false),
        ];
        for (key, operator, value, effect, expected) in table {
            let pod = pod("p").toleration(key, operator, value, effect);
            let node = node("a").taint("key1", "value1", "NoSchedule");
            let status = verdict(super::DESCRIPTOR, pod, node, vec![]);
            assert_eq!(status.is_success(), expected, "{key} {operator} {value} {effect}");
        }
    }

    #[test]
    fn soft_taints_do_not_keep_off_but_score_lower() {
        let nodes = || vec![node("a"), node("b").taint("k", "v", "PreferNoSchedule")];
        assert!(verdict(super::DESCRIPTOR, pod("p"), nodes().remove(1), vec![]).is_success());
        assert_eq!(scores(super::DESCRIPTOR, pod("p"), nodes(), vec![]), [100, 0]);
        let tolerant = pod("p").toleration("k", "Exists", "", "PreferNoSchedule");
        assert_eq!(scores(super::DESCRIPTOR, tolerant, nodes(), vec![]), [100, 100]);
    }
}
