//! Request metrics under upstream's names, in the text format of Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::http::request_info::RequestInfo;

/// Upper bounds of the latency buckets, in seconds, as upstream has them.
const BUCKETS: [f64; 27] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0,
    20.0, 30.0, 45.0, 60.0, 120.0, 300.0, 600.0, 3600.0,
];

#[derive(PartialEq, Eq, PartialOrd, Ord, Clone)]
struct Labels {
    verb: String,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    scope: &'static str,
    dry_run: &'static str,
}

impl Labels {
    fn text(&self) -> String {
        format!(
            "component=\"apiserver\",dry_run=\"{}\",group=\"{}\",resource=\"{}\",scope=\"{}\",subresource=\"{}\",verb=\"{}\",version=\"{}\"",
            self.dry_run, self.group, self.resource, self.scope, self.subresource, self.verb, self.version
        )
    }
}

#[derive(Default)]
struct Histogram {
    buckets: [u64; BUCKETS.len()],
    count: u64,
    sum: f64,
}

#[derive(Default)]
struct State {
    totals: BTreeMap<(Labels, u16), u64>,
    durations: BTreeMap<Labels, Histogram>,
}

/// Counters and latencies of all requests.
#[derive(Default)]
pub struct Metrics(Mutex<State>);

impl Metrics {
    /// Of a request for a served resource: others would make series without bound.
    pub fn observe(&self, info: &RequestInfo, dry_run: bool, code: u16, took: Duration) {
        let scope = if !info.name.is_empty() && info.verb != "list" {
            "resource"
        } else if info.namespace.is_empty() {
            "cluster"
        } else {
            "namespace"
        };
        let labels = Labels {
            verb: info.verb.to_ascii_uppercase(),
            group: info.group.clone(),
            version: info.version.clone(),
            resource: info.resource.clone(),
            subresource: info.subresource.clone(),
            scope,
            dry_run: if dry_run { "All" } else { "" },
        };
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *state.totals.entry((labels.clone(), code)).or_default() += 1;
        if info.verb == "watch" {
            return;
        }
        let seconds = took.as_secs_f64();
        let histogram = state.durations.entry(labels).or_default();
        histogram.count += 1;
        histogram.sum += seconds;
        for (bucket, bound) in histogram.buckets.iter_mut().zip(BUCKETS) {
            *bucket += u64::from(seconds <= bound);
        }
    }

    pub fn render(&self) -> String {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = write!(
            out,
            "# HELP apiserver_request_total Requests by verb, resource and HTTP code.\n# TYPE apiserver_request_total counter\n"
        );
        for ((labels, code), count) in &state.totals {
            let _ = writeln!(out, "apiserver_request_total{{code=\"{code}\",{}}} {count}", labels.text());
        }
        let _ = write!(
            out,
            "# HELP apiserver_request_duration_seconds Latency by verb and resource, without watches.\n# TYPE apiserver_request_duration_seconds histogram\n"
        );
        for (labels, histogram) in &state.durations {
            let text = labels.text();
            let name = "apiserver_request_duration_seconds";
            for (count, bound) in histogram.buckets.iter().zip(BUCKETS) {
                let _ = writeln!(out, "{name}_bucket{{{text},le=\"{bound}\"}} {count}");
            }
            let _ = writeln!(out, "{name}_bucket{{{text},le=\"+Inf\"}} {}", histogram.count);
            let _ = writeln!(out, "{name}_sum{{{text}}} {}", histogram.sum);
            let _ = writeln!(out, "{name}_count{{{text}}} {}", histogram.count);
        }
        out
    }
}
