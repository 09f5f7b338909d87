//! The metrics of admission, under upstream's names.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::Operation;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Admit,
    Validate,
}

const STEPS: [(Step, &str); 2] = [(Step::Admit, "admit"), (Step::Validate, "validate")];
const BUCKETS: [f64; 6] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5];
const WEBHOOK_BUCKETS: [f64; 8] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];
/// Larger status codes are recorded as this one.
const MAX_CODE: u16 = 600;

/// A lock-free histogram, because every write observes all plugins.
#[derive(Default)]
struct Histogram {
    buckets: [AtomicU64; BUCKETS.len()],
    count: AtomicU64,
    nanos: AtomicU64,
}

impl Histogram {
    fn observe(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        for (bucket, limit) in self.buckets.iter().zip(BUCKETS) {
            if seconds <= limit {
                bucket.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    fn write(&self, out: &mut String, name: &str, labels: &str) {
        let count = self.count.load(Ordering::Relaxed);
        if count == 0 {
            return;
        }
        let counts = self.buckets.iter().map(|b| b.load(Ordering::Relaxed));
        let seconds = Duration::from_nanos(self.nanos.load(Ordering::Relaxed)).as_secs_f64();
        write_histogram(out, name, labels, counts.zip(BUCKETS), count, seconds);
    }
}

fn write_histogram(
    out: &mut String,
    name: &str,
    labels: &str,
    buckets: impl Iterator<Item = (u64, f64)>,
    count: u64,
    seconds: f64,
) {
    for (value, limit) in buckets {
        let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{limit}\"}} {value}");
    }
    let _ = writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}");
    let _ = writeln!(out, "{name}_sum{{{labels}}} {seconds}");
    let _ = writeln!(out, "{name}_count{{{labels}}} {count}");
}

/// By operation, step and whether the write was rejected.
#[derive(Default)]
struct Set([[[Histogram; 2]; 2]; 4]);

impl Set {
    fn observe(&self, step: Step, operation: Operation, rejected: bool, took: Duration) {
        self.0[operation as usize][step as usize][usize::from(rejected)].observe(took);
    }

    fn write(&self, out: &mut String, name: &str, labels: &str) {
        for (of_operation, operation) in self.0.iter().zip(Operation::ALL) {
            for (of_step, (_, step)) in of_operation.iter().zip(STEPS) {
                for (histogram, rejected) in of_step.iter().zip([false, true]) {
                    let operation = operation.as_str();
                    let all =
                        format!("{labels}operation=\"{operation}\",rejected=\"{rejected}\",type=\"{step}\"");
                    histogram.write(out, name, &all);
                }
            }
        }
    }
}

/// The labels of one webhook call.
pub struct WebhookCall<'a> {
    pub name: &'a str,
    /// `admit` or `validating`.
    pub type_: &'static str,
    pub operation: Operation,
    pub code: u16,
    pub rejected: bool,
    pub took: Duration,
}

#[derive(Default)]
struct Webhooks {
    durations: BTreeMap<String, ([u64; WEBHOOK_BUCKETS.len()], u64, f64)>,
    counts: BTreeMap<(&'static str, String), u64>,
}

/// The maximum number of series for webhooks, because users choose their names.
const MAX_SERIES: usize = 4096;

pub struct Metrics {
    names: Vec<&'static str>,
    plugins: Vec<Set>,
    steps: Set,
    webhooks: Mutex<Webhooks>,
}

const STEP: &str = "apiserver_admission_step_admission_duration_seconds";
const CONTROLLER: &str = "apiserver_admission_controller_admission_duration_seconds";
const STEP_HELP: &str = "How long all plugins of a step took, by operation, step and outcome.";
const WEBHOOK_HELP: &str = "How long one webhook took, by its name, operation, step and outcome.";
const CONTROLLER_HELP: &str = "How long one plugin took, by its name, operation, step and outcome.";
const WEBHOOK: &str = "apiserver_admission_webhook_admission_duration_seconds";

impl Metrics {
    pub fn new(names: Vec<&'static str>) -> Self {
        let plugins = names.iter().map(|_| Set::default()).collect();
        Self { names, plugins, steps: Set::default(), webhooks: Mutex::default() }
    }

