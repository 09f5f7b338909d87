//! NodeResourcesBalancedAllocation: prefers nodes on which CPU and memory would be used in even shares.

use std::sync::Arc;

use crate::cache::Nodes;
use crate::framework::profile::Descriptor;
use crate::framework::resources::Resources;
use crate::framework::{CycleState, MAX_NODE_SCORE, NodeInfo, Plugin, PodInfo, PreScore, Score, Status};

pub const NAME: &str = "NodeResourcesBalancedAllocation";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 1,
    register: |points, weight| {
        let plugin = Arc::new(BalancedAllocation);
        points.all.push(plugin.clone());
        points.pre_score.push(plugin.clone());
        points.score.push((plugin, weight));
    },
};

struct BalancedAllocation;

impl Plugin for BalancedAllocation {
    fn name(&self) -> &'static str {
        NAME
    }
}

impl PreScore for BalancedAllocation {
    /// A best-effort pod changes no balance.
    fn pre_score(&self, _: &mut CycleState, pod: &PodInfo, _: &[&NodeInfo]) -> Status {
        if pod.requests.milli_cpu == 0 && pod.requests.memory == 0 { Status::SKIP } else { Status::SUCCESS }
    }
}

/// How even the used shares of CPU and memory are: 100 minus their standard deviation in percent.
fn evenness(milli_cpu: i64, memory: i64, total: &Resources) -> i64 {
    let share = |used: i64, total: i64| (used as f64 / total as f64).min(1.0);
    let deviation = if total.milli_cpu > 0 && total.memory > 0 {
        ((share(milli_cpu, total.milli_cpu) - share(memory, total.memory)) / 2.0).abs()
    } else {
        0.0
    };
    ((1.0 - deviation) * MAX_NODE_SCORE as f64) as i64
}

impl Score for BalancedAllocation {
    /// 75 when the pod leaves the balance as it is, more where it improves it, less where it spoils it.
    fn score(&self, _: &CycleState, pod: &PodInfo, node: &NodeInfo, _: &Nodes) -> i64 {
        let (used, wanted, total) = (&node.requested, &pod.requests, &node.allocatable);
        let before = evenness(used.milli_cpu, used.memory, total);
        let after = evenness(used.milli_cpu + wanted.milli_cpu, used.memory + wanted.memory, total);
        const HALF: i64 = MAX_NODE_SCORE / 2;
        HALF + (HALF + after - before) / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{node, pod};

    #[test]
    fn improving_the_balance_scores_higher() {
        let (state, nodes) = (CycleState::default(), Nodes::default());
        let mut busy_cpu = NodeInfo::new(node("n").capacity("4", "4Gi", 110).into());
        busy_cpu.add_pod(PodInfo::new(pod("a").cpu("2").into()).into());
        let score = |cpu: &str, memory: &str| {
            let incoming = PodInfo::new(pod("p").cpu(cpu).memory(memory).into());
            BalancedAllocation.score(&state, &incoming, &busy_cpu, &nodes)
        };
        assert_eq!(score("1", "1Gi"), 75);
        assert_eq!(score("0", "2Gi"), 87);
        assert_eq!(score("2", "0"), 62);
    }

    #[test]
    fn best_effort_pods_are_not_scored() {
        let status =
            BalancedAllocation.pre_score(&mut CycleState::default(), &PodInfo::new(pod("p").into()), &[]);
        assert!(status.is_skip());
    }
}
