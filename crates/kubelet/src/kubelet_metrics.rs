//! The kubelet's metrics of pods and containers, with upstream's names.

use std::time::Duration;

use knarr_apimachinery::metric_families;
use knarr_apimachinery::metrics::{Kind, Registry};

use crate::pod::ContainerKind;

/// The default buckets of Prometheus' clients, which upstream uses.
pub const SECONDS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const POD_START: &[f64] = &[
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0,
    480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];

metric_families! {
    PodStart, Kind::Histogram(POD_START), "kubelet_pod_start_duration_seconds", [],
        "[ALPHA] How long it takes from when a pod is seen here until it runs.";
    PodWorker, Kind::Histogram(SECONDS), "kubelet_pod_worker_duration_seconds", ["operation_type"],
        "[ALPHA] How long a pass over a pod takes, by what it does: create, sync, kill or terminated.";
    StartedPods, Kind::Counter, "kubelet_started_pods_total", [],
        "[ALPHA] Sandboxes of pods that were to be made.";
    StartedPodsErrors, Kind::Counter, "kubelet_started_pods_errors_total", [],
        "[ALPHA] Sandboxes of pods that could not be made.";
    StartedUserNamespacedPods, Kind::Counter, "kubelet_started_user_namespaced_pods_total", [],
        "[ALPHA] Sandboxes that were to be made of pods with a user namespace of their own.";
    StartedUserNamespacedPodsErrors, Kind::Counter, "kubelet_started_user_namespaced_pods_errors_total", [],
        "[ALPHA] Pods with a user namespace of their own that could not be started with their sandbox.";
    StartedContainers, Kind::Counter, "kubelet_started_containers_total", ["container_type"],
        "[ALPHA] Containers that were to be started.";
    StartedContainersErrors, Kind::Counter, "kubelet_started_containers_errors_total", ["container_type", "code"],
        "[ALPHA] Containers that could not be started, by the reason.";
}

pub struct KubeletMetrics(Registry);

impl Default for KubeletMetrics {
    fn default() -> Self {
        let registry = Registry::new(FAMILIES);
        for (metric, labels) in [
            (Metric::StartedPods, &[][..]),
            (Metric::StartedPodsErrors, &[][..]),
            (Metric::StartedUserNamespacedPods, &[][..]),
            (Metric::StartedUserNamespacedPodsErrors, &[][..]),
            (Metric::StartedContainers, &["container"][..]),
        ] {
            registry.add(metric as usize, labels, 0.0);
        }
        Self(registry)
    }
}

fn container_type(kind: ContainerKind) -> &'static str {
    match kind {
        ContainerKind::Init => "init_container",
        ContainerKind::Main => "container",
        ContainerKind::Ephemeral => "ephemeral_container",
    }
}

impl KubeletMetrics {
    pub fn pod_runs_after(&self, took: Duration) {
        self.0.record(Metric::PodStart as usize, &[], took.as_secs_f64());
    }

    pub fn passed(&self, operation: &str, took: Duration) {
        self.0.record(Metric::PodWorker as usize, &[operation], took.as_secs_f64());
    }

    pub fn starts_pod(&self) {
        self.0.add(Metric::StartedPods as usize, &[], 1.0);
    }

    pub fn failed_pod(&self) {
        self.0.add(Metric::StartedPodsErrors as usize, &[], 1.0);
    }

    /// Records that a sandbox with a user namespace and its containers were to be started; `failed` if any of that
    /// failed.
    pub fn starts_user_namespaced_pod(&self, failed: bool) {
        self.0.add(Metric::StartedUserNamespacedPods as usize, &[], 1.0);
        if failed {
            self.0.add(Metric::StartedUserNamespacedPodsErrors as usize, &[], 1.0);
        }
    }

    pub fn starts_container(&self, kind: ContainerKind) {
        self.0.add(Metric::StartedContainers as usize, &[container_type(kind)], 1.0);
    }

    pub fn failed_container(&self, kind: ContainerKind, reason: &str) {
        self.0.add(Metric::StartedContainersErrors as usize, &[container_type(kind), reason], 1.0);
    }

    pub fn render(&self) -> String {
        self.0.render()
    }
}
