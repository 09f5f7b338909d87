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
        "Looks at HorizontalPodAutoscalers.";
    HpaSeconds, Histogram(HPA_SECONDS), "horizontal_pod_autoscaler_controller_reconciliation_duration_seconds",
        ["action", "error"], "How long a look at a HorizontalPodAutoscaler takes, in seconds.";
    Hpas, Gauge, "horizontal_pod_autoscaler_controller_num_horizontal_pod_autoscalers", [],
        "HorizontalPodAutoscalers.";
    HpaDesired, Gauge, "horizontal_pod_autoscaler_controller_desired_replicas", ["namespace", "hpa_name"],
        "Pods that a HorizontalPodAutoscaler asks for.";
    NodeEvictions, Counter, "node_collector_evictions_total", ["zone"],
        "Nodes whose pods were told to leave because nobody hears of them.";
    TaintDeletions, Counter, "taint_eviction_controller_pod_deletions_total", [],
        "Pods deleted for taints of their nodes.";
    TaintDeletionSeconds, Histogram(EVICTION_SECONDS), "taint_eviction_controller_pod_deletion_duration_seconds", [],
        "Time from when a taint of a node took effect until the pod was deleted, in seconds.";
    ZoneHealth, Gauge, "node_collector_zone_health", ["zone"], "Ready nodes of each zone, in percent.";
    ZoneSize, Gauge, "node_collector_zone_size", ["zone"], "Nodes of each zone.";
    ZoneUnhealthy, Gauge, "node_collector_unhealthy_nodes_in_zone", ["zone"], "Nodes of each zone that are not ready.";
    JobSyncs, Counter, "job_controller_job_syncs_total", ["completion_mode", "result", "action"], "Looks at Jobs.";
    JobSyncSeconds, Histogram(SYNC_SECONDS), "job_controller_job_sync_duration_seconds",
        ["completion_mode", "result", "action"], "How long a look at a Job takes, in seconds.";
    JobsFinished, Counter, "job_controller_jobs_finished_total", ["completion_mode", "result", "reason"],
        "Jobs that have ended.";
    JobPodsFinished, Counter, "job_controller_job_pods_finished_total", ["completion_mode", "result"],
        "Pods that have ended and are counted.";
    JobFinishedIndexes, Counter, "job_controller_job_finished_indexes_total", ["status", "backoffLimit"],
        "Indexes that are done or given up.";
    ForcedDetaches, Counter, "attach_detach_controller_attachdetach_controller_forced_detaches", ["reason"],
        "Volumes taken from nodes that may still use them, by why: a time ran out, or the node is out of service.";
    PodGcDeletions, Counter, "pod_gc_collector_force_delete_pods_total", ["namespace", "reason"],
        "Pods that the pod garbage collector has deleted, by why.";
    PodGcErrors, Counter, "pod_gc_collector_force_delete_pod_errors_total", ["namespace", "reason"],
        "Pods that the pod garbage collector could not delete, by why.";
    CronJobSkew, Histogram(SKEW_SECONDS), "cronjob_controller_job_creation_skew_duration_seconds", [],
        "Time from when a CronJob was due until its Job was created, in seconds.";
    DeviceTaintEvictions, Counter, "device_taint_eviction_controller_pod_deletions_total", [],
        "Pods deleted for taints of their devices.";
    DeviceTaintEvictionSeconds, Histogram(EVICTION_SECONDS),
        "device_taint_eviction_controller_pod_deletion_duration_seconds", [],
        "Time from when a taint of a device took effect until the pod was deleted, in seconds.";
    EndpointsDesired, Gauge, "endpoint_slice_controller_endpoints_desired", [], "Endpoints in all EndpointSlices.";
    EndpointSlices, Gauge, "endpoint_slice_controller_num_endpoint_slices", [], "EndpointSlices.";
    EndpointSlicesDesired, Gauge, "endpoint_slice_controller_desired_endpoint_slices", [],
        "EndpointSlices that there would be if all were as full as can be.";
    EndpointSliceChanges, Counter, "endpoint_slice_controller_changes", ["operation"],
        "EndpointSlices created, updated and deleted.";
    EndpointSliceSyncs, Counter, "endpoint_slice_controller_syncs", ["result"],
        "Looks at Services: done, failed, or put off because earlier writes do not show yet.";
    EndpointsAdded, Histogram(ENDPOINTS), "endpoint_slice_controller_endpoints_added_per_sync", [],
        "Endpoints that a look at a Service added.";
    EndpointsRemoved, Histogram(ENDPOINTS), "endpoint_slice_controller_endpoints_removed_per_sync", [],
        "Endpoints that a look at a Service removed.";
    EndpointSlicesChanged, Histogram(SLICES), "endpoint_slice_controller_endpointslices_changed_per_sync",
        ["topology", "traffic_distribution"], "EndpointSlices that a look at a Service changed.";
    MirroredAdded, Histogram(ENDPOINTS), "endpoint_slice_mirroring_controller_endpoints_added_per_sync", [],
        "Endpoints that a look at Endpoints added to mirrored slices.";
    MirroredUpdated, Histogram(ENDPOINTS), "endpoint_slice_mirroring_controller_endpoints_updated_per_sync", [],
        "Endpoints that a look at Endpoints changed in mirrored slices.";
    MirroredRemoved, Histogram(ENDPOINTS), "endpoint_slice_mirroring_controller_endpoints_removed_per_sync", [],
        "Endpoints that a look at Endpoints removed from mirrored slices.";
    MirroredSkipped, Histogram(ENDPOINTS), "endpoint_slice_mirroring_controller_addresses_skipped_per_sync", [],
        "Addresses of Endpoints that are not mirrored, being too many or none.";
    MirroredChanges, Counter, "endpoint_slice_mirroring_controller_changes", ["operation"],
        "Mirrored EndpointSlices created, updated and deleted.";
    ServicesByTrafficDistribution, Gauge, "endpoint_slice_controller_services_count_by_traffic_distribution",
        ["traffic_distribution"], "Services that ask for a traffic distribution.";
    RetroactiveClasses, Counter, "retroactive_storageclass_total", [],
        "Claims without a class that were given the default one later.";
    RetroactiveClassErrors, Counter, "retroactive_storageclass_errors_total", [],
        "Claims that could not be given the default class later.";
    ResourceClaims, Gauge, "dynamic_resource_allocation_resource_claims", ["admin_access", "allocated", "source"],
        "ResourceClaims, by whether they are allocated, by admin access, and by what they were made from.";
}

static REGISTRY: LazyLock<Registry> = LazyLock::new(|| Registry::new(FAMILIES));

pub fn add(metric: Metric, labels: &[&str], n: f64) {
    REGISTRY.add(metric as usize, labels, n);
}

pub fn record(metric: Metric, labels: &[&str], value: f64) {
    REGISTRY.record(metric as usize, labels, value);
}

pub fn set(metric: Metric, labels: &[&str], value: f64) {
    REGISTRY.set(metric as usize, labels, value);
}

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
