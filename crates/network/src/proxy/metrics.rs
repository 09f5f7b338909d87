//! Metrics of how long syncs of service rules take, and how long changes of endpoints take to be in force, with
//! upstream's names.
//!
//! Source: `k8s.io/kubernetes/pkg/proxy/metrics`, and `endpointschangetracker.go` beside it for what counts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use knarr_apimachinery::clock::Clock;
use knarr_apimachinery::metric_families;
use knarr_apimachinery::metrics::{Kind, Registry};

/// The annotation in which the slice's controller records when the change was triggered.
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";
const IP_FAMILY: &str = "IPv4";

/// Starts at 1 ms; each bound is twice the previous one.
const SYNC_SECONDS: &[f64] = &[
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384,
];
/// Half seconds, then seconds up to a minute, five seconds up to two minutes, and half minutes up to five.
const PROGRAMMING_SECONDS: &[f64] = &programming_seconds();

const fn programming_seconds() -> [f64; 80] {
    let mut bounds = [0.0; 80];
    (bounds[0], bounds[1]) = (0.25, 0.5);
    let (mut at, mut seconds) = (2, 1);
    while at < bounds.len() {
        bounds[at] = seconds as f64;
        seconds += match seconds {
            ..60 => 1,
            60..120 => 5,
            _ => 30,
        };
        at += 1;
    }
    bounds
}

metric_families! {
    Programming, Kind::Histogram(PROGRAMMING_SECONDS), "kubeproxy_network_programming_duration_seconds", ["ip_family"],
        "[ALPHA] How long it takes from a change of a Service or of a pod until the rules for it are in force.";
    Sync, Kind::Histogram(SYNC_SECONDS), "kubeproxy_sync_proxy_rules_duration_seconds", ["ip_family"],
        "[ALPHA] How long it takes to bring the service rules up to date.";
    LastSync, Kind::Gauge, "kubeproxy_sync_proxy_rules_last_timestamp_seconds", ["ip_family"],
        "[ALPHA] When the service rules were last brought up to date, in seconds since 1970.";
}

/// The metrics of one proxy.
pub struct ProxyMetrics {
    counted: Registry,
    clock: Arc<dyn Clock>,
    started: Timestamp,
    /// The slices of the last sync, by namespace and name.
    seen: Mutex<BTreeMap<SliceKey, Arc<EndpointSlice>>>,
}

type SliceKey = (String, String);

impl ProxyMetrics {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let started = clock.now();
        Self { counted: Registry::new(FAMILIES), clock, started, seen: Mutex::default() }
    }

    /// Records that a sync has ended, and its duration.
    pub(super) fn ended(&self, took: Duration) {
        self.counted.record(Metric::Sync as usize, &[IP_FAMILY], took.as_secs_f64());
    }

    /// Records that the rules of these slices, all that the proxy acts on, are in force. Only slices whose ports or
    /// endpoints changed count: the others have the trigger time of an older change.
    pub(super) fn in_force(&self, slices: &[Arc<EndpointSlice>]) {
        let now = self.clock.now();
        let seconds = |time: Timestamp| time.as_microsecond() as f64 / 1e6;
        self.counted.set(Metric::LastSync as usize, &[IP_FAMILY], seconds(now));
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut *seen);
        for slice in slices.iter() {
            let key = key(slice);
            let changed = before.get(&key).is_none_or(|old| is_changed(old, slice));
            seen.insert(key, Arc::clone(slice));
            // Changes from before the start do not count for this proxy.
            if changed && let Some(since) = triggered(slice).filter(|since| *since > self.started) {
                let took = seconds(now) - seconds(since);
                self.counted.record(Metric::Programming as usize, &[IP_FAMILY], took.max(0.0));
            }
        }
    }

    pub fn render(&self) -> String {
        self.counted.render()
    }
}

fn key(slice: &EndpointSlice) -> SliceKey {
    let meta = &slice.metadata;
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}

fn is_changed(old: &Arc<EndpointSlice>, new: &Arc<EndpointSlice>) -> bool {
    !Arc::ptr_eq(old, new) && (old.endpoints != new.endpoints || old.ports != new.ports)
}

fn triggered(slice: &EndpointSlice) -> Option<Timestamp> {
    let annotations = slice.metadata.annotations.as_ref()?;
    annotations.get(TRIGGER_TIME)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use knarr_client::clock::TokioClock;
    use serde_json::json;

    use super::*;

    fn slice(name: &str, triggered: &str, endpoint: &str) -> Arc<EndpointSlice> {
        let slice = json!({
            "metadata": {"name": name, "annotations": {TRIGGER_TIME: triggered}},
            "addressType": "IPv4", "endpoints": [{"addresses": [endpoint]}],
        });
        Arc::new(serde_json::from_value(slice).unwrap())
    }

    #[test]
    fn buckets_are_upstreams() {
        assert_eq!(PROGRAMMING_SECONDS[..4], [0.25, 0.5, 1.0, 2.0]);
        assert_eq!(PROGRAMMING_SECONDS[59..63], [58.0, 59.0, 60.0, 65.0]);
        assert_eq!(PROGRAMMING_SECONDS[72..], [115.0, 120.0, 150.0, 180.0, 210.0, 240.0, 270.0, 300.0]);
    }

    #[tokio::test(start_paused = true)]
    async fn changes_are_counted_once_they_are_in_force() {
        let clock = Arc::new(TokioClock::starting_at("2026-01-01T00:00:00Z".parse().unwrap()));
        let metrics = ProxyMetrics::new(clock);
        metrics.ended(Duration::from_millis(3));
        tokio::time::advance(Duration::from_secs(10)).await;
        let before = slice("a", "2025-12-31T23:59:59Z", "10.42.0.1");
        let first = slice("b", "2026-01-01T00:00:09.5Z", "10.42.0.2");
        let odd = slice("c", "yesterday", "10.42.0.3");
        metrics.in_force(&[before.clone(), first.clone(), odd]);
        let count = |text: &str, line: &str| assert!(text.contains(line), "{line}\n{text}");
        let (family, labels) = ("kubeproxy_network_programming_duration_seconds", "{ip_family=\"IPv4\"}");
        let text = metrics.render();
        count(&text, &format!("{family}_count{labels} 1\n"));
        count(&text, &format!("{family}_sum{labels} 0.5\n"));
        count(
            &text,
            "kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.004\"} 1\n",
        );
        count(&text, "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"} 1767225610\n");
        // The same slices again, and one that has changed meanwhile.
        tokio::time::advance(Duration::from_secs(1)).await;
        metrics.in_force(&[before, first, slice("c", "2026-01-01T00:00:09Z", "10.42.0.4")]);
        count(&metrics.render(), &format!("{family}_count{labels} 2\n"));
        count(&metrics.render(), &format!("{family}_sum{labels} 2.5\n"));
        // Somebody labels a slice long after its endpoints changed.
        tokio::time::advance(Duration::from_secs(3600)).await;
        metrics.in_force(&[slice("c", "2026-01-01T00:00:09Z", "10.42.0.4")]);
        count(&metrics.render(), &format!("{family}_count{labels} 2\n"));
    }
}
