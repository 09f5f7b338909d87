//! What the controllers count, under upstream's names, beside their queues.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use knarr_apimachinery::metrics::Kind::{Counter, Gauge, Histogram};
use knarr_apimachinery::metrics::{Family, Registry};

const SKEW_SECONDS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];
const EVICTION_SECONDS: &[f64] = &[0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 120.0, 180.0, 240.0];

macro_rules! families {
    ($($id:ident, $kind:expr, $name:literal, [$($label:literal),*], $help:literal;)*) => {
        /// A family, by its place in the table.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Metric { $($id),* }

        const FAMILIES: &[Family] = &[
            $(Family { name: $name, help: $help, kind: $kind, labels: &[$($label),*] }),*
        ];
    };
}

families! {
    CronJobSkew, Histogram(SKEW_SECONDS), "cronjob_controller_job_creation_skew_duration_seconds", [],
        "Time from when a CronJob was due until its Job was created, in seconds.";
    DeviceTaintEvictions, Counter, "device_taint_eviction_controller_pod_deletions_total", [],
        "Pods deleted for taints of their devices.";
    DeviceTaintEvictionSeconds, Histogram(EVICTION_SECONDS),
        "device_taint_eviction_controller_pod_deletion_duration_seconds", [],
        "Time from when a taint of a device took effect until the pod was deleted, in seconds.";
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

/// What is measured only when somebody asks, by who measures it.
static AT_SCRAPE: Mutex<BTreeMap<&str, Measure>> = Mutex::new(BTreeMap::new());

/// Measures at every scrape, in the place of what the same one measured before.
pub fn at_scrape(who: &'static str, measure: impl Fn() + Send + Sync + 'static) {
    AT_SCRAPE.lock().unwrap_or_else(PoisonError::into_inner).insert(who, Box::new(measure));
}

/// All of it in the text format of Prometheus.
pub fn render() -> String {
    AT_SCRAPE.lock().unwrap_or_else(PoisonError::into_inner).values().for_each(|measure| measure());
    REGISTRY.render()
}
