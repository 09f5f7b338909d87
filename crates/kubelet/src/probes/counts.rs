//! The numbers of probe results, and the durations of probes: /metrics/probes.
//!
//! Names and labels are upstream's. As there, probes that could not be carried out are not counted.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::results::ProbeResult;
use super::state::ProbeKind;
use crate::kubelet_metrics::SECONDS;

/// The probe and its container.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Probed {
    pub uid: String,
    pub container: String,
    pub kind: ProbeKind,
    pub namespace: String,
    pub pod: String,
}

#[derive(Debug, Clone, Default)]
struct Count {
    successful: u64,
    failed: u64,
    buckets: [u64; SECONDS.len()],
    seconds: f64,
}

/// The counts; those of a probe are kept as long as its worker runs.
#[derive(Default)]
pub struct ProbeCounts(Mutex<BTreeMap<Probed, Count>>);

impl ProbeCounts {
    pub fn record(&self, of: &Probed, result: ProbeResult, took: Duration) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = all.entry(of.clone()).or_default();
        if result != ProbeResult::Success {
            count.failed += 1;
            return;
        }
        count.successful += 1;
        let seconds = took.as_secs_f64();
        count.seconds += seconds;
        if let Some(at) = SECONDS.iter().position(|bound| seconds <= *bound) {
            count.buckets[at] += 1;
        }
    }

    pub fn forget(&self, of: &Probed) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(of);
    }

    pub fn render(&self) -> String {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = String::new();
        if all.is_empty() {
            return out;
        }
        // Writing to a string cannot fail; Kubernetes' names need no escapes.
        let _ =
            writeln!(out, "# HELP prober_probe_duration_seconds [ALPHA] How long successful probes took.");
        let _ = writeln!(out, "# TYPE prober_probe_duration_seconds histogram");
        for (of, count) in all.iter().filter(|(_, count)| count.successful > 0) {
            let Probed { container, kind, namespace, pod, .. } = of;
            let labels = format!(
                "container=\"{container}\",namespace=\"{namespace}\",pod=\"{pod}\",probe_type=\"{kind}\""
            );
            let mut sum = 0;
            for (bound, n) in SECONDS.iter().zip(&count.buckets) {
                sum += n;
                let _ =
                    writeln!(out, "prober_probe_duration_seconds_bucket{{{labels},le=\"{bound}\"}} {sum}");
            }
            let total = count.successful;
            let _ = writeln!(out, "prober_probe_duration_seconds_bucket{{{labels},le=\"+Inf\"}} {total}");
            let _ = writeln!(out, "prober_probe_duration_seconds_sum{{{labels}}} {}", count.seconds);
            let _ = writeln!(out, "prober_probe_duration_seconds_count{{{labels}}} {total}");
        }
        let _ = writeln!(out, "# HELP prober_probe_total [BETA] Probes of containers, by how they ended.");
        let _ = writeln!(out, "# TYPE prober_probe_total counter");
        for (of, count) in all.iter() {
            let Probed { uid, container, kind, namespace, pod } = of;
            for (result, n) in [("failed", count.failed), ("successful", count.successful)] {
                if n > 0 {
                    let _ = writeln!(
                        out,
                        "prober_probe_total{{container=\"{container}\",namespace=\"{namespace}\",pod=\"{pod}\",\
                         pod_uid=\"{uid}\",probe_type=\"{kind}\",result=\"{result}\"}} {n}"
                    );
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_are_counted_by_their_end() {
        let counts = ProbeCounts::default();
        assert_eq!(counts.render(), "");
        let of = Probed {
            uid: "u".into(),
            container: "c".into(),
            kind: ProbeKind::Readiness,
            namespace: "n".into(),
            pod: "p".into(),
        };
        counts.record(&of, ProbeResult::Failure, Duration::ZERO);
        counts.record(&of, ProbeResult::Success, Duration::from_millis(20));
        counts.record(&of, ProbeResult::Success, Duration::from_secs(20));
        let text = counts.render();
        let labels = r#"container="c",namespace="n",pod="p""#;
        for line in [
            format!(
                "prober_probe_total{{{labels},pod_uid=\"u\",probe_type=\"Readiness\",result=\"failed\"}} 1"
            ),
            format!(
                "prober_probe_total{{{labels},pod_uid=\"u\",probe_type=\"Readiness\",result=\"successful\"}} 2"
            ),
            format!(
                "prober_probe_duration_seconds_bucket{{{labels},probe_type=\"Readiness\",le=\"0.025\"}} 1"
            ),
            format!(
                "prober_probe_duration_seconds_bucket{{{labels},probe_type=\"Readiness\",le=\"+Inf\"}} 2"
            ),
            format!("prober_probe_duration_seconds_sum{{{labels},probe_type=\"Readiness\"}} 20.02"),
        ] {
            assert!(text.lines().any(|l| l == line), "no {line} in\n{text}");
        }
        counts.forget(&of);
        assert_eq!(counts.render(), "");
    }
}
