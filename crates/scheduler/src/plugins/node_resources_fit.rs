//! NodeResourcesFit: the node has what the pod requests; the emptier node scores higher (LeastAllocated).

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use crate::cache::Nodes;
use crate::framework::profile::Descriptor;
use crate::framework::resources::Resources;
use crate::framework::{
    ClusterEvent, Code, CycleState, EventObject, Filter, Interest, MAX_NODE_SCORE, NodeInfo, Plugin, PodInfo,
    PreFilter, Score, Status,
};

pub const NAME: &str = "NodeResourcesFit";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 1,
    register: |points, weight| {
        let plugin = Arc::new(NodeResourcesFit);
        points.all.push(plugin.clone());
        points.pre_filter.push(plugin.clone());
        points.filter.push(plugin.clone());
        points.score.push((plugin, weight));
    },
};

struct NodeResourcesFit;

/// A node update helps when something that the pod wants grew.
fn grew(_: &Pod, change: &EventObject) -> bool {
    let EventObject::Node { old: Some(old), new: Some(new) } = change else { return true };
    let allocatable = |n: &k8s_openapi::api::core::v1::Node| {
        Resources::from_list(n.status.as_ref().and_then(|s| s.allocatable.as_ref()))
    };
    let (old, new) = (allocatable(old), allocatable(new));
    new.milli_cpu > old.milli_cpu
        || new.memory > old.memory
        || new.ephemeral_storage > old.ephemeral_storage
        || new.pods > old.pods
        || new.scalar.iter().any(|(name, amount)| *amount > old.scalar.get(name).copied().unwrap_or(0))
}

impl Plugin for NodeResourcesFit {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interests(&self) -> &'static [Interest] {
        const {
            &[
                Interest::always(ClusterEvent::AssignedPodDelete),
                Interest::always(ClusterEvent::AssignedPodUpdate),
                Interest::always(ClusterEvent::UnscheduledPodUpdate),
                Interest::always(ClusterEvent::NodeAdd),
                Interest::when(ClusterEvent::NodeAllocatableUpdate, grew),
            ]
        }
    }
}

/// What is missing on the node; the flag says that even the empty node would not do.
fn insufficient(pod: &Resources, node: &NodeInfo) -> (Vec<Cow<'static, str>>, bool) {
    let (mut reasons, mut never) = (Vec::new(), false);
    if node.pods.len() as i64 + 1 > node.allocatable.pods {
        reasons.push(Cow::Borrowed("Too many pods"));
    }
    let mut check = |wanted: i64, used: i64, total: i64, reason: &dyn Fn() -> Cow<'static, str>| {
        if wanted > 0 && wanted > total - used {
            reasons.push(reason());
            never |= wanted > total;
        }
    };
    let (used, total) = (&node.requested, &node.allocatable);
    check(pod.milli_cpu, used.milli_cpu, total.milli_cpu, &|| "Insufficient cpu".into());
    check(pod.memory, used.memory, total.memory, &|| "Insufficient memory".into());
    check(pod.ephemeral_storage, used.ephemeral_storage, total.ephemeral_storage, &|| {
        "Insufficient ephemeral-storage".into()
    });
    let amount = |r: &Resources, name: &str| r.scalar.get(name).copied().unwrap_or(0);
    for (name, wanted) in &pod.scalar {
        check(*wanted, amount(used, name), amount(total, name), &|| format!("Insufficient {name}").into());
    }
    (reasons, never)
}

impl PreFilter for NodeResourcesFit {
    fn pre_filter(
        &self,
        _: &mut CycleState,
        _: &PodInfo,
        _: &Nodes,
    ) -> Result<Option<BTreeSet<String>>, Status> {
        Ok(None)
    }
}

impl Filter for NodeResourcesFit {
    fn filter(&self, _: &CycleState, pod: &PodInfo, node: &NodeInfo) -> Status {
        let (reasons, never) = insufficient(&pod.requests, node);
        match (reasons.is_empty(), never) {
            (true, _) => Status::SUCCESS,
            (false, false) => Status { code: Code::Unschedulable, reasons },
            (false, true) => Status { code: Code::UnschedulableAndUnresolvable, reasons },
        }
    }
}

impl Score for NodeResourcesFit {
    /// The mean over CPU and memory of the share that stays free.
    fn score(&self, _: &CycleState, pod: &PodInfo, node: &NodeInfo, _: &Nodes) -> i64 {
        let (used, total) = (&node.non_zero_requested, &node.allocatable);
        let shares = [
            (used.milli_cpu + pod.non_zero.milli_cpu, total.milli_cpu),
            (used.memory + pod.non_zero.memory, total.memory),
        ];
        let (mut sum, mut count) = (0, 0);
        for (wanted, total) in shares.into_iter().filter(|(_, total)| *total > 0) {
            sum += if wanted > total {
                0
            } else {
                i64::try_from(i128::from(total - wanted) * i128::from(MAX_NODE_SCORE) / i128::from(total))
                    .unwrap_or(0)
            };
            count += 1;
        }
        if count == 0 { 0 } else { sum / count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{node, pod};

    #[test]
    fn what_is_missing_is_named() {
        let mut info = NodeInfo::new(node("n").capacity("1", "1Gi", 2).into());
        info.add_pod(PodInfo::new(pod("a").cpu("600m").into()).into());
        let verdict = |p: crate::plugins::testing::PodBuilder| {
            let status = NodeResourcesFit.filter(&CycleState::default(), &PodInfo::new(p.into()), &info);
            (status.code, status.message())
        };
        assert_eq!(verdict(pod("b").cpu("400m")).0, Code::Success);
        assert_eq!(verdict(pod("b").cpu("500m")), (Code::Unschedulable, "Insufficient cpu".to_owned()));
        assert_eq!(
            verdict(pod("b").cpu("500m").memory("2Gi")),
            (Code::UnschedulableAndUnresolvable, "Insufficient cpu, Insufficient memory".to_owned())
        );
        assert_eq!(verdict(pod("b").request("example.com/gpu", "1")).1, "Insufficient example.com/gpu");
    }

    #[test]
    fn a_full_node_takes_no_more_pods() {
        let mut info = NodeInfo::new(node("n").capacity("8", "8Gi", 1).into());
        info.add_pod(PodInfo::new(pod("a").into()).into());
        let status = NodeResourcesFit.filter(&CycleState::default(), &PodInfo::new(pod("b").into()), &info);
        assert_eq!((status.code, status.message().as_str()), (Code::Unschedulable, "Too many pods"));
    }

    #[test]
    fn the_emptier_node_scores_higher() {
        let (state, nodes) = (CycleState::default(), Nodes::default());
        let incoming = PodInfo::new(pod("p").cpu("1").memory("1Gi").into());
        let mut busy = NodeInfo::new(node("n").capacity("4", "4Gi", 110).into());
        let empty = busy.clone();
        busy.add_pod(PodInfo::new(pod("a").cpu("2").memory("2Gi").into()).into());
        assert_eq!(NodeResourcesFit.score(&state, &incoming, &empty, &nodes), 75);
        assert_eq!(NodeResourcesFit.score(&state, &incoming, &busy, &nodes), 25);
    }
}