    pub fn step(&self, step: Step, operation: Operation, rejected: bool, took: Duration) {
        self.steps.observe(step, operation, rejected, took);
    }

    /// Observes the plugin with this index in the chain.
    pub fn plugin(&self, index: usize, step: Step, operation: Operation, rejected: bool, took: Duration) {
        if let Some(set) = self.plugins.get(index) {
            set.observe(step, operation, rejected, took);
        }
    }

    pub fn webhook(&self, call: &WebhookCall<'_>) {
        let (name, type_, operation) = (call.name, call.type_, call.operation.as_str());
        let (code, rejected) = (call.code.min(MAX_CODE), call.rejected);
        let labels =
            format!("name=\"{name}\",operation=\"{operation}\",rejected=\"{rejected}\",type=\"{type_}\"");
        {
            let mut webhooks = self.webhooks.lock().unwrap_or_else(PoisonError::into_inner);
            if webhooks.durations.len() < MAX_SERIES || webhooks.durations.contains_key(&labels) {
                let (buckets, count, sum) = webhooks.durations.entry(labels).or_default();
                let seconds = call.took.as_secs_f64();
                for (bucket, limit) in buckets.iter_mut().zip(WEBHOOK_BUCKETS) {
                    *bucket += u64::from(seconds <= limit);
                }
                *count += 1;
                *sum += seconds;
            }
        }
        self.count(
            "apiserver_admission_webhook_request_total",
            format!(
                "code=\"{code}\",name=\"{name}\",operation=\"{operation}\",rejected=\"{rejected}\",type=\"{type_}\""
            ),
        );
    }

    /// `error_type` is `calling_webhook_error`, `apiserver_internal_error` or `no_error`.
    pub fn webhook_rejection(&self, call: &WebhookCall<'_>, error_type: &str) {
        let (name, type_, operation, code) =
            (call.name, call.type_, call.operation.as_str(), call.code.min(MAX_CODE));
        self.count(
            "apiserver_admission_webhook_rejection_count",
            format!(
                "error_type=\"{error_type}\",name=\"{name}\",operation=\"{operation}\",rejection_code=\"{code}\",type=\"{type_}\""
            ),
        );
    }

    pub fn webhook_fail_open(&self, name: &str, type_: &str) {
        let labels = format!("name=\"{name}\",type=\"{type_}\"");
        self.count("apiserver_admission_webhook_fail_open_count", labels);
    }

    /// Counts an exclusion by match conditions; `kind` is `webhook` or `policy`.
    pub fn match_condition_exclusion(&self, name: &str, kind: &str, type_: &str, operation: Operation) {
        let operation = operation.as_str();
        let labels = format!("kind=\"{kind}\",name=\"{name}\",operation=\"{operation}\",type=\"{type_}\"");
        self.count("apiserver_admission_match_condition_exclusions_total", labels);
    }

    /// Counts one decision of a validating policy: `allow` despite an error, `deny`, `audit`, `warn`.
    pub fn validating_policy(&self, policy: &str, binding: &str, why: Option<&str>, action: &str) {
        let error = why.map_or("no_error", error_type);
        let labels = format!(
            "enforcement_action=\"{action}\",error_type=\"{error}\",policy=\"{policy}\",policy_binding=\"{binding}\""
        );
        self.count("apiserver_validating_admission_policy_check_total", labels);
    }

    /// Counts one mutation by a policy, or the error that prevented it.
    pub fn mutating_policy(&self, policy: &str, binding: &str, why: Option<&str>) {
        let error = why.map_or("no_error", error_type);
        let labels = format!("error_type=\"{error}\",policy=\"{policy}\",policy_binding=\"{binding}\"");
        self.count("apiserver_mutating_admission_policy_check_total", labels);
    }

    fn count(&self, metric: &'static str, labels: String) {
        let mut webhooks = self.webhooks.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (metric, labels);
        if webhooks.counts.len() < MAX_SERIES || webhooks.counts.contains_key(&key) {
            *webhooks.counts.entry(key).or_default() += 1;
        }
    }

