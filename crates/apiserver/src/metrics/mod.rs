//! Metrics under upstream's names, in the text format of Prometheus: a table of families, and their series.

mod families;
mod process;
mod requests;
mod storage;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use families::FAMILIES;
pub use families::Metric;
pub use requests::Observed;
pub use storage::MeteredStore;

/// One line of the table.
pub struct Family {
    pub name: &'static str,
    pub help: &'static str,
    pub kind: Kind,
    /// In alphabetical order.
    pub labels: &'static [&'static str],
}

#[derive(Clone, Copy)]
pub enum Kind {
    Counter,
    Gauge,
    /// With the upper bounds of its buckets.
    Histogram(&'static [f64]),
}

/// Series of one family; more are not kept.
const MAX_SERIES: usize = 20_000;
/// Between the label values of a series' key.
const SEPARATOR: char = '\u{1f}';

#[derive(Clone, Default)]
struct Series {
    value: f64,
    count: u64,
    buckets: Vec<u64>,
}

/// All families with their series.
pub struct Metrics(Vec<Mutex<BTreeMap<String, Series>>>);

impl Default for Metrics {
    fn default() -> Self {
        Self(FAMILIES.iter().map(|_| Mutex::default()).collect())
    }
}

impl Metrics {
    fn change(&self, metric: Metric, labels: &[&str], change: impl FnOnce(&mut Series, &Family)) {
        let at = metric as usize;
        let (Some(family), Some(series)) = (FAMILIES.get(at), self.0.get(at)) else { return };
        debug_assert_eq!(labels.len(), family.labels.len(), "{}", family.name);
        let mut key = String::with_capacity(labels.iter().map(|l| l.len() + 1).sum());
        for (n, label) in labels.iter().enumerate() {
            if n > 0 {
                key.push(SEPARATOR);
            }
            key.push_str(label);
        }
        let mut series = series.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(one) = series.get_mut(&key) {
            return change(one, family);
        }
        if series.len() < MAX_SERIES {
            change(series.entry(key).or_default(), family);
        }
    }

    /// Counts up a counter, or moves a gauge.
    pub fn add(&self, metric: Metric, labels: &[&str], n: f64) {
        self.change(metric, labels, |series, _| series.value += n);
    }

    pub fn increment(&self, metric: Metric, labels: &[&str]) {
        self.add(metric, labels, 1.0);
    }

    /// Sets a gauge.
    pub fn set(&self, metric: Metric, labels: &[&str], value: f64) {
        self.change(metric, labels, |series, _| series.value = value);
    }

    /// Records an observation in a histogram.
    pub fn record(&self, metric: Metric, labels: &[&str], value: f64) {
        self.change(metric, labels, |series, family| {
            let Kind::Histogram(bounds) = family.kind else { return };
            series.buckets.resize(bounds.len(), 0);
            if let Some(bucket) = bounds.iter().position(|bound| value <= *bound) {
                series.buckets[bucket] += 1;
            }
            series.count += 1;
            series.value += value;
        });
    }

    /// Forgets all series of a family, before they are set anew.
    pub fn clear(&self, metric: Metric) {
        if let Some(series) = self.0.get(metric as usize) {
            series.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }

    /// The value of one series, for tests and for what depends on it.
    pub fn value(&self, metric: Metric, labels: &[&str]) -> f64 {
        let key = labels.join(&SEPARATOR.to_string());
        let series = self.0.get(metric as usize).map(|s| s.lock().unwrap_or_else(PoisonError::into_inner));
        series
            .and_then(|s| s.get(&key).map(|s| if s.count > 0 { s.count as f64 } else { s.value }))
            .unwrap_or(0.0)
    }

    /// Families that nothing was ever recorded in.
    pub fn untouched(&self) -> Vec<&'static str> {
        let empty = |(f, s): (&Family, &Mutex<BTreeMap<String, Series>>)| {
            s.lock().unwrap_or_else(PoisonError::into_inner).is_empty().then_some(f.name)
        };
        FAMILIES.iter().zip(&self.0).filter_map(empty).collect()
    }

    pub fn render(&self) -> String {
        let mut out = String::new();
        let mut order: Vec<usize> = (0..FAMILIES.len()).collect();
        order.sort_by_key(|at| FAMILIES[*at].name);
        for at in order {
            let series = self.0[at].lock().unwrap_or_else(PoisonError::into_inner).clone();
            if !series.is_empty() {
                render_family(&mut out, &FAMILIES[at], &series);
            }
        }
        out
    }
}

fn render_family(out: &mut String, family: &Family, all: &BTreeMap<String, Series>) {
    let Family { name, help, kind, labels } = family;
    let word = match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram(_) => "histogram",
    };
    // Writing to a String cannot fail.
    let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {word}\n");
    for (key, series) in all {
        let mut text = String::new();
        for (label, value) in labels.iter().zip(key.split(SEPARATOR)) {
            let escaped = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let comma = if text.is_empty() { "" } else { "," };
            let _ = write!(text, "{comma}{label}=\"{escaped}\"");
        }
        let braces = if text.is_empty() { String::new() } else { format!("{{{text}}}") };
        let Kind::Histogram(bounds) = kind else {
            let _ = writeln!(out, "{name}{braces} {}", series.value);
            continue;
        };
        let comma = if text.is_empty() { "" } else { "," };
        let mut sum = 0;
        for (bound, count) in bounds.iter().zip(&series.buckets) {
            sum += count;
            let _ = writeln!(out, "{name}_bucket{{{text}{comma}le=\"{bound}\"}} {sum}");
        }
        let _ = writeln!(out, "{name}_bucket{{{text}{comma}le=\"+Inf\"}} {}", series.count);
        let _ = writeln!(out, "{name}_sum{braces} {}", series.value);
        let _ = writeln!(out, "{name}_count{braces} {}", series.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_have_sorted_labels_and_their_own_names() {
        let mut names: Vec<_> = FAMILIES.iter().map(|f| f.name).collect();
        for family in FAMILIES {
            assert!(family.labels.is_sorted(), "{}", family.name);
            if let Kind::Histogram(bounds) = family.kind {
                assert!(bounds.is_sorted() && !bounds.is_empty(), "{}", family.name);
            }
        }
        names.sort_unstable();
        let before = names.len();
        names.dedup();
        assert_eq!(names.len(), before);
    }

    #[test]
    fn renders_series() {
        let metrics = Metrics::default();
        metrics.increment(Metric::AuthenticationAttempts, &["success"]);
        metrics.increment(Metric::AuthenticationAttempts, &["success"]);
        metrics.record(Metric::AuthenticationDuration, &["a\"b"], 0.3);
        let text = metrics.render();
        for expected in [
            "# TYPE authentication_attempts counter\n",
            "authentication_attempts{result=\"success\"} 2\n",
            "authentication_duration_seconds_bucket{result=\"a\\\"b\",le=\"0.256\"} 0\n",
            "authentication_duration_seconds_bucket{result=\"a\\\"b\",le=\"0.512\"} 1\n",
            "authentication_duration_seconds_count{result=\"a\\\"b\"} 1\n",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
        assert_eq!(metrics.value(Metric::AuthenticationAttempts, &["success"]), 2.0);
        assert!(!metrics.untouched().contains(&"authentication_attempts"));
    }
}
