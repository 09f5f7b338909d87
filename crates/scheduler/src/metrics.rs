//! The scheduler's metrics, under upstream's names: the table of metrics, and the functions that record them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use knarr_apimachinery::clock::Clock;
use knarr_apimachinery::metrics::Kind::{Counter, Gauge, Histogram};
use knarr_apimachinery::metrics::Registry;

use knarr_client::events::EventRecorder;

use crate::framework::{Code, CycleState, Status};

/// The durations of plugins are recorded in one of this many cycles.
pub const SAMPLED: u64 = 10;

const ATTEMPT_SECONDS: &[f64] = &[
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384,
];
const WORKLOAD_SIZES: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];
const POINT_SECONDS: &[f64] =
    &[1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3, 3.2e-3, 6.4e-3, 0.0128, 0.0256, 0.0512, 0.1024, 0.2048];
const PLUGIN_SECONDS: &[f64] = &[
    1e-5, 1.5e-5, 2.25e-5, 3.375e-5, 5.0625e-5, 7.59375e-5, 1.139e-4, 1.709e-4, 2.563e-4, 3.844e-4, 5.767e-4,
    8.65e-4, 1.2975e-3, 1.946e-3, 2.919e-3, 4.379e-3, 6.568e-3, 9.853e-3, 0.014779, 0.022168,
];
const PREPARE_SECONDS: &[f64] =
    &[0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6, 819.2];
const SLI_SECONDS: &[f64] = &[
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84, 327.68,
    655.36, 1310.72, 2621.44, 5242.88,
];

const PREEMPTION_SECONDS: &[f64] = &[
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384,
    32.768,
];

