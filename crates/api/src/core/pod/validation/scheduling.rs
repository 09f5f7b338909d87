//! Validation of scheduling fields: affinity, tolerations, topology spread, gates, pod groups.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm,
    PodSpec, Toleration, TopologySpreadConstraint, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;
use serde_json::Value;

use crate::validate;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const BAD_OPERATOR: &str = "not a valid selector operator";

pub fn affinity(errors: &mut ErrorList, path: &Path, affinity: Option<&Affinity>) {
    let Some(affinity) = affinity else { return };
    if let Some(node) = &affinity.node_affinity {
        node_affinity(errors, &path.child("nodeAffinity"), node);
    }
    if let Some(pod) = &affinity.pod_affinity {
        let path = path.child("podAffinity");
        let required = pod.required_during_scheduling_ignored_during_execution.as_deref();
        let preferred = pod.preferred_during_scheduling_ignored_during_execution.as_deref();
        pod_terms(errors, &path, required.unwrap_or_default(), preferred.unwrap_or_default());
    }
    if let Some(pod) = &affinity.pod_anti_affinity {
        let path = path.child("podAntiAffinity");
        let required = pod.required_during_scheduling_ignored_during_execution.as_deref();
        let preferred = pod.preferred_during_scheduling_ignored_during_execution.as_deref();
        pod_terms(errors, &path, required.unwrap_or_default(), preferred.unwrap_or_default());
    }
}

fn weight(errors: &mut ErrorList, path: &Path, weight: i32) {
    if !(1..=100).contains(&weight) {
        errors.push(Error::invalid(&path.child("weight"), weight, "must be in the range 1-100"));
    }
}

fn node_affinity(errors: &mut ErrorList, path: &Path, affinity: &NodeAffinity) {
    if let Some(selector) = &affinity.required_during_scheduling_ignored_during_execution {
        node_selector(errors, &path.child(REQUIRED), selector);
    }
    let preferred = affinity.preferred_during_scheduling_ignored_during_execution.iter().flatten();
    for (i, term) in preferred.enumerate() {
        let path = path.child(PREFERRED).index(i);
        weight(errors, &path, term.weight);
        // Values that are not valid label values are accepted here; they never match.
        node_term(errors, &path.child("preference"), &term.preference, false);
    }
}

pub fn node_selector(errors: &mut ErrorList, path: &Path, selector: &NodeSelector) {
    let path = path.child("nodeSelectorTerms");
    if selector.node_selector_terms.is_empty() {
        errors.push(Error::required(&path, "must have at least one node selector term"));
    }
    for (i, term) in selector.node_selector_terms.iter().enumerate() {
        node_term(errors, &path.index(i), term, true);
    }
}

fn node_term(errors: &mut ErrorList, path: &Path, term: &NodeSelectorTerm, check_values: bool) {
    for (i, requirement) in term.match_expressions.iter().flatten().enumerate() {
        label_requirement(errors, &path.child("matchExpressions").index(i), requirement, check_values);
    }
    for (i, requirement) in term.match_fields.iter().flatten().enumerate() {
        field_requirement(errors, &path.child("matchFields").index(i), requirement);
    }
}

