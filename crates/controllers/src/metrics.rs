//! The controllers' metrics, under upstream's names; those of their queues are the work queues' own.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use knarr_apimachinery::metrics::Kind::{Counter, Gauge, Histogram};
use knarr_apimachinery::metrics::Registry;

/// From 4 ms to 66 s, each twice the previous one.
const SYNC_SECONDS: &[f64] = &[
    0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384, 32.768,
    65.536,
];
/// From 1 ms to 16 s, each twice the previous one.
const HPA_SECONDS: &[f64] = &[
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384,
];
const SKEW_SECONDS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];
const EVICTION_SECONDS: &[f64] = &[0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 120.0, 180.0, 240.0];

const ENDPOINTS: &[f64] =
    &[2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0];
const SLICES: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

knarr_apimachinery::metric_families! {
    HpaReconciliations, Counter, "horizontal_pod_autoscaler_controller_reconciliations_total", ["action", "error"],
        "Number of reconciliations of HorizontalPodAutoscalers.";
    HpaSeconds, Histogram(HPA_SECONDS), "horizontal_pod_autoscaler_controller_reconciliation_duration_seconds",
        ["action", "error"], "Time to reconcile a HorizontalPodAutoscaler, in seconds.";
    Hpas, Gauge, "horizontal_pod_autoscaler_controller_num_horizontal_pod_autoscalers", [],
        "Number of HorizontalPodAutoscalers.";
    HpaDesired, Gauge, "horizontal_pod_autoscaler_controller_desired_replicas", ["namespace", "hpa_name"],
        "Number of pods that a HorizontalPodAutoscaler wants.";
    NodeEvictions, Counter, "node_collector_evictions_total", ["zone"],
        "Number of node evictions: nodes tainted because they are not ready or unreachable.";
    TaintDeletions, Counter, "taint_eviction_controller_pod_deletions_total", [],
        "Number of pods deleted because of taints of their nodes.";
    TaintDeletionSeconds, Histogram(EVICTION_SECONDS), "taint_eviction_controller_pod_deletion_duration_seconds", [],
        "Time from when a taint of a node took effect until the pod was deleted, in seconds.";
    ZoneHealth, Gauge, "node_collector_zone_health", ["zone"], "Ready nodes of each zone, in percent.";
    ZoneSize, Gauge, "node_collector_zone_size", ["zone"], "Number of nodes of each zone.";
    ZoneUnhealthy, Gauge, "node_collector_unhealthy_nodes_in_zone", ["zone"], "Number of unready nodes of each zone.";
    JobSyncs, Counter, "job_controller_job_syncs_total", ["completion_mode", "result", "action"],
        "Number of reconciliations of Jobs.";
    JobSyncSeconds, Histogram(SYNC_SECONDS), "job_controller_job_sync_duration_seconds",
        ["completion_mode", "result", "action"], "Time to reconcile a Job, in seconds.";
    JobsFinished, Counter, "job_controller_jobs_finished_total", ["completion_mode", "result", "reason"],
        "Number of finished Jobs.";
    JobPodsFinished, Counter, "job_controller_job_pods_finished_total", ["completion_mode", "result"],
        "Number of finished pods of Jobs that were counted.";
    JobFinishedIndexes, Counter, "job_controller_job_finished_indexes_total", ["status", "backoffLimit"],
        "Number of completion indexes that succeeded or failed.";
    ForcedDetaches, Counter, "attach_detach_controller_attachdetach_controller_forced_detaches", ["reason"],
        "Number of forced detaches of volumes, by reason: timeout, or out-of-service taint of the node.";
    PodGcDeletions, Counter, "pod_gc_collector_force_delete_pods_total", ["namespace", "reason"],
        "Number of pods deleted by the pod garbage collector, by reason.";
    PodGcErrors, Counter, "pod_gc_collector_force_delete_pod_errors_total", ["namespace", "reason"],
        "Number of pods that the pod garbage collector could not delete, by reason.";
    CronJobSkew, Histogram(SKEW_SECONDS), "cronjob_controller_job_creation_skew_duration_seconds", [],
        "Time from when a CronJob was due until its Job was created, in seconds.";
    DeviceTaintEvictions, Counter, "device_taint_eviction_controller_pod_deletions_total", [],
        "Number of pods deleted because of taints of their devices.";
    DeviceTaintEvictionSeconds, Histogram(EVICTION_SECONDS),
        "device_taint_eviction_controller_pod_deletion_duration_seconds", [],
        "Time from when a taint of a device took effect until the pod was deleted, in seconds.";
    EndpointsDesired, Gauge, "endpoint_slice_controller_endpoints_desired", [],
        "Number of endpoints in all EndpointSlices.";
    EndpointSlices, Gauge, "endpoint_slice_controller_num_endpoint_slices", [], "Number of EndpointSlices.";
    EndpointSlicesDesired, Gauge, "endpoint_slice_controller_desired_endpoint_slices", [],
        "Number of EndpointSlices with perfect packing of endpoints.";
    EndpointSliceChanges, Counter, "endpoint_slice_controller_changes", ["operation"],
        "Number of EndpointSlices created, updated and deleted.";
    EndpointSliceSyncs, Counter, "endpoint_slice_controller_syncs", ["result"],
        "Number of reconciliations of Services, by result: success, error, or stale (the informer lacks own writes).";
    EndpointsAdded, Histogram(ENDPOINTS), "endpoint_slice_controller_endpoints_added_per_sync", [],
        "Number of endpoints added in each reconciliation of a Service.";
    EndpointsRemoved, Histogram(ENDPOINTS), "endpoint_slice_controller_endpoints_removed_per_sync", [],
        "Number of endpoints removed in each reconciliation of a Service.";
    EndpointSlicesChanged, Histogram(SLICES), "endpoint_slice_controller_endpointslices_changed_per_sync",
        ["topology", "traffic_distribution"], "Number of EndpointSlices changed in each reconciliation of a Service.";
    MirroredAdded, Histogram(ENDPOINTS), "endpoint_slice_mirroring_controller_endpoints_added_per_sync", [],
        "Number of endpoints added to mirrored slices in each reconciliation.";
    MirroredUpdated, Histogram(ENDPOINTS), "endpoint_slice_mirroring_controller_endpoints_updated_per_sync", [],
        "Number of endpoints updated in mirrored slices in each reconciliation.";
    MirroredRemoved, Histogram(ENDPOINTS), "endpoint_slice_mirroring_controller_endpoints_removed_per_sync", [],
        "Number of endpoints removed from mirrored slices in each reconciliation.";
    MirroredSkipped, Histogram(ENDPOINTS), "endpoint_slice_mirroring_controller_addresses_skipped_per_sync", [],
        "Number of addresses that are not mirrored, because there are too many or they are invalid.";
    MirroredChanges, Counter, "endpoint_slice_mirroring_controller_changes", ["operation"],
        "Number of mirrored EndpointSlices created, updated and deleted.";
    ServicesByTrafficDistribution, Gauge, "endpoint_slice_controller_services_count_by_traffic_distribution",
        ["traffic_distribution"], "Number of Services with a traffic distribution.";
    RetroactiveClasses, Counter, "retroactive_storageclass_total", [],
        "Number of claims without a class that were assigned the default class later.";
    RetroactiveClassErrors, Counter, "retroactive_storageclass_errors_total", [],
        "Number of failures to assign the default class to a claim later.";
    ResourceClaims, Gauge, "dynamic_resource_allocation_resource_claims", ["admin_access", "allocated", "source"],
        "Number of ResourceClaims, by allocation, admin access and source.";
}

