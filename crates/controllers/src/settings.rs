//! The settings of the controllers. Defaults and meanings are upstream's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

/// How many objects each controller reconciles concurrently by default.
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
    /// How many objects a controller reconciles concurrently, by the controller's name. Controllers missing here have
    /// no such setting.
    pub workers: BTreeMap<&'static str, usize>,
    pub nodes: NodeSettings,
    pub autoscaler: AutoscalerSettings,
    /// How many ended pods are kept; `None` keeps all of them.
    pub terminated_pods_kept: Option<usize>,
    /// The maximum lifetime of issued certificates, also used for requests that ask for none.
    pub certificate_lifetime: Duration,
    /// Never detaches volumes from unresponsive nodes unless these have the out-of-service taint.
    pub never_force_detach: bool,
    /// How many endpoints a slice holds at most.
    pub max_endpoints_per_slice: usize,
    /// How many endpoints of a subset are mirrored at most.
    pub max_mirrored_per_subset: usize,
    /// How often all quotas are recalculated.
    pub quota_resync: Duration,
    /// How long an auto-generated token in a Secret may stay unused before it is cleaned up.
    pub legacy_token_unused_for: Duration,
    pub recyclers: RecyclerSettings,
}

/// How volumes with the reclaim policy Recycle are scrubbed, by volume type.
#[derive(Debug, Clone, PartialEq)]
pub struct RecyclerSettings {
    pub host_path: Scrubbing,
    pub nfs: Scrubbing,
}

/// A pod that scrubs a volume, and how long it may run.
#[derive(Debug, Clone, PartialEq)]
pub struct Scrubbing {
    /// The pod template, whose first volume is replaced by the one to scrub. `None` uses a pod that deletes all
    /// files.
    pub template: Option<Arc<Pod>>,
    pub minimum_seconds: i64,
    pub seconds_per_gi: i64,
}

/// When nodes count as unreachable, and how fast they are tainted.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeSettings {
    /// How long a node may go without a heartbeat.
    pub monitor_grace: Duration,
    /// How long a node that has not yet reported may go without a heartbeat.
    pub startup_grace: Duration,
    /// How many nodes are tainted per second in a zone that is healthy or fully disrupted.
    pub eviction_rate: f64,
    /// How many nodes are tainted per second in a large zone that is partially disrupted; in a small one none are.
    pub secondary_eviction_rate: f64,
    /// The fraction of unready nodes from which a zone counts as partially disrupted.
    pub unhealthy_zone_threshold: f64,
    /// A zone with more nodes than this is large.
    pub large_cluster_size: usize,
}

/// How HorizontalPodAutoscalers are evaluated.
#[derive(Debug, Clone, PartialEq)]
pub struct AutoscalerSettings {
    /// How often each autoscaler is evaluated.
    pub sync_period: Duration,
    /// How far the usage ratio may be from 1 without a change of replicas.
    pub tolerance: f64,
    /// The window in which the highest recommendation prevents scaling down below it.
    pub downscale_stabilization: Duration,
    /// For this long after a pod's start its CPU usage counts only while the pod is ready.
    pub cpu_initialization: Duration,
    /// A pod that became unready within this time after its start counts as never having been ready.
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