    /// Returns the metrics in the Prometheus text format.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(out, "# HELP {STEP} {STEP_HELP}\n# TYPE {STEP} histogram");
        self.steps.write(&mut out, STEP, "");
        let _ = writeln!(out, "# HELP {CONTROLLER} {CONTROLLER_HELP}\n# TYPE {CONTROLLER} histogram");
        for (name, set) in self.names.iter().zip(&self.plugins) {
            set.write(&mut out, CONTROLLER, &format!("name=\"{name}\","));
        }
        let webhooks = self.webhooks.lock().unwrap_or_else(PoisonError::into_inner);
        if !webhooks.durations.is_empty() {
            let _ = writeln!(out, "# HELP {WEBHOOK} {WEBHOOK_HELP}\n# TYPE {WEBHOOK} histogram");
        }
        for (labels, (buckets, count, sum)) in &webhooks.durations {
            let buckets = buckets.iter().copied().zip(WEBHOOK_BUCKETS);
            write_histogram(&mut out, WEBHOOK, labels, buckets, *count, *sum);
        }
        let mut last = "";
        for ((metric, labels), value) in &webhooks.counts {
            if *metric != last {
                let _ = writeln!(out, "# TYPE {metric} counter");
                last = metric;
            }
            let _ = writeln!(out, "{metric}{{{labels}}} {value}");
        }
        out
    }
}

/// Returns the metrics label for an expression's error.
fn error_type(why: &str) -> &'static str {
    if why.starts_with("compilation") {
        "compile_error"
    } else if why.starts_with("validation failed due to running out of cost budget") {
        "out_of_budget"
    } else {
        "invalid_error"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_observed_is_shown() {
        let metrics = Metrics::new(vec!["A"]);
        let took = Duration::from_millis(10);
        metrics.step(Step::Admit, Operation::Create, false, took);
        metrics.plugin(0, Step::Validate, Operation::Delete, true, took);
        let call = WebhookCall {
            name: "w",
            type_: "admit",
            operation: Operation::Update,
            code: 777,
            rejected: true,
            took,
        };
        metrics.webhook(&call);
        metrics.webhook_rejection(&call, "no_error");
        metrics.webhook_fail_open("w", "validating");
        metrics.match_condition_exclusion("w", "webhook", "admit", Operation::Create);
        metrics.validating_policy("p", "b", Some("expression 'x' resulted in error: y"), "deny");
        metrics.mutating_policy("p", "b", None);
        let text = metrics.text();
        for family in [STEP, CONTROLLER, WEBHOOK] {
            let heads = text.lines().filter(|l| l.starts_with(&format!("# HELP {family} "))).count();
            assert_eq!(heads, 1, "{family}\n{text}");
        }
        for line in [
            "apiserver_validating_admission_policy_check_total{enforcement_action=\"deny\",error_type=\"invalid_error\",policy=\"p\",policy_binding=\"b\"} 1",
            "apiserver_mutating_admission_policy_check_total{error_type=\"no_error\",policy=\"p\",policy_binding=\"b\"} 1",
            "apiserver_admission_step_admission_duration_seconds_bucket{operation=\"CREATE\",rejected=\"false\",type=\"admit\",le=\"0.025\"} 1",
            "apiserver_admission_controller_admission_duration_seconds_count{name=\"A\",operation=\"DELETE\",rejected=\"true\",type=\"validate\"} 1",
            "apiserver_admission_webhook_admission_duration_seconds_sum{name=\"w\",operation=\"UPDATE\",rejected=\"true\",type=\"admit\"} 0.01",
            "apiserver_admission_webhook_request_total{code=\"600\",name=\"w\",operation=\"UPDATE\",rejected=\"true\",type=\"admit\"} 1",
            "apiserver_admission_webhook_rejection_count{error_type=\"no_error\",name=\"w\",operation=\"UPDATE\",rejection_code=\"600\",type=\"admit\"} 1",
            "apiserver_admission_webhook_fail_open_count{name=\"w\",type=\"validating\"} 1",
            "apiserver_admission_match_condition_exclusions_total{kind=\"webhook\",name=\"w\",operation=\"CREATE\",type=\"admit\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
    }
}
