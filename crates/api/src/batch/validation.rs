//! Validation of a Job's spec, alone or in a CronJob's template, in upstream's order.

use std::collections::BTreeSet;

use k8s_openapi::api::batch::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};

use super::indexes;
use crate::core::pod::validation as pod;
use crate::validate::{self, omitted};

pub const INDEXED: &str = "Indexed";
pub const NON_INDEXED: &str = "NonIndexed";

const PARALLELISM_MAX: i32 = 100_000;
const FAILED_INDEXES_MAX: i32 = 100_000;
/// Above this number of completions, parallelism and failed indexes have lower limits.
const COMPLETIONS_SOFT: i32 = 100_000;
const PARALLELISM_MANY: i32 = 10_000;
const FAILED_INDEXES_MANY: i32 = 10_000;
const RULES_MAX: usize = 20;
const EXIT_CODES_MAX: usize = 255;
const CONDITIONS_MAX: usize = 20;
const MANAGED_BY_MAX: usize = 63;
const SUCCEEDED_INDEXES_MAX: usize = 64 * 1024;

pub fn is_indexed(spec: &api::JobSpec) -> bool {
    spec.completion_mode.as_deref() == Some(INDEXED)
}

/// Validates what the specs of Jobs and of CronJob templates have in common.
pub fn spec(errors: &mut ErrorList, path: &Path, spec: &api::JobSpec) {
    counts(errors, path, spec);
    completion_mode(errors, path, spec);
    if let Some(policy) = &spec.pod_failure_policy {
        failure_policy(errors, &path.child("podFailurePolicy"), policy, spec);
    }
    if let Some(policy) = &spec.success_policy {
        success_policy(errors, &path.child("successPolicy"), policy, spec);
    }
    if let Some(policy) = spec.pod_replacement_policy.as_deref() {
        let policies: &[&str] =
            if spec.pod_failure_policy.is_some() { &["Failed"] } else { &["Failed", "TerminatingOrFailed"] };
        validate::supported_value(errors, &path.child("podReplacementPolicy"), policy, policies);
    }
    pod::template(errors, &path.child("template"), &spec.template);
    restart_policy(errors, path, spec);
}

fn counts(errors: &mut ErrorList, path: &Path, spec: &api::JobSpec) {
    for (field, count) in [
        ("parallelism", spec.parallelism.map(i64::from)),
        ("completions", spec.completions.map(i64::from)),
        ("activeDeadlineSeconds", spec.active_deadline_seconds),
        ("backoffLimit", spec.backoff_limit.map(i64::from)),
        ("ttlSecondsAfterFinished", spec.ttl_seconds_after_finished.map(i64::from)),
        ("backoffLimitPerIndex", spec.backoff_limit_per_index.map(i64::from)),
        ("maxFailedIndexes", spec.max_failed_indexes.map(i64::from)),
    ] {
        validate::nonnegative(errors, &path.child(field), count.unwrap_or(0));
    }
    if spec.max_failed_indexes.is_some() && spec.backoff_limit_per_index.is_none() {
        errors
            .push(Error::required(&path.child("backoffLimitPerIndex"), "when maxFailedIndexes is specified"));
    }
    if let Some(manager) = &spec.managed_by {
        let path = path.child("managedBy");
        validate::domain_prefixed_path(errors, &path, manager);
        if manager.len() > MANAGED_BY_MAX {
            errors.push(Error::too_long(&path, MANAGED_BY_MAX));
        }
    }
}

fn completion_mode(errors: &mut ErrorList, path: &Path, spec: &api::JobSpec) {
    match spec.completion_mode.as_deref() {
        Some(INDEXED) => indexed(errors, path, spec),
        None | Some(NON_INDEXED) => {
            let why = "requires indexed completion mode";
            for (field, count) in [
                ("backoffLimitPerIndex", spec.backoff_limit_per_index),
                ("maxFailedIndexes", spec.max_failed_indexes),
            ] {
                if let Some(count) = count {
                    errors.push(Error::invalid(&path.child(field), count, why));
                }
            }
        }
        Some(other) => {
            let modes = [NON_INDEXED, INDEXED];
            errors.push(validate::not_supported(&path.child("completionMode"), other, &modes));
        }
    }
}

