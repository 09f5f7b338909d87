//! The workloads: what exists before, what happens meanwhile, and the pods that are measured.
//!
//! Source: names, sizes and objects are those of `test/integration/scheduler_perf` of Kubernetes 1.37 (the
//! workloads with a threshold in its configurations misc, affinity, topology_spreading, volumes and
//! default_preemption); the floors are its thresholds, in pods/s on its own hardware.

use serde_json::Value;

use super::shapes::{self, Volume};

pub struct Workload {
    pub name: &'static str,
    pub floor: Option<u32>,
    pub steps: &'static [Step],
}

/// The steps of a workload, in order; the last one is measured.
pub enum Step {
    Nodes(usize, fn(usize) -> Value),
    /// Namespaces PREFIX-0, PREFIX-1 and so on, with a label for namespace selectors.
    Namespaces(&'static str, usize),
    Objects(&'static str, fn() -> Value),
    Pods(Pods),
    /// Repeats an action until the end, with this interval in milliseconds.
    Meanwhile(Meanwhile, u64),
}

pub enum Meanwhile {
    /// Creates a pod.
    Create(fn(usize) -> Value),
    /// Creates a node, a pod and a Service, and deletes them the next time.
    Recreate(fn(usize) -> Value),
    /// Deletes a pod of the namespace.
    Delete(&'static str),
}

pub struct Pods {
    /// The number of pods in each namespace.
    pub count: usize,
    pub shape: fn(usize) -> Value,
    pub volume: Volume,
    /// The namespace; if it is numbered, with the number of namespaces.
    pub namespace: (&'static str, usize),
    /// Whether to wait until they are bound.
    pub bound: bool,
}

const fn pods(count: usize, shape: fn(usize) -> Value, namespace: &'static str) -> Step {
    Step::Pods(Pods { count, shape, volume: Volume::None, namespace: (namespace, 1), bound: true })
}

const fn unbound(count: usize, shape: fn(usize) -> Value, namespace: &'static str) -> Step {
    Step::Pods(Pods { count, shape, volume: Volume::None, namespace: (namespace, 1), bound: false })
}

const fn in_each(count: usize, shape: fn(usize) -> Value, prefix: &'static str, namespaces: usize) -> Step {
    Step::Pods(Pods { count, shape, volume: Volume::None, namespace: (prefix, namespaces), bound: true })
}

const fn volumes(count: usize, volume: Volume) -> Step {
    Step::Pods(Pods { count, shape: shapes::pod, volume, namespace: ("default", 1), bound: true })
}

/// The namespace of pods that have no namespace of their own in the workload.
const D: &str = "default";

pub const ALL: &[Workload] = &[
    Workload {
        name: "SchedulingBasic/5000Nodes_10000Pods",
        floor: Some(680),
        steps: &[Step::Nodes(5000, shapes::node), pods(1000, shapes::pod, D), pods(10_000, shapes::pod, D)],
    },
    Workload {
        name: "SchedulingBasic/5000Nodes_50000Pods",
        floor: Some(790),
        steps: &[Step::Nodes(5000, shapes::node), pods(5000, shapes::pod, D), pods(50_000, shapes::pod, D)],
    },
    // Not one of upstream's: it measures the memory of a large cluster.
    Workload {
        name: "SchedulingBasic/5000Nodes_150000Pods",
        floor: None,
        steps: &[Step::Nodes(5000, shapes::node), pods(150_000, shapes::pod, D)],
    },
    Workload {
        name: "SchedulingDaemonset/15000Nodes",
        floor: Some(1100),
        steps: &[
            Step::Nodes(1, shapes::large_node),
            Step::Nodes(15_000, shapes::node),
            pods(30_000, shapes::of_the_large_node, D),
        ],
    },
    Workload {
        name: "SchedulingWithMixedChurn/5000Nodes_10000Pods",
        floor: Some(710),
        steps: &[
            Step::Nodes(5000, shapes::node),
            Step::Meanwhile(Meanwhile::Recreate(shapes::too_large), 1000),
            pods(10_000, shapes::pod, D),
        ],
    },
    Workload {
        name: "SchedulingWhileGated/1Node_10000GatedPods",
        floor: Some(910),
        steps: &[
            Step::Nodes(1, shapes::large_node),
            unbound(10_000, shapes::gated, D),
            Step::Namespaces("deleted", 1),
            pods(20_000, shapes::light, "deleted-0"),
            Step::Meanwhile(Meanwhile::Delete("deleted-0"), 20),
            pods(20_000, shapes::light, D),
        ],
    },
    Workload {
        name: "SchedulingDeletedPodsWithFinalizers/5000Node_5000DeletingPods",
        floor: Some(830),
        steps: &[
            Step::Nodes(5000, shapes::node),
            Step::Namespaces("deleted", 1),
            unbound(5000, shapes::with_finalizer, "deleted-0"),
            Step::Meanwhile(Meanwhile::Delete("deleted-0"), 10),
            pods(5000, shapes::light, D),
        ],
    },
    Workload {
        name: "SchedulingPodAntiAffinity/5000Nodes_2000Pods",
        floor: Some(180),
        steps: &[
            Step::Nodes(5000, shapes::node),
            Step::Namespaces("sched", 2),
            pods(1000, shapes::anti_affinity, "sched-0"),
            pods(2000, shapes::anti_affinity, "sched-1"),
        ],
    },
    Workload {
        name: "SchedulingPodMatchingAntiAffinity/5000Nodes_5000Pods",
        floor: Some(540),
        steps: &[
            Step::Nodes(5000, shapes::node),
            Step::Namespaces("sched", 2),
            pods(1000, shapes::anti_affinity, "sched-0"),
            pods(5000, shapes::green, "sched-1"),
        ],
    },
    Workload {
        name: "SchedulingPodAffinity/5000Nodes_5000Pods",
        floor: Some(70),
        steps: &[
            Step::Nodes(5000, shapes::node_in_a_zone),
            Step::Namespaces("sched", 2),
            pods(5000, shapes::affinity, "sched-0"),
            pods(5000, shapes::affinity, "sched-1"),
        ],
    },
    Workload {
        name: "SchedulingPreferredPodAffinity/5000Nodes_5000Pods",
        floor: Some(160),
        steps: &[
            Step::Nodes(5000, shapes::node),
            Step::Namespaces("sched", 2),
            pods(5000, shapes::preferred_affinity, "sched-0"),
            pods(5000, shapes::preferred_affinity, "sched-1"),
        ],
    },
    Workload {
        name: "SchedulingPreferredPodAntiAffinity/5000Nodes_5000Pods",
        floor: Some(190),
        steps: &[
            Step::Nodes(5000, shapes::node),
            Step::Namespaces("sched", 2),
            pods(5000, shapes::preferred_anti_affinity, "sched-0"),
            pods(5000, shapes::preferred_anti_affinity, "sched-1"),
        ],
    },
    Workload {
        name: "SchedulingNodeAffinity/5000Nodes_10000Pods",
        floor: Some(540),
        steps: &[
            Step::Nodes(5000, shapes::node_in_a_zone),
            pods(5000, shapes::node_affinity, D),
            pods(10_000, shapes::node_affinity, D),
        ],
    },
    Workload {
        name: "MixedSchedulingBasePod/5000Nodes_5000Pods",
        floor: Some(540),
        steps: &[
            Step::Nodes(5000, shapes::node_in_a_zone),
            Step::Namespaces("sched", 1),
            pods(2000, shapes::pod, "sched-0"),
            pods(2000, shapes::affinity, "sched-0"),
            pods(2000, shapes::anti_affinity, "sched-0"),
            pods(2000, shapes::preferred_affinity, "sched-0"),
            pods(2000, shapes::preferred_anti_affinity, "sched-0"),
            pods(5000, shapes::pod, D),
        ],
    },
    Workload {
        name: "SchedulingRequiredPodAntiAffinityWithNSSelector/5000Nodes_2000Pods",
        floor: Some(140),
        steps: &[
            Step::Nodes(6000, shapes::node),
            Step::Namespaces("init-ns", 100),
            Step::Namespaces("measure-ns", 1),
            in_each(40, shapes::anti_affinity_of_namespaces, "init-ns", 100),
            pods(2000, shapes::anti_affinity_of_namespaces, "measure-ns-0"),
        ],
    },
    Workload {
        name: "SchedulingPreferredAntiAffinityWithNSSelector/5000Nodes_2000Pods",
        floor: Some(180),
        steps: &[
            Step::Nodes(5000, shapes::node),
            Step::Namespaces("init-ns", 100),
            Step::Namespaces("measure-ns", 1),
            in_each(40, shapes::preferred_anti_affinity_of_namespaces, "init-ns", 100),
            pods(2000, shapes::preferred_anti_affinity_of_namespaces, "measure-ns-0"),
        ],
    },
    Workload {
        name: "SchedulingRequiredPodAffinityWithNSSelector/5000Nodes_2000Pods",
        floor: Some(180),
        steps: &[
            Step::Nodes(5000, shapes::node_in_a_zone),
            Step::Namespaces("init-ns", 100),
            Step::Namespaces("measure-ns", 1),
            in_each(50, shapes::affinity_of_namespaces, "init-ns", 100),
            pods(2000, shapes::affinity_of_namespaces, "measure-ns-0"),
        ],
    },
    Workload {
        name: "SchedulingPreferredAffinityWithNSSelector/5000Nodes_5000Pods",
        floor: Some(190),
        steps: &[
            Step::Nodes(5000, shapes::node),
            Step::Namespaces("init-ns", 100),
            Step::Namespaces("measure-ns", 1),
            in_each(50, shapes::preferred_affinity_of_namespaces, "init-ns", 100),
            pods(5000, shapes::preferred_affinity_of_namespaces, "measure-ns-0"),
        ],
    },
    Workload {
        name: "SchedulingGatedPodsWithPodAffinityImpactForThroughput/1Node_10000GatedPods",
        floor: Some(750),
        steps: &[
            Step::Nodes(1, shapes::large_node),
            unbound(10_000, shapes::gated_with_affinity, D),
            pods(20_000, shapes::of_the_service, D),
        ],
    },
    Workload {
        name: "TopologySpreading/5000Nodes_5000Pods",
        floor: Some(460),
        steps: &[
            Step::Nodes(5000, shapes::node_in_three_zones),
            pods(5000, shapes::pod, D),
            pods(5000, shapes::spread, D),
        ],
    },
    Workload {
        name: "PreferredTopologySpreading/5000Nodes_5000Pods",
        floor: Some(340),
        steps: &[
            Step::Nodes(5000, shapes::node_in_three_zones),
            pods(5000, shapes::pod, D),
            pods(5000, shapes::preferably_spread, D),
        ],
    },
    Workload {
        name: "DefaultTopologySpreading/5000Nodes_50000Pods",
        floor: Some(160),
        steps: &[
            Step::Nodes(5000, shapes::node_in_three_zones),
            Step::Namespaces("service", 1),
            Step::Objects("/api/v1/namespaces/service-0/services", shapes::service),
            pods(5000, shapes::pod, D),
            pods(50_000, shapes::of_the_service, "service-0"),
        ],
    },
    Workload {
        name: "SchedulingWithNodeInclusionPolicy/5000Nodes",
        floor: Some(270),
        steps: &[
            Step::Nodes(4000, shapes::node),
            Step::Nodes(1000, shapes::tainted_node),
            pods(4000, shapes::spread_over_untainted, D),
        ],
    },
    Workload {
        name: "SchedulingSecrets/5000Nodes_10000Pods",
        floor: Some(790),
        steps: &[
            Step::Nodes(5000, shapes::node),
            pods(1000, shapes::with_secret, D),
            pods(10_000, shapes::with_secret, D),
        ],
    },
    Workload {
        name: "SchedulingInTreePVs/5000Nodes_2000Pods",
        floor: Some(290),
        steps: &[
            Step::Nodes(5000, shapes::node),
            volumes(1000, Volume::InTree),
            volumes(2000, Volume::InTree),
        ],
    },
    Workload {
        name: "SchedulingMigratedInTreePVs/5000Nodes_5000Pods",
        floor: Some(100),
        steps: &[
            Step::Nodes(5000, shapes::node_with_migrated_driver),
            volumes(5000, Volume::InTree),
            volumes(5000, Volume::InTree),
        ],
    },
    Workload {
        name: "SchedulingCSIPVs/5000Nodes_5000Pods",
        floor: Some(100),
        steps: &[
            Step::Nodes(5000, shapes::node_with_driver),
            volumes(5000, Volume::Csi),
            volumes(5000, Volume::Csi),
        ],
    },
    Workload {
        name: "PreemptionAsync/5000Nodes",
        floor: Some(570),
        steps: &[
            Step::Nodes(5000, shapes::node),
            pods(20_000, shapes::low_priority, D),
            Step::Meanwhile(Meanwhile::Create(shapes::preempting), 200),
            pods(5000, shapes::pod, D),
        ],
    },
    Workload {
        name: "Unschedulable/5kNodes/100Init/10kPods",
        floor: Some(590),
        steps: &[
            Step::Nodes(5000, shapes::node),
            pods(100, shapes::pod, D),
            Step::Meanwhile(Meanwhile::Create(shapes::too_large), 200),
            pods(10_000, shapes::pod, D),
        ],
    },
    Workload {
        name: "Unschedulable/5kNodes/20kInit/10kPods",
        floor: Some(600),
        steps: &[
            Step::Nodes(5000, shapes::node),
            pods(20_000, shapes::pod, D),
            Step::Meanwhile(Meanwhile::Create(shapes::too_large), 200),
            pods(10_000, shapes::pod, D),
        ],
    },
];

/// Returns the workloads whose names contain one of these words; all if there are no words.
pub fn chosen(words: &[String]) -> Vec<&'static Workload> {
    let wanted = |w: &&Workload| words.is_empty() || words.iter().any(|word| w.name.contains(word.as_str()));
    ALL.iter().filter(wanted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_ends_with_pods_of_one_namespace_that_get_bound() {
        for workload in ALL {
            let Some(Step::Pods(measured)) = workload.steps.last() else { panic!("{}", workload.name) };
            assert!(measured.bound && measured.namespace.1 == 1, "{}", workload.name);
        }
        assert_eq!(chosen(&["Basic/".to_owned()]).len(), 3);
        assert_eq!(chosen(&[]).len(), ALL.len());
    }
}
