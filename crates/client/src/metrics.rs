//! The process's metrics of work queues and of calls to other servers, under upstream's names.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::Duration;

use knarr_apimachinery::metrics::{Family, Kind, Registry};

/// The bounds of the buckets in seconds: from 10 nanoseconds, by factors of ten.
const BOUNDS: [f64; 10] = [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0];

/// A histogram of durations in seconds, updated without a lock.
#[derive(Default)]
struct Seconds {
    buckets: [AtomicU64; BOUNDS.len()],
    count: AtomicU64,
    sum_nanos: AtomicU64,
}

/// The values of a histogram.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Histogram {
    buckets: [u64; BOUNDS.len()],
    pub count: u64,
    pub sum: f64,
}

impl Seconds {
    fn record(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        if let Some(at) = BOUNDS.iter().position(|bound| seconds <= *bound) {
            self.buckets[at].fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.sum_nanos.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn now(&self) -> Histogram {
        let mut buckets = [0; BOUNDS.len()];
        for (to, from) in buckets.iter_mut().zip(&self.buckets) {
            *to = from.load(Ordering::Relaxed);
        }
        let sum = self.sum_nanos.load(Ordering::Relaxed) as f64 / 1e9;
        Histogram { buckets, count: self.count.load(Ordering::Relaxed), sum }
    }
}

/// The counters of one queue.
#[derive(Default)]
pub struct QueueCounts {
    adds: AtomicU64,
    retries: AtomicU64,
    waits: Seconds,
    works: Seconds,
}

impl QueueCounts {
    /// Counts a key that was added.
    pub fn added(&self) {
        self.adds.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a key that was added with a back-off.
    pub fn retried(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    /// Records how long a key waited until it was taken.
    pub fn waited(&self, took: Duration) {
        self.waits.record(took);
    }

    /// Records how long a key was processed.
    pub fn worked(&self, took: Duration) {
        self.works.record(took);
    }

    /// Returns the counters, with the number of waiting keys, the total time of all processing in progress, and the
    /// longest one.
    pub fn snapshot(&self, depth: usize, unfinished: Duration, longest: Duration) -> Snapshot {
        Snapshot {
            depth: depth as u64,
            adds: self.adds.load(Ordering::Relaxed),
            retries: self.retries.load(Ordering::Relaxed),
            unfinished: unfinished.as_secs_f64(),
            longest: longest.as_secs_f64(),
            waits: self.waits.now(),
            works: self.works.now(),
        }
    }
}

/// The values of a queue; times are in seconds.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Snapshot {
    pub depth: u64,
    pub adds: u64,
    pub retries: u64,
    pub unfinished: f64,
    pub longest: f64,
    pub waits: Histogram,
    pub works: Histogram,
}

impl Snapshot {
    fn add(&mut self, other: &Self) {
        self.depth += other.depth;
        self.adds += other.adds;
        self.retries += other.retries;
        self.unfinished += other.unfinished;
        self.longest = self.longest.max(other.longest);
        for (into, from) in [(&mut self.waits, &other.waits), (&mut self.works, &other.works)] {
            into.buckets.iter_mut().zip(&from.buckets).for_each(|(a, b)| *a += b);
            into.count += from.count;
            into.sum += from.sum;
        }
    }
}

/// A queue whose metrics can be exported.
pub trait Observed: Send + Sync {
    fn snapshot(&self) -> Snapshot;
}

/// The existing queues, by the name of their worker.
static QUEUES: Mutex<Vec<(&'static str, Weak<dyn Observed>)>> = Mutex::new(Vec::new());

/// Exports a queue's metrics until it is dropped; `worker` is the controller that works on it.
pub fn watch_queue<Q: Observed + 'static>(worker: &'static str, queue: &Arc<Q>) {
    let queue: Weak<dyn Observed> = Arc::downgrade(queue) as _;
    let mut queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
    queues.retain(|(_, queue)| queue.strong_count() > 0);
    queues.push((queue_name(worker), queue));
}

/// Upstream's name for the queue of a controller: mostly the controller's name without the last word.
fn queue_name(worker: &'static str) -> &'static str {
    match worker {
        "available-condition" => "RemoteAvailabilityController",
        "device-taint-eviction-controller" => "device-taint-eviction-controller",
        "bootstrap-signer-controller" => "bootstrap_signer_queue",
        "clusterrole-aggregation-controller" => "ClusterRoleAggregator",
        "endpoints-controller" => "endpoint",
        "endpointslice-controller" => "endpoint_slice",
        "endpointslice-mirroring-controller" => "endpoint_slice_mirroring",
        "ephemeral-volume-controller" => "ephemeral_volume",
        "garbage-collector-controller" => "garbage_collector_attempt_to_delete",
        "horizontal-pod-autoscaler-controller" => "horizontalpodautoscaler",
        "persistentvolume-expander-controller" => "volume_expand",
        "resourceclaim-controller" => "resource_claim",
        "ttl-controller" => "ttlcontroller",
        "storage-version-migrator-controller" => "storage-version-migrator-controller",
        "node-lifecycle-controller" => "node_lifecycle_controller_pods",
        "persistentvolume-binder-claims" => "claims",
        "persistentvolume-binder-volumes" => "volumes",
        "persistentvolume-protection-controller" => "pvprotection",
        "persistentvolumeclaim-protection-controller" => "pvcprotection",
        "replicationcontroller-controller" => "replicationmanager",
        "resourcequota-controller" => "resourcequota_primary",
        "root-ca-certificate-publisher-controller" => "root_ca_cert_publisher",
        "service-cidr-controller" => "ipaddresses",
        "serviceaccount-token-controller" => "serviceaccount_tokens_service",
        "taint-eviction-controller" => "noexec_taint_pod",
        "token-cleaner-controller" => "token_cleaner",
        "ttl-after-finished-controller" => "ttl_jobs_to_delete",
        "validatingadmissionpolicy-status-controller" => "validatingadmissionpolicy-status",
        "volumeattributesclass-protection-controller" => "vacprotection",
        name if name.starts_with("certificatesigningrequest-") => "certificate",
        name => name.strip_suffix("-controller").unwrap_or(name),
    }
}

const CALL_SECONDS: &[f64] = &[0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
const CALL_FAMILIES: &[Family] = &[
    Family {
        name: "rest_client_requests_total",
        help: "Requests to other servers by method, host and status code.",
        kind: Kind::Counter,
        labels: &["code", "method", "host"],
    },
    Family {
        name: "rest_client_request_duration_seconds",
        help: "Latency of requests to other servers by verb and host, in seconds.",
        kind: Kind::Histogram(CALL_SECONDS),
        labels: &["verb", "host"],
    },
    Family {
        name: "dynamic_resource_allocation_resourceclaim_creates_total",
        help: "ResourceClaims that were to be created for others, by outcome, admin access, and owner.",
        kind: Kind::Counter,
        labels: &["status", "admin_access", "owner_api_group", "owner_api_kind"],
    },
    Family {
        name: "leader_election_master_status",
        help: "Whether this process holds a lease, 1, or stands by, 0.",
        kind: Kind::Gauge,
        labels: &["name"],
    },
    Family {
        name: "reflector_lists_total",
        help: "Lists by informers, by resource.",
        kind: Kind::Counter,
        labels: &["name"],
    },
    Family {
        name: "reflector_watches_total",
        help: "Watches by informers, by resource.",
        kind: Kind::Counter,
        labels: &["name"],
    },
    Family {
        name: "reflector_short_watches_total",
        help: "Watches by informers that ended within a second and without an event, by resource.",
        kind: Kind::Counter,
        labels: &["name"],
    },
    Family {
        name: "knarr_informer_handler_panics_total",
        help: "Panics of event handlers of informers.",
        kind: Kind::Counter,
        labels: &[],
    },
    Family {
        name: "knarr_task_restarts_total",
        help: "Restarts of long-running tasks that had panicked or ended unexpectedly, by task.",
        kind: Kind::Counter,
        labels: &["task"],
    },
];
static CALLS: LazyLock<Registry> = LazyLock::new(|| Registry::new(CALL_FAMILIES));

/// Counts a request to another server; `code` is `None` if there was no answer.
pub fn called(method: &http::Method, host: &str, code: Option<u16>, took: Duration) {
    let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
    CALLS.add(0, &[&code, method.as_str(), host], 1.0);
    CALLS.record(1, &[method.as_str(), host], took.as_secs_f64());
}

/// Counts an attempt to create a claim for a pod.
pub fn claim_created(created: bool, admin_access: bool) {
    let status = if created { "success" } else { "failure" };
    CALLS.add(2, &[status, if admin_access { "true" } else { "false" }, "", "Pod"], 1.0);
}

/// Records whether this process holds a lease.
pub fn leads(lease: &str, holds: bool) {
    CALLS.set(3, &[lease], if holds { 1.0 } else { 0.0 });
}

/// Counts a list by an informer; `resource` is the plural name.
pub fn listed(resource: &str) {
    CALLS.add(4, &[resource], 1.0);
}

/// Counts a watch by an informer.
pub fn watched(resource: &str) {
    CALLS.add(5, &[resource], 1.0);
}

/// Counts a watch that ended within a second and without an event.
pub fn short_watch(resource: &str) {
    CALLS.add(6, &[resource], 1.0);
}

/// Counts a panic of an informer's event handler.
pub fn handler_panicked() {
    CALLS.add(7, &[], 1.0);
}

/// Counts a restart of a supervised task.
pub fn task_restarted(task: &str) {
    CALLS.add(8, &[task], 1.0);
}

/// Returns all metrics in the text format of Prometheus.
pub fn render() -> String {
    let mut all: BTreeMap<&str, Snapshot> = BTreeMap::new();
    let queues: Vec<_> = {
        let queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
        queues.iter().filter_map(|(name, queue)| Some((*name, queue.upgrade()?))).collect()
    };
    for (name, queue) in queues {
        all.entry(name).or_default().add(&queue.snapshot());
    }
    let mut out = CALLS.render();
    render_queues(&mut out, &all);
    out
}

/// The name, type and help text of a metric, and its value for a queue.
type Plain = (&'static str, &'static str, &'static str, fn(&Snapshot) -> f64);

const PLAIN: [Plain; 5] = [
    ("adds_total", "counter", "Keys added to work queues.", |s| s.adds as f64),
    ("depth", "gauge", "Keys that wait in work queues.", |s| s.depth as f64),
    (
        "longest_running_processor_seconds",
        "gauge",
        "How long the longest processing under way has taken so far, in seconds.",
        |s| s.longest,
    ),
    ("retries_total", "counter", "Keys added again after a failure.", |s| s.retries as f64),
    (
        "unfinished_work_seconds",
        "gauge",
        "How long all processing under way has taken so far, in seconds.",
        |s| s.unfinished,
    ),
];

type Timed = (&'static str, &'static str, fn(&Snapshot) -> &Histogram);

const TIMED: [Timed; 2] = [
    ("queue_duration_seconds", "How long keys wait in work queues, in seconds.", |s| &s.waits),
    ("work_duration_seconds", "How long keys are processed, in seconds.", |s| &s.works),
];

fn render_queues(out: &mut String, all: &BTreeMap<&str, Snapshot>) {
    if all.is_empty() {
        return;
    }
    // Writing to a String cannot fail.
    for (family, kind, help, value) in PLAIN {
        let _ = write!(out, "# HELP workqueue_{family} {help}\n# TYPE workqueue_{family} {kind}\n");
        for (name, snapshot) in all {
            let _ = writeln!(out, "workqueue_{family}{{name=\"{name}\"}} {}", value(snapshot));
        }
    }
    for (family, help, histogram) in TIMED {
        let _ = write!(out, "# HELP workqueue_{family} {help}\n# TYPE workqueue_{family} histogram\n");
        for (name, snapshot) in all {
            let histogram = histogram(snapshot);
            let mut sum = 0;
            for (bound, count) in BOUNDS.iter().zip(&histogram.buckets) {
                sum += count;
                let _ = writeln!(out, "workqueue_{family}_bucket{{name=\"{name}\",le=\"{bound}\"}} {sum}");
            }
            let Histogram { count, sum, .. } = histogram;
            let _ = writeln!(out, "workqueue_{family}_bucket{{name=\"{name}\",le=\"+Inf\"}} {count}");
            let _ = writeln!(out, "workqueue_{family}_sum{{name=\"{name}\"}} {sum}");
            let _ = writeln!(out, "workqueue_{family}_count{{name=\"{name}\"}} {count}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct One(QueueCounts);

    impl Observed for One {
        fn snapshot(&self) -> Snapshot {
            self.0.snapshot(3, Duration::ZERO, Duration::ZERO)
        }
    }

    #[test]
    fn queues_are_shown_while_they_live() {
        let queue = Arc::new(One(QueueCounts::default()));
        queue.0.added();
        queue.0.worked(Duration::from_millis(2));
        watch_queue("tested-controller", &queue);
        let text = render();
        for expected in [
            "# TYPE workqueue_adds_total counter\n",
            "workqueue_adds_total{name=\"tested\"} 1\n",
            "workqueue_depth{name=\"tested\"} 3\n",
            "workqueue_work_duration_seconds_bucket{name=\"tested\",le=\"0.001\"} 0\n",
            "workqueue_work_duration_seconds_bucket{name=\"tested\",le=\"0.01\"} 1\n",
            "workqueue_work_duration_seconds_count{name=\"tested\"} 1\n",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
        drop(queue);
        assert!(!render().contains("\"tested\""));
    }

    #[test]
    fn calls_are_counted_by_their_answer() {
        called(&http::Method::GET, "example.com:1", Some(200), Duration::from_millis(1));
        called(&http::Method::GET, "example.com:1", None, Duration::from_millis(1));
        let text = render();
        assert!(
            text.contains("rest_client_requests_total{code=\"200\",method=\"GET\",host=\"example.com:1\"} 1")
        );
        assert!(text.contains("code=\"<error>\""));
        assert!(
            text.contains(
                "rest_client_request_duration_seconds_count{verb=\"GET\",host=\"example.com:1\"} 2"
            )
        );
    }

    #[test]
    fn queues_have_upstreams_names() {
        for (worker, name) in [
            ("deployment-controller", "deployment"),
            ("certificatesigningrequest-signing-controller", "certificate"),
            ("persistentvolume-binder-claims", "claims"),
            ("volumes", "volumes"),
        ] {
            assert_eq!(queue_name(worker), name);
        }
    }
}