fn label_requirement(
    errors: &mut ErrorList,
    path: &Path,
    requirement: &NodeSelectorRequirement,
    check_values: bool,
) {
    let values = requirement.values.as_deref().unwrap_or_default();
    let at = path.child("values");
    match requirement.operator.as_str() {
        "In" | "NotIn" if values.is_empty() => {
            errors.push(Error::required(&at, "must be specified when `operator` is 'In' or 'NotIn'"));
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => errors.push(Error::forbidden(
            &at,
            "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
        )),
        "Gt" | "Lt" if values.len() != 1 => {
            let why = "must be specified single value when `operator` is 'Lt' or 'Gt'";
            errors.push(Error::required(&at, why));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => errors.push(Error::invalid(&path.child("operator"), other, BAD_OPERATOR)),
    }
    validate::label_key(errors, &path.child("key"), &requirement.key);
    if check_values {
        for (i, value) in values.iter().enumerate() {
            validate::problems(errors, &at.index(i), value, names::label_value(value));
        }
    }
}

fn field_requirement(errors: &mut ErrorList, path: &Path, requirement: &NodeSelectorRequirement) {
    let values = requirement.values.as_deref().unwrap_or_default();
    match requirement.operator.as_str() {
        "In" | "NotIn" if values.len() != 1 => {
            let why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
            errors.push(Error::required(&path.child("values"), why));
        }
        "In" | "NotIn" => {}
        other => errors.push(Error::invalid(&path.child("operator"), other, BAD_OPERATOR)),
    }
    if requirement.key != "metadata.name" {
        let problem = "not a valid field selector key";
        errors.push(Error::invalid(&path.child("key"), requirement.key.as_str(), problem));
        return;
    }
    for (i, value) in values.iter().enumerate() {
        validate::dns_subdomain(errors, &path.child("values").index(i), value);
    }
}

fn pod_terms(
    errors: &mut ErrorList,
    path: &Path,
    required: &[PodAffinityTerm],
    preferred: &[WeightedPodAffinityTerm],
) {
    for (i, term) in required.iter().enumerate() {
        pod_term(errors, &path.child(REQUIRED).index(i), term);
    }
    for (i, term) in preferred.iter().enumerate() {
        let path = path.child(PREFERRED).index(i);
        weight(errors, &path, term.weight);
        pod_term(errors, &path.child("podAffinityTerm"), &term.pod_affinity_term);
    }
}

fn pod_term(errors: &mut ErrorList, path: &Path, term: &PodAffinityTerm) {
    validate::label_selector(errors, &path.child("labelSelector"), term.label_selector.as_ref());
    validate::label_selector(errors, &path.child("namespaceSelector"), term.namespace_selector.as_ref());
    for name in term.namespaces.iter().flatten() {
        validate::dns_label(errors, &path.child("namespace"), name);
    }
    let matching = term.match_label_keys.as_deref().unwrap_or_default();
    let mismatching = term.mismatch_label_keys.as_deref().unwrap_or_default();
    label_keys(errors, path, [matching, mismatching], term.label_selector.as_ref());
    let at = path.child("topologyKey");
    if term.topology_key.is_empty() {
        errors.push(Error::required(&at, "can not be empty"));
    }
    validate::label_key(errors, &at, &term.topology_key);
}

fn label_keys(
    errors: &mut ErrorList,
    path: &Path,
    [matching, mismatching]: [&[String]; 2],
    selector: Option<&LabelSelector>,
) {
    for (field, keys) in [("matchLabelKeys", matching), ("mismatchLabelKeys", mismatching)] {
        let path = path.child(field);
        if selector.is_none() && !keys.is_empty() {
            let why = "must not be specified when labelSelector is not set";
            errors.push(Error::forbidden(&path, why));
            continue;
        }
        for (i, key) in keys.iter().enumerate() {
            validate::label_key(errors, &path.index(i), key);
        }
    }
    if let Some(selector) = selector {
        let mut seen: BTreeSet<&str> =
            selector.match_labels.iter().flatten().map(|(key, _)| key.as_str()).collect();
        for requirement in selector.match_expressions.iter().flatten() {
            let key = requirement.key.as_str();
            // The server itself adds one requirement per key; a second one is the user's.
            if let Some(i) = matching.iter().position(|m| m == key).filter(|_| seen.contains(key)) {
                let problem = "exists in both matchLabelKeys and labelSelector";
                errors.push(Error::invalid(&path.index(i), key, problem));
            }
            seen.insert(key);
        }
    }
    for (i, key) in matching.iter().enumerate().filter(|(_, key)| mismatching.contains(key)) {
        let problem = "exists in both matchLabelKeys and mismatchLabelKeys";
        errors.push(Error::invalid(&path.child("matchLabelKeys").index(i), key.as_str(), problem));
    }
}

pub fn gates(errors: &mut ErrorList, path: &Path, spec: &PodSpec) {
    let mut seen = BTreeSet::new();
    for (i, gate) in spec.scheduling_gates.iter().flatten().enumerate() {
        validate::label_key(errors, &path.index(i), &gate.name);
        if !seen.insert(&gate.name) {
            errors.push(Error::duplicate(&path.index(i), gate.name.as_str()));
        }
    }
}

/// Validates the pod group that a pod is scheduled with.
pub fn group(errors: &mut ErrorList, path: &Path, spec: &PodSpec) {
    let Some(group) = &spec.scheduling_group else { return };
    let path = path.child("podGroupName");
    match &group.pod_group_name {
        Some(name) => validate::dns_subdomain(errors, &path, name),
        None => errors.push(Error::invalid(&path, Value::Null, "must specify one of: `podGroupName`")),
    }
}

pub fn spread(errors: &mut ErrorList, path: &Path, constraints: &[TopologySpreadConstraint]) {
    for (i, constraint) in constraints.iter().enumerate() {
        let path = path.index(i);
        validate::positive(errors, &path.child("maxSkew"), i64::from(constraint.max_skew));
        if constraint.topology_key.is_empty() {
            errors.push(Error::required(&path.child("topologyKey"), "can not be empty"));
        }
        let action = constraint.when_unsatisfiable.as_str();
        let actions = ["DoNotSchedule", "ScheduleAnyway"];
        validate::supported_value(errors, &path.child("whenUnsatisfiable"), action, &actions);
        let same = |other: &TopologySpreadConstraint| {
            (&other.topology_key, &other.when_unsatisfiable)
                == (&constraint.topology_key, &constraint.when_unsatisfiable)
        };
        if constraints[i + 1..].iter().any(same) {
            let value = format!("{{{}, {action}}}", constraint.topology_key);
            errors.push(Error::duplicate(&path.child("{topologyKey, whenUnsatisfiable}"), value));
        }
        if let Some(domains) = constraint.min_domains {
            let path = path.child("minDomains");
            validate::positive(errors, &path, i64::from(domains));
            if action != "DoNotSchedule" {
                let problem =
                    format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
                errors.push(Error::invalid(&path, domains, problem));
            }
        }
        for (field, policy) in [
            ("nodeAffinityPolicy", &constraint.node_affinity_policy),
            ("nodeTaintsPolicy", &constraint.node_taints_policy),
        ] {
            if let Some(policy) = policy {
                validate::supported_value(errors, &path.child(field), policy, &["Honor", "Ignore"]);
            }
        }
        let keys = constraint.match_label_keys.as_deref().unwrap_or_default();
        label_keys(errors, &path, [keys, &[]], constraint.label_selector.as_ref());
        validate::label_selector(errors, &path.child("labelSelector"), constraint.label_selector.as_ref());
    }
}

pub fn taint_effect(errors: &mut ErrorList, path: &Path, effect: &str) {
    let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
    validate::supported_value(errors, path, effect, &effects);
}

pub fn tolerations(errors: &mut ErrorList, path: &Path, tolerations: &[Toleration]) {
    for (i, toleration) in tolerations.iter().enumerate() {
        let path = path.index(i);
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let (key, operator) = (text(&toleration.key), text(&toleration.operator));
        let (value, effect) = (text(&toleration.value), text(&toleration.effect));
        let at = path.child("operator");
        if !key.is_empty() {
            validate::label_key(errors, &path.child("key"), &key);
        } else if operator != "Exists" {
            let problem =
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.push(Error::invalid(&at, operator.as_str(), problem));
        }
        if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
            let problem = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.push(Error::invalid(&path.child("effect"), effect.as_str(), problem));
        }
        match operator.as_str() {
            "Equal" | "" => {
                let found = names::label_value(&value);
                if !found.is_empty() {
                    errors.push(Error::invalid(&at, value.as_str(), found.join(";")));
                }
            }
            "Exists" if !value.is_empty() => {
                let problem = "value must be empty when `operator` is 'Exists'";
                errors.push(Error::invalid(&at, value.as_str(), problem));
            }
            "Exists" => {}
            // Comparison operators are an alpha feature upstream, off by default.
            "Lt" | "Gt" => {
                let operators = ["Equal", "Exists", "Lt", "Gt"];
                errors.push(validate::not_supported(&at, operator.as_str(), &operators));
            }
            other => errors.push(validate::not_supported(&at, other, &["Equal", "Exists"])),
        }
        if !effect.is_empty() {
            taint_effect(errors, &path.child("effect"), &effect);
        }
    }
}