fn indexed(errors: &mut ErrorList, path: &Path, spec: &api::JobSpec) {
    let at_most = |errors: &mut ErrorList, field: &str, count: Option<i32>, max: i32, when: &str| {
        if let Some(count) = count.filter(|c| *c > max) {
            let problem = format!("must be less than or equal to {max}{when}");
            errors.push(Error::invalid(&path.child(field), count, problem));
        }
    };
    if spec.completions.is_none() {
        errors.push(Error::required(&path.child("completions"), "when completion mode is Indexed"));
    }
    let when = " when completion mode is Indexed";
    at_most(errors, "parallelism", spec.parallelism, PARALLELISM_MAX, when);
    let failed = spec.max_failed_indexes;
    if let (Some(completions), Some(failed)) = (spec.completions, failed)
        && failed > completions
    {
        let problem = "must be less than or equal to completions";
        errors.push(Error::invalid(&path.child("maxFailedIndexes"), failed, problem));
    }
    at_most(errors, "maxFailedIndexes", failed, FAILED_INDEXES_MAX, "");
    let many = spec.completions.is_some_and(|c| c > COMPLETIONS_SOFT);
    if many && spec.backoff_limit_per_index.is_some() {
        if failed.is_none() {
            let why = format!("must be specified when completions is above {COMPLETIONS_SOFT}");
            errors.push(Error::required(&path.child("maxFailedIndexes"), why));
        }
        let when =
            format!(" when completions are above {COMPLETIONS_SOFT} and used with backoff limit per index");
        at_most(errors, "parallelism", spec.parallelism, PARALLELISM_MANY, &when);
        at_most(errors, "maxFailedIndexes", failed, FAILED_INDEXES_MANY, &when);
    }
}

/// Returns `valid values: ["A" "B"]`.
fn valid_values(values: &[&str]) -> String {
    let values: Vec<String> = values.iter().map(|v| format!("{v:?}")).collect();
    format!("valid values: [{}]", values.join(" "))
}

fn one_of(errors: &mut ErrorList, path: &Path, value: &str, values: &[&str]) {
    if value.is_empty() {
        errors.push(Error::required(path, valid_values(values)));
    } else {
        validate::supported_value(errors, path, value, values);
    }
}

fn failure_policy(errors: &mut ErrorList, path: &Path, policy: &api::PodFailurePolicy, spec: &api::JobSpec) {
    let rules = path.child("rules");
    if policy.rules.len() > RULES_MAX {
        errors.push(Error::too_many(&rules, policy.rules.len(), RULES_MAX));
    }
    let pod = spec.template.spec.as_ref();
    let containers =
        pod.into_iter().flat_map(|p| p.containers.iter().chain(p.init_containers.iter().flatten()));
    let containers: BTreeSet<&str> = containers.map(|c| c.name.as_str()).collect();
    for (i, rule) in policy.rules.iter().enumerate() {
        let path = rules.index(i);
        let actions = ["Count", "FailIndex", "FailJob", "Ignore"];
        one_of(errors, &path.child("action"), &rule.action, &actions);
        if rule.action == "FailIndex" && spec.backoff_limit_per_index.is_none() {
            let problem = "requires the backoffLimitPerIndex to be set";
            errors.push(Error::invalid(&path.child("action"), rule.action.as_str(), problem));
        }
        if let Some(codes) = &rule.on_exit_codes {
            exit_codes(errors, &path.child("onExitCodes"), codes, &containers);
        }
        let patterns = rule.on_pod_conditions.as_deref().unwrap_or_default();
        if !patterns.is_empty() {
            pod_conditions(errors, &path.child("onPodConditions"), patterns);
        }
        match (rule.on_exit_codes.is_some(), !patterns.is_empty()) {
            (true, true) => errors
                .push(omitted(&path, "specifying both OnExitCodes and OnPodConditions is not supported")),
            (false, false) => {
                errors.push(omitted(&path, "specifying one of OnExitCodes and OnPodConditions is required"))
            }
            _ => {}
        }
    }
}

fn exit_codes(
    errors: &mut ErrorList,
    path: &Path,
    codes: &api::PodFailurePolicyOnExitCodesRequirement,
    containers: &BTreeSet<&str>,
) {
    one_of(errors, &path.child("operator"), &codes.operator, &["In", "NotIn"]);
    if let Some(name) = codes.container_name.as_deref().filter(|n| !containers.contains(n)) {
        let problem = "must be one of the container or initContainer names in the pod template";
        errors.push(Error::invalid(&path.child("containerName"), name, problem));
    }
    let at = path.child("values");
    if codes.values.is_empty() {
        errors.push(Error::invalid(&at, validate::shown(&codes.values), "at least one value is required"));
    } else if codes.values.len() > EXIT_CODES_MAX {
        errors.push(Error::too_many(&at, codes.values.len(), EXIT_CODES_MAX));
    }
    let mut seen = BTreeSet::new();
    for (i, code) in codes.values.iter().enumerate() {
        if codes.operator == "In" && *code == 0 {
            errors.push(Error::invalid(&at.index(i), *code, "must not be 0 for the In operator"));
        }
        if !seen.insert(code) {
            errors.push(Error::duplicate(&at.index(i), *code));
        }
    }
    if !codes.values.is_sorted() {
        errors.push(Error::invalid(&at, validate::shown(&codes.values), "must be ordered"));
    }
}