knarr_apimachinery::metric_families! {
    Attempts, Counter, "scheduler_schedule_attempts_total", ["profile", "result"],
        "Attempts to schedule pods, by result.";
    AttemptDuration, Histogram(ATTEMPT_SECONDS), "scheduler_scheduling_attempt_duration_seconds",
        ["profile", "result"], "Time of an attempt, decision and binding, in seconds.";
    AlgorithmDuration, Histogram(ATTEMPT_SECONDS), "scheduler_scheduling_algorithm_duration_seconds", [],
        "Time of the decision, in seconds.";
    PointDuration, Histogram(POINT_SECONDS), "scheduler_framework_extension_point_duration_seconds",
        ["extension_point", "profile", "status"], "Time of all plugins of an extension point, in seconds.";
    PluginDuration, Histogram(PLUGIN_SECONDS), "scheduler_plugin_execution_duration_seconds",
        ["extension_point", "plugin", "status"], "Time of a plugin at an extension point, in seconds; sampled.";
    PendingPods, Gauge, "scheduler_pending_pods", ["queue"], "Waiting pods, by where in the queue they are.";
    IncomingPods, Counter, "scheduler_queue_incoming_pods_total", ["event", "queue"],
        "Pods that came into a part of the queue, by what brought them there.";
    IncomingEntities, Counter, "scheduler_queue_incoming_entities_total", ["event", "queue", "type"],
        "Pods that are in no group, and groups, that came into a part of the queue, by what brought them there.";
    InFlightEvents, Gauge, "scheduler_inflight_events", ["event"],
        "Events kept for pods that are being scheduled.";
    HintDuration, Histogram(PLUGIN_SECONDS), "scheduler_queueing_hint_execution_duration_seconds",
        ["event", "hint", "plugin"], "Time of a plugin's answer whether an event helps a pod, in seconds.";
    EventHandling, Histogram(POINT_SECONDS), "scheduler_event_handling_duration_seconds", ["event"],
        "Time to take in a change of the cluster, in seconds.";
    Evaluations, Counter, "scheduler_plugin_evaluation_total", ["extension_point", "plugin", "profile"],
        "Attempts to schedule pods in which a plugin had a say.";
    ScheduledAfterFlush, Counter, "scheduler_pod_scheduled_after_flush_total", [],
        "Pods bound after they had been tried again because of the time alone.";
    SliDuration, Histogram(SLI_SECONDS), "scheduler_pod_scheduling_sli_duration_seconds", ["attempts"],
        "Time from a pod's first attempt until it is bound, in seconds.";
    PodAttempts, Histogram(&[1.0, 2.0, 4.0, 8.0, 16.0]), "scheduler_pod_scheduling_attempts", [],
        "Attempts until a pod was bound.";
    PreemptionAttempts, Counter, "scheduler_preemption_attempts_total", [], "Attempts to make room.";
    PreemptionVictims, Histogram(&[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]), "scheduler_preemption_victims", [],
        "Pods removed to make room for one.";
    PreemptionExecutions, Counter, "scheduler_preemption_goroutines_execution_total", ["result"],
        "Removals of victims, by result.";
    PreemptionRemoval, Histogram(SLI_SECONDS), "scheduler_preemption_goroutines_duration_seconds", ["result"],
        "Time of a removal of victims, in seconds.";
    PreemptionEvaluation, Histogram(PREEMPTION_SECONDS), "scheduler_preemption_evaluation_duration_seconds",
        ["preemptor", "result"], "Time until it was known who is to leave, in seconds.";
    PreemptionExecution, Histogram(PREEMPTION_SECONDS), "scheduler_preemption_execution_duration_seconds",
        ["preemptor", "result"], "Time until all victims were told to leave, in seconds.";
    PreemptionViolations, Counter, "scheduler_preemption_pdb_violations_total", ["preemptor"],
        "Victims that a disruption budget would have kept.";
    PermitWait, Histogram(ATTEMPT_SECONDS), "scheduler_permit_wait_duration_seconds", ["result"],
        "Time that pods waited for permission, in seconds.";
    CacheSize, Gauge, "scheduler_cache_size", ["type"], "Nodes, pods and assumed pods in the cache.";
    UnschedulablePods, Gauge, "scheduler_unschedulable_pods", ["plugin", "profile"],
        "Pods that wait because of a plugin.";
    GroupAttempts, Counter, "scheduler_podgroup_schedule_attempts_total", ["profile", "result"],
        "Attempts to schedule pod groups, by result.";
    GroupAttemptDuration, Histogram(ATTEMPT_SECONDS), "scheduler_podgroup_scheduling_attempt_duration_seconds",
        ["profile", "result"], "Time of an attempt to schedule a pod group, in seconds.";
    GroupAlgorithmDuration, Histogram(ATTEMPT_SECONDS),
        "scheduler_podgroup_scheduling_algorithm_duration_seconds", [],
        "Time of the decision on a pod group, in seconds.";
    GroupPreemptionAttempts, Counter, "scheduler_workload_preemption_attempts_total", ["result"],
        "Attempts to make room for pod groups, by result.";
    GroupPreemptionVictims, Histogram(WORKLOAD_SIZES), "scheduler_workload_preemption_victims", [],
        "Pods removed to make room for a pod group.";
    GroupDisruptions, Histogram(WORKLOAD_SIZES), "scheduler_preemption_workload_disruptions", ["preemptor"],
        "Pod groups, and pods of groups that leave one by one, removed to make room.";
    QueuedEntities, Gauge, "scheduler_queued_entities", ["queue", "type"],
        "Waiting pods that are in no group, and waiting groups, by where in the queue they are.";
    AvoidedNodes, Gauge, "knarr_scheduler_avoided_nodes", [], "Nodes on which pods fail to start.";
    BreakerTrips, Counter, "knarr_scheduler_breaker_trips_total", [], "Times that a node came to be avoided.";
    HeldWorkloads, Gauge, "knarr_scheduler_held_workloads", [], "Workloads held back.";
    WorkloadHolds, Counter, "knarr_scheduler_workload_holds_total", [],
        "Times that a workload came to be held back.";
    BindingConditions, Counter, "scheduler_dra_bindingconditions_allocations_total", ["driver", "profile", "status"],
        "Allocations of devices that have to be prepared, by how that went.";
    BindingConditionsWait, Histogram(PREPARE_SECONDS), "scheduler_dra_bindingconditions_wait_duration_seconds",
        ["driver", "profile", "status"], "Time that pods waited for their devices to be prepared, in seconds.";
    Goroutines, Gauge, "scheduler_goroutines", ["operation"], "Tasks under way, by what they do.";
}

/// The scheduler's own registry.
pub struct Metrics {
    registry: Registry,
    clock: Arc<dyn Clock>,
    cycles: AtomicU64,
}