static REGISTRY: LazyLock<Registry> = LazyLock::new(|| Registry::new(FAMILIES));

/// Adds `n` to a counter or gauge.
pub fn add(metric: Metric, labels: &[&str], n: f64) {
    REGISTRY.add(metric as usize, labels, n);
}

/// Records a value in a histogram.
pub fn record(metric: Metric, labels: &[&str], value: f64) {
    REGISTRY.record(metric as usize, labels, value);
}

/// Sets a gauge.
pub fn set(metric: Metric, labels: &[&str], value: f64) {
    REGISTRY.set(metric as usize, labels, value);
}

/// Removes all label values of a metric.
pub fn clear(metric: Metric) {
    REGISTRY.clear(metric as usize);
}

type Measure = Box<dyn Fn() + Send + Sync>;

/// Callbacks that update gauges when the metrics are scraped, by their owner's name.
static AT_SCRAPE: Mutex<BTreeMap<&str, Measure>> = Mutex::new(BTreeMap::new());

/// Registers a callback to run at every scrape; it replaces an earlier one of the same name.
pub fn at_scrape(who: &'static str, measure: impl Fn() + Send + Sync + 'static) {
    AT_SCRAPE.lock().unwrap_or_else(PoisonError::into_inner).insert(who, Box::new(measure));
}

/// Renders all metrics in the text format of Prometheus.
pub fn render() -> String {
    AT_SCRAPE.lock().unwrap_or_else(PoisonError::into_inner).values().for_each(|measure| measure());
    REGISTRY.render()
}
