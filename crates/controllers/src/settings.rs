//! What administrators set about controllers. The defaults are upstream's, as is the meaning of each.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

/// How many objects controllers work on at once unless it is set otherwise.
const WORKERS: [(&str, usize); 20] = [
    ("cronjob-controller", 5),
    ("daemonset-controller", 2),
    ("deployment-controller", 5),
    ("device-taint-eviction-controller", 8),
    ("endpoints-controller", 5),
    ("endpointslice-controller", 5),
    ("endpointslice-mirroring-controller", 5),
    ("ephemeral-volume-controller", 5),
    ("garbage-collector-controller", 20),
    ("horizontal-pod-autoscaler-controller", 5),
    ("job-controller", 5),
    ("namespace-controller", 10),
    ("replicaset-controller", 5),
    ("replicationcontroller-controller", 5),
    ("resourceclaim-controller", 50),
    ("resourcequota-controller", 5),
    ("serviceaccount-token-controller", 5),
    ("statefulset-controller", 5),
    ("ttl-after-finished-controller", 5),
    ("validatingadmissionpolicy-status-controller", 5),
];

/// The settings of all controllers.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// How many objects a controller works on at once, by the controller's name. Others have a number that cannot be set.
    pub workers: BTreeMap<&'static str, usize>,
    pub nodes: NodeSettings,
    pub autoscaler: AutoscalerSettings,
    /// Ended pods that are kept; none: all of them.
    pub terminated_pods_kept: Option<usize>,
    /// The longest life of issued certificates, and that of requests that ask for none.
    pub certificate_lifetime: Duration,
    /// Leaves volumes attached to nodes that do not answer until these are declared out of service.
    pub never_force_detach: bool,
    /// How many endpoints a slice holds at most, and how many a mirrored subset.
    pub max_endpoints_per_slice: usize,
    pub max_mirrored_per_subset: usize,
    /// How often all quotas are counted anew.
    pub quota_resync: Duration,
    /// How long a token in a Secret may lie unused.
    pub legacy_token_unused_for: Duration,
    pub recyclers: RecyclerSettings,
}

/// How volumes of each kind are emptied whose policy is Recycle.
#[derive(Debug, Clone, PartialEq)]
pub struct RecyclerSettings {
    pub host_path: Scrubbing,
    pub nfs: Scrubbing,
}

/// A pod that empties a volume, and how long it may take.
#[derive(Debug, Clone, PartialEq)]
pub struct Scrubbing {
    /// The pod, whose first volume is replaced by what is to be emptied. None: one that deletes all files.
    pub template: Option<Arc<Pod>>,
    pub minimum_seconds: i64,
    pub seconds_per_gi: i64,
}

/// When nodes count as lost, and how fast their pods are made to leave.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeSettings {
    /// How long a node may be silent.
    pub monitor_grace: Duration,
    /// The same for one that has not yet reported.
    pub startup_grace: Duration,
    /// Nodes tainted per second in a zone that is well or entirely down.
    pub eviction_rate: f64,
    /// The same in a large zone of which much is down; a small one is left alone then.
    pub secondary_eviction_rate: f64,
    /// The part of a zone from which on much of it is down.
    pub unhealthy_zone_threshold: f64,
    /// A zone with more nodes is large.
    pub large_cluster_size: usize,
}

/// How HorizontalPodAutoscalers judge.
#[derive(Debug, Clone, PartialEq)]
pub struct AutoscalerSettings {
    /// How often metrics are looked at.
    pub sync_period: Duration,
    /// How far from 1 a ratio may be without a change.
    pub tolerance: f64,
    /// For how long the highest recommendation holds against lower ones.
    pub downscale_stabilization: Duration,
    /// For this long after its start a pod's processor use counts only while it is ready.
    pub cpu_initialization: Duration,
    /// A pod that became unready within this time after its start was never ready.
    pub initial_readiness: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            workers: WORKERS.into(),
            nodes: NodeSettings::default(),
            autoscaler: AutoscalerSettings::default(),
            terminated_pods_kept: Some(12_500),
            certificate_lifetime: Duration::from_secs(365 * 86_400),
            never_force_detach: false,
            max_endpoints_per_slice: 100,
            max_mirrored_per_subset: 1000,
            quota_resync: Duration::from_secs(300),
            legacy_token_unused_for: Duration::from_secs(365 * 86_400),
            recyclers: RecyclerSettings::default(),
        }
    }
}

impl Default for RecyclerSettings {
    fn default() -> Self {
        let scrubbing = |minimum_seconds| Scrubbing { template: None, minimum_seconds, seconds_per_gi: 30 };
        Self { host_path: scrubbing(60), nfs: scrubbing(300) }
    }
}

impl Default for NodeSettings {
    fn default() -> Self {
        Self {
            monitor_grace: Duration::from_secs(50),
            startup_grace: Duration::from_secs(60),
            eviction_rate: 0.1,
            secondary_eviction_rate: 0.01,
            unhealthy_zone_threshold: 0.55,
            large_cluster_size: 50,
        }
    }
}

impl Default for AutoscalerSettings {
    fn default() -> Self {
        Self {
            sync_period: Duration::from_secs(15),
            tolerance: 0.1,
            downscale_stabilization: Duration::from_secs(300),
            cpu_initialization: Duration::from_secs(300),
            initial_readiness: Duration::from_secs(30),
        }
    }
}