/// Upstream's name of a status code.
pub fn code_name(code: Code) -> &'static str {
    match code {
        Code::Success => "Success",
        Code::Error => "Error",
        Code::Unschedulable => "Unschedulable",
        Code::UnschedulableAndUnresolvable => "UnschedulableAndUnresolvable",
        Code::Wait => "Wait",
        Code::Skip => "Skip",
        Code::Pending => "Pending",
    }
}

/// The metrics and the event recorder, which plugins reach through their catalog.
#[derive(Default)]
pub struct Measured(OnceLock<(Arc<Metrics>, EventRecorder)>);

impl Measured {
    /// Sets the metrics and the recorder; only the first call has an effect.
    pub fn set(&self, metrics: &Arc<Metrics>, recorder: &EventRecorder) {
        self.0.get_or_init(|| (Arc::clone(metrics), recorder.clone()));
    }

    /// The metrics and the recorder, once a scheduler has set them.
    pub fn get(&self) -> Option<&(Arc<Metrics>, EventRecorder)> {
        self.0.get()
    }
}

impl Metrics {
    /// Creates the scheduler's metrics, all zero.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { registry: Registry::new(FAMILIES), clock, cycles: AtomicU64::new(0) }
    }

    /// The monotonic time that durations are measured with.
    pub fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    /// Adds `n` to a counter.
    pub fn add(&self, metric: Metric, labels: &[&str], n: f64) {
        self.registry.add(metric as usize, labels, n);
    }

    /// Sets a gauge.
    pub fn set(&self, metric: Metric, labels: &[&str], value: f64) {
        self.registry.set(metric as usize, labels, value);
    }

    /// Removes all values of a metric.
    pub fn clear(&self, metric: Metric) {
        self.registry.clear(metric as usize);
    }

    /// Records an observation in a histogram.
    pub fn record(&self, metric: Metric, labels: &[&str], value: f64) {
        self.registry.record(metric as usize, labels, value);
    }

    /// Records the seconds since `start`.
    pub fn since(&self, metric: Metric, labels: &[&str], start: Duration) {
        self.record(metric, labels, self.now().saturating_sub(start).as_secs_f64());
    }

    /// Records the duration of an extension point.
    pub fn point(&self, point: &str, profile: &str, code: Code, start: Duration) {
        self.since(Metric::PointDuration, &[point, profile, code_name(code)], start);
    }

    /// Returns whether the cycle that begins records the durations of plugins: one in ten does, as upstream.
    pub fn samples(&self) -> bool {
        self.cycles.fetch_add(1, Ordering::Relaxed).is_multiple_of(SAMPLED)
    }

    /// Records the duration of one plugin at one extension point.
    pub fn plugin_since(&self, point: &str, plugin: &str, code: Code, start: Duration) {
        self.since(Metric::PluginDuration, &[point, plugin, code_name(code)], start);
    }

    /// Like [`Metrics::plugin_since`], but only in sampled cycles.
    pub fn sampled(&self, state: &CycleState, point: &str, plugin: &str, code: Code, start: Duration) {
        if state.sampled {
            self.plugin_since(point, plugin, code, start);
        }
    }

    /// Runs one plugin at one point and records how long it took.
    pub fn plugin(&self, point: &str, plugin: &str, run: impl FnOnce() -> Status) -> Status {
        let start = self.now();
        let status = run();
        self.plugin_since(point, plugin, status.code, start);
        status
    }

    /// The value of a metric, for tests.
    pub fn value(&self, metric: Metric, labels: &[&str]) -> f64 {
        self.registry.value(metric as usize, labels)
    }

    /// Returns all metrics in the text format of Prometheus.
    pub fn render(&self) -> String {
        self.registry.render()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_have_sorted_labels_and_rising_bounds() {
        for family in FAMILIES {
            assert!(family.labels.is_sorted(), "{}", family.name);
            assert!(family.name.starts_with("scheduler_") || family.name.starts_with("knarr_scheduler_"));
            if let Histogram(bounds) = family.kind {
                assert!(bounds.is_sorted() && !bounds.is_empty(), "{}", family.name);
            }
        }
    }
}
