//! Metrics in the text format of Prometheus: a table of families, and their series.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One row of the table of families.
pub struct Family {
    pub name: &'static str,
    pub help: &'static str,
    pub kind: Kind,
    pub labels: &'static [&'static str],
}

#[derive(Clone, Copy)]
pub enum Kind {
    Counter,
    Gauge,
    /// The upper bounds of the buckets.
    Histogram(&'static [f64]),
}

/// Defines a table of families: the enum `Metric`, whose values are their indexes in the table, and `FAMILIES`. A row
/// is the variant's name, the kind, the metric's name, its labels and its HELP text.
#[macro_export]
macro_rules! metric_families {
    ($($id:ident, $kind:expr, $name:literal, [$($label:literal),*], $help:literal;)*) => {
        /// A family, by its index in the table.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Metric { $($id),* }

        pub const FAMILIES: &[$crate::metrics::Family] = &[
            $($crate::metrics::Family { name: $name, help: $help, kind: $kind, labels: &[$($label),*] }),*
        ];
    };
}

/// The maximum number of series of one family; further series are not recorded.
const MAX_SERIES: usize = 20_000;
/// Separates the label values in the key of a series.
const SEPARATOR: char = '\u{1f}';

#[derive(Clone, Default)]
struct Series {
    value: f64,
    count: u64,
    buckets: Vec<u64>,
}

impl Series {
    /// Creates a series in which nothing is recorded.
    fn of(family: &Family) -> Self {
        let buckets =
            if let Kind::Histogram(bounds) = family.kind { vec![0; bounds.len()] } else { Vec::new() };
        Self { buckets, ..Self::default() }
    }
}

type AllSeries = BTreeMap<String, Series>;

/// All families of a table with their series. Methods identify a family by its index in the table.
pub struct Registry {
    families: &'static [Family],
    series: Vec<Mutex<AllSeries>>,
}

fn key(labels: &[&str]) -> String {
    let mut key = String::with_capacity(labels.iter().map(|l| l.len() + 1).sum());
    for (n, label) in labels.iter().enumerate() {
        if n > 0 {
            key.push(SEPARATOR);
        }
        key.push_str(label);
    }
    key
}

fn lock(series: &Mutex<AllSeries>) -> MutexGuard<'_, AllSeries> {
    series.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registry {
    pub fn new(families: &'static [Family]) -> Self {
        Self { families, series: families.iter().map(|_| Mutex::default()).collect() }
    }

    fn change(&self, at: usize, labels: &[&str], change: impl FnOnce(&mut Series, &Family)) {
        let (Some(family), Some(series)) = (self.families.get(at), self.series.get(at)) else { return };
        debug_assert_eq!(labels.len(), family.labels.len(), "{}", family.name);
        let (key, mut series) = (key(labels), lock(series));
        if let Some(one) = series.get_mut(&key) {
            return change(one, family);
        }
        if series.len() < MAX_SERIES {
            change(series.entry(key).or_insert_with(|| Series::of(family)), family);
        }
    }

    /// Increments a counter, or changes a gauge.
    pub fn add(&self, at: usize, labels: &[&str], n: f64) {
        self.change(at, labels, |series, _| series.value += n);
    }

    /// Sets a gauge.
    pub fn set(&self, at: usize, labels: &[&str], value: f64) {
        self.change(at, labels, |series, _| series.value = value);
    }

    /// Records an observation in a histogram.
    pub fn record(&self, at: usize, labels: &[&str], value: f64) {
        self.change(at, labels, |series, family| {
            let Kind::Histogram(bounds) = family.kind else { return };
            if let Some(bucket) = bounds.iter().position(|bound| value <= *bound) {
                series.buckets[bucket] += 1;
            }
            series.count += 1;
            series.value += value;
        });
    }

    /// Sets a histogram that is counted elsewhere: the observations of each bucket (not cumulative), their total
    /// number, and their sum.
    pub fn set_histogram(&self, at: usize, labels: &[&str], buckets: &[u64], count: u64, sum: f64) {
        self.change(at, labels, |series, _| {
            series.buckets.iter_mut().zip(buckets).for_each(|(to, from)| *to = *from);
            (series.count, series.value) = (count, sum);
        });
    }

    /// Removes all series of a family, before they are set again.
    pub fn clear(&self, at: usize) {
        if let Some(series) = self.series.get(at) {
            lock(series).clear();
        }
    }

    /// Returns the value of one series (of a histogram: the number of observations), for tests and for code that
    /// depends on it.
    pub fn value(&self, at: usize, labels: &[&str]) -> f64 {
        let value = |s: &Series| if s.count > 0 { s.count as f64 } else { s.value };
        self.series.get(at).and_then(|series| lock(series).get(&key(labels)).map(value)).unwrap_or(0.0)
    }

    /// Returns the names of the families in which nothing was recorded.
    pub fn untouched(&self) -> Vec<&'static str> {
        let families = self.families.iter().zip(&self.series);
        families.filter(|(_, series)| lock(series).is_empty()).map(|(family, _)| family.name).collect()
    }

    /// Renders all families, sorted by name, with their series.
    pub fn render(&self) -> String {
        self.render_those(|_| true)
    }

    /// Renders the families that `wanted` selects.
    pub fn render_those(&self, wanted: impl Fn(&Family) -> bool) -> String {
        let mut out = String::new();
        let mut order: Vec<usize> =
            (0..self.families.len()).filter(|at| wanted(&self.families[*at])).collect();
        order.sort_by_key(|at| self.families[*at].name);
        for at in order {
            let (family, mut series) = (&self.families[at], lock(&self.series[at]).clone());
            // A family without labels is shown from the start, as zero.
            if family.labels.is_empty() {
                series.entry(String::new()).or_insert_with(|| Series::of(family));
            }
            if !series.is_empty() {
                render_family(&mut out, family, &series);
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

    const FAMILIES: &[Family] = &[
        Family { name: "b_total", help: "Bs.", kind: Kind::Counter, labels: &["kind"] },
        Family { name: "a_seconds", help: "As.", kind: Kind::Histogram(&[0.1, 1.0]), labels: &[] },
    ];

    #[test]
    fn families_are_shown_by_name_with_their_series() {
        let registry = Registry::new(FAMILIES);
        registry.add(0, &["x\"y"], 2.0);
        registry.record(1, &[], 0.5);
        registry.record(1, &[], 7.0);
        assert_eq!(
            registry.render(),
            "# HELP a_seconds As.\n# TYPE a_seconds histogram\na_seconds_bucket{le=\"0.1\"} 0\n\
            a_seconds_bucket{le=\"1\"} 1\na_seconds_bucket{le=\"+Inf\"} 2\na_seconds_sum 7.5\n\
            a_seconds_count 2\n# HELP b_total Bs.\n# TYPE b_total counter\nb_total{kind=\"x\\\"y\"} 2\n"
        );
        let fresh = Registry::new(FAMILIES).render();
        assert!(fresh.contains("a_seconds_bucket{le=\"0.1\"} 0\n") && fresh.ends_with("a_seconds_count 0\n"));
        assert_eq!((registry.value(0, &["x\"y"]), registry.value(1, &[])), (2.0, 2.0));
        registry.clear(0);
        assert_eq!(registry.untouched(), ["b_total"]);
        registry.set_histogram(1, &[], &[3, 1], 5, 9.5);
        let text = registry.render();
        assert!(text.contains("a_seconds_bucket{le=\"1\"} 4\na_seconds_bucket{le=\"+Inf\"} 5\n"), "{text}");
        assert!(text.contains("a_seconds_sum 9.5\na_seconds_count 5\n"), "{text}");
    }
}
