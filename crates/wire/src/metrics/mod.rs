//! Metrics under upstream's names, in the Prometheus text format: a table of families, and their series.

mod families;
mod process;
mod requests;

use knarr_apimachinery::metrics::Registry;
pub use knarr_apimachinery::metrics::{Family, Kind};

use families::FAMILIES;
pub use families::Metric;
pub use process::of_process;
pub use requests::Observed;

/// All families with their series.
pub struct Metrics(Registry);

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Self(Registry::new(FAMILIES));
        // Series that dashboards divide by exist from the start.
        for operation in ["create", "update"] {
            let evaluated = ["allow", "enforce", "privileged", "latest", operation, "pod", ""];
            metrics.add(Metric::PodSecurityEvaluations, &evaluated, 0.0);
            for resource in ["pod", "controller"] {
                metrics.add(Metric::PodSecurityExemptions, &[operation, resource, ""], 0.0);
            }
        }
        metrics
    }
}

impl Metrics {
    /// Increases a counter, or changes a gauge.
    pub fn add(&self, metric: Metric, labels: &[&str], n: f64) {
        self.0.add(metric as usize, labels, n);
    }

    pub fn increment(&self, metric: Metric, labels: &[&str]) {
        self.add(metric, labels, 1.0);
    }

    /// Sets a gauge.
    pub fn set(&self, metric: Metric, labels: &[&str], value: f64) {
        self.0.set(metric as usize, labels, value);
    }

    /// Records an observation in a histogram.
    pub fn record(&self, metric: Metric, labels: &[&str], value: f64) {
        self.0.record(metric as usize, labels, value);
    }

    /// Removes all series of a family before they are set again.
    pub fn clear(&self, metric: Metric) {
        self.0.clear(metric as usize);
    }

    /// Returns the value of one series, for tests and for code that depends on it.
    pub fn value(&self, metric: Metric, labels: &[&str]) -> f64 {
        self.0.value(metric as usize, labels)
    }

    /// Returns the families in which nothing was ever recorded.
    pub fn untouched(&self) -> Vec<&'static str> {
        self.0.untouched()
    }

    /// Returns the text of `/metrics`.
    pub fn render(&self) -> String {
        self.0.render_those(|family| !is_of_health(family))
    }

    /// Returns the text of `/metrics/slis`: the results of health checks, from which service levels are computed.
    pub fn render_health(&self) -> String {
        self.0.render_those(is_of_health)
    }
}

fn is_of_health(family: &Family) -> bool {
    [Metric::HealthCheck, Metric::HealthChecks].iter().any(|m| FAMILIES[*m as usize].name == family.name)
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