fn pod_conditions(
    errors: &mut ErrorList,
    path: &Path,
    patterns: &[api::PodFailurePolicyOnPodConditionsPattern],
) {
    if patterns.len() > CONDITIONS_MAX {
        errors.push(Error::too_many(path, patterns.len(), CONDITIONS_MAX));
    }
    for (i, pattern) in patterns.iter().enumerate() {
        let path = path.index(i);
        validate::label_key(errors, &path.child("type"), &pattern.type_);
        let status = pattern.status.as_deref().unwrap_or("");
        one_of(errors, &path.child("status"), status, &["False", "True", "Unknown"]);
    }
}

fn success_policy(errors: &mut ErrorList, path: &Path, policy: &api::SuccessPolicy, spec: &api::JobSpec) {
    if !is_indexed(spec) {
        // The message shows upstream's internal Go type.
        let rule = |r: &api::SuccessPolicyRule| {
            let (indexes, count) =
                (validate::shown(&r.succeeded_indexes), validate::shown(&r.succeeded_count));
            format!(r#"{{"SucceededIndexes":{indexes},"SucceededCount":{count}}}"#)
        };
        let rules: Vec<String> = policy.rules.iter().map(rule).collect();
        let rules = if rules.is_empty() { "null".to_owned() } else { format!("[{}]", rules.join(",")) };
        let text = format!(r#"{{"Rules":{rules}}}"#);
        errors.push(validate::invalid_text(path, &text, "requires indexed completion mode"));
        return;
    }
    let path = path.child("rules");
    if policy.rules.is_empty() {
        let why = "at least one rules must be specified when the successPolicy is specified";
        errors.push(Error::required(&path, why));
    }
    if policy.rules.len() > RULES_MAX {
        errors.push(Error::too_many(&path, policy.rules.len(), RULES_MAX));
    }
    let completions = spec.completions.unwrap_or(0);
    for (i, rule) in policy.rules.iter().enumerate() {
        success_rule(errors, &path.index(i), rule, completions);
    }
}

fn success_rule(errors: &mut ErrorList, path: &Path, rule: &api::SuccessPolicyRule, completions: i32) {
    if rule.succeeded_count.is_none() && rule.succeeded_indexes.is_none() {
        let why = "at least one of succeededCount or succeededIndexes must be specified";
        errors.push(Error::required(path, why));
    }
    let mut total = 0;
    if let Some(text) = rule.succeeded_indexes.as_deref() {
        let path = path.child("succeededIndexes");
        if text.len() > SUCCEEDED_INDEXES_MAX {
            errors.push(Error::too_long(&path, SUCCEEDED_INDEXES_MAX));
        }
        match indexes::count(text, completions) {
            Ok(count) => total = count,
            Err(why) => {
                errors.push(Error::invalid(&path, text, format!("error parsing succeededIndexes: {why}")));
            }
        }
    }
    if let Some(count) = rule.succeeded_count {
        let path = path.child("succeededCount");
        validate::nonnegative(errors, &path, i64::from(count));
        if count > completions {
            let problem =
                format!("must be less than or equal to {completions} (the number of specified completions)");
            errors.push(Error::invalid(&path, count, problem));
        }
        if rule.succeeded_indexes.is_some() && count > total {
            let problem = format!(
                "must be less than or equal to {total} (the number of indexes in the specified succeededIndexes field)"
            );
            errors.push(Error::invalid(&path, count, problem));
        }
    }
}

/// Requires a restart policy that lets pods end.
fn restart_policy(errors: &mut ErrorList, path: &Path, spec: &api::JobSpec) {
    let path = path.child("template").child("spec").child("restartPolicy");
    match spec.template.spec.as_ref().and_then(|s| s.restart_policy.as_deref()).unwrap_or("") {
        "" | "Always" => errors.push(Error::required(&path, r#"valid values: "OnFailure", "Never""#)),
        "Never" => {}
        "OnFailure" if spec.pod_failure_policy.is_some() => {
            let problem = r#"only "Never" is supported when podFailurePolicy is specified"#;
            errors.push(Error::invalid(&path, "OnFailure", problem));
        }
        "OnFailure" => {}
        other => errors.push(validate::not_supported(&path, other, &["OnFailure", "Never"])),
    }
}
