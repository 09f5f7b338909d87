//! TaintToleration: NoSchedule and NoExecute taints keep pods off, PreferNoSchedule ones lower the score.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, Taint, Toleration};
use knarr_api::core::pod::placement::{taints, tolerated, tolerates, tolerations};

use crate::cache::Nodes;
use crate::framework::profile::Descriptor;
use crate::framework::{
    ClusterEvent, CycleState, EventObject, Filter, Interest, MAX_NODE_SCORE, NodeInfo, Plugin, PodInfo,
    Score, Status,
};

pub const NAME: &str = "TaintToleration";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 3,
    register: |points, weight| {
        let plugin = Arc::new(TaintToleration);
        points.all.push(plugin.clone());
        points.filter.push(plugin.clone());
        points.score.push((plugin, weight));
    },
};

struct TaintToleration;

fn keeps_off(taints: &[Taint], pod: &Pod) -> bool {
    let blocking = taints.iter().filter(|t| matches!(t.effect.as_str(), "NoSchedule" | "NoExecute"));
    blocking.into_iter().any(|taint| !tolerated(tolerations(pod), taint))
}

fn tolerated_now(pod: &Pod, change: &EventObject) -> bool {
    match change {
        EventObject::Node { new: Some(node), .. } => !keeps_off(taints(node), pod),
        _ => true,
    }
}

impl Plugin for TaintToleration {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interests(&self) -> &'static [Interest] {
        const {
            &[
                Interest::when(ClusterEvent::NodeAdd, tolerated_now),
                Interest::when(ClusterEvent::NodeTaintUpdate, tolerated_now),
                Interest::always(ClusterEvent::UnscheduledPodUpdate),
            ]
        }
    }
}

impl Filter for TaintToleration {
    fn filter(&self, _: &CycleState, pod: &PodInfo, node: &NodeInfo) -> Status {
        if keeps_off(node.taints(), &pod.pod) {
            return Status::unresolvable("node(s) had untolerated taint(s)");
        }
        Status::SUCCESS
    }
}

impl Score for TaintToleration {
    /// How many PreferNoSchedule taints the pod does not tolerate.
    fn score(&self, _: &CycleState, pod: &PodInfo, node: &NodeInfo, _: &Nodes) -> i64 {
        let prefers = |t: &&Toleration| matches!(t.effect.as_deref(), None | Some("" | "PreferNoSchedule"));
        let wanted: Vec<_> = tolerations(&pod.pod).iter().filter(prefers).collect();
        let soft = node.taints().iter().filter(|t| t.effect == "PreferNoSchedule");
        soft.filter(|taint| !wanted.iter().any(|t| tolerates(t, taint))).count() as i64
    }

    fn normalize(&self, scores: &mut [i64]) {
        reverse_normalize(scores);
    }
}

/// Scales to 0..=100 with the smallest number best; all best when every number is 0.
pub fn reverse_normalize(scores: &mut [i64]) {
    let max = scores.iter().copied().max().unwrap_or(0);
    for score in scores {
        *score = if max == 0 { MAX_NODE_SCORE } else { MAX_NODE_SCORE - *score * MAX_NODE_SCORE / max };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{node, pod};

    #[test]
    fn tolerations_match_taints_as_documented() {
        // key, operator, value, effect of the toleration; whether it matches key1=value1:NoSchedule
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
            let pod = PodInfo::new(pod("p").toleration(key, operator, value, effect).build().into());
            let node = NodeInfo::new(node("a").taint("key1", "value1", "NoSchedule").into());
            let status = TaintToleration.filter(&CycleState::default(), &pod, &node);
            assert_eq!(status.is_success(), expected, "{key} {operator} {value} {effect}");
        }
    }

    #[test]
    fn soft_taints_do_not_keep_off_but_score_lower() {
        let (plain, soft) = (node("a").build(), node("b").taint("k", "v", "PreferNoSchedule").build());
        let pod = PodInfo::new(pod("p").build().into());
        let (state, nodes) = (CycleState::default(), Nodes::default());
        let infos = [NodeInfo::new(plain.into()), NodeInfo::new(soft.into())];
        assert!(infos.iter().all(|n| TaintToleration.filter(&state, &pod, n).is_success()));
        let mut scores: Vec<_> =
            infos.iter().map(|n| TaintToleration.score(&state, &pod, n, &nodes)).collect();
        TaintToleration.normalize(&mut scores);
        assert_eq!(scores, [100, 0]);
    }
}
