//! Pod failure policy and success policy: which failures count, and when the Job has succeeded.

use k8s_openapi::api::batch::v1::{
    Job, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyOnPodConditionsPattern,
};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use knarr_api::kind::Kind;

use super::indexes::Indexes;
use super::pods::{phase, spec};

/// What a failed pod means for its Job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    Counts,
    Ignored,
    FailsIndex,
    /// The Job fails, with this message.
    FailsJob(String),
}

/// Applies the first failure rule that matches; without one the failure counts.
pub fn judge(job: &Job, pod: &Pod) -> Failure {
    let policy = spec(job).and_then(|s| s.pod_failure_policy.as_ref());
    let rules = policy.map(|p| p.rules.as_slice()).unwrap_or_default();
    if phase(pod) != "Failed" {
        return Failure::Counts;
    }
    for (i, rule) in rules.iter().enumerate() {
        let found = match (&rule.on_exit_codes, &rule.on_pod_conditions) {
            (Some(codes), _) => exit_code(codes, pod),
            (None, Some(patterns)) => condition(patterns, pod),
            (None, None) => None,
        };
        let Some(found) = found else { continue };
        return match rule.action.as_str() {
            "FailJob" => Failure::FailsJob(format!("{found} matching FailJob rule at index {i}")),
            "FailIndex" => Failure::FailsIndex,
            "Ignore" => Failure::Ignored,
            _ => Failure::Counts,
        };
    }
    Failure::Counts
}

fn exit_code(rule: &PodFailurePolicyOnExitCodesRequirement, pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    let matches = |container: &&ContainerStatus| {
        let wanted = rule.container_name.as_ref().is_none_or(|name| *name == container.name);
        let code = code_of(container).filter(|code| *code != 0);
        wanted
            && code.is_some_and(|code| match rule.operator.as_str() {
                "In" => rule.values.contains(&code),
                "NotIn" => !rule.values.contains(&code),
                _ => false,
            })
    };
    let container = all.into_iter().find(matches)?;
    Some(format!(
        "Container {} for pod {}/{} failed with exit code {}",
        container.name,
        pod.namespace(),
        pod.name(),
        code_of(container)?
    ))
}

fn code_of(container: &ContainerStatus) -> Option<i32> {
    Some(container.state.as_ref()?.terminated.as_ref()?.exit_code)
}

fn condition(patterns: &[PodFailurePolicyOnPodConditionsPattern], pod: &Pod) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let wanted =
        |p: &PodFailurePolicyOnPodConditionsPattern| p.status.clone().unwrap_or_else(|| "True".into());
    let found =
        conditions.iter().find(|c| patterns.iter().any(|p| p.type_ == c.type_ && wanted(p) == c.status))?;
    Some(format!("Pod {}/{} has condition {}", pod.namespace(), pod.name(), found.type_))
}

/// Checks the success policy; returns the message if enough indexes have succeeded.
pub fn success(job: &Job, succeeded: &Indexes) -> Option<String> {
    let spec = spec(job)?;
    let limit = spec.completions.unwrap_or(0);
    for (i, rule) in spec.success_policy.as_ref()?.rules.iter().enumerate() {
        let done = match &rule.succeeded_indexes {
            Some(text) => {
                let wanted = Indexes::parse(text, limit);
                let common = wanted.common(succeeded);
                common >= rule.succeeded_count.unwrap_or(wanted.len())
            }
            None => rule.succeeded_count.is_some_and(|count| succeeded.len() >= count),
        };
        if done {
            return Some(format!("Matched rules at index {i}"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn job(extra: Value) -> Job {
        let mut spec = json!({"completions": 5, "completionMode": "Indexed", "template": {}});
        spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        serde_json::from_value(json!({"metadata": {"name": "j"}, "spec": spec})).unwrap()
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let job = job(json!({"podFailurePolicy": {"rules": [
            {"action": "FailJob", "onExitCodes": {"containerName": "main", "operator": "In", "values": [42]}},
            {"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [7]}},
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
        ]}}));
        let failed = |container: &str, code: i32, condition: &str| {
            let state = json!({"terminated": {"exitCode": code}});
            let pod: Pod =
                serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n"}, "status": {
                "phase": "Failed", "conditions": [{"type": condition, "status": "True"}],
                "containerStatuses": [{"name": container, "state": state}]}}))
                .unwrap();
            judge(&job, &pod)
        };
        let message = "Container main for pod n/p failed with exit code 42 matching FailJob rule at index 0";
        assert_eq!(failed("main", 42, "Ready"), Failure::FailsJob(message.into()));
        assert_eq!(failed("other", 42, "Ready"), Failure::Counts);
        assert_eq!(failed("other", 7, "Ready"), Failure::FailsIndex);
        assert_eq!(failed("main", 1, "DisruptionTarget"), Failure::Ignored);
    }

    #[test]
    fn enough_is_when_a_rule_says_so() {
        let policy = |rules: Value| job(json!({"successPolicy": {"rules": rules}}));
        let done = |rules: Value, text: &str| success(&policy(rules), &Indexes::parse(text, 5)).is_some();
        assert!(done(json!([{"succeededIndexes": "0"}]), "0"));
        assert!(!done(json!([{"succeededIndexes": "0,2"}]), "0,1"));
        assert!(done(json!([{"succeededIndexes": "0,2,4", "succeededCount": 2}]), "0,4"));
        assert!(done(json!([{"succeededIndexes": "4"}, {"succeededCount": 2}]), "1,3"));
        assert!(!done(json!([{"succeededCount": 3}]), "1,3"));
    }
}
